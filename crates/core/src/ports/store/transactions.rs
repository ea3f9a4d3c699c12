//! Transactions: several writes that become true together.

use std::collections::BTreeMap;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{
    Adopted, AggregateRow, AlertNote, AlertRun, Append, AppendRules, Appended, AppendedTogether, Canceling,
    FirstDelivery, FollowedLog, HeldTask, InboxMark, LeaseGrant, NewCommand, NewTask, NewTimer, NewUndo,
    OperationAnswer, OperationClaim, ProcessInput, Projected, StartedTask, StoreResult, Task, TaskClaim,
    TaskEnding, TaskRetry, Watch, Watched,
};
use crate::envelope::RecordedEvent;
use crate::ids::{
    AggregateKey, EventId, HandlerName, Lane, Position, TaskId, TaskKey, TaskTypeName, Version,
};
use crate::letters::{Letter, NewLetter};

/// Open transactions, in which several writes become true together.
#[async_trait]
pub trait Transactions: Send + Sync + 'static {
    /// Opens a transaction. The caller's own sqlx transaction is moved into the adapter, and works the same way.
    async fn begin(&self) -> StoreResult<Box<dyn StoreTx>>;

    /// Opens a transaction that comes true only if a grant is still the newest of its lease: nobody takes it before the end.
    ///
    /// # Errors
    /// `Fenced`: somebody has taken it.
    async fn begin_under(&self, grant: &LeaseGrant) -> StoreResult<Box<dyn StoreTx>>;

    /// Opens a transaction and notes which unit of work it is, so that somebody who did not see the answer to its commit can find
    /// out. Nothing when a transaction of the same unit has committed; one that is open is waited for.
    async fn begin_unit(&self, unit_id: Uuid) -> StoreResult<Option<Box<dyn StoreTx>>>;
}

/// An open transaction of the store. Dropped without a commit, it is rolled back.
#[async_trait]
pub trait StoreTx: Send {
    /// Appends facts. On an error nothing of this append is written, and the transaction should be rolled back.
    async fn append(&mut self, append: &Append) -> StoreResult<Appended>;

    /// The row of an aggregate, locked until the transaction ends. One that is not there is not locked: who appends to it first
    /// wins, and the other one's append is a conflict.
    async fn lock_aggregate(&mut self, aggregate: &AggregateKey) -> StoreResult<Option<AggregateRow>>;

    /// Marks a delivery as handled, unless it is already. A second transaction that marks the same delivery waits
    /// for the first to end.
    async fn mark(
        &mut self,
        event_id: EventId,
        handler: &HandlerName,
        now: DateTime<Utc>,
    ) -> StoreResult<InboxMark>;

    /// Schedules a timer. `NameTaken` when its id is: the transaction should be rolled back.
    async fn schedule(&mut self, timer: &NewTimer) -> StoreResult<()>;

    /// Cancels a timer that has not begun; answers whether it did.
    async fn cancel(&mut self, timer_id: Uuid, now: DateTime<Utc>) -> StoreResult<bool>;

    /// Writes the answer of a claimed operation, to commit with its effect. From then on whoever asks again gets it.
    /// `Fenced` when the claim was lost or has its answer: the transaction must be rolled back.
    async fn answer(
        &mut self,
        claim: &OperationClaim,
        answer: &OperationAnswer,
        now: DateTime<Utc>,
    ) -> StoreResult<()>;

    /// Records a command for a worker to run once this is committed. Answers whether it was new: the same command id is
    /// recorded once.
    async fn send(&mut self, command: &NewCommand) -> StoreResult<bool>;

    /// Appends facts as the rules of the application have it; answers them as they were written.
    async fn append_by(
        &mut self,
        rules: &dyn AppendRules,
        append: &Append,
    ) -> StoreResult<(Appended, Append)>;

    /// Marks deliveries as handled and answers those that were not before.
    async fn mark_deliveries(
        &mut self,
        event_ids: &[EventId],
        handler: &HandlerName,
        now: DateTime<Utc>,
    ) -> StoreResult<Vec<FirstDelivery>>;

    /// The facts that were appended with this one; none if it is not in the log.
    async fn facts_of_append(&mut self, event_id: EventId) -> StoreResult<Option<AppendedTogether>>;

