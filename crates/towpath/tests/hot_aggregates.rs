//! Aggregates with many events: they hold up nobody, and in process they go out in one step.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::place::{Place, facts_in, header, place};
use support::{Fresh, Order, OrderCommand, eventually};
use towpath::ids::AggregateKey;
use towpath::lifecycle::OutboxStatus;
use towpath::ports::broker::{Binding, Exchange, ExchangeKind, Queue, Topology};
use towpath::retry::RetryPolicy;
use towpath::{Builder, Channel, ChannelPolicy, StoreOptions, Towpath};
use towpath_testkit::CountingProbe;

on_every_database!(
    a_hot_aggregate_does_not_hold_up_the_others_of_its_partition,
    in_process_an_aggregate_goes_out_in_one_step,
    in_process_an_event_that_goes_nowhere_holds_back_what_follows_it,
);

const HOT: u64 = 300;

/// Two orders whose lanes differ and lie in one partition.
fn neighbours() -> (String, String) {
    let mut ids = (0..).map(|number| format!("o-{number}"));
    let lane = |id: &String| AggregateKey::new("order", id).unwrap().lane();
    let first = ids.next().unwrap();
    let second = ids.find(|id| lane(id).partition() == lane(&first).partition() && lane(id) != lane(&first));
    (first, second.unwrap())
}

async fn write(app: &Towpath, id: &str, notes: u64) {
    place(app, id).await;
    for _ in 0..notes {
        app.send::<Order>(id, OrderCommand::Note).await.unwrap();
    }
}

async fn a_hot_aggregate_does_not_hold_up_the_others_of_its_partition(fresh: &Fresh) {
    let place_of_test = Place::new();
    let writing = place_of_test.app(fresh).without_workers().start().await.unwrap();
    let (hot, other) = neighbours();
    write(&writing, &hot, HOT).await;
    write(&writing, &other, 1).await;
    let inbox = place_of_test.receive().await;
    // The hot one fills each look many times over.
    let policy = ChannelPolicy { batch: 16, ..Place::policy() };
    let relaying = place_of_test.app_with(fresh, policy).start().await.unwrap();
    let received = inbox.take(usize::try_from(HOT).unwrap() + 3).await;
    let last = received.iter().rposition(|message| header(message, "towpath-aggregate-id") == other);
    let last = last.expect("the other one comes");
    assert!(last < received.len() / 2, "it came as number {last} of {}", received.len());
    let versions = support::place::versions(&received);
    assert_eq!(versions[&hot], (1..=HOT + 1).collect::<Vec<_>>());
    assert_eq!(versions[&other], [1, 2]);
    relaying.stop().await;
    writing.stop().await;
}

/// An exchange in process with a queue for these events.
fn in_process(fresh: &Fresh, bound: &[&str]) -> Builder {
    let bindings = bound.iter().map(|key| Binding {
        queue: "all".to_owned(),
        exchange: "facts".to_owned(),
        routing_key: (*key).to_owned(),
    });
    let topology = Topology {
        exchanges: vec![Exchange { name: "facts".to_owned(), kind: ExchangeKind::Topic }],
        queues: vec![Queue { name: "all".to_owned(), arguments: Vec::new() }],
        bindings: bindings.collect(),
    };
    let policy = ChannelPolicy {
        scan: Duration::from_millis(50),
        retries: RetryPolicy::Fixed(Vec::new()),
        ..ChannelPolicy::default()
    };
    let channel = Channel::named("facts", ["order.*"]).map(|channel| channel.published().with(policy));
    fresh.builder().channel(channel).topology(topology)
}

async fn in_process_an_aggregate_goes_out_in_one_step(fresh: &Fresh) {
    let writing = in_process(fresh, &["#"]).without_workers().start().await.unwrap();
    write(&writing, "o-1", 79).await;
    let statements = Arc::new(CountingProbe::new());
    let options = StoreOptions { probe: statements.clone(), ..StoreOptions::default() };
    let relaying = in_process(fresh, &["#"]).store_options(options).start().await.unwrap();
    eventually("all are SENT", || async {
        (facts_in(&writing, OutboxStatus::Sent).await == 80).then_some(())
    })
    .await;
    let puts = statements.take().iter().filter(|name| **name == "queues.put").count();
    assert!(puts <= 2, "a step for all of them, not {puts}");
    relaying.stop().await;
    writing.stop().await;
}

async fn in_process_an_event_that_goes_nowhere_holds_back_what_follows_it(fresh: &Fresh) {
    let app = in_process(fresh, &["order.placed"]).start().await.unwrap();
    write(&app, "o-1", 0).await;
    eventually("it is SENT", || async { (facts_in(&app, OutboxStatus::Sent).await == 1).then_some(()) })
        .await;
    app.stop().await;
    // In one look: a note that goes nowhere, then what would be routed.
    let writing = in_process(fresh, &["order.placed"]).without_workers().start().await.unwrap();
    for command in [OrderCommand::Note, OrderCommand::Ship] {
        writing.send::<Order>("o-1", command).await.unwrap();
    }
    place(&writing, "o-2").await;
    let relaying = in_process(fresh, &["order.placed", "order.shipped"]).start().await.unwrap();
    eventually("the note is given up", || async {
        (facts_in(&writing, OutboxStatus::Failed).await == 1).then_some(())
    })
    .await;
    eventually("the other order goes on", || async {
        (facts_in(&writing, OutboxStatus::Sent).await == 2).then_some(())
    })
    .await;
    assert_eq!(facts_in(&writing, OutboxStatus::New).await, 1, "shipping waits behind the note");
    relaying.stop().await;
    writing.stop().await;
}
