//! How a message looks on the wire, in both directions.

use chrono::{DateTime, SecondsFormat, Utc};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use towpath_core::ports::broker::{DeliveryTag, Destination, Message, Received};

/// The time of the event to the letter: the property `timestamp` holds whole seconds only.
pub const OCCURRED_AT_HEADER: &str = "towpath-occurred-at";

/// What keeps the order of a message: its aggregate.
pub const KEY_HEADER: &str = "towpath-key";

/// The queue that gave a message up last.
const LAST_DEATH_QUEUE: &str = "x-last-death-queue";

/// Why it did.
const LAST_DEATH_REASON: &str = "x-last-death-reason";

/// Survives a restart of the broker, in a durable queue.
const PERSISTENT: u8 = 2;

/// A message ready to be sent, but for its body.
pub(super) struct Outgoing {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
}

/// Translates a message.
///
/// # Errors
/// Why it does not fit into AMQP. It must not be tried: lapin panics over a name that is too long, and the broker
/// closes the whole connection over properties that do not fit into a frame.
pub(super) fn outgoing(message: &Message, frame_max: u32) -> Result<Outgoing, String> {
    let mut size = 256 + message.message_id.len() + message.message_type.len() + message.content_type.len();
    let mut headers = FieldTable::default();
    for (name, value) in &message.headers {
        size += name.len() + value.len() + 6;
        headers.insert(short("header name", name)?, text(value.as_str()));
    }
    let occurred_at = message.occurred_at.to_rfc3339_opts(SecondsFormat::AutoSi, true);
    headers.insert(short("header name", OCCURRED_AT_HEADER)?, text(occurred_at));
    size += KEY_HEADER.len() + message.key.len() + 6;
    headers.insert(short("header name", KEY_HEADER)?, text(message.key.as_str()));
    if frame_max > 0 && size > frame_max as usize {
        return Err(format!("its headers take {size} bytes, the broker allows {frame_max}"));
    }
    let mut properties = BasicProperties::default()
        .with_message_id(short("message id", &message.message_id)?)
        .with_type(short("message type", &message.message_type)?)
        .with_content_type(short("content type", &message.content_type)?)
        .with_delivery_mode(PERSISTENT)
        .with_headers(headers);
    // AMQP has no time before 1970; the header still tells it.
    if let Ok(seconds) = u64::try_from(message.occurred_at.timestamp()) {
        properties = properties.with_timestamp(seconds);
    }
    Ok(Outgoing {
        exchange: short("exchange", &message.destination.exchange)?,
        routing_key: short("routing key", &message.destination.routing_key)?,
        properties,
    })
}

/// Translates what has arrived.
pub(super) fn received(queue: &str, delivery: Delivery) -> Received {
    let Delivery { delivery_tag, exchange, routing_key, redelivered, properties, data, .. } = delivery;
    let mut headers = Vec::new();
    let (mut occurred_at, mut key) = (None, None);
    for (name, value) in properties.headers().iter().flatten() {
        let value = shown(value);
        if name.as_str() == OCCURRED_AT_HEADER {
            occurred_at = DateTime::parse_from_rfc3339(&value).ok().map(|time| time.with_timezone(&Utc));
        } else if name.as_str() == KEY_HEADER {
            key = Some(value);
        } else {
            headers.push((name.to_string(), value));
        }
    }
    headers.extend(last_death(&properties));
    let timestamp = || {
        let seconds = i64::try_from((*properties.timestamp())?).ok()?;
        DateTime::from_timestamp(seconds, 0)
    };
    Received {
        tag: DeliveryTag(delivery_tag),
        queue: queue.to_owned(),
        message_id: properties.message_id().as_ref().map(ToString::to_string),
        message_type: properties.kind().as_ref().map(ToString::to_string),
        occurred_at: occurred_at.or_else(timestamp),
        key,
        content_type: properties.content_type().as_ref().map(ToString::to_string),
        destination: Destination { exchange: exchange.into(), routing_key: routing_key.into() },
        headers: headers.into(),
        redelivered,
        body: data,
    }
}

