//! Which queue a consumer takes from, and what must exist on the broker for it.
//!
//! What would silently break a promise (order, or that nothing is lost) is refused here, at the start.

use towpath_core::channel::{Channel, RoutingKey, Target};
use towpath_core::ids::HandlerName;
use towpath_core::ports::broker::{
    Argument, Binding, BrokerPromises, Exchange, ExchangeKind, Queue, Topology,
};

use super::{Afterwards, Consumer, DeadLetterQueue, DeadTo, Identity, Source};
use crate::start_error::StartError;

const DEAD_LETTER_EXCHANGE: &str = "x-dead-letter-exchange";
const DEAD_LETTER_ROUTING_KEY: &str = "x-dead-letter-routing-key";
const DEAD_LETTER_STRATEGY: &str = "x-dead-letter-strategy";
const OVERFLOW: &str = "x-overflow";
const SINGLE_ACTIVE_CONSUMER: &str = "x-single-active-consumer";
const DELIVERY_LIMIT: &str = "x-delivery-limit";

/// So many deliveries never happen. RabbitMQ 4 gives a message up after 20 unless it is told otherwise. It would take -1 for
/// "never", but RabbitMQ 3 takes that for "at once" and throws the message away.
const NO_LIMIT: i64 = i32::MAX as i64;

/// A consumer with the queue it takes from.
pub(crate) struct Wired {
    pub(crate) consumer: Consumer,
    pub(crate) handler: HandlerName,
    pub(crate) queue: String,
}

/// Gives each consumer its queue, and declares what it needs on the broker: the queue, and behind it one for what the
/// broker itself gives up (some count deliveries and throw a message away that came too often). Those are read into
/// the dead letters.
pub(crate) fn wire(
    channels: &mut [Channel],
    topology: &mut Topology,
    dead_letter_queues: &mut Vec<DeadLetterQueue>,
    consumers: Vec<Consumer>,
    promises: BrokerPromises,
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
                let own = OwnQueue {
                    handler: &handler,
                    in_order: consumer.policy.in_order,
                    format: consumer.format.as_ref(),
                    promises,
                };
                own.declare(topology, dead_letter_queues, name, target.as_ref())?
            }
        };
        check(&consumer, &handler, &queue, topology, promises)?;
        wired.push(Wired { consumer, handler, queue });
    }
    Ok(wired)
}

/// Refuses what could not keep what it promises.
fn check(
    consumer: &Consumer,
    handler: &HandlerName,
    queue: &str,
    topology: &Topology,
    promises: BrokerPromises,
) -> Result<(), StartError> {
    let policy = &consumer.policy;
    let refuse = |why: &str| Err(StartError::Wiring(format!("consumer {handler}: {why}")));
    // Queues that are not in the topology were made by somebody else; what they have is not known here.
    let declared = topology.queues.iter().find(|declared| declared.name == queue);
    let lacks = |argument: &str| {
        declared.is_some_and(|declared| declared.arguments.iter().all(|(name, _)| name != argument))
    };
    if policy.dead == DeadTo::Broker {
        if !promises.dead_letters {
            return refuse(
                "this broker has no dead letters of its own: what is given up must go to the store",
            );
        }
        if lacks(DEAD_LETTER_EXCHANGE) {
            return refuse(
                "what it gives up would be lost: its queue is declared without x-dead-letter-exchange",
            );
        }
        if policy.in_order {
            return refuse(
                "order cannot be kept: what is given up to the broker holds nothing back; use the store",
            );
        }
    }
    let goes_back = policy.dead == DeadTo::Broker || matches!(policy.afterwards, Afterwards::Requeue { .. });
    if consumer.identity == Identity::Append && goes_back {
        return refuse(
            "a change cannot be kept whole: the broker would bring its facts back one by one; use the store",
        );
    }
    if policy.in_order {
        if let Afterwards::Requeue { .. } = policy.afterwards {
            return refuse("order cannot be kept: what goes back to the broker is overtaken; set it aside");
        }
        if promises.settles_singly && lacks(SINGLE_ACTIVE_CONSUMER) {
            return refuse(
                "order cannot be kept by several instances: its queue is declared without x-single-active-consumer",
            );
        }
    }
    Ok(())
}

/// The queue of one handler on what a channel publishes to.
struct OwnQueue<'a> {
    handler: &'a HandlerName,
    in_order: bool,
    format: Option<&'a String>,
    promises: BrokerPromises,
}

