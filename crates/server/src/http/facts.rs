//! Facts over HTTP: events by position, and aggregates with their history.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::ids::{AggregateId, AggregateKey, AggregateKind, EventId, InvalidId};
use towpath::name::EventName;
use towpath::ports::store::InputOutcome;
use towpath::{Payload, Towpath};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::access::Caller;
use super::extract::{Path, Query};
use super::memory::{Memory, PAGE_BYTES};
use super::problem::Problem;
use super::range::{Range, limit, usually};
use super::wire::{Event, Sight, StateChange};

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(events))
        .routes(routes!(aggregates))
        .routes(routes!(aggregate))
        .routes(routes!(history))
        .routes(routes!(events_of))
        .routes(routes!(inputs))
}

/// Events behind a position
///
/// In the order of the log. `next` is what to give as `after` to read on. There may be fewer than were asked for where they
/// are large: `next` tells, not their number.
#[utoipa::path(
    get,
    path = "/api/events",
    tag = "facts",
    operation_id = "listEvents",
    params(Range),
    responses((status = 200, description = "The events.", body = Events))
)]
async fn events(
    State(app): State<Towpath>,
    caller: Caller,
    memory: Memory,
    Query(range): Query<Range>,
) -> Result<Response, Problem> {
    let low = range.after.saturating_add(1);
    let high = range.after.saturating_add(u64::from(range.limit));
    let (room, events) = memory.events(&app, low, high).await?;
    let next = events.last().and_then(|event| event.position).unwrap_or(range.after);
    let sight = Sight::of(&app, caller.role);
    let events = events.iter().map(|event| Event::seen(event, &sight)).collect();
    room.json(&Events { events, next })
}

/// Which aggregates.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AggregateQuery {
    /// Only what is behind this id.
    #[param(min_length = 1, max_length = 128)]
    after: Option<String>,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "limit")]
    #[param(required = false, minimum = 1, maximum = 1000)]
    limit: u32,
}

/// The aggregates of a kind, by id
///
/// `next` is what to give as `after` to read on; it is missing on the last page.
#[utoipa::path(
    get,
    path = "/api/aggregates/{kind}",
    tag = "facts",
    operation_id = "listAggregates",
    params(("kind" = String, Path, description = "What sort of aggregate."), AggregateQuery),
    responses(
        (status = 200, description = "The aggregates.", body = Aggregates),
        (status = 404, description = "No aggregate or kind can have this name."),
    )
)]
async fn aggregates(
    State(app): State<Towpath>,
    Path(kind): Path<String>,
    Query(which): Query<AggregateQuery>,
) -> Result<Response, Problem> {
    let not_found = |error: InvalidId| Problem::not_found(error.to_string());
    let kind = AggregateKind::new(kind).map_err(not_found)?;
    let after = which.after.map(AggregateId::new).transpose().map_err(not_found)?;
    let rows = app.aggregates(&kind, after.as_ref(), which.limit).await?;
    let next = rows.last().filter(|_| rows.len() == which.limit as usize).map(|row| &row.aggregate.id);
    let aggregates = rows.iter().map(|row| AggregateSummary {
        kind: &row.aggregate.kind,
        id: &row.aggregate.id,
        version: row.version,
        state: row.state.as_deref(),
        state_changed_at: row.state_changed_at,
        status: row.status.as_deref(),
        created_at: row.created_at,
        updated_at: row.updated_at,
    });
    Ok(Json(Aggregates { aggregates: aggregates.collect(), next }).into_response())
}

