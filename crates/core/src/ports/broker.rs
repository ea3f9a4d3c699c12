//! The broker: one contract for every way a fact leaves the database.
//!
//! Order of this file: promises and errors; topology (what must exist on the broker); publishing; receiving; and at
//! the end the two traits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::ports::store::BoxError;
use crate::retry::{Coded, ErrorClass};

/// Shorthand for what broker operations answer.
pub type BrokerResult<T> = Result<T, BrokerError>;

/// What an adapter promises beyond the contract, as data: the conformance suite picks its cases by it and the
/// support table in the documentation is printed from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BrokerPromises {
    /// The broker, as people write it.
    pub broker: &'static str,
    /// A message that no queue wants is told to its publisher.
    pub tells_unroutable: bool,
    /// A queue can hold messages back for a time and then route them elsewhere.
    pub delays: bool,
    /// A rejected message goes to a dead-letter queue of the broker's own.
    pub dead_letters: bool,
    /// Messages with one key come in the order they were published, even with several receivers.
    pub ordered_by_key: bool,
    /// A message is settled by itself. Where this is not so, one that was settled comes again when its receiver goes
    /// before an earlier one was settled.
    pub settles_singly: bool,
    /// A message that was handed out and not settled is marked when it comes again, whoever gets it.
    pub tells_redelivered: bool,
    /// A connection that is cut is made again beneath its users: what was published arrives once and is confirmed, and
    /// receivers keep what they hold. Where this is not so, they are told.
    pub reconnects: bool,
    /// Confirmed messages survive a restart of the broker.
    pub durable: bool,
    /// How many messages wait in a queue can be asked. Where this is not so, no queue is known to be there.
    pub tells_standing: bool,
    /// Messages are kept in the application's own database: whoever settles one needs a connection of it.
    pub in_store: bool,
    /// A batch can be published in order at once, see [`Broker::publish_in_order`]. Where this is not so, the next message
    /// of a key has to wait until the one before is confirmed.
    pub ordered_batches: bool,
    /// How many bytes the body of a message can have, whatever the server's own settings are.
    pub largest_body: usize,
    /// How many it takes unless somebody has set its server otherwise, which is not asked.
    pub usual_body: usize,
}

/// A fault or a refusal of the broker.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// It cannot be reached or does not answer.
    #[error("the broker cannot be reached")]
    Unavailable(#[source] BoxError),
    /// Something exists on the broker with other properties than declared.
    #[error("{what} {name} exists on the broker with other properties: {difference}")]
    Mismatch {
        /// An exchange or a queue.
        what: &'static str,
        /// Its name.
        name: String,
        /// Which argument differs and how, in the broker's words.
        difference: String,
    },
    /// Something that must exist does not.
    #[error("there is no {what} {name} on the broker")]
    Missing {
        /// An exchange or a queue.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The broker knows us and says no.
    #[error("the broker denies access")]
    Denied(#[source] BoxError),
    /// Anything else the broker says.
    #[error("the broker refused {operation}")]
    Refused {
        /// What was asked of it.
        operation: &'static str,
        /// What it said.
        #[source]
        source: BoxError,
    },
}

impl BrokerError {
    /// The same once more, for somebody else who asks; of its causes only the words are left.
    pub fn repeated(&self) -> Self {
        let words = |source: &BoxError| BoxError::from(source.to_string());
        match self {
            Self::Unavailable(source) => Self::Unavailable(words(source)),
            Self::Mismatch { what, name, difference } => {
                Self::Mismatch { what, name: name.clone(), difference: difference.clone() }
            }
            Self::Missing { what, name } => Self::Missing { what, name: name.clone() },
            Self::Denied(source) => Self::Denied(words(source)),
            Self::Refused { operation, source } => Self::Refused { operation, source: words(source) },
        }
    }
}

impl Coded for BrokerError {
    fn code(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "broker-unavailable",
            Self::Mismatch { .. } => "topology-mismatch",
            Self::Missing { .. } => "topology-missing",
            Self::Denied(_) => "broker-denied",
            Self::Refused { .. } => "broker-refused",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Self::Unavailable(_) => ErrorClass::Transient,
            Self::Denied(_) => ErrorClass::Denied,
            Self::Missing { .. } => ErrorClass::NotFound,
            Self::Mismatch { .. } | Self::Refused { .. } => ErrorClass::Unrecoverable,
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => {
                "Check that the broker runs and the URL is right; nothing is lost meanwhile."
            }
            Self::Mismatch { .. } => {
                "Change the declaration to what exists, or remove the queue or exchange once it is empty."
            }
            Self::Missing { .. } => "Declare it in the topology, or create it on the broker.",
            Self::Denied(_) => "Check user, password, virtual host and permissions.",
            Self::Refused { .. } => "The cause is the broker's own message.",
        }
    }
}

/// What must exist on the broker. Declaring it again changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Topology {
    /// Where messages are published to.
    pub exchanges: Vec<Exchange>,
    /// Where messages wait.
    pub queues: Vec<Queue>,
    /// Which go from where to where.
    pub bindings: Vec<Binding>,
}

