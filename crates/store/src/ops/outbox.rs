//! The outbox: rows that wait to be published, per channel and in order per lane.
//!
//! A lane is parked by one row in `parked_lanes` that names the outbox row it waits for (its head). Rows behind
//! the head get `parked_at` when a claim comes across them, and so leave the index of ready rows: however long
//! the queue behind a poisoned event is, nobody reads it again until the head is through.

use chrono::{DateTime, Utc};
use towpath_core::ids::{ChannelName, EventId, Lane};
use towpath_core::lifecycle::{OutboxStatus, OutboxStep};
use towpath_core::ports::store::{
    Counts, LeaseGrant, OutboxClaim, OutboxItem, OutboxOutcome, OutboxResult, OutboxRow, StoreResult,
};

use crate::ops::leases::fence;
use crate::rows::{read_event, read_outbox, select_list, stored};
use crate::schema::{DOMAIN_EVENTS, EVENT_OUTBOX, Index};
use crate::sql::{Chosen, Session, Value, unreadable, values};

/// What one look at the ready rows found.
#[derive(Default)]
pub(crate) struct Look {
    /// Rows that may go out.
    pub(crate) ready: Vec<OutboxItem>,
    /// Rows whose lane waits for an earlier one: to be set aside with [`park_behind`].
    pub(crate) behind: Vec<OutboxItem>,
    /// The last row looked at.
    pub(crate) up_to: u64,
    /// Whether there are no more.
    pub(crate) exhausted: bool,
}

/// Looks at the next rows that are due. Reads only.
pub(crate) async fn look(session: &mut Session<'_>, claim: &OutboxClaim<'_>) -> StoreResult<Look> {
    let (channel, condition) = session.dialect().partial(ready_index(), "o.");
    let mut keys = values![claim.channel.as_str(), claim.after, claim.now];
    // An instance that holds every partition need not name them.
    let partitions = if claim.partitions.len() >= usize::from(Lane::PARTITIONS) {
        String::new()
    } else {
        let numbers = claim.partitions.iter().map(|number| i64::from(*number)).collect();
        format!(" AND {}", session.one_of("o.partition_no", numbers, &mut keys))
    };
    let sql = format!(
        "SELECT o.outbox_id, o.lane, o.retry_count, o.status, p.head_outbox_id, p.due_at AS lane_due_at, {} \
         FROM event_outbox o JOIN domain_events e ON e.event_id = o.event_id \
         LEFT JOIN parked_lanes p ON p.channel = o.channel AND p.lane = o.lane \
         WHERE {channel} = ?{condition} AND o.outbox_id > ? \
         AND (o.next_retry_at IS NULL OR o.next_retry_at <= ?){partitions} \
         ORDER BY o.outbox_id LIMIT {}",
        select_list(&DOMAIN_EVENTS, "e", ""),
        claim.limit
    );
    let mut look = Look { up_to: claim.after, ..Look::default() };
    let rows = session.rows("outbox.look", &sql, keys).await?;
    look.exhausted = rows.len() < claim.limit as usize;
    for row in rows {
        let item = OutboxItem {
            outbox_id: row.count("outbox_id")?,
            lane: Lane::from_stored(row.long("lane")?),
            retry_count: row.small("retry_count")?,
            status: stored(&row, "status")?,
            event: read_event(&row)?,
        };
        look.up_to = item.outbox_id;
        match row.long_or_null("head_outbox_id")? {
            None => look.ready.push(item),
            Some(head) if head.cast_unsigned() != item.outbox_id => look.behind.push(item),
            // The head itself goes out again when its lane is due.
            Some(_) if row.time_or_null("lane_due_at")?.is_some_and(|due_at| due_at <= claim.now) => {
                look.ready.push(item);
            }
            Some(_) => {}
        }
    }
    Ok(look)
}

/// Sets rows aside whose lane waits. Runs in a transaction.
///
/// The lanes are locked first, and only rows of lanes that are still parked are touched: otherwise a head that goes
/// out at this very moment would unpark the others and leave these behind for ever.
pub(crate) async fn park_behind(
    session: &mut Session<'_>,
    claim: &OutboxClaim<'_>,
    behind: &[OutboxItem],
) -> StoreResult<()> {
    let mut keys = values![claim.channel.as_str()];
    let lanes = behind.iter().map(|item| item.lane.to_stored()).collect();
    let chosen = session.one_of("lane", lanes, &mut keys);
    let sql = format!(
        "SELECT lane FROM parked_lanes WHERE channel = ? AND {chosen} ORDER BY lane {}",
        session.dialect().for_update()
    );
    let mut still_parked = std::collections::HashSet::new();
    for row in session.rows("outbox.lanes", &sql, keys).await? {
        still_parked.insert(Lane::from_stored(row.long("lane")?));
    }
    let rows = behind.iter().filter(|item| still_parked.contains(&item.lane));
    let rows: Vec<i64> = rows.map(|item| item.outbox_id.cast_signed()).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let mut changed = values![claim.now];
    let Chosen { target, condition, .. } =
        session.choose_for_update("event_outbox", "outbox_id", rows, &mut changed);
    let sql = format!("UPDATE {target} SET parked_at = ? WHERE {condition} AND parked_at IS NULL");
    session.execute("outbox.park", &sql, changed).await?;
    Ok(())
}

