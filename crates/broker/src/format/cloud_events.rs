//! CloudEvents 1.0: written in structured mode, read in structured and binary mode.

use std::collections::BTreeMap;

use chrono::SecondsFormat;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use towpath_core::channel::Channel;
use towpath_core::envelope::EventEnvelope;
use towpath_core::format::{CLOUD_EVENTS, Fields, Format, FormatError, Written, rfc3339};
use towpath_core::ids::{AggregateKey, CorrelationId, EventId, TraceId, Version};
use towpath_core::incoming::IncomingEvent;
use towpath_core::name::EventName;
use towpath_core::payload::Payload;
use towpath_core::ports::broker::Received;

const CONTENT_TYPE: &str = "application/cloudevents+json";

const FORMAT: &str = "CloudEvents";

const SPEC_VERSION: &str = "1.0";

/// The base of the source when a channel gives none.
const DEFAULT_SOURCE: &str = "/towpath";

/// How headers of binary mode begin: by HTTP and Kafka, by Kafka, and the two spellings of AMQP.
const PREFIXES: [&str; 4] = ["ce-", "ce_", "cloudevents:", "cloudevents_"];

/// CloudEvents 1.0.
pub(super) struct CloudEvents;

impl Format for CloudEvents {
    fn name(&self) -> &'static str {
        CLOUD_EVENTS
    }

    fn write(&self, event: &EventEnvelope, channel: &Channel) -> Result<Written, FormatError> {
        write(event, channel.source.as_deref())
    }

    fn recognises(&self, received: &Received) -> bool {
        is_structured(received) || is_binary(&received.headers)
    }

    fn read(&self, received: &Received) -> Result<IncomingEvent, FormatError> {
        if is_binary(&received.headers) && !is_structured(received) {
            read_binary(&received.headers, &received.body)
        } else {
            read(&received.body)
        }
    }
}

fn is_structured(received: &Received) -> bool {
    received.media_type() == CONTENT_TYPE
}

#[derive(Serialize)]
struct CloudEvent<'e> {
    specversion: &'static str,
    id: EventId,
    source: String,
    #[serde(rename = "type")]
    event_type: &'e str,
    subject: &'e str,
    time: String,
    datacontenttype: &'static str,
    partitionkey: String,
    aggregateversion: NumberOrText,
    correlationid: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    causationid: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceid: Option<&'e str>,
    data: &'e Payload,
}

/// Numbers of CloudEvents have 32 bits; longer ones are texts.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(i32),
    Text(String),
}

fn write(event: &EventEnvelope, source: Option<&str>) -> Result<Written, FormatError> {
    let kind = event.aggregate.kind.as_str();
    let base = source.unwrap_or(DEFAULT_SOURCE).trim_end_matches('/');
    let trace = event.trace_id.as_ref().map(TraceId::as_str);
    let version = event.aggregate_version;
    let body = CloudEvent {
        specversion: SPEC_VERSION,
        id: event.event_id,
        source: format!("{base}/{}", percent_encoded(kind)),
        event_type: event.event_type.as_str(),
        subject: event.aggregate.id.as_str(),
        time: rfc3339(FORMAT, "time", event.occurred_at, SecondsFormat::AutoSi)?,
        datacontenttype: "application/json",
        partitionkey: event.aggregate.to_string(),
        aggregateversion: i32::try_from(version)
            .map_or_else(|_| NumberOrText::Text(version.to_string()), NumberOrText::Number),
        correlationid: event.correlation_id.as_str(),
        causationid: event.causation_id.as_ref().map(|id| id.as_str()),
        traceparent: trace.filter(|trace| is_trace_parent(trace)),
        traceid: trace.filter(|trace| !is_trace_parent(trace)),
        data: &event.payload,
    };
    Written::json(FORMAT, CONTENT_TYPE, &body)
}

/// Structured mode: the body is the event.
fn read(body: &[u8]) -> Result<IncomingEvent, FormatError> {
    let fields = Fields::of_body(FORMAT, body)?;
    if fields.has("data_base64") {
        return Err(fields.bad("data_base64", "binary data has no place in a JSON payload"));
    }
    // An event without data is allowed, and says nothing beyond its type.
    let payload = match fields.payload("data")? {
        Some(payload) => payload,
        None => Payload::from_text("null").map_err(|source| fields.bad("data", source))?,
    };
    event(&fields, payload)
}

