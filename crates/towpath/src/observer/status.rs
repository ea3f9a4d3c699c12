//! Where observers are: what can be asked of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::metrics::table;

/// Where an observer of this process is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObserverStatus {
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
    /// How many of them failed.
    pub failures: u64,
    /// How many resources could not be looked at the last time.
    pub failing: usize,
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

/// The statuses of all observers of this process.
#[derive(Clone, Default)]
pub(crate) struct ObserverStatuses(Arc<Mutex<BTreeMap<String, ObserverStatus>>>);

impl ObserverStatuses {
    /// All of them, by name.
    pub(crate) fn all(&self) -> Vec<ObserverStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Changes one.
    pub(super) fn change(&self, name: &str, change: impl FnOnce(&mut ObserverStatus)) {
        let mut statuses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let status = statuses.entry(name.to_owned()).or_insert_with(|| ObserverStatus {
            name: name.to_owned(),
            looking: false,
            platform: Platform::Unknown,
            scanned_at: None,
            looks: 0,
            failures: 0,
            failing: 0,
        });
        change(status);
    }

    /// An observer begins.
    pub(super) fn begin(&self, name: &str) {
        self.change(name, |_| {});
        for outcome in ["seen", "failed"] {
            table::OBSERVER_LOOKS.counter(&[name, outcome]).increment(0);
        }
    }

    /// Sets the gauges of all of them.
    pub(crate) fn measure(&self) {
        for status in self.all() {
            let up = !matches!(status.platform, Platform::Down { .. });
            table::OBSERVER_PLATFORM_UP.gauge(&[&status.name]).set(if up { 1.0 } else { 0.0 });
        }
    }

    /// A look has ended.
    pub(super) fn looked(&self, name: &str, seen: bool) {
        table::OBSERVER_LOOKS.counter(&[name, if seen { "seen" } else { "failed" }]).increment(1);
        self.change(name, |status| {
            status.looks += 1;
            status.failures += u64::from(!seen);
        });
    }

    /// The platform was found to be there, or away.
    pub(super) fn platform_is(&self, name: &str, platform: Platform) {
        self.change(name, |status| status.platform = platform);
    }
}
