//! Letters: deliveries that were set aside because a handler could not take them, and the dead among them.
//!
//! A letter keeps the message to the letter, so that it can be handled again without the broker. While it waits for its
//! next attempt it is RETRY; one that came behind such a letter of its own aggregate, for a handler that wants order,
//! is BEHIND; one that was given up is DEAD and waits for an operator.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::ids::{ActorId, EventId, HandlerName, Lane};
use crate::lifecycle::LetterStatus;
use crate::ports::broker::Received;

/// A delivery to be set aside.
#[derive(Debug, Clone, PartialEq)]
pub struct NewLetter {
    /// Whose delivery it was; `None` for a message found in a dead-letter queue of the broker's own.
    pub handler: Option<HandlerName>,
    /// The event, if the message says which.
    pub event_id: Option<EventId>,
    /// What keeps its order.
    pub lane: Lane,
    /// The message as it came.
    pub message: Received,
    /// When it came; of one that waited behind another, when its turn came.
    pub received_at: DateTime<Utc>,
}

/// A delivery that was set aside.
#[derive(Debug, Clone, PartialEq)]
pub struct Letter {
    /// Its number: letters of one handler and lane are handled in this order.
    pub letter_id: u64,
    /// What was set aside.
    pub letter: NewLetter,
    /// Where it is.
    pub status: LetterStatus,
    /// Since when.
    pub status_changed_at: DateTime<Utc>,
    /// Stable code of why.
    pub status_reason: Option<String>,
    /// Text of why.
    pub status_message: Option<String>,
    /// Failures so far.
    pub retry_count: u32,
    /// When it is tried again.
    pub due_at: Option<DateTime<Utc>>,
    /// When an operator let it be tried again.
    pub replayed_at: Option<DateTime<Utc>>,
    /// Whether the body is there. If not, its size and hash stand in its place: it was larger than the database takes.
    pub body_kept: bool,
    /// The body before an operator changed it.
    pub original_body: Option<Vec<u8>>,
    /// Which operator acted last.
    pub changed_by_id: Option<ActorId>,
}

/// Why and until when a delivery is set aside.
#[derive(Debug, Clone, PartialEq)]
pub struct SetAside {
    /// The letter it came from, if it had been set aside before: that one is changed. An operator may have edited its
    /// message, so that nothing else tells which one it is.
    pub letter_id: Option<u64>,
    /// Until when whoever set this attempt off holds that letter; somebody who has it by now goes on with it, and nothing is
    /// changed. `None`: whoever has it.
    pub held_until: Option<DateTime<Utc>>,
    /// The delivery.
    pub letter: NewLetter,
    /// When it is tried again; `None`: it is dead.
    pub due_at: Option<DateTime<Utc>>,
    /// Stable code.
    pub reason: String,
    /// Text for people.
    pub message: String,
    /// Failures so far.
    pub retry_count: u32,
    /// When this was decided.
    pub now: DateTime<Utc>,
}

/// What came of setting a delivery aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsideOutcome {
    /// It is as was asked.
    Set,
    /// Its body is larger than the database takes: it is dead, with size and hash in place of the body.
    TooLarge,
    /// Somebody else has the letter, or has ended it: nothing was changed.
    Elsewhere,
}

/// Which letters. What is not said does not matter.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LetterFilter {
    /// In this status.
    pub status: Option<LetterStatus>,
    /// Of this handler.
    pub handler: Option<String>,
    /// From this queue.
    pub queue: Option<String>,
    /// Of this type.
    pub message_type: Option<String>,
    /// For this reason.
    pub reason: Option<String>,
    /// Set aside at or after.
    pub since: Option<DateTime<Utc>>,
    /// Set aside before.
    pub until: Option<DateTime<Utc>>,
    /// With at most this number: what came later than a preview is not in it.
    pub up_to: Option<u64>,
}

impl LetterFilter {
    /// The dead ones.
    pub fn dead() -> Self {
        Self { status: Some(LetterStatus::Dead), ..Self::default() }
    }
}

/// Letters with one cause.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LetterGroup {
    /// Where they are.
    pub status: LetterStatus,
    /// Whose.
    pub handler: Option<String>,
    /// From which queue.
    pub queue: String,
    /// Of which type.
    pub message_type: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// How many.
    pub count: u64,
    /// When the first of them came.
    pub oldest_at: DateTime<Utc>,
    /// When the last of them came.
    pub newest_at: DateTime<Utc>,
    /// The highest number among them.
    pub last_id: u64,
}
