//! What a request brings, read in one way: whatever cannot be read is a problem with a code.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::problem::Problem;

/// The body as it came, for who has words of their own for what is wrong with it. That it is said to be JSON was seen when
/// it was read.
pub struct RawBody(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for RawBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        Bytes::from_request(request, state).await.map(Self).map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Problem::too_large(),
            _ => Problem::malformed("the request cannot be read", rejection.body_text()),
        })
    }
}

impl RawBody {
    /// Reads it as JSON.
    pub fn json<T: DeserializeOwned>(
        &self,
        wrong: impl FnOnce(serde_json::Error) -> Problem,
    ) -> Result<T, Problem> {
        serde_json::from_slice(&self.0).map_err(wrong)
    }

    /// Reads it as a JSON object. By itself, a list would be read as the fields in their order, without their names.
    pub fn object<T: DeserializeOwned>(
        &self,
        wrong: impl FnOnce(serde_json::Error) -> Problem,
    ) -> Result<T, Problem> {
        let object = serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(&self.0);
        object.and_then(|_| serde_json::from_slice(&self.0)).map_err(wrong)
    }

    /// Whether there is nothing in it.
    pub fn is_blank(&self) -> bool {
        self.0.iter().all(u8::is_ascii_whitespace)
    }
}

/// The body, read as JSON.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let body = RawBody::from_request(request, state).await?;
        body.json(|error| {
            Problem::malformed(
                format!("the body does not fit: {error}"),
                "GET /docs shows what is expected here.",
            )
        })
        .map(Self)
    }
}

/// The body, read as JSON; one that is empty, or `null`, stands for the default.
pub struct OptionalJsonBody<T>(pub T);

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let is_empty = axum::body::HttpBody::is_end_stream(&body);
        if is_empty {
            return Ok(Self(T::default()));
        }
        let JsonBody(body) =
            JsonBody::<Option<T>>::from_request(Request::from_parts(parts, body), state).await?;
        Ok(Self(body.unwrap_or_default()))
    }
}

/// What stands behind the question mark.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => {
                Err(Problem::malformed(rejection.body_text(), "GET /docs shows what can be asked here."))
            }
        }
    }
}

/// What stands in the path. A handler answers 404 to an id that breaks the rule of ids: nothing can have it.
pub struct Path<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(path)) => Ok(Self(path)),
            Err(rejection) => Err(Problem::malformed(rejection.body_text(), "Check the path.")),
        }
    }
}

/// A text that is looked for. PostgreSQL has no text with a NUL in it, so there is nothing to be found.
#[derive(Clone, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct SoughtText(pub(crate) String);

impl TryFrom<String> for SoughtText {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.contains('\0') { Err("a text must not have a NUL in it") } else { Ok(Self(text)) }
    }
}

impl From<SoughtText> for String {
    fn from(text: SoughtText) -> Self {
        text.0
    }
}

/// Whether a body is said to be JSON. One that says nothing is not taken for it: a page of another origin can send such a
/// body without asking first.
pub(super) fn says_json(headers: &HeaderMap) -> bool {
    let Some(media_type) = headers.get(header::CONTENT_TYPE) else { return false };
    let Ok(media_type) = media_type.to_str() else { return false };
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_told_by_its_media_type() {
        for (media_type, is_json) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/vnd.a+json", true),
            ("application/x-www-form-urlencoded", false),
            ("text/json", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, media_type.parse().unwrap());
            assert_eq!(says_json(&headers), is_json, "{media_type}");
        }
        assert!(!says_json(&HeaderMap::new()));
    }
}
