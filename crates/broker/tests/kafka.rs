//! The broker contract on Kafka, and what is Kafka's own.
//!
//! `TOWPATH_TEST_KAFKA_URL` names the server (`cargo xtask services env` prints it). With `TOWPATH_TEST_KAFKA_PROGRAM`,
//! the `file://` URL of a nisshi program, cases that cut connections or end the broker run too, each on a broker of its
//! own. That broker keeps its data in memory, so what is confirmed cannot survive its restart here.

#![cfg(feature = "kafka")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use chrono::Utc;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use towpath_broker::{BrokerUrl, Kafka};
use towpath_core::ports::broker::{
    Broker, BrokerError, Deliveries, Destination, Message, Published, Received, Settlement,
};
use towpath_testkit::VirtualClock;
use towpath_testkit::broker::acts::{
    Lane, bodies, message, next, numbered, numbered_with_keys, numbers, publish, publish_again, publish_all,
    publish_within, settle, subscribe, take, text,
};
use towpath_testkit::broker::{BrokerFixture, OwnKafka};
use towpath_testkit::store::waiting::{eventually, in_time};
use uuid::Uuid;

towpath_testkit::broker_conformance!(
    KafkaFixture::fresh(),
    left out: a_mismatch_names_the_argument,
    arguments_of_every_type_are_declared,
    exactly_the_unroutable_message_is_told,
    many_unroutable_messages_are_told_exactly,
    one_id_to_two_places_has_two_outcomes,
    a_rejected_message_goes_to_the_dead_letters,
    a_delay_queue_routes_on_after_its_time,
    // Its data is in memory, and it has no alarm.
    what_is_confirmed_survives_a_restart,
    a_broker_that_takes_nothing_is_waited_for,
);

/// Topics on the server that are deleted with the test; or a server of the test's own, which ends with it.
struct KafkaFixture {
    names: Mutex<Vec<String>>,
    own_port: OnceLock<u16>,
    own: Mutex<Option<OwnKafka>>,
}

impl KafkaFixture {
    fn fresh() -> Self {
        Self { names: Mutex::default(), own_port: OnceLock::new(), own: Mutex::default() }
    }

    /// Where handles connect to.
    fn servers(&self) -> String {
        match (&*self.own.lock().unwrap(), self.own_port.get()) {
            (Some(_), Some(port)) => format!("127.0.0.1:{port}"),
            _ => shared_server(),
        }
    }

    /// Starts a server for this test alone; `None` where there is no program for it.
    async fn start_own(&self, advertised: SocketAddr) -> Option<()> {
        let own = OwnKafka::start(&OwnKafka::program()?, *self.own_port.get()?, advertised).await;
        *self.own.lock().unwrap() = Some(own);
        Some(())
    }

    /// Another handle on which this lane is declared.
    async fn connect_declared(&self, lane: &Lane) -> Arc<dyn Broker> {
        let broker = self.connect().await;
        lane.declare(&*broker).await;
        broker
    }

    /// A server for this test alone, to which everybody connects directly.
    async fn with_own_server() -> Option<Self> {
        let fixture = Self::fresh();
        let address = fixture.server()?.parse().unwrap();
        fixture.start_own(address).await?;
        Some(fixture)
    }
}

/// Names on a server that forgets them by itself.
#[cfg(feature = "kafka-tls")]
struct NamesOnly;

#[cfg(feature = "kafka-tls")]
#[async_trait::async_trait]
impl BrokerFixture for NamesOnly {
    async fn connect(&self) -> Arc<dyn Broker> {
        connect(&shared_server())
    }

    fn fresh_name(&self, what: &str) -> String {
        format!("towpath-test.{}.{what}", Uuid::now_v7())
    }
}

#[async_trait::async_trait]
impl BrokerFixture for KafkaFixture {
    async fn connect(&self) -> Arc<dyn Broker> {
        connect(&self.servers())
    }

