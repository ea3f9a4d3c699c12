//! What messages say (O2): four types, and the fields of each payload.
//!
//! Each payload has the fields that all events share and those of its own type. A reader wants those of its type and
//! leaves alone what it does not know.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use towpath::Event;
use towpath::ports::store::StoreError;

use crate::model::{Order, OrderStatus};
use crate::money::Money;
use crate::topology::{
    CREATED_KEY, FULFILLMENT_QUEUE, INVENTORY_QUEUE, PAID_KEY, STATUS_CHANGED_KEY, STATUS_SYNC_QUEUE,
    TIMEOUT_DELAY_KEY, TIMEOUT_DELAY_QUEUE,
};

/// What every message is about.
pub(crate) const AGGREGATE_TYPE: &str = "Order";

/// What may have happened to an order, with the payload as it is sent: to the letter what the contract says.
#[derive(Debug, Serialize, Deserialize, Event)]
pub enum OrderEvent {
    /// It was placed.
    #[serde(rename = "ORDER_CREATED")]
    Created(Box<RawValue>),
    /// It was paid.
    #[serde(rename = "ORDER_PAID")]
    Paid(Box<RawValue>),
    /// It was shipped or completed.
    #[serde(rename = "ORDER_STATUS_CHANGED")]
    StatusChanged(Box<RawValue>),
    /// It is to be asked whether it was paid.
    #[serde(rename = "ORDER_TIMEOUT")]
    Timeout(Box<RawValue>),
    /// Nothing comes of it. The contract has no message for it: it stays in the log.
    #[serde(rename = "market.order.cancelled")]
    Cancelled(Box<RawValue>),
}

/// What may have happened to a product. It stays in the log, as the contract has no messages for it.
#[derive(Debug, Serialize, Deserialize, Event)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ProductEvent {
    #[serde(rename = "market.product.offered", rename_all = "camelCase")]
    Offered { seller_id: i64, price: Money },
    #[serde(rename = "market.product.sold", rename_all = "camelCase")]
    Sold { order_id: i64 },
    #[serde(rename = "market.product.returned", rename_all = "camelCase")]
    Returned { order_id: i64 },
    #[serde(rename = "market.product.withdrawn")]
    Withdrawn {},
}

/// The types of messages: the events of an order that others are told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "as above")]
pub enum EventType {
    OrderCreated,
    OrderPaid,
    OrderStatusChanged,
    OrderTimeout,
}

impl EventType {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::OrderCreated, Self::OrderPaid, Self::OrderStatusChanged, Self::OrderTimeout];

    /// Its name, its channel, and the key and queue that it is published under and to. ORDER_TIMEOUT waits there first.
    fn names(self) -> [&'static str; 4] {
        match self {
            Self::OrderCreated => [OrderEvent::CREATED, "market.created", CREATED_KEY, INVENTORY_QUEUE],
            Self::OrderPaid => [OrderEvent::PAID, "market.paid", PAID_KEY, FULFILLMENT_QUEUE],
            Self::OrderStatusChanged => {
                [OrderEvent::STATUS_CHANGED, "market.status-changed", STATUS_CHANGED_KEY, STATUS_SYNC_QUEUE]
            }
            Self::OrderTimeout => {
                [OrderEvent::TIMEOUT, "market.timeout", TIMEOUT_DELAY_KEY, TIMEOUT_DELAY_QUEUE]
            }
        }
    }

    /// As messages and tables spell it.
    pub fn as_str(self) -> &'static str {
        self.names()[0]
    }

    /// The channel that publishes it.
    pub fn channel(self) -> &'static str {
        self.names()[1]
    }

    /// The routing key that it is published under.
    pub fn first_key(self) -> &'static str {
        self.names()[2]
    }

    /// The queue that this key leads to.
    pub fn first_queue(self) -> &'static str {
        self.names()[3]
    }
}

/// The fields that all payloads share, and those of one type.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Payload<'o, Own> {
    order_id: i64,
    order_no: &'o str,
    buyer_id: i64,
    seller_id: i64,
    total_amount: Money,
    #[serde(flatten)]
    own: Own,
}

/// The order that a payload names.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Named {
    pub(crate) order_id: i64,
    pub(crate) order_no: String,
}

