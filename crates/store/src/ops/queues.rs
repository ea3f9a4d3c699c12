//! Queues of the in-process broker: its topology, and messages that wait or are with a receiver.
//!
//! A row of `local_messages` is ready, delayed (`available_at`) or taken (`claimed_by_id`), and each of the three has
//! its own narrow index. A row says itself under which lease and epoch it was taken: that is the fence of its
//! settlement. Receivers' leases have names that are never used again, so an expired one is simply deleted, and a row
//! whose lease is missing is given back.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{InstanceId, LeaseName};
use towpath_core::ports::broker::{Binding, Exchange, ExchangeKind, Topology};
use towpath_core::ports::queues::{
    Ending, Fate, Layout, Parcel, Placement, PutError, QueueDepth, Queues, Receiver, TakenMessage,
};
use towpath_core::ports::store::{LeaseGrant, StoreError, StoreResult};
use towpath_core::time::later;

use crate::bounded::how_many_fit;
use crate::dialect::Dialect;
use crate::ops::backlog::COUNTED;
use crate::ops::leases::{acquire, fenced, held_by, holder_is_gone, micros};
use crate::rows::{
    headers_text, insert_sql, local_message_values, read_local_message, read_local_queue, select_list,
};
use crate::schema::{Index, LOCAL_BINDINGS, LOCAL_EXCHANGES, LOCAL_MESSAGES, LOCAL_QUEUES, Table};
use crate::sql::{Chosen, MAX_VALUES, Session, Value, unreadable, values};
use crate::store::{SqlStore, listing, reading, transacting, writing_once};

/// What all names of receivers' leases begin with.
const LEASES_OF_RECEIVERS: &str = "local/";

/// How many bytes one statement may carry: MariaDB takes 16 MiB unless it is told otherwise.
const MAX_BYTES: usize = 4 << 20;

/// How many rows are looked at in one go when they are given back.
const AT_A_TIME: u32 = 1000;

#[async_trait]
impl Queues for SqlStore {
    async fn layout(&self) -> StoreResult<Layout> {
        reading!(self, layout)
    }

    async fn extend_layout(&self, revision: u64, additions: &Topology) -> StoreResult<bool> {
        transacting!(self, extend_layout, revision, additions)
    }

