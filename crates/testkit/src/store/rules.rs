//! Transactions under a lease, and appends as the rules of an application have them.

use towpath_core::ids::{AggregateKind, EventId};
use towpath_core::ports::store::{
    AggregateRow, Append, AppendRules, AppendedTogether, Expected, Snapshot, StoreError, StoreResult,
};

use super::StoreFixture;
use super::acts::{append, assert_refused, stale_and_fresh, versions_of};
use super::facts::{OrderFacts, new_event_id, new_order, payload};

/// A transaction under a lease that was lost is not even begun; under the newest one it comes true.
pub async fn a_transaction_is_begun_under_the_newest_lease(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (stale, fresh) = stale_and_fresh(&*store).await;
    let refused = store.begin_under(&stale).await;
    assert_refused!(refused, StoreError::Fenced { .. }, "beginning under a stale lease");
    let facts = OrderFacts::of_new_order().placed().append();
    let mut tx = store.begin_under(&fresh).await.expect("begin");
    tx.append(&facts).await.expect("append");
    tx.commit().await.expect("commit");
    assert_eq!(versions_of(&*store, &facts.aggregate).await, [1]);
}

/// An append by rules is written as they complete it on what is there; what they refuse is not written.
pub async fn an_append_is_written_as_the_rules_have_it(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let order = new_order();
    append(&*store, &OrderFacts::about(&order, 0).placed().append()).await;
    let mut facts = OrderFacts::about(&order, 1).noted("more").append();
    (facts.expected, facts.snapshot) = (Expected::Any, None);
    let mut tx = store.begin().await.expect("begin");
    let (appended, written) = tx.append_by(&Folding, &facts).await.expect("append");
    assert_eq!((appended.version, written.expected), (2, Expected::Exactly(1)));
    tx.commit().await.expect("commit");
    let row = store.load(&order, None).await.expect("load").aggregate.expect("it is there");
    assert_eq!((row.version, row.snapshot), (2, written.snapshot));

    let unknown = OrderFacts::of_new_order().noted("too early").append();
    let mut tx = store.begin().await.expect("begin");
    let refused = tx.append_by(&Folding, &unknown).await;
    assert_refused!(refused, StoreError::ForbiddenEvent { .. }, "what the rules refuse");
    tx.rollback().await.expect("rollback");
    assert_eq!(versions_of(&*store, &unknown.aggregate).await, [0_u64; 0]);
}

/// Facts of one append are found by any of them, with nothing of the appends before and behind; in a transaction, too, as
/// many as fit.
pub async fn the_facts_of_one_append_are_found_together(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let order = new_order();
    append(&*store, &OrderFacts::about(&order, 0).placed().append()).await;
    let ids: Vec<EventId> = EventId::of_one_append().take(3).collect();
    let noted = OrderFacts::about(&order, 1).noted("a").noted("b").noted("c");
    append(&*store, &noted.with_event_ids(|number| ids[number]).append()).await;
    append(&*store, &OrderFacts::about(&order, 4).paid().append()).await;
    let together = AppendedTogether { aggregate: order.clone(), first: 2, last: 4, last_event: ids[2] };
    for id in &ids {
        assert_eq!(store.appended_with(*id).await.expect("ask"), Some(together.clone()));
    }
    assert_eq!(store.appended_with(new_event_id()).await.expect("ask"), None);

    let mut tx = store.begin().await.expect("begin");
    assert_eq!(tx.facts_of_append(ids[1]).await.expect("ask"), Some(together.clone()));
    let facts = tx.facts_within(&together, u64::MAX).await.expect("read");
    assert_eq!(facts.iter().map(|fact| fact.envelope.event_id).collect::<Vec<_>>(), ids);
    assert_eq!(tx.facts_within(&together, 1).await.expect("read").len(), 1, "at least one");
    tx.rollback().await.expect("rollback");
}

/// Folds orders that are there, and refuses facts about others.
struct Folding;

impl AppendRules for Folding {
    fn concern(&self, kind: &AggregateKind) -> bool {
        kind.as_str() == "order"
    }

    fn complete(&self, append: &Append, current: Option<&AggregateRow>) -> StoreResult<Append> {
        let Some(current) = current else {
            return Err(StoreError::ForbiddenEvent {
                aggregate: append.aggregate.clone(),
                event: append.events[0].event_type.to_string(),
                code: "event-forbidden",
                source: "there is no such order".into(),
            });
        };
        let data = payload(format!(r#"{{"facts":{}}}"#, current.version + 1));
        Ok(Append {
            expected: Expected::Exactly(current.version),
            snapshot: Some(Snapshot { data, version: 1 }),
            ..append.clone()
        })
    }
}
