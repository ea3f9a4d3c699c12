//! Letters in the hands of operators: finding, replaying, editing and discarding them, and what becomes of those that ended.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use towpath_core::ids::ActorId;
use towpath_core::letters::{Letter, LetterFilter, LetterGroup};
use towpath_core::lifecycle::{InboxStatus, InboxStep, LetterStatus, LetterStep};
use towpath_core::ports::store::{LeaseGrant, StoreResult};

use crate::ops::leases::fence;
use crate::ops::letters::{advance, inbox_step, step};
use crate::rows::{body_in_base64, body_to_stored, read_letter, select_list, select_list_instead, stored};
use crate::schema::{DEAD_LETTERS, Index};
use crate::sql::{Chosen, Session, Value, readable, values};

/// Letters that have ended.
const OVER: &Index = DEAD_LETTERS.index("dead_letters_ended");

pub(super) async fn find(session: &mut Session<'_>, letter_id: u64) -> StoreResult<Option<Letter>> {
    let sql = format!(
        "SELECT {} FROM dead_letters d WHERE d.dead_letter_id = ?",
        select_list(&DEAD_LETTERS, "d", "")
    );
    let row = session.row("letters.find", &sql, values![letter_id]).await?;
    row.as_ref().map(read_letter).transpose()
}

/// Letters behind a number, in order.
pub(super) async fn list(
    session: &mut Session<'_>,
    filter: &LetterFilter,
    after: u64,
    limit: u32,
) -> StoreResult<Vec<Letter>> {
    list_with(session, "letters.list", filter, after, limit, &select_list(&DEAD_LETTERS, "d", "")).await
}

/// The same without their bodies and headers. Whether there is an original body is still told.
pub(super) async fn list_in_short(
    session: &mut Session<'_>,
    filter: &LetterFilter,
    after: u64,
    limit: u32,
) -> StoreResult<Vec<Letter>> {
    let edited = "CASE WHEN d.original_body IS NULL THEN NULL ELSE '' END";
    let instead = [("headers", "'[]'"), ("body", "''"), ("original_body", edited)];
    let columns = select_list_instead(&DEAD_LETTERS, "d", &instead);
    list_with(session, "letters.list_in_short", filter, after, limit, &columns).await
}

async fn list_with(
    session: &mut Session<'_>,
    name: &'static str,
    filter: &LetterFilter,
    after: u64,
    limit: u32,
    columns: &str,
) -> StoreResult<Vec<Letter>> {
    let (condition, mut keys) = condition(filter);
    keys.extend(values![after]);
    let sql = format!(
        "SELECT {columns} FROM dead_letters d WHERE {condition} AND d.dead_letter_id > ? \
         ORDER BY d.dead_letter_id LIMIT {limit}"
    );
    session.rows(name, &sql, keys).await?.iter().map(read_letter).collect()
}

/// Letters by cause, the largest groups first.
pub(super) async fn groups(
    session: &mut Session<'_>,
    filter: &LetterFilter,
) -> StoreResult<Vec<LetterGroup>> {
    let (condition, keys) = condition(filter);
    let by = "d.status, d.handler, d.queue, d.message_type, d.status_reason";
    let sql = format!(
        "SELECT {by}, COUNT(*) AS letters, MIN(d.received_at) AS oldest_at, MAX(d.received_at) AS newest_at, \
         MAX(d.dead_letter_id) AS last_id FROM dead_letters d WHERE {condition} GROUP BY {by} \
         ORDER BY letters DESC, last_id"
    );
    let mut groups = Vec::new();
    for row in session.rows("letters.groups", &sql, keys).await? {
        groups.push(LetterGroup {
            status: stored(&row, "status")?,
            handler: row.text_or_null("handler")?,
            queue: row.text("queue")?,
            message_type: row.text_or_null("message_type")?,
            reason: row.text_or_null("status_reason")?,
            count: row.count("letters")?,
            oldest_at: row.time("oldest_at")?,
            newest_at: row.time("newest_at")?,
            last_id: row.count("last_id")?,
        });
    }
    Ok(groups)
}

