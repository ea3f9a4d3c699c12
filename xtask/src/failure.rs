//! The one error type of this tool: what went wrong, and what its reader can do next.

use std::fmt;

/// What went wrong, in words for the person at the terminal.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    next_step: Option<String>,
}

impl Failure {
    /// A failure that describes itself; the cause belongs into the text.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), next_step: None }
    }

    /// Adds what the reader can do about it.
    pub(crate) fn next_step(mut self, next_step: impl Into<String>) -> Self {
        self.next_step = Some(next_step.into());
        self
    }

    /// For `map_err`: puts what was attempted in front of the cause.
    pub(crate) fn while_trying<E: fmt::Display>(attempt: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |cause| Self::new(format!("cannot {attempt}: {cause}"))
    }

    /// One failure that tells all of several, because servers start side by side and each can fail.
    pub(crate) fn all_of(failures: &[Self]) -> Result<(), Self> {
        if failures.is_empty() {
            return Ok(());
        }
        let texts: Vec<String> = failures.iter().map(Self::to_string).collect();
        Err(Self::new(texts.join("\nerror: ")))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.what)?;
        match &self.next_step {
            Some(next_step) => write!(formatter, "\n  next step: {next_step}"),
            None => Ok(()),
        }
    }
}
