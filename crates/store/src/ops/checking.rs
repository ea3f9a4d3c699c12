//! Checking: checks as rows, walks over tables for what is not as it should be, and repairs.
//!
//! Reading order: this file has checks and what is read for them; `suspects` the walks, `repairs` what is put right.

mod repairs;
mod suspects;

use std::collections::BTreeMap;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{ChannelName, EventId, Position};
use towpath_core::ports::store::{
    Append, ChannelStart, CheckRow, CheckStatus, CheckedEvent, Checking, KnownCause, LeaseGrant,
    PastConsumer, Repair, Repaired, StoreResult, Suspect, SuspectPage, Suspicion,
};
use uuid::Uuid;

use crate::ops::leases::fence;
use crate::rows::{insert_sql, select_list};
use crate::schema::{CHANNEL_STARTS, CONSISTENCY_CHECKS};
use crate::sql::{Row, Session, Value, code, readable, unreadable, values};
use crate::store::{SqlStore, listing, reading, transacting, writing_once};

/// How many positions are looked at together for where a time begins.
const STRIDE: u64 = 5_000;

/// How many events behind one are looked at for who has had them.
const LATER: u64 = 1_000;

/// How many keys stand in one statement.
const TOGETHER: usize = 200;

#[async_trait]
impl Checking for SqlStore {
    async fn begin_check(&self, check: &CheckRow) -> StoreResult<()> {
        writing_once!(self, begin, check)
    }

    async fn next_check(&self) -> StoreResult<Option<CheckRow>> {
        reading!(self, next)
    }

    async fn save_check(&self, lease: &LeaseGrant, check: &CheckRow) -> StoreResult<bool> {
        transacting!(self, save, lease, check)
    }

    async fn find_check(&self, check_id: Uuid) -> StoreResult<Option<CheckRow>> {
        reading!(self, find, check_id)
    }

    async fn last_check(&self) -> StoreResult<Option<CheckRow>> {
        reading!(self, last)
    }

    async fn last_version_gaps(&self) -> StoreResult<Option<u64>> {
        reading!(self, version_gaps)
    }

    async fn clean_checks(
        &self,
        lease: &LeaseGrant,
        ended_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, clean, lease, ended_before, limit)
    }

    async fn note_channel_starts(&self, starts: &[ChannelStart]) -> StoreResult<()> {
        if starts.is_empty() {
            return Ok(());
        }
        writing_once!(self, note_starts, starts)
    }

    async fn channel_starts(&self) -> StoreResult<Vec<ChannelStart>> {
        reading!(self, starts)
    }

    async fn position_before(&self, since: DateTime<Utc>) -> StoreResult<Position> {
        listing!(self, position_before, since)
    }

    async fn suspects(
        &self,
        suspicion: &Suspicion<'_>,
        behind: Option<&[String]>,
        limit: u32,
    ) -> StoreResult<SuspectPage> {
        listing!(self, suspects::page, suspicion, behind, limit)
    }

    async fn suspects_among(
        &self,
        suspicion: &Suspicion<'_>,
        keys: &[Vec<String>],
    ) -> StoreResult<Vec<Suspect>> {
        listing!(self, suspects::again, suspicion, keys)
    }

    async fn checked_events(&self, behind: Position, up_to: Position) -> StoreResult<Vec<CheckedEvent>> {
        listing!(self, events, behind, up_to)
    }

    async fn known_causes(&self, ids: &[Uuid]) -> StoreResult<Vec<KnownCause>> {
        listing!(self, causes, ids)
    }

    async fn consumers_past(&self, event_id: EventId) -> StoreResult<Vec<PastConsumer>> {
        listing!(self, consumers_past, event_id)
    }

    async fn repair(&self, repair: &Repair, fact: &Append, now: DateTime<Utc>) -> StoreResult<Repaired> {
        let mut transaction = self.transaction().await?;
        let done = repairs::apply(&mut transaction.session(), repair, fact, now).await;
        match done {
            Ok(Repaired::Done) => {
                transaction.commit().await?;
                Ok(Repaired::Done)
            }
            other => {
                let _ = transaction.rollback().await;
                other
            }
        }
    }
}

