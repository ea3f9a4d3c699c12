//! Timers: commands that are sent when they are due.
//!
//! The service works under the instance's lease, as the command runner does. A due timer is claimed, its command is sent
//! under the id `timer/<timer id>`, and then the timer is ended. If this process dies in between, another one claims the
//! timer and sends the same command id again: it has one effect. A deadline of a machine's state is a timer like any
//! other, but its command is only run while the aggregate is still in that state since the same event.

use std::collections::HashMap;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use towpath_core::aggregate::Aggregate;
use towpath_core::envelope::{ChangeContext, EventEnvelope, to_stored_precision};
use towpath_core::ids::{AggregateKey, CausationId, CommandId, CorrelationId, EventId};
use towpath_core::lifecycle::TaskState;
use towpath_core::name::CommandName;
use towpath_core::payload::{InvalidPayload, Payload};
use towpath_core::ports::store::{
    CLAIMED_BYTES, LeaseGrant, NewCommand, NewTimer, StoreError, StoreResult, Timer, TimerOutcome,
};
use towpath_core::retry::{Coded as _, RetryDecision};
use towpath_core::time::{between, later};
use towpath_core::to_variant;
use uuid::Uuid;

use crate::bus::{Bus, Incoming, SendError, random_unit, with_causes};
use crate::committed::Committed;
use crate::leases::Held;
use crate::runner::Pace;
use crate::service::{Service, Stopping, Wake, rest};
use crate::towpath::Towpath;

/// How many timers are fired at a time. None is taken while those that fire have as many bytes as one claim may.
const BATCH: u32 = 32;

/// How long it rests at least: a timer that is due but held by somebody else's transaction must not be asked for
/// without end.
const LEAST_REST: Duration = Duration::from_millis(10);

/// When a timer looks again whose command somebody else is running.
const STILL_PROCESSING: Duration = Duration::from_secs(1);

/// When a timer looks again whose command the store did not take.
const STORE_AWAY: Duration = Duration::from_secs(5);

/// What the command id of a timer begins with; the timer's id follows.
const COMMAND_PREFIX: &str = "timer/";

/// Wakes the timers of this process when one is scheduled that is due before they look again. A deadline in a quarter of an
/// hour, scheduled with every second command, must not cost a look each.
#[derive(Clone)]
pub(crate) struct TimerWake {
    wake: Wake,
    /// When the next look is, in microseconds; the end of time while nobody rests.
    next_look: Arc<AtomicI64>,
}

impl Default for TimerWake {
    fn default() -> Self {
        Self { wake: Wake::default(), next_look: Arc::new(AtomicI64::new(i64::MAX)) }
    }
}

impl TimerWake {
    /// Wakes the service if a timer that was scheduled is due before it looks again.
    pub(crate) fn scheduled(&self, due_at: DateTime<Utc>) {
        if due_at.timestamp_micros() < self.next_look.load(Ordering::SeqCst) {
            self.wake.wake();
        }
    }

    /// Rests until the next look. What was scheduled after `now` was asked for has left its wake behind.
    async fn rest(&self, now: DateTime<Utc>, at_most: Duration, stopping: &mut Stopping) {
        self.next_look.store(later(now, at_most).timestamp_micros(), Ordering::SeqCst);
        let _up = Up(&self.next_look);
        rest(&self.wake, at_most, stopping).await;
    }
}

/// Forgets the next look when a rest ends, also one that is broken off.
struct Up<'a>(&'a AtomicI64);

impl Drop for Up<'_> {
    fn drop(&mut self) {
        self.0.store(i64::MAX, Ordering::SeqCst);
    }
}

/// Starts the service.
pub(crate) fn start(bus: Bus, held: watch::Receiver<Held>, pace: Pace) -> Service {
    Service::keep_running("timers", move |stopping| run(bus.clone(), held.clone(), pace, stopping))
}

/// A timer whose command was sent: how it ended, to be written under the grant it was claimed with.
struct Fired {
    grant: LeaseGrant,
    timer_id: Uuid,
    outcome: TimerOutcome,
}

/// Timers that were claimed and are not ended, and how many bytes their payloads have.
type Known = HashMap<(LeaseGrant, Uuid), u64>;

