//! The inbox: a handler's change happens once per (event, handler), whatever is redelivered (P4).

use std::sync::Arc;

use towpath_core::ids::{EventId, HandlerName};
use towpath_core::lifecycle::InboxStatus;
use towpath_core::ports::store::{
    InboxEntry, InboxFailure, InboxMark, InspectedStore, StoreError, StoreResult,
};

use super::StoreFixture;
use super::acts::{assert_refused, hold_new_lease, stale_and_fresh, versions_of};
use super::facts::{OrderFacts, handler, moment, new_event_id, new_order};
use super::waiting::{all_at_once, answer_of, fair_chance, taking_turns};

/// The first delivery is the first, every other one is a duplicate.
pub async fn a_delivery_is_first_once(fixture: &impl StoreFixture) {
    let (store, event_id, handler) = (fixture.store().await, new_event_id(), handler("once"));
    assert_eq!(store.inbox_entry(event_id, &handler).await.expect("inbox_entry"), None);
    assert_eq!(mark(&*store, event_id, &handler).await.expect("mark"), InboxMark::First);
    let other = fixture.store().await;
    for _ in 0..2 {
        assert_eq!(mark(&*other, event_id, &handler).await.expect("mark"), InboxMark::Duplicate);
    }
    let entry = store.inbox_entry(event_id, &handler).await.expect("inbox_entry").expect("it is recorded");
    assert_eq!((entry.event_id, &entry.handler), (event_id, &handler));
    assert_eq!((entry.status, entry.retry_count), (InboxStatus::Handled, 0));

    let mut tx = store.begin().await.expect("begin");
    let event_id = new_event_id();
    assert_eq!(tx.mark(event_id, &handler, moment(1)).await.expect("mark"), InboxMark::First);
    let again = tx.mark(event_id, &handler, moment(1)).await.expect("mark again in the same transaction");
    assert_eq!(again, InboxMark::Duplicate);
    tx.commit().await.expect("commit");
}

/// A mark that was rolled back, with the handler's change, was never made.
pub async fn a_rolled_back_mark_leaves_the_delivery_first(fixture: &impl StoreFixture) {
    let (store, event_id, handler) = (fixture.store().await, new_event_id(), handler("rolled back"));
    let order = new_order();
    for _ in 0..2 {
        let mut tx = store.begin().await.expect("begin");
        assert_eq!(tx.mark(event_id, &handler, moment(1)).await.expect("mark"), InboxMark::First);
        tx.append(&OrderFacts::about(&order, 0).placed().append()).await.expect("the handler's change");
        tx.rollback().await.expect("roll back");
        assert_eq!(store.inbox_entry(event_id, &handler).await.expect("inbox_entry"), None);
    }
    assert!(versions_of(&*store, &order).await.is_empty(), "the handler's change was rolled back with it");
    assert_eq!(mark(&*store, event_id, &handler).await.expect("mark"), InboxMark::First);
}

/// Two transactions mark the same delivery: the second waits for the first, and its answer depends on how that ends.
pub async fn two_transactions_marking_one_delivery_take_turns(fixture: &impl StoreFixture) {
    // All are opened before the first transaction begins: where one writes at a time, starting is writing too.
    let (store, other, reader) = (fixture.store().await, fixture.store().await, fixture.store().await);
    for commits in [true, false] {
        let (event_id, handler) = (new_event_id(), handler("take turns"));
        let mut first = store.begin().await.expect("begin");
        assert_eq!(first.mark(event_id, &handler, moment(1)).await.expect("mark"), InboxMark::First);
        let second = {
            let (other, handler) = (Arc::clone(&other), handler.clone());
            tokio::spawn(
                async move { taking_turns(|| mark(&*other, event_id, &handler)).await.expect("mark") },
            )
        };
        // The first is still open, so whatever the second says now would be a guess.
        assert!(!fair_chance(&second).await, "the second answered before the first had ended");
        assert_eq!(reader.inbox_entry(event_id, &handler).await.expect("inbox_entry"), None);
        let expected = if commits {
            first.commit().await.expect("commit");
            InboxMark::Duplicate
        } else {
            first.rollback().await.expect("roll back");
            InboxMark::First
        };
        assert_eq!(answer_of(second).await, expected);
        assert_eq!(mark(&*store, event_id, &handler).await.expect("mark"), InboxMark::Duplicate);
    }
}

