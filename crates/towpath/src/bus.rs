//! The command bus: load, decide, write, answer.
//!
//! A command costs two round trips on PostgreSQL: one reads the aggregate's row and the command's own row
//! together, one writes everything that follows from the decision. What is not in the database did not happen:
//! between the two nothing is kept anywhere else, so a crash at any point leaves either the whole effect or none.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::Serialize;
use tokio::sync::watch;
use towpath_core::aggregate::Context;
use towpath_core::decider::{Current, DecideError, Decider, Decision, StoredEvent};
use towpath_core::envelope::{ChangeContext, EventEnvelope, RecordedEvent};
use towpath_core::ids::{
    AggregateKey, CausationId, CommandId, CorrelationId, EventId, InvalidId, Position, Version,
};
use towpath_core::lifecycle::CommandStatus;
use towpath_core::machine::IllegalTransition;
use towpath_core::payload::{InvalidPayload, Payload};
use towpath_core::ports::clock::Clock;
use towpath_core::ports::store::{
    AggregateRow, Append, CommandRecord, CommandResult, CompletedCommand, DeadlineChange, Expected,
    FailedCommand, Found, LeaseGrant, NewCommand, NewEvent, Snapshot, StateChange, Store, StoreError,
};
use towpath_core::retry::{Coded, ErrorClass, RetryDecision, RetryPolicy};
use towpath_core::time::later;
use tracing::Instrument as _;
use uuid::Uuid;

pub(crate) use towpath_core::causes::with_causes;

use crate::carrying::TooLarge;
use crate::clock::DatabaseClock;
use crate::committed::{Committed, Wakes};
use crate::metrics::{CommandMeters, Meters};
use crate::registry::Registry;
use crate::spans;

/// How often a command is decided anew because somebody else was quicker, before it is recorded as failed. Each
/// round that is lost was won by another writer of the same aggregate, so this is reached only under a storm.
const MAX_ROUNDS: u32 = 50;

/// How long a lost connection is tried again inside one call. After a restart of the database a pool hands out its
/// dead connections one by one.
const RECONNECT_FOR: Duration = Duration::from_secs(3);

/// How many events are read at a time when a state has to be folded anew.
pub(crate) const FOLD_PAGE: u32 = 500;

/// And how many bytes of payloads at a time.
pub(crate) const FOLD_BYTES: u64 = 4 << 20;

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    /// The command.
    pub command_id: CommandId,
    /// Always COMPLETED: everything else is an error.
    pub status: CommandStatus,
    /// The version of the aggregate after it.
    pub aggregate_version: Version,
    /// The flow it belongs to.
    pub correlation_id: CorrelationId,
    /// What happened, in order. Empty when the decision was that nothing happens.
    pub events: Vec<EventEnvelope>,
    /// Whether this is the recorded answer of an earlier call.
    #[serde(skip)]
    pub replayed: bool,
}

