//! Timers: they exist with their transaction, run when due, under a lease, once (S5, P7).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use towpath_core::ids::{AggregateKey, Version};
use towpath_core::lifecycle::TaskState;
use towpath_core::name::CommandName;
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::{
    Append, CLAIMED_BYTES, Expected, Found, InspectedStore, LeaseGrant, NewTimer, StoreError, Timer,
    TimerOutcome,
};
use uuid::Uuid;

use super::StoreFixture;
use super::acts::{assert_refused, hold, hold_new_lease, schedule};
use super::facts::{OrderFacts, completed, instance, moment, new_lease, new_order, payload_of, place, timer};
use super::waiting::{all_at_once, interleave, run_beside, taking_turns};
use crate::probe::PauseProbe;

/// A timer comes back as it was scheduled.
pub async fn a_timer_survives_to_the_letter(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let mut bare = timer(&new_order(), moment(60) + Duration::from_micros(1));
    bare.causation_id = None;
    for scheduled in [timer(&new_order(), moment(60)), bare] {
        schedule(&*store, std::slice::from_ref(&scheduled)).await;
        let found = store.timer(scheduled.timer_id).await.expect("timer").expect("it is scheduled");
        assert!(waits(&found), "{found:?}");
        assert_eq!((found.retry_count, found.error_code, found.error_message), (0, None, None));
        assert_eq!(found.timer, scheduled);
    }
    assert_eq!(store.timer(Uuid::now_v7()).await.expect("timer"), None);
}

/// A timer of a rolled-back transaction does not exist, and neither does its cancellation.
pub async fn timers_live_and_die_with_their_transaction(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let due = timer(&new_order(), moment(1));
    let mut tx = store.begin().await.expect("begin");
    tx.schedule(&due).await.expect("schedule");
    tx.rollback().await.expect("roll back");
    assert_eq!(store.timer(due.timer_id).await.expect("timer"), None);
    assert_eq!(store.claim_timers(&lease, &["order.cancel"], moment(9), 10).await.expect("claim"), []);

    schedule(&*store, std::slice::from_ref(&due)).await;
    let mut tx = store.begin().await.expect("begin");
    assert!(tx.cancel(due.timer_id, moment(1)).await.expect("cancel"));
    tx.rollback().await.expect("roll back");
    assert_eq!(
        ids(&store.claim_timers(&lease, &["order.cancel"], moment(9), 10).await.expect("claim")),
        [due.timer_id]
    );
}

/// When the answer to a claim was lost, what its holder knows of stays claimed and everything else under the grant waits
/// again; what others hold is not touched.
pub async fn a_claim_whose_answer_was_lost_can_be_undone(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (lease, other) = (hold_new_lease(&*store).await, hold_new_lease(&*store).await);
    let timers: Vec<NewTimer> = (1..=3).map(|second| timer(&new_order(), moment(second))).collect();
    schedule(&*store, &timers).await;
    let claim = async |lease: &LeaseGrant, limit: u32| {
        ids(&store.claim_timers(lease, &["order.cancel"], moment(9), limit).await.expect("claim"))
    };
    let (seen, unseen, others) = (claim(&lease, 1).await, claim(&lease, 1).await, claim(&other, 1).await);
    let returned = store.return_unseen_timers(&lease, &seen, moment(9)).await.expect("return");
    assert_eq!(returned, 1, "the one that nobody knows of");
    assert_eq!(claim(&lease, 10).await, unseen, "it is due again, at once");
    let returned = store.return_unseen_timers(&lease, &[], moment(9)).await.expect("return");
    assert_eq!(returned, 2, "without exceptions, all of the grant");
    let still = store.timer(others[0]).await.expect("timer").expect("it is there");
    assert_eq!(still.state, TaskState::Running, "another's is not touched");
}

/// A timer's id is taken once, whatever has become of the timer.
pub async fn a_timer_id_is_taken_once(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let first = timer(&new_order(), moment(1));
    let second = NewTimer { timer_id: first.timer_id, ..timer(&new_order(), moment(2)) };
    schedule(&*store, std::slice::from_ref(&first)).await;
    for _ in 0..2 {
        let mut tx = store.begin().await.expect("begin");
        assert_refused!(tx.schedule(&second).await, StoreError::NameTaken { .. }, "the same id again");
        tx.rollback().await.expect("roll back");
        let found = store.timer(first.timer_id).await.expect("timer").expect("it exists");
        assert_eq!(found.timer, first);
        let mut tx = store.begin().await.expect("begin");
        tx.cancel(first.timer_id, moment(1)).await.expect("cancel");
        tx.commit().await.expect("commit");
    }
}

