//! What happened lately, in figures: each is read at the end of an index, and no further than [`LOOKED_AT`] rows.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::ChannelName;
use towpath_core::ports::store::{LOOKED_AT, Recent, RecentCommands, Recents, StoreResult};

use crate::schema::OUTBOX_SENT;
use crate::sql::{Session, Value, values};
use crate::store::{SqlStore, listing};

/// Into how many parts the log is cut to find where a moment is in it: with ten million facts, four times.
const PARTS: u64 = 64;

#[async_trait]
impl Recents for SqlStore {
    async fn recent(
        &self,
        channels: &[ChannelName],
        since: DateTime<Utc>,
        events_since: DateTime<Utc>,
    ) -> StoreResult<Recent> {
        listing!(self, look, channels, since, events_since)
    }
}

async fn look(
    session: &mut Session<'_>,
    channels: &[ChannelName],
    since: DateTime<Utc>,
    events_since: DateTime<Utc>,
) -> StoreResult<Recent> {
    let commands = commands(session, since).await?;
    let (sent, publish_delay) = sent(session, channels, since).await?;
    let events = events(session, events_since).await?;
    let events_by_type = if events == 0 { BTreeMap::new() } else { by_type(session, events_since).await? };
    Ok(Recent { commands, events, events_by_type, sent, publish_delay })
}

async fn commands(
    session: &mut Session<'_>,
    since: DateTime<Utc>,
) -> StoreResult<BTreeMap<String, RecentCommands>> {
    let dialect = session.dialect();
    let number = dialect.integer_cast();
    let took = dialect.micros_between("r.started_at", "r.finished_at");
    let sql = format!(
        "SELECT r.command_type, COUNT(*) AS received_count, \
         COUNT(CASE WHEN r.retry_count > 0 THEN 1 END) AS retried_count, \
         COUNT(CASE WHEN r.started_at IS NOT NULL AND r.finished_at IS NOT NULL THEN 1 END) AS ended_count, \
         CAST(COALESCE(SUM({took}), 0) AS {number}) AS processing_micros \
         FROM (SELECT c.command_type, c.retry_count, c.started_at, c.finished_at FROM command_box c \
         WHERE c.received_at >= ? ORDER BY c.received_at DESC LIMIT {LOOKED_AT}) AS r GROUP BY r.command_type"
    );
    let mut found = BTreeMap::new();
    for row in session.rows("recent.commands", &sql, values![since]).await? {
        let of_type = RecentCommands {
            received: row.count("received_count")?,
            retried: row.count("retried_count")?,
            ended: row.count("ended_count")?,
            processing_time: duration(row.long("processing_micros")?),
        };
        found.insert(row.text("command_type")?, of_type);
    }
    Ok(found)
}

/// How many rows of the channels were sent, and how long after their events, together.
async fn sent(
    session: &mut Session<'_>,
    channels: &[ChannelName],
    since: DateTime<Utc>,
) -> StoreResult<(u64, Duration)> {
    if channels.is_empty() {
        return Ok((0, Duration::ZERO));
    }
    let dialect = session.dialect();
    let (column, condition) = dialect.partial(OUTBOX_SENT, "o.");
    let (pinned, first) = dialect.pinned(&column);
    let first = first.replace(", ", " DESC, ");
    let mut keys = values![];
    let mut parts = Vec::with_capacity(channels.len());
    for (which, channel) in channels.iter().enumerate() {
        keys.extend(pinned.matches('?').map(|_| Value::from(channel.as_str())));
        parts.push(format!(
            "SELECT sent_{which}.event_id, sent_{which}.status_changed_at FROM (SELECT o.event_id, o.status, \
             o.status_changed_at FROM event_outbox o WHERE {pinned}{condition} \
             ORDER BY {first}o.outbox_id DESC LIMIT {LOOKED_AT}) AS sent_{which} \
             WHERE sent_{which}.status = 'SENT' AND sent_{which}.status_changed_at >= ?"
        ));
        keys.push(since.into());
    }
    // Looked up, as in `by_type`.
    let sql = format!(
        "SELECT COUNT(*) AS sent_count, CAST(COALESCE(SUM({}), 0) AS {}) AS delay_micros \
         FROM ({}) AS s",
        dialect.micros_between(
            "(SELECT e.occurred_at FROM domain_events e WHERE e.event_id = s.event_id)",
            "s.status_changed_at"
        ),
        dialect.integer_cast(),
        parts.join(" UNION ALL ")
    );
    let row = session.row("recent.sent", &sql, keys).await?;
    row.map_or(Ok((0, Duration::ZERO)), |row| {
        Ok((row.count("sent_count")?, duration(row.long("delay_micros")?)))
    })
}

/// How many facts have happened since a moment. They stand in the log about as they happened, so the first of them is
/// looked for as in a dictionary, and the others are counted by their positions.
async fn events(session: &mut Session<'_>, since: DateTime<Utc>) -> StoreResult<u64> {
    let head =
        session.row("recent.head", "SELECT last_position FROM log_head WHERE log_id = 1", values![]).await?;
    let head = match head {
        Some(row) => row.count("last_position")?,
        None => 0,
    };
    // Up to `before` all happened earlier; from `from` on, all later.
    let (mut before, mut from) = (0, head + 1);
    while from - before > 1 {
        let step = ((from - before) / PARTS).max(1);
        let positions = (1..PARTS).map(|part| before + part * step).take_while(|position| *position < from);
        let positions: Vec<i64> = positions.map(u64::cast_signed).collect();
        let mut keys = values![];
        let asked = session.one_of("p.position", positions, &mut keys);
        let sql = format!(
            "SELECT p.position, e.occurred_at FROM event_positions p JOIN domain_events e ON e.event_id = p.event_id \
             WHERE {asked} ORDER BY p.position"
        );
        let rows = session.rows("recent.events", &sql, keys).await?;
        if rows.is_empty() {
            break;
        }
        for row in rows {
            let position = row.count("position")?;
            if row.time("occurred_at")? >= since {
                from = position;
                break;
            }
            before = position;
        }
    }
    Ok((head + 1).saturating_sub(from))
}

/// Each fact is looked up by its key, and not in a table of its own: MariaDB runs that once. For a join PostgreSQL may rather read the whole table.
async fn by_type(session: &mut Session<'_>, since: DateTime<Utc>) -> StoreResult<BTreeMap<String, u64>> {
    let sql = format!(
        "SELECT (SELECT e.event_type FROM domain_events e WHERE e.event_id = l.event_id AND e.occurred_at >= ?) \
         AS type_of_event, COUNT(*) AS event_count FROM (SELECT p.event_id FROM event_positions p \
         ORDER BY p.position DESC LIMIT {LOOKED_AT}) AS l GROUP BY type_of_event"
    );
    let mut found = BTreeMap::new();
    for row in session.rows("recent.by_type", &sql, values![since]).await? {
        // What happened before has no type here.
        if let Some(event_type) = row.text_or_null("type_of_event")? {
            found.insert(event_type, row.count("event_count")?);
        }
    }
    Ok(found)
}

/// What a clock that was set back makes negative took no time.
fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
