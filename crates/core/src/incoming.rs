//! An event as a consumer gets it, whoever sent it and in whatever format.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::envelope::EventEnvelope;
use crate::ids::{AggregateKey, CausationId, CorrelationId, EventId, TraceId, Version};
use crate::messages::Event;
use crate::name::EventName;
use crate::payload::{InvalidPayload, Payload};

/// An event that has arrived. What only some formats carry is optional.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IncomingEvent {
    /// The key of every de-duplication.
    pub event_id: EventId,
    /// Its type, as the sender spells it.
    pub event_type: EventName,
    /// The aggregate it is about.
    pub aggregate: Option<AggregateKey>,
    /// The version of the aggregate that it made.
    pub aggregate_version: Option<Version>,
    /// When it happened.
    pub occurred_at: Option<DateTime<Utc>>,
    /// The flow it belongs to.
    pub correlation_id: Option<CorrelationId>,
    /// What caused it.
    pub causation_id: Option<CausationId>,
    /// The trace it belongs to.
    pub trace_id: Option<TraceId>,
    /// The shape of its payload. A log tells it, and so does Towpath's own envelope; other formats do not.
    #[serde(skip)]
    pub schema_version: Option<u16>,
    /// The fact itself, byte for byte as it was sent.
    pub payload: Payload,
}

impl From<EventEnvelope> for IncomingEvent {
    fn from(event: EventEnvelope) -> Self {
        Self {
            event_id: event.event_id,
            event_type: event.event_type,
            aggregate: Some(event.aggregate),
            aggregate_version: Some(event.aggregate_version),
            occurred_at: Some(event.occurred_at),
            correlation_id: Some(event.correlation_id),
            causation_id: event.causation_id,
            trace_id: event.trace_id,
            schema_version: Some(event.schema_version),
            payload: event.payload,
        }
    }
}

impl IncomingEvent {
    /// The event as one of an application's. One that is known to be of an older form is upcast; one that does not tell is
    /// taken to be of today's.
    pub fn read<E: Event>(&self) -> Result<E, InvalidPayload> {
        E::from_stored(self.event_type.as_str(), self.schema_version.unwrap_or(E::VERSION), &self.payload)
    }
}