    async fn put_messages(&self, revision: u64, parcels: &[Parcel<'_>]) -> Result<bool, PutError> {
        let mut transaction = self.transaction().await.map_err(PutError::NotWritten)?;
        match put(&mut transaction.session(), revision, parcels).await {
            Ok(true) => match transaction.commit().await {
                Ok(()) => Ok(true),
                // By its meaning: all of it was rolled back.
                Err(error @ StoreError::Contention(_)) => Err(PutError::NotWritten(error)),
                Err(error) => Err(PutError::Unknown(error)),
            },
            Ok(false) => {
                let _ = transaction.rollback().await;
                Ok(false)
            }
            Err(error) => {
                let _ = transaction.rollback().await;
                Err(PutError::NotWritten(error))
            }
        }
    }

    async fn begin_receiving(&self, lease: &LeaseName, for_: Duration) -> StoreResult<LeaseGrant> {
        transacting!(self, begin_receiving, lease, for_)
    }

    async fn keep_receiving(&self, grant: &LeaseGrant, for_: Duration) -> StoreResult<bool> {
        writing_once!(self, keep_receiving, grant, for_)
    }

    async fn end_receiving(&self, receiver: &Receiver) -> StoreResult<()> {
        transacting!(self, end_receiving, receiver)
    }

    async fn take_messages(
        &self,
        receiver: &Receiver,
        limit: u32,
        bytes: u64,
    ) -> StoreResult<Vec<TakenMessage>> {
        // Mostly there is nothing: then one read is all it costs.
        let waiting = reading!(self, look, &receiver.queue)?;
        if !waiting.ready && !waiting.due {
            return Ok(Vec::new());
        }
        transacting!(self, take, receiver, waiting, limit, bytes)
    }

    async fn end_messages(&self, grant: &LeaseGrant, endings: &[Ending]) -> StoreResult<()> {
        if is_one_statement(endings) {
            return writing_once!(self, end, grant, endings);
        }
        transacting!(self, end, grant, endings)
    }

    async fn recover_messages(&self) -> StoreResult<u64> {
        let mut all = 0;
        loop {
            let recovered = transacting!(self, recover)?;
            all += recovered;
            if !may_be_more(recovered) {
                break;
            }
        }
        writing_once!(self, forget_receivers)?;
        Ok(all)
    }

    async fn queue_depths(&self, queues: &[&str]) -> StoreResult<Vec<Option<QueueDepth>>> {
        listing!(self, depths, queues)
    }
}

async fn layout(session: &mut Session<'_>) -> StoreResult<Layout> {
    // The revision first: what is added meanwhile is seen or not, and a revision that is too low only means another look.
    let (revision, _) = revision(session, "").await?;
    let mut topology = Topology::default();
    let sql = "SELECT name, kind FROM local_exchanges ORDER BY name";
    for row in session.rows("queues.exchanges", sql, values![]).await? {
        let kind = row.text("kind")?;
        let kind = ExchangeKind::ALL.into_iter().find(|known| known.as_str() == kind);
        let kind = kind.ok_or_else(|| unreadable("local_exchanges.kind", "no such kind"))?;
        topology.exchanges.push(Exchange { name: row.text("name")?, kind });
    }
    let sql = "SELECT name, arguments FROM local_queues ORDER BY name";
    for row in session.rows("queues.queues", sql, values![]).await? {
        topology.queues.push(read_local_queue(&row)?);
    }
    let sql = "SELECT queue, exchange, routing_key FROM local_bindings ORDER BY queue, exchange, routing_key";
    for row in session.rows("queues.bindings", sql, values![]).await? {
        topology.bindings.push(Binding {
            queue: row.text("queue")?,
            exchange: row.text("exchange")?,
            routing_key: row.text("routing_key")?,
        });
    }
    Ok(Layout { revision, topology })
}

/// Adds to the topology. Runs in a transaction.
async fn extend_layout(session: &mut Session<'_>, expected: u64, additions: &Topology) -> StoreResult<bool> {
    let for_update = session.dialect().for_update();
    let (found, _) = revision(session, for_update).await?;
    if found != expected {
        return Ok(false);
    }
    let exchanges = additions.exchanges.iter();
    let exchanges = exchanges.map(|exchange| values![exchange.name.as_str(), exchange.kind.as_str()]);
    insert(session, "queues.add_exchanges", &LOCAL_EXCHANGES, exchanges.collect()).await?;
    let mut queues = Vec::new();
    for queue in &additions.queues {
        let arguments = serde_json::to_string(&queue.arguments)
            .map_err(|error| unreadable("local_queues.arguments", error))?;
        queues.push(values![queue.name.as_str(), arguments, None::<&str>, None::<i64>]);
    }
    insert(session, "queues.add_queues", &LOCAL_QUEUES, queues).await?;
    let bindings = additions.bindings.iter();
    let bindings = bindings.map(|binding| {
        values![binding.queue.as_str(), binding.exchange.as_str(), binding.routing_key.as_str()]
    });
    insert(session, "queues.add_bindings", &LOCAL_BINDINGS, bindings.collect()).await?;
    let sql = "UPDATE local_topology SET revision = revision + 1 WHERE topology_id = 1";
    session.execute("queues.revise", sql, values![]).await?;
    Ok(true)
}

/// Puts messages into queues. Runs in a transaction.
async fn put(session: &mut Session<'_>, expected: u64, parcels: &[Parcel<'_>]) -> StoreResult<bool> {
    let (found, now) = revision(session, "").await?;
    if found != expected {
        return Ok(false);
    }
    let mut rows = Vec::with_capacity(parcels.len());
    for parcel in parcels {
        let available_at = parcel.placement.delay.map(|delay| later(now, delay));
        rows.push(local_message_values(parcel, now, available_at)?);
    }
    insert(session, "queues.put", &LOCAL_MESSAGES, rows).await?;
    Ok(true)
}

