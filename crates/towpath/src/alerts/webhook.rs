//! Webhooks: who is told over HTTP, as Alertmanager tells, and signed as Standard Webhooks have it.
//!
//! What is to be told is a task that commits with the alert: it outlives the process, and is tried again while the receiver hangs or
//! fails. A task holds the name of its webhook and the body, never the secret.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use towpath_core::payload::Payload;
use towpath_core::ports::store::{Alert, StoreResult};
use towpath_core::retry::{Coded, ErrorClass, RetryPolicy};
use towpath_core::task::TaskType;

use super::condition::Labels;
use super::engine::{NAMED, Told};
use super::{ALERT_MISSING, ALERT_RESOLVED, Alerting};
use crate::consumer::HandlerError;
use crate::tasks::{Answer, Attempt, Worker};
use crate::tx::Tx;

/// The tasks that tell webhooks.
const TASK: &str = "Towpath.Alert.Tell";

/// How long a receiver may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many are told at a time.
pub(crate) const TOGETHER: u32 = 4;

/// Who is told over HTTP. What shows it does not show its secrets, nor what may be one in its URL.
#[derive(Clone)]
pub struct Webhook {
    name: String,
    url: reqwest::Url,
    /// The new one first; both sign while one takes the other's place.
    secrets: Vec<Vec<u8>>,
}

/// A webhook that cannot be used. It does not say what was given: that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the webhook {name} cannot be used: {why}")]
pub struct BadWebhook {
    name: String,
    why: &'static str,
}

impl Coded for BadWebhook {
    fn class(&self) -> ErrorClass {
        ErrorClass::Validation
    }

    fn code(&self) -> &'static str {
        "alert-webhook"
    }

    fn next_step(&self) -> &'static str {
        "Write an http or https URL, and one or two secrets as whsec_ and base64 of 24 to 64 bytes."
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Webhook {
    /// Who is told, and by which secrets (`whsec_…`) that is signed: one, or two while one takes the other's place.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(name: &str, url: &str, secrets: &[&str]) -> Result<Self, BadWebhook> {
        let bad = |why| BadWebhook { name: name.chars().take(64).collect(), why };
        if name.is_empty() || name.len() > 64 {
            return Err(bad("its name has 1 to 64 bytes"));
        }
        let url = reqwest::Url::parse(url).map_err(|_| bad("its URL cannot be read"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad("its URL is neither http nor https"));
        }
        if secrets.is_empty() || secrets.len() > 2 {
            return Err(bad("it has one secret, or two while one takes the other's place"));
        }
        let read = |secret: &&str| {
            let bytes = STANDARD.decode(secret.trim().strip_prefix("whsec_")?).ok()?;
            (24..=64).contains(&bytes.len()).then_some(bytes)
        };
        let secrets: Option<Vec<Vec<u8>>> = secrets.iter().map(read).collect();
        let secrets = secrets.ok_or_else(|| bad("a secret is whsec_ and base64 of 24 to 64 bytes"))?;
        Ok(Self { name: name.to_owned(), url, secrets })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The header `webhook-signature` of a message.
    fn signature(&self, id: &str, timestamp: i64, body: &str) -> String {
        let signed = self.secrets.iter().filter_map(|secret| {
            let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
            mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
            Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
        });
        signed.collect::<Vec<_>>().join(" ")
    }
}

impl Alerting {
    /// What tells them, where there are any.
    pub(crate) fn teller(&self) -> Option<Teller> {
        (!self.webhooks().is_empty()).then(|| Teller::of(self.webhooks().to_vec()))
    }

    /// Starts a task for each, in the transaction of what it tells.
    pub(super) async fn tell_webhooks(
        &self,
        tx: &mut Tx,
        told: &Told<'_>,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        // Alertmanager knows no third status: for who was told that it fires, it still does.
        if told.event_type == ALERT_MISSING {
            return Ok(());
        }
        let of = task();
        for webhook in self.webhooks() {
            let body = Payload::from_value(&Message::of(&webhook.name, told, now))
                .map_err(|error| crate::tx::invalid("invalid-payload", error.into()))?;
            let asked = Asked { webhook: webhook.name.clone(), body: body.as_text().to_owned() };
            tx.start_task(&of, &asked).await?;
        }
        Ok(())
    }
}

fn task() -> TaskType {
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let pauses = vec![
        Duration::from_secs(1),
        Duration::from_secs(5),
        Duration::from_secs(30),
        minutes(2),
        minutes(10),
        minutes(30),
        minutes(120),
        minutes(360),
        minutes(720),
    ];
    TaskType::named(TASK).retries(RetryPolicy::Fixed(pauses)).time_limit(3 * PATIENCE)
}

/// What a task holds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Asked {
    webhook: String,
    /// As it is sent, to the letter: it is what is signed.
    body: String,
}

/// Tells webhooks.
pub(crate) struct Teller {
    webhooks: BTreeMap<String, Webhook>,
    http: Option<reqwest::Client>,
}

impl Teller {
    fn of(webhooks: Vec<Webhook>) -> Self {
        // TLS asks which of those that are in the graph. A second call finds it chosen, and that is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder()
            .timeout(PATIENCE)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("towpath/", env!("CARGO_PKG_VERSION")))
            .build()
            .ok();
        Self { webhooks: webhooks.into_iter().map(|webhook| (webhook.name.clone(), webhook)).collect(), http }
    }
}

impl Worker for Teller {
    fn task(&self) -> TaskType {
        task()
    }

