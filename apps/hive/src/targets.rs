//! What hive looks at on the platform, and what follows from it (H14).
//!
//! A look also does what is to be done there: applies a specification, deletes a resource. It happens here and not in the
//! handler of the fact that asks for it, because a handler holds a transaction, and a platform may take its time. The
//! handler leaves a row with what is wanted, and wakes the observer; the row is there until the service says that it was
//! done. What was done and is undone by somebody else is done again as long as the service waits for it.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use tokio::time::Instant;
use towpath::ids::AggregateKey;
use towpath::observer::{Decision, ExternalResources, Hints, Looked, ObserveError, Platform};
use towpath::ports::store::{StoreError, StoreResult};
use towpath::retry::duration_text;
use towpath::tables::{OwnTables, Record, Value};
use towpath::{Aggregate as _, InvalidPayload, Payload, SqlStore};

use crate::HiveSettings;
use crate::alerts;
use crate::database_time::DatabaseTime;
use crate::failures;
use crate::gateway::{Apply, Condition, FoundService, GatewayError, Observed, ServingGateway};
use crate::knative::{KnativeService, KnativeServiceCommand, Look};
use crate::namespace::{Namespace, NamespaceCommand, NamespaceValidated};
use crate::service::{
    ApplyOutcome, ApplyResult, ConvergenceExpired, Service, ServiceCommand, ServiceStatus, Snapshot,
};
use crate::spec::{ResourceName, ServiceSpec, SpecHash};
use crate::texts;
use crate::views::{Wanted, later, resource_key};

const COLUMNS: &str = "service_id, version, resource, status, spec, spec_hash, spec_version, force_replace, \
                       applied, wanted, cause_id, flow_id, snapshot, waited_since, due_at";

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
    time: DatabaseTime,
    /// Which READY services were brought back, and when.
    corrected: Mutex<HashMap<String, Instant>>,
}