/// Takes the lease of a new receiver. Runs in a transaction.
async fn begin_receiving(
    session: &mut Session<'_>,
    lease: &LeaseName,
    duration: Duration,
) -> StoreResult<LeaseGrant> {
    let name = lease.as_str().strip_prefix(LEASES_OF_RECEIVERS).ok_or_else(|| {
        unreadable("leases.lease_name", format!("a receiver's lease begins with {LEASES_OF_RECEIVERS}"))
    })?;
    let grant = acquire(session, lease, &InstanceId::from_stored(name), duration).await?;
    grant.ok_or_else(|| unreadable("leases.lease_name", "the receiver's name is taken"))
}

async fn keep_receiving(
    session: &mut Session<'_>,
    grant: &LeaseGrant,
    duration: Duration,
) -> StoreResult<bool> {
    let (now, until) = (session.dialect().now(), session.dialect().now_plus_parameter());
    // Not if it has run out: what was taken under it may be with others by now.
    let sql = format!(
        "UPDATE leases SET renewed_at = {now}, expires_at = {until} \
         WHERE lease_name = ? AND holder_id = ? AND epoch = ? AND expires_at > {now}"
    );
    let mut kept = values![micros(duration)];
    kept.extend(held_by(grant));
    Ok(session.execute("queues.keep", &sql, kept).await? == 1)
}

/// Gives everything back and ends the lease. Runs in a transaction.
async fn end_receiving(session: &mut Session<'_>, receiver: &Receiver) -> StoreResult<()> {
    let grant = &receiver.grant;
    let held = || values![grant.lease.as_str(), grant.epoch];
    if receiver.alone {
        // First, because it waits for a take of our own whose answer was lost: what that took is given back, too.
        let sql = "UPDATE local_queues SET claimed_by_id = NULL, claimed_epoch = NULL \
             WHERE name = ? AND claimed_by_id = ? AND claimed_epoch = ?";
        let mut keys = values![receiver.queue.as_str()];
        keys.extend(held());
        session.execute("queues.step_down", sql, keys).await?;
    }
    give_back(session, grant.lease.as_str(), grant.epoch).await?;
    let sql = "DELETE FROM leases WHERE lease_name = ? AND holder_id = ? AND epoch = ?";
    session.execute("queues.end_lease", sql, held_by(grant)).await?;
    Ok(())
}

/// What there is to do for one who wants to take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    /// A message is ready.
    pub(crate) ready: bool,
    /// A delayed one is due.
    pub(crate) due: bool,
}

/// Looks whether there is anything to take. Reads only: two entries of two indexes.
///
/// Both parts are sorted and cut off, and not merely asked whether they exist: see [`Dialect::pinned`].
async fn look(session: &mut Session<'_>, queue: &str) -> StoreResult<Waiting> {
    let dialect = session.dialect();
    let mut keys = values![];
    let (in_ready, first_ready) = in_queue(dialect, READY, queue, &mut keys);
    let (in_delayed, first_delayed) = in_queue(dialect, DELAYED, queue, &mut keys);
    let sql = format!(
        "SELECT CASE WHEN (SELECT m.local_message_id FROM local_messages m WHERE {in_ready} \
         ORDER BY {first_ready} LIMIT 1) IS NULL THEN 0 ELSE 1 END AS is_ready, \
         CASE WHEN (SELECT m.available_at FROM local_messages m WHERE {in_delayed} \
         ORDER BY {first_delayed} LIMIT 1) <= {} THEN 1 ELSE 0 END AS is_due",
        dialect.now()
    );
    match session.row("queues.look", &sql, keys).await? {
        Some(row) => Ok(Waiting { ready: row.long("is_ready")? == 1, due: row.long("is_due")? == 1 }),
        None => Ok(Waiting { ready: false, due: false }),
    }
}

