//! Silences: of which alerts nobody is to be told for a while.

use promql_parser::label::{MatchOp, Matcher};
use regex_of::anchored;
use towpath_core::ports::store::{Silence, SilenceMatcher};
use towpath_core::retry::{Coded, ErrorClass};
use uuid::Uuid;

use super::condition::Labels;

/// How many matchers a silence may have.
pub const MOST_MATCHERS: usize = 20;

/// How many silences there may be that are not over.
pub const MOST_SILENCES: u32 = 1_000;

/// How long a label or a value may be.
const LONGEST: usize = 1_000;

/// A silence that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the silence cannot be made: {0}")]
pub struct BadSilence(pub(super) String);

impl Coded for BadSilence {
    fn class(&self) -> ErrorClass {
        ErrorClass::Validation
    }

    fn code(&self) -> &'static str {
        "invalid-silence"
    }

    fn next_step(&self) -> &'static str {
        "Name at least one label that alerts have (`alertname`, `severity`, or one that GET /api/alerts shows), an end that is to come, \
         and a reason."
    }
}

/// Checks matchers before they are kept.
///
/// # Errors
/// None or too many; one that fits everything that is not there; a regular expression that cannot be read.
pub fn check(matchers: &[SilenceMatcher]) -> Result<(), BadSilence> {
    let bad = |why: String| Err(BadSilence(why));
    if matchers.is_empty() || matchers.len() > MOST_MATCHERS {
        return bad(format!("it has 1 to {MOST_MATCHERS} matchers"));
    }
    for matcher in matchers {
        if matcher.name.is_empty() || matcher.name.len() > LONGEST || matcher.value.len() > LONGEST {
            return bad(format!("a matcher names a label, and has at most {LONGEST} bytes"));
        }
        if compiled(matcher).is_none() {
            return bad(format!("{:?} is no regular expression", matcher.value));
        }
    }
    let fits_nothing = |matcher: &SilenceMatcher| compiled(matcher).is_some_and(|one| one.is_match(""));
    if matchers.iter().all(fits_nothing) {
        return bad("it would fit everything; one matcher must fit no empty text".to_owned());
    }
    Ok(())
}

/// A silence that can be asked.
pub(super) struct Fits<'s> {
    silence: &'s Silence,
    /// Nothing for one that cannot be read: then the silence fits nothing.
    matchers: Option<Vec<Matcher>>,
}

impl<'s> Fits<'s> {
    pub(super) fn of(silence: &'s Silence) -> Self {
        Self { silence, matchers: silence.silence.matchers.iter().map(compiled).collect() }
    }

    /// All of its matchers fit. A label that is not there is empty.
    pub(super) fn fits(&self, labels: &Labels) -> bool {
        let fits = |matcher: &Matcher| matcher.is_match(labels.get(&matcher.name).map_or("", String::as_str));
        self.matchers.as_ref().is_some_and(|matchers| matchers.iter().all(fits))
    }

    pub(super) fn id(&self) -> Uuid {
        self.silence.silence.silence_id
    }

    pub(super) fn told(&self) -> String {
        let silence = &self.silence.silence;
        format!("by {} until {}: {}", silence.author_id, silence.ends_at.to_rfc3339(), silence.reason)
    }
}

fn compiled(matcher: &SilenceMatcher) -> Option<Matcher> {
    let op = match (matcher.is_regex, matcher.is_equal) {
        (false, true) => MatchOp::Equal,
        (false, false) => MatchOp::NotEqual,
        (true, is_equal) => anchored(&matcher.value, is_equal)?,
    };
    Some(Matcher::new(op, &matcher.name, &matcher.value))
}

/// Regular expressions by way of the parser of conditions, which brings them.
mod regex_of {
    use promql_parser::label::MatchOp;
    use promql_parser::parser::{self, Expr};

    /// One that must fit the whole of a text; none if it cannot be read.
    pub(super) fn anchored(text: &str, is_equal: bool) -> Option<MatchOp> {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let operator = if is_equal { "=~" } else { "!~" };
        let Ok(Expr::VectorSelector(selector)) = parser::parse(&format!("x{{y{operator}\"{quoted}\"}}"))
        else {
            return None;
        };
        let found = selector.matchers.matchers.into_iter().find(|matcher| matcher.name == "y")?;
        // What was read must be what was meant.
        (found.value == text).then_some(found.op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(name: &str, value: &str, is_regex: bool, is_equal: bool) -> SilenceMatcher {
        SilenceMatcher { name: name.to_owned(), value: value.to_owned(), is_regex, is_equal }
    }

    #[test]
    fn matchers_fit_as_they_say() {
        let fits = |one: SilenceMatcher, text: &str| compiled(&one).unwrap().is_match(text);
        assert!(fits(matcher("queue", "mail", false, true), "mail"));
        assert!(!fits(matcher("queue", "mail", false, false), "mail"));
        assert!(fits(matcher("queue", "ma.*|bills", true, true), "mail"));
        assert!(!fits(matcher("queue", "ai", true, true), "mail"), "the whole");
        assert!(fits(matcher("queue", r#"a\.b"c\d"#, true, true), "a.b\"c7"));
        assert!(!fits(matcher("queue", "ma.*", true, false), "mail"));
    }

    #[test]
    fn what_would_silence_everything_is_refused() {
        assert!(check(&[matcher("alertname", "deep", false, true)]).is_ok());
        assert!(check(&[]).is_err());
        assert!(check(&[matcher("nothing", "x", false, false)]).is_err());
        assert!(check(&[matcher("alertname", ".*", true, true)]).is_err());
        assert!(check(&[matcher("alertname", "(", true, true)]).is_err());
        assert!(check(&vec![matcher("alertname", "deep", false, true); 21]).is_err());
        assert!(
            check(&[matcher("alertname", ".*", true, true), matcher("queue", "mail", false, true)]).is_ok()
        );
    }
}
