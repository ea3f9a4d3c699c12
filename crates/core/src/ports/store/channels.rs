//! Channels that are registered in the database, and how far their trackers are.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{LeaseGrant, StoreResult};
use crate::ids::{ActorId, AggregateKey, ChannelName, Position, Version};

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

/// Channels, and how far their trackers are.
#[async_trait]
pub trait Channels: Send + Sync + 'static {
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

    /// Moves a channel's position, if it lives and is still where the caller believes it to be, and in the same transaction
    /// notes which aggregates wait, anew or otherwise than before, and which no longer do. Answers whether it has moved;
    /// `Fenced` when the lease has changed hands, and then nothing has moved. By its id: another channel may have its
    /// name by now.
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
