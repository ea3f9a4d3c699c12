//! Declaring what must exist: topics on the broker, queues and bindings in this handle.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdkafka::types::RDKafkaErrorCode;
use tokio::time::{Instant, sleep};
use towpath_core::ports::broker::{Binding, BrokerError, BrokerResult, ExchangeKind, Topology};

use super::ANSWER;
use super::control::{Control, TopicState};
use super::errors::told_by_code;
use super::wire::check_topic_name;
use crate::said::{refused, unavailable};

const OPERATION: &str = "declaring the topology";

/// How often a topic is looked at that was created and takes nothing yet.
const POLL: Duration = Duration::from_millis(50);

/// What was declared through one handle.
#[derive(Default)]
pub(super) struct Declared {
    exchanges: HashMap<String, ExchangeKind>,
    queues: HashMap<String, Vec<Bound>>,
}

/// A topic that a queue reads, and what it takes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) topic: String,
    pub(super) kind: ExchangeKind,
    pub(super) routing_key: String,
}

impl Declared {
    /// What a queue takes; nothing if it was not declared.
    pub(super) fn bindings(&self, queue: &str) -> Option<Vec<Bound>> {
        self.queues.get(queue).cloned()
    }

    /// What differs from what was declared before. Kafka itself knows no kinds.
    fn check_kinds(&self, topology: &Topology) -> BrokerResult<()> {
        for exchange in &topology.exchanges {
            match self.exchanges.get(&exchange.name) {
                Some(known) if *known != exchange.kind => {
                    let difference = format!(
                        "type: declared as {} now and as {} before",
                        kind_name(exchange.kind),
                        kind_name(*known)
                    );
                    return Err(BrokerError::Mismatch {
                        what: "exchange",
                        name: exchange.name.clone(),
                        difference,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, topology: &Topology) -> BrokerResult<()> {
        self.check_kinds(topology)?;
        for exchange in &topology.exchanges {
            self.exchanges.insert(exchange.name.clone(), exchange.kind);
        }
        for queue in &topology.queues {
            self.queues.entry(queue.name.clone()).or_default();
        }
        for Binding { queue, exchange, routing_key } in &topology.bindings {
            // One that others declared: patterns include exact keys.
            let kind = self.exchanges.get(exchange).copied().unwrap_or(ExchangeKind::Topic);
            let bound = Bound { topic: exchange.clone(), kind, routing_key: routing_key.clone() };
            let Some(bindings) = self.queues.get_mut(queue) else {
                return Err(BrokerError::Missing { what: "queue", name: queue.clone() });
            };
            if !bindings.contains(&bound) {
                bindings.push(bound);
            }
        }
        Ok(())
    }
}

/// Declares everything; see the port.
pub(super) async fn declare(
    control: &Control,
    declared: &Mutex<Declared>,
    topology: &Topology,
) -> BrokerResult<()> {
    check(topology)?;
    let known = |declared: &Declared| {
        declared.check_kinds(topology)?;
        for Binding { queue, .. } in &topology.bindings {
            let here = topology.queues.iter().any(|declared| declared.name == *queue);
            if !here && !declared.queues.contains_key(queue) {
                return Err(BrokerError::Missing { what: "queue", name: queue.clone() });
            }
        }
        Ok(())
    };
    known(&declared.lock().unwrap_or_else(PoisonError::into_inner))?;

    let deadline = Instant::now() + ANSWER;
    let exchanges: Vec<&str> = topology.exchanges.iter().map(|exchange| exchange.name.as_str()).collect();
    create_missing(control, &exchanges, deadline).await?;
    for Binding { exchange, .. } in &topology.bindings {
        if !exchanges.contains(&exchange.as_str())
            && control.topic(exchange, deadline).await? == TopicState::Missing
        {
            return Err(BrokerError::Missing { what: "exchange", name: exchange.clone() });
        }
    }
    declared.lock().unwrap_or_else(PoisonError::into_inner).add(topology)
}

/// Creates the topics that are not there and waits until all take messages.
async fn create_missing(control: &Control, topics: &[&str], deadline: Instant) -> BrokerResult<()> {
    let mut missing = Vec::new();
    for topic in topics {
        // Asked first: many may use a topic, few may create one.
        if !missing.contains(topic) && control.topic(topic, deadline).await? == TopicState::Missing {
            missing.push(*topic);
        }
    }
    if !missing.is_empty() {
        for (topic, code) in control.create_topics(&missing, deadline).await? {
            match code {
                // Somebody else was faster.
                RDKafkaErrorCode::TopicAlreadyExists => {}
                RDKafkaErrorCode::InvalidTopic => {
                    return Err(refused(OPERATION, format!("{topic:?} is no name for a topic")));
                }
                code => return Err(told_by_code(code, OPERATION)),
            }
        }
    }
    for topic in missing {
        while control.topic(topic, deadline).await? != TopicState::Ready {
            if Instant::now() + POLL >= deadline {
                return Err(unavailable(format!("the topic {topic} was created and takes nothing yet")));
            }
            sleep(POLL).await;
        }
    }
    Ok(())
}

/// What Kafka cannot do is refused and not left out silently.
fn check(topology: &Topology) -> BrokerResult<()> {
    let names = topology.exchanges.iter().map(|exchange| &exchange.name);
    for name in names.chain(topology.bindings.iter().map(|binding| &binding.exchange)) {
        check_topic_name(name).map_err(|reason| refused(OPERATION, reason))?;
    }
    for queue in &topology.queues {
        if queue.name.is_empty() || queue.name.contains('\0') {
            return Err(refused(OPERATION, format!("{:?} is no name for a consumer group", queue.name)));
        }
        if let Some((argument, _)) = queue.arguments.first() {
            let reason = format!("the queue {} has the argument {argument}: Kafka has none", queue.name);
            return Err(refused(OPERATION, reason));
        }
    }
    Ok(())
}

fn kind_name(kind: ExchangeKind) -> &'static str {
    match kind {
        ExchangeKind::Topic => "topic",
        ExchangeKind::Direct => "direct",
        ExchangeKind::Fanout => "fanout",
    }
}
