//! The checker: whether everything that was committed is where it belongs, and what to do where it is not.
//!
//! A check is a row. Who asks for one writes it; the instance that holds the cleaner's lease does it, page by page, and writes
//! down how far it is, so that another one can go on with it. Reading order: this file has what is asked for and answered;
//! `stages` what is looked at and in which order, `looking` how a page is looked at, `running` how a check is done, `repairing`
//! what is done about it.

mod looking;
mod repairing;
mod running;
mod stages;

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath_core::consistency::{FindingCode, Findings, NotChecked, fingerprint};
use towpath_core::ports::store::{ChannelStart, CheckRow, CheckStatus, StoreError};
use towpath_core::retry::{Coded, ErrorClass};
use towpath_core::route::Glob;
use towpath_core::time::earlier;
use uuid::Uuid;

use crate::builder::Keeping;
use crate::bus::with_causes;
use crate::towpath::Towpath;

pub use repairing::{MOST_STEPS, Plan, PlanStep, REPAIR_KIND, REPAIR_PERFORMED, RepairAsked, StepOutcome};
pub(crate) use running::start;
use stages::Stage;

/// How far back a check looks where nothing is said.
pub const DEFAULT_WINDOW: Duration = Duration::from_secs(24 * 3_600);

/// How long a look for the end of a check waits for the next.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// How checks are done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checks {
    /// How old something must be before it is believed.
    pub(crate) grace: Duration,
    /// How often it is checked without being asked.
    pub(crate) every: Option<Duration>,
    /// How far back that looks.
    pub(crate) window: Duration,
    /// Whether what is safe is repaired after that.
    pub(crate) repairs: bool,
    /// What the cleaner leaves.
    keep_sent: Duration,
    pub(crate) keep_handled: Duration,
    keep_commands: Duration,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(5),
            every: None,
            window: DEFAULT_WINDOW,
            repairs: false,
            keep_sent: Duration::ZERO,
            keep_handled: Duration::ZERO,
            keep_commands: Duration::ZERO,
        }
    }
}

impl Checks {
    /// The same, knowing what the cleaner leaves.
    pub(crate) fn keeping(self, keeping: &Keeping) -> Self {
        let Keeping { sent, handled, commands, .. } = *keeping;
        Self { keep_sent: sent, keep_handled: handled, keep_commands: commands, ..self }
    }
}

/// What is asked of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckAsked {
    /// How far back it looks, for what is windowed.
    pub window: Duration,
    /// What is looked for; everything, where nothing is said.
    pub scope: Vec<FindingCode>,
}

impl Default for CheckAsked {
    fn default() -> Self {
        Self { window: DEFAULT_WINDOW, scope: Vec::new() }
    }
}

/// How many were looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Commands COMPLETED in the window.
    pub total_commands: u64,
    /// Events of the window.
    pub total_events: u64,
}

/// A check, and what it has found so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Check {
    /// Its id.
    pub check_id: Uuid,
    /// Where it is.
    pub status: CheckStatus,
    /// Why, if it was given up: a stable code and a text.
    pub failure: Option<(String, String)>,
    /// How far back it looks.
    pub window: Duration,
    /// From when on.
    pub since: DateTime<Utc>,
    /// When it was asked for.
    pub started_at: DateTime<Utc>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// How many were looked at.
    pub totals: Totals,
    /// What was found.
    pub findings: Findings,
    /// What was not checked, and why.
    pub not_checked: Vec<NotChecked>,
    /// How many parts are done, of how many.
    pub progress: (usize, usize),
}

impl Check {
    /// Whether it came to its end and found nothing.
    pub fn is_clean(&self) -> bool {
        self.status == CheckStatus::Done && self.findings.0.is_empty()
    }
}

/// Where a check goes on, and what it has found: as it is stored.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    scope: Vec<FindingCode>,
    /// The part that is under way.
    stage: String,
    /// Behind what its next page begins.
    behind: Option<Vec<String>>,
    totals: Totals,
    findings: Findings,
    not_checked: BTreeSet<NotChecked>,
}

impl Progress {
    fn read(row: &CheckRow) -> Result<Self, StoreError> {
        serde_json::from_str(&row.progress).map_err(|error| StoreError::Corrupt {
            what: "how far a check is".to_owned(),
            source: error.into(),
        })
    }

    fn text(&self) -> Result<String, StoreError> {
        serde_json::to_string(self).map_err(|error| StoreError::Corrupt {
            what: "how far a check is".to_owned(),
            source: error.into(),
        })
    }
}

impl Check {
    fn of(row: &CheckRow) -> Result<Self, StoreError> {
        let progress = Progress::read(row)?;
        let stages = Stage::of_scope(&progress.scope);
        let at = stages.iter().position(|stage| stage.name() == progress.stage).unwrap_or(0);
        let done = if row.status == CheckStatus::Done { stages.len() } else { at };
        let failed = row.status == CheckStatus::Failed;
        let failure = failed.then(|| {
            (row.status_reason.clone().unwrap_or_default(), row.status_message.clone().unwrap_or_default())
        });
        Ok(Self {
            check_id: row.check_id,
            status: row.status,
            failure,
            window: Duration::from_micros(row.window_micros),
            since: row.since,
            started_at: row.started_at,
            finished_at: row.finished_at,
            totals: progress.totals,
            findings: progress.findings,
            not_checked: progress.not_checked.into_iter().collect(),
            progress: (done, stages.len()),
        })
    }
}

