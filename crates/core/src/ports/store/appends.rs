//! Facts on their way into the store, with everything that commits together with them.

use serde::Serialize;

use super::{AggregateRow, NewTimer, StoreResult};
use crate::envelope::ChangeContext;
use crate::ids::{AggregateKey, AggregateKind, ChannelName, EventId, Version};
use crate::name::EventName;
use crate::payload::Payload;

/// On which version a write is based.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Expected {
    /// The aggregate must not exist yet.
    New,
    /// It must be at exactly this version (at least 1).
    Exactly(Version),
    /// Whatever it is at: for applications whose own conditional update has decided already.
    Any,
}

impl Expected {
    /// What a loaded version expects: 0 is "must not exist yet".
    pub fn after(version: Version) -> Self {
        if version == 0 { Self::New } else { Self::Exactly(version) }
    }
}

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::New => f.write_str("0 (new)"),
            Self::Exactly(version) => write!(f, "{version}"),
            Self::Any => f.write_str("any"),
        }
    }
}

/// Facts to append to one aggregate, with everything that commits together with them.
#[derive(Debug, Clone, PartialEq)]
pub struct Append {
    /// Which aggregate.
    pub aggregate: AggregateKey,
    /// On which version the facts are based.
    pub expected: Expected,
    /// The facts, in order. At least one.
    pub events: Vec<NewEvent>,
    /// The folded state after them. `None` for an application that keeps the state in tables of its own: a folded state
    /// that is there is then out of date, and is removed.
    pub snapshot: Option<Snapshot>,
    /// Changes of the machine's state, in order.
    pub state_changes: Vec<StateChange>,
    /// What it does to the deadline of the state the aggregate waits in.
    pub deadline: DeadlineChange,
    /// Circumstances of the change.
    pub context: ChangeContext,
}

/// What an append does to the deadline of the state its aggregate waits in. It commits with the append.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeadlineChange {
    /// The state that is left has a deadline: its timer is cancelled, unless it has begun.
    pub leaves: bool,
    /// The state that is entered has one: this timer is scheduled. See [`NewTimer::of_deadline`].
    pub enters: Option<NewTimer>,
}

/// A fact on its way into the store.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// UUIDv7.
    pub event_id: EventId,
    /// Its stored name.
    pub event_type: EventName,
    /// The shape of its payload.
    pub schema_version: u16,
    /// The fact.
    pub payload: Payload,
    /// The channels that get it: one outbox row each.
    pub channels: Routing,
}

/// Which channels get a fact.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Routing {
    /// Those whose patterns fit its type, as the application has declared them.
    #[default]
    ByType,
    /// These, whatever their patterns say.
    To(Vec<ChannelName>),
    /// None: it stands in the log, and is never published.
    Nowhere,
}

impl Routing {
    /// The channels that are named. None as long as it is not known which [`ByType`](Self::ByType) means.
    pub fn channels(&self) -> &[ChannelName] {
        match self {
            Self::To(channels) => channels,
            Self::ByType | Self::Nowhere => &[],
        }
    }
}

/// What an application has declared about facts that are appended without a command. The store asks it, so that such facts
/// are checked, routed and folded as those of commands are.
pub trait AppendRules: Send + Sync {
    /// Whether aggregates of this kind have rules: then the store locks the row and shows it.
    fn concern(&self, kind: &AggregateKind) -> bool;

    /// The append as it is to be written on what is there now: with its channels, and, if the kind has rules, with the
    /// changes of state, the deadline and the folded state that follow.
    ///
    /// # Errors
    /// `ForbiddenEvent`: an event that the aggregate does not have, whose payload it cannot read, that its machine does not
    /// allow, or that a channel cannot carry.
    fn complete(&self, append: &Append, current: Option<&AggregateRow>) -> StoreResult<Append>;
}

/// The folded state of an aggregate.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The state as JSON.
    pub data: Payload,
    /// Which serialized form it has.
    pub version: u16,
}

/// One step of an aggregate's state machine.
#[derive(Debug, Clone, PartialEq)]
pub struct StateChange {
    /// `None` when the aggregate begins.
    pub from: Option<String>,
    /// The state entered.
    pub to: String,
    /// Stable code.
    pub reason: Option<String>,
    /// Text for people.
    pub message: Option<String>,
    /// The fact that did it: an index into [`Append::events`].
    pub event_index: usize,
}

/// What an append led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The version of the aggregate after the last event.
    pub version: Version,
}
