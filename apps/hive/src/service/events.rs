//! What may have happened to a service, by the names and in the words of its source (H2 to H10).

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath::Event;

use super::FailureNote;
use crate::gateway::{Condition, ConditionStatus, FoundService, RouteTarget};
use crate::spec::{ResourceName, ServiceSpec, SpecHash};

/// A fact about a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
#[allow(clippy::large_enum_variant, reason = "a few of them live at a time, on their way to and from JSON")]
#[event(schemas)]
pub enum ServiceEvent {
    /// Somebody asked for a service.
    #[serde(rename = "service.creation.requested")]
    CreationRequested(CreationRequested),
    /// A specification was accepted as what the service is to be.
    #[serde(rename = "service.spec.accepted")]
    SpecAccepted(SpecAccepted),
    /// The platform is to be brought to the specification.
    #[serde(rename = "service.spec.apply.started")]
    SpecApplyStarted(SpecApplyStarted),
    /// The platform has taken the specification.
    #[serde(rename = "service.spec.applied")]
    SpecApplied(SpecApplied),
    /// The platform has refused the specification for good.
    #[serde(rename = "service.creation.failed")]
    CreationFailed(NotConverged),
    /// Somebody asked for another specification.
    #[serde(rename = "service.update.requested")]
    UpdateRequested(UpdateRequested),
    /// An update has come to its end.
    #[serde(rename = "service.updated")]
    Updated(Converged),
    /// Somebody asked for the end of the service.
    #[serde(rename = "service.deletion.requested")]
    DeletionRequested(DeletionRequested),
    /// The platform is to delete it.
    #[serde(rename = "service.deletion.marked")]
    DeletionMarked(DeletionMarked),
    /// What is known of the platform's side.
    #[serde(rename = "service.snapshot.updated")]
    SnapshotUpdated(SnapshotUpdated),
    /// What was asked for is what runs.
    #[serde(rename = "service.convergence.confirmed")]
    ConvergenceConfirmed(Converged),
    /// What was asked for does not run.
    #[serde(rename = "service.convergence.failed")]
    ConvergenceFailed(NotConverged),
    /// The service is READY.
    #[serde(rename = "service.ready")]
    Ready(Converged),
    /// The service is FAILED.
    #[serde(rename = "service.failed")]
    Failed(NotConverged),
    /// The service is DELETED.
    #[serde(rename = "service.deleted")]
    Deleted(Deleted),
    /// Somebody else has taken the resource off the platform.
    #[serde(rename = "service.external.purged")]
    ExternalPurged(ExternalPurged),
}

/// `service.creation.requested`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreationRequested {
    /// Where it is to be.
    pub resource: ResourceName,
    /// Who asked, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
}

/// `service.spec.accepted`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpecAccepted {
    /// The specification.
    pub spec: ServiceSpec,
    /// Its hash.
    pub desired_spec_hash: SpecHash,
    /// The how-manieth specification of the service it is.
    pub spec_version: u64,
    /// Whether what others have set on the platform is taken over, and a new revision is made in any case.
    pub force_replace: bool,
    /// Whether the asker waits for the outcome.
    pub wait: bool,
}

/// `service.spec.apply.started`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpecApplyStarted {
    /// Where.
    pub resource: ResourceName,
    /// Which specification.
    pub desired_spec_hash: SpecHash,
    /// Which one in the row.
    pub spec_version: u64,
}

/// `service.spec.applied`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpecApplied {
    /// Which specification.
    pub spec_hash: SpecHash,
    /// Which one in the row.
    pub spec_version: u64,
    /// The generation of the resource on the platform.
    pub generation: i64,
    /// Whether the platform had to change anything.
    pub changed: bool,
}

/// `service.update.requested`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateRequested {
    /// What it was to be before.
    pub previous_spec_hash: SpecHash,
    /// Who asked, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
}

/// `service.deletion.requested`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletionRequested {
    /// Who asked, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
}

