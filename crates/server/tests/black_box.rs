//! The binary from the outside: started as a user starts it, spoken to over HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

fn towpath() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    // What the tester's own shell says must not reach the binary.
    for variable in ["TOWPATH_LISTEN", "TOWPATH_STORE", "TOWPATH_BROKER", "TOWPATH_CONFIG"] {
        command.env_remove(variable);
    }
    command
}

/// A running server in a folder of its own.
struct Server {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts it on a free port and waits until it says where it listens.
    fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = towpath()
            .args(arguments)
            .args(["--listen", "127.0.0.1:0"])
            .current_dir(folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("listens on http://")?.1.trim_end_matches('/').to_owned()))
            .expect("the server says where it listens");
        Self { child, address, folder }
    }

    fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path, &[], "")
    }

    /// The status and the whole answer.
    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{headers}\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    /// Tells it to stop, as a service manager does, and waits until it has.
    fn stop(mut self) -> bool {
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
        self.child.wait().unwrap().success()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    towpath().args(arguments).current_dir(folder.path()).output().unwrap()
}

fn refused(arguments: &[&str], exit_code: i32, says: &str) {
    let output = run(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit_code), "{text}");
    assert!(text.contains(says), "{text}");
}

#[test]
fn without_arguments_it_serves_on_the_embedded_default() {
    let server = Server::start(&[]);
    let (status, body) = server.get("/healthz");
    assert_eq!(status, 200);
    assert!(body.contains(r#""name":"towpath""#), "{body}");
    assert_eq!(server.get("/readyz").0, 200);
    assert!(server.get("/").1.contains("every fact arrives"));
    assert_eq!(server.get("/nowhere").0, 404);
    assert!(server.folder.path().join("data/towpath.db").exists());
    assert!(server.stop(), "a server that is told to stop ends well");
}

#[test]
fn serve_is_the_same_by_name() {
    let server = Server::start(&["serve", "--store", "sqlite://other.db"]);
    assert_eq!(server.get("/healthz").0, 200);
    assert!(server.folder.path().join("other.db").exists());
}

#[test]
fn a_second_server_on_the_same_port_says_so() {
    let server = Server::start(&[]);
    refused(&["--listen", &server.address], 3, "cannot listen on");
}

#[test]
fn wrong_urls_are_refused_with_what_to_write_instead() {
    refused(&["--store", "oracle://host"], 2, "postgres://");
    refused(&["--broker", "pigeon:"], 2, "local:");
    if cfg!(feature = "kafka") {
        refused(&["--broker", "kafka://me:s3cret@localhost:9092"], 2, "belong together");
    } else {
        refused(&["--broker", "kafka://localhost:9092"], 2, "--features kafka");
    }
    refused(&["--listen", "everywhere"], 2, "127.0.0.1:7400");
}

#[test]
fn a_database_that_is_not_there_is_a_clear_error() {
    // Port 1 is not listened on.
    let arguments = ["--listen", "127.0.0.1:0", "--store", "postgres://u:s3cret@127.0.0.1:1/db"];
    refused(&arguments, 3, "store-unavailable");
    let output = run(&arguments);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("s3cret"), "a password was shown");
}

#[test]
fn without_access_control_it_serves_loopback_only() {
    refused(&["--listen", "0.0.0.0:0"], 2, "reachable from other machines");
}

#[test]
fn migrate_says_what_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let migrate = || towpath().arg("migrate").current_dir(folder.path()).output().unwrap().stdout;
    assert_eq!(migrate(), b"migrated to version 7\n");
    assert_eq!(migrate(), b"the database is up to date\n");
}

/// What a bookkeeper's application writes beside the server, into the same database.
mod bookkeeping {
    use std::convert::Infallible;

    use serde::{Deserialize, Serialize};
    use towpath::{Aggregate, Context};

    #[derive(Default, Serialize, Deserialize)]
    pub(super) struct Account {
        pub(super) entries: u64,
    }

    #[derive(Serialize, Deserialize, towpath::Command)]
    pub(super) enum AccountCommand {
        #[serde(rename = "account.post")]
        Post { amount: Box<serde_json::value::RawValue> },
    }

    #[derive(Serialize, Deserialize, towpath::Event)]
    pub(super) enum AccountEvent {
        #[serde(rename = "account.posted")]
        Posted { amount: Box<serde_json::value::RawValue> },
    }

    impl Aggregate for Account {
        const KIND: &'static str = "account";
        type Command = AccountCommand;
        type Event = AccountEvent;
        type Refusal = Infallible;

        fn decide(&self, command: AccountCommand, _: &Context) -> Result<Vec<AccountEvent>, Infallible> {
            let AccountCommand::Post { amount } = command;
            Ok(vec![AccountEvent::Posted { amount }])
        }

        fn evolve(self, _: &AccountEvent) -> Self {
            Account { entries: self.entries + 1 }
        }
    }
}

