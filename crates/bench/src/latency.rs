//! `towpath bench latency`: from the commit to the handler, against the same way by hand.
//!
//! Events are written at a steady rate, however long each takes, in the same PostgreSQL, and go through quorum queues of
//! the same RabbitMQ. The clock of an event starts when its commit is answered and stops when its handler is called, in
//! an open transaction in which the event is marked. The contenders take turns.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::task::JoinSet;
use towpath::{Channel, Consumer, ConsumerPolicy, Scratch, SqlStore, StoreOptions, StoreUrl, Towpath};
use uuid::Uuid;

use crate::Failure;
use crate::backlog::{Circumstances, bench_lease};
use crate::by_hand_path::{ByHandPath, Writer, prepare};
use crate::write::{Account, AccountCommand};
use crate::{answer, median, queue};

/// The flags of `towpath bench latency`.
#[derive(Args)]
pub struct LatencyFlags {
    /// The PostgreSQL to measure on; other stores with `--alone`
    #[arg(long, env = "TOWPATH_STORE", value_name = "URL")]
    store: String,

    /// The RabbitMQ in between
    #[arg(long, env = "TOWPATH_BROKER", value_name = "URL")]
    broker: String,

    /// How many events are written per second
    #[arg(long, default_value_t = 200)]
    rate: u32,

    /// Seconds per turn of each contender
    #[arg(long, default_value_t = 20)]
    seconds: u32,

    /// How many turns each contender gets
    #[arg(long, default_value_t = 3)]
    turns: usize,

    #[command(flatten)]
    circumstances: Circumstances,

    /// Leave the hand-written way out
    #[arg(long)]
    alone: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How many handlers run at once, and how many messages are fetched ahead, for both contenders.
pub(crate) const HANDLERS: usize = 8;
pub(crate) const PREFETCH: u16 = 64;

const CHANNEL: &str = "latency";

/// A connection for each handler, and some for writers and relay.
const CONNECTIONS: u32 = 20;

/// Over how many aggregates the events spread.
const AGGREGATES: u64 = 1_000;

/// What is not measured at the begin of a turn: connections are made and statements are prepared.
const WARM_UP: Duration = Duration::from_secs(1);

/// How long the last events of a turn may take.
const LAST: Duration = Duration::from_secs(30);

/// When events were committed and handled.
#[derive(Default)]
pub(crate) struct Times {
    committed: Mutex<HashMap<Uuid, Instant>>,
    handled: Mutex<HashMap<Uuid, Instant>>,
}

impl Times {
    /// The commit of an event was answered.
    fn committed(&self, id: Uuid, at: Instant) {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner).insert(id, at);
    }

    /// The handler of an event was called. The first time counts.
    pub(crate) fn handled(&self, id: Uuid, at: Instant) {
        self.handled.lock().unwrap_or_else(PoisonError::into_inner).entry(id).or_insert(at);
    }

