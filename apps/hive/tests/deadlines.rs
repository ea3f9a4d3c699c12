//! Nothing is waited for without end: what does not come about in time is FAILED, and a deletion that takes too long is told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use towpath::observer::Platform;
use towpath_hive::alerts::{DELETION_STUCK, GATEWAY_DOWN};
use towpath_hive::gateway::simulated::{Fates, SimulatedSettings};
use towpath_hive::service::{CONVERGENCE_DEADLINE, DeleteAsked, ServiceCommand, ServiceStatus};
use towpath_hive::targets::DELETION_DEADLINE;
use towpath_hive::{HiveSettings, OBSERVER};

use support::{Running, at_once, eventually, resource, settings, update};

const HOUR: Duration = Duration::from_secs(3600);

/// What was asked for never comes about on this cluster.
fn never() -> SimulatedSettings {
    let fates = Fates { settles_after: HOUR, settles_within: HOUR, deleted_after: HOUR, ..at_once().fates };
    SimulatedSettings { fates, ..at_once() }
}

fn hurried() -> HiveSettings {
    let soon = Duration::from_millis(600);
    HiveSettings { converges_within: soon, deleted_within: soon, ..settings() }
}

/// Pretends that it was waited for so much longer already.
async fn wait_longer(running: &Running, by: Duration) {
    let by = TimeDelta::from_std(by).unwrap();
    let store = running.app.store();
    let sql = "SELECT subject_id, goal_begun_at FROM observations";
    for row in store.own_rows("test.waits", sql, Vec::new()).await.unwrap() {
        let since: DateTime<Utc> = row.time("goal_begun_at").unwrap();
        let sql = "UPDATE observations SET goal_begun_at = ?, due_at = ? WHERE subject_id = ?";
        let values =
            vec![(since - by).into(), DateTime::UNIX_EPOCH.into(), row.text("subject_id").unwrap().into()];
        store.own_execute("test.longer", sql, values).await.unwrap();
    }
    running.hive.look_now();
}

async fn is_waited_for(running: &Running) -> DateTime<Utc> {
    eventually("it is waited for", || async {
        let sql = "SELECT goal_begun_at FROM observations";
        let rows = running.app.store().own_rows("test.waits", sql, Vec::new()).await.unwrap();
        rows.first()?.time_or_null("goal_begun_at").unwrap()
    })
    .await
}

async fn what_never_settles_is_failed(database: &str) {
    let running = Running::with(database, "local", hurried(), never(), |builder| builder).await;
    let id = running.create("cart").await;
    let failed = running.reaches(&id, ServiceStatus::Failed).await;
    let failure = failed.failure.unwrap();
    assert_eq!(failure.reason, CONVERGENCE_DEADLINE);
    assert!(
        failure.message.contains("600ms") && failure.message.contains("Deploying"),
        "{}",
        failure.message
    );
    assert_eq!(failed.failed_spec_version, 1);
    // Exactly what H6 says, once.
    running.quiet().await;
    let names = running.names(&id).await;
    // What was seen meanwhile may be told before or after.
    let ends: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| *name != "service.snapshot.updated").collect();
    assert_eq!(ends[ends.len() - 2..], ["service.convergence.failed", "service.failed"]);
    assert_eq!(names.iter().filter(|name| *name == "service.failed").count(), 1);
    // The way on is the one from FAILED; the next specification has its own time.
    running.send(&id, update("registry.example/cart:2")).await.unwrap();
    assert_eq!(running.service(&id).await.status, Some(ServiceStatus::Updating));
    let failed = running.reaches(&id, ServiceStatus::Failed).await;
    assert_eq!(failed.failed_spec_version, 2);
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_settles_is_failed_on_sqlite() {
    what_never_settles_is_failed("sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_settles_is_failed_on_postgres() {
    what_never_settles_is_failed("postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_settles_is_failed_on_mysql() {
    what_never_settles_is_failed("mysql").await;
}

/// Ten minutes by default, counted from the first look; within them nothing happens to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_default_ten_minutes_are_waited() {
    let running = Running::with("sqlite", "local", settings(), never(), |builder| builder).await;
    let id = running.create("cart").await;
    is_waited_for(&running).await;
    running.quiet().await;
    wait_longer(&running, Duration::from_secs(9 * 60)).await;
    running.quiet().await;
    assert_eq!(running.service(&id).await.status, Some(ServiceStatus::Creating));
    wait_longer(&running, Duration::from_secs(60)).await;
    let failed = running.reaches(&id, ServiceStatus::Failed).await;
    assert!(failed.failure.unwrap().message.contains("10m"));
    running.app.stop().await;
}

/// The resource cannot be looked at, while the platform answers for all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_looked_at_is_failed_too() {
    let running = Running::with("sqlite", "local", hurried(), at_once(), |builder| builder).await;
    running.cluster.set_broken(resource("cart"), true);
    let id = running.create("cart").await;
    let failed = running.reaches(&id, ServiceStatus::Failed).await;
    let failure = failed.failure.unwrap();
    assert_eq!(failure.reason, CONVERGENCE_DEADLINE);
    assert!(failure.message.contains("the simulated cluster is away"), "{}", failure.message);
    running.app.stop().await;
}