async fn run(bus: Bus, held: watch::Receiver<Held>, pace: Pace, mut stopping: Stopping) {
    let mut firing = JoinSet::new();
    // What could not be written yet: nobody else ends it while this instance's lease lives.
    let mut owed: Vec<Fired> = Vec::new();
    // What was claimed and is not ended.
    let mut known = Known::new();
    // Whether something may be claimed under the grant that is not known here: the answer to a claim was lost, or a task
    // has panicked.
    let mut unsure = true;
    while !stopping.is_asked() {
        while let Some(fired) = firing.try_join_next() {
            unsure |= !settle(fired, &mut owed);
        }
        let free = match known.values().sum::<u64>() >= CLAIMED_BYTES {
            true => 0,
            false => BATCH.saturating_sub(u32::try_from(firing.len()).unwrap_or(BATCH)),
        };
        let ended = end(&bus, &mut owed, &mut known).await;
        let grant = held.borrow().instance.clone();
        let taken = match (ended, grant) {
            (Ok(()), Some(grant)) if free > 0 => {
                let at_work = unsure.then(|| known.keys().filter(|(other, _)| *other == grant));
                let at_work = at_work.map(|ours| ours.map(|(_, id)| *id).collect());
                let taken = claim(&bus, grant, pace.lease, at_work, free).await;
                unsure = taken.is_err();
                taken
            }
            (Ok(()), _) => Ok(Vec::new()),
            (Err(error), _) => Err(error),
        };
        let at_most = match taken {
            Ok(timers) if !timers.is_empty() => {
                for (grant, timer) in timers {
                    let bytes = timer.timer.payload.as_text().len() as u64;
                    known.insert((grant.clone(), timer.timer.timer_id), bytes);
                    firing.spawn(fire(bus.clone(), grant, timer));
                }
                continue;
            }
            Ok(_) if free > 0 => None,
            // One that ends makes room.
            Ok(_) => Some(pace.scan),
            Err(error) => {
                tracing::warn!(
                    code = error.code(),
                    cause = with_causes(&error),
                    "could not look for due timers"
                );
                Some(pace.scan)
            }
        };
        let now = bus.clock.now();
        let at_most = match at_most {
            Some(at_most) => at_most,
            None => until_next(&bus, now, pace.scan).await,
        };
        tokio::select! {
            Some(fired) = firing.join_next() => unsure |= !settle(fired, &mut owed),
            () = bus.wakes.timers.rest(now, at_most, &mut stopping) => {}
        }
    }
    while let Some(fired) = firing.join_next().await {
        settle(fired, &mut owed);
    }
    if let Err(error) = end(&bus, &mut owed, &mut known).await {
        tracing::warn!(code = error.code(), "could not end timers; another instance will");
    }
}

/// Takes note of how a timer ended; answers whether that is known.
fn settle(fired: Result<Fired, JoinError>, owed: &mut Vec<Fired>) -> bool {
    match fired {
        Ok(fired) => {
            owed.push(fired);
            true
        }
        Err(error) => {
            tracing::error!(%error, "the task around a timer panicked");
            false
        }
    }
}

/// Takes timers that are due. With `at_work`, lets those wait again first that this instance has claimed and is not at work
/// on.
async fn claim(
    bus: &Bus,
    grant: LeaseGrant,
    lease: Duration,
    at_work: Option<Vec<Uuid>>,
    limit: u32,
) -> StoreResult<Vec<(LeaseGrant, Timer)>> {
    // As the command runner does: what is claimed under a lease that has run out would be taken away at once.
    bus.store.renew_lease(&grant, lease).await?;
    if let Some(at_work) = at_work {
        let returned = bus.store.return_unseen_timers(&grant, &at_work, bus.clock.now()).await?;
        if returned > 0 {
            tracing::info!(returned, "let timers wait again whose claim was lost");
        }
    }
    let types = bus.registry.command_types();
    let timers = bus.store.claim_timers(&grant, &types, bus.clock.now(), limit).await?;
    Ok(timers.into_iter().map(|timer| (grant.clone(), timer)).collect())
}

