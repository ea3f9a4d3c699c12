//! The inbox: once per (event, handler).

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{EventId, HandlerName};
use towpath_core::lifecycle::InboxStatus;
use towpath_core::ports::store::{
    CameBefore, FirstDelivery, Inbox, InboxEntry, InboxFailure, InboxMark, StoreError, StoreResult,
};

use crate::dialect::Dialect;
use crate::rows::{insert_sql, names_and_marks, read_inbox, select_list};
use crate::schema::INBOX;
use crate::sql::{Row, Session, SqlFault, Value, code, readable, unreadable, values};
use crate::store::{SqlStore, transacting, writing_once};

#[async_trait]
impl Inbox for SqlStore {
    async fn begin_attempts(
        &self,
        event_ids: &[EventId],
        handler: &HandlerName,
        by: &str,
        letters_stand: bool,
        now: DateTime<Utc>,
    ) -> StoreResult<CameBefore> {
        transacting!(self, begin, event_ids, handler, by, letters_stand, now)
    }

    async fn let_go_of_attempts(
        &self,
        event_ids: &[EventId],
        handler: &HandlerName,
        by: &str,
    ) -> StoreResult<()> {
        writing_once!(self, let_go, event_ids, handler, by)
    }

    async fn count_failure(&self, failure: &InboxFailure<'_>) -> StoreResult<InboxEntry> {
        transacting!(self, fail_entry, failure)
    }

    async fn forget_failures(&self, event_id: EventId, handler: &HandlerName) -> StoreResult<()> {
        writing_once!(self, forget_failures, event_id, handler)
    }
}

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
    let first = entry_values(event_id, handler, handled, now, None);
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

/// The inbox's key of a message that is told by where it comes from and its id there, and not by an event in it: the first
/// bytes of a hash of both. Stored, so it must never change.
pub fn message_key(channel: &str, message_id: &str) -> EventId {
    use sha2::Digest as _;

    let mut hash = sha2::Sha256::new();
    // The length parts the two.
    hash.update((channel.len() as u64).to_be_bytes());
    hash.update(channel);
    hash.update(message_id);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    EventId(uuid::Builder::from_custom_bytes(bytes).into_uuid())
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
             RETURNING event_id, retry_count, begun_by"
        );
        let marked = session.rows("inbox.mark_all", &sql, rows).await?;
        return marked.iter().map(first_delivery).collect();
    }
    // MySQL has no RETURNING, and says of an upsert neither which rows it inserted nor which it left alone: so look,
    // then write. Whoever wrote the same delivery in between makes the insert fail, and all of it is done again.
    let sql = format!(
        "SELECT event_id, status, retry_count, begun_by FROM inbox WHERE {} AND handler = ? {}",
        is_one_of(&ids),
        session.dialect().for_update()
    );
    let (mut known, mut first) = (Vec::new(), Vec::new());
    for row in session.rows("inbox.look", &sql, keys_of(&ids, handler)).await? {
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
        Ok(_) => first.extend(fresh.into_iter().map(|event_id| FirstDelivery {
            event_id,
            failures: 0,
            begun: false,
        })),
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
            "INSERT INTO inbox ({names}) SELECT id, ?, ?, ?, NULL, NULL, 0, NULL FROM {unnested} AS ids (id)"
        );
        // The set stands last in the text.
        let mut values = values![handler.as_str(), handled, now];
        values.push(Value::Uuids(ids.iter().map(|id| id.0).collect()));
        return (insert, values);
    }
    let rows = ids.iter().flat_map(|id| entry_values(*id, handler, handled, now, None)).collect();
    (insert_sql(&INBOX, ids.len()), rows)
}

/// A row without failures.
fn entry_values<'a>(
    event_id: EventId,
    handler: &'a HandlerName,
    status: &'a str,
    now: DateTime<Utc>,
    begun_by: Option<&'a str>,
) -> Vec<Value<'a>> {
    values![event_id.0, handler.as_str(), status, now, None::<&str>, None::<&str>, 0_u32, begun_by]
}

fn first_delivery(row: &Row) -> StoreResult<FirstDelivery> {
    Ok(FirstDelivery {
        event_id: EventId(row.uuid("event_id")?),
        failures: row.small("retry_count")?,
        begun: row.text_or_null("begun_by")?.is_some(),
    })
}

