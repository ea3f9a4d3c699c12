//! The one place that prints: answers to standard output, everything else to standard error.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

/// A line of the answer.
pub(crate) fn line(text: &str) {
    println!("{text}");
}

/// A line beside the answer: progress, hints.
pub(crate) fn note(text: &str) {
    eprintln!("{text}");
}

/// Why the call failed.
pub(crate) fn error(text: &str) {
    eprintln!("towpath: {text}");
}
