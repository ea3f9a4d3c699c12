//! Observations over a pool of connections: which operation runs in which transaction.

use async_trait::async_trait;
use towpath_core::ports::observations::{
    Adopted, DuePage, Listed, Looks, NotedLook, Observations, ScanPlace, Watch, WatchTx, Watched,
};
use towpath_core::ports::store::{LeaseGrant, StoreResult};

use crate::ops;
use crate::store::{Purpose, SqlStore, reading, transacting, writing_once};
use crate::transaction::SqlTransaction;

#[async_trait]
impl Observations for SqlStore {
    async fn due_subjects(
        &self,
        observer: &str,
        place: Option<&ScanPlace>,
        limit: u32,
    ) -> StoreResult<DuePage> {
        reading!(self, ops::observations::due, observer, place, limit)
    }

    async fn hinted_subjects(&self, observer: &str, hints: &[String]) -> StoreResult<Vec<Listed>> {
        reading!(self, ops::observations::hinted, observer, hints)
    }

    async fn begin_look(&self, observer: &str, subject_id: &str) -> StoreResult<Option<Watched>> {
        let found = reading!(self, ops::observations::find, observer, subject_id)?;
        let Some(mut watched) = found else { return Ok(None) };
        if !watched.goal.is_empty() && watched.goal_begun_at.is_none() {
            writing_once!(self, ops::observations::begin_wait, observer, &watched)?;
            watched.goal_begun_at = Some(watched.now);
        }
        Ok(Some(watched))
    }

    async fn note_looks(&self, lease: &LeaseGrant, observer: &str, looks: &[NotedLook]) -> StoreResult<()> {
        transacting!(self, ops::observations::note, lease, observer, looks)
    }

    async fn looks_at(&self, observer: &str, subject_id: &str) -> StoreResult<Option<Looks>> {
        reading!(self, ops::observations::looks_at, observer, subject_id)
    }

    async fn subjects(&self, observer: &str, after: &str, limit: u32) -> StoreResult<Vec<String>> {
        reading!(self, ops::observations::subjects, observer, after, limit)
    }

    async fn begin_watching(&self) -> StoreResult<Box<dyn WatchTx>> {
        Ok(Box::new(self.transaction().await?))
    }
}

#[async_trait]
impl WatchTx for SqlTransaction {
    async fn watch(&mut self, observer: &str, watches: &[Watch]) -> StoreResult<()> {
        ops::observations::watch(&mut self.session(), observer, watches).await
    }

    async fn adopt(&mut self, observer: &str, adopted: &[Adopted]) -> StoreResult<()> {
        ops::observations::adopt(&mut self.session(), observer, adopted).await
    }

    async fn unwatch(&mut self, observer: &str, subjects: &[String]) -> StoreResult<()> {
        ops::observations::unwatch(&mut self.session(), observer, subjects).await
    }

    async fn watched(&mut self, observer: &str, subjects: &[String]) -> StoreResult<Vec<Watched>> {
        ops::observations::watched(&mut self.session(), observer, subjects).await
    }

    async fn wait_anew(&mut self, observer: &str) -> StoreResult<()> {
        ops::observations::wait_anew(&mut self.session(), observer).await
    }

    async fn look_at_all(&mut self, observer: &str) -> StoreResult<()> {
        ops::observations::look_at_all(&mut self.session(), observer).await
    }
}
