//! The paths of operators, from the outside: a server with an aggregate, channels and a consumer, spoken to over HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod parcels;

use parcels::Server;
use serde_json::Value;
use towpath_testkit::broker::TcpProxy;

/// Not a test: the server process that the others start.
#[test]
#[ignore = "not a test: the process that others start"]
fn server_of_a_test() {
    parcels::become_server();
}

fn length(value: &Value) -> usize {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list")).len()
}

/// The one of a list that has a name.
fn named(list: &Value, field: &str, name: &str) -> Value {
    let mut all = list.as_array().unwrap().iter();
    all.find(|one| one[field] == name).cloned().unwrap_or_default()
}

#[test]
fn commands_are_listed_newest_first_by_page_and_by_status() {
    let server = Server::of_carrier();
    for number in 0..5 {
        server.send("parcel.register", &format!("p-{number}"), r#"{"weight":1}"#);
    }
    let refused = server
        .post("/api/commands", r#"{"commandId":"no","type":"parcel.send","aggregateId":"x","payload":{}}"#);
    assert_eq!((refused.status, refused.code().as_str()), (404, "unknown-parcel"));

    let page = server.get("/api/commands?limit=4").json();
    let ids = |page: &Value| -> Vec<String> {
        let commands = page["commands"].as_array().unwrap().iter();
        commands.map(|command| command["aggregate"]["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&page), ["x", "p-4", "p-3", "p-2"]);
    let next = page["next"].as_str().unwrap();
    let rest = server.get(&format!("/api/commands?limit=4&after={next}")).json();
    assert_eq!((ids(&rest), rest["next"].is_null()), (vec!["p-1".to_owned(), "p-0".to_owned()], true));

    let failed = server.get("/api/commands?status=FAILED").json();
    assert_eq!(failed["commands"][0]["commandId"], "no");
    assert_eq!(failed["commands"][0]["statusReason"], "unknown-parcel");
    assert_eq!(length(&failed["commands"]), 1);
    assert_eq!(length(&server.get("/api/commands?status=COMPLETED").json()["commands"]), 5);
    assert_eq!(length(&server.get("/api/commands?status=PENDING").json()["commands"]), 0);

    for (query, status, code) in [
        ("status=DONE", 400, "malformed"),
        ("limit=0", 400, "malformed"),
        ("limit=1001", 400, "malformed"),
        ("limit=x", 400, "malformed"),
        ("size=1", 400, "malformed"),
        ("after=nobody", 404, "missing"),
    ] {
        let answer = server.get(&format!("/api/commands?{query}"));
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{query}");
    }
}

#[test]
fn aggregates_are_listed_by_kind_and_shown_with_what_is_possible() {
    let server = Server::of_carrier();
    for number in 0..3 {
        server.send("parcel.register", &format!("p-{number}"), r#"{"weight":1}"#);
    }
    let page = server.get("/api/aggregates/parcel?limit=2").json();
    assert_eq!((length(&page["aggregates"]), page["next"].as_str()), (2, Some("p-1")));
    let rest = server.get("/api/aggregates/parcel?limit=2&after=p-1").json();
    assert_eq!((rest["aggregates"][0]["id"].as_str(), rest["next"].is_null()), (Some("p-2"), true));
    assert_eq!(length(&server.get("/api/aggregates/nothing").json()["aggregates"]), 0);
    let shown = server.get("/api/aggregates/parcel/p-0").json();
    assert_eq!(shown["state"], "registered");
    assert_eq!(length(&shown["possibleNext"]), 2);
}

#[test]
fn a_flow_is_shown_in_order_and_found_by_any_id() {
    let server = Server::of_carrier();
    let registered = server.send("parcel.register", "p-1", r#"{"weight":1}"#);
    let flow = registered["correlationId"].as_str().unwrap();
    let event = registered["events"][0]["eventId"].as_str().unwrap();
    let body = format!(
        r#"{{"type":"parcel.send","aggregateId":"p-1","payload":null,"correlationId":"{flow}","causationId":"{event}"}}"#
    );
    assert_eq!(server.post("/api/commands", &body).status, 201);
    let shown = server.get(&format!("/api/flows/{flow}")).json();
    assert_eq!(shown["whole"], true, "{shown}");
    let line = |node: &Value| (node["name"].as_str().unwrap().to_owned(), node["depth"].as_u64().unwrap());
    let tree: Vec<_> = shown["tree"].as_array().unwrap().iter().map(line).collect();
    let expected = [("parcel.register", 0), ("parcel.registered", 1), ("parcel.send", 2), ("parcel.sent", 3)];
    assert_eq!(tree, expected.map(|(name, depth)| (name.to_owned(), depth)));
    assert_eq!((length(&shown["commands"]), length(&shown["events"])), (2, 2));

    // A cause that nobody knows breaks the chain.
    let body = format!(
        r#"{{"type":"parcel.register","aggregateId":"p-2","payload":{{"weight":1}},"correlationId":"{flow}","causationId":"gone"}}"#
    );
    assert_eq!(server.post("/api/commands", &body).status, 201);
    let broken = server.get(&format!("/api/flows/{flow}")).json();
    assert_eq!(
        (broken["whole"].as_bool(), &broken["broken"][0]["missingCausationId"]),
        (Some(false), &Value::from("gone"))
    );

    let command = registered["commandId"].as_str().unwrap();
    for (id, found_as) in [
        (command, "command"),
        (event, "event"),
        (flow, "flow"),
        ("p-1", "aggregate"),
        ("parcel/p-1", "aggregate"),
    ] {
        let traced = server.get(&format!("/api/trace?id={id}")).json();
        assert_eq!(
            (traced["foundAs"].as_str(), traced["correlationIds"][0].as_str()),
            (Some(found_as), Some(flow)),
            "{id}"
        );
    }
    assert_eq!(server.get("/api/trace?id=nobody").code(), "not-found");
    assert_eq!(server.get("/api/trace").status, 400);
    assert_eq!(server.get("/api/flows/nobody").status, 404);
}

#[test]
fn outbox_rows_are_listed_by_status_and_put_back_one_or_many() {
    let server = Server::of_carrier();
    for number in 0..3 {
        server.send("parcel.register", &format!("p-{number}"), r#"{"weight":1}"#);
        server.send("parcel.lose", &format!("p-{number}"), "null");
    }
    let failed = server.until("/api/outbox?status=FAILED", |listed| length(&listed["rows"]) == 3);
    let row = &failed["rows"][0];
    assert_eq!((row["channel"].as_str(), row["eventType"].as_str()), (Some("nowhere"), Some("parcel.lost")));
    let sent = server.until("/api/outbox?status=SENT&channel=parcels", |listed| length(&listed["rows"]) == 6);
    let second = sent["rows"][1]["outboxId"].as_u64().unwrap();
    let behind = server.get(&format!("/api/outbox?channel=parcels&after={second}&limit=2")).json();
    assert_eq!((length(&behind["rows"]), behind["rows"][0]["outboxId"].as_u64() > Some(second)), (2, true));
    assert_eq!(length(&server.get("/api/outbox?status=FAILED&channel=parcels").json()["rows"]), 0);

    let channels = server.get("/api/channels").json();
    let nowhere = named(&channels["channels"], "name", "nowhere");
    assert_eq!((nowhere["failed"].as_u64(), nowhere["pending"].as_u64()), (Some(3), Some(0)));

    let id = row["outboxId"].as_u64().unwrap();
    assert_eq!(server.get(&format!("/api/outbox/{id}")).json()["status"], "FAILED");
    let answer = server.ask("POST", &format!("/api/outbox/{id}/retry"), &[], "");
    assert_eq!(answer.status, 200, "{answer:?}");
    // Nobody has declared the exchange meanwhile.
    server.until(&format!("/api/outbox/{id}"), |row| row["status"] == "FAILED");
    let sent = sent["rows"][0]["outboxId"].as_u64().unwrap();
    let refused = server.ask("POST", &format!("/api/outbox/{sent}/retry"), &[], "");
    assert_eq!((refused.status, refused.code().as_str()), (409, "not-given-up"));
    assert_eq!(server.ask("POST", "/api/outbox/999999/retry", &[], "").status, 404);
    assert_eq!(server.get("/api/outbox/999999").status, 404);
    assert_eq!(server.get("/api/outbox/one").status, 400);

    let bulk = |body: &str| server.post("/api/outbox/retry", body);
    let counted = bulk(r#"{"channel":"nowhere","dryRun":true}"#).json();
    assert_eq!((counted["count"].as_u64(), counted["retried"].is_null()), (Some(3), true));
    let changed = bulk(r#"{"channel":"nowhere","expected":2}"#);
    assert_eq!((changed.status, changed.code().as_str()), (409, "scope-changed"));
    assert_eq!(bulk(r#"{"reason":"another","expected":0}"#).json()["retried"], 0);
    assert_eq!(bulk(r#"{"channel":"nowhere","expected":3}"#).json()["retried"], 3);
    assert_eq!(bulk(r#"{"chanel":"nowhere"}"#).code(), "malformed");
    let form = server.ask(
        "POST",
        "/api/outbox/retry",
        &[("Content-Type", "application/x-www-form-urlencoded")],
        "a=b",
    );
    assert_eq!((form.status, form.code().as_str()), (415, "unsupported-media-type"));
}

#[test]
fn a_row_that_cannot_be_published_is_skipped_with_a_reason_and_a_fact() {
    let server = Server::of_carrier();
    server.send("parcel.register", "p-1", r#"{"weight":1}"#);
    server.send("parcel.lose", "p-1", "null");
    let failed = server.until("/api/outbox?status=FAILED", |listed| length(&listed["rows"]) == 1);
    let id = failed["rows"][0]["outboxId"].as_u64().unwrap();
    let skip = |id: u64, body: &str| server.post(&format!("/api/outbox/{id}/skip"), body);
    assert_eq!(skip(id, "{}").code(), "malformed");
    assert_eq!(skip(id, r#"{"reason":" "}"#).code(), "reason-missing");
    assert_eq!(skip(999_999, r#"{"reason":"none"}"#).status, 404);
    let skipped = skip(id, r#"{"reason":"nobody will ever declare it"}"#);
    assert_eq!((skipped.status, skipped.json()["status"].as_str()), (200, Some("SKIPPED")), "{skipped:?}");
    assert_eq!(skipped.json()["statusMessage"], "nobody will ever declare it");
    assert_eq!(skip(id, r#"{"reason":"twice"}"#).code(), "not-failed");
    assert_eq!(length(&server.get("/api/outbox?status=FAILED").json()["rows"]), 0);
    assert_eq!(length(&server.get("/api/outbox?status=SKIPPED").json()["rows"]), 1);
    let is_operation = |fact: &Value| fact["aggregateKind"] == "operation";
    let facts = server
        .until("/api/events?after=0", |events| events["events"].as_array().unwrap().iter().any(is_operation));
    let fact = facts["events"].as_array().unwrap().iter().find(|fact| is_operation(fact)).unwrap().clone();
    assert!(fact.to_string().contains("skip"), "{fact}");
}

#[test]
fn dead_letters_are_edited_replayed_and_discarded_one_or_many() {
    let server = Server::of_carrier();
    for number in 0..4 {
        server.send("parcel.register", &format!("p-{number}"), r#"{"weight":1000}"#);
    }
    let dead = server.until("/api/dead-letters", |listed| length(&listed["letters"]) == 4);
    assert_eq!(named(&server.get("/api/consumers").json()["consumers"], "handler", "weigh")["dead"], 4);
    let causes = server.get("/api/dead-letters/causes?handler=weigh").json();
    assert_eq!(
        (&causes["causes"][0]["reason"], &causes["causes"][0]["count"]),
        (&Value::from("too-heavy"), &Value::from(4))
    );
    assert_eq!(length(&server.get("/api/dead-letters?reason=other").json()["letters"]), 0);
    let id = |at: usize| dead["letters"][at]["letterId"].as_u64().unwrap();
    let path = |at: usize, action: &str| format!("/api/dead-letters/{}{action}", id(at));

    let letter = server.get(&path(0, "")).json();
    let body = letter["body"].as_str().unwrap();
    assert!(body.contains("1000"), "{letter}");
    let lighter = serde_json::json!({ "body": body.replace("1000", "10") }).to_string();
    let edited = server.ask("PUT", &path(0, ""), &[], &lighter).json();
    assert_eq!((edited["originalBody"].as_str(), edited["edited"].as_bool()), (Some(body), Some(true)));
    assert_eq!(server.post(&path(0, "/replay"), r#"{"force":false}"#).status, 200);
    server.until(&path(0, ""), |letter| letter["status"] == "REPLAYED");
    let again = server.ask("POST", &path(0, "/replay"), &[], "");
    assert_eq!((again.status, again.code().as_str()), (409, "letter-not-dead"));

    let gone = server.post(&path(1, "/discard"), r#"{"message":"nobody misses it"}"#).json();
    assert_eq!(
        (gone["status"].as_str(), gone["statusMessage"].as_str()),
        (Some("DISCARDED"), Some("nobody misses it"))
    );
    let missing = server.get("/api/dead-letters/999999");
    assert_eq!((missing.status, missing.code().as_str()), (404, "letter-unknown"));
    assert_eq!(
        server.ask("PUT", &path(2, ""), &[], r#"{"body":"%","encoding":"base64"}"#).code(),
        "invalid-payload"
    );

    let bulk = |action: &str, body: &str| server.post(&format!("/api/dead-letters/{action}"), body);
    let scope = bulk("replay", r#"{"handler":"weigh","dryRun":true}"#).json();
    assert_eq!((scope["count"].as_u64(), scope["replayed"].is_null()), (Some(2), true));
    assert_eq!(bulk("replay", r#"{"expected":5}"#).code(), "scope-changed");
    let replayed = bulk("replay", r#"{"reason":"too-heavy","expected":2}"#).json();
    assert_eq!(replayed["replayed"]["toHandlers"], 2);
    // They are still too heavy.
    server.until("/api/dead-letters", |listed| length(&listed["letters"]) == 2);
    assert_eq!(bulk("discard", r#"{"expected":2}"#).json()["discarded"], 2);
    assert_eq!(length(&server.get("/api/dead-letters").json()["letters"]), 0);
}

#[test]
fn channels_are_listed_added_paused_reset_and_removed() {
    let server = Server::of_carrier();
    let listed = server.get("/api/channels").json();
    let parcels = named(&listed["channels"], "name", "parcels");
    assert_eq!((&parcels["kind"], &parcels["events"][0]), (&Value::from("outbox"), &Value::from("parcel.*")));

    let added = server
        .post("/api/channels", r#"{"name":"copy","events":["*"],"exchange":"parcels","start":"first"}"#);
    assert_eq!(added.status, 201, "{added:?}");
    assert_eq!(added.json()["position"], 0);
    server.send("parcel.register", "p-1", r#"{"weight":1}"#);
    let copy = |listed: &Value| named(&listed["channels"], "name", "copy");
    server.until("/api/channels", |listed| {
        copy(listed)["position"].as_u64() > Some(0) && copy(listed)["lag"] == 0
    });
    for (body, status, code) in [
        (r#"{"name":"copy","events":["*"],"exchange":"parcels"}"#, 409, "name-taken"),
        (r#"{"name":"parcels","events":["*"],"exchange":"parcels"}"#, 409, "name-taken"),
        (r#"{"name":"","events":["*"],"exchange":"parcels"}"#, 422, "invalid-id"),
        (r#"{"name":"other","events":[],"exchange":"parcels"}"#, 400, "malformed"),
        (r#"{"name":"other","events":["*"],"exchange":"parcels","start":0}"#, 400, "malformed"),
        (r#"{"name":"other","events":["*"],"exchange":"parcels","start":"soon"}"#, 400, "malformed"),
        (r#"{"name":"other","events":["*"],"exchange":"parcels","start":1.5}"#, 400, "malformed"),
    ] {
        let answer = server.post("/api/channels", body);
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{body}");
    }
    let paused = server.post("/api/channels/copy/pause", r#"{"reason":"upgrade"}"#).json();
    assert_eq!(
        (&paused["paused"]["reason"], &paused["paused"]["byId"]),
        (&Value::from("upgrade"), &Value::from("local"))
    );
    server.send("parcel.send", "p-1", "null");
    server.until("/api/channels", |listed| copy(listed)["lag"].as_u64() > Some(0));
    assert!(server.ask("POST", "/api/channels/copy/resume", &[], "").json()["paused"].is_null());
    server.until("/api/channels", |listed| copy(listed)["lag"] == 0);
    let reset = server.post("/api/channels/copy/reset", r#"{"start":2}"#);
    assert_eq!(reset.status, 200, "{reset:?}");
    server.until("/api/channels", |listed| copy(listed)["lag"] == 0);
    assert_eq!(server.post("/api/channels/copy/reset", "{}").status, 400);
    assert_eq!(server.ask("POST", "/api/channels/parcels/pause", &[], "").code(), "channel-not-tracking");
    assert_eq!(server.ask("POST", "/api/channels/nobody/pause", &[], "").code(), "missing");
    assert_eq!(server.ask("DELETE", "/api/channels/copy", &[], "").status, 204);
    assert_eq!(server.ask("DELETE", "/api/channels/copy", &[], "").code(), "missing");

    let consumers = server.get("/api/consumers").json();
    assert_eq!(named(&consumers["consumers"], "handler", "weigh")["channel"], "parcels");
}

#[test]
fn machines_are_data_and_drawings() {
    let server = Server::of_carrier();
    let machines = server.get("/api/machines").json();
    let parcel =
        machines["machines"].as_array().unwrap().iter().find(|machine| machine["kind"] == "parcel").unwrap();
    assert_eq!(length(&parcel["commands"]), 3);
    let machine = server.get("/api/machines/parcel").json();
    assert_eq!((length(&machine["states"]), length(&machine["transitions"])), (3, 3));
    assert_eq!(machine["states"][0]["deadline"]["afterSeconds"], 86_400.0);
    let mermaid = server.get("/api/machines/parcel?format=mermaid");
    assert!(mermaid.body.starts_with("stateDiagram-v2"), "{mermaid:?}");
    let drawn = server.get("/api/machines/parcel?format=svg");
    assert_eq!(drawn.header("content-type"), "image/svg+xml");
    assert!(drawn.body.starts_with("<svg ") && drawn.body.contains("registered"), "{drawn:?}");
    assert_eq!(server.get("/api/machines/parcel?format=png").status, 400);
    assert_eq!(server.get("/api/machines/nobody").status, 404);
}

#[test]
fn the_api_documents_itself_and_every_error_leads_to_its_page() {
    let server = Server::of_carrier();
    let document = server.get("/openapi.json").json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{document}");
    let docs = server.get("/docs");
    assert_eq!(docs.header("content-type"), "text/html; charset=utf-8");
    assert!(docs.body.contains("/api/commands"), "{docs:?}");
    let missing = server.get("/nowhere");
    assert_eq!((missing.status, missing.code().as_str()), (404, "not-found"));
    let page = server.get(missing.json()["type"].as_str().unwrap());
    assert!(page.status == 200 && page.body.contains("there is nothing of that name"), "{page:?}");
    assert!(server.get("/docs/errors").body.contains("/docs/errors/malformed"));
    assert!(server.get("/docs/errors/already-registered").body.contains("none of Towpath's own"));
    assert!(!server.get("/docs/errors/%3Cscript%3E").body.contains("<script>"));
}

#[test]
fn every_documented_path_answers_wrong_methods_and_head() {
    let server = Server::of_carrier();
    let document = server.get("/openapi.json").json();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.replace("{kind}", "parcel").replace(['{', '}'], "");
        let methods: Vec<&String> = item.as_object().unwrap().keys().collect();
        for method in ["get", "post", "put", "delete", "patch"] {
            if !methods.iter().any(|known| *known == method) {
                let answer = server.ask(&method.to_ascii_uppercase(), &path, &[], "");
                assert_eq!(
                    (answer.status, answer.code().as_str()),
                    (405, "method-not-allowed"),
                    "{method} {path}"
                );
                assert!(!answer.header("allow").is_empty(), "{answer:?}");
            }
        }
        let endless = item["get"]["responses"]["200"]["content"]["text/event-stream"].is_object();
        if methods.iter().any(|known| *known == "get") && !endless {
            let (get, head) = (server.get(&path), server.ask("HEAD", &path, &[], ""));
            assert_eq!((head.status, head.body.as_str()), (get.status, ""), "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_starts_and_takes_commands_while_its_broker_is_away() {
    let url = std::env::var("TOWPATH_TEST_AMQP_URL").expect("TOWPATH_TEST_AMQP_URL: run `cargo xtask test`");
    let (before, rest) = url.split_once('@').unwrap();
    let (address, after) = rest.split_once('/').unwrap();
    let proxy = TcpProxy::to(address).await;
    proxy.refuse();
    let broker = format!("{before}@{}/{after}", proxy.address());
    let server = tokio::task::spawn_blocking(move || Server::of_carrier_with(&["--broker", &broker])).await;
    let server = server.expect("it starts");
    tokio::task::block_in_place(|| {
        let away = server.get("/readyz");
        assert_eq!((away.status, away.code().as_str()), (503, "broker-unavailable"));
        server.send("parcel.register", "p-1", r#"{"weight":1}"#);
        assert_eq!(length(&server.get("/api/outbox?status=NEW").json()["rows"]), 1, "its event waits");
        proxy.heal();
        server.until("/api/outbox?status=SENT", |listed| length(&listed["rows"]) == 1);
        // Whether it is ready is asked now and then, and so known a little later.
        let begun = std::time::Instant::now();
        while server.get("/readyz").status != 200 {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it is never ready");
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_broker_is_away_is_not_ready() {
    let url = std::env::var("TOWPATH_TEST_AMQP_URL").expect("TOWPATH_TEST_AMQP_URL: run `cargo xtask test`");
    let (broker, proxy) = TcpProxy::before(&url).await;
    let mut command = parcels::towpath();
    command.args(["--listen", "127.0.0.1:0", "--broker", &broker]);
    let server = tokio::task::spawn_blocking(move || Server::spawn(command)).await.unwrap();
    let ready = |status: u16| {
        let begun = std::time::Instant::now();
        loop {
            let answer = server.get("/readyz");
            if answer.status == status {
                return answer;
            }
            assert!(begun.elapsed() < parcels::PATIENCE, "{answer:?}");
        }
    };
    tokio::task::block_in_place(|| ready(200));
    drop(proxy);
    let away = tokio::task::block_in_place(|| ready(503));
    assert_eq!((away.code().as_str(), away.header("retry-after")), ("broker-unavailable", "5"));
    // Anybody may ask, and is not told where the broker is.
    let title = "the broker cannot be worked with; the server's log says why";
    assert_eq!(away.json()["title"], title, "{away:?}");
    assert_eq!(server.get("/healthz").status, 200, "it lives all the same");
}

#[test]
fn a_check_finds_what_is_missing_and_a_repair_is_a_fact() {
    let server = Server::of_carrier();
    let none = server.post("/api/consistency/repair", "");
    assert_eq!((none.status, none.code().as_str()), (404, "no-check"));
    server.send("parcel.register", "p-1", r#"{"weight":1}"#);
    server.until("/api/outbox?status=SENT", |page| length(&page["rows"]) == 1);
    // What was asked for in vain is a fact, too.
    server.until("/api/events?after=0&limit=100", |page| length(&page["events"]) == 2);
    let clean = server.post("/api/consistency/check", "");
    assert_eq!(clean.status, 200, "{clean:?}");
    let clean = clean.json();
    assert_eq!((clean["clean"].as_bool(), clean["window"].as_str()), (Some(true), Some("24h")), "{clean}");
    assert_eq!(clean["totals"], serde_json::json!({ "total_commands": 1, "total_events": 2 }));
    let id = clean["checkId"].as_str().unwrap();
    assert_eq!(server.get(&format!("/api/consistency/checks/{id}")).json(), clean);
    let unknown = server.get("/api/consistency/checks/01890000-0000-7000-8000-000000000000");
    assert_eq!((unknown.status, unknown.code().as_str()), (404, "not-found"));
    for (body, status, code) in
        [(r#"{"window":"soon"}"#, 422, "invalid-window"), (r#"{"scope":["nothing"]}"#, 400, "malformed")]
    {
        let answer = server.post("/api/consistency/check", body);
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{body}");
    }

    server.execute("DELETE FROM event_outbox");
    let found = server.post("/api/consistency/check", r#"{"scope":["missing_outbox_events"]}"#).json();
    let finding = &found["findings"][0];
    assert_eq!(
        (finding["code"].as_str(), finding["count"].as_u64()),
        (Some("missing_outbox_events"), Some(1))
    );
    assert_eq!((finding["severity"].as_str(), found["clean"].as_bool()), (Some("critical"), Some(false)));
    assert_eq!(finding["rows"][0]["details"]["channel"], "parcels");
    let plan = server.post("/api/consistency/repair?apply=false", "").json();
    assert_eq!(
        (plan["applied"].as_bool(), plan["steps"][0]["outcome"].as_str()),
        (Some(false), Some("planned"))
    );
    // The consumer has had the event before.
    assert_eq!(plan["steps"][0]["consumersPast"], serde_json::json!([{ "handler": "weigh", "version": 1 }]));
    let body = format!(r#"{{"checkId":{},"codes":["missing_outbox_events"]}}"#, found["checkId"]);
    let done = server.post("/api/consistency/repair?apply=true", &body).json();
    assert_eq!(done["steps"][0]["outcome"], "done", "{done}");
    let message = done["steps"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("Repaired missing outbox for event "), "{message}");
    server.until("/api/outbox?status=SENT", |page| length(&page["rows"]) == 1);
    let facts = server.until("/api/events?after=0&limit=100", |page| {
        page["events"].as_array().unwrap().iter().any(|event| event["type"] == "towpath.repair.performed")
    });
    let fact = named(&facts["events"], "type", "towpath.repair.performed");
    assert_eq!(fact["payload"]["message"], message);
    assert_eq!(fact["payload"]["planId"], done["planId"]);
    assert_eq!(server.post("/api/consistency/check", "").json()["clean"], true);
}
