//! What a process does in the transaction in which it takes a fact.

use chrono::{DateTime, Utc};
use towpath_core::aggregate::Aggregate;
use towpath_core::append::IntoAppend;
use towpath_core::decider::Decider;
use towpath_core::ids::{AggregateKey, AggregateKind, EventId, TaskKey, Version};
use towpath_core::payload::Payload;
use towpath_core::ports::store::{
    AggregateRow, Append, AppendRules, AppendedTogether, NewTask, NewTimer, NewUndo, ProcessInput, Snapshot,
    StateChange, StoreError, StoreResult, StoreTx as _, Undoes,
};
use towpath_core::process::{Action, Outgoing};
use towpath_core::task::TaskType;
use towpath_core::time::later;
use uuid::Uuid;

use super::{Tx, invalid};
use crate::bus::{FOLD_BYTES, FOLD_PAGE, FoldError, Folding, with_causes};
use crate::consumer::HandlerError;
use crate::process::compensation;
use crate::registry::Registry;

/// A process as it is, which nobody else changes before the transaction ends.
#[derive(Default)]
pub(crate) struct LockedProcess<P> {
    pub(crate) process: P,
    /// How many events it has.
    pub(crate) version: Version,
    /// When the last of them happened.
    pub(crate) changed_at: DateTime<Utc>,
    /// Where its machine is.
    pub(crate) state: Option<String>,
    /// Its row as this build has it, if what is stored is of another form: what is appended stands on this.
    pub(crate) renewed: Option<AggregateRow>,
}

/// The rules of appends, for a row that was folded anew.
struct OnRenewed<'a> {
    rules: &'a Registry,
    row: &'a AggregateRow,
}

impl AppendRules for OnRenewed<'_> {
    fn concern(&self, kind: &AggregateKind) -> bool {
        self.rules.concern(kind)
    }

    fn complete(&self, append: &Append, stored: Option<&AggregateRow>) -> StoreResult<Append> {
        let mut complete = self.rules.complete(append, Some(self.row))?;
        let from = stored.and_then(|row| row.state.clone());
        // A state that has another name by now, in which it stays, is entered under that name.
        if let (Some(decider), Some(to), Some(event)) = (
            self.rules.decider_of_kind(append.aggregate.kind.as_str()),
            &self.row.state,
            append.events.first(),
        ) && complete.state_changes.is_empty()
            && from.as_ref() != Some(to)
        {
            let reason = Some(event.event_type.to_string());
            let renamed = StateChange { from, to: to.clone(), reason, message: None, event_index: 0 };
            complete.state_changes.push(renamed);
            complete.deadline = self.rules.deadline_change(decider.as_ref(), &complete);
        }
        Ok(complete)
    }
}

impl Tx {
    /// The process of a key, locked until the transaction ends.
    pub(crate) async fn lock_process<P: Aggregate>(
        &mut self,
        key: &AggregateKey,
    ) -> Result<Option<LockedProcess<P>>, HandlerError> {
        let open = self.open_mut();
        let outcome = open.sql.lock_aggregate(key).await;
        let Some(mut row) = open.noted("a lock", outcome)? else { return Ok(None) };
        let registry = open.bus.registry.clone();
        let unknown = || HandlerError::unrecoverable("missing", format!("{} is not registered", key.kind));
        let decider = registry.decider_of_kind(P::KIND).ok_or_else(unknown)?.as_ref();
        let form = decider.snapshot_version();
        let is_current = row.snapshot.as_ref().is_some_and(|snapshot| snapshot.version == form);
        if !is_current {
            let (data, state) = self.fold_locked(decider, key, row.version).await.map_err(unfolded)?;
            row.snapshot = Some(Snapshot { data, version: form });
            row.state = state;
        }
        let process = match &row.snapshot {
            Some(snapshot) => snapshot.data.read::<P>(P::KIND).map_err(HandlerError::unrecoverable_source)?,
            None => P::default(),
        };
        let (version, changed_at, state) = (row.version, row.updated_at, row.state.clone());
        let renewed = (!is_current).then_some(row);
        Ok(Some(LockedProcess { process, version, changed_at, state, renewed }))
    }