/// Why a command has no receipt.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// An identity is not valid.
    #[error("an identity of the command is invalid")]
    InvalidId(#[from] InvalidId),
    /// Nobody decides commands of this name.
    #[error("there is no command {0}")]
    UnknownCommand(String),
    /// The command is for the application's own parts, and came by its name from outside.
    #[error("{0} is a command of the application's own parts")]
    InternalCommand(String),
    /// No aggregate of this kind is registered.
    #[error("there is no aggregate {0}")]
    UnknownAggregate(String),
    /// A command for later cannot expect a version: by the time it runs, nobody is there to be told.
    #[error("a command for later cannot expect a version")]
    ExpectingLater,
    /// The payload does not fit the command.
    #[error("the payload of {command} is invalid")]
    InvalidPayload {
        /// The command.
        command: String,
        /// What is wrong.
        #[source]
        source: InvalidPayload,
    },
    /// The aggregate said no. Nothing has changed.
    #[error("{message}")]
    Refused {
        /// The refusal's own stable code.
        code: &'static str,
        /// Whether sending it again could help.
        class: ErrorClass,
        /// Text for people.
        message: String,
    },
    /// The state machine said no. Nothing has changed.
    #[error(transparent)]
    IllegalTransition(Box<IllegalTransition>),
    /// The aggregate is not at the version that the sender expects.
    #[error("{aggregate} is at version {actual}, not {expected}")]
    VersionMismatch {
        /// Which aggregate.
        aggregate: AggregateKey,
        /// What the sender expects.
        expected: Version,
        /// What is.
        actual: Version,
    },
    /// The aggregate has left the state whose deadline this command is for. Nothing has changed.
    #[error("{0} is no longer in the state whose deadline this was")]
    NoLongerWaiting(AggregateKey),
    /// The command was accepted before and its outcome is not known yet.
    #[error("command {0} is still being processed")]
    StillProcessing(CommandId),
    /// The id belongs to another command.
    #[error("command id {0} was used for a different command")]
    IdReused(CommandId),
    /// The event that the command makes is larger than a channel that takes it can carry. Nothing has changed.
    #[error("{event_type} has {bytes} bytes as a message, and channel {channel} carries {largest} at most")]
    TooLarge {
        /// The event.
        event_type: String,
        /// The channel.
        channel: String,
        /// How many bytes its message would have at most.
        bytes: usize,
        /// How many the channel carries.
        largest: usize,
    },
    /// The aggregate's code panicked while it decided. Nothing has changed.
    #[error("{kind} panicked while it decided {command}")]
    Panicked {
        /// The kind of aggregate.
        kind: String,
        /// The command.
        command: String,
    },
    /// The stored state or events cannot be read.
    #[error("{aggregate} cannot be decided on")]
    Undecidable {
        /// Which aggregate.
        aggregate: AggregateKey,
        /// Why.
        #[source]
        source: Box<DecideError>,
    },
    /// The stored state does not fit the aggregate's type.
    #[error("the stored state of {aggregate} cannot be read")]
    UnreadableState {
        /// Which aggregate.
        aggregate: AggregateKey,
        /// What is wrong.
        #[source]
        source: InvalidPayload,
    },
    /// This Towpath was stopped. Nothing was written.
    #[error("Towpath was stopped")]
    Stopped,
    /// Recorded as FAILED because of a fault. With `retry_at`, a worker tries again then.
    #[error("command {command_id} failed")]
    Failed {
        /// The command.
        command_id: CommandId,
        /// When it is tried again.
        retry_at: Option<DateTime<Utc>>,
        /// The fault.
        #[source]
        source: StoreError,
    },
    /// The store does not answer. Whether the command took effect is not known; sending it again with the same id
    /// is safe and tells.
    #[error("the store did not answer")]
    Store(#[source] StoreError),
}

impl Coded for SendError {
    fn code(&self) -> &'static str {
        match self {
            Self::InvalidId(_) => "invalid-id",
            Self::UnknownCommand(_) => "unknown-command",
            Self::InternalCommand(_) => "internal-command",
            Self::UnknownAggregate(_) => "unknown-aggregate",
            Self::ExpectingLater => "expecting-later",
            Self::InvalidPayload { .. } => "invalid-payload",
            Self::Refused { code, .. } => code,
            Self::IllegalTransition(_) => "illegal-transition",
            Self::VersionMismatch { .. } => "version-mismatch",
            Self::NoLongerWaiting(_) => "no-longer-waiting",
            Self::StillProcessing(_) => "still-processing",
            Self::IdReused(_) => "command-id-reused",
            Self::TooLarge { .. } => "event-too-large",
            Self::Panicked { .. } => "decision-panicked",
            Self::Undecidable { source, .. } => source.code(),
            Self::UnreadableState { .. } => "corrupt",
            Self::Stopped => "stopped",
            Self::Failed { source, .. } | Self::Store(source) => source.code(),
        }
    }

    fn class(&self) -> ErrorClass {
        match self {
            Self::InvalidId(_)
            | Self::UnknownCommand(_)
            | Self::UnknownAggregate(_)
            | Self::InvalidPayload { .. } => ErrorClass::InvalidPayload,
            Self::Refused { class, .. } => *class,
            Self::InternalCommand(_) => ErrorClass::Denied,
            Self::IllegalTransition(_)
            | Self::IdReused(_)
            | Self::VersionMismatch { .. }
            | Self::NoLongerWaiting(_)
            | Self::TooLarge { .. }
            | Self::ExpectingLater => ErrorClass::Validation,
            Self::StillProcessing(_) => ErrorClass::Conflict,
            Self::Panicked { .. } | Self::Undecidable { .. } | Self::UnreadableState { .. } => {
                ErrorClass::Unrecoverable
            }
            Self::Stopped => ErrorClass::Transient,
            Self::Failed { source, .. } | Self::Store(source) => source.class(),
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::InvalidId(_) | Self::InvalidPayload { .. } => {
                "Correct what the cause names and send it again."
            }
            Self::UnknownAggregate(_) => "Register the aggregate before starting.",
            Self::ExpectingLater => "Send it now, or let the aggregate's own rules decide when it runs.",
            Self::UnknownCommand(_) => {
                "Check the name; the registered commands are listed with their aggregate."
            }
            Self::InternalCommand(_) => {
                "Send a command that is meant for users; this one follows by itself from what is seen and done."
            }
            Self::Refused { .. } => "The aggregate's rules do not allow it in this state.",
            Self::IllegalTransition(_) => "Do one of the steps that are possible from this state first.",
            Self::VersionMismatch { .. } => {
                "Load the aggregate again and decide whether the command still fits."
            }
            Self::NoLongerWaiting(_) => {
                "Nothing: what was waited for has come, or the aggregate went another way."
            }
            Self::StillProcessing(_) => "Ask again later with the same command id.",
            Self::IdReused(_) => "Use a new command id for a new command.",
            Self::TooLarge { .. } => {
                "Say less in one event, or let it name where the rest is kept; or raise largest-message of the channel."
            }
            Self::Panicked { .. } => "This is a bug in the aggregate's decide; the log has the panic.",
            Self::Undecidable { .. } => {
                "Its stored state or events do not fit this build's types; compare them with the build that wrote them."
            }
            Self::UnreadableState { .. } => {
                "Let the type read the old form (#[serde(default)], alias), or raise its SNAPSHOT_VERSION: its state is then folded anew from its events."
            }
            Self::Stopped => "Send it to an instance that runs, or start Towpath again.",
            Self::Failed { .. } => "It is recorded; send it again with the same id, or wait for the retry.",
            Self::Store(source) => source.next_step(),
        }
    }
}

