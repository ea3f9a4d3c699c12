//! What hive's tests share: a database, a broker and a simulated cluster of the test's own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(dead_code, unreachable_pub, reason = "not every test uses all of it")]

use std::sync::Arc;
use std::time::Duration;

use towpath::ids::AggregateKey;
use towpath::retry::RetryPolicy;
use towpath::{Aggregate, Builder, RecordedEvent, Scratch, SendError, Towpath};
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
        let fresh = Fresh::on(database).await;
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
        let what = format!("{id} becomes {}", status.as_str());
        eventually(&what, || async {
            let service = self.service(id).await;
            (service.status == Some(status)).then_some(service)
        })
        .await
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
    match tokio::time::timeout(Duration::from_secs(30), waiting).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what} did not come about"),
    }
}
