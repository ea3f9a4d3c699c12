//! Hive as a part of a Towpath: its aggregates, channels, consumers, tables and observer, put together.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use towpath::ids::Version;
use towpath::observer::{Looks, Observer, ObserverPolicy, ObserverWake};
use towpath::ports::store::StoreResult;
use towpath::tables::{Listing, Page};
use towpath::{
    Application, Builder, Channel, ChannelChain as _, ChannelPolicy, HandlerError, Projection as _,
    SendError, SqlStore, Towpath,
};

use crate::alerts::Alert;
use crate::consumers;
use crate::gateway::ServingGateway;
use crate::knative::{KnativeService, KnativeServiceEvent};
use crate::namespace::{Namespace, NamespaceEvent};
use crate::record::ServiceRecord;
use crate::service::{Service, ServiceEvent, ServiceStatus};
use crate::tables::{AuditRow, NamespaceRow, RevisionRow, ServiceRow, SpecRow, TABLES};
use crate::targets::Targets;
use crate::views::{self, Services};

/// The name of hive's observer: of its lease, and among [`Towpath::observers`].
pub const OBSERVER: &str = "hive";

// One channel per sort of reader: what is of no interest to a handler does not get into its queue.

/// What the read models are made of.
const FACTS: [&str; 4] = [
    "service.*",
    NamespaceEvent::VALIDATED,
    KnativeServiceEvent::REVISION_CREATED,
    KnativeServiceEvent::ROUTE_ALIGNED,
];

/// What services learn of the platform.
pub(crate) const OBSERVED: [&str; 2] = [KnativeServiceEvent::OBSERVED, KnativeServiceEvent::DELETED_OBSERVED];

/// What is kept in the records.
const REQUESTED: [&str; 4] = [
    ServiceEvent::CREATION_REQUESTED,
    ServiceEvent::UPDATE_REQUESTED,
    ServiceEvent::DELETION_REQUESTED,
    ServiceEvent::SPEC_ACCEPTED,
];

/// How often somebody who waits looks.
const WAIT_TICK: Duration = Duration::from_millis(100);

/// How hive works.
#[derive(Debug, Clone, PartialEq)]
pub struct HiveSettings {
    /// How often the platform is looked at (H14).
    pub interval: Duration,
    /// How often the instance that looks asks what has become due: so late does it learn of what another one was asked for.
    pub poll: Duration,
    /// For how long a READY service needs no look (H14).
    pub ready_stale: Duration,
    /// How many looks in a row must find a service not ready before it is FAILED (H6). Looks that hints lead to within an
    /// interval count once.
    pub failure_threshold: u32,
    /// How long a service may be CREATING or UPDATING, from the first look on; then it is FAILED. Zero: for ever.
    pub converges_within: Duration,
    /// How long a service may be DELETING, from the first look on; then that is told, and it is deleted again. Zero: for ever.
    pub deleted_within: Duration,
    /// Whether a READY service that is something else on the platform, or gone, is brought back to what was asked for.
    pub correct_drift: bool,
    /// How many looks run at a time.
    pub concurrency: usize,
    /// How long one look may take.
    pub timeout: Duration,
    /// How long a caller with `wait` is kept at most.
    pub wait_at_most: Duration,
    /// What its channels are called, and so its exchanges or topics. Two hives on one broker need different names: each takes
    /// all that is published under its own.
    pub channel: String,
    /// How its facts are published (H12).
    pub publishing: ChannelPolicy,
}

impl Default for HiveSettings {
    /// The source's numbers: every 60 s, 15 min, 1. And 10 minutes for what is waited for. That facts are published every 2 s, with
    /// 10 attempts (H12), is what a channel does by itself.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(60),
            poll: Duration::from_secs(1),
            ready_stale: Duration::from_secs(15 * 60),
            failure_threshold: 1,
            converges_within: Duration::from_secs(10 * 60),
            deleted_within: Duration::from_secs(10 * 60),
            correct_drift: false,
            concurrency: 16,
            timeout: Duration::from_secs(10),
            wait_at_most: Duration::from_secs(20),
            channel: "hive".to_owned(),
            publishing: ChannelPolicy::default(),
        }
    }
}

/// Hive, to be made part of a Towpath.
#[derive(Clone)]
pub struct Hive {
    settings: HiveSettings,
    gateway: Arc<dyn ServingGateway>,
    wake: ObserverWake,
}

/// A service as it is now.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceView {
    /// Its id.
    pub service_id: String,
    /// How many facts it has.
    pub version: Version,
    /// What they say.
    pub service: Service,
}

impl Application for Hive {
    const NAME: &'static str = "hive";

    fn install(&self, builder: Builder) -> Builder {
        Hive::install(self, builder)
    }
}