    fn fresh_name(&self, what: &str) -> String {
        let name = format!("towpath-test.{}.{what}", Uuid::now_v7());
        self.names.lock().unwrap().push(name.clone());
        name
    }

    /// Brokers take a little less than a megabyte unless they are told otherwise.
    fn large_body(&self) -> usize {
        900_000
    }

    fn server(&self) -> Option<String> {
        OwnKafka::program()?;
        let port = self.own_port.get_or_init(OwnKafka::free_port);
        Some(format!("127.0.0.1:{port}"))
    }

    /// A broker tells its clients where to connect to, so one behind a proxy must know the proxy.
    async fn connect_through(&self, address: SocketAddr) -> Option<Arc<dyn Broker>> {
        let started = self.own.lock().unwrap().is_some();
        if !started {
            self.start_own(address).await?;
        }
        Some(connect(&address.to_string()))
    }
}

impl Drop for KafkaFixture {
    fn drop(&mut self) {
        let names = std::mem::take(&mut *self.names.lock().unwrap());
        if self.own.lock().unwrap().is_some() || names.is_empty() {
            return;
        }
        let servers = self.servers();
        // `drop` cannot wait, and the test's own runtime may be shutting down: clean up in another.
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let admin = admin(&servers);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            // A name is a topic's or a consumer group's; those that are no topics are told as such.
            runtime.block_on(admin.delete_topics(&names, &AdminOptions::new())).map(|_| ())
        });
        let cleaned = cleaner.join().expect("the cleaner");
        if !std::thread::panicking() {
            cleaned.expect("the test's topics are deleted");
        }
    }
}

fn shared_server() -> String {
    const VARIABLE: &str = "TOWPATH_TEST_KAFKA_URL";
    let url = std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "{VARIABLE} is not set: run `cargo xtask test`, or `eval \"$(cargo xtask services env)\"` first"
        )
    });
    url.trim_start_matches("kafka://").trim_end_matches('/').to_owned()
}

fn connect(servers: &str) -> Arc<dyn Broker> {
    let url = BrokerUrl::parse(&format!("kafka://{servers}")).expect("a Kafka URL");
    Arc::new(Kafka::connect(&url).expect("a handle"))
}

fn admin(servers: &str) -> AdminClient<DefaultClientContext> {
    ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("allow.auto.create.topics", "false")
        .create()
        .unwrap()
}

/// The number of partitions of every topic.
fn partitions(servers: &str) -> HashMap<String, usize> {
    let metadata = admin(servers).inner().fetch_metadata(None, Duration::from_secs(30)).unwrap();
    let topics = metadata.topics().iter();
    topics.map(|topic| (topic.name().to_owned(), topic.partitions().len())).collect()
}

/// How many messages of a topic a group has committed.
fn committed(servers: &str, group: &str, topic: &str) -> i64 {
    let count = partitions(servers)[topic];
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_range(topic, 0, count as i32 - 1);
    let committed = consumer.committed_offsets(list, Duration::from_secs(30)).unwrap();
    let offsets = committed.elements();
    offsets.iter().map(|element| if let Offset::Offset(offset) = element.offset() { offset } else { 0 }).sum()
}

fn id(received: &Received) -> String {
    received.message_id.clone().unwrap()
}

/// The next message of either, acknowledged, and whose it was.
async fn take_of_either(first: &dyn Deliveries, second: &dyn Deliveries) -> (usize, Received) {
    in_time("receiving", async {
        let (which, received) = tokio::select! {
            received = first.next() => (0, received.expect("a message")),
            received = second.next() => (1, received.expect("a message")),
        };
        settle(if which == 0 { first } else { second }, &received, Settlement::Acknowledge).await;
        (which, received)
    })
    .await
}

