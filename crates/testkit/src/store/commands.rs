//! The command box: the same id gives the same answer and no second effect (P6), and nothing stays PROCESSING when
//! its worker is gone (P7).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{TimeZone, Utc};
use towpath_core::ids::CommandId;
use towpath_core::lifecycle::CommandStatus;
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::{
    CLAIMED_BYTES, CommandRecord, CommandResult, CompletedCommand, Expected, Found, InspectedStore,
    LeaseGrant, NewCommand, StoreError,
};

use super::StoreFixture;
use super::acts::{append, assert_refused, hold, hold_new_lease, stale_and_fresh, versions_of};
use super::audit::{Picture, Scope};
use super::facts::COMMAND_TYPES;
use super::facts::{
    OrderFacts, completed, context, failed, full_context, instance, moment, new_channel, new_command_id,
    new_event_id, new_lease, new_order, payload, payload_of, place,
};
use super::waiting::{all_at_once, interleave, run_beside, taking_turns};
use crate::probe::PauseProbe;

/// The first acceptance records it, the second answers that record, and an acceptance after completion answers
/// the completed one.
pub async fn accepting_twice_answers_the_first_record(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let command = place(&new_order());
    assert_eq!(store.accept_command(&command).await.expect("accept"), None);
    let record = store.command(&command.command_id).await.expect("command").expect("it is recorded");
    assert_eq!(record.status, CommandStatus::Pending);

    let other = NewCommand { payload: payload(r#"{"other":true}"#), ..command.clone() };
    for again in [&command, &other] {
        let found = store.accept_command(again).await.expect("accept again");
        assert_eq!(found.as_ref(), Some(&record), "the record of the first is answered and stays as it is");
    }
    assert!(command.is_same_as(&record) && !other.is_same_as(&record));

    let direct = OrderFacts::of_new_order().placed().command();
    store.complete_command(&direct).await.expect("complete");
    let found = store.accept_command(&direct.command).await.expect("accept").expect("it was there before");
    assert_eq!(found.result, Some(CommandResult { aggregate_version: 1, event_count: 1 }));
}

/// Eight acceptances of one id at the same moment: one records, seven are answered.
pub async fn concurrent_acceptances_record_one_command(fixture: &impl StoreFixture) {
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(fixture.store().await);
    }
    for _ in 0..5 {
        let command = place(&new_order());
        let acceptances = stores.iter().cloned().map(|store| {
            let command = command.clone();
            async move { taking_turns(|| store.accept_command(&command)).await.expect("accept") }
        });
        let answers = all_at_once(acceptances).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_none()).count(), 1, "{answers:?}");
        for record in answers.into_iter().flatten() {
            assert_eq!((record.command, record.status), (command.clone(), CommandStatus::Pending));
        }
    }
}

/// Every field of a command comes back exactly: the payload to the letter, times to the microsecond.
pub async fn a_command_record_survives_to_the_letter(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let at = Utc.timestamp_opt(1_735_689_599, 999_999_000).single().expect("a moment");
    let full = NewCommand {
        payload: payload(
            "{ \"amount\" : 88.50,\n \"big\": 123456789012345678901234567890, \"a\":1, \"a\":2 }",
        ),
        context: full_context(at),
        ..place(&new_order())
    };
    let bare = NewCommand { context: context(at), ..place(&new_order()) };
    for command in [full, bare] {
        store.accept_command(&command).await.expect("accept");
        let pending = CommandRecord {
            command: command.clone(),
            status: CommandStatus::Pending,
            status_changed_at: at,
            status_reason: None,
            status_message: None,
            retry_count: 0,
            next_retry_at: None,
            claim: None,
            started_at: None,
            finished_at: None,
            result: None,
        };
        assert_eq!(store.command(&command.command_id).await.expect("command"), Some(pending));

        let command = NewCommand { command_id: new_command_id(), ..command };
        let retry_at = at + Duration::from_micros(1_000_001);
        let failure = failed(&command, Found::Nowhere, 2, Some(retry_at));
        store.fail_command(&failure).await.expect("fail");
        let record = store.command(&command.command_id).await.expect("command").expect("it is recorded");
        assert_eq!(record.command, command);
        assert_eq!((record.status, record.status_changed_at), (CommandStatus::Failed, failure.failed_at));
        assert_eq!(record.status_reason.as_deref(), Some(failure.reason.as_str()));
        assert_eq!(record.status_message.as_deref(), Some(failure.message.as_str()));
        assert_eq!((record.retry_count, record.next_retry_at), (2, Some(retry_at)));
        assert_eq!((record.started_at, record.claim, record.result), (Some(failure.started_at), None, None));
    }
}

