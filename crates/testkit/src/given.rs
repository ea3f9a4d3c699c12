//! Given these facts, when this is asked, then that happens: tests of an aggregate without any I/O.
//!
//! The live path stores events, commands and the folded state as JSON between any two steps. So does this: what
//! does not survive that fails here, with its name, and not later in production. The aggregate's machine guards
//! here as it does there.

use std::fmt::{Debug, Display};

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_core::ids::{ActorId, TenantId};
use towpath_core::machine::{CheckedMachine, Step};
use towpath_core::{Aggregate, Context, Payload, Refusal, Version, from_variant, to_variant, variant_names};

use crate::clock::VirtualClock;
use crate::difference::difference;

/// What has happened to the aggregate so far. Continue with [`Given::when`].
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # use towpath_core::{Aggregate, Context, Refusal};
/// # #[derive(Default, Serialize, Deserialize)] struct Door { open: bool }
/// # #[derive(Serialize, Deserialize)] enum Command { #[serde(rename = "door.open")] Open }
/// # #[derive(Serialize, Deserialize)] enum Event { #[serde(rename = "door.opened")] Opened }
/// # #[derive(Debug, PartialEq)] struct AlreadyOpen;
/// # impl std::fmt::Display for AlreadyOpen {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("it is open already") }
/// # }
/// # impl std::error::Error for AlreadyOpen {}
/// # impl Refusal for AlreadyOpen { fn code(&self) -> &'static str { "already-open" } }
/// # impl Aggregate for Door {
/// #     const KIND: &'static str = "door";
/// #     type Command = Command; type Event = Event; type Refusal = AlreadyOpen;
/// #     fn decide(&self, _: Command, _: &Context) -> Result<Vec<Event>, AlreadyOpen> {
/// #         if self.open { Err(AlreadyOpen) } else { Ok(vec![Event::Opened]) }
/// #     }
/// #     fn evolve(self, _: &Event) -> Self { Door { open: true } }
/// # }
/// use towpath_testkit::given;
///
/// given::<Door>([]).when(Command::Open).then([Event::Opened]);
/// given::<Door>([Event::Opened]).when(Command::Open).refused(AlreadyOpen);
/// ```
#[track_caller]
pub fn given<A: Aggregate>(events: impl IntoIterator<Item = A::Event>) -> Given<A> {
    let machine = checked_machine::<A>();
    let mut history = History { aggregate: A::default(), version: 0, state: None, machine };
    for event in events {
        if let Err(illegal) = history.apply(&event) {
            panic!("the given events cannot have happened: {illegal}");
        }
    }
    history.aggregate = through_json("the folded state", history.aggregate);
    Given {
        history,
        context: Context { now: VirtualClock::start(), version: 0, actor_id: None, tenant_id: None },
    }
}

/// An aggregate with its past. See [`given()`].
#[must_use = "ask something of it with `when`, or look at it with `state_is`"]
pub struct Given<A: Aggregate> {
    history: History<A>,
    context: Context,
}

impl<A: Aggregate> Given<A> {
    /// Sets the moment of the decision; a fixed one otherwise ([`VirtualClock::start`]).
    pub fn at(mut self, now: DateTime<Utc>) -> Self {
        self.context.now = now;
        self
    }

    /// Sets who asks.
    #[track_caller]
    pub fn by(mut self, actor: &str) -> Self {
        self.context.actor_id = Some(ActorId::new(actor).expect("an actor id"));
        self
    }

    /// Sets whose data it is.
    #[track_caller]
    pub fn of_tenant(mut self, tenant: &str) -> Self {
        self.context.tenant_id = Some(TenantId::new(tenant).expect("a tenant id"));
        self
    }

    /// Checks the state of the aggregate's machine.
    #[track_caller]
    pub fn state_is(self, state: &str) -> Self {
        self.history.assert_state(state);
        self
    }

    /// Asks something of the aggregate.
    #[track_caller]
    pub fn when(self, command: A::Command) -> When<A> {
        let Self { history, mut context } = self;
        context.version = history.version;
        When { history, context, command: survives_as_variant("the command", &command) }
    }
}

