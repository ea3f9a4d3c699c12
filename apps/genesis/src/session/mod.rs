//! The session: its stages, what may be asked of it and what follows (G12).
//!
//! A stage's entity is asked for, proposed and confirmed; then the stage can be completed. At most one request is open at a
//! time: asking again supersedes it, and its answer is late then.

#![allow(missing_docs, reason = "where a name says it, no comment repeats it")]

mod commands;
mod events;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use towpath::name::NameRule;
use towpath::retry::ErrorClass;
use towpath::{Aggregate, Command as _, Context, Machine, Reason, Refusal};

pub use commands::*;
pub use events::*;

use crate::draft::{
    Brief, Confirmed, Draft, LONGEST_INPUT, LONGEST_TITLE, Relation, check_said, check_text, text_of,
};
use crate::stage::Stage;

/// How many branches are made of one session.
const MOST_BRANCHES: usize = 256;

/// How often one entity may be asked for: each request keeps a copy of all that is confirmed, for ever.
const MOST_ASKS: u64 = 256;
/// How many relations a network has.
const MOST_RELATIONS: usize = 256;
/// How many bytes of texts they have together: each later brief and each branch carries them.
const LARGEST_NETWORK: usize = 64 << 10;
/// The longest name of a user, a novel, somebody in a relation; and the longest code.
const LONGEST_NAME: usize = 128;
/// The most bytes of preferences.
const LARGEST_PREFERENCES: usize = 16 << 10;

/// A session, as its facts say.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// Where it is; none before its first fact.
    pub status: Option<Status>,
    /// The stage that it is in, or was in when it ended.
    pub stage: Stage,
    pub user_id: String,
    pub novel_id: Option<String>,
    pub initial_input: String,
    #[serde(default)]
    pub preferences: Map<String, Value>,
    pub branch_of: Option<BranchOf>,
    /// What was asked for, proposed and confirmed.
    pub entries: BTreeMap<Stage, Entry>,
    pub network: Option<Vec<Relation>>,
    /// Whether its last stage was completed; it can be finished either way.
    #[serde(default)]
    pub is_complete: bool,
    pub branches: Vec<Branch>,
    pub failure: Option<Failed>,
}

/// What is known of an entity.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// How often it was asked for.
    pub asks: u64,
    /// The request that waits for its answer.
    pub open: Option<u64>,
    pub proposal: Option<Proposal>,
    pub confirmed: Option<Draft>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proposal {
    /// The request that it answers.
    pub request: u64,
    pub draft: Draft,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Branch {
    pub session_id: String,
    pub stage: Stage,
}

/// Where a session is: in a stage, or at an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Finished,
    Failed,
    #[serde(untagged)]
    In(Stage),
}

/// A session's "no".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionRefusal {
    #[error("there is no such session")]
    NotFound,
    #[error("{command} is not possible in a session that is at {at}; possible now: {}", .possible.join(", "))]
    NotPossible { command: &'static str, at: &'static str, possible: Vec<&'static str> },
    #[error("what is proposed answers request {is}, not {expected}")]
    OtherProposal { is: u64, expected: u64 },
    #[error("{0}")]
    Invalid(String),
}

impl Refusal for SessionRefusal {
    fn code(&self) -> &'static str {
        match self {
            Self::NotFound => "genesis-session-not-found",
            Self::NotPossible { .. } => "genesis-not-possible",
            Self::OtherProposal { .. } => "genesis-other-proposal",
            Self::Invalid(_) => "genesis-invalid",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Self::NotFound => ErrorClass::NotFound,
            Self::NotPossible { .. } | Self::OtherProposal { .. } => ErrorClass::Validation,
            Self::Invalid(_) => ErrorClass::InvalidPayload,
        }
    }
}

impl Status {
    /// All of them: the stages in their order, then the ends.
    pub fn all() -> impl Iterator<Item = Self> {
        Stage::ALL.into_iter().map(Self::In).chain([Self::Finished, Self::Failed])
    }

    /// As it is stored and sent.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::In(stage) => stage.as_str(),
            Self::Finished => "finished",
            Self::Failed => "failed",
        }
    }
}

impl Aggregate for Session {
    const KIND: &'static str = "genesis-session";
    const NAME_RULE: NameRule = NameRule::DOTTED;
    type Command = SessionCommand;
    type Event = SessionEvent;
    type Refusal = SessionRefusal;

