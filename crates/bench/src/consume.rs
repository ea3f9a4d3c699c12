//! `towpath bench consume`: consumers against hand-written ones, on full queues.
//!
//! Both take the same number of messages from quorum queues of the same RabbitMQ, mark each as handled and make the same
//! effect in the same PostgreSQL, in the same shape: a transaction for each message, or one for a batch. They take
//! turns, a queue each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use towpath::sqlx::{self, Row};
use towpath::{
    Batch, Consumer, ConsumerPolicy, Delivery, HandlerError, Next, Scratch, SqlStore, StoreOptions, StoreUrl,
    Towpath,
};

use crate::Failure;
use crate::by_hand_consumer::ByHandConsumer;
use crate::{answer, bare, median, queue};

/// The flags of `towpath bench consume`.
#[derive(Args)]
pub struct ConsumeFlags {
    /// The PostgreSQL to measure on; other stores with `--alone`
    #[arg(long, env = "TOWPATH_STORE", value_name = "URL")]
    store: String,

    /// The RabbitMQ to consume from
    #[arg(long, env = "TOWPATH_BROKER", value_name = "URL")]
    broker: String,

    /// How many messages each contender takes per turn
    #[arg(long, default_value_t = 20_000)]
    messages: u64,

    /// How many turns each contender gets
    #[arg(long, default_value_t = 3)]
    turns: usize,

    /// How many handlers run at once with a transaction for each message
    #[arg(long, default_value_t = 8)]
    handlers: usize,

    /// How many messages a batch holds
    #[arg(long, default_value_t = 50)]
    batch: usize,

    /// How many handlers run at once with batches
    #[arg(long, default_value_t = 4)]
    batch_handlers: usize,

    /// Measure one of the two ways only
    #[arg(long, value_enum)]
    only: Option<Way>,

    /// Leave the hand-written consumer out
    #[arg(long)]
    alone: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The two ways to consume.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Way {
    /// A transaction for each message.
    OneByOne,
    /// Many messages in a transaction.
    Batches,
}

/// How a contender consumes.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Shape {
    /// How many run at once.
    pub(crate) handlers: usize,
    /// How many messages share a transaction.
    pub(crate) batch: usize,
}

impl Shape {
    /// How many messages are fetched ahead, by both contenders: what all handlers are at, and as much again for batches.
    pub(crate) fn prefetch(self) -> u16 {
        let ahead = if self.batch == 1 { 8 } else { 2 };
        u16::try_from(self.handlers * self.batch * ahead).unwrap_or(u16::MAX)
    }
}

/// What is in a message.
#[derive(Deserialize)]
pub(crate) struct Deposit {
    pub(crate) amount: i64,
}

/// Counts what was handled. The first fifth is a warm-up: connections are made, statements prepared.
pub(crate) struct Tally {
    warm_up: u64,
    began: OnceLock<(Instant, u64)>,
    handled: AtomicU64,
}

impl Tally {
    fn of(messages: u64) -> Arc<Self> {
        Arc::new(Self { warm_up: messages / 5, began: OnceLock::new(), handled: AtomicU64::new(0) })
    }

    /// So many more were handled. The clock starts with those that end the warm-up.
    pub(crate) fn count(&self, messages: u64) {
        let handled = self.handled.fetch_add(messages, Ordering::Relaxed) + messages;
        if handled >= self.warm_up {
            self.began.get_or_init(|| (Instant::now(), handled));
        }
    }
}

/// What came out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    database: &'static str,
    messages: u64,
    shapes: Vec<ShapeReport>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShapeReport {
    #[serde(flatten)]
    shape: Shape,
    by_hand_per_second: Option<f64>,
    towpath_per_second: f64,
    ratio: Option<f64>,
}

/// The effects, in SQL that all three databases read.
const EFFECTS: [&str; 2] = ["by_hand_effects", "towpath_effects"];

/// How long a contender may make no progress at all.
const STUCK: Duration = Duration::from_secs(30);

/// Measures and prints what came out.
pub(crate) async fn run(flags: ConsumeFlags) -> Result<String, Failure> {
    let scratch = Scratch::make(&flags.store).await?;
    let report = measure(&scratch, &flags).await;
    scratch.remove().await?;
    let report = report?;
    answer(flags.json, &report, text)
}

