//! The log: its page size, what waits for a position, and how large what stands at one is.

use std::num::NonZeroU64;

use towpath_core::ports::store::StoreError;

use super::StoreFixture;
use super::acts::{append, assert_refused, hold_new_lease, sequence_all, whole_log};
use super::facts::OrderFacts;

/// The page size is fixed when the log is opened for the first time, and is for its life.
pub async fn the_page_size_is_for_the_life_of_the_log(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let seven = NonZeroU64::new(7);
    for configured in [seven, None, seven] {
        assert_eq!(store.open_log(configured).await.ok(), seven, "{configured:?}");
    }
    let other = store.open_log(NonZeroU64::new(8)).await;
    assert_refused!(other, StoreError::OtherPageSize { found: 7, configured: 8 }, "another size");
}

/// Whoever has marked what waits for a position learns when all of it has one, whatever comes later.
pub async fn what_waits_for_a_position_is_known_by_a_mark(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    assert_eq!(store.last_without_position().await.expect("mark"), None);
    for _ in 0..2 {
        append(&*store, &OrderFacts::of_new_order().placed().append()).await;
    }
    let mark = store.last_without_position().await.expect("mark").expect("two wait");
    append(&*store, &OrderFacts::of_new_order().placed().append()).await;
    for waits in [true, true, false] {
        assert_eq!(store.waits_for_position(mark).await.expect("look"), waits);
        store.sequence(&lease, 1).await.expect("sequence");
    }
    assert_eq!(store.last_without_position().await.expect("mark"), None, "all three have one");
}

/// Sizes are those of the payloads, in order, between two positions.
pub async fn sizes_are_those_of_the_payloads(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    for text in ["a", "duck 🦆", "", "four"] {
        append(&*store, &OrderFacts::of_new_order().noted(text).append()).await;
    }
    sequence_all(&*store, &lease).await;
    let log = whole_log(&*store).await;
    let sizes: Vec<_> = (1..)
        .zip(&log)
        .map(|(position, event)| (position, event.envelope.payload.as_text().len() as u64))
        .collect();
    assert_eq!(store.sizes_between(2, 3).await.expect("sizes"), sizes[1..3]);
    assert_eq!(store.sizes_between(1, 9).await.expect("sizes"), sizes);
}
