//! What hive looks at on the platform, and what follows from it (H14).
//!
//! A look also does what is to be done there: applies a specification, deletes a resource. It happens here and not in the
//! handler of the fact that asks for it, because a handler holds a transaction, and a platform may take its time. The
//! projection `hive-services` says what is wanted (`Kept`), and so wakes the observer; it is wanted until the service says that it was
//! done. When it is looked at, and what came of it, the observer keeps itself. What was done and is undone by somebody else is
//! done again as long as the service waits for it.

use std::collections::HashMap;
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use towpath::ids::AggregateKey;
use towpath::observer::{
    Decision, ExternalResources, Hints, Look as When, Looked, ObserveError, Platform, Watch, Watched,
};
use towpath::ports::store::{StoreError, StoreResult};
use towpath::retry::duration_text;
use towpath::tables::OwnTables;
use towpath::{Aggregate as _, InvalidPayload, SqlStore};

use crate::HiveSettings;
use crate::alerts;
use crate::gateway::{Apply, Condition, FoundService, GatewayError, Observed, ServingGateway};
use crate::knative::{KnativeService, KnativeServiceCommand, Look};
use crate::namespace::{Namespace, NamespaceCommand, NamespaceValidated};
use crate::service::{
    ApplyOutcome, ApplyResult, ConvergenceExpired, Service, ServiceCommand, ServiceStatus, Snapshot,
};
use crate::spec::{ResourceName, ServiceSpec, SpecHash};
use crate::texts;
use crate::views::{Cause, Wanted, later, resource_key};

/// The code of a deletion that takes too long.
pub const DELETION_DEADLINE: &str = "deletion-deadline";

/// The code of a look that has brought a READY service back to what was asked for: it is looked at once more, soon.
pub const DRIFT_CORRECTED: &str = "drift-corrected";

/// The code of a READY service that somebody has changed again too soon after it was brought back.
pub const DRIFT_AGAIN: &str = "drift-again";

/// When it is looked whether a correction has held.
const LOOKED_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The share of the time of a look within which a resource must have been seen, for what was applied before to be told in the
/// rest of it.
const TOLD_BEFORE: f64 = 0.9;

/// The share of the time of a look within which something must have been seen that was waited for too long: in the rest it is
/// asked whether the platform is there at all.
const OVERDUE_SEEN_WITHIN: f64 = 0.6;

/// The services that are looked at.
pub struct Targets {
    gateway: Arc<dyn ServingGateway>,
    settings: HiveSettings,
    /// Which READY services were brought back, and when.
    corrected: Mutex<HashMap<String, Instant>>,
}

/// What is kept of a service that is looked at: what is wanted of it, and what it knows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) resource: ResourceName,
    pub(crate) status: ServiceStatus,
    pub(crate) spec: ServiceSpec,
    pub(crate) spec_hash: SpecHash,
    pub(crate) spec_version: u64,
    pub(crate) force_replace: bool,
    pub(crate) applied: bool,
    pub(crate) wanted: Option<Wanted>,
    pub(crate) cause: Option<Cause>,
    pub(crate) snapshot: Option<Snapshot>,
}

/// A service that is looked at, as it is when its look begins.
#[derive(Debug)]
pub struct Target {
    service_id: String,
    kept: Kept,
    /// Until when what was asked for is waited for, by the database's time, and how long that is from the first look on.
    deadline: Option<(DateTime<Utc>, Duration)>,
    /// The database's time when the look began, and this process's own count of time.
    began: (DateTime<Utc>, Instant),
    /// Whether the service has gone on, and what is kept does not say so yet. Then it is looked at, and nothing is done to it:
    /// what it waited for has come, and who undoes it now is to be seen and not put right.
    overtaken: bool,
}

/// What a look showed, and what was done.
#[derive(Debug)]
pub struct Evidence {
    namespace_exists: Option<bool>,
    applied: Option<ApplyResult>,
    /// What is there; none when it was not looked at, because of what came before.
    observed: Option<Result<Observed, ObserveError>>,
    /// Why it could not be deleted or brought back, or why it is looked at again soon.
    refused: Option<ObserveError>,
    /// What is known of something that was waited for in vain.
    expired: Option<String>,
}

