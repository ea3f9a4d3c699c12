//! The steps of an order. Each is one conditional update: that it touched exactly one row is the only proof of success.
//!
//! The locks are taken in one order: the order, its product, what is known of the product, the buyer's credit. A
//! placed order is a new row that nobody waits for.

use chrono::{DateTime, Utc};
use towpath::Tx;
use towpath::ids::EventId;
use towpath::ports::store::StoreError;
use towpath::tables::Dialect;

use crate::database::{OwnTables, values};
use crate::error::MarketError;
use crate::events::{self, OrderEvent, Step};
use crate::model::{BuyerCredit, Order, OrderFilter, OrderStatus, Product, Shipment, ShipmentStatus};
use crate::products;

/// Why an order was cancelled that was never paid. Frozen.
pub(crate) const TIMEOUT_REASON: &str = "timeout";

pub(crate) async fn list(
    tables: &mut OwnTables<'_>,
    filter: &OrderFilter,
    after: i64,
    limit: u32,
) -> Result<Vec<Order>, StoreError> {
    let mut conditions = vec!["order_id > ?"];
    let mut values = vec![after.into()];
    if let Some(buyer_id) = filter.buyer_id {
        conditions.push("buyer_id = ?");
        values.push(buyer_id.into());
    }
    if let Some(seller_id) = filter.seller_id {
        conditions.push("seller_id = ?");
        values.push(seller_id.into());
    }
    if let Some(status) = filter.status {
        conditions.push("status = ?");
        values.push(status.as_str().into());
    }
    values.push(i64::from(limit).into());
    let by_index = match filter {
        OrderFilter { buyer_id: Some(_), .. } => String::new(),
        OrderFilter { seller_id: Some(_), .. } => tables.dialect().by_index("orders_seller"),
        OrderFilter { status: Some(_), .. } => tables.dialect().by_index("orders_status"),
        _ => String::new(),
    };
    let chosen = format!("{by_index} WHERE {} ORDER BY order_id LIMIT ?", conditions.join(" AND "));
    tables.rows_of("market.orders", &chosen, values).await
}

/// Places an order: the product is taken in the same transaction, for the price of the order, or nothing happens.
pub(crate) async fn place(
    tx: &mut Tx,
    product: &Product,
    order: Order,
    step: &Step,
    timeout_event_id: EventId,
) -> Result<Order, MarketError> {
    if !products::take(tx, product, &order, step).await? {
        return Err(MarketError::NotOnSale(order.product_id));
    }
    let (created, timeout) = (step.event_id.to_string(), timeout_event_id.to_string());
    let order = Order { last_event_id: Some(created), timeout_event_id: Some(timeout), ..order };
    tx.begin_state(&order, events::created(&order)?)
        .fact_id(step.event_id)
        .within(events::of_order(&order, None, step)?)
        .then(timeout_event_id, events::timeout(&order)?)
        .await?;
    Ok(order)
}

/// Pays an order.
pub(crate) async fn pay(tx: &mut Tx, order: &Order, step: &Step) -> Result<Order, MarketError> {
    let event = events::paid(order, step.now)?;
    advance(tx, order, event, OrderStatus::Paid, "pay_time", step, "be paid").await
}

/// Ships an order. Its shipment may not have been begun yet: the message about the payment may still be on its way.
pub(crate) async fn ship(tx: &mut Tx, order: &Order, step: &Step) -> Result<Order, MarketError> {
    let event = events::moved(order, OrderStatus::Shipped, step.now)?;
    let order = advance(tx, order, event, OrderStatus::Shipped, "ship_time", step, "be shipped").await?;
    set_shipment(tx, order.order_id, ShipmentStatus::Shipped, step.now).await?;
    Ok(order)
}

/// Completes an order.
pub(crate) async fn complete(tx: &mut Tx, order: &Order, step: &Step) -> Result<Order, MarketError> {
    let event = events::moved(order, OrderStatus::Completed, step.now)?;
    let order =
        advance(tx, order, event, OrderStatus::Completed, "complete_time", step, "be completed").await?;
    set_shipment(tx, order.order_id, ShipmentStatus::Delivered, step.now).await?;
    recalculate_credit(&mut tx.own_tables(), order.buyer_id, step.now).await?;
    Ok(order)
}

