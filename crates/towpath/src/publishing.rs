//! Publishing events on a channel: each in the channel's format, and one answer for each.

use towpath_core::channel::{Channel, Target};
use towpath_core::envelope::EventEnvelope;
use towpath_core::ports::broker::{Broker, Message, Published};

use crate::bus::with_causes;

/// Publishes events in order and answers one outcome for each. An event that the format cannot hold is refused before
/// the broker sees it; the others go out all the same.
pub(crate) async fn publish(
    broker: &dyn Broker,
    channel: &Channel,
    target: &Target,
    events: &[&EventEnvelope],
) -> Vec<Published> {
    let mut messages: Vec<Message> = Vec::with_capacity(events.len());
    let mut unwritable: Vec<Option<Published>> = Vec::with_capacity(events.len());
    for event in events {
        let destination = target.destination(event.event_type.as_str());
        match towpath_broker::message(channel.format, channel.source.as_deref(), event, destination) {
            Ok(message) => {
                messages.push(message);
                unwritable.push(None);
            }
            Err(error) => unwritable.push(Some(Published::Refused { reason: with_causes(&error) })),
        }
    }
    let answers = if messages.is_empty() {
        Vec::new()
    } else {
        broker.publish(&messages, channel.policy.patience).await
    };
    // A broker that forgot some of them has said nothing about them.
    let silent = Published::Unknown { reason: "the broker gave no answer".to_owned() };
    let mut answers = answers.into_iter();
    unwritable
        .into_iter()
        .map(|refused| refused.or_else(|| answers.next()).unwrap_or_else(|| silent.clone()))
        .collect()
}
