//! What operators look through, page by page: each page is read from an index, whatever lies before and behind it.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{AggregateId, AggregateKey, AggregateKind, CommandId, CorrelationId};
use towpath_core::lifecycle::{CommandStatus, OutboxStatus};
use towpath_core::ports::store::{
    AggregateRow, COMMANDS_BYTES, CommandRecord, FailedFilter, FailedRow, FoundAs, Listings, OutboxFilter,
    StoreError, StoreResult,
};
use uuid::Uuid;

use crate::bounded::how_many_fit;
use crate::ops::failed;
use crate::rows::{read_aggregate, read_command, read_event, read_outbox, select_list, select_list_instead};
use crate::schema::{
    AGGREGATES, COMMAND_BOX, DOMAIN_EVENTS, EVENT_OUTBOX, Index, OUTBOX_FAILED, OUTBOX_PARKED, OUTBOX_READY,
    OUTBOX_SENT,
};
use crate::sql::{Session, Value, values};
use crate::store::{SqlStore, listing};

/// Commands that are not COMPLETED, by status.
const OPEN_COMMANDS: &Index = COMMAND_BOX.index("command_box_open");

/// Outbox rows that are tried again, parked or not.
const RETRYING: &Index = EVENT_OUTBOX.index("event_outbox_retrying");

/// How many flows of one aggregate are looked for: its last events tell.
const LAST_EVENTS: u32 = 100;

#[async_trait]
impl Listings for SqlStore {
    async fn commands(
        &self,
        status: Option<CommandStatus>,
        behind: Option<&CommandId>,
        limit: u32,
    ) -> StoreResult<Vec<CommandRecord>> {
        let behind = match behind {
            None => None,
            Some(id) => {
                let missing = || StoreError::Missing { what: "command", name: id.to_string() };
                let command = self.command(id).await?.ok_or_else(missing)?;
                Some((command.command.context.occurred_at, id))
            }
        };
        listing!(self, commands, status, behind, limit, COMMANDS_BYTES)
    }

    async fn outbox_rows(
        &self,
        filter: &OutboxFilter,
        after: u64,
        limit: u32,
    ) -> StoreResult<Vec<FailedRow>> {
        listing!(self, outbox, filter, after, limit)
    }

    async fn outbox_row(&self, outbox_id: u64) -> StoreResult<Option<FailedRow>> {
        listing!(self, outbox_row, outbox_id)
    }

    async fn aggregates(
        &self,
        kind: &AggregateKind,
        after: Option<&AggregateId>,
        limit: u32,
    ) -> StoreResult<Vec<AggregateRow>> {
        listing!(self, aggregates, kind, after, limit)
    }

    async fn trace(
        &self,
        id: &str,
        aggregates: &[AggregateKey],
    ) -> StoreResult<Vec<(FoundAs, CorrelationId)>> {
        listing!(self, trace, id, aggregates)
    }
}

/// Commands, the last received first, behind one of them.
async fn commands(
    session: &mut Session<'_>,
    status: Option<CommandStatus>,
    behind: Option<(DateTime<Utc>, &CommandId)>,
    limit: u32,
    bytes: u64,
) -> StoreResult<Vec<CommandRecord>> {
    let mut keys = values![];
    let (mut condition, mut order) = ("1 = 1".to_owned(), String::new());
    match status {
        None => {}
        // Nearly all are: the order of time finds them quickly.
        Some(CommandStatus::Completed) => condition = "c.status = 'COMPLETED'".to_owned(),
        Some(status) => {
            let (column, partial) = session.dialect().partial(OPEN_COMMANDS, "c.");
            let (pinned, first) = session.dialect().pinned(&column);
            keys.extend(pinned.matches('?').map(|_| Value::from(status.as_str())));
            condition = format!("{pinned}{partial}");
            order = first.replace(", ", " DESC, ");
        }
    }
    if let Some((received_at, command_id)) = behind {
        keys.extend(values![received_at, received_at, command_id.as_str()]);
        condition.push_str(" AND c.received_at <= ? AND (c.received_at < ? OR c.command_id < ?)");
    }
    let from = format!(
        "FROM command_box c WHERE {condition} ORDER BY {order}c.received_at DESC, c.command_id DESC LIMIT"
    );
    let size = format!("CAST(OCTET_LENGTH(c.payload) AS {})", session.dialect().integer_cast());
    let sizes = format!("SELECT {size} AS bytes {from} {limit}");
    let sizes = session.rows("commands.sizes", &sizes, keys.clone()).await?;
    let sizes: Vec<u64> = sizes.iter().map(|row| row.count("bytes")).collect::<StoreResult<_>>()?;
    let limit = how_many_fit(sizes, bytes);
    let sql = format!("SELECT {} {from} {limit}", select_list(&COMMAND_BOX, "c", ""));
    let mut commands = Vec::new();
    for row in session.rows("commands.list", &sql, keys).await? {
        commands.extend(read_command(&row, "")?);
    }
    Ok(commands)
}

