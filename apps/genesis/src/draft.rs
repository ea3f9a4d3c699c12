//! What is written in a session: drafts, and the brief that a writer gets.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::stage::Stage;

/// The most bytes of a draft's text. A branch carries all of a session's texts in one fact.
pub const LONGEST_TEXT: usize = 64 << 10;
/// The most bytes of a title.
pub const LONGEST_TITLE: usize = 512;
/// The most bytes of what a user says: the first input, or instructions.
pub const LONGEST_INPUT: usize = 16 << 10;

/// A text with a title: what is proposed and confirmed in each stage.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Draft {
    /// The title.
    #[serde(default)]
    pub title: String,
    /// The text.
    pub text: String,
}

/// What was confirmed so far.
pub type Confirmed = BTreeMap<Stage, Draft>;

/// Who is what to whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Relation {
    /// Who.
    pub from: String,
    /// To whom.
    pub to: String,
    /// What: sister, rival, teacher.
    pub relation: String,
}

/// All that a writer needs to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Brief {
    /// What is to be written.
    pub entity: Stage,
    /// The how-manieth time the session asks for it.
    pub ask: u64,
    /// What the session began with.
    pub initial_input: String,
    /// What the user likes.
    #[serde(default)]
    pub preferences: Map<String, Value>,
    /// What was confirmed so far.
    #[serde(default)]
    pub confirmed: Confirmed,
    /// Who is what to whom, if that was said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<Relation>,
    /// What the user wants to be heeded this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

impl Draft {
    /// What a worker answered: a text, an object with `text` and perhaps `title`, or whatever else it has said in fields.
    ///
    /// # Errors
    /// Why it cannot be kept.
    pub fn answered(answer: Value) -> Result<Self, String> {
        let draft = match answer {
            Value::String(text) => Self { title: String::new(), text },
            Value::Object(fields) if fields.get("text").is_some_and(Value::is_string) => {
                serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())?
            }
            Value::Object(fields) => Self { title: String::new(), text: text_of(fields).unwrap_or_default() },
            _ => return Err("it is neither a text nor an object".to_owned()),
        };
        draft.check().map(|()| draft)
    }

    /// Whether it can be kept.
    pub fn check(&self) -> Result<(), String> {
        check_text("title", &self.title, LONGEST_TITLE)?;
        check_said("text", &self.text, LONGEST_TEXT)
    }
}

/// A text that may be empty.
pub(crate) fn check_text(what: &str, text: &str, longest: usize) -> Result<(), String> {
    if text.len() > longest {
        return Err(format!("{what} has {} bytes, and at most {longest} are taken", text.len()));
    }
    // PostgreSQL has no NUL in texts, and nobody can read the others.
    if text.chars().any(|letter| letter.is_control() && !matches!(letter, '\n' | '\r' | '\t')) {
        return Err(format!("{what} has control characters in it"));
    }
    Ok(())
}

/// A text that says something.
pub(crate) fn check_said(what: &str, text: &str, longest: usize) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err(format!("{what} is empty"));
    }
    check_text(what, text, longest)
}

/// What was said in fields, as a text.
pub fn text_of(fields: Map<String, Value>) -> Option<String> {
    let texts = fields.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| match value {
        Value::String(text) => format!("{name}: {text}"),
        value => format!("{name}: {value}"),
    });
    Some(texts.collect::<Vec<_>>().join("\n")).filter(|text| !text.is_empty())
}

/// At most so many bytes, and no half letter.
pub(crate) fn cut(text: &str, most: usize) -> String {
    text.chars()
        .scan(0, |bytes, letter| {
            *bytes += letter.len_utf8();
            (*bytes <= most).then_some(letter)
        })
        .collect()
}
