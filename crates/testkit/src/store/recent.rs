//! What happened lately is told in figures.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_core::ports::store::{Found, Recent, RecentCommands};

use super::StoreFixture;
use super::acts::{append, claim, given_up, hold_new_lease, record, record_sent, result, sequence_all};
use super::facts::{OrderFacts, completed, context, failed, moment, new_channel, new_order, order, place};

/// Commands, sent rows and facts count from a moment on; what happened before does not.
pub async fn what_happened_lately_is_told(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let (mail, bills) = (new_channel(), new_channel());
    let nothing = store.recent(std::slice::from_ref(&mail), moment(0), moment(0)).await.expect("recent");
    assert_eq!(nothing, Recent::default());

    let at = |seconds| {
        let mut command = place(&new_order());
        command.context = context(moment(seconds));
        command
    };
    // Long ago; then one that is still to be done, one that was done, and one that has failed twice.
    store.complete_command(&completed(&at(10), Found::Nowhere, None)).await.expect("complete");
    store.accept_command(&at(100)).await.expect("accept");
    store.complete_command(&completed(&at(101), Found::Nowhere, None)).await.expect("complete");
    store.fail_command(&failed(&at(102), Found::Nowhere, 2, None)).await.expect("fail");

    // 200 facts, one each second, so that the place of a moment among them has to be looked for.
    for number in 0..200 {
        let facts =
            OrderFacts::about(&order(format!("order-{number}")), 0).in_context(context(moment(number)));
        let facts = if number % 2 == 0 { facts.placed() } else { facts.placed().paid() };
        let channels = match number {
            20 | 120 | 130 | 140 => std::slice::from_ref(&mail),
            150 => std::slice::from_ref(&bills),
            _ => &[],
        };
        append(&*store, &facts.routed(channels).append()).await;
        // Each has its position before the next one happens.
        if number % 40 == 39 {
            sequence_all(&*store, &lease).await;
        }
    }
    let waiting = claim(&*store, &mail, moment(300)).await;
    record_sent(&*store, &lease, &mail, moment(30), &waiting[..1]).await;
    record_sent(&*store, &lease, &mail, moment(123), &waiting[1..2]).await;
    record_sent(&*store, &lease, &mail, moment(134), &waiting[2..3]).await;
    record(&*store, &lease, &mail, moment(141), &[result(&waiting[3], given_up(false))]).await;
    let of_bills = claim(&*store, &bills, moment(300)).await;
    record_sent(&*store, &lease, &bills, moment(250), &of_bills).await;

    // Whoever looks a second time looks by the same statements.
    let again = store.recent(std::slice::from_ref(&mail), moment(100), moment(191)).await.expect("recent");
    let recent = store.recent(std::slice::from_ref(&mail), moment(100), moment(191)).await.expect("recent");
    assert_eq!(again, recent);
    let commands =
        RecentCommands { received: 3, retried: 1, ended: 2, processing_time: Duration::from_secs(2) };
    assert_eq!(recent.commands, BTreeMap::from([("order.place".to_owned(), commands)]));
    assert_eq!((recent.sent, recent.publish_delay), (2, Duration::from_secs(3 + 4)));
    // Of 9 moments, five have two facts.
    let by_type = [("order.paid".to_owned(), 5), ("order.placed".to_owned(), 9)];
    assert_eq!((recent.events, recent.events_by_type), (14, BTreeMap::from(by_type)));

    let both = store.recent(&[mail, bills], moment(100), moment(0)).await.expect("recent");
    assert_eq!((both.sent, both.events), (3, 300));
    assert_eq!(store.recent(&[], moment(100), moment(500)).await.expect("recent").events, 0);
}
