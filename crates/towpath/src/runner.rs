//! The command runner: runs commands that were accepted for later, and those whose retry is due.
//!
//! It works under the instance's lease. A command it takes is PROCESSING under that lease's epoch; if this
//! process dies or stalls past its lease, another instance (or this one, restarted) puts the command back, and
//! whatever this one still tries to write is refused by its epoch.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use towpath_core::ports::store::{CommandRecord, LeaseGrant, StoreResult};

use crate::bus::{Bus, Incoming, SendError, with_causes};
use crate::leases::Held;
use crate::service::{Service, Stopping, Wake, rest};

/// How many commands are taken at a time.
const BATCH: u32 = 32;

/// Starts the service.
pub(crate) fn start(bus: Bus, held: watch::Receiver<Held>, wake: Wake, scan: Duration) -> Service {
    Service::start("command-runner", move |stopping| run(bus, held, wake, scan, stopping))
}

async fn run(bus: Bus, held: watch::Receiver<Held>, wake: Wake, scan: Duration, mut stopping: Stopping) {
    while !stopping.is_asked() {
        let grant = held.borrow().instance.clone();
        let taken = match &grant {
            Some(grant) => take(&bus, grant).await,
            None => Ok(Vec::new()),
        };
        match (grant, taken) {
            (Some(grant), Ok(commands)) if !commands.is_empty() => run_all(&bus, &grant, commands).await,
            (_, Ok(_)) => rest(&wake, scan, &mut stopping).await,
            (_, Err(error)) => {
                tracing::warn!(
                    code = error.code(),
                    cause = with_causes(&error),
                    "could not look for due commands"
                );
                rest(&wake, scan, &mut stopping).await;
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
