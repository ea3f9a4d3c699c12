//! Building, starting and stopping Towpath.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use towpath_broker::{BadBrokerUrl, BrokerUrl, Formats, LocalBroker, LocalOptions};
use towpath_core::aggregate::Aggregate;
use towpath_core::channel::Channel;
use towpath_core::decider::RegistrationFlaw;
use towpath_core::envelope::RecordedEvent;
use towpath_core::flow::{FlowReport, validate_flow};
use towpath_core::format::{Format, FormatError};
use towpath_core::ids::{AggregateKey, CommandId, CorrelationId, InstanceId, InvalidId, Position, Version};
use towpath_core::payload::Payload;
use towpath_core::ports::broker::{Broker, BrokerError, Topology};
use towpath_core::ports::clock::Clock;
use towpath_core::ports::store::{AggregateRow, CommandRecord, Flow, StateEvent, Store, StoreError};
use towpath_core::retry::RetryPolicy;
use towpath_core::route::Route;
use towpath_core::to_variant;
use towpath_store::{SqlStore, StoreOptions, StoreUrl, Table};
use uuid::Uuid;

use crate::bus::{Bus, FoldError, SendError};
use crate::carrying::Carrying;
use crate::circumstances::Circumstances;
use crate::cleaner::{self, Keeping};
use crate::clock::DatabaseClock;
use crate::committed::Wakes;
use crate::config::{BadChannels, Channels};
use crate::consumer::{self, Consumer, DeadLetterQueue, Letters, Wired, wire};
use crate::declaring::Declaration;
use crate::leases::{self, InFlight};
use crate::listings::{ConsumerView, LARGEST_FLOW, cut, links};
use crate::metrics::{Gauges, Meters};
use crate::observer::{Observer, ObserverContext, ObserverStatus, ObserverStatuses};
use crate::operations::{self, Operations};
use crate::outbox::Outbox;
use crate::registry::Registry;
use crate::relay::{self, RelayWakes, Surroundings};
use crate::send::Send;
use crate::service::{STOPPING, Service, stop_all};
use crate::tracker::{ChannelError, Trackers};
use crate::watch::{Watch, Watchers};
use crate::{notices, runner, sequencer, timers};

/// The store when none is configured.
const DEFAULT_STORE: &str = "sqlite://data/towpath.db";

/// The broker when none is configured.
const DEFAULT_BROKER: &str = "local:";

/// What is kept for how long when nothing else is said.
const DEFAULT_KEEPING: Keeping = Keeping {
    sent: Duration::from_secs(7 * 86_400),
    handled: Duration::from_secs(7 * 86_400),
    commands: Duration::from_secs(90 * 86_400),
    every: Duration::from_secs(600),
};

/// How long it waits beyond that for leases to be given back, and for the broker's connections.
const CLOSING: Duration = Duration::from_secs(3);

/// A running Towpath. Clones share it.
#[derive(Clone)]
pub struct Towpath {
    pub(crate) bus: Bus,
    store: SqlStore,
    broker_url: BrokerUrl,
    broker: Arc<dyn Broker>,
    declaration: Declaration,
    instance: InstanceId,
    pub(crate) trackers: Trackers,
    horizon: Duration,
    /// Channels whose events get outbox rows.
    pub(crate) relayed: Arc<[Channel]>,
    pub(crate) consumers: Arc<[ConsumerView]>,
    observers: ObserverStatuses,
    pub(crate) gauges: Arc<Gauges>,
    page_size: NonZeroU64,
    /// Events that begin flows: they may stand without a cause.
    root_events: Arc<[String]>,
    services: Arc<Mutex<Vec<Service>>>,
    /// What follows the logs of others here.
    #[cfg(feature = "follow")]
    pub(crate) followers: crate::follow::Followers,
    /// Keeps the leases that the services work under: stopped after them.
    keeper: Arc<Mutex<Vec<Service>>>,
}

/// Makes an application's own tables.
type Preparation = Box<
    dyn FnOnce(SqlStore) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + std::marker::Send>>
        + std::marker::Send,
>;