impl Hive {
    /// A hive over a gateway.
    pub fn new(settings: HiveSettings, gateway: Arc<dyn ServingGateway>) -> Self {
        Self { settings, gateway, wake: ObserverWake::default() }
    }

    /// How it works.
    pub fn settings(&self) -> &HiveSettings {
        &self.settings
    }

    /// Makes the observer of this process look now.
    pub fn look_now(&self) {
        self.wake.wake();
    }

    /// Adds everything that hive is made of.
    pub fn install(&self, builder: Builder) -> Builder {
        let settings = &self.settings;
        let [facts, observed, requested] = self.channels();
        let publishing = |name: &str, event_types: &[&str]| {
            Channel::named(name, event_types.iter().copied()).with(settings.publishing.clone())
        };
        let policy = ObserverPolicy {
            poll: settings.poll.min(settings.interval),
            longest_pause: settings.interval,
            concurrency: settings.concurrency,
            timeout: settings.timeout,
            ..ObserverPolicy::default()
        };
        let targets = Targets::new(self.gateway.clone(), settings.clone());
        builder
            .channel(publishing(&facts, &FACTS))
            .channel(publishing(&observed, &OBSERVED))
            .channel(publishing(&requested, &REQUESTED))
            .aggregate::<Service>()
            .aggregate::<KnativeService>()
            .aggregate::<ServiceRecord>()
            .aggregate::<Namespace>()
            .tables(&TABLES)
            .projections(views::projections(&facts, settings.ready_stale))
            .consumer(consumers::observations(&observed))
            .consumer(consumers::records(&requested))
            .observer(Observer::named(OBSERVER, targets, policy, self.wake.clone()))
    }

    /// A service as it is now: from its own facts, not from the view.
    pub async fn service(&self, app: &Towpath, service_id: &str) -> Result<Option<ServiceView>, SendError> {
        let view = app.load::<Service>(service_id).await?;
        Ok(view.map(|view| ServiceView {
            service_id: service_id.to_owned(),
            version: view.version,
            service: view.value,
        }))
    }

    /// Waits until a service has settled (READY or FAILED; DELETED), or until that has taken too long; answers what is then.
    pub async fn settled(&self, app: &Towpath, service_id: &str) -> Result<Option<ServiceView>, SendError> {
        let deadline = tokio::time::Instant::now() + self.settings.wait_at_most;
        loop {
            let view = self.service(app, service_id).await?;
            let status = view.as_ref().and_then(|view| view.service.status);
            let settled = status.is_none_or(ServiceStatus::is_settled);
            if settled || tokio::time::Instant::now() + WAIT_TICK > deadline {
                return Ok(view);
            }
            tokio::time::sleep(WAIT_TICK).await;
        }
    }

    /// When a service was last looked at, and why it could not be since.
    pub async fn looks(&self, store: &SqlStore, service_id: &str) -> StoreResult<Looks> {
        Ok(store.looks_at(OBSERVER, service_id).await?.unwrap_or_default())
    }

    /// The alerts about the platform, the last raised first.
    pub async fn alerts(&self, store: &SqlStore, limit: u32) -> StoreResult<Vec<Alert>> {
        Ok(store.page("hive.alerts", Listing::by("raised_at", limit).last_first()).await?.rows)
    }

    /// The id for a new service of this name. Names can be used again once a service is DELETED, ids cannot.
    pub async fn free_id(&self, app: &Towpath, namespace: &str, name: &str) -> Result<String, SendError> {
        // Up to some number all are DELETED, and none behind it: it is found in doubled steps, and then by halves.
        let (mut over, mut free) = (0_u32, 1_u32);
        while free < u32::MAX && self.is_deleted(app, &numbered_id(namespace, name, free)).await? {
            (over, free) = (free, free.saturating_mul(2));
        }
        while free - over > 1 {
            let middle = over + (free - over) / 2;
            match self.is_deleted(app, &numbered_id(namespace, name, middle)).await? {
                true => over = middle,
                false => free = middle,
            }
        }
        Ok(numbered_id(namespace, name, free))
    }

    async fn is_deleted(&self, app: &Towpath, service_id: &str) -> Result<bool, SendError> {
        let view = self.service(app, service_id).await?;
        Ok(view.is_some_and(|view| view.service.status == Some(ServiceStatus::Deleted)))
    }

    /// Services of the status view, by id, behind one.
    pub async fn services(
        &self,
        store: &SqlStore,
        after: &str,
        status: Option<ServiceStatus>,
        limit: u32,
        bytes: u64,
    ) -> StoreResult<Page<ServiceView>> {
        let listing = Listing::by("service_id", limit).only("status", status.map(ServiceStatus::as_str));
        let page = store.page("hive.services", listing.behind(Some(after)).within(bytes)).await?;
        Ok(page.map(|ServiceRow { service_id, version, service, .. }| ServiceView {
            service_id,
            version,
            service: service.into_value(),
        }))
    }

