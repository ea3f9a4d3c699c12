//! Deciders: registered aggregates, with their types erased.
//!
//! Commands arrive as texts (over HTTP, from the command line, from the command box when a retry is due), so
//! the one path that decides them takes texts. [`TypedDecider`] is that path for one aggregate type;
//! registering it checks its names, its pairings and its machine.

use std::borrow::Cow;
use std::collections::HashMap;
use std::marker::PhantomData;

use crate::aggregate::{Aggregate, Context, Reason, Refusal};
use crate::envelope::EventEnvelope;
use crate::ids::{AggregateKind, InvalidId, StateName};
use crate::machine::{CheckedMachine, Deadline, IllegalTransition, MachineFlaws, Step};
use crate::messages::{Command, Event};
use crate::name::{CommandName, EventName, InvalidName, PairingMismatch};
use crate::payload::{InvalidPayload, Payload};
use crate::ports::store::NewEvent;
use crate::retry::ErrorClass;
use crate::variant::{from_variant, to_variant};

/// Decides commands of one kind of aggregate. Pure.
pub trait Decider: Send + Sync {
    /// The kind.
    fn kind(&self) -> &AggregateKind;

    /// The commands it takes.
    fn commands(&self) -> &[CommandName];

    /// The events it emits.
    fn events(&self) -> &[EventName];

    /// What is odd about its names, and yet no reason to refuse them.
    fn warnings(&self) -> &[InvalidName];

    /// Whether a command is only for the application's own parts.
    fn is_internal(&self, command: &str) -> bool;

    /// Whether the payloads of its commands and events, and its state, are not for everybody who may read the log.
    fn is_confidential(&self) -> bool;

    /// The event that is declared as the result of a command.
    fn result_event(&self, command: &str) -> Option<&EventName>;

    /// The machine that guards it.
    fn machine(&self) -> Option<&CheckedMachine>;

    /// The serialized form of the state that this build writes. A row of another form must be folded anew.
    fn snapshot_version(&self) -> u16;

    /// Decides. By the name of an event that a deadline appends, that event is the decision.
    fn decide(
        &self,
        current: &Current<'_>,
        command: &str,
        payload: &Payload,
        context: &Context,
    ) -> Result<Decision, DecideError>;

    /// Applies events to a state (none is the state before the first event). Those of an older schema version are brought
    /// into the form of today first ([`Event::upcast`]).
    fn fold(&self, snapshot: Option<&Payload>, events: &[StoredEvent<'_>]) -> Result<Payload, DecideError>;

    /// The payload of a stored event in the form of today ([`Event::upcast`]).
    fn in_form_of_today<'p>(&self, event: StoredEvent<'p>) -> Result<Cow<'p, Payload>, InvalidPayload>;

    /// The state of the machine after these events, from a state on. What has happened has happened: an event that
    /// the machine of today would not allow changes nothing.
    fn machine_state_after(&self, from: Option<String>, events: &[&str]) -> Option<String> {
        let machine = self.machine()?;
        events.iter().fold(from, |state, event| match machine.step(state.as_deref(), event) {
            Ok(Step::Moves { to }) => Some(to.to_owned()),
            Ok(Step::Stays) | Err(_) => state,
        })
    }
}

/// What is known of an aggregate when a command is decided.
#[derive(Debug, Clone, Copy, Default)]
pub struct Current<'a> {
    /// The folded state; `None` when the aggregate does not exist yet.
    pub snapshot: Option<&'a Payload>,
    /// The machine's state.
    pub state: Option<&'a str>,
}

/// An event as it was stored, under whichever schema version that was.
#[derive(Debug, Clone, Copy)]
pub struct StoredEvent<'a> {
    /// Its stored name.
    pub name: &'a str,
    /// The shape of its payload.
    pub schema_version: u16,
    /// The fact.
    pub payload: &'a Payload,
}

impl<'a> From<&'a EventEnvelope> for StoredEvent<'a> {
    fn from(event: &'a EventEnvelope) -> Self {
        Self {
            name: event.event_type.as_str(),
            schema_version: event.schema_version,
            payload: &event.payload,
        }
    }
}

