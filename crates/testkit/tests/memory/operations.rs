//! The port of operations, over the tables.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ports::operations::*;
use towpath_core::ports::store::{Append, LeaseGrant, StoreResult, Transactions as _};

use super::{Fault, MemoryStore};

/// A row.
pub(crate) struct Operation {
    asked: NewOperation,
    claim: OperationClaim,
    until: Instant,
    answered: Option<(OperationAnswer, DateTime<Utc>)>,
    ended: bool,
}

impl Operation {
    /// Whether whoever holds this claim may write its answer.
    pub(super) fn may_be_answered(&self, claim: &OperationClaim) -> bool {
        !self.ended && self.answered.is_none() && self.claim == *claim
    }

    /// As an older copy has it.
    pub(super) fn come_back(&mut self) {
        self.claim.epoch -= 1;
    }

    pub(super) fn answer(&mut self, answer: OperationAnswer, now: DateTime<Utc>) {
        self.answered = Some((answer, now));
    }
}

#[async_trait]
impl Operations for MemoryStore {
    async fn begin_operation(&self, operation: &NewOperation, for_: Duration) -> StoreResult<BeginOutcome> {
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        let until = Instant::now() + for_;
        let found = tables.operations.get_mut(&operation.key);
        let Some(row) = found.filter(|_| !self.has(Fault::OperationNamesAreNotUnique)) else {
            let (key, operation_id) = (operation.key.clone(), operation.operation_id);
            let claim = OperationClaim { key: key.clone(), operation_id, holder_id: operation_id, epoch: 1 };
            let (asked, claimed) = (operation.clone(), claim.clone());
            let row = Operation { asked, claim: claimed, until, answered: None, ended: false };
            tables.operations.insert(key, row);
            return Ok(BeginOutcome::Begun(claim));
        };
        if row.asked.fingerprint != operation.fingerprint {
            return Ok(BeginOutcome::Different);
        }
        if let Some((answer, _)) = &row.answered {
            return Ok(BeginOutcome::Answered(answer.clone()));
        }
        if row.until > Instant::now() {
            return Ok(BeginOutcome::Running);
        }
        row.claim.epoch += 1;
        row.claim.holder_id = operation.operation_id;
        row.until = until;
        Ok(BeginOutcome::Begun(row.claim.clone()))
    }

    async fn end_operation(
        &self,
        claim: &OperationClaim,
        end: OperationEnd<'_>,
        fact: Option<&Append>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        let mut tx = self.begin().await?;
        let is_held = |row: &Operation| {
            let has_answer = row.answered.is_some();
            !row.ended && row.claim == *claim && has_answer == matches!(end, OperationEnd::Kept)
        };
        let held = self.database.tables().operations.get(&claim.key).is_some_and(is_held);
        if !held && !self.has(Fault::LostOperationsAreNotFenced) {
            return Ok(false);
        }
        if let Some(fact) = fact {
            tx.append(fact).await?;
        }
        tx.commit().await?;
        let mut tables = self.database.tables();
        match end {
            OperationEnd::Forgotten => drop(tables.operations.remove(&claim.key)),
            OperationEnd::Kept => {
                if let Some(row) = tables.operations.get_mut(&claim.key) {
                    row.ended = true;
                }
            }
            OperationEnd::Answered(answer) => {
                if let Some(row) = tables.operations.get_mut(&claim.key) {
                    row.answer(answer.clone(), now);
                    row.ended = true;
                }
            }
        }
        Ok(true)
    }

    async fn answered_operation(&self, claim: &OperationClaim) -> StoreResult<Option<OperationAnswer>> {
        let tables = self.database.tables();
        let row = tables.operations.get(&claim.key).filter(|row| !row.ended && row.claim == *claim);
        Ok(row.and_then(|row| row.answered.as_ref()).map(|(answer, _)| answer.clone()))
    }

    async fn lost_operations(&self, limit: u32) -> StoreResult<Vec<LostOperation>> {
        let tables = self.database.tables();
        let mut lost: Vec<&Operation> =
            tables.operations.values().filter(|row| !row.ended && row.until <= Instant::now()).collect();
        lost.sort_by_key(|row| row.until);
        let lost = lost.into_iter().take(limit as usize);
        let lost = lost.map(|row| LostOperation {
            operation: row.asked.clone(),
            claim: row.claim.clone(),
            answered: row.answered.as_ref().map(|(answer, _)| answer.status),
        });
        Ok(lost.collect())
    }

    async fn clean_operations(
        &self,
        lease: &LeaseGrant,
        answered_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        let mut tables = self.database.tables();
        tables.check_lease(lease)?;
        let is_old = |row: &&Operation| row.answered.as_ref().is_some_and(|(_, at)| *at < answered_before);
        let old: Vec<OperationKey> = tables
            .operations
            .values()
            .filter(is_old)
            .take(limit as usize)
            .map(|row| row.claim.key.clone())
            .collect();
        for key in &old {
            tables.operations.remove(key);
        }
        Ok(old.len() as u64)
    }
}
