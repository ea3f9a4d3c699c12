//! Room for what is large: how much of requests and answers is in memory at a time, whoever asks and however slowly they
//! send or read.
//!
//! One body and one answer are bounded by their bytes, but many at once would not be. What is large takes room before it
//! is read, and gives it back when its bytes have been sent or thrown away. What is small is not asked: its number is
//! bounded by that of requests and connections.
//!
//! Bodies arrive in a part of the room that is theirs. So what works never waits for room that is held by somebody who
//! waits for room to work in, and who sends slowly keeps nobody from being answered.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use towpath::ids::Position;
use towpath::{Payload, RecordedEvent, Towpath};

use super::problem::Problem;
use super::shares::Shares;

/// How many bytes of payload one page has at most, if it has more than one fact.
pub(crate) const PAGE_BYTES: u64 = 4 << 20;

/// How much a body takes while it is worked on, by its own size: it is read, decided on, written to the store and
/// answered, and each of them has a copy of its own.
const WORK: u64 = 10;

/// What is smaller takes no room.
const SMALL: u64 = 64 << 10;

/// How many bytes there is room for, in all.
const ROOM: u64 = 96 << 20;

/// Which part of it is for bodies that arrive: one of so many.
const ARRIVING: u64 = 4;

/// Room is counted in these.
const UNIT: u64 = 1 << 10;

/// How long somebody may wait for room.
const PATIENCE: Duration = Duration::from_secs(10);

/// Paths that answer with one thing, which may be as large as a payload. How large it is shows when it has been read.
const ONE_THING: [&str; 6] = [
    "/api/aggregates/{kind}/{id}",
    "/api/aggregates/{kind}/{id}/history",
    "/api/commands/{id}",
    "/api/dead-letters/{id}",
    "/api/outbox/{id}",
    "/api/tasks/{id}",
];

/// The room of a server. Clones share it.
#[derive(Clone)]
pub(crate) struct Memory {
    work: Part,
    arriving: Part,
    patience: Duration,
    /// Whose this is; nobody's is only bounded by what there is in all.
    caller: Option<Arc<str>>,
}

/// A part of the room.
#[derive(Clone)]
struct Part {
    all: Arc<Semaphore>,
    units: usize,
    shares: Arc<Shares>,
}

/// Some room, given back when it is dropped.
pub(crate) struct Room {
    permit: Option<OwnedSemaphorePermit>,
    share: Option<OwnedSemaphorePermit>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::of(ROOM, 100, PATIENCE)
    }
}

impl Memory {
    /// So many bytes, of which each caller has at most so many hundredths.
    pub(crate) fn sized(bytes: u64, share: u64) -> Self {
        Self::of(bytes, share, PATIENCE)
    }

    fn of(bytes: u64, share: u64, patience: Duration) -> Self {
        let arriving = bytes / ARRIVING;
        Self {
            work: Part::of(bytes - arriving, share),
            arriving: Part::of(arriving, share),
            patience,
            caller: None,
        }
    }

    /// The same room, of which this caller has a share.
    pub(super) fn of_caller(&self, caller: &str) -> Self {
        Self { caller: Some(caller.into()), ..self.clone() }
    }

    /// Room for so many bytes, as soon as there is some.
    pub(crate) async fn room(&self, bytes: u64) -> Result<Room, Problem> {
        self.taken(&self.work, bytes).await
    }

    /// Room for a body of so many bytes that is still to come.
    pub(super) async fn room_to_arrive(&self, bytes: u64) -> Result<Room, Problem> {
        self.taken(&self.arriving, bytes).await
    }

    /// Room to do what a body of so many bytes asks for.
    pub(super) async fn room_to_work(&self, body: u64) -> Result<Room, Problem> {
        self.room(body.saturating_mul(WORK)).await
    }

    /// Room for so many bytes, if there is some now.
    pub(super) fn room_now(&self, bytes: u64) -> Result<Room, Problem> {
        let Some(units) = self.units(&self.work, bytes) else { return Ok(Room::none()) };
        let take = |from: Arc<Semaphore>| from.try_acquire_many_owned(units).ok();
        let share = match &self.caller {
            Some(caller) => Some(take(self.work.shares.share_of(caller)).ok_or_else(used_up)?),
            None => None,
        };
        let permit = take(Arc::clone(&self.work.all)).ok_or_else(overfull)?;
        Ok(Room { permit: Some(permit), share })
    }

