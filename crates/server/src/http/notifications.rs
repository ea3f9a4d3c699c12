//! The notification log over HTTP (N4): pages computed at each request, archived ones cacheable for ever.

use std::pin::Pin;
use std::task::Poll;

use axum::body::{Body, HttpBody};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use hyper::body::{Frame, SizeHint};
use serde::Serialize;
use towpath::ids::Position;
use towpath::notifications::{Page, PageId};
use towpath::ports::store::StoreError;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::access::Caller;
use super::conditional::{Tag, is_known, tag_of};
use super::extract::Path;
use super::memory::{HasRoom, Memory, Room};
use super::problem::Problem;
use super::wire::{Envelope, Sight};

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
async fn current(
    State(app): State<App>,
    caller: Caller,
    memory: Memory,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let head = app.towpath.store().head().await?;
    let page = Page::current(head, app.towpath.page_size());
    page_response(&App { memory, ..app }, &caller, page, &headers).await
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
    State(app): State<App>,
    caller: Caller,
    memory: Memory,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let id = PageId::parse(&id)
        .map_err(|error| Problem::malformed(error.to_string(), "Follow the links of a page you have."))?;
    let head = app.towpath.store().head().await?;
    let page = Page::of(id, head, app.towpath.page_size())
        .ok_or_else(|| Problem::not_found(format!("there is no notification log {id}")))?;
    page_response(&App { memory, ..app }, &caller, page, &headers).await
}

async fn page_response(
    app: &App,
    caller: &Caller,
    page: Page,
    asked: &HeaderMap,
) -> Result<Response, Problem> {
    let pieces = Pieces::of(app, caller, page).await?;
    let (etag, body) = pieces.written().await?;
    let mut links = vec![format!("</notifications/{}>; rel=\"self\"", page.id)];
    links.extend(page.next.map(|id| format!("</notifications/{id}>; rel=\"next\"")));
    links.extend(page.previous.map(|id| format!("</notifications/{id}>; rel=\"previous\"")));
    let mut response = if is_known(asked, &etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, MEDIA_TYPE)], body.into_body(pieces)).into_response()
    };
    response.extensions_mut().insert(HasRoom);
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

/// A page in pieces: its bytes are the same for ever, so what is too large to be held at once is read and sent piece by
/// piece. A page of ordinary facts is one piece.
struct Pieces {
    app: App,
    sight: Sight,
    page: Page,
    /// The first and the last position of each, newest first, and how large its payloads are.
    pieces: Vec<(Position, Position, u64)>,
}

/// How many bytes of payload a piece has at most, if it has more than one fact.
const PIECE_BYTES: u64 = 1 << 20;

/// A page as it is sent.
enum Written {
    /// In one piece.
    Whole(Bytes),
    /// So many bytes, which are read again while they are sent.
    Streamed(u64),
}

impl Pieces {
    async fn of(app: &App, caller: &Caller, page: Page) -> Result<Self, Problem> {
        let high = page.id.high.min(page.head);
        let sizes = app.towpath.store().sizes_between(page.id.low, high).await?;
        if sizes.len() as u64 != (high + 1).saturating_sub(page.id.low) {
            // A cache would keep it for ever.
            let source = format!("positions {} to {high} are not all there", page.id.low).into();
            return Err(StoreError::Corrupt { what: format!("notification log {}", page.id), source }.into());
        }
        let mut pieces: Vec<(Position, Position, u64)> = Vec::new();
        // Newest first, as the source has it.
        for (position, size) in sizes.into_iter().rev() {
            match pieces.last_mut() {
                Some((first, _, bytes)) if *bytes + size <= PIECE_BYTES => {
                    (*first, *bytes) = (position, *bytes + size);
                }
                _ => pieces.push((position, position, size)),
            }
        }
        Ok(Self { app: app.clone(), sight: Sight::of(&app.towpath, caller.role), page, pieces })
    }