/// A member that joins in the middle gets its share, and nothing is lost on the way.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_member_gets_its_share_and_nothing_is_lost() {
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    let messages = numbered_with_keys(&lane.destination, 200);
    publish_all(&*broker, &messages[..100]).await;
    let first = subscribe(&*broker, &lane.queue, 5).await;
    let mut seen: BTreeSet<String> = take(&*first, 20).await.iter().map(id).collect();
    // Some are under way when the partitions change hands.
    let held = next(&*first).await;
    let other = fixture.connect().await;
    lane.declare(&*other).await;
    let second = subscribe(&*other, &lane.queue, 5).await;
    // Where its partition has stayed with the first, this counts and it does not come again; else it does.
    settle(&*first, &held, Settlement::Acknowledge).await;
    seen.insert(id(&held));
    publish_all(&*broker, &messages[100..]).await;
    let mut shares = [0; 2];
    let all: BTreeSet<String> = messages.iter().map(|message| message.message_id.clone()).collect();
    while seen != all {
        let (which, received) = take_of_either(&*first, &*second).await;
        seen.insert(id(&received));
        shares[which] += 1;
    }
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
}

/// A member that has stopped fetching, because it has enough, fetches again when its partitions come back to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_member_goes_on_after_its_partitions_changed_hands() {
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    // Several times as many as a member keeps waiting.
    let messages = numbered_with_keys(&lane.destination, 2000);
    publish_all(&*broker, &messages).await;
    let first = subscribe(&*broker, &lane.queue, 1).await;
    let held = next(&*first).await;
    // The group takes longer to let another in than the first to fill up.
    let other = fixture.connect().await;
    lane.declare(&*other).await;
    let second = subscribe(&*other, &lane.queue, 1).await;
    settle(&*first, &held, Settlement::Acknowledge).await;
    let mut shares = [0; 2];
    let mut seen = BTreeSet::from([id(&held)]);
    while seen.len() < messages.len() {
        let (which, received) = take_of_either(&*first, &*second).await;
        seen.insert(id(&received));
        shares[which] += 1;
    }
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
}

/// What a member holds when it goes comes to the other at once: it says goodbye.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dropped_member_held_comes_to_the_other() {
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    let first = subscribe(&*broker, &lane.queue, 100).await;
    let second = subscribe(&*broker, &lane.queue, 100).await;
    publish_all(&*broker, &numbered_with_keys(&lane.destination, 50)).await;
    let mut held = vec![next(&*first).await, next(&*first).await, next(&*first).await];
    drop(first);
    let mut seen = BTreeSet::new();
    while seen.len() < 50 {
        let received = take(&*second, 1).await.remove(0);
        seen.insert(id(&received));
    }
    held.retain(|received| !seen.contains(&id(received)));
    assert_eq!(held, []);
}

/// One that is killed cannot say goodbye: the group waits for its session to end.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_member_held_comes_to_another() {
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    publish_all(&*broker, &numbered_with_keys(&lane.destination, 30)).await;
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_member_that_will_be_killed", "--ignored", "--nocapture"])
        .env("TOWPATH_TEST_KAFKA_MEMBER", format!("{} {}", lane.destination.exchange, lane.queue))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap());
    let holding = tokio::task::spawn_blocking(move || {
        lines.lines().map_while(Result::ok).any(|line| line.contains("holds them all"))
    });
    assert!(in_time("the other process holding all messages", holding).await.unwrap());
    process.kill().unwrap();
    process.wait().unwrap();
    let deliveries = subscribe(&*broker, &lane.queue, 100).await;
    let ids: BTreeSet<String> = take(&*deliveries, 30).await.iter().map(id).collect();
    assert_eq!(ids.len(), 30);
}

