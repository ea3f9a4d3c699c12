//! Channels: named routes from event types to a destination on a broker, each with a policy of its own.

use std::time::Duration;

use crate::format;
use crate::ids::{ChannelName, InvalidId, Position};
use crate::ports::broker::Destination;
use crate::retry::RetryPolicy;
use crate::route::Glob;

/// A named route.
#[derive(Debug, Clone, PartialEq)]
pub struct Channel {
    /// Its name: the key of its outbox rows, never to be changed while rows wait.
    pub name: ChannelName,
    /// Which events: any of these patterns.
    pub event_types: Vec<Glob>,
    /// Whether it follows the log by position, and from where. Without, its events get outbox rows as they are written.
    pub tracking: Option<Start>,
    /// Where to. Without a target its rows are only collected.
    pub target: Option<Target>,
    /// How an event looks as a message: the name of a [`Format`](crate::format::Format).
    pub format: String,
    /// The base of a CloudEvent's source, before the kind of the aggregate; without one it is `/towpath`.
    pub source: Option<String>,
    /// How.
    pub policy: ChannelPolicy,
}

/// Where a channel that follows the log begins. It counts once: afterwards the channel goes on from where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the first event there is.
    First,
    /// With what is given a position from now on.
    Now,
    /// With the event at this position.
    At(Position),
}

impl Start {
    /// The position behind which it begins, when the log's last one is `head`.
    pub fn behind(self, head: Position) -> Position {
        match self {
            Self::First => 0,
            Self::Now => head,
            Self::At(position) => position.saturating_sub(1),
        }
    }
}

/// Where a channel publishes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The exchange (on Kafka: the topic).
    pub exchange: String,
    /// Under which key.
    pub routing_key: RoutingKey,
}

/// The routing key of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoutingKey {
    /// Always this one.
    Fixed(String),
    /// The event's type.
    EventType,
}

/// How a channel publishes.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelPolicy {
    /// How many rows are taken at a time.
    pub batch: u32,
    /// How often the outbox is looked at without being woken.
    pub scan: Duration,
    /// When a failed row is tried again, and how often.
    pub retries: RetryPolicy,
    /// Whether events of one aggregate go out in order, each after the one before it was confirmed. A stuck event then
    /// parks its aggregate.
    pub in_order: bool,
    /// How long a batch waits for the broker's confirms.
    pub patience: Duration,
    /// Whether a row uses up an attempt when the broker takes nothing at all. Usually it waits instead: that the broker is
    /// away says nothing of the row.
    pub counts_absence: bool,
    /// How many bytes a message may have, where that is less than the broker can take: what its server or its receivers are
    /// set up for. A command whose event would be larger is refused.
    pub largest_message: Option<usize>,
}

impl Default for ChannelPolicy {
    /// Every 2 s and at once when woken, exponential backoff with 10 attempts, in order.
    fn default() -> Self {
        Self {
            batch: 200,
            scan: Duration::from_secs(2),
            retries: RetryPolicy::for_channels(),
            in_order: true,
            patience: Duration::from_secs(10),
            counts_absence: false,
            largest_message: None,
        }
    }
}

impl Channel {
    /// A channel for the events that fit any of the patterns (`*` stands for any run of characters).
    pub fn named<'p>(
        name: impl AsRef<str>,
        event_types: impl IntoIterator<Item = &'p str>,
    ) -> Result<Self, InvalidId> {
        Ok(Self {
            name: ChannelName::new(name)?,
            event_types: event_types.into_iter().map(Glob::new).collect(),
            tracking: None,
            target: None,
            format: format::TOWPATH.to_owned(),
            source: None,
            policy: ChannelPolicy::default(),
        })
    }

    /// Publishes to an exchange under a fixed routing key.
    pub fn to(mut self, exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        let routing_key = RoutingKey::Fixed(routing_key.into());
        self.target = Some(Target { exchange: exchange.into(), routing_key });
        self
    }

    /// Publishes to an exchange under each event's own type.
    pub fn to_exchange(mut self, exchange: impl Into<String>) -> Self {
        self.target = Some(Target { exchange: exchange.into(), routing_key: RoutingKey::EventType });
        self
    }

    /// Publishes to an exchange (on Kafka: a topic) of the channel's own name, under each event's type.
    pub fn published(self) -> Self {
        let exchange = self.name.to_string();
        self.to_exchange(exchange)
    }

    /// Makes sure that it publishes: to an exchange of its own name, unless a target was given.
    pub fn publish_by_default(&mut self) -> &Target {
        let own = || Target { exchange: self.name.to_string(), routing_key: RoutingKey::EventType };
        self.target.get_or_insert_with(own)
    }

    /// Follows the log by position (N5): it can begin with what happened before it was there, and keeps the order of the
    /// whole log. No outbox rows are written for it.
    pub fn tracking(mut self, start: Start) -> Self {
        self.tracking = Some(start);
        self
    }

    /// Whether it takes events of a type.
    pub fn takes(&self, event_type: &str) -> bool {
        self.event_types.iter().any(|glob| glob.matches(event_type))
    }

    /// In another format, by its name.
    pub fn in_format(mut self, format: impl Into<String>) -> Self {
        self.format = format.into();
        self
    }

    /// With another base of the source in CloudEvents.
    pub fn from_source(mut self, base: impl Into<String>) -> Self {
        self.source = Some(base.into());
        self
    }

    /// With another policy.
    pub fn with(mut self, policy: ChannelPolicy) -> Self {
        self.policy = policy;
        self
    }
}

