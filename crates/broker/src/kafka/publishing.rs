//! Publishing, by an idempotent producer that waits for all replicas.
//!
//! librdkafka goes on sending what its caller no longer waits for. So a producer that did not confirm in time is not
//! given out again; when its last caller leaves, what is still in its queue is thrown away.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use towpath_core::causes::with_causes;
use towpath_core::ports::broker::{BrokerError, BrokerResult, Message, Published};

use super::Address;
use super::control::{Apart, Control, TopicState, complain, note, settings};
use super::errors::{outcome, told};
use super::wire::headers;
use crate::said::unavailable;

/// How often a full queue is tried again.
const QUEUE_POLL: Duration = Duration::from_millis(5);

/// The largest record that is handed to the broker; whether it takes it is the broker's own setting.
const LARGEST_RECORD: &str = "16777216";

/// After this librdkafka gives up by itself: for callers that went away without waiting.
const LONGEST_WAIT: &str = "120000";

/// Makes and keeps the producer.
pub(super) struct Publisher {
    address: Address,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<Arc<Live>>,
    closed: bool,
}

/// A producer, and the topics that were seen to exist since it was made.
struct Live {
    producer: Apart<ThreadedProducer<Reporting>>,
    known: Mutex<HashSet<String>>,
}

/// Where the report about a message goes, and which of its batch it is.
type Report = (usize, mpsc::UnboundedSender<(usize, Result<(), KafkaError>)>);

struct Reporting;

impl ClientContext for Reporting {
    fn log(&self, level: RDKafkaLogLevel, _facility: &str, words: &str) {
        note("publishing", level, words);
    }

    fn error(&self, error: KafkaError, words: &str) {
        complain("publishing", &error, words);
    }
}

impl ProducerContext for Reporting {
    type DeliveryOpaque = Box<Report>;

    fn delivery(&self, result: &DeliveryResult<'_>, report: Self::DeliveryOpaque) {
        let (place, to) = *report;
        let result = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.clone()),
        };
        // A caller that gave up does not listen any more.
        let _ = to.send((place, result));
    }
}

impl Publisher {
    pub(super) fn new(address: Address) -> Self {
        Self { address, state: Mutex::default() }
    }

    pub(super) fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        state.current = None;
    }

    pub(super) async fn publish(
        &self,
        control: &Control,
        messages: &[Message],
        deadline: Instant,
    ) -> Vec<Published> {
        let mut outcomes: Vec<Option<Published>> = vec![None; messages.len()];
        let live = match self.live() {
            Ok(live) => live,
            Err(error) => return not_sent(outcomes, &with_causes(&error)),
        };
        let mut records = Vec::with_capacity(messages.len());
        for (place, message) in messages.iter().enumerate() {
            match headers(message) {
                Ok(headers) => records.push((place, message, headers)),
                Err(reason) => outcomes[place] = Some(Published::Refused { reason }),
            }
        }
        // Nothing is handed over before the broker has answered for the topic: while it is away, nothing leaves.
        let topics: HashSet<&str> =
            records.iter().map(|(_, message, _)| message.destination.exchange.as_str()).collect();
        let closed = match live.closed_topics(control, topics, deadline).await {
            Ok(closed) => closed,
            Err(error) => return not_sent(outcomes, &with_causes(&error)),
        };
        for (place, message, _) in &records {
            if let Some(reason) = closed.get(&message.destination.exchange) {
                outcomes[*place] = Some(Published::Refused { reason: reason.clone() });
            }
        }

        let (to, mut reports) = mpsc::unbounded_channel();
        let mut under_way = 0_usize;
        let mut stopped: Option<String> = None;
        for (place, message, headers) in records {
            if outcomes[place].is_some() {
                continue;
            }
            let mut record =
                BaseRecord::with_opaque_to(&message.destination.exchange, Box::new((place, to.clone())))
                    .key(&message.key)
                    .payload(&message.body)
                    .headers(headers);
            while stopped.is_none() {
                let Some(producer) = live.producer.get() else { break };
                match producer.send(record) {
                    Ok(()) => {
                        under_way += 1;
                        break;
                    }
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), returned)) => {
                        record = returned;
                        let next = Instant::now() + QUEUE_POLL;
                        sleep_until(next.min(deadline)).await;
                        if next >= deadline {
                            stopped = Some("too much is waiting to be sent".to_owned());
                        }
                    }
                    Err((error, _)) => {
                        // librdkafka did not take it, so a doubt about it is none: it never left.
                        outcomes[place] = Some(match outcome(&error) {
                            Published::Unknown { reason } => Published::NotSent { reason },
                            other => other,
                        });
                        break;
                    }
                }
            }
            if let (Some(reason), None) = (&stopped, &outcomes[place]) {
                outcomes[place] = Some(Published::NotSent { reason: reason.clone() });
            }
        }
        drop(to);
        while under_way > 0
            && let Ok(Some((place, result))) = timeout_at(deadline, reports.recv()).await
        {
            under_way -= 1;
            outcomes[place] = Some(match result {
                Ok(()) => Published::Confirmed,
                Err(error) => {
                    live.forget(&messages[place].destination.exchange);
                    outcome(&error)
                }
            });
        }
        // What came in at the last moment counts.
        while let Ok((place, result)) = reports.try_recv() {
            outcomes[place] = Some(result.map_or_else(|error| outcome(&error), |()| Published::Confirmed));
        }
        let unknown = Published::Unknown { reason: "no confirm in time".to_owned() };
        let outcomes: Vec<Published> =
            outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| unknown.clone())).collect();
        if outcomes.iter().any(|outcome| matches!(outcome, Published::Unknown { .. })) {
            self.retire(&live);
        }
        outcomes
    }

    /// The producer, made if there is none. It connects by itself.
    fn live(&self) -> BrokerResult<Arc<Live>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Err(unavailable("this handle was closed"));
        }
        // One that has lost count of its messages never works again.
        let usable = |live: &&Arc<Live>| {
            live.producer.get().is_some_and(|producer| producer.client().fatal_error().is_none())
        };
        if let Some(live) = state.current.as_ref().filter(usable) {
            return Ok(Arc::clone(live));
        }
        let producer = settings(&self.address)
            .set("enable.idempotence", "true")
            .set("acks", "all")
            // The partitioner of Kafka's own clients: a key has one partition, whoever publishes.
            .set("partitioner", "murmur2_random")
            .set("linger.ms", "1")
            .set("message.max.bytes", LARGEST_RECORD)
            .set("message.timeout.ms", LONGEST_WAIT)
            .create_with_context(Reporting)
            .map_err(|error| told(&error, "connecting"))?;
        let live = Arc::new(Live { producer: Apart::new(producer), known: Mutex::default() });
        state.current = Some(Arc::clone(&live));
        Ok(live)
    }

    /// Makes the next caller begin anew. Whoever still uses this producer may finish.
    fn retire(&self, live: &Arc<Live>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.current.as_ref().is_some_and(|current| Arc::ptr_eq(current, live)) {
            state.current = None;
        }
    }
}

