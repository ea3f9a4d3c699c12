//! A floor does not outlive a crash of PostgreSQL that it recovers from without a restart.
//!
//! What such a crash does is done by hand: numbers that nobody has committed are forgotten, and all sessions end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod fixtures;

use std::sync::Arc;
use std::time::Duration;

use fixtures::Fresh;
use sqlx::{Connection, Executor};
use towpath_core::ports::store::OutboxOutcome;
use towpath_store::{SqlStore, StoreOptions, StoreUrl};
use towpath_testkit::CountingProbe;
use towpath_testkit::store::acts::{append, claim, hold_new_lease, result};
use towpath_testkit::store::facts::{OrderFacts, moment, new_channel};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn numbers_that_a_crash_has_given_again_are_found() {
    let fresh = Fresh::postgres().await;
    let probe = Arc::new(CountingProbe::new());
    // One connection, so that it is known which session is to end.
    let options = StoreOptions { max_connections: 1, probe: probe.clone(), ..StoreOptions::default() };
    let url = StoreUrl::parse(&fresh.url()).unwrap();
    let store = SqlStore::connect_with(&url, options).await.unwrap();
    store.migrate().await.unwrap();
    let (lease, channel) = (hold_new_lease(&store).await, new_channel());
    let facts = || OrderFacts::of_new_order().placed().routed(std::slice::from_ref(&channel)).append();

    append(&store, &facts()).await;
    let sent = claim(&store, &channel, moment(1)).await;
    let results: Vec<_> = sent.iter().map(|item| result(item, OutboxOutcome::Sent)).collect();
    store.record_outbox(std::slice::from_ref(&lease), &channel, moment(2), &results).await.unwrap();
    for _ in 0..3 {
        let mut undone = store.begin().await.unwrap();
        undone.append(&facts()).await.unwrap();
        undone.rollback().await.unwrap();
    }
    let found = async {
        loop {
            claim(&store, &channel, moment(3)).await;
            if probe.take().contains(&"floor.lowest") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), found).await.expect("a floor is found");
    claim(&store, &channel, moment(3)).await;

    let mut by_hand = sqlx::PgConnection::connect(&fresh.url()).await.unwrap();
    let back = "SELECT setval('event_outbox_outbox_id_seq', (SELECT MAX(outbox_id) FROM event_outbox))";
    by_hand.execute(back).await.unwrap();
    let session = "SELECT pg_backend_pid()";
    let (pid,): (i32,) = sqlx::query_as(session).fetch_one(store.postgres_pool().unwrap()).await.unwrap();
    let end = sqlx::query("SELECT pg_terminate_backend($1, 10000)").bind(pid);
    end.execute(&mut by_hand).await.unwrap();

    // Whoever comes first finds out that the session is gone.
    let _ = store.head().await;
    append(&store, &facts()).await;
    let claimed = claim(&store, &channel, moment(4)).await;
    assert_eq!(claimed.len(), 1, "its number lies below the floor from before the crash");
}
