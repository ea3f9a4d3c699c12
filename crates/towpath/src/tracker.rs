//! Trackers: channels that follow the log by position (N5, N7).
//!
//! A tracker has no outbox rows. Its whole state is one number in the table `channels`: the last position it has
//! published. One instance at a time does the work of a channel, under the lease `tracker/<channel>`. It reads the log
//! behind its position, publishes, and moves the position up to the first event that was not confirmed. A process that
//! dies in between publishes again what it had published, and skips nothing. An aggregate with an event that the broker
//! refuses while it takes others is left behind (table `channel_parked`), and catches up when that event is taken.
//!
//! The tracker keeps its own lease, beside the lease keeper: channels come and go while the process runs.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use towpath_core::channel::{Channel, Start, Target};
use towpath_core::envelope::RecordedEvent;
use towpath_core::format::FormatError;
use towpath_core::ids::{
    ActorId, AggregateKey, ChannelName, EventId, InstanceId, Lane, LeaseName, Position, TraceId,
};
use towpath_core::ports::broker::{Broker, Published};
use towpath_core::ports::store::{
    ChannelRow, Disabled, LeaseGrant, Parked, ParkedAggregate, StoreError, StoreResult,
};
use towpath_core::retry::{Coded, ErrorClass};
use towpath_core::time::later;
use uuid::Uuid;

use crate::bus::{Bus, random_unit, with_causes};
use crate::circumstances::Circumstances;
use crate::declaring::Declaration;
use crate::metrics::ChannelMeters;
use crate::outbox::is_beyond;
use crate::publishing::{Outgoing, publish};
use crate::service::{STOPPING, Service, Stopping, Wake, rest, stop_all};
use crate::towpath::Towpath;

/// After how many bytes of payloads a batch is large enough.
const BATCH_BYTES: u64 = 1 << 20;

/// How many of the aggregates that were left behind are tried again before the log goes on.
const TRIED_AGAIN: u32 = 50;

/// The longest pause after failures, when the channel's policy has no further one: a tracker never gives up.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// After how many failures of one event without a clear answer it is tried whether the broker takes others.
const IN_THE_WAY: u32 = 3;

/// How long at most it is waited for events of other aggregates while all that is there is refused.
const NEXT_EVENT: Duration = Duration::from_secs(5);

/// Why a channel cannot be followed, or changed.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// Its events get outbox rows: that is decided when Towpath starts.
    #[error("channel {0} does not follow the log")]
    NotTracking(ChannelName),
    /// It has nowhere to publish to.
    #[error("channel {0} has no target")]
    NoTarget(ChannelName),
    /// It would publish again what is older than inboxes remember.
    #[error("channel {channel} would publish events again that are older than the horizon")]
    BeyondHorizon {
        /// Which channel.
        channel: ChannelName,
    },
    /// Its format is not there.
    #[error("channel {channel} has no format")]
    Format {
        /// Which channel.
        channel: ChannelName,
        /// Which format.
        source: FormatError,
    },
    /// The store says no, or nothing.
    #[error("the store did not do it")]
    Store(#[from] StoreError),
}

impl Coded for ChannelError {
    fn code(&self) -> &'static str {
        match self {
            Self::NotTracking(_) => "channel-not-tracking",
            Self::NoTarget(_) => "channel-without-target",
            Self::BeyondHorizon { .. } => "beyond-horizon",
            Self::Format { source, .. } => source.code(),
            Self::Store(error) => error.code(),
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Self::NotTracking(_) | Self::NoTarget(_) | Self::BeyondHorizon { .. } | Self::Format { .. } => {
                ErrorClass::Validation
            }
            Self::Store(error) => error.class(),
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::NotTracking(_) => "Give it tracking(Start::…), or add it to the builder.",
            Self::NoTarget(_) => "Name the exchange it publishes to.",
            Self::BeyondHorizon { .. } => {
                "Make sure that no handler minds them twice, then reset it by force."
            }
            Self::Format { source, .. } => source.next_step(),
            Self::Store(error) => error.next_step(),
        }
    }
}

/// The wakes of all trackers of this process: positions that were given concern all of them.
#[derive(Clone, Default)]
pub(crate) struct TrackerWakes(Arc<Mutex<BTreeMap<ChannelName, Wake>>>);

impl TrackerWakes {
    fn of(&self, channel: &ChannelName) -> Wake {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(channel.clone()).or_default().clone()
    }

