//! Channels and consumers over HTTP: where facts go, how far that is, and switching it off and on.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::channel::{RoutingKey, Target};
use towpath::format::{CLOUD_EVENTS, TOWPATH};
use towpath::ids::{ActorId, ChannelName, HandlerName};
use towpath::lifecycle::LetterStatus;
use towpath::ports::store::{ChannelRow, Disabled};
use towpath::{Backlog, Channel, ConsumerView, OutboxBacklog, Start, Towpath};
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::openapi::{OpenApi, RefOr};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::access::Caller;
use super::extract::{JsonBody, OptionalJsonBody, Path};
use super::outbox::channel_name;
use super::problem::{AfterDone as _, Problem};
use super::range::whole_number;
use super::wire::one_of;

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, add))
        .routes(routes!(remove))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(reset))
        .routes(routes!(consumers))
}

/// All channels
///
/// Those whose events get outbox rows as they are written, and those that follow the log.
#[utoipa::path(
    get,
    path = "/api/channels",
    tag = "channels",
    operation_id = "listChannels",
    responses((status = 200, description = "The channels.", body = ChannelList))
)]
async fn list(State(app): State<Towpath>) -> Result<Response, Problem> {
    let backlog = app.backlog().await?;
    let tracked = app.channels().list().await?;
    let head = backlog.log.head;
    let outbox = app.outbox_channels().iter().map(|channel| {
        let waiting = backlog.outbox.iter().find(|waiting| waiting.channel == channel.name);
        ChannelBody::of_outbox(channel, waiting)
    });
    let trackers = tracked.iter().map(|row| ChannelBody::of_tracker(row, head));
    Ok(Json(ChannelList { head, channels: outbox.chain(trackers).collect() }).into_response())
}

/// A channel that is to follow the log.
#[derive(Deserialize, ToSchema)]
#[schema(as = ChannelAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ChannelRequest {
    #[schema(min_length = 1, max_length = 64)]
    name: String,
    /// Which events: any of these patterns; `*` stands for any run of characters.
    #[schema(min_items = 1)]
    events: Vec<String>,
    /// The exchange it publishes to (on Kafka: the topic).
    #[schema(min_length = 1)]
    exchange: String,
    /// Under this key; under the event's type if nothing is said.
    routing_key: Option<String>,
    /// How an event looks as a message.
    #[serde(default = "usual_format")]
    #[schema(required = false, schema_with = format)]
    format: String,
    /// Where it begins; with what comes from now on, if nothing is said. Only admins may begin elsewhere: it publishes facts
    /// that may have been published before.
    #[schema(required = false, schema_with = begin_or_nothing)]
    start: Option<Begin>,
}

fn usual_format() -> String {
    TOWPATH.to_owned()
}

fn format() -> Object {
    one_of([TOWPATH, CLOUD_EVENTS])
}

/// Names the formats that this server knows: those of its applications, too.
pub(super) fn name_formats(document: &mut OpenApi, app: &Towpath) {
    let names = app.registry().formats().names();
    let known = ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(names))
        .description(Some("How an event looks as a message."))
        .build();
    let schemas = document.components.as_mut().map(|components| &mut components.schemas);
    let request = schemas.and_then(|schemas| schemas.get_mut(&*ChannelRequest::name()));
    if let Some(RefOr::T(Schema::Object(request))) = request {
        request.properties.insert("format".to_owned(), known.into());
    }
}

/// Where a channel begins: `first`, `now`, or a position.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Begin {
    Named(End),
    At(#[serde(deserialize_with = "position")] u64),
}

fn position<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let position = whole_number(deserializer)?.filter(|position| *position > 0);
    position.ok_or_else(|| serde::de::Error::custom("a position is a whole number from 1 on"))
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum End {
    First,
    Now,
}

fn begin_or_nothing() -> Schema {
    let nothing = ObjectBuilder::new().schema_type(Type::Null);
    begin_builder().item(nothing).build().into()
}

fn begin() -> Schema {
    begin_builder().build().into()
}

fn begin_builder() -> OneOfBuilder {
    let position = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1))
        .maximum(Some(9_007_199_254_740_991_i64))
        .description(Some("With the event at this position."));
    OneOfBuilder::new().item(one_of(["first", "now"])).item(position)
}

