//! A run: a database, a broker behind a proxy where it has a server, the processes, and what is audited at the end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use towpath::ids::{ChannelName, TaskId};
use towpath::lifecycle::{CommandStatus, OutboxStatus};
use towpath::ports::broker::{
    Argument, Binding, Broker as BrokerPort, Exchange, ExchangeKind, Queue, Settlement, Subscription,
    Topology,
};
use towpath::ports::store::{Inspection as _, Tasks as _};
use towpath::{Aggregate as _, EventEnvelope, TASK_KIND, Towpath, sqlx};
use towpath_testkit::broker::{OwnKafka, TcpProxy};
use towpath_testkit::ledger::{
    Complaint, Effect, Fact, Order, audit_effects, audit_log, audit_published, audit_timers,
};

use crate::errands;
use crate::parts::{BATCH, Line, POISON, Parcel, Part, ROLE, handlers, patiently, tracked, weigh};
use crate::support::delivery::Stage;

/// How many shafts a channel has; each can have a batch under way.
const SHAFTS: u64 = 4;

/// A database, a broker, and the processes of a run.
pub(crate) struct Run {
    pub(crate) stage: Stage,
    pub(crate) seed: u64,
    pub(crate) proxy: Option<TcpProxy>,
    /// Between the processes and the database, where a case wants one.
    pub(crate) database_proxy: Option<(String, TcpProxy)>,
    /// The server itself, where it belongs to this run alone.
    pub(crate) own_server: Option<OwnKafka>,
    pub(crate) folder: PathBuf,
    random: AtomicU64,
    /// How many messages may have gone out again.
    explained: AtomicU64,
    pub(crate) watch: Towpath,
    wire: Arc<dyn BrokerPort>,
}

pub(crate) struct Process {
    child: Child,
    pub(crate) part: Part,
}

impl Process {
    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stands still, with everything it holds.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Goes on as if nothing had been.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(process, signal).unwrap();
    }

    fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a run has counted.
pub(crate) struct Counted {
    pub(crate) facts: usize,
    pub(crate) noted: usize,
    pub(crate) effects: usize,
    pub(crate) repeated: usize,
    pub(crate) timers: usize,
    pub(crate) tasks: usize,
    /// Those of which the log tells.
    pub(crate) told_tasks: usize,
}

