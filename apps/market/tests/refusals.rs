//! What the consumers refuse (O8, O2): a message that contradicts the order's own row, and one that lacks a field of its
//! type. Each is dead at once, with its code, and changes nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use support::{Shop, Stage, eventually};
use towpath_market::topology::CONSUMERS;
use towpath_market::{EventType, Order, OrderStatus};

on_every_pair!(
    an_order_that_is_said_to_be_for_another_product_is_refused,
    an_amount_that_is_not_the_orders_is_refused,
    a_step_that_no_order_takes_is_refused,
    a_payment_of_an_order_that_is_not_paid_is_refused,
    a_step_that_the_order_has_not_taken_is_refused,
    each_missing_field_of_each_type_is_refused,
);

/// The fields of a type's payload, each with its value, as they would be right for an order.
fn fields(event_type: EventType, order: &Order) -> Vec<(&'static str, String)> {
    let time = || r#""2026-02-04T10:30:00Z""#.to_owned();
    let mut fields =
        vec![("orderId", order.order_id.to_string()), ("orderNo", format!("\"{}\"", order.order_no))];
    fields.extend(match event_type {
        EventType::OrderCreated => vec![
            ("buyerId", order.buyer_id.to_string()),
            ("sellerId", order.seller_id.to_string()),
            ("productId", order.product_id.to_string()),
            ("quantity", order.quantity.to_string()),
            ("price", order.price.to_string()),
        ],
        EventType::OrderPaid => vec![("payTime", time()), ("amount", order.total_amount.to_string())],
        EventType::OrderStatusChanged => vec![
            ("oldStatus", "\"paid\"".to_owned()),
            ("newStatus", "\"shipped\"".to_owned()),
            ("changedAt", time()),
        ],
        EventType::OrderTimeout => vec![("createTime", time())],
    });
    fields
}

/// The fields with one of them said otherwise.
fn but(
    fields: Vec<(&'static str, String)>,
    name: &str,
    value: impl Into<String>,
) -> Vec<(&'static str, String)> {
    let value = value.into();
    fields
        .into_iter()
        .map(|(found, usual)| (found, if found == name { value.clone() } else { usual }))
        .collect()
}

fn consumer_of(event_type: EventType) -> (&'static str, &'static str) {
    let (handler, queue, _) =
        CONSUMERS.into_iter().find(|(.., of)| *of == event_type).expect("each type has a consumer");
    (handler, queue)
}

/// Publishes a message about an order, with an id of its own, which it answers.
async fn say(stage: &Stage, event_type: EventType, order: &Order, fields: &[(&str, String)]) -> String {
    let (event_id, order_id) = (uuid::Uuid::now_v7().to_string(), order.order_id);
    let payload: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    let body = format!(
        r#"{{"eventId":"{event_id}","eventType":"{}","aggregateType":"Order","aggregateId":{order_id},"occurredAt":"{}","traceId":"trace-xxx","payload":{{{}}}}}"#,
        event_type.as_str(),
        chrono::Utc::now().to_rfc3339(),
        payload.join(",")
    );
    stage.publish(consumer_of(event_type).1, &event_id, &body).await;
    event_id
}

/// Publishes what is to be refused, and looks at how it was: at once, under this code.
async fn is_refused(
    stage: &Stage,
    shop: &Shop,
    event_type: EventType,
    order: &Order,
    fields: &[(&str, String)],
    code: &str,
) {
    let before = market_rows(stage).await;
    let (handler, _) = consumer_of(event_type);
    let retried = shop.seen.count(handler, "retried");
    let event_id = say(stage, event_type, order, fields).await;
    let letter = eventually("a dead letter", || async {
        let dead = shop.dead().await;
        dead.into_iter().find(|letter| letter.letter.message.message_id.as_deref() == Some(event_id.as_str()))
    })
    .await;
    let body = String::from_utf8_lossy(&letter.letter.message.body).into_owned();
    let reason = eventually("the reason", || async { shop.seen.reason_of(handler, &event_id) }).await;
    assert_eq!(reason, code, "{body}");
    assert_eq!(shop.seen.count(handler, "retried"), retried, "it cannot become right: {body}");
    assert_eq!(market_rows(stage).await, before, "nothing has changed: {body}");
}

/// What the consumers write, as texts.
async fn market_rows(stage: &Stage) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (table, columns) in [
        ("orders", ["order_id", "status", "status_changed_at"]),
        ("products", ["product_id", "status", "status_changed_at"]),
        ("shipments", ["order_id", "status", "status_changed_at"]),
        ("notifications", ["order_id", "status", "recipient_id"]),
        ("inventory", ["product_id", "order_count", "updated_at"]),
    ] {
        let columns = columns.map(|column| stage.as_text(column)).join(", ");
        rows.extend(stage.plain(&format!("SELECT {columns} FROM {table} ORDER BY 1, 2, 3")).await);
    }
    rows
}

