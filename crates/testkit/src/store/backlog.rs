//! What waits is counted where it waits.

use towpath_core::lifecycle::LetterStatus;
use towpath_core::ports::store::{
    CommandBacklog, Found, LetterCount, LogBacklog, OutboxBacklog, TimerBacklog,
};

use super::StoreFixture;
use super::acts::{append, claim, given_up, hold_new_lease, record, result, retry, schedule};
use super::facts::{
    COMMAND_TYPES, OrderFacts, completed, context, failed, handler, moment, new_channel, new_order, place,
    timer,
};
use super::letters::{letter, set_aside};

/// Each thing that waits is counted once, where it waits; what is through is not counted.
pub async fn what_waits_is_counted(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let (mail, bills) = (new_channel(), new_channel());

    store.accept_command(&place(&new_order())).await.expect("accept");
    store.claim_commands(&lease, COMMAND_TYPES, moment(1), 1).await.expect("claim");
    store.accept_command(&place(&new_order())).await.expect("accept");
    store.complete_command(&completed(&place(&new_order()), Found::Nowhere, None)).await.expect("complete");
    for retry_at in [Some(moment(9)), None, None] {
        store.fail_command(&failed(&place(&new_order()), Found::Nowhere, 1, retry_at)).await.expect("fail");
    }
    let order = new_order();
    let first = OrderFacts::about(&order, 0).placed().in_context(context(moment(4)));
    append(&*store, &first.routed(std::slice::from_ref(&mail)).append()).await;
    store.sequence(&lease, 1).await.expect("sequence");
    for version in [1, 2] {
        let facts = OrderFacts::about(&order, version).noted("more").in_context(context(moment(7 + version)));
        let facts = facts.routed(std::slice::from_ref(&mail));
        append(&*store, &facts.append()).await;
    }
    let given = OrderFacts::of_new_order().placed().routed(std::slice::from_ref(&mail));
    append(&*store, &given.append()).await;
    let waiting = claim(&*store, &mail, moment(5)).await;
    let results = [result(&waiting[0], retry(moment(500), true)), result(&waiting[3], given_up(false))];
    record(&*store, &lease, &mail, moment(6), &results).await;
    // Whoever looks next sets aside what waits behind.
    assert_eq!(claim(&*store, &mail, moment(7)).await, []);
    schedule(&*store, &[timer(&order, moment(10)), timer(&order, moment(20))]).await;
    set_aside(&*store, &letter(&handler("ship"), 1), Some(moment(10))).await;
    set_aside(&*store, &letter(&handler("ship"), 2), None).await;

    let backlog = store.backlog(&[mail.clone(), bills.clone()], moment(15)).await.expect("backlog");
    assert_eq!(
        backlog.commands,
        CommandBacklog { pending: 1, processing: 1, retrying: 1, failed: 2, due_at: Some(moment(0)) }
    );
    assert_eq!(backlog.log, LogBacklog { head: 1, pending: 3, pending_since: Some(moment(8)) });
    assert_eq!(backlog.timers, TimerBacklog { waiting: 2, due: 1, due_at: Some(moment(10)) });
    let nothing = OutboxBacklog { channel: bills, pending: 0, parked: 0, failed: 0, oldest_at: None };
    let of_mail =
        OutboxBacklog { channel: mail, pending: 1, parked: 2, failed: 1, oldest_at: Some(moment(4)) };
    assert_eq!(backlog.outbox, [of_mail, nothing]);
    let mut letters = backlog.letters;
    letters.sort_by_key(|count| count.status.as_str());
    let count = |status| LetterCount { handler: Some(handler("ship")), status, count: 1 };
    assert_eq!(letters, [count(LetterStatus::Dead), count(LetterStatus::Retry)]);
}
