//! What workers outside of the process ask: tasks to do, to be heard, and to answer.
//!
//! Taking and being heard are no changes to be recorded as facts, and are not done once per key: a worker does them all the time,
//! and what it took and lost track of is taken over from it.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use towpath::ids::{InstanceId, TaskId};
use towpath::ports::store::CLAIMED_BYTES;
use towpath::retry::duration_text;
use towpath::{Answer, HandlerError, Payload, Task, TaskClaim, Towpath};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::access::Caller;
use super::extract::{JsonBody, Path, SoughtText};
use super::memory::Memory;
use super::operations::of_answer;
use super::problem::Problem;
use super::range::whole_number;
use super::tasks::{TaskBody, answered, code_of, task_id};
use super::wire::Sight;

/// How long it is waited for a task at most, where a request may take so long.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How many types a worker can name.
const MOST_TYPES: usize = 64;

/// How many tasks are taken at most.
const MOST_TASKS: u32 = 100;

/// Paths that workers ask all the time.
pub(super) const ASKED_ALL_THE_TIME: [&str; 2] = ["/api/tasks/claim", "/api/tasks/{id}/heartbeat"];

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(claim))
        .routes(routes!(heartbeat))
        .routes(routes!(result))
        .routes(routes!(failure))
}

/// What a worker can do.
#[derive(Deserialize, ToSchema)]
#[schema(as = ClaimAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClaimAsked {
    /// Tasks of these types; of the first ones first.
    #[schema(min_items = 1, max_items = 64)]
    types: Vec<String>,
    /// Who it is, for those who look at the task.
    #[schema(min_length = 1, max_length = 64)]
    worker: String,
    /// At most so many; 1 if nothing is said.
    #[serde(default, deserialize_with = "whole_number")]
    #[schema(minimum = 1, maximum = 100)]
    limit: Option<u64>,
    /// How long to wait for one: `20s`, and 30 seconds at most (less, where a request may not take so long). Not at all, if
    /// nothing is said.
    #[serde(default, with = "duration_text")]
    #[schema(value_type = String, example = "20s", pattern = "^[0-9]{1,2}s$")]
    wait: Duration,
}

/// Takes tasks
///
/// Waits for one if there is none. Each is the worker's until it has been silent for too long: say that it lives every
/// `heartbeatMillis`, and answer with its `token`.
#[utoipa::path(
    post,
    path = "/api/tasks/claim",
    tag = "tasks",
    operation_id = "claimTasks",
    request_body = ClaimAsked,
    responses(
        (status = 200, description = "The tasks; none, if there was none in time.", body = Claimed),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "There is no such type of task here, or nobody can have that name."),
    )
)]
async fn claim(
    State(app): State<App>,
    caller: Caller,
    memory: Memory,
    JsonBody(asked): JsonBody<ClaimAsked>,
) -> Result<Response, Problem> {
    let limit = u32::try_from(asked.limit.unwrap_or(1)).unwrap_or(u32::MAX);
    if asked.types.is_empty() || asked.types.len() > MOST_TYPES || !(1..=MOST_TASKS).contains(&limit) {
        let title = "the body does not fit: types has 1 to 64 names, and limit is 1 to 100";
        return Err(Problem::malformed(title, "GET /docs shows what is expected here."));
    }
    let types: Vec<&str> = asked.types.iter().map(String::as_str).collect();
    // What is found at the end still has to be taken and sent.
    let longest = LONGEST_WAIT.min(app.limits.settings.request_timeout * 4 / 5);
    let wait = asked.wait.min(longest);
    // Before it is taken there is room for it: as it is read, and as it is written.
    let room = || {
        let memory = memory.clone();
        async move { memory.room(2 * CLAIMED_BYTES).await }
    };
    let taken = app.towpath.claim_tasks_when(&types, &asked.worker, limit, wait, room).await?;
    let Some((room, tasks)) = taken else { return Ok(Json(Claimed { tasks: Vec::new() }).into_response()) };
    let sight = Sight::of(&app.towpath, caller.role);
    room.json(&Claimed { tasks: tasks.iter().map(|task| ClaimedTask::seen(task, &sight)).collect() })
}

/// Tasks that were taken.
#[derive(Serialize, ToSchema)]
#[schema(as = ClaimedTasks)]
struct Claimed<'a> {
    tasks: Vec<ClaimedTask<'a>>,
}

