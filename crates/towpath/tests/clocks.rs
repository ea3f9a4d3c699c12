//! A host whose clock is days off decides as all others do: by the database's time.
//!
//! It is the database that is days behind here: PostgreSQL finds a function of the test's own schema before its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use support::{Fresh, OrderCommand, eventually};
use towpath::ids::{EventId, HandlerName};
use towpath::ports::store::Store;
use towpath::{SqlStore, sqlx};
use uuid::Uuid;

const BEHIND: TimeDelta = TimeDelta::days(10);

/// A database whose clock is ten days behind that of this host.
async fn behind() -> Fresh {
    let fresh = Fresh::on("postgres").await;
    let (server, parameters) = fresh.url().split_once("options[search_path]=").unwrap();
    let name = parameters.to_owned();
    let store = SqlStore::connect(server.trim_end_matches(['?', '&'])).await.unwrap();
    for function in ["clock_timestamp", "statement_timestamp"] {
        let sql = format!(
            "CREATE FUNCTION {name}.{function}() RETURNS timestamptz LANGUAGE sql STABLE AS \
             'SELECT pg_catalog.{function}() - interval ''10 days'''"
        );
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(store.postgres_pool().unwrap()).await.unwrap();
    }
    store.close().await;
    fresh.in_schemas(&format!("{name},pg_catalog"))
}

fn is_the_databases(time: DateTime<Utc>) {
    let off = Utc::now() - BEHIND - time;
    assert!(off.num_seconds().abs() < 60, "{time} is off by {off}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_handled_an_hour_ago_is_not_deleted_by_a_host_that_is_days_ahead() {
    let fresh = behind().await;
    let builder = || fresh.builder().clean_every(Duration::from_millis(50));
    let app = builder().start().await.unwrap();
    let now = app.store().now().await.unwrap();
    is_the_databases(now);
    let handler = HandlerName::new("shelf").unwrap();
    // The fresh one comes first in the walk: it would be gone before the old one.
    let (fresh_one, old_one) = (EventId(Uuid::now_v7()), EventId(Uuid::now_v7()));
    for (event, ago) in [(fresh_one, TimeDelta::hours(1)), (old_one, TimeDelta::days(8))] {
        let mut tx = app.store().begin().await.unwrap();
        tx.mark_inbox(event, &handler, now - ago).await.unwrap();
        tx.commit().await.unwrap();
    }
    let mark = |event| app.store().inbox_entry(event, &handler);
    eventually("the old mark is gone", || async { mark(old_one).await.unwrap().is_none().then_some(()) })
        .await;
    assert!(mark(fresh_one).await.unwrap().is_some(), "it was handled an hour ago");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_due_is_due_by_the_databases_time() {
    let fresh = behind().await;
    let app = fresh.app().await;
    is_the_databases(app.now());
    is_the_databases(app.clock().now());
    is_the_databases(app.database_time().await.unwrap());
    let receipt = app.send::<support::Order>("o-1", OrderCommand::Place { sku: "a".into() }).await.unwrap();
    is_the_databases(receipt.events[0].occurred_at);
    let timer = app.timer::<support::Order>("o-1", OrderCommand::Note).after(Duration::from_secs(3600));
    let timer = app.find_timer(timer.await.unwrap()).await.unwrap().unwrap();
    is_the_databases(timer.timer.due_at - TimeDelta::hours(1));
    app.stop().await;
}
