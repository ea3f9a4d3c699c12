//! Tasks: durable work, by the database's own clock.
//!
//! What may be taken stands in an index of its own, in the order in which it is taken: a claim costs the same however much
//! waits, and however much has ended. A row that runs is fenced by its epoch; whoever else takes it raises the epoch.
//!
//! Reading order: `starting`; this file, where tasks are taken; `ending`; `listing`.

mod ending;
mod listing;
mod starting;

use std::time::Duration;

use async_trait::async_trait;
use towpath_core::ids::TaskId;
use towpath_core::lifecycle::{TaskState, TaskStep};
use towpath_core::ports::store::{
    CLAIMED_BYTES, Promoted, StoreError, StoreResult, Task, TaskBacklog, TaskBeats, TaskClaim, TaskEnd,
    TaskEnding, TaskFilter, TaskPlace, TaskRetry, Tasks, WantedTasks,
};
use towpath_core::time::between;

use self::ending::{RUNNING, beat, return_unseen};
use self::listing::{backlog, find, list, waiting};
use crate::bounded::how_many_fit;
use crate::dialect::Dialect;
use crate::rows::{read_task, select_list, select_list_instead};
use crate::schema::{Index, TASKS};
use crate::sql::{Session, Value, unreadable, values};
use crate::store::{SqlStore, listing, reading, transacting, writing_once};

pub(crate) use self::ending::{end, hold};
pub(crate) use self::listing::lock;
pub(crate) use self::starting::{cancel, open, retry, start, take_tick};

/// How many tasks a statement names.
const TOGETHER: usize = 128;

/// How many bytes one statement may carry: MariaDB takes 16 MiB unless it is told otherwise.
const MAX_BYTES: usize = 4 << 20;

/// What stands for the columns that may have many bytes, where they are not read.
const WITHOUT_PAYLOADS: [(&str, &str); 2] = [("payload", "'null'"), ("result", "NULL")];

/// What may be taken.
const QUEUED: &Index = TASKS.index("task_box_queued");

/// What waits for its time.
const PENDING: &Index = TASKS.index("task_box_pending");

#[async_trait]
impl Tasks for SqlStore {
    async fn promote_tasks(&self, limit: u32) -> StoreResult<Promoted> {
        let waiting = reading!(self, next_due)?;
        if waiting.is_none_or(|wait| !wait.is_zero()) {
            return Ok(Promoted { count: 0, next_in: waiting });
        }
        let count = match self.dialect().returns_updated() {
            true => writing_once!(self, promote, limit)?,
            false => transacting!(self, promote_by_steps, limit)?,
        };
        let next_in = if count < u64::from(limit) { reading!(self, next_due)? } else { waiting };
        Ok(Promoted { count, next_in })
    }

