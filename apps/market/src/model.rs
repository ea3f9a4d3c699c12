//! What the market knows: products, orders and what follows from them.

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::machine::CheckedMachine;
use towpath::ports::store::StoreResult;
use towpath::tables::{ColumnKind, ColumnValue, Record, Row, Value};
use towpath::{Entity, Event as _, Machine};

use crate::events::{AGGREGATE_TYPE, OrderEvent, ProductEvent};
use crate::money::Money;

/// A status with its stored name.
macro_rules! stored_names {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $text)] $variant),+
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// As it is stored and sent.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The one of this name.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|status| status.as_str() == name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl ColumnValue for $name {
            const KIND: ColumnKind = ColumnKind::Name(64);

            fn write(&self) -> Value<'_> {
                self.as_str().into()
            }

            fn read(record: &Record, column: &str) -> StoreResult<Self> {
                record.named(column, Self::named)
            }
        }
    };
}

stored_names!(
    /// Where a product is.
    ProductStatus {
        /// It can be ordered.
        OnSale = "on_sale",
        /// An order has it.
        Sold = "sold",
        /// Its seller has taken it back.
        Withdrawn = "withdrawn",
    }
);

stored_names!(
    /// Where an order is.
    OrderStatus {
        /// It waits for its payment.
        Pending = "pending",
        /// It waits for its shipment.
        Paid = "paid",
        /// It is on its way.
        Shipped = "shipped",
        /// It has arrived.
        Completed = "completed",
        /// Nothing comes of it.
        Cancelled = "cancelled",
    }
);

impl OrderStatus {
    /// The steps that are possible from here, by their names: those of the machine.
    pub fn possible(self) -> Vec<&'static str> {
        static MACHINE: LazyLock<Option<CheckedMachine>> =
            LazyLock::new(|| Order::machine().check(OrderEvent::NAMES).ok());
        let steps = MACHINE.as_ref().map(|machine| machine.possible_next(Some(self.as_str())));
        steps.into_iter().flatten().filter_map(|step| Self::named(&step.to)?.reached_by()).collect()
    }

    /// The step that leads here.
    fn reached_by(self) -> Option<&'static str> {
        match self {
            Self::Pending => None,
            Self::Paid => Some("pay"),
            Self::Shipped => Some("ship"),
            Self::Completed => Some("complete"),
            Self::Cancelled => Some("cancel"),
        }
    }
}

impl Entity for Order {
    const KIND: &'static str = AGGREGATE_TYPE;
    type Event = OrderEvent;

    fn machine() -> Machine {
        let [pending, paid, shipped, completed, cancelled] = [
            OrderStatus::Pending,
            OrderStatus::Paid,
            OrderStatus::Shipped,
            OrderStatus::Completed,
            OrderStatus::Cancelled,
        ]
        .map(OrderStatus::as_str);
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

impl Entity for Product {
    const KIND: &'static str = "Product";
    type Event = ProductEvent;

    fn machine() -> Machine {
        let [on_sale, sold, withdrawn] =
            [ProductStatus::OnSale, ProductStatus::Sold, ProductStatus::Withdrawn].map(ProductStatus::as_str);
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

stored_names!(
    /// Where a shipment is.
    ShipmentStatus {
        /// It is made ready.
        Preparing = "preparing",
        /// It has left.
        Shipped = "shipped",
        /// It has arrived.
        Delivered = "delivered",
    }
);

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
    /// Its number.
    #[row(key)]
    pub product_id: i64,
    /// Who sells it.
    pub seller_id: i64,
    /// What it is.
    pub title: String,
    /// For how much.
    #[row(column = "price_cents")]
    pub price: Money,
    /// Where it is.
    #[row(state)]
    pub status: ProductStatus,
    /// Since when.
    pub status_changed_at: DateTime<Utc>,
    /// When it was offered.
    pub create_time: DateTime<Utc>,
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
    /// Its number.
    #[row(key)]
    pub order_id: i64,
    /// Its number for people.
    #[row(name = 64)]
    pub order_no: String,
    /// What was ordered.
    pub product_id: i64,
    /// By whom.
    pub buyer_id: i64,
    /// From whom.
    pub seller_id: i64,
    /// How many; always one.
    pub quantity: i64,
    /// For how much each.
    #[row(column = "price_cents")]
    pub price: Money,
    /// For how much in all.
    #[row(column = "total_cents")]
    pub total_amount: Money,
    /// Where it is.
    #[row(state)]
    pub status: OrderStatus,
    /// Since when.
    pub status_changed_at: DateTime<Utc>,
    /// Why it was cancelled.
    #[row(name = 64)]
    pub cancel_reason: Option<String>,
    /// When it was placed.
    pub create_time: DateTime<Utc>,
    /// When it was paid.
    pub pay_time: Option<DateTime<Utc>>,
    /// When it was shipped.
    pub ship_time: Option<DateTime<Utc>>,
    /// When it was completed.
    pub complete_time: Option<DateTime<Utc>>,
    /// When it was cancelled.
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

impl Order {
    /// Until when it is to be paid, where it waits for that; later it is cancelled.
    pub fn pay_by(&self, pending: Duration) -> Option<DateTime<Utc>> {
        let pending = chrono::Duration::from_std(pending).ok()?;
        self.create_time.checked_add_signed(pending).filter(|_| self.status == OrderStatus::Pending)
    }
}

/// Which products.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProductFilter {
    /// In this status.
    pub status: Option<ProductStatus>,
    /// Of this seller.
    pub seller_id: Option<i64>,
    /// With all of these words in the title.
    pub text: Option<String>,
    /// For at least so much.
    pub min_price: Option<Money>,
    /// For at most so much.
    pub max_price: Option<Money>,
}

/// Which orders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderFilter {
    /// In this status.
    pub status: Option<OrderStatus>,
    /// Of this buyer.
    pub buyer_id: Option<i64>,
    /// From this seller.
    pub seller_id: Option<i64>,
}

/// The way of an order to its buyer.
#[derive(Debug, Clone, PartialEq, Eq, Row)]
#[row(table = "shipments")]
pub struct Shipment {
    /// The order.
    #[row(key)]
    pub order_id: i64,
    /// Where it is.
    pub status: ShipmentStatus,
    /// Since when.
    pub status_changed_at: DateTime<Utc>,
    /// When it was begun.
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
    /// Who is told.
    #[row(key)]
    pub recipient_id: i64,
    /// About which order.
    pub order_id: i64,
    /// What the order became.
    pub status: OrderStatus,
    /// When.
    pub created_at: DateTime<Utc>,
}

/// How a buyer's orders ended.
#[derive(Debug, Clone, PartialEq, Eq, Row)]
#[row(table = "buyer_credit")]
pub struct BuyerCredit {
    /// Who.
    #[row(key)]
    pub buyer_id: i64,
    /// How many were completed.
    pub completed_count: i64,
    /// How many the buyer cancelled.
    pub cancelled_count: i64,
    /// How many were never paid.
    pub timeout_count: i64,
    /// From 0 to 100.
    pub score: i64,
    /// When they were counted.
    pub updated_at: DateTime<Utc>,
}

/// What is known about a product's availability, a moment after the fact.
#[derive(Debug, Clone, PartialEq, Eq, Row)]
#[row(table = "inventory")]
pub struct Inventory {
    /// Which product.
    #[row(key)]
    pub product_id: i64,
    /// Whether it can be ordered.
    #[row(column = "available")]
    pub is_available: bool,
    /// How often it was ordered.
    pub order_count: i64,
    /// By which order last.
    pub last_order_id: i64,
    /// When that became known.
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