impl<'a> From<&'a NewEvent> for StoredEvent<'a> {
    fn from(event: &'a NewEvent) -> Self {
        Self {
            name: event.event_type.as_str(),
            schema_version: event.schema_version,
            payload: &event.payload,
        }
    }
}

/// What a command leads to.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The facts, in order. None is a valid answer.
    pub events: Vec<DecidedEvent>,
    /// The state after them.
    pub snapshot: Payload,
}

/// A fact that was decided, not yet recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct DecidedEvent {
    /// Its stored name.
    pub event_type: EventName,
    /// The shape of its payload.
    pub schema_version: u16,
    /// The fact.
    pub payload: Payload,
    /// The state of the machine it leads to, when it changes it.
    pub moves: Option<Move>,
}

/// A step of the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Move {
    /// From; `None` at the beginning.
    pub from: Option<String>,
    /// To.
    pub to: String,
    /// Why.
    pub reason: Option<Reason>,
}

/// Why a command was not decided.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    /// The aggregate takes no such command.
    #[error("{kind} takes no command {command}")]
    UnknownCommand {
        /// The kind of aggregate.
        kind: AggregateKind,
        /// The name given.
        command: String,
    },
    /// The payload does not fit the command.
    #[error("the payload of {command} is invalid")]
    InvalidPayload {
        /// The command.
        command: String,
        /// What is wrong.
        #[source]
        source: InvalidPayload,
    },
    /// The aggregate said no.
    #[error("{message}")]
    Refused {
        /// Stable code.
        code: &'static str,
        /// Whether trying again could help.
        class: ErrorClass,
        /// Text for people.
        message: String,
    },
    /// The machine said no.
    #[error(transparent)]
    IllegalTransition(#[from] IllegalTransition),
    /// The stored state or a stored event cannot be read as this aggregate.
    #[error("the stored {what} cannot be read")]
    Unreadable {
        /// Which part.
        what: String,
        /// Why.
        #[source]
        source: InvalidPayload,
    },
    /// The aggregate emitted an event under a name it cannot read back.
    #[error("{kind} emitted {event}, which is not one of its events")]
    UnknownEvent {
        /// The kind of aggregate.
        kind: AggregateKind,
        /// The name it was written under.
        event: String,
    },
    /// The aggregate emitted an event that cannot be stored.
    #[error("an event of {kind} cannot be stored")]
    Unwritable {
        /// The kind of aggregate.
        kind: AggregateKind,
        /// Why.
        #[source]
        source: InvalidPayload,
    },
}

impl DecideError {
    /// How a retry decision sees it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::UnknownCommand { .. } | Self::InvalidPayload { .. } => ErrorClass::InvalidPayload,
            Self::Refused { class, .. } => *class,
            Self::IllegalTransition(_) => ErrorClass::Validation,
            Self::UnknownEvent { .. } | Self::Unreadable { .. } | Self::Unwritable { .. } => {
                ErrorClass::Unrecoverable
            }
        }
    }

    /// A stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownCommand { .. } => "unknown-command",
            Self::InvalidPayload { .. } => "invalid-payload",
            Self::Refused { code, .. } => code,
            Self::IllegalTransition(_) => "illegal-transition",
            Self::Unreadable { .. } => "corrupt",
            Self::UnknownEvent { .. } => "unknown-event",
            Self::Unwritable { .. } => "unwritable-event",
        }
    }
}