impl Run {
    pub(crate) async fn new(stage: &Stage) -> Self {
        let given = std::env::var("TOWPATH_FAULT_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
        eprintln!("TOWPATH_FAULT_SEED={seed}");
        let stage = stage.again();
        let (proxy, own_server) = match stage.server() {
            Some(server) => (Some(TcpProxy::to(&server).await), None),
            None => stage.own_server().await.unzip(),
        };
        let folder = std::env::temp_dir().join(format!("towpath-faults-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir_all(&folder).unwrap();
        // Only looks: it neither relays nor consumes.
        let watch = stage.fresh.builder().aggregate::<Parcel>().without_workers().start().await.unwrap();
        make_table(&watch).await;
        let wire = match (&own_server, &proxy) {
            (Some(_), Some(proxy)) => stage.handle_at(&stage.broker_url_through(proxy.address())).await,
            _ => stage.handle_at(&stage.broker_url()).await,
        };
        wire.declare(&wire_topology(&stage)).await.unwrap();
        Self {
            stage,
            seed,
            proxy,
            database_proxy: None,
            own_server,
            folder,
            random: AtomicU64::new(seed | 1),
            explained: AtomicU64::new(0),
            watch,
            wire,
        }
    }

    /// Puts a proxy between the processes that are started from now on and the database.
    pub(crate) async fn with_database_proxy(mut self) -> Self {
        self.database_proxy = Some(TcpProxy::before(self.stage.fresh.url()).await);
        self
    }

    /// The next random number below a bound (xorshift: the seed makes the whole run).
    pub(crate) fn random(&self, below: u64) -> u64 {
        let mut state = self.random.load(Ordering::Relaxed);
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.random.store(state, Ordering::Relaxed);
        (state >> 11) % below
    }

    /// How many messages a lease that changed hands may have made go out again: whoever had it may have published a batch
    /// and not have written it down. That also explains an instance that was too slow to keep its lease.
    async fn explained_by_leases(&self) -> u64 {
        let mut grants = 0;
        for prefix in [format!("partition/{}/", self.stage.channel()), "tracker/".to_owned()] {
            let leases = patiently(|| self.watch.store().leases(&prefix)).await;
            grants += leases.iter().map(|lease| lease.epoch - 1).sum::<u64>();
        }
        grants * u64::from(BATCH)
    }

    /// A fault after which so many workers may publish again what they had under way, and keep their leases.
    pub(crate) fn explains(&self, workers: u64) {
        self.explained.fetch_add(workers * SHAFTS * u64::from(BATCH), Ordering::Relaxed);
    }

    pub(crate) fn part(&self, role: &str, number: usize) -> Part {
        let broker = match &self.proxy {
            Some(proxy) => self.stage.broker_url_through(proxy.address()),
            None => self.stage.broker_url(),
        };
        let direct = self.stage.fresh.url();
        let store = self.database_proxy.as_ref().map_or(direct, |(url, _)| url).to_owned();
        Part {
            role: role.to_owned(),
            instance: format!("{role}-{number}"),
            store,
            broker,
            channel: self.stage.channel().to_owned(),
            ledger: self.folder.join(format!("{role}-{number}.ledger")),
            facts: None,
            dead_letters: self.stage.has_dead_letters(),
        }
    }

    pub(crate) fn start(&self, part: Part) -> Process {
        self.start_with(part, &[])
    }

    /// Starts a part with variables of its own.
    pub(crate) fn start_with(&self, part: Part, variables: &[(&str, String)]) -> Process {
        let log = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.folder.join(format!("{}.log", part.instance)))
            .unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "part", "--ignored", "--nocapture"])
            .env(ROLE, serde_json::to_string(&part).unwrap())
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone().unwrap()))
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        Process { child, part }
    }

    /// A writer and two workers.
    pub(crate) fn start_three(&self) -> Vec<Process> {
        let parts = [self.part("writer", 1), self.part("worker", 1), self.part("worker", 2)];
        parts.map(|part| self.start(part)).into()
    }

    /// Starts those again that could not start because of what was done to the servers.
    pub(crate) fn revive(&self, processes: &mut [Process]) {
        for process in processes.iter_mut().filter_map(|process| process.has_ended().then_some(process)) {
            *process = self.start(process.part.clone());
        }
    }

    /// An application that only writes, with the run's channels.
    pub(crate) async fn writer(&self) -> Towpath {
        let part = self.part("once", 0);
        patiently(|| part.builder().without_workers().start()).await
    }

    /// Whether nobody stands in the way of those who write, where one lock is for all of them.
    pub(crate) async fn can_be_written(&self) -> bool {
        let Some(pool) = self.watch.store().sqlite_pool() else { return true };
        let write = sqlx::query("DELETE FROM noted_effects WHERE number < 0").execute(pool);
        tokio::time::timeout(Duration::from_millis(500), write).await.is_ok_and(|done| done.is_ok())
    }

    /// Waits until no command is on its way that has lost its holder twice. One that loses its fourth is given up, as if it were
    /// what kills them: a run with so many kills would see that of any.
    pub(crate) async fn spare_commands(&self, processes: &mut [Process]) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while are_in_danger(&self.watch).await {
            assert!(Instant::now() < deadline, "seed {}: commands do not end", self.seed);
            self.revive(processes);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until every fact has had all its effects and nothing is under way.
    pub(crate) async fn settle(&self, processes: &mut [Process]) {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            match self.whats_left().await {
                Ok(()) => return,
                Err(missing) if Instant::now() > deadline => {
                    panic!("seed {}: {missing}; logs are in {}", self.seed, self.folder.display())
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
            self.revive(processes);
        }
    }

    /// Whether nothing is left to do; otherwise what is.
    async fn whats_left(&self) -> Result<(), String> {
        let channel = ChannelName::new(self.stage.channel()).unwrap();
        let store = self.watch.store();
        let told = |error: towpath::ports::store::StoreError| error.to_string();
        let timers = self.watch.waiting_timers(1).await.map_err(told)?;
        if let Some(timer) = timers.first() {
            return Err(format!("a timer waits: {timer:?}"));
        }
        let (weigh, errand) = (weigh(), errands::task());
        let tasks = store.task_backlog(&[weigh.name(), errand.name()]).await.map_err(told)?;
        if tasks.pending + tasks.running + tasks.queued.iter().sum::<u64>() > 0 {
            return Err(format!("tasks are not done: {tasks:?}"));
        }
        let commands = store.command_counts().await.map_err(told)?;
        if commands.of(CommandStatus::Processing) + commands.of(CommandStatus::Pending) > 0 {
            return Err(format!("commands are under way: {commands:?}"));
        }
        let outbox = store.outbox_counts(&channel).await.map_err(told)?;
        if outbox.of(OutboxStatus::New) + outbox.of(OutboxStatus::Retry) + outbox.of(OutboxStatus::Failed) > 0
        {
            return Err(format!("the outbox is not empty: {outbox:?}"));
        }
        let facts = self.log().await.len();
        let sent = outbox.of(OutboxStatus::Sent);
        if (facts as u64) < sent {
            return Err(format!("{sent} facts were sent, {facts} have a position"));
        }
        let expected = self.log().await.iter().filter(|fact| fact.aggregate != POISON).count();
        for handler in handlers(self.stage.has_dead_letters()) {
            let made = count_effects(&self.watch, handler).await;
            if made < expected as u64 {
                return Err(format!("of {expected} facts {made} took effect at {handler}"));
            }
        }
        Ok(())
    }

    /// Holds everything against everything.
    pub(crate) async fn audit(&self) -> Counted {
        let (noted, timers, tasks) = self.ledger();
        let log = self.log().await;
        let mut complaints: Vec<String> = Vec::new();
        let mut complain = |of: &str, found: Vec<Complaint>| {
            complaints.extend(found.iter().map(|complaint| format!("{of}: {complaint}")));
        };
        complain("log", audit_log(&noted, &log));
        let fired: Vec<String> = log
            .iter()
            .filter(|fact| fact.aggregate.starts_with("reminded-"))
            .map(|fact| fact.content.clone())
            .collect();
        complain("timers", audit_timers(&timers, &fired));
        let healthy: Vec<Fact> = log.iter().filter(|fact| fact.aggregate != POISON).cloned().collect();
        let mut effects_made = 0;
        for handler in handlers(self.stage.has_dead_letters()) {
            let effects = effects_of(&self.watch, handler).await;
            effects_made += effects.len();
            let order = if handler == "ordered" { Order::Kept } else { Order::Free };
            complain(handler, audit_effects(&healthy, &effects, order));
        }
        let explained = self.explained.load(Ordering::Relaxed) + self.explained_by_leases().await;
        let mut repeated = 0;
        for queue in wire_queues(self.stage.channel()) {
            let published = self.published(&queue, &log).await;
            repeated += published.len().saturating_sub(log.len());
            complain(&queue, audit_published(&log, &published, Order::Kept, explained));
        }
        let said = self.said_of_tasks().await;
        complaints.extend(complaints_of_tasks(&tasks, &said));
        complaints.truncate(20);
        assert!(
            complaints.is_empty(),
            "seed {}: {complaints:#?}; logs in {}",
            self.seed,
            self.folder.display()
        );
        let counted = Counted {
            facts: log.len(),
            noted: noted.len(),
            effects: effects_made,
            repeated,
            timers: timers.len(),
            tasks: tasks.len(),
            told_tasks: said.len(),
        };
        let Counted { facts, noted, effects, repeated, timers, told_tasks: tasks, .. } = &counted;
        eprintln!(
            "{facts} facts, {noted} noted, {effects} effects, {timers} timers, {tasks} tasks, {repeated} messages again of {explained} explained"
        );
        counted
    }

    /// What the log says of each task.
    async fn said_of_tasks(&self) -> BTreeMap<String, Vec<String>> {
        let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for event in
            self.events().await.into_iter().filter(|event| event.aggregate.kind.as_str() == TASK_KIND)
        {
            said.entry(event.aggregate.id.to_string()).or_default().push(event.event_type.to_string());
        }
        said
    }

    /// What the writers were told is committed, the timers that were scheduled, and the tasks that were started.
    fn ledger(&self) -> (Vec<Fact>, Vec<String>, Vec<TaskId>) {
        let (mut facts, mut timers, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
        for entry in std::fs::read_dir(&self.folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "ledger") {
                continue;
            }
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                match serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}")) {
                    Line::Fact { aggregate, version, text } => {
                        facts.push(Fact { aggregate, version, content: content_of(&text) });
                    }
                    Line::Timer { text } => timers.push(content_of(&text)),
                    Line::Task { task_id } => tasks.push(task_id),
                }
            }
        }
        (facts, timers, tasks)
    }

    /// The facts of the log that the run's channels take.
    async fn log(&self) -> Vec<Fact> {
        let taken = |event: &EventEnvelope| {
            event.aggregate.kind.as_str() == Parcel::KIND && event.event_type.as_str() != "parcel.lost"
        };
        let facts = self.events().await.into_iter().filter(taken).map(|event| Fact {
            aggregate: event.aggregate.id.to_string(),
            version: event.aggregate_version,
            content: event.payload.as_text().to_owned(),
        });
        facts.collect()
    }

    /// All facts of the log.
    async fn events(&self) -> Vec<EventEnvelope> {
        const PAGE: u64 = 1000;
        let store = self.watch.store();
        let mut all = Vec::new();
        let head = patiently(|| store.head()).await;
        for low in (1..=head).step_by(usize::try_from(PAGE).unwrap()) {
            let events = patiently(|| store.events_between(low, (low + PAGE - 1).min(head))).await;
            all.extend(events.into_iter().map(|event| event.envelope));
        }
        all
    }

    /// All that went out on a channel, in the order of its arrival, until every fact of the log came and nothing more
    /// does.
    async fn published(&self, queue: &str, log: &[Fact]) -> Vec<Fact> {
        let subscription = Subscription { queue: queue.to_owned(), group: queue.to_owned(), prefetch: 200 };
        let deliveries = patiently(|| self.wire.subscribe(&subscription)).await;
        let mut published = Vec::new();
        loop {
            let patience = if published.len() < log.len() { 20 } else { 1 };
            let next = tokio::time::timeout(Duration::from_secs(patience), deliveries.next()).await;
            let Ok(received) = next else { return published };
            let received = received.unwrap();
            deliveries.settle(received.tag, Settlement::Acknowledge).await.unwrap();
            let event = towpath_broker::Formats::default().read(&received, None).unwrap();
            published.push(Fact {
                aggregate: event.aggregate.unwrap().id.to_string(),
                version: event.aggregate_version.unwrap(),
                content: event.payload.as_text().to_owned(),
            });
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// Each task that was started was asked for and done once, whoever had it in the meantime.
fn complaints_of_tasks(noted: &[TaskId], said: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let lost = noted.iter().map(ToString::to_string).filter(|task_id| !said.contains_key(task_id));
    let lost = lost.map(|task_id| format!("task {task_id} is lost"));
    let is_expected = |said: &[String]| {
        let weighed = ["parcel.weighing.asked", "parcel.weighing.done"];
        said == weighed || errands::SAID_OF_TASKS.iter().any(|expected| said == expected)
    };
    let wrong = said.iter().filter(|(_, said)| !is_expected(said));
    lost.chain(wrong.map(|(task_id, said)| format!("task {task_id}: {said:?}"))).collect()
}

/// The payload that a text becomes.
fn content_of(text: &str) -> String {
    serde_json::json!({ "text": text }).to_string()
}

/// Queues of the test's own that get all that is published.
fn wire_queues(channel: &str) -> Vec<String> {
    [channel.to_owned(), tracked(channel)].iter().map(|exchange| format!("{exchange}.wire")).collect()
}

fn wire_topology(stage: &Stage) -> Topology {
    let channel = stage.channel();
    let exchanges = [channel.to_owned(), tracked(channel)];
    // Kafka's queues have no arguments, and need none to go away.
    let expires = ("x-expires".to_owned(), Argument::Number(1_200_000));
    let arguments: Vec<_> = stage.has_dead_letters().then_some(expires).into_iter().collect();
    let queue = |name: String| Queue { name, arguments: arguments.clone() };
    Topology {
        exchanges: exchanges
            .iter()
            .map(|name| Exchange { name: name.clone(), kind: ExchangeKind::Topic })
            .collect(),
        queues: wire_queues(channel).into_iter().map(queue).collect(),
        bindings: exchanges
            .iter()
            .zip(wire_queues(channel))
            .map(|(exchange, queue)| Binding {
                queue,
                exchange: exchange.clone(),
                routing_key: "#".to_owned(),
            })
            .collect(),
    }
}

/// Runs text on whatever database it is.
#[macro_export]
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
        "CREATE TABLE noted_effects ({number}, handler VARCHAR(64) NOT NULL, aggregate_id VARCHAR(64) NOT NULL, \
         version VARCHAR(20) NOT NULL, content VARCHAR(200) NOT NULL, instance VARCHAR(64) NOT NULL)"
    );
    on_pool!(app, pool => { sqlx::query(sqlx::AssertSqlSafe(sql)).execute(pool).await.unwrap(); });
}