    /// How much of a part so many bytes take; nothing where they are few.
    fn units(&self, part: &Part, bytes: u64) -> Option<u32> {
        // What is larger than there is has all of it.
        let most = if self.caller.is_some() { part.shares.each() } else { part.units };
        let units = usize::try_from(bytes.div_ceil(UNIT)).unwrap_or(usize::MAX).min(most);
        (bytes >= SMALL).then(|| u32::try_from(units).unwrap_or(u32::MAX))
    }

    /// The caller's own share first: who waits for it keeps nothing from the others.
    async fn taken(&self, part: &Part, bytes: u64) -> Result<Room, Problem> {
        let Some(units) = self.units(part, bytes) else { return Ok(Room::none()) };
        let deadline = tokio::time::Instant::now() + self.patience;
        let take = |from: Arc<Semaphore>| async move {
            let waited = tokio::time::timeout_at(deadline, from.acquire_many_owned(units)).await;
            waited.ok().and_then(Result::ok)
        };
        let share = match &self.caller {
            Some(caller) => Some(take(part.shares.share_of(caller)).await.ok_or_else(used_up)?),
            None => None,
        };
        let permit = take(Arc::clone(&part.all)).await.ok_or_else(overfull)?;
        Ok(Room { permit: Some(permit), share })
    }

    /// The first events from a position on: at most so many, and not more than one page may have.
    pub(super) async fn events(
        &self,
        towpath: &Towpath,
        low: Position,
        high: Position,
    ) -> Result<(Room, Vec<RecordedEvent>), Problem> {
        let sizes = towpath.store().sizes_between(low, high).await?;
        let mut total = 0;
        let mut last = None;
        for (position, size) in sizes {
            if last.is_some() && total + size > PAGE_BYTES {
                break;
            }
            (total, last) = (total + size, Some(position));
        }
        let Some(last) = last else { return Ok((Room::none(), Vec::new())) };
        // As it is read, and as it is written.
        let room = self.room(2 * total).await?;
        Ok((room, towpath.store().events_between(low, last).await?))
    }
}

/// The room of who asks. Whoever is let through has been given one.
impl<S: Send + Sync> FromRequestParts<S> for Memory {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(super::access::unauthenticated)
    }
}

impl Part {
    fn of(bytes: u64, share: u64) -> Self {
        let units = usize::try_from(bytes / UNIT).unwrap_or(Semaphore::MAX_PERMITS).max(1);
        let units = units.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        let each = (units as u64).saturating_mul(share.min(100)) / 100;
        let each = usize::try_from(each).unwrap_or(units).max(1);
        Self { all: Arc::new(Semaphore::new(units)), units, shares: Arc::new(Shares::of(each)) }
    }
}

fn overfull() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "overloaded",
        "more large requests and answers are under way at this moment than the server takes",
        "Try again in a moment, or ask for fewer at a time.",
    )
}

fn used_up() -> Problem {
    Problem::share_used_up(
        "what this caller has under way is as large as one caller's may be",
        "Wait until some of it is through, and ask for less at a time.",
    )
}

impl Room {
    fn none() -> Self {
        Self { permit: None, share: None }
    }

    /// An answer as JSON, which has its room until it is sent.
    pub(crate) fn json(self, answer: &impl Serialize) -> Result<Response, Problem> {
        let body = serde_json::to_vec(answer).map_err(|error| Problem::internal(&error))?;
        let mut answer = ([(header::CONTENT_TYPE, "application/json")], self.holding(body)).into_response();
        answer.extensions_mut().insert(HasRoom);
        Ok(answer)
    }

    /// Bytes that have this room until nobody has them any more. What they do not need of it is given back.
    pub(super) fn holding(mut self, bytes: Vec<u8>) -> Bytes {
        if self.shrink_to(bytes.len() as u64) { held(bytes, Arc::new(self)) } else { bytes.into() }
    }

    /// An answer whose bytes have this room until they are sent.
    pub(super) fn answering(mut self, response: Response) -> Response {
        match response.body().size_hint().exact() {
            Some(length) if self.shrink_to(length) => {
                let room = Arc::new(self);
                response.map(|body| Body::new(Roomy { body, room }))
            }
            _ => response,
        }
    }

