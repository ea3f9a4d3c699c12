//! What is read from a resource: conditions as Knative means them, and the specification that really is there.

use super::*;
use crate::spec::ResourceName;

const MANAGER: &str = "towpath-hive";

fn resource(value: Value) -> KnativeResource {
    serde_json::from_value(value).unwrap()
}

fn spec() -> ServiceSpec {
    ServiceSpec {
        image: "registry.example/shop:1".to_owned(),
        env: [("COLOUR".to_owned(), "blue".into()), ("EMPTY".to_owned(), "".into())].into(),
        min_scale: Some(1),
        max_scale: Some(3),
        concurrency: Some(0),
        replacement: Some("again".to_owned()),
    }
}

fn apply() -> Apply {
    let spec = spec();
    Apply {
        service_id: "shop.cart".to_owned(),
        resource: ResourceName::new("shop", "cart"),
        spec_hash: spec.hash(),
        spec,
        force: false,
    }
}

/// As the server shows what was applied: with defaults of Knative's, and with who owns what.
fn applied() -> Value {
    let mut shown = super::super::writing::wanted(&apply(), MANAGER, None, false);
    shown["metadata"]["uid"] = json!("one");
    shown["metadata"]["generation"] = json!(2);
    shown["metadata"]["managedFields"] = json!([{
        "manager": "towpath-hive/shop.cart",
        "operation": "Apply",
        "fieldsV1": { "f:spec": { "f:template": { "f:spec": { "f:containerConcurrency": {}, "f:containers": {} } } } },
    }]);
    let pod = &mut shown["spec"]["template"]["spec"];
    pod["timeoutSeconds"] = json!(300);
    pod["enableServiceLinks"] = json!(false);
    pod["containers"][0]["name"] = json!("user-container");
    pod["containers"][0]["resources"] = json!({});
    pod["containers"][0]["readinessProbe"] = json!({ "tcpSocket": { "port": 0 }, "successThreshold": 1 });
    pod["containers"][0]["securityContext"] = json!({ "runAsNonRoot": true });
    shown["spec"]["traffic"] = json!([{ "latestRevision": true, "percent": 100 }]);
    shown
}

#[test]
fn what_was_applied_is_read_back_as_it_was_asked_for() {
    let found = resource(applied());
    assert_eq!(found.specification(MANAGER), Some(spec()));
    assert!(found.carries(&apply(), MANAGER));
    assert_eq!(found.owner(MANAGER), Owner::Service("shop.cart"));
    assert_eq!(found.unwanted(&spec()), Unwanted::default());
}

