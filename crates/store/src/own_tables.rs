//! Tables of an application's own: declared as data like ours, and read and written on any of the three databases.
//!
//! The application writes its statements once, with `?`, and keeps to what the databases say alike; what they say
//! differently (types, upserts) is done here. The probe sees these statements, too.
//!
//! Rows that are structs of the application's own are in `row`, what is done with them in `typed` and, for who looks through many
//! of them, in `page`; how their tables change from one build to the next is in `versions`.

mod conditions;
mod page;
mod row;
mod typed;
mod versions;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use towpath_core::ports::store::{StoreError, StoreResult};

use crate::dialect::Dialect;
use crate::schema::Table;
use crate::sql::{MAX_VALUES, Session, Value, unexpected_null, unreadable, values};
use crate::store::{OpenConnection, Purpose, SqlStore};
use crate::transaction::SqlTransaction;
use uuid::Uuid;

pub use conditions::Conditions;
pub use page::{Listing, Page};
pub use row::{ColumnValue, Json, Row, StoredName};
pub use versions::{Run, Step, Version, Versions};

/// How many bytes of rows one statement writes: servers refuse statements that are too large (MariaDB 16 MiB). A row that
/// is larger goes alone.
const MAX_BYTES: usize = 4 << 20;

/// Statements on the application's own tables, inside a transaction or on a connection. Each has the time limit of where it
/// runs.
pub struct OwnTables<'c>(Session<'c>);

/// A connection for reading the application's own tables: dropped, it goes back.
pub struct OwnConnection(OpenConnection);

/// A row of the application's own.
pub struct Record(Cells);

enum Cells {
    /// As the database has answered it.
    Read(crate::sql::Row),
    /// As it stands in memory, with a value per column of its table.
    Held(&'static Table, Arc<Vec<Value<'static>>>),
}

impl OwnTables<'_> {
    /// Which database this is, for what it says differently.
    pub fn dialect(&self) -> Dialect {
        self.0.dialect()
    }

    /// The same without a time limit: for the making of tables, which takes as long as it takes.
    pub fn without_limit(self) -> Self {
        Self(self.0.without_limit())
    }

    /// Runs text without parameters, which may be several statements: the making of tables.
    pub async fn plain(&mut self, name: &'static str, sql: &str) -> StoreResult<()> {
        Ok(self.0.plain(name, sql).await?)
    }

    /// Runs a statement and answers how many rows it touched. `name` is what the probe and errors call it.
    pub async fn execute(
        &mut self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> StoreResult<u64> {
        Ok(self.0.execute(name, sql, values).await?)
    }

    /// Runs a statement and answers its rows.
    pub async fn rows(
        &mut self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> StoreResult<Vec<Record>> {
        Ok(self.0.rows(name, sql, values).await?.into_iter().map(|row| Record(Cells::Read(row))).collect())
    }

    /// Runs a statement and answers its first row, if there is one.
    pub async fn row(
        &mut self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> StoreResult<Option<Record>> {
        Ok(self.rows(name, sql, values).await?.into_iter().next())
    }

    /// Runs a SELECT of one table that ends with its condition; answers the rows as they are now, locked until the
    /// transaction ends: what is written in the light of them is not written over what somebody else has written since.
    pub async fn locked_rows(
        &mut self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> StoreResult<Vec<Record>> {
        let sql = format!("{sql} {}", self.0.dialect().for_update());
        self.rows(name, &sql, values).await
    }

    /// Writes whole rows, each with a value per column in the order of the declaration. A row that has the same primary
    /// key is replaced. No key may be among them twice.
    pub async fn put(
        &mut self,
        name: &'static str,
        table: &Table,
        rows: Vec<Vec<Value<'_>>>,
    ) -> StoreResult<()> {
        self.put_by(name, table, None, rows).await
    }

    async fn put_by(
        &mut self,
        name: &'static str,
        table: &Table,
        version: Option<&'static str>,
        rows: Vec<Vec<Value<'_>>>,
    ) -> StoreResult<()> {
        let width = table.columns.len();
        if let Some(row) = rows.iter().find(|row| row.len() != width) {
            let what = format!("a row of {} has {width} values, and {} were given", table.name, row.len());
            return Err(StoreError::Refused { statement: name, source: what.into() });
        }
        for page in pages(rows, width) {
            let sql = put_sql(self.0.dialect(), table, version, page.len());
            self.0.execute(name, &sql, page.into_iter().flatten().collect()).await?;
        }
        Ok(())
    }

    /// Writes whole rows as [`put`](Self::put) does, unless the row that is there has a higher number in the column
    /// `version`: then that one stays.
    pub async fn put_newer(
        &mut self,
        name: &'static str,
        table: &Table,
        version: &'static str,
        rows: Vec<Vec<Value<'_>>>,
    ) -> StoreResult<()> {
        self.put_by(name, table, Some(version), rows).await
    }

    /// `column` is one of these texts; bind them after the values that stand before.
    pub fn one_of<'v>(column: &str, texts: &'v [String], values: &mut Vec<Value<'v>>) -> String {
        if texts.is_empty() {
            return "1 = 0".to_owned();
        }
        values.extend(texts.iter().map(|text| Value::from(text.as_str())));
        format!("{column} IN ({})", vec!["?"; texts.len()].join(", "))
    }
}

/// Rows of so many values, as many together as one statement may write.
pub(crate) fn pages<'v>(rows: Vec<Vec<Value<'v>>>, width: usize) -> Vec<Vec<Vec<Value<'v>>>> {
    let per_statement = (MAX_VALUES / width.max(1)).max(1);
    let (mut pages, mut bytes) = (Vec::<Vec<_>>::new(), 0);
    for row in rows {
        let more = size(&row);
        match pages.last_mut() {
            Some(page) if page.len() < per_statement && bytes + more <= MAX_BYTES => {
                bytes += more;
                page.push(row);
            }
            _ => {
                bytes = more;
                pages.push(vec![row]);
            }
        }
    }
    pages
}

