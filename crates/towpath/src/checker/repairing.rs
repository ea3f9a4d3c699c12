//! Repair: a plan first, and then each step in a transaction of its own, with the fact about it.
//!
//! A step is looked at again under the locks of the live path before anything is written. One that fails stops no other, and
//! what is done twice is done once.

use serde::Serialize;
use towpath_core::consistency::{FindingCode, Remedy};
use towpath_core::envelope::ChangeContext;
use towpath_core::ids::{AggregateKey, ChannelName, CorrelationId, EventId, Lane};
use towpath_core::name::EventName;
use towpath_core::payload::Payload;
use towpath_core::ports::store::{
    Append, CheckStatus, Expected, NewEvent, PastConsumer, Repair, Repaired, Snapshot, StoreError,
    StoreResult,
};
use towpath_core::retry::Coded as _;
use uuid::Uuid;

use super::looking::{Found, Looker};
use super::stages::Stage;
use super::{Check, CheckError, Checker};
use crate::bus::with_causes;
use crate::circumstances::Circumstances;
use crate::committed::Committed;

/// The aggregates that repairs are: one each.
pub const REPAIR_KIND: &str = "repair";

/// The fact about a repair.
pub const REPAIR_PERFORMED: &str = "towpath.repair.performed";

/// How many steps are planned, or done, in one go.
pub const MOST_STEPS: usize = 500;

/// How many steps a plan has with those that nobody but a person can do, or that were not needed.
const MOST_TOLD: usize = 5_000;

/// Which findings are repaired.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairAsked {
    /// Those of this check; of the last one that ended, where nothing is said.
    pub check_id: Option<Uuid>,
    /// Only those with these codes; all, where nothing is said.
    pub codes: Vec<FindingCode>,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum StepOutcome {
    /// It is planned.
    Planned,
    /// It was done.
    Done,
    /// Nothing was to be done any more.
    NotNeeded,
    /// It did not work.
    Failed,
    /// It is for a person to do.
    ByHand,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanStep {
    /// What is wrong.
    pub code: FindingCode,
    /// What it is about.
    pub target: String,
    /// What is done.
    pub action: String,
    /// Who has had this event or later ones of its aggregate, and so gets it late.
    pub consumers_past: Vec<PastConsumer>,
    /// What became of it.
    pub outcome: StepOutcome,
    /// The same for people.
    pub message: String,
    /// Of an outbox row: its channel and aggregate.
    way: Option<[String; 3]>,
}

/// What would be done, or was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Its id, which the facts about its steps carry.
    pub plan_id: Uuid,
    /// The check that it goes by.
    pub check_id: Uuid,
    /// Whether it was done.
    pub applied: bool,
    /// The steps.
    pub steps: Vec<PlanStep>,
    /// Whether there is more than fits into one plan.
    pub more: bool,
}

impl Plan {
    /// What cannot be done takes no room from what can be.
    fn is_full(&self) -> bool {
        let is_work = |step: &&PlanStep| {
            matches!(step.outcome, StepOutcome::Planned | StepOutcome::Done | StepOutcome::Failed)
        };
        self.steps.iter().filter(is_work).count() >= MOST_STEPS || self.steps.len() >= MOST_TOLD
    }

    /// Whether a step before it in its channel was to come first and did not work: it would be overtaken.
    fn is_behind_a_failure(&self, found: &Found) -> bool {
        let way = Some(way_of(found));
        let is_failure = |step: &PlanStep| step.outcome == StepOutcome::Failed && step.way == way;
        found.code == FindingCode::MissingOutboxEvents && self.steps.iter().any(is_failure)
    }
}

/// The channel and the aggregate of an event, in whose order it is published.
fn way_of(found: &Found) -> [String; 3] {
    ["channel", "aggregateKind", "aggregateId"].map(|name| found.detail(name).to_owned())
}

/// The fact about a repair, as it is stored.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Performed<'a> {
    code: FindingCode,
    target: &'a str,
    action: &'a str,
    message: &'a str,
    plan_id: Uuid,
    check_id: Uuid,
}

