//! What happened lately, in figures.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::StoreResult;
use crate::ids::ChannelName;

/// How many commands, events and sent rows of a channel are looked at, the newest first: a look costs no more than that,
/// however much has happened.
pub const LOOKED_AT: u32 = 10_000;

/// What happened lately. Of commands and of events by type, no more than [`LOOKED_AT`] are looked at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recent {
    /// Commands that were received, by type.
    pub commands: BTreeMap<String, RecentCommands>,
    /// How many facts have got their position.
    pub events: u64,
    /// How many of the newest of them there are of each type.
    pub events_by_type: BTreeMap<String, u64>,
    /// How many outbox rows of the channels were sent, of the newest of each.
    pub sent: u64,
    /// From the moments at which their events happened to those at which they were sent, together.
    pub publish_delay: Duration,
}

/// Commands of one type that were received lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecentCommands {
    /// All of them.
    pub received: u64,
    /// Those that did not do at the first attempt.
    pub retried: u64,
    /// Those whose last attempt has ended.
    pub ended: u64,
    /// How long those attempts took, together.
    pub processing_time: Duration,
}

/// What happened lately, in figures.
#[async_trait]
pub trait Recents: Send + Sync + 'static {
    /// Looks at commands that were received, rows of these channels that were sent, and facts that happened, each since
    /// a moment. A handful of statements: each reads the end of an index, and no more than [`LOOKED_AT`] rows of it.
    async fn recent(
        &self,
        channels: &[ChannelName],
        since: DateTime<Utc>,
        events_since: DateTime<Utc>,
    ) -> StoreResult<Recent>;
}
