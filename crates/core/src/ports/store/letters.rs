//! Letters: deliveries that were set aside, and what becomes of them. What a letter is stands in [`crate::letters`].

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::{InboxEntry, InboxFailure, StoreResult};
use crate::ids::{ActorId, HandlerName, Lane};
use crate::letters::{AsideOutcome, Letter, LetterFilter, LetterGroup, NewLetter, SetAside};

/// Letters: deliveries that were set aside, and what becomes of them.
#[async_trait]
pub trait Letters: Send + Sync + 'static {
    /// Sets a failed delivery aside until it is due, or among the dead.
    async fn set_aside(&self, aside: &SetAside) -> StoreResult<AsideOutcome>;

    /// When the next letter of a handler is due.
    async fn next_letter_due(&self, handler: &HandlerName) -> StoreResult<Option<DateTime<Utc>>>;

    /// Takes the next letter of a handler that is due, and holds it until a moment. The letter is answered as it is held:
    /// due at that moment, when whoever holds it is taken for gone. Those `in_hand` are passed over.
    async fn take_letter(
        &self,
        handler: &HandlerName,
        in_hand: &[u64],
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> StoreResult<Option<Letter>>;

    /// Lets go of a letter that is held, or holds it on: it is due then. Answers whether it was still held.
    async fn release_letter(&self, letter: &Letter, due_at: DateTime<Utc>) -> StoreResult<bool>;

    /// Counts a failure of a letter that is held, as [`count_failure`](super::Inbox::count_failure) does; `None` when somebody else
    /// has it by now.
    async fn count_failure_of(
        &self,
        letter: &Letter,
        failure: &InboxFailure<'_>,
    ) -> StoreResult<Option<InboxEntry>>;

    /// Lets lanes of a handler go on whose first letter only waits: a page of them, behind a lane. Answers after which lane
    /// to go on.
    async fn advance_letters(
        &self,
        handler: &HandlerName,
        after: Option<Lane>,
        now: DateTime<Utc>,
    ) -> StoreResult<Option<Lane>>;

    /// The same for lanes that are known.
    async fn advance_lanes(
        &self,
        handler: &HandlerName,
        lanes: &[Lane],
        now: DateTime<Utc>,
    ) -> StoreResult<()>;

    /// Ends a letter that went back to the queue it came from. `false` when it was set aside anew meanwhile.
    async fn letter_given_back(&self, letter: &Letter, now: DateTime<Utc>) -> StoreResult<bool>;

    /// Takes a message of the broker's dead-letter queue in, once per death. Answers whether it was new.
    async fn read_in_letter(
        &self,
        letter: &NewLetter,
        death_key: &str,
        reason: &str,
        now: DateTime<Utc>,
    ) -> StoreResult<bool>;

    /// One letter.
    async fn letter(&self, letter_id: u64) -> StoreResult<Option<Letter>>;

    /// Letters behind a number, in order.
    async fn letters(&self, filter: &LetterFilter, after: u64, limit: u32) -> StoreResult<Vec<Letter>>;

    /// The same without their bodies and headers, which are empty here: they are read one by one. An edited letter has
    /// an original body still.
    async fn letters_in_short(
        &self,
        filter: &LetterFilter,
        after: u64,
        limit: u32,
    ) -> StoreResult<Vec<Letter>>;

    /// Letters by cause.
    async fn letter_groups(&self, filter: &LetterFilter) -> StoreResult<Vec<LetterGroup>>;

    /// Lets dead letters of handlers be tried again. Answers how many were still dead.
    async fn replay_letters(
        &self,
        letter_ids: &[u64],
        by: Option<&ActorId>,
        now: DateTime<Utc>,
    ) -> StoreResult<u64>;

    /// Forgets which death of its message a letter was, before it goes back to the broker. Answers whether it is still
    /// dead.
    async fn forget_death(&self, letter_id: u64) -> StoreResult<bool>;

    /// Marks a letter as replayed that went back to the broker.
    async fn letter_republished(
        &self,
        letter_id: u64,
        by: Option<&ActorId>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool>;

    /// Replaces the body of a dead letter. `false` when it is not dead any more.
    async fn edit_letter(
        &self,
        letter: &Letter,
        body: &[u8],
        by: Option<&ActorId>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool>;

    /// Throws a letter away. `false` when it has changed since it was read.
    async fn discard_letter(
        &self,
        letter: &Letter,
        by: Option<&ActorId>,
        message: Option<&str>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool>;
}
