//! The command line as a client of a running server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod parcels;

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use parcels::{Server, towpath};
use serde_json::Value;

/// Not a test: the server process that the others start.
#[test]
#[ignore = "not a test: the process that others start"]
fn server_of_a_test() {
    parcels::become_server();
}

/// What it said, if it ended well.
fn said(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(output: Output) -> Value {
    let text = said(output);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn refused(output: Output, exit_code: i32, says: &str) {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(exit_code), "{errors}");
    assert!(errors.contains(says), "{errors}");
}

#[test]
fn a_command_is_sent_shown_and_traced() {
    let server = Server::of_carrier();
    let send =
        ["send", "parcel.register", "--aggregate", "p-1", "--id", "c-1", "--payload", r#"{"weight":7}"#];
    let told = said(server.run(&send));
    assert!(told.contains("c-1 COMPLETED") && told.contains(r#"1 parcel.registered {"weight":7}"#), "{told}");
    assert_eq!(said(server.run(&send)), told, "the same id gives the same answer");
    std::fs::write(std::env::temp_dir().join("towpath-payload.json"), "null").unwrap();
    let file = format!("@{}", std::env::temp_dir().join("towpath-payload.json").display());
    let sent = json(server.run(&["send", "parcel.send", "--aggregate", "p-1", "--payload", &file, "--json"]));
    assert_eq!(sent["events"][0]["eventType"], "parcel.sent");

    let listed = said(server.run(&["commands", "ls", "--status", "COMPLETED"]));
    assert!(
        listed.starts_with("COMMAND") && listed.contains("c-1") && listed.contains("parcel.send"),
        "{listed}"
    );
    assert_eq!(json(server.run(&["commands", "show", "c-1", "--json"]))["type"], "parcel.register");
    assert!(said(server.run(&["commands", "show", "c-1"])).contains("aggregateVersion"));

    let traced = said(server.run(&["trace", "c-1"]));
    assert!(
        traced.contains("> parcel.register c-1") && traced.contains("<--") && traced.contains("(whole)"),
        "{traced}"
    );
    assert!(traced.contains("    * parcel.registered"), "{traced}");
    assert_eq!(json(server.run(&["trace", "c-1", "--json"]))[0]["whole"], true);

    let listed = said(server.run(&["aggregates", "ls", "parcel"]));
    assert!(listed.contains("p-1") && listed.contains("sent"), "{listed}");
    assert!(said(server.run(&["aggregates", "show", "parcel", "p-1"])).contains("state"));
    assert!(said(server.run(&["machines"])).contains("parcel"));
    assert!(said(server.run(&["machines", "parcel"])).starts_with("stateDiagram-v2"));
    assert!(said(server.run(&["machines", "parcel", "--format", "svg"])).starts_with("<svg"));
    assert_eq!(json(server.run(&["machines", "parcel", "--json"]))["name"], "parcel");
}

#[test]
fn the_exit_code_tells_no_from_wrong_from_unreachable() {
    let server = Server::of_carrier();
    refused(server.run(&["send", "parcel.send", "--aggregate", "x"]), 1, "unknown-parcel");
    refused(server.run(&["send", "parcel.fly", "--aggregate", "x"]), 1, "unknown-command");
    refused(server.run(&["commands", "show", "nobody"]), 1, "not-found");
    refused(server.run(&["trace", "nobody"]), 1, "not-found");
    refused(server.run(&["channels", "show", "nobody"]), 1, "nobody");
    refused(server.run(&["commands", "ls", "--status", "DONE"]), 2, "malformed");
    refused(server.run(&["send", "parcel.send", "--aggregate", "x", "--payload", "{"]), 2, "not JSON");
    refused(
        server.run(&["send", "parcel.send", "--aggregate", "x", "--payload", "@/no/such/file"]),
        2,
        "cannot be read",
    );
    refused(server.run(&["outbox", "retry"]), 2, "say which");
    refused(server.run(&["dead", "replay", "1", "--all"]), 2, "not both");
    refused(server.run(&["commands", "ls", "--server", "nonsense"]), 2, "http://127.0.0.1:7400");
    // Port 1 is not listened on.
    refused(server.run(&["commands", "ls", "--server", "http://127.0.0.1:1"]), 3, "cannot be reached");
}

#[test]
fn bulk_actions_show_their_scope_and_ask() {
    let server = Server::of_carrier();
    for number in 0..3 {
        server.send("parcel.register", &number.to_string(), r#"{"weight":1000}"#);
        server.send("parcel.lose", &number.to_string(), "null");
    }
    server.until("/api/outbox?status=FAILED", |listed| listed["rows"].as_array().unwrap().len() == 3);
    server.until("/api/dead-letters", |listed| listed["letters"].as_array().unwrap().len() == 3);

    refused(server.run(&["outbox", "retry", "--channel", "nowhere"]), 1, "Put 3 rows back?");
    refused(server.run_with(&["outbox", "retry", "--all"], "n\n"), 1, "nothing was done");
    assert!(said(server.run_with(&["outbox", "retry", "--all"], "y\n")).contains("3 were put back"));
    server.until("/api/outbox?status=FAILED", |listed| listed["rows"].as_array().unwrap().len() == 3);
    let rows = json(server.run(&["outbox", "ls", "--status", "FAILED", "--json"]));
    let row = rows["rows"][0]["outboxId"].to_string();
    assert!(said(server.run(&["outbox", "ls", "--status", "FAILED"])).contains("nowhere"));
    assert!(said(server.run(&["outbox", "show", &row])).contains("FAILED"));
    // It is tried again at once, and may have failed by the time it is shown.
    let retried = said(server.run(&["outbox", "retry", &row]));
    assert!(
        ["RETRY", "FAILED"].iter().any(|status| retried.contains(&format!("{row} is {status}"))),
        "{retried}"
    );

    let letters = json(server.run(&["dead", "ls", "--json"]));
    let letter = letters["letters"][0]["letterId"].to_string();
    assert!(said(server.run(&["dead", "ls", "--causes"])).contains("too-heavy"));
    let shown = json(server.run(&["dead", "show", &letter, "--json"]));
    let lighter = shown["body"].as_str().unwrap().replace("1000", "10");
    assert!(said(server.run(&["dead", "edit", &letter, "--body", &lighter])).contains("was edited"));
    assert!(said(server.run(&["dead", "replay", &letter])).contains("is RE"));
    server.until(&format!("/api/dead-letters/{letter}"), |letter| letter["status"] == "REPLAYED");
    refused(server.run(&["dead", "discard", "--reason", "too-heavy"]), 1, "2 letters. Throw them away?");
    let done = said(server.run(&["dead", "discard", "--reason", "too-heavy", "--message", "old", "--yes"]));
    assert!(done.contains("2 were thrown away"), "{done}");
    refused(server.run(&["dead", "replay", &letter]), 1, "letter-not-dead");
}

#[test]
fn channels_are_worked_on_from_the_command_line() {
    let server = Server::of_carrier();
    let add =
        ["channels", "add", "copy", "--events", "parcel.*", "--exchange", "parcels", "--start", "first"];
    assert!(said(server.run(&add)).contains("tracker"));
    refused(server.run(&add), 1, "name-taken");
    assert!(said(server.run(&["channels", "pause", "copy", "--reason", "upgrade"])).contains("upgrade"));
    assert!(said(server.run(&["channels", "ls"])).contains("upgrade"));
    said(server.run(&["channels", "resume", "copy"]));
    refused(server.run(&["channels", "reset", "copy", "--to", "first"]), 1, "nothing was done");
    refused(server.run(&["channels", "reset", "copy", "--to", "soon"]), 2, "first, now, or a position");
    said(server.run(&["channels", "reset", "copy", "--to", "now", "--yes"]));
    assert_eq!(json(server.run(&["channels", "show", "copy", "--json"]))["kind"], "tracker");
    said(server.run(&["channels", "remove", "copy", "--yes"]));
    refused(server.run(&["channels", "show", "copy"]), 1, "copy");
    assert!(said(server.run(&["consumers", "ls"])).contains("weigh"));
    assert!(said(server.run(&["consumers", "show", "weigh"])).contains("parcels"));
}

#[test]
fn the_log_is_read_and_followed() {
    let server = Server::of_carrier();
    server.send("parcel.register", "p-1", r#"{"weight":1}"#);
    server.until("/api/events", |events| events["next"].as_u64() > Some(0));
    assert!(said(server.run(&["log"])).contains("parcel.registered"));
    assert_eq!(json(server.run(&["log", "1,20", "--json"]))["id"], "1,20");
    refused(server.run(&["log", "41,60"]), 1, "not-found");
    refused(server.run(&["log", "one"]), 2, "malformed");

    let mut tail = towpath()
        .args([
            "events",
            "tail",
            "--from",
            "1",
            "--type",
            "parcel.s*",
            "--server",
            &format!("http://{}", server.address),
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    server.send("parcel.send", "p-1", "null");
    let mut line = String::new();
    BufReader::new(tail.stdout.take().unwrap()).read_line(&mut line).unwrap();
    tail.kill().unwrap();
    tail.wait().unwrap();
    assert!(line.contains("parcel.sent") && line.contains("parcel/p-1 v2"), "{line}");
}

#[test]
fn flags_win_over_the_environment_and_a_filter_that_is_none_is_told() {
    let shown = |arguments: &[&str], environment: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("towpath.toml");
        std::fs::write(&config, "[log]\nfilter = \"error\"\n").unwrap();
        let mut command = towpath();
        command.arg("config").arg("--config").arg(&config).args(arguments);
        command.envs(environment.iter().copied()).current_dir(folder.path()).output().unwrap()
    };
    let (short, long) = (("TOWPATH_LOG", "debug"), ("TOWPATH_LOG_FILTER", "trace"));
    for (arguments, environment, expected) in [
        (&[][..], &[][..], "filter = \"error\" # file"),
        (&[], &[short], "filter = \"debug\" # environment"),
        (&[], &[short, long], "filter = \"trace\" # environment"),
        (&["--log-filter", "warn"], &[short, long], "filter = \"warn\" # flag"),
    ] {
        let text = said(shown(arguments, environment));
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    refused(shown(&["--log-filter", "info,towpath=loud"], &[]), 2, "log.filter");
    refused(shown(&[], &[("TOWPATH_LOG", "towpath=loud")]), 2, "log.filter");
}

#[test]
fn a_password_in_the_address_of_a_server_is_not_shown() {
    for server in ["http://me:s3cret@127.0.0.1:1", "http://me:s3cret@[x", "ftp://me:s3cret@host"] {
        let output = towpath().args(["consumers", "ls", "--server", server]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && !errors.contains("s3cret"), "{errors}");
    }
}

#[test]
fn a_check_exits_with_one_when_it_found_something_and_a_repair_puts_it_right() {
    let server = Server::of_carrier();
    server.send("parcel.register", "p-1", r#"{"weight":1}"#);
    server.until("/api/outbox?status=SENT", |page| {
        page["rows"].as_array().is_some_and(|rows| !rows.is_empty())
    });
    server.until("/api/events?after=0&limit=100", |page| {
        page["events"].as_array().is_some_and(|all| all.len() == 1)
    });
    let told = said(server.run(&["check"]));
    assert!(told.contains("clean: 1 commands and 1 events of the last 24h"), "{told}");
    assert_eq!(json(server.run(&["check", "--window", "1h", "--json"]))["clean"], true);
    refused(server.run(&["check", "--window", "soon"]), 1, "invalid-window");

    server.execute("INSERT INTO parked_lanes (channel, lane, head_outbox_id, parked_at) VALUES ('parcels', 1, 999999, 0)");
    let output = server.run(&["check", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["findings"][0]["code"], "parked_without_head");
    refused(server.run(&["check"]), 1, "towpath repair");
    let plan = said(server.run(&["repair"]));
    assert!(plan.starts_with("planned parked_without_head parcels/1"), "{plan}");
    refused(server.run(&["check"]), 1, "towpath repair");
    let done = said(server.run(&["repair", "--apply"]));
    assert!(
        done.starts_with("done parked_without_head parcels/1: Let lane 1 of channel parcels go on"),
        "{done}"
    );
    said(server.run(&["check"]));
    said(server.run(&["repair", "--apply"]));
}
