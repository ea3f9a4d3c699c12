//! What projections need of the store: how far each aggregate is, and rows of an application's tables by their keys.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use towpath_core::envelope::RecordedEvent;
use towpath_core::ids::{AggregateKey, Version};
use towpath_core::ports::store::{StoreError, StoreResult};

use crate::ops;
use crate::own_tables::OwnTables;
use crate::schema::{Column, ColumnKind, PROJECTIONS, Table};
use crate::sql::{Row, Value, values};
use crate::store::{SqlStore, listing, reading, writing_once};
use crate::transaction::SqlTransaction;

/// How many rows a statement names: SQLite refuses conditions of a thousand parts.
const KEYS_AT_ONCE: usize = 250;

/// How far the rows of an aggregate are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Projected {
    /// Its last fact that is in them.
    pub version: Version,
    /// The version of the projection that has made them; 0: nobody knows of any.
    pub by: u32,
}

/// An aggregate, and how far its rows are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectedAggregate {
    /// Which one of its kind.
    pub id: String,
    /// How many facts it has.
    pub version: Version,
    /// How far its rows are.
    pub projected: Projected,
    /// Whether they do not go on.
    pub is_failing: bool,
}

/// An aggregate that has rows in a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Which one of its kind.
    pub id: String,
    /// Whether the projection knows of it.
    pub is_known: bool,
    /// Whether the log does.
    pub has_facts: bool,
}

/// Why the rows of an aggregate do not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectionFailure {
    /// Which one of its kind.
    pub aggregate_id: String,
    /// Its last fact that is in them.
    pub version: Version,
    /// A stable code.
    pub reason: String,
    /// A text for people.
    pub message: String,
    /// When it was last tried.
    pub failed_at: DateTime<Utc>,
}

/// How far a projection is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectionProgress {
    /// How many aggregates of its kind there are.
    pub aggregates: u64,
    /// How many of them have rows that this version has made.
    pub current: u64,
    /// The version by which all were made that were there.
    pub made_by: u32,
    /// What does not go on: the first hundred.
    pub failures: Vec<ProjectionFailure>,
}

/// What belongs to aggregates.
#[derive(Debug, Clone, Copy)]
pub enum Owned<'o> {
    /// The rows of a table, in which a column names the aggregate.
    Rows(&'o Table, &'o str),
    /// What this observer looks at: a subject belongs to the aggregate of its id.
    Watched(&'o str),
}

impl SqlTransaction {
    /// How far these aggregates are: locked until the transaction ends, also those that nobody knew of.
    pub async fn lock_projected(
        &mut self,
        projection: &str,
        kind: &str,
        ids: &[String],
    ) -> StoreResult<BTreeMap<String, Projected>> {
        ops::projections::lock(&mut self.session(), projection, kind, ids).await
    }

    /// Notes how far these aggregates are now, and that nothing is wrong with them.
    pub async fn note_projected(
        &mut self,
        projection: &str,
        kind: &str,
        by: u32,
        reached: &[(String, Version)],
    ) -> StoreResult<()> {
        let rows = reached.iter().map(|(id, version)| {
            let (failed_at, reason, message) = (None::<DateTime<Utc>>, None::<&str>, None::<&str>);
            values![projection, kind, id.as_str(), *version, by, failed_at, reason, message]
        });
        let rows = rows.collect();
        self.own_tables().put("projection.note", &PROJECTIONS, rows).await
    }

    /// By which version of a projection all aggregates were made; 0: by none yet.
    pub async fn projection_made_by(&mut self, projection: &str, kind: &str) -> StoreResult<u32> {
        ops::projections::made_by(&mut self.session(), projection, kind).await
    }

    /// Notes why the rows of an aggregate do not go on.
    pub async fn projection_failed(
        &mut self,
        projection: &str,
        kind: &str,
        aggregate_id: &str,
        reason: (&str, &str),
    ) -> StoreResult<()> {
        ops::projections::fail(&mut self.session(), projection, kind, aggregate_id, reason).await
    }

    /// Forgets an aggregate that has no facts.
    pub async fn forget_projected(&mut self, projection: &str, kind: &str, id: &str) -> StoreResult<()> {
        ops::projections::forget(&mut self.session(), projection, kind, id).await
    }

    /// Facts of an aggregate behind a version, in order: as many of the first `limit` as have so many bytes together, and at
    /// least one.
    pub async fn events_of_within(
        &mut self,
        aggregate: &AggregateKey,
        after: Version,
        limit: u32,
        bytes: u64,
    ) -> StoreResult<Vec<RecordedEvent>> {
        ops::aggregates::events_of_within(&mut self.session(), aggregate, after, limit, bytes).await
    }

