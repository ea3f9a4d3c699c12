//! What is done with rows that are structs: each operation is one statement, unless it says otherwise.

use towpath_core::ports::store::{StoreError, StoreResult};

use super::{OwnTables, Row};
use crate::dialect::Dialect;
use crate::schema::{ColumnKind, Table};
use crate::sql::{SqlFault, Value};

impl OwnTables<'_> {
    /// The row of a key.
    pub async fn find<R: Row>(&mut self, key: &R::Key) -> StoreResult<Option<R>> {
        self.by_key("row.find", R::key_values(key), "").await
    }

    /// The same as it is now, and nobody else changes it until the transaction ends.
    pub async fn lock<R: Row>(&mut self, key: &R::Key) -> StoreResult<Option<R>> {
        self.by_key("row.lock", R::key_values(key), self.dialect().locking()).await
    }

    /// The row that has the key of this one as it is now, locked as above.
    pub async fn reload<R: Row>(&mut self, row: &R) -> StoreResult<Option<R>> {
        self.by_key("row.lock", key_of(row), self.dialect().locking()).await
    }

    /// Writes columns of the row that has the key of this one, if conditions with one `?` each are so of it. Answers the row as
    /// it is then; nothing, if they were not.
    pub async fn update<R: Row>(
        &mut self,
        row: &R,
        set: Vec<(&str, Value<'_>)>,
        conditions: Vec<(&str, Value<'_>)>,
    ) -> StoreResult<Option<R>> {
        let table = R::TABLE;
        let (mut changes, mut chosen, mut values) = (Vec::new(), vec![key_condition(table)], Vec::new());
        for (column, value) in set {
            column_of(table, column, "row.update")?;
            if table.primary_key.contains(&column) {
                return Err(refused("row.update", table, "keeps its key: what is another row is inserted"));
            }
            changes.push(format!("{column} = ?"));
            values.push(value);
        }
        values.extend(key_of(row));
        for (condition, value) in conditions {
            chosen.push(format!("({condition})"));
            values.push(value);
        }
        let sql = format!("UPDATE {} SET {} WHERE {}", table.name, changes.join(", "), chosen.join(" AND "));
        if self.dialect().returns_updated() {
            let sql = format!("{sql} RETURNING {}", table.listed(""));
            return Ok(self.query("row.update", &sql, values).await?.pop());
        }
        match self.0.execute("row.update", &sql, values).await? {
            0 => Ok(None),
            _ => self.by_key("row.update", key_of(row), "").await,
        }
    }

    /// The row that has the key of this one, locked as above: the one that is there, or else this one, which is written.
    pub async fn lock_or_insert<R: Row>(&mut self, row: &R) -> StoreResult<R> {
        let (table, dialect) = (R::TABLE, self.dialect());
        // Where a failed insert would keep a lock that others share, two that then want the row would wait for each other.
        let otherwise = dialect.otherwise_hold(table);
        let sql = format!("{} {otherwise}", insert_sql(table));
        self.0.execute("row.hold", &sql, row.values()).await?;
        let found = self.by_key("row.lock", key_of(row), dialect.locking()).await?;
        found.ok_or_else(|| match dialect {
            // There a value that must be unique is an error of its own: the row was deleted in between.
            #[cfg(feature = "postgres")]
            Dialect::Postgres => StoreError::Contention("the row was deleted meanwhile".into()),
            _ => refused("row.hold", table, "has another row with one of the values that are unique"),
        })
    }

    /// Writes a new row; false if there is one of its key, which stays as it is.
    ///
    /// # Errors
    /// Another row has a value that must be unique ([`is_unique_violation`](crate::is_unique_violation)). On PostgreSQL that
    /// ends the transaction.
    pub async fn insert<R: Row>(&mut self, row: &R) -> StoreResult<bool> {
        let table = R::TABLE;
        let sql = format!("{} {}", insert_sql(table), self.dialect().otherwise_nothing(table));
        match self.0.execute("row.insert", &sql, row.values()).await {
            Ok(touched) => Ok(touched == 1),
            // MySQL cannot be told which of the unique values may be there. The one that is there is read as it is now,
            // whatever this transaction has seen before.
            Err(SqlFault::Unique { error, .. }) if !self.dialect().ends_transactions_by_errors() => {
                let sharing = self.dialect().for_share();
                let found: Option<R> = self.by_key("row.insert", key_of(row), sharing).await?;
                found.map_or(Err(error), |_| Ok(false))
            }
            Err(fault) => Err(fault.into()),
        }
    }

    /// Deletes the row of a key; whether there was one.
    pub async fn delete<R: Row>(&mut self, key: &R::Key) -> StoreResult<bool> {
        let sql = format!("DELETE FROM {} WHERE {}", R::TABLE.name, key_condition(R::TABLE));
        Ok(self.0.execute("row.delete", &sql, R::key_values(key)).await? > 0)
    }

    /// Writes rows, and replaces those that have the same keys: in statements of some thousand rows. No key may be among
    /// them twice.
    pub async fn put_rows<R: Row>(&mut self, rows: &[R]) -> StoreResult<()> {
        self.put("row.put", R::TABLE, rows.iter().map(R::values).collect()).await
    }

    /// The same, but a row that is there with a higher number in the column `version` stays.
    pub async fn put_newer_rows<R: Row>(&mut self, rows: &[R], version: &'static str) -> StoreResult<()> {
        column_of(R::TABLE, version, "row.put")?;
        self.put_newer("row.put", R::TABLE, version, rows.iter().map(R::values).collect()).await
    }

    /// Adds to the number in a column, and answers what it is then. A row that is not there begins with 0: all its other
    /// columns may be null, or are counts. However many add at a time, nothing is lost.
    pub async fn add<R: Row>(&mut self, key: &R::Key, column: &str, by: i64) -> StoreResult<i64> {
        let table = R::TABLE;
        column_of(table, column, "row.add")?;
        let others = table.columns.iter().filter(|other| {
            other.name != column && !table.primary_key.contains(&other.name) && !other.nullable
        });
        if let Some(other) = others.into_iter().find(|other| other.kind != ColumnKind::Count) {
            let why = format!("cannot be begun by a number: {} needs a value", other.name);
            return Err(refused("row.add", table, &why));
        }
        let (name, dialect) = (table.name, self.dialect());
        let (key_columns, width) = (table.primary_key.join(", "), table.primary_key.len() + 1);
        let sql = format!(
            "INSERT INTO {name} ({key_columns}, {column}) VALUES ({}) {} {column} = {name}.{column} + {}",
            vec!["?"; width].join(", "),
            dialect.on_conflict(&key_columns),
            dialect.inserted(column),
        );
        let mut values = R::key_values(key);
        values.push(by.into());
        let row = if dialect.returns_updated() {
            self.row("row.add", &format!("{sql} RETURNING {name}.{column}"), values).await?
        } else {
            self.0.execute("row.add", &sql, values).await?;
            let sql = format!("SELECT {column} FROM {name} WHERE {}", key_condition(table));
            self.row("row.add", &sql, R::key_values(key)).await?
        };
        row.ok_or_else(|| refused("row.add", table, "has answered no row"))?.long(column)
    }

    /// The rows of a table that are chosen by what stands behind its name: `WHERE ... ORDER BY ... LIMIT ?`.
    pub async fn rows_of<R: Row>(
        &mut self,
        name: &'static str,
        chosen: &str,
        values: Vec<Value<'_>>,
    ) -> StoreResult<Vec<R>> {
        let sql = format!("SELECT {} FROM {} {chosen}", R::TABLE.listed(""), R::TABLE.name);
        self.query(name, &sql, values).await
    }

    /// The rows that a whole statement answers, with all the columns of the table ([`Table::listed`]).
    pub async fn query<R: Row>(
        &mut self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> StoreResult<Vec<R>> {
        // Each is let go when it was read: two copies of all would be held otherwise.
        self.rows(name, sql, values).await?.into_iter().map(|record| R::read(&record)).collect()
    }

    async fn by_key<R: Row>(
        &mut self,
        name: &'static str,
        key: Vec<Value<'_>>,
        locking: &str,
    ) -> StoreResult<Option<R>> {
        let chosen = format!("WHERE {} {locking}", key_condition(R::TABLE));
        Ok(self.rows_of(name, &chosen, key).await?.pop())
    }
}

impl Table {
    /// Its columns as a SELECT lists them, each behind a prefix such as `o.`.
    pub fn listed(&self, prefix: &str) -> String {
        self.columns().map(|column| format!("{prefix}{column}")).collect::<Vec<_>>().join(", ")
    }
}

fn insert_sql(table: &Table) -> String {
    let values = vec!["?"; table.columns.len()].join(", ");
    format!("INSERT INTO {} ({}) VALUES ({values})", table.name, table.listed(""))
}

pub(super) fn key_condition(table: &Table) -> String {
    let equal: Vec<String> = table.primary_key.iter().map(|column| format!("{column} = ?")).collect();
    equal.join(" AND ")
}

/// The values of a row's key.
pub(super) fn key_of<R: Row>(row: &R) -> Vec<Value<'_>> {
    let key = R::TABLE.primary_key;
    let mut values: Vec<Option<Value<'_>>> = row.values().into_iter().map(Some).collect();
    let places = key.iter().filter_map(|column| R::TABLE.columns().position(|name| name == *column));
    places.filter_map(|at| values.get_mut(at).and_then(Option::take)).collect()
}

/// Refuses what is no column of a table: it would stand in the statement's text.
pub(super) fn column_of(table: &Table, column: &str, statement: &'static str) -> StoreResult<()> {
    if table.columns().any(|name| name == column) {
        return Ok(());
    }
    Err(refused(statement, table, &format!("has no column {column}")))
}

fn refused(statement: &'static str, table: &Table, why: &str) -> StoreError {
    StoreError::Refused { statement, source: format!("the table {} {why}", table.name).into() }
}
