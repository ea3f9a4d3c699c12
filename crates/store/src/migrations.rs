//! Migrations as data: each version is a list of steps that every database renders in its own words.
//!
//! Applied once, in order, under a lock, and recorded in `towpath_migrations`. On PostgreSQL and SQLite all
//! steps of a version commit together. MySQL commits each statement on its own, so every step there can be
//! repeated: a kill in the middle is healed by the next start.

use crate::schema::{
    AGGREGATES, ALERT_CHANGES, ALERT_RUNS, ALERT_SILENCES, ALERTS, CHANNEL_PARKED, CHANNEL_STARTS, CHANNELS,
    COMMAND_BOX, CONSISTENCY_CHECKS, DEAD_LETTERS, DOMAIN_EVENTS, EVENT_OUTBOX, EVENT_PENDING,
    EVENT_POSITIONS, FOLLOWED_LOGS, INBOX, LEASES, LOCAL_BINDINGS, LOCAL_EXCHANGES, LOCAL_MESSAGES,
    LOCAL_QUEUES, LOCAL_TOPOLOGY, LOG_HEAD, OBSERVATIONS, OPERATIONS, OUTBOX_RETURNS, PARKED_LANES,
    PROCESS_INPUTS, PROCESS_TIMERS, PROCESS_UNDOS, PROJECTIONS, STATE_EVENTS, STATUS_VALUES, TASK_SCHEDULES,
    TASKS, TIMERS, Table, UNITS_OF_WORK,
};

/// One version of the schema.
pub(crate) struct Migration {
    pub(crate) version: u32,
    pub(crate) steps: &'static [Step],
}

/// One change.
pub(crate) enum Step {
    /// A table that is not there yet.
    Create(&'static Table),
    /// A row that must exist; SQL that all three databases read alike and that may be repeated.
    Seed(&'static str),
    /// An index of a table that an earlier version created: one that created it today has the index already.
    Index(&'static Table, &'static str),
}

/// All versions, in order.
pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        steps: &[
            Step::Create(&STATUS_VALUES),
            Step::Create(&AGGREGATES),
            Step::Create(&DOMAIN_EVENTS),
            Step::Create(&EVENT_PENDING),
            Step::Create(&EVENT_POSITIONS),
            Step::Create(&LOG_HEAD),
            Step::Create(&FOLLOWED_LOGS),
            Step::Create(&STATE_EVENTS),
            Step::Create(&COMMAND_BOX),
            Step::Create(&EVENT_OUTBOX),
            Step::Create(&PARKED_LANES),
            Step::Create(&OUTBOX_RETURNS),
            Step::Create(&INBOX),
            Step::Create(&DEAD_LETTERS),
            Step::Create(&LEASES),
            Step::Create(&TIMERS),
            Step::Create(&CHANNELS),
            Step::Create(&CHANNEL_PARKED),
            Step::Create(&OPERATIONS),
            Step::Create(&LOCAL_TOPOLOGY),
            Step::Create(&LOCAL_EXCHANGES),
            Step::Create(&LOCAL_QUEUES),
            Step::Create(&LOCAL_BINDINGS),
            Step::Create(&LOCAL_MESSAGES),
            Step::Seed(
                "INSERT INTO log_head (log_id, last_position) \
             SELECT 1, 0 FROM (SELECT 1 AS one) AS seed WHERE NOT EXISTS (SELECT 1 FROM log_head WHERE log_id = 1)",
            ),
            Step::Seed(
                "INSERT INTO local_topology (topology_id, revision) \
             SELECT 1, 0 FROM (SELECT 1 AS one) AS seed \
             WHERE NOT EXISTS (SELECT 1 FROM local_topology WHERE topology_id = 1)",
            ),
        ],
    },
    Migration { version: 2, steps: &[Step::Index(&CHANNEL_PARKED, "channel_parked_due")] },
    Migration { version: 3, steps: &[Step::Create(&UNITS_OF_WORK)] },
    Migration { version: 4, steps: &[Step::Create(&PROJECTIONS), Step::Create(&OBSERVATIONS)] },
    Migration {
        version: 5,
        steps: &[
            Step::Create(&TASKS),
            Step::Create(&TASK_SCHEDULES),
            Step::Create(&PROCESS_INPUTS),
            Step::Create(&PROCESS_TIMERS),
            Step::Create(&PROCESS_UNDOS),
        ],
    },
    Migration { version: 6, steps: &[Step::Create(&CONSISTENCY_CHECKS), Step::Create(&CHANNEL_STARTS)] },
    Migration {
        version: 7,
        steps: &[
            Step::Create(&ALERTS),
            Step::Create(&ALERT_CHANGES),
            Step::Create(&ALERT_RUNS),
            Step::Create(&ALERT_SILENCES),
        ],
    },
];

/// The version this build needs.
pub(crate) fn newest_version() -> u32 {
    MIGRATIONS.last().map_or(0, |migration| migration.version)
}

/// All tables of the newest version.
#[cfg(test)]
pub(crate) fn tables() -> impl Iterator<Item = &'static Table> {
    MIGRATIONS.iter().flat_map(|migration| migration.steps).filter_map(|step| match step {
        Step::Create(table) => Some(*table),
        Step::Seed(_) | Step::Index(..) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_up_from_one_without_gaps() {
        let versions: Vec<u32> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        assert_eq!(versions, (1..=newest_version()).collect::<Vec<_>>());
    }
}
