//! How far the log of another was applied here.

use towpath_core::ports::store::{FollowedLog, Store};

use super::StoreFixture;
use super::facts::{handler, moment};

/// A follower's position moves with the transaction of what it applied, from where it was found, and no other's does.
pub async fn a_follower_moves_from_where_it_was_found(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (mirror, other) = (handler("mirror"), handler("other"));
    assert_eq!(store.followed_log(&mirror).await.expect("read"), None);
    let beginning = FollowedLog { position: 0, digest: String::new() };
    for follower in [&mirror, &other, &mirror] {
        let opened = store.open_followed_log(follower, "https://peer", moment(1)).await.expect("open");
        assert_eq!(opened, beginning);
    }
    let to = |position| FollowedLog { position, digest: format!("digest-{position}") };
    let move_on = async |from, to: &FollowedLog, commits| {
        let mut tx = store.begin().await.expect("begin");
        let moved = tx.advance_followed_log(&mirror, from, to, moment(2)).await.expect("advance");
        if commits { tx.commit().await } else { tx.rollback().await }.expect("end the transaction");
        moved
    };
    let found = async || at(&*store, &mirror).await;
    assert!(move_on(0, &to(7), false).await);
    assert_eq!(found().await, Some(beginning.clone()), "it was rolled back");
    assert!(move_on(0, &to(7), true).await);
    assert!(!move_on(0, &to(9), true).await, "another one was quicker");
    assert_eq!(found().await, Some(to(7)));
    assert_eq!(at(&*store, &other).await, Some(beginning), "the other stays where it is");
    let again = store.open_followed_log(&mirror, "https://peer", moment(3)).await.expect("open");
    assert_eq!(again, to(7), "it goes on where it was");
}

async fn at(store: &dyn Store, follower: &towpath_core::ids::HandlerName) -> Option<FollowedLog> {
    store.followed_log(follower).await.expect("read")
}
