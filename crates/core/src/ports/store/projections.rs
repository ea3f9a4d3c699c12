//! How far the rows are that projections make of facts.

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::StoreResult;
use crate::ids::Version;

/// How far the rows of an aggregate are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Projected {
    /// Its last fact that is in them.
    pub version: Version,
    /// The version of the projection that has made them; 0: nobody knows of any.
    pub by: u32,
}

/// An aggregate, and how far its rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectedAggregate {
    /// Which one of its kind.
    pub id: String,
    /// How many facts it has.
    pub version: Version,
    /// How far its rows are.
    pub projected: Projected,
    /// Whether they do not go on.
    pub is_failing: bool,
}

/// Why the rows of an aggregate do not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectionFailure {
    /// Which one of its kind.
    pub aggregate_id: String,
    /// Its last fact that is in them.
    pub version: Version,
    /// A stable code.
    pub reason: String,
    /// A text for people.
    pub message: String,
    /// When it was last tried.
    pub failed_at: DateTime<Utc>,
}

/// How far a projection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectionProgress {
    /// How many aggregates of its kind there are.
    pub aggregates: u64,
    /// How many of them have rows that this version has made.
    pub current: u64,
    /// The version by which all were made that were there.
    pub made_by: u32,
    /// What does not go on: the first hundred.
    pub failures: Vec<ProjectionFailure>,
}

/// How far projections are. What is noted of an aggregate is noted with its rows ([`StoreTx`](super::StoreTx)).
#[async_trait]
pub trait Projections: Send + Sync + 'static {
    /// By which version of a projection all aggregates were made; 0: by none yet.
    async fn projection_made_by(&self, projection: &str, kind: &str) -> StoreResult<u32>;

    /// Notes that all were made by this version, unless a newer one has.
    async fn projection_is_made(&self, projection: &str, kind: &str, by: u32) -> StoreResult<()>;

    /// Some aggregates of a kind, by id, behind one, with how far they are.
    async fn projected_behind(
        &self,
        projection: &str,
        kind: &str,
        after: &str,
        limit: u32,
    ) -> StoreResult<Vec<ProjectedAggregate>>;

    /// How far a projection is. It counts: for people, not for programs that ask all the time.
    async fn projection_progress(
        &self,
        projection: &str,
        kind: &str,
        by: u32,
    ) -> StoreResult<ProjectionProgress>;
}
