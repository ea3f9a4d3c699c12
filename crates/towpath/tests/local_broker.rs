//! The broker contract on the in-process broker, over each database, and what is its own: receivers that die, one
//! receiver at a time, a store that goes away, and events that are relayed without any other server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{Fresh, Order, OrderCommand};
use towpath::ids::{ChannelName, LeaseName};
use towpath::lifecycle::OutboxStatus;
use towpath::ports::broker::{
    Argument, Binding, Broker, BrokerError, Deliveries, Message, Published, Queue, Settlement, Topology,
};
use towpath::ports::probe::Probe;
use towpath::ports::queues::{
    Ending, Fate, Layout, Parcel, Placement, PutError, QueueDepth, Queues, Receiver, TakenMessage,
};
use towpath::ports::store::{Inspection as _, LeaseGrant, StoreError, StoreResult};
use towpath::{Channel, LocalBroker, LocalOptions, SqlStore, StoreOptions, StoreUrl, Towpath};
use towpath_testkit::broker::acts::{
    Lane, bodies, message, next, numbered, numbers, publish, publish_again, publish_all, publish_within,
    settle, subscribe, take, text,
};
use towpath_testkit::broker::{BrokerFixture, TcpProxy};
use towpath_testkit::store::waiting::{eventually, in_time, interleave};
use towpath_testkit::{CountingProbe, PauseProbe, StopProbe};
use uuid::Uuid;

mod conformance_on_sqlite {
    towpath_testkit::broker_conformance!(
        super::Fresh::on("sqlite").await,
        // There is no connection to disturb, and no server to restart.
        left out: a_cut_before_the_confirms_is_unknown,
        a_held_confirm_is_unknown_when_the_patience_is_over,
        a_silent_server_is_unknown_when_the_patience_is_over,
        a_server_that_is_not_there_is_unavailable,
        a_receiver_is_told_of_a_cut,
        what_is_confirmed_survives_a_restart,
        a_broker_that_takes_nothing_is_waited_for,
    );
}

mod conformance_on_postgres {
    towpath_testkit::broker_conformance!(
        super::Fresh::on("postgres").await,
        // There is no connection to disturb, and no server to restart.
        left out: a_cut_before_the_confirms_is_unknown,
        a_held_confirm_is_unknown_when_the_patience_is_over,
        a_silent_server_is_unknown_when_the_patience_is_over,
        a_server_that_is_not_there_is_unavailable,
        a_receiver_is_told_of_a_cut,
        what_is_confirmed_survives_a_restart,
        a_broker_that_takes_nothing_is_waited_for,
    );
}

mod conformance_on_mysql {
    towpath_testkit::broker_conformance!(
        super::Fresh::on("mysql").await,
        // There is no connection to disturb, and no server to restart.
        left out: a_cut_before_the_confirms_is_unknown,
        a_held_confirm_is_unknown_when_the_patience_is_over,
        a_silent_server_is_unknown_when_the_patience_is_over,
        a_server_that_is_not_there_is_unavailable,
        a_receiver_is_told_of_a_cut,
        what_is_confirmed_survives_a_restart,
        a_broker_that_takes_nothing_is_waited_for,
    );
}

on_every_database!(
    a_receiver_that_dies_loses_nothing_and_is_fenced,
    a_living_receiver_keeps_its_messages_beyond_its_lease,
    as_many_are_taken_as_have_room_by_their_bytes,
    a_receiver_of_large_messages_holds_few_of_them,
    ten_thousand_messages_reach_four_receivers_once_each,
    one_receiver_at_a_time_keeps_the_order_over_processes,
    the_next_one_takes_over_from_a_receiver_that_died,
    the_next_one_waits_for_who_is_giving_back,
    a_lost_answer_ends_the_subscription_and_loses_nothing,
    a_stop_between_any_two_statements_loses_nothing,
    an_idle_receiver_costs_one_read_at_a_time,
    receivers_leave_nothing_behind,
    a_store_that_goes_away_is_told_honestly,
    what_was_not_confirmed_in_time_is_not_written_later,
    committed_events_are_relayed_in_order_without_another_server,
);

/// For a lease that runs out, in a test that waits for it. Who lives has a longer one: a machine may stand still for a second.
const SHORT: Duration = Duration::from_millis(700);
const LONG: Duration = Duration::from_secs(15);

/// Every handle has connections of its own, as in another process.
#[async_trait::async_trait]
impl BrokerFixture for Fresh {
    async fn connect(&self) -> Arc<dyn Broker> {
        Arc::new(LocalBroker::over(Arc::new(store(self.url()).await), LocalOptions::default()))
    }

