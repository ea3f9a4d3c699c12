//! Processes: each fact that one takes changes it once, with all that it wants done, in one transaction.
//!
//! A consumer takes the facts. In its transaction the process is locked, reacts (a pure function of the core), and its events,
//! its actions, the record of the fact and the mark of the delivery commit together. Two facts at once come one after the
//! other: the second waits for the row, or finds that the process has just begun and is handled again.
//!
//! Reading order: this file takes facts; `tx/processes.rs` has what is done in the transaction; `undoing` undoes it.

mod undoing;

use std::time::Duration;

use towpath_core::aggregate::Context;
use towpath_core::ids::{AggregateKey, EventId};
use towpath_core::messages::Event;
use towpath_core::payload::Payload;
use towpath_core::ports::store::{Append, InputOutcome, ProcessInput, Processes as _, StoreError};
use towpath_core::process::{Course, Process, Seen, Waited};
use towpath_core::task::TaskSaid;
use towpath_core::time::between;

use crate::bus::with_causes;
use crate::consumer::{Consumer, ConsumerOf, Fact, HandlerError, Next};
use crate::towpath::Towpath;
use crate::tx::{LockedProcess, Tx};

pub(crate) use undoing::{Compensator, compensation};

/// Why a fact waits, and why it is given up.
const NOT_STARTED: &str = "process-not-started";
const ILLEGAL: &str = "illegal-transition";

/// The name of a process's handler, and of its own channel.
pub(crate) fn handler_of<P: Process>() -> String {
    format!("process.{}", P::KIND)
}

/// The consumer that takes the facts of a process.
pub(crate) fn consumer<P: Process>(source: ConsumerOf) -> Consumer {
    // A fact that waits is known to have waited by its letter.
    let source = source.only(P::Input::NAMES.iter().copied()).keeping_the_dead();
    source.events::<P::Input>().each(handler_of::<P>(), take::<P>)
}

/// Takes one fact.
async fn take<P: Process>(fact: Fact<P::Input>, mut tx: Tx) -> Result<Next, HandlerError> {
    let now = tx.now();
    let Fact { event, envelope, set_aside_at, tried_at, .. } = fact;
    if is_undoing_of_another(P::KIND, envelope.event_type.as_str(), &envelope.payload) {
        return Ok(Next::handled());
    }
    let (event_id, event_type) = (envelope.event_id, envelope.event_type);
    let seen = Seen {
        event,
        event_id,
        aggregate: envelope.aggregate,
        occurred_at: envelope.occurred_at.unwrap_or(now),
        correlation_id: envelope.correlation_id,
    };
    let correlation = P::correlate(&seen);
    let Some(id) = correlation.id() else { return Ok(Next::handled()) };
    let process = AggregateKey::new(P::KIND, id)
        .map_err(|error| HandlerError::unrecoverable("invalid-id", with_causes(&error)))?;
    let locked = tx.lock_process::<P>(&process).await?;
    let has_ended = locked.as_ref().map(|locked| tx.has_ended::<P>(locked.state.as_deref(), &[]));
    let waited = match (set_aside_at, tried_at) {
        (Some(first), Some(last)) => Waited { before: between(first, last), since: between(last, now) },
        _ => Waited::default(),
    };
    let changed = locked.as_ref().map_or(Duration::MAX, |locked| between(locked.changed_at, now));
    let outcome = match Course::of(&correlation, has_ended) {
        Course::Waits => {
            let message = format!("{process} has not begun, and does not begin with {event_type}");
            return Ok(match waited.pause(P::WAITS_FOR_START) {
                Some(pause) => Next::retry_after(pause, NOT_STARTED, message),
                None => Next::dead(NOT_STARTED, message),
            });
        }
        Course::Ignored => InputOutcome::Ignored,
        Course::AfterEnd => {
            // A deadline or a command may have ended it: nothing of its was called off there.
            clear(&mut tx, &process).await?;
            InputOutcome::AfterEnd
        }
        Course::Starts | Course::Reacts => match react(&mut tx, &process, locked, seen).await {
            Ok(outcome) => outcome,
            Err(error) => {
                let is_early = error.code() == ILLEGAL;
                return match waited.pause_before_turn::<P>(changed).filter(|_| is_early) {
                    Some(pause) => Ok(Next::retry_after(pause, ILLEGAL, error.message())),
                    None => Err(error),
                };
            }
        },
    };
    tx.record_input(&ProcessInput { process, event_id, event_type, outcome, recorded_at: now }).await?;
    Ok(Next::handled())
}

