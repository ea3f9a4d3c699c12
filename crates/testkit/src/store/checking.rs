//! Checks: going on with one, walking over what should not be, and putting it right.
//!
//! What no operation of the store can bring about is planted by SQL, in the tests of the library.

use chrono::{DateTime, Utc};
use towpath_core::ids::{CausationId, ChannelName, EventId, Lane};
use towpath_core::lifecycle::{CommandStatus, OutboxStatus};
use towpath_core::ports::store::{
    Append, ChannelStart, CheckRow, CheckStatus, CommandRecord, Found, PastConsumer, Repair, Repaired, Store,
    StoreError, SuspectPage, Suspicion,
};
use uuid::Uuid;

use super::StoreFixture;
use super::acts::{append, assert_refused, hold_new_lease, schedule, sequence_all, stale_and_fresh};
use super::facts::{
    COMMAND_TYPES, OrderFacts, completed, context, handler, moment, new_channel, new_event_id, new_order,
    place, timer,
};

fn check(seconds: u64) -> CheckRow {
    CheckRow {
        check_id: Uuid::now_v7(),
        status: CheckStatus::Pending,
        status_changed_at: moment(seconds),
        status_reason: None,
        status_message: None,
        window_micros: 86_400_000_000,
        since: moment(0),
        started_at: moment(seconds),
        finished_at: None,
        progress: r#"{"stage":""}"#.to_owned(),
        version_gap_count: None,
    }
}

fn ended(check: &CheckRow, status: CheckStatus, gaps: Option<u64>, at: u64) -> CheckRow {
    let finished_at = Some(moment(at));
    CheckRow { status, finished_at, status_changed_at: moment(at), version_gap_count: gaps, ..check.clone() }
}

/// A check is gone on with in the order in which they were asked for, under the newest lease only, and ends once.
pub async fn a_check_is_gone_on_with_and_ends_once(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    assert_eq!(store.next_check().await.expect("ask"), None);
    let (second, first) = (check(2), check(1));
    for check in [&second, &first] {
        store.begin_check(check).await.expect("begin");
    }
    assert_eq!(store.next_check().await.expect("ask"), Some(first.clone()));
    assert_eq!(store.last_check().await.expect("ask"), None, "none has ended");
    let (stale, fresh) = stale_and_fresh(&*store).await;
    let running = CheckRow {
        status: CheckStatus::Running,
        status_reason: Some("begun".to_owned()),
        status_message: Some("It has begun. 🦆".to_owned()),
        progress: r#"{"stage":"events","behind":["7"]}"#.to_owned(),
        ..first.clone()
    };
    assert_refused!(store.save_check(&stale, &running).await, StoreError::Fenced { .. }, "a stale lease");
    assert_eq!(store.find_check(first.check_id).await.expect("find"), Some(first.clone()));
    assert!(store.save_check(&fresh, &running).await.expect("save"));
    assert_eq!(store.next_check().await.expect("ask"), Some(running.clone()), "it is gone on with");
    let done = ended(&running, CheckStatus::Done, Some(3), 5);
    assert!(store.save_check(&fresh, &done).await.expect("save"));
    assert!(!store.save_check(&fresh, &running).await.expect("save"), "it has ended");
    assert_eq!(store.find_check(first.check_id).await.expect("find"), Some(done.clone()));
    assert_eq!(store.next_check().await.expect("ask"), Some(second.clone()));
    assert_eq!(store.find_check(Uuid::now_v7()).await.expect("find"), None);
    assert_eq!(store.last_check().await.expect("ask"), Some(done.clone()));
    assert_eq!(store.last_version_gaps().await.expect("ask"), Some(3));
    // One that was given up tells nothing, and one that did not look for gaps nothing about them.
    assert!(store.save_check(&fresh, &ended(&second, CheckStatus::Failed, Some(9), 6)).await.expect("save"));
    assert_eq!(store.last_check().await.expect("ask"), Some(done));
    let third = check(7);
    store.begin_check(&third).await.expect("begin");
    let without = ended(&third, CheckStatus::Done, None, 8);
    assert!(store.save_check(&fresh, &without).await.expect("save"));
    assert_eq!(store.last_check().await.expect("ask"), Some(without));
    assert_eq!(store.last_version_gaps().await.expect("ask"), Some(3));
}

