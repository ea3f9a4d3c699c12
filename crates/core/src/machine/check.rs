//! What can be wrong with a declared machine.

use std::collections::{HashMap, HashSet};

use super::{Machine, Transition};

/// All flaws of a machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the state machine {machine} has {}:{}", count(flaws), listed(flaws))]
pub struct MachineFlaws {
    /// The name of the machine.
    pub machine: String,
    /// What is wrong with it.
    pub flaws: Vec<Flaw>,
}

/// One thing that is wrong with a machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// No aggregate can begin to exist.
    #[error("no event starts it; declare one with starts(event, state)")]
    NoStart,
    /// A state is declared twice.
    #[error("state {state} is declared more than once; keep one of state, waits and terminal")]
    DuplicateState {
        /// The state.
        state: String,
    },
    /// A state is mentioned and not declared.
    #[error(
        "state {state} is used with {event} and not declared; declare it with state, waits or terminal, \
         or correct its spelling"
    )]
    UndeclaredState {
        /// The state.
        state: String,
        /// The event with which it is mentioned first.
        event: String,
    },
    /// Nothing leads to a state.
    #[error("state {state} cannot be reached; declare a transition to it, or remove it")]
    UnreachableState {
        /// The state.
        state: String,
    },
    /// Nothing leads out of a state that is not meant to be the end.
    #[error("state {state} has no way out; declare a transition from it, or declare it terminal")]
    DeadEnd {
        /// The state.
        state: String,
    },
    /// Something leads out of a state that is meant to be the end.
    #[error("terminal state {state} is left by {event}; remove the transition, or declare it a plain state")]
    TerminalWithWayOut {
        /// The state.
        state: String,
        /// The event that leads out of it.
        event: String,
    },
    /// The machine knows an event that the aggregate does not.
    #[error("nobody emits {event}; add it to the events of the aggregate, or remove it here")]
    NobodyEmits {
        /// The event.
        event: String,
    },
    /// The aggregate knows an event that the machine does not.
    #[error(
        "{event} is emitted and not mentioned; declare its transition, or stays(\"{event}\") if it changes no state"
    )]
    NotMentioned {
        /// The event.
        event: String,
    },
    /// An aggregate could wait for ever.
    #[error(
        "state {state} waits for {waits_for} without a deadline; give it Deadline::after(duration, event)"
    )]
    WaitsWithoutDeadline {
        /// The state.
        state: String,
        /// What it waits for.
        waits_for: String,
    },
    /// A deadline would pass and the aggregate would still be there.
    #[error(
        "the deadline of state {state} leads to {event}, which does not lead out of it; declare that transition"
    )]
    DeadlineLeadsNowhere {
        /// The state.
        state: String,
        /// The event of its deadline.
        event: String,
    },
    /// One event leads to two places.
    #[error("{event} leads from {} both to {first} and to {second}; keep one", from.as_deref().unwrap_or("the start"))]
    Ambiguous {
        /// The state it leaves; none at the start.
        from: Option<String>,
        /// The event.
        event: String,
        /// Where it leads first.
        first: String,
        /// Where else it leads. The state itself, if it was declared to stay.
        second: String,
    },
}

/// Everything that is wrong with a machine whose aggregate emits these events.
pub(super) fn flaws(machine: &Machine, emitted: &[&str]) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    if machine.transitions.iter().all(|transition| transition.from.is_some()) {
        flaws.push(Flaw::NoStart);
    }
    flaws.extend(wrong_declarations(machine));
    flaws.extend(wrong_ways(machine));
    flaws.extend(wrong_deadlines(machine));
    flaws.extend(ambiguities(machine));
    flaws.extend(wrong_events(machine, emitted));
    flaws
}

fn wrong_declarations(machine: &Machine) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    let mut declared = HashSet::new();
    let mut reported = HashSet::new();
    for state in machine.states.iter().map(|state| state.name.as_str()) {
        if !declared.insert(state) && reported.insert(state) {
            flaws.push(Flaw::DuplicateState { state: state.to_owned() });
        }
    }
    let moved = machine.transitions.iter().flat_map(|transition| {
        transition
            .from
            .iter()
            .chain([&transition.to])
            .map(|state| (state.as_str(), transition.event.as_str()))
    });
    let stayed = machine.stays.iter().filter_map(|stay| Some((stay.state.as_deref()?, stay.event.as_str())));
    for (state, event) in moved.chain(stayed) {
        if !declared.contains(state) && reported.insert(state) {
            flaws.push(Flaw::UndeclaredState { state: state.to_owned(), event: event.to_owned() });
        }
    }
    flaws
}

