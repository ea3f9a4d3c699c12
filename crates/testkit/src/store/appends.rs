//! Everything of a change commits together, or nothing of it (P1); versions are unique and without gaps (G3).

use std::sync::Arc;

use towpath_core::ids::Version;
use towpath_core::lifecycle::{CommandStatus, OutboxStatus};
use towpath_core::ports::store::{
    AggregateRow, CommandRecord, CommandResult, Expected, Found, InboxMark, InspectedStore, StoreError,
};

use super::StoreFixture;
use super::acts::{append, assert_refused, hold_new_lease, sequence_all, try_append, versions_of, whole_log};
use super::audit::{Picture, Scope};
use super::facts::{
    OrderFacts, completed, envelopes, full_context, handler, moment, new_channel, new_event_id, new_order,
    place, timer,
};
use super::waiting::{all_at_once, taking_turns};

/// One call writes the aggregate, its events, history, outbox rows and the COMPLETED command, field by field as
/// given, and every other connection sees all of it.
pub async fn a_command_commits_everything_together(fixture: &impl StoreFixture) {
    let (ledger, mail) = (new_channel(), new_channel());
    let order = new_order();
    let mut command = place(&order);
    command.context = full_context(moment(5));
    let facts = OrderFacts::about(&order, 0)
        .placed()
        .routed(&[ledger.clone(), mail.clone()])
        .paid()
        .routed(std::slice::from_ref(&ledger))
        .caused_by(&command);
    let mut effect = facts.append();
    effect.events[1].schema_version = 7;
    let completed = completed(&command, Found::Nowhere, Some(effect.clone()));

    let result = fixture.store().await.complete_command(&completed).await.expect("complete");
    assert_eq!(result, CommandResult { aggregate_version: 2, event_count: 2 });

    let store = fixture.store().await;
    let loaded = store.load(&order, Some(&command.command_id)).await.expect("load");
    let at = moment(5);
    let row = AggregateRow {
        aggregate: order.clone(),
        version: 2,
        snapshot: effect.snapshot.clone(),
        state: Some("paid".to_owned()),
        state_changed_at: Some(at),
        state_reason: effect.state_changes[1].reason.clone(),
        state_message: effect.state_changes[1].message.clone(),
        status: None,
        tenant_id: command.context.tenant_id.clone(),
        created_at: at,
        updated_at: at,
    };
    assert_eq!(loaded.aggregate, Some(row));
    let record = CommandRecord {
        command: command.clone(),
        status: CommandStatus::Completed,
        status_changed_at: completed.finished_at,
        status_reason: None,
        status_message: None,
        retry_count: 0,
        next_retry_at: None,
        claim: None,
        started_at: Some(completed.started_at),
        finished_at: Some(completed.finished_at),
        result: Some(result),
    };
    assert_eq!(loaded.command.as_ref(), Some(&record));
    assert_eq!(store.command(&command.command_id).await.expect("command"), Some(record));

    let events = store.events_of(&order, 0, 10).await.expect("events_of");
    assert!(events.iter().all(|event| event.position.is_none()), "no position before the sequencer ran");
    assert_eq!(events.into_iter().map(|event| event.envelope).collect::<Vec<_>>(), envelopes(&effect, 1));

    let history = store.history_of(&order, 0, 10).await.expect("history_of");
    assert_eq!(history.len(), 2);
    for (step, change) in history.iter().zip(&effect.state_changes) {
        assert_eq!((&step.from_state, &step.to_state), (&change.from, &change.to));
    }

    let channels_of = |rows: &[towpath_core::ports::store::OutboxRow]| {
        assert!(
            rows.iter().all(|row| row.status == OutboxStatus::New && row.lane == order.lane()),
            "{rows:?}"
        );
        let mut channels: Vec<_> = rows.iter().map(|row| row.channel.clone()).collect();
        channels.sort();
        channels
    };
    let first = store.outbox_of(effect.events[0].event_id).await.expect("outbox_of");
    let second = store.outbox_of(effect.events[1].event_id).await.expect("outbox_of");
    assert_eq!(channels_of(&first), [ledger.clone(), mail]);
    assert_eq!(channels_of(&second), [ledger]);
}

