//! Rows: how the contract's values become columns and how columns become values again.
//!
//! One writer and one reader per table, for all three databases. The order of a writer's values is the order of
//! the table's declaration in `schema.rs`.

use std::time::Duration;

use base64::Engine as _;
use chrono::{DateTime, Utc};
use towpath_core::envelope::{ChangeContext, EventEnvelope, RecordedEvent};
use towpath_core::ids::{
    ActorId, AggregateId, AggregateKey, AggregateKind, CausationId, ChannelName, CommandId, CorrelationId,
    EventId, HandlerName, Lane, LeaseName, RequestId, TaskId, TaskKey, TaskTypeName, TenantId, TraceId,
    Version,
};
use towpath_core::letters::{Letter, NewLetter};
use towpath_core::lifecycle::{CommandStatus, OutboxStatus, TaskState};
use towpath_core::name::{CommandName, EventName};
use towpath_core::payload::Payload;
use towpath_core::ports::broker::{DeliveryTag, Destination, Queue, Received};
use towpath_core::ports::queues::{Parcel, TakenMessage};
use towpath_core::ports::store::{
    AggregateRow, Append, ChannelRow, Claim, CommandRecord, CommandResult, Disabled, InboxEntry, NewCommand,
    NewEvent, NewTask, NewTimer, OutboxRow, Snapshot, StateChange, StateEvent, StoreError, StoreResult, Task,
    Timer,
};
use towpath_core::task::TaskType;

use crate::ops::leases::micros;
use crate::schema::Table;
use crate::sql::{Row, Value, code, readable, unreadable, values};

/// `a.version AS a_version, …` for all columns of a table, so that two tables fit in one row.
pub(crate) fn select_list(table: &Table, alias: &str, prefix: &str) -> String {
    let columns: Vec<String> =
        table.columns.iter().map(|column| format!("{alias}.{0} AS {prefix}{0}", column.name)).collect();
    columns.join(", ")
}

/// The same without reading columns that are large and not shown: each has something else in its place.
pub(crate) fn select_list_instead(table: &Table, alias: &str, instead: &[(&str, &str)]) -> String {
    let columns: Vec<String> = table
        .columns
        .iter()
        .map(|column| match instead.iter().find(|(name, _)| *name == column.name) {
            Some((name, value)) => format!("{value} AS {name}"),
            None => format!("{alias}.{0} AS {0}", column.name),
        })
        .collect();
    columns.join(", ")
}

/// `INSERT INTO table (…) VALUES (…), (…)` for so many rows.
pub(crate) fn insert_sql(table: &Table, rows: usize) -> String {
    let (names, marks) = names_and_marks(table);
    let rows: Vec<String> = (0..rows).map(|_| format!("({marks})")).collect();
    format!("INSERT INTO {} ({names}) VALUES {}", table.name, rows.join(", "))
}

/// The same, writing only if `gate` (a WITH query) has a row.
pub(crate) fn gated_insert_sql(table: &Table, rows: usize, gate: &str) -> String {
    let (names, marks) = names_and_marks(table);
    if rows == 1 {
        return format!("INSERT INTO {} ({names}) SELECT {marks} FROM {gate}", table.name);
    }
    // A list of values and not a SELECT for each row: planning those takes half a second for 500 rows.
    let rows = vec![format!("({marks})"); rows].join(", ");
    format!("INSERT INTO {} ({names}) SELECT rows.* FROM {gate}, (VALUES {rows}) AS rows", table.name)
}

/// The columns that an insert writes, and a placeholder for each.
pub(crate) fn names_and_marks(table: &Table) -> (String, String) {
    let names: Vec<&str> = table.written_columns().map(|column| column.name).collect();
    (names.join(", "), vec!["?"; names.len()].join(", "))
}

/// Text columns of an optional identity.
macro_rules! text {
    ($id:expr) => {
        $id.as_ref().map(|id| id.as_str())
    };
}

/// A row of `aggregates` that begins.
pub(crate) fn aggregate_values(append: &Append, version: Version) -> Vec<Value<'_>> {
    let last = append.state_changes.last();
    let at = append.context.occurred_at;
    values![
        append.aggregate.kind.as_str(),
        append.aggregate.id.as_str(),
        version,
        append.snapshot.as_ref().map(|snapshot| snapshot.data.as_text()),
        append.snapshot.as_ref().map(|snapshot| i64::from(snapshot.version)),
        last.map(|change| change.to.as_str()),
        last.map(|_| at),
        last.and_then(|change| change.reason.as_deref()).map(code),
        last.and_then(|change| change.message.as_deref()).map(readable),
        None::<&str>,
        None::<chrono::DateTime<chrono::Utc>>,
        None::<&str>,
        None::<&str>,
        append.context.tenant_id.as_ref().map_or("", |tenant| tenant.as_str()),
        at,
        at,
    ]
}

