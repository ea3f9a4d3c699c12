//! JSON Web Tokens of one issuer, checked against its published keys.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use towpath::ids::ActorId;
use towpath::with_causes;

use super::{Caller, Role};
use crate::http::tls::certificates;
use crate::shown_url::without_secrets;

/// The algorithms that can be allowed: whoever checks a token must not be able to make one.
pub(crate) const ASYMMETRIC: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// Keys are asked for again on an unknown key id, but not more often than this, or than they must be where that is more
/// often.
const LEAST_PAUSE: Duration = Duration::from_secs(60);

/// Keys are asked for again when this part of their time is over, while they still hold.
const RENEWED_AT: u32 = 4;

/// How long an issuer may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many requests wait for the issuer at a time. The next ones are answered at once: each that waits has a place among
/// the requests that run, and nobody knows yet whose it is.
const WAITING: usize = 16;

/// How large a set of keys may be.
const LARGEST: usize = 1 << 20;

/// By how much the issuer's clock may differ from ours.
const LEEWAY_SECONDS: u64 = 30;

/// Which tokens are accepted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JwtSettings {
    pub(crate) issuer: String,
    pub(crate) audience: String,
    /// A file, or an https URL; http only on this machine.
    pub(crate) jwks: String,
    /// A file with the authorities that may vouch for the issuer's server, in place of the public ones.
    pub(crate) ca: Option<PathBuf>,
    /// For how long keys hold that the issuer has not named again: it may have taken one back.
    pub(crate) keys_for: Duration,
    /// The claim that holds the role; dots lead into objects.
    pub(crate) role_claim: String,
    pub(crate) algorithms: Vec<Algorithm>,
}

/// Why a token was not accepted.
#[derive(Debug, PartialEq)]
pub(super) enum TokenError {
    Refused(String),
    NoRole,
    Unavailable,
}

/// Checks tokens.
pub(crate) struct Tokens {
    settings: JwtSettings,
    source: Source,
    keys: Mutex<Keys>,
    /// Held by who asks the issuer, and by nobody who only looks.
    asking: tokio::sync::Mutex<()>,
    waiting: Semaphore,
}

/// What is known without asking.
struct Known {
    key: Option<Jwk>,
    has_set: bool,
    is_old: bool,
    may_ask: bool,
}

enum Source {
    File(PathBuf),
    Url {
        url: hyper::Uri,
        /// Nothing where the public authorities count.
        tls: Option<Box<ClientConfig>>,
    },
}

#[derive(Default)]
struct Keys {
    set: Option<JwkSet>,
    asked_at: Option<Instant>,
    had_at: Option<Instant>,
}

impl Tokens {
    /// Checks the settings. A file is read at once; a URL when the first token comes, so that an issuer that is away does
    /// not keep the server from starting.
    pub(crate) fn new(settings: JwtSettings) -> Result<Arc<Self>, String> {
        let jwks = settings.jwks.as_str();
        let shown = without_secrets(jwks);
        let mut keys = Keys::default();
        let source = if jwks.starts_with("http://") || jwks.starts_with("https://") {
            let url: hyper::Uri =
                jwks.parse().map_err(|error| format!("access.jwt.jwks {shown:?} is no URL: {error}"))?;
            // Whoever can change the keys on their way can make tokens.
            if url.scheme_str() == Some("http") && !url.host().is_some_and(is_this_machine) {
                return Err(format!(
                    "access.jwt.jwks {shown:?} would fetch keys over plain HTTP from another machine\n\
                     Write an https URL, with access.jwt.ca if its authority is a private one; or a file."
                ));
            }
            Source::Url { url, tls: settings.ca.as_deref().map(trusting).transpose()?.map(Box::new) }
        } else {
            let path = PathBuf::from(jwks);
            let text = std::fs::read(&path)
                .map_err(|error| format!("the keys of the issuer cannot be read from {shown}: {error}"))?;
            keys.set =
                Some(read(&text).map_err(|error| format!("{shown} has no keys of an issuer: {error}"))?);
            keys.had_at = Some(Instant::now());
            Source::File(path)
        };
        Ok(Arc::new(Self {
            settings,
            source,
            keys: Mutex::new(keys),
            asking: Default::default(),
            waiting: Semaphore::new(WAITING),
        }))
    }