/// One event delivered eight times at the same moment, to a handler that writes: one change.
pub async fn eight_deliveries_at_once_have_one_effect(fixture: &impl StoreFixture) {
    let order = new_order();
    let (event_id, handler) = (new_event_id(), handler("one effect"));
    let mut deliveries = Vec::new();
    for _ in 0..8 {
        let (store, order, handler) = (fixture.store().await, order.clone(), handler.clone());
        deliveries.push(async move {
            taking_turns(|| handle(&*store, event_id, &handler, OrderFacts::whatever_version(&order))).await
        });
    }
    let marks: Vec<_> = all_at_once(deliveries).await.into_iter().map(|mark| mark.expect("handle")).collect();
    assert_eq!(marks.iter().filter(|mark| **mark == InboxMark::First).count(), 1, "{marks:?}");
    assert_eq!(versions_of(&*fixture.store().await, &order).await, [1]);
}

/// Several handlers of one event, and one handler of several events, never rob each other (H13).
pub async fn handlers_are_independent(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let events = [new_event_id(), new_event_id()];
    for event_id in events {
        for name in ["one", "two"] {
            assert_eq!(
                mark(&*store, event_id, &handler(name)).await.expect("mark"),
                InboxMark::First,
                "{name}"
            );
        }
    }
    let failures = fail(&*store, new_event_id(), &handler("one"), false).await;
    assert_eq!(failures, 1, "another event's failures are not counted");
}

/// Failures are counted, with why; a delivery that was given up says so.
pub async fn failed_deliveries_are_counted(fixture: &impl StoreFixture) {
    let (store, event_id, handler) = (fixture.store().await, new_event_id(), handler("counted"));
    for count in 1..=3 {
        assert_eq!(fail(&*store, event_id, &handler, false).await, count);
    }
    let entry = InboxEntry {
        event_id,
        handler: handler.clone(),
        status: InboxStatus::Retry,
        retry_count: 3,
        status_reason: Some("no-stock".to_owned()),
        status_message: Some("None left; \"try\" again. 🦆".to_owned()),
    };
    assert_eq!(store.inbox_entry(event_id, &handler).await.expect("inbox_entry"), Some(entry.clone()));
    assert_eq!(fail(&*store, event_id, &handler, true).await, 4);
    let dead = InboxEntry { status: InboxStatus::Dead, retry_count: 4, ..entry };
    assert_eq!(store.inbox_entry(event_id, &handler).await.expect("inbox_entry"), Some(dead));
}

/// A delivery that failed before can still be handled, once. A late failure does not undo that.
pub async fn a_delivery_in_retry_can_still_be_handled(fixture: &impl StoreFixture) {
    let (store, event_id, handler) = (fixture.store().await, new_event_id(), handler("second try"));
    fail(&*store, event_id, &handler, false).await;
    assert_eq!(mark(&*store, event_id, &handler).await.expect("mark"), InboxMark::First);
    assert_eq!(mark(&*store, event_id, &handler).await.expect("mark"), InboxMark::Duplicate);
    let entry = store.inbox_entry(event_id, &handler).await.expect("inbox_entry").expect("recorded");
    assert_eq!(entry.status, InboxStatus::Handled);

    fail(&*store, event_id, &handler, false).await;
    let entry = store.inbox_entry(event_id, &handler).await.expect("inbox_entry").expect("recorded");
    assert_eq!(entry.status, InboxStatus::Handled, "what is handled stays handled");
    assert_eq!(mark(&*store, event_id, &handler).await.expect("mark"), InboxMark::Duplicate);
}

