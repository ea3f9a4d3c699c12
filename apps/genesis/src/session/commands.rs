//! What may be asked of a session, by the names of G12; and where in its life.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use towpath::Command;

use super::events::{SessionEvent, Started};
use crate::draft::{Draft, Relation};
use crate::stage::Stage;

/// What may be asked of a session. Those for users are each paired with the event that is their result. The internal ones are
/// what genesis' own parts report; what is of no interest any more gives nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Command)]
#[allow(clippy::large_enum_variant, reason = "one of them lives at a time")]
pub enum SessionCommand {
    #[serde(rename = "Command.Genesis.Session.Start")]
    #[command(gives = SessionEvent::STARTED)]
    Start(Start),
    #[serde(rename = "Command.Genesis.Session.Seed.Request")]
    #[command(gives = SessionEvent::SEED_REQUESTED)]
    RequestSeed(Request),
    #[serde(rename = "Command.Genesis.Session.Concept.Confirm")]
    #[command(gives = SessionEvent::CONCEPT_CONFIRMED)]
    ConfirmConcept(Confirm),
    #[serde(rename = "Command.Genesis.Session.Stage.Complete")]
    #[command(gives = SessionEvent::STAGE_COMPLETED)]
    CompleteStage(CompleteStage),
    #[serde(rename = "Command.Genesis.Session.Theme.Request")]
    #[command(gives = SessionEvent::THEME_REQUESTED)]
    RequestTheme(Request),
    #[serde(rename = "Command.Genesis.Session.Theme.Confirm")]
    #[command(gives = SessionEvent::THEME_CONFIRMED)]
    ConfirmTheme(Confirm),
    #[serde(rename = "Command.Genesis.Session.Theme.Revise")]
    #[command(gives = SessionEvent::THEME_REVISED)]
    ReviseTheme(Change),
    #[serde(rename = "Command.Genesis.Session.World.Request")]
    #[command(gives = SessionEvent::WORLD_REQUESTED)]
    RequestWorld(Request),
    #[serde(rename = "Command.Genesis.Session.World.Confirm")]
    #[command(gives = SessionEvent::WORLD_CONFIRMED)]
    ConfirmWorld(Confirm),
    #[serde(rename = "Command.Genesis.Session.World.Update")]
    #[command(gives = SessionEvent::WORLD_UPDATED)]
    UpdateWorld(Change),
    #[serde(rename = "Command.Genesis.Session.Character.Request")]
    #[command(gives = SessionEvent::CHARACTER_REQUESTED)]
    RequestCharacter(Request),
    #[serde(rename = "Command.Genesis.Session.Character.Confirm")]
    #[command(gives = SessionEvent::CHARACTER_CONFIRMED)]
    ConfirmCharacter(Confirm),
    #[serde(rename = "Command.Genesis.Session.Character.Update")]
    #[command(gives = SessionEvent::CHARACTER_UPDATED)]
    UpdateCharacter(Change),
    #[serde(rename = "Command.Genesis.Session.CharacterNetwork.Create")]
    #[command(gives = SessionEvent::CHARACTER_NETWORK_CREATED)]
    CreateNetwork(CreateNetwork),
    #[serde(rename = "Command.Genesis.Session.Plot.Request")]
    #[command(gives = SessionEvent::PLOT_REQUESTED)]
    RequestPlot(Request),
    #[serde(rename = "Command.Genesis.Session.Plot.Confirm")]
    #[command(gives = SessionEvent::PLOT_CONFIRMED)]
    ConfirmPlot(Confirm),
    #[serde(rename = "Command.Genesis.Session.Plot.Update")]
    #[command(gives = SessionEvent::PLOT_UPDATED)]
    UpdatePlot(Change),
    #[serde(rename = "Command.Genesis.Session.Details.Request")]
    #[command(gives = SessionEvent::DETAILS_REQUESTED)]
    RequestDetails(Request),
    #[serde(rename = "Command.Genesis.Session.Details.Confirm")]
    #[command(gives = SessionEvent::DETAILS_CONFIRMED)]
    ConfirmDetails(Confirm),
    #[serde(rename = "Command.Genesis.Session.Finish")]
    #[command(gives = SessionEvent::FINISHED)]
    Finish(Finish),
    #[serde(rename = "Command.Genesis.Session.Fail")]
    #[command(gives = SessionEvent::FAILED)]
    Fail(Fail),
    #[serde(rename = "Command.Genesis.Session.Branch.Create")]
    #[command(gives = SessionEvent::BRANCH_CREATED)]
    CreateBranch(CreateBranch),
    /// Begins a session that is a branch.
    #[serde(rename = "Command.Genesis.Session.Branch.Start")]
    #[command(internal)]
    StartBranch(StartBranch),
    #[serde(rename = "Command.Genesis.Session.Concept.Propose")]
    #[command(internal)]
    ProposeConcept(Propose),
    #[serde(rename = "Command.Genesis.Session.Theme.Propose")]
    #[command(internal)]
    ProposeTheme(Propose),
    #[serde(rename = "Command.Genesis.Session.World.Propose")]
    #[command(internal)]
    ProposeWorld(Propose),
    #[serde(rename = "Command.Genesis.Session.Character.Propose")]
    #[command(internal)]
    ProposeCharacter(Propose),
    #[serde(rename = "Command.Genesis.Session.Plot.Propose")]
    #[command(internal)]
    ProposePlot(Propose),
    #[serde(rename = "Command.Genesis.Session.Details.Generate")]
    #[command(internal)]
    GenerateDetails(Propose),
}

