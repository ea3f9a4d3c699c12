//! Alerts that are open, what became of each, and silences.

use std::collections::BTreeMap;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::StoreResult;
use crate::lifecycle::AlertStatus;

/// One alert: a rule, and one of the values that its condition is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Alert {
    /// The same for the same rule and labels.
    pub alert_id: String,
    /// The rule's name.
    pub rule: String,
    /// How bad it is, in the rule's word.
    pub severity: String,
    /// By what it is told from others of its rule, and what the rule adds.
    pub labels: BTreeMap<String, String>,
    /// What the rule says about it, filled in.
    pub annotations: BTreeMap<String, String>,
    /// For people: the first of the annotations, or the source's text.
    pub message: String,
    /// The value when it was last looked at.
    pub value: f64,
    /// Where it is.
    pub status: AlertStatus,
    /// Since when.
    pub status_changed_at: DateTime<Utc>,
    /// Why, as a stable code.
    pub status_reason: Option<String>,
    /// Why, for people.
    pub status_message: Option<String>,
    /// Since when its condition holds.
    pub started_at: DateTime<Utc>,
    /// When it first fired, whether or not anybody was told.
    pub fired_at: Option<DateTime<Utc>>,
    /// When its condition last held.
    pub held_at: DateTime<Utc>,
    /// The silence that it is under.
    pub silence_id: Option<Uuid>,
}

/// An alert as it is now, to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct AlertNote {
    /// As it is now. One that is RESOLVED is no longer open.
    pub alert: Alert,
    /// What it was before, where that has changed: then it is noted in the history. A new one was nothing.
    pub changed_from: Option<Option<AlertStatus>>,
}

/// One change of an alert.
#[derive(Debug, Clone, PartialEq)]
pub struct NotedChange {
    /// The number of the change.
    pub change_id: u64,
    /// The alert after it.
    pub alert: Alert,
    /// What it was before; nothing for a new one.
    pub from_status: Option<AlertStatus>,
}

/// Who looked last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertRun {
    /// When.
    pub evaluated_at: DateTime<Utc>,
    /// Which instance.
    pub evaluated_by_id: String,
    /// Values for which a condition held and which are no alerts because there are too many.
    pub left_out: u64,
    /// Rules that could not be looked at, and why.
    pub failures: BTreeMap<String, String>,
}

/// A part of a label that a silence is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SilenceMatcher {
    /// The label.
    pub name: String,
    /// What it must be.
    pub value: String,
    /// Whether the value is a regular expression, which must fit the whole.
    #[serde(default)]
    pub is_regex: bool,
    /// Whether it must be so, or must not.
    #[serde(default = "yes")]
    pub is_equal: bool,
}

fn yes() -> bool {
    true
}

/// That nobody is to be told of some alerts for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSilence {
    /// Its id.
    pub silence_id: Uuid,
    /// All of them fit.
    pub matchers: Vec<SilenceMatcher>,
    /// Who wants it.
    pub author_id: String,
    /// Why, for people.
    pub reason: String,
    /// From when on.
    pub starts_at: DateTime<Utc>,
    /// Until when.
    pub ends_at: DateTime<Utc>,
    /// When it was made.
    pub created_at: DateTime<Utc>,
}

/// A silence as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silence {
    /// As it was made.
    pub silence: NewSilence,
    /// When somebody ended it before its time.
    pub ended_at: Option<DateTime<Utc>>,
    /// Who did.
    pub ended_by_id: Option<String>,
}

impl Silence {
    /// Whether it holds at a moment.
    pub fn is_active(&self, now: DateTime<Utc>) -> bool {
        self.ended_at.is_none() && self.silence.starts_at <= now && now < self.silence.ends_at
    }
}

/// Where a page of the history begins: behind this change, going back. The first page begins at the last change.
pub type AlertCursor = Option<u64>;

/// Alerts that are open, what became of each, and silences. What changes an alert is in
/// [`StoreTx`](super::StoreTx), so that it commits with what follows from it.
#[async_trait]
pub trait Alerts: Send + Sync + 'static {
    /// The alerts that are open, by rule and id; at most so many.
    async fn open_alerts(&self, limit: u32) -> StoreResult<Vec<Alert>>;

    /// Who looked last; nothing if nobody did.
    async fn alert_run(&self) -> StoreResult<Option<AlertRun>>;

    /// Changes of alerts, the last one first; of one rule, if that is said.
    async fn alert_history(
        &self,
        rule: Option<&str>,
        before: AlertCursor,
        limit: u32,
    ) -> StoreResult<Vec<NotedChange>>;

    /// Makes a silence.
    async fn add_silence(&self, silence: &NewSilence) -> StoreResult<()>;

    /// Silences that end behind a moment, the one that ends last first; at most so many.
    async fn silences(&self, ending_after: DateTime<Utc>, limit: u32) -> StoreResult<Vec<Silence>>;

    /// One silence.
    async fn silence(&self, silence_id: Uuid) -> StoreResult<Option<Silence>>;

    /// Ends a silence before its time; answers whether it did: not one that is over.
    async fn end_silence(&self, silence_id: Uuid, by: &str, now: DateTime<Utc>) -> StoreResult<bool>;
}
