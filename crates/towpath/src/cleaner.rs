//! The cleaner: deletes outbox rows that were sent, deliveries that were handled, timers that ended, and leases of
//! instances that are gone, all of them long ago.
//!
//! One instance does it at a time, under the cleaner's lease, in small transactions with pauses between them: it is in
//! nobody's way, and a kill leaves nothing half done.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::watch;
use towpath_core::ports::store::{LeaseGrant, StoreError, StoreResult};

use towpath_store::SqlStore;

use crate::bus::{Bus, with_causes};
use crate::leases::Held;
use crate::service::{Service, Stopping, Wake, rest};

/// How many rows are looked at in one transaction.
const PAGE: u32 = 1_000;

/// How long others have the database for themselves between two pages.
const BREATH: Duration = Duration::from_millis(20);

/// What is kept for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeping {
    /// Outbox rows that were sent.
    pub(crate) sent: Duration,
    /// Deliveries that were handled: the de-duplication horizon.
    pub(crate) handled: Duration,
    /// How often it is looked for what is older.
    pub(crate) every: Duration,
}

/// Starts the service.
pub(crate) fn start(bus: Bus, store: SqlStore, held: watch::Receiver<Held>, keeping: Keeping) -> Service {
    Service::keep_running("cleaner", move |stopping| {
        run(bus.clone(), store.clone(), held.clone(), keeping, stopping)
    })
}

async fn run(
    bus: Bus,
    store: SqlStore,
    held: watch::Receiver<Held>,
    keeping: Keeping,
    mut stopping: Stopping,
) {
    let nobody = Wake::default();
    loop {
        rest(&nobody, keeping.every, &mut stopping).await;
        if stopping.is_asked() {
            return;
        }
        let Some(lease) = held.borrow().cleaner.clone() else { continue };
        match clean(&bus, &store, &lease, keeping, &mut stopping).await {
            Ok((0, 0)) => {}
            Ok((sent, handled)) => tracing::info!(sent, handled, "deleted what was delivered long ago"),
            // Somebody else cleans now; the keeper will find out.
            Err(StoreError::Fenced { .. }) => {}
            Err(error) => {
                tracing::warn!(code = error.code(), cause = with_causes(&error), "could not clean up");
            }
        }
    }
}

/// One walk; answers how many outbox rows and deliveries were deleted.
async fn clean(
    bus: &Bus,
    store: &SqlStore,
    lease: &LeaseGrant,
    keeping: Keeping,
    stopping: &mut Stopping,
) -> StoreResult<(u64, u64)> {
    let (mut sent, mut handled) = (0, 0);
    // Asked anew for each walk: what is deleted too early cannot be brought back.
    let now = bus.database_time().await?;
    if let Some(before) = before(now, keeping.sent) {
        let mut after = Some(0);
        while let Some(from) = after.filter(|_| !stopping.is_asked()) {
            let cleaned = bus.store.clean_outbox(lease, before, from, PAGE).await?;
            (sent, after) = (sent + cleaned.deleted, cleaned.next);
            breathe(stopping).await;
        }
    }
    if let Some(before) = before(now, keeping.handled) {
        // Letters that ended are kept as long as the inbox remembers.
        while !stopping.is_asked() && store.clean_letters(lease, before, PAGE).await? > 0 {
            breathe(stopping).await;
        }
        let mut after = None;
        while !stopping.is_asked() {
            let cleaned = bus.store.clean_inbox(lease, before, after, PAGE).await?;
            (handled, after) = (handled + cleaned.deleted, cleaned.next);
            if after.is_none() {
                break;
            }
            breathe(stopping).await;
        }
        let mut after = None;
        while !stopping.is_asked() {
            let cleaned = store.clean_timers(lease, before, after, PAGE).await?;
            after = cleaned.next;
            if after.is_none() {
                break;
            }
            breathe(stopping).await;
        }
        store.clean_leases(lease, &["instance/", "relaying/"], keeping.handled).await?;
    }
    Ok((sent, handled))
}

/// The moment so long ago; none if that is before time began, and then everything is kept.
fn before(now: DateTime<Utc>, ago: Duration) -> Option<DateTime<Utc>> {
    let ago = chrono::Duration::from_std(ago).ok()?;
    now.checked_sub_signed(ago)
}

async fn breathe(stopping: &mut Stopping) {
    tokio::select! {
        () = stopping.asked() => {}
        () = tokio::time::sleep(BREATH) => {}
    }
}
