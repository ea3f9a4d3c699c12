//! The fields of a JSON object, each as its exact text, with errors that name the field.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::FormatError;
use crate::payload::Payload;
use crate::ports::store::BoxError;

/// The fields of a message in some format.
pub struct Fields {
    format: &'static str,
    values: BTreeMap<String, Box<RawValue>>,
}

impl Fields {
    /// Reads the body of a message. `format` is how errors call the format.
    ///
    /// # Errors
    /// [`FormatError::NotAnObject`].
    pub fn of_body(format: &'static str, body: &[u8]) -> Result<Self, FormatError> {
        let values = serde_json::from_slice(body)
            .map_err(|source| FormatError::NotAnObject { format, source: source.into() })?;
        Ok(Self { format, values })
    }

    /// Takes fields that came one by one.
    pub fn of_values(format: &'static str, values: BTreeMap<String, Box<RawValue>>) -> Self {
        Self { format, values }
    }

    /// A field that may be missing. `null` says the same as nothing.
    pub fn optional<T: DeserializeOwned>(&self, field: &'static str) -> Result<Option<T>, FormatError> {
        match self.values.get(field).filter(|value| value.get() != "null") {
            None => Ok(None),
            Some(value) => {
                serde_json::from_str(value.get()).map(Some).map_err(|source| self.bad(field, source))
            }
        }
    }

    /// A field that must be there.
    pub fn required<T: DeserializeOwned>(&self, field: &'static str) -> Result<T, FormatError> {
        self.optional(field)?.ok_or(FormatError::MissingField { format: self.format, field })
    }

    /// A text that must be there and say something.
    pub fn text(&self, field: &'static str) -> Result<String, FormatError> {
        let text: String = self.required(field)?;
        if text.is_empty() { Err(self.bad(field, "it is empty")) } else { Ok(text) }
    }

    /// The payload, if it is there. Here `null` is a value.
    pub fn payload(&self, field: &'static str) -> Result<Option<Payload>, FormatError> {
        let read =
            |value: &RawValue| Payload::from_text(value.get()).map_err(|source| self.bad(field, source));
        self.values.get(field).map(|value| read(value)).transpose()
    }

    /// The field is there and cannot be used.
    pub fn bad(&self, field: &'static str, source: impl Into<BoxError>) -> FormatError {
        FormatError::BadField { format: self.format, field, source: source.into() }
    }

    /// The field is not there.
    pub fn missing(&self, field: &'static str) -> FormatError {
        FormatError::MissingField { format: self.format, field }
    }

    /// Whether the field is there at all.
    pub fn has(&self, field: &str) -> bool {
        self.values.contains_key(field)
    }
}
