//! What messages say (O2): four types, and the fields of each payload.
//!
//! Each payload has the fields that all events share and those of its own type. A reader wants those of its type and
//! leaves alone what it does not know.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use towpath::ids::{CausationId, CorrelationId, EventId, TraceId};
use towpath::ports::store::StoreError;
use towpath::{ChangeContext, Circumstances, Event, IncomingEvent};

use crate::database::corrupt;
use crate::model::{Order, OrderStatus, Product};
use crate::money::Money;
use crate::orders::TIMEOUT_REASON;
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
pub enum ProductEvent {
    /// It was offered.
    #[serde(rename = "market.product.offered", rename_all = "camelCase")]
    Offered {
        /// Who sells it.
        seller_id: i64,
        /// For how much.
        price: Money,
    },
    /// An order has it.
    #[serde(rename = "market.product.sold", rename_all = "camelCase")]
    Sold {
        /// Which.
        order_id: i64,
    },
    /// It is on sale again.
    #[serde(rename = "market.product.returned", rename_all = "camelCase")]
    Returned {
        /// By which order.
        order_id: i64,
    },
    /// Its seller has taken it back.
    #[serde(rename = "market.product.withdrawn")]
    Withdrawn {},
}

/// The frozen event types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// An order was placed.
    OrderCreated,
    /// An order was paid.
    OrderPaid,
    /// An order was shipped or completed.
    OrderStatusChanged,
    /// The time to pay an order is over.
    OrderTimeout,
}

impl EventType {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::OrderCreated, Self::OrderPaid, Self::OrderStatusChanged, Self::OrderTimeout];

    /// As messages and tables spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OrderCreated => OrderEvent::CREATED,
            Self::OrderPaid => OrderEvent::PAID,
            Self::OrderStatusChanged => OrderEvent::STATUS_CHANGED,
            Self::OrderTimeout => OrderEvent::TIMEOUT,
        }
    }

    /// The channel that publishes it.
    pub fn channel(self) -> &'static str {
        match self {
            Self::OrderCreated => "market.created",
            Self::OrderPaid => "market.paid",
            Self::OrderStatusChanged => "market.status-changed",
            Self::OrderTimeout => "market.timeout",
        }
    }

    /// The routing key that it is published under. ORDER_TIMEOUT waits first, and then comes under its own.
    pub fn first_key(self) -> &'static str {
        match self {
            Self::OrderCreated => CREATED_KEY,
            Self::OrderPaid => PAID_KEY,
            Self::OrderStatusChanged => STATUS_CHANGED_KEY,
            Self::OrderTimeout => TIMEOUT_DELAY_KEY,
        }
    }

    /// The queue that this key leads to.
    pub fn first_queue(self) -> &'static str {
        match self {
            Self::OrderCreated => INVENTORY_QUEUE,
            Self::OrderPaid => FULFILLMENT_QUEUE,
            Self::OrderStatusChanged => STATUS_SYNC_QUEUE,
            Self::OrderTimeout => TIMEOUT_DELAY_QUEUE,
        }
    }
}

/// What the payload of every event has.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct General<'o> {
    order_id: i64,
    order_no: &'o str,
    buyer_id: i64,
    seller_id: i64,
    total_amount: Money,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenCreated {
    product_id: i64,
    quantity: i64,
    price: Money,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenPaid {
    pay_time: String,
    amount: Money,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenStatusChanged {
    old_status: OrderStatus,
    new_status: OrderStatus,
    changed_at: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenTimeout {
    create_time: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenCancelled<'o> {
    cancel_reason: &'o str,
    cancel_time: String,
}

/// The payload of ORDER_CREATED, as far as its reader needs it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Created {
    pub(crate) order_id: i64,
    pub(crate) order_no: String,
    #[allow(dead_code, reason = "a message without it breaks the contract, and must be refused")]
    pub(crate) buyer_id: i64,
    #[allow(dead_code, reason = "as above")]
    pub(crate) seller_id: i64,
    pub(crate) product_id: i64,
    #[allow(dead_code, reason = "as above")]
    pub(crate) quantity: i64,
    #[allow(dead_code, reason = "as above")]
    pub(crate) price: Money,
}

/// The payload of ORDER_PAID.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Paid {
    pub(crate) order_id: i64,
    pub(crate) order_no: String,
    #[allow(dead_code, reason = "a message without it breaks the contract, and must be refused")]
    pub(crate) pay_time: DateTime<Utc>,
    pub(crate) amount: Money,
}

/// The payload of ORDER_STATUS_CHANGED.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusChanged {
    pub(crate) order_id: i64,
    pub(crate) order_no: String,
    pub(crate) old_status: OrderStatus,
    pub(crate) new_status: OrderStatus,
    #[allow(dead_code, reason = "a message without it breaks the contract, and must be refused")]
    pub(crate) changed_at: DateTime<Utc>,
}

