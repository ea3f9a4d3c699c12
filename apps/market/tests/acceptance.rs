//! The acceptance list (section 16 of the contract) and its regression data (section 17): a test for each line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::log::Log;
use support::{Stage, eventually, pending};
use towpath::ids::{AggregateKey, CorrelationId, EventId};
use towpath::name::EventName;
use towpath::ports::clock::Clock as _;
use towpath::ports::store::StoreTx as _;
use towpath::ports::store::{Append, Expected, NewEvent, Routing};
use towpath::{ChangeContext, Coded as _, Payload};
use towpath_market::{MarketError, OrderStatus, ProductStatus, ShipmentStatus};
use towpath_testkit::VirtualClock;

on_every_pair!(
    line_16_1_1_the_broker_is_there_and_has_the_exchange_and_the_queues,
    line_16_1_2_a_placed_order_is_in_the_outbox_and_goes_out_as_order_created,
    line_16_1_3_the_inventory_consumer_handles_it,
    line_16_2_1_a_payment_begins_the_shipment,
    line_16_2_2_a_change_of_status_is_told_to_people,
    line_16_2_3_a_timeout_message_cancels_the_order,
    line_16_3_1_a_failed_transaction_sends_nothing,
    line_16_3_2_a_committed_transaction_is_in_the_outbox,
    line_16_3_3_a_failed_publishing_is_retried_and_then_failed,
    line_16_4_1_a_message_that_comes_again_is_not_handled_again,
    line_16_4_2_a_message_that_fails_goes_to_the_dead_letter_queue,
    line_16_4_3_a_dead_letter_raises_an_alarm_and_is_replayed_by_hand,
    datum_17_1_a_fixed_pending_order_can_be_paid_or_times_out,
    datum_17_2_a_fixed_paid_order_is_shipped,
    datum_17_3_a_fixed_event_with_the_same_id_has_one_effect,
);

async fn line_16_1_1_the_broker_is_there_and_has_the_exchange_and_the_queues(stage: &Stage) {
    let shop = stage.open().await;
    if let Some(host) = stage.host() {
        let exchanges = host.exchanges().await;
        let exchange =
            exchanges.as_array().unwrap().iter().find(|one| one["name"] == "order.events.exchange");
        let exchange = exchange.expect("the exchange");
        assert_eq!((exchange["type"].as_str(), exchange["durable"].as_bool()), (Some("topic"), Some(true)));
        let dead = serde_json::json!({
            "x-dead-letter-exchange": "order.events.exchange", "x-dead-letter-routing-key": "order.dlq",
        });
        let delay = serde_json::json!({
            "x-message-ttl": 900_000, "x-dead-letter-exchange": "order.events.exchange",
            "x-dead-letter-routing-key": "order.timeout",
        });
        let queues = host.queues().await;
        let mut found: Vec<(&str, &serde_json::Value)> = queues
            .as_array()
            .unwrap()
            .iter()
            .map(|queue| (queue["name"].as_str().unwrap(), &queue["arguments"]))
            .collect();
        found.sort_by_key(|(name, _)| *name);
        let empty = serde_json::json!({});
        assert_eq!(
            found,
            [
                ("inventory.update.queue", &dead),
                ("order.dlq.queue", &empty),
                ("order.fulfillment.queue", &dead),
                ("order.status.sync.queue", &dead),
                ("order.timeout.delay.queue", &delay),
                ("order.timeout.queue", &dead),
            ]
        );
        let bindings = host.bindings().await;
        let mut bound: Vec<(&str, &str)> = bindings
            .as_array()
            .unwrap()
            .iter()
            .filter(|binding| binding["source"] == "order.events.exchange")
            .map(|binding| {
                (binding["routing_key"].as_str().unwrap(), binding["destination"].as_str().unwrap())
            })
            .collect();
        bound.sort_unstable();
        assert_eq!(
            bound,
            [
                ("order.created", "inventory.update.queue"),
                ("order.dlq", "order.dlq.queue"),
                ("order.paid", "order.fulfillment.queue"),
                ("order.status.changed", "order.status.sync.queue"),
                ("order.timeout", "order.timeout.queue"),
                ("order.timeout.delay", "order.timeout.delay.queue"),
            ]
        );
    }
    // What is on the broker is what was declared: another time to pay is not what is there.
    let other = pending(Duration::from_secs(60));
    let refused = stage.try_open(&stage.broker_url, other).await.err().expect("a refusal");
    assert_eq!(refused.code(), "topology-mismatch", "{}", refused.report());
    assert!(refused.report().contains("order.timeout.delay.queue"), "{}", refused.report());
    shop.stop().await;
}

