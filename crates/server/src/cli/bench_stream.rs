//! `towpath bench stream`: many readers of the event stream against one, in the same run.
//!
//! The server is in this process and the readers are in another one, so that its memory is its own. Facts are written at a
//! steady rate. The clock of a fact starts before its command is sent and stops when a reader has it. With the many
//! there is one more that never reads. Beside each fact another one is written that is large and that only this one has
//! asked for, so that its connection is full long before a turn ends.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use towpath::{Aggregate, Context, Scratch, Towpath};
use towpath_bench::{Account, AccountCommand, median};

use super::config::ServeFlags;
use super::{Failure, output};
use crate::http::access::Access;
use crate::http::limits::{LimitSettings, Limits};
use crate::http::stream::client::StreamClient;
use crate::http::{App, Feed, FeedOptions, PATIENCE, Patient, connections, router};

/// How many bytes the large facts have. With the usual rate and time that makes more than 6 MB per turn.
const LARGE: usize = 32 << 10;

/// How many bytes a connection takes in that nobody reads.
const RECEIVE_BUFFER: u32 = 4 << 10;

/// What the large facts are of.
#[derive(Default, Serialize, Deserialize)]
struct Ballast {}

#[derive(Serialize, Deserialize, towpath::Command)]
enum BallastCommand {
    #[serde(rename = "ballast.load")]
    Load { text: String },
}

#[derive(Serialize, Deserialize, towpath::Event)]
enum BallastEvent {
    #[serde(rename = "ballast.loaded")]
    Loaded { text: String },
}

impl Aggregate for Ballast {
    const KIND: &'static str = "ballast";
    type Command = BallastCommand;
    type Event = BallastEvent;
    type Refusal = Infallible;

    fn decide(&self, command: BallastCommand, _: &Context) -> Result<Vec<BallastEvent>, Infallible> {
        let BallastCommand::Load { text } = command;
        Ok(vec![BallastEvent::Loaded { text }])
    }

    fn evolve(self, _: &BallastEvent) -> Self {
        self
    }
}

/// The flags of `towpath bench stream`.
#[derive(Args)]
pub(crate) struct StreamFlags {
    /// The database to measure on
    #[arg(long, env = "TOWPATH_STORE", value_name = "URL", default_value = "sqlite://data/towpath.db")]
    store: String,

    /// How many readers
    #[arg(long, default_value_t = 500)]
    readers: usize,

    /// How many facts are written per second
    #[arg(long, default_value_t = 20)]
    rate: u32,

    /// Seconds per turn
    #[arg(long, default_value_t = 10)]
    seconds: u32,

    /// How many turns one reader and many readers get
    #[arg(long, default_value_t = 3)]
    turns: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The flags of the process that reads.
#[derive(Args)]
pub(crate) struct ReaderFlags {
    address: String,
    readers: usize,
    facts: u64,
    never_reading: usize,
}

/// How long facts took, in milliseconds.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Took {
    p50: f64,
    p99: f64,
    max: f64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    database: String,
    readers: usize,
    rate: u32,
    seconds: u32,
    one_reader_millis: Took,
    many_readers_millis: Took,
    added_millis: Took,
    kibibytes_per_idle_reader: f64,
    kibibytes_per_reader_at_the_end: f64,
}

/// Measures and prints what came out.
pub(crate) async fn run(flags: StreamFlags) -> Result<(), Failure> {
    let scratch = Scratch::make(&flags.store).await?;
    let report = measure(&scratch, &flags).await;
    scratch.remove().await?;
    let report = report?;
    if flags.json {
        let json = serde_json::to_string_pretty(&report);
        output::line(&json.map_err(|error| Failure::unreachable(error.to_string()))?);
    } else {
        print(&report);
    }
    Ok(())
}

