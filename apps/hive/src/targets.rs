//! What hive looks at on the platform, and what follows from it (H14).
//!
//! A look also does what is to be done there: applies a specification, deletes a resource. It happens here and not in the
//! handler of the fact that asks for it, because a handler holds a transaction, and a platform may take its time. The
//! projection `hive-services` says what is wanted (`Kept`), and so wakes the observer; it is wanted until the service says that it was
//! done. When it is looked at, and what came of it, the observer keeps itself. What was done and is undone by somebody else is
//! done again as long as the service waits for it. What to do is decided by `Target::first` and `Target::then`, purely.

use std::collections::HashMap;
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use tokio::time::Instant;
use towpath::ids::AggregateKey;
use towpath::observer::{Decision, ExternalResources, Hints, Looked, ObserveError, Platform, Watched};
use towpath::ports::store::StoreResult;
use towpath::retry::duration_text;
use towpath::tables::OwnTables;
use towpath::time::{between, later};
use towpath::{Aggregate, InvalidPayload, SqlStore};

use crate::HiveSettings;
use crate::alerts;
use crate::gateway::{Apply, Condition, FoundService, GatewayError, Observed, ServingGateway};
use crate::knative::{KnativeService, KnativeServiceCommand, Look};
use crate::namespace::{Namespace, NamespaceCommand, NamespaceValidated};
use crate::service::{
    ApplyOutcome, ApplyResult, ConvergenceExpired, Service, ServiceCommand, ServiceStatus, Snapshot,
};
use crate::spec::SpecHash;
use crate::texts;
use crate::views::{Cause, Kept, Wanted, corrupt};

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
pub(crate) struct Targets {
    gateway: Arc<dyn ServingGateway>,
    settings: HiveSettings,
    /// Which READY services were brought back, and when.
    corrected: Mutex<HashMap<String, Instant>>,
}

/// A service that is looked at, as it is when its look begins.
#[derive(Debug)]
pub(crate) struct Target {
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

/// What a look does to a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Nothing,
    Apply,
    Delete,
    /// Brings a READY service back to what was asked for.
    Correct,
}

/// What a look showed, and what was done.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    namespace_exists: Option<bool>,
    applied: Option<ApplyResult>,
    /// What is there; none when it was not looked at, because of what came before.
    observed: Option<Result<Observed, ObserveError>>,
    /// Why it could not be deleted or brought back, or why it is looked at again soon.
    refused: Option<ObserveError>,
    /// What is known of something that was waited for in vain.
    expired: Option<String>,
}

/// What a look showed, or why nothing was seen.
type Seen = Result<Evidence, ObserveError>;

impl Target {
    /// What is to be done before it is looked at.
    fn first(&self) -> Act {
        match (self.kept.wanted, self.kept.status()) {
            _ if self.overtaken => Act::Nothing,
            (Some(Wanted::Apply), status) if status.is_converging() => Act::Apply,
            (Some(Wanted::Delete), ServiceStatus::Deleting) => Act::Delete,
            _ => Act::Nothing,
        }
    }

    /// What is to be done when it was seen.
    fn then(&self, first: Act, observed: &Observed, correct_drift: bool) -> Act {
        let own = self.own(observed);
        let is_another = own.is_none_or(|found| found.spec_hash.as_ref() != Some(self.spec_hash()));
        match self.kept.status() {
            _ if self.overtaken || first != Act::Nothing => Act::Nothing,
            // Somebody has undone what the service still waits for.
            status if status.is_converging() && self.kept.is_applied() && is_another => Act::Apply,
            // It is there again, or still there when it should have been gone for long.
            ServiceStatus::Deleting
                if own.is_some_and(|found| !found.deleting || self.overdue().is_some()) =>
            {
                Act::Delete
            }
            ServiceStatus::Ready if correct_drift => match own {
                Some(found) if is_another && !found.deleting => Act::Correct,
                // What somebody made by hand in its place is left alone.
                None if *observed == Observed::NotFound => Act::Correct,
                _ => Act::Nothing,
            },
            _ => Act::Nothing,
        }
    }

