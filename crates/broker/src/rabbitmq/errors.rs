//! What lapin and the broker say, as errors of the port.

use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::{Error, ErrorKind};
use towpath_core::ports::broker::BrokerError;

pub(super) use crate::said::{Said, unavailable};

/// The shortest true account of an error: the broker's own text where there is one.
pub(super) fn words(error: &Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}

/// The reason the broker gives for closing a channel, if it did.
pub(super) fn channel_closed_over(error: &Error) -> Option<&AMQPSoftError> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(soft) => Some(soft),
            AMQPErrorKind::Hard(_) => None,
        },
        _ => None,
    }
}

/// Whether what was named does not exist.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(channel_closed_over(error), Some(AMQPSoftError::NOTFOUND))
}

/// Whether what was declared exists with other properties.
pub(super) fn is_mismatch(error: &Error) -> bool {
    matches!(channel_closed_over(error), Some(AMQPSoftError::PRECONDITIONFAILED))
}

/// An error as the port tells it.
pub(super) fn told(error: &Error, operation: &'static str) -> BrokerError {
    let said = Box::new(Said(words(error)));
    let ErrorKind::ProtocolError(protocol) = error.kind() else { return BrokerError::Unavailable(said) };
    match protocol.kind() {
        // A wrong password and a virtual host that does not exist or is not ours.
        AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED)
        | AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => BrokerError::Denied(said),
        // It stops, or has trouble of its own: both pass.
        AMQPErrorKind::Hard(
            AMQPHardError::CONNECTIONFORCED | AMQPHardError::INTERNALERROR | AMQPHardError::RESOURCEERROR,
        ) => BrokerError::Unavailable(said),
        _ => BrokerError::Refused { operation, source: said },
    }
}

/// Which argument differs and how, cut out of the broker's text for people to read. Nothing is decided by it.
///
/// RabbitMQ writes: `PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received
/// '2000' but current is '1000'`.
pub(super) fn difference(words: &str) -> String {
    let cut = || {
        let (_, rest) = words.split_once("inequivalent arg '")?;
        let (argument, rest) = rest.split_once('\'')?;
        let (_, values) = rest.split_once("': ")?;
        Some(format!("{argument}: {values}"))
    };
    cut().unwrap_or_else(|| words.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_cut_out_of_the_brokers_text_or_told_whole() {
        assert_eq!(
            difference(
                "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received '2000' but current is '1000'"
            ),
            "x-message-ttl: received '2000' but current is '1000'"
        );
        assert_eq!(difference("PRECONDITION_FAILED - something new"), "PRECONDITION_FAILED - something new");
    }
}
