//! The alarm for queues that hold more than they should (O11): more than 1000.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::time::Duration;

use support::log::Log;
use support::{Pair, Stage, eventually, settings};
use towpath::Towpath;
use towpath_market::Market;

on_every_pair!(a_queue_with_more_than_a_thousand_messages_raises_an_alarm_once,);

async fn a_queue_with_more_than_a_thousand_messages_raises_an_alarm_once(stage: &Stage) {
    let log = Log::of_this_process();
    let shop = stage.open_without_workers().await;
    // What waits for its time is no backlog.
    stage.publish_often("order.timeout.delay.queue", "waiting", "{}", 1001).await;
    stage.publish_often("inventory.update.queue", "working", "{}", 1000).await;
    let deep = || async { shop.market.deep_queues().await.unwrap() };
    assert_eq!(deep().await, [], "1000 are not too many");
    // A number of its own, by which the line is found.
    let more = match stage.pair {
        Pair::MariaDbRabbitMq => 1,
        Pair::PostgresRabbitMq => 2,
        Pair::SqliteLocal => 3,
    };
    stage.publish_often("inventory.update.queue", "working", "{}", more).await;
    let depth = 1000 + more as u64;
    eventually("too deep", || async { (deep().await == [("inventory.update.queue", depth)]).then_some(()) })
        .await;

    // A process that only looks, so that nobody takes them meanwhile.
    let mut settings = settings();
    settings.alarm.queue_scan = Duration::from_millis(20);
    let looking = Towpath::builder().store(&stage.store_url).broker(&stage.broker_url);
    let looking = looking.job(Market::look_at_queues(&settings)).start().await.unwrap();
    let alarms = || log.lines(Some("market-queue-depth"), &format!(r#""depth":{depth},"#));
    eventually("the alarm", || async { (!alarms().is_empty()).then_some(()) }).await;
    looking.stop().await;
    let told = alarms();
    assert_eq!(told.len(), 1, "{told:?}");
    let line = &told[0];
    let said = ["level", "queue", "consumer"].map(|field| line[field].as_str().unwrap());
    assert_eq!(said, ["ERROR", "inventory.update.queue", "inventory.update"]);
    assert_eq!(line["limit"], 1000);
    shop.stop().await;
}