async fn measure(scratch: &Scratch, flags: &ConsumeFlags) -> Result<Report, Failure> {
    let url = StoreUrl::parse(scratch.url())?;
    let store = SqlStore::connect_with(&url, options(flags)).await?;
    store.migrate().await?;
    let by_hand = match (store.postgres_pool(), flags.alone) {
        (_, true) => None,
        (Some(pool), false) => Some(ByHandConsumer { pool: pool.clone(), broker: flags.broker.clone() }),
        (None, false) => {
            return Err(Failure::usage(
                "the hand-written consumer knows PostgreSQL only: give a postgres:// URL, or --alone",
            ));
        }
    };
    if let Some(by_hand) = &by_hand {
        by_hand.prepare().await?;
    }
    let id = if store.postgres_pool().is_some() { "uuid" } else { "VARCHAR(36)" };
    for table in EFFECTS {
        let sql = format!("CREATE TABLE {table} (event_id {id} NOT NULL, amount BIGINT NOT NULL)");
        bare::execute(&store, sql).await.map_err(|error| Failure::unreachable(error.to_string()))?;
    }

    let mut shapes = vec![
        Shape { handlers: flags.handlers.max(1), batch: 1 },
        Shape { handlers: flags.batch_handlers.max(1), batch: flags.batch.max(2) },
    ];
    shapes.retain(|shape| flags.only.is_none_or(|only| (only == Way::OneByOne) == (shape.batch == 1)));
    let contenders = 1 + usize::from(by_hand.is_some());
    let progress = ProgressBar::new((shapes.len() * flags.turns.max(1) * contenders) as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {msg}") {
        progress.set_style(style);
    }
    let mut reports = Vec::new();
    for shape in shapes {
        progress.set_prefix(if shape.batch == 1 { "one by one" } else { "batches" });
        let (mut by_hand_rates, mut towpath_rates) = (Vec::new(), Vec::new());
        for _ in 0..flags.turns.max(1) {
            if let Some(by_hand) = &by_hand {
                progress.set_message("hand-written");
                by_hand_rates.push(by_hand_turn(by_hand, &store, flags, shape).await?);
                progress.inc(1);
            }
            progress.set_message("towpath");
            towpath_rates.push(towpath_turn(scratch, &store, flags, shape).await?);
            progress.inc(1);
        }
        let towpath = median(towpath_rates);
        let by_hand = by_hand.as_ref().map(|_| median(by_hand_rates));
        reports.push(ShapeReport {
            shape,
            by_hand_per_second: by_hand,
            towpath_per_second: towpath,
            ratio: by_hand.map(|by_hand| towpath / by_hand),
        });
    }
    progress.finish_and_clear();
    let database = store.promises().database;
    store.close().await;
    Ok(Report { database, messages: flags.messages, shapes: reports })
}

/// A connection for each handler, and some for what runs beside them.
fn options(flags: &ConsumeFlags) -> StoreOptions {
    let handlers = u32::try_from(flags.handlers.max(flags.batch_handlers)).unwrap_or(u32::MAX);
    StoreOptions { max_connections: handlers.saturating_add(4), ..StoreOptions::default() }
}

async fn by_hand_turn(
    by_hand: &ByHandConsumer,
    store: &SqlStore,
    flags: &ConsumeFlags,
    shape: Shape,
) -> Result<f64, Failure> {
    let queue = queue::filled(&flags.broker, flags.messages).await?;
    empty(store, EFFECTS[0]).await?;
    let tally = Tally::of(flags.messages);
    let mut running = by_hand.start(&queue, shape, &tally).await?;
    let rate = tokio::select! {
        rate = finished(store, EFFECTS[0], &tally, flags.messages) => rate?,
        failure = running.failed() => return Err(failure),
    };
    running.stop().await;
    Ok(rate)
}

async fn towpath_turn(
    scratch: &Scratch,
    store: &SqlStore,
    flags: &ConsumeFlags,
    shape: Shape,
) -> Result<f64, Failure> {
    let queue = queue::filled(&flags.broker, flags.messages).await?;
    empty(store, EFFECTS[1]).await?;
    let tally = Tally::of(flags.messages);
    let policy = ConsumerPolicy {
        concurrency: shape.handlers,
        prefetch: shape.prefetch(),
        ..ConsumerPolicy::default()
    };
    let consumer = Consumer::from_queue(&queue).with(policy);
    let seen = tally.clone();
    let consumer = if shape.batch == 1 {
        consumer.each("bench", move |delivery| handle(delivery, seen.clone()))
    } else {
        consumer.batches("bench", shape.batch, move |batch| handle_batch(batch, seen.clone()))
    };
    let app = Towpath::builder()
        .store(scratch.url())
        .store_options(options(flags))
        .broker(&flags.broker)
        .topology(queue::declared(&queue))
        .consumer(consumer)
        .start()
        .await
        .map_err(|error| Failure::unreachable(error.report()))?;
    let rate = finished(store, EFFECTS[1], &tally, flags.messages).await;
    app.stop().await;
    rate
}

