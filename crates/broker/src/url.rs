//! Broker URLs: which broker, and what to write instead when the URL is wrong.

use std::fmt;
use towpath_core::retry::{Coded, ErrorClass};

/// A broker URL that was understood.
#[derive(Clone, PartialEq, Eq)]
pub enum BrokerUrl {
    /// In this process, through the store: a crash loses nothing.
    Local,
    /// RabbitMQ.
    Amqp {
        /// The URL as given, with its password: show the [`BrokerUrl`] instead.
        url: String,
    },
    /// Kafka.
    Kafka {
        /// The URL as given, with its password: show the [`BrokerUrl`] instead.
        url: String,
    },
}

/// A broker URL that is wrong or needs something this build does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadBrokerUrl(pub(crate) String);

impl BadBrokerUrl {
    /// A URL of a broker that this build was made without.
    pub fn not_built_in(url: &BrokerUrl) -> Self {
        match url {
            BrokerUrl::Local => Self("local: is always built in".to_owned()),
            BrokerUrl::Amqp { .. } => Self::without_feature("amqp", "rabbitmq"),
            BrokerUrl::Kafka { .. } => Self::without_feature("kafka", "kafka"),
        }
    }

    fn without_feature(scheme: &str, feature: &str) -> Self {
        Self(format!("this build has no support for {scheme}:// brokers; build with `--features {feature}`"))
    }
}

impl Coded for BadBrokerUrl {
    fn class(&self) -> ErrorClass {
        ErrorClass::Unrecoverable
    }

    fn code(&self) -> &'static str {
        "bad-url"
    }

    fn next_step(&self) -> &'static str {
        match (cfg!(feature = "rabbitmq"), cfg!(feature = "kafka")) {
            (true, true) => {
                "Write local: for the in-process broker, amqp://user:password@host:5672/%2f for RabbitMQ, or kafka://host:9092 for Kafka."
            }
            (true, false) => {
                "Write local: for the in-process broker, or amqp://user:password@host:5672/%2f for RabbitMQ."
            }
            (false, true) => "Write local: for the in-process broker, or kafka://host:9092 for Kafka.",
            (false, false) => "Write local: for the in-process broker.",
        }
    }
}

impl BrokerUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it, or which feature is not built in; never any part of it but the scheme, as the rest may
    /// hold a password.
    pub fn parse(url: &str) -> Result<Self, BadBrokerUrl> {
        let scheme = url.split(':').next().unwrap_or_default();
        match (scheme, url) {
            (_, "local:") => Ok(Self::Local),
            ("amqp" | "amqps", _) => amqp(scheme, url),
            ("kafka", _) => kafka(url),
            _ if !url.contains(':') => {
                Err(BadBrokerUrl("a broker URL begins with local:, amqp://, amqps:// or kafka://".to_owned()))
            }
            _ => Err(BadBrokerUrl(format!("{scheme:?} is not a broker Towpath knows"))),
        }
    }
}

#[cfg(feature = "rabbitmq")]
fn amqp(_scheme: &str, url: &str) -> Result<BrokerUrl, BadBrokerUrl> {
    crate::rabbitmq::Address::read(url)?;
    Ok(BrokerUrl::Amqp { url: url.to_owned() })
}

#[cfg(not(feature = "rabbitmq"))]
fn amqp(scheme: &str, _url: &str) -> Result<BrokerUrl, BadBrokerUrl> {
    Err(BadBrokerUrl::without_feature(scheme, "rabbitmq"))
}

#[cfg(feature = "kafka")]
fn kafka(url: &str) -> Result<BrokerUrl, BadBrokerUrl> {
    crate::kafka::Address::read(url)?;
    Ok(BrokerUrl::Kafka { url: url.to_owned() })
}

#[cfg(not(feature = "kafka"))]
fn kafka(_url: &str) -> Result<BrokerUrl, BadBrokerUrl> {
    Err(BadBrokerUrl::without_feature("kafka", "kafka"))
}

/// The parameters behind the question mark, as they were written.
#[cfg(any(feature = "rabbitmq", feature = "kafka"))]
pub(crate) fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let given = query.split('&').filter(|parameter| !parameter.is_empty());
    given.map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
}

/// A part of a URL without its percent-encoding; nothing if that is no text.
#[cfg(any(feature = "rabbitmq", feature = "kafka"))]
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let (high, low) = (digit(rest.next())?, digit(rest.next())?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Without the password and without parameters: URLs end up in logs.
impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local:"),
            Self::Amqp { url } | Self::Kafka { url } => f.write_str(&without_password(url)),
        }
    }
}