impl From<Begin> for Start {
    fn from(begin: Begin) -> Self {
        match begin {
            Begin::Named(End::First) => Self::First,
            Begin::Named(End::Now) => Self::Now,
            Begin::At(position) => Self::At(position),
        }
    }
}

/// Adds a channel that follows the log
///
/// It begins at once, in the process that answers. Where it publishes to is not stored: for after a restart, write it
/// into the configuration file, too.
#[utoipa::path(
    post,
    path = "/api/channels",
    tag = "channels",
    operation_id = "addChannel",
    request_body = ChannelRequest,
    responses(
        (status = 201, description = "It was added; this is the channel.", body = ChannelBody),
        (status = 409, description = "A living channel has the name."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "It cannot be followed."),
    )
)]
async fn add(
    State(app): State<Towpath>,
    caller: Caller,
    JsonBody(asked): JsonBody<ChannelRequest>,
) -> Result<Response, Problem> {
    let start = asked.start.map_or(Start::Now, Start::from);
    // What is behind is published again.
    caller.may_force(start != Start::Now)?;
    let name = channel_name(asked.name)?;
    if asked.events.is_empty() || asked.exchange.is_empty() {
        let title = "a channel needs events and an exchange";
        return Err(Problem::malformed(title, "Write [\"*\"] for all events, and the name of the exchange."));
    }
    if app.outbox_channels().iter().any(|channel| channel.name == name) {
        return Err(taken(&name));
    }
    let target = Target {
        exchange: asked.exchange,
        routing_key: asked.routing_key.map_or(RoutingKey::EventType, RoutingKey::Fixed),
    };
    let channel = Channel::named(name.as_str(), asked.events.iter().map(String::as_str))
        .map_err(|error| Problem::invalid_id(&error))?;
    let channel = Channel { tracking: Some(start), target: Some(target), format: asked.format, ..channel };
    app.channels().add(channel).await?;
    Ok((StatusCode::CREATED, shown(&app, &name).await.after_it_was_done()?).into_response())
}

/// Removes a channel that follows the log
///
/// Its name is free again.
#[utoipa::path(
    delete,
    path = "/api/channels/{name}",
    tag = "channels",
    operation_id = "removeChannel",
    params(("name" = String, Path, description = "The channel's name.")),
    responses(
        (status = 204, description = "It was removed."),
        (status = 404, description = "There is no such channel."),
        (status = 422, description = "It does not follow the log: its events get outbox rows, by the configuration."),
    )
)]
async fn remove(
    State(app): State<Towpath>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let name = follower(&app, name)?;
    app.channels().remove(&name, Some(&caller.name), "operator").await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Why a channel is paused.
#[derive(Default, Deserialize, ToSchema)]
#[schema(as = PauseAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PauseAsked {
    /// A short code; `operator` if nothing is said.
    #[schema(min_length = 1, max_length = 128)]
    reason: Option<String>,
}

/// Pauses a channel that follows the log
///
/// What it is publishing at the moment still goes out.
#[utoipa::path(
    post,
    path = "/api/channels/{name}/pause",
    tag = "channels",
    operation_id = "pauseChannel",
    params(("name" = String, Path, description = "The channel's name.")),
    request_body(content = Option<PauseAsked>),
    responses(
        (status = 200, description = "It is paused; this is the channel now.", body = ChannelBody),
        (status = 404, description = "There is no such channel."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "It does not follow the log."),
    )
)]
async fn pause(
    State(app): State<Towpath>,
    caller: Caller,
    Path(name): Path<String>,
    OptionalJsonBody(asked): OptionalJsonBody<PauseAsked>,
) -> Result<Response, Problem> {
    let name = follower(&app, name)?;
    let reason = asked.reason.as_deref().unwrap_or("operator");
    // It is stored where codes are, and they have a length.
    if reason.is_empty() || reason.chars().count() > 128 || reason.chars().any(char::is_control) {
        let title = "the reason is no code: write 1 to 128 characters, such as \"upgrade\"";
        let detail = "Correct what the title names and send it again.";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-id", title, detail));
    }
    app.channels().pause(&name, Some(caller.name), reason).await?;
    shown(&app, &name).await.after_it_was_done()
}

