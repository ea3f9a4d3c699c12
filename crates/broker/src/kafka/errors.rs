//! What librdkafka and the broker say, as errors of the port. Decisions come from codes, never from texts.

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;
use towpath_core::ports::broker::{BrokerError, Published};

use crate::said::{Said, refused, unavailable};

/// An error as the port tells it.
pub(super) fn told(error: &KafkaError, operation: &'static str) -> BrokerError {
    match error.rdkafka_error_code() {
        Some(code) => told_by_code(code, operation),
        // A setting or a name that librdkafka does not take: nothing that passes.
        None => refused(operation, error.to_string()),
    }
}

/// The same for a code alone.
pub(super) fn told_by_code(code: RDKafkaErrorCode, operation: &'static str) -> BrokerError {
    use RDKafkaErrorCode as Code;
    let words = code.to_string();
    match code {
        Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::SaslAuthenticationFailed
        | Code::Authentication => BrokerError::Denied(Box::new(Said(words))),
        Code::InvalidTopic
        | Code::InvalidPartitions
        | Code::InvalidReplicationFactor
        | Code::InvalidReplicaAssignment
        | Code::InvalidConfig
        | Code::InvalidRequest
        | Code::InvalidGroupId
        | Code::PolicyViolation
        | Code::UnsupportedVersion
        | Code::InvalidArgument => refused(operation, words),
        // The network, elections, a broker that starts: all of it passes.
        _ => unavailable(words),
    }
}

/// What a failed delivery means for its message.
pub(super) fn outcome(error: &KafkaError) -> Published {
    use RDKafkaErrorCode as Code;
    let reason = match error.rdkafka_error_code() {
        Some(code) => code.to_string(),
        None => error.to_string(),
    };
    match error.rdkafka_error_code() {
        Some(
            Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::UnknownPartition
            | Code::InvalidTopic
            | Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessage
            | Code::InvalidMessageSize
            | Code::InvalidRecord
            | Code::InvalidTimestamp
            | Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::PolicyViolation,
        ) => Published::Refused { reason },
        // Time-outs and purges included: librdkafka does not say whether it had been sent before that.
        _ => Published::Unknown { reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_core::retry::Coded as _;
    use towpath_core::retry::ErrorClass;

    #[test]
    fn codes_become_the_errors_that_retries_ask_for() {
        for (code, class) in [
            (RDKafkaErrorCode::AllBrokersDown, ErrorClass::Transient),
            (RDKafkaErrorCode::OperationTimedOut, ErrorClass::Transient),
            (RDKafkaErrorCode::TopicAuthorizationFailed, ErrorClass::Denied),
            (RDKafkaErrorCode::InvalidPartitions, ErrorClass::Unrecoverable),
        ] {
            assert_eq!(told_by_code(code, "testing").class(), class, "{code:?}");
        }
    }

    #[test]
    fn only_a_clear_no_is_a_refusal() {
        let outcome = |code| outcome(&KafkaError::MessageProduction(code));
        for code in [RDKafkaErrorCode::MessageSizeTooLarge, RDKafkaErrorCode::UnknownTopic] {
            assert!(matches!(outcome(code), Published::Refused { .. }), "{code:?}");
        }
        for code in [
            RDKafkaErrorCode::MessageTimedOut,
            RDKafkaErrorCode::PurgeQueue,
            RDKafkaErrorCode::PurgeInflight,
            RDKafkaErrorCode::NotEnoughReplicasAfterAppend,
        ] {
            assert!(matches!(outcome(code), Published::Unknown { .. }), "{code:?}");
        }
    }
}
