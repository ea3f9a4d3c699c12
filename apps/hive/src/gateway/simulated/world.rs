//! The resources of a simulated cluster. Pure: time comes in.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::super::{
    Applied, Apply, Condition, ConditionStatus, Conditions, Deletion, FoundService, GatewayError, Observed,
    RevisionSeen, RouteTarget,
};
use super::fate::{Fate, Fates, later};
use crate::spec::{ResourceName, ServiceSpec, SpecHash};

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "camelCase")]
pub(super) enum Entry {
    #[serde(rename_all = "camelCase")]
    Applied {
        at: DateTime<Utc>,
        service_id: String,
        resource: ResourceName,
        spec: ServiceSpec,
    },
    Deleted {
        at: DateTime<Utc>,
        resource: ResourceName,
    },
    /// By hand: not by us, and at once.
    Edited {
        at: DateTime<Utc>,
        resource: ResourceName,
        spec: ServiceSpec,
    },
    Vanished {
        at: DateTime<Utc>,
        resource: ResourceName,
    },
}

/// All resources.
pub(super) struct World {
    seed: u64,
    fates: Fates,
    resources: BTreeMap<ResourceName, Resource>,
    /// Generations go on counting when a resource is made again, so that its revisions get new names.
    generations: BTreeMap<ResourceName, i64>,
    /// What watchers are told, and when.
    changes: BTreeSet<(DateTime<Utc>, ResourceName)>,
}

struct Resource {
    service_id: Option<String>,
    spec: ServiceSpec,
    generation: i64,
    fate: Fate,
    revisions: Vec<Revision>,
    deleted_at: Option<DateTime<Utc>>,
    /// Whether the last change was made by hand.
    edited: bool,
}

struct Revision {
    seen: RevisionSeen,
    settles_at: DateTime<Utc>,
    fails: bool,
}

impl World {
    pub(super) fn new(seed: u64, fates: Fates) -> Self {
        Self {
            seed,
            fates,
            resources: BTreeMap::new(),
            generations: BTreeMap::new(),
            changes: BTreeSet::new(),
        }
    }

    /// Takes in a change.
    pub(super) fn take_in(&mut self, entry: Entry) {
        match entry {
            Entry::Applied { at, service_id, resource, spec } => {
                self.put(at, resource, spec, Some(service_id))
            }
            Entry::Edited { at, resource, spec } => self.put(at, resource, spec, None),
            Entry::Deleted { at, resource } => {
                let gone_at = later(at, self.fates.deleted_after);
                if let Some(found) = self.resources.get_mut(&resource) {
                    found.deleted_at = Some(found.deleted_at.map_or(gone_at, |earlier| earlier.min(gone_at)));
                    self.changes.insert((gone_at, resource));
                }
            }
            Entry::Vanished { at, resource } => {
                self.resources.remove(&resource);
                self.changes.insert((at, resource));
            }
        }
    }

    fn put(
        &mut self,
        at: DateTime<Utc>,
        resource: ResourceName,
        spec: ServiceSpec,
        applied_by: Option<String>,
    ) {
        let generation = self.generations.entry(resource.clone()).or_default();
        *generation += 1;
        let generation = *generation;
        let fate = self.fates.of(self.seed, &resource.to_string(), generation, at);
        let name = format!("{}-{generation:05}", resource.name);
        let seen = RevisionSeen {
            name,
            image: Some(spec.image.clone()),
            created_at: Some(at),
            spec_hash: Some(spec.hash()),
        };
        let revision = Revision { seen, settles_at: fate.settles_at, fails: fate.fails };
        let earlier = self.resources.remove(&resource).filter(|earlier| earlier.is_there(at));
        let edited = applied_by.is_none();
        let service_id =
            applied_by.or_else(|| earlier.as_ref().and_then(|earlier| earlier.service_id.clone()));
        let mut revisions = earlier.map_or_else(Vec::new, |earlier| earlier.revisions);
        revisions.push(revision);
        self.changes.insert((at, resource.clone()));
        self.changes.insert((fate.settles_at, resource.clone()));
        self.changes.extend(fate.vanishes_at.map(|at| (at, resource.clone())));
        let made = Resource { service_id, spec, generation, fate, revisions, deleted_at: None, edited };
        self.resources.insert(resource, made);
    }

    pub(super) fn is_there(&self, resource: &ResourceName, now: DateTime<Utc>) -> bool {
        self.resources.get(resource).is_some_and(|found| found.is_there(now))
    }

