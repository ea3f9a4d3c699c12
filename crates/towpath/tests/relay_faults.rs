//! The relay when the database's server goes away at the worst moment: between publishing and recording.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;

use support::place::{Place, facts_in, place, versions};
use support::probe::ProbeAt;
use support::{Fresh, Order, OrderCommand, eventually};
use towpath::lifecycle::OutboxStatus;
use towpath::{StoreOptions, Towpath};
use towpath_testkit::broker::TcpProxy;

// SQLite has no server that could go away.
on_every_database!(@database postgres, what_could_not_be_recorded_is_recorded_later_and_not_published_again);
on_every_database!(@database mysql, what_could_not_be_recorded_is_recorded_later_and_not_published_again);

async fn what_could_not_be_recorded_is_recorded_later_and_not_published_again(fresh: &Fresh) {
    let place_of_test = Place::new();
    let (url, proxy) = TcpProxy::before(fresh.url()).await;
    let probe = Arc::new(ProbeAt::new("outbox.record", move || proxy.cut()));
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    let relaying = place_of_test.app(fresh).store(&url).store_options(options).start().await.unwrap();
    let writing = place_of_test.app(fresh).without_workers().start().await.unwrap();
    let inbox = place_of_test.receive().await;

    probe.arm(3);
    for number in 0..8 {
        place(&writing, &format!("o-{number}")).await;
        writing.send::<Order>(format!("o-{number}"), OrderCommand::Note).await.unwrap();
    }
    let mut received = inbox.take(16).await;
    eventually("all are SENT", || async { (sent(&writing).await == 16).then_some(()) }).await;
    assert!(probe.is_spent(), "recording has failed several times");
    // Each shaft says something more: it comes behind all that the shaft has said before.
    for number in 0..8 {
        writing.send::<Order>(format!("o-{number}"), OrderCommand::Note).await.unwrap();
    }
    received.extend(inbox.take(8).await);
    let versions = versions(&received);
    assert!(versions.values().all(|versions| *versions == [1, 2, 3]), "each once, in order: {versions:?}");
    relaying.stop().await;
    let live = writing.store().leases("").await.unwrap().into_iter().filter(|lease| lease.live).count();
    assert_eq!(live, 0, "nothing is left claimed");
    writing.stop().await;
}

async fn sent(app: &Towpath) -> u64 {
    facts_in(app, OutboxStatus::Sent).await
}
