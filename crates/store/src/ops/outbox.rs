//! The outbox: rows that wait to be published, per channel and in order per lane.
//!
//! A lane is parked by one row in `parked_lanes` that names the outbox row it waits for (its head). Rows behind
//! the head get `parked_at` when a claim comes across them, and so leave the index of ready rows: however long
//! the queue behind a poisoned event is, nobody reads it again until the head is through.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{ChannelName, Lane};
use towpath_core::lifecycle::{OutboxStatus, OutboxStep};
use towpath_core::ports::store::{
    FailedFilter, FailedRow, LeaseGrant, Outbox, OutboxClaim, OutboxItem, OutboxOutcome, OutboxResult,
    StoreResult,
};

use crate::floors::{Floors, Place, count_return, guarded, server_state};
use crate::ops::leases::fence;
use crate::rows::{insert_sql, read_event, select_list, stored};
use crate::schema::{DOMAIN_EVENTS, OUTBOX_PARKED, OUTBOX_READY, PARKED_LANES};
use crate::sql::{Chosen, Row, Session, Value, code, readable, unreadable, values};
use crate::store::{SqlStore, listing, reading, transacting};

#[async_trait]
impl Outbox for SqlStore {
    async fn claim_outbox(&self, claim: &OutboxClaim<'_>) -> StoreResult<Vec<OutboxItem>> {
        // Only what one look has seen at once: rows of several looks could pass each other.
        loop {
            let look = reading!(self, look, claim, self.floors())?;
            let set_aside = if look.behind.is_empty() {
                0
            } else {
                transacting!(self, park_behind, claim, &look.behind)?
            };
            // With nothing ready and nothing set aside the next look would see the same.
            if !look.ready.is_empty() || set_aside == 0 {
                self.taken(&Place::Outbox(claim.channel.clone()), look.ready.len() as u64).await;
                return Ok(look.ready);
            }
        }
    }

    async fn record_outbox(
        &self,
        leases: &[LeaseGrant],
        channel: &ChannelName,
        now: DateTime<Utc>,
        results: &[OutboxResult],
    ) -> StoreResult<()> {
        transacting!(self, record, leases, channel, now, results)
    }

    async fn skip_outbox(&self, outbox_id: u64, reason: &str, now: DateTime<Utc>) -> StoreResult<bool> {
        transacting!(self, skip, outbox_id, reason, now)
    }

    async fn reopen_outbox(&self, outbox_ids: &[u64], now: DateTime<Utc>) -> StoreResult<u64> {
        transacting!(self, reopen, outbox_ids, now)
    }

    async fn failed_outbox(
        &self,
        filter: &FailedFilter,
        after: u64,
        limit: u32,
    ) -> StoreResult<Vec<FailedRow>> {
        listing!(self, super::failed::list, filter, after, limit)
    }

    async fn count_failed(&self, filter: &FailedFilter) -> StoreResult<u64> {
        listing!(self, super::failed::count, filter)
    }

    async fn reopen_failed(&self, filter: &FailedFilter, limit: u32, now: DateTime<Utc>) -> StoreResult<u64> {
        transacting!(self, super::failed::reopen_some, filter, limit, now)
    }
}

/// What one look at the ready rows found.
#[derive(Default)]
pub(crate) struct Look {
    /// Rows that may go out.
    pub(crate) ready: Vec<OutboxItem>,
    /// Rows whose lane waits for an earlier one: to be set aside with [`park_behind`].
    pub(crate) behind: Vec<(u64, Lane)>,
}