/// Not a test of its own: the process that the one above kills.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by a_killed_member as another process"]
async fn a_member_that_will_be_killed() {
    let Ok(names) = std::env::var("TOWPATH_TEST_KAFKA_MEMBER") else { return };
    let (exchange, queue) = names.split_once(' ').unwrap();
    let broker = connect(&shared_server());
    let mut lane = Lane::of(&KafkaFixture::fresh());
    lane.topology.exchanges[0].name = exchange.to_owned();
    lane.topology.queues[0].name = queue.to_owned();
    lane.topology.bindings[0].exchange = exchange.to_owned();
    lane.topology.bindings[0].queue = queue.to_owned();
    lane.declare(&*broker).await;
    let deliveries = subscribe(&*broker, queue, 100).await;
    for _ in 0..30 {
        next(&*deliveries).await;
    }
    println!("holds them all");
    std::future::pending::<()>().await;
}

/// The group goes on where it was, also with a new handle.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_resumes_from_what_it_committed() {
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    publish_all(&*broker, &numbered(&lane.destination, 10)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 100).await;
    take(&*deliveries, 5).await;
    eventually("the commit", || async {
        (committed(&shared_server(), &lane.queue, &lane.destination.exchange) == 5).then_some(())
    })
    .await;
    take(&*deliveries, 1).await;
    in_time("closing", broker.close()).await;
    let other = fixture.connect().await;
    lane.declare(&*other).await;
    let deliveries = subscribe(&*other, &lane.queue, 100).await;
    assert_eq!(bodies(&take(&*deliveries, 4).await), numbers(6..10), "closing commits what is settled");
}

/// An unsettled message holds the commit: what is settled behind it is not lost sight of.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_committed_past_an_unsettled_message() {
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    publish_all(&*broker, &numbered(&lane.destination, 10)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 100).await;
    take(&*deliveries, 2).await;
    let held = next(&*deliveries).await;
    take(&*deliveries, 7).await;
    drop(deliveries);
    let deliveries = subscribe(&*broker, &lane.queue, 100).await;
    assert_eq!(bodies(&take(&*deliveries, 8).await), numbers(2..10));
    assert_eq!(bodies(&[held]), ["2"]);
}

/// Messages of one key come in order and to one member, however many partitions and members there are.
#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_each_key_is_kept_across_partitions_and_members() {
    const KEYS: usize = 20;
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    let first = subscribe(&*broker, &lane.queue, 50).await;
    let second = subscribe(&*broker, &lane.queue, 50).await;
    let mut messages = numbered(&lane.destination, 400);
    for (place, message) in messages.iter_mut().enumerate() {
        message.key = format!("order-{}", place % KEYS);
    }
    for batch in messages.chunks(70) {
        publish_all(&*broker, batch).await;
    }
    let mut by_key: HashMap<String, Vec<(usize, usize)>> = HashMap::new();
    for _ in 0..messages.len() {
        let (which, received) = take_of_either(&*first, &*second).await;
        let number = String::from_utf8(received.body).unwrap().parse().unwrap();
        by_key.entry(received.key.unwrap()).or_default().push((which, number));
    }
    assert_eq!(by_key.len(), KEYS);
    let members: BTreeSet<usize> = by_key.values().map(|taken| taken[0].0).collect();
    assert_eq!(members.len(), 2, "both have some keys");
    for (key, taken) in by_key {
        assert!(taken.is_sorted_by_key(|(_, number)| *number), "{key}: {taken:?}");
        assert!(taken.iter().all(|(which, _)| *which == taken[0].0), "{key}: {taken:?}");
    }
}

/// What the bindings do not fit is skipped, and the group does not look at it again.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_wants_is_committed_too() {
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    publish_all(&*broker, &numbered_with_keys(&lane.nowhere(), 30)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 1).await;
    eventually("the commit", || async {
        (committed(&shared_server(), &lane.queue, &lane.destination.exchange) == 30).then_some(())
    })
    .await;
    publish_all(&*broker, &numbered(&lane.destination, 1)).await;
    assert_eq!(bodies(&take(&*deliveries, 1).await), ["0"]);
}

