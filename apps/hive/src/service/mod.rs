//! The service: its states, what may be asked of it and what follows (H1 to H8, H10).
//!
//! The machine below is the source's table. What H10 adds changes no state and stands at fixed places:
//! `service.spec.applied` after an apply; `service.creation.failed` before `service.failed` when the platform refuses for
//! good; `service.updated` after the `service.ready` of an update; `service.external.purged` after the snapshot that shows
//! a resource gone which nobody here has asked to delete.

#![allow(missing_docs, reason = "where a name says it, no comment repeats it")]

mod asked;
mod events;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::name::NameRule;
use towpath::retry::ErrorClass;
use towpath::tables::StoredName;
use towpath::{Aggregate, Command, Context, Machine, Reason, Refusal};

pub use asked::{DeleteAsked, ServiceAsked, SpecFlaw, UpdateAsked};
pub use events::*;

use crate::gateway::Condition;
use crate::spec::{ResourceName, ServiceSpec, SpecHash};

/// A service, as its facts say.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Where it is; none before its first fact.
    pub status: Option<ServiceStatus>,
    pub resource: ResourceName,
    pub spec: ServiceSpec,
    pub desired_spec_hash: SpecHash,
    pub spec_version: u64,
    pub force_replace: bool,
    /// The last specification that the platform took.
    pub applied_spec_version: u64,
    pub snapshot: Option<Snapshot>,
    /// Which observation that is from, by its number among those of the platform's side.
    #[serde(default)]
    pub observation: u64,
    pub failure: Option<FailureNote>,
    /// The last specification that was seen to run; 0 for none.
    #[serde(default)]
    pub converged_spec_version: u64,
    /// The last specification that was seen not to run; 0 for none.
    #[serde(default)]
    pub failed_spec_version: u64,
    /// When its resource was seen to be gone although nobody here had asked for that; none when it was there since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purged_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureNote {
    pub reason: String,
    pub message: String,
}

/// The states of a service (H1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, StoredName)]
pub enum ServiceStatus {
    /// It was asked for, and is not confirmed yet.
    #[serde(rename = "CREATING")]
    Creating,
    /// Another specification was asked for, and is not confirmed yet.
    #[serde(rename = "UPDATING")]
    Updating,
    #[serde(rename = "READY")]
    Ready,
    #[serde(rename = "FAILED")]
    Failed,
    /// It is to be gone, and that is not confirmed yet.
    #[serde(rename = "DELETING")]
    Deleting,
    #[serde(rename = "DELETED")]
    Deleted,
}

/// What may be asked of a service. The first four are for users; the others are what hive's own parts report. Their reports
/// may be of no interest any more, and then give nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Command)]
pub enum ServiceCommand {
    #[serde(rename = "Command.Hive.Service.Create")]
    #[command(gives = ServiceEvent::CREATION_REQUESTED)]
    Create(ServiceAsked),
    #[serde(rename = "Command.Hive.Service.Update")]
    #[command(gives = ServiceEvent::UPDATE_REQUESTED)]
    Update(UpdateAsked),
    #[serde(rename = "Command.Hive.Service.Delete")]
    #[command(gives = ServiceEvent::DELETION_REQUESTED)]
    Delete(DeleteAsked),
    /// Say what is known, and look again.
    #[serde(rename = "Command.Hive.Service.Refresh")]
    #[command(gives = ServiceEvent::SNAPSHOT_UPDATED)]
    Refresh {},
    /// The platform took a specification, or refused it.
    #[serde(rename = "Command.Hive.Service.Apply.Record")]
    #[command(internal)]
    RecordApply(ApplyOutcome),
    /// The platform was looked at.
    #[serde(rename = "Command.Hive.Service.Observation.Take")]
    #[command(internal)]
    TakeObservation(TakeObservation),
    /// What was asked for has not come about in time.
    #[serde(rename = "Command.Hive.Service.Convergence.Expire")]
    #[command(internal)]
    ExpireConvergence(ConvergenceExpired),
    /// The platform was seen without it.
    #[serde(rename = "Command.Hive.Service.Deletion.Confirm")]
    #[command(internal, gives = ServiceEvent::DELETED)]
    ConfirmDeletion { snapshot: Snapshot },
}