/// An aggregate of which something was asked: say what the answer should be.
#[must_use = "nothing is decided until `then` or `refused` says what is expected"]
pub struct When<A: Aggregate> {
    history: History<A>,
    context: Context,
    command: A::Command,
}

impl<A: Aggregate> When<A> {
    /// Sets the moment of the decision; a fixed one otherwise ([`VirtualClock::start`]).
    pub fn at(mut self, now: DateTime<Utc>) -> Self {
        self.context.now = now;
        self
    }

    /// Sets who asks.
    #[track_caller]
    pub fn by(mut self, actor: &str) -> Self {
        self.context.actor_id = Some(ActorId::new(actor).expect("an actor id"));
        self
    }

    /// Sets whose data it is.
    #[track_caller]
    pub fn of_tenant(mut self, tenant: &str) -> Self {
        self.context.tenant_id = Some(TenantId::new(tenant).expect("a tenant id"));
        self
    }

    /// Exactly these facts are decided, in this order, and the machine allows each. None is "nothing happens".
    #[track_caller]
    pub fn then(self, expected: impl IntoIterator<Item = A::Event>) -> Then<A> {
        let Self { mut history, context, command } = self;
        let decided = match history.aggregate.decide(command, &context) {
            Ok(decided) => decided,
            Err(refusal) => panic!("the command was refused with {}: {refusal}", refusal.code()),
        };
        let expected_text = written::<A>(&expected.into_iter().collect::<Vec<_>>());
        let decided_text = written::<A>(&decided);
        assert!(
            expected_text == decided_text,
            "other facts were decided (- expected, + decided):\n{}",
            difference(&expected_text, &decided_text)
        );
        for event in &decided {
            if let Err(illegal) = history.apply(event) {
                panic!("the machine does not allow what was decided: {illegal}");
            }
        }
        history.aggregate = through_json("the state after the command", history.aggregate);
        Then { history }
    }

    /// The aggregate says no, with exactly this refusal.
    #[track_caller]
    pub fn refused(self, expected: A::Refusal)
    where
        A::Refusal: PartialEq + Debug,
    {
        let refusal = self.refusal();
        assert!(
            refusal == expected,
            "another refusal (- expected, + found):\n{}",
            difference(&format!("{expected:#?}"), &format!("{refusal:#?}"))
        );
    }

    /// The aggregate says no, with a refusal of this stable code.
    #[track_caller]
    pub fn refused_with(self, code: &str) {
        let refusal = self.refusal();
        assert!(
            refusal.code() == code,
            "expected a refusal with {code}, found {}: {refusal}",
            refusal.code()
        );
    }

    /// The aggregate says yes and its machine says no: the guard behind the rules.
    #[track_caller]
    pub fn refused_by_machine(self) {
        let Self { mut history, context, command } = self;
        let decided = match history.aggregate.decide(command, &context) {
            Ok(decided) => decided,
            Err(refusal) => panic!("the aggregate itself refused with {}: {refusal}", refusal.code()),
        };
        let illegal = decided.iter().any(|event| history.apply(event).is_err());
        assert!(illegal, "the machine allows all of:\n{}", written::<A>(&decided));
    }

    #[track_caller]
    fn refusal(self) -> A::Refusal {
        match self.history.aggregate.decide(self.command, &self.context) {
            Err(refusal) => refusal,
            Ok(decided) if decided.is_empty() => panic!("the command was not refused; nothing happens"),
            Ok(decided) => {
                panic!("the command was not refused; these facts were decided:\n{}", written::<A>(&decided))
            }
        }
    }
}

/// An aggregate after the expected facts.
pub struct Then<A: Aggregate> {
    history: History<A>,
}

impl<A: Aggregate> Then<A> {
    /// Checks the state of the aggregate's machine.
    #[track_caller]
    pub fn state_is(self, state: &str) -> Self {
        self.history.assert_state(state);
        self
    }

    /// The folded aggregate, for anything else a test wants to look at.
    pub fn aggregate(&self) -> &A {
        &self.history.aggregate
    }
}

struct History<A: Aggregate> {
    aggregate: A,
    version: Version,
    state: Option<String>,
    machine: Option<CheckedMachine>,
}

