//! Where a message goes: purely, from the topology.
//!
//! As on RabbitMQ: exchanges route by patterns, exact keys or to all; the exchange without a name leads to the queue that
//! the key names. What is rejected goes to the queue's dead-letter exchange. A queue with a time to live and a
//! dead-letter exchange is a delay: a message to it is at once placed where it would come out, and only becomes
//! available when its time is over.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_core::ports::broker::{Argument, Destination, ExchangeKind, Queue};
use towpath_core::ports::queues::{Layout, Placement};

/// How long a message waits in a queue.
pub(super) const TIME_TO_LIVE: &str = "x-message-ttl";

/// Where what a queue does not keep is published again.
pub(super) const DEAD_LETTER_EXCHANGE: &str = "x-dead-letter-exchange";

/// Under which key; without it, under its own.
pub(super) const DEAD_LETTER_KEY: &str = "x-dead-letter-routing-key";

/// Whether only one receiver at a time takes from a queue.
pub(super) const SINGLE_RECEIVER: &str = "x-single-active-consumer";

/// Where a message was given up, how often and why: a JSON list, the latest first.
pub const DEATHS_HEADER: &str = "x-death";

/// The queue that gave a message up first.
pub const FIRST_DEATH_QUEUE_HEADER: &str = "x-first-death-queue";

/// Why it did.
pub const FIRST_DEATH_REASON_HEADER: &str = "x-first-death-reason";

/// The queue that gave it up last.
pub const LAST_DEATH_QUEUE_HEADER: &str = "x-last-death-queue";

/// Why it did.
pub const LAST_DEATH_REASON_HEADER: &str = "x-last-death-reason";

/// Through how many delay queues a message may go. More is a circle.
const MOST_DELAYS: usize = 16;

/// A topology, arranged for routing.
#[derive(Debug)]
pub(super) struct Routing {
    pub(super) revision: u64,
    exchanges: HashMap<String, Bound>,
    queues: HashMap<String, Rules>,
}

#[derive(Debug)]
struct Bound {
    kind: ExchangeKind,
    /// Keys and queues.
    bindings: Vec<(String, String)>,
}

/// What a queue's arguments mean.
#[derive(Debug, Default)]
struct Rules {
    time_to_live: Option<Duration>,
    dead_letters: Option<DeadLetters>,
    single_receiver: bool,
}

#[derive(Debug)]
struct DeadLetters {
    exchange: String,
    routing_key: Option<String>,
}

/// Where a message goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Routed {
    /// To these queues.
    To(Vec<Placement>),
    /// No queue wants it.
    Nowhere,
    /// There is no such exchange.
    NoExchange,
}

/// Why a queue did not keep a message.
#[derive(Debug, Clone, Copy)]
enum Death {
    Rejected,
    Expired,
}

impl Routing {
    pub(super) fn new(layout: &Layout) -> Self {
        let topology = &layout.topology;
        let mut exchanges: HashMap<String, Bound> = topology
            .exchanges
            .iter()
            .map(|exchange| (exchange.name.clone(), Bound { kind: exchange.kind, bindings: Vec::new() }))
            .collect();
        for binding in &topology.bindings {
            if let Some(bound) = exchanges.get_mut(&binding.exchange) {
                bound.bindings.push((binding.routing_key.clone(), binding.queue.clone()));
            }
        }
        let queues = topology.queues.iter().map(|queue| (queue.name.clone(), Rules::of(queue))).collect();
        Self { revision: layout.revision, exchanges, queues }
    }

    /// Whether a queue exists.
    pub(super) fn has_queue(&self, queue: &str) -> bool {
        self.queues.contains_key(queue)
    }

    /// Whether only one receiver at a time takes from a queue.
    pub(super) fn single_receiver(&self, queue: &str) -> bool {
        self.queues.get(queue).is_some_and(|rules| rules.single_receiver)
    }

    /// Where a message with these headers goes.
    pub(super) fn route(&self, destination: &Destination, headers: &[(String, String)]) -> Routed {
        let Some(queues) = self.queues_of(destination) else { return Routed::NoExchange };
        let mut placements = Vec::new();
        for queue in queues {
            let placement = Placement {
                queue: queue.to_owned(),
                destination: destination.clone(),
                headers: headers.to_vec(),
                delay: None,
            };
            self.place(placement, 0, &mut placements);
        }
        if placements.is_empty() { Routed::Nowhere } else { Routed::To(placements) }
    }

