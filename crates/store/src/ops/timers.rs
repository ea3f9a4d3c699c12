//! Timers: commands to be sent later (S5).

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::lifecycle::{TaskState, TaskStep};
use towpath_core::ports::store::{
    CLAIMED_BYTES, LeaseGrant, NewTimer, StoreError, StoreResult, Timer, TimerOutcome, Timers,
};
use uuid::Uuid;

use crate::bounded::how_many_fit;
use crate::ops::leases::{HELD, fence, fenced, held_by, holder_is_gone, none_of};
use crate::rows::{insert_sql, read_timer, select_list, timer_values};
use crate::schema::{TIMERS, TIMERS_DUE};
use crate::sql::{Session, SqlFault, Value, code, readable, unreadable, values};
use crate::store::{SqlStore, reading, transacting, writing_once};

#[async_trait]
impl Timers for SqlStore {
    async fn claim_timers(
        &self,
        lease: &LeaseGrant,
        command_types: &[&str],
        now: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<Vec<Timer>> {
        transacting!(self, claim, lease, command_types, now, limit)
    }

    async fn return_unseen_timers(
        &self,
        grant: &LeaseGrant,
        seen: &[Uuid],
        now: DateTime<Utc>,
    ) -> StoreResult<u64> {
        writing_once!(self, give_back_unseen, grant, seen, now)
    }

    async fn finish_timer(
        &self,
        lease: &LeaseGrant,
        timer_id: Uuid,
        outcome: &TimerOutcome,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        transacting!(self, finish, lease, timer_id, outcome, now)
    }

    async fn waiting_timers(&self, command_types: Option<&[&str]>, limit: u32) -> StoreResult<Vec<Timer>> {
        reading!(self, waiting, command_types, limit)
    }

    async fn timer(&self, timer_id: Uuid) -> StoreResult<Option<Timer>> {
        reading!(self, find, timer_id)
    }
}

pub(crate) async fn schedule(session: &mut Session<'_>, timer: &NewTimer) -> StoreResult<()> {
    match session.execute("timers.schedule", &insert_sql(&TIMERS, 1), timer_values(timer)).await {
        Ok(_) => Ok(()),
        Err(SqlFault::Unique { .. }) => {
            Err(StoreError::NameTaken { what: "timer", name: timer.timer_id.to_string() })
        }
        Err(fault) => Err(fault.into()),
    }
}

pub(crate) async fn cancel(
    session: &mut Session<'_>,
    timer_id: Uuid,
    now: DateTime<Utc>,
) -> StoreResult<bool> {
    let canceled = step(TaskState::Pending, TaskStep::Cancel)?;
    let sql = "UPDATE timers SET state = ?, state_changed_at = ?, finished_at = ? \
         WHERE timer_id = ? AND state IN ('pending', 'queued')";
    let touched =
        session.execute("timers.cancel", sql, values![canceled.as_str(), now, now, timer_id]).await?;
    Ok(touched == 1)
}

/// Takes timers that are due. Runs in a transaction.
async fn claim(
    session: &mut Session<'_>,
    grant: &LeaseGrant,
    command_types: &[&str],
    now: DateTime<Utc>,
    limit: u32,
) -> StoreResult<Vec<Timer>> {
    if command_types.is_empty() {
        return Ok(Vec::new());
    }
    recover(session, now).await?;
    let (due_at, condition) = session.dialect().partial(TIMERS_DUE, "t.");
    let sql = format!(
        "SELECT t.timer_id, CAST(OCTET_LENGTH(t.payload) AS {}) AS bytes FROM timers t \
         WHERE {due_at} <= ?{condition} AND t.command_type IN ({}) ORDER BY {due_at}, t.timer_id LIMIT {limit} {}",
        session.dialect().integer_cast(),
        vec!["?"; command_types.len()].join(", "),
        session.dialect().for_update_skip_locked()
    );
    let mut wanted = values![now];
    wanted.extend(command_types.iter().flat_map(|name| values![*name]));
    let (mut ids, mut sizes) = (Vec::new(), Vec::new());
    for row in session.rows("timers.due", &sql, wanted).await? {
        ids.push(row.uuid("timer_id")?);
        sizes.push(row.count("bytes")?);
    }
    ids.truncate(how_many_fit(sizes, CLAIMED_BYTES));
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let running = step(TaskState::Queued, TaskStep::Start)?;
    let of_these = format!("WHERE timer_id IN ({})", vec!["?"; ids.len()].join(", "));
    let update = format!(
        "UPDATE timers SET state = ?, state_changed_at = ?, started_at = ?, claimed_by_id = ?, \
         claimed_epoch = ? {of_these}"
    );
    let keys = || ids.iter().map(|id| Value::from(*id));
    let mut changed = values![running.as_str(), now, now, grant.lease.as_str(), grant.epoch];
    changed.extend(keys());
    let columns = select_list(&TIMERS, "timers", "");
    let from = (format!("timers {of_these}"), keys().collect());
    let rows = session.updated("timers.claim", (update, changed), &columns, from).await?;
    let mut taken = rows.iter().map(read_timer).collect::<StoreResult<Vec<_>>>()?;
    taken.sort_by_key(|timer| ids.iter().position(|id| *id == timer.timer.timer_id));
    fence(session, std::slice::from_ref(grant)).await?;
    Ok(taken)
}

/// Lets timers wait again whose holder is gone. As with commands, what somebody has locked is passed over: a holder that
/// sleeps inside its transaction must not stop everybody's timers.
async fn recover(session: &mut Session<'_>, now: DateTime<Utc>) -> StoreResult<()> {
    let sql = format!(
        "SELECT timer_id FROM timers WHERE state = 'running' AND {} LIMIT 1000 {}",
        holder_is_gone(session, "timers"),
        session.dialect().for_update_skip_locked()
    );
    let orphans = session.rows("timers.orphans", &sql, values![]).await?;
    if orphans.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "UPDATE timers SET state = ?, state_changed_at = ?, state_reason = 'holder-gone', \
         claimed_by_id = NULL, claimed_epoch = NULL WHERE timer_id IN ({})",
        vec!["?"; orphans.len()].join(", ")
    );
    let mut changed = values![waiting_again()?.as_str(), now];
    for row in &orphans {
        changed.extend(values![row.uuid("timer_id")?]);
    }
    session.execute("timers.recover", &sql, changed).await?;
    Ok(())
}