/// Why a check or a repair could not be done.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// There is no such check, or none has ended yet.
    #[error("there is no check to go by")]
    NoCheck,
    /// The check has not ended.
    #[error("check {0} has not come to its end")]
    NotDone(Uuid),
    /// A window that is longer than time.
    #[error("the window reaches back before time began")]
    WindowTooLong,
    /// The store says no, or nothing.
    #[error("the store did not answer as it should")]
    Store(#[from] StoreError),
}

impl Coded for CheckError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::NoCheck => ErrorClass::NotFound,
            Self::NotDone(_) => ErrorClass::Conflict,
            Self::WindowTooLong => ErrorClass::Validation,
            Self::Store(error) => error.class(),
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::NoCheck => "no-check",
            Self::NotDone(_) => "check-not-done",
            Self::WindowTooLong => "window-too-long",
            Self::Store(error) => error.code(),
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::NoCheck => "Check first: POST /api/consistency/check, or `towpath check`.",
            Self::NotDone(_) => "Wait for its end, or see why it was given up.",
            Self::WindowTooLong => "Give a shorter one, such as 24h.",
            Self::Store(error) => error.next_step(),
        }
    }
}

/// Checks and repairs. Made by [`Towpath::checker`].
pub struct Checker<'a> {
    app: &'a Towpath,
}

impl Towpath {
    /// Checks and repairs.
    pub fn checker(&self) -> Checker<'_> {
        Checker { app: self }
    }

    /// Checks everything over a window that ends now, and waits for the end.
    ///
    /// # Caveats
    /// It is done by an instance with workers, this or another: without any it does not end.
    pub async fn check(&self, window: Duration) -> Result<Check, CheckError> {
        let checker = self.checker();
        let asked = CheckAsked { window, ..CheckAsked::default() };
        let check_id = checker.begin(&asked).await?;
        loop {
            if let Some(check) = checker.wait(check_id, Duration::from_secs(60)).await? {
                return Ok(check);
            }
        }
    }
}

impl Checker<'_> {
    /// Asks for a check and answers its id. It is done in the background, after those that were asked for before.
    pub async fn begin(&self, asked: &CheckAsked) -> Result<Uuid, CheckError> {
        let now = self.app.bus.database_time().await?;
        let row = new_row(asked, now).ok_or(CheckError::WindowTooLong)??;
        self.app.bus.store.begin_check(&row).await?;
        self.app.bus.wakes.checks.wake();
        Ok(row.check_id)
    }

    /// A check as it is now.
    pub async fn find(&self, check_id: Uuid) -> Result<Option<Check>, CheckError> {
        let row = self.app.bus.store.find_check(check_id).await?;
        Ok(row.map(|row| Check::of(&row)).transpose()?)
    }

    /// The last check that came to its end.
    pub async fn last(&self) -> Result<Option<Check>, CheckError> {
        let row = self.app.bus.store.last_check().await?;
        Ok(row.map(|row| Check::of(&row)).transpose()?)
    }

    /// Waits for the end of a check, for so long; nothing, if it has not ended by then.
    pub async fn wait(&self, check_id: Uuid, patience: Duration) -> Result<Option<Check>, CheckError> {
        let until = tokio::time::Instant::now() + patience;
        loop {
            let check = self.find(check_id).await?.ok_or(CheckError::NoCheck)?;
            if check.status.is_over() {
                return Ok(Some(check));
            }
            if tokio::time::Instant::now() >= until {
                return Ok(None);
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }
}

/// A check that was not begun; nothing, if its window is longer than time.
fn new_row(asked: &CheckAsked, now: DateTime<Utc>) -> Option<Result<CheckRow, StoreError>> {
    let since = earlier(now, asked.window)?;
    let progress = Progress { scope: asked.scope.clone(), ..Progress::default() };
    let window_micros = u64::try_from(asked.window.as_micros()).ok()?;
    Some(progress.text().map(|progress| CheckRow {
        check_id: Uuid::now_v7(),
        status: CheckStatus::Pending,
        status_changed_at: now,
        status_reason: None,
        status_message: None,
        window_micros,
        since,
        started_at: now,
        finished_at: None,
        progress,
        version_gap_count: None,
    }))
}

/// Notes since when the channels of this instance take what they take.
pub(crate) async fn note_channels(app: &Towpath) -> Result<(), StoreError> {
    // By the clock that events of this instance are given their time by.
    let now = app.bus.clock.now();
    let mut starts: Vec<ChannelStart> = app
        .relayed
        .iter()
        .map(|channel| ChannelStart {
            channel: channel.name.clone(),
            patterns: fingerprint(channel.event_types.iter().map(Glob::as_str)),
            started_at: now,
        })
        .collect();
    // In one order, so that instances that start at once do not wait for each other.
    starts.sort_by(|one, other| one.channel.as_str().cmp(other.channel.as_str()));
    match app.bus.store.note_channel_starts(&starts).await {
        // What is not noted is not checked; it is noted at the next start.
        Err(error) if error.class() == ErrorClass::Transient => {
            let (code, cause) = (error.code(), with_causes(&error));
            tracing::warn!(code, cause, "could not note since when channels take events");
            Ok(())
        }
        noted => noted,
    }
}
