//! What follows from messages happens once per order, also when two messages with ids of their own say the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use support::{Shop, Stage};
use towpath_market::{Order, OrderStatus, ShipmentStatus};

on_every_pair!(
    an_order_is_counted_once_in_the_inventory,
    people_are_told_once_of_each_status,
    a_shipment_is_begun_once,
);

/// Publishes a message about an order, with an id of its own.
async fn say(stage: &Stage, queue: &str, event_type: &str, order: &Order, own: &str) {
    let (event_id, order_id, order_no) = (uuid::Uuid::now_v7(), order.order_id, &order.order_no);
    let body = format!(
        r#"{{"eventId":"{event_id}","eventType":"{event_type}","aggregateType":"Order","aggregateId":{order_id},"occurredAt":"2026-02-04T10:30:00Z","traceId":"trace-xxx","payload":{{"orderId":{order_id},"orderNo":"{order_no}",{own}}}}}"#
    );
    stage.publish(queue, &event_id.to_string(), &body).await;
}

async fn an_order_is_counted_once_in_the_inventory(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    let own = format!(
        r#""buyerId":10001,"sellerId":10002,"productId":{},"quantity":1,"price":88.50"#,
        order.product_id
    );
    for _ in 0..4 {
        say(stage, "inventory.update.queue", "ORDER_CREATED", &order, &own).await;
    }
    shop.seen.until("inventory.update", "handled", 5).await;
    assert_eq!(count(&shop, &order).await, 1);
    // Another order of the same product is another one.
    shop.market.cancel(order.order_id, None).await.unwrap();
    let again = shop.market.place(order.product_id, 10003).await.unwrap();
    shop.seen.until("inventory.update", "handled", 6).await;
    assert_eq!(count(&shop, &order).await, 2);
    // What is told late about the first one changes nothing: the product's own status is what is so.
    say(stage, "inventory.update.queue", "ORDER_CREATED", &order, &own).await;
    shop.seen.until("inventory.update", "handled", 7).await;
    let inventory = shop.market.inventory(order.product_id).await.unwrap().unwrap();
    assert_eq!((inventory.order_count, inventory.is_available), (2, false));
    assert_eq!(inventory.last_order_id, again.order_id);
    shop.stop().await;
}

async fn count(shop: &Shop, order: &Order) -> i64 {
    shop.market.inventory(order.product_id).await.unwrap().unwrap().order_count
}

async fn people_are_told_once_of_each_status(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.market.ship(order.order_id).await.unwrap();
    shop.market.complete(order.order_id).await.unwrap();
    for (old, new) in [("paid", "shipped"), ("shipped", "completed")] {
        let own = format!(r#""oldStatus":"{old}","newStatus":"{new}","changedAt":"2026-02-04T10:30:00Z""#);
        for _ in 0..3 {
            say(stage, "order.status.sync.queue", "ORDER_STATUS_CHANGED", &order, &own).await;
        }
    }
    shop.seen.until("order.status.sync", "handled", 8).await;
    let told = shop.market.notifications(order.order_id).await.unwrap();
    let mut told: Vec<_> = told.iter().map(|one| (one.status, one.recipient_id)).collect();
    told.sort_unstable();
    assert_eq!(
        told,
        [(OrderStatus::Shipped, 10001), (OrderStatus::Completed, 10001), (OrderStatus::Completed, 10002)]
    );
    shop.stop().await;
}

async fn a_shipment_is_begun_once(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.seen.until("order.fulfillment", "handled", 1).await;
    let begun = shop.market.shipment(order.order_id).await.unwrap().unwrap();
    let own = r#""payTime":"2026-02-04T10:30:00Z","amount":88.50"#;
    for _ in 0..3 {
        say(stage, "order.fulfillment.queue", "ORDER_PAID", &order, own).await;
    }
    shop.seen.until("order.fulfillment", "handled", 4).await;
    assert_eq!(shop.market.shipment(order.order_id).await.unwrap().unwrap(), begun);
    shop.market.ship(order.order_id).await.unwrap();
    say(stage, "order.fulfillment.queue", "ORDER_PAID", &order, own).await;
    shop.seen.until("order.fulfillment", "handled", 5).await;
    let shipment = shop.market.shipment(order.order_id).await.unwrap().unwrap();
    assert_eq!(shipment.status, ShipmentStatus::Shipped, "what has left is not made ready again");
    shop.stop().await;
}
