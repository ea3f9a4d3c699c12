//! One line per step on stderr, with the seconds since the command began.

use std::time::Instant;

/// The clock of one command.
pub(super) struct Progress {
    began: Instant,
}

impl Progress {
    /// The seconds count from here.
    pub(super) fn start() -> Self {
        Self { began: Instant::now() }
    }

    /// Says what happens now. Goes to stderr, so that stdout stays what a script asked for.
    pub(super) fn step(&self, who: &str, what: &str) {
        eprintln!("{:>6.1}s  {who:<9} {what}", self.began.elapsed().as_secs_f64());
    }
}