/// A command on its way in, before anything is looked up.
#[derive(Debug, Clone)]
pub(crate) struct Incoming {
    pub(crate) command: NewCommand,
    pub(crate) expected_version: Option<Version>,
    /// The grant under which this instance has claimed the command.
    pub(crate) claim: Option<LeaseGrant>,
    /// Only while the aggregate is in the state that this event entered.
    pub(crate) still_in: Option<EventId>,
    /// Only while this grant is the newest of its lease. What fails for a passing reason is then left to who sent it: by
    /// the time a worker tried again, it would be out of date.
    pub(crate) fence: Option<LeaseGrant>,
}

/// Runs commands. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Bus {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) registry: Arc<Registry>,
    /// Counts what happens.
    pub(crate) meters: Arc<Meters>,
    /// The time that all decisions are made by.
    pub(crate) clock: Arc<dyn Clock>,
    /// That clock, if it is the database's.
    pub(crate) database_clock: Option<DatabaseClock>,
    pub(crate) retries: RetryPolicy,
    /// Who waits for commits.
    pub(crate) wakes: Wakes,
    /// Tells who reads the log here of new positions, by the last of them.
    pub(crate) sequenced: watch::Sender<Position>,
    /// Nothing is sent any more: the connections are closed, or are just being closed.
    pub(crate) stopped: Arc<AtomicBool>,
}

impl Bus {
    /// Refuses when Towpath was stopped.
    pub(crate) fn check_running(&self) -> Result<(), SendError> {
        crate::transact::refuse_inside().map_err(SendError::Store)?;
        if self.stopped.load(Ordering::Relaxed) { Err(SendError::Stopped) } else { Ok(()) }
    }

    /// The time as the database says it now; a clock that was given in its place is believed.
    pub(crate) async fn database_time(&self) -> Result<DateTime<Utc>, StoreError> {
        match &self.database_clock {
            Some(clock) => clock.ask(self.store.as_ref()).await,
            None => Ok(self.clock.now()),
        }
    }

