//! Tasks that run: their workers live, and their attempts end.

use std::collections::BTreeSet;

use towpath_core::ids::TaskId;
use towpath_core::lifecycle::{TaskState, TaskStep};
use towpath_core::ports::store::{HeldTask, StoreResult, TaskBeats, TaskClaim, TaskEnd, TaskEnding};
use towpath_core::task::TaskType;

use super::{TOGETHER, held, one_of, pages, reason_unless_canceling, step};
use crate::ops::leases::micros;
use crate::sql::{Row, Session, Value, code, readable, values};

/// That a task runs which is named by its key. Said so that no index on the status is used for it: PostgreSQL, which takes few to
/// be running, would read all of them.
pub(super) const RUNNING: &str = "(status = 'running') IS TRUE";

/// Which tasks run under their claims, locked. Runs in a transaction.
pub(crate) async fn hold(session: &mut Session<'_>, claims: &[TaskClaim]) -> StoreResult<Vec<HeldTask>> {
    let mut held_tasks = Vec::with_capacity(claims.len());
    for claims in claims.chunks(TOGETHER) {
        let for_update = session.dialect().for_update();
        for row in running(session, "tasks.hold", claims, for_update).await? {
            let is_canceling = !row.is_null("cancel_requested_at")?;
            let reason = row.text_or_null("status_reason")?.filter(|_| is_canceling);
            held_tasks.push(HeldTask { task_id: TaskId(row.uuid("task_id")?), is_canceling, reason });
        }
    }
    Ok(held_tasks)
}

/// Says that workers live, in one statement where it can be. A task that somebody has locked keeps nobody waiting: it is passed over.
/// Runs in a transaction where an UPDATE answers no rows.
pub(super) async fn beat(session: &mut Session<'_>, claims: &[TaskClaim]) -> StoreResult<TaskBeats> {
    let mut beats = TaskBeats::default();
    for claims in claims.chunks(TOGETHER) {
        let mut missing = claims.to_vec();
        let heard = match session.dialect().returns_updated() {
            true => beat_together(session, claims).await?,
            false => beat_by_steps(session, claims).await?,
        };
        note(heard, &mut missing, &mut beats)?;
        if !missing.is_empty() {
            // Those that run under their claims all the same are locked.
            let locked = running(session, "tasks.locked", &missing, "").await?;
            let unheard = missing.clone();
            note(locked, &mut missing, &mut beats)?;
            let is_locked = |claim: &&TaskClaim| !missing.contains(claim);
            beats.locked.extend(unheard.iter().filter(is_locked).map(|claim| claim.task_id));
        }
        beats.lost.extend(missing.iter().map(|claim| claim.task_id));
    }
    Ok(beats)
}

/// Notes tasks that run under their claims.
fn note(rows: Vec<Row>, missing: &mut Vec<TaskClaim>, beats: &mut TaskBeats) -> StoreResult<()> {
    for row in rows {
        let task_id = TaskId(row.uuid("task_id")?);
        missing.retain(|claim| claim.task_id != task_id);
        if !row.is_null("cancel_requested_at")? {
            beats.canceling.push(task_id);
        }
    }
    Ok(())
}

async fn beat_together(session: &mut Session<'_>, claims: &[TaskClaim]) -> StoreResult<Vec<Row>> {
    let dialect = session.dialect();
    let ids: Vec<TaskId> = claims.iter().map(|claim| claim.task_id).collect();
    let mut changed = values![];
    let sql = format!(
        "UPDATE task_box SET heartbeat_due_at = {} WHERE {} AND task_id IN (SELECT task_box.task_id FROM task_box \
         WHERE {} AND {RUNNING} {}) RETURNING task_id, cancel_requested_at",
        dialect.now_plus("heartbeat_micros"),
        one_of(dialect, &ids, &mut changed),
        held(dialect, claims, &mut changed),
        dialect.for_update_skip_locked()
    );
    Ok(session.rows("tasks.beat", &sql, changed).await?)
}

async fn beat_by_steps(session: &mut Session<'_>, claims: &[TaskClaim]) -> StoreResult<Vec<Row>> {
    let dialect = session.dialect();
    let rows = running(session, "tasks.living", claims, dialect.for_update_skip_locked()).await?;
    let ids: Vec<_> = rows.iter().map(|row| Ok(TaskId(row.uuid("task_id")?))).collect::<StoreResult<_>>()?;
    if !ids.is_empty() {
        let mut changed = values![];
        let sql = format!(
            "UPDATE task_box{} SET heartbeat_due_at = {} WHERE {}",
            dialect.by_index("PRIMARY"),
            dialect.now_plus("heartbeat_micros"),
            one_of(dialect, &ids, &mut changed)
        );
        session.execute("tasks.beat", &sql, changed).await?;
    }
    Ok(rows)
}

