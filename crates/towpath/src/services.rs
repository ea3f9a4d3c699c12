//! What runs in the background: one list, in the order of start.
//!
//! Workers are stopped together, and after them who keeps the leases that they work under.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use uuid::Uuid;

use crate::builder::{Declared, Keeping, Network};
use crate::consumer::{self, Wired};
use crate::leases::{self, Held, InFlight};
use crate::observer::{Observer, ObserverContext};
use crate::relay::{self, RelayContext};
use crate::runner::{self, Pace};
use crate::service::{Service, stop_all};
use crate::start_error::StartError;
use crate::tasks::Engine;
use crate::towpath::Towpath;
use crate::{checker, cleaner, jobs, notices, operations, projection, sequencer, tasks, timers};

use self::Stage::{Always, Keeper, Worker};
use self::Start::{Asking, AtOnce};

/// All of them, in the order of start.
const SERVICES: &[(Stage, Start)] = &[
    (Always, AtOnce(declaration)),
    (Always, AtOnce(clock)),
    (Always, AtOnce(telling)),
    (Keeper, Asking(keeping_leases)),
    (Keeper, AtOnce(keeping_tasks)),
    (Worker, AtOnce(running_commands)),
    (Worker, AtOnce(hearing)),
    (Worker, AtOnce(firing_timers)),
    (Worker, AtOnce(doing_tasks)),
    (Worker, AtOnce(starting_tasks)),
    (Worker, AtOnce(ending_operations)),
    (Worker, AtOnce(cleaning)),
    (Worker, AtOnce(checking)),
    (Worker, AtOnce(giving_positions)),
    (Worker, AtOnce(relaying)),
    (Worker, AtOnce(consuming)),
    (Worker, AtOnce(reading_dead_letters)),
    (Worker, AtOnce(projecting)),
    (Worker, AtOnce(observing)),
    (Always, Asking(tracking)),
    (Worker, AtOnce(doing_jobs)),
    (Worker, AtOnce(watching_figures)),
];

/// When a service runs, and when it is stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// In each Towpath, also in one without workers. Stopped with the workers.
    Always,
    /// It keeps what workers work under: stopped after them.
    Keeper,
    Worker,
}

type Started<'p> = BoxFuture<'p, Result<Vec<Service>, StartError>>;

enum Start {
    AtOnce(fn(&mut Parts) -> Vec<Service>),
    /// It asks the store first.
    Asking(fn(&mut Parts) -> Started<'_>),
}

/// What services are made of.
pub(crate) struct Parts {
    /// Without services: who runs in the background holds on to none of them.
    pub(crate) app: Towpath,
    /// Where it is told what this instance holds.
    pub(crate) hold: watch::Sender<Held>,
    pub(crate) held: watch::Receiver<Held>,
    pub(crate) in_flight: InFlight,
    pub(crate) pace: Pace,
    pub(crate) keeping: Keeping,
    pub(crate) network: Network,
    pub(crate) declared: Declared,
    /// Who does tasks, where there are workers.
    pub(crate) tasks: Option<Arc<Engine>>,
}

/// Those that run.
#[derive(Default)]
pub(crate) struct Services {
    workers: Mutex<Vec<Service>>,
    keepers: Mutex<Vec<Service>>,
    /// Whether these are the services of a Towpath, and not what its services have in their hands.
    pub(crate) are_whole: bool,
    /// Held by who stops, until all is closed.
    pub(crate) stopping: Mutex<()>,
}

impl Services {
    pub(crate) async fn start(parts: &mut Parts, with_workers: bool) -> Result<Self, StartError> {
        let (mut workers, mut keepers) = (Vec::new(), Vec::new());
        for (stage, start) in SERVICES.iter().filter(|(stage, _)| with_workers || *stage == Always) {
            let started = match start {
                AtOnce(start) => start(parts),
                Asking(start) => start(parts).await?,
            };
            if *stage == Keeper { keepers.extend(started) } else { workers.extend(started) }
        }
        let (workers, keepers) = (Mutex::new(workers), Mutex::new(keepers));
        Ok(Self { workers, keepers, are_whole: true, stopping: Mutex::default() })
    }

