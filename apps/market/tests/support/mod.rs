//! What the tests of the market share: a database and a broker of their own, and who watches.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(dead_code, unreachable_pub, reason = "not every test file uses all of it")]

pub mod log;
pub mod management;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use towpath::ids::EventId;
use towpath::letters::{Letter, LetterFilter};
use towpath::ports::broker::{
    Binding, Broker, Deliveries, Destination, Message, Published, Queue, Received, Settlement, Subscription,
    Topology,
};
use towpath::sqlx::{self, Row as _};
use towpath::{
    BrokerUrl, Delivering, DeliveringOutcome, LocalBroker, LocalOptions, RabbitMq, Scratch, SqlStore,
    StoreOptions, Towpath, Watch,
};
use towpath_market::topology::EXCHANGE;
use towpath_market::{Market, Order, Product, Settings};
use towpath_testkit::VirtualClock;

use management::VirtualHost;

/// Which database and broker a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pair {
    /// The contract's home.
    MariaDbRabbitMq,
    PostgresRabbitMq,
    /// The embedded default.
    SqliteLocal,
}

/// A fresh database and a broker whose frozen names nobody else uses: a virtual host, or queues in the database.
pub struct Stage {
    pub pair: Pair,
    scratch: Option<Scratch>,
    pub store_url: String,
    host: Option<VirtualHost>,
    pub broker_url: String,
}

/// A market and what it stands on.
pub struct Shop {
    pub app: Towpath,
    pub market: Market,
    pub seen: Arc<Seen>,
}

impl Stage {
    pub async fn new(pair: Pair) -> Self {
        let (server, host) = match pair {
            Pair::MariaDbRabbitMq => (variable("TOWPATH_TEST_MYSQL_URL"), Some(VirtualHost::make().await)),
            Pair::PostgresRabbitMq => {
                (variable("TOWPATH_TEST_POSTGRES_URL"), Some(VirtualHost::make().await))
            }
            Pair::SqliteLocal => {
                (format!("sqlite://{}", std::env::temp_dir().join("towpath.db").display()), None)
            }
        };
        let scratch = Scratch::make(&server).await.expect("a scratch database");
        let broker_url = host.as_ref().map_or_else(|| "local:".to_owned(), |host| host.url.clone());
        Self { pair, store_url: scratch.url().to_owned(), scratch: Some(scratch), host, broker_url }
    }

    pub fn is_local(&self) -> bool {
        self.host.is_none()
    }

    /// The virtual host, where the broker is RabbitMQ.
    pub fn host(&self) -> Option<&VirtualHost> {
        self.host.as_ref()
    }

    pub async fn open(&self) -> Shop {
        self.open_with(settings()).await
    }

    pub async fn open_with(&self, settings: Settings) -> Shop {
        self.try_open(&self.broker_url, settings).await.expect("start")
    }

    pub async fn try_open(&self, broker_url: &str, settings: Settings) -> Result<Shop, towpath::StartError> {
        self.start(Towpath::builder(), broker_url, settings).await
    }

    /// The same, on a Towpath that differs.
    pub async fn open_by(&self, builder: towpath::Builder) -> Shop {
        self.start(builder, &self.broker_url, settings()).await.expect("start")
    }

    async fn start(
        &self,
        builder: towpath::Builder,
        broker_url: &str,
        settings: Settings,
    ) -> Result<Shop, towpath::StartError> {
        let seen = Arc::new(Seen::default());
        let builder = builder
            .store(&self.store_url)
            .broker(broker_url)
            .scan(Duration::from_millis(50))
            .lease(Duration::from_secs(3));
        // Told last: what a test has been told of stands in the log by then.
        let builder = Market::install(builder, &settings).watch(Arc::clone(&seen) as Arc<dyn Watch>);
        let app = builder.start().await?;
        let market = Market::open(&app, settings);
        Ok(Shop { app, market, seen })
    }

    /// A market whose broker is away: nothing is published or handled.
    pub async fn open_without_a_broker(&self, settings: Settings) -> Shop {
        self.try_open("amqp://127.0.0.1:1", settings).await.expect("start")
    }

    /// A market with the contract's own delays between attempts, on a clock that only the test moves.
    pub async fn open_at(&self, clock: &Arc<VirtualClock>) -> Shop {
        let mut settings = settings();
        settings.outbox.retries = Settings::default().outbox.retries;
        let builder = Towpath::builder().clock(clock.clone());
        self.start(builder, &self.broker_url, settings).await.expect("start")
    }

    /// A market that publishes and handles nothing.
    pub async fn open_without_workers(&self) -> Shop {
        self.open_without_workers_with(settings()).await
    }

    pub async fn open_without_workers_with(&self, settings: Settings) -> Shop {
        self.open_without_workers_by(Towpath::builder(), settings).await
    }