/// Neither asking for a topic nor publishing to it creates it.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_topic_is_refused_and_never_created() {
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    let nowhere =
        Destination { exchange: fixture.fresh_name("nowhere"), routing_key: "order.placed".to_owned() };
    for _ in 0..2 {
        let outcomes = publish(&*broker, &[message(&nowhere, "lost?")]).await;
        assert!(
            matches!(&outcomes[..], [Published::Refused { reason }] if reason.contains(&nowhere.exchange))
        );
    }
    let mut topology = lane.topology.clone();
    topology.exchanges.clear();
    topology.bindings[0].exchange.clone_from(&nowhere.exchange);
    let declared = in_time("declaring", broker.declare(&topology)).await;
    assert!(matches!(declared, Err(BrokerError::Missing { what: "exchange", .. })), "{declared:?}");
    let topics = partitions(&shared_server());
    assert!(topics.contains_key(&lane.destination.exchange));
    assert!(!topics.contains_key(&nowhere.exchange));
}

/// The URL says how topics are made, and one that exists is taken as it is.
#[tokio::test(flavor = "multi_thread")]
async fn topics_have_the_partitions_of_the_url_that_made_them() {
    let fixture = KafkaFixture::fresh();
    let lane = Lane::of(&fixture);
    lane.declare(&*connect(&format!("{}?partitions=3", shared_server()))).await;
    assert_eq!(partitions(&shared_server())[&lane.destination.exchange], 3);
    let broker = fixture.connect().await;
    lane.declare(&*broker).await;
    assert_eq!(partitions(&shared_server())[&lane.destination.exchange], 3);
    publish_all(&*broker, &numbered_with_keys(&lane.destination, 30)).await;
    take(&*subscribe(&*broker, &lane.queue, 10).await, 30).await;
    let other = Lane::of(&fixture);
    other.declare(&*broker).await;
    assert_eq!(partitions(&shared_server())[&other.destination.exchange], 8);
}

/// Kafka forgets a group's position when nobody has used it for a while. What inboxes remember is read again, and what they
/// do not is not: it would have its effects twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_without_a_position_reads_again_what_inboxes_remember_and_nothing_else() {
    const DAY: Duration = Duration::from_secs(86_400);
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    publish_all(&*broker, &numbered_with_keys(&lane.destination, 30)).await;
    let forgetful = |parameters: &str| {
        let url = BrokerUrl::parse(&format!("kafka://{}{parameters}", shared_server())).unwrap();
        Kafka::connect(&url).unwrap().remembered_for(Duration::ZERO, Arc::new(VirtualClock::at(Utc::now())))
    };
    let two_days_ahead = Arc::new(VirtualClock::at(Utc::now() + 2 * DAY));
    for handle in [forgetful(""), forgetful("").remembered_for(DAY, two_days_ahead)] {
        lane.declare(&handle).await;
        let told = refusal(&handle, &lane.queue).await;
        assert!(told.contains(&lane.queue) && told.contains("older than inboxes remember"), "{told}");
    }

    // Told to, it begins all the same; and one that has a position goes on from there.
    let handle = forgetful("?beginning=always");
    lane.declare(&handle).await;
    take(&*subscribe(&handle, &lane.queue, 10).await, 30).await;
    handle.close().await;
    let handle = forgetful("");
    lane.declare(&handle).await;
    publish_all(&*broker, &numbered_with_keys(&lane.destination, 8)).await;
    take(&*subscribe(&handle, &lane.queue, 10).await, 8).await;
    handle.close().await;
    // Within the horizon nobody has to be told.
    let (other, mut topology) = (fixture.fresh_name("other"), lane.topology.clone());
    topology.queues[0].name.clone_from(&other);
    topology.bindings[0].queue.clone_from(&other);
    broker.declare(&topology).await.unwrap();
    take(&*subscribe(&*broker, &other, 10).await, 38).await;
}

