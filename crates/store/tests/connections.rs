//! Connections that callers leave in the middle of something, and servers that are gone without a word.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod fixtures;

use std::error::Error as _;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fixtures::Fresh;
use towpath_core::ids::CommandId;
use towpath_core::ports::store::{OutboxFilter, StoreError};
use towpath_store::{SqlStore, StoreOptions, StoreUrl, Value};
use towpath_testkit::broker::TcpProxy;
use towpath_testkit::store::waiting::eventually;
use uuid::Uuid;

/// Longer than any of it may take, and shorter than for ever.
const PATIENCE: Duration = Duration::from_secs(20);

/// A store with one connection, which leads through a proxy, and one that goes directly to the same database.
struct Stage {
    through: SqlStore,
    directly: SqlStore,
    proxy: TcpProxy,
    _fresh: Fresh,
}

fn options() -> StoreOptions {
    StoreOptions {
        max_connections: 1,
        acquire_timeout: Duration::from_secs(2),
        statement_timeout: Duration::from_secs(10),
        ..StoreOptions::default()
    }
}

impl Stage {
    async fn on(fresh: Fresh, options: StoreOptions) -> Self {
        let (url, proxy) = TcpProxy::before(&fresh.url()).await;
        let directly = SqlStore::connect(&fresh.url()).await.unwrap();
        directly.migrate().await.unwrap();
        directly
            .own_execute("test.table", "CREATE TABLE marks (mark BIGINT NOT NULL)", vec![])
            .await
            .unwrap();
        let through = SqlStore::connect_with(&StoreUrl::parse(&url).unwrap(), options).await.unwrap();
        let stage = Self { through, directly, proxy, _fresh: fresh };
        stage.at_rest().await;
        stage
    }

    /// Waits until nothing is said on the connection any more.
    async fn at_rest(&self) {
        eventually("the connection is idle", || async {
            (self.through.connections()[0].used == 0).then_some(())
        })
        .await;
    }

    /// Begins something, waits until the server has answered it, and drops it before the answer arrives.
    async fn begin_and_leave<T: Send + 'static>(&self, what: impl Future<Output = T> + Send + 'static) {
        let before = self.proxy.seen().from_server;
        self.proxy.hold_answers();
        let begun = tokio::spawn(what);
        tokio::time::timeout(PATIENCE, self.proxy.until(|seen| seen.from_server > before)).await.unwrap();
        begun.abort();
        assert!(begun.await.is_err(), "it has not ended by itself");
        self.proxy.heal();
    }

    /// Whether a statement that was answered has happened.
    async fn writes_are_true(&self) {
        let insert = "INSERT INTO marks (mark) VALUES (?)";
        let mark = |mark: i64| self.through.own_execute("test.mark", insert, vec![Value::from(mark)]);
        tokio::time::timeout(PATIENCE, mark(7)).await.expect("there is a connection").unwrap();
        let rows = self.directly.own_rows("test.marks", "SELECT mark FROM marks", vec![]).await.unwrap();
        assert_eq!(rows.len(), 1, "what was answered is there for others, too");
    }

    async fn closes(&self) {
        tokio::time::timeout(PATIENCE, self.through.close()).await.expect("closing ends");
    }
}

async fn a_begin_that_nobody_waits_for_leaves_no_transaction_open(fresh: Fresh) {
    let stage = Stage::on(fresh, options()).await;
    let store = stage.through.clone();
    stage.begin_and_leave(async move { store.open_transaction().await.map(|_| ()) }).await;
    stage.writes_are_true().await;
    stage.closes().await;
}

async fn a_unit_that_nobody_waits_for_leaves_no_transaction_open(fresh: Fresh) {
    let stage = Stage::on(fresh, options()).await;
    let (store, unit_id) = (stage.through.clone(), Uuid::now_v7());
    stage.begin_and_leave(async move { store.open_unit(unit_id).await.map(|_| ()) }).await;
    stage.writes_are_true().await;
    let unit = tokio::time::timeout(PATIENCE, stage.directly.open_unit(unit_id)).await;
    assert!(unit.expect("nobody holds its row").unwrap().is_some(), "it was not committed");
    stage.closes().await;
}

async fn a_unit_that_is_refused_costs_no_connection(fresh: Fresh) {
    let stage = Stage::on(fresh, options()).await;
    let session = async || {
        let ask = match stage.through.postgres_pool() {
            Some(_) => "SELECT CAST(pg_backend_pid() AS BIGINT) AS number",
            None => "SELECT CAST(CONNECTION_ID() AS SIGNED) AS number",
        };
        let rows = stage.through.own_rows("test.session", ask, vec![]).await.unwrap();
        rows[0].count("number").unwrap()
    };
    let (before, unit_id) = (session().await, Uuid::now_v7());
    let unit = stage.through.open_unit(unit_id).await.unwrap().unwrap();
    unit.finish_unit(unit_id).await.unwrap();
    for _ in 0..3 {
        assert!(stage.through.open_unit(unit_id).await.unwrap().is_none(), "it has committed before");
    }
    assert_eq!(session().await, before, "it is the same connection");
    stage.writes_are_true().await;
    stage.closes().await;
}

