//! The Kubernetes adapter against a server that checks each call and plays answers: what goes over the wire, and what each
//! answer means. `kubernetes_server.rs` has the same adapter on a real API server.
#![cfg(feature = "kubernetes")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod played;
mod watch;

use played::{CALL_TIMEOUT, Play, PlayedServer, TOKEN, no, no_service};
use serde_json::{Value, json};
use towpath_hive::gateway::kubernetes::{ConnectError, Credentials, KubernetesGateway, KubernetesSettings};
use towpath_hive::gateway::{
    Applied, Apply, ConditionStatus, Deletion, GatewayError, Observed, ServingGateway,
};
use towpath_hive::spec::{EnvValue, ResourceName, ServiceSpec};

const SERVICE: &str = "/apis/serving.knative.dev/v1/namespaces/shop/services/cart";
const SERVICES: &str = "/apis/serving.knative.dev/v1/services";
const REVISIONS: &str = "/apis/serving.knative.dev/v1/namespaces/shop/revisions";

fn cart() -> ResourceName {
    ResourceName::new("shop", "cart")
}

fn wanted() -> Apply {
    let spec = ServiceSpec {
        image: "registry.example/shop:1".to_owned(),
        env: [("COLOUR".to_owned(), "blue".into())].into(),
        min_scale: Some(1),
        max_scale: Some(3),
        concurrency: Some(50),
        replacement: Some("again".to_owned()),
    };
    Apply { service_id: "shop.cart".to_owned(), resource: cart(), spec_hash: spec.hash(), spec, force: false }
}

/// What the server is to get, to the letter.
fn body(uid: Option<&str>) -> Value {
    let mut body = json!({
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {
            "name": "cart",
            "namespace": "shop",
            "labels": { "towpath.dev/service-id": "shop.cart" },
            "annotations": {
                "towpath.dev/service-id": "shop.cart",
                "towpath.dev/installation": "towpath-hive",
                "towpath.dev/spec-hash": wanted().spec_hash.as_str(),
            },
        },
        "spec": { "template": {
            "metadata": { "annotations": {
                "towpath.dev/spec-hash": wanted().spec_hash.as_str(),
                "autoscaling.knative.dev/min-scale": "1",
                "autoscaling.knative.dev/max-scale": "3",
                "towpath.dev/replacement": "again",
            } },
            "spec": {
                "containerConcurrency": 50,
                "containers": [{
                    "image": "registry.example/shop:1",
                    "env": [{ "name": "COLOUR", "value": "blue" }],
                }],
            },
        } },
    });
    if let Some(uid) = uid {
        body["metadata"]["uid"] = json!(uid);
    }
    body
}

/// The resource as the server shows it.
fn shown(change: impl FnOnce(&mut Value)) -> Play {
    let mut shown = body(Some("uid-1"));
    shown["metadata"]["generation"] = json!(4);
    shown["metadata"]["managedFields"] = json!([{
        "manager": "towpath-hive/shop.cart",
        "operation": "Apply",
        "fieldsV1": { "f:spec": { "f:template": { "f:spec": { "f:containerConcurrency": {} } } } },
    }]);
    change(&mut shown);
    Play::Json(200, shown)
}

fn generation(generation: i64) -> Play {
    shown(|shown| shown["metadata"]["generation"] = json!(generation))
}

fn edited() -> Play {
    shown(|shown| {
        shown["spec"]["template"]["spec"]["containers"][0]["image"] = json!("registry.example/other:1")
    })
}

fn of_another_service() -> Play {
    shown(|shown| shown["metadata"]["labels"]["towpath.dev/service-id"] = json!("other"))
}

/// A hive with a database of its own has made it, for a service of the same name.
fn of_another_installation() -> Play {
    shown(|shown| shown["metadata"]["annotations"]["towpath.dev/installation"] = json!("other-hive"))
}

/// Somebody's tool has taken the label away.
fn without_label() -> Play {
    shown(|shown| shown["metadata"]["labels"] = json!({}))
}

fn being_deleted() -> Play {
    shown(|shown| shown["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"))
}

fn fields_of_others() -> Play {
    let cause = |field: &str| {
        json!({
            "reason": "FieldManagerConflict",
            "message": "conflict with \"kubectl-edit\" using serving.knative.dev/v1",
            "field": field,
        })
    };
    let causes = json!({ "causes": [cause(".spec.template.spec.containers"), cause(".metadata.labels.x")] });
    no(409, "Conflict", causes)
}

#[tokio::test]
async fn a_service_is_made_by_server_side_apply() {
    let made = generation(1);
    let (server, gateway) = PlayedServer::with([no_service(), made]).await;
    let applied = gateway.apply(&wanted()).await.unwrap();
    assert_eq!(applied, Applied { generation: 1, changed: true });

    let asked = server.asked();
    assert_eq!((asked[0].method.as_str(), asked[0].path.as_str()), ("GET", SERVICE));
    let patch = &asked[1];
    assert_eq!((patch.method.as_str(), patch.path.as_str()), ("PATCH", SERVICE));
    assert_eq!(patch.headers["content-type"], "application/apply-patch+yaml");
    assert_eq!(patch.headers["authorization"], format!("Bearer {TOKEN}"));
    assert_eq!(patch.query["fieldManager"], "towpath-hive/shop.cart");
    assert_eq!(patch.query["fieldValidation"], "Strict");
    assert_eq!(patch.query.get("force"), None);
    assert_eq!(patch.body, body(None));
}

