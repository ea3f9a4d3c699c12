//! `towpath bench write`: a command through Towpath against the bare business transaction.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use towpath::ids::{AggregateKey, CorrelationId, EventId};
use towpath::name::EventName;
use towpath::ports::probe::Probe;
use towpath::ports::store::{Append, Expected, NewEvent, Routing, Snapshot};
use towpath::{
    Aggregate, ChangeContext, Channel, Command, Context, Event, Payload, Scratch, SqlStore, StoreOptions,
    StoreUrl, Towpath,
};

use crate::Failure;
use crate::bare::ByHand;
use crate::{answer, median};

/// The flags of `towpath bench write`.
#[derive(Args)]
pub struct WriteFlags {
    /// A store to measure; may be given several times [default: a SQLite file under ./data]
    #[arg(long, value_name = "URL")]
    store: Vec<String>,

    /// How many connections, and callers at once
    #[arg(long, default_value_t = 8)]
    connections: u32,

    /// Seconds per turn of each contender
    #[arg(long, default_value_t = 2)]
    seconds: u64,

    /// How many turns each contender gets
    #[arg(long, default_value_t = 5)]
    turns: usize,

    /// How many events stand behind the deep aggregate
    #[arg(long, default_value_t = 100_000)]
    deep: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How many aggregates the callers spread over.
const ACCOUNTS: usize = 10_000;

/// How many events stand behind the shallow aggregate.
const SHALLOW: u64 = 10;

/// How many commands the shallow and the deep aggregate each get, taking turns.
const DEPTH_PAIRS: usize = 400;

/// The business: an account that takes deposits. The hand-written contender keeps the same value in its own row.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Account {
    /// How many it has taken.
    pub deposits: u64,
}

/// What can be asked of an account.
#[derive(Serialize, Deserialize, Command)]
pub enum AccountCommand {
    /// To take an amount.
    #[serde(rename = "account.deposit")]
    Deposit {
        /// How much.
        amount: u64,
    },
}

/// What happens to an account.
#[derive(Serialize, Deserialize, Event)]
pub enum AccountEvent {
    /// It took an amount.
    #[serde(rename = "account.deposited")]
    Deposited {
        /// How much.
        amount: u64,
    },
}

impl Aggregate for Account {
    const KIND: &'static str = "account";
    type Command = AccountCommand;
    type Event = AccountEvent;
    type Refusal = Infallible;

    fn decide(&self, command: AccountCommand, _: &Context) -> Result<Vec<AccountEvent>, Infallible> {
        let AccountCommand::Deposit { amount } = command;
        Ok(vec![AccountEvent::Deposited { amount }])
    }

    fn evolve(self, event: &AccountEvent) -> Self {
        let AccountEvent::Deposited { .. } = event;
        Account { deposits: self.deposits + 1 }
    }
}

/// What came out for one database.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    database: &'static str,
    connections: u32,
    bare_per_second: f64,
    by_hand_per_second: f64,
    towpath_per_second: f64,
    by_hand_ratio: f64,
    towpath_ratio: f64,
    statements_per_command: f64,
    statements: BTreeMap<&'static str, f64>,
    shallow_events: u64,
    shallow_micros: f64,
    deep_events: u64,
    deep_micros: f64,
    depth_ratio: f64,
}

/// Measures each store and prints what came out.
pub(crate) async fn run(flags: WriteFlags) -> Result<String, Failure> {
    let stores = if flags.store.is_empty() {
        vec!["sqlite://data/towpath.db".to_owned()]
    } else {
        flags.store.clone()
    };
    let mut reports = Vec::new();
    for url in &stores {
        let scratch = Scratch::make(url).await?;
        let report = measure(&scratch, &flags).await;
        scratch.remove().await?;
        reports.push(report?);
    }
    answer(flags.json, reports.as_slice(), text)
}

