//! What an operation costs in round trips: part of the contract, because latency is.

use std::sync::Arc;

use towpath_core::ports::store::{CompletedCommand, Found, OutboxOutcome};

use super::StoreFixture;
use super::acts::{append, claim, hold_new_lease, result};
use super::facts::COMMAND_TYPES;
use super::facts::{OrderFacts, completed, moment, new_channel, new_order, place};
use crate::probe::CountingProbe;

/// Loading is one round trip, whatever is found.
pub async fn a_load_is_one_round_trip(fixture: &impl StoreFixture) {
    let probe = Arc::new(CountingProbe::new());
    let store = fixture.store_with_probe(Arc::clone(&probe) as _).await;
    let written = OrderFacts::of_new_order().placed().paid().command();
    store.complete_command(&written).await.expect("complete");
    probe.take();
    for aggregate in [&written.command.aggregate, &new_order()] {
        for command in [Some(&written.command.command_id), None] {
            store.load(aggregate, command).await.expect("load");
            let statements = probe.take();
            assert_eq!(statements.len(), 1, "{statements:?}");
        }
    }
}

/// A whole new command is one statement where the adapter promises that; elsewhere a command costs no more for twenty events than
/// for one.
pub async fn a_command_costs_few_round_trips(fixture: &impl StoreFixture) {
    let probe = Arc::new(CountingProbe::new());
    let store = fixture.store_with_probe(Arc::clone(&probe) as _).await;
    let lease = hold_new_lease(&*store).await;
    for found in [Found::Nowhere, Found::Failed { retry_count: 0 }, Found::Claimed(lease.clone())] {
        let mut costs = Vec::new();
        for count in [1, 20] {
            let completed = command_with(count, found.clone());
            match &found {
                Found::Nowhere => {}
                Found::Failed { retry_count } => {
                    let failure =
                        super::facts::failed(&completed.command, Found::Nowhere, *retry_count, None);
                    store.fail_command(&failure).await.expect("fail");
                }
                Found::Claimed(lease) => {
                    store.accept_command(&completed.command).await.expect("accept");
                    assert_eq!(
                        store.claim_commands(lease, COMMAND_TYPES, moment(1), 10).await.expect("claim").len(),
                        1
                    );
                }
            }
            probe.take();
            store.complete_command(&completed).await.expect("complete");
            costs.push(probe.take());
        }
        if store.promises().single_statement_write && found == Found::Nowhere {
            assert_eq!((costs[0].len(), costs[1].len()), (1, 1), "{found:?}: {costs:?}");
        } else {
            assert_eq!(costs[0], costs[1], "{found:?}: twenty events cost what one costs");
        }
    }
}

/// Fifty results cost what one costs.
pub async fn results_are_written_in_one_batch(fixture: &impl StoreFixture) {
    let probe = Arc::new(CountingProbe::new());
    let store = fixture.store_with_probe(Arc::clone(&probe) as _).await;
    let lease = hold_new_lease(&*store).await;
    let mut costs = Vec::new();
    for count in [1, 50] {
        let channel = new_channel();
        for _ in 0..count {
            let facts = OrderFacts::of_new_order().placed().routed(std::slice::from_ref(&channel));
            append(&*store, &facts.append()).await;
        }
        let items = claim(&*store, &channel, moment(1)).await;
        assert_eq!(items.len(), count);
        let results: Vec<_> = items.iter().map(|item| result(item, OutboxOutcome::Sent)).collect();
        probe.take();
        let recorded = store.record_outbox(std::slice::from_ref(&lease), &channel, moment(1), &results).await;
        recorded.expect("record");
        costs.push(probe.take());
    }
    assert_eq!(costs[0], costs[1]);
}

fn command_with(count: usize, found: Found) -> CompletedCommand {
    let command = place(&new_order());
    let facts = OrderFacts::about(&command.aggregate, 0).placed();
    let facts = (1..count).fold(facts, |facts, _| facts.noted("more"));
    let append = facts.routed(&[new_channel()]).caused_by(&command).append();
    completed(&command, found, Some(append))
}