/// What is wrong with an aggregate that was to be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationFlaw {
    /// The kind is not a valid name.
    #[error("the kind of an aggregate is invalid")]
    Kind(#[source] InvalidId),
    /// A name breaks its rule.
    #[error("aggregate {kind} has a name that breaks its rule")]
    Name {
        /// The kind.
        kind: String,
        /// What is wrong.
        #[source]
        source: InvalidName,
    },
    /// A declared pair of command and result event does not fit.
    #[error("aggregate {kind} pairs a command with the wrong event")]
    Pairing {
        /// The kind.
        kind: String,
        /// What is wrong.
        #[source]
        source: PairingMismatch,
    },
    /// A command gives an event that the aggregate does not have.
    #[error("aggregate {kind} pairs {command} with {event}, but has no such event")]
    UnknownInPairing {
        /// The kind.
        kind: String,
        /// The command.
        command: &'static str,
        /// The event named.
        event: &'static str,
    },
    /// A command does not say which event it gives, and the rule for names wants that.
    #[error(
        "{command} of aggregate {kind} is paired with no event; say which one it gives: #[command(gives = …)]"
    )]
    Unpaired {
        /// The kind.
        kind: String,
        /// The command.
        command: &'static str,
    },
    /// The machine has flaws.
    #[error("the machine of {kind} has flaws")]
    Machine {
        /// The kind.
        kind: String,
        /// All of them.
        #[source]
        source: MachineFlaws,
    },
    /// A state of the machine cannot be stored under its name.
    #[error("the machine of {kind} has a state that cannot be stored")]
    State {
        /// The kind.
        kind: String,
        /// What is wrong with the name.
        #[source]
        source: InvalidId,
    },
    /// The command of a deadline cannot be sent by a timer.
    #[error("the deadline of state {state} of {kind} sends {command}, {problem}")]
    DeadlineCommand {
        /// The kind.
        kind: String,
        /// The state with the deadline.
        state: String,
        /// Its command.
        command: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The event of a deadline cannot be appended by a timer.
    #[error(
        "the deadline of state {state} of {kind} appends {event}, which needs a payload; name a command that decides \
         it, with by_command"
    )]
    DeadlineEvent {
        /// The kind.
        kind: String,
        /// The state with the deadline.
        state: String,
        /// Its event.
        event: String,
    },
    /// A time was given for a state that has no deadline.
    #[error("a time was given for state {state} of {kind}, which has no deadline")]
    NoDeadline {
        /// The kind.
        kind: String,
        /// The state.
        state: String,
    },
    /// Two aggregates claim the same name.
    #[error("{what} {name} is registered twice")]
    Twice {
        /// A kind, a command or an event.
        what: &'static str,
        /// The name.
        name: String,
    },
}

/// The decider of one aggregate type.
pub struct TypedDecider<A> {
    kind: AggregateKind,
    commands: Vec<CommandName>,
    events: Vec<EventName>,
    events_by_name: HashMap<&'static str, EventName>,
    results: HashMap<&'static str, EventName>,
    warnings: Vec<InvalidName>,
    machine: Option<CheckedMachine>,
    aggregate: PhantomData<fn() -> A>,
}

impl<A: Aggregate> TypedDecider<A> {
    /// Checks everything that can be checked before the first command.
    ///
    /// # Errors
    /// All flaws at once, so that they can be mended at once.
    pub fn register() -> Result<Self, Vec<RegistrationFlaw>> {
        let mut flaws = Vec::new();
        let mut note = |flaw| flaws.push(flaw);
        let kind = AggregateKind::new(A::KIND).map_err(RegistrationFlaw::Kind);
        let kind = kind.map_err(&mut note).ok();
        let (command_names, event_names) = (A::Command::NAMES, A::Event::NAMES);
        let mut broken_rule = |source| note(RegistrationFlaw::Name { kind: A::KIND.to_owned(), source });
        let mut warnings = Vec::new();
        let mut commands = Vec::with_capacity(command_names.len());
        for name in command_names {
            commands.extend(A::NAME_RULE.command(name, &mut warnings).map_err(&mut broken_rule));
        }
        let mut events_by_name = HashMap::new();
        for name in event_names {
            let checked = A::NAME_RULE.event(name, &mut warnings).map_err(&mut broken_rule);
            events_by_name.extend(checked.map(|checked| (*name, checked)));
        }
        let events = event_names.iter().filter_map(|name| events_by_name.get(name).cloned()).collect();
        let results = Self::results(&commands, &events_by_name, &mut flaws);
        let machine = match A::machine().map(|machine| machine.check(event_names)).transpose() {
            Ok(machine) => machine,
            Err(source) => {
                flaws.push(RegistrationFlaw::Machine { kind: A::KIND.to_owned(), source });
                None
            }
        };
        for state in machine.iter().flat_map(CheckedMachine::states) {
            if let Err(source) = StateName::new(&state.name) {
                flaws.push(RegistrationFlaw::State { kind: A::KIND.to_owned(), source });
            }
            flaws.extend(
                state
                    .deadline
                    .as_ref()
                    .and_then(|deadline| Self::flaw_of_deadline(&state.name, deadline, command_names)),
            );
        }
        match kind {
            Some(kind) if flaws.is_empty() => {
                let aggregate = PhantomData;
                Ok(Self { kind, commands, events, events_by_name, results, warnings, machine, aggregate })
            }
            _ => Err(flaws),
        }
    }