    /// Where a message goes that was rejected in a queue; nowhere if the queue has no place for dead letters.
    pub(super) fn rejected(
        &self,
        queue: &str,
        destination: &Destination,
        headers: &[(String, String)],
    ) -> Vec<Placement> {
        let placement = Placement {
            queue: queue.to_owned(),
            destination: destination.clone(),
            headers: headers.to_vec(),
            delay: None,
        };
        let mut placements = Vec::new();
        self.give_up(&placement, Death::Rejected, Duration::ZERO, 0, &mut placements);
        placements
    }

    /// Whether a queue has a place for dead letters.
    pub(super) fn has_dead_letters(&self, queue: &str) -> bool {
        self.queues.get(queue).is_some_and(|rules| rules.dead_letters.is_some())
    }

    fn place(&self, placement: Placement, delays: usize, placements: &mut Vec<Placement>) {
        let delay = self.queues.get(&placement.queue).and_then(Rules::delay);
        match delay {
            None => placements.push(placement),
            Some(delay) => self.give_up(&placement, Death::Expired, delay, delays + 1, placements),
        }
    }

    /// Publishes what a queue does not keep to its dead-letter exchange, later by `delay`.
    fn give_up(
        &self,
        placement: &Placement,
        death: Death,
        delay: Duration,
        delays: usize,
        placements: &mut Vec<Placement>,
    ) {
        let dead_letters = self.queues.get(&placement.queue).and_then(|rules| rules.dead_letters.as_ref());
        let Some(dead_letters) = dead_letters.filter(|_| delays <= MOST_DELAYS) else { return };
        let own_key = &placement.destination.routing_key;
        let destination = Destination {
            exchange: dead_letters.exchange.clone(),
            routing_key: dead_letters.routing_key.as_ref().unwrap_or(own_key).clone(),
        };
        let headers = with_death(&placement.headers, &placement.queue, death);
        let delay = placement.delay.unwrap_or_default().saturating_add(delay);
        for queue in self.queues_of(&destination).into_iter().flatten() {
            let next = Placement {
                queue: queue.to_owned(),
                destination: destination.clone(),
                headers: headers.clone(),
                delay: (!delay.is_zero()).then_some(delay),
            };
            self.place(next, delays, placements);
        }
    }

    /// The queues that a destination leads to, each once; `None` if its exchange does not exist.
    fn queues_of(&self, destination: &Destination) -> Option<BTreeSet<&str>> {
        let key = destination.routing_key.as_str();
        if destination.exchange.is_empty() {
            return Some(self.queues.get_key_value(key).map(|(name, _)| name.as_str()).into_iter().collect());
        }
        let bound = self.exchanges.get(&destination.exchange)?;
        let wants = |bound_key: &str| match bound.kind {
            ExchangeKind::Topic => fits(bound_key, key),
            ExchangeKind::Direct => bound_key == key,
            ExchangeKind::Fanout => true,
        };
        let wanting = bound.bindings.iter().filter(|(bound_key, _)| wants(bound_key));
        Some(wanting.map(|(_, queue)| queue.as_str()).collect())
    }
}

impl Rules {
    fn of(queue: &Queue) -> Self {
        let argument = |name: &str| {
            queue.arguments.iter().find(|(argument, _)| argument == name).map(|(_, value)| value)
        };
        let text = |name: &str| match argument(name) {
            Some(Argument::Text(text)) => Some(text.clone()),
            _ => None,
        };
        let time_to_live = match argument(TIME_TO_LIVE) {
            Some(Argument::Number(millis)) => u64::try_from(*millis).ok().map(Duration::from_millis),
            _ => None,
        };
        Self {
            time_to_live,
            dead_letters: text(DEAD_LETTER_EXCHANGE)
                .map(|exchange| DeadLetters { exchange, routing_key: text(DEAD_LETTER_KEY) }),
            single_receiver: argument(SINGLE_RECEIVER) == Some(&Argument::Switch(true)),
        }
    }

    /// How long the queue holds messages back before it passes them on; `None` if it keeps them. A time to live
    /// without a dead-letter exchange would only lose messages: they stay.
    fn delay(&self) -> Option<Duration> {
        self.time_to_live.filter(|_| self.dead_letters.is_some())
    }
}

/// One entry of [`DEATHS_HEADER`].
#[derive(Debug, Serialize, Deserialize)]
struct DeathEntry {
    queue: String,
    reason: String,
    count: u64,
}

