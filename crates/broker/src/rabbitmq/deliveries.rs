//! Receiving.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use futures_core::Stream;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};
use tokio::time::{Instant, timeout_at};
use towpath_core::ports::broker::{
    BrokerError, BrokerResult, Deliveries, DeliveryTag, Received, Settlement, Subscription,
};

use super::errors::{Said, is_mismatch, is_missing, told, unavailable, words};
use super::link::{Link, Live};
use super::wire::{received, short};
use super::{ANSWER, in_time};

/// One consumer on a channel of its own: dropping it closes the channel, and the broker requeues what is unsettled.
pub(super) struct RabbitDeliveries {
    queue: String,
    incoming: tokio::sync::Mutex<Incoming>,
    unsettled: Mutex<Unsettled>,
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
        // The priority that every consumer has anyway. Streams refuse it, and they must: they begin at their end, and keep
        // what was acknowledged.
        let mut arguments = FieldTable::default();
        arguments.insert("x-priority".into(), AMQPValue::LongInt(0));
        let consuming = channel.basic_consume(queue, consumer_tag, BasicConsumeOptions::default(), arguments);
        let consumer = match timeout_at(deadline, consuming).await {
            Ok(Ok(consumer)) => consumer,
            Ok(Err(error)) if is_missing(&error) => {
                return Err(BrokerError::Missing { what: "queue", name: subscription.queue.clone() });
            }
            Ok(Err(error)) if is_mismatch(&error) => {
                let queue = &subscription.queue;
                return Err(refused(format!(
                    "{queue} does not take receivers that settle one message after the other, as streams do not: \
                     use a quorum or a classic queue ({})",
                    words(&error)
                )));
            }
            Ok(Err(error)) => return Err(told(&error, "subscribing")),
            Err(_) => return Err(unavailable("the broker does not answer")),
        };
        Ok(Self {
            queue: subscription.queue.clone(),
            incoming: tokio::sync::Mutex::new(Incoming { consumer, ended: None }),
            unsettled: Mutex::new(Unsettled::new(usize::from(prefetch) / 2)),
            channel,
            _live: live,
        })
    }
}

#[async_trait]
impl Deliveries for RabbitDeliveries {
    async fn next(&self) -> BrokerResult<Received> {
        let mut incoming = self.incoming.lock().await;
        poll_fn(|cx| self.poll_one(&mut incoming, cx)).await
    }

    async fn next_many(&self, most: usize) -> BrokerResult<Vec<Received>> {
        let mut incoming = self.incoming.lock().await;
        poll_fn(|cx| {
            let first = match self.poll_one(&mut incoming, cx) {
                Poll::Ready(Ok(first)) => first,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            };
            let mut many = vec![first];
            // An end is noted, and told the next time: what came before it is handed out first.
            while many.len() < most
                && let Poll::Ready(Ok(next)) = self.poll_one(&mut incoming, cx)
            {
                many.push(next);
            }
            Poll::Ready(Ok(many))
        })
        .await
    }

    async fn settle(&self, tag: DeliveryTag, settlement: Settlement) -> BrokerResult<()> {
        self.say(|unsettled| unsettled.settle(tag, settlement));
        Ok(())
    }

    async fn acknowledge_all(&self, tags: &[DeliveryTag]) -> BrokerResult<()> {
        self.say(|unsettled| unsettled.acknowledge(tags));
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

/// What the broker has not been told about, as much as the prefetch allows. The broker numbers deliveries in the order in
/// which it sends them.
///
/// Workers that take batches from one subscription do not end in the order in which they began. An acknowledgement can
/// stand for everything before it and for nothing else, so a batch that ends before an older one would need a word for
/// each message. It is held back instead until the older one has ended, and one word says both. Only so many are held
/// back, because they keep others from coming; and what is held back when the connection is lost comes again, as if its
/// acknowledgement had been lost.
struct Unsettled {
    /// What somebody is at.
    open: BTreeSet<DeliveryTag>,
    /// Acknowledged, and the broker does not know it yet: something older is open.
    held_back: BTreeSet<DeliveryTag>,
    most_held_back: usize,
}

impl Unsettled {
    fn new(most_held_back: usize) -> Self {
        Self { open: BTreeSet::new(), held_back: BTreeSet::new(), most_held_back }
    }

    /// Settles one; answers what to tell the broker, in this order.
    fn settle(&mut self, tag: DeliveryTag, settlement: Settlement) -> Vec<Word> {
        let taken = self.open.take(&tag);
        let mut words: Vec<Word> =
            taken.map(|tag| Word { tag, settlement, multiple: false }).into_iter().collect();
        self.tell(&mut words);
        words
    }

    /// Acknowledges a batch; answers what to tell the broker, in this order.
    fn acknowledge(&mut self, tags: &[DeliveryTag]) -> Vec<Word> {
        let Self { open, held_back, .. } = self;
        held_back.extend(tags.iter().filter_map(|tag| open.take(tag)));
        let mut words = Vec::new();
        self.tell(&mut words);
        words
    }

    /// One word for all that is held back before the oldest that is open: what somebody is still at is never covered.
    fn tell(&mut self, words: &mut Vec<Word>) {
        let behind = self.open.first().map(|oldest| self.held_back.split_off(oldest)).unwrap_or_default();
        let before = std::mem::replace(&mut self.held_back, behind);
        let multiple = before.len() > 1;
        words.extend(before.last().map(|tag| acknowledgement(*tag, multiple)));
        if self.held_back.len() > self.most_held_back {
            words.extend(self.last_words());
        }
    }

    /// A word for each that is held back.
    fn last_words(&mut self) -> Vec<Word> {
        let held_back = std::mem::take(&mut self.held_back);
        held_back.into_iter().map(|tag| acknowledgement(tag, false)).collect()
    }
}

fn acknowledgement(tag: DeliveryTag, multiple: bool) -> Word {
    Word { tag, settlement: Settlement::Acknowledge, multiple }
}

/// What was handled does not come again, only because something older was not.
impl Drop for RabbitDeliveries {
    fn drop(&mut self) {
        self.say(Unsettled::last_words);
    }
}

impl RabbitDeliveries {
    /// Nothing is awaited between taking a delivery and answering it: a caller that gives up loses none.
    fn poll_one(&self, incoming: &mut Incoming, cx: &mut Context<'_>) -> Poll<BrokerResult<Received>> {
        if let Some(reason) = &incoming.ended {
            return Poll::Ready(Err(unavailable(reason.clone())));
        }
        let reason = match Pin::new(&mut incoming.consumer).poll_next(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(delivery))) => {
                let received = received(&self.queue, delivery);
                self.unsettled.lock().unwrap_or_else(PoisonError::into_inner).open.insert(received.tag);
                return Poll::Ready(Ok(received));
            }
            Poll::Ready(Some(Err(error))) => words(&error),
            Poll::Ready(None) => "the broker ended the subscription".to_owned(),
        };
        incoming.ended = Some(reason.clone());
        Poll::Ready(Err(unavailable(reason)))
    }