    /// The result of each command that is paired with one. Of a name that breaks its rule only that is told.
    fn results(
        commands: &[CommandName],
        events_by_name: &HashMap<&'static str, EventName>,
        flaws: &mut Vec<RegistrationFlaw>,
    ) -> HashMap<&'static str, EventName> {
        let mut results = HashMap::new();
        for (command, event) in A::Command::PAIRS {
            if !A::Event::NAMES.contains(event) {
                flaws.push(RegistrationFlaw::UnknownInPairing { kind: A::KIND.to_owned(), command, event });
            }
            let command_name = commands.iter().find(|name| name.as_str() == *command);
            let Some((command_name, event_name)) = command_name.zip(events_by_name.get(event)) else {
                continue;
            };
            if let Err(source) = A::NAME_RULE.check_pair(command_name, event_name) {
                flaws.push(RegistrationFlaw::Pairing { kind: A::KIND.to_owned(), source });
            }
            results.insert(*command, event_name.clone());
        }
        if A::NAME_RULE.wants_pairs() {
            let is_paired = |name: &str| A::Command::PAIRS.iter().any(|(command, _)| *command == name);
            let is_internal = |name: &str| A::Command::INTERNAL.contains(&name);
            let unpaired = A::Command::NAMES.iter().filter(|name| !is_paired(name) && !is_internal(name));
            flaws.extend(
                unpaired.map(|command| RegistrationFlaw::Unpaired { kind: A::KIND.to_owned(), command }),
            );
        }
        results
    }

    /// What keeps a timer from doing what a deadline says. Nobody is there to fill in a payload when it is due.
    fn flaw_of_deadline(
        state: &str,
        deadline: &Deadline,
        command_names: &[&str],
    ) -> Option<RegistrationFlaw> {
        let (kind, state) = (A::KIND.to_owned(), state.to_owned());
        let Some(command) = deadline.command.clone() else {
            let event = deadline.event.clone();
            let readable = from_variant::<A::Event>(&event, &Payload::empty()).is_ok();
            return (!readable).then_some(RegistrationFlaw::DeadlineEvent { kind, state, event });
        };
        let problem = match from_variant::<A::Command>(&command, &Payload::empty()) {
            _ if !command_names.contains(&command.as_str()) => "which it does not take",
            Err(_) => "which needs a payload; name a command without one",
            Ok(_) => return None,
        };
        Some(RegistrationFlaw::DeadlineCommand { kind, state, command, problem })
    }

    /// The event that a deadline appends, if its name is that of one.
    fn event_of_deadline(&self, name: &str) -> Option<A::Event> {
        let mut deadlines =
            self.machine.iter().flat_map(CheckedMachine::states).filter_map(|state| state.deadline.as_ref());
        deadlines.find(|deadline| deadline.command.is_none() && deadline.event == name)?;
        from_variant(name, &Payload::empty()).ok()
    }

    fn read_state(&self, snapshot: Option<&Payload>) -> Result<A, DecideError> {
        match snapshot {
            None => Ok(A::default()),
            Some(payload) => payload.read::<A>(A::KIND).map_err(|source| DecideError::Unreadable {
                what: format!("state of {}", self.kind),
                source,
            }),
        }
    }

    fn unwritable(&self, source: InvalidPayload) -> DecideError {
        DecideError::Unwritable { kind: self.kind.clone(), source }
    }
}

impl<A: Aggregate> Decider for TypedDecider<A> {
    fn kind(&self) -> &AggregateKind {
        &self.kind
    }

    fn commands(&self) -> &[CommandName] {
        &self.commands
    }

    fn events(&self) -> &[EventName] {
        &self.events
    }

