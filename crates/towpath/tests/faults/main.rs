//! Faults, on real servers: processes killed at random points under load or put to sleep, connections cut and held, servers
//! restarted, clocks that jump, disks that fill up. After each run an auditor that counts on its own finds every committed
//! fact delivered, every effect once and as it was written, the order of each aggregate intact, every task done once, every process at
//! its end, nothing that was never committed, and nothing stuck.
//!
//! `parts` are the processes of a run, `run` is a run and its audit. A run is seeded; TOWPATH_FAULT_SEED repeats one,
//! TOWPATH_FAULT_KILLS makes it longer (`cargo xtask torture` does both).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]
#![allow(clippy::print_stderr, reason = "a run tells its seed and what it counted")]

#[path = "../support/mod.rs"]
#[macro_use]
mod support;

mod errands;
mod parts;
#[macro_use]
mod run;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use parts::{LEASE, POISON, Parcel, ParcelCommand, Part, ROLE, STATEMENT_TIMEOUT, patiently};
use run::{Process, Run, count_effects};
use support::delivery::{Broker, Stage};
use towpath::letters::LetterFilter;
use towpath::lifecycle::{LetterStatus, OutboxStatus};
use towpath::ports::store::Inspection as _;
use towpath::sqlx;

/// On every pair; the default run leaves Kafka with two of the databases, and RabbitMQ with SQLite, to
/// `cargo xtask torture`.
macro_rules! on_most_pairs {
    ($($case:ident),+ $(,)?) => {
        on_every_pair!(@broker local, Local, $($case),+);
        mod rabbitmq {
            on_every_pair!(@with [#[ignore = "cargo xtask torture runs it"]] sqlite, RabbitMq, $($case),+);
            on_every_pair!(@database postgres, RabbitMq, $($case),+);
            on_every_pair!(@database mysql, RabbitMq, $($case),+);
        }
        #[cfg(feature = "kafka")]
        mod kafka {
            on_every_pair!(@database postgres, Kafka, $($case),+);
            on_every_pair!(@with [#[ignore = "cargo xtask torture runs it"]] sqlite, Kafka, $($case),+);
            on_every_pair!(@with [#[ignore = "cargo xtask torture runs it"]] mysql, Kafka, $($case),+);
        }
    };
}

on_most_pairs!(
    killed_at_random_points_nothing_is_lost_doubled_or_out_of_order,
    three_instances_share_the_work_and_take_over_from_a_dead_one,
    of_a_hundred_aggregates_a_poisoned_one_makes_no_other_wait,
);

/// Makes tests of cases that need not run on every pair.
macro_rules! on_pairs {
    ($($case:ident: $($name:ident on $database:literal with $broker:ident),+;)+) => {$(
        mod $case {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
                async fn $name() {
                    let stage = super::Stage::new($database, super::Broker::$broker).await;
                    super::$case(&stage).await;
                }
            )+
        }
    )+};
}

on_pairs!(
    workers_that_sleep_beyond_their_lease_spoil_nothing:
        postgres_and_rabbitmq on "postgres" with RabbitMq,
        postgres_in_process on "postgres" with Local,
        mariadb_and_rabbitmq on "mysql" with RabbitMq,
        sqlite_in_process on "sqlite" with Local;
    leases_from_an_older_copy_of_the_database_spoil_nothing:
        postgres_and_rabbitmq on "postgres" with RabbitMq,
        mariadb_in_process on "mysql" with Local;
    database_connections_that_hang_half_open_are_left:
        postgres_and_rabbitmq on "postgres" with RabbitMq,
        mariadb_in_process on "mysql" with Local;
    clocks_that_jump_by_a_week_spoil_nothing:
        postgres_and_rabbitmq on "postgres" with RabbitMq,
        mariadb_in_process on "mysql" with Local;
    processes_go_to_their_end_once_however_often_they_are_killed:
        postgres_and_rabbitmq on "postgres" with RabbitMq,
        mariadb_in_process on "mysql" with Local,
        sqlite_in_process on "sqlite" with Local;
    processes_go_to_their_end_once_although_workers_sleep_beyond_their_lease:
        postgres_and_rabbitmq on "postgres" with RabbitMq;
    a_broker_that_raises_its_alarm_under_load_is_waited_for:
        postgres_and_rabbitmq on "postgres" with RabbitMq;
);

/// The other side of this binary: does nothing when it runs among the tests.
#[test]
#[ignore = "not a test: the process that others start"]
fn part() {
    let Ok(part) = std::env::var(ROLE) else { return };
    let part: Part = serde_json::from_str(&part).unwrap();
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(part.play());
}

/// How many faults a run has.
fn kills() -> u64 {
    std::env::var("TOWPATH_FAULT_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(24)
}

/// Lets the run go on for a random while: that is how long it takes, and nothing is waited for.
async fn a_while(run: &Run, least: u64, random: u64) {
    tokio::time::sleep(Duration::from_millis(least + run.random(random))).await;
}

/// Ends the writer, lets the others finish, and audits. Answers the workers, who go on with what the audit does not wait for.
async fn end(run: &Run, mut processes: Vec<Process>) -> Vec<Process> {
    let mut workers = processes.split_off(1);
    drop(processes);
    run.settle(&mut workers).await;
    let counted = run.audit().await;
    let has_load = counted.noted > 20 && counted.timers > 0 && counted.tasks > 0;
    assert!(has_load, "there was load: {} facts", counted.noted);
    workers
}

async fn killed_at_random_points_nothing_is_lost_doubled_or_out_of_order(stage: &Stage) {
    let run = Run::new(stage).await;
    let mut processes = run.start_three();
    // Faults of the message itself: one that no queue wants, one that no handler can bear.
    let app = run.writer().await;
    app.send::<Parcel>("parcel-unroutable", ParcelCommand::Lose).await.unwrap();
    for number in 0..2 {
        let text = format!("poison/{number}");
        app.send::<Parcel>(POISON, ParcelCommand::Note { text }).await.unwrap();
    }
    app.stop().await;
    let kills = kills();
    for kill in 0..kills {
        a_while(&run, 30, 250).await;
        let victim = usize::try_from(run.random(3)).unwrap();
        processes[victim].kill();
        let part = processes[victim].part.clone();
        processes[victim] = run.start(part);
        run.revive(&mut processes);
        match (kill % 10, &run.proxy) {
            (3, Some(proxy)) => {
                proxy.cut();
                run.explains(2);
            }
            // The broker takes messages and confirms none of them, for longer than anyone is patient.
            (6, Some(proxy)) => {
                proxy.hold_answers();
                tokio::time::sleep(Duration::from_millis(1800)).await;
                proxy.cut();
                proxy.heal();
                run.explains(4);
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
            run.explains(4);
        }
        if kill == kills * 2 / 3 {
            run.stage.restart_database().await;
            run.explains(2);
        }
    }
    let _workers = end(&run, processes).await;

    let nowhere = towpath::ids::ChannelName::new(format!("{}-nowhere", run.stage.channel())).unwrap();
    if run.stage.tells_unroutable() {
        support::eventually("the unroutable one", || async {
            let counts = run.watch.store().outbox_counts(&nowhere).await.ok()?;
            (counts.of(OutboxStatus::Failed) == 1).then_some(())
        })
        .await;
    }
    poisoned_letters(&run, 2).await;
}

/// Waits until each handler has so many letters of the poisoned aggregate, and the first of each is given up.
async fn poisoned_letters(run: &Run, count: usize) {
    let handlers = parts::handlers(run.stage.has_dead_letters());
    support::eventually_within("the poisoned ones", Duration::from_secs(60), || async {
        let letters = run.watch.store().letters(&LetterFilter::default(), 0, 1000).await.ok()?;
        let open: Vec<_> = letters
            .iter()
            .filter(|letter| matches!(letter.status, LetterStatus::Dead | LetterStatus::Behind))
            .collect();
        let of_handler = |handler: &str| {
            let own = open
                .iter()
                .filter(|letter| letter.letter.handler.as_ref().is_some_and(|own| own.as_str() == handler));
            own.count()
        };
        // What the broker itself gave up belongs to no handler. A copy that was published again is given up by itself.
        let by_store = handlers.iter().filter(|handler| **handler != "requeued");
        let all = by_store.clone().all(|handler| of_handler(handler) == count);
        let of_broker = open.iter().filter(|letter| letter.letter.handler.is_none());
        let given_up: BTreeSet<_> =
            of_broker.clone().map(|letter| letter.letter.message.message_id.clone()).collect();
        let by_broker = if run.stage.has_dead_letters() { count } else { 0 };
        let others = open.len() - of_broker.count();
        let all = all && given_up.len() == by_broker && others == by_store.count() * count;
        (all && open.iter().all(|letter| letter.status_reason.is_some())).then_some(())
    })
    .await;
}

async fn three_instances_share_the_work_and_take_over_from_a_dead_one(stage: &Stage) {
    let run = Run::new(stage).await;
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
    let writer = run.start(Part { facts: Some(250), ..run.part("writer", 1) });
    // A consumer group of three takes its time to agree.
    let within = Duration::from_secs(60);
    support::eventually_within("effects", within, || async {
        (count_effects(&run.watch, "ordered").await > 200).then_some(())
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
    // The dead one stays dead.
    run.settle(&mut workers[1..]).await;
    run.audit().await;
}

async fn of_a_hundred_aggregates_a_poisoned_one_makes_no_other_wait(stage: &Stage) {
    let run = Run::new(stage).await;
    let app = run.writer().await;
    // The poisoned one comes first: whoever waited for it would wait before all others.
    for parcel in [POISON.to_owned()].into_iter().chain((0..99).map(|number| format!("parcel-{number}"))) {
        for number in 0..4 {
            let text = format!("{parcel}/{number}");
            app.send::<Parcel>(&parcel, ParcelCommand::Note { text }).await.unwrap();
        }
    }
    app.stop().await;
    let mut workers = vec![run.start(run.part("worker", 1))];
    run.settle(&mut workers).await;
    // Nothing was disturbed, so nothing may go out twice.
    run.audit().await;
    poisoned_letters(&run, 4).await;
}

async fn workers_that_sleep_beyond_their_lease_spoil_nothing(stage: &Stage) {
    let run = Run::new(stage).await;
    let mut processes = run.start_three();
    let mut taken_over = 0;
    for _ in 0..kills() / 8 {
        a_while(&run, 100, 900).await;
        let sleeper = 1 + usize::try_from(run.random(2)).unwrap();
        taken_over += u64::from(sleep_beyond_the_lease(&run, &mut processes, sleeper).await);
    }
    assert!(taken_over > 0, "no sleeper was taken over from");
    end(&run, processes).await;
}

/// Puts one that has leases to sleep for longer than they last, and for longer than the worker of a task may be silent. Answers
/// whether it was taken over from.
async fn sleep_beyond_the_lease(run: &Run, processes: &mut [Process], sleeper: usize) -> bool {
    let prefix = format!("partition/{}/", run.stage.channel());
    let name = processes[sleeper].part.instance.clone();
    // How many it has, and how many others have.
    let shares = async || {
        let leases = run.watch.store().leases(&prefix).await.ok()?;
        let live = leases.iter().filter(|lease| lease.live);
        let own = live.clone().filter(|lease| lease.holder.as_str() == name).count();
        Some((own, live.count() - own))
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while shares().await.is_none_or(|(own, _)| own == 0) {
        assert!(Instant::now() < deadline, "seed {}: {name} gets no leases", run.seed);
        run.revive(processes);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    processes[sleeper].stop();
    // With the lock of SQLite's one file it would let everybody wait, and nobody could take over.
    while !run.can_be_written().await {
        assert!(Instant::now() < deadline, "seed {}: {name} never lets others write", run.seed);
        processes[sleeper].go_on();
        a_while(run, 10, 40).await;
        processes[sleeper].stop();
    }
    // As long as it takes until its leases have run out and the other may have taken them.
    tokio::time::sleep(LEASE * 2).await;
    let taken_over = shares().await.is_some_and(|(own, others)| own == 0 && others > 0);
    processes[sleeper].go_on();
    taken_over
}

async fn leases_from_an_older_copy_of_the_database_spoil_nothing(stage: &Stage) {
    let run = Run::new(stage).await;
    let mut processes = run.start_three();
    support::eventually("the work is shared", || async {
        (count_effects(&run.watch, "ordered").await > 50).then_some(())
    })
    .await;
    for turn in 0..kills() / 12 {
        for sql in ["DROP TABLE IF EXISTS older_leases", "CREATE TABLE older_leases AS SELECT * FROM leases"]
        {
            on_pool!(run.watch, pool => { patiently(|| sqlx::query(sql).execute(pool)).await; });
        }
        // Since the copy the leases change hands: one dies and comes back, the other sleeps and holds what it held.
        let (dies, sleeps) = if turn % 2 == 0 { (1, 2) } else { (2, 1) };
        processes[dies].kill();
        tokio::time::sleep(LEASE * 2).await;
        on_pool!(run.watch, pool => {
            patiently(|| async {
                let mut tx = pool.begin().await?;
                sqlx::query("DELETE FROM leases").execute(&mut *tx).await?;
                sqlx::query("INSERT INTO leases SELECT * FROM older_leases").execute(&mut *tx).await?;
                tx.commit().await
            })
            .await;
        });
        // Asleep it would keep rows of the table locked; it goes by what it was granted before.
        processes[sleeps].stop();
        let part = processes[dies].part.clone();
        processes[dies] = run.start(part);
        a_while(&run, 500, 2000).await;
        processes[sleeps].go_on();
        run.explains(2);
        a_while(&run, 500, 1000).await;
    }
    end(&run, processes).await;
}

/// Each errand is begun, done by a worker, undone again and ended: once each, in all that it told others.
async fn processes_go_to_their_end_once_however_often_they_are_killed(stage: &Stage) {
    let run = Run::new(stage).await;
    let mut workers = start_errands(&run);
    let spoil = async {
        for kill in 0..kills() / 2 {
            a_while(&run, 100, 300).await;
            run.spare_commands(&mut workers).await;
            let victim = usize::try_from(run.random(2)).unwrap();
            workers[victim].kill();
            let part = workers[victim].part.clone();
            workers[victim] = run.start(part);
            run.revive(&mut workers);
            if let Some(proxy) = run.proxy.as_ref().filter(|_| kill % 4 == 3) {
                proxy.cut();
                run.explains(2);
            }
        }
    };
    let count = errands::begin_during(&run, spoil).await;
    errands::end(&run, workers, count).await;
}

async fn processes_go_to_their_end_once_although_workers_sleep_beyond_their_lease(stage: &Stage) {
    let run = Run::new(stage).await;
    let mut workers = start_errands(&run);
    let mut taken_over = 0;
    let spoil = async {
        for _ in 0..kills() / 12 {
            a_while(&run, 100, 900).await;
            let sleeper = usize::try_from(run.random(2)).unwrap();
            taken_over += u64::from(sleep_beyond_the_lease(&run, &mut workers, sleeper).await);
        }
    };
    let count = errands::begin_during(&run, spoil).await;
    assert!(taken_over > 0, "no sleeper was taken over from");
    errands::end(&run, workers, count).await;
}

/// Two that run errands.
fn start_errands(run: &Run) -> Vec<Process> {
    (1..=2).map(|number| run.start(run.part("errands", number))).collect()
}

async fn database_connections_that_hang_half_open_are_left(stage: &Stage) {
    let run = Run::new(stage).await.with_database_proxy().await;
    let processes = run.start_three();
    for _ in 0..kills() / 12 {
        a_while(&run, 500, 1500).await;
        if let Some((_, proxy)) = &run.database_proxy {
            proxy.strand();
        }
        // Whoever waits on one of them must have given it up by then.
        tokio::time::sleep(STATEMENT_TIMEOUT + LEASE).await;
    }
    end(&run, processes).await;
}

/// Variables for a process with a clock that a file sets, by a library that `cargo xtask test` installs. The monotonic one stays: it does not jump on real hosts either.
fn with_clock(library: &str, file: &std::path::Path) -> Vec<(&'static str, String)> {
    vec![
        ("LD_PRELOAD", library.to_owned()),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

async fn clocks_that_jump_by_a_week_spoil_nothing(stage: &Stage) {
    let Some(library) = towpath_testkit::under_control("TOWPATH_TEST_CLOCK_LIBRARY") else { return };
    let run = Run::new(stage).await;
    let clock = |number: usize| run.folder.join(format!("clock-{number}"));
    let set = |number: usize, to: &str| std::fs::write(clock(number), to).unwrap();
    let mut processes = Vec::new();
    for (number, role) in [(0, "writer"), (1, "worker"), (2, "worker")] {
        set(number, "+0");
        processes.push(run.start_with(run.part(role, number), &with_clock(&library, &clock(number))));
    }
    support::eventually_within("the first effects", Duration::from_secs(30), || async {
        (count_effects(&run.watch, "ordered").await > 50).then_some(())
    })
    .await;
    for _ in 0..kills() / 5 {
        let number = usize::try_from(run.random(3)).unwrap();
        set(number, ["+0", "+7d", "-7d", "+30d"][usize::try_from(run.random(4)).unwrap()]);
        a_while(&run, 300, 700).await;
    }
    // They stay where they have jumped to: what is due must come about with clocks that never agree again.
    set(1, "+7d");
    set(2, "-7d");
    end(&run, processes).await;
}

async fn a_broker_that_raises_its_alarm_under_load_is_waited_for(stage: &Stage) {
    let run = Run::new(stage).await;
    let processes = run.start_three();
    for _ in 0..kills() / 16 {
        a_while(&run, 500, 1000).await;
        run.stage.raise_alarm(true).await;
        // Longer than anyone is patient.
        tokio::time::sleep(Duration::from_millis(4000)).await;
        run.stage.raise_alarm(false).await;
        run.explains(4);
    }
    end(&run, processes).await;
}

/// A small file system in memory that can be filled up. Only root can make one.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn make() -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("towpath-disk-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir_all(&folder).unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"])
            .arg(&folder)
            .output();
        mount.is_ok_and(|done| done.status.success()).then_some(Self(folder))
    }

    /// Leaves no byte.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        let page = vec![0; 4096];
        while std::io::Write::write_all(&mut filler, &page).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_disk_that_is_full_for_a_while_costs_time_and_nothing_else() {
    let Some(disk) = SmallDisk::make() else {
        // A machine where nobody may mount anything cannot have one, and `cargo xtask ci` says so.
        let is_set = |variable: &str| std::env::var_os(variable).is_some();
        let must = is_set("TOWPATH_TEST_NOTHING_LEFT_OUT") && !is_set("TOWPATH_TEST_NOBODY_MOUNTS");
        assert!(!must, "no small disk can be made, and nothing is left out here");
        return eprintln!("left out: only root can make a small disk, and only where one may be mounted");
    };
    let stage = Stage::on(support::Fresh::in_folder(&disk.0).await, Broker::Local);
    let run = Run::new(&stage).await;
    let mut processes = run.start_three();
    for _ in 0..kills() / 10 {
        a_while(&run, 500, 1000).await;
        disk.fill();
        let before = count_effects(&run.watch, "ordered").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let made = count_effects(&run.watch, "ordered").await - before;
        assert!(made < 50, "the disk was not full: {made} effects");
        disk.free();
        run.revive(&mut processes);
        run.explains(2);
    }
    end(&run, processes).await;
}