#[tokio::test]
async fn what_is_as_wanted_already_is_left_alone() {
    let (server, gateway) = PlayedServer::with([shown(|_| {})]).await;
    let applied = gateway.apply(&wanted()).await.unwrap();
    assert_eq!(applied, Applied { generation: 4, changed: false });
    assert_eq!(server.methods(), ["GET"]);
}

#[tokio::test]
async fn a_change_is_applied_to_the_very_resource_that_was_seen() {
    let changed = generation(5);
    let (server, gateway) = PlayedServer::with([edited(), changed]).await;
    assert_eq!(gateway.apply(&wanted()).await.unwrap(), Applied { generation: 5, changed: true });
    let asked = server.asked();
    assert_eq!(asked[1].body, body(Some("uid-1")));
    assert_eq!(asked[1].query.get("force"), None);
}

#[tokio::test]
async fn a_forced_replacement_takes_fields_over() {
    let changed = generation(5);
    let (server, gateway) = PlayedServer::with([edited(), changed]).await;
    gateway.apply(&Apply { force: true, ..wanted() }).await.unwrap();
    assert_eq!(server.asked()[1].query["force"], "true");
}

#[tokio::test]
async fn a_field_that_somebody_added_is_a_conflict_and_goes_by_force() {
    const PLACES: [&str; 3] = ["/spec/template/metadata/annotations", "/spec/template/spec", "/spec"];
    let spec = ServiceSpec {
        min_scale: None,
        max_scale: None,
        concurrency: None,
        replacement: None,
        ..wanted().spec
    };
    let apply = Apply { spec_hash: spec.hash(), spec, ..wanted() };
    // Added by hand, and not among the fields that are applied: the server says yes and leaves it there.
    let added = |field: usize, name: &str, value: Value| {
        shown(|shown| {
            shown["metadata"]["resourceVersion"] = json!("17");
            shown["metadata"]["managedFields"] = json!([{
                "manager": "kubectl-edit",
                "operation": "Update",
                "fieldsV1": { "f:spec": { "f:template": { "f:spec": { "f:containerConcurrency": {} } } } },
            }]);
            shown["spec"]["template"]["metadata"]["annotations"] = json!({});
            shown["spec"]["template"]["spec"].as_object_mut().unwrap().remove("containerConcurrency");
            if !name.is_empty() {
                shown.pointer_mut(PLACES[field]).unwrap()[name] = value;
            }
        })
    };
    let nothing_added = || added(0, "", Value::Null);
    let fields = [
        (0, "autoscaling.knative.dev/min-scale", json!("2")),
        (0, "autoscaling.knative.dev/max-scale", json!("2")),
        (0, "towpath.dev/replacement", json!("2")),
        (0, "autoscaling.knative.dev/minScale", json!("2")),
        (0, "autoscaling.knative.dev/maxScale", json!("2")),
        (1, "containerConcurrency", json!(2)),
        (1, "initContainers", json!([{ "image": "registry.example/init:1" }])),
        (2, "traffic", json!([{ "revisionName": "cart-00001", "percent": 100 }])),
    ];
    for (field, name, value) in fields {
        let added = || added(field, name, value.clone());
        let (server, gateway) = PlayedServer::with([added(), added()]).await;
        let error = gateway.apply(&apply).await.unwrap_err();
        assert_eq!(
            error,
            GatewayError::Conflict { resource: cart(), by: "kubectl-edit".to_owned() },
            "{name}"
        );
        assert_eq!(server.methods(), ["GET", "PATCH"]);

        let forced = Apply { force: true, ..apply.clone() };
        let (server, gateway) = PlayedServer::with([added(), added(), nothing_added()]).await;
        gateway.apply(&forced).await.expect(name);
        let removal = server.asked().remove(2);
        assert_eq!((removal.method.as_str(), removal.path.as_str()), ("PATCH", SERVICE));
        assert_eq!(removal.headers["content-type"], "application/merge-patch+json");
        assert_eq!(removal.query["fieldManager"], "towpath-hive/shop.cart");
        let mut body = json!({
            "metadata": { "uid": "uid-1", "resourceVersion": "17" },
            "spec": { "template": {} },
        });
        match field {
            0 => body["spec"]["template"]["metadata"]["annotations"][name] = Value::Null,
            1 => body["spec"]["template"]["spec"][name] = Value::Null,
            _ => body["spec"][name] = Value::Null,
        }
        assert_eq!(removal.body, body);

        // Somebody puts it back at once.
        let (_server, gateway) = PlayedServer::with([added(), added(), added()]).await;
        assert!(matches!(gateway.apply(&forced).await, Err(GatewayError::Conflict { .. })), "{name}");
    }
}

