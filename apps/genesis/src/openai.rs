//! An author behind HTTP: any endpoint that speaks the chat completions of OpenAI.

use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use serde_json::json;
use towpath::HandlerError;

use crate::author::Author;
use crate::draft::{Brief, Draft, LONGEST_TEXT, LONGEST_TITLE, cut};

/// The most bytes of an answer that are read.
const LARGEST_ANSWER: usize = 1 << 20;
/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Where the endpoint is, and how it is spoken to.
#[derive(Clone)]
pub struct OpenAiSettings {
    /// What `/chat/completions` is put behind.
    pub url: String,
    /// Which model.
    pub model: String,
    /// What it wants to see; none for an endpoint that asks for nothing.
    pub key: Option<String>,
    /// How long one answer may take.
    pub answer_within: Duration,
    /// For how long a "too many requests" is waited out at most; then it is asked once more, and the next attempt is the task's.
    pub waits_at_most: Duration,
}

/// The author.
pub struct OpenAi {
    client: Client,
    url: Url,
    model: String,
    key: Option<HeaderValue>,
    waits_at_most: Duration,
}

/// Why an author cannot be had so.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadEndpoint(String);

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    message: Message,
}

#[derive(Deserialize)]
struct Message {
    content: String,
}

impl OpenAi {
    /// Nothing is asked yet.
    pub fn new(settings: OpenAiSettings) -> Result<Self, BadEndpoint> {
        // The URL is not told: it may have a password in it, and then it is none. Keys have a place of their own.
        let bad = || {
            BadEndpoint(
                "the URL of the model is none: write one such as https://host/v1, without a password"
                    .to_owned(),
            )
        };
        let mut url = Url::parse(&settings.url).map_err(|_| bad())?;
        let has_secret = !url.username().is_empty() || url.password().is_some();
        if !matches!(url.scheme(), "http" | "https") || has_secret {
            return Err(bad());
        }
        // Whoever is on the way could read the key.
        if settings.key.is_some() && url.scheme() == "http" && !is_this_machine(&url) {
            let message =
                "the key of the model would be sent over plain HTTP to another machine: write an https URL";
            return Err(BadEndpoint(message.to_owned()));
        }
        url.path_segments_mut().map_err(|()| bad())?.pop_if_empty().extend(["chat", "completions"]);
        let key = settings.key.map(|key| HeaderValue::from_str(&format!("Bearer {key}"))).transpose();
        let mut key =
            key.map_err(|_| BadEndpoint("the key has characters that no header may have".to_owned()))?;
        if let Some(key) = &mut key {
            key.set_sensitive(true);
        }
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // An error means that somebody else was quicker, and that is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let client = Client::builder()
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .timeout(settings.answer_within)
            .user_agent(concat!("towpath/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| BadEndpoint(format!("no connections can be made: {error}")))?;
        Ok(Self { client, url, model: settings.model, key, waits_at_most: settings.waits_at_most })
    }

    async fn ask(&self, body: String) -> Result<Response, HandlerError> {
        let mut request =
            self.client.post(self.url.clone()).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        request.send().await.map_err(unreachable)
    }
}

#[async_trait]
impl Author for OpenAi {
    async fn write(&self, brief: &Brief) -> Result<Draft, HandlerError> {
        let body = json!({ "model": self.model, "messages": [
            { "role": "system", "content": SYSTEM },
            { "role": "user", "content": serde_json::to_string(brief)? },
        ] });
        let mut response = self.ask(body.to_string()).await?;
        if response.status() == StatusCode::TOO_MANY_REQUESTS
            && let Some(pause) = retry_after(&response)
        {
            tokio::time::sleep(pause.min(self.waits_at_most)).await;
            response = self.ask(body.to_string()).await?;
        }
        let status = response.status();
        let said = format!("the model's endpoint answered {}", status.as_u16());
        match status {
            _ if status.is_success() => read(response).await,
            StatusCode::TOO_MANY_REQUESTS => Err(HandlerError::transient("genesis-model-busy", said)),
            StatusCode::REQUEST_TIMEOUT => Err(HandlerError::transient("genesis-model-unavailable", said)),
            _ if status.is_server_error() => Err(HandlerError::transient("genesis-model-unavailable", said)),
            _ => Err(HandlerError::unrecoverable("genesis-model-refused", said)),
        }
    }
}

const SYSTEM: &str = "You help to plan a novel. The user sends a brief as JSON: `entity` is what you write now, from \
    `initialInput` and what is `confirmed` so far; heed `preferences` and `instructions`. Answer with a title on the first \
    line and the text below it, and nothing else.";

async fn read(mut response: Response) -> Result<Draft, HandlerError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        body.extend_from_slice(&chunk);
        if body.len() > LARGEST_ANSWER {
            return Err(malformed("is too large"));
        }
    }
    let completion: Completion =
        serde_json::from_slice(&body).map_err(|error| malformed(&unreadable(&error)))?;
    let content = completion.choices.into_iter().next().map(|choice| choice.message.content);
    let content = content.unwrap_or_default();
    let (title, text) = content.trim().split_once('\n').unwrap_or(("", content.trim()));
    let title = title.trim_matches(['#', '*', ' ', '"']);
    let draft = Draft { title: cut(title, LONGEST_TITLE), text: cut(text.trim(), LONGEST_TEXT) };
    draft.check().map(|()| draft).map_err(|flaw| malformed(&format!("cannot be used: {flaw}")))
}

/// Whether what is sent there does not leave this machine.
fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    address.is_ok_and(|address| address.is_loopback()) || host == "localhost"
}

/// Where it cannot be read. What stands there is not told: it may be long, and repeat what it was sent.
fn unreadable(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    format!("cannot be read: {:?} at line {line}, column {column}", error.classify())
}

/// Another attempt may get a better one.
fn malformed(what: &str) -> HandlerError {
    HandlerError::transient("genesis-model-answer", format!("the model's answer {what}"))
}

fn unreachable(error: reqwest::Error) -> HandlerError {
    HandlerError::transient("genesis-model-unavailable", towpath::with_causes(&error.without_url()))
}

/// How long to wait, where it is said in seconds.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}
