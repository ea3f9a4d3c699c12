//! The sequencer: gives committed events their positions.
//!
//! One instance does it at a time, under the sequencer's lease. It is woken by commits of its own process and looks
//! by itself for those of others.

use std::time::Duration;

use tokio::sync::watch;
use towpath_core::ports::store::{Sequenced, StoreError, StoreResult};

use crate::bus::{Bus, with_causes};
use crate::leases::Held;
use crate::service::{Service, Stopping, Wake, rest};

/// How many events get their position in one transaction.
const BATCH: u32 = 1000;

/// How long a wake waits for others to join it.
const SWARM: Duration = Duration::from_millis(10);

/// Starts the service.
pub(crate) fn start(bus: Bus, held: watch::Receiver<Held>, wake: Wake, scan: Duration) -> Service {
    Service::keep_running("sequencer", move |stopping| {
        run(bus.clone(), held.clone(), wake.clone(), scan, stopping)
    })
}

async fn run(bus: Bus, held: watch::Receiver<Held>, wake: Wake, scan: Duration, mut stopping: Stopping) {
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
        rest(&wake, scan, &mut stopping).await;
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
            bus.trackers.wake_all();
            bus.sequenced.send_replace(head);
        }
        if count < u64::from(BATCH) {
            break;
        }
    }
    Ok(())
}