/// A task that was taken.
#[derive(Serialize, ToSchema)]
#[schema(as = ClaimedTask)]
#[serde(rename_all = "camelCase")]
struct ClaimedTask<'a> {
    /// Under what the worker has it.
    token: String,
    /// How often to say that it lives: three times before it would be taken over.
    heartbeat_millis: u64,
    task: TaskBody<'a>,
}

impl<'a> ClaimedTask<'a> {
    fn seen(task: &'a Task, sight: &Sight) -> Self {
        let heartbeat_millis = u64::try_from(task.task.heartbeat.as_millis() / 3).unwrap_or(u64::MAX);
        Self { token: token_of(task.claim()), heartbeat_millis, task: TaskBody::seen(task, sight) }
    }
}

/// Under what a worker has a task.
#[derive(Deserialize, ToSchema)]
#[schema(as = HeartbeatAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HeartbeatAsked {
    /// From when it was taken.
    #[schema(min_length = 1, max_length = 20)]
    token: String,
}

/// What a worker that lives is told.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Heard {
    /// Whether its task is called off: then it need not go on, and a failure ends it.
    is_canceled: bool,
}

/// Says that the worker of a task lives
#[utoipa::path(
    post,
    path = "/api/tasks/{id}/heartbeat",
    tag = "tasks",
    operation_id = "beatTask",
    params(("id" = String, Path, description = "The task's id.")),
    request_body = HeartbeatAsked,
    responses(
        (status = 200, description = "It has the task for another while.", body = Heard),
        (status = 404, description = "There is no such task."),
        (status = 409, description = "The task is somebody else's by now, or has ended."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
    )
)]
async fn heartbeat(
    State(app): State<Towpath>,
    Path(id): Path<String>,
    JsonBody(asked): JsonBody<HeartbeatAsked>,
) -> Result<Response, Problem> {
    let task_id = task_id(&id)?;
    let claim = TaskClaim { task_id, epoch: epoch(task_id, &asked.token) };
    let is_canceled = app.beat_task(claim).await?;
    Ok(Json(Heard { is_canceled }).into_response())
}

/// What came of a task.
#[derive(Deserialize, ToSchema)]
#[schema(as = ResultAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ResultAsked {
    /// From when it was taken; without, nobody else may have it.
    #[schema(min_length = 1, max_length = 20)]
    token: Option<String>,
    #[schema(value_type = Option<Value>)]
    result: Option<Box<RawValue>>,
}

/// Answers a task
///
/// With the token under which it was taken: if it is still so. Without: if nobody has it; it is taken and ended in one step, and
/// the first answer wins.
#[utoipa::path(
    post,
    path = "/api/tasks/{id}/result",
    tag = "tasks",
    operation_id = "answerTask",
    params(("id" = String, Path, description = "The task's id.")),
    request_body = ResultAsked,
    responses(
        (status = 200, description = "It has ended; this is the task now.", body = TaskBody),
        (status = 404, description = "There is no such task."),
        (status = 409, description = "It is somebody else's by now, or has ended."),
        (status = 413, description = "The result is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "The result cannot be stored, or its type of task is not known here."),
    )
)]
async fn result(
    State(app): State<Towpath>,
    caller: Caller,
    Path(id): Path<String>,
    JsonBody(asked): JsonBody<ResultAsked>,
) -> Result<Response, Problem> {
    asked.answer(&app, &caller, &id).await
}

impl ResultAsked {
    /// This came of it.
    pub(crate) fn of(token: Option<String>, result: Box<RawValue>) -> Self {
        Self { token, result: Some(result) }
    }

    /// Ends the task; answers with it. For paths of applications, too.
    pub(crate) async fn answer(self, app: &Towpath, caller: &Caller, id: &str) -> Result<Response, Problem> {
        let answer = match self.result {
            None => Answer::done(),
            Some(result) => {
                let unusable = |error: &dyn std::error::Error| {
                    let detail = "Correct what the title names and send it again.";
                    let title = error.to_string();
                    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-payload", title, detail)
                };
                Answer::with(Payload::from_text(result.get()).map_err(|error| unusable(&error))?)
            }
        };
        end(app, caller, id, self.token, Ok(answer)).await
    }
}