/// What the reader of ORDER_CREATED wants of what all payloads share.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a message without it breaks the contract, and must be refused")]
pub(crate) struct Parties {
    buyer_id: i64,
    seller_id: i64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Created {
    pub(crate) product_id: i64,
    quantity: i64,
    price: Money,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Paid {
    #[serde(serialize_with = "seconds")]
    pay_time: DateTime<Utc>,
    pub(crate) amount: Money,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusChanged {
    pub(crate) old_status: OrderStatus,
    pub(crate) new_status: OrderStatus,
    #[serde(serialize_with = "seconds")]
    changed_at: DateTime<Utc>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Timeout {
    #[serde(serialize_with = "seconds")]
    create_time: DateTime<Utc>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cancelled<'r> {
    cancel_reason: &'r str,
    #[serde(serialize_with = "seconds")]
    cancel_time: DateTime<Utc>,
}

/// A moment as the contract writes it.
fn seconds<S: Serializer>(moment: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&moment.to_rfc3339_opts(SecondsFormat::Secs, true))
}

fn payload(order: &Order, own: impl Serialize) -> Result<Box<RawValue>, StoreError> {
    let Order { order_id, ref order_no, buyer_id, seller_id, total_amount, .. } = *order;
    let payload = Payload { order_id, order_no, buyer_id, seller_id, total_amount, own };
    to_raw_value(&payload).map_err(|error| StoreError::corrupt("payload", error))
}

/// It was placed.
pub(crate) fn created(order: &Order) -> Result<OrderEvent, StoreError> {
    let own = Created { product_id: order.product_id, quantity: order.quantity, price: order.price };
    payload(order, own).map(OrderEvent::Created)
}

/// The message that will ask whether it was paid.
pub(crate) fn timeout(order: &Order) -> Result<OrderEvent, StoreError> {
    payload(order, Timeout { create_time: order.create_time }).map(OrderEvent::Timeout)
}

/// It has moved on from where it was; cancelled, for this reason.
pub(crate) fn moved(
    order: &Order,
    to: OrderStatus,
    reason: &str,
    now: DateTime<Utc>,
) -> Result<OrderEvent, StoreError> {
    match to {
        OrderStatus::Paid => {
            let own = Paid { pay_time: now, amount: order.total_amount };
            payload(order, own).map(OrderEvent::Paid)
        }
        OrderStatus::Cancelled => {
            payload(order, Cancelled { cancel_reason: reason, cancel_time: now }).map(OrderEvent::Cancelled)
        }
        OrderStatus::Pending | OrderStatus::Shipped | OrderStatus::Completed => {
            let own = StatusChanged { old_status: order.status, new_status: to, changed_at: now };
            payload(order, own).map(OrderEvent::StatusChanged)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::order;

    #[test]
    fn payloads_are_the_contract_field_for_field() {
        let general = r#""orderId":900001,"orderNo":"202602041030000001","buyerId":10001,"sellerId":10002,"totalAmount":88.50"#;
        let order = order(900_001);
        let now = order.create_time;
        let written = |event: Result<OrderEvent, StoreError>| {
            towpath::to_variant(&event.unwrap()).unwrap().1.as_text().to_owned()
        };
        assert_eq!(
            written(created(&order)),
            format!(r#"{{{general},"productId":7,"quantity":1,"price":88.50}}"#)
        );
        assert_eq!(written(timeout(&order)), format!(r#"{{{general},"createTime":"2026-02-04T10:30:00Z"}}"#));
        assert_eq!(
            written(moved(&order, OrderStatus::Paid, "", now)),
            format!(r#"{{{general},"payTime":"2026-02-04T10:30:00Z","amount":88.50}}"#)
        );
        assert_eq!(
            written(moved(&order, OrderStatus::Cancelled, "buyer", now)),
            format!(r#"{{{general},"cancelReason":"buyer","cancelTime":"2026-02-04T10:30:00Z"}}"#)
        );
        let paid = Order { status: OrderStatus::Paid, ..order };
        assert_eq!(
            written(moved(&paid, OrderStatus::Shipped, "", now)),
            format!(
                r#"{{{general},"oldStatus":"paid","newStatus":"shipped","changedAt":"2026-02-04T10:30:00Z"}}"#
            )
        );
    }

    #[test]
    fn a_reader_wants_every_field_of_its_type_and_no_other() {
        let whole =
            r#"{"orderId":1,"orderNo":"a","payTime":"2026-02-04T10:30:00Z","amount":88.50,"more":true}"#;
        let read = |text: &str| -> serde_json::Result<(Named, Paid)> {
            Ok((serde_json::from_str(text)?, serde_json::from_str(text)?))
        };
        assert_eq!(read(whole).unwrap().1.amount.to_string(), "88.50");
        for field in [
            r#""orderId":1,"#,
            r#""orderNo":"a","#,
            r#""payTime":"2026-02-04T10:30:00Z","#,
            r#""amount":88.50,"#,
        ] {
            assert!(read(&whole.replace(field, "")).is_err(), "without {field}");
        }
    }
}