/// Cancels an order that was not paid.
pub(crate) async fn cancel(
    tx: &mut Tx,
    order: &Order,
    reason: &str,
    step: &Step,
) -> Result<Order, MarketError> {
    match close(tx, order, reason, None, step).await {
        Err(error) if is_refusal(&error) => Err(refused(tx, order.order_id, "be cancelled").await),
        closed => Ok(closed?),
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
    match close(tx, order, TIMEOUT_REASON, Some(deadline), step).await {
        Err(error) if is_refusal(&error) => Ok(false),
        closed => closed.map(|_| true),
    }
}

/// Unpaid orders from before the deadline, the oldest first.
pub(crate) async fn overdue(
    tables: &mut OwnTables<'_>,
    deadline: DateTime<Utc>,
    limit: u32,
) -> Result<Vec<Order>, StoreError> {
    let chosen = "WHERE status = ? AND create_time <= ? ORDER BY create_time, order_id LIMIT ?";
    let values = values![OrderStatus::Pending.as_str(), deadline, i64::from(limit)];
    tables.rows_of("market.overdue", chosen, values).await
}

/// Closes an order that is pending, and was placed by then if that matters. Its product is on sale again, the buyer's credit is counted anew.
async fn close(
    tx: &mut Tx,
    order: &Order,
    reason: &str,
    placed_by: Option<DateTime<Utc>>,
    step: &Step,
) -> Result<Order, StoreError> {
    let cause = events::cause_of_cancelling(order, reason);
    let mut closing = tx
        .change_state(order, events::cancelled(order, reason, step.now)?)
        .because(reason, None)
        .set("cancel_reason", reason)
        .set("cancel_time", step.now)
        .set("last_event_id", step.event_id.to_string())
        .fact_id(step.event_id)
        .within(events::of_order(order, cause, step)?);
    if let Some(placed_by) = placed_by {
        closing = closing.only_if("create_time <= ?", placed_by);
    }
    let closed = closing.await?;
    if !products::release(tx, &closed, step).await? {
        // An order has its product until it ends: without it, something else wrote to the tables.
        tracing::error!(
            code = "market-product-not-held",
            order_id = order.order_id,
            product_id = order.product_id,
            "an order was cancelled whose product was not sold"
        );
    }
    recalculate_credit(&mut tx.own_tables(), order.buyer_id, step.now).await?;
    Ok(closed)
}

/// Moves an order on, or says where it is. An order that was read in another status is not moved, although it may have
/// come there since: what is known of it, the fact of its last step, is of before.
async fn advance(
    tx: &mut Tx,
    order: &Order,
    event: OrderEvent,
    to: OrderStatus,
    time_column: &'static str,
    step: &Step,
    name: &'static str,
) -> Result<Order, MarketError> {
    let changed = tx
        .change_state(order, event)
        .to(to.as_str())
        .set(time_column, step.now)
        .set("last_event_id", step.event_id.to_string())
        .fact_id(step.event_id)
        .within(events::of_order(order, order.last_event_id.as_deref(), step)?)
        .await;
    match changed {
        Err(error) if is_refusal(&error) => Err(refused(tx, order.order_id, name).await),
        changed => Ok(changed?),
    }
}

/// Whether a change was refused for where its row is, and nothing is broken.
pub(crate) fn is_refusal(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::ForbiddenEvent { code: "illegal-transition", .. }
            | StoreError::VersionConflict { .. }
            | StoreError::Missing { .. }
    )
}

/// Why a step touched no row.
async fn refused(tx: &mut Tx, order_id: i64, step: &'static str) -> MarketError {
    match tx.find::<Order>(&order_id).await {
        Ok(Some(order)) => MarketError::WrongStatus { order_id, status: order.status, step },
        Ok(None) => MarketError::UnknownOrder(order_id),
        Err(error) => MarketError::Store(error),
    }
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
async fn recalculate_credit(
    tables: &mut OwnTables<'_>,
    buyer_id: i64,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let none = BuyerCredit::of(buyer_id, (0, 0, 0), now);
    tables.lock_or_insert(&none).await?;
    let sql = "SELECT \
        CAST(COALESCE(SUM(CASE WHEN status = 'completed' THEN 1 ELSE 0 END), 0) AS {integer}) AS completed_count, \
        CAST(COALESCE(SUM(CASE WHEN status = 'cancelled' AND cancel_reason <> 'timeout' THEN 1 ELSE 0 END), 0) \
            AS {integer}) AS cancelled_count, \
        CAST(COALESCE(SUM(CASE WHEN status = 'cancelled' AND cancel_reason = 'timeout' THEN 1 ELSE 0 END), 0) \
            AS {integer}) AS timeout_count \
        FROM orders WHERE buyer_id = ?"
        .replace("{integer}", if tables.dialect() == Dialect::MySql { "SIGNED" } else { "bigint" });
    let Some(counts) = tables.row("market.count-orders", &sql, values![buyer_id]).await? else {
        return Ok(());
    };
    let counts =
        (counts.long("completed_count")?, counts.long("cancelled_count")?, counts.long("timeout_count")?);
    tables.put_rows(&[BuyerCredit::of(buyer_id, counts, now)]).await
}
