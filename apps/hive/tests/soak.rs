//! A soak: many services, random commands, a cluster on which things fail and vanish, and a server that is killed
//! every few seconds. At the end every service agrees with the cluster and with its own facts.
//!
//! With all other tests there is a short one: 100 services, and commands for 12 s. `cargo xtask test --soak` runs the long
//! ones: 1,000 services, and commands for three minutes. `TOWPATH_SOAK_SECONDS` and `TOWPATH_SOAK_SERVICES` say otherwise;
//! `TOWPATH_SOAK_LOG` names a file for what the server says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use towpath::ids::AggregateKey;
use towpath::retry::ErrorClass;
use towpath::{Aggregate, Coded as _, SendError, Towpath};
use towpath_hive::gateway::simulated::{Fates, SimulatedCluster, SimulatedSettings};
use towpath_hive::gateway::{ConditionStatus, Observed};
use towpath_hive::service::{DeleteAsked, Service, ServiceCommand, ServiceEvent, ServiceStatus};
use towpath_hive::{Hive, HiveSettings};
use towpath_testkit::store::waiting::Dice;

use support::{Fresh, asked, resource, update};

const STORE: &str = "TOWPATH_SOAK_STORE";
const BROKER: &str = "TOWPATH_SOAK_BROKER";
const CLUSTER: &str = "TOWPATH_SOAK_CLUSTER";
const CHANNEL: &str = "TOWPATH_SOAK_CHANNEL";

/// How many send commands at a time.
const SENDERS: usize = 4;

/// How long each of them waits between two.
const PACE: Duration = Duration::from_millis(100);

/// How large a soak is.
#[derive(Clone, Copy)]
struct Size {
    services: u64,
    seconds: u64,
    /// How long everything may take to settle afterwards.
    patience: u64,
}

const SHORT: Size = Size { services: 100, seconds: 12, patience: 180 };

const LONG: Size = Size { services: 1000, seconds: 180, patience: 900 };

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn cluster(file: &Path) -> SimulatedCluster {
    let fates = Fates {
        settles_after: Duration::from_millis(50),
        settles_within: Duration::from_secs(2),
        deleted_after: Duration::from_millis(500),
        refused_percent: 5,
        failing_percent: 15,
        vanishing_percent: 5,
        vanishes_within: Duration::from_secs(5),
    };
    let file = Some(file.to_owned());
    let unavailable_percent = 5;
    SimulatedCluster::new(SimulatedSettings {
        seed: 7,
        fates,
        file,
        unavailable_percent,
        ..Default::default()
    })
    .unwrap()
}

fn hive(channel: String, file: &Path) -> Hive {
    let settings = HiveSettings {
        channel,
        interval: Duration::from_secs(1),
        // What vanishes is to be found in the time of a test.
        ready_stale: Duration::from_secs(10),
        ..HiveSettings::default()
    };
    Hive::new(settings, Arc::new(cluster(file)))
}

/// The server that is killed: this same program, run again with this test alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the soak, in a process of its own"]
async fn server() {
    let Ok(store) = std::env::var(STORE) else { return };
    let log = tracing_subscriber::fmt().with_env_filter("warn").with_writer(std::io::stderr);
    let _ = log.with_ansi(false).try_init();
    let [broker, file, channel] = [BROKER, CLUSTER, CHANNEL].map(|name| std::env::var(name).unwrap());
    let builder = Towpath::builder()
        .store(&store)
        .broker(&broker)
        // A fixed name: the next life takes up at once what this one leaves.
        .instance("soak")
        .lease(Duration::from_secs(2))
        .scan(Duration::from_millis(100));
    let _app = hive(channel, Path::new(&file)).install(builder).start().await.unwrap();
    std::future::pending::<()>().await;
}

/// Where the server says what goes on.
fn log() -> Stdio {
    let Some(file) = std::env::var_os("TOWPATH_SOAK_LOG") else { return Stdio::null() };
    std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap().into()
}

struct Server {
    child: Child,
}

impl Server {
    fn start(environment: &BTreeMap<&str, String>) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "server", "--ignored", "--nocapture"])
            .envs(environment)
            .stdout(Stdio::null())
            .stderr(log())
            .spawn()
            .unwrap();
        Self { child }
    }

    /// SIGKILL: nothing of it runs any more.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends commands until the time is over; answers how many were accepted and how many refused.