/// The payload of ORDER_TIMEOUT.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Timeout {
    pub(crate) order_id: i64,
    pub(crate) order_no: String,
    #[allow(dead_code, reason = "a message without it breaks the contract, and must be refused")]
    pub(crate) create_time: DateTime<Utc>,
}

/// A payload that names its order.
pub(crate) trait AboutOrder {
    fn order_id(&self) -> i64;
    fn order_no(&self) -> &str;
}

macro_rules! about_order {
    ($($payload:ident),+) => { $(
        impl AboutOrder for $payload {
            fn order_id(&self) -> i64 { self.order_id }
            fn order_no(&self) -> &str { &self.order_no }
        }
    )+ };
}
about_order!(Created, Paid, StatusChanged, Timeout);

/// Whether a message's aggregate is the order that its payload names.
pub(crate) fn names_its_order(event: &IncomingEvent, order_id: i64) -> bool {
    let aggregate = event.aggregate.as_ref();
    aggregate
        .is_some_and(|key| key.kind.as_str() == AGGREGATE_TYPE && key.id.as_str() == order_id.to_string())
}

/// Circumstances of a step, and the id of the fact that it leads to.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) now: DateTime<Utc>,
    pub(crate) trace_id: TraceId,
    pub(crate) event_id: EventId,
}

/// It was placed.
pub(crate) fn created(order: &Order) -> Result<OrderEvent, StoreError> {
    let own = WrittenCreated { product_id: order.product_id, quantity: order.quantity, price: order.price };
    payload(order, &own).map(OrderEvent::Created)
}

/// The message that will ask whether it was paid.
pub(crate) fn timeout(order: &Order) -> Result<OrderEvent, StoreError> {
    let own = WrittenTimeout { create_time: moment(order.create_time) };
    payload(order, &own).map(OrderEvent::Timeout)
}

/// It was paid.
pub(crate) fn paid(order: &Order, now: DateTime<Utc>) -> Result<OrderEvent, StoreError> {
    let own = WrittenPaid { pay_time: moment(now), amount: order.total_amount };
    payload(order, &own).map(OrderEvent::Paid)
}

/// It has moved on from where it was.
pub(crate) fn moved(
    order: &Order,
    new_status: OrderStatus,
    now: DateTime<Utc>,
) -> Result<OrderEvent, StoreError> {
    let own = WrittenStatusChanged { old_status: order.status, new_status, changed_at: moment(now) };
    payload(order, &own).map(OrderEvent::StatusChanged)
}

/// Nothing comes of it.
pub(crate) fn cancelled(order: &Order, reason: &str, now: DateTime<Utc>) -> Result<OrderEvent, StoreError> {
    let own = WrittenCancelled { cancel_reason: reason, cancel_time: moment(now) };
    payload(order, &own).map(OrderEvent::Cancelled)
}

/// The fact that led to a cancellation. What timed out names its own ORDER_TIMEOUT, also when the job or a message from
/// elsewhere was first: the cause lies in the flow.
pub(crate) fn cause_of_cancelling<'o>(order: &'o Order, reason: &str) -> Option<&'o str> {
    let led_to_it = if reason == TIMEOUT_REASON { &order.timeout_event_id } else { &order.last_event_id };
    led_to_it.as_deref()
}

/// The fields that all payloads share, and those of one type.
fn payload(order: &Order, own: &impl Serialize) -> Result<Box<RawValue>, StoreError> {
    let general = General {
        order_id: order.order_id,
        order_no: &order.order_no,
        buyer_id: order.buyer_id,
        seller_id: order.seller_id,
        total_amount: order.total_amount,
    };
    // Put together as texts: a flattened struct would have to pass its amounts through floats.
    let unwritable = |error: serde_json::Error| corrupt("payload", error);
    let (general, own) =
        (to_raw_value(&general).map_err(unwritable)?, to_raw_value(own).map_err(unwritable)?);
    let text = format!("{},{}", general.get().trim_end_matches('}'), own.get().trim_start_matches('{'));
    RawValue::from_string(text).map_err(unwritable)
}

