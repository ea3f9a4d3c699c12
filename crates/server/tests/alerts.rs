//! Alerts of the real server: over HTTP and from the command line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod parcels;

use parcels::{Server, towpath};
use serde_json::{Value, json};

/// Not a test: the server process that the others start.
#[test]
#[ignore = "not a test: the process that others start"]
fn server_of_a_test() {
    parcels::become_server();
}

const RULES: &str = r#"
alerts:
  dead_letters:
    condition: 'max by (consumer) (towpath_dead_letters{status="dead"}) > 0'
    severity: critical
    message: "{{ $labels.consumer }} has {{ $value }}"
"#;

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn rules_of<'a>(listed: &'a Value, status: &str) -> Vec<&'a str> {
    listed[status].as_array().unwrap().iter().map(|alert| alert["rule"].as_str().unwrap()).collect()
}

#[test]
fn an_alert_fires_is_silenced_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    std::fs::write(&file, RULES).unwrap();
    let file = file.display().to_string();
    let server = Server::of_carrier_with(&["--alerts-rules", &file, "--alerts-every", "50ms"]);
    let looked = server.until("/api/alerts", |listed| !listed["evaluatedAt"].is_null());
    assert_eq!(rules_of(&looked, "firing"), [""; 0]);
    assert_eq!(rules_of(&looked, "missing"), ["version_gap_detected"], "nobody has checked: {looked}");
    let rule =
        looked["rules"].as_array().unwrap().iter().find(|rule| rule["name"] == "dead_letters").unwrap();
    assert_eq!((&rule["severity"], &rule["isDefault"]), (&json!("critical"), &json!(false)));

    server.send("parcel.register", "parcel-7", r#"{"weight":500}"#);
    let fired = server.until("/api/alerts", |listed| rules_of(listed, "firing") == ["dead_letters"]);
    let alert = &fired["firing"][0];
    assert_eq!(alert["message"], "weigh has 1");
    assert_eq!(
        alert["labels"],
        json!({ "alertname": "dead_letters", "consumer": "weigh", "severity": "critical" })
    );
    server.until("/api/events?after=0&limit=100", |page| {
        let events = page["events"].as_array().unwrap();
        events.iter().filter(|event| event["type"] == "towpath.alert.fired").count() == 1
    });

    // Who asks is the author, and the change is a fact like every other one.
    let ends_at = chrono_in(3600);
    let asked = json!({
        "matchers": [{ "name": "consumer", "value": "wei.*", "isRegex": true }],
        "reason": "we know", "endsAt": ends_at,
    });
    let made = server.post("/api/alerts/silences", &asked.to_string());
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.json()["silenceId"].as_str().unwrap().to_owned();
    server.until("/api/alerts", |listed| rules_of(listed, "silenced") == ["dead_letters"]);
    let listed = server.get("/api/alerts/silences").json();
    assert_eq!(
        (&listed["silences"][0]["reason"], &listed["silences"][0]["isActive"]),
        (&json!("we know"), &json!(true))
    );
    let ended = server.ask("DELETE", &format!("/api/alerts/silences/{id}"), &[], "");
    assert_eq!(ended.status, 204, "{ended:?}");
    let again = server.ask("DELETE", &format!("/api/alerts/silences/{id}"), &[], "");
    assert_eq!((again.status, again.code().as_str()), (409, "silence-over"));
    let nobody = server.ask("DELETE", "/api/alerts/silences/019383b0-0000-7000-8000-000000000000", &[], "");
    assert_eq!(nobody.status, 404);
    server.until("/api/alerts", |listed| rules_of(listed, "firing") == ["dead_letters"]);
    let everything = json!({ "matchers": [], "reason": "hush", "endsAt": ends_at });
    let refused = server.post("/api/alerts/silences", &everything.to_string());
    assert_eq!((refused.status, refused.code().as_str()), (422, "invalid-silence"));
    server.until("/api/events?after=0&limit=100", |page| {
        let events = page["events"].as_array().unwrap();
        let audited = |event: &&Value| {
            event["type"] == "towpath.operation.performed"
                && event["payload"]["action"]
                    .as_str()
                    .is_some_and(|action| action.contains("/api/alerts/silences"))
                && event["payload"]["outcome"] == "done"
        };
        events.iter().filter(audited).count() == 2
    });

    // What the operator throws away is over.
    let letters = server.get("/api/dead-letters").json();
    let letter = letters["letters"][0]["letterId"].as_u64().unwrap_or(1);
    let discarded = server.post(&format!("/api/dead-letters/{letter}/discard"), "");
    assert_eq!(discarded.status, 200, "{discarded:?}");
    server.until("/api/alerts", |listed| rules_of(listed, "firing").is_empty());
    let history = server.get("/api/alerts/history?rule=dead_letters").json();
    let statuses: Vec<&str> = history["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| change["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses, ["RESOLVED", "FIRING", "SILENCED", "FIRING"]);
    let first = server.get("/api/alerts/history?rule=dead_letters&limit=1").json();
    let second =
        server.get(&format!("/api/alerts/history?rule=dead_letters&limit=1&after={}", first["next"])).json();
    assert_eq!(second["changes"][0]["status"], "FIRING");

    command_line(&server);
}