impl Checker<'_> {
    /// Says what would be done about what a check has found, or does it.
    ///
    /// # Guarantees
    /// Each step is looked at again in the transaction that does it, under the locks of the live path, and is recorded as a fact
    /// in the same transaction. What is as it should be by then is left alone, so it may be asked for as often as one likes. One
    /// step that fails stops no other. Nothing is deleted.
    ///
    /// # Errors
    /// `NoCheck` and `NotDone`, where there is nothing to go by.
    pub async fn repair(&self, asked: &RepairAsked, apply: bool) -> Result<Plan, CheckError> {
        let check = match asked.check_id {
            Some(check_id) => self.find(check_id).await?,
            None => self.last().await?,
        };
        let check = check.ok_or(CheckError::NoCheck)?;
        if check.status != CheckStatus::Done {
            return Err(CheckError::NotDone(check.check_id));
        }
        let plan_id = Uuid::now_v7();
        let mut plan =
            Plan { plan_id, check_id: check.check_id, applied: apply, steps: Vec::new(), more: false };
        let looker = Looker::new(self.app, check.since);
        let is_asked = |code: &FindingCode| asked.codes.is_empty() || asked.codes.contains(code);
        for finding in check.findings.0.iter().filter(|finding| is_asked(&finding.code)) {
            match finding.code.remedy() {
                Remedy::ByHand => plan.steps.extend(by_hand(&check, finding.code)),
                Remedy::Safe | Remedy::OnRequest => {
                    self.go_through(&looker, finding.code, &mut plan).await?;
                }
            }
        }
        Ok(plan)
    }

    /// Walks over what a code is about anew: the check has kept some of it only, and some may be right by now.
    async fn go_through(
        &self,
        looker: &Looker<'_>,
        code: FindingCode,
        plan: &mut Plan,
    ) -> Result<(), CheckError> {
        for stage in Stage::of_scope(&[code]) {
            let mut behind: Option<Vec<String>> = None;
            loop {
                let looked = looker.look(stage, behind.as_deref()).await?;
                let found = looked.found.into_iter().filter(|found| found.code == code).collect();
                for found in looker.believable(found).await? {
                    if plan.is_full() {
                        plan.more = true;
                        return Ok(());
                    }
                    let step = self.step(looker, &found, plan).await?;
                    plan.steps.extend(step);
                }
                match looked.next {
                    Some(next) => behind = Some(next),
                    None => break,
                }
            }
        }
        Ok(())
    }

    async fn step(
        &self,
        looker: &Looker<'_>,
        found: &Found,
        plan: &Plan,
    ) -> Result<Option<PlanStep>, CheckError> {
        let Some(repair) = repair_of(looker, found) else { return Ok(None) };
        let mut step = PlanStep {
            code: found.code,
            target: found.row.target.clone(),
            action: found.code.repair().to_owned(),
            consumers_past: Vec::new(),
            outcome: StepOutcome::Planned,
            message: String::new(),
            way: matches!(repair, Repair::Outbox { .. }).then(|| way_of(found)),
        };
        if let Repair::Outbox { event_id, .. } | Repair::Pending { event_id } = &repair {
            step.consumers_past = self.app.bus.store.consumers_past(*event_id).await?;
        }
        // As an operator's retry: handlers would take it for new.
        let now = self.app.bus.database_time().await?;
        if matches!(repair, Repair::Outbox { .. }) && found.is_beyond(now, self.app.checks.keep_handled) {
            step.outcome = StepOutcome::ByHand;
            step.message = "Inboxes do not remember any more whether it was handled; published again, it would be handled twice.".to_owned();
            return Ok(Some(step));
        }
        if plan.applied && plan.is_behind_a_failure(found) {
            step.outcome = StepOutcome::Failed;
            step.message = format!("{}: one before it could not be put back", failed_text(&repair));
            return Ok(Some(step));
        }
        if plan.applied {
            self.apply(&repair, found, &mut step, plan).await;
        }
        Ok(Some(step))
    }

    async fn apply(&self, repair: &Repair, found: &Found, step: &mut PlanStep, plan: &Plan) {
        let message = done_text(repair);
        let applied = async {
            let fact = self.fact(step, &message, plan)?;
            let now = self.app.bus.clock.now();
            let repaired = self.app.bus.store.repair(repair, &fact, now).await?;
            StoreResult::Ok((repaired, fact))
        };
        (step.outcome, step.message) = match applied.await {
            Ok((Repaired::Done, fact)) => {
                let mut committed = Committed::of(&fact, &self.app.bus.registry);
                committed.and(concerned(repair, found));
                self.app.bus.committed(&committed);
                tracing::info!(code = step.code.as_str(), target = step.target, "{message}");
                (StepOutcome::Done, message)
            }
            Ok((Repaired::NotNeeded, _)) => {
                (StepOutcome::NotNeeded, "It is as it should be by now.".to_owned())
            }
            Ok((Repaired::EffectIsThere, _)) => (
                StepOutcome::ByHand,
                "Its effect is already in the state; running it again would have it twice.".to_owned(),
            ),
            Ok((Repaired::Gone, _)) => (StepOutcome::NotNeeded, "It does not exist any more.".to_owned()),
            Err(error) => {
                let text = format!("{}: {}", failed_text(repair), with_causes(&error));
                tracing::error!(code = error.code(), target = step.target, "{text}");
                (StepOutcome::Failed, text)
            }
        };
    }

    fn fact(&self, step: &PlanStep, message: &str, plan: &Plan) -> StoreResult<Append> {
        let performed = Performed {
            code: step.code,
            target: &step.target,
            action: &step.action,
            message,
            plan_id: plan.plan_id,
            check_id: plan.check_id,
        };
        let payload = Payload::from_value(&performed).map_err(|error| StoreError::Corrupt {
            what: "the fact about a repair".to_owned(),
            source: error.into(),
        })?;
        let (bus, repair_id) = (&self.app.bus, Uuid::now_v7());
        let mut context = ChangeContext::new(bus.clock.now(), CorrelationId::of_new_flow(plan.plan_id));
        Circumstances::current().complete(&mut context);
        Ok(Append {
            aggregate: AggregateKey::from_stored(REPAIR_KIND, repair_id.to_string()),
            expected: Expected::New,
            events: vec![NewEvent {
                event_id: EventId(Uuid::now_v7()),
                event_type: EventName::from_stored(REPAIR_PERFORMED),
                schema_version: 1,
                payload: payload.clone(),
                channels: bus.registry.routing_of(REPAIR_PERFORMED),
            }],
            snapshot: Some(Snapshot { data: payload, version: 1 }),
            state_changes: Vec::new(),
            deadline: Default::default(),
            context,
        })
    }
}

