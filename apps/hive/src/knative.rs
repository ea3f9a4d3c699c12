//! The platform's side of a service, as it was last seen: what of a look is worth telling (H14).
//!
//! A look that shows nothing new is no fact. What a service still waits for is told again after a while, in case that what
//! was told did not get through.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath::{Aggregate, Command, Context, Event};

use crate::gateway::{FoundService, Observed, RevisionSeen, RouteTarget};
use crate::service::{ServiceStatus, Snapshot};
use crate::spec::{ResourceName, SpecHash};

/// After how long something is told again that a service waits for.
const TOLD_AGAIN_AFTER: TimeDelta = TimeDelta::seconds(60);

/// The platform's side of a service.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KnativeService {
    /// What was told last.
    pub told: Option<KnativeServiceObserved>,
    /// When it was told that it is gone.
    pub told_deleted_at: Option<DateTime<Utc>>,
    /// The revisions that were told.
    pub revisions: BTreeSet<String>,
    /// Where requests were told to go.
    pub traffic: Vec<RouteTarget>,
    /// At which address.
    #[serde(default)]
    pub url: Option<String>,
}

/// What may be asked of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Command)]
pub enum KnativeServiceCommand {
    /// It was looked at.
    #[serde(rename = "Command.Hive.KnativeService.Observe")]
    #[command(internal)]
    Observe(Look),
}

/// A look, and what the looker knew of the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "where a name says it, no comment repeats it")]
pub struct Look {
    pub service_id: String,
    pub resource: ResourceName,
    pub observed: Observed,
    pub observed_at: DateTime<Utc>,
    pub desired_spec_hash: SpecHash,
    pub spec_version: u64,
    pub status: ServiceStatus,
    /// Whether the service knows already what was seen.
    #[serde(default)]
    pub known: bool,
    /// How many looks in a row must find it not ready before it counts as failed.
    pub failure_threshold: u32,
    /// How long after a look that counts the next one counts. Hints make looks frequent, and a threshold is meant in scans.
    #[serde(default)]
    pub failure_interval_ms: u64,
}

/// What a look showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
#[event(schemas)]
pub enum KnativeServiceEvent {
    /// There is a new revision.
    #[serde(rename = "RevisionCreated")]
    RevisionCreated(RevisionCreated),
    /// Requests go elsewhere.
    #[serde(rename = "RouteAligned")]
    RouteAligned(RouteAligned),
    /// Something has changed, or is awaited.
    #[serde(rename = "KnativeServiceObserved")]
    Observed(KnativeServiceObserved),
    /// It is gone, as it should be.
    #[serde(rename = "KnativeServiceDeletedObserved")]
    DeletedObserved(KnativeServiceDeletedObserved),
}

/// `KnativeServiceObserved`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KnativeServiceObserved {
    /// Which service of ours.
    pub service_id: String,
    /// Where it is.
    pub resource: ResourceName,
    /// Whether it is ready; null: not known yet.
    pub ready: Option<bool>,
    /// Whether it is what was asked for.
    pub hash_match: bool,
    /// What was asked for.
    pub desired_spec_hash: SpecHash,
    /// Which one in the row.
    pub spec_version: u64,
    /// How many looks in a row must find it not ready before it counts as failed.
    pub failure_threshold: u32,
    /// When it was last counted that it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_counted_at: Option<DateTime<Utc>>,
    /// All that was seen.
    pub snapshot: Snapshot,
}

/// `KnativeServiceDeletedObserved`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KnativeServiceDeletedObserved {
    /// Which service of ours.
    pub service_id: String,
    /// Where it was.
    pub resource: ResourceName,
    /// All that was seen: that it is not there.
    pub snapshot: Snapshot,
}

/// `RevisionCreated`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevisionCreated {
    /// Which service of ours.
    pub service_id: String,
    /// Where it is.
    pub resource: ResourceName,
    /// The revision.
    pub revision: RevisionSeen,
    /// The hash of what the revision runs, if that is known.
    pub spec_hash: Option<SpecHash>,
}

/// `RouteAligned`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteAligned {
    /// Which service of ours.
    pub service_id: String,
    /// Where it is.
    pub resource: ResourceName,
    /// Where requests go.
    pub traffic: Vec<RouteTarget>,
    /// The address.
    pub url: Option<String>,
}

