//! What the channels of an application can carry. An event that is too large for one of them would hold back its aggregate
//! there for ever, so it is refused before it is written, whoever appends it.

use towpath_core::channel::{Channel, RoutingKey, Target};
use towpath_core::ports::broker::BrokerPromises;
use towpath_core::ports::store::NewEvent;

/// The room that a message needs beside the payload, in every format.
const ENVELOPE: usize = 4 << 10;

/// How long a routing key or the name of an exchange may be, on every broker.
const LONGEST_NAME: usize = 255;

/// What each channel that publishes can carry. Cheap to ask.
#[derive(Default)]
pub(crate) struct Carrying(Vec<Carried>);

struct Carried {
    channel: Channel,
    largest: usize,
}

/// An event that a channel cannot carry.
#[derive(Debug, thiserror::Error)]
#[error("{event_type} has {bytes} bytes as a message, and channel {channel} carries {largest} at most")]
pub(crate) struct TooLarge {
    pub(crate) event_type: String,
    pub(crate) channel: String,
    pub(crate) bytes: usize,
    pub(crate) largest: usize,
}

impl Carrying {
    /// What these channels carry on a broker.
    ///
    /// # Errors
    /// A text for people when one of them can carry nothing at all.
    pub(crate) fn of<'c>(
        channels: impl IntoIterator<Item = &'c Channel>,
        promises: BrokerPromises,
    ) -> Result<Self, String> {
        let mut carried = Vec::new();
        for channel in channels {
            let Some(target) = &channel.target else { continue };
            check(channel, target)?;
            let largest = channel.policy.largest_message.unwrap_or(promises.usual_body);
            let largest = largest.min(promises.largest_body);
            carried.push(Carried { channel: channel.clone(), largest });
        }
        Ok(Self(carried))
    }

    /// Refuses the first event that is too large for a channel that takes it.
    pub(crate) fn check(&self, events: &[NewEvent]) -> Result<(), TooLarge> {
        for event in events {
            let bytes = event.payload.as_text().len().saturating_add(ENVELOPE);
            let too_small = self
                .0
                .iter()
                .find(|carried| carried.largest < bytes && carried.channel.takes(event.event_type.as_str()));
            if let Some(Carried { channel, largest }) = too_small {
                let (event_type, channel) = (event.event_type.to_string(), channel.name.to_string());
                return Err(TooLarge { event_type, channel, bytes, largest: *largest });
            }
        }
        Ok(())
    }
}

fn check(channel: &Channel, target: &Target) -> Result<(), String> {
    let key = match &target.routing_key {
        RoutingKey::Fixed(key) => key.as_str(),
        RoutingKey::EventType => "",
    };
    for (what, name) in [("exchange", target.exchange.as_str()), ("routing key", key)] {
        if name.len() > LONGEST_NAME {
            let (channel, bytes) = (&channel.name, name.len());
            return Err(format!(
                "channel {channel}: its {what} takes {bytes} bytes, {LONGEST_NAME} are allowed"
            ));
        }
    }
    Ok(())
}