/// A timer that has not begun can be cancelled, once; one that runs cannot.
pub async fn a_cancelled_timer_never_runs(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let (cancelled, runs) = (timer(&new_order(), moment(1)), timer(&new_order(), moment(1)));
    let mut tx = store.begin().await.expect("begin");
    tx.schedule(&cancelled).await.expect("schedule");
    assert!(tx.cancel(cancelled.timer_id, moment(1)).await.expect("cancel in the same transaction"));
    tx.commit().await.expect("commit");
    schedule(&*store, std::slice::from_ref(&runs)).await;
    assert_eq!(
        ids(&store.claim_timers(&lease, &["order.cancel"], moment(9), 10).await.expect("claim")),
        [runs.timer_id]
    );

    let mut tx = store.begin().await.expect("begin");
    for (what, timer_id) in
        [("again", cancelled.timer_id), ("running", runs.timer_id), ("unknown", Uuid::now_v7())]
    {
        assert!(!tx.cancel(timer_id, moment(9)).await.expect("cancel"), "{what}");
    }
    tx.commit().await.expect("commit");
    assert_eq!(state(&*store, cancelled.timer_id).await, TaskState::Canceled);
    assert_eq!(state(&*store, runs.timer_id).await, TaskState::Running);
}

/// Due timers come in the order of their due times, not before them, and at most as many as asked for.
pub async fn due_timers_come_in_order(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let order = new_order();
    let timers: Vec<_> = [30, 10, 40, 20].into_iter().map(|due| timer(&order, moment(due))).collect();
    schedule(&*store, &timers).await;
    let just_before = moment(10) - Duration::from_micros(1);
    assert_eq!(
        store.claim_timers(&lease, &["order.cancel"], just_before, 10).await.expect("claim"),
        [],
        "not before it is due"
    );
    let first = store.claim_timers(&lease, &["order.cancel"], moment(30), 2).await.expect("claim");
    assert_eq!(ids(&first), [timers[1].timer_id, timers[3].timer_id]);
    assert!(first.iter().all(|timer| timer.state == TaskState::Running), "{first:?}");
    assert_eq!(
        ids(&store.claim_timers(&lease, &["order.cancel"], moment(30), 10).await.expect("claim")),
        [timers[0].timer_id]
    );
    assert_eq!(
        store.claim_timers(&lease, &["order.cancel"], moment(30), 10).await.expect("claim"),
        [],
        "what runs is not taken again"
    );
    assert_eq!(
        ids(&store.claim_timers(&lease, &["order.cancel"], moment(40), 10).await.expect("claim")),
        [timers[2].timer_id]
    );
}

/// A timer that failed comes again when its retry is due, with its failure on record, until it succeeds or is given up.
pub async fn a_claimed_timer_succeeds_or_is_tried_again(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let (wins, loses) = (timer(&new_order(), moment(1)), timer(&new_order(), moment(2)));
    schedule(&*store, &[wins.clone(), loses.clone()]).await;
    assert_eq!(store.claim_timers(&lease, &["order.cancel"], moment(2), 10).await.expect("claim").len(), 2);
    for timer in [&wins, &loses] {
        let again = failure(Some(moment(10)));
        store.finish_timer(&lease, timer.timer_id, &again, moment(3)).await.expect("finish");
        let found = store.timer(timer.timer_id).await.expect("timer").expect("it exists");
        assert!(waits(&found) || found.state == TaskState::Failed, "{found:?}");
        assert_eq!(found.retry_count, 1);
        assert_eq!(found.error_code.as_deref(), Some("bus-full"));
        assert_eq!(found.error_message.as_deref(), Some("The bus is full. 🦆"));
    }
    assert_eq!(
        store.claim_timers(&lease, &["order.cancel"], moment(9), 10).await.expect("claim"),
        [],
        "not before it is due"
    );
    let again = store.claim_timers(&lease, &["order.cancel"], moment(10), 10).await.expect("claim");
    assert_eq!(again.len(), 2);
    assert!(again.iter().all(|timer| timer.retry_count == 1), "failures are remembered");
    store.finish_timer(&lease, wins.timer_id, &TimerOutcome::Succeeded, moment(11)).await.expect("finish");
    store.finish_timer(&lease, loses.timer_id, &failure(None), moment(11)).await.expect("finish");
    assert_eq!(state(&*store, wins.timer_id).await, TaskState::Succeeded);
    assert_eq!(state(&*store, loses.timer_id).await, TaskState::Failed);
    assert_eq!(
        store.claim_timers(&lease, &["order.cancel"], moment(1_000_000), 10).await.expect("claim"),
        [],
        "both have ended"
    );
}

