//! What waits, is at work or was given up, counted for whoever watches.

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::StoreResult;
use crate::ids::{ChannelName, HandlerName, Position};
use crate::lifecycle::LetterStatus;

/// How much waits, is at work or was given up. Counts end at 100,000 (letters: 10,000 of a status): one that shows this
/// number may be more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// Commands.
    pub commands: CommandBacklog,
    /// The log.
    pub log: LogBacklog,
    /// Timers.
    pub timers: TimerBacklog,
    /// The outbox, by channel.
    pub outbox: Vec<OutboxBacklog>,
    /// Deliveries that were set aside and are not ended.
    pub letters: Vec<LetterCount>,
}

/// Commands that are not through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommandBacklog {
    /// Nobody works on them.
    pub pending: u64,
    /// A worker has them.
    pub processing: u64,
    /// Failed, and will be tried again.
    pub retrying: u64,
    /// Failed or were refused, and that is all.
    pub failed: u64,
    /// Since when the first one is due of those that nobody works on, or from when on it will be.
    pub due_at: Option<DateTime<Utc>>,
}

/// Where the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogBacklog {
    /// The last position.
    pub head: Position,
    /// Events without one.
    pub pending: u64,
    /// When the first of those happened.
    pub pending_since: Option<DateTime<Utc>>,
}

/// Timers that have not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimerBacklog {
    /// All of them.
    pub waiting: u64,
    /// Those whose moment has come.
    pub due: u64,
    /// The moment of the first one.
    pub due_at: Option<DateTime<Utc>>,
}

/// The outbox rows of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxBacklog {
    /// Which channel.
    pub channel: ChannelName,
    /// New, or to be tried again.
    pub pending: u64,
    /// Wait behind one of their aggregate.
    pub parked: u64,
    /// Were given up.
    pub failed: u64,
    /// When the first event happened of those that are pending.
    pub oldest_at: Option<DateTime<Utc>>,
}

/// How many letters of a handler are in a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterCount {
    /// Whose; `None` for what the broker itself gave up.
    pub handler: Option<HandlerName>,
    /// Where they are.
    pub status: LetterStatus,
    /// How many.
    pub count: u64,
}

/// What waits, is at work or was given up, counted for whoever watches.
#[async_trait]
pub trait Backlogs: Send + Sync + 'static {
    /// Counts what waits, on these channels and elsewhere. Three statements, each by index and none longer than what it
    /// counts.
    async fn backlog(&self, channels: &[ChannelName], now: DateTime<Utc>) -> StoreResult<Backlog>;
}
