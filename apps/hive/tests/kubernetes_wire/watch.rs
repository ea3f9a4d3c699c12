//! The watch: what is told, and how it goes on when connections end and versions are forgotten.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use serde_json::{Value, json};
use towpath_hive::gateway::kubernetes::{KubernetesGateway, KubernetesSettings};
use towpath_hive::gateway::{GatewayError, ServingGateway};
use towpath_hive::spec::ResourceName;

use crate::played::{Asked, CALL_TIMEOUT, End, Play, PlayedServer, no};

const SERVICES: &str = "/apis/serving.knative.dev/v1/services";

fn object(name: &str, version: u32) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1",
        "kind": "PartialObjectMetadata",
        "metadata": { "name": name, "namespace": "shop", "resourceVersion": version.to_string() },
    })
}

fn list(version: u32, objects: &[Value]) -> Play {
    Play::Json(200, page(version, objects, ""))
}

/// One of several pages of a list, with what leads to the next one.
fn page(version: u32, objects: &[Value], next: &str) -> Value {
    let metadata = json!({ "resourceVersion": version.to_string(), "continue": next });
    let kind = "PartialObjectMetadataList";
    json!({ "apiVersion": "meta.k8s.io/v1", "kind": kind, "metadata": metadata, "items": objects })
}

fn event(kind: &str, object: Value) -> Value {
    json!({ "type": kind, "object": object })
}

fn bookmark(version: u32) -> Value {
    let metadata = json!({ "resourceVersion": version.to_string(), "creationTimestamp": null });
    json!({ "type": "BOOKMARK", "object": {
        "apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": metadata,
    } })
}

fn forgotten() -> Value {
    json!({ "type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired",
        "message": "too old resource version",
    } })
}

async fn next(hints: &mut BoxStream<'static, ResourceName>) -> Option<String> {
    let next = tokio::time::timeout(Duration::from_secs(20), hints.next());
    next.await.expect("nothing was told in time").map(|name| name.to_string())
}

async fn watched(gateway: &KubernetesGateway) -> BoxStream<'static, ResourceName> {
    gateway.watch().await.unwrap().expect("this platform tells of changes")
}

fn is_watch(asked: &Asked) -> bool {
    asked.query.get("watch").is_some_and(|watch| watch == "true")
}

#[tokio::test]
async fn a_watch_lists_once_and_tells_what_changes_from_then_on() {
    let changes = vec![
        event("MODIFIED", object("one", 11)),
        event("ADDED", object("three", 12)),
        event("DELETED", object("two", 13)),
    ];
    let plays = [list(10, &[object("one", 1), object("two", 2)]), Play::Watch(changes, End::Never)];
    let (server, gateway) = PlayedServer::with(plays).await;
    let mut hints = watched(&gateway).await;
    // Not what was there before: that would be a look at every service of the cluster.
    for expected in ["shop/one", "shop/three", "shop/two"] {
        assert_eq!(next(&mut hints).await.as_deref(), Some(expected));
    }
    let asked = server.asked();
    let (first, second) = (&asked[0], &asked[1]);
    assert_eq!((first.method.as_str(), first.path.as_str()), ("GET", SERVICES));
    assert!(!is_watch(first) && is_watch(second));
    for asked in &asked {
        assert_eq!(asked.query["labelSelector"], "towpath.dev/service-id", "ours alone");
        assert!(asked.headers["accept"].contains("as=PartialObjectMetadata"), "{:?}", asked.headers);
    }
    assert_eq!(second.query["resourceVersion"], "10");
    assert_eq!(second.query["allowWatchBookmarks"], "true");
    assert_eq!(second.query["timeoutSeconds"], "290");
}

#[tokio::test]
async fn a_watch_goes_on_from_the_last_version_when_its_connection_ends() {
    let plays = [
        list(10, &[]),
        Play::Watch(vec![event("ADDED", object("one", 11)), bookmark(20)], End::Orderly),
        Play::Watch(vec![event("MODIFIED", object("one", 21))], End::Cut),
        Play::Watch(vec![event("MODIFIED", object("one", 22))], End::Never),
    ];
    let (server, gateway) = PlayedServer::with(plays).await;
    let mut hints = watched(&gateway).await;
    for _ in 0..3 {
        assert_eq!(next(&mut hints).await.as_deref(), Some("shop/one"));
    }
    let versions: Vec<String> = server
        .asked()
        .iter()
        .filter(|asked| is_watch(asked))
        .map(|asked| asked.query["resourceVersion"].clone())
        .collect();
    assert_eq!(versions, ["10", "20", "21"], "the bookmark counts, and so does the last event");
}

