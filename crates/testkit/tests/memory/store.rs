//! The port, over the tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::{DateTime, SubsecRound, Utc};
use tokio::sync::OwnedMutexGuard;
use towpath_core::envelope::{EventEnvelope, RecordedEvent};
use towpath_core::ids::*;
use towpath_core::letters::{Letter, NewLetter};
use towpath_core::lifecycle::{CommandStatus, InboxStatus, OutboxStatus, TaskState};
use towpath_core::payload::Payload;
use towpath_core::ports::probe::Probe;
use towpath_core::ports::queues::QueueDepth;
use towpath_core::ports::store::*;
use uuid::Uuid;

use super::absent::absent;
use super::tables::{Lease, TimerRow};
use super::{Database, Fault, Tables};

/// Whether a row was given up and fits a filter.
fn fits(filter: &FailedFilter, row: &OutboxRow, event: &EventEnvelope) -> bool {
    row.status == OutboxStatus::Failed
        && filter.channel.as_ref().is_none_or(|channel| *channel == row.channel)
        && filter.reason.as_ref().is_none_or(|reason| row.status_reason.as_ref() == Some(reason))
        && filter.event_type.as_ref().is_none_or(|wanted| event.event_type.as_str() == wanted)
        && filter.failed_before.is_none_or(|before| row.status_changed_at < before)
        && filter.failed_since.is_none_or(|since| row.status_changed_at >= since)
}

pub(crate) struct MemoryStore {
    pub(super) database: Arc<Database>,
    probe: Arc<dyn Probe>,
    /// Tells it from the other stores of its database.
    number: u64,
}

impl MemoryStore {
    pub(crate) fn new(database: Arc<Database>, probe: Arc<dyn Probe>) -> Self {
        let number = database.next_number();
        Self { database, probe, number }
    }

    /// Whether there is room for each next payload of a claim.
    fn room(&self) -> impl FnMut(&Payload) -> bool + use<> {
        let most = if self.has(Fault::ClaimsHaveNoRoom) { u64::MAX } else { CLAIMED_BYTES };
        let mut total = None;
        move |payload: &Payload| {
            let before = total.unwrap_or(0);
            let with_it = before + payload.as_text().len() as u64;
            let fits = total.is_none() || with_it <= most;
            total = Some(if fits { with_it } else { most });
            fits
        }
    }

    fn forget_parked(&self, tables: &mut Tables, name: &ChannelName) {
        let id = tables.channels.iter().find(|row| row.name == *name).map(|row| row.channel_id);
        if !self.has(Fault::ParkedOutliveTheirChannel) {
            tables.left_behind.retain(|one| Some(one.0) != id);
        }
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.database.has(fault)
    }

