//! A flow: the commands and events that share a correlation id, held together by their causation ids.
//!
//! Every command names the event that caused it and every event the command (or event) that caused it, so a flow
//! is a forest whose roots came from outside. This module finds where that is not so, and arranges the flow for
//! reading. Both are answered for any input, also for what a bug or a hand-edited database left behind.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;
use uuid::Uuid;

/// A command of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowCommand {
    /// Its id.
    pub command_id: String,
    /// Its type.
    pub command_type: String,
    /// The id of what caused it; nothing for a command from outside.
    pub causation_id: Option<String>,
}

/// An event of a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowEvent {
    /// Its id.
    pub event_id: String,
    /// Its type.
    pub event_type: String,
    /// The id of what caused it; nothing only for the root types of an application.
    pub causation_id: Option<String>,
}

/// What a node of a flow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FlowKind {
    /// A command.
    Command,
    /// An event.
    Event,
}

/// What a flow looks like when every link is followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowReport {
    /// Whether the chain is whole: nothing broken, no orphans, no cycles.
    pub whole: bool,
    /// The nodes whose cause is not in the flow.
    pub broken: Vec<BrokenLink>,
    /// The events that name no cause although their type is no root type.
    pub orphans: Vec<String>,
    /// The ids at which the flow begins: commands from outside, and events of a root type without a cause.
    pub roots: Vec<String>,
    /// The ids that caused each other in a circle, each circle once, a cause before its effect.
    pub cycles: Vec<Vec<String>>,
}

/// A node whose cause is not in the flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BrokenLink {
    /// What the node is.
    pub kind: FlowKind,
    /// Its id.
    pub id: String,
    /// The causation id that leads nowhere.
    pub missing_causation_id: String,
}

/// One line of an arranged flow.
///
/// The lines refer to each other by index instead of containing each other: a flow that goes round for weeks is
/// a chain of many thousands, too deep to nest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowNode {
    /// What it is.
    pub kind: FlowKind,
    /// Its id.
    pub id: String,
    /// Its command or event type.
    pub name: String,
    /// How many causes lie above it; 0 for a root.
    pub depth: usize,
    /// The indices of what it caused. All are greater than its own.
    pub children: Vec<usize>,
}

/// The correlation id of a flow that begins: `flow-<uuid>`.
pub fn new_correlation_id(uuid: Uuid) -> String {
    format!("flow-{uuid}")
}

/// Follows every causation id of a flow. Events of `root_event_types` may have no cause.
pub fn validate_flow(
    commands: &[FlowCommand],
    events: &[FlowEvent],
    root_event_types: &[&str],
) -> FlowReport {
    let flow = Flow::new(commands, events);
    let mut report = FlowReport {
        whole: true,
        broken: Vec::new(),
        orphans: Vec::new(),
        roots: Vec::new(),
        cycles: Vec::new(),
    };
    for (node, cause) in flow.nodes.iter().zip(&flow.causes) {
        match (node.causation_id, cause) {
            (Some(missing), None) => report.broken.push(BrokenLink {
                kind: node.kind,
                id: node.id.to_owned(),
                missing_causation_id: missing.to_owned(),
            }),
            (Some(_), Some(_)) => {}
            (None, _) if node.kind == FlowKind::Command || root_event_types.contains(&node.name) => {
                report.roots.push(node.id.to_owned());
            }
            (None, _) => report.orphans.push(node.id.to_owned()),
        }
    }
    report.cycles = flow
        .cycles()
        .iter()
        .map(|cycle| cycle.iter().map(|&at| flow.nodes[at].id.to_owned()).collect())
        .collect();
    report.whole = report.broken.is_empty() && report.orphans.is_empty() && report.cycles.is_empty();
    report
}

/// Arranges a flow as a forest: every node once, each directly followed by what it caused.
///
/// Siblings keep the order in which they were given, commands before events. A node whose cause is missing begins
/// a tree of its own; a circle is cut above the node that was given first.
pub fn arrange_flow(commands: &[FlowCommand], events: &[FlowEvent]) -> Vec<FlowNode> {
    let flow = Flow::new(commands, events);
    let cut: BTreeSet<usize> = flow.cycles().iter().filter_map(|cycle| cycle.first().copied()).collect();
    let mut effects: Vec<Vec<usize>> = vec![Vec::new(); flow.nodes.len()];
    let mut roots = Vec::new();
    for (at, cause) in flow.causes.iter().enumerate() {
        match cause {
            Some(cause) if !cut.contains(&at) => effects[*cause].push(at),
            _ => roots.push(at),
        }
    }
    let mut arranged: Vec<FlowNode> = Vec::with_capacity(flow.nodes.len());
    // A stack instead of recursion, for the same reason for which the lines are not nested.
    let mut to_place: Vec<(usize, Option<usize>)> =
        roots.into_iter().rev().map(|root| (root, None)).collect();
    while let Some((at, above)) = to_place.pop() {
        let index = arranged.len();
        let mut depth = 0;
        if let Some(above) = above {
            arranged[above].children.push(index);
            depth = arranged[above].depth + 1;
        }
        let node = &flow.nodes[at];
        let (id, name) = (node.id.to_owned(), node.name.to_owned());
        arranged.push(FlowNode { kind: node.kind, id, name, depth, children: Vec::new() });
        to_place.extend(effects[at].iter().rev().map(|&effect| (effect, Some(index))));
    }
    arranged
}

