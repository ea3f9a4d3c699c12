//! A simulated cluster: the embedded default, and the cluster of the tests.
//!
//! What happens to a resource is decided by the seed, its name and how often it was applied: the same seed gives the same
//! fate. It is a function of the time since then, so nothing runs in the background, and what is to be remembered are
//! the calls alone. With a file they are kept there, a line each; processes that share the file share the cluster, and
//! a process that is killed leaves it as it was.

mod fate;
mod journal;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures_util::stream::{self, BoxStream, StreamExt as _};

pub use self::fate::Fates;
use self::fate::chance;
use self::journal::Journal;
use self::world::{Entry, World};
use super::{Applied, Apply, Deletion, GatewayError, Observed, ServingGateway};
use crate::spec::{ResourceName, ServiceSpec};

/// How often watchers look for changes that came due.
const WATCH_TICK: Duration = Duration::from_millis(50);

/// How a simulated cluster behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedSettings {
    /// Decides what happens to what.
    pub seed: u64,
    /// What may happen to resources.
    pub fates: Fates,
    /// How long a call takes.
    pub call_delay: Duration,
    /// How many of a hundred calls find the cluster unavailable.
    pub unavailable_percent: u8,
    /// Namespaces that do not exist. All others do.
    pub missing_namespaces: BTreeSet<String>,
    /// Where the cluster is kept; without it, it is gone with the process.
    pub file: Option<PathBuf>,
    /// Whether it tells of changes.
    pub watched: bool,
}

impl Default for SimulatedSettings {
    /// Everything goes well, within a few seconds.
    fn default() -> Self {
        Self {
            seed: 0,
            fates: Fates::default(),
            call_delay: Duration::ZERO,
            unavailable_percent: 0,
            missing_namespaces: BTreeSet::new(),
            file: None,
            watched: true,
        }
    }
}

/// A simulated cluster. Clones share it.
#[derive(Clone)]
pub struct SimulatedCluster {
    shared: Arc<Shared>,
}

struct Shared {
    settings: SimulatedSettings,
    kept: Mutex<Kept>,
    down: AtomicBool,
    slow: Mutex<BTreeMap<ResourceName, Duration>>,
    broken: Mutex<BTreeSet<ResourceName>>,
    calls: AtomicU64,
    observations: AtomicU64,
}

/// The cluster and where its calls are written down.
struct Kept {
    world: World,
    journal: Option<Journal>,
}

impl SimulatedCluster {
    /// A cluster. With a file, what was there before is there again.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub fn new(settings: SimulatedSettings) -> std::io::Result<Self> {
        let journal = settings.file.as_deref().map(Journal::open).transpose()?;
        let world = World::new(settings.seed, settings.fates.clone());
        let mut kept = Kept { world, journal };
        kept.catch_up()?;
        Ok(Self {
            shared: Arc::new(Shared {
                settings,
                kept: Mutex::new(kept),
                down: AtomicBool::new(false),
                slow: Mutex::default(),
                broken: Mutex::default(),
                calls: AtomicU64::new(0),
                observations: AtomicU64::new(0),
            }),
        })
    }

    /// Makes it unreachable, or reachable again.
    pub fn set_down(&self, down: bool) {
        self.shared.down.store(down, Ordering::SeqCst);
    }

    /// Makes every call about one resource take so long.
    pub fn set_slow(&self, resource: ResourceName, delay: Duration) {
        let mut slow = self.shared.slow.lock().unwrap_or_else(PoisonError::into_inner);
        slow.insert(resource, delay);
    }

    /// Makes every call about one resource find the cluster unavailable, or no longer.
    pub fn set_broken(&self, resource: ResourceName, broken: bool) {
        let mut all = self.shared.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if broken {
            all.insert(resource)
        } else {
            all.remove(&resource)
        };
    }

    /// How many calls of any sort were made.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// How many observations were asked for.
    pub fn observations(&self) -> u64 {
        self.shared.observations.load(Ordering::SeqCst)
    }

    /// Somebody edits the resource by hand.
    ///
    /// # Errors
    /// It is not there, or the file cannot be written.
    pub fn edit_by_hand(&self, resource: &ResourceName, spec: ServiceSpec) -> Result<(), GatewayError> {
        let entry = Entry::Edited { at: Utc::now(), resource: resource.clone(), spec };
        self.act(|world, now| match world.is_there(resource, now) {
            true => Ok(((), Some(entry))),
            false => Err(GatewayError::NotFound { what: resource.to_string() }),
        })
    }

    /// Somebody makes a resource by hand that is no service of ours.
    ///
    /// # Errors
    /// There is one, or the file cannot be written.
    pub fn make_by_hand(&self, resource: &ResourceName, spec: ServiceSpec) -> Result<(), GatewayError> {
        let entry = Entry::Edited { at: Utc::now(), resource: resource.clone(), spec };
        self.act(|world, now| match world.is_there(resource, now) {
            false => Ok(((), Some(entry))),
            true => Err(GatewayError::Conflict { resource: resource.clone(), by: "another".to_owned() }),
        })
    }

    /// Somebody deletes the resource by hand.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn delete_by_hand(&self, resource: &ResourceName) -> Result<(), GatewayError> {
        let entry = Entry::Vanished { at: Utc::now(), resource: resource.clone() };
        self.act(|_, _| Ok(((), Some(entry))))
    }

    /// What is there, without a call: for who compares.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn look(&self, resource: &ResourceName) -> Result<Observed, GatewayError> {
        self.act(|world, now| Ok((world.observe(resource, now), None)))
    }

    /// Does something to the cluster as it is now, and writes it down.
    fn act<T>(
        &self,
        act: impl FnOnce(&World, DateTime<Utc>) -> Result<(T, Option<Entry>), GatewayError>,
    ) -> Result<T, GatewayError> {
        let mut kept = self.shared.kept();
        let done = kept.exclusively(|world| act(world, Utc::now()));
        done.map_err(|error| GatewayError::Unavailable { message: error.to_string() })?
    }

    /// What every call goes through first.
    async fn call(&self, resource: Option<&ResourceName>) -> Result<(), GatewayError> {
        let shared = &self.shared;
        let number = shared.calls.fetch_add(1, Ordering::SeqCst);
        let slow = resource.and_then(|resource| shared.slow().get(resource).copied());
        let delay = slow.unwrap_or(shared.settings.call_delay);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let unlucky = chance(shared.settings.seed, &["call", &number.to_string()]) * 100.0
            < f64::from(shared.settings.unavailable_percent);
        let broken = resource.is_some_and(|resource| {
            shared.broken.lock().unwrap_or_else(PoisonError::into_inner).contains(resource)
        });
        if shared.down.load(Ordering::SeqCst) || unlucky || broken {
            return Err(GatewayError::Unavailable { message: "the simulated cluster is away".to_owned() });
        }
        Ok(())
    }
}

