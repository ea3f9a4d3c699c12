//! Hive over HTTP: services that are asked for, and what has become of them.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use towpath::ids::AggregateKey;
use towpath::observer::{ObserverStatus, Platform};
use towpath::ports::store::StoreError;
use towpath::retry::ErrorClass;
use towpath::{Aggregate as _, Coded as _, HandlerError, Receipt, SendError, Towpath};
use towpath_hive::alerts::Alert;
use towpath_hive::gateway::RouteTarget;
use towpath_hive::schemas::{EventType, event_types};
use towpath_hive::service::{
    DeleteAsked, SPEC_VERSION_MISMATCH, Service, ServiceAsked, ServiceCommand, ServiceStatus, UpdateAsked,
};
use towpath_hive::spec::EnvValue;
use towpath_hive::tables::{RevisionRow, RouteRow};
use towpath_hive::{Hive, OBSERVER};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Serving;
use super::kept;
use super::shown::{ServiceBody, env_asked};
use crate::http::extract::SoughtText;
use crate::http::facts::History;
use crate::http::memory::{Memory, PAGE_BYTES};
use crate::http::problem::AfterDone as _;
use crate::http::wire::{StateChange, one_of};
use crate::kit::{
    Tags, idempotency_key, number, page_limit, send_under_key, sent_under_key, strong_tags, usually,
};
use crate::{Caller, Path, Problem, Query, RawBody};

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<Serving> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(show, update, delete))
        .routes(routes!(refresh))
        .routes(routes!(revisions))
        .routes(routes!(routes_of))
        .routes(routes!(history))
        .routes(routes!(observer))
        .routes(routes!(alerts))
        .routes(routes!(kept::specs))
        .routes(routes!(kept::audit))
        .routes(routes!(kept::namespaces))
        .routes(routes!(kept::outbox))
}

/// What is known without a hive that runs.
pub(super) fn routes_always() -> OpenApiRouter {
    OpenApiRouter::new().routes(routes!(events))
}

/// How many alerts are shown.
const MOST_ALERTS: u32 = 100;

/// A service to be made.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = HiveServiceAsked)]
#[allow(dead_code, reason = "it describes the body; the aggregate's own type reads it")]
struct ServiceRequest {
    /// A DNS label of RFC 1035: it begins with a letter.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$", example = "cart")]
    name: String,
    /// A DNS label of RFC 1123: it may begin with a digit.
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", example = "shop")]
    namespace: String,
    #[schema(min_length = 1, max_length = 1024, example = "registry.example/cart:1")]
    image: String,
    #[schema(required = false, schema_with = env_asked)]
    env: std::collections::BTreeMap<String, EnvValue>,
    #[schema(maximum = 4294967295_i64)]
    min_scale: Option<u32>,
    #[schema(maximum = 4294967295_i64)]
    max_scale: Option<u32>,
    #[schema(maximum = 4294967295_i64)]
    concurrency: Option<u32>,
    /// Take over what others have set on the platform, and make a new revision in any case.
    #[schema(required = false)]
    force_replace: bool,
    /// Answer when the outcome is known (READY or FAILED), or when that takes too long.
    #[schema(required = false)]
    wait: bool,
}

/// What a service is to become, all of it: what is left out is not kept from before. Its name and namespace may be left
/// out, and cannot be changed.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = HiveUpdateAsked)]
#[allow(dead_code, reason = "it describes the body; the aggregate's own type reads it")]
struct Changed {
    #[schema(min_length = 1, max_length = 63, example = "cart")]
    name: Option<String>,
    #[schema(min_length = 1, max_length = 63, example = "shop")]
    namespace: Option<String>,
    #[schema(min_length = 1, max_length = 1024, example = "registry.example/cart:2")]
    image: String,
    #[schema(required = false, schema_with = env_asked)]
    env: std::collections::BTreeMap<String, EnvValue>,
    #[schema(maximum = 4294967295_i64)]
    min_scale: Option<u32>,
    #[schema(maximum = 4294967295_i64)]
    max_scale: Option<u32>,
    #[schema(maximum = 4294967295_i64)]
    concurrency: Option<u32>,
    /// Take over what others have set on the platform, and make a new revision in any case.
    #[schema(required = false)]
    force_replace: bool,
    /// Answer when the outcome is known (READY or FAILED), or when that takes too long.
    #[schema(required = false)]
    wait: bool,
    /// Only if this is the specification that it has now. `If-Match` says the same.
    #[schema(minimum = 0, maximum = 9007199254740991_i64)]
    if_spec_version: Option<u64>,
}

