//! Operations: changes that somebody asked for from outside, each recorded once and answered once.
//!
//! A row is written before the change begins and answered with it, so that a change whose process died is known, and a
//! repeat of the same request gets the same answer. The effects behind an operation are conditional themselves: the
//! claim keeps twins apart, it does not stand in for their own checks. An effect that has a transaction of its own can
//! write the answer in it ([`StoreTx::answer`](super::StoreTx::answer)): then there is no moment
//! at which the one is there without the other.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Append, LeaseGrant, StoreResult};
use crate::ids::{ActorId, OperationName, RequestId, TraceId};

/// Under which name an operation is asked for, and by whom. Actors do not see each other's names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationKey {
    /// Who asks.
    pub actor: ActorId,
    /// The name that the asker chose, or one of its own if it chose none.
    pub name: OperationName,
}

/// An operation as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOperation {
    /// Under which name.
    pub key: OperationKey,
    /// Its identity in the log.
    pub operation_id: Uuid,
    /// A hash of all that makes the request what it is: the same name with another one is a mistake.
    pub fingerprint: String,
    /// In which role.
    pub role: String,
    /// What is done, from a fixed set: a method and a route.
    pub action: String,
    /// To what.
    pub target: String,
    /// The request that brought it.
    pub request_id: Option<RequestId>,
    /// The trace it belongs to.
    pub trace_id: Option<TraceId>,
    /// When it was asked for.
    pub asked_at: DateTime<Utc>,
}

/// The right to run an operation, until it runs out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationClaim {
    /// Which one.
    pub key: OperationKey,
    /// The identity that the first who asked gave it.
    pub operation_id: Uuid,
    /// The identity that this one gave it when asking: tells two apart that were given one number, as a database does
    /// that comes back from an older copy.
    pub holder_id: Uuid,
    /// How often it was begun. Whoever holds a lower number has lost it.
    pub epoch: u64,
}

/// What was answered, for who asks again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationAnswer {
    /// The status.
    pub status: u16,
    /// The headers that belong to the answer and not to its way.
    pub headers: Vec<(String, String)>,
    /// The body, byte for byte.
    pub body: Vec<u8>,
}

/// How an operation stands for who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BeginOutcome {
    /// It is the caller's to run.
    Begun(OperationClaim),
    /// Somebody runs it at this moment.
    Running,
    /// It was answered before.
    Answered(OperationAnswer),
    /// The name belongs to another request.
    Different,
}

/// How a claimed operation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationEnd<'a> {
    /// The answer is kept for who asks again.
    Answered(&'a OperationAnswer),
    /// The answer that was written with the effect stays, for who asks again.
    Kept,
    /// The name is free again: nothing happened, or it may be tried again. Not where an answer was written with the
    /// effect: then the operation is not ended.
    Forgotten,
}

/// An operation that was begun and not ended in its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostOperation {
    /// What was asked.
    pub operation: NewOperation,
    /// How it may be ended.
    pub claim: OperationClaim,
    /// The status of the answer that was written with its effect: then it was done, and only its end is missing.
    pub answered: Option<u16>,
}

/// Operations, from their beginning to their answer.
#[async_trait]
pub trait Operations: Send + Sync + 'static {
    /// Begins an operation, or answers how it stands. One that was begun and not ended within its time is taken over by
    /// a caller with the same request: its epoch rises, and the earlier holder can no longer end it. Time is the database's.
    async fn begin_operation(&self, operation: &NewOperation, for_: Duration) -> StoreResult<BeginOutcome>;

    /// Ends an operation and appends the fact about it, in one transaction. Answers `false`, and writes nothing, when
    /// the claim has been lost.
    async fn end_operation(
        &self,
        claim: &OperationClaim,
        end: OperationEnd<'_>,
        fact: Option<&Append>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool>;

    /// The answer of a claimed operation that was written with its effect, if it was.
    async fn answered_operation(&self, claim: &OperationClaim) -> StoreResult<Option<OperationAnswer>>;

    /// Operations that were begun and not ended in their time, the longest overdue first.
    async fn lost_operations(&self, limit: u32) -> StoreResult<Vec<LostOperation>>;

    /// Deletes at most `limit` operations that were answered before a moment; fenced by the lease.
    async fn clean_operations(
        &self,
        lease: &LeaseGrant,
        answered_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64>;
}
