//! Letters: deliveries that were set aside, and what operators do with the dead among them.
//!
//! A letter that is tried again is claimed by moving the moment at which it is due: until then nobody else takes it. That
//! covers the attempt and the writing down of how it ended, which are transactions of their own. A handler that takes longer
//! keeps it by the lock on its row, and behind that its process holds it on; nobody can while the handler runs, because the
//! row is locked. A process that dies leaves a letter that is due a little later.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{ActorId, EventId, HandlerName, Lane};
use towpath_core::letters::{AsideOutcome, Letter, LetterFilter, LetterGroup, NewLetter, SetAside};
use towpath_core::lifecycle::{InboxStatus, InboxStep, LetterStatus, LetterStep};
use towpath_core::ports::store::{InboxEntry, InboxFailure, Letters, StoreError, StoreResult};

use crate::rows::{body_to_stored, insert_sql, letter_values, read_letter, select_list, stored};
use crate::schema::{DEAD_LETTERS, Index};
use crate::sql::{Session, SqlFault, Value, code, readable, unreadable, values};
use crate::store::{SqlStore, listing, reading, transacting, writing_once};

/// Letters that are not through, by handler and lane.
const OPEN: &Index = DEAD_LETTERS.index("dead_letters_open");

/// The same, by delivery.
const OF_DELIVERY: &Index = DEAD_LETTERS.index("dead_letters_delivery");

/// Letters that wait for their time.
const DUE: &Index = DEAD_LETTERS.index("dead_letters_due");

#[async_trait]
impl Letters for SqlStore {
    async fn set_aside(&self, aside: &SetAside) -> StoreResult<AsideOutcome> {
        transacting!(self, set_aside, aside)
    }

    async fn next_letter_due(&self, handler: &HandlerName) -> StoreResult<Option<DateTime<Utc>>> {
        reading!(self, next_due, handler)
    }