/// A platform that is away says nothing about a service, for however long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_not_counted() {
    let running = Running::with("sqlite", "local", settings(), never(), |builder| builder).await;
    let id = running.create("cart").await;
    let since = is_waited_for(&running).await;
    running.cluster.set_down(true);
    let standing = || running.app.observers().into_iter().find(|one| one.name == OBSERVER).unwrap();
    running.hive.look_now();
    eventually("it is noticed", || async {
        matches!(standing().platform, Platform::Down { .. }).then_some(())
    })
    .await;
    wait_longer(&running, HOUR).await;
    running.cluster.set_down(false);
    eventually("it is waited for anew", || async { (is_waited_for(&running).await >= since).then_some(()) })
        .await;
    running.quiet().await;
    assert_eq!(running.service(&id).await.status, Some(ServiceStatus::Creating));
    let alerts = running.hive.alerts(running.app.store(), 10).await.unwrap();
    assert_eq!(alerts.len(), 1);
    assert_eq!((alerts[0].alert.as_str(), alerts[0].service_id.as_str()), (GATEWAY_DOWN, ""));
    assert!(alerts[0].cleared_at.is_some_and(|cleared| cleared >= alerts[0].raised_at));
    running.app.stop().await;
}

async fn a_deletion_that_takes_too_long_is_told_and_tried_again(database: &str) {
    let running = Running::with(database, "local", hurried(), at_once(), |builder| builder).await;
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    running.cluster.set_broken(resource("cart"), true);
    running.send(&id, ServiceCommand::Delete(DeleteAsked::default())).await.unwrap();
    let store = running.app.store();
    let failure = eventually("it is told", || async {
        let looks = running.hive.looks(store, &id).await.unwrap();
        looks.failure.filter(|failure| failure.code == DELETION_DEADLINE)
    })
    .await;
    assert!(failure.message.contains("600ms") && failure.message.contains("away"), "{}", failure.message);
    let stuck = async || {
        let alerts = running.hive.alerts(store, 10).await.unwrap();
        alerts.into_iter().filter(|alert| alert.alert == DELETION_STUCK).collect::<Vec<_>>()
    };
    let alert = eventually("there is an alert", || async { stuck().await.pop() }).await;
    assert_eq!((alert.service_id.as_str(), alert.code.as_str()), ("shop.cart", DELETION_DEADLINE));
    // It is tried again and again, told once, and its state is what it was.
    let calls = running.cluster.calls();
    eventually("it is tried again", || async { (running.cluster.calls() > calls + 4).then_some(()) }).await;
    assert_eq!(running.service(&id).await.status, Some(ServiceStatus::Deleting));
    assert_eq!(stuck().await, std::slice::from_ref(&alert));
    // When the platform lets go of it, all is well.
    running.cluster.set_broken(resource("cart"), false);
    running.reaches(&id, ServiceStatus::Deleted).await;
    let cleared = eventually("the alert is over", || async {
        stuck().await.pop().filter(|alert| alert.cleared_at.is_some())
    })
    .await;
    assert_eq!(cleared.raised_at, alert.raised_at);
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_deletion_is_told_on_sqlite() {
    a_deletion_that_takes_too_long_is_told_and_tried_again("sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_deletion_is_told_on_postgres() {
    a_deletion_that_takes_too_long_is_told_and_tried_again("postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_deletion_is_told_on_mysql() {
    a_deletion_that_takes_too_long_is_told_and_tried_again("mysql").await;
}

/// When something is due, and since when it is waited for, is a moment of the database's: here this host is ten days ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_due_is_due_by_the_databases_time() {
    let database = "postgres, ten days behind";
    let running = Running::with(database, "local", settings(), at_once(), |builder| builder).await;
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    running.quiet().await;
    let behind = Utc::now() - TimeDelta::days(9);
    let moment = async |column: &str| {
        let sql = format!("SELECT {column} FROM observations WHERE {column} IS NOT NULL");
        let rows = running.app.store().own_rows("test.moment", &sql, Vec::new()).await.unwrap();
        rows.first().map(|row| row.time(column).unwrap())
    };
    for column in ["due_at", "looked_at"] {
        let moment = moment(column).await.unwrap();
        assert!(moment < behind, "{column} is {moment}");
    }
    // What was asked for and does not come about is given up in its time, not ten days early or late.
    running.cluster.set_broken(resource("cart"), true);
    running.send(&id, ServiceCommand::Delete(DeleteAsked::default())).await.unwrap();
    let since = is_waited_for(&running).await;
    assert!(since < behind, "{since}");
    wait_longer(&running, Duration::from_secs(8 * 60)).await;
    running.hive.look_now();
    let store = running.app.store();
    let failing = async || running.hive.looks(store, &id).await.unwrap().failure.map(|failure| failure.code);
    eventually("it was looked at", || async { failing().await }).await;
    assert_ne!(failing().await.as_deref(), Some(DELETION_DEADLINE));
    wait_longer(&running, Duration::from_secs(120)).await;
    eventually("it is told", || async {
        (failing().await.as_deref() == Some(DELETION_DEADLINE)).then_some(())
    })
    .await;
    running.app.stop().await;
}