/// Outbox rows with their facts, but not with the payloads of those, by number, behind one of them.
async fn outbox(
    session: &mut Session<'_>,
    filter: &OutboxFilter,
    after: u64,
    limit: u32,
) -> StoreResult<Vec<FailedRow>> {
    let mut keys = values![];
    let of_facts = select_list_instead(&DOMAIN_EVENTS, "e", &[("payload", "'null'")]);
    let from = match filter.status {
        Some(OutboxStatus::Failed) => {
            let filter = FailedFilter { channel: filter.channel.clone(), ..FailedFilter::default() };
            return failed::list_with(session, &filter, after, limit, &of_facts).await;
        }
        // Each index holds a part of them.
        status
            if status == Some(OutboxStatus::New)
                || status == Some(OutboxStatus::Retry)
                || filter.channel.is_some() =>
        {
            let indexes = match status {
                Some(OutboxStatus::New) => vec![OUTBOX_READY, OUTBOX_PARKED],
                Some(OutboxStatus::Retry) => vec![RETRYING],
                Some(OutboxStatus::Sent | OutboxStatus::Skipped) => vec![OUTBOX_SENT],
                Some(OutboxStatus::Failed) => vec![OUTBOX_FAILED],
                None => vec![OUTBOX_READY, OUTBOX_PARKED, OUTBOX_FAILED, OUTBOX_SENT],
            };
            let mut parts = Vec::with_capacity(indexes.len());
            for index in indexes {
                let within = in_index(session, index, filter, &mut keys);
                keys.extend(values![after]);
                let mut more = String::new();
                if let Some(status) = status {
                    keys.extend(values![status.as_str()]);
                    more.push_str(" AND o.status = ?");
                }
                let name = index.name;
                parts.push(format!(
                    "SELECT {name}.outbox_id FROM (SELECT o.outbox_id FROM event_outbox o WHERE {within} \
                     AND o.outbox_id > ?{more} ORDER BY o.outbox_id LIMIT {limit}) AS {name}"
                ));
            }
            format!(
                "({}) AS chosen JOIN event_outbox o ON o.outbox_id = chosen.outbox_id \
                 JOIN domain_events e ON e.event_id = o.event_id",
                parts.join(" UNION ")
            )
        }
        status => {
            let mut condition = "o.outbox_id > ?".to_owned();
            keys.extend(values![after]);
            if let Some(status) = status {
                keys.extend(values![status.as_str()]);
                condition.push_str(" AND o.status = ?");
            }
            format!("event_outbox o JOIN domain_events e ON e.event_id = o.event_id WHERE {condition}")
        }
    };
    let sql = format!(
        "SELECT {}, {of_facts} FROM {from} ORDER BY o.outbox_id LIMIT {limit}",
        select_list(&EVENT_OUTBOX, "o", ""),
    );
    let rows = session.rows("outbox.list", &sql, keys).await?;
    rows.iter().map(|row| Ok(FailedRow { row: read_outbox(row)?, event: read_event(row)? })).collect()
}

