//! A Knative Service as the API server shows it, and what of it hive wants to know.
//!
//! Only what is needed is read, and nothing is taken for granted: a resource that somebody has bent out of shape by hand
//! is seen as one that is not what was asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::{Value, json};

use super::writing::{EARLIER_SCALES, MAX_SCALE, MIN_SCALE, label_of};
use crate::gateway::{
    Apply, Condition, ConditionStatus, Conditions, FoundService, RevisionSeen, RouteTarget,
};
use crate::spec::{
    EnvValue, INSTALLATION_ANNOTATION, REPLACEMENT_ANNOTATION, SERVICE_ID_LABEL, SPEC_HASH_ANNOTATION,
    ServiceSpec, SpecHash,
};

/// Fields of a container on which depends what runs, and which a specification does not know. Knative fills in none of them.
/// What it does fill in (name, resources, probes, security context) is not looked at: whether somebody set it cannot be
/// told, because the list of containers is one value to the server and has one owner.
const UNKNOWN_TO_SPECIFICATIONS: [&str; 7] =
    ["command", "args", "workingDir", "envFrom", "volumeMounts", "volumeDevices", "ports"];

/// The containers that run before the one that was asked for.
const INIT_CONTAINERS: &str = "initContainers";
/// What can be mounted. By itself it changes nothing.
const VOLUMES: &str = "volumes";
/// How many requests an instance takes at a time.
const CONCURRENCY: &str = "containerConcurrency";

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

/// Whose a resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner<'r> {
    /// A service of this installation.
    Service(&'r str),
    /// Another installation of hive, which may have services of the same names.
    Installation {
        /// Its name.
        name: &'r str,
        /// Its service, if that is known.
        service_id: &'r str,
    },
    /// Nobody that hive knows: somebody made it by hand.
    Nobody,
}

/// For people.
impl fmt::Display for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(id) => write!(f, "service {id}"),
            Self::Installation { name, .. } => write!(f, "installation {name}"),
            Self::Nobody => f.write_str("nobody"),
        }
    }
}

impl Owner<'_> {
    /// As a service id. Of another installation it is none that this one has: there is no slash in those.
    fn service_id(self) -> Option<String> {
        match self {
            Self::Service(id) => Some(id.to_owned()),
            Self::Installation { name, service_id } => Some(format!("{name}/{service_id}")),
            Self::Nobody => None,
        }
    }
}

/// What is there and not wanted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unwanted {
    /// Annotations of the template.
    pub(super) annotations: Vec<&'static str>,
    /// Fields of the pod.
    pub(super) pod_fields: Vec<&'static str>,
    /// Whether requests are sent elsewhere than to the latest revision.
    pub(super) traffic: bool,
}

