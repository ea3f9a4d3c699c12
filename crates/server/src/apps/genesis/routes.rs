//! Genesis over HTTP: sessions, what is asked of them, and the work that they hand out.

use std::collections::HashMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use towpath::lifecycle::TaskState;
use towpath::retry::duration_text;
use towpath::{Payload, Receipt, Task, TaskError};
use towpath_genesis::draft::{Draft, text_of};
use towpath_genesis::session::{BranchCreated, Session, SessionCommand, SessionEvent, Start, Status};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::Serving;
use super::shown::{self, SessionBody, SessionLine, Work};
use crate::http::commands::Answer;
use crate::http::memory::Memory;
use crate::http::problem::AfterDone as _;
use crate::http::task_workers::{FailureAsked, ResultAsked};
use crate::http::tasks::{self, TaskBody, task_id};
use crate::http::wire::{Sight, one_of};
use crate::kit::{idempotency_key, page_limit, send_under_key, sent_under_key, usually};
use crate::{Caller, Path, Problem, Query, RawBody};

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<Serving> {
    OpenApiRouter::new()
        .routes(routes!(start, list))
        .routes(routes!(show))
        .routes(routes!(command))
        .routes(routes!(tasks_of))
        .routes(routes!(retry))
        .routes(routes!(waiting))
        .routes(routes!(result))
        .routes(routes!(failure))
}

/// What is known without a genesis that runs.
pub(super) fn routes_always() -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(event_types))
}

/// For how long it is waited for a branch to begin, and how often it is looked at.
const BEGINS_WITHIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How large a session may become, with all that is confirmed, asked for and branched.
const LARGEST_SESSION: u64 = 1 << 20;

/// How many tasks of a session are shown: the last ones.
const MOST_TASKS: u32 = 100;

/// A session to be started.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GenesisSessionAsked)]
struct SessionAsked {
    #[schema(min_length = 1, max_length = 128, example = "user-7")]
    user_id: String,
    /// What it begins with: a text, or fields that become one.
    #[schema(schema_with = shown::initial_input)]
    initial_input: InitialInput,
    /// What the user likes.
    #[schema(value_type = Option<Object>)]
    preferences: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum InitialInput {
    Text(String),
    Fields(Map<String, Value>),
}

/// Starts a session
#[utoipa::path(
    post, path = "/api/genesis/sessions", tag = "genesis", operation_id = "startSession",
    params(("Idempotency-Key" = Option<String>, Header, description = "The command's id: the same one again gives the same session.")),
    request_body = SessionAsked,
    responses(
        (status = 201, description = "It has begun.", body = SessionBody),
        (status = 200, description = "It has begun before, under the same key.", body = SessionBody),
        (status = 409, description = "The key was used for something else."),
        (status = 422, description = "A field cannot be used."),
    )
)]
async fn start(
    State(app): State<Serving>,
    caller: Caller,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, Problem> {
    let SessionAsked { user_id, initial_input, preferences } = read(&body)?;
    let initial_input = match initial_input {
        InitialInput::Text(text) => text,
        InitialInput::Fields(fields) => text_of(fields).unwrap_or_default(),
    };
    let (towpath, key) = (&app.towpath, idempotency_key(&headers)?);
    let earlier = match key {
        Some(key) => sent_under_key(towpath, &caller.name, key).await?,
        None => None,
    };
    let id =
        earlier.map_or_else(|| Uuid::now_v7().to_string(), |record| record.command.aggregate.id.to_string());
    let start = Start { user_id, initial_input, preferences, novel_id: Some(format!("novel-{id}")) };
    let command = || towpath.send::<Session>(&id, SessionCommand::Start(start.clone()));
    let receipt = send_under_key(towpath, &caller.name, key, command).await?;
    let status = if receipt.replayed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(app.shown(&id).await.after_it_was_done()?)).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Listing {
    /// The id of the last session of the page before.
    #[serde(default)]
    after: String,
    /// Only those of this user.
    user_id: Option<String>,
    /// Only those that are there.
    #[param(schema_with = shown::status)]
    status: Option<Status>,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "page_limit")]
    #[param(required = false, minimum = 1, maximum = 500)]
    limit: u32,
}

