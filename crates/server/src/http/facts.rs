//! Facts over HTTP: events by position, and aggregates with their history.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::Payload;
use towpath::ids::{AggregateId, AggregateKey, AggregateKind, CausationId, CorrelationId, EventId};
use towpath::name::EventName;
use towpath::ports::store::Store as _;
use towpath::{RecordedEvent, Towpath};
use utoipa_axum::router::OpenApiRouter;

use super::App;
use super::problem::Problem;

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .route("/api/events", get(events))
        .route("/api/aggregates/{kind}/{id}", get(aggregate))
        .route("/api/aggregates/{kind}/{id}/history", get(history))
        .route("/api/aggregates/{kind}/{id}/events", get(events_of))
}

/// How many events an answer holds at most.
const MOST: u32 = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    #[serde(default)]
    after: u64,
    limit: Option<u32>,
}

impl Range {
    fn limit(&self) -> u32 {
        self.limit.unwrap_or(100).clamp(1, MOST)
    }
}

/// Events behind a position.
async fn events(
    State(app): State<Towpath>,
    range: Result<Query<Range>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let Query(range) =
        range.map_err(|error| Problem::malformed(error.body_text(), "Write ?after=N&limit=N."))?;
    let low = range.after.saturating_add(1);
    let high = range.after.saturating_add(u64::from(range.limit()));
    let events = app.store().events_between(low, high.min(i64::MAX as u64)).await?;
    let next = events.last().and_then(|event| event.position).unwrap_or(range.after);
    let events = events.iter().map(Event::from).collect();
    Ok(Json(Events { events, next: Some(next) }).into_response())
}

/// An aggregate as it is now.
async fn aggregate(
    State(app): State<Towpath>,
    Path((kind, id)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let key = key(kind, id)?;
    let row = app.aggregate(&key).await?;
    let row = row.ok_or_else(|| Problem::not_found(format!("there is no aggregate {key}")))?;
    let machine = app.registry().decider_of_kind(key.kind.as_str()).and_then(|decider| decider.machine());
    let possible = machine.map_or_else(Vec::new, |machine| machine.possible_next(row.state.as_deref()));
    let shown = Shown {
        kind: &key.kind,
        id: &key.id,
        version: row.version,
        value: row.snapshot.as_ref().map(|snapshot| &snapshot.data),
        state: row.state.as_deref(),
        state_reason: row.state_reason.as_deref(),
        state_message: row.state_message.as_deref(),
        state_changed_at: row.state_changed_at,
        status: row.status.as_deref(),
        created_at: row.created_at,
        updated_at: row.updated_at,
        possible_next: possible
            .into_iter()
            .map(|step| PossibleStep { event: step.event, to: step.to })
            .collect(),
    };
    Ok(Json(shown).into_response())
}

/// The state changes of an aggregate behind a version.
async fn history(
    State(app): State<Towpath>,
    Path((kind, id)): Path<(String, String)>,
    range: Result<Query<Range>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let Query(range) =
        range.map_err(|error| Problem::malformed(error.body_text(), "Write ?after=N&limit=N."))?;
    let key = key(kind, id)?;
    exists(&app, &key).await?;
    let history = app.history_of(&key, range.after, range.limit()).await?;
    Ok(Json(serde_json::json!({ "history": history })).into_response())
}

/// The events of an aggregate behind a version.
async fn events_of(
    State(app): State<Towpath>,
    Path((kind, id)): Path<(String, String)>,
    range: Result<Query<Range>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let Query(range) =
        range.map_err(|error| Problem::malformed(error.body_text(), "Write ?after=N&limit=N."))?;
    let key = key(kind, id)?;
    exists(&app, &key).await?;
    let events = app.events_of(&key, range.after, range.limit()).await?;
    Ok(Json(Events { events: events.iter().map(Event::from).collect(), next: None }).into_response())
}

fn key(kind: String, id: String) -> Result<AggregateKey, Problem> {
    AggregateKey::new(kind, id)
        .map_err(|error| Problem::malformed(error.to_string(), "Write /api/aggregates/KIND/ID."))
}

async fn exists(app: &Towpath, key: &AggregateKey) -> Result<(), Problem> {
    match app.aggregate(key).await? {
        Some(_) => Ok(()),
        None => Err(Problem::not_found(format!("there is no aggregate {key}"))),
    }
}

/// An event on the wire. Written as it stands, so that its payload stays the exact text.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Event<'a> {
    position: Option<u64>,
    event_id: EventId,
    #[serde(rename = "type")]
    event_type: &'a EventName,
    aggregate_kind: &'a AggregateKind,
    aggregate_id: &'a AggregateId,
    aggregate_version: u64,
    occurred_at: DateTime<Utc>,
    correlation_id: &'a CorrelationId,
    causation_id: Option<&'a CausationId>,
    payload: &'a Payload,
}

impl<'a> From<&'a RecordedEvent> for Event<'a> {
    fn from(event: &'a RecordedEvent) -> Self {
        let envelope = &event.envelope;
        Self {
            position: event.position,
            event_id: envelope.event_id,
            event_type: &envelope.event_type,
            aggregate_kind: &envelope.aggregate.kind,
            aggregate_id: &envelope.aggregate.id,
            aggregate_version: envelope.aggregate_version,
            occurred_at: envelope.occurred_at,
            correlation_id: &envelope.correlation_id,
            causation_id: envelope.causation_id.as_ref(),
            payload: &envelope.payload,
        }
    }
}

#[derive(Serialize)]
struct Events<'a> {
    events: Vec<Event<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    kind: &'a AggregateKind,
    id: &'a AggregateId,
    version: u64,
    value: Option<&'a Payload>,
    state: Option<&'a str>,
    state_reason: Option<&'a str>,
    state_message: Option<&'a str>,
    state_changed_at: Option<DateTime<Utc>>,
    status: Option<&'a str>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    possible_next: Vec<PossibleStep>,
}

#[derive(Serialize)]
struct PossibleStep {
    event: String,
    to: String,
}
