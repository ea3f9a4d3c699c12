//! Operations over a pool of connections: which one runs in which transaction.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ports::operations::{
    LostOperation, NewOperation, OperationAnswer, OperationClaim, OperationEnd, OperationStanding, Operations,
};
use towpath_core::ports::store::{Append, LeaseGrant, StoreResult};

use crate::ops;
use crate::store::{Purpose, SqlStore, reading, transacting, writing_once};

#[async_trait]
impl Operations for SqlStore {
    async fn begin_operation(
        &self,
        operation: &NewOperation,
        for_: Duration,
    ) -> StoreResult<OperationStanding> {
        // Mostly the name is new, and then one statement is all.
        match writing_once!(self, ops::operations::begin_new, operation, for_)? {
            Some(claim) => Ok(OperationStanding::Begun(claim)),
            None => transacting!(self, ops::operations::stand, operation, for_),
        }
    }

    async fn end_operation(
        &self,
        claim: &OperationClaim,
        end: OperationEnd<'_>,
        fact: Option<&Append>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        transacting!(self, ops::operations::end, claim, end, fact, now)
    }

    async fn answered_operation(&self, claim: &OperationClaim) -> StoreResult<Option<OperationAnswer>> {
        reading!(self, ops::operations::answered, claim)
    }

    async fn lost_operations(&self, limit: u32) -> StoreResult<Vec<LostOperation>> {
        reading!(self, ops::operations::lost, limit)
    }

    async fn clean_operations(
        &self,
        lease: &LeaseGrant,
        answered_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, ops::operations::clean, lease, answered_before, limit)
    }
}