/// Sessions, by id.
#[derive(Serialize, ToSchema)]
#[schema(as = GenesisSessions)]
struct Sessions {
    sessions: Vec<SessionLine>,
    /// What to ask for after this page; none at the end.
    next: Option<String>,
}

/// Lists sessions
///
/// A moment behind their facts.
#[utoipa::path(
    get, path = "/api/genesis/sessions", tag = "genesis", operation_id = "listSessions",
    params(Listing), responses((status = 200, description = "A page.", body = Sessions))
)]
async fn list(State(app): State<Serving>, Query(listing): Query<Listing>) -> Result<Response, Problem> {
    let Listing { after, user_id, status, limit } = listing;
    // PostgreSQL has no text with a NUL in it, so nothing has such a name.
    if after.contains('\0') || user_id.as_ref().is_some_and(|user| user.contains('\0')) {
        return Err(Problem::malformed("a text must not have a NUL in it", "Correct what is asked for."));
    }
    let store = app.towpath.store();
    let page = app.genesis.sessions(store, &after, status, user_id.as_deref(), limit).await?;
    let next = page.next(|last| last.session_id.clone());
    Ok(Json(Sessions { sessions: page.map(SessionLine::of).rows, next }).into_response())
}

/// Shows a session
///
/// From its own facts, never behind: what is written, what is asked for, and what can be done now.
#[utoipa::path(
    get, path = "/api/genesis/sessions/{id}", tag = "genesis", operation_id = "showSession",
    params(("id" = String, Path, description = "The session's id.")),
    responses((status = 200, description = "As it is now.", body = SessionBody), (status = 404, description = "There is none."))
)]
async fn show(
    State(app): State<Serving>,
    memory: Memory,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    // As it is read, and as it is written.
    let room = memory.room(2 * LARGEST_SESSION).await?;
    room.json(&app.shown(&id).await?)
}

/// What is asked of a session.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GenesisCommandAsked)]
struct CommandAsked {
    /// The command's name, with or without `Command.Genesis.Session.`.
    #[serde(rename = "type")]
    #[schema(min_length = 1, example = "Theme.Request")]
    command_type: String,
    /// What the command's type wants; nothing is as good as `{}`.
    #[schema(value_type = Option<Object>)]
    payload: Option<Box<RawValue>>,
}

/// Asks something of a session
///
/// In the session's own flow. What is not possible now is refused, and the answer names what is.
#[utoipa::path(
    post, path = "/api/genesis/sessions/{id}/commands", tag = "genesis", operation_id = "commandSession",
    params(("id" = String, Path, description = "The session's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "The command's id.")),
    request_body = CommandAsked,
    responses(
        (status = 201, description = "It was decided and committed.", body = Answer),
        (status = 200, description = "It was decided before; this is the recorded answer.", body = Answer),
        (status = 403, description = "Only genesis' own parts send it."),
        (status = 404, description = "There is no such session."),
        (status = 409, description = "Not possible now; the answer says what is."),
        (status = 422, description = "There is no such command, or its payload cannot be used."),
    )
)]
async fn command(
    State(app): State<Serving>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, Problem> {
    let asked: CommandAsked = read(&body)?;
    let (towpath, key) = (&app.towpath, idempotency_key(&headers)?);
    let name = match asked.command_type.starts_with("Command.") {
        true => asked.command_type,
        false => format!("{}{}", SessionCommand::PREFIX, asked.command_type),
    };
    // Another aggregate's command would reach that under the session's id.
    if SessionCommand::action_of(&name).is_none() {
        let title = format!("a session has no command {name:?}");
        return Err(invalid(title, "GET the session: `possible` names what can be sent."));
    }
    let begun = app.genesis.fact(towpath, &id, 1).await?;
    let begun = begun.ok_or_else(|| may_change(no_session(&id)))?.envelope;
    let payload = asked.payload.as_deref().map_or("{}", RawValue::get);
    let command = || towpath.send_named(name.as_str(), &id, payload).because_of(&begun);
    let sent = send_under_key(towpath, &caller.name, key, command).await;
    let receipt = sent.map_err(|error| may_change(error.into()))?;
    if name == SessionCommand::CREATE_BRANCH {
        app.branch_begins(&receipt).await;
    }
    let status = if receipt.replayed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(Answer::seen(&receipt, &Sight::of(towpath, caller.role)))).into_response())
}

