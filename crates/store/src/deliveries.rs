//! What consumers need of the store: the handler's transaction, and deliveries that were set aside.

use std::pin::Pin;
use std::time::Duration;

use chrono::{DateTime, Utc};
use towpath_core::envelope::RecordedEvent;
use towpath_core::ids::{ActorId, EventId, HandlerName, Lane};
use towpath_core::letters::{AsideOutcome, Letter, LetterFilter, LetterGroup, NewLetter, SetAside};
use towpath_core::lifecycle::InboxStatus;
use towpath_core::ports::store::{
    Append, AppendRules, Appended, Expected, InboxEntry, InboxFailure, LeaseGrant, StoreError, StoreResult,
};
use uuid::Uuid;

use crate::ops;
use crate::ops::changes::AppendedTogether;
use crate::ops::inbox::{CameBefore, FirstDelivery};
use crate::store::{Purpose, SqlStore, listing, reading, transacting, writing_once};
use crate::transaction::{Inner, SqlTransaction};

impl SqlTransaction {
    /// The connection, on SQLite.
    #[cfg(feature = "sqlite")]
    pub fn sqlite(&mut self) -> Option<&mut sqlx::SqliteConnection> {
        self.was_handed_out = true;
        match &mut self.inner {
            Inner::Sqlite(transaction) => Some(&mut *transaction),
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => None,
        }
    }

    /// The connection, on PostgreSQL.
    #[cfg(feature = "postgres")]
    pub fn postgres(&mut self) -> Option<&mut sqlx::PgConnection> {
        self.was_handed_out = true;
        match &mut self.inner {
            Inner::Postgres(lent) => Some(lent.hand_out()),
            Inner::PostgresGuest(guest) => Some(&mut *guest),
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => None,
        }
    }

    /// The connection, on MySQL and MariaDB.
    #[cfg(feature = "mysql")]
    pub fn mysql(&mut self) -> Option<&mut sqlx::MySqlConnection> {
        self.was_handed_out = true;
        match &mut self.inner {
            Inner::MySql(lent) => Some(lent.hand_out()),
            Inner::MySqlGuest(guest) => Some(&mut *guest),
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => None,
        }
    }