/// How long until the next timer is due, but no longer than until the next look.
async fn until_next(bus: &Bus, now: DateTime<Utc>, scan: Duration) -> Duration {
    let types = bus.registry.command_types();
    // What cannot be asked now is asked at the next look.
    let waiting = bus.store.waiting_timers(Some(&types), 1).await.unwrap_or_default();
    let until_due = |timer: &Timer| between(now, timer.timer.due_at);
    waiting.first().map_or(scan, until_due).clamp(LEAST_REST.min(scan), scan)
}

/// The command that a timer sends.
pub(crate) fn command_of_timer(timer_id: Uuid) -> CommandId {
    CommandId::from_stored(format!("{COMMAND_PREFIX}{timer_id}"))
}

/// The event that entered the state whose deadline a recorded command is: a deadline that failed for a passing reason
/// waits in the command box, and when it is run from there it must still be one. Its timer tells. One that was called off
/// meanwhile is answered as if its own id were that event: nothing was entered by it, and so it is not waited for.
pub(crate) async fn deadline_of(bus: &Bus, command_id: &CommandId) -> StoreResult<Option<EventId>> {
    let timer_id = command_id.as_str().strip_prefix(COMMAND_PREFIX).and_then(|id| id.parse().ok());
    match timer_id {
        Some(timer_id) => Ok(bus.store.timer(timer_id).await?.and_then(|timer| match timer.state {
            TaskState::Canceled => Some(EventId(timer_id)),
            _ => timer.timer.entered_by,
        })),
        None => Ok(None),
    }
}

/// Sends the command of a timer.
async fn fire(bus: Bus, grant: LeaseGrant, timer: Timer) -> Fired {
    let timer_id = timer.timer.timer_id;
    let still_in = timer.timer.entered_by;
    let NewTimer { command_type, aggregate, payload, correlation_id, causation_id, .. } = timer.timer;
    let context = ChangeContext { causation_id, ..ChangeContext::new(bus.clock.now(), correlation_id) };
    let command_id = command_of_timer(timer_id);
    let command = NewCommand { command_id, command_type, aggregate, payload, context };
    let panicked = SendError::Panicked {
        kind: command.aggregate.kind.to_string(),
        command: command.command_type.to_string(),
    };
    let incoming = Incoming { command, expected_version: None, claim: None, still_in, fence: None };
    // In a task of its own: `decide` and `evolve` are guarded, so a panic is a bug of ours, and it must not keep the timer
    // running for as long as this instance lives.
    let running = tokio::spawn({
        let bus = bus.clone();
        async move { bus.run(incoming).await }
    });
    let outcome = match running.await.unwrap_or(Err(panicked)) {
        Ok(_) => TimerOutcome::Succeeded,
        Err(error @ SendError::NoLongerWaiting(_)) => {
            TimerOutcome::Skipped { reason: error.code().to_owned() }
        }
        Err(error) => failed(&bus, timer_id, timer.retry_count, &error),
    };
    Fired { grant, timer_id, outcome }
}

/// After how long a timer is looked at again whose command could not be sent, because it is being run, the store is away or
/// this process stops. That says nothing of the command, so it uses up no attempt.
fn postponed(error: &SendError) -> Option<Duration> {
    match error {
        // It is recorded and being run: the timer only waits for how it ends.
        SendError::StillProcessing(_) => Some(STILL_PROCESSING),
        SendError::Stopped => Some(STORE_AWAY),
        SendError::Store(source) if source.class().is_retryable() => Some(STORE_AWAY),
        _ => None,
    }
}

/// What a command that has no receipt means for its timer: its class decides whether it is sent again.
fn failed(bus: &Bus, timer_id: Uuid, retry_count: u32, error: &SendError) -> TimerOutcome {
    let (error_code, error_message) = (error.code().to_owned(), with_causes(error));
    if let Some(delay) = postponed(error) {
        tracing::warn!(%timer_id, code = error.code(), "a timer's command could not be sent; trying again");
        let until = later(bus.clock.now(), delay);
        return TimerOutcome::Postponed { error_code, error_message, until };
    }
    let retry_at = match bus.retries.decide(error.class(), retry_count + 1, random_unit()) {
        RetryDecision::RetryAfter(delay) => Some(later(bus.clock.now(), delay)),
        RetryDecision::GiveUp(_) => None,
    };
    match retry_at {
        Some(_) => tracing::warn!(%timer_id, code = error.code(), "a timer's command failed; trying again"),
        None => tracing::error!(%timer_id, code = error.code(), cause = error_message, "a timer failed"),
    }
    TimerOutcome::Failed { error_code, error_message, retry_at }
}

