//! The store over a pool of connections: which operation runs in which transaction.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::{Store, StoreResult};

use crate::dialect::Dialect;
use crate::floors::{Floors, Place};
use crate::lent::{Care, Lent, Limits, Silence};
use crate::ops::cleaning::Walked;
use crate::pools::{Pool, StoreOptions};
use crate::sql::{Session, SqlFault, classify};
use crate::transaction::{Inner, JoinTransaction, SqlTransaction};
use crate::url::StoreUrl;

/// How long it is waited for connections to be closed.
const CLOSING: Duration = Duration::from_secs(5);

/// How much longer than its server a listing waits.
const LISTING_MARGIN: Duration = Duration::from_secs(5);

/// A store on SQLite, PostgreSQL or MySQL/MariaDB. Clones share their connections.
#[derive(Clone)]
pub struct SqlStore {
    pool: Pool,
    probe: Arc<dyn Probe>,
    floors: Floors,
    walked: Walked,
    limits: Limits,
    listing_limits: Limits,
    /// What people know the database by.
    address: Arc<str>,
}

impl SqlStore {
    /// Connects with the default options.
    pub async fn connect(url: &str) -> StoreResult<Self> {
        Self::connect_with(&StoreUrl::parse(url)?, StoreOptions::default()).await
    }

    /// Connects. The database must exist, except for SQLite, where the file and its folder are made.
    pub async fn connect_with(url: &StoreUrl, options: StoreOptions) -> StoreResult<Self> {
        let address: Arc<str> = crate::pools::address(url).into();
        let silence = Silence::default();
        let pool = Pool::connect(url, &options, &address, &silence).await?;
        Ok(Self {
            pool,
            floors: Floors::default(),
            walked: Walked::default(),
            limits: Limits {
                answer: Some(options.statement_timeout),
                server_ends: false,
                silence: silence.clone(),
            },
            // The server ends it first, and says so.
            listing_limits: Limits {
                answer: Some(options.listing_timeout + LISTING_MARGIN),
                server_ends: true,
                silence,
            },
            probe: options.probe,
            address,
        })
    }

    /// The same connections, with another probe.
    pub fn with_probe(&self, probe: Arc<dyn Probe>) -> Self {
        Self { probe, ..self.clone() }
    }

    /// The application's own transaction, for Towpath's writes to join.
    pub fn join(&self, transaction: impl JoinTransaction) -> SqlTransaction {
        self.opened(transaction.into_inner())
    }

    fn opened(&self, inner: Inner) -> SqlTransaction {
        SqlTransaction {
            inner,
            probe: self.probe.clone(),
            limits: self.limits.clone(),
            was_handed_out: false,
            ended: None,
        }
    }

    /// The pool, for the application's own tables: the one connection that writes. Whoever holds a transaction of it
    /// must not await a command meanwhile: that would wait for the same connection. For reading there are
    /// [`open_reading`](Self::open_reading) and [`open_listing`](Self::open_listing).
    #[cfg(feature = "sqlite")]
    pub fn sqlite_pool(&self) -> Option<&sqlx::SqlitePool> {
        match &self.pool {
            Pool::Sqlite { writer, .. } => Some(writer),
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => None,
        }
    }

    /// The pool, for the application's own tables. What people look through belongs on [`open_listing`](Self::open_listing):
    /// here, commands wait for it.
    #[cfg(feature = "postgres")]
    pub fn postgres_pool(&self) -> Option<&sqlx::PgPool> {
        match &self.pool {
            Pool::Postgres { all, .. } => Some(all),
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => None,
        }
    }

    /// The pool, for the application's own tables. What people look through belongs on [`open_listing`](Self::open_listing):
    /// here, commands wait for it.
    #[cfg(feature = "mysql")]
    pub fn mysql_pool(&self) -> Option<&sqlx::MySqlPool> {
        match &self.pool {
            Pool::MySql { all, .. } => Some(all),
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => None,
        }
    }

