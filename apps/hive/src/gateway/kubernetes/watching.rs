//! Hints from the API server: names of services of ours that have changed.
//!
//! The watch itself is kube's: it lists, follows, goes on from the last version that it saw when a connection ends, and
//! lists again when the server has forgotten that version (410). A list alone is no news, so the versions that were seen
//! are kept, beyond the end of a watch: what differs from them has changed while nobody watched.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use kube::ResourceExt as _;
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};

use super::calls::Calls;
use super::faults::Fault;
use crate::gateway::GatewayError;
use crate::spec::{ResourceName, SERVICE_ID_LABEL};

/// After how many failures, with no change between them, a watch counts as ended.
const MOST_FAILURES: u32 = 3;

type Watched = PartialObjectMeta<DynamicObject>;
type Versions = BTreeMap<ResourceName, String>;

/// The version of each service of ours that was seen last; `None` before the first list.
#[derive(Default)]
pub(super) struct KnownVersions(Mutex<Option<Versions>>);

/// Begins to watch. It is sure to have begun when this answers: what changes from then on is told. The pages of a list show
/// one version, that of the first page, and the watch goes on from there; so the first page is all that is waited for, and
/// a long list is read while others already listen.
pub(super) async fn watch(
    calls: &Calls,
    known: Arc<KnownVersions>,
) -> Result<BoxStream<'static, ResourceName>, GatewayError> {
    let seconds = u32::try_from(calls.watch_timeout().as_secs()).unwrap_or(u32::MAX).max(1);
    let config = watcher::Config::default().labels(SERVICE_ID_LABEL).timeout(seconds);
    let events = watcher::watcher(calls.watched(), config).boxed();
    let mut watch = Watch {
        events,
        known,
        call_timeout: calls.call_timeout(),
        listing: Some(Versions::new()),
        failures: 0,
    };
    // A list is about no service in particular.
    let changed = watch.first_page().await.map_err(|fault| fault.about(&ResourceName::default()))?;
    let later = stream::unfold(watch, |mut watch| async move {
        let changed = watch.next().await?;
        Some((stream::iter(changed), watch))
    });
    Ok(stream::iter(changed).chain(later.flatten()).boxed())
}

struct Watch {
    events: BoxStream<'static, watcher::Result<Event<Watched>>>,
    known: Arc<KnownVersions>,
    call_timeout: Duration,
    /// What the list that is being read has shown so far; `None` between lists.
    listing: Option<Versions>,
    failures: u32,
}

impl Watch {
    /// Reads the first page of the first list.
    async fn first_page(&mut self) -> Result<Vec<ResourceName>, Fault> {
        loop {
            match self.event().await {
                Some(Ok(Event::Init)) => {}
                Some(Ok(event)) => return Ok(self.take(event)),
                Some(Err(failure)) => return Err(failure.into()),
                None => {
                    let message = "the watch has ended before it began".to_owned();
                    return Err(Fault::Silent { message });
                }
            }
        }
    }

    /// The next event. A list comes page by page, and each page has the time of one call; between lists there may be nothing
    /// to tell for as long as it takes.
    async fn event(&mut self) -> Option<Result<Event<Watched>, Failure>> {
        let next = self.events.next();
        let event = match self.listing {
            Some(_) => match tokio::time::timeout(self.call_timeout, next).await {
                Ok(event) => event,
                Err(_) => return Some(Err(Failure::TimedOut { after: self.call_timeout })),
            },
            None => next.await,
        };
        event.map(|event| event.map_err(Failure::Told))
    }

    /// The next changes; `None` when it is better to begin anew.
    async fn next(&mut self) -> Option<Vec<ResourceName>> {
        loop {
            match self.event().await? {
                Ok(event) => {
                    let changed = self.take(event);
                    if !changed.is_empty() {
                        self.failures = 0;
                        return Some(changed);
                    }
                }
                // The server has forgotten the version, and a list follows by itself; or the connection has ended, and it
                // goes on from the last version. Not for ever: who begins anew pauses first.
                Err(Failure::Told(watcher::Error::WatchError(_) | watcher::Error::WatchFailed(_)))
                    if self.failures < MOST_FAILURES =>
                {
                    self.failures += 1;
                }
                Err(failure) => {
                    let cause = Fault::from(failure).about(&ResourceName::default());
                    tracing::warn!(%cause, "the services of the cluster cannot be watched; it is tried again");
                    return None;
                }
            }
        }
    }

    fn take(&mut self, event: Event<Watched>) -> Vec<ResourceName> {
        match event {
            Event::Init => self.listing = Some(Versions::new()),
            Event::InitApply(object) => {
                let version = object.resource_version().unwrap_or_default();
                self.listing.get_or_insert_default().insert(name_of(&object), version);
            }
            Event::InitDone => return self.known.replace(self.listing.take().unwrap_or_default()),
            Event::Apply(object) => {
                let (name, version) = (name_of(&object), object.resource_version().unwrap_or_default());
                self.known.change(|versions| versions.insert(name.clone(), version));
                return vec![name];
            }
            Event::Delete(object) => {
                let name = name_of(&object);
                self.known.change(|versions| versions.remove(&name));
                return vec![name];
            }
        }
        Vec::new()
    }
}

impl KnownVersions {
    /// Takes a list in; the answer is what differs from what was known. Of the first list, nothing is: who starts to watch
    /// looks at everything that is due anyway.
    fn replace(&self, listed: Versions) -> Vec<ResourceName> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = known.replace(listed);
        let (Some(earlier), Some(listed)) = (earlier, known.as_ref()) else { return Vec::new() };
        let changed = listed.iter().filter(|(name, version)| earlier.get(name) != Some(version));
        let gone = earlier.iter().filter(|(name, _)| !listed.contains_key(name));
        changed.chain(gone).map(|(name, _)| name.clone()).collect()
    }

    fn change(&self, change: impl FnOnce(&mut Versions) -> Option<String>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(known.get_or_insert_default());
    }
}

fn name_of(object: &Watched) -> ResourceName {
    ResourceName::new(object.namespace().unwrap_or_default(), object.name_any())
}

/// Why there is no event.
enum Failure {
    /// The watcher says so.
    Told(watcher::Error),
    /// A page has not come in time.
    TimedOut { after: Duration },
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        let error = match failure {
            Failure::Told(error) => error,
            Failure::TimedOut { after } => return Self::TimedOut { after },
        };
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => Self::of_client(error),
            watcher::Error::WatchError(status) => Self::Answered { code: status.code, status },
            watcher::Error::NoResourceVersion => {
                Self::Silent { message: "the server shows services without their versions".to_owned() }
            }
        }
    }
}
