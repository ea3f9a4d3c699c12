//! Notices between processes, where the database carries them: somebody has committed, look now.
//!
//! A notice is sent after the commit, in a statement of its own: inside of the business transaction it would take a lock
//! at commit that all commits of the database share. It says nothing but "look": losing one costs time and nothing else.

use towpath_core::ports::store::{StoreError, StoreResult};

use crate::pools::Pool;
use crate::sql::classify;
use crate::store::SqlStore;

#[cfg(feature = "postgres")]
const CHANNEL: &str = "towpath";

/// Hears notices.
pub struct Notices {
    #[cfg(feature = "postgres")]
    listener: sqlx::postgres::PgListener,
}

/// What was heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A notice of this sender.
    Notice(String),
    /// The connection was lost and is there again; what was said meanwhile is lost.
    Interruption,
}

impl SqlStore {
    /// Sends a notice. Does nothing where the database carries none.
    pub async fn notify(&self, sender: &str) -> StoreResult<()> {
        match self.pool() {
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => {
                let sent =
                    sqlx::query("SELECT pg_notify($1, $2)").bind(CHANNEL).bind(sender).execute(pool).await;
                sent.map(|_| ()).map_err(|error| classify("notify", error).into())
            }
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => Ok(()),
        }
    }

    /// Begins to hear notices, on a connection of its own. `None` where the database carries none.
    pub async fn hear(&self) -> StoreResult<Option<Notices>> {
        match self.pool() {
            #[cfg(feature = "postgres")]
            Pool::Postgres(pool) => {
                // Beside the pool: a listener holds its connection for ever.
                let options = pool.connect_options().as_ref().clone();
                let own = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
                let heard = async {
                    let mut listener = sqlx::postgres::PgListener::connect_with(&own).await?;
                    listener.listen(CHANNEL).await?;
                    Ok(listener)
                };
                let listener = heard.await.map_err(|error| StoreError::from(classify("listen", error)))?;
                Ok(Some(Notices { listener }))
            }
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => Ok(None),
        }
    }
}

impl Notices {
    /// The next notice; waits for one.
    #[cfg_attr(not(feature = "postgres"), allow(clippy::unused_async, reason = "nothing to wait for"))]
    pub async fn next(&mut self) -> StoreResult<Heard> {
        #[cfg(feature = "postgres")]
        return match self.listener.try_recv().await {
            Ok(Some(notice)) => Ok(Heard::Notice(notice.payload().to_owned())),
            Ok(None) => Ok(Heard::Interruption),
            Err(error) => Err(classify("listen", error).into()),
        };
        #[cfg(not(feature = "postgres"))]
        Ok(Heard::Interruption)
    }
}
