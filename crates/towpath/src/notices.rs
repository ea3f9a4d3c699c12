//! Tells other processes of commits, and hears of theirs, where the database carries notices.
//!
//! A commit is told at once, those that come right behind it are told together a little later. A notice says "look" and nothing
//! else; without it the others look by themselves a little later.

use std::time::Duration;

use towpath_core::ids::InstanceId;
use towpath_core::ports::store::Heard;
use towpath_core::retry::Coded as _;
use towpath_store::SqlStore;

use crate::bus::{Bus, with_causes};
use crate::service::{Service, Stopping, rest};

/// How long it is at least from one notice to the next.
const SWARM: Duration = Duration::from_millis(5);

/// How often to ask whether there is anybody to be told.
const ASK: Duration = Duration::from_secs(2);

/// How long to wait before hearing is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Starts to tell.
pub(crate) fn tell(bus: Bus, store: SqlStore, instance: InstanceId) -> Service {
    Service::keep_running("telling", move |stopping| {
        run_telling(bus.clone(), store.clone(), instance.clone(), stopping)
    })
}

/// Starts to hear.
pub(crate) fn hear(bus: Bus, store: SqlStore, instance: InstanceId) -> Service {
    Service::keep_running("hearing", move |stopping| {
        run_hearing(bus.clone(), store.clone(), instance.clone(), stopping)
    })
}

async fn run_telling(bus: Bus, store: SqlStore, instance: InstanceId, mut stopping: Stopping) {
    let (mut others, mut asked_at) = (false, None::<tokio::time::Instant>);
    let mut may_tell_at = tokio::time::Instant::now();
    while !stopping.is_asked() {
        rest(&bus.wakes.told, Duration::from_secs(3600), &mut stopping).await;
        tokio::time::sleep_until(may_tell_at).await;
        may_tell_at = tokio::time::Instant::now() + SWARM;
        if asked_at.is_none_or(|asked| asked.elapsed() > ASK) {
            // An error is as good as a yes: telling nobody is harmless.
            let standings = store.leases("instance/").await;
            others =
                standings.map_or(true, |all| all.iter().any(|lease| lease.live && lease.holder != instance));
            asked_at = Some(tokio::time::Instant::now());
        }
        if others && let Err(error) = store.notify(instance.as_str()).await {
            tracing::debug!(
                code = error.code(),
                cause = with_causes(&error),
                "others were not told of a commit"
            );
        }
    }
}

async fn run_hearing(bus: Bus, store: SqlStore, instance: InstanceId, mut stopping: Stopping) {
    while !stopping.is_asked() {
        let heard = tokio::select! {
            () = stopping.asked() => return,
            heard = listen(&bus, &store, &instance) => heard,
        };
        if let Err(error) = heard {
            tracing::warn!(
                code = error.code(),
                cause = with_causes(&error),
                "does not hear of others' commits"
            );
        }
        tokio::select! {
            () = stopping.asked() => return,
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

async fn listen(
    bus: &Bus,
    store: &SqlStore,
    instance: &InstanceId,
) -> Result<(), towpath_core::ports::store::StoreError> {
    let Some(mut notices) = store.hear().await? else {
        // There will be none.
        std::future::pending::<()>().await;
        return Ok(());
    };
    loop {
        match notices.next().await? {
            Heard::Notice(sender) if sender == instance.as_str() => {}
            Heard::Notice(_) | Heard::Interruption => {
                bus.wakes.sequencer.wake();
                bus.wakes.relays.wake_all();
                bus.wakes.runner.wake();
                bus.wakes.tasks.wake();
            }
        }
    }
}