impl Targets {
    /// Looks through this gateway.
    pub fn new(gateway: Arc<dyn ServingGateway>, settings: HiveSettings) -> Self {
        Self { gateway, settings, corrected: Mutex::default() }
    }

    /// So much later is a READY service looked at: what was found in one long scan does not come due at one moment for ever.
    /// Less than the time between two looks at others.
    fn spread(&self, target: &Target) -> Duration {
        let mut hasher = std::hash::DefaultHasher::new();
        (&target.service_id, target.began.0).hash(&mut hasher);
        let share = u32::try_from(hasher.finish() % 100).unwrap_or_default();
        self.settings.interval.min(self.settings.ready_stale / 10) * share / 100
    }

    /// How long a service may be in its state; none: for ever.
    fn limit(&self, status: ServiceStatus) -> Option<Duration> {
        let limit = match status {
            ServiceStatus::Creating | ServiceStatus::Updating => self.settings.converges_within,
            ServiceStatus::Deleting => self.settings.deleted_within,
            ServiceStatus::Ready | ServiceStatus::Failed | ServiceStatus::Deleted => Duration::ZERO,
        };
        (!limit.is_zero()).then_some(limit)
    }

    async fn apply(&self, target: &Target, force: bool) -> Result<ApplyResult, ObserveError> {
        let apply = Apply {
            service_id: target.service_id.clone(),
            resource: target.kept.resource.clone(),
            spec: target.kept.spec.clone(),
            spec_hash: target.kept.spec_hash.clone(),
            force,
        };
        match self.gateway.apply(&apply).await {
            Ok(applied) => {
                Ok(ApplyResult::Applied { generation: applied.generation, changed: applied.changed })
            }
            Err(error) if error.is_passing() => Err(not_seen(error)),
            Err(error) => {
                let message = texts::readable(&error.to_string());
                Ok(ApplyResult::Refused { reason: error.code().to_owned(), message })
            }
        }
    }

    /// Whether the namespace is there. A platform that will never tell does not keep a service from being applied: that
    /// answers for itself.
    async fn namespace_exists(&self, namespace: &str) -> Result<Option<bool>, ObserveError> {
        match self.gateway.namespace_exists(namespace).await {
            Ok(exists) => Ok(Some(exists)),
            Err(error) if error.is_passing() => Err(not_seen(error)),
            Err(error) => {
                tracing::debug!(namespace, code = error.code(), %error, "it cannot be known whether it exists");
                Ok(None)
            }
        }
    }

    /// Looks, after something was applied so early that there is time to tell what came of that.
    async fn look_until(&self, deadline: Instant, target: &Target) -> Result<Observed, ObserveError> {
        let looking = self.look(target);
        let timed_out = |_| Err(ObserveError::timed_out(self.settings.timeout));
        tokio::time::timeout_at(deadline, looking).await.unwrap_or_else(timed_out)
    }

    async fn look(&self, target: &Target) -> Result<Observed, ObserveError> {
        self.gateway.observe(&target.kept.resource).await.map(Observed::readable).map_err(not_seen)
    }

    /// Deletes; answers why the platform will not, if it says so. What is there is to be seen all the same.
    async fn delete(&self, target: &Target) -> Result<Option<ObserveError>, ObserveError> {
        match self.gateway.delete(&target.service_id, &target.kept.resource).await {
            Ok(_) => Ok(None),
            Err(error) if error.is_passing() => Err(not_seen(error)),
            Err(error) => Ok(Some(not_seen(error))),
        }
    }

