//! Access: who asks, in which role, and whether that is enough.

mod keys;
mod local;
mod rules;
mod tokens;

use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::ids::ActorId;

pub(crate) use keys::{ApiKey, NewKey};
pub(crate) use tokens::{ASYMMETRIC, JwtSettings, Tokens};

use super::App;
use super::limits::address_of;
use super::problem::Problem;
use tokens::TokenError;

/// What somebody may do; each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Changes.
    Operator,
    /// Changes what cannot be taken back.
    Admin,
}

impl Role {
    /// As it is stored and written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// Reads a written role.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Viewer, Self::Operator, Self::Admin].into_iter().find(|role| role.as_str() == text)
    }
}

/// Who asks. A handler that wants to know takes it as an argument.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Caller {
    /// The name of the key, or whom the token is about.
    pub name: ActorId,
    /// What they may do.
    pub role: Role,
    /// Until when that holds; a key has no end.
    pub until: Option<DateTime<Utc>>,
}

impl Caller {
    /// Refuses what repeats what may have been done to who is no admin.
    pub(super) fn may_force(&self, force: bool) -> Result<(), Problem> {
        if force { self.must_be(Role::Admin) } else { Ok(()) }
    }

    /// Refuses who has less than this role.
    pub fn must_be(&self, needed: Role) -> Result<(), Problem> {
        if self.role < needed { Err(forbidden(self, needed)) } else { Ok(()) }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get::<Self>().cloned().ok_or_else(unauthenticated)
    }
}

/// How callers are known.
pub(crate) enum Access {
    /// Bound to loopback without keys and issuer: everybody on this machine.
    Local,
    /// By what they send.
    Checked {
        /// The keys.
        keys: Vec<ApiKey>,
        /// The issuer of tokens.
        tokens: Option<Arc<Tokens>>,
    },
}

impl Access {
    /// Finds out who asks.
    async fn caller(&self, version: Version, headers: &HeaderMap) -> Result<Caller, Problem> {
        match self {
            Self::Local => {
                local::not_by_a_proxy(version, headers)?;
                local::not_by_a_foreign_page(headers)?;
                Ok(Caller { name: ActorId::from_stored("local"), role: Role::Admin, until: None })
            }
            Self::Checked { keys, tokens } => {
                let sent = credentials(headers).ok_or_else(unauthenticated)?;
                if let Some(caller) = keys::find(keys, sent) {
                    return Ok(caller);
                }
                match tokens {
                    Some(tokens) if !keys::looks_like_one(sent) => {
                        tokens.caller(sent).await.map_err(Problem::from)
                    }
                    _ => Err(unauthenticated()),
                }
            }
        }
    }

    fn challenge(&self) -> Option<&'static str> {
        match self {
            Self::Local => None,
            Self::Checked { .. } => Some("Bearer realm=\"towpath\""),
        }
    }
}

/// Lets through who may ask this.
pub(super) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let address = address_of(&request);
    if rules::is_open(request.uri().path()) {
        // Who watches is answered however much else is asked; what asks others keeps its own answer for a while.
        return next.run(request).await;
    }
    let caller = match app.access.caller(request.version(), request.headers()).await {
        Ok(caller) => caller,
        Err(problem) => {
            // Who guesses is slowed down by where they come from.
            if let Err(refused) = app.limits.spend(&address) {
                return refused;
            }
            let mut response = problem.into_response();
            if let Some(challenge) =
                app.access.challenge().filter(|_| response.status() == StatusCode::UNAUTHORIZED)
            {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            }
            return response;
        }
    };
    // Everybody on this machine is one, and has all of it.
    let (bucket, memory) = match &*app.access {
        Access::Local => (address, app.memory.clone()),
        Access::Checked { .. } => (caller.name.to_string(), app.memory.of_caller(caller.name.as_str())),
    };
    // Who watches is answered however much else is asked, by the same caller, too.
    if request.uri().path() != "/metrics"
        && let Err(refused) = app.limits.spend(&bucket)
    {
        return refused;
    }
    let shares = matches!(*app.access, Access::Checked { .. }).then(|| caller.name.to_string());
    if let Some(name) = &shares
        && let Err(problem) = app.limits.take_share(name, &request)
    {
        return problem.into_response();
    }
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str).unwrap_or_default();
    let needed = rules::needed(request.method(), route);
    let mut response = match caller.must_be(needed) {
        Err(problem) => problem.into_response(),
        Ok(()) => {
            request.extensions_mut().insert(memory);
            request.extensions_mut().insert(caller.clone());
            let limits = Arc::clone(&app.limits);
            let leave = move || limits.leave_to_wait(shares.as_deref());
            towpath::waiting_by_leave(leave, next.run(request)).await
        }
    };
    if matches!(*app.access, Access::Checked { .. }) {
        keep_from_shared_caches(response.headers_mut());
    }
    // For the line in the log.
    response.extensions_mut().insert(caller);
    response
}

/// What may be cached by everybody may be so only where everybody may read it: a proxy would give it to who has no key. Who
/// comes with another key, of another role, may be shown more or less.
fn keep_from_shared_caches(headers: &mut HeaderMap) {
    let Some(Ok(rules)) = headers.get(header::CACHE_CONTROL).map(HeaderValue::to_str) else { return };
    let mut private = rules.replace("public", "private");
    if !private.contains("private") && !private.contains("no-store") {
        private.insert_str(0, "private, ");
    }
    if !private.contains("no-store") {
        headers.insert(header::VARY, HeaderValue::from_static("Authorization, X-Api-Key"));
    }
    if let Ok(private) = HeaderValue::try_from(private) {
        headers.insert(header::CACHE_CONTROL, private);
    }
}

/// The key or token that was sent.
fn credentials(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key") {
        return key.to_str().ok();
    }
    let (scheme, sent) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| sent.trim())
}

pub(super) fn unauthenticated() -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "unauthenticated",
        "who asks is not known",
        "Send an API key (Authorization: Bearer … or X-Api-Key: …) or a token of the configured issuer.",
    )
}

fn forbidden(caller: &Caller, needed: Role) -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "forbidden",
        format!("{} is {}, and this needs {}", caller.name, caller.role.as_str(), needed.as_str()),
        "Ask with a key or token of a higher role.",
    )
}

impl From<TokenError> for Problem {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::NoRole => Problem::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                "the token gives no role",
                "The claim that holds the role must be viewer, operator or admin, or a list with one of them.",
            ),
            TokenError::Unavailable => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "issuer-unavailable",
                "the keys of the issuer cannot be had",
                "Try again; the server's log says what is wrong with the issuer.",
            ),
            // Why a token was refused is for the log: whoever forges one should not be told how far it got.
            TokenError::Refused(reason) => {
                tracing::debug!(reason, "a token was refused");
                unauthenticated()
            }
        }
    }
}
