//! Checking: finding rows that are not as they should be, a bounded page at a time, and putting right what can be.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Append, LeaseGrant, StoreResult};
use crate::ids::{ChannelName, EventId, Lane, Position, Version};

/// Where a check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckStatus {
    /// Asked for.
    Pending,
    /// Under way. One whose instance is gone is gone on with by another.
    Running,
    /// At its end.
    Done,
    /// Given up.
    Failed,
}

impl CheckStatus {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Running, Self::Done, Self::Failed];

    /// The text that is stored and sent.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Done => "DONE",
            Self::Failed => "FAILED",
        }
    }

    /// Whether it has come to its end.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}

/// A check: what was asked, how far it is and what it has found.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckRow {
    /// Its id.
    pub check_id: Uuid,
    /// Where it is.
    pub status: CheckStatus,
    /// Since when.
    pub status_changed_at: DateTime<Utc>,
    /// Why (a stable code).
    pub status_reason: Option<String>,
    /// Why, for people.
    pub status_message: Option<String>,
    /// How far back it looks, in microseconds.
    pub window_micros: u64,
    /// From when on.
    pub since: DateTime<Utc>,
    /// When it was asked for.
    pub started_at: DateTime<Utc>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// What was asked, where it goes on, and what it has found: JSON that the engine reads.
    pub progress: String,
    /// How many aggregates have a gap, once that was looked at.
    pub version_gap_count: Option<u64>,
}

/// Since when a channel takes what it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelStart {
    /// The channel.
    pub channel: ChannelName,
    /// What stands for the types it takes.
    pub patterns: String,
    /// Since when.
    pub started_at: DateTime<Utc>,
}

/// What is looked for. Each is walked in the order of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Suspicion<'a> {
    /// Commands COMPLETED since a moment without an event of the type that is declared as their result. Those that decided
    /// nothing are whole without one.
    OrphanedCommands {
        /// Received since then.
        since: DateTime<Utc>,
        /// Types of commands, and of the events that are their results.
        pairs: &'a [(String, String)],
    },
    /// Aggregates that have no event of their row's version.
    RowsAheadOfEvents,
    /// Events whose predecessor is missing, or that their aggregate's row does not know.
    EventsOutOfLine,
    /// Events that have no position and do not wait for one.
    EventsWithoutPosition,
    /// Positions without an event or without a predecessor, and those behind the head.
    PositionGaps,
    /// A head without its position.
    HeadWithoutPosition,
    /// Outbox rows without their event.
    OutboxWithoutEvent,
    /// Deliveries to these handlers whose event is not there.
    InboxWithoutEvent {
        /// Handlers that get events of our own channels and no others.
        handlers: &'a [String],
    },
    /// Lanes that wait for a row that is gone or through.
    ParkedWithoutHead,
    /// Living channels whose position is behind the head.
    TrackersAhead,
    /// Aggregates whose projection knows more events than they have.
    ProjectionsAhead,
    /// Commands in the hands of nobody.
    AbandonedCommands,
    /// Timers in the hands of nobody.
    AbandonedTimers,
    /// Tasks whose worker is silent.
    AbandonedTasks,
    /// Aggregates, changed since a moment, whose state is not the last of their history.
    StatesWithoutHistory {
        /// The moment.
        since: DateTime<Utc>,
    },
    /// Aggregates of these kinds that have changed since a moment: nothing is wrong with them yet.
    ChangedSince {
        /// The kinds.
        kinds: &'a [String],
        /// The moment.
        since: DateTime<Utc>,
    },
    /// Changes of state since a moment that do not begin where the one before them ended.
    BrokenHistories {
        /// The moment.
        since: DateTime<Utc>,
    },
}

/// A row that may not be as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// What finds it again.
    pub key: Vec<String>,
    /// What it is about, for people.
    pub target: String,
    /// When it came about, if that is known.
    pub at: Option<DateTime<Utc>>,
    /// What else is known of it.
    pub details: Vec<(&'static str, String)>,
}

/// A page of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuspectPage {
    /// What was found in it.
    pub suspects: Vec<Suspect>,
    /// Behind what the next one begins; nothing at the end.
    pub next: Option<Vec<String>>,
    /// How many rows of it count for the totals.
    pub counted: u64,
}

/// An event of the log, with what is known of its cause and its ways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedEvent {
    /// Where it is in the log.
    pub position: Position,
    /// Its id.
    pub event_id: EventId,
    /// Its type.
    pub event_type: String,
    /// The kind of its aggregate.
    pub aggregate_kind: String,
    /// The id of its aggregate.
    pub aggregate_id: String,
    /// Its version.
    pub aggregate_version: Version,
    /// When it happened.
    pub occurred_at: DateTime<Utc>,
    /// Its flow.
    pub correlation_id: String,
    /// What it names as its cause.
    pub causation_id: Option<String>,
    /// Whether that is a command of its flow.
    pub is_of_command: bool,
    /// The channels that have a row for it.
    pub channels: Vec<String>,
}

