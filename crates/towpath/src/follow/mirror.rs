//! Keeping another log's facts as they are there.

use towpath_core::envelope::{ChangeContext, EventEnvelope};
use towpath_core::ids::Position;
use towpath_core::ports::store::{Append, DeadlineChange, Expected, NewEvent, StoreError};
use towpath_store::SqlStore;

use super::FollowError;
use crate::bus::Bus;
use crate::tx::Tx;

/// Appends facts with the ids, aggregates and versions they have, and routes them by the channels of this Towpath. One
/// that is here already, because it was mirrored under another name before, is left as it is. Where what is here is not
/// what comes, it ends.
///
/// There is no folded state: who decides about these aggregates is elsewhere.
pub(super) async fn keep(
    bus: &Bus,
    store: &SqlStore,
    mut tx: Tx,
    facts: &[(Position, &EventEnvelope, u32)],
) -> Result<(), FollowError> {
    let mut rest = facts;
    while let Some((position, first, _)) = rest.first() {
        // What one command led to is one append.
        let together =
            1 + rest[1..].iter().zip(rest).take_while(|(next, before)| is_one(before.1, next.1)).count();
        let (group, others) = rest.split_at(together);
        rest = others;
        let facts: Vec<&EventEnvelope> = group.iter().map(|(_, fact, _)| *fact).collect();
        match tx.append_as_it_is(&append_of(bus, first, &facts)).await {
            Ok(_) => {}
            Err(StoreError::VersionConflict { aggregate, .. }) => {
                let conflict = || FollowError::MirrorConflict { position: *position, aggregate };
                // Those that are here may end in the middle of what one command led to: pages are cut anywhere.
                let here = how_many_are_here(store, &facts).await?.ok_or_else(conflict)?;
                if let [first, ..] = &facts[here..] {
                    match tx.append_as_it_is(&append_of(bus, first, &facts[here..])).await {
                        Err(StoreError::VersionConflict { aggregate, .. }) => {
                            return Err(FollowError::MirrorConflict { position: *position, aggregate });
                        }
                        appended => drop(appended?),
                    }
                }
            }
            Err(StoreError::DuplicateEvent(aggregate)) => {
                return Err(FollowError::MirrorConflict { position: *position, aggregate });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether one fact follows the other in the same change.
fn is_one(before: &EventEnvelope, next: &EventEnvelope) -> bool {
    before.aggregate == next.aggregate
        && before.aggregate_version.checked_add(1) == Some(next.aggregate_version)
        && context_of(before) == context_of(next)
}

fn context_of(fact: &EventEnvelope) -> ChangeContext {
    let mut context = ChangeContext::new(fact.occurred_at, fact.correlation_id.clone());
    context.causation_id.clone_from(&fact.causation_id);
    context.trace_id.clone_from(&fact.trace_id);
    context.actor_id.clone_from(&fact.actor_id);
    context.tenant_id.clone_from(&fact.tenant_id);
    context
}

fn append_of(bus: &Bus, first: &EventEnvelope, facts: &[&EventEnvelope]) -> Append {
    let events = facts.iter().map(|fact| NewEvent {
        event_id: fact.event_id,
        event_type: fact.event_type.clone(),
        schema_version: fact.schema_version,
        payload: fact.payload.clone(),
        channels: bus.registry.routing_of(fact.event_type.as_str()),
    });
    Append {
        aggregate: first.aggregate.clone(),
        expected: match first.aggregate_version {
            0 | 1 => Expected::New,
            version => Expected::Exactly(version - 1),
        },
        events: events.collect(),
        snapshot: None,
        state_changes: Vec::new(),
        deadline: DeadlineChange::default(),
        context: context_of(first),
    }
}

/// How many of the first of these facts are here, to the letter. Nothing if there is something else in the place of one,
/// or none of them.
async fn how_many_are_here(store: &SqlStore, facts: &[&EventEnvelope]) -> Result<Option<usize>, FollowError> {
    let Some(first) = facts.first() else { return Ok(Some(0)) };
    let count = u32::try_from(facts.len()).unwrap_or(u32::MAX);
    let here = store.events_of(&first.aggregate, first.aggregate_version.saturating_sub(1), count).await?;
    let are_same = here.iter().zip(facts).all(|(here, fact)| here.envelope == **fact);
    Ok((are_same && !here.is_empty()).then_some(here.len()))
}
