//! Commands over HTTP, sent to a server that has an aggregate of a test in it: who asked, in which trace, and once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(clippy::print_stdout, reason = "a test tells what it measured")]

mod driver;

use std::convert::Infallible;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use driver::{Server, ask, eventually, new_key};
use serde::{Deserialize, Serialize};
use towpath::{Aggregate, Context, Scratch};

/// Counts what was posted to it.
#[derive(Default, Serialize, Deserialize)]
struct Account {
    entries: u64,
}

#[derive(Serialize, Deserialize, towpath::Command)]
enum AccountCommand {
    #[serde(rename = "account.post")]
    Post { number: u64 },
}

#[derive(Serialize, Deserialize, towpath::Event)]
enum AccountEvent {
    #[serde(rename = "account.posted")]
    Posted { number: u64 },
}

impl Aggregate for Account {
    const KIND: &'static str = "account";
    type Command = AccountCommand;
    type Event = AccountEvent;
    type Refusal = Infallible;

    fn decide(&self, command: AccountCommand, _: &Context) -> Result<Vec<AccountEvent>, Infallible> {
        let AccountCommand::Post { number } = command;
        Ok(vec![AccountEvent::Posted { number }])
    }

    fn evolve(self, _: &AccountEvent) -> Self {
        Account { entries: self.entries + 1 }
    }
}

const ARGUMENTS: &str = "SERVER_OF_A_TEST_ARGUMENTS";

/// Not a test: the server process that the others start.
#[test]
#[ignore = "not a test: the process that others start"]
fn server_of_a_test() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments = arguments.split('\n').map(std::ffi::OsString::from);
    let _ = towpath_server::run(arguments, |builder| builder.aggregate::<Account>());
    std::process::exit(0);
}

fn start(folder: &Arc<tempfile::TempDir>, arguments: &[&str], config: &str) -> Server {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["server_of_a_test", "--exact", "--ignored", "--nocapture"]);
    let all: Vec<&str> = [&["towpath"], arguments].concat();
    command.env(ARGUMENTS, all.join("\n"));
    Server::spawn(command, Arc::clone(folder), config)
}

fn folder() -> Arc<tempfile::TempDir> {
    Arc::new(tempfile::tempdir().unwrap())
}

