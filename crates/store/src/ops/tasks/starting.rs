//! Starting tasks, calling them off, and trying them again by hand.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use towpath_core::ids::{TaskId, TaskKey, TaskTypeName};
use towpath_core::lifecycle::{TaskState, TaskStep};
use towpath_core::ports::store::{Canceling, NewTask, StartedTask, StoreError, StoreResult, TaskRetry};

use super::listing::lock;
use super::{A_MINUTE, TOGETHER, marks, pages};
use crate::rows::{TASK_COLUMNS, task_values};
use crate::schema::{Index, TASKS};
use crate::sql::{MAX_VALUES, Session, SqlFault, Value, code, values};

/// How often a key that was taken and then free again is tried.
const MOST_ROUNDS: u32 = 10;

/// Open tasks that have a key.
const UNIQUE: &Index = TASKS.index("task_box_unique");

/// Starts tasks. Runs in a transaction.
pub(crate) async fn start(session: &mut Session<'_>, tasks: &[NewTask]) -> StoreResult<Vec<StartedTask>> {
    let (mut keyed, free): (Vec<&NewTask>, Vec<&NewTask>) =
        tasks.iter().partition(|task| task.unique_key.is_some());
    insert(session, &free, "").await?;
    // In one order, so that two who start the same ones do not wait for each other.
    keyed.sort_by_key(|task| key_of(task));
    let otherwise = session.dialect().unless_a_key_is_taken(&TASKS);
    let mut open: HashMap<(String, String), TaskId> = HashMap::new();
    for _ in 0..MOST_ROUNDS {
        // One that had the key may end before it is read: then the key is free.
        keyed.retain(|task| !open.contains_key(&key_of(task)));
        if keyed.is_empty() {
            break;
        }
        insert(session, &keyed, &otherwise).await?;
        for page in keyed.chunks(TOGETHER) {
            let keys: Vec<_> = page.iter().map(|task| key_of(task)).collect();
            open.extend(open_by_key(session, &keys).await?);
        }
    }
    let found = tasks.iter().map(|task| match &task.unique_key {
        None => Ok(StartedTask { task_id: task.task_id, is_new: true }),
        Some(_) => {
            let kept =
                || StoreError::Contention("the key of a task is taken and free again and again".into());
            let task_id = *open.get(&key_of(task)).ok_or_else(kept)?;
            Ok(StartedTask { task_id, is_new: task_id == task.task_id })
        }
    });
    found.collect()
}

/// Takes a tick of a schedule. Runs in a transaction.
pub(crate) async fn take_tick(
    session: &mut Session<'_>,
    schedule: &str,
    tick: DateTime<Utc>,
) -> StoreResult<bool> {
    let later = "UPDATE task_schedules SET last_tick_at = ? WHERE name = ? AND last_tick_at < ?";
    if session.execute("tasks.tick", later, values![tick, schedule, tick]).await? > 0 {
        return Ok(true);
    }
    // One in what is the future now was taken before the database's clock was set back: nothing would be started until then.
    let ahead = format!(
        "UPDATE task_schedules SET last_tick_at = ? WHERE name = ? AND last_tick_at > {}",
        session.dialect().now_plus(A_MINUTE)
    );
    if session.execute("tasks.tick_ahead", &ahead, values![tick, schedule]).await? > 0 {
        tracing::warn!(schedule, "the database's clock was set back; the schedule goes on from now");
        return Ok(true);
    }
    let first = session.dialect().insert_unless_there("task_schedules (name, last_tick_at) VALUES (?, ?)");
    session.execute("tasks.schedule", &first, values![schedule, tick]).await?;
    Ok(false)
}

fn key_of(task: &NewTask) -> (String, String) {
    let key = task.unique_key.as_ref().map(ToString::to_string);
    (task.task_type.to_string(), key.unwrap_or_default())
}

async fn insert(session: &mut Session<'_>, tasks: &[&NewTask], otherwise: &str) -> StoreResult<()> {
    let now = session.dialect().now();
    let row = format!("({}, {now}, {now})", vec!["?"; TASK_COLUMNS.len()].join(", "));
    for page in pages(tasks, |task| task.payload.as_text().len(), MAX_VALUES / TASK_COLUMNS.len()) {
        let sql = format!(
            "INSERT INTO task_box ({}, created_at, status_changed_at) VALUES {} {otherwise}",
            TASK_COLUMNS.join(", "),
            vec![row.as_str(); page.len()].join(", ")
        );
        let rows = page.iter().flat_map(|task| task_values(task));
        session.execute("tasks.start", &sql, rows.collect()).await?;
    }
    Ok(())
}

