//! What Towpath is to be made of.
//!
//! Reading order: this file has the methods; `declared` what an application declares, `timing` and `keeping` how often and how
//! long; `starting` makes Towpath of it.

mod declared;
mod keeping;
mod starting;
mod timing;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use towpath_core::aggregate::Aggregate;
use towpath_core::causes::with_causes;
use towpath_core::channel::Channel;
use towpath_core::format::Format;
use towpath_core::ids::InvalidId;
use towpath_core::messages::Event;
use towpath_core::ports::broker::Topology;
use towpath_core::ports::clock::Clock;
use towpath_core::ports::store::StoreError;
use towpath_core::process::Process;
use towpath_core::retry::RetryPolicy;
use towpath_core::route::Route;
use towpath_core::task::TaskType;
use towpath_store::{SqlStore, StoreOptions, Table, Versions};

use crate::checker::Checks;
use crate::config::Channels;
use crate::consumer::{Consumer, ConsumerOf, DeadLetterQueue};
use crate::entity::Entity;
use crate::jobs::Job;
use crate::observer::Observer;
use crate::process;
use crate::projection::Projections;
use crate::tasks::{Registered, Schedule, Worker};
use crate::watch::Watch;

pub(crate) use declared::{Declared, Network};
pub(crate) use keeping::Keeping;
use timing::Timing;

/// How many processes of a kind are undone at a time.
const COMPENSATIONS: u32 = 4;

/// The store when none is configured.
const DEFAULT_STORE: &str = "sqlite://data/towpath.db";

/// The broker when none is configured.
const DEFAULT_BROKER: &str = "local:";

/// What Towpath is to be made of. Mistakes are collected and told by [`start`](Builder::start).
pub struct Builder {
    store_url: String,
    store_options: StoreOptions,
    broker_url: String,
    instance: Option<String>,
    declared: Declared,
    timing: Timing,
    keeping: Keeping,
    checks: Checks,
    page_size: Option<NonZeroU64>,
    migrate: bool,
    workers: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            store_url: DEFAULT_STORE.to_owned(),
            store_options: StoreOptions::default(),
            broker_url: DEFAULT_BROKER.to_owned(),
            instance: None,
            declared: Declared::default(),
            timing: Timing::default(),
            keeping: Keeping::default(),
            checks: Checks::default(),
            page_size: None,
            migrate: true,
            workers: true,
        }
    }
}

impl Builder {
    /// The store: `sqlite://PATH`, `postgres://…` or `mysql://…`.
    pub fn store(mut self, url: &str) -> Self {
        self.store_url = url.to_owned();
        self
    }

    /// How to connect to the store.
    pub fn store_options(mut self, options: StoreOptions) -> Self {
        self.store_options = options;
        self
    }

    /// The broker: `local:`, `amqp://…` or, with the feature `kafka`, `kafka://…`.
    pub fn broker(mut self, url: &str) -> Self {
        self.broker_url = url.to_owned();
        self
    }

    /// Registers an aggregate.
    pub fn aggregate<A: Aggregate>(mut self) -> Self {
        if let Err(flaws) = self.declared.registry.register::<A>() {
            self.declared.mistakes.flaws.extend(flaws);
        }
        self
    }

    /// How long an aggregate may stay in a state whose machine gives it a deadline: by its folded state after the change that
    /// led there, and by what the function has in its hand, such as a setting. Otherwise the machine says it.
    ///
    /// # Caveats
    /// Where it panics, or the folded state is of another [`SNAPSHOT_VERSION`](Aggregate::SNAPSHOT_VERSION) and facts are
    /// appended without a command, the machine's time holds.
    pub fn deadline<A: Aggregate>(
        mut self,
        state: &str,
        stay: impl Fn(&A) -> Duration + Send + Sync + 'static,
    ) -> Self {
        self.declared.registry.stay(state, stay);
        self
    }

    /// Registers rows of an application's own whose state a machine guards.
    pub fn entity<E: Entity>(mut self) -> Self {
        let flaws = self.declared.registry.register_entity::<E>().err().unwrap_or_default();
        self.declared.mistakes.flaws.extend(flaws);
        self
    }

