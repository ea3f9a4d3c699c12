//! Why the market said no, and what broke.

#![allow(missing_docs, reason = "the messages say what the fields are")]

use towpath::ports::store::StoreError;
use towpath::retry::{Coded, ErrorClass};

use crate::model::OrderStatus;
use crate::money::Money;

/// Why an operation did not happen. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum MarketError {
    #[error("there is no product {0}")]
    UnknownProduct(i64),
    #[error("there is no order {0}")]
    UnknownOrder(i64),
    /// Somebody else was first.
    #[error("product {0} is not on sale")]
    NotOnSale(i64),
    #[error("product {0} is the buyer's own")]
    OwnProduct(i64),
    /// The product costs something else than the buyer was told.
    #[error("product {product_id} costs {price} now")]
    PriceChanged { product_id: i64, price: Money },
    /// The step is somebody else's.
    #[error("{actor_id} cannot {step}: that is for {role} {allowed}")]
    NotYours { actor_id: i64, step: &'static str, role: &'static str, allowed: i64 },
    /// The order is not where it would have to be.
    #[error("order {order_id} is {status}, and cannot {step}")]
    WrongStatus { order_id: i64, status: OrderStatus, step: &'static str },
    /// What was given cannot be used.
    #[error("{field}: {why}")]
    Invalid { field: &'static str, why: String },
    /// The database said no, or nothing.
    #[error("the market's tables cannot be used")]
    Store(#[from] StoreError),
}

impl MarketError {
    pub(crate) fn invalid(field: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { field, why: why.into() }
    }
}

impl Coded for MarketError {
    fn code(&self) -> &'static str {
        match self {
            Self::UnknownProduct(_) => "product-unknown",
            Self::UnknownOrder(_) => "order-unknown",
            Self::NotOnSale(_) => "product-not-on-sale",
            Self::OwnProduct(_) => "product-own",
            Self::PriceChanged { .. } => "product-price-changed",
            Self::NotYours { .. } => "market-not-yours",
            Self::WrongStatus { .. } => "order-wrong-status",
            Self::Invalid { .. } => "market-invalid",
            Self::Store(error) => error.code(),
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Self::UnknownProduct(_) | Self::UnknownOrder(_) => ErrorClass::NotFound,
            Self::NotOnSale(_) | Self::PriceChanged { .. } | Self::WrongStatus { .. } => ErrorClass::Conflict,
            Self::OwnProduct(_) | Self::Invalid { .. } => ErrorClass::Validation,
            Self::NotYours { .. } => ErrorClass::Denied,
            Self::Store(error) => error.class(),
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::UnknownProduct(_) => "List the products; ids are numbers.",
            Self::UnknownOrder(_) => "List the orders; ids are numbers.",
            Self::NotOnSale(_) => "Choose another product; it is on sale again if its order is cancelled.",
            Self::OwnProduct(_) => "Choose a product of somebody else.",
            Self::PriceChanged { .. } => "Look at the product again, and order it for what it costs now.",
            Self::NotYours { .. } => {
                "The buyer pays, cancels and completes; the seller ships, changes and withdraws."
            }
            Self::WrongStatus { .. } => "Look at the order: pending, paid, shipped, completed, or cancelled.",
            Self::Invalid { .. } => "Correct the field that is named.",
            Self::Store(error) => error.next_step(),
        }
    }
}
