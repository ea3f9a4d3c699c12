//! What the cases do again and again.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use towpath_core::ports::broker::{
    Argument, Binding, Broker, Deliveries, Destination, Exchange, ExchangeKind, Message, Published, Queue,
    Received, Settlement, Subscription, Topology,
};
use uuid::Uuid;

use super::BrokerFixture;
use crate::store::waiting::{PATIENCE, in_time};

/// A time that no rounding leaves as it is: microseconds, as the databases keep them.
pub fn occurred_at() -> DateTime<Utc> {
    DateTime::from_timestamp(1_789_012_345, 678_901_000).expect("a time")
}

/// A message with an id of its own.
pub fn message(destination: &Destination, body: impl Into<Vec<u8>>) -> Message {
    Message {
        destination: destination.clone(),
        message_id: Uuid::now_v7().to_string(),
        message_type: "Order.Placed".to_owned(),
        key: "order-7".to_owned(),
        occurred_at: occurred_at(),
        content_type: "application/json".to_owned(),
        headers: vec![("correlation-id".to_owned(), "flow-7".to_owned())],
        body: body.into(),
    }
}

/// As many messages, numbered in their bodies.
pub fn numbered(destination: &Destination, count: usize) -> Vec<Message> {
    (0..count).map(|number| message(destination, number.to_string())).collect()
}

/// The same, each with a key of its own: nothing keeps them together.
pub fn numbered_with_keys(destination: &Destination, count: usize) -> Vec<Message> {
    let mut messages = numbered(destination, count);
    for (number, message) in messages.iter_mut().enumerate() {
        message.key = format!("order-{number}");
    }
    messages
}

/// A queue without arguments.
pub fn queue(name: &str) -> Queue {
    Queue { name: name.to_owned(), arguments: Vec::new() }
}

/// An argument that is a text.
pub fn text(name: &str, value: &str) -> (String, Argument) {
    (name.to_owned(), Argument::Text(value.to_owned()))
}

/// An argument that is a number.
pub fn number(name: &str, value: i64) -> (String, Argument) {
    (name.to_owned(), Argument::Number(value))
}

/// One exchange with one queue bound to it.
pub struct Lane {
    /// Where to publish.
    pub destination: Destination,
    /// Where to receive.
    pub queue: String,
    /// Both.
    pub topology: Topology,
}

impl Lane {
    /// Names that nobody else uses; nothing is declared yet.
    pub fn of(fixture: &impl BrokerFixture) -> Self {
        Self::with_arguments(fixture, Vec::new())
    }

    /// The same with arguments of the queue.
    pub fn with_arguments(fixture: &impl BrokerFixture, arguments: Vec<(String, Argument)>) -> Self {
        let (exchange, name) = (fixture.fresh_name("exchange"), fixture.fresh_name("queue"));
        let destination = Destination { exchange: exchange.clone(), routing_key: "order.placed".to_owned() };
        let topology = Topology {
            exchanges: vec![Exchange { name: exchange.clone(), kind: ExchangeKind::Topic }],
            queues: vec![Queue { name: name.clone(), arguments }],
            bindings: vec![Binding { queue: name.clone(), exchange, routing_key: "order.#".to_owned() }],
        };
        Self { destination, queue: name, topology }
    }

    /// A destination on the same exchange that no queue wants.
    pub fn nowhere(&self) -> Destination {
        Destination { routing_key: "nobody.wants.this".to_owned(), ..self.destination.clone() }
    }

    /// Makes sure that it exists.
    pub async fn declare(&self, broker: &dyn Broker) {
        in_time("declaring", broker.declare(&self.topology)).await.expect("declare");
    }

    /// A connected broker on which it exists.
    pub async fn ready(fixture: &impl BrokerFixture) -> (Arc<dyn Broker>, Self) {
        let (broker, lane) = (fixture.connect().await, Self::of(fixture));
        lane.declare(&*broker).await;
        (broker, lane)
    }
}

/// Publishes with all the patience of a test.
pub async fn publish(broker: &dyn Broker, messages: &[Message]) -> Vec<Published> {
    publish_within(broker, messages, PATIENCE).await
}

/// Publishes with less; never answers later than that and a little.
pub async fn publish_within(broker: &dyn Broker, messages: &[Message], patience: Duration) -> Vec<Published> {
    // What a busy machine may add to a deadline. Not what an adapter may.
    const GRACE: Duration = Duration::from_secs(3);
    let outcomes = tokio::time::timeout(patience + GRACE, broker.publish(messages, patience))
        .await
        .unwrap_or_else(|_| panic!("publish did not answer within its patience of {patience:?}"));
    assert_eq!(outcomes.len(), messages.len(), "one outcome for each message");
    outcomes
}

/// Publishes what must be confirmed.
pub async fn publish_all(broker: &dyn Broker, messages: &[Message]) {
    let outcomes = publish(broker, messages).await;
    for (place, outcome) in outcomes.iter().enumerate() {
        assert_eq!(*outcome, Published::Confirmed, "message {place} of {}", messages.len());
    }
}

/// Publishes one message until it is confirmed: after a fault, while the adapter connects again.
pub async fn publish_again(broker: &dyn Broker, message: &Message) {
    crate::store::waiting::eventually("publishing after a fault", || async {
        let outcome = publish_within(broker, std::slice::from_ref(message), PATIENCE).await;
        (outcome == [Published::Confirmed]).then_some(())
    })
    .await;
}

/// Begins to receive from a queue.
pub async fn subscribe(broker: &dyn Broker, queue: &str, prefetch: u16) -> Box<dyn Deliveries> {
    let subscription = Subscription { queue: queue.to_owned(), group: "conformance".to_owned(), prefetch };
    in_time("subscribing", broker.subscribe(&subscription)).await.expect("subscribe")
}

/// Waits for the next message.
pub async fn next(deliveries: &dyn Deliveries) -> Received {
    in_time("receiving", deliveries.next()).await.expect("a message")
}

/// Waits for messages and acknowledges each.
pub async fn take(deliveries: &dyn Deliveries, count: usize) -> Vec<Received> {
    let mut taken = Vec::with_capacity(count);
    for _ in 0..count {
        let received = next(deliveries).await;
        settle(deliveries, &received, Settlement::Acknowledge).await;
        taken.push(received);
    }
    taken
}

/// Settles a message.
pub async fn settle(deliveries: &dyn Deliveries, received: &Received, settlement: Settlement) {
    in_time("settling", deliveries.settle(received.tag, settlement)).await.expect("settle");
}

/// The bodies of messages, in order.
pub fn bodies(received: &[Received]) -> Vec<String> {
    received.iter().map(|received| String::from_utf8_lossy(&received.body).into_owned()).collect()
}

/// The numbers from one to another, as bodies of messages.
pub fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// That a message has arrived to the letter; headers are a set, and the broker may add its own.
pub fn check_same(sent: &Message, received: &Received) {
    assert_eq!(received.message_id.as_deref(), Some(sent.message_id.as_str()));
    assert_eq!(received.message_type.as_deref(), Some(sent.message_type.as_str()));
    assert_eq!(received.occurred_at, Some(sent.occurred_at));
    assert_eq!(received.content_type.as_deref(), Some(sent.content_type.as_str()));
    assert_eq!(received.key.as_deref(), Some(sent.key.as_str()));
    for header in &sent.headers {
        assert!(received.headers.contains(header), "{header:?} is not among {:?}", received.headers);
    }
    assert!(
        sent.body == received.body,
        "a body of {} bytes came as {}",
        sent.body.len(),
        received.body.len()
    );
}
