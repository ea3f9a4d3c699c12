//! Faults, on real servers: processes killed at random points under load, connections cut and held, servers restarted.
//! After each run an auditor that counts on its own finds every committed fact delivered, every effect once, the
//! order of each aggregate intact and nothing stuck.
//!
//! The parts of a run are processes of their own: this test binary, started again as a writer or as a worker (relay
//! and consumer). A run is seeded; TOWPATH_FAULT_SEED repeats one, TOWPATH_FAULT_KILLS makes it longer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(clippy::print_stderr, reason = "a run tells its seed and what it counted")]

#[macro_use]
mod support;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::delivery::{Broker, Stage};
use support::{Order, OrderCommand};
use towpath::letters::LetterFilter;
use towpath::lifecycle::{CommandStatus, LetterStatus, OutboxStatus};
use towpath::ports::store::Store as _;
use towpath::retry::RetryPolicy;
use towpath::{
    Afterwards, Builder, Channel, ChannelPolicy, Consumer, ConsumerPolicy, Delivery, HandlerError, Next,
    StoreOptions, Towpath, sqlx,
};
use towpath_testkit::broker::{OwnKafka, TcpProxy};
use towpath_testkit::ledger::{Effect, Noted, audit};

on_every_pair!(
    killed_at_random_points_nothing_is_lost_doubled_or_out_of_order,
    three_instances_share_the_work_and_take_over_from_a_dead_one,
    of_a_hundred_aggregates_a_poisoned_one_makes_no_other_wait,
);

/// Tells this test binary that it is a part of a run.
const ROLE: &str = "TOWPATH_FAULT_ROLE";

/// How long an instance may be silent before others take over, in these runs.
const LEASE: Duration = Duration::from_millis(1500);

/// How many aggregates the writers write to.
const ORDERS: u64 = 12;

/// A handler fails for good with what is about this one.
const POISON: &str = "order-poison";

// The parts of a run -------------------------------------------------------------------------------------------

/// What a part is told.
#[derive(serde::Serialize, serde::Deserialize, Clone)]
struct Part {
    role: String,
    instance: String,
    store: String,
    broker: String,
    channel: String,
    ledger: PathBuf,
    /// How many facts each task of a writer writes, if not as many as it can.
    facts: Option<u64>,
}

/// The other side of this binary: does nothing when it runs among the tests.
#[test]
fn part() {
    let Ok(part) = std::env::var(ROLE) else { return };
    let part: Part = serde_json::from_str(&part).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match part.role.as_str() {
            "writer" => write(&part).await,
            _ => work(&part).await,
        }
    });
}

fn builder(part: &Part) -> Builder {
    let policy = ChannelPolicy {
        scan: Duration::from_millis(50),
        retries: RetryPolicy::Fixed(vec![Duration::from_millis(50); 40]),
        patience: Duration::from_millis(1500),
        ..ChannelPolicy::default()
    };
    let facts = Channel::named(&part.channel, ["order.placed", "order.noted"]);
    let nowhere =
        ChannelPolicy { retries: RetryPolicy::Fixed(vec![Duration::from_millis(20); 2]), ..policy.clone() };
    Towpath::builder()
        .store(&part.store)
        .broker(&part.broker)
        .instance(&part.instance)
        .aggregate::<Order>()
        .channel(facts.map(|channel| channel.published().with(policy)))
        // Nothing is bound to this key.
        .channel(
            Channel::named(format!("{}-nowhere", part.channel), ["order.shipped"])
                .map(|channel| channel.to(format!("{}.nowhere", part.channel), "no.such.key").with(nowhere)),
        )
        .scan(Duration::from_millis(50))
        .lease(LEASE)
}

