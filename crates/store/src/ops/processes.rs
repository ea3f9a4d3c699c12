//! Processes: the facts that each took, the names of their timers, and what undoes what they did.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{AggregateKey, CommandId, EventId, TaskId};
use towpath_core::name::{CommandName, EventName};
use towpath_core::payload::Payload;
use towpath_core::ports::store::{NewUndo, ProcessInput, Processes, StoreResult, Undo, Undoes};
use towpath_core::process::Outgoing;
use uuid::Uuid;

use crate::rows::{insert_sql, read_key, stored};
use crate::schema::{PROCESS_TIMERS, PROCESS_UNDOS};
use crate::sql::{Row, Session, unreadable, values};
use crate::store::{SqlStore, reading, writing_once};

#[async_trait]
impl Processes for SqlStore {
    async fn process_inputs(
        &self,
        process: &AggregateKey,
        after: Option<EventId>,
        limit: u32,
    ) -> StoreResult<Vec<ProcessInput>> {
        reading!(self, inputs, process, after, limit)
    }

    async fn next_undo(&self, process: &AggregateKey, before: Option<u64>) -> StoreResult<Option<Undo>> {
        reading!(self, next_undo, process, before)
    }

    async fn note_undone(&self, undo_id: u64, now: DateTime<Utc>) -> StoreResult<()> {
        writing_once!(self, note_undone, undo_id, now)
    }
}

/// Records a fact that a process took. One that it took before, beyond the horizon of the inbox, stays as it is.
pub(crate) async fn record(session: &mut Session<'_>, input: &ProcessInput) -> StoreResult<()> {
    let sql = session.dialect().insert_unless_there(
        "process_inputs (process_kind, process_id, event_id, event_type, outcome, recorded_at) \
         VALUES (?, ?, ?, ?, ?, ?)",
    );
    let ProcessInput { process, event_id, event_type, outcome, recorded_at } = input;
    let (kind, id) = (process.kind.as_str(), process.id.as_str());
    let row = values![kind, id, event_id.0, event_type.as_str(), outcome.as_str(), *recorded_at];
    session.execute("process.record", &sql, row).await?;
    Ok(())
}

async fn inputs(
    session: &mut Session<'_>,
    process: &AggregateKey,
    after: Option<EventId>,
    limit: u32,
) -> StoreResult<Vec<ProcessInput>> {
    let sql = format!(
        "SELECT event_id, event_type, outcome, recorded_at FROM process_inputs \
         WHERE process_kind = ? AND process_id = ? AND event_id > ? ORDER BY event_id LIMIT {limit}"
    );
    let after = after.map_or(Uuid::nil(), |after| after.0);
    let keys = values![process.kind.as_str(), process.id.as_str(), after];
    let read = |row: &Row| {
        Ok(ProcessInput {
            process: process.clone(),
            event_id: EventId(row.uuid("event_id")?),
            event_type: EventName::from_stored(row.text("event_type")?),
            outcome: stored(row, "outcome")?,
            recorded_at: row.time("recorded_at")?,
        })
    };
    session.rows("process.inputs", &sql, keys).await?.iter().map(read).collect()
}

/// Gives a timer its name. Runs in the transaction in which the process is locked.
pub(crate) async fn name_timer(
    session: &mut Session<'_>,
    process: &AggregateKey,
    name: &str,
    timer_id: Uuid,
    due_at: DateTime<Utc>,
) -> StoreResult<()> {
    let row = values![process.kind.as_str(), process.id.as_str(), name, timer_id, due_at];
    session.execute("process.name_timer", &insert_sql(&PROCESS_TIMERS, 1), row).await?;
    Ok(())
}

/// Takes names from timers. Runs in the transaction in which the process is locked.
pub(crate) async fn take_timers(
    session: &mut Session<'_>,
    process: &AggregateKey,
    name: Option<&str>,
) -> StoreResult<Vec<Uuid>> {
    let of_name = if name.is_some() { " AND name = ?" } else { "" };
    let chosen = format!("FROM process_timers WHERE process_kind = ? AND process_id = ?{of_name}");
    let keys = || {
        let mut keys = values![process.kind.as_str(), process.id.as_str()];
        keys.extend(name.map(Into::into));
        keys
    };
    let rows = session.rows("process.timers", &format!("SELECT timer_id {chosen}"), keys()).await?;
    if !rows.is_empty() {
        session.execute("process.take_timers", &format!("DELETE {chosen}"), keys()).await?;
    }
    rows.iter().map(|row| row.uuid("timer_id")).collect()
}

