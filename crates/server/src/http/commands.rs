//! Commands over HTTP: the same id gives the same answer and no second effect.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use towpath::ids::{CausationId, CommandId, CorrelationId};
use towpath::lifecycle::CommandStatus;
use towpath::ports::store::CommandRecord;
use towpath::{COMMANDS_BYTES, Payload, Receipt, Towpath};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::access::Caller;
use super::command_ids::{idempotency_key, send_under_key};
use super::extract::{JsonBody, Path, Query};
use super::memory::Memory;
use super::problem::Problem;
use super::range::{limit, usually};
use super::wire::{Aggregate, Envelope, Sight, command_status};

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, send)).routes(routes!(show))
}

/// What is asked.
#[derive(Deserialize, ToSchema)]
#[schema(as = CommandAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CommandRequest {
    /// The same id again gives the same answer and no second effect. It may stand in the Idempotency-Key header instead.
    #[schema(min_length = 1, max_length = 128)]
    command_id: Option<String>,
    /// The command's name.
    #[serde(rename = "type")]
    #[schema(min_length = 1)]
    command_type: String,
    #[schema(min_length = 1, max_length = 128)]
    aggregate_id: String,
    /// What the command's type wants.
    #[schema(value_type = Value)]
    payload: Box<RawValue>,
    /// The flow it belongs to; a new one if nothing is said.
    #[schema(min_length = 1, max_length = 128)]
    correlation_id: Option<String>,
    /// The event or command that caused it.
    #[schema(min_length = 1, max_length = 128)]
    causation_id: Option<String>,
}

/// Sends a command
///
/// It is decided at once, and everything that follows from it is committed when the answer comes. The same id again
/// gives the same answer and no second effect.
#[utoipa::path(
    post,
    path = "/api/commands",
    tag = "commands",
    operation_id = "sendCommand",
    params(("Idempotency-Key" = Option<String>, Header, description = "The command's id, if the body has none. Where somebody else has a command of that id, the answer names the id that the caller's has.")),
    request_body = CommandRequest,
    responses(
        (status = 201, description = "It was decided and committed.", body = Answer),
        (status = 200, description = "It was decided before; this is the recorded answer.", body = Answer),
        (status = 403, description = "The aggregate does not allow it to this caller."),
        (status = 404, description = "The aggregate says that what it is about does not exist."),
        (status = 409, description = "Refused by the aggregate or its machine, still being processed, or the id was used for something else."),
        (status = 413, description = "The payload is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "Nobody decides commands of this type, or the payload or an id does not fit."),
    )
)]
async fn send(
    State(app): State<Towpath>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(asked): JsonBody<CommandRequest>,
) -> Result<Response, Problem> {
    let key = idempotency_key(&headers)?;
    if let (Some(id), Some(key)) = (&asked.command_id, key)
        && id != key
    {
        let title = "commandId and Idempotency-Key say different things";
        return Err(Problem::malformed(title, "Send one of them, or the same in both."));
    }
    let command = || {
        let mut command =
            app.send_named(asked.command_type.as_str(), asked.aggregate_id.as_str(), asked.payload.get());
        if let Some(id) = &asked.correlation_id {
            command = command.in_flow(id);
        }
        if let Some(id) = &asked.causation_id {
            command = command.caused_by(id);
        }
        command
    };
    let receipt = match &asked.command_id {
        Some(id) => command().once(id).await?,
        None => send_under_key(&app, &caller.name, key, command).await?,
    };
    let status = if receipt.replayed { StatusCode::OK } else { StatusCode::CREATED };
    let sight = Sight::of(&app, caller.role);
    Ok((status, Json(Answer::seen(&receipt, &sight))).into_response())
}

/// The answer to a command.
#[derive(Serialize, ToSchema)]
#[schema(as = CommandAnswer)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer<'a> {
    #[schema(value_type = String)]
    command_id: &'a CommandId,
    #[schema(schema_with = command_status)]
    status: CommandStatus,
    /// The version of the aggregate after it.
    aggregate_version: u64,
    #[schema(value_type = String)]
    correlation_id: &'a CorrelationId,
    /// What happened, in order; nothing when the decision was that nothing happens.
    events: Vec<Envelope<'a>>,
}

impl<'a> Answer<'a> {
    pub(crate) fn seen(receipt: &'a Receipt, sight: &Sight) -> Self {
        Self {
            command_id: &receipt.command_id,
            status: receipt.status,
            aggregate_version: receipt.aggregate_version,
            correlation_id: &receipt.correlation_id,
            events: receipt.events.iter().map(|event| Envelope::seen(event, sight)).collect(),
        }
    }
}