/// An aggregate as it is now
#[utoipa::path(
    get,
    path = "/api/aggregates/{kind}/{id}",
    tag = "facts",
    operation_id = "showAggregate",
    params(("kind" = String, Path, description = "What sort of aggregate."), ("id" = String, Path, description = "Which one.")),
    responses(
        (status = 200, description = "The aggregate.", body = AggregateBody),
        (status = 404, description = "There is no such aggregate."),
    )
)]
async fn aggregate(
    State(app): State<Towpath>,
    caller: Caller,
    Path((kind, id)): Path<(String, String)>,
) -> Result<Response, Problem> {
    let key = key(kind, id)?;
    let row = app.aggregate(&key).await?;
    let row = row.ok_or_else(|| Problem::not_found(format!("there is no aggregate {key}")))?;
    let machine = app.registry().machine_of_kind(key.kind.as_str());
    let possible = machine.map_or_else(Vec::new, |machine| machine.possible_next(row.state.as_deref()));
    let sight = Sight::of(&app, caller.role);
    let shown = AggregateBody {
        kind: &key.kind,
        id: &key.id,
        version: row.version,
        value: row.snapshot.as_ref().and_then(|snapshot| sight.of_payload(&key.kind, &snapshot.data)),
        value_withheld: sight.withholds(&key.kind),
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

/// The state changes of an aggregate behind a version
#[utoipa::path(
    get,
    path = "/api/aggregates/{kind}/{id}/history",
    tag = "facts",
    operation_id = "showHistory",
    params(("kind" = String, Path, description = "What sort of aggregate."), ("id" = String, Path, description = "Which one."), Range),
    responses(
        (status = 200, description = "Its state changes, in order.", body = History),
        (status = 404, description = "There is no such aggregate."),
    )
)]
async fn history(
    State(app): State<Towpath>,
    Path((kind, id)): Path<(String, String)>,
    Query(range): Query<Range>,
) -> Result<Response, Problem> {
    let key = key(kind, id)?;
    exists(&app, &key).await?;
    let history = app.history_of(&key, range.after, range.limit).await?;
    Ok(Json(History { history: history.iter().map(StateChange::from).collect() }).into_response())
}

/// The events of an aggregate behind a version
///
/// There may be fewer than were asked for where they are large: ask on behind the last of them until there is none.
#[utoipa::path(
    get,
    path = "/api/aggregates/{kind}/{id}/events",
    tag = "facts",
    operation_id = "listEventsOfAggregate",
    params(("kind" = String, Path, description = "What sort of aggregate."), ("id" = String, Path, description = "Which one."), Range),
    responses(
        (status = 200, description = "Its events, in order.", body = EventsOfAggregate),
        (status = 404, description = "There is no such aggregate."),
    )
)]
async fn events_of(
    State(app): State<Towpath>,
    caller: Caller,
    memory: Memory,
    Path((kind, id)): Path<(String, String)>,
    Query(range): Query<Range>,
) -> Result<Response, Problem> {
    let key = key(kind, id)?;
    let room = memory.room(2 * PAGE_BYTES).await?;
    exists(&app, &key).await?;
    let events = app.store().events_of_within(&key, range.after, range.limit, PAGE_BYTES).await?;
    let sight = Sight::of(&app, caller.role);
    room.json(&EventsOfAggregate { events: events.iter().map(|event| Event::seen(event, &sight)).collect() })
}

/// Which facts that a process took.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct InputQuery {
    /// Only what is behind this event.
    after: Option<uuid::Uuid>,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "limit")]
    #[param(required = false, minimum = 1, maximum = 1000)]
    limit: u32,
}

/// The facts that a process took, and what came of each
///
/// By their ids, for as long as the inbox remembers. An aggregate that is no process took none. `next` is what to give as `after` to
/// read on; it is missing on the last page.
#[utoipa::path(
    get,
    path = "/api/aggregates/{kind}/{id}/inputs",
    tag = "facts",
    operation_id = "listInputs",
    params(("kind" = String, Path, description = "What sort of process."), ("id" = String, Path, description = "Which one."), InputQuery),
    responses(
        (status = 200, description = "The facts.", body = Inputs),
        (status = 404, description = "There is no such aggregate."),
    )
)]
async fn inputs(
    State(app): State<Towpath>,
    Path((kind, id)): Path<(String, String)>,
    Query(InputQuery { after, limit }): Query<InputQuery>,
) -> Result<Response, Problem> {
    let key = key(kind, id)?;
    exists(&app, &key).await?;
    let inputs = app.process_inputs(&key, after.map(EventId), limit).await?;
    let next = inputs.last().filter(|_| inputs.len() == limit as usize).map(|input| input.event_id);
    let inputs = inputs.iter().map(|input| Input {
        event_id: input.event_id,
        event_type: &input.event_type,
        outcome: input.outcome,
        recorded_at: input.recorded_at,
    });
    Ok(Json(Inputs { inputs: inputs.collect(), next }).into_response())
}

