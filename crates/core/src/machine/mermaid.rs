//! A checked machine as Mermaid text.

use std::collections::HashMap;
use std::fmt::Write;

use super::CheckedMachine;
use crate::retry::duration_text;

/// Draws the machine. The order is that of the declaration, so the same machine is always the same text.
pub(super) fn draw(machine: &CheckedMachine) -> String {
    let ids = ids(machine);
    let id = |state: &str| ids.get(state).map_or(state, String::as_str).to_owned();
    let mut lines = vec!["stateDiagram-v2".to_owned()];
    for state in machine.states() {
        let id = id(&state.name);
        if id != state.name {
            lines.push(format!("    state \"{}\" as {id}", label(&state.name)));
        }
    }
    for transition in machine.transitions() {
        let from = transition.from.as_deref().map_or_else(|| "[*]".to_owned(), id);
        lines.push(format!("    {from} --> {} : {}", id(&transition.to), label(&transition.event)));
    }
    for state in machine.states().iter().filter(|state| state.terminal) {
        lines.push(format!("    {} --> [*]", id(&state.name)));
    }
    for state in machine.states() {
        if let (Some(waits_for), Some(deadline)) = (&state.waits_for, &state.deadline) {
            let (id, after) = (id(&state.name), duration_text::format(deadline.after));
            let (waits_for, event) = (label(waits_for), label(&deadline.event));
            lines.push(format!("    note right of {id} : waits for {waits_for}, after {after} {event}"));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Words that Mermaid's parser takes for the beginning of a statement, in any case; each was tried.
const RESERVED: &[&str] = &[
    "accdescr",
    "acctitle",
    "class",
    "classdef",
    "click",
    "default",
    "href",
    "note",
    "scale",
    "state",
    "statediagram",
    "style",
];

/// The id of each state: its name where Mermaid can read that, and otherwise an alias that no state has as a name.
fn ids(machine: &CheckedMachine) -> HashMap<&str, String> {
    let names: Vec<&str> = machine.states().iter().map(|state| state.name.as_str()).collect();
    names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let mut id = (*name).to_owned();
            if !is_plain(name) {
                id = format!("state_{}", at + 1);
                while names.contains(&id.as_str()) {
                    id.push('_');
                }
            }
            (*name, id)
        })
        .collect()
}

fn is_plain(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        && !RESERVED.contains(&name.to_ascii_lowercase().as_str())
}

/// A text with Mermaid's own escapes for what would end it early.
fn label(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '#' | ':' | ';' | '"' | '<' | '>' | '{' | '}' | '%' => {
                // Writing to a String cannot fail.
                let _ = write!(escaped, "#{};", u32::from(letter));
            }
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}
