//! Operations: begun once, ended once, by the database's own clock.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{ActorId, LeaseName, OperationName, RequestId, TraceId};
use towpath_core::ports::operations::{
    BeginOutcome, LostOperation, NewOperation, OperationAnswer, OperationClaim, OperationEnd, OperationKey,
    Operations,
};
use towpath_core::ports::store::{Append, LeaseGrant, StoreError, StoreResult};

use crate::ops::append::append_tx;
use crate::ops::leases::{fence, micros};
use crate::rows::{headers_text, names_and_marks};
use crate::schema::OPERATIONS;
use crate::sql::{Row, Session, SqlFault, Value, readable, unreadable, values};
use crate::store::{SqlStore, reading, transacting, writing_once};

#[async_trait]
impl Operations for SqlStore {
    async fn begin_operation(&self, operation: &NewOperation, for_: Duration) -> StoreResult<BeginOutcome> {
        // Mostly the name is new, and then one statement is all.
        match writing_once!(self, begin_new, operation, for_)? {
            Some(claim) => Ok(BeginOutcome::Begun(claim)),
            None => transacting!(self, stand, operation, for_),
        }
    }

    async fn end_operation(
        &self,
        claim: &OperationClaim,
        end: OperationEnd<'_>,
        fact: Option<&Append>,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        transacting!(self, super::operations::end, claim, end, fact, now)
    }

    async fn answered_operation(&self, claim: &OperationClaim) -> StoreResult<Option<OperationAnswer>> {
        reading!(self, answered, claim)
    }

    async fn lost_operations(&self, limit: u32) -> StoreResult<Vec<LostOperation>> {
        reading!(self, lost, limit)
    }

    async fn clean_operations(
        &self,
        lease: &LeaseGrant,
        answered_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        transacting!(self, clean, lease, answered_before, limit)
    }
}

/// Begins an operation that nobody has begun: one statement. None when its name is there already.
async fn begin_new(
    session: &mut Session<'_>,
    operation: &NewOperation,
    for_: Duration,
) -> StoreResult<Option<OperationClaim>> {
    let (names, _) = names_and_marks(&OPERATIONS);
    let sql = format!(
        "INSERT INTO operations ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, {}, NULL, NULL, NULL, ?) {}",
        session.dialect().now_plus_parameter(),
        session.dialect().ignoring_duplicates()
    );
    let nothing: &[u8] = &[];
    let row = values![
        operation.key.actor.as_str(),
        operation.key.name.as_str(),
        operation.operation_id,
        operation.fingerprint.as_str(),
        operation.role.as_str(),
        operation.action.as_str(),
        readable(&operation.target),
        operation.request_id.as_ref().map(|id| id.as_str()),
        operation.trace_id.as_ref().map(|id| id.as_str()),
        operation.asked_at,
        operation.operation_id,
        micros(for_),
        nothing,
    ];
    match session.execute("operation.begin", &sql, row).await {
        Ok(0) | Err(SqlFault::Unique { .. }) => Ok(None),
        Ok(_) => Ok(Some(OperationClaim {
            key: operation.key.clone(),
            operation_id: operation.operation_id,
            holder_id: operation.operation_id,
            epoch: 1,
        })),
        Err(fault) => Err(fault.into()),
    }
}

