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

/// A line with the four fields of the contract (event id, trace id, queue, consumer), a text, and what else there is to say.
macro_rules! tell {
    ($level:ident, $fields:expr, $text:expr $(; $($more:tt)+)?) => {{
        let (event_id, trace_id, queue, consumer) = &$fields;
        tracing::$level!(
            eventId = event_id, traceId = trace_id, queue, consumer, $($($more)+,)? "{}", $text
        )
    }};
}
pub(crate) use tell;

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
        let Some(of) = EventType::ALL.into_iter().find(|one| one.channel() == publishing.channel) else {
            return;
        };
        let event = publishing.event;
        let fields = (event.event_id.to_string(), text(event.trace_id.as_ref()), of.first_queue(), "");
        match publishing.outcome {
            PublishingOutcome::Sent => tell!(debug, fields, "sent"),
            PublishingOutcome::Retried { reason, message: cause } => {
                tell!(warn, fields, texts::NOT_SENT; reason, cause);
            }
            PublishingOutcome::GivenUp { reason, message: cause } => {
                tell!(error, fields, texts::NOT_SENT; code = PUBLISHING_FAILED, reason, cause);
            }
        }
    }

    fn delivered(&self, delivering: &Delivering<'_>) {
        let Delivering { handler, message, event_id, trace_id, outcome, .. } = *delivering;
        if !CONSUMERS.iter().any(|(known, ..)| *known == handler) {
            return;
        }
        let fields = (text(event_id), trace_id.unwrap_or_default(), message.queue.as_str(), handler);
        match outcome {
            DeliveringOutcome::Handled => tell!(debug, fields, "handled"),
            DeliveringOutcome::Duplicate => tell!(info, fields, texts::ALREADY_HANDLED),
            DeliveringOutcome::Retried { reason, message: cause } => {
                tell!(warn, fields, texts::NOT_HANDLED; reason, cause);
            }
            DeliveringOutcome::GivenUp { reason, message: cause } => {
                // What cannot be read has no event id.
                let id = text(message.message_id.as_ref());
                tell!(error, fields, texts::NOT_HANDLED; code = DELIVERY_GIVEN_UP, messageId = id, reason, cause);
            }
        }
    }

    fn died(&self, message: &Received, event_id: Option<EventId>) {
        if message.queue != DEAD_LETTER_QUEUE {
            return;
        }
        let trace_id = self.formats.read(message, Some(FORMAT_NAME)).ok().and_then(|event| event.trace_id);
        let fields = (text(event_id), text(trace_id), message.queue.as_str(), "");
        let id = text(message.message_id.as_ref());
        tell!(error, fields, texts::NOT_HANDLED; code = DEAD_LETTER, messageId = id);
    }
}

fn text(id: Option<impl ToString>) -> String {
    id.map(|id| id.to_string()).unwrap_or_default()
}
