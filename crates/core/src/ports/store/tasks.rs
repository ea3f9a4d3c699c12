//! Tasks: durable work that a worker takes, does and answers.
//!
//! A task is started in a transaction ([`StoreTx::start_tasks`](super::StoreTx::start_tasks)). PENDING waits for its time, QUEUED
//! may be taken. Who takes it has it under an epoch, for as long as its heartbeat goes on: whoever else lets it end
//! raises the epoch first, so that a worker that was paused cannot answer for the one that took over. Every moment is the
//! database's.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::StoreResult;
use crate::ids::{AggregateKey, CausationId, CorrelationId, TaskId, TaskKey, TaskTypeName, TraceId};
use crate::lifecycle::TaskState;
use crate::payload::Payload;

/// A task that is to be started.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTask {
    /// UUIDv7.
    pub task_id: TaskId,
    /// What sort of work.
    pub task_type: TaskTypeName,
    /// What it is unique by among the open tasks of its type.
    pub unique_key: Option<TaskKey>,
    /// Higher ones are taken first.
    pub priority: i64,
    /// It waits until then.
    pub not_before: Option<DateTime<Utc>>,
    /// What the worker needs to know.
    pub payload: Payload,
    /// How long one attempt may take.
    pub time_limit: Option<Duration>,
    /// How long a worker may be silent before another takes over.
    pub heartbeat: Duration,
    /// What it is for.
    pub subject: Option<AggregateKey>,
    /// The flow it belongs to.
    pub correlation_id: CorrelationId,
    /// What asked for it.
    pub causation_id: Option<CausationId>,
    /// The trace it belongs to.
    pub trace_id: Option<TraceId>,
}

impl NewTask {
    /// The key of a task that is unique within its subject: a hash stands for the subject, whose id may have any length, so that
    /// no two subjects have a key in common.
    pub fn key_within(subject: &AggregateKey, name: &str) -> String {
        format!("{}/{name}", subject.digest())
    }

    /// Its unique key; of a task that is unique within its subject, its name there.
    pub fn name(&self) -> Option<&str> {
        let key = self.unique_key.as_ref()?.as_str();
        let subject = self.subject.as_ref().map(AggregateKey::digest);
        let within = subject.and_then(|subject| key.strip_prefix(&subject)?.strip_prefix('/'));
        Some(within.unwrap_or(key))
    }
}

/// What starting a task came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartedTask {
    /// The task: the one that was given, or the open one of its key.
    pub task_id: TaskId,
    /// Whether it is the one that was given.
    pub is_new: bool,
}

/// A task and where it is (S5).
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// What was started.
    pub task: NewTask,
    /// Where it is.
    pub status: TaskState,
    /// Since when.
    pub status_changed_at: DateTime<Utc>,
    /// Why: a stable code.
    pub status_reason: Option<String>,
    /// Why: a text for people.
    pub status_message: Option<String>,
    /// When the last attempt began.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// When it failed last.
    pub failed_at: Option<DateTime<Utc>>,
    /// Stable code of the last failure.
    pub error_code: Option<String>,
    /// Text of the last failure.
    pub error_message: Option<String>,
    /// How often it was tried again.
    pub retry_count: u64,
    /// What it came to.
    pub result: Option<Payload>,
    /// How often it was taken.
    pub epoch: u64,
    /// Who has it.
    pub worker: Option<String>,
    /// Until when its worker must say that it lives.
    pub heartbeat_due_at: Option<DateTime<Utc>>,
    /// Until when its attempt must end.
    pub attempt_due_at: Option<DateTime<Utc>>,
    /// When it was called off while it ran.
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// When it was started.
    pub created_at: DateTime<Utc>,
}

/// Under what a worker has a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskClaim {
    /// Which one.
    pub task_id: TaskId,
    /// Since when, counted by those who had it.
    pub epoch: u64,
}

/// What a worker can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedTasks<'a> {
    /// Tasks of this type.
    pub task_type: &'a str,
    /// So many at most.
    pub limit: u32,
}

/// What became of tasks that waited for their time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Promoted {
    /// So many may be taken now.
    pub count: u64,
    /// After how long the next one may; none when none waits. Nothing, when some are due that were left for the next call.
    pub next_in: Option<Duration>,
}

/// What a worker that lives is told of its tasks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskBeats {
    /// These are not its own any more.
    pub lost: Vec<TaskId>,
    /// These are to be called off.
    pub canceling: Vec<TaskId>,
    /// Somebody has these locked: they are its own, and were not heard of. Say it again soon.
    pub locked: Vec<TaskId>,
}

/// A task that runs, and that nobody else changes meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldTask {
    /// Which one.
    pub task_id: TaskId,
    /// Whether it is to be called off.
    pub is_canceling: bool,
    /// Why; none as long as nobody calls it off.
    pub reason: Option<String>,
}

/// How the attempt at a task ended.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskEnding {
    /// Of which task, and under what it was done.
    pub claim: TaskClaim,
    /// How.
    pub end: TaskEnd,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskEnd {
    /// It was done.
    Succeeded {
        /// What it came to.
        result: Option<Payload>,
    },
    /// It turned out not to be needed.
    Skipped {
        /// Stable code.
        reason: String,
        /// Text for people.
        message: Option<String>,
    },
    /// It was called off, for the reason that was given then.
    Canceled,
    /// It broke off.
    Failed {
        /// Stable code.
        error_code: String,
        /// Text for people.
        error_message: String,
        /// After how long it is tried again; none: never. One that is to be called off is called off instead.
        retry_after: Option<Duration>,
    },
    /// It took too long.
    TimedOut {
        /// Text for people.
        error_message: String,
        /// As of one that failed.
        retry_after: Option<Duration>,
    },
    /// Its worker stops: another may take it at once, and nothing is counted.
    GivenBack,
}

