//! State machines as data: states, the events that lead from one to the next, what is waited for and how long.
//!
//! One declaration guards the live path, draws the diagram, fills the state history and tells an operator what is
//! possible next. A machine is declared with [`Machine`], and is of use only once [`Machine::check`] has found
//! nothing wrong with it.
//!
//! ```
//! use std::time::Duration;
//! use towpath_core::machine::{Deadline, Machine, Step};
//!
//! let order = Machine::named("order")
//!     .starts("order.placed", "placed")
//!     .waits("placed", Deadline::after(Duration::from_secs(900), "order.expired"), "the payment")
//!     .terminal("paid")
//!     .terminal("expired")
//!     .transition("placed", "order.paid", "paid")
//!     .transition("placed", "order.expired", "expired")
//!     .stays("order.noted")
//!     .check(&["order.placed", "order.paid", "order.expired", "order.noted"])?;
//!
//! assert_eq!(order.step(Some("placed"), "order.paid")?, Step::Moves { to: "paid" });
//! assert!(order.step(Some("paid"), "order.expired").is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
mod mermaid;
mod svg;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde::Serialize;

pub use check::{Flaw, MachineFlaws};

/// A machine that is being declared.
#[derive(Debug, Clone)]
pub struct Machine {
    name: String,
    states: Vec<State>,
    transitions: Vec<Transition>,
    stays: Vec<Stay>,
}

/// A declared state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Its name, as it is stored.
    pub name: String,
    /// Whether nothing leads out of it.
    pub terminal: bool,
    /// What the aggregate waits for while it is here, for an operator to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// What ends the waiting if nothing else does. Every waiting state of a checked machine has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Deadline>,
}

/// What ends a waiting that nothing else ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deadline {
    /// How long the aggregate may stay in the state.
    #[serde(with = "crate::retry::duration_text")]
    pub after: Duration,
    /// The event that then leads out of it.
    pub event: String,
    /// The command whose decision emits that event. Without one the event is appended as it is, without a payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// An event that leads from one state to another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Transition {
    /// The state it leaves; none for an aggregate that does not exist yet.
    pub from: Option<String>,
    /// The event.
    pub event: String,
    /// The state it leads to.
    pub to: String,
}

/// An event that changes no state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stay {
    /// The event.
    pub event: String,
    /// The state in which it may happen; none for any.
    pub state: Option<String>,
}

/// A machine without flaws.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckedMachine {
    name: String,
    states: Vec<State>,
    transitions: Vec<Transition>,
    stays: Vec<Stay>,
    #[serde(skip)]
    lookup: Lookup,
}

/// What an event does to the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// Nothing: the event may happen here and changes no state.
    Stays,
    /// It leads to another state.
    Moves {
        /// That state.
        to: &'a str,
    },
}

/// An event that a state does not allow. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{event} is not possible for {machine} {}; {}", self.place(), self.ways_out())]
pub struct IllegalTransition {
    /// The machine that refuses.
    pub machine: String,
    /// The state it is in; none if the aggregate does not exist yet.
    pub from: Option<String>,
    /// The event that was refused.
    pub event: String,
    /// The events that lead out of that state.
    pub possible: Vec<String>,
}

