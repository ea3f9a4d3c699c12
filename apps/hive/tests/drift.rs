//! Drift after READY: recorded by default, and corrected where that is asked for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::time::Duration;

use towpath_hive::HiveSettings;
use towpath_hive::gateway::Observed;
use towpath_hive::service::{Service, ServiceStatus};
use towpath_hive::spec::{ServiceSpec, SpecHash};
use towpath_hive::targets::DRIFT_AGAIN;

use support::{Running, at_once, eventually, resource, settings};

async fn ready(settings: HiveSettings) -> (Running, String, SpecHash) {
    let running = Running::with("sqlite", "local", settings, at_once(), |builder| builder).await;
    let id = running.create("cart").await;
    let service: Service = running.reaches(&id, ServiceStatus::Ready).await;
    running.quiet().await;
    (running, id, service.desired_spec_hash)
}

fn other() -> ServiceSpec {
    ServiceSpec { image: "registry.example/by-hand:1".to_owned(), ..ServiceSpec::default() }
}

fn there(running: &Running) -> Option<SpecHash> {
    match running.cluster.look(&resource("cart")).unwrap() {
        Observed::Found(found) => found.spec_hash,
        Observed::NotFound => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drift_is_not_corrected_unless_that_is_asked_for() {
    assert!(!HiveSettings::default().correct_drift);
    let (running, id, wanted) = ready(settings()).await;
    running.cluster.edit_by_hand(&resource("cart"), other()).unwrap();
    running.quiet().await;
    assert_eq!(there(&running), Some(other().hash()));
    running.cluster.delete_by_hand(&resource("cart")).unwrap();
    running.quiet().await;
    assert_eq!(there(&running), None);
    let service = running.service(&id).await;
    assert_eq!((service.status, service.desired_spec_hash), (Some(ServiceStatus::Ready), wanted));
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_edited_or_deleted_by_hand_is_brought_back() {
    // A correction is not repeated within an interval.
    let settings = HiveSettings { correct_drift: true, interval: Duration::from_millis(300), ..settings() };
    let (running, id, wanted) = ready(settings).await;
    running.cluster.edit_by_hand(&resource("cart"), other()).unwrap();
    eventually("it is brought back", || async { (there(&running).as_ref() == Some(&wanted)).then_some(()) })
        .await;
    running.quiet().await;
    let before = running.names(&id).await;

    running.cluster.delete_by_hand(&resource("cart")).unwrap();
    eventually("it is made again", || async { (there(&running).as_ref() == Some(&wanted)).then_some(()) })
        .await;
    running.quiet().await;
    let service = running.service(&id).await;
    assert_eq!(service.status, Some(ServiceStatus::Ready), "no state was left");
    let snapshot = service.snapshot.unwrap();
    assert!(snapshot.present && snapshot.hash_match, "{snapshot:?}");
    assert_eq!(service.purged_at, None, "it is there again");
    // That somebody has deleted it is a fact all the same, and no others than those of looks are added.
    let after = running.names(&id).await;
    assert!(after[before.len()..].contains(&"service.external.purged".to_owned()), "{after:?}");
    let of_looks = ["service.snapshot.updated", "service.external.purged"];
    assert!(after[7..].iter().all(|name| of_looks.contains(&name.as_str())), "{after:?}");
    let looks = running.hive.looks(running.app.store(), &id).await.unwrap();
    assert_eq!(looks.failure, None, "all is well");
    running.app.stop().await;
}

/// Two who put each other right would do nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_changed_again_at_once_is_told_and_not_fought_over() {
    let settings = HiveSettings { correct_drift: true, interval: Duration::from_secs(3600), ..settings() };
    let (running, id, wanted) = ready(settings).await;
    running.cluster.edit_by_hand(&resource("cart"), other()).unwrap();
    eventually("it is brought back", || async { (there(&running).as_ref() == Some(&wanted)).then_some(()) })
        .await;
    running.cluster.edit_by_hand(&resource("cart"), other()).unwrap();
    let failure = eventually("it is told", || async {
        let looks = running.hive.looks(running.app.store(), &id).await.unwrap();
        looks.failure.filter(|failure| failure.code == DRIFT_AGAIN)
    })
    .await;
    assert!(failure.message.contains("changed it again"), "{}", failure.message);
    assert_eq!(there(&running), Some(other().hash()));
    running.app.stop().await;
}

/// What somebody has made in place of ours is not ours to change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_made_in_its_place_is_left_alone() {
    let settings = HiveSettings { correct_drift: true, ..settings() };
    let (running, id, _) = ready(settings).await;
    running.cluster.delete_by_hand(&resource("cart")).unwrap();
    running.cluster.make_by_hand(&resource("cart"), other()).unwrap();
    eventually("it is seen", || async { (!running.service(&id).await.snapshot?.present).then_some(()) })
        .await;
    running.quiet().await;
    assert_eq!(there(&running), Some(other().hash()));
    running.app.stop().await;
}
