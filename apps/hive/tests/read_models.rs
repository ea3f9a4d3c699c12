//! The read models: written by facts alone, and equal after a rebuild.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use towpath::ports::probe::Probe;
use towpath::tables::{Row as _, Table, Value};
use towpath::{Aggregate as _, SqlStore};
use towpath_hive::gateway::simulated::SimulatedCluster;
use towpath_hive::gateway::{
    Applied, Apply, Condition, ConditionStatus, Deletion, GatewayError, Observed, ServingGateway,
};
use towpath_hive::knative::KnativeService;
use towpath_hive::record::{RecordCommand, ServicePersisted, ServiceRecord};
use towpath_hive::service::{DeleteAsked, Service, ServiceCommand, ServiceStatus, TakeObservation};
use towpath_hive::spec::{EnvValue, ResourceName, ServiceSpec};
use towpath_hive::tables::{AuditRow, NamespaceRow, RevisionRow, RouteRow, ServiceRow, SpecRow};
use towpath_hive::{Hive, rebuild};

use support::{Fresh, Running, at_once, resource, settings, update};

/// The read models. An outage is no fact.
const VIEWS: [&Table; 6] = [
    ServiceRow::TABLE,
    RevisionRow::TABLE,
    RouteRow::TABLE,
    SpecRow::TABLE,
    AuditRow::TABLE,
    NamespaceRow::TABLE,
];

/// All rows of all read models with all their columns, as texts.
async fn everything(store: &SqlStore) -> BTreeMap<&'static str, Vec<String>> {
    let mut all = BTreeMap::new();
    for table in VIEWS {
        all.insert(table.name(), rows_of(store, table).await);
    }
    all
}

async fn rows_of(store: &SqlStore, table: &Table) -> Vec<String> {
    let columns: Vec<&str> = table.columns().collect();
    let sql = format!("SELECT {} FROM {}", columns.join(", "), table.name());
    let mut rows = Vec::new();
    for record in store.own_rows("test.everything", &sql, Vec::new()).await.unwrap() {
        let cell = |column: &str| {
            let text = record.text_or_null(column).map(|text| format!("{text:?}"));
            let time = || record.time_or_null(column).map(|time| format!("{time:?}"));
            text.or_else(|_| time())
                .or_else(|_| record.long(column).map(|number| number.to_string()))
                .unwrap()
        };
        rows.push(
            columns.iter().map(|column| format!("{column} {}", cell(column))).collect::<Vec<_>>().join(" | "),
        );
    }
    rows.sort();
    rows
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
            running.send(&id, ServiceCommand::Delete(DeleteAsked::default())).await.unwrap();
            running.reaches(&id, ServiceStatus::Deleted).await;
        }
    }
    // Everything was taken in, and nothing follows any more: the read models do not move.
    running.quiet().await;
    let before = everything(&store).await;
    let counts: Vec<usize> = VIEWS.iter().map(|table| before[table.name()].len()).collect();
    // Six services; nine revisions; six routes; nine specifications; eleven requests; one namespace.
    assert_eq!(counts, [6, 9, 6, 9, 11, 1], "{before:#?}");
    let status = |text: &str| before["hive_services"].iter().filter(|row| row.contains(text)).count();
    assert_eq!((status("status Some(\"READY\")"), status("status Some(\"DELETED\")")), (4, 2), "{before:#?}");
    // A page ends where it has enough bytes, and says that there is more.
    let page = async |after: &str, limit: u32, bytes: u64| {
        let page = running.hive.services(&store, after, None, limit, bytes).await.unwrap();
        (page.rows.len(), page.more)
    };
    assert_eq!(page("", 500, 1).await, (1, true));
    assert_eq!(page("", 500, 1 << 20).await, (6, false));
    assert_eq!((page("", 6, 1 << 20).await, page("", 4, 1 << 20).await), ((6, true), (4, true)));
    assert_eq!(
        (page("shop.cart-4", 500, 1).await, page("shop.cart-5", 500, 1).await),
        ((1, false), (0, false))
    );
    running.app.stop().await;

    // Somebody spoils them: rows are lost, changed and made up.
    let store = SqlStore::connect(running.fresh.as_ref().unwrap().url()).await.unwrap();
    assert_eq!(everything(&store).await, before);
    let spoil = [
        "DELETE FROM hive_services WHERE service_id = 'shop.cart-1'",
        "UPDATE hive_services SET status = 'FAILED', service = '{}', updated_at = created_at WHERE service_id = 'shop.cart-2'",
        "DELETE FROM hive_revisions WHERE service_id = 'shop.cart-2'",
        "UPDATE hive_routes SET url = 'elsewhere'",
        "DELETE FROM hive_specs",
        "DELETE FROM hive_audit",
        "DELETE FROM hive_namespaces",
        "DELETE FROM observations WHERE subject_id <> 'shop.cart-2'",
        "UPDATE observations SET subject_id = 'nobody'",
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
        store.own_rows("test.targets", "SELECT subject_id FROM observations", Vec::new()).await.unwrap();
    assert_eq!(targets.len(), 4, "those that are not DELETED");
    store.close().await;
}

