//! The in-process broker: queues in the store, so that a crash loses nothing.
//!
//! It behaves like RabbitMQ as far as the port goes, with these differences:
//! - A queue with `x-message-ttl` and `x-dead-letter-exchange` is a delay. Its messages wait where they will come out;
//!   who receives from the delay queue itself sees nothing.
//! - `x-message-ttl` without a dead-letter exchange would only lose messages, and does nothing.
//! - `x-single-active-consumer` has one receiver at a time, over all processes. Order per key then holds.
//! - Other arguments are kept and compared, and mean nothing.
//! - A message that was delayed or given back stands at the place where it was published, before later ones.
//!
//! Who publishes wakes the receivers of the same handle at once. Those of other processes look every
//! [`LocalOptions::poll`].

mod declaring;
mod publishing;
mod receiving;
mod routing;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
pub(crate) use towpath_core::causes::with_causes;
use towpath_core::ports::broker::{
    Broker, BrokerError, BrokerPromises, BrokerResult, Deliveries, Message, Published, QueueStatus,
    Subscription, Topology,
};
use towpath_core::ports::queues::{QueueDepth, Queues};
use towpath_core::ports::store::StoreError;

use publishing::Ordering;
use routing::Routing;

pub use publishing::{LONGEST_BODY, LONGEST_HEADERS};
pub use routing::{
    DEATHS_HEADER, FIRST_DEATH_QUEUE_HEADER, FIRST_DEATH_REASON_HEADER, LAST_DEATH_QUEUE_HEADER,
    LAST_DEATH_REASON_HEADER,
};

/// What the in-process broker promises.
pub const PROMISES: BrokerPromises = BrokerPromises {
    broker: "in-process",
    tells_unroutable: true,
    delays: true,
    dead_letters: true,
    ordered_by_key: false,
    settles_singly: true,
    tells_redelivered: true,
    reconnects: false,
    durable: true,
    tells_standing: true,
    in_store: true,
    ordered_batches: true,
    largest_body: LONGEST_BODY,
    usual_body: LONGEST_BODY,
};

/// How it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalOptions {
    /// How long a receiver may be silent before others take its messages.
    pub lease: Duration,
    /// How often a receiver looks without being woken: what other processes publish waits that long at most.
    pub poll: Duration,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self { lease: Duration::from_secs(15), poll: Duration::from_millis(200) }
    }
}

/// The in-process broker. Clones are the same handle.
#[derive(Clone)]
pub struct LocalBroker {
    shared: Arc<Shared>,
}

/// What a handle and its receivers share.
struct Shared {
    queues: Arc<dyn Queues>,
    options: LocalOptions,
    /// As it was last read; every use is checked against its revision.
    routing: Mutex<Option<Arc<Routing>>>,
    /// Wakes the receivers of a queue.
    wakes: Mutex<HashMap<String, Arc<Notify>>>,
    /// Receivers that may still run.
    receivers: Mutex<Vec<JoinHandle<()>>>,
    closed: watch::Sender<bool>,
}

