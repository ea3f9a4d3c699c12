//! The read models (H11), and what is to be looked at: what facts make of rows. The library takes the facts in, and makes the
//! rows anew.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::observer::{Look, Watch};
use towpath::ports::store::{BoxError, StoreError, StoreResult};
use towpath::projection::{Fact, OwnedTable, RowKey, Rows};
use towpath::tables::Json;
use towpath::time::later;
use towpath::{Aggregate, HandlerError, Projection, Projections};

use crate::alerts;
use crate::hive::OBSERVER;
use crate::knative::{KnativeService, KnativeServiceEvent};
use crate::namespace::{Namespace, NamespaceEvent};
use crate::record::{RecordEvent, ServiceRecord};
use crate::service::{Service, ServiceEvent, ServiceStatus};
use crate::tables::{AuditRow, NamespaceRow, RevisionRow, RouteRow, ServiceRow, SpecRow};
use crate::texts;

/// For how long a service is left alone of which more facts are on their way.
const UNFINISHED: Duration = Duration::from_secs(3600);

/// All of them.
pub(crate) fn projections(channel: &str, stale: Duration) -> Projections {
    let services = Services { stale };
    Projections::of(channel, "hive-views").with(services).with(Platform).with(Records).with(Namespaces)
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

impl Projection for Services {
    const NAME: &'static str = "hive-services";
    // The first kept by itself what is looked at, the second kept parts of the service.
    const VERSION: u32 = 3;
    const KIND: &'static str = Service::KIND;
    type Event = ServiceEvent;

    fn tables() -> &'static [OwnedTable] {
        const { &[OwnedTable::of::<ServiceRow>("service_id")] }
    }

    fn watches() -> &'static [&'static str] {
        &[OBSERVER]
    }

    fn keys(&self, fact: &Fact<ServiceEvent>) -> Vec<RowKey> {
        vec![RowKey::of::<ServiceRow>(&fact.aggregate_id.to_string())]
    }

    fn project(&self, fact: &Fact<ServiceEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
        let id = fact.aggregate_id.to_string();
        let (service, created_at, changed_at) = match rows.find::<ServiceRow>(&id)? {
            Some(row) => (row.service.into_value(), row.created_at, row.status_changed_at),
            None if fact.version == 1 => (Service::default(), fact.occurred_at, fact.occurred_at),
            // Without those before it, a fact would make a service of nothing.
            None => return Err(rows.lost::<ServiceRow>()),
        };
        let status_before = service.status;
        let watched = rows.watched(OBSERVER, &id)?.map(Kept::read).transpose()?.unwrap_or_default();
        let mut kept = Kept { service, ..watched };
        kept.take(fact);
        if kept.service.status == Some(ServiceStatus::Deleted) {
            rows.unwatch(OBSERVER, &id)?;
            alerts::is_gone(rows, &id, fact.occurred_at);
        } else {
            rows.watch(OBSERVER, kept.watch(fact, self.stale)?)?;
        }
        let service = kept.service;
        let (snapshot, failure) = (service.snapshot.as_ref(), service.failure.as_ref());
        rows.put(&ServiceRow {
            service_id: id,
            version: fact.version,
            namespace: service.resource.namespace.clone(),
            name: service.resource.name.clone(),
            status: service.status.map_or("", ServiceStatus::as_str).to_owned(),
            status_changed_at: if service.status == status_before { changed_at } else { fact.occurred_at },
            status_reason: failure.map(|failure| texts::code(&failure.reason)),
            status_message: failure.map(|failure| texts::readable(&failure.message)),
            ready: snapshot.and_then(|snapshot| snapshot.ready).unwrap_or(false),
            desired_spec_hash: service.desired_spec_hash.to_string(),
            observed_spec_hash: snapshot.and_then(|seen| Some(seen.observed_spec_hash.as_ref()?.to_string())),
            service: Json::of(service)?,
            created_at,
            updated_at: fact.occurred_at,
        })
    }
}

impl Projection for Platform {
    const NAME: &'static str = "hive-platform";
    const VERSION: u32 = 1;
    const KIND: &'static str = KnativeService::KIND;
    type Event = KnativeServiceEvent;

    fn tables() -> &'static [OwnedTable] {
        const { &[OwnedTable::of::<RevisionRow>("service_id"), OwnedTable::of::<RouteRow>("service_id")] }
    }

    fn project(&self, fact: &Fact<KnativeServiceEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
        let service_id = fact.aggregate_id.to_string();
        match &fact.event {
            KnativeServiceEvent::RevisionCreated(created) => rows.put(&RevisionRow {
                service_id,
                revision: texts::code(&created.revision.name),
                image: created.revision.image.as_deref().map(texts::readable),
                spec_hash: created.spec_hash.as_ref().map(ToString::to_string),
                created_at: created.revision.created_at,
                seen_at: fact.occurred_at,
            }),
            KnativeServiceEvent::RouteAligned(aligned) => rows.put(&RouteRow {
                service_id,
                version: fact.version,
                url: aligned.url.as_deref().map(texts::readable),
                traffic: Json::of(aligned.traffic.clone())?,
                aligned_at: fact.occurred_at,
            }),
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
        const { &[OwnedTable::of::<SpecRow>("service_id"), OwnedTable::of::<AuditRow>("service_id")] }
    }

    fn project(&self, fact: &Fact<RecordEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
        match fact.event.clone() {
            RecordEvent::Persisted(persisted) => rows.put(&SpecRow {
                service_id: fact.aggregate_id.to_string(),
                spec_version: persisted.spec_version,
                spec_hash: persisted.spec_hash.to_string(),
                spec: Json::of(persisted.spec)?,
                persisted_at: fact.occurred_at,
            }),
            RecordEvent::Audited(audited) => rows.put(&AuditRow {
                event_id: audited.event_id,
                service_id: audited.service_id,
                action: audited.action,
                requested_by: audited.requested_by,
                requested_at: audited.requested_at,
            }),
        }
    }
}

