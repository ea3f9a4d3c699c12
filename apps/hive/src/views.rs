//! The read models (H11): what facts make of rows. Pure; who reads facts and writes rows is elsewhere.
//!
//! The consumer takes facts as they come, a rebuild takes all of them from the log; both go through [`Pages`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::ids::AggregateKey;
use towpath::observer::{Look, Watch, Watched};
use towpath::tables::{Record, Table, Value};
use towpath::{Aggregate, HandlerError, IncomingEvent, Payload};

use crate::knative::{KnativeService, KnativeServiceEvent, RevisionCreated, RouteAligned};
use crate::namespace::{Namespace, NamespaceValidated};
use crate::record::{RecordEvent, ServiceAudited, ServicePersisted, ServiceRecord};
use crate::service::{Service, ServiceEvent, ServiceStatus};
use crate::spec::ResourceName;
use crate::tables::{AUDIT, NAMESPACES, REVISIONS, ROUTES, SERVICES, SPECS};
use crate::targets::Kept;
use crate::texts;

/// The longest that a look is put off: nobody means longer, and not every database can write a far moment down.
const LONGEST: Duration = Duration::from_secs(3600 * 24 * 365);

/// The code of a fact that comes before those that it follows.
const OUT_OF_ORDER: &str = "fact-out-of-order";

/// For how long a service is left alone of which more facts are on their way.
pub(crate) const UNFINISHED: Duration = Duration::from_secs(3600);

/// Rows as facts have made them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pages {
    /// Services, by id.
    pub services: BTreeMap<String, ServiceRow>,
    revisions: BTreeMap<(String, String), (RevisionCreated, DateTime<Utc>)>,
    routes: BTreeMap<String, (u64, RouteAligned, DateTime<Utc>)>,
    specs: BTreeMap<(String, u64), (ServicePersisted, DateTime<Utc>)>,
    audit: BTreeMap<String, ServiceAudited>,
    namespaces: BTreeMap<String, (u64, NamespaceValidated)>,
    /// Services that want to be looked at now.
    pub urgent: BTreeSet<String>,
}

/// A service in the status view.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceRow {
    /// Its id.
    pub service_id: String,
    /// How many facts it has.
    pub version: u64,
    /// What they say.
    pub service: Service,
    /// When it began.
    pub created_at: DateTime<Utc>,
    /// When something last happened.
    pub updated_at: DateTime<Utc>,
    /// Since when it has its status.
    pub status_changed_at: DateTime<Utc>,
    /// What is to be done on the platform.
    pub wanted: Option<Wanted>,
    /// The fact because of which something is to be done, or was.
    pub cause: Option<Cause>,
}

/// A table of the read models, by what tells its rows apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Keyed {
    Services,
    Revisions,
    Routes,
    Specs,
    Audit,
    Namespaces,
}

/// What tells a row apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum RowKey {
    /// A service, an event, a namespace.
    One(String),
    /// A revision of a service.
    Named(String, String),
    /// A specification of a service.
    Numbered(String, u64),
}

impl Keyed {
    pub(crate) const ALL: [Self; 6] =
        [Self::Services, Self::Revisions, Self::Routes, Self::Specs, Self::Audit, Self::Namespaces];

    fn table(self) -> &'static Table {
        match self {
            Self::Services => &SERVICES,
            Self::Revisions => &REVISIONS,
            Self::Routes => &ROUTES,
            Self::Specs => &SPECS,
            Self::Audit => &AUDIT,
            Self::Namespaces => &NAMESPACES,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.table().name()
    }

    /// The statement that reads so many keys, behind one. The first column alone leads to where they begin on every database.
    pub(crate) fn keys_behind(self, limit: usize) -> String {
        let key = self.table().primary_key();
        let columns = key.join(", ");
        let behind = match key {
            [first, second, ..] => format!("{first} >= ? AND ({first} > ? OR {second} > ?)"),
            _ => format!("{columns} > ?"),
        };
        format!("SELECT {columns} FROM {} WHERE {behind} ORDER BY {columns} LIMIT {limit}", self.name())
    }

    /// What no key comes before.
    pub(crate) fn before_all(self) -> RowKey {
        match self {
            Self::Revisions => RowKey::Named(String::new(), String::new()),
            Self::Specs => RowKey::Numbered(String::new(), 0),
            _ => RowKey::One(String::new()),
        }
    }

    /// That a row is a certain one.
    pub(crate) fn condition(self) -> String {
        let columns: Vec<String> =
            self.table().primary_key().iter().map(|column| format!("{column} = ?")).collect();
        format!("({})", columns.join(" AND "))
    }

