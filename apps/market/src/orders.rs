//! The steps of an order. Each is one conditional update: that it touched exactly one row is the only proof of success.
//!
//! The locks are taken in one order: the order, its product, what is known of the product, the buyer's credit. A
//! placed order is a new row that nobody waits for.

use chrono::{DateTime, Utc};
use towpath::Tx;
use towpath::ids::{CorrelationId, EventId};
use towpath::ports::store::StoreError;
use towpath::tables::{Conditions, Dialect, OwnTables};
use uuid::Uuid;

use crate::error::MarketError;
use crate::events;
use crate::market::Page;
use crate::model::{BuyerCredit, Order, OrderFilter, OrderStatus, Product, Shipment, ShipmentStatus};
use crate::products;
use crate::step::Step;

/// Why an order was cancelled that was never paid. Frozen.
pub(crate) const TIMEOUT_REASON: &str = "timeout";

pub(crate) async fn list(
    tables: &mut OwnTables<'_>,
    filter: &OrderFilter,
    page: Page,
) -> Result<Vec<Order>, StoreError> {
    let by_index = match filter {
        OrderFilter { buyer_id: Some(_), .. } => String::new(),
        OrderFilter { seller_id: Some(_), .. } => tables.dialect().by_index("orders_seller"),
        OrderFilter { status: Some(_), .. } => tables.dialect().by_index("orders_status"),
        _ => String::new(),
    };
    let (chosen, values) = Conditions::of("order_id > ?", page.after)
        .and_some("buyer_id = ?", filter.buyer_id)
        .and_some("seller_id = ?", filter.seller_id)
        .and_some("status = ?", filter.status)
        .then("ORDER BY order_id LIMIT ?", page.limit());
    tables.rows_of("market.orders", &format!("{by_index} {chosen}"), values).await
}

/// Places an order: the product is taken in the same transaction, for the price of the order, or nothing happens.
pub(crate) async fn place(
    tx: &mut Tx,
    product: &Product,
    order: Order,
    step: &Step,
) -> Result<Order, MarketError> {
    if !products::take(tx, product, &order, step).await? {
        return Err(MarketError::NotOnSale(order.product_id));
    }
    let timeout_event_id = EventId(Uuid::now_v7());
    let order = Order {
        correlation_id: Some(CorrelationId::of_new_flow(Uuid::now_v7()).to_string()),
        last_event_id: Some(step.event_id.to_string()),
        timeout_event_id: Some(timeout_event_id.to_string()),
        ..order
    };
    tx.begin_state(&order, events::created(&order)?)
        .fact_id(step.event_id)
        .within(step.of_order(&order, None)?)
        .then(timeout_event_id, events::timeout(&order)?)
        .await?;
    Ok(order)
}

/// Takes a step of an order that somebody asked for, or says where the order is. One that was read in another status is not
/// moved, although it may have come there since: what is known of it, the fact of its last step, is of before.
pub(crate) async fn advance(
    tx: &mut Tx,
    order: &Order,
    to: OrderStatus,
    reason: &str,
    step: &Step,
) -> Result<Order, MarketError> {
    match change(tx, order, to, reason, None, step).await {
        Err(error) if is_refusal(&error) => Err(match tx.find::<Order>(&order.order_id).await? {
            Some(Order { order_id, status, .. }) => {
                MarketError::WrongStatus { order_id, status, step: to.way().passive }
            }
            None => MarketError::UnknownOrder(order.order_id),
        }),
        changed => Ok(changed?),
    }
}

/// Closes an order whose time to pay is over: only if it is still pending and was placed at or before the deadline.
/// Answers whether that was so.
pub(crate) async fn time_out(
    tx: &mut Tx,
    order: &Order,
    deadline: DateTime<Utc>,
    step: &Step,
) -> Result<bool, StoreError> {
    happened(change(tx, order, OrderStatus::Cancelled, TIMEOUT_REASON, Some(deadline), step).await)
}

/// Whether a change was made; it was not if its row was not where it would have to be.
pub(crate) fn happened<R>(changed: Result<R, StoreError>) -> Result<bool, StoreError> {
    match changed {
        Err(error) if is_refusal(&error) => Ok(false),
        changed => changed.map(|_| true),
    }
}

/// Whether a change was refused for where its row is, and nothing is broken.
fn is_refusal(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::ForbiddenEvent { code: "illegal-transition", .. }
            | StoreError::VersionConflict { .. }
            | StoreError::Missing { .. }
    )
}

