//! The frozen envelope of the market's contract (O2): seven fields, names and types to the letter.

use chrono::{DateTime, Datelike, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use towpath_core::envelope::EventEnvelope;
use towpath_core::ids::{AggregateId, AggregateKey, EventId, TraceId};
use towpath_core::incoming::IncomingEvent;
use towpath_core::name::EventName;
use towpath_core::payload::Payload;

use super::FormatError;
use super::fields::{Fields, written};

pub(super) const CONTENT_TYPE: &str = "application/json";

const FORMAT: &str = "the market's envelope";

/// The fields in the order of the contract.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MarketEvent<'e> {
    event_id: EventId,
    event_type: &'e str,
    aggregate_type: &'e str,
    aggregate_id: NumberOrText<'e>,
    occurred_at: String,
    trace_id: &'e str,
    payload: &'e Payload,
}

#[derive(Serialize)]
#[serde(untagged)]
enum NumberOrText<'e> {
    Number(i64),
    Text(&'e str),
}

pub(super) fn write(event: &EventEnvelope) -> Result<Vec<u8>, FormatError> {
    let body = MarketEvent {
        event_id: event.event_id,
        event_type: event.event_type.as_str(),
        aggregate_type: event.aggregate.kind.as_str(),
        aggregate_id: number_or_text(&event.aggregate.id),
        occurred_at: rfc3339(FORMAT, "occurredAt", event.occurred_at, SecondsFormat::Secs)?,
        trace_id: &trace_id(event),
        payload: &event.payload,
    };
    written(FORMAT, &body)
}

pub(super) fn read(body: &[u8]) -> Result<IncomingEvent, FormatError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Id {
        Number(i64),
        Text(String),
    }
    let fields = Fields::of_body(FORMAT, body)?;
    let event_id = fields.required("eventId")?;
    let event_type = EventName::from_stored(fields.text("eventType")?);
    let kind = fields.required("aggregateType")?;
    let id = match fields.required("aggregateId")? {
        Id::Number(number) => number.to_string(),
        Id::Text(text) => text,
    };
    let id = AggregateId::new(id).map_err(|source| fields.bad("aggregateId", source))?;
    let trace: String = fields.text("traceId")?;
    Ok(IncomingEvent {
        event_id,
        schema_version: None,
        event_type,
        aggregate: Some(AggregateKey { kind, id }),
        aggregate_version: None,
        occurred_at: Some(fields.required("occurredAt")?),
        correlation_id: None,
        causation_id: None,
        trace_id: Some(TraceId::new(trace).map_err(|source| fields.bad("traceId", source))?),
        payload: fields.payload("payload")?.ok_or_else(|| fields.missing("payload"))?,
    })
}

/// The contract has no event without a trace. Its flow is the next best thing to follow; one whose id is longer than a
/// trace may be gives way to the event itself.
fn trace_id(event: &EventEnvelope) -> String {
    let flow = event.correlation_id.as_str();
    match &event.trace_id {
        Some(trace) => trace.to_string(),
        None if flow.chars().count() <= TraceId::MAX_CHARACTERS => flow.to_owned(),
        None => event.event_id.to_string(),
    }
}

/// The contract's ids are numbers. `007` stays a text: as a number it would be another id.
fn number_or_text(id: &AggregateId) -> NumberOrText<'_> {
    let text = id.as_str();
    match text.parse::<i64>() {
        Ok(number) if number >= 0 && number.to_string() == text => NumberOrText::Number(number),
        _ => NumberOrText::Text(text),
    }
}

/// A moment as RFC 3339 in UTC. Years of more than four digits have no such form.
pub(super) fn rfc3339(
    format: &'static str,
    field: &'static str,
    moment: DateTime<Utc>,
    precision: SecondsFormat,
) -> Result<String, FormatError> {
    let text = moment.to_rfc3339_opts(precision, true);
    if (0..=9999).contains(&moment.year()) {
        Ok(text)
    } else {
        Err(FormatError::Unwritable { format, field, value: text })
    }
}
