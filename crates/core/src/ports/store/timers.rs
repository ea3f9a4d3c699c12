//! Timers: commands that are due at a moment.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{LeaseGrant, StoreResult};
use crate::envelope::ChangeContext;
use crate::ids::{AggregateKey, CausationId, CorrelationId, EventId};
use crate::lifecycle::TaskState;
use crate::name::CommandName;
use crate::payload::Payload;

/// Something to do later: a command that is due at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTimer {
    /// Its identity, by which it can be cancelled.
    pub timer_id: Uuid,
    /// When.
    pub due_at: DateTime<Utc>,
    /// What: the command that is then sent.
    pub command_type: CommandName,
    /// To whom.
    pub aggregate: AggregateKey,
    /// With what.
    pub payload: Payload,
    /// The flow it belongs to.
    pub correlation_id: CorrelationId,
    /// What asked for it.
    pub causation_id: Option<CausationId>,
    /// Of a deadline: the event that entered the state which must not last longer. `None` for any other timer.
    pub entered_by: Option<EventId>,
    /// When it was asked for.
    pub created_at: DateTime<Utc>,
}

impl NewTimer {
    /// The timer of a deadline. It has the id of the event that entered the state, which is also its cause: whoever
    /// leaves the state finds it by the aggregate's history, and no two entries share one.
    pub fn of_deadline(
        entered_by: EventId,
        due_at: DateTime<Utc>,
        command_type: CommandName,
        aggregate: AggregateKey,
        context: &ChangeContext,
    ) -> Self {
        Self {
            timer_id: entered_by.0,
            due_at,
            command_type,
            aggregate,
            payload: Payload::empty(),
            correlation_id: context.correlation_id.clone(),
            causation_id: Some(CausationId::from(entered_by)),
            entered_by: Some(entered_by),
            created_at: context.occurred_at,
        }
    }
}

/// A timer and where it is (S5).
#[derive(Debug, Clone, PartialEq)]
pub struct Timer {
    /// What was scheduled.
    pub timer: NewTimer,
    /// Where it is.
    pub state: TaskState,
    /// Failures so far.
    pub retry_count: u32,
    /// Stable code of the last failure.
    pub error_code: Option<String>,
    /// Text of the last failure.
    pub error_message: Option<String>,
}

/// How a due timer ended.
#[derive(Debug, Clone, PartialEq)]
pub enum TimerOutcome {
    /// Its command was sent.
    Succeeded,
    /// It was not needed any more.
    Skipped {
        /// Stable code.
        reason: String,
    },
    /// It could not be sent; try again at the given moment, or never.
    Failed {
        /// Stable code.
        error_code: String,
        /// Text for people.
        error_message: String,
        /// When to try again.
        retry_at: Option<DateTime<Utc>>,
    },
    /// It could not be sent now, and that says nothing of it: again at the given moment, without being counted.
    Postponed {
        /// Stable code.
        error_code: String,
        /// Text for people.
        error_message: String,
        /// When to try again.
        until: DateTime<Utc>,
    },
}

/// Timers: commands that are due at a moment.
#[async_trait]
pub trait Timers: Send + Sync + 'static {
    /// Takes timers for commands of these types that are due and marks them running under a lease. Timers whose holder
    /// is gone are taken too. So many at most, and no more than have [`CLAIMED_BYTES`](super::CLAIMED_BYTES) of payloads together, but one. Types
    /// that this instance does not know stay for one that does.
    async fn claim_timers(
        &self,
        lease: &LeaseGrant,
        command_types: &[&str],
        now: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<Vec<Timer>>;

    /// Lets timers wait again that were claimed under this grant, except those that its holder knows of: when the answer to
    /// a claim was lost, it may have been made all the same. Answers how many.
    async fn return_unseen_timers(
        &self,
        grant: &LeaseGrant,
        seen: &[Uuid],
        now: DateTime<Utc>,
    ) -> StoreResult<u64>;

    /// Records how a claimed timer ended; `Fenced` when it was taken over.
    async fn finish_timer(
        &self,
        lease: &LeaseGrant,
        timer_id: Uuid,
        outcome: &TimerOutcome,
        now: DateTime<Utc>,
    ) -> StoreResult<()>;

    /// Timers that wait for their moment, the next one first; for commands of these types, or of any.
    async fn waiting_timers(&self, command_types: Option<&[&str]>, limit: u32) -> StoreResult<Vec<Timer>>;

    /// One timer.
    async fn timer(&self, timer_id: Uuid) -> StoreResult<Option<Timer>>;
}
