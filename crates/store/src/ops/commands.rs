//! The command box.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::{AggregateKey, CommandId};
use towpath_core::lifecycle::{CommandStatus, CommandStep};
use towpath_core::ports::store::{
    CLAIMED_BYTES, CommandRecord, CommandResult, CommandSession, Commands, CompletedCommand, FailedCommand,
    Found, LeaseGrant, Loaded, NewCommand, StoreError, StoreResult,
};

use crate::bounded::how_many_fit;
use crate::ops::append::{append, append_with_command};
use crate::ops::leases::{HELD, fence, held_by, holder_is_gone, none_of};
use crate::rows::{command_values, insert_sql, read_command, select_list};
use crate::schema::COMMAND_BOX;
use crate::sql::{Session, SqlFault, Value, code, readable, unreadable, values};
use crate::store::{OpenConnection, Purpose, SqlStore, reading, transacting, writing_once};

#[async_trait]
impl Commands for SqlStore {
    async fn load(&self, aggregate: &AggregateKey, command: Option<&CommandId>) -> StoreResult<Loaded> {
        reading!(self, super::aggregates::load, aggregate, command)
    }

    async fn command_session(&self) -> StoreResult<Box<dyn CommandSession>> {
        Ok(Box::new(SqlCommandSession { store: self.clone(), connection: None }))
    }

    async fn complete_command(&self, completed: &CompletedCommand) -> StoreResult<CommandResult> {
        match (&completed.found, &completed.append) {
            _ if completed.fence.is_some() => transacting!(self, complete_fenced, completed),
            (Found::Nowhere, None) => writing_once!(self, complete_new, completed),
            (Found::Nowhere, Some(facts)) if super::append::is_one_statement(self.dialect(), facts) => {
                writing_once!(self, complete_new, completed)
            }
            (Found::Nowhere, Some(_)) => transacting!(self, complete_new, completed),
            (Found::Failed { .. } | Found::Claimed(_), _) => {
                transacting!(self, complete_found, completed)
            }
        }
    }

    async fn fail_command(&self, failed: &FailedCommand) -> StoreResult<()> {
        match failed.found {
            Found::Claimed(_) => transacting!(self, fail, failed),
            Found::Nowhere | Found::Failed { .. } => writing_once!(self, fail, failed),
        }
    }

    async fn accept_command(&self, command: &NewCommand) -> StoreResult<Option<CommandRecord>> {
        match writing_once!(self, accept, command) {
            Ok(()) => Ok(None),
            Err(StoreError::DuplicateCommand(id)) => self.command(&id).await,
            Err(error) => Err(error),
        }
    }

    async fn requeue_command(
        &self,
        command_id: &CommandId,
        retry_count: u32,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        writing_once!(self, requeue, command_id, retry_count, now)
    }

    async fn claim_commands(
        &self,
        lease: &LeaseGrant,
        command_types: &[&str],
        now: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<Vec<CommandRecord>> {
        transacting!(self, claim, lease, command_types, now, limit)
    }

    async fn return_commands(
        &self,
        grant: &LeaseGrant,
        command_ids: &[CommandId],
        now: DateTime<Utc>,
    ) -> StoreResult<u64> {
        writing_once!(self, give_back, grant, command_ids, now)
    }

    async fn return_unseen_commands(
        &self,
        grant: &LeaseGrant,
        seen: &[CommandId],
        now: DateTime<Utc>,
    ) -> StoreResult<u64> {
        writing_once!(self, give_back_unseen, grant, seen, now)
    }

    async fn recover_commands(&self, now: DateTime<Utc>, most: u32) -> StoreResult<u64> {
        transacting!(self, recover, now, most)
    }

    async fn command(&self, command_id: &CommandId) -> StoreResult<Option<CommandRecord>> {
        reading!(self, find, command_id)
    }
}

/// Keeps the connection that loaded for the write, where one statement writes everything. Elsewhere the write needs
/// a transaction, which takes a connection of its own (on SQLite the one that writes).
struct SqlCommandSession {
    store: SqlStore,
    connection: Option<OpenConnection>,
}

#[async_trait]
impl CommandSession for SqlCommandSession {
    async fn load(&mut self, aggregate: &AggregateKey, command: &CommandId) -> StoreResult<Loaded> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.store.connection(Purpose::Read).await?,
        };
        let loaded = super::aggregates::load(&mut connection.session(), aggregate, Some(command)).await?;
        if self.store.dialect().nests_writes() {
            self.connection = Some(connection);
        }
        Ok(loaded)
    }

    fn release(&mut self) {
        self.connection = None;
    }

    async fn complete(&mut self, completed: &CompletedCommand) -> StoreResult<CommandResult> {
        let one_statement = matches!((&completed.found, &completed.append), (Found::Nowhere, Some(facts))
            if super::append::is_one_statement(self.store.dialect(), facts) && completed.fence.is_none());
        match self.connection.take().filter(|_| one_statement) {
            Some(mut connection) => {
                let result = complete_new(&mut connection.session(), completed).await;
                self.connection = Some(connection);
                result
            }
            None => self.store.complete_command(completed).await,
        }
    }
}