impl OwnQueue<'_> {
    /// Declares it unless it is declared already; answers its name.
    fn declare(
        &self,
        topology: &mut Topology,
        dead_letter_queues: &mut Vec<DeadLetterQueue>,
        channel: &str,
        target: Option<&Target>,
    ) -> Result<String, StartError> {
        let exchange = target.map_or_else(|| channel.to_owned(), |target| target.exchange.clone());
        let kind = match topology.exchanges.iter().find(|declared| declared.name == exchange) {
            Some(declared) => declared.kind,
            None => {
                let kind = ExchangeKind::Topic;
                topology.exchanges.push(Exchange { name: exchange.clone(), kind });
                kind
            }
        };
        let routing_key = match (kind, target.map(|target| &target.routing_key)) {
            (ExchangeKind::Topic, _) => "#".to_owned(),
            (ExchangeKind::Fanout, _) => String::new(),
            (ExchangeKind::Direct, Some(RoutingKey::Fixed(key))) => key.clone(),
            (ExchangeKind::Direct, _) => {
                return Err(StartError::Wiring(format!(
                    "consumer {}: exchange {exchange} is direct, and channel {channel} has no fixed routing key to \
                     bind a queue by; declare the queue and its bindings, and take from it with `from_queue`",
                    self.handler
                )));
            }
        };
        let queue = format!("{exchange}.{}", self.handler);
        if !topology.queues.iter().any(|declared| declared.name == queue) {
            let mut arguments = Vec::new();
            // Where messages are not settled singly, queues are positions in a log: they have no arguments, and a
            // partition has one receiver anyway.
            if self.promises.settles_singly {
                arguments.push(quorum());
                if self.in_order {
                    // One of several instances receives at a time, or two would handle one aggregate at once.
                    arguments.push((SINGLE_ACTIVE_CONSUMER.to_owned(), Argument::Switch(true)));
                    // What is given up is overtaken by what stands behind it.
                    arguments.extend(self.no_delivery_limit());
                }
            }
            if self.promises.dead_letters {
                let dead = format!("{queue}.dead");
                arguments.push((DEAD_LETTER_EXCHANGE.to_owned(), Argument::Text(String::new())));
                arguments.push((DEAD_LETTER_ROUTING_KEY.to_owned(), Argument::Text(dead.clone())));
                if !self.promises.in_store {
                    // It leaves its queue when the one behind has it. The broker does so only where a full queue refuses
                    // what is published; this one is never full.
                    arguments.push(text(DEAD_LETTER_STRATEGY, "at-least-once"));
                    arguments.push(text(OVERFLOW, "reject-publish"));
                }
                // Nothing stands behind it: what it gave up would be lost.
                let of_dead = [quorum()].into_iter().chain(self.no_delivery_limit()).collect();
                topology.queues.push(Queue { name: dead.clone(), arguments: of_dead });
                dead_letter_queues.push(DeadLetterQueue { name: dead, format: self.format.cloned() });
            }
            topology.queues.push(Queue { name: queue.clone(), arguments });
        }
        topology.bindings.push(Binding { queue: queue.clone(), exchange, routing_key });
        Ok(queue)
    }

    /// The broker in the store counts no deliveries.
    fn no_delivery_limit(&self) -> Option<(String, Argument)> {
        (!self.promises.in_store).then(|| (DELIVERY_LIMIT.to_owned(), Argument::Number(NO_LIMIT)))
    }
}

fn quorum() -> (String, Argument) {
    text("x-queue-type", "quorum")
}

