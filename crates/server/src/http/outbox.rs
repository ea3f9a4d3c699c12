//! The outbox over HTTP: what waits to be published, and putting back or going on without what was given up.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::ids::{ChannelName, CorrelationId, EventId};
use towpath::lifecycle::OutboxStatus;
use towpath::name::EventName;
use towpath::ports::store::{FailedFilter, FailedRow};
use towpath::{OutboxFilter, Towpath};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::access::Caller;
use super::extract::{JsonBody, OptionalJsonBody, Path, Query, SoughtText};
use super::problem::{AfterDone as _, Problem};
use super::range::{Number, limit, number, usually, whole_number};
use super::wire::{Aggregate, one_of};

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(retry))
        .routes(routes!(retry_many))
        .routes(routes!(skip))
}

/// Which rows.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OutboxQuery {
    /// Only those in this status.
    #[param(schema_with = outbox_status)]
    status: Option<OutboxStatus>,
    /// Only those of this channel.
    channel: Option<String>,
    /// Only what is behind this number; 0 begins at the first.
    #[serde(default, deserialize_with = "number")]
    #[param(required = false, minimum = 0, maximum = 9007199254740991_i64)]
    after: u64,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "limit")]
    #[param(required = false, minimum = 1, maximum = 1000)]
    limit: u32,
}

/// Where an outbox row can be.
fn outbox_status() -> utoipa::openapi::schema::Object {
    one_of(OutboxStatus::ALL.iter().map(|status| status.as_str()))
}

/// Outbox rows, by number
///
/// `next` is what to give as `after` to read on.
#[utoipa::path(
    get,
    path = "/api/outbox",
    tag = "outbox",
    operation_id = "listOutbox",
    params(OutboxQuery),
    responses((status = 200, description = "The rows.", body = Rows))
)]
async fn list(State(app): State<Towpath>, Query(which): Query<OutboxQuery>) -> Result<Response, Problem> {
    // What no channel can be called has no rows.
    let Ok(channel) = which.channel.map(ChannelName::new).transpose() else {
        return Ok(Json(Rows { rows: Vec::new(), next: which.after }).into_response());
    };
    let filter = OutboxFilter { channel, status: which.status };
    let rows = app.store().outbox_rows(&filter, which.after, which.limit).await?;
    let next = rows.last().map_or(which.after, |row| row.row.outbox_id);
    Ok(Json(Rows { rows: rows.iter().map(Row::from).collect(), next }).into_response())
}

/// One outbox row
#[utoipa::path(
    get,
    path = "/api/outbox/{id}",
    tag = "outbox",
    operation_id = "showOutboxRow",
    params(("id" = u64, Path, description = "The row's number.", minimum = 0, maximum = 9007199254740991_i64)),
    responses(
        (status = 200, description = "The row.", body = Row),
        (status = 404, description = "There is no such row."),
    )
)]
async fn show(State(app): State<Towpath>, Path(Number(id)): Path<Number>) -> Result<Response, Problem> {
    Ok(Json(Row::from(&row(&app, id).await?)).into_response())
}

/// How a row is put back.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = RetryAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Forced {
    /// For admins: also if it was perhaps published so long ago that inboxes do not remember.
    #[serde(default)]
    force: bool,
}

/// Puts a row back that was given up
///
/// It is due at once, with its attempts forgotten. What waits behind it follows.
#[utoipa::path(
    post,
    path = "/api/outbox/{id}/retry",
    tag = "outbox",
    operation_id = "retryOutboxRow",
    params(("id" = u64, Path, description = "The row's number.", minimum = 0, maximum = 9007199254740991_i64)),
    request_body(content = Option<Forced>),
    responses(
        (status = 200, description = "It was put back; this is the row now.", body = Row),
        (status = 404, description = "There is no such row."),
        (status = 409, description = "It was not given up, or it was perhaps published so long ago that inboxes do not remember."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
    )
)]
async fn retry(
    State(app): State<Towpath>,
    caller: Caller,
    Path(Number(id)): Path<Number>,
    OptionalJsonBody(asked): OptionalJsonBody<Forced>,
) -> Result<Response, Problem> {
    caller.may_force(asked.force)?;
    let before = row(&app, id).await?;
    let outbox = app.outbox();
    let reopened = match asked.force {
        true => outbox.retry_by_force(&[id]).await?,
        false => outbox.retry(&[id]).await?,
    };
    if reopened == 0 {
        let title = format!("outbox row {id} is {}", before.row.status);
        let detail = "Only a row that was given up can be put back; look at it again.";
        return Err(Problem::new(StatusCode::CONFLICT, "not-given-up", title, detail));
    }
    Ok(Json(Row::from(&row(&app, id).await.after_it_was_done()?)).into_response())
}

