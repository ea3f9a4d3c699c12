//! The Kubernetes adapter on a real API server, with a small controller that plays Knative. `cargo xtask test --kube` runs
//! them; the default test run does not, because the server is an extra.
#![cfg(feature = "kubernetes")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod cluster;
mod life;
#[path = "../support/mod.rs"]
mod support;

use cluster::{Cluster, SOON};
use futures_util::StreamExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use support::eventually;
use towpath_hive::gateway::{
    Apply, ConditionStatus, Deletion, FoundService, GatewayError, Observed, ServingGateway,
};
use towpath_hive::spec::{ResourceName, ServiceSpec};

fn wanted(resource: &ResourceName, image: &str) -> Apply {
    let spec = ServiceSpec {
        image: format!("registry.example/{image}"),
        env: [("COLOUR".to_owned(), "blue".into()), ("EMPTY".to_owned(), "".into())].into(),
        min_scale: Some(0),
        max_scale: Some(3),
        concurrency: Some(50),
        replacement: None,
    };
    of(resource, spec)
}

fn of(resource: &ResourceName, spec: ServiceSpec) -> Apply {
    Apply {
        service_id: format!("{}/{}", resource.namespace, resource.name),
        resource: resource.clone(),
        spec_hash: spec.hash(),
        spec,
        force: false,
    }
}

async fn found(gateway: &impl ServingGateway, resource: &ResourceName) -> FoundService {
    match gateway.observe(resource).await.unwrap() {
        Observed::Found(found) => *found,
        Observed::NotFound => panic!("{resource} is not there"),
    }
}

async fn becomes(
    gateway: &impl ServingGateway,
    resource: &ResourceName,
    status: ConditionStatus,
    generation: i64,
) -> FoundService {
    eventually("the service settles", || async {
        let found = found(gateway, resource).await;
        (found.readiness() == status && found.generation == generation).then_some(found)
    })
    .await
}

#[tokio::test]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn a_service_is_made_becomes_ready_changes_and_fails() {
    let cluster = Cluster::reach().await;
    let (gateway, cart) = (cluster.gateway().await, cluster.resource("cart"));
    assert_eq!(gateway.observe(&cart).await.unwrap(), Observed::NotFound);

    let first = wanted(&cart, "cart:1");
    let applied = gateway.apply(&first).await.unwrap();
    assert_eq!((applied.generation, applied.changed), (1, true));
    let seen = found(&gateway, &cart).await;
    assert_eq!(seen.readiness(), ConditionStatus::Unknown, "nobody has looked after it yet");
    assert_eq!(seen.spec_hash.as_ref(), Some(&first.spec_hash));
    assert_eq!(seen.service_id.as_deref(), Some(first.service_id.as_str()), "an id that is no label");

    let _knative = cluster.controller();
    let ready = becomes(&gateway, &cart, ConditionStatus::True, 1).await;
    assert_eq!(ready.revisions.len(), 1);
    assert_eq!(ready.revisions[0].image.as_deref(), Some("registry.example/cart:1"));
    assert!(ready.revisions[0].created_at.is_some());
    assert_eq!((ready.traffic[0].revision.as_str(), ready.traffic[0].percent), ("cart-00001", 100));
    assert!(ready.url.is_some());

    let again = gateway.apply(&first).await.unwrap();
    assert_eq!((again.generation, again.changed), (1, false));

    let second = gateway.apply(&wanted(&cart, "cart:2")).await.unwrap();
    assert_eq!((second.generation, second.changed), (2, true));
    let ready = becomes(&gateway, &cart, ConditionStatus::True, 2).await;
    assert_eq!(ready.latest_ready_revision.as_deref(), Some("cart-00002"));
    let hashes: Vec<_> = ready.revisions.into_iter().map(|revision| revision.spec_hash).collect();
    assert_eq!(hashes, [Some(first.spec_hash), Some(wanted(&cart, "cart:2").spec_hash)]);

    gateway.apply(&wanted(&cart, "broken:1")).await.unwrap();
    let failed = becomes(&gateway, &cart, ConditionStatus::False, 3).await;
    assert_eq!(failed.conditions.ready.reason.as_deref(), Some("RevisionFailed"));
    assert_eq!(failed.latest_created_revision.as_deref(), Some("cart-00003"));
    assert_eq!(failed.latest_ready_revision.as_deref(), Some("cart-00002"), "requests go where they went");
}