/// A hundred commands, four claimers at once: every command has exactly one of them.
pub async fn claimers_never_share_a_command(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let mut ids = BTreeSet::new();
    for _ in 0..100 {
        let command = place(&new_order());
        store.accept_command(&command).await.expect("accept");
        ids.insert(command.command_id);
    }
    let mut claimers = Vec::new();
    for _ in 0..4 {
        let store = fixture.store().await;
        let lease = hold_new_lease(&*store).await;
        claimers.push(async move {
            let mut claimed = Vec::new();
            loop {
                let records = taking_turns(|| store.claim_commands(&lease, COMMAND_TYPES, moment(1), 7))
                    .await
                    .expect("claim");
                if records.is_empty() {
                    return claimed;
                }
                assert!(records.len() <= 7, "the limit holds");
                for record in &records {
                    assert_eq!(
                        (record.status, record.claim.as_ref()),
                        (CommandStatus::Processing, Some(&lease.claim()))
                    );
                }
                claimed.extend(records.into_iter().map(|record| record.command.command_id));
            }
        });
    }
    let claimed = all_at_once(claimers).await.concat();
    assert_eq!(claimed.len(), 100, "no command twice");
    assert_eq!(claimed.into_iter().collect::<BTreeSet<_>>(), ids, "no command left");
    let counts = store.command_counts().await.expect("counts");
    assert_eq!(counts.of(CommandStatus::Processing), 100);
}

/// A claimer that stands still between any two statements keeps no other from the rest: the other takes what is free,
/// at once. Where one writes at a time, it waits its turn, and they share nothing either.
pub async fn a_claimer_of_commands_waits_for_no_other(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (slow_lease, lease) = (hold_new_lease(&*store).await, hold_new_lease(&*store).await);
    for pause_at in 0.. {
        let probe = Arc::new(PauseProbe::new(pause_at));
        let slow = fixture.connect(Arc::clone(&probe) as Arc<dyn Probe>).await;
        for _ in 0..4 {
            store.accept_command(&place(&new_order())).await.expect("accept");
        }
        let first = {
            let lease = slow_lease.clone();
            async move { taking_turns(|| slow.claim_commands(&lease, COMMAND_TYPES, moment(1), 2)).await }
        };
        let second = {
            let (store, lease) = (Arc::clone(&store), lease.clone());
            async move { taking_turns(|| store.claim_commands(&lease, COMMAND_TYPES, moment(1), 2)).await }
        };
        let (first, second, paused) = if store.promises().concurrent_writers {
            run_beside(&probe, first, second).await
        } else {
            interleave(&probe, first, second).await
        };
        let mut claimed = BTreeSet::new();
        for records in [first, second] {
            let records = records.expect("claim");
            assert_eq!(records.len(), 2, "paused before statement {pause_at}: there is enough for both");
            claimed.extend(records.into_iter().map(|record| record.command.command_id));
        }
        assert_eq!(claimed.len(), 4, "paused before statement {pause_at}: nothing is shared");
        if !paused {
            break;
        }
    }
}

/// A command whose holder lives is left alone, however late the caller's clock is. A holder that comes back raises
/// its epoch, and what it had before is free at once.
pub async fn only_commands_of_a_gone_holder_are_recovered(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (restarts, lives) = (new_lease(), new_lease());
    let first = hold(&*store, &restarts, &instance("one")).await;
    let other = hold(&*store, &lives, &instance("two")).await;
    let commands = [place(&new_order()), place(&new_order())];
    for (command, lease) in commands.iter().zip([&first, &other]) {
        store.accept_command(command).await.expect("accept");
        assert_eq!(store.claim_commands(lease, COMMAND_TYPES, moment(1), 10).await.expect("claim").len(), 1);
    }
    let decades_later = Utc.timestamp_opt(2_082_758_400, 0).single().expect("a moment in 2036");
    let recovered = store.recover_commands(decades_later, 100).await.expect("recover");
    assert_eq!(recovered, 0, "leases live by the database's clock, and both live");

    let second = hold(&*store, &restarts, &instance("one")).await;
    assert_eq!(
        store.recover_commands(moment(2), 100).await.expect("recover"),
        1,
        "without waiting for anything"
    );
    assert_eq!(store.recover_commands(moment(2), 100).await.expect("recover"), 0, "once");
    let recovered = store.command(&commands[0].command_id).await.expect("command").expect("recorded");
    assert_eq!((recovered.status, recovered.claim), (CommandStatus::Pending, None));
    let untouched = store.command(&commands[1].command_id).await.expect("command").expect("recorded");
    assert_eq!((untouched.status, untouched.claim), (CommandStatus::Processing, Some(other.claim())));

    let claimed = store.claim_commands(&second, COMMAND_TYPES, moment(3), 10).await.expect("claim");
    assert_eq!(claimed.len(), 1, "it can be claimed again");
    assert_eq!(claimed[0].claim, Some(second.claim()));
}

