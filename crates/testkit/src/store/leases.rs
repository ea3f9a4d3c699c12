//! Leases: one holder at a time, and whoever held it before is refused by the epoch (P7).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use towpath_core::ids::{ChannelName, LeaseName};
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::{
    CompletedCommand, Found, InspectedStore, LeaseGrant, OutboxOutcome, OutboxResult, StoreError,
    StoreResult, TimerOutcome,
};

use super::StoreFixture;
use super::acts::{
    LONG, append, assert_refused, claim, hold, hold_new_lease, result, schedule, sequence_all,
    stale_and_fresh,
};
use super::audit::{Picture, Scope};
use super::facts::COMMAND_TYPES;
use super::facts::{OrderFacts, completed, failed, instance, moment, new_channel, new_lease, place, timer};
use super::waiting::{all_at_once, interleave, taking_turns};
use crate::probe::PauseProbe;

/// Whoever asks the database for its time gets the same, and it goes on.
pub async fn all_stores_of_a_database_have_one_time(fixture: &impl StoreFixture) {
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(fixture.store().await);
    }
    let mut last = stores[0].now().await.expect("the time");
    for store in stores.iter().chain(&stores) {
        let now = store.now().await.expect("the time");
        assert!(now >= last, "{now} after {last}");
        last = now;
    }
    let ahead = last - stores[0].now().await.expect("the time");
    assert!(ahead.num_seconds().abs() < 60, "{ahead}");
}

/// Many leases are given back at once: those still held are free, those that changed hands are not disturbed.
pub async fn many_leases_are_released_together(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (stale, fresh) = stale_and_fresh(&*store).await;
    let mut grants = vec![stale];
    for _ in 0..3 {
        grants.push(hold_new_lease(&*store).await);
    }
    store.release_leases(&grants).await.expect("release");
    for grant in &grants[1..] {
        let next = hold(&*store, &grant.lease, &instance("two")).await;
        assert_eq!(next.epoch, grant.epoch + 1, "free at once, and the epoch goes on");
    }
    let disturbed = store.acquire_lease(&fresh.lease, &instance("two"), LONG).await.expect("acquire");
    assert_eq!(disturbed, None, "the successor holds what it took");
    store.renew_lease(&fresh, LONG).await.expect("renew");
    store.release_leases(&[]).await.expect("nothing to release");
}

/// While it is held, nobody else gets it; other leases are not concerned.
pub async fn a_live_lease_is_refused_to_others(fixture: &impl StoreFixture) {
    let (here, there) = (fixture.store().await, fixture.store().await);
    let lease = new_lease();
    let grant = hold(&*here, &lease, &instance("one")).await;
    assert_eq!(grant.lease, lease);
    assert!(grant.epoch > 0, "0 is nobody's epoch");
    assert_eq!(there.acquire_lease(&lease, &instance("two"), LONG).await.expect("acquire"), None);
    here.renew_lease(&grant, LONG).await.expect("the refused attempt has not disturbed the holder");
    hold(&*there, &new_lease(), &instance("two")).await;
}

/// A holder that starts again gets its lease at once, and what its earlier life still does is refused.
pub async fn a_holder_that_acquires_again_raises_the_epoch(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = new_lease();
    let first = hold(&*store, &lease, &instance("one")).await;
    let second = hold(&*store, &lease, &instance("one")).await;
    assert!(second.epoch > first.epoch);
    assert_refused!(store.renew_lease(&first, LONG).await, StoreError::Fenced { .. }, "its earlier life");
    store.renew_lease(&second, LONG).await.expect("its present life");
}

