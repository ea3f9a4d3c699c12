//! Where observers are: what can be asked of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, Utc};
use serde::Serialize;

/// Where an observer of this process is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObserverStanding {
    /// Its name.
    pub name: String,
    /// Whether this instance is the one that looks.
    pub looking: bool,
    /// Whether the platform answers.
    pub platform: Platform,
    /// When the last scan began.
    pub scanned_at: Option<DateTime<Utc>>,
    /// How many looks have ended.
    pub looks: u64,
    /// How many of them without an answer.
    pub failures: u64,
}

/// Whether a platform answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum Platform {
    /// Nobody has looked yet.
    Unknown,
    /// It answers.
    Up,
    /// It does not.
    #[serde(rename_all = "camelCase")]
    Down {
        /// Since when.
        since: DateTime<Utc>,
        /// A stable code.
        code: String,
        /// What was noticed.
        message: String,
    },
}

/// The standings of all observers of this process.
#[derive(Clone, Default)]
pub(crate) struct Standings(Arc<Mutex<BTreeMap<String, ObserverStanding>>>);

impl Standings {
    /// All of them, by name.
    pub(crate) fn all(&self) -> Vec<ObserverStanding> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Changes one.
    pub(super) fn change(&self, name: &str, change: impl FnOnce(&mut ObserverStanding)) {
        let mut standings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let standing = standings.entry(name.to_owned()).or_insert_with(|| ObserverStanding {
            name: name.to_owned(),
            looking: false,
            platform: Platform::Unknown,
            scanned_at: None,
            looks: 0,
            failures: 0,
        });
        change(standing);
    }
}