/// The tasks of a session.
#[derive(Serialize, ToSchema)]
#[schema(as = GenesisTasks)]
struct Tasks<'a> {
    tasks: Vec<TaskBody<'a>>,
}

/// Lists the tasks of a session
///
/// The last 100, the last first, without what they were told and answered.
#[utoipa::path(
    get, path = "/api/genesis/sessions/{id}/tasks", tag = "genesis", operation_id = "listSessionTasks",
    params(("id" = String, Path, description = "The session's id.")),
    responses((status = 200, description = "The tasks.", body = Tasks), (status = 404, description = "There is no such session."))
)]
async fn tasks_of(State(app): State<Serving>, Path(id): Path<String>) -> Result<Response, Problem> {
    app.genesis.session(&app.towpath, &id).await?.ok_or_else(|| no_session(&id))?;
    let tasks = app.genesis.tasks(&app.towpath, &id, MOST_TASKS).await?;
    Ok(Json(Tasks { tasks: tasks.iter().map(TaskBody::listed).collect() }).into_response())
}

/// Lets a task of a session be done again
///
/// One that failed, took too long or was called off.
#[utoipa::path(
    post, path = "/api/genesis/sessions/{id}/tasks/{task}/retry", tag = "genesis", operation_id = "retrySessionTask",
    params(("id" = String, Path, description = "The session's id."), ("task" = String, Path, description = "The task's id.")),
    responses(
        (status = 200, description = "It may be taken; this is the task now.", body = TaskBody),
        (status = 404, description = "There is no such session, or it has no such task."),
        (status = 409, description = "It has not failed and was not called off."),
    )
)]
async fn retry(
    State(app): State<Serving>,
    caller: Caller,
    Path((id, task)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let subject = towpath_genesis::subject(&id).map_err(|_| no_session(&id))?;
    if app.task(&task).await?.task.subject != Some(subject) {
        return Err(Problem::not_found(format!("session {id} has no task {task}")));
    }
    tasks::retry(State(app.towpath), caller, Path(task)).await
}

#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Waiting {
    /// Those that may be taken; there is no other state to ask for here.
    #[serde(default)]
    #[param(schema_with = queued)]
    #[allow(dead_code, reason = "it has one value")]
    state: Queued,
    /// How long to wait for one: `20s`, and 30 seconds at most (less, where a request may not take so long).
    #[serde(default, with = "duration_text")]
    #[param(required = false, value_type = String, example = "20s", pattern = "^[0-9]{1,2}s$")]
    wait: Duration,
    /// At most so many, and never more than 20.
    #[serde(default = "some", deserialize_with = "page_limit")]
    #[param(required = false, minimum = 1, maximum = 500)]
    limit: u32,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Queued {
    #[default]
    Queued,
}

fn queued() -> utoipa::openapi::schema::Object {
    one_of(["queued"])
}

fn some() -> u32 {
    10
}

/// How many tasks are shown with what their worker needs to know, and how many bytes of that: each may be large.
const MOST_WAITING: u32 = 20;
const MOST_BYTES: usize = 1 << 20;

/// The first of each type, then the second ones: no sort of work hides behind another.
fn in_turns(mut tasks: Vec<Task>) -> Vec<Task> {
    let mut seen = HashMap::<_, usize>::new();
    tasks.sort_by_cached_key(|task| {
        let turn = seen.entry(task.task.task_type.clone()).or_default();
        *turn += 1;
        *turn
    });
    tasks
}

/// Lists the work that waits for a worker
///
/// With what the worker needs to know, and without taking it: the first answer wins. Where several workers would do the same,
/// `POST /api/tasks/claim` takes it.
#[utoipa::path(
    get, path = "/api/genesis/tasks", tag = "genesis", operation_id = "listGenesisTasks",
    params(Waiting), responses((status = 200, description = "The tasks; none, if there was none in time.", body = Tasks))
)]
async fn waiting(
    State(app): State<Serving>,
    caller: Caller,
    memory: Memory,
    Query(Waiting { wait, limit, .. }): Query<Waiting>,
) -> Result<Response, Problem> {
    let wait = wait.min(app.genesis.settings().wait_at_most);
    let most = MOST_WAITING.min(limit);
    let mut listed = in_turns(app.genesis.waiting_tasks(&app.towpath, most, wait).await?);
    listed.truncate(most as usize);
    let ids: Vec<_> = listed.into_iter().map(|task| task.task.task_id).collect();
    // As they are read, and as they are written.
    let room = memory.room(2 * (MOST_BYTES + Payload::MAX_BYTES) as u64).await?;
    let (mut tasks, mut bytes) = (Vec::new(), 0);
    for task_id in ids {
        let found = app.towpath.task(task_id).await?;
        // Somebody may have taken it meanwhile.
        let found = found.filter(|task| task.status == TaskState::Queued);
        bytes += found.as_ref().map_or(0, |task| task.task.payload.as_text().len());
        tasks.extend(found);
        if bytes > MOST_BYTES {
            break;
        }
    }
    let sight = Sight::of(&app.towpath, caller.role);
    room.json(&Tasks { tasks: tasks.iter().map(|task| TaskBody::seen(task, &sight)).collect() })
}