/// What Towpath is to be made of. Mistakes are collected and told by [`start`](Builder::start).
pub struct Builder {
    store_url: String,
    broker_url: String,
    store_options: StoreOptions,
    registry: Registry,
    channels: Vec<Channel>,
    topology: Topology,
    consumers: Vec<Consumer>,
    tables: Vec<Table>,
    observers: Vec<Observer>,
    dead_letter_queues: Vec<DeadLetterQueue>,
    watchers: Watchers,
    preparations: Vec<Preparation>,
    clock: Option<Arc<dyn Clock>>,
    retries: RetryPolicy,
    instance: Option<String>,
    lease: Duration,
    scan: Duration,
    keeping: Keeping,
    page_size: Option<NonZeroU64>,
    root_events: Vec<String>,
    keep_operations: Duration,
    migrate: bool,
    workers: bool,
    flaws: Vec<RegistrationFlaw>,
    invalid: Vec<InvalidId>,
    config: Option<BadChannels>,
}

/// Why Towpath did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Aggregates that cannot be registered: all that is wrong with them.
    #[error("aggregates cannot be registered:{}", listed(.0))]
    Registration(Vec<RegistrationFlaw>),
    /// A name that is not valid.
    #[error("a configured name is invalid")]
    InvalidName(#[from] InvalidId),
    /// Channels in a file that are not written as they should be.
    #[error("the channels cannot be read")]
    Channels(#[from] BadChannels),
    /// A channel cannot be followed.
    #[error("a channel cannot be followed")]
    Channel(#[from] ChannelError),
    /// The store cannot be used.
    #[error("the store cannot be used")]
    Store(#[from] StoreError),
    /// The broker's URL is wrong.
    #[error("the broker cannot be used")]
    BrokerUrl(#[from] BadBrokerUrl),
    /// A channel or a consumer names a format that is not there.
    #[error("{by} has no format")]
    Format {
        /// Who names it.
        by: String,
        /// Which.
        source: FormatError,
    },
    /// Consumers and channels do not fit together.
    #[error("{0}")]
    Wiring(String),
    /// The broker denies access, or its topology is not what was declared.
    #[error("the broker cannot be used")]
    Broker(#[from] BrokerError),
}

impl StartError {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Registration(_) => "registration",
            Self::InvalidName(_) => "invalid-id",
            Self::Channels(error) => error.code(),
            Self::Channel(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::BrokerUrl(error) => error.code(),
            Self::Format { source, .. } => source.code(),
            Self::Wiring(_) => "wiring",
            Self::Broker(error) => error.code(),
        }
    }

    /// What a person can do about it.
    pub fn next_step(&self) -> &'static str {
        match self {
            Self::Registration(_) => "Each flaw names the aggregate and what to write instead.",
            Self::InvalidName(_) => "Correct what the cause names.",
            Self::Channels(error) => error.next_step(),
            Self::Channel(error) => error.next_step(),
            Self::Store(error) => error.next_step(),
            Self::BrokerUrl(error) => error.next_step(),
            Self::Format { source, .. } => source.next_step(),
            Self::Wiring(_) => "Correct the consumer or channel that the message names.",
            Self::Broker(error) => error.next_step(),
        }
    }

    /// Everything that is wrong, with causes.
    pub fn report(&self) -> String {
        crate::bus::with_causes(self)
    }
}

/// A line for each flaw, with its causes.
fn listed(flaws: &[RegistrationFlaw]) -> String {
    flaws.iter().map(|flaw| format!("\n- {}", crate::bus::with_causes(flaw))).collect()
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
        Builder {
            store_url: DEFAULT_STORE.to_owned(),
            broker_url: DEFAULT_BROKER.to_owned(),
            store_options: StoreOptions::default(),
            registry: Registry::default(),
            channels: Vec::new(),
            consumers: Vec::new(),
            tables: Vec::new(),
            observers: Vec::new(),
            dead_letter_queues: Vec::new(),
            watchers: Watchers::default(),
            preparations: Vec::new(),
            topology: Topology::default(),
            clock: None,
            retries: RetryPolicy::for_commands(),
            instance: None,
            lease: Duration::from_secs(15),
            scan: Duration::from_secs(1),
            keeping: DEFAULT_KEEPING,
            page_size: None,
            root_events: Vec::new(),
            keep_operations: Duration::from_secs(24 * 60 * 60),
            migrate: true,
            workers: true,
            flaws: Vec::new(),
            invalid: Vec::new(),
            config: None,
        }
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
    /// nobody answers on them. Answers whether everything ended by itself.
    ///
    /// # Guarantees
    /// What is cut off is rolled back or, if its commit was on its way, whole; others take it up when its leases have run
    /// out.
    pub async fn stop_within(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut services = self.services.lock().await;
        #[cfg(feature = "follow")]
        let following = self.followers.stop_by(deadline);
        #[cfg(not(feature = "follow"))]
        let following = std::future::ready(true);
        let trackers = self.trackers.stop_by(deadline);
        let (tracked, followed, served) =
            tokio::join!(trackers, following, stop_all(services.iter_mut(), deadline));
        services.clear();
        let mut keepers = self.keeper.lock().await;
        let kept = stop_all(keepers.iter_mut(), deadline.max(Instant::now() + CLOSING)).await;
        keepers.clear();
        // The in-process broker gives back what is unsettled, and needs the store for that.
        let closed = tokio::time::timeout(CLOSING, self.broker.close()).await.is_ok();
        self.bus.stopped.store(true, Ordering::Relaxed);
        self.store.close().await;
        tracked && followed && served && kept && closed
    }
}

impl Builder {
    /// The store: `sqlite://PATH`, `postgres://…` or `mysql://…`.
    pub fn store(mut self, url: &str) -> Self {
        self.store_url = url.to_owned();
        self
    }

    /// How to connect to the store.
    pub fn store_options(mut self, options: StoreOptions) -> Self {
        self.store_options = options;
        self
    }

    /// The broker: `local:`, `amqp://…` or, with the feature `kafka`, `kafka://…`.
    pub fn broker(mut self, url: &str) -> Self {
        self.broker_url = url.to_owned();
        self
    }

    /// Registers an aggregate.
    pub fn aggregate<A: Aggregate>(mut self) -> Self {
        if let Err(flaws) = self.registry.register::<A>() {
            self.flaws.extend(flaws);
        }
        self
    }

    /// Registers a format that channels and consumers can name, beside Towpath's own and CloudEvents.
    pub fn format(mut self, format: impl Format) -> Self {
        self.flaws.extend(self.registry.format(format).err());
        self
    }

    /// Takes a kind for confidential although no aggregate of it is registered: its facts may be here from before, from
    /// another instance, or as the mirror of another log.
    pub fn confidential(mut self, kind: &str) -> Self {
        self.registry.withhold(kind);
        self
    }

    /// Adds a channel: events that fit its patterns get an outbox row each, and with a target they are published.
    ///
    /// A channel without a target only collects its rows.
    pub fn channel(mut self, channel: Result<Channel, InvalidId>) -> Self {
        match channel {
            Ok(channel) => {
                // A channel that follows the log needs no rows of its own.
                if channel.tracking.is_none() {
                    let (name, event_types) = (channel.name.clone(), channel.event_types.clone());
                    self.registry.route(Route { channel: name, event_types });
                }
                self.channels.push(channel);
            }
            Err(error) => self.invalid.push(error),
        }
        self
    }

    /// Adds the channels and the topology of a TOML text. See `docs/channels.md`.
    pub fn channels_from_toml(self, text: &str) -> Self {
        match Channels::from_toml(text) {
            Ok(channels) => self.channels(channels),
            Err(error) => Self { config: Some(error), ..self },
        }
    }

    /// Adds channels and topology that were read from a file.
    pub fn channels(self, channels: Channels) -> Self {
        let builder = self.topology(channels.topology);
        channels.channels.into_iter().fold(builder, |builder, channel| builder.channel(Ok(channel)))
    }

    /// Exchanges, queues and bindings that must exist on the broker before anything is published, beside those that were
    /// named before.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology.exchanges.extend(topology.exchanges);
        self.topology.queues.extend(topology.queues);
        self.topology.bindings.extend(topology.bindings);
        self
    }

    /// Adds a consumer: its handler gets the facts it asks for, each once.
    pub fn consumer(mut self, consumer: Consumer) -> Self {
        self.consumers.push(consumer);
        self
    }

    /// Adds tables of the application's own: made at the start where they are missing.
    pub fn tables(mut self, tables: &[Table]) -> Self {
        self.tables.extend_from_slice(tables);
        self
    }

    /// Adds an observer of resources outside.
    pub fn observer(mut self, observer: Observer) -> Self {
        self.observers.push(observer);
        self
    }

    /// A dead-letter queue of the broker's own that is read into the dead letters ([`Towpath::dead_letters`]). It must
    /// exist, or be declared in the topology.
    pub fn dead_letter_queue(mut self, queue: impl Into<DeadLetterQueue>) -> Self {
        self.dead_letter_queues.push(queue.into());
        self
    }

    /// Tells an application what becomes of its events and deliveries.
    pub fn watch(mut self, watch: Arc<dyn Watch>) -> Self {
        self.watchers.0.push(watch);
        self
    }

    /// Declares that a flow may begin with events of this type: they need no cause (G5). For facts that an application
    /// appends in a transaction of its own, without a command.
    pub fn begins_flow(mut self, event_type: impl Into<String>) -> Self {
        self.root_events.push(event_type.into());
        self
    }

    /// Runs after Towpath's own migration and before anything is received or published: for an application's own tables.
    /// Not run [`without_migration`](Builder::without_migration). It may run in several instances at a time, and must
    /// be able to run again.
    pub fn prepare<F, Done>(mut self, preparation: F) -> Self
    where
        F: FnOnce(SqlStore) -> Done + std::marker::Send + 'static,
        Done: Future<Output = Result<(), StoreError>> + std::marker::Send + 'static,
    {
        self.preparations.push(Box::new(move |store| Box::pin(preparation(store))));
        self
    }

    /// Another clock than the database's: for tests that hold time still. It is believed in everything but leases, so
    /// instances that share a database must not be given clocks that differ.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// When commands that failed for a passing reason are tried again. Default: after 1, 5 and 15 seconds.
    pub fn command_retries(mut self, policy: RetryPolicy) -> Self {
        self.retries = policy;
        self
    }

    /// A name for this instance that stays the same over restarts. With it, what an earlier life left unfinished is
    /// taken up at once; without it, when that life's lease has run out. Two running instances must not share one.
    pub fn instance(mut self, name: &str) -> Self {
        self.instance = Some(name.to_owned());
        self
    }

    /// How long an instance may be silent before others take over its work. Default: 15 seconds.
    pub fn lease(mut self, duration: Duration) -> Self {
        self.lease = duration;
        self
    }

    /// How often due work is looked for without being woken. Default: every second.
    pub fn scan(mut self, interval: Duration) -> Self {
        self.scan = interval;
        self
    }

    /// For how long outbox rows are kept after they were sent. Default: 7 days.
    pub fn keep_sent(mut self, duration: Duration) -> Self {
        self.keeping.sent = duration;
        self
    }

    /// The de-duplication horizon: for how long it is known that a delivery was handled. A message that is older and comes
    /// again cannot be told from a new one. Default: 7 days.
    pub fn horizon(mut self, duration: Duration) -> Self {
        self.keeping.handled = duration;
        self
    }

    /// For how long commands are kept after they ended. Until then a command that is sent again under its id is answered as it
    /// was; after that the id is forgotten, and sending it again runs it again. Default: 90 days.
    pub fn keep_commands(mut self, duration: Duration) -> Self {
        self.keeping.commands = duration;
        self
    }

    /// For how long the answer to an operation is kept for who asks again. Default: 1 day.
    pub fn keep_operations(mut self, duration: Duration) -> Self {
        self.keep_operations = duration;
        self
    }

    /// How often it is looked for rows that are older than that. Default: every 10 minutes.
    pub fn clean_every(mut self, interval: Duration) -> Self {
        self.keeping.every = interval;
        self
    }

    /// How many notifications a page of the notification log has. Default: what the log has, and 20 for a new one.
    ///
    /// It is fixed when the log is first opened: [`start`](Builder::start) refuses another one, because pages that others
    /// have kept would change.
    pub fn page_size(mut self, size: NonZeroU64) -> Self {
        self.page_size = Some(size);
        self
    }

    /// Do not migrate at the start; refuse to start on a database of another version.
    pub fn without_migration(mut self) -> Self {
        self.migrate = false;
        self
    }

    /// Send and read only: commands for later and retries are left to other instances.
    pub fn without_workers(mut self) -> Self {
        self.workers = false;
        self
    }

    /// Connects, migrates and starts the background services. A broker that is away does not matter: events wait, and what
    /// must exist on it is declared when it answers ([`Towpath::broker_ready`]).
    ///
    /// # Errors
    /// All registration flaws at once; a URL that is wrong, with what to write instead; a database that cannot be
    /// reached or is from a newer version; what a broker that answers has against the topology.
    pub async fn start(mut self) -> Result<Towpath, StartError> {
        if !self.flaws.is_empty() {
            return Err(StartError::Registration(self.flaws));
        }
        if let Some(error) = self.invalid.into_iter().next() {
            return Err(error.into());
        }
        if let Some(error) = self.config {
            return Err(error.into());
        }
        each_once(&self.channels)?;
        let formats = self.registry.formats();
        check_formats(formats, &self.channels, &self.consumers, &self.dead_letter_queues)?;
        let broker_url = BrokerUrl::parse(&self.broker_url)?;
        let url = StoreUrl::parse(&self.store_url)?;
        let instance = match self.instance {
            Some(name) => InstanceId::new(name)?,
            None => InstanceId::from_stored(Uuid::now_v7().to_string()),
        };
        let store = SqlStore::connect_with(&url, self.store_options).await?;
        if self.migrate {
            store.migrate().await?;
            store.create_tables(&self.tables).await?;
            for prepare in self.preparations {
                prepare(store.clone()).await?;
            }
        }
        store.ready().await?;
        let page_size = store.open_log(self.page_size).await?;
        let (clock, database_clock): (Arc<dyn Clock>, _) = match self.clock {
            Some(clock) => (clock, None),
            None => {
                let clock = DatabaseClock::of(&store).await?;
                (Arc::new(clock.clone()), Some(clock))
            }
        };
        let broker = open_broker(&broker_url, &store, self.lease, self.keeping.handled, &clock)?;
        let consumers = wire(
            &mut self.channels,
            &mut self.topology,
            &mut self.dead_letter_queues,
            self.consumers,
            broker.promises(),
        )?;
        self.registry.carry(Carrying::of(&self.channels, broker.promises()).map_err(StartError::Wiring)?);
        let queues = self.topology.queues.iter().map(|queue| &queue.name);
        let dead = self.dead_letter_queues.iter().map(|queue| &queue.name);
        let queues = queues.chain(consumers.iter().map(|wired| &wired.queue)).chain(dead);
        let queues: BTreeSet<String> = queues.cloned().collect();
        let declaration = Declaration::begin(broker.clone(), self.topology).await?;
        let handlers: BTreeSet<String> = consumers.iter().map(|wired| wired.handler.to_string()).collect();
        let (tracked, relayed): (Vec<_>, Vec<_>) =
            self.channels.into_iter().partition(|channel| channel.tracking.is_some());
        let outbox_channels: Arc<[Channel]> = relayed.clone().into();
        let consumer_views: Arc<[ConsumerView]> = consumers.iter().map(ConsumerView::of).collect();
        let with_rows: Vec<_> = relayed.iter().map(|channel| channel.name.clone()).collect();
        let targets = relayed.into_iter().filter_map(|channel| {
            let target = channel.target.clone()?;
            Some((channel, target))
        });
        let publishing: Vec<_> = targets.collect();
        let wakes = RelayWakes::new(publishing.iter().map(|(channel, _)| channel));
        let registry = Arc::new(self.registry);
        let woken = self.observers.iter().map(|observer| (observer.name.clone(), observer.wake.clone()));
        let woken = Arc::new(woken.collect());
        let bus = Bus {
            store: Arc::new(store.clone()),
            meters: Arc::new(Meters::of(&registry)),
            registry: registry.clone(),
            clock,
            database_clock,
            retries: self.retries,
            wakes: Wakes { relays: wakes.clone(), observers: woken, ..Wakes::default() },
            sequenced: watch::Sender::default(),
            stopped: Arc::default(),
        };
        let (mut services, mut keepers) = (vec![declaration.keep()], Vec::new());
        let mut holding = None;
        services.extend(bus.database_clock.as_ref().map(|clock| clock.keep(bus.store.clone())));
        let notifies = store.promises().notifies;
        if notifies {
            services.push(notices::tell(bus.clone(), store.clone(), instance.clone()));
        }
        if self.workers {
            let relayed = publishing.iter().map(|(channel, _)| channel.name.clone()).collect();
            let in_flight = InFlight::default();
            let (keeper, held) =
                leases::start(bus.clone(), instance.clone(), relayed, in_flight.clone(), self.lease).await?;
            keepers.push(keeper);
            holding = Some(held.clone());
            let pace = runner::Pace { lease: self.lease, scan: self.scan };
            services.push(runner::start(bus.clone(), held.clone(), pace));
            if notifies {
                let hearing = notices::hear(bus.clone(), store.clone(), instance.clone());
                services.push(hearing);
            }
            services.push(timers::start(bus.clone(), held.clone(), pace));
            let (every, keep) = (self.lease, self.keep_operations);
            services.push(operations::start(bus.clone(), held.clone(), every, keep));
            services.push(cleaner::start(bus.clone(), store.clone(), held.clone(), self.keeping));
            services.push(sequencer::start(bus.clone(), held.clone(), self.scan));
            for (channel, target) in publishing {
                let (held, in_flight) = (held.clone(), in_flight.clone());
                let around = Surroundings {
                    broker: broker.clone(),
                    declaration: declaration.clone(),
                    held,
                    in_flight,
                    answered: Arc::default(),
                    watchers: self.watchers.clone(),
                };
                services.extend(relay::start(&bus, &around, channel, target, &wakes));
            }
            let running = consumer::Running {
                bus: bus.clone(),
                store: store.clone(),
                broker: broker.clone(),
                declaration: declaration.clone(),
                watchers: self.watchers.clone(),
                patience: self.scan,
                lease: self.lease,
                process: uuid::Uuid::now_v7().to_string().into(),
                alone: Arc::default(),
            };
            for Wired { consumer, handler, queue } in consumers {
                services.extend(consumer::start(running.clone(), consumer, handler, queue));
            }
            for queue in self.dead_letter_queues {
                services.push(consumer::start_reader(running.clone(), queue));
            }
        }
        let observers = ObserverStatuses::default();
        for Observer { name, start, .. } in self.observers.into_iter().filter(|_| self.workers) {
            services.push(start(ObserverContext {
                name,
                bus: bus.clone(),
                store: store.clone(),
                instance: instance.clone(),
                lease: self.lease,
                statuses: observers.clone(),
            }));
        }
        let published = self.workers.then(|| (broker.clone(), declaration.clone()));
        let trackers =
            Trackers::new(bus.clone(), published, instance.clone(), self.lease, self.keeping.handled);
        for channel in tracked {
            trackers.follow(channel).await?;
        }
        let gauges = Gauges::new(
            store.clone(),
            broker.clone(),
            bus.clock.clone(),
            holding,
            with_rows,
            queues,
            handlers,
            observers.clone(),
        );
        tracing::info!(store = %url, broker = %broker_url, %instance, "towpath started");
        Ok(Towpath {
            bus,
            store,
            broker_url,
            broker,
            declaration,
            instance,
            trackers,
            horizon: self.keeping.handled,
            relayed: outbox_channels,
            consumers: consumer_views,
            observers,
            gauges: Arc::new(gauges),
            page_size,
            root_events: self.root_events.into(),
            #[cfg(feature = "follow")]
            followers: crate::follow::Followers::default(),
            services: Arc::new(Mutex::new(services)),
            keeper: Arc::new(Mutex::new(keepers)),
        })
    }
}

/// Refuses a format that nobody has registered.
fn check_formats(
    formats: &Formats,
    channels: &[Channel],
    consumers: &[Consumer],
    dead_letter_queues: &[DeadLetterQueue],
) -> Result<(), StartError> {
    let channels = channels.iter().map(|one| (format!("channel {}", one.name), Some(&one.format)));
    let consumers = consumers.iter().map(|one| (format!("consumer {}", one.handler), one.format.as_ref()));
    let queues = dead_letter_queues.iter().map(|one| (format!("queue {}", one.name), one.format.as_ref()));
    for (by, format) in channels.chain(consumers).chain(queues) {
        let named = format.map(|name| formats.named(name)).transpose();
        named.map_err(|source| StartError::Format { by, source })?;
    }
    Ok(())
}

/// Refuses a name that two channels share: each would relay the rows of both.
fn each_once(channels: &[Channel]) -> Result<(), StartError> {
    let mut seen = BTreeSet::new();
    match channels.iter().find(|channel| !seen.insert(&channel.name)) {
        None => Ok(()),
        Some(twice) => {
            let name = &twice.name;
            Err(StartError::Wiring(format!("two channels are called {name}: each event would go out twice")))
        }
    }
}

/// Opens the broker that a URL names.
#[cfg_attr(
    not(feature = "kafka"),
    allow(unused_variables, reason = "only Kafka forgets how far it was read")
)]
fn open_broker(
    url: &BrokerUrl,
    store: &SqlStore,
    lease: Duration,
    horizon: Duration,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<dyn Broker>, BadBrokerUrl> {
    match url {
        BrokerUrl::Local => {
            let options = LocalOptions { lease, ..LocalOptions::default() };
            Ok(Arc::new(LocalBroker::over(Arc::new(store.clone()), options)))
        }
        #[cfg(feature = "rabbitmq")]
        BrokerUrl::Amqp { .. } => Ok(Arc::new(towpath_broker::RabbitMq::connect(url)?)),
        #[cfg(feature = "kafka")]
        BrokerUrl::Kafka { .. } => {
            Ok(Arc::new(towpath_broker::Kafka::connect(url)?.remembered_for(horizon, Arc::clone(clock))))
        }
        #[cfg(not(all(feature = "rabbitmq", feature = "kafka")))]
        other => Err(BadBrokerUrl::not_built_in(other)),
    }
}