/// Looks at the next rows that are due. Reads only.
///
/// Always from the beginning, or from a floor below which nothing can wait: a row that commits late has a lower number
/// than rows that were seen before it, and later rows of its lane must not pass it.
async fn look(session: &mut Session<'_>, claim: &OutboxClaim<'_>, floors: &Floors) -> StoreResult<Look> {
    let place = Place::Outbox(claim.channel.clone());
    if let Some(floor) = floors.of(&place) {
        let mut keys = values![];
        let mut look_keys = values![];
        let sql = guarded(&place, &look_sql(session, claim, Some(floor.at), &mut look_keys), &mut keys);
        keys.extend(look_keys);
        let rows = session.rows("outbox.look", &sql, keys).await?;
        if floor.holds(&server_state(&rows)?) {
            return read_look(&rows);
        }
        floors.drop_floor(&place);
    }
    let mut keys = values![];
    let sql = look_sql(session, claim, None, &mut keys);
    read_look(&session.rows("outbox.look", &sql, keys).await?)
}

/// The next rows, in steps: those that are due (`due`), of each lane so many (`fair`), with the bytes that come before
/// each (`sized`), and only then their facts. So a payload is read only if there is room for it, and only of rows that do
/// not wait for an earlier one.
fn look_sql<'v>(
    session: &Session<'_>,
    claim: &OutboxClaim<'v>,
    floor: Option<i64>,
    keys: &mut Vec<Value<'v>>,
) -> String {
    let (channel, condition) = session.dialect().partial(OUTBOX_READY, "o.");
    // A table that is all backlog would else be read by its primary key, rows of all partitions and those that were sent
    // a moment ago included.
    let (pinned, first) = session.dialect().pinned(&channel);
    keys.extend(values![claim.now]);
    keys.extend(pinned.matches('?').map(|_| Value::from(claim.channel.as_str())));
    keys.extend(values![claim.now]);
    let partitions = in_partitions(session, claim.partitions, keys);
    keys.extend(floor.map(Value::from));
    let from = if floor.is_some() { " AND o.outbox_id >= ?" } else { "" };
    let OutboxClaim { limit, room, .. } = claim;
    let is_fair = room.per_lane >= *limit;
    // The head of a parked lane goes out when it is due, and what is earlier than the head goes first.
    let due = format!(
        "SELECT o.outbox_id, o.lane, o.retry_count, o.status, o.event_id AS fact_id{}, \
         CASE WHEN p.head_outbox_id < o.outbox_id THEN 1 WHEN p.head_outbox_id > o.outbox_id THEN 0 \
         WHEN p.head_outbox_id IS NULL OR p.due_at <= ? THEN 0 ELSE 2 END AS waits \
         FROM event_outbox o LEFT JOIN parked_lanes p ON p.channel = o.channel AND p.lane = o.lane \
         WHERE {pinned}{condition} AND (o.next_retry_at IS NULL OR o.next_retry_at <= ?){partitions}{from} \
         ORDER BY {first}o.outbox_id LIMIT {}",
        if is_fair { ", 1 AS nth" } else { "" },
        if is_fair { *limit } else { room.depth.max(*limit) }
    );
    let fair = if is_fair {
        due
    } else {
        let per_lane = room.per_lane;
        format!(
            "SELECT numbered.outbox_id, numbered.lane, numbered.retry_count, numbered.status, numbered.fact_id, \
             numbered.waits, numbered.nth FROM (SELECT due.*, \
             ROW_NUMBER() OVER (PARTITION BY due.lane ORDER BY due.outbox_id) AS nth FROM ({due}) AS due) AS numbered \
             WHERE numbered.nth <= {per_lane} OR numbered.waits <> 0 ORDER BY numbered.outbox_id LIMIT {limit}"
        )
    };
    // The first of each lane has room before the second of any: a lane with large ones leaves some to the others.
    keys.extend(values![room.bytes]);
    format!(
        "SELECT sized.outbox_id, sized.lane, sized.retry_count, sized.status, sized.waits, {} \
         FROM (SELECT fair.*, SUM(CASE WHEN fair.waits = 0 THEN OCTET_LENGTH(b.payload) ELSE 0 END) \
         OVER (ORDER BY fair.nth, fair.outbox_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before \
         FROM ({fair}) AS fair JOIN domain_events b ON b.event_id = fair.fact_id) AS sized \
         LEFT JOIN domain_events e ON e.event_id = sized.fact_id AND sized.waits = 0 \
         WHERE sized.bytes_before IS NULL OR sized.bytes_before < ? OR sized.waits <> 0 ORDER BY sized.outbox_id",
        select_list(&DOMAIN_EVENTS, "e", ""),
    )
}