    /// Who a token speaks for.
    pub(super) async fn caller(self: &Arc<Self>, token: &str) -> Result<Caller, TokenError> {
        let refused = |error: jsonwebtoken::errors::Error| TokenError::Refused(error.to_string());
        // A header that names no known algorithm ("none" among them) is no header.
        let header = decode_header(token).map_err(refused)?;
        if !self.settings.algorithms.contains(&header.alg) {
            return Err(TokenError::Refused(format!("the algorithm {:?} is not allowed", header.alg)));
        }
        let key = self.key(header.kid.as_deref()).await?;
        if matches!(key.algorithm, AlgorithmParameters::OctetKey(_)) {
            return Err(TokenError::Refused("the key is a shared secret".to_owned()));
        }
        let key = DecodingKey::from_jwk(&key).map_err(refused)?;
        let mut validation = Validation::new(header.alg);
        validation.set_issuer(&[&self.settings.issuer]);
        validation.set_audience(&[&self.settings.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.validate_nbf = true;
        validation.leeway = LEEWAY_SECONDS;
        let claims = decode::<Value>(token, &key, &validation).map_err(refused)?.claims;
        let subject = claims.get("sub").and_then(Value::as_str).unwrap_or_default();
        // Names of keys have no colon: nobody can be taken for somebody else.
        let name =
            ActorId::new(format!("jwt:{subject}")).map_err(|error| TokenError::Refused(error.to_string()))?;
        let role = role_in(&claims, &self.settings.role_claim).ok_or(TokenError::NoRole)?;
        // What goes on for long must show its token again: its key may have been taken back.
        let again = Utc::now()
            .checked_add_signed(TimeDelta::from_std(self.settings.keys_for).unwrap_or(TimeDelta::MAX));
        let until = end_of(&claims).into_iter().chain(again).min();
        Ok(Caller { name, role, until })
    }

    fn least_pause(&self) -> Duration {
        LEAST_PAUSE.min(self.settings.keys_for / RENEWED_AT)
    }

    /// The key of an id; of the only one there is, if the token names none.
    ///
    /// Nobody waits for the issuer whose key is known and holds: keys are asked for again before their time is over, in a
    /// task of their own. Who has a key that is not known, or known no longer, waits, together with all others like it,
    /// for one answer.
    async fn key(self: &Arc<Self>, id: Option<&str>) -> Result<Jwk, TokenError> {
        let known = self.known(id);
        if let Some(key) = known.key {
            if known.is_old && known.may_ask {
                let tokens = Arc::clone(self);
                tokio::spawn(async move { tokens.renew(true).await });
            }
            return Ok(key);
        }
        // Also where somebody else asks at this moment: that answer is for all.
        if known.may_ask || self.asking.try_lock().is_err() {
            let Ok(_place) = self.waiting.try_acquire() else { return Err(TokenError::Unavailable) };
            self.renew(false).await;
        }
        let known = self.known(id);
        match (known.key, known.has_set) {
            (Some(key), _) => Ok(key),
            (None, true) => Err(TokenError::Refused("the issuer has no such key".to_owned())),
            (None, false) => Err(TokenError::Unavailable),
        }
    }

    fn known(&self, id: Option<&str>) -> Known {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let (holds, pause) = (self.settings.keys_for, self.least_pause());
        let set = keys.set.as_ref().filter(|_| keys.had_at.is_some_and(|at| at.elapsed() < holds));
        Known {
            key: set.and_then(|set| choose(set, id)),
            has_set: set.is_some(),
            is_old: keys.had_at.is_none_or(|at| at.elapsed() > holds / RENEWED_AT),
            may_ask: keys.asked_at.is_none_or(|at| at.elapsed() > pause),
        }
    }

    /// Asks for the keys, once at a time. Who finds that somebody asks waits for that, unless nobody waits for it.
    async fn renew(&self, in_background: bool) {
        let _turn = if in_background {
            let Ok(turn) = self.asking.try_lock() else { return };
            turn
        } else {
            self.asking.lock().await
        };
        {
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            if keys.asked_at.is_some_and(|at| at.elapsed() <= self.least_pause()) {
                return;
            }
            keys.asked_at = Some(Instant::now());
        }
        match self.fetch().await {
            Ok(set) => {
                let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
                (keys.set, keys.had_at) = (Some(set), Some(Instant::now()));
            }
            Err(error) => {
                tracing::warn!(error, issuer = self.settings.issuer, "could not get the issuer's keys");
            }
        }
    }

    async fn fetch(&self) -> Result<JwkSet, String> {
        let bytes = match &self.source {
            Source::File(path) => tokio::fs::read(path).await.map_err(|error| error.to_string())?,
            Source::Url { url, tls } => {
                match tokio::time::timeout(PATIENCE, get(url.clone(), tls.clone())).await {
                    Ok(got) => got?,
                    Err(_) => return Err(format!("no answer within {PATIENCE:?}")),
                }
            }
        };
        read(&bytes)
    }
}

fn read(bytes: &[u8]) -> Result<JwkSet, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

fn choose(set: &JwkSet, id: Option<&str>) -> Option<Jwk> {
    match (id, set.keys.as_slice()) {
        (Some(id), _) => set.find(id).cloned(),
        (None, [only]) => Some(only.clone()),
        (None, _) => None,
    }
}

/// Whether a host in a URL is this machine.
fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    address.is_ok_and(|address| address.is_loopback()) || host.eq_ignore_ascii_case("localhost")
}

/// Trusts the authorities in a file, and no others.
fn trusting(file: &Path) -> Result<ClientConfig, String> {
    let shown = file.display();
    let pem = std::fs::read(file)
        .map_err(|error| format!("access.jwt.ca: the file {shown} cannot be read: {error}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&pem).map_err(|error| format!("access.jwt.ca: {shown}: {error}"))? {
        roots.add(certificate).map_err(|error| format!("access.jwt.ca: {shown}: {error}"))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Gets a small document. Redirects are not followed: the keys are where the operator said.
async fn get(url: hyper::Uri, tls: Option<Box<ClientConfig>>) -> Result<Vec<u8>, String> {
    let builder = hyper_rustls::HttpsConnectorBuilder::new();
    let builder = match tls {
        Some(tls) => builder.with_tls_config(*tls),
        // Named, because a build with several would otherwise not know which one to take.
        None => builder
            .with_provider_and_webpki_roots(rustls::crypto::ring::default_provider())
            .map_err(|error| error.to_string())?,
    };
    let connector = builder.https_or_http().enable_http1().build();
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let response = client.get(url).await.map_err(|error| with_causes(&error))?;
    if !response.status().is_success() {
        return Err(format!("the answer is {}", response.status()));
    }
    let body =
        Limited::new(response.into_body(), LARGEST).collect().await.map_err(|error| error.to_string())?;
    Ok(body.to_bytes().to_vec())
}

/// When a token runs out, by the same leeway as it was checked with.
fn end_of(claims: &Value) -> Option<DateTime<Utc>> {
    let seconds = claims.get("exp")?.as_f64()?;
    DateTime::from_timestamp((seconds as i64).saturating_add(LEEWAY_SECONDS as i64), 0)
}

/// The highest role that a claim names: a text or a list of texts, by its own name or by a path of names.
fn role_in(claims: &Value, claim: &str) -> Option<Role> {
    let by_path = || claim.split('.').try_fold(claims, |value, name| value.get(name));
    match claims.get(claim).or_else(by_path)? {
        Value::String(role) => Role::parse(role),
        Value::Array(roles) => roles.iter().filter_map(|role| Role::parse(role.as_str()?)).max(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_role_is_found_by_name_and_by_path() {
        assert_eq!(role_in(&json!({"role": "operator"}), "role"), Some(Role::Operator));
        assert_eq!(role_in(&json!({"https://a.b/role": "viewer"}), "https://a.b/role"), Some(Role::Viewer));
        let nested = json!({"realm_access": {"roles": ["offline", "viewer", "admin"]}});
        assert_eq!(role_in(&nested, "realm_access.roles"), Some(Role::Admin));
        for none in [json!({}), json!({"role": "root"}), json!({"role": 3}), json!({"role": []})] {
            assert_eq!(role_in(&none, "role"), None);
        }
    }
}
