//! Command sessions: one connection for a command's load and write, with the meaning of the store's own two calls.

use std::sync::Arc;

use towpath_core::ports::store::{CommandResult, InspectedStore, StoreError};

use super::StoreFixture;
use super::acts::{append, assert_refused, versions_of};
use super::audit::{Picture, Scope};
use super::facts::{OrderFacts, new_channel, new_order};
use super::waiting::{all_at_once, in_time, taking_turns};
use crate::probe::CountingProbe;

/// A session reads and writes what the store itself would, also after its connection was given back.
pub async fn a_session_loads_and_completes_as_the_store_does(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    for releases in [false, true] {
        let written = OrderFacts::of_new_order().placed().paid().routed(&[new_channel()]).command();
        let (order, command_id) = (&written.command.aggregate, &written.command.command_id);
        let mut session = store.command_session().await.expect("a session");
        let loaded = session.load(order, command_id).await.expect("load");
        assert_eq!((loaded.aggregate, loaded.command), (None, None));
        if releases {
            session.release();
            session.release();
        }
        let result = session.complete(&written).await.expect("complete");
        assert_eq!(result, CommandResult { aggregate_version: 2, event_count: 2 });

        let loaded = session.load(order, command_id).await.expect("load again");
        drop(session);
        assert_eq!(loaded, store.load(order, Some(command_id)).await.expect("load"));
        assert_eq!(loaded.command.and_then(|record| record.result), Some(result));
        let picture = Picture::read(&*store, &Scope::new().command(&written)).await;
        assert_eq!(picture.flaws(), []);
        assert_eq!(picture.aggregates[order].events.len(), 2);
    }
}

/// Between a session's load and its write others may write, and the session is told of the conflict: it holds a
/// connection, not the aggregate.
pub async fn a_session_holds_nothing_between_its_calls(fixture: &impl StoreFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let order = new_order();
    let late = OrderFacts::about(&order, 0).placed().routed(&[new_channel()]).command();
    let mut session = store.command_session().await.expect("a session");
    session.load(&order, &late.command.command_id).await.expect("load");

    let overtaking = OrderFacts::about(&order, 0).placed().append();
    in_time("a write beside a session", append(&*other, &overtaking)).await;
    let scope = Scope::new().command(&late);
    let before = Picture::read(&*other, &scope).await;
    assert_refused!(
        session.complete(&late).await,
        StoreError::VersionConflict { .. },
        "a session that comes late"
    );
    Picture::read(&*other, &scope).await.assert_unchanged_since(&before, "a session that comes late");

    // The refused write has left the connection fit for the next one.
    let next = OrderFacts::about(&order, 1).paid().command();
    let result = session.complete(&next).await.expect("complete after a refusal");
    assert_eq!(result.aggregate_version, 2);
}

/// More sessions at once than any pool has connections: each gets its turn, and none is kept when it is dropped.
pub async fn many_sessions_at_once_all_get_their_turn(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let order = new_order();
    let sessions = (0..40).map(|_| {
        let (store, order): (Arc<dyn InspectedStore>, _) = (Arc::clone(&store), order.clone());
        async move {
            let written = OrderFacts::whatever_version(&order).noted("crowd").command();
            taking_turns(|| async {
                let mut session = store.command_session().await?;
                session.load(&order, &written.command.command_id).await?;
                session.complete(&written).await
            })
            .await
            .expect("complete");
        }
    });
    in_time("forty sessions", all_at_once(sessions)).await;
    assert_eq!(versions_of(&*store, &order).await, (1..=40).collect::<Vec<_>>());
}

/// A session costs what the store's calls cost: one round trip to load, and no more than theirs to write.
pub async fn a_session_costs_no_extra_round_trips(fixture: &impl StoreFixture) {
    let probe = Arc::new(CountingProbe::new());
    let store = fixture.store_with_probe(Arc::clone(&probe) as _).await;
    let (first, second) = (OrderFacts::of_new_order().placed(), OrderFacts::of_new_order().placed());
    let (first, second) = (first.command(), second.command());
    probe.take();
    store.complete_command(&first).await.expect("complete");
    let by_the_store = probe.take();

    let mut session = store.command_session().await.expect("a session");
    session.load(&second.command.aggregate, &second.command.command_id).await.expect("load");
    let loading = probe.take();
    assert_eq!(loading.len(), 1, "{loading:?}");
    session.complete(&second).await.expect("complete");
    assert_eq!(probe.take(), by_the_store);
}
