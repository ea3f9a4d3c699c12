//! What follows from messages (O8): the inventory, shipments, notifications and cancellations.
//!
//! Each handler takes one type of event and checks the order's own row: a message says what happened once, the row says
//! what is so. What cannot become right is given up at once; the rest comes again, up to a threshold (O6).

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use towpath::{Afterwards, Consumer, ConsumerPolicy, DeadTo, Delivery, HandlerError, Next, Tx};

use crate::envelope::FORMAT_NAME;
use crate::events::{AGGREGATE_TYPE, Created, EventType, Named, Paid, Parties, StatusChanged, Timeout};
use crate::model::{
    CountedOrder, Inventory, Notification, Order, OrderStatus, Product, ProductStatus, Shipment,
    ShipmentStatus,
};
use crate::orders;
use crate::settings::Settings;
use crate::step::{Step, now};
use crate::texts;
use crate::topology::CONSUMERS;

/// The market's consumers.
pub(crate) fn consumers(settings: &Settings) -> [Consumer; 4] {
    let policy = ConsumerPolicy {
        concurrency: settings.consumer.concurrency,
        prefetch: settings.consumer.prefetch,
        in_order: false,
        immediate_retries: 0,
        afterwards: Afterwards::Requeue { at_most: settings.consumer.attempts },
        dead: DeadTo::Broker,
        ..ConsumerPolicy::default()
    };
    let pending = settings.order.timeout.pending;
    CONSUMERS.map(|(handler, queue, of)| {
        let consumer = Consumer::from_queue(queue).in_format(FORMAT_NAME).with(policy.clone());
        match of {
            EventType::OrderCreated => consumer.each(handler, update_inventory),
            EventType::OrderPaid => consumer.each(handler, begin_shipment),
            EventType::OrderStatusChanged => consumer.each(handler, notify),
            EventType::OrderTimeout => consumer.each(handler, move |delivery| time_out(delivery, pending)),
        }
    })
}

/// What is known about the product's availability follows its status. The product itself was taken when the order was
/// placed. An order counts once, whatever the ids of the messages that tell of it.
async fn update_inventory(mut delivery: Delivery) -> Result<Next, HandlerError> {
    let (order, created): (_, Created) = read(&mut delivery, EventType::OrderCreated).await?;
    delivery.payload::<Parties>()?;
    let (order_id, product_id) = (order.order_id, order.product_id);
    if product_id != created.product_id {
        let why = format!("order {order_id} is for product {product_id}, not {}", created.product_id);
        return Err(HandlerError::unrecoverable("market-wrong-product", why));
    }
    let now = now(&mut delivery.tx).await?;
    // Held, so that a cancellation that gives it back does so before or after this, and not in between.
    let Some(product) = delivery.tx.lock::<Product>(&product_id).await? else {
        let why = format!("order {order_id} is for product {product_id}, which does not exist");
        return Err(HandlerError::unrecoverable("product-unknown", why));
    };
    let nothing =
        Inventory { product_id, is_available: false, order_count: 0, last_order_id: 0, updated_at: now };
    let known = delivery.tx.lock_or_insert(&nothing).await?;
    let is_new = delivery.tx.insert(&CountedOrder { order_id, product_id, counted_at: now }).await?;
    let known = Inventory {
        is_available: product.status == ProductStatus::OnSale,
        order_count: known.order_count + i64::from(is_new),
        last_order_id: known.last_order_id.max(order_id),
        updated_at: now,
        ..known
    };
    delivery.tx.put(&[known]).await?;
    Ok(delivery.handled())
}

/// The shipment is made ready, once, and only for an order that is paid and not on its way yet.
async fn begin_shipment(mut delivery: Delivery) -> Result<Next, HandlerError> {
    let (order, paid): (_, Paid) = read(&mut delivery, EventType::OrderPaid).await?;
    let (order_id, amount) = (order.order_id, order.total_amount);
    if amount != paid.amount {
        let why = format!("order {order_id} costs {amount}, not {}", paid.amount);
        return Err(HandlerError::unrecoverable("market-wrong-amount", why));
    }
    let now = now(&mut delivery.tx).await?;
    // Held, so that nobody ships it meanwhile.
    let order = lock(&mut delivery.tx, order_id).await?;
    match order.status {
        OrderStatus::Paid => {
            let status = ShipmentStatus::Preparing;
            delivery
                .tx
                .insert(&Shipment { order_id, status, status_changed_at: now, created_at: now })
                .await?;
        }
        OrderStatus::Shipped | OrderStatus::Completed => {
            tracing::info!(order_id, "the order was shipped before its shipment was begun");
        }
        OrderStatus::Pending | OrderStatus::Cancelled => return Err(wrong_status(&order)),
    }
    Ok(delivery.handled())
}