/// Looks at an operation whose name is there already, and takes it over if its time is up. Runs in a transaction.
async fn stand(
    session: &mut Session<'_>,
    operation: &NewOperation,
    for_: Duration,
) -> StoreResult<BeginOutcome> {
    let sql = format!(
        "SELECT operation_id, fingerprint, claim_epoch, answer_status, answer_headers, answer_body, \
         CASE WHEN claim_expires_at <= {} THEN 1 ELSE 0 END AS expired \
         FROM operations WHERE actor_id = ? AND operation_name = ? {}",
        session.dialect().now(),
        session.dialect().for_update()
    );
    let key = &operation.key;
    let found = session.row("operation.stand", &sql, values![key.actor.as_str(), key.name.as_str()]).await?;
    // Ended and forgotten a moment ago: who asks again finds the name free.
    let Some(row) = found else { return Ok(BeginOutcome::Running) };
    if row.text("fingerprint")? != operation.fingerprint {
        return Ok(BeginOutcome::Different);
    }
    if let Some(status) = row.long_or_null("answer_status")? {
        return Ok(BeginOutcome::Answered(read_answer(&row, status)?));
    }
    if row.long("expired")? == 0 {
        return Ok(BeginOutcome::Running);
    }
    let claim = OperationClaim {
        key: key.clone(),
        operation_id: row.uuid("operation_id")?,
        holder_id: operation.operation_id,
        epoch: row.count("claim_epoch")? + 1,
    };
    let sql = format!(
        "UPDATE operations SET claim_epoch = ?, claim_holder_id = ?, claim_expires_at = {}, request_id = ?, trace_id = ? \
         WHERE actor_id = ? AND operation_name = ?",
        session.dialect().now_plus_parameter()
    );
    let taken = values![
        claim.epoch,
        claim.holder_id,
        micros(for_),
        operation.request_id.as_ref().map(|id| id.as_str()),
        operation.trace_id.as_ref().map(|id| id.as_str()),
        key.actor.as_str(),
        key.name.as_str()
    ];
    session.execute("operation.take", &sql, taken).await?;
    Ok(BeginOutcome::Begun(claim))
}

/// The id beside the epoch: a name that was forgotten and begun anew counts from 1 again. The holder beside both: a
/// database that comes back from an older copy gives an epoch twice.
const HELD: &str = "actor_id = ? AND operation_name = ? AND operation_id = ? AND claim_epoch = ? \
     AND claim_holder_id = ? AND claim_expires_at IS NOT NULL";

/// Writes the answer of an operation that goes on. Runs in the transaction of its effect.
///
/// The claim stays until the operation is ended: so the fact about it is recorded even if this process is not there to
/// do it.
pub(crate) async fn answer(
    session: &mut Session<'_>,
    claim: &OperationClaim,
    answer: &OperationAnswer,
    now: DateTime<Utc>,
) -> StoreResult<()> {
    let sql = format!(
        "UPDATE operations SET answered_at = ?, answer_status = ?, answer_headers = ?, answer_body = ? \
         WHERE {HELD} AND answer_status IS NULL"
    );
    let mut row = answer_values(answer, now)?;
    row.extend(held(claim));
    match session.execute("operation.answer_with_effect", &sql, row).await? {
        0 => Err(StoreError::Fenced {
            lease: LeaseName::from_stored(format!("operation {}", claim.operation_id)),
            epoch: claim.epoch,
        }),
        _ => Ok(()),
    }
}

/// The answer of a claimed operation that was written with its effect.
async fn answered(session: &mut Session<'_>, claim: &OperationClaim) -> StoreResult<Option<OperationAnswer>> {
    let sql = format!("SELECT answer_status, answer_headers, answer_body FROM operations WHERE {HELD}");
    let Some(row) = session.row("operation.answered", &sql, held(claim)).await? else { return Ok(None) };
    row.long_or_null("answer_status")?.map(|status| read_answer(&row, status)).transpose()
}

fn held(claim: &OperationClaim) -> Vec<Value<'_>> {
    values![
        claim.key.actor.as_str(),
        claim.key.name.as_str(),
        claim.operation_id,
        claim.epoch,
        claim.holder_id
    ]
}

fn answer_values(answer: &OperationAnswer, now: DateTime<Utc>) -> StoreResult<Vec<Value<'_>>> {
    Ok(values![now, i64::from(answer.status), headers_text(&answer.headers)?, answer.body.as_slice()])
}

