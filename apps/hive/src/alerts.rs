//! Alerts about the platform and about deletions that take too long: raised once and cleared once, whoever looks and however
//! often it is restarted.

use chrono::{DateTime, TimeDelta, Utc};
use towpath::SqlStore;
use towpath::observer::Platform;
use towpath::ports::store::StoreResult;
use towpath::projection::Rows;
use towpath::tables::{OwnTables, Record, Value};

use crate::texts;

/// The alert that is raised while the platform does not answer.
pub const GATEWAY_DOWN: &str = "gateway-down";

/// The alert that is raised while a service is DELETING for too long.
pub const DELETION_STUCK: &str = "deletion-stuck";

/// The service of an alert about the platform.
const NOBODY: &str = "";

/// For how long an alert is kept that was cleared.
const KEPT: TimeDelta = TimeDelta::days(90);

/// Something that an operator should know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// Which one.
    pub alert: String,
    /// Of which service; none when it is the platform's.
    pub service_id: Option<String>,
    /// A stable code: what was noticed.
    pub code: String,
    /// A text for people.
    pub message: String,
    /// Since when.
    pub raised_at: DateTime<Utc>,
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
            let raised = Raised { alert: GATEWAY_DOWN, service_id: NOBODY, at: *since, code, message };
            raise(tables, &raised, now).await?;
            Ok(false)
        }
    }
}

/// Raises the alert about a service that is DELETING for too long, since a moment that is the same whoever finds it.
pub(crate) async fn deletion_is_stuck(
    store: &SqlStore,
    service_id: &str,
    since: DateTime<Utc>,
    (code, message): (&str, &str),
    now: DateTime<Utc>,
) -> StoreResult<()> {
    let mut transaction = store.open_transaction().await?;
    let raised = Raised { alert: DELETION_STUCK, service_id, at: since, code, message };
    raise(&mut transaction.own_tables(), &raised, now).await?;
    transaction.finish().await
}

/// Clears what was raised about a service that is gone.
pub(crate) fn is_gone(rows: &mut Rows, service_id: &str, now: DateTime<Utc>) {
    let sql = "UPDATE hive_alerts SET cleared_at = ? WHERE cleared_at IS NULL AND service_id = ?";
    rows.then("hive.alert.gone", sql, vec![now.into(), service_id.to_owned().into()]);
}

struct Raised<'r> {
    alert: &'r str,
    service_id: &'r str,
    at: DateTime<Utc>,
    code: &'r str,
    message: &'r str,
}

/// Raises an alert, unless it lasts already. What was cleared long ago is forgotten.
async fn raise(tables: &mut OwnTables<'_>, raised: &Raised<'_>, now: DateTime<Utc>) -> StoreResult<()> {
    let Raised { alert, service_id, at, code, message } = *raised;
    let sql = "DELETE FROM hive_alerts WHERE cleared_at < ?";
    tables.execute("hive.alert.forget", sql, vec![(now - KEPT).into()]).await?;
    let sql = "SELECT alert FROM hive_alerts WHERE alert = ? AND service_id = ? AND cleared_at IS NULL";
    if tables.rows("hive.alert.open", sql, vec![alert.into(), service_id.into()]).await?.is_empty() {
        let sql = "INSERT INTO hive_alerts (alert, service_id, raised_at, code, message, cleared_at) \
                   VALUES (?, ?, ?, ?, ?, NULL)";
        let values: Vec<Value<'_>> =
            vec![alert.into(), service_id.into(), at.into(), code.into(), texts::readable(message).into()];
        tables.execute("hive.alert.raise", sql, values).await?;
    }
    Ok(())
}

/// The alerts, the last raised first.
pub(crate) async fn list(store: &SqlStore, limit: u32) -> StoreResult<Vec<Alert>> {
    let sql = format!(
        "SELECT alert, service_id, raised_at, code, message, cleared_at FROM hive_alerts \
         ORDER BY raised_at DESC LIMIT {limit}"
    );
    store.own_listing("hive.alerts", &sql, Vec::new()).await?.iter().map(read).collect()
}

fn read(record: &Record) -> StoreResult<Alert> {
    Ok(Alert {
        alert: record.text("alert")?,
        service_id: Some(record.text("service_id")?).filter(|id| id != NOBODY),
        code: record.text("code")?,
        message: record.text("message")?,
        raised_at: record.time("raised_at")?,
        cleared_at: record.time_or_null("cleared_at")?,
    })
}
