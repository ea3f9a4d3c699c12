//! Runs the handler on deliveries and settles them.
//!
//! One task receives (`receiving`); as many workers as the policy allows handle. A worker takes what has arrived, up to the
//! size of a batch, opens a transaction, marks the inbox, runs the handler, commits, then acknowledges. What fails is rolled
//! back; its failure is recorded in a transaction of its own, and decides what happens next (`failing`). When the store
//! cannot be reached nothing has failed: the worker waits for it.
//!
//! What may have been delivered before may be what ended the process that had it. So the attempt is written down before it
//! begins; one that is found begun and not ended is counted, and such a delivery runs alone from then on, so that those
//! which only happened to run beside it are not taken for it again.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use towpath_core::format::FormatError;
use towpath_core::ids::{AggregateKey, EventId, HandlerName, Lane};
use towpath_core::incoming::IncomingEvent;
use towpath_core::letters::Letter;
use towpath_core::ports::broker::{Broker, BrokerError, DeliveryTag, Received, Settlement};
use towpath_core::ports::store::{
    Aggregates as _, AppendedTogether, CameBefore, FirstDelivery, StoreError, StoreTx as _,
};
use towpath_core::retry::{Coded as _, ErrorClass};
use towpath_store::{SqlStore, SqlTransaction};
use tracing::Instrument as _;

use super::failing::Failure;
use super::reading::{self, Identity, Readable};
use super::receiving::{Arrived, Gather, Inbound, receive};
use super::redelivery::redeliver;
use super::{Consumer, DeadTo, Delivered, HandlerError, Next, Step};
use crate::bus::{Bus, random_unit, with_causes};
use crate::declaring::Declaration;
use crate::metrics::ConsumerMeters;
use crate::service::{Backoff, Service, Stopping, Wake};
use crate::spans;
use crate::tx::{Lender, Open};
use crate::watch::{Delivering, DeliveringOutcome, Watchers};

/// What a consumer works with.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) bus: Bus,
    pub(crate) store: SqlStore,
    pub(crate) broker: Arc<dyn Broker>,
    /// Queues are there once it is done.
    pub(crate) declaration: Declaration,
    pub(crate) watchers: Watchers,
    /// How long to wait before the store or the broker is tried again, at most.
    pub(crate) patience: Duration,
    /// How long this process may be silent before others take over what it holds.
    pub(crate) lease: Duration,
    /// What this process writes down by what it begins with: a name that no other has, nor an earlier life of this one.
    pub(crate) process: Arc<str>,
    /// Held while something runs that may have ended a process.
    pub(crate) alone: Arc<tokio::sync::Mutex<()>>,
}

impl Running {
    /// The event in a message. `named` is the format of messages that do not say theirs.
    pub(super) fn event_in(
        &self,
        received: &Received,
        named: Option<&str>,
    ) -> Result<IncomingEvent, FormatError> {
        self.bus.registry.formats().read(received, named)
    }
}

/// A consumer whose names are checked.
pub(crate) struct Job {
    pub(super) running: Running,
    pub(super) consumer: Consumer,
    pub(super) handler: HandlerName,
    pub(super) queue: String,
    pub(super) meters: ConsumerMeters,
    /// Wakes the redelivery of what was set aside.
    pub(super) aside: Wake,
    /// The letters that this process is at, each with how long it holds it: one whose handler takes longer is not taken
    /// again here before what became of it is written down.
    pub(super) in_hand: Mutex<BTreeMap<u64, DateTime<Utc>>>,
    /// Lanes in which something was set behind a letter since anyone looked whether that letter is still there.
    pub(super) set_behind: Mutex<BTreeSet<Lane>>,
    /// Where to look, and when, whatever this process knows: one that is gone may have set something behind.
    pub(super) look_behind: Mutex<LookBehind>,
    /// The last appends that were looked up: the facts of one come right behind each other.
    appends: Mutex<VecDeque<KnownAppend>>,
}

/// An append that was looked up.
struct KnownAppend {
    append: AppendedTogether,
    /// It was handled, here and durably: what comes of it now needs no transaction to find that out.
    is_handled: bool,
}

/// How many appends are remembered.
const APPENDS: usize = 64;

