//! Keeps what workers work under: says that they live, and writes how their attempts ended, together where they ended together.
//!
//! It is stopped after them, and gives back what has not ended by then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;
use towpath_core::ids::TaskId;
use towpath_core::ports::store::{StoreError, StoreTx as _, TaskEnd, TaskEnding};
use towpath_core::retry::{Coded as _, ErrorClass};

use super::engine::{Ended, Engine, Stop, failed};
use super::facts;
use crate::committed::Committed;
use crate::metrics::table;
use crate::service::{self, Backoff, Service, Stopping, Wake, rest};

/// How many ends whose facts are written become true together.
const TOGETHER: usize = 32;

/// How long attempts that are stopped have to say so. Who waits for something does so at once.
const STOPPING: Duration = Duration::from_millis(500);

/// After how long a worker says again that it lives, whose task somebody has locked.
pub(super) const WHILE_LOCKED: Duration = Duration::from_millis(200);

/// How many are written at once by who stops.
const AT_ONCE: usize = 4;

/// What an attempt comes to, as metrics have it.
const OUTCOMES: [&str; 8] =
    ["succeeded", "skipped", "canceled", "failed", "timeout", "retried", "given-back", "lost"];

/// Starts to keep tasks.
pub(crate) fn keep(engine: Arc<Engine>) -> Service {
    // Each is there before there is any, as all counters are.
    for (task_type, outcome) in engine.types().flat_map(|name| OUTCOMES.map(|outcome| (name, outcome))) {
        table::TASK_ATTEMPTS.counter(&[task_type, outcome]).increment(0);
    }
    Service::keep_running("task-keeper", move |stopping| run(Arc::clone(&engine), stopping))
}

async fn run(engine: Arc<Engine>, stopping: Stopping) {
    // Neither waits for the other: a task that somebody has locked is waited for for seconds.
    tokio::join!(say_that_workers_live(&engine, stopping.clone()), write_ends(&engine, stopping));
    engine.give_back().await;
}

async fn say_that_workers_live(engine: &Engine, mut stopping: Stopping) {
    let (mut last, mut is_heard) = (Instant::now(), true);
    while !stopping.is_asked() {
        let every = engine.beat_every();
        let next = last + if is_heard { every } else { every.min(WHILE_LOCKED) };
        tokio::select! {
            () = stopping.asked() => return,
            // How often may be another by now.
            () = engine.beats_sooner.woken() => continue,
            // A heartbeat is answered with what is to be called off.
            () = engine.app.bus.wakes.task_cancels.woken() => {}
            () = tokio::time::sleep_until(next) => {}
        }
        last = Instant::now();
        is_heard = engine.beat().await.unwrap_or_else(|error| {
            failed("could not say that workers live", &error);
            true
        });
    }
}

async fn write_ends(engine: &Engine, mut stopping: Stopping) {
    let mut backoff = Backoff::default();
    while !stopping.is_asked() {
        match engine.write().await {
            Ok(()) => {
                backoff.reset();
                tokio::select! {
                    () = stopping.asked() => return,
                    () = engine.has_ended.woken() => {}
                }
            }
            Err(error) => {
                failed("could not write how tasks ended; trying again", &error);
                rest(&Wake::default(), backoff.next(), &mut stopping).await;
            }
        }
    }
}

impl Engine {
    /// Says that all workers live. Answers whether all were heard: somebody may have locked a task.
    pub(super) async fn beat(&self) -> Result<bool, StoreError> {
        let claims = self.claims();
        if claims.is_empty() {
            return Ok(true);
        }
        let beats = self.ask(self.app.store().beat_tasks(&claims)).await?;
        for claim in claims {
            if beats.canceling.contains(&claim.task_id) {
                self.stop(claim, Stop::Canceled);
            }
            if beats.lost.contains(&claim.task_id) {
                // Its end may just have been written.
                tracing::debug!(task_id = %claim.task_id, "a task is not ours any more");
                self.stop(claim, Stop::Lost);
                self.forget(claim);
            }
        }
        Ok(beats.locked.is_empty())
    }