    fn fresh_name(&self, what: &str) -> String {
        format!("test.{}.{what}", Uuid::now_v7())
    }
}

async fn store(url: &str) -> SqlStore {
    let options = StoreOptions { max_connections: 4, ..StoreOptions::default() };
    let store = SqlStore::connect_with(&StoreUrl::parse(url).unwrap(), options).await.unwrap();
    store.migrate().await.unwrap();
    store
}

fn over(store: &SqlStore, lease: Duration) -> LocalBroker {
    LocalBroker::over(Arc::new(store.clone()), LocalOptions { lease, ..LocalOptions::default() })
}

/// A receiver that takes messages and then does nothing more, as one whose process was killed.
async fn dying_receiver(store: &SqlStore, queue: &str, alone: bool, lease: Duration) -> Receiver {
    let name = LeaseName::new(format!("local/{}", Uuid::now_v7())).unwrap();
    let grant = store.begin_receiving(&name, lease).await.unwrap();
    Receiver { queue: queue.to_owned(), grant, alone }
}

async fn a_receiver_that_dies_loses_nothing_and_is_fenced(fresh: &Fresh) {
    let (dead, living) = (store(fresh.url()).await, store(fresh.url()).await);
    let (broker, lane) = (over(&living, LONG), Lane::of(fresh));
    lane.declare(&broker).await;
    publish_all(&broker, &numbered(&lane.destination, 10)).await;
    let receiver = dying_receiver(&dead, &lane.queue, false, Duration::from_secs(4)).await;
    let taken = dead.take_messages(&receiver, 5, u64::MAX).await.unwrap();
    assert_eq!(taken.len(), 5);

    let deliveries = subscribe(&broker, &lane.queue, 20).await;
    // What was never taken comes at once, the rest when the lease has run out.
    let mut received = take(&*deliveries, 5).await;
    assert_eq!(bodies(&received), numbers(5..10));
    received = Vec::new();
    for _ in 0..5 {
        received.push(next(&*deliveries).await);
    }
    assert_eq!(bodies(&received), numbers(0..5));
    assert!(received.iter().all(|received| received.redelivered));

    // The dead one wakes up: nothing it does counts any more.
    let endings: Vec<Ending> = (taken.iter().zip([Fate::Removed, Fate::GivenBack].iter().cycle()))
        .map(|(message, fate)| Ending { place: message.place, fate: fate.clone() })
        .collect();
    dead.end_messages(&receiver.grant, &endings).await.unwrap();
    let moved = Placement {
        queue: lane.queue.clone(),
        destination: lane.destination.clone(),
        headers: Vec::new(),
        delay: None,
    };
    let ending = Ending { place: taken[0].place, fate: Fate::Moved(vec![moved]) };
    dead.end_messages(&receiver.grant, &[ending]).await.unwrap();
    dead.end_receiving(&receiver).await.unwrap();
    assert!(!dead.keep_receiving(&receiver.grant, SHORT).await.unwrap());
    let depth = living.queue_depth(&lane.queue).await.unwrap();
    assert_eq!(depth, QueueDepth { taken: 5, ..QueueDepth::default() });
    let other = Lane::of(fresh);
    other.declare(&broker).await;
    publish_all(&broker, &numbered(&other.destination, 1)).await;
    let again = Receiver { queue: other.queue.clone(), ..receiver };
    let taken = dead.take_messages(&again, 5, u64::MAX).await;
    assert!(matches!(taken, Err(StoreError::Fenced { .. })), "{taken:?}");
    assert_eq!(living.queue_depth(&other.queue).await.unwrap().ready, 1);

    for message in &received {
        settle(&*deliveries, message, Settlement::Acknowledge).await;
    }
    assert_eq!(living.queue_depth(&lane.queue).await.unwrap(), QueueDepth::default());
}

async fn a_living_receiver_keeps_its_messages_beyond_its_lease(fresh: &Fresh) {
    let lease = Duration::from_secs(6);
    let store = store(fresh.url()).await;
    let (broker, lane) = (over(&store, lease), Lane::of(fresh));
    lane.declare(&broker).await;
    publish_all(&broker, &numbered(&lane.destination, 1)).await;
    let deliveries = subscribe(&broker, &lane.queue, 1).await;
    let held = next(&*deliveries).await;
    let other = subscribe(&over(&store, lease), &lane.queue, 1).await;
    // A clock that both understand: a lease that nobody keeps.
    let clock = dying_receiver(&store, &lane.queue, false, lease + Duration::from_secs(1)).await;
    eventually("a lease running out", || async {
        let leases = store.leases(clock.grant.lease.as_str()).await.unwrap();
        (!leases.iter().any(|lease| lease.live)).then_some(())
    })
    .await;
    let depth = store.queue_depth(&lane.queue).await.unwrap();
    assert_eq!(depth, QueueDepth { taken: 1, ..QueueDepth::default() }, "nobody else got it");
    settle(&*deliveries, &held, Settlement::Acknowledge).await;
    assert_eq!(store.queue_depth(&lane.queue).await.unwrap(), QueueDepth::default());
    drop(other);
}