/// Counts a failure, and answers all that stands there: a delivery that was handled or given up meanwhile stays so.
pub(crate) async fn fail_entry(
    session: &mut Session<'_>,
    failure: &InboxFailure<'_>,
) -> StoreResult<InboxEntry> {
    let dialect = session.dialect();
    let status = if failure.dead { InboxStatus::Dead } else { InboxStatus::Retry };
    let assignments: Vec<String> =
        ["status_changed_at", "status_reason", "status_message", "begun_by", "status"]
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
        1_u32,
        None::<&str>
    ];
    session.execute("inbox.fail", &sql, failed).await?;
    let entry = find(session, failure.event_id, failure.handler).await?;
    entry.ok_or_else(|| unreadable("inbox", "the row just written is missing"))
}

/// Writes down that a process begins with deliveries which may have come before, except for those that it answers: should
/// the process not survive them, the next one knows. What was handled or given up is left alone. Runs in a transaction of
/// its own, before the handler's. `letters_stand`: an open letter stands for its delivery.
async fn begin(
    session: &mut Session<'_>,
    event_ids: &[EventId],
    handler: &HandlerName,
    by: &str,
    letters_stand: bool,
    now: DateTime<Utc>,
) -> StoreResult<CameBefore> {
    let mut before = CameBefore::default();
    if letters_stand {
        before.set_aside = super::letters::set_aside_of(session, handler, event_ids).await?;
    }
    let mut ids: Vec<EventId> =
        event_ids.iter().filter(|id| !before.set_aside.contains(id)).copied().collect();
    ids.sort_unstable_by_key(|id| id.0);
    ids.dedup();
    if ids.is_empty() {
        return Ok(before);
    }
    let sql = format!(
        "SELECT event_id, status, begun_by FROM inbox WHERE {} AND handler = ? ORDER BY event_id {}",
        is_one_of(&ids),
        session.dialect().for_update()
    );
    let (mut known, mut again) = (Vec::new(), Vec::new());
    for row in session.rows("inbox.look_before", &sql, keys_of(&ids, handler)).await? {
        let id = EventId(row.uuid("event_id")?);
        known.push(id);
        match row.text_or_null("begun_by")? {
            _ if row.text("status")? != InboxStatus::Retry.as_str() => {}
            Some(other) if other != by => before.unfinished.push(id),
            Some(_) => {}
            None => again.push(id),
        }
    }
    if !again.is_empty() {
        let sql = format!("UPDATE inbox SET begun_by = ? WHERE {} AND handler = ?", is_one_of(&again));
        let mut begun = values![by];
        begun.extend(keys_of(&again, handler));
        session.execute("inbox.begin", &sql, begun).await?;
    }
    let fresh: Vec<EventId> = ids.into_iter().filter(|id| !known.contains(id)).collect();
    if fresh.is_empty() {
        return Ok(before);
    }
    let retry = InboxStatus::Retry.as_str();
    let rows = fresh.iter().flat_map(|id| entry_values(*id, handler, retry, now, Some(by))).collect();
    match session.execute("inbox.begin", &insert_sql(&INBOX, fresh.len()), rows).await {
        Ok(_) => Ok(before),
        // Somebody else has the same delivery at this moment.
        Err(SqlFault::Unique { error, .. }) => Err(StoreError::Contention(Box::new(error))),
        Err(fault) => Err(fault.into()),
    }
}

/// Takes back what [`begin`] wrote: the process lets go of these deliveries, and nothing has failed.
async fn let_go(
    session: &mut Session<'_>,
    event_ids: &[EventId],
    handler: &HandlerName,
    by: &str,
) -> StoreResult<()> {
    let sql = format!(
        "UPDATE inbox SET begun_by = NULL WHERE {} AND handler = ? AND begun_by = ?",
        is_one_of(event_ids)
    );
    let mut begun = keys_of(event_ids, handler);
    begun.extend(values![by]);
    session.execute("inbox.let_go", &sql, begun).await?;
    Ok(())
}

fn is_one_of(ids: &[EventId]) -> String {
    format!("event_id IN ({})", vec!["?"; ids.len()].join(", "))
}

/// The values of [`is_one_of`], and the handler.
fn keys_of<'a>(ids: &[EventId], handler: &'a HandlerName) -> Vec<Value<'a>> {
    let mut keys: Vec<_> = ids.iter().flat_map(|id| values![id.0]).collect();
    keys.extend(values![handler.as_str()]);
    keys
}

/// Forgets how often a delivery has failed: it is out of this store's hands, and begins anew if it comes back.
async fn forget_failures(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_message_never_changes() {
        assert_eq!(message_key("orders", "42").to_string(), "c09fcdf6-794a-8f0b-8b3d-4a017c9470d2");
        assert_ne!(message_key("orders4", "2"), message_key("orders", "42"));
    }
}
