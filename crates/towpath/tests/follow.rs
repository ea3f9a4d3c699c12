//! Following another log: once, in order, whatever the peer and the process do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod support;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use support::delivery::{make_table, rows};
use support::peer::{FakePeer, Mood, event_id, fact};
use support::{Fresh, eventually, eventually_within};
use towpath::follow::{FollowError, FollowPolicy, Follower, FollowerOf, Following};
use towpath::ports::store::Inspection as _;
use towpath::{Coded as _, Delivery, HandlerError, Next, StoreOptions, Towpath};
use towpath_testkit::KillProbe;

on_every_database!(
    facts_are_applied_once_in_order_and_from_where_it_stopped,
    a_mirror_keeps_the_facts_and_routes_them_on,
    a_mirror_goes_on_where_facts_are_here_and_stops_where_they_differ,
    a_rewritten_log_is_found_and_nothing_more_is_applied,
    two_of_one_name_apply_each_fact_once,
    killed_before_any_statement_a_fact_still_has_one_effect,
);

/// Whether there is what a child of the killing case should do.
const CHILD: &str = "TOWPATH_FOLLOW_CHILD";

fn quickly() -> FollowPolicy {
    FollowPolicy {
        poll: Duration::from_millis(20),
        first_pause: Duration::from_millis(5),
        longest_pause: Duration::from_millis(50),
        unreadable_answers: 3,
        answer_within: Duration::from_secs(20),
        largest_page: 64 << 10,
    }
}

fn of(peer: &FakePeer) -> FollowerOf {
    Follower::of(&peer.url).with(quickly())
}

async fn record(mut delivery: Delivery) -> Result<Next, HandlerError> {
    let id = delivery.event.event_id.to_string();
    delivery.tx.execute("INSERT INTO effects (event_id, handler) VALUES (?, ?)", &[&id, "follow"]).await?;
    Ok(delivery.handled())
}

async fn app(fresh: &Fresh) -> Towpath {
    let app = fresh.app().await;
    make_table(&app).await;
    app
}

/// The positions of facts that had an effect, each as often as it had.
async fn applied(app: &Towpath) -> Vec<u64> {
    let by_id: BTreeMap<String, u64> = (1..=500).map(|position| (event_id(position), position)).collect();
    let mut applied: Vec<u64> = rows(app).await.iter().map(|(id, _)| by_id[id]).collect();
    applied.sort_unstable();
    applied
}

async fn reaches(following: &Following, position: u64) {
    eventually_within(&format!("position {position}"), Duration::from_secs(30), || async {
        (following.position() >= position).then_some(())
    })
    .await;
}

async fn end_of(following: &Following) -> Arc<FollowError> {
    let ended = tokio::time::timeout(Duration::from_secs(30), following.ended()).await;
    ended.expect("it ends").expect_err("it does not end well")
}

async fn facts_are_applied_once_in_order_and_from_where_it_stopped(fresh: &Fresh) {
    let app = app(fresh).await;
    // More pages than are held while walking back.
    let peer = FakePeer::with(203, 5).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let follower = move |peer: &FakePeer| {
        let noted = noted.clone();
        of(peer).each("follow", move |delivery| {
            let payload: serde_json::Value = delivery.payload().unwrap();
            noted.lock().unwrap().push(payload["n"].as_u64().unwrap());
            record(delivery)
        })
    };
    let following = app.follow(follower(&peer)).await.unwrap();
    assert_eq!(following.caught_up().await.unwrap(), 203);
    peer.add(4);
    reaches(&following, 207).await;
    // Nothing new is asked for by its tag, and answered by 304.
    eventually_within("a 304", Duration::from_secs(10), || async {
        peer.asked().iter().any(|(path, status)| path == "/notifications" && *status == 304).then_some(())
    })
    .await;
    following.stop().await;
    assert!(following.ended().await.is_ok());

    peer.add(100);
    peer.change(|world| world.asked.clear());
    let again = app.follow(follower(&peer)).await.unwrap();
    assert_eq!(again.position(), 207);
    assert_eq!(again.caught_up().await.unwrap(), 307);
    app.stop().await;
    assert!(again.ended().await.is_ok(), "it ends with the application");
    assert_eq!(*seen.lock().unwrap(), (1..=307).collect::<Vec<_>>(), "each once, in order");
    let asked: Vec<String> = peer.asked().into_iter().map(|(path, _)| path).collect();
    let back: Vec<&str> = asked.iter().take(3).map(String::as_str).collect();
    assert_eq!(back, ["/notifications", "/notifications/301,305", "/notifications/296,300"], "it walks back");
    assert!(!asked.contains(&"/notifications/196,200".to_owned()), "and not further than it must: {asked:?}");
    let app = fresh.app().await;
    assert_eq!(applied(&app).await, (1..=307).collect::<Vec<_>>());
    app.stop().await;
}

