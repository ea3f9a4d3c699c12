//! The layer around changes, with paths of a test inside it: any path of the server has the same around it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::BodyExt as _;
use tokio::sync::Notify;
use tower::ServiceExt as _;
use towpath::ids::{ActorId, AggregateKey, OperationName};
use towpath::ports::operations::{NewOperation, OperationKey, OperationStanding, Operations as _};
use towpath::ports::store::Store as _;
use towpath::{OPERATION_KIND, OPERATION_PERFORMED, Towpath};
use uuid::Uuid;

use crate::http::access::{Access, ApiKey, NewKey, Role};
use crate::http::limits::{LimitSettings, Limits};
use crate::http::{App, Feed, FeedOptions, around};

struct Bench {
    towpath: Towpath,
    router: Router,
    effects: Arc<AtomicU32>,
    gate: Arc<Notify>,
    /// Somebody waits at the gate.
    arrived: Arc<Notify>,
    keys: [String; 2],
    _folder: tempfile::TempDir,
}

struct Answer {
    status: u16,
    replayed: bool,
    location: Option<String>,
    body: String,
}

impl Bench {
    async fn new(request_timeout: Duration) -> Self {
        Self::with(request_timeout, 100).await
    }

    async fn with(request_timeout: Duration, concurrent_requests: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("towpath.db").display());
        let towpath = Towpath::builder().store(&url).lease(Duration::from_secs(3600)).start().await.unwrap();
        let made = [NewKey::make().unwrap(), NewKey::make().unwrap()];
        let keys = ["ann", "bob"].iter().zip(&made);
        let keys =
            keys.map(|(name, made)| ApiKey::new(name, Role::Admin, &made.hash).ok().unwrap()).collect();
        let settings = LimitSettings {
            body_bytes: 1000,
            header_bytes: 10_000,
            headers: 50,
            header_timeout: Duration::from_secs(5),
            request_timeout,
            connections: 10,
            concurrent_requests,
            requests_per_second: 0,
            burst: 0,
        };
        let app = App {
            hive: None,
            towpath: towpath.clone(),
            feed: Feed::start(towpath.clone(), FeedOptions::default()),
            access: Arc::new(Access::Checked { keys, tokens: None }),
            limits: Arc::new(Limits::new(settings)),
            measurements: crate::http::metrics::Measurements::of_nothing(),
            market: None,
        };
        let (effects, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let (counted, held, broken) = (Arc::clone(&effects), Arc::clone(&effects), Arc::clone(&effects));
        let (opened, arrived) = (Arc::clone(&gate), Arc::new(Notify::new()));
        let arrives = Arc::clone(&arrived);
        let things = move |Path(id): Path<String>, body: String| async move {
            let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let location = [("location", format!("/api/things/{id}"))];
            (StatusCode::CREATED, location, format!("{{\"number\":{number},\"given\":{body}}}"))
        };
        let slow = move || async move {
            arrives.notify_one();
            opened.notified().await;
            held.fetch_add(1, Ordering::SeqCst).to_string()
        };
        let breaks = move || async move {
            match broken.fetch_add(1, Ordering::SeqCst) {
                0 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
                _ => "whole again".into_response(),
            }
        };
        let paths = Router::new()
            .route("/api/things/{id}", post(things))
            .route("/api/slow", post(slow))
            .route("/api/breaks", post(breaks))
            .route("/api/panics", get(panics).post(panics))
            .route("/api/cached", get(|| async { [("cache-control", "public, max-age=60, immutable")] }));
        let router = around(paths, &app).with_state(app);
        let keys = made.map(|made| made.key);
        Self { towpath, router, effects, gate, arrived, keys, _folder: folder }
    }

    fn request(&self, path: &str, who: usize, key: Option<&str>, body: &str) -> Request {
        let mut request =
            Request::builder().method(Method::POST).uri(path).header("x-api-key", &self.keys[who]);
        request = request.header("x-request-id", "request-9");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        request.body(Body::from(body.to_owned())).unwrap()
    }

    async fn ask(&self, path: &str, who: usize, key: Option<&str>, body: &str) -> Answer {
        read(self.router.clone().oneshot(self.request(path, who, key, body)).await.unwrap()).await
    }

    /// The facts about operations, as (actor, action, outcome, attempts), in the order of the log.
    async fn facts(&self, count: u64) -> Vec<(String, String, String, u64)> {
        let store = self.towpath.store();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while store.head().await.unwrap() < count {
            assert!(tokio::time::Instant::now() < deadline, "there are not {count} facts");
            tokio::task::yield_now().await;
        }
        let events = store.events_between(1, u64::from(u32::MAX)).await.unwrap();
        let facts = events.into_iter().map(|event| {
            assert_eq!(event.envelope.event_type.as_str(), OPERATION_PERFORMED);
            assert_eq!(event.envelope.aggregate.kind.as_str(), OPERATION_KIND);
            let fact: serde_json::Value = serde_json::from_str(event.envelope.payload.as_text()).unwrap();
            assert_eq!(event.envelope.actor_id.unwrap().as_str(), fact["actor"].as_str().unwrap());
            assert_eq!(
                event.envelope.trace_id.map(String::from),
                fact["traceId"].as_str().map(str::to_owned)
            );
            let text = |name: &str| fact[name].as_str().unwrap().to_owned();
            (text("actor"), text("action"), text("outcome"), fact["attempts"].as_u64().unwrap())
        });
        facts.collect()
    }
}

