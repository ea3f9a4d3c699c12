//! Transactions that took their numbers early and end late: the classic way to lose an event (P2, P5).
//!
//! An open transaction has taken ids that are lower than those of transactions that commit before it. A reader
//! with a cursor over such ids passes the gap and never comes back; a reader that waits for the gap to close
//! stands still for as long as the transaction stays open. Neither is allowed.

use std::sync::Arc;

use towpath_core::ids::ChannelName;
use towpath_core::ports::store::{Append, CompletedCommand, InspectedStore, LeaseGrant};

use super::StoreFixture;
use super::acts::{claim, drain, drain_for_a_while, hold_new_lease, record_sent, sequence_all, whole_log};
use super::facts::{OrderFacts, moment, new_channel};
use super::waiting::{answer_of, fair_chance, in_time, taking_turns};

/// An event that commits late gets the next position and goes out.
pub async fn a_late_commit_is_neither_skipped_nor_lost(fixture: &impl StoreFixture) {
    run(fixture, End::Commit).await;
}

/// An event that is rolled back late leaves no gap and goes nowhere.
pub async fn a_late_rollback_leaves_no_gap(fixture: &impl StoreFixture) {
    run(fixture, End::Rollback).await;
}

/// What follows a late event of the same aggregate comes behind it, in the log and on its channel (P3).
pub async fn a_late_commit_keeps_its_place_before_its_successors(fixture: &impl StoreFixture) {
    let (slow, store) = (fixture.store().await, fixture.store().await);
    if !store.promises().concurrent_writers {
        // Nobody can commit beside an open writer, so nobody is late.
        return run(fixture, End::Commit).await;
    }
    let lease = hold_new_lease(&*store).await;
    let channel = new_channel();
    let routed = std::slice::from_ref(&channel);
    let late = OrderFacts::of_new_order().placed().routed(routed).append();
    let mut tx = slow.begin().await.expect("begin");
    tx.append(&late).await.expect("append");
    for _ in 0..5 {
        let other = OrderFacts::of_new_order().placed().routed(routed).command();
        store.complete_command(&other).await.expect("complete");
    }
    assert_eq!(sequence_all(&*store, &lease).await, 5);
    drain(&*store, &lease, &channel, moment(9)).await;
    tx.commit().await.expect("commit late");
    let key = late.aggregate;
    let mut next = OrderFacts::of_new_order().paid().routed(routed).append();
    (next.aggregate, next.expected) = (key.clone(), towpath_core::ports::store::Expected::Exactly(1));
    super::acts::append(&*store, &next).await;

    sequence_all(&*store, &lease).await;
    let of_late = |events: Vec<towpath_core::envelope::EventEnvelope>| -> Vec<u64> {
        let of_late = events.into_iter().filter(|event| event.aggregate == key);
        of_late.map(|event| event.aggregate_version).collect()
    };
    let log = whole_log(&*store).await.into_iter().map(|event| event.envelope).collect();
    assert_eq!(of_late(log), [1, 2], "in the log");
    let claimed = claim(&*store, &channel, moment(9)).await.into_iter().map(|item| item.event).collect();
    assert_eq!(of_late(claimed), [1, 2], "on the channel");
}

/// The same, however long the adapter has looked in vain for what was not committed, and however much it has taken out
/// before: what it remembers of that must not pass the late event by.
pub async fn a_late_commit_keeps_its_place_however_long_others_have_looked(fixture: &impl StoreFixture) {
    let (slow, store) = (fixture.store().await, fixture.store().await);
    if !store.promises().concurrent_writers {
        // Nobody can commit beside an open writer, so nobody is late.
        return run(fixture, End::Commit).await;
    }
    let lease = hold_new_lease(&*store).await;
    let channel = new_channel();
    let routed = std::slice::from_ref(&channel);
    let other = || OrderFacts::of_new_order().placed().routed(routed).append();
    super::acts::append(&*store, &other()).await;
    assert_eq!(drain_for_a_while(&*store, &lease, &channel, moment(9)).await.len(), 1);

    let order = super::facts::new_order();
    let mut tx = slow.begin().await.expect("begin");
    tx.append(&OrderFacts::about(&order, 0).placed().routed(routed).append()).await.expect("append");
    for _ in 0..4 {
        let busy = (1..400).fold(OrderFacts::of_new_order().placed(), |facts, _| facts.noted("much happens"));
        super::acts::append(&*store, &busy.routed(routed).append()).await;
    }
    assert_eq!(drain_for_a_while(&*store, &lease, &channel, moment(9)).await.len(), 1_600);
    tx.commit().await.expect("commit late");
    super::acts::append(&*store, &OrderFacts::about(&order, 1).paid().routed(routed).append()).await;

    let claimed = claim(&*store, &channel, moment(9)).await;
    assert_eq!(super::acts::versions(&claimed), [1, 2], "on the channel");
    assert_eq!(sequence_all(&*store, &lease).await, 2, "the late one and its successor get positions");
    let log = whole_log(&*store).await;
    let of_order = log.iter().filter(|event| event.envelope.aggregate == order);
    let versions: Vec<u64> = of_order.map(|event| event.envelope.aggregate_version).collect();
    assert_eq!(versions, [1, 2], "in the log");
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Commit,
    Rollback,
}

