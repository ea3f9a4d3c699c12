//! A checked machine as a drawing.
//!
//! States stand in columns, by how many events they are away from the beginning. What leads to the next column is a
//! curve; everything else runs in a track of its own above or below the states, and in a slot of its own between two
//! columns, so that no line passes through a state and no two lines lie on each other.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;

use super::{CheckedMachine, State};
use crate::retry::duration_text;

const LETTER: usize = 8;
const LINE: usize = 18;
const MARGIN: usize = 24;
const ROW_GAP: usize = 36;
const SLOT: usize = 10;

/// Draws the machine. The order is that of the declaration, so the same machine is always the same drawing.
pub(super) fn draw(machine: &CheckedMachine) -> String {
    let nodes = nodes(machine);
    let edges = edges(machine, &nodes);
    let place = Place::of(&nodes, &edges);
    let mut drawing = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\" \
         aria-label=\"{}\" font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"13\">\n\
         <style>.box{{fill:#f6f8fa;stroke:#57606a}}.end{{fill:none;stroke:#57606a}}.edge{{fill:none;stroke:#57606a}}\
         .name{{fill:#1f2328;font-weight:600}}.note{{fill:#57606a;font-size:11px}}.label{{fill:#0550ae}}\
         .behind{{fill:#fff;fill-opacity:.85}}</style>\n\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" markerHeight=\"8\" \
         orient=\"auto\"><path d=\"M0 0 8 4 0 8z\" fill=\"#57606a\"/></marker></defs>\n\
         <rect width=\"{w}\" height=\"{h}\" fill=\"#fff\"/>\n",
        escaped(machine.name()),
        w = place.width,
        h = place.height,
    );
    let mut labels = String::new();
    for edge in &edges {
        place.draw_edge(edge, &nodes, &mut drawing, &mut labels);
    }
    for (at, node) in nodes.iter().enumerate() {
        place.draw_node(at, node, &mut drawing);
    }
    drawing + &labels + "</svg>\n"
}

/// A state, or (the first one) what is before any.
struct Node<'a> {
    state: Option<&'a State>,
    notes: Vec<String>,
    column: usize,
    row: usize,
}

impl Node<'_> {
    fn width(&self) -> usize {
        let Some(state) = self.state else { return 16 };
        let longest = self.notes.iter().map(|note| letters(note) * 7 / LETTER).max().unwrap_or(0);
        letters(&state.name).max(longest) * LETTER + 24
    }

    fn height(&self) -> usize {
        if self.state.is_some() { LINE * (1 + self.notes.len()) + 14 } else { 16 }
    }
}

/// All events that lead from one state to another.
struct Edge<'a> {
    from: usize,
    to: usize,
    events: Vec<&'a str>,
    /// Which track above (forward) or below (backward) it runs in; `None` for one that leads to the next column.
    track: Option<usize>,
}

fn nodes(machine: &CheckedMachine) -> Vec<Node<'_>> {
    let mut columns: HashMap<Option<&str>, usize> = HashMap::from([(None, 0)]);
    let mut reached = vec![None];
    let mut at = 0;
    while let Some(&from) = reached.get(at) {
        let column = columns.get(&from).copied().unwrap_or_default();
        for step in machine.transitions().iter().filter(|step| step.from.as_deref() == from) {
            let to = Some(step.to.as_str());
            if let Entry::Vacant(place) = columns.entry(to) {
                place.insert(column + 1);
                reached.push(to);
            }
        }
        at += 1;
    }
    let mut rows: HashMap<usize, usize> = HashMap::new();
    let find = |name: Option<&str>| machine.states().iter().find(|state| Some(state.name.as_str()) == name);
    let node = |name: Option<&str>| {
        let (state, column) = (find(name), columns.get(&name).copied().unwrap_or_default());
        let row = rows.entry(column).or_default();
        *row += 1;
        Node { state, notes: state.map(notes).unwrap_or_default(), column, row: *row - 1 }
    };
    reached.iter().copied().map(node).collect()
}

fn notes(state: &State) -> Vec<String> {
    let waits = state.waits_for.iter().map(|what| format!("waits for {what}"));
    let deadline = state
        .deadline
        .iter()
        .map(|deadline| format!("after {}: {}", duration_text::format(deadline.after), deadline.event));
    waits.chain(deadline).collect()
}

