//! The HTTP side of the server.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use towpath::Towpath;

/// All paths.
pub(crate) fn router(app: Towpath) -> Router {
    Router::new()
        .route("/", get(about))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(app)
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
        Err(error) => {
            let problem = json!({
                "type": format!("about:blank#{}", error.code()),
                "title": error.to_string(),
                "status": 503,
                "code": error.code(),
                "detail": error.next_step(),
            });
            let headers = [("content-type", "application/problem+json"), ("retry-after", "5")];
            (StatusCode::SERVICE_UNAVAILABLE, headers, problem.to_string()).into_response()
        }
    }
}
