//! Limits: how large, how long, how many, how often.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::App;
use super::connections::Spare;
use super::extract::says_json;
use super::memory::{self, Memory, Room};
use super::problem::Problem;
use super::shares::Shares;

/// What one client may ask of the server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LimitSettings {
    pub(crate) body_bytes: usize,
    pub(crate) header_bytes: usize,
    pub(crate) headers: usize,
    pub(crate) header_timeout: Duration,
    pub(crate) request_timeout: Duration,
    /// How long the whole of an answer may take to be read.
    pub(crate) answer_timeout: Duration,
    pub(crate) connections: usize,
    pub(crate) concurrent_requests: usize,
    pub(crate) streams: usize,
    /// What requests and answers have in memory at most.
    pub(crate) memory_bytes: u64,
    /// How many hundredths of requests, streams and memory one caller may have.
    pub(crate) caller_share: u64,
    /// 0 is no limit.
    pub(crate) requests_per_second: u32,
    pub(crate) burst: u32,
}

/// The limits and how much of them is used.
pub(crate) struct Limits {
    pub(crate) settings: LimitSettings,
    buckets: Option<Buckets>,
    running: Arc<Semaphore>,
    shares: Shares,
    /// Those among the running who only wait for tasks.
    waiting: Arc<Semaphore>,
    waiting_shares: Shares,
}

/// A bucket of tokens per caller.
struct Buckets {
    limiter: DefaultKeyedRateLimiter<String>,
    clock: DefaultClock,
    quota: Quota,
    asked: AtomicU64,
}

/// After so many requests, buckets that are full again are forgotten: callers come and go.
const FORGET_EVERY: u64 = 10_000;

impl Limits {
    pub(crate) fn new(settings: LimitSettings) -> Self {
        let quota = NonZeroU32::new(settings.requests_per_second).map(|rate| {
            Quota::per_second(rate).allow_burst(NonZeroU32::new(settings.burst).unwrap_or(rate).max(rate))
        });
        let clock = DefaultClock::default();
        let buckets = quota.map(|quota| Buckets {
            limiter: RateLimiter::keyed(quota),
            clock,
            quota,
            asked: AtomicU64::new(0),
        });
        let running = Arc::new(Semaphore::new(settings.concurrent_requests.min(Semaphore::MAX_PERMITS)));
        let each = settings.concurrent_requests as u64 * settings.caller_share.min(100) / 100;
        let each = usize::try_from(each).unwrap_or(usize::MAX).max(1);
        let waiting = Arc::new(Semaphore::new(running.available_permits() / 2));
        let waiting_shares = Shares::of(each / 2);
        Self { settings, buckets, running, shares: Shares::of(each), waiting, waiting_shares }
    }

    /// Takes one of the places that this caller may have, and keeps it with the request's own.
    pub(super) fn take_share(&self, caller: &str, request: &Request) -> Result<(), Problem> {
        // Who watches has no place, and needs none.
        let Some(Place(held)) = request.extensions().get::<Place>() else { return Ok(()) };
        let Ok(share) = self.shares.share_of(caller).try_acquire_owned() else {
            return Err(Problem::share_used_up(
                "as many requests of this caller run at this moment as one caller may have",
                "Wait until some of them are answered, and ask for fewer at a time.",
            ));
        };
        // A request has one caller.
        let _ = held.share.set(share);
        Ok(())
    }

    /// Leave to wait for tasks, where anybody may (`caller` is none) or this caller. Who waits has a place and does nothing in it:
    /// half of all places, and half of each caller's, are for those who do.
    pub(super) fn leave_to_wait(
        &self,
        caller: Option<&str>,
    ) -> Option<(OwnedSemaphorePermit, Option<OwnedSemaphorePermit>)> {
        let share = match caller {
            Some(caller) => Some(self.waiting_shares.share_of(caller).try_acquire_owned().ok()?),
            None => None,
        };
        Some((Arc::clone(&self.waiting).try_acquire_owned().ok()?, share))
    }