/// A released lease and one that has run out leave nothing behind either.
pub async fn commands_of_a_released_or_expired_lease_are_recovered(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    for releases in [true, false] {
        let command = place(&new_order());
        store.accept_command(&command).await.expect("accept");
        let lease = hold_new_lease(&*store).await;
        assert_eq!(store.claim_commands(&lease, COMMAND_TYPES, moment(1), 10).await.expect("claim").len(), 1);
        assert_eq!(store.recover_commands(moment(2), 100).await.expect("recover"), 0, "its holder lives");
        if releases {
            store.release_lease(&lease).await.expect("release");
        } else {
            store.renew_lease(&lease, Duration::ZERO).await.expect("let it run out");
        }
        assert_eq!(store.recover_commands(moment(2), 100).await.expect("recover"), 1, "its holder is gone");
        let record = store.command(&command.command_id).await.expect("command").expect("recorded");
        assert_eq!(record.status, CommandStatus::Pending);
        let direct = completed(&command, Found::Nowhere, None);
        assert_refused!(
            store.complete_command(&direct).await,
            StoreError::DuplicateCommand(_),
            "it is still recorded"
        );
        let next = hold_new_lease(&*store).await;
        assert_eq!(store.claim_commands(&next, COMMAND_TYPES, moment(3), 10).await.expect("claim").len(), 1);
        let done = completed(&command, Found::Claimed(next), None);
        store.complete_command(&done).await.expect("complete");
    }
}

/// A claim in an older epoch is refused, or it is free again at once: it never leaves a command stuck.
pub async fn a_claim_in_an_older_epoch_leaves_nothing_stuck(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (stale, fresh) = stale_and_fresh(&*store).await;
    let command = place(&new_order());
    store.accept_command(&command).await.expect("accept");
    match store.claim_commands(&stale, COMMAND_TYPES, moment(1), 10).await {
        Ok(claimed) => {
            let recovered = store.recover_commands(moment(2), 100).await.expect("recover");
            assert_eq!(recovered, claimed.len() as u64);
        }
        Err(StoreError::Fenced { .. }) => {}
        Err(other) => panic!("expected Fenced, got {other:?}"),
    }
    assert_eq!(store.claim_commands(&fresh, COMMAND_TYPES, moment(3), 10).await.expect("claim").len(), 1);
}

/// Claimed, then completed with its effect: once.
pub async fn a_claimed_command_completes_once(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let command = place(&new_order());
    store.accept_command(&command).await.expect("accept");
    let claimed = store.claim_commands(&lease, COMMAND_TYPES, moment(1), 10).await.expect("claim");
    assert_eq!(claimed.len(), 1);
    assert_eq!((&claimed[0].command, claimed[0].status_changed_at), (&command, moment(1)));
    assert_eq!(
        store.claim_commands(&lease, COMMAND_TYPES, moment(1), 10).await.expect("claim"),
        [],
        "it is claimed"
    );

    let facts =
        OrderFacts::about(&command.aggregate, 0).placed().routed(&[new_channel()]).caused_by(&command);
    let done = completed(&command, Found::Claimed(lease.clone()), Some(facts.append()));
    let result = store.complete_command(&done).await.expect("complete");
    let record = store.command(&command.command_id).await.expect("command").expect("recorded");
    assert_eq!((record.status, record.result, record.claim), (CommandStatus::Completed, Some(result), None));

    let scope = Scope::new().command(&done);
    let before = Picture::read(&*store, &scope).await;
    assert_eq!(before.flaws(), []);
    let mut again = again_with_new_events(&done);
    again.append.as_mut().expect("an append").expected = Expected::Exactly(1);
    assert_refused!(
        store.complete_command(&again).await,
        StoreError::CommandTaken(_) | StoreError::DuplicateCommand(_) | StoreError::Fenced { .. },
        "completing it again"
    );
    assert_refused!(
        store.fail_command(&failed(&command, Found::Claimed(lease.clone()), 1, None)).await,
        StoreError::CommandTaken(_) | StoreError::DuplicateCommand(_) | StoreError::Fenced { .. },
        "failing it after all"
    );
    Picture::read(&*store, &scope).await.assert_unchanged_since(&before, "a second end");
    assert_eq!(
        store.claim_commands(&lease, COMMAND_TYPES, moment(99), 10).await.expect("claim"),
        [],
        "it is done"
    );
}

