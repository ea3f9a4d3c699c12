//! Cleaning deletes what has ended long enough ago, under the lease of the cleaner, and nothing else.

use std::time::Duration;

use towpath_core::ids::LeaseName;
use towpath_core::ports::store::{Store, StoreError, TimerOutcome};
use uuid::Uuid;

use super::StoreFixture;
use super::acts::{assert_refused, hold, hold_new_lease, schedule, stale_and_fresh};
use super::facts::{COMMAND_TYPES, instance, moment, new_order, timer};
use super::waiting::eventually;

/// Timers that ended long ago go; what waits, or has just ended, stays.
pub async fn timers_that_ended_long_ago_are_cleaned_up(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let timers = [1, 2, 900].map(|due| timer(&new_order(), moment(due)));
    schedule(&*store, &timers).await;
    store.claim_timers(&lease, COMMAND_TYPES, moment(10), 10).await.expect("claim");
    for (timer, ended_at) in timers.iter().zip([5, 20]) {
        let ended = store.finish_timer(&lease, timer.timer_id, &TimerOutcome::Succeeded, moment(ended_at));
        ended.await.expect("finish");
    }
    let (stale, _) = stale_and_fresh(&*store).await;
    let refused = store.clean_timers(&stale, moment(15), 10).await;
    assert_refused!(refused, StoreError::Fenced { .. }, "cleaning under a stale lease");
    assert_eq!(store.clean_timers(&lease, moment(15), 10).await.expect("clean"), 1);
    assert_eq!(store.clean_timers(&lease, moment(15), 10).await.expect("clean"), 0);
    let mut there = Vec::new();
    for timer in &timers {
        there.push(store.timer(timer.timer_id).await.expect("read").is_some());
    }
    assert_eq!(there, [false, true, true]);
}

/// Units of work are forgotten by when they were begun; from then on one of the same id is new.
pub async fn units_begun_long_ago_are_cleaned_up(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (lease, unit_id) = (hold_new_lease(&*store).await, Uuid::now_v7());
    assert!(is_new(&*store, unit_id).await);
    let hour = Duration::from_secs(3600);
    let now = store.now().await.expect("the database's time");
    assert_eq!(store.clean_units(&lease, now - hour, 10).await.expect("clean"), 0);
    assert!(!is_new(&*store, unit_id).await, "it was begun a moment ago");
    let (stale, _) = stale_and_fresh(&*store).await;
    let refused = store.clean_units(&stale, now + hour, 10).await;
    assert_refused!(refused, StoreError::Fenced { .. }, "cleaning under a stale lease");
    assert_eq!(store.clean_units(&lease, now + hour, 10).await.expect("clean"), 1);
    assert!(is_new(&*store, unit_id).await);
}

/// Leases of instances that are gone are forgotten; those that live, or that others may take again, are not.
pub async fn leases_of_instances_that_are_gone_are_cleaned_up(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let name = |text: &str| LeaseName::new(text).expect("a lease name");
    for text in ["instance/gone", "partition/7"] {
        let taken = store.acquire_lease(&name(text), &instance("gone"), Duration::ZERO).await;
        taken.expect("acquire").expect("it is free");
    }
    hold(&*store, &name("instance/living"), &instance("living")).await;
    let clean = async || store.clean_leases(&lease, &["instance/"], Duration::ZERO).await.expect("clean");
    let ago = store.clean_leases(&lease, &["instance/"], Duration::from_secs(3600)).await.expect("clean");
    assert_eq!(ago, 0, "it was there a moment ago");
    let deleted =
        eventually("the lease is over", || async { Some(clean().await).filter(|count| *count > 0) });
    assert_eq!(deleted.await, 1);
    let mut left = Vec::new();
    for text in ["instance/", "partition/"] {
        left.extend(store.leases(text).await.expect("leases").into_iter().map(|standing| standing.lease));
    }
    assert_eq!(left, [name("instance/living"), name("partition/7")]);
    let (stale, _) = stale_and_fresh(&*store).await;
    let refused = store.clean_leases(&stale, &["instance/"], Duration::ZERO).await;
    assert_refused!(refused, StoreError::Fenced { .. }, "cleaning under a stale lease");
}

async fn is_new(store: &dyn Store, unit_id: Uuid) -> bool {
    let Some(tx) = store.begin_unit(unit_id).await.expect("begin a unit") else { return false };
    tx.commit().await.expect("commit");
    true
}
