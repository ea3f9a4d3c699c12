//! The store over a pool of connections: which operation runs in which transaction.

use std::sync::{Arc, OnceLock};

use chrono::{DateTime, Utc};
use towpath_core::ids::{EventId, HandlerName};
use towpath_core::ports::operations::{OperationAnswer, OperationClaim};
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::{
    Append, AppendRules, Appended, InboxMark, NewTimer, StoreError, StoreResult,
};
use uuid::Uuid;

use crate::dialect::Dialect;
use crate::floors::{Floors, Place};
use crate::ops;
use crate::pools::{Pool, StoreOptions};
use crate::sql::{Session, classify};
use crate::transaction::{Inner, JoinTransaction, SqlTransaction};
use crate::url::StoreUrl;

/// A store on SQLite, PostgreSQL or MySQL/MariaDB. Clones share their connections.
#[derive(Clone)]
pub struct SqlStore {
    pool: Pool,
    probe: Arc<dyn Probe>,
    floors: Floors,
    rules: Arc<OnceLock<Arc<dyn AppendRules>>>,
}

impl SqlStore {
    /// Connects with the default options.
    pub async fn connect(url: &str) -> StoreResult<Self> {
        Self::connect_with(&StoreUrl::parse(url)?, StoreOptions::default()).await
    }

    /// Connects. The database must exist, except for SQLite, where the file and its folder are made.
    pub async fn connect_with(url: &StoreUrl, options: StoreOptions) -> StoreResult<Self> {
        let pool = Pool::connect(url, &options).await?;
        Ok(Self { pool, probe: options.probe, floors: Floors::default(), rules: Arc::default() })
    }

    /// The same connections, with another probe.
    pub fn with_probe(&self, probe: Arc<dyn Probe>) -> Self {
        Self { pool: self.pool.clone(), probe, floors: self.floors.clone(), rules: self.rules.clone() }
    }

    /// Appends facts inside the application's own transaction: they commit with its own changes or not at all.
    ///
    /// # Guarantees
    /// Versions of the aggregate stay unique and gapless; the events get outbox rows and, after the commit,
    /// positions, exactly as those of commands do. For a kind of aggregate that is registered, its machine is asked, and
    /// its state, history, deadline and folded state follow: what the append leaves out is filled in, and its row stays
    /// locked until the transaction ends.
    ///
    /// # Errors
    /// `VersionConflict`, `DuplicateEvent` and `ForbiddenEvent`: nothing of this append was written; roll the
    /// transaction back.
    pub async fn append_tx(
        &self,
        transaction: &mut impl JoinTransaction,
        append: &Append,
    ) -> StoreResult<Appended> {
        let mut session = transaction.as_session(self.probe.as_ref());
        match self.rules.get() {
            None => ops::append::append_tx(&mut session, append).await,
            Some(rules) => {
                let complete = ops::append::complete(&mut session, append, rules.as_ref()).await?;
                ops::append::append_tx(&mut session, &complete).await
            }
        }
    }

    /// Tells the store what the application has declared about facts that are appended without a command. The first time
    /// counts, for all clones.
    pub fn keep_rules(&self, rules: Arc<dyn AppendRules>) {
        let _ = self.rules.set(rules);
    }

    /// Writes the answer of a claimed operation inside the application's own transaction, which has its effect.
    ///
    /// # Errors
    /// `Fenced` when the claim was lost: roll the transaction back, somebody else does it.
    pub async fn answer_operation_tx(
        &self,
        transaction: &mut impl JoinTransaction,
        claim: &OperationClaim,
        answer: &OperationAnswer,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        ops::operations::answer(&mut transaction.as_session(self.probe.as_ref()), claim, answer, now).await
    }

    /// Marks a delivery as handled inside the application's own transaction.
    pub async fn mark_inbox_tx(
        &self,
        transaction: &mut impl JoinTransaction,
        event_id: EventId,
        handler: &HandlerName,
        now: DateTime<Utc>,
    ) -> StoreResult<InboxMark> {
        ops::inbox::mark(&mut transaction.as_session(self.probe.as_ref()), event_id, handler, now).await
    }

    /// Schedules a timer inside the application's own transaction.
    pub async fn schedule_timer_tx(
        &self,
        transaction: &mut impl JoinTransaction,
        timer: &NewTimer,
    ) -> StoreResult<()> {
        ops::timers::schedule(&mut transaction.as_session(self.probe.as_ref()), timer).await
    }

    /// Cancels a timer inside the application's own transaction.
    pub async fn cancel_timer_tx(
        &self,
        transaction: &mut impl JoinTransaction,
        timer_id: Uuid,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        ops::timers::cancel(&mut transaction.as_session(self.probe.as_ref()), timer_id, now).await
    }

    /// The pool, for the application's own tables: the one connection that writes. Whoever holds a transaction of it
    /// must not await a command meanwhile: that would wait for the same connection.
    #[cfg(feature = "sqlite")]
    pub fn sqlite_pool(&self) -> Option<&sqlx::SqlitePool> {
        match &self.pool {
            Pool::Sqlite { writer, .. } => Some(writer),
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => None,
        }
    }

    /// The pool, for the application's own tables.
    #[cfg(feature = "postgres")]
    pub fn postgres_pool(&self) -> Option<&sqlx::PgPool> {
        match &self.pool {
            Pool::Postgres(pool) => Some(pool),
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => None,
        }
    }