/// Lets a channel go on from where it was paused
#[utoipa::path(
    post,
    path = "/api/channels/{name}/resume",
    tag = "channels",
    operation_id = "resumeChannel",
    params(("name" = String, Path, description = "The channel's name.")),
    responses(
        (status = 200, description = "It goes on; this is the channel now.", body = ChannelBody),
        (status = 404, description = "There is no such channel."),
        (status = 422, description = "It does not follow the log."),
    )
)]
async fn resume(State(app): State<Towpath>, Path(name): Path<String>) -> Result<Response, Problem> {
    let name = follower(&app, name)?;
    app.channels().resume(&name).await?;
    shown(&app, &name).await.after_it_was_done()
}

/// Where a channel is set to.
#[derive(Deserialize, ToSchema)]
#[schema(as = ResetAsked)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResetAsked {
    /// Where it goes on: `first`, `now`, or a position.
    #[schema(schema_with = begin)]
    start: Begin,
    /// Also if it would publish again what is older than inboxes remember.
    #[serde(default)]
    force: bool,
}

/// Sets a channel back, or forward
///
/// What it publishes again has the same message ids.
#[utoipa::path(
    post,
    path = "/api/channels/{name}/reset",
    tag = "channels",
    operation_id = "resetChannel",
    params(("name" = String, Path, description = "The channel's name.")),
    request_body = ResetAsked,
    responses(
        (status = 200, description = "It was set; this is the channel now.", body = ChannelBody),
        (status = 404, description = "There is no such channel."),
        (status = 409, description = "It would publish again what is older than inboxes remember."),
        (status = 413, description = "The request is too large."),
        (status = 415, description = "The body is not JSON."),
        (status = 422, description = "It does not follow the log."),
    )
)]
async fn reset(
    State(app): State<Towpath>,
    Path(name): Path<String>,
    JsonBody(asked): JsonBody<ResetAsked>,
) -> Result<Response, Problem> {
    let name = follower(&app, name)?;
    let start = Start::from(asked.start);
    match asked.force {
        true => app.channels().reset_by_force(&name, start).await?,
        false => app.channels().reset(&name, start).await?,
    };
    shown(&app, &name).await.after_it_was_done()
}

/// The consumers of this server
#[utoipa::path(
    get,
    path = "/api/consumers",
    tag = "consumers",
    operation_id = "listConsumers",
    responses((status = 200, description = "The consumers.", body = Consumers))
)]
async fn consumers(State(app): State<Towpath>) -> Result<Response, Problem> {
    let backlog = app.backlog().await?;
    let consumers = app.consumers().iter().map(|consumer| Consumer::of(consumer, &backlog));
    Ok(Json(Consumers { consumers: consumers.collect() }).into_response())
}

/// The name of a channel that follows the log, or might.
fn follower(app: &Towpath, name: String) -> Result<ChannelName, Problem> {
    let name = ChannelName::new(name).map_err(|error| Problem::not_found(error.to_string()))?;
    if app.outbox_channels().iter().any(|channel| channel.name == name) {
        return Err(towpath::ChannelError::NotTracking(name).into());
    }
    Ok(name)
}

fn taken(name: &ChannelName) -> Problem {
    towpath::ports::store::StoreError::NameTaken { what: "channel", name: name.to_string() }.into()
}

async fn shown(app: &Towpath, name: &ChannelName) -> Result<Response, Problem> {
    let head = app.store().head().await?;
    let rows = app.channels().list().await?;
    let row = rows.iter().find(|row| row.name == *name);
    let row = row.ok_or_else(|| Problem::not_found(format!("there is no channel {name}")))?;
    Ok(Json(ChannelBody::of_tracker(row, head)).into_response())
}

/// All channels.
#[derive(Serialize, ToSchema)]
#[schema(as = Channels)]
struct ChannelList<'a> {
    /// The last position of the log.
    head: u64,
    channels: Vec<ChannelBody<'a>>,
}

