//! The log: positions for committed events, and reading by position.

use std::num::NonZeroU64;

use async_trait::async_trait;
use towpath_core::envelope::RecordedEvent;
use towpath_core::ids::Position;
use towpath_core::notifications::PAGE_SIZE;
use towpath_core::ports::store::{LeaseGrant, Log, Sequenced, StoreError, StoreResult};

use crate::bounded::how_many_fit;
use crate::floors::{Floors, Place, guarded, server_state};
use crate::ops::leases::fence;
use crate::rows::{read_recorded_event, select_list};
use crate::schema::DOMAIN_EVENTS;
use crate::sql::{Session, unreadable, values};
use crate::store::{SqlStore, reading, transacting, writing_once};

#[async_trait]
impl Log for SqlStore {
    async fn open_log(&self, configured: Option<NonZeroU64>) -> StoreResult<NonZeroU64> {
        let found = writing_once!(self, open, configured.unwrap_or(PAGE_SIZE))?;
        match configured {
            Some(size) if size != found => {
                Err(StoreError::OtherPageSize { found: found.get(), configured: size.get() })
            }
            _ => Ok(found),
        }
    }

    async fn sequence(&self, lease: &LeaseGrant, limit: u32) -> StoreResult<Sequenced> {
        let sequenced = transacting!(self, sequence, lease, limit, self.floors())?;
        self.taken(&Place::Pending, sequenced.count).await;
        Ok(sequenced)
    }

    async fn last_without_position(&self) -> StoreResult<Option<i64>> {
        reading!(self, last_pending)
    }

    async fn waits_for_position(&self, up_to: i64) -> StoreResult<bool> {
        reading!(self, is_pending_up_to, up_to)
    }

    async fn head(&self) -> StoreResult<Position> {
        reading!(self, head)
    }

    async fn events_between(&self, low: Position, high: Position) -> StoreResult<Vec<RecordedEvent>> {
        reading!(self, events_between, low, high)
    }

