//! Events that no channel could carry are refused when they are made, and not parked for ever.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use support::{Fresh, Order, OrderCommand};
use towpath::{Channel, ChannelPolicy, StartError};

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

#[tokio::test]
async fn a_routing_key_that_no_broker_takes_stops_the_start() {
    let fresh = Fresh::on("sqlite").await;
    let channel = Channel::named("facts", ["order.*"]).map(|channel| channel.to("facts", "k".repeat(256)));
    let refused = fresh.builder().channel(channel).start().await.err().expect("it could carry nothing");
    assert!(matches!(&refused, StartError::Wiring(message) if message.contains("routing key")), "{refused}");
}