    fn decide(
        &self,
        command: SessionCommand,
        context: &Context,
    ) -> Result<Vec<SessionEvent>, SessionRefusal> {
        let action = SessionCommand::action_of(command.name());
        let Some(action) = action.filter(|action| self.allows(*action)) else {
            return Err(self.not_possible(command.name()));
        };
        let event = match command {
            SessionCommand::Start(asked) => SessionEvent::Started(started(asked)?),
            SessionCommand::StartBranch(StartBranch { stage, begins_with }) => {
                return Ok(branch_begun(stage, begins_with));
            }
            SessionCommand::RequestSeed(asked)
            | SessionCommand::RequestTheme(asked)
            | SessionCommand::RequestWorld(asked)
            | SessionCommand::RequestCharacter(asked)
            | SessionCommand::RequestPlot(asked)
            | SessionCommand::RequestDetails(asked) => self.request(asked, context.version + 1)?,
            SessionCommand::ProposeConcept(proposal)
            | SessionCommand::ProposeTheme(proposal)
            | SessionCommand::ProposeWorld(proposal)
            | SessionCommand::ProposeCharacter(proposal)
            | SessionCommand::ProposePlot(proposal)
            | SessionCommand::GenerateDetails(proposal) => return self.propose(action, proposal),
            SessionCommand::ConfirmConcept(asked)
            | SessionCommand::ConfirmTheme(asked)
            | SessionCommand::ConfirmWorld(asked)
            | SessionCommand::ConfirmCharacter(asked)
            | SessionCommand::ConfirmPlot(asked)
            | SessionCommand::ConfirmDetails(asked) => self.confirm(asked)?,
            SessionCommand::ReviseTheme(asked) => {
                SessionEvent::ThemeRevised(self.change(Stage::Theme, asked)?)
            }
            SessionCommand::UpdateWorld(asked) => {
                SessionEvent::WorldUpdated(self.change(Stage::World, asked)?)
            }
            SessionCommand::UpdateCharacter(asked) => {
                SessionEvent::CharacterUpdated(self.change(Stage::Character, asked)?)
            }
            SessionCommand::UpdatePlot(asked) => SessionEvent::PlotUpdated(self.change(Stage::Plot, asked)?),
            SessionCommand::CreateNetwork(asked) => {
                SessionEvent::CharacterNetworkCreated(network(asked.relations)?)
            }
            SessionCommand::CompleteStage(asked) => self.complete(&asked)?,
            SessionCommand::Finish(_) => SessionEvent::Finished(Finished {}),
            SessionCommand::Fail(asked) => SessionEvent::Failed(failed(asked)?),
            SessionCommand::CreateBranch(asked) => self.branch(asked, context)?,
        };
        Ok(vec![event])
    }

    fn evolve(mut self, event: &SessionEvent) -> Self {
        match event {
            SessionEvent::Started(started) => {
                let begun = started.clone();
                self.status = Some(Status::In(Stage::Concept));
                self.user_id = begun.user_id;
                self.novel_id = begun.novel_id;
                self.initial_input = begun.initial_input;
                self.preferences = begun.preferences;
                self.branch_of = begun.branch_of;
                self.network = begun.network;
                for (stage, draft) in begun.confirmed {
                    self.entries.insert(stage, Entry { confirmed: Some(draft), ..Entry::default() });
                }
            }
            SessionEvent::SeedRequested(asked)
            | SessionEvent::ThemeRequested(asked)
            | SessionEvent::WorldRequested(asked)
            | SessionEvent::CharacterRequested(asked)
            | SessionEvent::PlotRequested(asked)
            | SessionEvent::DetailsRequested(asked) => {
                let entry = self.entries.entry(asked.brief.entity).or_default();
                entry.asks = asked.brief.ask;
                entry.open = Some(asked.request);
            }
            SessionEvent::ConceptProposed(proposed)
            | SessionEvent::ThemeProposed(proposed)
            | SessionEvent::WorldProposed(proposed)
            | SessionEvent::CharacterProposed(proposed)
            | SessionEvent::PlotProposed(proposed)
            | SessionEvent::DetailsGenerated(proposed) => {
                let EntityProposed { entity, request, draft } = proposed.clone();
                let entry = self.entries.entry(entity).or_default();
                entry.open = None;
                entry.proposal = Some(Proposal { request, draft });
            }
            SessionEvent::ConceptConfirmed(confirmed)
            | SessionEvent::ThemeConfirmed(confirmed)
            | SessionEvent::WorldConfirmed(confirmed)
            | SessionEvent::CharacterConfirmed(confirmed)
            | SessionEvent::PlotConfirmed(confirmed)
            | SessionEvent::DetailsConfirmed(confirmed) => {
                let entry = self.entries.entry(confirmed.entity).or_default();
                (entry.open, entry.proposal) = (None, None);
                entry.confirmed = Some(confirmed.draft.clone());
            }
            SessionEvent::ThemeRevised(changed)
            | SessionEvent::WorldUpdated(changed)
            | SessionEvent::CharacterUpdated(changed)
            | SessionEvent::PlotUpdated(changed) => {
                self.entries.entry(changed.entity).or_default().confirmed = Some(changed.draft.clone());
            }
            SessionEvent::CharacterNetworkCreated(created) => {
                self.network = Some(created.relations.clone());
            }
            SessionEvent::StageCompleted(completed) => match completed.next {
                Some(next) => (self.stage, self.status) = (next, Some(Status::In(next))),
                None => self.is_complete = true,
            },
            SessionEvent::Finished(_) => self.end(Status::Finished),
            SessionEvent::Failed(failed) => {
                self.end(Status::Failed);
                self.failure = Some(failed.clone());
            }
            SessionEvent::BranchCreated(created) => {
                let (session_id, stage) = (created.session_id.clone(), created.stage);
                self.branches.push(Branch { session_id, stage });
            }
        }
        self
    }