    /// Registers a format that channels and consumers can name, beside Towpath's own and CloudEvents.
    pub fn format(mut self, format: impl Format) -> Self {
        self.declared.mistakes.flaws.extend(self.declared.registry.format(format).err());
        self
    }

    /// Takes a kind for confidential although no aggregate of it is registered: its facts may be here from before, from
    /// another instance, or as the mirror of another log.
    pub fn confidential(mut self, kind: &str) -> Self {
        self.declared.registry.withhold(kind);
        self
    }

    /// Adds a channel: events that fit its patterns get an outbox row each, and with a target they are published.
    ///
    /// A channel without a target only collects its rows.
    pub fn channel(mut self, channel: Result<Channel, InvalidId>) -> Self {
        match channel {
            Ok(channel) => {
                // A channel that follows the log needs no rows of its own.
                if channel.tracking.is_none() {
                    let (name, event_types) = (channel.name.clone(), channel.event_types.clone());
                    self.declared.registry.route(Route { channel: name, event_types });
                }
                self.declared.channels.push(channel);
            }
            Err(error) => self.declared.mistakes.invalid.push(error),
        }
        self
    }

    /// Adds the channels and the topology of a TOML text. See `docs/channels.md`.
    pub fn channels_from_toml(mut self, text: &str) -> Self {
        match Channels::from_toml(text) {
            Ok(channels) => self.channels(channels),
            Err(error) => {
                self.declared.mistakes.config = Some(error);
                self
            }
        }
    }

    /// Adds channels and topology that were read from a file.
    pub fn channels(self, channels: Channels) -> Self {
        let builder = self.topology(channels.topology);
        channels.channels.into_iter().fold(builder, |builder, channel| builder.channel(Ok(channel)))
    }

