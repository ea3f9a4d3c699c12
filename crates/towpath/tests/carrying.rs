//! Events that no channel could carry are refused when they are made, and not parked for ever.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use support::{Fresh, Order, OrderCommand};
use towpath::ids::{AggregateKey, CorrelationId, EventId};
use towpath::name::EventName;
use towpath::ports::store::{Append, Expected, NewEvent, Routing};
use towpath::{ChangeContext, Channel, ChannelPolicy, Coded as _, Payload, StartError};

#[tokio::test]
async fn a_command_whose_event_is_too_large_for_a_channel_is_refused() {
    let fresh = Fresh::on("sqlite").await;
    let small = ChannelPolicy { largest_message: Some(16 << 10), ..ChannelPolicy::default() };
    let channel = Channel::named("small", ["order.placed"]).map(|channel| channel.published().with(small));
    let app = fresh.builder().channel(channel).start().await.unwrap();
    let place = |bytes: usize| OrderCommand::Place { sku: "x".repeat(bytes) };
    let refused = app.send::<Order>("o-1", place(20 << 10)).once("c-1").await.unwrap_err();
    assert_eq!(refused.code(), "event-too-large");
    assert!(refused.to_string().contains("small"), "{refused}");
    assert!(app.load::<Order>("o-1").await.unwrap().is_none(), "nothing has happened");
    app.send::<Order>("o-1", place(8 << 10)).await.unwrap();
    app.stop().await;

    // Without a target nothing is carried anywhere.
    let fresh = Fresh::on("sqlite").await;
    let app = fresh.app().await;
    app.send::<Order>("o-1", place(3 << 20)).await.unwrap();
    app.stop().await;
}

/// What is appended without a command is held to the same.
#[tokio::test]
async fn a_fact_that_is_too_large_for_a_channel_is_refused_without_a_command_too() {
    let fresh = Fresh::on("sqlite").await;
    let small = ChannelPolicy { largest_message: Some(16 << 10), ..ChannelPolicy::default() };
    let channel = Channel::named("small", ["*.placed"]).map(|channel| channel.published().with(small));
    let app = fresh.builder().channel(channel).start().await.unwrap();
    let pool = app.store().sqlite_pool().unwrap();
    // Of an aggregate that is registered, and of one that nobody knows.
    for kind in ["order", "parcel"] {
        for (bytes, fits) in [(20 << 10, false), (8 << 10, true)] {
            let append = Append {
                aggregate: AggregateKey::new(kind, "1").unwrap(),
                expected: Expected::Any,
                events: vec![NewEvent {
                    event_id: EventId(uuid::Uuid::now_v7()),
                    event_type: EventName::from_stored(format!("{kind}.placed")),
                    schema_version: 1,
                    payload: Payload::from_text(format!(r#"{{"sku":"{}"}}"#, "x".repeat(bytes))).unwrap(),
                    channels: Routing::ByType,
                }],
                snapshot: None,
                state_changes: vec![],
                deadline: Default::default(),
                context: ChangeContext::new(chrono::Utc::now(), CorrelationId::new("flow-own").unwrap()),
            };
            let mut joined = app.join(pool.begin().await.unwrap());
            let appended = joined.append(&append).await;
            joined.rollback().await.unwrap();
            match appended {
                Ok(_) => assert!(fits, "{kind}: {bytes} bytes"),
                Err(refused) => {
                    assert!(!fits, "{kind}: {bytes} bytes: {refused}");
                    assert_eq!(refused.code(), "event-too-large");
                }
            }
        }
    }
    app.stop().await;
}

/// Kafka takes 1 MiB unless it is told otherwise, and then the channel is told, too. No broker is asked.
#[cfg(feature = "kafka")]
#[tokio::test]
async fn kafka_counts_as_taking_a_mebibyte_unless_the_channel_says_more() {
    for (largest_message, fits) in [(None, false), (Some(4 << 20), true)] {
        let fresh = Fresh::on("sqlite").await;
        let policy = ChannelPolicy { largest_message, ..ChannelPolicy::default() };
        let channel = Channel::named("facts", ["order.*"]).map(|channel| channel.published().with(policy));
        // Nobody listens there.
        let app = fresh.builder().broker("kafka://127.0.0.1:1").channel(channel).start().await.unwrap();
        let sent = app.send::<Order>("o-1", OrderCommand::Place { sku: "x".repeat(1 << 20) }).await;
        assert_eq!(sent.is_ok(), fits, "{:?}", sent.err());
        app.stop().await;
    }
}

#[tokio::test]
async fn a_routing_key_that_no_broker_takes_stops_the_start() {
    let fresh = Fresh::on("sqlite").await;
    let channel = Channel::named("facts", ["order.*"]).map(|channel| channel.to("facts", "k".repeat(256)));
    let refused = fresh.builder().channel(channel).start().await.err().expect("it could carry nothing");
    assert!(matches!(&refused, StartError::Wiring(message) if message.contains("routing key")), "{refused}");
}