async fn handle(mut delivery: Delivery, tally: Arc<Tally>) -> Result<Next, HandlerError> {
    let Deposit { amount } = delivery.payload()?;
    let id = delivery.event.event_id;
    if let Ok(connection) = delivery.tx.postgres() {
        let sql = "INSERT INTO towpath_effects (event_id, amount) VALUES ($1, $2)";
        sqlx::query(sql).bind(id.0).bind(amount).execute(connection).await?;
    } else {
        let sql = "INSERT INTO towpath_effects (event_id, amount) VALUES (?, ?)";
        delivery.tx.execute(sql, &[&id.to_string(), &amount.to_string()]).await?;
    }
    tally.count(1);
    Ok(delivery.handled())
}

async fn handle_batch(mut batch: Batch, tally: Arc<Tally>) -> Result<Next, HandlerError> {
    let read = |event: &towpath::IncomingEvent| event.payload.read::<Deposit>(event.event_type.as_str());
    let (mut ids, mut amounts) = (Vec::new(), Vec::new());
    for delivery in &batch.deliveries {
        ids.push(delivery.event.event_id.0);
        amounts.push(read(&delivery.event)?.amount);
    }
    if let Ok(connection) = batch.tx.postgres() {
        let sql =
            "INSERT INTO towpath_effects (event_id, amount) SELECT * FROM unnest($1::uuid[], $2::bigint[])";
        sqlx::query(sql).bind(&ids).bind(&amounts).execute(connection).await?;
    } else {
        for (id, amount) in ids.iter().zip(&amounts) {
            let sql = "INSERT INTO towpath_effects (event_id, amount) VALUES (?, ?)";
            batch.tx.execute(sql, &[&id.to_string(), &amount.to_string()]).await?;
        }
    }
    tally.count(ids.len() as u64);
    Ok(batch.handled())
}

/// Waits until every message has its effect, and answers how many were handled per second since the warm-up. An effect
/// too many is a bug, and no rate.
async fn finished(store: &SqlStore, table: &str, tally: &Tally, messages: u64) -> Result<f64, Failure> {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let handled = tally.handled.load(Ordering::Relaxed);
        if handled != last {
            (last, since) = (handled, Instant::now());
        }
        if handled >= messages {
            let effects = count(store, table).await?;
            if effects > messages {
                return Err(Failure::unreachable(format!("{messages} messages had {effects} effects")));
            }
            if effects == messages {
                let (began, before) = tally.began.get().copied().unwrap_or((Instant::now(), 0));
                return Ok((messages - before) as f64 / began.elapsed().as_secs_f64());
            }
        }
        if since.elapsed() > STUCK {
            return Err(Failure::unreachable(format!("{handled} of {messages} messages, and no more come")));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn count(store: &SqlStore, table: &str) -> Result<u64, Failure> {
    let sql = || sqlx::AssertSqlSafe(format!("SELECT COUNT(*) FROM {table}"));
    let counted: Result<i64, sqlx::Error> = async {
        if let Some(pool) = store.postgres_pool() {
            sqlx::query(sql()).fetch_one(pool).await?.try_get(0)
        } else if let Some(pool) = store.mysql_pool() {
            sqlx::query(sql()).fetch_one(pool).await?.try_get(0)
        } else if let Some(pool) = store.sqlite_pool() {
            sqlx::query(sql()).fetch_one(pool).await?.try_get(0)
        } else {
            Ok(0)
        }
    }
    .await;
    let counted = counted.map_err(|error| Failure::unreachable(error.to_string()))?;
    Ok(counted.cast_unsigned())
}

async fn empty(store: &SqlStore, table: &str) -> Result<(), Failure> {
    let emptied = bare::execute(store, format!("DELETE FROM {table}")).await;
    emptied.map_err(|error| Failure::unreachable(error.to_string()))
}

fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    let Report { database, messages, shapes } = report;
    lines.push(format!("{messages} messages from a quorum queue, {database}, median of the turns"));
    for ShapeReport { shape, by_hand_per_second, towpath_per_second, ratio } in shapes {
        let Shape { handlers, batch } = shape;
        let how = if *batch == 1 {
            format!("{handlers} handlers, a transaction for each message")
        } else {
            format!("{handlers} handlers, {batch} messages in a transaction")
        };
        lines.push(format!("  {how}"));
        if let Some(by_hand) = by_hand_per_second {
            lines.push(format!("    hand-written consumer {by_hand:>8.0} messages/s"));
        }
        let of = ratio.map(|ratio| format!("   {ratio:.2} of hand-written")).unwrap_or_default();
        lines.push(format!("    Towpath consumer      {towpath_per_second:>8.0} messages/s{of}"));
    }
    lines.join("\n")
}
