//! The frozen envelope of messages (O2): seven fields, names and types to the letter.

use std::borrow::Cow;

use chrono::SecondsFormat;
use serde::{Deserialize, Serialize};
use towpath::format::{Fields, Format, FormatError, Written, rfc3339};
use towpath::ids::{AggregateId, AggregateKey, EventId, TraceId};
use towpath::name::EventName;
use towpath::ports::broker::Received;
use towpath::{Channel, EventEnvelope, IncomingEvent, Payload};

/// By which channels, consumers and configuration files name the format.
pub const FORMAT_NAME: &str = "market";

const CONTENT_TYPE: &str = "application/json";
const FORMAT: &str = "the market's envelope";

/// The contract's format of messages.
#[derive(Debug, Clone, Copy)]
pub struct MarketEnvelope;

impl Format for MarketEnvelope {
    fn name(&self) -> &'static str {
        FORMAT_NAME
    }

    fn write(&self, event: &EventEnvelope, _: &Channel) -> Result<Written, FormatError> {
        let body = MarketEvent {
            event_id: event.event_id,
            event_type: event.event_type.as_str(),
            aggregate_type: event.aggregate.kind.as_str(),
            aggregate_id: number_or_text(&event.aggregate.id),
            occurred_at: rfc3339(FORMAT, "occurredAt", event.occurred_at, SecondsFormat::Secs)?,
            trace_id: &trace_id(event),
            payload: &event.payload,
        };
        Written::json(FORMAT, CONTENT_TYPE, &body)
    }

    fn recognises(&self, received: &Received) -> bool {
        received.media_type() == CONTENT_TYPE
    }

    fn read(&self, received: &Received) -> Result<IncomingEvent, FormatError> {
        let fields = Fields::of_body(FORMAT, &received.body)?;
        let event_id = fields.required("eventId")?;
        let event_type = EventName::from_stored(fields.text("eventType")?);
        let kind = fields.required("aggregateType")?;
        let id = match fields.required("aggregateId")? {
            NumberOrText::Number(number) => number.to_string(),
            NumberOrText::Text(text) => text.into_owned(),
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
}

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

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum NumberOrText<'e> {
    Number(i64),
    Text(Cow<'e, str>),
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
        _ => NumberOrText::Text(text.into()),
    }
}

#[cfg(test)]
mod tests;