/// What nobody but a person can put right, as far as the check has kept it.
fn by_hand(check: &Check, code: FindingCode) -> Vec<PlanStep> {
    let findings = check.findings.0.iter().filter(|finding| finding.code == code);
    let rows = findings.flat_map(|finding| &finding.rows);
    let steps = rows.map(|row| PlanStep {
        code,
        target: row.target.clone(),
        action: code.repair().to_owned(),
        consumers_past: Vec::new(),
        outcome: StepOutcome::ByHand,
        message: String::new(),
        way: None,
    });
    steps.collect()
}

fn repair_of(looker: &Looker<'_>, found: &Found) -> Option<Repair> {
    let event_id = || Uuid::parse_str(found.detail("eventId")).ok().map(EventId);
    let channel = || ChannelName::from_stored(found.detail("channel"));
    let command_id = || found.detail("commandId").to_owned();
    match found.code {
        FindingCode::MissingOutboxEvents => {
            Some(Repair::Outbox { event_id: event_id()?, channel: channel() })
        }
        FindingCode::OrphanedCommands => Some(Repair::OrphanedCommand {
            command_id: command_id(),
            event_type: looker.result_of(found.detail("commandType"))?.to_owned(),
        }),
        FindingCode::EventsWithoutPosition => Some(Repair::Pending { event_id: event_id()? }),
        FindingCode::ParkedWithoutHead => {
            let lane = found.detail("lane").parse().ok().map(Lane::from_stored)?;
            Some(Repair::Lane { channel: channel(), lane })
        }
        FindingCode::AbandonedCommands => Some(Repair::AbandonedCommand { command_id: command_id() }),
        _ => None,
    }
}

/// Whom a repair concerns.
fn concerned(repair: &Repair, found: &Found) -> Committed {
    match repair {
        Repair::Outbox { channel, .. } => {
            let aggregate =
                AggregateKey::from_stored(found.detail("aggregateKind"), found.detail("aggregateId"));
            Committed::routed(channel.clone(), aggregate.lane())
        }
        Repair::Lane { channel, lane } => Committed::routed(channel.clone(), *lane),
        Repair::OrphanedCommand { .. } | Repair::AbandonedCommand { .. } => Committed::command(),
        // The fact wakes the sequencer.
        Repair::Pending { .. } => Committed::default(),
    }
}

/// The first two are contracts (G9).
fn done_text(repair: &Repair) -> String {
    match repair {
        Repair::Outbox { event_id, .. } => format!("Repaired missing outbox for event {event_id}"),
        Repair::OrphanedCommand { command_id, .. } => {
            format!("Marked orphaned command {command_id} for reprocessing")
        }
        Repair::Pending { event_id } => format!("Let event {event_id} wait for a position"),
        Repair::Lane { channel, lane } => {
            format!("Let lane {} of channel {channel} go on", lane.to_stored())
        }
        Repair::AbandonedCommand { command_id } => format!("Put abandoned command {command_id} back"),
    }
}

/// The first one is a contract (G9).
fn failed_text(repair: &Repair) -> String {
    match repair {
        Repair::Outbox { event_id, .. } => format!("Failed to repair outbox for event {event_id}"),
        Repair::OrphanedCommand { command_id, .. } => {
            format!("Failed to mark orphaned command {command_id} for reprocessing")
        }
        Repair::Pending { event_id } => format!("Failed to let event {event_id} wait for a position"),
        Repair::Lane { channel, lane } => {
            format!("Failed to let lane {} of channel {channel} go on", lane.to_stored())
        }
        Repair::AbandonedCommand { command_id } => {
            format!("Failed to put abandoned command {command_id} back")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_are_those_of_the_source() {
        let event_id = EventId(Uuid::nil());
        let outbox = Repair::Outbox { event_id, channel: ChannelName::from_stored("orders") };
        assert_eq!(done_text(&outbox), format!("Repaired missing outbox for event {event_id}"));
        assert_eq!(failed_text(&outbox), format!("Failed to repair outbox for event {event_id}"));
        let (command_id, event_type) = ("c-7".to_owned(), "order.noted".to_owned());
        let orphan = Repair::OrphanedCommand { command_id, event_type };
        assert_eq!(done_text(&orphan), "Marked orphaned command c-7 for reprocessing");
    }

    #[test]
    fn the_stored_name_follows_the_rules() {
        assert_eq!(EventName::infer(REPAIR_PERFORMED).unwrap().as_str(), REPAIR_PERFORMED);
    }
}
