//! A server of a small carrier as a process of its own, and a client that speaks HTTP to it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(dead_code, unreachable_pub, reason = "not every test file uses all of it")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath::retry::{ErrorClass, RetryPolicy};
use towpath::{
    Aggregate, Builder, Channel, ChannelPolicy, Consumer, Context, Deadline, Delivery, HandlerError, Machine,
    Next, Refusal,
};

/// After which something that is waited for counts as stuck.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A parcel.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Parcel {
    weight: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize, Deserialize, towpath::Command)]
pub enum ParcelCommand {
    #[serde(rename = "parcel.register")]
    Register {
        weight: u32,
        /// As long as one likes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    #[serde(rename = "parcel.send")]
    Send,
    #[serde(rename = "parcel.lose")]
    Lose,
}

#[derive(Serialize, Deserialize, towpath::Event)]
pub enum ParcelEvent {
    #[serde(rename = "parcel.registered")]
    Registered {
        weight: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    #[serde(rename = "parcel.sent")]
    Sent,
    #[serde(rename = "parcel.lost")]
    Lost,
}

#[derive(Debug, thiserror::Error)]
pub enum ParcelRefusal {
    #[error("the parcel is registered already")]
    AlreadyRegistered,
    #[error("there is no such parcel")]
    Unknown,
}

impl Refusal for ParcelRefusal {
    fn code(&self) -> &'static str {
        match self {
            Self::AlreadyRegistered => "already-registered",
            Self::Unknown => "unknown-parcel",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Self::AlreadyRegistered => ErrorClass::Validation,
            Self::Unknown => ErrorClass::NotFound,
        }
    }
}

impl Aggregate for Parcel {
    const KIND: &'static str = "parcel";
    type Command = ParcelCommand;
    type Event = ParcelEvent;
    type Refusal = ParcelRefusal;

    fn decide(&self, command: ParcelCommand, _: &Context) -> Result<Vec<ParcelEvent>, ParcelRefusal> {
        match (command, self.weight) {
            (ParcelCommand::Register { .. }, Some(_)) => Err(ParcelRefusal::AlreadyRegistered),
            (ParcelCommand::Register { weight, note }, None) => {
                Ok(vec![ParcelEvent::Registered { weight, note }])
            }
            (_, None) => Err(ParcelRefusal::Unknown),
            (ParcelCommand::Send, Some(_)) => Ok(vec![ParcelEvent::Sent]),
            (ParcelCommand::Lose, Some(_)) => Ok(vec![ParcelEvent::Lost]),
        }
    }

    fn evolve(self, event: &ParcelEvent) -> Self {
        match event {
            ParcelEvent::Registered { weight, note } => Parcel { weight: Some(*weight), note: note.clone() },
            ParcelEvent::Sent | ParcelEvent::Lost => self,
        }
    }

    fn machine() -> Option<Machine> {
        let day = Duration::from_secs(86_400);
        Some(
            Machine::named("parcel")
                .starts(ParcelEvent::REGISTERED, "registered")
                .waits(
                    "registered",
                    Deadline::after(day, ParcelEvent::LOST).by_command(ParcelCommand::LOSE),
                    "the van",
                )
                .terminal("sent")
                .terminal("lost")
                .transition("registered", ParcelEvent::SENT, "sent")
                .transition("registered", ParcelEvent::LOST, "lost"),
        )
    }
}

/// What the carrier's server has beside all else: one channel that works, with a consumer that takes no heavy parcels,
/// and one whose exchange nobody has declared.
fn carrier(builder: Builder) -> Builder {
    let weigh = |delivery: Delivery| async move {
        match delivery.read::<Parcel>()? {
            ParcelEvent::Registered { weight, .. } if weight > 100 => {
                Ok(delivery.dead("too-heavy", "two people lift it"))
            }
            _ => Ok::<Next, HandlerError>(delivery.handled()),
        }
    };
    let never_again = ChannelPolicy { retries: RetryPolicy::Fixed(Vec::new()), ..ChannelPolicy::default() };
    let lost = Channel::named("nowhere", ["parcel.lost"])
        .map(|channel| channel.to_exchange("nowhere").with(never_again));
    builder
        .aggregate::<Parcel>()
        .channel(Channel::named("parcels", ["parcel.*"]))
        .channel(lost)
        .consumer(Consumer::of("parcels").each("weigh", weigh))
}

const ARGUMENTS: &str = "SERVER_OF_A_TEST_ARGUMENTS";

/// Becomes the server, in the process that a test started for it. Elsewhere it does nothing.
pub fn become_server() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let arguments = arguments.split('\n').map(std::ffi::OsString::from);
    let _ = towpath_server::run(arguments, carrier);
    std::process::exit(0);
}