/// A timer that could not be sent for a reason that is not its own comes again, and has all its attempts left.
pub async fn a_postponed_timer_comes_again_uncounted(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let due = timer(&new_order(), moment(1));
    schedule(&*store, std::slice::from_ref(&due)).await;
    for round in 1..4 {
        let (now, until) = (moment(round * 10), moment(round * 10 + 5));
        let claimed = store.claim_timers(&lease, &["order.cancel"], now, 10).await.expect("claim");
        assert_eq!((ids(&claimed), claimed[0].retry_count), (vec![due.timer_id], 0), "round {round}");
        let postponed = TimerOutcome::Postponed {
            error_code: "store-full".to_owned(),
            error_message: "The disk is full.".to_owned(),
            until,
        };
        store.finish_timer(&lease, due.timer_id, &postponed, now).await.expect("finish");
        let early = store.claim_timers(&lease, &["order.cancel"], moment(round * 10 + 4), 10).await;
        assert_eq!(early.expect("claim"), [], "not before it is due");
    }
    let found = store.timer(due.timer_id).await.expect("timer").expect("it exists");
    assert!(waits(&found), "{found:?}");
    assert_eq!((found.retry_count, found.error_code.as_deref()), (0, Some("store-full")));
}

/// A timer whose command is not among those asked for is not taken, due or orphaned; and it is not lost.
pub async fn timers_for_unknown_commands_are_left_alone(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let known = timer(&new_order(), moment(2));
    let mut unknown = timer(&new_order(), moment(1));
    unknown.command_type = CommandName::infer("parcel.send").expect("a valid command name");
    schedule(&*store, &[known.clone(), unknown.clone()]).await;
    assert_eq!(store.claim_timers(&lease, &[], moment(9), 10).await.expect("claim"), []);
    let taken = store.claim_timers(&lease, &["order.cancel"], moment(9), 10).await.expect("claim");
    assert_eq!(ids(&taken), [known.timer_id]);
    let left = store.claim_timers(&lease, &["parcel.send", "order.cancel"], moment(9), 10).await;
    assert_eq!(ids(&left.expect("claim")), [unknown.timer_id]);
}

/// Waiting timers are listed by their due times; what runs or has ended does not wait.
pub async fn waiting_timers_are_listed_by_due_time(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let order = new_order();
    let timers: Vec<_> = [30, 10, 20].into_iter().map(|due| timer(&order, moment(due))).collect();
    schedule(&*store, &timers).await;
    let all = store.waiting_timers(None, 10).await.expect("waiting");
    assert_eq!(ids(&all), [timers[1].timer_id, timers[2].timer_id, timers[0].timer_id]);
    let next = store.waiting_timers(Some(&["order.cancel"]), 1).await.expect("waiting");
    assert_eq!(ids(&next), [timers[1].timer_id]);
    assert_eq!(next[0].timer, timers[1]);
    for none in [&["parcel.send"][..], &[]] {
        assert_eq!(store.waiting_timers(Some(none), 10).await.expect("waiting"), []);
    }
    store.claim_timers(&lease, &["order.cancel"], moment(10), 10).await.expect("claim");
    let waiting = store.waiting_timers(None, 10).await.expect("waiting");
    assert_eq!(ids(&waiting), [timers[2].timer_id, timers[0].timer_id], "what runs does not wait");
}

/// A timer that was not needed ends skipped, and is not taken again.
pub async fn a_claimed_timer_can_turn_out_unnecessary(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let due = timer(&new_order(), moment(1));
    schedule(&*store, std::slice::from_ref(&due)).await;
    assert_eq!(store.claim_timers(&lease, &["order.cancel"], moment(2), 10).await.expect("claim").len(), 1);
    let unnecessary = TimerOutcome::Skipped { reason: "no-longer-waiting".to_owned() };
    store.finish_timer(&lease, due.timer_id, &unnecessary, moment(3)).await.expect("finish");
    assert_eq!(state(&*store, due.timer_id).await, TaskState::Skipped);
    assert_eq!(store.claim_timers(&lease, &["order.cancel"], moment(9), 10).await.expect("claim"), []);
}

