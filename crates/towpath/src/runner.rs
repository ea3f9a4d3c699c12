//! The command runner: runs commands that were accepted for later, and those whose retry is due.
//!
//! It works under the instance's lease. A command it takes is PROCESSING under that lease's epoch; if this
//! process dies or stalls past its lease, another instance (or this one, restarted) puts the command back, and
//! whatever this one still tries to write is refused by its epoch.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use towpath_core::ids::CommandId;
use towpath_core::ports::store::{CLAIMED_BYTES, CommandRecord, LeaseGrant, StoreResult};
use towpath_core::retry::Coded as _;

use crate::bus::{Bus, Incoming, SendError, with_causes};
use crate::leases::Held;
use crate::service::{Service, Stopping, Wake, rest};
use crate::timers::deadline_of;

/// How many commands run at a time. None is taken while those that run have as many bytes as one claim may.
const BATCH: u32 = 32;

/// How often a command may take down its holder before it is given up.
const MOST_RECOVERIES: u32 = 3;

/// How the runner keeps time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// How long the instance's lease lasts without renewal.
    pub(crate) lease: Duration,
    /// How often it looks for due commands without being woken.
    pub(crate) scan: Duration,
}

/// Starts the service.
pub(crate) fn start(bus: Bus, held: watch::Receiver<Held>, pace: Pace) -> Service {
    Service::keep_running("command-runner", move |stopping| run(bus.clone(), held.clone(), pace, stopping))
}

async fn run(bus: Bus, held: watch::Receiver<Held>, pace: Pace, mut stopping: Stopping) {
    let Pace { lease, scan } = pace;
    let mut running = JoinSet::new();
    // Commands that were claimed and could not be ended: owed back, under the grant they were claimed with.
    let mut owed: Vec<(LeaseGrant, CommandId)> = Vec::new();
    // What runs here, by its task.
    let mut known = Known::new();
    // Whether something may be claimed under the grant that is not known here: the answer to a claim was lost, or an
    // earlier run of this service has panicked.
    let mut unsure = true;
    while !stopping.is_asked() {
        while let Some(ended) = running.try_join_next_with_id() {
            settle(ended, &mut known, &mut owed);
        }
        give_back(&bus, &mut owed).await;
        let bytes: u64 = known.values().map(|(.., bytes)| bytes).sum();
        let free = match bytes >= CLAIMED_BYTES {
            true => 0,
            false => BATCH.saturating_sub(u32::try_from(running.len()).unwrap_or(BATCH)),
        };
        let grant = held.borrow().instance.clone();
        let taken = match &grant {
            Some(grant) if free > 0 => {
                let running = known.values().map(|(grant, id, _)| (grant, id));
                let at_work = running.chain(owed.iter().map(|(grant, id)| (grant, id)));
                let at_work = at_work.filter(|(other, _)| *other == grant).map(|(_, id)| id.clone());
                let at_work = unsure.then(|| at_work.collect());
                let taken = take(&bus, grant, lease, at_work, free).await;
                unsure = taken.is_err();
                taken
            }
            _ => Ok(Vec::new()),
        };
        match (grant, taken) {
            (Some(grant), Ok(commands)) if !commands.is_empty() => {
                for record in commands {
                    let command_id = record.command.command_id.clone();
                    let bytes = record.command.payload.as_text().len() as u64;
                    let task = running.spawn(run_one(bus.clone(), grant.clone(), record));
                    known.insert(task.id(), (grant.clone(), command_id, bytes));
                }
            }
            (_, Ok(_)) => {
                rest_beside(&mut running, &mut known, &mut owed, &bus.wakes.runner, scan, &mut stopping).await
            }
            (_, Err(error)) => {
                tracing::warn!(
                    code = error.code(),
                    cause = with_causes(&error),
                    "could not look for due commands"
                );
                rest(&bus.wakes.runner, scan, &mut stopping).await;
            }
        }
    }
    while let Some(ended) = running.join_next_with_id().await {
        settle(ended, &mut known, &mut owed);
    }
    give_back(&bus, &mut owed).await;
}

