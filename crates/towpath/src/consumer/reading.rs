//! What a message says, and by which id the inbox knows its delivery.

use towpath_core::format::FormatError;
use towpath_core::ids::EventId;
use towpath_core::incoming::IncomingEvent;
use towpath_core::name::EventName;
use towpath_core::payload::Payload;
use towpath_core::ports::broker::Received;

use super::Source;

/// By what a consumer tells a delivery from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The event: however it comes, it is handled once.
    Event,
    /// The message: where it comes from, and its id there.
    Message,
    /// The append: all its facts are one, told by the last of them.
    Append,
}

/// A message that can be handled.
pub(super) struct Readable {
    /// The inbox's key.
    pub(super) id: EventId,
    pub(super) event: IncomingEvent,
}

/// Makes of a message, and of the event that a format has found in it, what a consumer of a source can handle.
pub(super) fn readable(
    identity: Identity,
    source: &Source,
    received: &Received,
    event: Result<IncomingEvent, FormatError>,
) -> Result<Readable, FormatError> {
    match identity {
        // Which append it is from, the log knows.
        Identity::Event | Identity::Append => {
            let event = event?;
            Ok(Readable { id: event.event_id, event })
        }
        Identity::Message => {
            const FORMAT: &str = "a message that is told by its id";
            let message_id = received.message_id.as_deref().filter(|id| !id.is_empty());
            let message_id =
                message_id.ok_or(FormatError::MissingField { format: FORMAT, field: "message id" })?;
            let (Source::Channel(from) | Source::Queue(from)) = source;
            let id = towpath_store::message_key(from, message_id);
            let event = event.or_else(|error| by_properties(id, received).ok_or(error))?;
            Ok(Readable { id, event })
        }
    }
}

/// A message of somebody who does not write events: its properties say what it is, and its body is the payload.
fn by_properties(id: EventId, received: &Received) -> Option<IncomingEvent> {
    let message_type = received.message_type.as_deref().filter(|name| !name.is_empty())?;
    let body = String::from_utf8(received.body.clone()).ok()?;
    Some(IncomingEvent {
        event_id: id,
        schema_version: None,
        event_type: EventName::from_stored(message_type),
        aggregate: None,
        aggregate_version: None,
        occurred_at: received.occurred_at,
        correlation_id: None,
        causation_id: None,
        trace_id: None,
        payload: Payload::from_text(body).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use towpath_broker::Formats;
    use towpath_core::ports::broker::{DeliveryTag, Destination};

    use super::*;
    use towpath_core::retry::Coded as _;

    fn received(message_id: Option<&str>, body: &str) -> Received {
        Received {
            tag: DeliveryTag(1),
            queue: "elsewhere".to_owned(),
            message_id: message_id.map(str::to_owned),
            message_type: Some("parcel.sent".to_owned()),
            occurred_at: None,
            key: None,
            content_type: Some("text/plain".to_owned()),
            destination: Destination { exchange: String::new(), routing_key: "elsewhere".to_owned() },
            headers: Vec::new().into(),
            redelivered: false,
            body: body.as_bytes().to_vec(),
        }
    }

    fn by_message(source: &Source, received: &Received) -> Result<Readable, FormatError> {
        readable(Identity::Message, source, received, Formats::default().read(received, None))
    }

    #[test]
    fn a_message_is_told_by_where_it_comes_from_and_its_id() {
        let (one, other) = (Source::Channel("one".to_owned()), Source::Queue("other".to_owned()));
        let first = by_message(&one, &received(Some("7"), "{}")).unwrap();
        assert_eq!(first.event.event_type.as_str(), "parcel.sent");
        assert_eq!(first.event.event_id, first.id);
        assert_eq!(by_message(&one, &received(Some("7"), "{\"more\":1}")).unwrap().id, first.id);
        assert_ne!(by_message(&one, &received(Some("8"), "{}")).unwrap().id, first.id);
        assert_ne!(by_message(&other, &received(Some("7"), "{}")).unwrap().id, first.id);
    }

    #[test]
    fn without_an_id_or_a_payload_it_is_nothing_that_can_be_handled() {
        let source = Source::Channel("one".to_owned());
        let missing = by_message(&source, &received(None, "{}")).err().unwrap();
        assert_eq!(missing.code(), "format-missing-field");
        let unknown = by_message(&source, &received(Some("7"), "no JSON")).err().unwrap();
        assert_eq!(unknown.code(), "format-unknown");
    }
}