/// The payload of a start, and the body of `POST /api/genesis/sessions`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Start {
    pub user_id: String,
    pub initial_input: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferences: Option<Map<String, Value>>,
    /// The novel that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub novel_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    /// What is to be heeded this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// What else is said goes to the writer, too.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Confirm {
    /// Only if what is proposed is the answer to this request: nobody confirms what they have not seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Change {
    /// As it is, if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What is to hold from now on. Without it, what else is said is that; if nothing is said at all, the text stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateNetwork {
    pub relations: Vec<Relation>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CompleteStage {
    /// Only if it is in this stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<NamedStage>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Finish {}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Fail {
    /// A code; `given-up` if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateBranch {
    /// The stage that the branch begins in: the present one, if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<NamedStage>,
}

/// A stage by its number, 0 to 5, or by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NamedStage {
    Number(u8),
    Name(String),
}

impl NamedStage {
    /// Which one it is, if it is one.
    pub fn stage(&self) -> Option<Stage> {
        match self {
            Self::Number(number) => Stage::numbered(*number),
            Self::Name(name) => Stage::named(name),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartBranch {
    pub stage: Stage,
    pub begins_with: Started,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Propose {
    /// The request that it answers.
    pub request: u64,
    pub draft: Draft,
}

/// What a command does, whichever entity it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Start,
    Request(Stage),
    Propose(Stage),
    Confirm(Stage),
    Change(Stage),
    CreateNetwork,
    CompleteStage,
    Finish,
    Fail,
    CreateBranch,
}

/// Every command, in the order of a session's life.
const ACTIONS: [(&str, Action); 29] = [
    (SessionCommand::START, Action::Start),
    (SessionCommand::START_BRANCH, Action::Start),
    (SessionCommand::REQUEST_SEED, Action::Request(Stage::Concept)),
    (SessionCommand::PROPOSE_CONCEPT, Action::Propose(Stage::Concept)),
    (SessionCommand::CONFIRM_CONCEPT, Action::Confirm(Stage::Concept)),
    (SessionCommand::REQUEST_THEME, Action::Request(Stage::Theme)),
    (SessionCommand::PROPOSE_THEME, Action::Propose(Stage::Theme)),
    (SessionCommand::CONFIRM_THEME, Action::Confirm(Stage::Theme)),
    (SessionCommand::REVISE_THEME, Action::Change(Stage::Theme)),
    (SessionCommand::REQUEST_WORLD, Action::Request(Stage::World)),
    (SessionCommand::PROPOSE_WORLD, Action::Propose(Stage::World)),
    (SessionCommand::CONFIRM_WORLD, Action::Confirm(Stage::World)),
    (SessionCommand::UPDATE_WORLD, Action::Change(Stage::World)),
    (SessionCommand::REQUEST_CHARACTER, Action::Request(Stage::Character)),
    (SessionCommand::PROPOSE_CHARACTER, Action::Propose(Stage::Character)),
    (SessionCommand::CONFIRM_CHARACTER, Action::Confirm(Stage::Character)),
    (SessionCommand::UPDATE_CHARACTER, Action::Change(Stage::Character)),
    (SessionCommand::CREATE_NETWORK, Action::CreateNetwork),
    (SessionCommand::REQUEST_PLOT, Action::Request(Stage::Plot)),
    (SessionCommand::PROPOSE_PLOT, Action::Propose(Stage::Plot)),
    (SessionCommand::CONFIRM_PLOT, Action::Confirm(Stage::Plot)),
    (SessionCommand::UPDATE_PLOT, Action::Change(Stage::Plot)),
    (SessionCommand::REQUEST_DETAILS, Action::Request(Stage::Details)),
    (SessionCommand::GENERATE_DETAILS, Action::Propose(Stage::Details)),
    (SessionCommand::CONFIRM_DETAILS, Action::Confirm(Stage::Details)),
    (SessionCommand::COMPLETE_STAGE, Action::CompleteStage),
    (SessionCommand::FINISH, Action::Finish),
    (SessionCommand::FAIL, Action::Fail),
    (SessionCommand::CREATE_BRANCH, Action::CreateBranch),
];

impl SessionCommand {
    /// What every command's name begins with.
    pub const PREFIX: &'static str = "Command.Genesis.Session.";

    /// Every command for users and what it does.
    pub fn asked() -> impl Iterator<Item = (&'static str, Action)> {
        ACTIONS.into_iter().filter(|(name, _)| !Self::INTERNAL.contains(name))
    }

    /// What a command of this name does.
    pub fn action_of(name: &str) -> Option<Action> {
        ACTIONS.into_iter().find(|(of, _)| *of == name).map(|(_, action)| action)
    }

    /// The report that an entity was written.
    pub fn propose(entity: Stage, proposal: Propose) -> Self {
        match entity {
            Stage::Concept => Self::ProposeConcept(proposal),
            Stage::Theme => Self::ProposeTheme(proposal),
            Stage::World => Self::ProposeWorld(proposal),
            Stage::Character => Self::ProposeCharacter(proposal),
            Stage::Plot => Self::ProposePlot(proposal),
            Stage::Details => Self::GenerateDetails(proposal),
        }
    }
}