async fn run(fixture: &impl StoreFixture, end: End) {
    let channel = new_channel();
    let late = OrderFacts::of_new_order().placed().paid().routed(std::slice::from_ref(&channel)).append();
    let others: Vec<_> = (0..5)
        .map(|_| OrderFacts::of_new_order().placed().routed(std::slice::from_ref(&channel)).command())
        .collect();
    if fixture.store().await.promises().concurrent_writers {
        others_overtake(fixture, &channel, &late, &others, end).await;
    } else {
        others_wait(fixture, &channel, &late, others, end).await;
    }
}

/// Where several may write at once, the others go past the open transaction.
async fn others_overtake(
    fixture: &impl StoreFixture,
    channel: &ChannelName,
    late: &Append,
    others: &[CompletedCommand],
    end: End,
) {
    let (slow, store) = (fixture.store().await, fixture.store().await);
    let lease = hold_new_lease(&*store).await;
    let mut tx = slow.begin().await.expect("begin");
    tx.append(late).await.expect("append");

    for other in others {
        in_time("a write beside an open transaction", store.complete_command(other)).await.expect("complete");
    }
    let sequenced = in_time("sequencing", store.sequence(&lease, 100)).await.expect("sequence");
    assert_eq!((sequenced.count, sequenced.head), (5, 5), "the committed ones get positions at once");
    let items = in_time("claiming", claim(&*store, channel, moment(9))).await;
    assert_eq!(items.len(), 5, "the committed ones go out at once");
    in_time("recording", record_sent(&*store, &lease, channel, moment(9), &items)).await;

    match end {
        End::Commit => tx.commit().await.expect("commit late"),
        End::Rollback => tx.rollback().await.expect("roll back late"),
    }
    let counted = sequence_all(&*store, &lease).await;
    let claimed = drain(&*store, &lease, channel, moment(9)).await;
    let claimed: Vec<_> = claimed.iter().map(|item| item.event.event_id).collect();

    let expected = if end == End::Commit { late.events.as_slice() } else { &[] };
    let expected: Vec<_> = expected.iter().map(|event| event.event_id).collect();
    assert_eq!(counted, expected.len() as u64, "the late ones get positions, and nothing else does");
    assert_eq!(claimed, expected, "the late ones go out, in order, and nothing goes out twice");
    let log = whole_log(&*store).await;
    let tail: Vec<_> = log.iter().skip(5).map(|event| event.envelope.event_id).collect();
    assert_eq!(tail, expected, "their positions are the next ones");
}

/// Where one writes at a time, the others wait for the open transaction, readers do not, and nothing is lost.
async fn others_wait(
    fixture: &impl StoreFixture,
    channel: &ChannelName,
    late: &Append,
    others: Vec<CompletedCommand>,
    end: End,
) {
    let (slow, store, reader) = (fixture.store().await, fixture.store().await, fixture.store().await);
    let lease = hold_new_lease(&*store).await;
    let mut tx = slow.begin().await.expect("begin");
    tx.append(late).await.expect("append");

    let waiting = tokio::spawn(write_all(Arc::clone(&store), others.clone()));
    assert!(!fair_chance(&waiting).await, "the others wrote before the first writer had ended");
    for aggregate in others.iter().map(|other| &other.command.aggregate).chain([&late.aggregate]) {
        let loaded = in_time("reading beside a writer", reader.load(aggregate, None)).await.expect("load");
        assert_eq!(loaded.aggregate, None, "nothing is committed while the first writer is at it");
    }
    assert_eq!(in_time("reading the head", reader.head()).await.expect("head"), 0);
    assert_eq!(in_time("claiming", claim(&*reader, channel, moment(9))).await, []);
    match end {
        End::Commit => tx.commit().await.expect("commit late"),
        End::Rollback => tx.rollback().await.expect("roll back late"),
    }
    answer_of(waiting).await;
    all_are_there_once(&*store, &lease, channel, late, &others, end).await;
}

async fn all_are_there_once(
    store: &dyn InspectedStore,
    lease: &LeaseGrant,
    channel: &ChannelName,
    late: &Append,
    others: &[CompletedCommand],
    end: End,
) {
    let committed = others.iter().filter_map(|other| other.append.as_ref());
    let committed = committed.chain((end == End::Commit).then_some(late));
    let mut expected: Vec<_> =
        committed.flat_map(|append| &append.events).map(|event| event.event_id).collect();
    expected.sort_unstable();
    assert_eq!(sequence_all(store, lease).await, expected.len() as u64);
    let mut positioned: Vec<_> = whole_log(store).await.iter().map(|event| event.envelope.event_id).collect();
    positioned.sort_unstable();
    assert_eq!(positioned, expected);
    let mut sent: Vec<_> =
        drain(store, lease, channel, moment(9)).await.iter().map(|item| item.event.event_id).collect();
    sent.sort_unstable();
    assert_eq!(sent, expected);
}

async fn write_all(store: Arc<dyn InspectedStore>, commands: Vec<CompletedCommand>) {
    for command in &commands {
        taking_turns(|| store.complete_command(command)).await.expect("a writer that waited its turn");
    }
}
