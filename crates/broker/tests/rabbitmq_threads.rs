//! lapin runs every connection on a thread of its own, which waits for the other side for ever if nobody cuts it. Alone
//! in its process, so that every such thread is this test's.

#![cfg(all(feature = "rabbitmq", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::time::Duration;

use lapin::uri::AMQPUri;
use towpath_broker::{BrokerUrl, RabbitMq};
use towpath_core::ports::broker::{Broker, Destination, Published};
use towpath_testkit::broker::TcpProxy;
use towpath_testkit::broker::acts::message;
use towpath_testkit::store::waiting::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn no_connection_outlives_its_handle() {
    let server = std::env::var("TOWPATH_TEST_AMQP_URL").expect("TOWPATH_TEST_AMQP_URL");
    let mut uri: AMQPUri = server.parse().unwrap();
    let proxy = TcpProxy::to(&format!("{}:{}", uri.authority.host, uri.authority.port)).await;
    uri.authority.host = "127.0.0.1".to_owned();
    uri.authority.port = proxy.address().port();
    let url = BrokerUrl::parse(&uri.to_string()).unwrap();
    // To the default exchange, which always exists, and to a queue that never does.
    let nowhere =
        Destination { exchange: String::new(), routing_key: "towpath-test.no-such-queue".to_owned() };
    let messages = [message(&nowhere, "")];

    // Dropped without a goodbye.
    let broker = RabbitMq::connect(&url).unwrap();
    let outcomes = broker.publish(&messages, Duration::from_secs(30)).await;
    assert!(matches!(outcomes[..], [Published::Unroutable { .. }]), "{outcomes:?}");
    broker.ready().await.unwrap();
    assert_eq!(threads(), 2, "one to publish, one to receive");
    drop(broker);
    eventually("the threads ending", || async { (threads() == 0).then_some(()) }).await;

    // Dropped when the other side has gone silent: in the middle of a connection, then in the middle of a handshake.
    let broker = RabbitMq::connect(&url).unwrap();
    broker.publish(&messages, Duration::from_secs(30)).await;
    proxy.hold_everything();
    for _ in 0..3 {
        let outcomes = broker.publish(&messages, Duration::from_millis(200)).await;
        assert!(
            matches!(outcomes[..], [Published::Unknown { .. } | Published::NotSent { .. }]),
            "{outcomes:?}"
        );
    }
    assert!(threads() > 0);
    drop(broker);
    eventually("the threads ending", || async { (threads() == 0).then_some(()) }).await;
}

fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "lapin-io-loop").count()
}