    /// Runs a command to its answer.
    pub(crate) async fn run(&self, incoming: Incoming) -> Result<Receipt, SendError> {
        self.check_running()?;
        let begun = Instant::now();
        let name = incoming.command.command_type.as_str();
        let mut decider = self.registry.decider_of_command(name);
        if decider.is_none() && incoming.still_in.is_some() {
            decider = self.registry.decider_of_deadline(name);
        }
        let known = decider.zip(self.meters.command(name));
        let Some((decider, meters)) = known else {
            return Err(self.unknown_command(name));
        };
        let span = spans::command(&incoming.command);
        let answer = self.run_rounds(decider, meters, &incoming).instrument(span).await;
        meters.answered(&answer, begun.elapsed());
        answer
    }

    /// Nobody decides such a command here.
    pub(crate) fn unknown_command(&self, name: &str) -> SendError {
        self.meters.unknown_commands.increment(1);
        SendError::UnknownCommand(name.to_owned())
    }

    async fn run_rounds(
        &self,
        decider: &Arc<dyn Decider>,
        meters: &CommandMeters,
        incoming: &Incoming,
    ) -> Result<Receipt, SendError> {
        let started_at = self.clock.now();
        let give_up_at = tokio::time::Instant::now() + RECONNECT_FOR;
        let mut lost_rounds = 0;
        let mut reconnects = 0;
        loop {
            let mut command = incoming.command.clone();
            let failure = match self.attempt(decider.as_ref(), incoming, &mut command, started_at).await {
                Ok(receipt) => return Ok(receipt),
                Err(Attempt::Answer(error)) => return Err(error),
                Err(Attempt::Failed(failure)) => failure,
            };
            match &failure.error {
                SendError::Store(StoreError::Unavailable(_)) => {
                    // Whether it took effect is not known; that nobody will tell here is.
                    if self.stopped.load(Ordering::Relaxed) || tokio::time::Instant::now() >= give_up_at {
                        return Err(failure.error);
                    }
                    reconnects += 1;
                    tokio::time::sleep(pause(reconnects).max(Duration::from_millis(5))).await;
                    continue;
                }
                // There is nowhere to record it.
                SendError::Store(StoreError::Full(_)) => return Err(failure.error),
                // It never was the sender's to send.
                SendError::Store(StoreError::Fenced { .. }) if incoming.fence.is_some() => {
                    return Err(failure.error);
                }
                // Another instance has it: what it writes is the record.
                SendError::Store(StoreError::Fenced { .. }) => {
                    return Err(SendError::StillProcessing(command.command_id));
                }
                SendError::Store(error) if is_lost_round(error) && lost_rounds < MAX_ROUNDS => {
                    lost_rounds += 1;
                    meters.conflicts.increment(1);
                    tokio::time::sleep(pause(lost_rounds)).await;
                    continue;
                }
                SendError::Store(error)
                    if incoming.fence.is_some() && error.class() == ErrorClass::Transient =>
                {
                    return Err(failure.error);
                }
                _ => {}
            }
            match self.record(command, failure, started_at, incoming.expected_version.is_some()).await {
                Ok(error) => return Err(error),
                // Somebody else has ended this very command meanwhile: its record is the answer.
                Err(Taken) if lost_rounds < MAX_ROUNDS => {
                    lost_rounds += 1;
                    tokio::time::sleep(pause(lost_rounds)).await;
                }
                Err(Taken) => return Err(SendError::StillProcessing(incoming.command.command_id.clone())),
            }
        }
    }