/// Where to look for letters that wait behind nothing.
pub(super) struct LookBehind {
    pub(super) at: Instant,
    /// The lane up to which this round has looked.
    pub(super) after: Option<Lane>,
}

/// Starts a consumer: one service that receives, and as many as it handles at a time that bring back what was set aside:
/// after an outage that may be everything.
pub(crate) fn start(
    running: Running,
    consumer: Consumer,
    handler: HandlerName,
    queue: String,
) -> Vec<Service> {
    let meters = ConsumerMeters::of(&queue, handler.as_str());
    let look_behind = Mutex::new(LookBehind { at: Instant::now(), after: None });
    let at_a_time = consumer.policy.concurrency.max(1);
    let job = Arc::new(Job {
        running,
        consumer,
        handler,
        queue,
        meters,
        aside: Wake::default(),
        in_hand: Mutex::default(),
        set_behind: Mutex::default(),
        look_behind,
        appends: Mutex::default(),
    });
    let name = format!("consumer {}", job.handler);
    let redelivery = (0..at_a_time).map(|_| {
        let job = Arc::clone(&job);
        Service::keep_running(name.clone(), move |stopping| redeliver(Arc::clone(&job), stopping))
    });
    let mut services: Vec<Service> = redelivery.collect();
    services.push(Service::keep_running(name, move |stopping| receive(Arc::clone(&job), stopping)));
    services
}

/// A delivery that can be handled.
pub(super) struct Ready {
    pub(super) arrived: Arrived,
    /// The inbox's key.
    pub(super) event_id: EventId,
    /// Given to the handler, and read again if it is needed once more: that is rare, and a copy for each is not free.
    event: Option<IncomingEvent>,
    pub(super) lane: Lane,
    /// It may have been delivered before.
    came_before: bool,
}

impl Ready {
    fn take_event(&mut self, job: &Job) -> Result<IncomingEvent, FormatError> {
        self.event.take().map_or_else(|| Ok(job.read(&self.arrived.received)?.event), Ok)
    }
}

/// A delivery on its way through an attempt.
pub(super) struct Trying<'r> {
    pub(super) id: EventId,
    pub(super) event: IncomingEvent,
    pub(super) received: &'r Received,
    pub(super) lane: Lane,
    /// This process has written down that it begins with it.
    pub(super) begun: bool,
}

/// How an attempt to handle deliveries ended.
pub(super) enum Attempt {
    /// Committed, or found to be done already.
    Done {
        /// The next transaction, where one is open already.
        next: Option<SqlTransaction>,
        /// How many of the deliveries were not done already.
        handled: usize,
    },
    /// A letter stands for the delivery.
    SetAside,
    /// Rolled back before the handler ran: these were delivered before, although the broker does not say so.
    CameBefore(Vec<EventId>),
    /// Rolled back, because the handler said no.
    Failed(Failure),
    /// Rolled back before the handler ran, because earlier deliveries of these lanes wait and order is kept.
    Waits(Vec<Lane>),
    /// The store did not answer before the handler ran: nothing has failed.
    NoStore(StoreError),
}

/// So often in a row a transaction gives way before it counts as a failure.
pub(super) const GIVES_WAY_AT_MOST: u32 = 30;

/// How long to wait before a transaction is run again that gave way: unevenly, so that those who collided do not collide
/// again.
pub(super) fn way_clear(times: u32) -> Duration {
    Duration::from_millis(5).saturating_mul(times.min(20)).mul_f64(random_unit())
}

/// A transaction that was opened with the commit of the one before it. Only a worker that has more to do at once keeps
/// one: nobody is idle in a transaction. And only where nobody waits for its connection: what was handled is settled while
/// it is kept, and with a broker in the store that needs a connection, too. Workers that all keep theirs would wait for
/// each other.
type Spare = Option<SqlTransaction>;

pub(super) async fn work(job: Arc<Job>, mut inbound: Inbound, mut stopping: Stopping) {
    let batch = Gather { most: job.consumer.batch, patience: job.consumer.policy.gather };
    let mut spare: Spare = None;
    while !stopping.is_asked() {
        let mut arrived = if spare.is_some() { inbound.take_waiting(batch).await } else { Vec::new() };
        if arrived.is_empty() {
            spare = None;
            arrived = tokio::select! {
                () = stopping.asked() => return,
                arrived = inbound.take(batch) => arrived,
            };
            if arrived.is_empty() {
                return;
            }
        }
        job.handle_all(arrived, &mut spare, &mut stopping).await;
    }
}

