//! Dead letters and delays, made of the queues' own arguments.

use std::time::{Duration, Instant};

use towpath_core::ports::broker::{Binding, Queue, Settlement};

use super::BrokerFixture;
use super::acts::{
    Lane, check_same, message, next, number, publish_all, queue, settle, subscribe, take, text,
};
use crate::control::left_out;
use crate::store::waiting::in_time;

/// A lane whose queue gives what it does not keep to another queue, with a routing key of its own.
fn lane_with_dead_letters(
    fixture: &impl BrokerFixture,
    more: Vec<(String, towpath_core::ports::broker::Argument)>,
) -> (Lane, String) {
    let mut lane = Lane::of(fixture);
    let dead = fixture.fresh_name("dead");
    let exchange = lane.destination.exchange.clone();
    lane.topology.queues = vec![
        Queue {
            name: lane.queue.clone(),
            arguments: [
                vec![
                    text("x-dead-letter-exchange", &exchange),
                    text("x-dead-letter-routing-key", "dead.order"),
                ],
                more,
            ]
            .concat(),
        },
        queue(&dead),
    ];
    lane.topology.bindings.push(Binding {
        queue: dead.clone(),
        exchange,
        routing_key: "dead.order".to_owned(),
    });
    (lane, dead)
}

/// With its identity, time, headers and body; and only what was rejected.
pub async fn a_rejected_message_goes_to_the_dead_letters(fixture: &impl BrokerFixture) {
    let broker = fixture.connect().await;
    if !broker.promises().dead_letters {
        left_out("dead_letters");
    }
    let (lane, dead) = lane_with_dead_letters(fixture, Vec::new());
    lane.declare(&*broker).await;
    let (good, bad) = (message(&lane.destination, "good"), message(&lane.destination, "bad 🛶"));
    publish_all(&*broker, &[bad.clone(), good.clone()]).await;
    let deliveries = subscribe(&*broker, &lane.queue, 10).await;
    let first = next(&*deliveries).await;
    settle(&*deliveries, &first, Settlement::Reject).await;
    assert_eq!(take(&*deliveries, 1).await[0].message_id, Some(good.message_id));
    let letter = take(&*subscribe(&*broker, &dead, 10).await, 1).await;
    check_same(&bad, &letter[0]);
    assert_eq!(letter[0].destination.routing_key, "dead.order");
}

/// Without a place for dead letters, rejecting is the end.
pub async fn a_rejected_message_without_dead_letters_is_gone(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    publish_all(&*broker, &[message(&lane.destination, "bad")]).await;
    let deliveries = subscribe(&*broker, &lane.queue, 10).await;
    let bad = next(&*deliveries).await;
    settle(&*deliveries, &bad, Settlement::Reject).await;
    drop(deliveries);
    let good = message(&lane.destination, "good");
    publish_all(&*broker, std::slice::from_ref(&good)).await;
    let received = next(&*subscribe(&*broker, &lane.queue, 10).await).await;
    assert_eq!(received.message_id, Some(good.message_id));
}

/// A queue that nobody reads holds a message for a time and then routes it on.
pub async fn a_delay_queue_routes_on_after_its_time(fixture: &impl BrokerFixture) {
    const DELAY: Duration = Duration::from_millis(300);
    let broker = fixture.connect().await;
    if !(broker.promises().delays && broker.promises().dead_letters) {
        left_out("delays and dead_letters");
    }
    let (lane, due) = lane_with_dead_letters(fixture, vec![number("x-message-ttl", 300)]);
    lane.declare(&*broker).await;
    let deliveries = subscribe(&*broker, &due, 10).await;
    let began = Instant::now();
    let sent = message(&lane.destination, "later");
    publish_all(&*broker, std::slice::from_ref(&sent)).await;
    let received = in_time("waiting for the delay", next(&*deliveries)).await;
    assert!(began.elapsed() >= DELAY, "after {:?}", began.elapsed());
    check_same(&sent, &received);
    settle(&*deliveries, &received, Settlement::Acknowledge).await;
}