async fn measure(scratch: &Scratch, flags: &StreamFlags) -> Result<Report, Failure> {
    let builder = Towpath::builder().store(scratch.url()).aggregate::<Account>().aggregate::<Ballast>();
    let app = builder.start().await.map_err(|error| Failure::unreachable(error.report()))?;
    let feed = Feed::start(app.clone(), FeedOptions::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(broken)?;
    let address = listener.local_addr().map_err(broken)?.to_string();
    let limits = LimitSettings { requests_per_second: 0, ..ServeFlags::default().config(&[])?.limits };
    let state = App {
        towpath: app.clone(),
        access: Arc::new(Access::Local),
        limits: Arc::new(Limits::new(limits.clone())),
        feed: feed.clone(),
        measurements: crate::http::metrics::Measurements::of_nothing(),
        memory: Default::default(),
        readiness: Default::default(),
    };
    let listener = Patient { listener, patience: PATIENCE, tls: None };
    let server = tokio::spawn(async move {
        connections::serve(
            listener,
            router(state, Vec::new()),
            &limits,
            Duration::ZERO,
            std::future::pending(),
        )
        .await;
    });
    // Connections are made and statements are prepared before anything is measured.
    turn(&app, &feed, &address, flags, 1, 0).await?;
    let (mut one, mut many, mut idle, mut at_the_end) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..flags.turns.max(1) {
        one.push(turn(&app, &feed, &address, flags, 1, 0).await?.took);
        let turn = turn(&app, &feed, &address, flags, flags.readers, 1).await?;
        many.push(turn.took);
        idle.push(turn.idle_kibibytes / (flags.readers + 1) as f64);
        at_the_end.push(turn.kibibytes_at_the_end / (flags.readers + 1) as f64);
    }
    feed.stop();
    server.abort();
    app.stop().await;
    let each = |turns: &[Took], part: fn(&Took) -> f64| median(turns.iter().map(part).collect());
    let of = |turns: &[Took]| Took {
        p50: each(turns, |took| took.p50),
        p99: each(turns, |took| took.p99),
        max: each(turns, |took| took.max),
    };
    let (one, many) = (of(&one), of(&many));
    Ok(Report {
        database: app.store().promises().database.to_owned(),
        readers: flags.readers,
        rate: flags.rate,
        seconds: flags.seconds,
        one_reader_millis: one,
        many_readers_millis: many,
        added_millis: Took { p50: many.p50 - one.p50, p99: many.p99 - one.p99, max: many.max - one.max },
        // The first turn pays for what later ones find in place.
        kibibytes_per_idle_reader: idle.into_iter().fold(0.0, f64::max),
        kibibytes_per_reader_at_the_end: at_the_end.into_iter().fold(0.0, f64::max),
    })
}

struct Turn {
    took: Took,
    /// By how much the readers made this process grow, before the first fact and after the last.
    idle_kibibytes: f64,
    kibibytes_at_the_end: f64,
}

async fn turn(
    app: &Towpath,
    feed: &Feed,
    address: &str,
    flags: &StreamFlags,
    readers: usize,
    never_reading: usize,
) -> Result<Turn, Failure> {
    let facts = u64::from(flags.rate.max(1)) * u64::from(flags.seconds.max(1));
    let before = resident_kibibytes();
    let program = std::env::current_exe().map_err(broken)?;
    let mut child = Command::new(program)
        .args(["bench", "stream-readers", address])
        .args([readers.to_string(), facts.to_string(), never_reading.to_string()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(broken)?;
    let mut lines = answers(&mut child)?;
    expect(lines.next_line().await, "ready")?;
    let idle = resident_kibibytes();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / flags.rate.max(1));
    for number in 0..facts {
        ticks.tick().await;
        let load = BallastCommand::Load { text: "x".repeat(LARGE) };
        let sent = app.send::<Ballast>(format!("ballast-{}", number % 1000), load).await;
        sent.map_err(|error| Failure::unreachable(error.to_string()))?;
        let deposit = AccountCommand::Deposit { amount: now_in_micros() };
        let sent = app.send::<Account>(format!("account-{}", number % 1000), deposit).await;
        sent.map_err(|error| Failure::unreachable(error.to_string()))?;
    }
    let line = lines.next_line().await.map_err(broken)?.unwrap_or_default();
    let took = serde_json::from_str(&line)
        .map_err(|_| Failure::unreachable(format!("the readers ended with {line:?}")))?;
    let end = resident_kibibytes();
    child.wait().await.map_err(broken)?;
    while feed.readers() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(Turn { took, idle_kibibytes: idle - before, kibibytes_at_the_end: end - before })
}

/// The process that reads: says "ready" when all are connected, and how long facts took when all have all of them.
pub(crate) async fn read(flags: ReaderFlags) -> Result<(), Failure> {
    let mut never = Vec::new();
    for _ in 0..flags.never_reading {
        never.push(never_reading(&flags.address).await?);
    }
    let mut readers = Vec::new();
    for _ in 0..flags.readers {
        let mut reader = StreamClient::open(&flags.address, "/api/events/stream?type=account.*", "")
            .await
            .map_err(broken)?;
        if !reader.head.contains(" 200 ") {
            return Err(Failure::unreachable(format!("a reader was refused: {}", reader.head)));
        }
        reader.next().await.map_err(broken)?;
        readers.push(reader);
    }
    output::line("ready");
    let mut reading = JoinSet::new();
    for reader in readers {
        reading.spawn(read_all(reader, flags.facts));
    }
    let mut took = Vec::new();
    while let Some(read) = reading.join_next().await {
        took.extend(read.map_err(|error| Failure::unreachable(error.to_string()))??);
    }
    took.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = (took.len() as f64 * part).ceil() as usize;
        took.get(place.saturating_sub(1)).copied().unwrap_or_default()
    };
    let took = Took { p50: at(0.5), p99: at(0.99), max: at(1.0) };
    output::line(&serde_json::to_string(&took).map_err(|error| Failure::unreachable(error.to_string()))?);
    Ok(())
}

/// A stream of everything of which only the beginning of the answer is read.
async fn never_reading(address: &str) -> Result<TcpStream, Failure> {
    let socket = TcpSocket::new_v4().map_err(broken)?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER).map_err(broken)?;
    let at: SocketAddr = address.parse().map_err(|_| Failure::usage(format!("{address} is no address")))?;
    let mut connection = socket.connect(at).await.map_err(broken)?;
    let request = format!("GET /api/events/stream HTTP/1.1\r\nHost: {address}\r\n\r\n");
    connection.write_all(request.as_bytes()).await.map_err(broken)?;
    let mut head = [0; "HTTP/1.1 200".len()];
    connection.read_exact(&mut head).await.map_err(broken)?;
    match &head {
        b"HTTP/1.1 200" => Ok(connection),
        other => {
            let head = String::from_utf8_lossy(other);
            Err(Failure::unreachable(format!("the one that never reads was refused: {head}")))
        }
    }
}

