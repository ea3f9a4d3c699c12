//! Channels as rows: names unique among the living (S3), switched off with who and why (S2).

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{ActorId, AggregateKey, ChannelName, Position};
use towpath_core::ports::store::{
    ChannelRow, Channels, Disabled, LeaseGrant, Parked, ParkedAggregate, StoreError, StoreResult,
    TrackerPlace,
};
use uuid::Uuid;

use crate::ops::leases::fence;
use crate::rows::{insert_sql, read_channel, select_list};
use crate::schema::{CHANNEL_PARKED, CHANNELS};
use crate::sql::{Row, Session, SqlFault, Value, code, readable, values};
use crate::store::{SqlStore, reading, transacting, writing_once};

#[async_trait]
impl Channels for SqlStore {
    async fn add_channel(
        &self,
        channel_id: Uuid,
        name: &ChannelName,
        position: Position,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        writing_once!(self, add, channel_id, name, position, now)
    }

    async fn disable_channel(&self, name: &ChannelName, disabled: Option<&Disabled>) -> StoreResult<()> {
        writing_once!(self, disable, name, disabled)
    }

    async fn remove_channel(
        &self,
        name: &ChannelName,
        by: Option<&ActorId>,
        reason: &str,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        transacting!(self, remove, name, by, reason, now)
    }

    async fn park_in_channel(
        &self,
        lease: &LeaseGrant,
        channel_id: Uuid,
        from: TrackerPlace,
        to: Position,
        parked: &[ParkedAggregate],
        opened: &[AggregateKey],
    ) -> StoreResult<bool> {
        transacting!(self, park, lease, channel_id, from, to, parked, opened)
    }

    async fn parked_in_channel(
        &self,
        channel_id: Uuid,
        reset_count: u64,
        which: Parked<'_>,
    ) -> StoreResult<Vec<ParkedAggregate>> {
        reading!(self, parked, channel_id, reset_count, which)
    }

    async fn reopen_parked(&self, name: &ChannelName, now: DateTime<Utc>) -> StoreResult<u64> {
        writing_once!(self, reopen_parked, name, now)
    }

    async fn reset_channel(&self, name: &ChannelName, position: Position) -> StoreResult<()> {
        transacting!(self, reset, name, position)
    }

    async fn channels(&self) -> StoreResult<Vec<ChannelRow>> {
        reading!(self, list)
    }
}