fn with_death(headers: &[(String, String)], queue: &str, death: Death) -> Vec<(String, String)> {
    let reason = match death {
        Death::Rejected => "rejected",
        Death::Expired => "expired",
    };
    let deaths = headers.iter().find(|(name, _)| name == DEATHS_HEADER);
    // What a publisher has put there itself is replaced.
    let mut deaths: Vec<DeathEntry> =
        deaths.and_then(|(_, text)| serde_json::from_str(text).ok()).unwrap_or_default();
    let same = deaths.iter().position(|entry| entry.queue == queue && entry.reason == reason);
    let mut entry = same.map_or_else(
        || DeathEntry { queue: queue.to_owned(), reason: reason.to_owned(), count: 0 },
        |place| deaths.remove(place),
    );
    entry.count = entry.count.saturating_add(1);
    deaths.insert(0, entry);
    let is_replaced =
        |name: &str| [DEATHS_HEADER, LAST_DEATH_QUEUE_HEADER, LAST_DEATH_REASON_HEADER].contains(&name);
    let mut headers: Vec<(String, String)> =
        headers.iter().filter(|(name, _)| !is_replaced(name)).cloned().collect();
    if !headers.iter().any(|(name, _)| name == FIRST_DEATH_QUEUE_HEADER) {
        headers.push((FIRST_DEATH_QUEUE_HEADER.to_owned(), queue.to_owned()));
        headers.push((FIRST_DEATH_REASON_HEADER.to_owned(), reason.to_owned()));
    }
    headers.push((LAST_DEATH_QUEUE_HEADER.to_owned(), queue.to_owned()));
    headers.push((LAST_DEATH_REASON_HEADER.to_owned(), reason.to_owned()));
    // Texts and a number: they can always be written.
    headers.push((DEATHS_HEADER.to_owned(), serde_json::to_string(&deaths).unwrap_or_default()));
    headers
}

