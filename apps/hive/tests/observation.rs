//! Looking at the platform: what it costs, what it changes, and what it does not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use towpath::observer::Platform;
use towpath::tables::Value;
use towpath::{SqlStore, StoreOptions, Towpath};
use towpath_hive::gateway::simulated::{Fates, SimulatedCluster, SimulatedSettings};
use towpath_hive::gateway::{Applied, Apply, Deletion, GatewayError, Observed, ServingGateway};
use towpath_hive::service::{DeleteAsked, Service, ServiceCommand, ServiceStatus, TakeObservation};
use towpath_hive::spec::ResourceName;
use towpath_hive::{Hive, HiveSettings, OBSERVER};
use towpath_testkit::CountingProbe;

use support::{Fresh, Running, asked, at_once, eventually, resource, settings, update};

/// Makes copies of a service's rows under other ids.
async fn copies(store: &SqlStore, database: &str, of: &str, count: usize) {
    let id = match database {
        "mysql" => "CONCAT('copy-', numbers.n)",
        _ => "'copy-' || numbers.n",
    };
    for (table, key, columns) in [
        (
            "hive_services",
            "service_id",
            "version, namespace, name, status, status_changed_at, status_reason, status_message, ready, \
             desired_spec_hash, observed_spec_hash, service, created_at, updated_at",
        ),
        (
            "observations",
            "subject_id",
            "observer, hint, version, wanted, goal, held, asked, due_at, looked_at, failure_count",
        ),
    ] {
        for numbers in (0..count).collect::<Vec<_>>().chunks(500) {
            let list: Vec<String> = numbers.iter().map(|number| format!("SELECT '{number}' AS n")).collect();
            let sql = format!(
                "INSERT INTO {table} ({key}, {columns}) SELECT {id}, {columns} FROM {table}, \
                 ({}) numbers WHERE {key} = ?",
                list.join(" UNION ALL ")
            );
            store.own_execute("test.copy", &sql, vec![of.into()]).await.unwrap();
        }
    }
}

/// What is kept of a service that is looked at.
async fn kept(store: &SqlStore, id: &str) -> (u64, serde_json::Value) {
    let sql = "SELECT version, wanted FROM observations WHERE subject_id = ?";
    let rows = store.own_rows("test.kept", sql, vec![Value::from(id)]).await.unwrap();
    let wanted = rows[0].text("wanted").unwrap();
    (rows[0].count("version").unwrap(), serde_json::from_str(&wanted).unwrap())
}

