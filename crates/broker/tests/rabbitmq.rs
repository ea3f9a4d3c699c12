//! The broker contract on RabbitMQ, and what is RabbitMQ's own.
//!
//! `TOWPATH_TEST_AMQP_URL` names the server (`cargo xtask services env` prints it). With `TOWPATH_TEST_AMQP_CTL`, a
//! command such as `rabbitmqctl -n towpath@localhost`, the cases that restart the broker or raise its memory alarm run
//! too: only where no one else uses it, and with `--test-threads 1`.

#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::uri::AMQPUri;
use towpath_broker::{BrokerUrl, RabbitMq};
use towpath_core::ports::broker::{Broker, BrokerError, Published};
use towpath_core::retry::ErrorClass;
use towpath_testkit::broker::BrokerFixture;
use towpath_testkit::broker::acts::{
    Lane, bodies, message, number, numbered, publish, publish_all, subscribe, take, text,
};
use uuid::Uuid;

towpath_testkit::broker_conformance!(RabbitFixture::fresh());

/// Names on the server that are deleted with the test.
struct RabbitFixture {
    names: Mutex<Vec<String>>,
}

impl RabbitFixture {
    fn fresh() -> Self {
        Self { names: Mutex::default() }
    }
}

#[async_trait::async_trait]
impl BrokerFixture for RabbitFixture {
    async fn connect(&self) -> Arc<dyn Broker> {
        connect(&server())
    }

    fn fresh_name(&self, what: &str) -> String {
        let name = format!("towpath-test.{}.{what}", Uuid::now_v7());
        self.names.lock().unwrap().push(name.clone());
        name
    }

    fn server(&self) -> Option<String> {
        let uri: AMQPUri = server().parse().unwrap();
        Some(format!("{}:{}", uri.authority.host, uri.authority.port))
    }

    async fn connect_through(&self, address: SocketAddr) -> Option<Arc<dyn Broker>> {
        let mut uri: AMQPUri = server().parse().unwrap();
        uri.authority.host = address.ip().to_string();
        uri.authority.port = address.port();
        Some(connect(&uri.to_string()))
    }

    async fn restart(&self) -> Option<()> {
        ctl("stop_app").await?;
        ctl("start_app").await?;
        ctl("await_startup").await
    }

    async fn raise_alarm(&self, on: bool) -> Option<()> {
        ctl(if on { "set_vm_memory_high_watermark 0.0000001" } else { "set_vm_memory_high_watermark 0.4" })
            .await
    }
}

impl Drop for RabbitFixture {
    fn drop(&mut self) {
        let names = std::mem::take(&mut *self.names.lock().unwrap());
        // `drop` cannot wait, and the test's own runtime may be shutting down: clean up in another.
        let cleaner = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.block_on(async {
                let connection = lapin::Connection::connect(&server(), Default::default()).await?;
                let channel = connection.create_channel().await?;
                for name in names {
                    // To delete what does not exist is no error; a name is a queue's or an exchange's.
                    channel.queue_delete(name.as_str().into(), QueueDeleteOptions::default()).await?;
                    channel.exchange_delete(name.as_str().into(), ExchangeDeleteOptions::default()).await?;
                }
                connection.close(200, "OK".into()).await
            })
        });
        let cleaned = cleaner.join().expect("the cleaner");
        if !std::thread::panicking() {
            cleaned.expect("the test's queues and exchanges are deleted");
        }
    }
}

fn server() -> String {
    const VARIABLE: &str = "TOWPATH_TEST_AMQP_URL";
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} is not set: run `cargo xtask test`, or `eval \"$(cargo xtask services env)\"` first"
        )
    })
}

fn connect(url: &str) -> Arc<dyn Broker> {
    Arc::new(RabbitMq::connect(&BrokerUrl::parse(url).expect("an AMQP URL")).expect("a handle"))
}

