//! Appending facts: the aggregate's row under its version, the events, their pending rows, the history, the
//! outbox rows and (for a command) its COMPLETED row.
//!
//! The aggregate's row is always first: its lock makes writers of one aggregate take turns, so that counted ids
//! of one aggregate rise with its versions. Everything else is gated on it.

use towpath_core::ids::{CommandId, Version};
use towpath_core::ports::store::{
    Append, AppendRules, Appended, CommandRecord, Expected, Routing, StoreError, StoreResult,
};

use crate::dialect::Dialect;
use crate::rows::{
    aggregate_changes, aggregate_values, command_values, event_values, gated_insert_sql, insert_sql,
    outbox_values, state_event_values, timer_values,
};
use crate::schema::{
    AGGREGATES, COMMAND_BOX, DOMAIN_EVENTS, EVENT_OUTBOX, EVENT_PENDING, STATE_EVENTS, TIMERS, Table,
};
use crate::sql::{MAX_VALUES, Session, SqlFault, Value, values};

/// Appends inside the caller's transaction.
///
/// Where several statements do it, a savepoint takes the first ones back when a later one is refused: a caller that
/// takes the refusal for an answer and commits must not leave a version without its event.
pub(crate) async fn append_tx(session: &mut Session<'_>, append: &Append) -> StoreResult<Appended> {
    if session.dialect().nests_writes() {
        return write(session, append, None).await;
    }
    session.plain("savepoint", "SAVEPOINT towpath_append").await?;
    match write(session, append, None).await {
        Ok(appended) => {
            session.plain("savepoint.release", "RELEASE SAVEPOINT towpath_append").await?;
            Ok(appended)
        }
        Err(error) => {
            // After a deadlock the database has taken back the whole transaction, and the savepoint with it.
            let _ = session.plain("savepoint.rollback", "ROLLBACK TO SAVEPOINT towpath_append").await;
            Err(error)
        }
    }
}

/// Completes an append by what the application has declared, on the row as it is now, which is then locked. An append at
/// any version becomes one at the version that was found.
pub(crate) async fn complete(
    session: &mut Session<'_>,
    append: &Append,
    rules: &dyn AppendRules,
) -> StoreResult<Append> {
    if !rules.concern(&append.aggregate.kind) {
        return rules.complete(append, None);
    }
    let row = crate::ops::aggregates::lock_aggregate(session, append).await?;
    let version = row.as_ref().map_or(0, |row| row.version);
    let expected = match append.expected {
        Expected::Any => Expected::after(version),
        expected if expected == Expected::after(version) => expected,
        _ => return Err(conflict(append)),
    };
    Ok(Append { expected, ..rules.complete(append, row.as_ref())? })
}

/// Appends inside a transaction that is rolled back when this is refused.
pub(crate) async fn append(session: &mut Session<'_>, append: &Append) -> StoreResult<Appended> {
    write(session, append, None).await
}

/// Appends and records the command that did it.
///
/// On PostgreSQL this is one statement, and so atomic even without a transaction around it: either the gate (the
/// aggregate's row) opens and all of it is written, or nothing is; a duplicate key anywhere undoes all of it.
pub(crate) async fn append_with_command(
    session: &mut Session<'_>,
    append: &Append,
    record: &CommandRecord,
) -> StoreResult<Appended> {
    write(session, append, Some(record)).await
}

/// Whether [`append_with_command`] needs a transaction around it.
pub(crate) fn is_one_statement(dialect: Dialect, append: &Append) -> bool {
    dialect.nests_writes() && append.expected != Expected::Any
}

async fn write(
    session: &mut Session<'_>,
    append: &Append,
    record: Option<&CommandRecord>,
) -> StoreResult<Appended> {
    check(append)?;
    let count = append.events.len() as u64;
    if is_one_statement(session.dialect(), append) {
        let base = base_version(append.expected);
        let version = base.checked_add(count).ok_or_else(|| conflict(append))?;
        let (gate_sql, gate_values) = advance_sql(append, version);
        write_nested(session, append, record, base, format!("{gate_sql} RETURNING 1 AS one"), gate_values)
            .await?;
        return Ok(Appended { version });
    }
    let version = advance(session, append, count).await?;
    let base = version - count;
    if session.dialect().nests_writes() {
        write_nested(session, append, record, base, "SELECT 1 AS one".to_owned(), Vec::new()).await?;
    } else {
        if append.deadline.leaves {
            let (sql, values) = end_deadline(append, base);
            session.execute("append.deadline", &sql, values).await?;
        }
        for part in parts(append, record, base) {
            let sql = insert_sql(part.table, part.rows);
            let result = session.execute(part.name, &sql, part.values).await;
            result.map_err(|fault| duplicate(fault, part.table.name, append, record))?;
        }
    }
    Ok(Appended { version })
}

