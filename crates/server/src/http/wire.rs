//! Facts as they are sent, with their schema. They are written as they stand, so that payloads stay the exact texts.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::ids::{
    ActorId, AggregateId, AggregateKey, AggregateKind, CausationId, CorrelationId, EventId, RequestId,
    TenantId, TraceId,
};
use towpath::lifecycle::CommandStatus;
use towpath::name::EventName;
use towpath::ports::store::StateEvent;
use towpath::{EventEnvelope, Payload, RecordedEvent, TASK_KIND, Towpath};
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

use super::access::Role;

/// What somebody sees of payloads: viewers none of kinds that are confidential, all others everything.
#[derive(Clone)]
pub(crate) struct Sight {
    towpath: Towpath,
    role: Role,
}

impl Sight {
    pub(crate) fn of(towpath: &Towpath, role: Role) -> Self {
        Self { towpath: towpath.clone(), role }
    }

    /// Whether this is withheld; nothing where it is not, so that it need not be said of each payload that is shown.
    pub(crate) fn withholds(&self, kind: &AggregateKind) -> Option<bool> {
        (self.role < Role::Operator && self.towpath.registry().is_confidential(kind.as_str())).then_some(true)
    }

    /// Whether the payload of a fact is withheld: also that of a task's, if the task is for something confidential.
    pub(crate) fn withholds_fact(&self, envelope: &EventEnvelope) -> Option<bool> {
        let of_kind = self.withholds(&envelope.aggregate.kind);
        of_kind.or_else(|| self.withholds(&subject_of_task(envelope)?))
    }

    /// The payload of a fact, if this caller may see it.
    pub(crate) fn of_fact<'a>(&self, envelope: &'a EventEnvelope) -> Option<&'a Payload> {
        self.withholds_fact(envelope).is_none().then_some(&envelope.payload)
    }

    /// The payload, if this caller may see it.
    pub(crate) fn of_payload<'a>(&self, kind: &AggregateKind, payload: &'a Payload) -> Option<&'a Payload> {
        self.withholds(kind).is_none().then_some(payload)
    }
}

/// The kind of what a task is for, of a fact of a task.
fn subject_of_task(envelope: &EventEnvelope) -> Option<AggregateKind> {
    #[derive(Deserialize)]
    struct Said {
        subject: Option<Subject>,
    }
    #[derive(Deserialize)]
    struct Subject {
        kind: String,
    }
    if envelope.aggregate.kind.as_str() != TASK_KIND {
        return None;
    }
    let said: Said = serde_json::from_str(envelope.payload.as_text()).ok()?;
    Some(AggregateKind::from_stored(said.subject?.kind))
}

/// Which aggregate: its kind and its id.
#[derive(Serialize, ToSchema)]
pub(crate) struct Aggregate<'a> {
    #[schema(value_type = String)]
    kind: &'a AggregateKind,
    #[schema(value_type = String)]
    id: &'a AggregateId,
}

impl<'a> From<&'a AggregateKey> for Aggregate<'a> {
    fn from(key: &'a AggregateKey) -> Self {
        Self { kind: &key.kind, id: &key.id }
    }
}

/// A fact with all that places it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Envelope<'a> {
    /// The key of every de-duplication.
    #[schema(value_type = uuid::Uuid)]
    event_id: EventId,
    #[schema(value_type = String)]
    event_type: &'a EventName,
    /// Which shape of the payload this is.
    schema_version: u16,
    aggregate: Aggregate<'a>,
    /// The version of the aggregate that this event made.
    aggregate_version: u64,
    occurred_at: DateTime<Utc>,
    /// The flow it belongs to.
    #[schema(value_type = String)]
    correlation_id: &'a CorrelationId,
    /// What caused it.
    #[schema(value_type = Option<String>)]
    causation_id: Option<&'a CausationId>,
    #[schema(value_type = Option<String>)]
    trace_id: Option<&'a TraceId>,
    #[schema(value_type = Option<String>)]
    actor_id: Option<&'a ActorId>,
    #[schema(value_type = Option<String>)]
    tenant_id: Option<&'a TenantId>,
    /// Null where it is withheld.
    #[schema(value_type = Value)]
    payload: Option<&'a Payload>,
}