/// Rebuilt again and again while facts come and are taken in, by an instance whose clock is behind besides: nothing is lost.
async fn a_rebuild_beside_a_running_hive_loses_nothing(database: &str) {
    let running = Running::on(database, "local").await;
    let store = running.app.store().clone();
    let busy = async {
        for number in 0..8 {
            let id = running.create(&format!("cart-{number}")).await;
            running.reaches(&id, ServiceStatus::Ready).await;
            // As the rows of who is behind look: a rebuild does not go by when something happened.
            let old = chrono::Utc::now() - chrono::TimeDelta::days(1);
            for (table, column) in [("hive_services", "updated_at"), ("hive_audit", "requested_at")] {
                let sql = format!("UPDATE {table} SET {column} = ? WHERE service_id = ?");
                let values: Vec<Value<'_>> = vec![old.into(), id.as_str().into()];
                store.own_execute("test.age", &sql, values).await.unwrap();
            }
            running.send(&id, update("registry.example/cart:2")).await.unwrap();
            running.reaches(&id, ServiceStatus::Ready).await;
            if number % 2 == 0 {
                running.send(&id, ServiceCommand::Delete(DeleteAsked::default())).await.unwrap();
                running.reaches(&id, ServiceStatus::Deleted).await;
            }
        }
    };
    // Rows are lost besides, as when somebody has reason to rebuild: a consumer and a rebuild make them at once.
    let over = AtomicBool::new(false);
    let rebuilding = async {
        let mut times = 0;
        while !over.load(Ordering::SeqCst) {
            for table in ["hive_services WHERE service_id", "observations WHERE subject_id"] {
                let sql = format!("DELETE FROM {table} = ?");
                let id = format!("shop.cart-{}", times % 8);
                store.own_execute("test.lose", &sql, vec![Value::from(id.as_str())]).await.unwrap();
            }
            rebuild(&store, Duration::from_secs(900)).await.unwrap();
            times += 1;
        }
        times
    };
    let busy = async {
        busy.await;
        over.store(true, Ordering::SeqCst);
    };
    let ((), times) = tokio::join!(busy, rebuilding);
    assert!(times > 3, "{times} rebuilds");
    running.quiet().await;
    let before = everything(&store).await;
    let counts: Vec<usize> = VIEWS.iter().map(|table| before[table.name()].len()).collect();
    assert_eq!(counts, [8, 16, 8, 16, 20, 1], "{before:#?}");
    // Nothing is older than its facts, and what is gone is not looked at.
    let sql = "SELECT service_id, version, status FROM hive_services";
    for row in store.own_rows("test.services", sql, Vec::new()).await.unwrap() {
        let id = row.text("service_id").unwrap();
        let is = running.app.load::<Service>(&id).await.unwrap().unwrap();
        let status = is.value.status.unwrap();
        assert_eq!(
            (row.count("version").unwrap(), row.text("status").unwrap()),
            (is.version, status.as_str().into())
        );
        let sql = "SELECT version FROM observations WHERE subject_id = ?";
        let targets = store.own_rows("test.target", sql, vec![id.as_str().into()]).await.unwrap();
        let targets: Vec<u64> = targets.iter().map(|row| row.count("version").unwrap()).collect();
        let expected = if status == ServiceStatus::Deleted { vec![] } else { vec![is.version] };
        assert_eq!(targets, expected, "{id}");
    }
    running.app.stop().await;
}

