//! What an earlier version of hive kept by itself of the looks at services, taken over by the observer.

use std::collections::HashMap;

use towpath::SqlStore;
use towpath::observer::{Adopted, Look, LookFailure, Looks};
use towpath::ports::store::{StoreError, StoreResult, StoreTx as _};
use towpath::tables::{OwnTables, Record};

use crate::hive::OBSERVER;
use crate::service::ServiceStatus;
use crate::spec::{ResourceName, SpecHash};
use crate::targets::Kept;
use crate::views::{Cause, UNFINISHED, Wanted};

/// How many services are taken over at a time.
const TOGETHER: usize = 64;

/// How often a part gives way to another instance and begins anew.
const GIVES_WAY_AT_MOST: u32 = 20;

/// Takes over what `hive_targets` and `hive_failures` have, and empties them. Cut short or run by several instances at once,
/// it loses nothing: a row goes in the transaction that takes it over. What is known here already is not undone.
///
/// # Errors
/// The store's, and [`StoreError::Corrupt`] for a row that nobody has written so.
pub async fn take_over(store: &SqlStore) -> Result<(), StoreError> {
    if !store.has_table("hive_targets").await? {
        return Ok(());
    }
    let mut gave_way = 0;
    loop {
        match take_over_some(store).await {
            Ok(0) => return Ok(()),
            Ok(_) => gave_way = 0,
            Err(StoreError::Contention(_)) if gave_way < GIVES_WAY_AT_MOST => gave_way += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Answers how many.
async fn take_over_some(store: &SqlStore) -> StoreResult<usize> {
    let mut transaction = store.open_transaction().await?;
    let mut tables = transaction.own_tables();
    let sql = format!(
        "SELECT service_id, version, resource, status, spec, spec_hash, spec_version, force_replace, applied, \
         wanted, cause_id, flow_id, snapshot, observed_at, waited_since, due_at FROM hive_targets \
         ORDER BY service_id LIMIT {TOGETHER}"
    );
    let targets = tables.locked_rows("hive.take_over.targets", &sql, Vec::new()).await?;
    let ids = targets.iter().map(|row| row.text("service_id")).collect::<StoreResult<Vec<_>>>()?;
    let mut values = Vec::new();
    let chosen = OwnTables::one_of("service_id", &ids, &mut values);
    let sql = format!("SELECT service_id, code, message, since, failed_at FROM hive_failures WHERE {chosen}");
    let mut failures = HashMap::new();
    for row in tables.rows("hive.take_over.failures", &sql, values.clone()).await? {
        failures.insert(row.text("service_id")?, failure(&row)?);
    }
    for table in ["hive_failures", "hive_targets"] {
        let sql = format!("DELETE FROM {table} WHERE {chosen}");
        tables.execute("hive.take_over.forget", &sql, values.clone()).await?;
    }
    let mut adopted = Vec::with_capacity(targets.len());
    for (row, id) in targets.iter().zip(&ids) {
        adopted.push(adopt(row, failures.remove(id))?);
    }
    transaction.adopt(OBSERVER, &adopted).await?;
    transaction.finish().await?;
    Ok(adopted.len())
}

fn adopt(row: &Record, failure: Option<LookFailure>) -> StoreResult<Adopted> {
    let corrupt = |what: &str| StoreError::Corrupt {
        what: format!("hive_targets.{what}"),
        source: "it is not what was written".into(),
    };
    let (resource, status) = (row.text("resource")?, row.text("status")?);
    let (namespace, name) = resource.split_once('/').ok_or_else(|| corrupt("resource"))?;
    let status = ServiceStatus::ALL.into_iter().find(|known| known.as_str() == status);
    let wanted = row.text_or_null("wanted")?.as_deref().and_then(Wanted::from_stored);
    let (cause_id, flow_id) = (row.text_or_null("cause_id")?, row.text_or_null("flow_id")?);
    let snapshot = match row.text_or_null("snapshot")? {
        Some(text) => Some(serde_json::from_str(&text).map_err(|_| corrupt("snapshot"))?),
        None => None,
    };
    let kept = Kept {
        resource: ResourceName::new(namespace, name),
        status: status.ok_or_else(|| corrupt("status"))?,
        spec: serde_json::from_str(&row.text("spec")?).map_err(|_| corrupt("spec"))?,
        spec_hash: SpecHash::from_stored(row.text("spec_hash")?),
        spec_version: row.count("spec_version")?,
        force_replace: row.long("force_replace")? != 0,
        applied: row.long("applied")? != 0,
        wanted: wanted.filter(|wanted| *wanted != Wanted::Look),
        cause: cause_id.map(|event_id| Cause { event_id, flow_id }),
        snapshot,
    };
    let look = match wanted {
        Some(Wanted::Facts) => Look::Held(UNFINISHED),
        Some(Wanted::Look) => Look::UntilSeen,
        _ => Look::At(row.time("due_at")?),
    };
    let watch = kept.watch(row.text("service_id")?, row.count("version")?, look);
    Ok(Adopted {
        watch: watch.map_err(|_| corrupt("spec"))?,
        goal_begun_at: row.time_or_null("waited_since")?,
        looks: Looks { looked_at: row.time_or_null("observed_at")?, failure },
    })
}

fn failure(row: &Record) -> StoreResult<LookFailure> {
    Ok(LookFailure {
        code: row.text("code")?,
        message: row.text("message")?,
        since: row.time("since")?,
        failed_at: row.time("failed_at")?,
        times: 1,
    })
}
