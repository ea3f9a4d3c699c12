//! What an operator does about outbox rows that were given up.

use towpath_core::ports::store::{FailedFilter, FailedRow, StoreError};

use crate::bus::Bus;

/// How many rows are put back in one transaction.
const PAGE: u32 = 500;

/// The outbox, for an operator. Made by [`Towpath::outbox`](crate::Towpath::outbox).
pub struct Outbox {
    pub(crate) bus: Bus,
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
    pub async fn retry(&self, outbox_ids: &[u64]) -> Result<u64, StoreError> {
        let reopened = self.bus.store.reopen_outbox(outbox_ids, self.bus.clock.now()).await?;
        self.bus.relays.wake_all();
        Ok(reopened)
    }

    /// Puts all rows back that fit a filter; answers how many. Ask [`count`](Outbox::count) first. Rows that are given up
    /// while this runs are left alone, so it ends however fast they fail again.
    pub async fn retry_where(&self, filter: &FailedFilter) -> Result<u64, StoreError> {
        let now = self.bus.clock.now();
        let until = filter.failed_before.map_or(now, |before| before.min(now));
        let filter = FailedFilter { failed_before: Some(until), ..filter.clone() };
        let mut reopened = 0;
        loop {
            let count = self.bus.store.reopen_failed(&filter, PAGE, self.bus.clock.now()).await?;
            self.bus.relays.wake_all();
            reopened += count;
            if count == 0 {
                return Ok(reopened);
            }
        }
    }
}
