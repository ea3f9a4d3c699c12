//! Queues in the store: what the in-process broker is made of.
//!
//! The store keeps a topology and the messages that wait in its queues; it routes nothing. The broker decides where a
//! message goes and says so with every [`Parcel`]. Messages are taken under the lease of their receiver, and a row
//! names the lease and epoch that hold it: whoever lost a message can no longer settle it.
//!
//! Order of this file: the topology; what is put; what is taken and settled; and at the end the trait.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::{LeaseGrant, StoreError, StoreResult};
use crate::ids::LeaseName;
use crate::ports::broker::{Destination, Message, Topology};

/// The whole topology as it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Rises with every change. Nothing is ever removed.
    pub revision: u64,
    /// What exists.
    pub topology: Topology,
}

/// A message on its way into one queue.
#[derive(Debug, Clone, PartialEq)]
pub struct Parcel<'a> {
    /// The message. Its own destination and headers do not count.
    pub message: &'a Message,
    /// Where it goes.
    pub placement: &'a Placement,
}

/// Where one copy of a message goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Into which queue.
    pub queue: String,
    /// By which exchange and key it came there.
    pub destination: Destination,
    /// Its headers there.
    pub headers: Vec<(String, String)>,
    /// How long nobody may take it.
    pub delay: Option<Duration>,
}

/// Why messages were not put.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// Nothing was written.
    #[error("the messages were not written")]
    NotWritten(#[source] StoreError),
    /// The commit was asked for and its answer was lost: they may be there.
    #[error("whether the messages were written is unknown")]
    Unknown(#[source] StoreError),
}

/// Who takes messages, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receiver {
    /// From which queue.
    pub queue: String,
    /// Under which lease.
    pub grant: LeaseGrant,
    /// Whether the queue has one receiver at a time: the others wait until its lease is gone.
    pub alone: bool,
}

/// A message that was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct TakenMessage {
    /// The place in the queue. A message keeps it when it is given back.
    pub place: u64,
    /// How often it was taken before.
    pub earlier_deliveries: u32,
    /// Its id.
    pub message_id: String,
    /// Its type.
    pub message_type: String,
    /// What keeps its order.
    pub key: String,
    /// When it happened.
    pub occurred_at: DateTime<Utc>,
    /// What the body is.
    pub content_type: String,
    /// By which exchange and key it came.
    pub destination: Destination,
    /// Its headers.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// How one taken message ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Which one.
    pub place: u64,
    /// What becomes of it.
    pub fate: Fate,
}

/// What becomes of a taken message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is gone.
    Removed,
    /// It waits again, at its old place.
    GivenBack,
    /// It goes to other queues, as a copy each, and is gone from this one.
    Moved(Vec<Placement>),
}

/// How many messages a queue holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueDepth {
    /// Can be taken now.
    pub ready: u64,
    /// Will be ready later.
    pub delayed: u64,
    /// Are with a receiver, or were with one that is gone.
    pub taken: u64,
}

/// Queues that survive a crash.
#[async_trait]
pub trait Queues: Send + Sync + 'static {
    /// The topology. Also says whether the database answers.
    async fn layout(&self) -> StoreResult<Layout>;

    /// Adds to the topology, in one transaction, if it is still at a revision. Answers whether; if not, nothing was
    /// written.
    async fn extend_layout(&self, revision: u64, additions: &Topology) -> StoreResult<bool>;

    /// Puts messages into queues, in order and in one transaction, if the topology is still at the revision by which
    /// they were routed. Answers whether; if not, nothing was written.
    async fn put_messages(&self, revision: u64, parcels: &[Parcel<'_>]) -> Result<bool, PutError>;

    /// Begins to receive, under a lease of a name that was never used before.
    async fn begin_receiving(&self, lease: &LeaseName, for_: Duration) -> StoreResult<LeaseGrant>;

    /// Keeps a receiver's lease longer. Answers `false` when it had run out: what was taken under it may be with others,
    /// and nothing may be taken under it again.
    async fn keep_receiving(&self, grant: &LeaseGrant, for_: Duration) -> StoreResult<bool>;

    /// Gives back everything that a receiver has taken, all at once, and ends its lease.
    async fn end_receiving(&self, receiver: &Receiver) -> StoreResult<()>;

    /// Takes messages, lowest place first: at most so many, and no more than have so many bytes of bodies together, but
    /// one if there is any. Costs one indexed read when there is nothing to take. Messages that others
    /// are just taking are passed over.
    ///
    /// # Errors
    /// `Fenced` when the receiver's lease has run out; nothing was taken.
    async fn take_messages(
        &self,
        receiver: &Receiver,
        limit: u32,
        bytes: u64,
    ) -> StoreResult<Vec<TakenMessage>>;

    /// Ends messages, all in one transaction. Those that are no longer with this receiver are left as they are.
    async fn end_messages(&self, grant: &LeaseGrant, endings: &[Ending]) -> StoreResult<()>;

    /// Gives back what was taken by receivers that are gone, in all queues, and answers how many messages that were.
    async fn recover_messages(&self) -> StoreResult<u64>;

    /// How many messages each of these queues holds, in their order; `None` for one that is not there. Counts no further
    /// than it takes to know that there are many.
    async fn queue_depths(&self, queues: &[&str]) -> StoreResult<Vec<Option<QueueDepth>>>;
}