fn condition(filter: &LetterFilter) -> (String, Vec<Value<'_>>) {
    let LetterFilter { status, handler, queue, message_type, reason, since, until, up_to } = filter;
    let (mut conditions, mut keys) = (vec!["1 = 1".to_owned()], Vec::new());
    let texts = [
        ("d.status", status.map(LetterStatus::as_str)),
        ("d.handler", handler.as_deref()),
        ("d.queue", queue.as_deref()),
        ("d.message_type", message_type.as_deref()),
        ("d.status_reason", reason.as_deref()),
    ];
    for (column, text) in texts {
        if let Some(text) = text {
            conditions.push(format!("{column} = ?"));
            keys.extend(values![text]);
        }
    }
    for (condition, moment) in [("d.received_at >= ?", since), ("d.received_at < ?", until)] {
        if let Some(moment) = moment {
            conditions.push(condition.to_owned());
            keys.extend(values![*moment]);
        }
    }
    if let Some(up_to) = up_to {
        conditions.push("d.dead_letter_id <= ?".to_owned());
        keys.extend(values![*up_to]);
    }
    (conditions.join(" AND "), keys)
}

/// Lets dead letters of handlers be tried again: the letters and their inbox rows together. Answers how many were still
/// dead. Runs in a transaction.
pub(super) async fn replay(
    session: &mut Session<'_>,
    letter_ids: &[u64],
    by: Option<&ActorId>,
    now: DateTime<Utc>,
) -> StoreResult<u64> {
    if letter_ids.is_empty() {
        return Ok(0);
    }
    let ids = || letter_ids.iter().map(|id| id.cast_signed()).collect::<Vec<_>>();
    let mut keys = values![];
    let Chosen { target, condition, .. } =
        session.choose_from("dead_letters", "dead_letter_id", ids(), &mut keys);
    let sql = format!(
        "SELECT handler, event_id FROM {target} WHERE {condition} AND status = 'DEAD' AND handler IS NOT NULL \
         AND event_id IS NOT NULL"
    );
    let mut by_handler: BTreeMap<String, Vec<uuid::Uuid>> = BTreeMap::new();
    for row in session.rows("letters.deliveries", &sql, keys).await? {
        by_handler.entry(row.text("handler")?).or_default().push(row.uuid("event_id")?);
    }
    let reopened = inbox_step(InboxStatus::Dead, InboxStep::Reopen)?;
    for (handler, event_ids) in &by_handler {
        let marks = vec!["?"; event_ids.len()].join(", ");
        let sql = format!(
            "UPDATE inbox SET status = ?, status_changed_at = ?, retry_count = 0 \
             WHERE event_id IN ({marks}) AND handler = ? AND status = 'DEAD'"
        );
        let mut changed = values![reopened.as_str(), now];
        changed.extend(event_ids.iter().flat_map(|id| values![*id]));
        changed.extend(values![handler.as_str()]);
        session.execute("letters.reopen_inbox", &sql, changed).await?;
    }
    let status = step(LetterStatus::Dead, LetterStep::Replay)?;
    let mut changed = values![status.as_str(), now, now, now, by.map(|by| by.as_str())];
    let Chosen { target, condition, .. } =
        session.choose_for_update("dead_letters", "dead_letter_id", ids(), &mut changed);
    let sql = format!(
        "UPDATE {target} SET status = ?, status_changed_at = ?, status_reason = 'replayed', replayed_at = ?, \
         due_at = ?, retry_count = 0, changed_by_id = ? WHERE {condition} AND status = 'DEAD' \
         AND handler IS NOT NULL"
    );
    Ok(session.execute("letters.replay", &sql, changed).await?)
}

/// Forgets which death of its message a letter was. Before it goes back to the broker: given up once more, it must not
/// be taken for the same death. Answers whether it is still dead.
pub(super) async fn forget_death(session: &mut Session<'_>, letter_id: u64) -> StoreResult<bool> {
    let sql = "UPDATE dead_letters SET death_key = NULL WHERE dead_letter_id = ? AND status = 'DEAD'";
    Ok(session.execute("letters.forget_death", sql, values![letter_id]).await? == 1)
}