async fn a_mirror_keeps_the_facts_and_routes_them_on(fresh: &Fresh) {
    let app = app(fresh).await;
    let peer = FakePeer::with(47, 20).await;
    let following = app.follow(of(&peer).mirror("mirror")).await.unwrap();
    assert_eq!(following.caught_up().await.unwrap(), 47);
    let log = eventually_within("positions", Duration::from_secs(10), || async {
        let log = app.store().events_between(1, 100).await.unwrap();
        (log.len() == 47).then_some(log)
    })
    .await;
    for (position, event) in (1..).zip(&log) {
        let theirs = fact(position);
        assert_eq!(event.position, Some(position));
        assert_eq!(serde_json::to_value(&event.envelope).unwrap(), theirs["event"], "to the letter");
        assert_eq!(app.store().outbox_of(event.envelope.event_id).await.unwrap().len(), 1, "it is routed on");
    }
    // Under another name everything comes again, and is here already.
    let again = app.follow(of(&peer).mirror("another")).await.unwrap();
    assert_eq!(again.caught_up().await.unwrap(), 47);
    assert_eq!(app.store().head().await.unwrap(), 47);
    // A fact of this store's own about one of these aggregates: the peer's next one has its version.
    app.send::<support::Order>("order-0", support::OrderCommand::Note).await.unwrap_err();
    let own = FakePeer::with(2, 20).await;
    own.change(|world| {
        world.facts[0]["event"]["eventId"] = json!("01900000-0000-7000-8000-00000000ffff");
    });
    let conflict = app.follow(of(&own).mirror("third")).await.unwrap();
    let error = end_of(&conflict).await;
    assert_eq!(error.code(), "mirror-conflict", "{error}");
    assert_eq!(conflict.position(), 0);
    app.stop().await;
}

/// Three facts of one change. The first two are here already, because a page ended behind them.
async fn a_mirror_goes_on_where_facts_are_here_and_stops_where_they_differ(fresh: &Fresh) {
    let app = app(fresh).await;
    let together = |count: u64| {
        let mut facts: Vec<_> = (1..=count).map(fact).collect();
        let first = facts[0].clone();
        for (version, fact) in (1..).zip(&mut facts) {
            for name in ["occurredAt", "correlationId", "causationId", "traceId", "actorId", "tenantId"] {
                fact["event"][name] = first["event"][name].clone();
            }
            fact["occurredOn"] = first["occurredOn"].clone();
            fact["event"]["aggregate"] = first["event"]["aggregate"].clone();
            fact["event"]["aggregateVersion"] = json!(version);
        }
        facts
    };
    let part = FakePeer::with(0, 20).await;
    part.change(|world| world.facts = together(2));
    let following = app.follow(of(&part).mirror("part")).await.unwrap();
    assert_eq!(following.caught_up().await.unwrap(), 2);
    let whole = FakePeer::with(0, 20).await;
    whole.change(|world| world.facts = together(3));
    let again = app.follow(of(&whole).mirror("whole")).await.unwrap();
    assert_eq!(again.caught_up().await.unwrap(), 3, "what is here to the letter is no conflict");
    let log = eventually_within("positions", Duration::from_secs(10), || async {
        let log = app.store().events_between(1, 100).await.unwrap();
        (log.len() == 3).then_some(log)
    })
    .await;
    let ids: Vec<String> = log.iter().map(|event| event.envelope.event_id.to_string()).collect();
    assert_eq!(ids, (1..=3).map(event_id).collect::<Vec<_>>());
    // The same id with another content is another fact.
    let other = FakePeer::with(0, 20).await;
    other.change(|world| {
        world.facts = together(3);
        world.facts[1]["event"]["payload"] = json!({ "n": 77 });
    });
    let conflict = app.follow(of(&other).mirror("other")).await.unwrap();
    assert_eq!(end_of(&conflict).await.code(), "mirror-conflict");
    assert_eq!((conflict.position(), app.store().head().await.unwrap()), (0, 3));
    app.stop().await;
}

