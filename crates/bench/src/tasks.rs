//! `towpath bench tasks`: tasks against jobs of hand-written workers, from being started to being finished in the database; and how
//! long an idle worker takes to begin. What a claim costs with many tasks behind it is in `task_claims`.
//!
//! Both start each in a transaction with something of the application's own, from as many clients, while the same number of workers
//! does them, a millisecond each, on the same PostgreSQL. Both read the payload, have the same effect and write a result. They take
//! turns.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use towpath::ports::store::StoreError;
use towpath::{
    Answer, Attempt, Builder, HandlerError, Scratch, SqlStore, StoreOptions, StoreUrl, TaskType, Towpath,
    Worker,
};

use crate::backlog::settle;
use crate::task_claims::{self, Behind};
use crate::task_pick_ups::{PickUps, pick_ups};
use crate::{Failure, answer, bare, by_hand_tasks, median};

/// How long a job takes.
const JOB: Duration = Duration::from_millis(1);

/// How long a contender may make no progress at all.
pub(crate) const STUCK: Duration = Duration::from_secs(30);

/// How long who waits for a contender rests between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// The type of Towpath's tasks.
const TYPE: &str = "Bench.Job";

/// Where Towpath's tasks stand.
pub(crate) const STANDING: Standing = Standing {
    open: "SELECT COUNT(*) AS jobs FROM task_box WHERE status IN ('pending', 'queued', 'running')",
    finished: "SELECT COUNT(*) AS jobs FROM task_box WHERE status = 'succeeded' AND result IS NOT NULL",
};

/// The flags of `towpath bench tasks`.
#[derive(Args)]
pub struct TaskFlags {
    /// The PostgreSQL to measure on; other stores with `--alone`, `--waiting` or `--finished`
    #[arg(long, env = "TOWPATH_STORE", value_name = "URL")]
    store: String,

    /// How many tasks each contender does per turn
    #[arg(long, default_value_t = 10_000)]
    tasks: u64,

    /// How many turns each contender gets
    #[arg(long, default_value_t = 3)]
    turns: usize,

    /// How many tasks are done at once
    #[arg(long, default_value_t = 8)]
    pub(crate) workers: u32,

    /// How many clients start tasks at once
    #[arg(long, default_value_t = 8)]
    clients: u32,

    /// How many tasks are started one by one, to see how soon they begin
    #[arg(long, default_value_t = 500)]
    pub(crate) pick_ups: usize,

    #[command(flatten)]
    behind: Behind,

    /// Leave the hand-written workers out
    #[arg(long)]
    alone: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TaskFlags {
    /// How many tasks of a turn do not count: connections are made, statements prepared.
    fn warm_up(&self) -> u64 {
        self.tasks / 20
    }

    /// A connection for each worker and each client, and some for what runs beside them.
    fn connections(&self) -> u32 {
        self.clients.saturating_add(self.workers).saturating_add(4)
    }
}

/// What is to be done, as both contenders write it down.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    number: u64,
    what: String,
}

/// What came of it.
#[derive(Serialize)]
pub(crate) struct Drawn {
    number: u64,
    drawn: String,
}

impl Job {
    pub(crate) fn numbered(number: u64) -> Self {
        Self { number, what: "duck".to_owned() }
    }

    /// Does it.
    pub(crate) async fn work(self, effects: &Effects) -> Drawn {
        tokio::time::sleep(JOB).await;
        effects.note(self.number);
        Drawn { number: self.number, drawn: self.what }
    }
}

/// The effects of the jobs of a turn: how often each was done. They are outside of the database, as a page that is rendered or a
/// service that is called.
pub(crate) struct Effects {
    each: Vec<AtomicU32>,
    all: AtomicU64,
}

impl Effects {
    fn of(jobs: u64) -> Arc<Self> {
        Arc::new(Self { each: (0..jobs).map(|_| AtomicU32::new(0)).collect(), all: AtomicU64::new(0) })
    }

    fn note(&self, number: u64) {
        if let Some(times) = usize::try_from(number).ok().and_then(|number| self.each.get(number)) {
            times.fetch_add(1, Ordering::Relaxed);
        }
        self.all.fetch_add(1, Ordering::Relaxed);
    }

