//! Clean-up: deletes what was delivered long ago, a page at a time.
//!
//! There is no index by status and time: every append and every delivery would pay for it. Numbers of outbox rows rise
//! with time, and so do our event ids (UUIDv7), so a walk by the primary key from the beginning meets the oldest first, and
//! a page with nothing old in it is the end of them. What stands there for longer (given up, parked) is walked over.

use std::time::Duration;

use chrono::{DateTime, Utc};
use towpath_core::ids::EventId;
use towpath_core::lifecycle::{InboxStatus, OutboxStatus, TaskState};
use towpath_core::ports::store::{Cleaned, LeaseGrant, StoreResult};
use uuid::Uuid;

use crate::ops::leases::fence;
use crate::sql::{Session, values};

/// Deletes rows of one page that were sent before a moment. Runs in a transaction.
pub(crate) async fn outbox(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    after: u64,
    limit: u32,
) -> StoreResult<Cleaned<u64>> {
    let sql = format!(
        "SELECT outbox_id, status, status_changed_at FROM event_outbox WHERE outbox_id > ? \
         ORDER BY outbox_id LIMIT {limit}"
    );
    let rows = session.rows("clean.outbox_page", &sql, values![after]).await?;
    let (mut page, mut old) = (Page::default(), Vec::new());
    for row in &rows {
        let id = row.count("outbox_id")?;
        let is_old = row.time("status_changed_at")? < before;
        page.see(id, is_old);
        let status = row.text("status")?;
        if is_old && [OutboxStatus::Sent.as_str(), OutboxStatus::Skipped.as_str()].contains(&status.as_str()) {
            old.push(id.cast_signed());
        }
    }
    let mut deleted = 0;
    if !old.is_empty() {
        let mut keys = values![];
        let chosen = session.choose_from("event_outbox", "outbox_id", old, &mut keys);
        let sql = format!("{} WHERE {} AND status IN ('SENT', 'SKIPPED')", chosen.delete, chosen.condition);
        deleted = session.execute("clean.outbox", &sql, keys).await?;
    }
    fence(session, std::slice::from_ref(lease)).await?;
    Ok(Cleaned { deleted, next: page.next(rows.len(), limit) })
}

/// Deletes deliveries of one page that were handled before a moment, and failures that nothing has followed since: they
/// were given up to the broker, or their letter was discarded. Runs in a transaction.
pub(crate) async fn inbox(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    after: Option<EventId>,
    limit: u32,
) -> StoreResult<Cleaned<EventId>> {
    let from = after.map_or(uuid::Uuid::nil(), |id| id.0);
    let sql = format!(
        "SELECT event_id, status, status_changed_at FROM inbox WHERE event_id > ? \
         ORDER BY event_id, handler LIMIT {limit}"
    );
    let rows = session.rows("clean.inbox_page", &sql, values![from]).await?;
    let (mut page, mut over) = (Page::default(), false);
    for row in &rows {
        let is_old = row.time("status_changed_at")? < before;
        page.see(EventId(row.uuid("event_id")?), is_old);
        over |= is_old && row.text("status")? != InboxStatus::Dead.as_str();
    }
    let mut deleted = 0;
    if let (Some(last), true) = (page.last, over) {
        let sql = "DELETE FROM inbox WHERE event_id > ? AND event_id <= ? AND status <> 'DEAD' \
             AND status_changed_at < ?";
        deleted = session.execute("clean.inbox", sql, values![from, last.0, before]).await?;
    }
    fence(session, std::slice::from_ref(lease)).await?;
    // Ids that others made need not rise with time. Most of them lie behind all of ours, so the walk goes on there, and
    // there it goes to the end.
    let ours_until = EventId(uuid::Uuid::now_v7());
    let next = match (page.last, rows.len() >= limit as usize) {
        (Some(last), true) if last.0 > ours_until.0 || page.some_old => Some(last),
        (Some(_), true) => Some(ours_until),
        _ => None,
    };
    Ok(Cleaned { deleted, next })
}

/// Deletes timers of one page that ended before a moment. Runs in a transaction.
pub(crate) async fn timers(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    after: Option<Uuid>,
    limit: u32,
) -> StoreResult<Cleaned<Uuid>> {
    let from = after.unwrap_or(Uuid::nil());
    let sql = format!(
        "SELECT timer_id, state, state_changed_at FROM timers WHERE timer_id > ? ORDER BY timer_id LIMIT {limit}"
    );
    let rows = session.rows("clean.timers_page", &sql, values![from]).await?;
    let (mut page, mut ended) = (Page::default(), false);
    for row in &rows {
        let is_old = row.time("state_changed_at")? < before;
        page.see(row.uuid("timer_id")?, is_old);
        ended |= is_old && row.text("state")?.parse::<TaskState>().is_ok_and(TaskState::is_terminal);
    }
    let mut deleted = 0;
    if let (Some(last), true) = (page.last, ended) {
        let over = TaskState::ALL.iter().filter(|state| state.is_terminal());
        let over: Vec<String> = over.map(|state| format!("'{}'", state.as_str())).collect();
        let sql = format!(
            "DELETE FROM timers WHERE timer_id > ? AND timer_id <= ? AND state_changed_at < ? AND state IN ({})",
            over.join(", ")
        );
        deleted = session.execute("clean.timers", &sql, values![from, last, before]).await?;
    }
    fence(session, std::slice::from_ref(lease)).await?;
    // An application may give ids of its own, which need not rise with time: the walk goes to the end.
    Ok(Cleaned { deleted, next: page.last.filter(|_| rows.len() >= limit as usize) })
}

/// Deletes leases that belonged to one instance each and ended long ago. The names of those hold the instance's id, which
/// never comes again; a lease that others may take again keeps its row, and with it its epoch. Runs in a transaction.
pub(crate) async fn leases(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    prefixes: &[&str],
    ended_for: Duration,
) -> StoreResult<u64> {
    let then = session.dialect().now_plus_parameter();
    let sql = format!(
        "DELETE FROM leases WHERE lease_name >= ? AND lease_name < ? AND expires_at < {then} \
         AND NOT EXISTS (SELECT 1 FROM command_box WHERE command_box.claimed_by_id = leases.lease_name) \
         AND NOT EXISTS (SELECT 1 FROM timers WHERE timers.claimed_by_id = leases.lease_name)"
    );
    let ago = -i64::try_from(ended_for.as_micros()).unwrap_or(i64::MAX);
    let mut deleted = 0;
    for prefix in prefixes {
        let end = format!("{prefix}{}", char::MAX);
        deleted += session.execute("clean.leases", &sql, values![*prefix, end, ago]).await?;
    }
    fence(session, std::slice::from_ref(lease)).await?;
    Ok(deleted)
}

/// What a walk has seen of a page.
struct Page<K> {
    last: Option<K>,
    some_old: bool,
}

impl<K> Default for Page<K> {
    fn default() -> Self {
        Self { last: None, some_old: false }
    }
}

impl<K> Page<K> {
    fn see(&mut self, key: K, is_old: bool) {
        self.last = Some(key);
        self.some_old |= is_old;
    }

    /// Where the walk goes on, unless this was the last page or everything behind it is newer.
    fn next(self, rows: usize, limit: u32) -> Option<K> {
        self.last.filter(|_| self.some_old && rows >= limit as usize)
    }
}
