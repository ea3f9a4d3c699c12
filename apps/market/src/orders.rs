//! The steps of an order. Each is one conditional update: that it touched exactly one row is the only proof of success.
//!
//! The locks are taken in one order: the order, its product, what is known of the product, the buyer's credit. A
//! placed order is a new row that nobody waits for.

use chrono::{DateTime, Utc};
use towpath::Tx;
use towpath::ids::EventId;
use towpath::ports::store::{Append, StoreError};
use towpath::tables::Dialect;

use crate::database::{OwnTables, corrupt, values};
use crate::error::MarketError;
use crate::events::{self, Step};
use crate::model::{BuyerCredit, Order, OrderFilter, OrderStatus, Shipment, ShipmentStatus};
use crate::products;

/// Why an order was cancelled that was never paid. Frozen.
pub(crate) const TIMEOUT_REASON: &str = "timeout";

pub(crate) async fn list(
    session: &mut OwnTables<'_>,
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
        OrderFilter { seller_id: Some(_), .. } => session.dialect().by_index("orders_seller"),
        OrderFilter { status: Some(_), .. } => session.dialect().by_index("orders_status"),
        _ => String::new(),
    };
    let chosen = format!("{by_index} WHERE {} ORDER BY order_id LIMIT ?", conditions.join(" AND "));
    session.rows_of("market.orders", &chosen, values).await
}

/// Places an order: the product is taken in the same transaction, for the price of the order, or nothing happens.
pub(crate) async fn place(
    tx: &mut Tx,
    order: Order,
    step: &Step,
    timeout_event_id: EventId,
) -> Result<Order, MarketError> {
    if !products::take(&mut tx.own_tables(), order.product_id, order.price, step.now).await? {
        return Err(MarketError::NotOnSale(order.product_id));
    }
    let (created, timeout) = (step.event_id.to_string(), timeout_event_id.to_string());
    let order = Order { last_event_id: Some(created), timeout_event_id: Some(timeout), ..order };
    if !tx.insert(&order).await? {
        return Err(corrupt("market_numbers", "a number was given twice").into());
    }
    for facts in &events::placed(&order, step, timeout_event_id)? {
        tx.append(facts).await?;
    }
    Ok(order)
}

/// Pays an order.
pub(crate) async fn pay(tx: &mut Tx, order: &Order, step: &Step) -> Result<(), MarketError> {
    let session = &mut tx.own_tables();
    advance(session, order, (OrderStatus::Pending, OrderStatus::Paid), "pay_time", step, "be paid").await?;
    tx.append(&events::paid(order, step)?).await?;
    Ok(())
}

/// Ships an order. Its shipment may not have been begun yet: the message about the payment may still be on its way.
pub(crate) async fn ship(tx: &mut Tx, order: &Order, step: &Step) -> Result<(), MarketError> {
    let session = &mut tx.own_tables();
    let (old, new) = (OrderStatus::Paid, OrderStatus::Shipped);
    advance(session, order, (old, new), "ship_time", step, "be shipped").await?;
    set_shipment(session, order.order_id, ShipmentStatus::Shipped, step.now).await?;
    tx.append(&events::moved(order, new, step)?).await?;
    Ok(())
}

/// Completes an order.
pub(crate) async fn complete(tx: &mut Tx, order: &Order, step: &Step) -> Result<(), MarketError> {
    let session = &mut tx.own_tables();
    let (old, new) = (OrderStatus::Shipped, OrderStatus::Completed);
    advance(session, order, (old, new), "complete_time", step, "be completed").await?;
    set_shipment(session, order.order_id, ShipmentStatus::Delivered, step.now).await?;
    recalculate_credit(session, order.buyer_id, step.now).await?;
    tx.append(&events::moved(order, new, step)?).await?;
    Ok(())
}

/// Cancels an order that was not paid.
pub(crate) async fn cancel(tx: &mut Tx, order: &Order, reason: &str, step: &Step) -> Result<(), MarketError> {
    let session = &mut tx.own_tables();
    let event_id = step.event_id.to_string();
    let sql = "UPDATE orders SET status = ?, status_changed_at = ?, cancel_reason = ?, cancel_time = ?, \
        last_event_id = ? WHERE order_id = ? AND status = ?";
    let values = values![
        OrderStatus::Cancelled.as_str(),
        step.now,
        reason,
        step.now,
        event_id.as_str(),
        order.order_id,
        OrderStatus::Pending.as_str(),
    ];
    if session.execute("market.cancel", sql, values).await? != 1 {
        return Err(refused(session, order.order_id, "be cancelled").await);
    }
    let facts = closed(session, order, reason, step).await?;
    tx.append(&facts).await?;
    Ok(())
}

