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

use lapin::options::{
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::uri::AMQPUri;
use towpath_broker::{BrokerUrl, RabbitMq};
use towpath_core::ports::broker::{
    Broker, BrokerError, Destination, Exchange, ExchangeKind, Published, Queue, Settlement, Subscription,
    Topology,
};
use towpath_core::retry::{Coded as _, ErrorClass};
use towpath_testkit::broker::acts::{
    Lane, bodies, message, next, number, numbered, publish, publish_all, settle, subscribe, take, text,
};
use towpath_testkit::broker::{BrokerFixture, TcpProxy};
use towpath_testkit::store::waiting::eventually;
use towpath_testkit::under_control;
use uuid::Uuid;

towpath_testkit::broker_conformance!(RabbitFixture::fresh());

/// Names on the server that are deleted with the test.
struct RabbitFixture {
    url: String,
    names: Mutex<Vec<String>>,
}

impl RabbitFixture {
    fn fresh() -> Self {
        Self::at(server())
    }

    fn at(url: String) -> Self {
        Self { url, names: Mutex::default() }
    }
}

#[async_trait::async_trait]
impl BrokerFixture for RabbitFixture {
    async fn connect(&self) -> Arc<dyn Broker> {
        connect(&self.url)
    }

    fn fresh_name(&self, what: &str) -> String {
        let name = format!("towpath-test.{}.{what}", Uuid::now_v7());
        self.names.lock().unwrap().push(name.clone());
        name
    }

    fn server(&self) -> Option<String> {
        let uri: AMQPUri = self.url.parse().unwrap();
        Some(format!("{}:{}", uri.authority.host, uri.authority.port))
    }

    async fn connect_through(&self, address: SocketAddr) -> Option<Arc<dyn Broker>> {
        let mut uri: AMQPUri = self.url.parse().unwrap();
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
        let (names, url) = (std::mem::take(&mut *self.names.lock().unwrap()), self.url.clone());
        // `drop` cannot wait, and the test's own runtime may be shutting down: clean up in another.
        let cleaner = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            runtime.block_on(async {
                let connection = lapin::Connection::connect(&url, Default::default()).await?;
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

/// What a variable of RabbitMQ 4 says, where there is one. It runs in a root of the file system of its own: a machine where nobody
/// may mount anything cannot have it, and `cargo xtask ci` says so. Anywhere else nothing is left out there.
#[allow(clippy::print_stderr, reason = "whoever runs the case is told that it was left out")]
fn newer(variable: &str) -> Option<String> {
    if std::env::var_os(variable).is_none() && std::env::var_os("TOWPATH_TEST_NOBODY_MOUNTS").is_some() {
        eprintln!("left out: nobody may mount anything here, and so there is no RabbitMQ 4");
        return None;
    }
    under_control(variable)
}

fn connect(url: &str) -> Arc<dyn Broker> {
    Arc::new(RabbitMq::connect(&BrokerUrl::parse(url).expect("an AMQP URL")).expect("a handle"))
}

/// Runs a command of the server's own tool, where one is given.
async fn ctl(command: &str) -> Option<()> {
    let tool = under_control("TOWPATH_TEST_AMQP_CTL")?;
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
        let destination = Destination { exchange: "e".into(), routing_key: "k".into() };
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
    publish_all(&*broker, &numbered(&lane.destination, 1)).await;
    let connections = broker.connections();
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
    assert_eq!(
        broker.connections(),
        connections,
        "a broker that is well was not away: it has forgotten nothing"
    );
}

/// The broker closes a channel over a message to an exchange that is not there, and a connection has to go with it. However
/// often that is tried, it costs no connections, and everything else goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_is_missing_costs_no_connections() {
    let fixture = RabbitFixture::fresh();
    let (_, lane) = Lane::ready(&fixture).await;
    let proxy = TcpProxy::to(&fixture.server().unwrap()).await;
    let broker = fixture.connect_through(proxy.address()).await.unwrap();
    let missing = Destination { exchange: fixture.fresh_name("missing"), routing_key: "k".into() };
    for _ in 0..20 {
        let messages = [message(&missing, "to nobody"), message(&lane.destination, "to somebody")];
        let outcomes = publish(&*broker, &messages).await;
        let [Published::Refused { reason }, Published::Confirmed] = &outcomes[..] else {
            panic!("{outcomes:?}")
        };
        assert!(reason.contains(&missing.exchange), "{reason}");
    }
    assert_eq!(proxy.seen().connections, 1, "for so many messages to an exchange that is missing");

    // Declared by the same handle it is there at once, and by another one soon.
    let exchange = Exchange { name: missing.exchange.clone(), kind: ExchangeKind::Topic };
    broker.declare(&Topology { exchanges: vec![exchange], ..Topology::default() }).await.unwrap();
    let outcomes = publish(&*broker, &[message(&missing, "unbound")]).await;
    assert!(matches!(outcomes[..], [Published::Unroutable { .. }]), "{outcomes:?}");
    let later = Destination { exchange: fixture.fresh_name("later"), routing_key: "k".into() };
    let outcomes = publish(&*broker, &[message(&later, "too early")]).await;
    assert!(matches!(outcomes[..], [Published::Refused { .. }]), "{outcomes:?}");
    let exchange = Exchange { name: later.exchange.clone(), kind: ExchangeKind::Topic };
    let another = fixture.connect().await;
    another.declare(&Topology { exchanges: vec![exchange], ..Topology::default() }).await.unwrap();
    eventually("the exchange is seen", || async {
        let outcomes = publish(&*broker, &[message(&later, "unbound")]).await;
        matches!(outcomes[..], [Published::Unroutable { .. }]).then_some(())
    })
    .await;

    // Deleted under a connection that knew it: one connection is lost over it, and no more.
    let before = proxy.seen().connections;
    let connection = lapin::Connection::connect(&server(), Default::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.exchange_delete(later.exchange.as_str().into(), ExchangeDeleteOptions::default()).await.unwrap();
    for _ in 0..20 {
        let outcomes = publish(&*broker, &[message(&later, "gone")]).await;
        assert!(matches!(outcomes[..], [Published::Refused { .. }]), "{outcomes:?}");
    }
    assert_eq!(proxy.seen().connections, before + 1);
}

/// The same for an exchange that nobody may write to: each try costs a connection, so there are few.
#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_is_denied_costs_few_connections() {
    let fixture = RabbitFixture::fresh();
    let proxy = TcpProxy::to(&fixture.server().unwrap()).await;
    let broker = fixture.connect_through(proxy.address()).await.unwrap();
    let internal = Destination { exchange: fixture.fresh_name("internal"), routing_key: "k".into() };
    let connection = lapin::Connection::connect(&server(), Default::default()).await.unwrap();
    let options = ExchangeDeclareOptions { internal: true, ..ExchangeDeclareOptions::default() };
    let (channel, name) = (connection.create_channel().await.unwrap(), internal.exchange.as_str().into());
    channel.exchange_declare(name, lapin::ExchangeKind::Topic, options, Default::default()).await.unwrap();
    for _ in 0..100 {
        let outcomes = publish(&*broker, &[message(&internal, "to nobody")]).await;
        assert!(matches!(outcomes[..], [Published::Refused { .. }]), "{outcomes:?}");
    }
    // A slow machine may need longer for all of them than the broker is left alone for.
    let connections = proxy.seen().connections;
    assert!(connections <= 10, "{connections} connections for 100 messages");
}

/// A stream keeps what was acknowledged, begins at its end, and has no dead letters.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_refused_with_what_to_use_instead() {
    let fixture = RabbitFixture::fresh();
    let broker = fixture.connect().await;
    let lane = Lane::with_arguments(&fixture, vec![text("x-queue-type", "stream")]);
    let error = broker.declare(&lane.topology).await.unwrap_err();
    let told = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert!(matches!(error, BrokerError::Refused { .. }), "{told}");
    assert!(told.contains(&lane.queue) && told.contains("quorum"), "{told}");

    // One that somebody else made.
    let connection = lapin::Connection::connect(&server(), Default::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let mut arguments = lapin::types::FieldTable::default();
    arguments.insert("x-queue-type".into(), lapin::types::AMQPValue::LongString("stream".into()));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(lane.queue.as_str().into(), durable, arguments).await.unwrap();
    let subscription = Subscription { queue: lane.queue.clone(), group: "test".into(), prefetch: 10 };
    let error = broker.subscribe(&subscription).await.err().expect("a refusal");
    let told = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert!(matches!(error, BrokerError::Refused { .. }), "{told}");
    assert!(told.contains(&lane.queue) && told.contains("quorum"), "{told}");
}

/// The arguments of the queues that consumers declare where order is kept: however often a message comes back, it stays.
/// RabbitMQ 4 would give it up after 20 deliveries, and RabbitMQ 3 takes -1 for "at once".
#[tokio::test(flavor = "multi_thread")]
async fn a_message_may_come_back_as_often_as_it_takes() {
    let fixture = RabbitFixture::fresh();
    let broker = fixture.connect().await;
    let limit = number("x-delivery-limit", i64::from(i32::MAX));
    let lane = Lane::with_arguments(&fixture, vec![text("x-queue-type", "quorum"), limit]);
    lane.declare(&*broker).await;
    publish_all(&*broker, &numbered(&lane.destination, 1)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 1).await;
    for _ in 0..40 {
        let received = next(&*deliveries).await;
        settle(&*deliveries, &received, Settlement::Requeue).await;
    }
    take(&*deliveries, 1).await;
}

/// The arguments of the queues that consumers declare: what is given up waits until the queue behind has it. On RabbitMQ 4,
/// because ours tries again at once there; others wait for minutes.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_waits_for_the_queue_behind() {
    let Some(url) = newer("TOWPATH_TEST_AMQP4_URL") else { return };
    let fixture = RabbitFixture::at(url);
    let broker = fixture.connect().await;
    let behind = fixture.fresh_name("behind");
    let lane = Lane::with_arguments(
        &fixture,
        vec![
            text("x-queue-type", "quorum"),
            text("x-dead-letter-exchange", ""),
            text("x-dead-letter-routing-key", &behind),
            text("x-dead-letter-strategy", "at-least-once"),
            text("x-overflow", "reject-publish"),
        ],
    );
    lane.declare(&*broker).await;
    publish_all(&*broker, &numbered(&lane.destination, 3)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 3).await;
    for _ in 0..3 {
        let received = next(&*deliveries).await;
        settle(&*deliveries, &received, Settlement::Reject).await;
    }
    drop(deliveries);
    // Nothing comes back: the rejections have been handled, and there was no queue behind.
    eventually("all are rejected", || async {
        let standing = broker.queue_status(&[&lane.queue]).await.unwrap().remove(0)?;
        (standing.ready == 0 && standing.consumers == Some(0)).then_some(())
    })
    .await;
    let queue = Queue { name: behind.clone(), arguments: vec![text("x-queue-type", "quorum")] };
    broker.declare(&Topology { queues: vec![queue], ..Topology::default() }).await.unwrap();
    let dead = subscribe(&*broker, &behind, 10).await;
    let mut arrived = std::collections::BTreeSet::new();
    while arrived.len() < 3 {
        arrived.insert(String::from_utf8(take(&*dead, 1).await.remove(0).body).unwrap());
    }
}

/// Several servers in a URL: the first that answers is used.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_servers_is_enough() {
    let fixture = RabbitFixture::fresh();
    let uri: AMQPUri = server().parse().unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = TcpProxy::to(&fixture.server().unwrap()).await;
    let user = &uri.authority.userinfo;
    let url = |hosts: &str| format!("amqp://{}:{}@{hosts}/%2f", user.username, user.password);
    let several = url(&format!("{nobody},{},{}", proxy.address(), fixture.server().unwrap()));
    let broker = connect(&several);
    let lane = Lane::of(&fixture);
    lane.declare(&*broker).await;
    publish_all(&*broker, &numbered(&lane.destination, 10)).await;
    assert_eq!(proxy.seen().connections, 2, "the first that answers");
    // The second goes away; the third takes over.
    drop(proxy);
    eventually("another server is used", || async {
        let outcomes = publish(&*broker, &numbered(&lane.destination, 1)).await;
        (outcomes == [Published::Confirmed]).then_some(())
    })
    .await;
    // All of them away: each is named, and no password.
    let error = connect(&url(&format!("{nobody},localhost:1"))).ready().await.unwrap_err();
    let told = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert!(told.contains(&nobody.to_string()) && told.contains("localhost:1"), "{told}");
}

/// With TLS: an authority of our own, a server's certificate, a client's in place of a password.
mod tls {
    use super::*;

    /// The server's URL with the files for it, where there is a server that has them.
    fn secure() -> Option<String> {
        newer("TOWPATH_TEST_AMQPS_URL")
    }

    /// The same URL with only these of its parameters.
    fn with_only(url: &str, names: &[&str]) -> String {
        let (url, query) = url.split_once('?').unwrap();
        let kept: Vec<&str> = query
            .split('&')
            .filter(|parameter| names.contains(&parameter.split('=').next().unwrap()))
            .collect();
        format!("{url}?{}", kept.join("&"))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_of_a_private_authority_is_trusted_when_the_authority_is_named() {
        let Some(url) = secure() else { return };
        connect(&with_only(&url, &["cacert"])).ready().await.unwrap();
        let error = connect(&with_only(&url, &[])).ready().await.unwrap_err();
        assert!(matches!(error, BrokerError::Unavailable(_)), "{error:?}");
        let told = std::error::Error::source(&error).unwrap().to_string();
        assert!(told.contains("certificate"), "{told}");
        // The world's authorities count no more once one is named, and a name that the certificate does not have never does.
        let other = with_only(&url, &["cacert"]).replace("127.0.0.1", "127.0.0.2");
        let error = connect(&other).ready().await.unwrap_err();
        assert!(matches!(error, BrokerError::Unavailable(_)), "{error:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_clients_certificate_stands_for_its_user() {
        let Some(url) = secure() else { return };
        let without_password = url.replace("guest:guest@", "nobody:wrong@");
        let external = |names: &[&str]| with_only(&without_password, names) + "&auth_mechanism=external";
        connect(&external(&["cacert", "cert", "key"])).ready().await.unwrap();
        let error = connect(&external(&["cacert"])).ready().await.unwrap_err();
        assert!(matches!(error, BrokerError::Denied(_)), "{error:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn messages_go_both_ways() {
        let Some(url) = secure() else { return };
        // The names are removed without TLS.
        let fixture = RabbitFixture::at(std::env::var("TOWPATH_TEST_AMQP4_URL").unwrap());
        let broker = connect(&url);
        let lane = Lane::of(&fixture);
        lane.declare(&*broker).await;
        publish_all(&*broker, &numbered(&lane.destination, 500)).await;
        take(&*subscribe(&*broker, &lane.queue, 50).await, 500).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_that_is_no_certificate_is_told_at_once() {
        let Some(url) = secure() else { return };
        let file = std::env::current_exe().unwrap();
        let url = format!("{}?cacert={}", url.split_once('?').unwrap().0, file.display());
        let error = RabbitMq::connect(&BrokerUrl::parse(&url).unwrap()).unwrap_err();
        assert!(error.to_string().contains(&file.display().to_string()), "{error}");
        assert!(!error.to_string().contains("guest"), "{error}");
    }
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