async fn line_16_1_2_a_placed_order_is_in_the_outbox_and_goes_out_as_order_created(stage: &Stage) {
    let shop = stage.open().await;
    let tap = stage.tap().await;
    let order = shop.order().await;
    let written = stage.outbox().await;
    assert!(written.iter().any(|(event_type, ..)| event_type == "ORDER_CREATED"), "{written:?}");
    let message = tap.next_of("ORDER_CREATED").await;
    assert_eq!(message.destination.exchange, "order.events.exchange");
    assert_eq!(message.destination.routing_key, "order.created");
    let body: serde_json::Value = serde_json::from_slice(&message.body).unwrap();
    assert_eq!(body["aggregateId"], order.order_id);
    assert_eq!(body["payload"]["orderNo"], order.order_no.as_str());
    eventually("SENT", || async { (stage.outbox_of("ORDER_CREATED").await == ["SENT"]).then_some(()) }).await;
    tap.close().await;
    shop.stop().await;
}

async fn line_16_1_3_the_inventory_consumer_handles_it(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.seen.until("inventory.update", "handled", 1).await;
    let inventory = shop.market.inventory(order.product_id).await.unwrap().unwrap();
    assert!(!inventory.is_available);
    assert_eq!((inventory.order_count, inventory.last_order_id), (1, order.order_id));
    assert_eq!(stage.consumed().await, ["inventory.update"]);
    shop.stop().await;
}

async fn line_16_2_1_a_payment_begins_the_shipment(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    assert_eq!(shop.market.shipment(order.order_id).await.unwrap(), None);
    let paid = shop.market.pay(order.order_id, None).await.unwrap();
    assert_eq!(paid.status, OrderStatus::Paid);
    shop.seen.until("order.fulfillment", "handled", 1).await;
    let shipment = shop.market.shipment(order.order_id).await.unwrap().unwrap();
    assert_eq!(shipment.status, ShipmentStatus::Preparing);
    shop.stop().await;
}

async fn line_16_2_2_a_change_of_status_is_told_to_people(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.market.ship(order.order_id).await.unwrap();
    shop.seen.until("order.status.sync", "handled", 1).await;
    shop.market.complete(order.order_id).await.unwrap();
    shop.seen.until("order.status.sync", "handled", 2).await;
    let mut told: Vec<_> = shop.market.notifications(order.order_id).await.unwrap();
    told.sort_by_key(|one| (one.status, one.recipient_id));
    let told: Vec<_> = told.iter().map(|one| (one.status, one.recipient_id)).collect();
    assert_eq!(
        told,
        [(OrderStatus::Shipped, 10001), (OrderStatus::Completed, 10001), (OrderStatus::Completed, 10002)]
    );
    assert_eq!(shop.market.credit(10001).await.unwrap().unwrap().completed_count, 1);
    shop.stop().await;
}

async fn line_16_2_3_a_timeout_message_cancels_the_order(stage: &Stage) {
    let shop = stage.open_with(pending(Duration::from_millis(500))).await;
    let order = shop.order().await;
    shop.seen.until("order.timeout", "handled", 1).await;
    let cancelled = shop.market.order(order.order_id).await.unwrap();
    assert_eq!(cancelled.status, OrderStatus::Cancelled);
    assert_eq!(cancelled.cancel_reason.as_deref(), Some("timeout"));
    assert_eq!(shop.market.product(order.product_id).await.unwrap().status, ProductStatus::OnSale);
    assert_eq!(shop.market.credit(10001).await.unwrap().unwrap().timeout_count, 1);
    // It is for sale again, and somebody else can have it.
    shop.market.place(order.product_id, 10003).await.unwrap();
    shop.stop().await;
}

