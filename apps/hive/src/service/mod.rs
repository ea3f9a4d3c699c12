//! The service: its states, what may be asked of it and what follows (H1 to H8, H10).
//!
//! The machine below is the source's table. What H10 adds changes no state and stands at fixed places:
//! `service.spec.applied` after an apply; `service.creation.failed` before `service.failed` when the platform refuses for
//! good; `service.updated` after the `service.ready` of an update; `service.external.purged` after the snapshot that shows
//! a resource gone which nobody here has asked to delete.

mod asked;
mod events;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use towpath::name::NameRule;
use towpath::retry::ErrorClass;
use towpath::{Aggregate, Command, Context, Machine, Reason, Refusal};

pub use asked::{DeleteAsked, ServiceAsked, SpecFlaw, UpdateAsked};
pub use events::*;

use crate::spec::{ResourceName, ServiceSpec, SpecHash};

/// A service, as its facts say.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Where it is; none before its first fact.
    pub status: Option<ServiceStatus>,
    /// Where it runs.
    pub resource: ResourceName,
    /// What it is to be.
    pub spec: ServiceSpec,
    /// The hash of that.
    pub desired_spec_hash: SpecHash,
    /// How many specifications it has had.
    pub spec_version: u64,
    /// Whether the last one replaces what others have set.
    pub force_replace: bool,
    /// The last specification that the platform took.
    pub applied_spec_version: u64,
    /// What is known of the platform's side.
    pub snapshot: Option<Snapshot>,
    /// Which observation that is from, by its number among those of the platform's side.
    #[serde(default)]
    pub observation: u64,
    /// Why it is FAILED.
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

/// Why a service is FAILED.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureNote {
    /// A code.
    pub reason: String,
    /// A text for people.
    pub message: String,
}

/// The states of a service (H1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ServiceStatus {
    /// It was asked for, and is not confirmed yet.
    Creating,
    /// Another specification was asked for, and is not confirmed yet.
    Updating,
    /// What was asked for runs.
    Ready,
    /// What was asked for does not run.
    Failed,
    /// It is to be gone, and that is not confirmed yet.
    Deleting,
    /// It is gone.
    Deleted,
}

/// What may be asked of a service. The first four are for users; the others are what hive's own parts report. Their reports
/// may be of no interest any more, and then give nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Command)]
pub enum ServiceCommand {
    /// Make it.
    #[serde(rename = "Command.Hive.Service.Create")]
    #[command(gives = ServiceEvent::CREATION_REQUESTED)]
    Create(ServiceAsked),
    /// Make it another.
    #[serde(rename = "Command.Hive.Service.Update")]
    #[command(gives = ServiceEvent::UPDATE_REQUESTED)]
    Update(UpdateAsked),
    /// Make an end of it.
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
    ConfirmDeletion {
        /// What was seen.
        snapshot: Snapshot,
    },
}

/// What was waited for in vain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConvergenceExpired {
    /// Which specification.
    pub spec_version: u64,
    /// For how long it was waited for, and what is known of it.
    pub message: String,
}

/// How an apply ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplyOutcome {
    /// Of which specification.
    pub spec_hash: SpecHash,
    /// Which one in the row.
    pub spec_version: u64,
    /// What came of it.
    pub result: ApplyResult,
}

/// What came of an apply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum ApplyResult {
    /// The platform has it.
    Applied {
        /// The generation of the resource.
        generation: i64,
        /// Whether anything had to be changed.
        changed: bool,
    },
    /// The platform will not have it.
    Refused {
        /// A stable code.
        reason: String,
        /// What it said.
        message: String,
    },
}

/// A look at the platform.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TakeObservation {
    /// What was seen.
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
    /// There is no such service.
    #[error("there is no such service")]
    NotFound,
    /// What was asked for cannot be.
    #[error("the specification cannot be: {0}")]
    InvalidSpec(#[from] SpecFlaw),
    /// It has another specification than the asker believes.
    #[error("the service has specification {is} by now, not {expected}")]
    OtherSpec {
        /// The one that it has.
        is: u64,
        /// The one that the asker has seen.
        expected: u64,
    },
    /// An update that names another place.
    #[error("the service is {is}, and a service does not move: delete it and create {asked}")]
    Moves {
        /// Where it is.
        is: ResourceName,
        /// Where it was asked to be.
        asked: ResourceName,
    },
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
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Creating, Self::Updating, Self::Ready, Self::Failed, Self::Deleting, Self::Deleted];

    /// As it is stored and sent.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "CREATING",
            Self::Updating => "UPDATING",
            Self::Ready => "READY",
            Self::Failed => "FAILED",
            Self::Deleting => "DELETING",
            Self::Deleted => "DELETED",
        }
    }

    /// Whether what was asked for is not confirmed yet, one way or the other.
    pub fn is_converging(self) -> bool {
        matches!(self, Self::Creating | Self::Updating)
    }
}

impl Aggregate for Service {
    const KIND: &'static str = "service";
    /// A specification has the values of variables in it.
    const CONFIDENTIAL: bool = true;
    const NAME_RULE: NameRule = NameRule::ANY.with_facts(&["ready"]);
    type Command = ServiceCommand;
    type Event = ServiceEvent;
    type Refusal = ServiceRefusal;

