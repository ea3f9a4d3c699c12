//! Towpath's own envelope: everything that is known of the event, as one JSON object in camelCase.

use towpath_core::channel::Channel;
use towpath_core::envelope::EventEnvelope;
use towpath_core::format::{Fields, Format, FormatError, TOWPATH, Written};
use towpath_core::incoming::IncomingEvent;
use towpath_core::name::EventName;
use towpath_core::ports::broker::Received;

const CONTENT_TYPE: &str = "application/vnd.towpath.event+json";

const FORMAT: &str = "Towpath's envelope";

/// Towpath's own format.
pub(super) struct Own;

impl Format for Own {
    fn name(&self) -> &'static str {
        TOWPATH
    }

    fn write(&self, event: &EventEnvelope, _: &Channel) -> Result<Written, FormatError> {
        Ok(Written { headers: headers(event), ..Written::json(FORMAT, CONTENT_TYPE, event)? })
    }

    fn recognises(&self, received: &Received) -> bool {
        received.media_type() == CONTENT_TYPE
    }

    fn read(&self, received: &Received) -> Result<IncomingEvent, FormatError> {
        read(&received.body)
    }
}

/// What a receiver may want to know before it reads the body.
fn headers(event: &EventEnvelope) -> Vec<(String, String)> {
    let headers = [
        ("towpath-aggregate-kind", Some(event.aggregate.kind.to_string())),
        ("towpath-aggregate-id", Some(event.aggregate.id.to_string())),
        ("towpath-aggregate-version", Some(event.aggregate_version.to_string())),
        ("towpath-correlation-id", Some(event.correlation_id.to_string())),
        ("towpath-causation-id", event.causation_id.as_ref().map(ToString::to_string)),
        ("towpath-trace-id", event.trace_id.as_ref().map(ToString::to_string)),
        ("towpath-tenant-id", event.tenant_id.as_ref().map(ToString::to_string)),
    ];
    headers.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn read(body: &[u8]) -> Result<IncomingEvent, FormatError> {
    // What Towpath wrote is read in one go. All else, and what is wrong, is read field by field: that tells which one.
    match serde_json::from_slice::<EventEnvelope>(body) {
        Ok(event) if !event.event_type.as_str().is_empty() => return Ok(event.into()),
        Ok(_) | Err(_) => {}
    }
    let fields = Fields::of_body(FORMAT, body)?;
    Ok(IncomingEvent {
        event_id: fields.required("eventId")?,
        event_type: EventName::from_stored(fields.text("eventType")?),
        aggregate: Some(fields.required("aggregate")?),
        aggregate_version: Some(fields.required("aggregateVersion")?),
        occurred_at: Some(fields.required("occurredAt")?),
        correlation_id: Some(fields.required("correlationId")?),
        causation_id: fields.optional("causationId")?,
        trace_id: fields.optional("traceId")?,
        schema_version: fields.optional("schemaVersion")?,
        payload: fields.payload("payload")?.ok_or_else(|| fields.missing("payload"))?,
    })
}
