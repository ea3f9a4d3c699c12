//! The other side of `bench latency`: the way from a commit to a handler as one writes it by hand.
//!
//! A writer commits an event and its outbox row and wakes the relay of its own process at once. The relay takes what is
//! there with `FOR UPDATE SKIP LOCKED`, publishes it, waits for the confirms and marks it. A consumer opens a transaction
//! and marks the event as handled; there the handler would begin.

use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;
use towpath::sqlx::{self, Executor, PgPool, Row};
use uuid::Uuid;

use crate::Failure;
use crate::latency::{HANDLERS, PREFETCH, Times};
use crate::on_postgres;
use crate::queue::{EVENT_TYPE, close, connection, consumer, declare, fresh_name, on_rabbitmq};

const TABLES: &str = "\
    CREATE TABLE by_hand_events (event_id uuid PRIMARY KEY, aggregate_id text NOT NULL, payload text NOT NULL); \
    CREATE TABLE by_hand_outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid NOT NULL, \
    status text NOT NULL); \
    CREATE INDEX by_hand_outbox_new ON by_hand_outbox (id) WHERE status = 'NEW'; \
    CREATE TABLE by_hand_inbox (event_id uuid NOT NULL, handler text NOT NULL, handled_at timestamptz NOT NULL, \
    PRIMARY KEY (event_id, handler))";

/// How many rows the relay takes at a time.
const BATCH: i64 = 100;

/// Makes the tables of the hand-written way.
pub(crate) async fn prepare(pool: &PgPool) -> Result<(), Failure> {
    on_postgres(pool.execute(sqlx::raw_sql(TABLES)).await).map(|_| ())
}

/// The hand-written way, with relay and consumer at work.
pub(crate) struct ByHandPath {
    pool: PgPool,
    woken: Arc<Notify>,
    connections: [Connection; 2],
    workers: JoinSet<Result<(), Failure>>,
}

/// The side that commits.
#[derive(Clone)]
pub(crate) struct Writer {
    pool: PgPool,
    woken: Arc<Notify>,
}

impl ByHandPath {
    /// Starts a relay and a consumer on a queue of their own.
    pub(crate) async fn start(pool: &PgPool, broker_url: &str, times: &Arc<Times>) -> Result<Self, Failure> {
        let queue = fresh_name();
        towpath::ports::broker::Broker::close(&declare(broker_url, &queue).await?).await;
        let (publishing, receiving) = (connection(broker_url).await?, connection(broker_url).await?);
        let channel = on_rabbitmq(publishing.create_channel().await)?;
        on_rabbitmq(channel.confirm_select(ConfirmSelectOptions::default()).await)?;
        let deliveries = Arc::new(Mutex::new(consumer(&receiving, &queue, PREFETCH).await?));
        let woken = Arc::new(Notify::new());
        let mut workers = JoinSet::new();
        workers.spawn(relay(pool.clone(), channel, queue, woken.clone()));
        for _ in 0..HANDLERS {
            let (pool, deliveries, times) = (pool.clone(), deliveries.clone(), times.clone());
            workers.spawn(async move {
                loop {
                    let next = deliveries.lock().await.next().await;
                    let Some(delivery) = next else { return Ok(()) };
                    handle(&pool, &on_rabbitmq(delivery)?, &times).await?;
                }
            });
        }
        Ok(Self { pool: pool.clone(), woken, connections: [publishing, receiving], workers })
    }

    /// The side that commits.
    pub(crate) fn writer(&self) -> Writer {
        Writer { pool: self.pool.clone(), woken: self.woken.clone() }
    }

    /// Ends when relay or consumer fail.
    pub(crate) async fn failed(&mut self) -> Failure {
        match self.workers.join_next().await {
            Some(Ok(Err(failure))) => failure,
            Some(Err(error)) => Failure::unreachable(error.to_string()),
            Some(Ok(Ok(()))) | None => Failure::unreachable("the hand-written way ended early"),
        }
    }

