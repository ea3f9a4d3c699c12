//! Dead letters over HTTP: deliveries that were set aside, and what an operator does with them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::ids::{ActorId, EventId, HandlerName};
use towpath::letters::{Letter, LetterFilter, LetterGroup};
use towpath::lifecycle::LetterStatus;
use towpath::{Preview, ReplayReport, Towpath};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::extract::{JsonBody, OptionalJsonBody, Path, Query, SoughtText};
use super::outbox::as_many_as_expected;
use super::problem::Problem;
use super::range::{Number, limit, number, usually, whole_number};
use super::wire::one_of;

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(causes))
        .routes(routes!(replay_many))
        .routes(routes!(discard_many))
        .routes(routes!(show, edit))
        .routes(routes!(replay))
        .routes(routes!(discard))
}

fn letter_status() -> utoipa::openapi::schema::Object {
    one_of(LetterStatus::ALL.iter().map(|status| status.as_str()))
}

/// Which letters.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Which {
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

impl Which {
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
    params(Which),
    responses((status = 200, description = "The letters.", body = Listed))
)]
async fn list(State(app): State<Towpath>, Query(which): Query<Which>) -> Result<Response, Problem> {
    let (after, limit) = (which.after, which.limit);
    let letters = app.dead_letters().list(&which.filter(), after, limit).await?;
    let next = letters.last().map_or(after, |letter| letter.letter_id);
    Ok(Json(Listed { letters: letters.iter().map(Shown::from).collect(), next }).into_response())
}

/// Letters by cause, the largest groups first
///
/// `after` and `limit` do not matter here.
#[utoipa::path(
    get,
    path = "/api/dead-letters/causes",
    tag = "dead letters",
    operation_id = "listCausesOfDeath",
    params(Which),
    responses((status = 200, description = "The groups.", body = Causes))
)]
async fn causes(State(app): State<Towpath>, Query(which): Query<Which>) -> Result<Response, Problem> {
    let groups = app.dead_letters().groups(&which.filter()).await?;
    Ok(Json(Causes { causes: groups.iter().map(Cause::from).collect() }).into_response())
}

/// One letter, with its message
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
async fn show(State(app): State<Towpath>, Path(Number(id)): Path<Number>) -> Result<Response, Problem> {
    in_full(&app, id).await
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

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Text,
    Base64,
}

fn encoding() -> utoipa::openapi::schema::Object {
    one_of(["text", "base64"])
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
    app.dead_letters().edit(id, &body).await?;
    in_full(&app, id).await
}

/// How a letter is replayed.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = ReplayAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReplayAsked {
    /// Also if it is older than inboxes remember.
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
    Path(Number(id)): Path<Number>,
    OptionalJsonBody(asked): OptionalJsonBody<ReplayAsked>,
) -> Result<Response, Problem> {
    app.dead_letters().replay(id, asked.force).await?;
    in_full(&app, id).await
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
    Path(Number(id)): Path<Number>,
    OptionalJsonBody(asked): OptionalJsonBody<DiscardAsked>,
) -> Result<Response, Problem> {
    app.dead_letters().discard(id, asked.message.as_deref()).await?;
    in_full(&app, id).await
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
    JsonBody(asked): JsonBody<ManyAsked>,
) -> Result<Response, Problem> {
    let preview = asked.preview(&app).await?;
    let replayed = match asked.dry_run {
        true => None,
        false => Some(app.dead_letters().replay_all(&preview, asked.force).await?.into()),
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
    JsonBody(asked): JsonBody<ManyAsked>,
) -> Result<Response, Problem> {
    let preview = asked.preview(&app).await?;
    let discarded = match asked.dry_run {
        true => None,
        false => Some(app.dead_letters().discard_all(&preview, asked.message.as_deref()).await?),
    };
    Ok(Json(ManyDiscarded { scope: Scope::from(&preview), discarded }).into_response())
}

async fn in_full(app: &Towpath, id: u64) -> Result<Response, Problem> {
    let letter = app.dead_letters().get(id).await?;
    Ok(Json(InFull::from(&letter)).into_response())
}

/// Letters, by number.
#[derive(Serialize, ToSchema)]
#[schema(as = Letters)]
struct Listed<'a> {
    letters: Vec<Shown<'a>>,
    /// What to give as `after` to read on.
    next: u64,
}

