//! Projections: rows that are made from facts, and can be made anew at any time.
//!
//! Reading order: this file declares a projection and what it gets; `rows` is what it changes, `watches` what observers look
//! at because of it; `engine` takes facts in, in order and each once; `rebuild` makes everything anew, beside a running system.

mod engine;
mod rebuild;
mod rows;
mod watches;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use towpath_core::ids::{AggregateId, CorrelationId, EventId, HandlerName, InvalidId, Version};
use towpath_core::incoming::IncomingEvent;
use towpath_core::messages::Event;
use towpath_core::ports::store::{StoreError, StoreTx as _};
use towpath_store::{Row, SqlTransaction, Table};

use crate::consumer::{Batch, Consumer, HandlerError, Next};
use crate::towpath::Towpath;

use engine::Trouble;
pub(crate) use rebuild::start;
pub use rebuild::{FailedAggregate, Rebuilt};
pub use rows::{RowKey, Rows};
pub use towpath_core::ports::store::{ProjectionFailure, ProjectionProgress};

/// How many facts are taken in together.
const TOGETHER: usize = 64;

/// When a fact comes again whose rows a newer version of the projection has made: its instance takes over soon.
const LEFT_TO_NEWER: Duration = Duration::from_secs(5);

/// Facts of one kind of aggregate as rows. Each row belongs to one aggregate, and one projection writes each table.
///
/// ```
/// # use towpath::projection::{Fact, OwnedTable, Projection, RowKey, Rows};
/// # use towpath::tables::Row;
/// # use towpath::{Event, HandlerError};
/// # #[derive(serde::Serialize, serde::Deserialize, Event)]
/// # enum DoorEvent { #[serde(rename = "door.opened")] Opened }
/// #[derive(Row)]
/// #[row(table = "doors")]
/// struct DoorRow {
///     #[row(key, name = 128)]
///     door_id: String,
///     opened: u64,
/// }
///
/// struct Doors;
///
/// impl Projection for Doors {
///     const NAME: &'static str = "doors";
///     const VERSION: u32 = 1;
///     const KIND: &'static str = "door";
///     type Event = DoorEvent;
///
///     fn tables() -> &'static [OwnedTable] {
///         const { &[OwnedTable::of::<DoorRow>("door_id")] }
///     }
///
///     fn keys(&self, fact: &Fact<DoorEvent>) -> Vec<RowKey> {
///         vec![RowKey::of::<DoorRow>(&fact.aggregate_id.to_string())]
///     }
///
///     fn project(&self, fact: &Fact<DoorEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
///         let door_id = fact.aggregate_id.to_string();
///         let opened = rows.find::<DoorRow>(&door_id)?.map_or(0, |row| row.opened);
///         rows.put(&DoorRow { door_id, opened: opened + 1 })
///     }
/// }
/// ```
///
/// # Guarantees
/// Each fact of an aggregate is projected once and in order, whatever is delivered twice, late or not at all before a later
/// one: what is missing is read from the log. The rows are the same as if all facts had been projected onto none.
///
/// # Caveats
/// What is written from elsewhere into these tables is lost when the aggregate is projected anew.
pub trait Projection: Send + Sync + 'static {
    /// Its stored name. Never change it: under another name everything is made anew.
    const NAME: &'static str;

    /// Raise it when the same facts make other rows: all aggregates are made anew then, beside the running system.
    const VERSION: u32;

    /// The kind of aggregate whose facts these are.
    const KIND: &'static str;

    /// What may have happened to it. A fact whose name is none of these is passed over.
    type Event: Event;

    /// The tables whose rows it makes. They are declared with [`Builder::tables`](crate::Builder::tables), too.
    fn tables() -> &'static [OwnedTable];

    /// Observers that look at what its aggregates are about, and at nothing else: [`Rows::watch`] tells them. Each is named by
    /// one projection.
    fn watches() -> &'static [&'static str] {
        &[]
    }

    /// The rows that the fact asks for: they are locked, and can be read from [`Rows`].
    fn keys(&self, _fact: &Fact<Self::Event>) -> Vec<RowKey> {
        Vec::new()
    }

    /// What the fact makes of the rows. Pure: the same fact on the same rows does the same.
    ///
    /// # Errors
    /// The aggregate stays as it was before the fact, and is shown ([`Towpath::projections`]); others go on.
    fn project(&self, fact: &Fact<Self::Event>, rows: &mut Rows) -> Result<(), HandlerError>;
}