    fn wake(&self, channel: &ChannelName) {
        self.of(channel).wake();
    }

    /// Wakes all of them.
    pub(crate) fn wake_all(&self) {
        for wake in self.0.lock().unwrap_or_else(PoisonError::into_inner).values() {
            wake.wake();
        }
    }
}

/// The trackers of this process. Clones share them.
#[derive(Clone)]
pub(crate) struct Trackers {
    bus: Bus,
    /// `None` on an instance that publishes nothing.
    broker: Option<(Arc<dyn Broker>, Declaration)>,
    instance: InstanceId,
    lease: Duration,
    /// For how long inboxes remember what was handled.
    horizon: Duration,
    running: Arc<Mutex<BTreeMap<ChannelName, Service>>>,
}

impl Trackers {
    pub(crate) fn new(
        bus: Bus,
        broker: Option<(Arc<dyn Broker>, Declaration)>,
        instance: InstanceId,
        lease: Duration,
        horizon: Duration,
    ) -> Self {
        Self { bus, broker, instance, lease, horizon, running: Arc::default() }
    }

    /// Follows a channel from where it is, or from its start if nobody has followed it before.
    pub(crate) async fn follow(&self, channel: Channel) -> Result<(), ChannelError> {
        match self.add(&channel).await {
            Ok(()) | Err(ChannelError::Store(StoreError::NameTaken { .. })) => self.run(channel).await,
            Err(error) => Err(error),
        }
    }

    /// Registers a channel at its start.
    async fn add(&self, channel: &Channel) -> Result<(), ChannelError> {
        let name = &channel.name;
        let start = channel.tracking.ok_or_else(|| ChannelError::NotTracking(name.clone()))?;
        if channel.target.is_none() {
            return Err(ChannelError::NoTarget(name.clone()));
        }
        if let Err(source) = self.bus.registry.formats().named(&channel.format) {
            return Err(ChannelError::Format { channel: name.clone(), source });
        }
        let store = &self.bus.store;
        let position = start.behind(store.head().await?);
        Ok(store.add_channel(Uuid::now_v7(), name, position, self.bus.clock.now()).await?)
    }

    async fn run(&self, channel: Channel) -> Result<(), ChannelError> {
        let target = channel.target.clone().ok_or_else(|| ChannelError::NoTarget(channel.name.clone()))?;
        let Some((broker, declaration)) = self.broker.clone() else { return Ok(()) };
        let row = self.bus.store.channels().await?.into_iter().find(|row| row.name == channel.name);
        let missing = || StoreError::Missing { what: "channel", name: channel.name.to_string() };
        let channel_id = row.ok_or_else(missing)?.channel_id;
        self.end(&channel.name).await;
        let (name, wake) = (channel.name.clone(), self.bus.wakes.trackers.of(&channel.name));
        let tracker = Arc::new(Tracker {
            lease_name: LeaseName::from_stored(format!("tracker/{name}")),
            renewed_at: Mutex::new(Instant::now()),
            meters: ChannelMeters::of(name.as_str()),
            bus: self.bus.clone(),
            broker,
            declaration,
            channel_id,
            channel,
            target,
            instance: self.instance.clone(),
            lease: self.lease,
        });
        let track = move |stopping| Arc::clone(&tracker).run(wake.clone(), stopping);
        let service = Service::keep_running(format!("tracker {name}"), track);
        self.running().insert(name, service);
        Ok(())
    }

    async fn end(&self, name: &ChannelName) {
        // Nobody waits for the others while one of them is waited for.
        let service = self.running().remove(name);
        if let Some(mut service) = service {
            service.stop_by(Instant::now() + STOPPING).await;
        }
    }