async fn begin(session: &mut Session<'_>, check: &CheckRow) -> StoreResult<()> {
    session.execute("checks.begin", &insert_sql(&CONSISTENCY_CHECKS, 1), check_values(check)).await?;
    Ok(())
}

/// As the columns stand in the schema.
fn check_values(check: &CheckRow) -> Vec<Value<'_>> {
    values![
        check.check_id,
        check.status.as_str(),
        check.status_changed_at,
        check.status_reason.as_deref().map(code),
        check.status_message.as_deref().map(readable),
        check.window_micros,
        check.since,
        check.started_at,
        check.finished_at,
        check.progress.as_str(),
        check.version_gap_count.map(u64::cast_signed),
    ]
}

fn read_check(row: &Row) -> StoreResult<CheckRow> {
    let status = row.text("status")?;
    let known = CheckStatus::ALL.into_iter().find(|known| known.as_str() == status);
    Ok(CheckRow {
        check_id: row.uuid("check_id")?,
        status: known.ok_or_else(|| unreadable("consistency_checks.status", status))?,
        status_changed_at: row.time("status_changed_at")?,
        status_reason: row.text_or_null("status_reason")?,
        status_message: row.text_or_null("status_message")?,
        window_micros: row.count("window_micros")?,
        since: row.time("since_at")?,
        started_at: row.time("started_at")?,
        finished_at: row.time_or_null("finished_at")?,
        progress: row.text("progress")?,
        version_gap_count: row.long_or_null("version_gap_count")?.map(i64::cast_unsigned),
    })
}

async fn one(
    session: &mut Session<'_>,
    name: &'static str,
    which: &str,
    keys: Vec<Value<'_>>,
) -> StoreResult<Option<CheckRow>> {
    let columns = select_list(&CONSISTENCY_CHECKS, "c", "");
    let sql = format!("SELECT {columns} FROM consistency_checks c WHERE {which} LIMIT 1");
    session.row(name, &sql, keys).await?.map(|row| read_check(&row)).transpose()
}

async fn next(session: &mut Session<'_>) -> StoreResult<Option<CheckRow>> {
    one(session, "checks.next", "c.finished_at IS NULL ORDER BY c.started_at, c.check_id", values![]).await
}

async fn find(session: &mut Session<'_>, check_id: Uuid) -> StoreResult<Option<CheckRow>> {
    one(session, "checks.find", "c.check_id = ?", values![check_id]).await
}

async fn last(session: &mut Session<'_>) -> StoreResult<Option<CheckRow>> {
    let which =
        "c.finished_at IS NOT NULL AND c.status = 'DONE' ORDER BY c.finished_at DESC, c.check_id DESC";
    one(session, "checks.last", which, values![]).await
}

async fn version_gaps(session: &mut Session<'_>) -> StoreResult<Option<u64>> {
    let sql = "SELECT version_gap_count FROM consistency_checks WHERE finished_at IS NOT NULL AND status = 'DONE' \
               AND version_gap_count IS NOT NULL ORDER BY finished_at DESC, check_id DESC LIMIT 1";
    session
        .row("checks.version_gaps", sql, values![])
        .await?
        .map(|row| row.count("version_gap_count"))
        .transpose()
}