/// Puts back what lost its holder, then takes what is due. With `at_work`, also what this instance has claimed and is not
/// at work on.
async fn take(
    bus: &Bus,
    grant: &LeaseGrant,
    lease: Duration,
    at_work: Option<Vec<CommandId>>,
    limit: u32,
) -> StoreResult<Vec<CommandRecord>> {
    let now = bus.clock.now();
    // After a pause the lease may have run out without being taken. What is claimed under it would count as orphaned at
    // once: make sure that it lives, or learn that it is gone.
    bus.store.renew_lease(grant, lease).await?;
    let mut recovered = bus.store.recover_commands(now, MOST_RECOVERIES).await?;
    if let Some(at_work) = at_work {
        recovered += bus.store.return_unseen_commands(grant, &at_work, now).await?;
    }
    if recovered > 0 {
        tracing::info!(recovered, "put commands back whose holder is gone");
    }
    bus.store.claim_commands(grant, &bus.registry.command_types(), now, limit).await
}

/// Runs one command; answers what is owed back when it could not be ended.
async fn run_one(bus: Bus, grant: LeaseGrant, record: CommandRecord) -> Option<(LeaseGrant, CommandId)> {
    let command_id = record.command.command_id.clone();
    // A deadline that failed for a passing reason is run again here: it must still be one.
    let still_in = match deadline_of(&bus, &command_id).await {
        Ok(still_in) => still_in,
        Err(error) => {
            tracing::warn!(%command_id, code = error.code(), "could not ask for a command's timer");
            return Some((grant, command_id));
        }
    };
    let claim = Some(grant.clone());
    let incoming = Incoming { command: record.command, expected_version: None, claim, still_in, fence: None };
    // In a task of its own: `decide` and `evolve` are guarded, so a panic is a bug of ours, and it must not keep the
    // command PROCESSING for as long as this instance lives.
    let running = tokio::spawn(async move { bus.run(incoming).await });
    let ended = match running.await {
        Ok(ended) => ended,
        Err(error) => {
            tracing::error!(%command_id, %error, "running a command panicked; giving it back");
            return Some((grant, command_id));
        }
    };
    match ended {
        Ok(_) => None,
        Err(error @ (SendError::Store(_) | SendError::UnknownCommand(_))) => {
            tracing::warn!(%command_id, code = error.code(), cause = with_causes(&error), "a command could not be ended");
            Some((grant, command_id))
        }
        Err(error @ SendError::Failed { .. }) => {
            tracing::warn!(%command_id, code = error.code(), cause = with_causes(&error), "a command failed");
            None
        }
        Err(error) => {
            tracing::info!(%command_id, code = error.code(), "a command was refused");
            None
        }
    }
}

type Ended = Result<(Id, Option<(LeaseGrant, CommandId)>), JoinError>;

/// Which command a task is at, under which grant, and how many bytes its payload has.
type Known = HashMap<Id, (LeaseGrant, CommandId, u64)>;

fn settle(ended: Ended, known: &mut Known, owed: &mut Vec<(LeaseGrant, CommandId)>) {
    match ended {
        Ok((task, back)) => {
            known.remove(&task);
            owed.extend(back);
        }
        Err(error) => {
            tracing::error!(%error, "the task around a command panicked");
            owed.extend(known.remove(&error.id()).map(|(grant, id, _)| (grant, id)));
        }
    }
}

/// Gives owed commands back; what cannot be given back now is owed on. Under a lost grant they are recovered anyway.
async fn give_back(bus: &Bus, owed: &mut Vec<(LeaseGrant, CommandId)>) {
    while let Some((grant, _)) = owed.first().cloned() {
        let ids: Vec<CommandId> =
            owed.iter().filter(|(other, _)| *other == grant).map(|(_, id)| id.clone()).collect();
        match bus.store.return_commands(&grant, &ids, bus.clock.now()).await {
            Ok(_) => owed.retain(|(other, _)| *other != grant),
            Err(error) => {
                tracing::warn!(code = error.code(), "could not give commands back; trying again");
                return;
            }
        }
    }
}

/// Rests until there is something to look at: a wake, a command that ended, the time, or the end.
async fn rest_beside(
    running: &mut JoinSet<Option<(LeaseGrant, CommandId)>>,
    known: &mut Known,
    owed: &mut Vec<(LeaseGrant, CommandId)>,
    wake: &Wake,
    scan: Duration,
    stopping: &mut Stopping,
) {
    if running.is_empty() {
        return rest(wake, scan, stopping).await;
    }
    tokio::select! {
        Some(ended) = running.join_next_with_id() => settle(ended, known, owed),
        () = rest(wake, scan, stopping) => {}
    }
}
