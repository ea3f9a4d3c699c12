//! Which queue a consumer takes from, and what must exist on the broker for it.

use towpath_core::channel::{Channel, RoutingKey, Target};
use towpath_core::ids::HandlerName;
use towpath_core::ports::broker::{Argument, Binding, Exchange, ExchangeKind, Queue, Topology};

use super::{Consumer, Source};
use crate::towpath::StartError;

/// A consumer with the queue it takes from.
pub(crate) struct Wired {
    pub(crate) consumer: Consumer,
    pub(crate) handler: HandlerName,
    pub(crate) queue: String,
}

/// Gives each consumer its queue, and declares what it needs on the broker.
pub(crate) fn wire(
    channels: &mut [Channel],
    topology: &mut Topology,
    consumers: Vec<Consumer>,
    queues_have_arguments: bool,
) -> Result<Vec<Wired>, StartError> {
    let mut wired: Vec<Wired> = Vec::new();
    for consumer in consumers {
        let handler = HandlerName::new(&consumer.handler)?;
        if wired.iter().any(|other| other.handler == handler) {
            let twice = format!("two consumers are called {handler}: the inbox could not tell them apart");
            return Err(StartError::Wiring(twice));
        }
        let queue = match &consumer.source {
            Source::Queue(queue) => queue.clone(),
            Source::Channel(name) => {
                let channel = channels.iter_mut().find(|channel| channel.name.as_str() == name);
                let target = channel.map(|channel| channel.publish_by_default().clone());
                declare_for(
                    topology,
                    name,
                    target.as_ref(),
                    &handler,
                    consumer.policy.in_order,
                    queues_have_arguments,
                )
            }
        };
        wired.push(Wired { consumer, handler, queue });
    }
    Ok(wired)
}

/// Declares the handler's own queue on what a channel publishes to; answers its name.
fn declare_for(
    topology: &mut Topology,
    channel: &str,
    target: Option<&Target>,
    handler: &HandlerName,
    in_order: bool,
    queues_have_arguments: bool,
) -> String {
    let exchange = target.map_or_else(|| channel.to_owned(), |target| target.exchange.clone());
    let kind = match topology.exchanges.iter().find(|declared| declared.name == exchange) {
        Some(declared) => declared.kind,
        None => {
            let kind = ExchangeKind::Topic;
            topology.exchanges.push(Exchange { name: exchange.clone(), kind });
            kind
        }
    };
    let queue = format!("{exchange}.{handler}");
    if !topology.queues.iter().any(|declared| declared.name == queue) {
        let mut arguments = Vec::new();
        if queues_have_arguments {
            arguments.push(("x-queue-type".to_owned(), Argument::Text("quorum".to_owned())));
        }
        // Where queues have no arguments, a partition has one receiver anyway.
        if in_order && queues_have_arguments {
            // With several instances one of them receives at a time, or two would handle one aggregate at once.
            arguments.push(("x-single-active-consumer".to_owned(), Argument::Switch(true)));
        }
        topology.queues.push(Queue { name: queue.clone(), arguments });
    }
    let routing_key = match (kind, target.map(|target| &target.routing_key)) {
        (ExchangeKind::Topic, _) => "#".to_owned(),
        (_, Some(RoutingKey::Fixed(key))) => key.clone(),
        (ExchangeKind::Fanout | ExchangeKind::Direct, _) => String::new(),
    };
    topology.bindings.push(Binding { queue: queue.clone(), exchange, routing_key });
    queue
}