/// Writes the whole effect of a command that was found nowhere.
async fn complete_new(session: &mut Session<'_>, done: &CompletedCommand) -> StoreResult<CommandResult> {
    let Some(facts) = &done.append else {
        let result = CommandResult { aggregate_version: done.decided_on, event_count: 0 };
        insert(session, &completed_record(done, result)?).await?;
        return Ok(result);
    };
    let event_count = u32::try_from(facts.events.len()).unwrap_or(u32::MAX);
    let result = CommandResult { aggregate_version: done.decided_on + u64::from(event_count), event_count };
    append_with_command(session, facts, &completed_record(done, result)?).await?;
    Ok(result)
}

/// Writes the whole effect of a command that was recorded before. Runs in a transaction, which the caller rolls
/// back on an error.
async fn complete_found(session: &mut Session<'_>, done: &CompletedCommand) -> StoreResult<CommandResult> {
    let mut result = CommandResult { aggregate_version: done.decided_on, event_count: 0 };
    if let Some(facts) = &done.append {
        result.event_count = u32::try_from(facts.events.len()).unwrap_or(u32::MAX);
        result.aggregate_version = append(session, facts).await?.version;
    }
    update_found(session, &completed_record(done, result)?, &done.found).await?;
    fence_claim(session, &done.found).await?;
    Ok(result)
}

/// Writes the whole effect of a command under a lease that its sender holds. Runs in a transaction, which the caller
/// rolls back on an error.
async fn complete_fenced(session: &mut Session<'_>, done: &CompletedCommand) -> StoreResult<CommandResult> {
    let result = match done.found {
        Found::Nowhere => complete_new(session, done).await?,
        Found::Failed { .. } | Found::Claimed(_) => complete_found(session, done).await?,
    };
    // Last, so that who renews the lease waits for nothing but the commit.
    fence(session, done.fence.as_slice()).await?;
    Ok(result)
}

/// Records a failure. Runs in a transaction.
async fn fail(session: &mut Session<'_>, failed: &FailedCommand) -> StoreResult<()> {
    let record = CommandRecord {
        command: failed.command.clone(),
        status: step(CommandStatus::Processing, CommandStep::Fail)?,
        status_changed_at: failed.failed_at,
        status_reason: Some(failed.reason.clone()),
        status_message: Some(failed.message.clone()),
        retry_count: failed.retry_count,
        next_retry_at: failed.next_retry_at,
        claim: None,
        started_at: Some(failed.started_at),
        finished_at: Some(failed.failed_at),
        result: None,
    };
    match failed.found {
        Found::Nowhere => insert(session, &record).await,
        Found::Failed { .. } | Found::Claimed(_) => {
            update_found(session, &record, &failed.found).await?;
            fence_claim(session, &failed.found).await
        }
    }
}

/// Records a command as PENDING, due at once.
async fn accept(session: &mut Session<'_>, command: &NewCommand) -> StoreResult<()> {
    insert(session, &accepted(command)).await
}