/// Keeps what undoes something.
pub(crate) async fn keep_undo(session: &mut Session<'_>, undo: &NewUndo) -> StoreResult<()> {
    let NewUndo { process, command_id, undoes, command, recorded_at } = undo;
    let (undoes, undoes_id) = undoes.as_ref().map(undoes_to_stored).unzip();
    let row = values![
        process.kind.as_str(),
        process.id.as_str(),
        command_id.as_str(),
        undoes,
        undoes_id,
        command.command_type.as_str(),
        command.aggregate.kind.as_str(),
        command.aggregate.id.as_str(),
        command.payload.as_text(),
        *recorded_at,
        None::<DateTime<Utc>>,
        None::<DateTime<Utc>>
    ];
    session.execute("process.keep_undo", &insert_sql(&PROCESS_UNDOS, 1), row).await?;
    Ok(())
}

/// Lets all be undone that was kept so far.
pub(crate) async fn begin_undoing(
    session: &mut Session<'_>,
    process: &AggregateKey,
    now: DateTime<Utc>,
) -> StoreResult<()> {
    let sql = "UPDATE process_undos SET compensating_at = ? \
               WHERE process_kind = ? AND process_id = ? AND compensating_at IS NULL";
    let keys = values![now, process.kind.as_str(), process.id.as_str()];
    session.execute("process.begin_undoing", sql, keys).await?;
    Ok(())
}

/// Forgets what was kept and is not to be undone.
pub(crate) async fn forget_undos(session: &mut Session<'_>, process: &AggregateKey) -> StoreResult<()> {
    let sql =
        "DELETE FROM process_undos WHERE process_kind = ? AND process_id = ? AND compensating_at IS NULL";
    let keys = values![process.kind.as_str(), process.id.as_str()];
    session.execute("process.forget_undos", sql, keys).await?;
    Ok(())
}

const COMMAND: &str = "command";
const TIMER: &str = "timer";
const TASK: &str = "task";

fn undoes_to_stored(undoes: &Undoes) -> (&'static str, String) {
    match undoes {
        Undoes::Command(command_id) => (COMMAND, command_id.to_string()),
        Undoes::Timer(timer_id) => (TIMER, timer_id.to_string()),
        Undoes::Task(task_id) => (TASK, task_id.to_string()),
    }
}

fn read_undoes(row: &Row) -> StoreResult<Option<Undoes>> {
    let stored = row.text_or_null("undoes")?.zip(row.text_or_null("undoes_id")?);
    let Some((what, id)) = stored else { return Ok(None) };
    let uuid = || id.parse::<Uuid>().map_err(|error| unreadable("process_undos.undoes_id", error));
    Ok(Some(match what.as_str() {
        COMMAND => Undoes::Command(CommandId::from_stored(id)),
        TIMER => Undoes::Timer(uuid()?),
        TASK => Undoes::Task(TaskId(uuid()?)),
        other => {
            return Err(unreadable("process_undos.undoes", format!("{other:?} is nothing to undo")));
        }
    }))
}

async fn next_undo(
    session: &mut Session<'_>,
    process: &AggregateKey,
    before: Option<u64>,
) -> StoreResult<Option<Undo>> {
    let earlier = if before.is_some() { " AND undo_id < ?" } else { "" };
    let sql = format!(
        "SELECT undo_id, command_id, undoes, undoes_id, command_type, aggregate_kind, aggregate_id, payload, recorded_at \
         FROM process_undos WHERE process_kind = ? AND process_id = ? AND compensating_at IS NOT NULL \
         AND undone_at IS NULL{earlier} ORDER BY undo_id DESC LIMIT 1"
    );
    let mut keys = values![process.kind.as_str(), process.id.as_str()];
    keys.extend(before.map(Into::into));
    let Some(row) = session.row("process.next_undo", &sql, keys).await? else { return Ok(None) };
    let payload = Payload::from_text(row.text("payload")?).map_err(|error| unreadable("payload", error))?;
    let command = Outgoing {
        aggregate: read_key(&row)?,
        command_type: CommandName::from_stored(row.text("command_type")?),
        payload,
    };
    let undo = NewUndo {
        process: process.clone(),
        command_id: CommandId::from_stored(row.text("command_id")?),
        undoes: read_undoes(&row)?,
        command,
        recorded_at: row.time("recorded_at")?,
    };
    Ok(Some(Undo { undo_id: row.count("undo_id")?, undo }))
}

async fn note_undone(session: &mut Session<'_>, undo_id: u64, now: DateTime<Utc>) -> StoreResult<()> {
    let sql = "UPDATE process_undos SET undone_at = ? WHERE undo_id = ? AND undone_at IS NULL";
    session.execute("process.note_undone", sql, values![now, undo_id]).await?;
    Ok(())
}
