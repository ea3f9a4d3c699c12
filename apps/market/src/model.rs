//! What the market knows: products, orders and what follows from them.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::ports::store::StoreError;

use crate::database::{Row, corrupt};
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
    /// The steps that are possible from here, by their names.
    pub fn possible(self) -> &'static [&'static str] {
        match self {
            Self::Pending => &["pay", "cancel"],
            Self::Paid => &["ship"],
            Self::Shipped => &["complete"],
            Self::Completed | Self::Cancelled => &[],
        }
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Product {
    /// Its number.
    pub product_id: i64,
    /// Who sells it.
    pub seller_id: i64,
    /// What it is.
    pub title: String,
    /// For how much.
    pub price: Money,
    /// Where it is.
    pub status: ProductStatus,
    /// Since when.
    pub status_changed_at: DateTime<Utc>,
    /// When it was offered.
    pub create_time: DateTime<Utc>,
}

/// An order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Its number.
    pub order_id: i64,
    /// Its number for people.
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
    pub price: Money,
    /// For how much in all.
    pub total_amount: Money,
    /// Where it is.
    pub status: OrderStatus,
    /// Why it was cancelled.
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
    pub correlation_id: Option<String>,
    /// The fact of its last step.
    pub(crate) last_event_id: Option<String>,
    /// The fact that asks whether it was paid.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shipment {
    /// The order.
    pub order_id: i64,
    /// Where it is.
    pub status: ShipmentStatus,
    /// Since when.
    pub status_changed_at: DateTime<Utc>,
}

/// Something that a buyer or a seller was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// The event that led to it.
    pub event_id: String,
    /// Who is told.
    pub recipient_id: i64,
    /// About which order.
    pub order_id: i64,
    /// What the order became.
    pub status: OrderStatus,
    /// When.
    pub created_at: DateTime<Utc>,
}

/// How a buyer's orders ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuyerCredit {
    /// Who.
    pub buyer_id: i64,
    /// How many were completed.
    pub completed_count: i64,
    /// How many the buyer cancelled.
    pub cancelled_count: i64,
    /// How many were never paid.
    pub timeout_count: i64,
    /// From 0 to 100.
    pub score: i64,
}

/// What is known about a product's availability, a moment after the fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// Which product.
    pub product_id: i64,
    /// Whether it can be ordered.
    pub is_available: bool,
    /// How often it was ordered.
    pub order_count: i64,
    /// By which order last.
    pub last_order_id: i64,
}

impl BuyerCredit {
    /// The score that follows from the counts: a cancelled order costs 5, one that was never paid 10, one that was
    /// completed gives 1 back.
    pub(crate) fn score_of(completed: i64, cancelled: i64, timeouts: i64) -> i64 {
        (100 - 5 * cancelled - 10 * timeouts + completed).clamp(0, 100)
    }
}

/// The columns of a product, in any order.
pub(crate) const PRODUCT: &str =
    "product_id, seller_id, title, price_cents, status, status_changed_at, create_time";

/// The columns of an order, in any order.
pub(crate) const ORDER: &str = "order_id, order_no, product_id, buyer_id, seller_id, quantity, price_cents, \
    total_cents, status, cancel_reason, create_time, pay_time, ship_time, complete_time, cancel_time, correlation_id, \
    last_event_id, timeout_event_id";

/// The columns of a notification, in any order.
pub(crate) const NOTIFICATION: &str = "event_id, recipient_id, order_id, status, created_at";

impl Product {
    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            product_id: row.long("product_id")?,
            seller_id: row.long("seller_id")?,
            title: row.text("title")?,
            price: money(row, "price_cents")?,
            status: named(row, "status", ProductStatus::named)?,
            status_changed_at: row.time("status_changed_at")?,
            create_time: row.time("create_time")?,
        })
    }
}

impl Order {
    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            order_id: row.long("order_id")?,
            order_no: row.text("order_no")?,
            product_id: row.long("product_id")?,
            buyer_id: row.long("buyer_id")?,
            seller_id: row.long("seller_id")?,
            quantity: row.long("quantity")?,
            price: money(row, "price_cents")?,
            total_amount: money(row, "total_cents")?,
            status: named(row, "status", OrderStatus::named)?,
            cancel_reason: row.text_or_null("cancel_reason")?,
            create_time: row.time("create_time")?,
            pay_time: row.time_or_null("pay_time")?,
            ship_time: row.time_or_null("ship_time")?,
            complete_time: row.time_or_null("complete_time")?,
            cancel_time: row.time_or_null("cancel_time")?,
            correlation_id: row.text_or_null("correlation_id")?,
            last_event_id: row.text_or_null("last_event_id")?,
            timeout_event_id: row.text_or_null("timeout_event_id")?,
        })
    }
}

impl Shipment {
    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            order_id: row.long("order_id")?,
            status: named(row, "status", ShipmentStatus::named)?,
            status_changed_at: row.time("status_changed_at")?,
        })
    }
}

impl Notification {
    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            event_id: row.text("event_id")?,
            recipient_id: row.long("recipient_id")?,
            order_id: row.long("order_id")?,
            status: named(row, "status", OrderStatus::named)?,
            created_at: row.time("created_at")?,
        })
    }
}

impl BuyerCredit {
    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            buyer_id: row.long("buyer_id")?,
            completed_count: row.long("completed_count")?,
            cancelled_count: row.long("cancelled_count")?,
            timeout_count: row.long("timeout_count")?,
            score: row.long("score")?,
        })
    }
}

impl Inventory {
    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            product_id: row.long("product_id")?,
            is_available: row.long("available")? != 0,
            order_count: row.long("order_count")?,
            last_order_id: row.long("last_order_id")?,
        })
    }
}

fn money(row: &Row, column: &'static str) -> Result<Money, StoreError> {
    Money::from_cents(row.long(column)?).map_err(|error| corrupt(column, error))
}

fn named<T>(row: &Row, column: &'static str, find: impl Fn(&str) -> Option<T>) -> Result<T, StoreError> {
    let text = row.text(column)?;
    find(&text).ok_or_else(|| corrupt(column, format!("{text:?} is no such thing")))
}