    /// Ends when the connection is lost as far as anybody knows: the server has kept others waiting beyond the limit, and
    /// has had as long again to answer here. For those who run statements of their own on it, which have no limit.
    pub fn lost(&self) -> Pin<Box<dyn Future<Output = StoreError> + Send>> {
        match &self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(_) => Box::pin(std::future::pending()),
            #[cfg(feature = "postgres")]
            Inner::Postgres(lent) => Box::pin(lent.lost()),
            #[cfg(feature = "mysql")]
            Inner::MySql(lent) => Box::pin(lent.lost()),
            #[cfg(feature = "postgres")]
            Inner::PostgresGuest(_) => Box::pin(std::future::pending()),
            #[cfg(feature = "mysql")]
            Inner::MySqlGuest(_) => Box::pin(std::future::pending()),
        }
    }

    /// Appends facts as the rules of the application have it; answers them as they were written.
    pub async fn append_by(
        &mut self,
        rules: &dyn AppendRules,
        append: &Append,
    ) -> StoreResult<(Appended, Append)> {
        let mut session = self.session();
        let complete = ops::append::complete(&mut session, append, rules).await?;
        match ops::append::append_tx(&mut session, &complete).await {
            Ok(appended) => Ok((appended, complete)),
            // Whoever takes any version has not asked for the one that another was quicker to take.
            Err(error @ StoreError::VersionConflict { .. }) if append.expected == Expected::Any => {
                let error = StoreError::Contention(error.into());
                self.note(&error);
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Marks deliveries as handled and answers those that were not before.
    pub async fn mark_deliveries(
        &mut self,
        event_ids: &[EventId],
        handler: &HandlerName,
        now: DateTime<Utc>,
    ) -> StoreResult<Vec<FirstDelivery>> {
        ops::inbox::mark_all(&mut self.session(), event_ids, handler, now).await
    }

    /// The facts that were appended with this one; none if it is not in the log.
    pub async fn appended_with(&mut self, event_id: EventId) -> StoreResult<Option<AppendedTogether>> {
        ops::changes::appended_with(&mut self.session(), event_id).await
    }

    /// Facts that were appended together, in order: as many of the first ones as have so many bytes of payload together, and
    /// at least one.
    pub async fn facts_within(
        &mut self,
        appended: &AppendedTogether,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>> {
        let (before, count) = (appended.first.saturating_sub(1), u32::try_from(appended.count()));
        let count = count.unwrap_or(u32::MAX);
        ops::reads::events_of_within(&mut self.session(), &appended.aggregate, before, count, bytes).await
    }

    /// Which of these lanes have letters of a handler that are not through.
    pub async fn waiting_lanes(&mut self, handler: &HandlerName, lanes: &[Lane]) -> StoreResult<Vec<Lane>> {
        ops::letters::waiting_lanes(&mut self.session(), handler, lanes).await
    }

    /// Sets a delivery aside behind the earlier ones of its lane. Ask [`waiting_lanes`](Self::waiting_lanes) first.
    pub async fn set_behind(&mut self, letter: &NewLetter, now: DateTime<Utc>) -> StoreResult<()> {
        ops::letters::set_behind(&mut self.session(), letter, now).await
    }

    /// Whether a letter is still held as it was taken; if so, until this transaction ends at least.
    pub async fn holds_letter(&mut self, letter: &Letter) -> StoreResult<bool> {
        let Some(until) = letter.due_at else { return Ok(false) };
        ops::letters::is_held(&mut self.session(), letter.letter_id, until).await
    }

    /// Ends a letter that was handled, and lets the next of its lane go on.
    pub async fn letter_handled(&mut self, letter: &Letter, now: DateTime<Utc>) -> StoreResult<()> {
        ops::letters::handled(&mut self.session(), letter, now).await
    }

    /// Makes all of it true.
    pub async fn finish(self) -> StoreResult<()> {
        self.commit().await
    }

    /// Makes it true for the application whose transaction it is, if it still stands as far as we can see.
    ///
    /// # Errors
    /// [`StoreError::TransactionLost`]: nothing of it was written.
    pub async fn finish_joined(mut self) -> StoreResult<()> {
        let undone = || StoreError::TransactionLost("a failed statement has undone it".to_owned());
        if self.ended.is_some() {
            return Err(undone());
        }
        if self.was_handed_out {
            // It fails in a transaction that PostgreSQL has undone, whose COMMIT would be answered without an error.
            self.session().plain("commit.stands", "SELECT 1").await.map_err(|_| undone())?;
        }
        self.commit().await
    }

    /// Makes a unit of work true, if it still stands. What our own statements came to is known; somebody else's may have
    /// undone the transaction, as [`finish_marked`](Self::finish_marked) says.
    ///
    /// # Errors
    /// [`StoreError::TransactionLost`]: nothing of it was written. `Unavailable`: whether it was is not known.
    pub async fn finish_unit(mut self, unit_id: Uuid) -> Result<(), Unfinished> {
        if self.was_handed_out {
            match ops::units::stands(&mut self.session(), unit_id).await {
                Ok(true) => {}
                Ok(false) | Err(StoreError::Refused { .. }) => {
                    let why = "a failed statement has undone it".to_owned();
                    return Err(Unfinished::Not(StoreError::TransactionLost(why)));
                }
                Err(error) => return Err(Unfinished::Not(error)),
            }
        }
        self.commit().await.map_err(|error| match error {
            error @ StoreError::Unavailable(_) => Unfinished::InDoubt(error),
            error => Unfinished::Not(error),
        })
    }

    /// Makes all of it true, if it still stands. A statement that failed may have undone the transaction, with the mark
    /// of the delivery, and its error may have been swallowed: PostgreSQL then answers a COMMIT by rolling back, without
    /// an error, and MySQL goes on outside of any transaction.
    ///
    /// Where it costs no round trip of its own, the next transaction is open already and is answered: whoever has
    /// more to do at once saves a BEGIN and the way through the pool. Others drop it.
    pub async fn finish_marked(
        mut self,
        event_id: EventId,
        handler: &HandlerName,
    ) -> StoreResult<Option<Self>> {
        match &mut self.inner {
            #[cfg(feature = "postgres")]
            Inner::Postgres(_) => {
                // In one round trip: the first statement fails in a transaction that is undone, and then there is no
                // commit. The next one is begun anew and not chained: a chained one would inherit what the handler
                // has set for its own.
                self.session().plain("commit", "SELECT 1; COMMIT; BEGIN").await?;
                (self.ended, self.was_handed_out) = (None, false);
                Ok(Some(self))
            }
            #[cfg(feature = "mysql")]
            Inner::MySql(_) => {
                let entry = ops::inbox::find(&mut self.session(), event_id, handler).await?;
                if entry.is_none_or(|entry| entry.status != InboxStatus::Handled) {
                    let cause = "a failed statement has undone the transaction";
                    return Err(StoreError::Refused { statement: "commit", source: cause.into() });
                }
                self.commit().await.map(|()| None)
            }
            #[allow(unreachable_patterns, reason = "reachable when SQLite is built in")]
            _ => {
                let _ = (event_id, handler);
                self.commit().await.map(|()| None)
            }
        }
    }

    /// Makes none of it true.
    pub async fn abandon(self) -> StoreResult<()> {
        self.rollback().await
    }
}

/// Why a unit of work was not committed.
#[derive(Debug)]
pub enum Unfinished {
    /// It was not.
    Not(StoreError),
    /// Whether it was is not known: the answer was lost.
    InDoubt(StoreError),
}

impl SqlStore {
    /// The facts that were appended with this one; none if it is not in the log.
    pub async fn appended_with(&self, event_id: EventId) -> StoreResult<Option<AppendedTogether>> {
        reading!(self, ops::changes::appended_with, event_id)
    }

    /// Opens a transaction of the store's own.
    pub async fn open_transaction(&self) -> StoreResult<SqlTransaction> {
        self.transaction().await
    }

    /// Opens a transaction that comes true only if a grant is still the newest of its lease: nobody takes it before the end.
    ///
    /// # Errors
    /// [`StoreError::Fenced`]: somebody has taken it.
    pub async fn open_transaction_under(&self, grant: &LeaseGrant) -> StoreResult<SqlTransaction> {
        let mut transaction = self.transaction().await?;
        match ops::leases::fence(&mut transaction.session(), std::slice::from_ref(grant)).await {
            Ok(()) => Ok(transaction),
            Err(error) => {
                // What matters is why it failed; a connection that cannot even roll back is closed by the pool.
                let _ = transaction.rollback().await;
                Err(error)
            }
        }
    }

    /// Counts a failed delivery and answers what the inbox says of it: handled or given up meanwhile, it stays so.
    pub async fn count_failure(&self, failure: &InboxFailure<'_>) -> StoreResult<InboxEntry> {
        transacting!(self, ops::inbox::fail_entry, failure)
    }

    /// Forgets how often a delivery has failed that goes back to the broker for good.
    pub async fn forget_failures(&self, event_id: EventId, handler: &HandlerName) -> StoreResult<()> {
        writing_once!(self, ops::inbox::forget_failures, event_id, handler)
    }

    /// Writes down that a process begins with deliveries which may have come before; see [`CameBefore`]. With
    /// `letters_stand`, an open letter stands for its delivery.
    pub async fn begin_attempts(
        &self,
        event_ids: &[EventId],
        handler: &HandlerName,
        by: &str,
        letters_stand: bool,
        now: DateTime<Utc>,
    ) -> StoreResult<CameBefore> {
        transacting!(self, ops::inbox::begin, event_ids, handler, by, letters_stand, now)
    }

    /// Takes that back: the process lets go of these deliveries, and nothing has failed.
    pub async fn let_go_of_attempts(
        &self,
        event_ids: &[EventId],
        handler: &HandlerName,
        by: &str,
    ) -> StoreResult<()> {
        writing_once!(self, ops::inbox::let_go, event_ids, handler, by)
    }

    /// Takes the next letter of a handler that is due, and holds it until a moment. The letter is answered as it is held:
    /// due at that moment, when whoever holds it is taken for gone. Those `in_hand` are passed over.
    pub async fn take_letter(
        &self,
        handler: &HandlerName,
        in_hand: &[u64],
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> StoreResult<Option<Letter>> {
        transacting!(self, ops::letters::take, handler, in_hand, now, until)
    }

    /// Lets go of a letter that is held, or holds it on: it is due then. Answers whether it was still held.
    pub async fn release_letter(&self, letter: &Letter, due_at: DateTime<Utc>) -> StoreResult<bool> {
        writing_once!(self, ops::letters::release, letter, due_at)
    }

    /// Counts a failure of a letter that is held, as [`count_failure`](Self::count_failure) does; `None` when somebody else
    /// has it by now.
    pub async fn count_failure_of(
        &self,
        letter: &Letter,
        failure: &InboxFailure<'_>,
    ) -> StoreResult<Option<InboxEntry>> {
        transacting!(self, ops::letters::count_failure, letter, failure)
    }

    /// Lets lanes of a handler go on whose first letter only waits: a page of them, behind a lane. Answers after which lane
    /// to go on.
    pub async fn advance_letters(
        &self,
        handler: &HandlerName,
        after: Option<Lane>,
        now: DateTime<Utc>,
    ) -> StoreResult<Option<Lane>> {
        transacting!(self, ops::letters::advance_behind, handler, after, now)
    }

    /// The same for lanes that are known.
    pub async fn advance_lanes(
        &self,
        handler: &HandlerName,
        lanes: &[Lane],
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        transacting!(self, ops::letters::advance_lanes, handler, lanes, now)
    }

    /// Deletes letters that ended before a moment; answers how many.
    pub async fn clean_letters(
        &self,
        lease: &LeaseGrant,
        before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, ops::letters::clean, lease, before, limit)
    }

    /// Deletes timers that ended before a moment, about so many; answers how many.
    pub async fn clean_timers(
        &self,
        lease: &LeaseGrant,
        before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, ops::cleaning::timers, lease, before, limit)
    }

    /// Deletes units of work that were begun before a moment, about so many; answers how many.
    pub async fn clean_units(
        &self,
        lease: &LeaseGrant,
        before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, ops::cleaning::units, lease, before, limit)
    }

    /// Deletes leases with these prefixes that ended so long ago. Only for leases that name the instance that held them:
    /// a lease that is taken again after its row is gone begins with its first epoch.
    pub async fn clean_leases(
        &self,
        lease: &LeaseGrant,
        prefixes: &[&str],
        ended_for: Duration,
    ) -> StoreResult<u64> {
        transacting!(self, ops::cleaning::leases, lease, prefixes, ended_for)
    }

    /// Sets a failed delivery aside until it is due, or among the dead.
    pub async fn set_aside(&self, aside: &SetAside) -> StoreResult<AsideOutcome> {
        transacting!(self, ops::letters::set_aside, aside)
    }

    /// Takes a message of the broker's dead-letter queue in, once per death. Answers whether it was new.
    pub async fn read_in_letter(
        &self,
        letter: &NewLetter,
        death_key: &str,
        reason: &str,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        match transacting!(self, ops::letters::read_in, letter, death_key, reason, now) {
            // Somebody else has taken the same one in.
            Err(StoreError::Contention(_)) => {
                transacting!(self, ops::letters::read_in, letter, death_key, reason, now)
            }
            answer => answer,
        }
    }

    /// When the next letter of a handler is due.
    pub async fn next_letter_due(&self, handler: &HandlerName) -> StoreResult<Option<DateTime<Utc>>> {
        reading!(self, ops::letters::next_due, handler)
    }

    /// One letter.
    pub async fn letter(&self, letter_id: u64) -> StoreResult<Option<Letter>> {
        reading!(self, ops::letters::find, letter_id)
    }

    /// Letters behind a number, in order.
    pub async fn letters(&self, filter: &LetterFilter, after: u64, limit: u32) -> StoreResult<Vec<Letter>> {
        listing!(self, ops::letters::list, filter, after, limit)
    }

    /// The same without their bodies and headers, which are empty here: they are read one by one. An edited letter has
    /// an original body still.
    pub async fn letters_in_short(
        &self,
        filter: &LetterFilter,
        after: u64,
        limit: u32,
    ) -> StoreResult<Vec<Letter>> {
        listing!(self, ops::letters::list_in_short, filter, after, limit)
    }

    /// Letters by cause.
    pub async fn letter_groups(&self, filter: &LetterFilter) -> StoreResult<Vec<LetterGroup>> {
        listing!(self, ops::letters::groups, filter)
    }

    /// Lets dead letters of handlers be tried again. Answers how many were still dead.
    pub async fn replay_letters(
        &self,
        letter_ids: &[u64],
        by: Option<&ActorId>,
        now: DateTime<Utc>,
    ) -> StoreResult<u64> {
        transacting!(self, ops::letters::replay, letter_ids, by, now)
    }

    /// Forgets which death of its message a letter was, before it goes back to the broker. Answers whether it is still
    /// dead.
    pub async fn forget_death(&self, letter_id: u64) -> StoreResult<bool> {
        writing_once!(self, ops::letters::forget_death, letter_id)
    }

    /// Marks a letter as replayed that went back to the broker.
    pub async fn letter_republished(
        &self,
        letter_id: u64,
        by: Option<&ActorId>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        writing_once!(self, ops::letters::republished, letter_id, by, now)
    }

    /// Ends a letter that went back to the queue it came from. `false` when it was set aside anew meanwhile.
    pub async fn letter_given_back(&self, letter: &Letter, now: DateTime<Utc>) -> StoreResult<bool> {
        writing_once!(self, ops::letters::given_back, letter, now)
    }

    /// Replaces the body of a dead letter. `false` when it is not dead any more.
    pub async fn edit_letter(
        &self,
        letter: &Letter,
        body: &[u8],
        by: Option<&ActorId>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        writing_once!(self, ops::letters::edit, letter, body, by, now)
    }

    /// Throws a letter away. `false` when it has changed since it was read.
    pub async fn discard_letter(
        &self,
        letter: &Letter,
        by: Option<&ActorId>,
        message: Option<&str>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        transacting!(self, ops::letters::discard, letter, by, message, now)
    }
}