    /// Appends events of a process.
    pub(crate) async fn append_to_process(
        &mut self,
        events: impl IntoAppend,
        renewed: Option<&AggregateRow>,
    ) -> Result<(), StoreError> {
        let registry = self.open().bus.registry.clone();
        match renewed {
            Some(row) => self.append_by(events, &OnRenewed { rules: &registry, row }).await?,
            None => self.append(events).await?,
        };
        Ok(())
    }

    /// Folds an aggregate anew, on the connection that is here: others who do the same may have all the rest.
    async fn fold_locked(
        &mut self,
        decider: &dyn Decider,
        aggregate: &AggregateKey,
        up_to: Version,
    ) -> Result<(Payload, Option<String>), FoldError> {
        let mut folding = Folding::of(decider, up_to);
        while let Some(after) = folding.wants() {
            let last = up_to.min(after + u64::from(FOLD_PAGE));
            let (aggregate, last_event) = (aggregate.clone(), EventId(Uuid::nil()));
            let page = AppendedTogether { aggregate, first: after + 1, last, last_event };
            folding.take(&self.sql().facts_within(&page, FOLD_BYTES).await.map_err(FoldError::Store)?)?;
        }
        folding.finish()
    }

    /// Whether a process has ended that is in this state, after these events.
    pub(crate) fn has_ended<P: Aggregate>(&self, state: Option<&str>, events: &[&str]) -> bool {
        let decider = self.open().bus.registry.decider_of_kind(P::KIND);
        let ended = decider.and_then(|decider| {
            let state = decider.machine_state_after(state.map(ToOwned::to_owned), events)?;
            Some(decider.machine()?.is_terminal(&state))
        });
        ended.unwrap_or_default()
    }

    /// Records what came of a fact that a process took.
    pub(crate) async fn record_input(&mut self, input: &ProcessInput) -> Result<(), StoreError> {
        let open = self.open_mut();
        let outcome = open.sql.record_process_input(input).await;
        open.noted("a record", outcome)
    }

    /// Does what a process wants done, in its order.
    pub(crate) async fn act(
        &mut self,
        process: &AggregateKey,
        actions: Vec<Action>,
    ) -> Result<(), StoreError> {
        // What was done just before, which an undo is for.
        let mut done = None;
        for action in actions {
            match action {
                Action::UndoneBy(command) => self.keep_undo(process, command, done.clone()).await?,
                action => done = self.act_one(process, action).await?,
            }
        }
        Ok(())
    }

    /// Does one thing; answers what of it can be undone.
    async fn act_one(
        &mut self,
        process: &AggregateKey,
        action: Action,
    ) -> Result<Option<Undoes>, StoreError> {
        match action {
            Action::Send(Outgoing { aggregate, command_type, payload }) => {
                let command_id = self.send_command(aggregate, command_type, payload).await?;
                return Ok(Some(Undoes::Command(command_id)));
            }
            Action::SendAt { name, due_at, command } => {
                self.cancel_timers(process, Some(&name)).await?;
                let context = self.open().context();
                let timer = NewTimer {
                    timer_id: Uuid::now_v7(),
                    // What is past is due at once.
                    due_at: later(due_at.max(DateTime::UNIX_EPOCH), std::time::Duration::ZERO),
                    command_type: command.command_type,
                    aggregate: command.aggregate,
                    payload: command.payload,
                    correlation_id: context.correlation_id,
                    causation_id: context.causation_id,
                    entered_by: None,
                    created_at: context.occurred_at,
                };
                self.schedule(&timer).await?;
                let open = self.open_mut();
                let outcome = open.sql.name_timer(process, &name, timer.timer_id, timer.due_at).await;
                open.noted("a timer", outcome)?;
                return Ok(Some(Undoes::Timer(timer.timer_id)));
            }
            Action::StartTask { of, name, payload } => {
                // A reaction cannot know what was configured: where the type is declared here, its limits are those.
                let declared = self.open_mut().bus.registry.task_type(of.name()).cloned();
                let of = declared.unwrap_or(of);
                let started = self.start_task(&of, &payload).unique_within(process, &name).await?;
                return Ok(Some(Undoes::Task(started.task_id)));
            }
            Action::CancelTimer { name } => self.cancel_timers(process, Some(&name)).await?,
            Action::Compensate => {
                let open = self.open_mut();
                let now = open.bus.clock.now();
                let outcome = open.sql.begin_undoing(process, now).await;
                open.noted("an undo", outcome)?;
                self.start_task(&compensation(process.kind.as_str()), &()).subject(process).await?;
            }
            Action::CancelTask { of, name, reason } => {
                self.cancel_task_within(process, &of, &name, &reason).await?;
            }
            // Kept where the action before it is known.
            Action::UndoneBy(_) => {}
        }
        Ok(None)
    }