async fn mark(
    store: &dyn InspectedStore,
    event_id: EventId,
    handler: &HandlerName,
) -> StoreResult<InboxMark> {
    let mut tx = store.begin().await?;
    let mark = tx.mark(event_id, handler, moment(1)).await?;
    tx.commit().await?;
    Ok(mark)
}

async fn handle(
    store: &dyn InspectedStore,
    event_id: EventId,
    handler: &HandlerName,
    facts: OrderFacts,
) -> StoreResult<InboxMark> {
    let mut tx = store.begin().await?;
    let mark = tx.mark(event_id, handler, moment(1)).await?;
    if mark == InboxMark::First {
        tx.append(&facts.noted("handled").append()).await?;
    }
    tx.commit().await?;
    Ok(mark)
}

async fn fail(store: &dyn InspectedStore, event_id: EventId, handler: &HandlerName, dead: bool) -> u32 {
    let failure = InboxFailure {
        event_id,
        handler,
        reason: "no-stock",
        message: "None left; \"try\" again. 🦆",
        failed_at: moment(1),
        dead,
    };
    store.count_failure(&failure).await.expect("record a failed delivery").retry_count
}

/// A delivery that was given up stays so until an operator decides: a redelivery has no effect and is no new failure.
pub async fn a_dead_delivery_stays_dead(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (event_id, handler) =
        (EventId(uuid::Uuid::now_v7()), HandlerName::new("ship").expect("a handler name"));
    let failure = |dead| InboxFailure {
        event_id,
        handler: &handler,
        reason: "poison",
        message: "it cannot be read",
        failed_at: moment(1),
        dead,
    };
    assert_eq!(store.count_failure(&failure(true)).await.expect("fail").retry_count, 1);
    let mut tx = store.begin().await.expect("begin");
    assert_eq!(tx.mark(event_id, &handler, moment(2)).await.expect("mark"), InboxMark::Dead);
    tx.rollback().await.expect("rollback");
    store.count_failure(&failure(false)).await.expect("fail again");
    let entry = store.inbox_entry(event_id, &handler).await.expect("read").expect("it is there");
    assert_eq!((entry.status, entry.retry_count), (InboxStatus::Dead, 1));
}

/// Clean-up deletes what was handled long enough ago and nothing else; not under a stale lease.
pub async fn deliveries_handled_long_ago_are_cleaned_up(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let (one, two) = (handler("one"), handler("two"));
    let events: Vec<EventId> = (0..8).map(|_| new_event_id()).collect();
    for (number, event_id) in (0..).zip(&events) {
        for handler in [&one, &two] {
            let mut tx = store.begin().await.expect("begin");
            tx.mark(*event_id, handler, moment(10 + number)).await.expect("mark");
            tx.commit().await.expect("commit");
        }
    }
    let failure = InboxFailure {
        event_id: new_event_id(),
        handler: &one,
        reason: "no",
        message: "no",
        failed_at: moment(1),
        dead: true,
    };
    store.count_failure(&failure).await.expect("fail");

    let (stale, _) = stale_and_fresh(&*store).await;
    let refused = store.clean_inbox(&stale, moment(15), 100).await;
    assert_refused!(refused, StoreError::Fenced { .. }, "cleaning under a stale lease");
    let mut deleted = 0;
    loop {
        let page = store.clean_inbox(&lease, moment(15), 4).await.expect("clean");
        if page == 0 {
            break;
        }
        deleted += page;
    }
    assert_eq!(deleted, 10, "five events, for two handlers each");
    for (number, event_id) in (0..).zip(&events) {
        let entry = store.inbox_entry(*event_id, &two).await.expect("inbox_entry");
        assert_eq!(entry.is_some(), 10 + number >= 15, "handled at {}", 10 + number);
    }
    let dead = store.inbox_entry(failure.event_id, &one).await.expect("inbox_entry");
    assert!(dead.is_some(), "what waits for an operator stays, however old");
}