/// A position that the topic does not have (any more) is not replaced by another one silently.
#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_is_not_there_is_told_or_begins_anew() {
    let fixture = KafkaFixture::fresh();
    let broker = connect(&format!("{}?partitions=1", shared_server()));
    let lane = Lane::of(&fixture);
    lane.declare(&*broker).await;
    let mut topology = lane.topology.clone();
    publish_all(&*broker, &numbered(&lane.destination, 10)).await;
    // Beyond the end: the topic was made anew since.
    commit(&shared_server(), &lane.queue, &lane.destination.exchange, 1000);
    let deliveries = subscribe(&*broker, &lane.queue, 10).await;
    assert_eq!(bodies(&take(&*deliveries, 10).await), numbers(0..10));
    drop(deliveries);
    // Before the first: nobody has read what was deleted.
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&lane.destination.exchange, 0, Offset::Offset(5)).unwrap();
    let (servers, deleting) = (shared_server(), AdminOptions::new());
    if let Err(error) = admin(&servers).delete_records(&list, &deleting).await {
        println!("this broker deletes no records: {error}");
        return;
    }
    let other = fixture.fresh_name("late");
    commit(&servers, &other, &lane.destination.exchange, 2);
    topology.queues[0].name.clone_from(&other);
    topology.bindings[0].queue.clone_from(&other);
    broker.declare(&topology).await.unwrap();
    let told = refusal(&*broker, &other).await;
    assert!(told.contains("3 messages that nobody has read"), "{told}");
}

/// Why a subscription does not bring anything.
async fn refusal(broker: &dyn Broker, queue: &str) -> String {
    let subscription = towpath_core::ports::broker::Subscription {
        queue: queue.to_owned(),
        group: String::new(),
        prefetch: 10,
    };
    let error = match broker.subscribe(&subscription).await {
        Ok(deliveries) => in_time("being told", deliveries.next()).await.expect_err("a refusal"),
        Err(error) => error,
    };
    assert!(matches!(error, BrokerError::Refused { .. }), "{error:?}");
    std::error::Error::source(&error).unwrap().to_string()
}

/// Sets a group's position in a topic of one partition.
fn commit(servers: &str, group: &str, topic: &str, offset: i64) {
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", servers).set("group.id", group).create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, 0, Offset::Offset(offset)).unwrap();
    consumer.commit(&list, rdkafka::consumer::CommitMode::Sync).unwrap();
}

/// A member that comes takes over some partitions. What the others keep is not interrupted: nothing of it comes again.
#[tokio::test(flavor = "multi_thread")]
async fn who_keeps_a_partition_keeps_what_was_received_from_it() {
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    let messages = numbered_with_keys(&lane.destination, 64);
    publish_all(&*broker, &messages).await;
    let first = subscribe(&*broker, &lane.queue, 64).await;
    let mut held = HashMap::new();
    for _ in 0..64 {
        let received = next(&*first).await;
        held.insert(id(&received), received);
    }
    // Its share comes to the second once more: the first had not settled it.
    let second = subscribe(&*fixture.connect_declared(&lane).await, &lane.queue, 64).await;
    let moved = id(&next(&*second).await);
    assert!(held.contains_key(&moved));
    for received in held.values() {
        settle(&*first, received, Settlement::Acknowledge).await;
    }
    // What the first gets from now on is new to it.
    publish_all(&*broker, &numbered_with_keys(&lane.destination, 64)).await;
    let received = next(&*first).await;
    assert!(!held.contains_key(&id(&received)), "it came again");
}

