//! What waits, is at work or was given up, counted for whoever watches.
//!
//! Each count is read from an index that holds only such rows, and ends at [`COUNTED`]: whatever lies behind it, and
//! however much waits, a look costs no more than that.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{ChannelName, HandlerName};
use towpath_core::lifecycle::LetterStatus;
use towpath_core::ports::store::{
    Backlog, Backlogs, CommandBacklog, LetterCount, LogBacklog, OutboxBacklog, StoreResult, TimerBacklog,
};

use crate::floors::{Floors, Place};
use crate::rows::stored;
use crate::schema::{COMMAND_BOX, Index, OUTBOX_FAILED, OUTBOX_PARKED, OUTBOX_READY, TIMERS_DUE};
use crate::sql::{Session, Value, unreadable, values};
use crate::store::{SqlStore, listing};

/// How far is counted: what shows this number may be more.
pub(crate) const COUNTED: u32 = 100_000;

/// Commands that have failed, whether they are tried again or not.
const FAILED: &Index = COMMAND_BOX.index("command_box_failed");

/// How many letters of a status are counted. Their rows are wide, and not all that is asked stands in an index.
const LETTERS_COUNTED: u32 = 10_000;

#[async_trait]
impl Backlogs for SqlStore {
    async fn backlog(&self, channels: &[ChannelName], now: DateTime<Utc>) -> StoreResult<Backlog> {
        listing!(self, look, channels, now, self.floors())
    }
}

async fn look(
    session: &mut Session<'_>,
    channels: &[ChannelName],
    now: DateTime<Utc>,
    floors: &Floors,
) -> StoreResult<Backlog> {
    let (commands, log, timers) = at_large(session, now, floors).await?;
    Ok(Backlog {
        commands,
        log,
        timers,
        outbox: outbox(session, channels, floors).await?,
        letters: letters(session).await?,
    })
}

/// What is not by channel: one statement.
async fn at_large(
    session: &mut Session<'_>,
    now: DateTime<Utc>,
    floors: &Floors,
) -> StoreResult<(CommandBacklog, LogBacklog, TimerBacklog)> {
    let dialect = session.dialect();
    let (failed_at, failed) = dialect.partial(FAILED, "c.");
    let (due_at, waiting) = dialect.partial(TIMERS_DUE, "t.");
    // A floor that has just ceased to hold makes the count too low for a moment, and nothing more.
    let from = floors.of(&Place::Pending).map_or(0, |floor| floor.at);
    let sql = format!(
        "SELECT COUNT(CASE WHEN w.status = 'PENDING' THEN 1 END) AS pending_count, \
         COUNT(CASE WHEN w.status = 'FAILED' THEN 1 END) AS retrying_count, \
         {} AS processing_count, {} AS failed_count, {} AS unpositioned_count, {} AS waiting_count, {} AS due_count, \
         (SELECT last_position FROM log_head WHERE log_id = 1) AS head_position, \
         (SELECT c.next_retry_at FROM command_box c WHERE c.next_retry_at IS NOT NULL \
         ORDER BY c.next_retry_at LIMIT 1) AS command_due_at, \
         (SELECT {due_at} FROM timers t WHERE {due_at} IS NOT NULL{waiting} ORDER BY {due_at} LIMIT 1) AS timer_due_at, \
         (SELECT e.occurred_at FROM domain_events e WHERE e.event_id = (SELECT p.event_id FROM event_pending p \
         WHERE p.pending_id >= {from} ORDER BY p.pending_id LIMIT 1)) AS pending_since_at \
         FROM (SELECT c.status FROM command_box c WHERE c.next_retry_at IS NOT NULL LIMIT {COUNTED}) AS w",
        counted("command_box c WHERE c.claimed_by_id IS NOT NULL"),
        counted(&format!("command_box c WHERE {failed_at} IS NOT NULL{failed} ORDER BY {failed_at}")),
        counted(&format!("event_pending p WHERE p.pending_id >= {from} ORDER BY p.pending_id")),
        counted(&format!("timers t WHERE {due_at} IS NOT NULL{waiting} ORDER BY {due_at}")),
        counted(&format!("timers t WHERE {due_at} <= ?{waiting} ORDER BY {due_at}")),
    );
    let row = session.row("backlog.look", &sql, values![now]).await?;
    let row = row.ok_or_else(|| unreadable("command_box", "counting gave no row"))?;
    let retrying = row.count("retrying_count")?;
    let head = row.long_or_null("head_position")?.unwrap_or_default();
    Ok((
        CommandBacklog {
            pending: row.count("pending_count")?,
            processing: row.count("processing_count")?,
            retrying,
            failed: row.count("failed_count")?.saturating_sub(retrying),
            due_at: row.time_or_null("command_due_at")?,
        },
        LogBacklog {
            head: head.cast_unsigned(),
            pending: row.count("unpositioned_count")?,
            pending_since: row.time_or_null("pending_since_at")?,
        },
        TimerBacklog {
            waiting: row.count("waiting_count")?,
            due: row.count("due_count")?,
            due_at: row.time_or_null("timer_due_at")?,
        },
    ))
}