    /// Brings a READY service back to what was asked for; answers why it is to be looked at again soon.
    async fn correct(&self, target: &Target) -> Result<ObserveError, ObserveError> {
        let interval = self.settings.interval;
        let recently = |at: &Instant| at.elapsed() < interval;
        let again = {
            let mut corrected = self.corrected.lock().unwrap_or_else(PoisonError::into_inner);
            corrected.retain(|_, at| recently(at));
            corrected.contains_key(&target.service_id)
        };
        // Somebody else wants something else: two who put each other right would do nothing else.
        if again {
            let message = format!("somebody has changed it again within {interval:?} of its correction");
            return Ok(ObserveError::of_resource(DRIFT_AGAIN, message));
        }
        match self.apply(target, true).await? {
            ApplyResult::Refused { reason, message } => Ok(ObserveError::of_resource(reason, message)),
            ApplyResult::Applied { .. } => {
                tracing::info!(service = target.service_id, "it was something else, and was brought back");
                let mut corrected = self.corrected.lock().unwrap_or_else(PoisonError::into_inner);
                corrected.insert(target.service_id.clone(), Instant::now());
                let message =
                    "it was something else on the platform, and was brought back to what was asked for";
                Ok(ObserveError::later(DRIFT_CORRECTED, message, LOOKED_AGAIN_AFTER))
            }
        }
    }

    /// Looks, and does what is to be done.
    async fn look_and_act(&self, target: &Target) -> Result<Evidence, ObserveError> {
        let (mut namespace_exists, mut applied, mut refused) = (None, None, None);
        let deadline = Instant::now() + self.settings.timeout.mul_f64(TOLD_BEFORE);
        match target.kept.wanted.filter(|_| !target.overtaken) {
            Some(Wanted::Apply) if target.kept.status.is_converging() => {
                namespace_exists = self.namespace_exists(&target.kept.resource.namespace).await?;
                let outcome = self.apply(target, target.kept.force_replace).await?;
                // A no for good is told at once: whatever else could not be seen would keep it back.
                if matches!(outcome, ApplyResult::Refused { .. }) {
                    let applied = Some(outcome);
                    return Ok(Evidence {
                        namespace_exists,
                        applied,
                        observed: None,
                        refused,
                        expired: None,
                    });
                }
                applied = Some(outcome);
            }
            Some(Wanted::Delete) if target.kept.status == ServiceStatus::Deleting => {
                refused = self.delete(target).await?;
            }
            _ => {}
        }
        let observed = match applied {
            Some(_) => self.look_until(deadline, target).await,
            None => self.look(target).await,
        };
        let observed = match observed {
            Ok(observed) => observed,
            Err(error) if applied.is_some() => {
                let observed = Some(Err(error));
                return Ok(Evidence { namespace_exists, applied, observed, refused, expired: None });
            }
            Err(error) => return Err(error),
        };
        let own = target.own(&observed);
        // Somebody has undone what the service still waits for.
        let undone = own.is_none_or(|found| found.spec_hash.as_ref() != Some(&target.kept.spec_hash));
        if applied.is_none() && target.kept.applied && target.is_waited_for() && undone {
            applied = Some(self.apply(target, target.kept.force_replace).await?);
        }
        // One that is there again, or still there when it should have been gone for long, is deleted again.
        if target.kept.status == ServiceStatus::Deleting
            && !target.overtaken
            && target.kept.wanted != Some(Wanted::Delete)
            && own.is_some_and(|found| !found.deleting || target.overdue().is_some())
        {
            refused = self.delete(target).await?;
        }
        if self.settings.correct_drift && target.kept.status == ServiceStatus::Ready && !target.overtaken {
            let drifted = match own {
                Some(found) => undone && !found.deleting,
                // What somebody made by hand in its place is left alone.
                None => observed == Observed::NotFound,
            };
            if drifted {
                refused = Some(self.correct(target).await?);
            }
        }
        Ok(Evidence { namespace_exists, applied, observed: Some(Ok(observed)), refused, expired: None })
    }

