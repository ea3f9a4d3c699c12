//! How far the rows of projections are: locked and noted with them, and walked by who makes them anew.

use std::sync::Arc;

use towpath_core::ports::store::{InspectedStore, Projected, Store, StoreResult, StoreTx};

use super::StoreFixture;
use super::acts::append;
use super::facts::{OrderFacts, order};
use super::waiting::{all_at_once, taking_turns};

const SHELF: &str = "shelf";
const KIND: &str = "order";

fn ids<const N: usize>(ids: [&str; N]) -> Vec<String> {
    ids.map(str::to_owned).into()
}

fn far(version: u64, by: u32) -> Projected {
    Projected { version, by }
}

/// How far these are, for who locks them and writes nothing.
async fn found(store: &dyn Store, projection: &str, kind: &str, of: &[String]) -> Vec<Projected> {
    let mut tx = store.begin().await.expect("begin");
    let locked = tx.lock_projected(projection, kind, of).await.expect("lock");
    tx.rollback().await.expect("roll back");
    of.iter().map(|id| locked[id]).collect()
}

async fn note(store: &dyn Store, by: u32, reached: &[(String, u64)]) {
    let mut tx = store.begin().await.expect("begin");
    tx.note_projected(SHELF, KIND, by, reached).await.expect("note");
    tx.commit().await.expect("commit");
}

async fn failing(store: &dyn Store, projection: &str, kind: &str) -> usize {
    store.projection_progress(projection, kind, 1).await.expect("ask").failures.len()
}

async fn fail(store: &dyn Store, id: &str, reason: (&str, &str)) {
    let mut tx = store.begin().await.expect("begin");
    tx.projection_failed(SHELF, KIND, id, reason).await.expect("note a failure");
    tx.commit().await.expect("commit");
}

/// What is noted in a transaction that is rolled back was never noted; others have their own.
pub async fn how_far_an_aggregate_is_lives_and_dies_with_its_transaction(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let both = ids(["a", "b"]);
    let mut undone = store.begin().await.expect("begin");
    let unknown = undone.lock_projected(SHELF, KIND, &both).await.expect("lock");
    assert_eq!(unknown.into_values().collect::<Vec<_>>(), [far(0, 0); 2]);
    undone.note_projected(SHELF, KIND, 1, &[("a".to_owned(), 3)]).await.expect("note");
    undone.rollback().await.expect("roll back");
    assert_eq!(found(&*store, SHELF, KIND, &both).await, [far(0, 0); 2]);
    note(&*store, 2, &[("a".to_owned(), 3), ("b".to_owned(), 5)]).await;
    assert_eq!(found(&*store, SHELF, KIND, &both).await, [far(3, 2), far(5, 2)]);
    assert_eq!(found(&*store, "other", KIND, &both).await, [far(0, 0); 2]);
    assert_eq!(found(&*store, SHELF, "other", &both).await, [far(0, 0); 2]);
    let mut tx = store.begin().await.expect("begin");
    tx.forget_projected(SHELF, KIND, "a").await.expect("forget");
    tx.commit().await.expect("commit");
    assert_eq!(found(&*store, SHELF, KIND, &both).await, [far(0, 0), far(5, 2)]);
}

/// Who locks an aggregate second sees what the first has noted, also where nobody knew of it.
pub async fn eight_that_make_one_aggregate_take_turns(fixture: &impl StoreFixture) {
    async fn one_more(store: Arc<dyn InspectedStore>) -> StoreResult<()> {
        let of = ids(["a"]);
        let mut tx: Box<dyn StoreTx> = store.begin().await?;
        let known = tx.lock_projected(SHELF, KIND, &of).await?["a"];
        tx.note_projected(SHELF, KIND, 1, &[("a".to_owned(), known.version + 1)]).await?;
        tx.commit().await
    }
    let mut makers = Vec::new();
    for _ in 0..8 {
        let store = fixture.store().await;
        makers.push(async move { taking_turns(|| one_more(Arc::clone(&store))).await.expect("make it") });
    }
    all_at_once(makers).await;
    assert_eq!(found(&*fixture.store().await, SHELF, KIND, &ids(["a"])).await, [far(8, 1)]);
}

