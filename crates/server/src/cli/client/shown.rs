//! How answers are shown to people: tables, and a field a line.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

use crate::cli::output;

/// A table with a line per thing. A column is a heading and the way to its value, with dots.
pub(crate) fn table(things: &Value, columns: &[(&str, &str)]) {
    let things = things.as_array().map(Vec::as_slice).unwrap_or_default();
    if things.is_empty() {
        output::note("nothing");
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|(heading, _)| *heading));
    for thing in things {
        table.add_row(columns.iter().map(|(_, way)| cell(at(thing, way))));
    }
    print(&table);
}

/// Everything that is known of one thing, a line each.
pub(super) fn fields(thing: &Value) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    add_fields(&mut table, "", thing);
    print(&table);
}

/// Without the room that cells have at their sides.
fn print(table: &Table) {
    for line in table.lines() {
        output::line(line.strip_prefix(' ').unwrap_or(&line).trim_end());
    }
}

fn add_fields(table: &mut Table, before: &str, thing: &Value) {
    for (name, value) in thing.as_object().into_iter().flatten() {
        let name = if before.is_empty() { name.clone() } else { format!("{before}.{name}") };
        match value {
            Value::Null => {}
            // Payloads and values of applications are one thing.
            Value::Object(inside) if !inside.is_empty() && !["payload", "value"].contains(&name.as_str()) => {
                add_fields(table, &name, value);
            }
            value => {
                table.add_row([name, cell(value)]);
            }
        }
    }
}

/// That something was left out at the end.
pub(super) fn more(answer: &Value, shown: usize, limit: u32) {
    if shown == limit as usize {
        output::note(&format!("there may be more: --after {}", cell(&answer["next"])));
    }
}

/// The value at the end of a way.
pub(super) fn at<'v>(thing: &'v Value, way: &str) -> &'v Value {
    way.split('.').fold(thing, |value, step| &value[step])
}

/// A value as a text without line breaks.
pub(super) fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(things) if things.iter().all(Value::is_string) => {
            things.iter().map(cell).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    };
    // What others have written must not steer the terminal.
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_one_line_whatever_is_in_it() {
        assert_eq!(cell(&serde_json::json!("a\u{1b}[31m\nb")), "a [31m b");
        assert_eq!(cell(&serde_json::json!(["a", "b"])), "a, b");
        assert_eq!(cell(&Value::Null), "-");
        assert_eq!(at(&serde_json::json!({"a": {"b": 1}}), "a.b"), 1);
        assert_eq!(at(&serde_json::json!({"a": 1}), "a.b.c"), &Value::Null);
    }
}