fn wrong_ways(machine: &Machine) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    let reachable = reachable(machine);
    let mut seen = HashSet::new();
    for state in machine.states.iter().filter(|state| seen.insert(state.name.as_str())) {
        // Without a start nothing is reachable, which is one flaw and not one per state.
        if !reachable.is_empty() && !reachable.contains(state.name.as_str()) {
            flaws.push(Flaw::UnreachableState { state: state.name.clone() });
        }
        let mut ways_out = ways_out(machine, &state.name).peekable();
        if !state.terminal && ways_out.peek().is_none() {
            flaws.push(Flaw::DeadEnd { state: state.name.clone() });
        }
        if state.terminal {
            let state = &state.name;
            let wrong = |way: &Transition| Flaw::TerminalWithWayOut {
                state: state.clone(),
                event: way.event.clone(),
            };
            flaws.extend(ways_out.map(wrong));
        }
    }
    flaws
}

fn wrong_deadlines(machine: &Machine) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    for state in &machine.states {
        match (&state.waits_for, &state.deadline) {
            (Some(waits_for), None) => flaws
                .push(Flaw::WaitsWithoutDeadline { state: state.name.clone(), waits_for: waits_for.clone() }),
            (_, Some(deadline)) if ways_out(machine, &state.name).all(|way| way.event != deadline.event) => {
                flaws.push(Flaw::DeadlineLeadsNowhere {
                    state: state.name.clone(),
                    event: deadline.event.clone(),
                });
            }
            _ => {}
        }
    }
    flaws
}

fn ambiguities(machine: &Machine) -> Vec<Flaw> {
    let moved =
        machine.transitions.iter().map(|way| (way.from.as_deref(), way.event.as_str(), way.to.as_str()));
    let stayed = machine.stays.iter().filter_map(|stay| {
        let state = stay.state.as_deref()?;
        Some((Some(state), stay.event.as_str(), state))
    });
    let mut first_targets = HashMap::new();
    let mut reported = HashSet::new();
    let mut flaws = Vec::new();
    for (from, event, to) in moved.chain(stayed) {
        let first = *first_targets.entry((from, event)).or_insert(to);
        if first != to && reported.insert((from, event, to)) {
            flaws.push(Flaw::Ambiguous {
                from: from.map(ToOwned::to_owned),
                event: event.to_owned(),
                first: first.to_owned(),
                second: to.to_owned(),
            });
        }
    }
    flaws
}

fn wrong_events(machine: &Machine, emitted: &[&str]) -> Vec<Flaw> {
    let moved = machine.transitions.iter().map(|transition| transition.event.as_str());
    let mentioned: Vec<&str> = moved.chain(machine.stays.iter().map(|stay| stay.event.as_str())).collect();
    let mut reported = HashSet::new();
    let unemitted = mentioned.iter().filter(|event| !emitted.contains(event)).map(|event| event.to_string());
    let mut flaws: Vec<Flaw> = unemitted
        .filter(|event| reported.insert(event.clone()))
        .map(|event| Flaw::NobodyEmits { event })
        .collect();
    let unmentioned =
        emitted.iter().filter(|event| !mentioned.contains(event)).map(|event| event.to_string());
    flaws.extend(
        unmentioned.filter(|event| reported.insert(event.clone())).map(|event| Flaw::NotMentioned { event }),
    );
    flaws
}

/// The states that some sequence of events leads to.
fn reachable(machine: &Machine) -> HashSet<&str> {
    let mut reachable = HashSet::new();
    let starts = machine.transitions.iter().filter(|transition| transition.from.is_none());
    let mut to_visit: Vec<&str> = starts.map(|transition| transition.to.as_str()).collect();
    while let Some(state) = to_visit.pop() {
        if reachable.insert(state) {
            to_visit.extend(ways_out(machine, state).map(|transition| transition.to.as_str()));
        }
    }
    reachable
}

fn ways_out<'a>(machine: &'a Machine, state: &str) -> impl Iterator<Item = &'a Transition> {
    machine.transitions.iter().filter(move |transition| transition.from.as_deref() == Some(state))
}

fn count(flaws: &[Flaw]) -> String {
    match flaws.len() {
        1 => "a flaw".to_owned(),
        number => format!("{number} flaws"),
    }
}

fn listed(flaws: &[Flaw]) -> String {
    flaws.iter().map(|flaw| format!("\n- {flaw}")).collect()
}
