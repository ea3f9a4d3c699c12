//! Topologies.

use towpath_core::ports::broker::{
    Binding, Broker, BrokerError, Exchange, ExchangeKind, Settlement, Topology,
};
use towpath_core::retry::{Coded as _, ErrorClass};

use super::BrokerFixture;
use super::acts::{Lane, bodies, message, next, number, publish_all, queue, subscribe, take, text};
use crate::control::left_out;
use crate::store::waiting::{all_at_once, in_time};

/// By the same handle, by another, and by several at once.
pub async fn declaring_again_changes_nothing(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let sent = message(&lane.destination, "kept");
    publish_all(&*broker, std::slice::from_ref(&sent)).await;
    lane.declare(&*broker).await;
    lane.declare(&*fixture.connect().await).await;
    let handles = [fixture.connect().await, fixture.connect().await, fixture.connect().await];
    all_at_once(handles.map(|broker| {
        let topology = lane.topology.clone();
        async move { broker.declare(&topology).await.expect("declare") }
    }))
    .await;
    let received = next(&*subscribe(&*broker, &lane.queue, 1).await).await;
    assert_eq!(received.message_id.as_deref(), Some(sent.message_id.as_str()), "what waited is still there");
}

/// An argument that differs is named, and the handle works afterwards.
pub async fn a_mismatch_names_the_argument(fixture: &impl BrokerFixture) {
    let broker = fixture.connect().await;
    if !broker.promises().delays {
        left_out("delays");
    }
    let lane = Lane::with_arguments(fixture, vec![number("x-message-ttl", 600_000)]);
    lane.declare(&*broker).await;
    let mut other = lane.topology.clone();
    other.queues[0].arguments = vec![number("x-message-ttl", 700_000)];
    match in_time("declaring", broker.declare(&other)).await {
        Err(error @ BrokerError::Mismatch { .. }) => {
            assert_eq!((error.class(), error.code()), (ErrorClass::Unrecoverable, "topology-mismatch"));
            let told = error.to_string();
            for part in ["queue", &lane.queue, "x-message-ttl", "600000", "700000"] {
                assert!(told.contains(part), "{part} is not in: {told}");
            }
        }
        other => panic!("a mismatch was not told: {other:?}"),
    }
    lane.declare(&*broker).await;
    publish_all(&*broker, &[message(&lane.destination, "after")]).await;
}

/// The kind of an exchange differs.
pub async fn an_exchange_of_another_kind_is_a_mismatch(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let exchange = Exchange { name: lane.destination.exchange.clone(), kind: ExchangeKind::Fanout };
    let other = Topology { exchanges: vec![exchange], ..Topology::default() };
    match in_time("declaring", broker.declare(&other)).await {
        Err(BrokerError::Mismatch { what, name, difference }) => {
            assert_eq!((what, &name), ("exchange", &lane.destination.exchange));
            assert!(difference.contains("type") && difference.contains("fanout"), "{difference}");
        }
        other => panic!("a mismatch was not told: {other:?}"),
    }
}

/// A binding from or to something that does not exist.
pub async fn a_binding_without_its_ends_is_missing_them(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let nowhere = fixture.fresh_name("nowhere");
    let bind = |queue: &str, exchange: &str| Topology {
        bindings: vec![Binding {
            queue: queue.to_owned(),
            exchange: exchange.to_owned(),
            routing_key: "order.#".to_owned(),
        }],
        ..Topology::default()
    };
    for (topology, expected) in
        [(bind(&lane.queue, &nowhere), "exchange"), (bind(&nowhere, &lane.destination.exchange), "queue")]
    {
        match in_time("declaring", broker.declare(&topology)).await {
            Err(error @ BrokerError::Missing { .. }) => {
                let told = error.to_string();
                assert!(told.contains(expected) && told.contains(&nowhere), "{told}");
                assert_eq!(error.class(), ErrorClass::NotFound);
            }
            other => panic!("a missing {expected} was not told: {other:?}"),
        }
    }
}