/// Entering a state schedules its deadline, leaving it cancels exactly that one, in the transaction of the change:
/// a change that is refused does neither. Facts in between, and other aggregates, do not matter.
pub async fn a_deadline_lives_and_dies_with_its_state(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let entering = |order: &AggregateKey, version: Version| {
        let mut append = OrderFacts::about(order, version).placed().append();
        let entered_by = append.events[0].event_id;
        let cancel = CommandName::infer("order.cancel").expect("a valid command name");
        let timer = NewTimer::of_deadline(entered_by, moment(60), cancel, order.clone(), &append.context);
        assert_eq!(timer.entered_by, Some(entered_by));
        append.deadline.enters = Some(timer);
        append
    };
    let leaving = |order: &AggregateKey, version: Version| {
        let mut append = OrderFacts::about(order, version).paid().append();
        append.deadline.leaves = true;
        append
    };
    let write = async |append: Append| {
        let command = place(&append.aggregate);
        store.complete_command(&completed(&command, Found::Nowhere, Some(append))).await
    };
    let (order, bystander) = (new_order(), new_order());
    let (first, other) = (entering(&order, 0), entering(&bystander, 0));
    let (first_id, other_id) = (first.events[0].event_id.0, other.events[0].event_id.0);
    write(first).await.expect("it waits");
    write(other).await.expect("so does another");
    let found = store.timer(first_id).await.expect("timer").expect("it is scheduled with its state");
    assert_eq!((found.timer.due_at, found.timer.payload.as_text()), (moment(60), "{}"));

    let late = entering(&order, 0);
    let late_id = late.events[0].event_id.0;
    assert_refused!(write(late).await, StoreError::VersionConflict { .. }, "entering at an old version");
    assert_eq!(store.timer(late_id).await.expect("timer"), None);
    assert_refused!(
        write(leaving(&order, 7)).await,
        StoreError::VersionConflict { .. },
        "leaving at a wrong one"
    );
    write(OrderFacts::about(&order, 1).noted("it still waits").append()).await.expect("a note");
    assert_eq!(state(&*store, first_id).await, TaskState::Pending);

    write(leaving(&order, 2)).await.expect("it is paid");
    assert_eq!(state(&*store, first_id).await, TaskState::Canceled);
    assert_eq!(state(&*store, other_id).await, TaskState::Pending, "another aggregate's deadline stays");

    // In and out and in again, at the same moment: each entry has a timer of its own.
    let again = entering(&order, 3);
    let again_id = again.events[0].event_id.0;
    write(again).await.expect("it waits again");
    assert_eq!(state(&*store, again_id).await, TaskState::Pending);
    let mut tx = store.begin().await.expect("begin");
    tx.append(&leaving(&order, 4)).await.expect("leave");
    tx.rollback().await.expect("roll back");
    assert_eq!(state(&*store, again_id).await, TaskState::Pending, "what is rolled back cancels nothing");
    let mut any = leaving(&order, 4);
    any.expected = Expected::Any;
    let mut tx = store.begin().await.expect("begin");
    tx.append(&any).await.expect("leave");
    tx.commit().await.expect("commit");
    assert_eq!(state(&*store, again_id).await, TaskState::Canceled);
    let last = store.last_state_change(&order).await.expect("history").expect("it has one");
    assert_eq!((last.aggregate_version, last.to_state.as_str()), (5, "paid"));
    assert_eq!(store.last_state_change(&new_order()).await.expect("history"), None);
}

/// Timers of a holder that is gone are taken over at once, and the sleeper cannot end them.
pub async fn timers_of_a_gone_holder_are_taken_over(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    for gone in [Gone::StartedAgain, Gone::Released, Gone::RanOut] {
        let lease = new_lease();
        let sleeper = hold(&*store, &lease, &instance("one")).await;
        let due = timer(&new_order(), moment(1));
        schedule(&*store, std::slice::from_ref(&due)).await;
        assert_eq!(
            store.claim_timers(&sleeper, &["order.cancel"], moment(2), 10).await.expect("claim").len(),
            1
        );
        let bystander = hold_new_lease(&*store).await;
        let taken =
            store.claim_timers(&bystander, &["order.cancel"], moment(1_000_000), 10).await.expect("claim");
        assert_eq!(taken, [], "its holder lives");

        let successor = match gone {
            Gone::StartedAgain => hold(&*store, &lease, &instance("one")).await,
            Gone::Released => {
                store.release_lease(&sleeper).await.expect("release");
                bystander
            }
            Gone::RanOut => {
                store.renew_lease(&sleeper, Duration::ZERO).await.expect("let it run out");
                bystander
            }
        };
        assert_eq!(
            ids(&store.claim_timers(&successor, &["order.cancel"], moment(3), 10).await.expect("claim")),
            [due.timer_id]
        );
        for outcome in [TimerOutcome::Succeeded, failure(None)] {
            let late = store.finish_timer(&sleeper, due.timer_id, &outcome, moment(4)).await;
            assert_refused!(late, StoreError::Fenced { .. }, "the sleeper ends it");
        }
        assert_eq!(state(&*store, due.timer_id).await, TaskState::Running);
        store
            .finish_timer(&successor, due.timer_id, &TimerOutcome::Succeeded, moment(5))
            .await
            .expect("finish");
    }
}