/// Services, by id.
#[derive(Serialize, ToSchema)]
#[schema(as = HiveServices)]
struct Services {
    services: Vec<ServiceBody>,
    /// What to ask for after this page; none at the end.
    next: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Listing {
    /// The id of the last service of the page before.
    #[serde(default)]
    after: String,
    /// Only those with this status.
    #[param(schema_with = service_status)]
    status: Option<ServiceStatus>,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "page_limit")]
    #[param(required = false, minimum = 1, maximum = 500)]
    limit: u32,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Behind {
    /// The version behind which to begin.
    #[serde(default, deserialize_with = "number")]
    #[param(required = false, minimum = 0, maximum = 9007199254740991_i64)]
    pub(super) after: u64,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "page_limit")]
    #[param(required = false, minimum = 1, maximum = 500)]
    pub(super) limit: u32,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ByName {
    /// The last one of the page before.
    #[param(value_type = Option<String>)]
    pub(super) after: Option<SoughtText>,
    /// At most so many.
    #[serde(default = "usually", deserialize_with = "page_limit")]
    #[param(required = false, minimum = 1, maximum = 500)]
    pub(super) limit: u32,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code, reason = "it describes a header, which is read by its grammar")]
struct Precondition {
    /// Only if it has this specification: its `ETag`, or a list of them.
    #[param(rename = "If-Match", required = false, value_type = String, pattern = r#"^(\*|(W/)?"[!#-~]*"(, ?(W/)?"[!#-~]*")*)$"#)]
    if_match: String,
}

fn service_status() -> utoipa::openapi::schema::Object {
    one_of(ServiceStatus::ALL.map(ServiceStatus::as_str))
}

/// Creates a service
///
/// It is CREATING when the answer comes, unless `wait` was asked for. Its id is `<namespace>.<name>`; once that service is
/// DELETED, the next one of the name gets another.
#[utoipa::path(
    post, path = "/api/hive/services", tag = "hive", operation_id = "createService",
    params(("Idempotency-Key" = Option<String>, Header, description = "The command's id: the same one again gives the same service.")),
    request_body = ServiceRequest,
    responses(
        (status = 201, description = "It was accepted.", body = ServiceBody),
        (status = 200, description = "It was accepted before, under the same key.", body = ServiceBody),
        (status = 409, description = "There is a service of that name."),
        (status = 422, description = "The specification cannot be."),
    )
)]
async fn create(
    State(app): State<Serving>,
    caller: Caller,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, Problem> {
    let Serving { hive, towpath } = &app;
    let asked: ServiceAsked = read(&body)?;
    asked.resource().and_then(|_| asked.spec()).map_err(cannot_be)?;
    let key = idempotency_key(&headers)?;
    let earlier = match key {
        Some(key) => sent_under_key(towpath, &caller.name, key).await?,
        None => None,
    };
    let id = match earlier {
        Some(record) => record.command.aggregate.id.to_string(),
        None => hive.free_id(towpath, &asked.namespace, &asked.name).await?,
    };
    let command = || towpath.send::<Service>(&id, ServiceCommand::Create(asked.clone()));
    let receipt = send_under_key(towpath, &caller.name, key, command).await?;
    let status = if receipt.replayed { StatusCode::OK } else { StatusCode::CREATED };
    answer(&app, &caller, &id, status, asked.wait, Some((&receipt, key))).await
}

/// Lists services
///
/// From the status view, which is a moment behind. There may be fewer than were asked for where they are large: `next`
/// tells, not their number. A viewer sees the names of variables that are written out, and not their values.
#[utoipa::path(
    get, path = "/api/hive/services", tag = "hive", operation_id = "listServices",
    params(Listing),
    responses((status = 200, description = "A page.", body = Services))
)]
async fn list(
    State(app): State<Serving>,
    memory: Memory,
    caller: Caller,
    Query(listing): Query<Listing>,
) -> Result<Response, Problem> {
    let Listing { after, status, limit } = listing;
    let room = memory.room(2 * PAGE_BYTES).await?;
    let services = app.hive.services(app.towpath.store(), &after, status, limit, PAGE_BYTES);
    let page = services.await.map_err(broken)?;
    let next = page.next(|last| last.service_id.clone());
    // A row is let go when it is shown: there is room for a page twice, and it is yet to be written.
    let services = page.rows.into_iter().map(|row| ServiceBody::of(row, &caller)).collect();
    room.json(&Services { services, next })
}