fn size(row: &[Value<'_>]) -> usize {
    row.iter().map(Value::size).sum()
}

fn put_sql(dialect: Dialect, table: &Table, version: Option<&str>, rows: usize) -> String {
    let columns: Vec<&str> = table.columns.iter().map(|column| column.name).collect();
    let row = format!("({})", vec!["?"; columns.len()].join(", "));
    let mut replaced: Vec<&str> =
        columns.iter().filter(|column| !table.primary_key.contains(column)).copied().collect();
    // Where a value that was just set is seen by the next assignment, the number they all depend on must be the last.
    replaced.sort_by_key(|column| Some(*column) == version);
    let others: Vec<String> = replaced
        .into_iter()
        .map(|column| format!("{column} = {}", dialect.inserted_if_newer(table.name, column, version)))
        .collect();
    // A table that is all key has nothing to replace; setting a key column to itself says so on all three.
    let set = if others.is_empty() {
        let key = table.primary_key.first().copied().unwrap_or_default();
        format!("{key} = {}", dialect.inserted(key))
    } else {
        others.join(", ")
    };
    format!(
        "INSERT INTO {} ({}) VALUES {} {} {set}",
        table.name,
        columns.join(", "),
        vec![row; rows].join(", "),
        dialect.on_conflict(&table.primary_key.join(", ")),
    )
}

impl SqlTransaction {
    /// Statements on the application's own tables, in this transaction.
    pub fn own_tables(&mut self) -> OwnTables<'_> {
        OwnTables(self.session())
    }
}

impl OwnConnection {
    /// Statements on the application's own tables, each by itself.
    pub fn own_tables(&mut self) -> OwnTables<'_> {
        OwnTables(self.0.session())
    }
}

impl SqlStore {
    /// A connection for finding single rows of the application's own tables. On SQLite it is not the one that writes.
    pub async fn open_reading(&self) -> StoreResult<OwnConnection> {
        self.connection(Purpose::Read).await.map(OwnConnection)
    }

    /// A connection for what people look through: one of those that listings have for themselves, so that no command waits
    /// for them, and the database ends what takes too long ([`StoreOptions`](crate::StoreOptions)).
    ///
    /// # Errors
    /// Of its statements: [`StoreError::TooSlow`].
    pub async fn open_listing(&self) -> StoreResult<OwnConnection> {
        self.connection(Purpose::List).await.map(OwnConnection)
    }

    /// Makes the application's own tables where they are missing. Instances that do it at the same time take turns.
    ///
    /// # Caveats
    /// A table that is there is taken as it is.
    pub async fn create_tables(&self, tables: &[Table]) -> StoreResult<()> {
        // Mostly they are there, and then no lock is needed.
        let mut missing = false;
        {
            let mut connection = self.connection(Purpose::Read).await?;
            let mut session = connection.session();
            for table in tables {
                missing |= !exists(&mut session, table.name).await?;
            }
        }
        if !missing {
            return Ok(());
        }
        let mut transaction = self.transaction().await?;
        let mut session = transaction.session().without_limit();
        if let Some(lock) = session.dialect().migration_lock() {
            session.plain("tables.lock", lock).await?;
        }
        for table in tables {
            // On MySQL a table is made at once and only if it is missing: there nobody needs to take turns.
            if !exists(&mut session, table.name).await? {
                for statement in session.dialect().create_table(table) {
                    session.plain("tables.create", &statement).await?;
                }
            }
        }
        transaction.commit().await
    }