/// What was waited for in vain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConvergenceExpired {
    pub spec_version: u64,
    /// For how long it was waited for, and what is known of it.
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplyOutcome {
    pub spec_hash: SpecHash,
    pub spec_version: u64,
    pub result: ApplyResult,
}

/// What came of an apply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum ApplyResult {
    Applied { generation: i64, changed: bool },
    Refused { reason: String, message: String },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TakeObservation {
    pub snapshot: Snapshot,
    /// The number of the observation among those of the platform's side: a later one counts for more, in whatever order they
    /// are taken in.
    #[serde(default)]
    pub observation: u64,
    /// For which specification it was looked at. About another one it proves nothing.
    #[serde(default)]
    pub spec_version: u64,
    /// How many looks in a row must find it not ready before it counts as failed.
    pub failure_threshold: u32,
}

/// The reason of a service that is FAILED because what was asked for has not come about in time.
pub const CONVERGENCE_DEADLINE: &str = "convergence-deadline";

/// A service's "no" where its machine is not asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceRefusal {
    #[error("there is no such service")]
    NotFound,
    #[error("the specification cannot be: {0}")]
    InvalidSpec(#[from] SpecFlaw),
    #[error("the service has specification {is} by now, not {expected}")]
    OtherSpec { is: u64, expected: u64 },
    #[error("the service is {is}, and a service does not move: delete it and create {asked}")]
    Moves { is: ResourceName, asked: ResourceName },
}

/// The code of a request that was made of another specification than the one that is there.
pub const SPEC_VERSION_MISMATCH: &str = "spec-version-mismatch";

impl Refusal for ServiceRefusal {
    fn code(&self) -> &'static str {
        match self {
            Self::NotFound => "service-not-found",
            Self::InvalidSpec(flaw) => flaw.code(),
            Self::OtherSpec { .. } => SPEC_VERSION_MISMATCH,
            Self::Moves { .. } => "service-does-not-move",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Self::NotFound => ErrorClass::NotFound,
            Self::InvalidSpec(_) => ErrorClass::InvalidPayload,
            Self::Moves { .. } | Self::OtherSpec { .. } => ErrorClass::Validation,
        }
    }
}

impl ServiceStatus {
    /// Whether nothing more comes of it by itself.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Ready | Self::Failed | Self::Deleted)
    }

    /// Whether what was asked for is not confirmed yet, one way or the other.
    pub fn is_converging(self) -> bool {
        matches!(self, Self::Creating | Self::Updating)
    }
}

/// What follows from a command, or the service's "no".
type Decided = Result<Vec<ServiceEvent>, ServiceRefusal>;

impl Aggregate for Service {
    const KIND: &'static str = "service";
    /// A specification has the values of variables in it.
    const CONFIDENTIAL: bool = true;
    const NAME_RULE: NameRule = NameRule::ANY.with_facts(&["ready"]);
    type Command = ServiceCommand;
    type Event = ServiceEvent;
    type Refusal = ServiceRefusal;

