//! The client that asks and declares, and what all clients have in common.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaErrorCode;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use towpath_core::ports::broker::BrokerResult;

use super::Address;
use super::errors::{told, told_by_code};
use crate::said::unavailable;

/// Leaves librdkafka time to answer before the caller stops waiting for it.
const MARGIN: Duration = Duration::from_millis(20);

/// How the protocol says "as many copies as you are set to".
const BROKERS_OWN_REPLICATION: i32 = -1;

/// How a topic stands on the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopicState {
    /// It takes messages.
    Ready,
    /// It exists; a partition has no leader at the moment.
    Electing,
    /// There is none of that name.
    Missing,
}

/// Makes and keeps the client.
pub(super) struct Control {
    address: Address,
    client: Mutex<Option<Arc<Admin>>>,
    closed: AtomicBool,
}

impl Control {
    pub(super) fn new(address: Address) -> Self {
        Self { address, client: Mutex::default(), closed: AtomicBool::new(false) }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(self.client.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Whether a broker answers.
    pub(super) async fn ready(&self, deadline: Instant) -> BrokerResult<()> {
        let asked =
            self.ask(deadline, |admin, patience| admin.inner().fetch_metadata(None, patience).map(|_| ()));
        asked.await?.map_err(|error| told(&error, "asking whether it is ready"))
    }

    /// How a topic stands. Asking creates nothing: see `allow.auto.create.topics`.
    pub(super) async fn topic(&self, name: &str, deadline: Instant) -> BrokerResult<TopicState> {
        let wanted = name.to_owned();
        let asked = self.ask(deadline, move |admin, patience| {
            let metadata = admin.inner().fetch_metadata(Some(&wanted), patience)?;
            let topic = metadata.topics().iter().find(|topic| topic.name() == wanted);
            let Some(topic) = topic else { return Ok(Ok(TopicState::Missing)) };
            let led = topic.partitions().iter().all(|partition| partition.leader() >= 0);
            Ok(match topic.error().map(RDKafkaErrorCode::from) {
                None if led && !topic.partitions().is_empty() => Ok(TopicState::Ready),
                None | Some(RDKafkaErrorCode::LeaderNotAvailable) => Ok(TopicState::Electing),
                Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                    Ok(TopicState::Missing)
                }
                Some(code) => Err(code),
            })
        });
        const OPERATION: &str = "asking about a topic";
        let state: Result<TopicState, RDKafkaErrorCode> =
            asked.await?.map_err(|error| told(&error, OPERATION))?;
        state.map_err(|code| told_by_code(code, OPERATION))
    }

    /// Creates topics; the answer is an error code for each that could not be, by name.
    pub(super) async fn create_topics(
        &self,
        names: &[&str],
        deadline: Instant,
    ) -> BrokerResult<HashMap<String, RDKafkaErrorCode>> {
        let client = self.client()?;
        let replication = self.address.replication.unwrap_or(BROKERS_OWN_REPLICATION);
        let in_sync = self.address.in_sync().map(|copies| copies.to_string());
        let topics = names.iter().map(|name| {
            let topic = NewTopic::new(name, self.address.partitions, TopicReplication::Fixed(replication));
            match &in_sync {
                Some(copies) => topic.set("min.insync.replicas", copies),
                None => topic,
            }
        });
        let topics: Vec<NewTopic<'_>> = topics.collect();
        let patience = deadline.saturating_duration_since(Instant::now()).saturating_sub(MARGIN);
        let options = AdminOptions::new().request_timeout(Some(patience)).operation_timeout(Some(patience));
        let created = match client.get() {
            Some(admin) => admin.create_topics(&topics, &options),
            None => return Err(unavailable("there is no client")),
        };
        let created = match timeout_at(deadline, created).await {
            Ok(created) => created.map_err(|error| told(&error, "creating topics"))?,
            Err(_) => return Err(unavailable("the broker does not answer")),
        };
        Ok(created.into_iter().filter_map(Result::err).collect())
    }

    /// Asks on a thread of its own, because librdkafka blocks its caller.
    async fn ask<T: Send + 'static>(
        &self,
        deadline: Instant,
        question: impl FnOnce(&AdminClient<Logging>, Duration) -> KafkaResult<T> + Send + 'static,
    ) -> BrokerResult<KafkaResult<T>> {
        let client = self.client()?;
        let patience = deadline.saturating_duration_since(Instant::now()).saturating_sub(MARGIN);
        let asked = apart(move || match client.get() {
            Some(admin) => question(admin, patience),
            None => Err(KafkaError::Canceled),
        });
        match timeout_at(deadline, asked).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(unavailable("there is no thread to ask on")),
            Err(_) => Err(unavailable("the broker does not answer")),
        }
    }

    fn client(&self) -> BrokerResult<Arc<Admin>> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        // Asked under the lock, so that none is made after closing.
        if self.is_closed() {
            return Err(unavailable("this handle was closed"));
        }
        if let Some(client) = &*client {
            return Ok(Arc::clone(client));
        }
        let made = settings(&self.address)
            .create_with_context(Logging { purpose: "asking" })
            .map_err(|error| told(&error, "connecting"))?;
        Ok(Arc::clone(client.insert(Arc::new(Apart::new(made)))))
    }
}

type Admin = Apart<AdminClient<Logging>>;

/// Settings of every client.
pub(super) fn settings(address: &Address) -> ClientConfig {
    let mut settings = ClientConfig::new();
    settings
        .set("bootstrap.servers", &address.servers)
        .set("client.id", "towpath")
        // A topic that nobody declared is an error to be told, not one to be made up.
        .set("allow.auto.create.topics", "false")
        // A broker that was away is found again soon.
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "1000")
        // A connection that brings nothing is given up.
        .set("socket.timeout.ms", "10000")
        .set("socket.keepalive.enable", "true")
        .set("socket.nagle.disable", "true")
        .set_log_level(RDKafkaLogLevel::Warning);
    for (name, value) in address.security() {
        settings.set(name, value);
    }
    settings
}

/// Takes librdkafka's words into our log.
struct Logging {
    purpose: &'static str,
}

impl ClientContext for Logging {
    fn log(&self, level: RDKafkaLogLevel, _facility: &str, words: &str) {
        note(self.purpose, level, words);
    }

    fn error(&self, error: KafkaError, words: &str) {
        complain(self.purpose, &error, words);
    }
}

pub(super) fn note(purpose: &str, level: RDKafkaLogLevel, words: &str) {
    tracing::debug!(purpose, ?level, words, "librdkafka says");
}

/// Most of these heal by themselves; those that do not are told to whoever asked.
pub(super) fn complain(purpose: &str, error: &KafkaError, words: &str) {
    tracing::info!(purpose, cause = %error, words, "trouble with Kafka");
}

/// Runs something that blocks on a thread of its own; nothing if there is none to be had.
pub(super) async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (answer, answered) = oneshot::channel();
    let thread = std::thread::Builder::new().name("towpath-kafka".to_owned());
    thread.spawn(move || answer.send(work())).ok()?;
    answered.await.ok()
}

/// Something of librdkafka's whose end blocks: dropped, it ends on a thread of its own.
pub(super) struct Apart<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Apart<T> {
    pub(super) fn new(inner: T) -> Self {
        Self(Some(inner))
    }

    /// Always there until it is dropped.
    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

impl<T: Send + 'static> Drop for Apart<T> {
    fn drop(&mut self) {
        let inner = self.0.take();
        // Without a thread it is dropped right here, with the closure that was to do it.
        let _ = std::thread::Builder::new().name("towpath-kafka".to_owned()).spawn(move || drop(inner));
    }
}