    /// What follows from a look at something that was waited for too long.
    async fn overdue(
        &self,
        target: &Target,
        waited: Duration,
        looked: Result<Evidence, ObserveError>,
    ) -> Result<Evidence, ObserveError> {
        let unseen = match &looked {
            Ok(evidence) => evidence.observed.as_ref().and_then(|observed| observed.as_ref().err()),
            Err(error) => Some(error),
        };
        if let Some(error) = unseen {
            // A platform that has no time, or is away, says nothing about the service.
            let says_nothing =
                error.retry_after.is_some() || (error.unanswered && self.gateway.reachable().await.is_err());
            if says_nothing {
                return looked;
            }
        }
        let mut evidence = looked.unwrap_or_else(|error| Evidence {
            namespace_exists: None,
            applied: None,
            observed: Some(Err(error)),
            refused: None,
            expired: None,
        });
        let (known, waited) = (evidence.known_of(target), duration_text::format(waited));
        if target.kept.status == ServiceStatus::Deleting {
            let is_gone = matches!(&evidence.observed, Some(Ok(observed)) if target.own(observed).is_none());
            if !is_gone {
                let message = format!("it is not gone within {waited}: {known}; it is deleted again");
                evidence.refused = Some(ObserveError::of_resource(DELETION_DEADLINE, message));
                // Told with the rest.
                evidence.observed = evidence.observed.filter(Result::is_ok);
            }
        } else if !evidence.is_conclusive(target, self.settings.failure_threshold) {
            evidence.expired = Some(format!("it is not READY within {waited}: {known}"));
        }
        Ok(evidence)
    }

    fn decisions(
        &self,
        target: &Target,
        evidence: Evidence,
        began_at: DateTime<Utc>,
    ) -> Result<Vec<Decision>, InvalidPayload> {
        let Evidence { namespace_exists, applied, observed, refused: _, expired } = evidence;
        let mut decisions = Vec::new();
        if let Some(exists) = namespace_exists {
            let namespace = target.kept.resource.namespace.clone();
            let validated =
                NamespaceValidated { namespace: namespace.clone(), exists, validated_at: began_at };
            let command = NamespaceCommand::Validate(validated);
            decisions.push(target.in_flow(Decision::of::<Namespace>(namespace, &command)?));
        }
        if let Some(result) = applied {
            let (spec_hash, spec_version) = (target.kept.spec_hash.clone(), target.kept.spec_version);
            let command = ServiceCommand::RecordApply(ApplyOutcome { spec_hash, spec_version, result });
            decisions.push(target.in_flow(Decision::of::<Service>(&target.service_id, &command)?));
        }
        if let Some(message) = expired {
            let (spec_version, message) = (target.kept.spec_version, texts::readable(&message));
            let command = ServiceCommand::ExpireConvergence(ConvergenceExpired { spec_version, message });
            decisions.push(target.in_flow(Decision::of::<Service>(&target.service_id, &command)?));
        }
        let Some(Ok(observed)) = observed else { return Ok(decisions) };
        let known = target.knows(&observed, began_at);
        // What a service waits for is told also when it should know it.
        if target.is_acted_on() || !known {
            let command = KnativeServiceCommand::Observe(Look {
                service_id: target.service_id.clone(),
                resource: target.kept.resource.clone(),
                observed,
                observed_at: began_at,
                desired_spec_hash: target.kept.spec_hash.clone(),
                spec_version: target.kept.spec_version,
                status: target.kept.status,
                known,
                failure_threshold: self.settings.failure_threshold,
                failure_interval_ms: u64::try_from(self.settings.interval.as_millis()).unwrap_or(u64::MAX),
            });
            decisions.push(target.in_flow(Decision::of::<KnativeService>(&target.service_id, &command)?));
        }
        Ok(decisions)
    }
}

impl ExternalResources for Targets {
    type Resource = Target;
    type Evidence = Evidence;

    async fn resource(&self, store: &SqlStore, watched: Watched) -> StoreResult<Option<Target>> {
        let kept = Kept::read(&watched.wanted)?;
        let Watched { subject_id: service_id, version, goal_begun_at, now, .. } = watched;
        let limit = self.limit(kept.status);
        let began = (now, Instant::now());
        let mut target = Target { service_id, kept, deadline: None, began, overtaken: false };
        let is_corrected = self.settings.correct_drift && target.kept.status == ServiceStatus::Ready;
        if target.is_acted_on() || is_corrected {
            // What is wanted is written by a consumer, and so a moment late.
            let key = AggregateKey::new(Service::KIND, &target.service_id).map_err(corrupt)?;
            let last = store.last_state_change(&key).await?;
            target.overtaken = last.is_some_and(|last| last.aggregate_version > version);
        }
        if let (Some(begun_at), Some(limit), false) = (goal_begun_at, limit, target.overtaken) {
            target.deadline = Some((later(begun_at, limit), limit));
        }
        Ok(Some(target))
    }

