//! The lease keeper: everything this instance holds, renewed together.
//!
//! An instance holds its own lease, under which it runs commands, perhaps the sequencer's, and, if it relays, its share
//! of the partitions. One service takes, renews and gives back all of them; the others read what is held from a watch.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use towpath_core::ids::{ChannelName, InstanceId, Lane, LeaseName};
use towpath_core::ports::store::{LeaseGrant, StoreResult};

use crate::bus::{Bus, with_causes};
use crate::service::{Service, Stopping};

/// What this instance holds at the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// The instance's own lease.
    pub(crate) instance: Option<LeaseGrant>,
    /// The sequencer's lease.
    pub(crate) sequencer: Option<LeaseGrant>,
    /// What it relays, by channel.
    pub(crate) channels: BTreeMap<ChannelName, Share>,
}

/// This instance's share of one channel. Shares are by channel, because not every instance relays every channel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// The sign that this instance relays the channel: it counts when the partitions are shared out.
    relaying: Option<LeaseGrant>,
    /// The partitions it holds.
    pub(crate) partitions: BTreeMap<u16, LeaseGrant>,
}

/// Takes the first leases and starts to keep them. What an earlier life of this instance held is taken over at once,
/// in a higher epoch.
pub(crate) async fn start(
    bus: Bus,
    instance: InstanceId,
    relayed: Vec<ChannelName>,
    lease: Duration,
) -> StoreResult<(Service, watch::Receiver<Held>)> {
    let keeper = Keeper { bus, instance, relayed, lease };
    let held = keeper.round(Held::default()).await?;
    let (publish, receive) = watch::channel(held);
    let service = Service::start("leases", |stopping| keeper.keep(publish, stopping));
    Ok((service, receive))
}

struct Keeper {
    bus: Bus,
    instance: InstanceId,
    /// The channels of which it wants partitions.
    relayed: Vec<ChannelName>,
    lease: Duration,
}

impl Keeper {
    async fn keep(self, publish: watch::Sender<Held>, mut stopping: Stopping) {
        loop {
            tokio::select! {
                () = stopping.asked() => break,
                () = tokio::time::sleep(self.lease / 3) => {}
            }
            let held = publish.borrow().clone();
            match self.round(held).await {
                Ok(held) => {
                    publish.send_if_modified(|current| {
                        let changed = *current != held;
                        *current = held;
                        changed
                    });
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
        for grant in held.all() {
            if let Err(error) = self.bus.store.release_lease(&grant).await {
                tracing::warn!(lease = %grant.lease, code = error.code(), "could not give a lease back; it will run out");
            }
        }
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
        let relaying =
            store.leases(&relaying_names).await?.into_iter().filter(|lease| lease.live).count().max(1);
        let share = usize::from(Lane::PARTITIONS).div_ceil(relaying);
        while held.partitions.len() > share {
            if let Some((_, extra)) = held.partitions.pop_last() {
                store.release_lease(&extra).await?;
            }
        }
        let missing = share - held.partitions.len();
        if missing > 0 {
            let standings = store.leases(&partition_names).await?;
            let is_others = |name: &LeaseName| {
                let standing = standings.iter().find(|standing| standing.lease == *name);
                standing.is_some_and(|standing| standing.live && standing.holder != self.instance)
            };
            let free: Vec<LeaseName> = (0..Lane::PARTITIONS)
                .filter(|number| !held.partitions.contains_key(number))
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
        let shares =
            self.channels.values().flat_map(|share| share.relaying.iter().chain(share.partitions.values()));
        self.instance.iter().chain(&self.sequencer).chain(shares).cloned().collect()
    }

    fn only(self, kept: &[LeaseGrant]) -> Self {
        let is_kept = |grant: &LeaseGrant| kept.contains(grant);
        Self {
            instance: self.instance.filter(is_kept),
            sequencer: self.sequencer.filter(is_kept),
            channels: self
                .channels
                .into_iter()
                .map(|(channel, share)| {
                    let relaying = share.relaying.filter(is_kept);
                    let partitions =
                        share.partitions.into_iter().filter(|(_, grant)| is_kept(grant)).collect();
                    (channel, Share { relaying, partitions })
                })
                .collect(),
        }
    }
}

const SEQUENCER: &str = "sequencer";

fn instance_lease(instance: &InstanceId) -> LeaseName {
    LeaseName::from_stored(format!("instance/{instance}"))
}