/// An exchange (on Kafka: a topic).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Exchange {
    /// Its name.
    pub name: String,
    /// How it routes.
    pub kind: ExchangeKind,
}

/// How an exchange routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExchangeKind {
    /// By patterns over the routing key.
    Topic,
    /// By the exact routing key.
    Direct,
    /// To every queue.
    Fanout,
}

impl ExchangeKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Topic, Self::Direct, Self::Fanout];

    /// As brokers write it, and as it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Direct => "direct",
            Self::Fanout => "fanout",
        }
    }
}

/// ```
/// # use towpath_core::ports::broker::{ExchangeKind, Queue, Topology};
/// let topology = Topology::default()
///     .exchange("orders", ExchangeKind::Topic)
///     .queue(Queue::named("billing").dead_to("orders", "dead"))
///     .bind("billing", "orders", "order.paid");
/// assert_eq!(
///     topology.to_string(),
///     "exchange  orders  (topic)\n\
///      queue     billing  (x-dead-letter-exchange = orders, x-dead-letter-routing-key = dead)\n\
///      binding   orders  --order.paid-->  billing"
/// );
/// ```
impl Topology {
    /// With another exchange.
    pub fn exchange(mut self, name: impl Into<String>, kind: ExchangeKind) -> Self {
        self.exchanges.push(Exchange { name: name.into(), kind });
        self
    }

    /// With another queue.
    pub fn queue(mut self, queue: Queue) -> Self {
        self.queues.push(queue);
        self
    }

    /// A queue takes what an exchange routes by a key.
    pub fn bind(
        mut self,
        queue: impl Into<String>,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
    ) -> Self {
        let (queue, exchange, routing_key) = (queue.into(), exchange.into(), routing_key.into());
        self.bindings.push(Binding { queue, exchange, routing_key });
        self
    }
}

impl Queue {
    /// A queue without arguments.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), arguments: Vec::new() }
    }

    /// What waits for so long has died.
    pub fn expiring(mut self, after: Duration) -> Self {
        let milliseconds = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
        self.arguments.push(("x-message-ttl".to_owned(), Argument::Number(milliseconds)));
        self
    }

    /// What dies goes to this exchange, under this key.
    pub fn dead_to(mut self, exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        for (name, value) in
            [("x-dead-letter-exchange", exchange.into()), ("x-dead-letter-routing-key", routing_key.into())]
        {
            self.arguments.push((name.to_owned(), Argument::Text(value)));
        }
        self
    }
}

/// As people read it: a line for each thing.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exchanges = self
            .exchanges
            .iter()
            .map(|exchange| format!("exchange  {}  ({})", exchange.name, exchange.kind.as_str()));
        let queues = self.queues.iter().map(|queue| {
            let arguments = queue.arguments.iter().map(|(name, value)| format!("{name} = {value}"));
            let arguments = arguments.collect::<Vec<_>>().join(", ");
            let arguments = if arguments.is_empty() { arguments } else { format!("  ({arguments})") };
            format!("queue     {}{arguments}", queue.name)
        });
        let bindings = self.bindings.iter().map(|Binding { queue, exchange, routing_key }| {
            format!("binding   {exchange}  --{routing_key}-->  {queue}")
        });
        f.write_str(&exchanges.chain(queues).chain(bindings).collect::<Vec<_>>().join("\n"))
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
            Self::Switch(switch) => switch.fmt(f),
        }
    }
}

/// A durable queue.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Its arguments, such as `x-dead-letter-exchange`.
    pub arguments: Vec<(String, Argument)>,
}

/// The value of a queue's argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Argument {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
    /// A switch.
    Switch(bool),
}

/// A queue takes what an exchange routes by a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Binding {
    /// The queue.
    pub queue: String,
    /// The exchange.
    pub exchange: String,
    /// The key or pattern.
    pub routing_key: String,
}

/// Where a message goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Destination {
    /// The exchange (on Kafka: the topic).
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.exchange, self.routing_key)
    }
}

/// A message on its way out. Identity, type and time travel as properties, so that a receiver need not parse the
/// body.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Where to.
    pub destination: Destination,
    /// Tells it from others: the event's id, or its place in the log on a channel that follows it.
    pub message_id: String,
    /// The event's type.
    pub message_type: String,
    /// Messages with the same key keep their order: the aggregate.
    pub key: String,
    /// When the event happened.
    pub occurred_at: DateTime<Utc>,
    /// What the body is.
    pub content_type: String,
    /// More properties.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// How publishing one message ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// The broker has it and has said so.
    Confirmed,
    /// The broker took it and found no queue for it.
    Unroutable {
        /// The broker's words.
        reason: String,
    },
    /// The broker said no to this message.
    Refused {
        /// The broker's words.
        reason: String,
    },
    /// The broker could not take it, for a reason that is not the message's: too few replicas, a queue that is full.
    NotTaken {
        /// The broker's words.
        reason: String,
    },
    /// It never left: nothing was tried, so nothing has failed.
    NotSent {
        /// What was in the way.
        reason: String,
    },
    /// No word came back: it may or may not be there. Publishing it again is safe, receivers de-duplicate.
    Unknown {
        /// What was seen.
        reason: String,
    },
}