impl Job {
    /// Handles what has arrived, together if possible.
    async fn handle_all(&self, arrived: Vec<Arrived>, spare: &mut Spare, stopping: &mut Stopping) {
        let mut ready = Vec::with_capacity(arrived.len());
        for arrived in arrived {
            match self.read(&arrived.received) {
                Ok(readable) if self.wants(&readable.event) => {
                    let Some(event_id) = self.key_of(readable.id, spare, stopping).await else { return };
                    let event = readable.event;
                    if self.is_handled(event_id) {
                        self.meters.duplicates.increment(1);
                        self.tell(&arrived.received, Some(&event), DeliveringOutcome::Duplicate);
                        self.settle(&arrived, Settlement::Acknowledge).await;
                        continue;
                    }
                    let lane = lane_of(&arrived.received, &event);
                    let came_before = arrived.came_before();
                    ready.push(Ready { arrived, event_id, event: Some(event), lane, came_before });
                }
                Ok(_) => self.settle(&arrived, Settlement::Acknowledge).await,
                Err(error) => self.unreadable(&arrived, &error, stopping).await,
            }
        }
        while ready.len() > 1 && self.may_go_together(&ready, spare).await {
            match self.attempt(&mut ready, spare).await {
                Attempt::Done { next, handled } => {
                    *spare = next.filter(|_| self.may_keep_a_connection());
                    if let Some(ready) = ready.first() {
                        ready.arrived.new_ones(handled);
                    }
                    return self.acknowledge_all(&ready).await;
                }
                // Those whose aggregate waits leave the batch; the others stay together.
                Attempt::Waits(lanes) => {
                    let (mut waiting, going_on): (Vec<Ready>, Vec<Ready>) =
                        ready.into_iter().partition(|ready| lanes.contains(&ready.lane));
                    ready = going_on;
                    if !self.handle_each(&mut waiting, spare, stopping).await {
                        // A later one must not be set behind before an earlier one.
                        return self.let_go(&ready).await;
                    }
                }
                Attempt::CameBefore(ids) => {
                    ready.iter_mut().for_each(|ready| ready.came_before |= ids.contains(&ready.event_id));
                }
                // One of them does not go through, or the store is away: each for itself.
                Attempt::Failed(_) | Attempt::SetAside | Attempt::NoStore(_) => break,
            }
        }
        self.handle_each(&mut ready, spare, stopping).await;
    }

    /// The inbox's key of what was read, once the store has told it. Nothing when this is told to stop before: what is
    /// unsettled comes again.
    async fn key_of(&self, read: EventId, spare: &mut Spare, stopping: &mut Stopping) -> Option<EventId> {
        if self.consumer.identity != Identity::Append {
            return Some(read);
        }
        if let Some(key) = self.known_append(read) {
            return Some(key);
        }
        // It would wait idle, and its connection may be the last one.
        *spare = None;
        let mut backoff = Backoff::default();
        loop {
            match self.append_of(read).await {
                Ok(key) => return Some(key),
                Err(error) => self.note_store(&error),
            }
            tokio::select! {
                () = stopping.asked() => return None,
                () = tokio::time::sleep(backoff.next_within(self.running.patience)) => {}
            }
        }
    }

    /// The last fact of the append that a fact is from. What is not in the log stands for itself.
    pub(super) async fn append_of(&self, event_id: EventId) -> Result<EventId, StoreError> {
        if let Some(key) = self.known_append(event_id) {
            return Ok(key);
        }
        let Some(append) = self.running.store.appended_with(event_id).await? else { return Ok(event_id) };
        let last_event = append.last_event;
        let mut appends = self.appends();
        appends.truncate(APPENDS - 1);
        appends.push_front(KnownAppend { append, is_handled: false });
        Ok(last_event)
    }

    fn known_append(&self, event_id: EventId) -> Option<EventId> {
        let appends = self.appends();
        appends.iter().find(|known| known.append.contains(event_id)).map(|known| known.append.last_event)
    }

    fn is_handled(&self, key: EventId) -> bool {
        self.appends().iter().any(|known| known.is_handled && known.append.last_event == key)
    }

