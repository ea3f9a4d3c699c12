//! The HTTP side of the server.

pub(crate) mod access;
mod commands;
pub(crate) mod connections;
mod facts;
pub(crate) mod limits;
mod market;
mod notifications;
mod operations;
mod problem;
mod request;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, FromRef, State};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use towpath::Towpath;
use towpath_market::Market;
use utoipa_axum::router::OpenApiRouter;

/// What handlers share. Those that only need the library ask for `State<Towpath>`.
#[derive(Clone, FromRef)]
pub(crate) struct App {
    pub(crate) towpath: Towpath,
    pub(crate) access: Arc<access::Access>,
    pub(crate) limits: Arc<limits::Limits>,
    /// Nothing, where it does not run.
    pub(crate) market: Option<Market>,
}

/// All paths. Each part of the API brings its own.
pub(crate) fn router(app: App) -> Router {
    let (paths, _openapi) = OpenApiRouter::<App>::new()
        .merge(about_this_server())
        .merge(commands::routes())
        .merge(facts::routes())
        .merge(market::routes())
        .merge(notifications::routes())
        .split_for_parts();
    around(paths.fallback(nothing_here), &app).with_state(app)
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
}

fn about_this_server() -> OpenApiRouter<App> {
    OpenApiRouter::new().route("/", get(about)).route("/healthz", get(healthz)).route("/readyz", get(readyz))
}

async fn nothing_here(uri: axum::http::Uri) -> problem::Problem {
    problem::Problem::not_found(format!("there is nothing at {}", uri.path()))
}

/// What this is.
async fn about(State(app): State<Towpath>) -> Response {
    Json(json!({
        "name": "towpath",
        "version": env!("CARGO_PKG_VERSION"),
        "about": "A backbone on which every state change becomes a fact, and every fact arrives.",
        "instance": app.instance(),
        "broker": app.broker(),
    }))
    .into_response()
}

/// The process lives. Asks nobody.
async fn healthz() -> Response {
    Json(json!({ "status": "ok", "name": "towpath", "version": env!("CARGO_PKG_VERSION") })).into_response()
}

/// The store answers and has this build's tables.
async fn readyz(State(app): State<Towpath>) -> Response {
    match app.ready().await {
        Ok(()) => Json(json!({ "status": "ready" })).into_response(),
        Err(error) => problem::Problem::new(
            axum::http::StatusCode::SERVICE_UNAVAILABLE,
            error.code(),
            error.to_string(),
            error.next_step(),
        )
        .into_response(),
    }
}
