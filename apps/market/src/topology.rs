//! The frozen topology (O1): one exchange, six queues, their bindings and arguments, and the channels that publish to it.

use std::time::Duration;

use towpath::ids::InvalidId;
use towpath::ports::broker::{Argument, Binding, Exchange, ExchangeKind, Queue, Topology};
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

/// The routing key of ORDER_CREATED.
pub const CREATED_KEY: &str = "order.created";
/// The routing key of ORDER_PAID.
pub const PAID_KEY: &str = "order.paid";
/// The routing key of ORDER_STATUS_CHANGED.
pub const STATUS_CHANGED_KEY: &str = "order.status.changed";
/// The routing key of ORDER_TIMEOUT after it has waited.
pub const TIMEOUT_KEY: &str = "order.timeout";
/// The routing key of ORDER_TIMEOUT before it has waited.
pub const TIMEOUT_DELAY_KEY: &str = "order.timeout.delay";
/// The routing key of what was given up.
pub const DEAD_LETTER_KEY: &str = "order.dlq";

/// The queues that handlers take from: the handler's name, its queue and the one type of event it takes.
pub const CONSUMERS: [(&str, &str, EventType); 4] = [
    ("inventory.update", INVENTORY_QUEUE, EventType::OrderCreated),
    ("order.fulfillment", FULFILLMENT_QUEUE, EventType::OrderPaid),
    ("order.status.sync", STATUS_SYNC_QUEUE, EventType::OrderStatusChanged),
    ("order.timeout", TIMEOUT_QUEUE, EventType::OrderTimeout),
];

/// The topology, with the time that an order may stay unpaid.
pub fn topology(pending: Duration) -> Topology {
    let text = |name: &str, value: &str| (name.to_owned(), Argument::Text(value.to_owned()));
    let dead_to =
        |key: &str| vec![text("x-dead-letter-exchange", EXCHANGE), text("x-dead-letter-routing-key", key)];
    let working = |name: &str| Queue { name: name.to_owned(), arguments: dead_to(DEAD_LETTER_KEY) };
    let mut delaying = vec![("x-message-ttl".to_owned(), Argument::Number(milliseconds(pending)))];
    delaying.extend(dead_to(TIMEOUT_KEY));
    let binding = |queue: &str, routing_key: &str| Binding {
        queue: queue.to_owned(),
        exchange: EXCHANGE.to_owned(),
        routing_key: routing_key.to_owned(),
    };
    Topology {
        exchanges: vec![Exchange { name: EXCHANGE.to_owned(), kind: ExchangeKind::Topic }],
        queues: vec![
            working(TIMEOUT_QUEUE),
            Queue { name: TIMEOUT_DELAY_QUEUE.to_owned(), arguments: delaying },
            working(INVENTORY_QUEUE),
            working(FULFILLMENT_QUEUE),
            working(STATUS_SYNC_QUEUE),
            Queue { name: DEAD_LETTER_QUEUE.to_owned(), arguments: Vec::new() },
        ],
        bindings: vec![
            binding(INVENTORY_QUEUE, CREATED_KEY),
            binding(FULFILLMENT_QUEUE, PAID_KEY),
            binding(STATUS_SYNC_QUEUE, STATUS_CHANGED_KEY),
            binding(TIMEOUT_QUEUE, TIMEOUT_KEY),
            binding(TIMEOUT_DELAY_QUEUE, TIMEOUT_DELAY_KEY),
            binding(DEAD_LETTER_QUEUE, DEAD_LETTER_KEY),
        ],
    }
}

/// The topology as people read it: a line for each thing.
pub fn described(topology: &Topology) -> String {
    let mut lines = Vec::new();
    for exchange in &topology.exchanges {
        lines.push(format!("exchange  {}  ({})", exchange.name, exchange.kind.as_str()));
    }
    for queue in &topology.queues {
        let arguments: Vec<String> =
            queue.arguments.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let arguments =
            if arguments.is_empty() { String::new() } else { format!("  ({})", arguments.join(", ")) };
        lines.push(format!("queue     {}{arguments}", queue.name));
    }
    for binding in &topology.bindings {
        lines
            .push(format!("binding   {}  --{}-->  {}", binding.exchange, binding.routing_key, binding.queue));
    }
    lines.join("\n")
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

fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
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
        assert_eq!(described(&topology(Duration::from_secs(15 * 60))), expected);
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
