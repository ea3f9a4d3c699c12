//! Commands over HTTP: the same id gives the same answer and no second effect.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use towpath::ids::{AggregateKey, CommandId, CorrelationId};
use towpath::lifecycle::CommandStatus;
use towpath::{Payload, Towpath};
use utoipa_axum::router::OpenApiRouter;

use super::App;
use super::problem::Problem;

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().route("/api/commands", post(send)).route("/api/commands/{id}", get(show))
}

/// What is asked.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    command_id: Option<String>,
    #[serde(rename = "type")]
    command_type: String,
    aggregate_id: String,
    payload: Box<RawValue>,
    correlation_id: Option<String>,
    causation_id: Option<String>,
}

/// Sends a command.
async fn send(
    State(app): State<Towpath>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too-large",
            "the request is too large",
            "Send at most 4 MiB of payload.",
        ),
        _ => Problem::malformed("the request cannot be read", rejection.body_text()),
    })?;
    let asked: Asked = serde_json::from_slice(&body).map_err(|error| {
        Problem::malformed(
            format!("the body is not a command: {error}"),
            "Send {\"type\": …, \"aggregateId\": …, \"payload\": …} as JSON.",
        )
    })?;
    let key = match headers.get("idempotency-key").map(|value| value.to_str()) {
        None => None,
        Some(Ok(key)) => Some(key.to_owned()),
        Some(Err(_)) => {
            return Err(Problem::malformed("the Idempotency-Key is not a plain text", "Use visible ASCII."));
        }
    };
    let command_id = match (asked.command_id, key) {
        (Some(id), Some(key)) if id != key => {
            let title = "commandId and Idempotency-Key say different things";
            return Err(Problem::malformed(title, "Send one of them, or the same in both."));
        }
        (id, key) => id.or(key),
    };
    let mut command = app.send_named(asked.command_type, asked.aggregate_id, asked.payload.get());
    if let Some(id) = command_id {
        command = command.once(id);
    }
    if let Some(id) = asked.correlation_id {
        command = command.in_flow(id);
    }
    if let Some(id) = asked.causation_id {
        command = command.caused_by(id);
    }
    let receipt = command.await?;
    let status = if receipt.replayed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(receipt)).into_response())
}

/// A command on the wire.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    command_id: &'a CommandId,
    #[serde(rename = "type")]
    command_type: &'a str,
    aggregate: &'a AggregateKey,
    payload: &'a Payload,
    correlation_id: &'a CorrelationId,
    status: CommandStatus,
    status_changed_at: DateTime<Utc>,
    status_reason: Option<&'a str>,
    status_message: Option<&'a str>,
    retry_count: u32,
    next_retry_at: Option<DateTime<Utc>>,
    started_at: Option<DateTime<Utc>>,
    finished_at: Option<DateTime<Utc>>,
    aggregate_version: Option<u64>,
}

/// Where a command is.
async fn show(State(app): State<Towpath>, Path(id): Path<String>) -> Result<Response, Problem> {
    let id = CommandId::new(id).map_err(|error| Problem::malformed(error.to_string(), "Check the id."))?;
    let record = app.command(&id).await?;
    let record = record.ok_or_else(|| Problem::not_found(format!("there is no command {id}")))?;
    let shown = Shown {
        command_id: &record.command.command_id,
        command_type: record.command.command_type.as_str(),
        aggregate: &record.command.aggregate,
        payload: &record.command.payload,
        correlation_id: &record.command.context.correlation_id,
        status: record.status,
        status_changed_at: record.status_changed_at,
        status_reason: record.status_reason.as_deref(),
        status_message: record.status_message.as_deref(),
        retry_count: record.retry_count,
        next_retry_at: record.next_retry_at,
        started_at: record.started_at,
        finished_at: record.finished_at,
        aggregate_version: record.result.map(|result| result.aggregate_version),
    };
    Ok(Json(shown).into_response())
}