    /// Answers what was cut off.
    pub(crate) async fn stop_workers(&self, deadline: Instant) -> Vec<String> {
        stop(&self.workers, deadline).await
    }

    /// Answers what was cut off.
    pub(crate) async fn stop_keepers(&self, deadline: Instant) -> Vec<String> {
        stop(&self.keepers, deadline).await
    }
}

/// Who stops them a second time waits for the first.
async fn stop(services: &Mutex<Vec<Service>>, deadline: Instant) -> Vec<String> {
    let mut services = services.lock().await;
    let cut_off = stop_all(services.iter_mut(), deadline).await;
    services.clear();
    cut_off
}

fn declaration(parts: &mut Parts) -> Vec<Service> {
    vec![parts.app.declaration.keep()]
}

fn clock(parts: &mut Parts) -> Vec<Service> {
    let bus = &parts.app.bus;
    bus.database_clock.iter().map(|clock| clock.keep(bus.store.clone())).collect()
}

fn telling(parts: &mut Parts) -> Vec<Service> {
    let Towpath { bus, store, instance, .. } = &parts.app;
    let notifies = store.promises().notifies;
    notifies.then(|| notices::tell(bus.clone(), store.clone(), instance.clone())).into_iter().collect()
}

fn hearing(parts: &mut Parts) -> Vec<Service> {
    let Towpath { bus, store, instance, .. } = &parts.app;
    let notifies = store.promises().notifies;
    notifies.then(|| notices::hear(bus.clone(), store.clone(), instance.clone())).into_iter().collect()
}

fn keeping_leases(parts: &mut Parts) -> Started<'_> {
    let relayed = parts.network.publishing.iter().map(|(channel, _)| channel.name.clone()).collect();
    let (bus, instance) = (parts.app.bus.clone(), parts.app.instance.clone());
    let (in_flight, lease, hold) = (parts.in_flight.clone(), parts.pace.lease, parts.hold.clone());
    async move { Ok(vec![leases::start(bus, instance, relayed, in_flight, lease, hold).await?]) }.boxed()
}

fn running_commands(parts: &mut Parts) -> Vec<Service> {
    vec![runner::start(parts.app.bus.clone(), parts.held.clone(), parts.pace)]
}

fn firing_timers(parts: &mut Parts) -> Vec<Service> {
    vec![timers::start(parts.app.bus.clone(), parts.held.clone(), parts.pace)]
}

fn keeping_tasks(parts: &mut Parts) -> Vec<Service> {
    parts.tasks.iter().map(|engine| tasks::keep(engine.clone())).collect()
}

fn doing_tasks(parts: &mut Parts) -> Vec<Service> {
    parts.tasks.iter().map(|engine| tasks::work(engine.clone(), parts.pace.scan)).collect()
}

fn starting_tasks(parts: &mut Parts) -> Vec<Service> {
    let schedules = std::mem::take(&mut parts.declared.schedules);
    let starts = !schedules.is_empty();
    let service = starts.then(|| tasks::keep_schedules(parts.app.clone(), schedules, parts.pace.scan));
    service.into_iter().collect()
}

fn ending_operations(parts: &mut Parts) -> Vec<Service> {
    let (every, keep) = (parts.pace.lease, parts.keeping.operations);
    vec![operations::start(parts.app.bus.clone(), parts.held.clone(), every, keep)]
}

fn cleaning(parts: &mut Parts) -> Vec<Service> {
    let Towpath { bus, store, .. } = &parts.app;
    vec![cleaner::start(bus.clone(), store.clone(), parts.held.clone(), parts.keeping)]
}

fn checking(parts: &mut Parts) -> Vec<Service> {
    vec![checker::start(parts.app.clone(), parts.held.clone(), parts.pace.scan)]
}

