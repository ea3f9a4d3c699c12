//! The lease keeper: everything this instance holds, renewed together.
//!
//! An instance holds its own lease, under which it runs commands, and perhaps the sequencer's. One service takes,
//! renews and gives back all of them; the others read what is held from a watch.

use std::time::Duration;

use tokio::sync::watch;
use towpath_core::ids::{InstanceId, LeaseName};
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
}

/// Takes the first leases and starts to keep them. What an earlier life of this instance held is taken over at once,
/// in a higher epoch.
pub(crate) async fn start(
    bus: Bus,
    instance: InstanceId,
    lease: Duration,
) -> StoreResult<(Service, watch::Receiver<Held>)> {
    let keeper = Keeper { bus, instance, lease };
    let held = keeper.round(Held::default()).await?;
    let (publish, receive) = watch::channel(held);
    let service = Service::start("leases", |stopping| keeper.keep(publish, stopping));
    Ok((service, receive))
}

struct Keeper {
    bus: Bus,
    instance: InstanceId,
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
        Ok(held)
    }
}

impl Held {
    fn all(&self) -> Vec<LeaseGrant> {
        self.instance.iter().chain(&self.sequencer).cloned().collect()
    }

    fn only(self, kept: &[LeaseGrant]) -> Self {
        let is_kept = |grant: &LeaseGrant| kept.contains(grant);
        Self { instance: self.instance.filter(is_kept), sequencer: self.sequencer.filter(is_kept) }
    }
}

const SEQUENCER: &str = "sequencer";

fn instance_lease(instance: &InstanceId) -> LeaseName {
    LeaseName::from_stored(format!("instance/{instance}"))
}
