//! Alerts about the platform and about deletions that take too long: raised once and cleared once, whoever looks and however
//! often it is restarted.

use chrono::{DateTime, TimeDelta, Utc};
use towpath::SqlStore;
use towpath::observer::{ObserveError, Platform};
use towpath::ports::store::{StoreResult, StoreTx as _};
use towpath::projection::Rows;
use towpath::tables::{OwnTables, Row};

use crate::hive::OBSERVER;
use crate::texts;

/// The alert that is raised while the platform does not answer.
pub const GATEWAY_DOWN: &str = "gateway-down";

/// The alert that is raised while a service is DELETING for too long.
pub const DELETION_STUCK: &str = "deletion-stuck";

/// For how long an alert is kept that was cleared.
const KEPT: TimeDelta = TimeDelta::days(90);

/// Something that an operator should know of: a row per outage of the platform, and per deletion that takes too long.
#[derive(Debug, Clone, PartialEq, Eq, Row)]
#[row(table = "hive_alerts")]
pub struct Alert {
    /// Which one.
    #[row(key, name = 64)]
    pub alert: String,
    /// Of which service; empty when it is the platform's.
    #[row(key, name = 128)]
    pub service_id: String,
    /// Since when.
    #[row(key)]
    pub raised_at: DateTime<Utc>,
    /// A stable code: what was noticed.
    #[row(name = 64)]
    pub code: String,
    /// A text for people.
    pub message: String,
    /// Until when; none while it lasts.
    pub cleared_at: Option<DateTime<Utc>>,
}

/// Raises or clears the alert about the platform. What is so already stays as it is. Answers whether one has just ended.
pub(crate) async fn platform_is(
    tables: &mut OwnTables<'_>,
    platform: &Platform,
    now: DateTime<Utc>,
) -> StoreResult<bool> {
    match platform {
        Platform::Unknown => Ok(false),
        Platform::Up => {
            let sql = "UPDATE hive_alerts SET cleared_at = ? WHERE alert = ? AND cleared_at IS NULL";
            let ended =
                tables.execute("hive.alert.clear", sql, vec![now.into(), GATEWAY_DOWN.into()]).await?;
            Ok(ended > 0)
        }
        Platform::Down { since, code, message } => {
            raise(tables, Alert::new(GATEWAY_DOWN, "", *since, code, message), now).await?;
            Ok(false)
        }
    }
}

/// Raises the alert about a service that is DELETING for too long, since a moment that is the same whoever finds it.
pub(crate) async fn deletion_is_stuck(
    store: &SqlStore,
    service_id: &str,
    since: DateTime<Utc>,
    failure: &ObserveError,
    now: DateTime<Utc>,
) -> StoreResult<()> {
    let mut transaction = store.open_transaction().await?;
    // It may be gone by now; then nobody looks at it any more, and nothing would clear the alert.
    if transaction.watched(OBSERVER, &[service_id.to_owned()]).await?.is_empty() {
        return transaction.finish().await;
    }
    let alert = Alert::new(DELETION_STUCK, service_id, since, &failure.code, &failure.message);
    raise(&mut transaction.own_tables(), alert, now).await?;
    transaction.finish().await
}

/// Clears what was raised about a service that is gone.
pub(crate) fn is_gone(rows: &mut Rows, service_id: &str, now: DateTime<Utc>) {
    let sql = "UPDATE hive_alerts SET cleared_at = ? WHERE cleared_at IS NULL AND service_id = ?";
    rows.then("hive.alert.gone", sql, vec![now.into(), service_id.to_owned().into()]);
}

/// Raises an alert, unless it lasts already. What was cleared long ago is forgotten.
async fn raise(tables: &mut OwnTables<'_>, raised: Alert, now: DateTime<Utc>) -> StoreResult<()> {
    let sql = "DELETE FROM hive_alerts WHERE cleared_at < ?";
    tables.execute("hive.alert.forget", sql, vec![(now - KEPT).into()]).await?;
    let lasts = "WHERE alert = ? AND service_id = ? AND cleared_at IS NULL";
    let about = vec![raised.alert.as_str().into(), raised.service_id.as_str().into()];
    if tables.rows_of::<Alert>("hive.alert.open", lasts, about).await?.is_empty() {
        tables.insert(&raised).await?;
    }
    Ok(())
}

impl Alert {
    fn new(alert: &str, service_id: &str, raised_at: DateTime<Utc>, code: &str, message: &str) -> Self {
        let (alert, service_id, code) = (alert.to_owned(), service_id.to_owned(), code.to_owned());
        Self { alert, service_id, raised_at, code, message: texts::readable(message), cleared_at: None }
    }
}
