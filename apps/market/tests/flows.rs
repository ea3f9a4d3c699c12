//! An order is one flow: it begins with ORDER_CREATED, and every later fact names the one that led to it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use support::{Pair, Shop, Stage, eventually, pending};
use towpath::ids::AggregateKey;
use towpath_market::Order;

on_every_pair!(
    the_flow_of_a_completed_order_is_whole,
    the_flow_of_a_cancelled_order_is_whole,
    a_cancellation_by_the_timeout_message_names_its_timeout,
    a_cancellation_by_the_job_names_its_timeout,
    a_timeout_message_from_elsewhere_leaves_the_flow_whole,
);

/// What is known of one fact of a flow: its type and the type of its cause.
type Links = Vec<(String, Option<String>)>;

/// The facts of an order with their causes, after its flow was found to be whole.
async fn whole_flow(shop: &Shop, order: &Order) -> Links {
    let key = AggregateKey::new("Order", order.order_id.to_string()).unwrap();
    let facts = shop.app.events_of(&key, 0, 100).await.unwrap();
    let flow = facts[0].envelope.correlation_id.clone();
    let uuid = flow.as_str().strip_prefix("flow-").unwrap_or_else(|| panic!("{flow} is no flow-<uuid>"));
    assert!(uuid::Uuid::parse_str(uuid).is_ok(), "{flow}");
    assert!(facts.iter().all(|fact| fact.envelope.correlation_id == flow), "one flow: {facts:?}");
    let (found, report) = shop.app.flow(&flow, &[]).await.unwrap();
    assert!(report.whole, "{report:?}");
    assert_eq!(report.roots, [facts[0].envelope.event_id.to_string()], "one beginning");
    assert_eq!(found.events.len(), facts.len(), "all of the order, and nothing else");
    let types: BTreeMap<String, String> = facts
        .iter()
        .map(|fact| (fact.envelope.event_id.to_string(), fact.envelope.event_type.to_string()))
        .collect();
    facts
        .iter()
        .map(|fact| {
            let cause = fact.envelope.causation_id.as_ref().map(|cause| types[cause.as_str()].clone());
            (fact.envelope.event_type.to_string(), cause)
        })
        .collect()
}

fn links(expected: &[(&str, Option<&str>)]) -> Links {
    expected.iter().map(|(of, cause)| ((*of).to_owned(), cause.map(str::to_owned))).collect()
}

async fn the_flow_of_a_completed_order_is_whole(stage: &Stage) {
    let shop = stage.open().await;
    let (order, other) = (shop.order().await, shop.order().await);
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.market.ship(order.order_id).await.unwrap();
    shop.market.complete(order.order_id).await.unwrap();
    let expected = [
        ("ORDER_CREATED", None),
        ("ORDER_TIMEOUT", Some("ORDER_CREATED")),
        ("ORDER_PAID", Some("ORDER_CREATED")),
        ("ORDER_STATUS_CHANGED", Some("ORDER_PAID")),
        ("ORDER_STATUS_CHANGED", Some("ORDER_STATUS_CHANGED")),
    ];
    assert_eq!(whole_flow(&shop, &order).await, links(&expected));
    assert_eq!(whole_flow(&shop, &other).await, links(&expected[..2]), "another order is another flow");
    shop.stop().await;
}

async fn the_flow_of_a_cancelled_order_is_whole(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let order = shop.order().await;
    shop.market.cancel(order.order_id, None).await.unwrap();
    let expected = [
        ("ORDER_CREATED", None),
        ("ORDER_TIMEOUT", Some("ORDER_CREATED")),
        ("market.order.cancelled", Some("ORDER_CREATED")),
    ];
    assert_eq!(whole_flow(&shop, &order).await, links(&expected));
    shop.stop().await;
}

const TIMED_OUT: [(&str, Option<&str>); 3] = [
    ("ORDER_CREATED", None),
    ("ORDER_TIMEOUT", Some("ORDER_CREATED")),
    ("market.order.cancelled", Some("ORDER_TIMEOUT")),
];

async fn a_cancellation_by_the_timeout_message_names_its_timeout(stage: &Stage) {
    let shop = stage.open_with(pending(Duration::from_millis(300))).await;
    let order = shop.order().await;
    shop.seen.until("order.timeout", "handled", 1).await;
    assert_eq!(whole_flow(&shop, &order).await, links(&TIMED_OUT));
    shop.stop().await;
}

async fn a_cancellation_by_the_job_names_its_timeout(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let market = towpath_market::Market::open(&shop.app, pending(Duration::from_millis(1)));
    let order = shop.order().await;
    eventually("closed", || async { (market.close_overdue().await.unwrap() == 1).then_some(()) }).await;
    assert_eq!(whole_flow(&shop, &order).await, links(&TIMED_OUT));
    shop.stop().await;
}

/// Somebody publishes a timeout of their own: its id is not in the log, and cannot be a cause there.
async fn a_timeout_message_from_elsewhere_leaves_the_flow_whole(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    let an_hour_earlier = match stage.pair {
        Pair::MariaDbRabbitMq => "create_time - INTERVAL 1 HOUR",
        Pair::PostgresRabbitMq => "create_time - interval '1 hour'",
        Pair::SqliteLocal => "create_time - 3600000000",
    };
    stage.command(&format!("UPDATE orders SET create_time = {an_hour_earlier}")).await;
    let event_id = uuid::Uuid::now_v7();
    let body = format!(
        r#"{{"eventId":"{event_id}","eventType":"ORDER_TIMEOUT","aggregateType":"Order","aggregateId":{},"occurredAt":"2026-02-04T10:30:00Z","traceId":"t","payload":{{"orderId":{},"orderNo":"{}","createTime":"2026-02-04T10:30:00Z"}}}}"#,
        order.order_id, order.order_id, order.order_no
    );
    stage.publish("order.timeout.queue", &event_id.to_string(), &body).await;
    eventually("closed", || async {
        shop.market.order(order.order_id).await.unwrap().cancel_time.map(|_| ())
    })
    .await;
    assert_eq!(whole_flow(&shop, &order).await, links(&TIMED_OUT));
    shop.stop().await;
}
