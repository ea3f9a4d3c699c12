//! The store: one contract for every database.
//!
//! Order of this file: promises and errors; what is written (append, commands); what is read; the log; the
//! outbox; leases; inbox; timers; channels; and at the end the two traits.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use super::operations::{OperationAnswer, OperationClaim};
use crate::envelope::{ChangeContext, EventEnvelope, RecordedEvent};
use crate::ids::{
    ActorId, AggregateKey, AggregateKind, CausationId, ChannelName, CommandId, CorrelationId, EventId,
    HandlerName, InstanceId, Lane, LeaseName, Position, RequestId, TenantId, TraceId, Version,
};
use crate::lifecycle::{CommandStatus, InboxStatus, OutboxStatus, TaskState};
use crate::name::{CommandName, EventName};
use crate::payload::Payload;
use crate::retry::ErrorClass;

/// Shorthand for what store operations answer.
pub type StoreResult<T> = Result<T, StoreError>;

/// What an adapter promises beyond the contract, as data: the conformance suite picks its cases by it and the
/// support table in the documentation is printed from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StorePromises {
    /// The database, as people write it.
    pub database: &'static str,
    /// Several write transactions may be open at once. Where not, a second writer waits its turn.
    pub concurrent_writers: bool,
    /// Several hosts may share it.
    pub many_hosts: bool,
    /// A whole new command is one statement: one round trip after the load. One that was recorded before (a retry, a
    /// claimed one) takes a transaction.
    pub single_statement_write: bool,
    /// Uniqueness among the living is a partial unique index; elsewhere a generated column does it.
    pub partial_unique_index: bool,
    /// Commits can wake other processes; elsewhere they poll.
    pub notifies: bool,
}