#[tokio::test]
async fn by_force_volumes_go_together_with_what_mounts_them() {
    let mounted = || {
        shown(|shown| {
            let pod = &mut shown["spec"]["template"]["spec"];
            pod["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
            pod["initContainers"] = json!([{ "image": "registry.example/init:1" }]);
            pod["volumes"] = json!([{ "name": "data", "emptyDir": {} }]);
        })
    };
    let (server, gateway) = PlayedServer::with([mounted(), generation(5)]).await;
    gateway.apply(&Apply { force: true, ..wanted() }).await.unwrap();
    let mut expected = body(Some("uid-1"));
    expected["spec"]["template"]["spec"]["initContainers"] = json!([]);
    expected["spec"]["template"]["spec"]["volumes"] = json!([]);
    assert_eq!(server.asked()[1].body, expected);

    // Without force they are somebody else's.
    let (server, gateway) = PlayedServer::with([mounted(), fields_of_others()]).await;
    assert!(matches!(gateway.apply(&wanted()).await, Err(GatewayError::Conflict { .. })));
    assert_eq!(server.asked()[1].body, body(Some("uid-1")));
}

#[tokio::test]
async fn fields_of_somebody_else_are_a_conflict() {
    let (server, gateway) = PlayedServer::with([edited(), fields_of_others()]).await;
    let error = gateway.apply(&wanted()).await.unwrap_err();
    assert_eq!(error, GatewayError::Conflict { resource: cart(), by: "kubectl-edit".to_owned() });
    assert!(!error.is_passing());
    assert_eq!(server.methods(), ["GET", "PATCH"]);
}

#[tokio::test]
async fn a_resource_that_was_replaced_meanwhile_is_looked_at_again() {
    // The uid is another one by now. Of a resource that is gone, a server says 409; of one that was made anew, 422.
    let replaced = || no(409, "Conflict", json!({ "name": "cart" }));
    let uid = json!({ "reason": "FieldValueInvalid", "message": "immutable", "field": "metadata.uid" });
    let made_anew = no(422, "Invalid", json!({ "name": "cart", "kind": "Service", "causes": [uid] }));
    for another in [replaced(), made_anew] {
        let made = generation(1);
        let (server, gateway) = PlayedServer::with([edited(), another, no_service(), made]).await;
        assert_eq!(gateway.apply(&wanted()).await.unwrap(), Applied { generation: 1, changed: true });
        assert_eq!(server.asked()[3].body, body(None));
    }

    // Again and again: no answer about the service, so it passes.
    let plays = [edited(), replaced(), edited(), replaced(), edited(), replaced()];
    let (server, gateway) = PlayedServer::with(plays).await;
    assert!(matches!(gateway.apply(&wanted()).await, Err(GatewayError::Unavailable { .. })));
    assert_eq!(server.methods().len(), 6);
}

#[tokio::test]
async fn what_another_service_makes_meanwhile_is_not_taken_over() {
    let (server, gateway) =
        PlayedServer::with([no_service(), fields_of_others(), of_another_service()]).await;
    let error = gateway.apply(&Apply { force: true, ..wanted() }).await.unwrap_err();
    assert_eq!(error, GatewayError::Conflict { resource: cart(), by: "service other".to_owned() });
    let asked = server.asked();
    assert_eq!(asked[1].query.get("force"), None, "there was nothing to take over when it was looked at");
}

#[tokio::test]
async fn a_resource_of_another_service_is_neither_changed_nor_deleted() {
    for force in [false, true] {
        let (server, gateway) = PlayedServer::with([of_another_service()]).await;
        let error = gateway.apply(&Apply { force, ..wanted() }).await.unwrap_err();
        assert_eq!(error, GatewayError::Conflict { resource: cart(), by: "service other".to_owned() });
        assert_eq!(server.methods(), ["GET"]);
    }
    let (server, gateway) = PlayedServer::with([of_another_service()]).await;
    assert_eq!(gateway.delete("shop.cart", &cart()).await.unwrap(), Deletion::NotFound);
    assert_eq!(server.methods(), ["GET"]);
}

#[tokio::test]
async fn a_resource_of_another_installation_is_neither_changed_nor_deleted_nor_taken_for_ours() {
    for force in [false, true] {
        let (server, gateway) = PlayedServer::with([of_another_installation()]).await;
        let error = gateway.apply(&Apply { force, ..wanted() }).await.unwrap_err();
        let by = "installation other-hive".to_owned();
        assert_eq!(error, GatewayError::Conflict { resource: cart(), by });
        assert_eq!(server.methods(), ["GET"]);
    }
    let (server, gateway) = PlayedServer::with([of_another_installation()]).await;
    assert_eq!(gateway.delete("shop.cart", &cart()).await.unwrap(), Deletion::NotFound);
    assert_eq!(server.methods(), ["GET"]);
    let no_revisions = Play::Json(200, json!({ "items": [] }));
    let (_server, gateway) = PlayedServer::with([of_another_installation(), no_revisions]).await;
    let Observed::Found(found) = gateway.observe(&cart()).await.unwrap() else { panic!("it is there") };
    assert_eq!(found.service_id.as_deref(), Some("other-hive/shop.cart"));
}

#[tokio::test]
async fn an_installation_writes_its_own_name() {
    let (server, _) = PlayedServer::with([no_service(), generation(1)]).await;
    let settings = KubernetesSettings { field_manager: "other-hive".to_owned(), ..server.settings() };
    KubernetesGateway::connect(settings).await.unwrap().apply(&wanted()).await.unwrap();
    let patch = &server.asked()[1];
    assert_eq!(patch.query["fieldManager"], "other-hive/shop.cart");
    assert_eq!(patch.body["metadata"]["annotations"]["towpath.dev/installation"], "other-hive");

    for field_manager in ["", "towpath/hive", &"a".repeat(65)] {
        let settings = KubernetesSettings { field_manager: field_manager.to_owned(), ..server.settings() };
        let refused = KubernetesGateway::connect(settings).await.err();
        assert_eq!(refused, Some(ConnectError::FieldManager), "{field_manager}");
    }
}

#[tokio::test]
async fn a_service_without_its_label_is_still_ours() {
    let accepted = Play::Json(200, json!({ "kind": "Status", "status": "Success" }));
    let (server, gateway) = PlayedServer::with([without_label(), accepted]).await;
    assert_eq!(gateway.delete("shop.cart", &cart()).await.unwrap(), Deletion::Accepted);
    assert_eq!(server.methods(), ["GET", "DELETE"]);

    let no_revisions = Play::Json(200, json!({ "items": [] }));
    let (_server, gateway) = PlayedServer::with([without_label(), no_revisions]).await;
    let Observed::Found(found) = gateway.observe(&cart()).await.unwrap() else { panic!("it is there") };
    assert_eq!(found.service_id.as_deref(), Some("shop.cart"));

    // Applying brings the label back: hints go by it. Nothing that runs is changed by that.
    let (server, gateway) = PlayedServer::with([without_label(), generation(4)]).await;
    assert_eq!(gateway.apply(&wanted()).await.unwrap(), Applied { generation: 4, changed: false });
    assert_eq!(server.asked()[1].body, body(Some("uid-1")));

    // Neither label nor annotation: somebody made it by hand.
    let by_hand = || shown(|shown| shown["metadata"] = json!({ "name": "cart", "uid": "uid-1" }));
    let (server, gateway) = PlayedServer::with([by_hand()]).await;
    assert_eq!(gateway.delete("shop.cart", &cart()).await.unwrap(), Deletion::NotFound);
    assert_eq!(server.methods(), ["GET"]);
}

#[tokio::test]
async fn one_that_is_being_deleted_is_waited_for() {
    let (server, gateway) = PlayedServer::with([being_deleted()]).await;
    assert!(matches!(gateway.apply(&wanted()).await, Err(GatewayError::Unavailable { .. })));
    assert_eq!(server.methods(), ["GET"]);
}

#[tokio::test]
async fn a_missing_namespace_or_kind_is_not_a_missing_service() {
    let no_namespace = || no(404, "NotFound", json!({ "name": "shop", "kind": "namespaces" }));
    let (_server, gateway) = PlayedServer::with([no_service(), no_namespace()]).await;
    let error = gateway.apply(&wanted()).await.unwrap_err();
    assert_eq!(error, GatewayError::NotFound { what: "namespace shop".to_owned() });

    // What a server answers whose CRD is not installed, and what a proxy may answer.
    let other = json!({ "name": "other", "group": "serving.knative.dev", "kind": "services" });
    for play in [|| Play::Text(404, "404 page not found\n"), || Play::Json(404, json!({ "error": "who?" }))] {
        let plays = [play(), play(), play(), play(), no(404, "NotFound", other.clone())];
        let (_server, gateway) = PlayedServer::with(plays).await;
        let observed = gateway.observe(&cart()).await;
        assert!(matches!(observed, Err(GatewayError::NotFound { .. })), "{observed:?}");
        assert!(matches!(gateway.delete("shop.cart", &cart()).await, Err(GatewayError::NotFound { .. })));
        let error = gateway.apply(&wanted()).await.unwrap_err();
        assert!(matches!(&error, GatewayError::NotFound { what } if what.contains("Knative")), "{error:?}");
        assert!(matches!(gateway.namespace_exists("shop").await, Err(GatewayError::NotFound { .. })));
        assert!(gateway.observe(&cart()).await.is_err(), "the absence of another one says nothing");
    }
}

#[tokio::test]
async fn refusals_are_told_from_what_passes_by_the_status_code() {
    for (code, passes) in [
        (400, false),
        (403, false),
        (405, false),
        (413, false),
        (422, false),
        (401, true),
        (408, true),
        (500, true),
        (502, true),
        (503, true),
        (504, true),
    ] {
        let bodies = [
            no(code, "Played", Value::Null),
            Play::Text(code, "<html>a proxy</html>"),
            Play::Json(code, json!({ "kind": "Status", "code": 200 })),
        ];
        for play in bodies {
            let (server, gateway) = PlayedServer::with([no_service(), play]).await;
            let error = gateway.apply(&wanted()).await.unwrap_err();
            assert_eq!(error.is_passing(), passes, "{code}: {error:?}");
            let expected = if passes { "gateway-unavailable" } else { "gateway-refused" };
            assert_eq!(error.code(), expected, "{code}");
            // Whether and when it is asked again is not the adapter's to decide.
            assert_eq!(server.methods(), ["GET", "PATCH"], "{code}");
        }
    }
    let invalid = no(422, "Invalid", json!({ "name": "cart", "kind": "services" }));
    let (_server, gateway) = PlayedServer::with([no_service(), invalid]).await;
    let refused =
        GatewayError::Refused { reason: "Invalid".to_owned(), message: "played Invalid".to_owned() };
    assert_eq!(gateway.apply(&wanted()).await.unwrap_err(), refused);
}

/// A server that takes no more requests is there: it is left alone for as long as it says, by all calls.
#[tokio::test]
async fn a_busy_server_is_left_alone_for_as_long_as_it_says() {
    let details = json!({ "retryAfterSeconds": 7 });
    let seconds = std::time::Duration::from_secs;
    for (play, rest) in [
        (no(429, "TooManyRequests", details.clone()), 7),
        (Play::Busy("120"), 120),
        (Play::Busy("100000"), 300),
        (Play::Busy("soon"), 1),
        (Play::Text(429, "<html>a proxy</html>"), 1),
    ] {
        let (server, gateway) = PlayedServer::with([play]).await;
        let error = gateway.observe(&cart()).await.unwrap_err();
        assert_eq!(error, GatewayError::Busy { retry_after: seconds(rest) });
        assert_eq!((error.code(), error.is_passing()), ("gateway-busy", true));
        // Nobody asks before that, and it counts as there.
        let again = gateway.apply(&wanted()).await.unwrap_err();
        assert!(
            matches!(again, GatewayError::Busy { retry_after } if retry_after <= seconds(rest)),
            "{again:?}"
        );
        assert!(matches!(gateway.delete("shop.cart", &cart()).await, Err(GatewayError::Busy { .. })));
        assert_eq!(gateway.reachable().await, Ok(()));
        assert_eq!(server.methods(), ["GET"], "one request");
    }
    let (server, gateway) = PlayedServer::with([Play::Busy("1"), no_service()]).await;
    assert!(gateway.observe(&cart()).await.is_err());
    let observed = eventually_not_busy(&gateway).await;
    assert_eq!(observed, Ok(Observed::NotFound));
    assert_eq!(server.methods(), ["GET", "GET"]);
}

async fn eventually_not_busy(gateway: &KubernetesGateway) -> Result<Observed, GatewayError> {
    loop {
        match gateway.observe(&cart()).await {
            Err(GatewayError::Busy { retry_after }) => tokio::time::sleep(retry_after).await,
            answer => return answer,
        }
    }
}

/// What a secret keeps is referred to, and never read.
#[tokio::test]
async fn a_variable_may_refer_to_a_secret() {
    let mut apply = wanted();
    apply.spec.env.insert("TOKEN".to_owned(), EnvValue::from_secret("tokens", "cart"));
    apply.spec_hash = apply.spec.hash();
    let reference =
        json!({ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "tokens", "key": "cart" } } });
    let with_token = |change: &dyn Fn(&mut Value)| {
        let (reference, hash) = (reference.clone(), apply.spec_hash.clone());
        let mut token = reference;
        change(&mut token);
        shown(|shown| {
            let env = &mut shown["spec"]["template"]["spec"]["containers"][0]["env"];
            *env = json!([{ "name": "COLOUR", "value": "blue" }, token]);
            for place in ["/metadata/annotations", "/spec/template/metadata/annotations"] {
                shown.pointer_mut(place).unwrap()["towpath.dev/spec-hash"] = json!(hash.as_str());
            }
        })
    };
    let (server, gateway) = PlayedServer::with([no_service(), with_token(&|_| {})]).await;
    gateway.apply(&apply).await.unwrap();
    let sent = &server.asked()[1].body["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(*sent, json!([{ "name": "COLOUR", "value": "blue" }, reference]));

    let hash_of = async |change: &dyn Fn(&mut Value)| {
        let revisions = Play::Json(200, json!({ "items": [] }));
        let (_server, gateway) = PlayedServer::with([with_token(change), revisions]).await;
        let Observed::Found(found) = gateway.observe(&cart()).await.unwrap() else { panic!("not found") };
        found.spec_hash
    };
    assert_eq!(hash_of(&|_| {}).await.as_ref(), Some(&apply.spec_hash));
    assert_eq!(
        hash_of(&|token| token["valueFrom"]["secretKeyRef"]["optional"] = json!(false)).await.as_ref(),
        Some(&apply.spec_hash)
    );
    let edits: [fn(&mut Value); 6] = [
        |token| token["valueFrom"]["secretKeyRef"]["key"] = json!("other"),
        |token| token["valueFrom"]["secretKeyRef"]["optional"] = json!(true),
        |token| token["valueFrom"] = json!({ "configMapKeyRef": { "name": "tokens", "key": "cart" } }),
        |token| token["valueFrom"]["fieldRef"] = json!({ "fieldPath": "metadata.name" }),
        |token| token["value"] = json!("written out"),
        |token| *token = json!({ "name": "TOKEN", "value": "tokens" }),
    ];
    for (number, edit) in edits.iter().enumerate() {
        assert_ne!(hash_of(edit).await.as_ref(), Some(&apply.spec_hash), "edit {number}");
    }
}

