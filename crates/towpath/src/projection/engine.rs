//! Takes facts in: each once, in order, onto rows that are locked meanwhile.
//!
//! A row of the library's own per projection and aggregate says which fact was the last. It is locked first, so that
//! instances, a rebuild and a delivery that comes twice take turns. Facts that are known are skipped; where some are missing, or
//! the rows are of an older version of the projection, they are read from the log, a page at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use towpath_core::ids::{AggregateId, AggregateKey, Version};
use towpath_core::incoming::IncomingEvent;
use towpath_core::ports::store::{Projected, StoreError, StoreTx as _};
use towpath_store::SqlTransaction;

use super::rows::{RowKey, Rows};
use super::watches::Watches;
use super::{AnyFact, AnyProjection, OwnedTable};
use crate::committed::Committed;
use crate::consumer::{HandlerError, panic_message};

/// How many facts are read from the log at a time, at most.
const PAGE: u64 = 500;

/// How many bytes of payloads are read at a time; one that is larger is read alone.
const PAGE_BYTES: u64 = 4 << 20;

/// The code of a fact that comes before those that it follows, which are not in the log either.
pub(super) const OUT_OF_ORDER: &str = "fact-out-of-order";

/// Why facts were not taken in.
pub(super) enum Trouble {
    /// One of this aggregate's cannot be projected.
    Fact(AggregateId, HandlerError),
    /// Facts are missing, in the log too.
    Missing(HandlerError),
    /// Rows are gone that earlier facts of this aggregate have made.
    Lost(AggregateId, HandlerError),
    /// A newer version of the projection has made the rows: this one must leave them alone.
    MadeByNewer,
    Store(StoreError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Takes in those facts that are the projection's.
pub(super) async fn take_in(
    sql: &mut SqlTransaction,
    projection: &dyn AnyProjection,
    events: &[IncomingEvent],
) -> Result<Made, Trouble> {
    let (name, kind, by) = (projection.name(), projection.kind(), projection.version());
    let mut arrived: BTreeMap<String, BTreeMap<Version, &IncomingEvent>> = BTreeMap::new();
    for event in events {
        if let (Some(aggregate), Some(version)) = (&event.aggregate, event.aggregate_version)
            && (aggregate.kind.as_str(), version > 0) == (kind, true)
        {
            arrived.entry(aggregate.id.to_string()).or_default().insert(version, event);
        }
    }
    if arrived.is_empty() {
        return Ok(Made::default());
    }
    let ids: Vec<String> = arrived.keys().cloned().collect();
    let projected = sql.lock_projected(name, kind, &ids).await?;
    leave_to_newer(sql, projection, &projected).await?;
    let anew =
        projected.iter().filter(|(_, projected)| projected.by < by).map(|(id, _)| id.clone()).collect();
    let mut made = Made::default();
    made.begin_anew(sql, projection, &anew).await?;

    let (mut due, mut reached) = (Vec::new(), Vec::new());
    for (id, mut facts) in arrived {
        let Projected { version, by: made_by } = projected.get(&id).copied().unwrap_or_default();
        // What older rows were made of is acknowledged: it does not come again.
        let (known, at_least) = if made_by == by { (version, 0) } else { (0, version) };
        let new = facts.split_off(&(known + 1));
        let Some(last) = new.keys().next_back().map(|last| at_least.max(*last)) else { continue };
        let key = AggregateKey::from_stored(kind, &id);
        let facts = (last - known == new.len() as u64).then(|| new.into_values().collect());
        due.push(Due { key, known, last, facts });
        reached.push((id, last));
    }
    made = loop {
        let together: Vec<&IncomingEvent> =
            due.iter().flat_map(|due| &due.facts).flatten().copied().collect();
        let mut with_these = made.clone();
        match with_these.project(sql, projection, &together).await {
            Err(Trouble::Lost(lost, error)) => {
                // Nothing was written: the others go on together, and this one from the log.
                let of_it = due.iter_mut().find(|due| due.key.id == lost && due.known > 0);
                let Some(due) = of_it else { return Err(Trouble::Fact(lost, error)) };
                due.facts = None;
            }
            projected => break projected.map(|()| with_these)?,
        }
    };
    due.retain(|due| due.facts.is_none());
    for Due { key, known, last, .. } in &due {
        let mut read = catch_up(sql, projection, key, *known, *last, &mut made).await;
        if matches!(read, Err(Trouble::Lost(..))) {
            made.begin_anew(sql, projection, &BTreeSet::from([key.id.to_string()])).await?;
            read = catch_up(sql, projection, key, 0, *last, &mut made).await;
        }
        let read = read?;
        if read < *last {
            let message = format!("{} is known up to its fact {read}, and {last} has come", key.id);
            return Err(Trouble::Missing(HandlerError::transient(OUT_OF_ORDER, message)));
        }
    }
    if !reached.is_empty() {
        sql.note_projected(name, kind, by, &reached).await?;
    }
    made.write_watches(sql).await?;
    Ok(made)
}

/// Refuses what a newer version of the projection has made, and what nobody has made yet where a newer one is at work: it would
/// not look for that again.
async fn leave_to_newer(
    sql: &mut SqlTransaction,
    projection: &dyn AnyProjection,
    projected: &BTreeMap<String, Projected>,
) -> Result<(), Trouble> {
    let (name, kind, by) = (projection.name(), projection.kind(), projection.version());
    let is_new = |projected: &Projected| projected.by == 0;
    let is_newers = projected.values().any(|projected| projected.by > by)
        || (projected.values().any(is_new) && sql.projection_made_by(name, kind).await? > by);
    if is_newers { Err(Trouble::MadeByNewer) } else { Ok(()) }
}

/// Makes one aggregate anew from the log, up to this fact or the last that its rows were made of. Answers nothing when it
/// needs not be.
pub(super) async fn make_anew(
    sql: &mut SqlTransaction,
    projection: &dyn AnyProjection,
    id: &str,
    up_to: Version,
    also_if_current: bool,
) -> Result<Option<Made>, Trouble> {
    let (name, kind, by) = (projection.name(), projection.kind(), projection.version());
    let ids = [id.to_owned()];
    let projected = sql.lock_projected(name, kind, &ids).await?;
    leave_to_newer(sql, projection, &projected).await?;
    let Projected { version, by: made_by } = projected.get(id).copied().unwrap_or_default();
    if made_by == by && !also_if_current {
        return Ok(None);
    }
    let mut made = Made::default();
    made.begin_anew(sql, projection, &BTreeSet::from(ids)).await?;
    let key = AggregateKey::from_stored(kind, id);
    // The consumer may have gone on since somebody looked how far it is.
    match catch_up(sql, projection, &key, 0, up_to.max(version), &mut made).await? {
        0 => sql.forget_projected(name, kind, id).await?,
        reached => sql.note_projected(name, kind, by, &[(id.to_owned(), reached)]).await?,
    }
    made.write_watches(sql).await?;
    Ok(Some(made))
}

/// Takes in facts of one aggregate that nobody has delivered: those behind its last one that is known, up to this one.
pub(super) async fn go_on(
    sql: &mut SqlTransaction,
    projection: &dyn AnyProjection,
    id: &str,
    up_to: Version,
) -> Result<Option<Made>, Trouble> {
    let (name, kind, by) = (projection.name(), projection.kind(), projection.version());
    let projected = sql.lock_projected(name, kind, &[id.to_owned()]).await?;
    let Projected { version, by: made_by } = projected.get(id).copied().unwrap_or_default();
    if made_by != by || version >= up_to {
        return Ok(None);
    }
    let mut made = Made::default();
    let key = AggregateKey::from_stored(kind, id);
    let reached = match catch_up(sql, projection, &key, version, up_to, &mut made).await {
        Err(Trouble::Lost(..)) => {
            made.begin_anew(sql, projection, &BTreeSet::from([id.to_owned()])).await?;
            catch_up(sql, projection, &key, 0, up_to, &mut made).await?
        }
        reached => reached?,
    };
    sql.note_projected(name, kind, by, &[(id.to_owned(), reached)]).await?;
    made.write_watches(sql).await?;
    Ok(Some(made))
}

/// Projects the facts of an aggregate behind one and up to another, from the log. Answers how far that goes.
async fn catch_up(
    sql: &mut SqlTransaction,
    projection: &dyn AnyProjection,
    aggregate: &AggregateKey,
    after: Version,
    up_to: Version,
    made: &mut Made,
) -> Result<Version, Trouble> {
    let mut known = after;
    while known < up_to {
        let most = u32::try_from((up_to - known).min(PAGE)).unwrap_or(u32::MAX);
        let page = sql.events_of_within(aggregate, known, most, PAGE_BYTES).await?;
        let Some(last) = page.last() else { break };
        known = last.envelope.aggregate_version;
        let events: Vec<IncomingEvent> =
            page.into_iter().map(|recorded| IncomingEvent::from(recorded.envelope)).collect();
        made.project(sql, projection, &events.iter().collect::<Vec<_>>()).await?;
    }
    Ok(known)
}

/// An aggregate that goes on.
struct Due<'e> {
    key: AggregateKey,
    /// Its last fact that is in the rows.
    known: Version,
    /// The last that will be.
    last: Version,
    /// Those between, if all were delivered.
    facts: Option<Vec<&'e IncomingEvent>>,
}

/// What was done so far.
#[derive(Clone, Default)]
pub(super) struct Made {
    pub(super) facts: u64,
    /// What observers look at because of it, until it is written.
    watches: Watches,
    /// Observers that are to look once it is committed.
    urgent: Vec<&'static str>,
}

impl Made {
    /// Whom it concerns once it is committed.
    pub(super) fn committed(&self) -> Committed {
        let mut committed = Committed::default();
        self.urgent.iter().for_each(|observer| committed.and(Committed::watched(observer)));
        committed
    }