    fn so_far(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    /// How many jobs had none, or more than one.
    fn not_one(&self) -> usize {
        self.each.iter().filter(|times| times.load(Ordering::Relaxed) != 1).count()
    }
}

/// How to ask where the jobs of a contender stand.
pub(crate) struct Standing {
    /// Counts those that are not finished.
    pub(crate) open: &'static str,
    /// Counts those that are, with a result.
    pub(crate) finished: &'static str,
}

impl Standing {
    /// How many are not finished.
    pub(crate) async fn open(&self, store: &SqlStore) -> Result<u64, Failure> {
        count(store, self.open).await
    }
}

async fn count(store: &SqlStore, sql: &str) -> Result<u64, Failure> {
    let rows = store.own_rows("bench.count", sql, Vec::new()).await?;
    let row = rows.first().ok_or_else(|| Failure::unreachable("nothing was counted"))?;
    Ok(row.count("jobs")?)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    database: &'static str,
    tasks: u64,
    workers: u32,
    clients: u32,
    by_hand_per_second: Option<f64>,
    towpath_per_second: f64,
    ratio: Option<f64>,
    #[serde(flatten)]
    pick_ups: PickUps,
}

/// Measures and prints what came out.
pub(crate) async fn run(flags: TaskFlags) -> Result<String, Failure> {
    if flags.behind.is_any() {
        return task_claims::run(&flags.store, flags.behind, flags.json).await;
    }
    let scratch = Scratch::make(&flags.store).await?;
    let report = measure(&scratch, &flags).await;
    scratch.remove().await?;
    answer(flags.json, &report?, text)
}

async fn measure(scratch: &Scratch, flags: &TaskFlags) -> Result<Report, Failure> {
    let store = SqlStore::connect_with(&StoreUrl::parse(scratch.url())?, options(flags)).await?;
    store.migrate().await?;
    let by_hand = match (store.postgres_pool(), flags.alone) {
        (_, true) => None,
        (Some(pool), false) => Some(by_hand_tasks::prepare(pool, flags.connections()).await?),
        (None, false) => {
            return Err(Failure::usage(
                "the hand-written workers know PostgreSQL only: give a postgres:// URL, or --alone",
            ));
        }
    };
    let orders = "CREATE TABLE bench_orders (id VARCHAR(36) NOT NULL PRIMARY KEY)".to_owned();
    bare::execute(&store, orders).await.map_err(|error| Failure::unreachable(error.to_string()))?;
    let (mut by_hand_rates, mut towpath_rates) = (Vec::new(), Vec::new());
    for _ in 0..flags.turns.max(1) {
        if let Some(pool) = &by_hand {
            settle(&store, "by_hand_jobs, bench_orders").await?;
            let effects = Effects::of(flags.warm_up() + flags.tasks);
            let mut workers = by_hand_tasks::work(pool, flags.workers, &effects);
            let turn = Turn { flags, store: &store, standing: by_hand_tasks::STANDING, effects: &effects };
            let rate = turn.rate(&mut workers, |job| by_hand_tasks::enqueue(pool, job)).await;
            workers.shutdown().await;
            by_hand_rates.push(rate?);
        }
        settle(&store, "task_box, bench_orders").await?;
        let effects = Effects::of(flags.warm_up() + flags.tasks);
        let app =
            start(scratch, flags, |builder| builder.worker(Doing(effects.clone()), flags.workers)).await?;
        let turn = Turn { flags, store: &store, standing: STANDING, effects: &effects };
        let rate = turn.rate(&mut JoinSet::new(), |job| enqueue(&app, job)).await;
        app.stop().await;
        towpath_rates.push(rate?);
    }
    if let Some(pool) = &by_hand {
        pool.close().await;
    }
    let pick_ups = pick_ups(scratch, &store, flags).await?;
    let (towpath, by_hand) = (median(towpath_rates), by_hand.map(|_| median(by_hand_rates)));
    let database = store.promises().database;
    store.close().await;
    Ok(Report {
        database,
        tasks: flags.tasks,
        workers: flags.workers,
        clients: flags.clients,
        by_hand_per_second: by_hand,
        towpath_per_second: towpath,
        ratio: by_hand.map(|by_hand| towpath / by_hand),
        pick_ups,
    })
}

fn options(flags: &TaskFlags) -> StoreOptions {
    StoreOptions { max_connections: flags.connections(), ..StoreOptions::default() }
}

/// A turn of a contender.
struct Turn<'t> {
    flags: &'t TaskFlags,
    /// Nobody else uses it meanwhile.
    store: &'t SqlStore,
    standing: Standing,
    effects: &'t Effects,
}

