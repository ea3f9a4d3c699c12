//! Receiving: one member of a consumer group, on a thread of its own.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use tokio::sync::{Notify, watch};
use tokio::time::timeout_at;
use towpath_core::ports::broker::{
    BrokerError, BrokerResult, Deliveries, DeliveryTag, Received, Settlement, Subscription,
};

use super::control::{Control, TopicState, complain, note, settings};
use super::errors::told;
use super::ledger::{Ledger, Place};
use super::patterns::fits;
use super::positions::{Begin, Known, begin};
use super::topology::Bound;
use super::wire::received;
use super::{ANSWER, Memory};
use crate::said::{refused, unavailable};

/// A member that has not been heard of for this long is out of its group.
const SESSION: Duration = Duration::from_secs(10);

/// How long one look for messages takes when there are none; and when none are wanted.
const LOOK: Duration = Duration::from_millis(50);
const SHORT_LOOK: Duration = Duration::from_millis(5);

/// Positions are told to the broker at most this often.
const COMMIT_PACE: Duration = Duration::from_millis(50);

/// How often, and how long, a broker that was lost is asked whether it is back.
const PROBE_PACE: Duration = Duration::from_secs(2);
const PROBE: Duration = Duration::from_secs(2);

/// How long the broker may take to answer each question about positions.
const ASKING: Duration = Duration::from_secs(3);

/// A member of a consumer group. Dropped, it leaves the group and others get what is unsettled.
pub(super) struct KafkaDeliveries {
    receiver: Arc<Receiver>,
}

impl KafkaDeliveries {
    /// Begins to join the group.
    pub(super) async fn subscribe(
        control: &Control,
        subscription: &Subscription,
        bindings: Vec<Bound>,
        memory: Memory,
    ) -> BrokerResult<Self> {
        const OPERATION: &str = "subscribing";
        let deadline = tokio::time::Instant::now() + ANSWER;
        let topics: HashSet<&str> = bindings.iter().map(|bound| bound.topic.as_str()).collect();
        if topics.is_empty() {
            return Err(BrokerError::Missing {
                what: "binding of the queue",
                name: subscription.queue.clone(),
            });
        }
        for topic in &topics {
            if control.topic(topic, deadline).await? == TopicState::Missing {
                return Err(BrokerError::Missing { what: "exchange", name: (*topic).to_owned() });
            }
        }
        let topics: Vec<&str> = topics.into_iter().collect();
        let always_begins = control.address().always_begins;
        let receiver = Arc::new(Receiver::new(subscription, &bindings, memory, always_begins));
        let consumer: BaseConsumer<Membership> = settings(control.address())
            .set("group.id", &subscription.queue)
            // Where to begin is decided here, see `positions`. Where it cannot be, librdkafka is not to make it up.
            .set("auto.offset.reset", "error")
            // A member that comes or goes interrupts those only whose partitions change hands.
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("session.timeout.ms", SESSION.as_millis().to_string())
            // What waits in librdkafka waits beside what waits here.
            .set("queued.max.messages.kbytes", "16384")
            .create_with_context(Membership { receiver: Arc::clone(&receiver) })
            .map_err(|error| told(&error, OPERATION))?;
        consumer.subscribe(&topics).map_err(|error| told(&error, OPERATION))?;
        let deliveries = Self { receiver: Arc::clone(&receiver) };
        std::thread::Builder::new()
            .name("towpath-kafka".to_owned())
            .spawn(move || run(consumer, &receiver))
            .map_err(|error| unavailable(format!("there is no thread to receive on: {error}")))?;
        Ok(deliveries)
    }

    /// Waits until the group has given us our share. A group that takes long to agree goes on agreeing.
    pub(super) async fn joined(&self) -> BrokerResult<()> {
        let deadline = tokio::time::Instant::now() + ANSWER;
        let mut phase = self.receiver.phase.subscribe();
        let _ = timeout_at(deadline, phase.wait_for(|phase| *phase != Phase::Joining)).await;
        match &self.receiver.inner().ended {
            Some(end) => Err(end.told()),
            None => Ok(()),
        }
    }

    pub(super) fn receiver(&self) -> Weak<Receiver> {
        Arc::downgrade(&self.receiver)
    }
}

impl Drop for KafkaDeliveries {
    fn drop(&mut self) {
        self.receiver.stop("this receiver was dropped");
    }
}

