//! The inbox: once per (event, handler).

use chrono::{DateTime, Utc};
use towpath_core::ids::{EventId, HandlerName};
use towpath_core::lifecycle::InboxStatus;
use towpath_core::ports::store::{InboxEntry, InboxFailure, InboxMark, StoreError, StoreResult};

use crate::dialect::Dialect;
use crate::rows::{insert_sql, names_and_marks, read_inbox, select_list};
use crate::schema::INBOX;
use crate::sql::{Row, Session, SqlFault, Value, code, readable, unreadable, values};

/// Marks a delivery as handled, inside the handler's transaction.
///
/// A second transaction on the same delivery waits for the first at the unique key, and then sees what became of
/// it. The answer comes from the row count, never from a silently ignored insert.
pub(crate) async fn mark(
    session: &mut Session<'_>,
    event_id: EventId,
    handler: &HandlerName,
    now: DateTime<Utc>,
) -> StoreResult<InboxMark> {
    let handled = InboxStatus::Handled.as_str();
    let first = values![event_id.0, handler.as_str(), handled, now, None::<&str>, None::<&str>, 0_u32];
    let insert = insert_sql(&INBOX, 1);
    let again = "status = 'HANDLED', status_reason = NULL, status_message = NULL";
    let touched = if session.dialect().reports_upserts_plainly() {
        let sql = format!(
            "{insert} ON CONFLICT (event_id, handler) DO UPDATE SET {again}, \
             status_changed_at = excluded.status_changed_at WHERE inbox.status = 'RETRY'"
        );
        session.execute("inbox.mark", &sql, first).await?
    } else {
        match session.execute("inbox.mark", &insert, first).await {
            Ok(touched) => touched,
            Err(SqlFault::Unique { .. }) => {
                let sql = format!(
                    "UPDATE inbox SET {again}, status_changed_at = ? \
                     WHERE event_id = ? AND handler = ? AND status = 'RETRY'"
                );
                session.execute("inbox.remark", &sql, values![now, event_id.0, handler.as_str()]).await?
            }
            Err(fault) => return Err(fault.into()),
        }
    };
    if touched > 0 {
        return Ok(InboxMark::First);
    }
    let entry = find(session, event_id, handler).await?;
    Ok(match entry.map(|entry| entry.status) {
        Some(InboxStatus::Dead) => InboxMark::Dead,
        _ => InboxMark::Duplicate,
    })
}

/// A delivery that this transaction is the first to handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstDelivery {
    /// The fact.
    pub event_id: EventId,
    /// How often the handler has failed with it before.
    pub failures: u32,
}

/// Marks many deliveries as handled and answers those that were not before. Inside the handler's transaction.
///
/// They are marked in the order of their ids, so that two transactions with the same deliveries wait for each other
/// and do not deadlock.
pub(crate) async fn mark_all(
    session: &mut Session<'_>,
    event_ids: &[EventId],
    handler: &HandlerName,
    now: DateTime<Utc>,
) -> StoreResult<Vec<FirstDelivery>> {
    let mut ids: Vec<EventId> = event_ids.to_vec();
    ids.sort_unstable_by_key(|id| id.0);
    ids.dedup();
    if session.dialect().reports_upserts_plainly() {
        let (insert, rows) = handled_rows(session.dialect(), &ids, handler, now);
        let sql = format!(
            "{insert} ON CONFLICT (event_id, handler) DO UPDATE SET status = 'HANDLED', status_reason = NULL, \
             status_message = NULL, status_changed_at = excluded.status_changed_at WHERE inbox.status = 'RETRY' \
             RETURNING event_id, retry_count"
        );
        let marked = session.rows("inbox.mark_all", &sql, rows).await?;
        return marked.iter().map(first_delivery).collect();
    }
    // MySQL has no RETURNING, and says of an upsert neither which rows it inserted nor which it left alone: so look,
    // then write. Whoever wrote the same delivery in between makes the insert fail, and all of it is done again.
    let marks = vec!["?"; ids.len()].join(", ");
    let sql = format!(
        "SELECT event_id, status, retry_count FROM inbox WHERE event_id IN ({marks}) AND handler = ? {}",
        session.dialect().for_update()
    );
    let mut keys: Vec<_> = ids.iter().flat_map(|id| values![id.0]).collect();
    keys.extend(values![handler.as_str()]);
    let (mut known, mut first) = (Vec::new(), Vec::new());
    for row in session.rows("inbox.look", &sql, keys).await? {
        let delivery = first_delivery(&row)?;
        known.push(delivery.event_id);
        if row.text("status")? == InboxStatus::Retry.as_str() {
            let sql = "UPDATE inbox SET status = 'HANDLED', status_reason = NULL, status_message = NULL, \
                 status_changed_at = ? WHERE event_id = ? AND handler = ?";
            let marked = values![now, delivery.event_id.0, handler.as_str()];
            session.execute("inbox.remark", sql, marked).await?;
            first.push(delivery);
        }
    }
    let fresh: Vec<EventId> = ids.into_iter().filter(|id| !known.contains(id)).collect();
    if fresh.is_empty() {
        return Ok(first);
    }
    let (insert, rows) = handled_rows(session.dialect(), &fresh, handler, now);
    match session.execute("inbox.mark_all", &insert, rows).await {
        Ok(_) => first.extend(fresh.into_iter().map(|event_id| FirstDelivery { event_id, failures: 0 })),
        Err(SqlFault::Unique { error, .. }) => return Err(StoreError::Contention(Box::new(error))),
        Err(fault) => return Err(fault.into()),
    }
    Ok(first)
}

