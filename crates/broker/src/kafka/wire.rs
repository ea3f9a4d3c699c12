//! How a message looks on the wire, in both directions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use chrono::{DateTime, SecondsFormat, Utc};
use rdkafka::message::{BorrowedMessage, Header, Headers, Message as _, OwnedHeaders};
use towpath_core::ports::broker::{DeliveryTag, Destination, Message, Received};

/// The message's id.
pub const MESSAGE_ID_HEADER: &str = "towpath-message-id";
/// The message's type.
pub const MESSAGE_TYPE_HEADER: &str = "towpath-message-type";
/// The time of the event. The record's own timestamp is when it was published: topics delete by it, and an old event
/// must not be deleted because it is sent again.
pub const OCCURRED_AT_HEADER: &str = "towpath-occurred-at";
/// What the body is.
pub const CONTENT_TYPE_HEADER: &str = "towpath-content-type";
/// The routing key: receivers pick by it.
pub const ROUTING_KEY_HEADER: &str = "towpath-routing-key";

/// Kafka's own limit.
const LONGEST_TOPIC_NAME: usize = 249;

/// The headers of a message. Ours come first, so that a header of the same name stays the sender's.
///
/// # Errors
/// Why the message does not fit into Kafka. It must not be tried: rdkafka panics over such names.
pub(super) fn headers(message: &Message) -> Result<OwnedHeaders, String> {
    check_topic_name(&message.destination.exchange)?;
    let occurred_at = message.occurred_at.to_rfc3339_opts(SecondsFormat::AutoSi, true);
    let ours = [
        (MESSAGE_ID_HEADER, message.message_id.as_str()),
        (MESSAGE_TYPE_HEADER, &message.message_type),
        (OCCURRED_AT_HEADER, &occurred_at),
        (CONTENT_TYPE_HEADER, &message.content_type),
        (ROUTING_KEY_HEADER, &message.destination.routing_key),
    ];
    let theirs = message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let mut headers = OwnedHeaders::new_with_capacity(ours.len() + message.headers.len());
    for (key, value) in ours.into_iter().chain(theirs) {
        if key.contains('\0') {
            return Err(format!("its header name {key:?} holds a zero byte"));
        }
        headers = headers.insert(Header { key, value: Some(value) });
    }
    Ok(headers)
}

/// Whether Kafka allows a topic of this name.
pub(super) fn check_topic_name(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > LONGEST_TOPIC_NAME || name == "." || name == ".." {
        return Err(format!("{name:?} is no name for a topic: it takes 1 to {LONGEST_TOPIC_NAME} letters"));
    }
    if !name.bytes().all(allowed) {
        return Err(format!(
            "{name:?} is no name for a topic: it takes Latin letters, digits, dots, dashes and underscores"
        ));
    }
    Ok(())
}

/// Translates what has arrived. The tag is given when it is handed out.
pub(super) fn received(queue: &str, message: &BorrowedMessage<'_>) -> Received {
    let (mut message_id, mut message_type, mut occurred_at) = (None, None, None);
    let (mut content_type, mut routing_key) = (None, None);
    let mut headers = Vec::new();
    for (name, value) in read_headers(message) {
        let ours = match name.as_str() {
            MESSAGE_ID_HEADER => &mut message_id,
            MESSAGE_TYPE_HEADER => &mut message_type,
            OCCURRED_AT_HEADER => &mut occurred_at,
            CONTENT_TYPE_HEADER => &mut content_type,
            ROUTING_KEY_HEADER => &mut routing_key,
            _ => {
                headers.push((name, value));
                continue;
            }
        };
        // The first is ours; another one of that name was the sender's own.
        match ours {
            None => *ours = Some(value),
            Some(_) => headers.push((name, value)),
        }
    }
    let timestamp = || DateTime::from_timestamp_millis(message.timestamp().to_millis()?);
    Received {
        tag: DeliveryTag(0),
        queue: queue.to_owned(),
        message_id,
        message_type,
        occurred_at: occurred_at
            .and_then(|time| DateTime::parse_from_rfc3339(&time).ok())
            .map(|time| time.with_timezone(&Utc))
            .or_else(timestamp),
        key: message.key().map(text),
        content_type,
        destination: Destination {
            exchange: message.topic().to_owned(),
            routing_key: routing_key.unwrap_or_default(),
        },
        headers: headers.into(),
        redelivered: false,
        body: message.payload().unwrap_or_default().to_vec(),
    }
}

/// All headers as texts. rdkafka panics over a header name that is not UTF-8, and anybody may publish one: such a
/// message has the headers before it only.
fn read_headers(message: &BorrowedMessage<'_>) -> Vec<(String, String)> {
    let mut read = Vec::new();
    let Some(headers) = message.headers() else { return read };
    for place in 0..headers.count() {
        match catch_unwind(AssertUnwindSafe(|| headers.try_get(place))) {
            Ok(Some(header)) => {
                read.push((header.key.to_owned(), header.value.map(text).unwrap_or_default()));
            }
            Ok(None) | Err(_) => break,
        }
    }
    read
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(exchange: &str) -> Message {
        Message {
            destination: Destination { exchange: exchange.into(), routing_key: "k".into() },
            message_id: "id".into(),
            message_type: "type".into(),
            key: "key".into(),
            occurred_at: DateTime::UNIX_EPOCH,
            content_type: "application/json".into(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    #[test]
    fn what_does_not_fit_into_kafka_is_refused_before_it_is_sent() {
        assert!(headers(&message("orders.placed_v-2")).is_ok());
        for bad in ["", ".", "..", "a b", "a/b", "a\0b", "河道", &"k".repeat(250)] {
            assert!(headers(&message(bad)).is_err(), "{bad:?}");
        }
        let zero = Message { headers: vec![("a\0b".into(), "v".into())], ..message("orders") };
        assert!(headers(&zero).is_err_and(|reason| reason.contains("zero byte")));
    }

    #[test]
    fn the_names_on_the_wire_are_these() {
        let headers = headers(&message("orders")).unwrap();
        let names: Vec<&str> = headers.iter().map(|header| header.key).collect();
        assert_eq!(
            names,
            [
                "towpath-message-id",
                "towpath-message-type",
                "towpath-occurred-at",
                "towpath-content-type",
                "towpath-routing-key"
            ]
        );
    }
}