/// Marks a letter as replayed that went back to the broker.
pub(super) async fn republished(
    session: &mut Session<'_>,
    letter_id: u64,
    by: Option<&ActorId>,
    now: DateTime<Utc>,
) -> StoreResult<bool> {
    let status = step(step(LetterStatus::Dead, LetterStep::Replay)?, LetterStep::Handle)?;
    let sql = "UPDATE dead_letters SET status = ?, status_changed_at = ?, status_reason = 'republished', \
         replayed_at = ?, changed_by_id = ? WHERE dead_letter_id = ? AND status = 'DEAD'";
    let changed = values![status.as_str(), now, now, by.map(|by| by.as_str()), letter_id];
    Ok(session.execute("letters.republished", sql, changed).await? == 1)
}

/// Replaces the body of a dead letter. The first one is kept beside it.
pub(super) async fn edit(
    session: &mut Session<'_>,
    letter: &Letter,
    body: &[u8],
    by: Option<&ActorId>,
    now: DateTime<Utc>,
) -> StoreResult<bool> {
    let original = letter.original_body.as_deref().unwrap_or(&letter.letter.message.body);
    let (text, encoding) = body_to_stored(body);
    let sql = "UPDATE dead_letters SET body = ?, body_encoding = ?, original_body = ?, status_changed_at = ?, \
         changed_by_id = ? WHERE dead_letter_id = ? AND status = 'DEAD'";
    let changed = values![
        text,
        encoding,
        Some(body_in_base64(original)),
        now,
        by.map(|by| by.as_str()),
        letter.letter_id
    ];
    Ok(session.execute("letters.edit", sql, changed).await? == 1)
}

/// Throws a letter away and lets the next of its lane go on. `false` when it is through already. Runs in a transaction.
pub(super) async fn discard(
    session: &mut Session<'_>,
    letter: &Letter,
    by: Option<&ActorId>,
    message: Option<&str>,
    now: DateTime<Utc>,
) -> StoreResult<bool> {
    let status = step(letter.status, LetterStep::Discard)?;
    let sql = "UPDATE dead_letters SET status = ?, status_changed_at = ?, status_reason = 'discarded', \
         status_message = COALESCE(?, status_message), due_at = NULL, changed_by_id = ?, death_key = NULL \
         WHERE dead_letter_id = ? AND status = ?";
    let changed = values![
        status.as_str(),
        now,
        message.map(readable),
        by.map(|by| by.as_str()),
        letter.letter_id,
        letter.status.as_str()
    ];
    if session.execute("letters.discard", sql, changed).await? == 0 {
        return Ok(false);
    }
    advance(session, letter.letter.handler.as_ref(), letter.letter.lane, now).await?;
    Ok(true)
}

/// Deletes letters that ended before a moment, with what the inbox still says of their deliveries. A page at a time; answers
/// how many. Runs in a transaction.
pub(crate) async fn clean(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    limit: u32,
) -> StoreResult<u64> {
    let mut ended: Vec<(i64, Option<(String, uuid::Uuid)>)> = Vec::new();
    for status in LetterStatus::ALL.iter().filter(|status| ENDED.contains(status)) {
        let (ended_status, condition) = session.dialect().partial(OVER, "");
        let sql = format!(
            "SELECT dead_letter_id, handler, event_id FROM dead_letters WHERE {ended_status} = ?{condition} \
             AND status_changed_at < ? ORDER BY status_changed_at LIMIT {limit}"
        );
        for row in session.rows("letters.ended", &sql, values![status.as_str(), before]).await? {
            let delivery = row.text_or_null("handler")?.zip(row.uuid_or_null("event_id")?);
            ended.push((row.long("dead_letter_id")?, delivery));
        }
    }
    if ended.is_empty() {
        return Ok(0);
    }
    for (handler, event_id) in ended.iter().filter_map(|(_, delivery)| delivery.as_ref()) {
        let sql = "DELETE FROM inbox WHERE event_id = ? AND handler = ? AND status = 'DEAD'";
        session.execute("letters.forget_delivery", sql, values![*event_id, handler.as_str()]).await?;
    }
    let mut keys = values![];
    let ids = ended.into_iter().map(|(id, _)| id).collect();
    let chosen = session.choose_from("dead_letters", "dead_letter_id", ids, &mut keys);
    let sql = format!("{} WHERE {}", chosen.delete, chosen.condition);
    let deleted = session.execute("letters.clean", &sql, keys).await?;
    fence(session, std::slice::from_ref(lease)).await?;
    Ok(deleted)
}

const ENDED: [LetterStatus; 2] = [LetterStatus::Replayed, LetterStatus::Discarded];
