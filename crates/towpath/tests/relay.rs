//! The relay on each database, to a real RabbitMQ: committed events arrive, in order, and nothing is lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use support::{Fresh, Order, OrderCommand, eventually};
use towpath::ids::ChannelName;
use towpath::lifecycle::OutboxStatus;
use towpath::ports::broker::{
    Argument, Binding, Broker, Deliveries, Exchange, ExchangeKind, Queue, Received, Settlement, Subscription,
    Topology,
};
use towpath::ports::store::Store;
use towpath::retry::RetryPolicy;
use towpath::{BrokerUrl, Builder, Channel, ChannelPolicy, RabbitMq, Towpath};

on_every_database!(
    committed_events_arrive_in_order_and_are_marked_sent,
    an_unroutable_event_parks_its_aggregate_only_and_goes_on_when_reopened,
    two_instances_share_the_partitions_and_one_takes_over_all,
    a_broker_that_is_away_holds_nothing_up_and_loses_nothing,
);

/// An exchange and a queue of a test's own. The queue goes away when nobody has used it for a minute.
struct Place {
    exchange: String,
    queue: String,
    url: String,
}

impl Place {
    fn new() -> Self {
        let url =
            std::env::var("TOWPATH_TEST_AMQP_URL").expect("TOWPATH_TEST_AMQP_URL: run `cargo xtask test`");
        let queue = format!("towpath.test.{}", uuid::Uuid::now_v7().simple());
        // One exchange for all tests: keys begin with the queue's name, so that they do not meet.
        Self { exchange: "towpath.test.relay".to_owned(), queue, url }
    }

    /// The routing key of this test.
    fn key(&self) -> String {
        format!("{}.fact", self.queue)
    }

    fn topology(&self, bound: bool) -> Topology {
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

    fn broker(&self) -> RabbitMq {
        RabbitMq::connect(&BrokerUrl::parse(&self.url).unwrap()).unwrap()
    }

    async fn receive(&self) -> Inbox {
        let broker = self.broker();
        broker.declare(&self.topology(false)).await.unwrap();
        let subscription = Subscription { queue: self.queue.clone(), group: "test".to_owned(), prefetch: 50 };
        Inbox { deliveries: broker.subscribe(&subscription).await.unwrap(), _broker: broker }
    }

    fn app(&self, fresh: &Fresh) -> Builder {
        let policy = ChannelPolicy {
            scan: Duration::from_millis(50),
            retries: RetryPolicy::Fixed(vec![Duration::from_millis(20); 2]),
            patience: Duration::from_secs(5),
            ..ChannelPolicy::default()
        };
        let channel = Channel::named("facts", ["order.*"]);
        fresh
            .builder()
            .broker(&self.url)
            .channel(channel.map(|channel| channel.to(&self.exchange, self.key()).with(policy)))
            .topology(self.topology(true))
            .lease(Duration::from_millis(600))
    }
}

struct Inbox {
    deliveries: Box<dyn Deliveries>,
    _broker: RabbitMq,
}

impl Inbox {
    /// The next messages, acknowledged.
    async fn take(&self, count: usize) -> Vec<Received> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let next = tokio::time::timeout(Duration::from_secs(15), self.deliveries.next()).await;
            let next = next.unwrap_or_else(|_| panic!("{} of {count} messages came", taken.len())).unwrap();
            self.deliveries.settle(next.tag, Settlement::Acknowledge).await.unwrap();
            taken.push(next);
        }
        taken
    }
}

fn header<'a>(received: &'a Received, name: &str) -> &'a str {
    &received.headers.iter().find(|(header, _)| header == name).unwrap().1
}

/// The versions that came, by aggregate, in the order they came.
fn versions(received: &[Received]) -> BTreeMap<String, Vec<u64>> {
    let mut versions: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for message in received {
        let version = header(message, "towpath-aggregate-version").parse().unwrap();
        versions.entry(header(message, "towpath-aggregate-id").to_owned()).or_default().push(version);
    }
    versions
}

async fn place(app: &Towpath, id: &str) {
    app.send::<Order>(id, OrderCommand::Place { sku: "book".to_owned() }).await.unwrap();
}

async fn facts_in(app: &Towpath, status: OutboxStatus) -> u64 {
    app.store().outbox_counts(&ChannelName::new("facts").unwrap()).await.unwrap().of(status)
}

async fn committed_events_arrive_in_order_and_are_marked_sent(fresh: &Fresh) {
    let place_of_test = Place::new();
    let app = place_of_test.app(fresh).start().await.unwrap();
    let inbox = place_of_test.receive().await;
    let mut committed = Vec::new();
    for round in 0..5 {
        for id in ["o-1", "o-2", "o-3"] {
            let command =
                if round == 0 { OrderCommand::Place { sku: "book".into() } } else { OrderCommand::Note };
            committed.extend(app.send::<Order>(id, command).await.unwrap().events);
        }
    }
    let received = inbox.take(15).await;
    assert!(
        versions(&received).values().all(|versions| *versions == [1, 2, 3, 4, 5]),
        "{:?}",
        versions(&received)
    );
    for event in &committed {
        let message =
            received.iter().find(|message| message.message_id == Some(event.event_id.to_string())).unwrap();
        assert_eq!(message.message_type.as_deref(), Some(event.event_type.as_str()));
        assert_eq!(serde_json::from_slice::<towpath::EventEnvelope>(&message.body).unwrap(), *event);
    }
    eventually("all are SENT", || async { (facts_in(&app, OutboxStatus::Sent).await == 15).then_some(()) })
        .await;
    app.stop().await;
}