    fn note_handled(&self, key: EventId) {
        if let Some(known) = self.appends().iter_mut().find(|known| known.append.last_event == key) {
            known.is_handled = true;
        }
    }

    fn appends(&self) -> MutexGuard<'_, VecDeque<KnownAppend>> {
        self.appends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles deliveries one after the other; `false` when it was told to stop before the end. The rest is unsettled then,
    /// and delivered again.
    async fn handle_each(&self, ready: &mut [Ready], spare: &mut Spare, stopping: &mut Stopping) -> bool {
        let mut done = 0;
        while let Some(next) = ready.get_mut(done) {
            if stopping.is_asked() || !self.handle_one(next, spare, stopping).await {
                self.let_go(ready.get(done..).unwrap_or_default()).await;
                return false;
            }
            done += 1;
        }
        true
    }

    /// Whether none of a batch is what may have ended a process, or is done with by a letter. What may have been delivered
    /// before is begun with this.
    async fn may_go_together(&self, ready: &[Ready], spare: &mut Spare) -> bool {
        match self.begin(ready, spare).await {
            Ok(before) => before == CameBefore::default(),
            // Alone each of them waits for the store.
            Err(_) => false,
        }
    }

    /// Writes down that this process begins with those that may have been delivered before.
    async fn begin(&self, ready: &[Ready], spare: &mut Spare) -> Result<CameBefore, StoreError> {
        let ids: Vec<EventId> =
            ready.iter().filter(|ready| ready.came_before).map(|ready| ready.event_id).collect();
        if !ids.is_empty() {
            // A transaction that is open already would wait idle, and its connection may be the last one.
            *spare = None;
        }
        self.begin_with(&ids, self.consumer.policy.dead == DeadTo::Store).await
    }

    /// What goes back to the broker is in its queue before its letter is gone: there a letter stands for nothing.
    pub(super) async fn begin_with(
        &self,
        ids: &[EventId],
        letters_stand: bool,
    ) -> Result<CameBefore, StoreError> {
        if ids.is_empty() {
            return Ok(CameBefore::default());
        }
        let Running { store, process, bus, .. } = &self.running;
        store.begin_attempts(ids, &self.handler, process, letters_stand, bus.clock.now()).await
    }

    /// What was begun with and did not come to an end, because this process stops: nothing has failed. Should the store not
    /// answer, the next process takes the attempt for one that ended this one.
    async fn let_go(&self, ready: &[Ready]) {
        let ids: Vec<EventId> =
            ready.iter().filter(|ready| ready.came_before).map(|ready| ready.event_id).collect();
        self.let_go_of(&ids).await;
    }

    pub(super) async fn let_go_of(&self, ids: &[EventId]) {
        if ids.is_empty() {
            return;
        }
        let Running { store, process, patience, .. } = &self.running;
        let letting_go = store.let_go_of_attempts(ids, &self.handler, process);
        if let Ok(Err(error)) = tokio::time::timeout(*patience, letting_go).await {
            self.note_store(&error);
        }
    }

    pub(super) fn read(&self, received: &Received) -> Result<Readable, FormatError> {
        let Consumer { identity, source, .. } = &self.consumer;
        reading::readable(*identity, source, received, self.event_in(received))
    }

    /// The event in a message, whatever the consumer tells messages by.
    pub(super) fn event_in(&self, received: &Received) -> Result<IncomingEvent, FormatError> {
        self.running.event_in(received, self.consumer.format.as_deref())
    }

    fn wants(&self, event: &IncomingEvent) -> bool {
        let types = &self.consumer.event_types;
        types.is_empty() || types.iter().any(|glob| glob.matches(event.event_type.as_str()))
    }

