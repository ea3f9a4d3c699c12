//! Connections that are cut, held or never made, and a broker that restarts or takes nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towpath_core::ports::broker::{Broker, BrokerError, Published, Settlement};
use towpath_core::retry::{Coded as _, ErrorClass};

use super::acts::{
    Lane, bodies, next, numbered, numbers, publish, publish_again, publish_all, publish_within, settle,
    subscribe, take,
};
use super::{BrokerFixture, Seen, TcpProxy};
use crate::control::left_out;
use crate::store::waiting::{eventually, in_time};

/// A declared lane, and a handle whose connections go through a proxy; `None` where that cannot be.
async fn behind_a_proxy(fixture: &impl BrokerFixture) -> Option<(TcpProxy, Arc<dyn Broker>, Lane)> {
    let proxy = TcpProxy::to(&fixture.server()?).await;
    let broker = fixture.connect_through(proxy.address()).await?;
    let (_, lane) = Lane::ready(fixture).await;
    Some((proxy, broker, lane))
}

fn all_unknown(outcomes: &[Published]) -> bool {
    outcomes.iter().all(|outcome| matches!(outcome, Published::Unknown { reason } if !reason.is_empty()))
}

/// Either they may have arrived, or they never left: nobody says that they did.
fn none_confirmed(outcomes: &[Published]) -> bool {
    outcomes.iter().all(|outcome| match outcome {
        Published::Unknown { reason } | Published::NotSent { reason } => !reason.is_empty(),
        _ => false,
    })
}

/// The broker has the messages, and the connection is cut before it can say so. Where the adapter makes connections
/// again beneath its users, it finds out, and no message has a copy.
pub async fn a_cut_before_the_confirms_is_unknown(fixture: &impl BrokerFixture) {
    let Some((proxy, broker, lane)) = behind_a_proxy(fixture).await else { return };
    publish_all(&*broker, &numbered(&lane.destination, 1)).await;
    for _ in 0..3 {
        let seen = proxy.seen();
        proxy.hold_answers();
        let began = Instant::now();
        let messages = numbered(&lane.destination, 50);
        let (outcomes, ()) = tokio::join!(publish(&*broker, &messages), async {
            // The ids alone take this much: other questions of the client's are smaller, and so are their answers.
            let sent =
                seen.to_server + messages.iter().map(|message| message.message_id.len() as u64).sum::<u64>();
            let answered = |now: &Seen| now.to_server >= sent && now.from_server > seen.from_server;
            in_time("the broker's answers", proxy.until(answered)).await;
            proxy.cut();
            proxy.heal();
        });
        if broker.promises().reconnects {
            assert!(outcomes.iter().all(|outcome| *outcome == Published::Confirmed), "{outcomes:?}");
        } else {
            assert!(all_unknown(&outcomes), "{outcomes:?}");
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "a cut is seen at once, not when the patience is over"
        );
        publish_all(&*broker, &numbered(&lane.destination, 50)).await;
    }
    if broker.promises().reconnects {
        lane.declare(&*broker).await;
        let received = take(&*subscribe(&*broker, &lane.queue, 100).await, 301).await;
        let ids: HashSet<_> = received.iter().map(|received| received.message_id.clone()).collect();
        assert_eq!(ids.len(), received.len(), "a message came twice");
        let rounds = std::iter::repeat_n(numbers(0..50), 6).flatten();
        assert_eq!(bodies(&received), numbers(0..1).into_iter().chain(rounds).collect::<Vec<_>>());
    }
}

/// A connection that looks alive and brings nothing back.
pub async fn a_held_confirm_is_unknown_when_the_patience_is_over(fixture: &impl BrokerFixture) {
    const PATIENCE: Duration = Duration::from_millis(400);
    let Some((proxy, broker, lane)) = behind_a_proxy(fixture).await else { return };
    publish_all(&*broker, &numbered(&lane.destination, 1)).await;
    proxy.hold_answers();
    let began = Instant::now();
    let outcomes = publish_within(&*broker, &numbered(&lane.destination, 50), PATIENCE).await;
    assert!(all_unknown(&outcomes), "{outcomes:?}");
    assert!(began.elapsed() >= PATIENCE, "it gave up after {:?}", began.elapsed());
    // Still held: the next one must not hang either, whatever it does about the connection.
    let outcomes = publish_within(&*broker, &numbered(&lane.destination, 50), PATIENCE).await;
    assert!(none_confirmed(&outcomes), "{outcomes:?}");
    proxy.heal();
    publish_again(&*broker, &numbered(&lane.destination, 1)[0]).await;
    publish_all(&*broker, &numbered(&lane.destination, 50)).await;
}

/// Someone accepts connections and never says a word.
pub async fn a_silent_server_is_unknown_when_the_patience_is_over(fixture: &impl BrokerFixture) {
    const PATIENCE: Duration = Duration::from_millis(300);
    let Some((proxy, broker, lane)) = behind_a_proxy(fixture).await else { return };
    proxy.hold_everything();
    for _ in 0..3 {
        let outcomes = publish_within(&*broker, &numbered(&lane.destination, 5), PATIENCE).await;
        assert!(none_confirmed(&outcomes), "{outcomes:?}");
    }
    proxy.heal();
    publish_again(&*broker, &numbered(&lane.destination, 1)[0]).await;
}

