//! Attempts of consumers on each database and broker: what is set aside waits its delays out, each attempt is counted once,
//! and what nobody survives ends among the dead.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::delivery::{Broker, Stage, effects, effects_of, make_table};
use support::probe::ProbeAt;
use support::{Order, OrderCommand, eventually, eventually_within};
use towpath::letters::{Letter, LetterFilter};
use towpath::ports::clock::Clock as _;
use towpath::ports::probe::Probe;
use towpath::retry::RetryPolicy;
use towpath::{
    Afterwards, Consumer, ConsumerPolicy, Delivering, DeliveringOutcome, Delivery, HandlerError, Next,
    StoreOptions, Towpath, sqlx,
};
use towpath_testkit::VirtualClock;
use towpath_testkit::broker::TcpProxy;

on_every_pair!(
    what_is_set_aside_waits_its_delays_out,
    two_instances_count_each_attempt_once_and_wait_its_delay_out,
    the_default_policy_is_what_it_says,
    a_worker_that_falls_over_is_replaced,
    a_redelivery_that_falls_over_is_replaced,
    a_row_that_somebody_else_wrote_first_is_tried_again,
    two_who_insert_one_row_both_end_well,
    a_handler_that_outlives_its_hold_is_counted_and_waits_its_delay_out,
    a_handler_waits_for_no_database_that_is_gone_without_a_word,
);

async fn place(app: &Towpath, id: &str) {
    app.send::<Order>(id, OrderCommand::Place { sku: "book".into() }).await.unwrap();
}

/// Writes one row per call.
async fn record(mut delivery: Delivery) -> Result<Next, HandlerError> {
    let id = delivery.event.event_id.to_string();
    delivery.tx.execute("INSERT INTO effects (event_id, handler) VALUES (?, ?)", &[&id, "record"]).await?;
    Ok(delivery.handled())
}

fn set_aside(immediate_retries: u32, delays: &[u64]) -> ConsumerPolicy {
    let delays = delays.iter().copied().map(Duration::from_millis).collect();
    ConsumerPolicy {
        immediate_retries,
        afterwards: Afterwards::SetAside(RetryPolicy::Fixed(delays)),
        ..ConsumerPolicy::default()
    }
}

async fn dead_letters(app: &Towpath, count: usize) -> Vec<Letter> {
    eventually_within("dead letters", Duration::from_secs(30), || async {
        let dead = app.dead_letters().list(&LetterFilter::dead(), 0, 100).await.unwrap();
        (dead.len() >= count).then_some(dead)
    })
    .await
}

/// Counts what was given up.
#[derive(Default)]
struct GivenUp(AtomicU32);

impl towpath::Watch for GivenUp {
    fn delivered(&self, delivering: &Delivering<'_>) {
        if matches!(delivering.outcome, DeliveringOutcome::GivenUp { .. }) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A handler that always fails, and when it was called.
fn failing(
    called: &Arc<Mutex<Vec<(Instant, u32)>>>,
) -> impl Fn(Delivery) -> std::future::Ready<Result<Next, HandlerError>> + Send + Sync + 'static {
    let called = Arc::clone(called);
    move |delivery: Delivery| {
        called.lock().unwrap().push((Instant::now(), delivery.attempt));
        std::future::ready(Err(HandlerError::transient("not-today", "never works")))
    }
}

const DELAYS: [u64; 3] = [300, 500, 700];

fn assert_waited(called: &[(Instant, u32)]) {
    let attempts: Vec<u32> = called.iter().map(|(_, attempt)| *attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4], "one after the other, each once");
    for (pair, delay) in called.windows(2).zip(DELAYS) {
        let waited = pair[1].0 - pair[0].0;
        assert!(waited >= Duration::from_millis(delay), "attempt {} came after {waited:?}", pair[1].1);
    }
}