/// A fault or a refusal of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Somebody else changed the aggregate since it was loaded. Nothing was written.
    #[error("{aggregate} is no longer at version {expected}")]
    VersionConflict {
        /// Which aggregate.
        aggregate: AggregateKey,
        /// What the writer expected.
        expected: Expected,
    },
    /// The command id is recorded already. Nothing was written.
    #[error("command {0} is recorded already")]
    DuplicateCommand(CommandId),
    /// An event id is recorded already. Nothing was written.
    #[error("an event of {0} has an id that is recorded already")]
    DuplicateEvent(AggregateKey),
    /// The command is not in the status that this write was based on: someone else has taken it.
    #[error("command {0} has been taken over by another instance")]
    CommandTaken(CommandId),
    /// The lease has been taken over since, or was never this holder's; the effect was refused and nothing was written.
    #[error("lease {lease} is no longer held in epoch {epoch}")]
    Fenced {
        /// Which lease.
        lease: LeaseName,
        /// The epoch the writer believed to hold.
        epoch: u64,
    },
    /// An append with more rows than fit into one statement on every database. Nothing was written.
    #[error("{events} events in one append bind {values} values; at most {limit} are accepted")]
    AppendTooLarge {
        /// How many events.
        events: usize,
        /// How many values they bind, with their history and outbox rows.
        values: usize,
        /// How many are accepted.
        limit: usize,
    },
    /// An event that was to be appended without a command is not one that the aggregate can have now. Nothing was written.
    #[error("{event} cannot be appended to {aggregate}")]
    ForbiddenEvent {
        /// Which aggregate.
        aggregate: AggregateKey,
        /// The event's type.
        event: String,
        /// Stable code of why.
        code: &'static str,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// A living thing of that name exists.
    #[error("{what} {name} exists already")]
    NameTaken {
        /// What sort of thing.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// There is no such thing.
    #[error("there is no {what} {name}")]
    Missing {
        /// What sort of thing.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The business status is not in the tenant's dictionary.
    #[error("status {value} is not in the dictionary of tenant {tenant}")]
    UnknownStatus {
        /// Whose dictionary.
        tenant: String,
        /// The value given.
        value: String,
    },
    /// The URL is wrong or needs something that is not built in.
    #[error("{0}")]
    BadUrl(String),
    /// The database was migrated by a newer Towpath.
    #[error("the database has schema version {found}, this build knows {known}")]
    NewerSchema {
        /// In the database.
        found: u32,
        /// In this build.
        known: u32,
    },
    /// The database has no tables of Towpath, or older ones.
    #[error("the database has schema version {found}, this build needs {needed}")]
    NotMigrated {
        /// In the database.
        found: u32,
        /// In this build.
        needed: u32,
    },
    /// The log was opened with another page size before, and that is for its life.
    #[error("the log has pages of {found} notifications; {configured} are configured")]
    OtherPageSize {
        /// In the database.
        found: u64,
        /// In the configuration.
        configured: u64,
    },
    /// A table that is needed is there, and is somebody else's. It was not touched.
    #[error("there is a table {table} that belongs to somebody else: {why}")]
    ForeignTable {
        /// Which.
        table: String,
        /// By what that is known.
        why: String,
    },
    /// The transaction cannot be committed: a statement in it has failed, or it is still in use elsewhere. Nothing was
    /// written.
    #[error("the transaction was lost: {0}")]
    TransactionLost(String),
    /// The answer to a commit was lost, and the database has not said since whether it was done.
    #[error("it is not known whether the commit was done")]
    CommitUnknown(#[source] BoxError),
    /// A unit of work was begun, or a command sent by itself, inside of a unit of work. Nothing was written.
    #[error("a transaction was begun inside of another one")]
    Nested,
    /// A change that says something that is no id or no payload. Nothing was written.
    #[error("the change cannot be written")]
    InvalidChange {
        /// Stable code of what is wrong.
        code: &'static str,
        /// What is wrong.
        #[source]
        source: BoxError,
    },
    /// Writers got in each other's way (deadlock, serialization failure, busy). The whole transaction was rolled
    /// back and may be run again.
    #[error("the database gave way to another transaction")]
    Contention(#[source] BoxError),
    /// The database cannot be reached or does not answer. Whether a commit in flight took effect is unknown.
    #[error("the database cannot be reached")]
    Unavailable(#[source] BoxError),
    /// A listing took longer than listings may, and was ended. Nothing was changed by it.
    #[error("{statement} took too long and was ended")]
    TooSlow {
        /// The statement's name.
        statement: &'static str,
        /// What the database said.
        #[source]
        source: BoxError,
    },
    /// No room left.
    #[error("the database has no room left")]
    Full(#[source] BoxError),
    /// A text has a character that this database has none of: PostgreSQL keeps no NUL. Nothing was written.
    #[error("a text has a character that the database cannot keep")]
    Unstorable(#[source] BoxError),
    /// What was read cannot be what was written.
    #[error("{what} cannot be read")]
    Corrupt {
        /// Which value, in which row.
        what: String,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// Anything else the database says.
    #[error("the database refused {statement}")]
    Refused {
        /// The statement's name.
        statement: &'static str,
        /// What it said.
        #[source]
        source: BoxError,
    },
}

/// Any error, as a cause.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

impl StoreError {
    /// How a retry decision sees it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::VersionConflict { .. } | Self::DuplicateCommand(_) | Self::CommandTaken(_) => {
                ErrorClass::Conflict
            }
            Self::Contention(_)
            | Self::Unavailable(_)
            | Self::CommitUnknown(_)
            | Self::TooSlow { .. }
            | Self::Full(_) => ErrorClass::Transient,
            Self::Missing { .. } => ErrorClass::NotFound,
            Self::Unstorable(_) | Self::InvalidChange { .. } => ErrorClass::InvalidPayload,
            Self::NameTaken { .. }
            | Self::UnknownStatus { .. }
            | Self::AppendTooLarge { .. }
            | Self::ForbiddenEvent { .. } => ErrorClass::Validation,
            Self::DuplicateEvent(_)
            | Self::Fenced { .. }
            | Self::BadUrl(_)
            | Self::NewerSchema { .. }
            | Self::NotMigrated { .. }
            | Self::OtherPageSize { .. }
            | Self::ForeignTable { .. }
            | Self::TransactionLost(_)
            | Self::Nested
            | Self::Corrupt { .. }
            | Self::Refused { .. } => ErrorClass::Unrecoverable,
        }
    }

    /// A stable code; each has a page in the documentation.
    pub fn code(&self) -> &'static str {
        match self {
            Self::VersionConflict { .. } => "version-conflict",
            Self::DuplicateCommand(_) => "duplicate-command",
            Self::DuplicateEvent(_) => "duplicate-event",
            Self::CommandTaken(_) => "command-taken",
            Self::Fenced { .. } => "fenced",
            Self::AppendTooLarge { .. } => "append-too-large",
            Self::ForbiddenEvent { code, .. } => code,
            Self::NameTaken { .. } => "name-taken",
            Self::Missing { .. } => "missing",
            Self::UnknownStatus { .. } => "unknown-status",
            Self::BadUrl(_) => "bad-url",
            Self::NewerSchema { .. } => "newer-schema",
            Self::NotMigrated { .. } => "not-migrated",
            Self::OtherPageSize { .. } => "log-page-size",
            Self::ForeignTable { .. } => "foreign-table",
            Self::TransactionLost(_) => "transaction-lost",
            Self::CommitUnknown(_) => "commit-unknown",
            Self::Nested => "nested-transaction",
            Self::InvalidChange { code, .. } => code,
            Self::Contention(_) => "contention",
            Self::Unavailable(_) => "store-unavailable",
            Self::TooSlow { .. } => "too-slow",
            Self::Full(_) => "store-full",
            Self::Unstorable(_) => "unstorable-text",
            Self::Corrupt { .. } => "corrupt",
            Self::Refused { .. } => "store-refused",
        }
    }

    /// What a person can do about it.
    pub fn next_step(&self) -> &'static str {
        match self {
            Self::VersionConflict { .. } | Self::Contention(_) => {
                "Load the aggregate again and repeat the command."
            }
            Self::DuplicateCommand(_) => "Ask for the recorded answer of this command id, or use a new id.",
            Self::DuplicateEvent(_) => {
                "Give each event a new UUIDv7; the same fact must not be written twice."
            }
            Self::CommandTaken(_) => "Another instance runs this command; ask for its status.",
            Self::Fenced { .. } => {
                "Another instance has taken over; stop this work and acquire the lease again."
            }
            Self::AppendTooLarge { .. } => {
                "Decide fewer events per command: several commands, or one event with a list."
            }
            Self::ForbiddenEvent { code: "event-too-large", .. } => {
                "Say less in one event, or let it name where the rest is kept; or raise largest-message of the channel."
            }
            Self::ForbiddenEvent { .. } => {
                "Append only events that the aggregate declares and that its machine allows in its state."
            }
            Self::NameTaken { .. } => "Choose another name, or remove the living one first.",
            Self::Missing { .. } => "Check the name; listings show what exists.",
            Self::UnknownStatus { .. } => "Add the value to the tenant's status dictionary first.",
            Self::BadUrl(_) => {
                "Write sqlite://PATH, postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE."
            }
            Self::NewerSchema { .. } => {
                "Run the newer Towpath, or restore a backup from before its migration."
            }
            Self::NotMigrated { .. } => "Run `towpath migrate`, or start Towpath with migrations on.",
            Self::OtherPageSize { .. } => {
                "Configure the size the log has, or leave it out: pages that others have kept would change."
            }
            Self::ForeignTable { .. } => {
                "Give Towpath a schema or database of its own, or rename the other table."
            }
            Self::Unavailable(_) => {
                "Check that the database runs and the URL is right; commands may be sent again with the same id."
            }
            Self::TransactionLost(_) => {
                "Return the first error that a statement gives, and keep no transaction beyond its unit of work."
            }
            Self::CommitUnknown(_) => {
                "Look whether it was done before doing it again: the database came back too late to say."
            }
            Self::Nested => {
                "Use the transaction that is open: tx.send commits with the rest, and another unit of work comes after it."
            }
            Self::InvalidChange { .. } => "Correct what the cause names.",
            Self::TooSlow { .. } => {
                "Ask for less at a time (a filter, a smaller page), or raise database.listing-timeout."
            }
            Self::Full(_) => {
                "Free space for the database; nothing was written and commands may be sent again with the same id."
            }
            Self::Unstorable(_) => "Leave the character out; it is most likely a NUL.",
            Self::Corrupt { .. } => {
                "Do not write to this aggregate any more; compare its rows with a backup."
            }
            Self::Refused { .. } => "The cause is the database's own message.",
        }
    }
}

/// On which version a write is based.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Expected {
    /// The aggregate must not exist yet.
    New,
    /// It must be at exactly this version (at least 1).
    Exactly(Version),
    /// Whatever it is at: for applications whose own conditional update has decided already.
    Any,
}

impl Expected {
    /// What a loaded version expects: 0 is "must not exist yet".
    pub fn after(version: Version) -> Self {
        if version == 0 { Self::New } else { Self::Exactly(version) }
    }
}

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::New => f.write_str("0 (new)"),
            Self::Exactly(version) => write!(f, "{version}"),
            Self::Any => f.write_str("any"),
        }
    }
}

