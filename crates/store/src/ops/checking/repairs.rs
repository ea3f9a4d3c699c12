//! Repairs: each looks again under the locks of the live path, in its order (the aggregate's row before all that hangs on it,
//! the lane before its rows), and then does what the live path would have done. None deletes a fact.

use chrono::{DateTime, Utc};
use towpath_core::ids::{AggregateKey, ChannelName, EventId, Lane, Version};
use towpath_core::lifecycle::{CommandStatus, CommandStep, OutboxStatus};
use towpath_core::ports::store::{Append, Repair, Repaired, StoreResult};

use super::suspects::RESULT_IS_THERE;
use crate::floors::count_return;
use crate::ops::aggregates::find_aggregate;
use crate::ops::append::append;
use crate::ops::leases::holder_is_gone;
use crate::ops::outbox::{lock_heads, unpark};
use crate::rows::{insert_sql, read_key, restored_outbox_values};
use crate::schema::{EVENT_OUTBOX, EVENT_PENDING};
use crate::sql::{Session, SqlFault, unreadable, values};

/// Puts something right. Runs in a transaction, which is rolled back unless it was done.
pub(super) async fn apply(
    session: &mut Session<'_>,
    repair: &Repair,
    fact: &Append,
    now: DateTime<Utc>,
) -> StoreResult<Repaired> {
    let repaired = match repair {
        Repair::Outbox { event_id, channel } => outbox(session, *event_id, channel, now).await?,
        Repair::OrphanedCommand { command_id, event_type } => {
            orphaned(session, command_id, event_type, now).await?
        }
        Repair::Pending { event_id } => pending(session, *event_id).await?,
        Repair::Lane { channel, lane } => self::lane(session, channel, *lane, now).await?,
        Repair::AbandonedCommand { command_id } => abandoned(session, command_id, now).await?,
    };
    if repaired == Repaired::Done {
        append(session, fact).await?;
    }
    Ok(repaired)
}

/// Locks the aggregate of an event, as who appends to it does: its rows are numbered in the order of its versions.
async fn lock_event(session: &mut Session<'_>, event_id: EventId) -> StoreResult<Option<AggregateKey>> {
    let sql = "SELECT aggregate_kind, aggregate_id FROM domain_events WHERE event_id = ?";
    let Some(row) = session.row("repair.event", sql, values![event_id.0]).await? else { return Ok(None) };
    let aggregate = read_key(&row)?;
    let lock = session.dialect().for_update();
    find_aggregate(session, &aggregate, lock).await?;
    Ok(Some(aggregate))
}

async fn outbox(
    session: &mut Session<'_>,
    event_id: EventId,
    channel: &ChannelName,
    now: DateTime<Utc>,
) -> StoreResult<Repaired> {
    let Some(aggregate) = lock_event(session, event_id).await? else { return Ok(Repaired::Gone) };
    let sql = format!("{} {}", insert_sql(&EVENT_OUTBOX, 1), session.dialect().ignoring_duplicates());
    let restored = restored_outbox_values(&aggregate, event_id, channel, OutboxStatus::New, now);
    match session.execute("repair.outbox", &sql, restored).await {
        Ok(0) | Err(SqlFault::Unique { .. }) => Ok(Repaired::NotNeeded),
        Ok(_) => Ok(Repaired::Done),
        Err(fault) => Err(fault.into()),
    }
}

async fn pending(session: &mut Session<'_>, event_id: EventId) -> StoreResult<Repaired> {
    if lock_event(session, event_id).await?.is_none() {
        return Ok(Repaired::Gone);
    }
    // The sequencer holds this lock while it moves rows, so none is on its way now.
    let sql =
        format!("SELECT last_position FROM log_head WHERE log_id = 1 {}", session.dialect().for_update());
    session.row("repair.head", &sql, values![]).await?;
    let sql = "SELECT 1 AS there FROM event_positions WHERE event_id = ? UNION ALL \
               SELECT 1 AS there FROM event_pending WHERE event_id = ?";
    if session.row("repair.position", sql, values![event_id.0, event_id.0]).await?.is_some() {
        return Ok(Repaired::NotNeeded);
    }
    session.execute("repair.pending", &insert_sql(&EVENT_PENDING, 1), values![event_id.0]).await?;
    Ok(Repaired::Done)
}

