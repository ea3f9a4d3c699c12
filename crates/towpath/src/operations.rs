//! Operations: changes that somebody asked for from outside, recorded as facts (who, what, how it ended).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use towpath_core::envelope::ChangeContext;
use towpath_core::ids::{AggregateKey, CorrelationId, EventId};
use towpath_core::name::EventName;
use towpath_core::payload::Payload;
use towpath_core::ports::operations::{
    BeginOutcome, NewOperation, OperationAnswer, OperationClaim, OperationEnd,
};
use towpath_core::ports::store::{Append, Expected, NewEvent, Snapshot, StoreError, StoreResult};
use towpath_core::retry::Coded as _;
use towpath_core::time::earlier;
use uuid::Uuid;

use crate::bus::{Bus, with_causes};
use crate::committed::Committed;
use crate::leases::Held;
use crate::service::{Service, Stopping, Wake, rest};

/// The aggregates that operations are: one each.
pub const OPERATION_KIND: &str = "operation";

/// The fact about an operation.
pub const OPERATION_PERFORMED: &str = "towpath.operation.performed";

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It was done.
    Done,
    /// It was refused: nothing changed.
    Refused,
    /// Something broke.
    Failed,
    /// The process ended in the middle of it, or lost track of it. It may have been done.
    Unknown,
}

tokio::task_local! {
    /// The operation that the work of this task is done for.
    static CURRENT: Arc<Running>;
}

/// An operation that is being run.
struct Running {
    claim: OperationClaim,
    /// Somebody wrote its answer into a transaction; whether that committed, the store knows.
    answered: AtomicBool,
}

/// What running an operation came to.
pub struct Ran<T> {
    /// What the work answered.
    pub answer: T,
    /// Whether the work wrote the operation's answer into a transaction of its own
    /// ([`Tx::answer`](crate::Tx::answer)). Whether that committed, the store knows.
    pub wrote_answer: bool,
}

/// The claim of the operation that runs, for an answer that is about to be written with its effect.
pub(crate) fn claim_to_answer() -> Option<OperationClaim> {
    CURRENT
        .try_with(|running| {
            running.answered.store(true, Ordering::SeqCst);
            running.claim.clone()
        })
        .ok()
}

impl Outcome {
    /// As it is stored and shown.
    pub(crate) const ALL: [(Self, &'static str); 4] = [
        (Self::Done, "done"),
        (Self::Refused, "refused"),
        (Self::Failed, "failed"),
        (Self::Unknown, "unknown"),
    ];
}

/// Operations, for a server. Made by [`Towpath::operations`](crate::Towpath::operations).
pub struct Operations<'a> {
    pub(crate) bus: &'a Bus,
}

/// The fact about an operation, as it is stored.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Performed<'a> {
    actor: &'a str,
    role: &'a str,
    action: &'a str,
    target: &'a str,
    outcome: Outcome,
    status: Option<u16>,
    request_id: Option<&'a str>,
    trace_id: Option<&'a str>,
    /// More than one when an earlier process died in the middle of it.
    attempts: u64,
    asked_at: chrono::DateTime<chrono::Utc>,
}

impl Operations<'_> {
    /// Begins an operation, or answers how it stands. The claim lasts for a time, and then the operation counts as lost:
    /// a repeat of the same request takes it over.
    pub async fn begin(&self, operation: &NewOperation, for_: Duration) -> Result<BeginOutcome, StoreError> {
        self.bus.store.begin_operation(operation, for_).await
    }

    /// Runs the work of an operation. An effect inside that has a transaction of its own may write the operation's answer
    /// there: see [`Tx::answer`](crate::Tx::answer).
    ///
    /// # Caveats
    /// The operation belongs to the task: what is spawned inside does not know of it.
    pub async fn run<F: Future>(&self, claim: &OperationClaim, work: F) -> Ran<F::Output> {
        let running = Arc::new(Running { claim: claim.clone(), answered: AtomicBool::new(false) });
        let answer = CURRENT.scope(Arc::clone(&running), work).await;
        Ran { answer, wrote_answer: running.answered.load(Ordering::SeqCst) }
    }

    /// The answer of an operation that was written with its effect, if that has committed.
    pub async fn answer_of(&self, claim: &OperationClaim) -> Result<Option<OperationAnswer>, StoreError> {
        self.bus.store.answered_operation(claim).await
    }

    /// Ends an operation and records the fact about it, in one transaction. Answers `false` when it was taken over
    /// meanwhile: then the other one ends it.
    pub async fn end(
        &self,
        operation: &NewOperation,
        claim: &OperationClaim,
        end: OperationEnd<'_>,
        outcome: Outcome,
        status: Option<u16>,
    ) -> Result<bool, StoreError> {
        let fact = fact(self.bus, operation, claim, outcome, status)?;
        let ended = self.bus.store.end_operation(claim, end, Some(&fact), self.bus.clock.now()).await?;
        if ended {
            self.bus.meters.operation(outcome).increment(1);
            self.bus.committed(&Committed::of(&fact, &self.bus.registry));
        }
        Ok(ended)
    }

    /// Takes an operation back that turned out to be none: there is no fact about it.
    pub async fn forget(&self, claim: &OperationClaim) -> Result<bool, StoreError> {
        self.bus.store.end_operation(claim, OperationEnd::Forgotten, None, self.bus.clock.now()).await
    }

    /// Records operations whose process died in the middle as such, and answers how many. Their names are free again,
    /// unless their answer is known.
    pub async fn record_lost(&self) -> Result<u64, StoreError> {
        let mut recorded = 0;
        loop {
            let lost = self.bus.store.lost_operations(PAGE).await?;
            let page = lost.len();
            for lost in lost {
                // What was answered with its effect was done; only its process did not live to say so.
                let (end, outcome) = match lost.answered {
                    Some(_) => (OperationEnd::Kept, Outcome::Done),
                    None => (OperationEnd::Forgotten, Outcome::Unknown),
                };
                let ended = self.end(&lost.operation, &lost.claim, end, outcome, lost.answered).await?;
                recorded += u64::from(ended);
            }
            if page < PAGE as usize {
                return Ok(recorded);
            }
        }
    }
}