/// Facts to append to one aggregate, with everything that commits together with them.
#[derive(Debug, Clone, PartialEq)]
pub struct Append {
    /// Which aggregate.
    pub aggregate: AggregateKey,
    /// On which version the facts are based.
    pub expected: Expected,
    /// The facts, in order. At least one.
    pub events: Vec<NewEvent>,
    /// The folded state after them. `None` for an application that keeps the state in tables of its own: a folded state
    /// that is there is then out of date, and is removed.
    pub snapshot: Option<Snapshot>,
    /// Changes of the machine's state, in order.
    pub state_changes: Vec<StateChange>,
    /// What it does to the deadline of the state the aggregate waits in.
    pub deadline: DeadlineChange,
    /// Circumstances of the change.
    pub context: ChangeContext,
}

/// What an append does to the deadline of the state its aggregate waits in. It commits with the append.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeadlineChange {
    /// The state that is left has a deadline: its timer is cancelled, unless it has begun.
    pub leaves: bool,
    /// The state that is entered has one: this timer is scheduled. See [`NewTimer::of_deadline`].
    pub enters: Option<NewTimer>,
}

/// A fact on its way into the store.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// UUIDv7.
    pub event_id: EventId,
    /// Its stored name.
    pub event_type: EventName,
    /// The shape of its payload.
    pub schema_version: u16,
    /// The fact.
    pub payload: Payload,
    /// The channels that get it: one outbox row each.
    pub channels: Routing,
}

/// Which channels get a fact.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Routing {
    /// Those whose patterns fit its type, as the application has declared them.
    #[default]
    ByType,
    /// These, whatever their patterns say.
    To(Vec<ChannelName>),
    /// None: it stands in the log, and is never published.
    Nowhere,
}

impl Routing {
    /// The channels that are named. None as long as it is not known which [`ByType`](Self::ByType) means.
    pub fn channels(&self) -> &[ChannelName] {
        match self {
            Self::To(channels) => channels,
            Self::ByType | Self::Nowhere => &[],
        }
    }
}

/// What an application has declared about facts that are appended without a command. The store asks it, so that such facts
/// are checked, routed and folded as those of commands are.
pub trait AppendRules: Send + Sync {
    /// Whether aggregates of this kind have rules: then the store locks the row and shows it.
    fn concern(&self, kind: &AggregateKind) -> bool;

    /// The append as it is to be written on what is there now: with its channels, and, if the kind has rules, with the
    /// changes of state, the deadline and the folded state that follow.
    ///
    /// # Errors
    /// `ForbiddenEvent`: an event that the aggregate does not have, whose payload it cannot read, that its machine does not
    /// allow, or that a channel cannot carry.
    fn complete(&self, append: &Append, current: Option<&AggregateRow>) -> StoreResult<Append>;
}

/// The folded state of an aggregate.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The state as JSON.
    pub data: Payload,
    /// Which serialized form it has.
    pub version: u16,
}

/// One step of an aggregate's state machine.
#[derive(Debug, Clone, PartialEq)]
pub struct StateChange {
    /// `None` when the aggregate begins.
    pub from: Option<String>,
    /// The state entered.
    pub to: String,
    /// Stable code.
    pub reason: Option<String>,
    /// Text for people.
    pub message: Option<String>,
    /// The fact that did it: an index into [`Append::events`].
    pub event_index: usize,
}

/// What an append led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The version of the aggregate after the last event.
    pub version: Version,
}

/// A command as it arrives.
#[derive(Debug, Clone, PartialEq)]
pub struct NewCommand {
    /// Its identity.
    pub command_id: CommandId,
    /// Its stored name.
    pub command_type: CommandName,
    /// The aggregate it is for.
    pub aggregate: AggregateKey,
    /// What is asked.
    pub payload: Payload,
    /// Circumstances: `occurred_at` is when it arrived.
    pub context: ChangeContext,
}

impl NewCommand {
    /// Whether a recorded command is this same one: the id alone does not make it so. Nor do two who ask for the same
    /// under one id: the answer to one of them is not for the other.
    pub fn is_same_as(&self, record: &CommandRecord) -> bool {
        let actors = self.context.actor_id.as_ref().zip(record.command.context.actor_id.as_ref());
        actors.is_none_or(|(asks, asked)| asks == asked)
            && self.command_type == record.command.command_type
            && self.aggregate == record.command.aggregate
            && self.payload.means_the_same_as(&record.command.payload)
    }
}

/// In which status the writer found the command: the write is refused when that is no longer so.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// Not recorded: the write records it.
    Nowhere,
    /// Recorded FAILED with this many retries.
    Failed {
        /// The retry count found.
        retry_count: u32,
    },
    /// Claimed by this instance under this lease.
    Claimed(LeaseGrant),
}

/// The whole effect of a command that was decided.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletedCommand {
    /// The command.
    pub command: NewCommand,
    /// How it was found.
    pub found: Found,
    /// When work on it began.
    pub started_at: DateTime<Utc>,
    /// When it was decided.
    pub finished_at: DateTime<Utc>,
    /// The version of the aggregate it was decided on: its answer when it decided nothing.
    pub decided_on: Version,
    /// What it leads to; `None` when the decision was that nothing happens.
    pub append: Option<Append>,
    /// Only while this grant is the newest of its lease, for a command that a holder sends at once.
    pub fence: Option<LeaseGrant>,
}

/// A command that led to nothing, recorded after its transaction was rolled back.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedCommand {
    /// The command.
    pub command: NewCommand,
    /// How it was found.
    pub found: Found,
    /// When work on it began.
    pub started_at: DateTime<Utc>,
    /// When it failed.
    pub failed_at: DateTime<Utc>,
    /// Stable code of the error.
    pub reason: String,
    /// Text for people.
    pub message: String,
    /// Retries used up so far, this failure included if it will be retried.
    pub retry_count: u32,
    /// When to try again; `None` is never (unless someone sends it again).
    pub next_retry_at: Option<DateTime<Utc>>,
}

