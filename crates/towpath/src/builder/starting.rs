//! Makes a running Towpath of what was declared.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use towpath_broker::{BadBrokerUrl, BrokerUrl, LocalBroker, LocalOptions};
use towpath_core::ids::InstanceId;
use towpath_core::ports::broker::Broker;
use towpath_core::ports::clock::Clock;
use towpath_core::retry::RetryPolicy;
use towpath_store::{SqlStore, StoreUrl};
use uuid::Uuid;

use super::Builder;
use super::declared::Network;
use crate::bus::Bus;
use crate::checker;
use crate::clock::DatabaseClock;
use crate::committed::Wakes;
use crate::declaring::Declaration;
use crate::leases::{Held, InFlight};
use crate::listings::ConsumerView;
use crate::metrics::{Gauges, Meters};
use crate::observer::{Observer, ObserverStatuses};
use crate::relay::RelayWakes;
use crate::runner::Pace;
use crate::services::{Parts, Services};
use crate::start_error::StartError;
use crate::tasks::Engine;
use crate::towpath::Towpath;
use crate::tracker::Trackers;

impl Builder {
    /// Connects, migrates and starts the background services. A broker that is away does not matter: events wait, and what
    /// must exist on it is declared when it answers ([`Towpath::broker_ready`]).
    ///
    /// # Errors
    /// All registration flaws at once; a URL that is wrong, with what to write instead; a database that cannot be
    /// reached or is from a newer version; what a broker that answers has against the topology.
    pub async fn start(mut self) -> Result<Towpath, StartError> {
        self.declared.check()?;
        let opened = self.open().await?;
        let url = opened.url.clone();
        let network = self.declared.network(opened.broker.promises())?;
        let declaration = Declaration::begin(opened.broker.clone(), network.topology.clone()).await?;
        let bus = opened.bus(&network, &self.declared.observers, self.timing.retries.clone());
        let (hold, held) = watch::channel(Held::default());
        let holding = self.workers.then(|| held.clone());
        let app = self.towpath(opened, bus, declaration, &network, holding);
        checker::note_channels(&app).await?;
        let workers = std::mem::take(&mut self.declared.workers);
        let mut parts = Parts {
            tasks: Engine::of(&app, workers),
            app: app.clone(),
            hold,
            held,
            in_flight: InFlight::default(),
            pace: Pace { lease: self.timing.lease, scan: self.timing.scan },
            keeping: self.keeping,
            network,
            declared: self.declared,
        };
        let services = Services::start(&mut parts, self.workers).await?;
        tracing::info!(store = %url, broker = %app.broker_url, instance = %app.instance, "towpath started");
        Ok(Towpath { services: Arc::new(services), ..app })
    }

    /// Connects to the store, and brings its tables to what this build needs.
    async fn open(&mut self) -> Result<Opened, StartError> {
        let broker_url = BrokerUrl::parse(&self.broker_url)?;
        let url = StoreUrl::parse(&self.store_url)?;
        let instance = match self.instance.take() {
            Some(name) => InstanceId::new(name)?,
            None => InstanceId::from_stored(Uuid::now_v7().to_string()),
        };
        let store = SqlStore::connect_with(&url, std::mem::take(&mut self.store_options)).await?;
        if self.migrate {
            store.migrate().await?;
            store.create_tables(&self.declared.tables).await?;
            for versions in &self.declared.versions {
                store.migrate_tables(versions).await?;
            }
            for prepare in std::mem::take(&mut self.declared.preparations) {
                prepare(store.clone()).await?;
            }
        }
        store.ready().await?;
        let page_size = store.open_log(self.page_size).await?;
        let (clock, database_clock): (Arc<dyn Clock>, _) = match self.timing.clock.take() {
            Some(clock) => (clock, None),
            None => {
                let clock = DatabaseClock::of(&store).await?;
                (Arc::new(clock.clone()), Some(clock))
            }
        };
        let broker = open_broker(&broker_url, &store, self.timing.lease, self.keeping.handled, &clock)?;
        Ok(Opened { url, store, broker_url, broker, clock, database_clock, instance, page_size })
    }

    /// Towpath before anything runs in it.
    fn towpath(
        &mut self,
        opened: Opened,
        bus: Bus,
        declaration: Declaration,
        network: &Network,
        holding: Option<watch::Receiver<Held>>,
    ) -> Towpath {
        let Opened { store, broker_url, broker, instance, page_size, .. } = opened;
        let (lease, horizon) = (self.timing.lease, self.keeping.handled);
        let published = self.workers.then(|| (broker.clone(), declaration.clone()));
        let observers = ObserverStatuses::default();
        let gauges = Gauges::new(
            store.clone(),
            broker.clone(),
            bus.clock.clone(),
            bus.registry.clone(),
            holding,
            network.relayed.iter().map(|channel| channel.name.clone()).collect(),
            network.queues(),
            network.consumers.iter().map(|wired| wired.handler.to_string()).collect(),
            observers.clone(),
        );
        Towpath {
            trackers: Trackers::new(bus.clone(), published, instance.clone(), lease, horizon),
            bus,
            store,
            broker_url,
            broker,
            declaration,
            instance,
            horizon,
            relayed: network.relayed.clone().into(),
            consumers: network.consumers.iter().map(ConsumerView::of).collect(),
            observers,
            projections: std::mem::take(&mut self.declared.projections).into(),
            gauges: Arc::new(gauges),
            #[cfg(feature = "alerts")]
            alerting: self.declared.alerting.take().map(Arc::new),
            page_size,
            root_events: std::mem::take(&mut self.declared.root_events).into(),
            checks: self.checks.keeping(&self.keeping),
            #[cfg(feature = "follow")]
            followers: crate::follow::Followers::default(),
            services: Arc::default(),
        }
    }
}

/// What Towpath stands on.
struct Opened {
    url: StoreUrl,
    store: SqlStore,
    broker_url: BrokerUrl,
    broker: Arc<dyn Broker>,
    clock: Arc<dyn Clock>,
    database_clock: Option<DatabaseClock>,
    instance: InstanceId,
    page_size: NonZeroU64,
}

impl Opened {
    fn bus(&self, network: &Network, observers: &[Observer], retries: RetryPolicy) -> Bus {
        let relays = RelayWakes::new(network.publishing.iter().map(|(channel, _)| channel));
        let observers = observers.iter().map(|observer| (observer.name.clone(), observer.wake.clone()));
        let observers = Arc::new(observers.collect());
        Bus {
            store: Arc::new(self.store.clone()),
            meters: Arc::new(Meters::of(&network.registry)),
            registry: network.registry.clone(),
            clock: self.clock.clone(),
            database_clock: self.database_clock.clone(),
            retries,
            wakes: Wakes { relays, observers, ..Wakes::default() },
            sequenced: watch::Sender::default(),
            stopped: Arc::default(),
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
