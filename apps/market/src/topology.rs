//! The frozen topology (O1): one exchange, six queues, their bindings and arguments, and the channels that publish to it.

use std::time::Duration;

use towpath::ids::InvalidId;
use towpath::ports::broker::{ExchangeKind, Queue, Topology};
use towpath::{Channel, ChannelPolicy};

use crate::envelope::FORMAT_NAME;
use crate::events::EventType;

/// Where everything is published to.
pub const EXCHANGE: &str = "order.events.exchange";

/// Orders whose time is over.
pub const TIMEOUT_QUEUE: &str = "order.timeout.queue";
/// Where the messages about them wait until it is.
pub const TIMEOUT_DELAY_QUEUE: &str = "order.timeout.delay.queue";
/// What was ordered.
pub const INVENTORY_QUEUE: &str = "inventory.update.queue";
/// What was paid.
pub const FULFILLMENT_QUEUE: &str = "order.fulfillment.queue";
/// What has moved on.
pub const STATUS_SYNC_QUEUE: &str = "order.status.sync.queue";
/// What was given up, from all of them.
pub const DEAD_LETTER_QUEUE: &str = "order.dlq.queue";

// Routing keys.
pub(crate) const CREATED_KEY: &str = "order.created";
pub(crate) const PAID_KEY: &str = "order.paid";
pub(crate) const STATUS_CHANGED_KEY: &str = "order.status.changed";
pub(crate) const TIMEOUT_KEY: &str = "order.timeout";
/// Under this one ORDER_TIMEOUT waits before it comes under its own.
pub(crate) const TIMEOUT_DELAY_KEY: &str = "order.timeout.delay";
pub(crate) const DEAD_LETTER_KEY: &str = "order.dlq";

/// The queues that handlers take from: the handler's name, its queue and the one type of event it takes.
pub const CONSUMERS: [(&str, &str, EventType); 4] = [
    ("inventory.update", INVENTORY_QUEUE, EventType::OrderCreated),
    ("order.fulfillment", FULFILLMENT_QUEUE, EventType::OrderPaid),
    ("order.status.sync", STATUS_SYNC_QUEUE, EventType::OrderStatusChanged),
    ("order.timeout", TIMEOUT_QUEUE, EventType::OrderTimeout),
];

/// The topology, with the time that an order may stay unpaid.
pub fn topology(pending: Duration) -> Topology {
    let working = |name: &str| Queue::named(name).dead_to(EXCHANGE, DEAD_LETTER_KEY);
    Topology::default()
        .exchange(EXCHANGE, ExchangeKind::Topic)
        .queue(working(TIMEOUT_QUEUE))
        .queue(Queue::named(TIMEOUT_DELAY_QUEUE).expiring(pending).dead_to(EXCHANGE, TIMEOUT_KEY))
        .queue(working(INVENTORY_QUEUE))
        .queue(working(FULFILLMENT_QUEUE))
        .queue(working(STATUS_SYNC_QUEUE))
        .queue(Queue::named(DEAD_LETTER_QUEUE))
        .bind(INVENTORY_QUEUE, EXCHANGE, CREATED_KEY)
        .bind(FULFILLMENT_QUEUE, EXCHANGE, PAID_KEY)
        .bind(STATUS_SYNC_QUEUE, EXCHANGE, STATUS_CHANGED_KEY)
        .bind(TIMEOUT_QUEUE, EXCHANGE, TIMEOUT_KEY)
        .bind(TIMEOUT_DELAY_QUEUE, EXCHANGE, TIMEOUT_DELAY_KEY)
        .bind(DEAD_LETTER_QUEUE, EXCHANGE, DEAD_LETTER_KEY)
}

/// The channels: one per event type, so that each is retried for itself.
pub(crate) fn channels(policy: &ChannelPolicy) -> Vec<Result<Channel, InvalidId>> {
    EventType::ALL
        .into_iter()
        .map(|event_type| {
            let channel = Channel::named(event_type.channel(), [event_type.as_str()])?;
            Ok(channel.to(EXCHANGE, event_type.first_key()).in_format(FORMAT_NAME).with(policy.clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topology_is_the_frozen_one_line_for_line() {
        let expected = "\
exchange  order.events.exchange  (topic)
queue     order.timeout.queue  (x-dead-letter-exchange = order.events.exchange, x-dead-letter-routing-key = order.dlq)
queue     order.timeout.delay.queue  (x-message-ttl = 900000, x-dead-letter-exchange = order.events.exchange, x-dead-letter-routing-key = order.timeout)
queue     inventory.update.queue  (x-dead-letter-exchange = order.events.exchange, x-dead-letter-routing-key = order.dlq)
queue     order.fulfillment.queue  (x-dead-letter-exchange = order.events.exchange, x-dead-letter-routing-key = order.dlq)
queue     order.status.sync.queue  (x-dead-letter-exchange = order.events.exchange, x-dead-letter-routing-key = order.dlq)
queue     order.dlq.queue
binding   order.events.exchange  --order.created-->  inventory.update.queue
binding   order.events.exchange  --order.paid-->  order.fulfillment.queue
binding   order.events.exchange  --order.status.changed-->  order.status.sync.queue
binding   order.events.exchange  --order.timeout-->  order.timeout.queue
binding   order.events.exchange  --order.timeout.delay-->  order.timeout.delay.queue
binding   order.events.exchange  --order.dlq-->  order.dlq.queue";
        assert_eq!(topology(Duration::from_secs(15 * 60)).to_string(), expected);
    }

    #[test]
    fn each_type_is_said_to_go_to_the_queue_that_its_key_leads_to() {
        let bindings = topology(Duration::from_secs(1)).bindings;
        for event_type in EventType::ALL {
            let bound =
                bindings.iter().find(|binding| binding.routing_key == event_type.first_key()).unwrap();
            assert_eq!(event_type.first_queue(), bound.queue);
        }
    }

    #[test]
    fn each_event_type_has_a_channel_of_its_own() {
        let channels: Vec<Channel> =
            channels(&ChannelPolicy::default()).into_iter().map(Result::unwrap).collect();
        let targets: Vec<String> = channels
            .iter()
            .map(|channel| channel.target.as_ref().unwrap().destination("x").to_string())
            .collect();
        assert_eq!(
            targets,
            ["order.created", "order.paid", "order.status.changed", "order.timeout.delay"]
                .map(|key| format!("order.events.exchange:{key}"))
        );
    }
}