async fn a_rewritten_log_is_found_and_nothing_more_is_applied(fresh: &Fresh) {
    let app = app(fresh).await;
    let rewritten = |change: &dyn Fn(&mut Vec<serde_json::Value>)| {
        let mut facts: Vec<_> = (1..=30).map(fact).collect();
        change(&mut facts);
        facts
    };
    let cases: Vec<(&str, Vec<serde_json::Value>)> = vec![
        (
            "the last one applied is another",
            rewritten(&|facts| facts[12]["event"]["payload"] = json!({ "n": 0 })),
        ),
        (
            "one before it in its page is another",
            rewritten(&|facts| facts[10]["event"]["eventId"] = json!(event_id(400))),
        ),
        ("the log is shorter", (1..=12).map(fact).collect()),
        ("the log is empty", Vec::new()),
    ];
    for (number, (what, facts)) in cases.into_iter().enumerate() {
        let peer = FakePeer::with(13, 5).await;
        let name = format!("follow-{number}");
        let handler = move |mut delivery: Delivery| async move {
            let id = delivery.event.event_id.to_string();
            delivery.tx.execute("INSERT INTO effects (event_id, handler) VALUES (?, ?)", &[&id, "x"]).await?;
            Ok(delivery.handled())
        };
        let following = app.follow(of(&peer).each(&name, handler)).await.unwrap();
        assert_eq!(following.caught_up().await.unwrap(), 13);
        let before = rows(&app).await.len();
        // While it looks on, and after it was stopped.
        if number % 2 == 0 {
            following.stop().await;
        }
        peer.change(|world| world.facts = facts);
        let following = if number % 2 == 0 {
            app.follow(of(&peer).each(&name, handler)).await.unwrap()
        } else {
            following
        };
        let error = end_of(&following).await;
        assert_eq!(error.code(), "log-rewritten", "{what}: {error}");
        assert!(matches!(&*error, FollowError::Rewritten { position: 13, .. }), "{what}: {error}");
        assert_eq!(rows(&app).await.len(), before, "{what}");
    }
    app.stop().await;
}

async fn two_of_one_name_apply_each_fact_once(fresh: &Fresh) {
    let (one, other) = (app(fresh).await, app(fresh).await);
    let peer = FakePeer::with(0, 7).await;
    let followings = [
        one.follow(of(&peer).each("follow", record)).await.unwrap(),
        other.follow(of(&peer).each("follow", record)).await.unwrap(),
    ];
    for _ in 0..20 {
        peer.add(6);
        tokio::task::yield_now().await;
    }
    let deadline = Duration::from_secs(30);
    eventually_within("all facts", deadline, || async { (applied(&one).await.len() >= 120).then_some(()) })
        .await;
    for following in &followings {
        following.stop().await;
        assert!(following.ended().await.is_ok());
    }
    assert_eq!(applied(&one).await, (1..=120).collect::<Vec<_>>());
    one.stop().await;
    other.stop().await;
}

/// A child follows and is killed before its n-th statement, for n = 0, 1, 2 and so on; then another one does the rest.
async fn killed_before_any_statement_a_fact_still_has_one_effect(fresh: &Fresh) {
    let app = app(fresh).await;
    let peer = FakePeer::with(7, 3).await;
    for kill_at in 0..400 {
        let name = format!("follow-{kill_at}");
        let finished = run_child(fresh.url(), &peer.url, &name, kill_at).await;
        let (effects, position) = effects_and_position(&app, &name).await;
        let expected: Vec<String> = (1..=position).map(event_id).collect();
        assert_eq!(effects, expected, "killed before statement {kill_at}: effects and position fit");
        if finished {
            assert_eq!(position, 7);
            assert!(kill_at > 20, "the probe saw only {kill_at} statements");
            app.stop().await;
            return;
        }
        let rest = app.follow(of(&peer).each(&name, recorder(&name))).await.unwrap();
        assert_eq!(rest.caught_up().await.unwrap(), 7);
        rest.stop().await;
        assert_eq!(
            effects_of(&app, &name).await,
            (1..=7).map(event_id).collect::<Vec<_>>(),
            "after {kill_at}"
        );
    }
    panic!("the child never finished");
}

/// Both as of one moment: the database may still be at what a child has sent before it was killed.
async fn effects_and_position(app: &Towpath, name: &str) -> (Vec<String>, u64) {
    let handler = towpath::ids::HandlerName::new(name).unwrap();
    let position = async || {
        let log = app.store().followed_log(&handler).await.unwrap();
        log.map_or(0, |log| log.position)
    };
    eventually("nothing moves in between", || async {
        let before = position().await;
        let effects = effects_of(app, name).await;
        (position().await == before).then_some((effects, before))
    })
    .await
}

