//! The metrics as data: the one place where one is declared.

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    /// Its name, with the unit it is in.
    pub name: &'static str,
    /// What sort it is.
    pub kind: Kind,
    /// By what it is told apart. Each has few values, and they are known when Towpath starts or an operator names them.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

/// What sort of metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only rises. Begins at 0 with the process.
    Counter,
    /// What is now.
    Gauge,
    /// How often something lay below each of these bounds.
    Histogram(&'static [f64]),
}

impl Kind {
    /// As Prometheus writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// Bounds for durations: a command on SSD takes about a millisecond, a broker that is away minutes.
pub const SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

macro_rules! metrics {
    ($($constant:ident: $kind:expr, $name:literal, [$($label:literal),*], $help:literal;)+) => {
        $(
            #[doc = $help]
            pub(crate) const $constant: Metric =
                Metric { name: $name, kind: $kind, labels: &[$($label),*], help: $help };
        )+

        /// All metrics of the library.
        pub const ALL: &[Metric] = &[$($constant),+];
    };
}

use Kind::{Counter, Gauge, Histogram};

metrics! {
    COMMANDS: Counter, "towpath_commands_total", ["type", "status"],
        "Commands that were answered, by how: completed, replayed (the recorded answer), refused, failed, busy (still being processed, or the id is taken), unanswered (the store did not answer).";
    COMMANDS_UNKNOWN: Counter, "towpath_commands_unknown_total", [],
        "Commands of a type that is not registered here.";
    COMMAND_DURATION: Histogram(SECONDS), "towpath_command_duration_seconds", ["type"],
        "How long a command took to its answer, retries inside the call included.";
    COMMAND_RETRIES: Counter, "towpath_command_retries_total", ["type"],
        "Failures of commands that will be tried again by a worker.";
    COMMAND_CONFLICTS: Counter, "towpath_command_conflicts_total", ["type"],
        "Rounds that a command lost to another writer, and was decided anew.";
    COMMAND_BOX: Gauge, "towpath_command_box", ["status"],
        "Commands in the command box that are pending, processing, retrying (failed, to be tried again) or failed for good. Counted up to 100000.";
    EVENTS: Counter, "towpath_events_total", ["type"],
        "Events that this instance has committed: by commands, handlers, units of work and joined transactions. Only types that an aggregate or an entity registers.";

    OUTBOX_ROWS: Gauge, "towpath_outbox_rows", ["channel", "status"],
        "Outbox rows that are pending, parked (behind one of their aggregate) or failed. Counted up to 100000.";
    OUTBOX_LAG: Gauge, "towpath_outbox_lag_seconds", ["channel"],
        "The age of the oldest event that is pending; 0 when there is none.";
    PUBLISHED: Counter, "towpath_publish_total", ["channel", "outcome"],
        "Attempts to publish an event, by outcome: confirmed, returned (no queue wanted it), refused, unknown (no answer), not-sent (the broker was away).";
    PUBLISH_DELAY: Histogram(SECONDS), "towpath_publish_delay_seconds", ["channel"],
        "From the moment an event happened to its confirmation by the broker. Trackers, which may publish old events, are not in it.";
    PUBLISH_RETRIES: Counter, "towpath_publish_retries_total", ["channel"],
        "Events that were not published and will be tried again.";
    PUBLISH_GIVEN_UP: Counter, "towpath_publish_given_up_total", ["channel"],
        "Events that were given up: their outbox row is FAILED.";

    LOG_HEAD: Gauge, "towpath_log_head_position", [],
        "The last position of the log: how many events were ever committed.";
    LOG_PENDING: Gauge, "towpath_log_pending_events", [],
        "Committed events without a position. Counted up to 100000.";
    OVERDUE: Gauge, "towpath_overdue_seconds", ["part"],
        "For how long the oldest has waited of what should have been taken at once: commands (that are due), log (events without a position), timers (that are due). It rises while a loop is silent.";
    VERSION_GAPS: Gauge, "towpath_aggregate_version_gaps", [],
        "Gaps in the versions of aggregates that the last consistency check has found; absent until there was one.";
    LOG_POSITIONED: Counter, "towpath_log_positioned_total", [],
        "Positions that this instance has given.";
    TRACKER_POSITION: Gauge, "towpath_tracker_position", ["channel"],
        "The last position that a tracker has published.";
    TRACKER_LAG: Gauge, "towpath_tracker_lag_positions", ["channel"],
        "How many positions a tracker is behind the head of the log.";

    FOLLOWER_POSITION: Gauge, "towpath_follower_position", ["follower"],
        "The last position of another log that a follower of this instance has applied.";
    FOLLOWER_LAG: Gauge, "towpath_follower_lag_positions", ["follower"],
        "How many positions a follower was behind the other log when it last looked.";
    FOLLOWER_FAILURES: Counter, "towpath_follower_failures_total", ["follower"],
        "Looks at another log that failed: its server did not answer, or a fact could not be applied.";
    OPERATIONS: Counter, "towpath_operations_total", ["outcome"],
        "Changes that were asked for from outside, by outcome: done, refused, failed, unknown (their process died, or an earlier attempt may have been done).";

    RECEIVED: Counter, "towpath_consumer_received_total", ["queue", "consumer"],
        "Messages that a consumer has received.";
    SETTLED: Counter, "towpath_consumer_settled_total", ["queue", "consumer", "settlement"],
        "Messages that a consumer has settled: ack, requeue or reject.";
    HANDLER_FAILURES: Counter, "towpath_consumer_failures_total", ["queue", "consumer", "next"],
        "Failed attempts to handle a delivery, by what follows: at-once (another attempt), later (set aside), requeue (back to the broker), dead (given up).";
    HANDLER_DURATION: Histogram(SECONDS), "towpath_consumer_handler_duration_seconds", ["queue", "consumer"],
        "How long the handler took for a delivery or a batch, without the commit.";
    INBOX: Counter, "towpath_inbox_deliveries_total", ["consumer", "result"],
        "Deliveries that were committed as handled, or found to be a duplicate of one that was.";
    DEAD_LETTERS: Gauge, "towpath_dead_letters", ["consumer", "status"],
        "Deliveries that were set aside: retry (comes again), behind (waits for an earlier one), dead (waits for an operator). The consumer (broker) stands for what the broker gave up. Counted up to 10000.";

    QUEUE_MESSAGES: Gauge, "towpath_queue_messages", ["queue", "state"],
        "Messages in a queue that this instance knows: ready, unsettled (with a receiver) or delayed, as far as the broker tells. Counted up to 100000 by the in-process broker.";
    QUEUE_CONSUMERS: Gauge, "towpath_queue_consumers", ["queue"],
        "Who receives from a queue, where the broker tells.";

    LEASES_HELD: Gauge, "towpath_leases_held", ["lease"],
        "Whether this instance holds a lease (1) or not (0): instance, sequencer, cleaner.";
    PARTITIONS_HELD: Gauge, "towpath_partitions_held", ["channel"],
        "How many of a channel's 64 partitions this instance relays.";
    OBSERVER_PLATFORM_UP: Gauge, "towpath_observer_platform_up", ["observer"],
        "Whether the platform that an observer looks at answers (1) or not (0), as far as this instance knows: 1 on those that do not look.";
    OBSERVER_LOOKS: Counter, "towpath_observer_looks_total", ["observer", "outcome"],
        "Looks at resources outside that have ended: seen, or failed.";
    TIMERS: Gauge, "towpath_timers", ["state"],
        "Timers that have not begun: waiting (all of them), due (their moment has come). Counted up to 100000.";
    TASKS: Gauge, "towpath_tasks", ["status"],
        "Tasks that are pending (wait for their time), running or failed. Counted up to 100000; absent where no type of task is declared.";
    TASKS_QUEUED: Gauge, "towpath_tasks_queued", ["type"],
        "Tasks of a declared type that wait for a worker. Counted up to 100000.";
    TASK_ATTEMPTS: Counter, "towpath_task_attempts_total", ["type", "outcome"],
        "Attempts at tasks that have ended here: succeeded, skipped, canceled, failed or timeout (for good), retried, given-back (a stop), lost (another has taken over).";
    CONNECTIONS: Gauge, "towpath_store_connections", ["pool", "state"],
        "Connections to the database that are used or idle. SQLite has a pool that writes and one that reads; listings have one of their own.";
    CONNECTIONS_MAX: Gauge, "towpath_store_connections_max", ["pool"],
        "How many connections to the database there may be.";
    SCRAPE_ERRORS: Counter, "towpath_scrape_errors_total", ["part"],
        "Looks that the store or the broker did not answer in time: the gauges that come from it are old, then absent.";
    BUILD_INFO: Gauge, "towpath_build_info", ["version"],
        "Always 1; its label is the version.";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The conventions of Prometheus, and a prefix of our own.
    #[test]
    fn names_follow_the_conventions() {
        for (number, metric) in ALL.iter().enumerate() {
            let Metric { name, kind, labels, help } = metric;
            assert!(!ALL[..number].iter().any(|other| other.name == *name), "{name} is there twice");
            assert!(name.starts_with("towpath_"), "{name}");
            let plain = |text: &str| text.chars().all(|one| one.is_ascii_lowercase() || one == '_');
            assert!(plain(name) && labels.iter().all(|label| plain(label)), "{name} {labels:?}");
            assert_eq!(name.ends_with("_total"), *kind == Counter, "{name}");
            assert!(help.ends_with('.') && !help.contains('|'), "{name}: a sentence that fits into a table");
            for taken in ["le", "job", "instance", "quantile"] {
                assert!(!labels.contains(&taken), "{name}: {taken} belongs to Prometheus");
            }
            if let Histogram(bounds) = kind {
                assert!(name.ends_with("_seconds") && bounds.is_sorted(), "{name}");
            }
        }
    }
}