fn read_look(rows: &[Row]) -> StoreResult<Look> {
    let mut look = Look::default();
    for row in rows {
        let Some(outbox_id) = row.long_or_null("outbox_id")? else { continue };
        let (outbox_id, lane) = (outbox_id.cast_unsigned(), Lane::from_stored(row.long("lane")?));
        match row.long("waits")? {
            0 => look.ready.push(OutboxItem {
                outbox_id,
                lane,
                retry_count: row.small("retry_count")?,
                status: stored(row, "status")?,
                event: read_event(row)?,
            }),
            1 => look.behind.push((outbox_id, lane)),
            // The head of its lane, which is not due.
            _ => {}
        }
    }
    // A join around a look need not keep its order.
    look.ready.sort_by_key(|item| item.outbox_id);
    Ok(look)
}

/// The condition that a row lies in one of these partitions. A range is compared in the index, before the row is read;
/// what has gaps is a range first.
fn in_partitions(session: &Session<'_>, partitions: &[u16], keys: &mut Vec<Value<'_>>) -> String {
    let (first, last) = (partitions.iter().min().copied(), partitions.iter().max().copied());
    let (Some(first), Some(last)) = (first, last) else { return " AND 1 = 0".to_owned() };
    let mut condition = String::new();
    if last - first + 1 < Lane::PARTITIONS {
        keys.extend(values![first, last]);
        condition.push_str(" AND o.partition_no >= ? AND o.partition_no <= ?");
    }
    if usize::from(last - first) + 1 > partitions.len() {
        let numbers = partitions.iter().map(|number| i64::from(*number)).collect();
        condition.push_str(&format!(" AND {}", session.one_of("o.partition_no", numbers, keys)));
    }
    condition
}

/// Sets rows aside whose lane waits. Runs in a transaction.
///
/// The lanes are locked first, and only rows behind the head that a lane has now are touched: whoever looked long ago
/// must neither leave a row behind whose lane has gone on, nor set the new head aside.
async fn park_behind(
    session: &mut Session<'_>,
    claim: &OutboxClaim<'_>,
    behind: &[(u64, Lane)],
) -> StoreResult<u64> {
    let heads = lock_heads(session, claim.channel, behind.iter().map(|(_, lane)| *lane)).await?;
    let waits = |(outbox_id, lane): &&(u64, Lane)| heads.get(lane).is_some_and(|head| head < outbox_id);
    let rows: Vec<i64> = behind.iter().filter(waits).map(|(outbox_id, _)| outbox_id.cast_signed()).collect();
    set_aside(session, claim.now, rows).await
}

async fn set_aside(session: &mut Session<'_>, now: DateTime<Utc>, rows: Vec<i64>) -> StoreResult<u64> {
    if rows.is_empty() {
        return Ok(0);
    }
    let mut changed = values![now];
    let Chosen { target, condition, .. } =
        session.choose_for_update("event_outbox", "outbox_id", rows, &mut changed);
    let sql = format!(
        "UPDATE {target} SET parked_at = ? WHERE {condition} AND parked_at IS NULL AND status IN ('NEW', 'RETRY')"
    );
    Ok(session.execute("outbox.set_aside", &sql, changed).await?)
}