/// The columns of `aggregates` that an append changes, with their values.
pub(crate) fn aggregate_changes(append: &Append) -> (Vec<&'static str>, Vec<Value<'_>>) {
    let mut columns = vec!["updated_at"];
    let mut changed = values![append.context.occurred_at];
    // What was folded up to an earlier version must not be taken for the state at this one.
    columns.extend(["snapshot", "snapshot_version"]);
    changed.extend(values![
        append.snapshot.as_ref().map(|snapshot| snapshot.data.as_text()),
        append.snapshot.as_ref().map(|snapshot| i64::from(snapshot.version))
    ]);
    if let Some(change) = append.state_changes.last() {
        columns.extend(["state", "state_changed_at", "state_reason", "state_message"]);
        changed.extend(values![
            change.to.as_str(),
            append.context.occurred_at,
            change.reason.as_deref().map(code),
            change.message.as_deref().map(readable)
        ]);
    }
    (columns, changed)
}

pub(crate) fn read_aggregate(row: &Row, prefix: &str) -> StoreResult<Option<AggregateRow>> {
    let name = |column: &str| format!("{prefix}{column}");
    let Some(kind) = row.text_or_null(&name("aggregate_kind"))? else { return Ok(None) };
    let snapshot = match (row.text_or_null(&name("snapshot"))?, row.long_or_null(&name("snapshot_version"))?)
    {
        (Some(data), Some(version)) => Some(Snapshot {
            data: stored_payload("snapshot", data)?,
            version: u16::try_from(version).map_err(|error| unreadable("snapshot_version", error))?,
        }),
        _ => None,
    };
    let tenant = row.text(&name("tenant_id"))?;
    Ok(Some(AggregateRow {
        aggregate: AggregateKey {
            kind: AggregateKind::from_stored(kind),
            id: AggregateId::from_stored(row.text(&name("aggregate_id"))?),
        },
        version: row.count(&name("version"))?,
        snapshot,
        state: row.text_or_null(&name("state"))?,
        state_changed_at: row.time_or_null(&name("state_changed_at"))?,
        state_reason: row.text_or_null(&name("state_reason"))?,
        state_message: row.text_or_null(&name("state_message"))?,
        status: row.text_or_null(&name("status"))?,
        tenant_id: (!tenant.is_empty()).then(|| TenantId::from_stored(tenant)),
        created_at: row.time(&name("created_at"))?,
        updated_at: row.time(&name("updated_at"))?,
    }))
}

/// A row of `domain_events`.
pub(crate) fn event_values<'a>(append: &'a Append, event: &'a NewEvent, version: Version) -> Vec<Value<'a>> {
    let context = &append.context;
    values![
        event.event_id.0,
        append.aggregate.kind.as_str(),
        append.aggregate.id.as_str(),
        version,
        event.event_type.as_str(),
        event.schema_version,
        event.payload.as_text(),
        context.correlation_id.as_str(),
        text!(context.causation_id),
        text!(context.trace_id),
        text!(context.actor_id),
        text!(context.tenant_id),
        context.occurred_at,
    ]
}

pub(crate) fn read_event(row: &Row) -> StoreResult<EventEnvelope> {
    Ok(EventEnvelope {
        event_id: EventId(row.uuid("event_id")?),
        event_type: EventName::from_stored(row.text("event_type")?),
        schema_version: u16::try_from(row.small("schema_version")?)
            .map_err(|error| unreadable("schema_version", error))?,
        aggregate: read_key(row)?,
        aggregate_version: row.count("aggregate_version")?,
        occurred_at: row.time("occurred_at")?,
        correlation_id: CorrelationId::from_stored(row.text("correlation_id")?),
        causation_id: row.text_or_null("causation_id")?.map(CausationId::from_stored),
        trace_id: row.text_or_null("trace_id")?.map(TraceId::from_stored),
        actor_id: row.text_or_null("actor_id")?.map(ActorId::from_stored),
        tenant_id: row.text_or_null("tenant_id")?.map(TenantId::from_stored),
        payload: stored_payload("payload", row.text("payload")?)?,
    })
}