/// What was handled and has no position yet when an instance ends is no less a fact.
async fn facts_without_a_position_are_not_lost_by_a_rebuild(database: &str) {
    let running = Running::on(database, "local").await;
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    running.quiet().await;
    let url = running.fresh.as_ref().unwrap().url().to_owned();
    running.app.stop().await;
    let store = SqlStore::connect(&url).await.unwrap();
    let before = everything(&store).await;
    // As if it had been killed between the commit and the next turn of the sequencer.
    for sql in [
        "INSERT INTO event_pending (event_id) SELECT event_id FROM event_positions WHERE position > 3 ORDER BY position",
        "DELETE FROM event_positions WHERE position > 3",
        "UPDATE log_head SET last_position = 3",
    ] {
        store.own_execute("test.unposition", sql, Vec::new()).await.unwrap();
    }
    assert_eq!(store.head().await.unwrap(), 3);
    // A rebuild does not go by when something happened.
    for (table, column) in [
        ("hive_services", "updated_at"),
        ("hive_revisions", "seen_at"),
        ("hive_routes", "aligned_at"),
        ("hive_specs", "persisted_at"),
        ("hive_audit", "requested_at"),
        ("hive_namespaces", "validated_at"),
    ] {
        let sql = format!("UPDATE {table} SET {column} = ?");
        let old = Value::from(chrono::Utc::now() - chrono::TimeDelta::days(1));
        store.own_execute("test.age", &sql, vec![old]).await.unwrap();
    }
    rebuild(&store, Duration::from_secs(900)).await.unwrap();
    assert_eq!(everything(&store).await, before);
    store.close().await;
}

/// Counts statements by their names.
#[derive(Default)]
struct Statements(Mutex<BTreeMap<&'static str, usize>>);

impl Probe for Statements {
    fn before(&self, statement: &'static str) {
        *self.0.lock().unwrap().entry(statement).or_default() += 1;
    }
}

/// A history of large specifications, and more rows of nobody than are read at a time: a rebuild has a part of them at a time.
async fn a_rebuild_goes_in_small_steps(database: &str) {
    const SPECS_KEPT: u64 = 24;
    const STRAYS: u64 = 2_500;
    let running =
        Running::with(database, "local", settings(), at_once(), |builder| builder.without_workers()).await;
    let store = running.app.store().clone();
    // 10 MB together.
    let env: BTreeMap<String, EnvValue> = [("TEXT".to_owned(), "x".repeat(400_000).as_str().into())].into();
    for number in 1..=SPECS_KEPT {
        let spec =
            ServiceSpec { image: format!("cart:{number}"), env: env.clone(), ..ServiceSpec::default() };
        let kept = ServicePersisted {
            service_id: "shop.cart".to_owned(),
            spec_hash: spec.hash(),
            spec,
            spec_version: number,
        };
        running.app.send::<ServiceRecord>("shop.cart", RecordCommand::Persist(kept)).await.unwrap();
    }
    let nobodys = |number: u64| -> Vec<Value<'static>> {
        let at = chrono::Utc::now();
        vec!["nobody".into(), number.into(), "hash".into(), "{}".into(), at.into()]
    };
    let mut transaction = store.open_transaction().await.unwrap();
    let strays = (1..=STRAYS).map(nobodys).collect();
    transaction.own_tables().put("test.strays", SpecRow::TABLE, strays).await.unwrap();
    transaction.finish().await.unwrap();
    let statements = Arc::new(Statements::default());
    let rebuilt = rebuild(&store.with_probe(statements.clone()), Duration::from_secs(900)).await.unwrap();
    assert_eq!(rebuilt.facts, SPECS_KEPT, "{database}");
    let sql = "SELECT service_id FROM hive_specs";
    let rows = store.own_rows("test.specs", sql, Vec::new()).await.unwrap();
    assert_eq!(rows.len() as u64, SPECS_KEPT, "{database}");
    assert!(rows.iter().all(|row| row.text("service_id").unwrap() == "shop.cart"), "{database}");
    let counts = statements.0.lock().unwrap().clone();
    let count = |name: &str| counts.get(name).copied().unwrap_or_default();
    // 4 MiB at a time, read and written.
    assert!(count("events.of") >= 3 && count("projection.put") >= 3, "{database}: {counts:?}");
    running.app.stop().await;
}

