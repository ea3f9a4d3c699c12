//! The cleaner: deletes outbox rows that were sent, deliveries that were handled, commands and timers that ended, and leases
//! of instances that are gone, all of them long ago.
//!
//! One instance does it at a time, under the cleaner's lease, in small transactions with pauses between them: it is in
//! nobody's way, and a kill leaves nothing half done.

use std::time::Duration;

use tokio::sync::watch;
use towpath_core::lifecycle::TaskState;
use towpath_core::ports::store::{LeaseGrant, StoreError, StoreResult};
use towpath_core::retry::Coded as _;
use towpath_core::time::earlier;

use towpath_store::SqlStore;

use crate::builder::Keeping;
use crate::bus::{Bus, with_causes};
use crate::leases::Held;
use crate::service::{Service, Stopping, Wake, rest};

/// How many rows are looked at in one transaction.
const PAGE: u32 = 1_000;

/// How long units of work are remembered: much longer than anybody doubts whether one was committed.
const UNITS: Duration = Duration::from_secs(3_600);

/// How long others have the database for themselves between two pages.
const BREATH: Duration = Duration::from_millis(20);

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
            Ok(deleted) if deleted == Deleted::default() => {}
            Ok(Deleted { sent, handled, commands }) => {
                tracing::info!(sent, handled, commands, "deleted what was over long ago");
            }
            // Somebody else cleans now; the keeper will find out.
            Err(StoreError::Fenced { .. }) => {}
            Err(error) => {
                tracing::warn!(code = error.code(), cause = with_causes(&error), "could not clean up");
            }
        }
    }
}

/// How much was deleted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Deleted {
    sent: u64,
    handled: u64,
    commands: u64,
}

/// Deletes a page at a time, with pauses, until nothing is left or until told to stop; counts what was deleted. What fails
/// here does not keep the rest from being cleaned, unless somebody else cleans by now.
macro_rules! page_by_page {
    ($stopping:expr, $failed:expr, $count:expr, $page:expr) => {
        while !$stopping.is_asked() {
            match $page.await {
                Ok(0) => break,
                Ok(deleted) => $count += deleted,
                Err(error @ StoreError::Fenced { .. }) => return Err(error),
                Err(error) => {
                    $failed.get_or_insert(error);
                    break;
                }
            }
            breathe($stopping).await;
        }
    };
}

/// One pass over everything.
async fn clean(
    bus: &Bus,
    store: &SqlStore,
    lease: &LeaseGrant,
    keeping: Keeping,
    stopping: &mut Stopping,
) -> StoreResult<Deleted> {
    let (mut deleted, mut others, mut failed) = (Deleted::default(), 0, None);
    // Asked anew for each pass: what is deleted too early cannot be brought back.
    let now = bus.database_time().await?;
    if let Some(before) = earlier(now, keeping.sent) {
        page_by_page!(stopping, failed, deleted.sent, bus.store.clean_outbox(lease, before, PAGE));
    }
    if let Some(before) = earlier(now, keeping.handled) {
        // Letters that ended are kept as long as the inbox remembers.
        page_by_page!(stopping, failed, others, store.clean_letters(lease, before, PAGE));
        page_by_page!(stopping, failed, deleted.handled, bus.store.clean_inbox(lease, before, PAGE));
        page_by_page!(stopping, failed, others, store.clean_timers(lease, before, PAGE));
        page_by_page!(stopping, failed, others, store.clean_processes(lease, before, PAGE));
        let leases = store.clean_leases(lease, &["instance/", "relaying/"], keeping.handled).await;
        others += leases.unwrap_or_else(|error| {
            failed.get_or_insert(error);
            0
        });
    }
    if let Some(before) = earlier(now, UNITS) {
        page_by_page!(stopping, failed, others, store.clean_units(lease, before, PAGE));
    }
    if let Some(before) = earlier(now, keeping.commands) {
        page_by_page!(stopping, failed, deleted.commands, bus.store.clean_commands(lease, before, PAGE));
    }
    if let Some(before) = earlier(now, keeping.alerts) {
        page_by_page!(stopping, failed, others, store.clean_alerts(lease, before, PAGE));
    }
    let well = [TaskState::Succeeded, TaskState::Skipped, TaskState::Canceled];
    let well = well.map(|status| (status, keeping.tasks));
    let badly = [TaskState::Failed, TaskState::Timeout].map(|status| (status, keeping.failed_tasks));
    for (status, keep) in well.into_iter().chain(badly) {
        if let Some(before) = earlier(now, keep) {
            page_by_page!(stopping, failed, others, store.clean_tasks(lease, status, before, PAGE));
        }
    }
    tracing::debug!(others, "cleaned up");
    failed.map_or(Ok(deleted), Err)
}

async fn breathe(stopping: &mut Stopping) {
    tokio::select! {
        () = stopping.asked() => {}
        () = tokio::time::sleep(BREATH) => {}
    }
}