/// One statement: a gate, and inserts that only happen if the gate has a row.
async fn write_nested(
    session: &mut Session<'_>,
    append: &Append,
    record: Option<&CommandRecord>,
    base: Version,
    gate_sql: String,
    gate_values: Vec<Value<'_>>,
) -> StoreResult<()> {
    let mut sql = format!("WITH gate AS ({gate_sql})");
    let mut all_values = gate_values;
    for part in parts(append, record, base) {
        sql.push_str(&format!(
            ", {}_rows AS ({})",
            part.table.name,
            gated_insert_sql(part.table, part.rows, "gate")
        ));
        all_values.extend(part.values);
    }
    if append.deadline.leaves {
        let (cancel, values) = end_deadline(append, base);
        sql.push_str(&format!(", deadline AS ({cancel} AND EXISTS (SELECT 1 FROM gate))"));
        all_values.extend(values);
    }
    sql.push_str(" SELECT one FROM gate");
    match session.row("append", &sql, all_values).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(conflict(append)),
        Err(SqlFault::Unique { constraint, error }) => {
            let table = match constraint.as_deref() {
                Some("command_box_pkey") => COMMAND_BOX.name,
                // Which of the two PostgreSQL trips over first is its own affair; both are the same event twice.
                // A deadline's timer has the id of its event.
                Some("domain_events_pkey" | "event_outbox_event" | "timers_pkey") => DOMAIN_EVENTS.name,
                Some("aggregates_pkey" | "domain_events_version") => AGGREGATES.name,
                _ => "",
            };
            Err(duplicate(SqlFault::Unique { constraint, error }, table, append, record))
        }
        Err(fault) => Err(fault.into()),
    }
}

/// Rows to insert into one table.
struct Part<'a> {
    name: &'static str,
    table: &'static Table,
    rows: usize,
    values: Vec<Value<'a>>,
}

/// Everything that is written behind the aggregate's row. Tables without rows are left out.
fn parts<'a>(append: &'a Append, record: Option<&'a CommandRecord>, base: Version) -> Vec<Part<'a>> {
    let numbered = || (base + 1..).zip(&append.events);
    let mut parts = vec![
        Part {
            name: "append.domain_events",
            table: &DOMAIN_EVENTS,
            rows: append.events.len(),
            values: numbered().flat_map(|(version, event)| event_values(append, event, version)).collect(),
        },
        Part {
            name: "append.event_pending",
            table: &EVENT_PENDING,
            rows: append.events.len(),
            values: append.events.iter().flat_map(|event| values![event.event_id.0]).collect(),
        },
    ];
    if !append.state_changes.is_empty() {
        let values = append.state_changes.iter().flat_map(|change| {
            let event = &append.events[change.event_index];
            state_event_values(append, change, event, base + 1 + change.event_index as u64)
        });
        parts.push(Part {
            name: "append.state_events",
            table: &STATE_EVENTS,
            rows: append.state_changes.len(),
            values: values.collect(),
        });
    }
    let routed: usize = append.events.iter().map(|event| event.channels.channels().len()).sum();
    if routed > 0 {
        let values = append.events.iter().flat_map(|event| {
            event.channels.channels().iter().flat_map(move |channel| outbox_values(append, event, channel))
        });
        parts.push(Part {
            name: "append.event_outbox",
            table: &EVENT_OUTBOX,
            rows: routed,
            values: values.collect(),
        });
    }
    if let Some(timer) = &append.deadline.enters {
        parts.push(Part { name: "append.timers", table: &TIMERS, rows: 1, values: timer_values(timer) });
    }
    if let Some(record) = record {
        parts.push(Part {
            name: "append.command_box",
            table: &COMMAND_BOX,
            rows: 1,
            values: command_values(record),
        });
    }
    parts
}

/// The statement that cancels the timer of the state that is left, unless it has begun. The timer has the id of the event
/// that entered the state: the last one in the history before this append.
fn end_deadline(append: &Append, base: Version) -> (String, Vec<Value<'_>>) {
    let sql = "UPDATE timers SET state = 'canceled', state_changed_at = ?, state_reason = 'state-left', \
         finished_at = ? WHERE state IN ('pending', 'queued') AND timer_id = (SELECT s.event_id \
         FROM state_events s WHERE s.aggregate_kind = ? AND s.aggregate_id = ? AND s.aggregate_version <= ? \
         ORDER BY s.aggregate_version DESC LIMIT 1)";
    let now = append.context.occurred_at;
    let (kind, id) = (append.aggregate.kind.as_str(), append.aggregate.id.as_str());
    (sql.to_owned(), values![now, now, kind, id, base])
}

