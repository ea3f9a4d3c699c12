//! What hive's tests share: a database, a broker and a simulated cluster of the test's own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(dead_code, unreachable_pub, reason = "not every test uses all of it")]

use std::sync::Arc;
use std::time::Duration;

use towpath::ids::AggregateKey;
use towpath::retry::RetryPolicy;
use towpath::{Aggregate, Builder, RecordedEvent, Scratch, SendError, SqlStore, Towpath, sqlx};
use towpath_hive::gateway::simulated::{Fates, SimulatedCluster, SimulatedSettings};
use towpath_hive::service::{Service, ServiceAsked, ServiceCommand, ServiceStatus, UpdateAsked};
use towpath_hive::spec::ResourceName;
use towpath_hive::{Hive, HiveSettings};

/// A scratch database that is removed with the test.
pub struct Fresh {
    scratch: Option<Scratch>,
    url: String,
}

impl Fresh {
    pub async fn on(database: &str) -> Self {
        let variable = match database {
            "sqlite" => None,
            "postgres" => Some("TOWPATH_TEST_POSTGRES_URL"),
            _ => Some("TOWPATH_TEST_MYSQL_URL"),
        };
        let server = variable.map_or_else(
            || format!("sqlite://{}", std::env::temp_dir().join("towpath.db").display()),
            |variable| {
                std::env::var(variable)
                    .unwrap_or_else(|_| panic!("{variable} is not set: run `cargo xtask test`"))
            },
        );
        let scratch = Scratch::make(&server).await.expect("a scratch database");
        Self { url: scratch.url().to_owned(), scratch: Some(scratch) }
    }

    /// A PostgreSQL whose clock is ten days behind that of this host: it finds functions of the test's own schema first.
    pub async fn ten_days_behind() -> Self {
        let mut fresh = Self::on("postgres").await;
        let (server, name) = fresh.url.split_once("options[search_path]=").unwrap();
        let store = SqlStore::connect(server.trim_end_matches(['?', '&'])).await.unwrap();
        for function in ["clock_timestamp", "statement_timestamp"] {
            let sql = format!(
                "CREATE FUNCTION {name}.{function}() RETURNS timestamptz LANGUAGE sql STABLE AS \
                 'SELECT pg_catalog.{function}() - interval ''10 days'''"
            );
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(store.postgres_pool().unwrap()).await.unwrap();
        }
        store.close().await;
        fresh.url = format!("{},pg_catalog", fresh.url);
        fresh
    }

    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let Some(scratch) = self.scratch.take() else { return };
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _ = runtime.block_on(scratch.remove());
        });
        let _ = cleaner.join();
    }
}

/// Everything on the cluster happens at once, and well.
pub fn at_once() -> SimulatedSettings {
    let fates = Fates {
        settles_after: Duration::ZERO,
        settles_within: Duration::ZERO,
        deleted_after: Duration::ZERO,
        ..Fates::default()
    };
    SimulatedSettings { fates, ..SimulatedSettings::default() }
}

/// Settings with names of the test's own, so that tests do not meet on a broker.
pub fn settings() -> HiveSettings {
    let channel = format!("hive{}", &uuid::Uuid::new_v4().simple().to_string()[..16]);
    HiveSettings { channel, interval: Duration::from_millis(500), ..HiveSettings::default() }
}

/// A hive that runs.
pub struct Running {
    pub app: Towpath,
    pub hive: Hive,
    pub cluster: SimulatedCluster,
    pub fresh: Option<Fresh>,
}

impl Running {
    pub async fn on(database: &str, broker: &str) -> Self {
        Self::with(database, broker, settings(), at_once(), |builder| builder).await
    }

