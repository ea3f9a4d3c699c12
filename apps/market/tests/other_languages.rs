//! Messages as a client in another language sees them: Python's pika reads bodies and properties, and they are the
//! contract field by field.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use serde_json::Value;
use support::{Pair, Stage, variable};

/// Reads so many messages from a queue that it binds to everything; tells when it is ready, then a line of JSON for each.
const PROGRAM: &str = include_str!("support/read_with_pika.py");

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pika_reads_each_message_of_the_contract_field_by_field() {
    let python = variable("TOWPATH_TEST_PYTHON");
    let stage = Stage::new(Pair::MariaDbRabbitMq).await;
    let shop = stage.open().await;
    let url = stage.broker_url.clone();
    let (ready, mut is_ready) = tokio::sync::mpsc::unbounded_channel();
    let reading = tokio::task::spawn_blocking(move || {
        use std::io::BufRead as _;
        let mut child = std::process::Command::new(python)
            .args(["-c", PROGRAM, &url, "5"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("python");
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("ready"));
        ready.send(()).unwrap();
        let messages: Vec<Value> = lines.map(|line| serde_json::from_str(&line).unwrap()).collect();
        assert!(child.wait().unwrap().success());
        messages
    });
    is_ready.recv().await.unwrap();
    let order = shop.order().await;
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.market.ship(order.order_id).await.unwrap();
    shop.market.complete(order.order_id).await.unwrap();
    let mut messages = reading.await.unwrap();
    let order = shop.market.order(order.order_id).await.unwrap();

    let seconds =
        |moment: chrono::DateTime<chrono::Utc>| moment.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    let general = serde_json::json!({
        "orderId": order.order_id, "orderNo": order.order_no, "buyerId": 10001, "sellerId": 10002,
        "totalAmount": "decimal 88.50",
    });
    let expected = [
        (
            ("ORDER_CREATED", "order.created", order.create_time),
            serde_json::json!({ "productId": order.product_id, "quantity": 1, "price": "decimal 88.50" }),
        ),
        (
            ("ORDER_PAID", "order.paid", order.pay_time.unwrap()),
            serde_json::json!({ "payTime": seconds(order.pay_time.unwrap()), "amount": "decimal 88.50" }),
        ),
        (
            ("ORDER_STATUS_CHANGED", "order.status.changed", order.ship_time.unwrap()),
            serde_json::json!({
                "oldStatus": "paid", "newStatus": "shipped", "changedAt": seconds(order.ship_time.unwrap()),
            }),
        ),
        (
            ("ORDER_STATUS_CHANGED", "order.status.changed", order.complete_time.unwrap()),
            serde_json::json!({
                "oldStatus": "shipped", "newStatus": "completed", "changedAt": seconds(order.complete_time.unwrap()),
            }),
        ),
        (
            ("ORDER_TIMEOUT", "order.timeout.delay", order.create_time),
            serde_json::json!({ "createTime": seconds(order.create_time) }),
        ),
    ];
    // Each goes out for itself: the order is not part of the contract.
    let place = |event_type: &str, own: &Value| {
        (event_type.to_owned(), own["newStatus"].as_str().unwrap_or_default().to_owned())
    };
    messages.sort_by_key(|message| place(message["type"].as_str().unwrap(), &message["body"]["payload"]));
    let mut expected_by_type = expected.to_vec();
    expected_by_type.sort_by_key(|((event_type, ..), own)| place(event_type, own));
    assert_eq!(messages.len(), 5);
    let ids: std::collections::BTreeSet<&str> =
        messages.iter().filter_map(|message| message["body"]["eventId"].as_str()).collect();
    assert_eq!(ids.len(), 5, "no id is used twice: {ids:?}");
    for (message, ((event_type, key, at), own)) in messages.iter().zip(&expected_by_type) {
        let mut payload = general.clone();
        payload.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        let body = &message["body"];
        let fields =
            ["eventId", "eventType", "aggregateType", "aggregateId", "occurredAt", "traceId", "payload"];
        assert_eq!(message["order"], serde_json::json!(fields), "these fields and no others");
        assert_eq!(body["eventType"], *event_type);
        assert_eq!(body["aggregateType"], "Order");
        assert_eq!(body["aggregateId"], order.order_id, "a number, and the payload's order");
        assert_eq!(body["occurredAt"], seconds(*at));
        assert!(body["traceId"].as_str().unwrap().starts_with("trace-"));
        assert_eq!(body["payload"], payload);
        let event_id = body["eventId"].as_str().unwrap();
        assert!(uuid::Uuid::parse_str(event_id).is_ok());
        assert_eq!(message["message_id"], event_id);
        assert_eq!(
            (message["exchange"].as_str(), message["key"].as_str()),
            (Some("order.events.exchange"), Some(*key))
        );
        assert_eq!(message["content_type"], "application/json");
        assert_eq!(message["delivery_mode"], 2, "it survives a restart of the broker");
    }
    shop.stop().await;
}
