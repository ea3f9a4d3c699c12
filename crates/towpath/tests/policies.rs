//! The sources' retry policies, run to their end on a clock that stands still: each attempt comes when its delay is over,
//! not before, and after the last one there is an alert and nothing more.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{Fresh, Order, OrderCommand, eventually};
use towpath::ids::{AggregateKey, CommandId};
use towpath::lifecycle::{CommandStatus, OutboxStatus};
use towpath::ports::clock::Clock as _;
use towpath::ports::store::{Inspection as _, OutboxRow};
use towpath::retry::RetryPolicy;
use towpath::{Builder, Channel, ChannelPolicy, Publishing, PublishingOutcome, StoreOptions, Towpath, Watch};
use towpath_testkit::{CountingProbe, VirtualClock};
use tracing_subscriber::layer::SubscriberExt as _;

on_every_database!(
    an_event_is_tried_ten_times_with_growing_delays_and_given_up,
    genesis_tries_an_event_again_five_times_and_raises_an_alert,
    a_command_is_tried_again_after_1_5_and_15_seconds,
);

/// What is told of an event that cannot be published.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Watch for Told {
    fn published(&self, publishing: &Publishing<'_>) {
        let told = match publishing.outcome {
            PublishingOutcome::Sent => "sent".to_owned(),
            PublishingOutcome::Retried { reason, .. } => format!("retried {reason}"),
            PublishingOutcome::GivenUp { reason, .. } => format!("given up {reason}"),
        };
        self.0.lock().unwrap().push(told);
    }
}

/// On the in-process broker, with a channel whose exchange routes nothing anywhere.
fn app(
    fresh: &Fresh,
    policy: ChannelPolicy,
    clock: &Arc<VirtualClock>,
    told: &Arc<Told>,
    looks: &Arc<CountingProbe>,
) -> Builder {
    let policy = ChannelPolicy { scan: Duration::from_millis(10), ..policy };
    let channel = Channel::named("facts", ["order.*"]).map(|channel| channel.published().with(policy));
    let topology = towpath::ports::broker::Topology {
        exchanges: vec![towpath::ports::broker::Exchange {
            name: "facts".to_owned(),
            kind: towpath::ports::broker::ExchangeKind::Topic,
        }],
        ..Default::default()
    };
    let options = StoreOptions { probe: looks.clone(), ..StoreOptions::default() };
    let builder = fresh.builder().channel(channel).topology(topology).store_options(options);
    builder.clock(clock.clone()).watch(told.clone())
}

async fn row(app: &Towpath) -> OutboxRow {
    let key = AggregateKey::new("order", "o-1").unwrap();
    let event = app.events_of(&key, 0, 1).await.unwrap().remove(0);
    let rows = app.store().outbox_of(event.envelope.event_id).await.unwrap();
    rows.into_iter().find(|row| row.channel.as_str() == "facts").unwrap()
}

/// Lets one event fail until it is given up; answers the delays between its attempts.
async fn until_given_up(
    app: &Towpath,
    clock: &VirtualClock,
    looks: &CountingProbe,
    attempts: u32,
) -> Vec<Duration> {
    app.send::<Order>("o-1", OrderCommand::Place { sku: "book".to_owned() }).await.unwrap();
    let mut delays = Vec::new();
    for attempt in 1..attempts {
        let row = eventually("the next attempt", || async {
            Some(row(app).await).filter(|row| row.retry_count == attempt)
        })
        .await;
        assert_eq!(row.status, OutboxStatus::Retry);
        let delay = (row.next_retry_at.unwrap() - clock.now()).to_std().unwrap();
        // A moment before it is due nothing happens, however often somebody looks.
        clock.advance(delay - Duration::from_millis(1));
        looks.take();
        let mut seen = 0;
        eventually("several looks", || {
            seen += looks.take().iter().filter(|name| **name == "outbox.look").count();
            async move { (seen > 8).then_some(()) }
        })
        .await;
        assert_eq!(self::row(app).await.retry_count, attempt);
        clock.advance(Duration::from_millis(1));
        delays.push(delay);
    }
    let last = eventually("it is given up", || async {
        Some(row(app).await).filter(|row| row.status == OutboxStatus::Failed)
    })
    .await;
    assert_eq!((last.retry_count, last.next_retry_at), (attempts, None));
    clock.advance(Duration::from_secs(86_400));
    delays
}