    fn decide(&self, command: ServiceCommand, context: &Context) -> Decided {
        let requested_by = context.actor_id.as_ref().map(ToString::to_string);
        Ok(match (command, self.status) {
            // Whether there is one already is the machine's business.
            (ServiceCommand::Create(asked), _) => self.create(&asked, requested_by)?,
            (_, None) => return Err(ServiceRefusal::NotFound),
            (ServiceCommand::Update(asked), _) => self.update(&asked, requested_by)?,
            (ServiceCommand::Delete(asked), _) => {
                self.check_version(asked.if_spec_version)?;
                vec![
                    ServiceEvent::DeletionRequested(DeletionRequested { requested_by }),
                    ServiceEvent::DeletionMarked(DeletionMarked { resource: self.resource.clone() }),
                ]
            }
            (ServiceCommand::Refresh {}, _) => {
                let snapshot = self.snapshot.clone();
                let asked = SnapshotUpdated { snapshot, observation: None, refresh_requested: true };
                vec![ServiceEvent::SnapshotUpdated(asked)]
            }
            (ServiceCommand::RecordApply(outcome), _) => self.record_apply(outcome),
            (ServiceCommand::TakeObservation(taken), Some(status)) => self.take_observation(status, taken),
            (ServiceCommand::ExpireConvergence(expired), _) => self.expire(expired),
            (ServiceCommand::ConfirmDeletion { snapshot }, _) => {
                let observed_at = snapshot.observed_at;
                vec![seen(Some(snapshot), None), ServiceEvent::Deleted(Deleted { observed_at })]
            }
        })
    }

    fn evolve(mut self, event: &ServiceEvent) -> Self {
        match event {
            ServiceEvent::CreationRequested(requested) => {
                self.resource = requested.resource.clone();
                self.status = Some(ServiceStatus::Creating);
            }
            ServiceEvent::SpecAccepted(accepted) => {
                self.spec = accepted.spec.clone();
                self.desired_spec_hash = accepted.desired_spec_hash.clone();
                self.spec_version = accepted.spec_version;
                self.force_replace = accepted.force_replace;
                self.failure = None;
            }
            ServiceEvent::SpecApplied(applied) => self.applied_spec_version = applied.spec_version,
            ServiceEvent::UpdateRequested(_) => self.status = Some(ServiceStatus::Updating),
            ServiceEvent::DeletionRequested(_) => self.status = Some(ServiceStatus::Deleting),
            ServiceEvent::SnapshotUpdated(updated) => {
                if let Some(snapshot) = &updated.snapshot {
                    self.purged_at = self.purged_at.filter(|_| !snapshot.present);
                    self.snapshot = Some(snapshot.clone());
                }
                self.observation = updated.observation.unwrap_or(self.observation);
            }
            ServiceEvent::Ready(_) => (self.status, self.failure) = (Some(ServiceStatus::Ready), None),
            ServiceEvent::ConvergenceConfirmed(seen) => self.converged_spec_version = seen.spec_version,
            ServiceEvent::ConvergenceFailed(seen) => self.failed_spec_version = seen.spec_version,
            ServiceEvent::CreationFailed(refused) => self.failure = Some(refused.note()),
            ServiceEvent::Failed(failed) => {
                (self.status, self.failure) = (Some(ServiceStatus::Failed), Some(failed.note()));
            }
            ServiceEvent::ExternalPurged(purged) => self.purged_at = Some(purged.observed_at),
            ServiceEvent::Deleted(_) => self.status = Some(ServiceStatus::Deleted),
            ServiceEvent::SpecApplyStarted(_)
            | ServiceEvent::Updated(_)
            | ServiceEvent::DeletionMarked(_) => {}
        }
        self
    }

    fn machine() -> Option<Machine> {
        let (converging, settled) = (["CREATING", "UPDATING"], ["READY", "FAILED"]);
        let machine = Machine::named("service")
            .state("CREATING")
            .state("UPDATING")
            .state("READY")
            .state("FAILED")
            .state("DELETING")
            .terminal("DELETED")
            .starts(ServiceEvent::CREATION_REQUESTED, "CREATING")
            .transitions(settled, ServiceEvent::UPDATE_REQUESTED, "UPDATING")
            .transitions(settled, ServiceEvent::DELETION_REQUESTED, "DELETING")
            .transitions(converging, ServiceEvent::READY, "READY")
            .transitions(converging, ServiceEvent::FAILED, "FAILED")
            .transition("DELETING", ServiceEvent::DELETED, "DELETED")
            .stays(ServiceEvent::SNAPSHOT_UPDATED)
            .stay_in(
                &converging,
                &[
                    ServiceEvent::SPEC_ACCEPTED,
                    ServiceEvent::SPEC_APPLY_STARTED,
                    ServiceEvent::SPEC_APPLIED,
                    ServiceEvent::CREATION_FAILED,
                    ServiceEvent::CONVERGENCE_CONFIRMED,
                    ServiceEvent::CONVERGENCE_FAILED,
                ],
            )
            .stay_in(&["CREATING", "UPDATING", "READY", "FAILED"], &[ServiceEvent::EXTERNAL_PURGED])
            .stays_in("READY", ServiceEvent::UPDATED)
            .stays_in("DELETING", ServiceEvent::DELETION_MARKED);
        Some(machine)
    }

