//! What a client library, a broker or the network says, as errors of the port.

use towpath_core::ports::broker::BrokerError;

/// Someone's words: the broker's, the network's or our own.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Said(pub(crate) String);

/// Nobody answers, and why we think so.
pub(crate) fn unavailable(words: impl Into<String>) -> BrokerError {
    BrokerError::Unavailable(Box::new(Said(words.into())))
}

/// The broker, or its protocol, says no.
#[cfg(feature = "kafka")]
pub(crate) fn refused(operation: &'static str, words: impl Into<String>) -> BrokerError {
    BrokerError::Refused { operation, source: Box::new(Said(words.into())) }
}