/// A service that is looked at, and what is known of it.
#[derive(Debug, Clone)]
pub struct Target {
    service_id: String,
    version: u64,
    resource: ResourceName,
    status: ServiceStatus,
    spec: ServiceSpec,
    spec_hash: SpecHash,
    spec_version: u64,
    force_replace: bool,
    applied: bool,
    wanted: Option<Wanted>,
    cause_id: Option<String>,
    flow_id: Option<String>,
    snapshot: Option<Snapshot>,
    /// Since when what was asked for is waited for, by the database's time.
    waited_since: Option<DateTime<Utc>>,
    due_at: DateTime<Utc>,
    /// For how long it was waited, if that is too long.
    overdue: Option<Duration>,
    /// Whether the service has gone on, and the row does not say so yet. Then it is looked at, and nothing is done to it:
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
        Self { gateway, settings, time: DatabaseTime::default(), corrected: Mutex::default() }
    }

    /// So much later are READY services looked at that were looked at together: what was found in one long scan does not
    /// come due at one moment for ever. Less than the time between two looks at others.
    fn spread(&self, looked: &[&Looked<Target>]) -> Duration {
        let mut hasher = std::hash::DefaultHasher::new();
        looked.first().map(|look| (&look.resource.service_id, look.at)).hash(&mut hasher);
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

    /// When it will have been waited for too long.
    fn deadline(&self, target: &Target) -> Option<DateTime<Utc>> {
        Some(later(target.waited_since?, self.limit(target.status)?))
    }

    async fn apply(&self, target: &Target, force: bool) -> Result<ApplyResult, ObserveError> {
        let apply = Apply {
            service_id: target.service_id.clone(),
            resource: target.resource.clone(),
            spec: target.spec.clone(),
            spec_hash: target.spec_hash.clone(),
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
        self.gateway.observe(&target.resource).await.map(Observed::readable).map_err(not_seen)
    }

    /// Deletes; answers why the platform will not, if it says so. What is there is to be seen all the same.
    async fn delete(&self, target: &Target) -> Result<Option<ObserveError>, ObserveError> {
        match self.gateway.delete(&target.service_id, &target.resource).await {
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
        match target.wanted.filter(|_| !target.overtaken) {
            Some(Wanted::Apply) if target.status.is_converging() => {
                namespace_exists = self.namespace_exists(&target.resource.namespace).await?;
                let outcome = self.apply(target, target.force_replace).await?;
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
            Some(Wanted::Delete) if target.status == ServiceStatus::Deleting => {
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
        let undone = own.is_none_or(|found| found.spec_hash.as_ref() != Some(&target.spec_hash));
        if applied.is_none() && target.applied && target.is_waited_for() && undone {
            applied = Some(self.apply(target, target.force_replace).await?);
        }
        // One that is there again, or still there when it should have been gone for long, is deleted again.
        if target.status == ServiceStatus::Deleting
            && !target.overtaken
            && target.wanted != Some(Wanted::Delete)
            && own.is_some_and(|found| !found.deleting || target.overdue.is_some())
        {
            refused = self.delete(target).await?;
        }
        if self.settings.correct_drift && target.status == ServiceStatus::Ready && !target.overtaken {
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
        if target.status == ServiceStatus::Deleting {
            let is_gone = matches!(&evidence.observed, Some(Ok(observed)) if target.own(observed).is_none());
            if !is_gone {
                let message = format!("it is not gone within {waited}: {known}; it is deleted again");
                evidence.refused = Some(ObserveError::of_resource(DELETION_DEADLINE, message));
                // Said with the rest.
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
            let namespace = target.resource.namespace.clone();
            let validated =
                NamespaceValidated { namespace: namespace.clone(), exists, validated_at: began_at };
            let command = NamespaceCommand::Validate(validated);
            decisions.push(target.in_flow(Decision::of::<Namespace>(namespace, &command)?));
        }
        if let Some(result) = applied {
            let (spec_hash, spec_version) = (target.spec_hash.clone(), target.spec_version);
            let command = ServiceCommand::RecordApply(ApplyOutcome { spec_hash, spec_version, result });
            decisions.push(target.in_flow(Decision::of::<Service>(&target.service_id, &command)?));
        }
        if let Some(message) = expired {
            let (spec_version, message) = (target.spec_version, texts::readable(&message));
            let command = ServiceCommand::ExpireConvergence(ConvergenceExpired { spec_version, message });
            decisions.push(target.in_flow(Decision::of::<Service>(&target.service_id, &command)?));
        }
        let Some(Ok(observed)) = observed else { return Ok(decisions) };
        let known = target.knows(&observed, began_at);
        // What a service waits for is told also when it should know it.
        if target.is_acted_on() || !known {
            let command = KnativeServiceCommand::Observe(Look {
                service_id: target.service_id.clone(),
                resource: target.resource.clone(),
                observed,
                observed_at: began_at,
                desired_spec_hash: target.spec_hash.clone(),
                spec_version: target.spec_version,
                status: target.status,
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

    fn key(&self, target: &Target) -> String {
        resource_key(&target.resource)
    }

    async fn due(
        &self,
        store: &SqlStore,
        now: DateTime<Utc>,
        after: Option<&Target>,
        limit: u32,
    ) -> StoreResult<Vec<Target>> {
        if after.is_none() {
            self.time.is(now);
        }
        let mut values: Vec<Value<'_>> = vec![now.into()];
        let mut behind = "";
        if let Some(after) = after {
            behind = "AND due_at >= ? AND (due_at > ? OR service_id > ?) ";
            values.extend([after.due_at.into(), after.due_at.into(), Value::from(after.service_id.as_str())]);
        }
        let sql = format!(
            "SELECT {COLUMNS} FROM hive_targets WHERE due_at <= ? {behind}ORDER BY due_at, service_id LIMIT {limit}"
        );
        store.own_rows("hive.due", &sql, values).await?.iter().map(Target::read).collect()
    }

    async fn named(&self, store: &SqlStore, hints: &[String]) -> StoreResult<Vec<Target>> {
        let mut values = Vec::new();
        let chosen = OwnTables::one_of("resource", hints, &mut values);
        let sql = format!(
            "SELECT {COLUMNS} FROM hive_targets WHERE {chosen} AND (wanted IS NULL OR wanted <> 'facts')"
        );
        store.own_rows("hive.named", &sql, values).await?.iter().map(Target::read).collect()
    }

    async fn current(&self, store: &SqlStore, listed: &Target) -> StoreResult<Option<Target>> {
        let sql = format!("SELECT {COLUMNS} FROM hive_targets WHERE service_id = ?");
        let rows = store.own_rows("hive.current", &sql, vec![listed.service_id.as_str().into()]).await?;
        let current = rows.first().map(Target::read).transpose()?;
        // Half of a change has been taken in since it was listed: it is due again with the other half.
        let half = |target: &Target| target.wanted == Some(Wanted::Facts);
        let Some(mut current) = current.filter(|current| !half(current) || half(listed)) else {
            return Ok(None);
        };
        if current.is_acted_on() || (self.settings.correct_drift && current.status == ServiceStatus::Ready) {
            // Rows are written by a consumer, and so a moment late.
            let key = AggregateKey::new(Service::KIND, &current.service_id).map_err(|error| {
                StoreError::Corrupt { what: "hive_targets.service_id".to_owned(), source: Box::new(error) }
            })?;
            let last = store.last_state_change(&key).await?;
            current.overtaken = last.is_some_and(|last| last.aggregate_version > current.version);
        }
        if let Some(limit) = self.limit(current.status).filter(|_| !current.overtaken) {
            let now = self.time.now(store).await?;
            if current.waited_since.is_none() {
                let sql = "UPDATE hive_targets SET waited_since = ? WHERE service_id = ? AND status = ? AND \
                           waited_since IS NULL";
                let (id, status) = (current.service_id.as_str(), current.status.as_str());
                store.own_execute("hive.waits", sql, vec![now.into(), id.into(), status.into()]).await?;
                current.waited_since = Some(now);
            }
            let is_over = self.deadline(&current).is_some_and(|deadline| now >= deadline);
            current.overdue = is_over.then_some(limit);
        }
        Ok(Some(current))
    }

    fn is_wanted_anew(&self, failed: &Target, listed: &Target) -> bool {
        listed.version > failed.version
    }

    async fn reachable(&self) -> Result<(), ObserveError> {
        self.gateway.reachable().await.map_err(not_seen)
    }

    fn missing(&self, evidence: &Evidence) -> Option<ObserveError> {
        let unseen = evidence.observed.as_ref().and_then(|observed| observed.as_ref().err().cloned());
        unseen.or_else(|| evidence.refused.clone())
    }

    async fn platform_is(&self, tables: &mut OwnTables<'_>, platform: &Platform) -> StoreResult<()> {
        if alerts::platform_is(tables, platform, self.time.about_now()).await? {
            // Nothing could come about meanwhile: what is waited for is waited for anew.
            let sql = "UPDATE hive_targets SET waited_since = NULL WHERE waited_since IS NOT NULL";
            tables.execute("hive.waits.anew", sql, Vec::new()).await?;
        }
        Ok(())
    }

    async fn observe(&self, target: &Target) -> Result<Evidence, ObserveError> {
        let Some(waited) = target.overdue else { return self.look_and_act(target).await };
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

    async fn note(&self, store: &SqlStore, looked: &[Looked<Target>]) -> StoreResult<()> {
        let Some(at) = looked.iter().map(|look| look.at).max() else { return Ok(()) };
        let (seen, failed): (Vec<_>, Vec<_>) = looked.iter().partition(|look| look.failure.is_none());
        if !seen.is_empty() {
            let next = later(at, self.settings.interval);
            let mut values: Vec<Value<'_>> = vec![
                at.into(),
                later(at, self.settings.ready_stale + self.spread(&seen)).into(),
                next.into(),
            ];
            let chosen = as_listed(&seen, &mut values);
            let sql = format!(
                "UPDATE hive_targets SET observed_at = ?, wanted = CASE WHEN wanted <> 'look' THEN wanted END, \
                 due_at = CASE WHEN status = 'READY' AND missing = 0 THEN ? ELSE ? END WHERE {chosen}"
            );
            store.own_execute("hive.noted", &sql, values).await?;
            // A deadline is not passed by for as long as an interval.
            for look in &seen {
                let soon = |deadline: &DateTime<Utc>| at < *deadline && *deadline < next;
                let Some(deadline) = self.deadline(&look.resource).filter(soon) else { continue };
                let mut values: Vec<Value<'_>> = vec![deadline.into()];
                let chosen = as_listed(&[look], &mut values);
                let sql =
                    format!("UPDATE hive_targets SET due_at = ? WHERE status <> 'READY' AND ({chosen})");
                store.own_execute("hive.deadline", &sql, values).await?;
            }
            failures::end(store, seen.iter().map(|look| look.resource.service_id.as_str())).await?;
        }
        failures::keep(
            store,
            failed.iter().filter_map(|look| {
                Some((look.resource.service_id.as_str(), look.failure.as_ref()?, look.at))
            }),
        )
        .await?;
        for look in &failed {
            let (failure, since) = (look.failure.as_ref(), self.deadline(&look.resource));
            if let (Some(failure), Some(since)) =
                (failure.filter(|failure| failure.code == DELETION_DEADLINE), since)
            {
                let said = (failure.code.as_str(), failure.message.as_str());
                alerts::deletion_is_stuck(store, &look.resource.service_id, since, said, at).await?;
            }
        }
        let mut paused: BTreeMap<Duration, Vec<_>> = BTreeMap::new();
        for look in failed {
            paused.entry(look.pause).or_default().push(look);
        }
        for (pause, looks) in paused {
            let due_at = later(at, pause);
            let mut values: Vec<Value<'_>> = vec![due_at.into()];
            let chosen = as_listed(&looks, &mut values);
            let sql = format!("UPDATE hive_targets SET due_at = ? WHERE {chosen}");
            store.own_execute("hive.paused", &sql, values).await?;
            // Facts that were taken in meanwhile may say that all is known: what a hint led to was not seen.
            let ids: Vec<String> = looks.iter().map(|look| look.resource.service_id.clone()).collect();
            let mut values: Vec<Value<'_>> = vec![due_at.into(), due_at.into()];
            let chosen = OwnTables::one_of("service_id", &ids, &mut values);
            let sql = format!(
                "UPDATE hive_targets SET due_at = ? WHERE due_at > ? AND (wanted IS NULL OR wanted <> 'facts') AND {chosen}"
            );
            store.own_execute("hive.pulled", &sql, values).await?;
        }
        Ok(())
    }

    async fn watch(&self) -> Result<Option<Hints>, ObserveError> {
        let changes = self.gateway.watch().await.map_err(not_seen)?;
        Ok(changes.map(|changes| -> Hints { changes.map(|name| resource_key(&name)).boxed() }))
    }
}

impl Target {
    fn read(record: &Record) -> StoreResult<Self> {
        let corrupt = |what: &str| towpath::ports::store::StoreError::Corrupt {
            what: format!("hive_targets.{what}"),
            source: "it is not what was written".into(),
        };
        let (resource, status) = (record.text("resource")?, record.text("status")?);
        let (namespace, name) = resource.split_once('/').ok_or_else(|| corrupt("resource"))?;
        let status = ServiceStatus::ALL
            .into_iter()
            .find(|known| known.as_str() == status)
            .ok_or_else(|| corrupt("status"))?;
        let spec = stored(record.text("spec")?).ok_or_else(|| corrupt("spec"))?;
        let snapshot = match record.text_or_null("snapshot")? {
            Some(text) => Some(stored(text).ok_or_else(|| corrupt("snapshot"))?),
            None => None,
        };
        Ok(Self {
            service_id: record.text("service_id")?,
            version: record.count("version")?,
            resource: ResourceName::new(namespace, name),
            status,
            spec,
            spec_hash: SpecHash::from_stored(record.text("spec_hash")?),
            spec_version: record.count("spec_version")?,
            force_replace: record.long("force_replace")? != 0,
            applied: record.long("applied")? != 0,
            wanted: record.text_or_null("wanted")?.as_deref().and_then(Wanted::from_stored),
            cause_id: record.text_or_null("cause_id")?,
            flow_id: record.text_or_null("flow_id")?,
            snapshot,
            waited_since: record.time_or_null("waited_since")?,
            due_at: record.time("due_at")?,
            overdue: None,
            overtaken: false,
        })
    }

    /// Whether a look at it does something to it.
    fn is_acted_on(&self) -> bool {
        self.status.is_converging() || self.status == ServiceStatus::Deleting
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
        self.status.is_converging() && !self.overtaken
    }

    /// Whether the service knows already what a look shows.
    fn knows(&self, observed: &Observed, began_at: DateTime<Utc>) -> bool {
        let failures = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.consecutive_failures);
        let seen = Snapshot::of(Some(&self.service_id), observed, &self.spec_hash, failures, began_at);
        self.snapshot.as_ref().is_some_and(|known| known.says_the_same(&seen))
    }

    /// What follows from what a user asked for belongs to the flow of that, until it is done.
    fn in_flow(&self, decision: Decision) -> Decision {
        let settled = matches!(self.status, ServiceStatus::Ready | ServiceStatus::Failed);
        match (&self.flow_id, &self.cause_id) {
            (Some(flow), Some(cause)) if !settled => decision.in_flow(flow, cause),
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
            Snapshot::of(Some(&target.service_id), observed, &target.spec_hash, 0, DateTime::UNIX_EPOCH);
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
        let said: Vec<&str> = [reason, message].into_iter().flatten().map(String::as_str).collect();
        match said.is_empty() {
            _ if found.deleting => "the platform is still deleting it".to_owned(),
            _ if found.spec_hash.as_ref() != Some(&target.spec_hash) => {
                "the platform has something else".to_owned()
            }
            true => "the platform does not say why".to_owned(),
            false => said.join(": "),
        }
    }
}

/// Only as they were listed: one of which something new is wanted stays due.
fn as_listed<'l>(looks: &[&'l Looked<Target>], values: &mut Vec<Value<'l>>) -> String {
    for look in looks {
        values.extend([Value::from(look.resource.service_id.as_str()), look.resource.version.into()]);
    }
    vec!["(service_id = ? AND version = ?)"; looks.len()].join(" OR ")
}

fn stored<T: serde::de::DeserializeOwned>(text: String) -> Option<T> {
    Payload::from_text(text).ok()?.read("a stored row").ok()
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