/// One outbox row with its fact.
async fn outbox_row(session: &mut Session<'_>, outbox_id: u64) -> StoreResult<Option<FailedRow>> {
    let sql = format!(
        "SELECT {}, {} FROM event_outbox o JOIN domain_events e ON e.event_id = o.event_id WHERE o.outbox_id = ?",
        select_list(&EVENT_OUTBOX, "o", ""),
        select_list(&DOMAIN_EVENTS, "e", ""),
    );
    let row = session.row("outbox.one", &sql, values![outbox_id]).await?;
    row.map(|row| Ok(FailedRow { row: read_outbox(&row)?, event: read_event(&row)? })).transpose()
}

/// Aggregates of a kind without their snapshots, by id, behind one of them.
async fn aggregates(
    session: &mut Session<'_>,
    kind: &AggregateKind,
    after: Option<&AggregateId>,
    limit: u32,
) -> StoreResult<Vec<AggregateRow>> {
    let sql = format!(
        "SELECT {} FROM aggregates a WHERE a.aggregate_kind = ? AND a.aggregate_id > ? \
         ORDER BY a.aggregate_kind, a.aggregate_id LIMIT {limit}",
        select_list_instead(&AGGREGATES, "a", &[("snapshot", "NULL")])
    );
    // No id is empty, so all are behind it.
    let keys = values![kind.as_str(), after.map_or("", |after| after.as_str())];
    let mut found = Vec::new();
    for row in session.rows("aggregates.list", &sql, keys).await? {
        found.extend(read_aggregate(&row, "")?);
    }
    Ok(found)
}

/// What an id is the id of, and the flows it belongs to, the last first.
async fn trace(
    session: &mut Session<'_>,
    id: &str,
    aggregates: &[AggregateKey],
) -> StoreResult<Vec<(FoundAs, CorrelationId)>> {
    let mut keys = values![id, id, id];
    let mut parts = vec![
        format!("SELECT {} AS found_as, c.correlation_id FROM command_box c WHERE c.command_id = ?", COMMAND),
        format!(
            "SELECT {FLOW}, known.correlation_id FROM \
             (SELECT c.correlation_id FROM command_box c WHERE c.correlation_id = ? LIMIT 1) AS known"
        ),
        format!(
            "SELECT {FLOW}, told.correlation_id FROM \
             (SELECT e.correlation_id FROM domain_events e WHERE e.correlation_id = ? LIMIT 1) AS told"
        ),
    ];
    if let Ok(event_id) = Uuid::parse_str(id) {
        keys.extend(values![event_id]);
        parts.push(format!("SELECT {EVENT}, e.correlation_id FROM domain_events e WHERE e.event_id = ?"));
    }
    for (number, key) in aggregates.iter().enumerate() {
        keys.extend(values![key.kind.as_str(), key.id.as_str()]);
        parts.push(format!(
            "SELECT {AGGREGATE}, of_{number}.correlation_id FROM (SELECT e.correlation_id FROM domain_events e \
             WHERE e.aggregate_kind = ? AND e.aggregate_id = ? ORDER BY e.aggregate_version DESC \
             LIMIT {LAST_EVENTS}) AS of_{number}"
        ));
    }
    let mut found: Vec<(FoundAs, CorrelationId)> = Vec::new();
    for row in session.rows("trace", &parts.join(" UNION ALL "), keys).await? {
        let found_as = match row.long("found_as")? {
            COMMAND => FoundAs::Command,
            EVENT => FoundAs::Event,
            FLOW => FoundAs::Flow,
            _ => FoundAs::Aggregate,
        };
        let flow = (found_as, CorrelationId::from_stored(row.text("correlation_id")?));
        if !found.contains(&flow) {
            found.push(flow);
        }
    }
    Ok(found)
}

const COMMAND: i64 = 1;
const EVENT: i64 = 2;
const FLOW: i64 = 3;
const AGGREGATE: i64 = 4;

/// What a filter says of the rows in an index that begins with the channel.
fn in_index<'f>(
    session: &Session<'_>,
    index: &Index,
    filter: &'f OutboxFilter,
    keys: &mut Vec<Value<'f>>,
) -> String {
    let (channel, condition) = session.dialect().partial(index, "o.");
    match &filter.channel {
        Some(name) => {
            keys.extend(values![name.as_str()]);
            format!("{channel} = ?{condition}")
        }
        None => format!("{channel} IS NOT NULL{condition}"),
    }
}
