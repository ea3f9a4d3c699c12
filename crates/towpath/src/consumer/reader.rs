//! Takes in what the broker itself gave up: its dead-letter queues are read into the dead letters.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use towpath_core::ids::{AggregateKey, EventId};
use towpath_core::incoming::IncomingEvent;
use towpath_core::letters::NewLetter;
use towpath_core::ports::broker::{BrokerResult, Deliveries, Received, Settlement, Subscription};
use towpath_core::ports::store::StoreError;
use towpath_core::retry::{Coded as _, ErrorClass};

use super::engine::{Running, lane_of};
use crate::bus::with_causes;
use crate::service::{Backoff, Service, Stopping};

/// How many messages are fetched ahead.
const PREFETCH: u16 = 50;

/// When one that the store did not want is tried again.
const ASIDE: Duration = Duration::from_secs(30);

/// The headers that say why a message was given up; the last time, or the first.
const DEATH_REASONS: [&str; 2] = ["x-last-death-reason", "x-first-death-reason"];

/// A dead-letter queue of the broker's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterQueue {
    pub(crate) name: String,
    /// The format of messages that do not say theirs.
    pub(crate) format: Option<String>,
}

impl DeadLetterQueue {
    /// Names the format of messages without a content type, as the consumers do that gave them up.
    pub fn in_format(mut self, format: impl Into<String>) -> Self {
        self.format = Some(format.into());
        self
    }
}

impl<N: Into<String>> From<N> for DeadLetterQueue {
    fn from(name: N) -> Self {
        Self { name: name.into(), format: None }
    }
}

/// Reads a dead-letter queue of the broker's into the dead letters.
pub(crate) fn start(running: Running, queue: DeadLetterQueue) -> Service {
    Service::keep_running("dead-letter-reader", move |stopping| run(running.clone(), queue.clone(), stopping))
}