    /// Clears the rows of these aggregates: their facts are taken from the first on.
    async fn begin_anew(
        &mut self,
        sql: &mut SqlTransaction,
        projection: &dyn AnyProjection,
        ids: &BTreeSet<String>,
    ) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let owners: Vec<String> = ids.iter().cloned().collect();
        for OwnedTable { table, aggregate } in projection.tables() {
            sql.delete_rows_of(table, aggregate, &owners).await?;
        }
        self.watches.begin_anew(sql, projection.watches(), ids).await
    }

    async fn write_watches(&mut self, sql: &mut SqlTransaction) -> Result<(), StoreError> {
        self.urgent = std::mem::take(&mut self.watches).write(sql).await?;
        Ok(())
    }

    /// Projects facts onto their rows, which are read and written once per table.
    async fn project(
        &mut self,
        sql: &mut SqlTransaction,
        projection: &dyn AnyProjection,
        events: &[&IncomingEvent],
    ) -> Result<(), Trouble> {
        let mut facts: Vec<(AggregateId, Box<dyn AnyFact + '_>)> = Vec::new();
        let mut keys: Vec<RowKey> = Vec::new();
        for event in events {
            self.facts += 1;
            let Some(aggregate) = &event.aggregate else { continue };
            let read = guarded(|| {
                let Some(fact) = projection.read(event)? else { return Ok(None) };
                let keys = fact.keys();
                Ok(Some((fact, keys)))
            });
            match read {
                Ok(None) => {}
                Ok(Some((fact, of_fact))) => {
                    keys.extend(of_fact);
                    facts.push((aggregate.id.clone(), fact));
                }
                Err(error) => return Err(Trouble::Fact(aggregate.id.clone(), error)),
            }
        }
        let ids = facts.iter().map(|(id, _)| id.to_string()).collect();
        self.watches.load(sql, projection.watches(), &ids).await?;
        let mut rows = Rows::with(std::mem::take(&mut self.watches));
        rows.load(sql, keys).await?;
        let projected = project_onto(&mut rows, &facts);
        self.watches = std::mem::take(&mut rows.watches);
        projected?;
        Ok(rows.write(sql).await?)
    }
}

fn project_onto(rows: &mut Rows, facts: &[(AggregateId, Box<dyn AnyFact + '_>)]) -> Result<(), Trouble> {
    for (id, fact) in facts {
        guarded(|| fact.project(rows)).map_err(|error| match rows.is_lost() {
            true => Trouble::Lost(id.clone(), error),
            false => Trouble::Fact(id.clone(), error),
        })?;
    }
    Ok(())
}

/// Runs what the application has written. A panic is the fact's fault, and not that of those beside it.
fn guarded<T>(run: impl FnOnce() -> Result<T, HandlerError>) -> Result<T, HandlerError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        Err(HandlerError::transient("handler-panicked", panic_message(panic.as_ref())))
    })
}
