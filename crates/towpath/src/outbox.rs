//! What an operator does about outbox rows that were given up.

use std::time::Duration;

use towpath_core::envelope::EventEnvelope;
use towpath_core::ports::store::{FailedFilter, FailedRow, StoreError};
use towpath_core::retry::{Coded, ErrorClass};
use towpath_core::time::earlier;

use crate::bus::Bus;

/// How many rows are put back in one transaction.
const PAGE: u32 = 500;

/// The outbox, for an operator. Made by [`Towpath::outbox`](crate::Towpath::outbox).
pub struct Outbox {
    pub(crate) bus: Bus,
    /// For how long inboxes remember what was handled.
    pub(crate) horizon: Duration,
}

/// Why rows were not put back.
#[derive(Debug, thiserror::Error)]
pub enum OutboxError {
    /// One of them may have been published after all, so long ago that inboxes do not remember.
    #[error("outbox row {outbox_id} was perhaps published, and its event is older than the horizon")]
    BeyondHorizon {
        /// Which row.
        outbox_id: u64,
    },
    /// The store says no, or nothing.
    #[error("the store did not do it")]
    Store(#[from] StoreError),
}

impl Coded for OutboxError {
    fn class(&self) -> ErrorClass {
        match self {
            Self::BeyondHorizon { .. } => ErrorClass::Validation,
            Self::Store(error) => error.class(),
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::BeyondHorizon { .. } => "beyond-horizon",
            Self::Store(error) => error.code(),
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Self::BeyondHorizon { .. } => "Make sure that no handler has handled it, then retry it by force.",
            Self::Store(error) => error.next_step(),
        }
    }
}

/// Whether an event is so old that inboxes do not remember whether it was handled.
pub(crate) fn is_beyond(bus: &Bus, horizon: Duration, event: &EventEnvelope) -> bool {
    // A horizon that reaches back before time began forgets nothing.
    earlier(bus.clock.now(), horizon).is_some_and(|before| event.occurred_at < before)
}

impl Outbox {
    /// Rows that were given up and fit a filter, with their events: the next `limit` behind a row's number.
    pub async fn failed(
        &self,
        filter: &FailedFilter,
        after: u64,
        limit: u32,
    ) -> Result<Vec<FailedRow>, StoreError> {
        self.bus.store.failed_outbox(filter, after, limit).await
    }

    /// How many there are.
    pub async fn count(&self, filter: &FailedFilter) -> Result<u64, StoreError> {
        self.bus.store.count_failed(filter).await
    }

    /// Puts these rows back, due at once, with their attempts forgotten; answers how many were given up until now. What
    /// waits behind them follows.
    ///
    /// # Errors
    /// `beyond-horizon` when one of them may have been published and is older than inboxes remember. Nothing is put back.
    pub async fn retry(&self, outbox_ids: &[u64]) -> Result<u64, OutboxError> {
        for outbox_id in outbox_ids {
            let filter = FailedFilter::default();
            self.refuse_beyond(&filter, outbox_id.saturating_sub(1), Some(*outbox_id)).await?;
        }
        Ok(self.retry_by_force(outbox_ids).await?)
    }

    /// Goes on without a row that was given up or is to be tried again: it is SKIPPED and never published on its channel,
    /// and what waits behind it follows. Whether it was in such a state. `reason` is kept with the row.
    pub async fn skip(&self, outbox_id: u64, reason: &str) -> Result<bool, StoreError> {
        let skipped = self.bus.store.skip_outbox(outbox_id, reason, self.bus.clock.now()).await?;
        self.bus.wakes.relays.wake_all();
        Ok(skipped)
    }

    /// As [`retry`](Self::retry), however old the events are.
    pub async fn retry_by_force(&self, outbox_ids: &[u64]) -> Result<u64, StoreError> {
        let reopened = self.bus.store.reopen_outbox(outbox_ids, self.bus.clock.now()).await?;
        self.bus.wakes.relays.wake_all();
        Ok(reopened)
    }

    /// Puts all rows back that fit a filter; answers how many. Ask [`count`](Outbox::count) first. Rows that are given up
    /// while this runs are left alone, so it ends however fast they fail again.
    ///
    /// # Errors
    /// `beyond-horizon`, as [`retry`](Self::retry).
    pub async fn retry_where(&self, filter: &FailedFilter) -> Result<u64, OutboxError> {
        self.refuse_beyond(filter, 0, None).await?;
        Ok(self.retry_where_by_force(filter).await?)
    }

    /// Refuses the first row behind a number that fits a filter, if it may have been published too long ago. Numbers rise
    /// with time: the first is the oldest. Why it was given up does not matter: that is what the last attempt said, and an
    /// earlier one may have been published without anybody knowing.
    async fn refuse_beyond(
        &self,
        filter: &FailedFilter,
        after: u64,
        only: Option<u64>,
    ) -> Result<(), OutboxError> {
        let first = self.bus.store.failed_outbox(filter, after, 1).await?;
        let asked = |failed: &&FailedRow| only.is_none_or(|only| failed.row.outbox_id == only);
        match first.iter().filter(asked).find(|failed| is_beyond(&self.bus, self.horizon, &failed.event)) {
            Some(failed) => Err(OutboxError::BeyondHorizon { outbox_id: failed.row.outbox_id }),
            None => Ok(()),
        }
    }

    /// As [`retry_where`](Self::retry_where), however old the events are.
    pub async fn retry_where_by_force(&self, filter: &FailedFilter) -> Result<u64, StoreError> {
        let now = self.bus.clock.now();
        let until = filter.failed_before.map_or(now, |before| before.min(now));
        let filter = FailedFilter { failed_before: Some(until), ..filter.clone() };
        let mut reopened = 0;
        loop {
            let count = self.bus.store.reopen_failed(&filter, PAGE, self.bus.clock.now()).await?;
            self.bus.wakes.relays.wake_all();
            reopened += count;
            if count == 0 {
                return Ok(reopened);
            }
        }
    }
}
