//! The layer around changes, with paths of a test inside it: any path of the server has the same around it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use tokio::sync::Notify;
use tower::ServiceExt as _;
use towpath::ids::{ActorId, AggregateKey, CommandId, OperationName};
use towpath::ports::operations::{
    BeginOutcome, NewOperation, OperationAnswer, OperationKey, Operations as _,
};
use towpath::ports::store::{Expected, StoreError};
use towpath::{OPERATION_KIND, OPERATION_PERFORMED, SendError, TaskType, Towpath};
use uuid::Uuid;

use crate::http::access::{Access, ApiKey, Caller, NewKey, Role};
use crate::http::limits::{LimitSettings, Limits};
use crate::http::problem::{AfterDone as _, Problem};
use crate::http::task_workers::{FailureAsked, ResultAsked};
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
        let builder = Towpath::builder().store(&url).task_type(TaskType::named("Scales.Weigh"));
        let towpath = builder.lease(Duration::from_secs(3600)).start().await.unwrap();
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
            answer_timeout: Duration::from_secs(60),
            connections: 10,
            concurrent_requests,
            streams: 10,
            memory_bytes: 1 << 20,
            caller_share: 100,
            requests_per_second: 0,
            burst: 0,
        };
        let app = App {
            towpath: towpath.clone(),
            feed: Feed::start(towpath.clone(), FeedOptions::default()),
            access: Arc::new(Access::Checked { keys, tokens: None }),
            limits: Arc::new(Limits::new(settings)),
            measurements: crate::http::metrics::Measurements::of_nothing(),
            memory: Default::default(),
            readiness: Default::default(),
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
        let (passed, unshown) = (Arc::clone(&effects), Arc::clone(&effects));
        // How things are at the moment, told in every way, and then done.
        let passes = move || async move {
            let key = AggregateKey::new("thing", "7").unwrap();
            match passed.fetch_add(1, Ordering::SeqCst) {
                0 => Err(Problem::from(SendError::StillProcessing(CommandId::new("c").unwrap()))),
                1 => {
                    Err(StoreError::VersionConflict { aggregate: key, expected: Expected::Exactly(3) }.into())
                }
                2 => Err(SendError::VersionMismatch { aggregate: key, expected: 3, actual: 4 }.into()),
                3 => Err(StoreError::Unavailable("away".into()).into()),
                _ => Ok((StatusCode::CREATED, "done")),
            }
        };
        let is_done_but_not_shown = move || async move {
            unshown.fetch_add(1, Ordering::SeqCst);
            Err::<(), _>(StoreError::Unavailable("away".into())).after_it_was_done()
        };
        let paths = Router::new()
            .route("/api/passes", post(passes))
            .route("/api/unshown", post(is_done_but_not_shown))
            .route(
                "/api/refuses",
                post(|| async { Problem::new(StatusCode::CONFLICT, "sold", "it is sold", "") }),
            )
            .route("/api/commits/{then}", post(commits))
            .route("/api/things/{id}", post(things))
            .route("/api/slow", post(slow.clone()))
            .route("/api/commands", post(slow))
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
        request = request.header("x-request-id", "request-9").header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        request.body(Body::from(body.to_owned())).unwrap()
    }

    async fn ask(&self, path: &str, who: usize, key: Option<&str>, body: &str) -> Answer {
        read(self.router.clone().oneshot(self.request(path, who, key, body)).await.unwrap()).await
    }

    /// What a process leaves behind that dies in the middle: a claim that nobody ends.
    async fn claim(&self, path: &str, key: &str, body: &str, for_: Duration) -> NewOperation {
        let request = self.request(path, 0, Some(key), body).into_parts().0;
        let operation = NewOperation {
            key: OperationKey { actor: ActorId::new("ann").unwrap(), name: OperationName::new(key).unwrap() },
            operation_id: Uuid::now_v7(),
            fingerprint: super::fingerprint(&request.method, &request.uri, body.as_bytes()),
            role: "admin".to_owned(),
            action: "POST /api/things/{id}".to_owned(),
            target: path.to_owned(),
            request_id: None,
            trace_id: None,
            asked_at: chrono::Utc::now(),
        };
        let begun = self.towpath.store().begin_operation(&operation, for_).await.unwrap();
        assert!(matches!(begun, BeginOutcome::Begun(_)));
        operation
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

/// Something whose answer commits with its effect; and then something happens.
async fn commits(State(towpath): State<Towpath>, Path(then): Path<String>) -> Result<StatusCode, Problem> {
    let transaction = towpath.store().sqlite_pool().unwrap().begin().await.unwrap();
    let mut transaction = towpath.join(transaction);
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    let answer = OperationAnswer { status: 201, headers, body: b"{\"made\":7}".to_vec() };
    transaction.answer(&answer).await?;
    match then.as_str() {
        "rolls-back" => transaction.rollback().await.unwrap(),
        _ => transaction.commit().await.unwrap(),
    }
    match then.as_str() {
        "panics" => panic!("behind the commit"),
        "fails" | "rolls-back" => Ok(StatusCode::INTERNAL_SERVER_ERROR),
        "refuses" => Ok(StatusCode::CONFLICT),
        _ => Ok(StatusCode::CREATED),
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
    assert_eq!((again.status, again.replayed, again.body.as_str()), (200, true, first.body.as_str()));
    assert_eq!(again.location.as_deref(), Some("/api/things/7"));
    for (path, body) in
        [("/api/things/7", "2"), ("/api/things/8", "1.50"), ("/api/things/7?force=true", "1.50")]
    {
        let other = bench.ask(path, 0, Some("k"), body).await;
        assert_eq!((other.status, other.body.contains("key-reused")), (409, true), "{path} {body}");
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

#[tokio::test]
async fn what_only_says_how_it_is_at_the_moment_leaves_the_key_free() {
    let bench = Bench::new(LONG).await;
    for (status, code) in [
        (409, "still-processing"),
        (409, "version-conflict"),
        (409, "version-mismatch"),
        (503, "store-unavailable"),
    ] {
        let passing = bench.ask("/api/passes", 0, Some("k"), "").await;
        assert_eq!((passing.status, passing.replayed), (status, false), "{}", passing.body);
        assert!(passing.body.contains(code), "{}", passing.body);
    }
    let done = bench.ask("/api/passes", 0, Some("k"), "").await;
    assert_eq!((done.status, done.replayed, done.body.as_str()), (201, false, "done"));
    let again = bench.ask("/api/passes", 0, Some("k"), "").await;
    assert_eq!((again.status, again.replayed, again.body.as_str()), (200, true, "done"));
    // What is final is kept, a refusal as well.
    for replayed in [false, true] {
        let refused = bench.ask("/api/refuses", 0, Some("r"), "").await;
        assert_eq!((refused.status, refused.replayed), (409, replayed));
    }
    bench.towpath.stop().await;
}

#[tokio::test]
async fn what_was_done_and_could_not_be_shown_says_so_and_is_not_done_again() {
    let bench = Bench::new(LONG).await;
    for replayed in [false, true] {
        let answer = bench.ask("/api/unshown", 0, Some("k"), "").await;
        assert_eq!((answer.status, answer.replayed), (500, replayed));
        assert!(answer.body.contains("done-not-shown"), "{}", answer.body);
    }
    assert_eq!(bench.effects.load(Ordering::SeqCst), 1);
    assert_eq!(bench.facts(1).await[0].2, "done");
    bench.towpath.stop().await;
}

#[tokio::test]
async fn an_answer_that_committed_with_its_effect_is_the_answer_whatever_comes_after() {
    let bench = Bench::new(LONG).await;
    for then in ["answers", "panics", "fails", "refuses"] {
        let path = format!("/api/commits/{then}");
        let first = bench.ask(&path, 0, Some(then), "").await;
        assert_eq!((first.status, first.replayed), (201, false), "{then}: {}", first.body);
        let again = bench.ask(&path, 0, Some(then), "").await;
        assert_eq!(
            (again.status, again.replayed, again.body.as_str()),
            (200, true, r#"{"made":7}"#),
            "{then}"
        );
    }
    // What did not commit was not answered, and may be tried again.
    let undone = bench.ask("/api/commits/rolls-back", 0, Some("k"), "").await;
    assert_eq!((undone.status, undone.replayed), (500, false));
    assert!(!bench.ask("/api/commits/rolls-back", 0, Some("k"), "").await.replayed);
    let outcomes: Vec<String> = bench.facts(6).await.into_iter().map(|fact| fact.2).collect();
    assert_eq!(outcomes, ["done", "done", "done", "done", "failed", "failed"]);
    bench.towpath.stop().await;
}

#[tokio::test]
async fn what_a_process_did_before_it_died_is_answered_to_who_asks_again() {
    let bench = Bench::new(LONG).await;
    let dead = bench.claim("/api/things/7", "k", "1", Duration::ZERO).await;
    let BeginOutcome::Begun(claim) = bench.towpath.store().begin_operation(&dead, LONG).await.unwrap() else {
        panic!("its time is over")
    };
    let mut transaction = bench.towpath.store().begin().await.unwrap();
    let answer = OperationAnswer { status: 201, headers: vec![], body: b"made".to_vec() };
    transaction.answer(&claim, &answer, chrono::Utc::now()).await.unwrap();
    transaction.commit().await.unwrap();
    // It is killed here. Its claim has a long time to go, and nobody waits for that.
    let again = bench.ask("/api/things/7", 0, Some("k"), "1").await;
    assert_eq!((again.status, again.replayed, again.body.as_str()), (200, true, "made"));
    assert_eq!(bench.effects.load(Ordering::SeqCst), 0);
    bench.towpath.stop().await;
}

#[tokio::test]
async fn what_is_done_with_a_task_commits_with_its_answer() {
    let bench = Bench::new(LONG).await;
    let (app, of) = (&bench.towpath, &TaskType::named("Scales.Weigh"));
    let started = app.transact(async |mut tx| tx.start_task(of, "duck").await).await.unwrap();
    let task_id = started.task_id.to_string();
    let caller = Caller { name: ActorId::new("ann").unwrap(), role: Role::Operator, until: None };
    let retry =
        || crate::http::tasks::retry(State(app.clone()), caller.clone(), crate::http::Path(task_id.clone()));
    let fail = || {
        let asked: FailureAsked = serde_json::from_str(r#"{"retry":false}"#).unwrap();
        asked.answer(app, &caller, &task_id)
    };
    let done = || {
        let asked: ResultAsked = serde_json::from_str(r#"{"result":7}"#).unwrap();
        asked.answer(app, &caller, &task_id)
    };
    let changes = [("failed", fail().boxed()), ("queued", retry().boxed()), ("succeeded", done().boxed())];
    for (status, change) in changes {
        let operation = bench.claim("/api/things/7", status, "", Duration::ZERO).await;
        let begun = app.operations().begin(&operation, LONG).await.unwrap();
        let BeginOutcome::Begun(claim) = begun else { panic!("its time is over") };
        let ran = app.operations().run(&claim, change).await;
        assert!(ran.answer.is_ok() && ran.wrote_answer, "{status}");
        // It is killed here, before it says that it has ended.
        let answer = app.operations().answer_of(&claim).await.unwrap().unwrap();
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((answer.status, body["status"].as_str()), (200, Some(status)));
    }
    app.stop().await;
}

#[tokio::test]
async fn a_refusal_after_an_attempt_without_end_does_not_say_that_nothing_was_done() {
    let bench = Bench::new(LONG).await;
    bench.claim("/api/refuses", "k", "", Duration::ZERO).await;
    assert_eq!(bench.ask("/api/refuses", 0, Some("k"), "").await.status, 409);
    assert_eq!(bench.ask("/api/refuses", 0, Some("other"), "").await.status, 409);
    let facts: Vec<(String, u64)> = bench.facts(2).await.into_iter().map(|fact| (fact.2, fact.3)).collect();
    assert_eq!(facts, [("unknown".to_owned(), 2), ("refused".to_owned(), 1)]);
    bench.towpath.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_goes_on_without_its_client_keeps_its_place() {
    let bench = Bench::with(LONG, 1).await;
    let mut asking = Box::pin(bench.ask("/api/slow", 0, Some("k"), ""));
    tokio::select! {
        _ = &mut asking => panic!("it waits for its gate"),
        () = bench.arrived.notified() => {}
    }
    drop(asking);
    let refused = bench.ask("/api/things/7", 0, None, "1").await;
    assert_eq!((refused.status, refused.body.contains("overloaded")), (503, true));
    bench.gate.notify_one();
    assert_eq!(bench.facts(1).await[0].2, "done");
    let deadline = tokio::time::Instant::now() + LONG;
    while bench.ask("/api/things/7", 0, None, "1").await.status != 201 {
        assert!(tokio::time::Instant::now() < deadline, "its place is free again");
        tokio::task::yield_now().await;
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_to_its_end_though_its_client_goes_away() {
    let bench = Bench::with(LONG, 1).await;
    let mut asking = Box::pin(bench.ask("/api/commands", 0, None, ""));
    tokio::select! {
        _ = &mut asking => panic!("it waits for its gate"),
        () = bench.arrived.notified() => {}
    }
    drop(asking);
    let refused = bench.ask("/api/things/7", 0, None, "1").await;
    assert_eq!((refused.status, refused.body.contains("overloaded")), (503, true), "it keeps its place");
    bench.gate.notify_one();
    let deadline = tokio::time::Instant::now() + LONG;
    while bench.effects.load(Ordering::SeqCst) == 0 {
        assert!(tokio::time::Instant::now() < deadline, "it was cut off halfway");
        tokio::task::yield_now().await;
    }
    bench.towpath.stop().await;
}

#[tokio::test]
async fn an_operation_of_a_dead_process_is_taken_over_by_its_repeat_or_recorded_as_lost() {
    let bench = Bench::new(LONG).await;
    let answered = bench.ask("/api/things/7", 0, Some("first"), "1").await;
    assert_eq!(answered.status, 201);
    let store = bench.towpath.store();
    let lost = bench.claim("/api/things/7", "k", "1", Duration::ZERO).await;
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

/// The claim runs from when the store was asked for it, however late that answers.
///
/// On one thread: of two moments that are over, the earlier one is told first.
#[tokio::test]
async fn what_waited_for_its_claim_is_cut_off_before_the_claim_runs_out() {
    let bench = Bench::new(LONG).await;
    let other = bench.claim("/api/late", "other", "", LONG).await;
    let name = OperationName::new("late").unwrap();
    let key = OperationKey { name, ..other.key.clone() };
    let operation = NewOperation { key, operation_id: Uuid::now_v7(), ..other };
    let asked = super::ChangeRequest { operation, has_key: true };
    let (cut_after, waits) = (Duration::from_secs(3), Duration::from_secs(2));
    // The one says that it runs, the other lives as long as it does.
    let (begins, runs) = (Notify::new(), Arc::new(()));
    let run = async {
        let _runs = Arc::clone(&runs);
        begins.notify_one();
        std::future::pending().await
    };
    // Nobody else can write on SQLite meanwhile.
    let holder = bench.towpath.store().open_transaction().await.unwrap();
    let run = asked.perform(&bench.towpath, cut_after + super::MARGIN / 2, run);
    tokio::pin!(run);
    assert!(run.as_mut().now_or_never().is_none(), "it asks for its claim");
    let asked_by = tokio::time::Instant::now();
    assert!(tokio::time::timeout(waits, &mut run).await.is_err(), "it waits for its claim");
    holder.abandon().await.unwrap();
    // Counted from the claim, it would run for longer than this by half of what it has waited.
    let too_late = async {
        begins.notified().await;
        tokio::time::sleep_until(asked_by + cut_after + waits / 2).await;
    };
    let response = tokio::select! {
        biased;
        response = &mut run => response,
        () = too_late => {
            // How it ended may still be on its way to the store.
            assert_eq!(Arc::strong_count(&runs), 1, "it was not cut off");
            run.await
        }
    };
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    bench.towpath.stop().await;
}
