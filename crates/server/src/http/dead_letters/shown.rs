//! Letters as they are sent.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::ids::{ActorId, EventId, HandlerName};
use towpath::letters::{Letter, LetterGroup};
use towpath::lifecycle::LetterStatus;
use utoipa::ToSchema;
use utoipa::openapi::schema::Object;

use crate::http::access::Role;
use crate::http::wire::one_of;

/// Letters, by number.
#[derive(Serialize, ToSchema)]
#[schema(as = Letters)]
pub(super) struct LetterPage<'a> {
    pub(super) letters: Vec<LetterBody<'a>>,
    /// What to give as `after` to read on.
    pub(super) next: u64,
}

/// A delivery that was set aside.
#[derive(Serialize, ToSchema)]
#[schema(as = Letter)]
#[serde(rename_all = "camelCase")]
pub(super) struct LetterBody<'a> {
    letter_id: u64,
    /// Whose delivery it was; nothing for what the broker gave up.
    #[schema(value_type = Option<String>)]
    handler: Option<&'a HandlerName>,
    #[schema(value_type = Option<uuid::Uuid>)]
    event_id: Option<EventId>,
    queue: &'a str,
    message_id: Option<&'a str>,
    message_type: Option<&'a str>,
    occurred_at: Option<DateTime<Utc>>,
    received_at: DateTime<Utc>,
    #[schema(schema_with = letter_status)]
    status: LetterStatus,
    status_changed_at: DateTime<Utc>,
    /// A stable code.
    status_reason: Option<&'a str>,
    /// A text for people.
    status_message: Option<&'a str>,
    /// Failures so far.
    retry_count: u32,
    /// When it is tried again.
    due_at: Option<DateTime<Utc>>,
    replayed_at: Option<DateTime<Utc>>,
    /// Whether an operator has changed its body.
    edited: bool,
    /// Which operator acted last.
    #[schema(value_type = Option<String>)]
    changed_by_id: Option<&'a ActorId>,
}

impl<'a> From<&'a Letter> for LetterBody<'a> {
    fn from(letter: &'a Letter) -> Self {
        let message = &letter.letter.message;
        Self {
            letter_id: letter.letter_id,
            handler: letter.letter.handler.as_ref(),
            event_id: letter.letter.event_id,
            queue: &message.queue,
            message_id: message.message_id.as_deref(),
            message_type: message.message_type.as_deref(),
            occurred_at: message.occurred_at,
            received_at: letter.letter.received_at,
            status: letter.status,
            status_changed_at: letter.status_changed_at,
            status_reason: letter.status_reason.as_deref(),
            status_message: letter.status_message.as_deref(),
            retry_count: letter.retry_count,
            due_at: letter.due_at,
            replayed_at: letter.replayed_at,
            edited: letter.original_body.is_some(),
            changed_by_id: letter.changed_by_id.as_ref(),
        }
    }
}

/// A letter with its message, to the letter.
#[derive(Serialize, ToSchema)]
#[schema(as = LetterInFull)]
#[serde(rename_all = "camelCase")]
pub(super) struct InFull<'a> {
    #[serde(flatten)]
    letter: LetterBody<'a>,
    exchange: &'a str,
    routing_key: &'a str,
    message_key: Option<&'a str>,
    content_type: Option<&'a str>,
    headers: Vec<Header<'a>>,
    #[schema(schema_with = encoding)]
    body_encoding: Encoding,
    /// Null to viewers, as is `originalBody`.
    body: Option<String>,
    /// True where a viewer asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    body_withheld: Option<bool>,
    /// How the message was before an operator changed it.
    #[schema(schema_with = encoding)]
    original_body_encoding: Encoding,
    original_body: Option<String>,
}

/// A header of a message.
#[derive(Serialize, ToSchema)]
#[schema(as = MessageHeader)]
pub(super) struct Header<'a> {
    name: &'a str,
    value: &'a str,
}