#[tokio::test]
async fn no_answer_says_nothing_about_the_service() {
    let (_server, gateway) = PlayedServer::with([Play::Silence]).await;
    let began = std::time::Instant::now();
    assert_eq!(gateway.observe(&cart()).await.unwrap_err(), GatewayError::Timeout { after: CALL_TIMEOUT });
    assert!(began.elapsed() < CALL_TIMEOUT * 3);

    let (_server, gateway) = PlayedServer::with([Play::Cut]).await;
    assert!(matches!(gateway.observe(&cart()).await, Err(GatewayError::Unavailable { .. })));

    // Nobody listens any more.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let kubeconfig = json!({
        "clusters": [{ "name": "a", "cluster": { "server": format!("http://{address}") } }],
        "users": [{ "name": "a", "user": {} }],
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
    });
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let credentials = Credentials::Kubeconfig { path: path.clone(), context: Some("a".to_owned()) };
    let settings = KubernetesSettings { credentials, call_timeout: CALL_TIMEOUT, ..Default::default() };
    let gateway = KubernetesGateway::connect(settings).await.unwrap();
    assert!(matches!(gateway.observe(&cart()).await, Err(GatewayError::Unavailable { .. })));
    assert!(matches!(gateway.watch().await, Err(GatewayError::Unavailable { .. })));

    // No current context, and no such context.
    for context in [None, Some("b".to_owned())] {
        let credentials = Credentials::Kubeconfig { path: path.clone(), context };
        let settings = KubernetesSettings { credentials, ..Default::default() };
        assert!(KubernetesGateway::connect(settings).await.is_err());
    }
}

