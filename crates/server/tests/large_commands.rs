//! Many large commands at once: all are answered, and the server does not grow with their number.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod parcels;

use std::time::Instant;

use parcels::{PATIENCE, Server};

/// Not a test: the server process that the others start.
#[test]
fn server_of_a_test() {
    parcels::become_server();
}

const COMMANDS: usize = 40;

/// What the server may have, with all it holds itself.
const MOST_MIB: u64 = 256;

#[test]
fn large_commands_do_not_make_the_server_grow_with_their_number() {
    // On a busy machine each takes its time; what is shown here is room.
    let server = Server::of_carrier_with(&["--limits-request-timeout", "5m"]);
    server.send("parcel.register", "small", r#"{"weight":1}"#);
    let before = server.peak();
    let note = "x".repeat(3 << 20);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..COMMANDS {
            let (server, note) = (&server, &note);
            scope.spawn(move || {
                let body = format!(
                    r#"{{"commandId":"c-{number}","type":"parcel.register","aggregateId":"p-{number}","payload":{{"weight":1,"note":"{note}"}}}}"#
                );
                // Who finds no room is told to come again.
                loop {
                    let answer = server.post("/api/commands", &body);
                    match answer.status {
                        200 | 201 => return,
                        503 => assert!(begun.elapsed() < 5 * PATIENCE, "{:?}", answer.headers),
                        other => panic!("{other}: {}", answer.code()),
                    }
                }
            });
        }
    });
    // They are answered, one by one and large as they are.
    std::thread::scope(|scope| {
        for number in 0..COMMANDS {
            let server = &server;
            scope.spawn(move || {
                loop {
                    let answer = server.get(&format!("/api/commands/c-{number}"));
                    match answer.status {
                        200 => return assert!(answer.body.len() > 3 << 20),
                        503 => assert!(begun.elapsed() < 5 * PATIENCE, "{:?}", answer.headers),
                        other => panic!("{other}"),
                    }
                }
            });
        }
    });
    let sent = server.until("/api/outbox?status=SENT&limit=1000", |listed| {
        listed["rows"].as_array().unwrap().len() == COMMANDS + 1
    });
    drop(sent);
    let after = server.peak();
    assert!(after < MOST_MIB, "{before} MiB before, {after} MiB at most");
}