/// With TLS: the server's certificate is one of an authority of our own.
#[cfg(feature = "kafka-tls")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_a_private_authority_is_trusted_when_the_authority_is_named() {
    let Some(program) = OwnKafka::program() else { return };
    let folder = std::env::temp_dir().join(format!("towpath-test-{}", Uuid::now_v7()));
    std::fs::create_dir(&folder).unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=kafka", "-addext", "subjectAltName = IP:127.0.0.1"])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(&folder)
        .stderr(Stdio::null())
        .status();
    assert!(made.expect("openssl").success());
    let file = |name: &str| folder.join(name).display().to_string();
    let port = OwnKafka::free_port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let more = ["--cert", &file("cert.pem"), "--key", &file("key.pem")].map(str::to_owned);
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let _server = OwnKafka::start_with(&program, port, address, &more).await;
    let handle = |query: &str| connect(&format!("{address}{query}"));

    let broker = handle(&format!("?tls=true&cacert={}", file("cert.pem")));
    let lane = Lane::of(&NamesOnly);
    lane.declare(&*broker).await;
    publish_all(&*broker, &numbered(&lane.destination, 50)).await;
    take(&*subscribe(&*broker, &lane.queue, 10).await, 50).await;

    for query in ["?tls=true", ""] {
        let error = handle(query).ready().await.unwrap_err();
        assert!(matches!(error, BrokerError::Unavailable(_)), "{query}: {error:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Queues have no arguments here, and names have rules: told, not left out.
#[tokio::test(flavor = "multi_thread")]
async fn what_kafka_cannot_do_is_refused() {
    let fixture = KafkaFixture::fresh();
    let broker = fixture.connect().await;
    let with_argument = Lane::with_arguments(&fixture, vec![text("x-dead-letter-exchange", "dead")]);
    let error = in_time("declaring", broker.declare(&with_argument.topology)).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        matches!(error, BrokerError::Refused { .. }) && cause.contains("x-dead-letter-exchange"),
        "{cause}"
    );
    let mut spaced = Lane::of(&fixture);
    spaced.topology.exchanges[0].name = "no such topic".to_owned();
    spaced.topology.bindings.clear();
    let error = in_time("declaring", broker.declare(&spaced.topology)).await.unwrap_err();
    assert!(matches!(error, BrokerError::Refused { .. }), "{error:?}");
    // A message to such a topic, one with a name that no record can have, and one that is too large.
    let lane = Lane::of(&fixture);
    lane.declare(&*broker).await;
    let mut messages = numbered(&lane.destination, 5);
    messages[1].destination.exchange = "no such topic".to_owned();
    messages[2].headers = vec![("a\0b".to_owned(), String::new())];
    messages[3].body = vec![0; 17 << 20];
    let outcomes = publish(&*broker, &messages).await;
    for (place, outcome) in outcomes.iter().enumerate() {
        let expected = match outcome {
            Published::Confirmed => [0, 4].contains(&place),
            Published::Refused { reason } => [1, 2, 3].contains(&place) && !reason.is_empty(),
            _ => false,
        };
        assert!(expected, "{place}: {outcome:?}");
    }
    assert_eq!(bodies(&take(&*subscribe(&*broker, &lane.queue, 10).await, 2).await), ["0", "4"]);
}

/// A header of the sender's that has one of our names stays the sender's.
#[tokio::test(flavor = "multi_thread")]
async fn headers_with_our_names_stay_the_senders() {
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    let sent = Message {
        headers: vec![
            (towpath_broker::kafka::MESSAGE_ID_HEADER.to_owned(), "theirs".to_owned()),
            ("twice".to_owned(), "one".to_owned()),
            ("twice".to_owned(), "two".to_owned()),
        ],
        ..message(&lane.destination, "")
    };
    publish_all(&*broker, std::slice::from_ref(&sent)).await;
    let received = take(&*subscribe(&*broker, &lane.queue, 1).await, 1).await.remove(0);
    assert_eq!((received.message_id, received.headers), (Some(sent.message_id), sent.headers.into()));
}

/// What others publish has none of our headers.
#[tokio::test(flavor = "multi_thread")]
async fn records_of_others_are_received() {
    let fixture = KafkaFixture::fresh();
    // Their times are their own: this one is older than any inbox.
    let broker = connect(&format!("{}?beginning=always", shared_server()));
    let mut lane = Lane::of(&fixture);
    lane.topology.bindings[0].routing_key = "#".to_owned();
    lane.declare(&*broker).await;
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", shared_server()).create().unwrap();
    producer
        .send(BaseRecord::<(), [u8]>::to(&lane.destination.exchange).payload(&[0xff, 0xfe]).timestamp(1_000))
        .unwrap();
    tokio::task::spawn_blocking(move || producer.flush(Duration::from_secs(30))).await.unwrap().unwrap();
    let received = take(&*subscribe(&*broker, &lane.queue, 1).await, 1).await.remove(0);
    assert_eq!(received.body, [0xff, 0xfe]);
    assert_eq!((received.message_id, received.message_type, received.key), (None, None, None));
    assert_eq!(received.occurred_at.map(|time| time.timestamp_millis()), Some(1_000));
    assert_eq!((received.destination.routing_key.as_str(), received.headers.len()), ("", 0));
}

/// A broker that ends and comes back: nothing is said to be there that may not be, receivers are told, and the handle
/// works again.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_goes_away_is_told_and_found_again() {
    const PATIENCE: Duration = Duration::from_millis(500);
    let Some(fixture) = KafkaFixture::with_own_server().await else { return };
    let (broker, lane) = Lane::ready(&fixture).await;
    publish_all(&*broker, &numbered(&lane.destination, 10)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 100).await;
    take(&*deliveries, 5).await;
    drop(fixture.own.lock().unwrap().take());
    // The first finds out; from then on nothing leaves.
    let outcomes = publish_within(&*broker, &numbered(&lane.destination, 10), PATIENCE).await;
    let lost = |outcome: &Published| matches!(outcome, Published::Unknown { .. } | Published::NotSent { .. });
    assert!(outcomes.iter().all(lost), "{outcomes:?}");
    let outcomes = publish_within(&*broker, &numbered(&lane.destination, 10), PATIENCE).await;
    assert!(
        outcomes.iter().all(|outcome| matches!(outcome, Published::NotSent { reason } if !reason.is_empty())),
        "{outcomes:?}"
    );
    let told = in_time("being told", async {
        loop {
            if let Err(error) = deliveries.next().await {
                break error;
            }
        }
    });
    assert!(matches!(told.await, BrokerError::Unavailable(_)));
    drop(deliveries);
    fixture.start_own(fixture.server().unwrap().parse().unwrap()).await.unwrap();
    // It kept nothing, not even the topic.
    eventually("declaring again", || async { broker.declare(&lane.topology).await.ok() }).await;
    let after = message(&lane.destination, "after");
    publish_again(&*broker, &after).await;
    let received = next(&*subscribe(&*broker, &lane.queue, 100).await).await;
    assert_eq!(received.message_id, Some(after.message_id));
}

/// Measures publishing and receiving: `cargo test -p towpath-broker --release --features kafka --test kafka --
/// --ignored --nocapture rate`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn publish_and_receive_rate() {
    const BATCHES: usize = 20;
    let fixture = KafkaFixture::fresh();
    let (broker, lane) = Lane::ready(&fixture).await;
    let mut messages = numbered_with_keys(&lane.destination, 1000);
    for message in &mut messages {
        message.body = vec![b'x'; 500];
    }
    publish_all(&*broker, &messages).await;
    let began = std::time::Instant::now();
    for _ in 0..BATCHES {
        publish_all(&*broker, &messages).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{:.0} messages/s published in batches of 1000", (BATCHES * 1000) as f64 / seconds);
    let deliveries = subscribe(&*broker, &lane.queue, 200).await;
    let began = std::time::Instant::now();
    take(&*deliveries, (BATCHES + 1) * 1000).await;
    let seconds = began.elapsed().as_secs_f64();
    println!("{:.0} messages/s received and settled", ((BATCHES + 1) * 1000) as f64 / seconds);
}