/// Between the claim and the end the command was recovered and claimed by another: the sleeper cannot end it.
pub async fn a_command_that_was_taken_over_cannot_be_ended_by_the_sleeper(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let command = place(&new_order());
    store.accept_command(&command).await.expect("accept");
    let sleeper = hold_new_lease(&*store).await;
    assert_eq!(store.claim_commands(&sleeper, COMMAND_TYPES, moment(1), 10).await.expect("claim").len(), 1);
    store.renew_lease(&sleeper, Duration::ZERO).await.expect("let it run out");
    assert_eq!(store.recover_commands(moment(2), 100).await.expect("recover"), 1);

    let facts = OrderFacts::about(&command.aggregate, 0).placed().caused_by(&command);
    let late = completed(&command, Found::Claimed(sleeper.clone()), Some(facts.append()));
    let scope = Scope::new().command(&late);
    // First nobody has it, then another has it: under a lease of its own, so that only the command itself tells.
    for taken in [false, true] {
        if taken {
            let successor = hold_new_lease(&*store).await;
            assert_eq!(
                store.claim_commands(&successor, COMMAND_TYPES, moment(3), 10).await.expect("claim").len(),
                1
            );
        }
        let before = Picture::read(&*store, &scope).await;
        assert_refused!(
            store.complete_command(&late).await,
            StoreError::CommandTaken(_) | StoreError::Fenced { .. },
            "the sleeper completes"
        );
        assert_refused!(
            store.fail_command(&failed(&command, Found::Claimed(sleeper.clone()), 1, None)).await,
            StoreError::CommandTaken(_) | StoreError::Fenced { .. },
            "the sleeper fails it"
        );
        Picture::read(&*store, &scope).await.assert_unchanged_since(&before, "the sleeper");
    }
}

/// A holder that started again does not know what its earlier life had decided: under its new epoch it cannot end what
/// it claimed under the old one, before it has claimed it anew.
pub async fn a_command_of_an_earlier_epoch_cannot_be_ended_in_a_later_one(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let command = place(&new_order());
    store.accept_command(&command).await.expect("accept");
    let lease = new_lease();
    let earlier = hold(&*store, &lease, &instance("one")).await;
    assert_eq!(store.claim_commands(&earlier, COMMAND_TYPES, moment(1), 10).await.expect("claim").len(), 1);
    let later = hold(&*store, &lease, &instance("one")).await;

    let facts = OrderFacts::about(&command.aggregate, 0).placed().caused_by(&command);
    let done = completed(&command, Found::Claimed(later.clone()), Some(facts.append()));
    let scope = Scope::new().command(&done);
    let before = Picture::read(&*store, &scope).await;
    assert_refused!(
        store.complete_command(&done).await,
        StoreError::CommandTaken(_) | StoreError::Fenced { .. },
        "completing what an earlier epoch claimed"
    );
    assert_refused!(
        store.fail_command(&failed(&command, Found::Claimed(later.clone()), 1, None)).await,
        StoreError::CommandTaken(_) | StoreError::Fenced { .. },
        "failing what an earlier epoch claimed"
    );
    Picture::read(&*store, &scope).await.assert_unchanged_since(&before, "a later epoch");

    assert_eq!(store.recover_commands(moment(2), 100).await.expect("recover"), 1);
    assert_eq!(store.claim_commands(&later, COMMAND_TYPES, moment(3), 10).await.expect("claim").len(), 1);
    store.complete_command(&done).await.expect("what was claimed anew can be ended");
}