    /// Writes all ends that there are. What cannot be written with others is written alone, behind them: one task that somebody has
    /// locked does not keep all from ending.
    async fn write(&self) -> Result<(), StoreError> {
        let ended = self.ended().clone();
        let has_facts = |ended: &Arc<Ended>| self.has_more_to_say(ended);
        let is_alone = |ended: &Arc<Ended>| ended.is_alone.load(Ordering::Relaxed);
        let (mut alone, ended): (Vec<_>, Vec<_>) = ended.into_iter().partition(is_alone);
        let (with_facts, plain): (Vec<_>, Vec<_>) = ended.into_iter().partition(has_facts);
        let mut outcome = Ok(());
        let plain = [plain];
        let pages = plain.iter().map(|plain| (plain.as_slice(), false));
        for (page, has_facts) in pages.chain(with_facts.chunks(TOGETHER).map(|page| (page, true))) {
            let written = match has_facts {
                true => self.write_with_facts(page).await,
                false => self.write_plain(page).await,
            };
            match written {
                Ok(lost) => self.written(page, &lost),
                Err(error) => {
                    let is_locked = matches!(error, StoreError::Contention(_));
                    if is_locked {
                        page.iter().for_each(|one| one.is_alone.store(true, Ordering::Relaxed));
                    }
                    match is_passing(&error) && (!is_locked || page.len() == 1) {
                        true => outcome = Err(error),
                        // One of them cannot be written: the others can.
                        false => alone.extend_from_slice(page),
                    }
                }
            }
        }
        for one in &alone {
            if let Err(error) = self.write_alone(one, has_facts(one)).await {
                // Those behind it come before it the next time, and so does what ends meanwhile.
                self.put_last(one);
                return Err(error);
            }
        }
        outcome
    }

    /// Whether more is written than its end: a fact, or that it is called off instead of being given back.
    fn has_more_to_say(&self, ended: &Ended) -> bool {
        ended.end == TaskEnd::GivenBack || self.declared(&ended.task).is_some_and(|of| of.has_facts())
    }

    async fn write_plain(&self, ended: &[Arc<Ended>]) -> Result<Vec<TaskId>, StoreError> {
        let endings: Vec<_> = ended.iter().map(|ended| ending(ended)).collect();
        if endings.is_empty() { Ok(Vec::new()) } else { self.app.store().end_tasks(&endings).await }
    }

    /// Ends tasks together with the facts that they ended.
    async fn write_with_facts(&self, ended: &[Arc<Ended>]) -> Result<Vec<TaskId>, StoreError> {
        let bus = &self.app.bus;
        let mut transaction = self.app.store().open_transaction().await?;
        let claims: Vec<_> = ended.iter().map(|ended| ended.task.claim()).collect();
        let held = transaction.hold_tasks(&claims).await?;
        let (mut endings, mut committed) = (Vec::with_capacity(ended.len()), Committed::default());
        for one in ended {
            let mut ending = ending(one);
            let held = held.iter().find(|held| held.task_id == one.task.task.task_id);
            if let (Some(held), Some(of)) = (held, self.declared(&one.task)) {
                // What was done is done; what would be tried again is not.
                if held.is_canceling
                    && matches!(
                        ending.end,
                        TaskEnd::Failed { .. } | TaskEnd::TimedOut { .. } | TaskEnd::GivenBack
                    )
                {
                    ending.end = TaskEnd::Canceled;
                }
                let reason = held.reason.as_deref();
                if let Some(append) = facts::ended(of, (&one.task, reason), &ending.end, bus.clock.now())? {
                    let (_, written) = transaction.append_by(bus.registry.as_ref(), &append).await?;
                    committed.and(Committed::of(&written, &bus.registry));
                }
            }
            endings.push(ending);
        }
        let lost = transaction.end_tasks(&endings).await?;
        transaction.finish().await?;
        bus.committed(&committed);
        Ok(lost)
    }

    /// Ends one task; or, if that cannot be written, as one that failed: with that fact, or if nothing else can be written without.
    async fn write_alone(&self, one: &Arc<Ended>, has_facts: bool) -> Result<(), StoreError> {
        let write = async |one: &Arc<Ended>, has_facts: bool| match has_facts {
            true => self.write_with_facts(std::slice::from_ref(one)).await,
            false => self.write_plain(std::slice::from_ref(one)).await,
        };
        let mut lost = write(one, has_facts).await;
        for has_facts in [has_facts, false] {
            let Err(error) = &lost else { break };
            if is_passing(error) {
                break;
            }
            failed("how a task ended cannot be written; it has failed", error);
            let end = TaskEnd::Failed {
                error_code: error.code().to_owned(),
                error_message: crate::bus::with_causes(error),
                retry_after: None,
            };
            lost = write(&Arc::new(Ended::new(one.task.clone(), end)), has_facts).await;
        }
        self.written(std::slice::from_ref(one), &lost?);
        Ok(())
    }

