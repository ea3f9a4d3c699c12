//! A Knative Service as the API server shows it, and what of it hive wants to know.
//!
//! Only what is needed is read, and nothing is taken for granted: a resource that somebody has bent out of shape by hand
//! is seen as one that is not what was asked for.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::Value;

use super::writing::{MAX_SCALE, MIN_SCALE, label_of};
use crate::gateway::{
    Apply, Condition, ConditionStatus, Conditions, FoundService, RevisionSeen, RouteTarget,
};
use crate::spec::{REPLACEMENT_ANNOTATION, SERVICE_ID_LABEL, SPEC_HASH_ANNOTATION, ServiceSpec};

/// A `serving.knative.dev/v1` Service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct KnativeResource {
    metadata: Metadata,
    spec: Value,
    status: Option<Status>,
}

/// A `serving.knative.dev/v1` Revision, or only its name where no more is known.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RevisionResource {
    metadata: Metadata,
    spec: Value,
}

/// Revisions.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RevisionList {
    items: Option<Vec<RevisionResource>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<DateTime<Utc>>,
    deletion_timestamp: Option<String>,
    managed_fields: Option<Vec<ManagedFields>>,
}

/// Who owns which fields.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ManagedFields {
    manager: String,
    operation: String,
    fields_v1: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    observed_generation: Option<i64>,
    conditions: Option<Vec<StatusCondition>>,
    latest_created_revision_name: Option<String>,
    latest_ready_revision_name: Option<String>,
    traffic: Option<Vec<TrafficTarget>>,
    url: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct StatusCondition {
    r#type: String,
    status: String,
    reason: Option<String>,
    message: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TrafficTarget {
    revision_name: Option<String>,
    percent: Option<i64>,
    latest_revision: Option<bool>,
    tag: Option<String>,
}

impl KnativeResource {
    /// Which service of ours it belongs to, by its label.
    pub(super) fn owner(&self) -> Option<&str> {
        let label = self.metadata.labels.as_ref()?.get(SERVICE_ID_LABEL)?;
        // Ids that are no labels stand in the annotation. The label decides: hints and other people's tools go by it.
        let id = self.metadata.annotation(SERVICE_ID_LABEL).filter(|id| label_of(id) == *label);
        Some(id.unwrap_or(label))
    }

    pub(super) fn uid(&self) -> Option<&str> {
        self.metadata.uid.as_deref()
    }

    pub(super) fn resource_version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }

    pub(super) fn generation(&self) -> i64 {
        self.metadata.generation.unwrap_or_default()
    }

    pub(super) fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether applying would change nothing: it says that it is what is wanted, it belongs to the service, and it really is
    /// what it says.
    pub(super) fn carries(&self, apply: &Apply, field_manager: &str) -> bool {
        self.owner() == Some(apply.service_id.as_str())
            && self.metadata.annotation(SPEC_HASH_ANNOTATION) == Some(apply.spec_hash.as_str())
            && self.is_what_is_wanted(apply, field_manager)
    }

    /// Whether what is there is what is wanted, and nothing besides.
    pub(super) fn is_what_is_wanted(&self, apply: &Apply, field_manager: &str) -> bool {
        self.specification(field_manager).is_some_and(|spec| spec.hash() == apply.spec_hash)
    }

    /// The optional fields that are there and not wanted: the annotations of the template, and whether the concurrency is
    /// one of them. Applying leaves them alone, because they are somebody else's.
    pub(super) fn unwanted(&self, spec: &ServiceSpec) -> (Vec<&'static str>, bool) {
        let template = &self.spec["template"];
        let optional = [
            (MIN_SCALE, spec.min_scale.is_some()),
            (MAX_SCALE, spec.max_scale.is_some()),
            (REPLACEMENT_ANNOTATION, spec.replacement.is_some()),
        ];
        let is_there = |name: &str| template["metadata"]["annotations"].get(name).is_some();
        let annotations = optional.into_iter().filter(|(name, wanted)| !wanted && is_there(name));
        let concurrency =
            spec.concurrency.is_none() && template["spec"].get("containerConcurrency").is_some();
        (annotations.map(|(name, _)| name).collect(), concurrency)
    }

    /// Who else has set something of the specification. The names are for people: they stand in texts only.
    pub(super) fn other_managers(&self, field_manager: &str) -> String {
        let others = self.metadata.managed_fields.iter().flatten().filter(|fields| {
            fields.manager.split('/').next() != Some(field_manager) && fields.owns(&["f:spec"])
        });
        let names: BTreeSet<&str> =
            others.map(|fields| fields.manager.as_str()).filter(|name| !name.is_empty()).collect();
        match names.is_empty() {
            true => "another field manager".to_owned(),
            false => names.into_iter().collect::<Vec<_>>().join(" and "),
        }
    }

    /// Adds to the revisions that were listed those that the status alone names.
    pub(super) fn with_revisions_of_status(
        &self,
        mut listed: Vec<RevisionResource>,
    ) -> Vec<RevisionResource> {
        let Some(status) = &self.status else { return listed };
        let names = status.traffic.iter().flatten().filter_map(|target| target.revision_name.as_ref());
        let latest = [&status.latest_ready_revision_name, &status.latest_created_revision_name];
        for name in names.chain(latest.into_iter().flatten()).filter(|name| !name.is_empty()) {
            if listed.iter().all(|revision| revision.metadata.name.as_ref() != Some(name)) {
                let metadata = Metadata { name: Some(name.clone()), ..Metadata::default() };
                listed.push(RevisionResource { metadata, spec: Value::Null });
            }
        }
        listed
    }

    /// What hive wants to know of it.
    pub(super) fn seen(self, revisions: Vec<RevisionResource>, field_manager: &str) -> FoundService {
        let status = self.status.clone().unwrap_or_default();
        let generation = self.generation();
        let observed_generation = status.observed_generation.unwrap_or_default();
        let latest_ready = status.latest_ready_revision_name.clone().filter(|name| !name.is_empty());
        FoundService {
            service_id: self.owner().map(str::to_owned),
            spec_hash: self.specification(field_manager).map(|spec| spec.hash()),
            generation,
            observed_generation,
            conditions: status.conditions(generation, observed_generation),
            latest_created_revision: status.latest_created_revision_name.filter(|name| !name.is_empty()),
            revisions: revisions.into_iter().filter_map(RevisionResource::seen).collect(),
            traffic: traffic(status.traffic.unwrap_or_default(), latest_ready.as_ref()),
            latest_ready_revision: latest_ready,
            url: status.url.filter(|url| !url.is_empty()),
            deleting: self.is_being_deleted(),
        }
    }

    /// What really is there, as a specification. `None`: what is there cannot be said in one.
    fn specification(&self, field_manager: &str) -> Option<ServiceSpec> {
        let template = &self.spec["template"];
        let [container] = template["spec"]["containers"].as_array()?.as_slice() else { return None };
        // What runs depends on these, and a specification does not know them.
        if ["command", "args"].iter().any(|field| container.get(field).is_some_and(|value| !is_empty(value)))
        {
            return None;
        }
        let scale = |name: &str| match template["metadata"]["annotations"].get(name) {
            None => Some(None),
            Some(number) => number.as_str()?.parse().ok().map(Some),
        };
        Some(ServiceSpec {
            image: container["image"].as_str()?.to_owned(),
            env: environment(&container["env"])?,
            min_scale: scale(MIN_SCALE)?,
            max_scale: scale(MAX_SCALE)?,
            concurrency: self.concurrency(&template["spec"], field_manager)?,
            replacement: match template["metadata"]["annotations"].get(REPLACEMENT_ANNOTATION) {
                None => None,
                Some(mark) => Some(mark.as_str()?.to_owned()),
            },
        })
    }

    /// Knative fills this field in where nobody has set it, with a number that the cluster's operator chooses. Nobody owns
    /// such a value: it is not one that was asked for, and not one that was edited by hand.
    fn concurrency(&self, pod: &Value, field_manager: &str) -> Option<Option<u32>> {
        const PATH: [&str; 4] = ["f:spec", "f:template", "f:spec", "f:containerConcurrency"];
        let Some(number) = pod.get("containerConcurrency") else { return Some(None) };
        let is_set = self.metadata.managed_fields.iter().flatten().any(|fields| {
            // What the server writes besides what was applied is noted as an update by the same manager.
            let is_ours = fields.manager.split('/').next() == Some(field_manager);
            let is_default = is_ours && fields.operation != "Apply";
            !is_default && fields.owns(&PATH)
        });
        match is_set {
            true => number.as_u64()?.try_into().ok().map(Some),
            false => Some(None),
        }
    }
}