/// Sends commands as fast as it can, and notes each that was confirmed.
async fn write(part: &Part) {
    let options = StoreOptions { acquire_timeout: Duration::from_secs(2), ..StoreOptions::default() };
    let app = patiently(|| builder(part).store_options(options.clone()).without_workers().start()).await;
    let mut ledger = std::fs::OpenOptions::new().append(true).create(true).open(&part.ledger).unwrap();
    let (lines, mut noted) = tokio::sync::mpsc::unbounded_channel::<String>();
    for lane in 0..4_u64 {
        let (app, lines, instance, facts) = (app.clone(), lines.clone(), part.instance.clone(), part.facts);
        tokio::spawn(async move {
            for number in 0..facts.unwrap_or(u64::MAX) {
                let order = format!("order-{}", (number * 4 + lane) % ORDERS);
                let id = format!("{instance}/{}/{lane}/{number}", std::process::id());
                loop {
                    let known = app.load::<Order>(&order).await;
                    let command = match known {
                        Ok(Some(_)) => OrderCommand::Note,
                        Ok(None) => OrderCommand::Place { sku: "book".into() },
                        Err(_) => continue,
                    };
                    match app.send::<Order>(&order, command).once(&id).await {
                        Ok(receipt) => {
                            lines.send(format!("{order} {}\n", receipt.aggregate_version)).unwrap();
                            break;
                        }
                        // Placed by somebody else meanwhile: the id is used up.
                        Err(towpath::SendError::Refused { .. } | towpath::SendError::IdReused(_)) => break,
                        // The same id again, until it is clear.
                        Err(_) => tokio::task::yield_now().await,
                    }
                }
            }
        });
    }
    // One write per line: a kill leaves whole lines.
    while let Some(line) = noted.recv().await {
        ledger.write_all(line.as_bytes()).unwrap();
    }
}

/// Relays and consumes until it is killed.
async fn work(part: &Part) {
    let instance = part.instance.clone();
    let consumer = Consumer::of(&part.channel)
        .with(ConsumerPolicy {
            immediate_retries: 1,
            afterwards: Afterwards::SetAside(RetryPolicy::Fixed(vec![Duration::from_millis(30); 2])),
            ..ConsumerPolicy::default()
        })
        .in_order()
        .each("audit", move |delivery| note_effect(delivery, instance.clone()));
    let options = StoreOptions { acquire_timeout: Duration::from_secs(2), ..StoreOptions::default() };
    let topology = towpath::ports::broker::Topology {
        exchanges: vec![towpath::ports::broker::Exchange {
            name: format!("{}.nowhere", part.channel),
            kind: towpath::ports::broker::ExchangeKind::Topic,
        }],
        ..Default::default()
    };
    let builder = builder(part).store_options(options).topology(topology).consumer(consumer);
    // Something may be down at the moment: then the run starts this part again.
    let _app = match builder.start().await {
        Ok(app) => app,
        Err(error) => {
            eprintln!("a worker could not start: {}", error.report());
            std::process::exit(3);
        }
    };
    std::future::pending::<()>().await;
}

async fn note_effect(mut delivery: Delivery, instance: String) -> Result<Next, HandlerError> {
    let order = delivery.event.aggregate.as_ref().unwrap().id.to_string();
    let version = delivery.event.aggregate_version.unwrap();
    if order == POISON {
        return Err(HandlerError::transient("poisoned", "on purpose"));
    }
    // Some facts of every run: each aggregate gets that far in the first moments.
    assert!(version % 37 != 3 || delivery.attempt > 1, "a bug in a handler, on purpose");
    let sql = "INSERT INTO noted_effects (aggregate_id, version, instance) VALUES (?, ?, ?)";
    delivery.tx.execute(sql, &[&order, &format!("{version:09}"), &instance]).await?;
    Ok(delivery.handled())
}

async fn patiently<T, E: std::fmt::Debug, F: Future<Output = Result<T, E>>>(mut ask: impl FnMut() -> F) -> T {
    let mut tries = 0;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) if tries > 200 => panic!("{error:?}"),
            Err(_) => tries += 1,
        }
        tokio::task::yield_now().await;
    }
}

// A run --------------------------------------------------------------------------------------------------------

/// A database, a broker behind a proxy where it has a server, and the processes of a run.
struct Run {
    stage: Stage,
    proxy: Option<TcpProxy>,
    /// The server itself, where it belongs to this run alone.
    own_server: Option<OwnKafka>,
    folder: PathBuf,
    random: AtomicU64,
    watch: Towpath,
}

struct Process {
    child: Child,
    part: Part,
}