    /// A transaction without its `begin`: for the operations that are one statement.
    async fn staged(&self) -> Staged {
        Staged {
            turn: self.database.turn().await,
            database: Arc::clone(&self.database),
            probe: Arc::clone(&self.probe),
            locks: HashMap::new(),
            versions: BTreeMap::new(),
            event_ids: BTreeSet::new(),
            marked: BTreeSet::new(),
            timers: BTreeMap::new(),
            numbers: Vec::new(),
            checks: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// The checks and the new row of a command that ends.
    async fn end_command(
        &self,
        staged: &mut Staged,
        command: &NewCommand,
        found: &Found,
        row: CommandRecord,
    ) {
        staged.lock(format!("command/{}", command.command_id)).await;
        let (id, found) = (command.command_id.clone(), found.clone());
        let unique = !self.has(Fault::CommandIdIsNotUnique);
        let any_epoch = self.has(Fault::ClaimsHaveNoEpoch);
        let known_id = id.clone();
        staged.checks.push(Box::new(move |tables| match (tables.commands.get(&known_id), &found) {
            (None, Found::Nowhere) => Ok(()),
            (Some(_), Found::Nowhere) if unique => Err(StoreError::DuplicateCommand(known_id)),
            (Some(_), Found::Nowhere) => Ok(()),
            (Some(record), Found::Failed { retry_count })
                if record.status == CommandStatus::Failed && record.retry_count == *retry_count =>
            {
                Ok(())
            }
            (Some(record), Found::Claimed(grant))
                if record.status == CommandStatus::Processing
                    && record.claim.as_ref().is_some_and(|claim| is_claim(claim, grant, any_epoch)) =>
            {
                tables.check_lease(grant)
            }
            _ => Err(StoreError::CommandTaken(known_id)),
        }));
        staged.effects.push(Box::new(move |tables| {
            tables.commands.insert(id, row);
        }));
    }

    fn due(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        if self.has(Fault::DueByTheMachinesClock) { Utc::now() } else { now }
    }
}

fn is_claim(claim: &Claim, grant: &LeaseGrant, any_epoch: bool) -> bool {
    *claim == grant.claim() || (any_epoch && claim.lease == grant.lease)
}

type Check = Box<dyn FnOnce(&Tables) -> StoreResult<()> + Send>;
type Effect = Box<dyn FnOnce(&mut Tables) + Send>;

/// What a transaction has locked and will do.
struct Staged {
    turn: Option<OwnedMutexGuard<()>>,
    database: Arc<Database>,
    probe: Arc<dyn Probe>,
    locks: HashMap<String, OwnedMutexGuard<()>>,
    versions: BTreeMap<AggregateKey, Version>,
    event_ids: BTreeSet<EventId>,
    marked: BTreeSet<(EventId, HandlerName)>,
    timers: BTreeMap<Uuid, TaskState>,
    numbers: Vec<u64>,
    checks: Vec<Check>,
    effects: Vec<Effect>,
}

impl Drop for Staged {
    fn drop(&mut self) {
        let mut open = self.database.open.lock().unwrap();
        for number in &self.numbers {
            open.remove(number);
        }
    }
}

impl Staged {
    async fn lock(&mut self, what: String) {
        if !self.locks.contains_key(&what) {
            let guard = self.database.lock(what.clone()).await;
            self.locks.insert(what, guard);
        }
    }

    fn apply(mut self) -> StoreResult<()> {
        let mut tables = self.database.tables();
        for check in self.checks.drain(..) {
            check(&tables)?;
        }
        for effect in self.effects.drain(..) {
            effect(&mut tables);
        }
        drop(tables);
        Ok(())
    }

    fn key(&self, key: &AggregateKey) -> AggregateKey {
        if self.database.has(Fault::IdsIgnoreCase) {
            return AggregateKey::new(key.kind.as_str().to_lowercase(), key.id.as_str().to_lowercase())
                .unwrap();
        }
        key.clone()
    }

    fn text(&self, payload: &Payload) -> Payload {
        let tree = serde_json::from_str::<serde_json::Value>(payload.as_text());
        match tree {
            Ok(tree) if self.database.has(Fault::PayloadsAreNormalised) => {
                Payload::from_value(&tree).unwrap()
            }
            _ => payload.clone(),
        }
    }

    async fn append(&mut self, append: &Append) -> StoreResult<Appended> {
        let key = self.key(&append.aggregate);
        if !self.database.has(Fault::LastWriterWins) {
            self.lock(format!("aggregate/{key}")).await;
        }
        let committed = self.database.tables().aggregates.get(&key).map_or(0, |row| row.version);
        let version = self.versions.get(&key).copied().unwrap_or(committed);
        if self.database.has(Fault::LastWriterWins) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let as_expected = match append.expected {
            Expected::New => version == 0,
            Expected::Exactly(expected) => version == expected,
            Expected::Any => true,
        };
        if !as_expected && !self.database.has(Fault::LastWriterWins) {
            if self.database.has(Fault::ConflictLeavesOutboxRows) {
                let rows = self.outbox_rows(append);
                self.database.tables().outbox.extend(rows.into_iter().map(|row| (row.outbox_id, row)));
            }
            let (aggregate, expected) = (append.aggregate.clone(), append.expected);
            return Err(StoreError::VersionConflict { aggregate, expected });
        }
        for event in &append.events {
            self.lock(format!("event/{}", event.event_id)).await;
            let recorded = self.database.tables().event_ids.contains_key(&event.event_id);
            let fresh = self.event_ids.insert(event.event_id);
            if (recorded || !fresh) && !self.database.has(Fault::DuplicateEventsAreSkipped) {
                return Err(StoreError::DuplicateEvent(append.aggregate.clone()));
            }
        }
        let context = &append.context;
        let envelopes: Vec<EventEnvelope> = append
            .events
            .iter()
            .zip(version + 1..)
            .map(|(event, aggregate_version)| EventEnvelope {
                event_id: event.event_id,
                event_type: event.event_type.clone(),
                schema_version: event.schema_version,
                aggregate: append.aggregate.clone(),
                aggregate_version,
                occurred_at: context.occurred_at,
                correlation_id: context.correlation_id.clone(),
                causation_id: context.causation_id.clone(),
                trace_id: context.trace_id.clone(),
                actor_id: context.actor_id.clone(),
                tenant_id: context.tenant_id.clone(),
                payload: self.text(&event.payload),
            })
            .collect();
        let history: Vec<StateEvent> = append
            .state_changes
            .iter()
            .map(|change| StateEvent {
                aggregate: append.aggregate.clone(),
                aggregate_version: envelopes[change.event_index].aggregate_version,
                event_id: envelopes[change.event_index].event_id,
                from_state: change.from.clone(),
                to_state: change.to.clone(),
                reason: change.reason.clone(),
                message: change.message.clone(),
                actor_id: context.actor_id.clone(),
                request_id: context.request_id.clone(),
                trace_id: context.trace_id.clone(),
                created_at: context.occurred_at,
            })
            .collect();
        let mut pending = Vec::new();
        for envelope in &envelopes {
            let number = self.database.next_number();
            if self.numbers.is_empty() {
                self.database.open.lock().unwrap().insert(number);
                self.numbers.push(number);
            }
            pending.push((number, envelope.event_id));
            if self.database.has(Fault::RollbackLeavesAPosition) {
                self.database.tables().positions.push(Some(envelope.event_id));
            }
        }
        let rows = self.outbox_rows(append);
        let snapshot = append
            .snapshot
            .as_ref()
            .map(|snapshot| Snapshot { data: self.text(&snapshot.data), version: snapshot.version });
        let last = append.state_changes.last().cloned();
        let (context, aggregate) = (append.context.clone(), append.aggregate.clone());
        let deadline = append.deadline.clone();
        let keep_old_snapshots = self.database.has(Fault::OldSnapshotsStay);
        let keep_left_deadlines = self.database.has(Fault::LeftStatesKeepTheirDeadline);
        let after = version + envelopes.len() as Version;
        let pass_parked = self.database.has(Fault::NewRowsPassTheParkedOne);
        self.versions.insert(key.clone(), after);
        self.effects.push(Box::new(move |tables| {
            let row = tables.aggregates.entry(key.clone()).or_insert_with(|| AggregateRow {
                aggregate,
                version: 0,
                snapshot: None,
                state: None,
                state_changed_at: None,
                state_reason: None,
                state_message: None,
                status: None,
                tenant_id: context.tenant_id.clone(),
                created_at: context.occurred_at,
                updated_at: context.occurred_at,
            });
            row.version = after;
            if snapshot.is_some() || !keep_old_snapshots {
                row.snapshot = snapshot;
            }
            row.updated_at = context.occurred_at;
            if let Some(change) = last {
                row.state = Some(change.to);
                row.state_changed_at = Some(context.occurred_at);
                (row.state_reason, row.state_message) = (change.reason, change.message);
            }
            for envelope in envelopes {
                tables.event_ids.insert(envelope.event_id, envelope.clone());
                tables.events.entry(key.clone()).or_default().push(envelope);
            }
            let before = tables.history.entry(key).or_default();
            let entered_by = before.last().map(|change| change.event_id.0);
            before.extend(history);
            let left = entered_by.filter(|_| deadline.leaves && !keep_left_deadlines);
            if let Some(row) = left.and_then(|timer_id| tables.timers.get_mut(&timer_id))
                && row.timer.state == TaskState::Pending
            {
                row.timer.state = TaskState::Canceled;
            }
            if let Some(timer) = deadline.enters {
                tables.timers.insert(timer.timer_id, TimerRow::new(timer));
            }
            tables.pending.extend(pending);
            for mut row in rows {
                if !pass_parked && tables.parked.contains_key(&(row.channel.clone(), row.lane)) {
                    row.parked_at = Some(context.occurred_at);
                }
                tables.outbox.insert(row.outbox_id, row);
            }
        }));
        Ok(Appended { version: after })
    }

    fn outbox_rows(&self, append: &Append) -> Vec<OutboxRow> {
        let routes = append
            .events
            .iter()
            .flat_map(|event| event.channels.channels().iter().map(move |channel| (event, channel)));
        routes
            .map(|(event, channel)| OutboxRow {
                outbox_id: self.database.next_number(),
                channel: channel.clone(),
                event_id: event.event_id,
                lane: append.aggregate.lane(),
                status: OutboxStatus::New,
                status_changed_at: append.context.occurred_at,
                status_reason: None,
                status_message: None,
                retry_count: 0,
                next_retry_at: None,
                parked_at: None,
            })
            .collect()
    }
}

/// The record of a command that was accepted.
fn pending(command: NewCommand) -> CommandRecord {
    CommandRecord {
        status_changed_at: command.context.occurred_at,
        status: CommandStatus::Pending,
        status_reason: None,
        status_message: None,
        retry_count: 0,
        next_retry_at: None,
        claim: None,
        started_at: None,
        finished_at: None,
        result: None,
        command,
    }
}

struct MemoryTx(Staged);

#[async_trait]
impl StoreTx for MemoryTx {
    async fn append(&mut self, append: &Append) -> StoreResult<Appended> {
        self.0.probe.before("append");
        self.0.append(append).await
    }

    async fn mark(
        &mut self,
        event_id: EventId,
        handler: &HandlerName,
        now: DateTime<Utc>,
    ) -> StoreResult<InboxMark> {
        let staged = &mut self.0;
        staged.probe.before("mark_inbox");
        if !staged.database.has(Fault::MarkDoesNotWait) {
            staged.lock(format!("inbox/{event_id}/{handler}")).await;
        }
        let delivery = (event_id, handler.clone());
        let mut tables = staged.database.tables();
        let handled = tables.inbox.get(&delivery).is_some_and(|entry| entry.status == InboxStatus::Handled);
        if handled || staged.marked.contains(&delivery) {
            return Ok(InboxMark::Duplicate);
        }
        if tables.inbox.get(&delivery).is_some_and(|entry| entry.status == InboxStatus::Dead) {
            return Ok(InboxMark::Dead);
        }
        let mark = move |tables: &mut Tables| {
            let (event_id, handler) = (delivery.0, delivery.1.clone());
            tables.handled_at.insert(delivery.clone(), now);
            let entry = tables.inbox.entry(delivery).or_insert(InboxEntry {
                event_id,
                handler,
                status: InboxStatus::Handled,
                retry_count: 0,
                status_reason: None,
                status_message: None,
            });
            entry.status = InboxStatus::Handled;
        };
        if staged.database.has(Fault::MarkSurvivesRollback) {
            mark(&mut tables);
        } else {
            staged.marked.insert((event_id, handler.clone()));
            staged.effects.push(Box::new(mark));
        }
        Ok(InboxMark::First)
    }

    async fn schedule(&mut self, timer: &NewTimer) -> StoreResult<()> {
        let staged = &mut self.0;
        staged.probe.before("schedule_timer");
        let committed = staged.database.tables().timers.contains_key(&timer.timer_id);
        if committed || staged.timers.contains_key(&timer.timer_id) {
            return Err(StoreError::NameTaken { what: "timer", name: timer.timer_id.to_string() });
        }
        staged.timers.insert(timer.timer_id, TaskState::Pending);
        let new = NewTimer { payload: staged.text(&timer.payload), ..timer.clone() };
        staged.effects.push(Box::new(move |tables| {
            tables.timers.insert(new.timer_id, TimerRow::new(new));
        }));
        Ok(())
    }

    async fn cancel(&mut self, timer_id: Uuid, _now: DateTime<Utc>) -> StoreResult<bool> {
        let staged = &mut self.0;
        staged.probe.before("cancel_timer");
        let committed = staged.database.tables().timers.get(&timer_id).map(|row| row.timer.state);
        let state = staged.timers.get(&timer_id).copied().or(committed);
        if state != Some(TaskState::Pending) {
            return Ok(false);
        }
        staged.timers.insert(timer_id, TaskState::Canceled);
        staged.effects.push(Box::new(move |tables| {
            if let Some(row) = tables.timers.get_mut(&timer_id) {
                row.timer.state = TaskState::Canceled;
            }
        }));
        Ok(true)
    }

    async fn answer(
        &mut self,
        claim: &OperationClaim,
        answer: &OperationAnswer,
        now: DateTime<Utc>,
    ) -> StoreResult<()> {
        self.0.lock(format!("operation/{}", claim.operation_id)).await;
        let any_epoch = self.0.database.has(Fault::LostOperationsAreNotFenced);
        let tables = self.0.database.tables();
        let row = tables.operations.get(&claim.key).filter(|row| row.may_be_answered(claim) || any_epoch);
        if row.is_none() {
            let lease = LeaseName::from_stored(format!("operation {}", claim.operation_id));
            return Err(StoreError::Fenced { lease, epoch: claim.epoch });
        }
        drop(tables);
        let (key, answer) = (claim.key.clone(), answer.clone());
        let effect: Effect = Box::new(move |tables| {
            if let Some(row) = tables.operations.get_mut(&key) {
                row.answer(answer, now);
            }
        });
        if self.0.database.has(Fault::AnswersSurviveRollback) {
            effect(&mut self.0.database.tables());
        } else {
            self.0.effects.push(effect);
        }
        Ok(())
    }

    async fn send(&mut self, command: &NewCommand) -> StoreResult<bool> {
        let staged = &mut self.0;
        staged.lock(format!("command/{}", command.command_id)).await;
        let mut tables = staged.database.tables();
        if tables.commands.contains_key(&command.command_id) {
            return Ok(false);
        }
        let command = command.clone();
        let effect: Effect = Box::new(move |tables| {
            tables.commands.insert(command.command_id.clone(), pending(command));
        });
        match staged.database.has(Fault::SentCommandsSurviveRollback) {
            true => effect(&mut tables),
            false => staged.effects.push(effect),
        }
        Ok(true)
    }

    async fn append_by(
        &mut self,
        _rules: &dyn AppendRules,
        _append: &Append,
    ) -> StoreResult<(Appended, Append)> {
        absent()
    }

    async fn mark_deliveries(
        &mut self,
        _event_ids: &[EventId],
        _handler: &HandlerName,
        _now: DateTime<Utc>,
    ) -> StoreResult<Vec<FirstDelivery>> {
        absent()
    }

    async fn facts_of_append(&mut self, _event_id: EventId) -> StoreResult<Option<AppendedTogether>> {
        absent()
    }

    async fn facts_within(
        &mut self,
        _appended: &AppendedTogether,
        _bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>> {
        absent()
    }

    async fn waiting_lanes(&mut self, _handler: &HandlerName, _lanes: &[Lane]) -> StoreResult<Vec<Lane>> {
        absent()
    }

    async fn set_behind(&mut self, _letter: &NewLetter, _now: DateTime<Utc>) -> StoreResult<()> {
        absent()
    }

    async fn holds_letter(&mut self, _letter: &Letter) -> StoreResult<bool> {
        absent()
    }

    async fn letter_handled(&mut self, _letter: &Letter, _now: DateTime<Utc>) -> StoreResult<()> {
        absent()
    }

    async fn advance_followed_log(
        &mut self,
        _follower: &HandlerName,
        _from: Position,
        _to: &FollowedLog,
        _now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        absent()
    }

    async fn watch(&mut self, _observer: &str, _watches: &[Watch]) -> StoreResult<()> {
        absent()
    }

    async fn adopt(&mut self, _observer: &str, _adopted: &[Adopted]) -> StoreResult<()> {
        absent()
    }

    async fn unwatch(&mut self, _observer: &str, _subjects: &[String]) -> StoreResult<()> {
        absent()
    }

    async fn watched(&mut self, _observer: &str, _subjects: &[String]) -> StoreResult<Vec<Watched>> {
        absent()
    }

    async fn wait_anew(&mut self, _observer: &str) -> StoreResult<()> {
        absent()
    }

    async fn look_at_all(&mut self, _observer: &str) -> StoreResult<()> {
        absent()
    }

    async fn lock_projected(
        &mut self,
        _projection: &str,
        _kind: &str,
        _ids: &[String],
    ) -> StoreResult<BTreeMap<String, Projected>> {
        absent()
    }

    async fn note_projected(
        &mut self,
        _projection: &str,
        _kind: &str,
        _by: u32,
        _reached: &[(String, Version)],
    ) -> StoreResult<()> {
        absent()
    }

    async fn projection_made_by(&mut self, _projection: &str, _kind: &str) -> StoreResult<u32> {
        absent()
    }

    async fn projection_failed(
        &mut self,
        _projection: &str,
        _kind: &str,
        _id: &str,
        _reason: (&str, &str),
    ) -> StoreResult<()> {
        absent()
    }

    async fn forget_projected(&mut self, _projection: &str, _kind: &str, _id: &str) -> StoreResult<()> {
        absent()
    }

    async fn start_tasks(&mut self, _tasks: &[NewTask]) -> StoreResult<Vec<StartedTask>> {
        absent()
    }

    async fn lock_aggregate(&mut self, _aggregate: &AggregateKey) -> StoreResult<Option<AggregateRow>> {
        absent()
    }

    async fn note_alerts(&mut self, _notes: &[AlertNote]) -> StoreResult<()> {
        absent()
    }

    async fn note_alert_run(&mut self, _run: &AlertRun) -> StoreResult<()> {
        absent()
    }

    async fn record_process_input(&mut self, _input: &ProcessInput) -> StoreResult<()> {
        absent()
    }

    async fn name_timer(
        &mut self,
        _process: &AggregateKey,
        _name: &str,
        _timer_id: Uuid,
        _due_at: DateTime<Utc>,
    ) -> StoreResult<()> {
        absent()
    }

    async fn take_named_timers(
        &mut self,
        _process: &AggregateKey,
        _name: Option<&str>,
    ) -> StoreResult<Vec<Uuid>> {
        absent()
    }

    async fn keep_undo(&mut self, _undo: &NewUndo) -> StoreResult<()> {
        absent()
    }

    async fn begin_undoing(&mut self, _process: &AggregateKey, _now: DateTime<Utc>) -> StoreResult<()> {
        absent()
    }

    async fn forget_undos(&mut self, _process: &AggregateKey) -> StoreResult<()> {
        absent()
    }

    async fn open_task(&mut self, _task_type: &TaskTypeName, _key: &TaskKey) -> StoreResult<Option<TaskId>> {
        absent()
    }

    async fn cancel_task(&mut self, _task_id: TaskId, _reason: &str) -> StoreResult<Canceling> {
        absent()
    }

    async fn take_tick(&mut self, _schedule: &str, _tick: DateTime<Utc>) -> StoreResult<bool> {
        absent()
    }

    async fn lock_task(&mut self, _task_id: TaskId) -> StoreResult<Option<Task>> {
        absent()
    }

    async fn retry_task(&mut self, _task_id: TaskId) -> StoreResult<TaskRetry> {
        absent()
    }

    async fn claim_task(&mut self, _task_id: TaskId, _worker: &str) -> StoreResult<Option<Task>> {
        absent()
    }

    async fn hold_tasks(&mut self, _claims: &[TaskClaim]) -> StoreResult<Vec<HeldTask>> {
        absent()
    }

    async fn end_tasks(&mut self, _endings: &[TaskEnding]) -> StoreResult<Vec<TaskId>> {
        absent()
    }

    async fn commit(self: Box<Self>) -> StoreResult<()> {
        self.0.probe.before("commit");
        self.0.apply()
    }

    async fn rollback(self: Box<Self>) -> StoreResult<()> {
        self.0.probe.before("rollback");
        Ok(())
    }
}

struct MemorySession(MemoryStore);

#[async_trait]
impl CommandSession for MemorySession {
    async fn load(&mut self, aggregate: &AggregateKey, command: &CommandId) -> StoreResult<Loaded> {
        self.0.load(aggregate, Some(command)).await
    }

    fn release(&mut self) {}

    async fn complete(&mut self, completed: &CompletedCommand) -> StoreResult<CommandResult> {
        self.0.complete_command(completed).await
    }
}

#[async_trait]
impl towpath_core::ports::store::Database for MemoryStore {
    fn promises(&self) -> StorePromises {
        StorePromises {
            database: "memory",
            concurrent_writers: self.database.concurrent_writers,
            many_hosts: false,
            single_statement_write: self.database.concurrent_writers,
            partial_unique_index: true,
            notifies: false,
        }
    }

    async fn migrate(&self) -> StoreResult<Vec<u32>> {
        let found = self.database.tables().schema;
        if self.has(Fault::MigrationsRunTwice) {
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut tables = self.database.tables();
        let found = if self.has(Fault::MigrationsRunTwice) { found } else { tables.schema };
        if found > 2 {
            return Err(StoreError::NewerSchema { found, known: 2 });
        }
        tables.schema = 2;
        Ok((found + 1..=2).collect())
    }

    async fn ready(&self) -> StoreResult<()> {
        match self.database.tables().schema {
            2 => Ok(()),
            found if found > 2 => Err(StoreError::NewerSchema { found, known: 2 }),
            found => Err(StoreError::NotMigrated { found, needed: 2 }),
        }
    }

    async fn now(&self) -> StoreResult<DateTime<Utc>> {
        self.probe.before("now");
        let ahead = if self.has(Fault::EveryStoreHasItsOwnTime) { self.number * 3600 } else { 0 };
        Ok(Utc::now() + Duration::from_secs(ahead))
    }
}

#[async_trait]
impl Transactions for MemoryStore {
    async fn begin(&self) -> StoreResult<Box<dyn StoreTx>> {
        self.probe.before("begin");
        Ok(Box::new(MemoryTx(self.staged().await)))
    }

    async fn begin_under(&self, _grant: &LeaseGrant) -> StoreResult<Box<dyn StoreTx>> {
        absent()
    }

    async fn begin_unit(&self, unit_id: Uuid) -> StoreResult<Option<Box<dyn StoreTx>>> {
        self.probe.before("unit.begin");
        let mut staged = self.staged().await;
        if !staged.database.has(Fault::UnitsDoNotWait) {
            staged.lock(format!("unit/{unit_id}")).await;
        }
        let effect: Effect = Box::new(move |tables| {
            tables.units.insert(unit_id);
        });
        {
            let mut tables = staged.database.tables();
            if tables.units.contains(&unit_id) {
                return Ok(None);
            }
            if staged.database.has(Fault::UnitsSurviveRollback) {
                effect(&mut tables);
                drop(tables);
                return Ok(Some(Box::new(MemoryTx(staged))));
            }
        }
        staged.effects.push(effect);
        Ok(Some(Box::new(MemoryTx(staged))))
    }
}

#[async_trait]
impl Commands for MemoryStore {
    async fn load(&self, aggregate: &AggregateKey, command: Option<&CommandId>) -> StoreResult<Loaded> {
        self.probe.before("load");
        if self.has(Fault::LoadAsksTwice) {
            self.probe.before("load.command");
        }
        let tables = self.database.tables();
        Ok(Loaded {
            aggregate: tables.aggregates.get(aggregate).cloned(),
            command: command.and_then(|id| tables.commands.get(id).cloned()),
        })
    }

    async fn command_session(&self) -> StoreResult<Box<dyn CommandSession>> {
        Ok(Box::new(MemorySession(Self::new(Arc::clone(&self.database), Arc::clone(&self.probe)))))
    }

    async fn complete_command(&self, completed: &CompletedCommand) -> StoreResult<CommandResult> {
        self.probe.before("complete_command");
        let mut staged = self.staged().await;
        let result = match &completed.append {
            None => CommandResult { aggregate_version: completed.decided_on, event_count: 0 },
            Some(append) => {
                let version = staged.append(append).await?.version;
                CommandResult { aggregate_version: version, event_count: append.events.len() as u32 }
            }
        };
        if self.has(Fault::CommandCommitsInTwoSteps) {
            staged.apply()?;
            self.probe.before("complete_command.record");
            staged = self.staged().await;
        }
        let payload = staged.text(&completed.command.payload);
        let row = CommandRecord {
            command: NewCommand { payload, ..completed.command.clone() },
            status: CommandStatus::Completed,
            status_changed_at: completed.finished_at,
            status_reason: None,
            status_message: None,
            retry_count: 0,
            next_retry_at: None,
            claim: None,
            started_at: Some(completed.started_at),
            finished_at: Some(completed.finished_at),
            result: Some(result),
        };
        self.end_command(&mut staged, &completed.command, &completed.found, row).await;
        if let Some(grant) = completed.fence.clone().filter(|_| !self.has(Fault::FencedCommandsAreNotFenced))
        {
            staged.checks.push(Box::new(move |tables| tables.check_lease(&grant)));
        }
        staged.apply().map(|()| result)
    }

    async fn fail_command(&self, failed: &FailedCommand) -> StoreResult<()> {
        self.probe.before("fail_command");
        let mut staged = self.staged().await;
        let row = CommandRecord {
            command: failed.command.clone(),
            status: CommandStatus::Failed,
            status_changed_at: failed.failed_at,
            status_reason: Some(failed.reason.clone()),
            status_message: Some(failed.message.replace('\0', "?")),
            retry_count: failed.retry_count,
            next_retry_at: failed.next_retry_at,
            claim: None,
            started_at: Some(failed.started_at),
            finished_at: Some(failed.failed_at),
            result: None,
        };
        self.end_command(&mut staged, &failed.command, &failed.found, row).await;
        staged.apply()
    }

    async fn accept_command(&self, command: &NewCommand) -> StoreResult<Option<CommandRecord>> {
        self.probe.before("accept_command");
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        if let Some(record) = tables.commands.get(&command.command_id) {
            return Ok(Some(record.clone()));
        }
        let mut command = command.clone();
        if self.has(Fault::TimesInMilliseconds) {
            command.context.occurred_at = command.context.occurred_at.trunc_subsecs(3);
        }
        tables.commands.insert(command.command_id.clone(), pending(command));
        Ok(None)
    }

    async fn requeue_command(
        &self,
        command_id: &CommandId,
        retry_count: u32,
        now: DateTime<Utc>,
    ) -> StoreResult<bool> {
        self.probe.before("requeue_command");
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        match tables.commands.get_mut(command_id) {
            Some(record) if record.status == CommandStatus::Failed && record.retry_count == retry_count => {
                record.status = CommandStatus::Pending;
                record.status_changed_at = now;
                record.next_retry_at = None;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    async fn claim_commands(
        &self,
        lease: &LeaseGrant,
        command_types: &[&str],
        now: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<Vec<CommandRecord>> {
        self.probe.before("claim_commands");
        let _turn = self.database.turn().await;
        let due = self.due(now);
        let mut tables = self.database.tables();
        tables.check_lease(lease)?;
        let (mut claimed, mut room) = (Vec::new(), self.room());
        for record in tables.commands.values_mut() {
            let is_due = match record.status {
                CommandStatus::Pending => true,
                CommandStatus::Failed => record.next_retry_at.is_some_and(|at| at <= due),
                _ => false,
            };
            let is_known = command_types.contains(&record.command.command_type.as_str());
            if is_due && is_known && claimed.len() < limit as usize && room(&record.command.payload) {
                let before = record.clone();
                record.status = CommandStatus::Processing;
                record.status_changed_at = now;
                record.claim = Some(lease.claim());
                claimed.push(record.clone());
                if self.has(Fault::ClaimMarksNothing) && claimed.len() == 1 && record.retry_count < 3 {
                    *record = CommandRecord { retry_count: before.retry_count + 1, ..before };
                }
            }
        }
        Ok(claimed)
    }

    async fn return_commands(
        &self,
        grant: &LeaseGrant,
        command_ids: &[CommandId],
        now: DateTime<Utc>,
    ) -> StoreResult<u64> {
        self.probe.before("return_commands");
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        if tables.check_lease(grant).is_err() {
            return Ok(0);
        }
        let mut returned = 0;
        for id in command_ids {
            if let Some(record) =
                tables.commands.get_mut(id).filter(|record| record.claim.as_ref() == Some(&grant.claim()))
            {
                record.status = CommandStatus::Pending;
                record.status_changed_at = now;
                record.claim = None;
                returned += 1;
            }
        }
        Ok(returned)
    }

    async fn return_unseen_commands(
        &self,
        grant: &LeaseGrant,
        seen: &[CommandId],
        now: DateTime<Utc>,
    ) -> StoreResult<u64> {
        let unseen: Vec<CommandId> = {
            let tables = self.database.tables();
            let is_unseen = |id: &&CommandId| self.has(Fault::ReturnsWhatIsSeen) || !seen.contains(id);
            tables.commands.keys().filter(is_unseen).cloned().collect()
        };
        self.return_commands(grant, &unseen, now).await
    }

    async fn recover_commands(&self, now: DateTime<Utc>, most: u32) -> StoreResult<u64> {
        self.probe.before("recover_commands");
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        let all = self.has(Fault::RecoveryTakesFromTheLiving)
            || self.has(Fault::LeasesLiveByTheCallersClock) && now > Utc::now();
        let gone: Vec<CommandId> = tables
            .commands
            .values()
            .filter(|record| record.claim.as_ref().is_some_and(|claim| all || !tables.holder_lives(claim)))
            .map(|record| record.command.command_id.clone())
            .collect();
        for id in &gone {
            if let Some(record) = tables.commands.get_mut(id) {
                let again = record.retry_count < most;
                record.status = if again { CommandStatus::Pending } else { CommandStatus::Failed };
                record.retry_count += 1;
                record.status_changed_at = now;
                record.claim = None;
            }
        }
        Ok(gone.len() as u64)
    }

    async fn command(&self, command_id: &CommandId) -> StoreResult<Option<CommandRecord>> {
        Ok(self.database.tables().commands.get(command_id).cloned())
    }
}

#[async_trait]
impl Aggregates for MemoryStore {
    async fn events_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> StoreResult<Vec<RecordedEvent>> {
        let tables = self.database.tables();
        let events = tables.events.get(aggregate).into_iter().flatten();
        let events = events.filter(|event| event.aggregate_version > after).take(limit as usize);
        Ok(events.map(|event| tables.recorded(event)).collect())
    }

    async fn events_of_within(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>> {
        Ok(that_fit(self.events_of(aggregate, after, limit).await?, bytes))
    }

    async fn appended_with(&self, _event_id: EventId) -> StoreResult<Option<AppendedTogether>> {
        absent()
    }

    async fn history_of(
        &self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
    ) -> StoreResult<Vec<StateEvent>> {
        let tables = self.database.tables();
        let history = tables.history.get(aggregate).into_iter().flatten();
        Ok(history.filter(|step| step.aggregate_version > after).take(limit as usize).cloned().collect())
    }

    async fn last_state_change(&self, aggregate: &AggregateKey) -> StoreResult<Option<StateEvent>> {
        let tables = self.database.tables();
        Ok(tables.history.get(aggregate).and_then(|history| history.last()).cloned())
    }

    async fn flow(&self, correlation: &CorrelationId, limit: u32) -> StoreResult<Flow> {
        let tables = self.database.tables();
        let commands =
            tables.commands.values().filter(|row| row.command.context.correlation_id == *correlation);
        let mut commands: Vec<_> = commands.cloned().collect();
        commands.sort_by_key(|row| row.command.context.occurred_at);
        let events = tables.event_ids.values().filter(|event| event.correlation_id == *correlation);
        let mut events: Vec<_> = events.map(|event| tables.recorded(event)).collect();
        events.sort_by_key(|event| (event.envelope.occurred_at, event.envelope.event_id));
        commands.truncate(limit as usize);
        events.truncate(limit as usize);
        Ok(Flow { commands, events, ..Flow::default() })
    }

    async fn set_status(
        &self,
        aggregate: &AggregateKey,
        status: &str,
        _reason: Option<&str>,
        _now: DateTime<Utc>,
    ) -> StoreResult<()> {
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        let row = tables.aggregates.get(aggregate);
        let row = row.ok_or(StoreError::Missing { what: "aggregate", name: aggregate.to_string() })?;
        let tenant = row.tenant_id.clone();
        let any = self.has(Fault::StatusOfAnyTenant);
        let known =
            tables.statuses.iter().any(|(of, value)| value == status && (any || Some(of) == tenant.as_ref()));
        if !known {
            let tenant = tenant.map_or_else(String::new, String::from);
            return Err(StoreError::UnknownStatus { tenant, value: status.to_owned() });
        }
        if let Some(row) = tables.aggregates.get_mut(aggregate) {
            row.status = Some(status.to_owned());
        }
        Ok(())
    }

    async fn add_status_value(&self, tenant: &TenantId, value: &str) -> StoreResult<()> {
        let _turn = self.database.turn().await;
        self.database.tables().statuses.insert((tenant.clone(), value.to_owned()));
        Ok(())
    }
}

#[async_trait]
impl Log for MemoryStore {
    async fn open_log(&self, _configured: Option<NonZeroU64>) -> StoreResult<NonZeroU64> {
        absent()
    }

    async fn sequence(&self, lease: &LeaseGrant, limit: u32) -> StoreResult<Sequenced> {
        let too_early = self.has(Fault::SequencerIsFencedTooEarly);
        if too_early {
            self.database.tables().check_lease(lease)?;
        }
        self.probe.before("sequence");
        let _turn = self.database.turn().await;
        let oldest_open = self.database.open.lock().unwrap().first().copied().unwrap_or(u64::MAX);
        let mut tables = self.database.tables();
        if !self.has(Fault::SequencerIsNotFenced) && !too_early {
            tables.check_lease(lease)?;
        }
        let after = if self.has(Fault::SequencerHasACursor) { tables.taken_up_to } else { 0 };
        let mut pending: Vec<(u64, EventId)> = tables
            .pending
            .range(after + 1..)
            .take(limit as usize)
            .map(|(number, id)| (*number, *id))
            .collect();
        if self.has(Fault::SequencerWaitsForOpenTransactions) {
            pending.retain(|(number, _)| *number < oldest_open);
        }
        for (number, event_id) in &pending {
            tables.pending.remove(number);
            if !self.has(Fault::RollbackLeavesAPosition) {
                tables.positions.push(Some(*event_id));
            }
        }
        let taken_up_to = pending.last().map_or(after, |(number, _)| *number);
        tables.taken_up_to = tables.taken_up_to.max(taken_up_to);
        Ok(Sequenced { count: pending.len() as u64, head: tables.positions.len() as Position })
    }

    async fn last_without_position(&self) -> StoreResult<Option<i64>> {
        absent()
    }

    async fn waits_for_position(&self, _up_to: i64) -> StoreResult<bool> {
        absent()
    }

    async fn head(&self) -> StoreResult<Position> {
        Ok(self.database.tables().positions.len() as Position)
    }

    async fn events_between(&self, low: Position, high: Position) -> StoreResult<Vec<RecordedEvent>> {
        let tables = self.database.tables();
        let positioned = tables.positions.iter().flatten().zip(1..);
        let positioned = positioned.filter(|(_, position)| (low..=high).contains(position));
        let events = positioned.filter_map(|(event_id, position)| {
            let envelope = tables.event_ids.get(event_id)?.clone();
            Some(RecordedEvent { position: Some(position), envelope })
        });
        Ok(events.collect())
    }

    async fn events_within(
        &self,
        low: Position,
        high: Position,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>> {
        Ok(that_fit(self.events_between(low, high).await?, bytes))
    }

    async fn sizes_between(&self, _low: Position, _high: Position) -> StoreResult<Vec<(Position, u64)>> {
        absent()
    }
}

#[async_trait]
impl Outbox for MemoryStore {
    async fn claim_outbox(&self, claim: &OutboxClaim<'_>) -> StoreResult<Vec<OutboxItem>> {
        self.probe.before("claim_outbox");
        let due = self.due(claim.now);
        let tables = self.database.tables();
        let after = if self.has(Fault::ClaimHasACursor) { tables.sent_up_to } else { 0 };
        let stopped = self.has(Fault::ParkingStopsTheChannel)
            && tables.parked.keys().any(|(channel, _)| channel == claim.channel);
        let is_due = |row: &OutboxRow| match row.status {
            OutboxStatus::New => true,
            OutboxStatus::Retry => row.next_retry_at.is_none_or(|at| at <= due),
            _ => false,
        };
        let may_go = |row: &OutboxRow| match tables.parked.get(&(row.channel.clone(), row.lane)) {
            Some(_) if self.has(Fault::NewRowsPassTheParkedOne) && row.parked_at.is_none() => true,
            Some(head) if self.has(Fault::TheWholeLaneComesWhenDue) => {
                tables.outbox.get(head).is_some_and(is_due)
            }
            Some(head) => *head == row.outbox_id,
            None => !stopped,
        };
        let rows = tables.outbox.values().filter(|row| {
            row.channel == *claim.channel
                && row.outbox_id > after
                && claim.partitions.contains(&row.lane.partition())
                && is_due(row)
                && may_go(row)
        });
        let (mut bytes, mut lanes) = (0_u64, std::collections::HashMap::new());
        let is_fair = claim.room.per_lane >= claim.limit;
        let rows = rows.take((claim.limit.max(claim.room.depth)) as usize).filter_map(|row| {
            let nth = lanes.entry(row.lane).or_insert(0_u32);
            *nth += 1;
            (*nth <= claim.room.per_lane).then_some((if is_fair { 1 } else { *nth }, row))
        });
        let mut rows: Vec<(u32, &OutboxRow)> = rows.take(claim.limit as usize).collect();
        rows.sort_by_key(|(nth, row)| (*nth, row.outbox_id));
        let items = rows.into_iter().enumerate().map_while(|(place, (_, row))| {
            if place > 0 && bytes >= claim.room.bytes {
                return None;
            }
            bytes += tables.event_ids.get(&row.event_id)?.payload.as_text().len() as u64;
            Some(OutboxItem {
                outbox_id: row.outbox_id,
                lane: row.lane,
                retry_count: row.retry_count,
                status: row.status,
                event: tables.event_ids.get(&row.event_id)?.clone(),
            })
        });
        let mut items: Vec<OutboxItem> = items.collect();
        items.sort_by_key(|item| item.outbox_id);
        Ok(items)
    }

    async fn record_outbox(
        &self,
        leases: &[LeaseGrant],
        channel: &ChannelName,
        now: DateTime<Utc>,
        results: &[OutboxResult],
    ) -> StoreResult<()> {
        self.probe.before("record_outbox");
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        let checked = if self.has(Fault::OnlyOneLeaseIsChecked) { &leases[..1] } else { leases };
        for lease in checked {
            tables.check_lease(lease)?;
        }
        let is_through = |result: &OutboxResult| {
            let fails = !matches!(result.outcome, OutboxOutcome::Sent);
            let is_over = |status| matches!(status, OutboxStatus::Sent | OutboxStatus::Skipped);
            fails && tables.outbox.get(&result.outbox_id).is_none_or(|row| is_over(row.status))
        };
        let open: Vec<OutboxResult> = if self.has(Fault::SentRowsPark) {
            results.to_vec()
        } else {
            results.iter().filter(|result| !is_through(result)).cloned().collect()
        };
        let is_its_event = |result: &OutboxResult| {
            self.has(Fault::EventsAreNotCompared)
                || tables.outbox.get(&result.outbox_id).is_none_or(|row| row.event_id == result.event_id)
        };
        let open: Vec<OutboxResult> = open.into_iter().filter(is_its_event).collect();
        let results = &open;
        for result in results {
            let lane = (channel.clone(), result.lane);
            let earlier_failure = |other: &&OutboxResult| {
                let fails = !matches!(other.outcome, OutboxOutcome::Sent);
                fails && other.lane == result.lane && other.outbox_id < result.outbox_id
            };
            let fails = !matches!(result.outcome, OutboxOutcome::Sent);
            let head = tables.parked.get(&lane).copied();
            let behind = results.iter().any(|other| earlier_failure(&other))
                || head.is_some_and(|head| head < result.outbox_id);
            let parks = matches!(
                result.outcome,
                OutboxOutcome::Retry { park: true, .. } | OutboxOutcome::Failed { park: true, .. }
            );
            if fails && parks && behind {
                if let Some(row) = tables.outbox.get_mut(&result.outbox_id) {
                    row.parked_at = Some(now);
                }
                continue;
            }
            let row = tables.outbox.get_mut(&result.outbox_id);
            let row =
                row.ok_or(StoreError::Missing { what: "outbox row", name: result.outbox_id.to_string() })?;
            row.status_changed_at = now;
            let parks = match &result.outcome {
                OutboxOutcome::Sent => {
                    row.status = OutboxStatus::Sent;
                    row.next_retry_at = None;
                    false
                }
                OutboxOutcome::Retry { at, reason, message, park } => {
                    row.status = OutboxStatus::Retry;
                    row.retry_count += 1;
                    row.next_retry_at = Some(*at);
                    (row.status_reason, row.status_message) = (Some(reason.clone()), Some(message.clone()));
                    *park
                }
                OutboxOutcome::Failed { reason, message, park } => {
                    row.status = OutboxStatus::Failed;
                    row.next_retry_at = None;
                    (row.status_reason, row.status_message) = (Some(reason.clone()), Some(message.clone()));
                    *park
                }
            };
            tables.sent_up_to = tables.sent_up_to.max(result.outbox_id);
            if parks {
                tables.parked.insert(lane, result.outbox_id);
            } else if tables.parked.get(&lane) == Some(&result.outbox_id)
                && (result.outcome == OutboxOutcome::Sent || !self.has(Fault::OnlySendingOpensALane))
            {
                tables.parked.remove(&lane);
            } else {
                continue;
            }
            for row in tables.outbox.values_mut() {
                let behind =
                    row.channel == *channel && row.lane == result.lane && row.outbox_id != result.outbox_id;
                if behind && matches!(row.status, OutboxStatus::New | OutboxStatus::Retry) {
                    row.parked_at = parks.then_some(now);
                }
            }
        }
        Ok(())
    }

    async fn skip_outbox(&self, outbox_id: u64, reason: &str, now: DateTime<Utc>) -> StoreResult<bool> {
        self.probe.before("skip_outbox");
        let mut tables = self.database.tables();
        let Some(row) = tables.outbox.get_mut(&outbox_id) else { return Ok(false) };
        if !matches!(row.status, OutboxStatus::Failed | OutboxStatus::Retry) {
            return Ok(false);
        }
        row.status = OutboxStatus::Skipped;
        row.status_changed_at = now;
        row.status_reason = Some("skipped".to_owned());
        row.status_message = Some(reason.to_owned());
        row.next_retry_at = None;
        let lane = (row.channel.clone(), row.lane);
        if tables.parked.get(&lane) == Some(&outbox_id) {
            tables.parked.remove(&lane);
        }
        Ok(true)
    }

    async fn reopen_outbox(&self, outbox_ids: &[u64], now: DateTime<Utc>) -> StoreResult<u64> {
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        let mut count = 0;
        for id in outbox_ids {
            if let Some(row) = tables.outbox.get_mut(id).filter(|row| row.status == OutboxStatus::Failed) {
                row.status = OutboxStatus::Retry;
                row.status_changed_at = now;
                row.retry_count = 0;
                row.next_retry_at = Some(now);
                count += 1;
            }
        }
        Ok(count)
    }

    async fn failed_outbox(
        &self,
        filter: &FailedFilter,
        after: u64,
        limit: u32,
    ) -> StoreResult<Vec<FailedRow>> {
        let tables = self.database.tables();
        let fitting = tables.outbox.values().filter(|row| row.outbox_id > after);
        let fitting = fitting.filter_map(|row| {
            let mut events = tables.events.values().flatten();
            let event = events.find(|event| event.event_id == row.event_id)?.clone();
            fits(filter, row, &event).then(|| FailedRow { row: row.clone(), event })
        });
        Ok(fitting.take(limit as usize).collect())
    }

    async fn count_failed(&self, filter: &FailedFilter) -> StoreResult<u64> {
        Ok(self.failed_outbox(filter, 0, u32::MAX).await?.len() as u64)
    }

    async fn reopen_failed(&self, filter: &FailedFilter, limit: u32, now: DateTime<Utc>) -> StoreResult<u64> {
        let fitting = self.failed_outbox(filter, 0, limit).await?;
        let ids: Vec<u64> = fitting.iter().map(|failed| failed.row.outbox_id).collect();
        self.reopen_outbox(&ids, now).await
    }
}

#[async_trait]
impl Leases for MemoryStore {
    async fn acquire_lease(
        &self,
        lease: &LeaseName,
        holder: &InstanceId,
        for_: Duration,
    ) -> StoreResult<Option<LeaseGrant>> {
        self.probe.before("acquire_lease");
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        let row = tables.leases.entry(lease.clone()).or_insert(Lease {
            holder: None,
            epoch: 0,
            until: Instant::now(),
        });
        let taken = row.until > Instant::now() && row.holder.as_ref().is_some_and(|other| other != holder);
        if taken && !self.has(Fault::LeaseIsGivenToAnyone) {
            return Ok(None);
        }
        row.epoch += 1;
        row.holder = Some(holder.clone());
        row.until = Instant::now() + for_;
        Ok(Some(LeaseGrant { lease: lease.clone(), holder: holder.clone(), epoch: row.epoch }))
    }

    async fn acquire_leases(
        &self,
        leases: &[LeaseName],
        holder: &InstanceId,
        for_: Duration,
    ) -> StoreResult<Vec<LeaseGrant>> {
        let mut granted = Vec::new();
        for lease in leases {
            granted.extend(self.acquire_lease(lease, holder, for_).await?);
        }
        Ok(granted)
    }

    async fn renew_lease(&self, grant: &LeaseGrant, for_: Duration) -> StoreResult<()> {
        self.probe.before("renew_lease");
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        tables.check_lease(grant)?;
        if let Some(row) = tables.leases.get_mut(&grant.lease) {
            row.until = Instant::now() + for_;
        }
        Ok(())
    }

    async fn renew_leases(&self, grants: &[LeaseGrant], for_: Duration) -> StoreResult<Vec<LeaseGrant>> {
        self.probe.before("renew_leases");
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        let held: Vec<LeaseGrant> =
            grants.iter().filter(|grant| tables.check_lease(grant).is_ok()).cloned().collect();
        for grant in &held {
            if let Some(row) = tables.leases.get_mut(&grant.lease) {
                row.until = Instant::now() + for_;
            }
        }
        Ok(held)
    }

    async fn leases(&self, prefix: &str) -> StoreResult<Vec<HeldLease>> {
        self.probe.before("leases");
        let tables = self.database.tables();
        let mut standings: Vec<HeldLease> = tables
            .leases
            .iter()
            .filter(|(lease, _)| lease.as_str().starts_with(prefix))
            .filter_map(|(lease, row)| {
                let holder = row.holder.clone()?;
                Some(HeldLease {
                    lease: lease.clone(),
                    holder,
                    epoch: row.epoch,
                    live: row.until > Instant::now(),
                })
            })
            .collect();
        standings.sort_by(|one, other| one.lease.cmp(&other.lease));
        Ok(standings)
    }

    async fn release_lease(&self, grant: &LeaseGrant) -> StoreResult<()> {
        self.probe.before("release_lease");
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        if tables.check_lease(grant).is_err() {
            return Ok(());
        }
        if self.has(Fault::ReleaseForgetsTheEpoch) {
            tables.leases.remove(&grant.lease);
        } else if let Some(row) = tables.leases.get_mut(&grant.lease) {
            row.holder = None;
        }
        Ok(())
    }

    async fn release_leases(&self, grants: &[LeaseGrant]) -> StoreResult<()> {
        for grant in grants {
            self.release_lease(grant).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Inbox for MemoryStore {
    async fn begin_attempts(
        &self,
        _event_ids: &[EventId],
        _handler: &HandlerName,
        _by: &str,
        _letters_stand: bool,
        _now: DateTime<Utc>,
    ) -> StoreResult<CameBefore> {
        absent()
    }

    async fn let_go_of_attempts(
        &self,
        _event_ids: &[EventId],
        _handler: &HandlerName,
        _by: &str,
    ) -> StoreResult<()> {
        absent()
    }

    async fn count_failure(&self, failure: &InboxFailure<'_>) -> StoreResult<InboxEntry> {
        self.probe.before("count_failure");
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        let entry = tables.inbox.entry((failure.event_id, failure.handler.clone())).or_insert(InboxEntry {
            event_id: failure.event_id,
            handler: failure.handler.clone(),
            status: InboxStatus::Retry,
            retry_count: 0,
            status_reason: None,
            status_message: None,
        });
        if entry.status != InboxStatus::Retry && !self.has(Fault::FailureReopensTheHandled) {
            return Ok(entry.clone());
        }
        entry.status = if failure.dead { InboxStatus::Dead } else { InboxStatus::Retry };
        entry.retry_count += 1;
        entry.status_reason = Some(failure.reason.to_owned());
        entry.status_message = Some(failure.message.to_owned());
        Ok(entry.clone())
    }

    async fn forget_failures(&self, _event_id: EventId, _handler: &HandlerName) -> StoreResult<()> {
        absent()
    }
}

#[async_trait]
impl Timers for MemoryStore {
    async fn claim_timers(
        &self,
        lease: &LeaseGrant,
        command_types: &[&str],
        now: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<Vec<Timer>> {
        self.probe.before("claim_timers");
        let _turn = self.database.turn().await;
        let due = self.due(now);
        let mut tables = self.database.tables();
        tables.check_lease(lease)?;
        let mut ids: Vec<_> = tables
            .timers
            .values()
            .filter(|row| {
                self.has(Fault::TimersOfAnyCommand)
                    || command_types.contains(&row.timer.timer.command_type.as_str())
            })
            .filter(|row| match (&row.claim, row.timer.state) {
                (None, TaskState::Pending) => row.due_at <= due,
                (Some(claim), TaskState::Running) => {
                    self.has(Fault::TimersAreTakenFromTheLiving) || !tables.holder_lives(claim)
                }
                _ => false,
            })
            .map(|row| (row.due_at, row.timer.timer.timer_id))
            .collect();
        ids.sort_unstable();
        let (mut claimed, mut room) = (Vec::new(), self.room());
        for (_, id) in ids.into_iter().take(limit as usize) {
            if let Some(row) = tables.timers.get_mut(&id)
                && room(&row.timer.timer.payload)
            {
                row.timer.state = TaskState::Running;
                row.claim = Some(lease.claim());
                claimed.push(row.timer.clone());
            }
        }
        Ok(claimed)
    }

    async fn return_unseen_timers(
        &self,
        grant: &LeaseGrant,
        seen: &[Uuid],
        _now: DateTime<Utc>,
    ) -> StoreResult<u64> {
        self.probe.before("return_unseen_timers");
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        if tables.check_lease(grant).is_err() {
            return Ok(0);
        }
        let mut returned = 0;
        for row in tables.timers.values_mut() {
            let is_unseen = self.has(Fault::ReturnsWhatIsSeen) || !seen.contains(&row.timer.timer.timer_id);
            if row.claim.as_ref() == Some(&grant.claim()) && is_unseen {
                row.timer.state = TaskState::Pending;
                row.claim = None;
                returned += 1;
            }
        }
        Ok(returned)
    }

    async fn finish_timer(
        &self,
        lease: &LeaseGrant,
        timer_id: Uuid,
        outcome: &TimerOutcome,
        _now: DateTime<Utc>,
    ) -> StoreResult<()> {
        self.probe.before("finish_timer");
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        tables.check_lease(lease)?;
        let any_epoch = self.has(Fault::ClaimsHaveNoEpoch);
        let row = tables.timers.get_mut(&timer_id);
        let row = row.filter(|row| row.claim.as_ref().is_some_and(|claim| is_claim(claim, lease, any_epoch)));
        let row = row.ok_or(StoreError::Fenced { lease: lease.lease.clone(), epoch: lease.epoch })?;
        row.claim = None;
        match outcome {
            TimerOutcome::Succeeded => row.timer.state = TaskState::Succeeded,
            TimerOutcome::Skipped { .. } => row.timer.state = TaskState::Skipped,
            TimerOutcome::Failed { error_code, error_message, retry_at } => {
                row.timer.retry_count += 1;
                row.timer.error_code = Some(error_code.clone());
                row.timer.error_message = Some(error_message.clone());
                row.timer.state = if retry_at.is_some() { TaskState::Pending } else { TaskState::Failed };
                row.due_at = retry_at.unwrap_or(row.due_at);
            }
            TimerOutcome::Postponed { error_code, error_message, until } => {
                row.timer.retry_count += u32::from(self.has(Fault::PostponingCounts));
                row.timer.error_code = Some(error_code.clone());
                row.timer.error_message = Some(error_message.clone());
                row.timer.state = TaskState::Pending;
                row.due_at = *until;
            }
        }
        Ok(())
    }

    async fn waiting_timers(&self, command_types: Option<&[&str]>, limit: u32) -> StoreResult<Vec<Timer>> {
        let tables = self.database.tables();
        let mut waiting: Vec<_> =
            tables.timers.values().filter(|row| row.timer.state == TaskState::Pending).collect();
        waiting.retain(|row| {
            command_types.is_none_or(|types| types.contains(&row.timer.timer.command_type.as_str()))
        });
        waiting.sort_by_key(|row| (row.due_at, row.timer.timer.timer_id));
        let with_due = |row: &&TimerRow| Timer {
            timer: NewTimer { due_at: row.due_at, ..row.timer.timer.clone() },
            ..row.timer.clone()
        };
        Ok(waiting.iter().take(limit as usize).map(with_due).collect())
    }

    async fn timer(&self, timer_id: Uuid) -> StoreResult<Option<Timer>> {
        Ok(self.database.tables().timers.get(&timer_id).map(|row| row.timer.clone()))
    }
}

#[async_trait]
impl Channels for MemoryStore {
    async fn add_channel(
        &self,
        channel_id: Uuid,
        name: &ChannelName,
        position: Position,
        _now: DateTime<Utc>,
    ) -> StoreResult<()> {
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        let removed = self.has(Fault::RemovedNameStaysTaken) && tables.removed.contains(name);
        if removed || tables.channels.iter().any(|row| row.name == *name) {
            return Err(StoreError::NameTaken { what: "channel", name: name.to_string() });
        }
        tables.channels.push(ChannelRow {
            channel_id,
            name: name.clone(),
            position,
            reset_count: 0,
            disabled: None,
        });
        Ok(())
    }

    async fn disable_channel(&self, name: &ChannelName, disabled: Option<&Disabled>) -> StoreResult<()> {
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        let row = tables.channels.iter_mut().find(|row| row.name == *name);
        let row = row.ok_or(StoreError::Missing { what: "channel", name: name.to_string() })?;
        row.disabled = disabled.cloned();
        Ok(())
    }

    async fn remove_channel(
        &self,
        name: &ChannelName,
        _by: Option<&ActorId>,
        _reason: &str,
        _now: DateTime<Utc>,
    ) -> StoreResult<()> {
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        let before = tables.channels.len();
        self.forget_parked(&mut tables, name);
        tables.channels.retain(|row| row.name != *name);
        if tables.channels.len() == before {
            return Err(StoreError::Missing { what: "channel", name: name.to_string() });
        }
        tables.removed.insert(name.clone());
        Ok(())
    }

    async fn park_in_channel(
        &self,
        lease: &LeaseGrant,
        channel_id: Uuid,
        from: TrackerPlace,
        to: Position,
        parked: &[ParkedAggregate],
        opened: &[AggregateKey],
    ) -> StoreResult<bool> {
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        if !self.has(Fault::PositionsAreNotFenced) {
            tables.check_lease(lease)?;
        }
        let row = tables.channels.iter_mut().find(|row| row.channel_id == channel_id && row.place() == from);
        let moved = row.map(|row| row.position = to).is_some();
        if moved {
            let is_changed = |one: &(Uuid, u64, ParkedAggregate)| {
                let changed = parked.iter().map(|parked| &parked.aggregate).chain(opened);
                one.0 == channel_id && changed.into_iter().any(|aggregate| *aggregate == one.2.aggregate)
            };
            tables.left_behind.retain(|one| !is_changed(one));
            tables.left_behind.extend(parked.iter().map(|one| (channel_id, from.reset_count, one.clone())));
        }
        Ok(moved)
    }

    async fn parked_in_channel(
        &self,
        channel_id: Uuid,
        reset_count: u64,
        which: Parked<'_>,
    ) -> StoreResult<Vec<ParkedAggregate>> {
        let tables = self.database.tables();
        let here = tables.left_behind.iter().filter(|one| (one.0, one.1) == (channel_id, reset_count));
        let mut parked: Vec<ParkedAggregate> = here.map(|one| one.2.clone()).collect();
        parked.sort_by_key(|one| one.aggregate.to_string());
        match which {
            Parked::All => {}
            Parked::Due { .. } if self.has(Fault::AllThatIsParkedIsDue) => {}
            Parked::Due { now, limit } => {
                parked.retain(|one| one.due_at.is_some_and(|due_at| due_at <= now));
                parked.sort_by_key(|one| one.due_at);
                parked.truncate(limit as usize);
            }
            Parked::Among(aggregates) => parked.retain(|one| aggregates.contains(&one.aggregate)),
        }
        Ok(parked)
    }

    async fn reopen_parked(&self, name: &ChannelName, now: DateTime<Utc>) -> StoreResult<u64> {
        let mut tables = self.database.tables();
        let id = tables.channels.iter().find(|row| row.name == *name).map(|row| row.channel_id);
        let mut reopened = 0;
        for (channel_id, _, parked) in &mut tables.left_behind {
            if Some(*channel_id) == id && parked.due_at.is_none() {
                (parked.due_at, parked.attempts) = (Some(now), 0);
                reopened += 1;
            }
        }
        Ok(reopened)
    }

    async fn reset_channel(&self, name: &ChannelName, position: Position) -> StoreResult<()> {
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        let row = tables.channels.iter_mut().find(|row| row.name == *name);
        let row = row.ok_or(StoreError::Missing { what: "channel", name: name.to_string() })?;
        row.position = position;
        row.reset_count += u64::from(!self.has(Fault::ResetsAreNotCounted));
        self.forget_parked(&mut tables, name);
        Ok(())
    }

    async fn channels(&self) -> StoreResult<Vec<ChannelRow>> {
        let mut rows = self.database.tables().channels.clone();
        rows.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(rows)
    }
}

#[async_trait]
impl Cleaning for MemoryStore {
    async fn clean_commands(
        &self,
        lease: &LeaseGrant,
        ended_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        tables.check_lease(lease)?;
        let any_status = self.has(Fault::CleaningTakesOpenCommands);
        let is_over = |record: &&CommandRecord| {
            let ended = matches!(record.status, CommandStatus::Completed | CommandStatus::Failed);
            (any_status || ended && record.next_retry_at.is_none())
                && record.command.context.occurred_at < ended_before
                && record.status_changed_at < ended_before
        };
        let over = tables.commands.values().filter(is_over).take(limit as usize);
        let over: Vec<CommandId> = over.map(|record| record.command.command_id.clone()).collect();
        over.iter().for_each(|id| drop(tables.commands.remove(id)));
        Ok(over.len() as u64)
    }

    async fn clean_outbox(
        &self,
        lease: &LeaseGrant,
        sent_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        tables.check_lease(lease)?;
        let is_old =
            |row: &&OutboxRow| row.status == OutboxStatus::Sent && row.status_changed_at < sent_before;
        let walked = if self.has(Fault::CleaningWalks) { limit as usize } else { usize::MAX };
        let ends = self.has(Fault::CleaningEndsWithTheYoung);
        let goes_on = |row: &&OutboxRow| !ends || row.status != OutboxStatus::Sent || is_old(row);
        let old = tables.outbox.values().take(walked).take_while(goes_on).filter(is_old);
        let page: Vec<u64> = old.take(limit as usize).map(|row| row.outbox_id).collect();
        tables.outbox.retain(|id, _| !page.contains(id));
        Ok(page.len() as u64)
    }

    async fn clean_inbox(
        &self,
        lease: &LeaseGrant,
        handled_before: DateTime<Utc>,
        limit: u32,
    ) -> StoreResult<u64> {
        let _turn = self.database.turn().await;
        let mut tables = self.database.tables();
        tables.check_lease(lease)?;
        let Tables { inbox, handled_at, .. } = &mut *tables;
        let is_old = |delivery: &&(EventId, HandlerName)| {
            let old = handled_at.get(*delivery).is_some_and(|at| *at < handled_before);
            old && inbox.get(*delivery).is_some_and(|entry| entry.status == InboxStatus::Handled)
        };
        let page: Vec<_> = inbox.keys().filter(is_old).take(limit as usize).cloned().collect();
        for delivery in &page {
            inbox.remove(delivery);
        }
        Ok(page.len() as u64)
    }

    async fn clean_letters(
        &self,
        _lease: &LeaseGrant,
        _before: DateTime<Utc>,
        _limit: u32,
    ) -> StoreResult<u64> {
        absent()
    }

    async fn clean_timers(
        &self,
        _lease: &LeaseGrant,
        _before: DateTime<Utc>,
        _limit: u32,
    ) -> StoreResult<u64> {
        absent()
    }

    async fn clean_tasks(
        &self,
        _lease: &LeaseGrant,
        _status: TaskState,
        _before: DateTime<Utc>,
        _limit: u32,
    ) -> StoreResult<u64> {
        absent()
    }

    async fn clean_processes(
        &self,
        _lease: &LeaseGrant,
        _before: DateTime<Utc>,
        _limit: u32,
    ) -> StoreResult<u64> {
        absent()
    }

    async fn clean_alerts(
        &self,
        _lease: &LeaseGrant,
        _before: DateTime<Utc>,
        _limit: u32,
    ) -> StoreResult<u64> {
        absent()
    }

    async fn clean_units(
        &self,
        _lease: &LeaseGrant,
        _before: DateTime<Utc>,
        _limit: u32,
    ) -> StoreResult<u64> {
        absent()
    }

    async fn clean_leases(
        &self,
        _lease: &LeaseGrant,
        _prefixes: &[&str],
        _ended_for: Duration,
    ) -> StoreResult<u64> {
        absent()
    }
}

#[async_trait]
impl Inspection for MemoryStore {
    async fn command_counts(&self) -> StoreResult<Counts<CommandStatus>> {
        let mut counts = BTreeMap::new();
        for record in self.database.tables().commands.values() {
            *counts.entry(record.status).or_default() += 1;
        }
        Ok(Counts { by_status: counts.into_iter().collect() })
    }

    async fn outbox_of(&self, event_id: EventId) -> StoreResult<Vec<OutboxRow>> {
        let tables = self.database.tables();
        Ok(tables.outbox.values().filter(|row| row.event_id == event_id).cloned().collect())
    }

    async fn outbox_counts(&self, channel: &ChannelName) -> StoreResult<Counts<OutboxStatus>> {
        let mut counts = BTreeMap::new();
        for row in self.database.tables().outbox.values().filter(|row| row.channel == *channel) {
            *counts.entry(row.status).or_default() += 1;
        }
        Ok(Counts { by_status: counts.into_iter().collect() })
    }

    async fn inbox_entry(&self, event_id: EventId, handler: &HandlerName) -> StoreResult<Option<InboxEntry>> {
        Ok(self.database.tables().inbox.get(&(event_id, handler.clone())).cloned())
    }

    async fn queue_depth(&self, _queue: &str) -> StoreResult<QueueDepth> {
        absent()
    }
}

/// The first ones that have so many bytes of payload together, and at least one.
fn that_fit(events: Vec<RecordedEvent>, bytes: u64) -> Vec<RecordedEvent> {
    let mut total = 0;
    let fits = |(place, event): &(usize, RecordedEvent)| {
        total += event.envelope.payload.as_text().len() as u64;
        *place == 0 || total <= bytes
    };
    events.into_iter().enumerate().take_while(fits).map(|(_, event)| event).collect()
}
