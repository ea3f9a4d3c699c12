//! Access, limits and logs from the outside: the binary is started and spoken to over HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod driver;

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use driver::{Answer, Server, connect, eventually, new_key, read_answer, run, towpath};

/// Paths of the API with parameters filled in, by method, as its own document lists them.
fn paths(server: &Server, headers: &[(&str, &str)]) -> Vec<(String, String)> {
    let document = server.get("/openapi.json", headers);
    assert_eq!(document.status, 200, "the document says which paths there are: {}", document.body);
    let document = document.json();
    let mut paths = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let filled: Vec<&str> =
            path.split('/').map(|part| if part.starts_with('{') { "1" } else { part }).collect();
        for method in methods.as_object().unwrap().keys() {
            if ["get", "head", "options", "post", "put", "patch", "delete"].contains(&method.as_str()) {
                paths.push((method.to_uppercase(), filled.join("/")));
            }
        }
    }
    assert!(paths.contains(&("POST".to_owned(), "/api/commands".to_owned())), "{paths:?}");
    paths
}

fn is_change(method: &str) -> bool {
    !["GET", "HEAD", "OPTIONS"].contains(&method)
}

#[test]
fn with_a_viewers_key_nothing_can_be_changed() {
    let (viewer, operator, admin) =
        (new_key("eve", "viewer"), new_key("bob", "operator"), new_key("ann", "admin"));
    let server = Server::start(&[], &[viewer.toml, operator.toml, admin.toml].concat());
    let bearer = |key: &str| format!("Bearer {key}");
    let (eve, bob, ann) = (bearer(&viewer.key), bearer(&operator.key), bearer(&admin.key));
    let body = r#"{"type":"order.place","aggregateId":"1","payload":{}}"#;
    let before = server.get("/api/events", &[("Authorization", &eve)]);
    assert_eq!(before.status, 200);
    let mut changes = 0;
    for (method, path) in
        paths(&server, &[("Authorization", &eve)]).iter().filter(|(method, _)| is_change(method))
    {
        let refused = server.ask(method, path, &[("Authorization", &eve), ("Idempotency-Key", "k")], body);
        assert_eq!((refused.status, refused.code().as_str()), (403, "forbidden"), "{method} {path}");
        let unknown = server.ask(method, path, &[], body);
        assert_eq!((unknown.status, unknown.code().as_str()), (401, "unauthenticated"), "{method} {path}");
        assert!(unknown.header("www-authenticate").starts_with("Bearer"), "{unknown:?}");
        changes += 1;
    }
    assert!(changes > 0);
    let after = server.get("/api/events", &[("X-Api-Key", &viewer.key)]);
    assert_eq!(after.body, before.body, "nothing was changed");
    for key in [&bob, &ann] {
        let answer = server.ask("POST", "/api/commands", &[("Authorization", key)], body);
        assert_eq!(answer.code(), "unknown-command", "it got as far as the command");
    }
    // Methods that nobody knows are changes, too.
    assert_eq!(server.ask("BREW", "/api/events", &[("Authorization", &eve)], "").status, 403);
}

