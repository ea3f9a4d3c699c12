//! Connections: how many, how long to wait for one, and what each is told first.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection as _, Database};
use towpath_core::ports::probe::{NoProbe, Probe};
use towpath_core::ports::store::{BoxError, StoreError, StoreResult};

use crate::lent::{Silence, may_be_lent_again, still_answers};
use crate::sql::classify;
use crate::url::StoreUrl;

/// How to connect.
#[derive(Clone)]
pub struct StoreOptions {
    /// How many connections at most, beside those for listings. SQLite writes on one and reads on the others.
    pub max_connections: u32,
    /// How long to wait for a connection before the store counts as unavailable.
    pub acquire_timeout: Duration,
    /// How long a statement of the store's own may go unanswered. Then its connection is closed and the store counts as
    /// unavailable: a server that is gone without a word would be waited for for ever. SQLite is not gone without a word,
    /// and migrations take as long as they take.
    pub statement_timeout: Duration,
    /// How long a transaction may be open without a statement. Then the server rolls it back: the locks of a host that is
    /// gone without a word would be kept for ever.
    pub idle_transaction_timeout: Duration,
    /// How many connections listings and metrics have for themselves: a slow one makes no command wait.
    pub listing_connections: u32,
    /// How long a statement of a listing may take. Then the database ends it.
    pub listing_timeout: Duration,
    /// Sees every statement.
    pub probe: Arc<dyn Probe>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            max_connections: 10,
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(30),
            idle_transaction_timeout: Duration::from_secs(60),
            listing_connections: 3,
            listing_timeout: Duration::from_secs(10),
            probe: Arc::new(NoProbe),
        }
    }
}

#[derive(Clone)]
pub(crate) enum Pool {
    #[cfg(feature = "sqlite")]
    Sqlite { writer: sqlx::SqlitePool, readers: sqlx::SqlitePool, listings: sqlx::SqlitePool },
    #[cfg(feature = "postgres")]
    Postgres { all: sqlx::PgPool, listings: sqlx::PgPool },
    #[cfg(feature = "mysql")]
    MySql { all: sqlx::MySqlPool, listings: sqlx::MySqlPool },
}

