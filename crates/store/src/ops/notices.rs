//! Notices between processes, where the database carries them: somebody has committed, look now.
//!
//! A notice is sent after the commit, in a statement of its own: inside of the business transaction it would take a lock
//! at commit that all commits of the database share. It says nothing but "look": losing one costs time and nothing else.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use towpath_core::ports::probe::NoProbe;
use towpath_core::ports::store::{Heard, NoticeListener, Notices, StoreError, StoreResult};

use crate::pools::Pool;
use crate::sql::{classify, values};
use crate::store::{Purpose, SqlStore};

#[cfg(feature = "postgres")]
const CHANNEL: &str = "towpath";

/// After how long without a notice the server is asked whether it is still there.
#[cfg(feature = "postgres")]
const SILENCE: Duration = Duration::from_secs(30);

/// How long it may take to answer that.
#[cfg(feature = "postgres")]
const PATIENCE: Duration = Duration::from_secs(5);

/// Hears notices.
struct Listener {
    #[cfg(feature = "postgres")]
    listener: sqlx::postgres::PgListener,
}

#[async_trait]
impl Notices for SqlStore {
    async fn notify(&self, sender: &str) -> StoreResult<()> {
        match self.pool() {
            #[cfg(feature = "postgres")]
            Pool::Postgres { .. } => {
                // It is no part of what the store does for anybody: the probe is not told.
                let unseen = self.with_probe(Arc::new(NoProbe));
                let mut connection = unseen.connection(Purpose::Write).await?;
                let sql = "SELECT pg_notify(?, ?)";
                connection.session().execute("notify", sql, values![CHANNEL, sender]).await?;
                Ok(())
            }
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => Ok(()),
        }
    }

    async fn hear(&self) -> StoreResult<Option<Box<dyn NoticeListener>>> {
        match self.pool() {
            #[cfg(feature = "postgres")]
            Pool::Postgres { all: pool, .. } => {
                // Beside the pool: a listener holds its connection for ever.
                let options = pool.connect_options().as_ref().clone();
                let own = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
                let heard = async {
                    let mut listener = sqlx::postgres::PgListener::connect_with(&own).await?;
                    listener.listen(CHANNEL).await?;
                    Ok(listener)
                };
                let listener = heard.await.map_err(|error| StoreError::from(classify("listen", error)))?;
                Ok(Some(Box::new(Listener { listener })))
            }
            #[allow(unreachable_patterns, reason = "reachable when more databases are built in")]
            _ => Ok(None),
        }
    }
}

#[async_trait]
impl NoticeListener for Listener {
    async fn next(&mut self) -> StoreResult<Heard> {
        // Who only listens never learns that the other side is gone.
        #[cfg(feature = "postgres")]
        loop {
            let heard = match tokio::time::timeout(SILENCE, self.listener.try_recv()).await {
                Ok(heard) => heard,
                Err(_) => {
                    let asked = sqlx::query("SELECT 1").execute(&mut self.listener);
                    match tokio::time::timeout(PATIENCE, asked).await {
                        Ok(Ok(_)) => continue,
                        Ok(Err(error)) => Err(error),
                        Err(_) => {
                            let what = "nobody answers on the connection that hears notices";
                            return Err(StoreError::Unavailable(what.into()));
                        }
                    }
                }
            };
            return match heard {
                Ok(Some(notice)) => Ok(Heard::Notice(notice.payload().to_owned())),
                Ok(None) => Ok(Heard::Interruption),
                Err(error) => Err(classify("listen", error).into()),
            };
        }
        #[cfg(not(feature = "postgres"))]
        Ok(Heard::Interruption)
    }
}