impl Projection for Namespaces {
    const NAME: &'static str = "hive-namespaces";
    const VERSION: u32 = 1;
    const KIND: &'static str = Namespace::KIND;
    type Event = NamespaceEvent;

    fn tables() -> &'static [OwnedTable] {
        const { &[OwnedTable::of::<NamespaceRow>("namespace")] }
    }

    fn project(&self, fact: &Fact<NamespaceEvent>, rows: &mut Rows) -> Result<(), HandlerError> {
        let NamespaceEvent::Validated(validated) = &fact.event;
        rows.put(&NamespaceRow {
            namespace: fact.aggregate_id.to_string(),
            version: fact.version,
            present: validated.exists,
            validated_at: validated.validated_at,
        })
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

/// What is kept of a service that is looked at: what it is, and what is wanted of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Kept {
    #[serde(flatten)]
    pub(crate) service: Service,
    /// What is to be done on the platform.
    pub(crate) wanted: Option<Wanted>,
    /// The fact because of which something is to be done, or was.
    pub(crate) cause: Option<Cause>,
}

impl Kept {
    pub(crate) fn read(text: &str) -> StoreResult<Self> {
        serde_json::from_str(text).map_err(corrupt)
    }

    /// Where the service is: with its first fact it is CREATING.
    pub(crate) fn status(&self) -> ServiceStatus {
        self.service.status.unwrap_or(ServiceStatus::Creating)
    }

    /// Whether the platform has taken what is asked for.
    pub(crate) fn is_applied(&self) -> bool {
        self.service.spec_version > 0 && self.service.applied_spec_version == self.service.spec_version
    }

    /// Whether what was seen last was not there.
    pub(crate) fn is_missing(&self) -> bool {
        self.service.snapshot.as_ref().is_some_and(|snapshot| !snapshot.present)
    }

    fn take(&mut self, fact: &Fact<ServiceEvent>) {
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
    }

    fn wants(&mut self, wanted: Wanted, cause: &Fact<ServiceEvent>) {
        let (event_id, flow_id) = (cause.event_id.to_string(), cause.correlation_id.as_ref());
        self.wanted = Some(wanted);
        self.cause = Some(Cause { event_id, flow_id: flow_id.map(ToString::to_string) });
    }

    /// As it is said to the observer.
    fn watch(&mut self, fact: &Fact<ServiceEvent>, stale: Duration) -> serde_json::Result<Watch> {
        // Somebody waits for what these ask for.
        let urgent = match &fact.event {
            ServiceEvent::SpecApplyStarted(_) | ServiceEvent::DeletionMarked(_) => true,
            ServiceEvent::SnapshotUpdated(updated) => updated.refresh_requested,
            _ => false,
        };
        let look = self.look(fact.occurred_at, urgent, self.is_missing(), stale);
        // That somebody has asked is over when it was looked at: who looks keeps that.
        self.wanted = self.wanted.filter(|wanted| *wanted != Wanted::Look);
        let goal = Some(self.status()).filter(|status| !status.is_settled());
        Ok(Watch {
            subject_id: fact.aggregate_id.to_string(),
            hint: self.service.resource.to_string(),
            version: fact.version,
            wanted: serde_json::to_string(self)?,
            goal: goal.map_or("", ServiceStatus::as_str).to_owned(),
            look,
        })
    }

    /// When it is to be looked at (H14): a READY service from which nothing is missing when what is known is stale, all
    /// others at the next scan.
    fn look(&self, now: DateTime<Utc>, urgent: bool, missing: bool, stale: Duration) -> Look {
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

pub(crate) fn corrupt(source: impl Into<BoxError>) -> StoreError {
    StoreError::Corrupt { what: "what is wanted of a service".to_owned(), source: source.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_looked_at_now_is_due_whatever_a_clock_says() {
        // An instance whose clock is an hour ahead has taken this in.
        let ahead = later(Utc::now(), Duration::from_secs(3600));
        let known = |status| {
            let service = Service { status: Some(status), ..Service::default() };
            Kept { service, ..Kept::default() }
        };
        let look =
            |known: &Kept, urgent, missing| known.look(ahead, urgent, missing, Duration::from_secs(900));
        for status in ServiceStatus::ALL.into_iter().filter(|status| *status != ServiceStatus::Ready) {
            assert_eq!(look(&known(status), false, false), Look::AtNextScan, "{status:?}");
        }
        let ready = known(ServiceStatus::Ready);
        assert_eq!(look(&ready, true, false), Look::AtOnce, "somebody has just asked");
        let asked = Kept { wanted: Some(Wanted::Look), ..ready.clone() };
        assert_eq!(look(&asked, true, false), Look::UntilSeen, "whatever becomes known before");
        let half = Kept { wanted: Some(Wanted::Facts), ..ready.clone() };
        assert_eq!(look(&half, true, false), Look::Held(UNFINISHED));
        assert_eq!(look(&ready, false, true), Look::AtNextScan, "something is missing");
        assert_eq!(look(&ready, false, false), Look::At(ahead + chrono::TimeDelta::minutes(15)));
    }
}