#[test]
fn every_change_takes_an_idempotency_key_and_is_recorded() {
    let admin = new_key("ann", "admin");
    let server = Server::start(&[], &admin.toml);
    let by = ("X-Api-Key", admin.key.as_str());
    let changes: Vec<_> = paths(&server, &[by])
        .into_iter()
        .filter(|(method, path)| is_change(method) && path != "/api/commands")
        // What workers ask all the time is no change to be recorded.
        .filter(|(_, path)| path != "/api/tasks/claim" && !path.ends_with("/heartbeat"))
        .collect();
    for (number, (method, path)) in changes.iter().enumerate() {
        let key = format!("key-{number}");
        let ask = |body: &str| server.ask(method, path, &[by, ("Idempotency-Key", &key)], body);
        let (first, again) = (ask("{}"), ask("{}"));
        assert!(first.status < 500 && first.status != 405, "{method} {path}: {first:?}");
        assert_eq!((again.status, &again.body), (first.status, &first.body), "{method} {path}");
        assert_eq!(again.header("idempotency-replayed"), "true", "{method} {path}");
        assert!(!first.headers.contains_key("idempotency-replayed"));
        assert_eq!(ask("{\"other\":1}").code(), "key-reused", "{method} {path}");
    }
    let facts = eventually("each is a fact", || {
        let page = server.get("/api/events?after=0&limit=1000", &[by]).json();
        let facts = page["events"].as_array().unwrap().clone();
        let facts: Vec<_> = facts.into_iter().filter(|fact| fact["aggregateKind"] == "operation").collect();
        (facts.len() >= changes.len()).then_some(facts)
    });
    assert_eq!(facts.len(), changes.len());
    for (fact, (method, path)) in facts.iter().zip(&changes) {
        assert_eq!(fact["type"], "towpath.operation.performed");
        assert_eq!((&fact["payload"]["actor"], &fact["payload"]["role"]), (&"ann".into(), &"admin".into()));
        assert_eq!(fact["payload"]["target"].as_str(), Some(path.as_str()));
        assert!(fact["payload"]["action"].as_str().unwrap().starts_with(&format!("{method} ")));
    }
}