    fn machine() -> Option<Machine> {
        let mut machine =
            Machine::named("genesis-session").starts(SessionEvent::STARTED, Stage::Concept.as_str());
        for stage in Stage::ALL {
            let name = stage.as_str();
            machine = machine.state(name).stay_in(&[name], &SessionEvent::names_of(stage));
            machine = match stage.next() {
                Some(next) => machine.transition(name, SessionEvent::STAGE_COMPLETED, next.as_str()),
                None => machine.stays_in(name, SessionEvent::STAGE_COMPLETED).transition(
                    name,
                    SessionEvent::FINISHED,
                    Status::Finished.as_str(),
                ),
            };
            machine = machine.transition(name, SessionEvent::FAILED, Status::Failed.as_str());
        }
        // What was confirmed may change until the details are written from it.
        let changes = [
            (Stage::Theme, SessionEvent::THEME_REVISED),
            (Stage::World, SessionEvent::WORLD_UPDATED),
            (Stage::Character, SessionEvent::CHARACTER_UPDATED),
            (Stage::Plot, SessionEvent::PLOT_UPDATED),
        ];
        for (from, event) in changes {
            for stage in Stage::Details.before().filter(|stage| *stage >= from) {
                machine = machine.stays_in(stage.as_str(), event);
            }
        }
        let machine = machine
            .stays_in(Stage::Character.as_str(), SessionEvent::CHARACTER_NETWORK_CREATED)
            .terminal(Status::Finished.as_str())
            .terminal(Status::Failed.as_str())
            .stays(SessionEvent::BRANCH_CREATED);
        Some(machine)
    }

    fn reason(event: &SessionEvent) -> Option<Reason> {
        let SessionEvent::Failed(failed) = event else { return None };
        Some(Reason { code: failed.reason.clone(), message: failed.message.clone() })
    }
}

impl Session {
    /// Whether something may be asked of it now. Of what is internal, reports always may: whether they are late is seen then.
    pub fn allows(&self, action: Action) -> bool {
        let stage = match (action, self.status) {
            (Action::Start, status) => return status.is_none(),
            (_, None) => return false,
            (Action::Propose(_), _) => return true,
            (Action::CreateBranch, _) => return self.branches.len() < MOST_BRANCHES,
            (_, Some(Status::Finished | Status::Failed)) => return false,
            (_, Some(Status::In(stage))) => stage,
        };
        let is_confirmed = |of| self.confirmed(of).is_some();
        let is_proposed = |of| self.entries.get(&of).is_some_and(|entry| entry.proposal.is_some());
        match action {
            Action::Request(of) => of == stage && !is_confirmed(of) && self.asks(of) < MOST_ASKS,
            Action::Confirm(of) => of == stage && !is_confirmed(of) && is_proposed(of),
            Action::Change(of) => is_confirmed(of) && stage < Stage::Details,
            Action::CreateNetwork => {
                stage == Stage::Character && is_confirmed(stage) && self.network.is_none()
            }
            Action::CompleteStage => is_confirmed(stage) && !self.is_complete,
            Action::Finish => stage == Stage::Details && is_confirmed(stage),
            Action::Fail => true,
            Action::Start | Action::Propose(_) | Action::CreateBranch => false,
        }
    }