/// Writes how far a check is. Runs in a transaction.
async fn save(session: &mut Session<'_>, lease: &LeaseGrant, check: &CheckRow) -> StoreResult<bool> {
    let sql = "UPDATE consistency_checks SET status = ?, status_changed_at = ?, status_reason = ?, status_message = ?, \
               finished_at = ?, progress = ?, version_gap_count = ? WHERE check_id = ? AND finished_at IS NULL";
    let changed = values![
        check.status.as_str(),
        check.status_changed_at,
        check.status_reason.as_deref().map(code),
        check.status_message.as_deref().map(readable),
        check.finished_at,
        check.progress.as_str(),
        check.version_gap_count.map(u64::cast_signed),
        check.check_id,
    ];
    let saved = session.execute("checks.save", sql, changed).await? == 1;
    fence(session, std::slice::from_ref(lease)).await?;
    Ok(saved)
}

/// Deletes the oldest. Runs in a transaction.
async fn clean(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    limit: u32,
) -> StoreResult<u64> {
    let sql = format!(
        "SELECT check_id FROM consistency_checks WHERE finished_at < ? ORDER BY finished_at LIMIT {limit}"
    );
    let old = session.rows("checks.old", &sql, values![before]).await?;
    let mut deleted = 0;
    if !old.is_empty() {
        let marks = vec!["?"; old.len()].join(", ");
        let sql = format!("DELETE FROM consistency_checks WHERE check_id IN ({marks})");
        let ids = old.iter().map(|row| Ok(Value::from(row.uuid("check_id")?)));
        deleted = session.execute("checks.clean", &sql, ids.collect::<StoreResult<_>>()?).await?;
    }
    fence(session, std::slice::from_ref(lease)).await?;
    Ok(deleted)
}

/// A channel that takes something else than before begins anew.
async fn note_starts(session: &mut Session<'_>, starts: &[ChannelStart]) -> StoreResult<()> {
    let dialect = session.dialect();
    let (patterns, started_at) = (dialect.inserted("patterns"), dialect.inserted("started_at"));
    // MySQL assigns one after the other: the time must see the patterns as they were.
    let sql = format!(
        "{} {} started_at = CASE WHEN channel_starts.patterns = {patterns} THEN channel_starts.started_at ELSE {started_at} END, \
         patterns = {patterns}",
        insert_sql(&CHANNEL_STARTS, starts.len()),
        dialect.on_conflict("channel")
    );
    let noted = starts
        .iter()
        .flat_map(|start| values![start.channel.as_str(), start.patterns.as_str(), start.started_at]);
    session.execute("checks.note_starts", &sql, noted.collect()).await?;
    Ok(())
}

async fn starts(session: &mut Session<'_>) -> StoreResult<Vec<ChannelStart>> {
    let sql = "SELECT channel, patterns, started_at FROM channel_starts ORDER BY channel";
    let rows = session.rows("checks.starts", sql, values![]).await?;
    let read = |row: &Row| {
        Ok(ChannelStart {
            channel: ChannelName::from_stored(row.text("channel")?),
            patterns: row.text("patterns")?,
            started_at: row.time("started_at")?,
        })
    };
    rows.iter().map(read).collect()
}

/// From the head backwards, until nothing of a whole stretch is young enough. Late commits and facts that were mirrored stand
/// among younger ones, so one look in the middle would not tell.
async fn position_before(session: &mut Session<'_>, since: DateTime<Utc>) -> StoreResult<Position> {
    let head =
        session.row("checks.head", "SELECT last_position FROM log_head WHERE log_id = 1", values![]).await?;
    let mut high = head.map_or(Ok(0), |row| row.count("last_position"))?;
    let sql = "SELECT COUNT(*) AS young FROM event_positions p JOIN domain_events e ON e.event_id = p.event_id \
               WHERE p.position > ? AND p.position <= ? AND e.occurred_at >= ?";
    while high > 0 {
        let low = high.saturating_sub(STRIDE);
        let row = session.row("checks.since", sql, values![low, high, since]).await?;
        if row.map_or(Ok(0), |row| row.count("young"))? == 0 {
            return Ok(high);
        }
        high = low;
    }
    Ok(0)
}

