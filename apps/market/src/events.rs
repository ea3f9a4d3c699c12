//! What messages say (O2): four types, and the fields of each payload.
//!
//! Each payload has the fields that all events share and those of its own type. A reader wants those of its type and
//! leaves alone what it does not know.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use towpath::ids::{AggregateKey, CausationId, ChannelName, CorrelationId, EventId, TraceId};
use towpath::name::EventName;
use towpath::ports::store::{Append, DeadlineChange, Expected, NewEvent, Routing, StateChange, StoreError};
use towpath::{ChangeContext, Circumstances, IncomingEvent, Payload};

use crate::database::corrupt;
use crate::model::{Order, OrderStatus};
use crate::money::Money;
use crate::orders::TIMEOUT_REASON;
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

/// Circumstances of a step, and the id of the fact that it leads to.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) now: DateTime<Utc>,
    pub(crate) trace_id: TraceId,
    pub(crate) event_id: EventId,
}

/// The facts of a placed order: that it was, and the message that will ask whether it was paid. The second one is appended
/// apart, because the first one is its cause.
pub(crate) fn placed(
    order: &Order,
    step: &Step,
    timeout_event_id: EventId,
) -> Result<Vec<Append>, StoreError> {
    let created =
        WrittenCreated { product_id: order.product_id, quantity: order.quantity, price: order.price };
    let timeout = WrittenTimeout { create_time: moment(order.create_time) };
    let created = message(EventType::OrderCreated, step.event_id, order, &created)?;
    let asked = Step { event_id: timeout_event_id, ..step.clone() };
    let timeout = message(EventType::OrderTimeout, timeout_event_id, order, &timeout)?;
    Ok(vec![
        append(
            order,
            created,
            Some(Moved { from: None, to: OrderStatus::Pending, reason: None }),
            None,
            step,
        )?,
        append(order, timeout, None, Some(step.event_id.into()), &asked)?,
    ])
}

/// The fact of a payment.
pub(crate) fn paid(order: &Order, step: &Step) -> Result<Append, StoreError> {
    let payload = WrittenPaid { pay_time: moment(step.now), amount: order.total_amount };
    let event = message(EventType::OrderPaid, step.event_id, order, &payload)?;
    let moved = Moved { from: Some(OrderStatus::Pending), to: OrderStatus::Paid, reason: None };
    append(order, event, Some(moved), cause(order.last_event_id.as_deref()), step)
}

/// The fact that a paid order has moved on from where it was.
pub(crate) fn moved(order: &Order, new_status: OrderStatus, step: &Step) -> Result<Append, StoreError> {
    let old_status = order.status;
    let payload = WrittenStatusChanged { old_status, new_status, changed_at: moment(step.now) };
    let event = message(EventType::OrderStatusChanged, step.event_id, order, &payload)?;
    let moved = Moved { from: Some(old_status), to: new_status, reason: None };
    append(order, event, Some(moved), cause(order.last_event_id.as_deref()), step)
}

/// The fact that nothing comes of an order. It has no channel: the contract knows no message for it. What timed out names
/// its own ORDER_TIMEOUT, also when the job or a message from elsewhere was first: the cause lies in the flow.
pub(crate) fn cancelled(order: &Order, reason: &str, step: &Step) -> Result<Append, StoreError> {
    let payload = WrittenCancelled { cancel_reason: reason, cancel_time: moment(step.now) };
    let event = fact(CANCELLED, step.event_id, order, &payload, Routing::Nowhere)?;
    let moved = Moved { from: Some(OrderStatus::Pending), to: OrderStatus::Cancelled, reason: Some(reason) };
    let led_to_it = if reason == TIMEOUT_REASON { &order.timeout_event_id } else { &order.last_event_id };
    append(order, event, Some(moved), cause(led_to_it.as_deref()), step)
}

fn cause(event_id: Option<&str>) -> Option<CausationId> {
    event_id.map(CausationId::from_stored)
}

fn message(
    event_type: EventType,
    event_id: EventId,
    order: &Order,
    own: &impl Serialize,
) -> Result<NewEvent, StoreError> {
    let channels = Routing::To(vec![ChannelName::from_stored(event_type.channel())]);
    fact(event_type.as_str(), event_id, order, own, channels)
}

