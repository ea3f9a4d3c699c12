//! Running migrations: once, in order, whoever starts first.

use towpath_core::ports::store::{StoreError, StoreResult};

use crate::migrations::{MIGRATIONS, Migration, Step, newest_version};
use crate::sql::{Session, values};

const VERSIONS_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS towpath_migrations (version INTEGER NOT NULL PRIMARY KEY)";

/// Applies what is missing, under a lock that the caller's session holds until it ends.
///
/// On PostgreSQL and SQLite the caller has opened a transaction, so that a version is there as a whole or not at
/// all. MySQL commits each statement on its own: every step can be repeated there, and the version is recorded
/// last.
pub(crate) async fn apply(session: &mut Session<'_>) -> StoreResult<Vec<u32>> {
    session.plain("migrate.versions", VERSIONS_TABLE).await?;
    let found = recorded_version(session).await?;
    refuse_newer(found)?;
    let mut applied = Vec::new();
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > found) {
        apply_one(session, migration).await?;
        applied.push(migration.version);
    }
    Ok(applied)
}

/// Whether the database has exactly this build's tables.
pub(crate) async fn check(session: &mut Session<'_>) -> StoreResult<()> {
    let found = if has_versions_table(session).await? { recorded_version(session).await? } else { 0 };
    refuse_newer(found)?;
    match newest_version() {
        needed if found < needed => Err(StoreError::NotMigrated { found, needed }),
        _ => Ok(()),
    }
}

async fn apply_one(session: &mut Session<'_>, migration: &Migration) -> StoreResult<()> {
    for step in migration.steps {
        match step {
            Step::Create(table) => {
                for statement in session.dialect().create_table(table) {
                    session.plain("migrate.create", &statement).await?;
                }
            }
            Step::Seed(sql) => session.plain("migrate.seed", sql).await?,
            Step::Index(table, name) => {
                let exists = session.dialect().index_exists();
                let missing =
                    session.row("migrate.look", exists, values![table.name, *name]).await?.is_none();
                for index in table.indexes.iter().filter(|index| missing && index.name == *name) {
                    let sql = session.dialect().create_index(table, index);
                    session.plain("migrate.index", &sql).await?;
                }
            }
        }
    }
    let sql = "INSERT INTO towpath_migrations (version) VALUES (?)";
    session.execute("migrate.record", sql, values![migration.version]).await?;
    Ok(())
}

fn refuse_newer(found: u32) -> StoreResult<()> {
    let known = newest_version();
    if found > known { Err(StoreError::NewerSchema { found, known }) } else { Ok(()) }
}

async fn recorded_version(session: &mut Session<'_>) -> StoreResult<u32> {
    let row = session
        .row("migrate.read", "SELECT MAX(version) AS version FROM towpath_migrations", values![])
        .await?;
    let version = row.map(|row| row.long_or_null("version")).transpose()?.flatten().unwrap_or(0);
    u32::try_from(version).map_err(|error| crate::sql::unreadable("towpath_migrations.version", error))
}

async fn has_versions_table(session: &mut Session<'_>) -> StoreResult<bool> {
    let sql = session.dialect().table_exists();
    Ok(session.row("migrate.look", sql, values!["towpath_migrations"]).await?.is_some())
}