/// An event with its position, if it has one.
pub(crate) fn read_recorded_event(row: &Row) -> StoreResult<RecordedEvent> {
    let position = row.long_or_null("position")?.map(u64::try_from).transpose();
    Ok(RecordedEvent {
        position: position.map_err(|error| unreadable("position", error))?,
        envelope: read_event(row)?,
    })
}

/// A row of `state_events`.
pub(crate) fn state_event_values<'a>(
    append: &'a Append,
    change: &'a StateChange,
    event: &'a NewEvent,
    version: Version,
) -> Vec<Value<'a>> {
    let context = &append.context;
    values![
        append.aggregate.kind.as_str(),
        append.aggregate.id.as_str(),
        version,
        event.event_id.0,
        change.from.as_deref(),
        change.to.as_str(),
        change.reason.as_deref().map(code),
        change.message.as_deref().map(readable),
        text!(context.actor_id),
        text!(context.request_id),
        text!(context.trace_id),
        context.occurred_at,
    ]
}

pub(crate) fn read_state_event(row: &Row) -> StoreResult<StateEvent> {
    Ok(StateEvent {
        aggregate: read_key(row)?,
        aggregate_version: row.count("aggregate_version")?,
        event_id: EventId(row.uuid("event_id")?),
        from_state: row.text_or_null("from_state")?,
        to_state: row.text("to_state")?,
        reason: row.text_or_null("reason")?,
        message: row.text_or_null("message")?,
        actor_id: row.text_or_null("actor_id")?.map(ActorId::from_stored),
        request_id: row.text_or_null("request_id")?.map(RequestId::from_stored),
        trace_id: row.text_or_null("trace_id")?.map(TraceId::from_stored),
        created_at: row.time("created_at")?,
    })
}

/// A row of `event_outbox` that begins.
pub(crate) fn outbox_values<'a>(
    append: &'a Append,
    event: &'a NewEvent,
    channel: &'a ChannelName,
) -> Vec<Value<'a>> {
    restored_outbox_values(
        &append.aggregate,
        event.event_id,
        channel,
        OutboxStatus::New,
        append.context.occurred_at,
    )
}

/// The row of an event that is written already.
pub(crate) fn restored_outbox_values<'a>(
    aggregate: &AggregateKey,
    event_id: EventId,
    channel: &'a ChannelName,
    status: OutboxStatus,
    since: chrono::DateTime<chrono::Utc>,
) -> Vec<Value<'a>> {
    let lane = aggregate.lane();
    values![
        channel.as_str(),
        event_id.0,
        lane.to_stored(),
        lane.partition(),
        status.as_str(),
        since,
        None::<&str>,
        None::<&str>,
        0_u32,
        None::<chrono::DateTime<chrono::Utc>>,
        None::<chrono::DateTime<chrono::Utc>>,
    ]
}

pub(crate) fn read_outbox(row: &Row) -> StoreResult<OutboxRow> {
    Ok(OutboxRow {
        outbox_id: row.count("outbox_id")?,
        channel: ChannelName::from_stored(row.text("channel")?),
        event_id: EventId(row.uuid("event_id")?),
        lane: Lane::from_stored(row.long("lane")?),
        status: stored(row, "status")?,
        status_changed_at: row.time("status_changed_at")?,
        status_reason: row.text_or_null("status_reason")?,
        status_message: row.text_or_null("status_message")?,
        retry_count: row.small("retry_count")?,
        next_retry_at: row.time_or_null("next_retry_at")?,
        parked_at: row.time_or_null("parked_at")?,
    })
}

/// A row of `command_box`.
pub(crate) fn command_values(record: &CommandRecord) -> Vec<Value<'_>> {
    let NewCommand { command_id, command_type, aggregate, payload, context } = &record.command;
    values![
        command_id.as_str(),
        command_type.as_str(),
        aggregate.kind.as_str(),
        aggregate.id.as_str(),
        payload.as_text(),
        context.correlation_id.as_str(),
        text!(context.causation_id),
        text!(context.trace_id),
        text!(context.request_id),
        text!(context.actor_id),
        text!(context.tenant_id),
        context.occurred_at,
        record.status.as_str(),
        record.status_changed_at,
        record.status_reason.as_deref().map(code),
        record.status_message.as_deref().map(readable),
        record.retry_count,
        0_u32,
        record.next_retry_at,
        record.claim.as_ref().map(|claim| claim.lease.as_str()),
        record.claim.as_ref().map(|claim| claim.epoch.cast_signed()),
        record.started_at,
        record.finished_at,
        record.result.map(|result| result.aggregate_version.cast_signed()),
        record.result.map(|result| i64::from(result.event_count)),
    ]
}