/// Records a command inside a larger transaction, unless its id is recorded already. Answers whether.
pub(crate) async fn accept_once(session: &mut Session<'_>, command: &NewCommand) -> StoreResult<bool> {
    let sql = format!("{} {}", insert_sql(&COMMAND_BOX, 1), session.dialect().ignoring_duplicates());
    match session.execute("commands.accept", &sql, command_values(&accepted(command))).await {
        Ok(inserted) => Ok(inserted == 1),
        Err(SqlFault::Unique { .. }) => Ok(false),
        Err(fault) => Err(fault.into()),
    }
}

fn accepted(command: &NewCommand) -> CommandRecord {
    CommandRecord {
        command: command.clone(),
        status: CommandStatus::Pending,
        status_changed_at: command.context.occurred_at,
        status_reason: None,
        status_message: None,
        retry_count: 0,
        next_retry_at: Some(command.context.occurred_at),
        claim: None,
        started_at: None,
        finished_at: None,
        result: None,
    }
}

/// Puts a FAILED command back, if it is still as it was found.
async fn requeue(
    session: &mut Session<'_>,
    command_id: &CommandId,
    retry_count: u32,
    now: DateTime<Utc>,
) -> StoreResult<bool> {
    let pending = step(CommandStatus::Failed, CommandStep::Requeue)?;
    let sql = "UPDATE command_box SET status = ?, status_changed_at = ?, status_reason = 'sent-again', \
         next_retry_at = ? WHERE command_id = ? AND status = 'FAILED' AND retry_count = ?";
    let changed = values![pending.as_str(), now, now, command_id.as_str(), retry_count];
    Ok(session.execute("commands.requeue", sql, changed).await? == 1)
}

/// Takes commands that are due. Runs in a transaction.
async fn claim(
    session: &mut Session<'_>,
    grant: &LeaseGrant,
    command_types: &[&str],
    now: DateTime<Utc>,
    limit: u32,
) -> StoreResult<Vec<CommandRecord>> {
    if command_types.is_empty() {
        return Ok(Vec::new());
    }
    let marks = vec!["?"; command_types.len()].join(", ");
    let sql = format!(
        "SELECT c.command_id, CAST(OCTET_LENGTH(c.payload) AS {}) AS bytes FROM command_box c \
         WHERE c.next_retry_at <= ? AND c.command_type IN ({marks}) ORDER BY c.next_retry_at LIMIT {limit} {}",
        session.dialect().integer_cast(),
        session.dialect().for_update_skip_locked()
    );
    let mut wanted = values![now];
    wanted.extend(command_types.iter().flat_map(|name| values![*name]));
    let (mut ids, mut sizes) = (Vec::new(), Vec::new());
    for row in session.rows("commands.due", &sql, wanted).await? {
        ids.push(row.text("command_id")?);
        sizes.push(row.count("bytes")?);
    }
    ids.truncate(how_many_fit(sizes, CLAIMED_BYTES));
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let processing = step(CommandStatus::Pending, CommandStep::Claim)?;
    let of_these = format!("WHERE command_id IN ({})", vec!["?"; ids.len()].join(", "));
    let update = format!(
        "UPDATE command_box SET status = ?, status_changed_at = ?, next_retry_at = NULL, claimed_by_id = ?, \
         claimed_epoch = ?, started_at = ? {of_these}"
    );
    let keys = || ids.iter().map(|id| Value::from(id.as_str()));
    let mut changed = values![processing.as_str(), now, grant.lease.as_str(), grant.epoch, now];
    changed.extend(keys());
    let columns = select_list(&COMMAND_BOX, "command_box", "");
    let from = (format!("command_box {of_these}"), keys().collect());
    let rows = session.updated("commands.claim", (update, changed), &columns, from).await?;
    let taken = rows.iter().filter_map(|row| read_command(row, "").transpose());
    let mut taken = taken.collect::<StoreResult<Vec<_>>>()?;
    taken.sort_by_key(|record| ids.iter().position(|id| id == record.command.command_id.as_str()));
    fence(session, std::slice::from_ref(grant)).await?;
    Ok(taken)
}

