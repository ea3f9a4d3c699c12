//! Outbox rows that were given up: listing, counting, and putting back by a filter.

use chrono::{DateTime, Utc};
use towpath_core::ports::store::{FailedFilter, FailedRow, StoreResult};

use crate::ops::outbox::reopen;
use crate::rows::{read_event, read_outbox, select_list};
use crate::schema::{DOMAIN_EVENTS, EVENT_OUTBOX, OUTBOX_FAILED};
use crate::sql::{Session, Value, values};

pub(crate) async fn list(
    session: &mut Session<'_>,
    filter: &FailedFilter,
    after: u64,
    limit: u32,
) -> StoreResult<Vec<FailedRow>> {
    list_with(session, filter, after, limit, &select_list(&DOMAIN_EVENTS, "e", "")).await
}

/// The same with these columns of `domain_events e`.
pub(crate) async fn list_with(
    session: &mut Session<'_>,
    filter: &FailedFilter,
    after: u64,
    limit: u32,
    of_facts: &str,
) -> StoreResult<Vec<FailedRow>> {
    let mut keys = values![];
    let condition = condition(session, filter, &mut keys);
    keys.extend(values![after]);
    let sql = format!(
        "SELECT {}, {of_facts} FROM event_outbox o JOIN domain_events e ON e.event_id = o.event_id \
         WHERE {condition} AND o.outbox_id > ? ORDER BY o.outbox_id LIMIT {limit}",
        select_list(&EVENT_OUTBOX, "o", ""),
    );
    let rows = session.rows("outbox.failed", &sql, keys).await?;
    rows.iter().map(|row| Ok(FailedRow { row: read_outbox(row)?, event: read_event(row)? })).collect()
}

pub(crate) async fn count(session: &mut Session<'_>, filter: &FailedFilter) -> StoreResult<u64> {
    let mut keys = values![];
    let condition = condition(session, filter, &mut keys);
    let sql = format!(
        "SELECT COUNT(*) AS failed FROM event_outbox o JOIN domain_events e ON e.event_id = o.event_id \
         WHERE {condition}"
    );
    session.row("outbox.count_failed", &sql, keys).await?.map_or(Ok(0), |row| row.count("failed"))
}

/// Puts the first of those that a filter fits back. Runs in a transaction.
pub(crate) async fn reopen_some(
    session: &mut Session<'_>,
    filter: &FailedFilter,
    limit: u32,
    now: DateTime<Utc>,
) -> StoreResult<u64> {
    let mut keys = values![];
    let condition = condition(session, filter, &mut keys);
    let sql = format!(
        "SELECT o.outbox_id FROM event_outbox o JOIN domain_events e ON e.event_id = o.event_id \
         WHERE {condition} ORDER BY o.outbox_id LIMIT {limit}"
    );
    let rows = session.rows("outbox.failed_ids", &sql, keys).await?;
    let ids = rows.iter().map(|row| row.count("outbox_id")).collect::<Result<Vec<u64>, _>>()?;
    if ids.is_empty() { Ok(0) } else { reopen(session, &ids, now).await }
}

/// What a filter says of `event_outbox o` and `domain_events e`, so that the index of given-up rows serves it.
fn condition<'f>(session: &Session<'_>, filter: &'f FailedFilter, keys: &mut Vec<Value<'f>>) -> String {
    let (channel, failed) = session.dialect().partial(OUTBOX_FAILED, "o.");
    let mut condition = match &filter.channel {
        Some(name) => {
            keys.extend(values![name.as_str()]);
            format!("{channel} = ?{failed}")
        }
        None => format!("{channel} IS NOT NULL{failed}"),
    };
    let texts = [("o.status_reason", &filter.reason), ("e.event_type", &filter.event_type)];
    for (column, text) in texts {
        if let Some(text) = text {
            keys.extend(values![text.as_str()]);
            condition.push_str(&format!(" AND {column} = ?"));
        }
    }
    let moments = [("<", filter.failed_before), (">=", filter.failed_since)];
    for (comparison, moment) in moments {
        if let Some(moment) = moment {
            keys.extend(values![moment]);
            condition.push_str(&format!(" AND o.status_changed_at {comparison} ?"));
        }
    }
    condition
}
