//! Tasks: durable work that is started in a transaction and done by a worker, here or in another process.
//!
//! Reading order: this file has what an application writes; `facts` what becomes of a task's beginning and end; `engine` takes
//! tasks and does them; `keeper` says that it lives, and writes how they ended; `elsewhere` is for workers in no process of ours, and
//! `waking` tells all of them that there is something to take; `cron` starts tasks by the calendar.

mod cron;
mod elsewhere;
mod engine;
pub(crate) mod facts;
mod keeper;
mod waking;

use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_core::ids::TaskId;
use towpath_core::payload::{InvalidPayload, Payload};
use towpath_core::ports::store::{StoreError, Task, TaskEnd, TaskFilter, TaskPlace, TaskRetry};
use towpath_core::task::TaskType;

use crate::consumer::HandlerError;
use crate::towpath::Towpath;

pub(crate) use cron::{Schedule, keep_schedules};
pub use elsewhere::TaskError;
pub(crate) use elsewhere::{is_our_own, is_said_again};
pub(crate) use engine::{Engine, after, work};
pub use facts::TASK_KIND;
pub(crate) use keeper::keep;
pub(crate) use waking::TaskWake;
pub use waking::waiting_by_leave;

/// Does tasks of one type.
///
/// ```no_run
/// # use towpath::{Answer, Attempt, HandlerError, TaskType, Towpath, Worker};
/// struct Outliner;
///
/// impl Worker for Outliner {
///     fn task(&self) -> TaskType {
///         TaskType::named("Outliner.Concept")
///     }
///
///     async fn run(&self, attempt: Attempt) -> Result<Answer, HandlerError> {
///         let seed: String = attempt.read()?;
///         Answer::of(&format!("A story of {seed}."))
///     }
/// }
///
/// let builder = Towpath::builder().worker(Outliner, 4);
/// ```
///
/// # Guarantees
/// A task is with one worker at a time. What a worker answers is written if the task is still its own; one that was silent for
/// too long, or whose process was stopped and goes on, cannot answer for the one that took over.
///
/// # Caveats
/// Only the answer is fenced: all else that an attempt does, also in the database, may happen again, and beside the attempt that took over. It is
/// dropped where it waits when its task is called off, took too long or is somebody else's by now.
pub trait Worker: Send + Sync + 'static {
    /// What it does: the same whenever it is asked.
    fn task(&self) -> TaskType;

    /// Does one. An error is tried again as the type's policy says; a panic is an error.
    fn run(&self, attempt: Attempt) -> impl Future<Output = Result<Answer, HandlerError>> + Send;
}

/// One attempt at a task.
pub struct Attempt {
    /// The task.
    pub task: Task,
    /// Towpath, as an application has it. It cannot be stopped from here.
    pub app: Towpath,
}

impl Attempt {
    /// The payload of the task.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, InvalidPayload> {
        self.task.task.payload.read(std::any::type_name::<T>())
    }
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer(pub(crate) TaskEnd);

impl Answer {
    /// It is done, and this came of it.
    ///
    /// # Errors
    /// Unrecoverable: it cannot be written down.
    pub fn of(result: &(impl Serialize + ?Sized)) -> Result<Self, HandlerError> {
        let result = Payload::from_value(result).map_err(HandlerError::unrecoverable_source)?;
        Ok(Self(TaskEnd::Succeeded { result: Some(result) }))
    }

    /// The same with what came of it as it was written.
    pub fn with(result: Payload) -> Self {
        Self(TaskEnd::Succeeded { result: Some(result) })
    }

    /// It is done.
    pub fn done() -> Self {
        Self(TaskEnd::Succeeded { result: None })
    }

    /// It turned out not to be needed: a stable code.
    pub fn skipped(reason: impl Into<String>) -> Self {
        Self(TaskEnd::Skipped { reason: reason.into(), message: None })
    }
}

/// A worker whose type is erased, and how many tasks it does at a time.
#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) of: TaskType,
    pub(crate) concurrency: u32,
    run: Arc<dyn Fn(Attempt) -> BoxFuture<'static, Result<Answer, HandlerError>> + Send + Sync>,
}

impl Registered {
    pub(crate) fn new<W: Worker>(worker: W, concurrency: u32) -> Self {
        let (of, worker) = (worker.task(), Arc::new(worker));
        let run = Arc::new(move |attempt| {
            let worker = Arc::clone(&worker);
            async move { worker.run(attempt).await }.boxed()
        });
        Self { of, concurrency, run }
    }
}

impl Towpath {
    /// One task.
    pub async fn task(&self, task_id: TaskId) -> Result<Option<Task>, StoreError> {
        self.store().task(task_id).await
    }

    /// Tasks, the last first, without payloads and results; behind one of the page before.
    pub async fn tasks(
        &self,
        filter: &TaskFilter,
        after: Option<&TaskPlace>,
        limit: u32,
    ) -> Result<Vec<Task>, StoreError> {
        self.store().list_tasks(filter, after, limit).await
    }

    /// Lets a task be taken again that failed, took too long or was called off: for what is left of its policy, and once at least.
    ///
    /// # Errors
    /// `Nested` inside of a unit of work.
    pub async fn retry_task(&self, task_id: TaskId) -> Result<TaskRetry, StoreError> {
        self.transact(async |mut tx| tx.retry_task(task_id).await).await
    }
}
