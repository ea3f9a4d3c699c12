//! Formats: how an event becomes a message, and a message an event again.
//!
//! [`message`] writes the format of a channel. [`read`] recognises the format by itself: by the content type, or, for
//! CloudEvents in binary mode, by its headers. A payload is copied as text in both directions: `88.50` stays `88.50`.

mod cloud_events;
mod fields;
mod market;
mod own;

use towpath_core::channel::Format;
use towpath_core::envelope::EventEnvelope;
use towpath_core::incoming::IncomingEvent;
use towpath_core::ports::broker::{Destination, Message, Received};
use towpath_core::ports::store::BoxError;
use towpath_core::retry::ErrorClass;

/// Has the event's id on channels that follow the log: the id of a message there is its place in the log, so that who
/// receives can record channel and message id and knows what comes before and after.
pub const EVENT_ID_HEADER: &str = "x-event-id";

/// Why an event and a message do not go together. None of it is mended by trying again.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Nobody here reads messages like this one.
    #[error("a message of content type {content_type:?} is in no format that is known here")]
    Unknown {
        /// The content type, empty if there was none.
        content_type: String,
    },
    /// The body is not a JSON object.
    #[error("the body is not a JSON object, as {format} wants it")]
    NotAnObject {
        /// The format it claims to be in.
        format: &'static str,
        /// What the reader found.
        #[source]
        source: BoxError,
    },
    /// A field that the format wants is not there.
    #[error("the field {field} of {format} is missing")]
    MissingField {
        /// The format.
        format: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A field is there and cannot be used.
    #[error("the field {field} of {format} cannot be used")]
    BadField {
        /// The format.
        format: &'static str,
        /// The field.
        field: &'static str,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// The event has a value that the format has no way to write.
    #[error("the field {field} of {format} cannot hold {value:?}")]
    Unwritable {
        /// The format.
        format: &'static str,
        /// The field.
        field: &'static str,
        /// What it should hold.
        value: String,
    },
}

impl FormatError {
    /// A stable code; each has a section in the documentation.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "format-unknown",
            Self::NotAnObject { .. } => "format-not-an-object",
            Self::MissingField { .. } => "format-missing-field",
            Self::BadField { .. } => "format-bad-field",
            Self::Unwritable { .. } => "format-unwritable",
        }
    }

    /// How a retry decision sees it: the same message will be no better the next time.
    pub fn class(&self) -> ErrorClass {
        ErrorClass::Unrecoverable
    }

    /// What a person can do about it.
    pub fn next_step(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => {
                "Send application/vnd.towpath.event+json, a CloudEvent, or application/json with the market's fields."
            }
            Self::NotAnObject { .. } | Self::MissingField { .. } | Self::BadField { .. } => {
                "Correct the sender; the message can be edited and replayed as a dead letter."
            }
            Self::Unwritable { .. } => "Give the channel another format; Towpath's own can hold every event.",
        }
    }
}

/// An event as a message in a format. `source` is the base of a CloudEvent's source; without one it is `/towpath`.
///
/// # Errors
/// [`FormatError::Unwritable`] when the format cannot hold a value of this event.
pub fn message(
    format: Format,
    source: Option<&str>,
    event: &EventEnvelope,
    destination: Destination,
) -> Result<Message, FormatError> {
    let (content_type, headers, body) = match format {
        Format::Towpath => (own::CONTENT_TYPE, own::headers(event), own::write(event)?),
        Format::Market => (market::CONTENT_TYPE, Vec::new(), market::write(event)?),
        Format::CloudEvents => (cloud_events::CONTENT_TYPE, Vec::new(), cloud_events::write(event, source)?),
    };
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

/// The event in a message that has arrived.
///
/// # Errors
/// What is wrong with it, and in which field. All of it is unrecoverable.
pub fn read(received: &Received) -> Result<IncomingEvent, FormatError> {
    let content_type = received.content_type.as_deref().unwrap_or_default();
    // Parameters such as `; charset=utf-8` do not change what it is: JSON is always UTF-8.
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media_type.as_str() {
        own::CONTENT_TYPE => own::read(&received.body),
        cloud_events::CONTENT_TYPE => cloud_events::read(&received.body),
        _ if cloud_events::is_binary(&received.headers) => {
            cloud_events::read_binary(&received.headers, &received.body)
        }
        // People who publish by hand forget the content type; the body still has to be right.
        market::CONTENT_TYPE | "" => market::read(&received.body),
        _ => Err(FormatError::Unknown { content_type: content_type.to_owned() }),
    }
}

#[cfg(test)]
mod tests;
