//! Dead letters over HTTP: deliveries that were set aside, and what an operator does with them.

mod bulk;
mod shown;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use towpath::Towpath;
use towpath::letters::LetterFilter;
use towpath::lifecycle::LetterStatus;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::access::{Caller, Role};
use super::extract::{JsonBody, OptionalJsonBody, Path, Query, SoughtText};
use super::problem::{AfterDone as _, Problem};
use super::range::{Number, limit, number, usually};
use shown::{Cause, Causes, Encoding, InFull, LetterBody, LetterPage, encoding, letter_status};

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(causes))
        .merge(bulk::routes())
        .routes(routes!(show, edit))
        .routes(routes!(replay))
        .routes(routes!(discard))
}

/// Which letters.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LetterQuery {
    /// Only those in this status; the dead ones if nothing is said.
    #[param(schema_with = letter_status)]
    status: Option<LetterStatus>,
    /// Only those of this handler.
    #[param(value_type = Option<String>)]
    handler: Option<SoughtText>,
    /// Only those from this queue.
    #[param(value_type = Option<String>)]
    queue: Option<SoughtText>,
    /// Only those of this type.
    #[param(value_type = Option<String>)]
    message_type: Option<SoughtText>,
    /// Only those with this reason (a stable code).
    #[param(value_type = Option<String>)]
    reason: Option<SoughtText>,
    /// Only those that came at this moment or later.
    since: Option<DateTime<Utc>>,
    /// Only those that came before this moment.
    until: Option<DateTime<Utc>>,
    /// Only what is behind this number; 0 begins at the first.
    #[serde(default, deserialize_with = "number")]
    #[param(required = false, minimum = 0, maximum = 9007199254740991_i64)]
    after: u64,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "limit")]
    #[param(required = false, minimum = 1, maximum = 1000)]
    limit: u32,
}

impl LetterQuery {
    fn filter(self) -> LetterFilter {
        LetterFilter {
            status: Some(self.status.unwrap_or(LetterStatus::Dead)),
            handler: self.handler.map(String::from),
            queue: self.queue.map(String::from),
            message_type: self.message_type.map(String::from),
            reason: self.reason.map(String::from),
            since: self.since,
            until: self.until,
            up_to: None,
        }
    }
}

/// Letters, by number
///
/// The dead ones, unless another status is asked for. `next` is what to give as `after` to read on.
#[utoipa::path(
    get,
    path = "/api/dead-letters",
    tag = "dead letters",
    operation_id = "listDeadLetters",
    params(LetterQuery),
    responses((status = 200, description = "The letters.", body = LetterPage))
)]
async fn list(State(app): State<Towpath>, Query(which): Query<LetterQuery>) -> Result<Response, Problem> {
    let (after, limit) = (which.after, which.limit);
    let letters = app.store().letters_in_short(&which.filter(), after, limit).await?;
    let next = letters.last().map_or(after, |letter| letter.letter_id);
    Ok(Json(LetterPage { letters: letters.iter().map(LetterBody::from).collect(), next }).into_response())
}

/// Letters by cause, the largest groups first
///
/// `after` and `limit` do not matter here.
#[utoipa::path(
    get,
    path = "/api/dead-letters/causes",
    tag = "dead letters",
    operation_id = "listCausesOfDeath",
    params(LetterQuery),
    responses((status = 200, description = "The groups.", body = Causes))
)]
async fn causes(State(app): State<Towpath>, Query(which): Query<LetterQuery>) -> Result<Response, Problem> {
    let groups = app.dead_letters().groups(&which.filter()).await?;
    Ok(Json(Causes { causes: groups.iter().map(Cause::from).collect() }).into_response())
}

/// One letter, with its message
///
/// What the message says is shown to operators: of whom it tells, and whether that is confidential, cannot be relied on.
#[utoipa::path(
    get,
    path = "/api/dead-letters/{id}",
    tag = "dead letters",
    operation_id = "showDeadLetter",
    params(("id" = u64, Path, description = "The letter's number.", minimum = 0, maximum = 9007199254740991_i64)),
    responses(
        (status = 200, description = "The letter.", body = InFull),
        (status = 404, description = "There is no such letter."),
    )
)]
async fn show(
    State(app): State<Towpath>,
    caller: Caller,
    Path(Number(id)): Path<Number>,
) -> Result<Response, Problem> {
    in_full(&app, caller.role, id).await
}