#[tokio::test]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn fields_that_are_not_asked_for_any_more_are_removed_and_defaults_are_no_edits() {
    let cluster = Cluster::reach().await;
    let (gateway, cart) = (cluster.gateway().await, cluster.resource("cart"));
    gateway.apply(&wanted(&cart, "cart:1")).await.unwrap();
    let plain = ServiceSpec { image: "registry.example/cart:1".to_owned(), ..ServiceSpec::default() };
    gateway.apply(&of(&cart, plain.clone())).await.unwrap();
    let object = cluster.services().get("cart").await.unwrap();
    let pod = &object.data["spec"]["template"]["spec"];
    assert_eq!(pod["containerConcurrency"], json!(0), "the server has filled it in");
    assert_eq!(pod["containers"][0].get("env"), None);
    assert_eq!(found(&gateway, &cart).await.spec_hash, Some(plain.hash()));

    // One that was asked for is another specification, although the number is the same.
    let zero = ServiceSpec { concurrency: Some(0), ..plain };
    assert!(gateway.apply(&of(&cart, zero.clone())).await.is_ok());
    assert_eq!(found(&gateway, &cart).await.spec_hash, Some(zero.hash()));
}

#[tokio::test]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn an_edit_by_hand_shows_and_is_a_conflict_until_it_is_taken_over() {
    let cluster = Cluster::reach().await;
    let (gateway, cart) = (cluster.gateway().await, cluster.resource("cart"));
    let first = wanted(&cart, "cart:1");
    gateway.apply(&first).await.unwrap();
    let container = |field: &str, value: serde_json::Value| {
        let mut container = json!({
            "image": first.spec.image,
            "env": [{ "name": "COLOUR", "value": "blue" }, { "name": "EMPTY", "value": "" }],
        });
        container[field] = value;
        json!({ "spec": { "template": { "spec": { "containers": [container] } } } })
    };
    let mut mounted = container("volumeMounts", json!([{ "name": "data", "mountPath": "/data" }]));
    mounted["spec"]["template"]["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": {} }]);
    let before = json!([{ "image": "registry.example/init:1" }]);
    let edits = [
        mounted,
        container("envFrom", json!([{ "secretRef": { "name": "colours" } }])),
        container("ports", json!([{ "containerPort": 9000 }])),
        json!({ "spec": { "template": { "spec": { "initContainers": before } } } }),
        json!({ "spec": { "traffic": [{ "revisionName": "cart-00001", "percent": 100 }] } }),
        json!({ "spec": { "template": { "metadata": { "annotations": { "autoscaling.knative.dev/maxScale": "9" } } } } }),
        json!({ "spec": { "template": { "spec": { "containers": [{ "image": "registry.example/mine:1" }] } } } }),
        json!({ "spec": { "template": { "spec": { "containerConcurrency": 7 } } } }),
        json!({ "spec": { "template": { "metadata": { "annotations": { "autoscaling.knative.dev/max-scale": "9" } } } } }),
    ];
    for edit in edits {
        cluster.edit("cart", edit.clone()).await;
        let seen = found(&gateway, &cart).await;
        assert_ne!(seen.spec_hash.as_ref(), Some(&first.spec_hash), "{edit}");
        let error = gateway.apply(&first).await.unwrap_err();
        assert_eq!(error, GatewayError::Conflict { resource: cart.clone(), by: "kubectl-edit".to_owned() });
        assert_eq!(found(&gateway, &cart).await.spec_hash, seen.spec_hash, "a refusal changes nothing");

        let forced = gateway.apply(&Apply { force: true, ..first.clone() }).await.unwrap();
        assert!(forced.changed);
        assert_eq!(found(&gateway, &cart).await.spec_hash.as_ref(), Some(&first.spec_hash), "{edit}");
    }
    let pod = cluster.services().get("cart").await.unwrap().data["spec"]["template"]["spec"].clone();
    assert!(pod["volumes"].as_array().is_none_or(Vec::is_empty), "nothing mounts them any more: {pod}");
    // Fields that hive does not own are nobody's business.
    cluster.edit("cart", json!({ "metadata": { "annotations": { "team": "shop" } } })).await;
    assert!(!gateway.apply(&first).await.unwrap().changed);
}

#[tokio::test]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn a_resource_of_another_service_is_left_alone() {
    let cluster = Cluster::reach().await;
    let (gateway, cart) = (cluster.gateway().await, cluster.resource("cart"));
    let theirs = Apply { service_id: "theirs".to_owned(), ..wanted(&cart, "cart:1") };
    gateway.apply(&theirs).await.unwrap();
    for force in [false, true] {
        let ours = Apply { force, service_id: "ours".to_owned(), ..wanted(&cart, "cart:2") };
        let error = gateway.apply(&ours).await.unwrap_err();
        assert_eq!(error, GatewayError::Conflict { resource: cart.clone(), by: "service theirs".to_owned() });
    }
    assert_eq!(gateway.delete("ours", &cart).await.unwrap(), Deletion::NotFound);
    let seen = found(&gateway, &cart).await;
    assert_eq!((seen.spec_hash, seen.deleting), (Some(theirs.spec_hash), false));
}

