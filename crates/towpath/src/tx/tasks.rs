//! Starting a task, and calling one off.

use std::future::IntoFuture;
use std::sync::{Mutex, PoisonError};

use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::Serialize;
use towpath_core::ids::{AggregateKey, EventId, TaskId, TaskKey};
use towpath_core::lifecycle::TaskState;
use towpath_core::payload::{InvalidPayload, Payload};
use towpath_core::ports::store::{
    Canceling, NewTask, StartedTask, StoreError, StoreTx as _, Task, TaskEnd, TaskEnding, TaskRetry,
};
use towpath_core::task::{TaskFact, TaskType};
use uuid::Uuid;

use super::{Tx, invalid};
use crate::committed::Committed;
use crate::consumer::HandlerError;
use crate::tasks::{Answer, TaskError, after, facts, is_our_own, is_said_again};

/// A task that is being started. Nothing happens until it is awaited.
#[must_use = "nothing happens until it is awaited"]
pub struct StartTask<'t> {
    tx: &'t mut Tx,
    of: &'t TaskType,
    payload: Result<Payload, InvalidPayload>,
    key: Option<String>,
    priority: i64,
    not_before: Option<DateTime<Utc>>,
    subject: Option<AggregateKey>,
}

impl<'t> StartTask<'t> {
    /// While a task of this type with this key is open, no second one is started: the answer is the first.
    pub fn unique(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The same among the tasks of its type that are for this subject, which it then is for.
    pub fn unique_within(self, subject: &AggregateKey, name: &str) -> Self {
        self.unique(NewTask::key_within(subject, name)).subject(subject)
    }

    /// Higher ones are taken first; 0 otherwise.
    pub fn priority(mut self, priority: i64) -> Self {
        self.priority = priority;
        self
    }

    /// It waits until then.
    pub fn not_before(mut self, moment: DateTime<Utc>) -> Self {
        self.not_before = Some(moment);
        self
    }

    /// What it is for.
    pub fn subject(mut self, subject: &AggregateKey) -> Self {
        self.subject = Some(subject.clone());
        self
    }

    async fn start(self) -> Result<StartedTask, StoreError> {
        let Self { tx, of, payload, key, priority, not_before, subject } = self;
        // Who does it goes by what is declared here, whatever who starts it was given.
        let registry = tx.open().bus.registry.clone();
        let of = registry.task_type(of.name()).unwrap_or(of);
        let invalid_id = |error| invalid("invalid-id", error);
        let task_type = of.check().map_err(|error| invalid_id(error.into()))?;
        let key = key.map(TaskKey::new).transpose().map_err(|error| invalid_id(error.into()))?;
        let context = tx.open().context();
        // What follows from a task follows from the fact that it was asked for.
        let requested = of.event_type(TaskFact::Requested).map(|name| (EventId(Uuid::now_v7()), name));
        let causation_id = match &requested {
            Some((event_id, _)) => Some((*event_id).into()),
            None => context.causation_id.clone(),
        };
        let task = NewTask {
            task_id: new_id(tx.open().bus.clock.now()),
            task_type,
            unique_key: key,
            priority,
            not_before,
            payload: payload.map_err(|error| invalid("invalid-payload", error.into()))?,
            time_limit: of.limit(),
            heartbeat: of.silence(),
            subject,
            correlation_id: context.correlation_id.clone(),
            causation_id,
            trace_id: context.trace_id.clone(),
        };
        // Before anything is written: what cannot be told must not be done.
        let requested = requested.map(|requested| facts::requested(&task, requested, context)).transpose()?;
        let started = tx.start_one(&task).await?;
        if let Some(requested) = requested.filter(|_| started.is_new) {
            tx.append(&requested).await?;
        }
        Ok(started)
    }
}

/// The id of a task, which says how old it is among its equals: by the database's time, and within a millisecond by their order
/// here. A host whose clock is wrong would have its tasks done before all others, or behind them.
fn new_id(now: DateTime<Utc>) -> TaskId {
    static LAST: Mutex<(u64, u16)> = Mutex::new((0, 0));
    let millis = u64::try_from(now.timestamp_millis()).unwrap_or_default();
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    *last = (millis, if last.0 == millis { last.1.wrapping_add(1) } else { 0 });
    let [high, low] = (last.1 & 0xfff).to_be_bytes();
    let [.., a, b, c, d, e, f, g, h] = Uuid::now_v7().into_bytes();
    let id = uuid::Builder::from_unix_timestamp_millis(millis, &[high, low, a, b, c, d, e, f, g, h]);
    TaskId(id.into_uuid())
}

impl<'t> IntoFuture for StartTask<'t> {
    type Output = Result<StartedTask, StoreError>;
    type IntoFuture = BoxFuture<'t, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        self.start().boxed()
    }
}

