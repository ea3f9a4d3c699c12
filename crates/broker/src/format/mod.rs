//! The formats that channels can be in: Towpath's own, CloudEvents, and those that applications bring.

mod cloud_events;
mod own;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use towpath_core::channel::Channel;
use towpath_core::envelope::EventEnvelope;
use towpath_core::format::{Format, FormatError, Written};
use towpath_core::incoming::IncomingEvent;
use towpath_core::ports::broker::{Destination, Message, Received};

use cloud_events::CloudEvents;
use own::Own;

/// Has the event's id on channels that follow the log: the id of a message there is its place in the log, so that who
/// receives can record channel and message id and knows what comes before and after.
pub const EVENT_ID_HEADER: &str = "x-event-id";

/// How many formats are our own. They come first, and say so of themselves alone.
const OURS: usize = 2;

/// The formats that are known, by their names. Clones share them.
#[derive(Clone)]
pub struct Formats(Vec<Arc<dyn Format>>);

impl Default for Formats {
    /// Towpath's own, and CloudEvents.
    fn default() -> Self {
        Self(vec![Arc::new(Own), Arc::new(CloudEvents)])
    }
}

impl Formats {
    /// These and one more. The first one of a name counts.
    pub fn with(mut self, format: impl Format) -> Self {
        self.0.push(Arc::new(format));
        self
    }

    /// Whether a format has the name.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|format| format.name() == name)
    }

    /// The format of a name.
    ///
    /// # Errors
    /// [`FormatError::NotRegistered`], with the names that there are.
    pub fn named(&self, name: &str) -> Result<&dyn Format, FormatError> {
        let found = self.0.iter().find(|format| format.name() == name);
        found.map(AsRef::as_ref).ok_or_else(|| {
            let known: Vec<&str> = self.names().collect();
            FormatError::NotRegistered { format: name.to_owned(), known: known.join(", ") }
        })
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|format| format.name())
    }

    /// An event as a message, in the format of a channel.
    ///
    /// # Errors
    /// [`FormatError::Unwritable`] when the format cannot hold a value of this event.
    pub fn message(
        &self,
        channel: &Channel,
        event: &EventEnvelope,
        destination: Destination,
    ) -> Result<Message, FormatError> {
        let format = self.named(&channel.format)?;
        let Written { content_type, headers, body } = guarded(|| format.write(event, channel))?;
        Ok(Message {
            destination,
            message_id: event.event_id.to_string(),
            message_type: event.event_type.to_string(),
            key: event.aggregate.to_string(),
            occurred_at: event.occurred_at,
            content_type: content_type.to_owned(),
            headers,
            body,
        })
    }

    /// The event in a message that has arrived. A message says by itself which format it is in. Where several would take it,
    /// the one that the receiver names does; one without a content type is read in that one only.
    ///
    /// # Errors
    /// What is wrong with it, and in which field. All of it is unrecoverable.
    pub fn read(&self, received: &Received, named: Option<&str>) -> Result<IncomingEvent, FormatError> {
        let (ours, others) = self.0.split_at(self.0.len().min(OURS));
        let named = named.map(|name| self.named(name)).transpose()?;
        guarded(|| {
            let recognises = |format: &&Arc<dyn Format>| format.recognises(received);
            // People who publish by hand forget the content type; the body still has to be right.
            let named = named.filter(|named| received.media_type().is_empty() || named.recognises(received));
            let ours = ours.iter().find(recognises).map(AsRef::as_ref);
            match ours.or(named).or_else(|| others.iter().find(recognises).map(AsRef::as_ref)) {
                Some(format) => format.read(received),
                None => {
                    let content_type = received.content_type.clone().unwrap_or_default();
                    Err(FormatError::Unknown { content_type })
                }
            }
        })
    }
}

/// Runs a format's own code: a bug in one must not end the worker that reads or publishes for all.
fn guarded<T>(run: impl FnOnce() -> Result<T, FormatError>) -> Result<T, FormatError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(FormatError::Panicked))
}

#[cfg(test)]
mod tests;
