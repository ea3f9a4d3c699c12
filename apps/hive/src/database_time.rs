//! The database's time between two moments at which it was told.

use std::sync::{Mutex, PoisonError};

use chrono::{DateTime, Utc};
use tokio::time::Instant;
use towpath::SqlStore;
use towpath::ports::store::StoreResult;

use crate::views::later;

/// The last moment that was told, and this process's own count of time since, which nobody can set.
#[derive(Debug, Default)]
pub(crate) struct DatabaseTime(Mutex<Option<(DateTime<Utc>, Instant)>>);

impl DatabaseTime {
    /// It is told.
    pub(crate) fn is(&self, now: DateTime<Utc>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
    }

    /// Now. The database is asked if nobody has told yet.
    pub(crate) async fn now(&self, store: &SqlStore) -> StoreResult<DateTime<Utc>> {
        if let Some(now) = self.known() {
            return Ok(now);
        }
        let now = store.now().await?;
        self.is(now);
        Ok(now)
    }

    /// Now, for people: by this host's clock if nobody has told yet.
    pub(crate) fn about_now(&self) -> DateTime<Utc> {
        self.known().unwrap_or_else(Utc::now)
    }

    fn known(&self) -> Option<DateTime<Utc>> {
        let told = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.map(|(told, at)| later(told, at.elapsed()))
    }
}
