//! Publishing: a batch is one transaction.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use chrono::Datelike;
use tokio::time::{Instant, timeout_at};
use towpath_core::ports::broker::{Message, Published};
use towpath_core::ports::queues::{Parcel, Placement, PutError};
use towpath_core::ports::store::StoreError;

use super::declaring::LONGEST_NAME;
use super::routing::{Routed, Routing};
use super::{CLOSED, Shared, with_causes};
use crate::deadline::after;

/// How many bytes a body may take: every database takes that much in one statement without being told to.
pub const LONGEST_BODY: usize = 8 << 20;

/// How many bytes all headers of a message may take.
pub const LONGEST_HEADERS: usize = 128 << 10;

/// A batch on its way: what goes where, and what is said of each message once it is written.
struct Batch {
    messages: Vec<Message>,
    /// The place of a message, and where one copy of it goes.
    placements: Vec<(usize, Placement)>,
    outcomes: Vec<Published>,
}

/// Which messages of a batch wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ordering {
    /// None: each goes where it can.
    OfBatch,
    /// Once one is not taken, the later ones with its key do not leave.
    OfKeys,
}

/// See the port.
pub(super) async fn publish(
    shared: &Shared,
    messages: &[Message],
    patience: Duration,
    ordering: Ordering,
) -> Vec<Published> {
    let not_sent = |reason: &str| vec![Published::NotSent { reason: reason.to_owned() }; messages.len()];
    if shared.is_closed() {
        return not_sent(CLOSED);
    }
    let deadline = after(patience);
    let mut known = shared.known_routing();
    loop {
        let routing = match known.take() {
            Some(routing) => routing,
            None => match timeout_at(deadline, shared.read_routing("publishing")).await {
                Ok(Ok(routing)) => routing,
                Ok(Err(error)) => return not_sent(&with_causes(&error)),
                Err(_) => return not_sent("the store did not answer in time"),
            },
        };
        let batch = route(&routing, messages, ordering);
        // Whoever gives up, here or further up, drops the transaction, and with that it is rolled back: nothing is written
        // after its sender was told otherwise. Only a commit that is on its way is not to be stopped.
        match timeout_at(deadline, put(shared, &batch, routing.revision)).await {
            Ok(Ok(true)) => return batch.outcomes,
            // The topology has changed: where do they go now?
            Ok(Ok(false)) => {}
            Ok(Err(PutError::NotWritten(StoreError::Contention(_)))) if Instant::now() < deadline => {
                known = Some(routing);
                tokio::task::yield_now().await;
            }
            Ok(Err(error @ PutError::NotWritten(_))) => return not_sent(&with_causes(&error)),
            Ok(Err(error @ PutError::Unknown(_))) => return batch.unknown(&with_causes(&error)),
            Err(_) => return batch.unknown("the store did not confirm in time"),
        }
    }
}

async fn put(shared: &Shared, batch: &Batch, revision: u64) -> Result<bool, PutError> {
    let parcels: Vec<Parcel<'_>> = batch
        .placements
        .iter()
        .filter_map(|(place, placement)| Some(Parcel { message: batch.messages.get(*place)?, placement }))
        .collect();
    let written = shared.queues.put_messages(revision, &parcels).await?;
    if written {
        let queues: BTreeSet<&str> = batch.placements.iter().map(|(_, to)| to.queue.as_str()).collect();
        queues.into_iter().for_each(|queue| shared.wake(queue));
    }
    Ok(written)
}

fn route(routing: &Routing, messages: &[Message], ordering: Ordering) -> Batch {
    let mut placements = Vec::with_capacity(messages.len());
    let mut held_back: HashSet<&str> = HashSet::new();
    let mut routed = |(place, message): (usize, &Message)| {
        if let Err(reason) = check(message) {
            return Published::Refused { reason };
        }
        let destination = &message.destination;
        match routing.route(destination, &message.headers) {
            Routed::To(found) => {
                placements.extend(found.into_iter().map(|placement| (place, placement)));
                Published::Confirmed
            }
            Routed::Nowhere => {
                Published::Unroutable { reason: format!("no queue is bound to {destination}") }
            }
            Routed::NoExchange => {
                Published::Refused { reason: format!("there is no exchange {}", destination.exchange) }
            }
        }
    };
    let mut outcomes = Vec::with_capacity(messages.len());
    for (place, message) in messages.iter().enumerate() {
        if held_back.contains(message.key.as_str()) {
            outcomes.push(Published::NotSent {
                reason: "an earlier message of its key was not taken".to_owned(),
            });
            continue;
        }
        let outcome = routed((place, message));
        if ordering == Ordering::OfKeys && outcome != Published::Confirmed {
            held_back.insert(&message.key);
        }
        outcomes.push(outcome);
    }
    Batch { messages: messages.to_vec(), placements, outcomes }
}

impl Batch {
    /// What can be said when nobody knows whether the batch was written: what goes nowhere still does.
    fn unknown(&self, reason: &str) -> Vec<Published> {
        let unknown = |outcome: &Published| match outcome {
            Published::Confirmed => Published::Unknown { reason: reason.to_owned() },
            // By a topology that nobody has confirmed either.
            _ => Published::NotSent { reason: reason.to_owned() },
        };
        self.outcomes.iter().map(unknown).collect()
    }
}

/// Whether a message fits into its columns, on every database.
fn check(message: &Message) -> Result<(), String> {
    for (what, text) in [
        ("routing key", &message.destination.routing_key),
        ("message id", &message.message_id),
        ("message type", &message.message_type),
        ("key", &message.key),
        ("content type", &message.content_type),
    ] {
        if text.len() > LONGEST_NAME {
            return Err(format!("its {what} takes {} bytes, {LONGEST_NAME} are allowed", text.len()));
        }
        if text.contains('\0') {
            return Err(format!("its {what} has a NUL"));
        }
    }
    let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if headers > LONGEST_HEADERS {
        return Err(format!("its headers take {headers} bytes, {LONGEST_HEADERS} are allowed"));
    }
    if message.body.len() > LONGEST_BODY {
        return Err(format!("its body takes {} bytes, {LONGEST_BODY} are allowed", message.body.len()));
    }
    if !(1000..=9999).contains(&message.occurred_at.year()) {
        return Err(format!("its time, {}, has no year of four digits", message.occurred_at));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;
    use towpath_core::ports::broker::Destination;

    fn message() -> Message {
        Message {
            destination: Destination { exchange: "e".into(), routing_key: "k".into() },
            message_id: "id".into(),
            message_type: "type".into(),
            key: "key".into(),
            occurred_at: DateTime::UNIX_EPOCH,
            content_type: "application/json".into(),
            headers: vec![("trace".into(), "🛶\0".into())],
            body: Vec::new(),
        }
    }

    #[test]
    fn what_no_column_holds_is_refused_before_it_is_tried() {
        assert_eq!(check(&message()), Ok(()));
        let long = "k".repeat(256);
        for (broken, what) in [
            (Message { message_id: long.clone(), ..message() }, "message id"),
            (Message { message_type: "a\0b".into(), ..message() }, "message type"),
            (Message { key: long.clone(), ..message() }, "key"),
            (Message { content_type: long, ..message() }, "content type"),
            (Message { headers: vec![("h".into(), "v".repeat(LONGEST_HEADERS))], ..message() }, "headers"),
            (Message { body: vec![0; LONGEST_BODY + 1], ..message() }, "body"),
            (Message { occurred_at: DateTime::<chrono::Utc>::MAX_UTC, ..message() }, "year"),
        ] {
            let reason = check(&broken).unwrap_err();
            assert!(reason.contains(what), "{reason}");
        }
    }
}
