//! A broker that is away, wholly or in part: applications start and go on, and no row is blamed for it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::place::{Place, facts_in, place, versions};
use support::{Fresh, eventually};
use towpath::ids::AggregateKey;
use towpath::lifecycle::OutboxStatus;
use towpath::ports::broker::{Argument, Broker, Queue, Subscription, Topology};
use towpath::ports::store::Inspection as _;
use towpath::retry::RetryPolicy;
use towpath::{Channel, ChannelPolicy, Coded as _, Start, StoreOptions, Towpath};
use towpath_testkit::CountingProbe;
use towpath_testkit::broker::TcpProxy;

on_every_database!(
    an_application_starts_without_its_broker_and_publishes_when_it_is_there,
    an_application_without_workers_starts_without_its_broker,
    a_full_queue_uses_up_no_attempt,
    a_channel_that_counts_absences_gives_up_while_the_broker_is_away,
);

async fn an_application_starts_without_its_broker_and_publishes_when_it_is_there(fresh: &Fresh) {
    let direct = Place::new();
    let (place_of_test, proxy) = direct.behind_a_proxy().await;
    proxy.refuse();
    let log = Channel::named("log", ["order.*"]).map(|channel| {
        channel.to(&place_of_test.exchange, place_of_test.key()).tracking(Start::First).with(Place::policy())
    });
    let app = place_of_test.app(fresh).channel(log).start().await.expect("the outbox is for this moment");
    place(&app, "o-1").await;
    let away = app.broker_ready().await.expect_err("it is told");
    assert_eq!(away.code(), "broker-unavailable");
    assert_eq!(facts_in(&app, OutboxStatus::New).await, 1);
    proxy.heal();
    eventually("it is SENT", || async { (facts_in(&app, OutboxStatus::Sent).await == 1).then_some(()) })
        .await;
    let inbox = direct.receive().await;
    assert_eq!(versions(&inbox.take(2).await)["o-1"], [1, 1], "by the outbox and by the log");
    app.broker_ready().await.expect("and its topology is declared");
    app.stop().await;
}

async fn an_application_without_workers_starts_without_its_broker(fresh: &Fresh) {
    let (place_of_test, proxy) = Place::new().behind_a_proxy().await;
    proxy.refuse();
    let app = place_of_test.app(fresh).without_workers().start().await.expect("it needs no broker");
    place(&app, "o-1").await;
    proxy.heal();
    eventually("the topology is declared", || async { app.broker_ready().await.ok() }).await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_topology_that_the_broker_refuses_is_told_at_the_start_or_later() {
    let fresh = Fresh::on("sqlite").await;
    let direct = Place::new();
    let other = Queue {
        name: direct.queue.clone(),
        arguments: vec![("x-expires".to_owned(), Argument::Number(59_000))],
    };
    let made = Topology { queues: vec![other], ..Topology::default() };
    direct.broker().declare(&made).await.unwrap();
    let refused = direct.app(&fresh).start().await.err().expect("a mistake stops a start");
    assert_eq!(refused.code(), "topology-mismatch");

    let (behind, proxy) = direct.behind_a_proxy().await;
    proxy.refuse();
    let app = behind.app(&fresh).start().await.unwrap();
    proxy.heal();
    let told = eventually("it is told", || async {
        app.broker_ready().await.err().filter(|error| error.code() != "broker-unavailable")
    })
    .await;
    assert_eq!(told.code(), "topology-mismatch");
    assert!(told.to_string().contains(&direct.queue), "{told}");
    app.stop().await;
}

async fn a_full_queue_uses_up_no_attempt(fresh: &Fresh) {
    let place_of_test = Place::new();
    // Two messages fill it, and then it says no to everything: so does a queue that has lost its quorum.
    let mut topology = place_of_test.topology(true);
    topology.queues[0].arguments.extend([
        ("x-max-length".to_owned(), Argument::Number(2)),
        ("x-overflow".to_owned(), Argument::Text("reject-publish".to_owned())),
    ]);
    let looks = Arc::new(CountingProbe::new());
    let options = StoreOptions { probe: looks.clone(), ..StoreOptions::default() };
    let channel = Channel::named("facts", ["order.*"])
        .map(|channel| channel.to(&place_of_test.exchange, place_of_test.key()).with(Place::policy()));
    let builder = fresh.builder().broker(&place_of_test.url).channel(channel).topology(topology.clone());
    let app = builder.lease(Duration::from_secs(2)).store_options(options).start().await.unwrap();
    let ids: Vec<String> = (0..12).map(|number| format!("o-{number}")).collect();
    for id in &ids {
        place(&app, id).await;
    }
    eventually("it is full", || async { (facts_in(&app, OutboxStatus::Sent).await >= 2).then_some(()) })
        .await;
    looks.take();
    let mut seen = 0;
    eventually("many rounds", || {
        seen += looks.take().iter().filter(|name| **name == "outbox.look").count();
        async move { (seen > 16).then_some(()) }
    })
    .await;
    let failed = facts_in(&app, OutboxStatus::Failed).await;
    assert_eq!(failed, 0, "three attempts are quickly used up, and nothing was wrong with any row");
    // What was refused while others still had room has used up an attempt. Nothing else has, however long it takes.
    let mut attempts = Vec::new();
    for id in &ids {
        attempts.push(reason_of(&app, id).await.1);
    }
    assert!(attempts.iter().sum::<u32>() <= 12, "{attempts:?}");
    // Room is made.
    let broker = place_of_test.broker();
    let subscription =
        Subscription { queue: place_of_test.queue.clone(), group: "test".to_owned(), prefetch: 50 };
    let deliveries = broker.subscribe(&subscription).await.unwrap();
    for _ in &ids {
        let next = tokio::time::timeout(Duration::from_secs(15), deliveries.next()).await;
        let next = next.expect("all of them come").unwrap();
        deliveries.settle(next.tag, towpath::ports::broker::Settlement::Acknowledge).await.unwrap();
    }
    eventually("all are SENT", || async { (facts_in(&app, OutboxStatus::Sent).await == 12).then_some(()) })
        .await;
    app.stop().await;
}

async fn a_channel_that_counts_absences_gives_up_while_the_broker_is_away(fresh: &Fresh) {
    let (url, proxy) = TcpProxy::before(&Place::new().url).await;
    let place_of_test = Place { url, ..Place::new() };
    let policy = ChannelPolicy {
        counts_absence: true,
        patience: Duration::from_millis(500),
        retries: RetryPolicy::Fixed(vec![Duration::from_millis(20); 2]),
        ..Place::policy()
    };
    let app = place_of_test.app_with(fresh, policy).start().await.unwrap();
    proxy.refuse();
    place(&app, "o-1").await;
    eventually("it is given up", || async {
        (facts_in(&app, OutboxStatus::Failed).await == 1).then_some(())
    })
    .await;
    assert_eq!(reason_of(&app, "o-1").await, (Some("broker-unavailable".to_owned()), 3));
    app.stop().await;
}

async fn reason_of(app: &Towpath, id: &str) -> (Option<String>, u32) {
    let event = app.events_of(&AggregateKey::new("order", id).unwrap(), 0, 1).await.unwrap().remove(0);
    let rows = app.store().outbox_of(event.envelope.event_id).await.unwrap();
    let row = rows.into_iter().find(|row| row.channel.as_str() == "facts").unwrap();
    (row.status_reason, row.retry_count)
}
