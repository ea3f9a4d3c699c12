//! Clean-up: deletes what was over long ago, a page at a time, by indexes that hold nothing else. What must stay (given up,
//! dead, waiting), however much of it there is, is not looked at.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::lifecycle::TaskState;
use towpath_core::ports::store::{Cleaning, LeaseGrant, StoreResult};

use crate::ops::leases::fence;
use crate::schema::{INBOX, OUTBOX_SENT};
use crate::sql::{Session, Value, values};
use crate::store::{SqlStore, transacting};

/// How many pages without anything old in them are read of one channel, in one go.
const PAGES: usize = 5;

#[async_trait]
impl Cleaning for SqlStore {
    async fn clean_commands(
        &self,
        lease: &LeaseGrant,
        ended_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, commands, lease, ended_before, limit)
    }

    async fn clean_outbox(
        &self,
        lease: &LeaseGrant,
        sent_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, outbox, lease, sent_before, limit, self.walked())
    }

    async fn clean_inbox(
        &self,
        lease: &LeaseGrant,
        handled_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, inbox, lease, handled_before, limit)
    }

    async fn clean_letters(&self, lease: &LeaseGrant, before: DateTime<Utc>, limit: u32) -> StoreResult<u64> {
        transacting!(self, super::kept_letters::clean, lease, before, limit)
    }

    async fn clean_timers(&self, lease: &LeaseGrant, before: DateTime<Utc>, limit: u32) -> StoreResult<u64> {
        transacting!(self, timers, lease, before, limit)
    }

    async fn clean_tasks(
        &self,
        lease: &LeaseGrant,
        status: TaskState,
        before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, tasks, lease, status, before, limit)
    }

    async fn clean_processes(
        &self,
        lease: &LeaseGrant,
        before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, processes, lease, before, limit)
    }

    async fn clean_units(&self, lease: &LeaseGrant, before: DateTime<Utc>, limit: u32) -> StoreResult<u64> {
        transacting!(self, units, lease, before, limit)
    }

    async fn clean_alerts(&self, lease: &LeaseGrant, before: DateTime<Utc>, limit: u32) -> StoreResult<u64> {
        transacting!(self, alerts, lease, before, limit)
    }

    async fn clean_leases(
        &self,
        lease: &LeaseGrant,
        prefixes: &[&str],
        ended_for: Duration,
    ) -> StoreResult<u64> {
        transacting!(self, leases, lease, prefixes, ended_for)
    }
}

/// Where the look for old rows goes on that stand behind young ones, by channel: the last number that was read. Kept by the
/// process and by nobody else, because it is about effort only.
#[derive(Clone, Default)]
pub(crate) struct Walked(Arc<Mutex<BTreeMap<String, i64>>>);

impl Walked {
    fn of(&self, channel: &str) -> i64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(channel).copied().unwrap_or(0)
    }

    fn note(&self, channel: &str, last: i64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(channel.to_owned(), last);
    }
}

/// Deletes rows that were sent before a moment, at most so many. Runs in a transaction.
///
/// Numbers rise with time, so what is old is among the first rows of each channel, but for rows that were sent much later
/// than they were written: those stand before others that are old. So when the first page has nothing old, a few more are
/// read, each time behind those of the last time, and from the beginning again after the end.
async fn outbox(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    limit: u32,
    walked: &Walked,
) -> StoreResult<u64> {
    let (channel, sent) = session.dialect().partial(OUTBOX_SENT, "o.");
    let next_channel =
        format!("SELECT o.channel FROM event_outbox o WHERE {channel} > ?{sent} ORDER BY {channel} LIMIT 1");
    let (mut deleted, mut behind) = (0, String::new());
    while deleted < u64::from(limit) {
        let found = session.row("clean.outbox_channel", &next_channel, values![behind.as_str()]).await?;
        let Some(row) = found else { break };
        behind = row.text("channel")?;
        let old = old_rows(session, &behind, before, limit, walked).await?;
        if old.is_empty() {
            continue;
        }
        let mut keys = values![];
        let chosen = session.choose_from("event_outbox", "outbox_id", old, &mut keys);
        let sql = format!("{} WHERE {} AND status IN ('SENT', 'SKIPPED')", chosen.delete, chosen.condition);
        deleted += session.execute("clean.outbox", &sql, keys).await?;
    }
    fence(session, std::slice::from_ref(lease)).await?;
    Ok(deleted)
}