    /// Whole rows of an application's table by their primary keys, locked until the transaction ends, with a value per column
    /// in the order of the declaration.
    ///
    /// # Errors
    /// `Refused` for a table that has bytes.
    pub async fn rows_by_key(
        &mut self,
        table: &Table,
        keys: &[Vec<Value<'static>>],
    ) -> StoreResult<Vec<Vec<Value<'static>>>> {
        let columns: Vec<&str> = table.columns().collect();
        let mut session = self.session();
        let mut found = Vec::with_capacity(keys.len());
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let (columns, chosen) = (columns.join(", "), by_key(table, keys));
            let locking = session.dialect().for_update();
            let sql = format!("SELECT {columns} FROM {} WHERE {chosen} {locking}", table.name);
            let keys = keys.iter().flatten().cloned().collect();
            for row in session.rows("projection.rows", &sql, keys).await? {
                let values = table.columns.iter().map(|column| value_of(&row, column));
                found.push(values.collect::<StoreResult<_>>()?);
            }
        }
        Ok(found)
    }

    /// Deletes rows of an application's table by their primary keys.
    pub async fn delete_by_key(&mut self, table: &Table, keys: &[Vec<Value<'static>>]) -> StoreResult<()> {
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let sql = format!("DELETE FROM {} WHERE {}", table.name, by_key(table, keys));
            let keys = keys.iter().flatten().cloned().collect();
            self.session().execute("projection.delete", &sql, keys).await?;
        }
        Ok(())
    }

    /// Deletes the rows of these aggregates, which `column` names.
    pub async fn delete_rows_of(
        &mut self,
        table: &Table,
        column: &str,
        aggregate_ids: &[String],
    ) -> StoreResult<()> {
        let mut keys = values![];
        let chosen = OwnTables::one_of(column, aggregate_ids, &mut keys);
        let sql = format!("DELETE FROM {} WHERE {chosen}", table.name);
        self.session().execute("projection.clear", &sql, keys).await?;
        Ok(())
    }
}

impl SqlStore {
    /// By which version of a projection all aggregates were made; 0: by none yet.
    pub async fn projection_made_by(&self, projection: &str, kind: &str) -> StoreResult<u32> {
        reading!(self, ops::projections::made_by, projection, kind)
    }

    /// Notes that all were made by this version.
    pub async fn projection_is_made(&self, projection: &str, kind: &str, by: u32) -> StoreResult<()> {
        writing_once!(self, ops::projections::all_made, projection, kind, by)
    }

    /// Some aggregates of a kind, by id, behind one, with how far they are.
    pub async fn projected_behind(
        &self,
        projection: &str,
        kind: &str,
        after: &str,
        limit: u32,
    ) -> StoreResult<Vec<ProjectedAggregate>> {
        reading!(self, ops::projections::walk, projection, kind, after, limit)
    }

    /// To whom something belongs, behind one.
    pub async fn owners_behind(
        &self,
        projection: (&str, &str),
        owned: Owned<'_>,
        after: &str,
        limit: u32,
    ) -> StoreResult<Vec<Owner>> {
        reading!(self, ops::projections::owners, projection, owned, after, limit)
    }

    /// How far a projection is. It counts: for people, not for programs that ask all the time.
    pub async fn projection_progress(
        &self,
        projection: &str,
        kind: &str,
        by: u32,
    ) -> StoreResult<ProjectionProgress> {
        listing!(self, ops::projections::progress, projection, kind, by)
    }
}

/// That a row is one of these.
fn by_key(table: &Table, keys: &[Vec<Value<'_>>]) -> String {
    if let [column] = table.primary_key {
        return format!("{column} IN ({})", vec!["?"; keys.len()].join(", "));
    }
    let columns: Vec<String> = table.primary_key.iter().map(|column| format!("{column} = ?")).collect();
    vec![format!("({})", columns.join(" AND ")); keys.len()].join(" OR ")
}

fn value_of(row: &Row, column: &Column) -> StoreResult<Value<'static>> {
    Ok(match column.kind {
        ColumnKind::Name(_) | ColumnKind::Text | ColumnKind::Json => row.text_or_null(column.name)?.into(),
        ColumnKind::Uuid => row.uuid_or_null(column.name)?.into(),
        ColumnKind::Time => row.time_or_null(column.name)?.into(),
        ColumnKind::Long | ColumnKind::Int | ColumnKind::Count | ColumnKind::AutoId => {
            row.long_or_null(column.name)?.into()
        }
        ColumnKind::Bytes => {
            let what = format!("rows with bytes cannot be projected: {}", column.name);
            return Err(StoreError::Refused { statement: "projection.rows", source: what.into() });
        }
    })
}
