//! Makes rows anew beside a running system: aggregate by aggregate, each in a transaction of its own, a page of facts at a time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use towpath_core::ids::{InstanceId, LeaseName};
use towpath_core::ports::store::{StoreError, StoreResult, StoreTx as _};
use towpath_core::retry::Coded as _;
use towpath_store::{Owned, Owner, SqlStore};

use super::engine::{Trouble, go_on, make_anew};
use super::{AnyProjection, OwnedTable, Projections};
use crate::bus::{Bus, pause, with_causes};
use crate::consumer::HandlerError;
use crate::service::{Backoff, Service, Stopping, Wake, rest};
use crate::transact::giving_way;

/// How many aggregates are looked at together.
const PAGE: u32 = 500;

/// How often an aggregate that lost against its consumer is begun anew.
const GIVES_WAY_AT_MOST: u32 = 30;

/// How long until what has failed is tried again.
const AGAIN_AFTER_A_FAILURE: Duration = Duration::from_secs(300);

/// How long until it is looked again for what nobody has delivered: an instance that does not know of the channel yet puts
/// nothing onto it.
const AGAIN: Duration = Duration::from_secs(600);

/// How many failures are told.
const FAILURES: usize = 100;

/// What a rebuild did.
#[derive(Debug, Default)]
pub struct Rebuilt {
    /// How many facts were read.
    pub facts: u64,
    /// How many aggregates were made anew, by projection.
    pub aggregates: BTreeMap<&'static str, u64>,
    /// How many could not be: they are as they were.
    pub failed: u64,
    /// The first hundred of those.
    pub failures: Vec<FailedAggregate>,
}

/// An aggregate that could not be made anew.
#[derive(Debug)]
pub struct FailedAggregate {
    /// By which projection.
    pub projection: &'static str,
    /// Which one of its kind.
    pub aggregate_id: String,
    /// Why.
    pub error: HandlerError,
}

impl Projections {
    /// Makes all rows anew from the log, unless a newer version of the projection has made them, and deletes those that belong to
    /// no aggregate. The system may run meanwhile: an aggregate is as it was before, or as its facts make it. Observers look at
    /// everything again, after what somebody has asked for: so they find what was missed.
    ///
    /// # Errors
    /// The store's: what was made so far is right, and the next one begins anew. An aggregate that cannot be projected is told
    /// in the answer.
    pub async fn rebuild(&self, store: &SqlStore) -> Result<Rebuilt, StoreError> {
        let mut rebuilt = Rebuilt::default();
        for projection in &self.0.all {
            let making = Making { store, projection: projection.as_ref(), all: true, under: None };
            making.run(&mut rebuilt).await?;
            for observer in projection.watches() {
                giving_way(|| look_at_all(store, observer)).await?;
            }
        }
        Ok(rebuilt)
    }
}

async fn look_at_all(store: &SqlStore, observer: &str) -> StoreResult<()> {
    let mut transaction = store.open_transaction().await?;
    transaction.look_at_all(observer).await?;
    transaction.finish().await
}

/// Starts what makes those aggregates that an older version has made, or nobody, and finds what was not delivered.
pub(crate) fn start(
    bus: Bus,
    store: SqlStore,
    instance: InstanceId,
    (lease, scan): (Duration, Duration),
    all: &[Projections],
) -> Service {
    let all: Vec<Arc<dyn AnyProjection>> = all.iter().flat_map(|kept| kept.0.all.clone()).collect();
    Service::keep_running("projections", move |stopping| {
        run(bus.clone(), store.clone(), instance.clone(), (lease, scan), all.clone(), stopping)
    })
}

async fn run(
    bus: Bus,
    store: SqlStore,
    instance: InstanceId,
    (lease, scan): (Duration, Duration),
    all: Vec<Arc<dyn AnyProjection>>,
    mut stopping: Stopping,
) {
    while !stopping.is_asked() {
        let mut is_failing = false;
        for projection in &all {
            is_failing |=
                bring_up_to_date(&bus, &store, &instance, (lease, scan), projection, &mut stopping).await;
        }
        let pause = if is_failing { AGAIN_AFTER_A_FAILURE } else { AGAIN };
        rest(&Wake::default(), pause, &mut stopping).await;
    }
}

