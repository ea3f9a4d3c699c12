//! What operators look through, on each database.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{Fresh, Order, OrderCommand, eventually};
use towpath::ids::{AggregateId, AggregateKind, ChannelName};
use towpath::lifecycle::{CommandStatus, OutboxStatus};
use towpath::ports::store::StoreError;
use towpath::retry::RetryPolicy;
use towpath::{Channel, ChannelPolicy, FoundAs, OutboxFilter, Towpath};
use towpath_testkit::VirtualClock;

on_every_database!(
    commands_come_newest_first_page_by_page_and_by_status,
    outbox_rows_come_by_status_and_channel_parked_ones_among_them,
    aggregates_come_by_kind_page_by_page,
    an_id_is_found_whatever_it_is_the_id_of,
);

async fn place(app: &Towpath, id: &str) {
    app.send::<Order>(id, OrderCommand::Place { sku: "book".into() })
        .once(format!("place-{id}"))
        .await
        .unwrap();
}

fn ids(records: &[towpath::ports::store::CommandRecord]) -> Vec<&str> {
    records.iter().map(|record| record.command.command_id.as_str()).collect()
}

async fn commands_come_newest_first_page_by_page_and_by_status(fresh: &Fresh) {
    // Two of them at each moment: the order must hold among those, too.
    let clock = Arc::new(VirtualClock::new());
    let app = fresh.builder().clock(clock.clone()).without_workers().start().await.unwrap();
    let mut sent = Vec::new();
    for number in 0..6 {
        if number % 2 == 0 {
            clock.advance(Duration::from_secs(1));
        }
        place(&app, &format!("o-{number}")).await;
        sent.push(format!("place-o-{number}"));
    }
    for number in 0..2 {
        let again = app.send::<Order>(format!("o-{number}"), OrderCommand::Place { sku: "book".into() });
        again.once(format!("again-{number}")).await.unwrap_err();
    }
    sent.reverse();
    let (mut read, mut behind) = (Vec::new(), None);
    loop {
        let page = app.commands(Some(CommandStatus::Completed), behind.as_ref(), 4).await.unwrap();
        read.extend(ids(&page).into_iter().map(str::to_owned));
        match page.last() {
            Some(last) => behind = Some(last.command.command_id.clone()),
            None => break,
        }
    }
    assert_eq!(read, sent, "each once, the last received first");
    let failed = app.commands(Some(CommandStatus::Failed), None, 10).await.unwrap();
    assert_eq!(ids(&failed), ["again-1", "again-0"]);
    let second =
        app.commands(Some(CommandStatus::Failed), Some(&failed[0].command.command_id), 10).await.unwrap();
    assert_eq!(ids(&second), ["again-0"]);
    assert_eq!(app.commands(None, None, 100).await.unwrap().len(), 8);
    app.send::<Order>("later", OrderCommand::Note).once("later").later().await.unwrap();
    assert_eq!(ids(&app.commands(Some(CommandStatus::Pending), None, 10).await.unwrap()), ["later"]);
    assert!(app.commands(Some(CommandStatus::Processing), None, 10).await.unwrap().is_empty());
    let nobody = towpath::ids::CommandId::new("nobody").unwrap();
    assert!(matches!(app.commands(None, Some(&nobody), 1).await, Err(StoreError::Missing { .. })));
    app.stop().await;
}

