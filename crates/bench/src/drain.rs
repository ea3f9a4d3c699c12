//! `towpath bench drain`: the relay against a hand-written one, on a backlog.
//!
//! Both publish the same number of persistent messages to queues of the same kind on the same RabbitMQ, with confirms,
//! from the same PostgreSQL. They take turns, a backlog each.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;
use towpath::ids::{ChannelName, Lane};
use towpath::ports::broker::{Argument, Queue, Topology};
use towpath::ports::store::{ClaimRoom, OutboxClaim};
use towpath::sqlx::Executor;
use towpath::{Channel, ChannelPolicy, Scratch, SqlStore, Towpath};

use crate::Failure;
use crate::backlog::{Circumstances, bench_lease, fill, give_positions};
use crate::by_hand_relay::ByHandRelay;
use crate::{answer, median, on_postgres};

/// The flags of `towpath bench drain`.
#[derive(Args)]
pub struct DrainFlags {
    /// The PostgreSQL to measure on
    #[arg(long, env = "TOWPATH_STORE", value_name = "URL")]
    store: String,

    /// The RabbitMQ to publish to
    #[arg(long, env = "TOWPATH_BROKER", value_name = "URL")]
    broker: String,

    /// How many events wait
    #[arg(long, default_value_t = 100_000)]
    events: u64,

    /// Over how many aggregates they spread
    #[arg(long, default_value_t = 1_000)]
    aggregates: u64,

    /// What kind of queue they go to
    #[arg(long, value_enum, default_value_t = QueueKind::Quorum)]
    queue: QueueKind,

    /// How many rows each relay takes at a time
    #[arg(long, default_value_t = 1_000)]
    batch: u32,

    /// How many turns each contender gets
    #[arg(long, default_value_t = 3)]
    turns: usize,

    /// How many events follow each other per aggregate: 1 is one command at a time, more is a bulk import
    #[arg(long, default_value_t = 1)]
    run: u64,

    #[command(flatten)]
    circumstances: Circumstances,

    /// Leave the hand-written relay out
    #[arg(long)]
    alone: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The two kinds of queues that keep messages.
#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum QueueKind {
    /// One copy, on disk
    Classic,
    /// Replicated, confirmed when a majority has it on disk
    Quorum,
}

/// What came out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    events: u64,
    aggregates: u64,
    queue: QueueKind,
    batch: u32,
    #[serde(flatten)]
    circumstances: Circumstances,
    by_hand_per_second: Option<f64>,
    towpath_per_second: f64,
    ratio: Option<f64>,
    /// The most memory this process has ever used, both contenders and the filling included.
    peak_kibibytes: Option<u64>,
}

const CHANNEL: &str = "drain";

/// How long a queue that nobody uses stays.
const QUEUE_EXPIRES_MILLIS: i64 = 120_000;

/// Measures and prints what came out.
pub(crate) async fn run(flags: DrainFlags) -> Result<String, Failure> {
    let scratch = Scratch::make(&flags.store).await?;
    let report = measure(&scratch, &flags).await;
    scratch.remove().await?;
    let report = report?;
    answer(flags.json, &report, text)
}