/// The old ones of the first page of a channel's sent rows that has any.
async fn old_rows(
    session: &mut Session<'_>,
    channel: &str,
    before: DateTime<Utc>,
    limit: u32,
    walked: &Walked,
) -> StoreResult<Vec<i64>> {
    let (column, sent) = session.dialect().partial(OUTBOX_SENT, "o.");
    let (pinned, first) = session.dialect().pinned(&column);
    let page = format!(
        "SELECT o.outbox_id, o.status_changed_at FROM event_outbox o WHERE {pinned}{sent} AND o.outbox_id > ? \
         ORDER BY {first}o.outbox_id LIMIT {limit}"
    );
    let mut from = 0;
    for number in 0..PAGES {
        let mut keys: Vec<Value<'_>> = pinned.matches('?').map(|_| Value::from(channel)).collect();
        keys.extend(values![from]);
        let (mut old, mut read, mut last) = (Vec::new(), 0, from);
        for row in session.rows("clean.outbox_page", &page, keys).await? {
            (read, last) = (read + 1, row.long("outbox_id")?);
            if row.time("status_changed_at")? < before {
                old.push(last);
            }
        }
        if !old.is_empty() {
            return Ok(old);
        }
        if read < limit {
            walked.note(channel, 0);
            break;
        }
        from = if number == 0 { last.max(walked.of(channel)) } else { last };
        walked.note(channel, from);
    }
    Ok(Vec::new())
}

/// Deletes deliveries that were handled before a moment, and failures that nothing has followed since: they were given up
/// to the broker, or their letter was discarded. Runs in a transaction.
async fn inbox(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    limit: u32,
) -> StoreResult<u64> {
    let (changed_at, over) = session.dialect().partial(const { INBOX.index("inbox_over") }, "");
    let what = What { table: "inbox", over: &over, ended_at: &changed_at };
    delete_oldest(session, lease, &what, before, limit).await
}

/// Deletes timers that ended before a moment. Runs in a transaction.
async fn timers(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    limit: u32,
) -> StoreResult<u64> {
    // One that failed and is tried again has not finished.
    let what = What { table: "timers", over: "", ended_at: "finished_at" };
    delete_oldest(session, lease, &what, before, limit).await
}

/// Deletes tasks that ended in a status before a moment. Runs in a transaction.
async fn tasks(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    status: TaskState,
    before: DateTime<Utc>,
    limit: u32,
) -> StoreResult<u64> {
    // One that runs again or waits has not finished.
    let over = format!(" AND status = '{status}' AND finished_at IS NOT NULL");
    let what = What { table: "task_box", over: &over, ended_at: "status_changed_at" };
    delete_oldest(session, lease, &what, before, limit).await
}

/// Deletes what is over of processes. Runs in a transaction.
async fn processes(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    limit: u32,
) -> StoreResult<u64> {
    let mut deleted = process_timers(session, before, limit).await?;
    for (table, ended_at) in [("process_inputs", "recorded_at"), ("process_undos", "undone_at")] {
        let what = What { table, over: "", ended_at };
        deleted += delete_oldest(session, lease, &what, before, limit).await?;
    }
    Ok(deleted)
}