/// A command and where it is.
#[derive(Serialize, ToSchema)]
#[schema(as = Command)]
#[serde(rename_all = "camelCase")]
pub(super) struct CommandBody<'a> {
    #[schema(value_type = String)]
    command_id: &'a CommandId,
    #[serde(rename = "type")]
    command_type: &'a str,
    aggregate: Aggregate<'a>,
    /// Null where it is withheld.
    #[schema(value_type = Value)]
    payload: Option<&'a Payload>,
    /// True where the payload is not for viewers, and a viewer asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_withheld: Option<bool>,
    #[schema(value_type = String)]
    correlation_id: &'a CorrelationId,
    #[schema(value_type = Option<String>)]
    causation_id: Option<&'a CausationId>,
    #[schema(schema_with = command_status)]
    status: CommandStatus,
    status_changed_at: DateTime<Utc>,
    /// A stable code.
    status_reason: Option<&'a str>,
    /// A text for people.
    status_message: Option<&'a str>,
    retry_count: u32,
    next_retry_at: Option<DateTime<Utc>>,
    received_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    finished_at: Option<DateTime<Utc>>,
    /// The version of the aggregate after it, once it is completed.
    aggregate_version: Option<u64>,
}

impl<'a> CommandBody<'a> {
    pub(super) fn seen(record: &'a CommandRecord, sight: &Sight) -> Self {
        let command = &record.command;
        Self {
            command_id: &command.command_id,
            command_type: command.command_type.as_str(),
            aggregate: (&command.aggregate).into(),
            payload: sight.of_payload(&command.aggregate.kind, &command.payload),
            payload_withheld: sight.withholds(&command.aggregate.kind),
            correlation_id: &command.context.correlation_id,
            causation_id: command.context.causation_id.as_ref(),
            status: record.status,
            status_changed_at: record.status_changed_at,
            status_reason: record.status_reason.as_deref(),
            status_message: record.status_message.as_deref(),
            retry_count: record.retry_count,
            next_retry_at: record.next_retry_at,
            received_at: command.context.occurred_at,
            started_at: record.started_at,
            finished_at: record.finished_at,
            aggregate_version: record.result.map(|result| result.aggregate_version),
        }
    }
}

/// Which commands.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CommandQuery {
    /// Only those in this status.
    #[param(schema_with = command_status)]
    status: Option<CommandStatus>,
    /// Only what was received before this command: the `next` of the page before.
    #[param(min_length = 1, max_length = 128)]
    after: Option<String>,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "limit")]
    #[param(required = false, minimum = 1, maximum = 1000)]
    limit: u32,
}

/// Commands, the last received first
///
/// `next` is what to give as `after` to read on; it is missing on the last page.
#[utoipa::path(
    get,
    path = "/api/commands",
    tag = "commands",
    operation_id = "listCommands",
    params(CommandQuery),
    responses(
        (status = 200, description = "The commands.", body = CommandPage),
        (status = 404, description = "There is no such command to read on behind."),
    )
)]
async fn list(
    State(app): State<Towpath>,
    caller: Caller,
    memory: Memory,
    Query(which): Query<CommandQuery>,
) -> Result<Response, Problem> {
    let behind = which.after.map(CommandId::new).transpose();
    let behind = behind.map_err(|error| Problem::not_found(error.to_string()))?;
    let room = memory.room(2 * COMMANDS_BYTES).await?;
    let records = app.commands(which.status, behind.as_ref(), which.limit).await?;
    // A page of large ones ends early, and then another one of at most this size did not fit.
    let bytes: usize = records.iter().map(|record| record.command.payload.as_text().len()).sum();
    let is_cut = bytes as u64 + Payload::MAX_BYTES as u64 > COMMANDS_BYTES;
    let is_full = records.len() == which.limit as usize || is_cut;
    let next = records.last().filter(|_| is_full).map(|record| &record.command.command_id);
    let sight = Sight::of(&app, caller.role);
    room.json(&CommandPage {
        commands: records.iter().map(|record| CommandBody::seen(record, &sight)).collect(),
        next,
    })
}

/// Commands, the last received first.
#[derive(Serialize, ToSchema)]
#[schema(as = Commands)]
struct CommandPage<'a> {
    commands: Vec<CommandBody<'a>>,
    /// What to give as `after` to read on; nothing on the last page.
    #[schema(value_type = Option<String>)]
    next: Option<&'a CommandId>,
}

/// A command, and where it is
#[utoipa::path(
    get,
    path = "/api/commands/{id}",
    tag = "commands",
    operation_id = "showCommand",
    params(("id" = String, Path, description = "The command's id.")),
    responses(
        (status = 200, description = "The command.", body = CommandBody),
        (status = 404, description = "There is no such command."),
    )
)]
async fn show(
    State(app): State<Towpath>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let id = CommandId::new(id).map_err(|error| Problem::not_found(error.to_string()))?;
    let record = app.command(&id).await?;
    let record = record.ok_or_else(|| Problem::not_found(format!("there is no command {id}")))?;
    Ok(Json(CommandBody::seen(&record, &Sight::of(&app, caller.role))).into_response())
}