pub(crate) async fn count_effects(app: &Towpath, handler: &str) -> u64 {
    let sql = format!("SELECT count(*) FROM noted_effects WHERE handler = '{handler}'");
    let (count,): (i64,) = on_pool!(app, pool => {
        patiently(|| sqlx::query_as(sqlx::AssertSqlSafe(sql.clone())).fetch_one(pool)).await
    });
    count.cast_unsigned()
}

/// Whether commands are on their way that have lost their holder twice.
async fn are_in_danger(app: &Towpath) -> bool {
    let sql =
        "SELECT count(*) FROM command_box WHERE recovery_count > 1 AND status IN ('PENDING', 'PROCESSING')";
    let (count,): (i64,) = on_pool!(app, pool => {
        patiently(|| sqlx::query_as(sql).fetch_one(pool)).await
    });
    count > 0
}

pub(crate) async fn effects_of(app: &Towpath, handler: &str) -> Vec<Effect> {
    let sql = format!(
        "SELECT number, aggregate_id, version, content FROM noted_effects WHERE handler = '{handler}' ORDER BY number"
    );
    let rows: Vec<(i64, String, String, String)> = on_pool!(app, pool => {
        patiently(|| sqlx::query_as(sqlx::AssertSqlSafe(sql.clone())).fetch_all(pool)).await
    });
    let effect = |(number, aggregate, version, content): (i64, String, String, String)| Effect {
        number: number.cast_unsigned(),
        fact: Fact { aggregate, version: version.parse().unwrap(), content },
    };
    rows.into_iter().map(effect).collect()
}
