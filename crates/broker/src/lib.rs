//! Towpath's brokers. All wire formats of the product live here.
//!
//! So far this crate knows which brokers there are; publishing to them follows.

use std::fmt;

/// A broker URL that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerUrl {
    /// In this process, through the store: a crash loses nothing.
    Local,
}

/// A broker URL that is wrong or needs something this build does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadBrokerUrl(String);

impl BadBrokerUrl {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        "bad-url"
    }

    /// What a person can do about it.
    pub fn next_step(&self) -> &'static str {
        "Write local: for the in-process broker."
    }
}

impl BrokerUrl {
    /// Reads a URL.
    pub fn parse(url: &str) -> Result<Self, BadBrokerUrl> {
        // Only the scheme is ever repeated: the rest may hold a password.
        let scheme = url.split(':').next().unwrap_or_default();
        match (scheme, url) {
            (_, "local:") => Ok(Self::Local),
            ("amqp" | "amqps" | "kafka", _) => {
                Err(BadBrokerUrl(format!("this build has no support for {scheme}:// brokers")))
            }
            _ => Err(BadBrokerUrl(format!("{scheme:?} is not a broker Towpath knows"))),
        }
    }
}

impl fmt::Display for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_is_not_built_in_is_refused_without_showing_the_password() {
        assert_eq!(BrokerUrl::parse("local:"), Ok(BrokerUrl::Local));
        for url in
            ["amqp://me:s3cret@host/", "kafka://host:9092", "redis://:s3cret@h", "", "localhost:s3cret"]
        {
            let error = BrokerUrl::parse(url).unwrap_err();
            assert!(!error.to_string().contains("s3cret") && !error.to_string().is_empty(), "{error}");
        }
    }
}