    async fn events_within(
        &self,
        low: Position,
        high: Position,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>> {
        reading!(self, events_within, low, high, bytes)
    }

    async fn sizes_between(&self, low: Position, high: Position) -> StoreResult<Vec<(Position, u64)>> {
        reading!(self, sizes_between, low, high)
    }
}

/// Gives pending events the next positions. Runs in a transaction.
///
/// The lock on `log_head` makes two sequencers take turns. Pending rows become visible when their transaction
/// commits, and only then: nobody waits for an open one and nobody passes it by.
async fn sequence(
    session: &mut Session<'_>,
    grant: &LeaseGrant,
    limit: u32,
    floors: &Floors,
) -> StoreResult<Sequenced> {
    let sql =
        format!("SELECT last_position FROM log_head WHERE log_id = 1 {}", session.dialect().for_update());
    let head = session.row("log.head", &sql, values![]).await?;
    let head = head.ok_or_else(|| unreadable("log_head", "its row is missing"))?.count("last_position")?;

    let taken = pending(session, limit, floors).await?;
    if taken.is_empty() {
        fence(session, std::slice::from_ref(grant)).await?;
        return Ok(Sequenced { count: 0, head });
    }

    let mut numbered = values![head];
    let chosen = session.choose_from("event_pending", "pending_id", taken.clone(), &mut numbered);
    let sql = format!(
        "INSERT INTO event_positions (position, event_id) \
         SELECT CAST(? AS {}) + ROW_NUMBER() OVER (ORDER BY pending_id), event_id FROM {} WHERE {}",
        session.dialect().integer_cast(),
        chosen.target,
        chosen.condition
    );
    let count = session.execute("log.number", &sql, numbered).await?;
    if count != taken.len() as u64 {
        return Err(unreadable("event_pending", "rows vanished while their lock was held"));
    }

    let mut gone = values![];
    let chosen = session.choose_from("event_pending", "pending_id", taken, &mut gone);
    session.execute("log.take", &format!("{} WHERE {}", chosen.delete, chosen.condition), gone).await?;
    let head = head + count;
    session
        .execute("log.advance", "UPDATE log_head SET last_position = ? WHERE log_id = 1", values![head])
        .await?;
    // Asked last, so that the lock on the lease is held for a moment only.
    fence(session, std::slice::from_ref(grant)).await?;
    Ok(Sequenced { count, head })
}

/// The lowest numbers that wait for a position.
async fn pending(session: &mut Session<'_>, limit: u32, floors: &Floors) -> StoreResult<Vec<i64>> {
    let look =
        |from: &str| format!("SELECT pending_id FROM event_pending{from} ORDER BY pending_id LIMIT {limit}");
    if let Some(floor) = floors.of(&Place::Pending) {
        let mut keys = values![];
        let sql = guarded(&Place::Pending, &look(" WHERE pending_id >= ?"), &mut keys);
        keys.extend(values![floor.at]);
        let rows = session.rows("log.pending", &sql, keys).await?;
        if floor.holds(&server_state(&rows)?) {
            let ids = rows.iter().map(|row| row.long_or_null("pending_id"));
            return ids.filter_map(Result::transpose).collect();
        }
        floors.drop_floor(&Place::Pending);
    }
    let rows = session.rows("log.pending", &look(""), values![]).await?;
    rows.iter().map(|row| row.long("pending_id")).collect()
}

/// The last of the events that wait for a position, by its number.
async fn last_pending(session: &mut Session<'_>) -> StoreResult<Option<i64>> {
    let sql = "SELECT pending_id FROM event_pending ORDER BY pending_id DESC LIMIT 1";
    session.row("log.last_pending", sql, values![]).await?.map(|row| row.long("pending_id")).transpose()
}

/// Whether an event up to a number waits for a position.
async fn is_pending_up_to(session: &mut Session<'_>, last: i64) -> StoreResult<bool> {
    let sql = "SELECT pending_id FROM event_pending WHERE pending_id <= ? ORDER BY pending_id LIMIT 1";
    Ok(session.row("log.first_pending", sql, values![last]).await?.is_some())
}

async fn head(session: &mut Session<'_>) -> StoreResult<Position> {
    let row =
        session.row("log.head", "SELECT last_position FROM log_head WHERE log_id = 1", values![]).await?;
    row.ok_or_else(|| unreadable("log_head", "its row is missing"))?.count("last_position")
}

/// Fixes the page size of a log that was never opened, and answers the one it has. Two statements that each commit
/// themselves: of two that open it at once, one decides and both read what it decided.
async fn open(session: &mut Session<'_>, page_size: NonZeroU64) -> StoreResult<NonZeroU64> {
    let sql = "UPDATE log_head SET page_size = ? WHERE log_id = 1 AND page_size IS NULL";
    session.execute("log.open", sql, values![page_size.get()]).await?;
    let row =
        session.row("log.page_size", "SELECT page_size FROM log_head WHERE log_id = 1", values![]).await?;
    let found = row.ok_or_else(|| unreadable("log_head", "its row is missing"))?.count("page_size")?;
    NonZeroU64::new(found).ok_or_else(|| unreadable("log_head.page_size", "it is 0"))
}

async fn events_between(
    session: &mut Session<'_>,
    low: Position,
    high: Position,
) -> StoreResult<Vec<RecordedEvent>> {
    let sql = format!(
        "SELECT p.position, {} FROM event_positions p JOIN domain_events e ON e.event_id = p.event_id \
         WHERE p.position BETWEEN ? AND ? ORDER BY p.position",
        select_list(&DOMAIN_EVENTS, "e", "")
    );
    session.rows("log.between", &sql, values![low, high]).await?.iter().map(read_recorded_event).collect()
}

/// The sizes of payloads, which no database has to read for it.
async fn sizes_between(
    session: &mut Session<'_>,
    low: Position,
    high: Position,
) -> StoreResult<Vec<(Position, u64)>> {
    let sql = format!(
        "SELECT p.position, CAST(OCTET_LENGTH(e.payload) AS {}) AS bytes FROM event_positions p \
         JOIN domain_events e ON e.event_id = p.event_id WHERE p.position BETWEEN ? AND ? ORDER BY p.position",
        session.dialect().integer_cast()
    );
    let rows = session.rows("log.sizes", &sql, values![low, high]).await?;
    rows.iter().map(|row| Ok((row.count("position")?, row.count("bytes")?))).collect()
}

async fn events_within(
    session: &mut Session<'_>,
    low: Position,
    high: Position,
    bytes: u64,
) -> StoreResult<Vec<RecordedEvent>> {
    let sizes = sizes_between(session, low, high).await?;
    let fit = how_many_fit(sizes.iter().map(|(_, size)| *size), bytes);
    match fit.checked_sub(1).and_then(|last| sizes.get(last)) {
        None => Ok(Vec::new()),
        Some((last, _)) => events_between(session, low, *last).await,
    }
}