/// The index of messages that can be taken.
const READY: &Index = LOCAL_MESSAGES.index("local_messages_ready");

/// The index of messages that wait for their time.
const DELAYED: &Index = LOCAL_MESSAGES.index("local_messages_delayed");

/// The messages of one queue in an index, and the order of that index. Messages of other queues, however many, must not be
/// read on the way: `the_cost_of_taking` measures it.
fn in_queue<'a>(
    dialect: Dialect,
    index: &Index,
    queue: &'a str,
    keys: &mut Vec<Value<'a>>,
) -> (String, String) {
    let (column, condition) = dialect.partial(index, "m.");
    let (pinned, first) = dialect.pinned(&column);
    keys.extend(pinned.matches('?').map(|_| Value::from(queue)));
    let rest: Vec<String> = index.columns[1..].iter().map(|column| format!("m.{column}")).collect();
    (format!("{pinned}{condition}"), format!("{first}{}", rest.join(", ")))
}

/// Takes messages. Runs in a transaction.
///
/// Places and sizes are read first, and bodies only of what there is room for.
async fn take(
    session: &mut Session<'_>,
    receiver: &Receiver,
    waiting: Waiting,
    limit: u32,
    bytes: u64,
) -> StoreResult<Vec<TakenMessage>> {
    if receiver.alone && !is_the_one(session, receiver).await? {
        return Ok(Vec::new());
    }
    if waiting.due {
        let (queue, delayed) = session.dialect().partial(DELAYED, "local_messages.");
        let condition = format!(
            "{queue} = ?{delayed} AND available_at <= {} ORDER BY available_at",
            session.dialect().now_of_statement()
        );
        let keys = values![receiver.queue.as_str()];
        change_some(session, "available_at = NULL", &condition, keys).await?;
    }
    // Who takes alone keeps the order, and waits for what is locked: of messages that are just being committed together,
    // MySQL may show the first as locked and the others not.
    let lock = match receiver.alone {
        true => session.dialect().for_update(),
        false => session.dialect().for_update_skip_locked(),
    };
    let mut keys = values![];
    let (in_ready, first_ready) = in_queue(session.dialect(), READY, &receiver.queue, &mut keys);
    let sql = format!(
        "SELECT m.local_message_id, CAST(OCTET_LENGTH(m.body) AS {}) AS bytes FROM local_messages m WHERE {in_ready} \
         ORDER BY {first_ready} LIMIT {limit} {lock}",
        session.dialect().integer_cast()
    );
    let (mut places, mut sizes) = (Vec::new(), Vec::new());
    for row in session.rows("queues.ready", &sql, keys).await? {
        places.push(row.long("local_message_id")?);
        sizes.push(row.count("bytes")?);
    }
    places.truncate(how_many_fit(sizes, bytes));
    let taken = if places.is_empty() { Vec::new() } else { claim(session, &receiver.grant, places).await? };
    still_receives(session, &receiver.grant).await?;
    Ok(taken)
}

/// Notes on messages that are locked who has them, and reads them.
async fn claim(
    session: &mut Session<'_>,
    grant: &LeaseGrant,
    places: Vec<i64>,
) -> StoreResult<Vec<TakenMessage>> {
    let columns = select_list(&LOCAL_MESSAGES, "local_messages", "");
    let mut changed = values![grant.lease.as_str(), grant.epoch];
    let Chosen { target, condition, .. } =
        session.choose_for_update("local_messages", "local_message_id", places.clone(), &mut changed);
    let update = format!(
        "UPDATE {target} SET claimed_by_id = ?, claimed_epoch = ?, delivery_count = delivery_count + 1 \
         WHERE {condition}"
    );
    let mut keys = values![];
    let Chosen { target, condition, .. } =
        session.choose_from("local_messages", "local_message_id", places, &mut keys);
    let from = format!("{target} WHERE {condition}");
    let rows = session.updated("queues.take", (update, changed), &columns, (from, keys)).await?;
    let mut taken = rows.iter().map(read_local_message).collect::<StoreResult<Vec<_>>>()?;
    taken.sort_unstable_by_key(|message| message.place);
    Ok(taken)
}

