//! The event registry (H9): every type that the source lists, with its stable name and the schema of its payload.

use schemars::{JsonSchema, Schema, schema_for};

use crate::knative::{
    KnativeServiceDeletedObserved, KnativeServiceEvent, KnativeServiceObserved, RevisionCreated, RouteAligned,
};
use crate::namespace::{NamespaceEvent, NamespaceValidated};
use crate::record::{RecordEvent, ServiceAudited, ServicePersisted};
use crate::service::{
    Converged, CreationFailed, CreationRequested, Deleted, DeletionMarked, DeletionRequested, ExternalPurged,
    NotConverged, ServiceEvent, SnapshotUpdated, SpecAccepted, SpecApplied, SpecApplyStarted,
    UpdateRequested,
};

/// An event type.
#[derive(Debug, Clone)]
pub struct EventType {
    /// Its stable name.
    pub name: &'static str,
    /// The JSON Schema of its payload.
    pub schema: Schema,
}

/// All event types of hive.
pub fn event_types() -> Vec<EventType> {
    fn of<P: JsonSchema>(name: &'static str) -> EventType {
        EventType { name, schema: schema_for!(P) }
    }
    vec![
        of::<CreationRequested>(ServiceEvent::CREATION_REQUESTED),
        of::<SpecAccepted>(ServiceEvent::SPEC_ACCEPTED),
        of::<SpecApplyStarted>(ServiceEvent::SPEC_APPLY_STARTED),
        of::<SpecApplied>(ServiceEvent::SPEC_APPLIED),
        of::<CreationFailed>(ServiceEvent::CREATION_FAILED),
        of::<UpdateRequested>(ServiceEvent::UPDATE_REQUESTED),
        of::<Converged>(ServiceEvent::UPDATED),
        of::<DeletionRequested>(ServiceEvent::DELETION_REQUESTED),
        of::<DeletionMarked>(ServiceEvent::DELETION_MARKED),
        of::<SnapshotUpdated>(ServiceEvent::SNAPSHOT_UPDATED),
        of::<Converged>(ServiceEvent::CONVERGENCE_CONFIRMED),
        of::<NotConverged>(ServiceEvent::CONVERGENCE_FAILED),
        of::<Converged>(ServiceEvent::READY),
        of::<NotConverged>(ServiceEvent::FAILED),
        of::<Deleted>(ServiceEvent::DELETED),
        of::<ExternalPurged>(ServiceEvent::EXTERNAL_PURGED),
        of::<ServicePersisted>(RecordEvent::PERSISTED),
        of::<ServiceAudited>(RecordEvent::AUDITED),
        of::<NamespaceValidated>(NamespaceEvent::VALIDATED),
        of::<RevisionCreated>(KnativeServiceEvent::REVISION_CREATED),
        of::<RouteAligned>(KnativeServiceEvent::ROUTE_ALIGNED),
        of::<KnativeServiceObserved>(KnativeServiceEvent::OBSERVED),
        of::<KnativeServiceDeletedObserved>(KnativeServiceEvent::DELETED_OBSERVED),
    ]
}