/// Writes how publishing ended. Runs in a transaction.
pub(crate) async fn record(
    session: &mut Session<'_>,
    leases: &[LeaseGrant],
    channel: &ChannelName,
    now: DateTime<Utc>,
    results: &[OutboxResult],
) -> StoreResult<()> {
    fence(session, leases).await?;
    let sent = ids_of(results, |outcome| *outcome == OutboxOutcome::Sent);
    if !sent.is_empty() {
        let status = step(OutboxStatus::New, OutboxStep::Confirm)?;
        let mut changed = values![status.as_str(), now];
        let Chosen { target, condition, .. } =
            session.choose_for_update("event_outbox", "outbox_id", sent.clone(), &mut changed);
        let sql = format!(
            "UPDATE {target} SET status = ?, status_changed_at = ?, status_reason = NULL, status_message = NULL, \
             next_retry_at = NULL WHERE {condition} AND status IN ('NEW', 'RETRY')"
        );
        session.execute("outbox.sent", &sql, changed).await?;
        unpark_behind(session, channel, sent).await?;
    }
    // Results of one batch mostly fail for one reason: each distinct outcome is one statement.
    let mut outcomes: Vec<&OutboxOutcome> = Vec::new();
    for result in results {
        if result.outcome != OutboxOutcome::Sent && !outcomes.contains(&&result.outcome) {
            outcomes.push(&result.outcome);
        }
    }
    for outcome in outcomes {
        let (next, due_at, reason, message, park) = match outcome {
            OutboxOutcome::Sent => continue,
            OutboxOutcome::Retry { at, reason, message, park } => {
                (OutboxStep::Postpone, Some(*at), reason, message, *park)
            }
            OutboxOutcome::Failed { reason, message, park } => {
                (OutboxStep::GiveUp, None, reason, message, *park)
            }
        };
        let status = step(OutboxStatus::New, next)?;
        let mut changed = values![status.as_str(), now, reason.as_str(), message.as_str(), due_at];
        let Chosen { target, condition, .. } = session.choose_for_update(
            "event_outbox",
            "outbox_id",
            ids_of(results, |other| other == outcome),
            &mut changed,
        );
        let sql = format!(
            "UPDATE {target} SET status = ?, status_changed_at = ?, status_reason = ?, status_message = ?, \
             next_retry_at = ?, retry_count = retry_count + 1 WHERE {condition} AND status IN ('NEW', 'RETRY')"
        );
        session.execute("outbox.failed", &sql, changed).await?;
        if park {
            let heads = results.iter().filter(|result| result.outcome == *outcome);
            park_lanes(session, channel, now, due_at, heads).await?;
        } else {
            // Whoever waited for it waits no longer.
            unpark_behind(session, channel, ids_of(results, |other| other == outcome)).await?;
        }
    }
    Ok(())
}

/// Puts FAILED rows back. Runs in a transaction.
pub(crate) async fn reopen(
    session: &mut Session<'_>,
    outbox_ids: &[u64],
    now: DateTime<Utc>,
) -> StoreResult<u64> {
    let ids: Vec<i64> = outbox_ids.iter().map(|id| id.cast_signed()).collect();
    let status = step(OutboxStatus::Failed, OutboxStep::Reopen)?;
    let mut changed = values![status.as_str(), now, now];
    let Chosen { target, condition, .. } =
        session.choose_for_update("event_outbox", "outbox_id", ids.clone(), &mut changed);
    let sql = format!(
        "UPDATE {target} SET status = ?, status_changed_at = ?, status_reason = 'reopened', \
         status_message = NULL, next_retry_at = ?, retry_count = 0 WHERE {condition} AND status = 'FAILED'"
    );
    let reopened = session.execute("outbox.reopen", &sql, changed).await?;
    let mut changed = values![now];
    let chosen = session.one_of("head_outbox_id", ids, &mut changed);
    let sql = format!("UPDATE parked_lanes SET due_at = ? WHERE {chosen}");
    session.execute("outbox.reopen_lanes", &sql, changed).await?;
    Ok(reopened)
}

