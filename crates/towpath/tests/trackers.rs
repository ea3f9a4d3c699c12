//! Channels that follow the log, on each database, to a real RabbitMQ: in the order of positions, nothing skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{Fresh, Order, OrderCommand, eventually, eventually_within};
use towpath::format::Formats;
use towpath::ids::{ActorId, ChannelName, Position};
use towpath::ports::broker::{
    Argument, Binding, Broker, Deliveries, Exchange, ExchangeKind, Queue, Received, Settlement, Subscription,
    Topology,
};
use towpath::ports::probe::Probe;
use towpath::ports::store::Inspection as _;
use towpath::retry::RetryPolicy;
use towpath::{
    BrokerUrl, Builder, Channel, ChannelPolicy, Coded as _, Consumer, ConsumerPolicy, Delivering,
    DeliveringOutcome, Delivery, EventEnvelope, Glob, HandlerError, Next, RabbitMq, Start, StoreOptions,
    Towpath, Watch,
};
use towpath_testkit::VirtualClock;

on_every_database!(
    a_new_channel_begins_with_the_first_with_now_or_with_a_position,
    channels_go_on_from_where_they_were_and_need_no_outbox,
    trackers_are_independent_and_do_what_operators_say,
    a_broker_that_is_away_costs_time_and_nothing_else,
    a_tracker_that_dies_before_writing_its_position_repeats_and_skips_nothing,
    one_of_two_instances_follows_a_channel_and_the_other_takes_over,
    a_removed_channel_is_left_by_those_who_followed_it,
    a_channel_is_set_back_beyond_the_horizon_by_force_only,
    an_event_that_is_not_taken_holds_the_later_ones_of_its_aggregate_back,
    the_id_of_a_message_is_its_place_in_the_log,
    an_event_that_is_refused_holds_up_no_other_aggregate,
    a_queue_that_is_full_holds_up_no_other_aggregate,
    the_log_goes_on_while_many_catch_up,
    messages_of_the_log_are_told_apart_whatever_their_order_and_age,
    a_fanout_exchange_is_declared_again_and_again_and_messages_say_what_they_are,
);

const EXCHANGE: &str = "towpath.test.trackers";

/// A queue of a test's own, on an exchange that all tests share. It goes away when nobody has used it for a minute.
struct Place {
    queue: String,
    url: String,
    inbox: Box<dyn Deliveries>,
    _broker: RabbitMq,
}

impl Place {
    async fn new() -> Self {
        Self::bound(ExchangeKind::Topic, EXCHANGE).await
    }

    async fn bound(kind: ExchangeKind, exchange: &str) -> Self {
        let url =
            std::env::var("TOWPATH_TEST_AMQP_URL").expect("TOWPATH_TEST_AMQP_URL: run `cargo xtask test`");
        let queue = format!("towpath.test.{}", uuid::Uuid::now_v7().simple());
        let broker = RabbitMq::connect(&BrokerUrl::parse(&url).unwrap()).unwrap();
        let arguments = vec![("x-expires".to_owned(), Argument::Number(60_000))];
        let topology = Topology {
            exchanges: vec![Exchange { name: exchange.to_owned(), kind }],
            queues: vec![Queue { name: queue.clone(), arguments }],
            bindings: vec![Binding {
                queue: queue.clone(),
                exchange: exchange.to_owned(),
                routing_key: queue.clone(),
            }],
        };
        broker.declare(&topology).await.unwrap();
        let subscription = Subscription { queue: queue.clone(), group: "test".to_owned(), prefetch: 50 };
        let inbox = broker.subscribe(&subscription).await.unwrap();
        Self { queue, url, inbox, _broker: broker }
    }

    /// A channel to this queue.
    fn channel(&self, name: &str, start: Start) -> Channel {
        let policy = ChannelPolicy {
            batch: 4,
            scan: Duration::from_millis(50),
            retries: RetryPolicy::Fixed(vec![Duration::from_millis(20); 10_000]),
            // What is confirmed late is not published again.
            patience: Duration::from_secs(60),
            ..ChannelPolicy::default()
        };
        Channel::named(name, ["order.*"]).unwrap().to(EXCHANGE, &self.queue).tracking(start).with(policy)
    }

    /// Who is slow is not taken over.
    fn app(&self, fresh: &Fresh) -> Builder {
        fresh.builder().broker(&self.url).lease(Duration::from_secs(60))
    }

    async fn next(&self) -> Received {
        let next = tokio::time::timeout(Duration::from_secs(60), self.inbox.next()).await;
        let next = next.expect("another message").unwrap();
        self.inbox.settle(next.tag, Settlement::Acknowledge).await.unwrap();
        next
    }