/// Puts back what this holder has claimed and could not end.
async fn give_back(
    session: &mut Session<'_>,
    grant: &LeaseGrant,
    command_ids: &[CommandId],
    now: DateTime<Utc>,
) -> StoreResult<u64> {
    if command_ids.is_empty() {
        return Ok(0);
    }
    let pending = step(CommandStatus::Processing, CommandStep::Recover)?;
    let sql = format!(
        "UPDATE command_box SET status = ?, status_changed_at = ?, status_reason = 'given-back', next_retry_at = ?, \
         claimed_by_id = NULL, claimed_epoch = NULL \
         WHERE status = 'PROCESSING' AND claimed_by_id = ? AND claimed_epoch = ? AND {HELD} AND command_id IN ({})",
        vec!["?"; command_ids.len()].join(", ")
    );
    // Not at once: whatever kept it from being ended may still be there.
    let due_at = now + chrono::Duration::seconds(5);
    let mut changed = values![pending.as_str(), now, due_at, grant.lease.as_str(), grant.epoch];
    changed.extend(held_by(grant));
    changed.extend(command_ids.iter().flat_map(|id| values![id.as_str()]));
    Ok(session.execute("commands.give_back", &sql, changed).await?)
}

/// Puts back what was claimed under a grant and its holder does not know of.
async fn give_back_unseen(
    session: &mut Session<'_>,
    grant: &LeaseGrant,
    seen: &[CommandId],
    now: DateTime<Utc>,
) -> StoreResult<u64> {
    let pending = step(CommandStatus::Processing, CommandStep::Recover)?;
    let sql = format!(
        "UPDATE command_box SET status = ?, status_changed_at = ?, status_reason = 'claim-lost', next_retry_at = ?, \
         claimed_by_id = NULL, claimed_epoch = NULL \
         WHERE status = 'PROCESSING' AND claimed_by_id = ? AND claimed_epoch = ? AND {HELD}{}",
        none_of("command_id", seen.len())
    );
    let mut changed = values![pending.as_str(), now, now, grant.lease.as_str(), grant.epoch];
    changed.extend(held_by(grant));
    changed.extend(seen.iter().flat_map(|id| values![id.as_str()]));
    Ok(session.execute("commands.give_back_unseen", &sql, changed).await?)
}

/// Puts commands back whose holder is gone. Runs in a transaction.
///
/// Rows that somebody has locked are passed over: a holder that sleeps inside its transaction must not stop the
/// recovery of everything else.
async fn recover(session: &mut Session<'_>, now: DateTime<Utc>, most: u32) -> StoreResult<u64> {
    let sql = format!(
        "SELECT command_id, recovery_count FROM command_box WHERE status = 'PROCESSING' AND {} LIMIT 1000 {}",
        holder_is_gone(session, "command_box"),
        session.dialect().for_update_skip_locked()
    );
    let (mut again, mut never) = (Vec::new(), Vec::new());
    for row in session.rows("commands.orphans", &sql, values![]).await? {
        let id = row.text("command_id")?;
        if row.small("recovery_count")? < most { again.push(id) } else { never.push(id) }
    }
    let pending = step(CommandStatus::Processing, CommandStep::Recover)?;
    let failed = step(CommandStatus::Processing, CommandStep::Fail)?;
    for (ids, status, due_at) in [(&again, pending, Some(now)), (&never, failed, None)] {
        if ids.is_empty() {
            continue;
        }
        let sql = format!(
            "UPDATE command_box SET status = ?, status_changed_at = ?, status_reason = 'holder-gone', \
             next_retry_at = ?, recovery_count = recovery_count + 1, claimed_by_id = NULL, claimed_epoch = NULL \
             WHERE command_id IN ({})",
            vec!["?"; ids.len()].join(", ")
        );
        let mut changed = values![status.as_str(), now, due_at];
        changed.extend(ids.iter().flat_map(|id| values![id.as_str()]));
        session.execute("commands.recover", &sql, changed).await?;
    }
    Ok((again.len() + never.len()) as u64)
}

