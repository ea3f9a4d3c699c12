//! Open transactions: ours, and the caller's own.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::envelope::RecordedEvent;
use towpath_core::ids::{
    AggregateKey, EventId, HandlerName, Lane, Position, TaskId, TaskKey, TaskTypeName, Version,
};
use towpath_core::letters::{Letter, NewLetter};
use towpath_core::lifecycle::InboxStatus;
use towpath_core::ports::operations::{OperationAnswer, OperationClaim};
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::{
    Adopted, AggregateRow, AlertNote, AlertRun, Append, AppendRules, Appended, AppendedTogether, Canceling,
    Expected, FirstDelivery, FollowedLog, HeldTask, InboxMark, LeaseGrant, NewCommand, NewTask, NewTimer,
    NewUndo, ProcessInput, Projected, StartedTask, StoreError, StoreResult, StoreTx, Task, TaskClaim,
    TaskEnding, TaskRetry, Transactions, Watch, Watched,
};
use uuid::Uuid;

use crate::dialect::Dialect;
use crate::lent::{Care, Ended, Lent, Limits};
use crate::ops;
use crate::schema::PROJECTIONS;
use crate::sql::{Session, SqlFault, classify};
use crate::store::SqlStore;

/// A transaction of the store's own, open on one of the three databases. Dropped without a commit, it is rolled back.
pub struct SqlTransaction {
    pub(crate) inner: Inner,
    pub(crate) probe: Arc<dyn Probe>,
    /// For the statements of a guest.
    pub(crate) limits: Limits,
    /// Somebody else has run statements here, and we have not seen how they ended.
    pub(crate) was_handed_out: bool,
    /// It has ended before its commit.
    pub(crate) ended: Option<Ended>,
}

pub(crate) enum Inner {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
    #[cfg(feature = "postgres")]
    Postgres(Lent<sqlx::Postgres>),
    #[cfg(feature = "postgres")]
    PostgresGuest(sqlx::Transaction<'static, sqlx::Postgres>),
    #[cfg(feature = "mysql")]
    MySql(Lent<sqlx::MySql>),
    #[cfg(feature = "mysql")]
    MySqlGuest(sqlx::Transaction<'static, sqlx::MySql>),
}

impl SqlTransaction {
    pub(crate) fn session(&mut self) -> Session<'_> {
        let (probe, ended) = (self.probe.as_ref(), &mut self.ended);
        match &mut self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(transaction) => {
                let care = Care::of_a_file(false).noting(ended, Dialect::Sqlite);
                Session::sqlite(&mut *transaction, probe, care)
            }
            #[cfg(feature = "postgres")]
            Inner::Postgres(lent) => {
                let (connection, care) = lent.parts();
                Session::postgres(connection, probe, care.noting(ended, Dialect::Postgres))
            }
            #[cfg(feature = "postgres")]
            Inner::PostgresGuest(guest) => {
                let care = Care::of_a_guest(self.limits.clone()).noting(ended, Dialect::Postgres);
                Session::postgres(&mut *guest, probe, care)
            }
            #[cfg(feature = "mysql")]
            Inner::MySql(lent) => {
                let (connection, care) = lent.parts();
                Session::mysql(connection, probe, care.noting(ended, Dialect::MySql))
            }
            #[cfg(feature = "mysql")]
            Inner::MySqlGuest(guest) => {
                let care = Care::of_a_guest(self.limits.clone()).noting(ended, Dialect::MySql);
                Session::mysql(&mut *guest, probe, care)
            }
        }
    }

    /// How it has ended already, if it has: then it cannot be committed.
    pub fn ended_by(&self) -> Option<Ended> {
        self.ended
    }

    /// Notes an error of a statement that somebody else ran on the connection.
    pub fn note(&mut self, error: &StoreError) {
        let dialect = self.session().dialect();
        self.ended = self.ended.or_else(|| Ended::by(error, dialect));
    }

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

