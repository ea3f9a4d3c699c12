//! A server of which too much is asked, and one that is about to stop, from the outside.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod driver;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use driver::{Server, connect, eventually, new_key, read_answer};
use towpath::Scratch;
use towpath_testkit::broker::TcpProxy;

/// A request whose body does not come: it runs until its time is over.
fn begin(server: &Server, length: usize) -> TcpStream {
    let mut stream = connect(&server.address).unwrap();
    let head = "POST /api/commands HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n";
    write!(stream, "{head}Content-Length: {length}\r\n\r\n{{").unwrap();
    stream
}

#[test]
fn who_watches_is_answered_when_no_more_requests_are_taken() {
    let server = Server::start(&["--limits-concurrent-requests", "1"], "");
    let mut running = Vec::new();
    eventually("the one place is taken", || {
        // One that comes while another is being answered is refused.
        running.push(begin(&server, 2));
        let answer = server.get("/api/events", &[]);
        (answer.status == 503 && answer.code() == "overloaded").then_some(())
    });
    for _ in 0..20 {
        assert_eq!(server.get("/healthz", &[]).status, 200);
        assert_eq!(server.get("/metrics", &[]).status, 200);
    }
    assert_eq!(server.get("/readyz", &[]).status, 200);
}

#[test]
fn who_watches_is_answered_however_often_the_caller_asks_for_else() {
    let server = Server::start(&["--limits-requests-per-second", "1", "--limits-burst", "1"], "");
    eventually("the bucket is empty", || (server.get("/api/events", &[]).status == 429).then_some(()));
    for _ in 0..20 {
        assert_eq!(server.get("/healthz", &[]).status, 200);
        assert_eq!(server.get("/metrics", &[]).status, 200);
        assert_eq!(server.get("/readyz", &[]).status, 200);
    }
}

#[test]
fn one_caller_does_not_take_every_place() {
    let (one, other) = (new_key("ann", "operator"), new_key("bob", "viewer"));
    let arguments = ["--limits-concurrent-requests", "4", "--limits-request-timeout", "60s"];
    let server = Server::start(&arguments, &[one.toml, other.toml].concat());
    let (ann, bob) = (("X-Api-Key", one.key.as_str()), ("X-Api-Key", other.key.as_str()));
    // Each that has a place waits for the rest of its body, and there are two.
    let mut running: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut stream = connect(&server.address).unwrap();
            let head = "POST /api/commands HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n";
            write!(stream, "{head}X-Api-Key: {}\r\nContent-Length: 2\r\n\r\n{{", one.key).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            stream
        })
        .collect();
    let refused = eventually("one of them is refused", || {
        running.iter_mut().find_map(|stream| read_answer(stream).ok())
    });
    assert_eq!((refused.status, refused.code().as_str()), (429, "share-used-up"), "{refused:?}");
    let refused = server.get("/api/events", &[ann]);
    assert_eq!((refused.status, refused.code().as_str()), (429, "share-used-up"), "{refused:?}");
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(server.get("/metrics", &[ann]).status, 200, "who watches needs no place");
    assert_eq!(server.get("/api/events", &[bob]).status, 200, "the others have the rest");
    drop(running);
    eventually("the share is free again", || (server.get("/api/events", &[ann]).status == 200).then_some(()));
}

#[test]
fn who_watches_is_answered_when_no_more_connections_are_taken() {
    let server = Server::start(&["--limits-connections", "2", "--limits-header-timeout", "60s"], "");
    let held = [connect(&server.address).unwrap(), connect(&server.address).unwrap()];
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(server.get(path, &[]).status, 200, "{path}");
    }
    let refused = server.get("/api/events", &[]);
    assert_eq!((refused.status, refused.code().as_str()), (503, "overloaded"));
    assert_eq!(refused.header("retry-after"), "1");
    drop(held);
    eventually("places are free again", || (server.get("/api/events", &[]).status == 200).then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_do_not_wait_for_the_store() {
    let url = std::env::var("TOWPATH_TEST_POSTGRES_URL")
        .expect("TOWPATH_TEST_POSTGRES_URL: run `cargo xtask test`");
    let (before, rest) = url.split_once('@').unwrap();
    let (address, after) = rest.split_once('/').unwrap();
    let proxy = TcpProxy::to(address).await;
    let scratch = Scratch::make(&url).await.unwrap();
    let store = scratch.url().replace(address, &proxy.address().to_string());
    assert!(!after.is_empty() && before.starts_with("postgres"), "{url}");
    let server = tokio::task::spawn_blocking(move || Server::start(&["--store", &store], "")).await.unwrap();
    let ask = |path: &'static str| {
        tokio::task::block_in_place(|| {
            let began = Instant::now();
            (server.get(path, &[]), began.elapsed())
        })
    };
    assert_eq!(ask("/api/events").0.status, 200);
    let measured = ask("/metrics").0;
    assert!(measured.body.contains("towpath_http_requests_total"));
    let errors_at_first = scrape_errors_of_the_store(&measured.body);
    proxy.hold_everything();
    // What was measured is fresh for some seconds; after that the store is asked again, and does not answer. Who looks then
    // waits for half a second, and goes on without it: that it was given up is counted later.
    let (begun, mut errors, mut went_on_without_it) = (Instant::now(), errors_at_first, false);
    while errors == errors_at_first || !went_on_without_it {
        let (answer, took) = ask("/metrics");
        assert_eq!(answer.status, 200);
        let errors_before = std::mem::replace(&mut errors, scrape_errors_of_the_store(&answer.body));
        went_on_without_it |= took >= Duration::from_millis(400) && errors == errors_before;
        assert!(begun.elapsed() < driver::PATIENCE, "{errors} errors; it went on: {went_on_without_it}");
    }
    assert_eq!(ask("/healthz").0.status, 200);
    drop((server, proxy));
    scratch.remove().await.unwrap();
}

