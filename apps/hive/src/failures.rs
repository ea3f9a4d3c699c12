//! What could not be looked at, or not be done: kept for as long as that is so, so that a service that does not get on says why.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use towpath::SqlStore;
use towpath::observer::ObserveError;
use towpath::ports::store::StoreResult;
use towpath::tables::{OwnTables, Value};

use crate::tables::FAILURES;
use crate::texts;

/// How many services a statement names.
const TOGETHER: usize = 64;

/// What is known of the looks at a service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Looks {
    /// When the last one was that came to its end.
    pub looked_at: Option<DateTime<Utc>>,
    /// Why there was none since; none when there was.
    pub failure: Option<LookFailure>,
}

/// Why a service could not be looked at, or why something could not be done to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookFailure {
    /// A stable code.
    pub code: String,
    /// A text for people.
    pub message: String,
    /// Since when it fails.
    pub since: DateTime<Utc>,
    /// When it failed last.
    pub failed_at: DateTime<Utc>,
}

/// Keeps failures. What fails since long fails since then, also when the reason is another one by now.
pub(crate) async fn keep<'l>(
    store: &SqlStore,
    failed: impl Iterator<Item = (&'l str, &'l ObserveError, DateTime<Utc>)>,
) -> StoreResult<()> {
    let failed: BTreeMap<&str, (&ObserveError, DateTime<Utc>)> =
        failed.map(|(service_id, error, at)| (service_id, (error, at))).collect();
    let ids: Vec<String> = failed.keys().map(|id| (*id).to_owned()).collect();
    for ids in ids.chunks(TOGETHER) {
        let mut transaction = store.open_transaction().await?;
        let mut tables = transaction.own_tables();
        let mut values = Vec::new();
        let chosen = OwnTables::one_of("t.service_id", ids, &mut values);
        let sql = format!(
            "SELECT t.service_id AS service_id, f.since AS since FROM hive_targets t \
             LEFT JOIN hive_failures f ON f.service_id = t.service_id WHERE {chosen}"
        );
        // What is gone meanwhile fails no more.
        let mut since = BTreeMap::new();
        for record in tables.rows("hive.failures.known", &sql, values).await? {
            since.insert(record.text("service_id")?, record.time_or_null("since")?);
        }
        let rows: Vec<Vec<Value<'_>>> = ids
            .iter()
            .filter_map(|id| {
                let ((error, at), since) = (failed.get(id.as_str())?, since.get(id)?);
                Some(vec![
                    id.as_str().into(),
                    texts::code(&error.code).into(),
                    texts::readable(&error.message).into(),
                    since.unwrap_or(*at).into(),
                    (*at).into(),
                ])
            })
            .collect();
        if !rows.is_empty() {
            tables.put("hive.failures.keep", &FAILURES, rows).await?;
        }
        transaction.finish().await?;
    }
    Ok(())
}

/// They were looked at.
pub(crate) async fn end<'l>(store: &SqlStore, seen: impl Iterator<Item = &'l str>) -> StoreResult<()> {
    let ids: Vec<String> = seen.map(str::to_owned).collect();
    for ids in ids.chunks(TOGETHER) {
        let mut values = Vec::new();
        let chosen = OwnTables::one_of("service_id", ids, &mut values);
        let sql = format!("DELETE FROM hive_failures WHERE {chosen}");
        store.own_execute("hive.failures.end", &sql, values).await?;
    }
    Ok(())
}

/// What is known of the looks at a service.
pub(crate) async fn looks(store: &SqlStore, service_id: &str) -> StoreResult<Looks> {
    let sql = "SELECT observed_at FROM hive_targets WHERE service_id = ?";
    let rows = store.own_rows("hive.looked", sql, vec![service_id.into()]).await?;
    let Some(target) = rows.first() else { return Ok(Looks::default()) };
    let sql = "SELECT code, message, since, failed_at FROM hive_failures WHERE service_id = ?";
    let rows = store.own_rows("hive.failing", sql, vec![service_id.into()]).await?;
    let failure = match rows.first() {
        Some(record) => Some(LookFailure {
            code: record.text("code")?,
            message: record.text("message")?,
            since: record.time("since")?,
            failed_at: record.time("failed_at")?,
        }),
        None => None,
    };
    Ok(Looks { looked_at: target.time_or_null("observed_at")?, failure })
}