/// Which tasks run under their claims.
async fn running(
    session: &mut Session<'_>,
    name: &'static str,
    claims: &[TaskClaim],
    lock: &str,
) -> StoreResult<Vec<Row>> {
    let mut keys = values![];
    let sql = format!(
        "SELECT task_id, cancel_requested_at, status_reason FROM task_box{} WHERE {} AND {RUNNING} ORDER BY task_id {lock}",
        session.dialect().by_index("PRIMARY"),
        held(session.dialect(), claims, &mut keys)
    );
    Ok(session.rows(name, &sql, keys).await?)
}

/// What is so of a task that nobody has any more. Who had it cannot answer.
const NOBODYS: &str = "worker = NULL, heartbeat_due_at = NULL, attempt_due_at = NULL";
const GIVEN_BACK: &str =
    "worker = NULL, heartbeat_due_at = NULL, attempt_due_at = NULL, finished_at = NULL, epoch = epoch + 1";

/// What is written of attempts that ended alike, in one statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Succeeded,
    Skipped,
    Canceled,
    Failed,
    TimedOut,
    /// It is tried again.
    Again,
    GivenBack,
}

impl Sort {
    const ALL: [Self; 7] = [
        Self::Succeeded,
        Self::Skipped,
        Self::Canceled,
        Self::Failed,
        Self::TimedOut,
        Self::Again,
        Self::GivenBack,
    ];

    fn of(end: &TaskEnd) -> Self {
        match end {
            TaskEnd::Succeeded { .. } => Self::Succeeded,
            TaskEnd::Skipped { .. } => Self::Skipped,
            TaskEnd::Canceled => Self::Canceled,
            TaskEnd::Failed { retry_after: None, .. } => Self::Failed,
            TaskEnd::TimedOut { retry_after: None, .. } => Self::TimedOut,
            TaskEnd::Failed { .. } | TaskEnd::TimedOut { .. } => Self::Again,
            TaskEnd::GivenBack => Self::GivenBack,
        }
    }

    fn step(self) -> TaskStep {
        match self {
            Self::Succeeded => TaskStep::Succeed,
            Self::Skipped => TaskStep::Skip,
            Self::Canceled => TaskStep::Cancel,
            Self::Failed => TaskStep::Fail,
            Self::TimedOut => TaskStep::TimeOut,
            Self::Again => TaskStep::Postpone,
            Self::GivenBack => TaskStep::GiveBack,
        }
    }
}

/// Ends attempts: a statement for each sort of end that there is.
pub(crate) async fn end(session: &mut Session<'_>, endings: &[TaskEnding]) -> StoreResult<Vec<TaskId>> {
    let mut lost = Vec::new();
    for sort in Sort::ALL {
        let alike: Vec<_> = endings.iter().filter(|ending| Sort::of(&ending.end) == sort).collect();
        for page in pages(&alike, |ending| size_of(&ending.end), TOGETHER) {
            lost.extend(end_alike(session, sort, page).await?);
        }
    }
    Ok(lost)
}

fn size_of(end: &TaskEnd) -> usize {
    match end {
        TaskEnd::Succeeded { result: Some(result) } => result.as_text().len(),
        TaskEnd::Failed { error_message: text, .. } | TaskEnd::TimedOut { error_message: text, .. } => {
            text.len()
        }
        _ => 0,
    }
}

