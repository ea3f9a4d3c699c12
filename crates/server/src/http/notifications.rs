//! The notification log over HTTP (N4): pages computed at each request, archived ones cacheable for ever.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::Serialize;
use towpath::Towpath;
use towpath::notifications::{Page, PageId};
use towpath::ports::store::{Store as _, StoreError};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::conditional::{is_known, tag_of};
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
    page_response(&app, Page::current(head, app.page_size()), &headers).await
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
    let page = Page::of(id, head, app.page_size())
        .ok_or_else(|| Problem::not_found(format!("there is no notification log {id}")))?;
    page_response(&app, page, &headers).await
}

async fn page_response(app: &Towpath, page: Page, asked: &HeaderMap) -> Result<Response, Problem> {
    let body = body_of(app, page).await?;
    let etag = tag_of(&body);
    let mut links = vec![format!("</notifications/{}>; rel=\"self\"", page.id)];
    links.extend(page.next.map(|id| format!("</notifications/{id}>; rel=\"next\"")));
    links.extend(page.previous.map(|id| format!("</notifications/{id}>; rel=\"previous\"")));
    let mut response = if is_known(asked, &etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response()
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::ETAG, etag),
        (header::CACHE_CONTROL, cache_control(page).to_owned()),
        (header::LINK, links.join(", ")),
    ] {
        // Digits, commas and constants: always a header.
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    Ok(response)
}

/// How caches may treat a page. What is archived never changes. Nobody on the way may change the bytes, because the tag is
/// theirs. Where a key is needed, `access` keeps pages from caches that others share.
fn cache_control(page: Page) -> &'static str {
    if page.archived { "public, max-age=31536000, immutable, no-transform" } else { "no-cache, no-transform" }
}

/// A page as it is sent.
async fn body_of(app: &Towpath, page: Page) -> Result<Vec<u8>, Problem> {
    let high = page.id.high.min(page.head);
    let mut events = app.store().events_between(page.id.low, high).await?;
    if events.len() as u64 != (high + 1).saturating_sub(page.id.low) {
        // A cache would keep it for ever.
        let source = format!("positions {} to {high} are not all there", page.id.low).into();
        return Err(StoreError::Corrupt { what: format!("notification log {}", page.id), source }.into());
    }
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
    serde_json::to_vec(&log).map_err(|error| {
        StoreError::Corrupt { what: format!("notification log {}", page.id), source: error.into() }.into()
    })
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