async fn what_is_set_aside_waits_its_delays_out(stage: &Stage) {
    let (called, given_up) = (Arc::default(), Arc::new(GivenUp::default()));
    let consumer = Consumer::of(stage.channel()).with(set_aside(0, &DELAYS)).each("broken", failing(&called));
    let app = stage.app_watched_by(given_up.clone(), [consumer]).await;
    place(&app, "order-1").await;
    let dead = dead_letters(&app, 1).await;
    assert_waited(&called.lock().unwrap());
    assert_eq!(dead[0].retry_count, 4);
    app.stop().await;
    assert_eq!(given_up.0.load(Ordering::SeqCst), 1, "it was given up once");
}

/// Between the end of the handler's transaction and the moment its failure is written down there is time for the other.
async fn two_instances_count_each_attempt_once_and_wait_its_delay_out(stage: &Stage) {
    let (called, given_up) = (Arc::default(), Arc::new(GivenUp::default()));
    let mut apps = Vec::new();
    for _ in 0..2 {
        let probe = ProbeAt::new("inbox.fail", || std::thread::sleep(Duration::from_millis(150)));
        probe.arm(u32::MAX);
        let options = StoreOptions { probe: Arc::new(probe), ..StoreOptions::default() };
        let consumer =
            Consumer::of(stage.channel()).with(set_aside(0, &DELAYS)).each("broken", failing(&called));
        let builder = stage.builder().topology(stage.topology(false)).watch(given_up.clone());
        apps.push(builder.store_options(options).consumer(consumer).start().await.unwrap());
    }
    place(&apps[0], "order-1").await;
    let dead = dead_letters(&apps[0], 1).await;
    assert_waited(&called.lock().unwrap());
    assert_eq!(dead[0].retry_count, 4);
    for app in apps {
        app.stop().await;
    }
    assert_eq!(given_up.0.load(Ordering::SeqCst), 1, "it was given up once");
}

/// Counts how often the redelivery looks.
#[derive(Default)]
struct Looks(AtomicU32);