/// An older fact that is taken in late does not undo a newer one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_fact_does_not_undo_a_newer_one() {
    for database in ["sqlite", "postgres", "mysql"] {
        let running = Running::with(database, "local", settings(), at_once(), |builder| builder).await;
        let store = running.app.store().clone();
        let newer = chrono::Utc::now();
        let sql = "INSERT INTO hive_namespaces (namespace, version, present, validated_at) VALUES ('shop', 7, 0, ?)";
        store.own_execute("test.newer", sql, vec![newer.into()]).await.unwrap();
        let sql = "INSERT INTO hive_routes (service_id, version, url, traffic, aligned_at) \
                   VALUES ('shop.cart', 99, 'newer', '[]', ?)";
        store.own_execute("test.newer", sql, vec![newer.into()]).await.unwrap();
        // Up to these facts they were taken in.
        let sql = "INSERT INTO projections (projection, aggregate_kind, aggregate_id, version, projection_version) \
                   VALUES ('hive-namespaces', 'namespace', 'shop', 7, 1), ('hive-platform', ?, 'shop.cart', 99, 1)";
        store.own_execute("test.newer", sql, vec![KnativeService::KIND.into()]).await.unwrap();
        let before = (rows_of(&store, NamespaceRow::TABLE).await, rows_of(&store, RouteRow::TABLE).await);
        let id = running.create("cart").await;
        running.reaches(&id, ServiceStatus::Ready).await;
        running.quiet().await;
        assert_eq!(
            (rows_of(&store, NamespaceRow::TABLE).await, rows_of(&store, RouteRow::TABLE).await),
            before,
            "{database}"
        );
        // An equal or newer one is taken.
        let other = running.create("till").await;
        running.reaches(&other, ServiceStatus::Ready).await;
        running.quiet().await;
        assert_eq!(rows_of(&store, RouteRow::TABLE).await.len(), 2, "{database}");
        running.app.stop().await;
    }
}

/// A fact that comes before those that it follows, or whose row was lost, brings the others with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fact_is_never_folded_onto_nothing() {
    let running = Running::on("sqlite", "local").await;
    let store = running.app.store().clone();
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    running.quiet().await;
    for table in ["hive_services", "observations"] {
        store.own_execute("test.lose", &format!("DELETE FROM {table}"), Vec::new()).await.unwrap();
    }
    running.send(&id, ServiceCommand::Refresh {}).await.unwrap();
    running.quiet().await;
    let rows = rows_of(&store, ServiceRow::TABLE).await;
    assert!(rows.len() == 1 && rows[0].contains("status Some(\"READY\")"), "{rows:?}");
    let sql = "SELECT version FROM hive_services";
    let shown = store.own_rows("test.version", sql, Vec::new()).await.unwrap()[0].count("version").unwrap();
    let view = running.app.load::<towpath_hive::service::Service>(&id).await.unwrap().unwrap();
    assert_eq!(shown, view.version);
    running.app.stop().await;
}

