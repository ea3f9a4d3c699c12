//! The serving gateway: the port to the platform on which services run.
//!
//! Two adapters: `simulated` (in process, the embedded default) and `kubernetes` (behind a feature). The port speaks of Knative's
//! `serving.knative.dev/v1` Service and not of how it is reached.

#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod simulated;

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures_util::stream::BoxStream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath::retry::ErrorClass;

use crate::spec::{ResourceName, ServiceSpec, SpecHash};
use crate::texts;

/// The platform. Every call may be repeated: it has the effect of one.
///
/// # Errors
/// An adapter tells apart what happened (see [`GatewayError`]) by status codes and never by texts. It bounds its own
/// calls: one that takes too long is a [`GatewayError::Timeout`]. Callers bound them, too.
#[async_trait]
pub trait ServingGateway: Send + Sync + 'static {
    /// Brings the resource to this specification, creating it if it is not there. One that carries `apply.spec_hash`
    /// already, and is not being deleted, is left alone. One that belongs to another service of ours, or to another
    /// installation of hive, is a [`GatewayError::Conflict`], forced or not.
    async fn apply(&self, apply: &Apply) -> Result<Applied, GatewayError>;

    /// Looks at the resource. One that is not there is an answer ([`Observed::NotFound`]) and no error.
    async fn observe(&self, resource: &ResourceName) -> Result<Observed, GatewayError>;

    /// Asks for the deletion. One that is not there is an answer, too. A resource that does not belong to this service
    /// counts as not there.
    async fn delete(&self, service_id: &str, resource: &ResourceName) -> Result<Deletion, GatewayError>;

    /// Whether there is such a namespace.
    async fn namespace_exists(&self, namespace: &str) -> Result<bool, GatewayError>;

    /// Whether the platform answers at all. A call about one resource may fail for reasons of its own.
    ///
    /// # Errors
    /// It does not: nothing can be done there at the moment.
    async fn reachable(&self) -> Result<(), GatewayError>;

    /// Names of resources that have changed, as long as somebody listens; `None` when the platform does not tell. It is a
    /// hint that makes observation quick, never the only way to learn of a change: names may be missing or come
    /// twice. The stream ends when the platform cannot be watched any more, and is then asked for again.
    async fn watch(&self) -> Result<Option<BoxStream<'static, ResourceName>>, GatewayError> {
        Ok(None)
    }
}

/// What is to be applied.
#[derive(Debug, Clone, PartialEq)]
pub struct Apply {
    /// Which service of ours: kept on the resource as a label ([`SERVICE_ID_LABEL`](crate::spec::SERVICE_ID_LABEL)).
    pub service_id: String,
    /// Where.
    pub resource: ResourceName,
    /// What.
    pub spec: ServiceSpec,
    /// Its hash, kept on the resource as an annotation.
    pub spec_hash: SpecHash,
    /// Take over fields that somebody else has set. Without it such a field is a [`GatewayError::Conflict`].
    pub force: bool,
}

/// What applying led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The generation of the resource after it (`metadata.generation`).
    pub generation: i64,
    /// Whether anything was changed.
    pub changed: bool,
}

/// What deleting led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// It will be gone.
    Accepted,
    /// It was not there.
    NotFound,
}

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "presence", rename_all = "camelCase")]
pub enum Observed {
    /// The resource is there.
    Found(Box<FoundService>),
    /// The platform answered that it is not there.
    NotFound,
}

/// A resource as it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FoundService {
    /// Which service of ours it belongs to, as the resource itself says. Of another installation of hive on the same cluster
    /// it is a name that no service of ours has.
    pub service_id: Option<String>,
    /// The hash of what is really there. An adapter computes it from the fields of the resource, so that an edit by hand
    /// shows, also when the annotation still names what was applied. `None` if the resource cannot be read as a
    /// [`ServiceSpec`] at all.
    pub spec_hash: Option<SpecHash>,
    /// How often the specification was changed (`metadata.generation`).
    pub generation: i64,
    /// Which of those the conditions are about (`status.observedGeneration`).
    pub observed_generation: i64,
    /// The three conditions of a service.
    pub conditions: Conditions,
    /// `status.latestCreatedRevisionName`.
    pub latest_created_revision: Option<String>,
    /// `status.latestReadyRevisionName`.
    pub latest_ready_revision: Option<String>,
    /// The revisions there are, oldest first.
    pub revisions: Vec<RevisionSeen>,
    /// Where requests go (`status.traffic`).
    pub traffic: Vec<RouteTarget>,
    /// `status.url`.
    pub url: Option<String>,
    /// Whether it is being deleted (`metadata.deletionTimestamp`).
    pub deleting: bool,
}