impl LocalBroker {
    /// A broker over the queues of a store.
    pub fn over(queues: Arc<dyn Queues>, options: LocalOptions) -> Self {
        let shared = Shared {
            queues,
            options,
            routing: Mutex::default(),
            wakes: Mutex::default(),
            receivers: Mutex::default(),
            closed: watch::Sender::new(false),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl fmt::Debug for LocalBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalBroker").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

#[async_trait]
impl Broker for LocalBroker {
    fn promises(&self) -> BrokerPromises {
        PROMISES
    }

    async fn ready(&self) -> BrokerResult<()> {
        self.shared.check_open()?;
        self.shared.read_routing("asking for the topology").await.map(drop)
    }

    async fn declare(&self, topology: &Topology) -> BrokerResult<()> {
        const OPERATION: &str = "declaring the topology";
        self.shared.check_open()?;
        loop {
            let layout = self.shared.queues.layout().await.map_err(|error| told(error, OPERATION))?;
            let additions = declaring::additions(&layout.topology, topology)?;
            if declaring::is_nothing(&additions) {
                return Ok(());
            }
            match self.shared.queues.extend_layout(layout.revision, &additions).await {
                Ok(true) => return Ok(()),
                // Somebody else was quicker by a moment: what is missing now?
                Ok(false) | Err(StoreError::Contention(_)) => tokio::task::yield_now().await,
                Err(error) => return Err(told(error, OPERATION)),
            }
        }
    }

    async fn publish(&self, messages: &[Message], patience: Duration) -> Vec<Published> {
        if messages.is_empty() {
            return Vec::new();
        }
        publishing::publish(&self.shared, messages, patience, Ordering::OfBatch).await
    }

    async fn publish_in_order(&self, messages: &[Message], patience: Duration) -> Vec<Published> {
        if messages.is_empty() {
            return Vec::new();
        }
        publishing::publish(&self.shared, messages, patience, Ordering::OfKeys).await
    }

    async fn subscribe(&self, subscription: &Subscription) -> BrokerResult<Box<dyn Deliveries>> {
        self.shared.check_open()?;
        Ok(Box::new(receiving::subscribe(&self.shared, subscription).await?))
    }

    async fn queue_status(&self, queues: &[&str]) -> BrokerResult<Vec<Option<QueueStatus>>> {
        const OPERATION: &str = "asking about queues";
        self.shared.check_open()?;
        let depths = self.shared.queues.queue_depths(queues).await.map_err(|error| told(error, OPERATION))?;
        let standing = |depth: QueueDepth| QueueStatus {
            ready: depth.ready,
            unsettled: Some(depth.taken),
            delayed: Some(depth.delayed),
            consumers: None,
        };
        Ok(depths.into_iter().map(|depth| depth.map(standing)).collect())
    }

    async fn close(&self) {
        self.shared.closed.send_replace(true);
        let receivers = std::mem::take(&mut *locked(&self.shared.receivers));
        for receiver in receivers {
            if let Err(error) = receiver.await {
                tracing::warn!(%error, "a receiver ended badly; its messages come again when its lease has run out");
            }
        }
    }
}

impl Shared {
    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    fn check_open(&self) -> BrokerResult<()> {
        if self.is_closed() { Err(unavailable(CLOSED)) } else { Ok(()) }
    }

    /// The topology as it was last read; it may be old.
    fn known_routing(&self) -> Option<Arc<Routing>> {
        locked(&self.routing).clone()
    }

    /// The topology as it is now.
    async fn read_routing(&self, operation: &'static str) -> BrokerResult<Arc<Routing>> {
        let layout = self.queues.layout().await.map_err(|error| told(error, operation))?;
        let mut known = locked(&self.routing);
        if let Some(known) = known.as_ref().filter(|known| known.revision >= layout.revision) {
            return Ok(Arc::clone(known));
        }
        let routing = Arc::new(Routing::new(&layout));
        *known = Some(Arc::clone(&routing));
        Ok(routing)
    }

    /// What wakes the receivers of a queue.
    fn wake_of(&self, queue: &str) -> Arc<Notify> {
        Arc::clone(locked(&self.wakes).entry(queue.to_owned()).or_default())
    }

    /// Wakes the receivers of a queue, if this handle has any.
    fn wake(&self, queue: &str) {
        if let Some(wake) = locked(&self.wakes).get(queue) {
            wake.notify_waiters();
        }
    }
}

const CLOSED: &str = "the broker is closed";

/// Nothing is left half done under these locks: one that panicked has harmed nothing.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unavailable(reason: &str) -> BrokerError {
    BrokerError::Unavailable(reason.into())
}

/// An error of the store as the port tells it.
fn told(error: StoreError, operation: &'static str) -> BrokerError {
    match error {
        StoreError::Unavailable(_)
        | StoreError::Contention(_)
        | StoreError::TooSlow { .. }
        | StoreError::Full(_) => BrokerError::Unavailable(error.into()),
        error => BrokerError::Refused { operation, source: error.into() },
    }
}