/// Locks the lanes that are parked, and answers the row that each waits for.
pub(crate) async fn lock_heads(
    session: &mut Session<'_>,
    channel: &ChannelName,
    lanes: impl Iterator<Item = Lane>,
) -> StoreResult<HashMap<Lane, u64>> {
    let mut keys = values![];
    let lanes = lanes.map(Lane::to_stored).collect::<BTreeSet<_>>().into_iter().collect();
    let Chosen { target, condition, .. } = session.choose_from("parked_lanes", "lane", lanes, &mut keys);
    keys.extend(values![channel.as_str()]);
    let sql = format!(
        "SELECT lane, head_outbox_id FROM {target} WHERE {condition} AND channel = ? ORDER BY lane {}",
        session.dialect().for_update()
    );
    let mut heads = HashMap::new();
    for row in session.rows("outbox.heads", &sql, keys).await? {
        heads.insert(Lane::from_stored(row.long("lane")?), row.count("head_outbox_id")?);
    }
    Ok(heads)
}

/// Writes how publishing ended. Runs in a transaction.
async fn record(
    session: &mut Session<'_>,
    leases: &[LeaseGrant],
    channel: &ChannelName,
    now: DateTime<Utc>,
    results: &[OutboxResult],
) -> StoreResult<()> {
    // Of the failed rows of one lane only the earliest is what the lane waits for; the others, like all that come
    // after it, are only set aside. Their own failure is not theirs: they should not have been sent before it.
    let parked = lock_heads(session, channel, results.iter().map(|result| result.lane)).await?;
    let sent = already_sent(session, results).await?;
    let results: Vec<&OutboxResult> = results.iter().filter(|one| !sent.contains(&one.outbox_id)).collect();
    let failed = results.iter().copied().filter(|result| parks(&result.outcome));
    let mut heads = parked.clone();
    for result in failed.clone() {
        let head = heads.entry(result.lane).or_insert(result.outbox_id);
        *head = (*head).min(result.outbox_id);
    }
    let is_head = |result: &OutboxResult| heads.get(&result.lane) == Some(&result.outbox_id);
    let behind =
        failed.filter(|result| !is_head(result)).map(|result| result.outbox_id.cast_signed()).collect();
    set_aside(session, now, behind).await?;

    let counted: Vec<&OutboxResult> =
        results.iter().copied().filter(|result| !parks(&result.outcome) || is_head(result)).collect();
    // Results of one batch mostly end alike: each distinct outcome is one statement.
    let mut outcomes: Vec<&OutboxOutcome> = Vec::new();
    for result in &counted {
        if !outcomes.contains(&&result.outcome) {
            outcomes.push(&result.outcome);
        }
    }
    for outcome in outcomes {
        let alike: Vec<&OutboxResult> =
            counted.iter().filter(|result| result.outcome == *outcome).copied().collect();
        record_alike(session, channel, now, outcome, &alike, &parked).await?;
    }
    let opened = |result: &&OutboxResult| {
        !parks(&result.outcome) && parked.get(&result.lane) == Some(&result.outbox_id)
    };
    if counted.iter().any(opened) {
        count_return(session, channel).await?;
    }
    fence(session, leases).await
}

/// The rows that are to park their lane although they are through, because somebody else has sent or skipped them or they
/// were recorded before: a lane that waited for one would wait for ever.
async fn already_sent(session: &mut Session<'_>, results: &[OutboxResult]) -> StoreResult<HashSet<u64>> {
    let failed = results.iter().filter(|result| parks(&result.outcome));
    let ids: Vec<i64> = failed.map(|result| result.outbox_id.cast_signed()).collect();
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let mut keys = values![];
    let Chosen { target, condition, .. } =
        session.choose_from("event_outbox", "outbox_id", ids.clone(), &mut keys);
    let failed = results.iter().filter(|result| parks(&result.outcome));
    let (is_the_event, events) = session.dialect().one_of_ids("event_id", &event_ids(failed));
    keys.push(events);
    let sql = format!(
        "SELECT outbox_id FROM {target} WHERE {condition} AND {is_the_event} AND status NOT IN ('SENT', 'SKIPPED') \
         ORDER BY outbox_id {}",
        session.dialect().for_update()
    );
    let mut sent: HashSet<u64> = ids.into_iter().map(i64::cast_unsigned).collect();
    // One that is missing was sent so long ago that it is deleted, or the database has lost it.
    for row in session.rows("outbox.unsent", &sql, keys).await? {
        sent.remove(&row.count("outbox_id")?);
    }
    Ok(sent)
}

