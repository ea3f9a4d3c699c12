//! What people are told (O11): log lines with the fields of the contract, and alarms.
//!
//! An alarm is a line of level ERROR with a stable `code`. It says that somebody has to look.

use towpath::format::Formats;
use towpath::ids::EventId;
use towpath::ports::broker::Received;
use towpath::{Delivering, DeliveringOutcome, Publishing, PublishingOutcome, Watch};

use crate::envelope::{FORMAT_NAME, MarketEnvelope};
use crate::events::EventType;
use crate::texts;
use crate::topology::{CONSUMERS, DEAD_LETTER_QUEUE};

/// The alarm when an event could not be published.
const PUBLISHING_FAILED: &str = "market-publishing-failed";
/// The alarm when a message was given up.
const DELIVERY_GIVEN_UP: &str = "market-delivery-given-up";
/// The alarm when the dead-letter queue is not empty.
const DEAD_LETTER: &str = "market-dead-letter";

/// Tells of the market's own channels, consumers and dead letters.
pub(crate) struct Alarms {
    formats: Formats,
}

impl Default for Alarms {
    fn default() -> Self {
        Self { formats: Formats::default().with(MarketEnvelope) }
    }
}

impl Watch for Alarms {
    fn published(&self, publishing: &Publishing<'_>) {
        let Some(event_type) = EventType::ALL.into_iter().find(|one| one.channel() == publishing.channel)
        else {
            return;
        };
        let event = publishing.event;
        let trace_id = event.trace_id.as_ref().map(ToString::to_string).unwrap_or_default();
        let (event_id, queue) = (event.event_id, event_type.first_queue());
        match publishing.outcome {
            PublishingOutcome::Sent => {
                tracing::debug!(eventId = %event_id, traceId = trace_id, queue, consumer = "", "sent");
            }
            PublishingOutcome::Retried { reason, message } => tracing::warn!(
                eventId = %event_id, traceId = trace_id, queue, consumer = "", reason, cause = message,
                "{}", texts::NOT_SENT
            ),
            PublishingOutcome::GivenUp { reason, message } => tracing::error!(
                code = PUBLISHING_FAILED, eventId = %event_id, traceId = trace_id, queue, consumer = "", reason,
                cause = message, "{}", texts::NOT_SENT
            ),
        }
    }

    fn delivered(&self, delivering: &Delivering<'_>) {
        let consumer = delivering.handler;
        if !CONSUMERS.iter().any(|(handler, ..)| *handler == consumer) {
            return;
        }
        let event_id = told(delivering.event_id);
        let trace_id = delivering.trace_id.unwrap_or_default();
        let queue = delivering.message.queue.as_str();
        match delivering.outcome {
            DeliveringOutcome::Handled => {
                tracing::debug!(eventId = event_id, traceId = trace_id, queue, consumer, "handled");
            }
            DeliveringOutcome::Duplicate => tracing::info!(
                eventId = event_id,
                traceId = trace_id,
                queue,
                consumer,
                "{}",
                texts::ALREADY_HANDLED
            ),
            DeliveringOutcome::Retried { reason, message } => tracing::warn!(
                eventId = event_id,
                traceId = trace_id,
                queue,
                consumer,
                reason,
                cause = message,
                "{}",
                texts::NOT_HANDLED
            ),
            DeliveringOutcome::GivenUp { reason, message } => tracing::error!(
                code = DELIVERY_GIVEN_UP,
                eventId = event_id,
                traceId = trace_id,
                // What cannot be read has no event id.
                messageId = delivering.message.message_id.as_deref().unwrap_or_default(),
                queue,
                consumer,
                reason,
                cause = message,
                "{}",
                texts::NOT_HANDLED
            ),
        }
    }

    fn died(&self, message: &Received, event_id: Option<EventId>) {
        if message.queue != DEAD_LETTER_QUEUE {
            return;
        }
        let event = self.formats.read(message, Some(FORMAT_NAME)).ok();
        let trace_id =
            event.and_then(|event| event.trace_id).map(|trace| trace.to_string()).unwrap_or_default();
        tracing::error!(
            code = DEAD_LETTER,
            eventId = told(event_id),
            traceId = trace_id,
            messageId = message.message_id.as_deref().unwrap_or_default(),
            queue = message.queue,
            consumer = "",
            "{}",
            texts::NOT_HANDLED
        );
    }
}

fn told(event_id: Option<EventId>) -> String {
    event_id.map(|event_id| event_id.to_string()).unwrap_or_default()
}