    /// The ids of the next messages.
    async fn ids(&self, count: usize) -> Vec<String> {
        let mut ids = Vec::new();
        while ids.len() < count {
            ids.push(event_id(&self.next().await));
        }
        ids
    }

    /// The first occurrence of each id, until there are so many.
    async fn firsts(&self, count: usize) -> Vec<String> {
        let mut firsts: Vec<String> = Vec::new();
        while firsts.len() < count {
            let id = event_id(&self.next().await);
            if !firsts.contains(&id) {
                firsts.push(id);
            }
        }
        firsts
    }
}

/// The event of a message; its own id is the event's place in the log.
fn event_id(received: &Received) -> String {
    let header = received.headers.iter().find(|(name, _)| name == "x-event-id");
    header.expect("a message of a tracker says which event it is").1.clone()
}

/// Facts about three orders, mixed, and all positioned.
async fn write(app: &Towpath, rounds: usize) {
    let before = app.store().head().await.unwrap();
    for round in 0..rounds {
        let (id, place) =
            (format!("o-{before}-{}", round % 3), OrderCommand::Place { sku: "book".to_owned() });
        let command = if round < 3 { place } else { OrderCommand::Note };
        app.send::<Order>(id, command).await.unwrap();
    }
    let head = before + rounds as Position;
    eventually("positions", || async { (app.store().head().await.unwrap() == head).then_some(()) }).await;
}

async fn log(app: &Towpath, low: Position, high: Position) -> Vec<String> {
    let events = app.store().events_between(low, high).await.unwrap();
    assert_eq!(events.len() as u64, high + 1 - low);
    events.iter().map(|event| event.envelope.event_id.to_string()).collect()
}

fn name(text: &str) -> ChannelName {
    ChannelName::new(text).unwrap()
}

async fn position(app: &Towpath, channel: &str) -> Position {
    let channels = app.channels().list().await.unwrap();
    channels.iter().find(|row| row.name == name(channel)).expect("it is registered").position
}

async fn arrives_at(app: &Towpath, channel: &str, at: Position) {
    let what = format!("{channel} is at {at}");
    eventually(&what, || async { (position(app, channel).await == at).then_some(()) }).await;
}

async fn a_new_channel_begins_with_the_first_with_now_or_with_a_position(fresh: &Fresh) {
    let (first, now, sixth) = (Place::new().await, Place::new().await, Place::new().await);
    let app = first.app(fresh).start().await.unwrap();
    write(&app, 10).await;
    app.channels().add(first.channel("first", Start::First)).await.unwrap();
    app.channels().add(now.channel("now", Start::Now)).await.unwrap();
    app.channels().add(sixth.channel("sixth", Start::At(6))).await.unwrap();
    assert_eq!(
        first.ids(10).await,
        log(&app, 1, 10).await,
        "all that happened before, in the order of the log"
    );
    assert_eq!(sixth.ids(5).await, log(&app, 6, 10).await);
    write(&app, 5).await;
    assert_eq!(first.ids(5).await, log(&app, 11, 15).await);
    assert_eq!(now.ids(5).await, log(&app, 11, 15).await, "only what is new");
    assert_eq!(sixth.ids(5).await, log(&app, 11, 15).await);
    for channel in ["first", "now", "sixth"] {
        arrives_at(&app, channel, 15).await;
    }
    let taken = app.channels().add(first.channel("first", Start::First)).await.unwrap_err();
    assert_eq!(taken.code(), "name-taken");
    let routed = Channel::named("routed", ["*"]).unwrap().to(EXCHANGE, "k");
    assert_eq!(app.channels().add(routed).await.unwrap_err().code(), "channel-not-tracking");
    let nowhere = Channel::named("nowhere", ["*"]).unwrap().tracking(Start::Now);
    assert_eq!(app.channels().add(nowhere).await.unwrap_err().code(), "channel-without-target");
    app.stop().await;
}

async fn channels_go_on_from_where_they_were_and_need_no_outbox(fresh: &Fresh) {
    let place = Place::new().await;
    let mut channel = place.channel("shipped", Start::First);
    channel.event_types = vec![Glob::new("order.placed")];
    let app = place.app(fresh).channel(Ok(channel.clone())).start().await.unwrap();
    write(&app, 5).await;
    let log_before = app.store().events_between(1, 5).await.unwrap();
    let placed: Vec<String> = log_before
        .iter()
        .filter(|event| event.envelope.event_type.as_str() == "order.placed")
        .map(|event| event.envelope.event_id.to_string())
        .collect();
    assert_eq!(place.ids(3).await, placed);
    arrives_at(&app, "shipped", 5).await;
    let rows = app.store().outbox_of(log_before[0].envelope.event_id).await.unwrap();
    assert!(rows.iter().all(|row| row.channel != name("shipped")), "a tracker has no outbox rows: {rows:?}");
    app.stop().await;

    // Its start counts once: the next life goes on from its position.
    let app = place.app(fresh).channel(Ok(channel)).start().await.unwrap();
    write(&app, 3).await;
    assert_eq!(place.ids(3).await, log(&app, 6, 8).await);
    app.stop().await;
}

