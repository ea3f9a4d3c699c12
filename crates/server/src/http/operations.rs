//! Every change that is asked for over HTTP: done once per Idempotency-Key, and recorded as a fact.
//!
//! This is a layer around all paths, so a new one has both without being asked. Commands are left out: their own record
//! says who sent them, and their id is their key. So is what workers ask all the time.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use towpath::ids::OperationName;
use towpath::ports::operations::{
    BeginOutcome, NewOperation, OperationAnswer, OperationClaim, OperationEnd, OperationKey,
};
use towpath::{Circumstances, Coded as _, Outcome, Ran, Towpath};
use uuid::Uuid;

use super::App;
use super::access::Caller;
use super::command_ids::idempotency_key;
use super::limits::{Place, reads_only};
use super::problem::{ChangeOutcome, Problem};
use super::request::Identity;
use super::task_workers::ASKED_ALL_THE_TIME;

/// Headers that belong to an answer and are given again with it.
const KEPT_HEADERS: [HeaderName; 3] = [header::CONTENT_TYPE, header::LOCATION, header::ETAG];

const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// How much longer than a request a claim lasts: enough to write how it ended.
const MARGIN: Duration = Duration::from_secs(5);

/// Runs a change once and records it.
pub(super) async fn once_and_recorded(State(app): State<App>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let identity = request.extensions().get::<Identity>().cloned();
    let caller = request.extensions().get::<Caller>().cloned();
    let (Some(route), Some(identity), Some(caller)) = (route, identity, caller) else {
        return next.run(request).await;
    };
    if reads_only(request.method()) || ASKED_ALL_THE_TIME.contains(&route.as_str()) {
        return next.run(request).await;
    }
    let circumstances = identity.circumstances(&caller);
    // The place among those that run is the task's, and is given back with its end, whoever still listens.
    let place = request.extensions().get::<Place>().cloned();
    if is_command(request.method(), &route) {
        return to_its_end(identity, circumstances, place, next.run(request)).await;
    }
    let (parts, body) = request.into_parts();
    // The body is in memory already.
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            return Problem::malformed("the request cannot be read", error.to_string()).into_response();
        }
    };
    let asked = match ChangeRequest::read(&parts, &body, &route, &identity, &caller) {
        Ok(asked) => asked,
        Err(problem) => return problem.into_response(),
    };
    let request = Request::from_parts(parts, Body::from(body));
    let for_ = app.limits.settings.request_timeout + MARGIN;
    let work = async move { asked.perform(&app.towpath, for_, next.run(request)).await };
    to_its_end(identity, circumstances, place, work).await
}

/// Runs a change in a task of its own: a client that goes away, or a request that takes too long, leaves nothing half done.
async fn to_its_end(
    identity: Identity,
    circumstances: Circumstances,
    place: Option<Place>,
    work: impl Future<Output = Response> + Send + 'static,
) -> Response {
    let work = async move {
        let response = work.await;
        drop(place);
        response
    };
    let running = tokio::spawn(identity.during(circumstances.during(work)));
    match running.await {
        Ok(response) => response,
        Err(error) => {
            tracing::error!(%error, "a request ended badly");
            broken().into_response()
        }
    }
}

fn broken() -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "something broke in the server",
        "Whether it was done is not known. Ask again with the same Idempotency-Key.",
    )
}

/// Whether a request is a command, which has its own record and its own key.
fn is_command(method: &Method, route: &str) -> bool {
    *method == Method::POST && route == "/api/commands"
}

/// A change that is asked for.
struct ChangeRequest {
    operation: NewOperation,
    /// Whether the client chose the key, and so may ask again.
    has_key: bool,
}

impl ChangeRequest {
    fn read(
        parts: &axum::http::request::Parts,
        body: &Bytes,
        route: &str,
        identity: &Identity,
        caller: &Caller,
    ) -> Result<Self, Problem> {
        let operation_id = Uuid::now_v7();
        let key = idempotency_key(&parts.headers)?;
        let name = match key {
            None => OperationName::from_stored(operation_id.to_string()),
            Some(key) => OperationName::new(key).map_err(|error| {
                Problem::malformed(format!("the Idempotency-Key is wrong: {error}"), "A UUID is a good one.")
            })?,
        };
        let operation = NewOperation {
            key: OperationKey { actor: caller.name.clone(), name },
            operation_id,
            fingerprint: fingerprint(&parts.method, &parts.uri, body),
            role: caller.role.as_str().to_owned(),
            action: format!("{} {route}", parts.method).chars().take(255).collect(),
            target: parts.uri.path().to_owned(),
            request_id: Some(identity.request_id.clone()),
            trace_id: Some(identity.trace.trace_id.clone()),
            asked_at: chrono::Utc::now(),
        };
        Ok(Self { operation, has_key: key.is_some() })
    }

