//! Projections: up to which fact each aggregate's rows are made, and finding what is still to be made.

use std::collections::BTreeMap;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ids::Version;
use towpath_core::ports::store::{
    Projected, ProjectedAggregate, ProjectionFailure, ProjectionProgress, Projections, StoreResult,
};

use crate::own_tables::OwnTables;
use crate::projections::{Owned, Owner};
use crate::sql::{Row, Session, Value, code, readable, values};
use crate::store::{SqlStore, listing, reading, writing_once};

/// The row that stands for all aggregates.
const ALL: &str = "";

/// How many failures are told.
const FAILURES: u32 = 100;

#[async_trait]
impl Projections for SqlStore {
    async fn projection_made_by(&self, projection: &str, kind: &str) -> StoreResult<u32> {
        reading!(self, made_by, projection, kind)
    }

    async fn projection_is_made(&self, projection: &str, kind: &str, by: u32) -> StoreResult<()> {
        writing_once!(self, all_made, projection, kind, by)
    }

    async fn projected_behind(
        &self,
        projection: &str,
        kind: &str,
        after: &str,
        limit: u32,
    ) -> StoreResult<Vec<ProjectedAggregate>> {
        reading!(self, walk, projection, kind, after, limit)
    }

    async fn projection_progress(
        &self,
        projection: &str,
        kind: &str,
        by: u32,
    ) -> StoreResult<ProjectionProgress> {
        listing!(self, progress, projection, kind, by)
    }
}

/// Locks the rows of these aggregates until the transaction ends, and makes those that are missing: who comes second waits,
/// and sees what the first has written.
pub(crate) async fn lock(
    session: &mut Session<'_>,
    projection: &str,
    kind: &str,
    ids: &[String],
) -> StoreResult<BTreeMap<String, Projected>> {
    let mut found = locked(session, projection, kind, ids).await?;
    let missing: Vec<String> = ids.iter().filter(|id| !found.contains_key(*id)).cloned().collect();
    if missing.is_empty() {
        return Ok(found);
    }
    let sql = format!(
        "INSERT INTO projections (projection, aggregate_kind, aggregate_id, version, projection_version) \
         VALUES {} {} version = projections.version",
        vec!["(?, ?, ?, 0, 0)"; missing.len()].join(", "),
        session.dialect().on_conflict("projection, aggregate_kind, aggregate_id"),
    );
    let made = missing.iter().flat_map(|id| values![projection, kind, id.as_str()]).collect();
    session.execute("projection.begin", &sql, made).await?;
    found.extend(locked(session, projection, kind, &missing).await?);
    Ok(found)
}

async fn locked(
    session: &mut Session<'_>,
    projection: &str,
    kind: &str,
    ids: &[String],
) -> StoreResult<BTreeMap<String, Projected>> {
    let mut keys = values![projection, kind];
    let chosen = OwnTables::one_of("aggregate_id", ids, &mut keys);
    let sql = format!(
        "SELECT aggregate_id, version, projection_version FROM projections \
         WHERE projection = ? AND aggregate_kind = ? AND {chosen} ORDER BY aggregate_id {}",
        session.dialect().for_update()
    );
    let rows = session.rows("projection.lock", &sql, keys).await?;
    let read = |row: &Row| {
        let to = Projected { version: row.count("version")?, by: row.small("projection_version")? };
        Ok((row.text("aggregate_id")?, to))
    };
    rows.iter().map(read).collect()
}

/// Rows that say how far aggregates are, and that nothing is wrong with them.
pub(crate) fn noted<'v>(
    projection: &'v str,
    kind: &'v str,
    by: u32,
    reached: &'v [(String, Version)],
) -> Vec<Vec<Value<'v>>> {
    let rows = reached.iter().map(|(id, version)| {
        let (failed_at, reason, message) = (None::<DateTime<Utc>>, None::<&str>, None::<&str>);
        values![projection, kind, id.as_str(), *version, by, failed_at, reason, message]
    });
    rows.collect()
}

