//! Looking at tasks.

use towpath_core::ids::TaskId;
use towpath_core::ports::store::{StoreResult, Task, TaskBacklog, TaskFilter, TaskPlace, WantedTasks};

use super::{TOGETHER, WITHOUT_PAYLOADS, in_order, of_type};
use crate::ops::backlog::counted;
use crate::rows::{read_task, select_list, select_list_instead};
use crate::schema::TASKS;
use crate::sql::{Session, Value, values};

pub(super) async fn find(
    session: &mut Session<'_>,
    task_id: TaskId,
    lock: &str,
) -> StoreResult<Option<Task>> {
    let sql = format!("SELECT {} FROM task_box t WHERE t.task_id = ? {lock}", select_list(&TASKS, "t", ""));
    let row = session.row("tasks.find", &sql, values![task_id.0]).await?;
    row.as_ref().map(read_task).transpose()
}

/// One task, which nobody else changes meanwhile. Runs in a transaction.
pub(crate) async fn lock(session: &mut Session<'_>, task_id: TaskId) -> StoreResult<Option<Task>> {
    let for_update = session.dialect().for_update();
    find(session, task_id, for_update).await
}

/// The first tasks of each type that may be taken.
pub(super) async fn waiting(session: &mut Session<'_>, wanted: &[WantedTasks<'_>]) -> StoreResult<Vec<Task>> {
    let columns = select_list_instead(&TASKS, "t", &WITHOUT_PAYLOADS);
    let mut tasks = Vec::new();
    for wanted in wanted.chunks(TOGETHER) {
        let mut keys = values![];
        let parts = wanted.iter().enumerate().map(|(which, wanted)| {
            let (of_type, order) = of_type(session.dialect(), wanted.task_type, &mut keys);
            format!(
                "SELECT * FROM (SELECT {columns} FROM task_box t WHERE {of_type} ORDER BY {order} LIMIT {}) AS of_{which}",
                wanted.limit
            )
        });
        let sql = parts.collect::<Vec<_>>().join(" UNION ALL ");
        let rows = session.rows("tasks.waiting", &sql, keys).await?;
        let found: Vec<Task> = rows.iter().map(read_task).collect::<StoreResult<_>>()?;
        // Rows that are put together come in any order.
        for wanted in wanted {
            let of_it = found.iter().filter(|task| task.task.task_type.as_str() == wanted.task_type);
            tasks.extend(in_order(of_it.cloned().collect()));
        }
    }
    Ok(tasks)
}

pub(super) async fn list(
    session: &mut Session<'_>,
    filter: &TaskFilter,
    after: Option<&TaskPlace>,
    limit: u32,
) -> StoreResult<Vec<Task>> {
    let dialect = session.dialect();
    let (mut conditions, mut keys) = (vec!["1 = 1".to_owned()], values![]);
    if let Some(subject) = &filter.subject {
        conditions.push("t.subject_kind = ? AND t.subject_id = ?".to_owned());
        keys.extend(values![subject.kind.as_str(), subject.id.as_str()]);
    }
    if let Some(task_type) = &filter.task_type {
        conditions.push("t.task_type = ?".to_owned());
        keys.extend(values![task_type.as_str()]);
    }
    let order = match filter.status {
        None => {
            if let Some(place) = after {
                conditions.push("t.task_id < ?".to_owned());
                keys.extend(values![place.task_id.0]);
            }
            "t.task_id DESC".to_owned()
        }
        Some(status) => {
            let (pinned, first) = dialect.pinned_for_a_walk("t.status");
            keys.extend(pinned.matches('?').map(|_| Value::from(status.as_str())));
            conditions.push(pinned);
            if let Some(place) = after {
                conditions.push(
                    "t.status_changed_at <= ? AND (t.status_changed_at < ? OR t.task_id < ?)".to_owned(),
                );
                keys.extend(values![place.status_changed_at, place.status_changed_at, place.task_id.0]);
            }
            let first = first.replace(", ", " DESC, ");
            format!("{first}t.status_changed_at DESC, t.task_id DESC")
        }
    };
    let sql = format!(
        "SELECT {} FROM task_box t WHERE {} ORDER BY {order} LIMIT {limit}",
        select_list_instead(&TASKS, "t", &WITHOUT_PAYLOADS),
        conditions.join(" AND ")
    );
    session.rows("tasks.list", &sql, keys).await?.iter().map(read_task).collect()
}

pub(super) async fn backlog(session: &mut Session<'_>, types: &[&str]) -> StoreResult<TaskBacklog> {
    let dialect = session.dialect();
    let mut keys = values!["pending", "running", "failed"];
    let of_status = || counted("task_box t WHERE t.status = ?");
    let mut counts = vec![
        format!("{} AS pending_count", of_status()),
        format!("{} AS running_count", of_status()),
        format!("{} AS failed_count", of_status()),
    ];
    for (which, task_type) in types.iter().enumerate() {
        let (of_type, order) = of_type(dialect, task_type, &mut keys);
        counts.push(format!(
            "{} AS queued_count_{which}",
            counted(&format!("task_box t WHERE {of_type} ORDER BY {order}"))
        ));
    }
    let row = session.row("tasks.backlog", &format!("SELECT {}", counts.join(", ")), keys).await?;
    let Some(row) = row else { return Ok(TaskBacklog::default()) };
    let queued = (0..types.len()).map(|which| row.count(&format!("queued_count_{which}")));
    Ok(TaskBacklog {
        pending: row.count("pending_count")?,
        running: row.count("running_count")?,
        failed: row.count("failed_count")?,
        queued: queued.collect::<StoreResult<_>>()?,
    })
}
