//! The lease keeper: everything this instance holds, renewed together.
//!
//! An instance holds its own lease, under which it runs commands, perhaps the sequencer's, and, if it relays, its share
//! of the partitions. One service takes, renews and gives back all of them; the others read what is held from a watch.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use towpath_core::ids::{ChannelName, InstanceId, Lane, LeaseName};
use towpath_core::ports::store::{HeldLease, LeaseGrant, StoreResult};
use towpath_core::retry::Coded as _;

use crate::bus::{Bus, with_causes};
use crate::relay::SHAFTS;
use crate::service::{Service, Stopping};

/// What this instance holds at the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// The instance's own lease.
    pub(crate) instance: Option<LeaseGrant>,
    /// The sequencer's lease.
    pub(crate) sequencer: Option<LeaseGrant>,
    /// The cleaner's lease.
    pub(crate) cleaner: Option<LeaseGrant>,
    /// What it relays, by channel.
    pub(crate) channels: BTreeMap<ChannelName, Share>,
}

/// This instance's share of one channel. Shares are by channel, because not every instance relays every channel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// The sign that this instance relays the channel: it counts when the partitions are shared out.
    relaying: Option<LeaseGrant>,
    /// The partitions it holds and works on.
    pub(crate) partitions: BTreeMap<u16, LeaseGrant>,
    /// Partitions that fall to others: still held, because rows of theirs may be in flight, but no more are taken.
    leaving: BTreeMap<u16, LeaseGrant>,
}

/// The partitions of which rows are being published, or have been and are not recorded yet. They are not given away: the
/// next holder would publish those rows again.
#[derive(Clone)]
pub(crate) struct InFlight(Arc<watch::Sender<BTreeSet<(ChannelName, u16)>>>);

/// Partitions in flight, until this is dropped.
pub(crate) struct Flight {
    in_flight: InFlight,
    channel: ChannelName,
    partitions: BTreeSet<u16>,
}

/// Takes the first leases and starts to keep them. What an earlier life of this instance held is taken over at once,
/// in a higher epoch.
pub(crate) async fn start(
    bus: Bus,
    instance: InstanceId,
    relayed: Vec<ChannelName>,
    in_flight: InFlight,
    lease: Duration,
    publish: watch::Sender<Held>,
) -> StoreResult<Service> {
    let keeper = Keeper { bus, instance, relayed, in_flight, lease };
    say(&publish, keeper.round(Held::default()).await?);
    let (keeper, publish) = (Arc::new(keeper), Arc::new(publish));
    let keep = move |stopping| Arc::clone(&keeper).keep(Arc::clone(&publish), stopping);
    Ok(Service::keep_running("leases", keep))
}

struct Keeper {
    bus: Bus,
    instance: InstanceId,
    /// The channels of which it wants partitions.
    relayed: Vec<ChannelName>,
    in_flight: InFlight,
    lease: Duration,
}

impl Keeper {
    async fn keep(self: Arc<Self>, publish: Arc<watch::Sender<Held>>, mut stopping: Stopping) {
        loop {
            tokio::select! {
                () = stopping.asked() => break,
                () = tokio::time::sleep(self.lease / 3) => {}
            }
            let held = publish.borrow().clone();
            match self.round(held).await {
                Ok(held) => {
                    say(&publish, held);
                    self.let_go(&publish).await;
                }
                // The database may come back before the leases run out; if not, the epochs protect what matters.
                Err(error) => {
                    tracing::warn!(
                        code = error.code(),
                        cause = with_causes(&error),
                        "could not renew the leases"
                    );
                }
            }
        }
        let held = publish.send_replace(Held::default());
        self.release(&held.all()).await;
    }

    async fn release(&self, grants: &[LeaseGrant]) -> bool {
        let released = self.bus.store.release_leases(grants).await;
        if let Err(error) = &released {
            tracing::warn!(
                code = error.code(),
                cause = with_causes(error),
                "could not give leases back; they will run out"
            );
        }
        released.is_ok()
    }

