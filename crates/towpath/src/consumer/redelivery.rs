//! Brings back deliveries that were set aside, when they are due.
//!
//! A letter is taken before the handler's transaction and held beyond it, until what became of the attempt is written down:
//! in between nobody else may take it, or it would be tried again too early and counted twice. A process that dies leaves
//! the letter held for as long as others wait for a silent instance. A handler that takes longer than that outlives the hold:
//! this process knows what it is at and passes it over; another one that is quicker to take it than this one to hold it on
//! finds an attempt that was begun, and counts that.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use towpath_core::letters::{Letter, SetAside};
use towpath_core::ports::store::{StoreError, StoreTx as _};
use towpath_core::retry::Coded as _;
use towpath_core::time::{between, later};

use super::DeadTo;
use super::engine::{Attempt, GIVES_WAY_AT_MOST, Job, Trying, lane_of, way_clear};
use super::failing::{Failure, NOT_ENDED};
use super::letters::republish;
use super::reading::{Identity, Readable};
use crate::bus::with_causes;
use crate::service::{Backoff, Stopping, rest};

/// How long to rest at most: other instances and operators set letters aside too.
const LOOK: Duration = Duration::from_secs(1);

/// How often to look for letters that wait behind one that is through: who was to let them go on may have died.
const LOOK_BEHIND: Duration = Duration::from_secs(5);

/// How long to wait between two pages of such a look.
const NEXT_PAGE: Duration = Duration::from_secs(1);

/// What a round did.
enum Round {
    /// A letter was taken; there may be more.
    Worked,
    /// Nothing is due before then.
    Nothing(Duration),
}

/// A letter that this process is at, until it is dropped.
struct InHand<'j> {
    job: &'j Job,
    letter_id: u64,
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.job.in_hand.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.letter_id);
    }
}

/// One of several at a time. Of one aggregate, one letter at most is due.
pub(super) async fn redeliver(job: Arc<Job>, mut stopping: Stopping) {
    let mut backoff = Backoff::default();
    while !stopping.is_asked() {
        let pause = match job.redeliver_one(&mut stopping).await {
            Ok(Round::Worked) => {
                backoff.reset();
                continue;
            }
            Ok(Round::Nothing(pause)) => pause,
            Err(error) => {
                tracing::warn!(
                    queue = job.queue, consumer = %job.handler,
                    code = error.code(),
                    cause = with_causes(&error),
                    "could not look for deliveries that were set aside"
                );
                backoff.next_within(job.running.patience)
            }
        };
        rest(&job.aside, pause, &mut stopping).await;
    }
}

impl Job {
    /// Lets letters go on that wait behind nothing: in the lanes where this process has set one behind, and, in turns, in all.
    async fn look_behind(&self, now: DateTime<Utc>) -> Result<(), StoreError> {
        let lanes = std::mem::take(&mut *self.set_behind.lock().unwrap_or_else(PoisonError::into_inner));
        if !lanes.is_empty() {
            let known: Vec<_> = lanes.iter().copied().collect();
            if let Err(error) = self.running.store.advance_lanes(&self.handler, &known, now).await {
                self.set_behind.lock().unwrap_or_else(PoisonError::into_inner).extend(lanes);
                return Err(error);
            }
        }
        let after = {
            let mut look = self.look_behind.lock().unwrap_or_else(PoisonError::into_inner);
            if Instant::now() < look.at {
                return Ok(());
            }
            look.at = Instant::now() + LOOK_BEHIND;
            look.after
        };
        let after = self.running.store.advance_letters(&self.handler, after, now).await?;
        let mut look = self.look_behind.lock().unwrap_or_else(PoisonError::into_inner);
        if after.is_some() {
            look.at = Instant::now() + NEXT_PAGE;
        }
        look.after = after;
        Ok(())
    }

    /// The letters that this process is at although it holds them no longer.
    fn in_hand_beyond(&self, now: DateTime<Utc>) -> Vec<u64> {
        let in_hand = self.in_hand.lock().unwrap_or_else(PoisonError::into_inner);
        in_hand.iter().filter(|(_, until)| **until <= now).map(|(letter_id, _)| *letter_id).collect()
    }