    async fn take_letter(
        &self,
        handler: &HandlerName,
        in_hand: &[u64],
        now: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> StoreResult<Option<Letter>> {
        transacting!(self, take, handler, in_hand, now, until)
    }

    async fn release_letter(&self, letter: &Letter, due_at: DateTime<Utc>) -> StoreResult<bool> {
        writing_once!(self, release, letter, due_at)
    }

    async fn count_failure_of(
        &self,
        letter: &Letter,
        failure: &InboxFailure<'_>,
    ) -> StoreResult<Option<InboxEntry>> {
        transacting!(self, count_failure, letter, failure)
    }

    async fn advance_letters(
        &self,
        handler: &HandlerName,
        after: Option<Lane>,
        now: DateTime<Utc>,
    ) -> StoreResult<Option<Lane>> {
        transacting!(self, advance_behind, handler, after, now)
    }

    async fn advance_lanes(
        &self,
        handler: &HandlerName,
        lanes: &[Lane],
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        transacting!(self, advance_lanes, handler, lanes, now)
    }

    async fn letter_given_back(&self, letter: &Letter, now: DateTime<Utc>) -> StoreResult<bool> {
        writing_once!(self, given_back, letter, now)
    }

    async fn read_in_letter(
        &self,
        letter: &NewLetter,
        death_key: &str,
        reason: &str,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        match transacting!(self, read_in, letter, death_key, reason, now) {
            // Somebody else has taken the same one in.
            Err(StoreError::Contention(_)) => {
                transacting!(self, read_in, letter, death_key, reason, now)
            }
            answer => answer,
        }
    }

    async fn letter(&self, letter_id: u64) -> StoreResult<Option<Letter>> {
        reading!(self, super::kept_letters::find, letter_id)
    }

    async fn letters(&self, filter: &LetterFilter, after: u64, limit: u32) -> StoreResult<Vec<Letter>> {
        listing!(self, super::kept_letters::list, filter, after, limit)
    }

    async fn letters_in_short(
        &self,
        filter: &LetterFilter,
        after: u64,
        limit: u32,
    ) -> StoreResult<Vec<Letter>> {
        listing!(self, super::kept_letters::list_in_short, filter, after, limit)
    }

    async fn letter_groups(&self, filter: &LetterFilter) -> StoreResult<Vec<LetterGroup>> {
        listing!(self, super::kept_letters::groups, filter)
    }

    async fn replay_letters(
        &self,
        letter_ids: &[u64],
        by: Option<&ActorId>,
        now: DateTime<Utc>,
    ) -> StoreResult<u64> {
        transacting!(self, super::kept_letters::replay, letter_ids, by, now)
    }

    async fn forget_death(&self, letter_id: u64) -> StoreResult<bool> {
        writing_once!(self, super::kept_letters::forget_death, letter_id)
    }

    async fn letter_republished(
        &self,
        letter_id: u64,
        by: Option<&ActorId>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        writing_once!(self, super::kept_letters::republished, letter_id, by, now)
    }

    async fn edit_letter(
        &self,
        letter: &Letter,
        body: &[u8],
        by: Option<&ActorId>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        writing_once!(self, super::kept_letters::edit, letter, body, by, now)
    }

    async fn discard_letter(
        &self,
        letter: &Letter,
        by: Option<&ActorId>,
        message: Option<&str>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        transacting!(self, super::kept_letters::discard, letter, by, message, now)
    }
}

/// Which of these lanes have letters of a handler that are not through. Waits for nobody: a letter that is being handled
/// at this moment still counts. Deliveries of one lane come one after the other, so no first letter can appear meanwhile.
pub(crate) async fn waiting_lanes(
    session: &mut Session<'_>,
    handler: &HandlerName,
    lanes: &[Lane],
) -> StoreResult<Vec<Lane>> {
    if lanes.is_empty() {
        return Ok(Vec::new());
    }
    if let [lane] = lanes {
        let (first, keys) = first_of(session, handler, *lane);
        let row = session.row("letters.waiting", &format!("SELECT dead_letter_id {first}"), keys).await?;
        return Ok(row.map(|_| *lane).into_iter().collect());
    }
    let (open_handler, condition) = session.dialect().partial(OPEN, "d.");
    let mut keys = values![];
    let asked = session.numbers(lanes.iter().map(|lane| lane.to_stored()).collect(), &mut keys);
    keys.extend(values![handler.as_str()]);
    // However many wait in a lane, one tells: a subquery that ends with the first is never turned into a join over all.
    let sql = format!(
        "SELECT asked.number AS lane FROM {asked} WHERE (SELECT d.dead_letter_id FROM dead_letters d \
         WHERE {open_handler} = ?{condition} AND d.lane = asked.number LIMIT 1) IS NOT NULL"
    );
    let mut waiting = Vec::new();
    for row in session.rows("letters.waiting", &sql, keys).await? {
        waiting.push(Lane::from_stored(row.long("lane")?));
    }
    waiting.sort_unstable();
    waiting.dedup();
    Ok(waiting)
}

/// Sets a delivery aside behind the earlier ones of its lane, unless it was handled or given up before: another delivery of
/// it has nothing to wait for. Setting it aside again changes nothing. Runs in a transaction that has asked
/// [`waiting_lanes`]. The letter it waits for may end at the same moment without seeing it: see [`advance_lanes`].
pub(crate) async fn set_behind(
    session: &mut Session<'_>,
    letter: &NewLetter,
    now: DateTime<Utc>,
) -> StoreResult<()> {
    if let (Some(event_id), Some(handler)) = (letter.event_id, &letter.handler)
        && let Some(entry) = super::inbox::find(session, event_id, handler).await?
    {
        if entry.status != InboxStatus::Retry {
            return Ok(());
        }
        end_attempt(session, event_id, handler).await?;
    }
    if open_letter_of(session, letter).await?.is_some() {
        return Ok(());
    }
    let too_large = is_too_large(session, letter).await?;
    let (status, reason, message) = if too_large {
        (
            LetterStatus::Dead,
            TOO_LARGE,
            too_large_message("an earlier delivery of its aggregate is not through"),
        )
    } else {
        let message = "an earlier delivery of its aggregate is not through".to_owned();
        (LetterStatus::Behind, "behind-another", message)
    };
    let status = values![status.as_str(), now, Some(reason), Some(message), 0_u32, None::<DateTime<Utc>>];
    insert(session, letter, status, None, !too_large).await
}

/// Sets a failed delivery aside until it is due, or for an operator. Runs in a transaction.
async fn set_aside(session: &mut Session<'_>, aside: &SetAside) -> StoreResult<AsideOutcome> {
    let known = match (aside.letter_id, aside.held_until) {
        (Some(letter_id), Some(held_until)) if !is_held(session, letter_id, held_until).await? => {
            return Ok(AsideOutcome::Elsewhere);
        }
        (Some(letter_id), _) => Some(letter_id),
        (None, _) => open_letter_of(session, &aside.letter).await?,
    };
    let too_large = known.is_none() && is_too_large(session, &aside.letter).await?;
    let due_at = aside.due_at.filter(|_| !too_large);
    let status = if due_at.is_some() { LetterStatus::Retry } else { LetterStatus::Dead };
    if let (Some(event_id), Some(handler)) = (aside.letter.event_id, &aside.letter.handler) {
        if status == LetterStatus::Dead {
            let dead = inbox_step(InboxStatus::Retry, InboxStep::GiveUp)?;
            let sql = "UPDATE inbox SET status = ?, status_changed_at = ?, begun_by = NULL \
                 WHERE event_id = ? AND handler = ? AND status = 'RETRY'";
            let given_up = values![dead.as_str(), aside.now, event_id.0, handler.as_str()];
            session.execute("letters.give_up", sql, given_up).await?;
        } else {
            end_attempt(session, event_id, handler).await?;
        }
    }
    let (reason, message) = match too_large {
        true => (TOO_LARGE, too_large_message(&aside.message)),
        false => (aside.reason.as_str(), aside.message.clone()),
    };
    let standing = values![
        status.as_str(),
        aside.now,
        Some(code(reason)),
        Some(readable(&message)),
        aside.retry_count,
        due_at
    ];
    let Some(letter_id) = known else {
        insert(session, &aside.letter, standing, None, !too_large).await?;
        return Ok(if too_large { AsideOutcome::TooLarge } else { AsideOutcome::Set });
    };
    // One that others have given up meanwhile is not retried: its inbox row is given up as well, so nobody would handle it.
    let still_open = match (aside.letter_id, status) {
        (None, LetterStatus::Retry) => "status IN ('RETRY', 'BEHIND')",
        _ => "status IN ('RETRY', 'BEHIND', 'DEAD')",
    };
    let sql = format!(
        "UPDATE dead_letters SET status = ?, status_changed_at = ?, status_reason = ?, status_message = ?, \
         retry_count = ?, due_at = ? WHERE dead_letter_id = ? AND {still_open}"
    );
    // An operator may have ended it meanwhile: then it stays so.
    let mut changed = standing;
    changed.extend(values![letter_id]);
    let changed = session.execute("letters.update", &sql, changed).await?;
    Ok(if changed == 1 { AsideOutcome::Set } else { AsideOutcome::Elsewhere })
}

/// The attempt at a delivery has ended, whether it was counted or not.
async fn end_attempt(session: &mut Session<'_>, event_id: EventId, handler: &HandlerName) -> StoreResult<()> {
    let sql = "UPDATE inbox SET begun_by = NULL WHERE event_id = ? AND handler = ? AND begun_by IS NOT NULL";
    session.execute("letters.end_attempt", sql, values![event_id.0, handler.as_str()]).await?;
    Ok(())
}

/// The reason of a letter whose body the database cannot take.
const TOO_LARGE: &str = "letter-too-large";

fn too_large_message(message: &str) -> String {
    format!(
        "its body is larger than the database takes, and only size and hash are kept; before that: {message}"
    )
}

/// Whether the database would refuse a letter with its body.
async fn is_too_large(session: &mut Session<'_>, letter: &NewLetter) -> StoreResult<bool> {
    /// Below this no database refuses a row.
    const NEVER: usize = 1 << 19;
    /// What the row has besides body and headers, at most: texts are cut to 4,000 characters.
    const BESIDES: usize = 1 << 17;
    let message = &letter.message;
    let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    // In base64, should it be no text.
    if (message.body.len() + headers) / 3 * 4 + BESIDES < NEVER {
        return Ok(false);
    }
    let size = body_to_stored(&message.body).0.len() + headers * 2 + BESIDES;
    let most = match session.dialect().largest_statement() {
        Some(sql) => {
            session.row("letters.largest", sql, values![]).await?.map(|row| row.count("most")).transpose()?
        }
        None => None,
    };
    // PostgreSQL and SQLite keep a text of up to a thousand million bytes.
    Ok(size as u64 > most.unwrap_or(900_000_000))
}

/// Which of these deliveries have an open letter that stands for them.
pub(crate) async fn set_aside_of(
    session: &mut Session<'_>,
    handler: &HandlerName,
    event_ids: &[EventId],
) -> StoreResult<Vec<EventId>> {
    let (open_handler, condition) = session.dialect().partial(OF_DELIVERY, "");
    let marks = vec!["?"; event_ids.len()].join(", ");
    let sql = format!(
        "SELECT event_id FROM dead_letters WHERE {open_handler} = ?{condition} AND event_id IN ({marks})"
    );
    let mut keys = values![handler.as_str()];
    keys.extend(event_ids.iter().flat_map(|id| values![id.0]));
    let rows = session.rows("letters.stand", &sql, keys).await?;
    rows.iter().map(|row| Ok(EventId(row.uuid("event_id")?))).collect()
}

/// Takes a message of the broker's dead-letter queue in. Answers whether it was new. Runs in a transaction.
async fn read_in(
    session: &mut Session<'_>,
    letter: &NewLetter,
    death_key: &str,
    reason: &str,
    now: DateTime<Utc>,
) -> StoreResult<bool> {
    let status = values![
        LetterStatus::Dead.as_str(),
        now,
        Some(code(reason)),
        Some("found in a dead-letter queue of the broker"),
        0_u32,
        None::<DateTime<Utc>>
    ];
    let sql = "SELECT dead_letter_id FROM dead_letters WHERE death_key = ?";
    if session.row("letters.death", sql, values![death_key]).await?.is_some() {
        return Ok(false);
    }
    let with_body = !is_too_large(session, letter).await?;
    insert(session, letter, status, Some(death_key), with_body).await.map(|()| true)
}

async fn insert(
    session: &mut Session<'_>,
    letter: &NewLetter,
    status: Vec<Value<'_>>,
    death_key: Option<&str>,
    with_body: bool,
) -> StoreResult<()> {
    let status: [Value<'_>; 6] =
        status.try_into().map_err(|_| unreadable("dead_letters", "a status has six columns"))?;
    let row = letter_values(letter, status, death_key, with_body);
    match session.execute("letters.insert", &insert_sql(&DEAD_LETTERS, 1), row).await {
        Ok(_) => Ok(()),
        // Somebody else has the same delivery at this moment.
        Err(SqlFault::Unique { error, .. }) => Err(StoreError::Contention(Box::new(error))),
        Err(fault) => Err(fault.into()),
    }
}

async fn open_letter_of(session: &mut Session<'_>, letter: &NewLetter) -> StoreResult<Option<u64>> {
    let (Some(handler), Some(event_id)) = (&letter.handler, letter.event_id) else { return Ok(None) };
    let (open_handler, condition) = session.dialect().partial(OF_DELIVERY, "");
    let sql = format!(
        "SELECT dead_letter_id FROM dead_letters WHERE {open_handler} = ?{condition} AND event_id = ? {}",
        session.dialect().for_update()
    );
    let row = session.row("letters.open", &sql, values![handler.as_str(), event_id.0]).await?;
    row.map(|row| row.count("dead_letter_id")).transpose()
}

/// When the next letter of a handler is due.
async fn next_due(session: &mut Session<'_>, handler: &HandlerName) -> StoreResult<Option<DateTime<Utc>>> {
    let (due_handler, condition) = session.dialect().partial(DUE, "");
    let sql =
        format!("SELECT due_at FROM dead_letters WHERE {due_handler} = ?{condition} ORDER BY due_at LIMIT 1");
    let row = session.row("letters.next_due", &sql, values![handler.as_str()]).await?;
    row.map(|row| row.time("due_at")).transpose()
}

/// Takes the next letter of a handler that is due, and holds it until a moment: it is due again then. Runs in a transaction
/// of its own. The letter is answered as it is held. Those `in_hand` are passed over: their hold has run out, and the caller
/// knows who is at them.
async fn take(
    session: &mut Session<'_>,
    handler: &HandlerName,
    in_hand: &[u64],
    now: DateTime<Utc>,
    until: DateTime<Utc>,
) -> StoreResult<Option<Letter>> {
    let (due_handler, condition) = session.dialect().partial(DUE, "d.");
    let others = match in_hand {
        [] => String::new(),
        some => format!(" AND d.dead_letter_id NOT IN ({})", vec!["?"; some.len()].join(", ")),
    };
    let sql = format!(
        "SELECT {} FROM dead_letters d WHERE {due_handler} = ?{condition} AND d.due_at <= ?{others} \
         ORDER BY d.due_at LIMIT 1 {}",
        select_list(&DEAD_LETTERS, "d", ""),
        session.dialect().for_update_skip_locked()
    );
    let mut due = values![handler.as_str(), now];
    due.extend(in_hand.iter().map(|letter_id| Value::from(*letter_id)));
    let row = session.row("letters.take", &sql, due).await?;
    let Some(mut letter) = row.as_ref().map(read_letter).transpose()? else { return Ok(None) };
    let sql = "UPDATE dead_letters SET due_at = ? WHERE dead_letter_id = ?";
    session.execute("letters.hold", sql, values![until, letter.letter_id]).await?;
    letter.due_at = Some(until);
    Ok(Some(letter))
}

/// Whether a letter is still held as it was taken; locked, if so.
pub(crate) async fn is_held(
    session: &mut Session<'_>,
    letter_id: u64,
    until: DateTime<Utc>,
) -> StoreResult<bool> {
    let sql = format!(
        "SELECT dead_letter_id FROM dead_letters WHERE dead_letter_id = ? AND status = 'RETRY' AND due_at = ? {}",
        session.dialect().for_update()
    );
    Ok(session.row("letters.held", &sql, values![letter_id, until]).await?.is_some())
}

/// Lets go of a letter that is held, or holds it on: it is due then. Answers whether it was still held.
async fn release(session: &mut Session<'_>, letter: &Letter, due_at: DateTime<Utc>) -> StoreResult<bool> {
    let sql =
        "UPDATE dead_letters SET due_at = ? WHERE dead_letter_id = ? AND status = 'RETRY' AND due_at = ?";
    let held =
        session.execute("letters.release", sql, values![due_at, letter.letter_id, letter.due_at]).await?;
    Ok(held == 1)
}

/// Counts a failure of a letter that is held; `None` when somebody else has it by now. Runs in a transaction.
async fn count_failure(
    session: &mut Session<'_>,
    letter: &Letter,
    failure: &InboxFailure<'_>,
) -> StoreResult<Option<InboxEntry>> {
    match letter.due_at {
        Some(until) if is_held(session, letter.letter_id, until).await? => {
            super::inbox::fail_entry(session, failure).await.map(Some)
        }
        _ => Ok(None),
    }
}

/// Ends a letter that was handled, and lets the next of its lane go on. Runs in the handler's transaction.
pub(crate) async fn handled(
    session: &mut Session<'_>,
    letter: &Letter,
    now: DateTime<Utc>,
) -> StoreResult<()> {
    if letter.replayed_at.is_some() {
        let status = step(LetterStatus::Retry, LetterStep::Handle)?;
        let sql = "UPDATE dead_letters SET status = ?, status_changed_at = ?, due_at = NULL WHERE dead_letter_id = ?";
        session.execute("letters.replayed", sql, values![status.as_str(), now, letter.letter_id]).await?;
    } else {
        let sql = "DELETE FROM dead_letters WHERE dead_letter_id = ?";
        session.execute("letters.through", sql, values![letter.letter_id]).await?;
    }
    advance(session, letter.letter.handler.as_ref(), letter.letter.lane, now).await
}

/// Ends a letter that went back to its queue, unless it was set aside anew since it was taken: its message may have been
/// delivered again by then, and then it is not due when it was. Answers whether it ended.
async fn given_back(session: &mut Session<'_>, letter: &Letter, now: DateTime<Utc>) -> StoreResult<bool> {
    let (letter_id, until) = (letter.letter_id, letter.due_at);
    let ended = if letter.replayed_at.is_some() {
        let status = step(LetterStatus::Retry, LetterStep::Handle)?;
        let sql = "UPDATE dead_letters SET status = ?, status_changed_at = ?, due_at = NULL \
             WHERE dead_letter_id = ? AND status = 'RETRY' AND due_at = ?";
        session.execute("letters.given_back", sql, values![status.as_str(), now, letter_id, until]).await?
    } else {
        let sql = "DELETE FROM dead_letters WHERE dead_letter_id = ? AND status = 'RETRY' AND due_at = ?";
        session.execute("letters.given_back", sql, values![letter_id, until]).await?
    };
    Ok(ended == 1)
}

/// How many letters one look for lanes that wait for nothing reads.
const LOOKED_THROUGH: usize = 1000;

/// Lets lanes of a handler go on whose first letter only waits: the one it waited for ended while it was set aside. Looks at
/// one page of the letters behind a lane, in the order of an index; answers after which lane to go on, `None` at the end.
/// Runs in a transaction.
async fn advance_behind(
    session: &mut Session<'_>,
    handler: &HandlerName,
    after: Option<Lane>,
    now: DateTime<Utc>,
) -> StoreResult<Option<Lane>> {
    let (open_handler, condition) = session.dialect().partial(OPEN, "");
    let (pinned, first) = session.dialect().pinned_for_a_walk(&open_handler);
    let sql = format!(
        "SELECT lane, status FROM dead_letters WHERE {pinned}{condition} AND lane > ? \
         ORDER BY {first}lane, dead_letter_id LIMIT {LOOKED_THROUGH}"
    );
    let mut keys: Vec<Value<'_>> = pinned.matches('?').map(|_| Value::from(handler.as_str())).collect();
    keys.extend(values![after.map_or(i64::MIN, Lane::to_stored)]);
    let rows = session.rows("letters.left_behind", &sql, keys).await?;
    let (mut last, mut waiting) = (None, Vec::new());
    for row in &rows {
        let lane = Lane::from_stored(row.long("lane")?);
        // Only the first of a lane tells; the page may end among its others, and the next one begins behind the lane.
        if last.replace(lane) != Some(lane) && row.text("status")? == LetterStatus::Behind.as_str() {
            waiting.push(lane);
        }
    }
    advance_lanes(session, handler, &waiting, now).await?;
    Ok(last.filter(|_| rows.len() == LOOKED_THROUGH))
}

/// The same for lanes that are known.
async fn advance_lanes(
    session: &mut Session<'_>,
    handler: &HandlerName,
    lanes: &[Lane],
    now: DateTime<Utc>,
) -> StoreResult<()> {
    for lane in lanes {
        advance(session, Some(handler), *lane, now).await?;
    }
    Ok(())
}

/// The first of a lane, if it was waiting, is due now.
pub(super) async fn advance(
    session: &mut Session<'_>,
    handler: Option<&HandlerName>,
    lane: Lane,
    now: DateTime<Utc>,
) -> StoreResult<()> {
    let Some(handler) = handler else { return Ok(()) };
    let Some((first, status)) = first_of_lane(session, handler, lane).await? else { return Ok(()) };
    if status != LetterStatus::Behind {
        return Ok(());
    }
    let next = step(status, LetterStep::Advance)?;
    // It counts as set aside from now on: what it has waited behind another is no waiting of its own.
    let sql = "UPDATE dead_letters SET status = ?, status_changed_at = ?, received_at = ?, due_at = ? \
               WHERE dead_letter_id = ?";
    session.execute("letters.advance", sql, values![next.as_str(), now, now, now, first]).await?;
    Ok(())
}

/// The first letter of a lane that is not through, locked.
async fn first_of_lane(
    session: &mut Session<'_>,
    handler: &HandlerName,
    lane: Lane,
) -> StoreResult<Option<(u64, LetterStatus)>> {
    let (first, keys) = first_of(session, handler, lane);
    let sql = format!("SELECT dead_letter_id, status {first} {}", session.dialect().for_update());
    let first = session.row("letters.first", &sql, keys).await?;
    first.map(|row| Ok((row.count("dead_letter_id")?, stored(&row, "status")?))).transpose()
}

/// What stands behind the columns of a SELECT of the first letter of a lane that is not through: always by the index of open
/// letters, however many there are in this lane or in others.
fn first_of<'a>(session: &Session<'_>, handler: &'a HandlerName, lane: Lane) -> (String, Vec<Value<'a>>) {
    let dialect = session.dialect();
    let (open_handler, condition) = dialect.partial(OPEN, "");
    let (by_handler, handler_first) = dialect.pinned(&open_handler);
    let (by_lane, lane_first) = dialect.pinned("lane");
    let mut keys: Vec<Value<'a>> = by_handler.matches('?').map(|_| Value::from(handler.as_str())).collect();
    keys.extend(by_lane.matches('?').map(|_| Value::from(lane.to_stored())));
    let rest = format!(
        "FROM dead_letters WHERE {by_handler}{condition} AND {by_lane} \
         ORDER BY {handler_first}{lane_first}dead_letter_id LIMIT 1"
    );
    (rest, keys)
}

pub(super) fn step(from: LetterStatus, step: LetterStep) -> StoreResult<LetterStatus> {
    from.next(step).map_err(|error| unreadable("dead_letters.status", error))
}

pub(super) fn inbox_step(from: InboxStatus, step: InboxStep) -> StoreResult<InboxStatus> {
    from.next(step).map_err(|error| unreadable("inbox.status", error))
}
