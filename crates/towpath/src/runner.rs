//! The command runner: runs commands that were accepted for later, and those whose retry is due.
//!
//! It works under the instance's lease. A command it takes is PROCESSING under that lease's epoch; if this
//! process dies or stalls past its lease, another instance (or this one, restarted) puts the command back, and
//! whatever this one still tries to write is refused by its epoch.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use towpath_core::ids::{InstanceId, LeaseName};
use towpath_core::ports::store::{CommandRecord, LeaseGrant, StoreError, StoreResult};

use crate::bus::{Bus, Incoming, SendError, with_causes};
use crate::service::{Service, Stopping};

/// How many commands are taken at a time.
const BATCH: u32 = 32;

/// Wakes the runner of this process.
#[derive(Clone, Default)]
pub(crate) struct Wake(Arc<Notify>);

impl Wake {
    pub(crate) fn wake(&self) {
        self.0.notify_one();
    }
}

/// How the runner keeps time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// How long the instance's lease lasts without renewal.
    pub(crate) lease: Duration,
    /// How often it looks for due commands without being woken.
    pub(crate) scan: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { lease: Duration::from_secs(15), scan: Duration::from_secs(1) }
    }
}

/// Starts the instance's heartbeat and its runner. The first lease is taken before this answers, so that commands
/// of an earlier life of this instance are recoverable at once.
pub(crate) async fn start(
    bus: Bus,
    wake: Wake,
    instance: InstanceId,
    pace: Pace,
) -> StoreResult<Vec<Service>> {
    let lease = LeaseName::from_stored(format!("instance/{instance}"));
    let first = bus.store.acquire_lease(&lease, &instance, pace.lease).await?;
    let (grant, grants) = watch::channel(first);
    let heartbeat = Service::start("heartbeat", |stopping| {
        keep_lease(bus.clone(), lease, instance, pace, grant, stopping)
    });
    let runner = Service::start("command-runner", |stopping| run(bus, wake, pace, grants, stopping));
    // The runner stops first: it finishes what it has taken while the lease still lives.
    Ok(vec![runner, heartbeat])
}

/// Renews the lease until told to stop, takes it anew when it was lost, and gives it back at the end.
async fn keep_lease(
    bus: Bus,
    lease: LeaseName,
    instance: InstanceId,
    pace: Pace,
    grant: watch::Sender<Option<LeaseGrant>>,
    mut stopping: Stopping,
) {
    loop {
        tokio::select! {
            () = stopping.asked() => break,
            () = tokio::time::sleep(pace.lease / 3) => {}
        }
        let held = grant.borrow().clone();
        let renewed = match &held {
            Some(held) => bus.store.renew_lease(held, pace.lease).await,
            None => Err(StoreError::Missing { what: "lease", name: lease.to_string() }),
        };
        match renewed {
            Ok(()) => {}
            Err(StoreError::Fenced { .. } | StoreError::Missing { .. }) => {
                match bus.store.acquire_lease(&lease, &instance, pace.lease).await {
                    Ok(taken) => {
                        grant.send_replace(taken);
                    }
                    Err(error) => tracing::warn!(%lease, code = error.code(), "could not take the lease"),
                }
            }
            // The database may come back before the lease runs out; if not, the epoch protects what matters.
            Err(error) => tracing::warn!(%lease, code = error.code(), "could not renew the lease"),
        }
    }
    let held = grant.borrow().clone();
    if let Some(held) = held
        && let Err(error) = bus.store.release_lease(&held).await
    {
        tracing::warn!(%lease, code = error.code(), "could not give the lease back; it will run out");
    }
}

async fn run(
    bus: Bus,
    wake: Wake,
    pace: Pace,
    grants: watch::Receiver<Option<LeaseGrant>>,
    mut stopping: Stopping,
) {
    while !stopping.is_asked() {
        let grant = grants.borrow().clone();
        let taken = match &grant {
            Some(grant) => take(&bus, grant).await,
            None => Ok(Vec::new()),
        };
        match (grant, taken) {
            (Some(grant), Ok(commands)) if !commands.is_empty() => run_all(&bus, &grant, commands).await,
            (_, Ok(_)) => rest(&wake, pace, &mut stopping).await,
            (_, Err(error)) => {
                tracing::warn!(
                    code = error.code(),
                    cause = with_causes(&error),
                    "could not look for due commands"
                );
                rest(&wake, pace, &mut stopping).await;
            }
        }
    }
}

/// Puts back what lost its holder, then takes what is due.
async fn take(bus: &Bus, grant: &LeaseGrant) -> StoreResult<Vec<CommandRecord>> {
    let now = bus.clock.now();
    let recovered = bus.store.recover_commands(now).await?;
    if recovered > 0 {
        tracing::info!(recovered, "put commands back whose holder is gone");
    }
    bus.store.claim_commands(grant, now, BATCH).await
}

async fn run_all(bus: &Bus, grant: &LeaseGrant, commands: Vec<CommandRecord>) {
    let mut running = JoinSet::new();
    for record in commands {
        let bus = bus.clone();
        let incoming =
            Incoming { command: record.command, expected_version: None, claim: Some(grant.clone()) };
        running.spawn(async move {
            let command_id = incoming.command.command_id.clone();
            match bus.run(incoming).await {
                Ok(_) => {}
                Err(error @ (SendError::Store(_) | SendError::Failed { .. } | SendError::StillProcessing(_))) => {
                    tracing::warn!(%command_id, code = error.code(), cause = with_causes(&error), "a command did not end");
                }
                Err(error) => tracing::info!(%command_id, code = error.code(), "a command was refused"),
            }
        });
    }
    while running.join_next().await.is_some() {}
}

async fn rest(wake: &Wake, pace: Pace, stopping: &mut Stopping) {
    tokio::select! {
        () = stopping.asked() => {}
        () = wake.0.notified() => {}
        () = tokio::time::sleep(pace.scan) => {}
    }
}
