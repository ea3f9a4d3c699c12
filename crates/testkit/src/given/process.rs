//! Given these events of a process, when this fact comes, then that follows: tests of a process without any I/O.

use towpath_core::causes::with_causes;
use towpath_core::ids::{AggregateKey, CorrelationId, EventId};
use towpath_core::process::{Action, Course, Outgoing};
use towpath_core::{Aggregate, Context, Process, Reaction, Seen};

use super::{Given, History, Then, given, laid_out, survives_as_variant, through_json, written};
use crate::clock::VirtualClock;
use crate::difference::difference;

/// What has happened to the process so far; nothing, for one that has not begun. Continue with [`GivenProcess::when`].
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # use towpath_core::{Aggregate, Command, Context, Correlation, Event, NoCommands, Process, Reaction, Refused, Seen};
/// # #[derive(Default, Serialize, Deserialize)] struct Door;
/// # #[derive(Serialize, Deserialize, Command)] #[command(crate = "towpath_core")]
/// # enum DoorCommand { #[serde(rename = "door.open")] Open }
/// # #[derive(Serialize, Deserialize, Event)] #[event(crate = "towpath_core")]
/// # enum DoorEvent { #[serde(rename = "door.opened")] Opened }
/// # impl Aggregate for Door {
/// #     const KIND: &'static str = "door";
/// #     type Command = DoorCommand; type Event = DoorEvent; type Refusal = Refused;
/// #     fn decide(&self, _: DoorCommand, _: &Context) -> Result<Vec<DoorEvent>, Refused> { Ok(vec![DoorEvent::Opened]) }
/// #     fn evolve(self, _: &DoorEvent) -> Self { self }
/// # }
/// # #[derive(Default, Serialize, Deserialize)] struct Visit;
/// # #[derive(Serialize, Deserialize, Event)] #[event(crate = "towpath_core")]
/// # enum VisitEvent { #[serde(rename = "visit.begun")] Begun }
/// # #[derive(Serialize, Deserialize, Event)] #[event(crate = "towpath_core")]
/// # enum VisitInput { #[serde(rename = "bell.rung")] Rung }
/// # impl Aggregate for Visit {
/// #     const KIND: &'static str = "visit";
/// #     type Command = NoCommands; type Event = VisitEvent; type Refusal = Refused;
/// #     fn decide(&self, command: NoCommands, _: &Context) -> Result<Vec<VisitEvent>, Refused> { match command {} }
/// #     fn evolve(self, _: &VisitEvent) -> Self { self }
/// # }
/// # impl Process for Visit {
/// #     type Input = VisitInput;
/// #     fn correlate(input: &Seen<VisitInput>) -> Correlation { Correlation::Starts(input.aggregate_id().to_owned()) }
/// #     fn react(&self, input: Seen<VisitInput>, _: &Context) -> Reaction<Self> {
/// #         Reaction::of([VisitEvent::Begun]).send::<Door>(input.aggregate_id(), DoorCommand::Open)
/// #     }
/// # }
/// use towpath_testkit::{given_process, seen};
///
/// given_process::<Visit>([])
///     .when(seen("bell", "house-7", VisitInput::Rung))
///     .is_for("house-7")
///     .then(Reaction::of([VisitEvent::Begun]).send::<Door>("house-7", DoorCommand::Open));
/// ```
#[track_caller]
pub fn given_process<P: Process>(events: impl IntoIterator<Item = P::Event>) -> GivenProcess<P> {
    GivenProcess(given::<P>(events))
}

/// A fact of an aggregate, as a process sees it: a fixed id and moment ([`VirtualClock::start`]), which a test may change.
#[track_caller]
pub fn seen<I>(kind: &str, id: &str, event: I) -> Seen<I> {
    Seen {
        event,
        event_id: EventId(uuid::Uuid::from_u128(7)),
        aggregate: Some(AggregateKey::new(kind, id).expect("a kind and an id")),
        occurred_at: VirtualClock::start(),
        correlation_id: Some(CorrelationId::from_stored("flow-7")),
    }
}

/// A process with its past. See [`given_process()`].
#[must_use = "let a fact come with `when`"]
pub struct GivenProcess<P: Process>(Given<P>);

impl<P: Process> GivenProcess<P> {
    /// Sets the moment at which the fact is taken; a fixed one otherwise ([`VirtualClock::start`]).
    pub fn at(self, now: chrono::DateTime<chrono::Utc>) -> Self {
        Self(self.0.at(now))
    }

    /// Checks the state of the process's machine.
    #[track_caller]
    pub fn state_is(self, state: &str) -> Self {
        Self(self.0.state_is(state))
    }