pub(crate) fn read_command(row: &Row, prefix: &str) -> StoreResult<Option<CommandRecord>> {
    let name = |column: &str| format!("{prefix}{column}");
    let Some(command_id) = row.text_or_null(&name("command_id"))? else { return Ok(None) };
    let claim = match (row.text_or_null(&name("claimed_by_id"))?, row.long_or_null(&name("claimed_epoch"))?) {
        (Some(lease), Some(epoch)) => {
            Some(Claim { lease: LeaseName::from_stored(lease), epoch: epoch.cast_unsigned() })
        }
        _ => None,
    };
    let status = stored::<CommandStatus>(row, &name("status"))?;
    let result = match row.long_or_null(&name("aggregate_version"))? {
        Some(version) => Some(CommandResult {
            aggregate_version: version.cast_unsigned(),
            event_count: row.small(&name("event_count"))?,
        }),
        None => None,
    };
    Ok(Some(CommandRecord {
        command: NewCommand {
            command_id: CommandId::from_stored(command_id),
            command_type: CommandName::from_stored(row.text(&name("command_type"))?),
            aggregate: AggregateKey {
                kind: AggregateKind::from_stored(row.text(&name("aggregate_kind"))?),
                id: AggregateId::from_stored(row.text(&name("aggregate_id"))?),
            },
            payload: stored_payload("payload", row.text(&name("payload"))?)?,
            context: ChangeContext {
                occurred_at: row.time(&name("received_at"))?,
                correlation_id: CorrelationId::from_stored(row.text(&name("correlation_id"))?),
                causation_id: row.text_or_null(&name("causation_id"))?.map(CausationId::from_stored),
                trace_id: row.text_or_null(&name("trace_id"))?.map(TraceId::from_stored),
                request_id: row.text_or_null(&name("request_id"))?.map(RequestId::from_stored),
                actor_id: row.text_or_null(&name("actor_id"))?.map(ActorId::from_stored),
                tenant_id: row.text_or_null(&name("tenant_id"))?.map(TenantId::from_stored),
            },
        },
        status,
        status_changed_at: row.time(&name("status_changed_at"))?,
        status_reason: row.text_or_null(&name("status_reason"))?,
        status_message: row.text_or_null(&name("status_message"))?,
        retry_count: row.small(&name("retry_count"))?,
        // For a PENDING command the column says when a worker may take it, which is no retry.
        next_retry_at: row.time_or_null(&name("next_retry_at"))?.filter(|_| status == CommandStatus::Failed),
        claim,
        started_at: row.time_or_null(&name("started_at"))?,
        finished_at: row.time_or_null(&name("finished_at"))?,
        result,
    }))
}

/// A row of `timers` that begins.
pub(crate) fn timer_values(timer: &NewTimer) -> Vec<Value<'_>> {
    let never = None::<chrono::DateTime<chrono::Utc>>;
    values![
        timer.timer_id,
        timer.due_at,
        timer.command_type.as_str(),
        timer.aggregate.kind.as_str(),
        timer.aggregate.id.as_str(),
        timer.payload.as_text(),
        timer.correlation_id.as_str(),
        text!(timer.causation_id),
        timer.entered_by.map(|event| event.0),
        timer.created_at,
        TaskState::Pending.as_str(),
        timer.created_at,
        None::<&str>,
        None::<&str>,
        never,
        never,
        never,
        None::<&str>,
        None::<&str>,
        0_u32,
        None::<&str>,
        None::<i64>,
    ]
}

pub(crate) fn read_timer(row: &Row) -> StoreResult<Timer> {
    Ok(Timer {
        timer: NewTimer {
            timer_id: row.uuid("timer_id")?,
            due_at: row.time("due_at")?,
            command_type: CommandName::from_stored(row.text("command_type")?),
            aggregate: read_key(row)?,
            payload: stored_payload("payload", row.text("payload")?)?,
            correlation_id: CorrelationId::from_stored(row.text("correlation_id")?),
            causation_id: row.text_or_null("causation_id")?.map(CausationId::from_stored),
            entered_by: row.uuid_or_null("entered_by_id")?.map(EventId),
            created_at: row.time("created_at")?,
        },
        state: stored(row, "state")?,
        retry_count: row.small("retry_count")?,
        error_code: row.text_or_null("error_code")?,
        error_message: row.text_or_null("error_message")?,
    })
}