/// A database from before the library knew how far the rows are: they are made anew once, beside the running hive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_an_older_hive_are_made_anew_in_the_background() {
    for database in ["sqlite", "postgres", "mysql"] {
        let running = Running::on(database, "local").await;
        for name in ["cart", "till"] {
            let id = running.create(name).await;
            running.reaches(&id, ServiceStatus::Ready).await;
        }
        running.quiet().await;
        let url = running.fresh.as_ref().unwrap().url().to_owned();
        running.app.stop().await;
        let store = SqlStore::connect(&url).await.unwrap();
        let before = everything(&store).await;
        for sql in [
            "DELETE FROM projections",
            "UPDATE hive_routes SET url = 'elsewhere'",
            "UPDATE hive_services SET version = 1, status = 'FAILED' WHERE service_id = 'shop.till'",
        ] {
            store.own_execute("test.older", sql, Vec::new()).await.unwrap();
        }
        store.close().await;
        let builder = towpath::Towpath::builder().store(&url).scan(Duration::from_millis(50));
        let app = running.hive.install(builder).start().await.unwrap();
        support::eventually("all was made anew", || async {
            let all = app.projections().await.unwrap();
            all.iter().all(towpath::projection::ProjectionStatus::is_made).then_some(())
        })
        .await;
        assert_eq!(everything(app.store()).await, before, "{database}");
        let targets = "SELECT subject_id FROM observations WHERE looked_at IS NOT NULL";
        let targets = app.store().own_rows("test.targets", targets, Vec::new()).await.unwrap();
        assert_eq!(targets.len(), 2, "what is known of the looks at them stays, on {database}");
        app.stop().await;
    }
}

/// What no database keeps as a text: PostgreSQL has no NUL, and a TEXT of MySQL's ends at 64 KB.
fn unkeepable() -> String {
    format!("a\0b{}", "c".repeat(100_000))
}

/// A simulated cluster that says too much.
struct Wordy(SimulatedCluster);

#[async_trait]
impl ServingGateway for Wordy {
    async fn apply(&self, apply: &Apply) -> Result<Applied, GatewayError> {
        self.0.apply(apply).await
    }

    async fn observe(&self, resource: &ResourceName) -> Result<Observed, GatewayError> {
        let mut observed = self.0.observe(resource).await?;
        if let Observed::Found(found) = &mut observed {
            found.conditions.ready = Condition::because(ConditionStatus::False, unkeepable(), unkeepable());
            found.url = Some(unkeepable());
            found.revisions.iter_mut().for_each(|revision| revision.image = Some(unkeepable()));
        }
        Ok(observed)
    }

    async fn delete(&self, service_id: &str, resource: &ResourceName) -> Result<Deletion, GatewayError> {
        self.0.delete(service_id, resource).await
    }

    async fn namespace_exists(&self, namespace: &str) -> Result<bool, GatewayError> {
        self.0.namespace_exists(namespace).await
    }

    async fn reachable(&self) -> Result<(), GatewayError> {
        self.0.reachable().await
    }
}

