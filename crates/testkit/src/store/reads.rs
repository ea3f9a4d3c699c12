//! Reading: histories, flows and the log, in order and complete (S4, G5, N1).

use std::time::Duration;

use towpath_core::envelope::ChangeContext;
use towpath_core::ids::{CausationId, CorrelationId};
use towpath_core::ports::store::{CompletedCommand, Found, Loaded, NewCommand, StateEvent};
use uuid::Uuid;

use super::StoreFixture;
use super::acts::{append, hold_new_lease, sequence_all};
use super::facts::{OrderFacts, completed, full_context, moment, new_command_id, new_order, place};

/// Every state change is one row of the history, in order, with its actor, request and trace; events that change no
/// state have none.
pub async fn history_has_one_row_per_state_change(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let order = new_order();
    let first =
        OrderFacts::about(&order, 0).placed().noted("no change").paid().in_context(full_context(moment(1)));
    let second = OrderFacts::about(&order, 3).fact("order.shipped", "{}").entering(Some("paid"), "shipped");
    let (first, mut second) = (first.append(), second.append());
    (second.state_changes[0].reason, second.state_changes[0].message) = (None, None);
    append(&*store, &first).await;
    append(&*store, &second).await;

    let mut expected = Vec::new();
    for (append, base) in [(&first, 1), (&second, 4)] {
        for change in &append.state_changes {
            expected.push(StateEvent {
                aggregate: order.clone(),
                aggregate_version: base + change.event_index as u64,
                event_id: append.events[change.event_index].event_id,
                from_state: change.from.clone(),
                to_state: change.to.clone(),
                reason: change.reason.clone(),
                message: change.message.clone(),
                actor_id: append.context.actor_id.clone(),
                request_id: append.context.request_id.clone(),
                trace_id: append.context.trace_id.clone(),
                created_at: append.context.occurred_at,
            });
        }
    }
    assert_eq!(expected.len(), 3);
    assert_eq!(store.history_of(&order, 0, 10).await.expect("history_of"), expected);
    assert_eq!(store.history_of(&order, 1, 10).await.expect("history_of"), expected[1..], "behind a version");
    assert_eq!(store.history_of(&order, 0, 2).await.expect("history_of"), expected[..2], "at most so many");
    let row = store.load(&order, None).await.expect("load").aggregate.expect("it exists");
    assert_eq!((row.state.as_deref(), row.state_reason, row.state_message), (Some("shipped"), None, None));
    assert_eq!(row.state_changed_at, Some(second.context.occurred_at));
}

/// Events of an aggregate behind a version, at most so many; and of nothing there are none.
pub async fn events_of_an_aggregate_are_read_in_pages(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let order = new_order();
    let facts = (0..7).fold(OrderFacts::about(&order, 0), |facts, _| facts.noted("page"));
    append(&*store, &facts.append()).await;
    append(&*store, &OrderFacts::of_new_order().noted("other").append()).await;
    for (after, limit, expected) in
        [(0, 3, 1..=3), (3, 3, 4..=6), (6, 3, 7..=7), (0, 100, 1..=7), (0, 7, 1..=7)]
    {
        let events = store.events_of(&order, after, limit).await.expect("events_of");
        let versions: Vec<_> = events.iter().map(|event| event.envelope.aggregate_version).collect();
        assert_eq!(versions, expected.collect::<Vec<u64>>(), "behind {after}, at most {limit}");
    }
    assert_eq!(store.events_of(&order, 7, 3).await.expect("events_of"), []);
    assert_eq!(store.events_of(&new_order(), 0, 3).await.expect("events_of"), []);
    assert_eq!(store.load(&new_order(), Some(&new_command_id())).await.expect("load"), Loaded::default());
}