    /// The tag of the page, and the page. One that is large is read for its tag, and then again to be sent: it is never
    /// in memory as a whole.
    async fn written(&self) -> Result<(String, Written), Problem> {
        if self.pieces.len() <= 1 {
            let (room, mut body) = self.piece(0).await?;
            body.splice(..0, self.head()?);
            body.extend_from_slice(TAIL);
            return Ok((tag_of(&body), Written::Whole(room.holding(body))));
        }
        let (mut tag, mut length) = (Tag::default(), 0);
        let mut add = |bytes: &[u8]| {
            tag.add(bytes);
            length += bytes.len() as u64;
        };
        add(&self.head()?);
        for number in 0..self.pieces.len() {
            let (_room, piece) = self.piece(number).await?;
            add(&piece);
        }
        add(TAIL);
        Ok((tag.text(), Written::Streamed(length)))
    }

    /// What stands before the notifications.
    fn head(&self) -> Result<Vec<u8>, Problem> {
        let log = Log {
            id: self.page.id.to_string(),
            next_id: self.page.next.map(|id| id.to_string()),
            previous_id: self.page.previous.map(|id| id.to_string()),
            archived: self.page.archived,
            notifications: Vec::new(),
        };
        let mut head = serde_json::to_vec(&log).map_err(|error| self.unwritable(error))?;
        head.truncate(head.len() - TAIL.len());
        Ok(head)
    }

    /// The notifications of a piece, with the comma that parts them from those before.
    async fn piece(&self, number: usize) -> Result<(Room, Vec<u8>), Problem> {
        let Some((low, high, bytes)) = self.pieces.get(number).copied() else {
            return Ok((self.app.memory.room(0).await?, Vec::new()));
        };
        // As it is read, and as it is written.
        let room = self.app.memory.room(2 * bytes).await?;
        let mut events = self.app.towpath.store().events_between(low, high).await?;
        events.reverse();
        let mut piece = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default());
        for (index, event) in events.iter().enumerate() {
            if number > 0 || index > 0 {
                piece.push(b',');
            }
            let notification = Notification {
                notification_id: event.position,
                event_type: event.envelope.event_type.as_str(),
                occurred_on: event.envelope.occurred_at,
                event: Envelope::seen(&event.envelope, &self.sight),
                payload_withheld: self.sight.withholds_fact(&event.envelope),
            };
            serde_json::to_writer(&mut piece, &notification).map_err(|error| self.unwritable(error))?;
        }
        Ok((room, piece))
    }

    fn unwritable(&self, error: serde_json::Error) -> Problem {
        StoreError::Corrupt { what: format!("notification log {}", self.page.id), source: error.into() }
            .into()
    }
}

/// What stands behind the notifications.
const TAIL: &[u8] = b"]}";

impl Written {
    fn into_body(self, pieces: Pieces) -> Body {
        let length = match self {
            Self::Whole(body) => return Body::from(body),
            Self::Streamed(length) => length,
        };
        // The head, then each piece, then the tail: what fails under way ends the connection, and the client sees by the
        // length that something is missing.
        let chunks = futures_util::stream::unfold(Some((0, pieces)), |state| async move {
            let (step, pieces) = state?;
            let chunk: Result<Bytes, BrokenOff> = match step {
                0 => pieces.head().map(Bytes::from).map_err(|_| BrokenOff),
                step if step <= pieces.pieces.len() => match pieces.piece(step - 1).await {
                    Ok((room, piece)) => Ok(room.holding(piece)),
                    Err(_) => Err(BrokenOff),
                },
                _ => return Some((Ok(Bytes::from_static(TAIL)), None)),
            };
            let next = chunk.is_ok().then_some((step + 1, pieces));
            Some((chunk, next))
        });
        Body::new(Measured { body: Body::from_stream(chunks), left: length })
    }
}

/// A page could not be read to its end.
#[derive(Debug, thiserror::Error)]
#[error("the page could not be read to its end")]
struct BrokenOff;

/// A body whose length is known although it is streamed.
struct Measured {
    body: Body,
    left: u64,
}

impl HttpBody for Measured {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.left = self.left.saturating_sub(data.len() as u64);
        }
        Poll::Ready(frame)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
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
    /// True where the event's payload is not for viewers, and a viewer asks: it is null then.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_withheld: Option<bool>,
}