    /// The commands that users may send now.
    pub fn possible(&self) -> Vec<&'static str> {
        SessionCommand::asked().filter(|(_, action)| self.allows(*action)).map(|(name, _)| name).collect()
    }

    /// How often an entity was asked for.
    fn asks(&self, entity: Stage) -> u64 {
        self.entries.get(&entity).map_or(0, |entry| entry.asks)
    }

    /// What was confirmed of an entity.
    pub fn confirmed(&self, entity: Stage) -> Option<&Draft> {
        self.entries.get(&entity)?.confirmed.as_ref()
    }

    fn not_possible(&self, command: &'static str) -> SessionRefusal {
        match self.status {
            None => SessionRefusal::NotFound,
            Some(status) => {
                SessionRefusal::NotPossible { command, at: status.as_str(), possible: self.possible() }
            }
        }
    }

    /// What is confirmed of the stages before one.
    fn confirmed_before(&self, stage: Stage) -> Confirmed {
        let confirmed = |of| Some((of, self.confirmed(of)?.clone()));
        stage.before().filter_map(confirmed).collect()
    }

    fn request(&self, asked: Request, request: u64) -> Result<SessionEvent, SessionRefusal> {
        let instructions = asked.instructions.or_else(|| text_of(asked.more));
        if let Some(instructions) = &instructions {
            check_text("instructions", instructions, LONGEST_INPUT).map_err(SessionRefusal::Invalid)?;
        }
        let brief = Brief {
            entity: self.stage,
            ask: self.asks(self.stage) + 1,
            initial_input: self.initial_input.clone(),
            preferences: self.preferences.clone(),
            confirmed: self.confirmed_before(self.stage),
            network: self.network.clone().unwrap_or_default(),
            instructions,
        };
        Ok(SessionEvent::requested(EntityRequested { request, brief }))
    }

    /// An answer to the open request is a proposal. Any other is late, and gives nothing.
    fn propose(&self, action: Action, proposal: Propose) -> Result<Vec<SessionEvent>, SessionRefusal> {
        let Propose { request, draft } = proposal;
        let entity = match action {
            Action::Propose(entity) if self.status == Some(Status::In(entity)) => entity,
            _ => return Ok(Vec::new()),
        };
        if self.entries.get(&entity).and_then(|entry| entry.open) != Some(request) {
            return Ok(Vec::new());
        }
        draft.check().map_err(SessionRefusal::Invalid)?;
        Ok(vec![SessionEvent::proposed(EntityProposed { entity, request, draft })])
    }

    fn confirm(&self, asked: Confirm) -> Result<SessionEvent, SessionRefusal> {
        let proposal = self.entries.get(&self.stage).and_then(|entry| entry.proposal.clone());
        let Proposal { request, draft } = proposal.ok_or(SessionRefusal::NotFound)?;
        match asked.request {
            Some(expected) if expected != request => {
                Err(SessionRefusal::OtherProposal { is: request, expected })
            }
            _ => Ok(SessionEvent::confirmed(EntityConfirmed { entity: self.stage, request, draft })),
        }
    }

    fn complete(&self, asked: &CompleteStage) -> Result<SessionEvent, SessionRefusal> {
        let stage = self.stage;
        if asked.stage.as_ref().is_some_and(|named| named.stage() != Some(stage)) {
            let message = format!("the session is in stage {} ({})", stage.number(), stage.as_str());
            return Err(SessionRefusal::Invalid(message));
        }
        Ok(SessionEvent::StageCompleted(StageCompleted { stage, next: stage.next() }))
    }

    fn change(&self, entity: Stage, asked: Change) -> Result<EntityChanged, SessionRefusal> {
        let Draft { title, text } = self.confirmed(entity).cloned().unwrap_or_default();
        let Change { title: new_title, text: new_text, more } = asked;
        let text = new_text.or_else(|| text_of(more)).unwrap_or(text);
        let draft = Draft { title: new_title.unwrap_or(title), text };
        draft.check().map_err(SessionRefusal::Invalid)?;
        Ok(EntityChanged { entity, draft })
    }

    fn branch(&self, asked: CreateBranch, context: &Context) -> Result<SessionEvent, SessionRefusal> {
        let reached = |stage: &Stage| *stage <= self.stage;
        let stage = match asked.stage {
            None => self.stage,
            Some(named) => named.stage().filter(reached).ok_or_else(|| {
                SessionRefusal::Invalid(format!("a branch begins in stage 0 to {}", self.stage.number()))
            })?,
        };
        let session_id = self.branch_id(context.now, context.version);
        let begins_with = Started {
            user_id: self.user_id.clone(),
            novel_id: self.novel_id.clone(),
            initial_input: self.initial_input.clone(),
            preferences: self.preferences.clone(),
            branch_of: None,
            confirmed: self.confirmed_before(stage),
            network: self.network.clone().filter(|_| stage > Stage::Character),
        };
        Ok(SessionEvent::BranchCreated(BranchCreated { session_id, stage, begins_with }))
    }

    /// An id that no other branch has: decisions have no chance to draw one.
    fn branch_id(&self, now: DateTime<Utc>, version: u64) -> String {
        let mut hash = Sha256::new();
        hash.update(now.to_rfc3339());
        hash.update(version.to_be_bytes());
        // Two branches of one session may have the same of all else at one moment.
        hash.update(self.branch_of.as_ref().map(|from| from.session_id.as_str()).unwrap_or_default());
        for text in [&self.user_id, self.novel_id.as_ref().unwrap_or(&self.initial_input)] {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
        uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
    }

    /// Nobody waits for an answer any more.
    fn end(&mut self, status: Status) {
        self.status = Some(status);
        self.entries.values_mut().for_each(|entry| entry.open = None);
    }
}

