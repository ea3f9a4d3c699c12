//! RabbitMQ, by AMQP 0-9-1.
//!
//! Two connections, each made when it is first needed and again when it is lost: one publishes, one receives and
//! declares. A broker that is short of memory or disk stops reading from connections that publish; acknowledgements
//! go on.
//!
//! On the wire, a message has the properties `message_id`, `type`, `timestamp` (whole seconds), `content_type` and
//! `delivery_mode` 2 (persistent), its headers, and the headers [`OCCURRED_AT_HEADER`] with the time to the letter and
//! [`KEY_HEADER`]. Within a queue RabbitMQ keeps the order of publishing.

mod deliveries;
mod errors;
mod link;
mod publishing;
mod topology;
mod verdicts;
mod wire;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use lapin::uri::AMQPUri;
use tokio::time::{Instant, timeout_at};
use towpath_core::ports::broker::{
    Broker, BrokerPromises, BrokerResult, Deliveries, Message, Published, QueueStanding, Subscription,
    Topology,
};

use crate::{BadBrokerUrl, BrokerUrl};
use deliveries::RabbitDeliveries;
use errors::{told, unavailable};
use link::Link;
use publishing::Publisher;

pub use wire::{KEY_HEADER, OCCURRED_AT_HEADER};

/// How long the broker may take to answer anything that is not a publish.
const ANSWER: Duration = Duration::from_secs(15);

/// How often both sides say that they are there, in seconds, unless the URL says otherwise.
const HEARTBEAT: u16 = 20;

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
    /// When the URL is not an AMQP URL. Whether anyone listens there is found out on first use, see
    /// [`ready`](Broker::ready).
    pub fn connect(url: &BrokerUrl) -> Result<Self, BadBrokerUrl> {
        let BrokerUrl::Amqp { url: given } = url else {
            return Err(BadBrokerUrl(format!("{url} is not a RabbitMQ broker")));
        };
        let uri = read_url(given)?;
        Ok(Self {
            url: url.clone(),
            publisher: Publisher::new(Link::new(uri.clone(), "publishing")),
            receiving: Link::new(uri, "receiving"),
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
        self.publisher.connections() + self.receiving.made()
    }

    async fn ready(&self) -> BrokerResult<()> {
        let deadline = Instant::now() + ANSWER;
        let (_live, channel) = self.receiving.channel(deadline).await?;
        in_time(deadline, "closing a channel", channel.close(200, "OK".into())).await
    }

    async fn declare(&self, topology: &Topology) -> BrokerResult<()> {
        topology::declare(&self.receiving, topology).await
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

    async fn standing_of(&self, queues: &[&str]) -> BrokerResult<Vec<Option<QueueStanding>>> {
        topology::standing_of(&self.receiving, queues).await
    }

    async fn close(&self) {
        self.publisher.close().await;
        self.receiving.close().await;
    }
}

/// Reads an AMQP URL. What is wrong with it is told without repeating any of it.
pub(crate) fn read_url(url: &str) -> Result<AMQPUri, BadBrokerUrl> {
    let bad = |message: &str| Err(BadBrokerUrl(message.to_owned()));
    let rest = match url.split_once("://") {
        Some((_, rest)) => rest.split(['?', '#']).next().unwrap_or_default(),
        None => return bad("an AMQP URL begins with amqp:// or amqps://"),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if path.contains('@') {
        return bad("a password with special characters must be percent-encoded in an AMQP URL");
    }
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if host.is_empty() || host.starts_with(':') {
        return bad("the AMQP URL names no server");
    }
    let Ok(mut uri) = url.parse::<AMQPUri>() else {
        return bad("the AMQP URL cannot be read: write amqp://user:password@host:5672/%2f");
    };
    // lapin reads an IPv6 address as no host at all, and would connect to localhost.
    if let Some((address, _)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        address.clone_into(&mut uri.authority.host);
    }
    // An URL that ends in a slash means the default virtual host to people, and one with an empty name to lapin.
    if uri.vhost.is_empty() {
        "/".clone_into(&mut uri.vhost);
    }
    uri.query.heartbeat = uri.query.heartbeat.or(Some(HEARTBEAT));
    Ok(uri)
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