    async fn run(&self, attempt: Attempt) -> Result<Answer, HandlerError> {
        let asked: Asked = attempt
            .read()
            .map_err(|error| HandlerError::unrecoverable("invalid-payload", error.to_string()))?;
        let later = |code: &str, message: String| Err(HandlerError::transient(code, message));
        let Some(webhook) = self.webhooks.get(&asked.webhook) else {
            // Another instance may know it.
            return later("webhook-unknown", format!("this instance knows no webhook {}", asked.webhook));
        };
        let Some(http) = &self.http else {
            return later("webhook-unreachable", "no connection can be made".to_owned());
        };
        // The same in each attempt, so that a receiver knows what it has.
        let id = format!("msg_{}", attempt.task.task.task_id);
        let timestamp = attempt.app.now().timestamp();
        let request = http
            .post(webhook.url.clone())
            .header("content-type", "application/json")
            .header("webhook-id", &id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", webhook.signature(&id, timestamp, &asked.body))
            .body(asked.body);
        match request.send().await {
            Ok(answer) if answer.status().is_success() => Ok(Answer::done()),
            // Who answers so wants to hear nothing more.
            Ok(answer) if answer.status() == reqwest::StatusCode::GONE => {
                Err(HandlerError::unrecoverable("webhook-gone", "the receiver says that it is gone (410)"))
            }
            Ok(answer) => later("webhook-refused", format!("the receiver answered {}", answer.status())),
            // Its URL may hold a secret.
            Err(error) => later("webhook-unreachable", error.without_url().to_string()),
        }
    }
}

/// The body, as Alertmanager's webhooks have it (version 4).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Message<'a> {
    version: &'static str,
    group_key: String,
    truncated_alerts: usize,
    status: &'static str,
    receiver: &'a str,
    group_labels: BTreeMap<&'a str, &'a str>,
    common_labels: BTreeMap<&'a str, &'a str>,
    common_annotations: BTreeMap<&'a str, &'a str>,
    #[serde(rename = "externalURL")]
    external_url: &'static str,
    alerts: Vec<MessageAlert<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MessageAlert<'a> {
    status: &'static str,
    labels: &'a Labels,
    annotations: &'a BTreeMap<String, String>,
    starts_at: DateTime<Utc>,
    /// The year 1 for what is not over, as Go writes a time that is none.
    ends_at: String,
    #[serde(rename = "generatorURL")]
    generator_url: &'static str,
    fingerprint: &'a str,
}

impl<'a> Message<'a> {
    fn of(receiver: &'a str, told: &Told<'a>, now: DateTime<Utc>) -> Self {
        let is_over = told.event_type == ALERT_RESOLVED;
        let status = if is_over { "resolved" } else { "firing" };
        let ends_at = if is_over { now.to_rfc3339() } else { "0001-01-01T00:00:00Z".to_owned() };
        let named = told.alerts.iter().take(NAMED);
        let alerts = named.map(|alert| MessageAlert {
            status,
            labels: &alert.labels,
            annotations: &alert.annotations,
            starts_at: alert.fired_at.unwrap_or(alert.started_at),
            ends_at: ends_at.clone(),
            generator_url: "",
            fingerprint: alert.alert_id.get(..16).unwrap_or(&alert.alert_id),
        });
        Self {
            version: "4",
            group_key: format!("{{}}:{{alertname={:?}}}", told.rule),
            truncated_alerts: told.alerts.len().saturating_sub(NAMED),
            status,
            receiver,
            group_labels: BTreeMap::from([("alertname", told.rule)]),
            common_labels: common(&told.alerts, |alert| &alert.labels),
            common_annotations: common(&told.alerts, |alert| &alert.annotations),
            external_url: "",
            alerts: alerts.collect(),
        }
    }
}

/// What all of them have alike.
fn common<'a>(
    alerts: &[&'a Alert],
    texts: impl Fn(&'a Alert) -> &'a BTreeMap<String, String>,
) -> BTreeMap<&'a str, &'a str> {
    let Some((first, others)) = alerts.split_first() else { return BTreeMap::new() };
    let all_have = |(name, value): &(&String, &String)| {
        others.iter().all(|other| texts(other).get(*name) == Some(*value))
    };
    texts(first).iter().filter(all_have).map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    /// The example that the libraries of Standard Webhooks test themselves with.
    #[test]
    fn messages_are_signed_as_standard_webhooks_have_it() {
        let webhook = Webhook::new("pager", "https://example.com/hook", &[SECRET]).unwrap();
        let signature =
            webhook.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let other = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let rotating = Webhook::new("pager", "https://example.com/hook", &[other, SECRET]).unwrap();
        let both =
            rotating.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(both.split(' ').count(), 2);
        assert!(both.ends_with(&signature));
    }

    #[test]
    fn secrets_and_urls_are_not_shown() {
        let url = "https://user:password@example.com/hook?token=hidden";
        let webhook = Webhook::new("pager", url, &[SECRET]).unwrap();
        let shown = format!("{webhook:?}");
        assert!(shown.contains("pager") && !shown.contains("example") && !shown.contains("MfKQ"), "{shown}");
        for (url, secrets) in [
            ("ftp://hidden.example", vec![SECRET]),
            ("hidden", vec![SECRET]),
            ("https://hidden.example", vec![]),
            ("https://hidden.example", vec!["hidden"]),
            ("https://hidden.example", vec!["whsec_aGlkZGVu"]),
            ("https://hidden.example", vec![SECRET; 3]),
        ] {
            let error = Webhook::new("pager", url, &secrets).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hidden"), "{error:?}");
            assert_eq!(error.code(), "alert-webhook");
        }
    }
}