/// Runs a command of the server's own tool, where one is given.
async fn ctl(command: &str) -> Option<()> {
    let tool = std::env::var("TOWPATH_TEST_AMQP_CTL").ok()?;
    let done =
        tokio::process::Command::new("sh").arg("-c").arg(format!("{tool} {command}")).output().await.unwrap();
    assert!(done.status.success(), "{command}: {done:?}");
    Some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_and_a_wrong_virtual_host_are_denied() {
    let mut uri: AMQPUri = server().parse().unwrap();
    uri.authority.userinfo.password = "wr0ng-s3cret".to_owned();
    let wrong_password = uri.to_string();
    let mut uri: AMQPUri = server().parse().unwrap();
    uri.vhost = "no-such-virtual-host".to_owned();
    for url in [wrong_password, uri.to_string()] {
        let broker = RabbitMq::connect(&BrokerUrl::parse(&url).unwrap()).unwrap();
        let error = broker.ready().await.unwrap_err();
        assert!(matches!(error, BrokerError::Denied(_)), "{error:?}");
        assert_eq!(error.class(), ErrorClass::Denied);
        let destination =
            towpath_core::ports::broker::Destination { exchange: "e".into(), routing_key: "k".into() };
        let outcomes = broker.publish(&[message(&destination, "")], Duration::from_secs(10)).await;
        assert!(matches!(outcomes[..], [Published::NotSent { .. }]), "{outcomes:?}");
        let shown = format!("{broker:?} {error:?} {error} {outcomes:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_queue_keeps_the_contract() {
    let fixture = RabbitFixture::fresh();
    let broker = fixture.connect().await;
    let lane = Lane::with_arguments(&fixture, vec![text("x-queue-type", "quorum")]);
    lane.declare(&*broker).await;
    let mut messages = numbered(&lane.destination, 300);
    messages[150].destination = lane.nowhere();
    let outcomes = publish(&*broker, &messages).await;
    for (place, outcome) in outcomes.iter().enumerate() {
        assert_eq!(*outcome == Published::Confirmed, place != 150, "{place}: {outcome:?}");
    }
    let received = take(&*subscribe(&*broker, &lane.queue, 50).await, 299).await;
    assert!(!bodies(&received).contains(&"150".to_owned()));
}

/// `basic.nack`: a queue that is full and told to refuse.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_that_rejects_publishes_refuses() {
    let fixture = RabbitFixture::fresh();
    let broker = fixture.connect().await;
    let lane = Lane::with_arguments(
        &fixture,
        vec![number("x-max-length", 10), text("x-overflow", "reject-publish")],
    );
    lane.declare(&*broker).await;
    let outcomes = publish(&*broker, &numbered(&lane.destination, 100)).await;
    let confirmed = outcomes.iter().filter(|outcome| **outcome == Published::Confirmed).count();
    let refused = outcomes.iter().filter(|outcome| matches!(outcome, Published::NotTaken { .. })).count();
    assert!(confirmed >= 10 && refused > 0 && confirmed + refused == 100, "{confirmed} and {refused}");
    take(&*subscribe(&*broker, &lane.queue, 10).await, 10).await;
}

/// The broker closes the channel over one message and says which exchange, but not which message: it is found, and
/// what stands before it is not held up by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_closes_the_channel_is_found() {
    let (fixture, place) = (RabbitFixture::fresh(), 7);
    let (broker, lane) = Lane::ready(&fixture).await;
    let internal = fixture.fresh_name("internal");
    let connection = lapin::Connection::connect(&server(), Default::default()).await.unwrap();
    let options = ExchangeDeclareOptions { internal: true, ..ExchangeDeclareOptions::default() };
    let channel = connection.create_channel().await.unwrap();
    channel
        .exchange_declare(internal.as_str().into(), lapin::ExchangeKind::Topic, options, Default::default())
        .await
        .unwrap();
    let mut messages = numbered(&lane.destination, 20);
    messages[place].destination.exchange.clone_from(&internal);
    let outcomes = publish(&*broker, &messages).await;
    for (other, outcome) in outcomes.iter().enumerate() {
        let expected = match outcome {
            Published::Confirmed => other < place,
            Published::Refused { reason } => other == place && reason.contains(&internal),
            Published::NotSent { .. } => other > place,
            Published::Unknown { .. } | Published::Unroutable { .. } | Published::NotTaken { .. } => false,
        };
        assert!(expected, "{other}: {outcome:?}");
    }
    publish_all(&*broker, &numbered(&lane.destination, 20)).await;
}

/// Measures `publish`: `cargo test -p towpath-broker --release --test rabbitmq -- --ignored --nocapture rate`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn publish_rate() {
    const BATCHES: usize = 50;
    for kind in ["classic", "quorum"] {
        let fixture = RabbitFixture::fresh();
        let broker = fixture.connect().await;
        let lane = Lane::with_arguments(&fixture, vec![text("x-queue-type", kind)]);
        lane.declare(&*broker).await;
        let mut messages = numbered(&lane.destination, 1000);
        for message in &mut messages {
            message.body = vec![b'x'; 500];
        }
        publish_all(&*broker, &messages).await;
        let began = Instant::now();
        for _ in 0..BATCHES {
            publish_all(&*broker, &messages).await;
        }
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{kind}: {:.0} messages/s in batches of 1000, {:.1} ms a batch",
            (BATCHES * 1000) as f64 / seconds,
            seconds * 1000.0 / BATCHES as f64
        );
    }
}