/// How often the store was not measured.
fn scrape_errors_of_the_store(metrics: &str) -> u64 {
    let is_error = |line: &&str| line.starts_with("towpath_scrape_errors_total") && line.contains("store");
    let line = metrics.lines().find(is_error);
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// Said by who takes requests for a while after it was told to stop.
const DRAINS: &str = "requests are still taken for a while";

#[test]
fn readiness_ends_before_the_listener_does() {
    let mut server = Server::start(&["--server-drain", "3s"], "");
    assert_eq!(server.get("/readyz", &[]).status, 200);
    let began = Instant::now();
    server.terminate();
    let stopping = eventually("it says that it stops", || {
        Some(server.get("/readyz", &[])).filter(|answer| answer.status == 503)
    });
    assert_eq!(stopping.code(), "stopping");
    assert_eq!(server.get("/api/events", &[]).status, 200, "requests are still taken");
    assert_eq!(server.get("/healthz", &[]).status, 200, "it lives");
    eventually("no more connections are taken", || {
        server.try_ask("GET", "/healthz", &[], "").is_err().then_some(())
    });
    assert!(began.elapsed() >= Duration::from_secs(3), "after {:?}", began.elapsed());
    assert!(server.wait(), "{}", server.log());
    assert!(server.log().contains(DRAINS), "{}", server.log());
}

#[test]
fn on_loopback_nobody_waits_for_who_spreads_requests() {
    let mut server = Server::start(&[], "");
    server.terminate();
    assert!(server.wait(), "{}", server.log());
    assert!(!server.log().contains(DRAINS), "{}", server.log());
}

/// How much memory a process has had at most, in MiB.
fn peak(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn bodies_that_arrive_together_are_bounded_together() {
    let server = Server::start(&["--limits-request-timeout", "300s"], "");
    let before = peak(server.id());
    let body = vec![b' '; (5 << 20) - 2];
    // Each sends all but the end of its body, as far as it is taken.
    let held: Vec<TcpStream> = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..100)
            .map(|_| {
                scope.spawn(|| {
                    let mut stream = begin(&server, 5 << 20);
                    stream.set_write_timeout(Some(Duration::from_secs(3))).unwrap();
                    let _ = stream.write_all(&body);
                    stream
                })
            })
            .collect();
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    });
    let after = peak(server.id());
    assert!(after - before < 128, "{before} MiB before, {after} MiB with 500 MiB on their way");
    assert_eq!(server.get("/api/events", &[]).status, 200, "who asks for little is not kept waiting");
    // Those for whom there was no room are told so, long before those who have some are told that they are slow.
    let answers: Vec<_> = std::thread::scope(|scope| {
        let readers: Vec<_> = held
            .into_iter()
            .map(|mut stream| {
                scope.spawn(move || {
                    stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
                    read_answer(&mut stream).ok()
                })
            })
            .collect();
        readers.into_iter().filter_map(|reader| reader.join().unwrap()).collect()
    });
    for answer in &answers {
        assert_eq!((answer.status, answer.code().as_str()), (503, "overloaded"));
        assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    }
    assert!(!answers.is_empty());
}

#[test]
fn one_caller_does_not_take_every_stream() {
    let (one, other) = (new_key("ann", "viewer"), new_key("bob", "viewer"));
    let server = Server::start(&["--limits-streams", "4"], &[one.toml, other.toml].concat());
    let follow = |key: &str| {
        let mut stream = connect(&server.address).unwrap();
        let head = format!("GET /api/events/stream HTTP/1.1\r\nHost: {}\r\n", server.address);
        write!(stream, "{head}X-Api-Key: {key}\r\n\r\n").unwrap();
        let mut begun = [0; 12];
        std::io::Read::read_exact(&mut stream, &mut begun).unwrap();
        (stream, String::from_utf8(begun.to_vec()).unwrap())
    };
    let first: Vec<_> = (0..2).map(|_| follow(&one.key)).collect();
    assert!(first.iter().all(|(_, begun)| begun.ends_with("200")), "{first:?}");
    let refused = server.get("/api/events/stream", &[("X-Api-Key", &one.key)]);
    assert_eq!((refused.status, refused.code().as_str()), (429, "share-used-up"));
    assert!(refused.headers.contains_key("retry-after"));
    let others: Vec<_> = (0..2).map(|_| follow(&other.key)).collect();
    assert!(others.iter().all(|(_, begun)| begun.ends_with("200")), "{others:?}");
    drop(first);
    eventually("the share is free again", || follow(&one.key).1.ends_with("200").then_some(()));
}