/// A row of the command box.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandRecord {
    /// The command as it arrived.
    pub command: NewCommand,
    /// Where it is.
    pub status: CommandStatus,
    /// Since when.
    pub status_changed_at: DateTime<Utc>,
    /// Stable code of why.
    pub status_reason: Option<String>,
    /// Text of why.
    pub status_message: Option<String>,
    /// Retries used up.
    pub retry_count: u32,
    /// When the next retry is due.
    pub next_retry_at: Option<DateTime<Utc>>,
    /// Who works on it.
    pub claim: Option<Claim>,
    /// When work on it began.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// What it led to, once COMPLETED.
    pub result: Option<CommandResult>,
}

/// What a completed command led to: the events `first_version..=last_version` of its aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandResult {
    /// The version of the aggregate after the command.
    pub aggregate_version: Version,
    /// How many events it produced; 0 when it changed nothing.
    pub event_count: u32,
}

/// An aggregate and, if asked for, a command: read together in one round trip.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Loaded {
    /// The aggregate's row, if it exists.
    pub aggregate: Option<AggregateRow>,
    /// The command's row, if it is recorded.
    pub command: Option<CommandRecord>,
}

/// The current state of an aggregate: one row, whatever stands behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct AggregateRow {
    /// Which.
    pub aggregate: AggregateKey,
    /// How many events it has.
    pub version: Version,
    /// The folded state, if Towpath keeps it.
    pub snapshot: Option<Snapshot>,
    /// The state machine's state.
    pub state: Option<String>,
    /// Since when.
    pub state_changed_at: Option<DateTime<Utc>>,
    /// Stable code of why.
    pub state_reason: Option<String>,
    /// Text of why.
    pub state_message: Option<String>,
    /// The tenant's business status.
    pub status: Option<String>,
    /// Whose it is.
    pub tenant_id: Option<TenantId>,
    /// When its first event happened.
    pub created_at: DateTime<Utc>,
    /// When its last event happened.
    pub updated_at: DateTime<Utc>,
}

/// A row of an aggregate's history (S4).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StateEvent {
    /// Which aggregate.
    pub aggregate: AggregateKey,
    /// The version that did it.
    pub aggregate_version: Version,
    /// The fact that did it.
    pub event_id: EventId,
    /// The state left; `None` at the beginning.
    pub from_state: Option<String>,
    /// The state entered.
    pub to_state: String,
    /// Stable code.
    pub reason: Option<String>,
    /// Text for people.
    pub message: Option<String>,
    /// Who asked.
    pub actor_id: Option<ActorId>,
    /// By which request.
    pub request_id: Option<RequestId>,
    /// In which trace.
    pub trace_id: Option<TraceId>,
    /// When.
    pub created_at: DateTime<Utc>,
}

/// Everything that belongs to one correlation id, in order of time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Flow {
    /// The commands.
    pub commands: Vec<CommandRecord>,
    /// The events.
    pub events: Vec<RecordedEvent>,
    /// Payloads with more bytes than this are left out (they are `null`), because the flow would be too large to be
    /// shown as a whole. Nothing where all of them are there.
    pub payloads_up_to: Option<u64>,
    /// Whether there is more of it than was read.
    pub truncated: bool,
}

/// What a run of the sequencer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequenced {
    /// How many events got a position.
    pub count: u64,
    /// The last position given so far.
    pub head: Position,
}

/// Which outbox rows to take.
#[derive(Debug, Clone)]
pub struct OutboxClaim<'a> {
    /// Of which channel.
    pub channel: &'a ChannelName,
    /// Of which partitions. The caller holds their leases.
    pub partitions: &'a [u16],
    /// How many at most.
    pub limit: u32,
    /// What is due.
    pub now: DateTime<Utc>,
    /// How much it may bring otherwise.
    pub room: ClaimRoom,
}

/// How much a claim of outbox rows may bring, beside their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimRoom {
    /// How many rows of one lane at most: one that has many must not hold up those behind it.
    pub per_lane: u32,
    /// How many rows are looked through for those of other lanes; at least `limit` are.
    pub depth: u32,
    /// After how many bytes of payloads no further row is taken. One row comes, however large it is.
    pub bytes: u64,
}

impl ClaimRoom {
    /// As many as there are.
    pub const UNLIMITED: Self = Self { per_lane: u32::MAX, depth: 0, bytes: i64::MAX as u64 };
}

/// An outbox row with the fact it is about.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxItem {
    /// The row.
    pub outbox_id: u64,
    /// The lane of its aggregate.
    pub lane: Lane,
    /// Failures so far.
    pub retry_count: u32,
    /// Where it is.
    pub status: OutboxStatus,
    /// The fact.
    pub event: EventEnvelope,
}

/// How the publishing of one outbox row ended.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxResult {
    /// The row.
    pub outbox_id: u64,
    /// Its event. A database that has lost its last rows gives their numbers to others: what is known of one event says
    /// nothing of another.
    pub event_id: EventId,
    /// Its lane, as claimed.
    pub lane: Lane,
    /// How it ended.
    pub outcome: OutboxOutcome,
}

/// The ways publishing can end.
#[derive(Debug, Clone, PartialEq)]
pub enum OutboxOutcome {
    /// The broker has confirmed it.
    Sent,
    /// Try again later. With `park`, later events of its lane wait behind it.
    Retry {
        /// When.
        at: DateTime<Utc>,
        /// Stable code.
        reason: String,
        /// Text for people.
        message: String,
        /// Whether order is kept.
        park: bool,
    },
    /// Given up. With `park`, its lane stands still until an operator decides.
    Failed {
        /// Stable code.
        reason: String,
        /// Text for people.
        message: String,
        /// Whether order is kept.
        park: bool,
    },
}

/// Where an outbox row is.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxRow {
    /// The row.
    pub outbox_id: u64,
    /// The channel.
    pub channel: ChannelName,
    /// The fact.
    pub event_id: EventId,
    /// Its lane.
    pub lane: Lane,
    /// Where it is.
    pub status: OutboxStatus,
    /// Since when.
    pub status_changed_at: DateTime<Utc>,
    /// Stable code of why.
    pub status_reason: Option<String>,
    /// Text of why.
    pub status_message: Option<String>,
    /// Failures so far.
    pub retry_count: u32,
    /// When it is due again.
    pub next_retry_at: Option<DateTime<Utc>>,
    /// Since when it waits behind another of its lane.
    pub parked_at: Option<DateTime<Utc>>,
}

