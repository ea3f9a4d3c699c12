//! The other side of `bench drain`: a relay as one writes it by hand with the raw drivers.
//!
//! One table with the payload in the row. A loop: take a batch with `FOR UPDATE SKIP LOCKED`, publish all of it, wait for
//! the confirms, mark it sent by its ids, commit. It keeps no order when something fails, and retries nothing.

use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use towpath::ports::broker::{Broker, Topology};
use towpath::sqlx::{self, Executor, PgPool, Row};
use towpath::{BrokerUrl, RabbitMq};

use super::super::Failure;
use super::drain::{EVENT_TYPE, PAYLOAD};
use super::on_postgres;

/// The hand-written relay.
pub(super) struct ByHandRelay {
    pool: PgPool,
    broker: String,
}

const TABLE: &str = "\
    CREATE TABLE by_hand_outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid NOT NULL, \
    aggregate_id text NOT NULL, event_type text NOT NULL, payload text NOT NULL, status text NOT NULL, sent_at timestamptz); \
    CREATE INDEX by_hand_outbox_new ON by_hand_outbox (id) WHERE status = 'NEW'";

impl ByHandRelay {
    /// Makes its table.
    pub(super) async fn prepare(pool: &PgPool, broker: &str) -> Result<Self, Failure> {
        on_postgres(pool.execute(sqlx::raw_sql(TABLE)).await)?;
        Ok(Self { pool: pool.clone(), broker: broker.to_owned() })
    }

    /// Writes a backlog.
    pub(super) async fn fill(&self, events: u64, aggregates: u64) -> Result<(), Failure> {
        let sql = "INSERT INTO by_hand_outbox (event_id, aggregate_id, event_type, payload, status) \
             SELECT gen_random_uuid(), 'account-' || (number % $2), $3, $4, 'NEW' FROM generate_series(1, $1) AS number";
        let filling = sqlx::query(sql).bind(events.cast_signed()).bind(aggregates.max(1).cast_signed());
        on_postgres(filling.bind(EVENT_TYPE).bind(PAYLOAD).execute(&self.pool).await)?;
        Ok(())
    }

    /// Publishes everything to a queue.
    pub(super) async fn drain(
        &self,
        topology: &Topology,
        queue: &str,
        batch: u32,
    ) -> Result<Duration, Failure> {
        let url = BrokerUrl::parse(&self.broker).map_err(|error| Failure::usage(error.to_string()))?;
        let broker = RabbitMq::connect(&url).map_err(|error| Failure::usage(error.to_string()))?;
        broker.declare(topology).await.map_err(|error| Failure::unreachable(error.to_string()))?;
        broker.close().await;
        let began = Instant::now();
        self.publish_all(queue, batch).await?;
        Ok(began.elapsed())
    }

    async fn publish_all(&self, queue: &str, batch: u32) -> Result<(), Failure> {
        let connecting = Connection::connect(&self.broker, ConnectionProperties::default());
        let connection = on_rabbitmq(connecting.await)?;
        let channel = on_rabbitmq(connection.create_channel().await)?;
        on_rabbitmq(channel.confirm_select(ConfirmSelectOptions::default()).await)?;
        loop {
            let mut transaction = on_postgres(self.pool.begin().await)?;
            let sql = "SELECT id, event_id, aggregate_id, event_type, payload FROM by_hand_outbox \
                 WHERE status = 'NEW' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED";
            let taken = sqlx::query(sql).bind(i64::from(batch)).fetch_all(&mut *transaction).await;
            let rows = on_postgres(taken)?;
            if rows.is_empty() {
                break;
            }
            let (mut ids, mut confirms) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
            for row in &rows {
                ids.push(on_postgres(row.try_get::<i64, _>(0))?);
                let id = on_postgres(row.try_get::<uuid::Uuid, _>(1))?;
                let event_type = on_postgres(row.try_get::<String, _>(3))?;
                let payload = on_postgres(row.try_get::<String, _>(4))?;
                let properties = BasicProperties::default()
                    .with_delivery_mode(2)
                    .with_message_id(id.to_string().into())
                    .with_type(event_type.into());
                let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                let sending =
                    channel.basic_publish("".into(), queue.into(), options, payload.as_bytes(), properties);
                confirms.push(on_rabbitmq(sending.await)?);
            }
            for confirm in confirms {
                if !matches!(on_rabbitmq(confirm.await)?, Confirmation::Ack(None)) {
                    return Err(Failure::unreachable("the broker did not take a message"));
                }
            }
            let sql = "UPDATE by_hand_outbox SET status = 'SENT', sent_at = now() WHERE id = ANY($1)";
            on_postgres(sqlx::query(sql).bind(&ids).execute(&mut *transaction).await)?;
            on_postgres(transaction.commit().await)?;
        }
        on_rabbitmq(connection.close(200, "done".into()).await)
    }
}

fn on_rabbitmq<T>(result: lapin::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| Failure::unreachable(error.to_string()))
}