/// Writes how timers ended. What was taken over meanwhile is for its new holder to end.
async fn end(bus: &Bus, owed: &mut Vec<Fired>, known: &mut Known) -> StoreResult<()> {
    while let Some(Fired { grant, timer_id, outcome }) = owed.last() {
        match bus.store.finish_timer(grant, *timer_id, outcome, bus.clock.now()).await {
            Ok(()) => {}
            Err(StoreError::Fenced { .. }) => tracing::info!(%timer_id, "a timer was taken over"),
            Err(error) => return Err(error),
        }
        known.remove(&(grant.clone(), *timer_id));
        owed.pop();
    }
    Ok(())
}

/// A timer about to be scheduled. Await it for its id.
///
/// # Guarantees
/// Once this has answered, the command is sent when it is due, by some instance that knows it, and has one effect.
///
/// # Caveats
/// To schedule a timer together with changes of the application's own, use [`Tx::schedule`](crate::Tx::schedule).
#[must_use = "a timer is scheduled when it is awaited"]
pub struct Schedule<'a> {
    app: &'a Towpath,
    command_type: String,
    aggregate_kind: Option<String>,
    aggregate_id: String,
    payload: Result<Payload, InvalidPayload>,
    timer_id: Option<Uuid>,
    due_at: DateTime<Utc>,
    correlation_id: Option<String>,
    causation_id: Option<String>,
}

impl Schedule<'_> {
    /// When it is due. What is past is due at once.
    pub fn at(mut self, due_at: DateTime<Utc>) -> Self {
        self.due_at = due_at.max(DateTime::UNIX_EPOCH).min(later(due_at, Duration::MAX));
        self
    }

    /// How much later than now it is due.
    pub fn after(mut self, delay: Duration) -> Self {
        self.due_at = later(self.app.bus.clock.now(), delay);
        self
    }

    /// The identity of the timer, chosen by the caller.
    pub fn identified(mut self, timer_id: Uuid) -> Self {
        self.timer_id = Some(timer_id);
        self
    }

    /// The fact that this timer follows from: its command joins that fact's flow.
    pub fn because_of(mut self, event: &EventEnvelope) -> Self {
        self.correlation_id = Some(event.correlation_id.to_string());
        self.causation_id = Some(event.event_id.to_string());
        self
    }

    /// The flow to join, for callers that bring their own id.
    pub fn in_flow(mut self, correlation_id: impl Into<String>) -> Self {
        self.correlation_id = Some(correlation_id.into());
        self
    }

    /// What caused it, for callers that bring their own id.
    pub fn caused_by(mut self, causation_id: impl Into<String>) -> Self {
        self.causation_id = Some(causation_id.into());
        self
    }

    /// The timer as it is scheduled, for [`Tx::schedule`](crate::Tx::schedule).
    pub fn timer(self) -> Result<NewTimer, SendError> {
        let bus = &self.app.bus;
        let Some(decider) = bus.registry.decider_of_command(&self.command_type) else {
            return Err(SendError::UnknownCommand(self.command_type));
        };
        let kind = self.aggregate_kind.unwrap_or_else(|| decider.kind().to_string());
        let payload = self
            .payload
            .map_err(|source| SendError::InvalidPayload { command: self.command_type.clone(), source })?;
        Ok(NewTimer {
            timer_id: self.timer_id.unwrap_or_else(Uuid::now_v7),
            due_at: to_stored_precision(self.due_at),
            command_type: CommandName::from_stored(&self.command_type),
            aggregate: AggregateKey::new(kind, self.aggregate_id)?,
            payload,
            correlation_id: match self.correlation_id {
                Some(text) => CorrelationId::new(text)?,
                None => CorrelationId::of_new_flow(Uuid::now_v7()),
            },
            causation_id: self.causation_id.map(CausationId::new).transpose()?,
            entered_by: None,
            created_at: to_stored_precision(bus.clock.now()),
        })
    }
}