/// A failure with a due time is not claimed before it and is claimed at it; a failure without one is never claimed.
pub async fn a_failed_command_is_claimed_when_its_retry_is_due(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let command = place(&new_order());
    store.accept_command(&command).await.expect("accept");
    store.claim_commands(&lease, COMMAND_TYPES, moment(1), 10).await.expect("claim");
    let failure = failed(&command, Found::Claimed(lease.clone()), 1, Some(moment(10)));
    store.fail_command(&failure).await.expect("fail");
    let record = store.command(&command.command_id).await.expect("command").expect("recorded");
    assert_eq!((record.status, record.retry_count), (CommandStatus::Failed, 1));
    assert_eq!((record.next_retry_at, record.claim), (Some(moment(10)), None));

    let just_before = moment(10) - Duration::from_micros(1);
    assert_eq!(
        store.claim_commands(&lease, COMMAND_TYPES, just_before, 10).await.expect("claim"),
        [],
        "not before it is due"
    );
    assert_eq!(
        store.recover_commands(just_before, 100).await.expect("recover"),
        0,
        "it is not stuck, it waits"
    );
    let claimed = store.claim_commands(&lease, COMMAND_TYPES, moment(10), 10).await.expect("claim");
    assert_eq!(claimed.len(), 1, "when it is due");
    assert_eq!(claimed[0].retry_count, 1, "retries are remembered");

    let failure = failed(&command, Found::Claimed(lease.clone()), 1, None);
    store.fail_command(&failure).await.expect("fail for good");
    assert_eq!(
        store.claim_commands(&lease, COMMAND_TYPES, moment(1_000_000), 10).await.expect("claim"),
        [],
        "never"
    );
}

/// A failed command may be sent again by its sender; a sender that read an older failure is refused.
pub async fn a_failed_command_completes_when_it_is_sent_again(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let command = place(&new_order());
    store.fail_command(&failed(&command, Found::Nowhere, 0, None)).await.expect("fail");
    assert_refused!(
        store.fail_command(&failed(&command, Found::Nowhere, 0, None)).await,
        StoreError::DuplicateCommand(_),
        "failing a command that was thought to be new"
    );
    store
        .fail_command(&failed(&command, Found::Failed { retry_count: 0 }, 1, None))
        .await
        .expect("fail again");

    let effect = OrderFacts::about(&command.aggregate, 0).placed().caused_by(&command).append();
    let outdated = completed(&command, Found::Failed { retry_count: 0 }, Some(effect.clone()));
    let scope = Scope::new().command(&outdated);
    let before = Picture::read(&*store, &scope).await;
    assert_refused!(
        store.complete_command(&outdated).await,
        StoreError::CommandTaken(_),
        "an outdated sender"
    );
    Picture::read(&*store, &scope).await.assert_unchanged_since(&before, "an outdated sender");

    let current = completed(&command, Found::Failed { retry_count: 1 }, Some(effect));
    let result = store.complete_command(&current).await.expect("complete");
    assert_eq!(result, CommandResult { aggregate_version: 1, event_count: 1 });
    let record = store.command(&command.command_id).await.expect("command").expect("recorded");
    assert_eq!((record.status, record.result), (CommandStatus::Completed, Some(result)));
    assert_eq!((record.status_reason, record.status_message, record.next_retry_at), (None, None, None));
    assert_eq!(Picture::read(&*store, &scope).await.flaws(), []);
}

/// The same command twice at the same moment: one effect. Once with writers that both think the aggregate is new,
/// once with writers that do not care about its version, so that only the command id stands between them.
pub async fn the_same_command_twice_at_once_has_one_effect(fixture: &impl StoreFixture) {
    let stores = [fixture.store().await, fixture.store().await];
    for round in 0..20 {
        let mut first = OrderFacts::of_new_order().placed().command();
        if round % 2 == 1 {
            let append = first.append.as_mut().expect("an append");
            (append.expected, append.snapshot) = (Expected::Any, None);
        }
        let attempts = stores.iter().cloned().zip([first.clone(), again_with_new_events(&first)]);
        let attempts = attempts
            .map(|(store, attempt)| async move { taking_turns(|| store.complete_command(&attempt)).await });
        let mut wins = 0;
        for answer in all_at_once(attempts).await {
            match answer {
                Ok(_) => wins += 1,
                Err(StoreError::DuplicateCommand(id)) => assert_eq!(id, first.command.command_id),
                Err(StoreError::VersionConflict { .. }) => {}
                Err(other) => panic!("round {round}: {other:?}"),
            }
        }
        assert_eq!(wins, 1, "round {round}: one effect");
        assert_eq!(versions_of(&*stores[0], &first.command.aggregate).await, [1], "round {round}: one event");
    }
}