impl Machine {
    /// Begins the declaration of a machine.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), states: Vec::new(), transitions: Vec::new(), stays: Vec::new() }
    }

    /// The event with which an aggregate begins to exist, and its first state.
    pub fn starts(mut self, event: impl Into<String>, state: impl Into<String>) -> Self {
        self.transitions.push(Transition { from: None, event: event.into(), to: state.into() });
        self
    }

    /// Declares a state. States are never declared by merely being mentioned: that would make every typing error
    /// a state.
    pub fn state(self, name: impl Into<String>) -> Self {
        self.declare(State { name: name.into(), terminal: false, waits_for: None, deadline: None })
    }

    /// Declares a state that nothing leads out of.
    pub fn terminal(self, name: impl Into<String>) -> Self {
        self.declare(State { name: name.into(), terminal: true, waits_for: None, deadline: None })
    }

    /// Declares a state in which the aggregate waits for something that may never come, until a deadline. Without
    /// a deadline (`None`) the machine does not pass its check.
    pub fn waits(
        self,
        name: impl Into<String>,
        deadline: impl Into<Option<Deadline>>,
        waits_for: impl Into<String>,
    ) -> Self {
        let (waits_for, deadline) = (Some(waits_for.into()), deadline.into());
        self.declare(State { name: name.into(), terminal: false, waits_for, deadline })
    }

    /// An event that leads from one state to another.
    pub fn transition(
        mut self,
        from: impl Into<String>,
        event: impl Into<String>,
        to: impl Into<String>,
    ) -> Self {
        let (from, event, to) = (from.into(), event.into(), to.into());
        if from == to {
            return self.stays_in(from, event);
        }
        self.transitions.push(Transition { from: Some(from), event, to });
        self
    }

    /// An event that leads to one state from each of these.
    pub fn transitions<S: Into<String>>(
        self,
        from: impl IntoIterator<Item = S>,
        event: &str,
        to: &str,
    ) -> Self {
        from.into_iter().fold(self, |machine, from| machine.transition(from, event, to))
    }

    /// An event that may happen in every state, terminal ones included, and changes none. Where a transition of
    /// some state names the same event, that transition is taken.
    pub fn stays(mut self, event: impl Into<String>) -> Self {
        self.stays.push(Stay { event: event.into(), state: None });
        self
    }

    /// An event that may happen in this state and does not change it.
    pub fn stays_in(mut self, state: impl Into<String>, event: impl Into<String>) -> Self {
        self.stays.push(Stay { event: event.into(), state: Some(state.into()) });
        self
    }

    /// Events that may each happen in each of these states and do not change it.
    pub fn stay_in(mut self, states: &[&str], events: &[&str]) -> Self {
        for state in states {
            self = events.iter().fold(self, |machine, event| machine.stays_in(*state, *event));
        }
        self
    }

    /// Checks the declaration against the events that the aggregate emits.
    ///
    /// # Errors
    /// All flaws at once, so that they can be mended at once.
    pub fn check(mut self, emitted: &[&str]) -> Result<CheckedMachine, MachineFlaws> {
        let flaws = check::flaws(&self, emitted);
        if !flaws.is_empty() {
            return Err(MachineFlaws { machine: self.name, flaws });
        }
        let mut seen = HashSet::new();
        self.transitions.retain(|transition| seen.insert(transition.clone()));
        let mut seen = HashSet::new();
        self.stays.retain(|stay| seen.insert(stay.clone()));
        let lookup = Lookup::new(&self);
        let Self { name, states, transitions, stays } = self;
        Ok(CheckedMachine { name, states, transitions, stays, lookup })
    }

    fn declare(mut self, state: State) -> Self {
        self.states.push(state);
        self
    }
}

impl Deadline {
    /// After this long in the state, this event leads out of it: a timer appends it, without a payload.
    pub fn after(after: Duration, event: impl Into<String>) -> Self {
        Self { after, event: event.into(), command: None }
    }

    /// What a timer sends at the deadline: the command, or else the event itself.
    pub fn sends(&self) -> &str {
        self.command.as_deref().unwrap_or(&self.event)
    }

    /// The command that a timer sends at the deadline, and whose decision emits the event.
    pub fn by_command(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }
}

impl CheckedMachine {
    /// The name of the machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The states, in the order of their declaration.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// The transitions, in the order of their declaration.
    pub fn transitions(&self) -> &[Transition] {
        &self.transitions
    }

    /// The events that change no state, in the order of their declaration.
    pub fn stays(&self) -> &[Stay] {
        &self.stays
    }

