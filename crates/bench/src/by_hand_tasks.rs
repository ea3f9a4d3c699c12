//! The other side of `bench tasks`: workers as one writes them by hand, with SKIP LOCKED.
//!
//! A worker has its row locked while it is at it, and ends it in the same transaction: a worker that dies gives it back. It retries
//! nothing, and knows neither heartbeats nor time limits.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use towpath::sqlx::postgres::PgPoolOptions;
use towpath::sqlx::{self, Connection as _, Executor, PgConnection, PgPool, Row};
use uuid::Uuid;

use crate::tasks::{Effects, Job, Standing};
use crate::{Failure, on_postgres};

const TABLES: &str = "\
    CREATE TABLE by_hand_jobs (id uuid NOT NULL PRIMARY KEY, payload text NOT NULL, status text NOT NULL, result text, \
    created_at timestamptz NOT NULL, finished_at timestamptz); \
    CREATE INDEX by_hand_jobs_queued ON by_hand_jobs (id) WHERE status = 'queued'";

/// Where its jobs stand. One that is being done is queued, and locked.
pub(crate) const STANDING: Standing = Standing {
    open: "SELECT COUNT(*) AS jobs FROM by_hand_jobs WHERE status = 'queued'",
    finished: "SELECT COUNT(*) AS jobs FROM by_hand_jobs WHERE status = 'done' AND result IS NOT NULL",
};

/// How long a worker rests that has found nothing.
const PAUSE: Duration = Duration::from_millis(2);

/// Makes its table, and a pool as one has it by hand: the store's own asks the server about each connection that somebody else
/// has had, a round trip that is none of this contender's work.
pub(crate) async fn prepare(store: &PgPool, connections: u32) -> Result<PgPool, Failure> {
    let options = PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
    let pool = options.connect_lazy_with(store.connect_options().as_ref().clone());
    on_postgres(pool.execute(sqlx::raw_sql(TABLES)).await)?;
    Ok(pool)
}

/// Something of the application's own, and a job, in one transaction.
pub(crate) async fn enqueue(pool: &PgPool, job: Job) -> Result<(), Failure> {
    let enqueued = async {
        let payload = serde_json::to_string(&job).map_err(|error| sqlx::Error::Encode(error.into()))?;
        let mut transaction = pool.begin().await?;
        sqlx::query("INSERT INTO bench_orders (id) VALUES ($1)")
            .bind(Uuid::now_v7().to_string())
            .execute(&mut *transaction)
            .await?;
        let sql =
            "INSERT INTO by_hand_jobs (id, payload, status, created_at) VALUES ($1, $2, 'queued', now())";
        sqlx::query(sql).bind(Uuid::now_v7()).bind(payload).execute(&mut *transaction).await?;
        transaction.commit().await
    };
    on_postgres(enqueued.await)
}

/// Starts so many workers, each with a connection of its own. They end when something fails.
pub(crate) fn work(pool: &PgPool, workers: u32, effects: &Arc<Effects>) -> JoinSet<Result<(), Failure>> {
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let (pool, effects) = (pool.clone(), Arc::clone(effects));
        running.spawn(async move {
            let mut connection = on_postgres(pool.acquire().await)?;
            loop {
                if !on_postgres(one(&mut connection, &effects).await)? {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        });
    }
    running
}

/// Does a job; answers whether there was one.
async fn one(connection: &mut PgConnection, effects: &Effects) -> Result<bool, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let next = "SELECT id, payload FROM by_hand_jobs WHERE status = 'queued' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED";
    let Some(row) = sqlx::query(next).fetch_optional(&mut *transaction).await? else {
        transaction.rollback().await?;
        return Ok(false);
    };
    let (id, payload): (Uuid, String) = (row.try_get("id")?, row.try_get("payload")?);
    let job: Job = serde_json::from_str(&payload).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let result = serde_json::to_string(&job.work(effects).await);
    let result = result.map_err(|error| sqlx::Error::Encode(error.into()))?;
    let done = "UPDATE by_hand_jobs SET status = 'done', result = $2, finished_at = now() WHERE id = $1";
    sqlx::query(done).bind(id).bind(result).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(true)
}
