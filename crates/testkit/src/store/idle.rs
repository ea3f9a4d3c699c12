//! A session elsewhere that has begun a transaction and forgotten it (P8).

use std::sync::Arc;

use towpath_core::ports::probe::NoProbe;
use towpath_core::ports::store::{Found, InboxMark, TimerOutcome};

use super::StoreFixture;
use super::acts::{
    LONG, append, claim, drain, hold_new_lease, record, result, retry, schedule, sequence_all, whole_log,
};
use super::audit::{Scope, check_finished};
use super::facts::COMMAND_TYPES;
use super::facts::{
    OrderFacts, completed, handler, instance, moment, new_channel, new_event_id, new_lease, new_order, place,
    timer,
};
use super::waiting::in_time;

/// Everything goes on beside it: writing, sequencing, delivering, leases, deliveries, timers, even the start of a
/// new instance.
pub async fn an_idle_transaction_elsewhere_stalls_nothing(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    append(&*store, &OrderFacts::of_new_order().placed().append()).await;
    let idle = fixture.idle_in_transaction().await;

    let work = async {
        let newcomer = fixture.connect(Arc::new(NoProbe)).await;
        assert!(
            newcomer.migrate().await.expect("a new instance starts").is_empty(),
            "nothing is left to apply"
        );
        newcomer.ready().await.expect("ready");

        let lease = hold_new_lease(&*store).await;
        let channel = new_channel();
        let mut scope = Scope::new();
        for round in 1..=20 {
            let facts = OrderFacts::of_new_order().placed().paid().routed(std::slice::from_ref(&channel));
            let written = facts.command();
            scope = scope.command(&written);
            store.complete_command(&written).await.expect("complete");
            assert_eq!(sequence_all(&*store, &lease).await, if round == 1 { 3 } else { 2 });
            let items = claim(&*store, &channel, moment(9)).await;
            assert_eq!(items.len(), 2);
            record(&*store, &lease, &channel, moment(9), &[result(&items[0], retry(moment(9), true))]).await;
            assert_eq!(drain(&*store, &lease, &channel, moment(9)).await.len(), 2);
            store.renew_lease(&lease, LONG).await.expect("renew");
        }
        check_finished(&*store, &scope).await;

        let accepted = place(&new_order());
        store.accept_command(&accepted).await.expect("accept");
        assert_eq!(
            store.claim_commands(&lease, COMMAND_TYPES, moment(9), 10).await.expect("claim commands").len(),
            1
        );
        store
            .complete_command(&completed(&accepted, Found::Claimed(lease.clone()), None))
            .await
            .expect("complete");
        assert_eq!(store.recover_commands(moment(9), 100).await.expect("recover"), 0);

        let mut tx = store.begin().await.expect("begin");
        let first = tx.mark(new_event_id(), &handler("idle"), moment(9)).await.expect("mark");
        assert_eq!(first, InboxMark::First);
        tx.commit().await.expect("commit");

        let due = timer(&new_order(), moment(5));
        schedule(&*store, std::slice::from_ref(&due)).await;
        assert_eq!(
            store.claim_timers(&lease, &["order.cancel"], moment(9), 10).await.expect("claim timers").len(),
            1
        );
        store.finish_timer(&lease, due.timer_id, &TimerOutcome::Succeeded, moment(9)).await.expect("finish");

        let other = new_lease();
        let grant =
            store.acquire_lease(&other, &instance("one"), LONG).await.expect("acquire").expect("free");
        store.release_lease(&grant).await.expect("release");
        assert!(store.acquire_lease(&other, &instance("two"), LONG).await.expect("acquire").is_some());
        assert_eq!(whole_log(&*store).await.len(), 41);
    };
    in_time("working beside an idle transaction", work).await;
    drop(idle);
}
