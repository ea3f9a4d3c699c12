//! The operations of the contract, written once for all three databases.
//!
//! Each takes a [`Session`](crate::sql::Session): who opened it decides in which transaction it runs.

pub(crate) mod append;
pub(crate) mod backlog;
pub(crate) mod channels;
pub(crate) mod cleaning;
pub(crate) mod commands;
pub(crate) mod failed;
pub(crate) mod followed;
pub(crate) mod inbox;
pub(crate) mod leases;
pub(crate) mod letters;
pub(crate) mod listings;
pub(crate) mod log;
pub(crate) mod observations;
pub(crate) mod operations;
pub(crate) mod outbox;
pub(crate) mod queues;
pub(crate) mod reads;
pub(crate) mod timers;
pub(crate) mod units;
