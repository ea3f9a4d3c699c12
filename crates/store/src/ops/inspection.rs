//! What only tests ask of the store.

use async_trait::async_trait;
use towpath_core::ids::{ChannelName, EventId, HandlerName};
use towpath_core::lifecycle::{CommandStatus, OutboxStatus};
use towpath_core::ports::queues::QueueDepth;
use towpath_core::ports::store::{Counts, InboxEntry, Inspection, OutboxRow, StoreResult};

use crate::rows::{read_outbox, select_list, stored};
use crate::schema::EVENT_OUTBOX;
use crate::sql::{Session, values};
use crate::store::{SqlStore, listing, reading};

#[async_trait]
impl Inspection for SqlStore {
    async fn command_counts(&self) -> StoreResult<Counts<CommandStatus>> {
        listing!(self, commands)
    }

    async fn outbox_of(&self, event_id: EventId) -> StoreResult<Vec<OutboxRow>> {
        reading!(self, outbox_of, event_id)
    }

    async fn outbox_counts(&self, channel: &ChannelName) -> StoreResult<Counts<OutboxStatus>> {
        listing!(self, outbox, channel)
    }

    async fn inbox_entry(&self, event_id: EventId, handler: &HandlerName) -> StoreResult<Option<InboxEntry>> {
        reading!(self, super::inbox::find, event_id, handler)
    }

    async fn queue_depth(&self, queue: &str) -> StoreResult<QueueDepth> {
        Ok(self.queue_depths(&[queue]).await?.into_iter().flatten().next().unwrap_or_default())
    }
}

async fn commands(session: &mut Session<'_>) -> StoreResult<Counts<CommandStatus>> {
    let sql = "SELECT status, COUNT(*) AS rows_in FROM command_box GROUP BY status";
    let mut counts = Counts { by_status: Vec::new() };
    for row in session.rows("commands.count", sql, values![]).await? {
        counts.by_status.push((stored(&row, "status")?, row.count("rows_in")?));
    }
    Ok(counts)
}

async fn outbox_of(session: &mut Session<'_>, event_id: EventId) -> StoreResult<Vec<OutboxRow>> {
    let sql = format!(
        "SELECT {} FROM event_outbox o WHERE o.event_id = ? ORDER BY o.channel",
        select_list(&EVENT_OUTBOX, "o", "")
    );
    session.rows("outbox.of", &sql, values![event_id.0]).await?.iter().map(read_outbox).collect()
}

async fn outbox(session: &mut Session<'_>, channel: &ChannelName) -> StoreResult<Counts<OutboxStatus>> {
    let sql = "SELECT status, COUNT(*) AS rows_in FROM event_outbox WHERE channel = ? GROUP BY status";
    let mut counts = Counts { by_status: Vec::new() };
    for row in session.rows("outbox.count", sql, values![channel.as_str()]).await? {
        counts.by_status.push((stored(&row, "status")?, row.count("rows_in")?));
    }
    Ok(counts)
}