    /// Takes a token out of a caller's bucket, or answers that it is empty.
    #[allow(clippy::result_large_err, reason = "the error is the answer that is sent")]
    pub(super) fn spend(&self, bucket: &str) -> Result<(), Response> {
        let Some(buckets) = &self.buckets else { return Ok(()) };
        if buckets.asked.fetch_add(1, Ordering::Relaxed) % FORGET_EVERY == FORGET_EVERY - 1 {
            buckets.limiter.retain_recent();
        }
        let Err(not_until) = buckets.limiter.check_key(&bucket.to_owned()) else { return Ok(()) };
        let seconds = not_until.wait_time_from(buckets.clock.now()).as_secs_f64().ceil().max(1.0) as u64;
        let problem = Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too-many-requests",
            "this caller asks more often than it may",
            "Wait as long as Retry-After says, and ask less often.",
        );
        let mut response = problem.into_response();
        for (name, number) in [
            ("retry-after", seconds),
            ("ratelimit-limit", u64::from(buckets.quota.burst_size().get())),
            ("ratelimit-remaining", 0),
            ("ratelimit-reset", seconds),
        ] {
            response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from(number));
        }
        Err(response)
    }
}

/// Where a request comes from. What a proxy says about it is not believed: anybody can say it.
pub(super) fn address_of(request: &Request) -> String {
    let info = request.extensions().get::<ConnectInfo<std::net::SocketAddr>>();
    info.map_or_else(|| "unknown".to_owned(), |ConnectInfo(address)| address.ip().to_string())
}

/// Paths for who watches the server. They are answered however much else is asked, so that a busy server is not taken for
/// a dead one.
const WATCHED: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Refuses heads that are too large, and more requests at a time than can be served.
///
/// A stream of events counts until its head is sent; after that it is one of the connections, which have a limit of their
/// own.
pub(super) async fn admit(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let settings = &app.limits.settings;
    if request.headers().len() > settings.headers || head_bytes(&request) > settings.header_bytes {
        return Problem::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "head-too-large",
            "the request has too many headers, or too large ones",
            format!("Send at most {} headers with {} bytes in all.", settings.headers, settings.header_bytes),
        )
        .into_response();
    }
    // Not every database has a text with a NUL in it, and nothing that can be asked for has one.
    if request.uri().path_and_query().is_some_and(|asked| asked.as_str().contains("%00")) {
        return Problem::malformed("the path or the query has a NUL in it", "Leave %00 out.").into_response();
    }
    if WATCHED.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    if request.extensions().get::<Spare>().is_some() {
        return overloaded("as many connections are open as the server takes");
    }
    let Ok(permit) = Arc::clone(&app.limits.running).try_acquire_owned() else {
        return overloaded("more requests run at this moment than the server takes");
    };
    let place = Place(Arc::new(Held { _permit: permit, share: OnceLock::new(), room: Mutex::default() }));
    request.extensions_mut().insert(place.clone());
    let response = next.run(request).await;
    drop(place);
    response
}

