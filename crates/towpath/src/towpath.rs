//! Towpath, while it runs: sending, reading, stopping.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;
use towpath_broker::BrokerUrl;
use towpath_core::aggregate::Aggregate;
use towpath_core::channel::Channel;
use towpath_core::envelope::RecordedEvent;
use towpath_core::flow::{FlowReport, validate_flow};
use towpath_core::ids::{AggregateKey, CommandId, CorrelationId, InstanceId, Position, Version};
use towpath_core::payload::Payload;
use towpath_core::ports::broker::{Broker, BrokerError};
use towpath_core::ports::clock::Clock;
use towpath_core::ports::store::{AggregateRow, CommandRecord, Flow, StateEvent, StoreError};
use towpath_core::to_variant;
use towpath_store::SqlStore;

use crate::builder::Builder;
use crate::bus::{Bus, FoldError, SendError};
use crate::checker::Checks;
use crate::circumstances::Circumstances;
use crate::consumer::Letters;
use crate::declaring::Declaration;
use crate::listings::{ConsumerView, LARGEST_FLOW, cut, links};
use crate::metrics::Gauges;
use crate::observer::{ObserverStatus, ObserverStatuses};
use crate::operations::Operations;
use crate::outbox::Outbox;
use crate::projection::Projections;
use crate::registry::Registry;
use crate::send::Send;
use crate::service::STOPPING;
use crate::services::Services;
use crate::tracker::Trackers;

/// How long it waits beyond that for leases to be given back, and for the broker's connections.
const CLOSING: Duration = Duration::from_secs(3);

/// A running Towpath. Clones share it.
#[derive(Clone)]
pub struct Towpath {
    pub(crate) bus: Bus,
    pub(crate) store: SqlStore,
    pub(crate) broker_url: BrokerUrl,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) declaration: Declaration,
    pub(crate) instance: InstanceId,
    pub(crate) trackers: Trackers,
    pub(crate) horizon: Duration,
    /// Channels whose events get outbox rows.
    pub(crate) relayed: Arc<[Channel]>,
    pub(crate) consumers: Arc<[ConsumerView]>,
    pub(crate) observers: ObserverStatuses,
    pub(crate) projections: Arc<[Projections]>,
    pub(crate) gauges: Arc<Gauges>,
    /// Which rules are looked at.
    #[cfg(feature = "alerts")]
    pub(crate) alerting: Option<Arc<crate::alerts::Alerting>>,
    pub(crate) page_size: NonZeroU64,
    /// Events that begin flows: they may stand without a cause.
    pub(crate) root_events: Arc<[String]>,
    /// How checks are done.
    pub(crate) checks: Checks,
    /// What runs in the background. What runs there has a handle without them: who drops the last one stops them.
    pub(crate) services: Arc<Services>,
    /// What follows the logs of others here.
    #[cfg(feature = "follow")]
    pub(crate) followers: crate::follow::Followers,
}

/// An aggregate as it is now.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View<A> {
    /// The folded state.
    pub value: A,
    /// How many events it has.
    pub version: Version,
    /// The machine's state.
    pub state: Option<String>,
}

impl Towpath {
    /// Begins with the embedded default: a SQLite file under `./data` and the in-process broker.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Begins with the URLs in `TOWPATH_STORE` and `TOWPATH_BROKER`, or the embedded default for those not set.
    pub fn from_env() -> Builder {
        let mut builder = Self::builder();
        if let Ok(url) = std::env::var("TOWPATH_STORE") {
            builder = builder.store(&url);
        }
        if let Ok(url) = std::env::var("TOWPATH_BROKER") {
            builder = builder.broker(&url);
        }
        builder
    }

