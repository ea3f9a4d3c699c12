//! Rows as a fault leaves them behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod fixtures;

use std::time::Duration;

use fixtures::Fresh;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use towpath_core::ports::store::Store;
use towpath_store::StoreUrl;
use towpath_testkit::store::StoreFixture as _;
use towpath_testkit::store::acts::{append, claim, given_up, hold_new_lease, record, record_sent, result};
use towpath_testkit::store::facts::{OrderFacts, instance, moment, new_channel, new_lease, new_order};

on_every_database!(
    a_lease_from_a_time_that_is_yet_to_come_is_free,
    a_lane_that_has_waited_for_long_is_opened_bit_by_bit,
);

/// Runs a statement, in the words of each database, and answers the first number it gives.
async fn number(fresh: &Fresh, sqlite: &str, postgres: &str, mysql: &str) -> Option<i64> {
    macro_rules! read {
        ($connection:ty, $sql:expr) => {{
            let mut connection = <$connection>::connect(&fresh.url()).await.unwrap();
            let rows = sqlx::query(AssertSqlSafe($sql.to_owned())).fetch_all(&mut connection).await.unwrap();
            rows.first().map(|row| row.get::<i64, _>(0))
        }};
    }
    match StoreUrl::parse(&fresh.url()).unwrap() {
        StoreUrl::Sqlite { .. } => read!(sqlx::SqliteConnection, sqlite),
        StoreUrl::Postgres { .. } => read!(sqlx::PgConnection, postgres),
        StoreUrl::MySql { .. } => read!(sqlx::MySqlConnection, mysql),
    }
}

/// The clock of the database was a week ahead when a process took its lease and died, and was put right.
async fn a_lease_from_a_time_that_is_yet_to_come_is_free(fresh: &Fresh) {
    let store = fresh.store().await;
    let (lease, minute) = (new_lease(), Duration::from_secs(60));
    let dead = store.acquire_lease(&lease, &instance("dead"), minute).await.unwrap().unwrap();
    number(
        fresh,
        "UPDATE leases SET renewed_at = renewed_at + 604800000000, expires_at = expires_at + 604800000000",
        "UPDATE leases SET renewed_at = renewed_at + interval '7 days', expires_at = expires_at + interval '7 days'",
        "UPDATE leases SET renewed_at = DATE_ADD(renewed_at, INTERVAL 7 DAY), \
         expires_at = DATE_ADD(expires_at, INTERVAL 7 DAY)",
    )
    .await;
    assert!(!store.leases(lease.as_str()).await.unwrap()[0].live);
    let living = store.acquire_lease(&lease, &instance("living"), minute).await.unwrap();
    let living = living.expect("it is free");
    assert_eq!(living.epoch, dead.epoch + 1);
    assert!(store.renew_lease(&dead, minute).await.is_err(), "the other one is fenced");
    assert!(store.acquire_lease(&lease, &instance("third"), minute).await.unwrap().is_none(), "it is held");
    assert!(store.leases(lease.as_str()).await.unwrap()[0].live);
}

async fn parked(fresh: &Fresh) -> i64 {
    let sql = "SELECT COUNT(*) FROM event_outbox WHERE parked_at IS NOT NULL";
    number(fresh, sql, sql, sql).await.unwrap()
}

/// An aggregate stood still for a day, and very many of its events wait: no statement changes all of them, and they go out in
/// their order.
async fn a_lane_that_has_waited_for_long_is_opened_bit_by_bit(fresh: &Fresh) {
    const EVENTS: u64 = 2300;
    let store: &dyn Store = &*fresh.store().await;
    let (channel, order) = (new_channel(), new_order());
    for from in (0..EVENTS).step_by(100) {
        let mut facts = OrderFacts::about(&order, from);
        for _ in 0..100 {
            facts = facts.noted("waits");
        }
        append(store, &facts.routed(std::slice::from_ref(&channel)).append()).await;
    }
    let lease = hold_new_lease(store).await;
    let first = claim(store, &channel, moment(1)).await.remove(0);
    record(store, &lease, &channel, moment(1), &[result(&first, given_up(true))]).await;
    // Whoever looks sets aside what waits.
    while !claim(store, &channel, moment(1)).await.is_empty() || parked(fresh).await + 1 < EVENTS as i64 {}
    store.reopen_outbox(&[first.outbox_id], moment(2)).await.unwrap();
    let mut sent = Vec::new();
    loop {
        let items = claim(store, &channel, moment(3)).await;
        if items.is_empty() {
            break;
        }
        sent.extend(items.iter().map(|item| item.event.aggregate_version));
        record_sent(store, &lease, &channel, moment(3), &items).await;
        if sent.len() == 1 {
            assert_eq!(parked(fresh).await, EVENTS as i64 - 1001, "some are let go and the others wait");
        }
    }
    assert_eq!(sent, (1..=EVENTS).collect::<Vec<_>>());
    assert_eq!(parked(fresh).await, 0);
}