/// An application's own, straight from the driver.
async fn a_begin_of_an_application_leaves_no_transaction_open(fresh: Fresh) {
    let stage = Stage::on(fresh, options()).await;
    if let Some(pool) = stage.through.postgres_pool().cloned() {
        stage.begin_and_leave(async move { pool.begin().await.map(|_| ()) }).await;
    }
    if let Some(pool) = stage.through.mysql_pool().cloned() {
        stage.begin_and_leave(async move { pool.begin().await.map(|_| ()) }).await;
    }
    stage.writes_are_true().await;
    stage.closes().await;
}

async fn a_statement_left_halfway_in_a_transaction_costs_no_connection(fresh: Fresh) {
    let stage = Stage::on(fresh, options()).await;
    // A statement that the server has not seen yet is prepared first, and one that it has is run at once: both are left.
    for round in 0..3 {
        let mut transaction = stage.through.open_transaction().await.unwrap();
        if round > 0 {
            let sql = "SELECT mark FROM marks WHERE mark = ?";
            transaction.own_tables().rows("test.read", sql, vec![Value::from(1_i64)]).await.unwrap();
        }
        stage
            .begin_and_leave(async move {
                let sql = "SELECT mark FROM marks WHERE mark = ?";
                let _ = transaction.own_tables().rows("test.read", sql, vec![Value::from(1_i64)]).await;
            })
            .await;
        // A transaction can be had again.
        let again = tokio::time::timeout(PATIENCE, stage.through.open_transaction()).await;
        again.expect("there is a connection").unwrap().abandon().await.unwrap();
        stage.at_rest().await;
    }
    stage.writes_are_true().await;
    stage.closes().await;
}

async fn a_commit_left_halfway_costs_no_connection(fresh: Fresh) {
    let stage = Stage::on(fresh, options()).await;
    let mut transaction = stage.through.open_transaction().await.unwrap();
    transaction.own_tables().execute("test.mark", "DELETE FROM marks", vec![]).await.unwrap();
    stage.begin_and_leave(async move { transaction.finish().await }).await;
    stage.writes_are_true().await;
    stage.closes().await;
}

/// The server's host is gone and says nothing: what waits for it ends, and what comes next finds new connections.
async fn a_server_that_falls_silent_keeps_nobody_waiting(fresh: Fresh) {
    let limits = StoreOptions {
        max_connections: 3,
        statement_timeout: Duration::from_secs(2),
        acquire_timeout: Duration::from_secs(2),
        ..StoreOptions::default()
    };
    let stage = Stage::on(fresh, limits).await;
    let mut transaction = stage.through.open_transaction().await.unwrap();
    let committed = stage.through.open_transaction().await.unwrap();
    stage.through.own_rows("test.marks", "SELECT mark FROM marks", vec![]).await.unwrap();
    stage.proxy.strand();
    let begun = Instant::now();
    let own_statement = transaction.own_tables().execute("test.mark", "DELETE FROM marks", vec![]).await;
    assert!(matches!(own_statement, Err(StoreError::Unavailable(_))), "{own_statement:?}");
    let text = own_statement.unwrap_err().source().unwrap().to_string();
    assert!(text.contains("test.mark was not answered within 2s"), "{text}");
    assert!(matches!(transaction.abandon().await, Err(StoreError::Unavailable(_))));
    assert!(matches!(committed.finish().await, Err(StoreError::Unavailable(_))));
    // The third one hangs, too; after it there are only new ones.
    let alone = stage.through.own_rows("test.marks", "SELECT mark FROM marks", vec![]).await;
    assert!(matches!(alone, Ok(_) | Err(StoreError::Unavailable(_))), "not another error");
    stage.writes_are_true().await;
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    stage.closes().await;
}

/// Who has found out that the server is silent has found it out for all: nobody else waits on an old connection.
async fn one_that_waits_in_vain_is_enough(fresh: Fresh) {
    let limits = StoreOptions {
        max_connections: 4,
        // One statement waits so long; the others are answered by then.
        statement_timeout: Duration::from_secs(5),
        acquire_timeout: Duration::from_secs(2),
        ..StoreOptions::default()
    };
    let stage = Stage::on(fresh, limits).await;
    let ask = || stage.through.own_rows("test.marks", "SELECT mark FROM marks", vec![]);
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(stage.through.open_transaction().await.unwrap());
    }
    for transaction in open {
        transaction.abandon().await.unwrap();
    }
    // Each is back in the pool when the next can be taken.
    for _ in 0..4 {
        ask().await.unwrap();
    }
    stage.proxy.strand();
    assert!(matches!(ask().await, Err(StoreError::Unavailable(_))));
    for _ in 0..8 {
        ask().await.unwrap();
    }
    stage.closes().await;
}