fn posting(number: u64, account: &str) -> String {
    format!(r#"{{"type":"account.post","aggregateId":"{account}","payload":{{"number":{number}}}}}"#)
}

#[test]
fn a_fact_tells_who_asked_and_in_which_trace() {
    let key = new_key("bob", "operator");
    let server = start(&folder(), &["--listen", "127.0.0.1:0"], &key.toml);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let by = [("X-Api-Key", key.key.as_str()), ("X-Request-Id", "request-9"), ("traceparent", &parent)];
    let body = posting(1, "cash");
    let posted = server.ask("POST", "/api/commands", &by, &body);
    assert_eq!(posted.status, 201, "{posted:?}");
    assert_eq!(posted.header("x-request-id"), "request-9");
    let continued = posted.header("traceparent");
    assert!(continued.starts_with(&format!("00-{trace}-")) && continued.ends_with("-01"), "{continued}");
    assert_ne!(continued, parent, "the span is ours");
    let page = eventually("the fact has its position", || {
        let page = server.get("/notifications", &by).json();
        page["notifications"].get(0).is_some().then_some(page)
    });
    let event = &page["notifications"][0]["event"];
    assert_eq!((&event["traceId"], &event["actorId"]), (&trace.into(), &"bob".into()), "{event}");

    // What is not given is made, and told in problems as well.
    let wrong =
        server.get("/api/events?after=x", &[by[0], ("X-Request-Id", "not plain"), ("traceparent", "00-x")]);
    assert_eq!(wrong.code(), "malformed");
    assert_eq!(wrong.header("x-request-id").len(), 36, "{wrong:?}");
    assert_eq!(wrong.header("traceparent").len(), 55, "{wrong:?}");
    assert_eq!(server.ask("DELETE", "/api/commands", &[by[0]], "").code(), "method-not-allowed");
}

#[test]
fn a_killed_server_loses_no_command_and_doubles_none_on_sqlite() {
    kill_under_load(&folder(), "sqlite://load.db");
}

#[test]
fn a_killed_server_loses_no_command_and_doubles_none_on_postgres() {
    let Ok(url) = std::env::var("TOWPATH_TEST_POSTGRES_URL") else {
        panic!("TOWPATH_TEST_POSTGRES_URL is not set")
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let scratch = runtime.block_on(Scratch::make(&url)).unwrap();
    kill_under_load(&folder(), scratch.url());
    runtime.block_on(scratch.remove()).unwrap();
}

/// Clients send commands, each with a key of its own, and repeat them until they are answered, while the server is killed
/// again and again.
fn kill_under_load(folder: &Arc<tempfile::TempDir>, store: &str) {
    const CLIENTS: u64 = 6;
    const KILLS: u32 = 6;
    let key = new_key("bob", "operator");
    let arguments = ["--listen", "127.0.0.1:0", "--store", store];
    let server = start(folder, &arguments, &key.toml);
    let address = Arc::new(Mutex::new(server.address.clone()));
    let (stop, next, repeated) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (address, stop, next, repeated, key) = (
                Arc::clone(&address),
                Arc::clone(&stop),
                Arc::clone(&next),
                Arc::clone(&repeated),
                key.key.clone(),
            );
            std::thread::spawn(move || {
                let mut done = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    // Some accounts are hot, so that commands also collide.
                    let (body, id) = (posting(number, &format!("a-{}", number % 7)), format!("key-{number}"));
                    let headers = [("X-Api-Key", key.as_str()), ("Idempotency-Key", id.as_str())];
                    let deadline = Instant::now() + driver::PATIENCE;
                    loop {
                        let at = address.lock().unwrap().clone();
                        match ask(&at, "POST", "/api/commands", &headers, &body) {
                            Ok(answer) if [200, 201].contains(&answer.status) => {
                                repeated.fetch_add(u64::from(answer.status == 200), Ordering::SeqCst);
                                done.push((
                                    number,
                                    answer.json()["events"][0]["eventId"].as_str().unwrap().to_owned(),
                                ));
                                break;
                            }
                            // Answers that say "again": still processing, or a store that gave way.
                            Ok(answer) if [409, 503].contains(&answer.status) => {}
                            Ok(answer) => panic!("{answer:?}"),
                            Err(_) => std::thread::sleep(Duration::from_millis(20)),
                        }
                        assert!(Instant::now() < deadline, "command {number} is never answered");
                    }
                }
                done
            })
        })
        .collect();
    let mut server = server;
    for kill in 0..KILLS {
        let reached = next.load(Ordering::SeqCst) + 25;
        eventually("commands go on", || (next.load(Ordering::SeqCst) >= reached).then_some(()));
        server.kill();
        server = start(folder, &arguments, &key.toml);
        *address.lock().unwrap() = server.address.clone();
        assert!(kill < KILLS);
    }
    let reached = next.load(Ordering::SeqCst) + 25;
    eventually("commands go on", || (next.load(Ordering::SeqCst) >= reached).then_some(()));
    stop.store(true, Ordering::SeqCst);
    let mut answered: Vec<(u64, String)> =
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    answered.sort();
    // Every one that was ever sent was answered in the end.
    let sent = next.load(Ordering::SeqCst);
    assert_eq!(answered.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (0..sent).collect::<Vec<_>>());
    // Whether a kill came between a command's end and its answer is chance. What a killed server has recorded is
    // answered by the next one in any case.
    for (number, event_id) in answered.iter().step_by(10) {
        let (body, id) = (posting(*number, &format!("a-{}", number % 7)), format!("key-{number}"));
        let headers = [("X-Api-Key", key.key.as_str()), ("Idempotency-Key", id.as_str())];
        let again = server.ask("POST", "/api/commands", &headers, &body);
        assert_eq!((again.status, again.json()["events"][0]["eventId"].as_str()), (200, Some(&**event_id)));
    }
    let by = [("X-Api-Key", key.key.as_str())];
    let log = eventually("all facts have their positions", || {
        let mut facts: Vec<(u64, String)> = Vec::new();
        let mut after = 0;
        loop {
            let page = server.get(&format!("/api/events?after={after}&limit=500"), &by).json();
            let events = page["events"].as_array().unwrap().clone();
            if events.is_empty() {
                break;
            }
            after = events.last().unwrap()["position"].as_u64().unwrap();
            facts.extend(events.iter().map(|event| {
                (event["payload"]["number"].as_u64().unwrap(), event["eventId"].as_str().unwrap().to_owned())
            }));
        }
        facts.sort();
        (facts.len() as u64 >= sent).then_some(facts)
    });
    assert_eq!(log, answered, "each command has one fact, and its answer named it");
    println!("{sent} commands, {KILLS} kills, {} answered from the record", repeated.load(Ordering::SeqCst));
}
