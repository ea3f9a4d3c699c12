//! What the notification log and those who follow another one need of the store.

use std::num::NonZeroU64;

use chrono::{DateTime, Utc};
use towpath_core::ids::{HandlerName, Position};
use towpath_core::notifications::PAGE_SIZE;
use towpath_core::ports::store::{StoreError, StoreResult};

use crate::ops;
use crate::store::{Purpose, SqlStore, reading, writing_once};
use crate::transaction::SqlTransaction;

/// How far another log was applied here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedLog {
    /// The last position that was applied; 0 before the first.
    pub position: Position,
    /// What the facts looked like in the page that holds the position, up to it; empty before the first.
    pub digest: String,
}

impl SqlStore {
    /// Opens the log: its page size is fixed when that is done for the first time, and is for its life.
    ///
    /// # Errors
    /// `log-page-size` when another size is configured than the log has.
    pub async fn open_log(&self, configured: Option<NonZeroU64>) -> StoreResult<NonZeroU64> {
        let found = writing_once!(self, ops::log::open, configured.unwrap_or(PAGE_SIZE))?;
        match configured {
            Some(size) if size != found => {
                Err(StoreError::OtherPageSize { found: found.get(), configured: size.get() })
            }
            _ => Ok(found),
        }
    }

    /// Where a follower is; one that nobody has seen before stands before the first fact.
    pub async fn open_followed_log(
        &self,
        follower: &HandlerName,
        peer_url: &str,
        now: DateTime<Utc>,
    ) -> StoreResult<FollowedLog> {
        writing_once!(self, ops::followed::open, follower, peer_url, now)
    }

    /// Where a follower is, if there is one of that name.
    pub async fn followed_log(&self, follower: &HandlerName) -> StoreResult<Option<FollowedLog>> {
        reading!(self, ops::followed::find, follower)
    }
}

impl SqlTransaction {
    /// Moves a follower on, if it still stands where it was found. `false` when another one was quicker: then nothing else
    /// in this transaction must become true.
    pub async fn advance_followed_log(
        &mut self,
        follower: &HandlerName,
        from: Position,
        to: &FollowedLog,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        ops::followed::advance(&mut self.session(), follower, from, to, now).await
    }
}
