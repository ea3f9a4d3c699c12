//! Alerts about the platform: raised once and cleared once, whoever looks and however often it is restarted.

use chrono::{DateTime, TimeDelta, Utc};
use towpath::SqlStore;
use towpath::observer::Platform;
use towpath::ports::store::StoreResult;
use towpath::tables::{OwnTables, Record, Value};

use crate::texts;

/// The alert that is raised while the platform does not answer.
pub const GATEWAY_DOWN: &str = "gateway-down";

/// For how long an alert is kept that was cleared.
const KEPT: TimeDelta = TimeDelta::days(90);

/// Something that an operator should know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// Which one.
    pub alert: String,
    /// A stable code: what was noticed.
    pub code: String,
    /// A text for people.
    pub message: String,
    /// Since when.
    pub raised_at: DateTime<Utc>,
    /// Until when; none while it lasts.
    pub cleared_at: Option<DateTime<Utc>>,
}

/// Raises or clears the alert about the platform. What is so already stays as it is.
pub(crate) async fn platform_is(
    tables: &mut OwnTables<'_>,
    platform: &Platform,
    now: DateTime<Utc>,
) -> StoreResult<()> {
    match platform {
        Platform::Unknown => {}
        Platform::Up => {
            let sql = "UPDATE hive_alerts SET cleared_at = ? WHERE alert = ? AND cleared_at IS NULL";
            tables.execute("hive.alert.clear", sql, vec![now.into(), GATEWAY_DOWN.into()]).await?;
        }
        Platform::Down { since, code, message } => {
            let sql = "DELETE FROM hive_alerts WHERE cleared_at < ?";
            tables.execute("hive.alert.forget", sql, vec![(now - KEPT).into()]).await?;
            let sql = "SELECT alert FROM hive_alerts WHERE alert = ? AND cleared_at IS NULL";
            if tables.rows("hive.alert.open", sql, vec![GATEWAY_DOWN.into()]).await?.is_empty() {
                let sql = "INSERT INTO hive_alerts (alert, raised_at, code, message, cleared_at) \
                           VALUES (?, ?, ?, ?, NULL)";
                let values: Vec<Value<'_>> = vec![
                    GATEWAY_DOWN.into(),
                    (*since).into(),
                    code.as_str().into(),
                    texts::readable(message).into(),
                ];
                tables.execute("hive.alert.raise", sql, values).await?;
            }
        }
    }
    Ok(())
}

/// The alerts, the last raised first.
pub(crate) async fn list(store: &SqlStore, limit: u32) -> StoreResult<Vec<Alert>> {
    let sql = format!(
        "SELECT alert, raised_at, code, message, cleared_at FROM hive_alerts ORDER BY raised_at DESC LIMIT {limit}"
    );
    store.own_rows("hive.alerts", &sql, Vec::new()).await?.iter().map(read).collect()
}

fn read(record: &Record) -> StoreResult<Alert> {
    Ok(Alert {
        alert: record.text("alert")?,
        code: record.text("code")?,
        message: record.text("message")?,
        raised_at: record.time("raised_at")?,
        cleared_at: record.time_or_null("cleared_at")?,
    })
}