/// Forgets an aggregate that has no facts.
pub(crate) async fn forget(
    session: &mut Session<'_>,
    projection: &str,
    kind: &str,
    id: &str,
) -> StoreResult<()> {
    let sql = "DELETE FROM projections WHERE projection = ? AND aggregate_kind = ? AND aggregate_id = ?";
    session.execute("projection.forget", sql, values![projection, kind, id]).await?;
    Ok(())
}

/// Notes why the rows of an aggregate do not go on.
pub(crate) async fn fail(
    session: &mut Session<'_>,
    projection: &str,
    kind: &str,
    id: &str,
    (reason, message): (&str, &str),
) -> StoreResult<()> {
    let dialect = session.dialect();
    let set = ["failed_at", "failed_reason", "failed_message"]
        .map(|column| format!("{column} = {}", dialect.inserted(column)));
    let sql = format!(
        "INSERT INTO projections (projection, aggregate_kind, aggregate_id, version, projection_version, \
         failed_at, failed_reason, failed_message) VALUES (?, ?, ?, 0, 0, {}, ?, ?) {} {}",
        dialect.now(),
        dialect.on_conflict("projection, aggregate_kind, aggregate_id"),
        set.join(", ")
    );
    let failed = values![projection, kind, id, code(reason), readable(message)];
    session.execute("projection.fail", &sql, failed).await?;
    Ok(())
}

/// By which version of the projection all aggregates were made; 0: by none yet.
pub(crate) async fn made_by(session: &mut Session<'_>, projection: &str, kind: &str) -> StoreResult<u32> {
    let sql = "SELECT projection_version FROM projections \
               WHERE projection = ? AND aggregate_kind = ? AND aggregate_id = ?";
    let row = session.row("projection.made_by", sql, values![projection, kind, ALL]).await?;
    row.map_or(Ok(0), |row| row.small("projection_version"))
}

/// Notes that all were made by this version.
async fn all_made(session: &mut Session<'_>, projection: &str, kind: &str, by: u32) -> StoreResult<()> {
    let dialect = session.dialect();
    let sql = format!(
        "INSERT INTO projections (projection, aggregate_kind, aggregate_id, version, projection_version) \
         VALUES (?, ?, ?, 0, ?) {} projection_version = {}",
        dialect.on_conflict("projection, aggregate_kind, aggregate_id"),
        dialect.inserted_if_newer("projections", "projection_version", Some("projection_version")),
    );
    session.execute("projection.all_made", &sql, values![projection, kind, ALL, by]).await?;
    Ok(())
}

/// Some aggregates of a kind, by id, behind one, with how far they are.
async fn walk(
    session: &mut Session<'_>,
    projection: &str,
    kind: &str,
    after: &str,
    limit: u32,
) -> StoreResult<Vec<ProjectedAggregate>> {
    let (pinned, first) = session.dialect().pinned_for_a_walk("a.aggregate_kind");
    let mut keys = values![projection];
    keys.extend(std::iter::repeat_n(Value::from(kind), pinned.matches('?').count()));
    keys.extend(values![after]);
    let sql = format!(
        "SELECT a.aggregate_id, a.version AS facts, p.version, p.projection_version, p.failed_at FROM aggregates a \
         LEFT JOIN projections p ON p.projection = ? AND p.aggregate_kind = a.aggregate_kind \
         AND p.aggregate_id = a.aggregate_id \
         WHERE {pinned} AND a.aggregate_id > ? ORDER BY {first}a.aggregate_id LIMIT {limit}"
    );
    let rows = session.rows("projection.walk", &sql, keys).await?;
    let number = |row: &Row, column: &str| -> StoreResult<u64> {
        Ok(row.long_or_null(column)?.and_then(|number| u64::try_from(number).ok()).unwrap_or_default())
    };
    let read = |row: &Row| {
        let by = u32::try_from(number(row, "projection_version")?).unwrap_or_default();
        Ok(ProjectedAggregate {
            id: row.text("aggregate_id")?,
            version: row.count("facts")?,
            projected: Projected { version: number(row, "version")?, by },
            is_failing: row.time_or_null("failed_at")?.is_some(),
        })
    };
    rows.iter().map(read).collect()
}