    /// Keeps what undoes the action before it.
    async fn keep_undo(
        &mut self,
        process: &AggregateKey,
        command: Outgoing,
        undoes: Option<Undoes>,
    ) -> Result<(), StoreError> {
        let open = self.open_mut();
        let undo = NewUndo {
            process: process.clone(),
            command_id: open.next_command_id()?,
            undoes,
            command,
            recorded_at: open.bus.clock.now(),
        };
        open.begin()?;
        let outcome = open.sql.keep_undo(&undo).await;
        open.noted("an undo", outcome)
    }

    /// Calls off the timers of a process that have this name, or any.
    pub(crate) async fn cancel_timers(
        &mut self,
        process: &AggregateKey,
        name: Option<&str>,
    ) -> Result<(), StoreError> {
        let open = self.open_mut();
        let outcome = open.sql.take_named_timers(process, name).await;
        for timer_id in open.noted("a timer", outcome)? {
            self.cancel(timer_id).await?;
        }
        Ok(())
    }

    /// Lets the timers of a process be that its last reaction has set: nothing calls them off any more.
    pub(crate) async fn keep_timers(&mut self, process: &AggregateKey) -> Result<(), StoreError> {
        let open = self.open_mut();
        let outcome = open.sql.take_named_timers(process, None).await;
        open.noted("a timer", outcome).map(drop)
    }

    /// Forgets what would have undone what a process did, where nobody has asked for it.
    pub(crate) async fn forget_undos(&mut self, process: &AggregateKey) -> Result<(), StoreError> {
        let open = self.open_mut();
        let outcome = open.sql.forget_undos(process).await;
        open.noted("an undo", outcome)
    }

    /// Calls off the open task of a process that has this name.
    async fn cancel_task_within(
        &mut self,
        process: &AggregateKey,
        of: &TaskType,
        name: &str,
        reason: &str,
    ) -> Result<(), StoreError> {
        let invalid_id = |error| invalid("invalid-id", error);
        let task_type = of.check().map_err(|error| invalid_id(error.into()))?;
        let key =
            TaskKey::new(NewTask::key_within(process, name)).map_err(|error| invalid_id(error.into()))?;
        let open = self.open_mut();
        let outcome = open.sql.open_task(&task_type, &key).await;
        if let Some(task_id) = open.noted("a task", outcome)? {
            self.cancel_task(task_id, reason).await?;
        }
        Ok(())
    }
}

fn unfolded(error: FoldError) -> HandlerError {
    match error {
        FoldError::Store(error) => error.into(),
        FoldError::Decide(error) => HandlerError::unrecoverable(error.code(), with_causes(&error)),
        FoldError::Panicked => HandlerError::transient("handler-panicked", "folding the process panicked"),
    }
}
