//! The clock of the machine.

use chrono::{DateTime, Utc};
use towpath_core::envelope::to_stored_precision;
use towpath_core::ports::clock::Clock;

/// Reads the system's clock, cut to the microseconds that every database keeps.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> DateTime<Utc> {
        to_stored_precision(Utc::now())
    }
}