    /// One round: load, decide, write.
    async fn attempt(
        &self,
        decider: &dyn Decider,
        incoming: &Incoming,
        command: &mut NewCommand,
        started_at: DateTime<Utc>,
    ) -> Result<Receipt, Attempt> {
        let unloaded = |error| {
            let error = SendError::Store(error);
            let found = incoming.claim.clone().map_or(Found::Nowhere, Found::Claimed);
            Attempt::Failed(Failure { error, found, retry_count: 0 })
        };
        let mut session = self.store.command_session().await.map_err(unloaded)?;
        let loaded = session.load(&command.aggregate, &command.command_id).await.map_err(unloaded)?;

        let (found, retry_count) = match loaded.command {
            None => (Found::Nowhere, 0),
            Some(record) => {
                // What follows may ask the store for more: a connection that is held meanwhile is one that others,
                // doing the same, wait for.
                session.release();
                match self.recorded(&record, incoming).await? {
                    Recorded::Answered(receipt) => return Ok(receipt),
                    Recorded::Run(found) => {
                        // A command that is run again keeps the flow it was first sent in.
                        command.context = record.command.context;
                        (found, record.retry_count)
                    }
                }
            }
        };
        let row = loaded.aggregate;
        let version = row.as_ref().map_or(0, |row| row.version);
        let refused = |error| Attempt::Failed(Failure { error, found: found.clone(), retry_count });
        if let Some(expected) = incoming.expected_version.filter(|expected| *expected != version) {
            let aggregate = command.aggregate.clone();
            return Err(refused(SendError::VersionMismatch { aggregate, expected, actual: version }));
        }

        if let Some(entered_by) = incoming.still_in {
            session.release();
            // The write is based on the version that was loaded: if the state is left after this look, it is refused.
            let last = self.store.last_state_change(&command.aggregate).await;
            let last = last.map_err(|error| refused(SendError::Store(error)))?;
            if last.is_none_or(|change| change.event_id != entered_by) {
                let error = SendError::NoLongerWaiting(command.aggregate.clone());
                // What was never recorded leaves no trace in the command box: nothing has failed.
                return Err(match found {
                    Found::Nowhere => Attempt::Answer(error),
                    Found::Failed { .. } | Found::Claimed(_) => refused(error),
                });
            }
        }

        let now = self.clock.now();
        if row.as_ref().is_some_and(|row| !has_current_snapshot(decider, row)) {
            session.release();
        }
        let (snapshot, state) =
            self.current_state(decider, command, row.as_ref()).await.map_err(|error| match error {
                FoldError::Store(error) => refused(SendError::Store(error)),
                FoldError::Panicked => refused(panicked(decider, command)),
                FoldError::Decide(source) => refused(SendError::Undecidable {
                    aggregate: command.aggregate.clone(),
                    source: Box::new(source),
                }),
            })?;
        let current = Current { snapshot: snapshot.as_ref(), state: state.as_deref() };
        let context = Context {
            now,
            version,
            actor_id: command.context.actor_id.clone(),
            tenant_id: command.context.tenant_id.clone(),
        };
        let decision = decide(decider, &current, command, &context).map_err(refused)?;

        let append =
            (!decision.events.is_empty()).then(|| self.to_append(decider, command, version, now, decision));
        if let Some(append) = &append
            && let Err(TooLarge { event_type, channel, bytes, largest }) =
                self.registry.check_size(&append.events)
        {
            return Err(refused(SendError::TooLarge { event_type, channel, bytes, largest }));
        }
        let completed = CompletedCommand {
            command: command.clone(),
            found: found.clone(),
            started_at,
            finished_at: now,
            decided_on: version,
            append,
            fence: incoming.fence.clone(),
        };
        let result = session.complete(&completed).await.map_err(|error| refused(SendError::Store(error)))?;
        if let Some(append) = &completed.append {
            self.committed(&Committed::of(append, &self.registry));
        }
        let events = completed.append.map_or_else(Vec::new, |append| envelopes(append, version));
        Ok(receipt(completed.command, result, events, false))
    }

    /// Counts what was committed and wakes whom it concerns.
    pub(crate) fn committed(&self, committed: &Committed) {
        self.wakes.act(committed, &self.meters);
    }

    /// What a recorded command means for one that is sent (G4).
    async fn recorded(&self, record: &CommandRecord, incoming: &Incoming) -> Result<Recorded, Attempt> {
        let command_id = || record.command.command_id.clone();
        if !incoming.command.is_same_as(record) {
            return Err(Attempt::Answer(SendError::IdReused(command_id())));
        }
        match record.status {
            CommandStatus::Completed => match self.recorded_answer(record).await {
                Ok(receipt) => Ok(Recorded::Answered(receipt)),
                Err(error) => Err(Attempt::Answer(SendError::Store(error))),
            },
            // Claimed by us once, but no longer: whoever took it over has ended it, and it is not ours to run again.
            CommandStatus::Failed if incoming.claim.is_some() => {
                Err(Attempt::Answer(SendError::StillProcessing(command_id())))
            }
            CommandStatus::Failed => Ok(Recorded::Run(Found::Failed { retry_count: record.retry_count })),
            CommandStatus::Processing
                if record.claim.is_some()
                    && incoming.claim.as_ref().map(LeaseGrant::claim) == record.claim =>
            {
                Ok(Recorded::Run(incoming.claim.clone().map_or(Found::Nowhere, Found::Claimed)))
            }
            CommandStatus::Pending | CommandStatus::Processing => {
                Err(Attempt::Answer(SendError::StillProcessing(command_id())))
            }
        }
    }

