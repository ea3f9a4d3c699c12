//! What operators look through: commands, outbox rows, aggregates, and what an id belongs to.

use async_trait::async_trait;

use super::{AggregateRow, CommandRecord, FailedRow, StoreResult};
use crate::ids::{AggregateId, AggregateKey, AggregateKind, ChannelName, CommandId, CorrelationId};
use crate::lifecycle::{CommandStatus, OutboxStatus};

/// Which outbox rows. What is not said fits all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutboxFilter {
    /// Of this channel.
    pub channel: Option<ChannelName>,
    /// In this status.
    pub status: Option<OutboxStatus>,
}

/// How many bytes of payload a page of commands has at most, if it has more than one.
pub const COMMANDS_BYTES: u64 = 8 << 20;

/// What an id turned out to be the id of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoundAs {
    /// A command.
    Command,
    /// An event.
    Event,
    /// A flow.
    Flow,
    /// An aggregate.
    Aggregate,
}

/// What operators look through: commands, outbox rows, aggregates, and what an id belongs to.
#[async_trait]
pub trait Listings: Send + Sync + 'static {
    /// Commands, the last received first: the next `limit` behind one of them, or fewer where their payloads have more
    /// than [`COMMANDS_BYTES`] together.
    ///
    /// # Errors
    /// `Missing` when there is no such command to go on behind.
    async fn commands(
        &self,
        status: Option<CommandStatus>,
        behind: Option<&CommandId>,
        limit: u32,
    ) -> StoreResult<Vec<CommandRecord>>;

    /// Outbox rows that fit a filter, with their facts, by number: the next `limit` behind `after`. The payloads of the
    /// facts are not read, and are `null` here.
    async fn outbox_rows(&self, filter: &OutboxFilter, after: u64, limit: u32)
    -> StoreResult<Vec<FailedRow>>;

    /// One outbox row with its fact.
    async fn outbox_row(&self, outbox_id: u64) -> StoreResult<Option<FailedRow>>;

    /// Aggregates of a kind, by id: the next `limit` behind one of them. Their snapshots are not read.
    async fn aggregates(
        &self,
        kind: &AggregateKind,
        after: Option<&AggregateId>,
        limit: u32,
    ) -> StoreResult<Vec<AggregateRow>>;

    /// What an id is the id of, and the flows it belongs to. Which aggregates it could name is the caller's to say.
    async fn trace(
        &self,
        id: &str,
        aggregates: &[AggregateKey],
    ) -> StoreResult<Vec<(FoundAs, CorrelationId)>>;
}