async fn as_many_are_taken_as_have_room_by_their_bytes(fresh: &Fresh) {
    let store = store(fresh.url()).await;
    for (alone, arguments) in [(false, Vec::new()), (true, one_at_a_time())] {
        let (broker, lane) = (over(&store, SHORT), Lane::with_arguments(fresh, arguments));
        lane.declare(&broker).await;
        let sizes = [10, 20, 30, 1000, 5, 5];
        let messages: Vec<Message> =
            sizes.iter().map(|size| message(&lane.destination, "x".repeat(*size))).collect();
        publish_all(&broker, &messages).await;
        let receiver = dying_receiver(&store, &lane.queue, alone, Duration::from_secs(600)).await;
        for (limit, bytes, expected) in
            [(10, 59, &sizes[..2]), (10, 1, &sizes[2..3]), (10, 999, &sizes[3..4]), (1, 100, &sizes[4..5])]
        {
            let taken = store.take_messages(&receiver, limit, bytes).await.unwrap();
            let taken: Vec<usize> = taken.iter().map(|message| message.body.len()).collect();
            assert_eq!(taken, expected, "at most {limit} with {bytes} bytes");
        }
        let depth = store.queue_depth(&lane.queue).await.unwrap();
        assert_eq!(depth, QueueDepth { ready: 1, delayed: 0, taken: 5 }, "what had no room waits");
    }
}

async fn a_receiver_of_large_messages_holds_few_of_them(fresh: &Fresh) {
    const ALL: usize = 12;
    let (broker, lane) = Lane::ready(fresh).await;
    for _ in 0..ALL {
        publish_all(&*broker, &[message(&lane.destination, "x".repeat(3 << 20))]).await;
    }
    let store = store(fresh.url()).await;
    let deliveries = subscribe(&*broker, &lane.queue, 64).await;
    let mut held = Vec::new();
    for settled in 0..ALL {
        while held.len() < (ALL - settled).min(3) {
            held.push(next(&*deliveries).await);
        }
        let depth = store.queue_depth(&lane.queue).await.unwrap();
        assert!(depth.taken <= 3, "{depth:?}: more than 8 MiB, and one");
        settle(&*deliveries, &held.remove(0), Settlement::Acknowledge).await;
    }
    assert_eq!(store.queue_depth(&lane.queue).await.unwrap(), QueueDepth::default());
}

async fn ten_thousand_messages_reach_four_receivers_once_each(fresh: &Fresh) {
    const ALL: usize = 10_000;
    let (broker, lane) = Lane::ready(fresh).await;
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let mut receivers = Vec::new();
    for _ in 0..4 {
        let handle = fresh.connect().await;
        let deliveries: Arc<dyn Deliveries> = Arc::from(subscribe(&*handle, &lane.queue, 200).await);
        let seen = Arc::clone(&seen);
        receivers.push(tokio::spawn(async move {
            let mut settling = tokio::task::JoinSet::new();
            loop {
                let received = deliveries.next().await.expect("a message");
                let new = seen.lock().unwrap().insert(received.message_id.clone().unwrap());
                assert!(new, "twice: {received:?}");
                let deliveries = Arc::clone(&deliveries);
                settling.spawn(async move {
                    deliveries.settle(received.tag, Settlement::Acknowledge).await.expect("settled");
                });
            }
        }));
    }
    let messages = numbered(&lane.destination, ALL);
    for batch in messages.chunks(500) {
        publish_all(&*broker, batch).await;
    }
    let store = store(fresh.url()).await;
    eventually("all are received and settled", || async {
        assert!(receivers.iter().all(|receiver| !receiver.is_finished()), "a receiver failed");
        let empty = store.queue_depth(&lane.queue).await.unwrap() == QueueDepth::default();
        (empty && seen.lock().unwrap().len() == ALL).then_some(())
    })
    .await;
    receivers.iter().for_each(tokio::task::JoinHandle::abort);
}

fn one_at_a_time() -> Vec<(String, Argument)> {
    vec![("x-single-active-consumer".to_owned(), Argument::Switch(true))]
}