impl Live {
    /// Which of these topics take nothing from us, and why. Those that do are not asked for again.
    ///
    /// # Errors
    /// When nobody answers.
    async fn closed_topics(
        &self,
        control: &Control,
        topics: HashSet<&str>,
        deadline: Instant,
    ) -> BrokerResult<HashMap<String, String>> {
        let mut closed = HashMap::new();
        for topic in topics {
            if self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(topic) {
                continue;
            }
            match why_closed(topic, control.topic(topic, deadline).await)? {
                None => {
                    self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(topic.to_owned());
                }
                Some(reason) => {
                    closed.insert(topic.to_owned(), reason);
                }
            }
        }
        Ok(closed)
    }

    fn forget(&self, topic: &str) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(topic);
    }
}

/// Why a topic takes nothing from us; nothing if it does.
///
/// # Errors
/// When that cannot be told, because nobody answers.
fn why_closed(topic: &str, answer: BrokerResult<TopicState>) -> BrokerResult<Option<String>> {
    match answer {
        // A partition without a leader is waited for by librdkafka.
        Ok(TopicState::Ready | TopicState::Electing) => Ok(None),
        Ok(TopicState::Missing) => Ok(Some(format!("there is no topic {topic} on the broker"))),
        Err(error @ BrokerError::Unavailable(_)) => Err(error),
        // A clear no. To try for ever would hold up everything behind these messages, and nobody would be told.
        Err(error) => Ok(Some(with_causes(&error))),
    }
}

fn not_sent(outcomes: Vec<Option<Published>>, reason: &str) -> Vec<Published> {
    let not_sent = Published::NotSent { reason: reason.to_owned() };
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| not_sent.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::errors::told_by_code;

    #[test]
    fn a_clear_no_closes_a_topic_and_silence_does_not() {
        let closed = |code| why_closed("orders", Err(told_by_code(code, "testing")));
        for code in [
            RDKafkaErrorCode::TopicAuthorizationFailed,
            RDKafkaErrorCode::InvalidTopic,
            RDKafkaErrorCode::PolicyViolation,
        ] {
            let reason = closed(code).unwrap().unwrap();
            assert!(reason.contains(&code.to_string()), "{reason}");
        }
        for code in [RDKafkaErrorCode::AllBrokersDown, RDKafkaErrorCode::OperationTimedOut] {
            assert!(matches!(closed(code), Err(BrokerError::Unavailable(_))), "{code:?}");
        }
        assert!(why_closed("orders", Ok(TopicState::Missing)).unwrap().unwrap().contains("orders"));
        for state in [TopicState::Ready, TopicState::Electing] {
            assert_eq!(why_closed("orders", Ok(state)).unwrap(), None);
        }
    }
}