#[tokio::test]
async fn when_the_server_has_forgotten_the_version_only_what_differs_is_told() {
    let before = [object("same", 1), object("changed", 2), object("gone", 3)];
    let after = [object("same", 1), object("changed", 30), object("made", 31)];
    let plays = [
        list(10, &before),
        Play::Watch(vec![forgotten()], End::Orderly),
        list(40, &after),
        Play::Watch(vec![event("MODIFIED", object("same", 41))], End::Never),
    ];
    let (server, gateway) = PlayedServer::with(plays).await;
    let mut hints = watched(&gateway).await;
    let mut told = Vec::new();
    for _ in 0..4 {
        told.extend(next(&mut hints).await);
    }
    assert_eq!(told, ["shop/changed", "shop/made", "shop/gone", "shop/same"]);
    assert_eq!(server.asked()[3].query["resourceVersion"], "40");
}

#[tokio::test]
async fn a_watch_that_cannot_go_on_ends_and_the_next_one_tells_what_was_missed() {
    let plays = [
        list(10, &[object("one", 1)]),
        Play::Watch(Vec::new(), End::Orderly),
        no(403, "Forbidden", Value::Null),
    ];
    let (server, gateway) = PlayedServer::with(plays).await;
    let mut hints = watched(&gateway).await;
    assert_eq!(next(&mut hints).await, None);

    server.also(list(20, &[object("one", 15)]));
    server.also(Play::Watch(Vec::new(), End::Never));
    let mut hints = watched(&gateway).await;
    assert_eq!(next(&mut hints).await.as_deref(), Some("shop/one"));
}

#[tokio::test]
async fn a_server_that_forgets_every_version_is_not_asked_without_end() {
    let forgetting = (0..4).flat_map(|_| [list(10, &[]), Play::Watch(vec![forgotten()], End::Orderly)]);
    let (server, gateway) = PlayedServer::with(forgetting).await;
    let mut hints = watched(&gateway).await;
    assert_eq!(next(&mut hints).await, None);
    assert_eq!(server.asked().len(), 8);
}

#[tokio::test]
async fn a_watch_that_cannot_begin_says_why() {
    let refused = no(403, "Forbidden", Value::Null);
    let missing = Play::Text(404, "404 page not found\n");
    let plays = [refused, missing, Play::Text(503, ""), Play::Cut, Play::Silence];
    let (server, gateway) = PlayedServer::with(plays).await;
    let mut codes = Vec::new();
    for _ in 0..5 {
        codes.extend(gateway.watch().await.err().map(|error: GatewayError| error.code()));
    }
    let unavailable = "gateway-unavailable";
    assert_eq!(codes, ["gateway-refused", "gateway-not-found", unavailable, unavailable, "gateway-timeout"]);
    assert_eq!(server.asked().len(), 5);
}

#[tokio::test]
async fn each_page_of_a_list_has_the_time_of_one_call() {
    // Together they take longer than one call may.
    let slow = |objects: &[Value], next: &str| Play::Slow(CALL_TIMEOUT / 2, page(10, objects, next));
    let plays = [
        slow(&[object("one", 1)], "second"),
        slow(&[object("two", 2)], "third"),
        slow(&[object("three", 3)], ""),
        Play::Watch(vec![event("MODIFIED", object("two", 11))], End::Never),
    ];
    let (server, gateway) = PlayedServer::with(plays).await;
    let mut hints = watched(&gateway).await;
    assert_eq!(next(&mut hints).await.as_deref(), Some("shop/two"));
    let asked = server.asked();
    let pages: Vec<_> = asked.iter().map(|asked| asked.query.get("continue").map(String::as_str)).collect();
    assert_eq!(pages, [None, Some("second"), Some("third"), None]);
    assert_eq!(asked[3].query["resourceVersion"], "10");

    // A page that does not come ends the watch. Who then begins anew is told what differs from what was known before.
    let plays = [Play::Json(200, page(20, &[object("one", 1)], "second")), Play::Silence];
    plays.into_iter().for_each(|play| server.also(play));
    let mut hints = watched(&gateway).await;
    assert_eq!(next(&mut hints).await, None);
    server.also(list(30, &[object("one", 1), object("two", 11), object("three", 25)]));
    server.also(Play::Watch(Vec::new(), End::Never));
    let mut hints = watched(&gateway).await;
    assert_eq!(next(&mut hints).await.as_deref(), Some("shop/three"));
}

#[tokio::test]
async fn a_watch_keeps_to_its_namespace_if_it_has_one() {
    let (server, _) = PlayedServer::with([list(10, &[]), Play::Watch(Vec::new(), End::Never)]).await;
    let settings = KubernetesSettings {
        namespace: Some("shop".to_owned()),
        watch_timeout: Duration::from_secs(1),
        call_timeout: CALL_TIMEOUT,
        ..server.settings()
    };
    let gateway = KubernetesGateway::connect(settings).await.unwrap();
    let mut hints = watched(&gateway).await;
    // A server that says nothing any more, not even that it is quiet, is asked again.
    server.also(Play::Watch(vec![event("ADDED", object("one", 11))], End::Never));
    assert_eq!(next(&mut hints).await.as_deref(), Some("shop/one"));
    let namespaced = "/apis/serving.knative.dev/v1/namespaces/shop/services";
    assert!(server.asked().iter().all(|asked| asked.path == namespaced));
}
