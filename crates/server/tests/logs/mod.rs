//! What the tests of the notification log share: the binary, a client, and writers that do not make it easy.

#![allow(dead_code, unreachable_pub, reason = "not every test file uses all of it")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use towpath::ids::{AggregateKey, CorrelationId, EventId};
use towpath::name::EventName;
use towpath::ports::store::{Append, DeadlineChange, Expected, NewEvent, Routing, StoreError, StoreTx};
use towpath::{ChangeContext, Payload, RecordedEvent, Scratch, SqlStore, StoreOptions, StoreUrl};
use uuid::Uuid;

pub fn towpath() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    // What the tester's own shell says must not reach the binary.
    for variable in
        ["TOWPATH_LISTEN", "TOWPATH_STORE", "TOWPATH_BROKER", "TOWPATH_CONFIG", "TOWPATH_LOG_PAGE_SIZE"]
    {
        command.env_remove(variable);
    }
    // No alert becomes a fact among those that a test counts.
    command.env("TOWPATH_ALERTS_EVERY", "1d");
    command
}

/// A scratch database that is removed with the test.
pub struct Fresh(Option<Scratch>);

impl Fresh {
    pub async fn on(database: &str) -> Self {
        let variable = match database {
            "sqlite" => {
                let url = format!("sqlite://{}", std::env::temp_dir().join("towpath.db").display());
                return Self(Some(Scratch::make(&url).await.unwrap()));
            }
            "postgres" => "TOWPATH_TEST_POSTGRES_URL",
            _ => "TOWPATH_TEST_MYSQL_URL",
        };
        let url = std::env::var(variable)
            .unwrap_or_else(|_| panic!("{variable} is not set: run `cargo xtask test`"));
        Self(Some(Scratch::make(&url).await.unwrap()))
    }

    pub fn url(&self) -> &str {
        self.0.as_ref().unwrap().url()
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let Some(scratch) = self.0.take() else { return };
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _ = runtime.block_on(scratch.remove());
        });
        let _ = cleaner.join();
    }
}

/// A running `towpath serve`.
pub struct Server {
    child: Child,
    pub address: String,
}

/// What it answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl Server {
    pub fn start(store: &str, arguments: &[&str]) -> Self {
        let mut child = towpath()
            .args(["serve", "--listen", "127.0.0.1:0", "--store", store])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            said.push_str(&line);
            Some(line.split_once("listens on http://")?.1.trim_end_matches('/').to_owned())
        });
        // Somebody has to read what it says, or it would wait to say it.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, address: address.unwrap_or_else(|| panic!("the server says where it listens: {said}")) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn get(&self, path: &str) -> Answer {
        ask(&self.address, "GET", path, &[])
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        ask(&self.address, method, path, headers)
    }

    /// Tells it to stop, as a service manager does, and waits until it has.
    pub fn stop(mut self) -> bool {
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

pub fn ask(address: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// Waits until a question is answered with `Some`.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what} did not come about in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The whole log of a store, oldest first.
pub async fn log_of(store: &SqlStore) -> Vec<RecordedEvent> {
    let head = store.head().await.unwrap();
    let log = store.events_between(1, head).await.unwrap();
    let positions: Vec<_> = log.iter().map(|event| event.position.unwrap()).collect();
    assert_eq!(positions, (1..=head).collect::<Vec<_>>(), "positions have no gaps");
    log
}

/// Writers whose transactions commit late, in another order than they began, or not at all.
pub struct Writers {
    pub store: SqlStore,
    /// The facts whose commit was answered.
    pub committed: Arc<Mutex<BTreeSet<EventId>>>,
}

impl Writers {
    pub async fn on(url: &str) -> Self {
        // Each writer holds up to three transactions open.
        let options = StoreOptions { max_connections: 40, ..StoreOptions::default() };
        let store = SqlStore::connect_with(&StoreUrl::parse(url).unwrap(), options).await.unwrap();
        store.migrate().await.unwrap();
        Self { store, committed: Arc::default() }
    }

    /// Lets so many write at once until the time is over.
    pub async fn write_for(&self, writers: u64, duration: Duration) {
        let mut writing = tokio::task::JoinSet::new();
        let until = Instant::now() + duration;
        for writer in 0..writers {
            writing.spawn(write(self.store.clone(), self.committed.clone(), writer, until));
        }
        writing.join_all().await;
    }
}

/// A transaction that is open, with what it would make true.
struct Open {
    tx: Box<dyn StoreTx>,
    aggregate: usize,
    version: u64,
    events: Vec<EventId>,
}

async fn write(store: SqlStore, committed: Arc<Mutex<BTreeSet<EventId>>>, writer: u64, until: Instant) {
    let late = store.promises().concurrent_writers;
    let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(writer + 1));
    let mut versions = [0_u64; 12];
    let run = Uuid::now_v7().simple().to_string();
    let mut open: Vec<Open> = Vec::new();
    while Instant::now() < until || !open.is_empty() {
        let may_begin = Instant::now() < until && open.len() < if late { 3 } else { 1 };
        if may_begin && (open.is_empty() || random.below(2) == 0) {
            let aggregate = random.below(12) as usize;
            if open.iter().any(|open| open.aggregate == aggregate) {
                continue;
            }
            let count = 1 + random.below(4);
            let key = AggregateKey::new("order", format!("{writer}-{aggregate}-{run}")).unwrap();
            let append = append_of(key, versions[aggregate], count);
            let events = append.events.iter().map(|event| event.event_id).collect();
            let Ok(mut tx) = store.begin().await else { continue };
            match tx.append(&append).await {
                Ok(_) => open.push(Open { tx, aggregate, version: versions[aggregate] + count, events }),
                Err(StoreError::Contention(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        } else if !open.is_empty() {
            let ending = open.remove(random.below(open.len() as u64) as usize);
            if random.below(3) == 0 {
                ending.tx.rollback().await.unwrap();
            } else {
                ending.tx.commit().await.unwrap();
                versions[ending.aggregate] = ending.version;
                committed.lock().unwrap().extend(ending.events);
            }
        }
        if late {
            // Others commit meanwhile.
            tokio::time::sleep(Duration::from_millis(random.below(15))).await;
        }
    }
}

fn append_of(aggregate: AggregateKey, version: u64, count: u64) -> Append {
    let events = (0..count).map(|number| NewEvent {
        event_id: EventId(Uuid::now_v7()),
        event_type: EventName::from_stored("order.noted"),
        schema_version: 1,
        payload: Payload::from_text(format!("{{\"n\": {number}, \"amount\": 1.50}}")).unwrap(),
        channels: Routing::Nowhere,
    });
    Append {
        expected: if version == 0 { Expected::New } else { Expected::Exactly(version) },
        events: events.collect(),
        snapshot: None,
        state_changes: Vec::new(),
        deadline: DeadlineChange::default(),
        context: ChangeContext::new(chrono::Utc::now(), CorrelationId::of_new_flow(Uuid::now_v7())),
        aggregate,
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }
}
