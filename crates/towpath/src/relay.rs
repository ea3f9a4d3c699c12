//! The relay: takes outbox rows of one channel to the broker.
//!
//! A channel has several shafts. Each works alone on its own range of partitions: while one waits for the broker,
//! another reads and a third writes, and because a lane lies in one partition its order is one shaft's business. A shaft
//! works on what its instance holds of its range. Rows of different aggregates go out together with pipelined confirms;
//! of one aggregate (on a channel that keeps order) the next goes out when the one before is confirmed, and one that
//! fails holds the others back. Results are written in one transaction that checks the leases: an instance that stalled
//! may publish twice, but what it says about it afterwards is refused.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::{Notify, watch};
use towpath_core::channel::{Channel, Target};
use towpath_core::ids::{Lane, LeaseName};
use towpath_core::ports::broker::{Broker, Published};
use towpath_core::ports::store::{
    ClaimRoom, LeaseGrant, OutboxClaim, OutboxItem, OutboxOutcome, OutboxResult, StoreError,
};
use towpath_core::retry::{Coded as _, ErrorClass, RetryDecision};
use towpath_core::time::later;

use crate::absence::Caution;
use crate::bus::{Bus, random_unit, with_causes};
use crate::declaring::Declaration;
use crate::leases::{Flight, Held, InFlight};
use crate::metrics::ChannelMeters;
use crate::publishing::{Outgoing, publish};
use crate::service::{Backoff, Service, Stopping, Wake, rest};
use crate::watch::{Publishing, PublishingOutcome, Watchers};

/// How many shafts a channel has.
pub(crate) const SHAFTS: u16 = 4;

/// Why a row failed that may have been published all the same.
const NOT_CONFIRMED: &str = "not-confirmed";

/// After how many bytes of payloads a claim is large enough. Each is several times in memory on its way out, in all shafts
/// of all channels at once.
const CLAIM_BYTES: u64 = 1 << 20;

/// What part of a claim one lane may have.
const LANE_SHARE: u32 = 8;

/// How many rows are looked through at most for those of other lanes than the ones that have very many.
const DEEPEST: u32 = 50_000;

/// How many times as long as a look that went deep took it is before the next.
const BETWEEN_DEEP_LOOKS: u32 = 5;

/// How often results are offered to the store once more before an instance ends without having written them.
const LAST_OFFERS: u32 = 5;

/// Where the shafts of a channel find each other, the lease keeper and their broker.
#[derive(Clone)]
pub(crate) struct RelayContext {
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) declaration: Declaration,
    pub(crate) held: watch::Receiver<Held>,
    pub(crate) in_flight: InFlight,
    /// Told when the broker has answered for a channel: its shafts that wait for it to come back need not wait longer. What
    /// keeps one channel back (a topic that is missing) says nothing of the others.
    pub(crate) answered: Arc<Notify>,
    pub(crate) watchers: Watchers,
}

/// Starts the shafts of one channel.
pub(crate) fn start(
    bus: &Bus,
    around: &RelayContext,
    channel: Channel,
    target: Target,
    wakes: &RelayWakes,
) -> Vec<Service> {
    let relay = Arc::new(Relay {
        meters: ChannelMeters::of(channel.name.as_str()),
        bus: bus.clone(),
        around: around.clone(),
        channel,
        target,
        away: AtomicBool::new(false),
        confirmed: AtomicU64::new(0),
    });
    let shaft = |number| {
        let (relay, wake) = (Arc::clone(&relay), wakes.of(relay.channel.name.as_str(), number));
        Service::keep_running("relay", move |stopping| {
            let shaft = Shaft {
                wake: wake.clone(),
                held: relay.around.held.clone(),
                relay: Arc::clone(&relay),
                partitions: partitions_of(number),
                owed: None,
                caution: Caution::default(),
                depth: Depth::default(),
            };
            shaft.run(stopping)
        })
    };
    (0..SHAFTS).map(shaft).collect()
}

/// The range of a shaft: always the same partitions, whatever is held, so that no row is ever in two shafts.
fn partitions_of(shaft: u16) -> Range<u16> {
    let width = Lane::PARTITIONS / SHAFTS;
    shaft * width..(shaft + 1) * width
}

/// What the shafts of a channel share.
struct Relay {
    bus: Bus,
    meters: ChannelMeters,
    around: RelayContext,
    channel: Channel,
    target: Target,
    /// Whether the last event did not leave: an absence is said once, however long it lasts.
    away: AtomicBool,
    /// How many events of all shafts were confirmed.
    confirmed: AtomicU64,
}