    fn decide(
        &self,
        command: ServiceCommand,
        context: &Context,
    ) -> Result<Vec<ServiceEvent>, ServiceRefusal> {
        let requested_by = context.actor_id.as_ref().map(ToString::to_string);
        let status = match (&command, self.status) {
            // Whether there is one already is the machine's business.
            (ServiceCommand::Create(asked), _) => return self.create(asked, requested_by),
            (_, Some(status)) => status,
            (_, None) => return Err(ServiceRefusal::NotFound),
        };
        Ok(match command {
            ServiceCommand::Create(_) => Vec::new(),
            ServiceCommand::Update(asked) => self.update(asked, requested_by)?,
            ServiceCommand::Delete(asked) => {
                self.check_version(asked.if_spec_version)?;
                vec![
                    ServiceEvent::DeletionRequested(DeletionRequested { requested_by }),
                    ServiceEvent::DeletionMarked(DeletionMarked { resource: self.resource.clone() }),
                ]
            }
            ServiceCommand::Refresh {} => vec![ServiceEvent::SnapshotUpdated(SnapshotUpdated {
                snapshot: self.snapshot.clone(),
                observation: None,
                refresh_requested: true,
            })],
            ServiceCommand::RecordApply(outcome) => self.record_apply(status, outcome),
            ServiceCommand::TakeObservation(taken) => self.take_observation(status, taken),
            ServiceCommand::ExpireConvergence(expired) => self.expire(status, expired),
            ServiceCommand::ConfirmDeletion { snapshot } => {
                let observed_at = snapshot.observed_at;
                vec![seen(snapshot, None), ServiceEvent::Deleted(Deleted { observed_at })]
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
            ServiceEvent::Ready(_) => {
                self.status = Some(ServiceStatus::Ready);
                self.failure = None;
            }
            ServiceEvent::ConvergenceConfirmed(converged) => {
                self.converged_spec_version = converged.spec_version;
            }
            ServiceEvent::ConvergenceFailed(failed) => self.failed_spec_version = failed.spec_version,
            ServiceEvent::CreationFailed(refused) => {
                let (reason, message) = (refused.reason.clone(), refused.message.clone());
                self.failure = Some(FailureNote { reason, message });
            }
            ServiceEvent::Failed(failed) => {
                self.status = Some(ServiceStatus::Failed);
                let (reason, message) = (failed.reason.clone(), failed.message.clone());
                self.failure = Some(FailureNote { reason, message });
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
        let converging = ["CREATING", "UPDATING"];
        let settled = ["READY", "FAILED"];
        let mut machine = Machine::named("service")
            .state("CREATING")
            .state("UPDATING")
            .state("READY")
            .state("FAILED")
            .state("DELETING")
            .terminal("DELETED")
            .starts(ServiceEvent::CREATION_REQUESTED, "CREATING");
        for from in settled {
            machine = machine.transition(from, ServiceEvent::UPDATE_REQUESTED, "UPDATING");
        }
        for from in settled {
            machine = machine.transition(from, ServiceEvent::DELETION_REQUESTED, "DELETING");
        }
        for from in converging {
            machine = machine.transition(from, ServiceEvent::READY, "READY");
        }
        for from in converging {
            machine = machine.transition(from, ServiceEvent::FAILED, "FAILED");
        }
        machine = machine
            .transition("DELETING", ServiceEvent::DELETED, "DELETED")
            .stays(ServiceEvent::SNAPSHOT_UPDATED);
        for state in converging {
            for event in [
                ServiceEvent::SPEC_ACCEPTED,
                ServiceEvent::SPEC_APPLY_STARTED,
                ServiceEvent::SPEC_APPLIED,
                ServiceEvent::CREATION_FAILED,
                ServiceEvent::CONVERGENCE_CONFIRMED,
                ServiceEvent::CONVERGENCE_FAILED,
            ] {
                machine = machine.stays_in(state, event);
            }
        }
        for state in converging.into_iter().chain(settled) {
            machine = machine.stays_in(state, ServiceEvent::EXTERNAL_PURGED);
        }
        Some(
            machine
                .stays_in("READY", ServiceEvent::UPDATED)
                .stays_in("DELETING", ServiceEvent::DELETION_MARKED),
        )
    }

    fn reason(event: &ServiceEvent) -> Option<Reason> {
        match event {
            ServiceEvent::Failed(failed) => {
                Some(Reason { code: failed.reason.clone(), message: Some(failed.message.clone()) })
            }
            _ => None,
        }
    }
}

impl Service {
    fn create(
        &self,
        asked: &ServiceAsked,
        requested_by: Option<String>,
    ) -> Result<Vec<ServiceEvent>, ServiceRefusal> {
        let resource = asked.resource()?;
        let requested = CreationRequested { resource: resource.clone(), requested_by };
        let mut events = vec![ServiceEvent::CreationRequested(requested)];
        events.extend(self.accept(asked.spec()?, resource, asked.force_replace, asked.wait));
        Ok(events)
    }

    fn update(
        &self,
        asked: UpdateAsked,
        requested_by: Option<String>,
    ) -> Result<Vec<ServiceEvent>, ServiceRefusal> {
        let is = &self.resource;
        let named = ResourceName {
            namespace: asked.namespace.clone().unwrap_or_else(|| is.namespace.clone()),
            name: asked.name.clone().unwrap_or_else(|| is.name.clone()),
        };
        if named != *is {
            return Err(ServiceRefusal::Moves { is: is.clone(), asked: named });
        }
        self.check_version(asked.if_spec_version)?;
        let previous_spec_hash = self.desired_spec_hash.clone();
        let mut events =
            vec![ServiceEvent::UpdateRequested(UpdateRequested { previous_spec_hash, requested_by })];
        events.extend(self.accept(asked.spec()?, is.clone(), asked.force_replace, asked.wait));
        Ok(events)
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

    fn record_apply(&self, status: ServiceStatus, outcome: ApplyOutcome) -> Vec<ServiceEvent> {
        let ApplyOutcome { spec_hash, spec_version, result } = outcome;
        // The service has gone on meanwhile: what became of an earlier specification is of no interest.
        if !status.is_converging() || spec_version != self.spec_version {
            return Vec::new();
        }
        match result {
            // Applied again by a look that found it gone: that is known.
            ApplyResult::Applied { .. } if self.applied_spec_version == spec_version => Vec::new(),
            ApplyResult::Applied { generation, changed } => {
                vec![ServiceEvent::SpecApplied(SpecApplied { spec_hash, spec_version, generation, changed })]
            }
            ApplyResult::Refused { reason, message } => vec![
                ServiceEvent::CreationFailed(CreationFailed {
                    spec_hash: spec_hash.clone(),
                    spec_version,
                    reason: reason.clone(),
                    message: message.clone(),
                }),
                ServiceEvent::Failed(NotConverged { spec_hash, spec_version, reason, message }),
            ],
        }
    }

    /// Nothing more is waited for (H6): what is known of it is all that will be.
    fn expire(&self, status: ServiceStatus, expired: ConvergenceExpired) -> Vec<ServiceEvent> {
        let ConvergenceExpired { spec_version, message } = expired;
        if !status.is_converging() || spec_version != self.spec_version {
            return Vec::new();
        }
        let (spec_hash, reason) = (self.desired_spec_hash.clone(), CONVERGENCE_DEADLINE.to_owned());
        let not_converged = NotConverged { spec_hash, spec_version, reason, message };
        vec![
            ServiceEvent::SnapshotUpdated(SnapshotUpdated {
                snapshot: self.snapshot.clone(),
                observation: None,
                refresh_requested: false,
            }),
            ServiceEvent::ConvergenceFailed(not_converged.clone()),
            ServiceEvent::Failed(not_converged),
        ]
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
        let (spec_hash, spec_version) = (self.desired_spec_hash.clone(), self.spec_version);
        let conclusive = status.is_converging() && looked_for == self.spec_version && snapshot.hash_match;
        match snapshot.ready {
            // An end is told by KnativeServiceDeletedObserved, and afterwards there is nothing to tell.
            _ if status == ServiceStatus::Deleted => Vec::new(),
            _ if status == ServiceStatus::Deleting && !snapshot.present => Vec::new(),
            Some(true) if conclusive => {
                let (revision, url) = (snapshot.latest_ready_revision.clone(), snapshot.url.clone());
                let converged = Converged { spec_hash, spec_version, revision, url };
                let mut events = vec![
                    seen(snapshot, observation),
                    ServiceEvent::ConvergenceConfirmed(converged.clone()),
                    ServiceEvent::Ready(converged.clone()),
                ];
                if status == ServiceStatus::Updating {
                    events.push(ServiceEvent::Updated(converged));
                }
                events
            }
            Some(false) if conclusive && snapshot.consecutive_failures >= failure_threshold => {
                let condition = &snapshot.ready_condition;
                let reason = condition.reason.clone().unwrap_or_else(|| "NotReady".to_owned());
                let message =
                    condition.message.clone().unwrap_or_else(|| "the service is not ready".to_owned());
                let not_converged = NotConverged { spec_hash, spec_version, reason, message };
                vec![
                    seen(snapshot, observation),
                    ServiceEvent::ConvergenceFailed(not_converged.clone()),
                    ServiceEvent::Failed(not_converged),
                ]
            }
            _ => {
                let was_present = self.snapshot.as_ref().is_some_and(|snapshot| snapshot.present);
                let purged = was_present && !snapshot.present && status != ServiceStatus::Deleting;
                let observed_at = snapshot.observed_at;
                let mut events = vec![seen(snapshot, observation)];
                if purged {
                    let resource = self.resource.clone();
                    events.push(ServiceEvent::ExternalPurged(ExternalPurged { resource, observed_at }));
                }
                events
            }
        }
    }
}

fn seen(snapshot: Snapshot, observation: Option<u64>) -> ServiceEvent {
    let snapshot = Some(snapshot);
    ServiceEvent::SnapshotUpdated(SnapshotUpdated { snapshot, observation, refresh_requested: false })
}