/// A command that is recorded already is refused and changes nothing, whatever it wants this time.
pub async fn a_recorded_command_has_no_second_effect(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let first = OrderFacts::of_new_order().placed().command();
    store.complete_command(&first).await.expect("complete");
    let mut again = again_with_new_events(&first);
    again.append.as_mut().expect("an append").expected = Expected::Exactly(1);
    let elsewhere = CompletedCommand {
        append: OrderFacts::of_new_order().placed().command().append,
        command: first.command.clone(),
        ..first.clone()
    };
    for second in [again, elsewhere] {
        let scope = Scope::new().command(&first).command(&second);
        let before = Picture::read(&*store, &scope).await;
        let id = &first.command.command_id;
        assert_refused!(
            store.complete_command(&second).await,
            StoreError::DuplicateCommand(duplicate) if duplicate == *id,
            "a second effect"
        );
        Picture::read(&*store, &scope).await.assert_unchanged_since(&before, "a second effect");
    }
}

/// Nothing happens is an answer too: it is recorded with no events, at the version it was decided on.
pub async fn a_command_that_changes_nothing_is_recorded_completed(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let order = new_order();
    append(&*store, &OrderFacts::about(&order, 0).placed().paid().append()).await;
    let command = place(&order);
    let nothing = CompletedCommand { decided_on: 2, ..completed(&command, Found::Nowhere, None) };
    let result = store.complete_command(&nothing).await.expect("complete");
    assert_eq!(result, CommandResult { aggregate_version: 2, event_count: 0 });
    let record = store.command(&command.command_id).await.expect("command").expect("recorded");
    assert_eq!((record.status, record.result), (CommandStatus::Completed, Some(result)));
    assert_eq!(versions_of(&*store, &order).await, [1, 2]);

    let on_nothing = completed(&place(&new_order()), Found::Nowhere, None);
    let result = store.complete_command(&on_nothing).await.expect("complete");
    assert_eq!(result, CommandResult { aggregate_version: 0, event_count: 0 });
    let loaded = store.load(&on_nothing.command.aggregate, None).await.expect("load");
    assert_eq!(loaded.aggregate, None, "an aggregate to which nothing happened does not exist");
}

/// The counts are those of the rows.
pub async fn command_counts_follow_the_statuses(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    for _ in 0..3 {
        store.accept_command(&place(&new_order())).await.expect("accept");
    }
    assert_eq!(counts(&*store).await, [3, 0, 0, 0]);
    let claimed = store.claim_commands(&lease, COMMAND_TYPES, moment(1), 2).await.expect("claim");
    assert_eq!(claimed.len(), 2, "the limit holds");
    assert_eq!(counts(&*store).await, [1, 2, 0, 0]);
    let done = completed(&claimed[0].command, Found::Claimed(lease.clone()), None);
    store.complete_command(&done).await.expect("complete");
    let failure = failed(&claimed[1].command, Found::Claimed(lease.clone()), 1, None);
    store.fail_command(&failure).await.expect("fail");
    assert_eq!(counts(&*store).await, [1, 0, 1, 1]);
    assert_eq!(store.command(&new_command_id()).await.expect("command"), None);
}

async fn counts(store: &dyn InspectedStore) -> [u64; 4] {
    let counts = store.command_counts().await.expect("counts");
    [CommandStatus::Pending, CommandStatus::Processing, CommandStatus::Completed, CommandStatus::Failed]
        .map(|status| counts.of(status))
}

/// The same command, decided once more: the same effect with event ids of its own.
fn again_with_new_events(first: &CompletedCommand) -> CompletedCommand {
    let mut again = first.clone();
    for event in again.append.iter_mut().flat_map(|append| &mut append.events) {
        event.event_id = new_event_id();
    }
    again
}

/// Commands of types that an instance does not know stay for one that does.
pub async fn commands_of_unknown_types_are_left_to_others(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let command = place(&new_order());
    store.accept_command(&command).await.expect("accept");
    for types in [&[][..], &["order.unheard"]] {
        assert_eq!(store.claim_commands(&lease, types, moment(1), 10).await.expect("claim"), []);
    }
    assert_eq!(store.claim_commands(&lease, COMMAND_TYPES, moment(1), 10).await.expect("claim").len(), 1);
}

/// What a living holder could not end, it gives back; what is not its own it cannot.
pub async fn claimed_commands_can_be_given_back(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (lease, other) = (hold_new_lease(&*store).await, hold_new_lease(&*store).await);
    let command = place(&new_order());
    let ids = std::slice::from_ref(&command.command_id);
    store.accept_command(&command).await.expect("accept");
    store.claim_commands(&lease, COMMAND_TYPES, moment(1), 10).await.expect("claim");
    assert_eq!(store.return_commands(&other, ids, moment(2)).await.expect("return"), 0, "not its own");
    assert_eq!(store.return_commands(&lease, ids, moment(2)).await.expect("return"), 1);
    assert_eq!(store.return_commands(&lease, ids, moment(2)).await.expect("return"), 0, "once");
    assert_eq!(store.claim_commands(&other, COMMAND_TYPES, moment(60), 10).await.expect("claim").len(), 1);
}

