//! The relay: takes outbox rows of one channel to the broker.
//!
//! It works on the partitions that this instance holds. Rows of different aggregates go out together with pipelined
//! confirms; of one aggregate (on a channel that keeps order) the next goes out when the one before is confirmed, and
//! one that fails holds the others back. Results are written in one transaction that checks the leases: an instance
//! that stalled may publish twice, but what it says about it afterwards is refused.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio::sync::watch;
use towpath_core::channel::{Channel, Target};
use towpath_core::envelope::EventEnvelope;
use towpath_core::ids::Lane;
use towpath_core::ports::broker::{Broker, Published};
use towpath_core::ports::store::{
    LeaseGrant, OutboxClaim, OutboxItem, OutboxOutcome, OutboxResult, StoreError, StoreResult,
};
use towpath_core::retry::{ErrorClass, RetryDecision};

use crate::bus::{Bus, random_unit, with_causes};
use crate::leases::Held;
use crate::publishing::publish;
use crate::service::{Service, Stopping, Wake, rest};

/// Starts the relay of one channel.
pub(crate) fn start(
    bus: Bus,
    broker: Arc<dyn Broker>,
    channel: Channel,
    target: Target,
    held: watch::Receiver<Held>,
    wake: Wake,
) -> Service {
    let relay = Relay { bus, broker, channel, target, held };
    Service::start("relay", move |stopping| relay.run(wake, stopping))
}

struct Relay {
    bus: Bus,
    broker: Arc<dyn Broker>,
    channel: Channel,
    target: Target,
    held: watch::Receiver<Held>,
}

/// What a round leads to.
enum Progress {
    /// The batch was full and some of it went out: there is more.
    GoOn,
    /// Nothing more to do until woken.
    Rest,
}

impl Relay {
    async fn run(self, wake: Wake, mut stopping: Stopping) {
        while !stopping.is_asked() {
            match self.round().await {
                Ok(Progress::GoOn) => {}
                Ok(Progress::Rest) => rest(&wake, self.channel.policy.scan, &mut stopping).await,
                Err(error) => {
                    let channel = self.channel.name.as_str();
                    match error {
                        // The lease keeper will find out what is still held.
                        StoreError::Fenced { .. } => tracing::info!(channel, "partitions were taken over"),
                        error => tracing::warn!(
                            channel,
                            code = error.code(),
                            cause = with_causes(&error),
                            "could not relay"
                        ),
                    }
                    rest(&wake, self.channel.policy.scan, &mut stopping).await;
                }
            }
        }
    }

    /// Takes one batch out.
    async fn round(&self) -> StoreResult<Progress> {
        let share = self.held.borrow().channels.get(&self.channel.name).cloned().unwrap_or_default();
        let partitions = share.partitions;
        if partitions.is_empty() {
            return Ok(Progress::Rest);
        }
        let numbers: Vec<u16> = partitions.keys().copied().collect();
        let claim = OutboxClaim {
            channel: &self.channel.name,
            partitions: &numbers,
            limit: self.channel.policy.batch.max(1),
            now: self.bus.clock.now(),
        };
        let items = self.bus.store.claim_outbox(&claim).await?;
        if items.is_empty() {
            return Ok(Progress::Rest);
        }
        let full = items.len() >= self.channel.policy.batch as usize;
        let results = self.publish(items).await;
        let touched: HashSet<u16> = results.iter().map(|result| result.lane.partition()).collect();
        let leases: Vec<LeaseGrant> = partitions
            .into_iter()
            .filter(|(number, _)| touched.contains(number))
            .map(|(_, grant)| grant)
            .collect();
        let now = self.bus.clock.now();
        self.bus.store.record_outbox(&leases, &self.channel.name, now, &results).await?;
        let sent = results.iter().any(|result| result.outcome == OutboxOutcome::Sent);
        Ok(if full && sent { Progress::GoOn } else { Progress::Rest })
    }

    /// Publishes a batch in waves: with order, the n-th wave holds the n-th row of every lane whose earlier ones were
    /// confirmed; without, everything is one wave. Rows behind a failed one are not tried and have no result.
    async fn publish(&self, items: Vec<OutboxItem>) -> Vec<OutboxResult> {
        let mut results = Vec::with_capacity(items.len());
        let mut waiting = items;
        let mut stuck: HashSet<Lane> = HashSet::new();
        while !waiting.is_empty() {
            let mut in_wave: HashSet<Lane> = HashSet::new();
            let (wave, later): (Vec<_>, Vec<_>) = waiting
                .into_iter()
                .partition(|item| !self.channel.policy.in_order || in_wave.insert(item.lane));
            let events: Vec<&EventEnvelope> = wave.iter().map(|item| &item.event).collect();
            let published = publish(self.broker.as_ref(), &self.channel, &self.target, &events).await;
            for (item, published) in wave.iter().zip(published) {
                let outcome = self.outcome(item, published);
                if outcome != OutboxOutcome::Sent && self.channel.policy.in_order {
                    stuck.insert(item.lane);
                }
                results.push(OutboxResult { outbox_id: item.outbox_id, lane: item.lane, outcome });
            }
            waiting = later.into_iter().filter(|item| !stuck.contains(&item.lane)).collect();
        }
        results
    }

    /// What a publishing means for its row.
    fn outcome(&self, item: &OutboxItem, published: Published) -> OutboxOutcome {
        let (reason, message) = match published {
            Published::Confirmed => return OutboxOutcome::Sent,
            Published::Unroutable { reason } => ("unroutable", reason),
            Published::Refused { reason } => ("broker-refused", reason),
            Published::Unknown { reason } | Published::NotSent { reason } => ("not-confirmed", reason),
        };
        let park = self.channel.policy.in_order;
        let decision =
            self.channel.policy.retries.decide(ErrorClass::Transient, item.retry_count + 1, random_unit());
        let retry_at = match decision {
            RetryDecision::RetryAfter(delay) => after(self.bus.clock.now(), delay),
            RetryDecision::GiveUp(_) => None,
        };
        let (event_id, channel) = (item.event.event_id, self.channel.name.as_str());
        match retry_at {
            Some(at) => {
                tracing::warn!(%event_id, channel, reason, message, "an event was not published; trying again");
                OutboxOutcome::Retry { at, reason: reason.to_owned(), message, park }
            }
            None => {
                tracing::error!(%event_id, channel, reason, message, "an event was given up");
                OutboxOutcome::Failed { reason: reason.to_owned(), message, park }
            }
        }
    }
}

fn after(now: DateTime<Utc>, delay: std::time::Duration) -> Option<DateTime<Utc>> {
    // Too far in the future to be written down: as good as now, but never lost.
    Some(
        chrono::Duration::from_std(delay).ok().and_then(|delay| now.checked_add_signed(delay)).unwrap_or(now),
    )
}

/// The wakes of all relays of this process: a commit wakes those whose channels it touched.
#[derive(Clone, Default)]
pub(crate) struct RelayWakes(Arc<HashMap<String, Wake>>);

impl RelayWakes {
    pub(crate) fn new(wakes: HashMap<String, Wake>) -> Self {
        Self(Arc::new(wakes))
    }

    /// Wakes the relay of a channel, if this process has one.
    pub(crate) fn wake(&self, channel: &str) {
        if let Some(wake) = self.0.get(channel) {
            wake.wake();
        }
    }
}