    /// Stops all of them. Answers the names of those that were cut off.
    pub(crate) async fn stop_by(&self, deadline: Instant) -> Vec<String> {
        let mut services = std::mem::take(&mut *self.running());
        stop_all(services.values_mut(), deadline).await
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<ChannelName, Service>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Tracker {
    bus: Bus,
    broker: Arc<dyn Broker>,
    declaration: Declaration,
    /// Which channel of this name.
    channel_id: Uuid,
    channel: Channel,
    target: Target,
    meters: ChannelMeters,
    instance: InstanceId,
    lease: Duration,
    lease_name: LeaseName,
    /// When the lease was last renewed.
    renewed_at: Mutex<Instant>,
}

/// What a run leads to.
enum Progress {
    /// There is more.
    GoOn,
    /// Nothing more to do until woken.
    Rest,
    /// Not everything was confirmed. It is doubtful whether the broker takes anything, or it refuses all it is given.
    Failed { published: Published, event_id: EventId, trace_id: Option<TraceId>, doubtful: bool },
    /// The channel is gone. Another one may have its name by now, with another target.
    Removed,
}

/// What became of those that were left behind.
enum CaughtUp {
    /// They have what they missed, or wait for longer, or (not `all`) have some of it.
    AsFarAs { all: bool },
    /// The fate of an event is not known: the others wait for the next time, and the log goes on meanwhile.
    Stopped,
    /// Nothing was written: somebody has set the channel.
    WasSet,
}

/// How a round goes about it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Care {
    /// A batch at a time.
    None,
    /// While it is open whether the broker takes anything: what comes behind a message that did not arrive must not arrive
    /// before it.
    OneByOne,
    /// The same, and if the event fails again another aggregate's shows whether it is alone in that.
    LookAround,
}

/// What became of a batch.
struct Gone<'e> {
    /// Whether anything was confirmed.
    confirmed: bool,
    /// The first event of each aggregate that the broker has something against.
    refused: Vec<(&'e RecordedEvent, Published)>,
    /// The first whose fate is not known. Nothing behind its run was tried.
    stopped: Option<(&'e RecordedEvent, Published)>,
}

impl Gone<'_> {
    /// Whether an earlier event of its aggregate was refused.
    fn holds_back(&self, event: &RecordedEvent) -> bool {
        self.refused.iter().any(|(other, _)| other.envelope.aggregate == event.envelope.aggregate)
    }
}

impl Progress {
    fn failed(event: &RecordedEvent, published: Published, doubtful: bool) -> Self {
        let envelope = &event.envelope;
        Self::Failed { published, event_id: envelope.event_id, trace_id: envelope.trace_id.clone(), doubtful }
    }
}

impl Tracker {
    async fn run(self: Arc<Self>, wake: Wake, mut stopping: Stopping) {
        let mut grant = None;
        let (mut failures, mut carefully) = (0_u32, false);
        // What nothing is bound for yet would go nowhere.
        self.declaration.done(&mut stopping).await;
        while !stopping.is_asked() {
            let channel = self.channel.name.as_str();
            let care = match carefully {
                false => Care::None,
                true if failures < IN_THE_WAY => Care::OneByOne,
                true => Care::LookAround,
            };
            match self.round(&mut grant, care).await {
                Ok(Progress::GoOn) => {
                    (failures, carefully) = (0, false);
                    continue;
                }
                Ok(Progress::Rest) => {
                    (failures, carefully) = (0, false);
                    rest(&wake, self.channel.policy.scan, &mut stopping).await;
                    continue;
                }
                // Somebody else follows the channel now.
                Err(StoreError::Fenced { .. }) => {
                    grant = None;
                    rest(&wake, self.channel.policy.scan, &mut stopping).await;
                    continue;
                }
                Ok(Progress::Removed) => {
                    tracing::info!(channel, "the channel was removed; no longer following the log");
                    break;
                }
                Ok(Progress::Failed { published, event_id, trace_id, doubtful }) => {
                    carefully = doubtful;
                    tracing::warn!(
                        eventId = %event_id,
                        traceId = trace_id.as_ref().map(tracing::field::display),
                        queue = self.target.exchange,
                        channel,
                        ?published,
                        "the log was not published further; trying again"
                    );
                }
                Err(error) => {
                    carefully = true;
                    tracing::warn!(
                        channel,
                        code = error.code(),
                        cause = with_causes(&error),
                        "could not follow the log; trying again"
                    );
                }
            }
            failures = failures.saturating_add(1);
            let pause = self.pause(failures);
            if carefully {
                // New positions must not cut this short: what fails would be tried with each of them.
                rest(&Wake::default(), pause, &mut stopping).await;
            } else {
                // With the next event of another aggregate it shows whether only this one is refused.
                rest(&wake, pause.min(NEXT_EVENT), &mut stopping).await;
            }
        }
        if let Some(grant) = grant
            && let Err(error) = self.bus.store.release_lease(&grant).await
        {
            tracing::warn!(lease = %grant.lease, code = error.code(), "could not give a lease back; it will run out");
        }
    }