/// Ends messages that are with a receiver. Runs in a transaction, unless it is one statement.
async fn end(session: &mut Session<'_>, grant: &LeaseGrant, endings: &[Ending]) -> StoreResult<()> {
    for ending in endings {
        if let Fate::Moved(placements) = &ending.fate {
            for placement in placements {
                copy(session, grant, ending.place, placement).await?;
            }
        }
    }
    let places = |wanted: fn(&Fate) -> bool| -> Vec<i64> {
        endings
            .iter()
            .filter(|ending| wanted(&ending.fate))
            .map(|ending| ending.place.cast_signed())
            .collect()
    };
    let gone = places(|fate| matches!(fate, Fate::Removed | Fate::Moved(_)));
    if !gone.is_empty() {
        let mut keys = values![];
        let chosen = session.choose_from("local_messages", "local_message_id", gone, &mut keys);
        keys.extend(values![grant.lease.as_str(), grant.epoch]);
        let sql = format!(
            "{} WHERE {} AND claimed_by_id = ? AND claimed_epoch = ?",
            chosen.delete, chosen.condition
        );
        session.execute("queues.remove", &sql, keys).await?;
    }
    let back = places(|fate| matches!(fate, Fate::GivenBack));
    if !back.is_empty() {
        let mut keys = values![];
        let Chosen { target, condition, .. } =
            session.choose_for_update("local_messages", "local_message_id", back, &mut keys);
        keys.extend(values![grant.lease.as_str(), grant.epoch]);
        let sql = format!(
            "UPDATE {target} SET claimed_by_id = NULL, claimed_epoch = NULL \
             WHERE {condition} AND claimed_by_id = ? AND claimed_epoch = ?"
        );
        session.execute("queues.requeue", &sql, keys).await?;
    }
    Ok(())
}

/// Whether ending these is one statement.
fn is_one_statement(endings: &[Ending]) -> bool {
    endings.iter().all(|ending| ending.fate == Fate::Removed)
        || endings.iter().all(|ending| ending.fate == Fate::GivenBack)
}

/// Gives back what was taken by those who are gone. Runs in a transaction; answers how many messages that were, at most
/// [`AT_A_TIME`].
async fn recover(session: &mut Session<'_>) -> StoreResult<u64> {
    let condition = holder_is_gone(session, "local_messages");
    change_some(session, "claimed_by_id = NULL, claimed_epoch = NULL", &condition, values![]).await
}

/// Whether a recovery that gave back so many has probably left some.
fn may_be_more(recovered: u64) -> bool {
    recovered >= u64::from(AT_A_TIME)
}

/// Removes the leases of receivers that are gone.
async fn forget_receivers(session: &mut Session<'_>) -> StoreResult<u64> {
    let sql = format!(
        "DELETE FROM leases WHERE lease_name >= ? AND lease_name < ? AND expires_at <= {}",
        session.dialect().now()
    );
    let end = format!("{LEASES_OF_RECEIVERS}{}", char::MAX);
    Ok(session.execute("queues.forget", &sql, values![LEASES_OF_RECEIVERS, end]).await?)
}