async fn a_pass_over_ready_services_that_need_none_costs_one_query(database: &str) {
    let probe = Arc::new(CountingProbe::new());
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    // The first scan is at the start, the others are asked for.
    let settings =
        HiveSettings { interval: Duration::from_secs(3600), poll: Duration::from_secs(3600), ..settings() };
    let cluster = SimulatedSettings { watched: false, ..at_once() };
    let running =
        Running::with(database, "local", settings, cluster, |builder| builder.store_options(options)).await;
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    let store = running.app.store();
    eventually("the target is up to date", || async {
        let (_, kept) = kept(store, &id).await;
        let sql = "SELECT due_at FROM observations WHERE due_at > ?";
        let later = store.own_rows("test.due", sql, vec![chrono::Utc::now().into()]).await.unwrap();
        (kept["status"] == "READY" && !later.is_empty()).then_some(())
    })
    .await;
    copies(store, database, &id, 10_000).await;
    let standing = || running.app.observers().into_iter().find(|one| one.name == OBSERVER).unwrap();
    let (looks, calls, scanned_at) = (standing().looks, running.cluster.calls(), standing().scanned_at);
    probe.take();
    running.hive.look_now();
    eventually("a scan", || async { (standing().scanned_at != scanned_at).then_some(()) }).await;
    let names = eventually("the query", || async {
        let names: Vec<_> =
            probe.take().into_iter().filter(|name| name.starts_with("observations.")).collect();
        (!names.is_empty()).then_some(names)
    })
    .await;
    assert_eq!(names, ["observations.due"]);
    // A look that follows later would be counted here: one asked for now comes after it.
    let scanned_at = standing().scanned_at;
    running.hive.look_now();
    eventually("another scan", || async { (standing().scanned_at != scanned_at).then_some(()) }).await;
    assert_eq!((standing().looks, running.cluster.calls()), (looks, calls), "no call of the gateway");
    // It can fail: one of them is made due.
    let sql = "UPDATE observations SET due_at = looked_at WHERE subject_id = 'copy-7'";
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
async fn a_pass_over_ten_thousand_on_mysql() {
    a_pass_over_ready_services_that_need_none_costs_one_query("mysql").await;
}

/// Who takes facts into rows may be behind: what the service itself says decides whether something is done to the resource.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_by_hand_just_after_ready_is_not_made_again() {
    let hour = Duration::from_secs(3600);
    let settings = HiveSettings { interval: hour, ready_stale: hour, ..settings() };
    let running = Running::with("sqlite", "local", settings, at_once(), |builder| builder).await;
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    running.quiet().await;
    // The row as it was a moment before: applied, and waited for. Once it is still to be applied, once it was.
    for wanted in [serde_json::json!("apply"), serde_json::Value::Null] {
        let store = running.app.store();
        let (_, mut kept) = kept(store, &id).await;
        (kept["status"], kept["applied"], kept["wanted"]) = ("CREATING".into(), true.into(), wanted);
        let sql = "UPDATE observations SET wanted = ?, version = 4 WHERE subject_id = ?";
        let values = vec![kept.to_string().into(), id.as_str().into()];
        assert_eq!(store.own_execute("test.behind", sql, values).await.unwrap(), 1);
        running.cluster.delete_by_hand(&resource("cart")).unwrap();
        let looks = || running.app.observers().into_iter().find(|one| one.name == OBSERVER).unwrap().looks;
        let before = looks();
        eventually("it is looked at", || async { (looks() > before).then_some(()) }).await;
        eventually("it is seen to be gone", || async {
            (!running.service(&id).await.snapshot?.present).then_some(())
        })
        .await;
        running.quiet().await;
        assert_eq!(running.cluster.look(&resource("cart")).unwrap(), Observed::NotFound);
        assert_eq!(running.names(&id).await.last().map(String::as_str), Some("service.external.purged"));
        // What is wanted anew is done.
        running.send(&id, update("registry.example/cart:2")).await.unwrap();
        running.reaches(&id, ServiceStatus::Ready).await;
        running.quiet().await;
    }
    running.app.stop().await;
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
    running.quiet().await;
    let before: Vec<_> = futures_util::future::join_all(ids.iter().map(|id| running.names(id))).await;
    let alerts = || async { running.hive.alerts(running.app.store(), 10).await.unwrap() };
    assert!(alerts().await.is_empty());
    running.cluster.set_down(true);
    // Everybody is to be looked at, and one is to be changed.
    running.send(&ids[0], update("registry.example/cart:2")).await.unwrap();
    for id in &ids[1..] {
        running.send(id, ServiceCommand::Refresh {}).await.unwrap();
    }
    let platform = || running.app.observers().into_iter().find(|one| one.name == OBSERVER).unwrap().platform;
    eventually("it is told", || async { matches!(platform(), Platform::Down { .. }).then_some(()) }).await;
    let raised = eventually("the alert", || async { alerts().await.pop() }).await;
    assert_eq!((raised.alert.as_str(), raised.cleared_at), ("gateway-down", None));
    assert_eq!(raised.code, "gateway-unavailable");
    // It is asked again and again, and is one alert.
    let calls = running.cluster.calls();
    eventually("it is asked again", || async { (running.cluster.calls() > calls + 2).then_some(()) }).await;
    assert_eq!(alerts().await, std::slice::from_ref(&raised));
    for (id, before) in ids[1..].iter().zip(&before[1..]) {
        let now = running.names(id).await;
        assert_eq!(now.len(), before.len() + 1, "only the refresh that was asked for: {now:?}");
        assert_eq!(running.service(id).await.status, Some(ServiceStatus::Ready));
    }
    assert_eq!(running.service(&ids[0]).await.status, Some(ServiceStatus::Updating));

    // Another life of the same instance finds the alert that is raised, and raises no other.
    let Running { app, hive, cluster, fresh } = running;
    app.stop().await;
    let url = fresh.as_ref().unwrap().url().to_owned();
    let builder = towpath::Towpath::builder().store(&url).scan(Duration::from_millis(50));
    let running = Running { app: hive.install(builder).start().await.unwrap(), hive, cluster, fresh };
    let alerts = || async { running.hive.alerts(running.app.store(), 10).await.unwrap() };
    let platform = || Some(running.app.observers().into_iter().find(|one| one.name == OBSERVER)?.platform);
    eventually("it is told", || async { matches!(platform()?, Platform::Down { .. }).then_some(()) }).await;
    assert_eq!(alerts().await, std::slice::from_ref(&raised));

    running.cluster.set_down(false);
    running.reaches(&ids[0], ServiceStatus::Ready).await;
    eventually("it is up", || async { (platform()? == Platform::Up).then_some(()) }).await;
    let cleared = eventually("the end of the alert", || async {
        alerts().await.pop().filter(|alert| alert.cleared_at.is_some())
    })
    .await;
    running.quiet().await;
    assert_eq!(alerts().await, [cleared], "cleared once");
    running.app.stop().await;
}