    /// Handles one delivery until it is settled; `false` when it was told to stop before. Unsettled, it is delivered again.
    async fn handle_one(&self, ready: &mut Ready, spare: &mut Spare, stopping: &mut Stopping) -> bool {
        let mut backoff = Backoff::default();
        let mut gave_way = 0;
        let mut alone = None;
        loop {
            let settlement = match self.attempt_one(ready, spare).await {
                Attempt::Done { next, handled } => {
                    *spare = next.filter(|_| self.may_keep_a_connection());
                    ready.arrived.new_ones(handled);
                    self.note_handled(ready.event_id);
                    Ok(Some(Settlement::Acknowledge))
                }
                Attempt::SetAside => Ok(Some(Settlement::Acknowledge)),
                Attempt::CameBefore(_) => {
                    ready.came_before = true;
                    continue;
                }
                Attempt::Waits(_) => {
                    self.set_behind(ready).await.map(|set| set.then_some(Settlement::Acknowledge))
                }
                Attempt::Failed(failure) if failure.gave_way && gave_way < GIVES_WAY_AT_MOST => {
                    gave_way += 1;
                    tokio::select! {
                        () = stopping.asked() => return false,
                        () = tokio::time::sleep(way_clear(gave_way)) => {}
                    }
                    continue;
                }
                Attempt::Failed(failure) => {
                    let not_ended = failure.not_ended;
                    let decided = match ready.take_event(self) {
                        Ok(event) => {
                            let (id, received, lane) = (ready.event_id, &ready.arrived.received, ready.lane);
                            let failed = Trying { id, event, received, lane, begun: ready.came_before };
                            self.failed(&failed, None, failure).await
                        }
                        // It was read before.
                        Err(error) => {
                            self.unreadable(&ready.arrived, &error, stopping).await;
                            return true;
                        }
                    };
                    if not_ended && alone.is_none() && matches!(decided, Ok(None)) {
                        alone = tokio::select! {
                            () = stopping.asked() => return false,
                            alone = self.running.alone.lock() => Some(alone),
                        };
                    }
                    decided
                }
                Attempt::NoStore(error) => Err(error),
            };
            match settlement {
                Ok(Some(settlement)) => {
                    self.settle(&ready.arrived, settlement).await;
                    return true;
                }
                // At once again, and not for the first time.
                Ok(None) if !stopping.is_asked() => ready.came_before = true,
                Ok(None) => return false,
                Err(error) => {
                    self.note_store(&error);
                    tokio::select! {
                        () = stopping.asked() => return false,
                        () = tokio::time::sleep(backoff.next_within(self.running.patience)) => {}
                    }
                }
            }
        }
    }

    /// Begins with a delivery that may have come before, then tries it.
    async fn attempt_one(&self, ready: &mut Ready, spare: &mut Spare) -> Attempt {
        if ready.came_before {
            match self.begin(std::slice::from_ref(ready), spare).await {
                Ok(before) if !before.unfinished.is_empty() => return Attempt::Failed(Failure::not_ended()),
                Ok(before) if !before.set_aside.is_empty() => return Attempt::SetAside,
                Ok(_) => {}
                Err(error) => return Attempt::NoStore(error),
            }
        }
        self.attempt(std::slice::from_mut(ready), spare).await
    }

    fn may_keep_a_connection(&self) -> bool {
        !self.running.broker.promises().in_store && !self.running.store.is_exhausted()
    }

    pub(super) fn note_store(&self, error: &StoreError) {
        tracing::warn!(
            queue = self.queue,
            consumer = %self.handler,
            code = error.code(),
            cause = with_causes(error),
            "a delivery waits for the store"
        );
    }

    /// One transaction: mark, handle, commit.
    async fn attempt(&self, deliveries: &mut [Ready], spare: &mut Spare) -> Attempt {
        let open = match self.open(spare.take()).await {
            Ok(open) => open,
            Err(error) => return Attempt::NoStore(error),
        };
        let mut arrived = Vec::with_capacity(deliveries.len());
        for ready in deliveries {
            // What could be read once can be read again.
            let Ok(event) = ready.take_event(self) else { continue };
            let Ready { arrived: Arrived { received, .. }, event_id, lane, came_before, .. } = &*ready;
            arrived.push(Trying { id: *event_id, event, received, lane: *lane, begun: *came_before });
        }
        self.attempt_events(arrived, None, open).await
    }

    pub(super) async fn open(&self, spare: Spare) -> Result<Open, StoreError> {
        let inner = match spare {
            Some(spare) => spare,
            None => self.running.store.open_transaction().await?,
        };
        Ok(Open::of_handler(inner, &self.running.bus, &self.handler))
    }

