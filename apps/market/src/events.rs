//! What messages say (O2): four types, and the fields of each payload.
//!
//! Each payload has the fields that all events share and those of its own type. A reader wants those of its type and
//! leaves alone what it does not know.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use towpath::ids::{AggregateKey, ChannelName, CorrelationId, EventId, TraceId};
use towpath::name::EventName;
use towpath::ports::store::{Append, DeadlineChange, Expected, NewEvent, Routing, StateChange, StoreError};
use towpath::{ChangeContext, Circumstances, IncomingEvent, Payload};
use uuid::Uuid;

use crate::database::corrupt;
use crate::model::{Order, OrderStatus};
use crate::money::Money;
use crate::topology::{
    CREATED_KEY, FULFILLMENT_QUEUE, INVENTORY_QUEUE, PAID_KEY, STATUS_CHANGED_KEY, STATUS_SYNC_QUEUE,
    TIMEOUT_DELAY_KEY, TIMEOUT_DELAY_QUEUE,
};

/// What every event is about.
pub(crate) const AGGREGATE_TYPE: &str = "Order";

/// A fact that stays in the log: the contract has no message for it.
const CANCELLED: &str = "market.order.cancelled";

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
            Self::OrderCreated => "ORDER_CREATED",
            Self::OrderPaid => "ORDER_PAID",
            Self::OrderStatusChanged => "ORDER_STATUS_CHANGED",
            Self::OrderTimeout => "ORDER_TIMEOUT",
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

/// The facts of a placed order: that it was, and the message that will ask whether it was paid.
pub(crate) fn placed(order: &Order, trace_id: TraceId) -> Result<Append, StoreError> {
    let created =
        WrittenCreated { product_id: order.product_id, quantity: order.quantity, price: order.price };
    let timeout = WrittenTimeout { create_time: moment(order.create_time) };
    let events = vec![
        message(EventType::OrderCreated, order, &created)?,
        message(EventType::OrderTimeout, order, &timeout)?,
    ];
    append(order, events, (None, OrderStatus::Pending, None), order.create_time, trace_id)
}

/// The fact of a payment.
pub(crate) fn paid(order: &Order, now: DateTime<Utc>, trace_id: TraceId) -> Result<Append, StoreError> {
    let payload = WrittenPaid { pay_time: moment(now), amount: order.total_amount };
    let events = vec![message(EventType::OrderPaid, order, &payload)?];
    append(order, events, (Some(OrderStatus::Pending), OrderStatus::Paid, None), now, trace_id)
}

/// The fact that a paid order has moved on.
pub(crate) fn moved(
    order: &Order,
    old_status: OrderStatus,
    now: DateTime<Utc>,
    trace_id: TraceId,
) -> Result<Append, StoreError> {
    let payload = WrittenStatusChanged { old_status, new_status: order.status, changed_at: moment(now) };
    let events = vec![message(EventType::OrderStatusChanged, order, &payload)?];
    append(order, events, (Some(old_status), order.status, None), now, trace_id)
}

/// The fact that nothing comes of an order. It has no channel: the contract knows no message for it.
pub(crate) fn cancelled(
    order: &Order,
    reason: &str,
    now: DateTime<Utc>,
    trace_id: TraceId,
) -> Result<Append, StoreError> {
    let payload = WrittenCancelled { cancel_reason: reason, cancel_time: moment(now) };
    let events = vec![fact(CANCELLED, order, &payload, Routing::Nowhere)?];
    let step = (Some(OrderStatus::Pending), OrderStatus::Cancelled, Some(reason));
    append(order, events, step, now, trace_id)
}

fn message(event_type: EventType, order: &Order, own: &impl Serialize) -> Result<NewEvent, StoreError> {
    fact(event_type.as_str(), order, own, Routing::To(vec![ChannelName::from_stored(event_type.channel())]))
}

fn fact(
    event_type: &str,
    order: &Order,
    own: &impl Serialize,
    channels: Routing,
) -> Result<NewEvent, StoreError> {
    let general = General {
        order_id: order.order_id,
        order_no: &order.order_no,
        buyer_id: order.buyer_id,
        seller_id: order.seller_id,
        total_amount: order.total_amount,
    };
    // Put together as texts: a flattened struct would have to pass its amounts through floats.
    let unwritable = |error: serde_json::Error| corrupt("payload", error);
    let general = serde_json::to_string(&general).map_err(unwritable)?;
    let own = serde_json::to_string(own).map_err(unwritable)?;
    let text = format!("{},{}", general.trim_end_matches('}'), own.trim_start_matches('{'));
    Ok(NewEvent {
        event_id: EventId(Uuid::now_v7()),
        event_type: EventName::from_stored(event_type),
        schema_version: 1,
        payload: Payload::from_text(text).map_err(|error| corrupt("payload", error))?,
        channels,
    })
}

fn append(
    order: &Order,
    events: Vec<NewEvent>,
    (from, to, reason): (Option<OrderStatus>, OrderStatus, Option<&str>),
    now: DateTime<Utc>,
    trace_id: TraceId,
) -> Result<Append, StoreError> {
    let unusable = |error: towpath::ids::InvalidId| corrupt("order", error);
    let flow = CorrelationId::new(format!("market-order-{}", order.order_id)).map_err(unusable)?;
    let mut context = ChangeContext::new(now, flow);
    context.trace_id = Some(trace_id);
    // Who asked, and in which request.
    Circumstances::current().complete(&mut context);
    Ok(Append {
        aggregate: AggregateKey::new(AGGREGATE_TYPE, order.order_id.to_string()).map_err(unusable)?,
        // The conditional update of the order has decided.
        expected: if from.is_none() { Expected::New } else { Expected::Any },
        events,
        snapshot: None,
        state_changes: vec![StateChange {
            from: from.map(|status| status.to_string()),
            to: to.to_string(),
            reason: reason.map(str::to_owned),
            message: None,
            event_index: 0,
        }],
        deadline: DeadlineChange::default(),
        context,
    })
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
            cancel_reason: None,
            create_time: at("2026-02-04T10:30:00.123456Z"),
            pay_time: None,
            ship_time: None,
            complete_time: None,
            cancel_time: None,
        }
    }

    fn payload(append: &Append, index: usize) -> &str {
        append.events[index].payload.as_text()
    }

    #[test]
    fn payloads_are_the_contract_field_for_field() {
        let trace = || TraceId::new("trace-xxx").unwrap();
        let general = r#""orderId":900001,"orderNo":"202602041030001234","buyerId":10001,"sellerId":10002,"totalAmount":88.50"#;
        let order = order();
        let placed = placed(&order, trace()).unwrap();
        assert_eq!(payload(&placed, 0), format!(r#"{{{general},"productId":7,"quantity":1,"price":88.50}}"#));
        assert_eq!(payload(&placed, 1), format!(r#"{{{general},"createTime":"2026-02-04T10:30:00Z"}}"#));
        let now = order.create_time;
        let paid = paid(&order, now, trace()).unwrap();
        assert_eq!(
            payload(&paid, 0),
            format!(r#"{{{general},"payTime":"2026-02-04T10:30:00Z","amount":88.50}}"#)
        );
        let shipped = Order { status: OrderStatus::Shipped, ..order };
        let moved = moved(&shipped, OrderStatus::Paid, now, trace()).unwrap();
        assert_eq!(
            payload(&moved, 0),
            format!(
                r#"{{{general},"oldStatus":"paid","newStatus":"shipped","changedAt":"2026-02-04T10:30:00Z"}}"#
            )
        );
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