/// A table, and the column in it that names the aggregate that a row belongs to. An index should begin with that.
#[derive(Debug, Clone, Copy)]
pub struct OwnedTable {
    /// The table.
    pub table: &'static Table,
    /// The column with the aggregate's id.
    pub aggregate: &'static str,
}

impl OwnedTable {
    /// The table of these rows.
    pub const fn of<R: Row>(aggregate: &'static str) -> Self {
        Self { table: R::TABLE, aggregate }
    }
}

/// A fact, with what a projection may know of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Fact<E> {
    /// What happened.
    pub event: E,
    /// The fact's own id.
    pub event_id: EventId,
    /// To which aggregate.
    pub aggregate_id: AggregateId,
    /// The version of the aggregate that it made.
    pub version: Version,
    /// When.
    pub occurred_at: DateTime<Utc>,
    /// The flow it belongs to.
    pub correlation_id: Option<CorrelationId>,
}

/// Projections that one consumer keeps.
#[derive(Clone)]
pub struct Projections(Arc<Kept>);

struct Kept {
    handler: String,
    channel: String,
    all: Vec<Arc<dyn AnyProjection>>,
}

/// A projection and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectionStatus {
    /// Its name.
    pub name: &'static str,
    /// Which version this instance has.
    pub version: u32,
    /// Whose facts these are.
    pub kind: &'static str,
    /// How far it is.
    pub progress: ProjectionProgress,
}

impl ProjectionStatus {
    /// Whether all aggregates that were there when this version began have been made by it, or by a newer one.
    pub fn is_made(&self) -> bool {
        self.progress.made_by >= self.version
    }
}

impl Projections {
    /// Kept from what a channel publishes, by a consumer of this name.
    pub fn of(channel: impl Into<String>, handler: impl Into<String>) -> Self {
        let (channel, handler) = (channel.into(), handler.into());
        Self(Arc::new(Kept { handler, channel, all: Vec::new() }))
    }

    /// With one more.
    pub fn with<P: Projection>(self, projection: P) -> Self {
        let kept = &self.0;
        let mut all = kept.all.clone();
        all.push(Arc::new(projection));
        let (channel, handler) = (kept.channel.clone(), kept.handler.clone());
        Self(Arc::new(Kept { handler, channel, all }))
    }

    /// What takes the facts in.
    pub(crate) fn consumer(&self) -> Consumer {
        let Kept { channel, handler, .. } = self.0.as_ref();
        let kept = Arc::clone(&self.0);
        Consumer::of(channel).in_order().batches(handler, TOGETHER, move |batch| {
            let kept = Arc::clone(&kept);
            async move { kept.take(batch).await }
        })
    }

    /// What is wrong with them, if anything is.
    pub(crate) fn check(all: &[Self]) -> Result<(), String> {
        let (mut seen, mut watched) = (BTreeSet::new(), BTreeSet::new());
        for projection in all.iter().flat_map(|kept| &kept.0.all) {
            let name = projection.name();
            HandlerName::new(name).map_err(|error: InvalidId| error.to_string())?;
            if !seen.insert(name) {
                return Err(format!(
                    "two projections are called {name}: each would take the other's rows for its own"
                ));
            }
            if projection.version() == 0 {
                return Err(format!("projection {name} has version 0: versions count from 1"));
            }
            if let Some(observer) = projection.watches().iter().find(|observer| !watched.insert(**observer)) {
                return Err(format!(
                    "projection {name}: another one says what {observer} looks at, and each would end what the other says"
                ));
            }
            for OwnedTable { table, aggregate } in projection.tables() {
                if !table.columns().any(|column| column == *aggregate) {
                    let table = table.name();
                    return Err(format!("projection {name}: {table} has no column {aggregate}"));
                }
            }
        }
        Ok(())
    }
}

