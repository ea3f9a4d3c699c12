//! The database itself: what it promises, its schema version, its clock.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use towpath_core::ports::store::{Database, StoreError, StorePromises, StoreResult};

use crate::dialect::Dialect;
use crate::store::{Purpose, SqlStore, reading};

#[async_trait]
impl Database for SqlStore {
    fn promises(&self) -> StorePromises {
        match self.dialect() {
            #[cfg(feature = "sqlite")]
            Dialect::Sqlite => StorePromises {
                database: "SQLite",
                concurrent_writers: false,
                many_hosts: false,
                single_statement_write: false,
                partial_unique_index: true,
                notifies: false,
            },
            #[cfg(feature = "postgres")]
            Dialect::Postgres => StorePromises {
                database: "PostgreSQL",
                concurrent_writers: true,
                many_hosts: true,
                single_statement_write: true,
                partial_unique_index: true,
                notifies: true,
            },
            #[cfg(feature = "mysql")]
            Dialect::MySql => StorePromises {
                database: "MariaDB/MySQL",
                concurrent_writers: true,
                many_hosts: true,
                single_statement_write: false,
                partial_unique_index: false,
                notifies: false,
            },
        }
    }

    async fn migrate(&self) -> StoreResult<Vec<u32>> {
        // Mostly there is nothing to do, and then no lock is needed: an instance can start beside a long writer.
        match self.ready().await {
            Err(StoreError::NotMigrated { .. }) => {}
            ready => return ready.map(|()| Vec::new()),
        }
        if self.dialect().transactional_ddl() {
            let mut transaction = self.transaction().await?;
            if let Some(lock) = self.dialect().migration_lock() {
                transaction.session().without_limit().plain("migrate.lock", lock).await?;
            }
            let applied = crate::migrate::apply(&mut transaction.session().without_limit()).await?;
            transaction.commit().await?;
            return Ok(applied);
        }
        // MySQL's named lock belongs to the connection and is freed when that ends, even by a kill.
        let mut connection = self.connection(Purpose::Write).await?;
        let mut session = connection.session().without_limit();
        let lock = "SELECT GET_LOCK(CONCAT('towpath.', MD5(DATABASE())), 60) AS granted";
        let granted = session.row("migrate.lock", lock, Vec::new()).await?;
        if granted.map(|row| row.long_or_null("granted")).transpose()?.flatten() != Some(1) {
            return Err(StoreError::Contention("another instance has been migrating for a minute".into()));
        }
        let applied = crate::migrate::apply(&mut session).await;
        session.plain("migrate.unlock", "DO RELEASE_LOCK(CONCAT('towpath.', MD5(DATABASE())))").await?;
        applied
    }

    async fn ready(&self) -> StoreResult<()> {
        reading!(self, crate::migrate::check)
    }

    async fn now(&self) -> StoreResult<DateTime<Utc>> {
        reading!(self, super::leases::now)
    }
}