    fn warnings(&self) -> &[InvalidName] {
        &self.warnings
    }

    fn is_internal(&self, command: &str) -> bool {
        A::Command::INTERNAL.contains(&command)
    }

    fn is_confidential(&self) -> bool {
        A::CONFIDENTIAL
    }

    fn result_event(&self, command: &str) -> Option<&EventName> {
        self.results.get(command)
    }

    fn machine(&self) -> Option<&CheckedMachine> {
        self.machine.as_ref()
    }

    fn snapshot_version(&self) -> u16 {
        A::SNAPSHOT_VERSION
    }

    fn decide(
        &self,
        current: &Current<'_>,
        command: &str,
        payload: &Payload,
        context: &Context,
    ) -> Result<Decision, DecideError> {
        let mut state = self.read_state(current.snapshot)?;
        let decided = if self.commands.iter().any(|name| name.as_str() == command) {
            let typed_command = from_variant::<A::Command>(command, payload)
                .map_err(|source| DecideError::InvalidPayload { command: command.to_owned(), source })?;
            state.decide(typed_command, context).map_err(|refusal| DecideError::Refused {
                code: refusal.code(),
                class: refusal.class(),
                message: refusal.to_string(),
            })?
        } else if let Some(event) = self.event_of_deadline(command) {
            vec![event]
        } else {
            return Err(DecideError::UnknownCommand { kind: self.kind.clone(), command: command.to_owned() });
        };

        let mut machine_state = current.state.map(str::to_owned);
        let mut events = Vec::with_capacity(decided.len());
        for event in &decided {
            let (name, payload) = to_variant(event).map_err(|source| self.unwritable(source))?;
            let event_type = match self.events_by_name.get(name.as_str()) {
                Some(known) => known.clone(),
                // Serialize and Deserialize of the event disagree about its name; only a hand-written
                // implementation can do that, and the fact could never be read again.
                None => {
                    return Err(DecideError::UnknownEvent { kind: self.kind.clone(), event: name });
                }
            };
            let moves = match &self.machine {
                None => None,
                Some(machine) => match machine.step(machine_state.as_deref(), &name)? {
                    Step::Stays => None,
                    Step::Moves { to } => {
                        let to = to.to_owned();
                        let from = machine_state.replace(to.clone());
                        Some(Move { from, to, reason: A::reason(event) })
                    }
                },
            };
            events.push(DecidedEvent { event_type, schema_version: A::Event::VERSION, payload, moves });
            state = state.evolve(event);
        }
        let snapshot = Payload::from_value(&state).map_err(|source| self.unwritable(source))?;
        Ok(Decision { events, snapshot })
    }