impl Probe for Looks {
    fn before(&self, statement: &'static str) {
        if statement == "letters.next_due" {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Three attempts at once, then after 5 and 30 seconds and 2 minutes, each not a millisecond before its time.
async fn the_default_policy_is_what_it_says(stage: &Stage) {
    let (clock, looks) = (Arc::new(VirtualClock::new()), Arc::new(Looks::default()));
    let called = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let (clock, called) = (Arc::clone(&clock), Arc::clone(&called));
        move |_: Delivery| {
            called.lock().unwrap().push((clock.now() - VirtualClock::start()).num_milliseconds());
            std::future::ready(Err(HandlerError::transient("not-today", "never works")))
        }
    };
    let options = StoreOptions { probe: looks.clone(), ..StoreOptions::default() };
    let app = stage
        .builder()
        .topology(stage.topology(false))
        .clock(clock.clone())
        .store_options(options)
        .consumer(Consumer::of(stage.channel()).each("broken", handler))
        .start()
        .await
        .unwrap();
    place(&app, "order-1").await;
    let mut expected = vec![0, 0, 0];
    let until = |count: usize| {
        let called = Arc::clone(&called);
        eventually("an attempt", move || {
            let called = Arc::clone(&called);
            async move { (called.lock().unwrap().len() >= count).then_some(()) }
        })
    };
    until(3).await;
    let aside = |failures: usize| {
        let app = &app;
        async move {
            let letters = app.dead_letters().list(&LetterFilter::default(), 0, 10).await.unwrap();
            letters.iter().any(|letter| letter.retry_count as usize == failures).then_some(())
        }
    };
    for (delay, at) in [(5_000, 5_000), (30_000, 35_000), (120_000, 155_000)] {
        let failures = expected.len();
        eventually("it is set aside", || aside(failures)).await;
        clock.advance(Duration::from_millis(delay - 1));
        let seen = looks.0.load(Ordering::SeqCst);
        let looked = || async { (looks.0.load(Ordering::SeqCst) > seen + 10).then_some(()) };
        eventually_within("it was looked for", Duration::from_secs(20), looked).await;
        clock.advance(Duration::from_millis(1));
        expected.push(at);
        until(expected.len()).await;
    }
    let dead = dead_letters(&app, 1).await;
    assert_eq!(*called.lock().unwrap(), expected);
    assert_eq!((dead[0].retry_count, dead[0].status_reason.as_deref()), (6, Some("not-today")));
    app.stop().await;
}

async fn app_that_panics_before(stage: &Stage, statement: &'static str, consumer: Consumer) -> Towpath {
    let probe = ProbeAt::new(statement, || panic!("a bug of ours, on purpose"));
    probe.arm(1);
    let options = StoreOptions { probe: Arc::new(probe), ..StoreOptions::default() };
    let app = stage.app_with_connections(options, [consumer]).await;
    make_table(&app).await;
    app
}

async fn a_worker_that_falls_over_is_replaced(stage: &Stage) {
    let policy = ConsumerPolicy { concurrency: 1, in_order: true, ..set_aside(0, &[20]) };
    let consumer = Consumer::of(stage.channel()).with(policy).each("record", record);
    let app = app_that_panics_before(stage, "inbox.mark_all", consumer).await;
    for id in ["order-1", "order-2"] {
        place(&app, id).await;
    }
    let both = || async { (effects(&app).await.len() == 2).then_some(()) };
    eventually_within("both are handled", Duration::from_secs(40), both).await;
    app.stop().await;
}

async fn a_redelivery_that_falls_over_is_replaced(stage: &Stage) {
    let policy = ConsumerPolicy { concurrency: 1, ..set_aside(0, &[20, 20]) };
    let handler = |delivery: Delivery| async move {
        if delivery.attempt == 1 {
            return Err(HandlerError::transient("not-yet", "the first time never works"));
        }
        record(delivery).await
    };
    let consumer = Consumer::of(stage.channel()).with(policy).each("record", handler);
    let app = app_that_panics_before(stage, "letters.take", consumer).await;
    place(&app, "order-1").await;
    let one = || async { (effects(&app).await.len() == 1).then_some(()) };
    eventually_within("it is handled", Duration::from_secs(40), one).await;
    app.stop().await;
}

const ONCE: &str = "CREATE TABLE once_only (name VARCHAR(64) NOT NULL PRIMARY KEY)";

/// By which of the two ways a handler writes.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Texts,
    OwnTables,
}

async fn insert(delivery: &mut Delivery, way: Way, name: &str) -> Result<(), HandlerError> {
    let sql = "INSERT INTO once_only (name) VALUES (?)";
    match way {
        Way::Texts => delivery.tx.execute(sql, &[name]).await?,
        Way::OwnTables => {
            delivery
                .tx
                .own_tables()
                .execute("test.once", sql, vec![towpath::tables::Value::from(name)])
                .await?
        }
    };
    Ok(())
}

async fn a_row_that_somebody_else_wrote_first_is_tried_again(stage: &Stage) {
    let handler = |way: Way| {
        move |mut delivery: Delivery| async move {
            // The second time it looks, so to say.
            if delivery.attempt == 1 {
                insert(&mut delivery, way, "taken").await?;
            }
            record(delivery).await
        }
    };
    let app = stage
        .app([
            Consumer::of(stage.channel()).with(set_aside(1, &[20])).each("record", handler(Way::Texts)),
            Consumer::of(stage.channel()).with(set_aside(1, &[20])).each("follow", handler(Way::OwnTables)),
        ])
        .await;
    app.store().own_execute("test.table", ONCE, Vec::new()).await.unwrap();
    let taken = "INSERT INTO once_only (name) VALUES ('taken')";
    app.store().own_execute("test.taken", taken, Vec::new()).await.unwrap();
    place(&app, "order-1").await;
    eventually("both are handled", || async { (effects_of(&app, "record").await == 2).then_some(()) }).await;
    let letters = app.dead_letters().list(&LetterFilter::default(), 0, 10).await.unwrap();
    assert_eq!(letters, [], "neither was given up or set aside");
    app.stop().await;
}

/// Both see that the row is missing, then both insert it.
async fn two_who_insert_one_row_both_end_well(stage: &Stage) {
    let together = Arc::new(tokio::sync::Barrier::new(2));
    let handler = |way: Way| {
        let together = Arc::clone(&together);
        move |mut delivery: Delivery| {
            let together = Arc::clone(&together);
            async move {
                let id = delivery.event.event_id.to_string();
                let sql = "SELECT name FROM once_only WHERE name = ?";
                let name = vec![towpath::tables::Value::from(id.clone())];
                let there = !delivery.tx.own_tables().rows("test.look", sql, name).await?.is_empty();
                if delivery.attempt == 1 {
                    // On SQLite the other one cannot look before this one has ended.
                    let _ = tokio::time::timeout(Duration::from_millis(500), together.wait()).await;
                }
                if !there {
                    insert(&mut delivery, way, &id).await?;
                }
                record(delivery).await
            }
        }
    };
    let app = stage
        .app([
            Consumer::of(stage.channel()).with(set_aside(1, &[20])).each("record", handler(Way::Texts)),
            Consumer::of(stage.channel()).with(set_aside(1, &[20])).each("follow", handler(Way::OwnTables)),
        ])
        .await;
    app.store().own_execute("test.table", ONCE, Vec::new()).await.unwrap();
    place(&app, "order-1").await;
    eventually("both are handled", || async { (effects_of(&app, "record").await == 2).then_some(()) }).await;
    let letters = app.dead_letters().list(&LetterFilter::default(), 0, 10).await.unwrap();
    assert_eq!(letters, [], "neither was given up");
    app.stop().await;
}

/// Gives the others time to take what is not held any more.
#[derive(Default)]
struct Latecomers {
    looks: AtomicU32,
    takes: AtomicU32,
    looked: tokio::sync::Notify,
    /// An attempt has failed, and nothing is written down of it yet.
    failed: AtomicBool,
}

impl Probe for Latecomers {
    fn before(&self, statement: &'static str) {
        match statement {
            "letters.next_due" => {
                self.looks.fetch_add(1, Ordering::SeqCst);
                self.looked.notify_one();
            }
            "letters.take" => drop(self.takes.fetch_add(1, Ordering::SeqCst)),
            "letters.held" | "letters.release" if self.failed.swap(false, Ordering::SeqCst) => {
                // On SQLite nobody can take anything now; there they have been waiting for their turn before.
                let (begun, seen) = (Instant::now(), self.takes.load(Ordering::SeqCst));
                while self.takes.load(Ordering::SeqCst) < seen + 5
                    && begun.elapsed() < Duration::from_millis(500)
                {
                    std::thread::yield_now();
                }
            }
            _ => {}
        }
    }
}

/// The hold of a letter ends while its handler runs; with the handler's transaction its lock is gone, too, and everybody else
/// of this process looks for letters that are due.
async fn a_handler_that_outlives_its_hold_is_counted_and_waits_its_delay_out(stage: &Stage) {
    let (clock, others) = (Arc::new(VirtualClock::new()), Arc::new(Latecomers::default()));
    // When it was called, when it ended, and the how manieth attempt it was told.
    let called = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let (clock, called, others) = (Arc::clone(&clock), Arc::clone(&called), Arc::clone(&others));
        move |delivery: Delivery| {
            let (clock, called, others) = (Arc::clone(&clock), Arc::clone(&called), Arc::clone(&others));
            async move {
                let begun = clock.now();
                if delivery.attempt > 1 {
                    clock.advance(Duration::from_secs(60));
                    let seen = others.looks.load(Ordering::SeqCst);
                    let looks = async {
                        while others.looks.load(Ordering::SeqCst) < seen + 5 {
                            others.looked.notified().await;
                        }
                    };
                    // Those who wait for this one's turn to end look no more.
                    let _ = tokio::time::timeout(Duration::from_secs(2), looks).await;
                    others.failed.store(true, Ordering::SeqCst);
                }
                called.lock().unwrap().push((begun, clock.now(), delivery.attempt));
                Err(HandlerError::transient("not-today", "never works"))
            }
        }
    };
    let policy = ConsumerPolicy { concurrency: 8, ..set_aside(0, &DELAYS) };
    let app = stage
        .builder()
        .topology(stage.topology(false))
        .clock(clock.clone())
        .store_options(StoreOptions { probe: others.clone(), ..StoreOptions::default() })
        .consumer(Consumer::of(stage.channel()).with(policy).each("broken", handler))
        .start()
        .await
        .unwrap();
    place(&app, "order-1").await;
    for (failures, delay) in (1..).zip(DELAYS) {
        let set_aside = || async {
            let letters = app.dead_letters().list(&LetterFilter::default(), 0, 10).await.unwrap();
            let now = clock.now();
            letters
                .iter()
                .any(|letter| letter.retry_count >= failures && letter.due_at > Some(now))
                .then_some(())
        };
        eventually_within("it is set aside", Duration::from_secs(20), set_aside).await;
        clock.advance(Duration::from_millis(delay));
    }
    let dead = dead_letters(&app, 1).await;
    let called = called.lock().unwrap().clone();
    let attempts: Vec<u32> = called.iter().map(|(_, _, attempt)| *attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4], "one after the other, each once");
    for (pair, delay) in called.windows(2).zip(DELAYS) {
        let waited = (pair[1].0 - pair[0].1).num_milliseconds();
        assert!(waited >= delay as i64, "attempt {} came after {waited} ms", pair[1].2);
    }
    assert_eq!((dead[0].retry_count, dead[0].status_reason.as_deref()), (4, Some("not-today")));
    app.stop().await;
}