/// A holder that started again cannot end under its new epoch what it claimed under the old one, before it has
/// claimed it anew.
pub async fn a_timer_of_an_earlier_epoch_cannot_be_ended_in_a_later_one(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = new_lease();
    let earlier = hold(&*store, &lease, &instance("one")).await;
    let due = timer(&new_order(), moment(1));
    schedule(&*store, std::slice::from_ref(&due)).await;
    assert_eq!(store.claim_timers(&earlier, &["order.cancel"], moment(2), 10).await.expect("claim").len(), 1);
    let later = hold(&*store, &lease, &instance("one")).await;
    for outcome in [TimerOutcome::Succeeded, failure(None), failure(Some(moment(10)))] {
        let ended = store.finish_timer(&later, due.timer_id, &outcome, moment(3)).await;
        assert_refused!(ended, StoreError::Fenced { .. }, "ending what an earlier epoch claimed");
    }
    assert_eq!(state(&*store, due.timer_id).await, TaskState::Running);
    assert_eq!(
        ids(&store.claim_timers(&later, &["order.cancel"], moment(4), 10).await.expect("claim")),
        [due.timer_id]
    );
    store.finish_timer(&later, due.timer_id, &TimerOutcome::Succeeded, moment(5)).await.expect("finish");
}

/// Sixty timers, four claimers at once: every timer has exactly one of them.
pub async fn claimers_never_share_a_timer(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let timers: Vec<_> = (0..60).map(|number| timer(&new_order(), moment(number))).collect();
    schedule(&*store, &timers).await;
    let mut claimers = Vec::new();
    for _ in 0..4 {
        let store = fixture.store().await;
        let lease: LeaseGrant = hold_new_lease(&*store).await;
        claimers.push(async move {
            let mut claimed = Vec::new();
            loop {
                let timers = taking_turns(|| store.claim_timers(&lease, &["order.cancel"], moment(99), 7))
                    .await
                    .expect("claim");
                if timers.is_empty() {
                    return claimed;
                }
                for timer_id in ids(&timers) {
                    taking_turns(|| {
                        store.finish_timer(&lease, timer_id, &TimerOutcome::Succeeded, moment(99))
                    })
                    .await
                    .expect("finish");
                    claimed.push(timer_id);
                }
            }
        });
    }
    let claimed = all_at_once(claimers).await.concat();
    assert_eq!(claimed.len(), 60, "no timer twice");
    let all: BTreeSet<_> = timers.iter().map(|timer| timer.timer_id).collect();
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>(), all, "no timer left");
}

/// The same as for commands: a claimer that stands still keeps no other from the rest.
pub async fn a_claimer_of_timers_waits_for_no_other(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (slow_lease, lease) = (hold_new_lease(&*store).await, hold_new_lease(&*store).await);
    for pause_at in 0.. {
        let probe = Arc::new(PauseProbe::new(pause_at));
        let slow = fixture.connect(Arc::clone(&probe) as Arc<dyn Probe>).await;
        let timers: Vec<_> = (0..4).map(|number| timer(&new_order(), moment(number))).collect();
        schedule(&*store, &timers).await;
        let first = {
            let lease = slow_lease.clone();
            async move { taking_turns(|| slow.claim_timers(&lease, &["order.cancel"], moment(9), 2)).await }
        };
        let second = {
            let (store, lease) = (Arc::clone(&store), lease.clone());
            async move { taking_turns(|| store.claim_timers(&lease, &["order.cancel"], moment(9), 2)).await }
        };
        let (first, second, paused) = if store.promises().concurrent_writers {
            run_beside(&probe, first, second).await
        } else {
            interleave(&probe, first, second).await
        };
        let mut claimed = BTreeSet::new();
        for timers in [first, second] {
            let timers = timers.expect("claim");
            assert_eq!(timers.len(), 2, "paused before statement {pause_at}: there is enough for both");
            claimed.extend(ids(&timers));
        }
        assert_eq!(claimed.len(), 4, "paused before statement {pause_at}: nothing is shared");
        if !paused {
            break;
        }
    }
}

