//! Errors as RFC 9457 problems, each with a stable code.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use towpath::alerts::SilenceError;
use towpath::checker::CheckError;
use towpath::ids::InvalidId;
use towpath::ports::store::StoreError;
use towpath::retry::ErrorClass;
use towpath::{ChannelError, Coded, LettersError, OutboxError, SendError, TaskError, with_causes};
use utoipa::ToSchema;

use super::request;

/// The media type of problems.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// An error on its way to a client.
#[derive(Clone)]
pub struct Problem {
    status: StatusCode,
    code: String,
    title: String,
    detail: String,
    standing: ChangeOutcome,
}

/// What an answer says about the change that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeOutcome {
    /// It is the answer: whoever asks again would get the same.
    Final,
    /// It says how things are at this moment: whoever asks again may get another.
    Passing,
    /// The change was done, and then its answer could not be made.
    Done,
}

impl Problem {
    /// A problem with a stable code; the title says what is wrong, the detail what to do.
    pub fn new(
        status: StatusCode,
        code: impl Into<String>,
        title: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        let passing = status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        let standing = if passing { ChangeOutcome::Passing } else { ChangeOutcome::Final };
        Self { status, code: code.into(), title: title.into(), detail: detail.into(), standing }
    }

    /// An error of ours, with the status that its class has. What is a conflict is kept under an Idempotency-Key: say
    /// [`passing`](Self::passing) where asking again may help.
    pub fn of(error: &impl Coded) -> Self {
        Self::new(status_of(error.class()), error.code(), error.to_string(), error.next_step())
    }

    /// The same with another status.
    fn at(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Its stable code.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The same, where asking again may help although the status does not say so.
    pub fn passing(self, is_passing: bool) -> Self {
        if is_passing { Self { standing: ChangeOutcome::Passing, ..self } } else { self }
    }

    /// This caller has all that one caller may have.
    pub(crate) fn share_used_up(title: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "share-used-up", title, detail)
    }

    /// The request cannot be read.
    pub fn malformed(title: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", title, detail)
    }

    /// There is no such thing.
    pub fn not_found(title: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", title, "Check the path; listings show what exists.")
    }

    /// A name in the body breaks its rule.
    pub(crate) fn invalid_id(error: &InvalidId) -> Self {
        let detail = "Correct what the title names and send it again.";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-id", error.to_string(), detail)
    }

    /// The path is there, and does not do that.
    pub(crate) fn method_not_allowed() -> Self {
        let detail = "The Allow header says what can be done here.";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "this path does not take that method",
            detail,
        )
    }

    /// The body is something else than JSON.
    pub(crate) fn unsupported_media_type() -> Self {
        let title = "the body is of a media type that is not understood";
        let detail = "Send JSON, with Content-Type: application/json.";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", title, detail)
    }

    /// Something of ours is broken. The log says what.
    pub fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error, "a request failed");
        let detail = "The server's log says more. Sending the request again does not help.";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "something is broken here", detail)
    }

    /// The body is larger than the server takes.
    pub(crate) fn too_large() -> Self {
        let detail = "Send at most 4 MiB of payload.";
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "the request is too large", detail)
    }
}

fn status_of(class: ErrorClass) -> StatusCode {
    match class {
        ErrorClass::Transient => StatusCode::SERVICE_UNAVAILABLE,
        ErrorClass::Conflict => StatusCode::CONFLICT,
        ErrorClass::NotFound => StatusCode::NOT_FOUND,
        ErrorClass::InvalidPayload | ErrorClass::Validation => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorClass::Denied => StatusCode::FORBIDDEN,
        ErrorClass::Unrecoverable => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let passing = matches!(error.class(), ErrorClass::Transient | ErrorClass::Conflict);
        let problem = Self::of(&error).passing(passing);
        match error {
            StoreError::NameTaken { .. } => problem.at(StatusCode::CONFLICT),
            StoreError::Unstorable(_) => problem.at(StatusCode::BAD_REQUEST),
            _ => problem,
        }
    }
}

/// A step behind the change itself: reading what to answer.
pub(crate) trait AfterDone<T> {
    /// Its failure does not make the change undone, and says so.
    fn after_it_was_done(self) -> Result<T, Problem>;
}