    /// Exchanges, queues and bindings that must exist on the broker before anything is published, beside those that were
    /// named before.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.declared.topology.exchanges.extend(topology.exchanges);
        self.declared.topology.queues.extend(topology.queues);
        self.declared.topology.bindings.extend(topology.bindings);
        self
    }

    /// Adds a consumer: its handler gets the facts it asks for, each once.
    pub fn consumer(mut self, consumer: Consumer) -> Self {
        self.declared.consumers.push(consumer);
        self
    }

    /// Adds projections: rows that are made from facts, by a consumer of their own. What an older version has made, or nobody,
    /// is made anew in the background ([`Towpath::projections`](crate::Towpath::projections) says how far that is).
    pub fn projections(mut self, projections: Projections) -> Self {
        self.declared.consumers.push(projections.consumer());
        self.declared.projections.push(projections);
        self
    }

    /// Registers a process: an aggregate that reacts to facts. It gets a channel of its own, `process.<kind>`, that takes exactly
    /// the facts it names, and a consumer of the same name.
    pub fn process<P: Process>(self) -> Self {
        let channel = process::handler_of::<P>();
        let own = Channel::named(&channel, P::Input::NAMES.iter().copied());
        self.channel(own).process_from::<P>(Consumer::of(channel))
    }

    /// The same for a process that takes its facts from a channel or a queue that is there already: in order, say, or in another
    /// format. Of what comes there it takes the facts it names. In order, a fact that waits for the start of its process holds up
    /// what stands behind it in its lane, so the fact that starts it must come first there, or be of another aggregate.
    pub fn process_from<P: Process>(self, source: ConsumerOf) -> Self {
        let builder = self.aggregate::<P>().consumer(process::consumer::<P>(source));
        builder.worker(process::Compensator(P::KIND), COMPENSATIONS)
    }

    /// Adds tables of the application's own: made at the start where they are missing.
    pub fn tables(mut self, tables: &[Table]) -> Self {
        self.declared.tables.extend_from_slice(tables);
        self
    }

    /// Adds the tables of an application that have changed since its first release: brought to their newest version at the
    /// start.
    pub fn versions(mut self, versions: Versions) -> Self {
        self.declared.versions.push(versions);
        self
    }

    /// Adds an observer of resources outside.
    pub fn observer(mut self, observer: Observer) -> Self {
        self.declared.observers.push(observer);
        self
    }

    /// Adds something that is done again and again while Towpath runs: see [`Job`].
    pub fn job(mut self, job: Job) -> Self {
        self.declared.jobs.push(job);
        self
    }

    /// Adds a worker, and how many tasks it does at a time: see [`Worker`].
    pub fn worker<W: Worker>(mut self, worker: W, concurrency: u32) -> Self {
        let worker = Registered::new(worker, concurrency);
        self = self.task_type(worker.of.clone());
        self.declared.workers.push(worker);
        self
    }

    /// Declares a sort of work that is started or called off here and done elsewhere: so its end can be a fact.
    ///
    /// # Caveats
    /// All processes declare a type alike: one that only declares it may take over a task whose worker is gone, and ends it by its
    /// own declaration.
    pub fn task_type(mut self, of: TaskType) -> Self {
        match of.check() {
            Err(error) => self.declared.mistakes.tasks.push(with_causes(&error)),
            Ok(_) => {
                let flaw = self.declared.registry.task(of).err();
                self.declared.mistakes.flaws.extend(flaw);
            }
        }
        self
    }

    /// Starts a task by the calendar: at each tick of a cron expression (`0 3 * * *`; with seconds if it has six parts), in UTC and by the
    /// database's clock, one over all instances. The name is the schedule's and never changes. A schedule that is new begins with its
    /// next tick; of ticks at which no instance ran, the last one is made up for when one runs again. The task's key says which
    /// tick it is: `nightly@2026-11-16T03:00:00Z`.
    ///
    /// ```no_run
    /// # use towpath::{TaskType, Towpath};
    /// let clean = TaskType::named("Cleaner.Clean");
    /// let builder = Towpath::builder().cron("nightly", "0 3 * * *", clean, "everything");
    /// ```
    pub fn cron(
        mut self,
        name: &str,
        expression: &str,
        of: TaskType,
        payload: &(impl Serialize + ?Sized),
    ) -> Self {
        match Schedule::new(name, expression, of.clone(), payload) {
            Ok(schedule) => self.declared.schedules.push(schedule),
            Err(error) => self.declared.mistakes.tasks.push(error),
        }
        self.task_type(of)
    }

    /// Looks at rules again and again, one instance at a time, and tells of those that hold: see [`alerts`](crate::alerts).
    #[cfg(feature = "alerts")]
    pub fn alerts(mut self, alerting: crate::alerts::Alerting) -> Self {
        use crate::alerts::{ALERT_FIRED, ALERT_MISSING, ALERT_RESOLVED};
        if let Some(teller) = alerting.teller() {
            self = self.worker(teller, crate::alerts::TOGETHER);
        }
        self.declared.alerting = Some(alerting);
        self.begins_flow(ALERT_FIRED).begins_flow(ALERT_RESOLVED).begins_flow(ALERT_MISSING)
    }

    /// A dead-letter queue of the broker's own that is read into the dead letters ([`Towpath::dead_letters`]). It must
    /// exist, or be declared in the topology.
    pub fn dead_letter_queue(mut self, queue: impl Into<DeadLetterQueue>) -> Self {
        self.declared.dead_letter_queues.push(queue.into());
        self
    }

    /// Tells an application what becomes of its events and deliveries.
    pub fn watch(mut self, watch: Arc<dyn Watch>) -> Self {
        self.declared.watchers.0.push(watch);
        self
    }

    /// Declares that a flow may begin with events of this type: they need no cause (G5). For facts that an application
    /// appends in a transaction of its own, without a command.
    pub fn begins_flow(mut self, event_type: impl Into<String>) -> Self {
        self.declared.root_events.push(event_type.into());
        self
    }

    /// Runs after Towpath's own migration and before anything is received or published: for an application's own tables.
    /// Not run [`without_migration`](Builder::without_migration). It may run in several instances at a time, and must
    /// be able to run again.
    pub fn prepare<F, Done>(mut self, preparation: F) -> Self
    where
        F: FnOnce(SqlStore) -> Done + Send + 'static,
        Done: Future<Output = Result<(), StoreError>> + Send + 'static,
    {
        self.declared.preparations.push(Box::new(move |store| Box::pin(preparation(store))));
        self
    }

    /// Another clock than the database's: for tests that hold time still. It is believed in everything but leases, so
    /// instances that share a database must not be given clocks that differ.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.timing.clock = Some(clock);
        self
    }

    /// When commands that failed for a passing reason are tried again. Default: after 1, 5 and 15 seconds.
    pub fn command_retries(mut self, policy: RetryPolicy) -> Self {
        self.timing.retries = policy;
        self
    }

    /// A name for this instance that stays the same over restarts. With it, what an earlier life left unfinished is
    /// taken up at once; without it, when that life's lease has run out. Two running instances must not share one.
    pub fn instance(mut self, name: &str) -> Self {
        self.instance = Some(name.to_owned());
        self
    }

    /// How long an instance may be silent before others take over its work. Default: 15 seconds.
    pub fn lease(mut self, duration: Duration) -> Self {
        self.timing.lease = duration;
        self
    }

    /// How often due work is looked for without being woken. Default: every second.
    pub fn scan(mut self, interval: Duration) -> Self {
        self.timing.scan = interval;
        self
    }

    /// For how long outbox rows are kept after they were sent. Default: 7 days.
    pub fn keep_sent(mut self, duration: Duration) -> Self {
        self.keeping.sent = duration;
        self
    }

    /// The de-duplication horizon: for how long it is known that a delivery was handled. A message that is older and comes
    /// again cannot be told from a new one. Default: 7 days.
    pub fn horizon(mut self, duration: Duration) -> Self {
        self.keeping.handled = duration;
        self
    }

    /// For how long commands are kept after they ended. Until then a command that is sent again under its id is answered as it
    /// was; after that the id is forgotten, and sending it again runs it again. Default: 90 days.
    pub fn keep_commands(mut self, duration: Duration) -> Self {
        self.keeping.commands = duration;
        self
    }

    /// For how long the answer to an operation is kept for who asks again. Default: 1 day.
    pub fn keep_operations(mut self, duration: Duration) -> Self {
        self.keeping.operations = duration;
        self
    }

    /// For how long tasks are kept after they ended, and for how long those that failed or took too long. Default: 7 and 90 days.
    pub fn keep_tasks(mut self, ended: Duration, failed: Duration) -> Self {
        (self.keeping.tasks, self.keeping.failed_tasks) = (ended, failed);
        self
    }

    /// For how long changes of alerts are kept, and silences that are over. Default: 30 days.
    pub fn keep_alerts(mut self, duration: Duration) -> Self {
        self.keeping.alerts = duration;
        self
    }

    /// How often it is looked for rows that are older than that. Default: every 10 minutes.
    pub fn clean_every(mut self, interval: Duration) -> Self {
        self.keeping.every = interval;
        self
    }

    /// Checks consistency by itself, so often, over a time of this length: one instance at a time. Otherwise it is checked when
    /// somebody asks ([`Towpath::check`](crate::Towpath::check)).
    pub fn check_every(mut self, interval: Duration, window: Duration) -> Self {
        (self.checks.every, self.checks.window) = (Some(interval), window);
        self
    }

    /// Lets the schedule put right what is safe to put right, after each check. Otherwise a repair is for who asks for it
    /// ([`Checker`](crate::checker::Checker)).
    pub fn repair_by_schedule(mut self) -> Self {
        self.checks.repairs = true;
        self
    }

    /// How old something must be before a check believes what it sees: younger rows are waited for and read again. Default: 5
    /// seconds.
    pub fn check_grace(mut self, duration: Duration) -> Self {
        self.checks.grace = duration;
        self
    }

    /// How many notifications a page of the notification log has. Default: what the log has, and 20 for a new one.
    ///
    /// It is fixed when the log is first opened: [`start`](Builder::start) refuses another one, because pages that others
    /// have kept would change.
    pub fn page_size(mut self, size: NonZeroU64) -> Self {
        self.page_size = Some(size);
        self
    }

    /// Do not migrate at the start; refuse to start on a database of another version.
    pub fn without_migration(mut self) -> Self {
        self.migrate = false;
        self
    }

    /// Send and read only: commands for later and retries are left to other instances.
    pub fn without_workers(mut self) -> Self {
        self.workers = false;
        self
    }
}
