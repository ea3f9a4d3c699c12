//! Each flow emits exactly the source's events in their order, with what H10 adds at its place, on each transport.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::time::Duration;

use towpath::ids::CorrelationId;
use towpath::retry::RetryPolicy;
use towpath::{Aggregate, ChannelPolicy};
use towpath_hive::HiveSettings;
use towpath_hive::gateway::Observed;
use towpath_hive::gateway::simulated::{Fates, SimulatedSettings};
use towpath_hive::knative::KnativeService;
use towpath_hive::namespace::Namespace;
use towpath_hive::record::ServiceRecord;
use towpath_hive::service::{DeleteAsked, ServiceCommand, ServiceStatus, UpdateAsked};

use support::{Running, asked, at_once, eventually, resource, settings, update};

const CREATED: [&str; 7] = [
    "service.creation.requested",
    "service.spec.accepted",
    "service.spec.apply.started",
    "service.spec.applied",
    "service.snapshot.updated",
    "service.convergence.confirmed",
    "service.ready",
];
const UPDATED: [&str; 8] = [
    "service.update.requested",
    "service.spec.accepted",
    "service.spec.apply.started",
    "service.spec.applied",
    "service.snapshot.updated",
    "service.convergence.confirmed",
    "service.ready",
    "service.updated",
];
const DELETED: [&str; 4] =
    ["service.deletion.requested", "service.deletion.marked", "service.snapshot.updated", "service.deleted"];
const FAILED: [&str; 7] = [
    "service.creation.requested",
    "service.spec.accepted",
    "service.spec.apply.started",
    "service.spec.applied",
    "service.snapshot.updated",
    "service.convergence.failed",
    "service.failed",
];

/// Waits until nothing follows any more; then a service has exactly these events.
async fn emits(running: &Running, id: &str, expected: &[&str]) {
    eventually(&format!("{expected:?}"), || async {
        (running.names(id).await.len() >= expected.len()).then_some(())
    })
    .await;
    running.quiet().await;
    assert_eq!(running.names(id).await, expected);
}

