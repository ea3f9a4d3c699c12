//! Tasks over HTTP: what they are at, trying again and calling off. `task_workers` has what workers ask.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::ids::{
    AggregateKey, AggregateKind, CausationId, CorrelationId, TaskId, TaskKey, TaskTypeName, TraceId,
};
use towpath::lifecycle::TaskState;
use towpath::ports::operations::OperationAnswer;
use towpath::{
    Canceling, Payload, TASK_KIND, Task, TaskError, TaskFilter, TaskPlace, TaskRetry, Towpath, Tx,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::App;
use super::access::Caller;
use super::extract::{JsonBody, Path, Query, SoughtText};
use super::operations::of_answer;
use super::problem::Problem;
use super::range::{limit, next, usually};
use super::wire::{Aggregate, Sight, one_of};

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(retry))
        .routes(routes!(cancel))
}

/// Which tasks.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TaskQuery {
    /// Only those that are at this.
    #[param(schema_with = task_status)]
    state: Option<TaskState>,
    /// Only those of this type.
    #[serde(rename = "type")]
    task_type: Option<String>,
    /// Only those for an aggregate of this kind; with `subjectId`.
    subject_kind: Option<String>,
    /// Only those for this aggregate; with `subjectKind`.
    subject_id: Option<String>,
    /// Only what is behind this: the `next` of the page before.
    after: Option<String>,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "limit")]
    #[param(required = false, minimum = 1, maximum = 1000)]
    limit: u32,
}

/// What a task can be at.
fn task_status() -> utoipa::openapi::schema::Object {
    one_of(TaskState::ALL.iter().map(|status| status.as_str()))
}

/// Tasks, the last first
///
/// In a state by when they came into it, otherwise by when they were started. Without payloads and results. `next` is what to
/// give as `after` to read on; it is missing on the last page.
#[utoipa::path(
    get,
    path = "/api/tasks",
    tag = "tasks",
    operation_id = "listTasks",
    params(TaskQuery),
    responses(
        (status = 200, description = "The tasks.", body = TaskPage),
        (status = 404, description = "There is no such page."),
        (status = 422, description = "One of subjectKind and subjectId is missing."),
    )
)]
async fn list(State(app): State<Towpath>, Query(which): Query<TaskQuery>) -> Result<Response, Problem> {
    let after = which.after.as_deref().map(place).transpose()?;
    let subject = match (which.subject_kind, which.subject_id) {
        (None, None) => Ok(None),
        (Some(kind), Some(id)) => AggregateKey::new(kind, id).map(Some),
        _ => {
            let (title, detail) = ("subjectKind and subjectId go together", "Send both of them, or none.");
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-id", title, detail));
        }
    };
    // What nothing can be called has no tasks.
    let (Ok(subject), Ok(task_type)) = (subject, which.task_type.map(TaskTypeName::new).transpose()) else {
        return Ok(Json(TaskPage { tasks: Vec::new(), next: None }).into_response());
    };
    let filter = TaskFilter { status: which.state, task_type, subject };
    let tasks = app.tasks(&filter, after.as_ref(), which.limit).await?;
    let next = next(&tasks, which.limit, place_text);
    Ok(Json(TaskPage { tasks: tasks.iter().map(TaskBody::listed).collect(), next }).into_response())
}

/// A page's end, as `after` has it: when the last task's status changed, and which it is.
fn place_text(task: &Task) -> String {
    let place = task.place();
    format!("{}.{}", place.status_changed_at.timestamp_micros(), place.task_id)
}

fn place(text: &str) -> Result<TaskPlace, Problem> {
    let read = || {
        let (micros, id) = text.split_once('.')?;
        let status_changed_at = DateTime::from_timestamp_micros(micros.parse().ok()?)?;
        Some(TaskPlace { status_changed_at, task_id: TaskId(Uuid::parse_str(id).ok()?) })
    };
    read().ok_or_else(|| Problem::not_found(format!("no page ends with {text:?}")))
}

/// A task, and where it is
#[utoipa::path(
    get,
    path = "/api/tasks/{id}",
    tag = "tasks",
    operation_id = "showTask",
    params(("id" = String, Path, description = "The task's id.")),
    responses(
        (status = 200, description = "The task.", body = TaskBody),
        (status = 404, description = "There is no such task."),
    )
)]
async fn show(
    State(app): State<Towpath>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let task = task(&app, task_id(&id)?).await?;
    Ok(Json(TaskBody::seen(&task, &Sight::of(&app, caller.role))).into_response())
}