#[tokio::test]
async fn whether_the_server_is_there_is_asked_of_the_server_itself() {
    let plays = [
        Play::Json(200, json!({ "items": [] })),
        no(403, "Forbidden", Value::Null),
        Play::Text(404, "404 page not found\n"),
    ];
    let (server, gateway) = PlayedServer::with(plays).await;
    for _ in 0..3 {
        gateway.reachable().await.expect("an answer is an answer, also that it does not tell");
    }
    // Not of what a server answers by itself: one that has lost its storage still tells its version.
    for asked in server.asked() {
        assert_eq!((asked.method.as_str(), asked.path.as_str()), ("GET", SERVICES));
        assert_eq!(asked.query["limit"], "1");
    }
    for play in [no(401, "Unauthorized", Value::Null), no(503, "Unavailable", Value::Null), Play::Cut] {
        let (_server, gateway) = PlayedServer::with([play]).await;
        assert!(matches!(gateway.reachable().await, Err(GatewayError::Unavailable { .. })));
    }
    let (_server, gateway) = PlayedServer::with([Play::Silence]).await;
    assert!(matches!(gateway.reachable().await, Err(GatewayError::Timeout { .. })));
}

#[tokio::test]
async fn a_kubeconfig_that_is_wrong_is_refused_without_quoting_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let credentials = Credentials::Kubeconfig { path: path.clone(), context: None };
    let settings = KubernetesSettings { credentials, ..Default::default() };
    for content in [
        "users: [{name: a, user: {token: secret-of-hive",
        "users: [{name: a, user: {token: {secret-of-hive: 1}}}]",
        "users: [{name: a, user: {token: secret-of-hive}}]",
    ] {
        std::fs::write(&path, content).unwrap();
        let Err(error) = KubernetesGateway::connect(settings.clone()).await else { panic!("{content}") };
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
    std::fs::remove_file(&path).unwrap();
    let Err(error) = KubernetesGateway::connect(settings).await else { panic!("there is no file") };
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
}