/// Brings an order to a status, if it was placed by then where that matters, and does what belongs to it.
async fn change(
    tx: &mut Tx,
    order: &Order,
    to: OrderStatus,
    reason: &str,
    placed_by: Option<DateTime<Utc>>,
    step: &Step,
) -> Result<Order, StoreError> {
    let mut changing = tx
        .change_state(order, events::moved(order, to, reason, step.now)?)
        .to(to.as_str())
        .set(to.way().time, step.now)
        .set("last_event_id", step.event_id.to_string())
        .fact_id(step.event_id)
        .within(step.of_order(order, cause(order, reason))?);
    if to == OrderStatus::Cancelled {
        changing = changing.because(reason, None).set("cancel_reason", reason);
    }
    if let Some(placed_by) = placed_by {
        changing = changing.only_if("create_time <= ?", placed_by);
    }
    let order = changing.await?;
    match to {
        OrderStatus::Pending | OrderStatus::Paid => return Ok(order),
        // Its shipment may not have been begun yet: the message about the payment may still be on its way.
        OrderStatus::Shipped => {
            set_shipment(tx, order.order_id, ShipmentStatus::Shipped, step.now).await?;
            return Ok(order);
        }
        OrderStatus::Completed => {
            set_shipment(tx, order.order_id, ShipmentStatus::Delivered, step.now).await?;
        }
        OrderStatus::Cancelled if products::release(tx, &order, step).await? => {}
        // An order has its product until it ends: without it, something else wrote to the tables.
        OrderStatus::Cancelled => tracing::error!(
            code = "market-product-not-held",
            order_id = order.order_id,
            product_id = order.product_id,
            "an order was cancelled whose product was not sold"
        ),
    }
    recalculate_credit(tx, order.buyer_id, step.now).await?;
    Ok(order)
}

/// The fact that led to a step. What timed out names its own ORDER_TIMEOUT, also when the job or a message from
/// elsewhere was first: the cause lies in the flow.
fn cause<'o>(order: &'o Order, reason: &str) -> Option<&'o str> {
    let led_to_it = if reason == TIMEOUT_REASON { &order.timeout_event_id } else { &order.last_event_id };
    led_to_it.as_deref()
}

/// Brings a shipment to a status, and begins it if it was not there.
async fn set_shipment(
    tx: &mut Tx,
    order_id: i64,
    status: ShipmentStatus,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let row = Shipment { order_id, status, status_changed_at: now, created_at: now };
    let begun = tx.lock_or_insert(&row).await?;
    if begun != row {
        tx.put(&[Shipment { created_at: begun.created_at, ..row }]).await?;
    }
    Ok(())
}

/// Counts anew how a buyer's orders ended. The row is locked before the orders are counted, so that of two that count at
/// once the second one sees what the first has committed.
async fn recalculate_credit(tx: &mut Tx, buyer_id: i64, now: DateTime<Utc>) -> Result<(), StoreError> {
    tx.lock_or_insert(&BuyerCredit::of(buyer_id, (0, 0, 0), now)).await?;
    let mut tables = tx.own_tables();
    let integer = if tables.dialect() == Dialect::MySql { "SIGNED" } else { "bigint" };
    let count = |condition: &str, name: &str| {
        format!("CAST(COALESCE(SUM(CASE WHEN {condition} THEN 1 ELSE 0 END), 0) AS {integer}) AS {name}")
    };
    let sql = format!(
        "SELECT {}, {}, {} FROM orders WHERE buyer_id = ?",
        count("status = 'completed'", "completed_count"),
        count("status = 'cancelled' AND cancel_reason <> 'timeout'", "cancelled_count"),
        count("status = 'cancelled' AND cancel_reason = 'timeout'", "timeout_count"),
    );
    let Some(counts) = tables.row("market.count-orders", &sql, vec![buyer_id.into()]).await? else {
        return Ok(());
    };
    let counts =
        (counts.long("completed_count")?, counts.long("cancelled_count")?, counts.long("timeout_count")?);
    tx.put(&[BuyerCredit::of(buyer_id, counts, now)]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_timed_out_was_caused_by_its_timeout() {
        let (last_event_id, timeout_event_id) = (Some("last".to_owned()), Some("timeout".to_owned()));
        let order = Order { last_event_id, timeout_event_id, ..crate::model::tests::order(1) };
        assert_eq!(cause(&order, TIMEOUT_REASON), Some("timeout"));
        assert_eq!(cause(&order, "buyer"), Some("last"));
    }
}
