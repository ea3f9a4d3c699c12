//! The outbox: what is to be published, and what became of it.

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::{LeaseGrant, StoreResult};
use crate::envelope::EventEnvelope;
use crate::ids::{ChannelName, EventId, Lane};
use crate::lifecycle::OutboxStatus;

/// Which outbox rows to take.
#[derive(Debug, Clone)]
pub struct OutboxClaim<'a> {
    /// Of which channel.
    pub channel: &'a ChannelName,
    /// Of which partitions. The caller holds their leases.
    pub partitions: &'a [u16],
    /// How many at most.
    pub limit: u32,
    /// What is due.
    pub now: DateTime<Utc>,
    /// How much it may bring otherwise.
    pub room: ClaimRoom,
}

/// How much a claim of outbox rows may bring, beside their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimRoom {
    /// How many rows of one lane at most: one that has many must not hold up those behind it.
    pub per_lane: u32,
    /// How many rows are looked through for those of other lanes; at least `limit` are.
    pub depth: u32,
    /// After how many bytes of payloads no further row is taken. One row comes, however large it is.
    pub bytes: u64,
}

impl ClaimRoom {
    /// As many as there are.
    pub const UNLIMITED: Self = Self { per_lane: u32::MAX, depth: 0, bytes: i64::MAX as u64 };
}

/// An outbox row with the fact it is about.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxItem {
    /// The row.
    pub outbox_id: u64,
    /// The lane of its aggregate.
    pub lane: Lane,
    /// Failures so far.
    pub retry_count: u32,
    /// Where it is.
    pub status: OutboxStatus,
    /// The fact.
    pub event: EventEnvelope,
}

/// How the publishing of one outbox row ended.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxResult {
    /// The row.
    pub outbox_id: u64,
    /// Its event. A database that has lost its last rows gives their numbers to others: what is known of one event says
    /// nothing of another.
    pub event_id: EventId,
    /// Its lane, as claimed.
    pub lane: Lane,
    /// How it ended.
    pub outcome: OutboxOutcome,
}

/// The ways publishing can end.
#[derive(Debug, Clone, PartialEq)]
pub enum OutboxOutcome {
    /// The broker has confirmed it.
    Sent,
    /// Try again later. With `park`, later events of its lane wait behind it.
    Retry {
        /// When.
        at: DateTime<Utc>,
        /// Stable code.
        reason: String,
        /// Text for people.
        message: String,
        /// Whether order is kept.
        park: bool,
    },
    /// Given up. With `park`, its lane stands still until an operator decides.
    Failed {
        /// Stable code.
        reason: String,
        /// Text for people.
        message: String,
        /// Whether order is kept.
        park: bool,
    },
}

/// Where an outbox row is.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxRow {
    /// The row.
    pub outbox_id: u64,
    /// The channel.
    pub channel: ChannelName,
    /// The fact.
    pub event_id: EventId,
    /// Its lane.
    pub lane: Lane,
    /// Where it is.
    pub status: OutboxStatus,
    /// Since when.
    pub status_changed_at: DateTime<Utc>,
    /// Stable code of why.
    pub status_reason: Option<String>,
    /// Text of why.
    pub status_message: Option<String>,
    /// Failures so far.
    pub retry_count: u32,
    /// When it is due again.
    pub next_retry_at: Option<DateTime<Utc>>,
    /// Since when it waits behind another of its lane.
    pub parked_at: Option<DateTime<Utc>>,
}

/// Which outbox rows that were given up. What is not said fits all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailedFilter {
    /// Of this channel.
    pub channel: Option<ChannelName>,
    /// Given up for this reason (a stable code).
    pub reason: Option<String>,
    /// With an event of this type.
    pub event_type: Option<String>,
    /// Given up before this moment.
    pub failed_before: Option<DateTime<Utc>>,
    /// Given up at this moment or later.
    pub failed_since: Option<DateTime<Utc>>,
}

/// An outbox row that was given up, with the fact it is about.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedRow {
    /// The row.
    pub row: OutboxRow,
    /// The fact.
    pub event: EventEnvelope,
}

/// The outbox: what is to be published.
#[async_trait]
pub trait Outbox: Send + Sync + 'static {
    /// Takes rows that are due, in order per lane and as many as there is room for; lanes that are parked are left out,
    /// except for the row they wait for once that is due. Nothing is marked: the caller's leases on the partitions are the claim, and
    /// they are checked again when results are written.
    async fn claim_outbox(&self, claim: &OutboxClaim<'_>) -> StoreResult<Vec<OutboxItem>>;

    /// Writes how publishing ended, in one transaction that checks every lease. Parks and unparks lanes.
    async fn record_outbox(
        &self,
        leases: &[LeaseGrant],
        channel: &ChannelName,
        now: DateTime<Utc>,
        results: &[OutboxResult],
    ) -> StoreResult<()>;

    /// Goes on without a row that is FAILED or RETRY: it is SKIPPED, with a reason for people, and what waited behind it
    /// follows. Answers whether it was in one of these states.
    async fn skip_outbox(&self, outbox_id: u64, reason: &str, now: DateTime<Utc>) -> StoreResult<bool>;

    /// Puts FAILED rows back to RETRY, due at once, with their attempts forgotten. Answers how many.
    async fn reopen_outbox(&self, outbox_ids: &[u64], now: DateTime<Utc>) -> StoreResult<u64>;

    /// Rows that were given up and fit a filter, with their facts, by number: the next ones behind `after`.
    async fn failed_outbox(
        &self,
        filter: &FailedFilter,
        after: u64,
        limit: u32,
    ) -> StoreResult<Vec<FailedRow>>;

    /// How many rows were given up and fit a filter.
    async fn count_failed(&self, filter: &FailedFilter) -> StoreResult<u64>;

    /// As [`reopen_outbox`](Self::reopen_outbox), for the first `limit` rows that fit a filter.
    async fn reopen_failed(&self, filter: &FailedFilter, limit: u32, now: DateTime<Utc>) -> StoreResult<u64>;
}