    /// The channel's policy says how long to wait, but not when to give up: a log is not left in the middle.
    fn pause(&self, failures: u32) -> Duration {
        let delay = self.channel.policy.retries.next_delay(failures, random_unit());
        delay.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE)
    }

    /// Lets some that were left behind catch up, and takes one batch of the log out.
    async fn round(&self, grant: &mut Option<LeaseGrant>, care: Care) -> StoreResult<Progress> {
        let store = &self.bus.store;
        match grant {
            Some(held) => store.renew_lease(held, self.lease).await?,
            None => *grant = store.acquire_lease(&self.lease_name, &self.instance, self.lease).await?,
        }
        self.note_renewal();
        let Some(held) = grant.as_ref() else { return Ok(Progress::Rest) };
        let row = store.channels().await?.into_iter().find(|row| row.channel_id == self.channel_id);
        let Some(row) = row else { return Ok(Progress::Removed) };
        if row.disabled.is_some() {
            return Ok(Progress::Rest);
        }
        let which = Parked::Due { now: self.bus.clock.now(), limit: TRIED_AGAIN };
        let due = store.parked_in_channel(self.channel_id, row.reset_count, which).await?;
        let mut more = due.len() >= TRIED_AGAIN as usize;
        if !due.is_empty() {
            match self.catch_up(held, &row, &due).await? {
                CaughtUp::WasSet => return Ok(Progress::GoOn),
                // Not at once: a broker that takes nothing would be asked for each of them in turn.
                CaughtUp::Stopped => more = false,
                CaughtUp::AsFarAs { all } => more |= !all,
            }
        }
        let done = if more { Progress::GoOn } else { Progress::Rest };
        let head = store.head().await?;
        if row.position >= head {
            return Ok(done);
        }
        let batch = if care == Care::OneByOne { 1 } else { u64::from(self.channel.policy.batch.max(1)) };
        let last = row.position.saturating_add(batch).min(head);
        let read = store.events_within(row.position + 1, last, BATCH_BYTES).await?;
        // Large ones make a batch shorter.
        let Some(mut last) = read.last().and_then(|event| event.position) else { return Ok(done) };
        let mut taken: Vec<&RecordedEvent> =
            read.iter().filter(|event| self.channel.takes(event.envelope.event_type.as_str())).collect();
        let met: HashSet<&AggregateKey> = taken.iter().map(|event| &event.envelope.aggregate).collect();
        let met: Vec<AggregateKey> = met.into_iter().cloned().collect();
        let parked = store.parked_in_channel(self.channel_id, row.reset_count, Parked::Among(&met)).await?;
        let left_behind: HashSet<&AggregateKey> = parked.iter().map(|one| &one.aggregate).collect();
        taken.retain(|event| !left_behind.contains(&event.envelope.aggregate));
        let gone = match (care, taken.split_first()) {
            (Care::LookAround, Some((first, others))) => {
                last = first.position.unwrap_or(last);
                self.publish_and_look_around(held, first, others).await
            }
            _ => self.publish(held, &taken).await,
        };
        let Gone { confirmed, refused, stopped } = gone;
        // What is refused while others get through is to blame itself; if nothing gets through, nothing is passed by.
        let first_refused = refused.first().filter(|_| !confirmed);
        let stopped = match (stopped, first_refused) {
            (Some((event, _)), Some((refused, answer))) if refused.position < event.position => {
                Some((*refused, answer.clone(), true))
            }
            (Some((event, answer)), _) => Some((event, answer, true)),
            (None, refused) => refused.map(|(event, answer)| (*event, answer.clone(), false)),
        };
        let to = match &stopped {
            Some((event, ..)) => event.position.unwrap_or(row.position + 1).saturating_sub(1),
            None => last,
        };
        let passed =
            refused.iter().filter(|(event, _)| event.position.is_some_and(|position| position <= to));
        let parked: Vec<ParkedAggregate> =
            passed.map(|(event, answer)| self.park(event, answer, 1)).collect();
        // When the position is not where it was, somebody has set it: the next look begins from there.
        if to > row.position
            && !store.park_in_channel(held, self.channel_id, row.place(), to, &parked, &[]).await?
        {
            return Ok(Progress::GoOn);
        }
        Ok(match stopped {
            Some((event, published, doubtful)) => Progress::failed(event, published, doubtful),
            None if last < head => Progress::GoOn,
            None => done,
        })
    }