/// H12: exponential, 10 attempts, then dead; the default of every channel.
async fn an_event_is_tried_ten_times_with_growing_delays_and_given_up(fresh: &Fresh) {
    let (clock, told) = (Arc::new(VirtualClock::new()), Arc::new(Told::default()));
    let looks = Arc::new(CountingProbe::new());
    let app = app(fresh, ChannelPolicy::default(), &clock, &told, &looks).start().await.unwrap();
    let delays = until_given_up(&app, &clock, &looks, 10).await;
    let policy = RetryPolicy::for_channels();
    for (failures, delay) in (1..).zip(&delays) {
        let (least, most) =
            (policy.next_delay(failures, 0.0).unwrap(), policy.next_delay(failures, 1.0).unwrap());
        let (least, most) = (least.min(most), least.max(most) + Duration::from_millis(1));
        assert!((least..=most).contains(delay), "{failures}: {delay:?} is not within {least:?} and {most:?}");
    }
    assert!(delays.windows(2).all(|pair| pair[0] <= pair[1] * 2), "{delays:?}");
    let told = told.0.lock().unwrap().clone();
    assert_eq!(told.iter().filter(|one| *one == "retried unroutable").count(), 9);
    assert_eq!(told.iter().filter(|one| *one == "given up unroutable").count(), 1);
    app.stop().await;
}

/// Error lines of this process.
#[derive(Clone, Default)]
struct Errors(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Errors {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        if *event.metadata().level() == tracing::Level::ERROR {
            let mut line = Line(String::new());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }
    }
}

/// G7: five retries, then FAILED and an alert: the watch is told, and the log has an error.
async fn genesis_tries_an_event_again_five_times_and_raises_an_alert(fresh: &Fresh) {
    let errors = Errors::default();
    // Each test has a process of its own under nextest; elsewhere the first of them hears for all.
    let hears =
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(errors.clone())).is_ok();
    let (clock, told) = (Arc::new(VirtualClock::new()), Arc::new(Told::default()));
    let looks = Arc::new(CountingProbe::new());
    // The source names no delays; these keep a short restart of the broker invisible.
    let (first, cap) = (Duration::from_secs(1), Duration::from_secs(60));
    let retries = RetryPolicy::Exponential { first, factor: 2.0, cap, attempts: 6, jitter: 0.2 };
    let policy = ChannelPolicy { retries, ..ChannelPolicy::default() };
    let app = app(fresh, policy, &clock, &told, &looks).start().await.unwrap();
    until_given_up(&app, &clock, &looks, 6).await;
    let told = told.0.lock().unwrap().clone();
    assert_eq!(told.iter().filter(|one| *one == "retried unroutable").count(), 5);
    assert_eq!(told.iter().filter(|one| *one == "given up unroutable").count(), 1, "the alert");
    if hears {
        let errors = errors.0.lock().unwrap().clone();
        let alert = errors.iter().find(|line| line.contains("an event was given up"));
        assert!(alert.is_some_and(|line| line.contains("eventId")), "{errors:?}");
    }
    app.stop().await;
}

/// G6, as it is when nothing is said: at most three retries, after 1, 5 and 15 seconds.
async fn a_command_is_tried_again_after_1_5_and_15_seconds(fresh: &Fresh) {
    assert_eq!(RetryPolicy::for_commands(), RetryPolicy::Fixed([1, 5, 15].map(Duration::from_secs).into()));
    let clock = Arc::new(VirtualClock::new());
    // Not the builder of the tests, which has retries of its own.
    let app = Towpath::builder().store(fresh.url()).aggregate::<Order>().clock(clock.clone());
    let app = app.scan(Duration::from_millis(10)).start().await.unwrap();
    app.send::<Order>("o-1", OrderCommand::Place { sku: "book".to_owned() }).await.unwrap();
    app.send::<Order>("o-1", OrderCommand::Dawdle).once("c-1").await.unwrap_err();
    let id = CommandId::new("c-1").unwrap();
    for (retries, seconds) in [(1, 1), (2, 5), (3, 15)] {
        let record = eventually("the next attempt has failed", || async {
            app.command(&id).await.unwrap().filter(|record| {
                (record.retry_count, record.status) == (retries, CommandStatus::Failed)
                    && record.next_retry_at.is_some()
            })
        })
        .await;
        let delay = (record.next_retry_at.unwrap() - clock.now()).to_std().unwrap();
        assert_eq!(delay, Duration::from_secs(seconds), "retry {retries}");
        clock.advance(delay);
    }
    let last = eventually("it is given up", || async {
        app.command(&id)
            .await
            .unwrap()
            .filter(|record| record.status == CommandStatus::Failed && record.next_retry_at.is_none())
    })
    .await;
    assert_eq!(last.retry_count, 3);
    app.stop().await;
}