/// The columns of `task_box` that one which begins has values for. The moments of the beginning follow.
pub(crate) const TASK_COLUMNS: [&str; 14] = [
    "task_id",
    "task_type",
    "unique_key",
    "priority",
    "payload",
    "time_limit_micros",
    "heartbeat_micros",
    "subject_kind",
    "subject_id",
    "correlation_id",
    "causation_id",
    "trace_id",
    "due_at",
    "status",
];

/// A row of `task_box` that begins.
pub(crate) fn task_values(task: &NewTask) -> Vec<Value<'_>> {
    let status = if task.not_before.is_some() { TaskState::Pending } else { TaskState::Queued };
    values![
        task.task_id.0,
        task.task_type.as_str(),
        text!(task.unique_key),
        task.priority,
        task.payload.as_text(),
        task.time_limit.map(|limit| micros(limit.min(TaskType::LONGEST))),
        micros(task.heartbeat.min(TaskType::LONGEST)),
        task.subject.as_ref().map(|subject| subject.kind.as_str()),
        task.subject.as_ref().map(|subject| subject.id.as_str()),
        task.correlation_id.as_str(),
        text!(task.causation_id),
        text!(task.trace_id),
        task.not_before,
        status.as_str(),
    ]
}

pub(crate) fn read_task(row: &Row) -> StoreResult<Task> {
    let subject = match (row.text_or_null("subject_kind")?, row.text_or_null("subject_id")?) {
        (Some(kind), Some(id)) => Some(AggregateKey::from_stored(kind, id)),
        _ => None,
    };
    let result = row.text_or_null("result")?;
    let duration = |micros: i64| Duration::from_micros(micros.unsigned_abs());
    Ok(Task {
        task: NewTask {
            task_id: TaskId(row.uuid("task_id")?),
            task_type: TaskTypeName::from_stored(row.text("task_type")?),
            unique_key: row.text_or_null("unique_key")?.map(TaskKey::from_stored),
            priority: row.long("priority")?,
            not_before: row.time_or_null("due_at")?,
            payload: stored_payload("payload", row.text("payload")?)?,
            time_limit: row.long_or_null("time_limit_micros")?.map(duration),
            heartbeat: duration(row.long("heartbeat_micros")?),
            subject,
            correlation_id: CorrelationId::from_stored(row.text("correlation_id")?),
            causation_id: row.text_or_null("causation_id")?.map(CausationId::from_stored),
            trace_id: row.text_or_null("trace_id")?.map(TraceId::from_stored),
        },
        status: stored(row, "status")?,
        status_changed_at: row.time("status_changed_at")?,
        status_reason: row.text_or_null("status_reason")?,
        status_message: row.text_or_null("status_message")?,
        started_at: row.time_or_null("started_at")?,
        finished_at: row.time_or_null("finished_at")?,
        failed_at: row.time_or_null("failed_at")?,
        error_code: row.text_or_null("error_code")?,
        error_message: row.text_or_null("error_message")?,
        retry_count: row.count("retry_count")?,
        result: result.map(|text| stored_payload("result", text)).transpose()?,
        epoch: row.count("epoch")?,
        worker: row.text_or_null("worker")?,
        heartbeat_due_at: row.time_or_null("heartbeat_due_at")?,
        attempt_due_at: row.time_or_null("attempt_due_at")?,
        cancel_requested_at: row.time_or_null("cancel_requested_at")?,
        created_at: row.time("created_at")?,
    })
}

pub(crate) fn read_inbox(row: &Row) -> StoreResult<InboxEntry> {
    Ok(InboxEntry {
        event_id: EventId(row.uuid("event_id")?),
        handler: HandlerName::from_stored(row.text("handler")?),
        status: stored(row, "status")?,
        retry_count: row.small("retry_count")?,
        status_reason: row.text_or_null("status_reason")?,
        status_message: row.text_or_null("status_message")?,
    })
}

/// Whether every database can write this moment down. A sender that gives milliseconds where seconds are meant is in the
/// year 56,000.
fn is_storable(moment: &chrono::DateTime<chrono::Utc>) -> bool {
    use chrono::Datelike as _;

    (1000..=9999).contains(&moment.year())
}