fn started(asked: Start) -> Result<Started, SessionRefusal> {
    let Start { user_id, initial_input, preferences, novel_id } = asked;
    let preferences = preferences.unwrap_or_default();
    let size = serde_json::to_string(&preferences).map_or(0, |text| text.len());
    let checks = [
        check_said("userId", &user_id, LONGEST_NAME),
        check_said("initialInput", &initial_input, LONGEST_INPUT),
        novel_id.as_ref().map_or(Ok(()), |id| check_said("novelId", id, LONGEST_NAME)),
        match size > LARGEST_PREFERENCES {
            true => Err(format!("preferences has {size} bytes, and at most {LARGEST_PREFERENCES} are taken")),
            false => Ok(()),
        },
    ];
    checks.into_iter().collect::<Result<(), String>>().map_err(SessionRefusal::Invalid)?;
    Ok(Started { user_id, novel_id, initial_input, preferences, ..Started::default() })
}

/// A branch begins as every session does, and goes at once to its stage.
fn branch_begun(stage: Stage, begins_with: Started) -> Vec<SessionEvent> {
    let completed = |stage: Stage| SessionEvent::StageCompleted(StageCompleted { stage, next: stage.next() });
    [SessionEvent::Started(begins_with)].into_iter().chain(stage.before().map(completed)).collect()
}

fn network(relations: Vec<Relation>) -> Result<NetworkCreated, SessionRefusal> {
    let bytes: usize = relations.iter().map(|of| of.from.len() + of.to.len() + of.relation.len()).sum();
    if relations.len() > MOST_RELATIONS || bytes > LARGEST_NETWORK {
        let message =
            format!("a network has at most {MOST_RELATIONS} relations and {LARGEST_NETWORK} bytes of texts");
        return Err(SessionRefusal::Invalid(message));
    }
    for Relation { from, to, relation } in &relations {
        let texts = [("from", from), ("to", to), ("relation", relation)];
        let checked = texts.into_iter().try_for_each(|(what, text)| check_said(what, text, LONGEST_TITLE));
        checked.map_err(SessionRefusal::Invalid)?;
    }
    Ok(NetworkCreated { relations })
}

fn failed(asked: Fail) -> Result<Failed, SessionRefusal> {
    let reason = asked.reason.unwrap_or_else(|| "given-up".to_owned());
    let message = asked.message.as_ref().map_or(Ok(()), |text| check_text("message", text, LONGEST_INPUT));
    check_said("reason", &reason, LONGEST_NAME).and(message).map_err(SessionRefusal::Invalid)?;
    Ok(Failed { reason, message: asked.message })
}