    pub(crate) fn key(self, record: &Record) -> Result<RowKey, HandlerError> {
        Ok(match self {
            Self::Services | Self::Routes => RowKey::One(record.text("service_id")?),
            Self::Audit => RowKey::One(record.text("event_id")?),
            Self::Namespaces => RowKey::One(record.text("namespace")?),
            Self::Revisions => RowKey::Named(record.text("service_id")?, record.text("revision")?),
            Self::Specs => RowKey::Numbered(record.text("service_id")?, record.count("spec_version")?),
        })
    }
}

impl RowKey {
    pub(crate) fn values(&self) -> Vec<Value<'_>> {
        match self {
            Self::One(key) => vec![key.as_str().into()],
            Self::Named(key, name) => vec![key.as_str().into(), name.as_str().into()],
            Self::Numbered(key, number) => vec![key.as_str().into(), (*number).into()],
        }
    }

    /// What [`Keyed::keys_behind`] binds.
    pub(crate) fn values_behind(&self) -> Vec<Value<'_>> {
        let mut values = self.values();
        if values.len() > 1 {
            values.insert(0, values[0].clone());
        }
        values
    }
}

/// Facts that are missing.
#[derive(Debug, PartialEq)]
pub(crate) struct Gap {
    /// Of which service.
    pub(crate) aggregate: AggregateKey,
    /// Behind which version.
    pub(crate) after: u64,
    /// How many.
    pub(crate) count: u32,
}

/// What is to be done on the platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// Nothing yet: more facts of the same change are on their way, and a look would see half of it.
    Facts,
    /// The specification is to be applied.
    Apply,
    /// The resource is to be deleted.
    Delete,
    /// It is to be looked at, whatever is known: somebody has asked.
    Look,
}

/// The fact that started something, and its flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cause {
    /// The fact.
    pub event_id: String,
    /// Its flow.
    pub flow_id: Option<String>,
}

impl Wanted {
    /// From what an earlier version has stored.
    pub(crate) fn from_stored(text: &str) -> Option<Self> {
        serde_json::from_value(text.into()).ok()
    }
}

impl Pages {
    /// Begins with services as they are.
    pub fn knowing(services: BTreeMap<String, ServiceRow>) -> Self {
        Self { services, ..Self::default() }
    }

