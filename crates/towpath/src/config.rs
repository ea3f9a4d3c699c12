//! Channels and topology as TOML: what `docs/channels.md` describes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use towpath_core::channel::{Channel, ChannelPolicy, RoutingKey, Start, Target};
use towpath_core::format::CLOUD_EVENTS;
use towpath_core::ids::Position;
use towpath_core::ports::broker::{Argument, Binding, Exchange, ExchangeKind, Queue, Topology};
use towpath_core::retry::{Coded, RetryPolicy, duration_text};

/// Channels and what must exist on the broker for them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Channels {
    /// The channels.
    pub channels: Vec<Channel>,
    /// Exchanges, queues and bindings.
    pub topology: Topology,
}

/// A text that does not describe channels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadChannels(String);

impl Coded for BadChannels {
    fn code(&self) -> &'static str {
        "bad-channels"
    }

    fn next_step(&self) -> &'static str {
        "Correct the line that is named; docs/channels.md shows every key."
    }
}

/// One `[[channel]]` of a file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "WrittenChannel")]
pub struct ChannelEntry(Channel);

/// The `[topology]` of a file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "WrittenTopology")]
pub struct TopologyEntry(Topology);

impl Channels {
    /// Reads a text that has channels and topology, and nothing else.
    ///
    /// # Errors
    /// What is wrong, with its line and key.
    pub fn from_toml(text: &str) -> Result<Self, BadChannels> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct File {
            #[serde(default)]
            channel: Vec<ChannelEntry>,
            #[serde(default)]
            topology: TopologyEntry,
        }
        let file: File = toml::from_str(text).map_err(|error| BadChannels(error.to_string()))?;
        Self::of_entries(file.channel, file.topology)
    }

    /// Puts together what a larger file has read.
    ///
    /// # Errors
    /// Two channels with one name.
    pub fn of_entries(channels: Vec<ChannelEntry>, topology: TopologyEntry) -> Result<Self, BadChannels> {
        let mut names = BTreeSet::new();
        for ChannelEntry(channel) in &channels {
            if !names.insert(channel.name.clone()) {
                return Err(BadChannels(format!("there are two channels with the name {}", channel.name)));
            }
        }
        Ok(Self { channels: channels.into_iter().map(|entry| entry.0).collect(), topology: topology.0 })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenChannel {
    name: String,
    events: Vec<String>,
    exchange: Option<String>,
    topic: Option<String>,
    routing_key: Option<String>,
    format: Option<String>,
    source: Option<String>,
    batch: Option<u32>,
    scan: Option<WrittenDuration>,
    retries: Option<WrittenRetries>,
    attempts: Option<u32>,
    ordering: Option<Ordering>,
    patience: Option<WrittenDuration>,
    #[serde(default)]
    counts_absence: bool,
    largest_message: Option<usize>,
    start: Option<WrittenStart>,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct WrittenDuration(#[serde(with = "duration_text")] Duration);

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Ordering {
    Aggregate,
    None,
}

/// A list of delays, or delays that grow.
enum WrittenRetries {
    Schedule(Vec<Duration>),
    Growing(Growing),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Growing {
    #[serde(with = "duration_text")]
    first: Duration,
    #[serde(default = "twice")]
    factor: f64,
    #[serde(with = "duration_text")]
    cap: Duration,
    #[serde(default)]
    jitter: f64,
}

fn twice() -> f64 {
    2.0
}

/// How many tries there are when delays grow and nothing is said.
const DEFAULT_ATTEMPTS: u32 = 10;

// Written out, because an untagged enum would only say that nothing fits.
impl<'de> Deserialize<'de> for WrittenRetries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = WrittenRetries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of delays such as [\"5s\", \"30s\"], or { first = \"1s\", cap = \"5m\" }")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<WrittenRetries, A::Error> {
                let mut delays = Vec::new();
                while let Some(WrittenDuration(delay)) = items.next_element()? {
                    delays.push(delay);
                }
                Ok(WrittenRetries::Schedule(delays))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WrittenRetries, A::Error> {
                Growing::deserialize(de::value::MapAccessDeserializer::new(map)).map(WrittenRetries::Growing)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

struct WrittenStart(Start);

impl<'de> Deserialize<'de> for WrittenStart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Place;
        impl Visitor<'_> for Place {
            type Value = WrittenStart;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"first\", \"now\" or a position of at least 1")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WrittenStart, E> {
                match text {
                    "first" => Ok(WrittenStart(Start::First)),
                    "now" => Ok(WrittenStart(Start::Now)),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<WrittenStart, E> {
                match Position::try_from(number) {
                    Ok(position) if position > 0 => Ok(WrittenStart(Start::At(position))),
                    _ => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
                }
            }
        }
        deserializer.deserialize_any(Place)
    }
}

impl TryFrom<WrittenChannel> for ChannelEntry {
    type Error = String;

    fn try_from(written: WrittenChannel) -> Result<Self, String> {
        let name = written.name.clone();
        let wrong = |what: &str| format!("channel {name:?}: {what}");
        let mut channel = Channel::named(&written.name, written.events.iter().map(String::as_str))
            .map_err(|error| wrong(&error.to_string()))?;
        if channel.event_types.is_empty() {
            return Err(wrong("events is empty; write [\"*\"] for all"));
        }
        let exchange = match (written.exchange, written.topic) {
            (Some(_), Some(_)) => {
                return Err(wrong("exchange and topic are the same thing; write one of them"));
            }
            (exchange, topic) => exchange.or(topic),
        };
        let routing_key = written.routing_key.map(RoutingKey::Fixed);
        channel.target = match (exchange, routing_key) {
            (Some(exchange), key) => {
                Some(Target { exchange, routing_key: key.unwrap_or(RoutingKey::EventType) })
            }
            (None, Some(_)) => return Err(wrong("routing-key needs an exchange")),
            (None, None) => None,
        };
        channel.tracking = written.start.map(|start| start.0);
        if channel.tracking.is_some() && channel.target.is_none() {
            return Err(wrong("start needs an exchange or a topic to publish to"));
        }
        // Whether it is registered is seen at the start: applications bring formats of their own.
        channel.format = written.format.unwrap_or(channel.format);
        if written.source.is_some() && channel.format != CLOUD_EVENTS {
            return Err(wrong("source is for the format cloud-events"));
        }
        channel.source = written.source;
        let usual = ChannelPolicy::default();
        channel.policy = ChannelPolicy {
            batch: written.batch.unwrap_or(usual.batch),
            scan: written.scan.map_or(usual.scan, |scan| scan.0),
            retries: retries(written.retries, written.attempts, usual.retries)
                .map_err(|error| wrong(&error))?,
            in_order: !matches!(written.ordering, Some(Ordering::None)),
            patience: written.patience.map_or(usual.patience, |patience| patience.0),
            counts_absence: written.counts_absence,
            largest_message: written.largest_message,
        };
        for (key, is_zero) in [
            ("batch", channel.policy.batch == 0),
            ("scan", channel.policy.scan.is_zero()),
            ("patience", channel.policy.patience.is_zero()),
            ("largest-message", channel.policy.largest_message == Some(0)),
        ] {
            if is_zero {
                return Err(wrong(&format!("{key} is 0")));
            }
        }
        Ok(Self(channel))
    }
}

fn retries(
    written: Option<WrittenRetries>,
    attempts: Option<u32>,
    usual: RetryPolicy,
) -> Result<RetryPolicy, String> {
    let policy = match (written, attempts) {
        (None, None) => usual,
        (Some(WrittenRetries::Schedule(delays)), None) => RetryPolicy::Fixed(delays),
        (Some(WrittenRetries::Schedule(_)), Some(_)) => {
            return Err("attempts does not go with a list of retries: the list says how many".to_owned());
        }
        (Some(WrittenRetries::Growing(Growing { first, factor, cap, jitter })), attempts) => {
            let attempts = attempts.unwrap_or(DEFAULT_ATTEMPTS);
            RetryPolicy::Exponential { first, factor, cap, attempts, jitter }
        }
        (None, Some(attempts)) => match usual {
            RetryPolicy::Exponential { first, factor, cap, jitter, .. } => {
                RetryPolicy::Exponential { first, factor, cap, attempts, jitter }
            }
            fixed @ RetryPolicy::Fixed(_) => fixed,
        },
    };
    policy.check().map_err(|error| error.to_string())?;
    Ok(policy)
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenTopology {
    #[serde(default)]
    exchanges: Vec<WrittenExchange>,
    #[serde(default)]
    queues: Vec<WrittenQueue>,
    #[serde(default)]
    bindings: Vec<WrittenBinding>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenExchange {
    name: String,
    kind: WrittenKind,
}

#[derive(Deserialize, Serialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum WrittenKind {
    Topic,
    Direct,
    Fanout,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenQueue {
    name: String,
    #[serde(default)]
    arguments: BTreeMap<String, WrittenArgument>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "an argument is a text, a whole number, true or false")]
enum WrittenArgument {
    Text(String),
    Number(i64),
    Switch(bool),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WrittenBinding {
    queue: String,
    exchange: String,
    #[serde(default)]
    routing_key: String,
}

impl From<WrittenTopology> for TopologyEntry {
    fn from(written: WrittenTopology) -> Self {
        let exchange = |exchange: WrittenExchange| Exchange {
            name: exchange.name,
            kind: match exchange.kind {
                WrittenKind::Topic => ExchangeKind::Topic,
                WrittenKind::Direct => ExchangeKind::Direct,
                WrittenKind::Fanout => ExchangeKind::Fanout,
            },
        };
        let argument = |(name, value)| {
            let value = match value {
                WrittenArgument::Text(text) => Argument::Text(text),
                WrittenArgument::Number(number) => Argument::Number(number),
                WrittenArgument::Switch(switch) => Argument::Switch(switch),
            };
            (name, value)
        };
        let queue = |queue: WrittenQueue| Queue {
            name: queue.name,
            arguments: queue.arguments.into_iter().map(argument).collect(),
        };
        let binding = |binding: WrittenBinding| Binding {
            queue: binding.queue,
            exchange: binding.exchange,
            routing_key: binding.routing_key,
        };
        Self(Topology {
            exchanges: written.exchanges.into_iter().map(exchange).collect(),
            queues: written.queues.into_iter().map(queue).collect(),
            bindings: written.bindings.into_iter().map(binding).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = include_str!("../../../docs/channels.md");

    /// The TOML blocks of the document.
    fn examples() -> Vec<&'static str> {
        let blocks = DOCUMENT.split("```toml\n").skip(1);
        blocks.filter_map(|block| block.split("```").next()).collect()
    }

    #[test]
    fn the_example_in_the_document_is_read_as_it_says() {
        let channels = Channels::from_toml(examples()[0]).unwrap();
        let [orders, market, log] = channels.channels.as_slice() else { panic!("{channels:?}") };
        let expected = Channel::named("orders", ["order.*"]).unwrap().to_exchange("orders");
        assert_eq!(*orders, expected);

        let policy = ChannelPolicy {
            batch: 100,
            scan: Duration::from_secs(5),
            retries: RetryPolicy::Fixed([5, 30, 120].map(Duration::from_secs).into()),
            in_order: false,
            patience: Duration::from_secs(20),
            counts_absence: false,
            largest_message: None,
        };
        let expected = Channel::named("market", ["ORDER_CREATED", "ORDER_PAID"])
            .unwrap()
            .to("order.events.exchange", "order.created")
            .in_format("market")
            .with(policy);
        assert_eq!(*market, expected);

        let retries = RetryPolicy::Exponential {
            first: Duration::from_secs(1),
            factor: 2.0,
            cap: Duration::from_secs(300),
            attempts: 10,
            jitter: 0.2,
        };
        let expected = Channel::named("log", ["*"])
            .unwrap()
            .to_exchange("everything")
            .tracking(Start::First)
            .in_format(CLOUD_EVENTS)
            .from_source("https://shop.example")
            .with(ChannelPolicy { retries, ..ChannelPolicy::default() });
        assert_eq!(*log, expected);

        let topology = channels.topology;
        assert_eq!(topology.exchanges[0], Exchange { name: "orders".into(), kind: ExchangeKind::Topic });
        assert_eq!(topology.exchanges[2].kind, ExchangeKind::Fanout);
        let arguments = &topology.queues[0].arguments;
        assert_eq!(arguments[1], ("x-message-ttl".to_owned(), Argument::Number(900_000)));
        assert_eq!(arguments[0].1, Argument::Text("orders".to_owned()));
        assert_eq!(topology.bindings[0].routing_key, "order.*");
    }

    #[test]
    fn every_key_of_a_channel_is_in_the_document() {
        let keys = [
            "name",
            "events",
            "exchange",
            "topic",
            "routing-key",
            "format",
            "source",
            "batch",
            "scan",
            "retries",
            "attempts",
            "ordering",
            "patience",
            "counts-absence",
            "largest-message",
            "start",
        ];
        for key in keys {
            assert!(DOCUMENT.contains(&format!("| `{key}` |")), "{key}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_key() {
        let channel = |more: &str| format!("[[channel]]\nname = \"a\"\nevents = [\"*\"]\n{more}\n");
        for (text, line, told) in [
            (channel("bach = 5"), 4, "bach"),
            (channel("scan = \"5 minutes\""), 4, "5 minutes"),
            (channel("scan = \"0s\""), 1, "scan is 0"),
            (channel("batch = 0"), 1, "batch is 0"),
            (channel("batch = -1"), 4, "-1"),
            (channel("format = 7"), 4, "string"),
            (channel("ordering = \"total\""), 4, "total"),
            (channel("exchange = \"e\"\ntopic = \"t\""), 1, "exchange and topic"),
            (channel("routing-key = \"k\""), 1, "routing-key"),
            (channel("start = \"first\""), 1, "start needs"),
            (channel("exchange = \"e\"\nstart = \"later\""), 5, "later"),
            (channel("exchange = \"e\"\nstart = 0"), 5, "at least 1"),
            (channel("source = \"x\""), 1, "source"),
            (channel("retries = 5"), 4, "a list of delays"),
            (channel("retries = [\"soon\"]"), 4, "soon"),
            (channel("retries = { first = \"5m\", cap = \"1s\" }"), 1, "cap"),
            (channel("retries = { frist = \"5m\" }"), 4, "frist"),
            (channel("retries = [\"5s\"]\nattempts = 3"), 1, "attempts"),
            (channel("attempts = 0"), 1, "0 attempts"),
            ("[[channel]]\nname = \"\"\nevents = [\"*\"]\n".to_owned(), 1, "channel name is empty"),
            ("[[channel]]\nname = \"a\"\nevents = []\n".to_owned(), 1, "events is empty"),
            ("[[channel]]\nname = \"a\"\n".to_owned(), 1, "events"),
            ("[topology]\nqueus = []\n".to_owned(), 2, "queus"),
            ("[[topology.exchanges]]\nname = \"e\"\nkind = \"headers\"\n".to_owned(), 3, "headers"),
            ("[[topology.queues]]\nname = \"q\"\narguments = { x = 1.5 }\n".to_owned(), 3, "whole number"),
            ("channels = 1\n".to_owned(), 1, "channels"),
        ] {
            let error = Channels::from_toml(&text).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line},")) && error.contains(told), "{text}\n{error}");
        }
        let twice = format!("{}{}", channel(""), channel(""));
        assert!(Channels::from_toml(&twice).unwrap_err().to_string().contains("two channels"));
    }
}