/// A statement on the connection itself, which has no time limit.
async fn ask(delivery: &mut Delivery) -> Result<(), HandlerError> {
    let query = "SELECT 1";
    match delivery.tx.postgres() {
        Ok(connection) => sqlx::query(query).execute(connection).await?.rows_affected(),
        Err(_) => sqlx::query(query).execute(delivery.tx.mysql()?).await?.rows_affected(),
    };
    Ok(())
}

async fn a_handler_waits_for_no_database_that_is_gone_without_a_word(stage: &Stage) {
    if stage.fresh.url().starts_with("sqlite:") {
        return;
    }
    let (url, proxy) = TcpProxy::before(stage.fresh.url()).await;
    let proxy = Arc::new(proxy);
    // It goes past the proxy, and only looks.
    let directly = stage.builder().topology(stage.topology(false)).without_workers().start().await.unwrap();
    make_table(&directly).await;
    let handler = |on_the_connection: bool| {
        let (proxy, stranded) = (Arc::clone(&proxy), Arc::new(AtomicBool::new(false)));
        move |mut delivery: Delivery| {
            let (proxy, stranded) = (Arc::clone(&proxy), Arc::clone(&stranded));
            async move {
                if !stranded.swap(true, Ordering::SeqCst) {
                    proxy.strand();
                    if on_the_connection {
                        ask(&mut delivery).await?;
                    }
                }
                record(delivery).await
            }
        }
    };
    for on_the_connection in [false, true] {
        let options = StoreOptions {
            statement_timeout: Duration::from_secs(1),
            // The server is there after all, and has to find out that nobody goes on with that transaction.
            idle_transaction_timeout: Duration::from_secs(1),
            ..StoreOptions::default()
        };
        let policy = ConsumerPolicy { concurrency: 1, ..set_aside(5, &[20, 20]) };
        let consumer = Consumer::of(stage.channel()).with(policy).each("record", handler(on_the_connection));
        let builder = stage.builder().store(&url).topology(stage.topology(false)).store_options(options);
        let app = builder.consumer(consumer).start().await.unwrap();
        place(&app, &format!("order-{on_the_connection}")).await;
        let effects = 1 + usize::from(on_the_connection);
        let handled = || async { (self::effects(&directly).await.len() == effects).then_some(()) };
        eventually_within("it is handled", Duration::from_secs(30), handled).await;
        app.stop().await;
    }
    directly.stop().await;
}

