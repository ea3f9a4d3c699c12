//! The other side of the comparison: the business transaction as one writes it by hand with the raw driver.
//!
//! Bare: begin, read the row, change it under its version, commit. By hand: the same with an event and an outbox
//! row, as separate statements, which is what a hand-written outbox does.

use towpath::SqlStore;
use towpath::sqlx::{self, Executor, Row};

/// A contender that runs one business transaction on the account with a number.
#[derive(Clone)]
pub(crate) struct ByHand {
    pub(crate) store: SqlStore,
    /// Whether it also writes an event and an outbox row.
    pub(crate) with_outbox: bool,
}

/// The tables of the hand-written contender, in SQL that all three databases read.
pub(crate) const TABLES: [&str; 3] = [
    "CREATE TABLE bare_accounts (id VARCHAR(64) NOT NULL PRIMARY KEY, version BIGINT NOT NULL, data VARCHAR(500) NOT NULL)",
    "CREATE TABLE bare_events (id VARCHAR(64) NOT NULL PRIMARY KEY, account_id VARCHAR(64) NOT NULL, payload VARCHAR(500) NOT NULL)",
    "CREATE TABLE bare_outbox (id VARCHAR(64) NOT NULL PRIMARY KEY, status VARCHAR(16) NOT NULL)",
];

macro_rules! by_hand {
    ($pool:expr, $begin:expr, $account:expr, $with_outbox:expr, $select:literal, $update:literal, $event:literal, $outbox:literal) => {{
        let mut transaction = $begin;
        let row = sqlx::query($select).bind($account).fetch_one(&mut *transaction).await?;
        let version: i64 = row.try_get(0)?;
        let data: String = row.try_get(1)?;
        let mut account: crate::write::Account =
            serde_json::from_str(&data).map_err(|error| sqlx::Error::Decode(error.into()))?;
        account.deposits += 1;
        let data = serde_json::to_string(&account).map_err(|error| sqlx::Error::Encode(error.into()))?;
        let changed = sqlx::query($update)
            .bind(&data)
            .bind(version + 1)
            .bind($account)
            .bind(version)
            .execute(&mut *transaction)
            .await?
            .rows_affected();
        if $with_outbox {
            let id = towpath::ids::EventId(uuid::Uuid::now_v7()).to_string();
            sqlx::query($event)
                .bind(&id)
                .bind($account)
                .bind(r#"{"amount":1}"#)
                .execute(&mut *transaction)
                .await?;
            sqlx::query($outbox).bind(&id).bind("NEW").execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        changed
    }};
}

impl ByHand {
    /// Makes the tables and the accounts.
    pub(crate) async fn prepare(store: &SqlStore, accounts: &[String]) -> Result<(), sqlx::Error> {
        for sql in TABLES {
            execute(store, sql.to_owned()).await?;
        }
        let data = r#"{"deposits":0}"#;
        for chunk in accounts.chunks(500) {
            let rows: Vec<String> = chunk.iter().map(|id| format!("('{id}', 0, '{data}')")).collect();
            execute(
                store,
                format!("INSERT INTO bare_accounts (id, version, data) VALUES {}", rows.join(", ")),
            )
            .await?;
        }
        Ok(())
    }

    /// One transaction.
    pub(crate) async fn once(&self, account: &str) -> Result<(), sqlx::Error> {
        let changed = if let Some(pool) = self.store.postgres_pool() {
            by_hand!(
                pool,
                pool.begin().await?,
                account,
                self.with_outbox,
                "SELECT version, data FROM bare_accounts WHERE id = $1",
                "UPDATE bare_accounts SET data = $1, version = $2 WHERE id = $3 AND version = $4",
                "INSERT INTO bare_events (id, account_id, payload) VALUES ($1, $2, $3)",
                "INSERT INTO bare_outbox (id, status) VALUES ($1, $2)"
            )
        } else if let Some(pool) = self.store.mysql_pool() {
            by_hand!(
                pool,
                pool.begin().await?,
                account,
                self.with_outbox,
                "SELECT version, data FROM bare_accounts WHERE id = ?",
                "UPDATE bare_accounts SET data = ?, version = ? WHERE id = ? AND version = ?",
                "INSERT INTO bare_events (id, account_id, payload) VALUES (?, ?, ?)",
                "INSERT INTO bare_outbox (id, status) VALUES (?, ?)"
            )
        } else if let Some(pool) = self.store.sqlite_pool() {
            by_hand!(
                pool,
                pool.begin_with("BEGIN IMMEDIATE").await?,
                account,
                self.with_outbox,
                "SELECT version, data FROM bare_accounts WHERE id = ?",
                "UPDATE bare_accounts SET data = ?, version = ? WHERE id = ? AND version = ?",
                "INSERT INTO bare_events (id, account_id, payload) VALUES (?, ?, ?)",
                "INSERT INTO bare_outbox (id, status) VALUES (?, ?)"
            )
        } else {
            0
        };
        if changed == 1 { Ok(()) } else { Err(sqlx::Error::RowNotFound) }
    }
}

pub(crate) async fn execute(store: &SqlStore, sql: String) -> Result<(), sqlx::Error> {
    let sql = sqlx::AssertSqlSafe(sql);
    if let Some(pool) = store.postgres_pool() {
        pool.execute(sql).await?;
    } else if let Some(pool) = store.mysql_pool() {
        pool.execute(sql).await?;
    } else if let Some(pool) = store.sqlite_pool() {
        pool.execute(sql).await?;
    }
    Ok(())
}