impl RevisionList {
    pub(super) fn oldest_first(self) -> Vec<RevisionResource> {
        let mut revisions = self.items.unwrap_or_default();
        revisions.sort_by(|one, other| {
            let key = |revision: &RevisionResource| {
                (revision.metadata.creation_timestamp, revision.metadata.name.clone())
            };
            key(one).cmp(&key(other))
        });
        revisions
    }
}

impl RevisionResource {
    fn seen(self) -> Option<RevisionSeen> {
        Some(RevisionSeen {
            name: self.metadata.name?,
            image: self.spec["containers"][0]["image"].as_str().map(str::to_owned),
            created_at: self.metadata.creation_timestamp,
        })
    }
}

impl Metadata {
    fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(name).map(String::as_str)
    }
}

impl ManagedFields {
    fn owns(&self, path: &[&str]) -> bool {
        path.iter().try_fold(&self.fields_v1, |fields, step| fields.get(step)).is_some()
    }
}

impl Status {
    /// The three conditions. Those of an earlier generation say nothing about this one.
    fn conditions(&self, generation: i64, observed_generation: i64) -> Conditions {
        if generation != observed_generation {
            let message =
                format!("the conditions are about generation {observed_generation}, not {generation}");
            let outdated = Condition::because(ConditionStatus::Unknown, "OutOfDate", message);
            return Conditions {
                ready: outdated.clone(),
                configurations_ready: outdated.clone(),
                routes_ready: outdated,
            };
        }
        Conditions {
            ready: self.condition("Ready"),
            configurations_ready: self.condition("ConfigurationsReady"),
            routes_ready: self.condition("RoutesReady"),
        }
    }