fn event_ids<'r>(results: impl Iterator<Item = &'r OutboxResult>) -> Vec<uuid::Uuid> {
    results.map(|result| result.event_id.0).collect()
}

/// Writes one outcome for all the rows that ended so.
async fn record_alike(
    session: &mut Session<'_>,
    channel: &ChannelName,
    now: DateTime<Utc>,
    outcome: &OutboxOutcome,
    rows: &[&OutboxResult],
    parked: &HashMap<Lane, u64>,
) -> StoreResult<()> {
    let (next, due_at, why, failures) = match outcome {
        OutboxOutcome::Sent => (OutboxStep::Confirm, None, None, 0_u32),
        OutboxOutcome::Retry { at, reason, message, .. } => {
            (OutboxStep::Postpone, Some(*at), Some((reason, message)), 1)
        }
        OutboxOutcome::Failed { reason, message, .. } => {
            (OutboxStep::GiveUp, None, Some((reason, message)), 1)
        }
    };
    let status = step(OutboxStatus::New, next)?;
    let ids: Vec<i64> = rows.iter().map(|row| row.outbox_id.cast_signed()).collect();
    let mut changed = values![
        status.as_str(),
        now,
        why.map(|(reason, _)| code(reason)),
        why.map(|(_, message)| readable(message)),
        due_at,
        failures
    ];
    let Chosen { target, condition, .. } =
        session.choose_for_update("event_outbox", "outbox_id", ids, &mut changed);
    let (is_the_event, events) = session.dialect().one_of_ids("event_id", &event_ids(rows.iter().copied()));
    changed.push(events);
    let sql = format!(
        "UPDATE {target} SET status = ?, status_changed_at = ?, status_reason = ?, status_message = ?, \
         next_retry_at = ?, retry_count = retry_count + ?, parked_at = NULL \
         WHERE {condition} AND {is_the_event} AND status IN ('NEW', 'RETRY')"
    );
    session.execute("outbox.record", &sql, changed).await?;
    if parks(outcome) {
        park_lanes(session, channel, now, due_at, rows).await
    } else {
        // Whoever waited for these waits no longer. The lanes were locked and read before.
        let waited = rows.iter().filter(|row| parked.get(&row.lane) == Some(&row.outbox_id));
        unpark(session, channel, now, waited.map(|row| row.lane).collect()).await
    }
}

/// Whether later rows of the lane wait for one that ended so.
fn parks(outcome: &OutboxOutcome) -> bool {
    match outcome {
        OutboxOutcome::Sent => false,
        OutboxOutcome::Retry { park, .. } | OutboxOutcome::Failed { park, .. } => *park,
    }
}

/// Goes on without a row. Runs in a transaction.
async fn skip(
    session: &mut Session<'_>,
    outbox_id: u64,
    reason: &str,
    now: DateTime<Utc>,
) -> StoreResult<bool> {
    let sql = "SELECT channel, lane FROM event_outbox WHERE outbox_id = ? AND status IN ('FAILED', 'RETRY')";
    let Some(row) = session.row("outbox.to_skip", sql, values![outbox_id]).await? else { return Ok(false) };
    let (channel, lane) =
        (ChannelName::from_stored(row.text("channel")?), Lane::from_stored(row.long("lane")?));
    // The lane is locked before the row, as everybody does it.
    let heads = lock_heads(session, &channel, std::iter::once(lane)).await?;
    let status = step(OutboxStatus::Failed, OutboxStep::Skip)?;
    let sql = "UPDATE event_outbox SET status = ?, status_changed_at = ?, status_reason = 'skipped', \
               status_message = ?, next_retry_at = NULL, parked_at = NULL \
               WHERE outbox_id = ? AND status IN ('FAILED', 'RETRY')";
    let changed = values![status.as_str(), now, readable(reason), outbox_id];
    if session.execute("outbox.skip", sql, changed).await? == 0 {
        return Ok(false);
    }
    if heads.get(&lane) == Some(&outbox_id) {
        unpark(session, &channel, now, vec![lane]).await?;
        count_return(session, &channel).await?;
    }
    Ok(true)
}