/// Which outbox rows that were given up. What is not said fits all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailedFilter {
    /// Of this channel.
    pub channel: Option<ChannelName>,
    /// Given up for this reason (a stable code).
    pub reason: Option<String>,
    /// With an event of this type.
    pub event_type: Option<String>,
    /// Given up before this moment.
    pub failed_before: Option<DateTime<Utc>>,
    /// Given up at this moment or later.
    pub failed_since: Option<DateTime<Utc>>,
}

/// An outbox row that was given up, with the fact it is about.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedRow {
    /// The row.
    pub row: OutboxRow,
    /// The fact.
    pub event: EventEnvelope,
}

/// A lease that was granted: the right to do one thing, until somebody else holds it. Holder and epoch are checked in the
/// transaction of every effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseGrant {
    /// What is held.
    pub lease: LeaseName,
    /// By whom. A database that comes back from an older copy may give an epoch twice.
    pub holder: InstanceId,
    /// Rises each time the lease changes hands.
    pub epoch: u64,
}

impl LeaseGrant {
    /// How a row says that it was claimed under this grant.
    pub fn claim(&self) -> Claim {
        Claim { lease: self.lease.clone(), epoch: self.epoch }
    }
}

/// Under which lease a row was claimed, as the row says it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The lease.
    pub lease: LeaseName,
    /// In which epoch.
    pub epoch: u64,
}

/// A lease as it stands: who holds it, and whether that has run out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseStanding {
    /// Which lease.
    pub lease: LeaseName,
    /// Who took it last.
    pub holder: InstanceId,
    /// In which epoch.
    pub epoch: u64,
    /// Whether it still lives, by the database's clock.
    pub live: bool,
}

/// Whether a delivery is the first of its (event, handler).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InboxMark {
    /// The handler's change may be made.
    First,
    /// It was made before: acknowledge and do nothing.
    Duplicate,
    /// It was given up and waits for an operator: acknowledge and do nothing.
    Dead,
}

/// Where a delivery is.
#[derive(Debug, Clone, PartialEq)]
pub struct InboxEntry {
    /// The fact.
    pub event_id: EventId,
    /// The handler.
    pub handler: HandlerName,
    /// Where it is.
    pub status: InboxStatus,
    /// Failures so far.
    pub retry_count: u32,
    /// Stable code of the last failure.
    pub status_reason: Option<String>,
    /// Text of the last failure.
    pub status_message: Option<String>,
}

/// A failed delivery, recorded after its transaction was rolled back.
#[derive(Debug, Clone, PartialEq)]
pub struct InboxFailure<'a> {
    /// The fact.
    pub event_id: EventId,
    /// The handler.
    pub handler: &'a HandlerName,
    /// Stable code.
    pub reason: &'a str,
    /// Text for people.
    pub message: &'a str,
    /// When.
    pub failed_at: DateTime<Utc>,
    /// No more attempts.
    pub dead: bool,
}

/// Something to do later: a command that is due at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct NewTimer {
    /// Its identity, by which it can be cancelled.
    pub timer_id: Uuid,
    /// When.
    pub due_at: DateTime<Utc>,
    /// What: the command that is then sent.
    pub command_type: CommandName,
    /// To whom.
    pub aggregate: AggregateKey,
    /// With what.
    pub payload: Payload,
    /// The flow it belongs to.
    pub correlation_id: CorrelationId,
    /// What asked for it.
    pub causation_id: Option<CausationId>,
    /// Of a deadline: the event that entered the state which must not last longer. `None` for any other timer.
    pub entered_by: Option<EventId>,
    /// When it was asked for.
    pub created_at: DateTime<Utc>,
}

impl NewTimer {
    /// The timer of a deadline. It has the id of the event that entered the state, which is also its cause: whoever
    /// leaves the state finds it by the aggregate's history, and no two entries share one.
    pub fn of_deadline(
        entered_by: EventId,
        due_at: DateTime<Utc>,
        command_type: CommandName,
        aggregate: AggregateKey,
        context: &ChangeContext,
    ) -> Self {
        Self {
            timer_id: entered_by.0,
            due_at,
            command_type,
            aggregate,
            payload: Payload::empty(),
            correlation_id: context.correlation_id.clone(),
            causation_id: Some(CausationId::from(entered_by)),
            entered_by: Some(entered_by),
            created_at: context.occurred_at,
        }
    }
}

/// A timer and where it is (S5).
#[derive(Debug, Clone, PartialEq)]
pub struct Timer {
    /// What was scheduled.
    pub timer: NewTimer,
    /// Where it is.
    pub state: TaskState,
    /// Failures so far.
    pub retry_count: u32,
    /// Stable code of the last failure.
    pub error_code: Option<String>,
    /// Text of the last failure.
    pub error_message: Option<String>,
}

/// How a due timer ended.
#[derive(Debug, Clone, PartialEq)]
pub enum TimerOutcome {
    /// Its command was sent.
    Succeeded,
    /// It was not needed any more.
    Skipped {
        /// Stable code.
        reason: String,
    },
    /// It could not be sent; try again at the given moment, or never.
    Failed {
        /// Stable code.
        error_code: String,
        /// Text for people.
        error_message: String,
        /// When to try again.
        retry_at: Option<DateTime<Utc>>,
    },
    /// It could not be sent now, and that says nothing of it: again at the given moment, without being counted.
    Postponed {
        /// Stable code.
        error_code: String,
        /// Text for people.
        error_message: String,
        /// When to try again.
        until: DateTime<Utc>,
    },
}

/// A channel that is registered in the database.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelRow {
    /// Its identity.
    pub channel_id: Uuid,
    /// Its name, unique among the living.
    pub name: ChannelName,
    /// The last position a tracker channel has published.
    pub position: Position,
    /// How often an operator has set the position.
    pub reset_count: u64,
    /// Paused since, by whom and why (S2).
    pub disabled: Option<Disabled>,
}

impl ChannelRow {
    /// Where its tracker is.
    pub fn place(&self) -> TrackerPlace {
        TrackerPlace { position: self.position, reset_count: self.reset_count }
    }
}

/// Where a tracker is. The position alone would not do: a tracker that is set back to where its batch began would go on as
/// if nothing had been said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackerPlace {
    /// The last position it has published.
    pub position: Position,
    /// How often an operator has set it.
    pub reset_count: u64,
}

