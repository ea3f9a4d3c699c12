//! Looking at the platform: what it costs, what it changes, and what it does not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use towpath::observer::Platform;
use towpath::tables::Value;
use towpath::{SqlStore, StoreOptions};
use towpath_hive::gateway::simulated::{Fates, SimulatedSettings};
use towpath_hive::service::{Service, ServiceCommand, ServiceStatus};
use towpath_hive::tables::{SERVICES, TARGETS};
use towpath_hive::{HiveSettings, OBSERVER};
use towpath_testkit::CountingProbe;

use support::{Running, at_once, eventually, resource, settings, update};

/// Makes copies of a service's rows under other ids.
async fn copies(store: &SqlStore, of: &str, count: usize) {
    for table in [&SERVICES, &TARGETS] {
        let name = table.name();
        let columns = if name == "hive_targets" {
            "version, resource, status, spec, spec_hash, spec_version, force_replace, applied, wanted, cause_id, \
             flow_id, snapshot, missing, observed_at, due_at"
        } else {
            "version, namespace, name, status, status_changed_at, status_reason, status_message, ready, \
             desired_spec_hash, observed_spec_hash, service, created_at, updated_at"
        };
        for numbers in (0..count).collect::<Vec<_>>().chunks(500) {
            let list: Vec<String> = numbers.iter().map(|number| format!("SELECT '{number}' AS n")).collect();
            let sql = format!(
                "INSERT INTO {name} (service_id, {columns}) SELECT 'copy-' || numbers.n, {columns} FROM {name}, \
                 ({}) numbers WHERE service_id = ?",
                list.join(" UNION ALL ")
            );
            store.own_execute("test.copy", &sql, vec![of.into()]).await.unwrap();
        }
    }
}