/// `service.deletion.marked`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletionMarked {
    /// What is to be deleted.
    pub resource: ResourceName,
}

/// `service.snapshot.updated`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotUpdated {
    /// What is known; none before the first look.
    pub snapshot: Option<Snapshot>,
    /// The number of the observation that it is from, if it is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observation: Option<u64>,
    /// Whether somebody asked for it. Then the platform is looked at again, at once.
    #[serde(default)]
    pub refresh_requested: bool,
}

/// What is known of the platform's side of a service.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// When it was seen.
    pub observed_at: DateTime<Utc>,
    /// Whether the resource is there.
    pub present: bool,
    /// Whether it is ready; null: not known yet.
    pub ready: Option<bool>,
    /// The hash of what is there.
    pub observed_spec_hash: Option<SpecHash>,
    /// Whether that is what was asked for.
    pub hash_match: bool,
    /// The generation on the platform.
    pub generation: Option<i64>,
    /// The three conditions.
    #[serde(default)]
    pub ready_condition: Condition,
    /// `ConfigurationsReady`.
    #[serde(default)]
    pub configurations_ready: Condition,
    /// `RoutesReady`.
    #[serde(default)]
    pub routes_ready: Condition,
    /// The newest revision.
    pub latest_created_revision: Option<String>,
    /// The newest one that is ready.
    pub latest_ready_revision: Option<String>,
    /// Where requests go.
    #[serde(default)]
    pub traffic: Vec<RouteTarget>,
    /// The address.
    pub url: Option<String>,
    /// How many looks in a row found it not ready.
    pub consecutive_failures: u32,
}

/// `service.convergence.confirmed`, `service.ready` and `service.updated`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Converged {
    /// What runs.
    pub spec_hash: SpecHash,
    /// Which one in the row.
    pub spec_version: u64,
    /// The revision that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// `service.creation.failed`, `service.convergence.failed` and `service.failed`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotConverged {
    /// What does not run.
    pub spec_hash: SpecHash,
    /// Which one in the row.
    pub spec_version: u64,
    /// A code: the platform's, or ours for what it refused.
    pub reason: String,
    /// A text for people.
    pub message: String,
}

/// `service.deleted`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deleted {
    /// When the platform was seen without it.
    pub observed_at: DateTime<Utc>,
}

/// `service.external.purged`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalPurged {
    /// What is gone.
    pub resource: ResourceName,
    /// When that was seen.
    pub observed_at: DateTime<Utc>,
}

impl NotConverged {
    /// Why, as the service keeps it.
    pub(super) fn note(&self) -> FailureNote {
        FailureNote { reason: self.reason.clone(), message: self.message.clone() }
    }
}

impl Snapshot {
    /// What a look showed of its own resource, as a service sees it that wants to be `desired`.
    pub fn of(found: Option<&FoundService>, desired: &SpecHash, observed_at: DateTime<Utc>) -> Self {
        let Some(found) = found else { return Self { observed_at, ..Self::default() } };
        Self {
            observed_at,
            present: true,
            ready: match found.readiness() {
                ConditionStatus::True => Some(true),
                ConditionStatus::False => Some(false),
                ConditionStatus::Unknown => None,
            },
            observed_spec_hash: found.spec_hash.clone(),
            hash_match: found.spec_hash.as_ref() == Some(desired),
            generation: Some(found.generation),
            ready_condition: found.conditions.ready.clone(),
            configurations_ready: found.conditions.configurations_ready.clone(),
            routes_ready: found.conditions.routes_ready.clone(),
            latest_created_revision: found.latest_created_revision.clone(),
            latest_ready_revision: found.latest_ready_revision.clone(),
            traffic: found.traffic.clone(),
            url: found.url.clone(),
            consecutive_failures: 0,
        }
    }

    /// Whether two say the same, whenever they were seen.
    pub fn says_the_same(&self, other: &Self) -> bool {
        Self { observed_at: other.observed_at, ..self.clone() } == *other
    }
}
