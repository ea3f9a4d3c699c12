//! `towpath migrate`: brings the database to this version's tables.

use towpath::SqlStore;
use towpath::ports::store::StoreError;

use super::config::ServeFlags;
use super::{Failure, output};
use crate::plugin::erased::Applications;

/// Migrates and says what was done.
pub(crate) async fn migrate(flags: ServeFlags, applications: &Applications) -> Result<(), Failure> {
    let config = flags.config(applications)?;
    let migrated = async {
        let store = SqlStore::connect(&config.store).await?;
        let applied = store.migrate().await?;
        for application in applications {
            application.migrate(&store).await?;
        }
        store.close().await;
        Ok(applied)
    };
    let applied: Vec<u32> = migrated.await.map_err(|error: StoreError| Failure::from(error))?;
    match applied.last() {
        None => output::line("the database is up to date"),
        Some(version) => output::line(&format!("migrated to version {version}")),
    }
    Ok(())
}