struct Shaft {
    relay: Arc<Relay>,
    partitions: Range<u16>,
    held: watch::Receiver<Held>,
    wake: Wake,
    /// What was published and could not be written down yet. Nothing else is published before it is: the rows look
    /// unsent and would go out again.
    owed: Option<Owed>,
    caution: Caution,
    depth: Depth,
}

/// How deep a shaft looks. A lane with very many rows fills every look, and the others stand behind it: so it gets a share,
/// and every now and then the shaft looks further for the others.
#[derive(Default)]
struct Depth {
    /// How far the last deep look went; 0 while no lane has more than its share.
    last: u32,
    /// Until when looks are short: most of the time is for publishing.
    short_until: Option<Instant>,
}

impl Depth {
    /// How many rows the next look goes through.
    fn next(&mut self, limit: u32) -> u32 {
        let is_short = self.last == 0 || self.short_until.is_some_and(|until| Instant::now() < until);
        if is_short {
            return limit;
        }
        self.last = self.last.saturating_mul(4).clamp(limit, DEEPEST);
        self.last
    }

    /// Notes what a look found, and how long it took.
    fn found(&mut self, items: &[OutboxItem], share: u32, took: Duration, depth: u32, limit: u32) {
        let mut lanes: HashMap<Lane, (u32, usize)> = HashMap::new();
        for item in items {
            let (rows, bytes) = lanes.entry(item.lane).or_default();
            *rows += 1;
            *bytes += item.event.payload.as_text().len();
        }
        let most = usize::try_from(CLAIM_BYTES).unwrap_or(usize::MAX) / 2;
        let is_crowded = lanes.values().any(|(rows, bytes)| *rows >= share || *bytes >= most);
        if !is_crowded {
            self.last = 0;
        } else if self.last == 0 {
            self.last = limit;
        }
        if depth > limit {
            self.short_until = Instant::now().checked_add(took.saturating_mul(BETWEEN_DEEP_LOOKS));
        }
    }
}

/// Results on their way into the store.
struct Owed {
    results: Vec<OutboxResult>,
    /// Under which leases, by partition.
    grants: BTreeMap<u16, LeaseGrant>,
    ended_at: DateTime<Utc>,
    /// Keeps the partitions from being given away meanwhile.
    _flight: Flight,
}

/// What a round leads to.
enum Progress {
    /// There is more.
    GoOn,
    /// Nothing more to do until woken.
    Rest,
    /// The broker took nothing: it is away.
    BrokerAway,
    /// The store could not be asked or told.
    StoreAway,
}

/// From when, and by which chance, the rows of one batch are tried again: those that failed equally often come back
/// together, and so their results are written together.
#[derive(Default)]
struct TryingAgain(Option<(DateTime<Utc>, f64)>);

/// What became of results that were to be written down.
#[derive(PartialEq, Eq)]
enum Settled {
    /// They are.
    Written,
    /// Some belong to partitions that others hold by now; the others are.
    TakenOver,
    /// They are not, and are still owed.
    Not,
}

/// A batch after publishing.
#[derive(Default)]
struct Departed {
    results: Vec<OutboxResult>,
    /// The broker takes nothing. What it did not take has no result: it was not the row that failed, so no attempt is used
    /// up.
    away: bool,
}

impl Shaft {
    async fn run(mut self, mut stopping: Stopping) {
        let mut backoff = Backoff::default();
        let declaration = self.relay.around.declaration.clone();
        // What nothing is bound for yet would go nowhere.
        declaration.done(&mut stopping).await;
        while !stopping.is_asked() {
            match self.round(&stopping).await {
                Progress::GoOn => backoff = Backoff::default(),
                Progress::Rest => {
                    backoff = Backoff::default();
                    self.rest(&mut stopping).await;
                }
                Progress::BrokerAway => tokio::select! {
                    () = self.relay.around.answered.notified() => {}
                    () = stopping.asked() => {}
                    () = tokio::time::sleep(backoff.next()) => {}
                },
                Progress::StoreAway => tokio::select! {
                    () = stopping.asked() => {}
                    () = tokio::time::sleep(backoff.next()) => {}
                },
            }
        }
        for _ in 0..LAST_OFFERS {
            if self.settle().await != Settled::Not {
                return;
            }
            tokio::time::sleep(backoff.next()).await;
        }
        tracing::error!(
            channel = self.relay.channel.name.as_str(),
            "ended without having recorded what was published: it will be published again"
        );
    }

    /// Rests until woken, until the next look is due, or until other partitions are held.
    async fn rest(&mut self, stopping: &mut Stopping) {
        let Self { held, wake, relay, .. } = self;
        let changed = async {
            if held.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = changed => {}
            () = rest(wake, relay.channel.policy.scan, stopping) => {}
        }
    }