async fn trackers_are_independent_and_do_what_operators_say(fresh: &Fresh) {
    let (good, stuck) = (Place::new().await, Place::new().await);
    let unroutable = good.channel("stuck", Start::First).to(EXCHANGE, "towpath.test.nobody");
    let builder = good.app(fresh).channel(Ok(unroutable)).channel(Ok(good.channel("good", Start::First)));
    let app = builder.start().await.unwrap();
    write(&app, 6).await;
    assert_eq!(good.ids(6).await, log(&app, 1, 6).await, "one that is stuck holds up no other");
    arrives_at(&app, "good", 6).await;
    assert_eq!(position(&app, "stuck").await, 0, "what was not confirmed is not passed by");

    let by = ActorId::new("operator-1").unwrap();
    app.channels().pause(&name("good"), Some(by.clone()), "broker-moves").await.unwrap();
    write(&app, 3).await;
    app.channels().follow(stuck.channel("stuck", Start::First)).await.unwrap();
    assert_eq!(stuck.ids(9).await, log(&app, 1, 9).await, "with a target that exists it goes on");
    assert_eq!(position(&app, "good").await, 6, "it rests");
    let row = app.channels().list().await.unwrap().into_iter().find(|row| row.name == name("good")).unwrap();
    assert_eq!(row.disabled.unwrap().by_id, Some(by.clone()));
    app.channels().resume(&name("good")).await.unwrap();
    assert_eq!(good.ids(3).await, log(&app, 7, 9).await);
    arrives_at(&app, "good", 9).await;

    assert_eq!(app.channels().reset(&name("good"), Start::At(8)).await.unwrap(), 7);
    assert_eq!(good.ids(2).await, log(&app, 8, 9).await, "published again, with the same ids");
    arrives_at(&app, "good", 9).await;
    app.channels().remove(&name("good"), Some(&by), "not needed").await.unwrap();
    write(&app, 3).await;
    arrives_at(&app, "stuck", 12).await;
    assert!(app.channels().list().await.unwrap().iter().all(|row| row.name != name("good")));
    // The name is free, and begins anew: what came meanwhile was not published under it.
    app.channels().add(good.channel("good", Start::At(12))).await.unwrap();
    assert_eq!(good.ids(1).await, log(&app, 12, 12).await);
    app.stop().await;
}

async fn a_broker_that_is_away_costs_time_and_nothing_else(fresh: &Fresh) {
    use towpath_testkit::broker::TcpProxy;

    let place = Place::new().await;
    let (before, rest) = place.url.split_once('@').unwrap();
    let (address, after) = rest.split_once('/').unwrap();
    let proxy = TcpProxy::to(address).await;
    let away = format!("{before}@{}/{after}", proxy.address());
    let mut channel = place.channel("facts", Start::First);
    channel.policy.patience = Duration::from_secs(2);
    let builder = place.app(fresh).broker(&away).channel(Ok(channel));
    let app = builder.start().await.unwrap();
    write(&app, 4).await;
    arrives_at(&app, "facts", 4).await;
    proxy.hold_everything();
    write(&app, 20).await;
    // Longer than the channel's patience: a run has failed by then.
    let began = tokio::time::Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        assert_eq!(position(&app, "facts").await, 4, "nothing is confirmed while the broker is away");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    proxy.cut();
    proxy.heal();
    arrives_at(&app, "facts", 24).await;
    assert_eq!(place.firsts(24).await, log(&app, 1, 24).await, "nothing is lost, in the order of positions");
    app.stop().await;
}

/// Panics before the position is written: the tracker dies there, as if its process had. Who is started in its place publishes
/// nothing.
#[derive(Default)]
struct DieBeforeAdvancing {
    died: AtomicBool,
}

impl Probe for DieBeforeAdvancing {
    fn before(&self, statement: &'static str) {
        let is_started_again = statement == "channels.parked" && self.died.load(Ordering::SeqCst);
        if statement == "channels.advance" || is_started_again {
            self.died.store(true, Ordering::SeqCst);
            panic!("died between publishing and writing the position, on purpose");
        }
    }
}