impl Tx {
    /// Starts a task: it commits with the rest, and is then done by a worker of its type. Where the type has names for facts,
    /// what was asked for is one.
    ///
    /// ```ignore
    /// let started = tx.start_task(&concept(), &seed).subject(&session).unique("concept").await?;
    /// ```
    ///
    /// # Errors
    /// `InvalidChange` for a type, a key or a payload that is none.
    pub fn start_task<'t>(
        &'t mut self,
        of: &'t TaskType,
        payload: &(impl Serialize + ?Sized),
    ) -> StartTask<'t> {
        let payload = Payload::from_value(payload);
        StartTask { tx: self, of, payload, key: None, priority: 0, not_before: None, subject: None }
    }

    async fn start_one(&mut self, task: &NewTask) -> Result<StartedTask, StoreError> {
        let open = self.open_mut();
        open.begin()?;
        let outcome = open.sql.start_tasks(std::slice::from_ref(task)).await;
        let started = open.noted("a task", outcome)?;
        open.committed.and(Committed::task(task.not_before));
        started
            .into_iter()
            .next()
            .ok_or_else(|| StoreError::TransactionLost("a task has no answer".to_owned()))
    }

    /// Calls a task off, for a reason (a stable code): one that waits at once, one that runs when its worker hears of it, at its
    /// next heartbeat (in this process, at once). Where its type is known here and has a name for that, it is a fact.
    pub async fn cancel_task(&mut self, task_id: TaskId, reason: &str) -> Result<Canceling, StoreError> {
        let open = self.open_mut();
        open.begin()?;
        let outcome = open.sql.cancel_task(task_id, reason).await;
        let canceling = open.noted("a task", outcome)?;
        if canceling == Canceling::Asked {
            open.committed.and(Committed::canceling());
        }
        let (registry, now) = (open.bus.registry.clone(), open.bus.clock.now());
        if let Canceling::Done(task) = &canceling
            && let Some(of) = registry.task_type(task.task.task_type.as_str())
            && let Some(append) = facts::ended(of, (task, Some(reason)), &TaskEnd::Canceled, now)?
        {
            self.append(&append).await?;
        }
        Ok(canceling)
    }

    /// Takes a tick of a schedule; answers whether nobody has before.
    pub(crate) async fn take_tick(
        &mut self,
        schedule: &str,
        tick: DateTime<Utc>,
    ) -> Result<bool, StoreError> {
        let open = self.open_mut();
        open.begin()?;
        let outcome = open.sql.take_tick(schedule, tick).await;
        open.noted("a tick", outcome)
    }

    /// Ends an attempt of a worker elsewhere: see [`Towpath::answer_task`](crate::Towpath::answer_task).
    pub async fn answer_task(
        &mut self,
        task_id: TaskId,
        epoch: Option<u64>,
        worker: &str,
        outcome: &Result<Answer, HandlerError>,
    ) -> Result<Task, TaskError> {
        let mut task = self.task(task_id).await?.ok_or(TaskError::Unknown(task_id))?;
        let status = task.status;
        let registry = self.open().bus.registry.clone();
        let of = registry.task_type(task.task.task_type.as_str()).filter(|of| !is_our_own(of.name()));
        let of = of.ok_or_else(|| TaskError::UnknownType(task.task.task_type.to_string()))?;
        match epoch {
            Some(epoch) if epoch == task.epoch && status == TaskState::Running => {}
            Some(epoch) if epoch == task.epoch && is_said_again(&task, outcome) => return Ok(task),
            Some(_) => return Err(TaskError::Lost { task_id, status }),
            None if status == TaskState::Pending && outcome.is_err() => {
                return Err(TaskError::NotQueued { task_id, status });
            }
            None => {
                task =
                    self.claim_task(task_id, worker).await?.ok_or(TaskError::NotQueued { task_id, status })?
            }
        }
        let end = match outcome {
            Ok(answer) => answer.0.clone(),
            // What was done is done; what would be tried again is not.
            Err(_) if task.cancel_requested_at.is_some() => TaskEnd::Canceled,
            Err(error) => after(of, &task, error),
        };
        let (reason, now) = (task.status_reason.as_deref(), self.open().bus.clock.now());
        if let Some(append) = facts::ended(of, (&task, reason), &end, now)? {
            self.append(&append).await?;
        }
        let ending = TaskEnding { claim: task.claim(), end };
        let open = self.open_mut();
        open.begin()?;
        let outcome = open.sql.end_tasks(std::slice::from_ref(&ending)).await;
        open.noted("a task", outcome)?;
        if !ending.end.is_final() {
            open.committed.and(Committed::task(Some(now)));
        }
        let ended = self.task(task_id).await?.ok_or(TaskError::Unknown(task_id))?;
        let counted = match ended.status {
            TaskState::Pending => "retried",
            status => status.as_str(),
        };
        let attempt = Committed::attempt(ended.task.task_type.to_string(), counted);
        self.open_mut().committed.and(attempt);
        Ok(ended)
    }

    /// Lets a task be taken again: see [`Towpath::retry_task`](crate::Towpath::retry_task).
    pub async fn retry_task(&mut self, task_id: TaskId) -> Result<TaskRetry, StoreError> {
        let open = self.open_mut();
        open.begin()?;
        let outcome = open.sql.retry_task(task_id).await;
        let retry = open.noted("a task", outcome)?;
        if retry == TaskRetry::Queued {
            open.committed.and(Committed::task(None));
        }
        Ok(retry)
    }

    /// One task, as it is in this transaction. Nobody else changes it before this ends.
    pub async fn task(&mut self, task_id: TaskId) -> Result<Option<Task>, StoreError> {
        let open = self.open_mut();
        open.begin()?;
        let outcome = open.sql.lock_task(task_id).await;
        open.noted("a task", outcome)
    }

    async fn claim_task(&mut self, task_id: TaskId, worker: &str) -> Result<Option<Task>, StoreError> {
        let open = self.open_mut();
        open.begin()?;
        let outcome = open.sql.claim_task(task_id, worker).await;
        open.noted("a task", outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_tasks_are_in_the_order_of_the_databases_time_and_of_their_start() {
        let moment = |millis: i64| DateTime::from_timestamp_millis(1_700_000_000_000 + millis).unwrap();
        let mut ids: Vec<TaskId> = (0..1000).map(|_| new_id(moment(0))).collect();
        ids.push(new_id(moment(1)));
        assert!(ids.is_sorted_by(|one, next| one.0 < next.0), "each is behind the one before");
        assert!(new_id(moment(-1)).0 < ids[0].0, "after a clock that was set back, too");
        let told = ids[0].0.get_timestamp().map(|told| told.to_unix().0);
        assert_eq!((ids[0].0.get_version_num(), told), (7, Some(1_700_000_000)));
    }
}