fn header<'a>(answer: &'a str, name: &str) -> &'a str {
    let found = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {name} in {answer}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_are_read_over_http_by_page_by_position_and_by_aggregate() {
    use bookkeeping::{Account, AccountCommand};
    let server = Server::start(&[]);
    let (status, empty) = server.get("/notifications");
    assert_eq!(status, 200);
    assert!(empty.contains(r#""id":"1,20""#) && empty.contains(r#""notifications":[]"#), "{empty}");

    let url = format!("sqlite://{}", server.folder.path().join("data/towpath.db").display());
    let app = towpath::Towpath::builder().store(&url).aggregate::<Account>().start().await.unwrap();
    for _ in 0..25 {
        let amount = serde_json::value::RawValue::from_string("88.50".into()).unwrap();
        app.send::<Account>("cash", AccountCommand::Post { amount }).await.unwrap();
    }
    let current = loop {
        let (_, answer) = server.get("/notifications");
        if answer.contains(r#""notificationId":25"#) {
            break answer;
        }
        tokio::task::yield_now().await;
    };
    assert!(current.contains(r#""id":"21,40""#) && current.contains(r#""previousId":"1,20""#), "{current}");
    assert_eq!(header(&current, "content-type"), "application/vnd.towpath.notifications+json");
    assert_eq!(header(&current, "cache-control"), "no-cache, no-transform");
    assert!(header(&current, "link").contains(r#"</notifications/1,20>; rel="previous""#));
    let newest_first = current.find(r#""notificationId":25"#) < current.find(r#""notificationId":21"#);
    assert!(newest_first, "{current}");

    let (status, archived) = server.get("/notifications/1,20");
    assert_eq!(status, 200);
    assert!(archived.contains(r#""archived":true"#) && archived.contains(r#""amount":88.50"#), "{archived}");
    assert_eq!(header(&archived, "cache-control"), "public, max-age=31536000, immutable, no-transform");
    let etag = header(&archived, "etag");
    let again = server.ask("GET", "/notifications/1,20", &[("If-None-Match", etag)], "");
    assert_eq!((again.0, again.1.contains("notificationId")), (304, false));
    let body = |answer: &str| answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    assert_eq!(body(&server.get("/notifications/1,20").1), body(&archived), "byte for byte");
    let head = server.ask("HEAD", "/notifications/1,20", &[], "");
    assert_eq!((head.0, body(&head.1).as_str()), (200, ""));
    for (path, status) in [
        ("/notifications/41,60", 404),
        ("/notifications/1,21", 404),
        ("/notifications/one", 400),
        ("/notifications/0,19", 400),
    ] {
        let (answered, problem) = server.get(path);
        assert_eq!(answered, status, "{path}");
        assert_eq!(header(&problem, "content-type"), "application/problem+json");
    }

    let (_, events) = server.get("/api/events?after=23&limit=10");
    assert!(events.contains(r#""position":24"#) && events.contains(r#""next":25"#), "{events}");
    assert!(!events.contains(r#""position":23"#) && events.contains(r#""amount":88.50"#), "{events}");
    assert_eq!(server.get("/api/events?after=x").0, 400);
    let (_, account) = server.get("/api/aggregates/account/cash");
    assert!(account.contains(r#""version":25"#) && account.contains(r#""entries":25"#), "{account}");
    assert_eq!(server.get("/api/aggregates/account/nobody").0, 404);
    let (_, of_it) = server.get("/api/aggregates/account/cash/events?after=24");
    assert!(of_it.contains(r#""aggregateVersion":25"#) && !of_it.contains(r#""aggregateVersion":24"#));
    app.stop().await;
}

#[test]
fn a_command_that_cannot_be_run_is_told_with_its_code() {
    let server = Server::start(&[]);
    let post = |body: &str| server.ask("POST", "/api/commands", &[], body);
    let (status, problem) = post(r#"{"type":"order.place","aggregateId":"1","payload":{}}"#);
    assert_eq!(status, 422);
    assert!(problem.contains(r#""code":"unknown-command""#), "{problem}");
    for body in ["", "{", "[]", r#"{"type":"a"}"#, r#"{"type":"a","aggregateId":"1","payload":{},"more":1}"#]
    {
        let (status, problem) = post(body);
        assert_eq!(status, 400, "{body}");
        assert!(problem.contains(r#""code":"malformed""#), "{problem}");
    }
    let twice = [("Idempotency-Key", "a")];
    let body = r#"{"type":"a","aggregateId":"1","payload":{},"commandId":"b"}"#;
    assert_eq!(server.ask("POST", "/api/commands", &twice, body).0, 400);
    assert_eq!(server.get("/api/commands/nobody").0, 404);
    assert_eq!(server.ask("DELETE", "/api/commands", &[], "").0, 405);
}
