//! What goes wrong in a store, as values: class, stable code, next step.

use super::Expected;
use crate::ids::{AggregateKey, CommandId, LeaseName};
use crate::retry::{Coded, ErrorClass};

/// Shorthand for what store operations answer.
pub type StoreResult<T> = Result<T, StoreError>;

/// A fault or a refusal of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Somebody else changed the aggregate since it was loaded. Nothing was written.
    #[error("{aggregate} is no longer at version {expected}")]
    VersionConflict {
        /// Which aggregate.
        aggregate: AggregateKey,
        /// What the writer expected.
        expected: Expected,
    },
    /// The command id is recorded already. Nothing was written.
    #[error("command {0} is recorded already")]
    DuplicateCommand(CommandId),
    /// An event id is recorded already. Nothing was written.
    #[error("an event of {0} has an id that is recorded already")]
    DuplicateEvent(AggregateKey),
    /// The command is not in the status that this write was based on: someone else has taken it.
    #[error("command {0} has been taken over by another instance")]
    CommandTaken(CommandId),
    /// The lease has been taken over since, or was never this holder's; the effect was refused and nothing was written.
    #[error("lease {lease} is no longer held in epoch {epoch}")]
    Fenced {
        /// Which lease.
        lease: LeaseName,
        /// The epoch the writer believed to hold.
        epoch: u64,
    },
    /// An append with more rows than fit into one statement on every database. Nothing was written.
    #[error("{events} events in one append bind {values} values; at most {limit} are accepted")]
    AppendTooLarge {
        /// How many events.
        events: usize,
        /// How many values they bind, with their history and outbox rows.
        values: usize,
        /// How many are accepted.
        limit: usize,
    },
    /// An event that was to be appended without a command is not one that the aggregate can have now. Nothing was written.
    #[error("{event} cannot be appended to {aggregate}")]
    ForbiddenEvent {
        /// Which aggregate.
        aggregate: AggregateKey,
        /// The event's type.
        event: String,
        /// Stable code of why.
        code: &'static str,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// A living thing of that name exists.
    #[error("{what} {name} exists already")]
    NameTaken {
        /// What sort of thing.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// There is no such thing.
    #[error("there is no {what} {name}")]
    Missing {
        /// What sort of thing.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The business status is not in the tenant's dictionary.
    #[error("status {value} is not in the dictionary of tenant {tenant}")]
    UnknownStatus {
        /// Whose dictionary.
        tenant: String,
        /// The value given.
        value: String,
    },
    /// The URL is wrong or needs something that is not built in.
    #[error("{0}")]
    BadUrl(String),
    /// The database was migrated by a newer Towpath.
    #[error("the database has schema version {found}, this build knows {known}")]
    NewerSchema {
        /// In the database.
        found: u32,
        /// In this build.
        known: u32,
    },
    /// The database has no tables of Towpath, or older ones.
    #[error("the database has schema version {found}, this build needs {needed}")]
    NotMigrated {
        /// In the database.
        found: u32,
        /// In this build.
        needed: u32,
    },
    /// The log was opened with another page size before, and that is for its life.
    #[error("the log has pages of {found} notifications; {configured} are configured")]
    OtherPageSize {
        /// In the database.
        found: u64,
        /// In the configuration.
        configured: u64,
    },
    /// A table that is needed is there, and is somebody else's. It was not touched.
    #[error("there is a table {table} that belongs to somebody else: {why}")]
    ForeignTable {
        /// Which.
        table: String,
        /// By what that is known.
        why: String,
    },
    /// The transaction cannot be committed: a statement in it has failed, or it is still in use elsewhere. Nothing was
    /// written.
    #[error("the transaction was lost: {0}")]
    TransactionLost(String),
    /// The answer to a commit was lost, and the database has not said since whether it was done.
    #[error("it is not known whether the commit was done")]
    CommitUnknown(#[source] BoxError),
    /// A unit of work was begun, or a command sent by itself, inside of a unit of work. Nothing was written.
    #[error("a transaction was begun inside of another one")]
    Nested,
    /// A change that says something that is no id or no payload. Nothing was written.
    #[error("the change cannot be written")]
    InvalidChange {
        /// Stable code of what is wrong.
        code: &'static str,
        /// What is wrong.
        #[source]
        source: BoxError,
    },
    /// Writers got in each other's way (deadlock, serialization failure, busy). The whole transaction was rolled
    /// back and may be run again.
    #[error("the database gave way to another transaction")]
    Contention(#[source] BoxError),
    /// The database cannot be reached or does not answer. Whether a commit in flight took effect is unknown.
    #[error("the database cannot be reached")]
    Unavailable(#[source] BoxError),
    /// A listing took longer than listings may, and was ended. Nothing was changed by it.
    #[error("{statement} took too long and was ended")]
    TooSlow {
        /// The statement's name.
        statement: &'static str,
        /// What the database said.
        #[source]
        source: BoxError,
    },
    /// No room left.
    #[error("the database has no room left")]
    Full(#[source] BoxError),
    /// A text has a character that this database has none of: PostgreSQL keeps no NUL. Nothing was written.
    #[error("a text has a character that the database cannot keep")]
    Unstorable(#[source] BoxError),
    /// What was read cannot be what was written.
    #[error("{what} cannot be read")]
    Corrupt {
        /// Which value, in which row.
        what: String,
        /// Why.
        #[source]
        source: BoxError,
    },
    /// Anything else the database says.
    #[error("the database refused {statement}")]
    Refused {
        /// The statement's name.
        statement: &'static str,
        /// What it said.
        #[source]
        source: BoxError,
    },
}

/// Any error, as a cause.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

impl StoreError {
    /// A value that cannot be what was written, or cannot be written as what it is.
    pub fn corrupt(what: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Corrupt { what: what.into(), source: source.into() }
    }
}

impl Coded for StoreError {
    fn code(&self) -> &'static str {
        match self {
            Self::VersionConflict { .. } => "version-conflict",
            Self::DuplicateCommand(_) => "duplicate-command",
            Self::DuplicateEvent(_) => "duplicate-event",
            Self::CommandTaken(_) => "command-taken",
            Self::Fenced { .. } => "fenced",
            Self::AppendTooLarge { .. } => "append-too-large",
            Self::ForbiddenEvent { code, .. } => code,
            Self::NameTaken { .. } => "name-taken",
            Self::Missing { .. } => "missing",
            Self::UnknownStatus { .. } => "unknown-status",
            Self::BadUrl(_) => "bad-url",
            Self::NewerSchema { .. } => "newer-schema",
            Self::NotMigrated { .. } => "not-migrated",
            Self::OtherPageSize { .. } => "log-page-size",
            Self::ForeignTable { .. } => "foreign-table",
            Self::TransactionLost(_) => "transaction-lost",
            Self::CommitUnknown(_) => "commit-unknown",
            Self::Nested => "nested-transaction",
            Self::InvalidChange { code, .. } => code,
            Self::Contention(_) => "contention",
            Self::Unavailable(_) => "store-unavailable",
            Self::TooSlow { .. } => "too-slow",
            Self::Full(_) => "store-full",
            Self::Unstorable(_) => "unstorable-text",
            Self::Corrupt { .. } => "corrupt",
            Self::Refused { .. } => "store-refused",
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Self::VersionConflict { .. } | Self::DuplicateCommand(_) | Self::CommandTaken(_) => {
                ErrorClass::Conflict
            }
            Self::Contention(_)
            | Self::Unavailable(_)
            | Self::CommitUnknown(_)
            | Self::TooSlow { .. }
            | Self::Full(_) => ErrorClass::Transient,
            Self::Missing { .. } => ErrorClass::NotFound,
            Self::Unstorable(_) | Self::InvalidChange { .. } => ErrorClass::InvalidPayload,
            Self::NameTaken { .. }
            | Self::UnknownStatus { .. }
            | Self::AppendTooLarge { .. }
            | Self::ForbiddenEvent { .. } => ErrorClass::Validation,
            Self::DuplicateEvent(_)
            | Self::Fenced { .. }
            | Self::BadUrl(_)
            | Self::NewerSchema { .. }
            | Self::NotMigrated { .. }
            | Self::OtherPageSize { .. }
            | Self::ForeignTable { .. }
            | Self::TransactionLost(_)
            | Self::Nested
            | Self::Corrupt { .. }
            | Self::Refused { .. } => ErrorClass::Unrecoverable,
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::VersionConflict { .. } | Self::Contention(_) => {
                "Load the aggregate again and repeat the command."
            }
            Self::DuplicateCommand(_) => "Ask for the recorded answer of this command id, or use a new id.",
            Self::DuplicateEvent(_) => {
                "Give each event a new UUIDv7; the same fact must not be written twice."
            }
            Self::CommandTaken(_) => "Another instance runs this command; ask for its status.",
            Self::Fenced { .. } => {
                "Another instance has taken over; stop this work and acquire the lease again."
            }
            Self::AppendTooLarge { .. } => {
                "Decide fewer events per command: several commands, or one event with a list."
            }
            Self::ForbiddenEvent { code: "event-too-large", .. } => {
                "Say less in one event, or let it name where the rest is kept; or raise largest-message of the channel."
            }
            Self::ForbiddenEvent { .. } => {
                "Append only events that the aggregate declares and that its machine allows in its state."
            }
            Self::NameTaken { .. } => "Choose another name, or remove the living one first.",
            Self::Missing { .. } => "Check the name; listings show what exists.",
            Self::UnknownStatus { .. } => "Add the value to the tenant's status dictionary first.",
            Self::BadUrl(_) => {
                "Write sqlite://PATH, postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE."
            }
            Self::NewerSchema { .. } => {
                "Run the newer Towpath, or restore a backup from before its migration."
            }
            Self::NotMigrated { .. } => "Run `towpath migrate`, or start Towpath with migrations on.",
            Self::OtherPageSize { .. } => {
                "Configure the size the log has, or leave it out: pages that others have kept would change."
            }
            Self::ForeignTable { .. } => {
                "Give Towpath a schema or database of its own, or rename the other table."
            }
            Self::Unavailable(_) => {
                "Check that the database runs and the URL is right; commands may be sent again with the same id."
            }
            Self::TransactionLost(_) => {
                "Return the first error that a statement gives, and keep no transaction beyond its unit of work."
            }
            Self::CommitUnknown(_) => {
                "Look whether it was done before doing it again: the database came back too late to say."
            }
            Self::Nested => {
                "Use the transaction that is open: tx.send commits with the rest, and another unit of work comes after it."
            }
            Self::InvalidChange { .. } => "Correct what the cause names.",
            Self::TooSlow { .. } => {
                "Ask for less at a time (a filter, a smaller page), or raise database.listing-timeout."
            }
            Self::Full(_) => {
                "Free space for the database; nothing was written and commands may be sent again with the same id."
            }
            Self::Unstorable(_) => "Leave the character out; it is most likely a NUL.",
            Self::Corrupt { .. } => {
                "Do not write to this aggregate any more; compare its rows with a backup."
            }
            Self::Refused { .. } => "The cause is the database's own message.",
        }
    }
}
