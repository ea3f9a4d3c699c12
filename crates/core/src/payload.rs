//! A payload: one JSON value kept as the exact text it came as.
//!
//! Parsing into a tree and printing it again would change what was sent (`88.50` becomes `88.5`, big integers
//! lose digits, duplicate keys vanish), and a fact must not change. So the text itself is the value: checked
//! once, stored as text on every database, and sent as it is.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One JSON value, byte for byte as it was given.
#[derive(Clone, Serialize)]
#[serde(transparent)]
pub struct Payload(Box<RawValue>);

/// Why a text or a value cannot be a payload.
#[derive(Debug, thiserror::Error)]
pub enum InvalidPayload {
    /// Not JSON.
    #[error("the payload is not JSON")]
    NotJson(#[source] serde_json::Error),
    /// JSON, but not of the shape this type wants.
    #[error("the payload does not fit {type_name}")]
    WrongShape {
        /// The command or event type whose shape was expected.
        type_name: String,
        /// What the reader found.
        #[source]
        source: serde_json::Error,
    },
    /// A Rust value that has no JSON form (a map with keys that are not texts, say).
    #[error("the value cannot be written as JSON")]
    NotWritable(#[source] serde_json::Error),
    /// More bytes than the limit.
    #[error("the payload has {bytes} bytes; at most {limit} are accepted", limit = Payload::MAX_BYTES)]
    TooLarge {
        /// The size given.
        bytes: usize,
    },
    /// Nested deeper than readers can follow.
    #[error("the payload is nested {depth} levels deep; at most {limit} are accepted", limit = Payload::MAX_DEPTH)]
    TooDeep {
        /// The depth found.
        depth: usize,
    },
}

impl Payload {
    /// The largest payload. Larger things belong into a file store, with a reference in the event.
    pub const MAX_BYTES: usize = 4 * 1024 * 1024;

    /// The deepest nesting. serde_json and most other readers stop at 128, so a deeper payload could be stored
    /// and delivered but never read.
    pub const MAX_DEPTH: usize = 127;

    /// A payload from JSON text.
    pub fn from_text(text: impl Into<String>) -> Result<Self, InvalidPayload> {
        let text = text.into();
        check_bounds(&text)?;
        RawValue::from_string(text).map(Self).map_err(InvalidPayload::NotJson)
    }

    /// A payload from any value that serde can write.
    pub fn from_value(value: &(impl Serialize + ?Sized)) -> Result<Self, InvalidPayload> {
        let raw = serde_json::value::to_raw_value(value).map_err(InvalidPayload::NotWritable)?;
        check_bounds(raw.get())?;
        Ok(Self(raw))
    }

    /// The empty object.
    pub fn empty() -> Self {
        Self(RawValue::from_string("{}".to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned()))
    }

    /// The JSON text.
    pub fn as_text(&self) -> &str {
        self.0.get()
    }

    /// Whether two payloads say the same, whatever the order of their keys and the white space between them.
    pub fn means_the_same_as(&self, other: &Self) -> bool {
        let tree = |payload: &Self| serde_json::from_str::<serde_json::Value>(payload.as_text()).ok();
        self == other || tree(self).is_some_and(|value| Some(value) == tree(other))
    }

    /// Reads the payload as a value; `type_name` is for the error message.
    pub fn read<T: DeserializeOwned>(&self, type_name: &str) -> Result<T, InvalidPayload> {
        serde_json::from_str(self.as_text())
            .map_err(|source| InvalidPayload::WrongShape { type_name: type_name.to_owned(), source })
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.as_text() == other.as_text()
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_text())
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        check_bounds(raw.get()).map_err(serde::de::Error::custom)?;
        Ok(Self(raw))
    }
}

fn check_bounds(text: &str) -> Result<(), InvalidPayload> {
    if text.len() > Payload::MAX_BYTES {
        return Err(InvalidPayload::TooLarge { bytes: text.len() });
    }
    let depth = nesting_depth(text);
    if depth > Payload::MAX_DEPTH {
        return Err(InvalidPayload::TooDeep { depth });
    }
    Ok(())
}

/// How deep arrays and objects are nested. Iterative, so that hostile input cannot exhaust the stack.
fn nesting_depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    let (mut in_string, mut escaped) = (false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_text_is_kept_to_the_letter() {
        for text in [r#"{"amount": 88.50}"#, "1234567890123456789012345", r#""\ud800""#, r#"{"a":1,"a":2}"#] {
            assert_eq!(Payload::from_text(text).unwrap().as_text(), text);
        }
    }

    #[test]
    fn depth_is_limited_and_brackets_in_texts_do_not_count() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(Payload::from_text(nested(Payload::MAX_DEPTH)).is_ok());
        assert!(matches!(
            Payload::from_text(nested(Payload::MAX_DEPTH + 1)),
            Err(InvalidPayload::TooDeep { depth: 128 })
        ));
        assert!(matches!(Payload::from_text(nested(100_000)), Err(InvalidPayload::TooDeep { .. })));
        assert!(Payload::from_text(format!(r#""\"{}""#, "[".repeat(500))).is_ok());
    }

    #[test]
    fn the_deepest_accepted_payload_can_be_read() {
        let text = format!("{}{}", "[".repeat(Payload::MAX_DEPTH), "]".repeat(Payload::MAX_DEPTH));
        assert!(Payload::from_text(text).unwrap().read::<serde_json::Value>("test").is_ok());
    }

    #[test]
    fn a_lone_surrogate_is_a_clear_refusal_when_read_as_a_text() {
        let payload = Payload::from_text(r#""\ud800""#).unwrap();
        assert!(matches!(payload.read::<String>("test"), Err(InvalidPayload::WrongShape { .. })));
    }

    #[test]
    fn what_is_not_json_is_refused() {
        for text in ["", "{", "nul", "{} {}", "'a'"] {
            assert!(matches!(Payload::from_text(text), Err(InvalidPayload::NotJson(_))), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_rust_text_survives(text in any::<String>()) {
            let payload = Payload::from_value(&text).unwrap();
            prop_assert_eq!(payload.read::<String>("test").unwrap(), text);
        }
    }
}