/// Shows a service
///
/// Its `ETag` is the version of its specification: what `If-Match` of an update or a delete names. A viewer sees the names of
/// variables that are written out, and not their values.
#[utoipa::path(
    get, path = "/api/hive/services/{id}", tag = "hive", operation_id = "showService",
    params(("id" = String, Path, description = "The service's id.")),
    responses((status = 200, description = "As it is now.", body = ServiceBody), (status = 404, description = "There is none."))
)]
async fn show(
    State(app): State<Serving>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    answer(&app, &caller, &id, StatusCode::OK, false, None).await
}

/// Updates a service
///
/// Only one that is READY or FAILED. The body replaces the whole specification: `env`, `minScale`, `maxScale` and
/// `concurrency` that are left out are not kept, but unset. To change one thing, send the others as the service shows them,
/// with its `ETag` as `If-Match`: if somebody was quicker, nothing is changed.
#[utoipa::path(
    put, path = "/api/hive/services/{id}", tag = "hive", operation_id = "updateService",
    params(("id" = String, Path, description = "The service's id."),
        Precondition,
        ("Idempotency-Key" = Option<String>, Header, description = "The command's id.")),
    request_body = Changed,
    responses(
        (status = 200, description = "It was accepted.", body = ServiceBody),
        (status = 404, description = "There is none."),
        (status = 409, description = "Not in this state; the answer says what is possible."),
        (status = 412, description = "It has another specification by now."),
        (status = 422, description = "The specification cannot be."),
    )
)]
async fn update(
    State(app): State<Serving>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, Problem> {
    let Serving { hive, towpath } = &app;
    let mut asked: UpdateAsked = read(&body)?;
    asked.spec().map_err(cannot_be)?;
    if let Some(version) = spec_version_of(hive, towpath, &id, &headers).await? {
        asked.if_spec_version = Some(version);
    }
    let key = idempotency_key(&headers)?;
    let command = || towpath.send::<Service>(&id, ServiceCommand::Update(asked.clone()));
    let receipt = send_under_key(towpath, &caller.name, key, command).await.map_err(refused)?;
    answer(&app, &caller, &id, StatusCode::OK, asked.wait, Some((&receipt, key))).await
}

/// Deletes a service
///
/// Only one that is READY or FAILED. It is DELETED when the platform was seen without it.
#[utoipa::path(
    delete, path = "/api/hive/services/{id}", tag = "hive", operation_id = "deleteService",
    params(("id" = String, Path, description = "The service's id."),
        Precondition,
        ("Idempotency-Key" = Option<String>, Header, description = "The command's id.")),
    responses(
        (status = 200, description = "It was accepted.", body = ServiceBody),
        (status = 404, description = "There is none."),
        (status = 409, description = "Not in this state; the answer says what is possible."),
        (status = 412, description = "It has another specification by now."),
    )
)]
async fn delete(
    State(app): State<Serving>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let if_spec_version = spec_version_of(&app.hive, &app.towpath, &id, &headers).await?;
    plain(&app, &caller, id, &headers, || ServiceCommand::Delete(DeleteAsked { if_spec_version })).await
}

/// Refreshes a service
///
/// Says what is known and has the platform looked at again, at once. The status stays as it is.
#[utoipa::path(
    post, path = "/api/hive/services/{id}/refresh", tag = "hive", operation_id = "refreshService",
    params(("id" = String, Path, description = "The service's id."),
        ("Idempotency-Key" = Option<String>, Header, description = "The command's id.")),
    responses(
        (status = 200, description = "What is known.", body = ServiceBody),
        (status = 404, description = "There is none."),
    )
)]
async fn refresh(
    State(app): State<Serving>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    plain(&app, &caller, id, &headers, || ServiceCommand::Refresh {}).await
}

/// A revision that was seen.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HiveRevision)]
struct Revision {
    revision: String,
    image: Option<String>,
    spec_hash: Option<String>,
    created_at: Option<DateTime<Utc>>,
    seen_at: DateTime<Utc>,
}

/// The revisions of a service.
#[derive(Serialize, ToSchema)]
#[schema(as = HiveRevisions)]
struct Revisions {
    revisions: Vec<Revision>,
    /// What to ask for after this page; none at the end.
    next: Option<String>,
}