    /// Lets a fact come.
    #[track_caller]
    pub fn when(self, seen: Seen<P::Input>) -> WhenSeen<P> {
        let Given { history, mut context } = self.0;
        context.version = history.version;
        let Seen { event, event_id, aggregate, occurred_at, correlation_id } = seen;
        let event = survives_as_variant("the fact", &event);
        let seen = Seen { event, event_id, aggregate, occurred_at, correlation_id };
        WhenSeen { history, context, seen }
    }
}

/// A process to which a fact has come: say what should follow.
#[must_use = "nothing is decided until it is said what is expected"]
pub struct WhenSeen<P: Process> {
    history: History<P>,
    context: Context,
    seen: Seen<P::Input>,
}

impl<P: Process> WhenSeen<P> {
    /// The fact is for the process with this id.
    #[track_caller]
    pub fn is_for(self, id: &str) -> Self {
        let correlation = P::correlate(&self.seen);
        assert!(correlation.id() == Some(id), "the fact is for another one: {correlation:?}");
        self
    }

    /// Exactly this follows, and the machine allows each of its events.
    #[track_caller]
    pub fn then(self, expected: Reaction<P>) -> Then<P> {
        let (history, found) = self.reaction();
        let (expected, found) = (parts(expected), parts(found));
        let (expected_text, found_text) = (told::<P>(&expected), told::<P>(&found));
        assert!(
            expected_text == found_text,
            "something else follows (- expected, + found):\n{}",
            difference(&expected_text, &found_text)
        );
        let mut history = history;
        for event in &found.0 {
            match history.apply(event) {
                Ok(moves) => history.enter(moves),
                Err(illegal) => panic!("the machine does not allow what follows: {illegal}"),
            }
        }
        history.aggregate = through_json("the state after the fact", history.aggregate);
        Then { history }
    }

    /// The process wants something that its machine forbids: nothing would happen, and the fact would be
    /// a dead letter if its turn does not come within [`WAITS_FOR_TURN`](Process::WAITS_FOR_TURN).
    #[track_caller]
    pub fn refused_by_machine(self) {
        let (mut history, found) = self.reaction();
        let (events, _) = parts(found);
        let illegal = events.iter().any(|event| history.apply(event).is_err());
        assert!(illegal, "the machine allows all of:\n{}", written::<P>(&events));
    }

    /// The process has not begun, and does not begin with the fact, which waits.
    #[track_caller]
    pub fn waits(self) {
        assert_eq!(self.course(), Course::Waits, "what becomes of the fact");
    }

    /// The fact is for no process, or for one only if that has begun, which it has not.
    #[track_caller]
    pub fn is_ignored(self) {
        assert_eq!(self.course(), Course::Ignored, "what becomes of the fact");
    }

    /// The process has ended: the fact is recorded, and nothing follows.
    #[track_caller]
    pub fn is_after_the_end(self) {
        assert_eq!(self.course(), Course::AfterEnd, "what becomes of the fact");
    }

    /// What becomes of the fact.
    fn course(&self) -> Course {
        let has_ended = (self.history.version > 0).then(|| self.history.has_ended());
        Course::of(&P::correlate(&self.seen), has_ended)
    }

    #[track_caller]
    fn reaction(self) -> (History<P>, Reaction<P>) {
        let course = self.course();
        assert!(
            matches!(course, Course::Starts | Course::Reacts),
            "the process does not react: what becomes of the fact is {course:?}"
        );
        let reaction = self.history.aggregate.react(self.seen, &self.context);
        (self.history, reaction)
    }
}

#[track_caller]
fn parts<P: Aggregate>(reaction: Reaction<P>) -> (Vec<P::Event>, Vec<Action>) {
    match reaction.into_parts() {
        Ok(parts) => parts,
        Err(flaw) => panic!("the reaction cannot be: {}", with_causes(&flaw)),
    }
}