/// Lets a task be taken again
///
/// One that failed, took too long or was called off: for what is left of its policy, and once at least.
#[utoipa::path(
    post,
    path = "/api/tasks/{id}/retry",
    tag = "tasks",
    operation_id = "retryTask",
    params(("id" = String, Path, description = "The task's id.")),
    responses(
        (status = 200, description = "It may be taken; this is the task now.", body = TaskBody),
        (status = 404, description = "There is no such task."),
        (status = 409, description = "It has not failed and was not called off, or another open task has its key."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
    )
)]
pub(crate) async fn retry(
    State(app): State<Towpath>,
    _: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let task_id = task_id(&id)?;
    let retried = app.transact(async |mut tx| match tx.retry_task(task_id).await? {
        TaskRetry::Queued => answered_after(&mut tx, task_id).await,
        TaskRetry::Unknown => Err(TaskError::Unknown(task_id).into()),
        TaskRetry::Not(status) => {
            let title = format!("task {task_id} is {status}");
            let detail = "Only one that failed, took too long or was called off can be tried again.";
            Err(Problem::new(StatusCode::CONFLICT, "task-not-failed", title, detail))
        }
        TaskRetry::KeyTaken => {
            let title = format!("another task with the key of {task_id} is open");
            let detail = "Wait until that one has ended; there is one open task of a key.";
            Err(Problem::new(StatusCode::CONFLICT, "task-key-taken", title, detail))
        }
    });
    Ok(of_answer(retried.await?))
}

/// Why a task is called off.
#[derive(Deserialize, ToSchema)]
#[schema(as = CancelAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CancelAsked {
    /// A stable code.
    #[schema(value_type = String, min_length = 1, max_length = 128)]
    reason: SoughtText,
}

/// Calls a task off
///
/// One that waits at once; one that runs when its worker hears of it, at its next heartbeat: until then `cancelRequestedAt` says so.
#[utoipa::path(
    post,
    path = "/api/tasks/{id}/cancel",
    tag = "tasks",
    operation_id = "cancelTask",
    params(("id" = String, Path, description = "The task's id.")),
    request_body = CancelAsked,
    responses(
        (status = 200, description = "It is called off, or its worker is asked; this is the task now.", body = TaskBody),
        (status = 404, description = "There is no such task."),
        (status = 409, description = "It has ended."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "There is no reason, or it is no code."),
    )
)]
async fn cancel(
    State(app): State<Towpath>,
    Path(id): Path<String>,
    JsonBody(asked): JsonBody<CancelAsked>,
) -> Result<Response, Problem> {
    let task_id = task_id(&id)?;
    if asked.reason.0.trim().is_empty() {
        let (title, detail) =
            ("a task is called off for a reason", "Send a stable code, such as not-wanted.");
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "reason-missing", title, detail));
    }
    let reason = &code_of("reason", asked.reason)?;
    let canceled = app.transact(async |mut tx| match tx.cancel_task(task_id, reason).await? {
        Canceling::Done(_) | Canceling::Asked => answered_after(&mut tx, task_id).await,
        Canceling::Unknown => Err(TaskError::Unknown(task_id).into()),
        Canceling::Ended(status) => {
            let title = format!("task {task_id} is {status}");
            let detail = "Only one that waits or runs can be called off.";
            Err(Problem::new(StatusCode::CONFLICT, "task-ended", title, detail))
        }
    });
    Ok(of_answer(canceled.await?))
}

async fn answered_after(tx: &mut Tx, task_id: TaskId) -> Result<OperationAnswer, Problem> {
    let task = tx.task(task_id).await?.ok_or(TaskError::Unknown(task_id))?;
    answered(tx, &task).await
}

/// What a change of a task is answered with: the task, without payload and result, which may be large. It is written in the
/// change's own transaction, so that who asks again has it, and no second change.
pub(super) async fn answered(tx: &mut Tx, task: &Task) -> Result<OperationAnswer, Problem> {
    let body = serde_json::to_vec(&TaskBody::listed(task)).map_err(|error| Problem::internal(&error))?;
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    let answer = OperationAnswer { status: StatusCode::OK.as_u16(), headers, body };
    tx.answer(&answer).await?;
    Ok(answer)
}

/// A stable code in this field.
pub(super) fn code_of(field: &str, text: SoughtText) -> Result<String, Problem> {
    match text.0.chars().count() {
        1..=128 if !text.0.trim().is_empty() => Ok(text.0),
        _ => {
            let title = format!("{field} is no code: it has 1 to 128 characters");
            let detail = "Send a stable code; what is for people goes into a message.";
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-payload", title, detail))
        }
    }
}

async fn task(app: &Towpath, task_id: TaskId) -> Result<Task, Problem> {
    Ok(app.task(task_id).await?.ok_or(TaskError::Unknown(task_id))?)
}

