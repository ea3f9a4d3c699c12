//! Receiving.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures_core::Stream;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::FieldTable;
use lapin::{Acker, Channel, Consumer};
use tokio::time::{Instant, timeout, timeout_at};
use towpath_core::ports::broker::{
    BrokerError, BrokerResult, Deliveries, DeliveryTag, Received, Settlement, Subscription,
};

use super::errors::{Said, is_missing, told, unavailable, words};
use super::link::{Link, Live};
use super::wire::{received, short};
use super::{ANSWER, in_time};

/// One consumer on a channel of its own: dropping it closes the channel, and the broker requeues what is unsettled.
pub(super) struct RabbitDeliveries {
    queue: String,
    incoming: tokio::sync::Mutex<Incoming>,
    /// As many as the prefetch allows.
    unsettled: Mutex<HashMap<DeliveryTag, Acker>>,
    // Dropped after the consumer, in this order.
    _channel: Channel,
    _live: Arc<Live>,
}

struct Incoming {
    consumer: Consumer,
    /// Why there will be no more; lapin's stream would wait for ever after its end.
    ended: Option<String>,
}

impl RabbitDeliveries {
    pub(super) async fn subscribe(link: &Link, subscription: &Subscription) -> BrokerResult<Self> {
        let refused =
            |reason| BrokerError::Refused { operation: "subscribing", source: Box::new(Said(reason)) };
        let queue = short("queue", &subscription.queue).map_err(refused)?;
        let consumer_tag = short("group", &subscription.group).map_err(refused)?;
        let deadline = Instant::now() + ANSWER;
        let (live, channel) = link.channel(deadline).await?;
        // To AMQP, none means no limit.
        let prefetch = subscription.prefetch.max(1);
        in_time(deadline, "subscribing", channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
        let consuming =
            channel.basic_consume(queue, consumer_tag, BasicConsumeOptions::default(), FieldTable::default());
        let consumer = match timeout_at(deadline, consuming).await {
            Ok(Ok(consumer)) => consumer,
            Ok(Err(error)) if is_missing(&error) => {
                return Err(BrokerError::Missing { what: "queue", name: subscription.queue.clone() });
            }
            Ok(Err(error)) => return Err(told(&error, "subscribing")),
            Err(_) => return Err(unavailable("the broker does not answer")),
        };
        Ok(Self {
            queue: subscription.queue.clone(),
            incoming: tokio::sync::Mutex::new(Incoming { consumer, ended: None }),
            unsettled: Mutex::default(),
            _channel: channel,
            _live: live,
        })
    }
}

#[async_trait]
impl Deliveries for RabbitDeliveries {
    async fn next(&self) -> BrokerResult<Received> {
        let mut incoming = self.incoming.lock().await;
        if let Some(reason) = &incoming.ended {
            return Err(unavailable(reason.clone()));
        }
        // Nothing is awaited between taking a delivery and answering it: a caller that gives up loses none.
        let reason = match poll_fn(|cx| Pin::new(&mut incoming.consumer).poll_next(cx)).await {
            Some(Ok(delivery)) => {
                let acker = delivery.acker.clone();
                let received = received(&self.queue, delivery);
                self.unsettled.lock().unwrap_or_else(PoisonError::into_inner).insert(received.tag, acker);
                return Ok(received);
            }
            Some(Err(error)) => words(&error),
            None => "the broker ended the subscription".to_owned(),
        };
        incoming.ended = Some(reason.clone());
        Err(unavailable(reason))
    }

    async fn settle(&self, tag: DeliveryTag, settlement: Settlement) -> BrokerResult<()> {
        let acker = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner).remove(&tag);
        let Some(acker) = acker else { return Ok(()) };
        let settled = async {
            match settlement {
                Settlement::Acknowledge => acker.ack(BasicAckOptions::default()).await,
                Settlement::Requeue => {
                    acker.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await
                }
                Settlement::Reject => acker.reject(BasicRejectOptions { requeue: false }).await,
            }
        };
        match timeout(ANSWER, settled).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                tracing::debug!(queue = self.queue, cause = %words(&error), "lost with its connection, comes again");
                Ok(())
            }
            Err(_) => Err(unavailable("the broker takes nothing")),
        }
    }
}