    async fn claim_tasks(&self, wanted: &[WantedTasks<'_>], worker: &str) -> StoreResult<Vec<Task>> {
        let mut taken = Vec::new();
        // Mostly there is nothing: then one read is all it costs.
        for wanted in reading!(self, look, wanted)? {
            let claimed = match self.dialect().returns_updated() {
                true => writing_once!(self, claim, wanted, worker),
                false => transacting!(self, claim_by_steps, wanted, worker),
            };
            match claimed {
                Ok(tasks) => taken.extend(tasks),
                // Nothing was taken for certain, and those that were taken before are ours by now.
                Err(StoreError::Contention(_)) if !taken.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    async fn return_unseen_tasks(&self, worker: &str, seen: &[TaskId]) -> StoreResult<u64> {
        writing_once!(self, return_unseen, worker, seen)
    }

    async fn waiting_tasks(&self, wanted: &[WantedTasks<'_>]) -> StoreResult<Vec<Task>> {
        reading!(self, waiting, wanted)
    }

    async fn beat_tasks(&self, claims: &[TaskClaim]) -> StoreResult<TaskBeats> {
        match self.dialect().returns_updated() {
            true => writing_once!(self, beat, claims),
            false => transacting!(self, beat, claims),
        }
    }

    async fn end_tasks(&self, endings: &[TaskEnding]) -> StoreResult<Vec<TaskId>> {
        writing_once!(self, end, endings)
    }

    async fn take_over_tasks(
        &self,
        types: &[&str],
        worker: &str,
        living: &[TaskId],
        limit: u32,
    ) -> StoreResult<Vec<Task>> {
        if types.is_empty() {
            return Ok(Vec::new());
        }
        let found = reading!(self, overdue, types, living, limit, "")?;
        if !found.ahead.is_empty() || reading!(self, has_failed_ahead)? {
            writing_once!(self, set_right, &found.ahead)?;
        }
        if found.overdue.is_empty() {
            return Ok(Vec::new());
        }
        transacting!(self, take_over, types, worker, living, limit)
    }

    async fn retry_task(&self, task_id: TaskId) -> StoreResult<TaskRetry> {
        transacting!(self, retry, task_id)
    }

    async fn task(&self, task_id: TaskId) -> StoreResult<Option<Task>> {
        reading!(self, find, task_id, "")
    }

    async fn list_tasks(
        &self,
        filter: &TaskFilter,
        after: Option<&TaskPlace>,
        limit: u32,
    ) -> StoreResult<Vec<Task>> {
        listing!(self, list, filter, after, limit)
    }

    async fn task_backlog(&self, types: &[&str]) -> StoreResult<TaskBacklog> {
        listing!(self, backlog, types)
    }
}

/// After how long the next task may be taken that waits for its time; none when none waits.
async fn next_due(session: &mut Session<'_>) -> StoreResult<Option<Duration>> {
    let dialect = session.dialect();
    let (due_at, is_pending) = dialect.partial(PENDING, "t.");
    let sql = format!(
        "SELECT {due_at} AS due_at, {} AS time_now FROM task_box t WHERE {due_at} IS NOT NULL{is_pending} \
         ORDER BY {due_at} LIMIT 1",
        dialect.now()
    );
    let row = session.row("tasks.next_due", &sql, values![]).await?;
    row.map(|row| Ok(between(row.time("time_now")?, row.time("due_at")?))).transpose()
}

/// The tasks whose time has come, but for those that somebody changes just now.
fn due_sql(dialect: Dialect, limit: u32) -> String {
    let (due_at, is_pending) = dialect.partial(PENDING, "t.");
    let (now, skip_locked) = (dialect.now_of_statement(), dialect.for_update_skip_locked());
    format!(
        "SELECT t.task_id FROM task_box t WHERE {due_at} <= {now}{is_pending} ORDER BY {due_at} LIMIT {limit} {skip_locked}"
    )
}

/// Lets tasks be taken whose time has come, in one statement.
async fn promote(session: &mut Session<'_>, limit: u32) -> StoreResult<u64> {
    let dialect = session.dialect();
    let queued = step(TaskState::Pending, TaskStep::Enqueue)?;
    let sql = format!(
        "UPDATE task_box SET status = ?, status_changed_at = {} WHERE task_id IN ({})",
        dialect.now(),
        due_sql(dialect, limit)
    );
    Ok(session.execute("tasks.promote", &sql, values![queued.as_str()]).await?)
}

/// The same where a statement cannot read the table that it changes. Runs in a transaction.
async fn promote_by_steps(session: &mut Session<'_>, limit: u32) -> StoreResult<u64> {
    let dialect = session.dialect();
    let queued = step(TaskState::Pending, TaskStep::Enqueue)?;
    let rows = session.rows("tasks.due", &due_sql(dialect, limit), values![]).await?;
    let ids: Vec<_> = rows.iter().map(|row| Ok(TaskId(row.uuid("task_id")?))).collect::<StoreResult<_>>()?;
    let mut promoted = 0;
    for ids in ids.chunks(TOGETHER) {
        let mut changed = values![queued.as_str()];
        let sql = format!(
            "UPDATE task_box{} SET status = ?, status_changed_at = {} WHERE {}",
            dialect.by_index("PRIMARY"),
            dialect.now(),
            one_of(dialect, ids, &mut changed)
        );
        promoted += session.execute("tasks.promote", &sql, changed).await?;
    }
    Ok(promoted)
}

/// Of what is wanted, that of which there is any.
async fn look<'w>(
    session: &mut Session<'_>,
    wanted: &'w [WantedTasks<'w>],
) -> StoreResult<Vec<&'w WantedTasks<'w>>> {
    let wanted: Vec<_> = wanted.iter().filter(|wanted| wanted.limit > 0).collect();
    // Where a claim is one statement, it is its own look.
    if wanted.len() < 2 && session.dialect().nests_writes() {
        return Ok(wanted);
    }
    let mut found = Vec::new();
    for wanted in wanted.chunks(TOGETHER) {
        let mut keys = values![];
        let parts = wanted.iter().enumerate().map(|(which, wanted)| {
            let (of_type, order) = of_type(session.dialect(), wanted.task_type, &mut keys);
            format!(
                "SELECT {which} AS which, CASE WHEN (SELECT t.task_id FROM task_box t WHERE {of_type} \
                 ORDER BY {order} LIMIT 1) IS NULL THEN 0 ELSE 1 END AS is_there"
            )
        });
        let sql = parts.collect::<Vec<_>>().join(" UNION ALL ");
        for row in session.rows("tasks.look", &sql, keys).await? {
            let which = usize::try_from(row.count("which")?).unwrap_or(usize::MAX);
            if row.long("is_there")? == 1 {
                found.extend(wanted.get(which).copied());
            }
        }
    }
    Ok(found)
}

/// The tasks of a type that may be taken, and the order in which they are. Those of other types must not be read on the way.
fn of_type<'v>(dialect: Dialect, task_type: &'v str, keys: &mut Vec<Value<'v>>) -> (String, String) {
    let (column, is_queued) = dialect.partial(QUEUED, "t.");
    let (pinned, first) = dialect.pinned(&column);
    keys.extend(pinned.matches('?').map(|_| Value::from(task_type)));
    (format!("{pinned}{is_queued}"), format!("{first}t.priority DESC, t.task_id"))
}

/// The first tasks of a type, with the bytes of their payloads, locked.
fn first_sql<'v>(dialect: Dialect, wanted: &WantedTasks<'v>, keys: &mut Vec<Value<'v>>) -> String {
    let (of_type, order) = of_type(dialect, wanted.task_type, keys);
    format!(
        "SELECT t.task_id, t.priority, CAST(OCTET_LENGTH(t.payload) AS {}) AS bytes FROM task_box t WHERE {of_type} \
         ORDER BY {order} LIMIT {} {}",
        dialect.integer_cast(),
        wanted.limit,
        dialect.for_update_skip_locked()
    )
}

fn claim_assignments(dialect: Dialect) -> String {
    let now = dialect.now();
    format!(
        "status = ?, worker = ?, epoch = epoch + 1, status_changed_at = {now}, started_at = {now}, {}, \
         heartbeat_due_at = {}, attempt_due_at = {}",
        reason_unless_canceling("NULL"),
        dialect.now_plus("heartbeat_micros"),
        dialect.now_plus("time_limit_micros")
    )
}

/// Takes tasks of a type, in one statement.
async fn claim(session: &mut Session<'_>, wanted: &WantedTasks<'_>, worker: &str) -> StoreResult<Vec<Task>> {
    let dialect = session.dialect();
    let running = step(TaskState::Queued, TaskStep::Start)?;
    let mut changed = values![];
    let sql = format!(
        "WITH found AS ({}), \
         sized AS (SELECT task_id, SUM(bytes) OVER in_order AS total, ROW_NUMBER() OVER in_order AS place FROM found \
         WINDOW in_order AS (ORDER BY priority DESC, task_id)) \
         UPDATE task_box SET {} WHERE task_id IN (SELECT task_id FROM sized WHERE place = 1 OR total <= {CLAIMED_BYTES}) \
         RETURNING {}",
        first_sql(dialect, wanted, &mut changed),
        claim_assignments(dialect),
        select_list(&TASKS, "task_box", "")
    );
    changed.extend(values![running.as_str(), worker]);
    let rows = session.rows("tasks.claim", &sql, changed).await?;
    Ok(in_order(rows.iter().map(read_task).collect::<StoreResult<_>>()?))
}

/// The same where an UPDATE answers no rows. Runs in a transaction.
async fn claim_by_steps(
    session: &mut Session<'_>,
    wanted: &WantedTasks<'_>,
    worker: &str,
) -> StoreResult<Vec<Task>> {
    let mut keys = values![];
    let sql = first_sql(session.dialect(), wanted, &mut keys);
    let (mut ids, mut sizes) = (Vec::new(), Vec::new());
    for row in session.rows("tasks.first", &sql, keys).await? {
        ids.push(TaskId(row.uuid("task_id")?));
        sizes.push(row.count("bytes")?);
    }
    ids.truncate(how_many_fit(sizes, CLAIMED_BYTES));
    let running = step(TaskState::Queued, TaskStep::Start)?;
    let set = (claim_assignments(session.dialect()), values![running.as_str(), worker]);
    change(session, "tasks.claim", set, &ids, &select_list(&TASKS, "task_box", "")).await
}

/// Takes one task, if it may be taken or waits for its next attempt. Runs in a transaction.
pub(crate) async fn claim_one(
    session: &mut Session<'_>,
    task_id: TaskId,
    worker: &str,
) -> StoreResult<Option<Task>> {
    let Some(task) = lock(session, task_id).await? else { return Ok(None) };
    let queued = match task.status {
        TaskState::Pending if task.failed_at.is_some() => step(task.status, TaskStep::Enqueue)?,
        status => status,
    };
    let Ok(running) = queued.next(TaskStep::Start) else { return Ok(None) };
    let set = (claim_assignments(session.dialect()), values![running.as_str(), worker]);
    let columns = select_list(&TASKS, "task_box", "");
    Ok(change(session, "tasks.claim_one", set, &[task_id], &columns).await?.pop())
}

/// Changes tasks that are locked, and answers them as they are then.
async fn change(
    session: &mut Session<'_>,
    name: &'static str,
    (set, mut changed): (String, Vec<Value<'_>>),
    ids: &[TaskId],
    columns: &str,
) -> StoreResult<Vec<Task>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let dialect = session.dialect();
    let table = format!("task_box{}", dialect.by_index("PRIMARY"));
    let update = format!("UPDATE {table} SET {set} WHERE {}", one_of(dialect, ids, &mut changed));
    let mut keys = values![];
    let from = format!("{table} WHERE {}", one_of(dialect, ids, &mut keys));
    let rows = session.updated(name, (update, changed), columns, (from, keys)).await?;
    Ok(in_order(rows.iter().map(read_task).collect::<StoreResult<_>>()?))
}

/// In the order in which they are taken.
fn in_order(mut tasks: Vec<Task>) -> Vec<Task> {
    tasks.sort_by_key(|task| (std::cmp::Reverse(task.task.priority), task.task.task_id));
    tasks
}

/// Why a task is where it is; the reason for which one is to be called off stays.
fn reason_unless_canceling(reason: &str) -> String {
    format!("status_reason = CASE WHEN cancel_requested_at IS NULL THEN {reason} ELSE status_reason END")
}

/// When an attempt should have been ended by its worker, who has the length of a heartbeat to say so.
fn attempt_is_over(dialect: Dialect) -> String {
    format!("attempt_due_at < {}", dialect.now_plus("-heartbeat_micros"))
}

/// How far ahead a moment may be, in microseconds, beyond what was given for it. What is further ahead was written before the
/// database's clock was set back, and nothing would happen until then.
const A_MINUTE: &str = "60000000";

/// That a worker may be silent, or an attempt take, longer than was given.
fn are_ahead(dialect: Dialect) -> [String; 2] {
    [("heartbeat_due_at", "heartbeat_micros"), ("attempt_due_at", "time_limit_micros")]
        .map(|(moment, given)| format!("{moment} > {}", dialect.now_plus(&format!("{given} + {A_MINUTE}"))))
}

/// That a task failed in what is the future now. When it is tried again was counted from then.
fn failed_ahead(dialect: Dialect) -> String {
    // Standing still, so that PostgreSQL can look it up.
    let soon = dialect.now_plus(A_MINUTE).replace(dialect.now(), dialect.now_of_statement());
    format!("status = 'pending' AND status_changed_at > {soon} AND failed_at IS NOT NULL")
}

/// Whether there is one.
async fn has_failed_ahead(session: &mut Session<'_>) -> StoreResult<bool> {
    let sql = format!("SELECT task_id FROM task_box WHERE {} LIMIT 1", failed_ahead(session.dialect()));
    Ok(session.row("tasks.ahead", &sql, values![]).await?.is_some())
}

/// After the database's clock was set back: lets these running tasks have what was given from now on, and what failed be tried again now.
async fn set_right(session: &mut Session<'_>, ahead: &[TaskId]) -> StoreResult<()> {
    tracing::warn!("the database's clock was set back; tasks go on from now");
    let (dialect, now) = (session.dialect(), session.dialect().now());
    let [silence, attempt] = are_ahead(dialect);
    for ids in ahead.chunks(TOGETHER) {
        let mut changed = values![];
        let sql = format!(
            "UPDATE task_box{} SET heartbeat_due_at = CASE WHEN {silence} THEN {} ELSE heartbeat_due_at END, \
             attempt_due_at = CASE WHEN {attempt} THEN {} ELSE attempt_due_at END WHERE {} AND {RUNNING}",
            dialect.by_index("PRIMARY"),
            dialect.now_plus("heartbeat_micros"),
            dialect.now_plus("time_limit_micros"),
            one_of(dialect, ids, &mut changed)
        );
        session.execute("tasks.set_right", &sql, changed).await?;
    }
    let sql = format!(
        "UPDATE task_box SET due_at = {now}, status_changed_at = {now} WHERE {}",
        failed_ahead(dialect)
    );
    session.execute("tasks.set_right", &sql, values![]).await?;
    Ok(())
}

/// Running tasks that want looking after.
#[derive(Default)]
struct Found {
    overdue: Vec<TaskId>,
    /// Their moments are of a time before the database's clock was set back.
    ahead: Vec<TaskId>,
}

/// Running tasks of these types that are to be taken over. Whose workers are known to live are so only when they took too long.
async fn overdue(
    session: &mut Session<'_>,
    types: &[&str],
    living: &[TaskId],
    limit: u32,
    lock: &str,
) -> StoreResult<Found> {
    let dialect = session.dialect();
    let is_ahead = are_ahead(dialect).join(" OR ");
    let (keys, is_over) = (types.iter().map(|name| Value::from(*name)).collect(), attempt_is_over(dialect));
    // The status stands in the text: of a parameter PostgreSQL would think that a sixth of all tasks have it.
    let sql = format!(
        "SELECT task_id, CASE WHEN {is_over} THEN 1 ELSE 0 END AS is_over, CASE WHEN {is_ahead} THEN 1 ELSE 0 END AS is_ahead \
         FROM task_box WHERE status = 'running' AND task_type IN ({}) AND ((heartbeat_due_at < {} OR {is_over}) OR {is_ahead}) \
         LIMIT {limit} {lock}",
        marks(types.len()),
        dialect.now()
    );
    let mut found = Found::default();
    for row in session.rows("tasks.overdue", &sql, keys).await? {
        let task_id = TaskId(row.uuid("task_id")?);
        if row.long("is_ahead")? == 1 {
            found.ahead.push(task_id);
        } else if row.long("is_over")? == 1 || !living.contains(&task_id) {
            found.overdue.push(task_id);
        }
    }
    Ok(found)
}

/// Takes over what is overdue. Runs in a transaction.
async fn take_over(
    session: &mut Session<'_>,
    types: &[&str],
    worker: &str,
    living: &[TaskId],
    limit: u32,
) -> StoreResult<Vec<Task>> {
    let dialect = session.dialect();
    let ids = overdue(session, types, living, limit, dialect.for_update_skip_locked()).await?.overdue;
    let (now, is_over) = (dialect.now(), attempt_is_over(dialect));
    // Why stands first: each assignment may see those before it.
    let set = format!(
        "{}, attempt_due_at = CASE WHEN {is_over} THEN {now} ELSE attempt_due_at END, \
         heartbeat_due_at = {}, worker = ?, epoch = epoch + 1",
        reason_unless_canceling(&format!("CASE WHEN {is_over} THEN ? ELSE ? END")),
        dialect.now_plus("heartbeat_micros")
    );
    let changed = values![TaskEnd::TIME_LIMIT, TaskEnd::WORKER_LOST, worker];
    // Their payloads are of no use to who only ends them, and may be many bytes.
    let columns = select_list_instead(&TASKS, "task_box", &WITHOUT_PAYLOADS);
    change(session, "tasks.take_over", (set, changed), &ids, &columns).await
}

/// That a task is one of these. The values before it must be bound first.
fn one_of(dialect: Dialect, ids: &[TaskId], values: &mut Vec<Value<'_>>) -> String {
    // As one parameter, where sets can be bound: then the text is the same for all of them.
    if dialect.unnested_uuids().is_some() {
        values.push(Value::Uuids(ids.iter().map(|id| id.0).collect()));
        return "task_box.task_id = ANY(?)".to_owned();
    }
    values.extend(ids.iter().map(|id| Value::from(id.0)));
    format!("task_box.task_id IN ({})", marks(ids.len()))
}

/// That a task is one of these, each in the epoch in which it was taken.
fn held(dialect: Dialect, claims: &[TaskClaim], values: &mut Vec<Value<'_>>) -> String {
    let ids: Vec<TaskId> = claims.iter().map(|claim| claim.task_id).collect();
    let is_one = one_of(dialect, &ids, values);
    let epochs = claims.iter().map(|claim| (claim.task_id.0, Value::from(claim.epoch))).collect();
    format!("{is_one} AND task_box.epoch = {}", dialect.by_id("task_box.task_id", epochs, "?", values))
}

fn marks(count: usize) -> String {
    vec!["?"; count].join(", ")
}

/// Pages of at most so many, and of no more bytes than a statement may carry unless it is one.
fn pages<T>(all: &[T], size: impl Fn(&T) -> usize, most: usize) -> Vec<&[T]> {
    let (mut pages, mut rest) = (Vec::new(), all);
    while !rest.is_empty() {
        let sizes = rest.iter().take(most).map(|one| size(one) as u64);
        let (page, others) = rest.split_at(how_many_fit(sizes, MAX_BYTES as u64));
        pages.push(page);
        rest = others;
    }
    pages
}

fn step(from: TaskState, step: TaskStep) -> StoreResult<TaskState> {
    from.next(step).map_err(|error| unreadable("tasks.status", error))
}
