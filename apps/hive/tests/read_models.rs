//! The read models: written by facts alone, and equal after a rebuild.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use towpath::SqlStore;
use towpath::tables::Value;
use towpath_hive::rebuild;
use towpath_hive::service::{ServiceCommand, ServiceStatus};

use support::{Running, eventually, update};

const QUERIES: [(&str, &str); 6] = [
    ("hive_services", "service_id, version, namespace, name, status, desired_spec_hash, service"),
    ("hive_revisions", "service_id, revision, image, spec_hash"),
    ("hive_routes", "service_id, version, url, traffic"),
    ("hive_specs", "service_id, spec_version, spec_hash, spec"),
    ("hive_audit", "event_id, service_id, action"),
    ("hive_namespaces", "namespace, version, present"),
];

const TIMES: [(&str, &[&str]); 6] = [
    ("hive_services", &["status_changed_at", "created_at", "updated_at"]),
    ("hive_revisions", &["created_at", "seen_at"]),
    ("hive_routes", &["aligned_at"]),
    ("hive_specs", &["persisted_at"]),
    ("hive_audit", &["requested_at"]),
    ("hive_namespaces", &["validated_at"]),
];

/// All rows of all read models, as texts.
async fn everything(store: &SqlStore) -> BTreeMap<&'static str, Vec<String>> {
    let mut all = BTreeMap::new();
    for ((table, columns), (_, times)) in QUERIES.into_iter().zip(TIMES) {
        let sql = format!("SELECT {columns}, {} FROM {table}", times.join(", "));
        let mut rows = Vec::new();
        for record in store.own_rows("test.everything", &sql, Vec::new()).await.unwrap() {
            let mut cells: Vec<String> = columns
                .split(", ")
                .map(|column| match record.text_or_null(column) {
                    Ok(text) => format!("{text:?}"),
                    Err(_) => record.long(column).unwrap().to_string(),
                })
                .collect();
            cells.extend(times.iter().map(|time| format!("{:?}", record.time_or_null(time).unwrap())));
            rows.push(cells.join(" | "));
        }
        rows.sort();
        all.insert(table, rows);
    }
    all
}

async fn the_same_after_a_rebuild(database: &str) {
    let running = Running::on(database, "local").await;
    let store = running.app.store().clone();
    for number in 0..6 {
        let id = running.create(&format!("cart-{number}")).await;
        running.reaches(&id, ServiceStatus::Ready).await;
        if number % 2 == 0 {
            running.send(&id, update("registry.example/cart:2")).await.unwrap();
            running.reaches(&id, ServiceStatus::Ready).await;
        }
        if number % 3 == 0 {
            running.send(&id, ServiceCommand::Delete {}).await.unwrap();
            running.reaches(&id, ServiceStatus::Deleted).await;
        }
    }
    let before = eventually("the read models are up to date", || async {
        let all = everything(&store).await;
        let counts: Vec<usize> = QUERIES.iter().map(|(table, _)| all[table].len()).collect();
        let status = |text: &str| all["hive_services"].iter().filter(|row| row.contains(text)).count();
        let settled = status("\"READY\"") == 4 && status("\"DELETED\"") == 2;
        // Six services; nine revisions, specifications; six routes; eleven requests; one namespace.
        (counts == [6, 9, 6, 9, 11, 1] && settled).then_some(all)
    })
    .await;
    running.app.stop().await;

    // Somebody spoils them: rows are lost, changed and made up.
    let store = SqlStore::connect(running.fresh.as_ref().unwrap().url()).await.unwrap();
    let spoil = [
        "DELETE FROM hive_services WHERE service_id = 'shop.cart-1'",
        "UPDATE hive_services SET status = 'FAILED', service = '{}', updated_at = created_at WHERE service_id = 'shop.cart-2'",
        "DELETE FROM hive_revisions WHERE service_id = 'shop.cart-2'",
        "UPDATE hive_routes SET url = 'elsewhere'",
        "DELETE FROM hive_specs",
        "DELETE FROM hive_audit",
        "DELETE FROM hive_namespaces",
        "DELETE FROM hive_targets",
    ];
    for sql in spoil {
        store.own_execute("test.spoil", sql, Vec::new()).await.unwrap();
    }
    let old = chrono::Utc::now() - chrono::TimeDelta::days(1);
    let made_up = "INSERT INTO hive_revisions (service_id, revision, image, spec_hash, created_at, seen_at) \
                   VALUES ('nobody', 'nothing', NULL, NULL, NULL, ?)";
    store.own_execute("test.spoil", made_up, vec![Value::from(old)]).await.unwrap();
    assert_ne!(everything(&store).await, before);
    let rebuilt = rebuild(&store, Duration::from_secs(900)).await.unwrap();
    assert_eq!(rebuilt.services, 6);
    assert_eq!(everything(&store).await, before);
    let targets =
        store.own_rows("test.targets", "SELECT service_id FROM hive_targets", Vec::new()).await.unwrap();
    assert_eq!(targets.len(), 4, "those that are not DELETED");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_after_a_rebuild_on_sqlite() {
    the_same_after_a_rebuild("sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_after_a_rebuild_on_postgres() {
    the_same_after_a_rebuild("postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_after_a_rebuild_on_mysql() {
    the_same_after_a_rebuild("mysql").await;
}
