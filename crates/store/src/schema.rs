//! The tables, as data: the one place where a column is declared.
//!
//! Each database renders the same declaration in its own words (`dialect.rs`), and the row writers and readers in
//! `rows.rs` name the columns once for all three. A new column is a line here, a line in `rows.rs` and a
//! migration step; no SQL is edited in three places.
//!
//! Conventions (requirements S1 to S7): times end in `_at`, ids in `_id`; a state or status column has
//! `_changed_at`, `_reason` (stable code) and `_message` (text for people) beside it; soft deletion is
//! `deleted_at/_by_id/_reason` with uniqueness among the living only; a switch is `disabled_at/_by_id/_reason/
//! _message`.

use ColumnKind::{AutoId, Bytes, Count, Int, Json, Long, Name, Text, Time, Uuid};

/// What a column holds; each database picks its own type for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// A short text that is compared byte for byte, of at most so many characters.
    Name(u16),
    /// A text for people.
    Text,
    /// JSON, kept as the exact text.
    Json,
    /// Bytes of any sort and number.
    Bytes,
    /// A UUID.
    Uuid,
    /// A moment in UTC, in microseconds.
    Time,
    /// A 64-bit number.
    Long,
    /// A 32-bit number.
    Int,
    /// A 64-bit number that begins with 0.
    Count,
    /// A 64-bit number that the database counts up.
    AutoId,
}

/// One column.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: ColumnKind,
    pub(crate) nullable: bool,
    /// What it holds where nothing is said: a text.
    pub(crate) default: Option<&'static str>,
}

/// An index; with `only`, over the rows that satisfy a condition. A column may have ` DESC` behind its name.
#[derive(Debug, Clone, Copy)]
pub struct Index {
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [&'static str],
    pub(crate) unique: bool,
    pub(crate) only: Only,
}

/// Over which rows an index goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Only {
    /// All.
    All,
    /// Those whose first indexed column is not null. MySQL indexes them all, which costs room but no correctness.
    FirstNotNull,
    /// Those that satisfy a condition. MySQL has no partial index: there a generated column holds the first
    /// indexed column for those rows and null for the others, and is indexed in its place.
    Where {
        /// In SQL that all three databases read alike.
        condition: &'static str,
        /// The generated column on MySQL.
        mysql_column: &'static str,
    },
}

/// One table.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [Column],
    pub(crate) primary_key: &'static [&'static str],
    pub(crate) indexes: &'static [Index],
    pub(crate) foreign_key: Option<ForeignKey>,
    /// Rows are updated in place again and again: PostgreSQL leaves room in each page for the next version.
    pub(crate) hot: bool,
}

/// A reference to another table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForeignKey {
    pub(crate) columns: &'static [&'static str],
    pub(crate) table: &'static str,
    pub(crate) references: &'static [&'static str],
}

const fn column(name: &'static str, kind: ColumnKind) -> Column {
    Column { name, kind, nullable: false, default: None }
}

const fn nullable(name: &'static str, kind: ColumnKind) -> Column {
    Column { name, kind, nullable: true, default: None }
}

