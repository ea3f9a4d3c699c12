//! Entities: rows of an application's own tables whose state a machine guards.

use towpath_core::decider::RegistrationFlaw;
use towpath_core::ids::{AggregateKind, StateName};
use towpath_core::machine::{CheckedMachine, Machine};
use towpath_core::messages::Event;
use towpath_core::name::{EventName, NameRule};
use towpath_store::Row;

/// A row with a state: the field with `#[row(state)]`. It changes by [`Tx::change_state`](crate::Tx::change_state) and in no
/// other way, and each change is a fact.
///
/// Beside its state, a row may have the columns `STATE_changed_at`, `STATE_reason` and `STATE_message` (for a state column
/// `status`: `status_changed_at` and so on). Those that are there are written with it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an entity",
    note = "an entity is a `Row` with a kind, events, a machine and an id"
)]
pub trait Entity: Row + 'static {
    /// The kind of aggregate that its facts belong to. Never change it once facts exist.
    const KIND: &'static str;

    /// What may have happened to it.
    type Event: Event;

    /// The machine that guards it. Its states have no deadlines: a row is not what a timer could send a command to.
    fn machine() -> Machine;

    /// Its id in the log.
    fn id(&self) -> String;
}

/// An entity that is registered.
pub struct RegisteredEntity {
    kind: AggregateKind,
    events: Vec<EventName>,
    machine: CheckedMachine,
}

impl RegisteredEntity {
    /// Checks everything that can be checked before the first change: all flaws at once.
    pub(crate) fn of<E: Entity>() -> Result<Self, Vec<RegistrationFlaw>> {
        const { assert!(E::STATE.is_some(), "an entity has a field with #[row(state)]") }
        let (kind, mut flaws) = (E::KIND.to_owned(), Vec::new());
        let mut events = Vec::new();
        for name in E::Event::NAMES {
            match NameRule::ANY.event(name, &mut Vec::new()) {
                Ok(name) => events.push(name),
                Err(source) => flaws.push(RegistrationFlaw::Name { kind: kind.clone(), source }),
            }
        }
        let machine = E::machine().check(E::Event::NAMES);
        for state in machine.iter().flat_map(CheckedMachine::states) {
            if let Err(source) = StateName::new(&state.name) {
                flaws.push(RegistrationFlaw::State { kind: kind.clone(), source });
            }
            if let Some(deadline) = &state.deadline {
                let (state, command) = (state.name.clone(), deadline.sends().to_owned());
                let problem = "which no row of an application's own can take";
                flaws.push(RegistrationFlaw::DeadlineCommand { kind: kind.clone(), state, command, problem });
            }
        }
        match (AggregateKind::new(E::KIND), machine) {
            (Ok(kind), Ok(machine)) if flaws.is_empty() => return Ok(Self { kind, events, machine }),
            (Err(source), _) => flaws.push(RegistrationFlaw::Kind(source)),
            (_, Err(source)) => flaws.push(RegistrationFlaw::Machine { kind, source }),
            _ => {}
        }
        Err(flaws)
    }

    /// Its kind.
    pub fn kind(&self) -> &AggregateKind {
        &self.kind
    }

    /// Its events.
    pub fn events(&self) -> &[EventName] {
        &self.events
    }

    /// The machine that guards it.
    pub fn machine(&self) -> &CheckedMachine {
        &self.machine
    }
}
