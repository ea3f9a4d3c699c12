//! Bulk actions on dead letters: counted first, and then on exactly what was counted.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::letters::LetterFilter;
use towpath::{Preview, ReplayReport, Towpath};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::shown::Cause;
use crate::http::App;
use crate::http::access::Caller;
use crate::http::extract::{JsonBody, SoughtText};
use crate::http::outbox::as_many_as_expected;
use crate::http::problem::Problem;
use crate::http::range::whole_number;

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(replay_many)).routes(routes!(discard_many))
}

/// Which dead letters. What is not said fits all.
#[derive(Deserialize, ToSchema)]
#[schema(as = BulkLettersAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ManyAsked {
    /// Of this handler.
    #[schema(value_type = Option<String>)]
    handler: Option<SoughtText>,
    /// From this queue.
    #[schema(value_type = Option<String>)]
    queue: Option<SoughtText>,
    /// Of this type.
    #[schema(value_type = Option<String>)]
    message_type: Option<SoughtText>,
    /// With this reason (a stable code).
    #[schema(value_type = Option<String>)]
    reason: Option<SoughtText>,
    /// That came at this moment or later.
    since: Option<DateTime<Utc>>,
    /// That came before this moment.
    until: Option<DateTime<Utc>>,
    /// With at most this number: a dry run says which was the last.
    #[serde(default, deserialize_with = "whole_number")]
    #[schema(minimum = 0, maximum = 9007199254740991_i64)]
    up_to: Option<u64>,
    /// Only say how many they are, by cause.
    #[serde(default)]
    dry_run: bool,
    /// How many the caller believes they are: if they are not, nothing is done.
    #[serde(default, deserialize_with = "whole_number")]
    #[schema(minimum = 0, maximum = 9007199254740991_i64)]
    expected: Option<u64>,
    /// To replay also those that are older than inboxes remember.
    #[serde(default)]
    force: bool,
    /// Why they are discarded, for people.
    message: Option<String>,
}

impl ManyAsked {
    /// What is asked for, if it is as many as the caller believes.
    async fn preview(&self, app: &Towpath) -> Result<Preview, Problem> {
        let filter = LetterFilter {
            status: None,
            handler: self.handler.clone().map(String::from),
            queue: self.queue.clone().map(String::from),
            message_type: self.message_type.clone().map(String::from),
            reason: self.reason.clone().map(String::from),
            since: self.since,
            until: self.until,
            up_to: self.up_to,
        };
        let preview = app.dead_letters().preview(filter).await?;
        if !self.dry_run {
            as_many_as_expected(preview.count, self.expected)?;
        }
        Ok(preview)
    }
}

/// Lets all dead letters be tried again that fit
///
/// Ask with `dryRun` first, and send its count as `expected`: if it is no longer true, nothing is done.
#[utoipa::path(
    post,
    path = "/api/dead-letters/replay",
    tag = "dead letters",
    operation_id = "replayDeadLetters",
    request_body = ManyAsked,
    responses(
        (status = 200, description = "Which fit, and what was done.", body = ManyReplayed),
        (status = 409, description = "There are not as many as expected."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
    )
)]
async fn replay_many(
    State(app): State<Towpath>,
    caller: Caller,
    JsonBody(asked): JsonBody<ManyAsked>,
) -> Result<Response, Problem> {
    let preview = asked.preview(&app).await?;
    let replayed = match asked.dry_run {
        true => None,
        false => Some(app.dead_letters().by(caller.name).replay_all(&preview, asked.force).await?.into()),
    };
    Ok(Json(ManyReplayed { scope: Scope::from(&preview), replayed }).into_response())
}

/// Throws all dead letters away that fit
///
/// Ask with `dryRun` first, and send its count as `expected`: if it is no longer true, nothing is done.
#[utoipa::path(
    post,
    path = "/api/dead-letters/discard",
    tag = "dead letters",
    operation_id = "discardDeadLetters",
    request_body = ManyAsked,
    responses(
        (status = 200, description = "Which fit, and what was done.", body = ManyDiscarded),
        (status = 409, description = "There are not as many as expected."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
    )
)]
async fn discard_many(
    State(app): State<Towpath>,
    caller: Caller,
    JsonBody(asked): JsonBody<ManyAsked>,
) -> Result<Response, Problem> {
    let preview = asked.preview(&app).await?;
    let discarded = match asked.dry_run {
        true => None,
        false => {
            Some(app.dead_letters().by(caller.name).discard_all(&preview, asked.message.as_deref()).await?)
        }
    };
    Ok(Json(ManyDiscarded { scope: Scope::from(&preview), discarded }).into_response())
}

/// What a bulk action touches.
#[derive(Serialize, ToSchema)]
#[schema(as = LettersScope)]
#[serde(rename_all = "camelCase")]
struct Scope<'a> {
    /// How many letters.
    count: u64,
    /// The highest number among them.
    up_to: u64,
    /// By cause, the largest groups first.
    causes: Vec<Cause<'a>>,
}

impl<'a> From<&'a Preview> for Scope<'a> {
    fn from(preview: &'a Preview) -> Self {
        let groups = &preview.groups;
        Self {
            count: preview.count,
            up_to: groups.iter().map(|group| group.last_id).max().unwrap_or(0),
            causes: groups.iter().map(Cause::from).collect(),
        }
    }
}

/// What a bulk replay touches, and did.
#[derive(Serialize, ToSchema)]
#[schema(as = BulkReplay)]
struct ManyReplayed<'a> {
    #[serde(flatten)]
    scope: Scope<'a>,
    /// Nothing on a dry run.
    replayed: Option<Replayed>,
}

/// What a bulk discard touches, and did.
#[derive(Serialize, ToSchema)]
#[schema(as = BulkDiscard)]
struct ManyDiscarded<'a> {
    #[serde(flatten)]
    scope: Scope<'a>,
    /// How many were thrown away; nothing on a dry run.
    discarded: Option<u64>,
}

/// What a replay did.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Replayed {
    /// Letters that are due now at their handler.
    to_handlers: u64,
    /// Letters that went back to the broker.
    to_broker: u64,
    /// Letters that were not dead any more.
    changed_meanwhile: u64,
    /// Letters that were refused, because they are older than inboxes remember.
    beyond_horizon: u64,
    /// Letters that were refused, because their body was larger than the database takes and is gone.
    without_body: u64,
}

impl From<ReplayReport> for Replayed {
    fn from(report: ReplayReport) -> Self {
        Self {
            to_handlers: report.to_handlers,
            to_broker: report.to_broker,
            changed_meanwhile: report.changed_meanwhile,
            beyond_horizon: report.beyond_horizon,
            without_body: report.without_body,
        }
    }
}
