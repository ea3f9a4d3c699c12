//! Letters: a delivery that was set aside waits for its time, is with one holder at a time, keeps its place in its lane, and
//! is the operator's once it is dead.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use towpath_core::ids::{ActorId, EventId, HandlerName, Lane};
use towpath_core::letters::{AsideOutcome, Letter, LetterFilter, NewLetter, SetAside};
use towpath_core::lifecycle::{InboxStatus, LetterStatus};
use towpath_core::ports::broker::{DeliveryTag, Destination, Received};
use towpath_core::ports::store::{InboxFailure, Store, StoreError};

use super::StoreFixture;
use super::acts::{assert_refused, hold_new_lease, stale_and_fresh};
use super::facts::{handler, moment, new_event_id};

/// Nobody gets a letter before it is due. Who takes it has it until a moment, and from then on another one has: the first can
/// neither let go of it nor count a failure.
pub async fn a_due_letter_is_with_one_holder_at_a_time(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let ship = handler("ship");
    let message = letter(&ship, 1);
    set_aside(&*store, &message, Some(moment(10))).await;
    assert_eq!(store.next_letter_due(&ship).await.expect("next due"), Some(moment(10)));
    assert_eq!(store.next_letter_due(&handler("bill")).await.expect("next due"), None);
    assert_eq!(take(&*store, &ship, &[], 9).await, None, "it is not due");
    assert_eq!(take(&*store, &handler("bill"), &[], 10).await, None, "it is another's");
    let first = take(&*store, &ship, &[], 10).await.expect("it is due");
    assert_eq!((first.letter.clone(), first.due_at), (message, Some(moment(70))));
    assert_eq!(take(&*store, &ship, &[], 10).await, None, "somebody has it");
    assert_eq!(take(&*store, &ship, &[first.letter_id], 70).await, None, "it is known who has it");
    let second = take(&*store, &ship, &[], 70).await.expect("whoever had it is taken for gone");
    assert_eq!(second.due_at, Some(moment(130)));

    let failure = failure_of(&first);
    let counted = store.count_failure_of(&first, &failure).await.expect("count");
    assert_eq!(counted, None, "another one has it");
    assert!(!store.release_letter(&first, moment(75)).await.expect("release"), "another one has it");
    let counted = store.count_failure_of(&second, &failure).await.expect("count").expect("it is held");
    assert_eq!((counted.status, counted.retry_count), (InboxStatus::Retry, 1));
    assert!(store.release_letter(&second, moment(80)).await.expect("release"));
    assert_eq!(store.next_letter_due(&ship).await.expect("next due"), Some(moment(80)));
}

/// A letter ends with the handler's transaction, and the next one of its lane goes on; those of other lanes do not care.
pub async fn a_handled_letter_lets_the_next_of_its_lane_go_on(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let ship = handler("ship");
    let (first, second) = (letter(&ship, 2), letter(&ship, 2));
    set_aside(&*store, &letter(&ship, 1), Some(moment(500))).await;
    set_aside(&*store, &first, Some(moment(10))).await;
    let mut tx = store.begin().await.expect("begin");
    let waiting = tx.waiting_lanes(&ship, &[Lane(1), Lane(2), Lane(3)]).await.expect("waiting lanes");
    assert_eq!(waiting, [Lane(1), Lane(2)]);
    assert_eq!(tx.waiting_lanes(&ship, &[Lane(3)]).await.expect("waiting lanes"), []);
    for _ in 0..2 {
        tx.set_behind(&second, moment(2)).await.expect("set behind");
    }
    tx.commit().await.expect("commit");
    let all = store.letters(&LetterFilter::default(), 0, 10).await.expect("letters");
    let statuses: Vec<_> = all.iter().map(|letter| letter.status).collect();
    assert_eq!(statuses, [LetterStatus::Retry, LetterStatus::Retry, LetterStatus::Behind], "once each");

    let held = take(&*store, &ship, &[], 10).await.expect("it is due");
    for commits in [false, true] {
        let mut tx = store.begin().await.expect("begin");
        assert!(tx.holds_letter(&held).await.expect("is it held"));
        tx.letter_handled(&held, moment(11)).await.expect("end it");
        if commits { tx.commit().await } else { tx.rollback().await }.expect("end the transaction");
        let there = store.letter(held.letter_id).await.expect("read").is_some();
        assert_eq!(there, !commits, "it ends with its transaction");
    }
    let next = take(&*store, &ship, &[], 11).await.expect("the next one is due");
    let from_now_on = NewLetter { received_at: moment(11), ..second };
    assert_eq!(next.letter, from_now_on, "what it waited behind the other is not its own waiting");
    let mut tx = store.begin().await.expect("begin");
    assert!(!tx.holds_letter(&Letter { due_at: Some(moment(12)), ..next }).await.expect("is it held"));
    tx.rollback().await.expect("rollback");
}

