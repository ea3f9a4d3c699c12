//! Texts of rules in which `{{ $value }}` and `{{ $labels.name }}` are filled in.

use super::condition::Labels;

/// How long a text may be once it is filled in.
const LONGEST: usize = 4_000;

/// A text with places to be filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Value,
    Label(String),
}

/// A text that cannot be filled in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{{{{{given}}}}} cannot be filled in; write {{{{ $value }}}} or {{{{ $labels.name }}}}")]
pub struct BadTemplate {
    given: String,
}

impl Template {
    /// Reads a text.
    ///
    /// # Errors
    /// It has something in braces that is not known here.
    pub fn read(text: &str) -> Result<Self, BadTemplate> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("{{") {
            parts.push(Part::Text(before.to_owned()));
            let (inside, after) = behind.split_once("}}").unwrap_or((behind, ""));
            let is_name = |name: &str| {
                !name.is_empty() && name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_')
            };
            parts.push(match inside.trim().trim_matches('-').trim() {
                "$value" | ".Value" => Part::Value,
                word => match word.strip_prefix("$labels.").or_else(|| word.strip_prefix(".Labels.")) {
                    Some(name) if is_name(name) => Part::Label(name.to_owned()),
                    _ => return Err(BadTemplate { given: inside.chars().take(60).collect() }),
                },
            });
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self { text: text.to_owned(), parts })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn has_value(&self) -> bool {
        self.parts.contains(&Part::Value)
    }

    /// Filled in. What is no label here is empty.
    pub fn filled(&self, labels: &Labels, value: f64) -> String {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Value => filled.push_str(&number(value)),
                Part::Label(name) => filled.push_str(labels.get(name).map_or("", String::as_str)),
            }
        }
        if filled.chars().nth(LONGEST).is_some() { filled.chars().take(LONGEST).collect() } else { filled }
    }
}

/// A value for people: no number is hundreds of digits long.
pub(super) fn number(value: f64) -> String {
    let is_plain = value == 0.0 || (1e-6..1e15).contains(&value.abs());
    if is_plain || !value.is_finite() { value.to_string() } else { format!("{value:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_labels_are_filled_in() {
        let labels = Labels::from([("queue".to_owned(), "mail {{ $value }}".to_owned())]);
        let filled = |text: &str, value| Template::read(text).unwrap().filled(&labels, value);
        assert_eq!(filled("{{ $labels.queue }} holds {{$value}}.", 1200.0), "mail {{ $value }} holds 1200.");
        assert_eq!(filled("{{ .Value }}{{ $labels.nothing }}", 0.25), "0.25");
        assert_eq!(filled("{{ $value }}", 1e300), "1e300");
        assert_eq!(filled("plain 100%", 0.0), "plain 100%");
        for wrong in ["{{ $value | humanize }}", "{{ open", "{{ $labels. }}", "{{}}"] {
            assert!(Template::read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(filled(&"x".repeat(9000), 0.0).len(), 4000);
    }
}