    /// The services that facts are about.
    pub fn services_of<'e>(events: impl Iterator<Item = &'e IncomingEvent>) -> Vec<String> {
        let keys = events.filter_map(|event| event.aggregate.as_ref());
        let ids: BTreeSet<String> =
            keys.filter(|key| key.kind.as_str() == Service::KIND).map(|key| key.id.to_string()).collect();
        ids.into_iter().collect()
    }

    /// The facts of a service that are not known and come before this one.
    pub(crate) fn gap_before(&self, event: &IncomingEvent) -> Option<Gap> {
        let aggregate = event.aggregate.as_ref().filter(|key| key.kind.as_str() == Service::KIND)?.clone();
        let after = self.services.get(aggregate.id.as_str()).map_or(0, |row| row.version);
        let missing = event.aggregate_version?.checked_sub(after + 1).filter(|missing| *missing > 0)?;
        Some(Gap { aggregate, after, count: u32::try_from(missing).unwrap_or(u32::MAX) })
    }

    /// Takes in a fact.
    ///
    /// # Errors
    /// It cannot be read: that will be no better the next time.
    pub fn take(&mut self, event: &IncomingEvent) -> Result<(), HandlerError> {
        let Some(key) = &event.aggregate else { return Ok(()) };
        let (id, at) = (key.id.to_string(), event.occurred_at.unwrap_or_default());
        let version = event.aggregate_version.unwrap_or_default();
        match key.kind.as_str() {
            Service::KIND => self.take_service(id, version, at, event)?,
            KnativeService::KIND => match event.event_type.as_str() {
                KnativeServiceEvent::REVISION_CREATED => {
                    let created: RevisionCreated = read(event)?;
                    self.revisions.insert((id, texts::code(&created.revision.name)), (created, at));
                }
                KnativeServiceEvent::ROUTE_ALIGNED => {
                    drop(self.routes.insert(id, (version, read(event)?, at)))
                }
                _ => {}
            },
            ServiceRecord::KIND => match event.event_type.as_str() {
                RecordEvent::PERSISTED => {
                    let persisted: ServicePersisted = read(event)?;
                    self.specs.insert((id, persisted.spec_version), (persisted, at));
                }
                RecordEvent::AUDITED => {
                    let audited: ServiceAudited = read(event)?;
                    self.audit.insert(audited.event_id.clone(), audited);
                }
                _ => {}
            },
            Namespace::KIND => drop(self.namespaces.insert(id, (version, read(event)?))),
            _ => {}
        }
        Ok(())
    }

    fn take_service(
        &mut self,
        id: String,
        version: u64,
        at: DateTime<Utc>,
        event: &IncomingEvent,
    ) -> Result<(), HandlerError> {
        let row = self.services.entry(id.clone()).or_insert_with(|| ServiceRow {
            service_id: id.clone(),
            version: 0,
            service: Service::default(),
            created_at: at,
            updated_at: at,
            status_changed_at: at,
            wanted: None,
            cause: None,
        });
        // Known already: delivered again, or taken in by a rebuild.
        if version <= row.version {
            return Ok(());
        }
        // Without the facts before it, a fact would make a service of nothing.
        if version != row.version + 1 {
            let message = format!("{id} is known up to its fact {}, and this is {version}", row.version);
            return Err(HandlerError::transient(OUT_OF_ORDER, message));
        }
        let fact: ServiceEvent = event.read()?;
        let before = row.service.status;
        let cause = || Cause {
            event_id: event.event_id.to_string(),
            flow_id: event.correlation_id.as_ref().map(ToString::to_string),
        };
        match &fact {
            ServiceEvent::CreationRequested(_)
            | ServiceEvent::UpdateRequested(_)
            | ServiceEvent::DeletionRequested(_) => row.wanted = Some(Wanted::Facts),
            ServiceEvent::SpecApplyStarted(_) => {
                (row.wanted, row.cause) = (Some(Wanted::Apply), Some(cause()));
                self.urgent.insert(id);
            }
            ServiceEvent::DeletionMarked(_) => {
                (row.wanted, row.cause) = (Some(Wanted::Delete), Some(cause()));
                self.urgent.insert(id);
            }
            ServiceEvent::SnapshotUpdated(updated) if updated.refresh_requested => {
                row.wanted = row.wanted.or(Some(Wanted::Look));
                self.urgent.insert(id);
            }
            ServiceEvent::SpecApplied(_)
            | ServiceEvent::Ready(_)
            | ServiceEvent::Failed(_)
            | ServiceEvent::Deleted(_) => row.wanted = None,
            _ => {}
        }
        row.service = std::mem::take(&mut row.service).evolve(&fact);
        (row.version, row.updated_at) = (version, at);
        if row.service.status != before {
            row.status_changed_at = at;
        }
        Ok(())
    }

    /// The rows of `hive_services`.
    pub fn service_rows(&self) -> Result<Vec<Vec<Value<'static>>>, HandlerError> {
        self.services.values().map(ServiceRow::values).collect()
    }

    /// What is wanted of the services that are looked at.
    pub fn watches(&self, stale: Duration) -> Result<Vec<Watch>, HandlerError> {
        let living = self.services.values().filter(|row| row.service.status != Some(ServiceStatus::Deleted));
        living.map(|row| row.watch(self.urgent.contains(&row.service_id), stale)).collect()
    }

    /// Services that are not looked at any more.
    pub fn gone(&self) -> Vec<String> {
        let gone = self.services.values().filter(|row| row.service.status == Some(ServiceStatus::Deleted));
        gone.map(|row| row.service_id.clone()).collect()
    }

    /// The rows of `hive_revisions`.
    pub fn revision_rows(&self) -> Vec<Vec<Value<'static>>> {
        let rows = self.revisions.iter().map(|((service_id, name), (created, at))| {
            vec![
                service_id.clone().into(),
                name.clone().into(),
                created.revision.image.as_deref().map(texts::readable).into(),
                created.spec_hash.as_ref().map(ToString::to_string).into(),
                created.revision.created_at.into(),
                (*at).into(),
            ]
        });
        rows.collect()
    }

    /// The rows of `hive_routes`.
    pub fn route_rows(&self) -> Result<Vec<Vec<Value<'static>>>, HandlerError> {
        let rows = self.routes.iter().map(|(service_id, (version, aligned, at))| {
            Ok(vec![
                service_id.clone().into(),
                (*version).into(),
                aligned.url.as_deref().map(texts::readable).into(),
                serde_json::to_string(&aligned.traffic)?.into(),
                (*at).into(),
            ])
        });
        rows.collect()
    }

    /// The rows of `hive_specs`.
    pub fn spec_rows(&self) -> Result<Vec<Vec<Value<'static>>>, HandlerError> {
        let rows = self.specs.iter().map(|((service_id, version), (persisted, at))| {
            Ok(vec![
                service_id.clone().into(),
                (*version).into(),
                persisted.spec_hash.to_string().into(),
                serde_json::to_string(&persisted.spec)?.into(),
                (*at).into(),
            ])
        });
        rows.collect()
    }

    /// The rows of `hive_audit`.
    pub fn audit_rows(&self) -> Vec<Vec<Value<'static>>> {
        let rows = self.audit.values().map(|audited| {
            vec![
                audited.event_id.clone().into(),
                audited.service_id.clone().into(),
                audited.action.clone().into(),
                audited.requested_by.clone().into(),
                audited.requested_at.into(),
            ]
        });
        rows.collect()
    }

    /// The rows of `hive_namespaces`.
    pub fn namespace_rows(&self) -> Vec<Vec<Value<'static>>> {
        let rows = self.namespaces.iter().map(|(namespace, (version, validated))| {
            vec![
                namespace.clone().into(),
                (*version).into(),
                u32::from(validated.exists).into(),
                validated.validated_at.into(),
            ]
        });
        rows.collect()
    }

    /// What tells the rows apart that facts speak of.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (Keyed, RowKey)> + '_ {
        let one = |table| move |key: &String| (table, RowKey::One(key.clone()));
        let revision =
            |(id, name): &(String, String)| (Keyed::Revisions, RowKey::Named(id.clone(), name.clone()));
        let spec = |(id, version): &(String, u64)| (Keyed::Specs, RowKey::Numbered(id.clone(), *version));
        let services = self.services.keys().map(one(Keyed::Services));
        services
            .chain(self.routes.keys().map(one(Keyed::Routes)))
            .chain(self.audit.keys().map(one(Keyed::Audit)))
            .chain(self.namespaces.keys().map(one(Keyed::Namespaces)))
            .chain(self.revisions.keys().map(revision))
            .chain(self.specs.keys().map(spec))
    }

    /// Takes out what needs no later fact: everything but the services.
    pub(crate) fn take_complete(&mut self) -> Self {
        let services = std::mem::take(&mut self.services);
        let urgent = std::mem::take(&mut self.urgent);
        std::mem::replace(self, Self { services, urgent, ..Self::default() })
    }

    /// Takes out so many services.
    pub(crate) fn take_services(&mut self, most: usize) -> Self {
        let mut taken = Self::default();
        while taken.services.len() < most
            && let Some((id, row)) = self.services.pop_first()
        {
            taken.urgent.extend(self.urgent.take(&id));
            taken.services.insert(id, row);
        }
        taken
    }

    /// Drops what is older than what is there.
    pub fn without_older(&mut self, services: &BTreeMap<String, u64>) {
        self.services.retain(|id, row| services.get(id).is_none_or(|known| *known <= row.version));
    }
}

