//! What the market knows: products, orders and what follows from them. The structs are the tables.

#![allow(
    missing_docs,
    reason = "a column says by its name what it holds; where it does not, there is a line"
)]

use std::sync::LazyLock;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::machine::CheckedMachine;
use towpath::tables::{Row, StoredName};
use towpath::{Entity, Event as _, Machine};

use crate::events::{AGGREGATE_TYPE, OrderEvent, ProductEvent};
use crate::money::{InvalidMoney, Money};

/// Where a product is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, StoredName)]
pub enum ProductStatus {
    #[serde(rename = "on_sale")]
    OnSale,
    #[serde(rename = "sold")]
    Sold,
    #[serde(rename = "withdrawn")]
    Withdrawn,
}

/// Where an order is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, StoredName)]
pub enum OrderStatus {
    #[serde(rename = "pending")]
    Pending,
    #[serde(rename = "paid")]
    Paid,
    #[serde(rename = "shipped")]
    Shipped,
    #[serde(rename = "completed")]
    Completed,
    #[serde(rename = "cancelled")]
    Cancelled,
}

/// Where a shipment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, StoredName)]
pub enum ShipmentStatus {
    #[serde(rename = "preparing")]
    Preparing,
    #[serde(rename = "shipped")]
    Shipped,
    #[serde(rename = "delivered")]
    Delivered,
}

/// Something that is or was for sale.
#[derive(Debug, Clone, PartialEq, Eq, Row)]
#[row(
    table = "products",
    index(
        products_status(status, product_id),
        products_seller(seller_id, product_id),
        // What there is for a price: without it, a price that hardly anything has is looked for in all products.
        products_status_price(status, price_cents, product_id),
    )
)]
pub struct Product {
    #[row(key)]
    pub product_id: i64,
    pub seller_id: i64,
    pub title: String,
    #[row(column = "price_cents")]
    pub price: Money,
    #[row(state)]
    pub status: ProductStatus,
    pub status_changed_at: DateTime<Utc>,
    pub create_time: DateTime<Utc>,
}

impl Entity for Product {
    const KIND: &'static str = "Product";
    type Event = ProductEvent;

    fn machine() -> Machine {
        let [on_sale, sold, withdrawn] = ProductStatus::ALL.map(ProductStatus::as_str);
        Machine::named("product")
            .starts(ProductEvent::OFFERED, on_sale)
            .state(on_sale)
            .state(sold)
            .terminal(withdrawn)
            .transition(on_sale, ProductEvent::SOLD, sold)
            .transition(sold, ProductEvent::RETURNED, on_sale)
            .transition(on_sale, ProductEvent::WITHDRAWN, withdrawn)
    }

    fn id(&self) -> String {
        self.product_id.to_string()
    }
}

/// A word of a title, by which its product is found.
#[derive(Debug, Clone, PartialEq, Eq, Row)]
#[row(table = "product_words", append_only, index(product_words_product(product_id)))]
pub(crate) struct ProductWord {
    #[row(key, name = 64)]
    pub(crate) word: String,
    #[row(key)]
    pub(crate) product_id: i64,
}

/// An order.
#[derive(Debug, Clone, PartialEq, Eq, Row)]
#[row(
    table = "orders",
    unique(orders_order_no(order_no)),
    index(
        // What the job looks for: unpaid orders, the oldest first.
        orders_status_time(status, create_time),
        orders_status(status, order_id),
        orders_buyer(buyer_id, order_id),
        orders_seller(seller_id, order_id),
        orders_product(product_id, order_id),
    )
)]
pub struct Order {
    #[row(key)]
    pub order_id: i64,
    /// Its number for people.
    #[row(name = 64)]
    pub order_no: String,
    pub product_id: i64,
    pub buyer_id: i64,
    pub seller_id: i64,
    /// Always one.
    pub quantity: i64,
    #[row(column = "price_cents")]
    pub price: Money,
    #[row(column = "total_cents")]
    pub total_amount: Money,
    #[row(state)]
    pub status: OrderStatus,
    pub status_changed_at: DateTime<Utc>,
    #[row(name = 64)]
    pub cancel_reason: Option<String>,
    pub create_time: DateTime<Utc>,
    pub pay_time: Option<DateTime<Utc>>,
    pub ship_time: Option<DateTime<Utc>>,
    pub complete_time: Option<DateTime<Utc>>,
    pub cancel_time: Option<DateTime<Utc>>,
    /// The flow of all its facts. Orders from before flows were kept have none.
    #[row(name = 64)]
    pub correlation_id: Option<String>,
    /// The fact of its last step.
    #[row(name = 64)]
    pub(crate) last_event_id: Option<String>,
    /// The fact that asks whether it was paid.
    #[row(name = 64)]
    pub(crate) timeout_event_id: Option<String>,
}