/// A letter whose predecessor ended while it was set aside would wait for ever: whoever looks through the lanes lets it go on.
pub async fn letters_that_wait_for_nothing_go_on(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let ship = handler("ship");
    set_aside(&*store, &letter(&ship, 3), Some(moment(500))).await;
    let mut tx = store.begin().await.expect("begin");
    for lane in [1, 2, 3] {
        tx.set_behind(&letter(&ship, lane), moment(1)).await.expect("set behind");
    }
    tx.commit().await.expect("commit");
    assert_eq!(take(&*store, &ship, &[], 100).await, None, "all of them wait");
    store.advance_lanes(&ship, &[Lane(1)], moment(2)).await.expect("advance a lane");
    let one = take(&*store, &ship, &[], 2).await.expect("it goes on");
    assert_eq!(one.letter.lane, Lane(1));
    assert_eq!(take(&*store, &ship, &[], 2).await, None, "the others still wait");
    let page = store.advance_letters(&ship, None, moment(3)).await.expect("advance all");
    assert_eq!(page, None, "there are no more");
    let two = take(&*store, &ship, &[], 3).await.expect("it goes on");
    assert_eq!(two.letter.lane, Lane(2));
    assert_eq!(take(&*store, &ship, &[], 3).await, None, "what waits for another still waits");
}

/// A delivery that fails again is the same letter. One that somebody else has by now, or that an operator has ended, is left
/// as it is. With a letter that dies, its delivery does.
pub async fn a_delivery_is_one_letter_however_often_it_fails(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let ship = handler("ship");
    let message = letter(&ship, 1);
    set_aside(&*store, &message, Some(moment(10))).await;
    set_aside(&*store, &message, Some(moment(20))).await;
    let held = take(&*store, &ship, &[], 20).await.expect("it is due");
    assert_eq!(store.letters(&LetterFilter::default(), 0, 10).await.expect("letters").len(), 1);

    let again =
        |held_until| SetAside { letter_id: Some(held.letter_id), held_until, ..aside(&message, None) };
    let late = store.set_aside(&again(Some(moment(21)))).await.expect("set aside");
    assert_eq!(late, AsideOutcome::Elsewhere, "whoever held it until then has lost it");
    store.count_failure(&failure_of(&held)).await.expect("count");
    let dead = store.set_aside(&again(held.due_at)).await.expect("set aside");
    assert_eq!(dead, AsideOutcome::Set);
    let letter = store.letter(held.letter_id).await.expect("read").expect("it is there");
    assert_eq!((letter.status, letter.due_at), (LetterStatus::Dead, None));
    let event_id = message.event_id.expect("it has one");
    let entry = store.inbox_entry(event_id, &ship).await.expect("read").expect("it is there");
    assert_eq!(entry.status, InboxStatus::Dead);
    // One that failed beside it and would be tried again comes late: nobody would handle it.
    let late = store.set_aside(&aside(&message, Some(moment(40)))).await.expect("set aside");
    assert_eq!(late, AsideOutcome::Elsewhere, "it was given up");
    let letter = store.letter(held.letter_id).await.expect("read").expect("it is there");
    assert_eq!(letter.status, LetterStatus::Dead);

    assert!(store.discard_letter(&letter, None, None, moment(30)).await.expect("discard"));
    let ended = store.set_aside(&again(None)).await.expect("set aside");
    assert_eq!(ended, AsideOutcome::Elsewhere, "an operator has ended it");
}

