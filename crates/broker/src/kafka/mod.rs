//! Kafka, by librdkafka.
//!
//! What the port's words mean here:
//!
//! - An exchange is a topic, created if it is missing. One that exists keeps its number of partitions, whatever the URL
//!   says. A topic has no kind; the kind is what receivers of this handle pick by.
//! - A queue is a consumer group. It reads the topics it is bound to and skips what its bindings do not fit, because
//!   Kafka does not route. Kafka stores no bindings either: a handle knows the queues that were declared through it. A
//!   receiver has the bindings that were declared when it subscribed; all receivers of a queue need the same ones. A
//!   queue that is bound to a topic for the first time begins at the topic's beginning; see `positions` for when that is
//!   refused, and for what happens when Kafka has forgotten.
//! - A message is a record with the message's key. What else it carries travels as headers, see the constants.
//! - Settling moves a position per partition over the settled messages at its beginning. One that stays unsettled holds
//!   the position, and what was settled behind it comes again if the receiver goes.
//! - A rejected message is settled: Kafka has no dead letters of its own. Queues take no arguments.
//!
//! librdkafka connects again by itself and sends again what was not confirmed; the broker drops the copies
//! (`enable.idempotence`). It blocks its callers, so all of it happens on threads of its own or of ours.

mod address;
mod control;
mod deliveries;
mod errors;
mod ledger;
mod patterns;
mod positions;
mod publishing;
mod topology;
mod wire;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use tokio::time::Instant;
use towpath_core::ports::broker::{
    Broker, BrokerError, BrokerPromises, BrokerResult, Deliveries, Message, Published, QueueStatus,
    Subscription, Topology,
};
use towpath_core::ports::clock::Clock;

use crate::deadline::after;
use crate::said::unavailable;
use crate::{BadBrokerUrl, BrokerUrl};
pub(crate) use address::Address;
use control::Control;
use deliveries::{KafkaDeliveries, Receiver};
use publishing::Publisher;
use topology::Declared;

pub use wire::{
    CONTENT_TYPE_HEADER, MESSAGE_ID_HEADER, MESSAGE_TYPE_HEADER, OCCURRED_AT_HEADER, ROUTING_KEY_HEADER,
};

/// How long the broker may take to answer anything that is not a publish.
const ANSWER: Duration = Duration::from_secs(15);

/// How long it may take to say that it is there.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// For how long inboxes remember, unless it is said otherwise.
const REMEMBERED: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The room for what a record has beside its body.
const HEADERS: usize = 8 << 10;

/// What Kafka promises.
pub const PROMISES: BrokerPromises = BrokerPromises {
    broker: "Kafka",
    tells_unroutable: false,
    delays: false,
    dead_letters: false,
    ordered_by_key: true,
    settles_singly: false,
    tells_redelivered: false,
    reconnects: true,
    durable: true,
    // A group's lag is not a queue's depth, and asking for it would join the group.
    tells_standing: false,
    in_store: false,
    ordered_batches: false,
    // What is handed to it, without room for key and headers.
    largest_body: (16 << 20) - HEADERS,
    // Its `message.max.bytes`, which counts them.
    usual_body: (1 << 20) - HEADERS,
};

/// For how long inboxes remember, and by whose time.
#[derive(Clone)]
struct Memory {
    horizon: Duration,
    clock: Arc<dyn Clock>,
}

/// The time of this host, where nobody has given another one.
struct HostClock;

impl Clock for HostClock {
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }
}

/// A Kafka cluster.
pub struct Kafka {
    url: BrokerUrl,
    control: Control,
    publisher: Publisher,
    memory: Memory,
    declared: Mutex<Declared>,
    receivers: Mutex<Vec<Weak<Receiver>>>,
}

impl Kafka {
    /// A handle that connects when it is first used.
    ///
    /// # Errors
    /// When the URL is not a Kafka URL, or names files that cannot be read. Whether anyone listens there is found out on first use, see
    /// [`ready`](Broker::ready).
    pub fn connect(url: &BrokerUrl) -> Result<Self, BadBrokerUrl> {
        let BrokerUrl::Kafka { url: given } = url else {
            return Err(BadBrokerUrl(format!("{url} is not a Kafka broker")));
        };
        let address = Address::read(given)?;
        address.check_files()?;
        Ok(Self {
            url: url.clone(),
            control: Control::new(address.clone()),
            publisher: Publisher::new(address),
            memory: Memory { horizon: REMEMBERED, clock: Arc::new(HostClock) },
            declared: Mutex::default(),
            receivers: Mutex::default(),
        })
    }

    /// For how long those who receive remember what they have handled. A group that has lost its position begins anew only
    /// where all that is there is younger, by this clock.
    #[must_use]
    pub fn remembered_for(mut self, horizon: Duration, clock: Arc<dyn Clock>) -> Self {
        self.memory = Memory { horizon, clock };
        self
    }
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kafka").field("url", &self.url).finish_non_exhaustive()
    }
}

#[async_trait]
impl Broker for Kafka {
    fn promises(&self) -> BrokerPromises {
        PROMISES
    }

    async fn ready(&self) -> BrokerResult<()> {
        self.control.ready(Instant::now() + SIGN_OF_LIFE).await
    }

    async fn declare(&self, topology: &Topology) -> BrokerResult<()> {
        topology::declare(&self.control, &self.declared, topology).await
    }

    async fn publish(&self, messages: &[Message], patience: Duration) -> Vec<Published> {
        if messages.is_empty() {
            return Vec::new();
        }
        self.publisher.publish(&self.control, messages, after(patience)).await
    }

    async fn subscribe(&self, subscription: &Subscription) -> BrokerResult<Box<dyn Deliveries>> {
        let bindings =
            self.declared.lock().unwrap_or_else(PoisonError::into_inner).bindings(&subscription.queue);
        let Some(bindings) = bindings else {
            return Err(BrokerError::Missing { what: "queue", name: subscription.queue.clone() });
        };
        let deliveries =
            KafkaDeliveries::subscribe(&self.control, subscription, bindings, self.memory.clone()).await?;
        {
            let mut receivers = self.receivers.lock().unwrap_or_else(PoisonError::into_inner);
            receivers.retain(|receiver| receiver.strong_count() > 0);
            receivers.push(deliveries.receiver());
        }
        // One that was closed in the meantime has not seen this receiver.
        if self.control.is_closed() {
            return Err(unavailable("this handle was closed"));
        }
        deliveries.joined().await?;
        Ok(Box::new(deliveries))
    }

    async fn queue_status(&self, queues: &[&str]) -> BrokerResult<Vec<Option<QueueStatus>>> {
        Ok(vec![None; queues.len()])
    }

    async fn close(&self) {
        self.control.close();
        self.publisher.close();
        let receivers = std::mem::take(&mut *self.receivers.lock().unwrap_or_else(PoisonError::into_inner));
        let receivers: Vec<_> = receivers.iter().filter_map(Weak::upgrade).collect();
        receivers.iter().for_each(|receiver| receiver.stop("this handle was closed"));
        let deadline = Instant::now() + ANSWER;
        for receiver in receivers {
            receiver.until_finished(deadline).await;
        }
    }
}