/// What is said of a channel right behind [`Channel::named`]: a name that is none stays the error that it is.
pub trait ChannelChain: Sized {
    /// [`Channel::to`]
    #[must_use]
    fn to(self, exchange: impl Into<String>, routing_key: impl Into<String>) -> Self;
    /// [`Channel::to_exchange`]
    #[must_use]
    fn to_exchange(self, exchange: impl Into<String>) -> Self;
    /// [`Channel::published`]
    #[must_use]
    fn published(self) -> Self;
    /// [`Channel::tracking`]
    #[must_use]
    fn tracking(self, start: Start) -> Self;
    /// [`Channel::in_format`]
    #[must_use]
    fn in_format(self, format: impl Into<String>) -> Self;
    /// [`Channel::from_source`]
    #[must_use]
    #[allow(clippy::wrong_self_convention, reason = "it has the name that the channel's own has")]
    fn from_source(self, base: impl Into<String>) -> Self;
    /// [`Channel::with`]
    #[must_use]
    fn with(self, policy: ChannelPolicy) -> Self;
}

impl ChannelChain for Result<Channel, InvalidId> {
    fn to(self, exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        self.map(|channel| channel.to(exchange, routing_key))
    }

    fn to_exchange(self, exchange: impl Into<String>) -> Self {
        self.map(|channel| channel.to_exchange(exchange))
    }

    fn published(self) -> Self {
        self.map(Channel::published)
    }

    fn tracking(self, start: Start) -> Self {
        self.map(|channel| channel.tracking(start))
    }

    fn in_format(self, format: impl Into<String>) -> Self {
        self.map(|channel| channel.in_format(format))
    }

    fn from_source(self, base: impl Into<String>) -> Self {
        self.map(|channel| channel.from_source(base))
    }

    fn with(self, policy: ChannelPolicy) -> Self {
        self.map(|channel| channel.with(policy))
    }
}

impl Target {
    /// Where an event of a type goes.
    pub fn destination(&self, event_type: &str) -> Destination {
        let routing_key = match &self.routing_key {
            RoutingKey::Fixed(key) => key.clone(),
            RoutingKey::EventType => event_type.to_owned(),
        };
        Destination { exchange: self.exchange.clone(), routing_key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_policy_looks_every_two_seconds_and_tries_ten_times() {
        let policy = ChannelPolicy::default();
        assert_eq!(policy.scan, Duration::from_secs(2));
        assert_eq!(policy.retries, RetryPolicy::for_channels());
        assert!(policy.retries.next_delay(9, 0.0).is_some(), "the tenth attempt follows the ninth failure");
        assert_eq!(policy.retries.next_delay(10, 0.0), None, "and is the last");
        assert!(policy.in_order);
    }

    #[test]
    fn a_start_is_a_place_behind_which_to_begin() {
        assert_eq!(Start::First.behind(7), 0);
        assert_eq!(Start::Now.behind(7), 7);
        assert_eq!(Start::At(3).behind(7), 2, "the third is the first to be published");
        assert_eq!(Start::At(0).behind(7), 0);
    }

    #[test]
    fn a_destination_is_fixed_or_follows_the_event() {
        let fixed = Channel::named("a", ["*"]).unwrap().to("orders", "order.created").target.unwrap();
        assert_eq!(fixed.destination("x.happened").to_string(), "orders:order.created");
        let own = Channel::named("a", ["*"]).unwrap().to_exchange("facts").target.unwrap();
        assert_eq!(own.destination("x.happened").to_string(), "facts:x.happened");
        assert!(Channel::named("", ["*"]).is_err());
    }

    #[test]
    fn what_is_said_of_a_channel_follows_its_name() {
        let channel = Channel::named("a", ["*"]).to("orders", "new").in_format("cloud-events").unwrap();
        assert_eq!(channel.target.unwrap().destination("x.happened").to_string(), "orders:new");
        assert!(Channel::named("", ["*"]).published().tracking(Start::Now).is_err());
    }
}