/// Many leases are taken and renewed in one go: those still held live on, those that changed hands are told apart.
pub async fn many_leases_are_renewed_together(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let prefix = format!("many/{}/", uuid::Uuid::now_v7());
    let name = |number: u32| LeaseName::new(format!("{prefix}{number}")).expect("a lease name");
    let other = hold(&*store, &name(9), &instance("two")).await;
    let wanted: Vec<LeaseName> = (0..5).chain([9]).map(name).collect();
    let grants = store.acquire_leases(&wanted, &instance("one"), Duration::ZERO).await.expect("acquire");
    assert_eq!(grants.len(), 5, "all but the one that another holds");
    store.release_lease(&other).await.expect("release");
    assert!(store.leases(&prefix).await.expect("list").iter().all(|lease| !lease.live), "they have run out");
    let taken = hold(&*store, &name(3), &instance("two")).await;
    let held = store.renew_leases(&grants, LONG).await.expect("renew");
    let expected: Vec<_> = grants.iter().filter(|grant| grant.lease != name(3)).cloned().collect();
    assert_eq!(held, expected, "the one that changed hands is not held any more");
    let standings = store.leases(&prefix).await.expect("list");
    assert_eq!(standings.iter().filter(|lease| lease.live).count(), 5);
    let third = standings.iter().find(|lease| lease.lease == name(3)).expect("it is listed");
    assert_eq!((&third.holder, third.epoch), (&instance("two"), taken.epoch));
    assert!(store.leases("many/nobody").await.expect("list").is_empty());
}

/// A lease that has run out is free, also when it ran out by a renewal.
pub async fn an_expired_lease_is_taken_over_with_a_higher_epoch(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = new_lease();
    let acquired =
        store.acquire_lease(&lease, &instance("one"), Duration::ZERO).await.expect("acquire").expect("free");
    let taken_over = hold(&*store, &lease, &instance("two")).await;
    assert!(taken_over.epoch > acquired.epoch);
    assert_refused!(
        store.renew_lease(&acquired, LONG).await,
        StoreError::Fenced { .. },
        "a lease of another"
    );
    assert_eq!(store.acquire_lease(&lease, &instance("one"), LONG).await.expect("acquire"), None);

    store.renew_lease(&taken_over, Duration::ZERO).await.expect("renew for no time");
    assert!(hold(&*store, &lease, &instance("three")).await.epoch > taken_over.epoch);
}

/// A lease that was given back is free at once. Its epoch goes on: an epoch is never given twice.
pub async fn a_released_lease_is_free_and_its_epoch_goes_on(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = new_lease();
    let mut epoch = 0;
    for holder in ["one", "two", "one"] {
        let grant = hold(&*store, &lease, &instance(holder)).await;
        assert!(grant.epoch > epoch, "an epoch that was given before would let an earlier holder in");
        epoch = grant.epoch;
        store.release_lease(&grant).await.expect("release");
        store.release_lease(&grant).await.expect("releasing again does nothing");
    }
}

/// Giving back what has changed hands does nothing.
pub async fn a_stale_release_does_nothing(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (stale, fresh) = stale_and_fresh(&*store).await;
    store.release_lease(&stale).await.expect("a stale release is no error");
    store.renew_lease(&fresh, LONG).await.expect("the holder still holds it");
    assert_eq!(store.acquire_lease(&fresh.lease, &instance("third"), LONG).await.expect("acquire"), None);
}

/// Every effect of a holder that slept is refused, and no table has changed.
pub async fn a_stale_holder_is_fenced_everywhere_and_changes_nothing(fixture: &impl StoreFixture) {
    let (store, fresh) = fenced_everywhere(fixture, |store, stale| async move {
        store.renew_lease(&stale, Duration::ZERO).await.expect("let it run out");
    })
    .await;
    assert_eq!(sequence_all(&*store, &fresh).await, 1, "the successor does the work");
    assert_eq!(
        store.recover_commands(moment(9), 100).await.expect("recover"),
        2,
        "what the sleeper had is free"
    );
}

/// A failover has lost that a lease was taken: the next holder is given the same epoch, and is the only one all the same.
pub async fn a_holder_of_the_same_epoch_is_fenced_everywhere(fixture: &impl StoreFixture) {
    let (store, fresh) =
        fenced_everywhere(fixture, |_, _| async { fixture.come_back_from_an_older_copy().await }).await;
    assert_eq!(sequence_all(&*store, &fresh).await, 1, "the successor does the work");
}