/// A letter that went back to its queue ends, unless it was set aside anew since it was taken.
pub async fn a_letter_given_back_ends_unless_it_was_set_aside_anew(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let ship = handler("ship");
    let (one, two) = (letter(&ship, 1), letter(&ship, 2));
    set_aside(&*store, &one, Some(moment(10))).await;
    let held = take(&*store, &ship, &[], 10).await.expect("it is due");
    assert!(store.letter_given_back(&held, moment(11)).await.expect("give back"));
    assert_eq!(store.letter(held.letter_id).await.expect("read"), None);

    set_aside(&*store, &two, Some(moment(10))).await;
    let held = take(&*store, &ship, &[], 10).await.expect("it is due");
    set_aside(&*store, &two, Some(moment(90))).await;
    assert!(!store.letter_given_back(&held, moment(11)).await.expect("give back"));
    assert_eq!(store.next_letter_due(&ship).await.expect("next due"), Some(moment(90)));
}

/// Operators find letters by what they are, page by page, and grouped by their cause.
pub async fn letters_are_found_by_what_they_are(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (ship, bill) = (handler("ship"), handler("bill"));
    let mut other = letter(&bill, 1);
    (other.message.queue, other.message.message_type) = ("bills".to_owned(), Some("ORDER_PAID".to_owned()));
    other.received_at = moment(7);
    let messages = [letter(&ship, 1), letter(&ship, 2), other];
    set_aside(&*store, &messages[0], Some(moment(10))).await;
    set_aside(&*store, &messages[1], None).await;
    let odd = SetAside { reason: "odd".to_owned(), ..aside(&messages[2], None) };
    store.set_aside(&odd).await.expect("set aside");

    let all = store.letters(&LetterFilter::default(), 0, 10).await.expect("letters");
    let found: Vec<_> = all.iter().map(|letter| letter.letter.clone()).collect();
    assert_eq!(found, messages, "to the letter, and in order");
    let ids: Vec<u64> = all.iter().map(|letter| letter.letter_id).collect();
    let page = store.letters(&LetterFilter::default(), ids[0], 1).await.expect("letters");
    assert_eq!(page, all[1..2], "one behind the first");
    let any = LetterFilter::default;
    let filters = [
        (LetterFilter::dead(), &ids[1..]),
        (LetterFilter { handler: Some("bill".to_owned()), ..any() }, &ids[2..]),
        (LetterFilter { queue: Some("bills".to_owned()), ..any() }, &ids[2..]),
        (LetterFilter { message_type: Some("ORDER_PAID".to_owned()), ..any() }, &ids[2..]),
        (LetterFilter { reason: Some("odd".to_owned()), ..any() }, &ids[2..]),
        (LetterFilter { since: Some(moment(7)), ..any() }, &ids[2..]),
        (LetterFilter { until: Some(moment(7)), ..any() }, &ids[..2]),
        (LetterFilter { up_to: Some(ids[1]), ..any() }, &ids[..2]),
    ];
    for (filter, expected) in filters {
        let found = store.letters(&filter, 0, 10).await.expect("letters");
        assert_eq!(found.iter().map(|letter| letter.letter_id).collect::<Vec<_>>(), expected, "{filter:?}");
        let short = store.letters_in_short(&filter, 0, 10).await.expect("letters in short");
        assert_eq!(short.iter().map(|letter| letter.letter_id).collect::<Vec<_>>(), expected, "{filter:?}");
        assert!(short.iter().all(|letter| letter.letter.message.body.is_empty()), "without their bodies");
        let groups = store.letter_groups(&filter).await.expect("groups");
        assert_eq!(groups.iter().map(|group| group.count).sum::<u64>(), expected.len() as u64, "{filter:?}");
    }
    let groups = store.letter_groups(&LetterFilter { reason: Some("odd".to_owned()), ..any() }).await;
    let groups = groups.expect("groups");
    let [group] = groups.as_slice() else { panic!("one cause, and not {groups:?}") };
    assert_eq!((group.handler.as_deref(), group.queue.as_str()), (Some("bill"), "bills"));
    assert_eq!((group.oldest_at, group.newest_at, group.last_id), (moment(7), moment(7), ids[2]));
}