/// Closes an order whose time to pay is over: only if it is still pending and was placed at or before the deadline.
/// Answers whether that was so.
pub(crate) async fn time_out(
    tx: &mut Tx,
    order: &Order,
    deadline: DateTime<Utc>,
    step: &Step,
) -> Result<bool, StoreError> {
    let session = &mut tx.own_tables();
    let event_id = step.event_id.to_string();
    let sql = "UPDATE orders SET status = ?, status_changed_at = ?, cancel_reason = ?, cancel_time = ?, \
        last_event_id = ? WHERE order_id = ? AND status = ? AND create_time <= ?";
    let values = values![
        OrderStatus::Cancelled.as_str(),
        step.now,
        TIMEOUT_REASON,
        step.now,
        event_id.as_str(),
        order.order_id,
        OrderStatus::Pending.as_str(),
        deadline,
    ];
    if session.execute("market.time-out", sql, values).await? != 1 {
        return Ok(false);
    }
    let facts = closed(session, order, TIMEOUT_REASON, step).await?;
    tx.append(&facts).await?;
    Ok(true)
}

/// Unpaid orders from before the deadline, the oldest first.
pub(crate) async fn overdue(
    session: &mut OwnTables<'_>,
    deadline: DateTime<Utc>,
    limit: u32,
) -> Result<Vec<Order>, StoreError> {
    let chosen = "WHERE status = ? AND create_time <= ? ORDER BY create_time, order_id LIMIT ?";
    let values = values![OrderStatus::Pending.as_str(), deadline, i64::from(limit)];
    session.rows_of("market.overdue", chosen, values).await
}

/// What follows when an order is cancelled, for whatever reason: its product is on sale again, the buyer's credit is
/// counted anew.
async fn closed(
    session: &mut OwnTables<'_>,
    order: &Order,
    reason: &str,
    step: &Step,
) -> Result<Append, StoreError> {
    if !products::release(session, order.product_id, step.now).await? {
        // An order has its product until it ends: without it, something else wrote to the tables.
        tracing::error!(
            code = "market-product-not-held",
            order_id = order.order_id,
            product_id = order.product_id,
            "an order was cancelled whose product was not sold"
        );
    }
    recalculate_credit(session, order.buyer_id, step.now).await?;
    events::cancelled(order, reason, step)
}

/// Moves an order on, or says where it is. An order that was read in another status is not moved, although it may have
/// come there since: what is known of it, the fact of its last step, is of before.
async fn advance(
    session: &mut OwnTables<'_>,
    order: &Order,
    (from, to): (OrderStatus, OrderStatus),
    time_column: &'static str,
    step: &Step,
    name: &'static str,
) -> Result<(), MarketError> {
    let order_id = order.order_id;
    if order.status != from {
        return Err(MarketError::WrongStatus { order_id, status: order.status, step: name });
    }
    let event_id = step.event_id.to_string();
    let sql = format!(
        "UPDATE orders SET status = ?, status_changed_at = ?, {time_column} = ?, last_event_id = ? \
         WHERE order_id = ? AND status = ?"
    );
    let values = values![to.as_str(), step.now, step.now, event_id.as_str(), order_id, from.as_str()];
    match session.execute("market.order-step", &sql, values).await? {
        1 => Ok(()),
        _ => Err(refused(session, order_id, name).await),
    }
}

/// Why a step touched no row.
async fn refused(session: &mut OwnTables<'_>, order_id: i64, step: &'static str) -> MarketError {
    match session.find::<Order>(&order_id).await {
        Ok(Some(order)) => MarketError::WrongStatus { order_id, status: order.status, step },
        Ok(None) => MarketError::UnknownOrder(order_id),
        Err(error) => MarketError::Store(error),
    }
}

/// Brings a shipment to a status, and begins it if it was not there.
pub(crate) async fn set_shipment(
    session: &mut OwnTables<'_>,
    order_id: i64,
    status: ShipmentStatus,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let row = Shipment { order_id, status, status_changed_at: now, created_at: now };
    let begun = session.lock_or_insert(&row).await?;
    if begun != row {
        session.put_rows(&[Shipment { created_at: begun.created_at, ..row }]).await?;
    }
    Ok(())
}

/// Counts anew how a buyer's orders ended. The row is locked before the orders are counted, so that of two that count at
/// once the second one sees what the first has committed.
async fn recalculate_credit(
    session: &mut OwnTables<'_>,
    buyer_id: i64,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let none = BuyerCredit::of(buyer_id, (0, 0, 0), now);
    session.lock_or_insert(&none).await?;
    let sql = "SELECT \
        CAST(COALESCE(SUM(CASE WHEN status = 'completed' THEN 1 ELSE 0 END), 0) AS {integer}) AS completed_count, \
        CAST(COALESCE(SUM(CASE WHEN status = 'cancelled' AND cancel_reason <> 'timeout' THEN 1 ELSE 0 END), 0) \
            AS {integer}) AS cancelled_count, \
        CAST(COALESCE(SUM(CASE WHEN status = 'cancelled' AND cancel_reason = 'timeout' THEN 1 ELSE 0 END), 0) \
            AS {integer}) AS timeout_count \
        FROM orders WHERE buyer_id = ?"
        .replace("{integer}", if session.dialect() == Dialect::MySql { "SIGNED" } else { "bigint" });
    let Some(counts) = session.row("market.count-orders", &sql, values![buyer_id]).await? else {
        return Ok(());
    };
    let counts =
        (counts.long("completed_count")?, counts.long("cancelled_count")?, counts.long("timeout_count")?);
    session.put_rows(&[BuyerCredit::of(buyer_id, counts, now)]).await
}
