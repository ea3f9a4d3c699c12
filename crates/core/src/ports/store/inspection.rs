//! What only tests ask of a store.

use async_trait::async_trait;

use super::{InboxEntry, OutboxRow, QueueDepth, Store, StoreResult};
use crate::ids::{ChannelName, EventId, HandlerName};
use crate::lifecycle::{CommandStatus, OutboxStatus};

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

/// What only tests ask of a store. It is no part of [`Store`].
#[async_trait]
pub trait Inspection: Send + Sync + 'static {
    /// How many commands are in each status.
    async fn command_counts(&self) -> StoreResult<Counts<CommandStatus>>;

    /// Outbox rows of one event.
    async fn outbox_of(&self, event_id: EventId) -> StoreResult<Vec<OutboxRow>>;

    /// How many rows of a channel are in each status.
    async fn outbox_counts(&self, channel: &ChannelName) -> StoreResult<Counts<OutboxStatus>>;

    /// Where a delivery is.
    async fn inbox_entry(&self, event_id: EventId, handler: &HandlerName) -> StoreResult<Option<InboxEntry>>;

    /// How many messages a queue holds.
    async fn queue_depth(&self, queue: &str) -> StoreResult<QueueDepth>;
}

/// A store and what tests ask of it.
pub trait InspectedStore: Store + Inspection {}

impl<S: Store + Inspection> InspectedStore for S {}
