//! The other side of `bench consume`: consumers as one writes them by hand with the raw drivers.
//!
//! Each does what a careful hand does: a row per event that tells whether it was handled, in the transaction of the
//! effect, and the acknowledgement after the commit. They retry nothing, and keep no order and no dead letters.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::Connection;
use lapin::message::Delivery;
use lapin::options::BasicAckOptions;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use towpath::sqlx::{self, Executor, PgPool, Row};
use uuid::Uuid;

use crate::Failure;
use crate::consume::{Deposit, Shape, Tally};
use crate::on_postgres;
use crate::queue::{close, connection, consumer, on_rabbitmq};

/// What it keeps beside its effects.
const TABLES: &str = "\
    CREATE TABLE by_hand_inbox (event_id uuid NOT NULL, handler text NOT NULL, handled_at timestamptz NOT NULL, \
    PRIMARY KEY (event_id, handler))";

/// How long a batch that is not full waits for more.
const GATHER: Duration = Duration::from_millis(5);

/// The hand-written consumer.
pub(crate) struct ByHandConsumer {
    pub(crate) pool: PgPool,
    pub(crate) broker: String,
}

/// What it reads of a message.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fact {
    event_id: Uuid,
    payload: Deposit,
}

/// Hand-written consumers at work.
pub(crate) struct Running {
    connection: Connection,
    workers: JoinSet<Result<(), Failure>>,
}

impl ByHandConsumer {
    /// Makes its table.
    pub(crate) async fn prepare(&self) -> Result<(), Failure> {
        on_postgres(self.pool.execute(sqlx::raw_sql(TABLES)).await).map(|_| ())
    }

    /// Starts to consume.
    pub(crate) async fn start(
        &self,
        queue: &str,
        shape: Shape,
        tally: &Arc<Tally>,
    ) -> Result<Running, Failure> {
        let connection = connection(&self.broker).await?;
        let mut workers = JoinSet::new();
        if shape.batch == 1 {
            // One channel, as many handlers as asked for.
            let deliveries = Arc::new(Mutex::new(consumer(&connection, queue, shape.prefetch()).await?));
            for _ in 0..shape.handlers {
                let (pool, tally, deliveries) = (self.pool.clone(), tally.clone(), deliveries.clone());
                workers.spawn(async move {
                    loop {
                        let next = deliveries.lock().await.next().await;
                        let Some(delivery) = next else { return Ok(()) };
                        handle(&pool, &on_rabbitmq(delivery)?, &tally).await?;
                    }
                });
            }
        } else {
            // A channel each, so that one acknowledgement can stand for a batch.
            let prefetch = shape.prefetch() / u16::try_from(shape.handlers.max(1)).unwrap_or(u16::MAX);
            for _ in 0..shape.handlers {
                let deliveries = consumer(&connection, queue, prefetch).await?;
                workers.spawn(take_batches(self.pool.clone(), deliveries, shape.batch, tally.clone()));
            }
        }
        Ok(Running { connection, workers })
    }
}

impl Running {
    /// Ends when one of them fails.
    pub(crate) async fn failed(&mut self) -> Failure {
        match self.workers.join_next().await {
            Some(Ok(Err(failure))) => failure,
            Some(Err(error)) => Failure::unreachable(error.to_string()),
            Some(Ok(Ok(()))) | None => Failure::unreachable("the hand-written consumer ended early"),
        }
    }

    /// Stops.
    pub(crate) async fn stop(mut self) {
        self.workers.shutdown().await;
        close(&self.connection).await;
    }
}

/// One message, one transaction.
async fn handle(pool: &PgPool, delivery: &Delivery, tally: &Tally) -> Result<(), Failure> {
    let fact = read(delivery)?;
    let mut transaction = on_postgres(pool.begin().await)?;
    let sql = "INSERT INTO by_hand_inbox (event_id, handler, handled_at) VALUES ($1, 'bench', now()) \
         ON CONFLICT DO NOTHING";
    let marked = sqlx::query(sql).bind(fact.event_id).execute(&mut *transaction).await;
    if on_postgres(marked)?.rows_affected() == 1 {
        let sql = "INSERT INTO by_hand_effects (event_id, amount) VALUES ($1, $2)";
        let effect = sqlx::query(sql).bind(fact.event_id).bind(fact.payload.amount);
        on_postgres(effect.execute(&mut *transaction).await)?;
    }
    on_postgres(transaction.commit().await)?;
    tally.count(1);
    on_rabbitmq(delivery.acker.ack(BasicAckOptions::default()).await)?;
    Ok(())
}

/// Many messages in one transaction, again and again.
async fn take_batches(
    pool: PgPool,
    mut deliveries: lapin::Consumer,
    most: usize,
    tally: Arc<Tally>,
) -> Result<(), Failure> {
    while let Some(first) = deliveries.next().await {
        let mut batch = vec![on_rabbitmq(first)?];
        while batch.len() < most {
            match tokio::time::timeout(GATHER, deliveries.next()).await {
                Ok(Some(delivery)) => batch.push(on_rabbitmq(delivery)?),
                Ok(None) | Err(_) => break,
            }
        }
        handle_batch(&pool, &batch, &tally).await?;
    }
    Ok(())
}

async fn handle_batch(pool: &PgPool, batch: &[Delivery], tally: &Tally) -> Result<(), Failure> {
    let facts: Vec<Fact> = batch.iter().map(read).collect::<Result<_, _>>()?;
    let ids: Vec<Uuid> = facts.iter().map(|fact| fact.event_id).collect();
    let mut transaction = on_postgres(pool.begin().await)?;
    let sql = "INSERT INTO by_hand_inbox (event_id, handler, handled_at) \
         SELECT id, 'bench', now() FROM unnest($1::uuid[]) AS ids (id) ON CONFLICT DO NOTHING RETURNING event_id";
    let marked = on_postgres(sqlx::query(sql).bind(&ids).fetch_all(&mut *transaction).await)?;
    let first: std::collections::HashSet<Uuid> =
        on_postgres(marked.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>())?;
    let fresh = || facts.iter().filter(|fact| first.contains(&fact.event_id));
    let ids: Vec<Uuid> = fresh().map(|fact| fact.event_id).collect();
    let amounts: Vec<i64> = fresh().map(|fact| fact.payload.amount).collect();
    let sql = "INSERT INTO by_hand_effects (event_id, amount) SELECT * FROM unnest($1::uuid[], $2::bigint[])";
    on_postgres(sqlx::query(sql).bind(&ids).bind(&amounts).execute(&mut *transaction).await)?;
    on_postgres(transaction.commit().await)?;
    tally.count(batch.len() as u64);
    if let Some(last) = batch.last() {
        on_rabbitmq(last.acker.ack(BasicAckOptions { multiple: true }).await)?;
    }
    Ok(())
}

fn read(delivery: &Delivery) -> Result<Fact, Failure> {
    serde_json::from_slice(&delivery.data).map_err(|error| Failure::unreachable(error.to_string()))
}