    fn take_in_hand(&self, letter_id: u64, until: DateTime<Utc>) -> InHand<'_> {
        self.in_hand.lock().unwrap_or_else(PoisonError::into_inner).insert(letter_id, until);
        InHand { job: self, letter_id }
    }

    /// Holds a letter on whose handler has taken long, so that others leave it alone until what became of it is written
    /// down. Answers whether it was still held.
    async fn hold_on(&self, letter: &mut Letter) -> Result<bool, StoreError> {
        let (now, lease) = (self.running.bus.clock.now(), self.running.lease);
        if letter.due_at.is_some_and(|until| later(now, lease / 2) < until) {
            return Ok(true);
        }
        let until = later(now, lease);
        let held = self.running.store.release_letter(letter, until).await?;
        letter.due_at = Some(until);
        Ok(held)
    }

    async fn redeliver_one(&self, stopping: &mut Stopping) -> Result<Round, StoreError> {
        let now = self.running.bus.clock.now();
        self.look_behind(now).await?;
        match self.running.store.next_letter_due(&self.handler).await? {
            None => return Ok(Round::Nothing(LOOK)),
            Some(due_at) if due_at > now => {
                return Ok(Round::Nothing(between(now, due_at).min(LOOK)));
            }
            Some(_) => {}
        }
        let (until, in_hand) = (later(now, self.running.lease), self.in_hand_beyond(now));
        // Somebody else may have it: then there is nothing to do here for a moment.
        let Some(mut letter) = self.running.store.take_letter(&self.handler, &in_hand, now, until).await?
        else {
            return Ok(Round::Nothing(LOOK.min(Duration::from_millis(100))));
        };
        let _in_hand = self.take_in_hand(letter.letter_id, until);
        // What is given up must be given up to the broker, and that is only possible for what is in its hands.
        if self.consumer.policy.dead == DeadTo::Broker {
            return self.hand_back(&letter).await;
        }
        let readable = match self.read(&letter.letter.message) {
            Ok(readable) if self.consumer.identity == Identity::Append => {
                Readable { id: self.append_of(readable.id).await?, ..readable }
            }
            Ok(readable) => readable,
            Err(error) => {
                // It was edited into something that is no event.
                let aside = SetAside {
                    letter_id: Some(letter.letter_id),
                    held_until: letter.due_at,
                    letter: letter.letter.clone(),
                    due_at: None,
                    reason: error.code().to_owned(),
                    message: with_causes(&error),
                    retry_count: letter.retry_count + 1,
                    now,
                };
                self.running.store.set_aside(&aside).await?;
                return Ok(Round::Worked);
            }
        };
        // What has perhaps ended a process runs alone, and is not held while it waits for its turn.
        let alone = match letter.status_reason.as_deref() {
            Some(NOT_ENDED) => match self.running.alone.try_lock() {
                Ok(alone) => Some(alone),
                Err(_) => {
                    self.running.store.release_letter(&letter, now + LOOK).await?;
                    return Ok(Round::Worked);
                }
            },
            _ => None,
        };
        let ended = self.try_letter(&mut letter, &readable, stopping).await;
        drop(alone);
        if !matches!(ended, Ok(true)) {
            // At once again, once the store is there, or by whoever is there when this process is not.
            self.let_go_of(&[readable.id]).await;
            self.running.store.release_letter(&letter, self.running.bus.clock.now()).await?;
        }
        ended.map(|_| Round::Worked)
    }

    /// Runs the handler on a letter that is held; `false` when it is to be tried again at once.
    async fn try_letter(
        &self,
        letter: &mut Letter,
        readable: &Readable,
        stopping: &mut Stopping,
    ) -> Result<bool, StoreError> {
        // What is held on changes the letter, so the message is looked at beside it.
        let received = &letter.letter.message.clone();
        let Readable { id, event } = readable;
        let lane = lane_of(received, event);
        let trying = || Trying { id: *id, event: event.clone(), received, lane, begun: true };
        let mut gave_way = 0;
        let failure = loop {
            // Its letter is this one.
            let before = self.begin_with(&[*id], false).await?;
            if !before.unfinished.is_empty() {
                break Failure::not_ended();
            }
            let mut open = self.open(None).await?;
            if !open.sql.holds_letter(letter).await? {
                drop(open);
                self.let_go_of(&[*id]).await;
                return Ok(true);
            }
            match self.attempt_events(vec![trying()], Some(letter), open).await {
                // A letter does not wait behind itself.
                Attempt::Done { .. } | Attempt::SetAside | Attempt::Waits(_) | Attempt::CameBefore(_) => {
                    return Ok(true);
                }
                Attempt::Failed(failure) if failure.gave_way && gave_way < GIVES_WAY_AT_MOST => {
                    gave_way += 1;
                    tokio::select! {
                        () = stopping.asked() => return Ok(false),
                        () = tokio::time::sleep(way_clear(gave_way)) => {}
                    }
                }
                Attempt::Failed(failure) => break failure,
                Attempt::NoStore(error) => return Err(error),
            }
        };
        // Somebody else has it, and finds an attempt that was begun: they count it.
        if !self.hold_on(letter).await? {
            return Ok(true);
        }
        // At once again, set aside, or dead.
        Ok(self.failed(&trying(), Some(letter), failure).await?.is_some())
    }

    /// Puts a letter back into the queue that it came from; with that the store is done with it.
    ///
    /// Should this process end in between, the message is in the queue and the letter is still due: it goes back twice, and
    /// is handled once.
    async fn hand_back(&self, letter: &Letter) -> Result<Round, StoreError> {
        if let Err(reason) = republish(self.running.broker.as_ref(), letter, self.queue.clone()).await {
            tracing::warn!(
                queue = self.queue, consumer = %self.handler, cause = reason,
                "a delivery that was set aside could not go back to its queue"
            );
            self.running.store.release_letter(letter, self.running.bus.clock.now() + LOOK).await?;
            return Ok(Round::Nothing(LOOK));
        }
        self.running.store.letter_given_back(letter, self.running.bus.clock.now()).await?;
        Ok(Round::Worked)
    }
}