/// What a letter's message is to say.
#[derive(Deserialize, ToSchema)]
#[schema(as = EditAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EditAsked {
    /// The whole body of the message, as it is handled then.
    body: String,
    /// How the body is written here; as text if nothing is said.
    #[serde(default)]
    #[schema(schema_with = encoding)]
    encoding: Encoding,
}

/// Replaces the body of a dead letter
///
/// The first one is kept beside it. Nothing is handled yet: replay it then.
#[utoipa::path(
    put,
    path = "/api/dead-letters/{id}",
    tag = "dead letters",
    operation_id = "editDeadLetter",
    params(("id" = u64, Path, description = "The letter's number.", minimum = 0, maximum = 9007199254740991_i64)),
    request_body = EditAsked,
    responses(
        (status = 200, description = "The letter as it is now.", body = InFull),
        (status = 404, description = "There is no such letter."),
        (status = 409, description = "It is not dead."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "It is not written in the encoding that it names."),
    )
)]
async fn edit(
    State(app): State<Towpath>,
    caller: Caller,
    Path(Number(id)): Path<Number>,
    JsonBody(asked): JsonBody<EditAsked>,
) -> Result<Response, Problem> {
    let body = match asked.encoding {
        Encoding::Text => asked.body.into_bytes(),
        Encoding::Base64 => BASE64.decode(&asked.body).map_err(|error| {
            let title = format!("the body is not base64: {error}");
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-payload", title, "Send it as text.")
        })?,
    };
    let role = caller.role;
    app.dead_letters().by(caller.name).edit(id, &body).await?;
    in_full(&app, role, id).await.after_it_was_done()
}

/// How a letter is replayed.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = ReplayAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReplayAsked {
    /// For admins: also if it is older than inboxes remember.
    #[serde(default)]
    force: bool,
}

/// Lets a dead letter be tried again
#[utoipa::path(
    post,
    path = "/api/dead-letters/{id}/replay",
    tag = "dead letters",
    operation_id = "replayDeadLetter",
    params(("id" = u64, Path, description = "The letter's number.", minimum = 0, maximum = 9007199254740991_i64)),
    request_body(content = Option<ReplayAsked>),
    responses(
        (status = 200, description = "It is tried again; this is the letter now.", body = InFull),
        (status = 404, description = "There is no such letter."),
        (status = 409, description = "It is not dead, or it is older than inboxes remember."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
    )
)]
async fn replay(
    State(app): State<Towpath>,
    caller: Caller,
    Path(Number(id)): Path<Number>,
    OptionalJsonBody(asked): OptionalJsonBody<ReplayAsked>,
) -> Result<Response, Problem> {
    caller.may_force(asked.force)?;
    let role = caller.role;
    app.dead_letters().by(caller.name).replay(id, asked.force).await?;
    in_full(&app, role, id).await.after_it_was_done()
}

/// Why a letter is thrown away.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = DiscardAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DiscardAsked {
    /// For people.
    message: Option<String>,
}

/// Throws a letter away
///
/// What waits behind it goes on.
#[utoipa::path(
    post,
    path = "/api/dead-letters/{id}/discard",
    tag = "dead letters",
    operation_id = "discardDeadLetter",
    params(("id" = u64, Path, description = "The letter's number.", minimum = 0, maximum = 9007199254740991_i64)),
    request_body(content = Option<DiscardAsked>),
    responses(
        (status = 200, description = "It was thrown away; this is the letter now.", body = InFull),
        (status = 404, description = "There is no such letter."),
        (status = 409, description = "It is through already."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
    )
)]
async fn discard(
    State(app): State<Towpath>,
    caller: Caller,
    Path(Number(id)): Path<Number>,
    OptionalJsonBody(asked): OptionalJsonBody<DiscardAsked>,
) -> Result<Response, Problem> {
    let role = caller.role;
    app.dead_letters().by(caller.name).discard(id, asked.message.as_deref()).await?;
    in_full(&app, role, id).await.after_it_was_done()
}

async fn in_full(app: &Towpath, role: Role, id: u64) -> Result<Response, Problem> {
    let letter = app.dead_letters().get(id).await?;
    Ok(Json(InFull::seen(&letter, role)).into_response())
}
