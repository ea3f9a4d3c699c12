//! Brings back deliveries that were set aside, when they are due.
//!
//! The letter is taken in the handler's own transaction, and held by the lock on its row: a process that dies lets go of
//! it, and nothing is left claimed.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use towpath_core::letters::{Letter, SetAside};
use towpath_core::ports::store::StoreError;

use super::DeadTo;
use super::engine::{Attempt, Backoff, GIVES_WAY_AT_MOST, Job, lane_of, way_clear};
use super::letters::republish;
use crate::bus::with_causes;
use crate::service::{Stopping, rest};

/// How long to rest at most: other instances and operators set letters aside too.
const LOOK: Duration = Duration::from_secs(1);

/// How often to look for letters that wait behind one that is through: who was to let them go on may have died.
const LOOK_BEHIND: Duration = Duration::from_secs(5);

/// What a round did.
enum Round {
    /// A letter was taken; there may be more.
    Worked,
    /// Nothing is due before then.
    Nothing(Duration),
}

/// As many at a time as the consumer handles: after an outage everything may have been set aside. Of one aggregate, one
/// letter at most is due.
pub(super) async fn run(job: Arc<Job>, stopping: Stopping) {
    let mut loops = JoinSet::new();
    for _ in 0..job.consumer.policy.concurrency.max(1) {
        loops.spawn(redeliver(Arc::clone(&job), stopping.clone()));
    }
    while let Some(ended) = loops.join_next().await {
        if let Err(error) = ended {
            tracing::error!(queue = job.queue, consumer = %job.handler, %error, "redelivery ended badly");
        }
    }
}

async fn redeliver(job: Arc<Job>, mut stopping: Stopping) {
    let mut backoff = Backoff::default();
    let mut gave_way = 0;
    while !stopping.is_asked() {
        let pause = match job.redeliver_one(&mut gave_way).await {
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
                backoff.next(job.running.patience)
            }
        };
        rest(&job.aside, pause, &mut stopping).await;
    }
}

impl Job {
    /// Whether this process has not looked for a while for letters that wait behind nothing.
    fn is_time_to_look_behind(&self) -> bool {
        let mut look_at = self.look_behind_at.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_time = now >= *look_at;
        if is_time {
            *look_at = now + LOOK_BEHIND;
        }
        is_time
    }

    async fn redeliver_one(&self, gave_way: &mut u32) -> Result<Round, StoreError> {
        let now = self.running.bus.clock.now();
        let asked = self.set_behind.swap(false, Ordering::SeqCst);
        if (asked | self.is_time_to_look_behind())
            && let Err(error) = self.running.store.advance_letters(&self.handler, now).await
        {
            self.set_behind.store(true, Ordering::SeqCst);
            return Err(error);
        }
        match self.running.store.next_letter_due(&self.handler).await? {
            None => return Ok(Round::Nothing(LOOK)),
            Some(due_at) if due_at > now => {
                let wait = (due_at - now).to_std().unwrap_or(LOOK);
                return Ok(Round::Nothing(wait.min(LOOK)));
            }
            Some(_) => {}
        }
        let mut tx = self.open(None).await?;
        // Somebody else may have it: then there is nothing to do here for a moment.
        let Some(letter) = tx.inner.take_letter(&self.handler, now).await? else {
            return Ok(Round::Nothing(LOOK.min(Duration::from_millis(100))));
        };
        // A letter that failed is let go of a moment before its failure is written down. Nobody here must take it then: it
        // would be tried again too early.
        let Some(_in_hand) = InHand::take(&self.in_hand, letter.letter_id) else {
            return Ok(Round::Nothing(Duration::from_millis(10)));
        };
        // What is given up must be given up to the broker, and that is only possible for what is in its hands.
        if self.consumer.policy.dead == DeadTo::Broker {
            // Not while the letter is held: the broker may live in the same database.
            drop(tx);
            return self.hand_back(&letter).await;
        }
        let received = &letter.letter.message;
        let event = match towpath_broker::read(received) {
            Ok(event) => event,
            Err(error) => {
                // It was edited into something that is no event.
                drop(tx);
                let aside = SetAside {
                    letter_id: Some(letter.letter_id),
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
        let lane = lane_of(received, &event);
        match self.attempt_events(vec![(event.clone(), received, lane)], Some(&letter), tx).await {
            Attempt::Done(_) => {}
            Attempt::Failed(failure) if failure.gave_way && *gave_way < GIVES_WAY_AT_MOST => {
                *gave_way += 1;
                return Ok(Round::Nothing(way_clear(*gave_way)));
            }
            Attempt::Failed(failure) => {
                // At once again, set aside, or dead: the letter is still there and says which.
                self.failed(received, &event, lane, Some(letter.letter_id), failure).await?;
            }
            // A letter does not wait behind itself.
            Attempt::Waits(_) => {}
            Attempt::NoStore(error) => return Err(error),
        }
        *gave_way = 0;
        Ok(Round::Worked)
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
            return Ok(Round::Nothing(LOOK));
        }
        self.running.store.letter_given_back(letter, self.running.bus.clock.now()).await?;
        Ok(Round::Worked)
    }
}

/// The mark that this process is at a letter.
struct InHand<'a> {
    letters: &'a Mutex<HashSet<u64>>,
    letter_id: u64,
}

impl<'a> InHand<'a> {
    fn take(letters: &'a Mutex<HashSet<u64>>, letter_id: u64) -> Option<Self> {
        let new = letters.lock().unwrap_or_else(PoisonError::into_inner).insert(letter_id);
        new.then_some(Self { letters, letter_id })
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.letter_id);
    }
}