/// Checks that ended long ago are deleted, and nothing else is.
pub async fn checks_that_ended_long_ago_are_cleaned_up(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let (old, young, open) = (check(1), check(2), check(0));
    for (check, at) in [(&old, Some(5)), (&young, Some(10)), (&open, None)] {
        store.begin_check(check).await.expect("begin");
        if let Some(at) = at {
            let done = ended(check, CheckStatus::Done, None, at);
            assert!(store.save_check(&lease, &done).await.expect("save"));
        }
    }
    assert_eq!(store.clean_checks(&lease, moment(10), 10).await.expect("clean"), 1);
    assert_eq!(store.clean_checks(&lease, moment(10), 10).await.expect("clean"), 0);
    assert_eq!(store.find_check(old.check_id).await.expect("find"), None);
    for kept in [&young, &open] {
        assert!(store.find_check(kept.check_id).await.expect("find").is_some());
    }
    let (stale, _) = stale_and_fresh(&*store).await;
    assert_refused!(
        store.clean_checks(&stale, moment(99), 1).await,
        StoreError::Fenced { .. },
        "a stale lease"
    );
}

/// A channel begins when it was first noted, and anew when it takes something else.
pub async fn a_channel_begins_when_it_takes_something_else(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (one, other) = (new_channel(), new_channel());
    let start = |channel: &ChannelName, patterns: &str, at: u64| ChannelStart {
        channel: channel.clone(),
        patterns: patterns.to_owned(),
        started_at: moment(at),
    };
    store.note_channel_starts(&[]).await.expect("note nothing");
    store.note_channel_starts(&[start(&one, "a", 1), start(&other, "b", 1)]).await.expect("note");
    store.note_channel_starts(&[start(&one, "a", 9), start(&other, "c", 9)]).await.expect("note");
    let known = store.channel_starts().await.expect("ask");
    assert_eq!(known.len(), 2);
    assert!(known.contains(&start(&one, "a", 1)), "it takes the same as before: {known:?}");
    assert!(known.contains(&start(&other, "c", 9)), "it takes something else: {known:?}");
}

fn targets(page: &SuspectPage) -> Vec<String> {
    page.suspects.iter().map(|suspect| suspect.target.clone()).collect()
}

async fn all_targets(store: &dyn Store, suspicion: &Suspicion<'_>) -> Vec<String> {
    let page = store.suspects(suspicion, None, 1_000).await.expect("look");
    assert_eq!(page.next, None);
    let keys: Vec<Vec<String>> = page.suspects.iter().map(|suspect| suspect.key.clone()).collect();
    let again = store.suspects_among(suspicion, &keys).await.expect("look again");
    assert_eq!(again.len(), page.suspects.len(), "nothing has changed: {suspicion:?}");
    targets(&page)
}

/// What is whole is suspicious in no way.
pub async fn what_is_whole_is_not_suspicious(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let channel = new_channel();
    for _ in 0..3 {
        let facts = OrderFacts::of_new_order().placed().paid().noted("fine");
        let done = facts.routed(std::slice::from_ref(&channel)).command();
        store.complete_command(&done).await.expect("complete");
    }
    let held = place(&new_order());
    store.accept_command(&held).await.expect("accept");
    store.claim_commands(&lease, COMMAND_TYPES, moment(1), 1).await.expect("claim");
    let waiting = timer(&new_order(), moment(1));
    schedule(&*store, std::slice::from_ref(&waiting)).await;
    store.claim_timers(&lease, &["order.cancel"], moment(2), 1).await.expect("claim");
    // One without a position waits for one.
    assert_eq!(sequence_all(&*store, &lease).await, 9);
    append(&*store, &OrderFacts::of_new_order().placed().append()).await;
    let (pairs, handlers, kinds) = (
        [("order.place".to_owned(), "order.placed".to_owned())],
        ["record".to_owned()],
        ["order".to_owned()],
    );
    let since = moment(0);
    for suspicion in [
        Suspicion::OrphanedCommands { since, pairs: &pairs },
        Suspicion::RowsAheadOfEvents,
        Suspicion::EventsOutOfLine,
        Suspicion::EventsWithoutPosition,
        Suspicion::PositionGaps,
        Suspicion::HeadWithoutPosition,
        Suspicion::OutboxWithoutEvent,
        Suspicion::InboxWithoutEvent { handlers: &handlers },
        Suspicion::InboxWithoutEvent { handlers: &[] },
        Suspicion::ParkedWithoutHead,
        Suspicion::TrackersAhead,
        Suspicion::ProjectionsAhead,
        Suspicion::AbandonedCommands,
        Suspicion::AbandonedTimers,
        Suspicion::AbandonedTasks,
        Suspicion::StatesWithoutHistory { since },
        Suspicion::BrokenHistories { since },
        Suspicion::ChangedSince { kinds: &[], since },
        Suspicion::ChangedSince { kinds: &kinds, since: moment(99) },
    ] {
        assert_eq!(all_targets(&*store, &suspicion).await, [""; 0], "{suspicion:?}");
    }
    let changed = Suspicion::ChangedSince { kinds: &kinds, since };
    assert_eq!(all_targets(&*store, &changed).await.len(), 4);
}

