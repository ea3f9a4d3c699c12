//! Processes: which facts each took, the names of their timers, and what undoes what they did. What changes with a process is
//! written in its transaction ([`StoreTx`](super::StoreTx)).

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use super::StoreResult;
use crate::ids::{AggregateKey, CommandId, EventId, TaskId};
use crate::name::EventName;
use crate::process::Outgoing;

/// A fact that a process took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessInput {
    /// Which process.
    pub process: AggregateKey,
    /// The fact.
    pub event_id: EventId,
    /// Its stored name.
    pub event_type: EventName,
    /// What came of it.
    pub outcome: InputOutcome,
    /// When it was taken.
    pub recorded_at: DateTime<Utc>,
}

/// What came of a fact that a process took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InputOutcome {
    /// The process began with it.
    Started,
    /// Events or actions followed.
    Reacted,
    /// Nothing followed.
    Ignored,
    /// The process had ended: nothing followed.
    AfterEnd,
}

/// A stored outcome that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no outcome of a fact")]
pub struct UnknownOutcome(String);

impl InputOutcome {
    const ALL: [Self; 4] = [Self::Started, Self::Reacted, Self::Ignored, Self::AfterEnd];

    /// The text that is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Reacted => "reacted",
            Self::Ignored => "ignored",
            Self::AfterEnd => "after_end",
        }
    }
}

impl std::str::FromStr for InputOutcome {
    type Err = UnknownOutcome;

    fn from_str(text: &str) -> Result<Self, UnknownOutcome> {
        let found = Self::ALL.into_iter().find(|outcome| outcome.as_str() == text);
        found.ok_or_else(|| UnknownOutcome(text.to_owned()))
    }
}

/// What a process did that can be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undoes {
    /// It sent this command.
    Command(CommandId),
    /// It set this timer.
    Timer(Uuid),
    /// It started this task.
    Task(TaskId),
}

/// What undoes something that a process did.
#[derive(Debug, Clone, PartialEq)]
pub struct NewUndo {
    /// Which process.
    pub process: AggregateKey,
    /// Under which id the command is sent.
    pub command_id: CommandId,
    /// What it undoes, if that is something that may not have happened.
    pub undoes: Option<Undoes>,
    /// The command.
    pub command: Outgoing,
    /// When it was said.
    pub recorded_at: DateTime<Utc>,
}

/// What undoes something, and its number: higher ones were said later.
#[derive(Debug, Clone, PartialEq)]
pub struct Undo {
    /// Its number.
    pub undo_id: u64,
    /// What was said.
    pub undo: NewUndo,
}

/// Processes: which facts each took, and what is to be undone.
#[async_trait]
pub trait Processes: Send + Sync + 'static {
    /// Facts that a process took, by their ids, behind one.
    async fn process_inputs(
        &self,
        process: &AggregateKey,
        after: Option<EventId>,
        limit: u32,
    ) -> StoreResult<Vec<ProcessInput>>;

    /// The last thing of a process that is to be undone and is not; of those before this number, if one is given.
    async fn next_undo(&self, process: &AggregateKey, before: Option<u64>) -> StoreResult<Option<Undo>>;

    /// Notes that it was undone.
    async fn note_undone(&self, undo_id: u64, now: DateTime<Utc>) -> StoreResult<()>;
}