    /// The hash of what is asked for.
    fn spec_hash(&self) -> &SpecHash {
        &self.kept.service.desired_spec_hash
    }

    /// What is there, if it is this service's.
    fn own<'o>(&self, observed: &'o Observed) -> Option<&'o FoundService> {
        observed.found_of(&self.service_id)
    }

    /// For how long it was waited, if that was too long when the look began.
    fn overdue(&self) -> Option<Duration> {
        self.deadline.filter(|(deadline, _)| *deadline <= self.began.0).map(|(_, limit)| limit)
    }

    fn seen(&self, observed: &Observed, at: DateTime<Utc>) -> Snapshot {
        Snapshot::of(self.own(observed), self.spec_hash(), at)
    }

    /// Whether the service knows already what a look shows.
    fn knows(&self, observed: &Observed, began_at: DateTime<Utc>) -> bool {
        self.kept.service.snapshot.as_ref().is_some_and(|known| {
            // Those are counted by who is told.
            let consecutive_failures = known.consecutive_failures;
            known.says_the_same(&Snapshot { consecutive_failures, ..self.seen(observed, began_at) })
        })
    }

    /// A command that follows. What follows from what a user asked for belongs to the flow of that, until it is done.
    fn decision<A: Aggregate>(&self, id: &str, command: &A::Command) -> Result<Decision, InvalidPayload> {
        let decision = Decision::of::<A>(id, command)?;
        Ok(match &self.kept.cause {
            Some(Cause { event_id, flow_id: Some(flow) }) if !self.kept.status().is_settled() => {
                decision.in_flow(flow, event_id)
            }
            _ => decision,
        })
    }
}