/// Lets those wait again that were claimed under a grant and its holder does not know of.
async fn give_back_unseen(
    session: &mut Session<'_>,
    grant: &LeaseGrant,
    seen: &[Uuid],
    now: DateTime<Utc>,
) -> StoreResult<u64> {
    let sql = format!(
        "UPDATE timers SET state = ?, state_changed_at = ?, state_reason = 'claim-lost', \
         claimed_by_id = NULL, claimed_epoch = NULL \
         WHERE state = 'running' AND claimed_by_id = ? AND claimed_epoch = ? AND {HELD}{}",
        none_of("timer_id", seen.len())
    );
    let mut changed = values![waiting_again()?.as_str(), now, grant.lease.as_str(), grant.epoch];
    changed.extend(held_by(grant));
    changed.extend(seen.iter().flat_map(|id| values![*id]));
    Ok(session.execute("timers.give_back_unseen", &sql, changed).await?)
}

/// The state of a timer that lost its holder: its time is up, and it is tried again. Two steps of the lifecycle at once.
fn waiting_again() -> StoreResult<TaskState> {
    step(step(TaskState::Running, TaskStep::TimeOut)?, TaskStep::Retry)
}

/// Records how a timer ended. Runs in a transaction.
async fn finish(
    session: &mut Session<'_>,
    grant: &LeaseGrant,
    timer_id: Uuid,
    outcome: &TimerOutcome,
    now: DateTime<Utc>,
) -> StoreResult<()> {
    let (assignments, mut changed) = match outcome {
        TimerOutcome::Succeeded => {
            let state = step(TaskState::Running, TaskStep::Succeed)?;
            ("state = ?, finished_at = ?", values![state.as_str(), now])
        }
        TimerOutcome::Skipped { reason } => {
            let state = step(TaskState::Running, TaskStep::Skip)?;
            ("state = ?, finished_at = ?, state_reason = ?", values![state.as_str(), now, code(reason)])
        }
        TimerOutcome::Failed { error_code, error_message, retry_at } => {
            let failed = step(TaskState::Running, TaskStep::Fail)?;
            let failure = values![code(error_code), readable(error_message), now];
            let (state, mut changed) = match retry_at {
                None => (failed, values![failed.as_str(), now]),
                Some(at) => {
                    let queued = step(failed, TaskStep::Retry)?;
                    (queued, values![queued.as_str(), *at])
                }
            };
            changed.extend(failure);
            let assignments = if state == failed {
                "state = ?, finished_at = ?, error_code = ?, error_message = ?, failed_at = ?"
            } else {
                "state = ?, due_at = ?, error_code = ?, error_message = ?, failed_at = ?, retry_count = retry_count + 1"
            };
            (assignments, changed)
        }
        TimerOutcome::Postponed { error_code, error_message, until } => {
            let queued = step(step(TaskState::Running, TaskStep::Fail)?, TaskStep::Retry)?;
            (
                "state = ?, due_at = ?, error_code = ?, error_message = ?, failed_at = ?",
                values![queued.as_str(), *until, code(error_code), readable(error_message), now],
            )
        }
    };
    let sql = format!(
        "UPDATE timers SET {assignments}, state_changed_at = ?, claimed_by_id = NULL, claimed_epoch = NULL \
         WHERE timer_id = ? AND claimed_by_id = ? AND claimed_epoch = ?"
    );
    changed.extend(values![now, timer_id, grant.lease.as_str(), grant.epoch]);
    match session.execute("timers.finish", &sql, changed).await? {
        0 => Err(fenced(grant)),
        _ => fence(session, std::slice::from_ref(grant)).await,
    }
}

/// Timers that wait, the next one first.
async fn waiting(
    session: &mut Session<'_>,
    command_types: Option<&[&str]>,
    limit: u32,
) -> StoreResult<Vec<Timer>> {
    let types = command_types.unwrap_or_default();
    let of_types = match command_types {
        None => String::new(),
        Some([]) => return Ok(Vec::new()),
        Some(types) => format!(" AND t.command_type IN ({})", vec!["?"; types.len()].join(", ")),
    };
    let (due_at, condition) = session.dialect().partial(TIMERS_DUE, "t.");
    let sql = format!(
        "SELECT {} FROM timers t WHERE {due_at} IS NOT NULL{condition}{of_types} \
         ORDER BY {due_at}, t.timer_id LIMIT {limit}",
        select_list(&TIMERS, "t", "")
    );
    let wanted = types.iter().flat_map(|name| values![*name]).collect();
    session.rows("timers.waiting", &sql, wanted).await?.iter().map(read_timer).collect()
}

async fn find(session: &mut Session<'_>, timer_id: Uuid) -> StoreResult<Option<Timer>> {
    let sql = format!("SELECT {} FROM timers t WHERE t.timer_id = ?", select_list(&TIMERS, "t", ""));
    let row = session.row("timers.find", &sql, values![timer_id]).await?;
    row.as_ref().map(read_timer).transpose()
}

fn step(from: TaskState, step: TaskStep) -> StoreResult<TaskState> {
    from.next(step).map_err(|error| unreadable("timers.state", error))
}
