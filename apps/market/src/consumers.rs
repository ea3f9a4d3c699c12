//! What follows from messages (O8): the inventory, shipments, notifications and cancellations.
//!
//! Each handler takes one type of event and checks the order's own row: a message says what happened once, the row says
//! what is so. What cannot become right is given up at once; the rest comes again, up to a threshold (O6).

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use towpath::ids::EventId;
use towpath::ports::store::StoreError;
use towpath::{Afterwards, Consumer, ConsumerPolicy, DeadTo, Delivery, HandlerError, Next};
use uuid::Uuid;

use crate::database::{OwnTables, now, values};
use crate::envelope::FORMAT_NAME;
use crate::events::{AboutOrder, Created, EventType, Paid, StatusChanged, Step, Timeout, names_its_order};
use crate::market::new_trace;
use crate::model::{
    CountedOrder, Inventory, Notification, Order, OrderStatus, Product, ProductStatus, Shipment,
    ShipmentStatus,
};
use crate::orders;
use crate::settings::Settings;
use crate::texts;
use crate::topology::{CONSUMERS, FULFILLMENT_QUEUE, INVENTORY_QUEUE, STATUS_SYNC_QUEUE, TIMEOUT_QUEUE};

/// The market's consumers.
pub(crate) fn consumers(settings: &Settings) -> Vec<Consumer> {
    let policy = ConsumerPolicy {
        concurrency: settings.concurrency,
        prefetch: settings.prefetch,
        in_order: false,
        immediate_retries: 0,
        afterwards: Afterwards::Requeue { at_most: settings.attempts },
        dead: DeadTo::Broker,
        ..ConsumerPolicy::default()
    };
    CONSUMERS
        .into_iter()
        .map(|(handler, queue, _)| {
            let settings = settings.clone();
            let of = Consumer::from_queue(queue).in_format(FORMAT_NAME).with(policy.clone());
            of.each(handler, move |delivery| handle(queue, delivery, settings.clone()))
        })
        .collect()
}

async fn handle(queue: &'static str, delivery: Delivery, settings: Settings) -> Result<Next, HandlerError> {
    let handled = match queue {
        INVENTORY_QUEUE => update_inventory(delivery, &settings).await,
        FULFILLMENT_QUEUE => begin_shipment(delivery, &settings).await,
        STATUS_SYNC_QUEUE => notify(delivery, &settings).await,
        TIMEOUT_QUEUE => time_out(delivery, &settings).await,
        other => {
            let why = format!("nobody takes from {other}");
            Err(Trouble::Message(HandlerError::unrecoverable("market-unknown-queue", why)))
        }
    };
    handled.map_err(|trouble| match trouble {
        Trouble::Message(error) => error,
        // It lost against others, and is run again without being counted.
        Trouble::Store(error @ StoreError::Contention(_)) => error.into(),
        // The message cannot be blamed for what the database says: it comes again, up to the threshold.
        Trouble::Store(error) => {
            let cause =
                std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            HandlerError::transient(error.code(), format!("{error}{cause}"))
        }
    })
}

/// Why a message was not handled.
enum Trouble {
    /// Something is wrong with it.
    Message(HandlerError),
    /// The database said no, or nothing.
    Store(StoreError),
}