struct Node<'a> {
    kind: FlowKind,
    id: &'a str,
    name: &'a str,
    causation_id: Option<&'a str>,
}

/// Commands, then events, each with the index of its cause.
struct Flow<'a> {
    nodes: Vec<Node<'a>>,
    causes: Vec<Option<usize>>,
}

impl<'a> Flow<'a> {
    fn new(commands: &'a [FlowCommand], events: &'a [FlowEvent]) -> Self {
        let commands = commands.iter().map(|command| Node {
            kind: FlowKind::Command,
            id: &command.command_id,
            name: &command.command_type,
            causation_id: command.causation_id.as_deref(),
        });
        let events = events.iter().map(|event| Node {
            kind: FlowKind::Event,
            id: &event.event_id,
            name: &event.event_type,
            causation_id: event.causation_id.as_deref(),
        });
        let nodes: Vec<Node<'a>> = commands.chain(events).collect();
        let mut index: HashMap<(FlowKind, &str), usize> = HashMap::new();
        for (at, node) in nodes.iter().enumerate() {
            index.entry((node.kind, node.id)).or_insert(at);
        }
        let causes = nodes
            .iter()
            .map(|node| {
                let cause = node.causation_id?;
                // Senders choose command ids, so one may equal an event id. The usual alternation decides then.
                let kinds = match node.kind {
                    FlowKind::Command => [FlowKind::Event, FlowKind::Command],
                    FlowKind::Event => [FlowKind::Command, FlowKind::Event],
                };
                kinds.iter().find_map(|kind| index.get(&(*kind, cause))).copied()
            })
            .collect();
        Self { nodes, causes }
    }

