//! Transactions: several writes that become true together.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{
    Adopted, Append, AppendRules, Appended, AppendedTogether, FirstDelivery, FollowedLog, InboxMark,
    LeaseGrant, NewCommand, NewTimer, OperationAnswer, OperationClaim, StoreResult, Watch, Watched,
};
use crate::envelope::RecordedEvent;
use crate::ids::{EventId, HandlerName, Lane, Position};
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
}

/// An open transaction of the store. Dropped without a commit, it is rolled back.
#[async_trait]
pub trait StoreTx: Send {
    /// Appends facts. On an error nothing of this append is written, and the transaction should be rolled back.
    async fn append(&mut self, append: &Append) -> StoreResult<Appended>;

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

    /// Notes which unit of work this transaction is, so that somebody who did not see the answer to its commit can find out.
    /// `false` when a transaction of the same unit has committed; one that is open is waited for.
    async fn begin_unit(&mut self, unit_id: Uuid) -> StoreResult<bool>;

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

    /// Makes all of it true.
    async fn commit(self: Box<Self>) -> StoreResult<()>;

    /// Makes none of it true.
    async fn rollback(self: Box<Self>) -> StoreResult<()>;
}
