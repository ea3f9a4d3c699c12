//! The sequencer: gives committed events their positions.
//!
//! One instance does it at a time, under the sequencer's lease. It is woken by commits of its own process and looks
//! by itself for those of others.

use std::time::Duration;

use tokio::sync::watch;
use towpath_core::ids::{InstanceId, LeaseName, Position};
use towpath_core::ports::store::{Sequenced, StoreError, StoreResult};
use towpath_core::retry::Coded as _;
use towpath_store::SqlStore;
use uuid::Uuid;

use crate::bus::{Bus, with_causes};
use crate::leases::{Held, SEQUENCER};
use crate::service::{Service, Stopping, rest};

/// How many events get their position in one transaction.
const BATCH: u32 = 1000;

/// How long a wake waits for others to join it.
const SWARM: Duration = Duration::from_millis(10);

/// How long the head is waited for while somebody else gives positions.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often that is looked at.
const TICK: Duration = Duration::from_millis(50);

/// For how long positions are given where nobody else does it.
const TURN: Duration = Duration::from_secs(10);

/// The last position of the log, when it holds all that was committed before the call. Whoever reads the log to make
/// something anew would otherwise miss what has no position yet. Where no instance runs that gives positions, this does.
///
/// # Errors
/// The store's; `Unavailable` when another instance that gives positions has not come so far within a minute.
pub async fn complete_head(store: &SqlStore) -> StoreResult<Position> {
    let give_up_at = tokio::time::Instant::now() + PATIENCE;
    let name = LeaseName::from_stored(SEQUENCER);
    let ourselves = InstanceId::from_stored(format!("reader-{}", Uuid::now_v7()));
    let Some(last) = store.last_without_position().await? else { return store.head().await };
    loop {
        if !store.waits_for_position(last).await? {
            return store.head().await;
        }
        if let Some(grant) = store.acquire_lease(&name, &ourselves, TURN).await? {
            let mut given = store.sequence(&grant, BATCH).await;
            while given.as_ref().is_ok_and(|given| given.count > 0) {
                given = store.sequence(&grant, BATCH).await;
            }
            store.release_lease(&grant).await?;
            match given {
                // An instance that has come up meanwhile gives them.
                Ok(_) | Err(StoreError::Fenced { .. }) => continue,
                Err(error) => return Err(error),
            }
        }
        if tokio::time::Instant::now() >= give_up_at {
            return Err(StoreError::Unavailable("events have had no position for a minute".into()));
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Starts the service.
pub(crate) fn start(bus: Bus, held: watch::Receiver<Held>, scan: Duration) -> Service {
    Service::keep_running("sequencer", move |stopping| run(bus.clone(), held.clone(), scan, stopping))
}

async fn run(bus: Bus, held: watch::Receiver<Held>, scan: Duration, mut stopping: Stopping) {
    while !stopping.is_asked() {
        if let Err(error) = drain(&bus, &held, &stopping).await {
            match error {
                // Somebody else is the sequencer now; the keeper will find out.
                StoreError::Fenced { .. } => {}
                error => {
                    tracing::warn!(
                        code = error.code(),
                        cause = with_causes(&error),
                        "could not give positions"
                    );
                }
            }
        }
        rest(&bus.wakes.sequencer, scan, &mut stopping).await;
        // Commits come in swarms: one transaction for all of a moment's events instead of one for each.
        tokio::time::sleep(SWARM).await;
    }
}

/// Gives positions until nothing is left, or until told to stop.
async fn drain(bus: &Bus, held: &watch::Receiver<Held>, stopping: &Stopping) -> StoreResult<()> {
    let Some(grant) = held.borrow().sequencer.clone() else { return Ok(()) };
    while !stopping.is_asked() {
        let Sequenced { count, head } = bus.store.sequence(&grant, BATCH).await?;
        if count > 0 {
            bus.meters.positioned.increment(count);
            bus.wakes.trackers.wake_all();
            bus.sequenced.send_replace(head);
        }
        if count < u64::from(BATCH) {
            break;
        }
    }
    Ok(())
}
