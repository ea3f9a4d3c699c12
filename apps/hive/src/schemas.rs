//! The event registry (H9): every type that the source lists, with its stable name and the schema of its payload.

use schemars::Schema;

use crate::knative::KnativeServiceEvent;
use crate::namespace::NamespaceEvent;
use crate::record::RecordEvent;
use crate::service::ServiceEvent;

/// An event type: its stable name, and the JSON Schema of its payload.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "said above")]
pub struct EventType {
    pub name: &'static str,
    pub schema: Schema,
}

/// All event types of hive.
pub fn event_types() -> Vec<EventType> {
    let all = [
        ServiceEvent::schemas(),
        RecordEvent::schemas(),
        NamespaceEvent::schemas(),
        KnativeServiceEvent::schemas(),
    ];
    all.into_iter().flatten().map(|(name, schema)| EventType { name, schema }).collect()
}