impl TaskEnd {
    /// The error code of an attempt that took too long, and the reason of one that is taken over because of it.
    pub const TIME_LIMIT: &'static str = "time-limit";

    /// The error code of an attempt whose worker was silent for too long, and the reason for taking it over.
    pub const WORKER_LOST: &'static str = "worker-lost";

    /// Whether nothing follows it.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Succeeded { .. } | Self::Skipped { .. } | Self::Canceled => true,
            Self::Failed { retry_after, .. } | Self::TimedOut { retry_after, .. } => retry_after.is_none(),
            Self::GivenBack => false,
        }
    }
}

/// What calling a task off came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Canceling {
    /// It waited: it is called off. The task as it was.
    Done(Box<Task>),
    /// It runs: its worker is asked.
    Asked,
    /// It has ended.
    Ended(TaskState),
    /// There is none.
    Unknown,
}

/// What trying a task again by hand came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskRetry {
    /// It may be taken.
    Queued,
    /// It has not failed, and was not called off.
    Not(TaskState),
    /// Another open task has its key.
    KeyTaken,
    /// There is none.
    Unknown,
}

/// Which tasks to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskFilter {
    /// In this status.
    pub status: Option<TaskState>,
    /// Of this type.
    pub task_type: Option<TaskTypeName>,
    /// For this one.
    pub subject: Option<AggregateKey>,
}

/// Behind which task a page begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskPlace {
    /// When its status changed.
    pub status_changed_at: DateTime<Utc>,
    /// Which one.
    pub task_id: TaskId,
}

impl Task {
    /// Under what its worker has it.
    pub fn claim(&self) -> TaskClaim {
        TaskClaim { task_id: self.task.task_id, epoch: self.epoch }
    }

    /// Its place in a listing.
    pub fn place(&self) -> TaskPlace {
        TaskPlace { status_changed_at: self.status_changed_at, task_id: self.task.task_id }
    }
}

/// How much is to be done. Counts end at 100,000: one that shows this number may be more.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskBacklog {
    /// Waits for its time.
    pub pending: u64,
    /// Is with a worker.
    pub running: u64,
    /// Has failed for good.
    pub failed: u64,
    /// May be taken, of each type that was asked for, in their order.
    pub queued: Vec<u64>,
}

/// Tasks: durable work that a worker takes, does and answers.
#[async_trait]
pub trait Tasks: Send + Sync + 'static {
    /// Lets tasks be taken whose time has come, so many at most. Where none is due it only reads, by index.
    async fn promote_tasks(&self, limit: u32) -> StoreResult<Promoted>;

    /// Takes tasks: of each type that is wanted the first ones, by priority and age, and no more of a type than have
    /// [`CLAIMED_BYTES`](super::CLAIMED_BYTES) of payloads together, but one. What others are just taking is passed over. Each has a new epoch.
    async fn claim_tasks(&self, wanted: &[WantedTasks<'_>], worker: &str) -> StoreResult<Vec<Task>>;

    /// Lets tasks be taken again that a worker has taken, as far as the store knows, and that are not among those which it knows of:
    /// the answer to a claim was lost. Nothing is counted. Answers how many.
    async fn return_unseen_tasks(&self, worker: &str, seen: &[TaskId]) -> StoreResult<u64>;

    /// Tasks that may be taken, without payloads: of each type that is wanted the first ones, in the order in which they would
    /// be. One statement for all, by index.
    async fn waiting_tasks(&self, wanted: &[WantedTasks<'_>]) -> StoreResult<Vec<Task>>;

    /// Says that a worker lives which has these tasks, for all at once. One that somebody else has locked is passed over, and told.
    async fn beat_tasks(&self, claims: &[TaskClaim]) -> StoreResult<TaskBeats>;

    /// Ends attempts. Answers those that were not under their claims any more: nothing was done for them. What was ended
    /// before in the same way is no such one: whoever has not heard the answer asks again.
    async fn end_tasks(&self, endings: &[TaskEnding]) -> StoreResult<Vec<TaskId>>;

    /// Takes running tasks of these types whose worker has been silent for too long, or has not ended an attempt whose time
    /// is over; so many at most. Each has a new epoch, so that its worker cannot answer any more, and says in its
    /// `status_reason` why it was taken ([`TaskEnd::TIME_LIMIT`], [`TaskEnd::WORKER_LOST`]). Who takes them ends them at once.
    /// Of those whom the caller knows to live only what took too long is taken. After the database's clock was set back, what was to
    /// happen by then goes on from now.
    async fn take_over_tasks(
        &self,
        types: &[&str],
        worker: &str,
        living: &[TaskId],
        limit: u32,
    ) -> StoreResult<Vec<Task>>;

    /// Lets a task be taken again that failed, took too long or was called off.
    async fn retry_task(&self, task_id: TaskId) -> StoreResult<TaskRetry>;

    /// One task.
    async fn task(&self, task_id: TaskId) -> StoreResult<Option<Task>>;

    /// Tasks, the last first, without payloads and results: in a status by when they came into it, otherwise by when they
    /// were started.
    async fn list_tasks(
        &self,
        filter: &TaskFilter,
        after: Option<&TaskPlace>,
        limit: u32,
    ) -> StoreResult<Vec<Task>>;

    /// How much is to be done, of these types.
    async fn task_backlog(&self, types: &[&str]) -> StoreResult<TaskBacklog>;
}
