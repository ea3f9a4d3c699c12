//! The store: one contract for every database, a file per topic.
//!
//! A topic is a small trait with the types it speaks of. [`Store`] is their sum, and the conformance suite in the test kit is
//! its meaning. Method names are unique over all topics, so that a `dyn Store` has them all without an import.
//!
//! Reading order: the database and its errors; appends and transactions; the topics.

mod aggregates;
pub mod alerts;
mod appends;
mod backlog;
mod channels;
mod checking;
mod cleaning;
mod commands;
mod database;
mod error;
mod following;
mod inbox;
mod inspection;
mod leases;
mod letters;
mod listings;
mod log;
mod notices;
pub mod observations;
pub mod operations;
mod outbox;
mod processes;
mod projections;
pub mod queues;
mod recent;
pub mod tasks;
mod timers;
mod transactions;

pub use aggregates::{AggregateRow, Aggregates, AppendedTogether, Flow, StateEvent};
pub use alerts::{
    Alert, AlertCursor, AlertNote, AlertRun, Alerts, NewSilence, NotedChange, Silence, SilenceMatcher,
};
pub use appends::{
    Append, AppendRules, Appended, DeadlineChange, Expected, NewEvent, Routing, Snapshot, StateChange,
};
pub use backlog::{Backlog, Backlogs, CommandBacklog, LetterCount, LogBacklog, OutboxBacklog, TimerBacklog};
pub use channels::{ChannelRow, Channels, Disabled, Parked, ParkedAggregate, TrackerPlace};
pub use checking::{
    ChannelStart, CheckRow, CheckStatus, CheckedEvent, Checking, KnownCause, PastConsumer, Repair, Repaired,
    Suspect, SuspectPage, Suspicion,
};
pub use cleaning::Cleaning;
pub use commands::{
    CLAIMED_BYTES, CommandRecord, CommandResult, CommandSession, Commands, CompletedCommand, FailedCommand,
    Found, Loaded, NewCommand,
};
pub use database::{Database, StorePromises};
pub use error::{BoxError, StoreError, StoreResult};
pub use following::{FollowedLog, Following};
pub use inbox::{CameBefore, FirstDelivery, Inbox, InboxEntry, InboxFailure, InboxMark};
pub use inspection::{Counts, InspectedStore, Inspection};
pub use leases::{Claim, HeldLease, LeaseGrant, Leases};
pub use letters::Letters;
pub use listings::{COMMANDS_BYTES, FoundAs, Listings, OutboxFilter};
pub use log::{Log, Sequenced};
pub use notices::{Heard, NoticeListener, Notices};
pub use observations::{
    Adopted, DuePage, Listed, Look, LookFailure, Looks, NotedLook, Observations, ScanPlace, Watch, Watched,
};
pub use operations::{
    BeginOutcome, LostOperation, NewOperation, OperationAnswer, OperationClaim, OperationEnd, OperationKey,
    Operations,
};
pub use outbox::{
    ClaimRoom, FailedFilter, FailedRow, Outbox, OutboxClaim, OutboxItem, OutboxOutcome, OutboxResult,
    OutboxRow,
};
pub use processes::{InputOutcome, NewUndo, ProcessInput, Processes, Undo, Undoes, UnknownOutcome};
pub use projections::{Projected, ProjectedAggregate, ProjectionFailure, ProjectionProgress, Projections};
pub use queues::{
    Ending, Fate, Layout, Parcel, Placement, PutError, QueueDepth, Queues, Receiver, TakenMessage,
};
pub use recent::{LOOKED_AT, Recent, RecentCommands, Recents};
pub use tasks::{
    Canceling, HeldTask, NewTask, Promoted, StartedTask, Task, TaskBacklog, TaskBeats, TaskClaim, TaskEnd,
    TaskEnding, TaskFilter, TaskPlace, TaskRetry, Tasks, WantedTasks,
};
pub use timers::{NewTimer, Timer, TimerOutcome, Timers};
pub use transactions::{StoreTx, Transactions};

/// Writes the list of topics once.
macro_rules! sum_of {
    ($($topic:ident),+ $(,)?) => {
        /// The store contract: the sum of its topics.
        pub trait Store: $($topic +)+ {}

        impl<S: $($topic +)+> Store for S {}
    };
}

sum_of!(
    Database,
    Transactions,
    Commands,
    Aggregates,
    Log,
    Outbox,
    Leases,
    Inbox,
    Letters,
    Timers,
    Tasks,
    Channels,
    Queues,
    Operations,
    Observations,
    Projections,
    Processes,
    Listings,
    Following,
    Cleaning,
    Checking,
    Backlogs,
    Recents,
    Alerts,
    Notices,
);