/// Lets a holder do all that can be done, lose its lease and try again; answers the store and its successor.
async fn fenced_everywhere<F: Future<Output = ()>>(
    fixture: &impl StoreFixture,
    lose: impl FnOnce(Arc<dyn InspectedStore>, LeaseGrant) -> F,
) -> (Arc<dyn InspectedStore>, LeaseGrant) {
    let store = fixture.store().await;
    let (lease, channel) = (new_lease(), new_channel());
    let stale = hold(&*store, &lease, &instance("sleeper")).await;

    let sent = OrderFacts::of_new_order().placed().routed(std::slice::from_ref(&channel)).append();
    append(&*store, &sent).await;
    let items = claim(&*store, &channel, moment(9)).await;
    let (first, second) = (OrderFacts::of_new_order().placed(), place(&super::facts::new_order()));
    let command = place(&first.clone().append().aggregate);
    let effect = first.routed(std::slice::from_ref(&channel)).caused_by(&command).append();
    for command in [&command, &second] {
        store.accept_command(command).await.expect("accept");
    }
    assert_eq!(store.claim_commands(&stale, COMMAND_TYPES, moment(1), 10).await.expect("claim").len(), 2);
    let due = timer(&sent.aggregate, moment(1));
    schedule(&*store, std::slice::from_ref(&due)).await;
    assert_eq!(store.claim_timers(&stale, &["order.cancel"], moment(1), 10).await.expect("claim").len(), 1);

    lose(Arc::clone(&store), stale.clone()).await;
    let fresh = hold(&*store, &lease, &instance("successor")).await;
    let completed = completed(&command, Found::Claimed(stale.clone()), Some(effect));
    let mut scope = Scope::new().append(&sent).command(&completed);
    scope.commands.insert(second.command_id.clone());
    scope.timers.insert(due.timer_id);
    let before = Picture::read(&*store, &scope).await;

    assert_refused!(store.sequence(&stale, 10).await, StoreError::Fenced { .. }, "sequence");
    assert_refused!(store.renew_lease(&stale, LONG).await, StoreError::Fenced { .. }, "renew");
    for outcome in [OutboxOutcome::Sent, super::acts::retry(moment(20), true), super::acts::given_up(true)] {
        let results = [result(&items[0], outcome)];
        let recorded = store.record_outbox(std::slice::from_ref(&stale), &channel, moment(9), &results).await;
        assert_refused!(recorded, StoreError::Fenced { .. }, "record_outbox");
    }
    assert_refused!(
        store.complete_command(&completed).await,
        StoreError::Fenced { .. } | StoreError::CommandTaken(_),
        "complete_command"
    );
    assert_refused!(
        store.fail_command(&failed(&second, Found::Claimed(stale.clone()), 1, None)).await,
        StoreError::Fenced { .. } | StoreError::CommandTaken(_),
        "fail_command"
    );
    let failure =
        TimerOutcome::Failed { error_code: "late".into(), error_message: "Late.".into(), retry_at: None };
    for outcome in [TimerOutcome::Succeeded, failure] {
        let finished = store.finish_timer(&stale, due.timer_id, &outcome, moment(9)).await;
        assert_refused!(finished, StoreError::Fenced { .. }, "finish_timer");
    }
    let ids = [command.command_id.clone(), second.command_id.clone()];
    assert_eq!(store.return_commands(&stale, &ids, moment(9)).await.expect("give back"), 0);
    assert_eq!(store.return_unseen_commands(&stale, &[], moment(9)).await.expect("give back"), 0);
    assert_eq!(store.return_unseen_timers(&stale, &[], moment(9)).await.expect("give back"), 0);
    assert_eq!(store.renew_leases(std::slice::from_ref(&stale), LONG).await.expect("renew"), []);
    store.release_lease(&stale).await.expect("a stale release does nothing");
    store.release_leases(std::slice::from_ref(&stale)).await.expect("nor of many");
    Picture::read(&*store, &scope).await.assert_unchanged_since(&before, "a stale holder");
    store.renew_lease(&fresh, LONG).await.expect("the successor still holds it");
    (store, fresh)
}