/// Buyer and seller are told, each once of each status, whatever the ids of the messages.
async fn notify(mut delivery: Delivery) -> Result<Next, HandlerError> {
    let (order, changed): (Order, StatusChanged) = read(&mut delivery, EventType::OrderStatusChanged).await?;
    let StatusChanged { old_status, new_status: status, .. } = changed;
    let (order_id, now) = (order.order_id, now(&mut delivery.tx).await?);
    // Held, so that of two messages about one step the second one sees what the first one told.
    let order = lock(&mut delivery.tx, order_id).await?;
    let (has_come_that_far, recipients) = match (old_status, status) {
        (OrderStatus::Paid, OrderStatus::Shipped) => {
            let is_so = matches!(order.status, OrderStatus::Shipped | OrderStatus::Completed);
            (is_so, vec![order.buyer_id])
        }
        (OrderStatus::Shipped, OrderStatus::Completed) => {
            (order.status == OrderStatus::Completed, vec![order.buyer_id, order.seller_id])
        }
        (old, new) => {
            let why = format!("no order goes from {old} to {new} by this message");
            return Err(HandlerError::unrecoverable("market-wrong-step", why));
        }
    };
    if !has_come_that_far {
        return Err(wrong_status(&order));
    }
    for recipient_id in recipients {
        let told = "WHERE order_id = ? AND recipient_id = ? AND status = ? LIMIT 1";
        let values = vec![order_id.into(), recipient_id.into(), status.into()];
        if delivery.tx.rows::<Notification>("market.told", told, values).await?.is_empty() {
            let event_id = delivery.event.event_id.to_string();
            let told = Notification { event_id, recipient_id, order_id, status, created_at: now };
            delivery.tx.insert(&told).await?;
        }
    }
    Ok(delivery.handled())
}

/// The order is cancelled if it is still unpaid and its time is over.
async fn time_out(mut delivery: Delivery, pending: Duration) -> Result<Next, HandlerError> {
    let (order, _): (Order, Timeout) = read(&mut delivery, EventType::OrderTimeout).await?;
    let mut step = Step::begin(&mut delivery.tx).await?;
    if let Some(trace_id) = &delivery.event.trace_id {
        step.trace_id = trace_id.clone();
    }
    let deadline = deadline(step.now, pending);
    let is_closed = orders::time_out(&mut delivery.tx, &order, deadline, &step).await?;
    if !is_closed && order.status == OrderStatus::Pending && order.create_time > deadline {
        // Too early: the message was sent by hand, or it waited by another clock. It comes again when it is time.
        let early = (order.create_time - deadline).to_std().unwrap_or_default();
        return Ok(delivery.retry_after(early, "market-too-early", "the time to pay is not over"));
    }
    // Closed; or paid, or cancelled by somebody else: then there is nothing to do.
    Ok(delivery.handled())
}

/// The moment at or before which an unpaid order must have been placed to be closed.
pub(crate) fn deadline(now: DateTime<Utc>, pending: Duration) -> DateTime<Utc> {
    let pending = chrono::Duration::from_std(pending).ok();
    pending.and_then(|pending| now.checked_sub_signed(pending)).unwrap_or(DateTime::<Utc>::MIN_UTC)
}

/// The payload of a delivery, if it is of the wanted type and whole, and the order that both message and payload name. Orders
/// are committed before anything is sent about them: one that is not there will not come.
async fn read<T: DeserializeOwned>(
    delivery: &mut Delivery,
    wanted: EventType,
) -> Result<(Order, T), HandlerError> {
    let found = delivery.event.event_type.as_str();
    if found != wanted.as_str() {
        let why = format!("{}: {found}", texts::UNSUPPORTED_TYPE);
        return Err(HandlerError::unrecoverable("market-unsupported-type", why));
    }
    let (Named { order_id, order_no }, payload): (_, T) = (delivery.payload()?, delivery.payload()?);
    let wrong_order = |why: String| HandlerError::unrecoverable("market-wrong-order", why);
    let is_about_it = delivery.event.aggregate.as_ref().is_some_and(|aggregate| {
        aggregate.kind.as_str() == AGGREGATE_TYPE && aggregate.id.as_str() == order_id.to_string()
    });
    if !is_about_it {
        let why = format!("the message is not about order {order_id}, which its payload names");
        return Err(wrong_order(why));
    }
    let order: Order = delivery.tx.find(&order_id).await?.ok_or_else(|| unknown(order_id))?;
    if order.order_no != order_no {
        return Err(wrong_order(format!("order {order_id} is {}, not {order_no}", order.order_no)));
    }
    Ok((order, payload))
}

async fn lock(tx: &mut Tx, order_id: i64) -> Result<Order, HandlerError> {
    tx.lock::<Order>(&order_id).await?.ok_or_else(|| unknown(order_id))
}

fn unknown(order_id: i64) -> HandlerError {
    HandlerError::unrecoverable("order-unknown", format!("there is no order {order_id}"))
}

fn wrong_status(order: &Order) -> HandlerError {
    let why = format!("order {} is {}, which the message contradicts", order.order_id, order.status);
    HandlerError::unrecoverable("order-wrong-status", why)
}
