//! Hosts whose clocks are wrong: times that are compared come from the database, so that a host a week ahead closes no
//! order that is still to be paid, and one a week behind closes those that are not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{Stage, eventually, pending, settings};
use towpath::ids::AggregateKey;
use towpath::letters::LetterFilter;
use towpath::{Builder, Towpath};
use towpath_market::{Market, OrderStatus};
use towpath_testkit::VirtualClock;

/// On SQLite the host's clock is the database's: there is one host.
macro_rules! on_every_server {
    ($($case:ident),+ $(,)?) => {
        on_every_server!(@pair mariadb_rabbitmq, MariaDbRabbitMq, $($case),+);
        on_every_server!(@pair postgres_rabbitmq, PostgresRabbitMq, $($case),+);
    };
    (@pair $module:ident, $pair:ident, $($case:ident),+) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $case() {
                    let stage = super::support::Stage::new(super::support::Pair::$pair).await;
                    super::$case(&stage).await;
                }
            )+
        }
    };
}
on_every_server!(
    a_host_that_is_ahead_closes_nothing_early,
    an_order_of_a_host_that_is_ahead_ends_in_time,
    a_message_to_a_host_that_is_ahead_closes_nothing_early,
);

/// A Towpath on a host whose clock is a week ahead, and who believes it.
fn ahead() -> Builder {
    let week = chrono::Duration::days(7);
    Towpath::builder().clock(Arc::new(VirtualClock::at(chrono::Utc::now() + week)))
}

async fn a_host_that_is_ahead_closes_nothing_early(stage: &Stage) {
    let right = stage.open_without_workers().await;
    let wrong = stage.open_without_workers_by(ahead(), settings()).await;
    let order = right.order().await;
    assert_eq!(wrong.market.close_overdue().await.unwrap(), 0, "it has a quarter of an hour");
    assert_eq!(right.market.order(order.order_id).await.unwrap().status, OrderStatus::Pending);
    right.stop().await;
    wrong.stop().await;
}

async fn an_order_of_a_host_that_is_ahead_ends_in_time(stage: &Stage) {
    let wrong = stage.open_without_workers_by(ahead(), settings()).await;
    let right = stage.open_without_workers().await;
    let hurried = Market::open(&right.app, pending(Duration::from_millis(200)));
    let order = wrong.order().await;
    let early = order.create_time - chrono::Utc::now();
    assert!(early < chrono::Duration::hours(1), "placed {early} ahead of its time");
    eventually("closed", || async { (hurried.close_overdue().await.unwrap() == 1).then_some(()) }).await;
    let key = AggregateKey::new("Order", order.order_id.to_string()).unwrap();
    let facts = right.app.events_of(&key, 0, 10).await.unwrap();
    let times: Vec<_> = facts.iter().map(|fact| fact.envelope.occurred_at).collect();
    assert!(times.is_sorted(), "facts in the order of their times, whoever wrote them: {times:?}");
    right.stop().await;
    wrong.stop().await;
}

async fn a_message_to_a_host_that_is_ahead_closes_nothing_early(stage: &Stage) {
    let right = stage.open_without_workers().await;
    let order = right.order().await;
    let wrong = stage.open_by(ahead()).await;
    let event_id = uuid::Uuid::now_v7();
    let body = format!(
        r#"{{"eventId":"{event_id}","eventType":"ORDER_TIMEOUT","aggregateType":"Order","aggregateId":{},"occurredAt":"2026-02-04T10:30:00Z","traceId":"t","payload":{{"orderId":{},"orderNo":"{}","createTime":"2026-02-04T10:30:00Z"}}}}"#,
        order.order_id, order.order_id, order.order_no
    );
    stage.publish("order.timeout.queue", &event_id.to_string(), &body).await;
    let filter = LetterFilter { queue: Some("order.timeout.queue".to_owned()), ..LetterFilter::default() };
    eventually("it was looked at", || async {
        let letters = wrong.app.dead_letters().list(&filter, 0, 10).await.unwrap();
        let early = letters.iter().any(|one| one.status_reason.as_deref() == Some("market-too-early"));
        (early || wrong.seen.count("order.timeout", "handled") > 0).then_some(())
    })
    .await;
    assert_eq!(right.market.order(order.order_id).await.unwrap().status, OrderStatus::Pending);
    right.stop().await;
    wrong.stop().await;
}