async fn an_unroutable_event_parks_its_aggregate_only_and_goes_on_when_reopened(fresh: &Fresh) {
    let place_of_test = Place::new();
    // Nothing is bound: what the first order says goes nowhere.
    let app = place_of_test.app(fresh).topology(place_of_test.topology(false)).start().await.unwrap();
    place(&app, "stuck").await;
    app.send::<Order>("stuck", OrderCommand::Note).await.unwrap();
    eventually("it is given up", || async {
        (facts_in(&app, OutboxStatus::Failed).await == 1).then_some(())
    })
    .await;
    assert_eq!(facts_in(&app, OutboxStatus::New).await, 1, "the one behind it was not tried");
    let head =
        app.events_of(&towpath::ids::AggregateKey::new("order", "stuck").unwrap(), 0, 1).await.unwrap();
    let row = app.store().outbox_of(head[0].envelope.event_id).await.unwrap();
    let row = row.iter().find(|row| row.channel.as_str() == "facts").unwrap();
    assert_eq!((row.status_reason.as_deref(), row.retry_count), (Some("unroutable"), 3));

    // Now the queue is bound. Another order goes out; the stuck one waits for an operator.
    let inbox = place_of_test.receive().await;
    place_of_test.broker().declare(&place_of_test.topology(true)).await.unwrap();
    place(&app, "free").await;
    assert_eq!(versions(&inbox.take(1).await).keys().collect::<Vec<_>>(), ["free"]);
    app.store().reopen_outbox(&[row.outbox_id], chrono::Utc::now()).await.unwrap();
    assert_eq!(versions(&inbox.take(2).await)["stuck"], [1, 2]);
    app.stop().await;
}

async fn two_instances_share_the_partitions_and_one_takes_over_all(fresh: &Fresh) {
    let place_of_test = Place::new();
    let first = place_of_test.app(fresh).start().await.unwrap();
    let second = place_of_test.app(fresh).start().await.unwrap();
    let inbox = place_of_test.receive().await;
    let held_by = |app: &Towpath| {
        let app = app.clone();
        async move {
            let leases = app.store().leases("partition/").await.unwrap();
            leases.iter().filter(|lease| lease.live && lease.holder == *app.instance()).count()
        }
    };
    eventually("a fair share each", || async {
        (held_by(&first).await == 32 && held_by(&second).await == 32).then_some(())
    })
    .await;
    for number in 0..40 {
        place(&first, &format!("o-{number}")).await;
    }
    assert_eq!(versions(&inbox.take(40).await).len(), 40, "whoever relays them, all come");
    first.stop().await;
    eventually("the other has all", || async { (held_by(&second).await == 64).then_some(()) }).await;
    for number in 40..60 {
        place(&second, &format!("o-{number}")).await;
    }
    assert_eq!(versions(&inbox.take(20).await).len(), 20);
    second.stop().await;
}

async fn a_broker_that_is_away_holds_nothing_up_and_loses_nothing(fresh: &Fresh) {
    use towpath_testkit::broker::TcpProxy;

    let mut place_of_test = Place::new();
    let direct = place_of_test.url.clone();
    let (before, rest) = direct.split_once('@').unwrap();
    let (address, after) = rest.split_once('/').unwrap();
    let proxy = TcpProxy::to(address).await;
    place_of_test.url = format!("{before}@{}/{after}", proxy.address());
    let policy = ChannelPolicy {
        scan: Duration::from_millis(50),
        retries: RetryPolicy::Fixed(vec![Duration::from_millis(100); 100]),
        patience: Duration::from_millis(500),
        ..ChannelPolicy::default()
    };
    let channel = Channel::named("facts", ["order.*"]).unwrap();
    let channel = channel.to(&place_of_test.exchange, place_of_test.key()).with(policy);
    let builder = fresh.builder().broker(&place_of_test.url).topology(place_of_test.topology(true));
    let app = builder.channel(Ok(channel)).start().await.unwrap();
    place_of_test.url = direct;
    let inbox = place_of_test.receive().await;

    proxy.hold_everything();
    for number in 0..5 {
        place(&app, &format!("o-{number}")).await;
        app.send::<Order>(format!("o-{number}"), OrderCommand::Note).await.unwrap();
    }
    eventually("publishing is being retried", || async {
        (facts_in(&app, OutboxStatus::Retry).await > 0).then_some(())
    })
    .await;
    proxy.cut();
    proxy.heal();
    eventually("all are SENT", || async { (facts_in(&app, OutboxStatus::Sent).await == 10).then_some(()) })
        .await;
    // What was on its way when the line was cut may come twice; the first of each comes in order.
    let mut firsts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    while firsts.values().map(Vec::len).sum::<usize>() < 10 {
        for (id, versions) in versions(&inbox.take(1).await) {
            let seen = firsts.entry(id).or_default();
            seen.extend(versions.into_iter().filter(|version| !seen.contains(version)).collect::<Vec<_>>());
        }
    }
    assert!(firsts.values().all(|versions| *versions == [1, 2]), "{firsts:?}");
    app.stop().await;
}