/// Deletes names of timers that were due before a moment, each by its key: an application chooses the moments, and so many
/// may have the same one.
async fn process_timers(session: &mut Session<'_>, before: DateTime<Utc>, limit: u32) -> StoreResult<u64> {
    /// How many one statement names: SQLite does not take conditions of any length.
    const TOGETHER: usize = 100;
    let sql = format!(
        "SELECT process_kind, process_id, name, timer_id FROM process_timers WHERE due_at < ? ORDER BY due_at LIMIT {limit}"
    );
    let mut deleted = 0;
    for rows in session.rows("clean.page", &sql, values![before]).await?.chunks(TOGETHER) {
        // Under a name there may be another timer by now.
        let one = "(process_kind = ? AND process_id = ? AND name = ? AND timer_id = ?)";
        let sql = format!("DELETE FROM process_timers WHERE {}", vec![one; rows.len()].join(" OR "));
        let mut keys = values![];
        for row in rows {
            let (kind, id, name) = (row.text("process_kind")?, row.text("process_id")?, row.text("name")?);
            keys.extend(values![kind, id, name, row.uuid("timer_id")?]);
        }
        deleted += session.execute("clean.process_timers", &sql, keys).await?;
    }
    Ok(deleted)
}

/// Deletes units of work that were begun before a moment. Runs in a transaction.
async fn units(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    limit: u32,
) -> StoreResult<u64> {
    let what = What { table: "units_of_work", over: "", ended_at: "begun_at" };
    delete_oldest(session, lease, &what, before, limit).await
}

/// Deletes changes of alerts before a moment, and silences that were over by then. Runs in a transaction.
async fn alerts(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    limit: u32,
) -> StoreResult<u64> {
    let mut deleted = 0;
    for (table, ended_at) in [("alert_changes", "status_changed_at"), ("alert_silences", "ends_at")] {
        let what = What { table, over: "", ended_at };
        deleted += delete_oldest(session, lease, &what, before, limit).await?;
    }
    Ok(deleted)
}

/// Deletes commands that were received and ended before a moment: COMPLETED, or FAILED for good. Runs in a transaction.
async fn commands(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    limit: u32,
) -> StoreResult<u64> {
    let sql = format!(
        "SELECT command_id FROM command_box WHERE received_at < ? AND status IN ('COMPLETED', 'FAILED') \
         AND next_retry_at IS NULL AND status_changed_at < ? ORDER BY received_at LIMIT {limit}"
    );
    let old = session.rows("clean.commands_page", &sql, values![before, before]).await?;
    let mut deleted = 0;
    if !old.is_empty() {
        let sql = format!(
            "DELETE FROM command_box WHERE command_id IN ({}) AND status IN ('COMPLETED', 'FAILED') \
             AND next_retry_at IS NULL",
            vec!["?"; old.len()].join(", ")
        );
        let ids = old.iter().map(|row| Ok(Value::from(row.text("command_id")?)));
        deleted = session.execute("clean.commands", &sql, ids.collect::<StoreResult<_>>()?).await?;
    }
    fence(session, std::slice::from_ref(lease)).await?;
    Ok(deleted)
}

/// Rows that can be deleted, by an index on when they ended.
struct What<'a> {
    table: &'static str,
    over: &'a str,
    ended_at: &'a str,
}

/// Deletes those that ended first: a page is found by its last one, so that no database has to be told how to limit a
/// DELETE.
async fn delete_oldest(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    what: &What<'_>,
    before: DateTime<Utc>,
    limit: u32,
) -> StoreResult<u64> {
    let What { table, over, ended_at } = what;
    let sql = format!(
        "SELECT {ended_at} AS ended_at FROM {table} WHERE {ended_at} < ?{over} ORDER BY {ended_at} LIMIT {limit}"
    );
    let page = session.rows("clean.page", &sql, values![before]).await?;
    let mut deleted = 0;
    if let Some(last) = page.last() {
        let sql = format!("DELETE FROM {table} WHERE {ended_at} <= ?{over}");
        deleted = session.execute("clean.delete", &sql, values![last.time("ended_at")?]).await?;
    }
    fence(session, std::slice::from_ref(lease)).await?;
    Ok(deleted)
}

/// Deletes leases that belonged to one instance each and ended long ago. The names of those hold the instance's id, which
/// never comes again; a lease that others may take again keeps its row, and with it its epoch. Runs in a transaction.
async fn leases(
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
