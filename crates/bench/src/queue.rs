//! Queues for the benchmarks that consume: fresh ones, filled with messages in Towpath's format.

use std::time::Duration;

use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};

use towpath::format::Formats;
use towpath::ids::{AggregateKey, CorrelationId, EventId};
use towpath::name::EventName;
use towpath::ports::broker::{Argument, Broker, Destination, Message, Published, Queue, Topology};
use towpath::{BrokerUrl, Channel, EventEnvelope, Payload, RabbitMq};

use crate::Failure;

/// How long a queue that nobody uses stays.
const EXPIRES_MILLIS: i64 = 120_000;

/// How many messages are handed to the broker at a time while a queue is filled.
const FILL: u64 = 2_000;

/// How long the broker may take for so many.
const PATIENCE: Duration = Duration::from_secs(60);

/// The type of the events in the queues.
pub(crate) const EVENT_TYPE: &str = "account.deposited";

/// A name that no queue has yet.
pub(crate) fn fresh_name() -> String {
    format!("towpath.bench.{}", uuid::Uuid::now_v7().simple())
}

/// A quorum queue that goes away by itself.
pub(crate) fn declared(queue: &str) -> Topology {
    let arguments = vec![
        ("x-queue-type".to_owned(), Argument::Text("quorum".to_owned())),
        ("x-expires".to_owned(), Argument::Number(EXPIRES_MILLIS)),
    ];
    Topology { queues: vec![Queue { name: queue.to_owned(), arguments }], ..Topology::default() }
}

/// Makes a queue on the broker.
pub(crate) async fn declare(broker_url: &str, queue: &str) -> Result<RabbitMq, Failure> {
    let url = BrokerUrl::parse(broker_url).map_err(|error| Failure::usage(error.to_string()))?;
    let broker = RabbitMq::connect(&url).map_err(|error| Failure::usage(error.to_string()))?;
    broker.declare(&declared(queue)).await.map_err(|error| Failure::unreachable(error.to_string()))?;
    Ok(broker)
}

/// Makes a queue and fills it with so many events, each with an id of its own.
pub(crate) async fn filled(broker_url: &str, messages: u64) -> Result<String, Failure> {
    let queue = fresh_name();
    let broker = declare(broker_url, &queue).await?;
    let mut written = 0;
    while written < messages {
        let count = FILL.min(messages - written);
        let batch: Vec<Message> =
            (written..written + count).map(|number| deposit(&queue, number)).collect::<Result<_, _>>()?;
        let answers = broker.publish(&batch, PATIENCE).await;
        if answers.len() != batch.len() || answers.iter().any(|answer| *answer != Published::Confirmed) {
            return Err(Failure::unreachable("the broker did not take the messages to measure with"));
        }
        written += count;
    }
    broker.close().await;
    Ok(queue)
}

fn deposit(queue: &str, number: u64) -> Result<Message, Failure> {
    let wrong = |error: &dyn std::error::Error| Failure::usage(error.to_string());
    let payload = format!(r#"{{"amount":{},"note":"a deposit like every other"}}"#, number % 100 + 1);
    let event = EventEnvelope {
        event_id: EventId(uuid::Uuid::now_v7()),
        event_type: EventName::from_stored(EVENT_TYPE),
        schema_version: 1,
        aggregate: AggregateKey::new("account", format!("account-{}", number % 1_000))
            .map_err(|error| wrong(&error))?,
        aggregate_version: number / 1_000 + 1,
        occurred_at: chrono::Utc::now(),
        correlation_id: CorrelationId::of_new_flow(uuid::Uuid::new_v4()),
        causation_id: None,
        trace_id: None,
        actor_id: None,
        tenant_id: None,
        payload: Payload::from_text(payload).map_err(|error| wrong(&error))?,
    };
    let destination = Destination { exchange: String::new(), routing_key: queue.to_owned() };
    let channel = Channel::named("bench", ["*"]).map_err(|error| wrong(&error))?;
    Formats::default().message(&channel, &event, destination).map_err(|error| wrong(&error))
}

/// Ends a connection after its turn. What was measured has been measured: that a channel of it closes by itself at the
/// same moment, which lapin calls an error, does not matter any more.
pub(crate) async fn close(connection: &Connection) {
    let _ = connection.close(200, "done".into()).await;
}

/// A connection of the raw driver's.
pub(crate) async fn connection(broker_url: &str) -> Result<Connection, Failure> {
    on_rabbitmq(Connection::connect(broker_url, ConnectionProperties::default()).await)
}

/// A consumer of the raw driver's, on a channel of its own.
pub(crate) async fn consumer(
    connection: &Connection,
    queue: &str,
    prefetch: u16,
) -> Result<lapin::Consumer, Failure> {
    let channel = on_rabbitmq(connection.create_channel().await)?;
    on_rabbitmq(channel.basic_qos(prefetch, BasicQosOptions::default()).await)?;
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    on_rabbitmq(channel.basic_consume(queue.into(), "".into(), options, arguments).await)
}

pub(crate) fn on_rabbitmq<T>(result: lapin::Result<T>) -> Result<T, Failure> {
    result.map_err(|error| Failure::unreachable(error.to_string()))
}