#[tokio::test]
async fn a_proxy_of_the_kubeconfig_leads_to_the_cluster() {
    let (server, _) = PlayedServer::with([no_service()]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let through = |proxy: &str| {
        let cluster = json!({ "server": "http://cluster.example:6443", "proxy-url": proxy });
        let kubeconfig = json!({
            "clusters": [{ "name": "a", "cluster": cluster }],
            "contexts": [{ "name": "a", "context": { "cluster": "a" } }],
            "current-context": "a",
        });
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        let credentials = Credentials::Kubeconfig { path: path.clone(), context: None };
        KubernetesSettings { credentials, call_timeout: CALL_TIMEOUT, ..Default::default() }
    };
    let gateway = KubernetesGateway::connect(through(&format!("http://me:secret@{}", server.address())));
    assert_eq!(gateway.await.unwrap().observe(&cart()).await.unwrap(), Observed::NotFound);
    let asked = server.asked();
    assert_eq!((asked[0].method.as_str(), asked[0].path.as_str()), ("CONNECT", "cluster.example:6443"));
    assert_eq!(asked[0].headers["proxy-authorization"], "Basic bWU6c2VjcmV0");
    assert_eq!((asked[1].method.as_str(), asked[1].path.as_str()), ("GET", SERVICE));

    for wrong in ["socks5://me:secret@proxy.example:1080", "http://me:secret@", "me:secret@a proxy"] {
        let Err(error) = KubernetesGateway::connect(through(wrong)).await else { panic!("{wrong}") };
        let told = format!("{error} {error:?}");
        assert!(told.contains("proxy-url") && !told.contains("secret"), "{told}");
    }
}

/// The environment belongs to the whole process, so each one has a process of its own: this very test, which then only
/// looks at a service and compares what comes of that.
#[tokio::test]
async fn a_proxy_of_the_environment_leads_to_the_cluster_unless_it_is_excepted() {
    const NAME: &str = "a_proxy_of_the_environment_leads_to_the_cluster_unless_it_is_excepted";
    if let (Some(path), Ok(expected)) = (std::env::var_os("LOOK_WITH"), std::env::var("LOOK_ENDS_WITH")) {
        let credentials = Credentials::Kubeconfig { path: path.into(), context: None };
        let settings = KubernetesSettings { credentials, call_timeout: CALL_TIMEOUT, ..Default::default() };
        let ended = match KubernetesGateway::connect(settings).await {
            Ok(gateway) => match gateway.observe(&cart()).await {
                Ok(observed) => format!("{observed:?}"),
                Err(error) => error.code().to_owned(),
            },
            Err(error) => error.to_string(),
        };
        assert!(ended.starts_with(&expected) && !ended.contains("secret"), "{ended}");
        return;
    }
    let (server, _) = PlayedServer::with([no_service()]).await;
    let folder = tempfile::tempdir().unwrap();
    let looks = async |cluster: &str, variables: &[(&str, &str)], expected: &str| {
        let path = folder.path().join("kubeconfig");
        let kubeconfig = json!({
            "clusters": [{ "name": "a", "cluster": { "server": cluster } }],
            "contexts": [{ "name": "a", "context": { "cluster": "a" } }],
            "current-context": "a",
        });
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        let mut look = tokio::process::Command::new(std::env::current_exe().unwrap());
        look.args(["--exact", NAME]).env("LOOK_WITH", &path).env("LOOK_ENDS_WITH", expected);
        for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"] {
            look.env_remove(name);
        }
        let output = look.envs(variables.iter().copied()).output().await.unwrap();
        assert!(output.status.success(), "{variables:?}: {}", String::from_utf8_lossy(&output.stdout));
    };
    let proxy = format!("http://me:secret@{}", server.address());
    let socks = ("HTTPS_PROXY", "socks5://me:secret@proxy.example");
    let (plain, secure) = ("http://cluster.invalid:6443", "https://cluster.invalid:6443");

    looks(plain, &[socks, ("HTTP_PROXY", &proxy)], "NotFound").await;
    let asked = server.asked();
    assert_eq!((asked[0].method.as_str(), asked[0].path.as_str()), ("CONNECT", "cluster.invalid:6443"));
    assert_eq!((asked[1].method.as_str(), asked[1].path.as_str()), ("GET", SERVICE));
    // What speaks TLS gets no answer from this server, and has come through the proxy all the same.
    looks(secure, &[("HTTPS_PROXY", &proxy)], "gateway-").await;
    assert_eq!(server.methods(), ["CONNECT", "GET", "CONNECT"]);
    // There is no such cluster, and nobody is asked the way.
    looks(secure, &[("HTTPS_PROXY", &proxy), ("NO_PROXY", "a.example,.invalid")], "gateway-").await;
    looks(secure, &[socks, ("no_proxy", "*")], "gateway-").await;
    assert_eq!(server.methods().len(), 3);
    looks(secure, &[socks], "HTTPS_PROXY cannot be used").await;
    looks(secure, &[("https_proxy", "http://me:secret@a b")], "HTTPS_PROXY cannot be used").await;
    looks(secure, &[("HTTPS_PROXY", &proxy), ("NO_PROXY", "a,,b")], "NO_PROXY cannot be used").await;
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_not_repeated_in_words() {
    let secret = json!({ "metadata": { "generation": "secret-of-the-container" } });
    let (_server, gateway) =
        PlayedServer::with([Play::Json(200, secret), Play::Text(200, "secret-of-the-container")]).await;
    for _ in 0..2 {
        let error = gateway.observe(&cart()).await.unwrap_err();
        assert!(matches!(error, GatewayError::Unavailable { .. }), "{error:?}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
}

#[tokio::test]
async fn a_service_is_deleted_with_all_that_it_owns() {
    let accepted = Play::Json(200, json!({ "kind": "Status", "status": "Success" }));
    let (server, gateway) = PlayedServer::with([shown(|_| {}), accepted]).await;
    assert_eq!(gateway.delete("shop.cart", &cart()).await.unwrap(), Deletion::Accepted);
    let delete = &server.asked()[1];
    assert_eq!((delete.method.as_str(), delete.path.as_str()), ("DELETE", SERVICE));
    assert_eq!(
        delete.body,
        json!({ "propagationPolicy": "Foreground", "preconditions": { "uid": "uid-1" } })
    );
}

#[tokio::test]
async fn a_deletion_has_the_effect_of_one() {
    let (server, gateway) = PlayedServer::with([no_service()]).await;
    assert_eq!(gateway.delete("shop.cart", &cart()).await.unwrap(), Deletion::NotFound);
    assert_eq!(server.methods(), ["GET"]);

    let (server, gateway) = PlayedServer::with([being_deleted()]).await;
    assert_eq!(gateway.delete("shop.cart", &cart()).await.unwrap(), Deletion::Accepted);
    assert_eq!(server.methods(), ["GET"]);

    // Somebody else was quicker, and somebody made another one of that name.
    let (_server, gateway) = PlayedServer::with([shown(|_| {}), no_service()]).await;
    assert_eq!(gateway.delete("shop.cart", &cart()).await.unwrap(), Deletion::NotFound);
    let replaced = no(409, "Conflict", json!({ "name": "cart" }));
    let (server, gateway) = PlayedServer::with([shown(|_| {}), replaced, of_another_service()]).await;
    assert_eq!(gateway.delete("shop.cart", &cart()).await.unwrap(), Deletion::NotFound);
    assert_eq!(server.methods(), ["GET", "DELETE", "GET"]);

    let (_server, gateway) = PlayedServer::with([shown(|_| {}), no(403, "Forbidden", Value::Null)]).await;
    assert!(matches!(gateway.delete("shop.cart", &cart()).await, Err(GatewayError::Refused { .. })));
}

#[tokio::test]
async fn a_look_shows_the_service_and_its_revisions() {
    let with_status = || {
        shown(|shown| {
            shown["status"] = json!({
                "observedGeneration": 4,
                "conditions": [{ "type": "Ready", "status": "True" }],
                "latestReadyRevisionName": "cart-00001",
                "traffic": [{ "revisionName": "cart-00001", "percent": 100, "latestRevision": true }],
                "url": "http://cart.shop.example.com",
            });
        })
    };
    let revisions = Play::Json(
        200,
        json!({ "items": [{
        "metadata": {
            "name": "cart-00001",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": { "autoscaling.knative.dev/min-scale": "7" },
        },
        "spec": { "containers": [{ "image": "registry.example/shop:1" }] },
    }] }),
    );
    let (server, gateway) = PlayedServer::with([with_status(), revisions]).await;
    let Observed::Found(found) = gateway.observe(&cart()).await.unwrap() else { panic!("it is there") };
    assert_eq!(found.spec_hash, Some(wanted().spec_hash));
    assert_eq!(found.readiness(), ConditionStatus::True);
    assert_eq!(found.service_id.as_deref(), Some("shop.cart"));
    assert_eq!(found.revisions[0].image.as_deref(), Some("registry.example/shop:1"));
    let earlier = ServiceSpec {
        image: "registry.example/shop:1".to_owned(),
        min_scale: Some(7),
        ..ServiceSpec::default()
    };
    assert_eq!(found.revisions[0].spec_hash, Some(earlier.hash()), "not that of the service as it is now");
    assert_eq!(found.traffic[0].revision, "cart-00001");
    let asked = server.asked();
    assert_eq!((asked[0].method.as_str(), asked[0].path.as_str()), ("GET", SERVICE));
    assert_eq!((asked[1].method.as_str(), asked[1].path.as_str()), ("GET", REVISIONS));
    assert_eq!(asked[1].query["labelSelector"], "serving.knative.dev/service=cart");

    // Where revisions are not served, or may not be read, the status names them.
    for play in [Play::Text(404, "404 page not found\n"), no(403, "Forbidden", Value::Null)] {
        let (_server, gateway) = PlayedServer::with([with_status(), play]).await;
        let Observed::Found(found) = gateway.observe(&cart()).await.unwrap() else { panic!("it is there") };
        assert_eq!(found.revisions.len(), 1);
        assert_eq!((found.revisions[0].name.as_str(), &found.revisions[0].image), ("cart-00001", &None));
    }
    // That they cannot be read now does not mean that there are none.
    let (_server, gateway) = PlayedServer::with([with_status(), Play::Text(503, "")]).await;
    assert!(matches!(gateway.observe(&cart()).await, Err(GatewayError::Unavailable { .. })));

    let (server, gateway) = PlayedServer::with([no_service()]).await;
    assert_eq!(gateway.observe(&cart()).await.unwrap(), Observed::NotFound);
    assert_eq!(server.methods(), ["GET"]);
}

#[tokio::test]
async fn a_namespace_is_asked_for_by_its_name() {
    let there = Play::Json(200, json!({ "kind": "Namespace", "metadata": { "name": "shop" } }));
    let missing = no(404, "NotFound", json!({ "name": "shop", "kind": "namespaces" }));
    let (server, gateway) = PlayedServer::with([there, missing, no(403, "Forbidden", Value::Null)]).await;
    assert!(gateway.namespace_exists("shop").await.unwrap());
    assert!(!gateway.namespace_exists("shop").await.unwrap());
    assert!(matches!(gateway.namespace_exists("shop").await, Err(GatewayError::Refused { .. })));
    assert!(
        server.asked().iter().all(|asked| asked.path == "/api/v1/namespaces/shop" && asked.method == "GET")
    );
}

#[tokio::test]
async fn a_name_cannot_lead_to_another_path() {
    let (server, gateway) = PlayedServer::with([]).await;
    for name in ["../secrets", "a/b", "", "a?force=true", "A", ".."] {
        for resource in [ResourceName::new("shop", name), ResourceName::new(name, "cart")] {
            assert!(
                matches!(gateway.observe(&resource).await, Err(GatewayError::Refused { .. })),
                "{resource}"
            );
            assert!(gateway.delete("shop.cart", &resource).await.is_err());
            assert!(gateway.apply(&Apply { resource, ..wanted() }).await.is_err());
        }
        assert!(gateway.namespace_exists(name).await.is_err());
    }
    assert!(server.asked().is_empty());
    assert_ne!(server.address().port(), 0);
}