    /// Runs it, unless it was run before or is running.
    async fn perform(&self, app: &Towpath, for_: Duration, run: impl Future<Output = Response>) -> Response {
        // The claim runs from when the store was asked, which is not before this.
        let began = Instant::now();
        let claim = match app.operations().begin(&self.operation, for_).await {
            Ok(BeginOutcome::Begun(claim)) => claim,
            Ok(BeginOutcome::Answered(answer)) => return again(answer),
            Ok(BeginOutcome::Running) => return still_running(),
            Ok(BeginOutcome::Different) => {
                return Problem::new(
                    StatusCode::CONFLICT,
                    "key-reused",
                    "the Idempotency-Key belongs to another request",
                    "Use a new key for each change, and the same one only to repeat it to the letter.",
                )
                .into_response();
            }
            Err(error) => return Problem::from(error).into_response(),
        };
        // Cut off before the claim runs out: nobody else may begin it while it still runs here.
        let run = AssertUnwindSafe(run).catch_unwind();
        let run = tokio::time::timeout_at(began + for_.saturating_sub(MARGIN / 2), run);
        // Without a key nobody can ask again, and there is no use in an answer that outlives the process.
        let ran = match self.has_key {
            true => app.operations().run(&claim, run).await,
            false => Ran { answer: run.await, wrote_answer: false },
        };
        let (response, timed_out) = match ran.answer {
            Ok(Ok(response)) => (response, false),
            Ok(Err(_)) => (broken().into_response(), false),
            Err(_) => (StatusCode::GATEWAY_TIMEOUT.into_response(), true),
        };
        if ran.wrote_answer && response.status().is_success() {
            // It was done: what is recorded is this very answer.
            let (end, status) = (OperationEnd::Kept, Some(response.status().as_u16()));
            report(&app.operations().end(&self.operation, &claim, end, Outcome::Done, status).await);
            return response;
        }
        if ran.wrote_answer
            && let Some(response) = self.end_with_written_answer(app, &claim).await
        {
            return response;
        }
        if timed_out {
            let end = OperationEnd::Forgotten;
            let ended = app.operations().end(&self.operation, &claim, end, Outcome::Unknown, None).await;
            report(&ended);
            return response;
        }
        self.end(app, &claim, response).await
    }

    /// Ends an operation whose answer was perhaps written with its effect: then that is the answer, whatever came after
    /// it. Nothing if it was not.
    async fn end_with_written_answer(&self, app: &Towpath, claim: &OperationClaim) -> Option<Response> {
        let answer = match app.operations().answer_of(claim).await {
            Ok(answer) => answer?,
            Err(error) => {
                // Who asks again is told. That it was not ended is put right when the claim has run out.
                tracing::error!(code = error.code(), %error, "whether an operation was done cannot be asked");
                return Some(Problem::from(error).into_response());
            }
        };
        let (end, status) = (OperationEnd::Kept, Some(answer.status));
        report(&app.operations().end(&self.operation, claim, end, Outcome::Done, status).await);
        Some(of_answer(answer))
    }

    /// Records how it ended, and keeps the answer for who asks again, if it is one for ever.
    async fn end(&self, app: &Towpath, claim: &OperationClaim, response: Response) -> Response {
        let status = response.status();
        if status == StatusCode::METHOD_NOT_ALLOWED {
            report(&app.operations().forget(claim).await);
            return response;
        }
        let (parts, body) = response.into_parts();
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                tracing::error!(%error, "an answer could not be read");
                Bytes::new()
            }
        };
        let answer = OperationAnswer {
            status: status.as_u16(),
            headers: KEPT_HEADERS
                .iter()
                .filter_map(|name| {
                    let value = parts.headers.get(name)?.to_str().ok()?;
                    Some((name.as_str().to_owned(), value.to_owned()))
                })
                .collect(),
            body: body.to_vec(),
        };
        let passing = if status.is_server_error() { ChangeOutcome::Passing } else { ChangeOutcome::Final };
        let standing = parts.extensions.get::<ChangeOutcome>().copied().unwrap_or(passing);
        // What nobody can ask for again need not be kept.
        let end = match standing {
            ChangeOutcome::Final | ChangeOutcome::Done if self.has_key => OperationEnd::Answered(&answer),
            _ => OperationEnd::Forgotten,
        };
        let outcome = match standing {
            ChangeOutcome::Done => Outcome::Done,
            _ if status.is_success() || status.is_redirection() => Outcome::Done,
            // An earlier attempt ended without a word. That this one was refused does not say that nothing has changed:
            // it may have been refused because the earlier one was done.
            _ if claim.epoch > 1 => Outcome::Unknown,
            _ if status.is_server_error() => Outcome::Failed,
            _ => Outcome::Refused,
        };
        let ended = app.operations().end(&self.operation, claim, end, outcome, Some(answer.status)).await;
        report(&ended);
        match ended {
            // Somebody else does it, and what was tried here was undone.
            Ok(false) if status.is_server_error() => still_running(),
            _ => Response::from_parts(parts, Body::from(body)),
        }
    }
}

/// All that makes a request what it is, beside who asks.
fn fingerprint(method: &Method, uri: &Uri, body: &[u8]) -> String {
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    let mut hash = Sha256::new();
    for part in [method.as_str().as_bytes(), path.as_bytes(), body] {
        // With its length, so that parts cannot run into each other.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What was done is done. That it could not be recorded is put right when the claim has run out: it is recorded then, with
/// an unknown outcome.
fn report(ended: &Result<bool, towpath::ports::store::StoreError>) {
    match ended {
        Ok(true) => {}
        Ok(false) => tracing::warn!("an operation was taken over while it ran"),
        Err(error) => {
            tracing::error!(code = error.code(), %error, "an operation could not be recorded; it will be as lost");
        }
    }
}

/// The recorded answer, to the letter. That something was made is said once: who asks again is told that it is there.
fn again(answer: OperationAnswer) -> Response {
    let mut response = of_answer(answer);
    if response.status() == StatusCode::CREATED {
        *response.status_mut() = StatusCode::OK;
    }
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// An answer as it was recorded.
pub(crate) fn of_answer(answer: OperationAnswer) -> Response {
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in answer.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn still_running() -> Response {
    let problem = Problem::new(
        StatusCode::CONFLICT,
        "still-processing",
        "a request with this Idempotency-Key is running",
        "Ask again in a moment, with the same key.",
    );
    let mut response = problem.into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
#[path = "operations_tests.rs"]
mod tests;