impl Aggregate for KnativeService {
    const KIND: &'static str = "knative-service";
    type Command = KnativeServiceCommand;
    type Event = KnativeServiceEvent;
    type Refusal = Infallible;

    fn decide(
        &self,
        command: KnativeServiceCommand,
        _: &Context,
    ) -> Result<Vec<KnativeServiceEvent>, Infallible> {
        let KnativeServiceCommand::Observe(look) = command;
        let mut events = self.new_revisions(&look);
        events.extend(self.new_route(&look));
        let observed = self.observed(&look);
        let gone = look.status == ServiceStatus::Deleting && !observed.snapshot.present;
        if self.is_worth_telling(&look, &observed) {
            events.push(KnativeServiceEvent::Observed(observed.clone()));
        }
        if gone && is_due(self.told_deleted_at, look.observed_at) {
            let KnativeServiceObserved { service_id, resource, snapshot, .. } = observed;
            let deleted = KnativeServiceDeletedObserved { service_id, resource, snapshot };
            events.push(KnativeServiceEvent::DeletedObserved(deleted));
        }
        Ok(events)
    }

    fn evolve(mut self, event: &KnativeServiceEvent) -> Self {
        match event {
            KnativeServiceEvent::Observed(observed) => self.told = Some(observed.clone()),
            KnativeServiceEvent::DeletedObserved(deleted) => {
                self.told_deleted_at = Some(deleted.snapshot.observed_at);
            }
            KnativeServiceEvent::RevisionCreated(created) => {
                self.revisions.insert(created.revision.name.clone());
            }
            KnativeServiceEvent::RouteAligned(aligned) => {
                (self.traffic, self.url) = (aligned.traffic.clone(), aligned.url.clone());
            }
        }
        self
    }
}

impl KnativeService {
    fn observed(&self, look: &Look) -> KnativeServiceObserved {
        let earlier = self.told.as_ref().filter(|told| told.spec_version == look.spec_version);
        let mut snapshot = Snapshot::of(look.found(), &look.desired_spec_hash, look.observed_at);
        let mut failure_counted_at = None;
        // What is not what was asked for says nothing about what was.
        if snapshot.ready == Some(false) && snapshot.hash_match {
            let before = earlier.map_or(0, |told| told.snapshot.consecutive_failures);
            let counted_at = earlier.and_then(|told| told.failure_counted_at);
            let counts = before == 0 || counted_at.is_none_or(|at| look.is_an_interval_after(at));
            failure_counted_at = if counts { Some(look.observed_at) } else { counted_at };
            // Beyond the threshold one more says nothing new.
            snapshot.consecutive_failures = (before + u32::from(counts)).min(look.failure_threshold.max(1));
        }
        KnativeServiceObserved {
            service_id: look.service_id.clone(),
            resource: look.resource.clone(),
            ready: snapshot.ready,
            hash_match: snapshot.hash_match,
            desired_spec_hash: look.desired_spec_hash.clone(),
            spec_version: look.spec_version,
            failure_threshold: look.failure_threshold,
            failure_counted_at,
            snapshot,
        }
    }

    /// Whether it is another than what was told, or the service waits for it still.
    fn is_worth_telling(&self, look: &Look, observed: &KnativeServiceObserved) -> bool {
        let Some(told) = &self.told else { return true };
        // Listed before the service went on: who looks at what it is now will tell.
        if look.spec_version < told.spec_version {
            return false;
        }
        // It was told, and a service that does not know it, or waits for it still, did not get it.
        let awaited = look.status.is_converging() && observed.hash_match && observed.ready.is_some();
        let told_in_vain =
            (awaited || !look.known) && is_due(Some(told.snapshot.observed_at), look.observed_at);
        told_in_vain
            || told.spec_version != observed.spec_version
            || !told.snapshot.says_the_same(&observed.snapshot)
    }

    fn new_revisions(&self, look: &Look) -> Vec<KnativeServiceEvent> {
        let Some(found) = look.found() else { return Vec::new() };
        let new = found.revisions.iter().filter(|revision| !self.revisions.contains(&revision.name));
        new.map(|revision| {
            // The event has a place of its own for the hash, which readers know.
            let mut revision = revision.clone();
            let spec_hash = revision.spec_hash.take();
            KnativeServiceEvent::RevisionCreated(RevisionCreated {
                service_id: look.service_id.clone(),
                resource: look.resource.clone(),
                revision,
                spec_hash,
            })
        })
        .collect()
    }

