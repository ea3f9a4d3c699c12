//! The envelope: a fact with everything a reader needs to place it.

use chrono::{DateTime, SubsecRound, Utc};
use serde::{Deserialize, Serialize};

use crate::ids::{
    ActorId, AggregateKey, CausationId, CorrelationId, EventId, Position, RequestId, TenantId, TraceId,
    Version,
};
use crate::name::EventName;
use crate::payload::Payload;

/// One committed fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventEnvelope {
    /// UUIDv7; the key of every de-duplication.
    pub event_id: EventId,
    /// The stored, explicit name of the event.
    pub event_type: EventName,
    /// Which shape of the payload this is; 1 unless the application says otherwise.
    pub schema_version: u16,
    /// The aggregate the fact is about.
    pub aggregate: AggregateKey,
    /// The version of the aggregate that this event made: 1 for its first.
    pub aggregate_version: Version,
    /// When it was decided, in microseconds.
    pub occurred_at: DateTime<Utc>,
    /// The flow it belongs to.
    pub correlation_id: CorrelationId,
    /// The command (or, for an imported fact, the event) that caused it.
    pub causation_id: Option<CausationId>,
    /// The trace it belongs to.
    pub trace_id: Option<TraceId>,
    /// Who asked for the change.
    pub actor_id: Option<ActorId>,
    /// Whose data it is.
    pub tenant_id: Option<TenantId>,
    /// The fact itself.
    pub payload: Payload,
}

/// An event as the store gives it back. It has a position once the sequencer has seen it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedEvent {
    /// The place in the log; `None` for the moment between commit and sequencing.
    pub position: Option<Position>,
    /// The fact.
    #[serde(flatten)]
    pub envelope: EventEnvelope,
}

/// The circumstances of a change: carried from the command into every row it writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeContext {
    /// The moment of the decision.
    pub occurred_at: DateTime<Utc>,
    /// The flow.
    pub correlation_id: CorrelationId,
    /// What caused it.
    pub causation_id: Option<CausationId>,
    /// The trace.
    pub trace_id: Option<TraceId>,
    /// The request that brought it.
    pub request_id: Option<RequestId>,
    /// Who asked.
    pub actor_id: Option<ActorId>,
    /// Whose data.
    pub tenant_id: Option<TenantId>,
}

impl ChangeContext {
    /// A context with only the two things that every change has.
    pub fn new(occurred_at: DateTime<Utc>, correlation_id: CorrelationId) -> Self {
        Self {
            occurred_at: to_stored_precision(occurred_at),
            correlation_id,
            causation_id: None,
            trace_id: None,
            request_id: None,
            actor_id: None,
            tenant_id: None,
        }
    }
}

/// Cuts a moment to microseconds, which all three databases keep exactly: what is written is what is read.
pub fn to_stored_precision(moment: DateTime<Utc>) -> DateTime<Utc> {
    moment.trunc_subsecs(6)
}