    /// Sends a command to an aggregate. Nothing happens until the answer is awaited.
    pub fn send<A: Aggregate>(&self, aggregate_id: impl Into<String>, command: A::Command) -> Send<'_> {
        let (command_type, payload) = match to_variant(&command) {
            Ok((name, payload)) => (name, Ok(payload)),
            Err(error) => (String::new(), Err(error)),
        };
        let kind = Some(A::KIND.to_owned());
        Send::new(&self.bus, command_type, kind, aggregate_id.into(), payload)
    }

    /// Sends a command by its stored name, with its payload as JSON text: what comes from outside. A command that its
    /// aggregate declares as internal is refused.
    pub fn send_named(
        &self,
        command_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        payload: impl Into<String>,
    ) -> Send<'_> {
        let payload = Payload::from_text(payload);
        Send::new(&self.bus, command_type.into(), None, aggregate_id.into(), payload)
    }

    /// An aggregate as it is now; `None` if it does not exist.
    pub async fn load<A: Aggregate>(&self, aggregate_id: &str) -> Result<Option<View<A>>, SendError> {
        let key = AggregateKey::new(A::KIND, aggregate_id)?;
        let Some(row) = self.bus.store.load(&key, None).await.map_err(SendError::Store)?.aggregate else {
            return Ok(None);
        };
        let current = row.snapshot.as_ref().filter(|snapshot| snapshot.version == A::SNAPSHOT_VERSION);
        let (snapshot, state) = match (current, self.bus.registry.decider_of_kind(A::KIND)) {
            (Some(snapshot), _) => (snapshot.data.clone(), row.state.clone()),
            (None, None) => return Err(SendError::UnknownAggregate(A::KIND.to_owned())),
            (None, Some(decider)) => self.bus.fold_anew(decider.as_ref(), &key, row.version).await.map_err(
                |error| match error {
                    FoldError::Store(error) => SendError::Store(error),
                    FoldError::Panicked => {
                        SendError::Panicked { kind: A::KIND.to_owned(), command: "load".to_owned() }
                    }
                    FoldError::Decide(source) => {
                        SendError::Undecidable { aggregate: key.clone(), source: Box::new(source) }
                    }
                },
            )?,
        };
        let value = snapshot
            .read::<A>(A::KIND)
            .map_err(|source| SendError::UnreadableState { aggregate: key, source })?;
        Ok(Some(View { value, version: row.version, state }))
    }

    /// The row of an aggregate of any kind.
    pub async fn aggregate(&self, key: &AggregateKey) -> Result<Option<AggregateRow>, StoreError> {
        Ok(self.bus.store.load(key, None).await?.aggregate)
    }

    /// Events of an aggregate behind a version.
    pub async fn events_of(
        &self,
        key: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> Result<Vec<RecordedEvent>, StoreError> {
        self.bus.store.events_of(key, after, limit).await
    }

    /// State changes of an aggregate behind a version.
    pub async fn history_of(
        &self,
        key: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> Result<Vec<StateEvent>, StoreError> {
        self.bus.store.history_of(key, after, limit).await
    }

    /// A command and where it is.
    pub async fn command(&self, command_id: &CommandId) -> Result<Option<CommandRecord>, StoreError> {
        self.bus.store.command(command_id).await
    }

    /// Everything that belongs to a flow, and whether its chain of causes is whole (G5). `root_events` are event types
    /// that may stand without a cause, besides those that [begin flows](Builder::begins_flow). Of a flow with more than
    /// 10,000 commands or events the first are read; it is `truncated` then, and the report is of that part, which is never
    /// called whole.
    pub async fn flow(
        &self,
        correlation: &CorrelationId,
        root_events: &[&str],
    ) -> Result<(Flow, FlowReport), StoreError> {
        // One more tells whether that is all.
        let mut flow = self.bus.store.flow(correlation, LARGEST_FLOW + 1).await?;
        cut(&mut flow, LARGEST_FLOW as usize);
        let (commands, events) = links(&flow);
        let declared = self.root_events.iter().map(String::as_str);
        let roots: Vec<&str> = declared.chain(root_events.iter().copied()).collect();
        let mut report = validate_flow(&commands, &events, &roots);
        report.whole &= !flow.truncated;
        Ok((flow, report))
    }

    /// The dead letters of all consumers, and what the broker gave up.
    pub fn dead_letters(&self) -> Letters<'_> {
        let (store, broker, clock) = (&self.store, &self.broker, &self.bus.clock);
        let by = Circumstances::current().actor_id;
        Letters { store, broker, clock, horizon: self.horizon, by }
    }

    /// Where the observers of this instance are, by name.
    pub fn observers(&self) -> Vec<ObserverStatus> {
        self.observers.all()
    }

    /// What was registered.
    pub fn registry(&self) -> &Registry {
        &self.bus.registry
    }

    /// The store, for its pool.
    pub fn store(&self) -> &SqlStore {
        &self.store
    }

    /// The broker's URL.
    pub fn broker(&self) -> String {
        self.broker_url.to_string()
    }

    /// What an operator does about events that could not be published.
    pub fn outbox(&self) -> Outbox {
        Outbox { bus: self.bus.clone(), horizon: self.horizon }
    }

    /// Changes that somebody asked for from outside: each is run once and recorded as a fact.
    pub fn operations(&self) -> Operations<'_> {
        Operations { bus: &self.bus }
    }

    /// The de-duplication horizon: for how long it is known that a delivery was handled.
    pub fn horizon(&self) -> Duration {
        self.horizon
    }

    /// How many notifications a page of the notification log has: the same for the life of the log.
    pub fn page_size(&self) -> NonZeroU64 {
        self.page_size
    }

    /// Tells when the sequencer of this process has given positions, by the last of them. It is a hint to look: where
    /// another process is the sequencer it says nothing.
    pub fn sequenced(&self) -> watch::Receiver<Position> {
        self.bus.sequenced.subscribe()
    }

    /// The time that decisions are made by here: the database's, which all hosts share, told without asking it each
    /// time. A clock that the builder was given ([`Builder::clock`]) is believed instead.
    pub fn now(&self) -> DateTime<Utc> {
        self.bus.clock.now()
    }

    /// The clock behind [`now`](Self::now), for parts of an application that outlive a borrow.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.bus.clock.clone()
    }

    /// Asks the database for its time: before something is deleted or given up by its age. Elsewhere
    /// [`now`](Self::now) will do. A clock that the builder was given is believed instead.
    pub async fn database_time(&self) -> Result<DateTime<Utc>, StoreError> {
        self.bus.database_time().await
    }

    /// Which instance this is.
    pub fn instance(&self) -> &InstanceId {
        &self.instance
    }

    /// Whether the store answers and its tables are those of this build.
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.bus.store.ready().await
    }

    /// Whether the broker answers, and has what was declared.
    pub async fn broker_ready(&self) -> Result<(), BrokerError> {
        self.broker.ready().await?;
        self.declaration.check()
    }

    /// Stops: finishes what has begun, gives leases back, closes connections. What has not ended after 30 seconds is cut
    /// off. Stopping twice is fine; what is sent afterwards is refused.
    pub async fn stop(&self) {
        self.stop_within(STOPPING).await;
    }

    /// Stops, with another patience for what has begun. Closing connections takes some seconds more at most, even when
    /// nobody answers on them. Answers what was cut off, by name: `consumer ship`, `job close`, `broker`. Nothing, if
    /// everything ended by itself.
    ///
    /// # Guarantees
    /// What is cut off is rolled back or, if its commit was on its way, whole; others take it up when its leases have run
    /// out.
    pub async fn stop_within(&self, patience: Duration) -> Vec<String> {
        if !self.services.are_whole {
            tracing::warn!("a job cannot stop the Towpath that runs it");
            return Vec::new();
        }
        self.stop_waiting_for_tasks();
        let deadline = Instant::now() + patience;
        // Who stops it a second time waits for the first: closed beneath that one, the store could take nothing back.
        let _alone = self.services.stopping.lock().await;
        #[cfg(feature = "follow")]
        let following = self.followers.stop_by(deadline);
        #[cfg(not(feature = "follow"))]
        let following = std::future::ready(Vec::new());
        let (mut cut_off, followed, worked) =
            tokio::join!(self.trackers.stop_by(deadline), following, self.services.stop_workers(deadline));
        cut_off.extend(followed.into_iter().chain(worked));
        cut_off.extend(self.services.stop_keepers(deadline.max(Instant::now() + CLOSING)).await);
        // The in-process broker gives back what is unsettled, and needs the store for that.
        if tokio::time::timeout(CLOSING, self.broker.close()).await.is_err() {
            cut_off.push("broker".to_owned());
        }
        self.bus.stopped.store(true, Ordering::Relaxed);
        self.store.close().await;
        cut_off
    }
}