/// A page by size has as many of the first events as fit, and one if there is any.
pub async fn a_page_has_so_many_bytes_and_at_least_one_event(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (order, lease, long) = (new_order(), hold_new_lease(&*store).await, "long".repeat(100));
    let facts = OrderFacts::about(&order, 0).noted(&long).noted("b").noted("c").noted(&long);
    append(&*store, &facts.append()).await;
    sequence_all(&*store, &lease).await;
    let events = store.events_of(&order, 0, 10).await.expect("events");
    let both = events[1..3].iter().map(|event| event.envelope.payload.as_text().len() as u64).sum();
    for (after, limit, bytes, expected) in [
        (0, 10, 1, 0..1),
        (1, 10, both, 1..3),
        (1, 10, both - 1, 1..2),
        (1, 1, both, 1..2),
        (4, 10, both, 4..4),
    ] {
        let page = store.events_of_within(&order, after, limit, bytes).await.expect("events");
        assert_eq!(page, events[expected], "{bytes} bytes behind version {after}");
    }
    for (low, high, bytes, expected) in
        [(1, 4, 1, 0..1), (2, 4, both, 1..3), (2, 2, both, 1..2), (5, 9, both, 4..4)]
    {
        let page = store.events_within(low, high, bytes).await.expect("events");
        assert_eq!(page, events[expected], "{bytes} bytes from position {low}");
    }
}

/// A flow is every command and event of its correlation id, in order of time, and nothing of another.
pub async fn a_flow_is_read_in_order(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let correlation = CorrelationId::of_new_flow(Uuid::now_v7());
    let mut commands = Vec::new();
    let mut events = Vec::new();
    let mut cause = None;
    for step in 0..4_u64 {
        let context = ChangeContext {
            correlation_id: correlation.clone(),
            causation_id: cause.take(),
            ..full_context(moment(step))
        };
        let command = NewCommand { context, ..place(&new_order()) };
        let facts = OrderFacts::about(&command.aggregate, 0).placed().paid().caused_by(&command).append();
        cause = facts.events.last().map(|event| CausationId::from(event.event_id));
        events.extend(facts.events.iter().map(|event| event.event_id));
        let effect: CompletedCommand = completed(&command, Found::Nowhere, Some(facts));
        store.complete_command(&effect).await.expect("complete");
        commands.push(command);
    }
    store.complete_command(&OrderFacts::of_new_order().placed().command()).await.expect("another flow");

    let flow = store.flow(&correlation, 100).await.expect("flow");
    assert_eq!(flow.commands.iter().map(|record| record.command.clone()).collect::<Vec<_>>(), commands);
    assert_eq!(flow.events.iter().map(|event| event.envelope.event_id).collect::<Vec<_>>(), events);
    let start = store.flow(&correlation, 3).await.expect("flow");
    assert_eq!((start.commands.len(), start.events.len()), (3, 3), "at most so many of each");
    assert_eq!(start.commands, flow.commands[..3]);
    assert_eq!(start.events, flow.events[..3]);
    let nothing = store.flow(&CorrelationId::of_new_flow(Uuid::now_v7()), 100).await.expect("flow");
    assert_eq!((nothing.commands.len(), nothing.events.len()), (0, 0));
}

/// The log between two positions, in order; beyond the head there is nothing; the head counts.
pub async fn the_log_is_read_between_positions(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    assert_eq!(store.head().await.expect("head"), 0);
    assert_eq!(store.events_between(1, 100).await.expect("events_between"), []);
    let mut appended = Vec::new();
    for number in 0..30 {
        let facts = OrderFacts::of_new_order().noted("log");
        let mut facts = facts.append();
        // Times that run backwards: positions are the order of commits, whatever the clocks said.
        facts.context.occurred_at = moment(100) - Duration::from_secs(number);
        append(&*store, &facts).await;
        sequence_all(&*store, &lease).await;
        appended.push(facts.events[0].event_id);
    }
    append(&*store, &OrderFacts::of_new_order().noted("no position yet").append()).await;
    assert_eq!(store.head().await.expect("head"), 30);
    for (low, high) in [(1, 30), (1, 20), (21, 40), (30, 30), (31, 60), (20, 10), (0, 5)] {
        let events = store.events_between(low, high).await.expect("events_between");
        let expected: Vec<_> = (low.max(1)..=high.min(30)).collect();
        assert_eq!(
            events.iter().filter_map(|event| event.position).collect::<Vec<_>>(),
            expected,
            "{low}..={high}"
        );
        for event in events {
            let position = event.position.expect("a position") as usize;
            assert_eq!(event.envelope.event_id, appended[position - 1], "position {position}");
        }
    }
}