/// Why a row is never published.
#[derive(Deserialize, ToSchema)]
#[schema(as = SkipAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SkipAsked {
    /// For those who find the row later.
    #[schema(value_type = String, min_length = 1)]
    reason: SoughtText,
}

/// Goes on without a row
///
/// For admins. It has failed at least once, and is never published on its channel. What waits behind it follows.
#[utoipa::path(
    post,
    path = "/api/outbox/{id}/skip",
    tag = "outbox",
    operation_id = "skipOutboxRow",
    params(("id" = u64, Path, description = "The row's number.", minimum = 0, maximum = 9007199254740991_i64)),
    request_body = SkipAsked,
    responses(
        (status = 200, description = "It is skipped; this is the row now.", body = Row),
        (status = 404, description = "There is no such row."),
        (status = 409, description = "It has not failed, or was skipped before."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "There is no reason."),
    )
)]
async fn skip(
    State(app): State<Towpath>,
    Path(Number(id)): Path<Number>,
    JsonBody(asked): JsonBody<SkipAsked>,
) -> Result<Response, Problem> {
    let before = row(&app, id).await?;
    let reason = String::from(asked.reason);
    if reason.trim().is_empty() {
        let detail = "Write a sentence for those who find the row later.";
        let title = "a row is skipped for a reason";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "reason-missing", title, detail));
    }
    if !app.outbox().skip(id, &reason).await? {
        let title = format!("outbox row {id} is {}", before.row.status);
        let detail = "Only a row that has failed at least once can be skipped; look at it again.";
        return Err(Problem::new(StatusCode::CONFLICT, "not-failed", title, detail));
    }
    Ok(Json(Row::from(&row(&app, id).await.after_it_was_done()?)).into_response())
}

/// Which rows are put back. What is not said fits all that were given up.
#[derive(Deserialize, ToSchema)]
#[schema(as = BulkRetryAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ManyAsked {
    /// Of this channel.
    #[schema(min_length = 1, max_length = 64)]
    channel: Option<String>,
    /// Given up for this reason (a stable code).
    #[schema(value_type = Option<String>)]
    reason: Option<SoughtText>,
    /// With an event of this type.
    #[schema(value_type = Option<String>)]
    event_type: Option<SoughtText>,
    /// Given up before this moment.
    failed_before: Option<DateTime<Utc>>,
    /// Given up at this moment or later.
    failed_since: Option<DateTime<Utc>>,
    /// Only say how many they are.
    #[serde(default)]
    dry_run: bool,
    /// How many the caller believes they are: if they are not, nothing is done.
    #[serde(default, deserialize_with = "whole_number")]
    #[schema(minimum = 0, maximum = 9007199254740991_i64)]
    expected: Option<u64>,
    /// In place of `expected`: however many they are.
    #[serde(default)]
    all: bool,
    /// For admins: also those that were perhaps published so long ago that inboxes do not remember.
    #[serde(default)]
    force: bool,
}

/// Puts all rows back that were given up and fit
///
/// Ask with `dryRun` first, and send its count as `expected`: if it is no longer true, nothing is done. Who does not want
/// to count says `all`.
#[utoipa::path(
    post,
    path = "/api/outbox/retry",
    tag = "outbox",
    operation_id = "retryOutbox",
    request_body = ManyAsked,
    responses(
        (status = 200, description = "How many fit, and how many were put back.", body = ManyRetried),
        (status = 409, description = "There are not as many as expected, or one was perhaps published so long ago that inboxes do not remember."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "No channel can have this name, or neither `expected` nor `all` is said."),
    )
)]
async fn retry_many(
    State(app): State<Towpath>,
    caller: Caller,
    JsonBody(asked): JsonBody<ManyAsked>,
) -> Result<Response, Problem> {
    caller.may_force(asked.force)?;
    let believed = Believed::read(asked.dry_run, asked.expected, asked.all)?;
    let now = app.now();
    let filter = FailedFilter {
        channel: asked.channel.map(channel_name).transpose()?,
        reason: asked.reason.map(String::from),
        event_type: asked.event_type.map(String::from),
        // What is given up from now on was not counted, and is not put back.
        failed_before: Some(asked.failed_before.map_or(now, |before| before.min(now))),
        failed_since: asked.failed_since,
    };
    let outbox = app.outbox();
    let count = outbox.count(&filter).await?;
    if asked.dry_run {
        return Ok(Json(ManyRetried { count, retried: None }).into_response());
    }
    believed.holds(count)?;
    let retried = match asked.force {
        true => outbox.retry_where_by_force(&filter).await?,
        false => outbox.retry_where(&filter).await?,
    };
    Ok(Json(ManyRetried { count, retried: Some(retried) }).into_response())
}

