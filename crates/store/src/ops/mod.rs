//! The contract, written once for all three databases: a file per topic.
//!
//! A topic's trait is implemented where its statements stand; each method says whether it reads, is one statement, or needs a
//! transaction. The operations below it take a [`Session`](crate::sql::Session): who opened it decides in which transaction
//! they run.

pub(crate) mod aggregates;
pub(crate) mod alerts;
pub(crate) mod append;
pub(crate) mod backlog;
pub(crate) mod changes;
pub(crate) mod channels;
pub(crate) mod checking;
pub(crate) mod cleaning;
pub(crate) mod commands;
pub(crate) mod database;
pub(crate) mod failed;
pub(crate) mod following;
pub(crate) mod inbox;
pub(crate) mod inspection;
pub(crate) mod kept_letters;
pub(crate) mod leases;
pub(crate) mod letters;
pub(crate) mod listings;
pub(crate) mod log;
pub(crate) mod notices;
pub(crate) mod observations;
pub(crate) mod operations;
pub(crate) mod outbox;
pub(crate) mod processes;
pub(crate) mod projections;
pub(crate) mod queues;
pub(crate) mod recent;
pub(crate) mod tasks;
pub(crate) mod timers;
pub(crate) mod units;