/// Two that want the same leases in opposite orders take turns: neither is told that it was in the other's way.
pub async fn leases_wanted_in_any_order_are_taken_without_a_deadlock(fixture: &impl StoreFixture) {
    let prefix = format!("order/{}/", uuid::Uuid::now_v7());
    let names: Vec<LeaseName> =
        (0..40).map(|number| LeaseName::new(format!("{prefix}{number}")).expect("a lease name")).collect();
    let backwards: Vec<LeaseName> = names.iter().rev().cloned().collect();
    let mut takers = Vec::new();
    for (holder, wanted) in
        [("one", names.clone()), ("two", backwards.clone()), ("one", backwards), ("two", names)]
    {
        let store = fixture.store().await;
        takers.push(async move {
            for _ in 0..25 {
                let grants = store.acquire_leases(&wanted, &instance(holder), Duration::ZERO).await;
                let grants = grants.expect("nobody is in a deadlock");
                store.release_leases(&grants).await.expect("release");
            }
        });
    }
    all_at_once(takers).await;
}

/// A command that a holder sends at once, without having claimed it, is refused when the lease is no longer its own.
pub async fn a_command_under_a_lost_lease_changes_nothing(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (stale, fresh) = stale_and_fresh(&*store).await;
    for facts in [Some(OrderFacts::of_new_order().placed().append()), None] {
        let order = facts.as_ref().map_or_else(super::facts::new_order, |facts| facts.aggregate.clone());
        let command = completed(&place(&order), Found::Nowhere, facts);
        let scope = Scope::new().command(&command);
        let before = Picture::read(&*store, &scope).await;
        let late = CompletedCommand { fence: Some(stale.clone()), ..command.clone() };
        assert_refused!(store.complete_command(&late).await, StoreError::Fenced { .. }, "a lost lease");
        Picture::read(&*store, &scope).await.assert_unchanged_since(&before, "a lost lease");
        let in_time = CompletedCommand { fence: Some(fresh.clone()), ..command };
        store.complete_command(&in_time).await.expect("the holder may");
        assert!(store.command(&in_time.command.command_id).await.expect("read").is_some());
    }
}

/// A batch of results under several leases is refused when one of them is stale.
pub async fn results_are_written_under_every_lease_or_not_at_all(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let channel = new_channel();
    let held = hold_new_lease(&*store).await;
    let (stale, fresh) = stale_and_fresh(&*store).await;
    let sent = OrderFacts::of_new_order().placed().routed(std::slice::from_ref(&channel)).append();
    append(&*store, &sent).await;
    let items = claim(&*store, &channel, moment(9)).await;
    let results = [result(&items[0], OutboxOutcome::Sent)];
    let scope = Scope::new().append(&sent);
    let before = Picture::read(&*store, &scope).await;
    for leases in [[held.clone(), stale.clone()], [stale.clone(), held.clone()]] {
        let recorded = store.record_outbox(&leases, &channel, moment(9), &results).await;
        assert_refused!(recorded, StoreError::Fenced { .. }, "one stale lease of two");
    }
    let unknown = LeaseGrant { lease: new_lease(), holder: instance("nobody"), epoch: 1 };
    let recorded = store.record_outbox(&[held.clone(), unknown], &channel, moment(9), &results).await;
    assert_refused!(recorded, StoreError::Fenced { .. }, "a lease that nobody ever held");
    Picture::read(&*store, &scope).await.assert_unchanged_since(&before, "a refused batch");
    store.record_outbox(&[held, fresh], &channel, moment(9), &results).await.expect("both are held");
}