async fn line_16_3_1_a_failed_transaction_sends_nothing(stage: &Stage) {
    let shop = stage.open().await;
    let tap = stage.tap().await;
    let product = shop.product().await;
    // The first order's number is known; that its aggregate is taken is only found after the product was taken and the
    // order was written, in the same transaction.
    let key = AggregateKey::new("Order", "900001").unwrap();
    let in_the_way = Append {
        aggregate: key,
        expected: Expected::New,
        events: vec![NewEvent {
            event_id: EventId(uuid::Uuid::now_v7()),
            event_type: EventName::from_stored("test.happened"),
            schema_version: 1,
            payload: Payload::empty(),
            channels: Routing::Nowhere,
        }],
        snapshot: None,
        state_changes: vec![],
        deadline: Default::default(),
        context: ChangeContext::new(chrono::Utc::now(), CorrelationId::new("flow-test").unwrap()),
    };
    let mut transaction = shop.app.store().open_transaction().await.unwrap();
    transaction.append(&in_the_way).await.unwrap();
    transaction.finish().await.unwrap();
    let failed = shop.market.place(product.product_id, 10001).await.unwrap_err();
    assert!(matches!(failed, MarketError::Store(_)), "{failed:?}");
    assert_eq!(shop.market.product(product.product_id).await.unwrap().status, ProductStatus::OnSale);
    assert!(shop.market.orders(&Default::default(), Default::default()).await.unwrap().is_empty());
    assert!(stage.outbox().await.is_empty());
    // The next number is free, and one order is one order. Its message is the first one.
    let order = shop.market.place(product.product_id, 10001).await.unwrap();
    let first: serde_json::Value = serde_json::from_slice(&tap.next_of("ORDER_CREATED").await.body).unwrap();
    assert_eq!(first["aggregateId"], order.order_id);
    shop.seen.until("inventory.update", "handled", 1).await;
    assert_eq!(shop.market.inventory(order.product_id).await.unwrap().unwrap().order_count, 1);
    assert_eq!(stage.outbox_of("ORDER_CREATED").await.len(), 1);
    tap.close().await;
    shop.stop().await;
}

async fn line_16_3_2_a_committed_transaction_is_in_the_outbox(stage: &Stage) {
    let shop = stage.open_without_workers().await;
    let order = shop.order().await;
    let new = |event_type: &str| (event_type.to_owned(), "NEW".to_owned(), 0);
    assert_eq!(stage.outbox().await, [new("ORDER_CREATED"), new("ORDER_TIMEOUT")]);
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.market.ship(order.order_id).await.unwrap();
    shop.market.complete(order.order_id).await.unwrap();
    let steps = [new("ORDER_PAID"), new("ORDER_STATUS_CHANGED"), new("ORDER_STATUS_CHANGED")];
    assert_eq!(stage.outbox().await[2..], steps);
    shop.stop().await;
}

async fn line_16_3_3_a_failed_publishing_is_retried_and_then_failed(stage: &Stage) {
    let log = Log::of_this_process();
    let clock = Arc::new(VirtualClock::at(chrono::Utc::now()));
    let shop = stage.open_at(&clock).await;
    stage.unbind("order.fulfillment.queue", "order.paid").await;
    let order = shop.order().await;
    shop.market.pay(order.order_id, None).await.unwrap();
    let sql = format!(
        "SELECT {}, status, {}, {} FROM outbox_events WHERE event_type = 'ORDER_PAID'",
        stage.as_text("event_id"),
        stage.as_text("retry_count"),
        stage.as_text("next_retry_time")
    );
    let sql = sql.as_str();
    let until = |status: &'static str, failures: &'static str| {
        eventually(status, move || async move {
            let row = stage.plain(sql).await.pop()?;
            (row[1] == status && row[2] == failures).then_some(row)
        })
    };
    // Returned by the broker, and tried again after 5 seconds, 30 seconds and 2 minutes: nothing moves before its time.
    let mut event_id = String::new();
    for (failures, seconds) in [("1", 5), ("2", 30), ("3", 120)] {
        let row = until("RETRY", failures).await;
        let next = clock.now() + Duration::from_secs(seconds);
        assert_eq!(row[3], next.format("%Y-%m-%d %H:%M:%S").to_string(), "after failure {failures}");
        event_id.clone_from(&row[0]);
        clock.advance(Duration::from_secs(seconds));
    }
    let failed = until("FAILED", "4").await;
    assert_eq!(failed[0], event_id, "the first attempt and three more, of the same event");
    let filter = towpath::ports::store::FailedFilter::default();
    let rows = shop.app.outbox().failed(&filter, 0, 10).await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].row.status_reason.as_deref(), Some("unroutable"), "with its reason");
    eventually("the others go on", || async {
        (stage.outbox_of("ORDER_CREATED").await == ["SENT"]).then_some(())
    })
    .await;
    // Told in the frozen words each time, and the last time as an alarm.
    let alarms = eventually("the alarm", || async {
        let alarms = log.lines(Some("market-publishing-failed"), &event_id);
        (!alarms.is_empty()).then_some(alarms)
    })
    .await;
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    let told = log.lines(None, &event_id);
    let told: Vec<_> = told.iter().filter(|line| line["message"] == "消息发送失败").collect();
    assert_eq!(told.len(), 3, "{told:?}");
    for (line, level) in told.into_iter().map(|line| (line, "WARN")).chain([(&alarms[0], "ERROR")]) {
        let said =
            ["level", "message", "queue", "consumer", "reason"].map(|field| line[field].as_str().unwrap());
        assert_eq!(said, [level, "消息发送失败", "order.fulfillment.queue", "", "unroutable"]);
        assert_eq!(line["eventId"], event_id.as_str());
        assert!(!line["traceId"].as_str().unwrap().is_empty(), "{line}");
    }
    shop.stop().await;
}