/// A completed command without its declared event is found, a page after the other and from the beginning of the window on.
pub async fn commands_without_their_event_are_found_in_pages(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let mut ids = Vec::new();
    for number in 0..5_u64 {
        let order = new_order();
        let mut command = place(&order);
        command.context = context(moment(number));
        let facts = OrderFacts::about(&order, 0);
        let facts = if number == 3 { facts.placed() } else { facts.noted("something else") };
        let done = completed(&command, Found::Nowhere, Some(facts.caused_by(&command).append()));
        store.complete_command(&done).await.expect("complete");
        ids.push(command.command_id.to_string());
    }
    // One that decided nothing has no event to miss.
    let nothing = completed(&place(&new_order()), Found::Nowhere, None);
    store.complete_command(&nothing).await.expect("complete");
    let pairs = [("order.place".to_owned(), "order.placed".to_owned())];
    let orphans = |since: u64| Suspicion::OrphanedCommands { since: moment(since), pairs: &pairs };
    let (mut found, mut counted, mut behind) = (Vec::new(), 0, None);
    for number in 0.. {
        assert!(number < 6, "it goes on behind the last page");
        let page = store.suspects(&orphans(0), behind.as_deref(), 2).await.expect("look");
        assert!(page.suspects.len() <= 2);
        found.extend(targets(&page));
        counted += page.counted;
        match page.next {
            Some(next) => behind = Some(next),
            None => break,
        }
    }
    assert_eq!(counted, 6);
    let expected: Vec<&String> = [0, 1, 2, 4].map(|at| &ids[at]).into();
    found.sort();
    let mut sorted = expected.clone();
    sorted.sort();
    assert_eq!(found.iter().collect::<Vec<_>>(), sorted);
    assert_eq!(all_targets(&*store, &orphans(2)).await.len(), 2, "the window begins later");
    let others = [("order.cancel".to_owned(), "order.placed".to_owned())];
    let of_others = Suspicion::OrphanedCommands { since: moment(0), pairs: &others };
    assert_eq!(all_targets(&*store, &of_others).await, [""; 0]);
    let without = Suspicion::OrphanedCommands { since: moment(0), pairs: &[] };
    assert_eq!(store.suspects(&without, None, 100).await.expect("look").counted, 6);
}

/// What the dead have in their hands is found, and what is ahead of the log.
pub async fn what_the_dead_hold_and_what_is_ahead_is_found(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let command = place(&new_order());
    store.accept_command(&command).await.expect("accept");
    store.claim_commands(&lease, COMMAND_TYPES, moment(1), 1).await.expect("claim");
    let due = timer(&new_order(), moment(1));
    schedule(&*store, std::slice::from_ref(&due)).await;
    store.claim_timers(&lease, &["order.cancel"], moment(2), 1).await.expect("claim");
    for suspicion in [Suspicion::AbandonedCommands, Suspicion::AbandonedTimers] {
        assert_eq!(all_targets(&*store, &suspicion).await, [""; 0], "its holder lives");
    }
    store.release_lease(&lease).await.expect("release");
    assert_eq!(all_targets(&*store, &Suspicion::AbandonedCommands).await, [command.command_id.to_string()]);
    assert_eq!(all_targets(&*store, &Suspicion::AbandonedTimers).await, [due.timer_id.to_string()]);

    let (here, ahead, gone) = (new_channel(), new_channel(), new_channel());
    for (channel, position) in [(&here, 0), (&ahead, 7), (&gone, 7)] {
        store.add_channel(Uuid::now_v7(), channel, position, moment(0)).await.expect("add");
    }
    store.remove_channel(&gone, None, "over", moment(1)).await.expect("remove");
    assert_eq!(all_targets(&*store, &Suspicion::TrackersAhead).await, [ahead.to_string()]);

    let order = new_order();
    append(&*store, &OrderFacts::about(&order, 0).placed().append()).await;
    let id = order.id.to_string();
    for (version, expected) in [(1, 0), (2, 1)] {
        let mut tx = store.begin().await.expect("begin");
        tx.note_projected("shelf", "order", 1, &[(id.clone(), version)]).await.expect("note");
        tx.commit().await.expect("commit");
        assert_eq!(all_targets(&*store, &Suspicion::ProjectionsAhead).await.len(), expected);
    }
    let mut tx = store.begin().await.expect("begin");
    tx.mark(new_event_id(), &handler("record"), moment(1)).await.expect("mark");
    tx.commit().await.expect("commit");
    for (name, expected) in [("record", 1), ("another", 0)] {
        let handlers = [name.to_owned()];
        let of_nothing = Suspicion::InboxWithoutEvent { handlers: &handlers };
        assert_eq!(all_targets(&*store, &of_nothing).await.len(), expected, "{name}");
    }
    // A change that begins elsewhere than the last one ended.
    let facts = OrderFacts::about(&order, 1).noted("moved").entering(Some("elsewhere"), "paid");
    append(&*store, &facts.append()).await;
    let broken = |since: DateTime<Utc>| Suspicion::BrokenHistories { since };
    assert_eq!(all_targets(&*store, &broken(moment(0))).await, [format!("order/{id}/2")]);
    assert_eq!(all_targets(&*store, &broken(moment(99))).await, [""; 0]);
}