async fn a_pass_over_ready_services_that_need_none_costs_one_query(database: &str) {
    let probe = Arc::new(CountingProbe::new());
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    // The first scan is at the start, the others are asked for.
    let settings = HiveSettings { interval: Duration::from_secs(3600), ..settings() };
    let cluster = SimulatedSettings { watched: false, ..at_once() };
    let running =
        Running::with(database, "local", settings, cluster, |builder| builder.store_options(options)).await;
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    let store = running.app.store();
    eventually("the target is up to date", || async {
        let sql = "SELECT status FROM hive_targets WHERE service_id = ?";
        let rows = store.own_rows("test.look", sql, vec![Value::from(id.as_str())]).await.unwrap();
        (rows[0].text("status").unwrap() == "READY").then_some(())
    })
    .await;
    copies(store, &id, 10_000).await;
    let standing = || running.app.observers().into_iter().find(|one| one.name == OBSERVER).unwrap();
    let (looks, calls, scanned_at) = (standing().looks, running.cluster.calls(), standing().scanned_at);
    probe.take();
    running.hive.look_now();
    eventually("a scan", || async { (standing().scanned_at != scanned_at).then_some(()) }).await;
    let names = eventually("the query", || async {
        let names: Vec<_> = probe.take().into_iter().filter(|name| name.starts_with("hive.")).collect();
        (!names.is_empty()).then_some(names)
    })
    .await;
    assert_eq!(names, ["hive.due"]);
    // A look that follows later would be counted here: one asked for now comes after it.
    let scanned_at = standing().scanned_at;
    running.hive.look_now();
    eventually("another scan", || async { (standing().scanned_at != scanned_at).then_some(()) }).await;
    assert_eq!((standing().looks, running.cluster.calls()), (looks, calls), "no call of the gateway");
    // It can fail: one of them is made due.
    let sql = "UPDATE hive_targets SET missing = 1, due_at = observed_at WHERE service_id = 'copy-7'";
    store.own_execute("test.due", sql, Vec::new()).await.unwrap();
    running.hive.look_now();
    eventually("a look", || async { (running.cluster.calls() == calls + 1).then_some(()) }).await;
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_over_ten_thousand_on_sqlite() {
    a_pass_over_ready_services_that_need_none_costs_one_query("sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_over_ten_thousand_on_postgres() {
    a_pass_over_ready_services_that_need_none_costs_one_query("postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_down_is_one_alert_and_changes_nobodys_status() {
    let running = Running::on("sqlite", "local").await;
    let mut ids = Vec::new();
    for number in 0..5 {
        let id = running.create(&format!("cart-{number}")).await;
        running.reaches(&id, ServiceStatus::Ready).await;
        ids.push(id);
    }
    let before: Vec<_> = futures_util::future::join_all(ids.iter().map(|id| running.names(id))).await;
    running.cluster.set_down(true);
    // Everybody is to be looked at, and one is to be changed.
    running.send(&ids[0], update("registry.example/cart:2")).await.unwrap();
    for id in &ids[1..] {
        running.send(id, ServiceCommand::Refresh {}).await.unwrap();
    }
    let platform = || running.app.observers().into_iter().find(|one| one.name == OBSERVER).unwrap().platform;
    let Platform::Down { code, .. } = eventually("the alert", || async {
        Some(platform()).filter(|platform| matches!(platform, Platform::Down { .. }))
    })
    .await
    else {
        panic!("it is down");
    };
    assert_eq!(code, "gateway-unavailable");
    assert_eq!(running.service(&ids[0]).await.status, Some(ServiceStatus::Updating));
    for (id, before) in ids[1..].iter().zip(&before[1..]) {
        let now = running.names(id).await;
        assert_eq!(now.len(), before.len() + 1, "only the refresh that was asked for: {now:?}");
        assert_eq!(running.service(id).await.status, Some(ServiceStatus::Ready));
    }
    running.cluster.set_down(false);
    running.reaches(&ids[0], ServiceStatus::Ready).await;
    eventually("it is up", || async { (platform() == Platform::Up).then_some(()) }).await;
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_service_delays_nobody() {
    let settings = HiveSettings { timeout: Duration::from_secs(2), concurrency: 2, ..settings() };
    let running = Running::with("sqlite", "local", settings, at_once(), |builder| builder).await;
    running.cluster.set_slow(resource("slow"), Duration::from_secs(3600));
    let slow = running.create("slow").await;
    let begun = std::time::Instant::now();
    for number in 0..20 {
        let id = running.create(&format!("cart-{number}")).await;
        running.reaches(&id, ServiceStatus::Ready).await;
    }
    let took = begun.elapsed();
    assert!(
        took < Duration::from_secs(15),
        "{took:?}: twenty times the slow one's time-out would be forty seconds"
    );
    assert_eq!(running.service(&slow).await.status, Some(ServiceStatus::Creating));
    let standing = running.app.observers().into_iter().find(|one| one.name == OBSERVER).unwrap();
    assert_eq!(standing.platform, Platform::Up, "one slow service is no platform that is down");
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hints_a_scan_finds_everything() {
    let cluster = SimulatedSettings {
        fates: Fates {
            settles_after: Duration::from_millis(300),
            settles_within: Duration::from_millis(600),
            ..at_once().fates
        },
        watched: false,
        ..at_once()
    };
    let mut settings = settings();
    settings.interval = Duration::from_millis(200);
    let running = Running::with("sqlite", "local", settings, cluster, |builder| builder).await;
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    // READY and seen a moment ago: a change is not looked for before it is stale, or somebody asks.
    running.cluster.delete_by_hand(&resource("cart")).unwrap();
    running.send(&id, ServiceCommand::Refresh {}).await.unwrap();
    eventually("it is seen", || async {
        let service: Service = running.service(&id).await;
        service.snapshot.is_some_and(|seen| !seen.present).then_some(())
    })
    .await;
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_look_once() {
    let one = Running::on("postgres", "local").await;
    let hive = towpath_hive::Hive::new(one.hive.settings().clone(), Arc::new(one.cluster.clone()));
    let url = one.fresh.as_ref().unwrap().url().to_owned();
    let builder = towpath::Towpath::builder().store(&url).scan(Duration::from_millis(50));
    let other = hive.install(builder).start().await.unwrap();
    let id = one.create("cart").await;
    one.reaches(&id, ServiceStatus::Ready).await;
    let looking = |app: &towpath::Towpath| {
        app.observers().into_iter().find(|standing| standing.name == OBSERVER).is_some_and(|it| it.looking)
    };
    assert!(looking(&one.app) && !looking(&other));
    // The other takes over when the first stops.
    one.app.stop().await;
    eventually("the other looks", || async { looking(&other).then_some(()) }).await;
    other.send::<Service>(&id, update("registry.example/cart:2")).await.unwrap();
    eventually("it is updated", || async {
        let view = other.load::<Service>(&id).await.unwrap().unwrap();
        (view.value.status == Some(ServiceStatus::Ready)).then_some(())
    })
    .await;
    other.stop().await;
}
