//! The log: all events in one order.

use std::num::NonZeroU64;

use async_trait::async_trait;

use super::{LeaseGrant, StoreResult};
use crate::envelope::RecordedEvent;
use crate::ids::Position;

/// What a run of the sequencer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequenced {
    /// How many events got a position.
    pub count: u64,
    /// The last position given so far.
    pub head: Position,
}

/// The log: all events in one order.
#[async_trait]
pub trait Log: Send + Sync + 'static {
    /// Opens the log: its page size is fixed when that is done for the first time, and is for its life.
    ///
    /// # Errors
    /// `log-page-size` when another size is configured than the log has.
    async fn open_log(&self, configured: Option<NonZeroU64>) -> StoreResult<NonZeroU64>;

    /// Gives committed events without a position the next ones: gapless, in order per aggregate (P5). Fenced by
    /// the lease, and safe even with two callers at once.
    async fn sequence(&self, lease: &LeaseGrant, limit: u32) -> StoreResult<Sequenced>;

    /// A mark behind all events that wait for a position now; none when no event does. See
    /// [`waits_for_position`](Self::waits_for_position).
    async fn last_without_position(&self) -> StoreResult<Option<i64>>;

    /// Whether an event up to such a mark still waits for its position. However many do, this looks at one.
    async fn waits_for_position(&self, up_to: i64) -> StoreResult<bool>;

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

    /// How large the payloads of the events between two positions are, both included, in order. Payloads are not read.
    async fn sizes_between(&self, low: Position, high: Position) -> StoreResult<Vec<(Position, u64)>>;
}
