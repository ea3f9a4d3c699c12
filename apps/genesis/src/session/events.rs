//! What may have happened in a session, by the names of G12.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use towpath::Event;

use crate::draft::{Brief, Confirmed, Draft, Relation};
use crate::stage::Stage;

/// A fact about a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
#[allow(clippy::large_enum_variant, reason = "a few of them live at a time, on their way to and from JSON")]
#[event(schemas)]
pub enum SessionEvent {
    #[serde(rename = "Genesis.Session.Started")]
    Started(Started),
    #[serde(rename = "Genesis.Session.SeedRequested")]
    SeedRequested(EntityRequested),
    #[serde(rename = "Genesis.Session.ConceptProposed")]
    ConceptProposed(EntityProposed),
    #[serde(rename = "Genesis.Session.ConceptConfirmed")]
    ConceptConfirmed(EntityConfirmed),
    #[serde(rename = "Genesis.Session.StageCompleted")]
    StageCompleted(StageCompleted),
    #[serde(rename = "Genesis.Session.Theme.Requested")]
    ThemeRequested(EntityRequested),
    #[serde(rename = "Genesis.Session.Theme.Proposed")]
    ThemeProposed(EntityProposed),
    #[serde(rename = "Genesis.Session.Theme.Confirmed")]
    ThemeConfirmed(EntityConfirmed),
    #[serde(rename = "Genesis.Session.Theme.Revised")]
    ThemeRevised(EntityChanged),
    #[serde(rename = "Genesis.Session.World.Requested")]
    WorldRequested(EntityRequested),
    #[serde(rename = "Genesis.Session.World.Proposed")]
    WorldProposed(EntityProposed),
    #[serde(rename = "Genesis.Session.World.Confirmed")]
    WorldConfirmed(EntityConfirmed),
    #[serde(rename = "Genesis.Session.World.Updated")]
    WorldUpdated(EntityChanged),
    #[serde(rename = "Genesis.Session.Character.Requested")]
    CharacterRequested(EntityRequested),
    #[serde(rename = "Genesis.Session.Character.Proposed")]
    CharacterProposed(EntityProposed),
    #[serde(rename = "Genesis.Session.Character.Confirmed")]
    CharacterConfirmed(EntityConfirmed),
    #[serde(rename = "Genesis.Session.Character.Updated")]
    CharacterUpdated(EntityChanged),
    #[serde(rename = "Genesis.Session.CharacterNetwork.Created")]
    CharacterNetworkCreated(NetworkCreated),
    #[serde(rename = "Genesis.Session.Plot.Requested")]
    PlotRequested(EntityRequested),
    #[serde(rename = "Genesis.Session.Plot.Proposed")]
    PlotProposed(EntityProposed),
    #[serde(rename = "Genesis.Session.Plot.Confirmed")]
    PlotConfirmed(EntityConfirmed),
    #[serde(rename = "Genesis.Session.Plot.Updated")]
    PlotUpdated(EntityChanged),
    #[serde(rename = "Genesis.Session.Details.Requested")]
    DetailsRequested(EntityRequested),
    #[serde(rename = "Genesis.Session.Details.Generated")]
    DetailsGenerated(EntityProposed),
    #[serde(rename = "Genesis.Session.Details.Confirmed")]
    DetailsConfirmed(EntityConfirmed),
    #[serde(rename = "Genesis.Session.Finished")]
    Finished(Finished),
    #[serde(rename = "Genesis.Session.Failed")]
    Failed(Failed),
    #[serde(rename = "Genesis.Session.BranchCreated")]
    BranchCreated(BranchCreated),
}

/// `Genesis.Session.Started`
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Started {
    /// Whose session it is.
    pub user_id: String,
    /// The novel that it is about, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub novel_id: Option<String>,
    /// What it begins with.
    pub initial_input: String,
    /// What the user likes.
    #[serde(default)]
    pub preferences: Map<String, Value>,
    /// What it is a branch of, and what it has from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch_of: Option<BranchOf>,
    /// What is confirmed from the start: of a branch.
    #[serde(default, skip_serializing_if = "Confirmed::is_empty")]
    pub confirmed: Confirmed,
    /// Who is what to whom, of a branch behind that stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Vec<Relation>>,
}

/// Where a branch begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BranchOf {
    /// The session that it was made of.
    pub session_id: String,
    /// Which version of it.
    pub version: u64,
    /// In which stage.
    pub stage: Stage,
}