    async fn reachable(&self) -> Result<(), ObserveError> {
        self.gateway.reachable().await.map_err(not_seen)
    }

    fn missing(&self, evidence: &Evidence) -> Option<ObserveError> {
        let unseen = evidence.observed.as_ref().and_then(|observed| observed.as_ref().err().cloned());
        unseen.or_else(|| evidence.refused.clone())
    }

    async fn platform_is(
        &self,
        tables: &mut OwnTables<'_>,
        platform: &Platform,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        alerts::platform_is(tables, platform, now).await
    }

    async fn observe(&self, target: &Target) -> Result<Evidence, ObserveError> {
        let Some(waited) = target.overdue() else { return self.look_and_act(target).await };
        // What follows also from a look without an answer is told in the rest of its time.
        let within = self.settings.timeout.mul_f64(OVERDUE_SEEN_WITHIN);
        let looked = tokio::time::timeout(within, self.look_and_act(target)).await;
        let looked = looked.unwrap_or_else(|_| Err(ObserveError::timed_out(within)));
        self.overdue(target, waited, looked).await
    }

    fn decide(&self, target: &Target, evidence: Evidence, began_at: DateTime<Utc>) -> Vec<Decision> {
        self.decisions(target, evidence, began_at).unwrap_or_else(|error| {
            // What was read as JSON can be written as JSON.
            tracing::error!(service = target.service_id, %error, "what was seen cannot be written");
            Vec::new()
        })
    }

    fn look_again_after(&self, target: &Target) -> Duration {
        if target.kept.status == ServiceStatus::Ready && !target.kept.is_missing() {
            return self.settings.ready_stale + self.spread(target);
        }
        // A deadline is not passed by for as long as an interval.
        let left = target.deadline.map(|(deadline, _)| target.time_left(deadline));
        left.filter(|left| !left.is_zero())
            .map_or(self.settings.interval, |left| left.min(self.settings.interval))
    }

    async fn noted(&self, store: &SqlStore, looked: &[Looked<Target>]) -> StoreResult<()> {
        for Looked { resource: target, at, failure, .. } in looked {
            let stuck = failure.as_ref().filter(|failure| failure.code == DELETION_DEADLINE);
            if let (Some(failure), Some((since, _))) = (stuck, target.deadline) {
                let told = (failure.code.as_str(), failure.message.as_str());
                alerts::deletion_is_stuck(store, &target.service_id, since, told, *at).await?;
            }
        }
        Ok(())
    }

    async fn watch(&self) -> Result<Option<Hints>, ObserveError> {
        let changes = self.gateway.watch().await.map_err(not_seen)?;
        Ok(changes.map(|changes| -> Hints { changes.map(|name| resource_key(&name)).boxed() }))
    }
}

impl Kept {
    pub(crate) fn read(text: &str) -> StoreResult<Self> {
        serde_json::from_str(text).map_err(corrupt)
    }

    /// Whether what was seen last was not there.
    pub(crate) fn is_missing(&self) -> bool {
        self.snapshot.as_ref().is_some_and(|snapshot| !snapshot.present)
    }

    /// As it is said to the observer.
    pub(crate) fn watch(&self, service_id: String, version: u64, look: When) -> serde_json::Result<Watch> {
        let is_waited_for = self.status.is_converging() || self.status == ServiceStatus::Deleting;
        Ok(Watch {
            subject_id: service_id,
            hint: resource_key(&self.resource),
            version,
            wanted: serde_json::to_string(self)?,
            goal: if is_waited_for { self.status.as_str().to_owned() } else { String::new() },
            look,
        })
    }
}