    /// Bytes that share this room with others until nobody has any of them any more.
    pub(super) fn shared(self: &Arc<Self>, bytes: Vec<u8>) -> Bytes {
        if self.is_none() { bytes.into() } else { held(bytes, Arc::clone(self)) }
    }

    fn is_none(&self) -> bool {
        self.permit.is_none()
    }

    /// Gives back what so many bytes do not need; answers whether anything is left.
    fn shrink_to(&mut self, bytes: u64) -> bool {
        let needed = if bytes < SMALL { 0 } else { bytes.div_ceil(UNIT) };
        let needed = usize::try_from(needed).unwrap_or(usize::MAX);
        for permit in [&mut self.permit, &mut self.share].into_iter().flatten() {
            drop(permit.split(permit.num_permits().saturating_sub(needed)));
        }
        self.permit.as_ref().is_some_and(|permit| permit.num_permits() > 0)
    }
}

/// A mark on answers whose bytes have room of their own.
#[derive(Debug, Clone, Copy)]
pub(super) struct HasRoom;

/// An answer whose bytes have room until they are sent: what its request has, or some that is taken now. A read for which
/// there is none is refused; a change has been carried out, and is answered.
pub(super) fn answering(
    memory: &Memory,
    room: Option<Room>,
    reads_only: bool,
    response: Response,
) -> Response {
    let length = response.body().size_hint().exact().unwrap_or(0);
    match room {
        Some(room) if !room.is_none() => room.answering(response),
        _ if length < SMALL || response.extensions().get::<HasRoom>().is_some() => response,
        _ => match memory.room_now(length) {
            Ok(room) => room.answering(response),
            Err(problem) if reads_only => problem.into_response(),
            Err(_) => response,
        },
    }
}

/// Bytes that keep some room.
fn held(bytes: impl AsRef<[u8]> + Send + 'static, room: Arc<Room>) -> Bytes {
    struct Held<B> {
        bytes: B,
        _room: Arc<Room>,
    }
    impl<B: AsRef<[u8]>> AsRef<[u8]> for Held<B> {
        fn as_ref(&self) -> &[u8] {
            self.bytes.as_ref()
        }
    }
    Bytes::from_owner(Held { bytes, _room: room })
}

/// A body whose bytes keep some room, also where they have left it and are not yet sent.
struct Roomy {
    body: Body,
    room: Arc<Room>,
}

impl HttpBody for Roomy {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(
            frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| held(bytes, Arc::clone(&self.room))))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// How much room the answer of a path needs, where that is one thing of unknown size.
pub(super) fn needed_for(method: &Method, route: &str) -> u64 {
    // As it is read, and as it is written.
    if matches!(*method, Method::GET | Method::HEAD) && ONE_THING.contains(&route) {
        2 * Payload::MAX_BYTES as u64
    } else {
        0
    }
}