impl ServiceRow {
    /// What is read back.
    pub fn read(record: &Record) -> Result<Self, HandlerError> {
        let service: Service = json(record.text("service")?)?;
        Ok(Self {
            service_id: record.text("service_id")?,
            version: record.count("version")?,
            service,
            created_at: record.time("created_at")?,
            updated_at: record.time("updated_at")?,
            status_changed_at: record.time("status_changed_at")?,
            wanted: None,
            cause: None,
        })
    }

    /// Adds what is kept with what is wanted of it.
    pub(crate) fn read_kept(&mut self, watched: Watched) -> Result<(), HandlerError> {
        let kept = Kept::read(&watched.wanted)?;
        (self.wanted, self.cause) = (kept.wanted, kept.cause);
        Ok(())
    }

    /// Whether it is ready.
    pub fn is_ready(&self) -> bool {
        self.service.snapshot.as_ref().and_then(|snapshot| snapshot.ready).unwrap_or(false)
    }

    fn status(&self) -> &'static str {
        self.service.status.map_or("", ServiceStatus::as_str)
    }

    fn values(&self) -> Result<Vec<Value<'static>>, HandlerError> {
        let service = &self.service;
        let observed = service.snapshot.as_ref().and_then(|snapshot| snapshot.observed_spec_hash.clone());
        Ok(vec![
            self.service_id.clone().into(),
            self.version.into(),
            service.resource.namespace.clone().into(),
            service.resource.name.clone().into(),
            self.status().to_owned().into(),
            self.status_changed_at.into(),
            service.failure.as_ref().map(|failure| texts::code(&failure.reason)).into(),
            service.failure.as_ref().map(|failure| texts::readable(&failure.message)).into(),
            u32::from(self.is_ready()).into(),
            service.desired_spec_hash.to_string().into(),
            observed.map(|hash| hash.to_string()).into(),
            serde_json::to_string(service)?.into(),
            self.created_at.into(),
            self.updated_at.into(),
        ])
    }

    fn watch(&self, urgent: bool, stale: Duration) -> Result<Watch, HandlerError> {
        let service = &self.service;
        let kept = Kept {
            resource: service.resource.clone(),
            status: service.status.unwrap_or(ServiceStatus::Creating),
            spec: service.spec.clone(),
            spec_hash: service.desired_spec_hash.clone(),
            spec_version: service.spec_version,
            force_replace: service.force_replace,
            applied: self.is_applied(),
            // That somebody has asked is over when it was looked at: who looks keeps that.
            wanted: self.wanted.filter(|wanted| *wanted != Wanted::Look),
            cause: self.cause.clone(),
            snapshot: service.snapshot.clone(),
        };
        let look = self.look(urgent, kept.is_missing(), stale);
        Ok(kept.watch(self.service_id.clone(), self.version, look)?)
    }

    fn is_applied(&self) -> bool {
        self.service.spec_version > 0 && self.service.applied_spec_version == self.service.spec_version
    }

    /// When it is to be looked at (H14): a READY service from which nothing is missing when what is known is stale, all
    /// others at the next scan.
    fn look(&self, urgent: bool, missing: bool, stale: Duration) -> Look {
        let now = self.updated_at;
        match self.service.status {
            _ if self.wanted == Some(Wanted::Facts) => Look::Held(UNFINISHED),
            _ if self.wanted == Some(Wanted::Look) => Look::UntilSeen,
            _ if urgent => Look::AtOnce,
            Some(ServiceStatus::Ready) if !missing && self.wanted.is_none() => {
                let seen_at = self.service.snapshot.as_ref().map_or(now, |snapshot| snapshot.observed_at);
                Look::At(later(seen_at, stale))
            }
            _ => Look::AtNextScan,
        }
    }
}

