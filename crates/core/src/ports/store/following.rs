//! How far the logs of others were applied here.

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::StoreResult;
use crate::ids::{HandlerName, Position};

/// How far another log was applied here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedLog {
    /// The last position that was applied; 0 before the first.
    pub position: Position,
    /// What the facts looked like in the page that holds the position, up to it; empty before the first.
    pub digest: String,
}

/// How far the logs of others were applied here.
#[async_trait]
pub trait Following: Send + Sync + 'static {
    /// Where a follower is; one that nobody has seen before stands before the first fact.
    async fn open_followed_log(
        &self,
        follower: &HandlerName,
        peer_url: &str,
        now: DateTime<Utc>,
    ) -> StoreResult<FollowedLog>;

    /// Where a follower is, if there is one of that name.
    async fn followed_log(&self, follower: &HandlerName) -> StoreResult<Option<FollowedLog>>;
}