impl Shared {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slow(&self) -> MutexGuard<'_, BTreeMap<ResourceName, Duration>> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Takes in what other processes have written.
    fn catch_up(&mut self) -> std::io::Result<()> {
        if let Some(journal) = &mut self.journal {
            let _lock = journal.lock()?;
            for entry in journal.read_on()? {
                self.world.take_in(entry);
            }
        }
        Ok(())
    }

    /// Runs something while no other process writes.
    fn exclusively<T>(
        &mut self,
        act: impl FnOnce(&World) -> Result<(T, Option<Entry>), GatewayError>,
    ) -> std::io::Result<Result<T, GatewayError>> {
        let Some(journal) = &mut self.journal else {
            return Ok(act(&self.world).map(|(answer, entry)| {
                entry.into_iter().for_each(|entry| self.world.take_in(entry));
                answer
            }));
        };
        let _lock = journal.lock()?;
        for entry in journal.read_on()? {
            self.world.take_in(entry);
        }
        match act(&self.world) {
            Err(error) => Ok(Err(error)),
            Ok((answer, None)) => Ok(Ok(answer)),
            Ok((answer, Some(entry))) => {
                journal.write(&entry)?;
                self.world.take_in(entry);
                Ok(Ok(answer))
            }
        }
    }
}

#[async_trait]
impl ServingGateway for SimulatedCluster {
    async fn apply(&self, apply: &Apply) -> Result<Applied, GatewayError> {
        self.call(Some(&apply.resource)).await?;
        if self.shared.settings.missing_namespaces.contains(&apply.resource.namespace) {
            return Err(GatewayError::NotFound { what: format!("namespace {}", apply.resource.namespace) });
        }
        self.act(|world, now| world.apply(apply, now))
    }

    async fn observe(&self, resource: &ResourceName) -> Result<Observed, GatewayError> {
        self.shared.observations.fetch_add(1, Ordering::SeqCst);
        self.call(Some(resource)).await?;
        self.look(resource)
    }

    async fn delete(&self, service_id: &str, resource: &ResourceName) -> Result<Deletion, GatewayError> {
        self.call(Some(resource)).await?;
        self.act(|world, now| Ok(world.delete(service_id, resource, now)))
    }

    async fn namespace_exists(&self, namespace: &str) -> Result<bool, GatewayError> {
        self.call(None).await?;
        Ok(!self.shared.settings.missing_namespaces.contains(namespace))
    }

    async fn reachable(&self) -> Result<(), GatewayError> {
        self.call(None).await
    }

    async fn watch(&self) -> Result<Option<BoxStream<'static, ResourceName>>, GatewayError> {
        if !self.shared.settings.watched {
            return Ok(None);
        }
        self.call(None).await?;
        let shared = self.shared.clone();
        let before = shared.kept().world.changed(Utc::now());
        let batches = stream::unfold((shared, before), |(shared, told)| async move {
            tokio::time::sleep(WATCH_TICK).await;
            // While it is away it tells nothing, and the watch ends.
            if shared.down.load(Ordering::SeqCst) {
                return None;
            }
            let changed = {
                let mut kept = shared.kept();
                if kept.catch_up().is_err() {
                    return None;
                }
                kept.world.changed(Utc::now())
            };
            let names: BTreeSet<ResourceName> =
                changed.difference(&told).map(|(_, name)| name.clone()).collect();
            Some((stream::iter(names), (shared, changed)))
        });
        Ok(Some(batches.flatten().boxed()))
    }
}

#[cfg(test)]
mod tests;