impl Target {
    /// How long it is until a moment of the database's time; nothing when that has come.
    fn time_left(&self, moment: DateTime<Utc>) -> Duration {
        let (now, since) = self.began;
        (moment - now).to_std().unwrap_or_default().saturating_sub(since.elapsed())
    }

    /// For how long it was waited, if that was too long when the look began.
    fn overdue(&self) -> Option<Duration> {
        self.deadline.filter(|(deadline, _)| *deadline <= self.began.0).map(|(_, limit)| limit)
    }

    /// Whether a look at it does something to it.
    fn is_acted_on(&self) -> bool {
        self.kept.status.is_converging() || self.kept.status == ServiceStatus::Deleting
    }

    /// What is there, if it is this service's.
    fn own<'o>(&self, observed: &'o Observed) -> Option<&'o FoundService> {
        match observed {
            Observed::Found(found) if found.service_id.as_ref() == Some(&self.service_id) => Some(found),
            _ => None,
        }
    }

    /// Whether the service still waits for what was applied.
    fn is_waited_for(&self) -> bool {
        self.kept.status.is_converging() && !self.overtaken
    }

    /// Whether the service knows already what a look shows.
    fn knows(&self, observed: &Observed, began_at: DateTime<Utc>) -> bool {
        let failures = self.kept.snapshot.as_ref().map_or(0, |snapshot| snapshot.consecutive_failures);
        let seen = Snapshot::of(Some(&self.service_id), observed, &self.kept.spec_hash, failures, began_at);
        self.kept.snapshot.as_ref().is_some_and(|known| known.says_the_same(&seen))
    }

    /// What follows from what a user asked for belongs to the flow of that, until it is done.
    fn in_flow(&self, decision: Decision) -> Decision {
        let settled = matches!(self.kept.status, ServiceStatus::Ready | ServiceStatus::Failed);
        match &self.kept.cause {
            Some(Cause { event_id, flow_id: Some(flow) }) if !settled => decision.in_flow(flow, event_id),
            _ => decision,
        }
    }
}

impl Evidence {
    /// Whether what was seen leads to READY or FAILED by itself.
    fn is_conclusive(&self, target: &Target, failure_threshold: u32) -> bool {
        if matches!(self.applied, Some(ApplyResult::Refused { .. })) {
            return true;
        }
        let Some(Ok(observed)) = &self.observed else { return false };
        let seen =
            Snapshot::of(Some(&target.service_id), observed, &target.kept.spec_hash, 0, DateTime::UNIX_EPOCH);
        seen.hash_match && (seen.ready == Some(true) || (seen.ready == Some(false) && failure_threshold <= 1))
    }

    /// What is known, for people.
    fn known_of(&self, target: &Target) -> String {
        let found = match &self.observed {
            Some(Ok(observed)) => target.own(observed),
            Some(Err(error)) => return error.to_string(),
            None => None,
        };
        let Some(found) = found else { return "the platform does not have it".to_owned() };
        let Condition { reason, message, .. } = &found.conditions.ready;
        let told: Vec<&str> = [reason, message].into_iter().flatten().map(String::as_str).collect();
        match told.is_empty() {
            _ if found.deleting => "the platform is still deleting it".to_owned(),
            _ if found.spec_hash.as_ref() != Some(&target.kept.spec_hash) => {
                "the platform has something else".to_owned()
            }
            true => "the platform does not say why".to_owned(),
            false => told.join(": "),
        }
    }
}

fn corrupt(source: impl Into<towpath::ports::store::BoxError>) -> StoreError {
    StoreError::Corrupt { what: "what is wanted of a service".to_owned(), source: source.into() }
}

/// The platform did not say anything about the resource.
fn not_seen(error: GatewayError) -> ObserveError {
    if let GatewayError::Busy { retry_after } = error {
        return ObserveError::later(error.code(), error.to_string(), retry_after);
    }
    match error.is_passing() {
        true => ObserveError::unanswered(error.code(), error.to_string()),
        false => ObserveError::of_resource(error.code(), error.to_string()),
    }
}
