//! Tables of an application by versions: applied once, in order, under a lock, whoever starts first.
//!
//! A table is declared as it is today, and a fresh database gets it so. What a later version adds to it is named there, and
//! is harmless where it is. On PostgreSQL and SQLite all versions commit together. MySQL commits each step for itself: there
//! each can be repeated, and a version is recorded last.

use std::future::Future;
use std::pin::Pin;

use chrono::Utc;
use towpath_core::ports::store::{StoreError, StoreResult};

use super::{OwnTables, exists};
use crate::schema::{ColumnKind, Table};
use crate::sql::values;
use crate::store::{Purpose, SqlStore};
use crate::views::SqlView;

/// The tables and views of one application. What was applied is kept in the table `NAME_migrations`.
#[derive(Debug, Clone)]
pub struct Versions {
    name: &'static str,
    versions: &'static [Version],
    views: Vec<SqlView>,
}

/// A version, from 1 on, and its steps.
#[derive(Debug, Clone, Copy)]
pub struct Version(pub u32, pub &'static [Step]);

/// One change of a version. A step that was released is not changed any more.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// A table that is not there yet.
    Create(&'static Table),
    /// Columns that were added to a table since it was first made: nullable ones, or counts.
    AddColumns(&'static Table, &'static [&'static str]),
    /// An index that was added to a table since it was first made.
    AddIndex(&'static Table, &'static str),
    /// An index that a table does not have any more.
    DropIndex(&'static Table, &'static str),
    /// Statements of each database's own. They may be repeated on MySQL.
    Sql {
        /// For SQLite.
        sqlite: &'static str,
        /// For PostgreSQL.
        postgres: &'static str,
        /// For MySQL and MariaDB.
        mysql: &'static str,
    },
    /// What a statement cannot say. It may be repeated on MySQL: `Run(|tables| Box::pin(first_rows(tables)))`.
    Run(Run),
}

/// Rows that a version writes.
pub type Run =
    for<'t, 'c> fn(&'t mut OwnTables<'c>) -> Pin<Box<dyn Future<Output = StoreResult<()>> + Send + 't>>;

impl Versions {
    /// The versions of an application, whose name is a word that no other one has.
    pub const fn of(name: &'static str, versions: &'static [Version]) -> Self {
        Self { name, versions, views: Vec::new() }
    }

    /// Views that are made anew at each start, once the tables are there.
    pub fn views(mut self, views: impl IntoIterator<Item = SqlView>) -> Self {
        self.views.extend(views);
        self
    }

    fn newest(&self) -> i64 {
        self.versions.last().map_or(0, |Version(number, _)| i64::from(*number))
    }

    /// Refuses what could never be applied.
    fn check(&self) -> StoreResult<()> {
        let refused = |why: String| {
            let source = format!("the tables of {}: {why}", self.name).into();
            Err(StoreError::Refused { statement: "versions.check", source })
        };
        for (at, Version(number, steps)) in self.versions.iter().enumerate() {
            if usize::try_from(*number).ok() != Some(at + 1) {
                return refused(format!("version {number} stands where version {} should", at + 1));
            }
            for step in *steps {
                match step {
                    Step::AddColumns(table, names) => {
                        for name in *names {
                            let column = table.columns.iter().find(|column| column.name == *name);
                            if !column.is_some_and(|one| one.nullable || one.kind == ColumnKind::Count) {
                                let table = table.name;
                                return refused(format!("{table} has no {name} that older rows could have"));
                            }
                        }
                    }
                    Step::AddIndex(table, name) if table.indexes.iter().all(|index| index.name != *name) => {
                        return refused(format!("{} has no index {name}", table.name));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// The columns of a table that later versions have added.
    fn added_later(&self, table: &Table) -> Vec<&'static str> {
        let steps = self.versions.iter().flat_map(|Version(_, steps)| *steps);
        let added = steps.filter_map(|step| match step {
            Step::AddColumns(to, names) if to.name == table.name => Some(*names),
            _ => None,
        });
        added.flatten().copied().collect()
    }
}

impl SqlStore {
    /// Brings the tables of an application to its newest version. Can be run again, and by several instances at a time.
    ///
    /// # Errors
    /// [`StoreError::ForeignTable`]: something else has one of the names. It is not touched, and nothing is made.
    ///
    /// # Caveats
    /// Tables of a newer build are left as they are.
    pub async fn migrate_tables(&self, versions: &Versions) -> StoreResult<()> {
        versions.check()?;
        // Mostly there is nothing to do, and then no lock is needed: an instance can start beside a long writer.
        let mut connection = self.open_reading().await?;
        let found = recorded(&mut connection.own_tables(), versions.name).await?;
        drop(connection);
        if found >= versions.newest() && versions.views.is_empty() {
            return Ok(());
        }
        let name = versions.name;
        if self.dialect().transactional_ddl() {
            let mut transaction = self.transaction().await?;
            let mut tables = transaction.own_tables().without_limit();
            if let Some(lock) = self.dialect().named_lock(name) {
                tables.plain("versions.lock", &lock).await?;
            }
            apply(&mut tables, versions).await?;
            transaction.commit().await?;
        } else {
            // MySQL's named lock belongs to the connection and is freed when that ends, even by a kill.
            let mut connection = self.connection(Purpose::Write).await?;
            let mut tables = OwnTables(connection.session()).without_limit();
            let sql = format!("SELECT GET_LOCK(CONCAT('{name}.', MD5(DATABASE())), 60) AS granted");
            let granted = tables.row("versions.lock", &sql, Vec::new()).await?;
            if granted.map(|row| row.long_or_null("granted")).transpose()?.flatten() != Some(1) {
                return Err(StoreError::Contention(
                    "another instance has been migrating for a minute".into(),
                ));
            }
            let applied = apply(&mut tables, versions).await;
            let sql = format!("DO RELEASE_LOCK(CONCAT('{name}.', MD5(DATABASE())))");
            tables.plain("versions.unlock", &sql).await?;
            applied?;
        }
        if versions.views.is_empty() { Ok(()) } else { self.create_views(&versions.views).await }
    }
}

async fn apply(tables: &mut OwnTables<'_>, versions: &Versions) -> StoreResult<()> {
    let name = versions.name;
    for view in &versions.views {
        // A table of that name is somebody's own.
        if exists(&mut tables.0, view.name).await? {
            let why = format!("{name} shows rows of its own in a view of that name");
            return Err(StoreError::ForeignTable { table: view.name.to_owned(), why });
        }
    }
    let sql = tables.dialect().versions_table(name);
    tables.plain("versions.table", &sql).await?;
    let found = recorded(tables, name).await?;
    for Version(number, steps) in versions.versions.iter().filter(|one| i64::from(one.0) > found) {
        // All of them first: what is refused is refused before anything is made.
        for step in *steps {
            if let Step::Create(table) = step {
                refuse_foreign(tables, versions, table).await?;
            }
        }
        for step in *steps {
            apply_one(tables, step).await?;
        }
        let sql = format!("INSERT INTO {name}_migrations (version, applied_at) VALUES (?, ?)");
        tables.execute("versions.record", &sql, values![*number, Utc::now()]).await?;
    }
    Ok(())
}

async fn apply_one(tables: &mut OwnTables<'_>, step: &Step) -> StoreResult<()> {
    let dialect = tables.dialect();
    match step {
        Step::Create(table) => {
            for statement in dialect.create_table(table) {
                tables.plain("versions.create", &statement).await?;
            }
        }
        Step::AddColumns(table, names) => {
            let there = columns_of(tables, table.name).await?;
            let missing = table.columns.iter().filter(|column| names.contains(&column.name));
            for column in missing.filter(|column| !there.iter().any(|found| found == column.name)) {
                tables.plain("versions.column", &dialect.add_column(table, column)).await?;
            }
        }
        Step::AddIndex(table, name) => {
            if !has_index(tables, table, name).await? {
                for index in table.indexes.iter().filter(|index| index.name == *name) {
                    tables.plain("versions.index", &dialect.create_index(table, index)).await?;
                }
            }
        }
        Step::DropIndex(table, name) => {
            if has_index(tables, table, name).await? {
                tables.plain("versions.index", &dialect.drop_index(table, name)).await?;
            }
        }
        Step::Sql { sqlite, postgres, mysql } => {
            tables.plain("versions.sql", dialect.own_words(sqlite, postgres, mysql)).await?;
        }
        Step::Run(run) => run(tables).await?,
    }
    Ok(())
}

/// The newest version that was applied; 0 before the first.
async fn recorded(tables: &mut OwnTables<'_>, name: &str) -> StoreResult<i64> {
    let versions = format!("{name}_migrations");
    if !exists(&mut tables.0, &versions).await? {
        return Ok(0);
    }
    let sql = format!("SELECT MAX(version) AS version FROM {versions}");
    let row = tables.row("versions.read", &sql, Vec::new()).await?;
    Ok(row.map(|row| row.long_or_null("version")).transpose()?.flatten().unwrap_or(0))
}

/// Refuses to share a table with somebody else. On MySQL one that is there before its version was recorded may be left from
/// a start that was cut short, also one of an older build: then it has our columns, or all but those that came later.
async fn refuse_foreign(tables: &mut OwnTables<'_>, versions: &Versions, table: &Table) -> StoreResult<()> {
    let found = columns_of(tables, table.name).await?;
    let later = versions.added_later(table);
    let is_ours = !tables.dialect().transactional_ddl()
        && found.iter().all(|column| table.columns().any(|own| own == column))
        && table.columns().all(|own| later.contains(&own) || found.iter().any(|column| column == own));
    if found.is_empty() || is_ours {
        return Ok(());
    }
    let mut own: Vec<&str> = table.columns().collect();
    own.sort_unstable();
    let why =
        format!("it has the columns {}; that of {} has {}", found.join(", "), versions.name, own.join(", "));
    Err(StoreError::ForeignTable { table: table.name.to_owned(), why })
}

/// The columns of a table, in the order of their names; none, if there is no such table.
async fn columns_of(tables: &mut OwnTables<'_>, table: &str) -> StoreResult<Vec<String>> {
    let sql = tables.dialect().columns_of_table();
    let rows = tables.rows("versions.columns", sql, values![table]).await?;
    let names = rows.iter().map(|row| row.text("column_name").map(|name| name.to_lowercase()));
    let mut columns = names.collect::<StoreResult<Vec<_>>>()?;
    columns.sort_unstable();
    Ok(columns)
}

async fn has_index(tables: &mut OwnTables<'_>, table: &Table, index: &str) -> StoreResult<bool> {
    let sql = tables.dialect().index_exists();
    Ok(tables.row("versions.look", sql, values![table.name, index]).await?.is_some())
}