/// A moment from now on, as JSON has it.
fn chrono_in(seconds: i64) -> String {
    (towpath::chrono::Utc::now() + towpath::chrono::TimeDelta::seconds(seconds)).to_rfc3339()
}

fn command_line(server: &Server) {
    let listed = server.run(&["alerts"]);
    assert!(text(&listed.stdout).contains("version_gap_detected"), "{listed:?}");
    let listed = server.run(&["alerts", "ls", "--json"]);
    assert!(serde_json::from_slice::<Value>(&listed.stdout).unwrap()["rules"].is_array());
    let history = server.run(&["alerts", "history", "--rule", "dead_letters"]);
    assert!(text(&history.stdout).contains("RESOLVED"), "{history:?}");
    let made =
        server.run(&["alerts", "silence", "alertname=~version.*", "--for", "2h", "--reason", "not yet"]);
    assert!(made.status.success(), "{made:?}");
    let id = text(&made.stdout).split(' ').next().unwrap().to_owned();
    let listed = server.run(&["alerts", "silence"]);
    assert!(text(&listed.stdout).contains("not yet") && text(&listed.stdout).contains(&id), "{listed:?}");
    assert!(server.run(&["alerts", "silence", "--end", &id]).status.success());
    let refused = server.run(&["alerts", "silence", "alertname=x"]);
    assert_eq!(refused.status.code(), Some(1), "without a reason: {refused:?}");
}

#[test]
fn the_summary_has_the_names_of_the_requirement() {
    let server = Server::of_carrier();
    server.send("parcel.register", "parcel-1", r#"{"weight":1}"#);
    let summary = server.until("/api/metrics/summary", |summary| summary["events_per_hour"] == 1);
    assert_eq!(summary["commands_by_type"], json!({ "parcel.register": 1 }));
    assert_eq!(summary["retry_rate"], json!(0.0));
    assert_eq!(summary["aggregate_version_gaps"], Value::Null, "nobody has checked");
    assert_eq!(server.run(&["check"]).status.code(), Some(0));
    let checked =
        server.until("/api/metrics/summary", |summary| !summary["aggregate_version_gaps"].is_null());
    assert_eq!(checked["aggregate_version_gaps"], 0);
    for name in [
        "pending_commands",
        "processing_commands",
        "failed_commands",
        "avg_processing_time",
        "pending_outbox",
        "failed_outbox",
        "avg_publish_delay",
        "events_by_type",
    ] {
        assert!(summary.as_object().unwrap().contains_key(name), "{name}");
    }
    assert_eq!(summary["windows"]["commandsSeconds"], 300);
}

#[test]
fn rules_that_are_wrong_are_told_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    std::fs::write(
        &file,
        "alerts:\n  mine: { condition: 'rate(x[5m]) > 1', severity: warning, message: hm }\n",
    )
    .unwrap();
    let ran = towpath()
        .args(["serve", "--listen", "127.0.0.1:0", "--alerts-rules", &file.display().to_string()])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(2), "{ran:?}");
    let told = text(&ran.stderr);
    assert!(
        told.contains("[alert-rules]") && told.contains("mine") && told.contains("docs/alerts.md"),
        "{told}"
    );
    assert!(!folder.path().join("data").exists(), "nothing was touched");
}

#[test]
fn rules_are_tested_and_exported_without_a_server() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let tests = r#"
rule_files: [rules.yaml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'towpath_dead_letters{consumer="weigh", status="dead"}'
        values: '0 1 1 0'
    alert_rule_test:
      - eval_time: 2m
        alertname: dead_letters
        exp_alerts:
          - exp_labels: { severity: critical, consumer: weigh }
            exp_annotations: { summary: weigh has 1 }
      - { eval_time: 3m, alertname: dead_letters }
"#;
    std::fs::write(folder.path().join("tests.yaml"), tests).unwrap();
    std::fs::write(folder.path().join("wrong.yaml"), tests.replace("weigh has 1", "weigh has 2")).unwrap();
    let run = |arguments: &[&str]| {
        towpath().arg("alerts").args(arguments).current_dir(folder.path()).output().unwrap()
    };
    let passed = run(&["test", "tests.yaml"]);
    assert!(passed.status.success() && text(&passed.stdout).contains("2 of 2"), "{passed:?}");
    let failed = run(&["test", "wrong.yaml"]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(text(&failed.stdout).contains("weigh has 1"), "{failed:?}");
    assert!(run(&["test", "rules.yaml"]).status.success());
    assert_eq!(run(&["test", "nothing.yaml"]).status.code(), Some(2));
    let exported = run(&["export"]);
    assert!(
        text(&exported.stdout).contains("towpath_command_box{status=\\\"pending\\\"}")
            || text(&exported.stdout).contains("towpath_command_box{status=\"pending\"}"),
        "{exported:?}"
    );
    let exported = run(&["export", "rules.yaml"]);
    assert!(text(&exported.stdout).contains("{{ $labels.consumer }} has {{ $value }}"), "{exported:?}");
}
