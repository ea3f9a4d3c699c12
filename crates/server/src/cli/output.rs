//! The one place that prints: answers to standard output, everything else to standard error.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

use std::io::Write as _;

/// A line of the answer. Who reads it may stop reading: then there is nobody left to tell.
pub(crate) fn line(text: &str) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// A line beside the answer: progress, hints.
pub(crate) fn note(text: &str) {
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