    /// Facts that were appended together, in order: as many of the first ones as have so many bytes of payload together, and
    /// at least one.
    async fn facts_within(
        &mut self,
        appended: &AppendedTogether,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>>;

    /// Which of these lanes have letters of a handler that are not through.
    async fn waiting_lanes(&mut self, handler: &HandlerName, lanes: &[Lane]) -> StoreResult<Vec<Lane>>;

    /// Sets a delivery aside behind the earlier ones of its lane. Ask [`waiting_lanes`](Self::waiting_lanes) first.
    async fn set_behind(&mut self, letter: &NewLetter, now: DateTime<Utc>) -> StoreResult<()>;

    /// Whether a letter is still held as it was taken; if so, until this transaction ends at least.
    async fn holds_letter(&mut self, letter: &Letter) -> StoreResult<bool>;

    /// Ends a letter that was handled, and lets the next of its lane go on.
    async fn letter_handled(&mut self, letter: &Letter, now: DateTime<Utc>) -> StoreResult<()>;

    /// Moves a follower on, if it still stands where it was found. `false` when another one was quicker: then nothing else
    /// in this transaction must become true.
    async fn advance_followed_log(
        &mut self,
        follower: &HandlerName,
        from: Position,
        to: &FollowedLog,
        now: DateTime<Utc>,
    ) -> StoreResult<bool>;

    /// Lets an observer look at subjects, or replaces what is wanted of them where that is older. No subject may be among them
    /// twice. What is known of earlier looks stays.
    async fn watch(&mut self, observer: &str, watches: &[Watch]) -> StoreResult<()>;

    /// The same for subjects that were watched elsewhere before. Of one that is watched already, what is known stays.
    async fn adopt(&mut self, observer: &str, adopted: &[Adopted]) -> StoreResult<()>;

    /// Lets an observer look at subjects no more.
    async fn unwatch(&mut self, observer: &str, subjects: &[String]) -> StoreResult<()>;

    /// Subjects that are watched as they are, locked until the transaction ends.
    async fn watched(&mut self, observer: &str, subjects: &[String]) -> StoreResult<Vec<Watched>>;

    /// Lets every goal of an observer be waited for anew: nothing could come about meanwhile.
    async fn wait_anew(&mut self, observer: &str) -> StoreResult<()>;

    /// Makes everything due that is not held, after what was asked for.
    async fn look_at_all(&mut self, observer: &str) -> StoreResult<()>;

    /// How far the rows of these aggregates are: locked until the transaction ends, also those that nobody knew of. Who comes
    /// second waits, and sees what the first has noted.
    async fn lock_projected(
        &mut self,
        projection: &str,
        kind: &str,
        ids: &[String],
    ) -> StoreResult<BTreeMap<String, Projected>>;

    /// Notes how far the rows of these aggregates are now, and that nothing is wrong with them.
    async fn note_projected(
        &mut self,
        projection: &str,
        kind: &str,
        by: u32,
        reached: &[(String, Version)],
    ) -> StoreResult<()>;

    /// By which version of a projection all aggregates were made; 0: by none yet.
    async fn projection_made_by(&mut self, projection: &str, kind: &str) -> StoreResult<u32>;

    /// Notes why the rows of an aggregate do not go on: a code, and a text for people.
    async fn projection_failed(
        &mut self,
        projection: &str,
        kind: &str,
        id: &str,
        reason: (&str, &str),
    ) -> StoreResult<()>;

    /// Forgets an aggregate that has no facts.
    async fn forget_projected(&mut self, projection: &str, kind: &str, id: &str) -> StoreResult<()>;

    /// Starts tasks; answers each in its place. Of a key that an open task of its type has, no second one is begun: the answer
    /// is the first. A transaction that has begun one of that key and is still open is waited for.
    async fn start_tasks(&mut self, tasks: &[NewTask]) -> StoreResult<Vec<StartedTask>>;

    /// The open task of a type that has this key.
    async fn open_task(&mut self, task_type: &TaskTypeName, key: &TaskKey) -> StoreResult<Option<TaskId>>;

    /// Calls a task off: one that waits at once, one that runs when its worker hears of it. Nobody else changes it before this
    /// ends.
    async fn cancel_task(&mut self, task_id: TaskId, reason: &str) -> StoreResult<Canceling>;

    /// Takes a tick of a schedule; answers whether it was not taken before, nor a later one. A schedule that is not known begins
    /// with this one, which counts as taken.
    async fn take_tick(&mut self, schedule: &str, tick: DateTime<Utc>) -> StoreResult<bool>;

    /// One task. Nobody else changes it before this ends.
    async fn lock_task(&mut self, task_id: TaskId) -> StoreResult<Option<Task>>;

    /// Lets a task be taken again, as [`Tasks::retry_task`](super::Tasks::retry_task) does, together with the rest.
    async fn retry_task(&mut self, task_id: TaskId) -> StoreResult<TaskRetry>;

    /// Takes one task, if it may be taken or waits for its next attempt: it runs, under a new epoch.
    async fn claim_task(&mut self, task_id: TaskId, worker: &str) -> StoreResult<Option<Task>>;

    /// Which of these tasks still run under their claims. Nobody else changes those before this ends.
    async fn hold_tasks(&mut self, claims: &[TaskClaim]) -> StoreResult<Vec<HeldTask>>;

    /// Ends tasks, as [`Tasks::end_tasks`](super::Tasks::end_tasks) does, together with the rest.
    async fn end_tasks(&mut self, endings: &[TaskEnding]) -> StoreResult<Vec<TaskId>>;

    /// Records a fact that a process took; one that is recorded stays as it is.
    async fn record_process_input(&mut self, input: &ProcessInput) -> StoreResult<()>;

    /// Gives a timer a name within a process. Take the one that has it first.
    async fn name_timer(
        &mut self,
        process: &AggregateKey,
        name: &str,
        timer_id: Uuid,
        due_at: DateTime<Utc>,
    ) -> StoreResult<()>;

    /// The timers of a process that have this name, or any. Their names are free then.
    async fn take_named_timers(
        &mut self,
        process: &AggregateKey,
        name: Option<&str>,
    ) -> StoreResult<Vec<Uuid>>;

    /// Keeps what undoes something that a process does.
    async fn keep_undo(&mut self, undo: &NewUndo) -> StoreResult<()>;

    /// Lets all be undone that a process has kept so far.
    async fn begin_undoing(&mut self, process: &AggregateKey, now: DateTime<Utc>) -> StoreResult<()>;

    /// Forgets what a process has kept and is not to be undone.
    async fn forget_undos(&mut self, process: &AggregateKey) -> StoreResult<()>;

    /// Writes alerts as they are now, with a line in the history for each that has changed.
    async fn note_alerts(&mut self, notes: &[AlertNote]) -> StoreResult<()>;

    /// Notes that rules were looked at.
    async fn note_alert_run(&mut self, run: &AlertRun) -> StoreResult<()>;

    /// Makes all of it true.
    async fn commit(self: Box<Self>) -> StoreResult<()>;

    /// Makes none of it true.
    async fn rollback(self: Box<Self>) -> StoreResult<()>;
}
