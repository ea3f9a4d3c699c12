//! Formats: how an event becomes the body of a message.

use towpath_core::envelope::EventEnvelope;
use towpath_core::ports::broker::{Destination, Message};

/// An event in Towpath's own envelope: the whole of it as JSON (camelCase), with what a receiver needs first as
/// properties of the message.
pub fn envelope_message(event: &EventEnvelope, destination: Destination) -> Message {
    let mut headers = vec![
        ("towpath-aggregate-kind".to_owned(), event.aggregate.kind.to_string()),
        ("towpath-aggregate-id".to_owned(), event.aggregate.id.to_string()),
        ("towpath-aggregate-version".to_owned(), event.aggregate_version.to_string()),
        ("towpath-correlation-id".to_owned(), event.correlation_id.to_string()),
    ];
    let optional = [
        ("towpath-causation-id", event.causation_id.as_ref().map(ToString::to_string)),
        ("towpath-trace-id", event.trace_id.as_ref().map(ToString::to_string)),
        ("towpath-tenant-id", event.tenant_id.as_ref().map(ToString::to_string)),
    ];
    headers.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    Message {
        destination,
        message_id: event.event_id.to_string(),
        message_type: event.event_type.to_string(),
        key: event.aggregate.to_string(),
        occurred_at: event.occurred_at,
        content_type: "application/vnd.towpath.event+json".to_owned(),
        headers,
        // An envelope holds texts, numbers and one checked JSON value: it can always be written.
        body: serde_json::to_vec(event).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_core::envelope::ChangeContext;
    use towpath_core::ids::{AggregateKey, CorrelationId, EventId};
    use towpath_core::name::EventName;
    use towpath_core::payload::Payload;

    #[test]
    fn the_body_is_the_envelope_and_the_payload_stays_as_it_was() {
        let context = ChangeContext::new(chrono::DateTime::UNIX_EPOCH, CorrelationId::new("flow-1").unwrap());
        let event = EventEnvelope {
            event_id: EventId(uuid::Uuid::nil()),
            event_type: EventName::from_stored("order.placed"),
            schema_version: 1,
            aggregate: AggregateKey::new("order", "order-7").unwrap(),
            aggregate_version: 3,
            occurred_at: context.occurred_at,
            correlation_id: context.correlation_id,
            causation_id: None,
            trace_id: None,
            actor_id: None,
            tenant_id: None,
            payload: Payload::from_text(r#"{"amount":88.50}"#).unwrap(),
        };
        let destination = Destination { exchange: "facts".into(), routing_key: "order.placed".into() };
        let message = envelope_message(&event, destination);
        let body = String::from_utf8(message.body.clone()).unwrap();
        assert!(body.contains(r#""payload":{"amount":88.50}"#), "{body}");
        assert_eq!(serde_json::from_slice::<EventEnvelope>(&message.body).unwrap(), event);
        assert_eq!((message.message_type.as_str(), message.key.as_str()), ("order.placed", "order/order-7"));
    }
}