    fn reason(event: &ServiceEvent) -> Option<Reason> {
        let ServiceEvent::Failed(failed) = event else { return None };
        Some(Reason { code: failed.reason.clone(), message: Some(failed.message.clone()) })
    }
}

impl Service {
    fn create(&self, asked: &ServiceAsked, requested_by: Option<String>) -> Decided {
        let resource = asked.resource()?;
        let requested = CreationRequested { resource: resource.clone(), requested_by };
        let [accepted, started] = self.accept(asked.spec()?, resource, asked.force_replace, asked.wait);
        Ok(vec![ServiceEvent::CreationRequested(requested), accepted, started])
    }

    fn update(&self, asked: &UpdateAsked, requested_by: Option<String>) -> Decided {
        let is = &self.resource;
        let namespace = asked.namespace.as_ref().unwrap_or(&is.namespace);
        let named = ResourceName::new(namespace, asked.name.as_ref().unwrap_or(&is.name));
        if named != *is {
            return Err(ServiceRefusal::Moves { is: is.clone(), asked: named });
        }
        self.check_version(asked.if_spec_version)?;
        let requested = UpdateRequested { previous_spec_hash: self.desired_spec_hash.clone(), requested_by };
        let [accepted, started] = self.accept(asked.spec()?, named, asked.force_replace, asked.wait);
        Ok(vec![ServiceEvent::UpdateRequested(requested), accepted, started])
    }

    /// Whether the asker has seen what there is.
    fn check_version(&self, expected: Option<u64>) -> Result<(), ServiceRefusal> {
        let is = self.spec_version;
        match expected {
            Some(expected) if expected != is => Err(ServiceRefusal::OtherSpec { is, expected }),
            _ => Ok(()),
        }
    }

    fn accept(
        &self,
        mut spec: ServiceSpec,
        resource: ResourceName,
        force_replace: bool,
        wait: bool,
    ) -> [ServiceEvent; 2] {
        let spec_version = self.spec_version + 1;
        // The mark makes the specification another one, so that an equal one is rolled out again; and what runs already
        // is not taken for it. It stays: taking it away would make another one of it, too.
        spec.replacement = match force_replace {
            true => Some(spec_version.to_string()),
            false => self.spec.replacement.clone(),
        };
        let desired_spec_hash = spec.hash();
        [
            ServiceEvent::SpecAccepted(SpecAccepted {
                spec,
                desired_spec_hash: desired_spec_hash.clone(),
                spec_version,
                force_replace,
                wait,
            }),
            ServiceEvent::SpecApplyStarted(SpecApplyStarted { resource, desired_spec_hash, spec_version }),
        ]
    }

    /// Whether it waits for this specification still. Otherwise it has gone on, and what became of an earlier one is of no
    /// interest.
    fn waits_for(&self, spec_version: u64) -> bool {
        self.status.is_some_and(ServiceStatus::is_converging) && spec_version == self.spec_version
    }