/// `Genesis.Session.SeedRequested`, `Genesis.Session.<Entity>.Requested`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EntityRequested {
    /// The request: the version of the session that it made.
    pub request: u64,
    /// What the writer gets.
    pub brief: Brief,
}

/// `Genesis.Session.ConceptProposed`, `Genesis.Session.<Entity>.Proposed`, `Genesis.Session.Details.Generated`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EntityProposed {
    /// What is proposed.
    pub entity: Stage,
    /// Which request it answers.
    pub request: u64,
    /// The proposal.
    pub draft: Draft,
}

/// `Genesis.Session.ConceptConfirmed`, `Genesis.Session.<Entity>.Confirmed`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EntityConfirmed {
    /// What is confirmed.
    pub entity: Stage,
    /// The request whose answer it is.
    pub request: u64,
    /// What holds from now on.
    pub draft: Draft,
}

/// `Genesis.Session.Theme.Revised`, `Genesis.Session.<Entity>.Updated`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EntityChanged {
    /// What is changed.
    pub entity: Stage,
    /// What holds from now on.
    pub draft: Draft,
}

/// `Genesis.Session.CharacterNetwork.Created`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkCreated {
    /// Who is what to whom.
    pub relations: Vec<Relation>,
}

/// `Genesis.Session.StageCompleted`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageCompleted {
    /// Which one.
    pub stage: Stage,
    /// Which one begins; none behind the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Stage>,
}

/// `Genesis.Session.Finished`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Finished {}

/// `Genesis.Session.Failed`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failed {
    /// A code.
    pub reason: String,
    /// A text for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `Genesis.Session.BranchCreated`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BranchCreated {
    /// The session that the branch is.
    pub session_id: String,
    /// The stage that it begins in.
    pub stage: Stage,
    /// What it begins with.
    pub begins_with: Started,
}

impl SessionEvent {
    /// An entity is asked for.
    pub fn requested(requested: EntityRequested) -> Self {
        match requested.brief.entity {
            Stage::Concept => Self::SeedRequested(requested),
            Stage::Theme => Self::ThemeRequested(requested),
            Stage::World => Self::WorldRequested(requested),
            Stage::Character => Self::CharacterRequested(requested),
            Stage::Plot => Self::PlotRequested(requested),
            Stage::Details => Self::DetailsRequested(requested),
        }
    }

    /// An entity is proposed.
    pub fn proposed(proposed: EntityProposed) -> Self {
        match proposed.entity {
            Stage::Concept => Self::ConceptProposed(proposed),
            Stage::Theme => Self::ThemeProposed(proposed),
            Stage::World => Self::WorldProposed(proposed),
            Stage::Character => Self::CharacterProposed(proposed),
            Stage::Plot => Self::PlotProposed(proposed),
            Stage::Details => Self::DetailsGenerated(proposed),
        }
    }

    /// An entity is confirmed.
    pub fn confirmed(confirmed: EntityConfirmed) -> Self {
        match confirmed.entity {
            Stage::Concept => Self::ConceptConfirmed(confirmed),
            Stage::Theme => Self::ThemeConfirmed(confirmed),
            Stage::World => Self::WorldConfirmed(confirmed),
            Stage::Character => Self::CharacterConfirmed(confirmed),
            Stage::Plot => Self::PlotConfirmed(confirmed),
            Stage::Details => Self::DetailsConfirmed(confirmed),
        }
    }

    /// The names of the facts that only the stage itself has: asked for, proposed, confirmed.
    pub(super) fn names_of(stage: Stage) -> [&'static str; 3] {
        match stage {
            Stage::Concept => [Self::SEED_REQUESTED, Self::CONCEPT_PROPOSED, Self::CONCEPT_CONFIRMED],
            Stage::Theme => [Self::THEME_REQUESTED, Self::THEME_PROPOSED, Self::THEME_CONFIRMED],
            Stage::World => [Self::WORLD_REQUESTED, Self::WORLD_PROPOSED, Self::WORLD_CONFIRMED],
            Stage::Character => {
                [Self::CHARACTER_REQUESTED, Self::CHARACTER_PROPOSED, Self::CHARACTER_CONFIRMED]
            }
            Stage::Plot => [Self::PLOT_REQUESTED, Self::PLOT_PROPOSED, Self::PLOT_CONFIRMED],
            Stage::Details => [Self::DETAILS_REQUESTED, Self::DETAILS_GENERATED, Self::DETAILS_CONFIRMED],
        }
    }
}