    /// What an event does to an aggregate in this state; `None` is one that does not exist yet.
    ///
    /// # Errors
    /// The event is not possible there, or there is no such state. The error names what is possible.
    pub fn step(&self, from: Option<&str>, event: &str) -> Result<Step<'_>, IllegalTransition> {
        self.lookup
            .step(from, event)
            .map(|to| to.map_or(Step::Stays, |to| Step::Moves { to: &self.states[to].name }))
            .ok_or_else(|| IllegalTransition {
                machine: self.name.clone(),
                from: from.map(ToOwned::to_owned),
                event: event.to_owned(),
                possible: self.leading_out_of(from).map(|transition| transition.event.clone()).collect(),
            })
    }

    /// The transitions out of a state, in the order of their declaration; `None` asks how an aggregate begins.
    /// Events that change no state are not among them: see [`CheckedMachine::stays`].
    pub fn possible_next(&self, from: Option<&str>) -> Vec<Transition> {
        self.leading_out_of(from).cloned().collect()
    }

    /// Whether nothing leads out of this state. A state that is not declared is not terminal.
    pub fn is_terminal(&self, state: &str) -> bool {
        self.find(state).is_some_and(|state| state.terminal)
    }

    /// The deadline of a state, if the aggregate waits there.
    pub fn deadline_of(&self, state: &str) -> Option<&Deadline> {
        self.find(state)?.deadline.as_ref()
    }

    /// The machine as a Mermaid `stateDiagram-v2`. Events that change no state are not drawn.
    pub fn to_mermaid(&self) -> String {
        mermaid::draw(self)
    }

    /// The machine as a drawing (SVG). Events that change no state are not drawn.
    pub fn to_svg(&self) -> String {
        svg::draw(self)
    }

    fn find(&self, state: &str) -> Option<&State> {
        self.lookup.states.get(state).map(|&at| &self.states[at])
    }

    fn leading_out_of(&self, from: Option<&str>) -> impl Iterator<Item = &Transition> {
        self.transitions.iter().filter(move |transition| transition.from.as_deref() == from)
    }
}

impl IllegalTransition {
    fn place(&self) -> String {
        self.from.as_ref().map_or_else(|| "before it exists".to_owned(), |from| format!("in state {from}"))
    }

    fn ways_out(&self) -> String {
        match self.possible.as_slice() {
            [] => "nothing leads out of there".to_owned(),
            possible => format!("possible next: {}", possible.join(", ")),
        }
    }
}

/// The transitions by state and event: every command asks, so a step must not search.
#[derive(Debug, Clone)]
struct Lookup {
    states: HashMap<String, usize>,
    starts: HashMap<String, usize>,
    /// Per state: where an event leads, or that it stays.
    ways: Vec<HashMap<String, Option<usize>>>,
    stays_anywhere: HashSet<String>,
}

impl Lookup {
    fn new(machine: &Machine) -> Self {
        let names = machine.states.iter().enumerate();
        let states: HashMap<String, usize> = names.map(|(at, state)| (state.name.clone(), at)).collect();
        let mut starts = HashMap::new();
        let mut ways = vec![HashMap::new(); machine.states.len()];
        let mut stays_anywhere = HashSet::new();
        for stay in &machine.stays {
            match &stay.state {
                None => drop(stays_anywhere.insert(stay.event.clone())),
                Some(state) => {
                    if let Some(&at) = states.get(state) {
                        ways[at].insert(stay.event.clone(), None);
                    }
                }
            }
        }
        for Transition { from, event, to } in &machine.transitions {
            let Some(&to) = states.get(to) else { continue };
            match from.as_ref().map(|from| states.get(from)) {
                None => drop(starts.insert(event.clone(), to)),
                Some(Some(&from)) => drop(ways[from].insert(event.clone(), Some(to))),
                // The check has refused undeclared states.
                Some(None) => {}
            }
        }
        Self { states, starts, ways, stays_anywhere }
    }

    /// `None`: not possible. `Some(None)`: stays. `Some(Some(to))`: moves.
    fn step(&self, from: Option<&str>, event: &str) -> Option<Option<usize>> {
        let Some(from) = from else { return self.starts.get(event).map(|&to| Some(to)) };
        let ways = &self.ways[*self.states.get(from)?];
        ways.get(event).copied().or_else(|| self.stays_anywhere.contains(event).then_some(None))
    }
}

#[cfg(test)]
mod tests;