    /// The answer of a command that was completed before, rebuilt from its events.
    pub(crate) async fn recorded_answer(&self, record: &CommandRecord) -> Result<Receipt, StoreError> {
        let result = record.result.unwrap_or(CommandResult { aggregate_version: 0, event_count: 0 });
        let mut events = Vec::new();
        if result.event_count > 0 {
            let before = result.aggregate_version.saturating_sub(u64::from(result.event_count));
            let recorded =
                self.store.events_of(&record.command.aggregate, before, result.event_count).await?;
            events = recorded.into_iter().map(|event| event.envelope).collect();
        }
        Ok(receipt(record.command.clone(), result, events, true))
    }

    /// The state to decide on: the row's own, or folded anew when the row has none of this build's form.
    async fn current_state(
        &self,
        decider: &dyn Decider,
        command: &NewCommand,
        row: Option<&AggregateRow>,
    ) -> Result<(Option<Payload>, Option<String>), FoldError> {
        let Some(row) = row else { return Ok((None, None)) };
        match &row.snapshot {
            Some(snapshot) if snapshot.version == decider.snapshot_version() => {
                Ok((Some(snapshot.data.clone()), row.state.clone()))
            }
            _ => {
                let (snapshot, state) = self.fold_anew(decider, &command.aggregate, row.version).await?;
                Ok((Some(snapshot), state))
            }
        }
    }

    /// Folds an aggregate's events up to a version: its state, and the state of its machine.
    pub(crate) async fn fold_anew(
        &self,
        decider: &dyn Decider,
        aggregate: &AggregateKey,
        up_to: Version,
    ) -> Result<(Payload, Option<String>), FoldError> {
        let mut folding = Folding::of(decider, up_to);
        while let Some(after) = folding.wants() {
            let page = self.store.events_of_within(aggregate, after, FOLD_PAGE, FOLD_BYTES).await;
            folding.take(&page.map_err(FoldError::Store)?)?;
        }
        folding.finish()
    }

    fn to_append(
        &self,
        decider: &dyn Decider,
        command: &NewCommand,
        version: Version,
        now: DateTime<Utc>,
        decision: Decision,
    ) -> Append {
        let mut events = Vec::with_capacity(decision.events.len());
        let mut state_changes = Vec::new();
        let decided = decision.events.into_iter().zip(EventId::of_one_append());
        for (event_index, (event, event_id)) in decided.enumerate() {
            if let Some(step) = event.moves {
                let (reason, message) = match step.reason {
                    Some(reason) => (Some(reason.code), reason.message),
                    None => (Some(event.event_type.as_str().to_owned()), None),
                };
                state_changes.push(StateChange {
                    from: step.from,
                    to: step.to,
                    reason,
                    message,
                    event_index,
                });
            }
            events.push(NewEvent {
                event_id,
                channels: self.registry.routing_of(event.event_type.as_str()),
                event_type: event.event_type,
                schema_version: event.schema_version,
                payload: event.payload,
            });
        }
        let context = ChangeContext {
            occurred_at: now,
            causation_id: Some(CausationId::from(&command.command_id)),
            ..command.context.clone()
        };
        let mut append = Append {
            aggregate: command.aggregate.clone(),
            expected: Expected::after(version),
            snapshot: Some(Snapshot { data: decision.snapshot, version: decider.snapshot_version() }),
            deadline: DeadlineChange::default(),
            events,
            state_changes,
            context,
        };
        append.deadline = self.registry.deadline_change(decider, &append);
        append
    }

