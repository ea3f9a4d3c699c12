//! Kafka, by librdkafka.
//!
//! What the port's words mean here:
//!
//! - An exchange is a topic, created if it is missing. One that exists keeps its number of partitions, whatever the URL
//!   says. A topic has no kind; the kind is what receivers of this handle pick by.
//! - A queue is a consumer group. It reads the topics it is bound to and skips what its bindings do not fit, because
//!   Kafka does not route. Kafka stores no bindings either: a handle knows the queues that were declared through it. A
//!   receiver has the bindings that were declared when it subscribed; all receivers of a queue need the same ones. A
//!   queue that is bound to a topic for the first time begins at the topic's beginning.
//! - A message is a record with the message's key. What else it carries travels as headers, see the constants.
//! - Settling moves a position per partition over the settled messages at its beginning. One that stays unsettled holds
//!   the position, and what was settled behind it comes again if the receiver goes.
//! - A rejected message is settled: Kafka has no dead letters of its own. Queues take no arguments.
//!
//! librdkafka connects again by itself and sends again what was not confirmed; the broker drops the copies
//! (`enable.idempotence`). It blocks its callers, so all of it happens on threads of its own or of ours.

mod control;
mod deliveries;
mod errors;
mod ledger;
mod patterns;
mod publishing;
mod topology;
mod wire;

use std::fmt;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use towpath_core::ports::broker::{
    Broker, BrokerError, BrokerPromises, BrokerResult, Deliveries, Message, Published, QueueStanding,
    Subscription, Topology,
};

use crate::deadline::after;
use crate::said::unavailable;
use crate::{BadBrokerUrl, BrokerUrl};
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

/// The partitions of a topic that we create, unless the URL says otherwise.
const PARTITIONS: i32 = 8;

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
    largest_body: 16 << 20,
};

/// A Kafka cluster.
pub struct Kafka {
    url: BrokerUrl,
    control: Control,
    publisher: Publisher,
    declared: Mutex<Declared>,
    receivers: Mutex<Vec<Weak<Receiver>>>,
}

impl Kafka {
    /// A handle that connects when it is first used.
    ///
    /// # Errors
    /// When the URL is not a Kafka URL. Whether anyone listens there is found out on first use, see
    /// [`ready`](Broker::ready).
    pub fn connect(url: &BrokerUrl) -> Result<Self, BadBrokerUrl> {
        let BrokerUrl::Kafka { url: given } = url else {
            return Err(BadBrokerUrl(format!("{url} is not a Kafka broker")));
        };
        let address = read_url(given)?;
        Ok(Self {
            url: url.clone(),
            control: Control::new(address.clone()),
            publisher: Publisher::new(address),
            declared: Mutex::default(),
            receivers: Mutex::default(),
        })
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
        let deliveries = KafkaDeliveries::subscribe(&self.control, subscription, bindings).await?;
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

    async fn standing_of(&self, queues: &[&str]) -> BrokerResult<Vec<Option<QueueStanding>>> {
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

/// A Kafka URL that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// As librdkafka wants it: `host:port,host:port`.
    servers: String,
    partitions: i32,
    /// `None` is the broker's own default (Kafka 2.4 and later).
    replication: Option<i32>,
}

/// Reads `kafka://HOST[:PORT][,HOST[:PORT]…][/][?partitions=8&replication=3]`. What is wrong with it is told without
/// repeating any of it.
pub(crate) fn read_url(url: &str) -> Result<Address, BadBrokerUrl> {
    let bad = |message: &str| BadBrokerUrl(message.to_owned());
    let rest = url.strip_prefix("kafka://").ok_or_else(|| bad("a Kafka URL begins with kafka://"))?;
    let (servers, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let servers = servers.strip_suffix('/').unwrap_or(servers);
    if servers.contains('@') {
        return Err(bad("a Kafka URL holds no user and no password: only plain connections are supported"));
    }
    let readable = |server: &str| {
        let (host, port) = match server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) => (address, port.strip_prefix(':').or(port.is_empty().then_some("9092"))),
            None => match server.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (server, Some("9092")),
            },
        };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
        !host.is_empty()
            && host.bytes().all(allowed)
            && port.and_then(|port| port.parse::<u16>().ok()).is_some_and(|port| port > 0)
    };
    if !servers.split(',').all(readable) {
        return Err(bad(
            "the Kafka URL cannot be read: write kafka://host:9092 or kafka://one:9092,two:9092",
        ));
    }
    let mut address = Address { servers: servers.to_owned(), partitions: PARTITIONS, replication: None };
    for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let number = value.parse::<u16>().ok().filter(|number| *number > 0).map(i32::from);
        let number =
            number.ok_or_else(|| bad("partitions and replication in a Kafka URL are numbers above 0"));
        match name {
            "partitions" => address.partitions = number?,
            "replication" => address.replication = Some(number?),
            _ => return Err(bad("a Kafka URL takes the parameters partitions and replication only")),
        }
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_which_servers_and_how_topics_are_made() {
        let read = |servers: &str, partitions, replication| {
            Ok(Address { servers: servers.to_owned(), partitions, replication })
        };
        assert_eq!(read_url("kafka://host"), read("host", 8, None));
        assert_eq!(read_url("kafka://one:9092,two:9093/"), read("one:9092,two:9093", 8, None));
        assert_eq!(read_url("kafka://[::1]:1?partitions=12&replication=3"), read("[::1]:1", 12, Some(3)));
        for bad in ["kafka://host:0", "kafka://host:x", "kafka://,", "kafka://a b", "kafka://h?partitions=-1"]
        {
            assert!(read_url(bad).is_err(), "{bad}");
        }
    }
}