#[async_trait]
impl Deliveries for KafkaDeliveries {
    async fn next(&self) -> BrokerResult<Received> {
        loop {
            let mut changed = std::pin::pin!(self.receiver.changed.notified());
            // Registered before looking, so that no change is missed in between.
            changed.as_mut().enable();
            {
                let mut inner = self.receiver.inner();
                if let Some(end) = &inner.ended {
                    return Err(end.told());
                }
                // Nothing is awaited between taking a message and answering it: a caller that gives up loses none.
                if let Some(received) = inner.ledger.hand_out() {
                    return Ok(received);
                }
            }
            changed.await;
        }
    }

    async fn settle(&self, tag: DeliveryTag, settlement: Settlement) -> BrokerResult<()> {
        self.receiver.inner().ledger.settle(tag, settlement);
        // There is room for another one, or the same one again.
        self.receiver.changed.notify_waiters();
        Ok(())
    }
}

/// What the thread and its users share.
pub(super) struct Receiver {
    queue: String,
    bindings: Vec<Bound>,
    memory: Memory,
    always_begins: bool,
    inner: Mutex<Inner>,
    changed: Notify,
    stopping: AtomicBool,
    /// Partitions came. Each is paused or not as it was when it was last here, whatever holds for the others.
    reassigned: AtomicBool,
    phase: watch::Sender<Phase>,
}

struct Inner {
    ledger: Ledger,
    ended: Option<End>,
    /// Since when no broker is there, as far as anyone knows.
    lost: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Joining,
    Joined,
    Finished,
}

/// Why there will be no more messages; errors of the port cannot be told twice.
enum End {
    Gone(String),
    Failed(KafkaError),
    /// A person has to decide.
    Undecided(String),
}

impl End {
    fn told(&self) -> BrokerError {
        match self {
            Self::Gone(reason) => unavailable(reason.clone()),
            Self::Failed(error) => told(error, "receiving"),
            Self::Undecided(reason) => refused("receiving", reason.clone()),
        }
    }
}

impl Receiver {
    fn new(subscription: &Subscription, bindings: &[Bound], memory: Memory, always_begins: bool) -> Self {
        let inner = Inner { ledger: Ledger::new(subscription.prefetch), ended: None, lost: None };
        Self {
            queue: subscription.queue.clone(),
            bindings: bindings.to_vec(),
            memory,
            always_begins,
            inner: Mutex::new(inner),
            changed: Notify::new(),
            stopping: AtomicBool::new(false),
            reassigned: AtomicBool::new(false),
            phase: watch::Sender::new(Phase::Joining),
        }
    }

    /// Ends it; the thread says goodbye to the group in its own time.
    pub(super) fn stop(&self, reason: &str) {
        self.end(End::Gone(reason.to_owned()));
    }

    pub(super) async fn until_finished(&self, deadline: tokio::time::Instant) {
        let mut phase = self.phase.subscribe();
        let _ = timeout_at(deadline, phase.wait_for(|phase| *phase == Phase::Finished)).await;
    }

