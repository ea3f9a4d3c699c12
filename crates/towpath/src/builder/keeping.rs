//! What is kept for how long.

use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

/// What is kept for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keeping {
    /// Outbox rows that were sent.
    pub(crate) sent: Duration,
    /// Deliveries that were handled: the de-duplication horizon.
    pub(crate) handled: Duration,
    /// Commands that ended: for so long their ids are known.
    pub(crate) commands: Duration,
    /// Answers to operations.
    pub(crate) operations: Duration,
    /// Tasks that ended well, were called off or not needed.
    pub(crate) tasks: Duration,
    /// Tasks that failed or took too long: somebody may want to try them again.
    pub(crate) failed_tasks: Duration,
    /// Changes of alerts, and silences that are over.
    pub(crate) alerts: Duration,
    /// How often it is looked for what is older.
    pub(crate) every: Duration,
}

impl Default for Keeping {
    fn default() -> Self {
        let every = Duration::from_secs(600);
        Self {
            sent: 7 * DAY,
            handled: 7 * DAY,
            commands: 90 * DAY,
            operations: DAY,
            tasks: 7 * DAY,
            failed_tasks: 90 * DAY,
            alerts: 30 * DAY,
            every,
        }
    }
}
