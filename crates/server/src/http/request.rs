//! What every request has: an id, a trace, a line in the log; and every error of it is a problem.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use towpath::Circumstances;
use towpath::ids::{RequestId, TraceId};
use tracing::Instrument as _;
use uuid::Uuid;

use super::access::Caller;
use super::problem::{PROBLEM_JSON, Problem};

tokio::task_local! {
    static CURRENT: RequestId;
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// By what a request is known.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) request_id: RequestId,
    pub(crate) trace: Trace,
}

/// A W3C trace context, continued by this server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trace {
    pub(crate) trace_id: TraceId,
    span: String,
    flags: String,
}

/// The id of the request that this task works on.
pub(super) fn current_id() -> Option<RequestId> {
    CURRENT.try_with(Clone::clone).ok()
}

impl Identity {
    fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(|id| is_plain(id));
        let request_id = given.and_then(|id| RequestId::new(id).ok());
        Self {
            request_id: request_id.unwrap_or_else(|| RequestId::from_stored(Uuid::now_v7().to_string())),
            trace: Trace::continued(headers),
        }
    }

    /// What commands inherit that are sent for this request.
    pub(super) fn circumstances(&self, caller: &Caller) -> Circumstances {
        Circumstances {
            actor_id: Some(caller.name.clone()),
            request_id: Some(self.request_id.clone()),
            trace_id: Some(self.trace.trace_id.clone()),
        }
    }

    /// Runs something as part of this request: its problems name it, and its log lines carry it.
    pub(super) async fn during<F: Future>(self, work: F) -> F::Output {
        let span = tracing::info_span!(
            "request",
            "requestId" = self.request_id.as_str(),
            "traceId" = self.trace.trace_id.as_str()
        );
        CURRENT.scope(self.request_id, work).instrument(span).await
    }
}

impl Trace {
    /// The trace that a client began, or a new one; in either case with a span of ours.
    fn continued(headers: &HeaderMap) -> Self {
        let given = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok()).and_then(parent);
        let (trace_id, flags) =
            given.unwrap_or_else(|| (Uuid::new_v4().simple().to_string(), "00".to_owned()));
        // The lower half of a random UUID is random but for two bits, and never zero.
        let (_, span) = Uuid::new_v4().as_u64_pair();
        Self { trace_id: TraceId::from_stored(trace_id), span: format!("{span:016x}"), flags }
    }

    fn header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&format!("00-{}-{}-{}", self.trace_id, self.span, self.flags)).ok()
    }
}

/// Trace id and flags of a `traceparent`. One of a later version may have more at its end.
fn parent(text: &str) -> Option<(String, String)> {
    let is_hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_zero = |part: &str| part.bytes().all(|byte| byte == b'0');
    let mut parts = text.split('-');
    let (version, trace_id, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let ends = version != "00" || parts.next().is_none();
    let valid =
        is_hex(version, 2) && version != "ff" && is_hex(trace_id, 32) && is_hex(span, 16) && is_hex(flags, 2);
    (valid && ends && !is_zero(trace_id) && !is_zero(span)).then(|| (trace_id.to_owned(), flags.to_owned()))
}

/// Whether a request id can go into headers, logs and columns as it is.
fn is_plain(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=@".contains(&byte);
    (1..=RequestId::MAX_CHARACTERS).contains(&id.len()) && id.bytes().all(is_plain)
}

/// Gives a request its id and trace, and writes its line into the log: never headers, never the query.
pub(super) async fn identify(mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let identity = Identity::of(request.headers());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    request.extensions_mut().insert(identity.clone());
    let work = async {
        // A handler that panics is a bug; its client is answered all the same.
        match AssertUnwindSafe(next.run(request)).catch_unwind().await {
            Ok(response) => as_problem(response),
            Err(_) => as_problem(StatusCode::INTERNAL_SERVER_ERROR.into_response()),
        }
    };
    let mut response = identity.clone().during(work).await;
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(identity.request_id.as_str()) {
        headers.insert(REQUEST_ID, id);
    }
    if let Some(traceparent) = identity.trace.header() {
        headers.insert(TRACEPARENT, traceparent);
    }
    // What is answered is for who asked, at this moment, unless it says otherwise.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("private, no-store"));
    let actor = response.extensions().get::<Caller>().map(|caller| caller.name.to_string());
    tracing::info!(
        target: "towpath::http",
        method = method.as_str(),
        route = route.as_deref().unwrap_or("none"),
        status = response.status().as_u16(),
        ms = began.elapsed().as_secs_f64() * 1000.0,
        "requestId" = identity.request_id.as_str(),
        "traceId" = identity.trace.trace_id.as_str(),
        actor,
        "answered"
    );
    response
}

/// An error that says nothing of its own (a method that is not there, a body of the wrong type) becomes a problem.
fn as_problem(response: Response) -> Response {
    let status = response.status();
    let is_problem = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == PROBLEM_JSON);
    if is_problem || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (code, title) = match status {
        StatusCode::METHOD_NOT_ALLOWED => ("method-not-allowed", "this cannot be done here"),
        StatusCode::NOT_FOUND => ("not-found", "there is nothing here"),
        StatusCode::PAYLOAD_TOO_LARGE => ("too-large", "the request is too large"),
        _ if status.is_client_error() => ("malformed", "the request cannot be read"),
        _ => ("internal", "something broke in the server"),
    };
    let detail = "See the API's description at /openapi.json.";
    let mut problem = Problem::new(status, code, title, detail).into_response();
    // What the error said in headers (which methods there are) still holds.
    for (name, value) in response.headers() {
        if *name != header::CONTENT_TYPE && *name != header::CONTENT_LENGTH {
            problem.headers_mut().append(name, value.clone());
        }
    }
    *problem.extensions_mut() = response.extensions().clone();
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_continued_if_it_is_one() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(parent(&format!("00-{id}-00f067aa0ba902b7-01")), Some((id.to_owned(), "01".to_owned())));
        assert!(parent(&format!("01-{id}-00f067aa0ba902b7-01-more")).is_some(), "a later version");
        for wrong in [
            "",
            "00",
            &format!("00-{id}-00f067aa0ba902b7-01-more"),
            &format!("ff-{id}-00f067aa0ba902b7-01"),
            &format!("00-{}-00f067aa0ba902b7-01", id.to_uppercase()),
            &format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            &format!("00-{id}-{}-01", "0".repeat(16)),
            &format!("00-{id}-00f067aa0ba902b7-1"),
        ] {
            assert_eq!(parent(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_plain_request_ids_are_taken_over() {
        assert!(is_plain("a-1_b.c:d/e+f=@") && is_plain(&"x".repeat(128)));
        for wrong in ["", "a b", "a\"b", "é", "a\u{1b}[31m", &"x".repeat(129)] {
            assert!(!is_plain(wrong), "{wrong:?}");
        }
    }
}