/// An aggregate that a tracker has left behind, because one of its events cannot be published. The others go on (P3).
#[derive(Debug, Clone, PartialEq)]
pub struct ParkedAggregate {
    /// Which.
    pub aggregate: AggregateKey,
    /// The first version that was not published.
    pub version: Version,
    /// How often that one has failed.
    pub attempts: u32,
    /// When it is tried again; nothing when it was given up until an operator decides.
    pub due_at: Option<DateTime<Utc>>,
    /// Stable code.
    pub reason: String,
    /// Text for people.
    pub message: String,
    /// Since when.
    pub parked_at: DateTime<Utc>,
}

/// A claim of commands or timers ends with the last that has room in so many bytes of payloads.
pub const CLAIMED_BYTES: u64 = 4 << 20;

/// Which of the aggregates that a channel has left behind.
#[derive(Debug, Clone, Copy)]
pub enum Parked<'a> {
    /// All of them, by name.
    All,
    /// Those that are to be tried again by now, the longest due first.
    Due {
        /// The moment.
        now: DateTime<Utc>,
        /// How many at most.
        limit: u32,
    },
    /// Those among these, in no order.
    Among(&'a [AggregateKey]),
}

/// Why something is switched off (S2).
#[derive(Debug, Clone, PartialEq)]
pub struct Disabled {
    /// Since when.
    pub at: DateTime<Utc>,
    /// By whom.
    pub by_id: Option<ActorId>,
    /// Stable code.
    pub reason: String,
    /// Text for people.
    pub message: Option<String>,
}

/// How much of something there is, by status.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts<S> {
    /// Each status that occurs, with its number of rows.
    pub by_status: Vec<(S, u64)>,
}

impl<S: PartialEq> Counts<S> {
    /// The number of rows in a status.
    pub fn of(&self, status: S) -> u64 {
        self.by_status.iter().find(|(found, _)| *found == status).map_or(0, |(_, count)| *count)
    }
}

/// The store contract. The conformance suite in the test kit is its meaning.
#[async_trait]
pub trait Store: super::operations::Operations {
    /// What this adapter promises beyond the contract.
    fn promises(&self) -> StorePromises;

    /// Brings the tables to this build's version. Safe when two instances start at once; refuses a database from
    /// a newer version. Answers the versions applied.
    async fn migrate(&self) -> StoreResult<Vec<u32>>;

    /// Asks the database for an answer and checks its schema version.
    async fn ready(&self) -> StoreResult<()>;

    /// The database's time: the one clock that all hosts share.
    async fn now(&self) -> StoreResult<DateTime<Utc>>;

    /// Opens a transaction. The caller's own sqlx transaction is moved into the adapter, and works the same way.
    async fn begin(&self) -> StoreResult<Box<dyn StoreTx>>;

    // Commands ---------------------------------------------------------------------------------------------

    /// Reads an aggregate and a command in one round trip.
    async fn load(&self, aggregate: &AggregateKey, command: Option<&CommandId>) -> StoreResult<Loaded>;

    /// Sets a connection aside for one command, so that loading and writing do not each have to get one.
    async fn command_session(&self) -> StoreResult<Box<dyn CommandSession>>;

    /// Writes the whole effect of a command in one transaction: aggregate, events, history, outbox rows and the
    /// command's COMPLETED row, or none of them (P1).
    ///
    /// # Errors
    /// `VersionConflict`, `DuplicateCommand`, `DuplicateEvent`, `CommandTaken`, `Fenced`: nothing was written.
    async fn complete_command(&self, completed: &CompletedCommand) -> StoreResult<CommandResult>;

    /// Records a command as FAILED, in a transaction of its own.
    async fn fail_command(&self, failed: &FailedCommand) -> StoreResult<()>;

    /// Records a command as PENDING, for a worker to run. Answers the record that was there before, if any.
    async fn accept_command(&self, command: &NewCommand) -> StoreResult<Option<CommandRecord>>;

    /// Puts a FAILED command back to PENDING, due at once, if it has still been retried so often. Answers whether.
    async fn requeue_command(
        &self,
        command_id: &CommandId,
        retry_count: u32,
        now: DateTime<Utc>,
    ) -> StoreResult<bool>;