    /// The pool, for the application's own tables.
    #[cfg(feature = "mysql")]
    pub fn mysql_pool(&self) -> Option<&sqlx::MySqlPool> {
        match &self.pool {
            Pool::MySql(pool) => Some(pool),
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => None,
        }
    }

    /// Closes all connections and waits until they are closed.
    pub async fn close(&self) {
        match &self.pool {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite { writer, readers } => {
                readers.close().await;
                writer.close().await;
            }
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => pool.close().await,
            #[cfg(feature = "mysql")]
            Pool::MySql(pool) => pool.close().await,
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn floors(&self) -> &Floors {
        &self.floors
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match &self.pool {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite { .. } => Dialect::Sqlite,
            #[cfg(feature = "postgres")]
            Pool::Postgres(_) => Dialect::Postgres,
            #[cfg(feature = "mysql")]
            Pool::MySql(_) => Dialect::MySql,
        }
    }

    /// A connection for reading and for single statements that commit themselves.
    pub(crate) async fn connection(&self, purpose: Purpose) -> StoreResult<OpenConnection> {
        let inner = match &self.pool {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite { writer, readers } => {
                let pool = if purpose == Purpose::Read { readers } else { writer };
                pool.acquire().await.map(InnerConnection::Sqlite)
            }
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => pool.acquire().await.map(InnerConnection::Postgres),
            #[cfg(feature = "mysql")]
            Pool::MySql(pool) => pool.acquire().await.map(InnerConnection::MySql),
        };
        let _ = purpose;
        Ok(OpenConnection {
            inner: inner.map_err(|error| classify("connect", error))?,
            probe: self.probe.clone(),
        })
    }

    /// Notes that rows of a place were taken, and lets its floor rise.
    pub(crate) async fn taken(&self, place: &Place, rows: u64) {
        if !self.dialect().keeps_floors() || !self.floors.is_time(place, rows) {
            return;
        }
        let raised = async {
            let mut connection = self.connection(Purpose::Read).await?;
            self.floors.raise(&mut connection.session(), place).await
        };
        // A floor saves work and nothing depends on it. What is wrong with the database the next look will say.
        let _ = raised.await;
        self.floors.asked(place);
    }

    pub(crate) async fn transaction(&self) -> StoreResult<SqlTransaction> {
        self.probe.before("begin");
        let inner = match &self.pool {
            // A write transaction from its first statement: one that begins by reading and then wants to write
            // would have to give up when another was quicker.
            #[cfg(feature = "sqlite")]
            Pool::Sqlite { writer, .. } => writer.begin_with("BEGIN IMMEDIATE").await.map(Inner::Sqlite),
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => pool.begin().await.map(Inner::Postgres),
            // sqlx notes that a MySQL transaction is open only when BEGIN was answered: a caller that is dropped
            // while it waits would give the connection back with a transaction open on it. In a task of its own
            // the call runs to its end, and what it opened is rolled back.
            #[cfg(feature = "mysql")]
            Pool::MySql(pool) => {
                let pool = pool.clone();
                match tokio::spawn(async move { pool.begin().await }).await {
                    Ok(begun) => begun.map(Inner::MySql),
                    Err(error) => return Err(StoreError::Unavailable(error.into())),
                }
            }
        };
        Ok(SqlTransaction {
            inner: inner.map_err(|error| classify("begin", error))?,
            probe: self.probe.clone(),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    Write,
}

pub(crate) struct OpenConnection {
    inner: InnerConnection,
    probe: Arc<dyn Probe>,
}

enum InnerConnection {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::pool::PoolConnection<sqlx::Sqlite>),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::pool::PoolConnection<sqlx::Postgres>),
    #[cfg(feature = "mysql")]
    MySql(sqlx::pool::PoolConnection<sqlx::MySql>),
}

impl OpenConnection {
    pub(crate) fn session(&mut self) -> Session<'_> {
        let probe = self.probe.as_ref();
        match &mut self.inner {
            #[cfg(feature = "sqlite")]
            InnerConnection::Sqlite(connection) => Session::sqlite(&mut *connection, probe),
            #[cfg(feature = "postgres")]
            InnerConnection::Postgres(connection) => Session::postgres(&mut *connection, probe),
            #[cfg(feature = "mysql")]
            InnerConnection::MySql(connection) => Session::mysql(&mut *connection, probe),
        }
    }
}

/// Runs an operation on a connection for reading.
macro_rules! reading {
    ($store:expr, $operation:path $(, $argument:expr)*) => {{
        let mut connection = $store.connection(Purpose::Read).await?;
        $operation(&mut connection.session() $(, $argument)*).await
    }};
}

pub(crate) use reading;

/// Runs an operation that is one statement, and so its own transaction.
macro_rules! writing_once {
    ($store:expr, $operation:path $(, $argument:expr)*) => {{
        let mut connection = $store.connection(Purpose::Write).await?;
        $operation(&mut connection.session() $(, $argument)*).await
    }};
}

pub(crate) use writing_once;

/// Runs an operation in a transaction; on an error it is rolled back.
macro_rules! transacting {
    ($store:expr, $operation:path $(, $argument:expr)*) => {{
        let mut transaction = $store.transaction().await?;
        match $operation(&mut transaction.session() $(, $argument)*).await {
            Ok(answer) => {
                transaction.commit().await?;
                Ok(answer)
            }
            Err(error) => {
                // What matters is why it failed; a connection that cannot even roll back is closed by the pool.
                let _ = transaction.rollback().await;
                Err(error)
            }
        }
    }};
}

pub(crate) use transacting;
