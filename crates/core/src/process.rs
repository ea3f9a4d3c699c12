//! Processes: aggregates that react to facts of others, over time.
//!
//! A process has a kind, events, a state and a machine as any aggregate has. Besides, it names the facts that it takes, says
//! which process each is for, and answers it with events of its own and with actions. Nothing here does anything: what a
//! reaction asks for is done where the fact is taken, in one transaction with the events and the mark that it was taken.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::aggregate::{Aggregate, Context};
use crate::ids::{AggregateKey, CorrelationId, EventId, InvalidId, TaskKey};
use crate::messages::{Command, Event};
use crate::name::CommandName;
use crate::payload::{InvalidPayload, Payload};
use crate::ports::store::NewTask;
use crate::task::{TaskSaid, TaskType};
use crate::variant::to_variant;

/// An aggregate that reacts to facts of others.
///
/// Its own events are decided by [`react`](Self::react); commands it may have besides, or [`NoCommands`].
pub trait Process: Aggregate {
    /// The facts it takes: an enum of its own, which may name events of several kinds of aggregates, facts of tasks
    /// ([`TaskSaid`](crate::task::TaskSaid)), and its own events, such as the one that a state's deadline appends.
    type Input: Event;

    /// How long a fact waits that comes before the one that starts its process. After that it is a dead letter. It is looked at
    /// after pauses that grow to a tenth of this.
    const WAITS_FOR_START: Duration = Duration::from_secs(3600);

    /// How long a fact waits whose events the machine does not allow: it may be a moment too early, for facts of several come in
    /// no order. After that it is a dead letter.
    const WAITS_FOR_TURN: Duration = Duration::from_secs(10);

    /// Which process a fact is for. Pure.
    fn correlate(input: &Seen<Self::Input>) -> Correlation;

    /// What follows from a fact. Pure: the same state, fact and context give the same answer.
    fn react(&self, input: Seen<Self::Input>, context: &Context) -> Reaction<Self>;
}

/// A fact, with what a process may know of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen<I> {
    /// What happened.
    pub event: I,
    /// The fact's own id.
    pub event_id: EventId,
    /// To which aggregate, if the fact says it.
    pub aggregate: Option<AggregateKey>,
    /// When; for a fact that does not say it, when it is taken.
    pub occurred_at: DateTime<Utc>,
    /// The flow it belongs to.
    pub correlation_id: Option<CorrelationId>,
}

impl<I> Seen<I> {
    /// The id of the aggregate it is about; empty if the fact does not say it.
    pub fn aggregate_id(&self) -> &str {
        self.aggregate.as_ref().map_or("", |aggregate| aggregate.id.as_str())
    }
}

/// Which process a fact is for. The text is the id of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Correlation {
    /// For this one, which begins with it. One that is there already reacts as it does to any other fact.
    Starts(String),
    /// For this one, which is there already. If it is not, the fact waits.
    Continues(String),
    /// For this one, if it is there. If it is not, nothing follows.
    ContinuesIfBegun(String),
    /// For none.
    Ignored,
}

impl Correlation {
    /// A fact of a task is for the process that the task is for; for none, if that is of another kind: others may start tasks of
    /// the same sort.
    pub fn of_task<P: Aggregate>(said: &TaskSaid<impl Sized>) -> Self {
        match &said.subject {
            Some(subject) if subject.kind.as_str() == P::KIND => Self::Continues(subject.id.to_string()),
            _ => Self::Ignored,
        }
    }

    /// The id of the process, if the fact is for one.
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Starts(id) | Self::Continues(id) | Self::ContinuesIfBegun(id) => Some(id),
            Self::Ignored => None,
        }
    }
}

/// What follows from a fact: events of the process, and what it wants done.
#[derive(Debug)]
#[must_use = "it is what `react` answers"]
pub struct Reaction<P: Aggregate> {
    events: Vec<P::Event>,
    actions: Vec<Action>,
    /// The first thing in it that cannot be.
    flaw: Option<InvalidReaction>,
}

/// What a process wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A command is sent.
    Send(Outgoing),
    /// What undoes the action before it. It is kept until the process compensates, or takes a fact that ends it or one after
    /// its end; a process without a machine has no end.
    UndoneBy(Outgoing),
    /// A command is sent at a moment.
    SendAt {
        /// The name of the timer within the process.
        name: String,
        /// When.
        due_at: DateTime<Utc>,
        /// What.
        command: Outgoing,
    },
    /// A command that was to be sent at a moment is not.
    CancelTimer {
        /// The name of the timer within the process.
        name: String,
    },
    /// All that can be undone and is not undone yet is undone, the last first.
    Compensate,
    /// A task is started for the process.
    StartTask {
        /// Of this sort.
        of: TaskType,
        /// Its name within the process.
        name: String,
        /// What the worker needs to know.
        payload: Payload,
    },
    /// A task of the process is called off, if it is open.
    CancelTask {
        /// Of this sort.
        of: TaskType,
        /// Its name within the process.
        name: String,
        /// Why: a stable code.
        reason: String,
    },
}