async fn measure(scratch: &Scratch, flags: &WriteFlags) -> Result<Report, Failure> {
    let counting = Arc::new(Counting::default());
    let options = StoreOptions { max_connections: flags.connections, ..StoreOptions::default() };
    let url = StoreUrl::parse(scratch.url())?;
    let raw = SqlStore::connect_with(&url, options.clone()).await?;
    let app = Towpath::builder()
        .store(scratch.url())
        .store_options(StoreOptions { probe: counting.clone(), ..options })
        .aggregate::<Account>()
        .channel(Channel::named("bench", ["account.*"]))
        // The runner has nothing to do here; it should not add its own scans to the numbers.
        .scan(Duration::from_secs(3600))
        .start()
        .await
        .map_err(|error| Failure::unreachable(error.report()))?;
    let database = app.store().promises().database;
    let accounts: Vec<String> = (0..ACCOUNTS).map(|number| format!("account-{number}")).collect();
    let accounts = Arc::new(accounts);

    let progress = ProgressBar::new((flags.turns * 3 + 3) as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:30} {pos}/{len} {msg}") {
        progress.set_style(style);
    }
    progress.set_prefix(database);

    progress.set_message("filling");
    ByHand::prepare(&raw, &accounts).await.map_err(|error| Failure::unreachable(error.to_string()))?;
    fill(app.store(), &accounts).await?;
    progress.inc(1);

    let bare = ByHand { store: raw.clone(), with_outbox: false };
    let by_hand = ByHand { store: raw.clone(), with_outbox: true };
    let turn = Duration::from_secs(flags.seconds);
    // A turn that does not count: statements are prepared, tables have rows, and the planner knows them as its own
    // daemon would let it know after a while.
    for contender in [bare.clone(), by_hand.clone()] {
        rate(flags.connections, turn / 2, &accounts, move |id| bare_once(contender.clone(), id)).await?;
    }
    let contender = app.clone();
    rate(flags.connections, turn / 2, &accounts, move |id| towpath_once(contender.clone(), id)).await?;
    analyze(&raw).await;
    let (mut bare_rates, mut by_hand_rates, mut towpath_rates) = (Vec::new(), Vec::new(), Vec::new());
    let mut commands = 0;
    for _ in 0..flags.turns {
        progress.set_message("bare transaction");
        let contender = bare.clone();
        let done =
            rate(flags.connections, turn, &accounts, move |id| bare_once(contender.clone(), id)).await?;
        bare_rates.push(done.per_second);
        progress.inc(1);
        progress.set_message("hand-written outbox");
        let contender = by_hand.clone();
        let done =
            rate(flags.connections, turn, &accounts, move |id| bare_once(contender.clone(), id)).await?;
        by_hand_rates.push(done.per_second);
        progress.inc(1);
        progress.set_message("towpath");
        counting.start();
        let contender = app.clone();
        let done =
            rate(flags.connections, turn, &accounts, move |id| towpath_once(contender.clone(), id)).await?;
        counting.stop();
        commands += done.count;
        towpath_rates.push(done.per_second);
        progress.inc(1);
    }

    progress.set_message("a deep aggregate");
    deepen(app.store(), "account-shallow", SHALLOW).await?;
    deepen(app.store(), "account-deep", flags.deep).await?;
    analyze(&raw).await;
    progress.inc(1);
    let (shallow, deep) = depth(&app).await?;
    progress.inc(1);
    progress.finish_and_clear();

    app.stop().await;
    raw.close().await;
    let (bare, by_hand, towpath) = (median(bare_rates), median(by_hand_rates), median(towpath_rates));
    let statements = counting.per(commands);
    Ok(Report {
        database,
        connections: flags.connections,
        bare_per_second: bare,
        by_hand_per_second: by_hand,
        towpath_per_second: towpath,
        by_hand_ratio: by_hand / bare,
        towpath_ratio: towpath / bare,
        statements_per_command: statements.values().sum(),
        statements,
        shallow_events: SHALLOW,
        shallow_micros: shallow,
        deep_events: flags.deep,
        deep_micros: deep,
        depth_ratio: deep / shallow,
    })
}