/// What an operator does to a letter is done while it is dead, once, and says who did it.
pub async fn a_dead_letter_is_the_operators(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (ship, zoe) = (handler("ship"), ActorId::new("Zoë 🦆").expect("an actor"));
    let message = letter(&ship, 1);
    let event_id = message.event_id.expect("it has one");
    store.count_failure(&failure(event_id, &ship)).await.expect("count");
    set_aside(&*store, &message, None).await;
    let found = store.letters(&LetterFilter::dead(), 0, 10).await.expect("letters").remove(0);

    for body in [b"{}".as_slice(), b"not \xff text"] {
        assert!(store.edit_letter(&found, body, Some(&zoe), moment(5)).await.expect("edit"));
        let edited = store.letter(found.letter_id).await.expect("read").expect("it is there");
        assert_eq!(edited.letter.message.body, body);
        assert_eq!(edited.original_body.as_ref(), Some(&message.message.body), "the first one is kept");
        assert_eq!(edited.changed_by_id.as_ref(), Some(&zoe));
    }
    let ids = [found.letter_id];
    assert_eq!(store.replay_letters(&ids, Some(&zoe), moment(6)).await.expect("replay"), 1);
    assert_eq!(store.replay_letters(&ids, Some(&zoe), moment(7)).await.expect("replay"), 0, "once");
    let entry = store.inbox_entry(event_id, &ship).await.expect("read").expect("it is there");
    assert_eq!((entry.status, entry.retry_count), (InboxStatus::Retry, 0), "its delivery is open again");
    assert!(!store.edit_letter(&found, b"late", None, moment(8)).await.expect("edit"), "it is not dead");
    assert!(!store.discard_letter(&found, None, None, moment(8)).await.expect("discard"), "it has changed");

    let held = take(&*store, &ship, &[], 8).await.expect("it is due");
    assert_eq!(held.replayed_at, Some(moment(6)));
    let mut tx = store.begin().await.expect("begin");
    tx.letter_handled(&held, moment(9)).await.expect("end it");
    tx.commit().await.expect("commit");
    let ended = store.letter(found.letter_id).await.expect("read").expect("one that was replayed is kept");
    assert_eq!((ended.status, ended.due_at), (LetterStatus::Replayed, None));
}

/// A message of the broker's dead-letter queue is taken in once per death. Going back to the broker, its death is forgotten.
pub async fn a_death_at_the_broker_is_taken_in_once(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let message = NewLetter { handler: None, ..letter(&handler("ship"), 1) };
    let read_in =
        async |key: &str| store.read_in_letter(&message, key, "expired", moment(1)).await.expect("read in");
    assert!(read_in("death-1").await);
    assert!(!read_in("death-1").await, "the same death");
    assert!(read_in("death-2").await, "another death");
    let found = store.letters(&LetterFilter::dead(), 0, 10).await.expect("letters");
    let [first, _] = found.as_slice() else { panic!("two deaths, and not {found:?}") };
    assert_eq!((&first.letter, first.status_reason.as_deref()), (&message, Some("expired")));
    assert_eq!(store.replay_letters(&[first.letter_id], None, moment(2)).await.expect("replay"), 0);

    assert!(store.forget_death(first.letter_id).await.expect("forget"));
    assert!(store.letter_republished(first.letter_id, None, moment(3)).await.expect("republished"));
    assert!(!store.letter_republished(first.letter_id, None, moment(4)).await.expect("republished"), "once");
    assert!(!store.forget_death(first.letter_id).await.expect("forget"), "it is not dead any more");
    assert!(read_in("death-1").await, "it has died once more");
}