    /// Records a failure, in a transaction of its own, and gives back the error to answer. That it cannot be written
    /// must not hide why the command failed, so that is only logged.
    async fn record(
        &self,
        command: NewCommand,
        failure: Failure,
        started_at: DateTime<Utc>,
        expects_a_version: bool,
    ) -> Result<SendError, Taken> {
        let Failure { error, found, retry_count } = failure;
        let failed_at = self.clock.now();
        let decision = self.retries.decide(error.class(), retry_count + 1, random_unit());
        // What the sender expected of the version is not recorded, so nobody else may run it.
        let decision = Some(decision).filter(|_| !expects_a_version);
        let (retry_count, retry_at) = schedule(decision, retry_count, failed_at);
        let command_id = command.command_id.clone();
        let failed = FailedCommand {
            command,
            found,
            started_at,
            failed_at,
            reason: error.code().to_owned(),
            message: with_causes(&error),
            retry_count,
            next_retry_at: retry_at,
        };
        match self.store.fail_command(&failed).await {
            Ok(()) => {
                if let Some(meters) = self.meters.command(failed.command.command_type.as_str())
                    && retry_at.is_some()
                {
                    meters.retries.increment(1);
                }
                Ok(match error {
                    SendError::Store(source) => SendError::Failed { command_id, retry_at, source },
                    error => error,
                })
            }
            Err(StoreError::DuplicateCommand(_) | StoreError::CommandTaken(_)) => Err(Taken),
            Err(StoreError::Fenced { .. }) => Ok(SendError::StillProcessing(command_id)),
            Err(unrecorded) => {
                tracing::warn!(
                    %command_id,
                    code = unrecorded.code(),
                    cause = with_causes(&unrecorded),
                    "could not record a failed command"
                );
                Ok(if failed.found == Found::Nowhere { error } else { SendError::Store(unrecorded) })
            }
        }
    }
}

/// Somebody else has ended the command.
struct Taken;

/// Why an attempt led to nothing, and how the command was found.
struct Failure {
    error: SendError,
    found: Found,
    retry_count: u32,
}

/// Whether the store says that others were quicker: the command is decided anew.
fn is_lost_round(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::VersionConflict { .. }
            | StoreError::DuplicateCommand(_)
            | StoreError::CommandTaken(_)
            | StoreError::Contention(_)
    )
}

/// How a recorded command stands to one that is sent.
enum Recorded {
    /// It may be run.
    Run(Found),
    /// It has an answer.
    Answered(Receipt),
}

/// How a round ended without a receipt.
enum Attempt {
    /// This is the answer; nothing is to be recorded.
    Answer(SendError),
    /// Decided against, or the store got in the way.
    Failed(Failure),
}

pub(crate) enum FoldError {
    Store(StoreError),
    Decide(DecideError),
    Panicked,
}

/// Folds an aggregate's events, page by page, up to a version.
pub(crate) struct Folding<'d> {
    decider: &'d dyn Decider,
    up_to: Version,
    snapshot: Option<Payload>,
    state: Option<String>,
    folded: Version,
    is_over: bool,
}

impl<'d> Folding<'d> {
    pub(crate) fn of(decider: &'d dyn Decider, up_to: Version) -> Self {
        Self { decider, up_to, snapshot: None, state: None, folded: 0, is_over: false }
    }

    /// Behind which version the next page begins, if one is wanted.
    pub(crate) fn wants(&self) -> Option<Version> {
        (self.folded < self.up_to && !self.is_over).then_some(self.folded)
    }

    pub(crate) fn take(&mut self, page: &[RecordedEvent]) -> Result<(), FoldError> {
        let events: Vec<StoredEvent<'_>> = page
            .iter()
            .map(|event| &event.envelope)
            .filter(|event| event.aggregate_version <= self.up_to)
            .map(StoredEvent::from)
            .collect();
        self.is_over = events.is_empty();
        self.folded += events.len() as u64;
        let names: Vec<&str> = events.iter().map(|event| event.name).collect();
        self.state = self.decider.machine_state_after(self.state.take(), &names);
        self.snapshot = Some(fold(self.decider, self.snapshot.as_ref(), &events)?);
        Ok(())
    }