pub(crate) async fn of_event(session: &mut Session<'_>, event_id: EventId) -> StoreResult<Vec<OutboxRow>> {
    let sql = format!(
        "SELECT {} FROM event_outbox o WHERE o.event_id = ? ORDER BY o.channel",
        select_list(&EVENT_OUTBOX, "o", "")
    );
    session.rows("outbox.of", &sql, values![event_id.0]).await?.iter().map(read_outbox).collect()
}

pub(crate) async fn counts(
    session: &mut Session<'_>,
    channel: &ChannelName,
) -> StoreResult<Counts<OutboxStatus>> {
    let sql = "SELECT status, COUNT(*) AS rows_in FROM event_outbox WHERE channel = ? GROUP BY status";
    let mut counts = Counts { by_status: Vec::new() };
    for row in session.rows("outbox.count", sql, values![channel.as_str()]).await? {
        counts.by_status.push((stored(&row, "status")?, row.count("rows_in")?));
    }
    Ok(counts)
}

/// Lets the rows behind these heads go on.
async fn unpark_behind(session: &mut Session<'_>, channel: &ChannelName, sent: Vec<i64>) -> StoreResult<()> {
    let mut keys = values![channel.as_str()];
    let chosen = session.one_of("head_outbox_id", sent, &mut keys);
    let sql = format!(
        "SELECT lane FROM parked_lanes WHERE channel = ? AND {chosen} ORDER BY lane {}",
        session.dialect().for_update()
    );
    let mut lanes = Vec::new();
    for row in session.rows("outbox.heads", &sql, keys).await? {
        lanes.push(row.long("lane")?);
    }
    if lanes.is_empty() {
        return Ok(());
    }
    let mut keys = values![channel.as_str()];
    let chosen = session.one_of("lane", lanes.clone(), &mut keys);
    session
        .execute(
            "outbox.unpark_lanes",
            &format!("DELETE FROM parked_lanes WHERE channel = ? AND {chosen}"),
            keys,
        )
        .await?;
    let (parked_channel, condition) = session.dialect().partial(&EVENT_OUTBOX.indexes[2], "");
    let mut keys = values![channel.as_str()];
    let chosen = session.one_of("lane", lanes, &mut keys);
    let sql = format!(
        "UPDATE event_outbox SET parked_at = NULL WHERE {parked_channel} = ?{condition} AND {chosen}"
    );
    session.execute("outbox.unpark", &sql, keys).await?;
    Ok(())
}

/// Makes lanes wait for their failed rows.
async fn park_lanes(
    session: &mut Session<'_>,
    channel: &ChannelName,
    now: DateTime<Utc>,
    due_at: Option<DateTime<Utc>>,
    heads: impl Iterator<Item = &OutboxResult>,
) -> StoreResult<()> {
    let mut rows = Vec::new();
    let mut parked: Vec<Value<'_>> = Vec::new();
    for head in heads {
        rows.push("(?, ?, ?, ?, ?)");
        parked.extend(values![channel.as_str(), head.lane.to_stored(), head.outbox_id, due_at, now]);
    }
    let dialect = session.dialect();
    // Of two failed rows of one lane the earlier is the head: order is what parking is for.
    let sql = format!(
        "INSERT INTO parked_lanes (channel, lane, head_outbox_id, due_at, parked_at) VALUES {} {} \
         due_at = CASE WHEN {new_head} <= parked_lanes.head_outbox_id THEN {new_due} ELSE parked_lanes.due_at END, \
         head_outbox_id = CASE WHEN {new_head} < parked_lanes.head_outbox_id THEN {new_head} ELSE parked_lanes.head_outbox_id END",
        rows.join(", "),
        dialect.on_conflict("channel, lane"),
        new_head = dialect.inserted("head_outbox_id"),
        new_due = dialect.inserted("due_at"),
    );
    session.execute("outbox.park_lanes", &sql, parked).await?;
    Ok(())
}

fn ids_of(results: &[OutboxResult], wanted: impl Fn(&OutboxOutcome) -> bool) -> Vec<i64> {
    results
        .iter()
        .filter(|result| wanted(&result.outcome))
        .map(|result| result.outbox_id.cast_signed())
        .collect()
}

fn ready_index() -> &'static Index {
    &EVENT_OUTBOX.indexes[1]
}

fn step(from: OutboxStatus, step: OutboxStep) -> StoreResult<OutboxStatus> {
    from.next(step).map_err(|error| unreadable("event_outbox.status", error))
}