/// What people know a database by: never with its password.
pub(crate) fn address(url: &StoreUrl) -> String {
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    fn of(name: &str, host: &str, port: u16, socket: Option<&std::path::PathBuf>) -> String {
        match socket {
            Some(socket) => format!("{name} at {}", socket.display()),
            None => format!("{name} at {host}:{port}"),
        }
    }
    match url {
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite { path } => format!("SQLite at {path}"),
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres { url } => url.parse().map_or_else(
            |_: sqlx::Error| "PostgreSQL".to_owned(),
            |options: sqlx::postgres::PgConnectOptions| {
                of("PostgreSQL", options.get_host(), options.get_port(), options.get_socket())
            },
        ),
        #[cfg(feature = "mysql")]
        StoreUrl::MySql { url } => url.parse().map_or_else(
            |_: sqlx::Error| "MariaDB/MySQL".to_owned(),
            |options: sqlx::mysql::MySqlConnectOptions| {
                of("MariaDB/MySQL", options.get_host(), options.get_port(), options.get_socket())
            },
        ),
        #[allow(unreachable_patterns, reason = "reachable when a database is not built in")]
        _ => "the database".to_owned(),
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum NotConnected {
    #[error("cannot connect to {address}")]
    Failed { address: String, source: BoxError },
    #[error("{address} has not answered within {waited:?}")]
    Silent { address: String, waited: Duration },
    #[error("all {most} connections to {address} were in use for {waited:?}")]
    Busy { address: String, most: u32, waited: Duration },
    #[error("the store is closed")]
    Closed,
}

/// Why a pool gave no connection, with what people know its database by.
pub(crate) fn not_connected<DB: Database>(
    address: &str,
    pool: &sqlx::Pool<DB>,
    error: sqlx::Error,
) -> StoreError {
    let (waited, most) = (pool.options().get_acquire_timeout(), pool.options().get_max_connections());
    match error {
        sqlx::Error::PoolClosed => StoreError::Unavailable(NotConnected::Closed.into()),
        sqlx::Error::PoolTimedOut if pool.size() >= most => {
            let address = address.to_owned();
            StoreError::Unavailable(NotConnected::Busy { address, most, waited }.into())
        }
        error => failed(address, waited, error),
    }
}

fn failed(address: &str, waited: Duration, error: sqlx::Error) -> StoreError {
    let address = address.to_owned();
    if matches!(error, sqlx::Error::PoolTimedOut) {
        return StoreError::Unavailable(NotConnected::Silent { address, waited }.into());
    }
    match StoreError::from(classify("connect", error)) {
        StoreError::Unavailable(source) => {
            // The driver's own error says the same again and what it is about.
            let source = match source.downcast::<sqlx::Error>().map(|error| *error) {
                Ok(sqlx::Error::Io(error)) => error.into(),
                Ok(error) => error.into(),
                Err(source) => source,
            };
            StoreError::Unavailable(NotConnected::Failed { address, source }.into())
        }
        StoreError::Refused { statement, source } => {
            StoreError::Refused { statement, source: NotConnected::Failed { address, source }.into() }
        }
        other => other,
    }
}

/// Waits for the first connection of a pool. A pool tries again while nobody listens, and then only says that its time is
/// over: what is wrong a connection of its own tells.
async fn first_connection<DB: Database>(pool: &sqlx::Pool<DB>, address: &str) -> StoreResult<()> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let error = match pool.acquire().await {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let waited = pool.options().get_acquire_timeout();
    if !matches!(error, sqlx::Error::PoolTimedOut) {
        return Err(failed(address, waited, error));
    }
    let options = pool.connect_options();
    match tokio::time::timeout(PATIENCE, DB::Connection::connect_with(&options)).await {
        Ok(Err(why)) => Err(failed(address, waited, why)),
        Ok(Ok(_)) | Err(_) => Err(failed(address, waited, error)),
    }
}

impl Pool {
    /// Connects. The database must exist, except for SQLite, where the file and its folder are made.
    pub(crate) async fn connect(
        url: &StoreUrl,
        options: &StoreOptions,
        address: &str,
        silence: &Silence,
    ) -> StoreResult<Self> {
        match url {
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite { path } => connect_sqlite_patiently(path, options, address).await,
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres { url } => connect_postgres(url, options, address, silence.clone()).await,
            #[cfg(feature = "mysql")]
            StoreUrl::MySql { url } => connect_mysql(url, options, address, silence.clone()).await,
            #[allow(unreachable_patterns, reason = "reachable when a database is not built in")]
            other => Err(StoreError::BadUrl(format!("this build cannot open {other}"))),
        }
    }
}

/// Two processes that open a new file at once both switch it to WAL, and SQLite does not let the second wait: it is
/// told "locked" and has to try again.
#[cfg(feature = "sqlite")]
async fn connect_sqlite_patiently(path: &str, options: &StoreOptions, address: &str) -> StoreResult<Pool> {
    let deadline = tokio::time::Instant::now() + options.acquire_timeout;
    loop {
        match connect_sqlite(path, options, address).await {
            Err(StoreError::Contention(_)) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            connected => return connected,
        }
    }
}

#[cfg(feature = "sqlite")]
async fn connect_sqlite(path: &str, options: &StoreOptions, address: &str) -> StoreResult<Pool> {
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
    let failed = |error| failed(address, options.acquire_timeout, error);
    // SQLite has one writer at a time. One connection that writes makes writers queue fairly in this process
    // instead of polling the file for its lock.
    let writer = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(options.acquire_timeout.max(Duration::from_secs(30)))
        .test_before_acquire(false)
        .after_release(|connection, _| Box::pin(is_at_rest(connection)))
        .connect_with(connect.clone())
        .await
        .map_err(failed)?;
    let readers = SqlitePoolOptions::new()
        .max_connections(options.max_connections.max(2) - 1)
        .acquire_timeout(options.acquire_timeout)
        .test_before_acquire(false)
        .connect_with(connect.clone())
        .await
        .map_err(failed)?;
    let limit = options.listing_timeout;
    let listings = SqlitePoolOptions::new()
        .max_connections(options.listing_connections.max(1))
        .acquire_timeout(options.acquire_timeout)
        .test_before_acquire(false)
        // From when it is lent, which is just before it is asked something.
        .after_connect(move |connection, _| Box::pin(async move { end_after(connection, limit).await }))
        .before_acquire(move |connection, _| {
            Box::pin(async move { end_after(connection, limit).await.map(|()| true) })
        })
        .connect_lazy_with(connect);
    Ok(Pool::Sqlite { writer, readers, listings })
}

/// Whether a connection that comes back may write again. A disk that is full makes SQLite undo a transaction by itself, and
/// the driver takes it for open for ever: such a connection is closed.
#[cfg(feature = "sqlite")]
async fn is_at_rest(connection: &mut sqlx::SqliteConnection) -> sqlx::Result<bool> {
    // Waits for the rollback of a transaction that was dropped.
    drop(connection.lock_handle().await?);
    Ok(!connection.is_in_transaction())
}

/// Lets SQLite end what a connection is asked from now on when it takes longer than this.
#[cfg(feature = "sqlite")]
async fn end_after(connection: &mut sqlx::SqliteConnection, limit: Duration) -> sqlx::Result<()> {
    /// How many steps of its machine SQLite makes between two looks at the clock: some milliseconds.
    const STEPS: i32 = 100_000;
    let end = std::time::Instant::now() + limit;
    connection.lock_handle().await?.set_progress_handler(STEPS, move || std::time::Instant::now() < end);
    Ok(())
}

/// How long a statement waits for a lock on PostgreSQL.
#[cfg(feature = "postgres")]
const LOCK_TIMEOUT_MILLIS: &str = "5000";

#[cfg(feature = "postgres")]
async fn connect_postgres(
    url: &str,
    options: &StoreOptions,
    address: &str,
    silence: Silence,
) -> StoreResult<Pool> {
    use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

    let connect: PgConnectOptions =
        url.parse().map_err(|error: sqlx::Error| StoreError::BadUrl(error.to_string()))?;
    // Whoever waits for a lock longer than this gives way and is run again, and whoever sleeps inside a transaction is
    // thrown out of it: neither may stall the others for ever. The driver has no keepalive of its own; the server's tells
    // it of a client that is gone without a word, whose locks it then frees.
    let idle = options.idle_transaction_timeout.as_millis().to_string();
    let connect = connect.application_name("towpath").options([
        ("lock_timeout", LOCK_TIMEOUT_MILLIS),
        ("idle_in_transaction_session_timeout", idle.as_str()),
        ("tcp_keepalives_idle", "30"),
        ("tcp_keepalives_interval", "10"),
        ("tcp_keepalives_count", "3"),
    ]);
    let pool = PgPoolOptions::new()
        .acquire_timeout(options.acquire_timeout)
        // A connection that was in use a moment ago is not asked whether it lives: if not, its first statement is
        // answered as "unavailable" and may be repeated.
        .test_before_acquire(false)
        .before_acquire(move |connection, about| {
            Box::pin(still_answers::<sqlx::Postgres>(connection, about.idle_for, silence.clone()))
        })
        .after_release(|connection, _| Box::pin(may_be_lent_again::<sqlx::Postgres>(connection)));
    let limit = options.listing_timeout.as_millis().to_string();
    let listings = pool
        .clone()
        .max_connections(options.listing_connections.max(1))
        .connect_lazy_with(connect.clone().options([("statement_timeout", limit)]));
    let all = pool.max_connections(options.max_connections).connect_lazy_with(connect);
    first_connection(&all, address).await?;
    Ok(Pool::Postgres { all, listings })
}

#[cfg(feature = "mysql")]
async fn connect_mysql(
    url: &str,
    options: &StoreOptions,
    address: &str,
    silence: Silence,
) -> StoreResult<Pool> {
    use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};

    let connect: MySqlConnectOptions =
        url.parse().map_err(|error: sqlx::Error| StoreError::BadUrl(error.to_string()))?;
    let connect = connect.charset("utf8mb4");
    let pool = MySqlPoolOptions::new()
        .acquire_timeout(options.acquire_timeout)
        .test_before_acquire(false)
        .before_acquire(move |connection, about| {
            Box::pin(still_answers::<sqlx::MySql>(connection, about.idle_for, silence.clone()))
        })
        .after_release(|connection, _| Box::pin(may_be_lent_again::<sqlx::MySql>(connection)));
    let (limit, idle) = (options.listing_timeout, options.idle_transaction_timeout);
    let listings = pool
        .clone()
        .max_connections(options.listing_connections.max(1))
        .after_connect(move |connection, _| Box::pin(prepare_mysql(connection, idle, Some(limit))))
        .connect_lazy_with(connect.clone());
    let all = pool
        .max_connections(options.max_connections)
        .after_connect(move |connection, _| Box::pin(prepare_mysql(connection, idle, None)))
        .connect_lazy_with(connect);
    first_connection(&all, address).await?;
    Ok(Pool::MySql { all, listings })
}

#[cfg(feature = "mysql")]
async fn prepare_mysql(
    connection: &mut sqlx::MySqlConnection,
    idle: Duration,
    limit: Option<Duration>,
) -> sqlx::Result<()> {
    // Gap locks of the default level would make unrelated writers wait for each other and deadlock; nothing here
    // depends on them.
    // Strict mode refuses what a column cannot hold instead of cutting it off silently.
    sqlx::raw_sql(
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
         SET SESSION innodb_lock_wait_timeout = 5; \
         SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')",
    )
    .execute(&mut *connection)
    .await?;
    // MariaDB throws out whoever sleeps inside a transaction; MySQL does not know the variable.
    let idle = format!("SET SESSION idle_transaction_timeout = {}", idle.as_secs().max(1));
    let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(idle)).execute(&mut *connection).await;
    if let Some(limit) = limit {
        // MariaDB counts in seconds, MySQL in milliseconds under another name.
        let mariadb = format!("SET SESSION max_statement_time = {}", limit.as_secs_f64());
        let mysql = format!("SET SESSION max_execution_time = {}", limit.as_millis());
        if sqlx::raw_sql(sqlx::AssertSqlSafe(mariadb)).execute(&mut *connection).await.is_err() {
            sqlx::raw_sql(sqlx::AssertSqlSafe(mysql)).execute(connection).await?;
        }
    }
    Ok(())
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::store::{Purpose, SqlStore};

    #[tokio::test]
    async fn sqlite_ends_a_listing_that_takes_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("sqlite://{}", folder.path().join("towpath.db").display());
        let options = StoreOptions { listing_timeout: Duration::from_millis(50), ..StoreOptions::default() };
        let store = SqlStore::connect_with(&StoreUrl::parse(&file).unwrap(), options).await.unwrap();
        let endless =
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) AS c FROM n";
        // On a new connection, and on one that was used before.
        for _ in 0..2 {
            let mut connection = store.connection(Purpose::List).await.unwrap();
            let answer = connection.session().rows("test.endless", endless, Vec::new()).await;
            let error = StoreError::from(answer.err().expect("it would never end"));
            assert!(matches!(error, StoreError::TooSlow { statement: "test.endless", .. }), "{error:?}");
        }
        let mut connection = store.connection(Purpose::List).await.unwrap();
        assert!(connection.session().rows("test.short", "SELECT 1 AS one", Vec::new()).await.is_ok());
    }
}
