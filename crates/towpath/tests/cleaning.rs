//! What is over is deleted after its time, and nothing else: on each database.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::time::Duration;

use chrono::Utc;
use support::{Fresh, eventually};
use towpath::ids::{AggregateKey, CorrelationId, EventId, InstanceId, LeaseName};
use towpath::name::CommandName;
use towpath::ports::store::{NewTimer, StoreTx as _};
use towpath::{ChangeContext, Towpath};
use uuid::Uuid;

on_every_database!(
    timers_that_ended_and_leases_of_instances_that_are_gone_are_deleted,
    what_has_not_been_over_for_long_enough_stays,
);

async fn timers_that_ended_and_leases_of_instances_that_are_gone_are_deleted(fresh: &Fresh) {
    let app = app(fresh, Duration::ZERO).await;
    let Left { ended, waiting } = leave_things_behind(&app).await;
    let store = app.store();
    eventually("the ended timer is gone", || async {
        store.timer(ended).await.unwrap().is_none().then_some(())
    })
    .await;
    eventually("the lease of the instance that is gone is gone", || async {
        store.leases("instance/gone").await.unwrap().is_empty().then_some(())
    })
    .await;
    assert!(store.timer(waiting).await.unwrap().is_some(), "it is not due yet");
    // Others may take it again, and then its epoch must go on.
    assert_eq!(store.leases("partition/gone").await.unwrap().len(), 1);
    let own = store.leases(&format!("instance/{}", app.instance())).await.unwrap();
    assert!(own.iter().all(|lease| lease.live) && own.len() == 1, "{own:?}");
    app.stop().await;
}

async fn what_has_not_been_over_for_long_enough_stays(fresh: &Fresh) {
    let app = fresh.app().await;
    let Left { ended, .. } = leave_things_behind(&app).await;
    let (store, hour) = (app.store(), Duration::from_secs(3600));
    let lease = LeaseName::new("cleaning-by-hand").unwrap();
    let lease = store.acquire_lease(&lease, app.instance(), hour).await.unwrap().unwrap();
    assert_eq!(store.clean_timers(&lease, Utc::now() - hour, 10).await.unwrap(), 0);
    assert_eq!(store.clean_leases(&lease, &["instance/"], hour).await.unwrap(), 0);
    assert!(store.timer(ended).await.unwrap().is_some());
    assert_eq!(store.leases("instance/gone").await.unwrap().len(), 1);
    let later = Utc::now() + hour;
    assert_eq!(store.clean_timers(&lease, later, 1).await.unwrap(), 1, "one has ended");
    assert_eq!(store.clean_timers(&lease, later, 1).await.unwrap(), 0, "the other waits");
    let stale = towpath::ports::store::LeaseGrant { epoch: lease.epoch + 1, ..lease };
    assert!(store.clean_leases(&stale, &["instance/"], Duration::ZERO).await.is_err(), "fenced");
    assert_eq!(store.leases("instance/gone").await.unwrap().len(), 1);
    app.stop().await;
}

async fn app(fresh: &Fresh, horizon: Duration) -> Towpath {
    fresh.builder().clean_every(Duration::from_millis(50)).horizon(horizon).start().await.unwrap()
}

/// What a test looks for.
struct Left {
    ended: Uuid,
    waiting: Uuid,
}

/// A timer that ended and one that waits; leases that ended of an instance and of a partition.
async fn leave_things_behind(app: &Towpath) -> Left {
    let gone = InstanceId::new("gone").unwrap();
    for name in ["instance/gone", "partition/gone"] {
        let name = LeaseName::new(name).unwrap();
        let grant = app.store().acquire_lease(&name, &gone, Duration::from_secs(60)).await.unwrap().unwrap();
        app.store().release_lease(&grant).await.unwrap();
    }
    let context = ChangeContext::new(Utc::now(), CorrelationId::of_new_flow(Uuid::now_v7()));
    let key = AggregateKey::new("order", "o-1").unwrap();
    let timer = || {
        let due_at = Utc::now() + Duration::from_secs(3600);
        let command = CommandName::infer("order.cancel").unwrap();
        NewTimer::of_deadline(EventId(Uuid::now_v7()), due_at, command, key.clone(), &context)
    };
    let (ended, waiting) = (timer(), timer());
    let mut transaction = app.store().open_transaction().await.unwrap();
    for timer in [&ended, &waiting] {
        transaction.schedule(timer).await.unwrap();
    }
    assert!(transaction.cancel(ended.timer_id, Utc::now()).await.unwrap());
    transaction.finish().await.unwrap();
    Left { ended: ended.timer_id, waiting: waiting.timer_id }
}