/// The statement that takes the aggregate from its expected version to `version`, or touches no row.
fn advance_sql(append: &Append, version: Version) -> (String, Vec<Value<'_>>) {
    match append.expected {
        Expected::New | Expected::Any => {
            let sql = format!("{} ON CONFLICT DO NOTHING", insert_sql(&AGGREGATES, 1));
            (sql, aggregate_values(append, version))
        }
        Expected::Exactly(expected) => {
            let (columns, changed) = aggregate_changes(append);
            let assignments: Vec<String> = columns.iter().map(|column| format!("{column} = ?")).collect();
            let sql = format!(
                "UPDATE aggregates SET version = ?, {} WHERE aggregate_kind = ? AND aggregate_id = ? AND version = ?",
                assignments.join(", ")
            );
            let mut values = values![version];
            values.extend(changed);
            values.extend(values![append.aggregate.kind.as_str(), append.aggregate.id.as_str(), expected]);
            (sql, values)
        }
    }
}

/// Takes the aggregate's row forward by `count` in a statement of its own and answers its new version.
async fn advance(session: &mut Session<'_>, append: &Append, count: u64) -> StoreResult<Version> {
    match append.expected {
        Expected::Exactly(expected) => {
            let version = expected.checked_add(count).ok_or_else(|| conflict(append))?;
            let (sql, values) = advance_sql(append, version);
            match session.execute("append.aggregates", &sql, values).await? {
                0 => Err(conflict(append)),
                _ => Ok(version),
            }
        }
        Expected::New => {
            let sql = insert_sql(&AGGREGATES, 1);
            match session.execute("append.aggregates", &sql, aggregate_values(append, count)).await {
                Ok(_) => Ok(count),
                Err(SqlFault::Unique { .. }) => Err(conflict(append)),
                Err(fault) => Err(fault.into()),
            }
        }
        Expected::Any => {
            let dialect = session.dialect();
            let (columns, _) = aggregate_changes(append);
            let assignments: Vec<String> =
                columns.iter().map(|column| format!("{column} = {}", dialect.inserted(column))).collect();
            let sql = format!(
                "{} {} version = aggregates.version + {}, {}",
                insert_sql(&AGGREGATES, 1),
                dialect.on_conflict("aggregate_kind, aggregate_id"),
                dialect.inserted("version"),
                assignments.join(", ")
            );
            session.execute("append.aggregates", &sql, aggregate_values(append, count)).await?;
            // The row is locked by now, so the version read is the one just written.
            let sql = "SELECT version FROM aggregates WHERE aggregate_kind = ? AND aggregate_id = ?";
            let key = values![append.aggregate.kind.as_str(), append.aggregate.id.as_str()];
            let row = session.row("append.version", sql, key).await?;
            row.ok_or_else(|| conflict(append))?.count("version")
        }
    }
}

fn base_version(expected: Expected) -> Version {
    match expected {
        Expected::Exactly(version) => version,
        Expected::New | Expected::Any => 0,
    }
}

fn check(append: &Append) -> StoreResult<()> {
    let refuse = |message: String| Err(StoreError::Refused { statement: "append", source: message.into() });
    if append.events.is_empty() {
        return refuse(format!("{} was given no events to append", append.aggregate));
    }
    if append.events.iter().any(|event| event.channels == Routing::ByType) {
        return refuse(
            "nobody has said which channels take the events; name them, or Routing::Nowhere".to_owned(),
        );
    }
    if append.state_changes.iter().any(|change| change.event_index >= append.events.len()) {
        return refuse("a state change names an event that is not in the append".to_owned());
    }
    let columns = |table: &Table| table.written_columns().count();
    let routed: usize = append.events.iter().map(|event| event.channels.channels().len()).sum();
    let values = append.events.len() * (columns(&DOMAIN_EVENTS) + columns(&EVENT_PENDING))
        + append.state_changes.len() * columns(&STATE_EVENTS)
        + routed * columns(&EVENT_OUTBOX)
        + columns(&AGGREGATES)
        + columns(&TIMERS)
        + columns(&COMMAND_BOX);
    if values > MAX_VALUES {
        return Err(StoreError::AppendTooLarge { events: append.events.len(), values, limit: MAX_VALUES });
    }
    Ok(())
}

fn conflict(append: &Append) -> StoreError {
    StoreError::VersionConflict { aggregate: append.aggregate.clone(), expected: append.expected }
}

/// What a duplicate key in a table means.
fn duplicate(fault: SqlFault, table: &str, append: &Append, record: Option<&CommandRecord>) -> StoreError {
    match (fault, table) {
        (SqlFault::Unique { .. }, "command_box") => {
            let unknown = || CommandId::from_stored("(none)");
            StoreError::DuplicateCommand(
                record.map_or_else(unknown, |record| record.command.command_id.clone()),
            )
        }
        (SqlFault::Unique { .. }, "domain_events") => StoreError::DuplicateEvent(append.aggregate.clone()),
        (SqlFault::Unique { .. }, "aggregates") => conflict(append),
        (fault, _) => fault.into(),
    }
}