    /// Takes commands of these types that are due (PENDING, or FAILED with a retry due) and marks them PROCESSING
    /// under a lease: so many at most, and no more than have [`CLAIMED_BYTES`] of payloads together, but one. Types that
    /// this instance does not know stay for one that does.
    async fn claim_commands(
        &self,
        lease: &LeaseGrant,
        command_types: &[&str],
        now: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<Vec<CommandRecord>>;

    /// Puts commands back to PENDING that were claimed under this grant and could not be ended: the holder lives on,
    /// so nobody else would.
    async fn return_commands(
        &self,
        grant: &LeaseGrant,
        command_ids: &[CommandId],
        now: DateTime<Utc>,
    ) -> StoreResult<u64>;

    /// Puts commands back to PENDING that were claimed under this grant, except those that its holder knows of: when the
    /// answer to a claim was lost, it may have been made all the same. Answers how many.
    async fn return_unseen_commands(
        &self,
        grant: &LeaseGrant,
        seen: &[CommandId],
        now: DateTime<Utc>,
    ) -> StoreResult<u64>;

    /// Puts commands back to PENDING whose holder is gone: its lease has a higher epoch by now, was released, or
    /// has run out. A holder that merely slept is refused by its epoch when it tries to finish (P7). Recoveries are
    /// counted: a command that has lost its holder `most` times before ends FAILED instead.
    async fn recover_commands(&self, now: DateTime<Utc>, most: u32) -> StoreResult<u64>;

    /// Deletes some of the commands that were received and ended (COMPLETED, or FAILED for good) before a moment, no more
    /// than `limit`; fenced by the lease. Answers how many: none when there are no more. Whoever sends one of them again
    /// under its id has it run again.
    async fn clean_commands(
        &self,
        lease: &LeaseGrant,
        ended_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64>;

    /// One command.
    async fn command(&self, command_id: &CommandId) -> StoreResult<Option<CommandRecord>>;

    /// How many commands are in each status.
    async fn command_counts(&self) -> StoreResult<Counts<CommandStatus>>;

    // Aggregates -------------------------------------------------------------------------------------------

    /// Events of an aggregate behind a version, in order.
    async fn events_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> StoreResult<Vec<RecordedEvent>>;

    /// The same, as many of the first ones as have so many bytes of payload together, and at least one if there is any.
    async fn events_of_within(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>>;

    /// State history of an aggregate behind a version, in order.
    async fn history_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> StoreResult<Vec<StateEvent>>;

    /// The last change of an aggregate's state: how it came to where it is.
    async fn last_state_change(&self, aggregate: &AggregateKey) -> StoreResult<Option<StateEvent>>;

    /// Everything with this correlation id, in order of time; at most `limit` of each.
    async fn flow(&self, correlation: &CorrelationId, limit: u32) -> StoreResult<Flow>;

    /// Sets the business status of an aggregate (S1, S7): one of the values in the tenant's dictionary.
    async fn set_status(
        &self,
        aggregate: &AggregateKey,
        status: &str,
        reason: Option<&str>,
        now: DateTime<Utc>,
    ) -> StoreResult<()>;

    /// Adds a value to a tenant's status dictionary (S7). Adding it again changes nothing.
    async fn add_status_value(&self, tenant: &TenantId, value: &str) -> StoreResult<()>;

    // Log --------------------------------------------------------------------------------------------------

    /// Gives committed events without a position the next ones: gapless, in order per aggregate (P5). Fenced by
    /// the lease, and safe even with two callers at once.
    async fn sequence(&self, lease: &LeaseGrant, limit: u32) -> StoreResult<Sequenced>;

    /// The last position given. Equals the number of positioned events (N1).
    async fn head(&self) -> StoreResult<Position>;

    /// Events with a position in `low..=high`, in order (N1).
    async fn events_between(&self, low: Position, high: Position) -> StoreResult<Vec<RecordedEvent>>;

    /// The same, as many of the first ones as have so many bytes of payload together, and at least one if there is any.
    async fn events_within(
        &self,
        low: Position,
        high: Position,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>>;

    // Outbox -----------------------------------------------------------------------------------------------

    /// Takes rows that are due, in order per lane and as many as there is room for; lanes that are parked are left out,
    /// except for the row they wait for once that is due. Nothing is marked: the caller's leases on the partitions are the claim, and
    /// they are checked again when results are written.
    async fn claim_outbox(&self, claim: &OutboxClaim<'_>) -> StoreResult<Vec<OutboxItem>>;

    /// Writes how publishing ended, in one transaction that checks every lease. Parks and unparks lanes.
    async fn record_outbox(
        &self,
        leases: &[LeaseGrant],
        channel: &ChannelName,
        now: DateTime<Utc>,
        results: &[OutboxResult],
    ) -> StoreResult<()>;

    /// Goes on without a row that is FAILED or RETRY: it is SKIPPED, with a reason for people, and what waited behind it
    /// follows. Answers whether it was in one of these states.
    async fn skip_outbox(&self, outbox_id: u64, reason: &str, now: DateTime<Utc>) -> StoreResult<bool>;

    /// Puts FAILED rows back to RETRY, due at once, with their attempts forgotten. Answers how many.
    async fn reopen_outbox(&self, outbox_ids: &[u64], now: DateTime<Utc>) -> StoreResult<u64>;

    /// Rows that were given up and fit a filter, with their facts, by number: the next ones behind `after`.
    async fn failed_outbox(
        &self,
        filter: &FailedFilter,
        after: u64,
        limit: u32,
    ) -> StoreResult<Vec<FailedRow>>;

    /// How many rows were given up and fit a filter.
    async fn count_failed(&self, filter: &FailedFilter) -> StoreResult<u64>;

    /// As [`reopen_outbox`](Self::reopen_outbox), for the first `limit` rows that fit a filter.
    async fn reopen_failed(&self, filter: &FailedFilter, limit: u32, now: DateTime<Utc>) -> StoreResult<u64>;

    /// Deletes some of the SENT rows that were sent before a moment, no more than about `limit`; fenced by the lease.
    /// Answers how many: none when there are no more.
    async fn clean_outbox(
        &self,
        lease: &LeaseGrant,
        sent_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64>;

    /// Outbox rows of one event.
    async fn outbox_of(&self, event_id: EventId) -> StoreResult<Vec<OutboxRow>>;

    /// How many rows of a channel are in each status.
    async fn outbox_counts(&self, channel: &ChannelName) -> StoreResult<Counts<OutboxStatus>>;

    // Leases -----------------------------------------------------------------------------------------------

    /// Takes a lease that is free, has run out, or is the holder's own; `None` when somebody else holds it. Every
    /// grant raises the epoch: what an earlier holder of the same name still does is refused.
    async fn acquire_lease(
        &self,
        lease: &LeaseName,
        holder: &InstanceId,
        for_: Duration,
    ) -> StoreResult<Option<LeaseGrant>>;

    /// Takes those of many leases that are free, have run out, or are the holder's own, in one transaction.
    async fn acquire_leases(
        &self,
        leases: &[LeaseName],
        holder: &InstanceId,
        for_: Duration,
    ) -> StoreResult<Vec<LeaseGrant>>;

    /// Keeps many leases longer, in one statement, and answers those that are still held. The others have changed
    /// hands.
    async fn renew_leases(&self, grants: &[LeaseGrant], for_: Duration) -> StoreResult<Vec<LeaseGrant>>;

    /// The leases whose names begin with a text, by name.
    async fn leases(&self, prefix: &str) -> StoreResult<Vec<LeaseStanding>>;

    /// Keeps a lease longer. `Fenced` when it has changed hands.
    async fn renew_lease(&self, grant: &LeaseGrant, for_: Duration) -> StoreResult<()>;

    /// Gives a lease back. Giving back what has changed hands does nothing.
    async fn release_lease(&self, grant: &LeaseGrant) -> StoreResult<()>;

    /// Gives many leases back at once.
    async fn release_leases(&self, grants: &[LeaseGrant]) -> StoreResult<()>;

    // Inbox ------------------------------------------------------------------------------------------------

    /// Records a failed delivery and answers the number of failures so far.
    async fn fail_delivery(&self, failure: &InboxFailure<'_>) -> StoreResult<u32>;

    /// Deletes some of the deliveries that were HANDLED before a moment, no more than about `limit`; fenced by the lease.
    /// Answers how many: none when there are no more. A delivery of such an event is first again: receivers refuse what
    /// is older than this horizon.
    async fn clean_inbox(
        &self,
        lease: &LeaseGrant,
        handled_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64>;

    /// Where a delivery is.
    async fn inbox_entry(&self, event_id: EventId, handler: &HandlerName) -> StoreResult<Option<InboxEntry>>;

    // Timers -----------------------------------------------------------------------------------------------

    /// Takes timers for commands of these types that are due and marks them running under a lease. Timers whose holder
    /// is gone are taken too. So many at most, and no more than have [`CLAIMED_BYTES`] of payloads together, but one. Types
    /// that this instance does not know stay for one that does.
    async fn claim_timers(
        &self,
        lease: &LeaseGrant,
        command_types: &[&str],
        now: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<Vec<Timer>>;

    /// Lets timers wait again that were claimed under this grant, except those that its holder knows of: when the answer to
    /// a claim was lost, it may have been made all the same. Answers how many.
    async fn return_unseen_timers(
        &self,
        grant: &LeaseGrant,
        seen: &[Uuid],
        now: DateTime<Utc>,
    ) -> StoreResult<u64>;

    /// Records how a claimed timer ended; `Fenced` when it was taken over.
    async fn finish_timer(
        &self,
        lease: &LeaseGrant,
        timer_id: Uuid,
        outcome: &TimerOutcome,
        now: DateTime<Utc>,
    ) -> StoreResult<()>;

    /// Timers that wait for their moment, the next one first; for commands of these types, or of any.
    async fn waiting_timers(&self, command_types: Option<&[&str]>, limit: u32) -> StoreResult<Vec<Timer>>;

    /// One timer.
    async fn timer(&self, timer_id: Uuid) -> StoreResult<Option<Timer>>;

    // Channels ---------------------------------------------------------------------------------------------

    /// Registers a channel. `NameTaken` when a living one has the name; a removed one does not count (S3).
    async fn add_channel(
        &self,
        channel_id: Uuid,
        name: &ChannelName,
        position: Position,
        now: DateTime<Utc>,
    ) -> StoreResult<()>;

    /// Pauses a channel, with who and why (S2); `None` resumes it.
    async fn disable_channel(&self, name: &ChannelName, disabled: Option<&Disabled>) -> StoreResult<()>;

    /// Removes a channel softly (S3): its row stays, its name is free again. What it has left behind is forgotten.
    async fn remove_channel(
        &self,
        name: &ChannelName,
        by: Option<&ActorId>,
        reason: &str,
        now: DateTime<Utc>,
    ) -> StoreResult<()>;

    /// Moves a channel's position, if it lives and is still where the caller believes it to be. Answers whether;
    /// `Fenced` when the lease has changed hands, and then nothing has moved. By its id: another channel may have its
    /// name by now.
    async fn advance_channel(
        &self,
        lease: &LeaseGrant,
        channel_id: Uuid,
        from: TrackerPlace,
        to: Position,
    ) -> StoreResult<bool>;

    /// As [`advance_channel`](Self::advance_channel), and in the same transaction notes which aggregates wait, anew or
    /// otherwise than before, and which no longer do.
    async fn park_in_channel(
        &self,
        lease: &LeaseGrant,
        channel_id: Uuid,
        from: TrackerPlace,
        to: Position,
        parked: &[ParkedAggregate],
        opened: &[AggregateKey],
    ) -> StoreResult<bool>;

    /// The aggregates that a channel has left behind since it was last set. Of a removed one nothing is known.
    async fn parked_in_channel(
        &self,
        channel_id: Uuid,
        reset_count: u64,
        which: Parked<'_>,
    ) -> StoreResult<Vec<ParkedAggregate>>;

    /// Lets those be tried again that a channel has given up. Answers how many.
    async fn reopen_parked(&self, name: &ChannelName, now: DateTime<Utc>) -> StoreResult<u64>;

    /// Sets a channel's position, wherever it is: an operator's decision. What it has left behind is forgotten.
    async fn reset_channel(&self, name: &ChannelName, position: Position) -> StoreResult<()>;

    /// The living channels, by name.
    async fn channels(&self) -> StoreResult<Vec<ChannelRow>>;
}

/// A connection that is set aside for one command. Nothing is open on it between the two calls.
#[async_trait]
pub trait CommandSession: Send {
    /// As [`Store::load`].
    async fn load(&mut self, aggregate: &AggregateKey, command: &CommandId) -> StoreResult<Loaded>;

    /// Gives the connection back early. Must be called before asking the store for anything else in between:
    /// callers that each hold a connection and wait for another would wait for ever.
    fn release(&mut self);

    /// As [`Store::complete_command`].
    async fn complete(&mut self, completed: &CompletedCommand) -> StoreResult<CommandResult>;
}

/// An open transaction of the store. Dropped without a commit, it is rolled back.
#[async_trait]
pub trait StoreTx: Send {
    /// Appends facts. On an error nothing of this append is written, and the transaction should be rolled back.
    async fn append(&mut self, append: &Append) -> StoreResult<Appended>;

    /// Marks a delivery as handled, unless it is already. A second transaction that marks the same delivery waits
    /// for the first to end.
    async fn mark(
        &mut self,
        event_id: EventId,
        handler: &HandlerName,
        now: DateTime<Utc>,
    ) -> StoreResult<InboxMark>;

    /// Schedules a timer. `NameTaken` when its id is: the transaction should be rolled back.
    async fn schedule(&mut self, timer: &NewTimer) -> StoreResult<()>;

    /// Cancels a timer that has not begun; answers whether it did.
    async fn cancel(&mut self, timer_id: Uuid, now: DateTime<Utc>) -> StoreResult<bool>;

    /// Writes the answer of a claimed operation, to commit with its effect. From then on whoever asks again gets it.
    /// `Fenced` when the claim was lost or has its answer: the transaction must be rolled back.
    async fn answer(
        &mut self,
        claim: &OperationClaim,
        answer: &OperationAnswer,
        now: DateTime<Utc>,
    ) -> StoreResult<()>;

    /// Records a command for a worker to run once this is committed. Answers whether it was new: the same command id is
    /// recorded once.
    async fn send(&mut self, command: &NewCommand) -> StoreResult<bool>;

    /// Notes which unit of work this transaction is, so that somebody who did not see the answer to its commit can find out.
    /// `false` when a transaction of the same unit has committed; one that is open is waited for.
    async fn begin_unit(&mut self, unit_id: Uuid) -> StoreResult<bool>;

    /// Makes all of it true.
    async fn commit(self: Box<Self>) -> StoreResult<()>;

    /// Makes none of it true.
    async fn rollback(self: Box<Self>) -> StoreResult<()>;
}