/// How many rows are looked at in one round.
const PAGE: u32 = 200;

/// Starts the service that records what was lost and deletes what was answered long ago.
pub(crate) fn start(bus: Bus, held: watch::Receiver<Held>, every: Duration, keep: Duration) -> Service {
    Service::keep_running("operations", move |stopping| {
        look_after(bus.clone(), held.clone(), every, keep, stopping)
    })
}

async fn look_after(
    bus: Bus,
    held: watch::Receiver<Held>,
    every: Duration,
    keep: Duration,
    mut stopping: Stopping,
) {
    let nobody = Wake::default();
    loop {
        rest(&nobody, every, &mut stopping).await;
        if stopping.is_asked() {
            return;
        }
        // Whoever cleans up does this, too: one instance is enough.
        let Some(lease) = held.borrow().cleaner.clone() else { continue };
        let looked = async {
            let lost = Operations { bus: &bus }.record_lost().await?;
            if let Some(before) = earlier(bus.clock.now(), keep) {
                while bus.store.clean_operations(&lease, before, PAGE).await? > 0 && !stopping.is_asked() {}
            }
            StoreResult::Ok(lost)
        };
        match looked.await {
            Ok(0) | Err(StoreError::Fenced { .. }) => {}
            Ok(lost) => tracing::warn!(lost, "operations whose process died were recorded as such"),
            Err(error) => {
                let cause = with_causes(&error);
                tracing::warn!(code = error.code(), cause, "could not look after operations");
            }
        }
    }
}

fn fact(
    bus: &Bus,
    operation: &NewOperation,
    claim: &OperationClaim,
    outcome: Outcome,
    status: Option<u16>,
) -> StoreResult<Append> {
    let performed = Performed {
        actor: operation.key.actor.as_str(),
        role: &operation.role,
        action: &operation.action,
        target: &operation.target,
        outcome,
        status,
        request_id: operation.request_id.as_ref().map(|id| id.as_str()),
        trace_id: operation.trace_id.as_ref().map(|id| id.as_str()),
        attempts: claim.epoch,
        asked_at: operation.asked_at,
    };
    let payload = Payload::from_value(&performed).map_err(|error| StoreError::Corrupt {
        what: "the fact about an operation".to_owned(),
        source: error.into(),
    })?;
    let mut context = ChangeContext::new(bus.clock.now(), CorrelationId::of_new_flow(claim.operation_id));
    context.actor_id = Some(operation.key.actor.clone());
    context.request_id.clone_from(&operation.request_id);
    context.trace_id.clone_from(&operation.trace_id);
    Ok(Append {
        aggregate: AggregateKey::from_stored(OPERATION_KIND, claim.operation_id.to_string()),
        expected: Expected::New,
        events: vec![NewEvent {
            event_id: EventId(Uuid::now_v7()),
            event_type: EventName::from_stored(OPERATION_PERFORMED),
            schema_version: 1,
            payload: payload.clone(),
            channels: bus.registry.routing_of(OPERATION_PERFORMED),
        }],
        snapshot: Some(Snapshot { data: payload, version: 1 }),
        state_changes: Vec::new(),
        deadline: Default::default(),
        context,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_name_follows_the_rules() {
        assert_eq!(EventName::infer(OPERATION_PERFORMED).unwrap().as_str(), OPERATION_PERFORMED);
    }
}
