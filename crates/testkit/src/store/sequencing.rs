//! Positions: gapless, each event once, per aggregate in version order (P5), by one holder at a time (P7).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use towpath_core::ids::{AggregateKey, EventId, Version};
use towpath_core::ports::store::{InspectedStore, LeaseGrant, Sequenced, StoreError, StoreResult};

use super::StoreFixture;
use super::acts::{append, assert_refused, hold_new_lease, stale_and_fresh, whole_log};
use super::facts::{OrderFacts, new_order};
use super::waiting::{Dice, all_at_once, answer_of, taking_turns};

/// Small batches over interleaved aggregates: positions follow each other, and versions follow each other.
pub async fn positions_are_gapless_and_in_version_order(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let orders = [new_order(), new_order(), new_order()];
    assert_eq!(sequence(&*store, &lease, 2).await, (0, 0), "an empty log has no head");
    for version in 0..3 {
        for order in &orders {
            append(&*store, &OrderFacts::about(order, version).noted("interleaved").append()).await;
        }
    }
    assert_eq!(store.head().await.expect("head"), 0, "nothing has a position before the sequencer ran");
    for (count, head) in [(2, 2), (2, 4), (2, 6), (2, 8), (1, 9), (0, 9)] {
        assert_eq!(sequence(&*store, &lease, 2).await, (count, head));
        assert_eq!(store.head().await.expect("head"), head);
        whole_log(&*store).await;
    }
    assert_versions_in_order(&*store, orders.iter().map(|order| (order.clone(), 3)).collect()).await;
    for order in &orders {
        let events = store.events_of(order, 0, 10).await.expect("events_of");
        assert!(
            events.iter().all(|event| event.position.is_some()),
            "events show their positions: {events:?}"
        );
    }
}

/// Two sequencers with the same grant, and a third that sleeps in an older epoch, while eight writers commit and
/// roll back: every committed event has one position, no other has any, and the sleeper is refused every time.
pub async fn two_sequencers_at_once_give_each_event_one_position(fixture: &impl StoreFixture) {
    const WRITERS: u64 = 8;
    const ROUNDS: u64 = 20;
    let store = fixture.store().await;
    let (stale, fresh) = stale_and_fresh(&*store).await;
    let orders: Vec<_> = (0..5).map(|_| new_order()).collect();
    let writers_are_done = Arc::new(AtomicBool::new(false));

    let mut sequencers = Vec::new();
    for _ in 0..2 {
        let (store, grant, done) = (fixture.store().await, fresh.clone(), Arc::clone(&writers_are_done));
        sequencers.push(tokio::spawn(async move {
            let mut given = 0;
            loop {
                // Asked before the run: what commits before `done` is seen by the run that follows.
                let last_run = done.load(Ordering::SeqCst);
                let sequenced = taking_turns(|| store.sequence(&grant, 7)).await.expect("sequence");
                given += sequenced.count;
                if last_run && sequenced.count == 0 {
                    return given;
                }
                tokio::task::yield_now().await;
            }
        }));
    }
    let sleeper = {
        let (store, done) = (fixture.store().await, Arc::clone(&writers_are_done));
        tokio::spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let answer = taking_turns(|| store.sequence(&stale, 7)).await;
                assert_refused!(answer, StoreError::Fenced { .. }, "a sequencer of an older epoch");
                tokio::task::yield_now().await;
            }
        })
    };

    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (store, orders) = (fixture.store().await, orders.clone());
        writers.push(async move {
            let mut dice = Dice::new(writer);
            let mut committed = Vec::new();
            for _ in 0..ROUNDS {
                let order = &orders[dice.roll(5) as usize];
                let commits = dice.roll(3) > 0;
                let facts = (0..=dice.roll(3))
                    .fold(OrderFacts::whatever_version(order), |facts, _| facts.noted("busy"));
                let append = facts.append();
                taking_turns(|| write(&*store, &append, commits)).await.expect("write");
                if commits {
                    committed.extend(append.events.iter().map(|event| event.event_id));
                }
            }
            committed
        });
    }
    let committed: BTreeSet<EventId> = all_at_once(writers).await.concat().into_iter().collect();
    writers_are_done.store(true, Ordering::SeqCst);
    let mut given = 0;
    for sequencer in sequencers {
        given += answer_of(sequencer).await;
    }
    answer_of(sleeper).await;

    assert_eq!(given, committed.len() as u64, "what the two counted is what was committed");
    let log = whole_log(&*store).await;
    let positioned: BTreeSet<EventId> = log.iter().map(|event| event.envelope.event_id).collect();
    assert_eq!(positioned.len(), log.len(), "each event once");
    assert_eq!(positioned, committed, "every committed event and no other");
    let mut versions = BTreeMap::new();
    for order in &orders {
        let loaded = store.load(order, None).await.expect("load").aggregate;
        versions.insert(order.clone(), loaded.map_or(0, |row| row.version));
    }
    assert_versions_in_order(&*store, versions).await;
}

/// A sequencer of an older epoch is refused, and its successor goes on where the positions end.
pub async fn a_fenced_sequencer_gives_no_positions(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (stale, fresh) = stale_and_fresh(&*store).await;
    append(&*store, &OrderFacts::of_new_order().placed().append()).await;
    match store.sequence(&stale, 10).await {
        Err(StoreError::Fenced { lease, epoch }) => {
            assert_eq!((lease, epoch), (stale.lease.clone(), stale.epoch))
        }
        other => panic!("expected Fenced, got {other:?}"),
    }
    assert_eq!(store.head().await.expect("head"), 0);
    assert_eq!(sequence(&*store, &fresh, 10).await, (1, 1));
    let unknown = LeaseGrant { epoch: fresh.epoch + 1, ..fresh.clone() };
    assert_refused!(store.sequence(&unknown, 10).await, StoreError::Fenced { .. }, "an epoch that never was");
}

async fn sequence(store: &dyn InspectedStore, lease: &LeaseGrant, limit: u32) -> (u64, u64) {
    let Sequenced { count, head, .. } = store.sequence(lease, limit).await.expect("sequence");
    (count, head)
}

async fn write(
    store: &dyn InspectedStore,
    append: &towpath_core::ports::store::Append,
    commits: bool,
) -> StoreResult<()> {
    let mut tx = store.begin().await?;
    match tx.append(append).await {
        Ok(_) if commits => tx.commit().await,
        Ok(_) => tx.rollback().await,
        Err(error) => {
            tx.rollback().await?;
            Err(error)
        }
    }
}

async fn assert_versions_in_order(store: &dyn InspectedStore, expected: BTreeMap<AggregateKey, Version>) {
    let mut seen: BTreeMap<AggregateKey, Version> = BTreeMap::new();
    for event in whole_log(store).await {
        let version = seen.entry(event.envelope.aggregate.clone()).or_default();
        *version += 1;
        assert_eq!(event.envelope.aggregate_version, *version, "{} out of order", event.envelope.aggregate);
    }
    let expected: BTreeMap<_, _> = expected.into_iter().filter(|(_, version)| *version > 0).collect();
    assert_eq!(seen, expected);
}