#[tokio::test]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn a_service_that_lost_its_label_is_still_ours() {
    let cluster = Cluster::reach().await;
    let (gateway, cart) = (cluster.gateway().await, cluster.resource("cart"));
    let first = wanted(&cart, "cart:1");
    gateway.apply(&first).await.unwrap();
    let unlabelled = json!({ "metadata": { "labels": { "towpath.dev/service-id": null } } });
    cluster.edit("cart", unlabelled.clone()).await;
    assert_eq!(found(&gateway, &cart).await.service_id.as_ref(), Some(&first.service_id));
    // Applying brings it back, and changes nothing that runs.
    let again = gateway.apply(&first).await.unwrap();
    assert_eq!((again.generation, again.changed), (1, false));
    assert_eq!(cluster.services().get("cart").await.unwrap().metadata.labels.unwrap_or_default().len(), 1);
    cluster.edit("cart", unlabelled).await;
    assert_eq!(gateway.delete(&first.service_id, &cart).await.unwrap(), Deletion::Accepted);
    assert!(found(&gateway, &cart).await.deleting);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn of_two_installations_each_has_its_own() {
    let cluster = Cluster::reach().await;
    let (one, two) = (cluster.gateway_of("hive-one").await, cluster.gateway_of("hive-two").await);
    for round in 0..5 {
        // The same service, specified the same, in two databases.
        let cart = cluster.resource(&format!("cart-{round}"));
        let same = wanted(&cart, "cart:1");
        let (first, second) = tokio::join!(one.apply(&same), two.apply(&same));
        let (winner, loser, name, error) = match (first, second) {
            (Ok(_), Err(error)) => (&one, &two, "hive-one", error),
            (Err(error), Ok(_)) => (&two, &one, "hive-two", error),
            both => panic!("{both:?}"),
        };
        let taken = GatewayError::Conflict { resource: cart.clone(), by: format!("installation {name}") };
        assert_eq!(error, taken);
        assert_eq!(loser.apply(&Apply { force: true, ..same.clone() }).await.unwrap_err(), taken);
        assert_eq!(loser.delete(&same.service_id, &cart).await.unwrap(), Deletion::NotFound);
        let theirs = found(loser, &cart).await;
        assert_eq!(theirs.service_id, Some(format!("{name}/{}", same.service_id)));
        let own = found(winner, &cart).await;
        assert_eq!(
            (own.service_id.as_ref(), own.generation, own.deleting),
            (Some(&same.service_id), 1, false)
        );
        assert!(!winner.apply(&same).await.unwrap().changed);
        assert_eq!(winner.delete(&same.service_id, &cart).await.unwrap(), Deletion::Accepted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn of_services_that_want_one_name_at_once_one_gets_it() {
    let cluster = Cluster::reach().await;
    let gateway = cluster.gateway().await;
    for round in 0..10 {
        let cart = cluster.resource(&format!("cart-{round}"));
        let applies = (0..8).map(|number| Apply {
            service_id: format!("service-{number}"),
            force: number % 2 == 0,
            ..wanted(&cart, &format!("cart:{number}"))
        });
        let applying: Vec<_> = applies
            .map(|apply| {
                let gateway = gateway.clone();
                tokio::spawn(async move { gateway.apply(&apply).await.map(|_| apply) })
            })
            .collect();
        let mut winners = Vec::new();
        for applied in applying {
            match applied.await.unwrap() {
                Ok(apply) => winners.push(apply),
                Err(GatewayError::Conflict { by, .. }) => assert!(by.starts_with("service service-"), "{by}"),
                Err(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(winners.len(), 1, "{winners:?}");
        let seen = found(&gateway, &cart).await;
        assert_eq!(seen.service_id.as_ref(), Some(&winners[0].service_id));
        assert_eq!(seen.spec_hash.as_ref(), Some(&winners[0].spec_hash));
        assert_eq!(seen.generation, 1);
    }
}

#[tokio::test]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn a_deletion_lasts_until_everything_is_gone() {
    let cluster = Cluster::reach().await;
    let (gateway, cart) = (cluster.gateway().await, cluster.resource("cart"));
    let first = wanted(&cart, "cart:1");
    gateway.apply(&first).await.unwrap();
    for _ in 0..2 {
        assert_eq!(gateway.delete(&first.service_id, &cart).await.unwrap(), Deletion::Accepted);
        assert!(found(&gateway, &cart).await.deleting, "what it owns is waited for");
    }
    assert!(matches!(gateway.apply(&first).await, Err(GatewayError::Unavailable { .. })));
    let _knative = cluster.controller();
    eventually("it is gone", || async {
        (gateway.observe(&cart).await.unwrap() == Observed::NotFound).then_some(())
    })
    .await;
    assert_eq!(gateway.delete(&first.service_id, &cart).await.unwrap(), Deletion::NotFound);
    assert_eq!(gateway.apply(&first).await.unwrap().generation, 1, "the name can be used again");
}

#[tokio::test]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn what_the_server_does_not_take_is_refused() {
    let cluster = Cluster::reach().await;
    let (gateway, cart) = (cluster.gateway().await, cluster.resource("cart"));
    let error = gateway.apply(&of(&cart, ServiceSpec::default())).await.unwrap_err();
    assert!(matches!(&error, GatewayError::Refused { reason, .. } if reason == "Invalid"), "{error:?}");
    assert_eq!(gateway.observe(&cart).await.unwrap(), Observed::NotFound);
    // The server of these tests has no namespaces: not "this one does not exist".
    let error = gateway.namespace_exists("shop").await.unwrap_err();
    assert!(matches!(error, GatewayError::NotFound { .. }), "{error:?}");
}

/// What the adapter relies on to apply to the resource that it has looked at, and to no other of its name.
#[tokio::test]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn another_uid_is_told_from_fields_of_others() {
    let cluster = Cluster::reach().await;
    let (gateway, cart) = (cluster.gateway().await, cluster.resource("cart"));
    let services = cluster.services();
    let other = json!({
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": { "name": "cart", "uid": "00000000-0000-0000-0000-000000000000" },
        "spec": {},
    });
    // Before it is there, and when it is there.
    for code in [409, 422] {
        let apply = PatchParams::apply("towpath-hive").force();
        let refused = services.patch("cart", &apply, &Patch::Apply(&other)).await;
        let Err(kube::Error::Api(status)) = refused else { panic!("{refused:?}") };
        assert_eq!(status.code, code);
        let causes = status.details.map(|details| details.causes).unwrap_or_default();
        assert_eq!(causes.is_empty(), code == 409, "{causes:?}");
        assert!(causes.iter().all(|cause| cause.field == "metadata.uid"), "{causes:?}");
        let uid = DeleteParams {
            preconditions: Some(kube::api::Preconditions {
                uid: Some("00000000-0000-0000-0000-000000000000".to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let refused = services.delete("cart", &uid).await;
        assert!(
            matches!(&refused, Err(kube::Error::Api(status)) if [404, 409].contains(&status.code)),
            "{refused:?}"
        );
        gateway.apply(&wanted(&cart, "cart:1")).await.unwrap();
    }
    assert_eq!(found(&gateway, &cart).await.spec_hash, Some(wanted(&cart, "cart:1").spec_hash));
}

#[tokio::test]
#[ignore = "needs a Kubernetes API server: cargo xtask test --kube"]
async fn a_watch_tells_of_every_sort_of_change() {
    let cluster = Cluster::reach().await;
    let (gateway, cart) = (cluster.gateway().await, cluster.resource("cart"));
    // Other tests change services of theirs at the same time.
    let hints = gateway.watch().await.unwrap().unwrap();
    let mut hints = hints.filter(|name| std::future::ready(*name == cart)).boxed();
    let mut told = async |what: &str| {
        let told = tokio::time::timeout(SOON, hints.next()).await;
        assert_eq!(
            told.unwrap_or_else(|_| panic!("nothing was told: {what}")).as_ref(),
            Some(&cart),
            "{what}"
        );
    };
    let first = wanted(&cart, "cart:1");
    gateway.apply(&first).await.unwrap();
    told("it was made").await;
    let ready = json!({ "status": { "observedGeneration": 1 } });
    cluster.services().patch_status("cart", &PatchParams::default(), &Patch::Merge(&ready)).await.unwrap();
    told("its status has changed").await;
    cluster.edit("cart", json!({ "spec": { "template": { "spec": { "containerConcurrency": 7 } } } })).await;
    told("it was edited").await;
    cluster.services().delete("cart", &DeleteParams::default()).await.unwrap();
    told("it was deleted by hand").await;
}
