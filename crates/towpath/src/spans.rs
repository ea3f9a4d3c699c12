//! Spans: to which command, event and consumer a log line or a trace belongs.
//!
//! Those of the target `towpath::spans` are for traces. They are of level DEBUG: a log that shows INFO makes none of
//! them. The consumer's is of level INFO, so that every line carries its fields, those of the handler included (O11).

use tracing::Span;
use tracing::field::{Empty, display};

use towpath_core::envelope::EventEnvelope;
use towpath_core::incoming::IncomingEvent;
use towpath_core::ports::store::NewCommand;

/// Around a command, from its load to its answer.
pub(crate) fn command(command: &NewCommand) -> Span {
    tracing::debug_span!(
        target: "towpath::spans",
        "command",
        commandId = %command.command_id,
        commandType = %command.command_type,
        aggregate = %command.aggregate,
        correlationId = %command.context.correlation_id,
        traceId = command.context.trace_id.as_ref().map(display),
    )
}

/// Around the publishing of a batch: one for each event of it.
pub(crate) fn publish(channel: &str, queue: &str, event: &EventEnvelope) -> Span {
    tracing::debug_span!(
        target: "towpath::spans",
        "publish",
        channel,
        exchange = queue,
        eventId = %event.event_id,
        eventType = %event.event_type,
        correlationId = %event.correlation_id,
        traceId = event.trace_id.as_ref().map(display),
        outcome = Empty,
    )
}

/// Around an attempt to handle deliveries. A batch has no single event: its span says how many there are.
pub(crate) fn consume(queue: &str, consumer: &str, events: &[&IncomingEvent]) -> Span {
    let span = tracing::info_span!(
        target: "towpath::consumer",
        "consume",
        queue,
        consumer,
        eventId = Empty,
        traceId = Empty,
        events = Empty,
    );
    match events {
        [event] => {
            span.record("eventId", display(event.event_id));
            if let Some(trace_id) = &event.trace_id {
                span.record("traceId", display(trace_id));
            }
        }
        events => {
            span.record("events", events.len());
        }
    }
    span
}