    fn record_apply(&self, outcome: ApplyOutcome) -> Vec<ServiceEvent> {
        let ApplyOutcome { spec_hash, spec_version, result } = outcome;
        match result {
            _ if !self.waits_for(spec_version) => Vec::new(),
            // Applied again by a look that found it gone: that is known.
            ApplyResult::Applied { .. } if self.applied_spec_version == spec_version => Vec::new(),
            ApplyResult::Applied { generation, changed } => {
                vec![ServiceEvent::SpecApplied(SpecApplied { spec_hash, spec_version, generation, changed })]
            }
            ApplyResult::Refused { reason, message } => {
                let failed = NotConverged { spec_hash, spec_version, reason, message };
                vec![ServiceEvent::CreationFailed(failed.clone()), ServiceEvent::Failed(failed)]
            }
        }
    }

    /// Nothing more is waited for (H6): what is known of it is all that will be.
    fn expire(&self, ConvergenceExpired { spec_version, message }: ConvergenceExpired) -> Vec<ServiceEvent> {
        if !self.waits_for(spec_version) {
            return Vec::new();
        }
        self.fail(seen(self.snapshot.clone(), None), CONVERGENCE_DEADLINE.to_owned(), message)
    }

    fn fail(&self, seen: ServiceEvent, reason: String, message: String) -> Vec<ServiceEvent> {
        let (spec_hash, spec_version) = (self.desired_spec_hash.clone(), self.spec_version);
        let failed = NotConverged { spec_hash, spec_version, reason, message };
        vec![seen, ServiceEvent::ConvergenceFailed(failed.clone()), ServiceEvent::Failed(failed)]
    }

    fn take_observation(&self, status: ServiceStatus, taken: TakeObservation) -> Vec<ServiceEvent> {
        let TakeObservation { mut snapshot, observation, spec_version: looked_for, failure_threshold } =
            taken;
        // Observations are taken in by workers, and one may overtake another.
        if observation > 0 && observation <= self.observation {
            return Vec::new();
        }
        let observation = (observation > 0).then_some(observation);
        // What is wanted may have changed since somebody looked.
        snapshot.hash_match = snapshot.observed_spec_hash.as_ref() == Some(&self.desired_spec_hash);
        let conclusive = self.waits_for(looked_for) && snapshot.hash_match;
        match snapshot.ready {
            // An end is told by KnativeServiceDeletedObserved, and afterwards there is nothing to tell.
            _ if status == ServiceStatus::Deleted => Vec::new(),
            _ if status == ServiceStatus::Deleting && !snapshot.present => Vec::new(),
            Some(true) if conclusive => {
                let converged = Converged {
                    spec_hash: self.desired_spec_hash.clone(),
                    spec_version: self.spec_version,
                    revision: snapshot.latest_ready_revision.clone(),
                    url: snapshot.url.clone(),
                };
                let mut events = vec![
                    seen(Some(snapshot), observation),
                    ServiceEvent::ConvergenceConfirmed(converged.clone()),
                    ServiceEvent::Ready(converged.clone()),
                ];
                if status == ServiceStatus::Updating {
                    events.push(ServiceEvent::Updated(converged));
                }
                events
            }
            Some(false) if conclusive && snapshot.consecutive_failures >= failure_threshold => {
                let Condition { reason, message, .. } = snapshot.ready_condition.clone();
                let reason = reason.unwrap_or_else(|| "NotReady".to_owned());
                let message = message.unwrap_or_else(|| "the service is not ready".to_owned());
                self.fail(seen(Some(snapshot), observation), reason, message)
            }
            _ => {
                let was_present = self.snapshot.as_ref().is_some_and(|snapshot| snapshot.present);
                let purged = was_present && !snapshot.present && status != ServiceStatus::Deleting;
                let observed_at = snapshot.observed_at;
                let mut events = vec![seen(Some(snapshot), observation)];
                if purged {
                    let resource = self.resource.clone();
                    events.push(ServiceEvent::ExternalPurged(ExternalPurged { resource, observed_at }));
                }
                events
            }
        }
    }
}

fn seen(snapshot: Option<Snapshot>, observation: Option<u64>) -> ServiceEvent {
    ServiceEvent::SnapshotUpdated(SnapshotUpdated { snapshot, observation, refresh_requested: false })
}