async fn read_all(mut reader: StreamClient, facts: u64) -> Result<Vec<f64>, Failure> {
    let mut took = Vec::new();
    let mut last = None;
    while (took.len() as u64) < facts {
        let message = reader.next().await.map_err(broken)?;
        let message = message.ok_or_else(|| Failure::unreachable("a stream ended early"))?;
        let Some((_, amount)) = message.data.split_once("\"amount\":") else { continue };
        let digits: String = amount.chars().take_while(char::is_ascii_digit).collect();
        let sent: u64 = digits.parse().map_err(|_| Failure::unreachable("a fact without its time"))?;
        took.push(now_in_micros().saturating_sub(sent) as f64 / 1e3);
        // The large one is written before it and takes the position between the two.
        if last.is_some_and(|last: u64| message.id != Some(last + 2)) {
            return Err(Failure::unreachable(format!("{:?} came after {last:?}", message.id)));
        }
        last = message.id;
    }
    Ok(took)
}

fn answers(child: &mut Child) -> Result<tokio::io::Lines<BufReader<tokio::process::ChildStdout>>, Failure> {
    let stdout = child.stdout.take().ok_or_else(|| Failure::unreachable("the readers say nothing"))?;
    Ok(BufReader::new(stdout).lines())
}

fn expect(line: std::io::Result<Option<String>>, wanted: &str) -> Result<(), Failure> {
    match line.map_err(broken)? {
        Some(line) if line == wanted => Ok(()),
        other => Err(Failure::unreachable(format!("the readers said {other:?} and not {wanted}"))),
    }
}

fn now_in_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// How much memory this process has, as Linux counts it; 0 elsewhere.
fn resident_kibibytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

fn broken(error: std::io::Error) -> Failure {
    Failure::unreachable(error.to_string())
}

fn print(report: &Report) {
    let Report { database, readers, rate, seconds, .. } = report;
    output::line(&format!(
        "{database}: {rate} facts/s for {seconds} s, from the command to the reader, in milliseconds, median of the turns"
    ));
    output::line("                          p50      p99      max");
    let line = |name: &str, took: &Took| {
        output::line(&format!("  {name:<18} {:>8.2} {:>8.2} {:>8.2}", took.p50, took.p99, took.max));
    };
    line("one reader", &report.one_reader_millis);
    line(&format!("{readers} readers"), &report.many_readers_millis);
    line("added", &report.added_millis);
    output::line(&format!(
        "memory of the server per reader: {:.1} KiB when it is idle, {:.1} KiB at the end of a turn (one more never reads)",
        report.kibibytes_per_idle_reader, report.kibibytes_per_reader_at_the_end
    ));
}
