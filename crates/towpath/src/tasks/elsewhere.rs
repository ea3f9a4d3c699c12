//! For workers in no process of ours: they wait for tasks, take them, say that they live, and answer, by whatever carries it
//! (over HTTP, the server's paths).
//!
//! Nothing of it is in the memory of an instance: each call may reach another one. A worker that dies is taken over from by
//! its heartbeat, like any other.

use std::time::Duration;

use towpath_core::ids::{InstanceId, TaskId};
use towpath_core::lifecycle::TaskState;
use towpath_core::ports::store::{
    CLAIMED_BYTES, Canceling, StoreError, Task, TaskClaim, TaskEnd, WantedTasks,
};
use towpath_core::retry::{Coded, ErrorClass};

use super::Answer;
use super::keeper::WHILE_LOCKED;
use crate::consumer::HandlerError;
use crate::towpath::Towpath;
use crate::tx::invalid;

/// So often a heartbeat is tried again of a task that somebody has locked, with pauses of [`WHILE_LOCKED`]. The next one is not
/// far.
const LOCKED_AT_MOST: u32 = 10;

/// Why a worker elsewhere does not get what it asks for.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// There is no such task.
    #[error("there is no task {0}")]
    Unknown(TaskId),
    /// No task of that type can be taken or answered here.
    #[error("no type of task is called {0:?} here")]
    UnknownType(String),
    /// It is not under that claim: another has taken it over, or it has ended in another way.
    #[error("task {task_id} is not this worker's any more; it is {status}")]
    Lost {
        /// Which one.
        task_id: TaskId,
        /// Where it is.
        status: TaskState,
    },
    /// It was not taken before, and cannot be now.
    #[error("task {task_id} is {status}; only one that is queued is answered by who has not taken it")]
    NotQueued {
        /// Which one.
        task_id: TaskId,
        /// Where it is.
        status: TaskState,
    },
    /// The store says no, or nothing.
    #[error("the store did not do it")]
    Store(#[from] StoreError),
}

impl Coded for TaskError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Unknown(_) => ErrorClass::NotFound,
            Self::UnknownType(_) | Self::Lost { .. } | Self::NotQueued { .. } => ErrorClass::Validation,
            Self::Store(error) => error.class(),
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "task-unknown",
            Self::UnknownType(_) => "task-type-unknown",
            Self::Lost { .. } => "task-lost",
            Self::NotQueued { .. } => "task-not-queued",
            Self::Store(error) => error.code(),
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "Check the id; tasks that ended long ago are deleted.",
            Self::UnknownType(_) => "Check the name; the application declares its types of tasks.",
            Self::Lost { .. } => "Drop what came of it, and take another task.",
            Self::NotQueued { .. } => "Drop what came of it: somebody else has the task, or it has ended.",
            Self::Store(error) => error.next_step(),
        }
    }
}

impl Towpath {
    /// Takes tasks for a worker elsewhere: so many at most, of the first of these types first. Where there is none it is waited
    /// for one, so long at most; a commit of this process is heard at once.
    ///
    /// The worker has the length of the type's heartbeat ([`Task::task`]) for [`beat_task`](Self::beat_task) or its answer.
    ///
    /// # Caveats
    /// What was taken and never reached the worker is taken over when its heartbeat is.
    pub async fn claim_tasks(
        &self,
        types: &[&str],
        worker: &str,
        limit: u32,
        wait: Duration,
    ) -> Result<Vec<Task>, TaskError> {
        let ready = async || Ok::<_, TaskError>(());
        let taken = self.claim_tasks_when(types, worker, limit, wait, ready).await?;
        Ok(taken.map(|((), tasks)| tasks).unwrap_or_default())
    }

    /// The same for who must be ready before something is taken (have room for it, say): it is asked when there is something. What
    /// that gives comes with the tasks; where it fails nothing is taken.
    pub async fn claim_tasks_when<R, E: From<TaskError>, F: Future<Output = Result<R, E>>>(
        &self,
        types: &[&str],
        worker: &str,
        limit: u32,
        wait: Duration,
        ready: impl Fn() -> F,
    ) -> Result<Option<(R, Vec<Task>)>, E> {
        crate::transact::refuse_inside().map_err(TaskError::from)?;
        let wanted = self.wanted(types, 1)?;
        let worker = worker_name(worker).map_err(TaskError::from)?;
        let mut waiting = self.bus.wakes.tasks.wait(wait);
        loop {
            // Mostly there is nothing: then one read is all it costs.
            let found = self.store().waiting_tasks(&wanted).await.map_err(TaskError::from)?;
            if !found.is_empty() {
                let ready = ready().await?;
                let taken = self.claim_now(&found, &worker, limit).await?;
                if !taken.is_empty() {
                    return Ok(Some((ready, taken)));
                }
            }
            if !waiting.go_on().await {
                return Ok(None);
            }
        }
    }

    /// Tasks that may be taken, without payloads and without taking them: so many of each of these types at most. Where there is
    /// none it is waited for one, so long at most.
    pub async fn waiting_tasks(
        &self,
        types: &[&str],
        limit: u32,
        wait: Duration,
    ) -> Result<Vec<Task>, TaskError> {
        crate::transact::refuse_inside()?;
        let wanted = self.wanted(types, limit)?;
        let mut waiting = self.bus.wakes.tasks.wait(wait);
        loop {
            let found = self.store().waiting_tasks(&wanted).await?;
            if !found.is_empty() || !waiting.go_on().await {
                return Ok(found);
            }
        }
    }

