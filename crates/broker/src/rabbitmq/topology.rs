//! Declaring what must exist.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Error};
use tokio::time::{Instant, timeout_at};
use towpath_core::ports::broker::{
    Argument, Binding, BrokerError, BrokerResult, Exchange, ExchangeKind, Queue, QueueStatus, Topology,
};

use super::ANSWER;
use super::errors::{Said, difference, is_mismatch, is_missing, told, unavailable, words};
use super::link::Link;
use super::wire::{short, text};

const OPERATION: &str = "declaring the topology";

/// Declares everything, in the order exchanges, queues, bindings; see the port.
pub(super) async fn declare(link: &Link, topology: &Topology) -> BrokerResult<()> {
    topology.queues.iter().try_for_each(refuse_stream)?;
    let (_live, channel) = link.channel(Instant::now() + ANSWER).await?;
    for exchange in &topology.exchanges {
        declare_exchange(&channel, exchange).await?;
    }
    for queue in &topology.queues {
        declare_queue(&channel, queue).await?;
    }
    for binding in &topology.bindings {
        if let Err(error) = bind(&channel, binding).await? {
            return Err(if is_missing(&error) {
                missing_end(link, binding).await
            } else {
                told(&error, OPERATION)
            });
        }
    }
    Ok(())
}

/// Asks for queues by declaring them passively, which changes nothing. One that is missing takes its channel with it, and
/// the others are asked on a new one.
pub(super) async fn queue_status(link: &Link, queues: &[&str]) -> BrokerResult<Vec<Option<QueueStatus>>> {
    const ASKING: &str = "asking about a queue";
    let deadline = Instant::now() + ANSWER;
    let mut open = None;
    let mut standings = Vec::with_capacity(queues.len());
    for queue in queues {
        let (live, channel) = match open.take() {
            Some(open) => open,
            None => link.channel(deadline).await?,
        };
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let asked = channel.queue_declare(name(queue)?, passive, FieldTable::default());
        match timeout_at(deadline, asked).await {
            Ok(Ok(found)) => {
                standings.push(Some(QueueStatus {
                    ready: u64::from(found.message_count()),
                    consumers: Some(u64::from(found.consumer_count())),
                    ..QueueStatus::default()
                }));
                open = Some((live, channel));
            }
            Ok(Err(error)) if is_missing(&error) => standings.push(None),
            Ok(Err(error)) => return Err(told(&error, ASKING)),
            Err(_) => return Err(unavailable("the broker does not answer")),
        }
    }
    if let Some((_live, channel)) = open {
        super::in_time(deadline, "closing a channel", channel.close(200, "OK".into())).await?;
    }
    Ok(standings)
}

/// A stream is no queue: it keeps what was acknowledged, gives nothing back and has no dead letters.
fn refuse_stream(queue: &Queue) -> BrokerResult<()> {
    let is_stream = |(argument, value): &(String, Argument)| {
        argument == "x-queue-type" && *value == Argument::Text("stream".to_owned())
    };
    if !queue.arguments.iter().any(is_stream) {
        return Ok(());
    }
    let reason = format!("{} is declared as a stream: use a quorum or a classic queue", queue.name);
    Err(BrokerError::Refused { operation: OPERATION, source: Box::new(Said(reason)) })
}

async fn declare_exchange(channel: &Channel, exchange: &Exchange) -> BrokerResult<()> {
    let kind = match exchange.kind {
        ExchangeKind::Topic => lapin::ExchangeKind::Topic,
        ExchangeKind::Direct => lapin::ExchangeKind::Direct,
        ExchangeKind::Fanout => lapin::ExchangeKind::Fanout,
    };
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declared = channel.exchange_declare(name(&exchange.name)?, kind, durable, FieldTable::default());
    compared("exchange", &exchange.name, answer(declared).await?)
}

async fn declare_queue(channel: &Channel, queue: &Queue) -> BrokerResult<()> {
    let mut arguments = FieldTable::default();
    for (argument, value) in &queue.arguments {
        let value = match value {
            Argument::Text(value) => text(value.as_str()),
            Argument::Number(value) => AMQPValue::LongLongInt(*value),
            Argument::Switch(value) => AMQPValue::Boolean(*value),
        };
        arguments.insert(name(argument)?, value);
    }
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(name(&queue.name)?, durable, arguments);
    compared("queue", &queue.name, answer(declared).await?)
}

async fn bind(channel: &Channel, binding: &Binding) -> BrokerResult<Result<(), Error>> {
    answer(channel.queue_bind(
        name(&binding.queue)?,
        name(&binding.exchange)?,
        name(&binding.routing_key)?,
        QueueBindOptions::default(),
        FieldTable::default(),
    ))
    .await
}

/// Which end of a binding does not exist: the broker tells it in words only.
async fn missing_end(link: &Link, binding: &Binding) -> BrokerError {
    let asked = async {
        let (_live, channel) = link.channel(Instant::now() + ANSWER).await?;
        let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let exists = channel.exchange_declare(
            name(&binding.exchange)?,
            lapin::ExchangeKind::Topic,
            passive,
            FieldTable::default(),
        );
        answer(exists).await
    };
    match asked.await {
        Ok(Err(error)) if is_missing(&error) => {
            BrokerError::Missing { what: "exchange", name: binding.exchange.clone() }
        }
        Ok(_) => BrokerError::Missing { what: "queue", name: binding.queue.clone() },
        Err(error) => error,
    }
}

/// Waits for an answer; inside it is what the broker said.
async fn answer<T>(asked: impl Future<Output = Result<T, Error>>) -> BrokerResult<Result<(), Error>> {
    match timeout_at(Instant::now() + ANSWER, asked).await {
        Ok(answer) => Ok(answer.map(|_| ())),
        Err(_) => Err(unavailable("the broker does not answer")),
    }
}

fn compared(what: &'static str, name: &str, declared: Result<(), Error>) -> BrokerResult<()> {
    declared.map_err(|error| {
        if is_mismatch(&error) {
            BrokerError::Mismatch { what, name: name.to_owned(), difference: difference(&words(&error)) }
        } else if is_missing(&error) {
            // It is to be made and cannot be missing: the node of a cluster that has it is down.
            unavailable(words(&error))
        } else {
            told(&error, OPERATION)
        }
    })
}

fn name(name: &str) -> BrokerResult<ShortString> {
    short("name", name)
        .map_err(|reason| BrokerError::Refused { operation: OPERATION, source: Box::new(Said(reason)) })
}