/// Reads an id in a path. Nothing can have one that is none.
pub(crate) fn task_id(text: &str) -> Result<TaskId, Problem> {
    let id = Uuid::parse_str(text).map_err(|_| Problem::not_found(format!("there is no task {text:?}")))?;
    Ok(TaskId(id))
}

/// Tasks, the last first.
#[derive(Serialize, ToSchema)]
#[schema(as = Tasks)]
struct TaskPage<'a> {
    tasks: Vec<TaskBody<'a>>,
    /// What to give as `after` to read on; nothing on the last page.
    next: Option<String>,
}

/// A task, and where it is.
#[derive(Serialize, ToSchema)]
#[schema(as = Task)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TaskBody<'a> {
    #[schema(value_type = Uuid)]
    task_id: TaskId,
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    task_type: &'a TaskTypeName,
    #[schema(schema_with = task_status)]
    status: TaskState,
    status_changed_at: DateTime<Utc>,
    /// Why: a stable code.
    status_reason: Option<&'a str>,
    /// Why: a text for people.
    status_message: Option<&'a str>,
    /// What it is for.
    subject: Option<Aggregate<'a>>,
    /// While it is open, no other task of its type has this key.
    #[schema(value_type = Option<String>)]
    unique_key: Option<&'a TaskKey>,
    /// Higher ones are taken first.
    priority: i64,
    /// It waits until then.
    not_before: Option<DateTime<Utc>>,
    created_at: DateTime<Utc>,
    /// When the last attempt began.
    started_at: Option<DateTime<Utc>>,
    finished_at: Option<DateTime<Utc>>,
    /// When it failed last.
    failed_at: Option<DateTime<Utc>>,
    /// Of the last failure: a stable code.
    error_code: Option<&'a str>,
    /// Of the last failure: a text for people.
    error_message: Option<&'a str>,
    /// How often it was tried again.
    retry_count: u64,
    /// How often it was taken.
    epoch: u64,
    /// Who has it.
    worker: Option<&'a str>,
    /// Until when its worker must say that it lives.
    heartbeat_due_at: Option<DateTime<Utc>>,
    /// Until when its attempt must end.
    attempt_due_at: Option<DateTime<Utc>>,
    /// When it was called off while it ran.
    cancel_requested_at: Option<DateTime<Utc>>,
    #[schema(value_type = String)]
    correlation_id: &'a CorrelationId,
    #[schema(value_type = Option<String>)]
    causation_id: Option<&'a CausationId>,
    #[schema(value_type = Option<String>)]
    trace_id: Option<&'a TraceId>,
    /// What the worker needs to know; null in listings, and where it is withheld.
    #[schema(value_type = Value)]
    payload: Option<&'a Payload>,
    /// What it came to; null in listings, and where it is withheld.
    #[schema(value_type = Value)]
    result: Option<&'a Payload>,
    /// True where payload and result are not for viewers, and a viewer asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_withheld: Option<bool>,
}

impl<'a> TaskBody<'a> {
    /// As this caller sees it. What is for a confidential aggregate is confidential, too.
    pub(crate) fn seen(task: &'a Task, sight: &Sight) -> Self {
        let of_tasks = sight.withholds(&AggregateKind::from_stored(TASK_KIND));
        let subject = task.task.subject.as_ref();
        match of_tasks.or_else(|| sight.withholds(&subject?.kind)) {
            None => {
                Self { payload: Some(&task.task.payload), result: task.result.as_ref(), ..Self::listed(task) }
            }
            withheld => Self { payload_withheld: withheld, ..Self::listed(task) },
        }
    }

    /// Without payload and result.
    pub(crate) fn listed(task: &'a Task) -> Self {
        Self {
            task_id: task.task.task_id,
            task_type: &task.task.task_type,
            status: task.status,
            status_changed_at: task.status_changed_at,
            status_reason: task.status_reason.as_deref(),
            status_message: task.status_message.as_deref(),
            subject: task.task.subject.as_ref().map(Aggregate::from),
            unique_key: task.task.unique_key.as_ref(),
            priority: task.task.priority,
            not_before: task.task.not_before,
            created_at: task.created_at,
            started_at: task.started_at,
            finished_at: task.finished_at,
            failed_at: task.failed_at,
            error_code: task.error_code.as_deref(),
            error_message: task.error_message.as_deref(),
            retry_count: task.retry_count,
            epoch: task.epoch,
            worker: task.worker.as_deref(),
            heartbeat_due_at: task.heartbeat_due_at,
            attempt_due_at: task.attempt_due_at,
            cancel_requested_at: task.cancel_requested_at,
            correlation_id: &task.task.correlation_id,
            causation_id: task.task.causation_id.as_ref(),
            trace_id: task.task.trace_id.as_ref(),
            payload: None,
            result: None,
            payload_withheld: None,
        }
    }
}