    fn handled_so_far(&self) -> usize {
        self.handled.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// How long each event took that was committed after a moment, in milliseconds.
    fn between(&self, from: Instant) -> Vec<f64> {
        let committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        let handled = self.handled.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = committed.iter().filter(|(_, at)| **at >= from);
        let mut took: Vec<f64> = counted
            // A handler may be called before the writer has looked at its clock.
            .filter_map(|(id, at)| Some(handled.get(id)?.saturating_duration_since(*at).as_secs_f64() * 1e3))
            .collect();
        took.sort_by(f64::total_cmp);
        took
    }
}

/// How long it took, in milliseconds: of each turn, and then the median of the turns.
#[derive(Clone, Copy, Default, Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Percentiles {
    fn of(sorted: &[f64]) -> Self {
        let at = |part: f64| {
            let place = (sorted.len() as f64 * part).ceil() as usize;
            sorted.get(place.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }

    /// Combines others, percentile by percentile.
    fn each(turns: &[Self], combine: impl Fn(Vec<f64>) -> f64) -> Self {
        let of = |part: fn(&Self) -> f64| combine(turns.iter().map(part).collect());
        Self {
            p50: of(|turn| turn.p50),
            p90: of(|turn| turn.p90),
            p99: of(|turn| turn.p99),
            max: of(|turn| turn.max),
        }
    }
}

/// What came out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    rate: u32,
    seconds: u32,
    #[serde(flatten)]
    circumstances: Circumstances,
    by_hand_millis: Option<Percentiles>,
    towpath_millis: Percentiles,
    ratio: Option<Percentiles>,
}

/// Measures and prints what came out.
pub(crate) async fn run(flags: LatencyFlags) -> Result<String, Failure> {
    let scratch = Scratch::make(&flags.store).await?;
    let report = measure(&scratch, &flags).await;
    scratch.remove().await?;
    let report = report?;
    answer(flags.json, &report, text)
}

async fn measure(scratch: &Scratch, flags: &LatencyFlags) -> Result<Report, Failure> {
    let url = StoreUrl::parse(scratch.url())?;
    let store = SqlStore::connect_with(&url, options()).await?;
    store.migrate().await?;
    let pool = match (store.postgres_pool(), flags.alone) {
        (_, true) => None,
        (Some(pool), false) => Some(pool),
        (None, false) => {
            return Err(Failure::usage(
                "the hand-written way knows PostgreSQL only: give a postgres:// URL, or --alone",
            ));
        }
    };
    if let Some(pool) = pool {
        prepare(pool).await?;
    }
    let lease = bench_lease(&store).await?;
    let idle = flags.circumstances.make(&store, &lease, CHANNEL).await?;
    let turns = flags.turns.max(1);
    let progress = ProgressBar::new((turns * (1 + usize::from(pool.is_some()))) as u64);
    if let Ok(style) = ProgressStyle::with_template("latency {bar:30} {pos}/{len} {msg}") {
        progress.set_style(style);
    }
    let (mut by_hand, mut towpath) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        if let Some(pool) = pool {
            progress.set_message("hand-written");
            by_hand.push(by_hand_turn(pool, flags).await?);
            progress.inc(1);
        }
        progress.set_message("towpath");
        towpath.push(towpath_turn(scratch, flags).await?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    let towpath = Percentiles::each(&towpath, median);
    let by_hand = pool.map(|_| Percentiles::each(&by_hand, median));
    drop(idle);
    store.close().await;
    Ok(Report {
        rate: flags.rate,
        seconds: flags.seconds,
        circumstances: flags.circumstances,
        by_hand_millis: by_hand,
        towpath_millis: towpath,
        ratio: by_hand.map(|by_hand| {
            let quotient = |pair: Vec<f64>| pair.iter().copied().reduce(|ours, theirs| ours / theirs);
            Percentiles::each(&[towpath, by_hand], |pair| quotient(pair).unwrap_or_default())
        }),
    })
}

fn options() -> StoreOptions {
    StoreOptions { max_connections: CONNECTIONS, ..StoreOptions::default() }
}

async fn by_hand_turn(pool: &towpath::sqlx::PgPool, flags: &LatencyFlags) -> Result<Percentiles, Failure> {
    let times = Arc::new(Times::default());
    let mut path = ByHandPath::start(pool, &flags.broker, &times).await?;
    let writer = path.writer();
    let percentiles = tokio::select! {
        turn = turn(flags, &times, |aggregate| write_by_hand(writer.clone(), aggregate)) => turn?,
        failure = path.failed() => return Err(failure),
    };
    path.stop().await;
    Ok(percentiles)
}

async fn write_by_hand(writer: Writer, aggregate: String) -> Result<Uuid, Failure> {
    writer.write(&aggregate).await
}

async fn towpath_turn(scratch: &Scratch, flags: &LatencyFlags) -> Result<Percentiles, Failure> {
    let times = Arc::new(Times::default());
    let queue = queue::fresh_name();
    let policy = ConsumerPolicy { concurrency: HANDLERS, prefetch: PREFETCH, ..ConsumerPolicy::default() };
    let seen = times.clone();
    let consumer = Consumer::from_queue(&queue).with(policy).each("bench", move |delivery| {
        seen.handled(delivery.event.event_id.0, Instant::now());
        async move { Ok(delivery.handled()) }
    });
    let app = Towpath::builder()
        .store(scratch.url())
        .store_options(options())
        .broker(&flags.broker)
        .aggregate::<Account>()
        .channel(Channel::named(CHANNEL, ["account.*"]).map(|channel| channel.to("", &queue)))
        .topology(queue::declared(&queue))
        .consumer(consumer)
        .start()
        .await
        .map_err(|error| Failure::unreachable(error.report()))?;
    let percentiles = turn(flags, &times, |aggregate| send(app.clone(), aggregate)).await;
    app.stop().await;
    percentiles
}

async fn send(app: Towpath, aggregate: String) -> Result<Uuid, Failure> {
    let sent = app.send::<Account>(aggregate, AccountCommand::Deposit { amount: 1 }).await;
    let receipt = sent.map_err(|error| Failure::unreachable(error.to_string()))?;
    let event = receipt.events.first().map(|event| event.event_id.0);
    event.ok_or_else(|| Failure::unreachable("a deposit made no event"))
}

/// Writes at the rate and answers how long events took until they were handled. Writers do not wait for each other: one
/// that is slow makes no later event late.
async fn turn<F>(
    flags: &LatencyFlags,
    times: &Arc<Times>,
    write: impl Fn(String) -> F,
) -> Result<Percentiles, Failure>
where
    F: Future<Output = Result<Uuid, Failure>> + Send + 'static,
{
    let rate = flags.rate.max(1);
    let events = u64::from(rate) * u64::from(flags.seconds.max(1)) + u64::from(rate);
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
    let began = Instant::now();
    let mut writers = JoinSet::new();
    for number in 0..events {
        ticks.tick().await;
        let (writing, times) = (write(format!("account-{}", number % AGGREGATES)), times.clone());
        writers.spawn(async move {
            let id = writing.await?;
            times.committed(id, Instant::now());
            Ok::<(), Failure>(())
        });
    }
    while let Some(written) = writers.join_next().await {
        written.map_err(|error| Failure::unreachable(error.to_string()))??;
    }
    let ended = Instant::now();
    while (times.handled_so_far() as u64) < events {
        if ended.elapsed() > LAST {
            return Err(Failure::unreachable(format!("{} of {events} events came", times.handled_so_far())));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(Percentiles::of(&times.between(began + WARM_UP)))
}

fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    let Report { rate, seconds, circumstances, .. } = report;
    lines.push(format!(
        "{rate} events/s for {seconds} s{circumstances}, from the commit to the handler, in milliseconds, median of the turns"
    ));
    lines.push("                          p50      p90      p99      max".to_owned());
    let mut line = |name: &str, Percentiles { p50, p90, p99, max }: &Percentiles| {
        lines.push(format!("  {name:<18} {p50:>8.2} {p90:>8.2} {p99:>8.2} {max:>8.2}"));
    };
    if let Some(by_hand) = &report.by_hand_millis {
        line("hand-written", by_hand);
    }
    line("Towpath", &report.towpath_millis);
    if let Some(ratio) = &report.ratio {
        line("ratio", ratio);
    }
    lines.join("\n")
}
