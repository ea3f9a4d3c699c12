//! The one place that prints: answers to standard output, everything else to standard error.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

use std::io::{IsTerminal as _, Write as _};

/// A line of the answer. Who reads it may stop reading: then there is nobody left to tell.
pub fn line(text: &str) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// A line beside the answer: progress, hints.
pub fn note(text: &str) {
    eprintln!("{text}");
}

/// A question beside the answer.
pub(crate) fn ask(text: &str) {
    eprint!("{text}");
}

/// Why the call failed.
pub(crate) fn error(text: &str) {
    eprintln!("towpath: {text}");
}

/// Whether what is written to standard error may have colours: somebody looks at it, and has not asked for none.
pub(crate) fn is_coloured() -> bool {
    let wants_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !wants_none
}
