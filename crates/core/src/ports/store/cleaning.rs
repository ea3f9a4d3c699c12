//! Cleaning: deleting what has ended, a bounded piece at a time.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::{LeaseGrant, StoreResult};
use crate::lifecycle::TaskState;

/// Deleting what has ended, a bounded piece at a time.
#[async_trait]
pub trait Cleaning: Send + Sync + 'static {
    /// Deletes some of the commands that were received and ended (COMPLETED, or FAILED for good) before a moment, no more
    /// than `limit`; fenced by the lease. Answers how many: none when there are no more. Whoever sends one of them again
    /// under its id has it run again.
    async fn clean_commands(
        &self,
        lease: &LeaseGrant,
        ended_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64>;

    /// Deletes some of the SENT rows that were sent before a moment, no more than about `limit`; fenced by the lease.
    /// Answers how many: none when there are no more.
    async fn clean_outbox(
        &self,
        lease: &LeaseGrant,
        sent_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64>;

    /// Deletes some of the deliveries that were HANDLED before a moment, no more than about `limit`; fenced by the lease.
    /// Answers how many: none when there are no more. A delivery of such an event is first again: receivers refuse what
    /// is older than this horizon.
    async fn clean_inbox(
        &self,
        lease: &LeaseGrant,
        handled_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64>;

    /// Deletes letters that ended before a moment; answers how many.
    async fn clean_letters(&self, lease: &LeaseGrant, before: DateTime<Utc>, limit: u32) -> StoreResult<u64>;

    /// Deletes timers that ended before a moment, about so many; answers how many.
    async fn clean_timers(&self, lease: &LeaseGrant, before: DateTime<Utc>, limit: u32) -> StoreResult<u64>;

    /// Deletes tasks that ended in a status before a moment, about so many; answers how many. Nothing, for a status that is
    /// no end.
    async fn clean_tasks(
        &self,
        lease: &LeaseGrant,
        status: TaskState,
        before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64>;

    /// Deletes what is over of processes, about so many of each: records of facts that they took before a moment, names of
    /// timers that were due, and what was undone. Answers how many.
    async fn clean_processes(
        &self,
        lease: &LeaseGrant,
        before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64>;

    /// Deletes units of work that were begun before a moment, about so many; answers how many.
    async fn clean_units(&self, lease: &LeaseGrant, before: DateTime<Utc>, limit: u32) -> StoreResult<u64>;

    /// Deletes changes of alerts that happened before a moment, and silences that were over by then, about so many of each;
    /// answers how many. Alerts that are open stay.
    async fn clean_alerts(&self, lease: &LeaseGrant, before: DateTime<Utc>, limit: u32) -> StoreResult<u64>;

    /// Deletes leases with these prefixes that ended so long ago. Only for leases that name the instance that held them:
    /// a lease that is taken again after its row is gone begins with its first epoch.
    async fn clean_leases(
        &self,
        lease: &LeaseGrant,
        prefixes: &[&str],
        ended_for: Duration,
    ) -> StoreResult<u64>;
}
