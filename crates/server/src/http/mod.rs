//! The HTTP side of the server.

pub(crate) mod access;
mod alerts;
mod channels;
pub(crate) mod command_ids;
pub(crate) mod commands;
pub(crate) mod conditional;
pub(crate) mod connections;
mod consistency;
mod dead_letters;
mod docs;
pub(crate) mod extract;
pub(crate) mod facts;
mod flows;
pub(crate) mod limits;
mod machines;
pub(crate) mod memory;
pub(crate) mod metrics;
mod notifications;
mod openapi;
pub(crate) mod operations;
mod outbox;
mod patience;
pub(crate) mod problem;
mod projections;
pub(crate) mod range;
mod request;
mod shares;
pub(crate) mod stream;
pub(crate) mod task_workers;
pub(crate) mod tasks;
pub(crate) mod tls;
pub(crate) mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{DefaultBodyLimit, FromRef, State};
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use towpath::{Coded as _, Towpath, with_causes};
use utoipa::ToSchema;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::plugin::erased::Paths;

pub use access::{Caller, Role};
pub use extract::{JsonBody, OptionalJsonBody, Path, Query, RawBody};
pub(crate) use patience::{PATIENCE, Patient};
pub use problem::Problem;
pub(crate) use stream::{Feed, FeedOptions};

/// What handlers share. Those that only need the library ask for `State<Towpath>`.
#[derive(Clone, FromRef)]
pub(crate) struct App {
    pub(crate) towpath: Towpath,
    pub(crate) measurements: metrics::Measurements,
    pub(crate) access: Arc<access::Access>,
    pub(crate) limits: Arc<limits::Limits>,
    /// Follows the log for all readers of the event stream.
    pub(crate) feed: Feed,
    /// Room for what is large. Handlers take the caller's, as an argument.
    #[from_ref(skip)]
    pub(crate) memory: memory::Memory,
    pub(crate) readiness: Readiness,
}

/// All paths. Each part of the API brings its own, and each application.
pub(crate) fn router(app: App, applications: Vec<Paths>) -> Router {
    let (paths, mut document) = paths(applications);
    channels::name_formats(&mut document, &app.towpath);
    let paths = paths
        .merge(docs::routes(&document))
        .fallback(nothing_here)
        .method_not_allowed_fallback(not_that_method);
    around(paths, &app).with_state(app)
}

fn paths(applications: Vec<Paths>) -> (Router<App>, OpenApi) {
    let (mut paths, mut document) = OpenApiRouter::<App>::new()
        .merge(about_this_server())
        .merge(commands::routes())
        .merge(facts::routes())
        .merge(flows::routes())
        .merge(metrics::routes())
        .merge(alerts::routes())
        .merge(notifications::routes())
        .merge(stream::routes())
        .merge(outbox::routes())
        .merge(dead_letters::routes())
        .merge(tasks::routes())
        .merge(task_workers::routes())
        .merge(channels::routes())
        .merge(machines::routes())
        .merge(projections::routes())
        .merge(consistency::routes())
        .split_for_parts();
    for application in applications {
        paths = paths.merge(application.router);
        document.merge(application.document);
    }
    (paths, openapi::complete(document))
}

/// What holds for every path, those that are still to come included. The first one is the innermost.
fn around(paths: Router<App>, app: &App) -> Router<App> {
    paths
        .layer(from_fn_with_state(app.clone(), operations::once_and_recorded))
        // Bodies are limited where they are read, which is before any handler sees them.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(app.clone(), limits::in_time))
        .layer(from_fn_with_state(app.clone(), access::guard))
        .layer(from_fn_with_state(app.clone(), limits::admit))
        .layer(from_fn(request::identify))
        .layer(from_fn(metrics::count_requests))
}

fn about_this_server() -> OpenApiRouter<App> {
    OpenApiRouter::new().route("/", get(about)).routes(routes!(healthz)).routes(routes!(readyz))
}

async fn nothing_here(uri: axum::http::Uri) -> Problem {
    Problem::not_found(format!("there is nothing at {}", uri.path()))
}

async fn not_that_method() -> Problem {
    Problem::method_not_allowed()
}

/// What this is.
async fn about(State(app): State<Towpath>) -> Response {
    Json(serde_json::json!({
        "name": "towpath",
        "version": env!("CARGO_PKG_VERSION"),
        "about": "A backbone on which every state change becomes a fact, and every fact arrives.",
        "instance": app.instance(),
        "broker": app.broker(),
    }))
    .into_response()
}

/// That the process lives.
#[derive(Serialize, ToSchema)]
struct Alive {
    #[schema(example = "ok")]
    status: &'static str,
    name: &'static str,
    version: &'static str,
}

/// Whether the process lives
///
/// Asks nobody.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "server",
    operation_id = "healthz",
    responses((status = 200, description = "It lives.", body = Alive))
)]
async fn healthz() -> Response {
    Json(Alive { status: "ok", name: "towpath", version: env!("CARGO_PKG_VERSION") }).into_response()
}

