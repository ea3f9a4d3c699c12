//! Takes in what the broker itself gave up: its dead-letter queues are read into the dead letters.

use std::time::Duration;

use towpath_core::ids::{AggregateKey, EventId};
use towpath_core::letters::NewLetter;
use towpath_core::ports::broker::{BrokerResult, Deliveries, Received, Settlement, Subscription};
use towpath_core::ports::store::StoreError;

use super::engine::{Backoff, Running, lane_of};
use crate::bus::with_causes;
use crate::service::{Service, Stopping};

/// How many messages are fetched ahead.
const PREFETCH: u16 = 50;

/// The headers that say why a message was given up; the last time, or the first.
const DEATH_REASONS: [&str; 2] = ["x-last-death-reason", "x-first-death-reason"];

/// Reads a dead-letter queue of the broker's into the dead letters.
pub(crate) fn start(running: Running, queue: String) -> Service {
    Service::keep_running("dead-letter-reader", move |stopping| run(running.clone(), queue.clone(), stopping))
}

async fn run(running: Running, queue: String, mut stopping: Stopping) {
    let mut backoff = Backoff::default();
    running.declaration.done(&mut stopping).await;
    while !stopping.is_asked() {
        let read = tokio::select! {
            () = stopping.asked() => return,
            read = read_all(&running, &queue, &mut backoff) => read,
        };
        if let Err(error) = read {
            tracing::warn!(queue, cause = with_causes(&error), "reading dead letters was interrupted");
        }
        let pause = backoff.next(running.patience.max(Duration::from_millis(100)));
        tokio::select! {
            () = stopping.asked() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn read_all(running: &Running, queue: &str, backoff: &mut Backoff) -> BrokerResult<()> {
    let group = "towpath-dead-letters".to_owned();
    let subscription = Subscription { queue: queue.to_owned(), group, prefetch: PREFETCH };
    let deliveries = running.broker.subscribe(&subscription).await?;
    loop {
        let received = deliveries.next().await?;
        match take_in(running, &received).await {
            Ok(()) => {
                backoff.reset();
                deliveries.settle(received.tag, Settlement::Acknowledge).await?;
            }
            Err(error) => {
                tracing::warn!(
                    queue,
                    code = error.code(),
                    cause = with_causes(&error),
                    "a dead letter waits"
                );
                put_back(deliveries.as_ref(), &received).await?;
                tokio::time::sleep(backoff.next(running.patience)).await;
            }
        }
    }
}

async fn put_back(deliveries: &dyn Deliveries, received: &Received) -> BrokerResult<()> {
    deliveries.settle(received.tag, Settlement::Requeue).await
}

async fn take_in(running: &Running, received: &Received) -> Result<(), StoreError> {
    let now = running.bus.clock.now();
    let event = towpath_broker::read(received).ok();
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