    pub async fn open_without_workers_by(&self, builder: towpath::Builder, settings: Settings) -> Shop {
        let builder = builder.store(&self.store_url).broker(&self.broker_url).without_workers();
        let app = Market::install(builder, &settings).start().await.expect("start");
        let market = Market::open(&app, settings);
        Shop { app, market, seen: Arc::default() }
    }

    /// The same with other connections.
    pub async fn open_with_store(&self, options: StoreOptions) -> Shop {
        self.open_by(Towpath::builder().store_options(options).without_workers()).await
    }

    /// A handle of the test's own on the broker.
    pub async fn broker(&self) -> Arc<dyn Broker> {
        match self.pair {
            Pair::SqliteLocal => {
                let store = SqlStore::connect(&self.store_url).await.unwrap();
                let options = LocalOptions { lease: Duration::from_secs(30), ..LocalOptions::default() };
                Arc::new(LocalBroker::over(Arc::new(store), options))
            }
            _ => Arc::new(RabbitMq::connect(&BrokerUrl::parse(&self.broker_url).unwrap()).unwrap()),
        }
    }

    /// Gets a copy of everything that is published from now on.
    pub async fn tap(&self) -> Tap {
        let broker = self.broker().await;
        let topology = Topology {
            exchanges: Vec::new(),
            queues: vec![Queue { name: "test.tap".to_owned(), arguments: Vec::new() }],
            bindings: vec![Binding {
                queue: "test.tap".to_owned(),
                exchange: EXCHANGE.to_owned(),
                routing_key: "#".to_owned(),
            }],
        };
        broker.declare(&topology).await.unwrap();
        let subscription =
            Subscription { queue: "test.tap".to_owned(), group: "test".to_owned(), prefetch: 50 };
        Tap { deliveries: broker.subscribe(&subscription).await.unwrap(), broker }
    }

    /// Publishes a body by hand, straight to a queue.
    pub async fn publish(&self, queue: &str, message_id: &str, body: &str) {
        self.publish_often(queue, message_id, body, 1).await;
    }

    /// The same, so many times.
    pub async fn publish_often(&self, queue: &str, message_id: &str, body: &str, count: usize) {
        self.publish_as("application/json", queue, message_id, body, count).await;
    }

    /// The same, under another content type.
    pub async fn publish_as(
        &self,
        content_type: &str,
        queue: &str,
        message_id: &str,
        body: &str,
        count: usize,
    ) {
        let message = Message {
            destination: Destination { exchange: String::new(), routing_key: queue.to_owned() },
            message_id: message_id.to_owned(),
            message_type: String::new(),
            key: String::new(),
            occurred_at: chrono::Utc::now(),
            content_type: content_type.to_owned(),
            headers: Vec::new(),
            body: body.as_bytes().to_vec(),
        };
        let broker = self.broker().await;
        let left = AtomicUsize::new(count);
        // A start does not wait for a broker that is slow to answer: the queue may be there a little later.
        eventually(&format!("{queue} takes {count} messages"), || async {
            let some = vec![message.clone(); left.load(Ordering::SeqCst).min(100)];
            let outcomes = broker.publish(&some, Duration::from_secs(30)).await;
            let (taken, others): (Vec<_>, Vec<_>) =
                outcomes.into_iter().partition(|outcome| *outcome == Published::Confirmed);
            let came_too_early = |outcome: &Published| {
                matches!(outcome, Published::Unroutable { .. } | Published::NotSent { .. })
            };
            assert!(others.iter().all(came_too_early), "{others:?}");
            (left.fetch_sub(taken.len(), Ordering::SeqCst) == taken.len()).then_some(())
        })
        .await;
        broker.close().await;
    }

    /// Makes a routing key lead nowhere.
    pub async fn unbind(&self, queue: &str, routing_key: &str) {
        match &self.host {
            Some(host) => host.unbind(EXCHANGE, queue, routing_key).await,
            None => {
                let mut connection = self.plain_sqlite().await;
                for sql in [
                    "DELETE FROM local_bindings WHERE queue = ? AND routing_key = ?",
                    // What others have read of the topology is old by this.
                    "UPDATE local_topology SET revision = revision + 1",
                ] {
                    let query = sqlx::query(sql);
                    let query = if sql.contains('?') { query.bind(queue).bind(routing_key) } else { query };
                    query.execute(&mut connection).await.unwrap();
                }
            }
        }
    }

    async fn plain_sqlite(&self) -> sqlx::SqliteConnection {
        use sqlx::ConnectOptions as _;
        // A test may come before the market.
        let file = std::path::Path::new(self.store_url.trim_start_matches("sqlite://"));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let options: sqlx::sqlite::SqliteConnectOptions = self.store_url.parse().unwrap();
        options.create_if_missing(true).busy_timeout(Duration::from_secs(30)).connect().await.unwrap()
    }