    fn end(&self, end: End) {
        let mut inner = self.inner();
        inner.ended.get_or_insert(end);
        inner.ledger.let_go();
        drop(inner);
        self.stopping.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    fn take_in(&self, message: &BorrowedMessage<'_>) {
        let place = (message.topic().to_owned(), message.partition());
        let received = received(&self.queue, message);
        let wanted = self.bindings.iter().any(|bound| {
            bound.topic == received.destination.exchange
                && fits(bound.kind, &bound.routing_key, &received.destination.routing_key)
        });
        let mut inner = self.inner();
        inner.lost = None;
        inner.ledger.read(place, message.offset(), wanted.then_some(received));
        drop(inner);
        self.changed.notify_waiters();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread of a member. It goes on looking for messages while none are wanted, because the group asks it things, too.
fn run(consumer: BaseConsumer<Membership>, receiver: &Receiver) {
    let _finished = Finished(receiver);
    let (mut paused, mut committed_at, mut probed_at) = (false, Instant::now(), Instant::now());
    while !receiver.stopping.load(Ordering::Acquire) {
        match consumer.poll(if paused { SHORT_LOOK } else { LOOK }) {
            Some(Ok(message)) => receiver.take_in(&message),
            Some(Err(error)) => heed(receiver, error),
            None => {}
        }
        if committed_at.elapsed() >= COMMIT_PACE {
            committed_at = Instant::now();
            commit(&consumer, receiver);
        }
        paused = hold_back(&consumer, receiver, paused);
        if probed_at.elapsed() >= PROBE_PACE {
            probed_at = Instant::now();
            probe(&consumer, receiver);
        }
    }
    // Dropping the consumer gives its partitions back, which commits them, and leaves the group.
    drop(consumer);
}

/// Tells the broker how far we are. Nobody waits for the answer; a failure comes back as one.
fn commit(consumer: &BaseConsumer<Membership>, receiver: &Receiver) {
    let positions = receiver.inner().ledger.take_uncommitted();
    if positions.is_empty() {
        return;
    }
    let told = list(&positions).and_then(|list| consumer.commit(&list, CommitMode::Async));
    if let Err(error) = told {
        tracing::debug!(queue = receiver.queue, cause = %error, "a position was not committed, comes again");
        receiver.inner().ledger.not_committed(positions.into_iter().map(|(place, _)| place));
    }
}

/// Stops or starts fetching; the answer is whether it is stopped.
fn hold_back(consumer: &BaseConsumer<Membership>, receiver: &Receiver, paused: bool) -> bool {
    let wanted = {
        let inner = receiver.inner();
        if paused { !inner.ledger.has_room() } else { inner.ledger.is_full() }
    };
    let reassigned = receiver.reassigned.swap(false, Ordering::AcqRel);
    if wanted == paused && !reassigned {
        return wanted;
    }
    let done = consumer.assignment().and_then(|assignment| {
        if wanted { consumer.pause(&assignment) } else { consumer.resume(&assignment) }
    });
    match done {
        Ok(()) => wanted,
        Err(error) => {
            tracing::debug!(queue = receiver.queue, cause = %error, "could not pause or resume");
            if reassigned {
                // They are still as they came.
                receiver.reassigned.store(true, Ordering::Release);
            }
            paused
        }
    }
}

/// Whether a broker that was lost is back. One that stays away longer than the group waits for us has given what we
/// hold to others, or will: the receiver is told.
fn probe(consumer: &BaseConsumer<Membership>, receiver: &Receiver) {
    let Some(lost) = receiver.inner().lost else { return };
    let topic = receiver.bindings.first().map(|bound| bound.topic.as_str());
    match consumer.client().fetch_metadata(topic, PROBE) {
        Ok(_) => receiver.inner().lost = None,
        Err(_) if lost.elapsed() < SESSION => {}
        Err(error) => receiver.end(End::Failed(error)),
    }
}

/// Decides what an error means for the receiver.
fn heed(receiver: &Receiver, error: KafkaError) {
    use RDKafkaErrorCode as Code;
    let ends = match &error {
        KafkaError::MessageConsumptionFatal(_) => true,
        other => matches!(
            other.rdkafka_error_code(),
            Some(
                Code::UnknownTopicOrPartition
                    | Code::UnknownTopic
                    | Code::UnknownPartition
                    | Code::TopicAuthorizationFailed
                    | Code::GroupAuthorizationFailed
                    | Code::InvalidGroupId
                    | Code::AutoOffsetReset
                    | Code::OffsetOutOfRange
                    | Code::Fatal
            )
        ),
    };
    if ends {
        receiver.end(End::Failed(error));
    } else {
        complain("receiving", &error, &receiver.queue);
    }
}

/// Whatever ends the thread, nobody waits for it any more.
struct Finished<'a>(&'a Receiver);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        self.0.stop("the receiver has ended");
        self.0.phase.send_replace(Phase::Finished);
    }
}

/// What the group tells its member. Called on the member's own thread.
struct Membership {
    receiver: Arc<Receiver>,
}

impl ClientContext for Membership {
    fn log(&self, level: RDKafkaLogLevel, _facility: &str, words: &str) {
        note("receiving", level, words);
    }

    fn error(&self, error: KafkaError, words: &str) {
        complain("receiving", &error, words);
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            self.receiver.inner().lost.get_or_insert_with(Instant::now);
        }
    }
}