/// What came of a task: a draft.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GenesisResultAsked)]
struct DraftAsked {
    /// From when it was taken; without, nobody else may have it.
    #[schema(min_length = 1, max_length = 20)]
    token: Option<String>,
    /// `{title, text}`, or a text. Without it, the other fields are the draft.
    #[schema(value_type = Option<Value>)]
    result: Option<Value>,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    more: Map<String, Value>,
}

/// Answers a task
///
/// As `POST /api/tasks/{id}/result` does, with a draft.
#[utoipa::path(
    post, path = "/api/genesis/tasks/{id}/result", tag = "genesis", operation_id = "answerGenesisTask",
    params(("id" = String, Path, description = "The task's id.")), request_body = DraftAsked,
    responses(
        (status = 200, description = "It has ended; this is the task now.", body = TaskBody),
        (status = 404, description = "There is no such task of genesis."),
        (status = 409, description = "It is somebody else's by now, or has ended."),
        (status = 422, description = "The draft cannot be used."),
    )
)]
async fn result(
    State(app): State<Serving>,
    caller: Caller,
    Path(id): Path<String>,
    body: RawBody,
) -> Result<Response, Problem> {
    let DraftAsked { token, result, more } = read(&body)?;
    let draft = Draft::answered(result.unwrap_or(Value::Object(more)));
    let draft =
        draft.map_err(|flaw| invalid(flaw, "Send a draft: {\"result\": {\"title\": …, \"text\": …}}."))?;
    app.task(&id).await?;
    let result = serde_json::value::to_raw_value(&draft).map_err(|error| Problem::internal(&error))?;
    ResultAsked::of(token, result).answer(&app.towpath, &caller, &id).await
}

/// Says that an attempt at a task failed
///
/// As `POST /api/tasks/{id}/failure` does.
#[utoipa::path(
    post, path = "/api/genesis/tasks/{id}/failure", tag = "genesis", operation_id = "failGenesisTask",
    params(("id" = String, Path, description = "The task's id.")), request_body = FailureAsked,
    responses(
        (status = 200, description = "It is tried again or has failed; this is the task now.", body = TaskBody),
        (status = 404, description = "There is no such task of genesis."),
        (status = 409, description = "It is somebody else's by now, or has ended."),
        (status = 422, description = "A field cannot be used."),
    )
)]
async fn failure(
    State(app): State<Serving>,
    caller: Caller,
    Path(id): Path<String>,
    body: RawBody,
) -> Result<Response, Problem> {
    let asked: FailureAsked = read(&body)?;
    app.task(&id).await?;
    asked.answer(&app.towpath, &caller, &id).await
}

