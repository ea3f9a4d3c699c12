//! What the tests of delivery share: an application on a database and a broker, with a table of effects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use towpath::format::Formats;
use towpath::ports::broker::{
    Argument, Binding, Exchange, ExchangeKind, Message, Published, Queue, Topology,
};
use towpath::retry::RetryPolicy;
use towpath::{BrokerUrl, Builder, Channel, ChannelPolicy, Consumer, RabbitMq, Towpath, sqlx};

use towpath_testkit::broker::{OwnKafka, TcpProxy};

use super::Fresh;

/// Which broker a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broker {
    Local,
    RabbitMq,
    #[cfg(feature = "kafka")]
    Kafka,
}

/// A database, a broker, and an exchange of the test's own.
pub struct Stage {
    pub fresh: Fresh,
    pub broker: Broker,
    channel: String,
}

impl Stage {
    pub async fn new(database: &str, broker: Broker) -> Self {
        Self::on(Fresh::on(database).await, broker)
    }

    pub fn on(fresh: Fresh, broker: Broker) -> Self {
        let channel = format!("t{}", &uuid::Uuid::new_v4().simple().to_string()[..20]);
        Self { fresh, broker, channel }
    }

    /// The same database and broker under another channel.
    pub fn again(&self) -> Self {
        Self { fresh: Fresh::shared(&self.fresh), broker: self.broker, channel: self.channel.clone() }
    }

    /// The one that another process has made.
    pub fn at(store: &str, broker: &str, channel: &str) -> Self {
        let broker = match broker.split(':').next() {
            Some("local") => Broker::Local,
            #[cfg(feature = "kafka")]
            Some("kafka") => Broker::Kafka,
            _ => Broker::RabbitMq,
        };
        Self { fresh: Fresh::at(store), broker, channel: channel.to_owned() }
    }

    /// Host and port of the broker's server, where it has one.
    pub fn server(&self) -> Option<String> {
        match self.broker {
            Broker::Local => None,
            // It tells its clients its own address, and they would go past a proxy. See `own_server`.
            #[cfg(feature = "kafka")]
            Broker::Kafka => None,
            Broker::RabbitMq => {
                let url = self.broker_url();
                let host = url.rsplit_once('@').map_or(url.as_str(), |(_, host)| host).to_owned();
                Some(host.split('/').next().unwrap_or_default().to_owned())
            }
        }
    }

    /// A server of this stage's own behind a proxy that it knows, where there is a program for it.
    pub async fn own_server(&self) -> Option<(TcpProxy, OwnKafka)> {
        match self.broker {
            Broker::Local | Broker::RabbitMq => None,
            #[cfg(feature = "kafka")]
            Broker::Kafka => {
                let (program, port) = (OwnKafka::program()?, OwnKafka::free_port());
                let proxy = TcpProxy::to(&format!("127.0.0.1:{port}")).await;
                let server = OwnKafka::start(&program, port, proxy.address()).await;
                Some((proxy, server))
            }
        }
    }

    /// The broker's URL by way of a proxy.
    pub fn broker_url_through(&self, proxy: std::net::SocketAddr) -> String {
        match (self.broker, self.server()) {
            #[cfg(feature = "kafka")]
            (Broker::Kafka, _) => format!("kafka://{proxy}"),
            (_, Some(server)) => self.broker_url().replace(&server, &proxy.to_string()),
            (_, None) => self.broker_url(),
        }
    }

    pub fn tells_unroutable(&self) -> bool {
        match self.broker {
            #[cfg(feature = "kafka")]
            Broker::Kafka => false,
            Broker::Local | Broker::RabbitMq => true,
        }
    }

    /// Whether the broker has dead-letter queues of its own.
    pub fn has_dead_letters(&self) -> bool {
        // The same brokers that route, and so tell what no queue wants.
        self.tells_unroutable()
    }

