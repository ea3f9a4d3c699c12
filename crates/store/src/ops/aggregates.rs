//! Reading aggregates, their events, their history, and flows.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::envelope::RecordedEvent;
use towpath_core::ids::{AggregateKey, CommandId, CorrelationId, EventId, TenantId, Version};
use towpath_core::ports::store::{
    AggregateRow, Aggregates, Append, AppendedTogether, Expected, Flow, Loaded, StateEvent, StoreError,
    StoreResult,
};

use crate::bounded::how_many_fit;
use crate::rows::{read_aggregate, read_command, read_recorded_event, read_state_event, select_list};
use crate::schema::{AGGREGATES, COMMAND_BOX, DOMAIN_EVENTS, STATE_EVENTS, STATUS_VALUES, Table};
use crate::sql::{Row, Session, SqlFault, values};
use crate::store::{SqlStore, listing, reading, writing_once};

#[async_trait]
impl Aggregates for SqlStore {
    async fn events_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> StoreResult<Vec<RecordedEvent>> {
        reading!(self, events_of, aggregate, after, limit)
    }

    async fn events_of_within(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>> {
        reading!(self, events_of_within, aggregate, after, limit, bytes)
    }

    async fn appended_with(&self, event_id: EventId) -> StoreResult<Option<AppendedTogether>> {
        reading!(self, super::changes::appended_with, event_id)
    }

    async fn history_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> StoreResult<Vec<StateEvent>> {
        reading!(self, history_of, aggregate, after, limit)
    }

    async fn last_state_change(&self, aggregate: &AggregateKey) -> StoreResult<Option<StateEvent>> {
        reading!(self, last_state_change, aggregate)
    }

    async fn flow(&self, correlation: &CorrelationId, limit: u32) -> StoreResult<Flow> {
        listing!(self, flow, correlation, limit)
    }

    async fn set_status(
        &self,
        aggregate: &AggregateKey,
        status: &str,
        reason: Option<&str>,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        writing_once!(self, set_status, aggregate, status, reason, now)
    }

    async fn add_status_value(&self, tenant: &TenantId, value: &str) -> StoreResult<()> {
        writing_once!(self, add_status_value, tenant, value)
    }
}

/// An aggregate and a command in one round trip.
pub(crate) async fn load(
    session: &mut Session<'_>,
    aggregate: &AggregateKey,
    command: Option<&CommandId>,
) -> StoreResult<Loaded> {
    let mut keys = values![aggregate.kind.as_str(), aggregate.id.as_str()];
    let mut columns = select_list(&AGGREGATES, "a", "a_");
    let mut from = "FROM (SELECT 1 AS one) AS one \
         LEFT JOIN aggregates a ON a.aggregate_kind = ? AND a.aggregate_id = ?"
        .to_owned();
    if let Some(command) = command {
        columns = format!("{columns}, {}", select_list(&COMMAND_BOX, "c", "c_"));
        from.push_str(" LEFT JOIN command_box c ON c.command_id = ?");
        keys.extend(values![command.as_str()]);
    }
    let Some(row) = session.row("load", &format!("SELECT {columns} {from}"), keys).await? else {
        return Ok(Loaded::default());
    };
    Ok(Loaded {
        aggregate: read_aggregate(&row, "a_")?,
        command: if command.is_some() { read_command(&row, "c_")? } else { None },
    })
}

async fn events_of(
    session: &mut Session<'_>,
    aggregate: &AggregateKey,
    after: Version,
    limit: u32,
) -> StoreResult<Vec<RecordedEvent>> {
    let sql = format!(
        "SELECT p.position, {} FROM domain_events e LEFT JOIN event_positions p ON p.event_id = e.event_id \
         WHERE e.aggregate_kind = ? AND e.aggregate_id = ? AND e.aggregate_version > ? \
         ORDER BY e.aggregate_version LIMIT {limit}",
        select_list(&DOMAIN_EVENTS, "e", "")
    );
    let keys = values![aggregate.kind.as_str(), aggregate.id.as_str(), after];
    session.rows("events.of", &sql, keys).await?.iter().map(read_recorded_event).collect()
}

pub(crate) async fn events_of_within(
    session: &mut Session<'_>,
    aggregate: &AggregateKey,
    after: Version,
    limit: u32,
    bytes: u64,
) -> StoreResult<Vec<RecordedEvent>> {
    let sql = format!(
        "SELECT CAST(OCTET_LENGTH(e.payload) AS {}) AS bytes FROM domain_events e \
         WHERE e.aggregate_kind = ? AND e.aggregate_id = ? AND e.aggregate_version > ? \
         ORDER BY e.aggregate_version LIMIT {limit}",
        session.dialect().integer_cast()
    );
    let keys = values![aggregate.kind.as_str(), aggregate.id.as_str(), after];
    let sizes = sizes(&session.rows("events.sizes", &sql, keys).await?)?;
    match u32::try_from(how_many_fit(sizes, bytes)).unwrap_or(limit) {
        0 => Ok(Vec::new()),
        fit => events_of(session, aggregate, after, fit).await,
    }
}

fn sizes(rows: &[Row]) -> StoreResult<Vec<u64>> {
    rows.iter().map(|row| row.count("bytes")).collect()
}

async fn history_of(
    session: &mut Session<'_>,
    aggregate: &AggregateKey,
    after: Version,
    limit: u32,
) -> StoreResult<Vec<StateEvent>> {
    let sql = format!(
        "SELECT {} FROM state_events s WHERE s.aggregate_kind = ? AND s.aggregate_id = ? \
         AND s.aggregate_version > ? ORDER BY s.aggregate_version LIMIT {limit}",
        select_list(&STATE_EVENTS, "s", "")
    );
    let keys = values![aggregate.kind.as_str(), aggregate.id.as_str(), after];
    session.rows("history.of", &sql, keys).await?.iter().map(read_state_event).collect()
}

async fn last_state_change(
    session: &mut Session<'_>,
    aggregate: &AggregateKey,
) -> StoreResult<Option<StateEvent>> {
    let sql = format!(
        "SELECT {} FROM state_events s WHERE s.aggregate_kind = ? AND s.aggregate_id = ? \
         ORDER BY s.aggregate_version DESC LIMIT 1",
        select_list(&STATE_EVENTS, "s", "")
    );
    let keys = values![aggregate.kind.as_str(), aggregate.id.as_str()];
    session.row("history.last", &sql, keys).await?.as_ref().map(read_state_event).transpose()
}

/// How many bytes of payload a flow has at most, its commands and its events each. It is shown as a whole, so what is
/// beyond has to be left out.
const FLOW_BYTES: u64 = 8 << 20;

/// Everything of a flow. The largest payloads are left out where all of them would be too much.
async fn flow(session: &mut Session<'_>, correlation: &CorrelationId, limit: u32) -> StoreResult<Flow> {
    let mut flow = Flow::default();
    let from = format!(
        "FROM command_box c WHERE c.correlation_id = ? ORDER BY c.received_at, c.command_id LIMIT {limit}"
    );
    let (columns, of_commands) = payloads_that_fit(session, correlation, "c", &from, &COMMAND_BOX).await?;
    let sql = format!("SELECT {columns} {from}");
    for row in session.rows("flow.commands", &sql, values![correlation.as_str()]).await? {
        flow.commands.extend(read_command(&row, "")?);
    }
    let from = format!(
        "FROM domain_events e LEFT JOIN event_positions p ON p.event_id = e.event_id \
         WHERE e.correlation_id = ? ORDER BY e.occurred_at, e.aggregate_version, e.event_id LIMIT {limit}"
    );
    let (columns, of_events) = payloads_that_fit(session, correlation, "e", &from, &DOMAIN_EVENTS).await?;
    let sql = format!("SELECT p.position, {columns} {from}");
    for row in session.rows("flow.events", &sql, values![correlation.as_str()]).await? {
        flow.events.push(read_recorded_event(&row)?);
    }
    flow.payloads_up_to = [of_commands, of_events].into_iter().flatten().min();
    Ok(flow)
}

/// The columns of a table for rows of a flow, and up to which size payloads are among them: all, mostly.
async fn payloads_that_fit(
    session: &mut Session<'_>,
    correlation: &CorrelationId,
    alias: &str,
    from: &str,
    table: &Table,
) -> StoreResult<(String, Option<u64>)> {
    let columns = select_list(table, alias, "");
    let size = format!("CAST(OCTET_LENGTH({alias}.payload) AS {})", session.dialect().integer_cast());
    let sql = format!("SELECT {size} AS bytes {from}");
    let mut sizes = sizes(&session.rows("flow.sizes", &sql, values![correlation.as_str()]).await?)?;
    sizes.sort_unstable();
    let fit = how_many_fit(sizes.iter().copied(), FLOW_BYTES);
    if fit == sizes.len() {
        return Ok((columns, None));
    }
    // The small ones, as many as fit: those of the size at which it ends are in or out together.
    let up_to = sizes.get(fit).map_or(0, |first_left_out| first_left_out.saturating_sub(1));
    let payload = format!("CASE WHEN {size} <= {up_to} THEN {alias}.payload ELSE 'null' END AS payload");
    Ok((columns.replace(&format!("{alias}.payload AS payload"), &payload), Some(up_to)))
}

async fn set_status(
    session: &mut Session<'_>,
    aggregate: &AggregateKey,
    status: &str,
    reason: Option<&str>,
    now: DateTime<Utc>,
) -> StoreResult<()> {
    let sql = "UPDATE aggregates SET status = ?, status_changed_at = ?, status_reason = ?, status_message = NULL \
         WHERE aggregate_kind = ? AND aggregate_id = ?";
    let changed = values![status, now, reason, aggregate.kind.as_str(), aggregate.id.as_str()];
    match session.execute("status.set", sql, changed).await {
        Ok(0) => Err(StoreError::Missing { what: "aggregate", name: aggregate.to_string() }),
        Ok(_) => Ok(()),
        Err(SqlFault::ForeignKey(_)) => {
            let loaded = load(session, aggregate, None).await.ok().and_then(|loaded| loaded.aggregate);
            let tenant = loaded.and_then(|row| row.tenant_id);
            Err(StoreError::UnknownStatus {
                tenant: tenant.map_or_else(|| "(none)".to_owned(), |tenant| tenant.to_string()),
                value: status.to_owned(),
            })
        }
        Err(fault) => Err(fault.into()),
    }
}

async fn add_status_value(session: &mut Session<'_>, tenant: &TenantId, value: &str) -> StoreResult<()> {
    let sql = crate::rows::insert_sql(&STATUS_VALUES, 1);
    match session.execute("status.add", &sql, values![tenant.as_str(), value]).await {
        Ok(_) | Err(SqlFault::Unique { .. }) => Ok(()),
        Err(fault) => Err(fault.into()),
    }
}

/// The row of the aggregate that facts are to be appended to, which is then locked. One that must not exist is only looked
/// for: there is nothing to lock.
pub(crate) async fn lock_aggregate(
    session: &mut Session<'_>,
    append: &Append,
) -> StoreResult<Option<AggregateRow>> {
    let lock = match append.expected {
        Expected::New => "",
        Expected::Exactly(_) | Expected::Any => session.dialect().for_update(),
    };
    find_aggregate(session, &append.aggregate, lock).await
}

/// The row of an aggregate, with what locks it.
pub(crate) async fn find_aggregate(
    session: &mut Session<'_>,
    aggregate: &AggregateKey,
    lock: &str,
) -> StoreResult<Option<AggregateRow>> {
    let sql = format!(
        "SELECT {} FROM aggregates a WHERE a.aggregate_kind = ? AND a.aggregate_id = ? {lock}",
        select_list(&AGGREGATES, "a", "")
    );
    let key = values![aggregate.kind.as_str(), aggregate.id.as_str()];
    match session.row("append.current", &sql, key).await? {
        Some(row) => read_aggregate(&row, ""),
        None => Ok(None),
    }
}