    pub(crate) async fn commit(self) -> StoreResult<()> {
        self.probe.before("commit");
        match self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(transaction) => {
                transaction.commit().await.map_err(|error| classify("commit", error).into())
            }
            #[cfg(feature = "postgres")]
            Inner::Postgres(lent) => lent.commit().await,
            #[cfg(feature = "mysql")]
            Inner::MySql(lent) => lent.commit().await,
            #[cfg(feature = "postgres")]
            Inner::PostgresGuest(guest) => {
                Ok(Care::of_a_guest(self.limits).run("commit", guest.commit()).await?)
            }
            #[cfg(feature = "mysql")]
            Inner::MySqlGuest(guest) => {
                Ok(Care::of_a_guest(self.limits).run("commit", guest.commit()).await?)
            }
        }
    }

    pub(crate) async fn rollback(self) -> StoreResult<()> {
        self.probe.before("rollback");
        match self.inner {
            #[cfg(feature = "sqlite")]
            Inner::Sqlite(transaction) => {
                transaction.rollback().await.map_err(|error| classify("rollback", error).into())
            }
            #[cfg(feature = "postgres")]
            Inner::Postgres(lent) => lent.rollback().await,
            #[cfg(feature = "mysql")]
            Inner::MySql(lent) => lent.rollback().await,
            #[cfg(feature = "postgres")]
            Inner::PostgresGuest(guest) => {
                Ok(Care::of_a_guest(self.limits).run("rollback", guest.rollback()).await?)
            }
            #[cfg(feature = "mysql")]
            Inner::MySqlGuest(guest) => {
                Ok(Care::of_a_guest(self.limits).run("rollback", guest.rollback()).await?)
            }
        }
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
    /// Opens a transaction of the store's own.
    pub async fn open_transaction(&self) -> StoreResult<SqlTransaction> {
        self.transaction().await
    }

    /// Opens the transaction of a unit of work; nothing when one of the same unit has committed. One that is open is waited for.
    pub async fn open_unit(&self, unit_id: Uuid) -> StoreResult<Option<SqlTransaction>> {
        #[cfg(feature = "postgres")]
        if let Some(opened) = self.transaction_with("unit.begin", || ops::units::begin_sql(unit_id)).await {
            return match opened {
                Ok(transaction) => Ok(Some(transaction)),
                Err(SqlFault::Unique { .. }) => Ok(None),
                Err(fault) => Err(fault.into()),
            };
        }
        let mut transaction = self.transaction().await?;
        Ok(ops::units::begin(&mut transaction.session(), unit_id).await?.then_some(transaction))
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
}

#[async_trait]
impl Transactions for SqlStore {
    async fn begin(&self) -> StoreResult<Box<dyn StoreTx>> {
        Ok(Box::new(self.open_transaction().await?))
    }

    async fn begin_under(&self, grant: &LeaseGrant) -> StoreResult<Box<dyn StoreTx>> {
        Ok(Box::new(self.open_transaction_under(grant).await?))
    }

    async fn begin_unit(&self, unit_id: Uuid) -> StoreResult<Option<Box<dyn StoreTx>>> {
        let opened = self.open_unit(unit_id).await?;
        Ok(opened.map(|transaction| -> Box<dyn StoreTx> { Box::new(transaction) }))
    }
}

#[async_trait]
impl StoreTx for SqlTransaction {
    async fn append(&mut self, append: &Append) -> StoreResult<Appended> {
        ops::append::append_tx(&mut self.session(), append).await
    }

    async fn lock_aggregate(&mut self, aggregate: &AggregateKey) -> StoreResult<Option<AggregateRow>> {
        let mut session = self.session();
        let lock = session.dialect().for_update();
        ops::aggregates::find_aggregate(&mut session, aggregate, lock).await
    }

    async fn mark(
        &mut self,
        event_id: EventId,
        handler: &HandlerName,
        now: DateTime<Utc>,
    ) -> StoreResult<InboxMark> {
        ops::inbox::mark(&mut self.session(), event_id, handler, now).await
    }

    async fn schedule(&mut self, timer: &NewTimer) -> StoreResult<()> {
        ops::timers::schedule(&mut self.session(), timer).await
    }

    async fn cancel(&mut self, timer_id: Uuid, now: DateTime<Utc>) -> StoreResult<bool> {
        ops::timers::cancel(&mut self.session(), timer_id, now).await
    }

    async fn answer(
        &mut self,
        claim: &OperationClaim,
        answer: &OperationAnswer,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        ops::operations::answer(&mut self.session(), claim, answer, now).await
    }

    async fn send(&mut self, command: &NewCommand) -> StoreResult<bool> {
        ops::commands::accept_once(&mut self.session(), command).await
    }

    async fn append_by(
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

    async fn mark_deliveries(
        &mut self,
        event_ids: &[EventId],
        handler: &HandlerName,
        now: DateTime<Utc>,
    ) -> StoreResult<Vec<FirstDelivery>> {
        ops::inbox::mark_all(&mut self.session(), event_ids, handler, now).await
    }

    async fn facts_of_append(&mut self, event_id: EventId) -> StoreResult<Option<AppendedTogether>> {
        ops::changes::appended_with(&mut self.session(), event_id).await
    }

    async fn facts_within(
        &mut self,
        appended: &AppendedTogether,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>> {
        let (before, count) = (appended.first.saturating_sub(1), u32::try_from(appended.count()));
        let count = count.unwrap_or(u32::MAX);
        ops::aggregates::events_of_within(&mut self.session(), &appended.aggregate, before, count, bytes)
            .await
    }

    async fn waiting_lanes(&mut self, handler: &HandlerName, lanes: &[Lane]) -> StoreResult<Vec<Lane>> {
        ops::letters::waiting_lanes(&mut self.session(), handler, lanes).await
    }

    async fn set_behind(&mut self, letter: &NewLetter, now: DateTime<Utc>) -> StoreResult<()> {
        ops::letters::set_behind(&mut self.session(), letter, now).await
    }

    async fn holds_letter(&mut self, letter: &Letter) -> StoreResult<bool> {
        let Some(until) = letter.due_at else { return Ok(false) };
        ops::letters::is_held(&mut self.session(), letter.letter_id, until).await
    }

    async fn letter_handled(&mut self, letter: &Letter, now: DateTime<Utc>) -> StoreResult<()> {
        ops::letters::handled(&mut self.session(), letter, now).await
    }

    async fn advance_followed_log(
        &mut self,
        follower: &HandlerName,
        from: Position,
        to: &FollowedLog,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        ops::following::advance(&mut self.session(), follower, from, to, now).await
    }

    async fn watch(&mut self, observer: &str, watches: &[Watch]) -> StoreResult<()> {
        ops::observations::watch(&mut self.session(), observer, watches).await
    }

    async fn adopt(&mut self, observer: &str, adopted: &[Adopted]) -> StoreResult<()> {
        ops::observations::adopt(&mut self.session(), observer, adopted).await
    }

    async fn unwatch(&mut self, observer: &str, subjects: &[String]) -> StoreResult<()> {
        ops::observations::unwatch(&mut self.session(), observer, subjects).await
    }

    async fn watched(&mut self, observer: &str, subjects: &[String]) -> StoreResult<Vec<Watched>> {
        ops::observations::watched(&mut self.session(), observer, subjects).await
    }

    async fn wait_anew(&mut self, observer: &str) -> StoreResult<()> {
        ops::observations::wait_anew(&mut self.session(), observer).await
    }

    async fn look_at_all(&mut self, observer: &str) -> StoreResult<()> {
        ops::observations::look_at_all(&mut self.session(), observer).await
    }

    async fn lock_projected(
        &mut self,
        projection: &str,
        kind: &str,
        ids: &[String],
    ) -> StoreResult<BTreeMap<String, Projected>> {
        ops::projections::lock(&mut self.session(), projection, kind, ids).await
    }

    async fn note_projected(
        &mut self,
        projection: &str,
        kind: &str,
        by: u32,
        reached: &[(String, Version)],
    ) -> StoreResult<()> {
        let rows = ops::projections::noted(projection, kind, by, reached);
        self.own_tables().put("projection.note", &PROJECTIONS, rows).await
    }

    async fn projection_made_by(&mut self, projection: &str, kind: &str) -> StoreResult<u32> {
        ops::projections::made_by(&mut self.session(), projection, kind).await
    }

    async fn projection_failed(
        &mut self,
        projection: &str,
        kind: &str,
        id: &str,
        reason: (&str, &str),
    ) -> StoreResult<()> {
        ops::projections::fail(&mut self.session(), projection, kind, id, reason).await
    }

    async fn forget_projected(&mut self, projection: &str, kind: &str, id: &str) -> StoreResult<()> {
        ops::projections::forget(&mut self.session(), projection, kind, id).await
    }

    async fn start_tasks(&mut self, tasks: &[NewTask]) -> StoreResult<Vec<StartedTask>> {
        ops::tasks::start(&mut self.session(), tasks).await
    }

    async fn open_task(&mut self, task_type: &TaskTypeName, key: &TaskKey) -> StoreResult<Option<TaskId>> {
        ops::tasks::open(&mut self.session(), task_type, key).await
    }

    async fn cancel_task(&mut self, task_id: TaskId, reason: &str) -> StoreResult<Canceling> {
        ops::tasks::cancel(&mut self.session(), task_id, reason).await
    }

    async fn take_tick(&mut self, schedule: &str, tick: DateTime<Utc>) -> StoreResult<bool> {
        ops::tasks::take_tick(&mut self.session(), schedule, tick).await
    }

    async fn lock_task(&mut self, task_id: TaskId) -> StoreResult<Option<Task>> {
        ops::tasks::lock(&mut self.session(), task_id).await
    }

    async fn retry_task(&mut self, task_id: TaskId) -> StoreResult<TaskRetry> {
        ops::tasks::retry(&mut self.session(), task_id).await
    }

    async fn claim_task(&mut self, task_id: TaskId, worker: &str) -> StoreResult<Option<Task>> {
        ops::tasks::claim_one(&mut self.session(), task_id, worker).await
    }

    async fn hold_tasks(&mut self, claims: &[TaskClaim]) -> StoreResult<Vec<HeldTask>> {
        ops::tasks::hold(&mut self.session(), claims).await
    }

    async fn end_tasks(&mut self, endings: &[TaskEnding]) -> StoreResult<Vec<TaskId>> {
        ops::tasks::end(&mut self.session(), endings).await
    }

    async fn note_alerts(&mut self, notes: &[AlertNote]) -> StoreResult<()> {
        ops::alerts::note(&mut self.session(), notes).await
    }

    async fn note_alert_run(&mut self, run: &AlertRun) -> StoreResult<()> {
        ops::alerts::note_run(&mut self.session(), run).await
    }

    async fn record_process_input(&mut self, input: &ProcessInput) -> StoreResult<()> {
        ops::processes::record(&mut self.session(), input).await
    }

    async fn name_timer(
        &mut self,
        process: &AggregateKey,
        name: &str,
        timer_id: Uuid,
        due_at: DateTime<Utc>,
    ) -> StoreResult<()> {
        ops::processes::name_timer(&mut self.session(), process, name, timer_id, due_at).await
    }

    async fn take_named_timers(
        &mut self,
        process: &AggregateKey,
        name: Option<&str>,
    ) -> StoreResult<Vec<Uuid>> {
        ops::processes::take_timers(&mut self.session(), process, name).await
    }

    async fn keep_undo(&mut self, undo: &NewUndo) -> StoreResult<()> {
        ops::processes::keep_undo(&mut self.session(), undo).await
    }

    async fn begin_undoing(&mut self, process: &AggregateKey, now: DateTime<Utc>) -> StoreResult<()> {
        ops::processes::begin_undoing(&mut self.session(), process, now).await
    }

    async fn forget_undos(&mut self, process: &AggregateKey) -> StoreResult<()> {
        ops::processes::forget_undos(&mut self.session(), process).await
    }

    async fn commit(self: Box<Self>) -> StoreResult<()> {
        SqlTransaction::commit(*self).await
    }

    async fn rollback(self: Box<Self>) -> StoreResult<()> {
        SqlTransaction::rollback(*self).await
    }
}

/// A sqlx transaction of the application's own, which is moved in: Towpath's writes join it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction that Towpath can join",
    note = "pass a `sqlx::Transaction<'static, _>` on SQLite, PostgreSQL or MySQL, as a pool's `begin()` gives it"
)]
pub trait JoinTransaction: sealed::IntoInner {}

impl<T: sealed::IntoInner> JoinTransaction for T {}

pub(crate) mod sealed {
    use super::Inner;

    pub trait IntoInner {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "the trait is sealed: only this crate calls it")]
        fn into_inner(self) -> Inner;
    }
}

macro_rules! joins {
    ($feature:literal, $database:ty, $variant:ident) => {
        #[cfg(feature = $feature)]
        impl sealed::IntoInner for sqlx::Transaction<'static, $database> {
            #[allow(private_interfaces, reason = "the trait is sealed: only this crate calls it")]
            fn into_inner(self) -> Inner {
                Inner::$variant(self)
            }
        }
    };
}

joins!("sqlite", sqlx::Sqlite, Sqlite);
joins!("postgres", sqlx::Postgres, PostgresGuest);
joins!("mysql", sqlx::MySql, MySqlGuest);