    /// Closes all connections and waits until they are closed, for some seconds at most: what somebody still holds then is
    /// closed when he lets go of it. From the first moment on nobody gets a connection any more.
    pub async fn close(&self) {
        let closing = async {
            match &self.pool {
                #[cfg(feature = "sqlite")]
                Pool::Sqlite { writer, readers, listings } => {
                    tokio::join!(readers.close(), listings.close());
                    // The last one to close tidies up.
                    writer.close().await;
                }
                #[cfg(feature = "postgres")]
                Pool::Postgres { all, listings } => {
                    tokio::join!(all.close(), listings.close());
                }
                #[cfg(feature = "mysql")]
                Pool::MySql { all, listings } => {
                    tokio::join!(all.close(), listings.close());
                }
            }
        };
        if tokio::time::timeout(CLOSING, closing).await.is_err() {
            tracing::warn!(store = %self.address, "some connections are still in use; they close with their users");
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn walked(&self) -> &Walked {
        &self.walked
    }

    pub(crate) fn floors(&self) -> &Floors {
        &self.floors
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match &self.pool {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite { .. } => Dialect::Sqlite,
            #[cfg(feature = "postgres")]
            Pool::Postgres { .. } => Dialect::Postgres,
            #[cfg(feature = "mysql")]
            Pool::MySql { .. } => Dialect::MySql,
        }
    }

    /// A connection for reading and for single statements that commit themselves.
    pub(crate) async fn connection(&self, purpose: Purpose) -> StoreResult<OpenConnection> {
        let limits = if purpose == Purpose::List { &self.listing_limits } else { &self.limits }.clone();
        let inner = match &self.pool {
            #[cfg(feature = "sqlite")]
            Pool::Sqlite { writer, readers, listings } => {
                let pool = match purpose {
                    Purpose::Read => readers,
                    Purpose::Write => writer,
                    Purpose::List => listings,
                };
                InnerConnection::Sqlite(self.lent_by(pool).await?, limits.server_ends)
            }
            #[cfg(feature = "postgres")]
            Pool::Postgres { all, listings } => {
                let pool = if purpose == Purpose::List { listings } else { all };
                InnerConnection::Postgres(Lent::new(self.lent_by(pool).await?, limits))
            }
            #[cfg(feature = "mysql")]
            Pool::MySql { all, listings } => {
                let pool = if purpose == Purpose::List { listings } else { all };
                InnerConnection::MySql(Lent::new(self.lent_by(pool).await?, limits))
            }
        };
        Ok(OpenConnection { inner, probe: self.probe.clone() })
    }

    async fn lent_by<DB: sqlx::Database>(
        &self,
        pool: &sqlx::Pool<DB>,
    ) -> StoreResult<sqlx::pool::PoolConnection<DB>> {
        pool.acquire().await.map_err(|error| crate::pools::not_connected(&self.address, pool, error))
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
            Pool::Sqlite { writer, .. } => {
                let begun = writer.begin_with("BEGIN IMMEDIATE").await;
                Inner::Sqlite(begun.map_err(|error| classify("begin", error))?)
            }
            #[cfg(feature = "postgres")]
            Pool::Postgres { all, .. } => {
                let mut lent = Lent::new(self.lent_by(all).await?, self.limits.clone());
                lent.begin().await?;
                Inner::Postgres(lent)
            }
            #[cfg(feature = "mysql")]
            Pool::MySql { all, .. } => {
                let mut lent = Lent::new(self.lent_by(all).await?, self.limits.clone());
                lent.begin().await?;
                Inner::MySql(lent)
            }
        };
        Ok(self.opened(inner))
    }

    /// A transaction with what comes first in it, in one round trip; nothing where that takes two.
    #[cfg(feature = "postgres")]
    pub(crate) async fn transaction_with(
        &self,
        name: &'static str,
        statements: impl FnOnce() -> String,
    ) -> Option<Result<SqlTransaction, SqlFault>> {
        let Pool::Postgres { all, .. } = &self.pool else { return None };
        self.probe.before(name);
        let begin = async {
            let lent = self.lent_by(all).await.map_err(SqlFault::Other)?;
            let mut lent = Lent::new(lent, self.limits.clone());
            lent.begin_with(name, statements()).await?;
            Ok(self.opened(Inner::Postgres(lent)))
        };
        Some(begin.await)
    }
}

/// The whole contract, by topics: a store has its methods without an import for each of them.
impl Deref for SqlStore {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        self
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    Write,
    /// What people and metrics look through: on connections of its own, so that nobody else waits for it.
    List,
}

pub(crate) struct OpenConnection {
    inner: InnerConnection,
    probe: Arc<dyn Probe>,
}

enum InnerConnection {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::pool::PoolConnection<sqlx::Sqlite>, bool),
    #[cfg(feature = "postgres")]
    Postgres(Lent<sqlx::Postgres>),
    #[cfg(feature = "mysql")]
    MySql(Lent<sqlx::MySql>),
}

impl OpenConnection {
    pub(crate) fn session(&mut self) -> Session<'_> {
        let probe = self.probe.as_ref();
        match &mut self.inner {
            #[cfg(feature = "sqlite")]
            InnerConnection::Sqlite(connection, is_limited) => {
                Session::sqlite(&mut *connection, probe, Care::of_a_file(*is_limited))
            }
            #[cfg(feature = "postgres")]
            InnerConnection::Postgres(lent) => {
                let (connection, care) = lent.parts();
                Session::postgres(connection, probe, care)
            }
            #[cfg(feature = "mysql")]
            InnerConnection::MySql(lent) => {
                let (connection, care) = lent.parts();
                Session::mysql(connection, probe, care)
            }
        }
    }
}

/// Runs an operation on a connection for reading.
macro_rules! reading {
    ($store:expr, $operation:path $(, $argument:expr)*) => {{
        let mut connection = $store.connection($crate::store::Purpose::Read).await?;
        $operation(&mut connection.session() $(, $argument)*).await
    }};
}

pub(crate) use reading;

/// Runs an operation on a connection for listings.
macro_rules! listing {
    ($store:expr, $operation:path $(, $argument:expr)*) => {{
        let mut connection = $store.connection($crate::store::Purpose::List).await?;
        $operation(&mut connection.session() $(, $argument)*).await
    }};
}

pub(crate) use listing;

/// Runs an operation that is one statement, and so its own transaction.
macro_rules! writing_once {
    ($store:expr, $operation:path $(, $argument:expr)*) => {{
        let mut connection = $store.connection($crate::store::Purpose::Write).await?;
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
