//! Stopping: it ends, whoever does not answer, and then nothing is sent any more.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};
use support::probe::{Gate, ProbeAt};
use support::{Fresh, Order, OrderCommand, OrderEvent, eventually};
use towpath::ids::ChannelName;
use towpath::{Aggregate, Channel, Coded as _, Context, SendError, Start, StoreOptions, Towpath};
use towpath_testkit::broker::TcpProxy;

async fn place(app: &Towpath, id: &str) -> Result<(), SendError> {
    app.send::<Order>(id, OrderCommand::Place { sku: "book".to_owned() }).await.map(|_| ())
}

/// The database's host is gone without a word, and every service waits for it.
async fn stop_ends_though_nobody_answers(fresh: &Fresh) {
    if fresh.url().starts_with("sqlite:") {
        return;
    }
    let (url, proxy) = TcpProxy::before(fresh.url()).await;
    let options = StoreOptions { statement_timeout: Duration::from_secs(600), ..StoreOptions::default() };
    let app = fresh.builder().store(&url).store_options(options).start().await.unwrap();
    place(&app, "o-1").await.unwrap();
    proxy.hold_everything();
    let waiting = tokio::spawn({
        let app = app.clone();
        async move { place(&app, "o-2").await }
    });
    let begun = Instant::now();
    let stopped =
        tokio::time::timeout(Duration::from_secs(60), app.stop_within(Duration::from_secs(1))).await;
    let cut_off = stopped.expect("it ends");
    // Who keeps the leases asks the store at the end, whoever else was waiting for it.
    assert!(cut_off.iter().any(|name| name == "leases"), "it says what was cut off: {cut_off:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
    waiting.abort();
}

/// A channel is removed, and its tracker does not end: whoever stops everything does not wait behind that.
async fn stop_waits_for_nobody_who_ends_a_channel(fresh: &Fresh) {
    let gate = Gate::default();
    let probe = ProbeAt::new("channels.parked", gate.clone());
    probe.arm(1);
    let options = StoreOptions { probe: Arc::new(probe), ..StoreOptions::default() };
    let channel = Channel::named("log", ["order.*"]).map(|log| log.published().tracking(Start::First));
    let app = fresh.builder().store_options(options).channel(channel).start().await.unwrap();
    gate.reached().await;
    let removing = tokio::spawn({
        let app = app.clone();
        async move { app.channels().remove(&ChannelName::new("log").unwrap(), None, "no more").await }
    });
    eventually("it is removed", || async { app.channels().list().await.unwrap().is_empty().then_some(()) })
        .await;
    let stopped =
        tokio::time::timeout(Duration::from_secs(15), app.stop_within(Duration::from_millis(200))).await;
    gate.open();
    stopped.expect("it ends, whatever becomes of the tracker");
    removing.await.unwrap().unwrap();
}

async fn what_is_sent_after_a_stop_is_refused_at_once(fresh: &Fresh) {
    let app = fresh.app().await;
    place(&app, "o-1").await.unwrap();
    app.stop().await;
    // It waits for nothing.
    let refused = place(&app, "o-2").now_or_never().expect("an answer at once").unwrap_err();
    assert_eq!((refused.code(), refused.to_string().as_str()), ("stopped", "Towpath was stopped"));
    let later = app.send::<Order>("o-3", OrderCommand::Place { sku: "book".to_owned() }).later();
    let refused = later.now_or_never().expect("an answer at once").unwrap_err();
    assert_eq!(refused.code(), "stopped");
    app.stop().await;
}

/// The same orders, in the code of a later build that has forgotten to raise its snapshot version.
#[derive(Debug, Default, Serialize, Deserialize)]
struct LaterOrder {
    gift_wrapping: bool,
}

impl Aggregate for LaterOrder {
    const KIND: &'static str = Order::KIND;
    type Command = OrderCommand;
    type Event = OrderEvent;
    type Refusal = <Order as Aggregate>::Refusal;

    fn decide(&self, _: OrderCommand, _: &Context) -> Result<Vec<OrderEvent>, Self::Refusal> {
        Ok(Vec::new())
    }

    fn evolve(self, _: &OrderEvent) -> Self {
        self
    }
}

async fn a_state_that_cannot_be_read_is_named_with_what_to_do(fresh: &Fresh) {
    let app = fresh.app().await;
    place(&app, "o-1").await.unwrap();
    let error = app.load::<LaterOrder>("o-1").await.unwrap_err();
    assert_eq!(
        (error.code(), error.to_string().as_str()),
        ("corrupt", "the stored state of order/o-1 cannot be read")
    );
    let mut why = std::error::Error::source(&error).unwrap();
    while let Some(cause) = why.source() {
        why = cause;
    }
    assert!(why.to_string().contains("gift_wrapping"), "{why}");
    assert!(error.next_step().contains("SNAPSHOT_VERSION"), "{}", error.next_step());
    app.stop().await;
}

on_every_database!(
    stop_ends_though_nobody_answers,
    stop_waits_for_nobody_who_ends_a_channel,
    what_is_sent_after_a_stop_is_refused_at_once,
    a_state_that_cannot_be_read_is_named_with_what_to_do,
);