/// The open task of a type that has this key.
pub(crate) async fn open(
    session: &mut Session<'_>,
    task_type: &TaskTypeName,
    key: &TaskKey,
) -> StoreResult<Option<TaskId>> {
    let asked = (task_type.to_string(), key.to_string());
    let found = open_by_key(session, &[asked]).await?;
    Ok(found.into_iter().next().map(|(_, task_id)| task_id))
}

/// The open tasks that have any of these keys, each with the type before it.
async fn open_by_key(
    session: &mut Session<'_>,
    keys: &[(String, String)],
) -> StoreResult<Vec<((String, String), TaskId)>> {
    let (key, is_open) = session.dialect().partial(UNIQUE, "t.");
    let mut asked: Vec<Value<'_>> = keys.iter().map(|(_, key)| Value::from(key.as_str())).collect();
    let types: BTreeSet<&str> = keys.iter().map(|(of, _)| of.as_str()).collect();
    let sql = format!(
        "SELECT t.task_id, t.task_type, t.unique_key FROM task_box t WHERE {key} IN ({}){is_open} \
         AND t.task_type IN ({})",
        marks(asked.len()),
        marks(types.len())
    );
    asked.extend(types.into_iter().map(Value::from));
    let rows = session.rows("tasks.open", &sql, asked).await?;
    let found = rows
        .iter()
        .map(|row| Ok(((row.text("task_type")?, row.text("unique_key")?), TaskId(row.uuid("task_id")?))));
    found.collect()
}

/// Calls a task off. Runs in a transaction.
pub(crate) async fn cancel(
    session: &mut Session<'_>,
    task_id: TaskId,
    reason: &str,
) -> StoreResult<Canceling> {
    let Some(task) = lock(session, task_id).await? else { return Ok(Canceling::Unknown) };
    let now = session.dialect().now();
    match task.status {
        TaskState::Running => {
            let sql = format!(
                "UPDATE task_box SET cancel_requested_at = COALESCE(cancel_requested_at, {now}), status_reason = ? \
                 WHERE task_id = ?"
            );
            session.execute("tasks.ask_to_cancel", &sql, values![code(reason), task_id.0]).await?;
            Ok(Canceling::Asked)
        }
        status => match status.next(TaskStep::Cancel) {
            Err(_) => Ok(Canceling::Ended(status)),
            Ok(canceled) => {
                let sql = format!(
                    "UPDATE task_box SET status = ?, status_changed_at = {now}, finished_at = {now}, status_reason = ? \
                     WHERE task_id = ?"
                );
                let changed = values![canceled.as_str(), code(reason), task_id.0];
                session.execute("tasks.cancel", &sql, changed).await?;
                Ok(Canceling::Done(Box::new(task)))
            }
        },
    }
}

/// Lets a task be taken again. Runs in a transaction.
pub(crate) async fn retry(session: &mut Session<'_>, task_id: TaskId) -> StoreResult<TaskRetry> {
    let Some(task) = lock(session, task_id).await? else { return Ok(TaskRetry::Unknown) };
    let queued = task.status.next(TaskStep::Retry).or_else(|_| task.status.next(TaskStep::Reopen));
    let Ok(queued) = queued else { return Ok(TaskRetry::Not(task.status)) };
    if let Some(key) = &task.task.unique_key
        && open(session, &task.task.task_type, key).await?.is_some()
    {
        return Ok(TaskRetry::KeyTaken);
    }
    let sql = format!(
        "UPDATE task_box SET status = ?, status_changed_at = {}, status_reason = NULL, status_message = NULL, \
         due_at = NULL, finished_at = NULL, cancel_requested_at = NULL, retry_count = retry_count + 1 \
         WHERE task_id = ?",
        session.dialect().now()
    );
    match session.execute("tasks.retry", &sql, values![queued.as_str(), task_id.0]).await {
        Ok(_) => Ok(TaskRetry::Queued),
        // Somebody was quicker to start another of its key.
        Err(fault @ SqlFault::Unique { .. }) => Err(StoreError::Contention(StoreError::from(fault).into())),
        Err(fault) => Err(fault.into()),
    }
}