/// Ends an operation with the fact about it. Runs in a transaction.
async fn end(
    session: &mut Session<'_>,
    claim: &OperationClaim,
    end: OperationEnd<'_>,
    fact: Option<&Append>,
    now: DateTime<Utc>,
) -> StoreResult<bool> {
    let held = held(claim);
    let touched = match end {
        OperationEnd::Forgotten => {
            let sql = format!("DELETE FROM operations WHERE {HELD} AND answer_status IS NULL");
            session.execute("operation.forget", &sql, held).await?
        }
        OperationEnd::Kept => {
            let sql = format!(
                "UPDATE operations SET claim_expires_at = NULL WHERE {HELD} AND answer_status IS NOT NULL"
            );
            session.execute("operation.keep", &sql, held).await?
        }
        OperationEnd::Answered(answer) => {
            let sql = format!(
                "UPDATE operations SET claim_expires_at = NULL, answered_at = ?, answer_status = ?, \
                 answer_headers = ?, answer_body = ? WHERE {HELD} AND answer_status IS NULL"
            );
            let mut row = answer_values(answer, now)?;
            row.extend(held);
            session.execute("operation.answer", &sql, row).await?
        }
    };
    if touched == 0 {
        return Ok(false);
    }
    if let Some(fact) = fact {
        append_tx(session, fact).await?;
    }
    Ok(true)
}

async fn lost(session: &mut Session<'_>, limit: u32) -> StoreResult<Vec<LostOperation>> {
    let sql = format!(
        "SELECT actor_id, operation_name, operation_id, fingerprint, role, action, target, request_id, trace_id, \
         asked_at, claim_epoch, claim_holder_id, answer_status FROM operations WHERE claim_expires_at <= {} \
         ORDER BY claim_expires_at LIMIT {limit}",
        session.dialect().now_of_statement()
    );
    session.rows("operation.lost", &sql, values![]).await?.iter().map(read_lost).collect()
}

/// Deletes what was answered before a moment. Runs in a transaction.
async fn clean(
    session: &mut Session<'_>,
    lease: &LeaseGrant,
    before: DateTime<Utc>,
    limit: u32,
) -> StoreResult<u64> {
    // The last one of a page by its time, and then all up to it: no database has to be told how to limit a DELETE.
    let sql = format!(
        "SELECT answered_at FROM operations WHERE answered_at < ? AND claim_expires_at IS NULL \
         ORDER BY answered_at LIMIT {limit}"
    );
    let page = session.rows("operation.clean_page", &sql, values![before]).await?;
    let Some(last) = page.last() else { return Ok(0) };
    let deleted = session
        .execute(
            "operation.clean",
            "DELETE FROM operations WHERE answered_at <= ? AND claim_expires_at IS NULL",
            values![last.time("answered_at")?],
        )
        .await?;
    fence(session, std::slice::from_ref(lease)).await?;
    Ok(deleted)
}

fn read_answer(row: &Row, status: i64) -> StoreResult<OperationAnswer> {
    let headers = row.text("answer_headers")?;
    Ok(OperationAnswer {
        status: u16::try_from(status).map_err(|error| unreadable("answer_status", error))?,
        headers: serde_json::from_str(&headers).map_err(|error| unreadable("answer_headers", error))?,
        body: row.bytes("answer_body")?,
    })
}

fn read_lost(row: &Row) -> StoreResult<LostOperation> {
    let key = OperationKey {
        actor: ActorId::from_stored(row.text("actor_id")?),
        name: OperationName::from_stored(row.text("operation_name")?),
    };
    let operation_id = row.uuid("operation_id")?;
    let answered = row.long_or_null("answer_status")?;
    let answered =
        answered.map(|status| u16::try_from(status).map_err(|error| unreadable("answer_status", error)));
    Ok(LostOperation {
        answered: answered.transpose()?,
        claim: OperationClaim {
            key: key.clone(),
            operation_id,
            holder_id: row.uuid("claim_holder_id")?,
            epoch: row.count("claim_epoch")?,
        },
        operation: NewOperation {
            key,
            operation_id,
            fingerprint: row.text("fingerprint")?,
            role: row.text("role")?,
            action: row.text("action")?,
            target: row.text("target")?,
            request_id: row.text_or_null("request_id")?.map(RequestId::from_stored),
            trace_id: row.text_or_null("trace_id")?.map(TraceId::from_stored),
            asked_at: row.time("asked_at")?,
        },
    })
}