impl<'a> IntoFuture for Schedule<'a> {
    type Output = Result<Uuid, SendError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            crate::transact::refuse_inside().map_err(SendError::Store)?;
            let bus = &self.app.bus;
            let timer = self.timer()?;
            let scheduled = async {
                let mut tx = bus.store.begin().await?;
                tx.schedule(&timer).await?;
                tx.commit().await
            };
            scheduled.await.map_err(SendError::Store)?;
            bus.committed(&Committed::timer(timer.due_at));
            Ok(timer.timer_id)
        })
    }
}

impl Towpath {
    /// Schedules a command for an aggregate: due now, unless [`Schedule::at`] or [`Schedule::after`] say when. Nothing
    /// happens until it is awaited.
    pub fn timer<A: Aggregate>(&self, aggregate_id: impl Into<String>, command: A::Command) -> Schedule<'_> {
        let (command_type, payload) = match to_variant(&command) {
            Ok((name, payload)) => (name, Ok(payload)),
            Err(error) => (String::new(), Err(error)),
        };
        self.schedule(command_type, Some(A::KIND.to_owned()), aggregate_id.into(), payload)
    }

    /// Schedules a command by its stored name, with its payload as JSON text.
    pub fn timer_named(
        &self,
        command_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        payload: impl Into<String>,
    ) -> Schedule<'_> {
        self.schedule(command_type.into(), None, aggregate_id.into(), Payload::from_text(payload))
    }

    fn schedule(
        &self,
        command_type: String,
        aggregate_kind: Option<String>,
        aggregate_id: String,
        payload: Result<Payload, InvalidPayload>,
    ) -> Schedule<'_> {
        Schedule {
            app: self,
            command_type,
            aggregate_kind,
            aggregate_id,
            payload,
            timer_id: None,
            due_at: self.bus.clock.now(),
            correlation_id: None,
            causation_id: None,
        }
    }

    /// Cancels a timer that has not begun; answers whether it did.
    pub async fn cancel_timer(&self, timer_id: Uuid) -> Result<bool, StoreError> {
        crate::transact::refuse_inside()?;
        let mut tx = self.bus.store.begin().await?;
        let canceled = tx.cancel(timer_id, self.bus.clock.now()).await?;
        tx.commit().await?;
        Ok(canceled)
    }

    /// A timer and where it is.
    pub async fn find_timer(&self, timer_id: Uuid) -> Result<Option<Timer>, StoreError> {
        self.bus.store.timer(timer_id).await
    }

    /// The timers that wait for their moment, the next one first.
    pub async fn waiting_timers(&self, limit: u32) -> Result<Vec<Timer>, StoreError> {
        self.bus.store.waiting_timers(None, limit).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_timer_that_is_due_before_the_next_look_wakes_the_service() {
        let timers = TimerWake::default();
        let now = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
        let (soon, late) = (later(now, Duration::from_secs(1)), later(now, Duration::from_secs(3600)));
        let (told, mut rested) = tokio::sync::mpsc::unbounded_channel();
        let service = Service::start("test", {
            let timers = timers.clone();
            |mut stopping| async move {
                while !stopping.is_asked() {
                    timers.rest(now, Duration::from_secs(600), &mut stopping).await;
                    let _ = told.send(());
                }
            }
        });
        while timers.next_look.load(Ordering::SeqCst) == i64::MAX {
            tokio::task::yield_now().await;
        }
        timers.scheduled(late);
        tokio::task::yield_now().await;
        assert!(rested.try_recv().is_err(), "it looks before that anyway");
        timers.scheduled(soon);
        rested.recv().await.unwrap();
        drop(service);
    }

    #[test]
    fn a_store_that_is_away_uses_up_no_attempt_of_a_timer() {
        use towpath_core::retry::ErrorClass;

        let of_store = [StoreError::Unavailable("gone".into()), StoreError::Full("the disk".into())];
        let of_nobody = of_store.into_iter().map(SendError::Store).chain([SendError::Stopped]);
        for error in of_nobody {
            assert_eq!(postponed(&error), Some(STORE_AWAY), "{error}");
        }
        let of_its_own =
            SendError::Refused { code: "not-now", class: ErrorClass::Transient, message: "no".into() };
        assert_eq!(postponed(&of_its_own), None, "the aggregate has spoken");
    }
}
