//! Documentation that the server carries with it: the API, and a page per error code. Nothing comes from the network.

mod api;
mod errors;

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use utoipa::openapi::OpenApi;

use super::App;

/// The paths of the documentation, made from the document of all others. It does not change while the server runs, so
/// everything is written once.
pub(super) fn routes(document: &OpenApi) -> Router<App> {
    let document = serde_json::to_value(document).unwrap_or_default();
    let page: Arc<str> = api::page(&document).into();
    let document: Arc<str> = document.to_string().into();
    let json = [(header::CONTENT_TYPE, "application/json")];
    Router::new()
        .route("/openapi.json", get(move || async move { (json, document.to_string()) }))
        .route("/docs", get(move || async move { html(page.to_string()) }))
        .merge(errors::routes())
}

/// A page that loads nothing and runs nothing.
fn html(page: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, page).into_response()
}

/// Our own texts, with their code in backticks and their links.
fn markdown(text: &str) -> String {
    let mut html = String::new();
    pulldown_cmark::html::push_html(&mut html, pulldown_cmark::Parser::new(text));
    html
}