    pub async fn with(
        database: &str,
        broker: &str,
        settings: HiveSettings,
        cluster: SimulatedSettings,
        change: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        // `TOWPATH_LOG=info` shows what went on when a test fails.
        if let Ok(filter) = std::env::var("TOWPATH_LOG") {
            let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        }
        let fresh = match database {
            "postgres, ten days behind" => Fresh::ten_days_behind().await,
            database => Fresh::on(database).await,
        };
        let cluster = SimulatedCluster::new(cluster).unwrap();
        let hive = Hive::new(settings, Arc::new(cluster.clone()));
        let broker = match broker {
            "local" => "local:".to_owned(),
            "rabbitmq" => std::env::var("TOWPATH_TEST_AMQP_URL").expect("TOWPATH_TEST_AMQP_URL"),
            _ => std::env::var("TOWPATH_TEST_KAFKA_URL").expect("TOWPATH_TEST_KAFKA_URL"),
        };
        let builder = Towpath::builder()
            .store(fresh.url())
            .broker(&broker)
            .scan(Duration::from_millis(50))
            .command_retries(RetryPolicy::Fixed(vec![Duration::from_millis(30); 3]));
        let app = change(hive.install(builder)).start().await.expect("start");
        Self { app, hive, cluster, fresh: Some(fresh) }
    }

    pub async fn create(&self, name: &str) -> String {
        let id = format!("shop.{name}");
        self.send(&id, ServiceCommand::Create(asked(name))).await.expect("created");
        id
    }

    pub async fn send(&self, id: &str, command: ServiceCommand) -> Result<towpath::Receipt, SendError> {
        self.app.send::<Service>(id, command).await
    }

    pub async fn service(&self, id: &str) -> Service {
        self.app.load::<Service>(id).await.unwrap().expect("it exists").value
    }