async fn a_tracker_that_dies_before_writing_its_position_repeats_and_skips_nothing(fresh: &Fresh) {
    let place = Place::new().await;
    let probe = Arc::new(DieBeforeAdvancing::default());
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    let dies = place.app(fresh).lease(Duration::from_millis(600)).store_options(options);
    let dies = dies.start().await.unwrap();
    write(&dies, 10).await;
    dies.channels().add(place.channel("facts", Start::First)).await.unwrap();
    eventually("it has died", || async { probe.died.load(Ordering::SeqCst).then_some(()) }).await;
    let expected = log(&dies, 1, 10).await;
    assert_eq!(position(&dies, "facts").await, 0);
    // Dropped, not stopped: its lease runs out.
    drop(dies);
    let app = place.app(fresh).channel(Ok(place.channel("facts", Start::First))).start().await.unwrap();
    arrives_at(&app, "facts", 10).await;
    let mut came = place.ids(14).await;
    assert_eq!(came.split_off(4), expected, "everything, in order");
    assert_eq!(came, expected[..4], "after what the dead one had published");
    app.stop().await;
}

async fn one_of_two_instances_follows_a_channel_and_the_other_takes_over(fresh: &Fresh) {
    let place = Place::new().await;
    let channel = place.channel("facts", Start::First);
    // Gives the positions, and stays: nobody has to take that over as well.
    let writing = place.app(fresh).start().await.unwrap();
    let first = place.app(fresh).channel(Ok(channel.clone())).start().await.unwrap();
    let second = place.app(fresh).channel(Ok(channel)).start().await.unwrap();
    write(&writing, 9).await;
    arrives_at(&writing, "facts", 9).await;
    assert_eq!(place.ids(9).await, log(&writing, 1, 9).await);
    let lease = writing.store().leases("tracker/facts").await.unwrap().pop().unwrap();
    let (holder, other) = if lease.holder == *first.instance() { (first, second) } else { (second, first) };
    holder.stop().await;
    write(&writing, 6).await;
    arrives_at(&writing, "facts", 15).await;
    assert_eq!(place.ids(6).await, log(&writing, 10, 15).await, "each once: nobody else published meanwhile");
    other.stop().await;
    writing.stop().await;
}

fn binding(routing_key: &str) -> Binding {
    Binding { queue: "all".to_owned(), exchange: "facts".to_owned(), routing_key: routing_key.to_owned() }
}

/// Where a note of an order goes nowhere; and a channel with two attempts, before a person has to do something.
fn without_notes() -> (Topology, Channel) {
    let topology = Topology {
        exchanges: vec![Exchange { name: "facts".to_owned(), kind: ExchangeKind::Topic }],
        queues: vec![Queue { name: "all".to_owned(), arguments: Vec::new() }],
        bindings: vec![binding("order.placed"), binding("order.shipped")],
    };
    let policy = ChannelPolicy {
        scan: Duration::from_millis(20),
        retries: RetryPolicy::Fixed(vec![Duration::from_millis(20)]),
        ..ChannelPolicy::default()
    };
    let log = Channel::named("log", ["order.*"]).unwrap().to_exchange("facts").tracking(Start::First);
    (topology, log.with(policy))
}

async fn the_log_goes_on_while_many_catch_up(fresh: &Fresh) {
    const MANY: usize = 60;
    let (topology, log) = without_notes();
    let app = fresh.builder().topology(topology.clone()).channel(Ok(log)).start().await.unwrap();
    let broker = towpath::LocalBroker::over(Arc::new(app.store().clone()), towpath::LocalOptions::default());
    let subscription = Subscription { queue: "all".to_owned(), group: "test".to_owned(), prefetch: 50 };
    let inbox = broker.subscribe(&subscription).await.unwrap();
    let place = || OrderCommand::Place { sku: "book".to_owned() };
    for number in 0..MANY {
        app.send::<Order>(format!("stuck-{number}"), place()).await.unwrap();
        app.send::<Order>(format!("stuck-{number}"), OrderCommand::Note).await.unwrap();
    }
    // While everything is refused nothing is passed by: something else has to get through behind the last note.
    app.send::<Order>("last", place()).await.unwrap();
    for _ in 0..=MANY {
        said(&*inbox).await;
    }
    eventually_within("all are given up", Duration::from_secs(60), || async {
        let parked = app.channels().parked(&name("log")).await.unwrap();
        (parked.len() == MANY && parked.iter().all(|one| one.due_at.is_none())).then_some(())
    })
    .await;
    app.channels().pause(&name("log"), None, "a binding is missing").await.unwrap();
    broker.declare(&Topology { bindings: vec![binding("order.#")], ..topology }).await.unwrap();
    app.send::<Order>("free", place()).await.unwrap();
    let all = 2 * MANY as Position + 2;
    eventually("its position", || async { (app.store().head().await.unwrap() == all).then_some(()) }).await;
    app.channels().resume(&name("log")).await.unwrap();
    let mut came = Vec::new();
    for _ in 0..=MANY {
        came.push(said(&*inbox).await);
    }
    let free = came.iter().position(|one| one == "free order.placed").expect("the free one");
    assert!(free < MANY, "it came after all that had waited");
    eventually("nothing is left behind", || async {
        app.channels().parked(&name("log")).await.unwrap().is_empty().then_some(())
    })
    .await;
    broker.close().await;
    app.stop().await;
}

