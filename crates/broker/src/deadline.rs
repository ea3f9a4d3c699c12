//! Deadlines from durations that callers choose.

use std::time::Duration;

use tokio::time::Instant;

/// Nobody waits longer than this, whatever is asked for: the clock and client libraries count only so far.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// So much later than now, at most a day.
pub(crate) fn after(wait: Duration) -> Instant {
    Instant::now() + wait.min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_without_end_is_a_long_one() {
        let second = Duration::from_secs(1);
        let before = Instant::now();
        let (short, long) = (after(second), after(Duration::MAX));
        let now = Instant::now();
        assert!((before + second..=now + second).contains(&short));
        assert!((before + LONGEST..=now + LONGEST).contains(&long));
    }
}