/// Answers whether something of it has failed.
async fn bring_up_to_date(
    bus: &Bus,
    store: &SqlStore,
    instance: &InstanceId,
    (lease, scan): (Duration, Duration),
    projection: &Arc<dyn AnyProjection>,
    stopping: &mut Stopping,
) -> bool {
    let name = LeaseName::from_stored(format!("projection/{}", projection.name()));
    let mut backoff = Backoff::default();
    while !stopping.is_asked() {
        let under = Under { bus, name: &name, holder: instance, lease, stopping };
        let projection = projection.as_ref();
        let making = Making { store, projection, all: false, under: Some(under) };
        let wait = match making.bring_up_to_date().await {
            Ok(Some(failed)) => return failed > 0,
            // Another instance is at it.
            Ok(None) => scan,
            Err(error) => {
                let (code, cause) = (error.code(), with_causes(&error));
                tracing::warn!(projection = projection.name(), code, cause, "could not make rows anew");
                backoff.next()
            }
        };
        rest(&Wake::default(), wait, stopping).await;
    }
    false
}

/// One projection that is being made.
struct Making<'m> {
    store: &'m SqlStore,
    projection: &'m dyn AnyProjection,
    /// Also what this version has made.
    all: bool,
    /// None: whoever wants it waits for it.
    under: Option<Under<'m>>,
}

/// How an aggregate is made, up to this fact or the last that is known.
#[derive(Clone, Copy)]
enum How {
    Anew { up_to: u64, also_if_current: bool },
    GoingOn { up_to: u64 },
}

/// The lease under which one instance does it. Two at once would only do it twice: each aggregate's own lock decides.
struct Under<'u> {
    /// Tells what was committed.
    bus: &'u Bus,
    name: &'u LeaseName,
    holder: &'u InstanceId,
    lease: Duration,
    stopping: &'u Stopping,
}

