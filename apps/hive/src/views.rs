//! The read models (H11), and what is to be looked at: what facts make of rows. The library takes the facts in, and makes the
//! rows anew.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::observer::{Look, Watch};
use towpath::projection::{Fact, OwnedTable, RowKey, Rows};
use towpath::tables::{Table, Value};
use towpath::{Aggregate, HandlerError, Payload, Projection, Projections};

use crate::alerts;
use crate::hive::OBSERVER;
use crate::knative::{KnativeService, KnativeServiceEvent};
use crate::namespace::{Namespace, NamespaceEvent};
use crate::record::{RecordEvent, ServiceRecord};
use crate::service::{Service, ServiceEvent, ServiceStatus};
use crate::spec::ResourceName;
use crate::tables::{AUDIT, NAMESPACES, REVISIONS, ROUTES, SERVICES, SPECS};
use crate::targets::Kept;
use crate::texts;

/// The consumer that keeps them.
const HANDLER: &str = "hive-views";

/// The longest that a look is put off: nobody means longer, and not every database can write a far moment down.
const LONGEST: Duration = Duration::from_secs(3600 * 24 * 365);

/// For how long a service is left alone of which more facts are on their way.
pub(crate) const UNFINISHED: Duration = Duration::from_secs(3600);

/// All of them.
pub(crate) fn projections(channel: &str, stale: Duration) -> Projections {
    Projections::of(channel, HANDLER).with(Services { stale }).with(Platform).with(Records).with(Namespaces)
}

/// The status view, and what is to be looked at.
pub(crate) struct Services {
    stale: Duration,
}

/// What the platform has made of services.
struct Platform;

/// Specifications, and who asked for what.
struct Records;

/// The platform's namespaces.
struct Namespaces;

const fn of_service(table: &'static Table) -> OwnedTable {
    OwnedTable { table, aggregate: "service_id" }
}

impl Projection for Services {
    const NAME: &'static str = "hive-services";
    // The first kept by itself what is looked at.
    const VERSION: u32 = 2;
    const KIND: &'static str = Service::KIND;
    type Event = ServiceEvent;

    fn tables() -> &'static [OwnedTable] {
        const { &[of_service(&SERVICES)] }
    }

    fn watches() -> &'static [&'static str] {
        &[OBSERVER]
    }

    fn keys(&self, fact: &Fact<ServiceEvent>) -> Vec<RowKey> {
        vec![RowKey::of(&SERVICES, [fact.aggregate_id.as_str().into()])]
    }

    fn project(&self, fact: &Fact<ServiceEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
        let id = fact.aggregate_id.as_str();
        let mut row = match ServiceRow::known(rows, id)? {
            Some(row) => row,
            None if fact.version == 1 => ServiceRow::new(id, fact.occurred_at),
            // Without those before it, a fact would make a service of nothing.
            None => return Err(rows.lost(&RowKey::of(&SERVICES, [id.into()]))),
        };
        row.take(fact);
        rows.put(&SERVICES, row.values()?)?;
        if row.service.status == Some(ServiceStatus::Deleted) {
            rows.unwatch(OBSERVER, id)?;
            alerts::is_gone(rows, id, row.updated_at);
            return Ok(());
        }
        rows.watch(OBSERVER, row.watch(is_urgent(&fact.event), self.stale)?)
    }
}

/// Whether somebody waits for what the fact asks for.
fn is_urgent(event: &ServiceEvent) -> bool {
    match event {
        ServiceEvent::SpecApplyStarted(_) | ServiceEvent::DeletionMarked(_) => true,
        ServiceEvent::SnapshotUpdated(updated) => updated.refresh_requested,
        _ => false,
    }
}

impl Projection for Platform {
    const NAME: &'static str = "hive-platform";
    const VERSION: u32 = 1;
    const KIND: &'static str = KnativeService::KIND;
    type Event = KnativeServiceEvent;

    fn tables() -> &'static [OwnedTable] {
        const { &[of_service(&REVISIONS), of_service(&ROUTES)] }
    }

    fn project(&self, fact: &Fact<KnativeServiceEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
        let (id, at) = (fact.aggregate_id.to_string(), fact.occurred_at);
        match &fact.event {
            KnativeServiceEvent::RevisionCreated(created) => rows.put(
                &REVISIONS,
                vec![
                    id.into(),
                    texts::code(&created.revision.name).into(),
                    created.revision.image.as_deref().map(texts::readable).into(),
                    created.spec_hash.as_ref().map(ToString::to_string).into(),
                    created.revision.created_at.into(),
                    at.into(),
                ],
            ),
            KnativeServiceEvent::RouteAligned(aligned) => rows.put(
                &ROUTES,
                vec![
                    id.into(),
                    fact.version.into(),
                    aligned.url.as_deref().map(texts::readable).into(),
                    serde_json::to_string(&aligned.traffic)?.into(),
                    at.into(),
                ],
            ),
            KnativeServiceEvent::Observed(_) | KnativeServiceEvent::DeletedObserved(_) => Ok(()),
        }
    }
}

impl Projection for Records {
    const NAME: &'static str = "hive-records";
    const VERSION: u32 = 1;
    const KIND: &'static str = ServiceRecord::KIND;
    type Event = RecordEvent;

