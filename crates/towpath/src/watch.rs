//! What an application can be told of while its facts are published and handled.
//!
//! A watcher looks and changes nothing: its answers are not asked for, and what it does must be quick. It is for logs,
//! counters and alarms in an application's own words; the library's own log lines are written all the same.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use towpath_core::envelope::EventEnvelope;
use towpath_core::ids::EventId;
use towpath_core::ports::broker::Received;

/// Is told what becomes of events on their way out and of deliveries on their way in.
pub trait Watch: Send + Sync + 'static {
    /// Something became of an event that was to be published.
    fn published(&self, _publishing: &Publishing<'_>) {}

    /// Something became of a delivery.
    fn delivered(&self, _delivering: &Delivering<'_>) {}

    /// A message of a dead-letter queue was read into the dead letters. `event_id` is there if it could be read.
    fn died(&self, _message: &Received, _event_id: Option<EventId>) {}
}

/// An event on its way out.
#[derive(Debug)]
pub struct Publishing<'a> {
    /// Which channel.
    pub channel: &'a str,
    /// The event.
    pub event: &'a EventEnvelope,
    /// What became of it.
    pub outcome: PublishingOutcome<'a>,
}

/// What became of an event that was to be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishingOutcome<'a> {
    /// The broker has confirmed it.
    Sent,
    /// It failed and is tried again.
    Retried {
        /// Stable code.
        reason: &'a str,
        /// What the broker said.
        message: &'a str,
    },
    /// It failed for the last time.
    GivenUp {
        /// Stable code.
        reason: &'a str,
        /// What the broker said.
        message: &'a str,
    },
}

/// A delivery on its way to a handler.
#[derive(Debug)]
pub struct Delivering<'a> {
    /// The handler.
    pub handler: &'a str,
    /// The message as it came.
    pub message: &'a Received,
    /// The event, if the message could be read.
    pub event_id: Option<EventId>,
    /// The trace of the event, if it has one.
    pub trace_id: Option<&'a str>,
    /// What became of it.
    pub outcome: DeliveringOutcome<'a>,
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveringOutcome<'a> {
    /// It was handled, and that is committed.
    Handled,
    /// It had been handled before: nothing was done.
    Duplicate,
    /// It failed and comes again.
    Retried {
        /// Stable code.
        reason: &'a str,
        /// What happened.
        message: &'a str,
    },
    /// It failed for the last time, or cannot be read.
    GivenUp {
        /// Stable code.
        reason: &'a str,
        /// What happened.
        message: &'a str,
    },
}

/// All watchers of an instance.
#[derive(Clone, Default)]
pub(crate) struct Watchers(pub(crate) Vec<Arc<dyn Watch>>);

impl Watchers {
    pub(crate) fn published(&self, publishing: &Publishing<'_>) {
        self.each(|watch| watch.published(publishing));
    }

    pub(crate) fn delivered(&self, delivering: &Delivering<'_>) {
        self.each(|watch| watch.delivered(delivering));
    }

    pub(crate) fn died(&self, message: &Received, event_id: Option<EventId>) {
        self.each(|watch| watch.died(message, event_id));
    }

    /// A watcher that panics changes nothing of what it watches.
    fn each(&self, tell: impl Fn(&dyn Watch)) {
        for watch in &self.0 {
            if std::panic::catch_unwind(AssertUnwindSafe(|| tell(watch.as_ref()))).is_err() {
                tracing::error!("a watcher panicked");
            }
        }
    }
}