impl Entity for Order {
    const KIND: &'static str = AGGREGATE_TYPE;
    type Event = OrderEvent;

    fn machine() -> Machine {
        let [pending, paid, shipped, completed, cancelled] = OrderStatus::ALL.map(OrderStatus::as_str);
        Machine::named("order")
            .starts(OrderEvent::CREATED, pending)
            .state(pending)
            .state(paid)
            .state(shipped)
            .terminal(completed)
            .terminal(cancelled)
            .transition(pending, OrderEvent::PAID, paid)
            .transition(pending, OrderEvent::CANCELLED, cancelled)
            .transition(paid, OrderEvent::STATUS_CHANGED, shipped)
            .transition(shipped, OrderEvent::STATUS_CHANGED, completed)
            .stays(OrderEvent::TIMEOUT)
    }

    fn id(&self) -> String {
        self.order_id.to_string()
    }
}

impl Order {
    /// One of a product, as it is when it was placed.
    pub(crate) fn placed(
        order_id: i64,
        product: &Product,
        buyer_id: i64,
        now: DateTime<Utc>,
    ) -> Result<Self, InvalidMoney> {
        let quantity = 1;
        Ok(Self {
            order_id,
            // The second of the order and the end of its number: 18 digits, as the contract's example has them.
            order_no: format!("{}{:04}", now.format("%Y%m%d%H%M%S"), order_id.rem_euclid(10_000)),
            product_id: product.product_id,
            buyer_id,
            seller_id: product.seller_id,
            quantity,
            price: product.price,
            total_amount: product.price.times(quantity)?,
            status: OrderStatus::Pending,
            status_changed_at: now,
            cancel_reason: None,
            create_time: now,
            pay_time: None,
            ship_time: None,
            complete_time: None,
            cancel_time: None,
            correlation_id: None,
            last_event_id: None,
            timeout_event_id: None,
        })
    }

    /// Until when it is to be paid, where it waits for that; later it is cancelled.
    pub fn pay_by(&self, pending: Duration) -> Option<DateTime<Utc>> {
        let pending = chrono::Duration::from_std(pending).ok()?;
        self.create_time.checked_add_signed(pending).filter(|_| self.status == OrderStatus::Pending)
    }
}

/// The step of an order to a status.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// Who takes it.
    pub(crate) role: &'static str,
    /// The column that says when.
    pub(crate) time: &'static str,
    /// What is said of an order that cannot take it.
    pub(crate) passive: &'static str,
}

pub(crate) const BUYER: &str = "the buyer";
pub(crate) const SELLER: &str = "the seller";

impl OrderStatus {
    /// How an order comes here.
    pub(crate) fn way(self) -> Way {
        let (name, role, time, passive) = match self {
            Self::Pending => ("place", BUYER, "create_time", "be placed"),
            Self::Paid => ("pay", BUYER, "pay_time", "be paid"),
            Self::Shipped => ("ship", SELLER, "ship_time", "be shipped"),
            Self::Completed => ("complete", BUYER, "complete_time", "be completed"),
            Self::Cancelled => ("cancel", BUYER, "cancel_time", "be cancelled"),
        };
        Way { name, role, time, passive }
    }

    /// The steps that are possible from here, by their names: those of the machine.
    pub fn possible(self) -> Vec<&'static str> {
        static MACHINE: LazyLock<Option<CheckedMachine>> =
            LazyLock::new(|| Order::machine().check(OrderEvent::NAMES).ok());
        let steps = MACHINE.as_ref().map(|machine| machine.possible_next(Some(self.as_str())));
        steps.into_iter().flatten().filter_map(|step| Some(Self::named(&step.to)?.way().name)).collect()
    }
}