/// Puts FAILED rows back. Runs in a transaction.
pub(crate) async fn reopen(
    session: &mut Session<'_>,
    outbox_ids: &[u64],
    now: DateTime<Utc>,
) -> StoreResult<u64> {
    let ids: Vec<i64> = outbox_ids.iter().map(|id| id.cast_signed()).collect();
    // The lanes are locked before the rows, as everybody does it.
    let mut keys = values![];
    let Chosen { target, condition, .. } =
        session.choose_from("event_outbox", "outbox_id", ids.clone(), &mut keys);
    let sql = format!("SELECT channel, lane FROM {target} WHERE {condition} AND status = 'FAILED'");
    let mut lanes: BTreeMap<String, Vec<Lane>> = BTreeMap::new();
    for row in session.rows("outbox.reopened", &sql, keys).await? {
        lanes.entry(row.text("channel")?).or_default().push(Lane::from_stored(row.long("lane")?));
    }
    let chosen: BTreeSet<u64> = outbox_ids.iter().copied().collect();
    let mut due: Vec<(ChannelName, Vec<i64>)> = Vec::new();
    for (channel, lanes) in lanes {
        let channel = ChannelName::from_stored(channel);
        let heads = lock_heads(session, &channel, lanes.into_iter()).await?;
        let waiting = heads.into_iter().filter(|(_, head)| chosen.contains(head));
        due.push((channel, waiting.map(|(lane, _)| lane.to_stored()).collect()));
    }

    let status = step(OutboxStatus::Failed, OutboxStep::Reopen)?;
    let mut changed = values![status.as_str(), now, now];
    let Chosen { target, condition, .. } =
        session.choose_for_update("event_outbox", "outbox_id", ids, &mut changed);
    let sql = format!(
        "UPDATE {target} SET status = ?, status_changed_at = ?, status_reason = 'reopened', \
         status_message = NULL, next_retry_at = ?, retry_count = 0 WHERE {condition} AND status = 'FAILED'"
    );
    let reopened = session.execute("outbox.reopen", &sql, changed).await?;
    for (channel, lanes) in due {
        count_return(session, &channel).await?;
        if lanes.is_empty() {
            continue;
        }
        let mut changed = values![now];
        let Chosen { target, condition, .. } =
            session.choose_for_update("parked_lanes", "lane", lanes, &mut changed);
        changed.extend(values![channel.as_str()]);
        let sql = format!("UPDATE {target} SET due_at = ? WHERE {condition} AND channel = ?");
        session.execute("outbox.reopen_lanes", &sql, changed).await?;
    }
    Ok(reopened)
}

/// How many rows of a lane are let go at a time: a lane that has waited for a day may have more than a statement can change
/// in its time.
const OPENED_AT_ONCE: usize = 1000;