/// In place of a body that the database would not take.
fn body_in_short(body: &[u8]) -> String {
    use sha2::Digest as _;

    let hash: String = sha2::Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    format!(r#"{{"bytes":{},"sha256":"{hash}"}}"#, body.len())
}

/// A row of `dead_letters` that begins: what was set aside. Status, reason, message, failures, due time and death key
/// follow in the order of the declaration.
pub(crate) fn letter_values<'a>(
    letter: &'a NewLetter,
    status: [Value<'a>; 6],
    death_key: Option<&'a str>,
    with_body: bool,
) -> Vec<Value<'a>> {
    let message = &letter.message;
    let (body, encoding) =
        if with_body { body_to_stored(&message.body) } else { (body_in_short(&message.body), IN_SHORT) };
    let [status, changed_at, reason, text, retry_count, due_at] = status;
    let mut row = values![
        text!(letter.handler),
        letter.event_id.map(|id| id.0),
        letter.lane.to_stored(),
        cut(&message.queue),
        message.message_id.as_deref().map(readable),
        message.message_type.as_deref().map(cut),
        message.key.as_deref().map(readable),
        message.occurred_at.filter(is_storable),
        message.content_type.as_deref().map(readable),
        readable(&message.destination.exchange),
        readable(&message.destination.routing_key),
        headers_to_stored(&message.headers),
        body,
        encoding,
        None::<&str>,
        letter.received_at,
    ];
    row.extend([status, changed_at, reason, text, retry_count, due_at]);
    row.extend(values![None::<chrono::DateTime<chrono::Utc>>, None::<&str>, death_key]);
    row
}

pub(crate) fn read_letter(row: &Row) -> StoreResult<Letter> {
    let encoding = row.text("body_encoding")?;
    let body = body_from_stored("body", row.text("body")?, &encoding)?;
    let original_body = match row.text_or_null("original_body")? {
        // What was there before is kept in the same encoding.
        Some(original) => Some(body_from_stored("original_body", original, BASE64)?),
        None => None,
    };
    let headers = row.text("headers")?;
    Ok(Letter {
        letter_id: row.count("dead_letter_id")?,
        letter: NewLetter {
            handler: row.text_or_null("handler")?.map(HandlerName::from_stored),
            event_id: row.uuid_or_null("event_id")?.map(EventId),
            lane: Lane::from_stored(row.long("lane")?),
            message: Received {
                tag: DeliveryTag(0),
                queue: row.text("queue")?,
                message_id: row.text_or_null("message_id")?,
                message_type: row.text_or_null("message_type")?,
                occurred_at: row.time_or_null("occurred_at")?,
                key: row.text_or_null("message_key")?,
                content_type: row.text_or_null("content_type")?,
                destination: Destination {
                    exchange: row.text("exchange")?,
                    routing_key: row.text("routing_key")?,
                },
                headers: serde_json::from_str::<Vec<_>>(&headers)
                    .map_err(|error| unreadable("headers", error))?
                    .into(),
                redelivered: true,
                body,
            },
            received_at: row.time("received_at")?,
        },
        status: stored(row, "status")?,
        status_changed_at: row.time("status_changed_at")?,
        status_reason: row.text_or_null("status_reason")?,
        status_message: row.text_or_null("status_message")?,
        retry_count: row.small("retry_count")?,
        due_at: row.time_or_null("due_at")?,
        replayed_at: row.time_or_null("replayed_at")?,
        body_kept: encoding != IN_SHORT,
        original_body,
        changed_by_id: row.text_or_null("changed_by_id")?.map(ActorId::from_stored),
    })
}

const BASE64: &str = "base64";

/// How a body is kept that the database would not take: by its size and hash.
const IN_SHORT: &str = "sha256";

/// A body as a text column keeps it, and how.
pub(crate) fn body_to_stored(body: &[u8]) -> (String, &'static str) {
    match std::str::from_utf8(body) {
        // PostgreSQL has no NUL in a text.
        Ok(text) if !text.contains('\0') => (text.to_owned(), "text"),
        _ => (body_in_base64(body), BASE64),
    }
}

/// A body of any kind.
pub(crate) fn body_in_base64(body: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(body)
}