/// Messages that end the process which handles them.
mod deadly {
    use super::*;

    on_pairs_with_dead_letters!(a_message_that_kills_the_process_ends_among_the_dead);

    /// Tells this test binary that it is the child.
    const CHILD: &str = "TOWPATH_DEADLY_CHILD";

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Part {
        store: String,
        broker: String,
        channel: String,
        ledger: PathBuf,
    }

    /// The other side of this binary: does nothing when it runs among the tests.
    #[test]
    #[ignore = "not a test: the process that others start"]
    fn child() {
        let Ok(part) = std::env::var(CHILD) else { return };
        let part: Part = serde_json::from_str(&part).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        runtime.block_on(async {
            let ledger = part.ledger.clone();
            let handler = move |delivery: Delivery| {
                let ledger = ledger.clone();
                async move {
                    let id = delivery.event.aggregate.as_ref().unwrap().id.to_string();
                    if id == "order-deadly" {
                        let mut file =
                            std::fs::OpenOptions::new().append(true).create(true).open(ledger).unwrap();
                        file.write_all(b"one more\n").unwrap();
                        std::process::abort();
                    }
                    record(delivery).await
                }
            };
            let stage = Stage::at(&part.store, &part.broker, &part.channel);
            let consumer =
                Consumer::of(stage.channel()).with(set_aside(1, &[20, 20])).each("record", handler);
            let builder = stage.builder().topology(stage.topology(false)).lease(Duration::from_secs(1));
            let _app = builder.consumer(consumer).start().await.unwrap();
            // Until it dies or its parent ends it.
            std::future::pending::<()>().await;
        });
    }

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn start(part: &Part) -> Killed {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "deadly::child", "--ignored", "--nocapture"])
            .env(CHILD, serde_json::to_string(part).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Killed(child)
    }

    fn runs(ledger: &Path) -> usize {
        std::fs::read_to_string(ledger).map_or(0, |text| text.lines().count())
    }

    async fn a_message_that_kills_the_process_ends_among_the_dead(stage: &Stage) {
        const OTHERS: usize = 12;
        let folder = tempfile::tempdir().unwrap();
        let part = Part {
            store: stage.fresh.url().to_owned(),
            broker: stage.broker_url(),
            channel: stage.channel().to_owned(),
            ledger: folder.path().join("ledger"),
        };
        // It only writes and looks.
        let app = stage.builder().topology(stage.topology(false)).without_workers().start().await.unwrap();
        make_table(&app).await;
        for number in 0..OTHERS {
            place(&app, &format!("order-{number}")).await;
        }
        place(&app, "order-deadly").await;
        let mut child = start(&part);
        let ended =
            eventually_within("it is dead and the others are through", Duration::from_secs(90), || {
                if let Ok(Some(_)) = child.0.try_wait() {
                    assert!(runs(&part.ledger) < 12, "it comes for ever");
                    child = start(&part);
                }
                async {
                    let all = app.dead_letters().list(&LetterFilter::dead(), 0, 10).await.unwrap();
                    (!all.is_empty() && effects(&app).await.len() == OTHERS).then_some(all)
                }
            })
            .await;
        assert_eq!(ended.len(), 1, "nothing else is dead: {ended:?}");
        assert_eq!(ended[0].letter.message.key.as_deref(), Some("order/order-deadly"));
        // The first run of all leaves no trace; then there are as many as the policy has.
        assert!(runs(&part.ledger) <= 1 + 4, "{} runs", runs(&part.ledger));
        assert!(effects(&app).await.values().all(|count| *count == 1));
        drop(child);
        app.stop().await;
    }
}