impl<A: Aggregate> History<A> {
    #[track_caller]
    fn apply(&mut self, event: &A::Event) -> Result<(), impl Display + use<A>> {
        let event = survives_as_variant("an event", event);
        if let Some(machine) = &self.machine {
            let name = name_of(&event);
            match machine.step(self.state.as_deref(), &name) {
                Ok(Step::Stays) => {}
                Ok(Step::Moves { to }) => self.state = Some(to.to_owned()),
                Err(illegal) => return Err(illegal),
            }
        }
        self.aggregate = std::mem::take(&mut self.aggregate).evolve(&event);
        self.version += 1;
        Ok(())
    }

    #[track_caller]
    fn assert_state(&self, expected: &str) {
        assert!(self.machine.is_some(), "{} has no machine, so it has no state", A::KIND);
        let found = self.state.as_deref().unwrap_or("(none yet)");
        assert!(found == expected, "{} is {found}, not {expected}", A::KIND);
    }
}

#[track_caller]
fn checked_machine<A: Aggregate>() -> Option<CheckedMachine> {
    let machine = A::machine()?;
    let names = match variant_names::<A::Event>() {
        Ok(names) => names,
        Err(flaw) => panic!("{flaw}"),
    };
    match machine.check(names) {
        Ok(checked) => Some(checked),
        Err(flaws) => panic!("the machine of {} has flaws: {flaws}", A::KIND),
    }
}

/// Writes a command or event as it is stored and reads it back: what the live path will see.
#[track_caller]
fn survives_as_variant<T: Serialize + DeserializeOwned>(what: &str, value: &T) -> T {
    let (name, payload) = match to_variant(value) {
        Ok(written) => written,
        Err(flaw) => panic!("{what} cannot be stored: {}", with_causes(&flaw)),
    };
    match from_variant(&name, &payload) {
        Ok(value) => value,
        Err(flaw) => panic!("{what} cannot be read back from {name} {payload:?}: {}", with_causes(&flaw)),
    }
}

#[track_caller]
fn through_json<T: Serialize + DeserializeOwned>(what: &str, value: T) -> T {
    let payload = match Payload::from_value(&value) {
        Ok(payload) => payload,
        Err(flaw) => panic!("{what} cannot be stored: {}", with_causes(&flaw)),
    };
    match payload.read(what) {
        Ok(value) => value,
        Err(flaw) => panic!("{what} cannot be read back from {payload:?}: {}", with_causes(&flaw)),
    }
}

#[track_caller]
fn name_of<T: Serialize>(event: &T) -> String {
    match to_variant(event) {
        Ok((name, _)) => name,
        Err(flaw) => panic!("an event cannot be stored: {}", with_causes(&flaw)),
    }
}

/// Events as people compare them: the stored name and the payload, one field a line. It needs neither `Debug`
/// nor `PartialEq` of the application's type, and shows what will be stored.
#[track_caller]
fn written<A: Aggregate>(events: &[A::Event]) -> String {
    let mut lines = Vec::new();
    for event in events {
        let (name, payload) = match to_variant(event) {
            Ok(written) => written,
            Err(flaw) => panic!("an event cannot be stored: {}", with_causes(&flaw)),
        };
        lines.push(format!("{name} {}", laid_out(payload.as_text())));
    }
    lines.join("\n")
}

/// JSON with one field a line. It works on the text, because a tree would sort keys and round numbers.
fn laid_out(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    let mut characters = json.chars().peekable();
    while let Some(character) = characters.next() {
        let begin_line = |text: &mut String, depth: usize| {
            text.push('\n');
            text.push_str(&"  ".repeat(depth));
        };
        match character {
            _ if in_string => {
                text.push(character);
                in_string = escaped || character != '"';
                escaped = !escaped && character == '\\';
            }
            '{' | '[' if matches!(characters.peek(), Some('}' | ']')) => text.push(character),
            '{' | '[' => {
                depth += 1;
                text.push(character);
                begin_line(&mut text, depth);
            }
            '}' | ']' if text.ends_with(['{', '[']) => text.push(character),
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                begin_line(&mut text, depth);
                text.push(character);
            }
            ',' => {
                text.push(character);
                begin_line(&mut text, depth);
            }
            _ => {
                in_string = character == '"';
                text.push(character);
            }
        }
    }
    text
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
