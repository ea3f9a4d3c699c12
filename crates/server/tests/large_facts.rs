//! How much memory large commands take: what is on its way is bounded by bytes, not by rows.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(clippy::print_stdout, reason = "who runs it by hand sees how it went")]
#![cfg(target_os = "linux")]

mod parcels;

use parcels::Server;
use serde::{Deserialize, Serialize};
use towpath::retry::ErrorClass;
use towpath::{
    Aggregate, Channel, Command, Consumer, Context, Delivery, Event, HandlerError, Next, Refusal, Start,
};

/// A text that somebody wrote.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Paper {
    text: String,
}

#[derive(Debug, Serialize, Deserialize, Command)]
enum PaperCommand {
    #[serde(rename = "paper.write")]
    Write { text: String },
}

#[derive(Debug, Serialize, Deserialize, Event)]
enum PaperEvent {
    #[serde(rename = "paper.written")]
    Written { text: String },
}

#[derive(Debug, thiserror::Error)]
#[error("never")]
struct Never;

impl Refusal for Never {
    fn code(&self) -> &'static str {
        "never"
    }

    fn class(&self) -> ErrorClass {
        ErrorClass::Validation
    }
}

impl Aggregate for Paper {
    const KIND: &'static str = "paper";
    type Command = PaperCommand;
    type Event = PaperEvent;
    type Refusal = Never;

    fn decide(&self, command: PaperCommand, _: &Context) -> Result<Vec<PaperEvent>, Never> {
        let PaperCommand::Write { text } = command;
        Ok(vec![PaperEvent::Written { text }])
    }

    fn evolve(self, event: &PaperEvent) -> Self {
        let PaperEvent::Written { text } = event;
        Self { text: text.clone() }
    }
}

/// Becomes the server, in the process that a test started for it.
#[test]
#[ignore = "not a test: the process that others start"]
fn server_of_a_test() {
    let Ok(arguments) = std::env::var("SERVER_OF_A_TEST_ARGUMENTS") else { return };
    let arguments = arguments.split('\n').map(std::ffi::OsString::from);
    let _ = towpath_server::run(arguments, |builder| {
        let topology = "[topology]\nexchanges = [{ name = \"copies\", kind = \"fanout\" }]\n\
                        queues = [{ name = \"copies\" }]\nbindings = [{ queue = \"copies\", exchange = \"copies\" }]\n";
        builder
            .aggregate::<Paper>()
            .channels_from_toml(topology)
            .channel(Channel::named("papers", ["paper.*"]).map(Channel::published))
            .consumer(Consumer::of("papers").each("read", |delivery: Delivery| async move {
                Ok::<Next, HandlerError>(delivery.handled())
            }))
            .channel(
                Channel::named("log", ["paper.*"])
                    .map(|channel| channel.to_exchange("copies").tracking(Start::First)),
            )
    });
    std::process::exit(0);
}

#[test]
fn a_hundred_commands_of_three_mebibytes_take_less_than_256() {
    let server = Server::of_carrier();
    let before = server.peak();
    let text = "x".repeat(3 << 20);
    for number in 0..100 {
        server.send("paper.write", &format!("p-{number}"), &format!(r#"{{"text":"{text}"}}"#));
    }
    server.until("/api/outbox?status=SENT&limit=1000", |listed| {
        listed["rows"].as_array().unwrap().len() == 100
    });
    server.until("/api/channels", |listed| {
        let channels = listed["channels"].as_array().unwrap();
        channels.iter().any(|channel| channel["name"] == "log" && channel["position"] == 100)
    });
    let handled = r#"towpath_inbox_deliveries_total{consumer="read",result="handled"} 100"#;
    let begun = std::time::Instant::now();
    while !server.get("/metrics").body.contains(handled) {
        assert!(begun.elapsed() < parcels::PATIENCE, "not all are handled");
        std::thread::yield_now();
    }
    let after = server.peak();
    println!("from {before} MiB to {after} MiB");
    assert!(after < 256, "{after} MiB");
}