impl Making<'_> {
    /// How many aggregates cannot be made, when all others are; nothing, if it did not come to its end.
    async fn bring_up_to_date(&self) -> StoreResult<Option<u64>> {
        let name = self.projection.name();
        let mut rebuilt = Rebuilt::default();
        let is_done = self.run(&mut rebuilt).await?;
        let (aggregates, failed) =
            (rebuilt.aggregates.get(name).copied().unwrap_or_default(), rebuilt.failed);
        if rebuilt.facts > 0 || failed > 0 {
            let facts = rebuilt.facts;
            tracing::info!(projection = name, aggregates, facts, failed, is_done, "rows were made anew");
        }
        Ok(is_done.then_some(failed))
    }

    /// Answers whether it came to its end.
    async fn run(&self, rebuilt: &mut Rebuilt) -> StoreResult<bool> {
        let (name, kind, by) = (self.projection.name(), self.projection.kind(), self.projection.version());
        let failed = rebuilt.failed;
        let mut after = String::new();
        while self.goes_on().await? {
            let page = self.store.projected_behind(name, kind, &after, PAGE).await?;
            let Some(last) = page.last() else {
                if !self.forget_strays(rebuilt).await? {
                    return Ok(false);
                }
                // What has failed is tried again.
                if rebuilt.failed == failed {
                    self.store.projection_is_made(name, kind, by).await?;
                }
                return self.release().await;
            };
            after.clone_from(&last.id);
            for found in page.iter() {
                if self.is_stopping() {
                    return self.release().await.map(|_| false);
                }
                // What has failed may go on by now.
                let also_if_current = self.all || found.is_failing;
                if also_if_current || found.projected.by < by {
                    self.make(&found.id, How::Anew { up_to: found.version, also_if_current }, rebuilt)
                        .await?;
                } else if found.projected.by == by && found.projected.version < found.version {
                    self.make(&found.id, How::GoingOn { up_to: found.version }, rebuilt).await?;
                }
            }
        }
        Ok(false)
    }

    /// Deletes rows that belong to no aggregate, and what is looked at for none. They are made anew, from no facts: should it have some by now, they count.
    async fn forget_strays(&self, rebuilt: &mut Rebuilt) -> StoreResult<bool> {
        let of = (self.projection.name(), self.projection.kind());
        let tables = self.projection.tables().iter();
        let rows = tables.map(|OwnedTable { table, aggregate }| Owned::Rows(table, aggregate));
        let watched = self.projection.watches().iter().map(|observer| Owned::Watched(observer));
        for owned in rows.chain(watched) {
            let mut after = String::new();
            loop {
                if !self.goes_on().await? {
                    return Ok(false);
                }
                let owners = self.store.owners_behind(of, owned, &after, PAGE).await?;
                let Some(last) = owners.last() else { break };
                after.clone_from(&last.id);
                // By hand also what was projected of facts that the log does not have: of a database that was restored.
                let is_stray = |owner: &Owner| !owner.is_known || (self.all && !owner.has_facts);
                for owner in owners.iter().filter(|owner| is_stray(owner)) {
                    self.make(&owner.id, How::Anew { up_to: 0, also_if_current: self.all }, rebuilt).await?;
                }
            }
        }
        Ok(true)
    }

    async fn make(&self, id: &str, how: How, rebuilt: &mut Rebuilt) -> StoreResult<()> {
        let projection = self.projection;
        let mut gave_way = 0;
        loop {
            let mut sql = match self.store.open_transaction().await {
                Err(StoreError::Contention(_)) if gave_way < GIVES_WAY_AT_MOST => {
                    gave_way += 1;
                    tokio::time::sleep(pause(gave_way)).await;
                    continue;
                }
                opened => opened?,
            };
            let made = match how {
                How::Anew { up_to, also_if_current } => {
                    make_anew(&mut sql, projection, id, up_to, also_if_current).await
                }
                How::GoingOn { up_to } => go_on(&mut sql, projection, id, up_to).await,
            };
            let made = match made {
                Ok(made) => sql.finish().await.map(|()| made).map_err(Trouble::Store),
                Err(trouble) => {
                    // What matters is why it failed.
                    let _ = sql.abandon().await;
                    Err(trouble)
                }
            };
            let error = match made {
                Ok(None) | Err(Trouble::MadeByNewer) => return Ok(()),
                Ok(Some(made)) => {
                    rebuilt.facts += made.facts;
                    if made.facts > 0 {
                        *rebuilt.aggregates.entry(projection.name()).or_default() += 1;
                    }
                    if let Some(under) = &self.under {
                        under.bus.committed(&made.committed());
                    }
                    return Ok(());
                }
                Err(Trouble::Store(StoreError::Contention(_))) if gave_way < GIVES_WAY_AT_MOST => {
                    gave_way += 1;
                    tokio::time::sleep(pause(gave_way)).await;
                    continue;
                }
                // What the database does not take of it, it does not take the next time.
                Err(Trouble::Store(error @ (StoreError::Refused { .. } | StoreError::Corrupt { .. }))) => {
                    error.into()
                }
                Err(Trouble::Store(error)) => return Err(error),
                Err(Trouble::Fact(_, error) | Trouble::Lost(_, error) | Trouble::Missing(error)) => error,
            };
            let mut sql = self.store.open_transaction().await?;
            projection.failed(&mut sql, id, &error).await?;
            sql.finish().await?;
            rebuilt.failed += 1;
            if rebuilt.failures.len() < FAILURES {
                let (projection, aggregate_id) = (projection.name(), id.to_owned());
                rebuilt.failures.push(FailedAggregate { projection, aggregate_id, error });
            }
            return Ok(());
        }
    }

    fn is_stopping(&self) -> bool {
        self.under.as_ref().is_some_and(|under| under.stopping.is_asked())
    }

    /// Whether it is still this instance's turn.
    async fn goes_on(&self) -> StoreResult<bool> {
        let Some(under) = &self.under else { return Ok(true) };
        if under.stopping.is_asked() {
            return self.release().await.map(|_| false);
        }
        Ok(self.store.acquire_lease(under.name, under.holder, under.lease).await?.is_some())
    }

    async fn release(&self) -> StoreResult<bool> {
        if let Some(under) = &self.under
            && let Some(grant) = self.store.acquire_lease(under.name, under.holder, under.lease).await?
        {
            self.store.release_lease(&grant).await?;
        }
        Ok(true)
    }
}
