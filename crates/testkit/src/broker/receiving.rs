//! Receiving and settling.

use std::collections::BTreeSet;

use towpath_core::ports::broker::{BrokerError, DeliveryTag, Received, Settlement, Subscription};
use towpath_core::retry::{Coded as _, ErrorClass};

use super::BrokerFixture;
use super::acts::{
    Lane, bodies, next, numbered, numbered_with_keys, numbers, publish_all, settle, subscribe, take,
};
use crate::store::waiting::in_time;

/// A receiver holds no more than its prefetch: the rest goes to another. Where messages of a key keep their order, the
/// rest of that key waits instead.
pub async fn prefetch_is_respected(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    publish_all(&*broker, &numbered(&lane.destination, 10)).await;
    let first = subscribe(&*broker, &lane.queue, 3).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(next(&*first).await);
    }
    if broker.promises().ordered_by_key {
        let more = tokio::time::timeout(std::time::Duration::from_millis(300), first.next()).await;
        assert!(more.is_err(), "more than the prefetch: {more:?}");
        settle(&*first, &held[0], Settlement::Acknowledge).await;
        assert_eq!(bodies(&[next(&*first).await]), ["3"]);
        return;
    }
    let second = subscribe(&*broker, &lane.queue, 20).await;
    assert_eq!(bodies(&take(&*second, 7).await), numbers(3..10));
    // A settled one makes room for a new one.
    drop(second);
    publish_all(&*broker, &numbered(&lane.destination, 1)).await;
    settle(&*first, &held[0], Settlement::Acknowledge).await;
    assert_eq!(bodies(&[next(&*first).await]), numbers(0..1));
}

/// What a receiver has not settled when it goes comes again, marked as such. Where messages are not settled singly, so
/// does what was settled behind it; what was settled before it does not.
pub async fn unsettled_messages_come_again(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    publish_all(&*broker, &numbered(&lane.destination, 5)).await;
    let first = subscribe(&*broker, &lane.queue, 10).await;
    let mut received = Vec::new();
    for _ in 0..5 {
        received.push(next(&*first).await);
    }
    assert!(received.iter().all(|received| !received.redelivered));
    let singly = broker.promises().settles_singly;
    let (settled, comes_again): ([usize; 2], &[&str]) =
        if singly { ([1, 3], &["0", "2", "4"]) } else { ([0, 2], &["1", "2", "3", "4"]) };
    for place in settled {
        settle(&*first, &received[place], Settlement::Acknowledge).await;
    }
    drop(first);
    let again = take(&*subscribe(&*broker, &lane.queue, 10).await, comes_again.len()).await;
    assert_eq!(bodies(&again), comes_again);
    let told = broker.promises().tells_redelivered;
    assert!(again.iter().all(|received| received.redelivered == told), "{again:?}");
}

/// So does what was fetched ahead and never looked at, though nobody can say whether it was delivered.
pub async fn messages_fetched_ahead_come_again(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    publish_all(&*broker, &numbered(&lane.destination, 20)).await;
    let first = subscribe(&*broker, &lane.queue, 20).await;
    next(&*first).await;
    drop(first);
    let again = take(&*subscribe(&*broker, &lane.queue, 20).await, 20).await;
    assert_eq!(bodies(&again), numbers(0..20));
}

/// A requeued message comes again, to whoever is there.
pub async fn a_requeued_message_comes_again(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    publish_all(&*broker, &numbered(&lane.destination, 1)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 1).await;
    let first = next(&*deliveries).await;
    settle(&*deliveries, &first, Settlement::Requeue).await;
    let second = next(&*deliveries).await;
    assert_eq!((second.message_id.clone(), second.redelivered), (first.message_id.clone(), true));
    settle(&*deliveries, &second, Settlement::Requeue).await;
    drop(deliveries);
    let third = take(&*subscribe(&*broker, &lane.queue, 1).await, 1).await;
    assert_eq!(third[0].message_id, first.message_id);
}

/// An acknowledged message never comes again.
pub async fn an_acknowledged_message_is_gone(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    publish_all(&*broker, &numbered(&lane.destination, 3)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 10).await;
    take(&*deliveries, 3).await;
    drop(deliveries);
    let last = numbered(&lane.destination, 1);
    publish_all(&*broker, &last).await;
    let received = next(&*subscribe(&*broker, &lane.queue, 10).await).await;
    assert_eq!(
        received.message_id.as_deref(),
        Some(last[0].message_id.as_str()),
        "only the new one is there"
    );
}