/// Whether a fact tells of undoing what a process of another kind did: all of them share the names of these facts.
fn is_undoing_of_another(kind: &str, event_type: &str, payload: &Payload) -> bool {
    let is_for_another = |said: TaskSaid| said.subject.is_some_and(|subject| subject.kind.as_str() != kind);
    event_type.starts_with(undoing::FACTS) && payload.read("a fact of a task").is_ok_and(is_for_another)
}

/// Lets the process react, and does what follows.
async fn react<P: Process>(
    tx: &mut Tx,
    key: &AggregateKey,
    locked: Option<LockedProcess<P>>,
    seen: Seen<P::Input>,
) -> Result<InputOutcome, HandlerError> {
    let is_new = locked.is_none();
    let LockedProcess { process, version, state, renewed, .. } = locked.unwrap_or_default();
    let context = Context { now: tx.now(), version, actor_id: None, tenant_id: None };
    let (events, actions) = process
        .react(seen, &context)
        .into_parts()
        .map_err(|flaw| HandlerError::unrecoverable(flaw.code(), with_causes(&flaw)))?;
    if events.is_empty() && actions.is_empty() {
        return Ok(InputOutcome::Ignored);
    }
    // It begins with its first event.
    let begins = is_new && !events.is_empty();
    let names: Vec<&str> = events.iter().map(Event::name).collect();
    let ends = tx.has_ended::<P>(state.as_deref(), &names);
    if !events.is_empty() {
        let append = Append::of::<P>(key.id.as_str()).events(events).expecting(version);
        tx.append_to_process(append, renewed.as_ref()).await.map_err(given_way)?;
    }
    if ends {
        tx.cancel_timers(key, None).await?;
    }
    tx.act(key, actions).await?;
    if ends {
        tx.keep_timers(key).await?;
        tx.forget_undos(key).await?;
    }
    Ok(if begins { InputOutcome::Started } else { InputOutcome::Reacted })
}

/// Calls off what a process that has ended still has to come.
async fn clear(tx: &mut Tx, process: &AggregateKey) -> Result<(), StoreError> {
    tx.cancel_timers(process, None).await?;
    tx.forget_undos(process).await
}

/// Another fact was quicker to begin the process: this one is handled again, and nothing has failed.
fn given_way(error: StoreError) -> StoreError {
    match error {
        error @ StoreError::VersionConflict { .. } => StoreError::Contention(error.into()),
        error => error,
    }
}

impl Towpath {
    /// The facts that a process took and what came of each, by their ids, behind one. They are kept as long as the inbox
    /// remembers.
    pub async fn process_inputs(
        &self,
        process: &AggregateKey,
        after: Option<EventId>,
        limit: u32,
    ) -> Result<Vec<ProcessInput>, StoreError> {
        self.store().process_inputs(process, after, limit).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_undone_of_another_kind_is_told_by_its_subject() {
        let said = serde_json::json!({
            "taskId": "0190c0de-0000-7000-8000-000000000007",
            "taskType": "towpath.compensate.trip",
            "subject": { "kind": "trip", "id": "7" },
        });
        let said = Payload::from_value(&said).unwrap();
        let is_of_another = |kind, name| is_undoing_of_another(kind, name, &said);
        assert!(is_of_another("gift", "Towpath.Compensation.Completed"));
        assert!(!is_of_another("trip", "Towpath.Compensation.Completed"));
        assert!(
            !is_of_another("gift", "Painter.Drawing.Drawn"),
            "the process says whose other tasks it takes"
        );
    }
}