async fn panics() {
    panic!("a bug of a handler");
}

async fn read(response: Response) -> Answer {
    let (parts, body) = response.into_parts();
    let header = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let (status, location) = (parts.status.as_u16(), header("location"));
    let replayed = header("idempotency-replayed").is_some();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status, replayed, location, body: String::from_utf8(body.to_vec()).unwrap() }
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_same_key_gives_the_same_answer_and_no_second_effect() {
    let bench = Bench::new(LONG).await;
    let first = bench.ask("/api/things/7", 0, Some("k"), "1.50").await;
    assert_eq!(
        (first.status, first.replayed, first.body.as_str()),
        (201, false, r#"{"number":1,"given":1.50}"#)
    );
    let again = bench.ask("/api/things/7", 0, Some("k"), "1.50").await;
    assert_eq!((again.status, again.replayed, again.body.as_str()), (201, true, first.body.as_str()));
    assert_eq!(again.location.as_deref(), Some("/api/things/7"));
    for (path, body) in
        [("/api/things/7", "2"), ("/api/things/8", "1.50"), ("/api/things/7?force=true", "1.50")]
    {
        let other = bench.ask(path, 0, Some("k"), body).await;
        assert_eq!((other.status, other.body.contains("key-reused")), (422, true), "{path} {body}");
    }
    // Keys of different actors are different keys, and without one each request is its own.
    assert_eq!(bench.ask("/api/things/7", 1, Some("k"), "1.50").await.status, 201);
    for _ in 0..2 {
        assert_eq!(bench.ask("/api/things/7", 1, None, "1.50").await.status, 201);
    }
    assert_eq!(bench.effects.load(Ordering::SeqCst), 4);
    let performed = |who: &str| (who.to_owned(), "POST /api/things/{id}".to_owned(), "done".to_owned(), 1);
    let facts = bench.facts(4).await;
    assert_eq!(facts, [performed("ann"), performed("bob"), performed("bob"), performed("bob")]);
    assert_eq!(bench.ask("/api/things/7", 0, Some(&"k".repeat(129)), "1").await.status, 400);
    bench.towpath.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_twins_at_once_one_has_an_effect() {
    let bench = Arc::new(Bench::new(LONG).await);
    let twins: Vec<_> = (0..8)
        .map(|_| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move { bench.ask("/api/slow", 0, Some("k"), "").await })
        })
        .collect();
    let deadline = tokio::time::Instant::now() + LONG;
    while twins.iter().filter(|twin| twin.is_finished()).count() < 7 {
        assert!(tokio::time::Instant::now() < deadline, "seven are told that it runs");
        tokio::task::yield_now().await;
    }
    bench.gate.notify_one();
    let mut statuses = Vec::new();
    for twin in twins {
        statuses.push(twin.await.unwrap().status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409, 409, 409, 409, 409, 409, 409]);
    let again = bench.ask("/api/slow", 0, Some("k"), "").await;
    assert_eq!((again.status, again.replayed, again.body.as_str()), (200, true, "0"));
    assert_eq!(bench.effects.load(Ordering::SeqCst), 1);
    bench.towpath.stop().await;
}