    /// Its state, and the state of its machine.
    pub(crate) fn finish(self) -> Result<(Payload, Option<String>), FoldError> {
        match self.snapshot {
            Some(snapshot) => Ok((snapshot, self.state)),
            None => fold(self.decider, None, &[]).map(|snapshot| (snapshot, self.state)),
        }
    }
}

fn fold(
    decider: &dyn Decider,
    state: Option<&Payload>,
    events: &[StoredEvent<'_>],
) -> Result<Payload, FoldError> {
    match catch_unwind(AssertUnwindSafe(|| decider.fold(state, events))) {
        Ok(folded) => folded.map_err(FoldError::Decide),
        Err(_) => Err(FoldError::Panicked),
    }
}

fn panicked(decider: &dyn Decider, command: &NewCommand) -> SendError {
    SendError::Panicked { kind: decider.kind().to_string(), command: command.command_type.to_string() }
}

/// Whether the row's state can be read by this build as it stands.
fn has_current_snapshot(decider: &dyn Decider, row: &AggregateRow) -> bool {
    row.snapshot.as_ref().is_some_and(|snapshot| snapshot.version == decider.snapshot_version())
}

fn decide(
    decider: &dyn Decider,
    current: &Current<'_>,
    command: &NewCommand,
    context: &Context,
) -> Result<Decision, SendError> {
    let name = command.command_type.as_str();
    // A bug in one aggregate must not take down the worker that runs the commands of all.
    let decided = catch_unwind(AssertUnwindSafe(|| decider.decide(current, name, &command.payload, context)));
    match decided {
        Ok(Ok(decision)) => Ok(decision),
        Ok(Err(error)) => Err(match error {
            DecideError::UnknownCommand { command, .. } => SendError::UnknownCommand(command),
            DecideError::InvalidPayload { command, source } => SendError::InvalidPayload { command, source },
            DecideError::Refused { code, class, message } => SendError::Refused { code, class, message },
            DecideError::IllegalTransition(illegal) => SendError::IllegalTransition(Box::new(illegal)),
            other => SendError::Undecidable { aggregate: command.aggregate.clone(), source: Box::new(other) },
        }),
        Err(_) => Err(panicked(decider, command)),
    }
}

fn receipt(
    command: NewCommand,
    result: CommandResult,
    events: Vec<EventEnvelope>,
    replayed: bool,
) -> Receipt {
    Receipt {
        command_id: command.command_id,
        status: CommandStatus::Completed,
        aggregate_version: result.aggregate_version,
        correlation_id: command.context.correlation_id,
        events,
        replayed,
    }
}

/// The events of an append as they stand in the store.
fn envelopes(append: Append, base: Version) -> Vec<EventEnvelope> {
    let Append { aggregate, events, context, .. } = append;
    (base + 1..)
        .zip(events)
        .map(|(aggregate_version, event)| EventEnvelope {
            event_id: event.event_id,
            event_type: event.event_type,
            schema_version: event.schema_version,
            aggregate: aggregate.clone(),
            aggregate_version,
            occurred_at: context.occurred_at,
            correlation_id: context.correlation_id.clone(),
            causation_id: context.causation_id.clone(),
            trace_id: context.trace_id.clone(),
            actor_id: context.actor_id.clone(),
            tenant_id: context.tenant_id.clone(),
            payload: event.payload,
        })
        .collect()
}

/// The retry count and the due time that follow from a retry decision.
fn schedule(
    decision: Option<RetryDecision>,
    retry_count: u32,
    now: DateTime<Utc>,
) -> (u32, Option<DateTime<Utc>>) {
    match decision {
        Some(RetryDecision::RetryAfter(delay)) => (retry_count + 1, Some(later(now, delay))),
        Some(RetryDecision::GiveUp(_)) | None => (retry_count, None),
    }
}

/// A short, growing, uneven pause: writers that collided should not collide again.
pub(crate) fn pause(round: u32) -> Duration {
    let ceiling = 1_u64 << round.min(6);
    Duration::from_micros((random_unit() * (ceiling * 500) as f64) as u64)
}

/// A number in 0..1. UUIDv4 is the source of randomness that is here anyway.
pub(crate) fn random_unit() -> f64 {
    (Uuid::new_v4().as_u128() >> 75) as f64 / (1_u64 << 53) as f64
}