/// A command that a process sends.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    /// To whom.
    pub aggregate: AggregateKey,
    /// Its stored name.
    pub command_type: CommandName,
    /// What it says.
    pub payload: Payload,
}

/// Why a reaction cannot be.
#[derive(Debug, thiserror::Error)]
pub enum InvalidReaction {
    /// An id or a name in it is none.
    #[error("an id in the reaction is invalid")]
    Id(#[from] InvalidId),
    /// Something in it cannot be written down.
    #[error("a payload in the reaction is invalid")]
    Payload(#[from] InvalidPayload),
}

impl InvalidReaction {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Id(_) => "invalid-id",
            Self::Payload(_) => "invalid-payload",
        }
    }
}

impl<P: Aggregate> Reaction<P> {
    /// Nothing follows.
    pub fn nothing() -> Self {
        Self::of([])
    }

    /// These events of the process follow, in this order.
    pub fn of(events: impl IntoIterator<Item = P::Event>) -> Self {
        Self { events: events.into_iter().collect(), actions: Vec::new(), flaw: None }
    }

    /// A command is sent. Its id comes from the fact, so that it is one command however often the fact is delivered.
    pub fn send<A: Aggregate>(self, aggregate_id: impl AsRef<str>, command: A::Command) -> Self {
        let command = Outgoing::new::<A>(aggregate_id.as_ref(), &command);
        self.and(command.map(Action::Send))
    }

    /// What undoes the action said last, if the process says [`compensate`](Self::compensate) before it ends; said twice, both do.
    /// It is not sent where there is nothing to undo: the command was refused, the timer has not fired, no worker has begun the task.
    pub fn undone_by<A: Aggregate>(self, aggregate_id: impl AsRef<str>, command: A::Command) -> Self {
        let command = Outgoing::new::<A>(aggregate_id.as_ref(), &command);
        self.and(command.map(Action::UndoneBy))
    }

    /// A command is sent at a moment, by a timer with a name within the process: one that has the name already is replaced. A
    /// fact that ends the process calls its timers off (not those that it sets itself), and so does one after the end: a process that a deadline or a command
    /// ends names the event of that end in its [`Input`](Process::Input).
    pub fn send_at<A: Aggregate>(
        self,
        name: impl Into<String>,
        due_at: DateTime<Utc>,
        aggregate_id: impl AsRef<str>,
        command: A::Command,
    ) -> Self {
        let command = Outgoing::new::<A>(aggregate_id.as_ref(), &command);
        let checked =
            checked_name(name.into()).and_then(|name| Ok(Action::SendAt { name, due_at, command: command? }));
        self.and(checked)
    }

    /// The timer of that name is called off. One that has fired, or was never set, is none.
    pub fn cancel_timer(self, name: impl Into<String>) -> Self {
        self.and(checked_name(name.into()).map(|name| Action::CancelTimer { name }))
    }

    /// All that has an undo and was not undone is undone, strictly one after the other and the last first, by a task of Towpath's
    /// own whose end is a fact: `Towpath.Compensation.Completed` or `Towpath.Compensation.Failed`, for this process. Before that, those of
    /// the timers and tasks that have an undo and are still to come are called off.
    pub fn compensate(self) -> Self {
        self.and(Ok(Action::Compensate))
    }

    /// A task is started for the process. While one of that sort and name is open, no second one is: names that say what a task
    /// is for (`concept/3`) keep it apart from an earlier one that is being called off. A name has at most 95 characters.
    pub fn start_task(
        self,
        of: &TaskType,
        name: impl Into<String>,
        payload: &(impl Serialize + ?Sized),
    ) -> Self {
        let start = |name, payload| Action::StartTask { of: of.clone(), name, payload };
        let payload = Payload::from_value(payload).map_err(InvalidReaction::from);
        let checked = checked_task_name(name.into()).and_then(|name| Ok(start(name, payload?)));
        self.and(checked)
    }

    /// A task of the process is called off, for a reason (a stable code). One that has ended stays as it is.
    pub fn cancel_task(self, of: &TaskType, name: impl Into<String>, reason: impl Into<String>) -> Self {
        let cancel = |name| Action::CancelTask { of: of.clone(), name, reason: reason.into() };
        let checked = checked_task_name(name.into()).map(cancel);
        self.and(checked)
    }