/// A delivery that was set aside.
#[derive(Serialize, ToSchema)]
#[schema(as = Letter)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    letter_id: u64,
    /// Whose delivery it was; nothing for what the broker gave up.
    #[schema(value_type = Option<String>)]
    handler: Option<&'a HandlerName>,
    #[schema(value_type = Option<uuid::Uuid>)]
    event_id: Option<EventId>,
    queue: &'a str,
    message_id: Option<&'a str>,
    message_type: Option<&'a str>,
    occurred_at: Option<DateTime<Utc>>,
    received_at: DateTime<Utc>,
    #[schema(schema_with = letter_status)]
    status: LetterStatus,
    status_changed_at: DateTime<Utc>,
    /// A stable code.
    status_reason: Option<&'a str>,
    /// A text for people.
    status_message: Option<&'a str>,
    /// Failures so far.
    retry_count: u32,
    /// When it is tried again.
    due_at: Option<DateTime<Utc>>,
    replayed_at: Option<DateTime<Utc>>,
    /// Whether an operator has changed its body.
    edited: bool,
    /// Which operator acted last.
    #[schema(value_type = Option<String>)]
    changed_by_id: Option<&'a ActorId>,
}

impl<'a> From<&'a Letter> for Shown<'a> {
    fn from(letter: &'a Letter) -> Self {
        let message = &letter.letter.message;
        Self {
            letter_id: letter.letter_id,
            handler: letter.letter.handler.as_ref(),
            event_id: letter.letter.event_id,
            queue: &message.queue,
            message_id: message.message_id.as_deref(),
            message_type: message.message_type.as_deref(),
            occurred_at: message.occurred_at,
            received_at: letter.letter.received_at,
            status: letter.status,
            status_changed_at: letter.status_changed_at,
            status_reason: letter.status_reason.as_deref(),
            status_message: letter.status_message.as_deref(),
            retry_count: letter.retry_count,
            due_at: letter.due_at,
            replayed_at: letter.replayed_at,
            edited: letter.original_body.is_some(),
            changed_by_id: letter.changed_by_id.as_ref(),
        }
    }
}

/// A letter with its message, to the letter.
#[derive(Serialize, ToSchema)]
#[schema(as = LetterInFull)]
#[serde(rename_all = "camelCase")]
struct InFull<'a> {
    #[serde(flatten)]
    letter: Shown<'a>,
    exchange: &'a str,
    routing_key: &'a str,
    message_key: Option<&'a str>,
    content_type: Option<&'a str>,
    headers: Vec<Header<'a>>,
    #[schema(schema_with = encoding)]
    body_encoding: Encoding,
    body: String,
    /// How the message was before an operator changed it.
    #[schema(schema_with = encoding)]
    original_body_encoding: Encoding,
    original_body: Option<String>,
}

/// A header of a message.
#[derive(Serialize, ToSchema)]
#[schema(as = MessageHeader)]
struct Header<'a> {
    name: &'a str,
    value: &'a str,
}

impl<'a> From<&'a Letter> for InFull<'a> {
    fn from(letter: &'a Letter) -> Self {
        let message = &letter.letter.message;
        let (body, body_encoding) = written(&message.body);
        let original = letter.original_body.as_deref().map(written);
        Self {
            letter: letter.into(),
            exchange: &message.destination.exchange,
            routing_key: &message.destination.routing_key,
            message_key: message.key.as_deref(),
            content_type: message.content_type.as_deref(),
            headers: message.headers.iter().map(|(name, value)| Header { name, value }).collect(),
            body_encoding,
            body,
            original_body_encoding: original.as_ref().map_or(Encoding::Text, |(_, encoding)| *encoding),
            original_body: original.map(|(body, _)| body),
        }
    }
}

/// Bytes as text where they are text, else in base64.
fn written(bytes: &[u8]) -> (String, Encoding) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), Encoding::Text),
        Err(_) => (BASE64.encode(bytes), Encoding::Base64),
    }
}

/// Letters by cause.
#[derive(Serialize, ToSchema)]
#[schema(as = CausesOfDeath)]
struct Causes<'a> {
    causes: Vec<Cause<'a>>,
}

/// Letters with one cause.
#[derive(Serialize, ToSchema)]
#[schema(as = CauseOfDeath)]
#[serde(rename_all = "camelCase")]
struct Cause<'a> {
    #[schema(schema_with = letter_status)]
    status: LetterStatus,
    handler: Option<&'a str>,
    queue: &'a str,
    message_type: Option<&'a str>,
    reason: Option<&'a str>,
    count: u64,
    oldest_at: DateTime<Utc>,
    newest_at: DateTime<Utc>,
    /// The highest number among them.
    last_id: u64,
}

impl<'a> From<&'a LetterGroup> for Cause<'a> {
    fn from(group: &'a LetterGroup) -> Self {
        Self {
            status: group.status,
            handler: group.handler.as_deref(),
            queue: &group.queue,
            message_type: group.message_type.as_deref(),
            reason: group.reason.as_deref(),
            count: group.count,
            oldest_at: group.oldest_at,
            newest_at: group.newest_at,
            last_id: group.last_id,
        }
    }
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
}

impl From<ReplayReport> for Replayed {
    fn from(report: ReplayReport) -> Self {
        Self {
            to_handlers: report.to_handlers,
            to_broker: report.to_broker,
            changed_meanwhile: report.changed_meanwhile,
            beyond_horizon: report.beyond_horizon,
        }
    }
}