async fn line_16_4_1_a_message_that_comes_again_is_not_handled_again(stage: &Stage) {
    let shop = stage.open().await;
    let tap = stage.tap().await;
    let order = shop.order().await;
    let message = tap.next_of("ORDER_CREATED").await;
    shop.seen.until("inventory.update", "handled", 1).await;
    let body = String::from_utf8(message.body).unwrap();
    for _ in 0..3 {
        stage.publish("inventory.update.queue", message.message_id.as_deref().unwrap(), &body).await;
    }
    shop.seen.until("inventory.update", "duplicate", 3).await;
    assert_eq!(shop.market.inventory(order.product_id).await.unwrap().unwrap().order_count, 1);
    assert_eq!(stage.consumed().await, ["inventory.update"], "one line in the log");
    tap.close().await;
    shop.stop().await;
}

/// A message about an order, with what it says.
fn message(event_type: &str, order_id: i64, payload: &str) -> (String, String) {
    let event_id = uuid::Uuid::now_v7().to_string();
    let body = format!(
        r#"{{"eventId":"{event_id}","eventType":"{event_type}","aggregateType":"Order","aggregateId":{order_id},"occurredAt":"2026-02-04T10:30:00Z","traceId":"trace-xxx","payload":{payload}}}"#
    );
    (event_id, body)
}

async fn line_16_4_2_a_message_that_fails_goes_to_the_dead_letter_queue(stage: &Stage) {
    let log = Log::of_this_process();
    let shop = stage.open().await;
    let payload = r#"{"orderId":1,"orderNo":"x","payTime":"2026-02-04T10:30:00Z","amount":1.00}"#;
    let (event_id, body) = message("ORDER_PAID", 1, payload);
    stage.publish("order.fulfillment.queue", &event_id, &body).await;
    let dead = eventually("a dead letter", || async { shop.dead().await.pop() }).await;
    assert_eq!(dead.letter.message.body, body.as_bytes());
    let from = dead.letter.message.headers.iter().find(|(name, _)| name == "x-first-death-queue");
    assert_eq!(from.unwrap().1, "order.fulfillment.queue");
    assert_eq!(dead.letter.message.queue, "order.dlq.queue");
    assert!(stage.consumed().await.is_empty());
    let told = log.lines(Some("market-delivery-given-up"), &event_id);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(
        (told[0]["message"].as_str(), told[0]["reason"].as_str()),
        (Some("消息消费失败"), Some("order-unknown"))
    );
    shop.stop().await;
}

