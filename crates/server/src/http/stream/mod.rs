//! The event stream: server-sent events of the same objects as `/api/events`, in position order.
//!
//! Reading order: this file is the path; `feed` is the one task that follows the log and keeps its newest part, written
//! as it is sent; `reader` is what one client gets.

#[cfg(any(test, feature = "bench"))]
pub(crate) mod client;
mod feed;
mod reader;
#[cfg(test)]
mod tests;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use towpath::Glob;
use towpath::ids::{AggregateKey, Position};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use feed::Full;
pub(crate) use feed::{Feed, FeedOptions};
use reader::{Filter, Reader};

use super::App;
use super::access::Caller;
use super::memory::Memory;
use super::problem::Problem;

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(stream))
}

/// Facts as they happen
///
/// Server-sent events of the same objects as in `/api/events`, in position order, with the position as `id`. They begin
/// from now on, or behind a position. A reader that is too slow gets a last event `dropped` that says where to go on; so
/// does one whose token runs out.
#[utoipa::path(
    get,
    path = "/api/events/stream",
    tag = "facts",
    operation_id = "streamEvents",
    params(
        ("after" = Option<u64>, Query, description = "Behind which position; 0 is from the first fact on."),
        ("type" = Option<Vec<String>>, Query, description = "Patterns of event types: `*` stands for anything."),
        ("aggregate" = Option<Vec<String>>, Query, description = "Aggregates as `kind/id`."),
        ("Last-Event-ID" = Option<u64>, Header, description = "As `after`, and it wins: what browsers send when they come back."),
    ),
    responses(
        (status = 200, description = "A stream without end.", body = String, content_type = "text/event-stream"),
        (status = 409, description = "The position was never given."),
        (status = 503, description = "There are too many readers."),
    )
)]
async fn stream(
    State(feed): State<Feed>,
    caller: Caller,
    memory: Memory,
    asked: Result<Query<Vec<(String, String)>>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Query(parameters) = asked.map_err(|error| Problem::malformed(error.body_text(), HOW_TO_ASK))?;
    let StreamRequest { after, filter } = StreamRequest::read(parameters, &headers)?;
    let place = feed.place(caller.name.as_str()).map_err(|full| match full {
        Full::OfTheCaller => Problem::share_used_up(
            "this caller follows the stream as often as one caller may",
            "Let go of a stream that is not needed; one with several filters is lighter than several.",
        ),
        Full::OfAll => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too-many-readers",
            "as many readers follow the stream as this server allows",
            "Try again later, or read /api/events page by page.",
        ),
    })?;
    let head = feed.log_head().await?;
    let after = after.unwrap_or(head);
    if after > head {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "position-ahead",
            format!("position {after} was never given: the log ends at {head}"),
            "This is another log, or one that was restored from a backup. Begin again with ?after=0.",
        ));
    }
    let reader = Reader::new(feed, (place, memory), after, filter, &caller);
    let body = futures_util::stream::unfold(reader, |mut reader| async move {
        let chunk = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), reader))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // nginx would collect what should leave at once.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((headers, Body::from_stream(body)).into_response())
}

const HOW_TO_ASK: &str =
    "Write ?after=POSITION, ?type=GLOB and ?aggregate=KIND/ID; the last two may come several times.";

/// What a client wants.
struct StreamRequest {
    /// Behind which position; `None` is from now on.
    after: Option<Position>,
    filter: Filter,
}

impl StreamRequest {
    /// How many filters one reader may have: each event is held against all of them.
    const MOST_FILTERS: usize = 100;

    /// A client that comes back says so by `Last-Event-ID`, and that counts: its URL still has the position of its first
    /// coming.
    fn read(parameters: Vec<(String, String)>, headers: &HeaderMap) -> Result<Self, Problem> {
        let position = |what: &str, text: &str| {
            text.trim().parse::<Position>().ok().filter(|position| *position <= i64::MAX as u64).ok_or_else(
                || Problem::malformed(format!("{what} is not a position: {:?}", shortened(text)), HOW_TO_ASK),
            )
        };
        let mut asked = Self { after: None, filter: Filter::default() };
        if parameters.len() > Self::MOST_FILTERS {
            return Err(Problem::malformed("there are too many filters", "At most 100 are accepted."));
        }
        for (name, value) in parameters {
            match name.as_str() {
                "after" => asked.after = Some(position("after", &value)?),
                "type" => asked.filter.event_types.push(Glob::new(value)),
                "aggregate" => asked.filter.aggregates.push(aggregate(&value)?),
                other => {
                    let title = format!("there is no parameter {:?}", shortened(other));
                    return Err(Problem::malformed(title, HOW_TO_ASK));
                }
            }
        }
        // An empty one is what a browser sends that has seen no id yet.
        let last = headers.get("last-event-id").filter(|last| !last.is_empty());
        if let Some(last) = last {
            asked.after = Some(position("Last-Event-ID", last.to_str().unwrap_or("?"))?);
        }
        Ok(asked)
    }
}

fn aggregate(text: &str) -> Result<AggregateKey, Problem> {
    let (kind, id) = text
        .split_once('/')
        .ok_or_else(|| Problem::malformed(format!("{:?} is not KIND/ID", shortened(text)), HOW_TO_ASK))?;
    AggregateKey::new(kind, id).map_err(|error| Problem::malformed(error.to_string(), HOW_TO_ASK))
}

fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
}