/// Whatever the platform says, the read models take it in, and a service comes to its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_that_no_database_keeps_hold_up_nothing() {
    for database in ["sqlite", "postgres", "mysql"] {
        let fresh = Fresh::on(database).await;
        let cluster = SimulatedCluster::new(at_once()).unwrap();
        let hive = Hive::new(settings(), Arc::new(Wordy(cluster.clone())));
        let builder = towpath::Towpath::builder().store(fresh.url()).scan(Duration::from_millis(50));
        let app = hive.install(builder).start().await.unwrap();
        let running = Running { app, hive, cluster, fresh: Some(fresh) };
        let store = running.app.store().clone();
        let id = running.create("cart").await;
        let failed = running.reaches(&id, ServiceStatus::Failed).await;
        let failure = failed.failure.clone().unwrap();
        assert_eq!((failure.reason.chars().count(), failure.message.chars().count()), (128, 4001));
        assert!(failure.message.starts_with("a\u{fffd}bc") && failure.message.ends_with("c…"), "{database}");
        running.quiet().await;

        // A fact from before texts were bounded. Nobody looks meanwhile.
        running.cluster.set_broken(resource("cart"), true);
        running.send(&id, update("registry.example/cart:2")).await.unwrap();
        let updating = running.service(&id).await;
        let mut snapshot = failed.snapshot.unwrap();
        snapshot.observed_spec_hash = Some(updating.desired_spec_hash.clone());
        snapshot.ready_condition = Condition::because(ConditionStatus::False, unkeepable(), unkeepable());
        snapshot.consecutive_failures = 1;
        let taken = TakeObservation {
            snapshot,
            observation: 0,
            spec_version: updating.spec_version,
            failure_threshold: 1,
        };
        running.send(&id, ServiceCommand::TakeObservation(taken)).await.unwrap();
        assert_eq!(running.service(&id).await.failure.unwrap().message, unkeepable(), "{database}");
        running.cluster.set_broken(resource("cart"), false);
        running.quiet().await;
        let sql = "SELECT status_reason, status_message FROM hive_services WHERE status = 'FAILED'";
        let rows = store.own_rows("test.failed", sql, Vec::new()).await.unwrap();
        let length = |column: &str| rows[0].text(column).unwrap().chars().count();
        assert_eq!((length("status_reason"), length("status_message")), (128, 4001), "{database}");

        running.send(&id, ServiceCommand::Delete(DeleteAsked::default())).await.unwrap();
        running.reaches(&id, ServiceStatus::Deleted).await;
        running.app.stop().await;
    }
}

/// What another transaction has committed since this one first read is what a handler begins with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_locked_as_they_are_now() {
    // On SQLite nobody else can write meanwhile.
    for database in ["postgres", "mysql"] {
        let running =
            Running::with(database, "local", settings(), at_once(), |builder| builder.without_workers())
                .await;
        let store = running.app.store().clone();
        let mut transaction = store.open_transaction().await.unwrap();
        let mut tables = transaction.own_tables();
        let sql = "SELECT namespace FROM hive_namespaces WHERE namespace = 'shop'";
        assert!(tables.rows("test.first", sql, Vec::new()).await.unwrap().is_empty());
        let insert = "INSERT INTO hive_namespaces (namespace, version, present, validated_at) VALUES ('shop', 1, 1, ?)";
        store.own_execute("test.other", insert, vec![chrono::Utc::now().into()]).await.unwrap();
        assert_eq!(tables.locked_rows("test.locked", sql, Vec::new()).await.unwrap().len(), 1, "{database}");
        transaction.finish().await.unwrap();
        running.app.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_without_a_position_are_not_lost_by_a_rebuild_on_sqlite() {
    facts_without_a_position_are_not_lost_by_a_rebuild("sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_without_a_position_are_not_lost_by_a_rebuild_on_postgres() {
    facts_without_a_position_are_not_lost_by_a_rebuild("postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_without_a_position_are_not_lost_by_a_rebuild_on_mysql() {
    facts_without_a_position_are_not_lost_by_a_rebuild("mysql").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_beside_a_running_hive_loses_nothing_on_sqlite() {
    a_rebuild_beside_a_running_hive_loses_nothing("sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_beside_a_running_hive_loses_nothing_on_postgres() {
    a_rebuild_beside_a_running_hive_loses_nothing("postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_beside_a_running_hive_loses_nothing_on_mysql() {
    a_rebuild_beside_a_running_hive_loses_nothing("mysql").await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_goes_in_small_steps_on_sqlite() {
    a_rebuild_goes_in_small_steps("sqlite").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_goes_in_small_steps_on_postgres() {
    a_rebuild_goes_in_small_steps("postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_goes_in_small_steps_on_mysql() {
    a_rebuild_goes_in_small_steps("mysql").await;
}