/// To whom something belongs, behind one.
pub(crate) async fn owners(
    session: &mut Session<'_>,
    (projection, kind): (&str, &str),
    owned: Owned<'_>,
    after: &str,
    limit: u32,
) -> StoreResult<Vec<Owner>> {
    let mut keys = values![];
    let owners = match owned {
        Owned::Rows(table, column) => {
            format!(
                "SELECT DISTINCT {column} AS owner FROM {} WHERE {column} > ? ORDER BY {column}",
                table.name
            )
        }
        Owned::Watched(observer) => {
            let (pinned, first) = session.dialect().pinned_for_a_walk("observer");
            keys.extend(pinned.matches('?').map(|_| Value::from(observer)));
            format!(
                "SELECT subject_id AS owner FROM observations WHERE {pinned} AND subject_id > ? \
                 ORDER BY {first}subject_id"
            )
        }
    };
    keys.extend(values![after, projection, kind, kind]);
    let sql = format!(
        "SELECT o.owner, p.aggregate_id AS known, a.aggregate_id AS in_log FROM ({owners} LIMIT {limit}) AS o \
         LEFT JOIN projections p ON p.projection = ? AND p.aggregate_kind = ? AND p.aggregate_id = o.owner \
         LEFT JOIN aggregates a ON a.aggregate_kind = ? AND a.aggregate_id = o.owner \
         ORDER BY o.owner"
    );
    let rows = session.rows("projection.owners", &sql, keys).await?;
    let is_there = |row: &Row, column: &str| row.text_or_null(column).map(|id| id.is_some());
    let read = |row: &Row| {
        let (is_known, has_facts) = (is_there(row, "known")?, is_there(row, "in_log")?);
        Ok(Owner { id: row.text("owner")?, is_known, has_facts })
    };
    rows.iter().map(read).collect()
}

/// How far it is.
async fn progress(
    session: &mut Session<'_>,
    projection: &str,
    kind: &str,
    by: u32,
) -> StoreResult<ProjectionProgress> {
    let sql = "SELECT COUNT(*) AS counted FROM aggregates WHERE aggregate_kind = ?";
    let aggregates = counted(session, sql, values![kind]).await?;
    let sql = "SELECT COUNT(*) AS counted FROM projections WHERE projection = ? AND aggregate_kind = ? \
               AND aggregate_id > '' AND projection_version >= ?";
    let current = counted(session, sql, values![projection, kind, by]).await?;
    let sql = format!(
        "SELECT aggregate_id, version, failed_at, failed_reason, failed_message FROM projections \
         WHERE failed_at IS NOT NULL AND projection = ? AND aggregate_kind = ? ORDER BY failed_at LIMIT {FAILURES}"
    );
    let rows = session.rows("projection.failures", &sql, values![projection, kind]).await?;
    let failures = rows.iter().map(read_failure).collect::<StoreResult<_>>()?;
    let made_by = made_by(session, projection, kind).await?;
    Ok(ProjectionProgress { aggregates, current, made_by, failures })
}

async fn counted(session: &mut Session<'_>, sql: &str, keys: Vec<Value<'_>>) -> StoreResult<u64> {
    let row = session.row("projection.count", sql, keys).await?;
    row.map_or(Ok(0), |row| row.count("counted"))
}

fn read_failure(row: &Row) -> StoreResult<ProjectionFailure> {
    let version: Version = row.count("version")?;
    Ok(ProjectionFailure {
        aggregate_id: row.text("aggregate_id")?,
        version,
        reason: row.text("failed_reason")?,
        message: row.text("failed_message")?,
        failed_at: row.time("failed_at")?,
    })
}
