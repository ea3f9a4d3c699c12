//! The notification log over HTTP (N4): pages computed at each request, archived ones cacheable for ever.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use chrono::{DateTime, Utc};
use serde::Serialize;
use towpath::notifications::{Page, PageId};
use towpath::ports::store::{Store as _, StoreError};
use towpath::{EventEnvelope, Towpath};
use utoipa_axum::router::OpenApiRouter;

use super::App;
use super::conditional::{is_known, tag_of};
use super::problem::Problem;

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().route("/notifications", get(current)).route("/notifications/{id}", get(page))
}

const MEDIA_TYPE: &str = "application/vnd.towpath.notifications+json";

/// The current page.
async fn current(State(app): State<Towpath>, headers: HeaderMap) -> Result<Response, Problem> {
    let head = app.store().head().await?;
    page_response(&app, Page::current(head, app.page_size()), &headers).await
}

/// A page by its id.
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
        event: &event.envelope,
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

/// A page on the wire. Written as it stands, so that payloads stay the exact texts.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Log<'a> {
    id: String,
    next_id: Option<String>,
    previous_id: Option<String>,
    archived: bool,
    notifications: Vec<Notification<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Notification<'a> {
    notification_id: Option<u64>,
    #[serde(rename = "type")]
    event_type: &'a str,
    occurred_on: DateTime<Utc>,
    event: &'a EventEnvelope,
}