async fn add(
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

async fn disable(
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

/// Removes a channel, with what it has left behind. Runs in a transaction.
async fn remove(
    session: &mut Session<'_>,
    name: &ChannelName,
    by: Option<&ActorId>,
    reason: &str,
    now: DateTime<Utc>,
) -> StoreResult<()> {
    let channel_id = locked(session, name).await?;
    let sql =
        "UPDATE channels SET deleted_at = ?, deleted_by_id = ?, deleted_reason = ? WHERE channel_id = ?";
    let changed = values![now, by.map(|by| by.as_str()), reason, channel_id];
    session.execute("channels.remove", sql, changed).await?;
    forget_parked(session, channel_id).await
}

/// Moves a channel's position, and notes which aggregates it leaves behind and which no longer. Runs in a transaction.
async fn park(
    session: &mut Session<'_>,
    grant: &LeaseGrant,
    channel_id: Uuid,
    from: TrackerPlace,
    to: Position,
    parked: &[ParkedAggregate],
    opened: &[AggregateKey],
) -> StoreResult<bool> {
    let sql = "UPDATE channels SET position = ? WHERE channel_id = ? AND deleted_at IS NULL AND position = ? \
         AND reset_count = ?";
    let moved = values![to, channel_id, from.position, from.reset_count];
    let touched = session.execute("channels.advance", sql, moved).await?;
    if touched == 1 {
        if !opened.is_empty() {
            let mut keys = values![channel_id];
            let sql = format!(
                "DELETE FROM channel_parked WHERE channel_id = ? AND ({})",
                is_one_of(opened, &mut keys)
            );
            session.execute("channels.open_parked", &sql, keys).await?;
        }
        if !parked.is_empty() {
            let dialect = session.dialect();
            let changed =
                ["reset_count", "aggregate_version", "attempts", "due_at", "reason", "message", "parked_at"];
            let changed = changed.map(|column| format!("{column} = {}", dialect.inserted(column))).join(", ");
            let sql = format!(
                "{} {} {changed}",
                insert_sql(&CHANNEL_PARKED, parked.len()),
                dialect.on_conflict("channel_id, aggregate_kind, aggregate_id")
            );
            let row = |one: &ParkedAggregate| {
                values![
                    channel_id,
                    one.aggregate.kind.to_string(),
                    one.aggregate.id.to_string(),
                    from.reset_count,
                    one.version,
                    one.attempts,
                    one.due_at,
                    code(&one.reason),
                    readable(&one.message),
                    one.parked_at
                ]
            };
            session.execute("channels.park", &sql, parked.iter().flat_map(row).collect()).await?;
        }
    }
    fence(session, std::slice::from_ref(grant)).await?;
    Ok(touched == 1)
}

async fn parked(
    session: &mut Session<'_>,
    channel_id: Uuid,
    reset_count: u64,
    which: Parked<'_>,
) -> StoreResult<Vec<ParkedAggregate>> {
    let mut keys = values![channel_id, reset_count];
    let rest = match which {
        Parked::All => "ORDER BY p.aggregate_kind, p.aggregate_id".to_owned(),
        Parked::Due { now, limit } => {
            keys.extend(values![now]);
            format!("AND p.due_at <= ? ORDER BY p.due_at LIMIT {limit}")
        }
        Parked::Among([]) => return Ok(Vec::new()),
        Parked::Among(aggregates) => format!("AND ({})", is_one_of(aggregates, &mut keys)),
    };
    let sql = format!(
        "SELECT {} FROM channel_parked p WHERE p.channel_id = ? AND p.reset_count = ? {rest}",
        select_list(&CHANNEL_PARKED, "p", "")
    );
    session.rows("channels.parked", &sql, keys).await?.iter().map(read_parked).collect()
}

/// Any of these aggregates: a list of ids for each kind.
fn is_one_of<'v>(aggregates: &'v [AggregateKey], keys: &mut Vec<Value<'v>>) -> String {
    let mut kinds: Vec<&str> = aggregates.iter().map(|aggregate| aggregate.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let parts = kinds.into_iter().map(|kind| {
        let ids = aggregates.iter().filter(|aggregate| aggregate.kind.as_str() == kind);
        let before = keys.len();
        keys.push(Value::from(kind));
        keys.extend(ids.map(|aggregate| Value::from(aggregate.id.as_str())));
        let marks = vec!["?"; keys.len() - before - 1].join(", ");
        format!("(aggregate_kind = ? AND aggregate_id IN ({marks}))")
    });
    parts.collect::<Vec<_>>().join(" OR ")
}

async fn reopen_parked(
    session: &mut Session<'_>,
    name: &ChannelName,
    now: DateTime<Utc>,
) -> StoreResult<u64> {
    let sql = "UPDATE channel_parked SET due_at = ?, attempts = 0 WHERE due_at IS NULL AND channel_id IN \
         (SELECT c.channel_id FROM channels c WHERE c.name = ? AND c.deleted_at IS NULL)";
    Ok(session.execute("channels.reopen_parked", sql, values![now, name.as_str()]).await?)
}

fn read_parked(row: &Row) -> StoreResult<ParkedAggregate> {
    Ok(ParkedAggregate {
        aggregate: AggregateKey::from_stored(row.text("aggregate_kind")?, row.text("aggregate_id")?),
        version: row.count("aggregate_version")?,
        attempts: row.small("attempts")?,
        due_at: row.time_or_null("due_at")?,
        reason: row.text("reason")?,
        message: row.text("message")?,
        parked_at: row.time("parked_at")?,
    })
}

/// Sets a channel's position, and forgets what it has left behind. Runs in a transaction.
async fn reset(session: &mut Session<'_>, name: &ChannelName, position: Position) -> StoreResult<()> {
    let channel_id = locked(session, name).await?;
    let sql = "UPDATE channels SET position = ?, reset_count = reset_count + 1 WHERE channel_id = ?";
    session.execute("channels.reset", sql, values![position, channel_id]).await?;
    forget_parked(session, channel_id).await
}

/// The living channel of a name, locked: its tracker writes nothing until the transaction ends, and then finds the change.
async fn locked(session: &mut Session<'_>, name: &ChannelName) -> StoreResult<Uuid> {
    let sql = format!(
        "SELECT channel_id FROM channels WHERE name = ? AND deleted_at IS NULL {}",
        session.dialect().for_update()
    );
    let missing = || StoreError::Missing { what: "channel", name: name.to_string() };
    session.row("channels.lock", &sql, values![name.as_str()]).await?.ok_or_else(missing)?.uuid("channel_id")
}

async fn forget_parked(session: &mut Session<'_>, channel_id: Uuid) -> StoreResult<()> {
    let sql = "DELETE FROM channel_parked WHERE channel_id = ?";
    session.execute("channels.forget_parked", sql, values![channel_id]).await?;
    Ok(())
}

async fn list(session: &mut Session<'_>) -> StoreResult<Vec<ChannelRow>> {
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
