//! An error with its causes, as people read it.

use std::error::Error;

/// An error with its causes, on one line, each said once.
///
/// An error should say its own level only, and many of other libraries repeat the cause that they also name as theirs.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the database cannot be reached")]
    struct Outer(#[source] Repeats);

    #[derive(Debug, thiserror::Error)]
    #[error("error communicating with database: {0}")]
    struct Repeats(#[source] std::io::Error);

    #[test]
    fn a_cause_that_is_repeated_is_said_once() {
        let error = Outer(Repeats(std::io::Error::other("connection refused")));
        assert_eq!(
            with_causes(&error),
            "the database cannot be reached: error communicating with database: connection refused"
        );
    }
}