    /// Stops.
    pub(crate) async fn stop(mut self) {
        self.workers.shutdown().await;
        for connection in &self.connections {
            close(connection).await;
        }
    }
}

impl Writer {
    /// Commits one event with its outbox row, wakes the relay and answers the event's id.
    pub(crate) async fn write(&self, aggregate_id: &str) -> Result<Uuid, Failure> {
        let id = Uuid::now_v7();
        let mut transaction = on_postgres(self.pool.begin().await)?;
        let sql = "INSERT INTO by_hand_events (event_id, aggregate_id, payload) VALUES ($1, $2, $3)";
        let event = sqlx::query(sql).bind(id).bind(aggregate_id).bind(r#"{"amount":1}"#);
        on_postgres(event.execute(&mut *transaction).await)?;
        let sql = "INSERT INTO by_hand_outbox (event_id, status) VALUES ($1, 'NEW')";
        on_postgres(sqlx::query(sql).bind(id).execute(&mut *transaction).await)?;
        on_postgres(transaction.commit().await)?;
        self.woken.notify_one();
        Ok(id)
    }
}

async fn relay(pool: PgPool, channel: Channel, queue: String, woken: Arc<Notify>) -> Result<(), Failure> {
    loop {
        woken.notified().await;
        while publish_some(&pool, &channel, &queue).await? {}
    }
}

/// Publishes what is there; answers whether there was anything.
async fn publish_some(pool: &PgPool, channel: &Channel, queue: &str) -> Result<bool, Failure> {
    let mut transaction = on_postgres(pool.begin().await)?;
    let sql = "SELECT o.id, o.event_id, e.payload FROM by_hand_outbox o \
         JOIN by_hand_events e ON e.event_id = o.event_id WHERE o.status = 'NEW' ORDER BY o.id LIMIT $1 \
         FOR UPDATE OF o SKIP LOCKED";
    let rows = on_postgres(sqlx::query(sql).bind(BATCH).fetch_all(&mut *transaction).await)?;
    if rows.is_empty() {
        on_postgres(transaction.rollback().await)?;
        return Ok(false);
    }
    let (mut ids, mut confirms) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for row in &rows {
        ids.push(on_postgres(row.try_get::<i64, _>(0))?);
        let id = on_postgres(row.try_get::<Uuid, _>(1))?;
        let payload = on_postgres(row.try_get::<String, _>(2))?;
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(id.to_string().into())
            .with_type(EVENT_TYPE.into());
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sending = channel.basic_publish("".into(), queue.into(), options, payload.as_bytes(), properties);
        confirms.push(on_rabbitmq(sending.await)?);
    }
    for confirm in confirms {
        if !matches!(on_rabbitmq(confirm.await)?, Confirmation::Ack(None)) {
            return Err(Failure::unreachable("the broker did not take a message"));
        }
    }
    let sql = "UPDATE by_hand_outbox SET status = 'SENT' WHERE id = ANY($1)";
    on_postgres(sqlx::query(sql).bind(&ids).execute(&mut *transaction).await)?;
    on_postgres(transaction.commit().await)?;
    Ok(true)
}

async fn handle(pool: &PgPool, delivery: &Delivery, times: &Times) -> Result<(), Failure> {
    let id = delivery.properties.message_id().as_ref().and_then(|id| Uuid::parse_str(id.as_str()).ok());
    let id = id.ok_or_else(|| Failure::unreachable("a message came without its id"))?;
    let mut transaction = on_postgres(pool.begin().await)?;
    let sql = "INSERT INTO by_hand_inbox (event_id, handler, handled_at) VALUES ($1, 'bench', now()) \
         ON CONFLICT DO NOTHING";
    let marked = on_postgres(sqlx::query(sql).bind(id).execute(&mut *transaction).await)?;
    if marked.rows_affected() == 1 {
        times.handled(id, Instant::now());
    }
    on_postgres(transaction.commit().await)?;
    on_rabbitmq(delivery.acker.ack(BasicAckOptions::default()).await)?;
    Ok(())
}
