//! The inbox: once per (event, handler).

use chrono::{DateTime, Utc};
use towpath_core::ids::{EventId, HandlerName};
use towpath_core::lifecycle::InboxStatus;
use towpath_core::ports::store::{InboxEntry, InboxFailure, InboxMark, StoreResult};

use crate::rows::{insert_sql, read_inbox, select_list};
use crate::schema::INBOX;
use crate::sql::{Session, SqlFault, code, readable, unreadable, values};

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

/// Counts a failure. Runs in a transaction.
pub(crate) async fn fail(session: &mut Session<'_>, failure: &InboxFailure<'_>) -> StoreResult<u32> {
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
    Ok(entry.ok_or_else(|| unreadable("inbox", "the row just written is missing"))?.retry_count)
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
