//! A database of an earlier version, which kept by itself what is looked at: nothing of it is lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use towpath::observer::{Look, Looks, Watch};
use towpath::ports::store::StoreTx as _;
use towpath::tables::{Column, ColumnKind, Table, Value};
use towpath::{SqlStore, Towpath};
use towpath_hive::service::{ServiceCommand, ServiceStatus};
use towpath_hive::{OBSERVER, take_over};

use ColumnKind::{Json, Long, Name, Text, Time};
use support::{Fresh, Running, eventually, update};

/// As the earlier version declared them.
const TARGETS: Table = Table::new(
    "hive_targets",
    &[
        Column::new("service_id", Name(128)),
        Column::new("version", Long),
        Column::new("resource", Name(128)),
        Column::new("status", Name(16)),
        Column::new("spec", Json),
        Column::new("spec_hash", Name(64)),
        Column::new("spec_version", Long),
        Column::new("force_replace", Long),
        Column::new("applied", Long),
        Column::nullable("wanted", Name(16)),
        Column::nullable("cause_id", Name(64)),
        Column::nullable("flow_id", Name(128)),
        Column::nullable("snapshot", Json),
        Column::new("missing", Long),
        Column::nullable("observed_at", Time),
        Column::nullable("waited_since", Time),
        Column::new("due_at", Time),
    ],
    &["service_id"],
    &[],
);

const FAILURES: Table = Table::new(
    "hive_failures",
    &[
        Column::new("service_id", Name(128)),
        Column::new("code", Name(128)),
        Column::new("message", Text),
        Column::new("since", Time),
        Column::new("failed_at", Time),
    ],
    &["service_id"],
    &[],
);

fn day(days: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::days(days)
}

/// A row as the earlier version wrote it.
fn target(
    service_id: &str,
    status: &str,
    wanted: Option<&str>,
    due_at: DateTime<Utc>,
) -> Vec<Value<'static>> {
    vec![
        service_id.to_owned().into(),
        7_u64.into(),
        format!("shop/{service_id}").into(),
        status.to_owned().into(),
        "{\"image\":\"registry.example/cart:1\"}".into(),
        "hash".into(),
        2_u64.into(),
        1_u64.into(),
        0_u64.into(),
        wanted.map(str::to_owned).into(),
        Some("fact-1".to_owned()).into(),
        Some("flow-1".to_owned()).into(),
        None::<String>.into(),
        0_u64.into(),
        Some(day(3)).into(),
        Some(day(4)).into(),
        due_at.into(),
    ]
}