/// The way of an order to its buyer.
#[derive(Debug, Clone, PartialEq, Eq, Row)]
#[row(table = "shipments")]
pub struct Shipment {
    #[row(key)]
    pub order_id: i64,
    pub status: ShipmentStatus,
    pub status_changed_at: DateTime<Utc>,
    pub created_at: DateTime<Utc>,
}

/// Something that a buyer or a seller was told.
#[derive(Debug, Clone, PartialEq, Eq, Row)]
#[row(table = "notifications",
    append_only,
    index(
        notifications_order(order_id, created_at),
        // What somebody was told, page by page.
        notifications_recipient_event(recipient_id, event_id),
    ))]
pub struct Notification {
    /// The event that led to it.
    #[row(key, name = 64)]
    pub event_id: String,
    #[row(key)]
    pub recipient_id: i64,
    pub order_id: i64,
    /// What the order became.
    pub status: OrderStatus,
    pub created_at: DateTime<Utc>,
}

/// How a buyer's orders ended.
#[derive(Debug, Clone, PartialEq, Eq, Row)]
#[row(table = "buyer_credit")]
pub struct BuyerCredit {
    #[row(key)]
    pub buyer_id: i64,
    pub completed_count: i64,
    pub cancelled_count: i64,
    /// How many were never paid.
    pub timeout_count: i64,
    /// From 0 to 100.
    pub score: i64,
    pub updated_at: DateTime<Utc>,
}

impl BuyerCredit {
    /// How so many completed, cancelled and never paid orders count: a cancelled one costs 5, one that was never paid 10, one
    /// that was completed gives 1 back.
    pub(crate) fn of(
        buyer_id: i64,
        (completed_count, cancelled_count, timeout_count): (i64, i64, i64),
        updated_at: DateTime<Utc>,
    ) -> Self {
        let score = (100 - 5 * cancelled_count - 10 * timeout_count + completed_count).clamp(0, 100);
        Self { buyer_id, completed_count, cancelled_count, timeout_count, score, updated_at }
    }
}

/// What is known about a product's availability, a moment after the fact.
#[derive(Debug, Clone, PartialEq, Eq, Row)]
#[row(table = "inventory")]
pub struct Inventory {
    #[row(key)]
    pub product_id: i64,
    #[row(column = "available")]
    pub is_available: bool,
    /// How often it was ordered.
    pub order_count: i64,
    pub last_order_id: i64,
    pub updated_at: DateTime<Utc>,
}

/// An order that the inventory has counted.
#[derive(Debug, Clone, PartialEq, Eq, Row)]
#[row(table = "inventory_orders", append_only)]
pub(crate) struct CountedOrder {
    #[row(key)]
    pub(crate) order_id: i64,
    pub(crate) product_id: i64,
    pub(crate) counted_at: DateTime<Utc>,
}

/// The next number of a kind.
#[derive(Row)]
#[row(table = "market_numbers")]
pub(crate) struct Number {
    #[row(key, name = 64)]
    pub(crate) kind: String,
    pub(crate) next_number: i64,
}

/// Which products. What is not said is not asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProductFilter {
    pub status: Option<ProductStatus>,
    pub seller_id: Option<i64>,
    /// With all of these words in the title.
    pub text: Option<String>,
    pub min_price: Option<Money>,
    pub max_price: Option<Money>,
}

/// Which orders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderFilter {
    pub status: Option<OrderStatus>,
    pub buyer_id: Option<i64>,
    pub seller_id: Option<i64>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The order of the contract's example.
    pub(crate) fn order(order_id: i64) -> Order {
        let now = "2026-02-04T10:30:00.123456Z".parse().unwrap();
        let product = Product {
            product_id: 7,
            seller_id: 10002,
            title: "A bicycle".to_owned(),
            price: "88.50".parse().unwrap(),
            status: ProductStatus::OnSale,
            status_changed_at: now,
            create_time: now,
        };
        Order::placed(order_id, &product, 10001, now).unwrap()
    }

    #[test]
    fn an_order_number_is_eighteen_digits() {
        assert_eq!(order(901_234).order_no, "202602041030001234");
        assert_eq!(order(900_001).order_no, "202602041030000001");
    }
}