    /// Runs statements by a plain client, as they stand.
    pub async fn command(&self, sql: &str) {
        use sqlx::Connection as _;
        let command = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()));
        if self.store_url.starts_with("mysql") {
            let mut connection = sqlx::MySqlConnection::connect(&self.store_url).await.unwrap();
            command.execute(&mut connection).await.unwrap();
        } else if self.store_url.starts_with("postgres") {
            let mut connection = sqlx::PgConnection::connect(&self.store_url).await.unwrap();
            command.execute(&mut connection).await.unwrap();
        } else {
            command.execute(&mut self.plain_sqlite().await).await.unwrap();
        }
    }

    /// Reads texts by a plain client: a connection of the driver's own, without anything of ours.
    pub async fn plain(&self, sql: &str) -> Vec<Vec<String>> {
        use sqlx::Connection as _;
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        macro_rules! texts {
            ($rows:expr) => {
                $rows
                    .iter()
                    .map(|row| {
                        (0..row.len())
                            .map(|index| row.get::<Option<String>, _>(index).unwrap_or_default())
                            .collect()
                    })
                    .collect()
            };
        }
        if self.store_url.starts_with("mysql") {
            let mut connection = sqlx::MySqlConnection::connect(&self.store_url).await.unwrap();
            texts!(sqlx::query(sql).fetch_all(&mut connection).await.unwrap())
        } else if self.store_url.starts_with("postgres") {
            let mut connection = sqlx::PgConnection::connect(&self.store_url).await.unwrap();
            texts!(sqlx::query(sql).fetch_all(&mut connection).await.unwrap())
        } else {
            texts!(sqlx::query(sql).fetch_all(&mut self.plain_sqlite().await).await.unwrap())
        }
    }

    /// An expression as a text, in SQL.
    pub fn as_text(&self, expression: &str) -> String {
        let text = if self.pair == Pair::MariaDbRabbitMq { "CHAR" } else { "text" };
        format!("CAST({expression} AS {text})")
    }

    /// A moment an hour before another one, in SQL.
    pub fn an_hour_before(&self, moment: &str) -> String {
        match self.pair {
            Pair::MariaDbRabbitMq => format!("{moment} - INTERVAL 1 HOUR"),
            Pair::PostgresRabbitMq => format!("{moment} - interval '1 hour'"),
            Pair::SqliteLocal => format!("{moment} - 3600000000"),
        }
    }

    /// The frozen outbox: type, status and failures of each row, in the order they were written.
    pub async fn outbox(&self) -> Vec<(String, String, u32)> {
        let sql = match self.pair {
            Pair::MariaDbRabbitMq => {
                "SELECT event_type, status, CAST(retry_count AS CHAR) FROM outbox_events ORDER BY id"
            }
            _ => "SELECT event_type, status, CAST(retry_count AS text) FROM outbox_events ORDER BY id",
        };
        let rows = self.plain(sql).await;
        rows.into_iter().map(|row| (row[0].clone(), row[1].clone(), row[2].parse().unwrap())).collect()
    }

    /// The statuses of the rows of one type.
    pub async fn outbox_of(&self, event_type: &str) -> Vec<String> {
        let rows = self.outbox().await;
        rows.into_iter().filter(|(found, ..)| found == event_type).map(|(_, status, _)| status).collect()
    }

    /// The frozen log: consumers, in no order.
    pub async fn consumed(&self) -> Vec<String> {
        let rows = self.plain("SELECT consumer FROM event_consume_log ORDER BY consumer").await;
        rows.into_iter().map(|row| row[0].clone()).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let (scratch, host) = (self.scratch.take(), self.host.take());
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                if let Some(host) = host {
                    host.remove().await;
                }
                if let Some(scratch) = scratch {
                    let _ = scratch.remove().await;
                }
            });
        });
        let _ = cleaner.join();
    }
}

impl Shop {
    pub async fn stop(self) {
        self.app.stop().await;
    }

    /// A product that is on sale.
    pub async fn product(&self) -> Product {
        self.market.offer(10002, "A bicycle", "88.50".parse().unwrap()).await.unwrap()
    }

    /// A pending order.
    pub async fn order(&self) -> Order {
        let product = self.product().await;
        self.market.place(product.product_id, 10001).await.unwrap()
    }

    /// Dead letters of the market's dead-letter queue.
    pub async fn dead(&self) -> Vec<Letter> {
        let filter = LetterFilter { queue: Some("order.dlq.queue".to_owned()), ..LetterFilter::default() };
        self.app.dead_letters().list(&filter, 0, 100).await.unwrap()
    }
}

/// Settings that suit a test: the contract's, but quick, and without the job.
pub fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.order.timeout.scan_enabled = false;
    settings.outbox.retries = vec![Duration::from_millis(50); 3];
    settings.outbox.scan = Duration::from_millis(200);
    settings
}

