//! The command box: what was asked, who works on it, and how it ended.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{AggregateRow, Append, Claim, LeaseGrant, StoreResult};
use crate::envelope::ChangeContext;
use crate::ids::{AggregateKey, CommandId, Version};
use crate::lifecycle::CommandStatus;
use crate::name::CommandName;
use crate::payload::Payload;

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

/// A claim of commands or timers ends with the last that has room in so many bytes of payloads.
pub const CLAIMED_BYTES: u64 = 4 << 20;

/// The command box: what was asked, by whom it is worked on, and how it ended.
#[async_trait]
pub trait Commands: Send + Sync + 'static {
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

    /// One command.
    async fn command(&self, command_id: &CommandId) -> StoreResult<Option<CommandRecord>>;
}

/// A connection that is set aside for one command. Nothing is open on it between the two calls.
#[async_trait]
pub trait CommandSession: Send {
    /// As [`Commands::load`].
    async fn load(&mut self, aggregate: &AggregateKey, command: &CommandId) -> StoreResult<Loaded>;

    /// Gives the connection back early. Must be called before asking the store for anything else in between:
    /// callers that each hold a connection and wait for another would wait for ever.
    fn release(&mut self);

    /// As [`Commands::complete_command`].
    async fn complete(&mut self, completed: &CompletedCommand) -> StoreResult<CommandResult>;
}
