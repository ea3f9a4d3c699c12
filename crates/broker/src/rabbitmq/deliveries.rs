//! Receiving.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use async_trait::async_trait;
use futures_core::Stream;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use tokio::time::{Instant, timeout_at};
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
    /// As many as the prefetch allows. The broker numbers deliveries in the order in which it sends them.
    unsettled: Mutex<BTreeSet<DeliveryTag>>,
    // Dropped after the consumer, in this order.
    channel: Channel,
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
            channel,
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
                let received = received(&self.queue, delivery);
                self.unsettled.lock().unwrap_or_else(PoisonError::into_inner).insert(received.tag);
                return Ok(received);
            }
            Some(Err(error)) => words(&error),
            None => "the broker ended the subscription".to_owned(),
        };
        incoming.ended = Some(reason.clone());
        Err(unavailable(reason))
    }

    async fn settle(&self, tag: DeliveryTag, settlement: Settlement) -> BrokerResult<()> {
        self.say(|unsettled| {
            let taken = unsettled.take(&tag);
            taken.map(|tag| Word { tag, settlement, multiple: false }).into_iter().collect()
        });
        Ok(())
    }

    async fn acknowledge_all(&self, tags: &[DeliveryTag]) -> BrokerResult<()> {
        self.say(|unsettled| acknowledged(unsettled, tags));
        Ok(())
    }
}

/// A settlement as AMQP says it.
#[derive(Debug, PartialEq)]
struct Word {
    tag: DeliveryTag,
    settlement: Settlement,
    /// It stands for everything unsettled up to its tag.
    multiple: bool,
}

/// Takes out what is acknowledged, and answers the fewest words that say so: one for everything before the oldest
/// delivery that is still unsettled, and one for each behind it. What somebody is still at is never covered.
fn acknowledged(unsettled: &mut BTreeSet<DeliveryTag>, tags: &[DeliveryTag]) -> Vec<Word> {
    let mut taken: Vec<DeliveryTag> = tags.iter().filter_map(|tag| unsettled.take(tag)).collect();
    taken.sort_unstable();
    let oldest_left = unsettled.first();
    let before = taken.partition_point(|tag| oldest_left.is_none_or(|oldest| tag < oldest));
    let covered = before.saturating_sub(1);
    let word = |(place, tag)| Word {
        tag,
        settlement: Settlement::Acknowledge,
        multiple: covered > 0 && place < before,
    };
    taken.into_iter().enumerate().skip(covered).map(word).collect()
}

impl RabbitDeliveries {
    /// Takes deliveries out and hands the words about them to lapin, which writes them in this order.
    ///
    /// Both happen under the lock. Otherwise a word that stands for many could overtake the one about an earlier delivery
    /// and cover it: a rejected message would be acknowledged. Nobody waits until they are written. There are never more
    /// than the prefetch allows, and a word that is lost with its connection is as good as unsaid.
    fn say(&self, choose: impl FnOnce(&mut BTreeSet<DeliveryTag>) -> Vec<Word>) {
        let mut unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
        for word in choose(&mut unsettled) {
            // The first poll hands it over.
            let _ = pin!(self.write(word)).poll(&mut Context::from_waker(Waker::noop()));
        }
    }

    async fn write(&self, Word { tag, settlement, multiple }: Word) {
        let written = match settlement {
            Settlement::Acknowledge => self.channel.basic_ack(tag.0, BasicAckOptions { multiple }).await,
            Settlement::Requeue => {
                self.channel.basic_nack(tag.0, BasicNackOptions { requeue: true, multiple }).await
            }
            Settlement::Reject => {
                self.channel.basic_reject(tag.0, BasicRejectOptions { requeue: false }).await
            }
        };
        if let Err(error) = written {
            tracing::debug!(queue = self.queue, cause = %words(&error), "lost with its connection, comes again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(numbers: &[u64]) -> Vec<DeliveryTag> {
        numbers.iter().copied().map(DeliveryTag).collect()
    }

    fn unsettled(numbers: &[u64]) -> BTreeSet<DeliveryTag> {
        tags(numbers).into_iter().collect()
    }

    fn said(unsettled: &mut BTreeSet<DeliveryTag>, numbers: &[u64]) -> Vec<(u64, bool)> {
        acknowledged(unsettled, &tags(numbers)).iter().map(|word| (word.tag.0, word.multiple)).collect()
    }

    #[test]
    fn one_word_stands_for_all_when_nothing_older_is_unsettled() {
        let mut left = unsettled(&[1, 2, 3, 4, 5]);
        assert_eq!(said(&mut left, &[3, 1, 2]), [(3, true)]);
        assert_eq!(left, unsettled(&[4, 5]));
        assert_eq!(said(&mut left, &[4, 5]), [(5, true)]);
        assert!(left.is_empty());
    }

    #[test]
    fn what_somebody_is_still_at_is_not_acknowledged_with_others() {
        let mut left = unsettled(&[1, 2, 3, 4, 5, 6]);
        assert_eq!(said(&mut left, &[1, 2, 4, 6]), [(2, true), (4, false), (6, false)]);
        assert_eq!(left, unsettled(&[3, 5]));
        let mut left = unsettled(&[1, 2, 3]);
        assert_eq!(said(&mut left, &[2, 3]), [(2, false), (3, false)]);
    }

    #[test]
    fn what_is_settled_already_is_not_settled_again() {
        let mut left = unsettled(&[7]);
        assert_eq!(said(&mut left, &[5, 6]), []);
        assert_eq!(said(&mut left, &[7, 7]), [(7, false)]);
    }
}