async fn one_receiver_at_a_time_keeps_the_order_over_processes(fresh: &Fresh) {
    let broker = fresh.connect().await;
    let lane = Lane::with_arguments(fresh, one_at_a_time());
    lane.declare(&*broker).await;
    publish_all(&*broker, &numbered(&lane.destination, 30)).await;
    let first = subscribe(&*broker, &lane.queue, 5).await;
    let held = next(&*first).await;
    let probe = Arc::new(CountingProbe::new());
    let watched = store(fresh.url()).await.with_probe(probe.clone());
    let second = subscribe(&over(&watched, LONG), &lane.queue, 5).await;
    let mut looks = 0;
    eventually("the second looking, several times", || {
        looks += probe.take().iter().filter(|name| **name == "queues.the_one").count();
        async move { (looks >= 3).then_some(()) }
    })
    .await;
    assert_eq!(watched.queue_depth(&lane.queue).await.unwrap().taken, 5, "only the first takes");
    settle(&*first, &held, Settlement::Acknowledge).await;
    assert_eq!(bodies(&take(&*first, 9).await), numbers(1..10));
    drop(first);
    // What the first had taken ahead comes first.
    assert_eq!(bodies(&take(&*second, 20).await), numbers(10..30));
}

async fn the_next_one_takes_over_from_a_receiver_that_died(fresh: &Fresh) {
    let store = store(fresh.url()).await;
    let (broker, lane) = (over(&store, LONG), Lane::with_arguments(fresh, one_at_a_time()));
    lane.declare(&broker).await;
    publish_all(&broker, &numbered(&lane.destination, 10)).await;
    let dead = dying_receiver(&store, &lane.queue, true, SHORT).await;
    assert_eq!(store.take_messages(&dead, 3, u64::MAX).await.unwrap().len(), 3);
    let received = take(&*subscribe(&broker, &lane.queue, 2).await, 10).await;
    assert_eq!(bodies(&received), numbers(0..10), "nothing overtakes what the dead one had");
}

/// What another is just giving back stands before the rest: to take meanwhile would be to overtake it.
async fn the_next_one_waits_for_who_is_giving_back(fresh: &Fresh) {
    let store = store(fresh.url()).await;
    let (broker, lane) = (over(&store, SHORT), Lane::with_arguments(fresh, one_at_a_time()));
    lane.declare(&broker).await;
    publish_all(&broker, &numbered(&lane.destination, 10)).await;
    let dead = dying_receiver(&store, &lane.queue, true, SHORT).await;
    assert_eq!(store.take_messages(&dead, 3, u64::MAX).await.unwrap().len(), 3);
    eventually("its lease running out", || async {
        let leases = store.leases(dead.grant.lease.as_str()).await.unwrap();
        (!leases.iter().any(|lease| lease.live)).then_some(())
    })
    .await;

    let next = dying_receiver(&store, &lane.queue, true, Duration::from_secs(600)).await;
    // After "begin", "queues.some" and "queues.change": all is given back but for the commit.
    let pause = Arc::new(PauseProbe::new(3));
    let recovering = store.with_probe(pause.clone());
    let giving_back = async move { recovering.recover_messages().await.unwrap() };
    let taking = async move { store.take_messages(&next, 10, u64::MAX).await.unwrap() };
    let (given_back, taken, paused) = interleave(&pause, giving_back, taking).await;
    assert!(paused);
    assert_eq!(given_back, 3);
    let taken: Vec<String> =
        taken.into_iter().map(|message| String::from_utf8(message.body).unwrap()).collect();
    assert_eq!(taken, numbers(0..10), "nothing overtakes what is given back");
}

/// A store that does what it is asked, or not, and does not answer: once for each.
struct Forgetful {
    store: SqlStore,
    taking: AtomicBool,
    ending: AtomicBool,
}

impl Forgetful {
    fn lost() -> StoreError {
        StoreError::Unavailable("the answer was lost".into())
    }
}

#[async_trait::async_trait]
impl Queues for Forgetful {
    async fn take_messages(
        &self,
        receiver: &Receiver,
        limit: u32,
        bytes: u64,
    ) -> StoreResult<Vec<TakenMessage>> {
        let taken = self.store.take_messages(receiver, limit, bytes).await?;
        if !taken.is_empty() && self.taking.swap(false, SeqCst) {
            return Err(Self::lost());
        }
        Ok(taken)
    }

    async fn end_messages(&self, grant: &LeaseGrant, endings: &[Ending]) -> StoreResult<()> {
        if self.ending.swap(false, SeqCst) {
            return Err(Self::lost());
        }
        self.store.end_messages(grant, endings).await
    }