fn body_from_stored(what: &str, text: String, encoding: &str) -> StoreResult<Vec<u8>> {
    if encoding != BASE64 {
        return Ok(text.into_bytes());
    }
    base64::engine::general_purpose::STANDARD.decode(text).map_err(|error| unreadable(what, error))
}

/// Texts in a list always have a JSON form.
fn headers_to_stored(headers: &[(String, String)]) -> String {
    serde_json::to_string(headers).unwrap_or_else(|_| "[]".to_owned())
}

/// A name from outside, cut to what its column holds.
fn cut(text: &str) -> String {
    readable(text).chars().take(255).collect()
}

pub(crate) fn read_channel(row: &Row) -> StoreResult<ChannelRow> {
    let disabled = match row.time_or_null("disabled_at")? {
        Some(at) => Some(Disabled {
            at,
            by_id: row.text_or_null("disabled_by_id")?.map(ActorId::from_stored),
            reason: row.text_or_null("disabled_reason")?.unwrap_or_default(),
            message: row.text_or_null("disabled_message")?,
        }),
        None => None,
    };
    Ok(ChannelRow {
        channel_id: row.uuid("channel_id")?,
        name: ChannelName::from_stored(row.text("name")?),
        position: row.count("position")?,
        reset_count: row.count("reset_count")?,
        disabled,
    })
}

/// A row of `local_messages` that begins.
pub(crate) fn local_message_values<'a>(
    parcel: &Parcel<'a>,
    now: DateTime<Utc>,
    available_at: Option<DateTime<Utc>>,
) -> StoreResult<Vec<Value<'a>>> {
    let (message, placement) = (parcel.message, parcel.placement);
    Ok(values![
        placement.queue.as_str(),
        message.message_id.as_str(),
        message.message_type.as_str(),
        message.key.as_str(),
        message.occurred_at,
        message.occurred_at.timestamp_subsec_nanos() % NANOS_IN_A_MICRO,
        message.content_type.as_str(),
        placement.destination.exchange.as_str(),
        placement.destination.routing_key.as_str(),
        headers_text(&placement.headers)?,
        message.body.as_slice(),
        now,
        available_at,
        0_u32,
        None::<&str>,
        None::<i64>,
    ])
}

/// A message that was just taken.
pub(crate) fn read_local_message(row: &Row) -> StoreResult<TakenMessage> {
    let nanos = row.small("occurred_nanos")? % NANOS_IN_A_MICRO;
    let headers = row.text("headers")?;
    Ok(TakenMessage {
        place: row.count("local_message_id")?,
        earlier_deliveries: row.small("delivery_count")?.saturating_sub(1),
        message_id: row.text("message_id")?,
        message_type: row.text("message_type")?,
        key: row.text("message_key")?,
        occurred_at: row.time("occurred_at")? + chrono::Duration::nanoseconds(i64::from(nanos)),
        content_type: row.text("content_type")?,
        destination: Destination { exchange: row.text("exchange")?, routing_key: row.text("routing_key")? },
        headers: serde_json::from_str(&headers).map_err(|error| unreadable("headers", error))?,
        body: row.bytes("body")?,
    })
}

/// Headers in their order: a list of pairs, not an object.
pub(crate) fn headers_text(headers: &[(String, String)]) -> StoreResult<String> {
    serde_json::to_string(headers).map_err(|error| unreadable("headers", error))
}

const NANOS_IN_A_MICRO: u32 = 1000;

pub(crate) fn read_local_queue(row: &Row) -> StoreResult<Queue> {
    let arguments = row.text("arguments")?;
    let arguments = serde_json::from_str(&arguments).map_err(|error| unreadable("arguments", error))?;
    Ok(Queue { name: row.text("name")?, arguments })
}

/// A status or state as its enum.
pub(crate) fn stored<S>(row: &Row, column: &str) -> StoreResult<S>
where
    S: std::str::FromStr,
    S::Err: std::error::Error + Send + Sync + 'static,
{
    row.text(column)?.parse().map_err(|error: S::Err| unreadable(column, error))
}

pub(crate) fn read_key(row: &Row) -> StoreResult<AggregateKey> {
    Ok(AggregateKey {
        kind: AggregateKind::from_stored(row.text("aggregate_kind")?),
        id: AggregateId::from_stored(row.text("aggregate_id")?),
    })
}

fn stored_payload(what: &str, text: String) -> Result<Payload, StoreError> {
    Payload::from_text(text).map_err(|error| unreadable(what, error))
}