impl From<HandlerError> for Trouble {
    fn from(error: HandlerError) -> Self {
        Self::Message(error)
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// ORDER_CREATED: what is known about the product's availability follows its status. The product itself was taken when
/// the order was placed. An order counts once, whatever the ids of the messages that tell of it.
async fn update_inventory(mut delivery: Delivery, settings: &Settings) -> Result<Next, Trouble> {
    let created: Created = read(&delivery, EventType::OrderCreated)?;
    let tables = &mut delivery.tx.own_tables();
    let order = order_of(tables, &created).await?;
    let now = now(tables, &*settings.clock).await?;
    if order.product_id != created.product_id {
        return Err(flaw(
            "market-wrong-product",
            format!(
                "order {} is for product {}, not {}",
                order.order_id, order.product_id, created.product_id
            ),
        ));
    }
    // Held, so that a cancellation that gives it back does so before or after this, and not in between.
    let Some(product) = tables.lock::<Product>(&order.product_id).await? else {
        let why =
            format!("order {} is for product {}, which does not exist", order.order_id, order.product_id);
        return Err(flaw("product-unknown", why));
    };
    let (product_id, order_id) = (order.product_id, order.order_id);
    let nothing =
        Inventory { product_id, is_available: false, order_count: 0, last_order_id: 0, updated_at: now };
    let known = tables.lock_or_insert(&nothing).await?;
    let is_counted = !tables.insert(&CountedOrder { order_id, product_id, counted_at: now }).await?;
    let known = Inventory {
        is_available: product.status == ProductStatus::OnSale,
        order_count: known.order_count + i64::from(!is_counted),
        last_order_id: known.last_order_id.max(order_id),
        updated_at: now,
        ..known
    };
    tables.put_rows(&[known]).await?;
    Ok(delivery.handled())
}

/// ORDER_PAID: the shipment is made ready, once, and only for an order that is paid and not on its way yet.
async fn begin_shipment(mut delivery: Delivery, settings: &Settings) -> Result<Next, Trouble> {
    let paid: Paid = read(&delivery, EventType::OrderPaid)?;
    let tables = &mut delivery.tx.own_tables();
    let order = order_of(tables, &paid).await?;
    let now = now(tables, &*settings.clock).await?;
    if order.total_amount != paid.amount {
        let why = format!("order {} costs {}, not {}", order.order_id, order.total_amount, paid.amount);
        return Err(flaw("market-wrong-amount", why));
    }
    // Held, so that nobody ships it meanwhile.
    match tables.lock::<Order>(&order.order_id).await?.map(|order| order.status) {
        Some(OrderStatus::Paid) => {
            let status = ShipmentStatus::Preparing;
            let begun =
                Shipment { order_id: order.order_id, status, status_changed_at: now, created_at: now };
            tables.insert(&begun).await?;
        }
        Some(OrderStatus::Shipped | OrderStatus::Completed) => {
            tracing::info!(order_id = order.order_id, "the order was shipped before its shipment was begun");
        }
        Some(status @ (OrderStatus::Pending | OrderStatus::Cancelled)) => {
            return Err(wrong_status(&order, status));
        }
        None => return Err(unknown(order.order_id)),
    }
    Ok(delivery.handled())
}

/// ORDER_STATUS_CHANGED: buyer and seller are told, each once of each status, whatever the ids of the messages.
async fn notify(mut delivery: Delivery, settings: &Settings) -> Result<Next, Trouble> {
    let changed: StatusChanged = read(&delivery, EventType::OrderStatusChanged)?;
    let event_id = delivery.event.event_id.to_string();
    let tables = &mut delivery.tx.own_tables();
    let order_id = order_of(tables, &changed).await?.order_id;
    let now = now(tables, &*settings.clock).await?;
    // Held, so that of two messages about one step the second one sees what the first one told.
    let order = tables.lock::<Order>(&order_id).await?.ok_or_else(|| unknown(order_id))?;
    let has_come_that_far = match (changed.old_status, changed.new_status) {
        (OrderStatus::Paid, OrderStatus::Shipped) => {
            matches!(order.status, OrderStatus::Shipped | OrderStatus::Completed)
        }
        (OrderStatus::Shipped, OrderStatus::Completed) => order.status == OrderStatus::Completed,
        (old, new) => {
            let why = format!("no order goes from {old} to {new} by this message");
            return Err(flaw("market-wrong-step", why));
        }
    };
    if !has_come_that_far {
        return Err(wrong_status(&order, order.status));
    }
    let recipients = match changed.new_status {
        OrderStatus::Completed => vec![order.buyer_id, order.seller_id],
        _ => vec![order.buyer_id],
    };
    let status = changed.new_status;
    for recipient_id in recipients {
        let told = "WHERE order_id = ? AND recipient_id = ? AND status = ? LIMIT 1";
        let values = values![order_id, recipient_id, status.as_str()];
        if tables.rows_of::<Notification>("market.told", told, values).await?.is_empty() {
            let event_id = event_id.clone();
            tables
                .insert(&Notification { event_id, recipient_id, order_id, status, created_at: now })
                .await?;
        }
    }
    Ok(delivery.handled())
}

/// ORDER_TIMEOUT: the order is cancelled if it is still unpaid and its time is over.
async fn time_out(mut delivery: Delivery, settings: &Settings) -> Result<Next, Trouble> {
    let timeout: Timeout = read(&delivery, EventType::OrderTimeout)?;
    let trace_id = delivery.event.trace_id.clone().unwrap_or_else(new_trace);
    let tables = &mut delivery.tx.own_tables();
    let order = order_of(tables, &timeout).await?;
    let now = now(tables, &*settings.clock).await?;
    let deadline = deadline(now, settings.pending);
    let step = Step { now, trace_id, event_id: EventId(Uuid::now_v7()) };
    match orders::time_out(&mut delivery.tx, &order, deadline, &step).await? {
        false if order.status == OrderStatus::Pending && order.create_time > deadline => {
            // Too early: the message was sent by hand, or it waited by another clock. It comes again when it is time.
            let early = (order.create_time - deadline).to_std().unwrap_or_default();
            Ok(delivery.retry_after(early, "market-too-early", "the time to pay is not over"))
        }
        // Closed; or paid, or cancelled by somebody else: then there is nothing to do.
        true | false => Ok(delivery.handled()),
    }
}

/// The moment at or before which an unpaid order must have been placed to be closed.
pub(crate) fn deadline(now: DateTime<Utc>, pending: Duration) -> DateTime<Utc> {
    let pending = chrono::Duration::from_std(pending).ok();
    pending.and_then(|pending| now.checked_sub_signed(pending)).unwrap_or(DateTime::<Utc>::MIN_UTC)
}

/// The payload of a delivery, if it is of the wanted type and whole, and about the order that the message is about.
fn read<T: DeserializeOwned + AboutOrder>(delivery: &Delivery, wanted: EventType) -> Result<T, Trouble> {
    let found = delivery.event.event_type.as_str();
    if found != wanted.as_str() {
        let why = format!("{}: {found}", texts::UNSUPPORTED_TYPE);
        return Err(flaw("market-unsupported-type", why));
    }
    let payload: T = delivery.payload()?;
    if !names_its_order(&delivery.event, payload.order_id()) {
        let why = format!("the message is not about order {}, which its payload names", payload.order_id());
        return Err(flaw("market-wrong-order", why));
    }
    Ok(payload)
}

/// The order that a payload names. Orders are committed before anything is sent about them: one that is not there will
/// not come.
async fn order_of(tables: &mut OwnTables<'_>, payload: &impl AboutOrder) -> Result<Order, Trouble> {
    let order_id = payload.order_id();
    let order: Order = tables.find(&order_id).await?.ok_or_else(|| unknown(order_id))?;
    if order.order_no != payload.order_no() {
        let why = format!("order {order_id} is {}, not {}", order.order_no, payload.order_no());
        return Err(flaw("market-wrong-order", why));
    }
    Ok(order)
}

fn unknown(order_id: i64) -> Trouble {
    flaw("order-unknown", format!("there is no order {order_id}"))
}

fn wrong_status(order: &Order, status: OrderStatus) -> Trouble {
    let why = format!("order {} is {status}, which the message contradicts", order.order_id);
    flaw("order-wrong-status", why)
}

/// What will be no better the next time.
fn flaw(code: &str, why: String) -> Trouble {
    Trouble::Message(HandlerError::unrecoverable(code, why))
}