#[test]
fn every_edit_by_hand_shows() {
    let edits: [fn(&mut Value); 25] = [
        |shown| {
            shown["spec"]["template"]["spec"]["containers"][0]["image"] = json!("registry.example/shop:2")
        },
        |shown| shown["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = json!("red"),
        |shown| shown["spec"]["template"]["spec"]["containers"][0]["env"] = json!([]),
        |shown| {
            let source = json!({ "secretKeyRef": { "name": "colours", "key": "first" } });
            shown["spec"]["template"]["spec"]["containers"][0]["env"][0] =
                json!({ "name": "COLOUR", "valueFrom": source });
        },
        |shown| shown["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["--verbose"]),
        |shown| shown["spec"]["template"]["spec"]["containers"][0]["command"] = json!(["sh"]),
        |shown| shown["spec"]["template"]["spec"]["containers"][0]["workingDir"] = json!("/tmp"),
        |shown| {
            shown["spec"]["template"]["spec"]["containers"][0]["envFrom"] =
                json!([{ "secretRef": { "name": "colours" } }]);
        },
        |shown| {
            shown["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] =
                json!([{ "name": "data", "mountPath": "/data" }]);
        },
        |shown| {
            shown["spec"]["template"]["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 9000 }]);
        },
        |shown| {
            shown["spec"]["template"]["spec"]["initContainers"] =
                json!([{ "image": "registry.example/init:1" }]);
        },
        |shown| {
            shown["spec"]["template"]["metadata"]["annotations"]["autoscaling.knative.dev/minScale"] =
                json!("1");
        },
        |shown| {
            shown["spec"]["template"]["metadata"]["annotations"]["autoscaling.knative.dev/maxScale"] =
                json!("3");
        },
        |shown| shown["spec"]["traffic"] = json!([{ "revisionName": "cart-00001", "percent": 100 }]),
        |shown| shown["spec"]["traffic"] = json!([{ "latestRevision": true, "percent": 90 }]),
        |shown| {
            shown["spec"]["traffic"] = json!([
                { "latestRevision": true, "percent": 100 },
                { "revisionName": "cart-00001", "percent": 0, "tag": "old" },
            ]);
        },
        |shown| shown["spec"]["traffic"] = json!([{ "latestRevision": false, "percent": 100 }]),
        |shown| shown["spec"]["traffic"] = json!({ "latestRevision": true, "percent": 100 }),
        |shown| shown["spec"]["template"]["spec"]["containers"] = json!([]),
        |shown| {
            let container = shown["spec"]["template"]["spec"]["containers"][0].clone();
            shown["spec"]["template"]["spec"]["containers"] = json!([container.clone(), container]);
        },
        |shown| shown["spec"]["template"]["spec"]["containerConcurrency"] = json!(7),
        |shown| shown["spec"]["template"]["metadata"]["annotations"][MIN_SCALE] = json!("2"),
        |shown| shown["spec"]["template"]["metadata"]["annotations"][MAX_SCALE] = json!("many"),
        |shown| shown["spec"]["template"]["metadata"] = json!({}),
        |shown| shown["spec"] = Value::Null,
    ];
    for (number, edit) in edits.iter().enumerate() {
        let mut shown = applied();
        edit(&mut shown);
        let found = resource(shown);
        assert_ne!(
            found.specification(MANAGER).map(|spec| spec.hash()),
            Some(spec().hash()),
            "edit {number}"
        );
        assert!(!found.carries(&apply(), MANAGER), "edit {number}");
    }
}

#[test]
fn what_changes_nothing_that_runs_is_no_edit() {
    let same: [fn(&mut Value); 9] = [
        |shown| shown["spec"]["traffic"] = Value::Null,
        |shown| shown["spec"]["traffic"] = json!([]),
        |shown| shown["spec"]["traffic"] = json!([{ "percent": 100 }]),
        |shown| shown["spec"]["traffic"][0]["tag"] = json!("latest"),
        |shown| shown["spec"]["template"]["spec"]["containers"][0]["ports"] = json!([]),
        |shown| shown["spec"]["template"]["spec"]["containers"][0]["envFrom"] = Value::Null,
        |shown| shown["spec"]["template"]["spec"]["initContainers"] = json!([]),
        |shown| shown["spec"]["template"]["spec"]["volumes"] = json!([{ "name": "data", "emptyDir": {} }]),
        |shown| {
            let annotations = &mut shown["spec"]["template"]["metadata"]["annotations"];
            annotations["autoscaling.knative.dev/target"] = json!("70");
        },
    ];
    for (number, change) in same.iter().enumerate() {
        let mut shown = applied();
        change(&mut shown);
        assert!(resource(shown).carries(&apply(), MANAGER), "change {number}");
    }
}

#[test]
fn a_default_of_the_platform_is_no_edit_and_an_edit_is_no_default() {
    let mut shown = applied();
    shown["metadata"]["managedFields"] = json!([]);
    assert_eq!(resource(shown.clone()).specification(MANAGER).unwrap().concurrency, None);
    let owned_by = |manager: &str, operation: &str| {
        json!([{
            "manager": manager,
            "operation": operation,
            "fieldsV1": { "f:spec": { "f:template": { "f:spec": { "f:containerConcurrency": {} } } } },
        }])
    };
    let ours = "towpath-hive/shop.cart";
    for (manager, operation, counts) in
        [(ours, "Update", false), (ours, "Apply", true), ("kubectl-edit", "Update", true)]
    {
        shown["metadata"]["managedFields"] = owned_by(manager, operation);
        let read = resource(shown.clone()).specification(MANAGER).unwrap().concurrency;
        assert_eq!(read.is_some(), counts, "{manager} {operation}");
    }
}

#[test]
fn it_carries_what_is_wanted_only_if_it_says_so_and_belongs_to_the_service() {
    let mut shown = applied();
    shown["metadata"]["annotations"][SPEC_HASH_ANNOTATION] = json!("another");
    assert!(!resource(shown).carries(&apply(), MANAGER));
    // What somebody has taken away is applied again.
    for (map, lost) in [
        ("labels", SERVICE_ID_LABEL),
        ("annotations", SERVICE_ID_LABEL),
        ("annotations", INSTALLATION_ANNOTATION),
    ] {
        let mut shown = applied();
        shown["metadata"][map].as_object_mut().unwrap().remove(lost).unwrap();
        let found = resource(shown);
        assert_eq!(found.owner(MANAGER), Owner::Service("shop.cart"), "{map} {lost}");
        assert!(!found.carries(&apply(), MANAGER), "{map} {lost}");
    }
}

#[test]
fn the_owner_is_whom_the_label_names() {
    let long = "shop/".repeat(20);
    let mut shown = applied();
    shown["metadata"]["labels"][SERVICE_ID_LABEL] = json!(label_of(&long));
    shown["metadata"]["annotations"][SERVICE_ID_LABEL] = json!(long);
    assert_eq!(resource(shown.clone()).owner(MANAGER), Owner::Service(&long));
    shown["metadata"]["labels"][SERVICE_ID_LABEL] = json!("somebody-else");
    assert_eq!(resource(shown).owner(MANAGER), Owner::Service("somebody-else"));
}

#[test]
fn without_a_label_the_owner_is_whom_the_annotation_names() {
    for id in ["shop.cart", "shop/cart"] {
        let mut shown = applied();
        shown["metadata"]["annotations"][SERVICE_ID_LABEL] = json!(id);
        shown["metadata"].as_object_mut().unwrap().remove("labels");
        assert_eq!(resource(shown.clone()).owner(MANAGER), Owner::Service(id));
        // Neither: somebody made it by hand.
        shown["metadata"].as_object_mut().unwrap().remove("annotations");
        let found = resource(shown);
        assert_eq!(found.owner(MANAGER), Owner::Nobody);
        assert_eq!(found.seen(Vec::new(), MANAGER).service_id, None);
    }
}

#[test]
fn what_another_installation_has_made_is_its_own() {
    let mut shown = applied();
    shown["metadata"]["annotations"][INSTALLATION_ANNOTATION] = json!("other-hive");
    let found = resource(shown.clone());
    let other = Owner::Installation { name: "other-hive", service_id: "shop.cart" };
    assert_eq!(found.owner(MANAGER), other);
    assert_eq!(found.owner("other-hive"), Owner::Service("shop.cart"));
    assert!(!found.carries(&apply(), MANAGER));
    assert_eq!(found.seen(Vec::new(), MANAGER).service_id.as_deref(), Some("other-hive/shop.cart"));
    // Also when it does not say any more for which of its services.
    shown["metadata"].as_object_mut().unwrap().remove("labels");
    shown["metadata"]["annotations"].as_object_mut().unwrap().remove(SERVICE_ID_LABEL);
    assert!(matches!(resource(shown).owner(MANAGER), Owner::Installation { name: "other-hive", .. }));
}

#[test]
fn a_revision_is_told_by_what_it_runs_itself() {
    let spec = |image: &str, concurrency| ServiceSpec {
        image: image.to_owned(),
        concurrency,
        min_scale: Some(2),
        ..ServiceSpec::default()
    };
    let revision = |image: &str, concurrency: Value, applied: Option<SpecHash>| {
        let mut annotations = json!({ MIN_SCALE: "2", "serving.knative.dev/creator": "hive" });
        if let Some(applied) = applied {
            annotations[SPEC_HASH_ANNOTATION] = json!(applied);
        }
        let container = json!({ "name": "user-container", "image": image, "resources": {} });
        let mut spec = json!({ "containers": [container], "timeoutSeconds": 300 });
        if !concurrency.is_null() {
            spec["containerConcurrency"] = concurrency;
        }
        let revision =
            json!({ "metadata": { "name": "cart-00001", "annotations": annotations }, "spec": spec });
        serde_json::from_value::<RevisionResource>(revision).unwrap()
    };
    let now = spec("shop:2", None).hash();
    let seen = |revision: RevisionResource| revision.seen(Some(&now)).unwrap().spec_hash;

    // Whatever the service is by now.
    let (unset, zero) = (spec("shop:1", None).hash(), spec("shop:1", Some(0)).hash());
    assert_eq!(seen(revision("shop:1", json!(0), Some(unset.clone()))), Some(unset.clone()));
    assert_eq!(seen(revision("shop:1", json!(0), Some(zero.clone()))), Some(zero));
    assert_eq!(seen(revision("shop:1", Value::Null, None)), Some(unset.clone()));
    // Made before the template had the annotation: what the service is says which of the two it is.
    assert_eq!(seen(revision("shop:2", json!(0), None)), Some(now.clone()));
    // Edited by hand, and the annotation was left: what is there counts.
    assert_eq!(seen(revision("shop:2", json!(0), Some(unset.clone()))), Some(now.clone()));
    assert_eq!(seen(revision("mine:1", json!(0), Some(unset.clone()))), None);
    // What cannot be said in a specification has no hash, and what is only named is not known.
    let mut with_ports = revision("shop:1", Value::Null, Some(unset));
    with_ports.spec["containers"][0]["ports"] = json!([{ "containerPort": 9000 }]);
    assert_eq!(seen(with_ports), None);
    let metadata = Metadata { name: Some("cart-00001".to_owned()), ..Metadata::default() };
    assert_eq!(seen(RevisionResource { metadata, spec: Value::Null }), None);
}

#[test]
fn unknown_is_not_false_and_a_condition_that_is_missing_is_unknown() {
    use ConditionStatus::{False, True, Unknown};
    for (written, expected) in
        [("True", True), ("False", False), ("Unknown", Unknown), ("", Unknown), ("true", Unknown)]
    {
        let mut shown = applied();
        shown["status"] = json!({
            "observedGeneration": 2,
            "conditions": [
                { "type": "ConfigurationsReady", "status": written, "reason": "RevisionFailed", "message": "no image" },
                { "type": "Ready", "status": written },
            ],
        });
        let seen = resource(shown).seen(Vec::new(), MANAGER);
        assert_eq!(seen.readiness(), expected, "{written}");
        assert_eq!(seen.conditions.routes_ready, Condition::default());
        assert_eq!(
            seen.conditions.configurations_ready,
            Condition::because(expected, "RevisionFailed", "no image")
        );
    }
}

#[test]
fn conditions_of_an_earlier_generation_say_nothing() {
    for observed in [json!(1), Value::Null] {
        let mut shown = applied();
        shown["status"] = json!({
            "observedGeneration": observed,
            "conditions": [
                { "type": "Ready", "status": "True" },
                { "type": "ConfigurationsReady", "status": "True" },
                { "type": "RoutesReady", "status": "False" },
            ],
        });
        let seen = resource(shown).seen(Vec::new(), MANAGER);
        assert_eq!(seen.readiness(), ConditionStatus::Unknown);
        for condition in
            [seen.conditions.ready, seen.conditions.configurations_ready, seen.conditions.routes_ready]
        {
            assert_eq!(condition.status, ConditionStatus::Unknown);
        }
    }
}

#[test]
fn revisions_and_routes_are_read_from_what_is_there() {
    let mut shown = applied();
    shown["status"] = json!({
        "latestCreatedRevisionName": "cart-00003",
        "latestReadyRevisionName": "cart-00002",
        "url": "http://cart.shop.example.com",
        "traffic": [
            { "latestRevision": true, "percent": 90, "revisionName": "cart-00002" },
            { "percent": 10, "revisionName": "cart-00001", "tag": "old" },
            { "latestRevision": true },
        ],
    });
    let found = resource(shown);
    let list: RevisionList = serde_json::from_value(json!({ "items": [
        { "metadata": { "name": "cart-00002", "creationTimestamp": "2026-01-02T00:00:00Z" },
          "spec": { "containers": [{ "image": "registry.example/shop:2" }] } },
        { "metadata": { "name": "cart-00001", "creationTimestamp": "2026-01-01T00:00:00Z" } },
    ] }))
    .unwrap();
    let revisions = found.with_revisions_of_status(list.oldest_first());
    let seen = found.seen(revisions, MANAGER);
    let names: Vec<&str> = seen.revisions.iter().map(|revision| revision.name.as_str()).collect();
    assert_eq!(names, ["cart-00001", "cart-00002", "cart-00003"]);
    assert_eq!(seen.revisions[1].image.as_deref(), Some("registry.example/shop:2"));
    assert_eq!(seen.latest_created_revision.as_deref(), Some("cart-00003"));
    assert_eq!(seen.latest_ready_revision.as_deref(), Some("cart-00002"));
    assert_eq!(seen.url.as_deref(), Some("http://cart.shop.example.com"));
    let target = |revision: &str, percent, latest, tag: Option<&str>| RouteTarget {
        revision: revision.to_owned(),
        percent,
        latest,
        tag: tag.map(str::to_owned),
    };
    assert_eq!(
        seen.traffic,
        [
            target("cart-00002", 90, true, None),
            target("cart-00001", 10, false, Some("old")),
            target("cart-00002", 0, true, None)
        ]
    );
}