/// Lists the revisions of a service
#[utoipa::path(
    get, path = "/api/hive/services/{id}/revisions", tag = "hive", operation_id = "listRevisions",
    params(("id" = String, Path, description = "The service's id."), ByName),
    responses((status = 200, description = "Those that were seen, oldest first.", body = Revisions), (status = 404, description = "There is no such service."))
)]
async fn revisions(
    State(app): State<Serving>,
    Path(id): Path<String>,
    Query(ByName { after, limit }): Query<ByName>,
) -> Result<Response, Problem> {
    app.exists(&id).await?;
    let after = after.map(String::from).unwrap_or_default();
    let page = app.hive.revisions(app.towpath.store(), &id, &after, limit).await?;
    let next = page.next(|last| last.revision.clone());
    let shown = |RevisionRow { revision, image, spec_hash, created_at, seen_at, .. }| Revision {
        revision,
        image,
        spec_hash,
        created_at,
        seen_at,
    };
    Ok(Json(Revisions { revisions: page.map(shown).rows, next }).into_response())
}

/// Where requests go.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HiveRoute)]
struct Route {
    url: Option<String>,
    #[schema(value_type = Vec<Object>)]
    traffic: Vec<RouteTarget>,
    aligned_at: DateTime<Utc>,
}

/// The routes of a service.
#[derive(Serialize, ToSchema)]
#[schema(as = HiveRoutes)]
struct Routes {
    routes: Vec<Route>,
}

/// Lists the routes of a service
#[utoipa::path(
    get, path = "/api/hive/services/{id}/routes", tag = "hive", operation_id = "listRoutes",
    params(("id" = String, Path, description = "The service's id.")),
    responses((status = 200, description = "Where its requests go; none before it was ready, and none when it is gone.", body = Routes), (status = 404, description = "There is no such service."))
)]
async fn routes_of(State(app): State<Serving>, Path(id): Path<String>) -> Result<Response, Problem> {
    app.exists(&id).await?;
    let found = app.towpath.find::<RouteRow>(&id).await.map_err(|error| match error {
        StoreError::Corrupt { .. } => broken(error),
        other => other.into(),
    })?;
    let shown =
        |RouteRow { url, traffic, aligned_at, .. }| Route { url, traffic: traffic.into_value(), aligned_at };
    // One to nowhere is none: what it led to is gone.
    let routes = found.filter(|row| !row.traffic.is_empty()).map(shown).into_iter().collect();
    Ok(Json(Routes { routes }).into_response())
}

/// Shows the state changes of a service
#[utoipa::path(
    get, path = "/api/hive/services/{id}/history", tag = "hive", operation_id = "serviceHistory",
    params(("id" = String, Path, description = "The service's id."), Behind),
    responses((status = 200, description = "Each change with its reason.", body = History), (status = 404, description = "There is no such service."))
)]
async fn history(
    State(app): State<Serving>,
    Path(id): Path<String>,
    Query(behind): Query<Behind>,
) -> Result<Response, Problem> {
    app.exists(&id).await?;
    let key = AggregateKey::new(Service::KIND, &id).map_err(SendError::from)?;
    let history = app.towpath.history_of(&key, behind.after, behind.limit).await.map_err(SendError::Store)?;
    Ok(Json(History { history: history.iter().map(StateChange::from).collect() }).into_response())
}

/// A type of hive's events.
#[derive(Serialize, ToSchema)]
#[schema(as = HiveEventType)]
struct EventTypeShown {
    /// Its stable name.
    r#type: &'static str,
    /// The JSON Schema of its payload.
    #[schema(value_type = Object)]
    schema: serde_json::Value,
}

/// Hive's event types.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HiveEventTypes)]
struct EventTypes {
    event_types: Vec<EventTypeShown>,
}