/// What the caller of a bulk action believes about its scope. Nobody touches more than they have seen by leaving out a
/// word: it must be said.
pub(super) struct Believed {
    /// Nothing for however many they are.
    expected: Option<u64>,
}

impl Believed {
    /// Reads what was said. On a dry run nothing need be.
    pub(super) fn read(dry_run: bool, expected: Option<u64>, all: bool) -> Result<Self, Problem> {
        if expected.is_none() && !all && !dry_run {
            return Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "scope-not-said",
                "a bulk action needs to be told how many are meant",
                "Ask with dryRun, and send its count as expected; or send \"all\": true. Nothing was done.",
            ));
        }
        Ok(Self { expected })
    }

    /// Refuses a scope that is not as the caller believes.
    pub(super) fn holds(&self, count: u64) -> Result<(), Problem> {
        match self.expected {
            Some(expected) if expected != count => Err(Problem::new(
                StatusCode::CONFLICT,
                "scope-changed",
                format!("{expected} were expected, and {count} fit"),
                "Ask again with dryRun, look at what has changed, and send the new count. Nothing was done.",
            )),
            _ => Ok(()),
        }
    }
}

async fn row(app: &Towpath, id: u64) -> Result<FailedRow, Problem> {
    let row = app.store().outbox_row(id).await?;
    row.ok_or_else(|| Problem::not_found(format!("there is no outbox row {id}")))
}

/// Reads the name of a channel in a body.
pub(super) fn channel_name(name: String) -> Result<ChannelName, Problem> {
    ChannelName::new(name).map_err(|error| Problem::invalid_id(&error))
}

/// What a bulk retry would touch, and touched.
#[derive(Serialize, ToSchema)]
#[schema(as = BulkRetry)]
struct ManyRetried {
    /// How many fit.
    count: u64,
    /// How many were put back; nothing on a dry run.
    retried: Option<u64>,
}

/// Outbox rows, by number.
#[derive(Serialize, ToSchema)]
#[schema(as = OutboxRows)]
struct Rows<'a> {
    rows: Vec<Row<'a>>,
    /// What to give as `after` to read on.
    next: u64,
}

/// An event on its way to a channel.
#[derive(Serialize, ToSchema)]
#[schema(as = OutboxRow)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    outbox_id: u64,
    #[schema(value_type = String)]
    channel: &'a ChannelName,
    #[schema(schema_with = outbox_status)]
    status: OutboxStatus,
    status_changed_at: DateTime<Utc>,
    /// A stable code.
    status_reason: Option<&'a str>,
    /// A text for people.
    status_message: Option<&'a str>,
    /// Failures so far.
    retry_count: u32,
    next_retry_at: Option<DateTime<Utc>>,
    /// Since when it waits behind another of its aggregate.
    parked_at: Option<DateTime<Utc>>,
    #[schema(value_type = uuid::Uuid)]
    event_id: EventId,
    #[schema(value_type = String)]
    event_type: &'a EventName,
    aggregate: Aggregate<'a>,
    aggregate_version: u64,
    occurred_at: DateTime<Utc>,
    #[schema(value_type = String)]
    correlation_id: &'a CorrelationId,
}

impl<'a> From<&'a FailedRow> for Row<'a> {
    fn from(FailedRow { row, event }: &'a FailedRow) -> Self {
        Self {
            outbox_id: row.outbox_id,
            channel: &row.channel,
            status: row.status,
            status_changed_at: row.status_changed_at,
            status_reason: row.status_reason.as_deref(),
            status_message: row.status_message.as_deref(),
            retry_count: row.retry_count,
            next_retry_at: row.next_retry_at,
            parked_at: row.parked_at,
            event_id: row.event_id,
            event_type: &event.event_type,
            aggregate: (&event.aggregate).into(),
            aggregate_version: event.aggregate_version,
            occurred_at: event.occurred_at,
            correlation_id: &event.correlation_id,
        }
    }
}