/// Settling what is settled, or was never there, is no error and settles nothing else.
pub async fn settling_twice_does_nothing(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    publish_all(&*broker, &numbered(&lane.destination, 2)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 10).await;
    let (first, second) = (next(&*deliveries).await, next(&*deliveries).await);
    settle(&*deliveries, &first, Settlement::Acknowledge).await;
    settle(&*deliveries, &first, Settlement::Acknowledge).await;
    settle(&*deliveries, &first, Settlement::Reject).await;
    let unheard_of = Received { tag: DeliveryTag(987_654), ..first.clone() };
    settle(&*deliveries, &unheard_of, Settlement::Acknowledge).await;
    settle(&*deliveries, &second, Settlement::Requeue).await;
    assert_eq!(bodies(&[next(&*deliveries).await]), ["1"], "the subscription lives on");
}

/// Receivers of one queue share its messages: each goes to one of them, and all get some. None holds more than its
/// prefetch, so nobody can be left without.
pub async fn several_receivers_share(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let other = fixture.connect().await;
    lane.declare(&*other).await;
    let receivers = [
        subscribe(&*broker, &lane.queue, 5).await,
        subscribe(&*broker, &lane.queue, 5).await,
        subscribe(&*other, &lane.queue, 5).await,
    ];
    publish_all(&*broker, &numbered_with_keys(&lane.destination, 60)).await;
    let mut seen = BTreeSet::new();
    for receiver in &receivers {
        let received = next(&**receiver).await;
        assert!(seen.insert(received.message_id.clone()), "twice: {received:?}");
        settle(&**receiver, &received, Settlement::Acknowledge).await;
    }
    while seen.len() < 60 {
        let (which, received) = in_time("receiving", async {
            tokio::select! {
                received = receivers[0].next() => (0, received),
                received = receivers[1].next() => (1, received),
                received = receivers[2].next() => (2, received),
            }
        })
        .await;
        let received = received.expect("a message");
        settle(&*receivers[which], &received, Settlement::Acknowledge).await;
        assert!(seen.insert(received.message_id.clone()), "twice: {received:?}");
    }
}

/// Two handles are two publishers and receivers of one broker, and closing one leaves the other.
pub async fn two_handles_are_independent(fixture: &impl BrokerFixture) {
    let (first, lane) = Lane::ready(fixture).await;
    let second = fixture.connect().await;
    publish_all(&*second, &numbered(&lane.destination, 1)).await;
    let deliveries = subscribe(&*first, &lane.queue, 1).await;
    take(&*deliveries, 1).await;
    in_time("closing", second.close()).await;
    publish_all(&*first, &numbered(&lane.destination, 1)).await;
    take(&*deliveries, 1).await;
}

/// A receiver of a queue that does not exist is told so.
pub async fn a_missing_queue_is_told(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let nowhere = fixture.fresh_name("nowhere");
    let subscription = Subscription { queue: nowhere.clone(), group: "conformance".to_owned(), prefetch: 1 };
    match in_time("subscribing", broker.subscribe(&subscription)).await {
        Err(error @ BrokerError::Missing { .. }) => {
            assert!(error.to_string().contains(&nowhere), "{error}");
            assert_eq!(error.class(), ErrorClass::NotFound);
        }
        Err(other) => panic!("not told as missing: {other:?}"),
        Ok(_) => panic!("there is no such queue"),
    }
    publish_all(&*broker, &numbered(&lane.destination, 1)).await;
    take(&*subscribe(&*broker, &lane.queue, 1).await, 1).await;
}

/// Closing ends every receiver, now and for ever, and what it held is delivered to others.
pub async fn closing_gives_back_what_is_unsettled(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    publish_all(&*broker, &numbered(&lane.destination, 2)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 1).await;
    let held = next(&*deliveries).await;
    in_time("closing", broker.close()).await;
    for _ in 0..2 {
        match in_time("receiving after closing", deliveries.next()).await {
            Err(error @ BrokerError::Unavailable(_)) => assert_eq!(error.class(), ErrorClass::Transient),
            other => panic!("a closed handle receives nothing: {other:?}"),
        }
    }
    settle(&*deliveries, &held, Settlement::Acknowledge).await;
    let other = fixture.connect().await;
    lane.declare(&*other).await;
    let again = take(&*subscribe(&*other, &lane.queue, 10).await, 2).await;
    assert_eq!(bodies(&again), ["0", "1"]);
    assert_eq!(again[0].redelivered, other.promises().tells_redelivered);
}

/// A receiver that stops waiting loses nothing.
pub async fn a_receiver_that_stops_waiting_loses_nothing(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let deliveries = subscribe(&*broker, &lane.queue, 100).await;
    let mut received = Vec::new();
    for round in 0..20 {
        let waiting = deliveries.next();
        let given_up = tokio::time::timeout(std::time::Duration::from_micros(50 * round), waiting).await;
        received.extend(given_up.ok().map(|received| received.expect("a message")));
        publish_all(&*broker, &numbered(&lane.destination, 1)).await;
    }
    while received.len() < 20 {
        received.push(next(&*deliveries).await);
    }
    let ids: BTreeSet<_> = received.iter().map(|received| received.message_id.clone()).collect();
    assert_eq!(ids.len(), 20, "each once");
}