impl Membership {
    /// Says where each partition begins. What cannot be found out is left as it is: then librdkafka asks for the group's
    /// position itself, and tells when there is none.
    fn find_positions(
        &self,
        consumer: &BaseConsumer<Self>,
        list: &mut TopicPartitionList,
    ) -> KafkaResult<()> {
        let receiver = &self.receiver;
        let committed = consumer.committed_offsets(list.clone(), ASKING)?;
        let mut ages = TopicPartitionList::with_capacity(list.count());
        let Memory { horizon, clock } = &receiver.memory;
        let horizon = i64::try_from(horizon.as_millis()).unwrap_or(i64::MAX);
        let since = clock.now().timestamp_millis().saturating_sub(horizon).max(0);
        for (topic, partition) in places(list) {
            ages.add_partition_offset(&topic, partition, Offset::Offset(since))?;
        }
        let ages = consumer.offsets_for_times(ages, ASKING)?;
        let offset_in = |list: &TopicPartitionList, topic: &str, partition| {
            list.find_partition(topic, partition).and_then(|found| match found.offset() {
                Offset::Offset(offset) => Some(offset),
                _ => None,
            })
        };
        for (topic, partition) in places(list) {
            let (first, end) = consumer.fetch_watermarks(&topic, partition, ASKING)?;
            let known = Known {
                committed: offset_in(&committed, &topic, partition),
                first,
                end,
                remembered: offset_in(&ages, &topic, partition).unwrap_or(end),
            };
            let queue = &receiver.queue;
            let offset = match begin(known, receiver.always_begins) {
                Ok(Begin::At(offset)) => offset,
                Ok(Begin::First { messages }) => {
                    if messages > 0 {
                        tracing::warn!(
                            queue,
                            topic,
                            partition,
                            messages,
                            "the group has no position here and begins with the first message; what was handled before is \
                             recognised"
                        );
                    }
                    first
                }
                Err(why) => {
                    let reason = format!(
                        "group {queue}, topic {topic}, partition {partition}: {why}. Set the group's offset with Kafka's own \
                         tool to where it is to go on, or to the earliest (see docs/consumers.md)"
                    );
                    receiver.end(End::Undecided(reason));
                    return Ok(());
                }
            };
            list.set_partition_offset(&topic, partition, Offset::Offset(offset))?;
        }
        Ok(())
    }
}

impl ConsumerContext for Membership {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, code: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let cooperative = matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative);
        let done = match code {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                self.pre_rebalance(consumer, &Rebalance::Assign(list));
                if let Err(error) = self.find_positions(consumer, list) {
                    complain("receiving", &error, "asking for positions");
                }
                let done =
                    if cooperative { consumer.incremental_assign(list) } else { consumer.assign(list) };
                self.post_rebalance(consumer, &Rebalance::Assign(list));
                done
            }
            code => {
                if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS {
                    self.pre_rebalance(consumer, &Rebalance::Revoke(list));
                } else {
                    let error = KafkaError::Rebalance(code.into());
                    self.pre_rebalance(consumer, &Rebalance::Error(error));
                }
                if cooperative { consumer.incremental_unassign(list) } else { consumer.unassign() }
            }
        };
        if let Err(error) = done {
            self.receiver.end(End::Failed(error));
        }
    }

    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => self.receiver.inner().ledger.assign(places(list)),
            Rebalance::Revoke(list) => {
                let positions = self.receiver.inner().ledger.revoke(places(list));
                if positions.is_empty() {
                    return;
                }
                // Asked first whether anyone is there: librdkafka waits for a lost coordinator for a whole session, and
                // nobody who leaves should have to.
                let topic = positions.first().map(|((topic, _), _)| topic.as_str());
                let told = consumer
                    .client()
                    .fetch_metadata(topic, PROBE)
                    .and_then(|_| self::list(&positions))
                    .and_then(|list| consumer.commit(&list, CommitMode::Sync));
                if let Err(error) = told {
                    // Nobody is there, or others got the partitions already: what we settled last comes again.
                    let queue = &self.receiver.queue;
                    tracing::debug!(queue, cause = %error, "the last positions were not committed");
                }
            }
            Rebalance::Error(error) => complain("receiving", error, "sharing the partitions"),
        }
    }

    fn post_rebalance(&self, _consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if matches!(rebalance, Rebalance::Assign(_)) {
            self.receiver.reassigned.store(true, Ordering::Release);
            self.receiver.phase.send_if_modified(|phase| {
                let joining = *phase == Phase::Joining;
                *phase = if joining { Phase::Joined } else { *phase };
                joining
            });
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, list: &TopicPartitionList) {
        if let Err(error) = result {
            let queue = &self.receiver.queue;
            tracing::debug!(queue, cause = %error, "a position was not committed, comes again");
            self.receiver.inner().ledger.not_committed(places(list));
        }
    }
}

fn places(list: &TopicPartitionList) -> Vec<Place> {
    list.elements().iter().map(|element| (element.topic().to_owned(), element.partition())).collect()
}

fn list(positions: &[(Place, i64)]) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::with_capacity(positions.len());
    for ((topic, partition), position) in positions {
        list.add_partition_offset(topic, *partition, Offset::Offset(*position))?;
    }
    Ok(list)
}
