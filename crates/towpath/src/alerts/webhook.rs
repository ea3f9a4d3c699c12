//! Webhooks.

use chrono::{DateTime, Utc};
use towpath_core::ports::store::StoreResult;

use super::Alerting;
use super::engine::Told;
use crate::tx::Tx;

/// Who is told over HTTP.
#[derive(Debug, Clone)]
pub struct Webhook {}

impl Alerting {
    pub(super) async fn tell_webhooks(
        &self,
        _tx: &mut Tx,
        _told: &Told<'_>,
        _now: DateTime<Utc>,
    ) -> StoreResult<()> {
        Ok(())
    }
}
