//! A clock that stands still until a test moves it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeZone, Utc};
use towpath_core::ports::clock::Clock;

/// A clock that only a test moves.
///
/// It starts at 29 February 2024, 12:34:56.123457: a moment with all six digits that are stored, on a day that
/// careless calendars do not have, and long past, so that code which asks the machine's clock instead of this
/// one is found out.
#[derive(Debug)]
pub struct VirtualClock {
    now: Mutex<DateTime<Utc>>,
}

impl VirtualClock {
    /// A clock at the fixed start.
    pub fn new() -> Self {
        Self::at(Self::start())
    }

    /// A clock at a moment.
    pub fn at(now: DateTime<Utc>) -> Self {
        Self { now: Mutex::new(now) }
    }

    /// Where every new clock stands.
    pub fn start() -> DateTime<Utc> {
        Utc.timestamp_opt(1_709_210_096, 123_457_000).single().expect("the fixed start is a moment")
    }

    /// Moves it forward and answers the new time.
    pub fn advance(&self, by: Duration) -> DateTime<Utc> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now += by;
        *now
    }

    /// Sets it: clocks of real machines are set back too.
    pub fn set(&self, now: DateTime<Utc>) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> DateTime<Utc> {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_only_when_told() {
        let clock = VirtualClock::new();
        assert_eq!(clock.now().to_rfc3339(), "2024-02-29T12:34:56.123457+00:00");
        assert_eq!(clock.now(), clock.now());
        clock.advance(Duration::from_millis(1500));
        assert_eq!(clock.now().to_rfc3339(), "2024-02-29T12:34:57.623457+00:00");
        clock.set(VirtualClock::start());
        assert_eq!(clock.now(), VirtualClock::start());
    }
}
