//! A place on the broker for one test, and what arrives there.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath::ids::ChannelName;
use towpath::lifecycle::OutboxStatus;
use towpath::ports::broker::{
    Argument, Binding, Broker, Deliveries, Exchange, ExchangeKind, Queue, Received, Settlement, Subscription,
    Topology,
};
use towpath::ports::store::Inspection as _;
use towpath::retry::RetryPolicy;
use towpath::{BrokerUrl, Builder, Channel, ChannelPolicy, RabbitMq, Towpath};
use towpath_testkit::broker::TcpProxy;

use super::{Fresh, Order, OrderCommand};

/// An exchange and a queue of a test's own. The queue goes away when nobody has used it for a minute.
pub struct Place {
    pub exchange: String,
    pub queue: String,
    pub url: String,
}

impl Place {
    pub fn new() -> Self {
        let url =
            std::env::var("TOWPATH_TEST_AMQP_URL").expect("TOWPATH_TEST_AMQP_URL: run `cargo xtask test`");
        let queue = format!("towpath.test.{}", uuid::Uuid::now_v7().simple());
        // One exchange for all tests: keys begin with the queue's name, so that they do not meet.
        Self { exchange: "towpath.test.relay".to_owned(), queue, url }
    }

    /// The routing key of this test.
    pub fn key(&self) -> String {
        format!("{}.fact", self.queue)
    }

    pub fn topology(&self, bound: bool) -> Topology {
        let binding =
            Binding { queue: self.queue.clone(), exchange: self.exchange.clone(), routing_key: self.key() };
        Topology {
            exchanges: vec![Exchange { name: self.exchange.clone(), kind: ExchangeKind::Topic }],
            queues: vec![Queue {
                name: self.queue.clone(),
                arguments: vec![("x-expires".to_owned(), Argument::Number(60_000))],
            }],
            bindings: if bound { vec![binding] } else { Vec::new() },
        }
    }

    /// The same place behind a proxy.
    pub async fn behind_a_proxy(&self) -> (Self, TcpProxy) {
        let (url, proxy) = TcpProxy::before(&self.url).await;
        (Self { exchange: self.exchange.clone(), queue: self.queue.clone(), url }, proxy)
    }

    pub fn broker(&self) -> RabbitMq {
        RabbitMq::connect(&BrokerUrl::parse(&self.url).unwrap()).unwrap()
    }

    pub async fn receive(&self) -> Inbox {
        let broker = self.broker();
        broker.declare(&self.topology(false)).await.unwrap();
        let subscription = Subscription { queue: self.queue.clone(), group: "test".to_owned(), prefetch: 50 };
        Inbox { deliveries: broker.subscribe(&subscription).await.unwrap(), _broker: broker }
    }

    /// What most tests want: it looks often and gives up after three attempts.
    pub fn policy() -> ChannelPolicy {
        ChannelPolicy {
            scan: Duration::from_millis(50),
            retries: RetryPolicy::Fixed(vec![Duration::from_millis(20); 2]),
            patience: Duration::from_secs(5),
            ..ChannelPolicy::default()
        }
    }

    pub fn app(&self, fresh: &Fresh) -> Builder {
        self.app_with(fresh, Self::policy())
    }

    pub fn app_with(&self, fresh: &Fresh, policy: ChannelPolicy) -> Builder {
        self.app_unbound(fresh, policy).topology(self.topology(true))
    }

    /// Whose messages nobody takes.
    pub fn app_unbound(&self, fresh: &Fresh, policy: ChannelPolicy) -> Builder {
        let channel = Channel::named("facts", ["order.*"]);
        fresh
            .builder()
            .broker(&self.url)
            .channel(channel.map(|channel| channel.to(&self.exchange, self.key()).with(policy)))
            .topology(self.topology(false))
            .lease(Duration::from_millis(600))
    }
}

pub struct Inbox {
    deliveries: Box<dyn Deliveries>,
    _broker: RabbitMq,
}

impl Inbox {
    /// The next messages, acknowledged.
    pub async fn take(&self, count: usize) -> Vec<Received> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let next = tokio::time::timeout(Duration::from_secs(60), self.deliveries.next()).await;
            let next = next.unwrap_or_else(|_| panic!("{} of {count} messages came", taken.len())).unwrap();
            self.deliveries.settle(next.tag, Settlement::Acknowledge).await.unwrap();
            taken.push(next);
        }
        taken
    }
}

pub fn header<'a>(received: &'a Received, name: &str) -> &'a str {
    &received.headers.iter().find(|(header, _)| header == name).unwrap().1
}

/// The versions that came, by aggregate, in the order they came.
pub fn versions(received: &[Received]) -> BTreeMap<String, Vec<u64>> {
    let mut versions: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for message in received {
        let version = header(message, "towpath-aggregate-version").parse().unwrap();
        versions.entry(header(message, "towpath-aggregate-id").to_owned()).or_default().push(version);
    }
    versions
}

pub async fn place(app: &Towpath, id: &str) {
    app.send::<Order>(id, OrderCommand::Place { sku: "book".to_owned() }).await.unwrap();
}

pub async fn facts_in(app: &Towpath, status: OutboxStatus) -> u64 {
    app.store().outbox_counts(&ChannelName::new("facts").unwrap()).await.unwrap().of(status)
}