/// A gateway of which one call fails.
struct Half {
    cluster: SimulatedCluster,
    refuses: bool,
    /// Whether nothing is deleted.
    keeps: AtomicBool,
    /// Whether a look goes without an answer for ever, instead of being told no.
    hangs: bool,
    blind: AtomicBool,
}

#[async_trait]
impl ServingGateway for Half {
    async fn apply(&self, apply: &Apply) -> Result<Applied, GatewayError> {
        match self.refuses {
            true => {
                let (reason, message) = ("Invalid".to_owned(), "never".to_owned());
                Err(GatewayError::Refused { reason, message })
            }
            false => self.cluster.apply(apply).await,
        }
    }

    async fn observe(&self, resource: &ResourceName) -> Result<Observed, GatewayError> {
        match self.blind.load(Ordering::SeqCst) {
            true if self.hangs => std::future::pending().await,
            true => Err(GatewayError::Unavailable { message: "not now".to_owned() }),
            false => self.cluster.observe(resource).await,
        }
    }

    async fn delete(&self, service_id: &str, resource: &ResourceName) -> Result<Deletion, GatewayError> {
        match self.keeps.load(Ordering::SeqCst) {
            true => {
                let (reason, message) = ("Forbidden".to_owned(), "may not delete".to_owned());
                Err(GatewayError::Refused { reason, message })
            }
            false => self.cluster.delete(service_id, resource).await,
        }
    }

    async fn namespace_exists(&self, namespace: &str) -> Result<bool, GatewayError> {
        match namespace {
            // As one does that lets a service account see its own namespaces only.
            "shop" => {
                let (reason, message) = ("Forbidden".to_owned(), "never".to_owned());
                Err(GatewayError::Refused { reason, message })
            }
            _ => self.cluster.namespace_exists(namespace).await,
        }
    }