impl Turn<'_> {
    /// How many jobs per second are started and finished. That one had no effect, or two, or was not finished with a result, is
    /// an error.
    async fn rate<F: Future<Output = Result<(), Failure>>>(
        &self,
        workers: &mut JoinSet<Result<(), Failure>>,
        enqueue: impl Fn(Job) -> F,
    ) -> Result<f64, Failure> {
        let (warm_up, jobs) = (self.flags.warm_up(), self.flags.warm_up() + self.flags.tasks);
        let before = count(self.store, self.standing.finished).await?;
        let work = async {
            self.go(0..warm_up, &enqueue).await?;
            let began = Instant::now();
            self.go(warm_up..jobs, &enqueue).await?;
            Ok::<_, Failure>(began.elapsed())
        };
        let took = tokio::select! {
            took = work => took?,
            Some(Ok(Err(failure))) = workers.join_next() => return Err(failure),
        };
        let finished = count(self.store, self.standing.finished).await? - before;
        let not_one = self.effects.not_one();
        if finished != jobs || not_one > 0 {
            return Err(Failure::unreachable(format!(
                "{finished} of {jobs} jobs were finished with a result, and {not_one} had no effect or more than one"
            )));
        }
        Ok(self.flags.tasks as f64 / took.as_secs_f64())
    }

    /// Starts these jobs, and waits until they and those before them are finished.
    async fn go<F: Future<Output = Result<(), Failure>>>(
        &self,
        numbers: Range<u64>,
        enqueue: impl Fn(Job) -> F,
    ) -> Result<(), Failure> {
        let clients = self.flags.clients.max(1) as usize;
        let client = |which: usize| {
            let (enqueue, numbers) = (&enqueue, numbers.clone().skip(which).step_by(clients));
            async move {
                for number in numbers {
                    enqueue(Job::numbered(number)).await?;
                }
                Ok::<_, Failure>(())
            }
        };
        futures_util::future::try_join_all((0..clients).map(client)).await?;
        self.until_finished(numbers.end).await
    }

    /// The database is asked only when all have had their effect: until then the question would be work for it.
    async fn until_finished(&self, jobs: u64) -> Result<(), Failure> {
        let (mut last, mut since) = (None, Instant::now());
        loop {
            let effects = self.effects.so_far();
            let open = match effects < jobs {
                true => None,
                false => Some(self.standing.open(self.store).await?),
            };
            if open == Some(0) {
                return Ok(());
            }
            if last != Some((effects, open)) {
                (last, since) = (Some((effects, open)), Instant::now());
            } else if since.elapsed() > STUCK {
                let open = self.standing.open(self.store).await?;
                return Err(Failure::unreachable(format!(
                    "{effects} of {jobs} jobs have had an effect, {open} are not finished, and nothing goes on"
                )));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

pub(crate) fn job() -> TaskType {
    TaskType::named(TYPE)
}

/// Does a job.
struct Doing(Arc<Effects>);

impl Worker for Doing {
    fn task(&self) -> TaskType {
        job()
    }

    async fn run(&self, attempt: Attempt) -> Result<Answer, HandlerError> {
        let job: Job = attempt.read()?;
        Answer::of(&job.work(&self.0).await)
    }
}

/// Starts Towpath with what is given to it.
pub(crate) async fn start(
    scratch: &Scratch,
    flags: &TaskFlags,
    with: impl FnOnce(Builder) -> Builder,
) -> Result<Towpath, Failure> {
    let builder = Towpath::builder().store(scratch.url()).store_options(options(flags)).broker("local:");
    with(builder).start().await.map_err(|error| Failure::unreachable(error.report()))
}

/// Something of the application's own, and a task, in one transaction.
pub(crate) async fn enqueue(app: &Towpath, what: Job) -> Result<(), Failure> {
    let of = job();
    let enqueued = app.transact(async |mut tx| {
        let id = uuid::Uuid::now_v7().to_string();
        tx.execute("INSERT INTO bench_orders (id) VALUES (?)", &[&id]).await?;
        tx.start_task(&of, &what).await?;
        Ok::<_, StoreError>(())
    });
    Ok(enqueued.await?)
}

fn text(report: &Report) -> String {
    let Report { database, tasks, workers, clients, pick_ups, .. } = report;
    let mut lines = vec![format!(
        "{tasks} tasks of a millisecond, {clients} clients, {workers} workers, {database}, median of the turns"
    )];
    if let Some(by_hand) = report.by_hand_per_second {
        lines.push(format!("  hand-written workers {by_hand:>8.0} tasks/s"));
    }
    let of = report.ratio.map(|ratio| format!("   {ratio:.2} of hand-written")).unwrap_or_default();
    lines.push(format!("  Towpath              {:>8.0} tasks/s{of}", report.towpath_per_second));
    lines.push(pick_ups.to_string());
    lines.join("\n")
}