    /// Takes deliveries out and hands the words about them to lapin, which writes them in this order.
    ///
    /// Both happen under the lock. Otherwise a word that stands for many could overtake the one about an earlier delivery
    /// and cover it: a rejected message would be acknowledged. Nobody waits until they are written. There are never more
    /// than the prefetch allows, and a word that is lost with its connection is as good as unsaid.
    fn say(&self, choose: impl FnOnce(&mut Unsettled) -> Vec<Word>) {
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

    fn unsettled(numbers: &[u64], most_held_back: usize) -> Unsettled {
        Unsettled { open: tags(numbers).into_iter().collect(), ..Unsettled::new(most_held_back) }
    }

    fn said(words: &[Word]) -> Vec<(u64, bool)> {
        words.iter().map(|word| (word.tag.0, word.multiple)).collect()
    }

    fn acknowledge(unsettled: &mut Unsettled, numbers: &[u64]) -> Vec<(u64, bool)> {
        said(&unsettled.acknowledge(&tags(numbers)))
    }

    #[test]
    fn one_word_stands_for_all_when_nothing_older_is_open() {
        let mut left = unsettled(&[1, 2, 3, 4, 5], 0);
        assert_eq!(acknowledge(&mut left, &[3, 1, 2]), [(3, true)]);
        assert_eq!(acknowledge(&mut left, &[4]), [(4, false)]);
        assert_eq!(acknowledge(&mut left, &[5]), [(5, false)]);
        assert!(left.open.is_empty() && left.held_back.is_empty());
    }

    #[test]
    fn a_batch_waits_for_an_older_one_and_one_word_says_both() {
        let mut left = unsettled(&[1, 2, 3, 4, 5, 6], 4);
        assert_eq!(acknowledge(&mut left, &[3, 4]), []);
        assert_eq!(acknowledge(&mut left, &[1, 2]), [(4, true)]);
        assert_eq!(acknowledge(&mut left, &[6]), []);
        assert_eq!(said(&left.settle(DeliveryTag(5), Settlement::Acknowledge)), [(5, false), (6, false)]);
    }

    #[test]
    fn what_somebody_is_still_at_is_not_acknowledged_with_others() {
        let mut left = unsettled(&[1, 2, 3, 4, 5, 6], 1);
        // More than may be held back: each for itself.
        assert_eq!(acknowledge(&mut left, &[1, 2, 4, 6]), [(2, true), (4, false), (6, false)]);
        assert_eq!(left.open, tags(&[3, 5]).into_iter().collect());
        let mut left = unsettled(&[1, 2, 3], 0);
        assert_eq!(acknowledge(&mut left, &[2, 3]), [(2, false), (3, false)]);
    }

    #[test]
    fn a_rejection_is_said_before_the_word_that_stands_for_those_around_it() {
        let mut left = unsettled(&[1, 2, 3], 4);
        assert_eq!(acknowledge(&mut left, &[2, 3]), []);
        let words = left.settle(DeliveryTag(1), Settlement::Reject);
        assert_eq!(said(&words), [(1, false), (3, true)]);
        assert_eq!(words[0].settlement, Settlement::Reject);
    }

    #[test]
    fn what_is_held_back_is_said_at_the_end() {
        let mut left = unsettled(&[1, 2, 3], 4);
        assert_eq!(acknowledge(&mut left, &[2, 3]), []);
        assert_eq!(said(&left.last_words()), [(2, false), (3, false)]);
        assert_eq!(left.open, tags(&[1]).into_iter().collect(), "what was not handled comes again");
    }

    #[test]
    fn what_is_settled_already_is_not_settled_again() {
        let mut left = unsettled(&[7], 4);
        assert_eq!(acknowledge(&mut left, &[5, 6]), []);
        assert_eq!(acknowledge(&mut left, &[7, 7]), [(7, false)]);
        assert_eq!(said(&left.settle(DeliveryTag(7), Settlement::Requeue)), []);
    }
}
