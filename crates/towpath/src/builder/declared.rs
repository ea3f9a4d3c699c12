//! What an application declares: collected, checked at the start.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;

use towpath_broker::Formats;
use towpath_core::channel::{Channel, Target};
use towpath_core::decider::RegistrationFlaw;
use towpath_core::ids::{InvalidId, LeaseName};
use towpath_core::ports::broker::{BrokerPromises, Topology};
use towpath_core::ports::store::StoreError;
use towpath_store::{SqlStore, Table, Versions};

use crate::carrying::Carrying;
use crate::config::BadChannels;
use crate::consumer::{Consumer, DeadLetterQueue, Wired, wire};
use crate::jobs::Job;
use crate::observer::Observer;
use crate::projection::Projections;
use crate::registry::Registry;
use crate::start_error::StartError;
use crate::tasks::{Registered, Schedule};
use crate::watch::Watchers;

/// What an application declares.
#[derive(Default)]
pub(crate) struct Declared {
    pub(crate) registry: Registry,
    pub(crate) channels: Vec<Channel>,
    pub(crate) topology: Topology,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) projections: Vec<Projections>,
    pub(crate) dead_letter_queues: Vec<DeadLetterQueue>,
    pub(crate) observers: Vec<Observer>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) workers: Vec<Registered>,
    /// Tasks that are started by the calendar.
    pub(crate) schedules: Vec<Schedule>,
    pub(crate) watchers: Watchers,
    pub(crate) tables: Vec<Table>,
    pub(crate) versions: Vec<Versions>,
    pub(crate) preparations: Vec<Preparation>,
    /// Events that begin flows.
    pub(crate) root_events: Vec<String>,
    /// Which rules are looked at.
    #[cfg(feature = "alerts")]
    pub(crate) alerting: Option<crate::alerts::Alerting>,
    pub(crate) mistakes: Mistakes,
}

/// What is wrong with it, as far as that is known before the start.
#[derive(Default)]
pub(crate) struct Mistakes {
    pub(crate) flaws: Vec<RegistrationFlaw>,
    pub(crate) invalid: Vec<InvalidId>,
    pub(crate) config: Option<BadChannels>,
    /// Of tasks and their schedules, for people.
    pub(crate) tasks: Vec<String>,
}

/// Makes an application's own tables.
pub(crate) type Preparation =
    Box<dyn FnOnce(SqlStore) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send>> + Send>;

impl Declared {
    /// Refuses what cannot be started.
    pub(crate) fn check(&mut self) -> Result<(), StartError> {
        let Mistakes { mut flaws, invalid, config, tasks } = std::mem::take(&mut self.mistakes);
        flaws.extend(self.registry.flaws_of_stays());
        flaws.extend(self.registry.flaw_of_tasks());
        if !flaws.is_empty() {
            return Err(StartError::Registration(flaws));
        }
        if let Some(error) = invalid.into_iter().next() {
            return Err(error.into());
        }
        if let Some(error) = config {
            return Err(error.into());
        }
        if let Some(error) = tasks.into_iter().next() {
            return Err(StartError::Wiring(error));
        }
        each_once(
            "channels",
            self.channels.iter().map(|channel| channel.name.as_str()),
            "each event would go out twice",
        )?;
        for job in &self.jobs {
            LeaseName::new(format!("job/{}", job.name()))?;
        }
        each_once("jobs", self.jobs.iter().map(Job::name), "nobody could tell them apart")?;
        each_once(
            "workers",
            self.workers.iter().map(|worker| worker.of.name()),
            "say for one how many tasks it does at a time",
        )?;
        each_once(
            "schedules",
            self.schedules.iter().map(Schedule::name),
            "one would take the other's ticks",
        )?;
        Projections::check(&self.projections).map_err(StartError::Wiring)?;
        check_formats(self.registry.formats(), &self.channels, &self.consumers, &self.dead_letter_queues)
    }
}

/// How channels, queues and handlers fit together.
pub(crate) struct Network {
    pub(crate) registry: Arc<Registry>,
    pub(crate) topology: Topology,
    /// Channels whose events get outbox rows.
    pub(crate) relayed: Vec<Channel>,
    /// Those of them that are published, and where to.
    pub(crate) publishing: Vec<(Channel, Target)>,
    /// Channels that follow the log.
    pub(crate) tracked: Vec<Channel>,
    pub(crate) consumers: Vec<Wired>,
    pub(crate) dead_letter_queues: Vec<DeadLetterQueue>,
}

impl Declared {
    /// Takes out what is about the broker, and gives each consumer its queue.
    pub(crate) fn network(&mut self, promises: BrokerPromises) -> Result<Network, StartError> {
        let mut channels = std::mem::take(&mut self.channels);
        let mut topology = std::mem::take(&mut self.topology);
        let mut dead_letter_queues = std::mem::take(&mut self.dead_letter_queues);
        let consumers = std::mem::take(&mut self.consumers);
        let consumers = wire(&mut channels, &mut topology, &mut dead_letter_queues, consumers, promises)?;
        let mut registry = std::mem::take(&mut self.registry);
        registry.carry(Carrying::of(&channels, promises).map_err(StartError::Wiring)?);
        let registry = Arc::new(registry);
        let (tracked, relayed): (Vec<_>, Vec<_>) =
            channels.into_iter().partition(|channel| channel.tracking.is_some());
        let published = relayed.iter().filter_map(|channel| Some((channel.clone(), channel.target.clone()?)));
        let publishing = published.collect();
        Ok(Network { registry, topology, relayed, publishing, tracked, consumers, dead_letter_queues })
    }
}

impl Network {
    /// All queues that it has to do with.
    pub(crate) fn queues(&self) -> BTreeSet<String> {
        let declared = self.topology.queues.iter().map(|queue| &queue.name);
        let consumed = self.consumers.iter().map(|wired| &wired.queue);
        let dead = self.dead_letter_queues.iter().map(|queue| &queue.name);
        declared.chain(consumed).chain(dead).cloned().collect()
    }
}

/// Refuses a format that nobody has registered.
fn check_formats(
    formats: &Formats,
    channels: &[Channel],
    consumers: &[Consumer],
    dead_letter_queues: &[DeadLetterQueue],
) -> Result<(), StartError> {
    let channels = channels.iter().map(|one| (format!("channel {}", one.name), Some(&one.format)));
    let consumers = consumers.iter().map(|one| (format!("consumer {}", one.handler), one.format.as_ref()));
    let queues = dead_letter_queues.iter().map(|one| (format!("queue {}", one.name), one.format.as_ref()));
    for (by, format) in channels.chain(consumers).chain(queues) {
        let named = format.map(|name| formats.named(name)).transpose();
        named.map_err(|source| StartError::Format { by, source })?;
    }
    Ok(())
}

/// Refuses a name that two of them share.
fn each_once<'n>(
    what: &str,
    names: impl IntoIterator<Item = &'n str>,
    because: &str,
) -> Result<(), StartError> {
    let mut seen = BTreeSet::new();
    match names.into_iter().find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(twice) => Err(StartError::Wiring(format!("two {what} are called {twice}: {because}"))),
    }
}