/// The same with another time to pay.
pub fn pending(pending: Duration) -> Settings {
    let mut settings = settings();
    settings.order.timeout.pending = pending;
    settings
}

/// The same with the job, which looks so often.
pub fn with_the_job(time_to_pay: Duration, scan: Duration) -> Settings {
    let mut settings = pending(time_to_pay);
    settings.order.timeout.scan_enabled = true;
    settings.order.timeout.scan = scan;
    settings
}

/// Messages as they are published.
pub struct Tap {
    deliveries: Box<dyn Deliveries>,
    broker: Arc<dyn Broker>,
}

impl Tap {
    pub async fn next(&self) -> Received {
        let next = tokio::time::timeout(Duration::from_secs(20), self.deliveries.next()).await;
        let next = next.expect("a message within 20 seconds").unwrap();
        self.deliveries.settle(next.tag, Settlement::Acknowledge).await.unwrap();
        next
    }

    /// The next message of a type.
    pub async fn next_of(&self, event_type: &str) -> Received {
        loop {
            let next = self.next().await;
            if next.message_type.as_deref() == Some(event_type) {
                return next;
            }
        }
    }

    pub async fn close(self) {
        self.broker.close().await;
    }
}

/// What was told of deliveries.
#[derive(Default)]
pub struct Seen {
    outcomes: Mutex<Vec<(String, Option<EventId>, &'static str)>>,
    /// Why a handler gave up a message, by the message's id.
    reasons: Mutex<Vec<(String, String, String)>>,
    deaths: Mutex<Vec<Option<EventId>>>,
}

impl Watch for Seen {
    fn delivered(&self, delivering: &Delivering<'_>) {
        let outcome = match delivering.outcome {
            DeliveringOutcome::Handled => "handled",
            DeliveringOutcome::Duplicate => "duplicate",
            DeliveringOutcome::Retried { .. } => "retried",
            DeliveringOutcome::GivenUp { .. } => "given up",
        };
        if let DeliveringOutcome::GivenUp { reason, .. } = delivering.outcome {
            let message_id = delivering.message.message_id.clone().unwrap_or_default();
            let told = (delivering.handler.to_owned(), message_id, reason.to_owned());
            self.reasons.lock().unwrap().push(told);
        }
        let told = (delivering.handler.to_owned(), delivering.event_id, outcome);
        self.outcomes.lock().unwrap().push(told);
    }

    fn died(&self, _: &Received, event_id: Option<EventId>) {
        self.deaths.lock().unwrap().push(event_id);
    }
}

impl Seen {
    /// How often a handler had an outcome.
    pub fn count(&self, handler: &str, outcome: &str) -> usize {
        let outcomes = self.outcomes.lock().unwrap();
        outcomes.iter().filter(|(by, _, what)| by == handler && *what == outcome).count()
    }

    /// Why a handler gave up a message.
    pub fn reason_of(&self, handler: &str, message_id: &str) -> Option<String> {
        let reasons = self.reasons.lock().unwrap();
        let told = reasons.iter().find(|(by, of, _)| by == handler && of == message_id);
        told.map(|(_, _, reason)| reason.clone())
    }

    /// Waits until a handler has had an outcome so often.
    pub async fn until(&self, handler: &str, outcome: &str, count: usize) {
        eventually(&format!("{handler}: {count} {outcome}"), || async {
            (self.count(handler, outcome) >= count).then_some(())
        })
        .await;
    }

    /// How many messages were read from dead-letter queues.
    pub fn deaths(&self) -> usize {
        self.deaths.lock().unwrap().len()
    }
}

/// Waits until a question is answered with `Some`, for at most three minutes: the machine may be busy, and what
/// was sent and not confirmed is sent again after 5 s, 30 s and 2 minutes.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let waiting = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match tokio::time::timeout(Duration::from_secs(180), waiting).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what} did not come about within three minutes"),
    }
}

pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run `cargo xtask test`, or `eval \"$(cargo xtask services env)\"` first")
    })
}

/// Makes a test of each function, on each pair.
#[macro_export]
macro_rules! on_every_pair {
    ($($case:ident),+ $(,)?) => {
        on_every_pair!(@pair mariadb_rabbitmq, MariaDbRabbitMq, $($case),+);
        on_every_pair!(@pair postgres_rabbitmq, PostgresRabbitMq, $($case),+);
        on_every_pair!(@pair sqlite_local, SqliteLocal, $($case),+);
    };
    (@pair $module:ident, $pair:ident, $($case:ident),+) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $case() {
                    let stage = super::support::Stage::new(super::support::Pair::$pair).await;
                    super::$case(&stage).await;
                }
            )+
        }
    };
}