#[test]
fn without_a_key_nothing_can_be_read_beyond_loopback() {
    let refused = run(&["--listen", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(2));
    let says = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(says.contains("towpath keys new") && says.contains("reachable from other machines"), "{says}");

    let viewer = new_key("eve", "viewer");
    let mut command = towpath();
    command.args(["--listen", "0.0.0.0:0"]);
    let server = Server::spawn(command, std::sync::Arc::new(tempfile::tempdir().unwrap()), &viewer.toml);
    let key = [("X-Api-Key", viewer.key.as_str())];
    let mut all = paths(&server, &key);
    for path in
        ["/", "/metrics", "/openapi.json", "/docs", "/notifications", "/nowhere", "/api/aggregates/a/1"]
    {
        all.push(("GET".to_owned(), path.to_owned()));
    }
    for (method, path) in all.iter().filter(|(_, path)| !["/healthz", "/readyz"].contains(&path.as_str())) {
        let answer = server.ask(method, path, &[], "");
        assert_eq!(
            (answer.status, answer.body.contains("unauthenticated")),
            (401, method != "HEAD"),
            "{method} {path}"
        );
    }
    assert_eq!((server.get("/healthz", &[]).status, server.get("/readyz", &[]).status), (200, 200));
    assert_eq!(server.get("/api/events", &key).status, 200);
    for wrong in ["tpk_", "tpk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "", "é"] {
        assert_eq!(server.get("/api/events", &[("X-Api-Key", wrong)]).status, 401, "{wrong}");
        assert_eq!(server.get("/api/events", &[("Authorization", &format!("Bearer {wrong}"))]).status, 401);
    }
    let hash = viewer.toml.split("hash = \"").nth(1).unwrap().trim_end().trim_end_matches('"');
    assert_eq!(server.get("/api/events", &[("X-Api-Key", hash)]).status, 401, "the hash is no key");
    assert_eq!(server.get("/api/events", &[("Authorization", &format!("Basic {}", viewer.key))]).status, 401);
}

#[test]
fn without_keys_loopback_serves_this_machine_and_no_page_from_elsewhere() {
    let server = Server::start(&[], "");
    assert_eq!(server.get("/api/events", &[]).status, 200);
    for foreign in [
        ("Host", "evil.example"),
        ("Origin", "https://evil.example"),
        ("Origin", "http://127.0.0.1:3000"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
    ] {
        assert_eq!(server.get("/api/events", &[foreign]).code(), "foreign-origin", "{foreign:?}");
        assert_eq!(server.ask("POST", "/api/commands", &[foreign], "{}").status, 403, "{foreign:?}");
    }
}

#[test]
fn who_asks_too_often_waits() {
    let (one, other) = (new_key("one", "viewer"), new_key("other", "viewer"));
    let arguments = ["--limits-requests-per-second", "1", "--limits-burst", "3"];
    let server = Server::start(&arguments, &[one.toml, other.toml].concat());
    let ask = |key: &str| server.get("/api/events", &[("X-Api-Key", key)]);
    let answers: Vec<Answer> = (0..12).map(|_| ask(&one.key)).collect();
    let refused = answers.iter().find(|answer| answer.status == 429).expect("twelve at once are too many");
    assert!(answers[..3].iter().all(|answer| answer.status == 200), "{answers:?}");
    assert_eq!(refused.code(), "too-many-requests");
    assert_eq!((refused.header("retry-after"), refused.header("ratelimit-limit")), ("1", "3"));
    assert_eq!(refused.header("ratelimit-remaining"), "0");
    assert_eq!(ask(&other.key).status, 200, "each key has a limit of its own");
    assert_eq!(server.get("/healthz", &[]).status, 200);
    // Who guesses keys is slowed down, too, and takes nothing from those who have one.
    let guesses: Vec<u16> = (0..12).map(|number| ask(&format!("tpk_{number}")).status).collect();
    assert!(guesses.contains(&401) && guesses.contains(&429), "{guesses:?}");
    eventually("the bucket fills again", || (ask(&one.key).status == 200).then_some(()));
}

#[test]
fn without_keys_what_a_proxy_passes_on_is_refused() {
    let server = Server::start(&[], "");
    let own = format!("http://{}", server.address);
    assert_eq!(server.get("/api/events", &[("Origin", &own)]).status, 200, "a page of the server itself");
    for by_proxy in [
        ("Forwarded", "for=203.0.113.7"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Forwarded-Proto", "https"),
        ("X-Real-IP", "203.0.113.7"),
        ("Via", "1.1 proxy"),
    ] {
        let refused = server.get("/api/events", &[by_proxy]);
        assert_eq!((refused.status, refused.code().as_str()), (403, "forwarded-request"), "{by_proxy:?}");
        assert_eq!(server.ask("POST", "/api/commands", &[by_proxy], "{}").status, 403, "{by_proxy:?}");
        assert_eq!(server.get("/healthz", &[by_proxy]).status, 200, "who watches may be behind one");
    }
    // nginx adds nothing unless it is told to, and speaks the old HTTP.
    let in_old_http = |server: &Server, path: &str, key: &str| {
        let mut stream = connect(&server.address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\nX-Api-Key: {key}\r\n\r\n", server.address)
            .unwrap();
        read_answer(&mut stream).unwrap()
    };
    assert_eq!(in_old_http(&server, "/api/events", "").code(), "forwarded-request");
    assert_eq!(in_old_http(&server, "/healthz", "").status, 200);
    let viewer = new_key("eve", "viewer");
    let server = Server::start(&[], &viewer.toml);
    let asked = [("X-Api-Key", viewer.key.as_str()), ("X-Forwarded-For", "203.0.113.7")];
    assert_eq!(server.get("/api/events", &asked).status, 200, "who shows a key may come through a proxy");
    assert_eq!(in_old_http(&server, "/api/events", &viewer.key).status, 200);
}

#[test]
fn a_body_that_is_not_said_to_be_json_is_none() {
    let server = Server::start(&[], "");
    let post = |path: &str, kind: &str, body: &str| {
        let mut stream = connect(&server.address).unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", server.address);
        write!(stream, "{head}{kind}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        read_answer(&mut stream).unwrap()
    };
    let command = r#"{"type":"order.place","aggregateId":"1","payload":{}}"#;
    for path in ["/api/commands", "/api/hive/services", "/api/market/orders", "/api/outbox/retry"] {
        for kind in
            ["", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n"]
        {
            let refused = post(path, kind, command);
            assert_eq!(
                (refused.status, refused.code().as_str()),
                (415, "unsupported-media-type"),
                "{path} {kind}"
            );
        }
        let read = post(path, "Content-Type: application/json; charset=utf-8\r\n", command);
        assert_ne!(read.status, 415, "{path}");
    }
    assert_eq!(
        post("/api/outbox/1/retry", "", "").status,
        404,
        "without a body there is nothing to be told of"
    );
}

#[test]
fn answers_are_for_who_asked_and_for_now() {
    let viewer = new_key("eve", "viewer");
    let by = ("X-Api-Key", viewer.key.as_str());
    let server = Server::start(&[], &viewer.toml);
    for path in ["/api/events", "/healthz", "/metrics", "/docs", "/api/commands/none", "/nowhere"] {
        assert_eq!(server.get(path, &[by]).header("cache-control"), "private, no-store", "{path}");
    }
    assert_eq!(server.get("/api/events", &[]).header("cache-control"), "private, no-store");
    assert_eq!(
        server.get("/notifications", &[by]).header("cache-control"),
        "private, no-cache, no-transform"
    );
}

#[test]
fn discarding_and_force_are_for_admins_and_many_must_be_counted() {
    let (operator, admin) = (new_key("bob", "operator"), new_key("ann", "admin"));
    let server = Server::start(&[], &[operator.toml, admin.toml].concat());
    let (bob, ann) = (("X-Api-Key", operator.key.as_str()), ("X-Api-Key", admin.key.as_str()));
    let outbox = ["/api/outbox/1/retry", "/api/outbox/retry"];
    let letters = ["/api/dead-letters/1/replay", "/api/dead-letters/replay"];
    for path in outbox.iter().chain(&letters) {
        let many = path.split('/').count() == 4;
        let plain = if many { r#"{"all":true}"# } else { "{}" };
        let forced = if many { r#"{"all":true,"force":true}"# } else { r#"{"force":true}"# };
        let refused = server.ask("POST", path, &[bob], forced);
        assert_eq!((refused.status, refused.code().as_str()), (403, "forbidden"), "{path}");
        assert_ne!(server.ask("POST", path, &[bob], plain).status, 403, "{path}");
        assert_ne!(server.ask("POST", path, &[ann], forced).status, 403, "{path}");
    }
    let skip = |by| server.ask("POST", "/api/outbox/1/skip", &[by], r#"{"reason":"it is wrong"}"#);
    assert_eq!((skip(bob).code(), skip(ann).status), ("forbidden".to_owned(), 404));
    for (number, start) in ["null", "\"now\"", "\"first\"", "1"].into_iter().enumerate() {
        let add = |by| {
            let body = format!(r#"{{"name":"c-{number}","events":["*"],"exchange":"e","start":{start}}}"#);
            server.ask("POST", "/api/channels", &[by], &body)
        };
        let answer = add(bob);
        if number < 2 {
            assert_ne!(answer.status, 403, "{start}: {answer:?}");
        } else {
            assert_eq!(answer.code(), "forbidden", "{start}");
            assert_ne!(add(ann).status, 403, "{start}");
        }
    }
    for path in ["/api/dead-letters/1/discard", "/api/dead-letters/discard"] {
        assert_eq!(server.ask("POST", path, &[bob], r#"{"dryRun":true}"#).code(), "forbidden", "{path}");
    }
    for path in ["/api/outbox/retry", "/api/dead-letters/replay", "/api/dead-letters/discard"] {
        let refused = server.ask("POST", path, &[ann], "{}");
        assert_eq!((refused.status, refused.code().as_str()), (422, "scope-not-said"), "{path}");
        for said in [r#"{"dryRun":true}"#, r#"{"expected":0}"#, r#"{"all":true}"#] {
            assert_eq!(server.ask("POST", path, &[ann], said).status, 200, "{path} {said}");
        }
        assert_eq!(server.ask("POST", path, &[ann], r#"{"expected":1,"all":true}"#).code(), "scope-changed");
    }
}

#[test]
fn where_nobody_looks_log_lines_have_no_colours() {
    let server = Server::start(&[], "");
    assert_eq!(server.get("/healthz", &[]).status, 200);
    let log = eventually("a line of the log", || Some(server.log()).filter(|log| log.contains("INFO")));
    assert!(!log.contains('\u{1b}'), "{log:?}");
}

#[test]
fn a_client_that_dawdles_is_cut_off() {
    let arguments = ["--limits-header-timeout", "500ms", "--limits-request-timeout", "700ms"];
    let server = Server::start(&arguments, "");
    // A head that never ends.
    let began = Instant::now();
    let mut stream = connect(&server.address).unwrap();
    stream.write_all(b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ").unwrap();
    let mut trickling = stream.try_clone().unwrap();
    let trickle = std::thread::spawn(move || {
        while trickling.write_all(b"a").is_ok() && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(began.elapsed() < Duration::from_secs(15), "it was held for {:?}", began.elapsed());
    trickle.join().unwrap();
    // A body that never ends.
    let began = Instant::now();
    let mut stream = connect(&server.address).unwrap();
    stream
        .write_all(b"POST /api/commands HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        .unwrap();
    let answer = read_answer(&mut stream).unwrap();
    assert_eq!((answer.status, answer.code().as_str()), (408, "slow-request"));
    assert!(began.elapsed() < Duration::from_secs(15), "it was held for {:?}", began.elapsed());
    // A connection on which nothing is asked any more.
    let mut idle = connect(&server.address).unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
    let began = Instant::now();
    assert_eq!(read_answer(&mut idle).unwrap().status, 200);
    assert!(began.elapsed() < Duration::from_secs(15), "it was held for {:?}", began.elapsed());
    assert_eq!(server.get("/healthz", &[]).status, 200);
}

#[test]
fn what_is_too_large_is_refused_as_a_problem() {
    let arguments =
        ["--limits-body-bytes", "1000", "--limits-header-bytes", "2000", "--limits-headers", "10"];
    let server = Server::start(&arguments, "");
    let large = server.ask("POST", "/api/commands", &[], &"x".repeat(1001));
    assert_eq!((large.status, large.code().as_str()), (413, "too-large"));
    assert_eq!(server.ask("POST", "/api/commands", &[], &"x".repeat(1000)).code(), "malformed");
    let long = "x".repeat(2000);
    let head = server.get("/api/events", &[("X-Long", &long)]);
    assert_eq!((head.status, head.code().as_str()), (431, "head-too-large"));
    let many: Vec<(&str, &str)> = (0..11).map(|_| ("X-Many", "1")).collect();
    assert_eq!(server.get("/api/events", &many).code(), "head-too-large");
    let far_too_large = "x".repeat(1 << 20);
    let refused = server.try_ask("GET", "/api/events", &[("X-Long", &far_too_large)], "");
    assert!(refused.is_err() || refused.is_ok_and(|answer| answer.status == 431));
    assert_eq!(server.get("/healthz", &[]).status, 200);
}

#[test]
fn a_server_that_is_told_to_stop_ends_what_runs_and_waits_for_nobody_for_ever() {
    let begin = |server: &Server| {
        let mut stream = connect(&server.address).unwrap();
        stream
            .write_all(b"POST /api/commands HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{")
            .unwrap();
        stream
    };
    let arguments = ["--server-shutdown-timeout", "30s", "--limits-request-timeout", "60s"];
    let mut server = Server::start(&arguments, "");
    let mut running = begin(&server);
    // Once this is answered the one before it was accepted.
    assert_eq!(server.get("/healthz", &[]).status, 200);
    server.terminate();
    eventually("no more connections are taken", || {
        server.try_ask("GET", "/healthz", &[], "").is_err().then_some(())
    });
    running.write_all(b"}").unwrap();
    assert_eq!(read_answer(&mut running).unwrap().code(), "malformed", "what ran was answered");
    assert!(server.wait(), "{}", server.log());

    let arguments = ["--server-shutdown-timeout", "300ms", "--limits-request-timeout", "60s"];
    let mut server = Server::start(&arguments, "");
    let _running = begin(&server);
    assert_eq!(server.get("/healthz", &[]).status, 200);
    let began = Instant::now();
    server.terminate();
    assert!(server.wait(), "{}", server.log());
    assert!(began.elapsed() < Duration::from_secs(30), "it took {:?}", began.elapsed());
    assert!(server.log().contains("cut off"), "{}", server.log());
}

#[test]
fn a_server_that_is_told_to_stop_again_ends_at_once() {
    let arguments = ["--server-shutdown-timeout", "10m", "--limits-request-timeout", "10m"];
    let mut server = Server::start(&arguments, "");
    let mut running = connect(&server.address).unwrap();
    let head = "POST /api/commands HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{";
    running.write_all(head.as_bytes()).unwrap();
    // Once this is answered the one before it was accepted.
    assert_eq!(server.get("/healthz", &[]).status, 200);
    server.terminate();
    eventually("no more connections are taken", || {
        server.try_ask("GET", "/healthz", &[], "").is_err().then_some(())
    });
    server.terminate();
    assert_eq!(server.wait_for_code(), Some(143), "{}", server.log());
}

#[test]
fn a_line_per_request_and_no_secrets_in_the_log() {
    let key = new_key("bob", "operator");
    let arguments = ["--log-format", "json", "--log-filter", "trace", "--store", "sqlite://s.db"];
    let server = Server::start(&arguments, &key.toml);
    let bearer = format!("Bearer {}", key.key);
    let id = server.get("/api/events?token=s3cret", &[("Authorization", &bearer), ("X-Request-Id", "r-7")]);
    assert_eq!((id.status, id.header("x-request-id")), (400, "r-7"), "{id:?}");
    server.get("/api/aggregates/order/7", &[("X-Api-Key", &key.key), ("X-Other", "s3cret")]);
    server.ask("POST", "/api/commands", &[("X-Api-Key", &key.key)], r#"{"password":"s3cret"}"#);
    server.get("/api/events", &[("Authorization", "Bearer eyJs3cret.eyJs3cret.s3cret")]);
    let lines: Vec<serde_json::Value> = eventually("four lines", || {
        let log = server.log();
        let lines = log.lines().filter(|line| line.starts_with('{'));
        let lines: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        let answered: Vec<_> = lines.into_iter().filter(|line| line["message"] == "answered").collect();
        (answered.len() == 4).then_some(answered)
    });
    assert_eq!(lines[0]["requestId"], "r-7");
    assert_eq!(
        (&lines[0]["actor"], &lines[0]["route"], &lines[0]["status"]),
        (&"bob".into(), &"/api/events".into(), &400.into())
    );
    assert_eq!(lines[1]["route"], "/api/aggregates/{kind}/{id}");
    assert!(lines[1]["ms"].as_f64().is_some() && lines[1]["traceId"].as_str().unwrap().len() == 32);
    assert_eq!(lines[3]["actor"], serde_json::Value::Null);
    let log = server.log();
    for secret in ["s3cret", key.key.as_str(), &key.key[4..]] {
        let line = log.lines().find(|line| line.contains(secret));
        assert!(line.is_none(), "a secret was logged: {line:?}");
    }
}

#[test]
fn config_shows_what_would_run_and_where_it_comes_from() {
    let key = new_key("bob", "operator");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("towpath.toml");
    let text = format!(
        "store = \"postgres://me:s3cret@db/towpath\"\n[limits]\nheaders = 9\nburst = 8\n{}",
        key.toml
    );
    std::fs::write(&file, &text).unwrap();
    let output = towpath()
        .args(["config", "--config"])
        .arg(&file)
        .args(["--limits-burst", "7"])
        .env("TOWPATH_LIMITS_CONNECTIONS", "6")
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{shown}");
    for line in [
        "store = \"postgres://me:…@db/towpath\" # file",
        "listen = \"127.0.0.1:7400\" # default",
        "burst = 7 # flag",
        "connections = 6 # environment",
        "headers = 9 # file",
        "name = \"bob\"",
        "hash = \"(hidden)\"",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    let hash = key.toml.split("sha256:").nth(1).unwrap().trim_end().trim_end_matches('"').to_owned();
    assert!(!shown.contains("s3cret") && !shown.contains(&hash), "{shown}");
    for (text, names) in [("[limits]\nhedders = 9\n", "limits.hedders"), ("[acess]\n", "acess")] {
        std::fs::write(&file, text).unwrap();
        let refused = towpath().arg("--config").arg(&file).output().unwrap();
        let says = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!((refused.status.code(), says.contains(names)), (Some(2), true), "{says}");
    }
}