#[tokio::test]
async fn what_broke_may_be_tried_again_with_the_same_key() {
    let bench = Bench::new(LONG).await;
    assert_eq!(bench.ask("/api/breaks", 0, Some("k"), "").await.status, 503);
    let whole = bench.ask("/api/breaks", 0, Some("k"), "").await;
    assert_eq!((whole.status, whole.replayed), (200, false));
    assert!(bench.ask("/api/breaks", 0, Some("k"), "").await.replayed);
    let outcomes: Vec<String> = bench.facts(2).await.into_iter().map(|fact| fact.2).collect();
    assert_eq!(outcomes, ["failed", "done"]);
    bench.towpath.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_leaves_a_whole_operation_behind() {
    let bench = Bench::new(LONG).await;
    let mut asking = Box::pin(bench.ask("/api/slow", 0, Some("k"), ""));
    tokio::select! {
        _ = &mut asking => panic!("it waits for its gate"),
        () = bench.arrived.notified() => {}
    }
    drop(asking);
    bench.gate.notify_one();
    assert_eq!(bench.facts(1).await[0].2, "done");
    let again = bench.ask("/api/slow", 0, Some("k"), "").await;
    assert_eq!((again.status, again.replayed), (200, true));
    bench.towpath.stop().await;
}

#[tokio::test]
async fn an_operation_of_a_dead_process_is_taken_over_by_its_repeat_or_recorded_as_lost() {
    let bench = Bench::new(LONG).await;
    let answered = bench.ask("/api/things/7", 0, Some("first"), "1").await;
    assert_eq!(answered.status, 201);
    // What a process leaves behind that dies in the middle: a claim that nobody ends.
    let store = bench.towpath.store();
    let mut lost = NewOperation {
        key: OperationKey { actor: ActorId::new("ann").unwrap(), name: OperationName::new("k").unwrap() },
        operation_id: Uuid::now_v7(),
        fingerprint: String::new(),
        role: "admin".to_owned(),
        action: "POST /api/things/{id}".to_owned(),
        target: "/api/things/7".to_owned(),
        request_id: None,
        trace_id: None,
        asked_at: chrono::Utc::now(),
    };
    let request = bench.request("/api/things/7", 0, Some("k"), "1").into_parts().0;
    lost.fingerprint = super::fingerprint(&request.method, &request.uri, b"1");
    let begun = store.begin_operation(&lost, Duration::ZERO).await.unwrap();
    assert!(matches!(begun, OperationStanding::Begun(_)));
    let taken = bench.ask("/api/things/7", 0, Some("k"), "1").await;
    assert_eq!((taken.status, taken.replayed), (201, false));
    let forgotten = NewOperation {
        key: OperationKey { name: OperationName::new("other").unwrap(), ..lost.key.clone() },
        operation_id: Uuid::now_v7(),
        ..lost.clone()
    };
    store.begin_operation(&forgotten, Duration::ZERO).await.unwrap();
    assert_eq!(bench.towpath.operations().record_lost().await.unwrap(), 1);
    assert_eq!(bench.towpath.operations().record_lost().await.unwrap(), 0);
    let facts: Vec<(String, u64)> = bench.facts(3).await.into_iter().map(|fact| (fact.2, fact.3)).collect();
    assert_eq!(facts, [("done".to_owned(), 1), ("done".to_owned(), 2), ("unknown".to_owned(), 1)]);
    let recorded = AggregateKey::new(OPERATION_KIND, lost.operation_id.to_string()).unwrap();
    assert_eq!(bench.towpath.aggregate(&recorded).await.unwrap().unwrap().version, 1, "under its first id");
    bench.towpath.stop().await;
}

#[tokio::test]
async fn an_operation_that_takes_too_long_is_answered_in_time() {
    let bench = Bench::new(Duration::from_millis(100)).await;
    let late = bench.ask("/api/slow", 0, Some("k"), "").await;
    assert_eq!((late.status, late.body.contains("\"timeout\"")), (504, true));
    // It goes on, and whoever asks again gets its answer.
    bench.gate.notify_one();
    assert_eq!(bench.facts(1).await[0].2, "done");
    let again = bench.ask("/api/slow", 0, Some("k"), "").await;
    assert_eq!((again.status, again.replayed), (200, true));
    bench.towpath.stop().await;
}

#[tokio::test]
async fn what_is_no_operation_is_not_recorded() {
    let bench = Bench::new(LONG).await;
    let asked = |method: Method, path: &'static str, key: &str| {
        let request = Request::builder().method(method).uri(path).header("x-api-key", key);
        bench.router.clone().oneshot(request.body(Body::empty()).unwrap())
    };
    let key = &bench.keys[0];
    assert_eq!(asked(Method::DELETE, "/api/things/7", key).await.unwrap().status(), 405);
    assert_eq!(asked(Method::POST, "/api/nowhere", key).await.unwrap().status(), 404);
    assert_eq!(asked(Method::POST, "/api/things/7", "tpk_wrong").await.unwrap().status(), 401);
    assert_eq!(bench.ask("/api/things/7", 0, None, &"x".repeat(1001)).await.status, 413);
    bench.ask("/api/things/7", 0, None, "1").await;
    assert_eq!(bench.facts(1).await.len(), 1);
    bench.towpath.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_can_run_are_told_to_come_again() {
    let bench = Arc::new(Bench::with(LONG, 1).await);
    let slow = Arc::clone(&bench);
    let slow = tokio::spawn(async move { slow.ask("/api/slow", 0, None, "").await });
    bench.arrived.notified().await;
    let refused = bench.ask("/api/things/7", 0, None, "1").await;
    assert_eq!((refused.status, refused.body.contains("overloaded")), (503, true));
    bench.gate.notify_one();
    assert_eq!(slow.await.unwrap().status, 200);
    assert_eq!(bench.ask("/api/things/7", 0, None, "1").await.status, 201);
    bench.towpath.stop().await;
}

#[tokio::test]
async fn a_handler_that_panics_is_answered_and_recorded() {
    let bench = Bench::new(LONG).await;
    let read_only = Request::builder().uri("/api/panics").header("x-api-key", &bench.keys[0]);
    let response = bench.router.clone().oneshot(read_only.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 500);
    let changing = bench.ask("/api/panics", 0, Some("k"), "").await;
    assert_eq!((changing.status, changing.body.contains("\"internal\"")), (500, true));
    assert_eq!(bench.facts(1).await[0].2, "failed");
    bench.towpath.stop().await;
}

#[tokio::test]
async fn what_needs_a_key_is_kept_from_shared_caches() {
    let bench = Bench::new(LONG).await;
    let request = Request::builder().uri("/api/cached").header("x-api-key", &bench.keys[0]);
    let response = bench.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.headers()["cache-control"], "private, max-age=60, immutable");
    bench.towpath.stop().await;
}