/// So much later.
pub(crate) fn later(moment: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    let by = chrono::TimeDelta::from_std(by.min(LONGEST)).unwrap_or_default();
    moment.checked_add_signed(by).unwrap_or(moment)
}

/// What a look is called by, and what hints name.
pub fn resource_key(resource: &ResourceName) -> String {
    resource.to_string()
}

fn read<T: serde::de::DeserializeOwned>(event: &IncomingEvent) -> Result<T, HandlerError> {
    event
        .payload
        .read(event.event_type.as_str())
        .map_err(|error| HandlerError::unrecoverable("invalid-payload", error.to_string()))
}

/// JSON that was stored.
pub(crate) fn json<T: serde::de::DeserializeOwned>(text: String) -> Result<T, HandlerError> {
    Ok(Payload::from_text(text)?.read("a stored row")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_looked_at_now_is_due_whatever_a_clock_says() {
        // An instance whose clock is an hour ahead has taken this in.
        let ahead = Utc::now() + chrono::TimeDelta::hours(1);
        let row = |status| ServiceRow {
            service_id: "shop.cart".to_owned(),
            version: 1,
            service: Service { status: Some(status), ..Service::default() },
            created_at: ahead,
            updated_at: ahead,
            status_changed_at: ahead,
            wanted: None,
            cause: None,
        };
        let stale = Duration::from_secs(900);
        for status in ServiceStatus::ALL.into_iter().filter(|status| *status != ServiceStatus::Ready) {
            assert_eq!(row(status).look(false, false, stale), Look::AtNextScan, "{status:?}");
        }
        let ready = row(ServiceStatus::Ready);
        assert_eq!(ready.look(true, false, stale), Look::AtOnce, "somebody has just asked");
        let asked = ServiceRow { wanted: Some(Wanted::Look), ..ready.clone() };
        assert_eq!(asked.look(true, false, stale), Look::UntilSeen, "whatever becomes known before");
        let half = ServiceRow { wanted: Some(Wanted::Facts), ..ready.clone() };
        assert_eq!(half.look(true, false, stale), Look::Held(UNFINISHED));
        assert_eq!(ready.look(false, true, stale), Look::AtNextScan, "something is missing");
        assert_eq!(ready.look(false, false, stale), Look::At(ahead + chrono::TimeDelta::minutes(15)));
    }
}