    fn written(&self, ended: &[Arc<Ended>], lost: &[TaskId]) {
        for one in ended {
            self.forget(one.task.claim());
            let (task_id, task_type) = (one.task.task.task_id, one.task.task.task_type.as_str());
            let is_lost = lost.contains(&task_id);
            let outcome = if is_lost { "lost" } else { outcome_of(&one.end) };
            table::TASK_ATTEMPTS.counter(&[task_type, outcome]).increment(1);
            if is_lost {
                tracing::warn!(%task_id, task_type, "a task was taken over; what came of it here counts for nothing");
            }
        }
        self.has_written();
        let is_given_back = |one: &Arc<Ended>| one.end == TaskEnd::GivenBack;
        if ended.iter().any(is_given_back) {
            self.app.bus.wakes.told.wake();
        }
        if ended.iter().any(|one| !one.end.is_final() && !is_given_back(one)) {
            self.app.bus.wakes.task_times.wake();
        }
    }

    /// Gives back what has not ended, and writes what has: until nothing is left, or the keeper's time is over.
    async fn give_back(&self) {
        for claim in self.claims() {
            self.stop(claim, Stop::GivenBack);
        }
        // Who was stopped while it took tasks has not heard which.
        if let Err(error) = self.return_unseen().await {
            failed("could not give back what was taken last; others take it over", &error);
        }
        if tokio::time::timeout(STOPPING, self.write_the_rest()).await.is_ok() {
            return;
        }
        let rest = async { tokio::join!(self.write_the_rest(), self.give_back_deaf()) };
        if tokio::time::timeout(service::STOPPING, rest).await.is_err() {
            tracing::warn!("could not give all tasks back; others take them over");
        }
    }

    /// Each end alone, and some at a time: there may be no time to wait for a task that somebody has locked.
    async fn write_the_rest(&self) {
        let mut backoff = Backoff::default();
        loop {
            let ended = self.ended().clone();
            let is_wrong = AtomicBool::new(false);
            let writing = stream::iter(&ended).for_each_concurrent(AT_ONCE, async |one| {
                if let Err(error) = self.write_alone(one, self.has_more_to_say(one)).await {
                    failed("could not write how a task ended; trying again", &error);
                    is_wrong.store(true, Ordering::Relaxed);
                }
            });
            writing.await;
            if self.claims().is_empty() && self.ended().is_empty() {
                return;
            }
            match is_wrong.into_inner() {
                true => tokio::time::sleep(backoff.next_within(STOPPING)).await,
                false => self.has_ended.woken().await,
            }
        }
    }

    /// Gives back what attempts have that do not hear that they are stopped: they cannot answer any more.
    async fn give_back_deaf(&self) {
        let giving = stream::iter(self.unended()).for_each_concurrent(AT_ONCE, async |task| {
            let (ended, mut backoff) = (Arc::new(Ended::new(task, TaskEnd::GivenBack)), Backoff::default());
            while let Err(error) = self.write_alone(&ended, true).await {
                failed("could not give a task back; trying again", &error);
                tokio::time::sleep(backoff.next_within(STOPPING)).await;
            }
        });
        giving.await;
        self.has_ended.wake();
    }
}

fn ending(ended: &Ended) -> TaskEnding {
    TaskEnding { claim: ended.task.claim(), end: ended.end.clone() }
}

/// An end as metrics have it.
fn outcome_of(end: &TaskEnd) -> &'static str {
    match end {
        TaskEnd::Succeeded { .. } => "succeeded",
        TaskEnd::Skipped { .. } => "skipped",
        TaskEnd::Canceled => "canceled",
        TaskEnd::Failed { retry_after: None, .. } => "failed",
        TaskEnd::TimedOut { retry_after: None, .. } => "timeout",
        TaskEnd::Failed { .. } | TaskEnd::TimedOut { .. } => "retried",
        TaskEnd::GivenBack => "given-back",
    }
}

/// Only what it says can keep an end from being written for good. A database that is away, full or not ready takes it later; an answer is
/// not given up for that.
fn is_passing(error: &StoreError) -> bool {
    match error {
        // Who is not let in has not been heard; a statement that is refused is so for what it carries.
        StoreError::Refused { statement, .. } => *statement == "connect",
        error => !matches!(error.class(), ErrorClass::InvalidPayload | ErrorClass::Validation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_given_up_for_what_it_says_and_for_nothing_else() {
        let refused = |statement| StoreError::Refused { statement, source: "no".into() };
        for passes in [
            refused("connect"),
            StoreError::Unavailable("away".into()),
            StoreError::NotMigrated { found: 0, needed: 1 },
            StoreError::TransactionLost("gone".to_owned()),
        ] {
            assert!(is_passing(&passes), "{passes:?}");
        }
        let invalid = StoreError::InvalidChange { code: "invalid-payload", source: "no".into() };
        for stays in [refused("tasks.end"), invalid, StoreError::Unstorable("a NUL".into())] {
            assert!(!is_passing(&stays), "{stays:?}");
        }
    }
}
