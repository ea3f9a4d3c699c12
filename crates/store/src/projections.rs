//! What projections need of an application's tables: rows by their keys and by their aggregates.

use towpath_core::envelope::RecordedEvent;
use towpath_core::ids::{AggregateKey, Version};
use towpath_core::ports::store::{StoreError, StoreResult};

use crate::ops;
use crate::own_tables::OwnTables;
use crate::schema::{Column, ColumnKind, Table};
use crate::sql::{Row, Value, values};
use crate::store::{SqlStore, reading};
use crate::transaction::SqlTransaction;

/// How many rows a statement names: SQLite refuses conditions of a thousand parts.
const KEYS_AT_ONCE: usize = 250;

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

/// What belongs to aggregates.
#[derive(Debug, Clone, Copy)]
pub enum Owned<'o> {
    /// The rows of a table, in which a column names the aggregate.
    Rows(&'o Table, &'o str),
    /// What this observer looks at: a subject belongs to the aggregate of its id.
    Watched(&'o str),
}

impl SqlTransaction {
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