async fn outbox_rows_come_by_status_and_channel_parked_ones_among_them(fresh: &Fresh) {
    // Nobody has declared the exchange: the first row of an order is given up, and the next ones wait behind it.
    let policy = ChannelPolicy { retries: RetryPolicy::Fixed(Vec::new()), ..ChannelPolicy::default() };
    let lost = Channel::named("lost", ["order.*"]).map(|channel| channel.to_exchange("nowhere").with(policy));
    let app = fresh.builder().channel(lost).start().await.unwrap();
    for id in ["a", "b", "c"] {
        place(&app, id).await;
    }
    let rows = |status: Option<OutboxStatus>, channel: Option<&str>, after: u64, limit: u32| {
        let filter = OutboxFilter { channel: channel.map(|name| ChannelName::new(name).unwrap()), status };
        let app = app.clone();
        async move { app.store().outbox_rows(&filter, after, limit).await.unwrap() }
    };
    eventually("all are given up", || async {
        (rows(Some(OutboxStatus::Failed), Some("lost"), 0, 10).await.len() == 3).then_some(())
    })
    .await;
    for id in ["a", "b"] {
        app.send::<Order>(id, OrderCommand::Note).await.unwrap();
    }
    // `orders` has no target and only collects its rows.
    let waiting = eventually("the next are parked", || async {
        let waiting = rows(Some(OutboxStatus::New), None, 0, 100).await;
        (waiting.iter().filter(|row| row.row.parked_at.is_some()).count() == 2).then_some(waiting)
    })
    .await;
    assert_eq!(waiting.len(), 5 + 2);
    assert!(waiting.windows(2).all(|pair| pair[0].row.outbox_id < pair[1].row.outbox_id), "by number");
    let parked = rows(Some(OutboxStatus::New), Some("lost"), 0, 100).await;
    assert_eq!(parked.len(), 2);
    assert!(parked.iter().all(|row| row.event.event_type.as_str() == "order.noted"));
    let behind = rows(Some(OutboxStatus::New), None, waiting[2].row.outbox_id, 3).await;
    assert_eq!(behind, waiting[3..6]);
    assert_eq!(rows(None, Some("lost"), 0, 100).await.len(), 5);
    assert_eq!(rows(None, None, 0, 4).await.len(), 4);
    assert!(rows(Some(OutboxStatus::Sent), None, 0, 100).await.is_empty());
    assert!(rows(Some(OutboxStatus::Retry), None, 0, 100).await.is_empty());
    let one = app.store().outbox_row(waiting[0].row.outbox_id).await.unwrap().unwrap();
    assert_eq!(one.row, waiting[0].row);
    // A page may have a thousand of the largest payloads: only the one that is looked at is read.
    assert_ne!(one.event.payload.as_text(), "null");
    for rows in
        [&waiting, &rows(Some(OutboxStatus::Failed), None, 0, 10).await, &rows(None, None, 0, 10).await]
    {
        assert!(!rows.is_empty() && rows.iter().all(|row| row.event.payload.as_text() == "null"));
    }
    assert_eq!(app.store().outbox_row(987_654).await.unwrap(), None);
    app.stop().await;
}

async fn aggregates_come_by_kind_page_by_page(fresh: &Fresh) {
    let app = fresh.app().await;
    for number in 0..5 {
        place(&app, &format!("o-{number}")).await;
    }
    let kind = AggregateKind::new("order").unwrap();
    let first = app.aggregates(&kind, None, 3).await.unwrap();
    let after = AggregateId::new("o-2").unwrap();
    let rest = app.aggregates(&kind, Some(&after), 3).await.unwrap();
    let ids = |rows: &[towpath::ports::store::AggregateRow]| {
        rows.iter().map(|row| row.aggregate.id.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!((ids(&first).as_str(), ids(&rest).as_str()), ("o-0 o-1 o-2", "o-3 o-4"));
    assert_eq!(first[0].state.as_deref(), Some("placed"));
    assert!(first.iter().all(|row| row.snapshot.is_none()), "snapshots are not read");
    let one = app.aggregate(&first[0].aggregate).await.unwrap().unwrap();
    assert!(one.snapshot.is_some());
    assert!(app.aggregates(&AggregateKind::new("nothing").unwrap(), None, 3).await.unwrap().is_empty());
    app.stop().await;
}

async fn an_id_is_found_whatever_it_is_the_id_of(fresh: &Fresh) {
    let app = fresh.app().await;
    place(&app, "o-1").await;
    let noted = app.send::<Order>("o-1", OrderCommand::Note).once("note").await.unwrap();
    let event = noted.events[0].event_id.to_string();
    for (id, found_as, flows) in [
        ("note", FoundAs::Command, 1),
        (event.as_str(), FoundAs::Event, 1),
        (noted.correlation_id.as_str(), FoundAs::Flow, 1),
        ("o-1", FoundAs::Aggregate, 2),
        ("order/o-1", FoundAs::Aggregate, 2),
    ] {
        let trace = app.trace(id).await.unwrap().unwrap_or_else(|| panic!("{id} was not found"));
        assert_eq!((trace.found_as, trace.flows.len()), (found_as, flows), "{id}");
        assert_eq!(trace.flows[0], noted.correlation_id, "{id}: the last flow comes first");
    }
    assert_eq!(app.trace("nobody").await.unwrap(), None);
    app.stop().await;
}