/// Lists hive's event types
///
/// Each with the JSON Schema of its payload.
#[utoipa::path(
    get, path = "/api/hive/event-types", tag = "hive", operation_id = "hiveEventTypes",
    responses((status = 200, description = "All of them.", body = EventTypes))
)]
async fn events() -> Response {
    let shown =
        |event_type: EventType| EventTypeShown { r#type: event_type.name, schema: event_type.schema.into() };
    Json(EventTypes { event_types: event_types().into_iter().map(shown).collect() }).into_response()
}

/// Where hive's observer is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HiveObserver)]
struct ObserverShown {
    name: String,
    /// Whether this instance is the one that looks.
    looking: bool,
    platform: PlatformShown,
    /// When the last scan began.
    scanned_at: Option<DateTime<Utc>>,
    /// How many looks have ended.
    looks: u64,
    /// How many of them failed.
    failures: u64,
    /// How many resources could not be looked at the last time.
    failing: usize,
}

/// Whether the platform answers.
#[derive(Default, Serialize, ToSchema)]
#[schema(as = HivePlatform)]
struct PlatformShown {
    /// `unknown` before the first look.
    #[schema(schema_with = platform_state)]
    state: &'static str,
    /// Since when it is down.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<DateTime<Utc>>,
    /// A stable code: why it is down.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    /// A text for people: why it is down.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

fn platform_state() -> utoipa::openapi::schema::Object {
    one_of(["unknown", "up", "down"])
}

impl From<ObserverStatus> for ObserverShown {
    fn from(status: ObserverStatus) -> Self {
        let ObserverStatus { name, looking, platform, scanned_at, looks, failures, failing } = status;
        let platform = match platform {
            Platform::Unknown => PlatformShown { state: "unknown", ..Default::default() },
            Platform::Up => PlatformShown { state: "up", ..Default::default() },
            Platform::Down { since, code, message } => {
                PlatformShown { state: "down", since: Some(since), code: Some(code), message: Some(message) }
            }
        };
        Self { name, looking, platform, scanned_at, looks, failures, failing }
    }
}

/// Shows hive's observer
///
/// Whether this instance is the one that looks, and whether the platform answers. Null where there is none.
#[utoipa::path(
    get, path = "/api/hive/observer", tag = "hive", operation_id = "hiveObserver",
    responses((status = 200, description = "Where it is.", body = Option<ObserverShown>))
)]
async fn observer(State(app): State<Serving>) -> Result<Response, Problem> {
    let standing = app.towpath.observers().into_iter().find(|standing| standing.name == OBSERVER);
    Ok(Json(standing.map(ObserverShown::from)).into_response())
}

/// Something that an operator should know of.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HiveAlert)]
struct ShownAlert {
    /// Which one: `gateway-down` or `deletion-stuck`.
    alert: String,
    /// Of which service; null when it is the platform's.
    service_id: Option<String>,
    /// A stable code: what was noticed.
    code: String,
    /// A text for people.
    message: String,
    raised_at: DateTime<Utc>,
    /// Null while it lasts.
    cleared_at: Option<DateTime<Utc>>,
}

/// Alerts.
#[derive(Serialize, ToSchema)]
#[schema(as = HiveAlerts)]
struct Alerts {
    alerts: Vec<ShownAlert>,
}

/// Lists hive's alerts
///
/// The last raised first; one that lasts has no `clearedAt`. The same on every instance: each outage of the platform, and each
/// deletion that takes too long, is raised once and cleared once.
#[utoipa::path(
    get, path = "/api/hive/alerts", tag = "hive", operation_id = "hiveAlerts",
    responses((status = 200, description = "The last 100.", body = Alerts))
)]
async fn alerts(State(app): State<Serving>) -> Result<Response, Problem> {
    let alerts = app.hive.alerts(app.towpath.store(), MOST_ALERTS).await?;
    let alerts = alerts.into_iter().map(|alert| {
        let Alert { alert, service_id, code, message, raised_at, cleared_at } = alert;
        let service_id = Some(service_id).filter(|id| !id.is_empty());
        ShownAlert { alert, service_id, code, message, raised_at, cleared_at }
    });
    Ok(Json(Alerts { alerts: alerts.collect() }).into_response())
}

/// A command without a body.
async fn plain(
    app: &Serving,
    caller: &Caller,
    id: String,
    headers: &HeaderMap,
    command: impl Fn() -> ServiceCommand,
) -> Result<Response, Problem> {
    let (towpath, key) = (&app.towpath, idempotency_key(headers)?);
    let command = || towpath.send::<Service>(&id, command());
    let receipt = send_under_key(towpath, &caller.name, key, command).await.map_err(refused)?;
    answer(app, caller, &id, StatusCode::OK, false, Some((&receipt, key))).await
}