async fn an_event_that_is_refused_holds_up_no_other_aggregate(fresh: &Fresh) {
    let (topology, log) = without_notes();
    let builder = fresh.builder().topology(topology.clone()).channel(Ok(log.clone()));
    let app = builder.start().await.unwrap();
    let options = towpath::LocalOptions::default();
    let broker = towpath::LocalBroker::over(Arc::new(app.store().clone()), options);
    let subscription = Subscription { queue: "all".to_owned(), group: "test".to_owned(), prefetch: 50 };
    let inbox = broker.subscribe(&subscription).await.unwrap();
    let place = || OrderCommand::Place { sku: "book".to_owned() };
    app.send::<Order>("stuck", place()).await.unwrap();
    assert_eq!(said(&*inbox).await, "stuck order.placed");
    // A note goes nowhere; what follows of the same order waits behind it.
    app.send::<Order>("stuck", OrderCommand::Note).await.unwrap();
    app.send::<Order>("stuck", OrderCommand::Ship).await.unwrap();
    for number in 0..5 {
        app.send::<Order>(format!("free-{number}"), place()).await.unwrap();
        assert_eq!(said(&*inbox).await, format!("free-{number} order.placed"), "the others go on");
    }
    eventually("it is given up", || async {
        let parked = app.channels().parked(&name("log")).await.unwrap();
        parked.first().is_some_and(|one| one.due_at.is_none() && one.version == 2).then_some(())
    })
    .await;
    let head = app.store().head().await.unwrap();
    arrives_at(&app, "log", head).await;
    drop(inbox);
    broker.close().await;
    app.stop().await;

    // It is still known after a restart, and catches up when it can.
    let bindings = vec![binding("order.#")];
    let builder = fresh.builder().topology(Topology { bindings, ..topology }).channel(Ok(log));
    let app = builder.start().await.unwrap();
    assert_eq!(app.channels().parked(&name("log")).await.unwrap().len(), 1);
    let broker = towpath::LocalBroker::over(Arc::new(app.store().clone()), options);
    let inbox = broker.subscribe(&subscription).await.unwrap();
    app.channels().resume(&name("log")).await.unwrap();
    assert_eq!(said(&*inbox).await, "stuck order.noted");
    assert_eq!(said(&*inbox).await, "stuck order.shipped");
    eventually("nothing is left behind", || async {
        app.channels().parked(&name("log")).await.unwrap().is_empty().then_some(())
    })
    .await;
    broker.close().await;
    app.stop().await;
}

/// What became of deliveries, by the number of their message.
#[derive(Default)]
struct Delivered(Mutex<Vec<(String, bool)>>);

impl Watch for Delivered {
    fn delivered(&self, delivering: &Delivering<'_>) {
        let is_new = match delivering.outcome {
            DeliveringOutcome::Handled => true,
            DeliveringOutcome::Duplicate => false,
            _ => return,
        };
        self.0.lock().unwrap().push((delivering.message.message_id.clone().unwrap(), is_new));
    }
}

impl Delivered {
    /// The next so many: which, and whether each was handled or known.
    async fn take(&self, count: usize) -> Vec<(String, bool)> {
        eventually("deliveries", || async {
            let mut delivered = self.0.lock().unwrap();
            (delivered.len() >= count).then(|| std::mem::take(&mut *delivered))
        })
        .await
    }
}