impl Process {
    /// `kill -9`.
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Run {
    async fn new(stage: &Stage, seed: u64) -> Self {
        let stage = stage.again();
        let (proxy, own_server) = match stage.server() {
            Some(server) => (Some(TcpProxy::to(&server).await), None),
            None => stage.own_server().await.unzip(),
        };
        let folder = std::env::temp_dir().join(format!("towpath-faults-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir_all(&folder).unwrap();
        // Only looks: it neither relays nor consumes.
        let watch = stage.fresh.builder().without_workers().start().await.unwrap();
        make_table(&watch).await;
        Self { stage, proxy, own_server, folder, random: AtomicU64::new(seed | 1), watch }
    }

    /// The next random number below a bound (xorshift: the seed makes the whole run).
    fn random(&self, below: u64) -> u64 {
        let mut state = self.random.load(Ordering::Relaxed);
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.random.store(state, Ordering::Relaxed);
        (state >> 11) % below
    }

    fn part(&self, role: &str, number: usize) -> Part {
        let broker = match &self.proxy {
            Some(proxy) => self.stage.broker_url_through(proxy.address()),
            None => self.stage.broker_url(),
        };
        Part {
            role: role.to_owned(),
            instance: format!("{role}-{number}"),
            store: self.stage.fresh.url().to_owned(),
            broker,
            channel: self.stage.channel().to_owned(),
            ledger: self.folder.join(format!("{role}-{number}.ledger")),
            facts: None,
        }
    }

    fn start(&self, part: Part) -> Process {
        let log = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.folder.join(format!("{}.log", part.instance)))
            .unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "part", "--nocapture"])
            .env(ROLE, serde_json::to_string(&part).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone().unwrap()))
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        Process { child, part }
    }

    /// What the writers were told is committed.
    fn noted(&self) -> Vec<Noted> {
        let mut noted = Vec::new();
        for entry in std::fs::read_dir(&self.folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "ledger") {
                noted.extend(read_ledger(&path));
            }
        }
        noted
    }

    /// Waits until every committed event of an aggregate that is not poisoned has an effect and nothing is under way.
    async fn settle(&self) {
        let deadline = Instant::now() + Duration::from_secs(90);
        loop {
            let standing = self.standing().await;
            match standing {
                Ok(()) => return,
                Err(missing) if Instant::now() > deadline => {
                    panic!("{missing}; logs are in {}", self.folder.display())
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Whether nothing is left to do; otherwise what is.
    async fn standing(&self) -> Result<(), String> {
        let channel = towpath::ids::ChannelName::new(self.stage.channel()).unwrap();
        let store = self.watch.store();
        let outbox = store.outbox_counts(&channel).await.map_err(|error| error.to_string())?;
        let waiting = outbox.of(OutboxStatus::New) + outbox.of(OutboxStatus::Retry);
        if waiting + outbox.of(OutboxStatus::Failed) > 0 {
            return Err(format!("the outbox is not empty: {outbox:?}"));
        }
        let commands = store.command_counts().await.map_err(|error| error.to_string())?;
        if commands.of(CommandStatus::Processing) + commands.of(CommandStatus::Pending) > 0 {
            return Err(format!("commands are under way: {commands:?}"));
        }
        let sent = outbox.of(OutboxStatus::Sent);
        let poisoned = self.watch.load::<Order>(POISON).await.ok().flatten().map_or(0, |order| order.version);
        let made = effects(&self.watch).await.len() as u64;
        if made + poisoned < sent {
            return Err(format!("{sent} events were sent, {made} took effect, {poisoned} are poisoned"));
        }
        let head = store.head().await.map_err(|error| error.to_string())?;
        if head < sent {
            return Err(format!("{sent} events were sent, {head} have a position"));
        }
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

fn read_ledger(path: &Path) -> Vec<Noted> {
    let text = std::fs::read_to_string(path).unwrap();
    let line = |line: &str| {
        let (aggregate, version) = line.split_once(' ')?;
        Some(Noted { aggregate: aggregate.to_owned(), version: version.parse().ok()? })
    };
    text.lines().map(|text| line(text).unwrap_or_else(|| panic!("{text:?} in the ledger"))).collect()
}

/// Runs text on whatever database it is.
macro_rules! on_pool {
    ($app:expr, $pool:ident => $run:expr) => {{
        let store = $app.store();
        if let Some($pool) = store.postgres_pool() {
            $run
        } else if let Some($pool) = store.mysql_pool() {
            $run
        } else {
            let $pool = store.sqlite_pool().unwrap();
            $run
        }
    }};
}

async fn make_table(app: &Towpath) {
    let number = if app.store().postgres_pool().is_some() {
        "number bigserial PRIMARY KEY"
    } else if app.store().mysql_pool().is_some() {
        "number BIGINT PRIMARY KEY AUTO_INCREMENT"
    } else {
        "number INTEGER PRIMARY KEY AUTOINCREMENT"
    };
    // No uniqueness: a double must be visible. Versions are texts, written with leading zeros.
    let sql = format!(
        "CREATE TABLE noted_effects ({number}, aggregate_id VARCHAR(64) NOT NULL, version VARCHAR(20) NOT NULL, \
         instance VARCHAR(64) NOT NULL)"
    );
    on_pool!(app, pool => { sqlx::query(sqlx::AssertSqlSafe(sql)).execute(pool).await.unwrap(); });
}

async fn effects(app: &Towpath) -> Vec<Effect> {
    let sql = "SELECT number, aggregate_id, version FROM noted_effects ORDER BY number";
    let rows: Vec<(i64, String, String)> =
        on_pool!(app, pool => patiently(|| sqlx::query_as(sql).fetch_all(pool)).await);
    rows.into_iter()
        .map(|(number, aggregate, version)| Effect {
            number: number.cast_unsigned(),
            aggregate,
            version: version.parse().unwrap(),
        })
        .collect()
}

fn seed() -> u64 {
    let given = std::env::var("TOWPATH_FAULT_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0)
}

fn kills() -> u64 {
    std::env::var("TOWPATH_FAULT_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(50)
}

async fn killed_at_random_points_nothing_is_lost_doubled_or_out_of_order(stage: &Stage) {
    let seed = seed();
    eprintln!("TOWPATH_FAULT_SEED={seed}");
    let run = Run::new(stage, seed).await;
    let mut processes = vec![
        run.start(run.part("writer", 1)),
        run.start(run.part("worker", 1)),
        run.start(run.part("worker", 2)),
    ];
    // Faults of the message itself: one that no queue wants, one that no handler can bear.
    let app = writer(&run).await;
    for command in [OrderCommand::Place { sku: "book".into() }, OrderCommand::Ship] {
        app.send::<Order>("order-unroutable", command).await.unwrap();
    }
    for command in [OrderCommand::Place { sku: "book".into() }, OrderCommand::Note] {
        app.send::<Order>(POISON, command).await.unwrap();
    }
    app.stop().await;
    let kills = kills();
    for kill in 0..kills {
        tokio::time::sleep(Duration::from_millis(30 + run.random(250))).await;
        let victim = usize::try_from(run.random(3)).unwrap();
        processes[victim].kill();
        let part = processes[victim].part.clone();
        processes[victim] = run.start(part);
        // Those that could not start because of what we did to the servers.
        for process in &mut processes {
            if let Ok(Some(_)) = process.child.try_wait() {
                *process = run.start(process.part.clone());
            }
        }
        match (kill % 10, &run.proxy) {
            (3, Some(proxy)) => proxy.cut(),
            // The broker takes messages and confirms none of them, for longer than anyone is patient.
            (6, Some(proxy)) => {
                proxy.hold_answers();
                tokio::time::sleep(Duration::from_millis(1800)).await;
                proxy.cut();
                proxy.heal();
            }
            _ => {}
        }
        if kill == kills / 3 {
            run.stage.restart_broker().await;
            if let Some(server) = &run.own_server {
                server.freeze();
                tokio::time::sleep(Duration::from_millis(3000)).await;
                server.thaw();
            }
        }
        if kill == kills * 2 / 3 {
            run.stage.restart_database().await;
        }
    }
    processes[0].kill();
    if let Some(proxy) = &run.proxy {
        proxy.heal();
    }
    for process in &mut processes[1..] {
        if let Ok(Some(_)) = process.child.try_wait() {
            *process = run.start(process.part.clone());
        }
    }
    run.settle().await;

    let noted = run.noted();
    let effects = effects(&run.watch).await;
    let complaints = audit(&noted, &effects);
    assert!(complaints.is_empty(), "seed {seed}: {complaints:?}; logs in {}", run.folder.display());
    assert!(noted.len() as u64 > kills, "there was load: {} facts in {kills} kills", noted.len());
    assert!(noted.iter().any(|noted| noted.version >= 3), "no handler has panicked");
    eprintln!("{} facts noted, {} effects, {kills} kills", noted.len(), effects.len());

    let nowhere = towpath::ids::ChannelName::new(format!("{}-nowhere", run.stage.channel())).unwrap();
    if run.stage.tells_unroutable() {
        support::eventually("the unroutable one", || async {
            let counts = run.watch.store().outbox_counts(&nowhere).await.ok()?;
            (counts.of(OutboxStatus::Failed) == 1).then_some(())
        })
        .await;
    }
    let poisoned = support::eventually("the poisoned ones", || async {
        let letters = run.watch.store().letters(&LetterFilter::default(), 0, 100).await.ok()?;
        let all_dead = letters.iter().any(|letter| letter.status == LetterStatus::Dead);
        (letters.len() == 2 && all_dead).then_some(letters)
    })
    .await;
    assert!(poisoned.iter().all(|letter| letter.status_reason.is_some()), "{poisoned:?}");
}

/// An application that only writes, with the run's channels.
async fn writer(run: &Run) -> Towpath {
    let part = run.part("once", 0);
    patiently(|| builder(&part).without_workers().start()).await
}

async fn three_instances_share_the_work_and_take_over_from_a_dead_one(stage: &Stage) {
    let run = Run::new(stage, seed()).await;
    let mut workers: Vec<Process> = (1..=3).map(|number| run.start(run.part("worker", number))).collect();
    let prefix = format!("partition/{}/", run.stage.channel());
    let shares = || async {
        let mut shares = std::collections::BTreeMap::<String, usize>::new();
        for lease in run.watch.store().leases(&prefix).await.ok()?.into_iter().filter(|lease| lease.live) {
            *shares.entry(lease.holder.to_string()).or_default() += 1;
        }
        Some(shares)
    };
    support::eventually("three shares of the partitions", || async {
        let shares = shares().await?;
        // A third each, or nearly.
        let fair = shares.values().all(|share| *share >= 16);
        (shares.values().sum::<usize>() == 64 && shares.len() == 3 && fair).then_some(())
    })
    .await;
    let writer = run.start(Part { facts: Some(500), ..run.part("writer", 1) });
    // A consumer group of three takes its time to agree.
    let within = Duration::from_secs(60);
    support::eventually_within("effects", within, || async {
        (effects(&run.watch).await.len() > 200).then_some(())
    })
    .await;

    workers[0].kill();
    let dead = Instant::now();
    support::eventually("the others have taken over", || async {
        let shares = shares().await?;
        let others =
            shares.get("worker-2").copied().unwrap_or(0) + shares.get("worker-3").copied().unwrap_or(0);
        (others == 64).then_some(())
    })
    .await;
    let took = dead.elapsed();
    assert!(
        took < LEASE * 2 + Duration::from_millis(500),
        "taking over took {took:?} with a lease of {LEASE:?}"
    );
    drop(writer);
    run.settle().await;
    assert_eq!(audit(&run.noted(), &effects(&run.watch).await), []);
}

async fn of_a_hundred_aggregates_a_poisoned_one_makes_no_other_wait(stage: &Stage) {
    let run = Run::new(stage, seed()).await;
    let app = writer(&run).await;
    // The poisoned one comes first: whoever waited for it would wait before all others.
    for order in [POISON.to_owned()].into_iter().chain((0..99).map(|number| format!("order-{number}"))) {
        app.send::<Order>(&order, OrderCommand::Place { sku: "book".into() }).await.unwrap();
        for _ in 0..3 {
            app.send::<Order>(&order, OrderCommand::Note).await.unwrap();
        }
    }
    app.stop().await;
    let _worker = run.start(run.part("worker", 1));
    support::eventually("the other ninety-nine", || async {
        (effects(&run.watch).await.len() == 99 * 4).then_some(())
    })
    .await;
    let letters = support::eventually("the poisoned one", || async {
        let letters = run.watch.store().letters(&LetterFilter::default(), 0, 100).await.ok()?;
        (letters.len() == 4).then_some(letters)
    })
    .await;
    let mut statuses: Vec<LetterStatus> = letters.iter().map(|letter| letter.status).collect();
    statuses.dedup();
    assert_eq!(statuses.last(), Some(&LetterStatus::Behind), "three wait behind the first: {statuses:?}");
}
