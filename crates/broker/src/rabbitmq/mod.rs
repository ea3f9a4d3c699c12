//! RabbitMQ, by AMQP 0-9-1.
//!
//! Two connections, each made when it is first needed and again when it is lost: one publishes, one receives and
//! declares. A broker that is short of memory or disk stops reading from connections that publish; acknowledgements
//! go on.
//!
//! On the wire, a message has the properties `message_id`, `type`, `timestamp` (whole seconds), `content_type` and
//! `delivery_mode` 2 (persistent), its headers, and the headers [`OCCURRED_AT_HEADER`] with the time to the letter and
//! [`KEY_HEADER`]. Within a queue RabbitMQ keeps the order of publishing.

mod address;
mod deliveries;
mod errors;
mod link;
mod publishing;
mod refusals;
mod topology;
mod verdicts;
mod wire;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, timeout_at};
use towpath_core::ports::broker::{
    Broker, BrokerPromises, BrokerResult, Deliveries, Message, Published, QueueStatus, Subscription, Topology,
};

use crate::{BadBrokerUrl, BrokerUrl};
pub(crate) use address::Address;
use deliveries::RabbitDeliveries;
use errors::{told, unavailable};
use link::Link;
use publishing::Publisher;

pub use wire::{KEY_HEADER, OCCURRED_AT_HEADER};

/// How long the broker may take to answer anything that is not a publish.
const ANSWER: Duration = Duration::from_secs(15);

/// What RabbitMQ promises, with durable queues.
pub const PROMISES: BrokerPromises = BrokerPromises {
    broker: "RabbitMQ",
    tells_unroutable: true,
    delays: true,
    dead_letters: true,
    ordered_by_key: false,
    settles_singly: true,
    tells_redelivered: true,
    reconnects: false,
    durable: true,
    tells_standing: true,
    in_store: false,
    ordered_batches: false,
    largest_body: 128 << 20,
    // RabbitMQ 4; RabbitMQ 3 takes all of it.
    usual_body: 16 << 20,
};

/// A RabbitMQ broker.
pub struct RabbitMq {
    url: BrokerUrl,
    publisher: Publisher,
    receiving: Link,
}

impl RabbitMq {
    /// A handle that connects when it is first used.
    ///
    /// # Errors
    /// When the URL is not an AMQP URL, or names files that cannot be used. Whether anyone listens there is found out on first use, see
    /// [`ready`](Broker::ready).
    pub fn connect(url: &BrokerUrl) -> Result<Self, BadBrokerUrl> {
        let BrokerUrl::Amqp { url: given } = url else {
            return Err(BadBrokerUrl(format!("{url} is not a RabbitMQ broker")));
        };
        let address = Address::read(given)?;
        address.check_files()?;
        Ok(Self {
            url: url.clone(),
            publisher: Publisher::new(Link::new(address.clone(), "publishing")),
            receiving: Link::new(address, "receiving"),
        })
    }
}

/// Without the password.
impl fmt::Debug for RabbitMq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMq").field("url", &self.url).finish_non_exhaustive()
    }
}

#[async_trait]
impl Broker for RabbitMq {
    fn promises(&self) -> BrokerPromises {
        PROMISES
    }

    fn connections(&self) -> u64 {
        // The first of each is made when it is needed, and says nothing of the broker.
        self.publisher.connections().saturating_sub(1) + self.receiving.made().saturating_sub(1)
    }

    async fn ready(&self) -> BrokerResult<()> {
        let deadline = Instant::now() + ANSWER;
        let (_live, channel) = self.receiving.channel(deadline).await?;
        in_time(deadline, "closing a channel", channel.close(200, "OK".into())).await
    }

    async fn declare(&self, topology: &Topology) -> BrokerResult<()> {
        topology::declare(&self.receiving, topology).await?;
        self.publisher.declared(topology);
        Ok(())
    }

    async fn publish(&self, messages: &[Message], patience: Duration) -> Vec<Published> {
        if messages.is_empty() {
            return Vec::new();
        }
        self.publisher.publish(messages, patience).await
    }

    async fn subscribe(&self, subscription: &Subscription) -> BrokerResult<Box<dyn Deliveries>> {
        Ok(Box::new(RabbitDeliveries::subscribe(&self.receiving, subscription).await?))
    }

    async fn queue_status(&self, queues: &[&str]) -> BrokerResult<Vec<Option<QueueStatus>>> {
        topology::queue_status(&self.receiving, queues).await
    }

    async fn close(&self) {
        self.publisher.close().await;
        self.receiving.close().await;
    }
}

/// Waits for an answer that is not a publish's.
async fn in_time<T>(
    deadline: Instant,
    operation: &'static str,
    asked: impl Future<Output = lapin::Result<T>>,
) -> BrokerResult<T> {
    match timeout_at(deadline, asked).await {
        Ok(answer) => answer.map_err(|error| told(&error, operation)),
        Err(_) => Err(unavailable("the broker does not answer")),
    }
}
