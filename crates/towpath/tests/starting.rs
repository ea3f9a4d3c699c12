//! What a builder is told, and when it refuses to start.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use support::Fresh;
use towpath::format::{Format, FormatError, Written};
use towpath::ports::broker::{Broker, Exchange, ExchangeKind, Queue, Received, Subscription, Topology};
use towpath::{
    Channel, Coded as _, Consumer, DeadLetterQueue, EventEnvelope, IncomingEvent, Start, StartError,
};

const FACTS: &str = r#"
[[channel]]
name = "facts"
events = ["order.*"]
exchange = "facts"

[topology]
exchanges = [{ name = "facts", kind = "fanout" }]
queues = [{ name = "facts.all" }]
"#;

#[tokio::test]
async fn a_channel_name_that_is_given_twice_is_refused() {
    let fresh = Fresh::on("sqlite").await;
    let facts = || Channel::named("facts", ["order.*"]).map(|channel| channel.to_exchange("facts"));
    let in_code = fresh.builder().channel(facts()).channel(facts());
    let in_both = fresh.builder().channel(facts()).channels_from_toml(FACTS);
    for builder in [in_code, in_both] {
        let refused = builder.start().await.err().expect("two sets of shafts would publish each row twice");
        assert!(matches!(&refused, StartError::Wiring(message) if message.contains("facts")), "{refused}");
    }
}

#[tokio::test]
async fn a_format_that_nobody_has_registered_is_refused() {
    let fresh = Fresh::on("sqlite").await;
    let in_a_file = FACTS.replace("exchange = \"facts\"\n", "exchange = \"facts\"\nformat = \"xml\"\n");
    let consumer = Consumer::from_queue("q").in_format("xml");
    let consumer = consumer.each("stock", |delivery| async move { Ok(delivery.handled()) });
    for (builder, by) in [
        (fresh.builder().channels_from_toml(&in_a_file), "channel facts"),
        (fresh.builder().consumer(consumer), "consumer stock"),
        (fresh.builder().dead_letter_queue(DeadLetterQueue::from("dead").in_format("xml")), "queue dead"),
    ] {
        let refused = builder.start().await.err().expect("nobody could write or read it");
        assert_eq!(refused.code(), "format-not-registered");
        let report = refused.report();
        assert!(
            report.contains(by) && report.contains("\"xml\"") && report.contains("cloud-events"),
            "{report}"
        );
        assert!(refused.next_step().contains("builder.format"), "{}", refused.next_step());
    }
}

#[tokio::test]
async fn a_format_is_registered_once() {
    struct Second(&'static str);

    impl Format for Second {
        fn name(&self) -> &'static str {
            self.0
        }

        fn write(&self, _: &EventEnvelope, _: &Channel) -> Result<Written, FormatError> {
            Err(FormatError::MissingField { format: self.0, field: "any" })
        }

        fn recognises(&self, _: &Received) -> bool {
            false
        }

        fn read(&self, _: &Received) -> Result<IncomingEvent, FormatError> {
            Err(FormatError::MissingField { format: self.0, field: "any" })
        }
    }

    let fresh = Fresh::on("sqlite").await;
    for builder in [
        fresh.builder().format(Second("mine")).format(Second("mine")),
        fresh.builder().format(Second("towpath")),
    ] {
        let refused = builder.start().await.err().expect("a name could mean either");
        assert_eq!(refused.code(), "registration");
        assert!(refused.report().contains("format"), "{}", refused.report());
    }
    let mine = Channel::named("facts", ["*"]).map(|channel| channel.in_format("mine"));
    let app = fresh.builder().format(Second("mine")).channel(mine).start().await.unwrap();
    let other = Channel::named("late", ["*"]).unwrap().published().tracking(Start::Now).in_format("xml");
    assert_eq!(app.channels().add(other).await.unwrap_err().code(), "format-not-registered");
    app.stop().await;
}

#[tokio::test]
async fn topology_in_code_is_declared_beside_that_of_a_file() {
    let fresh = Fresh::on("sqlite").await;
    let in_code = Topology {
        exchanges: vec![Exchange { name: "mail".to_owned(), kind: ExchangeKind::Fanout }],
        queues: vec![Queue { name: "mail.all".to_owned(), arguments: Vec::new() }],
        bindings: Vec::new(),
    };
    let app = fresh.builder().channels_from_toml(FACTS).topology(in_code).start().await.unwrap();
    let broker = towpath::LocalBroker::over(
        std::sync::Arc::new(app.store().clone()),
        towpath::LocalOptions::default(),
    );
    for queue in ["facts.all", "mail.all"] {
        let subscription = Subscription { queue: queue.to_owned(), group: "test".to_owned(), prefetch: 1 };
        let subscribed = broker.subscribe(&subscription).await;
        assert!(subscribed.is_ok(), "{queue} was declared: {:?}", subscribed.err());
    }
    broker.close().await;
    app.stop().await;
}

/// An aggregate with a name that breaks its rule, a pair that does not fit and a machine with two flaws.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
struct Faulty;

#[derive(Debug, serde::Serialize, serde::Deserialize, towpath::Command)]
enum Ask {
    #[serde(rename = "faulty.open")]
    #[command(gives = "faulty.shut")]
    Open,
}

#[derive(Debug, serde::Serialize, serde::Deserialize, towpath::Event)]
enum Happened {
    #[serde(rename = "faulty.opened")]
    Opened,
    #[serde(rename = "It")]
    It,
}

impl towpath::Aggregate for Faulty {
    const KIND: &'static str = "faulty";
    type Command = Ask;
    type Event = Happened;
    type Refusal = std::convert::Infallible;

    fn decide(&self, _: Ask, _: &towpath::Context) -> Result<Vec<Happened>, Self::Refusal> {
        Ok(vec![Happened::Opened, Happened::It])
    }

    fn evolve(self, _: &Happened) -> Self {
        self
    }

    fn machine() -> Option<towpath::Machine> {
        Some(
            towpath::Machine::named("faulty").starts(Happened::OPENED, "open").state("open").state("nowhere"),
        )
    }
}

#[tokio::test]
async fn everything_that_is_wrong_with_aggregates_is_told_at_once_and_once() {
    let fresh = Fresh::on("sqlite").await;
    let refused = fresh.builder().aggregate::<Faulty>().aggregate::<support::Order>().start().await;
    let refused = refused.err().expect("nothing of this can be registered");
    let text = refused.to_string();
    for told in ["It", "faulty.shut", "nowhere", "open has no way out", "aggregate order is registered twice"]
    {
        assert!(text.contains(told), "{told} is missing: {text}");
    }
    assert_eq!(text.matches("cannot be reached").count(), 1, "causes are told once: {text}");
    assert_eq!(refused.report(), text, "and all of it is in the message itself");
}
