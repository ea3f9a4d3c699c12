//! The notification log over HTTP (N4): pages computed at each request, archived ones cacheable for ever.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::Serialize;
use towpath::Towpath;
use towpath::notifications::{PAGE_SIZE, Page, PageId};
use towpath::ports::store::Store as _;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::extract::Path;
use super::problem::Problem;
use super::wire::Envelope;

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(current)).routes(routes!(page))
}

const MEDIA_TYPE: &str = "application/vnd.towpath.notifications+json";

/// The current page of the notification log
#[utoipa::path(
    get,
    path = "/notifications",
    tag = "notification log",
    operation_id = "currentLog",
    params(("If-None-Match" = Option<String>, Header, description = "The ETag of what the client has.")),
    responses(
        (status = 200, description = "The page.", body = Log, content_type = "application/vnd.towpath.notifications+json"),
        (status = 304, description = "The client has it already."),
    )
)]
async fn current(State(app): State<Towpath>, headers: HeaderMap) -> Result<Response, Problem> {
    let head = app.store().head().await?;
    page_response(&app, Page::current(head, PAGE_SIZE), &headers).await
}

/// A page of the notification log
///
/// A page that is archived never changes.
#[utoipa::path(
    get,
    path = "/notifications/{id}",
    tag = "notification log",
    operation_id = "showLog",
    params(
        ("id" = String, Path, description = "The first and the last position that fit on it: `low,high`.", pattern = "^[1-9][0-9]{0,14},[1-9][0-9]{0,14}$", example = "1,20"),
        ("If-None-Match" = Option<String>, Header, description = "The ETag of what the client has."),
    ),
    responses(
        (status = 200, description = "The page.", body = Log, content_type = "application/vnd.towpath.notifications+json"),
        (status = 304, description = "The client has it already."),
        (status = 404, description = "There is no such page."),
    )
)]
async fn page(
    State(app): State<Towpath>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let id = PageId::parse(&id)
        .map_err(|error| Problem::malformed(error.to_string(), "Follow the links of a page you have."))?;
    let head = app.store().head().await?;
    let page = Page::of(id, head, PAGE_SIZE)
        .ok_or_else(|| Problem::not_found(format!("there is no notification log {id}")))?;
    page_response(&app, page, &headers).await
}

async fn page_response(app: &Towpath, page: Page, asked: &HeaderMap) -> Result<Response, Problem> {
    // What is archived never changes, so its id says all; the current page is told from its earlier self by the head.
    let etag =
        if page.archived { format!("\"{}\"", page.id) } else { format!("\"{};{}\"", page.id, page.head) };
    let cache = if page.archived { "public, max-age=31536000, immutable" } else { "no-cache" };
    let mut links = vec![format!("</notifications/{}>; rel=\"self\"", page.id)];
    links.extend(page.next.map(|id| format!("</notifications/{id}>; rel=\"next\"")));
    links.extend(page.previous.map(|id| format!("</notifications/{id}>; rel=\"previous\"")));
    let mut response = if is_known(asked, &etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let high = page.id.high.min(page.head);
        let mut events = app.store().events_between(page.id.low, high).await?;
        // Newest first, as the source has it.
        events.reverse();
        let notifications = events.iter().map(|event| Notification {
            notification_id: event.position,
            event_type: event.envelope.event_type.as_str(),
            occurred_on: event.envelope.occurred_at,
            event: (&event.envelope).into(),
        });
        let log = Log {
            id: page.id.to_string(),
            next_id: page.next.map(|id| id.to_string()),
            previous_id: page.previous.map(|id| id.to_string()),
            archived: page.archived,
            notifications: notifications.collect(),
        };
        Json(log).into_response()
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, MEDIA_TYPE.to_owned()),
        (header::ETAG, etag),
        (header::CACHE_CONTROL, cache.to_owned()),
        (header::LINK, links.join(", ")),
    ] {
        // Digits, commas and constants: always a header.
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    if response.status() == StatusCode::NOT_MODIFIED {
        response.headers_mut().remove(header::CONTENT_TYPE);
    }
    Ok(response)
}

/// Whether the client has this already.
fn is_known(asked: &HeaderMap, etag: &str) -> bool {
    let given = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    // Tags of ours hold commas, so the list is not split: a tag in quotes is found as it stands.
    given.into_iter().any(|tags| tags.trim() == "*" || tags.contains(etag))
}

/// A page of the notification log, newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = NotificationLog)]
#[serde(rename_all = "camelCase")]
struct Log<'a> {
    id: String,
    next_id: Option<String>,
    previous_id: Option<String>,
    archived: bool,
    notifications: Vec<Notification<'a>>,
}

/// That something has happened.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Notification<'a> {
    notification_id: Option<u64>,
    #[serde(rename = "type")]
    event_type: &'a str,
    occurred_on: DateTime<Utc>,
    event: Envelope<'a>,
}