/// How much queues hold, in one statement however many they are.
async fn depths(session: &mut Session<'_>, queues: &[&str]) -> StoreResult<Vec<Option<QueueDepth>>> {
    if queues.is_empty() {
        return Ok(Vec::new());
    }
    let dialect = session.dialect();
    let mut keys = values![];
    let mut parts = Vec::with_capacity(queues.len());
    for (which, queue) in queues.iter().enumerate() {
        let (in_ready, first_ready) = in_queue(dialect, READY, queue, &mut keys);
        let (in_delayed, first_delayed) = in_queue(dialect, DELAYED, queue, &mut keys);
        keys.extend(values![*queue, *queue]);
        let count = |rows: String| format!("(SELECT COUNT(*) FROM (SELECT 1 AS one FROM {rows}) AS counted)");
        parts.push(format!(
            "SELECT {which} AS which, {} AS ready_count, {} AS delayed_count, {} AS taken_count \
             FROM local_queues q WHERE q.name = ?",
            count(format!("local_messages m WHERE {in_ready} ORDER BY {first_ready} LIMIT {COUNTED}")),
            count(format!("local_messages m WHERE {in_delayed} ORDER BY {first_delayed} LIMIT {COUNTED}")),
            count(format!(
                "local_messages m WHERE m.claimed_by_id IS NOT NULL AND m.queue = ? LIMIT {COUNTED}"
            )),
        ));
    }
    let mut depths = vec![None; queues.len()];
    for row in session.rows("queues.depths", &parts.join(" UNION ALL "), keys).await? {
        let which = usize::try_from(row.count("which")?).unwrap_or(usize::MAX);
        if let Some(depth) = depths.get_mut(which) {
            *depth = Some(QueueDepth {
                ready: row.count("ready_count")?,
                delayed: row.count("delayed_count")?,
                taken: row.count("taken_count")?,
            });
        }
    }
    Ok(depths)
}

/// The revision of the topology, and the database's time.
async fn revision(session: &mut Session<'_>, lock: &str) -> StoreResult<(u64, DateTime<Utc>)> {
    let sql = format!(
        "SELECT revision, {} AS looked_at FROM local_topology WHERE topology_id = 1 {lock}",
        session.dialect().now()
    );
    let row = session.row("queues.revision", &sql, values![]).await?;
    let row = row.ok_or_else(|| unreadable("local_topology", "its row is missing"))?;
    Ok((row.count("revision")?, row.time("looked_at")?))
}

/// Inserts rows in order, in as few statements as the databases take.
async fn insert(
    session: &mut Session<'_>,
    name: &'static str,
    table: &'static Table,
    rows: Vec<Vec<Value<'_>>>,
) -> StoreResult<()> {
    let most_rows = MAX_VALUES / table.written_columns().count();
    let (mut chunk, mut count, mut bytes) = (Vec::new(), 0, 0);
    for row in rows {
        let size = row.iter().map(Value::size).sum::<usize>();
        if count == most_rows || (count > 0 && bytes + size > MAX_BYTES) {
            session.execute(name, &insert_sql(table, count), std::mem::take(&mut chunk)).await?;
            (count, bytes) = (0, 0);
        }
        chunk.extend(row);
        count += 1;
        bytes += size;
    }
    if count > 0 {
        session.execute(name, &insert_sql(table, count), chunk).await?;
    }
    Ok(())
}

/// Gives back all that was taken under a lease, in one statement: whoever comes next finds all of them, in their order.
async fn give_back(session: &mut Session<'_>, lease: &str, epoch: u64) -> StoreResult<()> {
    let sql = "UPDATE local_messages SET claimed_by_id = NULL, claimed_epoch = NULL \
         WHERE claimed_by_id = ? AND claimed_epoch = ?";
    session.execute("queues.give_back", sql, values![lease, epoch]).await?;
    Ok(())
}

/// Whether this receiver is the one that takes from the queue; it becomes so when the one before is gone. Locks the queue
/// until the transaction ends.
async fn is_the_one(session: &mut Session<'_>, receiver: &Receiver) -> StoreResult<bool> {
    let sql = format!(
        "SELECT claimed_by_id, claimed_epoch, CASE WHEN {} THEN 1 ELSE 0 END AS is_gone \
         FROM local_queues WHERE name = ? {}",
        holder_is_gone(session, "local_queues"),
        session.dialect().for_update()
    );
    let Some(row) = session.row("queues.the_one", &sql, values![receiver.queue.as_str()]).await? else {
        return Ok(false);
    };
    let grant = &receiver.grant;
    if let Some(before) = row.text_or_null("claimed_by_id")? {
        let epoch = row.long("claimed_epoch")?.cast_unsigned();
        if before == grant.lease.as_str() {
            return Ok(epoch == grant.epoch);
        }
        if row.long("is_gone")? == 0 {
            return Ok(false);
        }
        // First what the one before had taken: it stands before everything else. Who else is just giving it back is
        // waited for; to pass over it would be to overtake it.
        give_back(session, &before, epoch).await?;
    }
    let sql = "UPDATE local_queues SET claimed_by_id = ?, claimed_epoch = ? WHERE name = ?";
    let changed = values![grant.lease.as_str(), grant.epoch, receiver.queue.as_str()];
    session.execute("queues.step_up", sql, changed).await?;
    Ok(true)
}

