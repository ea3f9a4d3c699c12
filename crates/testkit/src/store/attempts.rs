//! Attempts: a process that begins with deliveries writes so down, and the next one knows what it did not survive.

use towpath_core::ids::{EventId, HandlerName};
use towpath_core::letters::NewLetter;
use towpath_core::lifecycle::InboxStatus;
use towpath_core::ports::store::{CameBefore, FirstDelivery, InboxFailure, Store};

use super::StoreFixture;
use super::facts::{handler, moment, new_event_id};
use super::letters::{letter, set_aside};

/// What a process has begun with and not ended is known to the next one, unless the first has let go of it. What was handled
/// is nobody's, and an open letter stands for its delivery.
pub async fn an_attempt_that_did_not_end_is_known(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let ship = handler("ship");
    let events: Vec<EventId> = (0..3).map(|_| new_event_id()).collect();
    assert_eq!(begin(&*store, &events, &ship, "one").await, CameBefore::default());
    assert_eq!(begin(&*store, &events, &ship, "one").await, CameBefore::default(), "it knows its own");
    assert_eq!(begin(&*store, &events, &handler("bill"), "two").await, CameBefore::default());
    store.let_go_of_attempts(&events[..1], &ship, "one").await.expect("let go");
    store.let_go_of_attempts(&events[1..2], &ship, "two").await.expect("let go of what is another's");
    assert_eq!(mark(&*store, &events[2..], &ship).await.len(), 1);
    let anothers = NewLetter { event_id: Some(events[1]), ..letter(&handler("bill"), 1) };
    set_aside(&*store, &anothers, Some(moment(9))).await;
    let before = begin(&*store, &events, &ship, "two").await;
    let unfinished = vec![events[1]];
    assert_eq!(
        before,
        CameBefore { unfinished, set_aside: vec![] },
        "the first was let go of, the last handled"
    );

    let aside = letter(&ship, 1);
    set_aside(&*store, &aside, Some(moment(9))).await;
    let event_id = aside.event_id.expect("it has one");
    let before = begin(&*store, &[event_id], &ship, "two").await;
    assert_eq!(before, CameBefore { unfinished: Vec::new(), set_aside: vec![event_id] });
}

/// Many deliveries are marked at once: those come back that were not handled or given up before, with their failures.
pub async fn first_deliveries_are_marked_together(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let ship = handler("ship");
    let events: Vec<EventId> = (0..4).map(|_| new_event_id()).collect();
    assert_eq!(mark(&*store, &events[..1], &ship).await.len(), 1);
    fail(&*store, events[1], &ship, false).await;
    fail(&*store, events[2], &ship, true).await;
    begin(&*store, &events[3..], &ship, "one").await;
    let mut first = mark(&*store, &[&events[..], &events[..]].concat(), &ship).await;
    first.sort_by_key(|delivery| delivery.event_id.0);
    let expected = [
        FirstDelivery { event_id: events[1], failures: 1, begun: false },
        FirstDelivery { event_id: events[3], failures: 0, begun: true },
    ];
    assert_eq!(first, expected);
    assert_eq!(mark(&*store, &events, &ship).await, [], "all of them were");
}

/// Failures of a delivery that goes back for good are forgotten; what was handled or given up is not.
pub async fn failures_are_forgotten_while_a_delivery_is_open(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let ship = handler("ship");
    let (open, handled, dead) = (new_event_id(), new_event_id(), new_event_id());
    fail(&*store, open, &ship, false).await;
    mark(&*store, &[handled], &ship).await;
    fail(&*store, dead, &ship, true).await;
    for event_id in [open, handled, dead] {
        store.forget_failures(event_id, &ship).await.expect("forget");
    }
    let mut statuses = Vec::new();
    for event_id in [open, handled, dead] {
        let entry = store.inbox_entry(event_id, &ship).await.expect("read");
        statuses.push(entry.map(|entry| entry.status));
    }
    assert_eq!(statuses, [None, Some(InboxStatus::Handled), Some(InboxStatus::Dead)]);
}

async fn begin(store: &dyn Store, events: &[EventId], handler: &HandlerName, by: &str) -> CameBefore {
    store.begin_attempts(events, handler, by, true, moment(1)).await.expect("begin")
}

async fn mark(store: &dyn Store, events: &[EventId], handler: &HandlerName) -> Vec<FirstDelivery> {
    let mut tx = store.begin().await.expect("begin");
    let first = tx.mark_deliveries(events, handler, moment(2)).await.expect("mark");
    tx.commit().await.expect("commit");
    first
}

async fn fail(store: &dyn Store, event_id: EventId, handler: &HandlerName, dead: bool) {
    let failure = InboxFailure { event_id, handler, reason: "no", message: "no", failed_at: moment(1), dead };
    store.count_failure(&failure).await.expect("count");
}