impl<T, E: Into<Problem>> AfterDone<T> for Result<T, E> {
    fn after_it_was_done(self) -> Result<T, Problem> {
        self.map_err(|error| {
            let cause: Problem = error.into();
            let title = format!("it was done, but what is now cannot be read: {}", cause.title);
            let detail = "Do not ask for it again. GET shows what is now, as soon as it can be read.";
            let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "done-not-shown", title, detail);
            Problem { standing: ChangeOutcome::Done, ..problem }
        })
    }
}

impl From<OutboxError> for Problem {
    fn from(error: OutboxError) -> Self {
        match error {
            OutboxError::Store(error) => error.into(),
            OutboxError::BeyondHorizon { .. } => Self::of(&error).at(StatusCode::CONFLICT),
        }
    }
}

impl From<CheckError> for Problem {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Store(error) => error.into(),
            CheckError::NoCheck | CheckError::WindowTooLong => Self::of(&error),
            CheckError::NotDone(_) => Self::of(&error).at(StatusCode::CONFLICT),
        }
    }
}

impl From<SilenceError> for Problem {
    fn from(error: SilenceError) -> Self {
        match error {
            SilenceError::Store(error) => error.into(),
            SilenceError::Bad(error) => Self::of(&error).at(StatusCode::UNPROCESSABLE_ENTITY),
        }
    }
}

impl From<TaskError> for Problem {
    fn from(error: TaskError) -> Self {
        match error {
            TaskError::Store(error) => error.into(),
            TaskError::Unknown(_) | TaskError::UnknownType(_) => Self::of(&error),
            TaskError::Lost { .. } | TaskError::NotQueued { .. } => Self::of(&error).at(StatusCode::CONFLICT),
        }
    }
}

impl From<LettersError> for Problem {
    fn from(error: LettersError) -> Self {
        match error {
            LettersError::Store(error) => error.into(),
            LettersError::Unknown(_) | LettersError::NotTaken { .. } => Self::of(&error),
            LettersError::NotDead { .. }
            | LettersError::BeyondHorizon { .. }
            | LettersError::WithoutBody { .. } => Self::of(&error).at(StatusCode::CONFLICT),
        }
    }
}

impl From<ChannelError> for Problem {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Store(error) => error.into(),
            ChannelError::Format { .. } => Self::malformed(with_causes(&error), error.next_step()),
            ChannelError::BeyondHorizon { .. } => Self::of(&error).at(StatusCode::CONFLICT),
            ChannelError::NotTracking(_) | ChannelError::NoTarget(_) => Self::of(&error),
        }
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
            SendError::Refused { class: ErrorClass::InvalidPayload, .. } => StatusCode::UNPROCESSABLE_ENTITY,
            SendError::Refused { class: ErrorClass::Denied, .. } => StatusCode::FORBIDDEN,
            SendError::Refused { class: ErrorClass::Transient, .. } => StatusCode::SERVICE_UNAVAILABLE,
            SendError::Refused { .. } => StatusCode::CONFLICT,
            other => status_of(other.class()),
        };
        // What the database says is for the log; what is wrong with the request is for who sent it.
        let title = if status.is_client_error() { with_causes(&error) } else { error.to_string() };
        let passing = matches!(
            error,
            SendError::StillProcessing(_)
                | SendError::VersionMismatch { .. }
                | SendError::Failed { .. }
                | SendError::Store(_)
                | SendError::Refused { class: ErrorClass::Transient | ErrorClass::Conflict, .. }
        );
        Self::new(status, error.code(), title, error.next_step()).passing(passing)
    }
}

/// A problem on the wire (RFC 9457).
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody {
    /// Where the page of the code is.
    #[serde(rename = "type")]
    #[schema(format = "uri-reference", example = "/docs/errors/malformed")]
    problem_type: String,
    /// What is wrong.
    title: String,
    /// The status of the answer.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// A stable code: compare this one, never a text.
    #[schema(example = "malformed")]
    code: String,
    /// What to do about it.
    detail: String,
    /// The request, as the server's log names it.
    #[serde(rename = "requestId", skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = ProblemBody {
            problem_type: format!("/docs/errors/{}", self.code),
            title: self.title,
            status: self.status.as_u16(),
            code: self.code,
            detail: self.detail,
            request_id: request::current_id().map(|id| id.as_str().to_owned()),
        };
        let mut response = (self.status, axum::Json(body)).into_response();
        response.extensions_mut().insert(self.standing);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(PROBLEM_JSON));
        if matches!(self.status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static("5"));
        }
        response
    }
}