/// Changes messages that satisfy a condition (and stand first in its order) and that nobody has locked: who locks one is about to change it anyway, and
/// must not be waited for.
async fn change_some(
    session: &mut Session<'_>,
    assignments: &str,
    condition: &str,
    keys: Vec<Value<'_>>,
) -> StoreResult<u64> {
    let sql = format!(
        "SELECT local_message_id FROM local_messages WHERE {condition} LIMIT {AT_A_TIME} {}",
        session.dialect().for_update_skip_locked()
    );
    let mut places = Vec::new();
    for row in session.rows("queues.some", &sql, keys).await? {
        places.push(row.long("local_message_id")?);
    }
    if places.is_empty() {
        return Ok(0);
    }
    let mut changed = values![];
    let Chosen { target, condition, .. } =
        session.choose_for_update("local_messages", "local_message_id", places, &mut changed);
    let sql = format!("UPDATE {target} SET {assignments} WHERE {condition}");
    Ok(session.execute("queues.change", &sql, changed).await?)
}

/// Copies a message that is with a receiver into a queue, as one that nobody has taken yet.
async fn copy(
    session: &mut Session<'_>,
    grant: &LeaseGrant,
    place: u64,
    placement: &Placement,
) -> StoreResult<()> {
    let dialect = session.dialect();
    let mut copied = values![];
    let mut columns = Vec::new();
    for column in LOCAL_MESSAGES.written_columns() {
        let new = match column.name {
            "queue" => Some(Value::from(placement.queue.as_str())),
            "exchange" => Some(Value::from(placement.destination.exchange.as_str())),
            "routing_key" => Some(Value::from(placement.destination.routing_key.as_str())),
            "headers" => Some(Value::from(headers_text(&placement.headers)?)),
            _ => None,
        };
        columns.push(match (column.name, placement.delay) {
            ("available_at", Some(delay)) => {
                copied.push(Value::from(micros(delay)));
                dialect.now_plus_parameter().to_owned()
            }
            ("available_at" | "claimed_by_id" | "claimed_epoch", _) => "NULL".to_owned(),
            ("delivery_count", _) => "0".to_owned(),
            (name, _) => match new {
                Some(value) => {
                    copied.push(value);
                    "?".to_owned()
                }
                None => name.to_owned(),
            },
        });
    }
    let names: Vec<&str> = LOCAL_MESSAGES.written_columns().map(|column| column.name).collect();
    copied.extend(values![place, grant.lease.as_str(), grant.epoch]);
    let sql = format!(
        "INSERT INTO local_messages ({}) SELECT {} FROM local_messages \
         WHERE local_message_id = ? AND claimed_by_id = ? AND claimed_epoch = ?",
        names.join(", "),
        columns.join(", ")
    );
    session.execute("queues.copy", &sql, copied).await?;
    Ok(())
}

/// Refuses the transaction unless the receiver's lease lives. Asked last, so that its lock is held for a moment only.
async fn still_receives(session: &mut Session<'_>, grant: &LeaseGrant) -> StoreResult<()> {
    let sql = format!(
        "SELECT epoch FROM leases WHERE lease_name = ? AND holder_id = ? AND epoch = ? AND expires_at > {} {}",
        session.dialect().now(),
        session.dialect().for_share()
    );
    match session.row("queues.fence", &sql, held_by(grant)).await? {
        Some(_) => Ok(()),
        None => Err(fenced(grant)),
    }
}
