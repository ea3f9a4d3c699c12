//! The six stages of a session. Each brings forth one entity of the same name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A stage, and what it brings forth.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "their names say it")]
pub enum Stage {
    /// Stage 0: the seed is asked for, and becomes a concept.
    #[default]
    Concept,
    Theme,
    World,
    Character,
    Plot,
    /// Stage 5.
    Details,
}

impl Stage {
    /// All of them, in their order.
    pub const ALL: [Self; 6] =
        [Self::Concept, Self::Theme, Self::World, Self::Character, Self::Plot, Self::Details];

    /// As it is stored and sent: the state of the session, and the name of the entity.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Concept => "concept",
            Self::Theme => "theme",
            Self::World => "world",
            Self::Character => "character",
            Self::Plot => "plot",
            Self::Details => "details",
        }
    }

    /// The stage of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == name)
    }

    /// 0 to 5.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The stage of this number.
    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The one behind it; none behind the last.
    pub fn next(self) -> Option<Self> {
        Self::numbered(self.number() + 1)
    }

    /// Those before it.
    pub fn before(self) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().take_while(move |stage| *stage < self)
    }
}