impl KnativeResource {
    /// Whose it is. What does not name an installation was made before there was a name to write, and counts as ours.
    pub(super) fn owner(&self, installation: &str) -> Owner<'_> {
        let service_id = self.service_id();
        let other = self.metadata.annotation(INSTALLATION_ANNOTATION).filter(|name| *name != installation);
        match (other, service_id) {
            (Some(name), id) => Owner::Installation { name, service_id: id.unwrap_or_default() },
            (None, Some(id)) => Owner::Service(id),
            (None, None) => Owner::Nobody,
        }
    }

    /// The service that it names. Ids that are no labels stand in the annotation. The label decides, because hints and other
    /// people's tools go by it; where somebody has taken it away, the annotation is left.
    fn service_id(&self) -> Option<&str> {
        let id = self.metadata.annotation(SERVICE_ID_LABEL);
        match self.metadata.label(SERVICE_ID_LABEL) {
            Some(label) => Some(id.filter(|id| label_of(id) == label).unwrap_or(label)),
            None => id,
        }
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

    /// Whether applying would change nothing: it says that it is what is wanted and whose it is, and it really is what it
    /// says.
    pub(super) fn carries(&self, apply: &Apply, field_manager: &str) -> bool {
        self.metadata.label(SERVICE_ID_LABEL) == Some(label_of(&apply.service_id).as_str())
            && self.metadata.annotation(SERVICE_ID_LABEL) == Some(apply.service_id.as_str())
            && self.metadata.annotation(INSTALLATION_ANNOTATION) == Some(field_manager)
            && self.metadata.annotation(SPEC_HASH_ANNOTATION) == Some(apply.spec_hash.as_str())
            && self.is_what_is_wanted(apply, field_manager)
    }

    /// Whether what is there is what is wanted, and nothing besides.
    pub(super) fn is_what_is_wanted(&self, apply: &Apply, field_manager: &str) -> bool {
        self.specification(field_manager).is_some_and(|spec| spec.hash() == apply.spec_hash)
    }

    /// The fields that are there and not wanted. Applying leaves them alone, because they are somebody else's. Those of the
    /// container are not among them: the list of containers is applied as a whole.
    pub(super) fn unwanted(&self, spec: &ServiceSpec) -> Unwanted {
        let template = &self.spec["template"];
        let [earlier_min, earlier_max] = EARLIER_SCALES;
        let optional = [
            (MIN_SCALE, spec.min_scale.is_some()),
            (MAX_SCALE, spec.max_scale.is_some()),
            (REPLACEMENT_ANNOTATION, spec.replacement.is_some()),
            (earlier_min, false),
            (earlier_max, false),
        ];
        let is_there = |name: &str| template["metadata"]["annotations"].get(name).is_some();
        let annotations = optional.into_iter().filter(|(name, wanted)| !wanted && is_there(name));
        let pod = &template["spec"];
        let concurrency = spec.concurrency.is_none() && pod.get(CONCURRENCY).is_some();
        let pod_fields = [(CONCURRENCY, concurrency), (INIT_CONTAINERS, has(pod, INIT_CONTAINERS))];
        Unwanted {
            annotations: annotations.map(|(name, _)| name).collect(),
            pod_fields: pod_fields
                .into_iter()
                .filter(|(_, unwanted)| *unwanted)
                .map(|(name, _)| name)
                .collect(),
            traffic: !follows_the_latest(&self.spec["traffic"]),
        }
    }

    /// The lists of the pod that a specification does not know, where there is something in them.
    pub(super) fn unknown_lists(&self) -> impl Iterator<Item = &'static str> {
        let pod = &self.spec["template"]["spec"];
        [INIT_CONTAINERS, VOLUMES].into_iter().filter(|list| has(pod, list))
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
        let spec_hash = self.specification(field_manager).map(|spec| spec.hash());
        let revisions = revisions.into_iter().filter_map(|revision| revision.seen(spec_hash.as_ref()));
        FoundService {
            service_id: self.owner(field_manager).service_id(),
            revisions: revisions.collect(),
            spec_hash,
            generation,
            observed_generation,
            conditions: status.conditions(generation, observed_generation),
            latest_created_revision: status.latest_created_revision_name.filter(|name| !name.is_empty()),
            traffic: traffic(status.traffic.unwrap_or_default(), latest_ready.as_ref()),
            latest_ready_revision: latest_ready,
            url: status.url.filter(|url| !url.is_empty()),
            deleting: self.is_being_deleted(),
        }
    }

    /// What really is there, as a specification. `None`: what is there cannot be said in one.
    fn specification(&self, field_manager: &str) -> Option<ServiceSpec> {
        if !follows_the_latest(&self.spec["traffic"]) {
            return None;
        }
        let template = &self.spec["template"];
        let concurrency = self.concurrency(&template["spec"], field_manager)?;
        specification(&template["metadata"]["annotations"], &template["spec"], concurrency)
    }

    /// Knative fills this field in where nobody has set it, with a number that the cluster's operator chooses. Nobody owns
    /// such a value: it is not one that was asked for, and not one that was edited by hand.
    fn concurrency(&self, pod: &Value, field_manager: &str) -> Option<Option<u32>> {
        const PATH: [&str; 4] = ["f:spec", "f:template", "f:spec", "f:containerConcurrency"];
        let Some(number) = pod.get(CONCURRENCY) else { return Some(None) };
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
    fn seen(self, of_service: Option<&SpecHash>) -> Option<RevisionSeen> {
        Some(RevisionSeen {
            spec_hash: self.spec_hash(of_service),
            name: self.metadata.name?,
            image: self.spec["containers"][0]["image"].as_str().map(str::to_owned),
            created_at: self.metadata.creation_timestamp,
        })
    }

    /// The hash of what it runs. A revision does not show whether its concurrency was asked for or filled in by Knative, so
    /// it may be one of two: the one that was applied (the template's annotations are its own), or that of the service as it
    /// is now. One that is neither was made by hand and has been changed since; it stays unknown rather than wrong.
    fn spec_hash(&self, of_service: Option<&SpecHash>) -> Option<SpecHash> {
        let annotations = json!(self.metadata.annotations);
        let hash = |concurrency| Some(specification(&annotations, &self.spec, concurrency)?.hash());
        let number = match &self.spec[CONCURRENCY] {
            Value::Null => return hash(None),
            number => number.as_u64()?.try_into().ok()?,
        };
        let possible = [hash(None)?, hash(Some(number))?];
        let applied = self.metadata.annotation(SPEC_HASH_ANNOTATION).map(SpecHash::from_stored);
        [applied.as_ref(), of_service].into_iter().flatten().find(|hash| possible.contains(hash)).cloned()
    }
}

