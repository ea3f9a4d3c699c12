//! Broken messages, published by hand: each lands in the dead-letter queue once, with its log line and its alarm, and can
//! be replayed after an edit.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use support::log::Log;
use support::{Shop, Stage, eventually};
use towpath_market::Order;

on_every_pair!(
    an_unknown_type_is_dead_once_and_is_replayed_after_an_edit,
    a_missing_field_is_dead_once_and_is_replayed_after_an_edit,
    a_wrong_id_is_dead_once_and_is_replayed_after_an_edit,
    what_is_not_json_is_dead_once_and_is_replayed_after_an_edit,
    a_type_that_belongs_to_another_queue_is_not_supported,
    what_says_nothing_of_its_format_is_read_in_the_contracts,
    a_failure_that_may_pass_comes_again_up_to_the_threshold,
    a_message_that_comes_again_is_told_in_the_frozen_words,
);

/// The payload of a message about a paid order.
fn payload(order: &Order) -> String {
    format!(
        r#"{{"orderId":{},"orderNo":"{}","payTime":"2026-02-04T10:30:00Z","amount":88.50}}"#,
        order.order_id, order.order_no
    )
}

fn body(event_id: &str, event_type: &str, aggregate_id: &str, payload: &str) -> String {
    format!(
        r#"{{"eventId":"{event_id}","eventType":"{event_type}","aggregateType":"Order","aggregateId":{aggregate_id},"occurredAt":"2026-02-04T10:30:00Z","traceId":"trace-by-hand","payload":{payload}}}"#
    )
}

/// A paid order whose own message is handled.
async fn paid_order(shop: &Shop) -> Order {
    let order = shop.order().await;
    let paid = shop.market.pay(order.order_id, None).await.unwrap();
    shop.seen.until("order.fulfillment", "handled", 1).await;
    paid
}

/// Publishes a broken body; it dies once, with log line and alarm; replayed with the whole body it is handled.
async fn dies_and_is_mended(stage: &Stage, broken: impl Fn(&str, &Order) -> String, reason: &str) {
    let log = Log::of_this_process();
    let shop = stage.open().await;
    let order = paid_order(&shop).await;
    let event_id = uuid::Uuid::now_v7().to_string();
    let broken = broken(&event_id, &order);
    let tap = stage.tap().await;
    stage.publish("order.fulfillment.queue", &event_id, &broken).await;
    let letter = eventually("a dead letter", || async { shop.dead().await.pop() }).await;
    assert_eq!(letter.letter.message.body, broken.as_bytes(), "the message to the letter");
    shop.seen.until("order.fulfillment", "given up", 1).await;

    // The line of the contract: four fields and the frozen text. A body that cannot be read has no event id.
    let told = log.lines(Some("market-delivery-given-up"), &event_id);
    assert_eq!(told.len(), 1, "{told:?}");
    let line = &told[0];
    assert_eq!(
        (line["reason"].as_str(), line["messageId"].as_str()),
        (Some(reason), Some(event_id.as_str()))
    );
    assert_eq!((line["level"].as_str(), line["message"].as_str()), (Some("ERROR"), Some("消息消费失败")));
    assert_eq!(line["queue"], "order.fulfillment.queue");
    assert_eq!(line["consumer"], "order.fulfillment");
    assert!(line.get("eventId").is_some() && line.get("traceId").is_some(), "{line}");
    eventually("the alarm", || async { (shop.seen.deaths() == 1).then_some(()) }).await;
    let alarms = log.lines(Some("market-dead-letter"), &event_id);
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    assert_eq!(
        (alarms[0]["level"].as_str(), alarms[0]["queue"].as_str()),
        (Some("ERROR"), Some("order.dlq.queue"))
    );

    let mended = body(&event_id, "ORDER_PAID", &order.order_id.to_string(), &payload(&order));
    let letters = shop.app.dead_letters();
    letters.edit(letter.letter_id, mended.as_bytes()).await.unwrap();
    letters.replay(letter.letter_id, false).await.unwrap();
    shop.seen.until("order.fulfillment", "handled", 2).await;
    assert_eq!(shop.dead().await.len(), 1, "it died once");
    assert_eq!(shop.seen.deaths(), 1);
    // And so says the broker: letters with one cause would be one, however often it had come there.
    let another = shop.order().await;
    let mut deaths = 0;
    loop {
        let message = tap.next().await;
        let is_this_one = message.message_id.as_deref() == Some(event_id.as_str());
        deaths += u32::from(is_this_one && message.destination.routing_key == "order.dlq");
        let text = String::from_utf8_lossy(&message.body).into_owned();
        if message.message_type.as_deref() == Some("ORDER_CREATED") && text.contains(&another.order_no) {
            break;
        }
    }
    assert_eq!(deaths, 1, "what the broker itself has passed on");
    tap.close().await;
    shop.stop().await;
}

async fn an_unknown_type_is_dead_once_and_is_replayed_after_an_edit(stage: &Stage) {
    let broken = |event_id: &str, order: &Order| {
        body(event_id, "ORDER_EATEN", &order.order_id.to_string(), &payload(order))
    };
    dies_and_is_mended(stage, broken, "market-unsupported-type").await;
}