    /// Takes one batch out.
    async fn round(&mut self, stopping: &Stopping) -> Progress {
        if self.settle().await == Settled::Not {
            return Progress::StoreAway;
        }
        let relay = Arc::clone(&self.relay);
        let channel = &relay.channel;
        // Said before reading what is held. The lease keeper says what is held before asking what is in flight: one of
        // the two sees the other.
        let mut flight = relay.around.in_flight.begin(&channel.name, self.partitions.clone());
        let grants = self.grants();
        let partitions: Vec<u16> = grants.keys().copied().collect();
        if partitions.is_empty() {
            return Progress::Rest;
        }
        let limit = channel.policy.batch.max(1);
        let per_lane = match (channel.policy.in_order, relay.around.broker.promises().ordered_batches) {
            (true, false) => limit / LANE_SHARE,
            // A lane goes out in one step, and still leaves room for others.
            (true, true) => limit / 2,
            // Without order a lane is nothing, and everything goes out at once.
            (false, _) => limit,
        };
        let per_lane = per_lane.max(1);
        let depth = self.depth.next(limit);
        let claim = OutboxClaim {
            channel: &channel.name,
            partitions: &partitions,
            limit,
            now: relay.bus.clock.now(),
            room: ClaimRoom { per_lane, depth, bytes: CLAIM_BYTES },
        };
        let begun = Instant::now();
        let items = match relay.bus.store.claim_outbox(&claim).await {
            Ok(items) => items,
            Err(error) => {
                let (channel, code) = (channel.name.as_str(), error.code());
                tracing::warn!(channel, code, cause = with_causes(&error), "could not read the outbox");
                return Progress::StoreAway;
            }
        };
        if channel.policy.in_order {
            self.depth.found(&items, per_lane, begun.elapsed(), depth, limit);
        }
        if items.is_empty() {
            return Progress::Rest;
        }
        flight.only(&items.iter().map(|item| item.lane.partition()).collect());
        let Departed { results, away } = self.publish(items, &grants, stopping).await;
        if results.is_empty() {
            return if away { Progress::BrokerAway } else { Progress::Rest };
        }
        relay.around.answered.notify_waiters();
        self.owed = Some(Owed { results, grants, ended_at: relay.bus.clock.now(), _flight: flight });
        match self.settle().await {
            Settled::Not => Progress::StoreAway,
            // How few rows came says nothing of what waits: the look may have been full of rows behind a parked one.
            Settled::Written => Progress::GoOn,
            // What was taken over looks unsent until the lease keeper finds out, and would go out again at once.
            Settled::TakenOver => Progress::Rest,
        }
    }

    /// What this instance holds of the shaft's range.
    fn grants(&self) -> BTreeMap<u16, LeaseGrant> {
        let held = self.held.borrow();
        let share = held.channels.get(&self.relay.channel.name);
        let in_range = share.into_iter().flat_map(|share| share.partitions.range(self.partitions.clone()));
        in_range.map(|(number, grant)| (*number, grant.clone())).collect()
    }

    /// Writes down what is owed.
    ///
    /// A partition that was taken over takes its own results with it and no others. A connection that is lost in the
    /// commit leaves open whether the results were written; writing them again changes nothing for rows that were sent
    /// or given up, and counts one attempt more for those to be tried again.
    async fn settle(&mut self) -> Settled {
        let mut settled = Settled::Written;
        let Some(mut owed) = self.owed.take() else { return settled };
        let Relay { bus, channel, .. } = &*self.relay;
        while !owed.results.is_empty() {
            let leases = owed.leases();
            match bus.store.record_outbox(&leases, &channel.name, owed.ended_at, &owed.results).await {
                Ok(()) => return settled,
                Err(StoreError::Fenced { lease, .. }) => {
                    tracing::info!(channel = channel.name.as_str(), %lease, "a partition was taken over");
                    owed.forget(&lease);
                    settled = Settled::TakenOver;
                }
                Err(error) => {
                    let (channel, code) = (channel.name.as_str(), error.code());
                    tracing::warn!(
                        channel,
                        code,
                        cause = with_causes(&error),
                        "could not record what was published; trying again"
                    );
                    self.owed = Some(owed);
                    return Settled::Not;
                }
            }
        }
        settled
    }