    /// The revisions of a service that were seen, by name (oldest first), behind one.
    pub async fn revisions(
        &self,
        store: &SqlStore,
        service_id: &str,
        after: &str,
        limit: u32,
    ) -> StoreResult<Page<RevisionRow>> {
        let listing = Listing::by("revision", limit).only("service_id", Some(service_id));
        store.page("hive.revisions", listing.behind(Some(after))).await
    }

    /// The specifications that a service has had, by their versions, behind one.
    pub async fn specs(
        &self,
        store: &SqlStore,
        service_id: &str,
        after: u64,
        limit: u32,
        bytes: u64,
    ) -> StoreResult<Page<SpecRow>> {
        let listing = Listing::by("spec_version", limit).only("service_id", Some(service_id));
        store.page("hive.specs", listing.behind(Some(after)).within(bytes)).await
    }

    /// Who asked for what, the last one first, before one of them; of one service or of all.
    pub async fn audit(
        &self,
        store: &SqlStore,
        service_id: Option<&str>,
        before: Option<&str>,
        limit: u32,
    ) -> StoreResult<Page<AuditRow>> {
        // Ids of events are in the order of their moments.
        let listing = Listing::by("event_id", limit).last_first();
        store.page("hive.audit", listing.only("service_id", service_id).behind(before)).await
    }

    /// The namespaces that were asked for, by name, behind one.
    pub async fn namespaces(
        &self,
        store: &SqlStore,
        after: &str,
        limit: u32,
    ) -> StoreResult<Page<NamespaceRow>> {
        store.page("hive.namespaces", Listing::by("namespace", limit).behind(Some(after))).await
    }

    /// What its facts go out on.
    pub fn channels(&self) -> [String; 3] {
        let facts = &self.settings.channel;
        [facts.clone(), format!("{facts}.observed"), format!("{facts}.requested")]
    }
}

/// The longest id that an aggregate can have.
const LONGEST_ID: usize = 128;

/// The id of the how-manieth service of a name. A name that leaves no room for the number is cut, and its hash tells it
/// from others that begin alike.
fn numbered_id(namespace: &str, name: &str, number: u32) -> String {
    let first = format!("{namespace}.{name}");
    if number == 1 {
        return first;
    }
    let end = format!(".{number}");
    if first.len() + end.len() <= LONGEST_ID {
        return format!("{first}{end}");
    }
    let digest = Sha256::digest(first.as_bytes());
    let hash: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    // DNS labels: a character is a byte.
    let kept: String = first.chars().take(LONGEST_ID - end.len() - hash.len() - 1).collect();
    format!("{kept}-{hash}{end}")
}

/// What a rebuild did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebuilt {
    /// How many facts of hive were read.
    pub facts: u64,
    /// How many services there are.
    pub services: u64,
}

/// Makes the read models anew from the log (H11). Hive may run meanwhile: what its consumers have taken in since is kept.
/// A rebuild that fails has left rows that are right, or as they were; the next one begins anew.
///
/// # Errors
/// A fact that cannot be read, when all other services are through; or the store's.
pub async fn rebuild(store: &SqlStore, ready_stale: Duration) -> Result<Rebuilt, HandlerError> {
    store.ready().await?;
    let rebuilt = views::projections(Hive::NAME, ready_stale).rebuild(store).await?;
    match rebuilt.failures.into_iter().next() {
        Some(failed) => Err(failed.error),
        None => {
            let services = rebuilt.aggregates.get(Services::NAME).copied().unwrap_or_default();
            Ok(Rebuilt { facts: rebuilt.facts, services })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath::ids::AggregateKey;

    #[test]
    fn every_allowed_name_can_be_used_again() {
        assert_eq!(numbered_id("shop", "cart", 1), "shop.cart");
        assert_eq!(numbered_id("shop", "cart", 12), "shop.cart.12");
        let (namespace, name) = ("n".repeat(63), "c".repeat(63));
        let other = format!("{}d", "c".repeat(62));
        let mut ids = std::collections::BTreeSet::new();
        for number in [1, 2, 10, u32::MAX] {
            for name in [&name, &other] {
                let id = numbered_id(&namespace, name, number);
                assert!(AggregateKey::new(<Service as towpath::Aggregate>::KIND, &id).is_ok(), "{id}");
                assert_eq!(id, numbered_id(&namespace, name, number), "the same each time");
                assert!(ids.insert(id), "each has its own");
            }
        }
    }
}