async fn a_missing_field_is_dead_once_and_is_replayed_after_an_edit(stage: &Stage) {
    let broken = |event_id: &str, order: &Order| {
        let payload = payload(order).replace(r#","amount":88.50"#, "");
        body(event_id, "ORDER_PAID", &order.order_id.to_string(), &payload)
    };
    dies_and_is_mended(stage, broken, "invalid-payload").await;
}

async fn a_wrong_id_is_dead_once_and_is_replayed_after_an_edit(stage: &Stage) {
    let broken = |event_id: &str, order: &Order| body(event_id, "ORDER_PAID", "4", &payload(order));
    dies_and_is_mended(stage, broken, "market-wrong-order").await;
}

async fn what_is_not_json_is_dead_once_and_is_replayed_after_an_edit(stage: &Stage) {
    let broken = |event_id: &str, _: &Order| format!("<event id=\"{event_id}\"/>");
    dies_and_is_mended(stage, broken, "format-not-an-object").await;
}

async fn a_type_that_belongs_to_another_queue_is_not_supported(stage: &Stage) {
    let log = Log::of_this_process();
    let shop = stage.open().await;
    let order = paid_order(&shop).await;
    let event_id = uuid::Uuid::now_v7().to_string();
    let message = body(&event_id, "ORDER_PAID", &order.order_id.to_string(), &payload(&order));
    stage.publish("inventory.update.queue", &event_id, &message).await;
    shop.seen.until("inventory.update", "given up", 1).await;
    let told = log.lines(Some("market-delivery-given-up"), &event_id);
    assert!(told[0]["cause"].as_str().unwrap().contains("事件类型不支持"), "{told:?}");
    shop.stop().await;
}

async fn a_failure_that_may_pass_comes_again_up_to_the_threshold(stage: &Stage) {
    let shop = stage.open().await;
    let order = paid_order(&shop).await;
    // A table that is not there is nothing that the message can be blamed for.
    stage.plain("ALTER TABLE shipments RENAME TO shipments_elsewhere").await;
    let event_id = uuid::Uuid::now_v7().to_string();
    let message = body(&event_id, "ORDER_PAID", &order.order_id.to_string(), &payload(&order));
    stage.publish("order.fulfillment.queue", &event_id, &message).await;
    shop.seen.until("order.fulfillment", "given up", 1).await;
    let attempts = shop.market.settings().consumer.attempts as usize;
    assert_eq!(shop.seen.count("order.fulfillment", "retried"), attempts - 1);
    stage.plain("ALTER TABLE shipments_elsewhere RENAME TO shipments").await;
    let letter = eventually("a dead letter", || async { shop.dead().await.pop() }).await;
    shop.app.dead_letters().replay(letter.letter_id, false).await.unwrap();
    shop.seen.until("order.fulfillment", "handled", 2).await;
    shop.stop().await;
}

async fn what_says_nothing_of_its_format_is_read_in_the_contracts(stage: &Stage) {
    let log = Log::of_this_process();
    let shop = stage.open().await;
    let order = paid_order(&shop).await;
    let ids = [uuid::Uuid::now_v7().to_string(), uuid::Uuid::now_v7().to_string()];
    let about = |event_id: &str, event_type: &str| {
        body(event_id, event_type, &order.order_id.to_string(), &payload(&order))
    };
    let queue = "order.fulfillment.queue";
    stage.publish_as("", queue, &ids[0], &about(&ids[0], "ORDER_PAID"), 1).await;
    shop.seen.until("order.fulfillment", "handled", 2).await;
    // Who reads the dead-letter queue knows its format, too.
    stage.publish_as("", queue, &ids[1], &about(&ids[1], "ORDER_EATEN"), 1).await;
    let letter = eventually("a dead letter", || async { shop.dead().await.pop() }).await;
    assert_eq!(letter.letter.event_id.map(|id| id.to_string()).as_ref(), Some(&ids[1]));
    eventually("the alarm", || async { (shop.seen.deaths() == 1).then_some(()) }).await;
    let alarms = log.lines(Some("market-dead-letter"), &ids[1]);
    assert_eq!(alarms[0]["traceId"], "trace-by-hand", "{alarms:?}");
    shop.stop().await;
}

async fn a_message_that_comes_again_is_told_in_the_frozen_words(stage: &Stage) {
    let log = Log::of_this_process();
    let shop = stage.open().await;
    let order = paid_order(&shop).await;
    let event_id = uuid::Uuid::now_v7().to_string();
    let message = body(&event_id, "ORDER_PAID", &order.order_id.to_string(), &payload(&order));
    for _ in 0..2 {
        stage.publish("order.fulfillment.queue", &event_id, &message).await;
    }
    shop.seen.until("order.fulfillment", "duplicate", 1).await;
    let told = log.lines(None, &event_id);
    let told =
        told.iter().find(|line| line["message"] == "事件已处理，忽略重复消息").expect("the frozen words");
    assert_eq!(
        (told["consumer"].as_str(), told["traceId"].as_str()),
        (Some("order.fulfillment"), Some("trace-by-hand"))
    );
    shop.stop().await;
}