/// A write that is based on a version that is gone changes nothing in any table.
pub async fn a_version_conflict_writes_nothing(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (order, channel) = (new_order(), new_channel());
    for version in 0..2 {
        append(&*store, &OrderFacts::about(&order, version).noted("before").append()).await;
    }
    for wrong in [1, 3] {
        let late =
            OrderFacts::about(&order, wrong).paid().paid().routed(std::slice::from_ref(&channel)).command();
        refuses_without_a_trace(&*store, &late, "a wrong version", |error| {
            matches!(error, StoreError::VersionConflict { aggregate, expected }
                if *aggregate == order && *expected == Expected::Exactly(wrong))
        })
        .await;
    }
}

/// What must not exist yet, exists.
pub async fn expecting_a_new_aggregate_conflicts_with_an_existing_one(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (order, channel) = (new_order(), new_channel());
    append(&*store, &OrderFacts::about(&order, 0).placed().append()).await;
    let late = OrderFacts::about(&order, 0).placed().routed(std::slice::from_ref(&channel)).command();
    refuses_without_a_trace(&*store, &late, "a second beginning", |error| {
        matches!(error, StoreError::VersionConflict { aggregate, expected: Expected::New } if *aggregate == order)
    })
    .await;
}

/// What must be at a version, does not exist.
pub async fn expecting_a_version_conflicts_with_a_missing_aggregate(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let channel = new_channel();
    let early = OrderFacts::about(&new_order(), 3).paid().routed(std::slice::from_ref(&channel)).command();
    refuses_without_a_trace(&*store, &early, "a version of nothing", |error| {
        matches!(error, StoreError::VersionConflict { expected: Expected::Exactly(3), .. })
    })
    .await;
}

/// Eight writers that do not care about the version get consecutive ones: each append's events stand together.
pub async fn expecting_any_version_gives_consecutive_ones_to_concurrent_writers(fixture: &impl StoreFixture) {
    let order = new_order();
    let mut writers = Vec::new();
    for writer in 0..8_usize {
        let (store, order) = (fixture.store().await, order.clone());
        writers.push(async move {
            let mut written: Vec<(Version, usize)> = Vec::new();
            for round in 0..10_usize {
                let count = (writer + round) % 3 + 1;
                let facts =
                    (0..count).fold(OrderFacts::whatever_version(&order), |facts, _| facts.noted("any"));
                let append = facts.append();
                let appended =
                    taking_turns(|| try_append(&*store, &append)).await.expect("append at any version");
                written.push((appended.version, count));
                let events = store.events_of(&order, appended.version - count as Version, count as u32).await;
                let ids: Vec<_> =
                    events.expect("events_of").iter().map(|event| event.envelope.event_id).collect();
                let given: Vec<_> = append.events.iter().map(|event| event.event_id).collect();
                assert_eq!(ids, given, "the events of one append stand together, in their order");
            }
            written
        });
    }
    let mut written = all_at_once(writers).await.concat();
    written.sort_unstable();
    let mut version = 0;
    for (last, count) in written {
        version += count as Version;
        assert_eq!(last, version, "versions without gaps");
    }
    let store = fixture.store().await;
    assert_eq!(versions_of(&*store, &order).await, (1..=version).collect::<Vec<_>>());
    assert_eq!(store.load(&order, None).await.expect("load").aggregate.map(|row| row.version), Some(version));
}

/// A rolled-back append leaves nothing, and its version and event ids are free again.
pub async fn a_rolled_back_append_never_happened(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let channel = new_channel();
    let facts = OrderFacts::of_new_order().placed().routed(std::slice::from_ref(&channel)).append();
    let scope = Scope::new().append(&facts);
    let before = Picture::read(&*store, &scope).await;

    let mut tx = store.begin().await.expect("begin");
    tx.append(&facts).await.expect("append");
    tx.rollback().await.expect("roll back");
    Picture::read(&*store, &scope).await.assert_unchanged_since(&before, "a rolled-back append");

    let mut tx = store.begin().await.expect("begin");
    tx.append(&facts).await.expect("append");
    drop(tx);
    assert_eq!(append(&*store, &facts).await, 1, "a dropped transaction gives everything back");
    let lease = hold_new_lease(&*store).await;
    assert_eq!(sequence_all(&*store, &lease).await, 1, "only what was committed gets a position");
}