/// Whether a key fits a pattern: words between dots, `*` for one word, `#` for any number of them.
fn fits(pattern: &str, key: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        if text.is_empty() { Vec::new() } else { text.split('.').map(str::to_owned).collect() }
    };
    let (pattern, key) = (words(pattern), words(key));
    // `reached[n]`: the pattern so far fits the first n words. Its time is bounded, whatever the pattern.
    let mut reached = vec![false; key.len() + 1];
    reached[0] = true;
    for part in &pattern {
        let mut next = vec![false; key.len() + 1];
        for place in 0..=key.len() {
            next[place] = if part == "#" {
                reached[place] || (place > 0 && next[place - 1])
            } else {
                place > 0 && reached[place - 1] && (part == "*" || *part == key[place - 1])
            };
        }
        reached = next;
    }
    reached[key.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_core::ports::broker::{Binding, Exchange, Topology};

    fn to(exchange: &str, routing_key: &str) -> Destination {
        Destination { exchange: exchange.into(), routing_key: routing_key.into() }
    }

    fn routing(queues: &[(&str, &[(&str, Argument)])], bindings: &[(&str, &str, &str)]) -> Routing {
        let topology = Topology {
            exchanges: vec![Exchange { name: "e".into(), kind: ExchangeKind::Topic }],
            queues: queues
                .iter()
                .map(|(name, arguments)| Queue {
                    name: (*name).into(),
                    arguments: arguments
                        .iter()
                        .map(|(name, value)| ((*name).into(), value.clone()))
                        .collect(),
                })
                .collect(),
            bindings: bindings
                .iter()
                .map(|(exchange, routing_key, queue)| Binding {
                    queue: (*queue).into(),
                    exchange: (*exchange).into(),
                    routing_key: (*routing_key).into(),
                })
                .collect(),
        };
        Routing::new(&Layout { revision: 1, topology })
    }

    fn placed(routed: Routed) -> Vec<(String, Option<Duration>)> {
        match routed {
            Routed::To(placements) => {
                placements.into_iter().map(|placement| (placement.queue, placement.delay)).collect()
            }
            Routed::Nowhere | Routed::NoExchange => Vec::new(),
        }
    }

    #[test]
    fn patterns_fit_as_on_rabbitmq() {
        for (pattern, key, expected) in [
            ("order.paid", "order.paid", true),
            ("order.*", "order.paid", true),
            ("order.*", "order", false),
            ("order.*", "order.paid.twice", false),
            ("order.#", "order", true),
            ("order.#", "order.paid.twice", true),
            ("#", "", true),
            ("#", "anything.at.all", true),
            ("*", "", false),
            ("", "", true),
            ("", "a", false),
            ("#.paid", "paid", true),
            ("#.paid", "order.paid", true),
            ("#.paid", "order.paid.twice", false),
            ("*.#.paid", "paid", false),
            ("*.#.paid", "order.paid", true),
            ("#.a.#.b.#", "x.a.y.z.b", true),
            ("#.a.#.b.#", "x.b.y.z.a", false),
            ("order.*", "order.", true),
            ("Order.*", "order.paid", false),
        ] {
            assert_eq!(fits(pattern, key), expected, "{pattern} and {key}");
        }
        let many = vec!["#"; 120].join(".");
        assert!(!fits(&format!("{many}.x"), &vec!["a"; 120].join(".")), "and in bounded time");
    }

    #[test]
    fn a_queue_gets_one_copy_however_many_bindings_fit() {
        let routing = routing(&[("q", &[])], &[("e", "order.#", "q"), ("e", "#", "q")]);
        assert_eq!(placed(routing.route(&to("e", "order.paid"), &[])), [("q".to_owned(), None)]);
        assert_eq!(routing.route(&to("f", "order.paid"), &[]), Routed::NoExchange);
        assert_eq!(placed(routing.route(&to("", "q"), &[])), [("q".to_owned(), None)]);
        assert_eq!(routing.route(&to("", "r"), &[]), Routed::Nowhere);
    }

    #[test]
    fn delays_add_up_and_a_circle_of_them_leads_nowhere() {
        let delay = |millis, key: &str| {
            [
                (TIME_TO_LIVE, Argument::Number(millis)),
                (DEAD_LETTER_EXCHANGE, Argument::Text(String::new())),
                (DEAD_LETTER_KEY, Argument::Text(key.to_owned())),
            ]
        };
        let queues: [(&str, &[_]); 4] = [
            ("one", &delay(100, "two")),
            ("two", &delay(50, "end")),
            ("end", &[]),
            ("circle", &delay(5, "circle")),
        ];
        let routing = routing(&queues, &[]);
        let Routed::To(placements) = routing.route(&to("", "one"), &[]) else { panic!("it has a way") };
        assert_eq!(placements.len(), 1);
        assert_eq!(
            (placements[0].queue.as_str(), placements[0].delay),
            ("end", Some(Duration::from_millis(150)))
        );
        assert_eq!(placements[0].destination, to("", "end"));
        let header = |name: &str| placements[0].headers.iter().find(|(header, _)| header == name);
        assert_eq!(header(FIRST_DEATH_QUEUE_HEADER).unwrap().1, "one");
        assert_eq!(header(LAST_DEATH_QUEUE_HEADER).unwrap().1, "two");
        assert_eq!(
            header(DEATHS_HEADER).unwrap().1,
            r#"[{"queue":"two","reason":"expired","count":1},{"queue":"one","reason":"expired","count":1}]"#
        );
        assert_eq!(routing.route(&to("", "circle"), &[]), Routed::Nowhere);
    }

    #[test]
    fn a_rejected_message_keeps_its_key_unless_the_queue_has_another_and_counts_its_deaths() {
        let queues: [(&str, &[_]); 3] =
            [("q", &[(DEAD_LETTER_EXCHANGE, Argument::Text("e".to_owned()))]), ("dead", &[]), ("plain", &[])];
        let routing = routing(&queues, &[("e", "order.#", "dead")]);
        let once = routing.rejected("q", &to("e", "order.paid"), &[]);
        assert_eq!((once[0].queue.as_str(), &once[0].destination), ("dead", &to("e", "order.paid")));
        let twice = routing.rejected("q", &to("e", "order.paid"), &once[0].headers);
        assert!(
            twice[0].headers.contains(&(
                DEATHS_HEADER.to_owned(),
                r#"[{"queue":"q","reason":"rejected","count":2}]"#.to_owned()
            )),
            "{twice:?}"
        );
        assert!(routing.rejected("plain", &to("e", "order.paid"), &[]).is_empty());
    }

    #[test]
    fn a_time_to_live_without_dead_letters_loses_nothing() {
        let routing = routing(&[("q", &[(TIME_TO_LIVE, Argument::Number(1))])], &[]);
        assert_eq!(placed(routing.route(&to("", "q"), &[])), [("q".to_owned(), None)]);
    }
}