/// The conditions as Knative defines them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Conditions {
    /// `Ready`: the other two together.
    pub ready: Condition,
    /// `ConfigurationsReady`.
    pub configurations_ready: Condition,
    /// `RoutesReady`.
    pub routes_ready: Condition,
}

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Whether it holds.
    pub status: ConditionStatus,
    /// A code of the platform's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Whether a condition holds. Unknown is not false: the platform is still at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not, and will not without a change.
    False,
    /// Not known yet, or the condition is missing.
    #[default]
    Unknown,
}

/// A revision as it was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevisionSeen {
    /// Its name.
    pub name: String,
    /// The image it runs.
    pub image: Option<String>,
    /// When it was made.
    pub created_at: Option<DateTime<Utc>>,
    /// The hash of what it runs, if that is known and can be said in a [`ServiceSpec`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_hash: Option<SpecHash>,
}

/// A share of the requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteTarget {
    /// The revision that gets it.
    pub revision: String,
    /// How many of a hundred.
    pub percent: i64,
    /// Whether it follows the latest ready revision.
    #[serde(default)]
    pub latest: bool,
    /// A name of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Why the platform did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    /// What the call needs is not there: the namespace, or the platform's own kind of resource.
    #[error("{what} is not there")]
    NotFound {
        /// What is missing.
        what: String,
    },
    /// Somebody else has set the fields that are to be changed. A forced replacement takes them over.
    #[error("{resource} is changed by {by}, too")]
    Conflict {
        /// The resource.
        resource: ResourceName,
        /// Who else.
        by: String,
    },
    /// The platform will not do it, however often it is asked.
    #[error("the platform refused: {message}")]
    Refused {
        /// A code of the platform's.
        reason: String,
        /// What it said.
        message: String,
    },
    /// The platform cannot be reached, or cannot answer now.
    #[error("the platform does not answer: {message}")]
    Unavailable {
        /// What was noticed.
        message: String,
    },
    /// The platform has answered that it takes no more for a while. That says nothing about the resource, and is no outage.
    #[error("the platform takes no more requests for {retry_after:?}")]
    Busy {
        /// For how long it is to be left alone.
        retry_after: Duration,
    },
    /// No answer in time. It may have been done.
    #[error("the platform has not answered within {after:?}")]
    Timeout {
        /// How long was waited.
        after: Duration,
    },
}

impl GatewayError {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "gateway-not-found",
            Self::Conflict { .. } => "gateway-conflict",
            Self::Refused { .. } => "gateway-refused",
            Self::Unavailable { .. } => "gateway-unavailable",
            Self::Busy { .. } => "gateway-busy",
            Self::Timeout { .. } => "gateway-timeout",
        }
    }

    /// How a retry decision sees it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotFound { .. } | Self::Conflict { .. } | Self::Refused { .. } => ErrorClass::Unrecoverable,
            Self::Unavailable { .. } | Self::Busy { .. } | Self::Timeout { .. } => ErrorClass::Transient,
        }
    }

    /// Whether asking again can help.
    pub fn is_passing(&self) -> bool {
        self.class() == ErrorClass::Transient
    }
}

impl Observed {
    /// The resource, if it is this service's: what is made of another's, or of nobody's, is not its own.
    pub fn found_of(&self, service_id: &str) -> Option<&FoundService> {
        match self {
            Self::Found(found) if found.service_id.as_deref() == Some(service_id) => Some(found),
            _ => None,
        }
    }

    /// The same with texts that every database can keep. What a platform says may hold anything, and be of any length.
    #[must_use]
    pub fn readable(self) -> Self {
        let Self::Found(mut found) = self else { return self };
        let Conditions { ready, configurations_ready, routes_ready } = &mut found.conditions;
        for condition in [ready, configurations_ready, routes_ready] {
            condition.reason = condition.reason.as_deref().map(texts::code);
            condition.message = condition.message.as_deref().map(texts::readable);
        }
        found.url = found.url.as_deref().map(texts::readable);
        for revision in &mut found.revisions {
            revision.image = revision.image.as_deref().map(texts::readable);
        }
        Self::Found(found)
    }
}

impl FoundService {
    /// Whether the service is ready, as far as that is known: conditions about an earlier generation say nothing about this
    /// one.
    pub fn readiness(&self) -> ConditionStatus {
        if self.deleting || self.observed_generation != self.generation {
            return ConditionStatus::Unknown;
        }
        self.conditions.ready.status
    }
}

impl Condition {
    /// A condition without further words.
    pub fn of(status: ConditionStatus) -> Self {
        Self { status, reason: None, message: None }
    }

    /// A condition with a reason.
    pub fn because(status: ConditionStatus, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, reason: Some(reason.into()), message: Some(message.into()) }
    }
}
