//! `towpath migrate`: brings the database to this version's tables.

use towpath::SqlStore;
use towpath::ports::store::{Store, StoreError};

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
    let applied: Vec<u32> = migrated.await.map_err(|error: StoreError| failure(&error))?;
    match applied.last() {
        None => output::line("the database is up to date"),
        Some(version) => output::line(&format!("migrated to version {version}")),
    }
    Ok(())
}

/// A store's error as a command line failure: what, why, and what to do.
pub(crate) fn failure(error: &StoreError) -> Failure {
    let mut message = format!("{error} [{}]", error.code());
    for cause in towpath::causes(error) {
        message.push_str(&format!("\n  because: {cause}"));
    }
    message.push_str(&format!("\n{}", error.next_step()));
    match error {
        StoreError::BadUrl(_) => Failure::usage(message),
        _ => Failure::unreachable(message),
    }
}
