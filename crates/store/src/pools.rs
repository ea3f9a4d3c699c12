//! Connections: how many, how long to wait for one, and what each is told first.

use std::sync::Arc;
use std::time::Duration;

use towpath_core::ports::probe::{NoProbe, Probe};
use towpath_core::ports::store::{StoreError, StoreResult};

use crate::sql::classify;
use crate::url::StoreUrl;

/// How to connect.
#[derive(Clone)]
pub struct StoreOptions {
    /// How many connections at most. SQLite writes on one and reads on the others.
    pub max_connections: u32,
    /// How long to wait for a connection before the store counts as unavailable.
    pub acquire_timeout: Duration,
    /// Sees every statement.
    pub probe: Arc<dyn Probe>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { max_connections: 10, acquire_timeout: Duration::from_secs(5), probe: Arc::new(NoProbe) }
    }
}

#[derive(Clone)]
pub(crate) enum Pool {
    #[cfg(feature = "sqlite")]
    Sqlite { writer: sqlx::SqlitePool, readers: sqlx::SqlitePool },
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
    #[cfg(feature = "mysql")]
    MySql(sqlx::MySqlPool),
}

impl Pool {
    /// Connects. The database must exist, except for SQLite, where the file and its folder are made.
    pub(crate) async fn connect(url: &StoreUrl, options: &StoreOptions) -> StoreResult<Self> {
        match url {
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite { path } => connect_sqlite_patiently(path, options).await,
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres { url } => connect_postgres(url, options).await,
            #[cfg(feature = "mysql")]
            StoreUrl::MySql { url } => connect_mysql(url, options).await,
            #[allow(unreachable_patterns, reason = "reachable when a database is not built in")]
            other => Err(StoreError::BadUrl(format!("this build cannot open {other}"))),
        }
    }
}

/// Two processes that open a new file at once both switch it to WAL, and SQLite does not let the second wait: it is
/// told "locked" and has to try again.
#[cfg(feature = "sqlite")]
async fn connect_sqlite_patiently(path: &str, options: &StoreOptions) -> StoreResult<Pool> {
    let deadline = tokio::time::Instant::now() + options.acquire_timeout;
    loop {
        match connect_sqlite(path, options).await {
            Err(StoreError::Contention(_)) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            connected => return connected,
        }
    }
}

#[cfg(feature = "sqlite")]
async fn connect_sqlite(path: &str, options: &StoreOptions) -> StoreResult<Pool> {
    use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

    if let Some(folder) = std::path::Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty())
    {
        std::fs::create_dir_all(folder).map_err(|error| StoreError::Unavailable(error.into()))?;
    }
    let connect = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        // In WAL mode NORMAL could lose the last commits in a power cut: a fact that was answered must stay.
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(options.acquire_timeout);
    // SQLite has one writer at a time. One connection that writes makes writers queue fairly in this process
    // instead of polling the file for its lock.
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(options.acquire_timeout.max(Duration::from_secs(30)))
        .test_before_acquire(false)
        .connect_with(connect.clone())
        .await
        .map_err(|error| classify("connect", error))?;
    let readers = SqlitePoolOptions::new()
        .max_connections(options.max_connections.max(2) - 1)
        .acquire_timeout(options.acquire_timeout)
        .test_before_acquire(false)
        .connect_with(connect)
        .await
        .map_err(|error| classify("connect", error))?;
    Ok(Pool::Sqlite { writer, readers })
}

/// How long a statement waits for a lock on PostgreSQL.
#[cfg(feature = "postgres")]
const LOCK_TIMEOUT_MILLIS: &str = "5000";

/// How long a transaction may sleep on PostgreSQL.
#[cfg(feature = "postgres")]
const IDLE_TRANSACTION_MILLIS: &str = "60000";

#[cfg(feature = "postgres")]
async fn connect_postgres(url: &str, options: &StoreOptions) -> StoreResult<Pool> {
    use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

    let connect: PgConnectOptions =
        url.parse().map_err(|error: sqlx::Error| StoreError::BadUrl(error.to_string()))?;
    let pool = PgPoolOptions::new()
        .max_connections(options.max_connections)
        .acquire_timeout(options.acquire_timeout)
        // A dead connection shows itself at its first statement, which is answered as "unavailable" and may be
        // repeated; asking every time would cost a round trip per command.
        .test_before_acquire(false)
        // Whoever waits for a lock longer than this gives way and is run again, and whoever sleeps inside a transaction
        // is thrown out of it: neither may stall the others for ever.
        .connect_with(connect.application_name("towpath").options([
            ("lock_timeout", LOCK_TIMEOUT_MILLIS),
            ("idle_in_transaction_session_timeout", IDLE_TRANSACTION_MILLIS),
        ]))
        .await
        .map_err(|error| classify("connect", error))?;
    Ok(Pool::Postgres(pool))
}

#[cfg(feature = "mysql")]
async fn connect_mysql(url: &str, options: &StoreOptions) -> StoreResult<Pool> {
    use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};

    let connect: MySqlConnectOptions =
        url.parse().map_err(|error: sqlx::Error| StoreError::BadUrl(error.to_string()))?;
    let pool = MySqlPoolOptions::new()
        .max_connections(options.max_connections)
        .acquire_timeout(options.acquire_timeout)
        .test_before_acquire(false)
        .after_connect(|connection, _| {
            Box::pin(async move {
                // Gap locks of the default level would make unrelated writers wait for each other and deadlock;
                // nothing here depends on them.
                // Strict mode refuses what a column cannot hold instead of cutting it off silently.
                sqlx::raw_sql(
                    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                     SET SESSION innodb_lock_wait_timeout = 5; \
                     SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')",
                )
                .execute(&mut *connection)
                .await?;
                // MariaDB throws out whoever sleeps inside a transaction; MySQL does not know the variable.
                let _ = sqlx::raw_sql("SET SESSION idle_transaction_timeout = 60").execute(connection).await;
                Ok(())
            })
        })
        .connect_with(connect.charset("utf8mb4"))
        .await
        .map_err(|error| classify("connect", error))?;
    Ok(Pool::MySql(pool))
}