async fn end_alike(
    session: &mut Session<'_>,
    sort: Sort,
    endings: &[&TaskEnding],
) -> StoreResult<Vec<TaskId>> {
    let dialect = session.dialect();
    let now = dialect.now();
    let status = step(TaskState::Running, sort.step())?;
    let mut changed = values![status.as_str()];
    // One that is to be called off is not tried again, and has not failed.
    let (status, finished_at) = match sort {
        Sort::Failed | Sort::TimedOut | Sort::Again => {
            changed.extend(values![step(TaskState::Running, TaskStep::Cancel)?.as_str()]);
            let asked = |no: &str, yes: &str| {
                format!("CASE WHEN cancel_requested_at IS NULL THEN {no} ELSE {yes} END")
            };
            let finished_at = if sort == Sort::Again { asked("NULL", now) } else { now.to_owned() };
            (asked("?", "?"), finished_at)
        }
        Sort::GivenBack => ("?".to_owned(), "NULL".to_owned()),
        _ => ("?".to_owned(), now.to_owned()),
    };
    let mut set = vec![
        format!("status = {status}"),
        format!("status_changed_at = {now}, finished_at = {finished_at}"),
        NOBODYS.to_owned(),
    ];
    let mut differing = |column: &str, mark: &str, of: &dyn Fn(&TaskEnd) -> Option<Value<'static>>| {
        let value_of = |ending: &&TaskEnding| Some((ending.claim.task_id.0, of(&ending.end)?));
        let each = endings.iter().filter_map(value_of).collect();
        set.push(format!("{column} = {}", dialect.by_id("task_box.task_id", each, mark, &mut changed)));
    };
    match sort {
        Sort::Succeeded => differing("result", "?", &result_of),
        Sort::Skipped => {
            differing("status_reason", "?", &reason_of);
            differing("status_message", "?", &message_of);
        }
        Sort::Failed | Sort::TimedOut | Sort::Again => {
            differing("error_code", "?", &|end| failure_of(end).map(|(of, _)| code(of).into()));
            differing("error_message", "?", &|end| failure_of(end).map(|(_, text)| readable(text).into()));
        }
        Sort::Canceled | Sort::GivenBack => {}
    }
    if sort == Sort::Again {
        differing("due_at", dialect.now_plus_parameter(), &pause_of);
    }
    set.extend(match sort {
        Sort::Skipped | Sort::Canceled => None,
        Sort::Succeeded => Some("status_reason = NULL".to_owned()),
        Sort::Failed | Sort::TimedOut => {
            Some(format!("{}, failed_at = {now}", reason_unless_canceling("NULL")))
        }
        Sort::Again => {
            let reason = reason_unless_canceling("NULL");
            Some(format!("{reason}, failed_at = {now}, retry_count = retry_count + 1"))
        }
        Sort::GivenBack => Some(format!("{}, epoch = epoch + 1", reason_unless_canceling("'given-back'"))),
    });
    let claims: Vec<TaskClaim> = endings.iter().map(|ending| ending.claim).collect();
    let sql = format!(
        "UPDATE task_box{} SET {} WHERE {} AND {RUNNING}",
        dialect.by_index("PRIMARY"),
        set.join(", "),
        held(dialect, &claims, &mut changed)
    );
    let ended = session.execute("tasks.end", &sql, changed).await?;
    if ended == claims.len() as u64 || sort == Sort::GivenBack {
        return Ok(Vec::new());
    }
    not_ended(session, &claims).await
}

/// Lets running tasks of a worker be taken that it does not know of. One that is to be called off is so by who takes it.
pub(super) async fn return_unseen(
    session: &mut Session<'_>,
    worker: &str,
    seen: &[TaskId],
) -> StoreResult<u64> {
    let dialect = session.dialect();
    let queued = step(TaskState::Running, TaskStep::GiveBack)?;
    let mut changed = values![queued.as_str(), worker];
    let is_seen = if seen.is_empty() { "1 = 0".to_owned() } else { one_of(dialect, seen, &mut changed) };
    let sql = format!(
        "UPDATE task_box SET status = ?, status_changed_at = {}, {GIVEN_BACK}, {} \
         WHERE status = 'running' AND worker = ? AND NOT ({is_seen})",
        dialect.now(),
        reason_unless_canceling("'claim-lost'"),
    );
    Ok(session.execute("tasks.return_unseen", &sql, changed).await?)
}

/// The tasks that were not ended under their claims: whoever else lets one end raises its epoch.
async fn not_ended(session: &mut Session<'_>, claims: &[TaskClaim]) -> StoreResult<Vec<TaskId>> {
    let mut keys = values![];
    let sql = format!("SELECT task_id FROM task_box WHERE {}", held(session.dialect(), claims, &mut keys));
    let mut lost: BTreeSet<TaskId> = claims.iter().map(|claim| claim.task_id).collect();
    for row in session.rows("tasks.ended", &sql, keys).await? {
        lost.remove(&TaskId(row.uuid("task_id")?));
    }
    Ok(lost.into_iter().collect())
}

fn reason_of(end: &TaskEnd) -> Option<Value<'static>> {
    let TaskEnd::Skipped { reason, .. } = end else { return None };
    Some(code(reason).into())
}

fn message_of(end: &TaskEnd) -> Option<Value<'static>> {
    let TaskEnd::Skipped { message: Some(message), .. } = end else { return None };
    Some(readable(message).into())
}

fn result_of(end: &TaskEnd) -> Option<Value<'static>> {
    let TaskEnd::Succeeded { result: Some(result) } = end else { return None };
    Some(result.as_text().to_owned().into())
}

fn failure_of(end: &TaskEnd) -> Option<(&str, &str)> {
    match end {
        TaskEnd::Failed { error_code, error_message, .. } => Some((error_code, error_message)),
        TaskEnd::TimedOut { error_message, .. } => Some((TaskEnd::TIME_LIMIT, error_message)),
        _ => None,
    }
}

fn pause_of(end: &TaskEnd) -> Option<Value<'static>> {
    match end {
        TaskEnd::Failed { retry_after, .. } | TaskEnd::TimedOut { retry_after, .. } => {
            retry_after.map(|pause| micros(pause.min(TaskType::LONGEST)).into())
        }
        _ => None,
    }
}