async fn bare_once(contender: ByHand, account: String) -> Result<(), String> {
    // Two callers on one account: the loser of the version check tries again, as Towpath does inside.
    loop {
        match contender.once(&account).await {
            Ok(()) => return Ok(()),
            Err(towpath::sqlx::Error::RowNotFound) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

async fn towpath_once(app: Towpath, account: String) -> Result<(), String> {
    let sent = app.send::<Account>(account, AccountCommand::Deposit { amount: 1 }).await;
    sent.map(|_| ()).map_err(|error| format!("{error}: {:?}", std::error::Error::source(&error)))
}

struct Rate {
    count: u64,
    per_second: f64,
}

/// Runs so many callers for so long.
async fn rate<F>(
    callers: u32,
    turn: Duration,
    accounts: &Arc<Vec<String>>,
    once: impl Fn(String) -> F + Clone + Send + 'static,
) -> Result<Rate, Failure>
where
    F: Future<Output = Result<(), String>> + Send,
{
    let count = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for caller in 0..u64::from(callers) {
        let (count, over, accounts, once) = (count.clone(), over.clone(), accounts.clone(), once.clone());
        running.spawn(async move {
            // A walk with a step that is coprime to the number of accounts, begun elsewhere by each caller.
            let mut at = (caller as usize * 1_237) % accounts.len();
            while !over.load(Ordering::Relaxed) {
                at = (at + 7_919) % accounts.len();
                once(accounts[at].clone()).await?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), String>(())
        });
    }
    tokio::time::sleep(turn).await;
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = running.join_next().await {
        ended.map_err(|error| Failure::unreachable(error.to_string()))?.map_err(Failure::unreachable)?;
    }
    let count = count.load(Ordering::Relaxed);
    Ok(Rate { count, per_second: count as f64 / began.elapsed().as_secs_f64() })
}

/// Gives every account its first event.
async fn fill(store: &SqlStore, accounts: &[String]) -> Result<(), Failure> {
    for chunk in accounts.chunks(500) {
        let mut transaction = store.begin().await?;
        for account in chunk {
            transaction.append(&deposits(account, Expected::New, 1, 1)?).await?;
        }
        transaction.commit().await?;
    }
    Ok(())
}

/// Puts so many events behind one account.
async fn deepen(store: &SqlStore, account: &str, events: u64) -> Result<(), Failure> {
    let mut version = 0;
    while version < events {
        let count = (events - version).min(500);
        let mut transaction = store.begin().await?;
        let append = deposits(account, Expected::after(version), count, version + count)?;
        transaction.append(&append).await?;
        transaction.commit().await?;
        version += count;
    }
    Ok(())
}

/// Sends commands to the shallow and the deep account in turns and answers the median time of each, in
/// microseconds.
async fn depth(app: &Towpath) -> Result<(f64, f64), Failure> {
    let (mut shallow, mut deep) = (Vec::new(), Vec::new());
    for round in 0..DEPTH_PAIRS {
        for (account, times) in [("account-shallow", &mut shallow), ("account-deep", &mut deep)] {
            let began = Instant::now();
            towpath_once(app.clone(), account.to_owned()).await.map_err(Failure::unreachable)?;
            // The first rounds warm the caches.
            if round >= DEPTH_PAIRS / 10 {
                times.push(began.elapsed().as_secs_f64() * 1e6);
            }
        }
    }
    Ok((median(shallow), median(deep)))
}

fn deposits(account: &str, expected: Expected, count: u64, total: u64) -> Result<Append, Failure> {
    let wrong = |error: &dyn std::error::Error| Failure::usage(error.to_string());
    let payload = Payload::from_text(r#"{"amount":1}"#).map_err(|error| wrong(&error))?;
    let data = Payload::from_value(&Account { deposits: total }).map_err(|error| wrong(&error))?;
    Ok(Append {
        aggregate: AggregateKey::new(Account::KIND, account).map_err(|error| wrong(&error))?,
        expected,
        events: (0..count)
            .map(|_| NewEvent {
                event_id: EventId(uuid::Uuid::now_v7()),
                event_type: EventName::from_stored("account.deposited"),
                schema_version: 1,
                payload: payload.clone(),
                channels: Routing::Nowhere,
            })
            .collect(),
        snapshot: Some(Snapshot { data, version: 1 }),
        state_changes: Vec::new(),
        deadline: Default::default(),
        context: ChangeContext::new(chrono::Utc::now(), CorrelationId::of_new_flow(uuid::Uuid::new_v4())),
    })
}

/// Lets the planner know the tables.
async fn analyze(raw: &SqlStore) {
    use towpath::sqlx::Executor;
    if let Some(pool) = raw.postgres_pool() {
        let _ = pool.execute("ANALYZE").await;
    } else if let Some(pool) = raw.sqlite_pool() {
        let _ = pool.execute("ANALYZE").await;
    }
}

/// Counts statements by name while it is on.
#[derive(Default)]
struct Counting {
    on: AtomicBool,
    counts: std::sync::Mutex<BTreeMap<&'static str, u64>>,
}

impl Counting {
    fn start(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    fn stop(&self) {
        self.on.store(false, Ordering::Relaxed);
    }

    fn per(&self, commands: u64) -> BTreeMap<&'static str, f64> {
        let counts = self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        counts.iter().map(|(name, count)| (*name, *count as f64 / commands.max(1) as f64)).collect()
    }
}

impl Probe for Counting {
    fn before(&self, statement: &'static str) {
        if self.on.load(Ordering::Relaxed) {
            let mut counts = self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *counts.entry(statement).or_default() += 1;
        }
    }
}

fn text(reports: &[Report]) -> String {
    let mut lines = Vec::new();
    for report in reports {
        let Report { database, connections, .. } = report;
        lines.push(format!("{database}, {connections} connections, median of the turns"));
        lines.push(format!("  bare transaction      {:>8.0} tx/s", report.bare_per_second));
        lines.push(format!(
            "  hand-written outbox   {:>8.0} tx/s   {:.2} of bare",
            report.by_hand_per_second, report.by_hand_ratio
        ));
        lines.push(format!(
            "  Towpath command       {:>8.0} tx/s   {:.2} of bare",
            report.towpath_per_second, report.towpath_ratio
        ));
        let named: Vec<String> =
            report.statements.iter().map(|(name, count)| format!("{name} {count:.2}")).collect();
        lines.push(format!(
            "  statements = round trips per command: {:.2} ({}); bare 4, hand-written 6",
            report.statements_per_command,
            named.join(", ")
        ));
        lines.push(format!(
            "  one command with {} events behind it {:.0} us, with {} events {:.0} us: ratio {:.2}",
            report.shallow_events,
            report.shallow_micros,
            report.deep_events,
            report.deep_micros,
            report.depth_ratio
        ));
    }
    lines.join("\n")
}