async fn find(session: &mut Session<'_>, command_id: &CommandId) -> StoreResult<Option<CommandRecord>> {
    let sql =
        format!("SELECT {} FROM command_box c WHERE c.command_id = ?", select_list(&COMMAND_BOX, "c", ""));
    match session.row("commands.find", &sql, values![command_id.as_str()]).await? {
        Some(row) => read_command(&row, ""),
        None => Ok(None),
    }
}

/// Refuses the transaction unless the claim it ends was made under the newest grant. Asked last: the lock on the
/// lease is held for a moment only, and never while this transaction waits for another one.
async fn fence_claim(session: &mut Session<'_>, found: &Found) -> StoreResult<()> {
    match found {
        Found::Claimed(grant) => fence(session, std::slice::from_ref(grant)).await,
        Found::Nowhere | Found::Failed { .. } => Ok(()),
    }
}

async fn insert(session: &mut Session<'_>, record: &CommandRecord) -> StoreResult<()> {
    match session.execute("commands.insert", &insert_sql(&COMMAND_BOX, 1), command_values(record)).await {
        Ok(_) => Ok(()),
        Err(SqlFault::Unique { .. }) => Err(StoreError::DuplicateCommand(record.command.command_id.clone())),
        Err(fault) => Err(fault.into()),
    }
}

/// Ends a command that was recorded before, if it is still as it was found.
async fn update_found(session: &mut Session<'_>, record: &CommandRecord, found: &Found) -> StoreResult<()> {
    let mut sql = "UPDATE command_box SET status = ?, status_changed_at = ?, status_reason = ?, status_message = ?, \
         retry_count = COALESCE(?, retry_count), next_retry_at = ?, claimed_by_id = NULL, claimed_epoch = NULL, started_at = ?, \
         finished_at = ?, aggregate_version = ?, event_count = ? WHERE command_id = ?"
        .to_owned();
    let mut changed = values![
        record.status.as_str(),
        record.status_changed_at,
        record.status_reason.as_deref().map(code),
        record.status_message.as_deref().map(readable),
        // A completed command keeps the number of retries it took.
        (record.status == CommandStatus::Failed).then_some(i64::from(record.retry_count)),
        record.next_retry_at,
        record.started_at,
        record.finished_at,
        record.result.map(|result| result.aggregate_version.cast_signed()),
        record.result.map(|result| i64::from(result.event_count)),
        record.command.command_id.as_str(),
    ];
    match found {
        Found::Claimed(grant) => {
            sql.push_str(" AND status = ? AND claimed_by_id = ? AND claimed_epoch = ?");
            changed.extend(values![CommandStatus::Processing.as_str(), grant.lease.as_str(), grant.epoch]);
        }
        Found::Failed { retry_count } => {
            sql.push_str(" AND status = ? AND retry_count = ?");
            changed.extend(values![CommandStatus::Failed.as_str(), *retry_count]);
        }
        Found::Nowhere => sql.push_str(" AND 1 = 0"),
    }
    match session.execute("commands.end", &sql, changed).await? {
        0 => Err(StoreError::CommandTaken(record.command.command_id.clone())),
        _ => Ok(()),
    }
}

fn completed_record(done: &CompletedCommand, result: CommandResult) -> StoreResult<CommandRecord> {
    Ok(CommandRecord {
        command: done.command.clone(),
        status: step(CommandStatus::Processing, CommandStep::Complete)?,
        status_changed_at: done.finished_at,
        status_reason: None,
        status_message: None,
        retry_count: 0,
        next_retry_at: None,
        claim: None,
        started_at: Some(done.started_at),
        finished_at: Some(done.finished_at),
        result: Some(result),
    })
}

/// The lifecycle's own next-state function, on the live path too.
fn step(from: CommandStatus, step: CommandStep) -> StoreResult<CommandStatus> {
    from.next(step).map_err(|error| unreadable("command_box.status", error))
}