async fn measure(scratch: &Scratch, flags: &DrainFlags) -> Result<Report, Failure> {
    let store = SqlStore::connect(scratch.url()).await?;
    store.migrate().await?;
    let pool = store
        .postgres_pool()
        .ok_or_else(|| Failure::usage("`bench drain` measures on PostgreSQL: give a postgres:// URL"))?;
    let by_hand = ByHandRelay::prepare(pool, &flags.broker).await?;
    let lease = bench_lease(&store).await?;
    let idle = flags.circumstances.make(&store, &lease, CHANNEL).await?;

    let (mut towpath_rates, mut by_hand_rates) = (Vec::new(), Vec::new());
    for turn in 0..flags.turns.max(1) {
        fill(&store, CHANNEL, &format!("turn-{turn}"), flags.events, flags.aggregates, flags.run).await?;
        give_positions(&store, &lease).await?;
        if !flags.alone {
            by_hand.fill(flags.events, flags.aggregates).await?;
        }
        on_postgres(pool.execute("ANALYZE").await)?;
        towpath_rates.push(flags.events as f64 / drain(scratch, flags, &store).await?.as_secs_f64());
        if !flags.alone {
            let queue = queue_name();
            let took = by_hand.drain(&declared(flags, &queue), &queue, flags.batch).await?;
            by_hand_rates.push(flags.events as f64 / took.as_secs_f64());
        }
    }
    drop(idle);
    store.close().await;
    let towpath = median(towpath_rates);
    let by_hand = (!flags.alone).then(|| median(by_hand_rates));
    Ok(Report {
        events: flags.events,
        aggregates: flags.aggregates,
        queue: flags.queue,
        batch: flags.batch,
        circumstances: flags.circumstances,
        by_hand_per_second: by_hand,
        towpath_per_second: towpath,
        ratio: by_hand.map(|by_hand| towpath / by_hand),
        peak_kibibytes: peak_kibibytes(),
    })
}

/// Starts Towpath on the backlog and waits until nothing is left of it.
async fn drain(scratch: &Scratch, flags: &DrainFlags, store: &SqlStore) -> Result<Duration, Failure> {
    let queue = queue_name();
    let policy = ChannelPolicy { batch: flags.batch, ..ChannelPolicy::default() };
    let channel = Channel::named(CHANNEL, ["*"]).map(|channel| channel.to("", &queue).with(policy));
    let began = Instant::now();
    let app = Towpath::builder()
        .store(scratch.url())
        .broker(&flags.broker)
        .channel(channel)
        .topology(declared(flags, &queue))
        .start()
        .await
        .map_err(|error| Failure::unreachable(error.report()))?;
    let channel = ChannelName::from_stored(CHANNEL);
    let partitions: Vec<u16> = (0..Lane::PARTITIONS).collect();
    loop {
        let look = OutboxClaim {
            channel: &channel,
            partitions: &partitions,
            limit: 1,
            now: chrono::Utc::now(),
            room: ClaimRoom::UNLIMITED,
        };
        if store.claim_outbox(&look).await?.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = began.elapsed();
    app.stop().await;
    Ok(took)
}

fn queue_name() -> String {
    format!("towpath.bench.{}", uuid::Uuid::now_v7().simple())
}

fn declared(flags: &DrainFlags, queue: &str) -> Topology {
    let kind = match flags.queue {
        QueueKind::Classic => "classic",
        QueueKind::Quorum => "quorum",
    };
    let arguments = vec![
        ("x-queue-type".to_owned(), Argument::Text(kind.to_owned())),
        ("x-expires".to_owned(), Argument::Number(QUEUE_EXPIRES_MILLIS)),
    ];
    Topology { queues: vec![Queue { name: queue.to_owned(), arguments }], ..Topology::default() }
}

/// The most memory this process has used, where the system tells.
fn peak_kibibytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    let Report { events, aggregates, batch, circumstances, .. } = report;
    let kind = match report.queue {
        QueueKind::Classic => "classic",
        QueueKind::Quorum => "quorum",
    };
    lines.push(format!(
        "{events} events of {aggregates} aggregates to a {kind} queue, {batch} at a time{circumstances}"
    ));
    if let (Some(by_hand), Some(ratio)) = (report.by_hand_per_second, report.ratio) {
        lines.push(format!("  hand-written relay    {by_hand:>8.0} events/s"));
        lines.push(format!(
            "  Towpath relay         {:>8.0} events/s   {ratio:.2} of hand-written",
            report.towpath_per_second
        ));
    } else {
        lines.push(format!("  Towpath relay         {:>8.0} events/s", report.towpath_per_second));
    }
    if let Some(peak) = report.peak_kibibytes {
        lines.push(format!("  peak memory of this process {:.1} MiB", peak as f64 / 1024.0));
    }
    lines.join("\n")
}
