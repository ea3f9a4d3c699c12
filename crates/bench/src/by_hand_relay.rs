//! The other side of `bench drain`: a relay as one writes it by hand with the raw drivers.
//!
//! One table with the payload in the row. A loop: take a batch with `FOR UPDATE SKIP LOCKED`, publish all of it, wait for
//! the confirms, mark it sent by its ids, commit. It keeps no order when something fails, and retries nothing.
//!
//! Its messages are those of Towpath: the same envelope, the same properties, the same headers.

use std::time::{Duration, Instant};

use chrono::{DateTime, SecondsFormat, Utc};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use serde::Serialize;
use serde_json::value::RawValue;
use towpath::ports::broker::{Broker, Topology};
use towpath::sqlx::postgres::PgRow;
use towpath::sqlx::{self, Executor, PgPool, Row};
use towpath::{BrokerUrl, RabbitMq};

use crate::Failure;
use crate::backlog::{EVENT_TYPE, PAYLOAD};
use crate::on_postgres;

/// The hand-written relay.
pub(crate) struct ByHandRelay {
    pool: PgPool,
    broker: String,
}

const TABLE: &str = "\
    CREATE TABLE by_hand_outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid NOT NULL, \
    aggregate_id text NOT NULL, aggregate_version bigint NOT NULL, event_type text NOT NULL, \
    occurred_at timestamptz NOT NULL, correlation_id text NOT NULL, payload text NOT NULL, status text NOT NULL, \
    sent_at timestamptz); \
    CREATE INDEX by_hand_outbox_new ON by_hand_outbox (id) WHERE status = 'NEW'";

const KIND: &str = "account";

/// What a consumer reads.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    event_id: &'a str,
    event_type: &'a str,
    schema_version: u16,
    aggregate: Aggregate<'a>,
    aggregate_version: i64,
    occurred_at: DateTime<Utc>,
    correlation_id: &'a str,
    causation_id: Option<&'a str>,
    trace_id: Option<&'a str>,
    actor_id: Option<&'a str>,
    tenant_id: Option<&'a str>,
    payload: &'a RawValue,
}

#[derive(Serialize)]
struct Aggregate<'a> {
    kind: &'a str,
    id: &'a str,
}

impl ByHandRelay {
    /// Makes its table.
    pub(crate) async fn prepare(pool: &PgPool, broker: &str) -> Result<Self, Failure> {
        on_postgres(pool.execute(sqlx::raw_sql(TABLE)).await)?;
        Ok(Self { pool: pool.clone(), broker: broker.to_owned() })
    }

    /// Writes a backlog.
    pub(crate) async fn fill(&self, events: u64, aggregates: u64) -> Result<(), Failure> {
        let sql = "INSERT INTO by_hand_outbox (event_id, aggregate_id, aggregate_version, event_type, occurred_at, \
             correlation_id, payload, status) \
             SELECT gen_random_uuid(), 'turn-0-' || (number % $2), number / $2 + 1, $3, clock_timestamp(), \
             'flow-' || gen_random_uuid(), $4, 'NEW' FROM generate_series(0, $1 - 1) AS number";
        let filling = sqlx::query(sql).bind(events.cast_signed()).bind(aggregates.max(1).cast_signed());
        on_postgres(filling.bind(EVENT_TYPE).bind(PAYLOAD).execute(&self.pool).await)?;
        Ok(())
    }

    /// Publishes everything to a queue.
    pub(crate) async fn drain(
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
            let sql = "SELECT id, event_id, aggregate_id, aggregate_version, event_type, occurred_at, correlation_id, \
                 payload FROM by_hand_outbox WHERE status = 'NEW' ORDER BY id LIMIT $1 \
                 FOR UPDATE SKIP LOCKED";
            let taken = sqlx::query(sql).bind(i64::from(batch)).fetch_all(&mut *transaction).await;
            let rows = on_postgres(taken)?;
            if rows.is_empty() {
                break;
            }
            let (mut ids, mut confirms) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
            for row in &rows {
                ids.push(on_postgres(row.try_get::<i64, _>(0))?);
                let (properties, body) = message(row)?;
                let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                let sending = channel.basic_publish("".into(), queue.into(), options, &body, properties);
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

/// A row as the message that Towpath makes of the same event.
fn message(row: &PgRow) -> Result<(BasicProperties, Vec<u8>), Failure> {
    let event_id = on_postgres(row.try_get::<uuid::Uuid, _>(1))?.to_string();
    let aggregate_id = on_postgres(row.try_get::<&str, _>(2))?;
    let version = on_postgres(row.try_get::<i64, _>(3))?;
    let event_type = on_postgres(row.try_get::<&str, _>(4))?;
    let occurred_at = on_postgres(row.try_get::<DateTime<Utc>, _>(5))?;
    let correlation_id = on_postgres(row.try_get::<&str, _>(6))?;
    let payload = on_postgres(row.try_get::<&str, _>(7))?;
    let written = |error: serde_json::Error| Failure::unreachable(error.to_string());
    let envelope = Envelope {
        event_id: &event_id,
        event_type,
        schema_version: 1,
        aggregate: Aggregate { kind: KIND, id: aggregate_id },
        aggregate_version: version,
        occurred_at,
        correlation_id,
        causation_id: None,
        trace_id: None,
        actor_id: None,
        tenant_id: None,
        payload: serde_json::from_str(payload).map_err(written)?,
    };
    let body = serde_json::to_vec(&envelope).map_err(written)?;
    let text = |text: &str| AMQPValue::LongString(LongString::from(text));
    let mut headers = FieldTable::default();
    headers.insert("towpath-aggregate-kind".into(), text(KIND));
    headers.insert("towpath-aggregate-id".into(), text(aggregate_id));
    headers.insert("towpath-aggregate-version".into(), text(&version.to_string()));
    headers.insert("towpath-correlation-id".into(), text(correlation_id));
    let moment = occurred_at.to_rfc3339_opts(SecondsFormat::AutoSi, true);
    headers.insert("towpath-occurred-at".into(), text(&moment));
    headers.insert("towpath-key".into(), text(&format!("{KIND}/{aggregate_id}")));
    let properties = BasicProperties::default()
        .with_message_id(event_id.into())
        .with_type(event_type.into())
        .with_content_type("application/vnd.towpath.event+json".into())
        .with_delivery_mode(2)
        .with_timestamp(occurred_at.timestamp().cast_unsigned())
        .with_headers(headers);
    Ok((properties, body))
}

fn on_rabbitmq<T>(result: lapin::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| Failure::unreachable(error.to_string()))
}