    /// Publishes what aggregates that were left behind have missed, up to where the channel is. Of one that has missed
    /// much only so much at a time: the log goes on in between.
    async fn catch_up(
        &self,
        grant: &LeaseGrant,
        row: &ChannelRow,
        due: &[ParkedAggregate],
    ) -> StoreResult<CaughtUp> {
        let store = &self.bus.store;
        let limit = self.channel.policy.batch.max(1);
        let (mut parked, mut opened) = (Vec::new(), Vec::new());
        let (mut stopped, mut all) = (false, true);
        'aggregates: for one in due {
            let (mut version, mut seen) = (one.version, 0);
            loop {
                if seen >= limit as usize {
                    parked.push(ParkedAggregate { version, attempts: 0, ..one.clone() });
                    all = false;
                    break;
                }
                let known = version.saturating_sub(1);
                let read = store.events_of_within(&one.aggregate, known, limit, BATCH_BYTES).await?;
                // What comes later is for the channel itself.
                let missed: Vec<&RecordedEvent> = read
                    .iter()
                    .take_while(|event| event.position.is_some_and(|position| position <= row.position))
                    .collect();
                let Some(last) = missed.last().map(|event| event.envelope.aggregate_version) else {
                    opened.push(one.aggregate.clone());
                    break;
                };
                seen += missed.len();
                let taken: Vec<&RecordedEvent> = missed
                    .into_iter()
                    .filter(|event| self.channel.takes(event.envelope.event_type.as_str()))
                    .collect();
                let gone = self.publish(grant, &taken).await;
                if let Some((event, answer)) = gone.stopped {
                    // It has not failed, and waits a little longer, from where it is by now. If the broker takes nothing at
                    // all, the log will show it.
                    let version = event.envelope.aggregate_version;
                    let due_at = Some(later(self.bus.clock.now(), self.pause(one.attempts.max(1))));
                    parked.push(ParkedAggregate { version, due_at, ..one.clone() });
                    tracing::debug!(channel = self.channel.name.as_str(), ?answer, "not caught up yet");
                    stopped = true;
                    break 'aggregates;
                }
                if let Some((event, answer)) = gone.refused.first() {
                    let is_same = event.envelope.aggregate_version == one.version;
                    let attempts = if is_same { one.attempts + 1 } else { 1 };
                    let parked_at = one.parked_at;
                    parked.push(ParkedAggregate { parked_at, ..self.park(event, answer, attempts) });
                    break;
                }
                version = last + 1;
            }
        }
        let (id, place) = (self.channel_id, row.place());
        let written = store.park_in_channel(grant, id, place, row.position, &parked, &opened).await?;
        Ok(match (written, stopped) {
            (false, _) => CaughtUp::WasSet,
            (true, true) => CaughtUp::Stopped,
            (true, false) => CaughtUp::AsFarAs { all },
        })
    }

    /// How an aggregate waits whose event was refused so often.
    fn park(&self, event: &RecordedEvent, answer: &Published, attempts: u32) -> ParkedAggregate {
        let (reason, message) = match answer {
            Published::Unroutable { reason } => ("unroutable", reason.clone()),
            Published::Refused { reason } => ("broker-refused", reason.clone()),
            other => ("not-confirmed", format!("{other:?}")),
        };
        let (channel, envelope) = (self.channel.name.as_str(), &event.envelope);
        let now = self.bus.clock.now();
        let delay = self.channel.policy.retries.next_delay(attempts, random_unit());
        let due_at = delay.map(|delay| later(now, delay));
        if due_at.is_some() {
            self.meters.retries.increment(1);
            tracing::warn!(
                eventId = %envelope.event_id,
                traceId = envelope.trace_id.as_ref().map(tracing::field::display),
                queue = self.target.exchange,
                channel,
                reason,
                cause = message,
                "an event was not published; its aggregate waits, and the others go on"
            );
        } else {
            self.meters.given_up.increment(1);
            tracing::error!(
                eventId = %envelope.event_id,
                traceId = envelope.trace_id.as_ref().map(tracing::field::display),
                queue = self.target.exchange,
                channel,
                reason,
                cause = message,
                "an event was given up; its aggregate waits until the channel is resumed"
            );
        }
        ParkedAggregate {
            aggregate: envelope.aggregate.clone(),
            version: envelope.aggregate_version,
            attempts,
            due_at,
            reason: reason.to_owned(),
            message,
            parked_at: now,
        }
    }

    /// Publishes run by run, up to the first event whose fate is not known. Its order is that of the log; and of one
    /// aggregate the next goes out when the one before is confirmed. What is refused holds back its own aggregate only.
    async fn publish<'e>(&self, grant: &LeaseGrant, events: &[&'e RecordedEvent]) -> Gone<'e> {
        let mut gone = Gone { confirmed: false, refused: Vec::new(), stopped: None };
        let mut waiting: Vec<&'e RecordedEvent> = events.to_vec();
        let at_once = !self.channel.policy.in_order || self.broker.promises().ordered_batches;
        while !waiting.is_empty() && gone.stopped.is_none() {
            let lanes: Vec<Lane> = waiting.iter().map(|event| event.envelope.aggregate.lane()).collect();
            let later = waiting.split_off(if at_once { waiting.len() } else { run_length(&lanes) });
            let answers = self.publish_run(grant, waiting.iter()).await;
            gone.confirmed |= answers.contains(&Published::Confirmed);
            let has_no_place = |answer: &Published| {
                matches!(answer, Published::Unroutable { .. } | Published::Refused { .. })
            };
            if !gone.confirmed && answers.iter().any(has_no_place) {
                self.declaration.doubt();
            }
            for (event, answer) in waiting.into_iter().zip(answers) {
                match answer {
                    _ if gone.holds_back(event) => {}
                    Published::Confirmed => {}
                    // A broker that has forgotten its topology has no place for anything.
                    answer if has_no_place(&answer) && self.declaration.is_current() => {
                        gone.refused.push((event, answer))
                    }
                    answer => {
                        self.declaration.hurry();
                        gone.stopped.get_or_insert((event, answer));
                    }
                }
            }
            waiting = later.into_iter().filter(|event| !gone.holds_back(event)).collect();
        }
        gone
    }

    /// Publishes one event. If its fate is not known, another aggregate's shows whether the broker takes anything; if it does,
    /// the one is as good as refused. The other goes out again when it is its turn.
    async fn publish_and_look_around<'e>(
        &self,
        grant: &LeaseGrant,
        first: &'e RecordedEvent,
        others: &[&'e RecordedEvent],
    ) -> Gone<'e> {
        let mut gone = self.publish(grant, &[first]).await;
        let is_other = |event: &&&RecordedEvent| event.envelope.aggregate != first.envelope.aggregate;
        if gone.stopped.is_some()
            && let Some(other) = others.iter().find(is_other)
            && self.publish(grant, &[*other]).await.confirmed
        {
            gone.confirmed = true;
            gone.refused.extend(gone.stopped.take());
        }
        gone
    }

    fn note_renewal(&self) {
        *self.renewed_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn renewal_due_at(&self) -> Instant {
        *self.renewed_at.lock().unwrap_or_else(PoisonError::into_inner) + self.lease / 3
    }

    /// Publishes, and keeps the lease alive meanwhile: a slow broker must not hand the channel to another instance.
    async fn publish_run<'e>(
        &self,
        grant: &LeaseGrant,
        events: impl Iterator<Item = &'e &'e RecordedEvent>,
    ) -> Vec<Published> {
        let outgoing: Vec<Outgoing<'_>> =
            events.map(|event| Outgoing { event: &event.envelope, position: event.position }).collect();
        let (broker, formats) = (self.broker.as_ref(), self.bus.registry.formats());
        let publishing = publish(broker, formats, &self.channel, &self.target, &outgoing, &self.meters);
        tokio::pin!(publishing);
        loop {
            tokio::select! {
                // Many short runs are as long as one long one.
                biased;
                () = tokio::time::sleep_until(self.renewal_due_at()) => {
                    // If it is lost, moving the position will tell.
                    let _ = self.bus.store.renew_lease(grant, self.lease).await;
                    self.note_renewal();
                }
                answers = &mut publishing => return answers,
            }
        }
    }
}

