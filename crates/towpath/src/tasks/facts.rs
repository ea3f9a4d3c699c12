//! The beginning and the end of a task as facts: of an aggregate with the task's id, in the task's flow.

use chrono::{DateTime, Utc};
use towpath_core::envelope::ChangeContext;
use towpath_core::ids::{AggregateKey, EventId, TaskId};
use towpath_core::name::EventName;
use towpath_core::payload::Payload;
use towpath_core::ports::store::{
    Append, DeadlineChange, Expected, NewEvent, NewTask, Routing, StoreError, Task, TaskEnd,
};
use towpath_core::task::{TaskFact, TaskSaid, TaskType};
use uuid::Uuid;

use crate::tx::invalid;

/// The aggregates that tasks with facts are: one each.
pub const TASK_KIND: &str = "task";

/// How many characters of a code are kept, as in the task's row.
pub(super) const MOST_OF_A_CODE: usize = 128;

/// How many characters of a text for people are kept, as in the task's row.
pub(super) const MOST_OF_A_MESSAGE: usize = 4000;

/// A text that a worker gave, which may be of any length.
pub(super) fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// The fact that a task was started.
pub(crate) fn requested(
    task: &NewTask,
    (event_id, name): (EventId, EventName),
    context: ChangeContext,
) -> Result<Append, StoreError> {
    let said = TaskSaid { payload: Some(&task.payload), ..TaskSaid::of(task) };
    append(task.task_id, Expected::New, (event_id, name), &said, context)
}

/// The fact that a task ended so, if it is one. Why it was called off while it ran, only its row knows.
pub(crate) fn ended(
    declared: &TaskType,
    (task, called_off_for): (&Task, Option<&str>),
    end: &TaskEnd,
    now: DateTime<Utc>,
) -> Result<Option<Append>, StoreError> {
    let Some(name) = TaskFact::of(end).and_then(|fact| declared.event_type(fact)) else { return Ok(None) };
    let retry_count = Some(task.retry_count);
    let plain = TaskSaid::of(&task.task);
    let because = |reason: &str, message: Option<&String>| {
        (Some(cut(reason, MOST_OF_A_CODE)), message.map(|message| cut(message, MOST_OF_A_MESSAGE)))
    };
    let said = match end {
        TaskEnd::Succeeded { result } => TaskSaid { result: result.as_ref(), ..plain },
        TaskEnd::Skipped { reason, message } => {
            let (reason, message) = because(reason, message.as_ref());
            TaskSaid { reason, message, ..plain }
        }
        TaskEnd::Failed { error_code, error_message, .. } => {
            let (reason, message) = because(error_code, Some(error_message));
            TaskSaid { reason, message, retry_count, ..plain }
        }
        TaskEnd::TimedOut { error_message, .. } => {
            let (reason, message) = because(TaskEnd::TIME_LIMIT, Some(error_message));
            TaskSaid { reason, message, retry_count, ..plain }
        }
        TaskEnd::Canceled | TaskEnd::GivenBack => {
            TaskSaid { reason: called_off_for.map(|reason| cut(reason, MOST_OF_A_CODE)), ..plain }
        }
    };
    let mut context = ChangeContext::new(now, task.task.correlation_id.clone());
    context.causation_id.clone_from(&task.task.causation_id);
    context.trace_id.clone_from(&task.task.trace_id);
    append(task.task.task_id, Expected::Any, (EventId(Uuid::now_v7()), name), &said, context).map(Some)
}

fn append(
    task_id: TaskId,
    expected: Expected,
    (event_id, event_type): (EventId, EventName),
    said: &TaskSaid<&Payload>,
    context: ChangeContext,
) -> Result<Append, StoreError> {
    let payload = Payload::from_value(said).map_err(|error| invalid("invalid-payload", error.into()))?;
    Ok(Append {
        aggregate: AggregateKey::from_stored(TASK_KIND, task_id.to_string()),
        expected,
        events: vec![NewEvent {
            event_id,
            event_type,
            schema_version: 1,
            payload,
            channels: Routing::ByType,
        }],
        snapshot: None,
        state_changes: Vec::new(),
        deadline: DeadlineChange::default(),
        context,
    })
}