    fn condition(&self, name: &str) -> Condition {
        let Some(found) = self.conditions.iter().flatten().find(|condition| condition.r#type == name) else {
            return Condition::default();
        };
        let status = match found.status.as_str() {
            "True" => ConditionStatus::True,
            "False" => ConditionStatus::False,
            _ => ConditionStatus::Unknown,
        };
        let said = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Condition { status, reason: said(&found.reason), message: said(&found.message) }
    }
}

fn traffic(targets: Vec<TrafficTarget>, latest_ready: Option<&String>) -> Vec<RouteTarget> {
    let shares = targets.into_iter().filter_map(|target| {
        let latest = target.latest_revision.unwrap_or_default();
        // A target that follows the latest revision need not name it.
        let named = target.revision_name.filter(|name| !name.is_empty());
        let revision = named.or_else(|| latest_ready.filter(|_| latest).cloned())?;
        Some(RouteTarget { revision, percent: target.percent.unwrap_or_default(), latest, tag: target.tag })
    });
    shares.collect()
}

/// The environment, if all of it is written out.
fn environment(list: &Value) -> Option<BTreeMap<String, String>> {
    let entries = match list {
        Value::Null => return Some(BTreeMap::new()),
        list => list.as_array()?,
    };
    let mut environment = BTreeMap::new();
    for entry in entries {
        if entry.get("valueFrom").is_some_and(|source| !is_empty(source)) {
            return None;
        }
        // An empty value may be left out.
        let value = match entry.get("value") {
            None | Some(Value::Null) => "",
            Some(value) => value.as_str()?,
        };
        if environment.insert(entry["name"].as_str()?.to_owned(), value.to_owned()).is_some() {
            return None;
        }
    }
    Some(environment)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