/// A holder that is gone stands still while it ends a timer: whoever takes timers passes that one over, and takes the rest.
pub async fn a_timer_that_somebody_is_ending_keeps_no_other_from_being_taken(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    for pause_at in 0.. {
        let probe = Arc::new(PauseProbe::new(pause_at));
        let slow = fixture.connect(Arc::clone(&probe) as Arc<dyn Probe>).await;
        let gone = hold_new_lease(&*store).await;
        let (ending, waiting) = (timer(&new_order(), moment(1)), timer(&new_order(), moment(2)));
        schedule(&*store, std::slice::from_ref(&ending)).await;
        let taken = store.claim_timers(&gone, &["order.cancel"], moment(9), 10).await.expect("claim");
        assert_eq!(ids(&taken), [ending.timer_id]);
        schedule(&*store, std::slice::from_ref(&waiting)).await;
        store.renew_lease(&gone, std::time::Duration::ZERO).await.expect("let it run out");
        let first = async move {
            let ended = || slow.finish_timer(&gone, ending.timer_id, &TimerOutcome::Succeeded, moment(9));
            taking_turns(ended).await
        };
        let second = {
            let (store, lease) = (Arc::clone(&store), lease.clone());
            async move { taking_turns(|| store.claim_timers(&lease, &["order.cancel"], moment(9), 10)).await }
        };
        let (first, second, paused) = if store.promises().concurrent_writers {
            run_beside(&probe, first, second).await
        } else {
            interleave(&probe, first, second).await
        };
        assert!(matches!(first, Ok(()) | Err(StoreError::Fenced { .. })), "{first:?}");
        let claimed = second.expect("claim");
        assert!(ids(&claimed).contains(&waiting.timer_id), "paused before statement {pause_at}");
        for timer_id in ids(&claimed) {
            store.finish_timer(&lease, timer_id, &TimerOutcome::Succeeded, moment(9)).await.expect("finish");
        }
        if !paused {
            break;
        }
    }
}

#[derive(Clone, Copy)]
enum Gone {
    StartedAgain,
    Released,
    RanOut,
}

fn failure(retry_at: Option<chrono::DateTime<chrono::Utc>>) -> TimerOutcome {
    TimerOutcome::Failed {
        error_code: "bus-full".to_owned(),
        error_message: "The bus is full. 🦆".to_owned(),
        retry_at,
    }
}

/// A timer that waits for its moment is pending or queued: the port leaves open which.
fn waits(timer: &Timer) -> bool {
    matches!(timer.state, TaskState::Pending | TaskState::Queued)
}

fn ids(timers: &[Timer]) -> Vec<Uuid> {
    timers.iter().map(|timer| timer.timer.timer_id).collect()
}

async fn state(store: &dyn InspectedStore, timer_id: Uuid) -> TaskState {
    store.timer(timer_id).await.expect("timer").expect("it exists").state
}

/// However many may be claimed: large ones come one after the other, and the largest alone.
pub async fn a_claim_of_timers_takes_so_many_bytes_and_at_least_one(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let sizes = [CLAIMED_BYTES / 2 - 1, CLAIMED_BYTES / 2, CLAIMED_BYTES, 100, 100];
    let timers: Vec<NewTimer> = (1..)
        .zip(sizes)
        .map(|(due, size)| NewTimer { payload: payload_of(size), ..timer(&new_order(), moment(due)) })
        .collect();
    for timer in &timers {
        schedule(&*store, std::slice::from_ref(timer)).await;
    }
    let all: Vec<Uuid> = timers.iter().map(|timer| timer.timer_id).collect();
    for expected in [&all[..2], &all[2..3], &all[3..]] {
        let claimed = store.claim_timers(&lease, &["order.cancel"], moment(9), 32).await.expect("claim");
        assert_eq!(ids(&claimed), expected);
        assert!(claimed.iter().all(|claimed| timers.contains(&claimed.timer)), "with their payloads");
    }
}