    fn tables() -> &'static [OwnedTable] {
        const { &[of_service(&SPECS), of_service(&AUDIT)] }
    }

    fn project(&self, fact: &Fact<RecordEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
        match &fact.event {
            RecordEvent::Persisted(persisted) => rows.put(
                &SPECS,
                vec![
                    fact.aggregate_id.to_string().into(),
                    persisted.spec_version.into(),
                    persisted.spec_hash.to_string().into(),
                    serde_json::to_string(&persisted.spec)?.into(),
                    fact.occurred_at.into(),
                ],
            ),
            RecordEvent::Audited(audited) => rows.put(
                &AUDIT,
                vec![
                    audited.event_id.clone().into(),
                    audited.service_id.clone().into(),
                    audited.action.clone().into(),
                    audited.requested_by.clone().into(),
                    audited.requested_at.into(),
                ],
            ),
        }
    }
}

impl Projection for Namespaces {
    const NAME: &'static str = "hive-namespaces";
    const VERSION: u32 = 1;
    const KIND: &'static str = Namespace::KIND;
    type Event = NamespaceEvent;

    fn tables() -> &'static [OwnedTable] {
        &[OwnedTable { table: &NAMESPACES, aggregate: "namespace" }]
    }

    fn project(&self, fact: &Fact<NamespaceEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
        let NamespaceEvent::Validated(validated) = &fact.event;
        let (id, present) = (fact.aggregate_id.to_string(), u32::from(validated.exists));
        rows.put(
            &NAMESPACES,
            vec![id.into(), fact.version.into(), present.into(), validated.validated_at.into()],
        )
    }
}

/// What is to be done on the platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wanted {
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
pub(crate) struct Cause {
    pub(crate) event_id: String,
    pub(crate) flow_id: Option<String>,
}

impl Wanted {
    /// From what an earlier version has stored.
    pub(crate) fn from_stored(text: &str) -> Option<Self> {
        serde_json::from_value(text.into()).ok()
    }
}

/// A service in the status view, with what is kept of it by who looks.
#[derive(Debug, Clone, PartialEq)]
struct ServiceRow {
    service_id: String,
    /// How many facts it has.
    version: u64,
    /// What they say.
    service: Service,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    status_changed_at: DateTime<Utc>,
    /// What is to be done on the platform.
    wanted: Option<Wanted>,
    /// The fact because of which something is to be done, or was.
    cause: Option<Cause>,
}

impl ServiceRow {
    fn new(service_id: &str, at: DateTime<Utc>) -> Self {
        Self {
            service_id: service_id.to_owned(),
            version: 0,
            service: Service::default(),
            created_at: at,
            updated_at: at,
            status_changed_at: at,
            wanted: None,
            cause: None,
        }
    }

    /// As the rows have it.
    fn known(rows: &Rows, service_id: &str) -> Result<Option<Self>, HandlerError> {
        let Some(row) = rows.get(&RowKey::of(&SERVICES, [service_id.into()]))? else { return Ok(None) };
        let mut known = Self {
            version: row.count("version")?,
            service: json(row.text("service")?.to_owned())?,
            updated_at: row.time("updated_at")?,
            status_changed_at: row.time("status_changed_at")?,
            ..Self::new(service_id, row.time("created_at")?)
        };
        if let Some(wanted) = rows.watched(OBSERVER, service_id)? {
            let kept = Kept::read(wanted)?;
            (known.wanted, known.cause) = (kept.wanted, kept.cause);
        }
        Ok(Some(known))
    }

    /// Takes in a fact.
    fn take(&mut self, fact: &Fact<ServiceEvent>) {
        let before = self.service.status;
        match &fact.event {
            ServiceEvent::CreationRequested(_)
            | ServiceEvent::UpdateRequested(_)
            | ServiceEvent::DeletionRequested(_) => self.wanted = Some(Wanted::Facts),
            ServiceEvent::SpecApplyStarted(_) => self.wants(Wanted::Apply, fact),
            ServiceEvent::DeletionMarked(_) => self.wants(Wanted::Delete, fact),
            ServiceEvent::SnapshotUpdated(updated) if updated.refresh_requested => {
                self.wanted = self.wanted.or(Some(Wanted::Look));
            }
            ServiceEvent::SpecApplied(_)
            | ServiceEvent::Ready(_)
            | ServiceEvent::Failed(_)
            | ServiceEvent::Deleted(_) => self.wanted = None,
            _ => {}
        }
        self.service = std::mem::take(&mut self.service).evolve(&fact.event);
        (self.version, self.updated_at) = (fact.version, fact.occurred_at);
        if self.service.status != before {
            self.status_changed_at = fact.occurred_at;
        }
    }

    fn wants(&mut self, wanted: Wanted, cause: &Fact<ServiceEvent>) {
        self.wanted = Some(wanted);
        self.cause = Some(Cause {
            event_id: cause.event_id.to_string(),
            flow_id: cause.correlation_id.as_ref().map(ToString::to_string),
        });
    }

    /// Whether it is ready.
    fn is_ready(&self) -> bool {
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
pub(crate) fn resource_key(resource: &ResourceName) -> String {
    resource.to_string()
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