impl Targets {
    pub(crate) fn new(gateway: Arc<dyn ServingGateway>, settings: HiveSettings) -> Self {
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

    /// Looks, and does what is to be done.
    async fn look_and_act(&self, target: &Target) -> Seen {
        let mut evidence = Evidence::default();
        let told_before = Instant::now() + self.settings.timeout.mul_f64(TOLD_BEFORE);
        let first = target.first();
        if first == Act::Apply {
            let namespace = &target.kept.service.resource.namespace;
            // A platform that will never tell does not keep a service from being applied: that answers for itself.
            let told = unless_passing(self.gateway.namespace_exists(namespace).await)?;
            let untold = |error: &GatewayError| {
                let code = error.code();
                tracing::debug!(namespace, code, %error, "it cannot be known whether it exists");
            };
            evidence.namespace_exists = told.inspect_err(untold).ok();
        }
        self.act(first, target, &mut evidence).await?;
        // A no for good is told at once: whatever else could not be seen would keep it back.
        if matches!(evidence.applied, Some(ApplyResult::Refused { .. })) {
            return Ok(evidence);
        }
        let looking = async { self.gateway.observe(&target.kept.service.resource).await.map_err(not_seen) };
        let observed = match evidence.applied {
            Some(_) => tokio::time::timeout_at(told_before, looking)
                .await
                .unwrap_or_else(|_| Err(ObserveError::timed_out(self.settings.timeout))),
            None => Ok(looking.await?),
        };
        if let Ok(observed) = &observed {
            let then = target.then(first, observed, self.settings.correct_drift);
            self.act(then, target, &mut evidence).await?;
        }
        evidence.observed = Some(observed.map(Observed::readable));
        Ok(evidence)
    }

    async fn act(&self, act: Act, target: &Target, evidence: &mut Evidence) -> Result<(), ObserveError> {
        let Service { resource, force_replace, .. } = &target.kept.service;
        match act {
            Act::Nothing => {}
            Act::Apply => evidence.applied = Some(self.apply(target, *force_replace).await?),
            Act::Delete => {
                let deleted = self.gateway.delete(&target.service_id, resource).await;
                // What is there is to be seen all the same where the platform will not.
                evidence.refused = unless_passing(deleted)?.err().map(not_seen);
            }
            Act::Correct => evidence.refused = Some(self.correct(target).await?),
        }
        Ok(())
    }

    async fn apply(&self, target: &Target, force: bool) -> Result<ApplyResult, ObserveError> {
        let Service { resource, spec, desired_spec_hash: spec_hash, .. } = target.kept.service.clone();
        let apply = Apply { service_id: target.service_id.clone(), resource, spec, spec_hash, force };
        Ok(match unless_passing(self.gateway.apply(&apply).await)? {
            Ok(applied) => ApplyResult::Applied { generation: applied.generation, changed: applied.changed },
            Err(error) => {
                let message = texts::readable(&error.to_string());
                ApplyResult::Refused { reason: error.code().to_owned(), message }
            }
        })
    }

    /// Answers why it is to be looked at again soon.
    async fn correct(&self, target: &Target) -> Result<ObserveError, ObserveError> {
        let interval = self.settings.interval;
        let corrected = || self.corrected.lock().unwrap_or_else(PoisonError::into_inner);
        corrected().retain(|_, at| at.elapsed() < interval);
        // Somebody else wants something else: two who put each other right would do nothing else.
        if corrected().contains_key(&target.service_id) {
            let message = format!("somebody has changed it again within {interval:?} of its correction");
            return Ok(ObserveError::of_resource(DRIFT_AGAIN, message));
        }
        Ok(match self.apply(target, true).await? {
            ApplyResult::Refused { reason, message } => ObserveError::of_resource(reason, message),
            ApplyResult::Applied { .. } => {
                tracing::info!(service = target.service_id, "it was something else, and was brought back");
                corrected().insert(target.service_id.clone(), Instant::now());
                let message =
                    "it was something else on the platform, and was brought back to what was asked for";
                ObserveError::later(DRIFT_CORRECTED, message, LOOKED_AGAIN_AFTER)
            }
        })
    }

    /// What follows from a look at something that was waited for too long.
    async fn overdue(&self, target: &Target, waited: Duration, looked: Seen) -> Seen {
        let unseen = looked.as_ref().map_or_else(Some, Evidence::unseen);
        // A platform that has no time, or is away, says nothing about the service.
        if let Some(error) = unseen
            && (error.retry_after.is_some() || (error.unanswered && self.gateway.reachable().await.is_err()))
        {
            return looked;
        }
        let mut evidence =
            looked.unwrap_or_else(|error| Evidence { observed: Some(Err(error)), ..Evidence::default() });
        let (known, waited) = (evidence.known_of(target), duration_text::format(waited));
        if target.kept.status() == ServiceStatus::Deleting {
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
}

impl ExternalResources for Targets {
    type Resource = Target;
    type Evidence = Evidence;

    async fn resource(&self, store: &SqlStore, watched: Watched) -> StoreResult<Option<Target>> {
        let kept = Kept::read(&watched.wanted)?;
        let Watched { subject_id: service_id, version, goal_begun_at, now, .. } = watched;
        let is_corrected = self.settings.correct_drift && kept.status() == ServiceStatus::Ready;
        let mut overtaken = false;
        if !kept.status().is_settled() || is_corrected {
            // What is wanted is written by a consumer, and so a moment late.
            let key = AggregateKey::new(Service::KIND, &service_id).map_err(corrupt)?;
            let last = store.last_state_change(&key).await?;
            overtaken = last.is_some_and(|last| last.aggregate_version > version);
        }
        let limit = self.limit(kept.status()).filter(|_| !overtaken);
        let deadline = goal_begun_at.zip(limit).map(|(begun_at, limit)| (later(begun_at, limit), limit));
        let began = (now, Instant::now());
        Ok(Some(Target { service_id, kept, deadline, began, overtaken }))
    }

    async fn reachable(&self) -> Result<(), ObserveError> {
        self.gateway.reachable().await.map_err(not_seen)
    }

    fn missing(&self, evidence: &Evidence) -> Option<ObserveError> {
        evidence.unseen().or(evidence.refused.as_ref()).cloned()
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
        let Target { service_id, kept, .. } = target;
        let Evidence { namespace_exists, applied, observed, refused: _, expired } = evidence;
        let Service { resource, desired_spec_hash, spec_version, .. } = &kept.service;
        let mut decisions = Vec::new();
        if let Some(exists) = namespace_exists {
            let namespace = resource.namespace.clone();
            let validated = NamespaceValidated { namespace, exists, validated_at: began_at };
            let command = NamespaceCommand::Validate(validated);
            decisions.push(target.decision::<Namespace>(&resource.namespace, &command));
        }
        if let Some(result) = applied {
            let (spec_hash, spec_version) = (desired_spec_hash.clone(), *spec_version);
            let command = ServiceCommand::RecordApply(ApplyOutcome { spec_hash, spec_version, result });
            decisions.push(target.decision::<Service>(service_id, &command));
        }
        if let Some(message) = expired {
            let (spec_version, message) = (*spec_version, texts::readable(&message));
            let command = ServiceCommand::ExpireConvergence(ConvergenceExpired { spec_version, message });
            decisions.push(target.decision::<Service>(service_id, &command));
        }
        let known = matches!(&observed, Some(Ok(observed)) if target.knows(observed, began_at));
        // What a service waits for is told also when it should know it.
        if let Some(Ok(observed)) = observed
            && (!kept.status().is_settled() || !known)
        {
            let command = KnativeServiceCommand::Observe(Look {
                service_id: service_id.clone(),
                resource: resource.clone(),
                observed,
                observed_at: began_at,
                desired_spec_hash: desired_spec_hash.clone(),
                spec_version: *spec_version,
                status: kept.status(),
                known,
                failure_threshold: self.settings.failure_threshold,
                failure_interval_ms: u64::try_from(self.settings.interval.as_millis()).unwrap_or(u64::MAX),
            });
            decisions.push(target.decision::<KnativeService>(service_id, &command));
        }
        decisions.into_iter().collect::<Result<_, _>>().unwrap_or_else(|error| {
            // What was read as JSON can be written as JSON.
            tracing::error!(service = service_id, %error, "what was seen cannot be written");
            Vec::new()
        })
    }

    fn look_again_after(&self, target: &Target) -> Duration {
        let interval = self.settings.interval;
        if target.kept.status() == ServiceStatus::Ready && !target.kept.is_missing() {
            return self.settings.ready_stale + self.spread(target);
        }
        // A deadline is not passed by for as long as an interval.
        let (now, since) = target.began;
        let left = target.deadline.map(|(at, _)| between(now, at).saturating_sub(since.elapsed()));
        left.filter(|left| !left.is_zero()).map_or(interval, |left| left.min(interval))
    }

    async fn noted(&self, store: &SqlStore, looked: &[Looked<Target>]) -> StoreResult<()> {
        for Looked { resource: target, at, failure, .. } in looked {
            let stuck = failure.as_ref().filter(|failure| failure.code == DELETION_DEADLINE);
            if let (Some(failure), Some((since, _))) = (stuck, target.deadline) {
                alerts::deletion_is_stuck(store, &target.service_id, since, failure, *at).await?;
            }
        }
        Ok(())
    }

    async fn watch(&self) -> Result<Option<Hints>, ObserveError> {
        let changes = self.gateway.watch().await.map_err(not_seen)?;
        Ok(changes.map(|changes| -> Hints { changes.map(|name| name.to_string()).boxed() }))
    }
}

impl Evidence {
    /// Why nothing was seen.
    fn unseen(&self) -> Option<&ObserveError> {
        self.observed.as_ref()?.as_ref().err()
    }

    /// Whether what was seen leads to READY or FAILED by itself.
    fn is_conclusive(&self, target: &Target, failure_threshold: u32) -> bool {
        if matches!(self.applied, Some(ApplyResult::Refused { .. })) {
            return true;
        }
        let Some(Ok(observed)) = &self.observed else { return false };
        let seen = target.seen(observed, DateTime::UNIX_EPOCH);
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
            _ if found.spec_hash.as_ref() != Some(target.spec_hash()) => {
                "the platform has something else".to_owned()
            }
            true => "the platform does not say why".to_owned(),
            false => told.join(": "),
        }
    }
}

/// What the platform says for good; what will pass is no answer.
fn unless_passing<T>(answer: Result<T, GatewayError>) -> Result<Result<T, GatewayError>, ObserveError> {
    match answer {
        Err(error) if error.is_passing() => Err(not_seen(error)),
        answer => Ok(answer),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ResourceName;

    const WANTED: &str = "wanted";

    fn target(status: ServiceStatus, wanted: Option<Wanted>) -> Target {
        let service = Service {
            resource: ResourceName::new("shop", "cart"),
            status: Some(status),
            desired_spec_hash: SpecHash::from_stored(WANTED),
            spec_version: 1,
            applied_spec_version: 1,
            ..Service::default()
        };
        let kept = Kept { service, wanted, cause: None };
        let began = (DateTime::UNIX_EPOCH, Instant::now());
        Target { service_id: "shop.cart".to_owned(), kept, deadline: None, began, overtaken: false }
    }

    fn found(owner: &str, hash: &str, deleting: bool) -> Observed {
        let (service_id, spec_hash) = (Some(owner.to_owned()), Some(SpecHash::from_stored(hash)));
        Observed::Found(Box::new(FoundService { service_id, spec_hash, deleting, ..FoundService::default() }))
    }

    #[test]
    fn what_is_wanted_is_done_first_where_the_service_still_waits_for_it() {
        use ServiceStatus::{Creating, Deleting, Ready, Updating};
        for (status, wanted, act) in [
            (Creating, Some(Wanted::Apply), Act::Apply),
            (Updating, Some(Wanted::Apply), Act::Apply),
            (Ready, Some(Wanted::Apply), Act::Nothing),
            (Deleting, Some(Wanted::Delete), Act::Delete),
            (Ready, Some(Wanted::Delete), Act::Nothing),
            (Updating, None, Act::Nothing),
        ] {
            let target = target(status, wanted);
            assert_eq!(target.first(), act, "{status:?} {wanted:?}");
            assert_eq!(Target { overtaken: true, ..target }.first(), Act::Nothing, "{status:?} {wanted:?}");
        }
    }

    #[test]
    fn what_was_undone_is_done_again_and_what_others_made_is_left_alone() {
        use ServiceStatus::{Creating, Deleting, Failed, Ready};
        let (as_wanted, another) = (found("shop.cart", WANTED, false), found("shop.cart", "other", false));
        let (going, of_another) = (found("shop.cart", "other", true), found("other", WANTED, false));
        for (status, [gone, is, is_another, is_going, is_of_another]) in [
            (Creating, [Act::Apply, Act::Nothing, Act::Apply, Act::Apply, Act::Apply]),
            (Deleting, [Act::Nothing, Act::Delete, Act::Delete, Act::Nothing, Act::Nothing]),
            (Ready, [Act::Correct, Act::Nothing, Act::Correct, Act::Nothing, Act::Nothing]),
            (Failed, [Act::Nothing; 5]),
        ] {
            for (observed, act) in [
                (&Observed::NotFound, gone),
                (&as_wanted, is),
                (&another, is_another),
                (&going, is_going),
                (&of_another, is_of_another),
            ] {
                let then = |target: &Target, first| target.then(first, observed, true);
                let mut target = target(status, None);
                assert_eq!(then(&target, Act::Nothing), act, "{status:?} {observed:?}");
                assert_eq!(then(&target, Act::Apply), Act::Nothing, "something was done already");
                let unless_asked = target.then(Act::Nothing, observed, false);
                assert_eq!(unless_asked, if act == Act::Correct { Act::Nothing } else { act });
                target.overtaken = true;
                assert_eq!(then(&target, Act::Nothing), Act::Nothing, "the service has gone on");
            }
        }
        let deadline = Some((DateTime::UNIX_EPOCH, Duration::from_secs(1)));
        let overdue = Target { deadline, ..target(Deleting, None) };
        assert_eq!(
            overdue.then(Act::Nothing, &going, false),
            Act::Delete,
            "it should have been gone for long"
        );
    }
}
