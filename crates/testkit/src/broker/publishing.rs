//! Publishing and its outcomes.

use std::collections::BTreeSet;
use std::time::Duration;

use towpath_core::ports::broker::{Broker, Destination, Message, Published};

use super::BrokerFixture;
use super::acts::{
    Lane, bodies, check_same, message, numbered, numbers, publish, publish_all, publish_within, subscribe,
    take,
};
use crate::control::left_out;
use crate::store::waiting::{all_at_once, in_time};

/// Identity, type, time, headers and body.
pub async fn a_message_arrives_to_the_letter(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let plain = message(&lane.destination, r#"{"sku":"kettle"}"#);
    let emoji = Message {
        message_type: "订单.已支付 🛶".to_owned(),
        headers: vec![
            ("🛶".to_owned(), "河道 🚢 \"quoted\" \\ and \u{1F469}\u{200D}\u{1F680}".to_owned()),
            ("empty".to_owned(), String::new()),
            ("lines".to_owned(), "one\r\ntwo\0three".to_owned()),
            ("long".to_owned(), "x".repeat(10_000)),
        ],
        ..message(&lane.destination, "🛶")
    };
    let binary = message(&lane.destination, (0..=255).collect::<Vec<u8>>());
    let empty = message(&lane.destination, "");
    let without_headers = Message { headers: Vec::new(), ..message(&lane.destination, "bare") };
    let nanoseconds = Message {
        occurred_at: super::acts::occurred_at() + Duration::from_nanos(7),
        ..message(&lane.destination, "to the nanosecond")
    };
    let large =
        message(&lane.destination, (0..fixture.large_body()).map(|n| (n % 251) as u8).collect::<Vec<u8>>());
    let sent = [plain, emoji, binary, empty, without_headers, nanoseconds, large];
    publish_all(&*broker, &sent).await;
    let deliveries = subscribe(&*broker, &lane.queue, 20).await;
    for (sent, received) in sent.iter().zip(take(&*deliveries, sent.len()).await) {
        check_same(sent, &received);
        assert_eq!(received.headers.len(), sent.headers.len(), "nothing is added: {:?}", received.headers);
        assert_eq!((&received.queue, &received.destination), (&lane.queue, &lane.destination));
        assert!(!received.redelivered);
    }
}

/// What is published in order arrives in order, within a batch and from batch to batch.
pub async fn the_order_of_batches_is_kept(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let messages = numbered(&lane.destination, 500);
    for batch in messages.chunks(123) {
        publish_all(&*broker, batch).await;
    }
    let deliveries = subscribe(&*broker, &lane.queue, 100).await;
    assert_eq!(bodies(&take(&*deliveries, 500).await), numbers(0..500));
}

/// A large batch, and one whose bodies do not fit into any buffer.
pub async fn a_thousand_messages_are_confirmed(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    publish_all(&*broker, &numbered(&lane.destination, 1000)).await;
    let size = fixture.large_body();
    let large: Vec<Message> = (0..24).map(|_| message(&lane.destination, vec![7; size])).collect();
    publish_all(&*broker, &large).await;
    let deliveries = subscribe(&*broker, &lane.queue, 200).await;
    assert_eq!(bodies(&take(&*deliveries, 1000).await), numbers(0..1000));
    assert!(take(&*deliveries, 24).await.iter().all(|received| received.body.len() == size));
}

/// Exactly the message that no queue wants is told, however the confirms are bundled.
pub async fn exactly_the_unroutable_message_is_told(fixture: &impl BrokerFixture) {
    const ROUNDS: usize = 50;
    const BATCH: usize = 200;
    let (broker, lane) = Lane::ready(fixture).await;
    if !broker.promises().tells_unroutable {
        left_out("tells_unroutable");
    }
    for round in 0..ROUNDS {
        // One in the middle; in every other round a few more, far apart and side by side.
        let mut unwanted = vec![BATCH / 2 + round % 7];
        if round % 2 == 1 {
            unwanted.extend([0, 1, 17 + round, BATCH - 1]);
        }
        check_unroutable(&*broker, &lane, BATCH, |place| unwanted.contains(&place)).await;
    }
}

/// The same with every second message of a large batch: clients are known to attach what comes back to another
/// message's confirm, and this is where it shows (an adapter made to believe lapin failed 20 rounds of 20).
pub async fn many_unroutable_messages_are_told_exactly(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    if !broker.promises().tells_unroutable {
        left_out("tells_unroutable");
    }
    for round in 0..10 {
        check_unroutable(&*broker, &lane, 1000, |place| place % 2 == round % 2).await;
    }
}

async fn check_unroutable(broker: &dyn Broker, lane: &Lane, batch: usize, unwanted: impl Fn(usize) -> bool) {
    let mut messages = numbered(&lane.destination, batch);
    for (place, message) in messages.iter_mut().enumerate().filter(|(place, _)| unwanted(*place)) {
        message.destination = lane.nowhere();
        message.body = format!("unwanted {place}").into_bytes();
    }
    let outcomes = publish(broker, &messages).await;
    for (place, outcome) in outcomes.iter().enumerate() {
        if unwanted(place) {
            let told = matches!(outcome, Published::Unroutable { reason } if !reason.is_empty());
            assert!(told, "message {place} has no queue: {outcome:?}");
        } else {
            assert_eq!(*outcome, Published::Confirmed, "message {place}");
        }
    }
}

/// The same message to two places, one of which nobody listens to.
pub async fn one_id_to_two_places_has_two_outcomes(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    if !broker.promises().tells_unroutable {
        left_out("tells_unroutable");
    }
    let wanted = message(&lane.destination, "wanted");
    let unwanted = Message { destination: lane.nowhere(), ..wanted.clone() };
    for batch in [[wanted.clone(), unwanted.clone()], [unwanted.clone(), wanted.clone()]] {
        let outcomes = publish(&*broker, &batch).await;
        for (message, outcome) in batch.iter().zip(&outcomes) {
            let confirmed = *outcome == Published::Confirmed;
            assert_eq!(confirmed, message.destination == lane.destination, "{outcomes:?}");
        }
    }
}

/// The message to an exchange that does not exist is refused, none is lost silently, and the handle works. Its neighbours
/// may suffer (RabbitMQ closes the channel over it), but nobody says that they arrived when they did not.
pub async fn an_unknown_exchange_spoils_nothing_for_long(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let nowhere =
        Destination { exchange: fixture.fresh_name("nowhere"), routing_key: "order.placed".to_owned() };
    let mut confirmed = BTreeSet::new();
    for place in [0, 100, 199] {
        let mut messages = numbered(&lane.destination, 200);
        messages[place].destination = nowhere.clone();
        let outcomes = publish(&*broker, &messages).await;
        match &outcomes[place] {
            Published::Refused { reason } => assert!(reason.contains(&nowhere.exchange), "{reason}"),
            other => panic!("message {place} went to no exchange: {other:?}"),
        }
        for (other, outcome) in outcomes.iter().enumerate().filter(|(other, _)| *other != place) {
            match outcome {
                Published::Confirmed => drop(confirmed.insert(messages[other].message_id.clone())),
                Published::Unknown { .. } => {}
                Published::NotSent { .. } if other > place => {}
                wrong => panic!("message {other} with the unknown exchange at {place}: {wrong:?}"),
            }
        }
        publish_all(&*broker, &numbered(&lane.destination, 10)).await;
    }
    let alone = publish(&*broker, &[message(&nowhere, "alone")]).await;
    assert!(matches!(alone[..], [Published::Refused { .. }]), "{alone:?}");
    // What was confirmed is there; taking gives up when it is not.
    let deliveries = subscribe(&*broker, &lane.queue, 200).await;
    while !confirmed.is_empty() {
        let received = take(&*deliveries, 1).await.remove(0);
        confirmed.remove(&received.message_id.unwrap_or_default());
    }
}

/// What cannot be sent at all is refused, and its neighbours are not disturbed. What fits arrives to the letter.
pub async fn a_message_that_fits_nowhere_is_refused_alone(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let long = "k".repeat(70_000);
    let mut messages = numbered(&lane.destination, 5);
    messages[1].destination.routing_key = long.clone();
    messages[2].message_id = long.clone();
    messages[3].headers = (0..10).map(|number| (format!("h{number}"), long.clone())).collect();
    let outcomes = publish(&*broker, &messages).await;
    assert_eq!((&outcomes[0], &outcomes[4]), (&Published::Confirmed, &Published::Confirmed), "{outcomes:?}");
    let mut taken = 2;
    for outcome in &outcomes[1..4] {
        match outcome {
            Published::Refused { reason } if !reason.is_empty() => {}
            // It fits after all, or nobody wants it and nobody says so.
            Published::Confirmed => taken += 1,
            _ => panic!("{outcome:?}"),
        }
    }
    // The routing key of the second one is none that the queue wants.
    let unwanted = usize::from(outcomes[1] == Published::Confirmed);
    let received = take(&*subscribe(&*broker, &lane.queue, 10).await, taken - unwanted).await;
    for received in received {
        let sent = messages.iter().find(|sent| Some(&sent.message_id) == received.message_id.as_ref());
        check_same(sent.expect("a message that was sent"), &received);
    }
}

/// Callers do not get each other's outcomes.
pub async fn callers_at_once_get_their_own_outcomes(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let tells = broker.promises().tells_unroutable;
    all_at_once((0..8).map(|caller| {
        let broker = broker.clone();
        let (wanted, unwanted) = (lane.destination.clone(), lane.nowhere());
        async move {
            for _ in 0..5 {
                let mut messages = numbered(&wanted, 50);
                if tells {
                    messages[caller * 3].destination = unwanted.clone();
                }
                let outcomes = publish(&*broker, &messages).await;
                for (place, outcome) in outcomes.iter().enumerate() {
                    let confirmed = *outcome == Published::Confirmed;
                    assert_eq!(confirmed, !(tells && place == caller * 3), "caller {caller}: {outcome:?}");
                }
            }
        }
    }))
    .await;
    let deliveries = subscribe(&*broker, &lane.queue, 200).await;
    take(&*deliveries, 8 * 5 * if tells { 49 } else { 50 }).await;
}

/// A caller that gives up leaves the handle as it was.
pub async fn a_caller_that_gives_up_disturbs_nobody(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let given_up = numbered(&lane.destination, 300);
    for _ in 0..5 {
        let mut publishing = std::pin::pin!(broker.publish(&given_up, Duration::from_secs(30)));
        // Polled once and dropped: the batch is under way.
        std::future::poll_fn(|cx| {
            let _ = publishing.as_mut().poll(cx);
            std::task::Poll::Ready(())
        })
        .await;
    }
    publish_all(&*broker, &numbered(&lane.destination, 300)).await;
}

/// No patience at all is no reason to hang or to lie.
pub async fn no_patience_is_unknown_at_once(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    for round in 0..10 {
        let messages = numbered(&lane.destination, 100);
        let outcomes = publish_within(&*broker, &messages, Duration::from_millis(round)).await;
        for outcome in outcomes {
            assert!(
                matches!(
                    outcome,
                    Published::Confirmed | Published::Unknown { .. } | Published::NotSent { .. }
                ),
                "{outcome:?}"
            );
        }
    }
    let last = message(&lane.destination, "last");
    publish_all(&*broker, std::slice::from_ref(&last)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 200).await;
    // Settled one by one: more may have arrived than the prefetch lets through at once.
    while take(&*deliveries, 1).await[0].message_id.as_deref() != Some(last.message_id.as_str()) {}
}

/// Whoever would wait for ever is answered like everybody else.
pub async fn endless_patience_is_no_trouble(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let sent = numbered(&lane.destination, 2);
    let outcomes = in_time("publishing", broker.publish(&sent, Duration::MAX)).await;
    assert_eq!(outcomes, [Published::Confirmed, Published::Confirmed]);
}