    /// Restarts the broker's server, where the tests have one that keeps its messages meanwhile.
    pub async fn restart_broker(&self) {
        match self.broker {
            Broker::Local => {}
            Broker::RabbitMq => restart("rabbitmq").await,
            // It keeps its messages in memory, so it is frozen instead.
            #[cfg(feature = "kafka")]
            Broker::Kafka => {}
        }
    }

    /// Lets RabbitMQ take nothing any more, or again, where the tests have one of their own.
    pub async fn raise_alarm(&self, on: bool) {
        let Some(tool) = towpath_testkit::under_control("TOWPATH_TEST_AMQP_CTL") else { return };
        let watermark = if on { "0.0000001" } else { "0.4" };
        let command = format!("{tool} set_vm_memory_high_watermark {watermark}");
        let output = tokio::process::Command::new("sh").args(["-c", &command]).output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Restarts the database server, where the tests have one of their own.
    pub async fn restart_database(&self) {
        let url = self.fresh.url();
        if url.starts_with("postgres") {
            restart("postgres").await;
        } else if url.starts_with("mysql") {
            restart("mariadb").await;
        }
    }

    /// The channel, which is also the name of its exchange.
    pub fn channel(&self) -> &str {
        &self.channel
    }

    pub fn broker_url(&self) -> String {
        match self.broker {
            Broker::Local => "local:".to_owned(),
            Broker::RabbitMq => std::env::var("TOWPATH_TEST_AMQP_URL").expect("run `cargo xtask test`"),
            #[cfg(feature = "kafka")]
            Broker::Kafka => std::env::var("TOWPATH_TEST_KAFKA_URL").expect("run `cargo xtask test`"),
        }
    }

    /// A builder with the channel, quick in everything.
    pub fn builder(&self) -> Builder {
        let policy = ChannelPolicy {
            scan: Duration::from_millis(50),
            retries: RetryPolicy::Fixed(vec![Duration::from_millis(20); 3]),
            patience: Duration::from_secs(10),
            ..ChannelPolicy::default()
        };
        let channel = Channel::named(&self.channel, ["order.*"]);
        self.fresh
            .builder()
            .broker(&self.broker_url())
            .channel(channel.map(|channel| channel.published().with(policy)))
            .lease(Duration::from_secs(2))
    }

    pub async fn app(&self, consumers: impl IntoIterator<Item = Consumer>) -> Towpath {
        let topology = self.topology(false);
        self.begin(consumers, topology, None).await
    }

    /// With somebody who watches.
    pub async fn app_watched_by(
        &self,
        watch: Arc<dyn towpath::Watch>,
        consumers: impl IntoIterator<Item = Consumer>,
    ) -> Towpath {
        let mut builder = self.builder().topology(self.topology(false)).watch(watch);
        for consumer in consumers {
            builder = builder.consumer(consumer);
        }
        let app = builder.start().await.expect("start");
        make_table(&app).await;
        app
    }

    /// With connections of its own number and patience.
    pub async fn app_with_connections(
        &self,
        options: towpath::StoreOptions,
        consumers: impl IntoIterator<Item = Consumer>,
    ) -> Towpath {
        let mut builder = self.builder().topology(self.topology(false)).store_options(options);
        for consumer in consumers {
            builder = builder.consumer(consumer);
        }
        builder.start().await.expect("start")
    }

    /// One that does nothing by itself: it has to be told.
    pub async fn app_that_looks_rarely(&self, consumer: Consumer) -> Towpath {
        const RARELY: Duration = Duration::from_secs(3600);
        let policy = ChannelPolicy { scan: RARELY, ..ChannelPolicy::default() };
        let channel = Channel::named(&self.channel, ["order.*"]);
        let builder = Towpath::builder()
            .store(self.fresh.url())
            .broker(&self.broker_url())
            .aggregate::<super::Order>()
            .channel(channel.map(|channel| channel.published().with(policy)))
            .topology(self.topology(false))
            .scan(RARELY)
            .consumer(consumer);
        let app = builder.start().await.expect("start");
        make_table(&app).await;
        app
    }

    /// With a dead-letter queue behind the handler's own, which is read in.
    pub async fn app_with_dead_letter_queue(&self, consumers: impl IntoIterator<Item = Consumer>) -> Towpath {
        let topology = self.topology(true);
        self.begin(consumers, topology, Some(format!("{}.dead", self.channel))).await
    }

    async fn begin(
        &self,
        consumers: impl IntoIterator<Item = Consumer>,
        topology: Topology,
        dead: Option<String>,
    ) -> Towpath {
        let mut builder = self.builder().topology(topology);
        for consumer in consumers {
            builder = builder.consumer(consumer);
        }
        if let Some(queue) = dead {
            builder = builder.dead_letter_queue(queue);
        }
        let app = builder.start().await.expect("start");
        make_table(&app).await;
        app
    }

    /// Queues that go away by themselves when the test is over. Their names are those that consumers would declare.
    pub fn topology(&self, dead: bool) -> Topology {
        #[cfg(feature = "kafka")]
        if self.broker == Broker::Kafka {
            // Its queues are consumer groups, and have no arguments.
            return Topology::default();
        }
        let expires = || ("x-expires".to_owned(), Argument::Number(120_000));
        let mut queues = Vec::new();
        for handler in ["record", "broken", "strict", "batch", "follow"] {
            let single = ("x-single-active-consumer".to_owned(), Argument::Switch(true));
            let mut arguments = vec![expires(), single];
            if dead {
                arguments.push(("x-dead-letter-exchange".to_owned(), Argument::Text(String::new())));
                let key = Argument::Text(format!("{}.dead", self.channel));
                arguments.push(("x-dead-letter-routing-key".to_owned(), key));
            }
            queues.push(Queue { name: format!("{}.{handler}", self.channel), arguments });
        }
        if dead {
            queues.push(Queue { name: format!("{}.dead", self.channel), arguments: vec![expires()] });
        }
        Topology {
            exchanges: vec![Exchange { name: self.channel.clone(), kind: ExchangeKind::Topic }],
            queues,
            bindings: Vec::<Binding>::new(),
        }
    }

    /// A handle of the test's own on the broker.
    async fn handle(&self) -> Arc<dyn towpath::ports::broker::Broker> {
        self.handle_at(&self.broker_url()).await
    }

    /// A handle of the test's own on a broker of this kind.
    pub async fn handle_at(&self, url: &str) -> Arc<dyn towpath::ports::broker::Broker> {
        match self.broker {
            Broker::Local => {
                let store = towpath::SqlStore::connect(self.fresh.url()).await.unwrap();
                Arc::new(towpath_broker::LocalBroker::over(
                    Arc::new(store),
                    towpath_broker::LocalOptions::default(),
                ))
            }
            #[cfg(feature = "kafka")]
            Broker::Kafka => Arc::new(towpath::Kafka::connect(&BrokerUrl::parse(url).unwrap()).unwrap()),
            Broker::RabbitMq => Arc::new(RabbitMq::connect(&BrokerUrl::parse(url).unwrap()).unwrap()),
        }
    }

    pub async fn publish(&self, messages: &[Message]) {
        let outcomes = self.handle().await.publish(messages, Duration::from_secs(10)).await;
        assert!(outcomes.iter().all(|outcome| *outcome == Published::Confirmed), "{outcomes:?}");
    }

    /// Publishes every event of the log once more; answers how many.
    pub async fn everything_again(&self, app: &Towpath) -> usize {
        let events = super::eventually("positions", || async {
            let head = app.store().head().await.unwrap();
            let events = app.store().events_between(1, head).await.unwrap();
            (events.len() as u64 == head && head >= 20).then_some(events)
        })
        .await;
        let (formats, channel) = (Formats::default(), Channel::named(&self.channel, ["*"]).unwrap());
        let messages: Vec<Message> = events
            .iter()
            .map(|event| {
                let destination = towpath::ports::broker::Destination {
                    exchange: self.channel.clone(),
                    routing_key: event.envelope.event_type.to_string(),
                };
                formats.message(&channel, &event.envelope, destination).unwrap()
            })
            .collect();
        self.publish(&messages).await;
        messages.len()
    }
}

/// Restarts a server that `cargo xtask test` started. Without it (servers of the user's own) nothing is restarted.
async fn restart(server: &'static str) {
    let Some(xtask) = towpath_testkit::under_control("TOWPATH_TEST_XTASK") else { return };
    let restarting = tokio::task::spawn_blocking(move || {
        std::process::Command::new(xtask).args(["services", "restart", server]).output()
    });
    let output = restarting.await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub async fn make_table(app: &Towpath) {
    let sql =
        "CREATE TABLE IF NOT EXISTS effects (event_id VARCHAR(64) NOT NULL, handler VARCHAR(64) NOT NULL)";
    execute(app, sql).await;
}

/// Runs a statement on whichever database the app has.
pub async fn execute(app: &Towpath, sql: &'static str) {
    let store = app.store();
    if let Some(pool) = store.postgres_pool() {
        sqlx::query(sql).execute(pool).await.unwrap();
    } else if let Some(pool) = store.mysql_pool() {
        sqlx::query(sql).execute(pool).await.unwrap();
    } else if let Some(pool) = store.sqlite_pool() {
        sqlx::query(sql).execute(pool).await.unwrap();
    }
}

pub async fn rows(app: &Towpath) -> Vec<(String, String)> {
    let sql = "SELECT event_id, handler FROM effects";
    let store = app.store();
    if let Some(pool) = store.postgres_pool() {
        sqlx::query_as(sql).fetch_all(pool).await.unwrap()
    } else if let Some(pool) = store.mysql_pool() {
        sqlx::query_as(sql).fetch_all(pool).await.unwrap()
    } else if let Some(pool) = store.sqlite_pool() {
        sqlx::query_as(sql).fetch_all(pool).await.unwrap()
    } else {
        Vec::new()
    }
}

/// How often each event had an effect.
pub async fn effects(app: &Towpath) -> BTreeMap<String, u32> {
    let mut counted = BTreeMap::new();
    for (event_id, _) in rows(app).await {
        *counted.entry(event_id).or_default() += 1;
    }
    counted
}

/// How many effects a handler had.
pub async fn effects_of(app: &Towpath, handler: &str) -> usize {
    rows(app).await.iter().filter(|(_, by)| by == handler).count()
}

/// Makes a test of each function, on each database with each broker.
#[macro_export]
macro_rules! on_every_pair {
    ($($case:ident),+ $(,)?) => {
        on_every_pair!(@broker local, Local, $($case),+);
        on_every_pair!(@broker rabbitmq, RabbitMq, $($case),+);
        #[cfg(feature = "kafka")]
        on_every_pair!(@broker kafka, Kafka, $($case),+);
    };
    (@broker $module:ident, $broker:ident, $($case:ident),+) => {
        mod $module {
            on_every_pair!(@database sqlite, $broker, $($case),+);
            on_every_pair!(@database postgres, $broker, $($case),+);
            on_every_pair!(@database mysql, $broker, $($case),+);
        }
    };
    (@database $database:ident, $broker:ident, $($case:ident),+) => {
        on_every_pair!(@with [] $database, $broker, $($case),+);
    };
    (@with $attributes:tt $database:ident, $broker:ident, $($case:ident),+) => {
        mod $database {
            $( on_every_pair!(@case $attributes $database, $broker, $case); )+
        }
    };
    (@case [$($attributes:tt)*] $database:ident, $broker:ident, $case:ident) => {
        $($attributes)*
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $case() {
            let broker = super::super::Broker::$broker;
            let stage = super::super::Stage::new(stringify!($database), broker).await;
            super::super::$case(&stage).await;
        }
    };
}

/// The same, with the brokers that have dead-letter queues of their own.
#[macro_export]
macro_rules! on_pairs_with_dead_letters {
    ($($case:ident),+ $(,)?) => {
        on_every_pair!(@broker local, Local, $($case),+);
        on_every_pair!(@broker rabbitmq, RabbitMq, $($case),+);
    };
}