/// A name as AMQP allows it: at most 255 bytes.
pub(super) fn short(what: &str, text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text).map_err(|_| format!("its {what} takes {} bytes, AMQP allows 255", text.len()))
}

pub(super) fn text(text: impl Into<LongString>) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// Which queue gave a message up last, and why. Newer brokers say it themselves; older ones only in their list of deaths,
/// the latest first.
fn last_death(properties: &BasicProperties) -> Vec<(String, String)> {
    fn find<'t>(table: &'t FieldTable, name: &str) -> Option<&'t AMQPValue> {
        table.into_iter().find(|(found, _)| found.as_str() == name).map(|(_, value)| value)
    }
    let Some(headers) = properties.headers() else { return Vec::new() };
    let Some(AMQPValue::FieldArray(deaths)) = find(headers, "x-death") else { return Vec::new() };
    let Some(AMQPValue::FieldTable(death)) = deaths.as_slice().first() else { return Vec::new() };
    [(LAST_DEATH_QUEUE, "queue"), (LAST_DEATH_REASON, "reason")]
        .into_iter()
        .filter(|(header, _)| find(headers, header).is_none())
        .filter_map(|(header, field)| Some((header.to_owned(), shown(find(death, field)?))))
        .collect()
}

/// A property as a text: texts to the letter, the broker's own tables (`x-death`) to be read by people.
fn shown(value: &AMQPValue) -> String {
    let list = |items: Vec<String>, open: char, close: char| format!("{open}{}{close}", items.join(", "));
    match value {
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::Float(value) => value.to_string(),
        AMQPValue::Double(value) => value.to_string(),
        AMQPValue::DecimalValue(value) => format!("{}e-{}", value.value, value.scale),
        AMQPValue::ShortString(value) => value.to_string(),
        AMQPValue::LongString(value) => value.to_string(),
        AMQPValue::Timestamp(value) => i64::try_from(*value)
            .ok()
            .and_then(|seconds| DateTime::from_timestamp(seconds, 0))
            .map_or_else(|| value.to_string(), |time| time.to_rfc3339_opts(SecondsFormat::Secs, true)),
        AMQPValue::ByteArray(value) => String::from_utf8_lossy(value.as_slice()).into_owned(),
        AMQPValue::FieldArray(values) => list(values.as_slice().iter().map(shown).collect(), '[', ']'),
        AMQPValue::FieldTable(table) => list(
            table.into_iter().map(|(name, value)| format!("{name}: {}", shown(value))).collect(),
            '{',
            '}',
        ),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message {
            destination: Destination { exchange: "e".into(), routing_key: "k".into() },
            message_id: "id".into(),
            message_type: "type".into(),
            key: "key".into(),
            occurred_at: DateTime::from_timestamp(-1, 5).unwrap(),
            content_type: "application/json".into(),
            headers: vec![("trace".into(), "🛶".into())],
            body: Vec::new(),
        }
    }

    #[test]
    fn what_does_not_fit_into_amqp_is_refused_before_it_is_sent() {
        assert!(outgoing(&message(), 131_072).is_ok());
        let long = "k".repeat(256);
        for (broken, what) in [
            (Message { message_id: long.clone(), ..message() }, "message id"),
            (Message { message_type: long.clone(), ..message() }, "message type"),
            (Message { content_type: long.clone(), ..message() }, "content type"),
            (
                Message {
                    destination: Destination { exchange: "e".into(), routing_key: long.clone() },
                    ..message()
                },
                "routing key",
            ),
            (Message { headers: vec![(long, String::new())], ..message() }, "header name"),
            (Message { headers: vec![("h".into(), "v".repeat(131_072))], ..message() }, "headers"),
        ] {
            let reason = outgoing(&broken, 131_072).err().unwrap();
            assert!(reason.contains(what), "{reason}");
        }
    }
}