async fn orphaned(
    session: &mut Session<'_>,
    command_id: &str,
    event_type: &str,
    now: DateTime<Utc>,
) -> StoreResult<Repaired> {
    let sql = "SELECT aggregate_kind, aggregate_id FROM command_box WHERE command_id = ?";
    let Some(row) = session.row("repair.command", sql, values![command_id]).await? else {
        return Ok(Repaired::Gone);
    };
    let (aggregate, lock) = (read_key(&row)?, session.dialect().for_update());
    let version = find_aggregate(session, &aggregate, lock).await?.map_or(0, |row| row.version);
    let sql = format!(
        "SELECT t.aggregate_version, t.event_count FROM command_box t WHERE t.command_id = ? AND t.status = 'COMPLETED' \
         AND COALESCE(t.event_count, 1) > 0 AND NOT {RESULT_IS_THERE}?) {lock}"
    );
    let Some(row) = session.row("repair.orphan", &sql, values![command_id, event_type]).await? else {
        return Ok(Repaired::NotNeeded);
    };
    let last = row.long_or_null("aggregate_version")?.map_or(0, i64::cast_unsigned);
    let count = row.long_or_null("event_count")?.map_or(0, i64::cast_unsigned);
    if is_in_the_state(session, command_id, &aggregate, version, last.saturating_sub(count)..=last).await? {
        return Ok(Repaired::EffectIsThere);
    }
    let status = step(CommandStatus::Completed, CommandStep::Requeue)?;
    let sql = "UPDATE command_box SET status = ?, status_changed_at = ?, status_reason = 'orphaned', status_message = NULL, \
               next_retry_at = ?, finished_at = NULL, aggregate_version = NULL, event_count = NULL, claimed_by_id = NULL, \
               claimed_epoch = NULL WHERE command_id = ? AND status = 'COMPLETED'";
    let changed = values![status.as_str(), now, now, command_id];
    Ok(match session.execute("repair.requeue", sql, changed).await? {
        0 => Repaired::NotNeeded,
        _ => Repaired::Done,
    })
}

/// Whether the aggregate's row holds what the command did: other events of the command are there, or the row counts versions
/// of the command whose events are gone. The range begins before its first version.
async fn is_in_the_state(
    session: &mut Session<'_>,
    command_id: &str,
    aggregate: &AggregateKey,
    row_version: Version,
    versions: std::ops::RangeInclusive<Version>,
) -> StoreResult<bool> {
    let (before, last) = versions.into_inner();
    let sql = "SELECT COUNT(*) AS there, COUNT(CASE WHEN causation_id = ? THEN 1 END) AS own FROM domain_events \
               WHERE aggregate_kind = ? AND aggregate_id = ? AND aggregate_version > ? AND aggregate_version <= ?";
    let keys = values![command_id, aggregate.kind.as_str(), aggregate.id.as_str(), before, last];
    let Some(row) = session.row("repair.effect", sql, keys).await? else { return Ok(false) };
    let (there, own) = (row.count("there")?, row.count("own")?);
    Ok(own > 0 || there < row_version.min(last).saturating_sub(before))
}

async fn lane(
    session: &mut Session<'_>,
    channel: &ChannelName,
    lane: Lane,
    now: DateTime<Utc>,
) -> StoreResult<Repaired> {
    let heads = lock_heads(session, channel, std::iter::once(lane)).await?;
    let Some(head) = heads.get(&lane) else { return Ok(Repaired::NotNeeded) };
    let sql = "SELECT 1 AS there FROM event_outbox WHERE outbox_id = ? AND channel = ? \
               AND status IN ('NEW', 'RETRY', 'FAILED')";
    if session.row("repair.head_of_lane", sql, values![*head, channel.as_str()]).await?.is_some() {
        return Ok(Repaired::NotNeeded);
    }
    unpark(session, channel, now, vec![lane]).await?;
    count_return(session, channel).await?;
    Ok(Repaired::Done)
}

async fn abandoned(session: &mut Session<'_>, command_id: &str, now: DateTime<Utc>) -> StoreResult<Repaired> {
    let status = step(CommandStatus::Processing, CommandStep::Recover)?;
    let sql = format!(
        "UPDATE command_box SET status = ?, status_changed_at = ?, status_reason = 'holder-gone', next_retry_at = ?, \
         recovery_count = recovery_count + 1, claimed_by_id = NULL, claimed_epoch = NULL \
         WHERE command_id = ? AND status = 'PROCESSING' AND (claimed_by_id IS NULL OR ({}))",
        holder_is_gone(session, "command_box")
    );
    let changed = values![status.as_str(), now, now, command_id];
    Ok(match session.execute("repair.abandoned", &sql, changed).await? {
        0 => Repaired::NotNeeded,
        _ => Repaired::Done,
    })
}

fn step(from: CommandStatus, step: CommandStep) -> StoreResult<CommandStatus> {
    from.next(step).map_err(|error| unreadable("command_box.status", error))
}