    /// Gives the partitions back that fall to others, once nothing of theirs is in flight. The relays have been told
    /// before, so nothing new takes off. What does not land in time is renewed and asked again in the next round.
    async fn let_go(&self, publish: &watch::Sender<Held>) {
        let mut held = publish.borrow().clone();
        let deadline = tokio::time::Instant::now() + self.lease / 6;
        for (channel, share) in &mut held.channels {
            if share.leaving.is_empty() {
                continue;
            }
            let numbers: Vec<u16> = share.leaving.keys().copied().collect();
            let landing = self.in_flight.landed(channel, &numbers);
            let _ = tokio::time::timeout_at(deadline, landing).await;
            let (flying, landed): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut share.leaving)
                .into_iter()
                .partition(|(number, _)| self.in_flight.has(channel, *number));
            share.leaving = flying;
            let grants: Vec<LeaseGrant> = landed.values().cloned().collect();
            if !grants.is_empty() && !self.release(&grants).await {
                share.leaving.extend(landed);
            }
        }
        say(publish, held);
    }

    /// Renews what is held and reaches for what is missing.
    async fn round(&self, held: Held) -> StoreResult<Held> {
        let store = &self.bus.store;
        let renewed = store.renew_leases(&held.all(), self.lease).await?;
        let mut held = held.only(&renewed);
        if held.instance.is_none() {
            let name = instance_lease(&self.instance);
            held.instance = store.acquire_lease(&name, &self.instance, self.lease).await?;
        }
        if held.sequencer.is_none() {
            let name = LeaseName::from_stored(SEQUENCER);
            held.sequencer = store.acquire_lease(&name, &self.instance, self.lease).await?;
        }
        if held.cleaner.is_none() {
            let name = LeaseName::from_stored(CLEANER);
            held.cleaner = store.acquire_lease(&name, &self.instance, self.lease).await?;
        }
        for channel in &self.relayed {
            let share = held.channels.entry(channel.clone()).or_default();
            self.balance(channel, share).await?;
        }
        Ok(held)
    }

    /// Brings the partitions of a channel to a fair share: as many as fall to each of the instances that relay it.
    async fn balance(&self, channel: &ChannelName, held: &mut Share) -> StoreResult<()> {
        let store = &self.bus.store;
        let (relaying_names, partition_names) =
            (format!("relaying/{channel}/"), format!("partition/{channel}/"));
        if held.relaying.is_none() {
            let name = LeaseName::from_stored(format!("{relaying_names}{}", self.instance));
            held.relaying = store.acquire_lease(&name, &self.instance, self.lease).await?;
        }
        // Names of channels may begin alike: those of `orders/eu` lie among those of `orders`, and do not count here.
        let relays_this = |lease: &HeldLease| {
            lease.lease.as_str().strip_prefix(&relaying_names) == Some(lease.holder.as_str())
        };
        let standings = store.leases(&relaying_names).await?;
        let relaying = standings.iter().filter(|lease| lease.live && relays_this(lease)).count().max(1);
        let share = usize::from(Lane::PARTITIONS).div_ceil(relaying);
        let mut numbers: Vec<u16> = held.partitions.keys().copied().collect();
        numbers.sort_unstable_by_key(|number| place_in_turn(*number));
        for number in numbers.into_iter().skip(share) {
            held.leaving.extend(held.partitions.remove_entry(&number));
        }
        while held.partitions.len() < share
            && let Some((number, grant)) = held.leaving.pop_first()
        {
            held.partitions.insert(number, grant);
        }
        let missing = share - held.partitions.len();
        if missing > 0 {
            let standings = store.leases(&partition_names).await?;
            let is_others = |name: &LeaseName| {
                let standing = standings.iter().find(|standing| standing.lease == *name);
                standing.is_some_and(|standing| standing.live && standing.holder != self.instance)
            };
            let mut wanted: Vec<u16> =
                (0..Lane::PARTITIONS).filter(|number| !held.partitions.contains_key(number)).collect();
            wanted.sort_unstable_by_key(|number| place_in_turn(*number));
            let free: Vec<LeaseName> = wanted
                .into_iter()
                .map(|number| LeaseName::from_stored(format!("{partition_names}{number:02}")))
                .filter(|name| !is_others(name))
                .take(missing)
                .collect();
            for grant in store.acquire_leases(&free, &self.instance, self.lease).await? {
                let number = grant
                    .lease
                    .as_str()
                    .strip_prefix(&partition_names)
                    .and_then(|number| number.parse().ok());
                held.partitions.extend(number.map(|number: u16| (number, grant)));
            }
        }
        Ok(())
    }
}