/// N8, as a receiver sees it: what comes late is no duplicate, and what comes again is one for as long as the horizon goes,
/// however often it is cleaned up meanwhile.
async fn messages_of_the_log_are_told_apart_whatever_their_order_and_age(fresh: &Fresh) {
    const DAY: Duration = Duration::from_secs(86_400);
    let topology = Topology {
        exchanges: vec![Exchange { name: "facts".to_owned(), kind: ExchangeKind::Fanout }],
        queues: vec![Queue { name: "all".to_owned(), arguments: Vec::new() }],
        bindings: vec![Binding {
            queue: "all".to_owned(),
            exchange: "facts".to_owned(),
            routing_key: String::new(),
        }],
    };
    let (clock, delivered) = (Arc::new(VirtualClock::new()), Arc::new(Delivered::default()));
    let statements = Arc::new(towpath_testkit::CountingProbe::new());
    let options = StoreOptions { probe: statements.clone(), ..StoreOptions::default() };
    let any_order = ConsumerPolicy { in_order: false, ..ConsumerPolicy::default() };
    let receiver = Consumer::from_queue("all")
        .with(any_order)
        .by_message_id()
        .each("receive", |delivery: Delivery| async move { Ok::<Next, HandlerError>(delivery.handled()) });
    let builder = fresh.builder().topology(topology).consumer(receiver).watch(delivered.clone());
    let builder = builder.clock(clock.clone()).store_options(options).clean_every(Duration::from_millis(20));
    let app = builder.horizon(7 * DAY).start().await.unwrap();
    write(&app, 3).await;
    let broker = towpath::LocalBroker::over(Arc::new(app.store().clone()), towpath::LocalOptions::default());
    // As a tracker publishes them.
    let mut messages = Vec::new();
    for event in app.store().events_between(1, 3).await.unwrap() {
        let to =
            towpath::ports::broker::Destination { exchange: "facts".to_owned(), routing_key: String::new() };
        let channel = towpath::Channel::named("by-hand", ["*"]).unwrap();
        let mut message = Formats::default().message(&channel, &event.envelope, to).unwrap();
        message.message_id = event.position.unwrap().to_string();
        message.headers.push(("x-event-id".to_owned(), event.envelope.event_id.to_string()));
        messages.push(message);
    }
    let publish = |number: usize| {
        let (broker, message) = (&broker, &messages[number - 1]);
        async move { broker.publish(std::slice::from_ref(message), Duration::from_secs(10)).await }
    };
    for (number, is_new) in [(3, true), (1, true), (2, true), (1, false)] {
        publish(number).await;
        assert_eq!(delivered.take(1).await, [(number.to_string(), is_new)]);
    }
    // A channel that follows the log has the same ids: what is known by them is known again, and the next is new.
    let channel = Channel::named("log", ["order.*"]).unwrap().to_exchange("facts").tracking(Start::First);
    app.channels().add(channel).await.unwrap();
    write(&app, 1).await;
    let mut came = Vec::new();
    while came.len() < 4 {
        came.extend(delivered.take(1).await);
    }
    came.sort();
    let known = [("1", false), ("2", false), ("3", false), ("4", true)];
    assert_eq!(came, known.map(|(number, is_new)| (number.to_owned(), is_new)));
    app.channels().remove(&name("log"), None, "it has shown it").await.unwrap();
    let cleaned = || async {
        statements.take();
        let mut seen = 0;
        eventually("it was cleaned up", || {
            seen += statements.take().iter().filter(|name| name.starts_with("clean.")).count();
            async move { (seen > 12).then_some(()) }
        })
        .await;
    };
    clock.advance(6 * DAY);
    cleaned().await;
    publish(2).await;
    assert_eq!(delivered.take(1).await, [("2".to_owned(), false)], "inside the horizon it is known");
    clock.advance(2 * DAY);
    cleaned().await;
    publish(2).await;
    assert_eq!(
        delivered.take(1).await,
        [("2".to_owned(), true)],
        "outside nobody can tell it from a new one"
    );
    broker.close().await;
    app.stop().await;
}

/// Which order the next message is about, and what it says.
async fn said(inbox: &dyn Deliveries) -> String {
    let next = tokio::time::timeout(Duration::from_secs(15), inbox.next()).await.expect("a message").unwrap();
    inbox.settle(next.tag, Settlement::Acknowledge).await.unwrap();
    let order = next.headers.iter().find(|(name, _)| name == "towpath-aggregate-id").unwrap().1.clone();
    format!("{order} {}", next.message_type.unwrap())
}

