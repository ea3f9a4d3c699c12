//! Connections on loan from a pool: one goes back only if nothing is under way on it.
//!
//! A caller may be dropped at any await. The driver does not know then whether a BEGIN that was not answered has opened a
//! transaction, and on MySQL it loses count of the packets of a statement that was not read to its end. Such a connection
//! must not come to the next borrower, who would write into somebody else's transaction or wait for ever. And a server that
//! is gone without a word answers nothing at all: whatever waits for it has an end.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, Database};
use sqlx_core::transaction::TransactionManager as _;
use tokio::sync::watch;
use towpath_core::ports::store::{StoreError, StoreResult};

use crate::dialect::Dialect;
use crate::sql::{SqlFault, classify, cut_off};

/// How long a connection may take on its way back to its pool.
const WAY_BACK: Duration = Duration::from_secs(5);

tokio::task_local! {
    /// Set while a connection goes back of which we know that nothing is under way on it.
    static KNOWN_TO_BE_CLEAN: ();
}

/// A database whose connections can be lent.
pub(crate) trait Lendable: Database {
    /// Whether a connection survives that a statement is dropped before its answer was read.
    const SURVIVES_A_DROP: bool;
    /// A statement that changes nothing: its answer says whether a transaction is open.
    const NOTHING: &'static str;
}

#[cfg(feature = "postgres")]
impl Lendable for sqlx::Postgres {
    const SURVIVES_A_DROP: bool = true;
    // In a transaction that has failed it is refused, and the connection is closed as well.
    const NOTHING: &'static str = "SELECT 1";
}

#[cfg(feature = "mysql")]
impl Lendable for sqlx::MySql {
    const SURVIVES_A_DROP: bool = false;
    const NOTHING: &'static str = "DO 0";
}

/// What is known of a connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    /// A statement was sent and has not ended.
    under_way: bool,
    /// It is of no use any more.
    given_up: bool,
    /// Somebody else ran statements on it, and we have not seen how they ended.
    was_handed_out: bool,
    /// Whether it survives that a statement is dropped before its answer was read.
    survives_a_drop: bool,
}

/// A connection on loan. Dropped, it goes back to its pool, or is closed.
pub(crate) struct Lent<DB: Lendable> {
    connection: PoolConnection<DB>,
    standing: ConnectionState,
    limits: Limits,
}

/// How long statements may take.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Until the connection is given up.
    pub(crate) answer: Option<Duration>,
    /// Whether the server ends statements of this connection by itself, before that.
    pub(crate) server_ends: bool,
    /// Where it is noted that the server did not answer.
    pub(crate) silence: Silence,
}

/// When the server last kept somebody waiting beyond the limit. The connections that were idle then hang, too, as far as
/// anybody knows: nobody waits for each of them in turn to find out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Silence(Arc<watch::Sender<Option<Instant>>>);

impl Silence {
    fn noted(&self) {
        self.0.send_replace(Some(Instant::now()));
    }

    /// Whether it fell silent since a connection came back that has been idle for so long.
    fn fell_within(&self, idle_for: Duration) -> bool {
        self.0.borrow().is_some_and(|last| last.elapsed() <= idle_for)
    }

    /// Waits until it falls silent.
    async fn falls(&self) {
        let mut told = self.0.subscribe();
        // It cannot fail: the sender is ours.
        let _ = told.changed().await;
    }
}

/// Looks after the statements of a connection: each has a time limit, and one that does not come to its end is noted.
pub(crate) struct Care<'c> {
    limits: Limits,
    /// Nothing for a connection that is not ours to close.
    standing: Option<&'c mut ConnectionState>,
    /// Where it is noted that a transaction has ended before its commit.
    ended: Option<(&'c mut Option<Ended>, Dialect)>,
}

/// How a transaction ended before its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It gave way to another one, and may be run again.
    GaveWay,
    /// The connection was lost, or the database does not answer on it.
    Disconnected,
    /// The database has undone it by itself.
    Undone,
    /// A statement failed, and the database lets no other follow.
    Failed,
}

impl Ended {
    /// What an error means for the transaction that it came up in: nothing, if it goes on.
    pub(crate) fn by(error: &StoreError, dialect: Dialect) -> Option<Self> {
        match error {
            StoreError::Contention(_) => Some(Self::GaveWay),
            StoreError::Unavailable(_) => Some(Self::Disconnected),
            StoreError::Full(_) => Some(Self::Undone),
            _ => dialect.ends_transactions_by_errors().then_some(Self::Failed),
        }
    }

    /// What the next statement is told. MySQL and SQLite would run it outside of any transaction; PostgreSQL refuses by
    /// itself, and lets go on who has a savepoint.
    fn refusal(self, name: &'static str) -> Option<StoreError> {
        let why = "its transaction has ended already";
        match self {
            Self::GaveWay => Some(StoreError::Contention(why.into())),
            Self::Disconnected => Some(StoreError::Unavailable(why.into())),
            Self::Undone => Some(StoreError::Refused { statement: name, source: why.into() }),
            Self::Failed => None,
        }
    }
}