/// Patterns, exact keys and everything. What a queue does not want it never gets, whether or not its publisher is told.
pub async fn each_kind_of_exchange_routes_its_way(fixture: &impl BrokerFixture) {
    let broker = fixture.connect().await;
    for (kind, key, matching, other) in [
        (ExchangeKind::Topic, "order.*", "order.paid", Some("order.paid.twice")),
        (ExchangeKind::Direct, "order.paid", "order.paid", Some("order.*")),
        (ExchangeKind::Fanout, "", "anything", None),
    ] {
        let (exchange, name) = (fixture.fresh_name("exchange"), fixture.fresh_name("queue"));
        let topology = Topology {
            exchanges: vec![Exchange { name: exchange.clone(), kind }],
            queues: vec![queue(&name)],
            bindings: vec![Binding {
                queue: name.clone(),
                exchange: exchange.clone(),
                routing_key: key.to_owned(),
            }],
        };
        in_time("declaring", broker.declare(&topology)).await.expect("declare");
        let to = |routing_key: &str| towpath_core::ports::broker::Destination {
            exchange: exchange.clone(),
            routing_key: routing_key.to_owned(),
        };
        if let Some(other) = other {
            let outcome = super::acts::publish(&*broker, &[message(&to(other), "unwanted")]).await;
            match &outcome[..] {
                [towpath_core::ports::broker::Published::Unroutable { .. }] => {}
                [towpath_core::ports::broker::Published::Confirmed]
                    if !broker.promises().tells_unroutable => {}
                _ => panic!("{kind:?}: {outcome:?}"),
            }
        }
        publish_all(&*broker, &[message(&to(matching), "wanted")]).await;
        let received = take(&*subscribe(&*broker, &name, 10).await, 1).await;
        assert_eq!(bodies(&received), ["wanted"], "{kind:?}");
    }
}

/// Arguments are texts, numbers and switches.
pub async fn arguments_of_every_type_are_declared(fixture: &impl BrokerFixture) {
    let broker = fixture.connect().await;
    if !broker.promises().dead_letters {
        left_out("dead_letters");
    }
    let lane = Lane::with_arguments(
        fixture,
        vec![
            text("x-dead-letter-exchange", ""),
            number("x-max-length", 1000),
            ("x-single-active-consumer".to_owned(), towpath_core::ports::broker::Argument::Switch(true)),
        ],
    );
    lane.declare(&*broker).await;
    lane.declare(&*broker).await;
}

/// What the adapter says about itself.
pub async fn a_broker_that_answers_is_ready(fixture: &impl BrokerFixture) {
    let broker = fixture.connect().await;
    in_time("asking whether it is ready", broker.ready()).await.expect("ready");
    assert!(!broker.promises().broker.is_empty());
    assert!(super::acts::publish(&*broker, &[]).await.is_empty(), "an empty batch is nothing");
    closed_stays_closed(&*broker).await;
}

/// What waits in a queue is told, what is with a receiver is not counted as waiting, and asking for a queue that is not
/// there is no error, spoils nothing and does not create it.
pub async fn a_queue_tells_what_it_holds(fixture: &impl BrokerFixture) {
    let (broker, lane) = Lane::ready(fixture).await;
    let missing = fixture.fresh_name("missing");
    let asked = [lane.queue.as_str(), missing.as_str(), lane.queue.as_str()];
    if !broker.promises().tells_standing {
        let told = in_time("asking for queues", broker.queue_status(&asked)).await.expect("standing");
        assert_eq!(told, [None, None, None]);
        return;
    }
    // A broker may count a message a moment after it has confirmed it.
    let until = |ready: u64| {
        let (broker, asked) = (broker.clone(), asked.map(str::to_owned));
        async move {
            let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
            in_time("the queue to hold so much", async {
                loop {
                    let told = broker.queue_status(&asked).await.expect("standing");
                    assert_eq!((told.len(), told[1]), (3, None), "what is missing stays missing");
                    match (told[0], told[2]) {
                        (Some(one), Some(other)) if one.ready == ready && other.ready == ready => return one,
                        (Some(_), Some(_)) => tokio::task::yield_now().await,
                        _ => panic!("the queue is there: {told:?}"),
                    }
                }
            })
            .await
        }
    };
    let empty = until(0).await;
    assert!(empty.consumers.is_none_or(|consumers| consumers == 0), "{empty:?}");
    let messages: Vec<_> = (0..3).map(|number| message(&lane.destination, number.to_string())).collect();
    publish_all(&*broker, &messages).await;
    until(3).await;
    let deliveries = subscribe(&*broker, &lane.queue, 2).await;
    let first = next(&*deliveries).await;
    let received = until(1).await;
    assert!(received.consumers.is_none_or(|consumers| consumers == 1), "{received:?}");
    assert!(received.unsettled.is_none_or(|unsettled| unsettled == 2), "{received:?}");
    in_time("settling", deliveries.settle(first.tag, Settlement::Acknowledge)).await.expect("settle");
    until(0).await;
}

async fn closed_stays_closed(broker: &dyn Broker) {
    in_time("closing", broker.close()).await;
    in_time("closing twice", broker.close()).await;
    assert!(matches!(in_time("asking", broker.ready()).await, Err(BrokerError::Unavailable(_))));
}