/// That the server can work.
#[derive(Serialize, ToSchema)]
struct Ready {
    #[schema(example = "ready")]
    status: &'static str,
}

/// How long the broker may take to say that it is there. Who asks has a limit, too.
const BROKER_PATIENCE: std::time::Duration = std::time::Duration::from_secs(4);

/// Whether the server can work
///
/// The store answers and has this build's tables, the broker answers, and the server was not told to stop.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "server",
    operation_id = "readyz",
    responses((status = 200, description = "It can.", body = Ready))
)]
async fn readyz(State(app): State<App>) -> Result<Json<Ready>, Problem> {
    app.readiness.look(&app.towpath).await
}

/// What was found when it was last asked whether the server can work, and whether it is about to stop. Clones share it.
///
/// Anybody may ask, without a key: however many do, the store and the broker are asked once at a time and not more often
/// than this.
#[derive(Clone, Default)]
pub(crate) struct Readiness {
    found: Arc<tokio::sync::Mutex<Option<FoundAt>>>,
    stopping: Arc<AtomicBool>,
}

type FoundAt = (tokio::time::Instant, Result<(), Problem>);

const READINESS_HOLDS: std::time::Duration = std::time::Duration::from_millis(500);

impl Readiness {
    /// From now on the server says that it stops: whoever spreads requests sends it no more.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    async fn look(&self, app: &Towpath) -> Result<Json<Ready>, Problem> {
        if self.stopping.load(Ordering::Acquire) {
            let title = "the server was told to stop";
            let detail = "Send requests to another instance; what runs here is still answered.";
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", title, detail));
        }
        let mut last = self.found.lock().await;
        let found = match &*last {
            Some((at, found)) if at.elapsed() < READINESS_HOLDS => found.clone(),
            _ => {
                let found = can_work(app).await.map_err(|unready| {
                    let before = last.as_ref().and_then(|(_, found)| found.as_ref().err());
                    unready.told_unless(before)
                });
                *last = Some((tokio::time::Instant::now(), found.clone()));
                found
            }
        };
        found.map(|()| Json(Ready { status: "ready" }))
    }
}

/// Why the server cannot work.
struct Unready {
    /// For everybody: it names no host and no queue.
    problem: Problem,
    /// For the log.
    cause: String,
}

impl Unready {
    fn of(who: &str, code: &str, next_step: &str, cause: String) -> Self {
        let title = format!("the {who} cannot be worked with; the server's log says why");
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, title, next_step);
        Self { problem, cause }
    }

    /// The problem. Its cause goes to the log, unless the same was found before.
    fn told_unless(self, before: Option<&Problem>) -> Problem {
        if before.map(Problem::code) != Some(self.problem.code()) {
            tracing::warn!(code = self.problem.code(), cause = self.cause, "the server is not ready");
        }
        self.problem
    }
}

async fn can_work(app: &Towpath) -> Result<(), Unready> {
    let store = app.ready().await;
    store.map_err(|error| Unready::of("store", error.code(), error.next_step(), with_causes(&error)))?;
    match tokio::time::timeout(BROKER_PATIENCE, app.broker_ready()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Unready::of("broker", error.code(), error.next_step(), with_causes(&error))),
        Err(_) => {
            let next_step = "Check that the broker runs and the URL is right.";
            Err(Unready::of("broker", "broker-unavailable", next_step, "it does not answer".to_owned()))
        }
    }
}

/// With our applications.
#[cfg(test)]
fn document_of_all() -> OpenApi {
    let ours = crate::Server::new().with_all(crate::apps::OURS).applications;
    paths(ours.iter().map(|application| application.paths()).collect()).1
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_operation_is_described() {
        let document = super::document_of_all();
        let document: serde_json::Value = serde_json::from_str(&document.to_json().unwrap()).unwrap();
        let paths = document["paths"].as_object().unwrap();
        assert!(paths.len() > 8, "{paths:?}");
        let mut ids = std::collections::BTreeSet::new();
        for (path, item) in paths {
            for (method, operation) in item.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap();
                assert!(ids.insert(id.to_owned()), "two operations are called {id}");
                assert!(operation["summary"].is_string(), "{method} {path} has no summary");
                assert_eq!(operation["tags"].as_array().unwrap().len(), 1, "{method} {path}");
                let responses = operation["responses"].as_object().unwrap();
                assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
                for (status, response) in responses.iter().filter(|(status, _)| *status >= &"400".to_owned())
                {
                    let problem = &response["content"]["application/problem+json"]["schema"]["$ref"];
                    assert_eq!(problem, "#/components/schemas/Problem", "{method} {path} {status}");
                }
            }
        }
        // Whatever is referred to is there.
        let text = document.to_string();
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
