//! Writers that race for the same version.

use std::sync::Arc;

use towpath_core::ids::Version;
use towpath_core::ports::store::StoreError;

use super::StoreFixture;
use super::acts::{hold_new_lease, sequence_all, versions_of, whole_log};
use super::facts::{OrderFacts, new_channel, new_order};
use super::waiting::{all_at_once, taking_turns};

/// Fifty rounds in which two writers have read the same version: one wins, the other is told of the conflict.
pub async fn two_writers_race_for_one_version(fixture: &impl StoreFixture) {
    let stores = [fixture.store().await, fixture.store().await];
    let (order, channel) = (new_order(), new_channel());
    for round in 0..50 {
        let writers = stores.iter().map(|store| {
            let store = Arc::clone(store);
            let facts = OrderFacts::about(&order, round).noted("race").routed(std::slice::from_ref(&channel));
            let completed = facts.command();
            async move { taking_turns(|| store.complete_command(&completed)).await }
        });
        let mut wins = 0;
        for answer in all_at_once(writers).await {
            match answer {
                Ok(result) => {
                    assert_eq!(result.aggregate_version, round + 1);
                    wins += 1;
                }
                Err(StoreError::VersionConflict { aggregate, .. }) => assert_eq!(aggregate, order),
                Err(other) => panic!("round {round}: a loser is told of the conflict, not {other:?}"),
            }
        }
        assert_eq!(wins, 1, "round {round}: exactly one wins");
    }
    assert_eq!(versions_of(&*stores[0], &order).await, (1..=50).collect::<Vec<_>>());
    let counts = stores[0].outbox_counts(&channel).await.expect("outbox_counts");
    assert_eq!(
        counts.by_status.iter().map(|(_, count)| count).sum::<u64>(),
        50,
        "losers leave no outbox rows"
    );
}

/// Eight writers that each add 25 facts, and load again after every conflict: 200 versions, none twice, none missing.
pub async fn eight_writers_lose_nothing_and_leave_no_gaps(fixture: &impl StoreFixture) {
    let order = new_order();
    let mut writers = Vec::new();
    for _ in 0..8 {
        let (store, order) = (fixture.store().await, order.clone());
        writers.push(async move {
            let mut made: Vec<Version> = Vec::new();
            while made.len() < 25 {
                let loaded = store.load(&order, None).await.expect("load");
                let version = loaded.aggregate.map_or(0, |row| row.version);
                let completed = OrderFacts::about(&order, version).noted("add").command();
                match taking_turns(|| store.complete_command(&completed)).await {
                    Ok(result) => made.push(result.aggregate_version),
                    Err(StoreError::VersionConflict { .. }) => {}
                    Err(other) => panic!("a loser is told of the conflict, not {other:?}"),
                }
            }
            made
        });
    }
    let mut made = all_at_once(writers).await.concat();
    made.sort_unstable();
    assert_eq!(made, (1..=200).collect::<Vec<_>>());
    let store = fixture.store().await;
    assert_eq!(versions_of(&*store, &order).await, made);
    let lease = hold_new_lease(&*store).await;
    assert_eq!(sequence_all(&*store, &lease).await, 200);
    let versions: Vec<_> =
        whole_log(&*store).await.iter().map(|event| event.envelope.aggregate_version).collect();
    assert_eq!(versions, made, "the log has them in version order");
}