    pub(super) fn apply(
        &self,
        apply: &Apply,
        now: DateTime<Utc>,
    ) -> Result<(Applied, Option<Entry>), GatewayError> {
        let name = apply.resource.to_string();
        if self.fates.refuses(self.seed, &name, apply.spec_hash.as_str()) {
            return Err(GatewayError::Refused {
                reason: "Invalid".to_owned(),
                message: format!("the simulated cluster takes no such specification for {name}"),
            });
        }
        let found = self.resources.get(&apply.resource).filter(|found| found.is_there(now));
        if let Some(found) = found {
            if found.deleted_at.is_some() {
                let message = format!("{name} is still being deleted");
                return Err(GatewayError::Unavailable { message });
            }
            if let Some(other) = found.service_id.as_ref().filter(|owner| **owner != apply.service_id) {
                let by = format!("service {other}");
                return Err(GatewayError::Conflict { resource: apply.resource.clone(), by });
            }
            if found.edited && !apply.force {
                return Err(GatewayError::Conflict {
                    resource: apply.resource.clone(),
                    by: "somebody's hand".to_owned(),
                });
            }
            if found.spec.hash() == apply.spec_hash && !found.edited {
                return Ok((Applied { generation: found.generation, changed: false }, None));
            }
        }
        let generation = self.generations.get(&apply.resource).copied().unwrap_or_default() + 1;
        let entry = Entry::Applied {
            at: now,
            service_id: apply.service_id.clone(),
            resource: apply.resource.clone(),
            spec: apply.spec.clone(),
        };
        Ok((Applied { generation, changed: true }, Some(entry)))
    }

    pub(super) fn delete(
        &self,
        service_id: &str,
        resource: &ResourceName,
        now: DateTime<Utc>,
    ) -> (Deletion, Option<Entry>) {
        let is_ours = |found: &&Resource| found.service_id.as_deref() == Some(service_id);
        match self.resources.get(resource).filter(|found| found.is_there(now)).filter(is_ours) {
            None => (Deletion::NotFound, None),
            Some(found) if found.deleted_at.is_some() => (Deletion::Accepted, None),
            Some(_) => (Deletion::Accepted, Some(Entry::Deleted { at: now, resource: resource.clone() })),
        }
    }

    pub(super) fn observe(&self, resource: &ResourceName, now: DateTime<Utc>) -> Observed {
        match self.resources.get(resource).filter(|found| found.is_there(now)) {
            None => Observed::NotFound,
            Some(found) => Observed::Found(Box::new(found.seen(resource, now))),
        }
    }

    /// What has changed up to a moment, of late: a change that another process wrote may be seen a moment after it was made,
    /// so whoever watches remembers what was told and asks again.
    pub(super) fn changed(&mut self, now: DateTime<Utc>) -> BTreeSet<(DateTime<Utc>, ResourceName)> {
        let from = now - chrono::TimeDelta::seconds(2);
        self.changes = self.changes.split_off(&(from, ResourceName::default()));
        let until = (now, ResourceName::new("\u{10ffff}", ""));
        self.changes.range(..until).cloned().collect()
    }
}

impl Resource {
    fn is_there(&self, now: DateTime<Utc>) -> bool {
        let gone = |at: Option<DateTime<Utc>>| at.is_some_and(|at| at <= now);
        !gone(self.deleted_at) && !gone(self.fate.vanishes_at)
    }

    fn seen(&self, resource: &ResourceName, now: DateTime<Utc>) -> FoundService {
        let settled = self.fate.settles_at <= now;
        let ready_revision = self
            .revisions
            .iter()
            .rev()
            .find(|revision| !revision.fails && revision.settles_at <= now)
            .map(|revision| revision.seen.name.clone());
        let status = match (settled, self.fate.fails) {
            (false, _) => ConditionStatus::Unknown,
            (true, false) => ConditionStatus::True,
            (true, true) => ConditionStatus::False,
        };
        let configurations_ready = match status {
            ConditionStatus::True => Condition::of(status),
            ConditionStatus::False => {
                Condition::because(status, "RevisionFailed", "the container does not start")
            }
            ConditionStatus::Unknown => Condition::because(status, "Deploying", "the container starts"),
        };
        let traffic: Vec<RouteTarget> = ready_revision
            .iter()
            .map(|revision| RouteTarget { revision: revision.clone(), percent: 100, latest: true, tag: None })
            .collect();
        let routes_ready = Condition::of(status);
        let spec_hash: Option<SpecHash> = Some(self.spec.hash());
        FoundService {
            service_id: self.service_id.clone(),
            spec_hash,
            generation: self.generation,
            observed_generation: self.generation,
            conditions: Conditions {
                ready: configurations_ready.clone(),
                configurations_ready,
                routes_ready,
            },
            latest_created_revision: self.revisions.last().map(|revision| revision.seen.name.clone()),
            url: ready_revision
                .is_some()
                .then(|| format!("http://{}.{}.example.com", resource.name, resource.namespace)),
            latest_ready_revision: ready_revision,
            revisions: self.revisions.iter().map(|revision| revision.seen.clone()).collect(),
            traffic,
            deleting: self.deleted_at.is_some(),
        }
    }
}
