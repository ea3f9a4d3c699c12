//! The database itself: its promises, its schema version, its clock.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::Serialize;

use super::StoreResult;

/// What an adapter promises beyond the contract, as data: the conformance suite picks its cases by it and the
/// support table in the documentation is printed from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StorePromises {
    /// The database, as people write it.
    pub database: &'static str,
    /// Several write transactions may be open at once. Where not, a second writer waits its turn.
    pub concurrent_writers: bool,
    /// Several hosts may share it.
    pub many_hosts: bool,
    /// A whole new command is one statement: one round trip after the load. One that was recorded before (a retry, a
    /// claimed one) takes a transaction.
    pub single_statement_write: bool,
    /// Uniqueness among the living is a partial unique index; elsewhere a generated column does it.
    pub partial_unique_index: bool,
    /// Commits can wake other processes; elsewhere they poll.
    pub notifies: bool,
}

/// The database itself: its promises, its schema version, its clock.
#[async_trait]
pub trait Database: Send + Sync + 'static {
    /// What this adapter promises beyond the contract.
    fn promises(&self) -> StorePromises;

    /// Brings the tables to this build's version. Safe when two instances start at once; refuses a database from
    /// a newer version. Answers the versions applied.
    async fn migrate(&self) -> StoreResult<Vec<u32>>;

    /// Asks the database for an answer and checks its schema version.
    async fn ready(&self) -> StoreResult<()>;

    /// The database's time: the one clock that all hosts share.
    async fn now(&self) -> StoreResult<DateTime<Utc>>;
}