impl fmt::Debug for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn without_password(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return "…".to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((user_and_password, host)) => match user_and_password.split_once(':') {
            Some((user, _)) => format!("{scheme}://{user}:…@{host}{path}"),
            None => url.to_owned(),
        },
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_is_not_built_in_is_refused_without_showing_the_password() {
        assert_eq!(BrokerUrl::parse("local:"), Ok(BrokerUrl::Local));
        for url in [
            "kafka://me:s3cret@host:9092",
            "redis://:s3cret@h",
            "",
            "localhost:s3cret",
            "amqp:s3cret",
            "amqp://me:s3cret@host:noport/",
            "amqp://me:s3c/s3cret@host/",
            "amqp://me:12/s3cret@host/",
            "amqp://",
            "amqp://me:s3cret@one,,two/",
            "amqps://me:s3cret@host/?password=s3cret",
            "amqp://me:s3cret@host/?cacert=/s3cret",
            "amqps://me:s3cret@host/?cert=s3cret",
            "kafka:s3cret",
            "kafka://",
            "kafka://host:s3cret",
            "kafka://host:9092,",
            "kafka://host:9092/s3cret",
            "kafka://host:9092?partitions=0",
            "kafka://host:9092?replication=s3cret",
            "kafka://host:9092?password=s3cret",
            "kafka://me:s3cret@host:9092?sasl=s3cret",
            "kafka://me:s3cret@host:9092,?sasl=PLAIN",
        ] {
            let error = BrokerUrl::parse(url).unwrap_err();
            assert!(!error.to_string().contains("s3cret") && !error.to_string().is_empty(), "{error}");
        }
    }

    #[cfg(any(feature = "rabbitmq", feature = "kafka"))]
    #[test]
    fn parameters_are_taken_apart_and_decoded() {
        let taken: Vec<_> = parameters("a=1&&b&c=d=e").collect();
        assert_eq!(taken, [("a", "1"), ("b", ""), ("c", "d=e")]);
        assert_eq!(percent_decoded("%2Fa%20%c3%A9+").as_deref(), Some("/a é+"));
        for broken in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(percent_decoded(broken), None, "{broken}");
        }
    }

    #[cfg(not(feature = "rabbitmq"))]
    #[test]
    fn a_build_without_rabbitmq_says_how_to_get_it() {
        let error = BrokerUrl::parse("amqp://me:s3cret@host/").unwrap_err();
        assert!(error.to_string().contains("--features rabbitmq"), "{error}");
    }

    #[cfg(not(feature = "kafka"))]
    #[test]
    fn a_build_without_kafka_says_how_to_get_it() {
        let error = BrokerUrl::parse("kafka://host:9092").unwrap_err();
        assert!(error.to_string().contains("--features kafka"), "{error}");
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn kafka_is_understood() {
        for (url, shown) in [
            ("kafka://host:9092", "kafka://host:9092"),
            ("kafka://one:9092,two:9093/", "kafka://one:9092,two:9093/"),
            ("kafka://host?partitions=12&replication=3", "kafka://host"),
            ("kafka://[::1]:9092", "kafka://[::1]:9092"),
        ] {
            let parsed = BrokerUrl::parse(url).unwrap();
            assert_eq!(parsed, BrokerUrl::Kafka { url: url.to_owned() });
            assert_eq!(parsed.to_string(), shown);
        }
    }

    #[cfg(feature = "kafka-tls")]
    #[test]
    fn the_password_of_a_kafka_user_is_never_shown() {
        let parsed = BrokerUrl::parse("kafka://me:s3cret@one:9093,two:9093?tls=true&sasl=PLAIN").unwrap();
        assert_eq!(parsed.to_string(), "kafka://me:…@one:9093,two:9093");
        assert_eq!(format!("{parsed:?}"), "kafka://me:…@one:9093,two:9093");
    }

    #[cfg(feature = "rabbitmq")]
    #[test]
    fn rabbitmq_is_understood_and_its_password_never_shown() {
        for (url, shown) in [
            ("amqp://me:s3cret@host:5672/%2f", "amqp://me:…@host:5672/%2f"),
            ("amqps://me:s3cret@host/live?heartbeat=5", "amqps://me:…@host/live"),
            ("amqp://me:s3%40cret@[::1]:5672/live", "amqp://me:…@[::1]:5672/live"),
            ("amqp://me:s3@cret@host", "amqp://me:…@host"),
            ("amqp://me:s3cret@one:5672,two:5673/live", "amqp://me:…@one:5672,two:5673/live"),
            ("amqps://me:s3cret@host/?cacert=/etc/ca.pem", "amqps://me:…@host/"),
            ("amqp://me@host", "amqp://me@host"),
            ("amqp://host", "amqp://host"),
        ] {
            let parsed = BrokerUrl::parse(url).unwrap();
            assert_eq!(parsed, BrokerUrl::Amqp { url: url.to_owned() });
            assert_eq!(parsed.to_string(), shown);
            assert_eq!(format!("{parsed:?}"), shown);
        }
    }
}