/// When the answer to a claim was lost, what its holder knows of stays claimed and everything else under the grant is due
/// again; what others hold is not touched.
pub async fn a_claim_whose_answer_was_lost_can_be_returned(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (lease, other) = (hold_new_lease(&*store).await, hold_new_lease(&*store).await);
    for _ in 0..3 {
        store.accept_command(&place(&new_order())).await.expect("accept");
    }
    let claim = async |lease: &LeaseGrant, limit: u32| {
        let claimed = store.claim_commands(lease, COMMAND_TYPES, moment(1), limit).await.expect("claim");
        claimed.into_iter().map(|record| record.command.command_id).collect::<Vec<_>>()
    };
    let (seen, unseen, others) = (claim(&lease, 1).await, claim(&lease, 1).await, claim(&other, 1).await);
    let returned = store.return_unseen_commands(&lease, &seen, moment(1)).await.expect("return");
    assert_eq!(returned, 1, "the one that nobody knows of");
    assert_eq!(claim(&lease, 10).await, unseen, "it is due again, at once");
    let returned = store.return_unseen_commands(&lease, &[], moment(1)).await.expect("return");
    assert_eq!(returned, 2, "without exceptions, all of the grant");
    let still = store.command(&others[0]).await.expect("read").expect("it is there");
    assert_eq!(still.claim, Some(other.claim()), "another's is not touched");
}

/// A command that takes down its holder again and again is given up in the end (P8).
pub async fn a_command_that_loses_its_holder_too_often_is_given_up(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = super::facts::new_lease();
    let command = place(&new_order());
    store.accept_command(&command).await.expect("accept");
    for lives in 0..3 {
        let grant = super::acts::hold(&*store, &lease, &super::facts::instance("crashing")).await;
        let claimed = store.claim_commands(&grant, COMMAND_TYPES, moment(lives), 10).await.expect("claim");
        assert_eq!(claimed.len(), 1, "life {lives}");
        // Its next life takes a higher epoch, and that tells.
        super::acts::hold(&*store, &lease, &super::facts::instance("crashing")).await;
        assert_eq!(store.recover_commands(moment(lives), 2).await.expect("recover"), 1);
    }
    let record = store.command(&command.command_id).await.expect("read").expect("it is there");
    assert_eq!((record.status, record.claim), (CommandStatus::Failed, None));
    let grant = super::acts::hold(&*store, &lease, &super::facts::instance("crashing")).await;
    assert_eq!(store.claim_commands(&grant, COMMAND_TYPES, moment(9), 10).await.expect("claim"), []);
}

/// Clean-up deletes commands that ended long enough ago and nothing else; not under a stale lease. A command that is sent
/// again after that is a new one.
pub async fn commands_that_ended_long_ago_are_cleaned_up(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let done = OrderFacts::of_new_order().placed().command();
    store.complete_command(&done).await.expect("complete");
    let [refused, retried, pending] = [(); 3].map(|()| place(&new_order()));
    store.fail_command(&failed(&refused, Found::Nowhere, 0, None)).await.expect("fail");
    store.fail_command(&failed(&retried, Found::Nowhere, 1, Some(moment(90)))).await.expect("fail");
    store.accept_command(&pending).await.expect("accept");
    let (stale, _) = stale_and_fresh(&*store).await;
    let fenced = store.clean_commands(&stale, moment(50), 100).await;
    assert_refused!(fenced, StoreError::Fenced { .. }, "cleaning under a stale lease");
    let arrived = done.command.context.occurred_at;
    assert_eq!(store.clean_commands(&lease, arrived, 100).await.expect("clean"), 0, "too recent");
    let mut deleted = 0;
    for _ in 0..3 {
        deleted += store.clean_commands(&lease, moment(50), 1).await.expect("clean");
    }
    assert_eq!(deleted, 2, "one that was completed, and one that failed for good");
    for (command, stays) in [(&done.command, false), (&refused, false), (&retried, true), (&pending, true)] {
        let found = store.command(&command.command_id).await.expect("read").is_some();
        assert_eq!(found, stays, "{command:?}");
    }
    assert_eq!(versions_of(&*store, &done.command.aggregate).await, [1], "what it led to stays");
}