    async fn layout(&self) -> StoreResult<Layout> {
        self.store.layout().await
    }

    async fn extend_layout(&self, revision: u64, additions: &Topology) -> StoreResult<bool> {
        self.store.extend_layout(revision, additions).await
    }

    async fn put_messages(&self, revision: u64, parcels: &[Parcel<'_>]) -> Result<bool, PutError> {
        self.store.put_messages(revision, parcels).await
    }

    async fn begin_receiving(&self, lease: &LeaseName, for_: Duration) -> StoreResult<LeaseGrant> {
        self.store.begin_receiving(lease, for_).await
    }

    async fn keep_receiving(&self, grant: &LeaseGrant, for_: Duration) -> StoreResult<bool> {
        self.store.keep_receiving(grant, for_).await
    }

    async fn end_receiving(&self, receiver: &Receiver) -> StoreResult<()> {
        self.store.end_receiving(receiver).await
    }

    async fn recover_messages(&self) -> StoreResult<u64> {
        self.store.recover_messages().await
    }

    async fn queue_depths(&self, queues: &[&str]) -> StoreResult<Vec<Option<QueueDepth>>> {
        self.store.queue_depths(queues).await
    }
}

/// Taken and not known, or settled and not told: either would hold its messages, or its place in the prefetch, as long
/// as the receiver lives. So the receiver does not live on, and the next one gets everything.
async fn a_lost_answer_ends_the_subscription_and_loses_nothing(fresh: &Fresh) {
    let store = store(fresh.url()).await;
    let forgetful = Arc::new(Forgetful {
        store: store.clone(),
        taking: AtomicBool::new(true),
        ending: AtomicBool::new(true),
    });
    let broker = LocalBroker::over(forgetful, LocalOptions::default());
    // One at a time, so that the next one begins when the one before has given everything back.
    let lane = Lane::with_arguments(fresh, one_at_a_time());
    lane.declare(&broker).await;
    publish_all(&broker, &numbered(&lane.destination, 3)).await;

    let deliveries = subscribe(&broker, &lane.queue, 1).await;
    let ended = in_time("the end of the first subscription", deliveries.next()).await;
    assert!(matches!(ended, Err(BrokerError::Unavailable(_))), "{ended:?}");

    let deliveries = subscribe(&broker, &lane.queue, 1).await;
    let received = next(&*deliveries).await;
    assert_eq!(received.body, b"0");
    let settled = in_time("settling", deliveries.settle(received.tag, Settlement::Acknowledge)).await;
    assert!(matches!(settled, Err(BrokerError::Unavailable(_))), "{settled:?}");
    let ended = in_time("the end of the second subscription", deliveries.next()).await;
    assert!(matches!(ended, Err(BrokerError::Unavailable(_))), "{ended:?}");

    let deliveries = subscribe(&broker, &lane.queue, 1).await;
    assert_eq!(bodies(&take(&*deliveries, 3).await), numbers(0..3));
    assert_eq!(store.queue_depth(&lane.queue).await.unwrap(), QueueDepth::default());
    broker.close().await;
}

/// What a run that was stopped somewhere knows of its own end.
#[derive(Default)]
struct Run {
    published: Option<Vec<Published>>,
    acknowledged: bool,
    completed: bool,
}

/// Publishes three messages, receives them, acknowledges the first, rejects the second and gives the third back.
async fn run_until_stopped(broker: LocalBroker, lane: Arc<Lane>, sent: Vec<Message>, run: Arc<Mutex<Run>>) {
    if broker.declare(&lane.topology).await.is_err() {
        return;
    }
    let outcomes = publish(&broker, &sent).await;
    let confirmed = outcomes.iter().all(|outcome| *outcome == Published::Confirmed);
    run.lock().unwrap().published = Some(outcomes);
    if !confirmed {
        return;
    }
    let subscription = towpath::ports::broker::Subscription {
        queue: lane.queue.clone(),
        group: "test".to_owned(),
        prefetch: 3,
    };
    let Ok(deliveries) = broker.subscribe(&subscription).await else { return };
    for settlement in [Settlement::Acknowledge, Settlement::Reject, Settlement::Requeue] {
        let Ok(received) = deliveries.next().await else { return };
        run.lock().unwrap().acknowledged |= settlement == Settlement::Acknowledge;
        if deliveries.settle(received.tag, settlement).await.is_err() {
            return;
        }
    }
    drop(deliveries);
    broker.close().await;
    run.lock().unwrap().completed = true;
}

async fn a_stop_between_any_two_statements_loses_nothing(fresh: &Fresh) {
    let clean = store(fresh.url()).await;
    let mut whole_runs = 0;
    for stop_at in 0..300 {
        let mut lane = Lane::of(fresh);
        let dead = fresh.fresh_name("dead");
        lane.topology.queues[0].arguments =
            vec![text("x-dead-letter-exchange", ""), text("x-dead-letter-routing-key", &dead)];
        lane.topology.queues.push(Queue { name: dead.clone(), arguments: Vec::new() });
        let (lane, sent) = (Arc::new(lane), numbered(&Lane::of(fresh).destination, 3));
        let sent: Vec<Message> = sent
            .into_iter()
            .map(|message| Message { destination: lane.destination.clone(), ..message })
            .collect();
        let probe = Arc::new(StopProbe::new(stop_at));
        let broker = over(&clean.with_probe(probe.clone()), Duration::from_millis(300));
        let run = Arc::new(Mutex::new(Run::default()));
        let running =
            tokio::spawn(run_until_stopped(broker, Arc::clone(&lane), sent.clone(), Arc::clone(&run)));
        let _ = in_time("a run", running).await;
        let Run { published, acknowledged, completed } = std::mem::take(&mut *run.lock().unwrap());

        // Another process finds what is there.
        let finder = over(&clean, LocalOptions::default().lease);
        finder.declare(&lane.topology).await.unwrap();
        let all_there = published
            .as_ref()
            .is_some_and(|outcomes| outcomes.iter().all(|outcome| *outcome == Published::Confirmed));
        let none_there = published.as_ref().is_none_or(|outcomes| {
            outcomes.iter().all(|outcome| matches!(outcome, Published::NotSent { .. }))
        });
        // Nobody holds anything for ever.
        eventually("everything is given back", || async {
            clean.recover_messages().await.unwrap();
            (clean.queue_depth(&lane.queue).await.unwrap().taken == 0).then_some(())
        })
        .await;
        // Until nothing is left, and not up to a last message: the transaction that was stopped may still be open for a
        // moment, and what it has locked is passed over until it is rolled back.
        let mut found = Vec::new();
        for queue in [&lane.queue, &dead] {
            let deliveries = subscribe(&finder, queue, 10).await;
            while clean.queue_depth(queue).await.unwrap() != QueueDepth::default() {
                found.extend(take(&*deliveries, 1).await.remove(0).message_id);
            }
        }
        let distinct: BTreeSet<&String> = found.iter().collect();
        assert_eq!(distinct.len(), found.len(), "stopped at {stop_at}: one is there twice");
        let here = |place: usize| distinct.contains(&sent[place].message_id);
        if all_there {
            assert!(here(1) && here(2), "stopped at {stop_at}: confirmed and lost");
            assert!(here(0) || acknowledged, "stopped at {stop_at}: confirmed and lost");
        } else if none_there {
            assert!(found.is_empty(), "stopped at {stop_at}: never sent, and there");
        } else {
            assert!([0, 3].contains(&found.len()), "stopped at {stop_at}: half a batch");
        }
        if completed && probe.count() < stop_at {
            whole_runs += 1;
        }
        if whole_runs == 2 {
            assert!(!here(0) && all_there && stop_at > 20, "a whole run of {} statements", probe.count());
            return;
        }
    }
    panic!("it never ran to its end");
}

async fn an_idle_receiver_costs_one_read_at_a_time(fresh: &Fresh) {
    let (broker, lane) = Lane::ready(fresh).await;
    let probe = Arc::new(CountingProbe::new());
    let watched = store(fresh.url()).await.with_probe(probe.clone());
    let _deliveries = subscribe(&over(&watched, Duration::from_secs(60)), &lane.queue, 5).await;
    let mut looks = Vec::new();
    eventually("a few looks", || {
        looks.extend(probe.take());
        let enough = looks.iter().filter(|name| **name == "queues.look").count() >= 5;
        async move { enough.then_some(()) }
    })
    .await;
    let begun = looks.iter().position(|name| *name == "queues.look").unwrap();
    assert!(looks[begun..].iter().all(|name| *name == "queues.look"), "{looks:?}");
    broker.close().await;
}

async fn receivers_leave_nothing_behind(fresh: &Fresh) {
    let store = store(fresh.url()).await;
    let (broker, lane) = (over(&store, SHORT), Lane::of(fresh));
    lane.declare(&broker).await;
    for _ in 0..3 {
        drop(subscribe(&broker, &lane.queue, 1).await);
    }
    let dead = dying_receiver(&store, &lane.queue, false, Duration::from_millis(1)).await;
    eventually("its lease running out", || async {
        let leases = store.leases(dead.grant.lease.as_str()).await.unwrap();
        (!leases.iter().any(|lease| lease.live)).then_some(())
    })
    .await;
    let kept = store.keep_receiving(&dead.grant, SHORT).await.unwrap();
    assert!(!kept, "what has run out is not kept");
    let kept = subscribe(&broker, &lane.queue, 1).await;
    eventually("only the living one has a lease", || async {
        (store.leases("local/").await.unwrap().len() == 1).then_some(())
    })
    .await;
    drop(kept);
    broker.close().await;
    assert_eq!(store.leases("local/").await.unwrap(), []);
}

/// Holds everything just before the first statement of a name, once.
struct HoldBefore {
    statement: &'static str,
    proxy: Arc<TcpProxy>,
    done: AtomicBool,
}

impl Probe for HoldBefore {
    fn before(&self, statement: &'static str) {
        if statement == self.statement && !self.done.swap(true, SeqCst) {
            if statement == "commit" { self.proxy.hold_answers() } else { self.proxy.hold_everything() }
        }
    }
}

/// A store whose connections go through a proxy; none where there is no connection to disturb.
async fn behind_a_proxy(fresh: &Fresh) -> Option<(Arc<TcpProxy>, String)> {
    if fresh.url().starts_with("sqlite:") {
        return None;
    }
    let (url, proxy) = TcpProxy::before(fresh.url()).await;
    Some((Arc::new(proxy), url))
}

/// All connections are in use for longer than a sender has patience. Once they are free, nothing is left of what it sent.
async fn what_was_not_confirmed_in_time_is_not_written_later(fresh: &Fresh) {
    let (_, lane) = Lane::ready(fresh).await;
    let store = store(fresh.url()).await;
    let broker = over(&store, SHORT);
    // With this it knows the topology.
    publish_all(&broker, &[message(&lane.destination, "before")]).await;
    let writers = if fresh.url().starts_with("sqlite:") { 1 } else { 4 };
    let mut open = Vec::new();
    for _ in 0..writers {
        open.push(store.open_transaction().await.unwrap());
    }
    let late = [message(&lane.destination, "late")];
    let outcomes = publish_within(&broker, &late, Duration::from_millis(300)).await;
    assert!(matches!(outcomes[..], [Published::Unknown { .. }]), "{outcomes:?}");
    for transaction in open {
        transaction.abandon().await.unwrap();
    }
    publish_all(&broker, &[message(&lane.destination, "after")]).await;
    let deliveries = subscribe(&broker, &lane.queue, 10).await;
    assert_eq!(bodies(&take(&*deliveries, 2).await), ["before", "after"]);
    assert_eq!(store.queue_depth(&lane.queue).await.unwrap().ready, 0, "and nothing else");
}

async fn a_store_that_goes_away_is_told_honestly(fresh: &Fresh) {
    const PATIENCE: Duration = Duration::from_millis(800);
    let Some((proxy, url)) = behind_a_proxy(fresh).await else { return };
    let (_, lane) = Lane::ready(fresh).await;
    let direct = store(fresh.url()).await;
    let through = store(&url).await;
    for (statement, cut) in
        [("begin", true), ("queues.put", true), ("commit", true), ("queues.put", false), ("commit", false)]
    {
        let before = direct.queue_depth(&lane.queue).await.unwrap().ready;
        let hold = HoldBefore { statement, proxy: Arc::clone(&proxy), done: false.into() };
        let hold = Arc::new(hold);
        let broker = over(&through.with_probe(hold.clone()), SHORT);
        let sent = numbered(&lane.destination, 5);
        let (outcomes, ()) = tokio::join!(publish_within(&broker, &sent, PATIENCE), async {
            if cut {
                eventually("the statement", || async { hold.done.load(SeqCst).then_some(()) }).await;
                if statement == "commit" {
                    eventually("the commit arriving", || async {
                        let now = direct.queue_depth(&lane.queue).await.unwrap().ready;
                        (now == before + 5).then_some(())
                    })
                    .await;
                }
                proxy.cut();
            }
        });
        let expected = |outcome: &Published| match outcome {
            // Cut before the commit was asked for: nothing can be there.
            Published::NotSent { .. } => cut && statement != "commit",
            Published::Unknown { .. } => !cut || statement == "commit",
            _ => false,
        };
        assert!(outcomes.iter().all(expected), "{statement}, cut: {cut}: {outcomes:?}");
        proxy.cut();
        proxy.heal();
        publish_again(&broker, &message(&lane.destination, "again")).await;
        if cut {
            let there = direct.queue_depth(&lane.queue).await.unwrap().ready - before;
            assert_eq!(there, if statement == "commit" { 6 } else { 1 }, "{statement}");
        }
        broker.close().await;
    }
}

async fn committed_events_are_relayed_in_order_without_another_server(fresh: &Fresh) {
    let mut lane = Lane::of(fresh);
    // The second queue takes the same events for another reader.
    let second = fresh.fresh_name("second");
    lane.topology.queues.push(Queue { name: second.clone(), arguments: Vec::new() });
    let binding = Binding { queue: second.clone(), ..lane.topology.bindings[0].clone() };
    lane.topology.bindings.push(binding);
    let start = || async {
        let channel = Channel::named("facts", ["order.*"]).unwrap().to_exchange(&lane.destination.exchange);
        let builder = fresh.builder().topology(lane.topology.clone()).channel(Ok(channel));
        builder.start().await.unwrap()
    };
    let app = start().await;
    assert_eq!(app.broker(), "local:");
    for round in 0..5 {
        for id in ["o-1", "o-2", "o-3"] {
            let command =
                if round == 0 { OrderCommand::Place { sku: "book".into() } } else { OrderCommand::Note };
            app.send::<Order>(id, command).await.unwrap();
        }
    }
    let receiving = over(app.store(), LONG);
    let deliveries = subscribe(&receiving, &lane.queue, 10).await;
    let mut versions: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for received in take(&*deliveries, 15).await {
        let event: towpath::EventEnvelope = serde_json::from_slice(&received.body).unwrap();
        assert_eq!(received.destination.routing_key, event.event_type.to_string());
        versions.entry(event.aggregate.id.to_string()).or_default().push(event.aggregate_version);
    }
    assert_eq!(versions.len(), 3);
    assert!(versions.values().all(|versions| *versions == [1, 2, 3, 4, 5]), "{versions:?}");
    let facts = ChannelName::new("facts").unwrap();
    let sent = |app: Towpath, facts: ChannelName| async move {
        app.store().outbox_counts(&facts).await.unwrap().of(OutboxStatus::Sent)
    };
    eventually("all are SENT", || async { (sent(app.clone(), facts.clone()).await == 15).then_some(()) })
        .await;
    receiving.close().await;
    app.stop().await;

    // What nobody has read yet is there after a restart.
    let app = start().await;
    let receiving = over(app.store(), LONG);
    assert_eq!(take(&*subscribe(&receiving, &second, 10).await, 15).await.len(), 15);
    let closed = receiving.clone();
    receiving.close().await;
    assert!(matches!(closed.ready().await, Err(BrokerError::Unavailable(_))));
    app.stop().await;
}

/// Measures `take` with many messages waiting: `cargo test -p towpath --test local_broker -- --ignored --nocapture cost`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn the_cost_of_taking() {
    const WAITING: usize = 100_000;
    // Far more than it takes, far less than reading all of them does.
    const MOST_MILLIS: f64 = 50.0;
    for server in ["sqlite", "postgres", "mysql"] {
        let fresh = Fresh::on(server).await;
        let (broker, slow) = Lane::ready(&fresh).await;
        let later = Lane::of(&fresh);
        let mut delayed = later.topology.clone();
        delayed.queues[0].arguments = vec![
            text("x-dead-letter-exchange", ""),
            text("x-dead-letter-routing-key", &slow.queue),
            towpath_testkit::broker::acts::number("x-message-ttl", 3_600_000),
        ];
        broker.declare(&delayed).await.unwrap();
        let quick = Lane::of(&fresh);
        quick.declare(&*broker).await;
        let began = std::time::Instant::now();
        for lane in [&slow, &later] {
            for batch in numbered(&lane.destination, WAITING).chunks(1000) {
                publish_all(&*broker, batch).await;
            }
        }
        let rate = (2 * WAITING) as f64 / began.elapsed().as_secs_f64();
        println!("{server}: {rate:.0} messages/s published in batches of 1000");
        let store = store(fresh.url()).await;
        for (what, lane, count) in [("slow", &slow, 100), ("empty", &quick, 100), ("one by one", &slow, 1)] {
            let receiver = dying_receiver(&store, &lane.queue, false, Duration::from_secs(600)).await;
            let began = std::time::Instant::now();
            for _ in 0..100 {
                store.take_messages(&receiver, count, u64::MAX).await.unwrap();
            }
            let millis = began.elapsed().as_secs_f64() * 10.0;
            println!("{server}: {what}: {millis:.2} ms a take of {count}");
            assert!(millis < MOST_MILLIS, "{server}: {what}: messages that are not taken are read");
        }
    }
}