/// One place behind the exchange takes nothing, for longer than anyone waits: that says nothing of the others.
async fn a_queue_that_is_full_holds_up_no_other_aggregate(fresh: &Fresh) {
    let url = std::env::var("TOWPATH_TEST_AMQP_URL").expect("TOWPATH_TEST_AMQP_URL: run `cargo xtask test`");
    let exchange = format!("towpath.test.{}", uuid::Uuid::now_v7().simple());
    let (full, free) = (format!("{exchange}.full"), format!("{exchange}.free"));
    let expires = || ("x-expires".to_owned(), Argument::Number(60_000));
    let small = vec![
        expires(),
        ("x-max-length".to_owned(), Argument::Number(1)),
        ("x-overflow".to_owned(), Argument::Text("reject-publish".to_owned())),
    ];
    let bound = |queue: &String, routing_key: &str| Binding {
        queue: queue.clone(),
        exchange: exchange.clone(),
        routing_key: routing_key.to_owned(),
    };
    let topology = Topology {
        exchanges: vec![Exchange { name: exchange.clone(), kind: ExchangeKind::Topic }],
        queues: vec![
            Queue { name: full.clone(), arguments: small },
            Queue { name: free.clone(), arguments: vec![expires()] },
        ],
        bindings: vec![bound(&full, "order.noted"), bound(&free, "order.placed")],
    };
    let policy = ChannelPolicy {
        scan: Duration::from_millis(50),
        retries: RetryPolicy::Fixed(vec![Duration::from_millis(20); 10_000]),
        ..ChannelPolicy::default()
    };
    let log = Channel::named("log", ["order.*"])
        .unwrap()
        .to_exchange(&exchange)
        .tracking(Start::First)
        .with(policy);
    let app = fresh.builder().broker(&url).topology(topology).channel(Ok(log)).start().await.unwrap();
    let broker = RabbitMq::connect(&BrokerUrl::parse(&url).unwrap()).unwrap();
    let from = |queue: &String| Subscription { queue: queue.clone(), group: "test".to_owned(), prefetch: 50 };
    let placed = broker.subscribe(&from(&free)).await.unwrap();
    let place = || OrderCommand::Place { sku: "book".to_owned() };
    // Each comes at least once.
    let comes = async |id: &str| {
        let wanted = format!("{id} order.placed");
        while said(&*placed).await != wanted {}
    };
    for id in ["first", "stuck"] {
        app.send::<Order>(id, place()).await.unwrap();
        comes(id).await;
        app.send::<Order>(id, OrderCommand::Note).await.unwrap();
    }
    for number in 0..5 {
        let id = format!("free-{number}");
        app.send::<Order>(&id, place()).await.unwrap();
        comes(&id).await;
    }
    let noted = broker.subscribe(&from(&full)).await.unwrap();
    assert_eq!(said(&*noted).await, "first order.noted");
    let mut next = said(&*noted).await;
    while next == "first order.noted" {
        next = said(&*noted).await;
    }
    assert_eq!(next, "stuck order.noted");
    eventually("nothing is left behind", || async {
        app.channels().parked(&name("log")).await.unwrap().is_empty().then_some(())
    })
    .await;
    broker.close().await;
    app.stop().await;
}

async fn the_id_of_a_message_is_its_place_in_the_log(fresh: &Fresh) {
    let place = Place::new().await;
    let app = place.app(fresh).channel(Ok(place.channel("log", Start::First))).start().await.unwrap();
    write(&app, 6).await;
    let log = log(&app, 1, 6).await;
    for (number, event) in (1..=6).zip(&log) {
        let message = place.next().await;
        assert_eq!(message.message_id, Some(format!("{number}")), "the notification's id as text");
        assert_eq!(event_id(&message), *event);
    }
    app.channels().reset(&name("log"), Start::At(6)).await.unwrap();
    assert_eq!(place.next().await.message_id.as_deref(), Some("6"), "the same each time it is published");
    app.stop().await;
}

async fn a_fanout_exchange_is_declared_again_and_again_and_messages_say_what_they_are(fresh: &Fresh) {
    let fanout = "towpath.test.trackers.fanout";
    let (one, two) =
        (Place::bound(ExchangeKind::Fanout, fanout).await, Place::bound(ExchangeKind::Fanout, fanout).await);
    let toml = format!(
        "[[channel]]\nname = \"everything\"\nevents = [\"*\"]\nexchange = {fanout:?}\nstart = \"first\"\n\
         scan = \"50ms\"\nformat = \"cloud-events\"\n\n[topology]\nexchanges = [{{ name = {fanout:?}, kind = \"fanout\" }}]\n"
    );
    for round in 0..2 {
        let app = one.app(fresh).channels_from_toml(&toml).start().await.unwrap();
        write(&app, 1).await;
        let event = app.store().events_between(round + 1, round + 1).await.unwrap().pop().unwrap().envelope;
        for place in [&one, &two] {
            assert_tells(&mine(place, &event).await, &event);
        }
        app.stop().await;
    }
    let wrong = one.app(fresh).channels_from_toml("[[channel]]\nnam = 1\n").start().await.err().unwrap();
    assert_eq!(wrong.code(), "bad-channels");
    assert!(wrong.report().contains("line 2"), "{}", wrong.report());
}

/// The message of an event, among those of other tests: a fanout exchange gives everything to everybody.
async fn mine(place: &Place, event: &EventEnvelope) -> Received {
    loop {
        let received = place.next().await;
        if event_id(&received) == event.event_id.to_string() {
            return received;
        }
    }
}

