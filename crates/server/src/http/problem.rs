//! Errors as RFC 9457 problems, each with a stable code.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use towpath::SendError;
use towpath::ports::store::StoreError;
use towpath::retry::ErrorClass;

use super::request;

/// The media type of problems.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// An error on its way to a client.
pub(crate) struct Problem {
    status: StatusCode,
    code: String,
    title: String,
    detail: String,
}

impl Problem {
    pub(crate) fn new(
        status: StatusCode,
        code: impl Into<String>,
        title: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self { status, code: code.into(), title: title.into(), detail: detail.into() }
    }

    /// The request cannot be read.
    pub(crate) fn malformed(title: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", title, detail)
    }

    /// There is no such thing.
    pub(crate) fn not_found(title: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", title, "Check the path; listings show what exists.")
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let status = match error.class() {
            ErrorClass::Transient => StatusCode::SERVICE_UNAVAILABLE,
            ErrorClass::Conflict => StatusCode::CONFLICT,
            ErrorClass::NotFound => StatusCode::NOT_FOUND,
            ErrorClass::InvalidPayload | ErrorClass::Validation => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorClass::Denied => StatusCode::FORBIDDEN,
            ErrorClass::Unrecoverable => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.code(), error.to_string(), error.next_step())
    }
}

impl From<SendError> for Problem {
    fn from(error: SendError) -> Self {
        let status = match &error {
            SendError::IllegalTransition(_)
            | SendError::VersionMismatch { .. }
            | SendError::StillProcessing(_)
            | SendError::IdReused(_) => StatusCode::CONFLICT,
            SendError::Refused { class: ErrorClass::NotFound, .. } => StatusCode::NOT_FOUND,
            SendError::Refused { class: ErrorClass::Denied, .. } => StatusCode::FORBIDDEN,
            SendError::Refused { class: ErrorClass::Transient, .. } => StatusCode::SERVICE_UNAVAILABLE,
            SendError::Refused { .. } => StatusCode::CONFLICT,
            other => match other.class() {
                ErrorClass::Transient => StatusCode::SERVICE_UNAVAILABLE,
                ErrorClass::Conflict => StatusCode::CONFLICT,
                ErrorClass::Unrecoverable => StatusCode::INTERNAL_SERVER_ERROR,
                _ => StatusCode::UNPROCESSABLE_ENTITY,
            },
        };
        let mut title = error.to_string();
        let mut cause = std::error::Error::source(&error);
        // What the database says is for the log; what is wrong with the request is for who sent it.
        while let Some(inner) = cause.filter(|_| status.is_client_error()) {
            title.push_str(": ");
            title.push_str(&inner.to_string());
            cause = inner.source();
        }
        Self::new(status, error.code(), title, error.next_step())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut body = json!({
            "type": format!("https://towpath.dev/errors#{}", self.code),
            "title": self.title,
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        if let Some(id) = request::current_id() {
            body["requestId"] = json!(id.as_str());
        }
        let mut response = (self.status, body.to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(PROBLEM_JSON));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static("5"));
        }
        response
    }
}