async fn line_16_4_3_a_dead_letter_raises_an_alarm_and_is_replayed_by_hand(stage: &Stage) {
    let log = Log::of_this_process();
    let shop = stage.open().await;
    let order = shop.order().await;
    // The message is about an order that is not paid: wrong now, and right once it is.
    let payload = format!(
        r#"{{"orderId":{},"orderNo":"{}","payTime":"2026-02-04T10:30:00Z","amount":88.50}}"#,
        order.order_id, order.order_no
    );
    let (event_id, body) = message("ORDER_PAID", order.order_id, &payload);
    stage.publish("order.fulfillment.queue", &event_id, &body).await;
    let dead = eventually("a dead letter", || async { shop.dead().await.pop() }).await;
    eventually("the alarm", || async { (shop.seen.deaths() == 1).then_some(()) }).await;
    let alarms = log.lines(Some("market-dead-letter"), &event_id);
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    let said = ["level", "message", "queue"].map(|field| alarms[0][field].as_str().unwrap());
    assert_eq!(said, ["ERROR", "消息消费失败", "order.dlq.queue"]);
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.seen.until("order.fulfillment", "handled", 1).await;
    shop.app.dead_letters().replay(dead.letter_id, false).await.unwrap();
    shop.seen.until("order.fulfillment", "handled", 2).await;
    let shipment = shop.market.shipment(order.order_id).await.unwrap().unwrap();
    assert_eq!(shipment.status, ShipmentStatus::Preparing, "one shipment, however often it is asked for");
    shop.stop().await;
}

async fn datum_17_1_a_fixed_pending_order_can_be_paid_or_times_out(stage: &Stage) {
    let settings = pending(Duration::from_millis(700));
    // Nobody closes any of them before one is paid, however long that takes.
    let till = stage.open_without_workers_with(settings.clone()).await;
    let (paid, unpaid) = (till.order().await, till.order().await);
    for order in [&paid, &unpaid] {
        assert_eq!(till.market.order(order.order_id).await.unwrap().status, OrderStatus::Pending);
    }
    till.market.pay(paid.order_id, Some("88.50".parse().unwrap())).await.unwrap();
    let shop = stage.open_with(settings).await;
    shop.seen.until("order.timeout", "handled", 2).await;
    assert_eq!(shop.market.order(paid.order_id).await.unwrap().status, OrderStatus::Paid);
    assert_eq!(shop.market.order(unpaid.order_id).await.unwrap().status, OrderStatus::Cancelled);
    till.stop().await;
    shop.stop().await;
}

async fn datum_17_2_a_fixed_paid_order_is_shipped(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.market.pay(order.order_id, None).await.unwrap();
    shop.seen.until("order.fulfillment", "handled", 1).await;
    let shipped = shop.market.ship(order.order_id).await.unwrap();
    assert_eq!(shipped.status, OrderStatus::Shipped);
    let shipment = shop.market.shipment(order.order_id).await.unwrap().unwrap();
    assert_eq!(shipment.status, ShipmentStatus::Shipped);
    let again = shop.market.ship(order.order_id).await.unwrap_err();
    assert_eq!(again.code(), "order-wrong-status", "an order is shipped once");
    shop.stop().await;
}

async fn datum_17_3_a_fixed_event_with_the_same_id_has_one_effect(stage: &Stage) {
    let shop = stage.open().await;
    let order = shop.order().await;
    shop.seen.until("inventory.update", "handled", 1).await;
    let payload = format!(
        r#"{{"orderId":{},"orderNo":"{}","buyerId":10001,"sellerId":10002,"productId":{},"quantity":1,"price":88.50}}"#,
        order.order_id, order.order_no, order.product_id
    );
    let (event_id, body) = message("ORDER_CREATED", order.order_id, &payload);
    for _ in 0..3 {
        stage.publish("inventory.update.queue", &event_id, &body).await;
    }
    shop.seen.until("inventory.update", "duplicate", 2).await;
    assert_eq!(shop.seen.count("inventory.update", "handled"), 2, "its own message, and the fixed one once");
    let inventory = shop.market.inventory(order.product_id).await.unwrap().unwrap();
    assert_eq!(inventory.order_count, 1, "and an order is counted once, whatever the ids of its messages");
    let lines = stage.plain(&format!("SELECT {} FROM event_consume_log", stage.as_text("event_id"))).await;
    assert_eq!(lines.iter().filter(|line| line[0] == event_id).count(), 1);
    shop.stop().await;
}