fn text(name: &str, value: &str) -> (String, Argument) {
    (name.to_owned(), Argument::Text(value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::{ConsumerOf, ConsumerPolicy};
    use super::*;

    const QUEUES: BrokerPromises = BrokerPromises {
        broker: "test",
        tells_unroutable: true,
        delays: true,
        dead_letters: true,
        ordered_by_key: false,
        settles_singly: true,
        tells_redelivered: true,
        reconnects: false,
        durable: true,
        tells_standing: false,
        in_store: false,
        ordered_batches: false,
        largest_body: usize::MAX,
        usual_body: usize::MAX,
    };
    const LOG: BrokerPromises = BrokerPromises { dead_letters: false, settles_singly: false, ..QUEUES };

    #[derive(serde::Serialize, serde::Deserialize, towpath_core::Event)]
    #[event(crate = "towpath_core")]
    enum Nothing {
        #[serde(rename = "nothing.happened")]
        Happened,
    }

    fn handler(of: ConsumerOf) -> Consumer {
        of.each("stock", |delivery| async move { Ok(delivery.handled()) })
    }

    fn wired(
        consumer: Consumer,
        mut topology: Topology,
        promises: BrokerPromises,
    ) -> Result<Topology, String> {
        let mut dead = Vec::new();
        match wire(&mut [], &mut topology, &mut dead, vec![consumer], promises) {
            Ok(_) => Ok(topology),
            Err(error) => Err(error.to_string()),
        }
    }

    fn queue(name: &str, arguments: &[&str]) -> Topology {
        let arguments = arguments.iter().map(|name| ((*name).to_owned(), Argument::Switch(true))).collect();
        let queues = vec![Queue { name: name.to_owned(), arguments }];
        Topology { queues, ..Topology::default() }
    }

    #[test]
    fn a_queue_of_its_own_has_one_behind_it_for_what_the_broker_gives_up() {
        let topology =
            wired(handler(Consumer::of("orders").in_order()), Topology::default(), QUEUES).unwrap();
        let names: Vec<&str> = topology.queues.iter().map(|queue| queue.name.as_str()).collect();
        assert_eq!(names, ["orders.stock.dead", "orders.stock"]);
        let arguments: Vec<&str> =
            topology.queues[1].arguments.iter().map(|(name, _)| name.as_str()).collect();
        assert!(arguments.contains(&SINGLE_ACTIVE_CONSUMER) && arguments.contains(&DEAD_LETTER_EXCHANGE));
        let topology = wired(handler(Consumer::of("orders").in_order()), Topology::default(), LOG).unwrap();
        assert!(topology.queues[0].arguments.is_empty(), "a log has no such arguments");
    }

    #[test]
    fn nothing_is_lost_or_overtaken_because_the_broker_counts_deliveries() {
        let of = |consumer, promises| {
            let topology = wired(handler(consumer), Topology::default(), promises).unwrap();
            topology.queues.into_iter().map(|queue| queue.arguments).collect::<Vec<_>>()
        };
        let unlimited = (DELIVERY_LIMIT.to_owned(), Argument::Number(2_147_483_647));
        let safely = [text(DEAD_LETTER_STRATEGY, "at-least-once"), text(OVERFLOW, "reject-publish")];
        let in_order = of(Consumer::of("orders").in_order(), QUEUES);
        assert!(in_order.iter().all(|arguments| arguments.contains(&unlimited)), "{in_order:?}");
        assert!(safely.iter().all(|argument| in_order[1].contains(argument)), "{in_order:?}");
        let any_order = of(Consumer::of("orders"), QUEUES);
        assert!(any_order[0].contains(&unlimited) && !any_order[1].contains(&unlimited), "{any_order:?}");
        assert!(safely.iter().all(|argument| any_order[1].contains(argument)), "{any_order:?}");
        let in_store = of(Consumer::of("orders").in_order(), BrokerPromises { in_store: true, ..QUEUES });
        let knows = |(name, _): &(String, Argument)| [DELIVERY_LIMIT, OVERFLOW].contains(&name.as_str());
        assert!(!in_store.iter().flatten().any(knows), "{in_store:?}");
    }

    #[test]
    fn what_would_lose_deliveries_is_refused() {
        let to_broker = ConsumerPolicy { dead: DeadTo::Broker, ..ConsumerPolicy::default() };
        let consumer = || handler(Consumer::from_queue("q").with(to_broker.clone()));
        assert!(wired(consumer(), queue("q", &[]), LOG).unwrap_err().contains("no dead letters"));
        assert!(wired(consumer(), queue("q", &[]), QUEUES).unwrap_err().contains(DEAD_LETTER_EXCHANGE));
        wired(consumer(), queue("q", &[DEAD_LETTER_EXCHANGE]), QUEUES).unwrap();
    }

    #[test]
    fn what_would_break_the_order_is_refused() {
        let requeue =
            ConsumerPolicy { afterwards: Afterwards::Requeue { at_most: 3 }, ..ConsumerPolicy::default() };
        let consumer = handler(Consumer::of("orders").with(requeue).in_order());
        assert!(wired(consumer, Topology::default(), QUEUES).unwrap_err().contains("overtaken"));
        let to_broker = ConsumerPolicy { dead: DeadTo::Broker, ..ConsumerPolicy::default() };
        let consumer = handler(Consumer::of("orders").with(to_broker).in_order());
        assert!(wired(consumer, Topology::default(), QUEUES).unwrap_err().contains("holds nothing back"));
        let requeue =
            ConsumerPolicy { afterwards: Afterwards::Requeue { at_most: 3 }, ..ConsumerPolicy::default() };
        let source = Consumer::of("orders").with(requeue);
        let changes = source.events::<Nothing>().changes("whole", async |_, _| Ok(()));
        assert!(wired(changes, Topology::default(), QUEUES).unwrap_err().contains("one by one"));
        let consumer = handler(Consumer::from_queue("q").in_order());
        assert!(wired(consumer, queue("q", &[]), QUEUES).unwrap_err().contains(SINGLE_ACTIVE_CONSUMER));
    }
}