/// A reaction as people compare it, and as it will be stored: a line per event, action and field.
#[track_caller]
fn told<P: Aggregate>((events, actions): &(Vec<P::Event>, Vec<Action>)) -> String {
    let command = |Outgoing { aggregate, command_type, payload }: &Outgoing| {
        format!("{aggregate} {command_type} {}", laid_out(payload.as_text()))
    };
    let action = |action: &Action| match action {
        Action::Send(sent) => format!("send {}", command(sent)),
        Action::UndoneBy(undo) => format!("undone by {}", command(undo)),
        Action::SendAt { name, due_at, command: sent } => {
            format!("send as {name} at {} {}", due_at.to_rfc3339(), command(sent))
        }
        Action::CancelTimer { name } => format!("cancel timer {name}"),
        Action::Compensate => "compensate".to_owned(),
        Action::StartTask { of, name, payload } => {
            format!("start task {} {name} {}", of.name(), laid_out(payload.as_text()))
        }
        Action::CancelTask { of, name, reason } => format!("cancel task {} {name} {reason}", of.name()),
    };
    let events = Some(written::<P>(events)).filter(|events| !events.is_empty());
    events.into_iter().chain(actions.iter().map(action)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use serde::{Deserialize, Serialize};
    use towpath_core::machine::Machine;
    use towpath_core::task::TaskType;
    use towpath_core::{Correlation, Event, NoCommands};

    use super::*;

    #[derive(Default, Serialize, Deserialize)]
    struct Errand;

    #[derive(Serialize, Deserialize, Event)]
    #[event(crate = "towpath_core")]
    enum ErrandEvent {
        #[serde(rename = "errand.begun")]
        Begun,
        #[serde(rename = "errand.done")]
        Done,
    }

    #[derive(Serialize, Deserialize, Event)]
    #[event(crate = "towpath_core")]
    enum Heard {
        #[serde(rename = "bell.rung")]
        Rung,
        #[serde(rename = "door.opened")]
        Opened,
        #[serde(rename = "dog.barked")]
        Barked,
        #[serde(rename = "clock.struck")]
        Struck,
    }

    impl Aggregate for Errand {
        const KIND: &'static str = "errand";
        type Command = NoCommands;
        type Event = ErrandEvent;
        type Refusal = std::convert::Infallible;

        fn decide(&self, command: NoCommands, _: &Context) -> Result<Vec<ErrandEvent>, Self::Refusal> {
            match command {}
        }

        fn evolve(self, _: &ErrandEvent) -> Self {
            self
        }

        fn machine() -> Option<Machine> {
            let machine = Machine::named("errand").starts(ErrandEvent::BEGUN, "out").state("out");
            Some(machine.terminal("home").transition("out", ErrandEvent::DONE, "home"))
        }
    }

    fn fetch() -> TaskType {
        TaskType::named("Dog.Fetch")
    }

    impl Process for Errand {
        type Input = Heard;

        fn correlate(input: &Seen<Heard>) -> Correlation {
            match input.event {
                Heard::Rung => Correlation::Starts(input.aggregate_id().to_owned()),
                Heard::Barked => Correlation::Ignored,
                Heard::Opened | Heard::Struck => Correlation::Continues(input.aggregate_id().to_owned()),
            }
        }

        fn react(&self, input: Seen<Heard>, context: &Context) -> Reaction<Self> {
            match input.event {
                Heard::Rung if context.version == 0 => {
                    Reaction::of([ErrandEvent::Begun]).start_task(&fetch(), "stick", "a stick")
                }
                Heard::Opened => Reaction::of([ErrandEvent::Done]),
                Heard::Struck => Reaction::of([ErrandEvent::Begun]),
                Heard::Rung | Heard::Barked => Reaction::nothing(),
            }
        }
    }

    fn heard(event: Heard) -> Seen<Heard> {
        seen("house", "7", event)
    }

    #[test]
    fn a_process_is_tested_by_what_follows() {
        let begun = Reaction::of([ErrandEvent::Begun]).start_task(&fetch(), "stick", "a stick");
        given_process::<Errand>([]).when(heard(Heard::Rung)).is_for("7").then(begun).state_is("out");
        let out = || given_process::<Errand>([ErrandEvent::Begun]);
        out().when(heard(Heard::Rung)).then(Reaction::nothing()).state_is("out");
        out().when(heard(Heard::Opened)).then(Reaction::of([ErrandEvent::Done])).state_is("home");
        out().when(heard(Heard::Struck)).refused_by_machine();
    }

    #[test]
    fn what_becomes_of_a_fact_without_a_reaction_is_told() {
        given_process::<Errand>([]).when(heard(Heard::Opened)).waits();
        given_process::<Errand>([]).when(heard(Heard::Barked)).is_ignored();
        let home = || given_process::<Errand>([ErrandEvent::Begun, ErrandEvent::Done]);
        home().when(heard(Heard::Rung)).is_after_the_end();
        let silent =
            catch_unwind(|| home().when(heard(Heard::Rung)).then(Reaction::nothing()).state_is("home"));
        assert!(silent.is_err(), "after its end it does not react");
    }

    #[test]
    fn something_else_that_follows_is_told() {
        let said = catch_unwind(|| {
            let expected = Reaction::of([ErrandEvent::Begun]).start_task(&fetch(), "ball", "a stick");
            given_process::<Errand>([]).when(heard(Heard::Rung)).then(expected).state_is("out");
        });
        let said = *said.err().unwrap().downcast::<String>().unwrap();
        assert!(
            said.contains("- start task Dog.Fetch ball") && said.contains("+ start task Dog.Fetch stick"),
            "{said}"
        );
    }
}