/// A channel and how far it is.
#[derive(Serialize, ToSchema)]
#[schema(as = Channel)]
#[serde(rename_all = "camelCase")]
struct ChannelBody<'a> {
    #[schema(value_type = String)]
    name: &'a ChannelName,
    /// `outbox`: its events get rows as they are written. `tracker`: it follows the log.
    #[schema(schema_with = channel_kind)]
    kind: &'static str,
    /// Which events, if this process knows it.
    events: Option<Vec<&'a str>>,
    /// Where to, if this process knows it.
    exchange: Option<&'a str>,
    /// Of a tracker: the last position it has published.
    position: Option<u64>,
    /// Of a tracker: how many positions it is behind.
    lag: Option<u64>,
    /// Of an outbox: rows that wait to be published. Counting ends at 100000.
    pending: Option<u64>,
    /// Of an outbox: rows that wait behind another of their aggregate.
    parked: Option<u64>,
    /// Of an outbox: rows that were given up.
    failed: Option<u64>,
    /// Of an outbox: when the first event happened of those that wait to be published.
    oldest_at: Option<DateTime<Utc>>,
    /// Of a tracker that is switched off: since when, by whom and why.
    paused: Option<Paused<'a>>,
}

fn channel_kind() -> utoipa::openapi::schema::Object {
    one_of(["outbox", "tracker"])
}

impl<'a> ChannelBody<'a> {
    fn of_outbox(channel: &'a Channel, waiting: Option<&OutboxBacklog>) -> Self {
        Self {
            name: &channel.name,
            kind: "outbox",
            events: Some(channel.event_types.iter().map(|glob| glob.as_str()).collect()),
            exchange: channel.target.as_ref().map(|target| target.exchange.as_str()),
            position: None,
            lag: None,
            pending: waiting.map(|waiting| waiting.pending),
            parked: waiting.map(|waiting| waiting.parked),
            failed: waiting.map(|waiting| waiting.failed),
            oldest_at: waiting.and_then(|waiting| waiting.oldest_at),
            paused: None,
        }
    }

    fn of_tracker(row: &'a ChannelRow, head: u64) -> Self {
        Self {
            name: &row.name,
            kind: "tracker",
            events: None,
            exchange: None,
            position: Some(row.position),
            lag: Some(head.saturating_sub(row.position)),
            pending: None,
            parked: None,
            failed: None,
            oldest_at: None,
            paused: row.disabled.as_ref().map(Paused::from),
        }
    }
}

/// Since when, by whom and why something is switched off.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Paused<'a> {
    at: DateTime<Utc>,
    #[schema(value_type = Option<String>)]
    by_id: Option<&'a ActorId>,
    /// A stable code.
    reason: &'a str,
    /// A text for people.
    message: Option<&'a str>,
}

impl<'a> From<&'a Disabled> for Paused<'a> {
    fn from(disabled: &'a Disabled) -> Self {
        Self {
            at: disabled.at,
            by_id: disabled.by_id.as_ref(),
            reason: &disabled.reason,
            message: disabled.message.as_deref(),
        }
    }
}

/// The consumers of this server.
#[derive(Serialize, ToSchema)]
struct Consumers<'a> {
    consumers: Vec<Consumer<'a>>,
}

/// Named code that takes deliveries.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Consumer<'a> {
    handler: &'a str,
    queue: &'a str,
    /// Whose events it takes; nothing for one that reads a queue of somebody else's.
    channel: Option<&'a str>,
    /// Which events; none stands for all.
    event_types: &'a [String],
    /// Whether events of one aggregate are handled in their order.
    in_order: bool,
    /// How many handlers run at a time.
    concurrency: usize,
    /// Deliveries that wait for their next attempt. Counting ends at 10000.
    retry: u64,
    /// Deliveries that wait behind another of their aggregate.
    behind: u64,
    /// Deliveries that were given up.
    dead: u64,
}

impl<'a> Consumer<'a> {
    fn of(consumer: &'a ConsumerView, backlog: &Backlog) -> Self {
        let letters = |status: LetterStatus| {
            let counts = backlog.letters.iter().filter(|count| count.status == status);
            let of_handler = |name: &HandlerName| name.as_str() == consumer.handler;
            counts
                .filter(|count| count.handler.as_ref().is_some_and(of_handler))
                .map(|count| count.count)
                .sum()
        };
        Self {
            retry: letters(LetterStatus::Retry),
            behind: letters(LetterStatus::Behind),
            dead: letters(LetterStatus::Dead),
            handler: &consumer.handler,
            queue: &consumer.queue,
            channel: consumer.channel.as_deref(),
            event_types: &consumer.event_types,
            in_order: consumer.in_order,
            concurrency: consumer.concurrency,
        }
    }
}