/// The binary, without what the tester's own shell says.
pub fn towpath() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    for (variable, _) in std::env::vars().filter(|(name, _)| name.starts_with("TOWPATH_")) {
        command.env_remove(variable);
    }
    command
}

/// A running server in a folder of its own.
pub struct Server {
    child: Child,
    pub address: String,
    folder: tempfile::TempDir,
}

impl Server {
    /// The carrier's.
    pub fn of_carrier() -> Self {
        Self::of_carrier_with(&[])
    }

    /// The carrier's, with more arguments.
    pub fn of_carrier_with(arguments: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["server_of_a_test", "--exact", "--ignored", "--nocapture"]);
        let all = [&["towpath", "--listen", "127.0.0.1:0"], arguments].concat();
        command.env(ARGUMENTS, all.join("\n"));
        Self::spawn(command)
    }

    /// Waits until it says where it listens.
    pub fn spawn(mut command: Command) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // No alert becomes a fact among those that a test counts.
        command.env("TOWPATH_ALERTS_EVERY", "1d");
        let mut child =
            command.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut said = String::new();
        let address = lines.find_map(|line| {
            said.push_str(&format!("{line}\n"));
            Some(line.split_once("listens on http://")?.1.trim_end_matches('/').to_owned())
        });
        let address = address.unwrap_or_else(|| panic!("it does not listen: {said}"));
        // Somebody must read on: a full pipe would stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, folder }
    }

    /// How much memory it has had at most, in MiB.
    pub fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &str) -> Answer {
        self.ask("POST", path, &[], body)
    }

    /// Sends a command that is fine.
    pub fn send(&self, command_type: &str, parcel: &str, payload: &str) -> Value {
        let body = format!(r#"{{"type":"{command_type}","aggregateId":"{parcel}","payload":{payload}}}"#);
        let answer = self.post("/api/commands", &body);
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let mut headers: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        if !body.is_empty() && !headers.contains("Content-Type") {
            headers.push_str("Content-Type: application/json\r\n");
        }
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        Answer::read(&String::from_utf8(answer).unwrap())
    }

    /// Asks until the answer is as it should be.
    pub fn until(&self, path: &str, right: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let answer = self.get(path).json();
            if right(&answer) {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{path} stays {answer}");
            std::thread::yield_now();
        }
    }

    /// Runs a statement on its database, behind its back.
    pub fn execute(&self, sql: &'static str) {
        let url = format!("sqlite://{}", self.folder.path().join("data/towpath.db").display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = towpath::SqlStore::connect(&url).await.unwrap();
            let pool = store.sqlite_pool().unwrap();
            towpath::sqlx::query(sql).execute(pool).await.unwrap();
            store.close().await;
        });
    }

    /// Runs the command line against it.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(arguments, "")
    }

    /// Runs the command line against it, and types something.
    pub fn run_with(&self, arguments: &[&str], typed: &str) -> Output {
        let mut child = towpath()
            .args(arguments)
            .env("TOWPATH_SERVER", format!("http://{}", self.address))
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It may have ended without reading.
        let _ = child.stdin.take().unwrap().write_all(typed.as_bytes());
        child.wait_with_output().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Answer {
    fn read(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        Self { status, headers, body: body.to_owned() }
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The code of a problem, whose page exists.
    pub fn code(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{self:?}");
        let code = problem["code"].as_str().unwrap().to_owned();
        assert_eq!(problem["type"], format!("/docs/errors/{code}"));
        code
    }
}
