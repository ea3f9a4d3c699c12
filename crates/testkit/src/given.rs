//! Given these facts, when this is asked, then that happens: tests of an aggregate without any I/O.
//!
//! The live path stores events, commands and the folded state as JSON between any two steps. So does this: what
//! does not survive that fails here, with its name, and not later in production. The aggregate's names, pairs and
//! machine are checked as at the start, and its machine guards here as it does there.

mod process;

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_core::causes::with_causes;
use towpath_core::decider::{Decider, TypedDecider};
use towpath_core::ids::{ActorId, TenantId};
use towpath_core::machine::Step;
use towpath_core::{Aggregate, Context, Event, Payload, Refusal, Version, from_variant, to_variant};

use crate::clock::VirtualClock;
use crate::difference::difference;

pub use process::{GivenProcess, WhenSeen, given_process, seen};

/// What has happened to the aggregate so far. Continue with [`Given::when`].
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # use towpath_core::{Aggregate, Context, Refused};
/// # #[derive(Default, Serialize, Deserialize)] struct Door { open: bool }
/// # #[derive(Serialize, Deserialize, towpath_core::Command)] #[command(crate = "towpath_core")]
/// # enum Command { #[serde(rename = "door.open")] Open }
/// # #[derive(Serialize, Deserialize, towpath_core::Event)] #[event(crate = "towpath_core")]
/// # enum Event { #[serde(rename = "door.opened")] Opened }
/// # impl Aggregate for Door {
/// #     const KIND: &'static str = "door";
/// #     type Command = Command; type Event = Event; type Refusal = Refused;
/// #     fn decide(&self, _: Command, _: &Context) -> Result<Vec<Event>, Refused> {
/// #         if self.open { Err(Refused::new("already-open", "it is open")) } else { Ok(vec![Event::Opened]) }
/// #     }
/// #     fn evolve(self, _: &Event) -> Self { Door { open: true } }
/// # }
/// use towpath_testkit::given;
///
/// given::<Door>([]).when(Command::Open).then([Event::Opened]);
/// given::<Door>([Event::Opened]).when(Command::Open).refused_with("already-open");
/// ```
#[track_caller]
pub fn given<A: Aggregate>(events: impl IntoIterator<Item = A::Event>) -> Given<A> {
    let decider = registered::<A>();
    let mut history = History {
        aggregate: A::default(),
        version: 0,
        state: None,
        entered: None,
        stays: HashMap::new(),
        decider,
    };
    for event in events {
        match history.apply(&event) {
            Ok(moves) => history.enter(moves),
            Err(illegal) => panic!("the given events cannot have happened: {illegal}"),
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

    /// Says how long it may stay in a state, as [`Builder::deadline`] does for the running aggregate.
    ///
    /// [`Builder::deadline`]: https://docs.rs/towpath/latest/towpath/struct.Builder.html#method.deadline
    pub fn deadline(mut self, state: &str, stay: impl Fn(&A) -> Duration + 'static) -> Self {
        self.history.stays.insert(state.to_owned(), Box::new(stay));
        self
    }

    /// Checks the state of the aggregate's machine.
    #[track_caller]
    pub fn state_is(self, state: &str) -> Self {
        self.history.assert_state(state);
        self
    }

    /// Checks how long after it entered its state the state's deadline is; `None` is that it has none.
    #[track_caller]
    pub fn due_after(self, expected: impl Into<Option<Duration>>) -> Self {
        self.history.assert_due_after(expected.into());
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
        let mut moves = false;
        for event in &decided {
            match history.apply(event) {
                Ok(moved) => moves |= moved,
                Err(illegal) => panic!("the machine does not allow what was decided: {illegal}"),
            }
        }
        history.enter(moves);
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

    /// Checks how long after it entered its state the state's deadline is; `None` is that it has none.
    #[track_caller]
    pub fn due_after(self, expected: impl Into<Option<Duration>>) -> Self {
        self.history.assert_due_after(expected.into());
        self
    }

    /// The folded aggregate, for anything else a test wants to look at.
    pub fn aggregate(&self) -> &A {
        &self.history.aggregate
    }
}

/// How long an aggregate may stay where it is.
type Stay<A> = Box<dyn Fn(&A) -> Duration>;

struct History<A: Aggregate> {
    aggregate: A,
    version: Version,
    state: Option<String>,
    /// The aggregate as it entered its state.
    entered: Option<Payload>,
    /// How long it may stay in a state, where the test says it.
    stays: HashMap<String, Stay<A>>,
    decider: TypedDecider<A>,
}

impl<A: Aggregate> History<A> {
    #[track_caller]
    fn apply(&mut self, event: &A::Event) -> Result<bool, impl Display + use<A>> {
        let event = survives_as_variant("an event", event);
        let mut moves = false;
        if let Some(machine) = self.decider.machine() {
            match machine.step(self.state.as_deref(), event.name()) {
                Ok(Step::Stays) => {}
                Ok(Step::Moves { to }) => {
                    self.state = Some(to.to_owned());
                    moves = true;
                }
                Err(illegal) => return Err(illegal),
            }
        }
        self.aggregate = std::mem::take(&mut self.aggregate).evolve(&event);
        self.version += 1;
        Ok(moves)
    }

    /// Remembers the aggregate as it is after a change that moved its machine.
    fn enter(&mut self, moves: bool) {
        if moves {
            self.entered = Payload::from_value(&self.aggregate).ok();
        }
    }

    fn has_ended(&self) -> bool {
        let machine = self.decider.machine();
        self.state.as_deref().zip(machine).is_some_and(|(state, machine)| machine.is_terminal(state))
    }

    #[track_caller]
    fn assert_due_after(&self, expected: Option<Duration>) {
        let state = self.state.as_deref().unwrap_or("(none yet)");
        let deadline = self.decider.machine().and_then(|machine| machine.deadline_of(state));
        let found = deadline.map(|deadline| {
            let entered = self.entered.as_ref().and_then(|entered| entered.read::<A>(A::KIND).ok());
            self.stays.get(state).zip(entered).map_or(deadline.after, |(stay, entered)| stay(&entered))
        });
        assert!(found == expected, "{} that is {state} is due after {found:?}, not {expected:?}", A::KIND);
    }

    #[track_caller]
    fn assert_state(&self, expected: &str) {
        assert!(self.decider.machine().is_some(), "{} has no machine, so it has no state", A::KIND);
        let found = self.state.as_deref().unwrap_or("(none yet)");
        assert!(found == expected, "{} is {found}, not {expected}", A::KIND);
    }
}

/// Checks what is checked when Towpath starts.
#[track_caller]
fn registered<A: Aggregate>() -> TypedDecider<A> {
    TypedDecider::register().unwrap_or_else(|flaws| {
        let told: String = flaws.iter().map(|flaw| format!("\n- {}", with_causes(flaw))).collect();
        panic!("{} cannot be registered:{told}", A::KIND)
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::fmt;
    use std::panic::catch_unwind;
    use towpath_core::machine::Machine;

    #[derive(Default, Serialize, Deserialize)]
    struct Order {
        sku: Option<String>,
        by: Option<String>,
        shipped: bool,
        #[serde(skip)]
        forgotten: bool,
    }

    #[derive(Serialize, Deserialize, towpath_core::Command)]
    #[command(crate = "towpath_core")]
    enum Command {
        #[serde(rename = "order.place")]
        Place { sku: String, amount: u32 },
        #[serde(rename = "order.ship")]
        Ship,
        #[serde(rename = "order.ship-blindly")]
        ShipBlindly,
        #[serde(rename = "order.note")]
        Note,
    }

    #[derive(Serialize, Deserialize, towpath_core::Event)]
    #[event(crate = "towpath_core")]
    enum Event {
        #[serde(rename = "order.placed")]
        Placed { sku: String, amount: u32, by: Option<String>, at: i64, after: u64 },
        #[serde(rename = "order.shipped")]
        Shipped,
    }

    #[derive(Debug, PartialEq)]
    enum No {
        NothingToShip,
        Forgotten(u8),
    }

    impl fmt::Display for No {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "no: {self:?}")
        }
    }

    impl std::error::Error for No {}

    impl Refusal for No {
        fn code(&self) -> &'static str {
            match self {
                Self::NothingToShip => "nothing-to-ship",
                Self::Forgotten(_) => "forgotten",
            }
        }
    }

    impl Aggregate for Order {
        const KIND: &'static str = "order";
        type Command = Command;
        type Event = Event;
        type Refusal = No;

        fn decide(&self, command: Command, context: &Context) -> Result<Vec<Event>, No> {
            match command {
                Command::Place { sku, amount } => {
                    let by = context.actor_id.clone().map(String::from);
                    Ok(vec![Event::Placed {
                        sku,
                        amount,
                        by,
                        at: context.now.timestamp(),
                        after: context.version,
                    }])
                }
                Command::Ship if self.sku.is_none() => Err(No::NothingToShip),
                Command::Ship if self.forgotten => Err(No::Forgotten(1)),
                Command::Ship | Command::ShipBlindly => Ok(vec![Event::Shipped]),
                Command::Note => Ok(vec![]),
            }
        }

        fn evolve(self, event: &Event) -> Self {
            match event {
                Event::Placed { sku, by, .. } => {
                    Self { sku: Some(sku.clone()), by: by.clone(), forgotten: true, ..self }
                }
                Event::Shipped => Self { shipped: true, ..self },
            }
        }

        fn machine() -> Option<Machine> {
            Some(
                Machine::named("order")
                    .starts("order.placed", "placed")
                    .state("placed")
                    .terminal("shipped")
                    .transition("placed", "order.shipped", "shipped"),
            )
        }
    }

    fn placed() -> Event {
        let at = VirtualClock::start().timestamp();
        Event::Placed { sku: "duck".into(), amount: 3, by: None, at, after: 0 }
    }

    fn place() -> Command {
        Command::Place { sku: "duck".into(), amount: 3 }
    }

    fn says(test: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let panic = catch_unwind(test).expect_err("it should have said no");
        match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => (*panic.downcast::<&str>().unwrap()).to_owned(),
        }
    }

    #[test]
    fn facts_refusals_and_nothing() {
        given::<Order>([]).when(place()).then([placed()]).state_is("placed");
        let shipped =
            given::<Order>([placed()]).state_is("placed").when(Command::Ship).then([Event::Shipped]);
        assert!(shipped.state_is("shipped").aggregate().shipped);
        given::<Order>([]).when(Command::Ship).refused(No::NothingToShip);
        given::<Order>([]).when(Command::Ship).refused_with("nothing-to-ship");
        given::<Order>([placed()]).when(Command::Note).then([]).state_is("placed");
    }

    #[test]
    fn a_deadline_is_that_of_the_state_and_its_time_that_of_the_change_that_led_there() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        drop(given::<Order>([placed()]).due_after(None));
        let waits = || given::<Waiting>([WaitingEvent::Begun { minutes: 7 }, WaitingEvent::Prolonged]);
        drop(waits().state_is("waiting").due_after(minutes(1)));
        let stay = move |waiting: &Waiting| minutes(waiting.minutes);
        // What happens in the state does not move its deadline.
        drop(waits().deadline("waiting", stay).due_after(minutes(7)));
        let begin = given::<Waiting>([]).deadline("waiting", stay).when(WaitingCommand::Begin);
        begin.then([WaitingEvent::Begun { minutes: 7 }, WaitingEvent::Prolonged]).due_after(minutes(14));
        let message = says(|| drop(given::<Order>([placed()]).due_after(minutes(1))));
        assert_eq!(message, "order that is placed is due after None, not Some(60s)");
    }

    #[derive(Default, Serialize, Deserialize)]
    struct Waiting {
        minutes: u64,
    }

    #[derive(Serialize, Deserialize, towpath_core::Command)]
    #[command(crate = "towpath_core")]
    enum WaitingCommand {
        #[serde(rename = "waiting.begin")]
        Begin,
    }

    #[derive(Serialize, Deserialize, towpath_core::Event)]
    #[event(crate = "towpath_core")]
    enum WaitingEvent {
        #[serde(rename = "waiting.begun")]
        Begun { minutes: u64 },
        #[serde(rename = "waiting.prolonged")]
        Prolonged,
        #[serde(rename = "waiting.ended")]
        Ended,
    }

    impl Aggregate for Waiting {
        const KIND: &'static str = "waiting";
        type Command = WaitingCommand;
        type Event = WaitingEvent;
        type Refusal = std::convert::Infallible;

        fn decide(&self, _: WaitingCommand, _: &Context) -> Result<Vec<WaitingEvent>, Self::Refusal> {
            Ok(vec![WaitingEvent::Begun { minutes: 7 }, WaitingEvent::Prolonged])
        }

        fn evolve(self, event: &WaitingEvent) -> Self {
            match event {
                WaitingEvent::Begun { minutes } => Self { minutes: *minutes },
                WaitingEvent::Prolonged => Self { minutes: self.minutes * 2 },
                WaitingEvent::Ended => self,
            }
        }

        fn machine() -> Option<Machine> {
            let deadline =
                towpath_core::machine::Deadline::after(Duration::from_secs(60), WaitingEvent::ENDED);
            Some(
                Machine::named("waiting")
                    .starts(WaitingEvent::BEGUN, "waiting")
                    .waits("waiting", deadline, "its end")
                    .terminal("ended")
                    .transition("waiting", WaitingEvent::ENDED, "ended")
                    .stays(WaitingEvent::PROLONGED),
            )
        }
    }

    #[test]
    fn who_when_and_on_which_version() {
        let at = VirtualClock::start() + std::time::Duration::from_secs(60);
        let event =
            |at: i64| Event::Placed { sku: "duck".into(), amount: 3, by: Some("zoë".into()), at, after: 0 };
        given::<Order>([]).at(at).by("zoë").when(place()).then([event(at.timestamp())]);
        given::<Order>([]).when(place()).at(at).by("zoë").then([event(at.timestamp())]);
    }

    #[test]
    fn the_machine_guards() {
        given::<Order>([]).when(Command::ShipBlindly).refused_by_machine();
        let message = says(|| drop(given::<Order>([]).when(Command::ShipBlindly).then([Event::Shipped])));
        assert!(message.starts_with("the machine does not allow what was decided"), "{message}");
        let message = says(|| drop(given::<Order>([Event::Shipped])));
        assert!(message.starts_with("the given events cannot have happened"), "{message}");
        let message = says(|| given::<Order>([]).when(place()).refused_by_machine());
        assert!(message.starts_with("the machine allows all of"), "{message}");
        let message = says(|| drop(given::<Order>([placed()]).state_is("shipped")));
        assert_eq!(message, "order is placed, not shipped");
    }

    #[test]
    fn other_facts_are_shown_line_by_line() {
        let other = Event::Placed {
            sku: "goose".into(),
            amount: 3,
            by: None,
            at: VirtualClock::start().timestamp(),
            after: 0,
        };
        let message = says(|| drop(given::<Order>([]).when(place()).then([other])));
        assert!(message.contains("\n-   \"sku\":\"goose\",\n+   \"sku\":\"duck\",\n"), "{message}");
        assert!(message.contains("\n    \"amount\":3,\n"), "{message}");
        let message = says(|| drop(given::<Order>([]).when(place()).then([])));
        assert!(message.contains("\n+ order.placed {\n"), "{message}");
    }

    #[test]
    fn wrong_refusals_say_what_came_instead() {
        let message = says(|| given::<Order>([]).when(Command::Ship).refused(No::Forgotten(1)));
        assert!(message.contains("+ NothingToShip"), "{message}");
        let message = says(|| given::<Order>([placed()]).when(Command::Ship).refused(No::NothingToShip));
        assert_eq!(message, "the command was not refused; these facts were decided:\norder.shipped {}");
        let message = says(|| drop(given::<Order>([]).when(Command::Ship).then([])));
        assert_eq!(message, "the command was refused with nothing-to-ship: no: NothingToShip");
    }

    #[test]
    fn what_is_not_stored_is_not_known_to_the_decision() {
        // `forgotten` is set by evolve and lost between two commands, as it would be in production.
        given::<Order>([placed()]).when(Command::Ship).then([Event::Shipped]);
    }

    #[derive(Default, Serialize, Deserialize)]
    struct Misnamed;

    #[derive(Serialize, Deserialize, towpath_core::Event)]
    #[event(crate = "towpath_core")]
    enum MisnamedEvent {
        #[serde(rename = "Happened")]
        Happened,
    }

    impl Aggregate for Misnamed {
        const KIND: &'static str = "misnamed";
        type Command = Command;
        type Event = MisnamedEvent;
        type Refusal = std::convert::Infallible;

        fn decide(&self, _: Command, _: &Context) -> Result<Vec<MisnamedEvent>, Self::Refusal> {
            Ok(vec![MisnamedEvent::Happened])
        }

        fn evolve(self, _: &MisnamedEvent) -> Self {
            self
        }
    }

    #[test]
    fn what_would_not_start_is_told_here_already() {
        let message = says(|| drop(given::<Misnamed>([])));
        assert!(message.starts_with("misnamed cannot be registered:\n- "), "{message}");
        assert!(message.contains("`Happened` is not spelled as a name is"), "{message}");
    }

    #[test]
    fn json_is_laid_out_without_changing_it() {
        let text = r#"{"a":[1.50,{"b":"x,{\"}"}],"e":{},"f":[]}"#;
        let laid_out = laid_out(text);
        assert_eq!(laid_out.lines().count(), 10, "{laid_out}");
        let joined: String = laid_out.lines().map(str::trim_start).collect();
        assert_eq!(joined, text);
    }
}
