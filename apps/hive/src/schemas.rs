//! The event registry (H9): every type that the source lists, with its stable name and the schema of its payload.

use schemars::{JsonSchema, Schema, schema_for};

use crate::knative::{KnativeServiceDeletedObserved, KnativeServiceObserved, RevisionCreated, RouteAligned};
use crate::namespace::NamespaceValidated;
use crate::record::{ServiceAudited, ServicePersisted};
use crate::service::{
    Converged, CreationFailed, CreationRequested, Deleted, DeletionMarked, DeletionRequested, ExternalPurged,
    NotConverged, SnapshotUpdated, SpecAccepted, SpecApplied, SpecApplyStarted, UpdateRequested,
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
        of::<CreationRequested>("service.creation.requested"),
        of::<SpecAccepted>("service.spec.accepted"),
        of::<SpecApplyStarted>("service.spec.apply.started"),
        of::<SpecApplied>("service.spec.applied"),
        of::<CreationFailed>("service.creation.failed"),
        of::<UpdateRequested>("service.update.requested"),
        of::<Converged>("service.updated"),
        of::<DeletionRequested>("service.deletion.requested"),
        of::<DeletionMarked>("service.deletion.marked"),
        of::<SnapshotUpdated>("service.snapshot.updated"),
        of::<Converged>("service.convergence.confirmed"),
        of::<NotConverged>("service.convergence.failed"),
        of::<Converged>("service.ready"),
        of::<NotConverged>("service.failed"),
        of::<Deleted>("service.deleted"),
        of::<ExternalPurged>("service.external.purged"),
        of::<ServicePersisted>("service.persisted"),
        of::<ServiceAudited>("service.audit.recorded"),
        of::<NamespaceValidated>("NamespaceValidated"),
        of::<RevisionCreated>("RevisionCreated"),
        of::<RouteAligned>("RouteAligned"),
        of::<KnativeServiceObserved>("KnativeServiceObserved"),
        of::<KnativeServiceDeletedObserved>("KnativeServiceDeletedObserved"),
    ]
}