fn giving_positions(parts: &mut Parts) -> Vec<Service> {
    vec![sequencer::start(parts.app.bus.clone(), parts.held.clone(), parts.pace.scan)]
}

fn relaying(parts: &mut Parts) -> Vec<Service> {
    let Towpath { bus, broker, declaration, .. } = &parts.app;
    let relays = std::mem::take(&mut parts.network.publishing).into_iter().flat_map(|(channel, target)| {
        let around = RelayContext {
            broker: broker.clone(),
            declaration: declaration.clone(),
            held: parts.held.clone(),
            in_flight: parts.in_flight.clone(),
            answered: Arc::default(),
            watchers: parts.declared.watchers.clone(),
        };
        relay::start(bus, &around, channel, target, &bus.wakes.relays)
    });
    relays.collect()
}

fn consuming(parts: &mut Parts) -> Vec<Service> {
    let running = parts.consumer();
    let consumers = std::mem::take(&mut parts.network.consumers).into_iter();
    let started = consumers.flat_map(|Wired { consumer, handler, queue }| {
        consumer::start(running.clone(), consumer, handler, queue)
    });
    started.collect()
}

fn reading_dead_letters(parts: &mut Parts) -> Vec<Service> {
    let running = parts.consumer();
    let queues = std::mem::take(&mut parts.network.dead_letter_queues).into_iter();
    queues.map(|queue| consumer::start_reader(running.clone(), queue)).collect()
}

fn projecting(parts: &mut Parts) -> Vec<Service> {
    let Towpath { bus, store, instance, projections, .. } = &parts.app;
    if projections.is_empty() {
        return Vec::new();
    }
    let pace = (parts.pace.lease, parts.pace.scan);
    vec![projection::start(bus.clone(), store.clone(), instance.clone(), pace, projections)]
}

fn observing(parts: &mut Parts) -> Vec<Service> {
    let Towpath { bus, store, instance, observers, .. } = &parts.app;
    let started =
        std::mem::take(&mut parts.declared.observers).into_iter().map(|Observer { name, start, .. }| {
            start(ObserverContext {
                name,
                bus: bus.clone(),
                store: store.clone(),
                instance: instance.clone(),
                lease: parts.pace.lease,
                statuses: observers.clone(),
            })
        });
    started.collect()
}

/// Trackers come and go while Towpath runs, and are kept apart.
fn tracking(parts: &mut Parts) -> Started<'_> {
    async move {
        for channel in std::mem::take(&mut parts.network.tracked) {
            parts.app.trackers.follow(channel).await?;
        }
        Ok(Vec::new())
    }
    .boxed()
}

fn doing_jobs(parts: &mut Parts) -> Vec<Service> {
    let (app, lease) = (&parts.app, parts.pace.lease);
    std::mem::take(&mut parts.declared.jobs).into_iter().map(|job| jobs::start(job, app, lease)).collect()
}

#[cfg(feature = "alerts")]
fn watching_figures(parts: &mut Parts) -> Vec<Service> {
    let alerting = parts.app.alerting.clone();
    alerting
        .map(|alerting| crate::alerts::start(&parts.app, alerting, parts.pace.lease))
        .into_iter()
        .collect()
}

#[cfg(not(feature = "alerts"))]
fn watching_figures(_: &mut Parts) -> Vec<Service> {
    Vec::new()
}

impl Parts {
    /// What consumers work with.
    fn consumer(&self) -> consumer::Running {
        let Towpath { bus, store, broker, declaration, .. } = &self.app;
        consumer::Running {
            bus: bus.clone(),
            store: store.clone(),
            broker: broker.clone(),
            declaration: declaration.clone(),
            watchers: self.declared.watchers.clone(),
            patience: self.pace.scan,
            lease: self.pace.lease,
            process: Uuid::now_v7().to_string().into(),
            alone: Arc::default(),
        }
    }
}