    /// The circles, each from its first given node on, a cause before its effect.
    fn cycles(&self) -> Vec<Vec<usize>> {
        let mut cycles = Vec::new();
        // In which walk a node was first met. A node has one cause at most, so every walk is a line: it ends at a
        // root, in a line that was walked before, or in itself.
        let mut met: Vec<Option<usize>> = vec![None; self.nodes.len()];
        for walk in 0..self.nodes.len() {
            let mut at = Some(walk);
            while let Some(node) = at.filter(|&node| met[node].is_none()) {
                met[node] = Some(walk);
                at = self.causes[node];
            }
            let Some(entry) = at.filter(|&node| met[node] == Some(walk)) else { continue };
            let mut cycle = vec![entry];
            let mut next = self.causes[entry];
            while let Some(node) = next.filter(|&node| node != entry) {
                cycle.push(node);
                next = self.causes[node];
            }
            cycle.reverse();
            let first = cycle.iter().enumerate().min_by_key(|(_, node)| **node).map_or(0, |(place, _)| place);
            cycle.rotate_left(first);
            cycles.push(cycle);
        }
        cycles
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn command(id: &str, cause: Option<&str>) -> FlowCommand {
        FlowCommand {
            command_id: id.to_owned(),
            command_type: format!("do.{id}"),
            causation_id: cause.map(ToOwned::to_owned),
        }
    }

    fn event(id: &str, cause: Option<&str>) -> FlowEvent {
        FlowEvent {
            event_id: id.to_owned(),
            event_type: format!("{id}.done"),
            causation_id: cause.map(ToOwned::to_owned),
        }
    }

    /// The forest as text, one node per line.
    fn drawn(nodes: &[FlowNode]) -> String {
        nodes.iter().map(|node| format!("{}{}\n", "  ".repeat(node.depth), node.id)).collect()
    }

    #[test]
    fn a_correlation_id_is_flow_and_a_uuid() {
        assert_eq!(new_correlation_id(Uuid::nil()), "flow-00000000-0000-0000-0000-000000000000");
    }

    #[test]
    fn a_whole_flow_is_arranged_by_causation() {
        let commands = [command("start", None), command("request", Some("started"))];
        let events = [
            event("started", Some("start")),
            event("logged", Some("start")),
            event("requested", Some("request")),
            event("noted", Some("requested")),
        ];
        let report = validate_flow(&commands, &events, &[]);
        assert!(report.whole, "{report:?}");
        assert_eq!(report.roots, ["start"]);
        let nodes = arrange_flow(&commands, &events);
        assert_eq!(
            drawn(&nodes),
            "start\n  started\n    request\n      requested\n        noted\n  logged\n"
        );
        assert_eq!(nodes[0].children, [1, 5]);
        assert_eq!((nodes[2].kind, nodes[2].name.as_str()), (FlowKind::Command, "do.request"));
    }

    #[test]
    fn broken_links_and_orphans_are_found() {
        let commands = [command("late", Some("lost-event"))];
        let events = [event("begun", None), event("orphan", None), event("cut", Some("lost-command"))];
        let report = validate_flow(&commands, &events, &["begun.done"]);
        assert!(!report.whole);
        let broken: Vec<_> =
            report.broken.iter().map(|link| (link.id.as_str(), link.missing_causation_id.as_str())).collect();
        assert_eq!(broken, [("late", "lost-event"), ("cut", "lost-command")]);
        assert_eq!(report.orphans, ["orphan"]);
        assert_eq!(report.roots, ["begun"]);
        assert_eq!(drawn(&arrange_flow(&commands, &events)), "late\nbegun\norphan\ncut\n");
    }

    #[test]
    fn a_circle_is_reported_once_and_cut_above_its_first_node() {
        let commands = [command("a", Some("z")), command("b", Some("y"))];
        let events = [event("z", Some("b")), event("y", Some("a")), event("self", Some("self"))];
        let report = validate_flow(&commands, &events, &[]);
        assert_eq!(report.cycles, [vec!["a", "y", "b", "z"], vec!["self"]]);
        assert!(!report.whole && report.roots.is_empty());
        assert_eq!(drawn(&arrange_flow(&commands, &events)), "a\n  y\n    b\n      z\nself\n");
    }

    #[test]
    fn a_command_id_may_equal_an_event_id() {
        let commands = [command("7", None)];
        let events = [event("7", Some("7"))];
        assert!(validate_flow(&commands, &events, &[]).whole);
        assert_eq!(drawn(&arrange_flow(&commands, &events)), "7\n  7\n");
    }

    #[test]
    fn nothing_is_whole() {
        assert!(validate_flow(&[], &[], &[]).whole);
        assert!(arrange_flow(&[], &[]).is_empty());
    }

    #[test]
    fn a_very_long_chain_does_not_exhaust_the_stack() {
        let events: Vec<_> = (0..100_000_u32)
            .map(|at| event(&at.to_string(), at.checked_sub(1).map(|cause| cause.to_string()).as_deref()))
            .collect();
        assert!(validate_flow(&[], &events, &["0.done"]).whole);
        assert_eq!(arrange_flow(&[], &events).last().unwrap().depth, 99_999);
    }

    #[test]
    fn reports_are_camel_case() {
        let json = serde_json::to_value(validate_flow(&[command("a", Some("x"))], &[], &[])).unwrap();
        assert_eq!(json["broken"][0]["missingCausationId"], "x");
        assert_eq!(json["broken"][0]["kind"], "command");
    }

    /// Any links among a few ids, so that broken links, circles and doubled ids all occur.
    fn flows() -> impl Strategy<Value = (Vec<FlowCommand>, Vec<FlowEvent>)> {
        let links = || proptest::collection::vec(("[a-h]", proptest::option::of("[a-i]")), 0..8);
        (links(), links()).prop_map(|(commands, events)| {
            (
                commands.iter().map(|(id, cause)| command(id, cause.as_deref())).collect(),
                events.iter().map(|(id, cause)| event(id, cause.as_deref())).collect(),
            )
        })
    }

    proptest! {
        #[test]
        fn every_node_is_arranged_once_and_below_its_cause((commands, events) in flows()) {
            let nodes = arrange_flow(&commands, &events);
            let mut arranged: Vec<_> = nodes.iter().map(|node| (node.kind, node.id.clone())).collect();
            let mut given: Vec<_> = commands.iter().map(|it| (FlowKind::Command, it.command_id.clone())).collect();
            given.extend(events.iter().map(|it| (FlowKind::Event, it.event_id.clone())));
            arranged.sort();
            given.sort();
            prop_assert_eq!(arranged, given);

            let mut causes = vec![0; nodes.len()];
            for (at, node) in nodes.iter().enumerate() {
                for &child in &node.children {
                    prop_assert!(child > at);
                    prop_assert_eq!(nodes[child].depth, node.depth + 1);
                    causes[child] += 1;
                }
            }
            for (node, causes) in nodes.iter().zip(causes) {
                prop_assert_eq!(causes, usize::from(node.depth > 0));
            }
        }

        #[test]
        fn a_flow_is_whole_exactly_when_its_trees_begin_at_its_roots((commands, events) in flows()) {
            let report = validate_flow(&commands, &events, &[]);
            let trees = arrange_flow(&commands, &events).iter().filter(|node| node.depth == 0).count();
            let excused = report.broken.len() + report.orphans.len() + report.cycles.len();
            prop_assert_eq!(trees, report.roots.len() + excused);
            prop_assert_eq!(report.whole, excused == 0);
        }
    }
}
