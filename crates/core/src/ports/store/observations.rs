//! What observers look at: what is wanted of each subject, when it is looked at next, and what came of the last look.
//!
//! An application says what is to be looked at in the transaction of the facts that say so
//! ([`StoreTx::watch`](super::StoreTx::watch)); who looks asks what is due and notes what came of it ([`Observations`]). All moments are the database's: a host whose clock is off looks
//! neither early nor late. What is noted is noted under the lease of who looks.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::{LeaseGrant, StoreResult};

/// What is wanted of a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    /// Of which one; an identity among the subjects of its observer.
    pub subject_id: String,
    /// What hints of the platform call it.
    pub hint: String,
    /// Rises with what is wanted: something older does not replace something newer.
    pub version: u64,
    /// What is wanted, in words of the application's own.
    pub wanted: String,
    /// What is waited for; empty when nothing is. Another goal is waited for anew.
    pub goal: String,
    /// When it is looked at.
    pub look: Look,
}

/// When a subject is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Now, whatever a clock says.
    AtOnce,
    /// Now; and it stays due until a look has come to its end, whatever becomes known before.
    UntilSeen,
    /// At the next scan.
    AtNextScan,
    /// At a moment of the database's time.
    At(DateTime<Utc>),
    /// Not for so long, and not because of a hint: more is on its way, and a look would see half of it.
    Held(Duration),
}

/// A subject that is to be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Which one.
    pub subject_id: String,
    /// What hints call it.
    pub hint: String,
    /// Of what is wanted.
    pub version: u64,
    /// When it was due.
    pub due_at: DateTime<Utc>,
    /// Whether more is on its way.
    pub is_held: bool,
}

/// How far a scan is: what was due when it began, behind the last that was listed. What is noted meanwhile is due later, so
/// no scan meets a subject twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanPlace {
    /// When it began.
    pub began_at: DateTime<Utc>,
    /// The last subject of the last page.
    pub after: Listed,
}

/// A page of a scan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DuePage {
    /// Those that are due, the longest first.
    pub listed: Vec<Listed>,
    /// Where the next page begins; none when this is the last.
    pub next: Option<ScanPlace>,
}

/// A subject as it is when a look at it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// Which one.
    pub subject_id: String,
    /// What hints call it.
    pub hint: String,
    /// Of what is wanted.
    pub version: u64,
    /// What is wanted.
    pub wanted: String,
    /// What is waited for; empty when nothing is.
    pub goal: String,
    /// Since when that is waited for: the first look at it. None before it, and when nothing is waited for.
    pub goal_begun_at: Option<DateTime<Utc>>,
    /// Whether more is on its way.
    pub is_held: bool,
    /// The database's time when this was read.
    pub now: DateTime<Utc>,
}

/// A look that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedLook {
    /// At which subject.
    pub subject_id: String,
    /// As of which version it was looked at. Where something newer is wanted by now, the next look is due as that says.
    pub version: u64,
    /// After how long it is looked at next.
    pub again_after: Duration,
    /// Why nothing is known of it, if so: a stable code and a text for people.
    pub failure: Option<(String, String)>,
}

/// A subject that was watched elsewhere before, with what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// What is wanted of it.
    pub watch: Watch,
    /// Since when its goal is waited for.
    pub goal_begun_at: Option<DateTime<Utc>>,
    /// What is known of the looks at it.
    pub looks: Looks,
}

/// What is known of the looks at a subject.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Looks {
    /// When the last one was that came to its end.
    pub looked_at: Option<DateTime<Utc>>,
    /// Why there was none since; none when there was.
    pub failure: Option<LookFailure>,
}

/// Why a subject could not be looked at, or why something could not be done to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookFailure {
    /// A stable code.
    pub code: String,
    /// A text for people.
    pub message: String,
    /// Since when it fails.
    pub since: DateTime<Utc>,
    /// When it failed last.
    pub failed_at: DateTime<Utc>,
    /// How often in a row.
    pub times: u64,
}

/// What is looked at, and what came of it.
#[async_trait]
pub trait Observations: Send + Sync + 'static {
    /// What is due of an observer: the first page of a new scan, or the next of one that goes on. One statement, by index.
    async fn due_subjects(
        &self,
        observer: &str,
        place: Option<&ScanPlace>,
        limit: u32,
    ) -> StoreResult<DuePage>;

    /// The subjects behind hints, due or not; those of which more is on its way are left out.
    async fn hinted_subjects(&self, observer: &str, hints: &[String]) -> StoreResult<Vec<Listed>>;

    /// A subject when a look at it begins; none when it is not to be looked at any more. The first look at a goal begins
    /// the wait for it.
    async fn begin_look(&self, observer: &str, subject_id: &str) -> StoreResult<Option<Watched>>;

    /// Notes looks that have ended. Nothing is noted of what is not watched any more, and nothing by who has lost the lease.
    /// After one that failed, the next look is not later than its pause says, also where something newer is wanted.
    async fn note_looks(&self, lease: &LeaseGrant, observer: &str, looks: &[NotedLook]) -> StoreResult<()>;

    /// What is known of the looks at a subject; none when it is not watched.
    async fn looks_at(&self, observer: &str, subject_id: &str) -> StoreResult<Option<Looks>>;
}