/// Lets the rows of these lanes go on. The lanes are locked.
///
/// Of a lane with very many the first ones go, and it then waits for the last of them.
pub(crate) async fn unpark(
    session: &mut Session<'_>,
    channel: &ChannelName,
    now: DateTime<Utc>,
    lanes: Vec<Lane>,
) -> StoreResult<()> {
    let mut open = Vec::new();
    for lane in &lanes {
        match nth_parked(session, channel, *lane).await? {
            None => open.push(lane.to_stored()),
            Some(last) => unpark_up_to(session, channel, now, *lane, last).await?,
        }
    }
    if open.is_empty() {
        return Ok(());
    }
    let mut keys = values![];
    let chosen = session.choose_from("parked_lanes", "lane", open.clone(), &mut keys);
    keys.extend(values![channel.as_str()]);
    let sql = format!("{} WHERE {} AND channel = ?", chosen.delete, chosen.condition);
    session.execute("outbox.unpark_lanes", &sql, keys).await?;
    let (parked_channel, parked) = session.dialect().partial(OUTBOX_PARKED, "");
    let mut keys = values![];
    let Chosen { target, condition, .. } = session.choose_for_update("event_outbox", "lane", open, &mut keys);
    keys.extend(values![channel.as_str()]);
    let sql =
        format!("UPDATE {target} SET parked_at = NULL WHERE {condition} AND {parked_channel} = ?{parked}");
    session.execute("outbox.unpark", &sql, keys).await?;
    Ok(())
}

/// The last row of a lane that is let go, if there are others behind it.
async fn nth_parked(
    session: &mut Session<'_>,
    channel: &ChannelName,
    lane: Lane,
) -> StoreResult<Option<i64>> {
    let (parked_channel, parked) = session.dialect().partial(OUTBOX_PARKED, "");
    let sql = format!(
        "SELECT outbox_id FROM event_outbox WHERE {parked_channel} = ? AND lane = ?{parked} \
         ORDER BY outbox_id LIMIT 2 OFFSET {}",
        OPENED_AT_ONCE - 1
    );
    let rows = session.rows("outbox.nth_parked", &sql, values![channel.as_str(), lane.to_stored()]).await?;
    match rows.as_slice() {
        [last, _] => Ok(Some(last.long("outbox_id")?)),
        _ => Ok(None),
    }
}

async fn unpark_up_to(
    session: &mut Session<'_>,
    channel: &ChannelName,
    now: DateTime<Utc>,
    lane: Lane,
    last: i64,
) -> StoreResult<()> {
    let sql = "UPDATE parked_lanes SET head_outbox_id = ?, due_at = ? WHERE channel = ? AND lane = ?";
    let waits = values![last, now, channel.as_str(), lane.to_stored()];
    session.execute("outbox.next_head", sql, waits).await?;
    let (parked_channel, parked) = session.dialect().partial(OUTBOX_PARKED, "");
    let sql = format!(
        "UPDATE event_outbox SET parked_at = NULL WHERE {parked_channel} = ? AND lane = ? AND outbox_id <= ?{parked}"
    );
    session.execute("outbox.unpark_some", &sql, values![channel.as_str(), lane.to_stored(), last]).await?;
    Ok(())
}

/// Makes lanes wait for these rows.
async fn park_lanes(
    session: &mut Session<'_>,
    channel: &ChannelName,
    now: DateTime<Utc>,
    due_at: Option<DateTime<Utc>>,
    heads: &[&OutboxResult],
) -> StoreResult<()> {
    let mut parked: Vec<Value<'_>> = Vec::new();
    for head in heads {
        parked.extend(values![channel.as_str(), head.lane.to_stored(), head.outbox_id, due_at, now]);
    }
    let dialect = session.dialect();
    let sql = format!(
        "{} {} head_outbox_id = {}, due_at = {}",
        insert_sql(&PARKED_LANES, heads.len()),
        dialect.on_conflict("channel, lane"),
        dialect.inserted("head_outbox_id"),
        dialect.inserted("due_at"),
    );
    session.execute("outbox.park_lanes", &sql, parked).await?;
    Ok(())
}

fn step(from: OutboxStatus, step: OutboxStep) -> StoreResult<OutboxStatus> {
    from.next(step).map_err(|error| unreadable("event_outbox.status", error))
}