impl Kept {
    async fn take(&self, mut batch: Batch) -> Result<Next, HandlerError> {
        let deliveries = std::mem::take(&mut batch.deliveries);
        // Alone, and not for the first time.
        let is_last_try = matches!(deliveries.as_slice(), [one] if one.attempt > 1);
        let events: Vec<IncomingEvent> = deliveries.into_iter().map(|delivered| delivered.event).collect();
        for projection in &self.all {
            if is_last_try {
                batch.tx.own_tables().plain("projection.savepoint", "SAVEPOINT projection").await?;
            }
            match engine::take_in(batch.tx.sql(), projection.as_ref(), &events).await {
                Ok(made) => batch.tx.committing(made.committed()),
                // The fact is in the log, and later ones bring it with them: a letter of it would only keep them back.
                Err(Trouble::Fact(aggregate_id, error) | Trouble::Lost(aggregate_id, error))
                    if is_last_try =>
                {
                    let undo = "ROLLBACK TO SAVEPOINT projection";
                    batch.tx.own_tables().plain("projection.undo", undo).await?;
                    projection.failed(batch.tx.sql(), aggregate_id.as_str(), &error).await?;
                }
                Err(Trouble::Fact(_, error) | Trouble::Lost(_, error)) => {
                    return Err(HandlerError::transient(error.code(), error.message()));
                }
                Err(Trouble::MadeByNewer) => {
                    let message = format!("a newer version of {} has made its rows", projection.name());
                    return Ok(batch.retry_after(LEFT_TO_NEWER, "projection-newer", message));
                }
                Err(Trouble::Missing(error)) => return Err(error),
                Err(Trouble::Store(error)) => return Err(error.into()),
            }
        }
        Ok(batch.handled())
    }
}

impl Towpath {
    /// The projections of this instance, and how far they are. It counts aggregates: for people, not for programs that ask all
    /// the time.
    pub async fn projections(&self) -> Result<Vec<ProjectionStatus>, StoreError> {
        let mut all = Vec::new();
        for projection in self.projections.iter().flat_map(|kept| &kept.0.all) {
            let (name, kind, version) = (projection.name(), projection.kind(), projection.version());
            let progress = self.store().projection_progress(name, kind, version).await?;
            all.push(ProjectionStatus { name, version, kind, progress });
        }
        Ok(all)
    }
}

/// A projection without its types.
pub(crate) trait AnyProjection: Send + Sync {
    fn name(&self) -> &'static str;
    fn version(&self) -> u32;
    fn kind(&self) -> &'static str;
    fn tables(&self) -> &'static [OwnedTable];
    fn watches(&self) -> &'static [&'static str];
    /// The fact, if it is one of the projection's.
    fn read<'p>(&'p self, event: &IncomingEvent) -> Result<Option<Box<dyn AnyFact + 'p>>, HandlerError>;
}

/// A fact that was read, with the projection that it is for.
pub(crate) trait AnyFact: Send {
    fn keys(&self) -> Vec<RowKey>;
    fn project(&self, rows: &mut Rows) -> Result<(), HandlerError>;
}

struct Read<'p, P: Projection> {
    projection: &'p P,
    fact: Fact<P::Event>,
}

impl<P: Projection> AnyProjection for P {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn version(&self) -> u32 {
        P::VERSION
    }

    fn kind(&self) -> &'static str {
        P::KIND
    }

    fn tables(&self) -> &'static [OwnedTable] {
        <P as Projection>::tables()
    }

    fn watches(&self) -> &'static [&'static str] {
        <P as Projection>::watches()
    }

    fn read<'p>(&'p self, event: &IncomingEvent) -> Result<Option<Box<dyn AnyFact + 'p>>, HandlerError> {
        let (Some(aggregate), Some(version)) = (&event.aggregate, event.aggregate_version) else {
            return Ok(None);
        };
        if !P::Event::NAMES.contains(&event.event_type.as_str()) {
            return Ok(None);
        }
        let fact = Fact {
            event: event.read().map_err(HandlerError::unrecoverable_source)?,
            event_id: event.event_id,
            aggregate_id: aggregate.id.clone(),
            version,
            occurred_at: event.occurred_at.unwrap_or_default(),
            correlation_id: event.correlation_id.clone(),
        };
        Ok(Some(Box::new(Read { projection: self, fact })))
    }
}

impl<P: Projection> AnyFact for Read<'_, P> {
    fn keys(&self) -> Vec<RowKey> {
        self.projection.keys(&self.fact)
    }

    fn project(&self, rows: &mut Rows) -> Result<(), HandlerError> {
        self.projection.project(&self.fact, rows)
    }
}

impl dyn AnyProjection + '_ {
    /// Notes why an aggregate does not go on.
    async fn failed(
        &self,
        sql: &mut SqlTransaction,
        id: &str,
        error: &HandlerError,
    ) -> Result<(), StoreError> {
        tracing::error!(
            projection = self.name(),
            kind = self.kind(),
            aggregate = id,
            code = error.code(),
            cause = error.message(),
            "a fact cannot be projected; its aggregate stays as it was before"
        );
        sql.projection_failed(self.name(), self.kind(), id, (error.code(), &error.message())).await
    }
}
