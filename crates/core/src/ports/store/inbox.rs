//! The inbox: which deliveries were handled, and how often the others have failed.

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::StoreResult;
use crate::ids::{EventId, HandlerName};
use crate::lifecycle::InboxStatus;

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

/// A delivery that this transaction is the first to handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstDelivery {
    /// The fact.
    pub event_id: EventId,
    /// How often the handler has failed with it before.
    pub failures: u32,
    /// A process has written down that it begins with it.
    pub begun: bool,
}

/// What is known of deliveries that may have come before.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CameBefore {
    /// Another process began with them and did not end: that attempt is to be counted.
    pub unfinished: Vec<EventId>,
    /// They were set aside, and their letters stand for them.
    pub set_aside: Vec<EventId>,
}

/// The inbox: which deliveries were handled, and how often the others have failed.
#[async_trait]
pub trait Inbox: Send + Sync + 'static {
    /// Writes down that a process begins with deliveries which may have come before; see [`CameBefore`]. With
    /// `letters_stand`, an open letter stands for its delivery.
    async fn begin_attempts(
        &self,
        event_ids: &[EventId],
        handler: &HandlerName,
        by: &str,
        letters_stand: bool,
        now: DateTime<Utc>,
    ) -> StoreResult<CameBefore>;

    /// Takes that back: the process lets go of these deliveries, and nothing has failed.
    async fn let_go_of_attempts(
        &self,
        event_ids: &[EventId],
        handler: &HandlerName,
        by: &str,
    ) -> StoreResult<()>;

    /// Counts a failed delivery and answers what the inbox says of it: handled or given up meanwhile, it stays so.
    async fn count_failure(&self, failure: &InboxFailure<'_>) -> StoreResult<InboxEntry>;

    /// Forgets how often a delivery has failed that goes back to the broker for good.
    async fn forget_failures(&self, event_id: EventId, handler: &HandlerName) -> StoreResult<()>;
}