async fn an_order_that_is_said_to_be_for_another_product_is_refused(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.seen.until("inventory.update", "handled", 1).await;
    let another = shop.product().await.product_id;
    let wrong = but(fields(EventType::OrderCreated, &order), "productId", another.to_string());
    is_refused(stage, &shop, EventType::OrderCreated, &order, &wrong, "market-wrong-product").await;
    shop.stop().await;
}

async fn an_amount_that_is_not_the_orders_is_refused(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.seen.until("inventory.update", "handled", 1).await;
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.seen.until("order.fulfillment", "handled", 1).await;
    for amount in ["88.51", "88.49", "0.00"] {
        let wrong = but(fields(EventType::OrderPaid, &order), "amount", amount);
        is_refused(stage, &shop, EventType::OrderPaid, &order, &wrong, "market-wrong-amount").await;
    }
    shop.stop().await;
}

async fn a_step_that_no_order_takes_is_refused(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.market.ship(order.order_id).await.unwrap();
    settled(&shop).await;
    for (old, new) in [
        ("pending", "paid"),
        ("shipped", "paid"),
        ("paid", "completed"),
        ("shipped", "shipped"),
        ("pending", "cancelled"),
    ] {
        let wrong = but(fields(EventType::OrderStatusChanged, &order), "oldStatus", format!("\"{old}\""));
        let wrong = but(wrong, "newStatus", format!("\"{new}\""));
        is_refused(stage, &shop, EventType::OrderStatusChanged, &order, &wrong, "market-wrong-step").await;
    }
    // A word that is no status cannot be read at all.
    let wrong = but(fields(EventType::OrderStatusChanged, &order), "newStatus", "\"lost\"");
    is_refused(stage, &shop, EventType::OrderStatusChanged, &order, &wrong, "invalid-payload").await;
    shop.stop().await;
}

/// All that follows from an order that was paid and shipped has happened.
async fn settled(shop: &Shop) {
    for handler in ["inventory.update", "order.fulfillment", "order.status.sync"] {
        shop.seen.until(handler, "handled", 1).await;
    }
}

async fn a_payment_of_an_order_that_is_not_paid_is_refused(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.seen.until("inventory.update", "handled", 1).await;
    let right = fields(EventType::OrderPaid, &order);
    is_refused(stage, &shop, EventType::OrderPaid, &order, &right, "order-wrong-status").await;
    shop.market.cancel(order.order_id, None).await.unwrap();
    is_refused(stage, &shop, EventType::OrderPaid, &order, &right, "order-wrong-status").await;
    shop.stop().await;
}

async fn a_step_that_the_order_has_not_taken_is_refused(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.seen.until("inventory.update", "handled", 1).await;
    shop.seen.until("order.fulfillment", "handled", 1).await;
    let shipped = fields(EventType::OrderStatusChanged, &order);
    is_refused(stage, &shop, EventType::OrderStatusChanged, &order, &shipped, "order-wrong-status").await;
    shop.market.ship(order.order_id).await.unwrap();
    shop.seen.until("order.status.sync", "handled", 1).await;
    let completed = but(shipped, "oldStatus", "\"shipped\"");
    let completed = but(completed, "newStatus", "\"completed\"");
    is_refused(stage, &shop, EventType::OrderStatusChanged, &order, &completed, "order-wrong-status").await;
    assert_eq!(shop.market.order(order.order_id).await.unwrap().status, OrderStatus::Shipped);
    shop.stop().await;
}

async fn each_missing_field_of_each_type_is_refused(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.market.ship(order.order_id).await.unwrap();
    settled(&shop).await;
    let mut refused = 0;
    for event_type in EventType::ALL {
        let whole = fields(event_type, &order);
        for (missing, _) in &whole {
            let rest: Vec<_> = whole.iter().filter(|(name, _)| name != missing).cloned().collect();
            is_refused(stage, &shop, event_type, &order, &rest, "invalid-payload").await;
            refused += 1;
        }
        // The same message with all of its fields is handled.
        let (handler, _) = consumer_of(event_type);
        let handled = shop.seen.count(handler, "handled");
        say(stage, event_type, &order, &whole).await;
        shop.seen.until(handler, "handled", handled + 1).await;
    }
    assert_eq!(refused, 7 + 4 + 5 + 3, "each field of section 13");
    shop.stop().await;
}