/// What is known of an id that events name as their cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownCause {
    /// The id.
    pub id: Uuid,
    /// Its flow and its position, if it is an event of ours.
    pub event: Option<(String, Option<Position>)>,
    /// Whether a handler has had it: then it may have come from elsewhere.
    pub was_delivered: bool,
}

/// A consumer that has had later events of the same aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastConsumer {
    /// Its handler.
    pub handler: String,
    /// The last version that it has handled, among those that were looked at.
    pub version: Version,
}

/// Something that can be put right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repair {
    /// An event gets its row in the outbox of a channel.
    Outbox {
        /// The event.
        event_id: EventId,
        /// The channel.
        channel: ChannelName,
    },
    /// A COMPLETED command without its event goes back to PENDING.
    OrphanedCommand {
        /// The command.
        command_id: String,
        /// The event that is declared as its result.
        event_type: String,
    },
    /// An event waits for a position.
    Pending {
        /// The event.
        event_id: EventId,
    },
    /// A lane goes on.
    Lane {
        /// The channel.
        channel: ChannelName,
        /// The lane.
        lane: Lane,
    },
    /// A command that nobody has goes back to PENDING.
    AbandonedCommand {
        /// The command.
        command_id: String,
    },
}

/// What a repair came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repaired {
    /// It was done.
    Done,
    /// It is as it should be, or is being worked on: nothing was changed.
    NotNeeded,
    /// The effect of the command is already in the state: nothing was changed.
    EffectIsThere,
    /// What it is about does not exist: nothing was changed.
    Gone,
}

/// Checks and repairs.
#[async_trait]
pub trait Checking: Send + Sync + 'static {
    /// Records that a check is asked for.
    async fn begin_check(&self, check: &CheckRow) -> StoreResult<()>;

    /// The check that was asked for first, of those that have not ended.
    async fn next_check(&self) -> StoreResult<Option<CheckRow>>;

    /// Writes how far a check is, unless it has ended; fenced by the lease. Answers whether.
    async fn save_check(&self, lease: &LeaseGrant, check: &CheckRow) -> StoreResult<bool>;

    /// One check.
    async fn find_check(&self, check_id: Uuid) -> StoreResult<Option<CheckRow>>;

    /// The last check that came to its end.
    async fn last_check(&self) -> StoreResult<Option<CheckRow>>;

    /// How many aggregates had gaps in their versions when that was last looked at to the end; nothing, if it never was.
    async fn last_version_gaps(&self) -> StoreResult<Option<u64>>;

    /// Deletes checks that ended before a moment; fenced by the lease. Answers how many.
    async fn clean_checks(
        &self,
        lease: &LeaseGrant,
        ended_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64>;

    /// Notes since when channels take what they take, where that is not known.
    async fn note_channel_starts(&self, starts: &[ChannelStart]) -> StoreResult<()>;

    /// Since when channels take what they take.
    async fn channel_starts(&self) -> StoreResult<Vec<ChannelStart>>;

    /// A position behind which all events since a moment are: those that happened earlier stand before them, but for some.
    async fn position_before(&self, since: DateTime<Utc>) -> StoreResult<Position>;

    /// Walks over so many rows behind a key, and answers those that are suspicious.
    async fn suspects(
        &self,
        suspicion: &Suspicion<'_>,
        behind: Option<&[String]>,
        limit: u32,
    ) -> StoreResult<SuspectPage>;

    /// Which of these are still suspicious.
    async fn suspects_among(
        &self,
        suspicion: &Suspicion<'_>,
        keys: &[Vec<String>],
    ) -> StoreResult<Vec<Suspect>>;

    /// Events between two positions: behind the first, and up to the second.
    async fn checked_events(&self, behind: Position, up_to: Position) -> StoreResult<Vec<CheckedEvent>>;

    /// What is known of these ids, for those of which something is.
    async fn known_causes(&self, ids: &[Uuid]) -> StoreResult<Vec<KnownCause>>;

    /// The handlers that have had later events of the same aggregate, among the next thousand.
    async fn consumers_past(&self, event_id: EventId) -> StoreResult<Vec<PastConsumer>>;

    /// Puts something right, and appends the fact about it, in one transaction. It is looked at again under the locks that the
    /// live path takes, in the same order; where nothing is to be done, nothing is written, the fact neither.
    async fn repair(&self, repair: &Repair, fact: &Append, now: DateTime<Utc>) -> StoreResult<Repaired>;
}