impl Metadata {
    fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(name).map(String::as_str)
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.labels.as_ref()?.get(name).map(String::as_str)
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

/// What a pod runs, with the annotations of its template, as a specification.
fn specification(annotations: &Value, pod: &Value, concurrency: Option<u32>) -> Option<ServiceSpec> {
    let [container] = pod["containers"].as_array()?.as_slice() else { return None };
    let cannot_be_said = UNKNOWN_TO_SPECIFICATIONS.iter().any(|field| has(container, field))
        || has(pod, INIT_CONTAINERS)
        || EARLIER_SCALES.iter().any(|name| annotations.get(name).is_some());
    if cannot_be_said {
        return None;
    }
    let scale = |name: &str| match annotations.get(name) {
        None => Some(None),
        Some(number) => number.as_str()?.parse().ok().map(Some),
    };
    Some(ServiceSpec {
        image: container["image"].as_str()?.to_owned(),
        env: environment(&container["env"])?,
        min_scale: scale(MIN_SCALE)?,
        max_scale: scale(MAX_SCALE)?,
        concurrency,
        replacement: match annotations.get(REPLACEMENT_ANNOTATION) {
            None => None,
            Some(mark) => Some(mark.as_str()?.to_owned()),
        },
    })
}

/// Whether all requests go to the latest revision, which is what Knative fills in where nobody has said anything. A tag gives
/// that revision one more address and sends nothing elsewhere.
fn follows_the_latest(traffic: &Value) -> bool {
    let targets = match traffic {
        Value::Null => return true,
        Value::Array(targets) => targets,
        _ => return false,
    };
    match targets.as_slice() {
        [] => true,
        [target] => {
            let revision = target["revisionName"].as_str().unwrap_or_default();
            let latest = target["latestRevision"].as_bool().unwrap_or(true);
            latest && revision.is_empty() && target["percent"] == 100
        }
        _ => false,
    }
}

/// The environment, if all of it is written out or refers to secrets.
fn environment(list: &Value) -> Option<BTreeMap<String, EnvValue>> {
    let entries = match list {
        Value::Null => return Some(BTreeMap::new()),
        list => list.as_array()?,
    };
    let mut environment = BTreeMap::new();
    for entry in entries {
        let source = entry.get("valueFrom").filter(|source| !is_empty(source));
        // An empty value may be left out.
        let written = match entry.get("value") {
            None | Some(Value::Null) => "",
            Some(value) => value.as_str()?,
        };
        let value = match source {
            None => EnvValue::from(written),
            Some(source) if written.is_empty() => of_secret(source)?,
            Some(_) => return None,
        };
        if environment.insert(entry["name"].as_str()?.to_owned(), value).is_some() {
            return None;
        }
    }
    Some(environment)
}

/// A reference to a secret, and to nothing else. One that need not be there is not what was asked for.
fn of_secret(source: &Value) -> Option<EnvValue> {
    let fields = source.as_object()?.iter().filter(|(_, value)| !is_empty(value));
    let [("secretKeyRef", reference)] =
        fields.map(|(name, value)| (name.as_str(), value)).collect::<Vec<_>>()[..]
    else {
        return None;
    };
    match reference.get("optional") {
        None | Some(Value::Null | Value::Bool(false)) => {}
        Some(_) => return None,
    }
    Some(EnvValue::from_secret(reference["name"].as_str()?, reference["key"].as_str()?))
}

fn has(fields: &Value, name: &str) -> bool {
    fields.get(name).is_some_and(|value| !is_empty(value))
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
