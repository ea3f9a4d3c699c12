//! What becomes of a delivery that does not go through: at once again, set aside, back to the broker, or dead.

use std::sync::PoisonError;
use std::time::Duration;

use chrono::{DateTime, Utc};
use towpath_core::ids::{EventId, Lane};
use towpath_core::incoming::IncomingEvent;
use towpath_core::letters::{AsideOutcome, Letter, NewLetter, SetAside};
use towpath_core::lifecycle::InboxStatus;
use towpath_core::ports::broker::{Received, Settlement};
use towpath_core::ports::store::{InboxFailure, StoreError, StoreTx as _};
use towpath_core::retry::{Coded as _, ErrorClass, RetryDecision};
use towpath_core::time::later;

use super::engine::{Job, Ready, Trying, lane_of_key};
use super::receiving::Arrived;
use super::{Afterwards, DeadTo};
use crate::bus::{random_unit, with_causes};
use crate::metrics;
use crate::service::{Backoff, Stopping};
use crate::watch::DeliveringOutcome;

/// Why a delivery was not handled.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) class: ErrorClass,
    pub(super) reason: String,
    pub(super) message: String,
    /// The handler said when to come again; then it is not counted.
    pub(super) after: Option<Duration>,
    /// Its transaction gave way to another one (a deadlock, a lock that was not to be had): it is run again, and not
    /// counted unless that happens too often in a row.
    pub(super) gave_way: bool,
    /// An earlier attempt began and did not end.
    pub(super) not_ended: bool,
}

/// The reason of an attempt that began and did not end.
pub(super) const NOT_ENDED: &str = "attempt-not-ended";

impl Failure {
    pub(super) fn new(class: ErrorClass, reason: impl Into<String>, message: impl Into<String>) -> Self {
        let (reason, message) = (reason.into(), message.into());
        Self { class, reason, message, after: None, gave_way: false, not_ended: false }
    }

    /// Another process began with it and is gone. Whether because of it is not known; the policy says how often it may be.
    pub(super) fn not_ended() -> Self {
        let message = "the process that handled it ended before it did";
        Self { not_ended: true, ..Self::new(ErrorClass::Transient, NOT_ENDED, message) }
    }

    /// The commit failed. Whatever the reason, another attempt may do better; the policy says how many there are.
    pub(super) fn of_store(error: &StoreError) -> Self {
        Self {
            gave_way: matches!(error, StoreError::Contention(_)),
            ..Self::new(ErrorClass::Transient, error.code(), with_causes(error))
        }
    }
}

impl Job {
    /// Sets a delivery aside behind the earlier ones of its aggregate; `false` when they are through by now.
    pub(super) async fn set_behind(&self, ready: &Ready) -> Result<bool, StoreError> {
        let mut transaction = self.running.store.open_transaction().await?;
        if transaction.waiting_lanes(&self.handler, &[ready.lane]).await?.is_empty() {
            return Ok(false);
        }
        let now = self.running.bus.clock.now();
        let letter = self.letter(&ready.arrived.received, Some(ready.event_id), ready.lane, now);
        transaction.set_behind(&letter, now).await?;
        let finished = transaction.finish().await;
        // After the commit, whatever came of it: the letter before it may have ended without seeing this one, and who looks
        // for such ones must see it.
        self.set_behind.lock().unwrap_or_else(PoisonError::into_inner).insert(ready.lane);
        self.aside.wake();
        finished?;
        Ok(true)
    }