    async fn reachable(&self) -> Result<(), GatewayError> {
        self.cluster.reachable().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_of_an_apply_is_told_although_nothing_can_be_seen() {
    for (refuses, hangs) in [(true, false), (false, false), (false, true)] {
        let fresh = Fresh::on("sqlite").await;
        let cluster = SimulatedCluster::new(at_once()).unwrap();
        let (keeps, blind) = (AtomicBool::new(false), AtomicBool::new(true));
        let half = Arc::new(Half { cluster: cluster.clone(), refuses, keeps, hangs, blind });
        let hive = Hive::new(HiveSettings { timeout: Duration::from_secs(1), ..settings() }, half.clone());
        let builder = towpath::Towpath::builder().store(fresh.url()).scan(Duration::from_millis(50));
        let app = hive.install(builder).start().await.unwrap();
        let running = Running { app, hive, cluster, fresh: Some(fresh) };
        let id = running.create("cart").await;
        if refuses {
            let failed = running.reaches(&id, ServiceStatus::Failed).await;
            assert_eq!(failed.failure.unwrap().reason, "gateway-refused");
        } else {
            eventually("the apply is recorded", || async {
                (running.service(&id).await.applied_spec_version == 1).then_some(())
            })
            .await;
            half.blind.store(false, Ordering::SeqCst);
            running.reaches(&id, ServiceStatus::Ready).await;
        }
        // That the namespace cannot be asked for has kept nothing back, and nothing is said about it.
        let sql = "SELECT namespace FROM hive_namespaces";
        let rows = running.app.store().own_rows("test.namespaces", sql, Vec::new()).await.unwrap();
        assert!(rows.is_empty());
        running.app.stop().await;
    }
}

/// A service that does not get on says why, for as long as that is so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_a_service_does_not_get_on_is_shown() {
    let fresh = Fresh::on("sqlite").await;
    let cluster = SimulatedCluster::new(at_once()).unwrap();
    let (keeps, blind) = (AtomicBool::new(true), AtomicBool::new(false));
    let half = Arc::new(Half { cluster: cluster.clone(), refuses: false, keeps, hangs: false, blind });
    let hive = Hive::new(settings(), half.clone());
    let builder = towpath::Towpath::builder().store(fresh.url()).scan(Duration::from_millis(50));
    let app = hive.install(builder).start().await.unwrap();
    let running = Running { app, hive, cluster, fresh: Some(fresh) };
    let looks = |id: String| {
        let (hive, store) = (running.hive.clone(), running.app.store().clone());
        async move { hive.looks(&store, &id).await.unwrap() }
    };

    // One that cannot be looked at.
    running.cluster.set_broken(resource("broken"), true);
    let broken = running.create("broken").await;
    let failing = eventually("it is told", || async { looks(broken.clone()).await.failure }).await;
    assert_eq!(failing.code, "gateway-unavailable");
    let later = eventually("it fails again", || async {
        looks(broken.clone()).await.failure.filter(|again| again.failed_at > failing.failed_at)
    })
    .await;
    assert_eq!(later.since, failing.since);
    running.cluster.set_broken(resource("broken"), false);
    running.reaches(&broken, ServiceStatus::Ready).await;
    eventually("it is over", || async { looks(broken.clone()).await.failure.is_none().then_some(()) }).await;
    eventually("it was looked at", || async { looks(broken.clone()).await.looked_at }).await;

    // One that may not be deleted: what is there is seen all the same.
    let cart = running.create("cart").await;
    running.reaches(&cart, ServiceStatus::Ready).await;
    running.quiet().await;
    running.send(&cart, ServiceCommand::Delete(DeleteAsked::default())).await.unwrap();
    let refused = eventually("it is told", || async { looks(cart.clone()).await.failure }).await;
    assert_eq!(refused.code, "gateway-refused");
    assert!(refused.message.contains("may not delete"), "{refused:?}");
    let by_hand = towpath_hive::spec::ServiceSpec { image: "hand".to_owned(), ..Default::default() };
    running.cluster.edit_by_hand(&resource("cart"), by_hand).unwrap();
    eventually("the edit is seen", || async {
        (!running.service(&cart).await.snapshot?.hash_match).then_some(())
    })
    .await;
    assert_eq!(running.service(&cart).await.status, Some(ServiceStatus::Deleting));
    half.keeps.store(false, Ordering::SeqCst);
    running.reaches(&cart, ServiceStatus::Deleted).await;
    eventually("it is forgotten", || async {
        let sql =
            "SELECT subject_id FROM observations WHERE failed_at IS NOT NULL OR subject_id = 'shop.cart'";
        let rows = running.app.store().own_rows("test.failures", sql, Vec::new()).await.unwrap();
        rows.is_empty().then_some(())
    })
    .await;
    running.app.stop().await;
}

/// The platform tells of changes: nobody scans in the time of this test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_is_known_by_a_hint_and_without_a_scan() {
    let hour = Duration::from_secs(3600);
    let settings = HiveSettings { interval: hour, poll: hour, ready_stale: hour, ..settings() };
    let fates = Fates {
        settles_after: Duration::from_millis(1500),
        settles_within: Duration::from_millis(1600),
        ..at_once().fates
    };
    let cluster = SimulatedSettings { fates, ..at_once() };
    let running = Running::with("sqlite", "local", settings, cluster, |builder| builder).await;
    let begun = std::time::Instant::now();
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(1500), "{took:?}: it was not ready yet");
    running.app.stop().await;
}

