//! How far the logs of others were applied.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{HandlerName, Position};
use towpath_core::ports::store::{FollowedLog, Following, StoreResult};

use crate::rows::insert_sql;
use crate::schema::FOLLOWED_LOGS;
use crate::sql::{Session, SqlFault, unreadable, values};
use crate::store::{SqlStore, reading, writing_once};

#[async_trait]
impl Following for SqlStore {
    async fn open_followed_log(
        &self,
        follower: &HandlerName,
        peer_url: &str,
        now: DateTime<Utc>,
    ) -> StoreResult<FollowedLog> {
        writing_once!(self, open, follower, peer_url, now)
    }

    async fn followed_log(&self, follower: &HandlerName) -> StoreResult<Option<FollowedLog>> {
        reading!(self, find, follower)
    }
}

/// Where a follower is; one that nobody has seen before stands before the first fact.
async fn open(
    session: &mut Session<'_>,
    follower: &HandlerName,
    peer_url: &str,
    now: DateTime<Utc>,
) -> StoreResult<FollowedLog> {
    if let Some(found) = find(session, follower).await? {
        return Ok(found);
    }
    let fresh = values![follower.as_str(), peer_url, 0_u64, "", now, now];
    match session.execute("followed.open", &insert_sql(&FOLLOWED_LOGS, 1), fresh).await {
        // Somebody else has opened it: both begin from there.
        Ok(_) | Err(SqlFault::Unique { .. }) => {}
        Err(fault) => return Err(fault.into()),
    }
    let found = find(session, follower).await?;
    found.ok_or_else(|| unreadable("followed_logs", "the row just written is missing"))
}

/// Moves a follower on, if it stands where it was found. Runs in the transaction of what was applied.
pub(crate) async fn advance(
    session: &mut Session<'_>,
    follower: &HandlerName,
    from: Position,
    to: &FollowedLog,
    now: DateTime<Utc>,
) -> StoreResult<bool> {
    let sql = "UPDATE followed_logs SET position = ?, digest = ?, updated_at = ? WHERE follower = ? AND position = ?";
    let moved = values![to.position, to.digest.as_str(), now, follower.as_str(), from];
    Ok(session.execute("followed.advance", sql, moved).await? == 1)
}

async fn find(session: &mut Session<'_>, follower: &HandlerName) -> StoreResult<Option<FollowedLog>> {
    let sql = "SELECT position, digest FROM followed_logs WHERE follower = ?";
    let row = session.row("followed.find", sql, values![follower.as_str()]).await?;
    let read = |row: &crate::sql::Row| {
        Ok(FollowedLog { position: row.count("position")?, digest: row.text("digest")? })
    };
    row.as_ref().map(read).transpose()
}