/// A type of genesis' events.
#[derive(Serialize, ToSchema)]
#[schema(as = GenesisEventType)]
struct EventTypeShown {
    /// Its stable name.
    r#type: String,
    /// The JSON Schema of its payload.
    #[schema(value_type = Object)]
    schema: Value,
}

/// Genesis' event types.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GenesisEventTypes)]
struct EventTypes {
    event_types: Vec<EventTypeShown>,
}

/// Lists genesis' event types
///
/// Those of sessions, of their processes and of capabilities, each with the JSON Schema of its payload.
#[utoipa::path(
    get, path = "/api/genesis/event-types", tag = "genesis", operation_id = "genesisEventTypes",
    responses((status = 200, description = "All of them.", body = EventTypes))
)]
async fn event_types() -> Response {
    let shown = |(name, schema)| EventTypeShown { r#type: name, schema: Value::from(schema) };
    let event_types = towpath_genesis::process::schemas().into_iter().map(shown).collect();
    Json(EventTypes { event_types }).into_response()
}

impl Serving {
    async fn shown(&self, id: &str) -> Result<SessionBody, Problem> {
        let view = self.genesis.session(&self.towpath, id).await?.ok_or_else(|| no_session(id))?;
        let begun = self.genesis.fact(&self.towpath, id, 1).await?;
        let correlation_id = begun.map(|fact| fact.envelope.correlation_id.to_string());
        // Only where something is open does anybody want to know of tasks.
        let is_waiting = view.value.entries.values().any(|entry| entry.open.is_some());
        let work = match is_waiting {
            true => Work {
                tasks: self.genesis.tasks(&self.towpath, id, MOST_TASKS).await?,
                failure: self.genesis.failure(&self.towpath, id).await?,
            },
            false => Work::default(),
        };
        Ok(SessionBody::of(id, view, correlation_id, &work))
    }

    /// Waits a moment until a branch is there that was just made: who asks for it next shall find it.
    async fn branch_begins(&self, receipt: &Receipt) {
        let made = receipt
            .events
            .iter()
            .find_map(|event| event.payload.read::<BranchCreated>(SessionEvent::BRANCH_CREATED).ok());
        let Some(BranchCreated { session_id, .. }) = made else { return };
        let begins = async {
            while matches!(self.genesis.fact(&self.towpath, &session_id, 1).await, Ok(None)) {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let _ = tokio::time::timeout(BEGINS_WITHIN, begins).await;
    }

    /// A task, if it is one of genesis.
    async fn task(&self, id: &str) -> Result<Task, Problem> {
        let task_id = task_id(id)?;
        let task = self.towpath.task(task_id).await?;
        let ours = task
            .filter(|task| towpath_genesis::capability::entity_of(task.task.task_type.as_str()).is_some());
        Ok(ours.ok_or(TaskError::Unknown(task_id))?)
    }
}

fn read<T: DeserializeOwned>(body: &RawBody) -> Result<T, Problem> {
    body.object(|error| match error.is_data() {
        true => invalid(error.to_string(), "Correct the field that is named."),
        false => Problem::malformed(format!("the body is not JSON: {error}"), "Send a JSON object."),
    })
}

/// What is not possible, or not there, may be so in a moment: it is not the answer under a key for ever.
fn may_change(problem: Problem) -> Problem {
    let passes = ["genesis-not-possible", "genesis-other-proposal", "genesis-session-not-found"];
    let is_passing = passes.contains(&problem.code());
    problem.passing(is_passing)
}

fn invalid(title: impl Into<String>, detail: &str) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "genesis-invalid", title, detail)
}

fn no_session(id: &str) -> Problem {
    let title = format!("there is no session {id:?}");
    let detail = "Check the id; GET /api/genesis/sessions lists those that exist.";
    Problem::new(StatusCode::NOT_FOUND, "genesis-session-not-found", title, detail)
}