fn joined(parts: &[&[&'static str]]) -> Vec<&'static str> {
    parts.concat()
}

async fn a_whole_life(database: &str, broker: &str) {
    let running = Running::on(database, broker).await;
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    emits(&running, &id, &CREATED).await;

    running.send(&id, update("registry.example/cart:2")).await.unwrap();
    running.reaches(&id, ServiceStatus::Ready).await;
    emits(&running, &id, &joined(&[&CREATED, &UPDATED])).await;

    running.send(&id, ServiceCommand::Refresh {}).await.unwrap();
    let refreshed = joined(&[&CREATED, &UPDATED, &["service.snapshot.updated"]]);
    emits(&running, &id, &refreshed).await;

    running.send(&id, ServiceCommand::Delete(DeleteAsked::default())).await.unwrap();
    let service = running.reaches(&id, ServiceStatus::Deleted).await;
    emits(&running, &id, &joined(&[&refreshed, &DELETED])).await;
    assert!(!service.snapshot.unwrap().present);

    // What H10 adds outside of the service's own stream.
    let of = async |kind: &str, id: &str| -> Vec<String> {
        let events = running.events(kind, id).await;
        events.iter().map(|event| event.envelope.event_type.to_string()).collect()
    };
    assert_eq!(of(Namespace::KIND, "shop").await, ["NamespaceValidated"]);
    let seen = of(KnativeService::KIND, &id).await;
    let expected = [
        "RevisionCreated",
        "RouteAligned",
        "KnativeServiceObserved",
        "RevisionCreated",
        "RouteAligned",
        "KnativeServiceObserved",
        // Requests go nowhere any more.
        "RouteAligned",
        "KnativeServiceObserved",
        "KnativeServiceDeletedObserved",
    ];
    assert_eq!(seen, expected);
    let mut sorted = of(ServiceRecord::KIND, &id).await;
    sorted.sort();
    let (audited, persisted) = ("service.audit.recorded", "service.persisted");
    assert_eq!(sorted, [audited, audited, audited, persisted, persisted]);

    // From the request to the end, one flow whose causes are whole.
    let first = running.events("service", &id).await.remove(0).envelope;
    let flow = CorrelationId::new(first.correlation_id.to_string()).unwrap();
    let (facts, report) = running.app.flow(&flow, &[]).await.unwrap();
    assert!(report.whole, "{report:?}");
    let names: Vec<&str> = facts
        .events
        .iter()
        .filter(|event| event.envelope.aggregate.kind.as_str() == "service")
        .map(|event| event.envelope.event_type.as_str())
        .collect();
    assert_eq!(names, CREATED, "the flow of the create, and nothing of the update");
    let dead = running.app.dead_letters().list(&towpath::letters::LetterFilter::dead(), 0, 10).await.unwrap();
    assert!(dead.is_empty(), "{dead:?}");
    running.app.stop().await;
}

async fn failing(percent: u8, refused: u8) -> Running {
    let fates = Fates { failing_percent: percent, refused_percent: refused, ..at_once().fates };
    let cluster = SimulatedSettings { fates, ..at_once() };
    Running::with("sqlite", "local", settings(), cluster, |builder| builder).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_does_not_start_fails_and_can_be_updated_and_deleted() {
    let running = failing(100, 0).await;
    let id = running.create("cart").await;
    let service = running.reaches(&id, ServiceStatus::Failed).await;
    assert_eq!(service.failure.unwrap().reason, "RevisionFailed");
    emits(&running, &id, &FAILED).await;

    running.send(&id, update("registry.example/cart:2")).await.unwrap();
    running.reaches(&id, ServiceStatus::Failed).await;
    let mut updated = UPDATED[..5].to_vec();
    updated.extend(&FAILED[5..]);
    emits(&running, &id, &joined(&[&FAILED, &updated])).await;

    running.send(&id, ServiceCommand::Delete(DeleteAsked::default())).await.unwrap();
    running.reaches(&id, ServiceStatus::Deleted).await;
    emits(&running, &id, &joined(&[&FAILED, &updated, &DELETED])).await;
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_for_good_fails_the_service_at_once() {
    let running = failing(0, 100).await;
    let id = running.create("cart").await;
    let service = running.reaches(&id, ServiceStatus::Failed).await;
    assert_eq!(service.failure.unwrap().reason, "gateway-refused");
    let mut expected = CREATED[..3].to_vec();
    // Then it is seen that nothing is there.
    expected.extend(["service.creation.failed", "service.failed", "service.snapshot.updated"]);
    emits(&running, &id, &expected).await;
    running.send(&id, ServiceCommand::Delete(DeleteAsked::default())).await.unwrap();
    running.reaches(&id, ServiceStatus::Deleted).await;
    emits(&running, &id, &joined(&[&expected, &DELETED])).await;
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_threshold_says_how_often_a_service_may_be_seen_failing() {
    let fates = Fates { failing_percent: 100, ..at_once().fates };
    let cluster = SimulatedSettings { fates, watched: false, ..at_once() };
    let mut settings = settings();
    settings.failure_threshold = 3;
    settings.interval = Duration::from_millis(100);
    let running = Running::with("sqlite", "local", settings, cluster, |builder| builder).await;
    let id = running.create("cart").await;
    let service = running.reaches(&id, ServiceStatus::Failed).await;
    assert_eq!(service.snapshot.unwrap().consecutive_failures, 3);
    let mut expected = CREATED[..4].to_vec();
    expected.extend(["service.snapshot.updated"; 2]);
    expected.extend(&FAILED[4..]);
    emits(&running, &id, &expected).await;
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_replacement_rolls_out_again_and_takes_over() {
    let running = Running::on("sqlite", "local").await;
    let id = running.create("cart").await;
    let before = running.reaches(&id, ServiceStatus::Ready).await;
    let by_hand = towpath_hive::spec::ServiceSpec { image: "hand".to_owned(), ..Default::default() };
    running.cluster.edit_by_hand(&resource("cart"), by_hand).unwrap();
    let drifted = eventually("the drift is seen", || async {
        let service = running.service(&id).await;
        service.snapshot.as_ref().is_some_and(|seen| !seen.hash_match).then_some(service)
    })
    .await;
    assert_eq!(drifted.status, Some(ServiceStatus::Ready), "drift is recorded and changes no status");

    // Without force, what the hand has set stays; with force it is taken over, in a new revision.
    running.send(&id, update("registry.example/cart:2")).await.unwrap();
    let refused = running.reaches(&id, ServiceStatus::Failed).await;
    assert_eq!(refused.failure.unwrap().reason, "gateway-conflict");
    let image = "registry.example/cart:1".to_owned();
    let forced = UpdateAsked { image, force_replace: true, ..UpdateAsked::default() };
    running.send(&id, ServiceCommand::Update(forced.clone())).await.unwrap();
    let taken = running.reaches(&id, ServiceStatus::Ready).await;
    running.quiet().await;
    assert_ne!(taken.desired_spec_hash, before.desired_spec_hash, "the same again is another specification");
    running.send(&id, ServiceCommand::Update(forced)).await.unwrap();
    let again = running.reaches(&id, ServiceStatus::Ready).await;
    let revision = |service: &towpath_hive::service::Service| {
        service.snapshot.clone().unwrap().latest_ready_revision.unwrap()
    };
    assert_ne!(revision(&taken), revision(&again));
    running.quiet().await;

    // The same without force is what runs already: nothing is rolled out for it.
    running.send(&id, update("registry.example/cart:1")).await.unwrap();
    let same = running.reaches(&id, ServiceStatus::Ready).await;
    running.quiet().await;
    assert_eq!(same.desired_spec_hash, again.desired_spec_hash);
    assert_eq!(revision(&running.service(&id).await), revision(&again));
    let generation = |service: &towpath_hive::service::Service| service.snapshot.clone().unwrap().generation;
    assert_eq!(generation(&same), generation(&again));
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_used_again_under_the_next_number() {
    let running = Running::on("sqlite", "local").await;
    let next = || running.hive.free_id(&running.app, "shop", "cart");
    for expected in [
        "shop.cart",
        "shop.cart.2",
        "shop.cart.3",
        "shop.cart.4",
        "shop.cart.5",
        "shop.cart.6",
        "shop.cart.7",
    ] {
        let id = next().await.unwrap();
        assert_eq!(id, expected);
        running.send(&id, ServiceCommand::Create(asked("cart"))).await.unwrap();
        assert_eq!(next().await.unwrap(), id, "it is still there");
        running.reaches(&id, ServiceStatus::Ready).await;
        running.send(&id, ServiceCommand::Delete(DeleteAsked::default())).await.unwrap();
        running.reaches(&id, ServiceStatus::Deleted).await;
    }
    running.app.stop().await;
}

/// What carries nobody's mark is no service of ours, whatever its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_made_by_hand_is_not_taken_for_a_service() {
    let running = Running::on("sqlite", "local").await;
    let by_hand = towpath_hive::spec::ServiceSpec { image: "hand".to_owned(), ..Default::default() };
    running.cluster.make_by_hand(&resource("cart"), by_hand.clone()).unwrap();
    let id = running.create("cart").await;
    let refused = running.reaches(&id, ServiceStatus::Failed).await;
    assert_eq!(refused.failure.unwrap().reason, "gateway-conflict");
    running.send(&id, ServiceCommand::Refresh {}).await.unwrap();
    running.quiet().await;
    let seen = running.service(&id).await.snapshot.unwrap();
    assert!(!seen.present && seen.url.is_none() && seen.traffic.is_empty(), "{seen:?}");
    let kinds = running.events("knative-service", &id).await;
    assert!(kinds.iter().all(|event| event.envelope.event_type.as_str() == "KnativeServiceObserved"));
    // A deletion ends with ours, and leaves the other alone.
    running.send(&id, ServiceCommand::Delete(DeleteAsked::default())).await.unwrap();
    running.reaches(&id, ServiceStatus::Deleted).await;
    let Observed::Found(found) = running.cluster.look(&resource("cart")).unwrap() else {
        panic!("it is gone");
    };
    assert_eq!((found.service_id, found.spec_hash, found.deleting), (None, Some(by_hand.hash()), false));
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_by_hand_is_seen_and_recorded() {
    let running = Running::on("sqlite", "local").await;
    let id = running.create("cart").await;
    running.reaches(&id, ServiceStatus::Ready).await;
    // Who looks knows that it is READY: what a service still waits for would be applied again.
    running.quiet().await;
    running.cluster.delete_by_hand(&resource("cart")).unwrap();
    emits(&running, &id, &joined(&[&CREATED, &["service.snapshot.updated", "service.external.purged"]]))
        .await;
    assert_eq!(running.service(&id).await.status, Some(ServiceStatus::Ready));
    // An update brings it back.
    running.send(&id, update("registry.example/cart:1")).await.unwrap();
    let purged = ["service.snapshot.updated", "service.external.purged"];
    emits(&running, &id, &joined(&[&CREATED, &purged, &UPDATED])).await;
    let back = running.service(&id).await;
    assert_eq!(back.status, Some(ServiceStatus::Ready));
    assert!(back.snapshot.unwrap().present);
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_service_is_updated_to_ready_and_deleted() {
    // The seed decides: the first generation of this name fails, and the second does not.
    let fates = Fates { failing_percent: 50, ..at_once().fates };
    let name = "cart-6";
    let cluster = SimulatedSettings { fates, ..at_once() };
    let running = Running::with("sqlite", "local", settings(), cluster, |builder| builder).await;
    let id = running.create(name).await;
    running.reaches(&id, ServiceStatus::Failed).await;
    emits(&running, &id, &FAILED).await;
    running.send(&id, update("registry.example/cart:2")).await.unwrap();
    running.reaches(&id, ServiceStatus::Ready).await;
    emits(&running, &id, &joined(&[&FAILED, &UPDATED])).await;
    assert_eq!(running.service(&id).await.failure, None);
    running.send(&id, ServiceCommand::Delete(DeleteAsked::default())).await.unwrap();
    running.reaches(&id, ServiceStatus::Deleted).await;
    emits(&running, &id, &joined(&[&FAILED, &UPDATED, &DELETED])).await;
    running.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_channels_publish_as_the_settings_say() {
    let usual = settings();
    let (first, cap) = (Duration::from_secs(2), Duration::from_secs(300));
    let retries = RetryPolicy::Exponential { first, factor: 2.0, cap, attempts: 10, jitter: 0.2 };
    assert_eq!((usual.publishing.scan, &usual.publishing.retries), (Duration::from_secs(2), &retries));
    let publishing = ChannelPolicy {
        scan: Duration::from_millis(300),
        batch: 3,
        retries: RetryPolicy::Fixed(vec![Duration::from_secs(1)]),
        ..ChannelPolicy::default()
    };
    for publishing in [usual.publishing.clone(), publishing] {
        let settings = HiveSettings { publishing: publishing.clone(), ..settings() };
        let name = settings.channel.clone();
        let running = Running::with("sqlite", "local", settings, at_once(), |builder| builder).await;
        let mut channels = Vec::new();
        for channel in running.app.outbox_channels() {
            assert_eq!(channel.policy, publishing, "{}", channel.name);
            channels.push(channel.name.to_string());
        }
        assert_eq!(channels, [name.clone(), format!("{name}.observed"), format!("{name}.requested")]);
        let id = running.create("cart").await;
        running.reaches(&id, ServiceStatus::Ready).await;
        running.app.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_life_on_sqlite() {
    a_whole_life("sqlite", "local").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_life_on_postgres() {
    a_whole_life("postgres", "local").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_life_on_mysql() {
    a_whole_life("mysql", "local").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_life_on_postgres_and_rabbitmq() {
    a_whole_life("postgres", "rabbitmq").await;
}

#[cfg(feature = "kafka")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_life_on_postgres_and_kafka() {
    a_whole_life("postgres", "kafka").await;
}