    /// Records a failure and decides: `None` is "at once again".
    pub(super) async fn failed(
        &self,
        tried: &Trying<'_>,
        letter: Option<&Letter>,
        failure: Failure,
    ) -> Result<Option<Settlement>, StoreError> {
        let Trying { id, event, received, lane, .. } = tried;
        let now = self.running.bus.clock.now();
        let store = &self.running.store;
        let Failure { class, reason, message, after, .. } = failure;
        let (event_id, handler, queue) = (event.event_id, &self.handler, &received.queue);
        let trace_id = event.trace_id.as_ref().map(ToString::to_string).unwrap_or_default();
        let failed = InboxFailure {
            event_id: *id,
            handler: &self.handler,
            reason: &reason,
            message: &message,
            failed_at: now,
            dead: false,
        };
        let aside = |due_at, retry_count| SetAside {
            letter_id: letter.map(|letter| letter.letter_id),
            held_until: letter.and_then(|letter| letter.due_at),
            letter: self.letter(received, Some(*id), *lane, now),
            due_at,
            reason: reason.clone(),
            message: message.clone(),
            retry_count,
            now,
        };
        if let Some(delay) = after {
            let set = store.set_aside(&aside(Some(later(now, delay)), 0)).await?;
            if set == AsideOutcome::Set {
                tracing::info!(eventId = %event_id, traceId = trace_id, queue, consumer = %handler, reason, cause = message, "a delivery comes again later");
                self.meters.failed(metrics::Next::Later);
                self.aside.wake();
            }
            self.note_size(set, received, Some(event));
            return Ok(Some(Settlement::Acknowledge));
        }
        let entry = match letter {
            Some(letter) => store.count_failure_of(letter, &failed).await?,
            None => Some(store.count_failure(&failed).await?),
        };
        // Handled or given up by another delivery of the same event, or committed after all; or somebody else has the letter.
        let Some(entry) = entry.filter(|entry| entry.status == InboxStatus::Retry) else {
            return Ok(Some(Settlement::Acknowledge));
        };
        let failures = entry.retry_count.max(1);
        let policy = &self.consumer.policy;
        if class.is_retryable() && failures <= policy.immediate_retries {
            tracing::info!(eventId = %event_id, traceId = trace_id, queue, consumer = %handler, reason, cause = message, "a delivery is tried again");
            self.meters.failed(metrics::Next::AtOnce);
            self.tell(
                received,
                Some(event),
                DeliveringOutcome::Retried { reason: &reason, message: &message },
            );
            return Ok(None);
        }
        let next = match &policy.afterwards {
            Afterwards::SetAside(retries) => {
                match retries.decide(
                    class,
                    failures - policy.immediate_retries.min(failures - 1),
                    random_unit(),
                ) {
                    RetryDecision::RetryAfter(delay) => Some(Some(later(now, delay))),
                    RetryDecision::GiveUp(_) => None,
                }
            }
            Afterwards::Requeue { at_most } => (class.is_retryable() && failures < *at_most).then_some(None),
        };
        let retried = DeliveringOutcome::Retried { reason: &reason, message: &message };
        let given_up = DeliveringOutcome::GivenUp { reason: &reason, message: &message };
        // A letter is not in the broker's hands: there is nothing to reject.
        let dead = if letter.is_some() { DeadTo::Store } else { policy.dead };
        // It is told once it is so, and by whom it is so.
        match (next, dead) {
            (Some(Some(due_at)), _) => {
                let set = store.set_aside(&aside(Some(due_at), failures)).await?;
                if set == AsideOutcome::Set {
                    tracing::warn!(eventId = %event_id, traceId = trace_id, queue, consumer = %handler, reason, cause = message, failures, "a delivery failed and is set aside");
                    self.meters.failed(metrics::Next::Later);
                    self.tell(received, Some(event), retried);
                    self.aside.wake();
                }
                self.note_size(set, received, Some(event));
                Ok(Some(Settlement::Acknowledge))
            }
            (Some(None), _) => {
                tracing::warn!(eventId = %event_id, traceId = trace_id, queue, consumer = %handler, reason, cause = message, failures, "a delivery failed and goes back");
                self.meters.failed(metrics::Next::Requeued);
                self.tell(received, Some(event), retried);
                Ok(Some(Settlement::Requeue))
            }
            (None, DeadTo::Store) => {
                if store.set_aside(&aside(None, failures)).await? != AsideOutcome::Elsewhere {
                    tracing::error!(eventId = %event_id, traceId = trace_id, queue, consumer = %handler, reason, cause = message, failures, "a delivery was given up");
                    self.meters.failed(metrics::Next::Dead);
                    self.tell(received, Some(event), given_up);
                }
                Ok(Some(Settlement::Acknowledge))
            }
            (None, DeadTo::Broker) => {
                // Should it come back from there, it has all its attempts again.
                store.forget_failures(*id, handler).await?;
                tracing::error!(eventId = %event_id, traceId = trace_id, queue, consumer = %handler, reason, cause = message, failures, "a delivery was given up and rejected");
                self.meters.failed(metrics::Next::Dead);
                self.tell(received, Some(event), given_up);
                Ok(Some(Settlement::Reject))
            }
        }
    }

    /// Says so when a delivery that should have been tried again was given up, because the database does not take it.
    fn note_size(&self, set: AsideOutcome, received: &Received, event: Option<&IncomingEvent>) {
        if set != AsideOutcome::TooLarge {
            return;
        }
        let message = format!(
            "its body has {} bytes, which is more than the database takes: it cannot be set aside",
            received.body.len()
        );
        tracing::error!(eventId = received.message_id.as_deref().unwrap_or_default(), queue = received.queue, consumer = %self.handler, reason = "letter-too-large", cause = message, "a delivery was given up");
        self.meters.failed(metrics::Next::Dead);
        self.tell(
            received,
            event,
            DeliveringOutcome::GivenUp { reason: "letter-too-large", message: &message },
        );
    }

    /// A message that is no event for anyone: dead at once.
    pub(super) async fn unreadable(
        &self,
        arrived: &Arrived,
        error: &towpath_core::format::FormatError,
        stopping: &mut Stopping,
    ) {
        let received = &arrived.received;
        let message_id = received.message_id.as_deref().unwrap_or_default();
        tracing::error!(
            eventId = message_id,
            queue = received.queue,
            consumer = %self.handler,
            code = error.code(),
            cause = with_causes(error),
            "a message cannot be read"
        );
        self.meters.failed(metrics::Next::Dead);
        let (reason, message) = (error.code(), with_causes(error));
        self.tell(received, None, DeliveringOutcome::GivenUp { reason, message: &message });
        if self.consumer.policy.dead == DeadTo::Broker {
            return self.settle(arrived, Settlement::Reject).await;
        }
        let mut backoff = Backoff::default();
        loop {
            let now = self.running.bus.clock.now();
            let aside = SetAside {
                letter_id: None,
                held_until: None,
                letter: self.letter(received, None, lane_of_key(received), now),
                due_at: None,
                reason: error.code().to_owned(),
                message: with_causes(error),
                retry_count: 1,
                now,
            };
            match self.running.store.set_aside(&aside).await {
                Ok(_) => return self.settle(arrived, Settlement::Acknowledge).await,
                Err(error) => self.note_store(&error),
            }
            tokio::select! {
                () = stopping.asked() => return,
                () = tokio::time::sleep(backoff.next_within(self.running.patience)) => {}
            }
        }
    }

    fn letter(
        &self,
        received: &Received,
        event_id: Option<EventId>,
        lane: Lane,
        now: DateTime<Utc>,
    ) -> NewLetter {
        NewLetter {
            handler: Some(self.handler.clone()),
            event_id,
            lane,
            message: received.clone(),
            received_at: now,
        }
    }
}