    pub async fn reaches(&self, id: &str, status: ServiceStatus) -> Service {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let service = self.service(id).await;
            if service.status == Some(status) {
                return service;
            }
            if tokio::time::Instant::now() > deadline {
                let around = self.around().await;
                panic!(
                    "{id} does not become {}: it is {service:?}, and around it {around:#?}",
                    status.as_str()
                );
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Where things are: for who asks why something did not happen.
    async fn around(&self) -> Vec<String> {
        let store = self.app.store();
        let mut around = vec![format!("{:?}", self.app.observers())];
        for (what, sql) in [
            (
                "facts",
                "SELECT CONCAT('outbox ', channel, ' ', status) AS text, COUNT(*) AS many FROM event_outbox GROUP BY channel, status",
            ),
            (
                "messages",
                "SELECT CONCAT(queue, ' ', COALESCE(claimed_by_id, 'free')) AS text, COUNT(*) AS many FROM local_messages GROUP BY queue, claimed_by_id",
            ),
            (
                "queues",
                "SELECT CONCAT(name, ' ', COALESCE(claimed_by_id, 'nobody')) AS text, 1 AS many FROM local_queues",
            ),
            (
                "handled",
                "SELECT CONCAT(handler, ' ', status) AS text, COUNT(*) AS many FROM inbox GROUP BY handler, status",
            ),
            (
                "commands",
                "SELECT CONCAT(command_type, ' ', status) AS text, COUNT(*) AS many FROM command_box GROUP BY command_type, status",
            ),
            (
                "targets",
                "SELECT CONCAT(subject_id, ' ', goal, ' ', wanted, ' ', due_at) AS text, version AS many FROM observations",
            ),
            (
                "leases",
                "SELECT CONCAT(lease_name, ' ', holder_id, ' ', expires_at) AS text, epoch AS many FROM leases WHERE lease_name NOT LIKE 'partition/%'",
            ),
            (
                "work",
                "SELECT CONCAT(command, ' ', time_ms, ' ', COALESCE(state, ''), ' ', COALESCE(info, '')) AS text, id AS many FROM information_schema.processlist WHERE db = DATABASE()",
            ),
        ] {
            match store.own_rows("test.around", sql, Vec::new()).await {
                Ok(rows) => around.extend(
                    rows.iter().map(|row| format!("{what}: {:?} {:?}", row.text("text"), row.long("many"))),
                ),
                Err(error) => around.push(format!("{what}: {error:?}")),
            }
        }
        around
    }

    pub async fn events(&self, kind: &str, id: &str) -> Vec<RecordedEvent> {
        let key = AggregateKey::new(kind, id).unwrap();
        self.app.events_of(&key, 0, 1000).await.unwrap()
    }

    pub async fn names(&self, id: &str) -> Vec<String> {
        let events = self.events(Service::KIND, id).await;
        events.iter().map(|event| event.envelope.event_type.to_string()).collect()
    }
}

/// Whether a consumer takes facts of a type.
type Takes = fn(&str) -> bool;

/// Who takes which facts in: the consumers of hive, by the channels that it declares.
const HANDLERS: [(&str, Takes); 3] = [
    ("hive-views", |name| {
        name.starts_with("service.")
            || ["NamespaceValidated", "RevisionCreated", "RouteAligned"].contains(&name)
    }),
    ("hive-observations", |name| name.starts_with("KnativeService")),
    ("hive-records", |name| {
        [
            "service.creation.requested",
            "service.update.requested",
            "service.deletion.requested",
            "service.spec.accepted",
        ]
        .contains(&name)
    }),
];

impl Running {
    /// Waits until nothing follows any more: every fact was taken in by everybody who takes it, no command waits, and a
    /// look at every service that is not DELETED has led to nothing.
    pub async fn quiet(&self) {
        let mut before = self.all_taken_in().await;
        for _ in 0..20 {
            self.look_at_all().await;
            let head = self.all_taken_in().await;
            if head == before {
                return;
            }
            before = head;
        }
        panic!("there is no end of facts");
    }

    /// Waits until every fact was taken in, and what follows was done; answers how many facts there are.
    async fn all_taken_in(&self) -> u64 {
        let store = self.app.store();
        eventually("everything is taken in", || async {
            let backlog = store.backlog(&[], chrono::Utc::now()).await.unwrap();
            let commands = backlog.commands;
            let waiting = commands.pending + commands.processing + commands.retrying + backlog.log.pending;
            if waiting > 0 {
                return None;
            }
            let head = backlog.log.head;
            let facts = store.events_between(1, head).await.unwrap();
            for (handler, takes) in HANDLERS {
                let sql = "SELECT COUNT(*) AS taken FROM inbox WHERE handler = ? AND status = 'HANDLED'";
                let rows = store.own_rows("test.taken", sql, vec![handler.into()]).await.unwrap();
                let taken = rows[0].count("taken").unwrap();
                let known = facts.iter().filter(|fact| takes(fact.envelope.event_type.as_str())).count();
                if taken != known as u64 {
                    return None;
                }
            }
            // What was taken in last may have led to commands and facts since the first look.
            let again = store.backlog(&[], chrono::Utc::now()).await.unwrap();
            (again.commands == commands && again.log == backlog.log).then_some(head)
        })
        .await
    }

    /// Has every service looked at, and waits until that was done.
    async fn look_at_all(&self) {
        let store = self.app.store();
        let count = "SELECT COUNT(*) AS targets FROM observations";
        let rows = store.own_rows("test.targets", count, Vec::new()).await.unwrap();
        let targets = rows[0].count("targets").unwrap();
        let looks = || self.app.observers().first().map_or(0, |standing| standing.looks - standing.failures);
        let before = looks();
        let sql = "UPDATE observations SET due_at = ?";
        store.own_execute("test.due", sql, vec![chrono::DateTime::UNIX_EPOCH.into()]).await.unwrap();
        self.hive.look_now();
        eventually("all are looked at", || async { (looks() >= before + targets).then_some(()) }).await;
    }
}

pub fn asked(name: &str) -> ServiceAsked {
    ServiceAsked {
        name: name.to_owned(),
        namespace: "shop".to_owned(),
        image: "registry.example/cart:1".to_owned(),
        ..ServiceAsked::default()
    }
}

pub fn update(image: &str) -> ServiceCommand {
    ServiceCommand::Update(UpdateAsked { image: image.to_owned(), ..UpdateAsked::default() })
}

pub fn resource(name: &str) -> ResourceName {
    ResourceName::new("shop", name)
}

/// How long something is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a question is answered with `Some`, for at most thirty seconds.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let waiting = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what} did not come about"),
    }
}