/// The outbox by channel: one statement, however many there are.
async fn outbox(
    session: &mut Session<'_>,
    channels: &[ChannelName],
    floors: &Floors,
) -> StoreResult<Vec<OutboxBacklog>> {
    if channels.is_empty() {
        return Ok(Vec::new());
    }
    let mut keys = values![];
    let mut parts = Vec::with_capacity(channels.len());
    for (which, channel) in channels.iter().enumerate() {
        let from = floors.of(&Place::Outbox(channel.clone())).map_or(0, |floor| floor.at);
        let waiting =
            in_channel(session, OUTBOX_READY, channel, &format!(" AND o.outbox_id >= {from}"), &mut keys);
        let behind = in_channel(session, OUTBOX_PARKED, channel, "", &mut keys);
        let given_up = in_channel(session, OUTBOX_FAILED, channel, "", &mut keys);
        // Once more for the oldest of them.
        let oldest =
            in_channel(session, OUTBOX_READY, channel, &format!(" AND o.outbox_id >= {from}"), &mut keys);
        parts.push(format!(
            "SELECT {which} AS which, {} AS pending_count, {} AS parked_count, {} AS failed_count, \
             (SELECT e.occurred_at FROM domain_events e WHERE e.event_id = (SELECT o.event_id FROM {oldest} LIMIT 1)) \
             AS oldest_at",
            counted(&waiting),
            counted(&behind),
            counted(&given_up),
        ));
    }
    let mut backlog = Vec::with_capacity(channels.len());
    for row in session.rows("backlog.outbox", &parts.join(" UNION ALL "), keys).await? {
        let which = usize::try_from(row.count("which")?).unwrap_or(usize::MAX);
        let Some(channel) = channels.get(which) else { continue };
        backlog.push(OutboxBacklog {
            channel: channel.clone(),
            pending: row.count("pending_count")?,
            parked: row.count("parked_count")?,
            failed: row.count("failed_count")?,
            oldest_at: row.time_or_null("oldest_at")?,
        });
    }
    Ok(backlog)
}

/// The rows of a channel that stand in an index, in its order.
fn in_channel<'v>(
    session: &Session<'_>,
    index: &Index,
    channel: &'v ChannelName,
    more: &str,
    keys: &mut Vec<Value<'v>>,
) -> String {
    let (column, condition) = session.dialect().partial(index, "o.");
    let (pinned, first) = session.dialect().pinned(&column);
    keys.extend(pinned.matches('?').map(|_| Value::from(channel.as_str())));
    let rest: Vec<String> = index.columns.iter().skip(1).map(|column| format!("o.{column}")).collect();
    format!("event_outbox o WHERE {pinned}{condition}{more} ORDER BY {first}{}", rest.join(", "))
}

/// Letters that are not ended, by whose they are.
async fn letters(session: &mut Session<'_>) -> StoreResult<Vec<LetterCount>> {
    let (pinned, first) = session.dialect().pinned("d.status");
    let mut keys = values![];
    let mut parts = Vec::new();
    let open = [LetterStatus::Retry, LetterStatus::Behind, LetterStatus::Dead];
    for (number, status) in open.into_iter().enumerate() {
        keys.extend(pinned.matches('?').map(|_| Value::from(status.as_str())));
        parts.push(format!(
            "SELECT open_{number}.handler, open_{number}.status FROM (SELECT d.handler, d.status FROM dead_letters d \
             WHERE {pinned} ORDER BY {first}d.dead_letter_id LIMIT {LETTERS_COUNTED}) AS open_{number}"
        ));
    }
    let sql = format!(
        "SELECT l.handler, l.status, COUNT(*) AS letter_count FROM ({}) AS l GROUP BY l.handler, l.status",
        parts.join(" UNION ALL ")
    );
    let rows = session.rows("backlog.letters", &sql, keys).await?;
    let count = |row: &crate::sql::Row| {
        Ok(LetterCount {
            handler: row.text_or_null("handler")?.map(HandlerName::from_stored),
            status: stored(row, "status")?,
            count: row.count("letter_count")?,
        })
    };
    rows.iter().map(count).collect()
}

/// How many rows there are, up to a point.
pub(crate) fn counted(rows: &str) -> String {
    format!("(SELECT COUNT(*) FROM (SELECT 1 AS one FROM {rows} LIMIT {COUNTED}) AS counted)")
}