    /// Requests go elsewhere, or nowhere any more.
    fn new_route(&self, look: &Look) -> Option<KnativeServiceEvent> {
        let (traffic, url) = look.found().map_or_else(Default::default, |found| {
            (found.traffic.clone(), found.url.clone().filter(|_| !found.traffic.is_empty()))
        });
        if traffic == self.traffic && url == self.url {
            return None;
        }
        let (service_id, resource) = (look.service_id.clone(), look.resource.clone());
        Some(KnativeServiceEvent::RouteAligned(RouteAligned { service_id, resource, traffic, url }))
    }
}

impl Look {
    fn is_an_interval_after(&self, moment: DateTime<Utc>) -> bool {
        let interval = Duration::from_millis(self.failure_interval_ms);
        // A clock that was set back, or another instance's that is behind, holds up nothing for longer than that.
        (self.observed_at - moment).abs().to_std().is_ok_and(|between| between >= interval)
    }

    fn found(&self) -> Option<&FoundService> {
        self.observed.found_of(&self.service_id)
    }
}

fn is_due(told_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> bool {
    told_at.is_none_or(|told_at| now - told_at >= TOLD_AGAIN_AFTER)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is a test's verdict")]

    use super::*;
    use crate::gateway::{Condition, ConditionStatus, Conditions};

    const WANTED: &str = "wanted";

    fn look(hash: &str, ready: ConditionStatus, seconds: i64) -> Look {
        let conditions = Conditions { ready: Condition::of(ready), ..Conditions::default() };
        Look {
            service_id: "shop.cart".to_owned(),
            resource: ResourceName::new("shop", "cart"),
            observed: seen(FoundService {
                spec_hash: Some(SpecHash::from_stored(hash)),
                conditions,
                ..found()
            }),
            observed_at: DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds),
            desired_spec_hash: SpecHash::from_stored(WANTED),
            spec_version: 2,
            status: ServiceStatus::Updating,
            known: true,
            failure_threshold: 3,
            failure_interval_ms: 1_000,
        }
    }

    fn found() -> FoundService {
        FoundService { service_id: Some("shop.cart".to_owned()), ..FoundService::default() }
    }

    fn seen(found: FoundService) -> Observed {
        Observed::Found(Box::new(found))
    }

    fn revision(name: &str, hash: Option<&str>) -> RevisionSeen {
        let (name, spec_hash) = (name.to_owned(), hash.map(SpecHash::from_stored));
        RevisionSeen { name, image: None, created_at: None, spec_hash }
    }

    fn to_first_revision() -> RouteTarget {
        RouteTarget { revision: "cart-00001".to_owned(), percent: 100, latest: true, tag: None }
    }

    /// What follows from looks, one after the other.
    fn events(looks: impl IntoIterator<Item = Look>) -> Vec<Vec<KnativeServiceEvent>> {
        let context = Context { now: Utc::now(), version: 0, actor_id: None, tenant_id: None };
        let mut state = KnativeService::default();
        let mut all = Vec::new();
        for look in looks {
            all.push(state.decide(KnativeServiceCommand::Observe(look), &context).unwrap());
            state = all.iter().flatten().fold(KnativeService::default(), KnativeService::evolve);
        }
        all
    }

    /// What of it each look tells.
    fn told(looks: impl IntoIterator<Item = Look>) -> Vec<Option<KnativeServiceObserved>> {
        let observed = |event| match event {
            KnativeServiceEvent::Observed(observed) => Some(observed),
            _ => None,
        };
        events(looks).into_iter().map(|events| events.into_iter().find_map(observed)).collect()
    }

    fn counts(looks: impl IntoIterator<Item = Look>) -> Vec<Option<u32>> {
        told(looks).into_iter().map(|told| Some(told?.snapshot.consecutive_failures)).collect()
    }

    #[test]
    fn only_failures_of_what_is_wanted_count() {
        let looks = [("earlier", 0), ("earlier", 1), (WANTED, 2), (WANTED, 3)];
        let looks = looks.map(|(hash, seconds)| look(hash, ConditionStatus::False, seconds));
        assert_eq!(counts(looks), [Some(0), None, Some(1), Some(2)]);
    }

    #[test]
    fn looks_within_an_interval_count_once() {
        let looks = [0, 0, 20, 59, 60, 61, 119, 120].map(|seconds| Look {
            failure_interval_ms: 60_000,
            ..look(WANTED, ConditionStatus::False, seconds)
        });
        // Told again after a minute whatever the count, because the service waits for it.
        assert_eq!(counts(looks), [Some(1), None, None, None, Some(2), None, None, Some(3)]);
    }

    #[test]
    fn revisions_and_routes_of_another_service_are_not_its_own() {
        for (owner, told) in [(None, 0), (Some("shop.cart"), 2), (Some("other"), 0)] {
            let observed = seen(FoundService {
                service_id: owner.map(str::to_owned),
                revisions: vec![revision("cart-00001", None)],
                traffic: vec![to_first_revision()],
                ..FoundService::default()
            });
            let events = events([Look { observed, ..look(WANTED, ConditionStatus::True, 0) }]);
            let of_parts = |event: &&KnativeServiceEvent| {
                matches!(
                    event,
                    KnativeServiceEvent::RevisionCreated(_) | KnativeServiceEvent::RouteAligned(_)
                )
            };
            assert_eq!(events[0].iter().filter(of_parts).count(), told, "{owner:?}");
        }
    }

    #[test]
    fn a_route_is_told_when_its_address_changes_and_when_it_is_gone() {
        let routed = |url: &str| {
            seen(FoundService { traffic: vec![to_first_revision()], url: Some(url.to_owned()), ..found() })
        };
        let observed =
            [routed("http://cart"), routed("http://cart"), routed("https://cart"), Observed::NotFound];
        let looks = observed.map(|observed| Look { observed, ..look(WANTED, ConditionStatus::True, 0) });
        let aligned = |event| match event {
            KnativeServiceEvent::RouteAligned(aligned) => Some((aligned.traffic.len(), aligned.url)),
            _ => None,
        };
        let told: Vec<_> =
            events(looks).into_iter().map(|events| events.into_iter().find_map(aligned)).collect();
        let url = |text: &str| Some(text.to_owned());
        assert_eq!(
            told,
            [Some((1, url("http://cart"))), None, Some((1, url("https://cart"))), Some((0, None))]
        );
    }

    #[test]
    fn a_revision_is_told_with_its_own_hash() {
        // The specification has been changed, and the platform has not made a revision of it yet.
        let observed = seen(FoundService {
            spec_hash: Some(SpecHash::from_stored(WANTED)),
            generation: 3,
            observed_generation: 2,
            latest_created_revision: Some("cart-00002".to_owned()),
            revisions: vec![revision("cart-00001", None), revision("cart-00002", Some("earlier"))],
            ..found()
        });
        let events = events([Look { observed, ..look(WANTED, ConditionStatus::Unknown, 0) }]);
        let told: Vec<serde_json::Value> = events[0]
            .iter()
            .filter(|event| matches!(event, KnativeServiceEvent::RevisionCreated(_)))
            .map(|event| serde_json::to_value(event).unwrap())
            .collect();
        let payload = |name: &str, hash: Option<&str>| {
            serde_json::json!({ "RevisionCreated": {
                "serviceId": "shop.cart",
                "resource": { "namespace": "shop", "name": "cart" },
                "revision": { "name": name, "image": null, "createdAt": null },
                "specHash": hash,
            } })
        };
        assert_eq!(told, [payload("cart-00001", None), payload("cart-00002", Some("earlier"))]);
    }

    #[test]
    fn what_a_service_does_not_know_is_told_again_after_a_while() {
        let ready = |known, seconds| Look {
            known,
            status: ServiceStatus::Ready,
            ..look(WANTED, ConditionStatus::True, seconds)
        };
        let looks = [ready(false, 0), ready(false, 30), ready(false, 60), ready(true, 3600)];
        let told: Vec<bool> = told(looks).iter().map(Option::is_some).collect();
        assert_eq!(told, [true, false, true, false]);
    }

    #[test]
    fn a_look_for_an_earlier_specification_tells_nothing() {
        let late = Look { spec_version: 1, ..look("earlier", ConditionStatus::True, 9) };
        let first = look(WANTED, ConditionStatus::Unknown, 1);
        let told = told([first, late]);
        assert!(told[0].is_some() && told[1].is_none());
    }
}