    /// The events and the actions, each in order.
    ///
    /// # Errors
    /// The first thing in it that cannot be.
    pub fn into_parts(self) -> Result<(Vec<P::Event>, Vec<Action>), InvalidReaction> {
        match self.flaw {
            None => Ok((self.events, self.actions)),
            Some(flaw) => Err(flaw),
        }
    }

    fn and(mut self, action: Result<Action, InvalidReaction>) -> Self {
        match action {
            Ok(action) => self.actions.push(action),
            Err(flaw) => drop(self.flaw.get_or_insert(flaw)),
        }
        self
    }
}

fn checked_name(name: String) -> Result<String, InvalidReaction> {
    TaskKey::new(&name)?;
    Ok(name)
}

/// The same, of a name that stands behind the process's in a key.
fn checked_task_name(name: String) -> Result<String, InvalidReaction> {
    TaskKey::new(NewTask::key_within(&AggregateKey::from_stored("", ""), &name))?;
    checked_name(name)
}

impl Outgoing {
    fn new<A: Aggregate>(aggregate_id: &str, command: &A::Command) -> Result<Self, InvalidReaction> {
        let (name, payload) = to_variant(command)?;
        let aggregate = AggregateKey::new(A::KIND, aggregate_id)?;
        Ok(Self { aggregate, command_type: CommandName::from_stored(name), payload })
    }
}

/// The commands of a process that takes none: `match command {}` decides them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoCommands {}

impl Command for NoCommands {
    const NAMES: &'static [&'static str] = &[];

    fn name(&self) -> &'static str {
        match *self {}
    }
}

impl Serialize for NoCommands {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        match *self {}
    }
}

impl<'de> Deserialize<'de> for NoCommands {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("it takes no commands"))
    }
}

/// What becomes of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// It starts its process.
    Starts,
    /// Its process reacts.
    Reacts,
    /// Its process has ended: it is recorded, and nothing follows.
    AfterEnd,
    /// Its process is not there yet: it waits.
    Waits,
    /// It is for no process, or for one only if that is there: nothing follows.
    Ignored,
}

impl Course {
    /// The course of a fact that is for a process, by what is there: nothing, or one that has ended or not.
    pub fn of(correlation: &Correlation, has_ended: Option<bool>) -> Self {
        match (correlation, has_ended) {
            (Correlation::Ignored, _) | (Correlation::ContinuesIfBegun(_), None) => Self::Ignored,
            (_, Some(true)) => Self::AfterEnd,
            (_, Some(false)) => Self::Reacts,
            (Correlation::Starts(_), None) => Self::Starts,
            (Correlation::Continues(_), None) => Self::Waits,
        }
    }
}

/// The first pause of a fact that waits.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// A fact that is looked at later than it was meant to be, by more than this, was not looked at because nobody could: what it
/// waits for may not have been read either.
const LATE: Duration = Duration::from_secs(5);

/// How long a fact has waited for the start of its process, or for its turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waited {
    /// When it was looked at last.
    pub before: Duration,
    /// Since then.
    pub since: Duration,
}

impl Waited {
    fn all(self) -> Duration {
        self.before + self.since
    }

    /// How long a fact waits before it is looked at again whose turn has not come, if its process changed so long ago: each change
    /// may be the last but one before it, so that it waits from then on. In all no longer than for the start.
    pub fn pause_before_turn<P: Process>(self, changed: Duration) -> Option<Duration> {
        let is_anew = changed < P::WAITS_FOR_TURN && self.all() < P::WAITS_FOR_START;
        let waited = if is_anew { Self { before: Duration::ZERO, since: changed } } else { self };
        waited.pause(P::WAITS_FOR_TURN)
    }