/// A failure is told until its aggregate goes on, and changes nothing of how far it is.
pub async fn what_does_not_go_on_is_told_until_it_does(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    note(&*store, 1, &[("a".to_owned(), 3)]).await;
    assert_eq!(failing(&*store, SHELF, KIND).await, 0);
    fail(&*store, "a", ("first", "it could not bear that")).await;
    fail(&*store, "a", (&"poison".repeat(50), "it cannot bear\0 that")).await;
    for (projection, kind, count) in [(SHELF, KIND, 1), (SHELF, "other", 0), ("other", KIND, 0)] {
        assert_eq!(failing(&*store, projection, kind).await, count, "{projection} {kind}");
    }
    let progress = store.projection_progress(SHELF, KIND, 1).await.expect("ask");
    let [failure] = progress.failures.as_slice() else { panic!("one fails: {progress:?}") };
    assert_eq!((failure.aggregate_id.as_str(), failure.version, failure.reason.len()), ("a", 3, 128));
    assert!(failure.message.starts_with("it cannot bear") && !failure.message.contains('\0'), "{failure:?}");
    assert_eq!(found(&*store, SHELF, KIND, &ids(["a"])).await, [far(3, 1)]);
    note(&*store, 1, &[("a".to_owned(), 4)]).await;
    assert_eq!(failing(&*store, SHELF, KIND).await, 0);
}

/// All aggregates of a kind are met once and by id, also those that nobody has made yet.
pub async fn aggregates_are_walked_with_how_far_they_are(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    for id in ["a", "b", "c"] {
        append(&*store, &OrderFacts::about(&order(id), 0).noted("x").noted("y").append()).await;
    }
    note(&*store, 2, &[("a".to_owned(), 1)]).await;
    fail(&*store, "b", ("poison", "no")).await;
    let first = store.projected_behind(SHELF, KIND, "", 2).await.expect("a page");
    let shown: Vec<_> = first.iter().map(|it| (it.id.as_str(), it.projected, it.is_failing)).collect();
    assert_eq!(shown, [("a", far(1, 2), false), ("b", far(0, 0), true)]);
    assert!(first.iter().all(|it| it.version == 2), "{first:?}");
    let second = store.projected_behind(SHELF, KIND, "b", 2).await.expect("a page");
    assert_eq!(second.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(), ["c"]);
    assert_eq!(store.projected_behind(SHELF, "other", "", 2).await.expect("a page"), []);
    let other = store.projected_behind("other", KIND, "", 9).await.expect("a page");
    assert!(other.len() == 3 && other.iter().all(|it| it.projected == far(0, 0)), "{other:?}");
    for (by, current) in [(1, 1), (2, 1), (3, 0)] {
        let progress = store.projection_progress(SHELF, KIND, by).await.expect("ask");
        assert_eq!((progress.aggregates, progress.current, progress.made_by), (3, current, 0));
    }
}

/// That all were made is noted for good: an older version that ends later does not undo it.
pub async fn a_newer_version_has_made_all(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    assert_eq!(store.projection_made_by(SHELF, KIND).await.expect("ask"), 0);
    for by in [1, 3, 2] {
        store.projection_is_made(SHELF, KIND, by).await.expect("note");
    }
    assert_eq!(store.projection_made_by(SHELF, KIND).await.expect("ask"), 3);
    let mut tx = store.begin().await.expect("begin");
    assert_eq!(tx.projection_made_by(SHELF, KIND).await.expect("ask"), 3);
    tx.rollback().await.expect("roll back");
    assert_eq!(store.projection_made_by("other", KIND).await.expect("ask"), 0);
    assert_eq!(store.projection_made_by(SHELF, "other").await.expect("ask"), 0);
    assert_eq!(store.projection_progress(SHELF, KIND, 3).await.expect("ask").current, 0);
}
