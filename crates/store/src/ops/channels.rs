//! Channels as rows: names unique among the living (S3), switched off with who and why (S2).

use chrono::{DateTime, Utc};
use towpath_core::ids::{ActorId, ChannelName, Position};
use towpath_core::ports::store::{ChannelRow, Disabled, LeaseGrant, StoreError, StoreResult, TrackerPlace};
use uuid::Uuid;

use crate::ops::leases::fence;
use crate::rows::{read_channel, select_list};
use crate::schema::CHANNELS;
use crate::sql::{Session, SqlFault, values};

pub(crate) async fn add(
    session: &mut Session<'_>,
    channel_id: Uuid,
    name: &ChannelName,
    position: Position,
    now: DateTime<Utc>,
) -> StoreResult<()> {
    let sql =
        "INSERT INTO channels (channel_id, name, position, reset_count, created_at) VALUES (?, ?, ?, 0, ?)";
    match session.execute("channels.add", sql, values![channel_id, name.as_str(), position, now]).await {
        Ok(_) => Ok(()),
        Err(SqlFault::Unique { .. }) => {
            Err(StoreError::NameTaken { what: "channel", name: name.to_string() })
        }
        Err(fault) => Err(fault.into()),
    }
}

pub(crate) async fn disable(
    session: &mut Session<'_>,
    name: &ChannelName,
    disabled: Option<&Disabled>,
) -> StoreResult<()> {
    let sql = "UPDATE channels SET disabled_at = ?, disabled_by_id = ?, disabled_reason = ?, disabled_message = ? \
         WHERE name = ? AND deleted_at IS NULL";
    let changed = values![
        disabled.map(|disabled| disabled.at),
        disabled.and_then(|disabled| disabled.by_id.as_ref().map(|by| by.as_str())),
        disabled.map(|disabled| disabled.reason.as_str()),
        disabled.and_then(|disabled| disabled.message.as_deref()),
        name.as_str(),
    ];
    living(session.execute("channels.disable", sql, changed).await?, name)
}

pub(crate) async fn remove(
    session: &mut Session<'_>,
    name: &ChannelName,
    by: Option<&ActorId>,
    reason: &str,
    now: DateTime<Utc>,
) -> StoreResult<()> {
    let sql = "UPDATE channels SET deleted_at = ?, deleted_by_id = ?, deleted_reason = ? \
         WHERE name = ? AND deleted_at IS NULL";
    let changed = values![now, by.map(|by| by.as_str()), reason, name.as_str()];
    living(session.execute("channels.remove", sql, changed).await?, name)
}

/// Moves a channel's position. Runs in a transaction.
pub(crate) async fn advance(
    session: &mut Session<'_>,
    grant: &LeaseGrant,
    channel_id: Uuid,
    from: TrackerPlace,
    to: Position,
) -> StoreResult<bool> {
    let sql = "UPDATE channels SET position = ? WHERE channel_id = ? AND deleted_at IS NULL AND position = ? \
         AND reset_count = ?";
    let moved = values![to, channel_id, from.position, from.reset_count];
    let touched = session.execute("channels.advance", sql, moved).await?;
    fence(session, std::slice::from_ref(grant)).await?;
    Ok(touched == 1)
}

pub(crate) async fn reset(
    session: &mut Session<'_>,
    name: &ChannelName,
    position: Position,
) -> StoreResult<()> {
    let sql = "UPDATE channels SET position = ?, reset_count = reset_count + 1 WHERE name = ? AND deleted_at IS NULL";
    living(session.execute("channels.reset", sql, values![position, name.as_str()]).await?, name)
}

pub(crate) async fn list(session: &mut Session<'_>) -> StoreResult<Vec<ChannelRow>> {
    let sql = format!(
        "SELECT {} FROM channels c WHERE c.deleted_at IS NULL ORDER BY c.name",
        select_list(&CHANNELS, "c", "")
    );
    session.rows("channels.list", &sql, values![]).await?.iter().map(read_channel).collect()
}

fn living(touched: u64, name: &ChannelName) -> StoreResult<()> {
    match touched {
        0 => Err(StoreError::Missing { what: "channel", name: name.to_string() }),
        _ => Ok(()),
    }
}