    /// How long it waits before it is looked at again: as long as it has waited, so that pauses grow, and at most a tenth of all.
    /// Nothing, when it has waited as long as it may. Where that is found by a look that comes late, it is looked at once more, and
    /// not oftener: where all looks are late, more of them would make them later.
    pub fn pause(self, at_most: Duration) -> Option<Duration> {
        let pause_after = |waited: Duration| {
            let longest = FIRST_PAUSE.max(at_most / 10);
            match at_most.saturating_sub(waited) {
                Duration::ZERO => longest,
                left => waited.clamp(FIRST_PAUSE, longest).min(left),
            }
        };
        let waited = self.all();
        let is_late = self.before < at_most && self.since > pause_after(self.before) + LATE;
        (waited < at_most || is_late).then(|| pause_after(waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Tour;

    #[derive(Debug, PartialEq, Serialize, Deserialize, Event)]
    #[event(crate = "crate")]
    enum TourEvent {
        #[serde(rename = "tour.begun")]
        Begun,
    }

    impl Aggregate for Tour {
        const KIND: &'static str = "tour";
        type Command = NoCommands;
        type Event = TourEvent;
        type Refusal = std::convert::Infallible;

        fn decide(&self, command: NoCommands, _: &Context) -> Result<Vec<TourEvent>, Self::Refusal> {
            match command {}
        }

        fn evolve(self, _: &TourEvent) -> Self {
            self
        }
    }

    impl Process for Tour {
        type Input = TourEvent;

        fn correlate(_: &Seen<TourEvent>) -> Correlation {
            Correlation::Ignored
        }

        fn react(&self, _: Seen<TourEvent>, _: &Context) -> Reaction<Self> {
            Reaction::nothing()
        }
    }

    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Door;

    #[derive(Serialize, Deserialize, Command)]
    #[command(crate = "crate")]
    enum DoorCommand {
        #[serde(rename = "door.open")]
        Open { wide: bool },
    }

    impl Aggregate for Door {
        const KIND: &'static str = "door";
        type Command = DoorCommand;
        type Event = TourEvent;
        type Refusal = std::convert::Infallible;

        fn decide(&self, _: DoorCommand, _: &Context) -> Result<Vec<TourEvent>, Self::Refusal> {
            Ok(Vec::new())
        }

        fn evolve(self, _: &TourEvent) -> Self {
            self
        }
    }

    #[test]
    fn a_reaction_keeps_what_it_asks_for_in_order() {
        let paint = TaskType::named("Painter.Draw");
        let reaction = Reaction::<Tour>::of([TourEvent::Begun])
            .send::<Door>("door-7", DoorCommand::Open { wide: true })
            .start_task(&paint, "duck", "a duck")
            .cancel_task(&paint, "goose", "not-wanted")
            .undone_by::<Door>("door-8", DoorCommand::Open { wide: false })
            .send_at::<Door>("soon", DateTime::UNIX_EPOCH, "door-9", DoorCommand::Open { wide: false })
            .cancel_timer("late")
            .compensate();
        let (events, mut actions) = reaction.into_parts().unwrap();
        assert_eq!(events, [TourEvent::Begun]);
        let rest = actions.split_off(3);
        assert!(matches!(&rest[0], Action::UndoneBy(undo) if undo.aggregate.id.as_str() == "door-8"));
        assert!(matches!(&rest[1], Action::SendAt { name, .. } if name == "soon"));
        assert_eq!(rest[2..], [Action::CancelTimer { name: "late".into() }, Action::Compensate]);
        let [Action::Send(sent), Action::StartTask { name, payload, .. }, Action::CancelTask { reason, .. }] =
            &actions[..]
        else {
            panic!("three actions: {actions:?}")
        };
        assert_eq!(
            (sent.aggregate.to_string().as_str(), sent.command_type.as_str()),
            ("door/door-7", "door.open")
        );
        assert_eq!((sent.payload.as_text(), name.as_str()), (r#"{"wide":true}"#, "duck"));
        assert_eq!((payload.as_text(), reason.as_str()), (r#""a duck""#, "not-wanted"));
    }

    #[test]
    fn a_reaction_with_something_that_cannot_be_is_none() {
        let open = || DoorCommand::Open { wide: false };
        let flawed = Reaction::<Tour>::nothing().send::<Door>("", open()).send::<Door>("door-7", open());
        assert_eq!(flawed.into_parts().unwrap_err().code(), "invalid-id");
        let unnamed = Reaction::<Tour>::nothing().start_task(&TaskType::named("Painter.Draw"), " ", &1);
        assert_eq!(unnamed.into_parts().unwrap_err().code(), "invalid-id");
        let long =
            Reaction::<Tour>::nothing().start_task(&TaskType::named("Painter.Draw"), "x".repeat(96), &1);
        assert_eq!(long.into_parts().unwrap_err().code(), "invalid-id");
        let unwritable = std::collections::BTreeMap::from([((1, 2), 3)]);
        let flawed =
            Reaction::<Tour>::nothing().start_task(&TaskType::named("Painter.Draw"), "x", &unwritable);
        assert_eq!(flawed.into_parts().unwrap_err().code(), "invalid-payload");
    }

    #[test]
    fn no_two_processes_have_a_key_of_a_task_in_common() {
        let key = |id: &str, name: &str| NewTask::key_within(&AggregateKey::new("tour", id).unwrap(), name);
        assert_ne!(key("7/a", "b"), key("7", "a/b"));
        assert!(key("7", "a/b").ends_with("/a/b"));
        assert!(TaskKey::new(key(&"7".repeat(128), &"x".repeat(95))).is_ok());
    }

    #[test]
    fn a_fact_of_a_task_is_for_a_process_of_this_kind_alone() {
        let said = |subject: Option<(&str, &str)>| -> TaskSaid {
            let subject = subject.map(|(kind, id)| serde_json::json!({ "kind": kind, "id": id }));
            let id = uuid::Uuid::nil();
            serde_json::from_value(
                serde_json::json!({ "taskId": id, "taskType": "Painter.Draw", "subject": subject }),
            )
            .unwrap()
        };
        let of = |subject| Correlation::of_task::<Tour>(&said(subject));
        assert_eq!(of(Some(("tour", "7"))), Correlation::Continues("7".into()));
        assert_eq!([of(Some(("door", "7"))), of(None)], [Correlation::Ignored, Correlation::Ignored]);
    }

    #[test]
    fn every_fact_has_one_course() {
        use Course::{AfterEnd, Ignored, Reacts, Starts, Waits};
        let id = || "7".to_owned();
        let courses = [
            (Correlation::Starts(id()), [Starts, Reacts, AfterEnd]),
            (Correlation::Continues(id()), [Waits, Reacts, AfterEnd]),
            (Correlation::ContinuesIfBegun(id()), [Ignored, Reacts, AfterEnd]),
            (Correlation::Ignored, [Ignored; 3]),
        ];
        for (correlation, expected) in courses {
            let found = [None, Some(false), Some(true)].map(|has_ended| Course::of(&correlation, has_ended));
            assert_eq!(found, expected, "{correlation:?}");
        }
    }

    proptest! {
        /// It waits for as long as it may and, where it is looked at in time, no longer, and is not looked at without end.
        #[test]
        fn a_fact_waits_for_so_long_and_is_looked_at_seldom(limit in 0_u64..10_000_000_000, late in 0_u64..5_000_000) {
            let (limit, late) = (Duration::from_micros(limit), Duration::from_micros(late));
            let (mut waited, mut looks) = (Waited::default(), 0);
            while let Some(pause) = waited.pause(limit) {
                prop_assert!(waited.before + waited.since + pause <= limit);
                waited = Waited { before: waited.before + waited.since, since: pause + late };
                looks += 1;
            }
            prop_assert!(waited.before + waited.since >= limit);
            prop_assert!(looks <= 30, "{looks} looks");
        }
    }

    #[test]
    fn a_fact_waits_for_its_turn_from_each_change_on() {
        let seconds = Duration::from_secs;
        let waited = |waited| Waited { before: seconds(waited), since: Duration::ZERO };
        let pause = |before, changed| waited(before).pause_before_turn::<Tour>(seconds(changed));
        assert_eq!([pause(2, 60), pause(11, 60)], [Some(seconds(1)), None]);
        assert_eq!([pause(60, 9), pause(60, 10)], [Some(seconds(1)), None]);
        assert_eq!(pause(3600, 9), None, "it does not wait without end for one that goes on");
    }

    proptest! {
        /// However late it is looked at each time, it is given up.
        #[test]
        fn a_fact_is_given_up_also_where_all_looks_are_late(limit in 0_u64..10_000_000, late in 0_u64..100_000_000) {
            let (limit, late) = (Duration::from_millis(limit), Duration::from_millis(late));
            let (mut waited, mut looks) = (Waited::default(), 0);
            while let Some(pause) = waited.pause(limit) {
                waited = Waited { before: waited.before + waited.since, since: pause + late };
                looks += 1;
                prop_assert!(looks <= 31, "it has waited for {waited:?}");
            }
        }
    }

    #[test]
    fn an_outage_is_no_reason_to_give_a_fact_up() {
        let hour = Duration::from_secs(3600);
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let in_time = Waited { before: minutes(58), since: minutes(2) };
        assert_eq!(in_time.pause(hour), None);
        let after_an_outage = Waited { before: minutes(58), since: minutes(3) };
        assert_eq!(after_an_outage.pause(hour), Some(minutes(6)));
        assert_eq!(Waited { before: minutes(61), since: minutes(6) }.pause(hour), None);
        assert_eq!(Waited { before: minutes(61), since: hour }.pause(hour), None, "once only");
        assert_eq!(Waited::default().pause(Duration::ZERO), None);
    }
}