fn edges<'a>(machine: &'a CheckedMachine, nodes: &[Node<'_>]) -> Vec<Edge<'a>> {
    let find = |name: Option<&str>| {
        nodes.iter().position(|node| node.state.map(|state| state.name.as_str()) == name).unwrap_or_default()
    };
    let mut edges: Vec<Edge<'a>> = Vec::new();
    for step in machine.transitions() {
        let (from, to) = (find(step.from.as_deref()), find(Some(&step.to)));
        match edges.iter_mut().find(|edge| (edge.from, edge.to) == (from, to)) {
            Some(edge) => edge.events.push(&step.event),
            None => edges.push(Edge { from, to, events: vec![&step.event], track: None }),
        }
    }
    let (mut above, mut below) = (0, 0);
    for edge in &mut edges {
        let (from, to) = (nodes[edge.from].column, nodes[edge.to].column);
        if to != from + 1 {
            let tracks = if to > from { &mut above } else { &mut below };
            edge.track = Some(*tracks);
            *tracks += edge.events.len();
        }
    }
    edges
}

/// Where everything stands.
struct Place {
    /// Left edge and width of each column.
    columns: Vec<(usize, usize)>,
    /// The first line of states.
    top: usize,
    /// The line below the last state.
    bottom: usize,
    row_height: usize,
    width: usize,
    height: usize,
    /// Which edges have a slot beside a column, in order.
    leaving: HashMap<usize, Vec<(usize, usize)>>,
    entering: HashMap<usize, Vec<(usize, usize)>>,
}

impl Place {
    fn of(nodes: &[Node<'_>], edges: &[Edge<'_>]) -> Self {
        let (mut leaving, mut entering): (HashMap<usize, Vec<_>>, HashMap<usize, Vec<_>>) =
            Default::default();
        for edge in edges.iter().filter(|edge| edge.track.is_some()) {
            leaving.entry(nodes[edge.from].column).or_default().push((edge.from, edge.to));
            entering.entry(nodes[edge.to].column).or_default().push((edge.from, edge.to));
        }
        let slots = |slots: &HashMap<usize, Vec<_>>, column| slots.get(&column).map_or(0, Vec::len) * SLOT;
        let last = nodes.iter().map(|node| node.column).max().unwrap_or(0);
        let (mut columns, mut x) = (Vec::new(), MARGIN);
        for column in 0..=last {
            x += slots(&entering, column) + SLOT;
            let width = nodes.iter().filter(|node| node.column == column).map(Node::width).max().unwrap_or(0);
            columns.push((x, width));
            let direct =
                edges.iter().filter(|edge| edge.track.is_none() && nodes[edge.from].column == column);
            let label = direct.flat_map(|edge| &edge.events).map(|event| letters(event)).max().unwrap_or(2);
            x += width + slots(&leaving, column) + SLOT + if column < last { label * LETTER + 40 } else { 0 };
        }
        let tracks = |forward: bool| {
            let towards = |edge: &&Edge<'_>| (nodes[edge.to].column > nodes[edge.from].column) == forward;
            let lines = edges.iter().filter(towards).filter(|edge| edge.track.is_some());
            lines.map(|edge| edge.events.len()).sum::<usize>() * (LINE + 4)
        };
        let rows = nodes.iter().map(|node| node.row + 1).max().unwrap_or(1);
        let row_height = nodes.iter().map(Node::height).max().unwrap_or(0) + ROW_GAP;
        let top = MARGIN + tracks(true);
        let bottom = top + rows * row_height;
        // A label may be longer than what it stands over.
        let longest = edges.iter().filter(|edge| edge.track.is_some()).flat_map(|edge| &edge.events);
        let widest = longest.map(|event| letters(event) * LETTER).max().unwrap_or(0) + 2 * MARGIN;
        Self {
            columns,
            top,
            bottom,
            row_height,
            width: (x + MARGIN).max(widest),
            height: bottom + tracks(false) + MARGIN,
            leaving,
            entering,
        }
    }

    /// The left edge and the middle line of a node.
    fn corner(&self, node: &Node<'_>) -> (usize, usize) {
        let (left, width) = self.columns[node.column];
        (left + (width - node.width()) / 2, self.top + node.row * self.row_height + self.row_height / 2)
    }

    fn draw_node(&self, at: usize, node: &Node<'_>, drawing: &mut String) {
        let (x, middle) = self.corner(node);
        let (width, height) = (node.width(), node.height());
        let y = middle - height / 2;
        let Some(state) = node.state.filter(|_| at > 0) else {
            let _ = writeln!(drawing, "<circle cx=\"{}\" cy=\"{middle}\" r=\"8\" fill=\"#1f2328\"/>", x + 8);
            return;
        };
        let _ = writeln!(
            drawing,
            "<rect class=\"box\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>"
        );
        if state.terminal {
            let _ = writeln!(
                drawing,
                "<rect class=\"end\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\"/>",
                x + 3,
                y + 3,
                width - 6,
                height - 6
            );
        }
        let centre = x + width / 2;
        let mut line = y + LINE + 3;
        let _ = writeln!(
            drawing,
            "<text class=\"name\" x=\"{centre}\" y=\"{line}\" text-anchor=\"middle\">{}</text>",
            escaped(&state.name)
        );
        for note in &node.notes {
            line += LINE;
            let _ = writeln!(
                drawing,
                "<text class=\"note\" x=\"{centre}\" y=\"{line}\" text-anchor=\"middle\">{}</text>",
                escaped(note)
            );
        }
    }

    fn draw_edge(&self, edge: &Edge<'_>, nodes: &[Node<'_>], drawing: &mut String, labels: &mut String) {
        let (from, to) = (&nodes[edge.from], &nodes[edge.to]);
        let ((from_left, from_y), (to_x, to_y)) = (self.corner(from), self.corner(to));
        let from_x = from_left + from.width();
        let Some(track) = edge.track else {
            let middle = (from_x + to_x) / 2;
            let _ = writeln!(
                drawing,
                "<path class=\"edge\" marker-end=\"url(#tip)\" \
                 d=\"M{from_x} {from_y}C{middle} {from_y} {middle} {to_y} {to_x} {to_y}\"/>"
            );
            // Nearer to where it leads: there the curves of one state have parted.
            let y = (from_y + 2 * to_y) / 3;
            write_labels(labels, &edge.events, (from_x + 2 * to_x) / 3 - 8, y + 4);
            return;
        };
        let slot = |slots: &HashMap<usize, Vec<_>>, column: usize| {
            let known =
                slots.get(&column).and_then(|slots| slots.iter().position(|at| *at == (edge.from, edge.to)));
            (known.unwrap_or_default() + 1) * SLOT
        };
        let (from_column, to_column) = (self.columns[from.column], self.columns[to.column]);
        let out = from_column.0 + from_column.1 + slot(&self.leaving, from.column);
        let back = to_column.0.saturating_sub(slot(&self.entering, to.column));
        let forward = to.column > from.column;
        let depth = (track + 1) * (LINE + 4);
        let y = if forward { self.top - depth + LINE / 2 } else { self.bottom + depth - LINE / 2 };
        // A little apart, so that lines out of and into one state can be told.
        let nudge = |height: usize| (4 * (track + 1)).min(height / 2 - 4);
        let (from_y, to_y) = match forward {
            true => (from_y - nudge(from.height().max(16)), to_y - nudge(to.height().max(16))),
            false => (from_y + nudge(from.height().max(16)), to_y + nudge(to.height().max(16))),
        };
        let _ = writeln!(
            drawing,
            "<path class=\"edge\" marker-end=\"url(#tip)\" d=\"M{from_x} {from_y}H{out}V{y}H{back}V{to_y}H{to_x}\"/>"
        );
        write_labels(labels, &edge.events, (out + back) / 2, y + 4);
    }
}

