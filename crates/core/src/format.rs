//! Formats: how an event becomes a message, and a message an event again.
//!
//! A format is open: an application brings its own and registers it, and channels and consumers name it. A payload is
//! copied as text in both directions: `88.50` stays `88.50`.

mod fields;

use chrono::{DateTime, Datelike, SecondsFormat, Utc};

use crate::channel::Channel;
use crate::envelope::EventEnvelope;
use crate::incoming::IncomingEvent;
use crate::ports::broker::Received;
use crate::ports::store::BoxError;
use crate::retry::{Coded, ErrorClass};

pub use fields::Fields;

/// The name of Towpath's own format, which can hold every event. Channels have it unless they name another.
pub const TOWPATH: &str = "towpath";

/// The name of CloudEvents 1.0 in structured JSON.
pub const CLOUD_EVENTS: &str = "cloud-events";

/// How an event looks as a message.
pub trait Format: Send + Sync + 'static {
    /// By which channels, consumers and configuration files name it. Never to be changed.
    fn name(&self) -> &'static str;

    /// The event as a message on a channel.
    ///
    /// # Errors
    /// [`FormatError::Unwritable`] when it cannot hold a value of this event.
    fn write(&self, event: &EventEnvelope, channel: &Channel) -> Result<Written, FormatError>;

    /// Whether a message says of itself that it is in this format, by its content type or its headers. A message without a
    /// content type says nothing: it is read in the format that its consumer names.
    fn recognises(&self, received: &Received) -> bool;

    /// The event in a message.
    ///
    /// # Errors
    /// What is wrong with it, and in which field.
    fn read(&self, received: &Received) -> Result<IncomingEvent, FormatError>;
}

/// What a format makes of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// What the body is.
    pub content_type: &'static str,
    /// What a receiver may want to know before it reads the body.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Written {
    /// A body of JSON, without headers. `format` is how errors call the format.
    ///
    /// # Errors
    /// [`FormatError::Unwritable`]: texts, numbers and checked JSON cannot fail; if they do, it is told.
    pub fn json(
        format: &'static str,
        content_type: &'static str,
        body: &impl serde::Serialize,
    ) -> Result<Self, FormatError> {
        let body = serde_json::to_vec(body).map_err(|error| FormatError::Unwritable {
            format,
            field: "body",
            value: error.to_string(),
        })?;
        Ok(Self { content_type, headers: Vec::new(), body })
    }
}

/// A moment as RFC 3339 in UTC.
///
/// # Errors
/// [`FormatError::Unwritable`] for a year of more than four digits, which has no such form.
pub fn rfc3339(
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

/// Why an event and a message do not go together. None of it is mended by trying again.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// A channel or a consumer names a format that nobody has registered.
    #[error("no format is called {format:?} here; there are {known}")]
    NotRegistered {
        /// The name.
        format: String,
        /// Those that there are.
        known: String,
    },
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
    /// The format's own code panicked.
    #[error("the format of a message panicked")]
    Panicked,
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

impl Coded for FormatError {
    fn code(&self) -> &'static str {
        match self {
            Self::NotRegistered { .. } => "format-not-registered",
            Self::Unknown { .. } => "format-unknown",
            Self::NotAnObject { .. } => "format-not-an-object",
            Self::MissingField { .. } => "format-missing-field",
            Self::BadField { .. } => "format-bad-field",
            Self::Panicked => "format-panicked",
            Self::Unwritable { .. } => "format-unwritable",
        }
    }

    fn class(&self) -> ErrorClass {
        ErrorClass::Unrecoverable
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::Panicked => "This is a bug in the format; the log has the panic.",
            Self::NotRegistered { .. } => {
                "Correct the name, or register the format: builder.format(…), or the application that brings it."
            }
            Self::Unknown { .. } => {
                "Send application/vnd.towpath.event+json, a CloudEvent, or the content type of a format that is \
                 registered; without a content type the consumer must name its format."
            }
            Self::NotAnObject { .. } | Self::MissingField { .. } | Self::BadField { .. } => {
                "Correct the sender; the message can be edited and replayed as a dead letter."
            }
            Self::Unwritable { .. } => "Give the channel another format; Towpath's own can hold every event.",
        }
    }
}