    /// Publishes a batch in waves: with order, the n-th wave holds the n-th row of every lane whose earlier ones were
    /// confirmed, unless the broker keeps the order of a batch by itself; without, everything is one wave. Rows behind a
    /// failed one are not tried and have no result.
    async fn publish(
        &mut self,
        items: Vec<OutboxItem>,
        grants: &BTreeMap<u16, LeaseGrant>,
        stopping: &Stopping,
    ) -> Departed {
        let relay = Arc::clone(&self.relay);
        let Relay { around, channel, target, meters, bus, .. } = &*relay;
        let mut published = Departed { results: Vec::with_capacity(items.len()), away: false };
        let lanes: HashSet<Lane> = items.iter().map(|item| item.lane).collect();
        let only = if channel.policy.in_order { lanes.len() } else { items.len() } == 1;
        let mut waiting = items;
        let mut stuck: HashSet<Lane> = HashSet::new();
        let mut trying_again = TryingAgain::default();
        while !waiting.is_empty() && !published.away && !stopping.is_asked() {
            let mut in_wave: HashSet<Lane> = HashSet::new();
            let at_once = around.broker.promises().ordered_batches && !self.caution.is_needed();
            let in_waves = channel.policy.in_order && !at_once;
            let (wave, mut later): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|item| !in_waves || in_wave.insert(item.lane));
            let (wave, not_yet) = self.caution.share(wave);
            later.extend(not_yet);
            later.sort_by_key(|item| item.outbox_id);
            let events: Vec<Outgoing<'_>> =
                wave.iter().map(|item| Outgoing { event: &item.event, position: None }).collect();
            let formats = bus.registry.formats();
            let answers = publish(around.broker.as_ref(), formats, channel, target, &events, meters).await;
            let answered_at = bus.clock.now();
            for (Outgoing { event, .. }, _) in
                events.iter().zip(&answers).filter(|(_, one)| **one == Published::Confirmed)
            {
                meters.delayed(answered_at - event.occurred_at);
            }
            let confirmed = answers.iter().filter(|answer| **answer == Published::Confirmed).count() as u64;
            let confirmed = relay.confirmed.fetch_add(confirmed, Ordering::Relaxed) + confirmed;
            let rows = wave.iter().map(|item| item.outbox_id);
            let counts =
                channel.policy.counts_absence || self.caution.counts(rows, &answers, confirmed, only);
            let has_no_place = |answer: &Published| {
                matches!(answer, Published::Unroutable { .. } | Published::Refused { .. })
            };
            if answers.iter().any(has_no_place) && !answers.contains(&Published::Confirmed) {
                around.declaration.doubt();
            }
            for (item, answer) in wave.iter().zip(answers) {
                // It did not leave because of an earlier one.
                if channel.policy.in_order && stuck.contains(&item.lane) {
                    continue;
                }
                let outcome = relay.outcome(item, answer, counts, &mut trying_again);
                if outcome != Some(OutboxOutcome::Sent) && channel.policy.in_order {
                    stuck.insert(item.lane);
                }
                published.away |= outcome.is_none();
                let result = |outcome| OutboxResult {
                    outbox_id: item.outbox_id,
                    event_id: item.event.event_id,
                    lane: item.lane,
                    outcome,
                };
                published.results.extend(outcome.map(result));
            }
            // What was taken over or is to be given away meanwhile is for its next holder to publish.
            let held = self.grants();
            let is_ours = |item: &OutboxItem| {
                let number = item.lane.partition();
                held.get(&number).is_some_and(|grant| grants.get(&number) == Some(grant))
            };
            waiting = later.into_iter().filter(|item| !stuck.contains(&item.lane) && is_ours(item)).collect();
        }
        published
    }
}

impl Owed {
    /// The leases of the partitions that still have results.
    fn leases(&self) -> Vec<LeaseGrant> {
        let touched: BTreeSet<u16> = self.results.iter().map(|result| result.lane.partition()).collect();
        touched.iter().filter_map(|number| self.grants.get(number)).cloned().collect()
    }

    /// Drops the results of a partition whose lease is somebody else's now.
    fn forget(&mut self, lease: &LeaseName) {
        self.grants.retain(|_, grant| grant.lease != *lease);
        let grants = &self.grants;
        self.results.retain(|result| grants.contains_key(&result.lane.partition()));
    }
}