    /// Whether there is a table of this name.
    pub async fn has_table(&self, name: &str) -> StoreResult<bool> {
        exists(&mut self.connection(Purpose::Read).await?.session(), name).await
    }

    /// Reads from the application's own tables: one statement, by itself. For what people look through, see
    /// [`own_listing`](Self::own_listing).
    pub async fn own_rows(
        &self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> StoreResult<Vec<Record>> {
        self.open_reading().await?.own_tables().rows(name, sql, values).await
    }

    /// The same for what people look through, as [`open_listing`](Self::open_listing) has it.
    pub async fn own_listing(
        &self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> StoreResult<Vec<Record>> {
        self.open_listing().await?.own_tables().rows(name, sql, values).await
    }

    /// Writes to the application's own tables: one statement, which is its own transaction.
    pub async fn own_execute(
        &self,
        name: &'static str,
        sql: &str,
        values: Vec<Value<'_>>,
    ) -> StoreResult<u64> {
        let mut connection = self.connection(Purpose::Write).await?;
        OwnTables(connection.session()).execute(name, sql, values).await
    }
}

async fn exists(session: &mut Session<'_>, table: &str) -> StoreResult<bool> {
    let sql = session.dialect().table_exists();
    Ok(session.row("tables.look", sql, values![table]).await?.is_some())
}

/// The value of a column or null, from wherever the row is.
macro_rules! cell {
    ($record:expr, $column:expr, $read:ident, $held:ident) => {
        match &$record.0 {
            Cells::Read(row) => row.$read($column),
            Cells::Held(table, values) => match held(table, values, $column)? {
                Value::$held(value) => Ok(value.clone().map(Into::into)),
                _ => Err(unreadable($column, "it is of another type")),
            },
        }
    };
}

fn held<'r>(table: &Table, values: &'r [Value<'static>], column: &str) -> StoreResult<&'r Value<'static>> {
    let found = table.columns().zip(values).find(|(name, _)| *name == column);
    found.map(|(_, value)| value).ok_or_else(|| unreadable(column, "there is no such column"))
}

impl Record {
    /// A row in memory: a value per column of its table, in the order of the declaration.
    pub fn held(table: &'static Table, values: Arc<Vec<Value<'static>>>) -> Self {
        Self(Cells::Held(table, values))
    }

    /// A text.
    ///
    /// # Errors
    /// This and the others: there is no such column, it is null, or it is of another type.
    pub fn text(&self, column: &str) -> StoreResult<String> {
        self.text_or_null(column)?.ok_or_else(|| unexpected_null(column))
    }

    /// A text or null.
    pub fn text_or_null(&self, column: &str) -> StoreResult<Option<String>> {
        cell!(self, column, text_or_null, Text)
    }

    /// A number.
    pub fn long(&self, column: &str) -> StoreResult<i64> {
        self.long_or_null(column)?.ok_or_else(|| unexpected_null(column))
    }

    /// A number or null.
    pub fn long_or_null(&self, column: &str) -> StoreResult<Option<i64>> {
        cell!(self, column, long_or_null, Long)
    }

    /// A number that cannot be negative.
    pub fn count(&self, column: &str) -> StoreResult<u64> {
        u64::try_from(self.long(column)?).map_err(|error| unreadable(column, error))
    }

    /// A moment.
    pub fn time(&self, column: &str) -> StoreResult<DateTime<Utc>> {
        self.time_or_null(column)?.ok_or_else(|| unexpected_null(column))
    }

    /// A moment or null.
    pub fn time_or_null(&self, column: &str) -> StoreResult<Option<DateTime<Utc>>> {
        cell!(self, column, time_or_null, Time)
    }

    /// An id.
    pub fn uuid(&self, column: &str) -> StoreResult<Uuid> {
        let found: StoreResult<Option<Uuid>> = cell!(self, column, uuid_or_null, Uuid);
        found?.ok_or_else(|| unexpected_null(column))
    }

    /// Bytes.
    pub fn bytes(&self, column: &str) -> StoreResult<Vec<u8>> {
        match &self.0 {
            Cells::Read(row) => row.bytes(column),
            Cells::Held(..) => Err(unreadable(column, "rows in memory have no bytes")),
        }
    }

    /// Whether it is null.
    pub fn is_null(&self, column: &str) -> StoreResult<bool> {
        match &self.0 {
            Cells::Read(row) => row.is_null(column),
            Cells::Held(table, values) => Ok(held(table, values, column)?.is_null()),
        }
    }

    /// A text that stands for something, such as a state by its name.
    ///
    /// # Errors
    /// `find` knows no such thing.
    pub fn named<T>(&self, column: &str, find: impl Fn(&str) -> Option<T>) -> StoreResult<T> {
        let text = self.text(column)?;
        find(&text).ok_or_else(|| unreadable(column, format!("{text:?} is no such thing")))
    }
}