fn recorder(name: &str) -> impl Fn(Delivery) -> Recording + Send + Sync + 'static {
    let name = name.to_owned();
    move |mut delivery: Delivery| -> Recording {
        let name = name.clone();
        Box::pin(async move {
            let id = delivery.event.event_id.to_string();
            delivery
                .tx
                .execute("INSERT INTO effects (event_id, handler) VALUES (?, ?)", &[&id, &name])
                .await?;
            Ok(delivery.handled())
        })
    }
}

type Recording = std::pin::Pin<Box<dyn Future<Output = Result<Next, HandlerError>> + Send>>;

async fn effects_of(app: &Towpath, name: &str) -> Vec<String> {
    let mut effects: Vec<String> =
        rows(app).await.into_iter().filter(|(_, by)| by == name).map(|(id, _)| id).collect();
    effects.sort();
    effects
}

async fn run_child(store: &str, peer: &str, name: &str, kill_at: u64) -> bool {
    let order = json!({ "store": store, "peer": peer, "name": name, "killAt": kill_at }).to_string();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_is_killed", "--ignored", "--nocapture"])
        .env(CHILD, order)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let finished = said.contains("the child has applied everything");
    let killed = std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
    // Both: it goes on to look for more while it says so.
    assert!(finished || killed, "{said}{}", String::from_utf8_lossy(&output.stderr));
    finished
}