async fn nothing_is_lost(database: &str) {
    let fresh = Fresh::on(database).await;
    let store = SqlStore::connect(fresh.url()).await.unwrap();
    store.migrate().await.unwrap();
    // A database that never had them is left alone.
    take_over(&store).await.unwrap();
    store.create_tables(&[TARGETS, FAILURES]).await.unwrap();
    let later = Utc::now() + TimeDelta::days(400);
    let mut rows: Vec<_> = (0..150)
        .map(|number| target(&format!("cart-{number:03}"), "CREATING", Some("apply"), day(1)))
        .collect();
    rows.push(target("asked", "READY", Some("look"), day(0)));
    rows.push(target("half", "UPDATING", Some("facts"), later));
    rows.push(target("later", "READY", None, later));
    rows.push(target("known", "READY", None, day(0)));
    let failed = ["later", "nobody"]
        .map(|id| vec![id.into(), "gateway-unavailable".into(), "away".into(), day(5).into(), day(6).into()]);
    let mut tx = store.open_transaction().await.unwrap();
    tx.own_tables().put("test.targets", &TARGETS, rows).await.unwrap();
    tx.own_tables().put("test.failures", &FAILURES, failed.to_vec()).await.unwrap();
    // A consumer of this version has been here already.
    let known = Watch {
        subject_id: "known".to_owned(),
        hint: "shop/known".to_owned(),
        version: 8,
        wanted: "{}".to_owned(),
        goal: String::new(),
        look: Look::At(later),
    };
    tx.watch(OBSERVER, &[known]).await.unwrap();
    tx.finish().await.unwrap();

    // Two instances start at once.
    let other = SqlStore::connect(fresh.url()).await.unwrap();
    let (one, two) = tokio::join!(take_over(&store), take_over(&other));
    one.unwrap();
    two.unwrap();
    take_over(&store).await.unwrap();
    let left = store.own_rows("test.left", "SELECT service_id FROM hive_targets", Vec::new()).await.unwrap();
    assert!(left.is_empty());

    let sql = "SELECT subject_id FROM observations";
    assert_eq!(store.own_rows("test.subjects", sql, Vec::new()).await.unwrap().len(), 154);
    let due = store.due_subjects(OBSERVER, None, 1_000).await.unwrap().listed;
    let ids: Vec<&str> = due.iter().map(|listed| listed.subject_id.as_str()).collect();
    assert_eq!((ids.len(), ids[0], ids[1], ids[150]), (151, "asked", "cart-000", "cart-149"));
    assert_eq!(due[150].due_at, day(1));
    let cart = store.begin_look(OBSERVER, "cart-077").await.unwrap().unwrap();
    assert_eq!((cart.version, cart.hint.as_str(), cart.goal.as_str()), (7, "shop/cart-077", "CREATING"));
    assert_eq!(cart.goal_begun_at, Some(day(4)), "its deadline is what it was");
    let kept: serde_json::Value = serde_json::from_str(&cart.wanted).unwrap();
    assert_eq!((&kept["wanted"], &kept["cause"]["event_id"]), (&"apply".into(), &"fact-1".into()));
    assert_eq!(
        (&kept["spec"]["image"], &kept["force_replace"]),
        (&"registry.example/cart:1".into(), &true.into())
    );
    let Looks { looked_at, failure } = store.looks_at(OBSERVER, "later").await.unwrap().unwrap();
    let failure = failure.unwrap();
    assert_eq!((looked_at, failure.since, failure.failed_at), (Some(day(3)), day(5), day(6)));
    assert_eq!(failure.code, "gateway-unavailable");
    assert!(store.begin_look(OBSERVER, "half").await.unwrap().unwrap().is_held);
    let known = store.begin_look(OBSERVER, "known").await.unwrap().unwrap();
    assert_eq!((known.version, known.wanted.as_str()), (8, "{}"));
    store.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_on_sqlite() {
    nothing_is_lost("sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_on_postgres() {
    nothing_is_lost("postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_on_mysql() {
    nothing_is_lost("mysql").await;
}

/// What an earlier version had begun, this one ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_of_an_earlier_version_is_done_by_this_one() {
    let running = Running::on("sqlite", "local").await;
    let ready = running.create("ready").await;
    running.reaches(&ready, ServiceStatus::Ready).await;
    running.cluster.set_down(true);
    let id = running.create("cart").await;
    let store = running.app.store().clone();
    let kept = eventually("it is to be applied", || async {
        let watched = store.begin_look(OBSERVER, &id).await.unwrap()?;
        let kept: serde_json::Value = serde_json::from_str(&watched.wanted).unwrap();
        (kept["wanted"] == "apply").then_some((watched.version, kept))
    })
    .await;
    let Running { app, hive, cluster, fresh } = running;
    app.stop().await;

    // The same as the earlier version has it.
    let url = fresh.as_ref().unwrap().url().to_owned();
    let store = SqlStore::connect(&url).await.unwrap();
    store.create_tables(&[TARGETS, FAILURES]).await.unwrap();
    let (version, kept) = kept;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    let mut row = target(&id, "CREATING", Some("apply"), day(0));
    row[1] = version.into();
    row[2] = "shop/cart".into();
    row[4] = kept["spec"].to_string().into();
    row[5] = text(&kept["spec_hash"]).into();
    row[6] = kept["spec_version"].as_u64().unwrap().into();
    row[10] = text(&kept["cause"]["event_id"]).into();
    row[11] = text(&kept["cause"]["flow_id"]).into();
    row[15] = None::<DateTime<Utc>>.into();
    let mut tx = store.open_transaction().await.unwrap();
    tx.own_tables().put("test.targets", &TARGETS, vec![row]).await.unwrap();
    tx.unwatch(OBSERVER, std::slice::from_ref(&id)).await.unwrap();
    tx.finish().await.unwrap();
    store.close().await;

    cluster.set_down(false);
    let builder = Towpath::builder().store(&url).scan(Duration::from_millis(50));
    let running = Running { app: hive.install(builder).start().await.unwrap(), hive, cluster, fresh };
    running.reaches(&id, ServiceStatus::Ready).await;
    // Facts go on from there.
    running.send(&id, update("registry.example/cart:2")).await.unwrap();
    running.reaches(&id, ServiceStatus::Ready).await;
    running.send(&ready, ServiceCommand::Refresh {}).await.unwrap();
    running.quiet().await;
    running.app.stop().await;
}
