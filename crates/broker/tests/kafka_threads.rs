//! librdkafka runs every client on threads of its own. Alone in its process, so that every such thread is this test's.

#![cfg(all(feature = "kafka", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::time::Duration;

use towpath_broker::{BrokerUrl, Kafka};
use towpath_core::ports::broker::{
    Binding, Broker, Deliveries, Destination, Exchange, ExchangeKind, Published, Queue, Settlement,
    Subscription, Topology,
};
use towpath_testkit::broker::acts::message;
use towpath_testkit::broker::{OwnKafka, TcpProxy};
use towpath_testkit::store::waiting::{eventually, in_time};

#[tokio::test(flavor = "multi_thread")]
async fn no_thread_outlives_its_handle() {
    let url = std::env::var("TOWPATH_TEST_KAFKA_URL").expect("TOWPATH_TEST_KAFKA_URL");
    let name = format!("towpath-test.{}", uuid::Uuid::now_v7());
    let destination = Destination { exchange: name.clone(), routing_key: "order.placed".to_owned() };
    let broker = Kafka::connect(&BrokerUrl::parse(&url).unwrap()).unwrap();
    assert_eq!(threads(), 0, "it connects when it is first used");

    // Everything is used and then dropped without a goodbye.
    let deliveries = subscribe(&broker, &name).await;
    let outcomes = broker.publish(&[message(&destination, "held")], Duration::from_secs(30)).await;
    assert_eq!(outcomes, [Published::Confirmed]);
    in_time("receiving", deliveries.next()).await.unwrap();
    assert!(threads() > 0);
    drop((broker, deliveries));
    eventually("the threads ending", || async { (threads() == 0).then_some(()) }).await;

    // Closed: the receiver may live on, its thread does not.
    let broker = Kafka::connect(&BrokerUrl::parse(&url).unwrap()).unwrap();
    let deliveries = subscribe(&broker, &name).await;
    in_time("closing", broker.close()).await;
    eventually("the threads ending", || async { (threads() == 0).then_some(()) }).await;
    drop((broker, deliveries));

    // A broker that has gone silent keeps nobody.
    let server = url.trim_start_matches("kafka://").split(',').next().unwrap().to_owned();
    let proxy = TcpProxy::to(&server).await;
    proxy.hold_everything();
    let silent = BrokerUrl::parse(&format!("kafka://{}", proxy.address())).unwrap();
    let broker = Kafka::connect(&silent).unwrap();
    let outcomes = broker.publish(&[message(&destination, "")], Duration::from_millis(300)).await;
    assert!(matches!(outcomes[..], [Published::NotSent { .. }]), "{outcomes:?}");
    assert!(threads() > 0);
    drop(broker);
    eventually("the threads ending", || async { (threads() == 0).then_some(()) }).await;

    // Neither does one that is gone, though a member had something left to tell it.
    let Some(program) = OwnKafka::program() else { return };
    let port = OwnKafka::free_port();
    let mut server = OwnKafka::start(&program, port, ([127, 0, 0, 1], port).into()).await;
    let broker = Kafka::connect(&BrokerUrl::parse(&format!("kafka://127.0.0.1:{port}")).unwrap()).unwrap();
    eventually("the broker answering", || async { broker.ready().await.ok() }).await;
    let deliveries = subscribe(&broker, &name).await;
    let outcomes = broker.publish(&[message(&destination, "settled")], Duration::from_secs(30)).await;
    assert_eq!(outcomes, [Published::Confirmed]);
    let received = in_time("receiving", deliveries.next()).await.unwrap();
    server.end();
    in_time("settling", deliveries.settle(received.tag, Settlement::Acknowledge)).await.unwrap();
    drop((broker, deliveries));
    eventually("the threads ending", || async { (threads() == 0).then_some(()) }).await;
}

async fn subscribe(broker: &Kafka, name: &str) -> Box<dyn Deliveries> {
    let topology = Topology {
        exchanges: vec![Exchange { name: name.to_owned(), kind: ExchangeKind::Topic }],
        queues: vec![Queue { name: name.to_owned(), arguments: Vec::new() }],
        bindings: vec![Binding {
            queue: name.to_owned(),
            exchange: name.to_owned(),
            routing_key: "#".to_owned(),
        }],
    };
    in_time("declaring", broker.declare(&topology)).await.unwrap();
    let subscription = Subscription { queue: name.to_owned(), group: "test".to_owned(), prefetch: 10 };
    in_time("subscribing", broker.subscribe(&subscription)).await.unwrap()
}

/// Ours, and librdkafka's own, which it calls `rdk:main`, `rdk:broker0` and so on.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    let ours = |name: &String| {
        let name = name.trim();
        name.starts_with("rdk:") || name == "towpath-kafka" || name == "producer pollin"
    };
    names.filter(ours).count()
}