/// An append that brings no folded state leaves none behind: what was folded before would be taken for the state now.
pub async fn a_folded_state_does_not_outlive_its_version(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    for expected in [Expected::Exactly(1), Expected::Any] {
        let order = new_order();
        let first = OrderFacts::about(&order, 0).placed().append();
        append(&*store, &first).await;
        let row = store.load(&order, None).await.expect("load").aggregate.expect("it is there");
        assert_eq!(row.snapshot, first.snapshot);
        let mut next = OrderFacts::about(&order, 1).noted("late").append();
        (next.expected, next.snapshot) = (expected, None);
        append(&*store, &next).await;
        let row = store.load(&order, None).await.expect("load").aggregate.expect("it is there");
        assert_eq!((row.version, row.snapshot), (2, None), "{expected:?}");
        assert_eq!(row.state.as_deref(), Some("placed"), "the state is as the last change has left it");
    }
}

/// Several aggregates, a delivery and a timer in one transaction are true together or not at all.
pub async fn one_transaction_carries_several_aggregates(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let channel = new_channel();
    let first = OrderFacts::of_new_order().placed().routed(std::slice::from_ref(&channel)).append();
    let again = OrderFacts::about(&first.aggregate, 1).paid().routed(std::slice::from_ref(&channel)).append();
    let second = OrderFacts::of_new_order().placed().routed(std::slice::from_ref(&channel)).append();
    let (event_id, handler) = (new_event_id(), handler("together"));
    let timer = timer(&first.aggregate, moment(60));
    let mut scope = Scope::new().append(&first).append(&again).append(&second);
    scope.timers.insert(timer.timer_id);
    scope.deliveries.insert((event_id, handler.clone()));
    let before = Picture::read(&*store, &scope).await;

    for commits in [false, true] {
        let mut tx = store.begin().await.expect("begin");
        assert_eq!(tx.mark(event_id, &handler, moment(1)).await.expect("mark"), InboxMark::First);
        assert_eq!(tx.append(&first).await.expect("append").version, 1);
        assert_eq!(tx.append(&second).await.expect("append").version, 1);
        assert_eq!(tx.append(&again).await.expect("the same aggregate again").version, 2);
        tx.schedule(&timer).await.expect("schedule");
        if commits {
            tx.commit().await.expect("commit");
        } else {
            tx.rollback().await.expect("roll back");
            Picture::read(&*store, &scope).await.assert_unchanged_since(&before, "a rolled-back transaction");
        }
    }
    let after = Picture::read(&*store, &scope).await;
    assert_eq!(after.flaws(), []);
    assert_eq!(after.aggregates[&first.aggregate].events.len(), 2);
    assert_eq!(after.aggregates[&second.aggregate].events.len(), 1);
    assert_eq!((after.timers.len(), after.deliveries.len()), (1, 1));
}

/// An event id that is recorded already is refused with its own error, whichever aggregate has it.
pub async fn a_duplicate_event_id_is_refused_and_writes_nothing(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let channel = new_channel();
    let first = OrderFacts::of_new_order().placed().append();
    let recorded = first.events[0].event_id;
    append(&*store, &first).await;

    let elsewhere = OrderFacts::of_new_order().placed().routed(std::slice::from_ref(&channel));
    let here = OrderFacts::about(&first.aggregate, 1).paid().routed(std::slice::from_ref(&channel));
    for facts in [elsewhere, here] {
        let second = facts.with_event_ids(|_| recorded).command();
        refuses_without_a_trace(&*store, &second, "a recorded event id", |error| {
            matches!(error, StoreError::DuplicateEvent(_))
        })
        .await;
    }

    let twice = new_event_id();
    let twins =
        OrderFacts::of_new_order().placed().paid().routed(&[channel]).with_event_ids(|_| twice).command();
    refuses_without_a_trace(&*store, &twins, "one id for two events", |error| {
        matches!(error, StoreError::DuplicateEvent(_))
    })
    .await;
}

