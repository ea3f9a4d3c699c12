//! A host whose clock is days off decides as all others do: by the database's time.
//!
//! It is the database that is days behind here: PostgreSQL finds a function of the test's own schema before its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use support::{Fresh, OrderCommand, eventually};
use towpath::ids::{EventId, HandlerName};
use towpath::ports::store::Inspection as _;
use towpath::{Builder, SqlStore, SystemClock, sqlx};
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
    assert!(remembers_what_was_handled_an_hour_ago(fresh.builder()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn by_the_hosts_own_clock_it_would_be_deleted() {
    let fresh = behind().await;
    assert!(!remembers_what_was_handled_an_hour_ago(fresh.builder().clock(Arc::new(SystemClock))).await);
}

/// Lets the cleaner delete a mark of eight days ago, and answers whether one of an hour ago is still there.
async fn remembers_what_was_handled_an_hour_ago(builder: Builder) -> bool {
    let app = builder.clean_every(Duration::from_millis(50)).start().await.unwrap();
    let now = app.store().now().await.unwrap();
    is_the_databases(now);
    let handler = HandlerName::new("shelf").unwrap();
    let (recent, old) = (EventId(Uuid::now_v7()), EventId(Uuid::now_v7()));
    // In one transaction, so that no pass of the cleaner sees one without the other.
    let mut tx = app.store().begin().await.unwrap();
    for (event, ago) in [(recent, TimeDelta::hours(1)), (old, TimeDelta::days(8))] {
        tx.mark(event, &handler, now - ago).await.unwrap();
    }
    tx.commit().await.unwrap();
    let mark = |event| app.store().inbox_entry(event, &handler);
    eventually("the old mark is gone", || async { mark(old).await.unwrap().is_none().then_some(()) }).await;
    // Whatever is deleted of one page is deleted at once.
    let is_left = mark(recent).await.unwrap().is_some();
    app.stop().await;
    is_left
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
