//! The clock as a port, so that tests can hold time still.

use chrono::{DateTime, Utc};

/// Tells the time of day. Leases do not use it: they live by the database's own clock.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> DateTime<Utc>;
}
