//! The background services on each database: the sequencer, and taking over from an instance that is gone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::probe::ProbeAt;
use support::{Fresh, Order, OrderCommand, eventually};
use towpath::StoreOptions;
use towpath::ids::{CommandId, LeaseName};
use towpath::lifecycle::CommandStatus;

on_every_database!(
    committed_events_get_positions_without_gaps,
    one_of_two_instances_gives_positions_and_the_other_takes_over,
    a_stopped_app_holds_nothing,
    a_command_whose_running_panicked_is_given_back,
);

async fn committed_events_get_positions_without_gaps(fresh: &Fresh) {
    let app = fresh.app().await;
    let mut calls = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let app = app.clone();
        calls.spawn(async move {
            let id = format!("o-{writer}");
            app.send::<Order>(&id, OrderCommand::Place { sku: "book".to_owned() }).await.unwrap();
            for _ in 0..9 {
                app.send::<Order>(&id, OrderCommand::Note).await.unwrap();
            }
        });
    }
    calls.join_all().await;
    eventually("forty positions", || async { (app.store().head().await.unwrap() == 40).then_some(()) }).await;
    let events = app.store().events_between(1, 40).await.unwrap();
    assert_eq!(
        events.iter().map(|event| event.position).collect::<Vec<_>>(),
        (1..=40).map(Some).collect::<Vec<_>>()
    );
    for writer in 0..4 {
        let of_one =
            events.iter().filter(|event| event.envelope.aggregate.id.as_str() == format!("o-{writer}"));
        let versions: Vec<u64> = of_one.map(|event| event.envelope.aggregate_version).collect();
        assert_eq!(versions, (1..=10).collect::<Vec<_>>(), "in version order");
    }
    app.stop().await;
}

async fn one_of_two_instances_gives_positions_and_the_other_takes_over(fresh: &Fresh) {
    let (first, second) = (fresh.app().await, fresh.app().await);
    let holder = |app: &towpath::Towpath| {
        let app = app.clone();
        async move { app.store().leases("sequencer").await.unwrap().pop().map(|lease| (lease.holder, lease.live)) }
    };
    assert_eq!(holder(&second).await, Some((first.instance().clone(), true)));
    first.stop().await;
    // Nothing was committed by the second yet: it must find out by itself that the place is free.
    eventually("the second is the sequencer", || async {
        holder(&second).await.filter(|holder| *holder == (second.instance().clone(), true))
    })
    .await;
    second.send::<Order>("o-1", OrderCommand::Place { sku: "book".to_owned() }).await.unwrap();
    eventually("a position", || async { (second.store().head().await.unwrap() == 1).then_some(()) }).await;
    second.stop().await;
}

async fn a_stopped_app_holds_nothing(fresh: &Fresh) {
    let app = fresh.app().await;
    let watching = fresh.builder().without_workers().start().await.unwrap();
    assert!(!watching.store().leases("").await.unwrap().is_empty());
    app.stop().await;
    app.stop().await;
    assert!(
        watching.store().leases("").await.unwrap().iter().all(|lease| !lease.live),
        "all were given back"
    );
    watching.stop().await;
}

async fn a_command_whose_running_panicked_is_given_back(fresh: &Fresh) {
    let probe = Arc::new(ProbeAt::new("load", || panic!("a bug of ours, on purpose")));
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    let app = fresh.builder().store_options(options).start().await.unwrap();
    probe.arm(1);
    let order = OrderCommand::Place { sku: "book".to_owned() };
    app.send::<Order>("o-1", order).once("c-1").later().await.unwrap();
    let id = CommandId::new("c-1").unwrap();
    let status = || async { app.store().command(&id).await.unwrap().unwrap() };
    eventually("it is given back", || async {
        let record = status().await;
        (record.status == CommandStatus::Pending && probe.is_spent()).then_some(())
    })
    .await;
    eventually("it is run", || async { (status().await.status == CommandStatus::Completed).then_some(()) })
        .await;
    app.stop().await;
}

/// Where the database carries notices, another process learns of a commit at once: here everybody looks only once an
/// hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn another_process_is_told_of_a_commit() {
    use support::delivery::{Broker, Stage, effects};
    let stage = Stage::new("postgres", Broker::RabbitMq).await;
    let consumer = towpath::Consumer::of(stage.channel()).each("record", |mut delivery| async move {
        let id = delivery.event.event_id.to_string();
        delivery
            .tx
            .execute("INSERT INTO effects (event_id, handler) VALUES (?, ?)", &[&id, "record"])
            .await?;
        Ok(delivery.handled())
    });
    let working = stage.app_that_looks_rarely(consumer).await;
    let writing = stage.builder().without_workers().start().await.unwrap();
    for number in 0..5 {
        let id = format!("order-{number}");
        writing.send::<Order>(&id, OrderCommand::Place { sku: "book".into() }).await.unwrap();
        writing.send::<Order>(&id, OrderCommand::Note).later().await.unwrap();
        eventually("two effects of it", || async {
            (effects(&working).await.len() == 2 * (number + 1)).then_some(())
        })
        .await;
    }
    eventually("positions", || async { (working.store().head().await.ok()? == 10).then_some(()) }).await;
    writing.stop().await;
    working.stop().await;
}

/// So many events wait for a position that counting them ends before: whoever makes something anew waits for all of them.
async fn the_complete_head_is_behind_all(fresh: &Fresh, plant: &'static str) {
    let app = fresh.builder().without_workers().start().await.unwrap();
    support::delivery::execute(&app, plant).await;
    let lease = LeaseName::new("sequencer").unwrap();
    let store = app.store().clone();
    let grant = store.acquire_lease(&lease, app.instance(), Duration::from_secs(600)).await.unwrap().unwrap();
    let mut complete = tokio::spawn({
        let store = store.clone();
        async move { towpath::complete_head(&store).await.unwrap() }
    });
    // It must have looked before the first position is given.
    let looked = tokio::time::timeout(Duration::from_millis(300), &mut complete).await;
    assert!(looked.is_err(), "it waits: {looked:?}");
    while store.sequence(&grant, 1000).await.unwrap().count == 1000 {
        if complete.is_finished() {
            break;
        }
    }
    assert_eq!(complete.await.unwrap(), 100_500);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_complete_head_is_behind_all_that_waits_on_sqlite() {
    let plant = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100500) \
         INSERT INTO event_pending (event_id) SELECT randomblob(16) FROM n";
    the_complete_head_is_behind_all(&Fresh::on("sqlite").await, plant).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_complete_head_is_behind_all_that_waits_on_postgres() {
    let plant =
        "INSERT INTO event_pending (event_id) SELECT gen_random_uuid() FROM generate_series(1, 100500)";
    the_complete_head_is_behind_all(&Fresh::on("postgres").await, plant).await;
}