fn fact(
    event_type: &str,
    event_id: EventId,
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
        event_id,
        event_type: EventName::from_stored(event_type),
        schema_version: 1,
        payload: Payload::from_text(text).map_err(|error| corrupt("payload", error))?,
        channels,
    })
}

/// From where to where an order moved, and why.
struct Moved<'r> {
    from: Option<OrderStatus>,
    to: OrderStatus,
    reason: Option<&'r str>,
}

fn append(
    order: &Order,
    event: NewEvent,
    moved: Option<Moved<'_>>,
    cause: Option<CausationId>,
    step: &Step,
) -> Result<Append, StoreError> {
    let unusable = |error: towpath::ids::InvalidId| corrupt("order", error);
    let flow = match &order.correlation_id {
        Some(flow) => CorrelationId::from_stored(flow),
        // From before orders had flows of their own.
        None => CorrelationId::new(format!("market-order-{}", order.order_id)).map_err(unusable)?,
    };
    let mut context = ChangeContext::new(step.now, flow);
    context.trace_id = Some(step.trace_id.clone());
    context.causation_id = cause;
    let is_new = moved.as_ref().is_some_and(|moved| moved.from.is_none());
    // Who asked, and in which request.
    Circumstances::current().complete(&mut context);
    Ok(Append {
        aggregate: AggregateKey::new(AGGREGATE_TYPE, order.order_id.to_string()).map_err(unusable)?,
        // The conditional update of the order has decided.
        expected: if is_new { Expected::New } else { Expected::Any },
        events: vec![event],
        snapshot: None,
        state_changes: moved.into_iter().map(Moved::written).collect(),
        deadline: DeadlineChange::default(),
        context,
    })
}

impl Moved<'_> {
    fn written(self) -> StateChange {
        StateChange {
            from: self.from.map(|status| status.to_string()),
            to: self.to.to_string(),
            reason: self.reason.map(str::to_owned),
            message: None,
            event_index: 0,
        }
    }
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

    fn payload(append: &Append) -> &str {
        append.events[0].payload.as_text()
    }

    fn step(order: &Order) -> Step {
        let trace_id = TraceId::new("trace-xxx").unwrap();
        Step { now: order.create_time, trace_id, event_id: EventId(uuid::Uuid::now_v7()) }
    }

    #[test]
    fn payloads_are_the_contract_field_for_field() {
        let general = r#""orderId":900001,"orderNo":"202602041030001234","buyerId":10001,"sellerId":10002,"totalAmount":88.50"#;
        let order = order();
        let step = step(&order);
        let placed = placed(&order, &step, EventId(uuid::Uuid::now_v7())).unwrap();
        assert_eq!(payload(&placed[0]), format!(r#"{{{general},"productId":7,"quantity":1,"price":88.50}}"#));
        assert_eq!(payload(&placed[1]), format!(r#"{{{general},"createTime":"2026-02-04T10:30:00Z"}}"#));
        let paid = paid(&order, &step).unwrap();
        assert_eq!(
            payload(&paid),
            format!(r#"{{{general},"payTime":"2026-02-04T10:30:00Z","amount":88.50}}"#)
        );
        let paid = Order { status: OrderStatus::Paid, ..order };
        let moved = moved(&paid, OrderStatus::Shipped, &step).unwrap();
        assert_eq!(
            payload(&moved),
            format!(
                r#"{{{general},"oldStatus":"paid","newStatus":"shipped","changedAt":"2026-02-04T10:30:00Z"}}"#
            )
        );
    }

    #[test]
    fn what_timed_out_was_caused_by_its_timeout() {
        let order = order();
        let cause = |reason: &str| {
            let append = cancelled(&order, reason, &step(&order)).unwrap();
            append.context.causation_id.map(|cause| cause.to_string())
        };
        assert_eq!(cause("timeout").as_deref(), Some("timeout"));
        assert_eq!(cause("buyer").as_deref(), Some("last"));
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
