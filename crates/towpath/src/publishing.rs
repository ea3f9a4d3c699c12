//! Publishing events on a channel: each in the channel's format, and one answer for each.

use std::collections::HashSet;

use towpath_broker::{EVENT_ID_HEADER, Formats};
use towpath_core::channel::{Channel, Target};
use towpath_core::envelope::EventEnvelope;
use towpath_core::ids::{AggregateKey, Position};
use towpath_core::ports::broker::{Broker, Message, Published};

use crate::bus::with_causes;
use crate::metrics::ChannelMeters;
use crate::spans;

/// An event on its way out.
#[derive(Clone, Copy)]
pub(crate) struct Outgoing<'e> {
    pub(crate) event: &'e EventEnvelope,
    /// Its place in the log, on a channel that follows it: the notification's id, which is the message's id there.
    pub(crate) position: Option<Position>,
}

/// Publishes events in order and answers one outcome for each. An event that the format cannot hold is refused before
/// the broker sees it; the others go out all the same.
pub(crate) async fn publish(
    broker: &dyn Broker,
    formats: &Formats,
    channel: &Channel,
    target: &Target,
    events: &[Outgoing<'_>],
    meters: &ChannelMeters,
) -> Vec<Published> {
    let mut messages: Vec<Message> = Vec::with_capacity(events.len());
    let mut unwritable: Vec<Option<Published>> = Vec::with_capacity(events.len());
    // They end with this function: what is traced of an event is how long it took to be answered.
    let mut traced: Vec<tracing::Span> = Vec::new();
    let in_order = channel.policy.in_order && broker.promises().ordered_batches;
    // Aggregates of which an event could not be written: with order, the later ones wait for it.
    let mut held_back: HashSet<&AggregateKey> = HashSet::new();
    for Outgoing { event, position } in events {
        if held_back.contains(&event.aggregate) {
            let reason = "an earlier event of its aggregate cannot be published".to_owned();
            unwritable.push(Some(Published::NotSent { reason }));
            continue;
        }
        let destination = target.destination(event.event_type.as_str());
        let span = spans::publish(channel.name.as_str(), &destination.exchange, event);
        if !span.is_disabled() {
            traced.push(span);
        }
        match formats.message(channel, event, destination) {
            Ok(mut message) => {
                if let Some(position) = position {
                    message.message_id = position.to_string();
                    message.headers.push((EVENT_ID_HEADER.to_owned(), event.event_id.to_string()));
                }
                messages.push(message);
                unwritable.push(None);
            }
            Err(error) => {
                unwritable.push(Some(Published::Refused { reason: with_causes(&error) }));
                if in_order {
                    held_back.insert(&event.aggregate);
                }
            }
        }
    }
    let answers = if messages.is_empty() {
        Vec::new()
    } else if in_order {
        broker.publish_in_order(&messages, channel.policy.patience).await
    } else {
        broker.publish(&messages, channel.policy.patience).await
    };
    // A broker that forgot some of them has said nothing about them.
    let silent = Published::Unknown { reason: "the broker gave no answer".to_owned() };
    let mut answers = answers.into_iter();
    let answers: Vec<Published> = unwritable
        .into_iter()
        .map(|refused| refused.or_else(|| answers.next()).unwrap_or_else(|| silent.clone()))
        .collect();
    for (span, answer) in traced.iter().zip(&answers) {
        span.record("outcome", tracing::field::debug(answer));
    }
    meters.published(&answers);
    answers
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use async_trait::async_trait;
    use chrono::DateTime;
    use towpath_core::envelope::ChangeContext;
    use towpath_core::format::CLOUD_EVENTS;
    use towpath_core::ids::{CorrelationId, EventId};
    use towpath_core::name::EventName;
    use towpath_core::payload::Payload;
    use towpath_core::ports::broker::{
        BrokerError, BrokerPromises, BrokerResult, Deliveries, QueueStatus, Subscription, Topology,
    };

    use super::*;

    /// Confirms so many messages of a batch and forgets the others.
    struct Forgetful {
        confirms: usize,
        published: Mutex<Vec<Message>>,
    }

    fn refused<T>() -> BrokerResult<T> {
        Err(BrokerError::Refused { operation: "anything else", source: "it only publishes".into() })
    }

    #[async_trait]
    impl Broker for Forgetful {
        fn promises(&self) -> BrokerPromises {
            BrokerPromises {
                broker: "forgetful",
                tells_unroutable: false,
                delays: false,
                dead_letters: false,
                ordered_by_key: false,
                settles_singly: true,
                tells_redelivered: true,
                reconnects: false,
                durable: false,
                tells_standing: false,
                in_store: false,
                ordered_batches: false,
                largest_body: usize::MAX,
                usual_body: usize::MAX,
            }
        }

        async fn ready(&self) -> BrokerResult<()> {
            refused()
        }

        async fn declare(&self, _: &Topology) -> BrokerResult<()> {
            refused()
        }

        async fn publish(&self, messages: &[Message], _: Duration) -> Vec<Published> {
            self.published.lock().unwrap().extend(messages.to_vec());
            vec![Published::Confirmed; self.confirms]
        }

        async fn subscribe(&self, _: &Subscription) -> BrokerResult<Box<dyn Deliveries>> {
            refused()
        }

        async fn queue_status(&self, _: &[&str]) -> BrokerResult<Vec<Option<QueueStatus>>> {
            refused()
        }

        async fn close(&self) {}
    }

    fn event(seconds: i64) -> EventEnvelope {
        let occurred_at = DateTime::from_timestamp(seconds, 0).unwrap();
        let context = ChangeContext::new(occurred_at, CorrelationId::new("flow-1").unwrap());
        EventEnvelope {
            event_id: EventId(uuid::Uuid::now_v7()),
            event_type: EventName::from_stored("order.placed"),
            schema_version: 1,
            aggregate: AggregateKey::new("order", "7").unwrap(),
            aggregate_version: 1,
            occurred_at: context.occurred_at,
            correlation_id: context.correlation_id,
            causation_id: None,
            trace_id: None,
            actor_id: None,
            tenant_id: None,
            payload: Payload::empty(),
        }
    }

    #[tokio::test]
    async fn an_event_that_the_format_cannot_hold_is_refused_and_the_others_go_out() {
        let broker = Forgetful { confirms: 1, published: Mutex::default() };
        let channel = Channel::named("facts", ["*"]).unwrap().to_exchange("facts").in_format(CLOUD_EVENTS);
        let target = channel.target.clone().unwrap();
        let (formats, meters) = (Formats::default(), ChannelMeters::of("facts"));
        // The year 10000 has no form in RFC 3339.
        let (far, near, forgotten) = (event(253_402_300_800), event(1), event(2));
        let outgoing = |event| Outgoing { event, position: None };
        let events = [&far, &near, &forgotten].map(outgoing);
        let answers = publish(&broker, &formats, &channel, &target, &events, &meters).await;
        assert!(
            matches!(&answers[0], Published::Refused { reason } if reason.contains("time")),
            "{answers:?}"
        );
        assert_eq!(answers[1], Published::Confirmed);
        assert!(matches!(&answers[2], Published::Unknown { .. }), "an answer that did not come is not a yes");
        let published = broker.published.lock().unwrap().clone();
        assert_eq!(published.len(), 2);
        assert_eq!(published[0].content_type, "application/cloudevents+json");
        assert_eq!(published[0].message_id, near.event_id.to_string());
        assert_eq!(
            publish(&broker, &formats, &channel, &target, &[outgoing(&far)], &meters).await.len(),
            1,
            "nothing to send, one answer"
        );
    }
}