    /// Says that a worker lives. Answers whether its task is called off: then its answer counts, and its failure does not.
    ///
    /// # Errors
    /// `Lost`, where the task is somebody else's by now or has ended.
    pub async fn beat_task(&self, claim: TaskClaim) -> Result<bool, TaskError> {
        crate::transact::refuse_inside()?;
        let mut beats = self.store().beat_tasks(&[claim]).await?;
        for _ in 0..LOCKED_AT_MOST {
            if beats.locked.is_empty() {
                break;
            }
            tokio::time::sleep(WHILE_LOCKED).await;
            beats = self.store().beat_tasks(&[claim]).await?;
        }
        if beats.lost.is_empty() {
            return Ok(!beats.canceling.is_empty());
        }
        let task = self.task(claim.task_id).await?.ok_or(TaskError::Unknown(claim.task_id))?;
        Err(TaskError::Lost { task_id: claim.task_id, status: task.status })
    }

    /// Ends an attempt of a worker elsewhere; answers the task as it is then. With the epoch under which the worker has taken
    /// it: the same said again is no loss. Without: a task that nobody has is taken and ended in one step, so that the first
    /// answer wins; one that failed and waits for its next attempt takes a result, and no second failure.
    ///
    /// # Errors
    /// `Lost` and `NotQueued`: nothing was done.
    pub async fn answer_task(
        &self,
        task_id: TaskId,
        epoch: Option<u64>,
        worker: &str,
        outcome: Result<Answer, HandlerError>,
    ) -> Result<Task, TaskError> {
        let (worker, outcome) = (worker_name(worker)?, &outcome);
        self.transact(async |mut tx| tx.answer_task(task_id, epoch, &worker, outcome).await).await
    }

    /// Calls a task off, in a unit of its own: see [`Tx::cancel_task`](crate::Tx::cancel_task).
    pub async fn cancel_task(&self, task_id: TaskId, reason: &str) -> Result<Canceling, StoreError> {
        self.transact(async |mut tx| tx.cancel_task(task_id, reason).await).await
    }

    /// Whoever waits for tasks of workers elsewhere is let go, and so is who comes later: the process is about to stop.
    pub fn stop_waiting_for_tasks(&self) {
        self.bus.wakes.tasks.stop();
    }

    /// Takes tasks of the types of which some were found.
    async fn claim_now(&self, found: &[Task], worker: &str, limit: u32) -> Result<Vec<Task>, TaskError> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        for first in found {
            let left = limit.saturating_sub(u32::try_from(taken.len()).unwrap_or(u32::MAX));
            // Each type may add as many bytes as a claim may have: who has some of them by now takes no more.
            if left == 0 || bytes > CLAIMED_BYTES / 16 {
                break;
            }
            let wanted = WantedTasks { task_type: first.task.task_type.as_str(), limit: left };
            match self.store().claim_tasks(&[wanted], worker).await {
                Ok(more) => {
                    bytes += more.iter().map(|task| task.task.payload.as_text().len() as u64).sum::<u64>();
                    taken.extend(more);
                }
                // Others take them at this moment.
                Err(StoreError::Contention(_)) => {}
                // Those that were taken before are the worker's by now.
                Err(_) if !taken.is_empty() => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(taken)
    }

    /// So many of each of these types, each of which is named once then.
    fn wanted<'t>(&self, types: &[&'t str], limit: u32) -> Result<Vec<WantedTasks<'t>>, TaskError> {
        let mut wanted: Vec<WantedTasks<'t>> = Vec::with_capacity(types.len());
        for &task_type in types {
            if self.registry().task_type(task_type).is_none() || is_our_own(task_type) {
                return Err(TaskError::UnknownType(task_type.to_owned()));
            }
            if wanted.iter().all(|wanted| wanted.task_type != task_type) {
                wanted.push(WantedTasks { task_type, limit });
            }
        }
        Ok(wanted)
    }
}

/// Whether tasks of this type are Towpath's own work: nobody elsewhere does it.
pub(crate) fn is_our_own(task_type: &str) -> bool {
    task_type.starts_with("towpath.")
}

/// The name of a worker: as those of instances, beside which it stands.
fn worker_name(worker: &str) -> Result<String, StoreError> {
    let name = InstanceId::new(worker).map_err(|error| invalid("invalid-id", error.into()))?;
    Ok(name.to_string())
}

/// Whether a task that has ended did so as this answer says: then it was said before.
pub(crate) fn is_said_again(task: &Task, outcome: &Result<Answer, HandlerError>) -> bool {
    match outcome {
        Ok(Answer(TaskEnd::Skipped { .. })) => task.status == TaskState::Skipped,
        Ok(Answer(TaskEnd::Succeeded { result })) => {
            task.status == TaskState::Succeeded && task.result == *result
        }
        _ => {
            let ends = [TaskState::Pending, TaskState::Queued, TaskState::Failed, TaskState::Canceled];
            ends.contains(&task.status)
        }
    }
}