fn key(kind: String, id: String) -> Result<AggregateKey, Problem> {
    // What no aggregate can be called is not there.
    AggregateKey::new(kind, id).map_err(|error| Problem::not_found(error.to_string()))
}

async fn exists(app: &Towpath, key: &AggregateKey) -> Result<(), Problem> {
    match app.aggregate(key).await? {
        Some(_) => Ok(()),
        None => Err(Problem::not_found(format!("there is no aggregate {key}"))),
    }
}

/// Aggregates of a kind, by id.
#[derive(Serialize, ToSchema)]
struct Aggregates<'a> {
    aggregates: Vec<AggregateSummary<'a>>,
    /// What to give as `after` to read on; nothing on the last page.
    #[schema(value_type = Option<String>)]
    next: Option<&'a AggregateId>,
}

/// An aggregate, in short.
#[derive(Serialize, ToSchema)]
#[schema(as = AggregateInShort)]
#[serde(rename_all = "camelCase")]
struct AggregateSummary<'a> {
    #[schema(value_type = String)]
    kind: &'a AggregateKind,
    #[schema(value_type = String)]
    id: &'a AggregateId,
    version: u64,
    state: Option<&'a str>,
    state_changed_at: Option<DateTime<Utc>>,
    status: Option<&'a str>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

/// Events in the order of the log.
#[derive(Serialize, ToSchema)]
struct Events<'a> {
    events: Vec<Event<'a>>,
    /// What to give as `after` to read on.
    next: u64,
}

/// Events of one aggregate, in order.
#[derive(Serialize, ToSchema)]
struct EventsOfAggregate<'a> {
    events: Vec<Event<'a>>,
}

/// State changes of one aggregate, in order.
#[derive(Serialize, ToSchema)]
pub(crate) struct History<'a> {
    pub(crate) history: Vec<StateChange<'a>>,
}

/// Facts that a process took.
#[derive(Serialize, ToSchema)]
struct Inputs<'a> {
    inputs: Vec<Input<'a>>,
    /// What to give as `after` to read on.
    #[schema(value_type = Option<uuid::Uuid>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<EventId>,
}

/// A fact that a process took.
#[derive(Serialize, ToSchema)]
#[schema(as = ProcessInput)]
#[serde(rename_all = "camelCase")]
struct Input<'a> {
    #[schema(value_type = uuid::Uuid)]
    event_id: EventId,
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    event_type: &'a EventName,
    /// `started`, `reacted`, `ignored` or `after_end`.
    #[schema(value_type = String)]
    outcome: InputOutcome,
    recorded_at: DateTime<Utc>,
}

/// An aggregate as it is now.
#[derive(Serialize, ToSchema)]
#[schema(as = AggregateNow)]
#[serde(rename_all = "camelCase")]
struct AggregateBody<'a> {
    #[schema(value_type = String)]
    kind: &'a AggregateKind,
    #[schema(value_type = String)]
    id: &'a AggregateId,
    /// How many events it has.
    version: u64,
    /// The folded state; nothing for an application that keeps it in tables of its own, and where it is withheld.
    #[schema(value_type = Value)]
    value: Option<&'a Payload>,
    /// True where the value is not for viewers, and a viewer asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    value_withheld: Option<bool>,
    /// Where its machine is.
    state: Option<&'a str>,
    /// A stable code.
    state_reason: Option<&'a str>,
    /// A text for people.
    state_message: Option<&'a str>,
    state_changed_at: Option<DateTime<Utc>>,
    /// A business value from the tenant's dictionary.
    status: Option<&'a str>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    /// What its machine allows next.
    possible_next: Vec<PossibleStep>,
}

/// What a machine allows next.
#[derive(Serialize, ToSchema)]
struct PossibleStep {
    event: String,
    to: String,
}
