//! Aggregates: the things whose changes become facts.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ids::{ActorId, TenantId, Version};
use crate::machine::Machine;
use crate::messages::{Command, Event};
use crate::name::NameRule;
use crate::retry::ErrorClass;

/// A thing with an identity, a version and rules about what may happen to it.
///
/// The value is the folded state. It is stored as one row and loaded as one row, however many events stand
/// behind it. Commands and events are enums whose variants carry their stored name:
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use towpath_core::{Aggregate, Command, Context, Event, Refused};
///
/// #[derive(Default, Serialize, Deserialize)]
/// struct Door { open: bool }
///
/// #[derive(Serialize, Deserialize, Command)]
/// #[command(crate = "towpath_core")]
/// enum DoorCommand { #[serde(rename = "door.open")] Open }
///
/// #[derive(Serialize, Deserialize, Event)]
/// #[event(crate = "towpath_core")]
/// enum DoorEvent { #[serde(rename = "door.opened")] Opened }
///
/// impl Aggregate for Door {
///     const KIND: &'static str = "door";
///     type Command = DoorCommand;
///     type Event = DoorEvent;
///     type Refusal = Refused;
///     fn decide(&self, _: DoorCommand, _: &Context) -> Result<Vec<DoorEvent>, Refused> {
///         if self.open { return Err(Refused::new("already-open", "the door is open already")); }
///         Ok(vec![DoorEvent::Opened])
///     }
///     fn evolve(self, _: &DoorEvent) -> Self { Door { open: true } }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an aggregate",
    label = "this type has no `impl Aggregate`",
    note = "an aggregate is a `Default + Serialize + DeserializeOwned` value with `decide` and `evolve`; see the first example"
)]
pub trait Aggregate: Default + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The stored name of this kind of aggregate. Never change it once facts exist.
    const KIND: &'static str;

    /// Raise it when the serialized form of the state changes: rows of an older form are then folded anew from
    /// their events instead of being misread.
    const SNAPSHOT_VERSION: u16 = 1;

    /// Whether its commands, events and state are not for everybody who may read the log: a server shows their payloads
    /// only to callers that may also change something.
    const CONFIDENTIAL: bool = false;

    /// What its names must be. By default a name that seems out of its tense is a warning; a stricter rule refuses it.
    const NAME_RULE: NameRule = NameRule::ANY;

    /// What may be asked of it.
    type Command: Command;

    /// What may have happened to it.
    type Event: Event;

    /// Why it says no.
    type Refusal: Refusal;

    /// Decides what a command leads to. Pure: the same state, command and context give the same answer.
    /// No events is a valid answer: the command is completed and nothing changed.
    fn decide(&self, command: Self::Command, context: &Context) -> Result<Vec<Self::Event>, Self::Refusal>;

    /// Applies a fact. It cannot fail: what has happened has happened.
    fn evolve(self, event: &Self::Event) -> Self;

    /// The state machine that guards this aggregate, if it has one.
    fn machine() -> Option<Machine> {
        None
    }

    /// Why a fact changed the state: a stable code and a text for people, kept with the state.
    fn reason(_event: &Self::Event) -> Option<Reason> {
        None
    }
}

/// An aggregate's "no". It is an answer, not a fault: nothing was changed and nothing is broken.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the refusal of an aggregate",
    note = "derive `thiserror::Error` and implement `Refusal::code` with a stable code such as \"already-shipped\", or use `Refused`"
)]
pub trait Refusal: std::error::Error + Send + Sync + 'static {
    /// A stable code that programs can compare. The text is for people.
    fn code(&self) -> &'static str;

    /// Whether sending the command again could ever help. Refusals are final unless they say otherwise.
    fn class(&self) -> ErrorClass {
        ErrorClass::Validation
    }
}

/// A ready refusal, for aggregates that need no type of their own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    code: &'static str,
    message: String,
}

impl Refused {
    /// A stable code that programs can compare, and a text for people.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl Refusal for Refused {
    fn code(&self) -> &'static str {
        self.code
    }
}

/// For aggregates that never refuse.
impl Refusal for std::convert::Infallible {
    fn code(&self) -> &'static str {
        match *self {}
    }
}

/// The circumstances under which a command is decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// The moment of the decision. The only clock a decision may look at.
    pub now: DateTime<Utc>,
    /// The version of the aggregate the decision is based on; 0 if it does not exist yet.
    pub version: Version,
    /// Who asks.
    pub actor_id: Option<ActorId>,
    /// Whose data it is.
    pub tenant_id: Option<TenantId>,
}

/// Why a state changed: S1's `*_reason` and `*_message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// A stable code: programs may depend on it.
    pub code: String,
    /// A text for people: nothing depends on it.
    pub message: Option<String>,
}