/// The whole of a body, in room of its own while it arrives; and then the room to do what it asks for.
pub(super) async fn whole(memory: &Memory, body: Body, limit: usize) -> Result<(Bytes, Room), Problem> {
    let too_large = || {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too-large",
            "the request is too large",
            format!("Send at most {limit} bytes."),
        )
    };
    let said = body.size_hint().exact();
    if said.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let mut arriving = memory.room_to_arrive(said.unwrap_or(0)).await?;
    let mut whole = Vec::with_capacity(usize::try_from(said.unwrap_or(0)).unwrap_or(0));
    let mut body = body;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Problem::malformed("the request cannot be read", error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > limit {
            return Err(too_large());
        }
        // One that does not say how large it is may become as large as any.
        if said.is_none() && arriving.permit.is_none() && (whole.len() + data.len()) as u64 >= SMALL {
            arriving = memory.room_to_arrive(limit as u64).await?;
        }
        whole.extend_from_slice(&data);
    }
    let room = memory.room_to_work(whole.len() as u64).await?;
    drop(arriving);
    Ok((whole.into(), room))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes: u64, share: u64) -> Memory {
        // All of it is to work in, so that numbers are plain.
        let memory = Memory::of(bytes, share, Duration::from_millis(20));
        Memory { work: Part::of(bytes, share), ..memory }
    }

    #[tokio::test]
    async fn room_is_given_back_with_the_bytes_and_who_finds_none_is_told() {
        let memory = memory(4 * SMALL, 100);
        let first = memory.room(4 * SMALL).await.ok().unwrap().holding(vec![7; 3 * SMALL as usize]);
        let part = first.slice(2..4);
        drop(first);
        assert!(memory.room(2 * SMALL).await.is_err(), "a part of it is still there");
        assert!(memory.room(SMALL).await.is_ok(), "what it did not need was given back");
        assert!(memory.room(10).await.is_ok(), "what is small is not asked");
        drop(part);
        assert!(memory.room(4 * SMALL).await.is_ok());
    }

    #[tokio::test]
    async fn one_caller_has_a_share_and_the_others_have_the_rest() {
        let memory = memory(8 * SMALL, 50);
        let (ann, bob) = (memory.of_caller("ann"), memory.of_caller("bob"));
        let kept = ann.room(3 * SMALL).await.ok().unwrap();
        let refused = ann.room(2 * SMALL).await.err().unwrap().into_response();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        let other = bob.room(4 * SMALL).await.ok().unwrap();
        let refused = memory.of_caller("eve").room(3 * SMALL).await.err().unwrap().into_response();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE, "there is no more in all");
        drop(kept);
        assert!(ann.room(100 * SMALL).await.is_ok(), "what is larger than a share has a whole one");
        drop(other);
    }

    #[tokio::test]
    async fn an_answer_keeps_its_room_until_its_last_byte_is_gone() {
        let memory = memory(4 * SMALL, 100);
        let room = memory.room(4 * SMALL).await.ok().unwrap();
        let response = room.answering(vec![7_u8; 3 * SMALL as usize].into_response());
        assert_eq!(response.body().size_hint().exact(), Some(3 * SMALL));
        let bytes = response.into_body().frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(memory.room(2 * SMALL).await.is_err(), "the body is gone, its bytes are not");
        drop(bytes);
        assert!(memory.room(4 * SMALL).await.is_ok());
        let small = memory.room(4 * SMALL).await.ok().unwrap().answering("small".into_response());
        assert!(memory.room(4 * SMALL).await.is_ok(), "what is small keeps nothing");
        drop(small);
    }

    #[tokio::test]
    async fn what_is_large_takes_room_although_nobody_asked_before() {
        for method in [Method::GET, Method::HEAD] {
            assert!(needed_for(&method, ONE_THING[0]) > SMALL, "{method}");
        }
        let memory = memory(4 * SMALL, 100);
        let large = || vec![7_u8; 3 * SMALL as usize].into_response();
        let first = answering(&memory, Some(Room::none()), true, large());
        assert!(memory.room(2 * SMALL).await.is_err(), "it was taken for the answer");
        let refused = answering(&memory, None, true, large());
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        let changed = answering(&memory, None, false, large());
        assert_eq!(changed.status(), StatusCode::OK, "what was done is answered");
        let mut charged = large();
        charged.extensions_mut().insert(HasRoom);
        assert_eq!(answering(&memory, None, true, charged).status(), StatusCode::OK, "it has room already");
        drop(first);
        assert!(memory.room(4 * SMALL).await.is_ok());
    }

    #[tokio::test]
    async fn who_sends_slowly_keeps_nobody_from_working() {
        let memory = Memory::of(64 * SMALL, 100, Duration::from_millis(20));
        let _arriving = memory.room_to_arrive(16 * SMALL).await.ok().unwrap();
        assert!(memory.room_to_arrive(SMALL).await.is_err(), "as much arrives as may");
        assert!(memory.room_to_work(SMALL).await.is_ok());
        let body = || Body::from(vec![7_u8; SMALL as usize]);
        assert!(whole(&memory, body(), 2 * SMALL as usize).await.is_err());
        let unsized_body = || {
            let parts = (0..40).map(|_| Ok::<_, std::convert::Infallible>(vec![7_u8; 1 << 10]));
            Body::from_stream(futures_util::stream::iter(parts))
        };
        let (small, _room) = whole(&memory, unsized_body(), 1 << 20).await.ok().unwrap();
        assert_eq!(small.len(), 40 << 10);
        let refused = whole(&memory, unsized_body(), 39 << 10).await.err().unwrap().into_response();
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
}