fn write_labels(labels: &mut String, events: &[&str], x: usize, y: usize) {
    for (line, event) in events.iter().enumerate() {
        let (width, y) = (letters(event) * LETTER + 6, y + line * LINE);
        let _ = writeln!(
            labels,
            "<rect class=\"behind\" x=\"{}\" y=\"{}\" width=\"{width}\" height=\"{LINE}\"/>\
             <text class=\"label\" x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{}</text>",
            x.saturating_sub(width / 2),
            y - 13,
            escaped(event)
        );
    }
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

/// A text as XML has it.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Deadline, Machine};

    #[test]
    fn every_state_and_event_is_drawn_and_stays_on_the_sheet() {
        let events = ["placed", "paid", "shipped", "completed", "cancelled", "re<opened>"];
        let machine = Machine::named("order")
            .starts("placed", "pending")
            .waits("pending", Deadline::after(Duration::from_secs(900), "cancelled"), "payment & luck")
            .state("paid")
            .state("shipped")
            .terminal("completed")
            .state("cancelled")
            .transition("pending", "paid", "paid")
            .transition("paid", "shipped", "shipped")
            .transition("shipped", "completed", "completed")
            .transition("pending", "cancelled", "cancelled")
            .transition("pending", "completed", "completed")
            .transition("cancelled", "re<opened>", "pending")
            .transition("shipped", "re<opened>", "pending")
            .check(&events)
            .unwrap();
        let drawing = machine.to_svg();
        for text in
            ["pending", "paid", "shipped", "completed", "cancelled", "re&lt;opened&gt;", "payment &amp; luck"]
        {
            assert!(drawing.contains(&format!(">{text}<")) || drawing.contains(text), "{text}");
        }
        assert_eq!(drawing.matches("class=\"box\"").count(), 5);
        assert_eq!(drawing.matches("class=\"end\"").count(), 1, "the terminal state has a second border");
        assert_eq!(drawing.matches("marker-end").count(), machine.transitions().len());
        let attribute = |text: &str, name: &str| -> i64 {
            let value = text.split(&format!(" {name}=\"")).nth(1).unwrap().split('"').next().unwrap();
            value.parse().unwrap()
        };
        let (width, height) = (attribute(&drawing, "width"), attribute(&drawing, "height"));
        let mut boxes: Vec<[i64; 4]> = Vec::new();
        for tag in drawing.split('<').filter(|tag| tag.starts_with("rect class=\"box\"")) {
            let [x, y, w, h] = ["x", "y", "width", "height"].map(|name| attribute(tag, name));
            assert!(x >= 0 && y >= 0 && x + w <= width && y + h <= height, "{tag}");
            let apart = |other: &[i64; 4]| {
                x + w <= other[0] || other[0] + other[2] <= x || y + h <= other[1] || other[1] + other[3] <= y
            };
            assert!(boxes.iter().all(apart), "{tag} lies on another one");
            boxes.push([x, y, w, h]);
        }
        assert_eq!(drawing, machine.to_svg());
    }
}