/// Clean-up deletes letters that ended long enough ago and nothing else; not under a stale lease.
pub async fn letters_that_ended_long_ago_are_cleaned_up(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let ship = handler("ship");
    let lease = hold_new_lease(&*store).await;
    for lane in [1, 2, 3] {
        set_aside(&*store, &letter(&ship, lane), None).await;
    }
    let found = store.letters(&LetterFilter::dead(), 0, 10).await.expect("letters");
    for (letter, ended_at) in found.iter().zip([2, 8]) {
        assert!(store.discard_letter(letter, None, Some("no"), moment(ended_at)).await.expect("discard"));
    }
    let (stale, _) = stale_and_fresh(&*store).await;
    let refused = store.clean_letters(&stale, moment(5), 10).await;
    assert_refused!(refused, StoreError::Fenced { .. }, "cleaning under a stale lease");
    assert_eq!(store.clean_letters(&lease, moment(5), 10).await.expect("clean"), 1);
    assert_eq!(store.clean_letters(&lease, moment(5), 10).await.expect("clean"), 0);
    let left = store.letters(&LetterFilter::default(), 0, 10).await.expect("letters");
    let statuses: Vec<_> = left.iter().map(|letter| letter.status).collect();
    assert_eq!(statuses, [LetterStatus::Discarded, LetterStatus::Dead], "what ended late, and what is open");
}

/// A delivery with everything said that can be said.
pub(super) fn letter(handler: &HandlerName, lane: u64) -> NewLetter {
    NewLetter {
        handler: Some(handler.clone()),
        event_id: Some(new_event_id()),
        lane: Lane(lane),
        message: Received {
            // What settled it is of no use any more, and it was delivered at least once.
            tag: DeliveryTag(0),
            redelivered: true,
            queue: "parcels".to_owned(),
            message_id: Some("message-1".to_owned()),
            message_type: Some("ORDER_PLACED".to_owned()),
            occurred_at: Some(moment(1)),
            key: Some("order-7".to_owned()),
            content_type: Some("application/json".to_owned()),
            destination: Destination {
                exchange: "orders".to_owned(),
                routing_key: "order.placed".to_owned(),
            },
            headers: Arc::new(vec![("x-\"quoted\"".to_owned(), "🦆".to_owned())]),
            body: br#"{"amount": 88.50}"#.to_vec(),
        },
        received_at: moment(2),
    }
}

/// A first failure: again at a moment, or never.
pub(super) fn aside(letter: &NewLetter, due_at: Option<DateTime<Utc>>) -> SetAside {
    SetAside {
        letter_id: None,
        held_until: None,
        letter: letter.clone(),
        due_at,
        reason: "no-stock".to_owned(),
        message: "None left; \"try\" again.".to_owned(),
        retry_count: 1,
        now: moment(3),
    }
}

pub(super) async fn set_aside(store: &dyn Store, letter: &NewLetter, due_at: Option<DateTime<Utc>>) {
    let outcome = store.set_aside(&aside(letter, due_at)).await.expect("set aside");
    assert_eq!(outcome, AsideOutcome::Set);
}

/// Takes a letter for a minute.
async fn take(store: &dyn Store, handler: &HandlerName, in_hand: &[u64], now: u64) -> Option<Letter> {
    store.take_letter(handler, in_hand, moment(now), moment(now + 60)).await.expect("take")
}

fn failure_of(letter: &Letter) -> InboxFailure<'_> {
    let (event_id, handler) = (letter.letter.event_id, letter.letter.handler.as_ref());
    failure(event_id.expect("it has one"), handler.expect("it has one"))
}

fn failure(event_id: EventId, handler: &HandlerName) -> InboxFailure<'_> {
    let (reason, message) = ("no-stock", "None left.");
    InboxFailure { event_id, handler, reason, message, failed_at: moment(4), dead: false }
}