impl<'c> Care<'c> {
    /// For a connection that is not ours to close.
    pub(crate) fn of_a_guest(limits: Limits) -> Self {
        Self { limits, standing: None, ended: None }
    }

    /// For a file of this machine: the driver runs its statements in a thread of their own, and undoes what nobody waits
    /// for any more. The thread ends what takes too long where that has a limit.
    pub(crate) fn of_a_file(server_ends: bool) -> Self {
        let limits = Limits { answer: None, server_ends, silence: Silence::default() };
        Self { limits, standing: None, ended: None }
    }

    /// The same, for a transaction of which it is noted that it has ended before its commit.
    pub(crate) fn noting(self, ended: &'c mut Option<Ended>, dialect: Dialect) -> Self {
        Self { ended: Some((ended, dialect)), ..self }
    }

    /// Without a time limit: for what may take as long as it takes.
    pub(crate) fn without_limit(self) -> Self {
        Self { limits: Limits { answer: None, ..self.limits }, ..self }
    }

    /// Runs a statement to its end, or to the end of its time.
    pub(crate) async fn run<T>(
        &mut self,
        name: &'static str,
        statement: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, SqlFault> {
        if let Some(error) =
            self.ended.as_ref().and_then(|(ended, _)| **ended).and_then(|ended| ended.refusal(name))
        {
            return Err(SqlFault::Other(error));
        }
        if let Some(standing) = self.standing.as_deref_mut() {
            // What is still to come of a statement that nobody waits for any more would be taken for the answer to this one.
            standing.given_up |= standing.under_way && !standing.survives_a_drop;
            if standing.given_up {
                return Err(SqlFault::Other(StoreError::Unavailable("the connection was given up".into())));
            }
            // If this future is dropped, it stays so.
            standing.under_way = true;
        }
        let outcome = match self.limits.answer {
            Some(limit) => tokio::time::timeout(limit, statement).await,
            None => Ok(statement.await),
        };
        let given_up = match &outcome {
            Err(_) => true,
            // The database has answered, and goes on.
            Ok(Ok(_) | Err(sqlx::Error::Database(_))) => false,
            Ok(Err(_)) => true,
        };
        if let Some(standing) = self.standing.as_deref_mut() {
            standing.under_way = false;
            standing.given_up = given_up;
        }
        let outcome = match outcome {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if self.limits.server_ends && cut_off(&error) => {
                Err(SqlFault::Other(StoreError::TooSlow { statement: name, source: error.into() }))
            }
            Ok(Err(error)) => Err(classify(name, error)),
            Err(_) => {
                self.limits.silence.noted();
                let limit = self.limits.answer.unwrap_or_default();
                let what = format!("{name} was not answered within {limit:?}; its connection was closed");
                Err(SqlFault::Other(StoreError::Unavailable(what.into())))
            }
        };
        if let (Some((ended, dialect)), Err(fault)) = (&mut self.ended, &outcome) {
            **ended = ended.or_else(|| Ended::by(fault.error(), *dialect));
        }
        outcome
    }
}

impl<DB: Lendable> Lent<DB> {
    pub(crate) fn new(connection: PoolConnection<DB>, limits: Limits) -> Self {
        let standing = ConnectionState { survives_a_drop: DB::SURVIVES_A_DROP, ..ConnectionState::default() };
        Self { connection, standing, limits }
    }

    /// The connection, and who looks after its statements.
    pub(crate) fn parts(&mut self) -> (&mut DB::Connection, Care<'_>) {
        (
            &mut *self.connection,
            Care { limits: self.limits.clone(), standing: Some(&mut self.standing), ended: None },
        )
    }

    /// The connection for somebody else's statements. How they end we do not see, so it is asked before others get it.
    pub(crate) fn hand_out(&mut self) -> &mut DB::Connection {
        self.standing.was_handed_out = true;
        &mut self.connection
    }

    /// Waits until the server has fallen silent and stayed so for a statement's time more: whatever somebody else waits for
    /// on this connection will not come. Nobody else sees it, because their statements have no limit of ours.
    pub(crate) fn lost(&self) -> impl Future<Output = StoreError> + Send + use<DB> {
        let limits = self.limits.clone();
        async move {
            let Some(limit) = limits.answer else { return std::future::pending().await };
            limits.silence.falls().await;
            tokio::time::sleep(limit).await;
            let what = "the database fell silent while somebody else used its connection, which was given up";
            StoreError::Unavailable(what.into())
        }
    }

    pub(crate) async fn begin(&mut self) -> StoreResult<()> {
        let (connection, mut care) = self.parts();
        Ok(care.run("begin", DB::TransactionManager::begin(connection, None)).await?)
    }