/// Why an attempt failed. What else a worker says of it is passed over: that it failed counts.
#[derive(Deserialize, ToSchema)]
#[schema(as = FailureAsked)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FailureAsked {
    /// From when it was taken; without, nobody else may have it.
    #[schema(min_length = 1, max_length = 20)]
    token: Option<String>,
    /// A stable code; `worker-failed`, if nothing is said.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 128)]
    code: Option<SoughtText>,
    /// A text for people, of which 4,000 characters are kept.
    #[schema(value_type = Option<String>)]
    message: Option<SoughtText>,
    /// False, if it would be the same the next time.
    #[serde(default = "yes")]
    retry: bool,
}

fn yes() -> bool {
    true
}

/// Says that an attempt at a task failed
///
/// It is tried again as its type's policy says. Tokens are as for a result.
#[utoipa::path(
    post,
    path = "/api/tasks/{id}/failure",
    tag = "tasks",
    operation_id = "failTask",
    params(("id" = String, Path, description = "The task's id.")),
    request_body = FailureAsked,
    responses(
        (status = 200, description = "It is tried again or has failed; this is the task now.", body = TaskBody),
        (status = 404, description = "There is no such task."),
        (status = 409, description = "It is somebody else's by now, or has ended."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "The code is none, or its type of task is not known here."),
    )
)]
async fn failure(
    State(app): State<Towpath>,
    caller: Caller,
    Path(id): Path<String>,
    JsonBody(asked): JsonBody<FailureAsked>,
) -> Result<Response, Problem> {
    asked.answer(&app, &caller, &id).await
}

impl FailureAsked {
    /// Ends the attempt; answers with the task. For paths of applications, too.
    pub(crate) async fn answer(self, app: &Towpath, caller: &Caller, id: &str) -> Result<Response, Problem> {
        let message = self.message.map(String::from).unwrap_or_default();
        let code = self.code.map_or_else(|| Ok("worker-failed".to_owned()), |code| code_of("code", code))?;
        let error = match self.retry {
            true => HandlerError::transient(code, message),
            false => HandlerError::unrecoverable(code, message),
        };
        end(app, caller, id, self.token, Err(error)).await
    }
}

async fn end(
    app: &Towpath,
    caller: &Caller,
    id: &str,
    token: Option<String>,
    outcome: Result<Answer, HandlerError>,
) -> Result<Response, Problem> {
    // Who has not taken it is known by the name of the caller, where that can be a worker's.
    let name = caller.name.as_str();
    let worker = if InstanceId::new(name).is_ok() { name } else { "http" };
    let task_id = task_id(id)?;
    let epoch = token.map(|token| epoch(task_id, &token));
    let outcome = &outcome;
    let answer = app.transact(async |mut tx| {
        let task = tx.answer_task(task_id, epoch, worker, outcome).await?;
        answered(&mut tx, &task).await
    });
    Ok(of_answer(answer.await?))
}

/// Under what a worker has a task, for the worker. It has a part of the task's id, so that it fits no other task.
fn token_of(claim: TaskClaim) -> String {
    format!("{}.{}", claim.epoch, tail_of(claim.task_id))
}

/// The epoch in a token of this task. No task is in that of a token that is none, or another's.
fn epoch(task_id: TaskId, token: &str) -> u64 {
    let epoch = token.split_once('.').filter(|(_, tail)| *tail == tail_of(task_id));
    epoch.and_then(|(epoch, _)| epoch.parse().ok()).unwrap_or(i64::MAX.unsigned_abs())
}

/// The end of an id, which differs: its beginning is a time.
fn tail_of(task_id: TaskId) -> String {
    let [.., a, b, c, d] = *task_id.0.as_bytes();
    format!("{:08x}", u32::from_be_bytes([a, b, c, d]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_of_one_task() {
        let [one, other] = [1, 2].map(|number| TaskId(uuid::Uuid::from_u128(number)));
        let token = token_of(TaskClaim { task_id: one, epoch: 7 });
        assert_eq!(token, "7.00000001");
        assert_eq!(epoch(one, &token), 7);
        for (task_id, token) in [(other, token.as_str()), (one, "7"), (one, ""), (one, "x.00000001")] {
            assert_eq!(epoch(task_id, token), i64::MAX.unsigned_abs(), "{token}");
        }
    }
}
