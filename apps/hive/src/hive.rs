//! Hive as a part of a Towpath: its aggregates, channels, consumers, tables and observer, put together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use towpath::ids::{AggregateKey, Version};
use towpath::observer::{Observer, ObserverPolicy, ObserverWake};
use towpath::ports::store::{StateEvent, Store as _, StoreError};
use towpath::tables::{Record, Value};
use towpath::{Builder, Channel, HandlerError, IncomingEvent, SendError, SqlStore, Towpath};

use crate::consumers;
use crate::gateway::ServingGateway;
use crate::knative::KnativeService;
use crate::namespace::Namespace;
use crate::record::ServiceRecord;
use crate::service::{Service, ServiceStatus};
use crate::tables::TABLES;
use crate::targets::Targets;
use crate::views::{Pages, ServiceRow};

/// The name of hive's observer: of its lease, and among [`Towpath::observers`].
pub const OBSERVER: &str = "hive";

/// How many events a rebuild reads at a time.
const PAGE: u64 = 1_000;

/// How often somebody who waits looks.
const WAIT_TICK: Duration = Duration::from_millis(100);

/// How hive works.
#[derive(Debug, Clone, PartialEq)]
pub struct HiveSettings {
    /// How often the platform is looked at (H14).
    pub interval: Duration,
    /// For how long a READY service needs no look (H14).
    pub ready_stale: Duration,
    /// How many looks in a row must find a service not ready before it is FAILED (H6).
    pub failure_threshold: u32,
    /// How many looks run at a time.
    pub concurrency: usize,
    /// How long one look may take.
    pub timeout: Duration,
    /// How long a caller with `wait` is kept at most.
    pub wait_at_most: Duration,
    /// What its channels are called, and so its exchanges or topics.
    pub channel: String,
}

impl Default for HiveSettings {
    /// The source's numbers: every 60 s, 15 min, 1.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(60),
            ready_stale: Duration::from_secs(15 * 60),
            failure_threshold: 1,
            concurrency: 16,
            timeout: Duration::from_secs(10),
            wait_at_most: Duration::from_secs(20),
            channel: "hive".to_owned(),
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
        let facts = settings.channel.clone();
        // One channel per sort of reader: what is of no interest to a handler does not get into its queue.
        let (observed, requested) = (format!("{facts}.observed"), format!("{facts}.requested"));
        let (stale, interval) = (settings.ready_stale, settings.interval);
        let targets = Targets::new(self.gateway.clone(), settings.failure_threshold, interval, stale);
        let policy = ObserverPolicy {
            interval,
            concurrency: settings.concurrency,
            timeout: settings.timeout,
            ..ObserverPolicy::default()
        };
        builder
            .aggregate::<Service>()
            .aggregate::<KnativeService>()
            .aggregate::<ServiceRecord>()
            .aggregate::<Namespace>()
            .tables(&TABLES)
            .channel(Channel::named(
                &facts,
                ["service.*", "NamespaceValidated", "RevisionCreated", "RouteAligned"],
            ))
            .channel(Channel::named(&observed, ["KnativeServiceObserved", "KnativeServiceDeletedObserved"]))
            .channel(Channel::named(
                &requested,
                [
                    "service.creation.requested",
                    "service.update.requested",
                    "service.deletion.requested",
                    "service.spec.accepted",
                ],
            ))
            .consumer(consumers::views(&facts, stale, self.wake.clone()))
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
            let settled = view.as_ref().and_then(|view| view.service.status).is_none_or(|status| {
                matches!(status, ServiceStatus::Ready | ServiceStatus::Failed | ServiceStatus::Deleted)
            });
            if settled || tokio::time::Instant::now() + WAIT_TICK > deadline {
                return Ok(view);
            }
            tokio::time::sleep(WAIT_TICK).await;
        }
    }

    /// The id for a new service of this name. Names can be used again once a service is DELETED, ids cannot.
    pub async fn free_id(&self, app: &Towpath, namespace: &str, name: &str) -> Result<String, SendError> {
        let first = format!("{namespace}.{name}");
        let mut number = 1_u32;
        loop {
            let id = if number == 1 { first.clone() } else { format!("{first}.{number}") };
            match self.service(app, &id).await? {
                Some(view) if view.service.status == Some(ServiceStatus::Deleted) => number += 1,
                _ => return Ok(id),
            }
        }
    }

    /// Services of the status view, by id, behind one.
    pub async fn services(
        &self,
        store: &SqlStore,
        after: &str,
        status: Option<&str>,
        limit: u32,
    ) -> Result<Vec<ServiceRow>, HandlerError> {
        let mut values: Vec<Value<'_>> = vec![after.into()];
        let mut only = "";
        if let Some(status) = status {
            only = "AND status = ? ";
            values.push(status.into());
        }
        let sql = format!(
            "SELECT service_id, version, service, created_at, updated_at, status_changed_at, \
             status_reason AS wanted, status_reason AS cause_id, status_reason AS flow_id \
             FROM hive_services WHERE service_id > ? {only}ORDER BY service_id LIMIT {limit}"
        );
        store.own_rows("hive.services", &sql, values).await?.iter().map(ServiceRow::read).collect()
    }

    /// The revisions of a service that were seen, oldest first.
    pub async fn revisions(&self, store: &SqlStore, service_id: &str) -> Result<Vec<Record>, StoreError> {
        let sql = "SELECT revision, image, spec_hash, created_at, seen_at FROM hive_revisions \
                   WHERE service_id = ? ORDER BY revision";
        store.own_rows("hive.revisions", sql, vec![service_id.into()]).await
    }

    /// Where the requests of a service go.
    pub async fn route(&self, store: &SqlStore, service_id: &str) -> Result<Option<Record>, StoreError> {
        let sql = "SELECT url, traffic, aligned_at FROM hive_routes WHERE service_id = ?";
        Ok(store.own_rows("hive.route", sql, vec![service_id.into()]).await?.into_iter().next())
    }

    /// The state changes of a service.
    pub async fn history(
        &self,
        app: &Towpath,
        service_id: &str,
        after: Version,
        limit: u32,
    ) -> Result<Vec<StateEvent>, SendError> {
        let key = AggregateKey::new(<Service as towpath::Aggregate>::KIND, service_id)?;
        app.history_of(&key, after, limit).await.map_err(SendError::Store)
    }
}