/// The circumstances of a step of an order: all its facts are one flow, and each names the one that led to it.
pub(crate) fn of_order(order: &Order, cause: Option<&str>, step: &Step) -> Result<ChangeContext, StoreError> {
    let flow = match &order.correlation_id {
        Some(flow) => CorrelationId::from_stored(flow),
        // From before orders had flows of their own.
        None => flow_of("order", order.order_id)?,
    };
    Ok(within(flow, cause.map(CausationId::from_stored), step))
}

/// The circumstances of what happens to a product: a flow of its own, in which each fact may stand without a cause.
pub(crate) fn of_product(product: &Product, step: &Step) -> Result<ChangeContext, StoreError> {
    Ok(within(flow_of("product", product.product_id)?, None, step))
}

fn flow_of(what: &str, id: i64) -> Result<CorrelationId, StoreError> {
    CorrelationId::new(format!("market-{what}-{id}")).map_err(|error| corrupt(what, error))
}

fn within(flow: CorrelationId, cause: Option<CausationId>, step: &Step) -> ChangeContext {
    let mut context = ChangeContext::new(step.now, flow);
    context.trace_id = Some(step.trace_id.clone());
    context.causation_id = cause;
    // Who asked, and in which request.
    Circumstances::current().complete(&mut context);
    context
}

/// A moment as the contract writes it.
fn moment(moment: DateTime<Utc>) -> String {
    moment.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
        Order {
            order_id: 900_001,
            order_no: "202602041030001234".to_owned(),
            product_id: 7,
            buyer_id: 10001,
            seller_id: 10002,
            quantity: 1,
            price: "88.50".parse().unwrap(),
            total_amount: "88.50".parse().unwrap(),
            status: OrderStatus::Pending,
            status_changed_at: at("2026-02-04T10:30:00.123456Z"),
            cancel_reason: None,
            create_time: at("2026-02-04T10:30:00.123456Z"),
            pay_time: None,
            ship_time: None,
            complete_time: None,
            cancel_time: None,
            correlation_id: Some("flow-1".to_owned()),
            last_event_id: Some("last".to_owned()),
            timeout_event_id: Some("timeout".to_owned()),
        }
    }

    fn text(event: &OrderEvent) -> String {
        towpath::to_variant(event).unwrap().1.as_text().to_owned()
    }

    #[test]
    fn payloads_are_the_contract_field_for_field() {
        let general = r#""orderId":900001,"orderNo":"202602041030001234","buyerId":10001,"sellerId":10002,"totalAmount":88.50"#;
        let order = order();
        let now = order.create_time;
        let written = |event: Result<OrderEvent, StoreError>| text(&event.unwrap());
        assert_eq!(
            written(created(&order)),
            format!(r#"{{{general},"productId":7,"quantity":1,"price":88.50}}"#)
        );
        assert_eq!(written(timeout(&order)), format!(r#"{{{general},"createTime":"2026-02-04T10:30:00Z"}}"#));
        assert_eq!(
            written(paid(&order, now)),
            format!(r#"{{{general},"payTime":"2026-02-04T10:30:00Z","amount":88.50}}"#)
        );
        let paid = Order { status: OrderStatus::Paid, ..order };
        assert_eq!(
            written(moved(&paid, OrderStatus::Shipped, now)),
            format!(
                r#"{{{general},"oldStatus":"paid","newStatus":"shipped","changedAt":"2026-02-04T10:30:00Z"}}"#
            )
        );
    }

    #[test]
    fn what_timed_out_was_caused_by_its_timeout() {
        let order = order();
        assert_eq!(cause_of_cancelling(&order, "timeout"), Some("timeout"));
        assert_eq!(cause_of_cancelling(&order, "buyer"), Some("last"));
    }

    #[test]
    fn a_reader_wants_every_field_of_its_type_and_no_other() {
        let whole =
            r#"{"orderId":1,"orderNo":"a","payTime":"2026-02-04T10:30:00Z","amount":88.50,"more":true}"#;
        let paid: Paid = serde_json::from_str(whole).unwrap();
        assert_eq!(paid.amount.to_string(), "88.50");
        for field in [
            r#""orderId":1,"#,
            r#""orderNo":"a","#,
            r#""payTime":"2026-02-04T10:30:00Z","#,
            r#""amount":88.50,"#,
        ] {
            assert!(serde_json::from_str::<Paid>(&whole.replace(field, "")).is_err(), "without {field}");
        }
    }
}