/// Nobody listens: told as transient, by every operation, and not fatal.
pub async fn a_server_that_is_not_there_is_unavailable(fixture: &impl BrokerFixture) {
    let Some((proxy, _, lane)) = behind_a_proxy(fixture).await else { return };
    let address = proxy.address();
    drop(proxy);
    let Some(broker) = fixture.connect_through(address).await else { return };
    match in_time("asking", broker.ready()).await {
        Err(error @ BrokerError::Unavailable(_)) => assert_eq!(error.class(), ErrorClass::Transient),
        other => panic!("nobody is there: {other:?}"),
    }
    assert!(matches!(
        in_time("declaring", broker.declare(&lane.topology)).await,
        Err(BrokerError::Unavailable(_))
    ));
    let outcomes =
        publish_within(&*broker, &numbered(&lane.destination, 5), Duration::from_millis(500)).await;
    assert!(
        outcomes.iter().all(|outcome| matches!(outcome, Published::NotSent { reason } if !reason.is_empty())),
        "what never left has not failed: {outcomes:?}"
    );
    in_time("closing", broker.close()).await;
}

/// A receiver is told that its connection is gone; what it held comes again; subscribing again works. Where connections
/// are made again beneath it, it goes on with what it holds.
pub async fn a_receiver_is_told_of_a_cut(fixture: &impl BrokerFixture) {
    let Some((proxy, broker, lane)) = behind_a_proxy(fixture).await else { return };
    lane.declare(&*broker).await;
    publish_all(&*broker, &numbered(&lane.destination, 3)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 1).await;
    let held = next(&*deliveries).await;
    proxy.cut();
    if broker.promises().reconnects {
        settle(&*deliveries, &held, Settlement::Acknowledge).await;
        assert_eq!(bodies(&take(&*deliveries, 2).await), numbers(1..3));
        publish_all(&*broker, &numbered(&lane.destination, 1)).await;
        drop(deliveries);
        let received = take(&*subscribe(&*broker, &lane.queue, 10).await, 1).await;
        assert_eq!(bodies(&received), numbers(0..1), "what was settled does not come again");
        return;
    }
    for _ in 0..2 {
        match in_time("receiving after a cut", deliveries.next()).await {
            Err(BrokerError::Unavailable(_)) => {}
            other => panic!("the connection is gone: {other:?}"),
        }
    }
    settle(&*deliveries, &held, Settlement::Acknowledge).await;
    drop(deliveries);
    let again = eventually("subscribing again", || async {
        let subscription = towpath_core::ports::broker::Subscription {
            queue: lane.queue.clone(),
            group: "conformance".to_owned(),
            prefetch: 10,
        };
        broker.subscribe(&subscription).await.ok()
    })
    .await;
    let received = take(&*again, 3).await;
    assert_eq!(bodies(&received), numbers(0..3));
    assert!(received[0].redelivered, "it was held when the connection was cut");
}

/// What was confirmed is there after a restart of the broker, and handles find their way back.
pub async fn what_is_confirmed_survives_a_restart(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    if !broker.promises().durable {
        left_out("durable");
    }
    publish_all(&*broker, &numbered(&lane.destination, 100)).await;
    if fixture.restart().await.is_none() {
        return;
    }
    publish_again(&*broker, &numbered(&lane.destination, 1)[0]).await;
    eventually("the broker being ready", || async { broker.ready().await.ok() }).await;
    let deliveries = subscribe(&*broker, &lane.queue, 200).await;
    assert_eq!(bodies(&take(&*deliveries, 100).await), numbers(0..100));
}

/// A broker that is short of memory or disk takes nothing: that is back-pressure, no error and no hang. Receivers go on.
pub async fn a_broker_that_takes_nothing_is_waited_for(fixture: &impl BrokerFixture) {
    const PATIENCE: Duration = Duration::from_millis(500);
    let (broker, lane) = Lane::ready(fixture).await;
    publish_all(&*broker, &numbered(&lane.destination, 10)).await;
    let deliveries = subscribe(&*broker, &lane.queue, 3).await;
    if fixture.raise_alarm(true).await.is_none() {
        return;
    }
    for _ in 0..3 {
        let outcomes = publish_within(&*broker, &numbered(&lane.destination, 50), PATIENCE).await;
        assert!(none_confirmed(&outcomes), "{outcomes:?}");
    }
    assert_eq!(bodies(&take(&*deliveries, 10).await), numbers(0..10), "receivers go on");
    // One that is patient is confirmed once the alarm is over.
    let patient = numbered(&lane.destination, 50);
    let (outcomes, _) = tokio::join!(publish(&*broker, &patient), fixture.raise_alarm(false));
    assert!(outcomes.iter().all(|outcome| *outcome == Published::Confirmed), "{outcomes:?}");
    publish_all(&*broker, &numbered(&lane.destination, 50)).await;
}