/// A failed command that is sent again for later is due at once, unless somebody else has moved it.
pub async fn a_failed_command_can_be_requeued(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let command = place(&new_order());
    store.fail_command(&failed(&command, Found::Nowhere, 2, None)).await.expect("fail");
    assert!(
        !store.requeue_command(&command.command_id, 1, moment(1)).await.expect("requeue"),
        "it has moved on"
    );
    assert!(store.requeue_command(&command.command_id, 2, moment(1)).await.expect("requeue"));
    assert!(!store.requeue_command(&command.command_id, 2, moment(1)).await.expect("requeue"), "once");
    assert_eq!(store.claim_commands(&lease, COMMAND_TYPES, moment(1), 10).await.expect("claim").len(), 1);
}

/// Why a command failed may quote what somebody sent: any text can be recorded, as far as it can be kept.
pub async fn any_message_can_be_recorded(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let messages = [
        ("a\0b".to_owned(), "a"),
        ("x".repeat(100_000), "xxxx"),
        ("🦆".repeat(30_000), "🦆🦆"),
        ("\u{1b}[31m".to_owned(), ""),
    ];
    for (message, begins) in messages {
        let command = place(&new_order());
        let mut failure = failed(&command, Found::Nowhere, 0, None);
        (failure.reason, failure.message) = (message.clone(), message);
        store.fail_command(&failure).await.expect("fail");
        // And once more, over the record of the first failure.
        failure.found = Found::Failed { retry_count: 0 };
        store.fail_command(&failure).await.expect("fail again");
        let record = store.command(&command.command_id).await.expect("read").expect("it is recorded");
        let kept = record.status_message.expect("a message");
        assert!(
            kept.starts_with(begins) && !kept.contains('\0'),
            "{:?}",
            kept.chars().take(9).collect::<String>()
        );
    }
}

/// A command that waits for somebody's lock does not keep its instance from renewing its lease meanwhile (P7, P8).
pub async fn a_command_that_waits_for_a_lock_does_not_hold_its_lease(fixture: &impl StoreFixture) {
    let (store, slow) = (fixture.store().await, fixture.store().await);
    let order = new_order();
    super::acts::append(&*store, &super::facts::OrderFacts::about(&order, 0).placed().append()).await;
    let lease = hold_new_lease(&*store).await;
    let mut command = super::facts::OrderFacts::about(&order, 1).paid().command();
    store.accept_command(&command.command).await.expect("accept");
    store.claim_commands(&lease, COMMAND_TYPES, moment(1), 10).await.expect("claim");
    command.found = Found::Claimed(lease.clone());
    if !store.promises().concurrent_writers {
        // Nobody writes beside an open writer there, the heartbeat included: what is bounded is the waiting.
        store.complete_command(&command).await.expect("complete");
        return;
    }
    let mut tx = slow.begin().await.expect("begin");
    tx.append(&super::facts::OrderFacts::about(&order, 1).noted("first").append()).await.expect("append");
    let waiting = {
        let (store, command) = (std::sync::Arc::clone(&store), command.clone());
        tokio::spawn(async move { store.complete_command(&command).await })
    };
    assert!(!super::waiting::fair_chance(&waiting).await, "the command waits for the open transaction");
    super::waiting::in_time(
        "renewing the lease",
        store.renew_lease(&lease, std::time::Duration::from_secs(60)),
    )
    .await
    .expect("renew");
    tx.rollback().await.expect("roll back");
    super::waiting::answer_of(waiting).await.expect("complete");
}

/// However many may be claimed: large ones come one after the other, and the largest alone.
pub async fn a_claim_takes_so_many_bytes_and_at_least_one(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    for number in 0..4 {
        let large = NewCommand {
            command_id: CommandId::new(format!("large-{number}")).expect("a valid command id"),
            payload: payload_of(CLAIMED_BYTES / 2 + number),
            ..place(&new_order())
        };
        store.accept_command(&large).await.expect("accept");
    }
    let whole = NewCommand { payload: payload_of(CLAIMED_BYTES), ..place(&new_order()) };
    store.accept_command(&whole).await.expect("accept");
    let mut left = 5;
    while left > 0 {
        let claimed = store.claim_commands(&lease, COMMAND_TYPES, moment(1), 32).await.expect("claim");
        let bytes: usize = claimed.iter().map(|record| record.command.payload.as_text().len()).sum();
        assert!(claimed.len() == 1 || bytes as u64 <= CLAIMED_BYTES, "{} with {bytes} bytes", claimed.len());
        assert!((1..=left).contains(&claimed.len()));
        left -= claimed.len();
    }
}