async fn events(
    session: &mut Session<'_>,
    behind: Position,
    up_to: Position,
) -> StoreResult<Vec<CheckedEvent>> {
    let sql = "SELECT p.position, e.event_id, e.event_type, e.aggregate_kind, e.aggregate_id, e.aggregate_version, \
               e.occurred_at, e.correlation_id, e.causation_id, c.command_id AS by_command, o.channel \
               FROM event_positions p JOIN domain_events e ON e.event_id = p.event_id \
               LEFT JOIN command_box c ON c.command_id = e.causation_id AND c.correlation_id = e.correlation_id \
               LEFT JOIN event_outbox o ON o.event_id = e.event_id \
               WHERE p.position > ? AND p.position <= ? ORDER BY p.position";
    let mut events: Vec<CheckedEvent> = Vec::new();
    for row in session.rows("checks.events", sql, values![behind, up_to]).await? {
        let (position, channel) = (row.count("position")?, row.text_or_null("channel")?);
        // A row for each channel.
        if let Some(event) = events.last_mut().filter(|event| event.position == position) {
            event.channels.extend(channel);
            continue;
        }
        events.push(CheckedEvent {
            position,
            event_id: EventId(row.uuid("event_id")?),
            event_type: row.text("event_type")?,
            aggregate_kind: row.text("aggregate_kind")?,
            aggregate_id: row.text("aggregate_id")?,
            aggregate_version: row.count("aggregate_version")?,
            occurred_at: row.time("occurred_at")?,
            correlation_id: row.text("correlation_id")?,
            causation_id: row.text_or_null("causation_id")?,
            is_of_command: row.text_or_null("by_command")?.is_some(),
            channels: channel.into_iter().collect(),
        });
    }
    Ok(events)
}

async fn causes(session: &mut Session<'_>, ids: &[Uuid]) -> StoreResult<Vec<KnownCause>> {
    let mut known: BTreeMap<Uuid, KnownCause> = BTreeMap::new();
    for ids in ids.chunks(TOGETHER) {
        let marks = vec!["?"; ids.len()].join(", ");
        let keys = || ids.iter().map(|id| Value::from(*id)).collect::<Vec<_>>();
        let sql = format!(
            "SELECT e.event_id, e.correlation_id, p.position FROM domain_events e \
             LEFT JOIN event_positions p ON p.event_id = e.event_id WHERE e.event_id IN ({marks})"
        );
        for row in session.rows("checks.causes", &sql, keys()).await? {
            let id = row.uuid("event_id")?;
            let position = row.long_or_null("position")?.map(i64::cast_unsigned);
            let event = Some((row.text("correlation_id")?, position));
            known.insert(id, KnownCause { id, event, was_delivered: false });
        }
        let sql = format!("SELECT DISTINCT event_id FROM inbox WHERE event_id IN ({marks})");
        for row in session.rows("checks.delivered", &sql, keys()).await? {
            let id = row.uuid("event_id")?;
            let unknown = KnownCause { id, event: None, was_delivered: true };
            known.entry(id).or_insert(unknown).was_delivered = true;
        }
    }
    Ok(known.into_values().collect())
}

async fn consumers_past(session: &mut Session<'_>, event_id: EventId) -> StoreResult<Vec<PastConsumer>> {
    let sql = format!(
        "SELECT i.handler, MAX(later.aggregate_version) AS version FROM domain_events e \
         JOIN domain_events later ON later.aggregate_kind = e.aggregate_kind AND later.aggregate_id = e.aggregate_id \
         AND later.aggregate_version >= e.aggregate_version AND later.aggregate_version <= e.aggregate_version + {LATER} \
         JOIN inbox i ON i.event_id = later.event_id AND i.status = 'HANDLED' \
         WHERE e.event_id = ? GROUP BY i.handler ORDER BY i.handler"
    );
    let rows = session.rows("checks.past", &sql, values![event_id.0]).await?;
    let read = |row: &Row| Ok(PastConsumer { handler: row.text("handler")?, version: row.count("version")? });
    rows.iter().map(read).collect()
}