/// Who and what and when stand outside the body (N6); and the body is read back as the event.
fn assert_tells(received: &Received, event: &EventEnvelope) {
    assert_eq!(received.message_type.as_deref(), Some(event.event_type.as_str()));
    assert_eq!(received.occurred_at, Some(event.occurred_at));
    assert_eq!(received.content_type.as_deref(), Some("application/cloudevents+json"));
    let told = towpath::IncomingEvent { schema_version: None, ..event.clone().into() };
    assert_eq!(Formats::default().read(received, None).unwrap(), told);
}

async fn a_removed_channel_is_left_by_those_who_followed_it(fresh: &Fresh) {
    let (old, new) = (Place::new().await, Place::new().await);
    let first = old.app(fresh).channel(Ok(old.channel("log", Start::First))).start().await.unwrap();
    let second = new.app(fresh).start().await.unwrap();
    write(&first, 3).await;
    old.ids(3).await;
    let name = ChannelName::new("log").unwrap();
    second.channels().remove(&name, None, "it moves").await.unwrap();
    // The same name, to another place. The first instance holds the lease and knows the old place only.
    second.channels().add(new.channel("log", Start::First)).await.unwrap();
    new.ids(3).await;
    write(&second, 3).await;
    new.ids(3).await;
    for app in [first, second] {
        app.stop().await;
    }
}

async fn an_event_that_is_not_taken_holds_the_later_ones_of_its_aggregate_back(fresh: &Fresh) {
    let binding = |routing_key: &str| Binding {
        queue: "all".to_owned(),
        exchange: "facts".to_owned(),
        routing_key: routing_key.to_owned(),
    };
    let topology = Topology {
        exchanges: vec![Exchange { name: "facts".to_owned(), kind: ExchangeKind::Topic }],
        queues: vec![Queue { name: "all".to_owned(), arguments: Vec::new() }],
        bindings: vec![binding("order.noted")],
    };
    // Placing is routed nowhere, noting is.
    let policy = ChannelPolicy {
        scan: Duration::from_millis(50),
        retries: RetryPolicy::Fixed(vec![Duration::from_millis(20); 10_000]),
        ..ChannelPolicy::default()
    };
    let channel = Channel::named("log", ["order.*"]).unwrap().to_exchange("facts");
    let looks = Arc::new(towpath_testkit::CountingProbe::new());
    let options = StoreOptions { probe: looks.clone(), ..StoreOptions::default() };
    let app = fresh.builder().topology(topology.clone()).store_options(options).start().await.unwrap();
    app.send::<Order>("o-1", OrderCommand::Place { sku: "book".to_owned() }).await.unwrap();
    app.send::<Order>("o-1", OrderCommand::Note).await.unwrap();
    eventually("positions", || async { (app.store().head().await.unwrap() == 2).then_some(()) }).await;
    app.channels().add(channel.tracking(Start::First).with(policy)).await.unwrap();
    looks.take();
    let mut tries = 0;
    eventually("it was tried", || {
        tries += looks.take().iter().filter(|name| **name == "channels.list").count();
        async move { (tries > 5).then_some(()) }
    })
    .await;
    let options = towpath::LocalOptions::default();
    let broker = towpath::LocalBroker::over(Arc::new(app.store().clone()), options);
    broker.declare(&Topology { bindings: vec![binding("order.placed")], ..topology }).await.unwrap();
    let subscription = Subscription { queue: "all".to_owned(), group: "test".to_owned(), prefetch: 10 };
    let inbox = broker.subscribe(&subscription).await.unwrap();
    let next = tokio::time::timeout(Duration::from_secs(15), inbox.next()).await.expect("a message").unwrap();
    assert_eq!(next.message_type.as_deref(), Some("order.placed"), "the first comes first");
    broker.close().await;
    app.stop().await;
}

async fn a_channel_is_set_back_beyond_the_horizon_by_force_only(fresh: &Fresh) {
    let place = Place::new().await;
    let app = place.app(fresh).horizon(Duration::ZERO).channel(Ok(place.channel("log", Start::First)));
    let app = app.start().await.unwrap();
    write(&app, 3).await;
    place.ids(3).await;
    let name = ChannelName::new("log").unwrap();
    // What is under way when a position is set back to where it began counts as published since: so let it end first.
    eventually("the position is written", || async {
        let channels = app.store().channels().await.unwrap();
        channels.iter().any(|channel| channel.name == name && channel.position == 3).then_some(())
    })
    .await;
    let refused = app.channels().reset(&name, Start::First).await.unwrap_err();
    assert_eq!(refused.code(), "beyond-horizon");
    app.channels().reset(&name, Start::Now).await.expect("nothing is published again");
    app.channels().reset_by_force(&name, Start::First).await.unwrap();
    place.ids(3).await;
    app.stop().await;
}