/// How many of these can go out together: up to the first whose lane is among them already.
fn run_length(lanes: &[Lane]) -> usize {
    let mut seen = HashSet::new();
    lanes.iter().take_while(|lane| seen.insert(**lane)).count()
}

/// The channels that follow the log: all that are registered in the database, whoever follows them.
pub struct TrackedChannels<'a> {
    trackers: &'a Trackers,
}

impl Towpath {
    /// The channels that follow the log.
    pub fn channels(&self) -> TrackedChannels<'_> {
        TrackedChannels { trackers: &self.trackers }
    }
}

impl TrackedChannels<'_> {
    /// All of them, with the last position each has published.
    pub async fn list(&self) -> Result<Vec<ChannelRow>, ChannelError> {
        Ok(self.store().channels().await?)
    }

    /// The aggregates that a channel has left behind, because an event of theirs cannot be published.
    pub async fn parked(&self, name: &ChannelName) -> Result<Vec<ParkedAggregate>, ChannelError> {
        let row = self.list().await?.into_iter().find(|row| row.name == *name);
        let row = row.ok_or_else(|| StoreError::Missing { what: "channel", name: name.to_string() })?;
        Ok(self.store().parked_in_channel(row.channel_id, row.reset_count, Parked::All).await?)
    }

    /// Adds a channel at its start and follows it in this process. Where it publishes to is not stored: after a restart,
    /// [`follow`](Self::follow) it again, or give it to the builder.
    ///
    /// # Errors
    /// `name-taken` when a living channel has the name.
    pub async fn add(&self, channel: Channel) -> Result<(), ChannelError> {
        self.trackers.add(&channel).await?;
        self.trackers.run(channel).await
    }

    /// Follows a channel in this process from where it is; one that is not registered yet is added.
    pub async fn follow(&self, channel: Channel) -> Result<(), ChannelError> {
        self.trackers.follow(channel).await
    }

    /// Pauses a channel, with who and why. What it is publishing at the moment still goes out.
    pub async fn pause(
        &self,
        name: &ChannelName,
        by: Option<ActorId>,
        reason: &str,
    ) -> Result<(), ChannelError> {
        let disabled = Disabled {
            at: self.trackers.bus.clock.now(),
            by_id: by.or_else(|| Circumstances::current().actor_id),
            reason: reason.to_owned(),
            message: None,
        };
        Ok(self.store().disable_channel(name, Some(&disabled)).await?)
    }

    /// Lets a channel go on from where it was paused, and aggregates be tried again that it has given up.
    pub async fn resume(&self, name: &ChannelName) -> Result<(), ChannelError> {
        self.store().disable_channel(name, None).await?;
        self.store().reopen_parked(name, self.trackers.bus.clock.now()).await?;
        self.trackers.bus.wakes.trackers.wake(name);
        Ok(())
    }

    /// Sets a channel back, or forward. What it publishes again has the same message ids.
    ///
    /// # Errors
    /// `beyond-horizon` when the first of them is older than inboxes remember: handlers could not tell it from a new one.
    pub async fn reset(&self, name: &ChannelName, start: Start) -> Result<Position, ChannelError> {
        let position = start.behind(self.store().head().await?);
        let first = self.store().events_between(position + 1, position + 1).await?;
        let bus = &self.trackers.bus;
        if first.iter().any(|event| is_beyond(bus, self.trackers.horizon, &event.envelope)) {
            return Err(ChannelError::BeyondHorizon { channel: name.clone() });
        }
        self.reset_by_force(name, start).await
    }

    /// As [`reset`](Self::reset), however old the events are.
    pub async fn reset_by_force(&self, name: &ChannelName, start: Start) -> Result<Position, ChannelError> {
        let position = start.behind(self.store().head().await?);
        self.store().reset_channel(name, position).await?;
        self.trackers.bus.wakes.trackers.wake(name);
        Ok(position)
    }

    /// Removes a channel, with who and why. Its name is free again.
    pub async fn remove(
        &self,
        name: &ChannelName,
        by: Option<&ActorId>,
        reason: &str,
    ) -> Result<(), ChannelError> {
        let around = Circumstances::current().actor_id;
        let by = by.or(around.as_ref());
        self.store().remove_channel(name, by, reason, self.trackers.bus.clock.now()).await?;
        self.trackers.end(name).await;
        Ok(())
    }

    fn store(&self) -> &dyn towpath_core::ports::store::Store {
        self.trackers.bus.store.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_at_most_one_event_of_each_aggregate() {
        let lanes =
            |numbers: &[i64]| numbers.iter().map(|number| Lane::from_stored(*number)).collect::<Vec<_>>();
        for (events, length) in [(&[1, 2, 3][..], 3), (&[1, 2, 1, 3], 2), (&[1, 1], 1), (&[], 0)] {
            assert_eq!(run_length(&lanes(events)), length, "{events:?}");
        }
    }
}
