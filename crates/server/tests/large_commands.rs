//! Many large commands at once: all are answered, and the server does not grow with their number.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod parcels;

use std::time::Instant;

use parcels::{Answer, PATIENCE, Server};

/// Not a test: the server process that the others start.
#[test]
#[ignore = "not a test: the process that others start"]
fn server_of_a_test() {
    parcels::become_server();
}

const COMMANDS: usize = 30;

/// What the server may have, with all it holds itself.
const MOST_MIB: u64 = 256;

/// They are refused, so that nothing follows from them: what is shown here is the room of requests and answers.
#[test]
fn large_commands_do_not_make_the_server_grow_with_their_number() {
    // On a busy machine each takes its time.
    let server = Server::of_carrier_with(&["--limits-request-timeout", "5m"]);
    server.send("parcel.register", "p", r#"{"weight":1}"#);
    let (before, note, begun) = (server.peak(), "x".repeat(3 << 20), Instant::now());
    // Who finds no room is told to come again.
    let insist = |ask: &dyn Fn() -> Answer| loop {
        let answer = ask();
        if answer.status != 503 {
            return answer;
        }
        assert!(begun.elapsed() < 5 * PATIENCE, "{:?}", answer.headers);
    };
    std::thread::scope(|scope| {
        for number in 0..COMMANDS {
            let (server, note, insist) = (&server, &note, &insist);
            scope.spawn(move || {
                let head = format!(r#""commandId":"c-{number}","type":"parcel.register","aggregateId":"p""#);
                let body = format!(r#"{{{head},"payload":{{"weight":1,"note":"{note}"}}}}"#);
                let refused = insist(&|| server.post("/api/commands", &body));
                assert_eq!((refused.status, refused.code().as_str()), (409, "already-registered"));
                let shown = insist(&|| server.get(&format!("/api/commands/c-{number}")));
                assert!(shown.status == 200 && shown.body.len() > 3 << 20, "{}", shown.status);
            });
        }
    });
    let after = server.peak();
    assert!(after < MOST_MIB, "{before} MiB before, {after} MiB at most");
}