/// The child of the killing case. Among the other tests it does nothing.
#[test]
#[ignore = "not a test: the process that others start"]
fn child_that_is_killed() {
    let Ok(order) = std::env::var(CHILD) else { return };
    let order: serde_json::Value = serde_json::from_str(&order).unwrap();
    let text = |field: &str| order[field].as_str().unwrap().to_owned();
    let probe = Arc::new(KillProbe::new(order["killAt"].as_u64().unwrap()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // Without workers the statements are those of the follower, and of its start.
        let options = StoreOptions { probe, ..StoreOptions::default() };
        let builder = Towpath::builder().store(&text("store")).store_options(options).without_workers();
        let app = builder.start().await.unwrap();
        let name = text("name");
        let follower = Follower::of(text("peer")).with(quickly()).each(&name, recorder(&name));
        app.follow(follower).await.unwrap().caught_up().await.unwrap();
    });
    println!("the child has applied everything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_no_log_is_told_and_nothing_of_it_is_applied() {
    let fresh = Fresh::on("sqlite").await;
    let app = app(&fresh).await;
    let changed = |change: fn(&str, &mut serde_json::Value)| Mood::Changed(change);
    let moods: Vec<(&str, Mood, &str)> = vec![
        ("a web page", Mood::Type("text/html"), "log-unreadable"),
        ("plain JSON", Mood::Type("application/json"), "log-unreadable"),
        ("a redirect", Mood::Status(302, "Location: http://127.0.0.1:1/notifications\r\n"), "log-unreadable"),
        ("not found", Mood::Status(404, ""), "log-unreadable"),
        ("a key is wanted", Mood::Status(401, ""), "peer-refused"),
        ("forbidden", Mood::Status(403, ""), "peer-refused"),
        ("a page without end", Mood::Endless, "log-unreadable"),
        (
            "a page as large as it says",
            changed(|_, page| page["notifications"][0]["event"]["payload"] = json!("x".repeat(70_000))),
            "log-unreadable",
        ),
        (
            "a gap",
            changed(|_, page| drop(page["notifications"].as_array_mut().unwrap().remove(1))),
            "log-unreadable",
        ),
        (
            "oldest first",
            changed(|_, page| page["notifications"].as_array_mut().unwrap().reverse()),
            "log-unreadable",
        ),
        ("a loop", changed(|_, page| page["previousId"] = page["id"].clone()), "log-unreadable"),
        (
            "a loop of two",
            changed(|path, page| {
                if path != "/notifications" {
                    page["id"] = json!("11,15");
                    page["previousId"] = json!("6,10");
                    page["nextId"] = json!("16,20");
                }
            }),
            "log-unreadable",
        ),
        ("a page of a million", changed(|_, page| page["id"] = json!("1,1000000")), "log-unreadable"),
        (
            "an old page that is not archived",
            changed(|path, page| {
                if path != "/notifications" {
                    page["archived"] = json!(false);
                    page["nextId"] = json!(null);
                }
            }),
            "log-unreadable",
        ),
        (
            "a fact without its parts",
            changed(|_, page| page["notifications"][0]["event"] = json!({})),
            "log-unreadable",
        ),
    ];
    for (number, (what, mood, code)) in moods.into_iter().enumerate() {
        let peer = FakePeer::with(13, 5).await;
        peer.behave(mood);
        let following = app.follow(of(&peer).each(format!("follow-{number}"), record)).await.unwrap();
        let error = end_of(&following).await;
        assert_eq!(error.code(), code, "{what}: {error}");
        assert!(!error.next_step().is_empty());
        assert!(rows(&app).await.is_empty(), "{what}: nothing was applied");
        let attempts = peer.asked().iter().filter(|(path, _)| path == "/notifications").count();
        assert_eq!(attempts, if code == "log-unreadable" { 3 } else { 1 }, "{what}");
    }
    for url in ["pigeon://host", "http://me:secret@127.0.0.1", "127.0.0.1:7400", "http://127.0.0.1/?x=1"] {
        let refused = app.follow(Follower::of(url).each("follow", record)).await;
        let error = refused.err().unwrap();
        assert_eq!(error.code(), "bad-peer-url", "{url}");
        assert!(!error.report().contains("secret"));
    }
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_peer_that_is_away_is_waited_for() {
    let fresh = Fresh::on("sqlite").await;
    let app = app(&fresh).await;
    let peer = FakePeer::with(13, 5).await;
    peer.behave(Mood::Status(503, "Retry-After: 0\r\n"));
    let following = app.follow(of(&peer).each("follow", record)).await.unwrap();
    let asked = |at_least: usize| {
        let peer = &peer;
        eventually_within("attempts", Duration::from_secs(20), move || async move {
            (peer.asked().len() >= at_least).then_some(())
        })
    };
    asked(5).await;
    for mood in [Mood::CutOff, Mood::Status(429, ""), Mood::Status(500, "")] {
        let so_far = peer.asked().len();
        peer.behave(mood);
        asked(so_far + 4).await;
    }
    assert_eq!(following.position(), 0);
    peer.behave(Mood::Well);
    reaches(&following, 13).await;
    assert_eq!(applied(&app).await, (1..=13).collect::<Vec<_>>());
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fact_that_is_not_handled_holds_up_those_behind_it() {
    let fresh = Fresh::on("sqlite").await;
    let app = app(&fresh).await;
    let peer = FakePeer::with(9, 4).await;
    let failures = Arc::new(AtomicU64::new(0));
    let counted = failures.clone();
    let stubborn = move |mut delivery: Delivery| {
        let counted = counted.clone();
        async move {
            let id = delivery.event.event_id.to_string();
            delivery.tx.execute("INSERT INTO effects (event_id, handler) VALUES (?, ?)", &[&id, "x"]).await?;
            if id == event_id(3) && counted.fetch_add(1, Ordering::SeqCst) < 2 {
                return Err(HandlerError::transient("not-yet", "come again"));
            }
            if id == event_id(5) && counted.fetch_add(1, Ordering::SeqCst) < 5 {
                return Ok(delivery.retry_after(Duration::from_millis(1), "later", "come again"));
            }
            if id == event_id(6) && counted.fetch_add(1, Ordering::SeqCst) < 7 {
                panic!("on purpose");
            }
            if id == event_id(8) {
                return Ok(delivery.dead("poison", "never"));
            }
            Ok(delivery.handled())
        }
    };
    let following = app.follow(of(&peer).each("follow", stubborn)).await.unwrap();
    let error = end_of(&following).await;
    assert_eq!(error.code(), "follower-gave-up");
    assert!(matches!(&*error, FollowError::GaveUp { position: 8, .. }), "{error}");
    assert!(failures.load(Ordering::SeqCst) > 6, "it was tried again");
    assert_eq!(applied(&app).await, (1..=7).collect::<Vec<_>>(), "what failed left nothing");
    // Corrected, it goes on with the one that held it up.
    let again = app.follow(of(&peer).batches("follow", 3, |mut batch| async move {
        for delivered in batch.deliveries.clone() {
            let id = delivered.event.event_id.to_string();
            batch.tx.execute("INSERT INTO effects (event_id, handler) VALUES (?, ?)", &[&id, "x"]).await?;
        }
        Ok(batch.handled())
    }));
    assert_eq!(again.await.unwrap().caught_up().await.unwrap(), 9);
    assert_eq!(applied(&app).await, (1..=9).collect::<Vec<_>>());
    app.stop().await;
}