impl<'a> Envelope<'a> {
    pub(crate) fn seen(envelope: &'a EventEnvelope, sight: &Sight) -> Self {
        Self {
            event_id: envelope.event_id,
            event_type: &envelope.event_type,
            schema_version: envelope.schema_version,
            aggregate: (&envelope.aggregate).into(),
            aggregate_version: envelope.aggregate_version,
            occurred_at: envelope.occurred_at,
            correlation_id: &envelope.correlation_id,
            causation_id: envelope.causation_id.as_ref(),
            trace_id: envelope.trace_id.as_ref(),
            actor_id: envelope.actor_id.as_ref(),
            tenant_id: envelope.tenant_id.as_ref(),
            payload: sight.of_fact(envelope),
        }
    }
}

/// An event of the log.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event<'a> {
    /// The place in the log; nothing for the moment between commit and sequencing.
    position: Option<u64>,
    #[schema(value_type = uuid::Uuid)]
    event_id: EventId,
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    event_type: &'a EventName,
    #[schema(value_type = String)]
    aggregate_kind: &'a AggregateKind,
    #[schema(value_type = String)]
    aggregate_id: &'a AggregateId,
    aggregate_version: u64,
    occurred_at: DateTime<Utc>,
    #[schema(value_type = String)]
    correlation_id: &'a CorrelationId,
    #[schema(value_type = Option<String>)]
    causation_id: Option<&'a CausationId>,
    /// Null where it is withheld.
    #[schema(value_type = Value)]
    payload: Option<&'a Payload>,
    /// True where the payload is not for viewers, and a viewer asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_withheld: Option<bool>,
}

impl<'a> Event<'a> {
    pub(crate) fn seen(event: &'a RecordedEvent, sight: &Sight) -> Self {
        let envelope = &event.envelope;
        let kind = &envelope.aggregate.kind;
        Self {
            position: event.position,
            event_id: envelope.event_id,
            event_type: &envelope.event_type,
            aggregate_kind: kind,
            aggregate_id: &envelope.aggregate.id,
            aggregate_version: envelope.aggregate_version,
            occurred_at: envelope.occurred_at,
            correlation_id: &envelope.correlation_id,
            causation_id: envelope.causation_id.as_ref(),
            payload: sight.of_fact(envelope),
            payload_withheld: sight.withholds_fact(envelope),
        }
    }
}

/// A change of an aggregate's state.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StateChange<'a> {
    aggregate: Aggregate<'a>,
    /// The version that did it.
    aggregate_version: u64,
    /// The fact that did it.
    #[schema(value_type = uuid::Uuid)]
    event_id: EventId,
    /// The state left; nothing at the beginning.
    from_state: Option<&'a str>,
    to_state: &'a str,
    /// A stable code.
    reason: Option<&'a str>,
    /// A text for people.
    message: Option<&'a str>,
    #[schema(value_type = Option<String>)]
    actor_id: Option<&'a ActorId>,
    #[schema(value_type = Option<String>)]
    request_id: Option<&'a RequestId>,
    #[schema(value_type = Option<String>)]
    trace_id: Option<&'a TraceId>,
    created_at: DateTime<Utc>,
}

impl<'a> From<&'a StateEvent> for StateChange<'a> {
    fn from(change: &'a StateEvent) -> Self {
        Self {
            aggregate: (&change.aggregate).into(),
            aggregate_version: change.aggregate_version,
            event_id: change.event_id,
            from_state: change.from_state.as_deref(),
            to_state: &change.to_state,
            reason: change.reason.as_deref(),
            message: change.message.as_deref(),
            actor_id: change.actor_id.as_ref(),
            request_id: change.request_id.as_ref(),
            trace_id: change.trace_id.as_ref(),
            created_at: change.created_at,
        }
    }
}

/// The schema of a text that is one of a few.
pub(crate) fn one_of(texts: impl IntoIterator<Item = &'static str>) -> Object {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(texts)).build()
}

/// Where a command can be.
pub(crate) fn command_status() -> Object {
    one_of(CommandStatus::ALL.iter().map(|status| status.as_str()))
}