/// What to receive.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscription {
    /// From which queue (on Kafka: as which consumer group).
    pub queue: String,
    /// As whom: receivers of one group share the messages.
    pub group: String,
    /// How many unsettled messages at most.
    pub prefetch: u16,
}

/// A message that has arrived and is not settled yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Received {
    /// What settles it.
    pub tag: DeliveryTag,
    /// From which queue.
    pub queue: String,
    /// Its id, if the publisher gave one.
    pub message_id: Option<String>,
    /// Its type, if the publisher gave one.
    pub message_type: Option<String>,
    /// When it happened, if the publisher said so.
    pub occurred_at: Option<DateTime<Utc>>,
    /// Its key, if the publisher gave one: what keeps its order.
    pub key: Option<String>,
    /// What the body is, if the publisher said so.
    pub content_type: Option<String>,
    /// Where it was published to.
    pub destination: Destination,
    /// Its other properties, as texts. Shared, because handlers get them too.
    pub headers: Arc<Vec<(String, String)>>,
    /// Whether the broker has delivered it before.
    pub redelivered: bool,
    /// The body.
    pub body: Vec<u8>,
}

impl Received {
    /// What the body is said to be, in lower case and without parameters; empty if nothing is said. `; charset=utf-8` does
    /// not change what it is: JSON is always UTF-8.
    pub fn media_type(&self) -> String {
        let content_type = self.content_type.as_deref().unwrap_or_default();
        content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }
}

/// Settles one received message, on the subscription it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeliveryTag(pub u64);

/// How a received message is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Done with it.
    Acknowledge,
    /// Deliver it again.
    Requeue,
    /// Never deliver it again; where the broker has a dead-letter queue, it goes there.
    Reject,
}

/// How much a queue holds, and for whom. What a broker does not tell is left open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueStatus {
    /// Messages that can be received now.
    pub ready: u64,
    /// Messages that are with a receiver and not settled.
    pub unsettled: Option<u64>,
    /// Messages that will be ready later.
    pub delayed: Option<u64>,
    /// Who receives from it.
    pub consumers: Option<u64>,
}

/// The broker contract. The conformance suite in the test kit is its meaning.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// What this adapter promises beyond the contract.
    fn promises(&self) -> BrokerPromises;

    /// How often a connection that was lost has been made again. Then everything may have to be declared again; brokers
    /// that keep what was declared and reconnect beneath their users need not count.
    fn connections(&self) -> u64 {
        0
    }

    /// Whether the broker answers.
    async fn ready(&self) -> BrokerResult<()>;

    /// Makes sure that a topology exists. `Mismatch` says which argument of what differs.
    async fn declare(&self, topology: &Topology) -> BrokerResult<()>;

    /// Publishes messages in order and answers one outcome for each, in the same order. Confirms are pipelined: the
    /// whole batch is sent before the first is waited for. Never waits longer than `patience` in all: what is not
    /// confirmed by then is `Unknown`; what was not even handed to the broker is `NotSent`.
    async fn publish(&self, messages: &[Message], patience: Duration) -> Vec<Published>;

    /// As [`publish`](Self::publish); and once a message is not taken, none of the later ones with its key leaves. Only
    /// where [`BrokerPromises::ordered_batches`] says so.
    async fn publish_in_order(&self, messages: &[Message], patience: Duration) -> Vec<Published> {
        self.publish(messages, patience).await
    }

    /// Begins to receive.
    async fn subscribe(&self, subscription: &Subscription) -> BrokerResult<Box<dyn Deliveries>>;

    /// How much each of these queues holds, in their order; `None` for one that is not there. A look and no more: it takes
    /// no message and creates nothing.
    async fn queue_status(&self, queues: &[&str]) -> BrokerResult<Vec<Option<QueueStatus>>>;

    /// Ends all connections. What was received and not settled is delivered again.
    async fn close(&self);
}

/// Messages as they arrive. Dropped, what is unsettled is delivered again.
#[async_trait]
pub trait Deliveries: Send + Sync {
    /// The next message; waits for one. A caller that stops waiting loses none. `Unavailable` when the connection is gone: subscribe again.
    async fn next(&self) -> BrokerResult<Received>;

    /// The next messages, at most so many: waits for the first, and takes what else is there without waiting. A caller
    /// that stops waiting loses none.
    async fn next_many(&self, most: usize) -> BrokerResult<Vec<Received>> {
        let _ = most;
        self.next().await.map(|received| vec![received])
    }

    /// Settles a message. Settling one that was lost with its connection does nothing: it is delivered again.
    async fn settle(&self, tag: DeliveryTag, settlement: Settlement) -> BrokerResult<()>;

    /// Acknowledges many messages, and none besides them. Tries all of them; answers the first error.
    async fn acknowledge_all(&self, tags: &[DeliveryTag]) -> BrokerResult<()> {
        let mut answer = Ok(());
        for tag in tags {
            let settled = self.settle(*tag, Settlement::Acknowledge).await;
            answer = answer.and(settled);
        }
        answer
    }
}