/// A thousand events in one append: with a dozen columns each, close to what one statement may carry.
pub async fn a_long_append_keeps_its_order(fixture: &impl StoreFixture) {
    const COUNT: usize = 1_000;
    let store = fixture.store().await;
    let channel = new_channel();
    let facts = (0..COUNT).fold(OrderFacts::of_new_order(), |facts, number| facts.noted(&number.to_string()));
    let append = facts.routed(std::slice::from_ref(&channel)).append();
    let completed = completed(&place(&append.aggregate), Found::Nowhere, Some(append.clone()));
    let result = store.complete_command(&completed).await.expect("complete");
    assert_eq!(result, CommandResult { aggregate_version: COUNT as Version, event_count: COUNT as u32 });

    let given: Vec<_> = append.events.iter().map(|event| event.event_id).collect();
    let events = store.events_of(&append.aggregate, 0, 10_000).await.expect("events_of");
    assert_eq!(events.iter().map(|event| event.envelope.event_id).collect::<Vec<_>>(), given);
    let items = super::acts::claim(&*store, &channel, moment(9)).await;
    assert_eq!(items.iter().map(|item| item.event.event_id).collect::<Vec<_>>(), given);
    let lease = hold_new_lease(&*store).await;
    assert_eq!(sequence_all(&*store, &lease).await, COUNT as u64);
    let log = whole_log(&*store).await;
    assert_eq!(log.iter().map(|event| event.envelope.event_id).collect::<Vec<_>>(), given);
}

/// Tries a command in one call, and its append in a transaction: both must be refused in the expected way, and no
/// table may have changed. The sequencer finds nothing of it either.
async fn refuses_without_a_trace(
    store: &dyn InspectedStore,
    refused: &towpath_core::ports::store::CompletedCommand,
    what: &str,
    as_expected: impl Fn(&StoreError) -> bool,
) {
    let lease = hold_new_lease(store).await;
    sequence_all(store, &lease).await;
    let scope = Scope::new().command(refused);
    let before = Picture::read(store, &scope).await;

    match store.complete_command(refused).await {
        Err(error) if as_expected(&error) => {}
        other => panic!("{what}: {other:?}"),
    }
    Picture::read(store, &scope).await.assert_unchanged_since(&before, what);

    match try_append(store, refused.append.as_ref().expect("an append")).await {
        Err(error) if as_expected(&error) => {}
        other => panic!("{what}, in a transaction: {other:?}"),
    }
    assert_eq!(sequence_all(store, &lease).await, 0, "{what}: something is left for the sequencer");
    Picture::read(store, &scope).await.assert_unchanged_since(&before, what);
}

/// An append with a wrong version in a transaction whose other append was right: the caller rolls back, and nothing
/// of either is left.
pub async fn a_refused_append_takes_its_transaction_with_it(fixture: &impl StoreFixture) {
    let store: Arc<dyn InspectedStore> = fixture.store().await;
    let channel = new_channel();
    let right = OrderFacts::of_new_order().placed().routed(std::slice::from_ref(&channel)).append();
    let wrong = OrderFacts::about(&new_order(), 4).paid().routed(&[channel]).append();
    let scope = Scope::new().append(&right).append(&wrong);
    let before = Picture::read(&*store, &scope).await;
    let mut tx = store.begin().await.expect("begin");
    tx.append(&right).await.expect("append");
    assert_refused!(tx.append(&wrong).await, StoreError::VersionConflict { .. }, "a wrong version");
    tx.rollback().await.expect("roll back");
    Picture::read(&*store, &scope).await.assert_unchanged_since(&before, "a refused transaction");
}

/// A caller that takes a refusal for an answer and commits its own change leaves no version without its event.
pub async fn a_refused_append_leaves_no_version_behind(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let first = OrderFacts::of_new_order().placed().append();
    append(&*store, &first).await;
    let mut second = OrderFacts::about(&first.aggregate, 1).paid().append();
    second.events[0].event_id = first.events[0].event_id;
    let mut tx = store.begin().await.expect("begin");
    assert_refused!(tx.append(&second).await, StoreError::DuplicateEvent(_), "one id for two events");
    // Where the refusal has ended the transaction, the commit says so or undoes everything: both are fine.
    let _ = tx.commit().await;
    let row = store.load(&first.aggregate, None).await.expect("load").aggregate.expect("it exists");
    let events = store.events_of(&first.aggregate, 0, 10).await.expect("events_of");
    assert_eq!((row.version, events.len()), (1, 1), "the version is the number of events");
}
