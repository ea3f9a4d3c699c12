//! What only tests ask of the store.

use async_trait::async_trait;
use towpath_core::ids::{ChannelName, EventId, HandlerName};
use towpath_core::lifecycle::{CommandStatus, OutboxStatus};
use towpath_core::ports::queues::QueueDepth;
use towpath_core::ports::store::{Counts, InboxEntry, Inspection, OutboxRow, StoreResult};

use crate::store::{SqlStore, listing, reading};

#[async_trait]
impl Inspection for SqlStore {
    async fn command_counts(&self) -> StoreResult<Counts<CommandStatus>> {
        listing!(self, super::commands::counts)
    }

    async fn outbox_of(&self, event_id: EventId) -> StoreResult<Vec<OutboxRow>> {
        reading!(self, super::outbox::of_event, event_id)
    }

    async fn outbox_counts(&self, channel: &ChannelName) -> StoreResult<Counts<OutboxStatus>> {
        listing!(self, super::outbox::counts, channel)
    }

    async fn inbox_entry(&self, event_id: EventId, handler: &HandlerName) -> StoreResult<Option<InboxEntry>> {
        reading!(self, super::inbox::find, event_id, handler)
    }

    async fn queue_depth(&self, queue: &str) -> StoreResult<QueueDepth> {
        listing!(self, super::queues::depth, queue)
    }
}