impl Relay {
    /// What a publishing means for its row; nothing, if that says something of the broker and not of the row. `counts` says
    /// whether an answer that is not clear is the row's own failure.
    fn outcome(
        &self,
        item: &OutboxItem,
        published: Published,
        counts: bool,
        trying_again: &mut TryingAgain,
    ) -> Option<OutboxOutcome> {
        let (event_id, channel) = (item.event.event_id, self.channel.name.as_str());
        // The names of O11. What the relay has for a queue is where the channel publishes to.
        let trace_id = || item.event.trace_id.as_ref().map(tracing::field::display);
        let queue = || tracing::field::display(self.target.destination(item.event.event_type.as_str()));
        let tell =
            |outcome| self.around.watchers.published(&Publishing { channel, event: &item.event, outcome });
        // A broker that has forgotten its topology has no place for anything.
        let homeless = matches!(published, Published::Unroutable { .. } | Published::Refused { .. })
            && !self.around.declaration.is_current();
        if homeless {
            self.around.declaration.hurry();
        }
        let (reason, message, is_absence) = match published {
            Published::Confirmed => {
                if self.away.swap(false, Ordering::Relaxed) {
                    tracing::info!(channel, "the broker takes events again");
                }
                tell(PublishingOutcome::Sent);
                return Some(OutboxOutcome::Sent);
            }
            Published::Unroutable { reason } => ("unroutable", reason, homeless),
            Published::Refused { reason } => ("broker-refused", reason, homeless),
            Published::NotTaken { reason } => ("broker-refused", reason, !counts),
            Published::Unknown { reason } => (NOT_CONFIRMED, reason, !counts),
            Published::NotSent { reason } => {
                ("broker-unavailable", reason, !self.channel.policy.counts_absence)
            }
        };
        if is_absence {
            if self.away.swap(true, Ordering::Relaxed) {
                tracing::debug!(
                    eventId = %event_id,
                    traceId = trace_id(),
                    queue = queue(),
                    channel,
                    reason,
                    cause = message,
                    "an event was not taken"
                );
            } else {
                tracing::warn!(
                    eventId = %event_id,
                    traceId = trace_id(),
                    queue = queue(),
                    channel,
                    reason,
                    cause = message,
                    "the broker takes nothing; waiting for it"
                );
                // Once for all that waits: none of it has failed.
                tell(PublishingOutcome::Retried { reason: "broker-unavailable", message: &message });
            }
            return None;
        }
        let park = self.channel.policy.in_order;
        let (now, chance) = *trying_again.0.get_or_insert_with(|| (self.bus.clock.now(), random_unit()));
        let decision =
            self.channel.policy.retries.decide(ErrorClass::Transient, item.retry_count + 1, chance);
        let retry_at = match decision {
            RetryDecision::RetryAfter(delay) => Some(later(now, delay)),
            RetryDecision::GiveUp(_) => None,
        };
        Some(match retry_at {
            Some(at) => {
                self.meters.retries.increment(1);
                tracing::warn!(
                    eventId = %event_id,
                    traceId = trace_id(),
                    queue = queue(),
                    channel,
                    reason,
                    cause = message,
                    "an event was not published; trying again"
                );
                tell(PublishingOutcome::Retried { reason, message: &message });
                OutboxOutcome::Retry { at, reason: reason.to_owned(), message, park }
            }
            None => {
                self.meters.given_up.increment(1);
                tracing::error!(
                    eventId = %event_id,
                    traceId = trace_id(),
                    queue = queue(),
                    channel,
                    reason,
                    cause = message,
                    "an event was given up"
                );
                tell(PublishingOutcome::GivenUp { reason, message: &message });
                OutboxOutcome::Failed { reason: reason.to_owned(), message, park }
            }
        })
    }
}

/// The wakes of all relays of this process: a commit wakes the shafts that its events go through.
#[derive(Clone, Default)]
pub(crate) struct RelayWakes(Arc<HashMap<String, Vec<Wake>>>);

impl RelayWakes {
    pub(crate) fn new<'c>(channels: impl IntoIterator<Item = &'c Channel>) -> Self {
        let wakes = || (0..SHAFTS).map(|_| Wake::default()).collect();
        Self(Arc::new(channels.into_iter().map(|channel| (channel.name.to_string(), wakes())).collect()))
    }

    /// Wakes the shaft of a channel that a lane goes through, if this process has one.
    pub(crate) fn wake(&self, channel: &str, lane: Lane) {
        let shaft = lane.partition() / (Lane::PARTITIONS / SHAFTS);
        if let Some(wake) = self.0.get(channel).and_then(|wakes| wakes.get(usize::from(shaft))) {
            wake.wake();
        }
    }

    /// Wakes all relays of this process.
    pub(crate) fn wake_all(&self) {
        self.0.values().flatten().for_each(Wake::wake);
    }

    fn of(&self, channel: &str, shaft: u16) -> Wake {
        let wakes = self.0.get(channel);
        wakes.and_then(|wakes| wakes.get(usize::from(shaft))).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_lies_in_one_shaft() {
        let all: Vec<u16> = (0..SHAFTS).flat_map(partitions_of).collect();
        assert_eq!(all, (0..Lane::PARTITIONS).collect::<Vec<_>>());
    }
}