fn overloaded(title: &str) -> Response {
    let problem =
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", title, "Try again in a moment.");
    let mut response = problem.into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// A place among the requests that run, and the memory that its work needs. Work that goes on when its client has gone, or
/// was told that it takes too long, keeps both to its own end.
#[derive(Clone)]
pub(super) struct Place(Arc<Held>);

struct Held {
    _permit: OwnedSemaphorePermit,
    /// Of what its caller may have.
    share: OnceLock<OwnedSemaphorePermit>,
    room: Mutex<Option<Room>>,
}

impl Place {
    fn keep(&self, room: Room) {
        *self.0.room.lock().unwrap_or_else(PoisonError::into_inner) = Some(room);
    }

    /// The room, for the answer: the work is done.
    fn give_up_room(&self) -> Option<Room> {
        self.0.room.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Reads the body of a change, and gives up on a request that takes too long.
///
/// The body is read here, before anything is done with it: a client that sends it a byte at a time holds a connection for
/// the length of the time-out, and memory for what it says it sends. An answer that is streamed is not cut off: the time
/// ends with its head.
pub(super) async fn in_time(State(app): State<App>, request: Request, next: Next) -> Response {
    let settings = &app.limits.settings;
    let deadline = tokio::time::Instant::now() + settings.request_timeout;
    let place = request.extensions().get::<Place>().cloned();
    let memory = request.extensions().get::<Memory>().unwrap_or(&app.memory).clone();
    let reads = reads_only(request.method());
    let request = if reads {
        let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
        let needed = memory::needed_for(request.method(), route);
        match (memory.room(needed).await, &place) {
            (Ok(room), Some(place)) => place.keep(room),
            (Ok(_), None) => {}
            (Err(problem), _) => return problem.into_response(),
        }
        request
    } else {
        match tokio::time::timeout_at(deadline, whole(request, &memory, settings.body_bytes)).await {
            Ok(Ok((request, room))) => {
                if let Some(place) = &place {
                    place.keep(room);
                }
                request
            }
            Ok(Err(problem)) => return closing(problem),
            Err(_) => {
                return closing(Problem::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "slow-request",
                    "the request did not arrive in time",
                    format!("Send it within {:?}.", settings.request_timeout),
                ));
            }
        }
    };
    match tokio::time::timeout_at(deadline, next.run(request)).await {
        // Who watches is answered in any case.
        Ok(response) => match place {
            Some(place) => memory::answering(&memory, place.give_up_room(), reads, response),
            None => response,
        },
        Err(_) => Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            "timeout",
            "the request took too long",
            "Whether it was done is not known. Ask again with the same Idempotency-Key.",
        )
        .into_response(),
    }
}

/// Whether a method only reads.
pub(super) fn reads_only(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

/// The request with its body in memory, and the memory that its work needs. Whatever has a body has JSON: a page of
/// another origin can send everything else without asking first.
async fn whole(request: Request, memory: &Memory, limit: usize) -> Result<(Request, Room), Problem> {
    let (parts, body) = request.into_parts();
    let (bytes, room) = memory::whole(memory, body, limit).await?;
    let is_path = parts.extensions.get::<MatchedPath>().is_some();
    if is_path && !bytes.is_empty() && !says_json(&parts.headers) {
        return Err(Problem::unsupported_media_type());
    }
    Ok((Request::from_parts(parts, Body::from(bytes)), room))
}

/// The rest of the body is not wanted: the connection ends with the answer.
fn closing(problem: Problem) -> Response {
    let mut response = problem.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn head_bytes(request: &Request) -> usize {
    let line = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let size = |headers: &HeaderMap| -> usize {
        headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
    };
    line + size(request.headers())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(requests_per_second: u32, burst: u32) -> Limits {
        Limits::new(settings(requests_per_second, burst))
    }

    fn settings(requests_per_second: u32, burst: u32) -> LimitSettings {
        LimitSettings {
            body_bytes: 1,
            header_bytes: 1,
            headers: 1,
            header_timeout: Duration::ZERO,
            request_timeout: Duration::ZERO,
            answer_timeout: Duration::ZERO,
            connections: 1,
            concurrent_requests: 1,
            streams: 1,
            memory_bytes: 1,
            caller_share: 100,
            requests_per_second,
            burst,
        }
    }

    #[test]
    fn half_of_the_places_is_for_those_who_do_not_wait() {
        let limits =
            Limits::new(LimitSettings { concurrent_requests: 12, caller_share: 50, ..settings(0, 0) });
        let of = |caller: Option<&str>, most| -> Vec<_> {
            (0..most).map_while(|_| limits.leave_to_wait(caller)).collect()
        };
        let ann = of(Some("ann"), 12);
        assert_eq!(ann.len(), 3, "half of what one caller may have");
        let bob = of(Some("bob"), 2);
        assert_eq!((bob.len(), of(None, 12).len()), (2, 1), "half of all");
        drop(ann);
        assert_eq!(of(Some("bob"), 12).len(), 1, "its own half");
    }

    #[test]
    fn each_caller_has_a_bucket_of_its_own() {
        let limits = limits(1, 3);
        for _ in 0..3 {
            assert!(limits.spend("one").is_ok());
        }
        let refused = limits.spend("one").err().unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "1");
        assert_eq!(refused.headers()["ratelimit-limit"], "3");
        assert!(limits.spend("other").is_ok());
    }

    #[test]
    fn none_is_no_limit() {
        let limits = limits(0, 0);
        assert!((0..10_000).all(|_| limits.spend("one").is_ok()));
    }
}