async fn run(running: Running, queue: DeadLetterQueue, mut stopping: Stopping) {
    let mut backoff = Backoff::default();
    running.declaration.done(&mut stopping).await;
    while !stopping.is_asked() {
        let read = tokio::select! {
            () = stopping.asked() => return,
            read = read_all(&running, &queue, &mut backoff) => read,
        };
        if let Err(error) = read {
            tracing::warn!(
                queue = queue.name,
                cause = with_causes(&error),
                "reading dead letters was interrupted"
            );
        }
        let pause = backoff.next_within(running.patience.max(Duration::from_millis(100)));
        tokio::select! {
            () = stopping.asked() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn read_all(running: &Running, queue: &DeadLetterQueue, backoff: &mut Backoff) -> BrokerResult<()> {
    let group = "towpath-dead-letters".to_owned();
    let subscription = Subscription { queue: queue.name.clone(), group, prefetch: PREFETCH };
    let deliveries = running.broker.subscribe(&subscription).await?;
    let format = queue.format.as_deref();
    read(deliveries.as_ref(), &Taking { running, format }, backoff).await
}

/// Who takes letters in.
trait TakesIn: Sync {
    fn take_in(&self, received: &Received) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// How long to wait for the store at most before the next try.
    fn patience(&self) -> Duration;

    /// When one that the store did not want is tried again.
    fn aside_for(&self) -> Duration;
}

/// Takes letters in whose events are in a format, if they do not say theirs.
struct Taking<'a> {
    running: &'a Running,
    format: Option<&'a str>,
}

impl TakesIn for Taking<'_> {
    fn take_in(&self, received: &Received) -> impl Future<Output = Result<(), StoreError>> + Send {
        take_in(self.running, received, self.running.event_in(received, self.format).ok())
    }

    fn patience(&self) -> Duration {
        self.running.patience
    }

    fn aside_for(&self) -> Duration {
        ASIDE
    }
}

/// Takes in what comes. A letter is held until the store has it, and never given back: some brokers count deliveries and
/// throw a message away that came too often, and nothing stands behind a dead-letter queue. One that the store does not
/// want for its own sake waits aside, and holds up no other.
async fn read(
    deliveries: &dyn Deliveries,
    letters: &impl TakesIn,
    backoff: &mut Backoff,
) -> BrokerResult<()> {
    let mut aside: VecDeque<Received> = VecDeque::new();
    let mut again_at = Instant::now();
    loop {
        let received = tokio::select! {
            received = deliveries.next() => received?,
            () = sleep_until(again_at), if !aside.is_empty() => {
                let Some(first) = aside.pop_front() else { continue };
                first
            }
        };
        loop {
            let Err(error) = letters.take_in(&received).await else {
                backoff.reset();
                deliveries.settle(received.tag, Settlement::Acknowledge).await?;
                break;
            };
            let (queue, code, cause) = (&received.queue, error.code(), with_causes(&error));
            if error.class() != ErrorClass::Transient {
                tracing::error!(queue, code, cause, "a dead letter cannot be taken in, and waits aside");
                aside.push_back(received);
                again_at = Instant::now() + letters.aside_for();
                break;
            }
            tracing::warn!(queue, code, cause, "a dead letter waits");
            tokio::time::sleep(backoff.next_within(letters.patience())).await;
        }
    }
}

async fn take_in(
    running: &Running,
    received: &Received,
    event: Option<IncomingEvent>,
) -> Result<(), StoreError> {
    let now = running.bus.clock.now();
    let lane = match &event {
        Some(event) => lane_of(received, event),
        None => {
            AggregateKey::from_stored("message", received.message_id.as_deref().unwrap_or_default()).lane()
        }
    };
    let trace_id = event.as_ref().and_then(|event| event.trace_id.clone());
    let told = DEATH_REASONS.into_iter().find_map(|name| header(received, name));
    let reason = told.unwrap_or("given-up-by-the-broker");
    let letter = NewLetter {
        handler: None,
        event_id: event.as_ref().map(|event| EventId(event.event_id.0)),
        lane,
        message: received.clone(),
        received_at: now,
    };
    let new = running.store.read_in_letter(&letter, &death_key(received), reason, now).await?;
    if new {
        tracing::error!(
            eventId = received.message_id.as_deref().unwrap_or_default(),
            traceId = trace_id.as_ref().map(tracing::field::display),
            queue = received.queue,
            consumer = "",
            reason,
            "the broker gave a message up"
        );
        running.watchers.died(received, letter.event_id);
    }
    Ok(())
}

/// Tells this death of this message from others: the same message may be given up again after a replay.
fn death_key(received: &Received) -> String {
    let Some(message_id) = received.message_id.as_deref().filter(|id| !id.is_empty()) else {
        // Nothing tells it from another one like it: better two letters than none.
        return uuid::Uuid::now_v7().to_string();
    };
    let deaths = header(received, "x-death").unwrap_or_default();
    // The body too: who sends by hand uses an id twice.
    let said = String::from_utf8_lossy(&received.body);
    let hash = |salt: &str| AggregateKey::from_stored(salt, format!("{message_id}/{deaths}/{said}")).lane().0;
    let queue: String = received.queue.chars().take(200).collect();
    format!("{queue}/{:016x}{:016x}", hash("death"), hash("again"))
}

fn header<'a>(received: &'a Received, name: &str) -> Option<&'a str> {
    received.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use tokio::sync::Notify;
    use towpath_core::ports::broker::{BrokerError, DeliveryTag, Destination};

    use super::*;

    /// Hands out three messages, and ends when all are settled.
    #[derive(Default)]
    struct Three {
        handed_out: Mutex<u64>,
        settled: Mutex<Vec<(u64, Settlement)>>,
        all_settled: Notify,
    }

    #[async_trait]
    impl Deliveries for Three {
        async fn next(&self) -> BrokerResult<Received> {
            let tag = {
                let mut handed_out = self.handed_out.lock().unwrap();
                *handed_out += 1;
                *handed_out
            };
            if tag > 3 {
                self.all_settled.notified().await;
                return Err(BrokerError::Unavailable("the end".into()));
            }
            Ok(Received {
                tag: DeliveryTag(tag),
                queue: "dead".into(),
                message_id: None,
                message_type: None,
                occurred_at: None,
                key: None,
                content_type: None,
                destination: Destination { exchange: String::new(), routing_key: "dead".into() },
                headers: std::sync::Arc::default(),
                redelivered: false,
                body: Vec::new(),
            })
        }

        async fn settle(&self, tag: DeliveryTag, settlement: Settlement) -> BrokerResult<()> {
            let mut settled = self.settled.lock().unwrap();
            settled.push((tag.0, settlement));
            if settled.len() == 3 {
                self.all_settled.notify_one();
            }
            Ok(())
        }
    }

    /// Fails so often with the first, and then takes everything.
    struct Failing {
        left: Mutex<u32>,
        error: fn() -> StoreError,
    }

    impl TakesIn for Failing {
        async fn take_in(&self, received: &Received) -> Result<(), StoreError> {
            let mut left = self.left.lock().unwrap();
            if received.tag.0 == 1 && *left > 0 {
                *left -= 1;
                return Err((self.error)());
            }
            Ok(())
        }

        fn patience(&self) -> Duration {
            Duration::from_millis(1)
        }

        fn aside_for(&self) -> Duration {
            Duration::from_millis(20)
        }
    }

    async fn settled_after(failures: u32, error: fn() -> StoreError) -> Vec<(u64, Settlement)> {
        let (deliveries, letters) = (Three::default(), Failing { left: Mutex::new(failures), error });
        read(&deliveries, &letters, &mut Backoff::default()).await.unwrap_err();
        deliveries.settled.into_inner().unwrap()
    }

    #[tokio::test]
    async fn while_the_store_is_away_a_letter_is_held_and_not_given_back() {
        let settled = settled_after(50, || StoreError::Unavailable("away".into())).await;
        assert_eq!(settled, [1, 2, 3].map(|tag| (tag, Settlement::Acknowledge)));
    }

    #[tokio::test]
    async fn a_letter_that_the_store_does_not_want_holds_up_no_other() {
        let settled = settled_after(2, || StoreError::Unstorable("too odd".into())).await;
        assert_eq!(settled, [2, 3, 1].map(|tag| (tag, Settlement::Acknowledge)));
    }
}