/// Nobody answers on new connections either, until somebody does.
async fn a_silent_server_is_found_again(fresh: Fresh) {
    let limits = StoreOptions {
        statement_timeout: Duration::from_secs(2),
        acquire_timeout: Duration::from_secs(2),
        ..options()
    };
    let stage = Stage::on(fresh, limits).await;
    stage.proxy.hold_everything();
    let begun = Instant::now();
    for _ in 0..3 {
        let asked = stage.through.ready().await;
        assert!(matches!(asked, Err(StoreError::Unavailable(_))), "{asked:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    // Old connections stay dead.
    stage.proxy.cut();
    stage.proxy.heal();
    stage.writes_are_true().await;
    stage.closes().await;
}

async fn closing_waits_for_nobody_who_never_lets_go(fresh: Fresh) {
    let stage = Stage::on(fresh, options()).await;
    let held = stage.through.open_transaction().await.unwrap();
    stage.closes().await;
    let refused = stage.through.ready().await;
    let Err(StoreError::Unavailable(source)) = refused else { panic!("{refused:?}") };
    assert_eq!(source.to_string(), "the store is closed");
    drop(held);
}

/// A listing that waits for a lock is ended in time, and however many there are, commands have their own connections.
async fn slow_listings_end_and_make_nobody_wait(fresh: Fresh) {
    let limits = StoreOptions { listing_timeout: Duration::from_millis(500), ..options() };
    let stage = Stage::on(fresh, limits).await;
    let mut holder = stage.directly.open_transaction().await.unwrap();
    let lock = match holder.postgres() {
        Some(_) => "LOCK TABLE event_outbox IN ACCESS EXCLUSIVE MODE",
        None => "LOCK TABLES event_outbox WRITE",
    };
    let run = towpath_store::sqlx::raw_sql(lock);
    match holder.postgres() {
        Some(connection) => drop(run.execute(connection).await.unwrap()),
        None => drop(run.execute(holder.mysql().unwrap()).await.unwrap()),
    }
    let store = Arc::new(stage.through.clone());
    let listings: Vec<_> = (0..6)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.outbox_rows(&OutboxFilter::default(), 0, 10).await })
        })
        .collect();
    eventually("all connections for listings are in use", || async {
        let listings = *store.connections().last().unwrap();
        (listings.used == listings.most).then_some(())
    })
    .await;
    let begun = Instant::now();
    store.command(&CommandId::new("c-1").unwrap()).await.unwrap();
    assert!(!listings[5].is_finished() || begun.elapsed() < Duration::from_millis(400));
    for listing in listings {
        let answer = tokio::time::timeout(PATIENCE, listing).await.unwrap().unwrap();
        let Err(StoreError::TooSlow { statement, .. }) = answer else { panic!("{answer:?}") };
        assert!(statement.contains("outbox"), "{statement}");
    }
    if let Some(connection) = holder.mysql() {
        let _unlocked = towpath_store::sqlx::raw_sql("UNLOCK TABLES").execute(connection).await.unwrap();
    }
    holder.abandon().await.unwrap();
    stage.closes().await;
}

macro_rules! on_servers {
    ($($case:ident),+ $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Fresh::postgres().await).await;
            })+
        }
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Fresh::mysql().await).await;
            })+
        }
    };
}

on_servers!(
    a_begin_that_nobody_waits_for_leaves_no_transaction_open,
    a_unit_that_nobody_waits_for_leaves_no_transaction_open,
    a_unit_that_is_refused_costs_no_connection,
    a_begin_of_an_application_leaves_no_transaction_open,
    a_statement_left_halfway_in_a_transaction_costs_no_connection,
    a_commit_left_halfway_costs_no_connection,
    a_server_that_falls_silent_keeps_nobody_waiting,
    one_that_waits_in_vain_is_enough,
    a_silent_server_is_found_again,
    closing_waits_for_nobody_who_never_lets_go,
    slow_listings_end_and_make_nobody_wait,
);

/// The whole text of an error, with its causes.
fn text(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn who_cannot_be_reached_is_named_and_why() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (url, name) in [
        (format!("postgres://someone:secret@{free}/database"), "PostgreSQL"),
        (format!("mysql://someone:secret@{free}/database"), "MariaDB/MySQL"),
    ] {
        let options = StoreOptions { acquire_timeout: Duration::from_millis(100), ..StoreOptions::default() };
        let connected = SqlStore::connect_with(&StoreUrl::parse(&url).unwrap(), options).await;
        let error = connected.err().expect("nobody listens there");
        let text = text(&error);
        assert!(matches!(error, StoreError::Unavailable(_)), "{text}");
        let expected =
            format!("the database cannot be reached: cannot connect to {name} at {free}: Connection refused");
        assert!(text.starts_with(&expected), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
}