async fn command_at_random(app: Towpath, services: u64, seed: u64, until: Instant) -> (u64, u64) {
    let send = async |id: String, command: ServiceCommand| loop {
        match app.send::<Service>(&id, command.clone()).await {
            Ok(_) => return true,
            Err(SendError::IllegalTransition(_) | SendError::Refused { .. }) => return false,
            // The database is busy with the server.
            Err(error) if error.class() == ErrorClass::Transient => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    };
    let mut dice = Dice::new(seed);
    let (mut accepted, mut refused) = (0, 0);
    // Each sender creates its share first, whatever the time.
    for number in (seed..services).step_by(SENDERS) {
        let name = format!("cart-{number}");
        accepted += u64::from(send(format!("shop.{name}"), ServiceCommand::Create(asked(&name))).await);
    }
    while Instant::now() < until {
        // A pace that a busy machine keeps up with.
        tokio::time::sleep(PACE).await;
        let name = format!("cart-{}", dice.roll(services));
        let command = match dice.roll(10) {
            0..=2 => ServiceCommand::Create(asked(&name)),
            3..=5 => update(&format!("registry.example/cart:{}", dice.roll(5))),
            6 => {
                let image = "registry.example/cart:1".to_owned();
                ServiceCommand::Update(towpath_hive::service::UpdateAsked {
                    image,
                    force_replace: true,
                    ..Default::default()
                })
            }
            7..=8 => ServiceCommand::Delete(DeleteAsked::default()),
            _ => ServiceCommand::Refresh {},
        };
        match send(format!("shop.{name}"), command).await {
            true => accepted += 1,
            false => refused += 1,
        }
    }
    (accepted, refused)
}

/// What is wrong with a service, if anything: its status against the cluster, and against its own facts.
async fn flaw(app: &Towpath, cluster: &SimulatedCluster, name: &str) -> Option<String> {
    let id = format!("shop.{name}");
    let view = app.load::<Service>(&id).await.unwrap()?;
    let key = AggregateKey::new(Service::KIND, &id).unwrap();
    let events = app.events_of(&key, 0, 100_000).await.unwrap();
    let folded = events.iter().fold(Service::default(), |service, event| {
        let envelope = &event.envelope;
        let fact: ServiceEvent =
            towpath::from_variant(envelope.event_type.as_str(), &envelope.payload).unwrap();
        service.evolve(&fact)
    });
    if folded != view.value || view.state.as_deref() != folded.status.map(ServiceStatus::as_str) {
        return Some(format!("{id}: its facts say {folded:?}, and its row {:?}", view.value));
    }
    let seen = cluster.look(&resource(name)).unwrap();
    let service = view.value;
    let snapshot = service.snapshot.as_ref();
    let status = service.status.unwrap();
    let agrees = match (&seen, status) {
        (_, ServiceStatus::Creating | ServiceStatus::Updating | ServiceStatus::Deleting) => false,
        (Observed::NotFound, ServiceStatus::Deleted) => true,
        (Observed::Found(_), ServiceStatus::Deleted) => false,
        // What vanished from under it is recorded.
        (Observed::NotFound, _) => snapshot.is_some_and(|snapshot| !snapshot.present),
        // The source knows no way from READY to FAILED: what stops being ready later, because it vanished and was
        // applied once more, is recorded and stays READY.
        (Observed::Found(found), ServiceStatus::Ready) => {
            let ready = match found.readiness() {
                ConditionStatus::True => Some(true),
                ConditionStatus::False => Some(false),
                ConditionStatus::Unknown => None,
            };
            found.spec_hash.as_ref() == Some(&service.desired_spec_hash)
                && snapshot.is_some_and(|snapshot| snapshot.present && snapshot.ready == ready)
        }
        // Failed: what was asked for fails, or was refused and the cluster is as it was before.
        (Observed::Found(found), ServiceStatus::Failed) => {
            found.readiness() == ConditionStatus::False
                || found.spec_hash.as_ref() != Some(&service.desired_spec_hash)
        }
    };
    (!agrees).then(|| format!("{id}: {status:?} with {snapshot:?}, and the cluster shows {seen:?}"))
}

/// The status view says of every service what its facts say, once they have got there: the broker may have a backlog of them.
async fn the_view_agrees(app: &Towpath, services: u64, patience: Duration) {
    let deadline = Instant::now() + patience;
    loop {
        let sql = "SELECT service_id, version, status FROM hive_services";
        let mut differ = Vec::new();
        let rows = app.store().own_rows("test.view", sql, Vec::new()).await.unwrap();
        for row in &rows {
            let id = row.text("service_id").unwrap();
            let view = app.load::<Service>(&id).await.unwrap().unwrap();
            let shown = (row.count("version").unwrap(), row.text("status").unwrap());
            let is = (view.version, view.value.status.unwrap().as_str().to_owned());
            if shown != is {
                differ.push(format!("{id} is {is:?} and shown as {shown:?}"));
            }
        }
        if differ.is_empty() && rows.len() as u64 == services {
            return;
        }
        let some = &differ[..differ.len().min(5)];
        assert!(Instant::now() < deadline, "{} of {} differ, such as {some:?}", differ.len(), rows.len());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn soak(database: &str, broker: &str, size: Size) {
    let seconds = number("TOWPATH_SOAK_SECONDS", size.seconds);
    let services = number("TOWPATH_SOAK_SERVICES", size.services);
    let (fresh, folder) = (Fresh::on(database).await, tempfile::tempdir().unwrap());
    let file = folder.path().join("cluster.jsonl");
    let channel = format!("soak{}", &uuid::Uuid::new_v4().simple().to_string()[..16]);
    let broker_url = match broker {
        "local" => "local:".to_owned(),
        _ => std::env::var("TOWPATH_TEST_KAFKA_URL").expect("TOWPATH_TEST_KAFKA_URL"),
    };
    let environment = BTreeMap::from([
        (STORE, fresh.url().to_owned()),
        (BROKER, broker_url.clone()),
        (CLUSTER, file.display().to_string()),
        (CHANNEL, channel.clone()),
    ]);
    // Who sends is not killed; it neither consumes nor looks.
    let builder = Towpath::builder().store(fresh.url()).broker(&broker_url).without_workers();
    let app = hive(channel, &file).install(builder).start().await.unwrap();
    let mut server = Server::start(&environment);
    let until = Instant::now() + Duration::from_secs(seconds);
    let senders: Vec<_> = (0..SENDERS as u64)
        .map(|seed| tokio::spawn(command_at_random(app.clone(), services, seed, until)))
        .collect();
    let (mut kills, mut dice) = (0, Dice::new(99));
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(3000 + dice.roll(4000))).await;
        server.kill();
        kills += 1;
        server = Server::start(&environment);
    }
    let mut sent = (0, 0);
    for sender in senders {
        let (accepted, refused) = sender.await.unwrap();
        sent = (sent.0 + accepted, sent.1 + refused);
    }
    assert!(kills >= 3 && sent.0 > 0 && sent.1 > 0, "{kills} kills, {sent:?}");
    // Left alone, everything settles.
    let cluster = cluster(&file);
    let (left_alone, patience) = (Instant::now(), Duration::from_secs(size.patience));
    let counts = loop {
        // All of them in each round: one that had settled may have gone astray again.
        let (mut flaws, mut counts) = (Vec::new(), BTreeMap::new());
        for number in 0..services {
            let name = format!("cart-{number}");
            let Some(view) = app.load::<Service>(&format!("shop.{name}")).await.unwrap() else { continue };
            *counts.entry(view.value.status.unwrap()).or_insert(0_u64) += 1;
            flaws.extend(flaw(&app, &cluster, &name).await);
        }
        if flaws.is_empty() {
            break counts;
        }
        let some = flaws[..flaws.len().min(5)].join("\n");
        assert!(left_alone.elapsed() < patience, "{} do not settle, such as\n{some}", flaws.len());
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    assert!(counts.values().sum::<u64>() == services, "{counts:?}");
    // A short one on a slow machine may not have come to that.
    assert!(size.services < LONG.services || counts.contains_key(&ServiceStatus::Deleted), "{counts:?}");
    the_view_agrees(&app, services, patience).await;
    let took = left_alone.elapsed();
    #[allow(clippy::print_stderr, reason = "what happened is worth knowing, also when it went well")]
    let () = eprintln!(
        "soak on {database} and {broker}: {services} services, {seconds} s, {kills} kills, {} accepted, {} refused, \
             settled after {took:.1?}, {counts:?}",
        sent.0, sent.1
    );
    let dead = app.dead_letters().list(&towpath::letters::LetterFilter::dead(), 0, 10).await.unwrap();
    assert!(dead.is_empty(), "{dead:?}");
    drop(server);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_soak_on_sqlite() {
    soak("sqlite", "local", SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_soak_on_postgres() {
    soak("postgres", "local", SHORT).await;
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_soak_on_postgres_and_kafka() {
    soak("postgres", "kafka", SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes: cargo xtask test --soak"]
async fn a_long_soak_on_sqlite() {
    soak("sqlite", "local", LONG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes: cargo xtask test --soak"]
async fn a_long_soak_on_postgres() {
    soak("postgres", "local", LONG).await;
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes minutes: cargo xtask test --soak"]
async fn a_long_soak_on_postgres_and_kafka() {
    soak("postgres", "kafka", LONG).await;
}