const fn index(name: &'static str, columns: &'static [&'static str]) -> Index {
    Index { name, columns, unique: false, only: Only::All }
}

const fn unique(name: &'static str, columns: &'static [&'static str]) -> Index {
    Index { name, columns, unique: true, only: Only::All }
}

/// Texts are not compared with `==` in constants.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

impl Column {
    /// A column that always has a value.
    pub const fn new(name: &'static str, kind: ColumnKind) -> Self {
        column(name, kind)
    }

    /// A column that may be null.
    pub const fn nullable(name: &'static str, kind: ColumnKind) -> Self {
        nullable(name, kind)
    }
}

impl Index {
    /// An index over all rows.
    pub const fn new(name: &'static str, columns: &'static [&'static str]) -> Self {
        index(name, columns)
    }

    /// An index that lets no two rows have the same values.
    pub const fn unique(name: &'static str, columns: &'static [&'static str]) -> Self {
        unique(name, columns)
    }
}

impl Table {
    /// A table of an application's own.
    pub const fn new(
        name: &'static str,
        columns: &'static [Column],
        primary_key: &'static [&'static str],
        indexes: &'static [Index],
    ) -> Self {
        Self { name, columns, primary_key, indexes, foreign_key: None, hot: true }
    }

    /// The same, whose rows are not changed: PostgreSQL fills its pages.
    pub const fn append_only(self) -> Self {
        Self { hot: false, ..self }
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The columns that tell its rows apart.
    pub const fn primary_key(&self) -> &'static [&'static str] {
        self.primary_key
    }

    /// The index of that name. Asked for in constants, so that one that is not there does not compile.
    #[allow(clippy::panic, reason = "the compiler's, and nobody else's")]
    pub(crate) const fn index(&self, name: &str) -> &'static Index {
        let mut at = 0;
        while at < self.indexes.len() {
            if is_same(self.indexes[at].name.as_bytes(), name.as_bytes()) {
                return &self.indexes[at];
            }
            at += 1;
        }
        panic!("the table has no index of that name");
    }

    /// The names of its columns.
    pub fn columns(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.columns.iter().map(|column| column.name)
    }
}

/// The values of a tenant's status dictionary (S7).
pub(crate) const STATUS_VALUES: Table = Table {
    name: "status_values",
    columns: &[column("tenant_id", Name(64)), column("value", Name(64))],
    primary_key: &["tenant_id", "value"],
    indexes: &[],
    foreign_key: None,
    hot: false,
};

/// The current state of every aggregate: one row each.
pub(crate) const AGGREGATES: Table = Table {
    name: "aggregates",
    columns: &[
        column("aggregate_kind", Name(64)),
        column("aggregate_id", Name(128)),
        column("version", Long),
        nullable("snapshot", Json),
        nullable("snapshot_version", Int),
        nullable("state", Name(64)),
        nullable("state_changed_at", Time),
        nullable("state_reason", Name(128)),
        nullable("state_message", Text),
        nullable("status", Name(64)),
        nullable("status_changed_at", Time),
        nullable("status_reason", Name(128)),
        nullable("status_message", Text),
        // Empty for "no tenant": a null would switch the foreign key off.
        column("tenant_id", Name(64)),
        column("created_at", Time),
        column("updated_at", Time),
    ],
    primary_key: &["aggregate_kind", "aggregate_id"],
    indexes: &[],
    foreign_key: Some(ForeignKey {
        columns: &["tenant_id", "status"],
        table: "status_values",
        references: &["tenant_id", "value"],
    }),
    hot: true,
};

/// Every fact. Append-only: a row never changes after its commit.
pub(crate) const DOMAIN_EVENTS: Table = Table {
    name: "domain_events",
    columns: &[
        column("event_id", Uuid),
        column("aggregate_kind", Name(64)),
        column("aggregate_id", Name(128)),
        column("aggregate_version", Long),
        column("event_type", Name(128)),
        column("schema_version", Int),
        column("payload", Json),
        column("correlation_id", Name(128)),
        nullable("causation_id", Name(128)),
        nullable("trace_id", Name(64)),
        nullable("actor_id", Name(128)),
        nullable("tenant_id", Name(64)),
        column("occurred_at", Time),
    ],
    primary_key: &["event_id"],
    indexes: &[
        unique("domain_events_version", &["aggregate_kind", "aggregate_id", "aggregate_version"]),
        index("domain_events_correlation", &["correlation_id"]),
    ],
    foreign_key: None,
    hot: false,
};

/// Committed facts that have no position yet: a narrow row each, deleted when the position is given.
pub(crate) const EVENT_PENDING: Table = Table {
    name: "event_pending",
    columns: &[column("pending_id", AutoId), column("event_id", Uuid)],
    primary_key: &["pending_id"],
    indexes: &[],
    foreign_key: None,
    hot: false,
};

/// The log: position n is the n-th committed fact.
pub(crate) const EVENT_POSITIONS: Table = Table {
    name: "event_positions",
    columns: &[column("position", Long), column("event_id", Uuid)],
    primary_key: &["position"],
    indexes: &[unique("event_positions_event", &["event_id"])],
    foreign_key: None,
    hot: false,
};

/// The last position given: one row, whose lock makes two sequencers take turns.
pub(crate) const LOG_HEAD: Table = Table {
    name: "log_head",
    // How many notifications a page has is null until the log is first opened, and never changes after that.
    columns: &[column("log_id", Int), column("last_position", Long), nullable("page_size", Int)],
    primary_key: &["log_id"],
    indexes: &[],
    foreign_key: None,
    hot: true,
};

/// How far this store has applied the logs of others, a row for each follower. The row changes in the transaction of
/// what it follows from.
pub(crate) const FOLLOWED_LOGS: Table = Table {
    name: "followed_logs",
    columns: &[
        column("follower", Name(64)),
        column("peer_url", Text),
        column("position", Long),
        // Of the facts of the page that holds the position, up to it.
        column("digest", Name(64)),
        column("created_at", Time),
        column("updated_at", Time),
    ],
    primary_key: &["follower"],
    indexes: &[],
    foreign_key: None,
    hot: true,
};

/// Every state change of an aggregate (S4).
pub(crate) const STATE_EVENTS: Table = Table {
    name: "state_events",
    columns: &[
        column("aggregate_kind", Name(64)),
        column("aggregate_id", Name(128)),
        column("aggregate_version", Long),
        column("event_id", Uuid),
        nullable("from_state", Name(64)),
        column("to_state", Name(64)),
        nullable("reason", Name(128)),
        nullable("message", Text),
        nullable("actor_id", Name(128)),
        nullable("request_id", Name(128)),
        nullable("trace_id", Name(64)),
        column("created_at", Time),
    ],
    primary_key: &["aggregate_kind", "aggregate_id", "aggregate_version"],
    indexes: &[],
    foreign_key: None,
    hot: false,
};

/// Every command and where it is.
pub(crate) const COMMAND_BOX: Table = Table {
    name: "command_box",
    columns: &[
        column("command_id", Name(128)),
        column("command_type", Name(128)),
        column("aggregate_kind", Name(64)),
        column("aggregate_id", Name(128)),
        column("payload", Json),
        column("correlation_id", Name(128)),
        nullable("causation_id", Name(128)),
        nullable("trace_id", Name(64)),
        nullable("request_id", Name(128)),
        nullable("actor_id", Name(128)),
        nullable("tenant_id", Name(64)),
        column("received_at", Time),
        column("status", Name(16)),
        column("status_changed_at", Time),
        nullable("status_reason", Name(128)),
        nullable("status_message", Text),
        column("retry_count", Int),
        // How often it has lost its holder: kept apart from the retries that its failures have used up.
        column("recovery_count", Int),
        // When a worker should take it: set while it is PENDING, or FAILED with a retry to come.
        nullable("next_retry_at", Time),
        nullable("claimed_by_id", Name(160)),
        nullable("claimed_epoch", Long),
        nullable("started_at", Time),
        nullable("finished_at", Time),
        nullable("aggregate_version", Long),
        nullable("event_count", Int),
    ],
    primary_key: &["command_id"],
    indexes: &[
        index("command_box_correlation", &["correlation_id"]),
        Index {
            name: "command_box_due",
            columns: &["next_retry_at"],
            unique: false,
            only: Only::FirstNotNull,
        },
        Index {
            name: "command_box_claimed",
            columns: &["claimed_by_id"],
            unique: false,
            only: Only::FirstNotNull,
        },
        Index {
            name: "command_box_failed",
            columns: &["status_changed_at"],
            unique: false,
            only: Only::Where { condition: "status = 'FAILED'", mysql_column: "failed_changed_at" },
        },
        // Listings and checks over a time.
        index("command_box_received", &["received_at"]),
        // Those that an operator looks for, among very many that are done.
        Index {
            name: "command_box_open",
            columns: &["status", "received_at"],
            unique: false,
            only: Only::Where { condition: "status <> 'COMPLETED'", mysql_column: "open_status" },
        },
    ],
    foreign_key: None,
    hot: false,
};

/// One narrow row per event and channel that routes it.
pub(crate) const EVENT_OUTBOX: Table = Table {
    name: "event_outbox",
    columns: &[
        column("outbox_id", AutoId),
        column("channel", Name(64)),
        column("event_id", Uuid),
        column("lane", Long),
        column("partition_no", Int),
        column("status", Name(16)),
        column("status_changed_at", Time),
        nullable("status_reason", Name(128)),
        nullable("status_message", Text),
        column("retry_count", Int),
        nullable("next_retry_at", Time),
        nullable("parked_at", Time),
    ],
    primary_key: &["outbox_id"],
    indexes: &[
        unique("event_outbox_event", &["event_id", "channel"]),
        Index {
            name: "event_outbox_ready",
            // The partition stands in the index so that rows of other partitions are passed over without being read.
            columns: &["channel", "outbox_id", "partition_no"],
            unique: false,
            only: Only::Where {
                condition: "status IN ('NEW', 'RETRY') AND parked_at IS NULL",
                mysql_column: "ready_channel",
            },
        },
        Index {
            name: "event_outbox_parked",
            columns: &["channel", "lane", "outbox_id"],
            unique: false,
            only: Only::Where { condition: "parked_at IS NOT NULL", mysql_column: "parked_channel" },
        },
        Index {
            name: "event_outbox_failed",
            columns: &["channel", "outbox_id"],
            unique: false,
            only: Only::Where { condition: "status = 'FAILED'", mysql_column: "failed_channel" },
        },
        // Few among very many that are ready.
        Index {
            name: "event_outbox_retrying",
            columns: &["channel", "outbox_id"],
            unique: false,
            only: Only::Where { condition: "status = 'RETRY'", mysql_column: "retrying_channel" },
        },
        // For listings, and for the cleaner: the oldest first, and nothing that must stay.
        Index {
            name: "event_outbox_sent",
            columns: &["channel", "outbox_id"],
            unique: false,
            only: Only::Where { condition: "status IN ('SENT', 'SKIPPED')", mysql_column: "sent_channel" },
        },
    ],
    foreign_key: None,
    hot: false,
};

/// Rows that can be published, by channel and number.
pub(crate) const OUTBOX_READY: &Index = EVENT_OUTBOX.index("event_outbox_ready");

/// Rows that wait behind another one of their lane.
pub(crate) const OUTBOX_PARKED: &Index = EVENT_OUTBOX.index("event_outbox_parked");

/// Rows that were given up.
pub(crate) const OUTBOX_FAILED: &Index = EVENT_OUTBOX.index("event_outbox_failed");

/// Rows that are through: sent, or skipped.
pub(crate) const OUTBOX_SENT: &Index = EVENT_OUTBOX.index("event_outbox_sent");

/// Lanes that wait for one row of theirs.
pub(crate) const PARKED_LANES: Table = Table {
    name: "parked_lanes",
    columns: &[
        column("channel", Name(64)),
        column("lane", Long),
        column("head_outbox_id", Long),
        // Null until an operator decides.
        nullable("due_at", Time),
        column("parked_at", Time),
    ],
    primary_key: &["channel", "lane"],
    indexes: &[],
    foreign_key: None,
    hot: false,
};

/// How often rows of a channel have come back that were out of the index of ready rows; see `floors.rs`.
pub(crate) const OUTBOX_RETURNS: Table = Table {
    name: "outbox_returns",
    columns: &[column("channel", Name(64)), column("return_count", Long)],
    primary_key: &["channel"],
    indexes: &[],
    foreign_key: None,
    hot: true,
};

/// Deliveries by (event, handler).
pub(crate) const INBOX: Table = Table {
    name: "inbox",
    columns: &[
        column("event_id", Uuid),
        column("handler", Name(64)),
        column("status", Name(16)),
        column("status_changed_at", Time),
        nullable("status_reason", Name(128)),
        nullable("status_message", Text),
        column("retry_count", Int),
        // Which process is at a delivery that may have come before. What is still here when that process is gone did not
        // survive the attempt.
        nullable("begun_by", Name(64)),
    ],
    primary_key: &["event_id", "handler"],
    // For the cleaner: others may make ids that do not rise with time.
    indexes: &[Index {
        name: "inbox_over",
        columns: &["status_changed_at"],
        unique: false,
        only: Only::Where { condition: "status <> 'DEAD'", mysql_column: "over_changed_at" },
    }],
    foreign_key: None,
    hot: false,
};

/// Deliveries that were set aside: to be tried again, waiting behind such a one, or dead.
pub(crate) const DEAD_LETTERS: Table = Table {
    name: "dead_letters",
    columns: &[
        column("dead_letter_id", AutoId),
        nullable("handler", Name(64)),
        nullable("event_id", Uuid),
        column("lane", Long),
        column("queue", Name(255)),
        nullable("message_id", Text),
        nullable("message_type", Name(255)),
        nullable("message_key", Text),
        nullable("occurred_at", Time),
        nullable("content_type", Text),
        column("exchange", Text),
        column("routing_key", Text),
        column("headers", Json),
        // As text where it is text, so that a person can read it in any database tool; else in base64.
        column("body", Json),
        column("body_encoding", Name(16)),
        nullable("original_body", Json),
        column("received_at", Time),
        column("status", Name(16)),
        column("status_changed_at", Time),
        nullable("status_reason", Name(128)),
        nullable("status_message", Text),
        column("retry_count", Int),
        // Set while it is RETRY.
        nullable("due_at", Time),
        nullable("replayed_at", Time),
        nullable("changed_by_id", Name(128)),
        // What tells a message of the broker's dead-letter queue from another death of the same message.
        nullable("death_key", Name(255)),
    ],
    primary_key: &["dead_letter_id"],
    indexes: &[
        Index {
            name: "dead_letters_open",
            columns: &["handler", "lane", "dead_letter_id"],
            unique: false,
            only: Only::Where {
                condition: "status IN ('RETRY', 'BEHIND', 'DEAD')",
                mysql_column: "open_handler",
            },
        },
        Index {
            name: "dead_letters_delivery",
            columns: &["handler", "event_id"],
            unique: true,
            only: Only::Where {
                condition: "status IN ('RETRY', 'BEHIND', 'DEAD')",
                mysql_column: "open_delivery_handler",
            },
        },
        Index {
            name: "dead_letters_due",
            columns: &["handler", "due_at"],
            unique: false,
            only: Only::Where { condition: "due_at IS NOT NULL", mysql_column: "due_handler" },
        },
        Index { name: "dead_letters_death", columns: &["death_key"], unique: true, only: Only::FirstNotNull },
        index("dead_letters_status", &["status", "dead_letter_id"]),
        Index {
            name: "dead_letters_ended",
            columns: &["status", "status_changed_at"],
            unique: false,
            only: Only::Where {
                condition: "status IN ('REPLAYED', 'DISCARDED')",
                mysql_column: "ended_status",
            },
        },
    ],
    foreign_key: None,
    hot: false,
};

/// Who holds what, in which epoch.
pub(crate) const LEASES: Table = Table {
    name: "leases",
    columns: &[
        column("lease_name", Name(160)),
        column("holder_id", Name(64)),
        column("epoch", Long),
        column("acquired_at", Time),
        column("renewed_at", Time),
        column("expires_at", Time),
    ],
    primary_key: &["lease_name"],
    indexes: &[],
    foreign_key: None,
    hot: true,
};

/// Commands to be sent later (S5).
pub(crate) const TIMERS: Table = Table {
    name: "timers",
    columns: &[
        column("timer_id", Uuid),
        column("due_at", Time),
        column("command_type", Name(128)),
        column("aggregate_kind", Name(64)),
        column("aggregate_id", Name(128)),
        column("payload", Json),
        column("correlation_id", Name(128)),
        nullable("causation_id", Name(128)),
        nullable("entered_by_id", Uuid),
        column("created_at", Time),
        column("state", Name(16)),
        column("state_changed_at", Time),
        nullable("state_reason", Name(128)),
        nullable("state_message", Text),
        nullable("started_at", Time),
        nullable("finished_at", Time),
        nullable("failed_at", Time),
        nullable("error_code", Name(128)),
        nullable("error_message", Text),
        column("retry_count", Count),
        nullable("claimed_by_id", Name(160)),
        nullable("claimed_epoch", Long),
    ],
    primary_key: &["timer_id"],
    indexes: &[
        Index {
            name: "timers_due",
            columns: &["due_at"],
            unique: false,
            only: Only::Where { condition: "state IN ('pending', 'queued')", mysql_column: "waiting_due_at" },
        },
        Index {
            name: "timers_claimed",
            columns: &["claimed_by_id"],
            unique: false,
            only: Only::FirstNotNull,
        },
        // For the cleaner: very many may wait.
        Index { name: "timers_finished", columns: &["finished_at"], unique: false, only: Only::FirstNotNull },
    ],
    foreign_key: None,
    hot: false,
};

/// Timers that wait for their moment.
pub(crate) const TIMERS_DUE: &Index = TIMERS.index("timers_due");

/// Durable work (S5). Who has a row has it under its epoch.
pub(crate) const TASKS: Table = Table {
    name: "task_box",
    columns: &[
        column("task_id", Uuid),
        column("task_type", Name(128)),
        nullable("unique_key", Name(128)),
        column("priority", Count),
        column("payload", Json),
        nullable("result", Json),
        // So that an attempt can be ended by who does not know the type.
        nullable("time_limit_micros", Long),
        column("heartbeat_micros", Long),
        nullable("subject_kind", Name(64)),
        nullable("subject_id", Name(128)),
        column("correlation_id", Name(128)),
        nullable("causation_id", Name(128)),
        nullable("trace_id", Name(64)),
        column("created_at", Time),
        // It waits until then.
        nullable("due_at", Time),
        Column { default: Some("pending"), ..column("status", Name(16)) },
        column("status_changed_at", Time),
        nullable("status_reason", Name(128)),
        nullable("status_message", Text),
        nullable("started_at", Time),
        nullable("finished_at", Time),
        nullable("failed_at", Time),
        nullable("error_code", Name(128)),
        nullable("error_message", Text),
        column("retry_count", Count),
        column("epoch", Count),
        nullable("worker", Name(160)),
        nullable("heartbeat_due_at", Time),
        nullable("attempt_due_at", Time),
        nullable("cancel_requested_at", Time),
    ],
    primary_key: &["task_id"],
    indexes: &[
        // What may be taken and nothing else, in the order in which it is.
        Index {
            name: "task_box_queued",
            columns: &["task_type", "priority DESC", "task_id"],
            unique: false,
            only: Only::Where { condition: "status = 'queued'", mysql_column: "queued_type" },
        },
        Index {
            name: "task_box_pending",
            columns: &["due_at"],
            unique: false,
            only: Only::Where { condition: "status = 'pending'", mysql_column: "pending_due_at" },
        },
        Index {
            name: "task_box_unique",
            columns: &["unique_key", "task_type"],
            unique: true,
            only: Only::Where {
                condition: "unique_key IS NOT NULL AND status IN ('pending', 'queued', 'running')",
                mysql_column: "open_key",
            },
        },
        Index {
            name: "task_box_subject",
            columns: &["subject_kind", "subject_id", "task_id"],
            unique: false,
            only: Only::FirstNotNull,
        },
        // For listings, the cleaner, and who looks for workers that are silent: few run.
        index("task_box_status", &["status", "status_changed_at", "task_id"]),
    ],
    foreign_key: None,
    hot: true,
};

/// Up to which tick tasks were started by the calendar.
pub(crate) const TASK_SCHEDULES: Table = Table {
    name: "task_schedules",
    columns: &[column("name", Name(128)), column("last_tick_at", Time)],
    primary_key: &["name"],
    indexes: &[],
    foreign_key: None,
    hot: false,
};

/// Channels registered in this database.
pub(crate) const CHANNELS: Table = Table {
    name: "channels",
    columns: &[
        column("channel_id", Uuid),
        column("name", Name(64)),
        column("position", Long),
        column("reset_count", Long),
        column("created_at", Time),
        nullable("disabled_at", Time),
        nullable("disabled_by_id", Name(128)),
        nullable("disabled_reason", Name(128)),
        nullable("disabled_message", Text),
        nullable("deleted_at", Time),
        nullable("deleted_by_id", Name(128)),
        nullable("deleted_reason", Name(128)),
    ],
    primary_key: &["channel_id"],
    indexes: &[Index {
        name: "channels_living_name",
        columns: &["name"],
        unique: true,
        only: Only::Where { condition: "deleted_at IS NULL", mysql_column: "living_name" },
    }],
    foreign_key: None,
    hot: false,
};

/// Aggregates that a tracker has left behind.
pub(crate) const CHANNEL_PARKED: Table = Table {
    name: "channel_parked",
    columns: &[
        column("channel_id", Uuid),
        column("aggregate_kind", Name(64)),
        column("aggregate_id", Name(128)),
        // It counts only as long as nobody has set the channel.
        column("reset_count", Long),
        column("aggregate_version", Long),
        column("attempts", Int),
        // Null until an operator decides.
        nullable("due_at", Time),
        column("reason", Name(128)),
        column("message", Text),
        column("parked_at", Time),
    ],
    primary_key: &["channel_id", "aggregate_kind", "aggregate_id"],
    indexes: &[Index {
        name: "channel_parked_due",
        columns: &["channel_id", "due_at"],
        unique: false,
        only: Only::All,
    }],
    foreign_key: None,
    hot: false,
};

/// Changes that were asked for from outside: under way, or answered for who asks again.
pub(crate) const OPERATIONS: Table = Table {
    name: "operations",
    columns: &[
        column("actor_id", Name(128)),
        column("operation_name", Name(128)),
        column("operation_id", Uuid),
        column("fingerprint", Name(64)),
        column("role", Name(16)),
        column("action", Name(255)),
        column("target", Text),
        nullable("request_id", Name(128)),
        nullable("trace_id", Name(64)),
        column("asked_at", Time),
        column("claim_epoch", Long),
        column("claim_holder_id", Uuid),
        // Set while it is under way.
        nullable("claim_expires_at", Time),
        nullable("answered_at", Time),
        nullable("answer_status", Int),
        nullable("answer_headers", Json),
        column("answer_body", Bytes),
    ],
    primary_key: &["actor_id", "operation_name"],
    indexes: &[
        Index {
            name: "operations_claimed",
            columns: &["claim_expires_at"],
            unique: false,
            only: Only::FirstNotNull,
        },
        Index {
            name: "operations_answered",
            columns: &["answered_at"],
            unique: false,
            only: Only::FirstNotNull,
        },
    ],
    foreign_key: None,
    hot: false,
};

/// Units of work, so that whoever did not see the answer to a commit can find out. Forgotten soon.
pub(crate) const UNITS_OF_WORK: Table = Table {
    name: "units_of_work",
    columns: &[column("unit_id", Uuid), column("begun_at", Time)],
    primary_key: &["unit_id"],
    indexes: &[index("units_of_work_begun", &["begun_at"])],
    foreign_key: None,
    hot: false,
};

/// What observers look at: what is wanted of each subject, when the next look is due, and what came of the last one.
pub(crate) const OBSERVATIONS: Table = Table {
    name: "observations",
    columns: &[
        column("observer", Name(128)),
        column("subject_id", Name(128)),
        // What hints of the platform call it.
        column("hint", Name(255)),
        column("version", Long),
        column("wanted", Json),
        // What is waited for; empty when nothing is.
        column("goal", Name(64)),
        // More is on its way: no hint leads to a look.
        column("held", Long),
        // Due until a look has come to its end.
        column("asked", Long),
        column("due_at", Time),
        // The first look at the goal.
        nullable("goal_begun_at", Time),
        nullable("looked_at", Time),
        nullable("failing_since_at", Time),
        nullable("failed_at", Time),
        nullable("failure_code", Name(128)),
        nullable("failure_message", Text),
        column("failure_count", Count),
    ],
    primary_key: &["observer", "subject_id"],
    indexes: &[
        index("observations_due", &["observer", "due_at", "subject_id"]),
        index("observations_hint", &["observer", "hint"]),
    ],
    foreign_key: None,
    hot: true,
};

/// Up to which fact the rows of each aggregate are made, a row per projection and aggregate; locked while they are written. The
/// one without an aggregate's id says by which version of the projection all were made that were there.
pub(crate) const PROJECTIONS: Table = Table {
    name: "projections",
    columns: &[
        column("projection", Name(64)),
        column("aggregate_kind", Name(64)),
        column("aggregate_id", Name(128)),
        column("version", Long),
        // Which version of the projection has made the rows; 0: none.
        column("projection_version", Long),
        // Why it does not go on behind `version`; null where it does.
        nullable("failed_at", Time),
        nullable("failed_reason", Name(128)),
        nullable("failed_message", Text),
    ],
    primary_key: &["projection", "aggregate_kind", "aggregate_id"],
    indexes: &[Index {
        name: "projections_failed",
        columns: &["failed_at", "projection"],
        unique: false,
        only: Only::FirstNotNull,
    }],
    foreign_key: None,
    hot: true,
};

/// The facts that processes took, and what came of each. Forgotten with the inbox.
pub(crate) const PROCESS_INPUTS: Table = Table {
    name: "process_inputs",
    columns: &[
        column("process_kind", Name(64)),
        column("process_id", Name(128)),
        column("event_id", Uuid),
        column("event_type", Name(128)),
        column("outcome", Name(16)),
        column("recorded_at", Time),
    ],
    primary_key: &["process_kind", "process_id", "event_id"],
    indexes: &[index("process_inputs_recorded", &["recorded_at"])],
    foreign_key: None,
    hot: false,
};

/// The names of processes' timers.
pub(crate) const PROCESS_TIMERS: Table = Table {
    name: "process_timers",
    columns: &[
        column("process_kind", Name(64)),
        column("process_id", Name(128)),
        column("name", Name(128)),
        column("timer_id", Uuid),
        column("due_at", Time),
    ],
    primary_key: &["process_kind", "process_id", "name"],
    indexes: &[index("process_timers_due", &["due_at"])],
    foreign_key: None,
    hot: false,
};

/// What undoes what processes did: the last of a process first.
pub(crate) const PROCESS_UNDOS: Table = Table {
    name: "process_undos",
    columns: &[
        column("undo_id", AutoId),
        column("process_kind", Name(64)),
        column("process_id", Name(128)),
        // Under which it is sent.
        column("command_id", Name(128)),
        // Whether it undoes a command, a timer or a task, and which.
        nullable("undoes", Name(16)),
        nullable("undoes_id", Name(128)),
        column("command_type", Name(128)),
        column("aggregate_kind", Name(64)),
        column("aggregate_id", Name(128)),
        column("payload", Json),
        column("recorded_at", Time),
        // From then on it is to be undone.
        nullable("compensating_at", Time),
        nullable("undone_at", Time),
    ],
    primary_key: &["undo_id"],
    indexes: &[
        index("process_undos_process", &["process_kind", "process_id", "undo_id"]),
        Index {
            name: "process_undos_undone",
            columns: &["undone_at"],
            unique: false,
            only: Only::FirstNotNull,
        },
    ],
    foreign_key: None,
    hot: false,
};

/// Checks of consistency: what was asked, how far each is, and what it has found.
pub(crate) const CONSISTENCY_CHECKS: Table = Table {
    name: "consistency_checks",
    columns: &[
        column("check_id", Uuid),
        column("status", Name(16)),
        column("status_changed_at", Time),
        nullable("status_reason", Name(128)),
        nullable("status_message", Text),
        column("window_micros", Long),
        column("since_at", Time),
        column("started_at", Time),
        nullable("finished_at", Time),
        // What was asked, where it goes on and what it has found.
        column("progress", Json),
        // Null until that was looked at to the end.
        nullable("version_gap_count", Long),
    ],
    primary_key: &["check_id"],
    indexes: &[
        index("consistency_checks_started", &["started_at"]),
        index("consistency_checks_finished", &["finished_at"]),
    ],
    foreign_key: None,
    hot: true,
};

/// Since when channels take what they take: events before that have no outbox rows there.
pub(crate) const CHANNEL_STARTS: Table = Table {
    name: "channel_starts",
    columns: &[column("channel", Name(64)), column("patterns", Name(64)), column("started_at", Time)],
    primary_key: &["channel"],
    indexes: &[],
    foreign_key: None,
    hot: false,
};

/// Alerts that are open, each with its rule and labels.
pub(crate) const ALERTS: Table = Table {
    name: "open_alerts",
    columns: &ALERT_COLUMNS,
    primary_key: &["alert_id"],
    indexes: &[index("open_alerts_rule", &["rule", "alert_id"])],
    foreign_key: None,
    hot: true,
};

/// What became of alerts: the alert after each change.
pub(crate) const ALERT_CHANGES: Table = Table {
    name: "alert_changes",
    columns: &{
        let mut columns = [column("change_id", AutoId); ALERT_COLUMNS.len() + 2];
        columns[1] = nullable("from_status", Name(16));
        let mut at = 0;
        while at < ALERT_COLUMNS.len() {
            columns[at + 2] = ALERT_COLUMNS[at];
            at += 1;
        }
        columns
    },
    primary_key: &["change_id"],
    indexes: &[
        index("alert_changes_rule", &["rule", "change_id"]),
        index("alert_changes_changed", &["status_changed_at"]),
    ],
    foreign_key: None,
    hot: false,
};

const ALERT_COLUMNS: [Column; 15] = [
    column("alert_id", Name(64)),
    column("rule", Name(128)),
    column("severity", Name(64)),
    column("labels", Json),
    column("annotations", Json),
    column("message", Text),
    // A float, as text: no database changes it.
    column("value", Name(32)),
    column("status", Name(16)),
    column("status_changed_at", Time),
    nullable("status_reason", Name(128)),
    nullable("status_message", Text),
    column("started_at", Time),
    nullable("fired_at", Time),
    column("held_at", Time),
    nullable("silence_id", Uuid),
];

/// Who looked at the rules last: one row.
pub(crate) const ALERT_RUNS: Table = Table {
    name: "alert_runs",
    columns: &[
        column("run_id", Int),
        column("evaluated_at", Time),
        column("evaluated_by_id", Name(64)),
        column("left_out", Long),
        column("failures", Json),
    ],
    primary_key: &["run_id"],
    indexes: &[],
    foreign_key: None,
    hot: true,
};

/// That nobody is told of some alerts for a while.
pub(crate) const ALERT_SILENCES: Table = Table {
    name: "alert_silences",
    columns: &[
        column("silence_id", Uuid),
        column("matchers", Json),
        column("author_id", Name(128)),
        column("reason", Text),
        column("starts_at", Time),
        column("ends_at", Time),
        column("created_at", Time),
        nullable("ended_at", Time),
        nullable("ended_by_id", Name(128)),
    ],
    primary_key: &["silence_id"],
    indexes: &[index("alert_silences_ends", &["ends_at"])],
    foreign_key: None,
    hot: false,
};

/// The revision of the local topology: one row, whose lock makes two that change it take turns.
pub(crate) const LOCAL_TOPOLOGY: Table = Table {
    name: "local_topology",
    columns: &[column("topology_id", Int), column("revision", Long)],
    primary_key: &["topology_id"],
    indexes: &[],
    foreign_key: None,
    hot: true,
};

/// Exchanges of the in-process broker.
pub(crate) const LOCAL_EXCHANGES: Table = Table {
    name: "local_exchanges",
    columns: &[column("name", Name(255)), column("kind", Name(16))],
    primary_key: &["name"],
    indexes: &[],
    foreign_key: None,
    hot: false,
};

/// Queues of the in-process broker.
pub(crate) const LOCAL_QUEUES: Table = Table {
    name: "local_queues",
    columns: &[
        column("name", Name(255)),
        column("arguments", Json),
        // The receiver that alone takes from the queue, where only one may.
        nullable("claimed_by_id", Name(160)),
        nullable("claimed_epoch", Long),
    ],
    primary_key: &["name"],
    indexes: &[],
    foreign_key: None,
    hot: false,
};

/// Which exchange leads to which queue.
pub(crate) const LOCAL_BINDINGS: Table = Table {
    name: "local_bindings",
    columns: &[column("queue", Name(255)), column("exchange", Name(255)), column("routing_key", Name(255))],
    primary_key: &["queue", "exchange", "routing_key"],
    indexes: &[],
    foreign_key: None,
    hot: false,
};

/// Messages that wait in queues of the in-process broker, or are with a receiver. Gone when they are settled.
pub(crate) const LOCAL_MESSAGES: Table = Table {
    name: "local_messages",
    columns: &[
        column("local_message_id", AutoId),
        column("queue", Name(255)),
        column("message_id", Name(255)),
        column("message_type", Name(255)),
        // Not `key`, which is a word of SQL.
        column("message_key", Name(255)),
        column("occurred_at", Time),
        // What microseconds leave over.
        column("occurred_nanos", Int),
        column("content_type", Name(255)),
        column("exchange", Name(255)),
        column("routing_key", Name(255)),
        column("headers", Json),
        column("body", Bytes),
        column("created_at", Time),
        // Set while nobody may take it.
        nullable("available_at", Time),
        column("delivery_count", Int),
        nullable("claimed_by_id", Name(160)),
        nullable("claimed_epoch", Long),
    ],
    primary_key: &["local_message_id"],
    indexes: &[
        Index {
            name: "local_messages_ready",
            columns: &["queue", "local_message_id"],
            unique: false,
            only: Only::Where {
                condition: "claimed_by_id IS NULL AND available_at IS NULL",
                mysql_column: "ready_queue",
            },
        },
        Index {
            name: "local_messages_delayed",
            columns: &["queue", "available_at"],
            unique: false,
            only: Only::Where { condition: "available_at IS NOT NULL", mysql_column: "delayed_queue" },
        },
        Index {
            name: "local_messages_claimed",
            columns: &["claimed_by_id"],
            unique: false,
            only: Only::FirstNotNull,
        },
    ],
    foreign_key: None,
    hot: false,
};

impl Table {
    /// The columns a writer names: all but the one the database counts up.
    pub(crate) fn written_columns(&self) -> impl Iterator<Item = &'static Column> {
        self.columns.iter().filter(|column| column.kind != AutoId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrations::tables;

    #[test]
    fn our_own_tables_follow_the_conventions_first() {
        for table in tables() {
            let has = |name: &str| table.columns.iter().any(|column| column.name == name);
            for column in table.columns {
                assert!(!column.name.ends_with("_time"), "{}.{}: times end in _at", table.name, column.name);
                if column.kind == Time {
                    assert!(column.name.ends_with("_at"), "{}.{}: times end in _at", table.name, column.name);
                }
                if column.name == "state" || column.name == "status" {
                    for beside in ["changed_at", "reason", "message"] {
                        let wanted = format!("{}_{beside}", column.name);
                        assert!(has(&wanted), "{} has {} without {wanted}", table.name, column.name);
                    }
                }
            }
            assert!(!has("enabled") || !has("disabled_at"), "{}: two switches that can disagree", table.name);
            if has("disabled_at") {
                assert!(has("disabled_by_id") && has("disabled_reason") && has("disabled_message"));
            }
            if has("deleted_at") {
                assert!(has("deleted_by_id") && has("deleted_reason"));
                for index in table.indexes.iter().filter(|index| index.unique) {
                    assert!(
                        matches!(index.only, Only::Where { condition: "deleted_at IS NULL", .. }),
                        "{} forgets soft deletion",
                        index.name
                    );
                }
            }
        }
    }

    #[test]
    fn keys_and_indexes_name_columns_that_exist() {
        for table in tables() {
            let named = table.indexes.iter().flat_map(|index| index.columns).chain(table.primary_key);
            for name in named {
                let name = &name.trim_end_matches(" DESC");
                assert!(table.columns.iter().any(|column| column.name == *name), "{}.{name}", table.name);
            }
        }
    }
}