/// An event is read with its channels and whether a command of its flow is its cause, and a cause with its flow.
pub async fn an_event_is_read_with_its_cause_and_its_ways(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let channels = [new_channel(), new_channel()];
    let done = OrderFacts::of_new_order().placed().routed(&channels).noted("alone").command();
    store.complete_command(&done).await.expect("complete");
    let cause = done.append.as_ref().expect("facts").events[0].event_id;
    let mut caused = context(moment(50));
    caused.causation_id = Some(CausationId::from(cause));
    append(&*store, &OrderFacts::of_new_order().placed().in_context(caused).append()).await;
    // It names a command of another flow.
    let mut elsewhere = context(moment(50));
    elsewhere.causation_id = Some(CausationId::from(&done.command.command_id));
    append(&*store, &OrderFacts::of_new_order().placed().in_context(elsewhere).append()).await;
    sequence_all(&*store, &lease).await;
    let events = store.checked_events(0, 4).await.expect("read");
    assert_eq!(events.iter().map(|event| event.position).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(!events[3].is_of_command);
    let mut ways = events[0].channels.clone();
    ways.sort();
    let mut expected = channels.map(|channel| channel.to_string());
    expected.sort();
    assert_eq!((ways.as_slice(), events[0].is_of_command), (expected.as_slice(), true));
    assert!(events[1].channels.is_empty() && events[1].is_of_command);
    assert_eq!((events[2].is_of_command, events[2].causation_id.clone()), (false, Some(cause.to_string())));
    assert_eq!(store.checked_events(1, 2).await.expect("read"), events[1..2]);
    assert_eq!(store.position_before(moment(50)).await.expect("ask"), 0, "it is looked at in long stretches");
    assert_eq!(store.position_before(moment(51)).await.expect("ask"), 4);

    let unknown = Uuid::now_v7();
    let mut tx = store.begin().await.expect("begin");
    tx.mark(EventId(unknown), &handler("record"), moment(1)).await.expect("mark");
    tx.mark(events[1].event_id, &handler("record"), moment(1)).await.expect("mark");
    tx.commit().await.expect("commit");
    let known = store.known_causes(&[cause.0, unknown, Uuid::now_v7()]).await.expect("ask");
    assert_eq!(known.len(), 2);
    let of = |id: Uuid| known.iter().find(|known| known.id == id).expect("it is known");
    let flow = done.command.context.correlation_id.to_string();
    assert_eq!((of(cause.0).event.clone(), of(cause.0).was_delivered), (Some((flow, Some(1))), false));
    assert_eq!((of(unknown).event.clone(), of(unknown).was_delivered), (None, true));

    let past = store.consumers_past(cause).await.expect("ask");
    assert_eq!(past, [PastConsumer { handler: "record".to_owned(), version: 2 }]);
    assert_eq!(store.consumers_past(events[2].event_id).await.expect("ask"), []);
}

fn fact() -> Append {
    OrderFacts::of_new_order().noted("repaired").append()
}

async fn is_there(store: &dyn Store, fact: &Append) -> bool {
    store.load(&fact.aggregate, None).await.expect("load").aggregate.is_some()
}

/// A repair is done once, with the fact about it, and writes nothing where nothing is to be done.
pub async fn a_repair_is_done_once_and_with_its_fact(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (lease, channel) = (hold_new_lease(&*store).await, new_channel());
    let done = OrderFacts::of_new_order().placed().command();
    store.complete_command(&done).await.expect("complete");
    sequence_all(&*store, &lease).await;
    let event_id = done.append.as_ref().expect("facts").events[0].event_id;
    let row = Repair::Outbox { event_id, channel: channel.clone() };
    for expected in [Repaired::Done, Repaired::NotNeeded] {
        let fact = fact();
        assert_eq!(store.repair(&row, &fact, moment(9)).await.expect("repair"), expected);
        assert_eq!(is_there(&*store, &fact).await, expected == Repaired::Done);
    }
    let rows = store.outbox_of(event_id).await.expect("ask");
    assert_eq!(
        (rows.len(), rows[0].status, rows[0].channel.clone()),
        (1, OutboxStatus::New, channel.clone())
    );
    let nothing = fact();
    let unknown = Repair::Outbox { event_id: new_event_id(), channel: channel.clone() };
    assert_eq!(store.repair(&unknown, &nothing, moment(9)).await.expect("repair"), Repaired::Gone);
    // Its position is given.
    let positioned = Repair::Pending { event_id };
    assert_eq!(store.repair(&positioned, &nothing, moment(9)).await.expect("repair"), Repaired::NotNeeded);
    let unknown = Repair::Pending { event_id: new_event_id() };
    assert_eq!(store.repair(&unknown, &nothing, moment(9)).await.expect("repair"), Repaired::Gone);
    let lane = Repair::Lane { channel, lane: Lane::from_stored(1) };
    assert_eq!(store.repair(&lane, &nothing, moment(9)).await.expect("repair"), Repaired::NotNeeded);
    assert!(!is_there(&*store, &nothing).await);
}

/// A command goes back only if its event is missing and its effect is not in the state, or if nobody has it.
pub async fn a_command_goes_back_unless_its_effect_is_there(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let found = Found::Nowhere;
    let orphan =
        |command_id: String| Repair::OrphanedCommand { command_id, event_type: "order.placed".to_owned() };
    let whole = OrderFacts::of_new_order().placed().command();
    let another = OrderFacts::of_new_order().noted("another").command();
    let nothing = completed(&place(&new_order()), found.clone(), None);
    // Its versions are there, but they are somebody else's.
    let order = new_order();
    let lost = completed(&place(&order), found, Some(OrderFacts::about(&order, 0).placed().append()));
    for done in [&whole, &another, &nothing, &lost] {
        store.complete_command(done).await.expect("complete");
    }
    for (done, expected) in [
        (&whole, Repaired::NotNeeded),
        (&nothing, Repaired::NotNeeded),
        (&another, Repaired::EffectIsThere),
        (&lost, Repaired::Done),
        (&lost, Repaired::NotNeeded),
    ] {
        let (id, fact) = (done.command.command_id.clone(), fact());
        assert_eq!(store.repair(&orphan(id.to_string()), &fact, moment(9)).await.expect("repair"), expected);
        assert_eq!(is_there(&*store, &fact).await, expected == Repaired::Done);
    }
    let gone = orphan("nobody".to_owned());
    assert_eq!(store.repair(&gone, &fact(), moment(9)).await.expect("repair"), Repaired::Gone);
    let status = |record: Option<CommandRecord>| record.map(|record| record.status);
    let back = store.command(&lost.command.command_id).await.expect("find");
    assert_eq!(status(back), Some(CommandStatus::Pending));
    let kept = store.command(&another.command.command_id).await.expect("find");
    assert_eq!(status(kept), Some(CommandStatus::Completed));

    let lease = hold_new_lease(&*store).await;
    let held = place(&new_order());
    store.accept_command(&held).await.expect("accept");
    while !store.claim_commands(&lease, COMMAND_TYPES, moment(99), 10).await.expect("claim").is_empty() {}
    let abandoned = Repair::AbandonedCommand { command_id: held.command_id.to_string() };
    assert_eq!(store.repair(&abandoned, &fact(), moment(9)).await.expect("repair"), Repaired::NotNeeded);
    store.release_lease(&lease).await.expect("release");
    assert_eq!(store.repair(&abandoned, &fact(), moment(9)).await.expect("repair"), Repaired::Done);
    assert_eq!(status(store.command(&held.command_id).await.expect("find")), Some(CommandStatus::Pending));
}