/// A lease that has run out is taken over while its holder, late but not yet fenced, stands still between any two
/// statements. Once the takeover is answered, nothing that the earlier holder did becomes true any more: it was
/// true before, or it is refused.
pub async fn a_takeover_falls_before_or_after_what_the_holder_does(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    for pick in 0..3 {
        for pause_at in 0.. {
            let probe = Arc::new(PauseProbe::new(pause_at));
            let slow = fixture.connect(Arc::clone(&probe) as Arc<dyn Probe>).await;
            let (lease, channel) = (new_lease(), new_channel());
            let stale = hold(&*store, &lease, &instance("sleeper")).await;
            let sent = OrderFacts::of_new_order().placed().routed(std::slice::from_ref(&channel)).append();
            append(&*store, &sent).await;
            let items = claim(&*store, &channel, moment(9)).await;
            let effect = OrderFacts::of_new_order().placed();
            let command = place(&effect.clone().append().aggregate);
            store.accept_command(&command).await.expect("accept");
            store.claim_commands(&stale, COMMAND_TYPES, moment(1), 10).await.expect("claim");
            let effect = effect.caused_by(&command).append();
            let completed = completed(&command, Found::Claimed(stale.clone()), Some(effect));
            let scope = Scope::new().append(&sent).command(&completed);
            store.renew_lease(&stale, Duration::ZERO).await.expect("let it run out");

            let act = match pick {
                0 => Act::Sequence,
                1 => Act::Record(channel, result(&items[0], OutboxOutcome::Sent)),
                _ => Act::Complete(Box::new(completed)),
            };
            let what = format!("{} paused before statement {pause_at}", act.name());
            let late = async move { taking_turns(|| act.run(&*slow, &stale)).await };
            let takeover = {
                let (store, scope) = (Arc::clone(&store), scope.clone());
                async move {
                    let successor = instance("successor");
                    let grant = taking_turns(|| store.acquire_lease(&lease, &successor, LONG)).await;
                    let grant = grant.expect("acquire").expect("it has run out");
                    (grant, Picture::read(&*store, &scope).await)
                }
            };
            let (done, (fresh, taken_over), paused) = interleave(&probe, late, takeover).await;
            match done {
                Ok(()) | Err(StoreError::Fenced { .. } | StoreError::CommandTaken(_)) => {}
                Err(other) => panic!("{what}: {other:?}"),
            }
            Picture::read(&*store, &scope).await.assert_unchanged_since(&taken_over, &what);

            sequence_all(&*store, &fresh).await;
            store.recover_commands(moment(9), 100).await.expect("recover");
            if !paused {
                break;
            }
        }
    }
}

/// Something that is done under a lease.
enum Act {
    Sequence,
    Record(ChannelName, OutboxResult),
    Complete(Box<CompletedCommand>),
}

impl Act {
    fn name(&self) -> &'static str {
        match self {
            Self::Sequence => "sequence",
            Self::Record(..) => "record_outbox",
            Self::Complete(_) => "complete_command",
        }
    }

    async fn run(&self, store: &dyn InspectedStore, grant: &LeaseGrant) -> StoreResult<()> {
        match self {
            Self::Sequence => store.sequence(grant, 100).await.map(drop),
            Self::Record(channel, result) => {
                let results = std::slice::from_ref(result);
                store.record_outbox(std::slice::from_ref(grant), channel, moment(9), results).await
            }
            Self::Complete(completed) => store.complete_command(completed).await.map(drop),
        }
    }
}

/// Eight instances want the same lease at the same moment: one gets it. First when it never existed, then when it
/// has run out.
pub async fn one_of_eight_contenders_gets_the_lease(fixture: &impl StoreFixture) {
    let mut stores = Vec::new();
    for _ in 0..8 {
        stores.push(fixture.store().await);
    }
    for round in 0..10 {
        let lease = new_lease();
        if round % 2 == 1 {
            let expired = stores[0].acquire_lease(&lease, &instance("gone"), Duration::ZERO).await;
            expired.expect("acquire").expect("free");
        }
        let contenders =
            stores.iter().enumerate().map(|(number, store)| contend(Arc::clone(store), number, &lease));
        let grants: Vec<_> =
            all_at_once(contenders.collect::<Vec<_>>()).await.into_iter().flatten().collect();
        assert_eq!(grants.len(), 1, "round {round}: {grants:?}");
        stores[0].renew_lease(&grants[0], LONG).await.expect("the grant is good");
    }
}

fn contend(
    store: Arc<dyn towpath_core::ports::store::InspectedStore>,
    number: usize,
    lease: &LeaseName,
) -> impl Future<Output = Option<LeaseGrant>> + Send + use<> {
    let (lease, holder) = (lease.clone(), instance(format!("contender-{number}")));
    async move { taking_turns(|| store.acquire_lease(&lease, &holder, LONG)).await.expect("acquire") }
}