    /// The same with what comes first in it. If that is refused, the transaction is undone; if it cannot be, the connection is closed.
    pub(crate) async fn begin_with(
        &mut self,
        name: &'static str,
        statements: String,
    ) -> Result<(), SqlFault> {
        let statements = sqlx::SqlSafeStr::into_sql_str(sqlx::AssertSqlSafe(statements));
        let (connection, mut care) = self.parts();
        let begun = care.run(name, DB::TransactionManager::begin(connection, Some(statements))).await;
        if begun.is_err() {
            // The driver does not know that a transaction is open, and runs no ROLLBACK but as the statement of a BEGIN: one
            // that opens nothing.
            let rollback = async {
                let rollback = sqlx::SqlSafeStr::into_sql_str("ROLLBACK");
                match DB::TransactionManager::begin(connection, Some(rollback)).await {
                    Err(sqlx::Error::BeginFailed) => Ok(()),
                    Err(error) => Err(error),
                    Ok(()) => Err(sqlx::Error::Protocol("a transaction is open after its ROLLBACK".into())),
                }
            };
            let undone = care.run("rollback", rollback).await;
            self.standing.given_up |= undone.is_err();
        }
        begun
    }

    pub(crate) async fn commit(mut self) -> StoreResult<()> {
        let (connection, mut care) = self.parts();
        Ok(care.run("commit", DB::TransactionManager::commit(connection)).await?)
    }

    pub(crate) async fn rollback(mut self) -> StoreResult<()> {
        let (connection, mut care) = self.parts();
        Ok(care.run("rollback", DB::TransactionManager::rollback(connection)).await?)
    }
}

impl<DB: Lendable> Drop for Lent<DB> {
    fn drop(&mut self) {
        let ConnectionState { under_way, given_up, was_handed_out, survives_a_drop } = self.standing;
        let is_lost = given_up || (under_way && !survives_a_drop);
        while !is_lost && self.connection.is_in_transaction() {
            DB::TransactionManager::start_rollback(&mut self.connection);
        }
        // It takes the connection with it: dropped before its end, it closes the connection and frees its place.
        let returning = self.connection.return_to_pool();
        if is_lost {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let is_clean = !under_way && !was_handed_out;
            runtime.spawn(give_back(returning, is_clean));
        }
    }
}

async fn give_back(returning: impl Future<Output = ()>, is_clean: bool) {
    let way_back = async {
        match is_clean {
            true => KNOWN_TO_BE_CLEAN.scope((), returning).await,
            false => returning.await,
        }
    };
    if tokio::time::timeout(WAY_BACK, way_back).await.is_err() {
        tracing::warn!("a database connection did not answer on its way back to the pool and was closed");
    }
}

/// Asked by the pool of each connection that comes back: whether the next borrower may have it. Of our own we mostly know;
/// of one that an application had for itself only the server knows whether a transaction is open on it.
pub(crate) async fn may_be_lent_again<DB: Lendable>(connection: &mut DB::Connection) -> sqlx::Result<bool> {
    if KNOWN_TO_BE_CLEAN.try_with(|()| ()).is_ok() {
        return Ok(true);
    }
    let ask = async {
        while connection.is_in_transaction() {
            DB::TransactionManager::rollback(connection).await?;
        }
        // A statement that opens no transaction: after it one is open only if one was.
        let nothing = sqlx::SqlSafeStr::into_sql_str(DB::NOTHING);
        match DB::TransactionManager::begin(connection, Some(nothing)).await {
            Err(sqlx::Error::BeginFailed) => Ok(true),
            Err(error) => Err(error),
            Ok(()) => {
                tracing::warn!("a connection came back with a transaction open on it, and was closed");
                Ok(false)
            }
        }
    };
    match tokio::time::timeout(WAY_BACK, ask).await {
        Ok(answer) => answer,
        Err(_) => Err(sqlx::Error::Protocol("no answer on the way back to the pool".into())),
    }
}

/// Asked by the pool of each connection that has waited for a borrower: whether the server still answers on it. One that
/// was in use a moment ago is not asked, which would cost a round trip per command; one that was idle when another got no
/// answer is not asked either, and closed.
pub(crate) async fn still_answers<DB: Lendable>(
    connection: &mut DB::Connection,
    idle_for: Duration,
    silence: Silence,
) -> sqlx::Result<bool> {
    /// After how long the server is asked: about what firewalls and balancers forget connections after, and less.
    const ASKED_AFTER: Duration = Duration::from_secs(30);
    const PATIENCE: Duration = Duration::from_secs(2);
    if silence.fell_within(idle_for) {
        return Ok(false);
    }
    if idle_for < ASKED_AFTER {
        return Ok(true);
    }
    match tokio::time::timeout(PATIENCE, connection.ping()).await {
        Ok(answer) => answer.map(|()| true),
        Err(_) => Err(sqlx::Error::Protocol("no answer from a connection that was idle".into())),
    }
}