    /// Mark, handle, commit, in this transaction. With a letter, it is the one that holds it. What is logged meanwhile
    /// says which deliveries these are.
    pub(super) async fn attempt_events(
        &self,
        arrived: Vec<Trying<'_>>,
        letter: Option<&Letter>,
        open: Open,
    ) -> Attempt {
        let handled: Vec<&IncomingEvent> = arrived.iter().map(|trying| &trying.event).collect();
        let span = spans::consume(&self.queue, self.handler.as_str(), &handled);
        self.attempt_inside(arrived, letter, open).instrument(span).await
    }

    async fn attempt_inside(
        &self,
        arrived: Vec<Trying<'_>>,
        letter: Option<&Letter>,
        mut open: Open,
    ) -> Attempt {
        let now = self.running.bus.clock.now();
        if self.consumer.policy.in_order && letter.is_none() {
            let lanes: Vec<Lane> = arrived.iter().map(|trying| trying.lane).collect();
            match open.sql.waiting_lanes(&self.handler, &lanes).await {
                Ok(waiting) if waiting.is_empty() => {}
                Ok(waiting) => return Attempt::Waits(waiting),
                Err(error) => return Attempt::NoStore(error),
            }
        }
        let ids: Vec<_> = arrived.iter().map(|trying| trying.id).collect();
        let first = match open.sql.mark_deliveries(&ids, &self.handler, now).await {
            Ok(first) => first,
            Err(error) => return Attempt::NoStore(error),
        };
        // A sender that is not sure publishes again, and the broker takes that for another message.
        let known = |trying: &&Trying<'_>| {
            let before = first.iter().find(|first| first.event_id == trying.id);
            !trying.begun && before.is_some_and(|before| before.begun || before.failures > 0)
        };
        let came_before: Vec<EventId> = arrived.iter().filter(known).map(|trying| trying.id).collect();
        if !came_before.is_empty() {
            return Attempt::CameBefore(came_before);
        }
        let mut failures: HashMap<EventId, u32> =
            first.iter().map(|first| (first.event_id, first.failures)).collect();
        let all = arrived.len();
        // The handler gets the events, so what is told of them afterwards is noted before.
        let told = self.noted(&arrived, &first);
        let mut deliveries = Vec::with_capacity(first.len());
        for Trying { id, event, received, .. } in arrived {
            // Taken out: the same event twice in one batch is one delivery.
            let Some(failures) = failures.remove(&id) else { continue };
            deliveries.push(Delivered {
                event,
                attempt: failures + 1,
                redelivered: received.redelivered,
                headers: Arc::clone(&received.headers),
                set_aside_at: letter.map(|letter| letter.replayed_at.unwrap_or(letter.letter.received_at)),
                tried_at: letter.map(|letter| letter.status_changed_at),
            });
        }
        let (handled, duplicates) = (deliveries.len(), (all - deliveries.len()) as u64);
        let lost = open.connection_lost();
        let lender = Lender::new(open);
        let answer = if deliveries.is_empty() {
            Ok(Next::handled())
        } else {
            // The call itself is inside: a handler may panic before it has made its future.
            let run = async { (self.consumer.run)(deliveries, lender.clone()).await };
            let begun = Instant::now();
            let ran = tokio::select! {
                ran = AssertUnwindSafe(run).catch_unwind() => ran,
                // It may wait for ever for what it runs on the connection itself.
                error = lost => Ok(Err(error.into())),
            };
            self.meters.ran(begun.elapsed());
            match ran {
                Ok(answer) => answer,
                Err(panic) => Err(HandlerError::transient("handler-panicked", panic_message(panic.as_ref()))),
            }
        };
        let failure = match answer {
            Ok(Next(Step::Handled)) => match lender.take_back() {
                // From here on an error counts as a failure, also one of the connection: a handler that outlives its
                // transaction, or breaks a rule that is checked at the commit, would come again for ever. If the commit
                // took effect after all, counting the failure finds the delivery handled.
                Ok(open) => match self.commit(open, letter, first.first(), now).await {
                    Ok(next) => {
                        self.meters.handled.increment(handled as u64);
                        self.meters.duplicates.increment(duplicates);
                        for (event, received, outcome) in &told {
                            self.tell(received, Some(event), *outcome);
                        }
                        return Attempt::Done { next, handled };
                    }
                    Err(error) => Failure::of_store(&error),
                },
                Err(kept) => Failure::new(ErrorClass::Unrecoverable, kept.code(), with_causes(&kept)),
            },
            Ok(Next(Step::RetryAfter { delay, reason, message })) => {
                Failure { after: Some(delay), ..Failure::new(ErrorClass::Transient, reason, message) }
            }
            Ok(Next(Step::Dead { reason, message })) => {
                Failure::new(ErrorClass::Unrecoverable, reason, message)
            }
            Err(error) => Failure {
                gave_way: error.gave_way(),
                ..Failure::new(error.class(), error.code(), error.message())
            },
        };
        Attempt::Failed(failure)
    }

    /// Commits, and the letter with it if there is one.
    async fn commit(
        &self,
        mut open: Open,
        letter: Option<&Letter>,
        marked: Option<&FirstDelivery>,
        now: DateTime<Utc>,
    ) -> Result<Spare, StoreError> {
        if let Some(letter) = letter {
            open.sql.letter_handled(letter, now).await?;
        }
        open.commit_marked(marked.map(|first| first.event_id), &self.handler).await
    }

    /// What watchers are told once the deliveries are through. Nothing, when nobody watches.
    fn noted<'r>(
        &self,
        arrived: &[Trying<'r>],
        first: &[FirstDelivery],
    ) -> Vec<(IncomingEvent, &'r Received, DeliveringOutcome<'static>)> {
        if self.running.watchers.0.is_empty() {
            return Vec::new();
        }
        let outcome = |id: EventId| match first.iter().any(|first| first.event_id == id) {
            true => DeliveringOutcome::Handled,
            false => DeliveringOutcome::Duplicate,
        };
        arrived.iter().map(|trying| (trying.event.clone(), trying.received, outcome(trying.id))).collect()
    }

    /// Tells the application's watchers.
    pub(super) fn tell(
        &self,
        message: &Received,
        event: Option<&IncomingEvent>,
        outcome: DeliveringOutcome<'_>,
    ) {
        let trace_id = event.and_then(|event| event.trace_id.as_ref()).map(ToString::to_string);
        self.running.watchers.delivered(&Delivering {
            handler: self.handler.as_str(),
            message,
            event_id: event.map(|event| event.event_id),
            trace_id: trace_id.as_deref(),
            outcome,
        });
    }

    /// Settling can only fail with the connection, and then the message is delivered again and found to be done.
    pub(super) async fn settle(&self, arrived: &Arrived, settlement: Settlement) {
        match arrived.from.settle(arrived.received.tag, settlement).await {
            Ok(()) => self.meters.settled(settlement, 1),
            Err(error) => self.unsettled(&error),
        }
    }

    /// Acknowledges a batch. It may have come from two subscriptions, if the connection was lost in between.
    async fn acknowledge_all(&self, batch: &[Ready]) {
        for alike in batch.chunk_by(|one, next| Arc::ptr_eq(&one.arrived.from, &next.arrived.from)) {
            let Some(Ready { arrived: Arrived { from, .. }, .. }) = alike.first() else { continue };
            let tags: Vec<DeliveryTag> = alike.iter().map(|ready| ready.arrived.received.tag).collect();
            match from.acknowledge_all(&tags).await {
                Ok(()) => self.meters.settled(Settlement::Acknowledge, tags.len()),
                Err(error) => self.unsettled(&error),
            }
        }
    }

    fn unsettled(&self, error: &BrokerError) {
        tracing::warn!(
            queue = self.queue,
            consumer = %self.handler,
            cause = with_causes(error),
            "could not settle"
        );
    }
}

/// The lane of a delivery: its aggregate's, or that of its key.
pub(super) fn lane_of(received: &Received, event: &IncomingEvent) -> Lane {
    event.aggregate.as_ref().map_or_else(|| lane_of_key(received), AggregateKey::lane)
}

pub(super) fn lane_of_key(received: &Received) -> Lane {
    // Our own key is the aggregate as a text: a message that cannot be read belongs to its aggregate all the same.
    if let Some((kind, id)) = received.key.as_deref().and_then(|key| key.split_once('/')) {
        return AggregateKey::from_stored(kind, id).lane();
    }
    let key = received.key.as_deref().or(received.message_id.as_deref()).unwrap_or_default();
    AggregateKey::from_stored("message", key).lane()
}

pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the handler panicked".to_owned())
}