/// What a rebuild did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebuilt {
    /// How many facts of hive were read.
    pub facts: u64,
    /// How many services there are.
    pub services: usize,
}

/// Makes the read models anew from the log (H11). Hive may run meanwhile: what its consumers have taken in since is kept.
///
/// # Errors
/// A fact that cannot be read, or the store's.
pub async fn rebuild(store: &SqlStore, ready_stale: Duration) -> Result<Rebuilt, HandlerError> {
    let kinds = [
        <Service as towpath::Aggregate>::KIND,
        <KnativeService as towpath::Aggregate>::KIND,
        <ServiceRecord as towpath::Aggregate>::KIND,
        <Namespace as towpath::Aggregate>::KIND,
    ];
    // Rows that are younger may stem from facts without a position, which the log does not show yet.
    let older = chrono::Utc::now() - chrono::TimeDelta::seconds(60);
    let mut pages = Pages::default();
    let (mut facts, mut low, head) = (0, 1, store.head().await?);
    while low <= head {
        let high = (low + PAGE - 1).min(head);
        for recorded in store.events_between(low, high).await? {
            if kinds.contains(&recorded.envelope.aggregate.kind.as_str()) {
                pages.take(&IncomingEvent::from(recorded.envelope))?;
                facts += 1;
            }
        }
        low = high + 1;
    }
    let services = pages.services.len();
    // All of them are looked at again: what was missed is found.
    pages.urgent = pages.services.keys().cloned().collect();
    let mut transaction = store.open_transaction().await?;
    let mut tables = transaction.own_tables();
    for (table, column) in [
        ("hive_services", "updated_at"),
        ("hive_revisions", "seen_at"),
        ("hive_routes", "aligned_at"),
        ("hive_specs", "persisted_at"),
        ("hive_audit", "requested_at"),
        ("hive_namespaces", "validated_at"),
    ] {
        let sql = format!("DELETE FROM {table} WHERE {column} < ?");
        tables.execute("hive.rebuild.clear", &sql, vec![older.into()]).await?;
    }
    tables.execute("hive.rebuild.lock", "UPDATE hive_services SET version = version", Vec::new()).await?;
    let mut younger = [BTreeMap::new(), BTreeMap::new()];
    for (table, known) in ["hive_services", "hive_routes"].into_iter().zip(&mut younger) {
        let sql = format!("SELECT service_id, version FROM {table}");
        for record in tables.rows("hive.rebuild.known", &sql, Vec::new()).await? {
            known.insert(record.text("service_id")?, record.count("version")?);
        }
    }
    let [known_services, known_routes] = younger;
    pages.without_older(&known_services, &known_routes);
    consumers::write(&mut tables, &pages, ready_stale).await?;
    transaction.finish().await?;
    Ok(Rebuilt { facts, services })
}
