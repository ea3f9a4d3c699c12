//! By which clock, how often and how long.

use std::sync::Arc;
use std::time::Duration;

use towpath_core::ports::clock::Clock;
use towpath_core::retry::RetryPolicy;

/// By which clock, how often and how long.
pub(crate) struct Timing {
    /// Another clock than the database's.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    /// When commands that failed for a passing reason are tried again.
    pub(crate) retries: RetryPolicy,
    /// How long an instance may be silent before others take over.
    pub(crate) lease: Duration,
    /// How often due work is looked for.
    pub(crate) scan: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            clock: None,
            retries: RetryPolicy::for_commands(),
            lease: Duration::from_secs(15),
            scan: Duration::from_secs(1),
        }
    }
}