/// An insert of handled deliveries, without what happens on a conflict.
fn handled_rows<'a>(
    dialect: Dialect,
    ids: &[EventId],
    handler: &'a HandlerName,
    now: DateTime<Utc>,
) -> (String, Vec<Value<'a>>) {
    let handled = InboxStatus::Handled.as_str();
    if let (true, Some(unnested)) = (ids.len() > 1, dialect.unnested_uuids()) {
        // One text for batches of every size, so that it stays prepared. A single row is cheaper without it.
        let (names, _) = names_and_marks(&INBOX);
        let insert = format!(
            "INSERT INTO inbox ({names}) SELECT id, ?, ?, ?, NULL, NULL, 0 FROM {unnested} AS ids (id)"
        );
        // The set stands last in the text.
        let mut values = values![handler.as_str(), handled, now];
        values.push(Value::Uuids(ids.iter().map(|id| id.0).collect()));
        return (insert, values);
    }
    let mut rows = Vec::with_capacity(ids.len() * 7);
    for id in ids {
        rows.extend(values![id.0, handler.as_str(), handled, now, None::<&str>, None::<&str>, 0_u32]);
    }
    (insert_sql(&INBOX, ids.len()), rows)
}

fn first_delivery(row: &Row) -> StoreResult<FirstDelivery> {
    Ok(FirstDelivery { event_id: EventId(row.uuid("event_id")?), failures: row.small("retry_count")? })
}

/// Counts a failure. Runs in a transaction.
pub(crate) async fn fail(session: &mut Session<'_>, failure: &InboxFailure<'_>) -> StoreResult<u32> {
    Ok(fail_entry(session, failure).await?.retry_count)
}

/// The same, and answers all that stands there: a delivery that was handled or given up meanwhile stays so.
pub(crate) async fn fail_entry(
    session: &mut Session<'_>,
    failure: &InboxFailure<'_>,
) -> StoreResult<InboxEntry> {
    let dialect = session.dialect();
    let status = if failure.dead { InboxStatus::Dead } else { InboxStatus::Retry };
    let assignments: Vec<String> = ["status_changed_at", "status_reason", "status_message", "status"]
        .iter()
        .map(|column| {
            // A delivery that was handled or given up meanwhile stays so. `status` itself comes last, because MySQL
            // evaluates the assignments one after the other.
            format!(
                "{column} = CASE WHEN inbox.status = 'RETRY' THEN {} ELSE inbox.{column} END",
                dialect.inserted(column)
            )
        })
        .collect();
    let sql = format!(
        "{} {} retry_count = inbox.retry_count + CASE WHEN inbox.status = 'RETRY' THEN 1 ELSE 0 END, {}",
        insert_sql(&INBOX, 1),
        dialect.on_conflict("event_id, handler"),
        assignments.join(", ")
    );
    let failed = values![
        failure.event_id.0,
        failure.handler.as_str(),
        status.as_str(),
        failure.failed_at,
        code(failure.reason),
        readable(failure.message),
        1_u32
    ];
    session.execute("inbox.fail", &sql, failed).await?;
    let entry = find(session, failure.event_id, failure.handler).await?;
    entry.ok_or_else(|| unreadable("inbox", "the row just written is missing"))
}

/// Forgets how often a delivery has failed: it is out of this store's hands, and begins anew if it comes back.
pub(crate) async fn forget_failures(
    session: &mut Session<'_>,
    event_id: EventId,
    handler: &HandlerName,
) -> StoreResult<()> {
    let sql = "DELETE FROM inbox WHERE event_id = ? AND handler = ? AND status = 'RETRY'";
    session.execute("inbox.forget_failures", sql, values![event_id.0, handler.as_str()]).await?;
    Ok(())
}

pub(crate) async fn find(
    session: &mut Session<'_>,
    event_id: EventId,
    handler: &HandlerName,
) -> StoreResult<Option<InboxEntry>> {
    let sql = format!(
        "SELECT {} FROM inbox i WHERE i.event_id = ? AND i.handler = ?",
        select_list(&INBOX, "i", "")
    );
    let row = session.row("inbox.find", &sql, values![event_id.0, handler.as_str()]).await?;
    row.as_ref().map(read_inbox).transpose()
}
