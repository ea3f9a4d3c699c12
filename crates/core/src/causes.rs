//! An error with its causes, as people read it.

use std::error::Error;

/// The causes of an error, from the nearest to the first. Some errors tell their cause themselves, as those of sqlx do: it
/// is not told again.
pub fn causes(error: &dyn Error) -> Vec<String> {
    let mut causes: Vec<String> = Vec::new();
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let why = inner.to_string();
        if !told.ends_with(&why) {
            told.clone_from(&why);
            causes.push(why);
        }
        cause = inner.source();
    }
    causes
}

/// An error with its causes, on one line.
pub fn with_causes(error: &dyn Error) -> String {
    causes(error).iter().fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Level {
        text: &'static str,
        #[source]
        source: Option<Box<Level>>,
    }

    fn chain(texts: &[&'static str]) -> Option<Box<Level>> {
        let (text, rest) = texts.split_first()?;
        Some(Box::new(Level { text, source: chain(rest) }))
    }

    #[test]
    fn a_cause_is_told_once() {
        let error = chain(&["the store refused", "from the database: no room", "no room", "disk 3"]).unwrap();
        assert_eq!(with_causes(&*error), "the store refused: from the database: no room: disk 3");
        assert_eq!(causes(&*error), ["from the database: no room", "disk 3"]);
        assert_eq!(with_causes(&*chain(&["alone"]).unwrap()), "alone");
    }
}