impl Held {
    fn all(&self) -> Vec<LeaseGrant> {
        let shares = self.channels.values().flat_map(|share| {
            share.relaying.iter().chain(share.partitions.values()).chain(share.leaving.values())
        });
        self.instance.iter().chain(&self.sequencer).chain(&self.cleaner).chain(shares).cloned().collect()
    }

    fn only(self, kept: &[LeaseGrant]) -> Self {
        let is_kept = |grant: &LeaseGrant| kept.contains(grant);
        Self {
            instance: self.instance.filter(is_kept),
            sequencer: self.sequencer.filter(is_kept),
            cleaner: self.cleaner.filter(is_kept),
            channels: self
                .channels
                .into_iter()
                .map(|(channel, share)| {
                    let kept = |grants: BTreeMap<u16, LeaseGrant>| {
                        grants.into_iter().filter(|(_, grant)| is_kept(grant)).collect()
                    };
                    let (partitions, leaving) = (kept(share.partitions), kept(share.leaving));
                    (channel, Share { relaying: share.relaying.filter(is_kept), partitions, leaving })
                })
                .collect(),
        }
    }
}

impl Default for InFlight {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeSet::new())))
    }
}

impl InFlight {
    /// Says that rows of these partitions may be published from now on.
    pub(crate) fn begin(&self, channel: &ChannelName, partitions: Range<u16>) -> Flight {
        let partitions: BTreeSet<u16> = partitions.collect();
        let named = partitions.iter().map(|number| (channel.clone(), *number));
        self.0.send_modify(|in_flight| in_flight.extend(named));
        Flight { in_flight: self.clone(), channel: channel.clone(), partitions }
    }

    fn has(&self, channel: &ChannelName, number: u16) -> bool {
        self.0.borrow().contains(&(channel.clone(), number))
    }

    /// Waits until nothing of these partitions is in flight.
    async fn landed(&self, channel: &ChannelName, numbers: &[u16]) {
        let mut watching = self.0.subscribe();
        let named: Vec<_> = numbers.iter().map(|number| (channel.clone(), *number)).collect();
        // It cannot fail: the sender is ours.
        let _ = watching.wait_for(|in_flight| !named.iter().any(|one| in_flight.contains(one))).await;
    }
}

impl Flight {
    /// Says which partitions it was about after all.
    pub(crate) fn only(&mut self, partitions: &BTreeSet<u16>) {
        let (kept, landed) = self.partitions.iter().partition(|number| partitions.contains(number));
        self.partitions = kept;
        self.land(landed);
    }

    fn land(&self, partitions: BTreeSet<u16>) {
        self.in_flight.0.send_modify(|in_flight| {
            for number in partitions {
                in_flight.remove(&(self.channel.clone(), number));
            }
        });
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let partitions = std::mem::take(&mut self.partitions);
        self.land(partitions);
    }
}

/// Tells the others what is held, if it is not what they know.
fn say(publish: &watch::Sender<Held>, held: Held) {
    publish.send_if_modified(|current| {
        let changed = *current != held;
        *current = held;
        changed
    });
}

/// In which turn partitions are taken, and in reverse given away: so that what an instance holds spreads over the shafts
/// of its relays, and within each lies together.
fn place_in_turn(number: u16) -> (u16, u16) {
    let width = Lane::PARTITIONS / SHAFTS;
    (number % width, number / width)
}

/// The lease of who gives positions.
pub(crate) const SEQUENCER: &str = "sequencer";

const CLEANER: &str = "cleaner";

fn instance_lease(instance: &InstanceId) -> LeaseName {
    LeaseName::from_stored(format!("instance/{instance}"))
}
