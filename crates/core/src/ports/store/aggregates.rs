//! Aggregates: their current state, their events and their history.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{CommandRecord, Snapshot, StoreResult};
use crate::envelope::RecordedEvent;
use crate::ids::{ActorId, AggregateKey, CorrelationId, EventId, RequestId, TenantId, TraceId, Version};

/// The current state of an aggregate: one row, whatever stands behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct AggregateRow {
    /// Which.
    pub aggregate: AggregateKey,
    /// How many events it has.
    pub version: Version,
    /// The folded state, if Towpath keeps it.
    pub snapshot: Option<Snapshot>,
    /// The state machine's state.
    pub state: Option<String>,
    /// Since when.
    pub state_changed_at: Option<DateTime<Utc>>,
    /// Stable code of why.
    pub state_reason: Option<String>,
    /// Text of why.
    pub state_message: Option<String>,
    /// The tenant's business status.
    pub status: Option<String>,
    /// Whose it is.
    pub tenant_id: Option<TenantId>,
    /// When its first event happened.
    pub created_at: DateTime<Utc>,
    /// When its last event happened.
    pub updated_at: DateTime<Utc>,
}

/// A row of an aggregate's history (S4).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StateEvent {
    /// Which aggregate.
    pub aggregate: AggregateKey,
    /// The version that did it.
    pub aggregate_version: Version,
    /// The fact that did it.
    pub event_id: EventId,
    /// The state left; `None` at the beginning.
    pub from_state: Option<String>,
    /// The state entered.
    pub to_state: String,
    /// Stable code.
    pub reason: Option<String>,
    /// Text for people.
    pub message: Option<String>,
    /// Who asked.
    pub actor_id: Option<ActorId>,
    /// By which request.
    pub request_id: Option<RequestId>,
    /// In which trace.
    pub trace_id: Option<TraceId>,
    /// When.
    pub created_at: DateTime<Utc>,
}

/// Everything that belongs to one correlation id, in order of time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Flow {
    /// The commands.
    pub commands: Vec<CommandRecord>,
    /// The events.
    pub events: Vec<RecordedEvent>,
    /// Payloads with more bytes than this are left out (they are `null`), because the flow would be too large to be
    /// shown as a whole. Nothing where all of them are there.
    pub payloads_up_to: Option<u64>,
    /// Whether there is more of it than was read.
    pub truncated: bool,
}

/// The facts of one append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendedTogether {
    /// Whose facts they are.
    pub aggregate: AggregateKey,
    /// The version of the first one.
    pub first: Version,
    /// The version of the last one.
    pub last: Version,
    /// The id of the last one.
    pub last_event: EventId,
}

impl AppendedTogether {
    /// How many facts there are.
    pub fn count(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Whether a fact is one of them.
    pub fn contains(&self, event_id: EventId) -> bool {
        self.last_event.behind(event_id).is_some_and(|distance| distance < u128::from(self.count()))
    }
}

/// Aggregates: their events, their history, their status.
#[async_trait]
pub trait Aggregates: Send + Sync + 'static {
    /// Events of an aggregate behind a version, in order.
    async fn events_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> StoreResult<Vec<RecordedEvent>>;

    /// The same, as many of the first ones as have so many bytes of payload together, and at least one if there is any.
    async fn events_of_within(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>>;

    /// The facts that were appended with this one; none if it is not in the log.
    async fn appended_with(&self, event_id: EventId) -> StoreResult<Option<AppendedTogether>>;

    /// State history of an aggregate behind a version, in order.
    async fn history_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> StoreResult<Vec<StateEvent>>;

    /// The last change of an aggregate's state: how it came to where it is.
    async fn last_state_change(&self, aggregate: &AggregateKey) -> StoreResult<Option<StateEvent>>;

    /// Everything with this correlation id, in order of time; at most `limit` of each.
    async fn flow(&self, correlation: &CorrelationId, limit: u32) -> StoreResult<Flow>;

    /// Sets the business status of an aggregate (S1, S7): one of the values in the tenant's dictionary.
    async fn set_status(
        &self,
        aggregate: &AggregateKey,
        status: &str,
        reason: Option<&str>,
        now: DateTime<Utc>,
    ) -> StoreResult<()>;

    /// Adds a value to a tenant's status dictionary (S7). Adding it again changes nothing.
    async fn add_status_value(&self, tenant: &TenantId, value: &str) -> StoreResult<()>;
}