    fn fold(&self, snapshot: Option<&Payload>, events: &[StoredEvent<'_>]) -> Result<Payload, DecideError> {
        let mut state = self.read_state(snapshot)?;
        for StoredEvent { name, schema_version, payload } in events {
            let event = A::Event::from_stored(name, *schema_version, payload)
                .map_err(|source| DecideError::Unreadable { what: format!("event {name}"), source })?;
            state = state.evolve(&event);
        }
        Payload::from_value(&state).map_err(|source| self.unwritable(source))
    }

    fn in_form_of_today<'p>(&self, event: StoredEvent<'p>) -> Result<Cow<'p, Payload>, InvalidPayload> {
        A::Event::in_form_of_today(event.name, event.schema_version, event.payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::name::NameRule;
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Lamp {
        on: bool,
    }

    #[derive(Serialize, Deserialize, Command)]
    #[command(crate = "crate")]
    enum LampCommand {
        #[serde(rename = "lamp.light")]
        #[command(gives = LampEvent::LIT)]
        Light,
    }

    #[derive(Serialize, Deserialize, Event)]
    #[event(crate = "crate")]
    enum LampEvent {
        #[serde(rename = "lamp.lit")]
        Lit,
    }

    impl Aggregate for Lamp {
        const KIND: &'static str = "lamp";
        type Command = LampCommand;
        type Event = LampEvent;
        type Refusal = std::convert::Infallible;

        fn decide(&self, _: LampCommand, _: &Context) -> Result<Vec<LampEvent>, Self::Refusal> {
            Ok(if self.on { vec![] } else { vec![LampEvent::Lit] })
        }

        fn evolve(self, _: &LampEvent) -> Self {
            Lamp { on: true }
        }

        fn machine() -> Option<Machine> {
            Some(Machine::named("lamp").starts("lamp.lit", "on").terminal("on"))
        }
    }

    /// An aggregate like the lamp, with one thing changed.
    macro_rules! faulty_lamp {
        ($name:ident, $event_name:literal, $machine:expr, $gives:expr) => {
            #[derive(Debug, Default, Serialize, Deserialize)]
            struct $name;
            const _: () = {
                #[derive(Serialize, Deserialize, Command)]
                #[command(crate = "crate")]
                pub(super) enum Ask {
                    #[serde(rename = "lamp.light")]
                    #[command(gives = $gives)]
                    Light,
                }
                #[derive(Serialize, Deserialize, Event)]
                #[event(crate = "crate")]
                pub(super) enum Happened {
                    #[serde(rename = $event_name)]
                    It,
                }
                impl Aggregate for $name {
                    const KIND: &'static str = "faulty";
                    const NAME_RULE: NameRule = NameRule::TENSED.with_verbs(&[("light", "dimmed")]);
                    type Command = Ask;
                    type Event = Happened;
                    type Refusal = std::convert::Infallible;
                    fn decide(&self, _: Ask, _: &Context) -> Result<Vec<Happened>, Self::Refusal> {
                        Ok(vec![Happened::It])
                    }
                    fn evolve(self, _: &Happened) -> Self {
                        self
                    }
                    fn machine() -> Option<Machine> {
                        $machine
                    }
                }
            };
        };
    }

    faulty_lamp!(Unrenamed, "It", None, Happened::IT);
    faulty_lamp!(Mismatched, "lamp.blown", None, Happened::IT);
    faulty_lamp!(Misspelt, "lamp.dimmed", None, LampEvent::LIT);
    faulty_lamp!(
        DeadEnd,
        "lamp.dimmed",
        Some(Machine::named("lamp").starts("lamp.dimmed", "dim").state("dim")),
        Happened::IT
    );

    faulty_lamp!(UnknownDeadline, "lamp.dimmed", Some(waiting_lamp("lamp.break")), Happened::IT);
    faulty_lamp!(KnownDeadline, "lamp.dimmed", Some(waiting_lamp("lamp.light")), Happened::IT);

    /// A lamp that begins to wait and is then dimmed again, by a command.
    fn waiting_lamp(command: &str) -> Machine {
        let deadline = crate::machine::Deadline::after(std::time::Duration::from_secs(1), "lamp.dimmed");
        Machine::named("lamp")
            .starts("lamp.dimmed", "dim")
            .waits("dim", deadline.by_command(command), "the end")
            .terminal("out")
            .transition("dim", "lamp.dimmed", "out")
    }

    #[test]
    fn a_deadline_sends_a_command_that_the_aggregate_takes() {
        assert!(matches!(flaws::<UnknownDeadline>().as_slice(), [RegistrationFlaw::DeadlineCommand { .. }]));
        assert!(TypedDecider::<KnownDeadline>::register().is_ok());
    }

    faulty_lamp!(
        AllWrong,
        "It",
        Some(Machine::named("lamp").starts("It", "dim").state("dim")),
        LampEvent::LIT
    );

    /// Its names say which command gives which event; only one of them declares it.
    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Bell;

    #[derive(Serialize, Deserialize, Command)]
    #[command(crate = "crate")]
    enum BellCommand {
        #[serde(rename = "Command.House.Bell.Ring")]
        #[command(gives = BellEvent::RUNG)]
        Ring,
        #[serde(rename = "Command.House.Bell.Repair")]
        Repair,
        #[serde(rename = "Command.House.Bell.Check")]
        #[command(internal)]
        Check,
    }

    #[derive(Serialize, Deserialize, Event)]
    #[event(crate = "crate")]
    enum BellEvent {
        #[serde(rename = "House.Bell.Rung")]
        Rung,
        #[serde(rename = "House.Bell.Repaired")]
        Repaired,
    }

    impl Aggregate for Bell {
        const KIND: &'static str = "bell";
        const NAME_RULE: NameRule = NameRule::DOTTED;
        type Command = BellCommand;
        type Event = BellEvent;
        type Refusal = std::convert::Infallible;

        fn decide(&self, _: BellCommand, _: &Context) -> Result<Vec<BellEvent>, Self::Refusal> {
            Ok(vec![BellEvent::Rung, BellEvent::Repaired])
        }

        fn evolve(self, _: &BellEvent) -> Self {
            self
        }
    }

    #[test]
    fn a_command_that_is_not_paired_does_not_register_where_the_rule_wants_pairs() {
        let flaws = flaws::<Bell>();
        assert!(
            matches!(
                flaws.as_slice(),
                [RegistrationFlaw::Unpaired { command: "Command.House.Bell.Repair", .. }]
            ),
            "{flaws:?}"
        );
    }

    fn flaws<A: Aggregate>() -> Vec<RegistrationFlaw> {
        TypedDecider::<A>::register().err().unwrap_or_default()
    }

    #[test]
    fn all_flaws_of_an_aggregate_are_told_at_once() {
        let flaws = flaws::<AllWrong>();
        let has = |is: fn(&RegistrationFlaw) -> bool| flaws.iter().filter(|flaw| is(flaw)).count();
        assert_eq!(has(|flaw| matches!(flaw, RegistrationFlaw::Name { .. })), 1, "{flaws:?}");
        assert_eq!(has(|flaw| matches!(flaw, RegistrationFlaw::UnknownInPairing { .. })), 1, "{flaws:?}");
        assert_eq!(has(|flaw| matches!(flaw, RegistrationFlaw::Machine { .. })), 1, "{flaws:?}");
        assert_eq!(flaws.len(), 3, "{flaws:?}");
    }

    faulty_lamp!(EventOfDeadline, "lamp.dimmed", Some(lamp_without_a_command("lamp.dimmed")), Happened::IT);

    fn lamp_without_a_command(event: &str) -> Machine {
        let deadline = Deadline::after(std::time::Duration::from_secs(1), event);
        Machine::named("lamp")
            .starts(event, "dim")
            .waits("dim", deadline, "the end")
            .terminal("out")
            .transition("dim", event, "out")
    }

    #[test]
    fn a_deadline_without_a_command_is_decided_by_its_event() {
        let decider =
            TypedDecider::<EventOfDeadline>::register().map_err(|flaws| format!("{flaws:?}")).unwrap();
        let current = Current { snapshot: None, state: Some("dim") };
        let decision = decider.decide(&current, "lamp.dimmed", &Payload::empty(), &context()).unwrap();
        assert_eq!(decision.events[0].moves.as_ref().unwrap().to, "out");
        let unknown = decider.decide(&current, "lamp.lit", &Payload::empty(), &context()).unwrap_err();
        assert_eq!(unknown.code(), "unknown-command");
    }

    fn stored<'a>(name: &'a str, schema_version: u16, payload: &'a Payload) -> StoredEvent<'a> {
        StoredEvent { name, schema_version, payload }
    }

    fn context() -> Context {
        Context { now: chrono::DateTime::UNIX_EPOCH, version: 0, actor_id: None, tenant_id: None }
    }

    #[test]
    fn a_name_a_pairing_or_a_machine_that_breaks_its_rule_does_not_register() {
        assert!(matches!(flaws::<Unrenamed>().as_slice(), [RegistrationFlaw::Name { .. }]));
        assert!(matches!(flaws::<Mismatched>().as_slice(), [RegistrationFlaw::Pairing { .. }]));
        assert!(matches!(flaws::<Misspelt>().as_slice(), [RegistrationFlaw::UnknownInPairing { .. }]));
        assert!(matches!(flaws::<DeadEnd>().as_slice(), [RegistrationFlaw::Machine { .. }]));
        assert!(TypedDecider::<Lamp>::register().is_ok());
    }

    #[test]
    fn deciding_and_folding_agree() {
        let decider = TypedDecider::<Lamp>::register().map_err(|flaws| format!("{flaws:?}")).unwrap();
        let decision =
            decider.decide(&Current::default(), "lamp.light", &Payload::empty(), &context()).unwrap();
        assert_eq!(decision.events[0].moves.as_ref().unwrap().to, "on");
        let events: Vec<_> = decision
            .events
            .iter()
            .map(|event| stored(event.event_type.as_str(), 1, &event.payload))
            .collect();
        assert_eq!(decider.fold(None, &events).unwrap(), decision.snapshot);
        assert_eq!(decider.result_event("lamp.light").unwrap().as_str(), "lamp.lit");
    }

    #[test]
    fn a_stored_state_of_another_shape_is_told_and_not_guessed() {
        let decider = TypedDecider::<Lamp>::register().map_err(|flaws| format!("{flaws:?}")).unwrap();
        let strange = Payload::from_text(r#"{"colour":"red"}"#).unwrap();
        let current = Current { snapshot: Some(&strange), state: Some("on") };
        let error = decider.decide(&current, "lamp.light", &Payload::empty(), &context()).unwrap_err();
        assert_eq!((error.code(), error.class()), ("corrupt", ErrorClass::Unrecoverable));
    }

    /// A meter of which the first facts told whole units.
    #[derive(Debug, PartialEq, Default, Serialize, Deserialize)]
    struct Meter {
        tenths: u32,
    }

    #[derive(Serialize, Deserialize, Command)]
    #[command(crate = "crate")]
    enum MeterCommand {
        #[serde(rename = "meter.mark-empty")]
        MarkEmpty,
    }

    #[derive(Serialize, Deserialize, Event)]
    #[event(crate = "crate", version = 2, upcast = in_tenths)]
    enum MeterEvent {
        #[serde(rename = "meter.read")]
        Read { tenths: u32 },
        #[serde(rename = "meter.empty")]
        Empty,
    }

    fn in_tenths(name: &str, _: u16, payload: Payload) -> Result<Payload, InvalidPayload> {
        #[derive(Deserialize)]
        struct Units {
            units: u32,
        }
        if name != MeterEvent::READ {
            return Ok(payload);
        }
        let Units { units } = payload.read(name)?;
        Payload::from_value(&serde_json::json!({ "tenths": units * 10 }))
    }

    impl Aggregate for Meter {
        const KIND: &'static str = "meter";
        type Command = MeterCommand;
        type Event = MeterEvent;
        type Refusal = std::convert::Infallible;

        fn decide(&self, _: MeterCommand, _: &Context) -> Result<Vec<MeterEvent>, Self::Refusal> {
            Ok(vec![MeterEvent::Empty])
        }

        fn evolve(self, event: &MeterEvent) -> Self {
            match event {
                MeterEvent::Read { tenths } => Meter { tenths: self.tenths + tenths },
                MeterEvent::Empty => Meter { tenths: 0 },
            }
        }
    }

    #[test]
    fn an_event_of_an_older_form_is_upcast_before_it_is_folded() {
        let decider = TypedDecider::<Meter>::register().map_err(|flaws| format!("{flaws:?}")).unwrap();
        let (old, new) = (r#"{"units":3}"#, r#"{"tenths":5}"#);
        let (old, new) = (Payload::from_text(old).unwrap(), Payload::from_text(new).unwrap());
        let folded = decider.fold(None, &[stored("meter.read", 1, &old), stored("meter.read", 2, &new)]);
        assert_eq!(folded.unwrap().read::<Meter>("meter").unwrap(), Meter { tenths: 35 });
        let unreadable = decider.fold(None, &[stored("meter.read", 1, &new)]).unwrap_err();
        assert_eq!(unreadable.code(), "corrupt");
    }

    #[test]
    fn new_events_carry_the_version_of_their_form_and_odd_names_are_warned_about() {
        let decider = TypedDecider::<Meter>::register().map_err(|flaws| format!("{flaws:?}")).unwrap();
        let decision =
            decider.decide(&Current::default(), "meter.mark-empty", &Payload::empty(), &context()).unwrap();
        assert_eq!(decision.events[0].schema_version, 2);
        assert!(
            matches!(decider.warnings(), [InvalidName::NotPastTense { given, .. }] if given == "meter.empty"),
            "{:?}",
            decider.warnings()
        );
    }
}