/// Whether headers are those of an event in binary mode.
fn is_binary(headers: &[(String, String)]) -> bool {
    headers.iter().any(|(name, _)| attribute(name).as_deref() == Some("specversion"))
}

/// Binary mode: attributes are headers, the body is the data.
fn read_binary(headers: &[(String, String)], body: &[u8]) -> Result<IncomingEvent, FormatError> {
    let mut values: BTreeMap<String, Box<RawValue>> = BTreeMap::new();
    for (name, value) in headers {
        if let Some(attribute) = attribute(name) {
            let value = to_raw_value(value)
                .map_err(|source| FormatError::NotAnObject { format: FORMAT, source: source.into() })?;
            values.insert(attribute, value);
        }
    }
    let fields = Fields::of_values(FORMAT, values);
    let text = if body.is_empty() {
        "null"
    } else {
        std::str::from_utf8(body).map_err(|source| fields.bad("data", source))?
    };
    let payload = Payload::from_text(text).map_err(|source| fields.bad("data", source))?;
    event(&fields, payload)
}

fn event(fields: &Fields, payload: Payload) -> Result<IncomingEvent, FormatError> {
    let version = fields.text("specversion")?;
    if version != SPEC_VERSION {
        return Err(fields.bad("specversion", format!("{version:?} is not {SPEC_VERSION:?}")));
    }
    let source = fields.text("source")?;
    let traceparent: Option<TraceId> = fields.optional("traceparent")?;
    let trace_id = match traceparent {
        Some(trace) => Some(trace),
        None => fields.optional("traceid")?,
    };
    Ok(IncomingEvent {
        event_id: fields.required("id")?,
        schema_version: None,
        event_type: EventName::from_stored(fields.text("type")?),
        aggregate: aggregate(fields, &source)?,
        aggregate_version: aggregate_version(fields)?,
        occurred_at: fields.optional("time")?,
        correlation_id: fields.optional::<CorrelationId>("correlationid")?,
        causation_id: fields.optional("causationid")?,
        trace_id,
        payload,
    })
}

/// The subject is the aggregate's id. Its kind stands before it in the partition key, and at the end of a source of
/// ours. Events of others have a subject that is no aggregate.
fn aggregate(fields: &Fields, source: &str) -> Result<Option<AggregateKey>, FormatError> {
    let Some(id) = fields.optional::<String>("subject")? else { return Ok(None) };
    let partition_key = fields.optional::<String>("partitionkey")?;
    let by_key = partition_key.as_deref().and_then(|key| key.strip_suffix(&id)?.strip_suffix('/'));
    let by_source = || source.strip_prefix(DEFAULT_SOURCE)?.strip_prefix('/').and_then(percent_decoded);
    let Some(kind) = by_key.map(str::to_owned).or_else(by_source) else { return Ok(None) };
    AggregateKey::new(kind, id).map(Some).map_err(|source| fields.bad("subject", source))
}

fn aggregate_version(fields: &Fields) -> Result<Option<Version>, FormatError> {
    let bad = |error: &dyn std::fmt::Display| fields.bad("aggregateversion", error.to_string());
    match fields.optional("aggregateversion")? {
        None => Ok(None),
        Some(NumberOrText::Number(number)) => {
            Version::try_from(number).map(Some).map_err(|error| bad(&error))
        }
        Some(NumberOrText::Text(text)) => text.parse().map(Some).map_err(|error| bad(&error)),
    }
}

/// The attribute a header stands for.
fn attribute(header: &str) -> Option<String> {
    let header = header.to_ascii_lowercase();
    PREFIXES.iter().find_map(|prefix| header.strip_prefix(prefix)).map(str::to_owned)
}

/// Whether a trace is a W3C traceparent, `00-<32 hex>-<16 hex>-<2 hex>`.
fn is_trace_parent(trace: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    let parts: Vec<&str> = trace.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [2, 32, 16, 2] && parts.iter().all(|part| is_hex(part))
}

/// A text as one segment of a URI reference.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// One segment of a URI reference as a text; `None` if it is not one.
fn percent_decoded(segment: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'/' => return None,
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                decoded.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
            }
            byte => decoded.push(byte),
        }
    }
    String::from_utf8(decoded).ok()
}