/// What nobody tells of, and nobody asks for, is found when what is known is stale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ready_service_is_looked_at_when_what_is_known_is_stale() {
    let settings = HiveSettings {
        interval: Duration::from_secs(3600),
        poll: Duration::from_millis(50),
        ready_stale: Duration::from_millis(500),
        ..settings()
    };
    let cluster = SimulatedSettings { watched: false, ..at_once() };
    let running = Running::with("sqlite", "local", settings, cluster, |builder| builder).await;
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    let observations = running.cluster.observations();
    // More than once: each look says when the next one is due.
    eventually("it is looked at", || async {
        (running.cluster.observations() >= observations + 3).then_some(())
    })
    .await;
    running.cluster.delete_by_hand(&resource("cart")).unwrap();
    eventually("it is seen", || async { (!running.service(&id).await.snapshot?.present).then_some(()) })
        .await;
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_noticed_although_nothing_is_due() {
    let hour = Duration::from_secs(3600);
    let settings = HiveSettings { interval: hour, poll: hour, ready_stale: hour, ..settings() };
    let running = Running::with("sqlite", "local", settings, at_once(), |builder| builder).await;
    let platform = || Some(running.app.observers().into_iter().find(|one| one.name == OBSERVER)?.platform);
    eventually("it is up", || async { (platform()? == Platform::Up).then_some(()) }).await;
    running.cluster.set_down(true);
    let alerts = || async { running.hive.alerts(running.app.store(), 10).await.unwrap() };
    eventually("the alert", || async { alerts().await.pop() }).await;
    running.cluster.set_down(false);
    eventually("its end", || async { alerts().await.pop()?.cleared_at }).await;
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_fails_delays_nobody() {
    let settings = HiveSettings { concurrency: 2, ..settings() };
    let running = Running::with("sqlite", "local", settings, at_once(), |builder| builder).await;
    // More of them than look at a time.
    let mut broken = Vec::new();
    for number in 0..6 {
        running.cluster.set_broken(resource(&format!("broken-{number}")), true);
        broken.push(running.create(&format!("broken-{number}")).await);
    }
    let standing = || running.app.observers().into_iter().find(|one| one.name == OBSERVER).unwrap();
    eventually("they fail", || async { (standing().failures >= 6).then_some(()) }).await;
    let failures = standing().failures;
    for number in 0..20 {
        let id = running.create(&format!("cart-{number}")).await;
        running.reaches(&id, ServiceStatus::Ready).await;
    }
    eventually("they go on failing", || async { (standing().failures >= failures + 6).then_some(()) }).await;
    assert_eq!(standing().platform, Platform::Up, "they are no platform that is down");
    assert!(running.hive.alerts(running.app.store(), 10).await.unwrap().is_empty());
    for id in &broken {
        assert_eq!(running.service(id).await.status, Some(ServiceStatus::Creating));
    }
    for (number, id) in broken.iter().enumerate() {
        running.cluster.set_broken(resource(&format!("broken-{number}")), false);
        running.reaches(id, ServiceStatus::Ready).await;
    }
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refresh_is_not_lost_when_other_facts_follow() {
    let settings = HiveSettings {
        interval: Duration::from_secs(3600),
        poll: Duration::from_millis(100),
        ready_stale: Duration::from_secs(3600),
        ..settings()
    };
    let cluster = SimulatedSettings { watched: false, ..at_once() };
    let running = Running::with("sqlite", "local", settings, cluster, |builder| builder).await;
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    running.quiet().await;
    running.cluster.set_down(true);
    // Both are taken in before anybody can look.
    running.send(&id, ServiceCommand::Refresh {}).await.unwrap();
    let known = running.service(&id).await;
    let taken = TakeObservation {
        snapshot: known.snapshot.clone().unwrap(),
        observation: known.observation + 100,
        spec_version: known.spec_version,
        failure_threshold: 1,
    };
    running.send(&id, ServiceCommand::TakeObservation(taken)).await.unwrap();
    let version = running.app.load::<Service>(&id).await.unwrap().unwrap().version;
    let store = running.app.store();
    eventually("both are taken in", || async { (kept(store, &id).await.0 == version).then_some(()) }).await;
    let looks = || running.app.observers().into_iter().find(|one| one.name == OBSERVER).unwrap().looks;
    let before = looks();
    running.cluster.set_down(false);
    eventually("it is looked at", || async { (looks() > before).then_some(()) }).await;
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_service_delays_nobody() {
    // Who waited for the end of a look at the slow one would wait for an hour.
    let hour = Duration::from_secs(3600);
    let settings = HiveSettings { timeout: hour, concurrency: 2, ..settings() };
    let running = Running::with("sqlite", "local", settings, at_once(), |builder| builder).await;
    running.cluster.set_slow(resource("slow"), 2 * hour);
    let slow = running.create("slow").await;
    for number in 0..20 {
        let id = running.create(&format!("cart-{number}")).await;
        running.reaches(&id, ServiceStatus::Ready).await;
    }
    assert_eq!(running.service(&slow).await.status, Some(ServiceStatus::Creating));
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_service_is_no_platform_that_is_down() {
    let settings = HiveSettings { timeout: Duration::from_secs(1), concurrency: 2, ..settings() };
    let running = Running::with("sqlite", "local", settings, at_once(), |builder| builder).await;
    running.cluster.set_slow(resource("slow"), Duration::from_secs(3600));
    let slow = running.create("slow").await;
    let standing = || running.app.observers().into_iter().find(|one| one.name == OBSERVER).unwrap();
    // One after the other, without an answer between them that would say that the platform is there.
    eventually("looks end without an answer", || async { (standing().failures >= 4).then_some(()) }).await;
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    assert_eq!(standing().platform, Platform::Up);
    assert!(running.hive.alerts(running.app.store(), 10).await.unwrap().is_empty());
    assert_eq!(running.service(&slow).await.status, Some(ServiceStatus::Creating));
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

/// Two instances: one looks, and what the other is asked for is done within a moment, although neither is told.
async fn two_instances_look_once(database: &str) {
    let settings = HiveSettings { interval: Duration::from_secs(3600), ..settings() };
    let cluster = SimulatedSettings { watched: false, ..at_once() };
    let one = Running::with(database, "local", settings, cluster, |builder| builder).await;
    let looking = |app: &Towpath| {
        app.observers().into_iter().find(|standing| standing.name == OBSERVER).is_some_and(|it| it.looking)
    };
    eventually("the first looks", || async { looking(&one.app).then_some(()) }).await;
    let hive = Hive::new(one.hive.settings().clone(), Arc::new(one.cluster.clone()));
    let url = one.fresh.as_ref().unwrap().url().to_owned();
    let builder = Towpath::builder().store(&url).scan(Duration::from_millis(50));
    let other = hive.install(builder).start().await.unwrap();
    let looks = |app: &Towpath| {
        app.observers().into_iter().find(|standing| standing.name == OBSERVER).map_or(0, |it| it.looks)
    };
    let begun = std::time::Instant::now();
    for number in 0..10 {
        // Each is asked for at another instance; who takes the facts in is chance.
        let asks = if number % 2 == 0 { &other } else { &one.app };
        let (name, id) = (format!("cart-{number}"), format!("shop.cart-{number}"));
        asks.send::<Service>(&id, ServiceCommand::Create(asked(&name))).await.unwrap();
        one.reaches(&id, ServiceStatus::Ready).await;
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?} for ten, and the next scan is in an hour");
    assert!(looking(&one.app) && !looking(&other));
    assert!(looks(&one.app) >= 10);
    assert_eq!(looks(&other), 0, "who has not the lease looks at nothing");
    // Every resource was applied once: the generation counts that.
    for number in 0..10 {
        let service = one.service(&format!("shop.cart-{number}")).await;
        assert_eq!(service.snapshot.unwrap().generation, Some(1));
    }
    // The other takes over when the first stops.
    one.app.stop().await;
    eventually("the other looks", || async { looking(&other).then_some(()) }).await;
    let id = "shop.cart-0";
    other.send::<Service>(id, update("registry.example/cart:2")).await.unwrap();
    eventually("it is updated", || async {
        let view = other.load::<Service>(id).await.unwrap().unwrap();
        (view.value.status == Some(ServiceStatus::Ready)).then_some(())
    })
    .await;
    assert!(looks(&other) > 0);
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_look_once_on_postgres() {
    two_instances_look_once("postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_look_once_on_mysql() {
    two_instances_look_once("mysql").await;
}
