//! Alerts for who embeds Towpath, and for operators.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use towpath_core::ports::store::{
    Alert, AlertCursor, AlertRun, Alerts as _, NewSilence, NotedChange, Silence, SilenceMatcher, StoreError,
    StoreResult,
};
use towpath_core::retry::{Coded, ErrorClass};
use uuid::Uuid;

use super::engine::look_once;
use super::evaluation::{Evaluated, MOST_ALERTS};
use super::rules::Rules;
use super::silences::{BadSilence, MOST_SILENCES, check};
use super::webhook::Webhook;
use crate::towpath::Towpath;

/// The longest silence.
const LONGEST_SILENCE: Duration = Duration::from_secs(3_600 * 24 * 366);

/// Which rules are looked at, how often, and who is told.
#[derive(Debug, Clone)]
pub struct Alerting {
    pub(super) rules: Rules,
    pub(super) every: Duration,
    pub(super) webhooks: Vec<Webhook>,
}

impl Alerting {
    /// Looks at these rules every 15 seconds, and tells the log and the event stream.
    pub fn of(rules: Rules) -> Self {
        Self { rules, every: Duration::from_secs(15), webhooks: Vec::new() }
    }

    /// How often.
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval;
        self
    }

    /// Tells a webhook, too.
    pub fn webhook(mut self, webhook: Webhook) -> Self {
        self.webhooks.push(webhook);
        self
    }

    pub(crate) fn webhooks(&self) -> &[Webhook] {
        &self.webhooks
    }
}

/// Alerts of a running Towpath.
pub struct AlertsOf<'t> {
    app: &'t Towpath,
}

impl Towpath {
    /// Alerts that are open, what became of others, and silences.
    pub fn alerts(&self) -> AlertsOf<'_> {
        AlertsOf { app: self }
    }
}

/// A silence that somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SilenceAsked {
    /// All of them fit.
    pub matchers: Vec<SilenceMatcher>,
    /// Who asks.
    pub author: String,
    /// Why, for people.
    pub reason: String,
    /// From when on; from now, if nothing is said.
    pub starts_at: Option<DateTime<Utc>>,
    /// Until when.
    pub ends_at: DateTime<Utc>,
}

/// Why a silence was not made.
#[derive(Debug, thiserror::Error)]
pub enum SilenceError {
    /// It cannot be made.
    #[error(transparent)]
    Bad(#[from] BadSilence),
    /// The store cannot be used.
    #[error("the store cannot be used")]
    Store(#[from] StoreError),
}

impl Coded for SilenceError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::Bad(error) => error.class(),
            Self::Store(error) => error.class(),
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Bad(error) => error.code(),
            Self::Store(error) => error.code(),
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::Bad(error) => error.next_step(),
            Self::Store(error) => error.next_step(),
        }
    }
}

impl AlertsOf<'_> {
    fn alerting(&self) -> Option<&Arc<Alerting>> {
        self.app.alerting.as_ref()
    }

    /// The rules that this instance looks at; none if it looks at none.
    pub fn rules(&self) -> Option<&Rules> {
        self.alerting().map(|alerting| &alerting.rules)
    }

    /// Alerts that are open, and who looked last.
    pub async fn open(&self) -> StoreResult<(Vec<Alert>, Option<AlertRun>)> {
        let most = u32::try_from(2 * MOST_ALERTS).unwrap_or(u32::MAX);
        // Who looked is asked first: what is open is then at least as new.
        let run = self.app.store.alert_run().await?;
        Ok((self.app.store.open_alerts(most).await?, run))
    }

    /// Changes of alerts, the last one first; of one rule, if that is said.
    pub async fn history(
        &self,
        rule: Option<&str>,
        before: AlertCursor,
        limit: u32,
    ) -> StoreResult<Vec<NotedChange>> {
        self.app.store.alert_history(rule, before, limit).await
    }

    /// Silences that are not over by their time, the one that ends last first.
    pub async fn silences(&self) -> StoreResult<Vec<Silence>> {
        self.app.store.silences(self.app.now(), MOST_SILENCES).await
    }

    /// One silence.
    pub async fn silence(&self, silence_id: Uuid) -> StoreResult<Option<Silence>> {
        self.app.store.silence(silence_id).await
    }

    /// Makes a silence. Alerts that it fits are silenced when rules are next looked at.
    ///
    /// # Errors
    /// [`SilenceError::Bad`]: it would fit everything, is over, has no reason, or there are too many.
    pub async fn add_silence(&self, asked: SilenceAsked) -> Result<Silence, SilenceError> {
        let now = self.app.now();
        check(&asked.matchers)?;
        let bad = |why: &str| Err(BadSilence(why.to_owned()).into());
        let starts_at = asked.starts_at.unwrap_or(now);
        if asked.ends_at <= now || asked.ends_at <= starts_at {
            return bad("its end is over, or before its beginning");
        }
        if (asked.ends_at - now).to_std().is_ok_and(|time| time > LONGEST_SILENCE) {
            return bad("it would last longer than a year");
        }
        if asked.reason.trim().is_empty() || asked.reason.chars().count() > 4_000 {
            return bad("its reason has 1 to 4000 characters");
        }
        if self.silences().await?.len() >= MOST_SILENCES as usize {
            return bad("there are too many; end some");
        }
        let silence = NewSilence {
            silence_id: Uuid::now_v7(),
            matchers: asked.matchers,
            author_id: asked.author.chars().take(128).collect(),
            reason: asked.reason,
            starts_at,
            ends_at: asked.ends_at,
            created_at: now,
        };
        self.app.store.add_silence(&silence).await?;
        Ok(Silence { silence, ended_at: None, ended_by_id: None })
    }

    /// Ends a silence before its time; answers whether it did: not one that is over.
    pub async fn end_silence(&self, silence_id: Uuid, by: &str) -> StoreResult<bool> {
        let by: String = by.chars().take(128).collect();
        self.app.store.end_silence(silence_id, &by, self.app.now()).await
    }

    /// Looks at the rules now; nothing if another instance looks at them, or if there are none.
    pub async fn look(&self) -> StoreResult<Option<Evaluated>> {
        match self.alerting() {
            Some(alerting) => look_once(self.app, alerting).await,
            None => Ok(None),
        }
    }
}