/// The version of the specification that `If-Match` names. Of several it is the one that the service has, or the last of
/// them, which is then refused where it is decided.
async fn spec_version_of(
    hive: &Hive,
    towpath: &Towpath,
    id: &str,
    headers: &HeaderMap,
) -> Result<Option<u64>, Problem> {
    let mut versions = Vec::new();
    for list in headers.get_all(header::IF_MATCH) {
        let tags = list.to_str().ok().and_then(strong_tags);
        let tags = tags.ok_or_else(|| {
            Problem::malformed("If-Match is no list of tags", "Send the ETag of the service as it was shown.")
        })?;
        match tags {
            Tags::Any => return Ok(None),
            Tags::These(tags) => versions.extend(tags.into_iter().map(|tag| tag.parse::<u64>().ok())),
        }
    }
    if versions.is_empty() {
        return Ok(None);
    }
    let versions: Vec<u64> = versions.into_iter().flatten().collect();
    let Some(last) = versions.iter().max().copied() else {
        return Err(other_spec("no specification has the tag that If-Match names".to_owned()));
    };
    if versions.len() == 1 {
        return Ok(Some(last));
    }
    let is = hive.service(towpath, id).await?.map(|view| view.service.spec_version);
    Ok(is.filter(|is| versions.contains(is)).or(Some(last)))
}

/// A no of the service to a request.
fn refused(error: SendError) -> Problem {
    match error.code() == SPEC_VERSION_MISMATCH {
        true => other_spec(error.to_string()),
        false => error.into(),
    }
}

fn other_spec(title: String) -> Problem {
    let detail =
        "Nothing was changed. Read the service again, look at what has changed, and send its new ETag.";
    Problem::new(StatusCode::PRECONDITION_FAILED, SPEC_VERSION_MISMATCH, title, detail)
}

/// What is now, or what is when the service has settled.
async fn answer(
    app: &Serving,
    caller: &Caller,
    id: &str,
    status: StatusCode,
    wait: bool,
    done: Option<(&Receipt, Option<&str>)>,
) -> Result<Response, Problem> {
    let Serving { hive, towpath } = app;
    let view = if wait { hive.settled(towpath, id).await } else { hive.service(towpath, id).await };
    let view = match done {
        // Who has no key cannot ask again. With one, asking again tells.
        Some((_, None)) => view.after_it_was_done()?,
        _ => view?,
    };
    let view = view.ok_or_else(|| Problem::not_found(format!("there is no service {id}")))?;
    let command_id = done.map(|(receipt, _)| receipt.command_id.to_string());
    let looks = hive.looks(towpath.store(), id).await;
    let looks = match done {
        Some((_, None)) => looks.after_it_was_done()?,
        _ => looks?,
    };
    let shown = ServiceBody::of(view, caller).with(looks, command_id);
    let tag = format!("\"{}\"", shown.spec_version);
    Ok((status, [(header::ETAG, tag)], Json(shown)).into_response())
}

impl Serving {
    pub(super) async fn exists(&self, id: &str) -> Result<(), Problem> {
        let view = self.hive.service(&self.towpath, id).await?;
        view.map(drop).ok_or_else(|| Problem::not_found(format!("there is no service {id}")))
    }
}

fn read<T: DeserializeOwned>(body: &RawBody) -> Result<T, Problem> {
    body.json(|error| {
        let detail = "Send {\"name\": …, \"namespace\": …, \"image\": …} as JSON.";
        // What is JSON and no service is told apart from what is no JSON.
        if error.is_data() {
            let title = format!("the body is not a service: {error}");
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-service-spec", title, detail)
        } else {
            Problem::malformed(format!("the body is not JSON: {error}"), detail)
        }
    })
}

fn cannot_be(flaw: towpath_hive::service::SpecFlaw) -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        flaw.code(),
        flaw.to_string(),
        "Correct what the title names.",
    )
}

pub(super) fn broken(error: impl Into<HandlerError>) -> Problem {
    let error = error.into();
    if error.class() == ErrorClass::Transient {
        tracing::warn!(code = error.code(), cause = error.message(), "a read model cannot be read now");
        let (title, detail) = ("a read model cannot be read now", "Ask again in a moment.");
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.code(), title, detail);
    }
    tracing::error!(code = error.code(), cause = error.message(), "a read model cannot be read");
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "read-model",
        "a read model cannot be read",
        "Run `towpath hive rebuild`.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_is_away_is_no_broken_read_model() {
        let away = HandlerError::from(StoreError::Unavailable("away".into()));
        assert_eq!(broken(away).into_response().status(), StatusCode::SERVICE_UNAVAILABLE);
        let broken_row = HandlerError::unrecoverable("corrupt", "no JSON");
        assert_eq!(broken(broken_row).into_response().status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
