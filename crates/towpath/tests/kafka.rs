//! The relay on each database, to a real Kafka: committed events arrive, in order, and a topic that is gone is told.

#![cfg(feature = "kafka")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use support::{Fresh, Order, OrderCommand, eventually};
use towpath::ids::ChannelName;
use towpath::lifecycle::OutboxStatus;
use towpath::ports::broker::{
    Binding, Broker, Exchange, ExchangeKind, Queue, Settlement, Subscription, Topology,
};
use towpath::ports::store::Inspection as _;
use towpath::retry::RetryPolicy;
use towpath::{BrokerUrl, Builder, Channel, ChannelPolicy, Kafka, Towpath};

on_every_database!(committed_events_arrive_in_order, an_event_without_a_topic_ends_failed);

fn url() -> String {
    std::env::var("TOWPATH_TEST_KAFKA_URL").expect("TOWPATH_TEST_KAFKA_URL: run `cargo xtask test`")
}

fn app(fresh: &Fresh, topic: &str) -> Builder {
    let policy = ChannelPolicy {
        scan: Duration::from_millis(50),
        retries: RetryPolicy::Fixed(vec![Duration::from_millis(20); 2]),
        patience: Duration::from_secs(15),
        ..ChannelPolicy::default()
    };
    let channel = Channel::named("facts", ["order.*"]);
    fresh
        .builder()
        .broker(&url())
        .channel(channel.map(|channel| channel.to(topic, "order.fact").with(policy)))
}

async fn facts_in(app: &Towpath, status: OutboxStatus) -> u64 {
    app.store().outbox_counts(&ChannelName::new("facts").unwrap()).await.unwrap().of(status)
}

async fn committed_events_arrive_in_order(fresh: &Fresh) {
    let name = format!("towpath-test.{}", uuid::Uuid::now_v7());
    let topology = Topology {
        exchanges: vec![Exchange { name: name.clone(), kind: ExchangeKind::Topic }],
        queues: vec![Queue { name: name.clone(), arguments: Vec::new() }],
        bindings: vec![Binding {
            queue: name.clone(),
            exchange: name.clone(),
            routing_key: "order.*".to_owned(),
        }],
    };
    let app = app(fresh, &name).topology(topology.clone()).start().await.unwrap();
    let mut committed = BTreeMap::new();
    for round in 0..5 {
        for id in ["o-1", "o-2", "o-3"] {
            let command =
                if round == 0 { OrderCommand::Place { sku: "book".into() } } else { OrderCommand::Note };
            for event in app.send::<Order>(id, command).await.unwrap().events {
                committed.insert(event.event_id.to_string(), event);
            }
        }
    }
    let broker = Kafka::connect(&BrokerUrl::parse(&url()).unwrap()).unwrap();
    broker.declare(&topology).await.unwrap();
    let subscription = Subscription { queue: name, group: "test".to_owned(), prefetch: 50 };
    let deliveries = broker.subscribe(&subscription).await.unwrap();
    let mut versions: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for _ in 0..15 {
        let next = tokio::time::timeout(Duration::from_secs(30), deliveries.next()).await;
        let received = next.expect("a message in time").unwrap();
        deliveries.settle(received.tag, Settlement::Acknowledge).await.unwrap();
        let event = &committed[received.message_id.as_ref().unwrap()];
        assert_eq!(serde_json::from_slice::<towpath::EventEnvelope>(&received.body).unwrap(), *event);
        assert_eq!(received.key, Some(event.aggregate.to_string()));
        versions.entry(event.aggregate.id.to_string()).or_default().push(event.aggregate_version);
    }
    assert_eq!(versions.len(), 3);
    assert!(versions.values().all(|versions| *versions == [1, 2, 3, 4, 5]), "{versions:?}");
    eventually("all are SENT", || async { (facts_in(&app, OutboxStatus::Sent).await == 15).then_some(()) })
        .await;
    app.stop().await;
    broker.close().await;
}

async fn an_event_without_a_topic_ends_failed(fresh: &Fresh) {
    let nowhere = format!("towpath-test.{}", uuid::Uuid::now_v7());
    let app = app(fresh, &nowhere).start().await.unwrap();
    app.send::<Order>("o-1", OrderCommand::Place { sku: "book".to_owned() }).await.unwrap();
    eventually("it is given up", || async {
        (facts_in(&app, OutboxStatus::Failed).await == 1).then_some(())
    })
    .await;
    let event = app.events_of(&towpath::ids::AggregateKey::new("order", "o-1").unwrap(), 0, 1).await.unwrap();
    let rows = app.store().outbox_of(event[0].envelope.event_id).await.unwrap();
    let row = rows.iter().find(|row| row.channel.as_str() == "facts").unwrap();
    assert!(format!("{row:?}").contains(&nowhere), "{row:?}");
    app.stop().await;
}