impl<'a> InFull<'a> {
    /// What may be in a message is not known, so viewers see of no message what it says.
    pub(super) fn seen(letter: &'a Letter, role: Role) -> Self {
        let sees_bodies = role >= Role::Operator;
        let message = &letter.letter.message;
        let (body, body_encoding) = written(&message.body);
        let original = letter.original_body.as_deref().map(written);
        Self {
            letter: letter.into(),
            exchange: &message.destination.exchange,
            routing_key: &message.destination.routing_key,
            message_key: message.key.as_deref(),
            content_type: message.content_type.as_deref(),
            headers: message.headers.iter().map(|(name, value)| Header { name, value }).collect(),
            body_encoding,
            body: sees_bodies.then_some(body),
            body_withheld: (!sees_bodies).then_some(true),
            original_body_encoding: original.as_ref().map_or(Encoding::Text, |(_, encoding)| *encoding),
            original_body: original.filter(|_| sees_bodies).map(|(body, _)| body),
        }
    }
}

/// Bytes as text where they are text, else in base64.
fn written(bytes: &[u8]) -> (String, Encoding) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), Encoding::Text),
        Err(_) => (BASE64.encode(bytes), Encoding::Base64),
    }
}

/// Letters by cause.
#[derive(Serialize, ToSchema)]
#[schema(as = CausesOfDeath)]
pub(super) struct Causes<'a> {
    pub(super) causes: Vec<Cause<'a>>,
}

/// Letters with one cause.
#[derive(Serialize, ToSchema)]
#[schema(as = CauseOfDeath)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cause<'a> {
    #[schema(schema_with = letter_status)]
    status: LetterStatus,
    handler: Option<&'a str>,
    queue: &'a str,
    message_type: Option<&'a str>,
    reason: Option<&'a str>,
    count: u64,
    oldest_at: DateTime<Utc>,
    newest_at: DateTime<Utc>,
    /// The highest number among them.
    last_id: u64,
}

impl<'a> From<&'a LetterGroup> for Cause<'a> {
    fn from(group: &'a LetterGroup) -> Self {
        Self {
            status: group.status,
            handler: group.handler.as_deref(),
            queue: &group.queue,
            message_type: group.message_type.as_deref(),
            reason: group.reason.as_deref(),
            count: group.count,
            oldest_at: group.oldest_at,
            newest_at: group.newest_at,
            last_id: group.last_id,
        }
    }
}

/// How the bytes of a message are written.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Encoding {
    #[default]
    Text,
    Base64,
}

/// How bytes are written.
pub(super) fn encoding() -> Object {
    one_of(["text", "base64"])
}

/// Where a letter can be.
pub(super) fn letter_status() -> Object {
    one_of(LetterStatus::ALL.iter().map(|status| status.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath::ids::Lane;
    use towpath::letters::NewLetter;
    use towpath::ports::broker::{DeliveryTag, Destination, Received};

    #[test]
    fn viewers_do_not_see_what_a_message_says() {
        let now = Utc::now();
        let message = Received {
            tag: DeliveryTag(1),
            queue: "parcels".to_owned(),
            message_id: None,
            message_type: None,
            occurred_at: None,
            key: None,
            content_type: None,
            destination: Destination { exchange: "facts".to_owned(), routing_key: "parcel".to_owned() },
            headers: Default::default(),
            redelivered: false,
            body: b"what it says".to_vec(),
        };
        let letter = NewLetter { handler: None, event_id: None, lane: Lane(0), message, received_at: now };
        let letter = Letter {
            letter_id: 7,
            letter,
            status: LetterStatus::Dead,
            status_changed_at: now,
            status_reason: None,
            status_message: None,
            retry_count: 1,
            due_at: None,
            replayed_at: None,
            body_kept: true,
            original_body: Some(b"what it said".to_vec()),
            changed_by_id: None,
        };
        let seen = |role| serde_json::to_value(InFull::seen(&letter, role)).unwrap();
        let viewer = seen(Role::Viewer);
        assert_eq!((viewer["body"].is_null(), viewer["originalBody"].is_null()), (true, true));
        assert_eq!((&viewer["bodyWithheld"], &viewer["letterId"]), (&true.into(), &7.into()));
        for role in [Role::Operator, Role::Admin] {
            let whole = seen(role);
            assert_eq!(
                (&whole["body"], &whole["originalBody"]),
                (&"what it says".into(), &"what it said".into())
            );
            assert!(whole.get("bodyWithheld").is_none());
        }
    }
}
