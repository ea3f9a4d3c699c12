//! Hive's specifications from the outside: their limits, their versions, what is secret in them, and what is kept of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod driver;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use driver::{Answer, Key, Server, connect, eventually, new_key, towpath};
use serde_json::{Value, json};

const SERVICES: &str = "/api/hive/services";
const CART: &str = "/api/hive/services/shop.cart";

/// On the simulated cluster everything happens at once.
const AT_ONCE: &str =
    "[hive.simulated]\nsettles-after = \"0s\"\nsettles-within = \"0s\"\ndeleted-after = \"0s\"\n";

fn quick() -> Server {
    Server::start(&[], AT_ONCE)
}

fn asked(changes: Value) -> Value {
    let mut asked = json!({ "name": "cart", "namespace": "shop", "image": "cart:1", "wait": true });
    for (name, value) in changes.as_object().unwrap() {
        asked[name] = value.clone();
    }
    asked
}

fn create(server: &Server, body: &Value) -> Answer {
    server.ask("POST", SERVICES, &[], &body.to_string())
}

fn shown_by_command(server: &Server, arguments: &[&str]) -> Value {
    let address = format!("http://{}", server.address);
    let output = towpath().args(arguments).args(["--json", "--server", &address]).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_specification_has_limits() {
    let server = quick();
    let many: serde_json::Map<String, Value> =
        (0..257).map(|number| (format!("V{number}"), json!("x"))).collect();
    let large: serde_json::Map<String, Value> =
        (0..20).map(|number| (format!("V{number}"), json!("x".repeat(20_000)))).collect();
    let longest = "N".repeat(257);
    for env in [
        Value::Object(many.clone()),
        Value::Object(large),
        json!({ "A": "x".repeat(32_769) }),
        json!({ longest: "x" }),
    ] {
        let refused = create(&server, &asked(json!({ "env": env })));
        assert_eq!((refused.status, refused.code().as_str()), (422, "service-spec-too-large"), "{refused:?}");
        let title = refused.json()["title"].as_str().unwrap().to_owned();
        assert!(title.contains("at most") && title.len() < 300, "{title}");
        // The same through the door of all commands.
        let mut payload = asked(json!({ "env": env }));
        payload["name"] = json!("other");
        let command =
            json!({ "type": "Command.Hive.Service.Create", "aggregateId": "shop.other", "payload": payload });
        let refused = server.ask("POST", "/api/commands", &[], &command.to_string());
        assert_eq!((refused.status, refused.code().as_str()), (422, "service-spec-too-large"), "{refused:?}");
    }
    // What is just within them is taken.
    let mut most = many;
    most.remove("V0");
    most.insert("V1".to_owned(), json!("x".repeat(32_768)));
    let created = create(&server, &asked(json!({ "env": most })));
    assert_eq!((created.status, &created.json()["status"]), (201, &json!("READY")), "{created:?}");
}

#[test]
fn an_update_can_name_the_specification_that_it_replaces() {
    let server = quick();
    assert_eq!(create(&server, &asked(json!({}))).status, 201);
    let shown = server.get(CART, &[]);
    assert_eq!((shown.header("etag"), &shown.json()["specVersion"]), ("\"1\"", &json!(1)), "{shown:?}");

    let put = |image: &str, tag: &str| {
        let body = json!({ "image": image, "wait": true }).to_string();
        server.ask("PUT", CART, &[("If-Match", tag)], &body)
    };
    let updated = put("cart:2", "\"1\"");
    assert_eq!((updated.status, updated.header("etag")), (200, "\"2\""), "{updated:?}");
    // Who read it before that would undo it.
    for tag in ["\"1\"", "\"7\"", "W/\"2\"", "\"other\"", "\"1\", \"3\""] {
        let refused = put("cart:3", tag);
        assert_eq!((refused.status, refused.code().as_str()), (412, "spec-version-mismatch"), "{tag}");
    }
    let refused = server.ask("DELETE", CART, &[("If-Match", "\"1\"")], "");
    assert_eq!((refused.status, refused.code().as_str()), (412, "spec-version-mismatch"), "{refused:?}");
    let now = server.get(CART, &[]).json();
    assert_eq!(
        (&now["image"], &now["specVersion"], &now["status"]),
        (&json!("cart:2"), &json!(2), &json!("READY"))
    );
    // One that fits among several does, and so does any.
    assert_eq!(put("cart:3", "\"1\", \"2\"").status, 200);
    assert_eq!(put("cart:4", "*").status, 200);
    let malformed = put("cart:5", "4");
    assert_eq!((malformed.status, malformed.code().as_str()), (400, "malformed"), "{malformed:?}");
    // The same key again gives the same answer, although the version is another one by now.
    let headers = [("If-Match", "\"4\""), ("Idempotency-Key", "once")];
    let body = json!({ "image": "cart:5", "wait": true }).to_string();
    for _ in 0..2 {
        let answer = server.ask("PUT", CART, &headers, &body);
        assert_eq!((answer.status, &answer.json()["specVersion"]), (200, &json!(5)), "{answer:?}");
    }
    // As a command it says so in its payload.
    let command = |version: u64| {
        let payload = json!({ "image": "cart:6", "ifSpecVersion": version });
        let body =
            json!({ "type": "Command.Hive.Service.Update", "aggregateId": "shop.cart", "payload": payload });
        server.ask("POST", "/api/commands", &[], &body.to_string())
    };
    let refused = command(4);
    assert_eq!((refused.status, refused.code().as_str()), (409, "spec-version-mismatch"), "{refused:?}");
    assert_eq!(command(5).status, 201);
    eventually("it is ready", || (server.get(CART, &[]).json()["status"] == "READY").then_some(()));
    let deleted = server.ask("DELETE", CART, &[("If-Match", "\"6\"")], "");
    assert_eq!(deleted.status, 200, "{deleted:?}");
}

#[test]
fn secrets_are_referred_to_and_values_are_hidden_from_viewers() {
    let (ann, vic): (Key, Key) = (new_key("ann", "operator"), new_key("vic", "viewer"));
    let keys = format!("{}\n{}\n", ann.toml, vic.toml);
    let server = Server::start(&[], &format!("{keys}{AT_ONCE}"));
    let secret = json!({ "valueFrom": { "secret": "cart-tokens", "key": "api.token" } });
    let env = json!({ "COLOUR": "the-hidden-blue", "TOKEN": secret });
    let ann = [("X-Api-Key", ann.key.as_str())];
    let vic = [("X-Api-Key", vic.key.as_str())];
    let at_once = [vic, ann].map(|by| stream(&server, by[0].1, ""));
    let created = server.ask("POST", SERVICES, &ann, &asked(json!({ "env": env })).to_string());
    assert_eq!((created.status, &created.json()["env"]), (201, &env), "{created:?}");
    eventually("it is listed", || {
        let listed = server.get(SERVICES, &ann).json();
        (listed["services"][0]["env"] == env).then_some(())
    });
    eventually("its specification is kept", || {
        let specs = server.get(&format!("{CART}/specs"), &ann).json();
        (specs["specs"][0]["env"] == env).then_some(())
    });
    // A viewer sees which variables there are, and where they are from.
    let hidden = json!({ "COLOUR": null, "TOKEN": secret });
    assert_eq!(server.get(CART, &vic).json()["env"], hidden);
    assert_eq!(server.get(SERVICES, &vic).json()["services"][0]["env"], hidden);
    assert_eq!(server.get(&format!("{CART}/specs"), &vic).json()["specs"][0]["env"], hidden);
    for path in [
        CART.to_owned(),
        SERVICES.to_owned(),
        format!("{CART}/specs"),
        format!("{CART}/history"),
        "/api/hive/audit".to_owned(),
    ] {
        let answer = server.get(&path, &vic);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(!answer.body.contains("the-hidden-blue"), "{path}: {answer:?}");
    }
    // Nor is it in the facts and commands, which operators see whole.
    let listed = server.get("/api/commands?limit=1000", &ann).json();
    let mut commands = listed["commands"].as_array().unwrap().iter();
    let command = commands.find(|command| command["type"] == "Command.Hive.Service.Create").unwrap();
    let (command_id, flow) = (&command["commandId"], &command["correlationId"]);
    eventually("all of it has a position", || {
        let events = server.get("/api/events?limit=1000", &ann);
        (events.body.matches("the-hidden-blue").count() >= 2).then_some(())
    });
    for path in [
        "/api/events?limit=1000".to_owned(),
        "/api/aggregates/service/shop.cart".to_owned(),
        "/api/aggregates/service/shop.cart/events".to_owned(),
        "/api/commands?limit=1000".to_owned(),
        format!("/api/commands/{}", command_id.as_str().unwrap()),
        format!("/api/flows/{}", flow.as_str().unwrap()),
        "/notifications/1,20".to_owned(),
    ] {
        let (seen, whole) = (server.get(&path, &vic), server.get(&path, &ann));
        assert_eq!((seen.status, whole.status), (200, 200), "{path}: {seen:?}");
        assert!(whole.body.contains("the-hidden-blue"), "{path}: {whole:?}");
        assert!(!seen.body.contains("the-hidden-blue"), "{path}: {seen:?}");
        assert!(
            seen.body.contains("Withheld\":true") && !whole.body.contains("Withheld"),
            "{path}: {seen:?}"
        );
    }
    let (seen, whole) = (server.get("/notifications/1,20", &vic), server.get("/notifications/1,20", &ann));
    assert_ne!(seen.header("etag"), whole.header("etag"));
    assert!(seen.header("cache-control").contains("private"), "{seen:?}");
    assert_eq!(seen.header("vary"), "Authorization, X-Api-Key");
    let known = [vic[0], ("If-None-Match", whole.header("etag"))];
    assert_eq!(server.get("/notifications/1,20", &known).status, 200, "another's page is not this one");
    // What readers get at once, and what those that come late get from the store.
    let late = [vic, ann].map(|by| stream(&server, by[0].1, "?after=0"));
    for [seen, whole] in [at_once, late].map(|streams| streams.map(said)) {
        assert!(whole.contains("the-hidden-blue") && !seen.contains("the-hidden-blue"), "{seen}");
        assert!(
            seen.contains("service.spec.accepted") && seen.contains("\"payloadWithheld\":true"),
            "{seen}"
        );
    }
    let mirror = tempfile::tempdir().unwrap();
    let follow = |key: &str| {
        let mut command = towpath();
        command.current_dir(mirror.path()).args(["follow", "--once", "--key", key]);
        command.arg(format!("http://{}", server.address)).output().unwrap()
    };
    let refused = follow(vic[0].1);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("payload-withheld"), "{said}");
    assert!(follow(ann[0].1).status.success(), "what was refused has left nothing behind");
    // Where its facts are and hive does not run, they are as confidential.
    let mut command = towpath();
    command.args(["--listen", "127.0.0.1:0"]);
    let elsewhere = Server::spawn(command, Arc::new(mirror), &format!("{keys}[hive]\nenabled = false\n"));
    let [seen, whole] = [vic, ann].map(|by| elsewhere.get("/api/events?limit=1000", &by).body);
    assert!(whole.contains("the-hidden-blue") && !seen.contains("the-hidden-blue"), "{seen}");
    // What is no reference is refused.
    for (name, wrong) in [
        ("a number", json!(7)),
        ("nothing", json!(null)),
        ("no key", json!({ "valueFrom": { "secret": "a" } })),
        ("no name of a secret", json!({ "valueFrom": { "secret": "A B", "key": "k" } })),
        ("no name of a key", json!({ "valueFrom": { "secret": "a", "key": "k/k" } })),
        ("a value besides", json!({ "value": "x", "valueFrom": { "secret": "a", "key": "k" } })),
    ] {
        let body = json!({ "image": "cart:2", "env": { "TOKEN": wrong } }).to_string();
        let refused = server.ask("PUT", CART, &ann, &body);
        assert_eq!((refused.status, refused.code().as_str()), (422, "invalid-service-spec"), "{name}");
    }
}

/// A stream that has begun.
fn stream(server: &Server, key: &str, query: &str) -> BufReader<TcpStream> {
    let mut stream = connect(&server.address).unwrap();
    let head = format!("Host: {}\r\nX-Api-Key: {key}\r\n", server.address);
    write!(stream, "GET /api/events/stream{query} HTTP/1.1\r\n{head}\r\n").unwrap();
    let (mut stream, mut line) = (BufReader::new(stream), String::new());
    while !line.starts_with("retry:") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0);
    }
    stream
}

/// What a stream says until the specification has been kept.
fn said(mut stream: BufReader<TcpStream>) -> String {
    let mut said = String::new();
    while !said.contains("\"service.persisted\"") {
        assert!(stream.read_line(&mut said).unwrap() > 0, "{said}");
    }
    said
}

#[test]
fn conditions_are_shown_with_reason_and_message() {
    let server = Server::start(&[], &format!("{AT_ONCE}failing-percent = 100\n"));
    let created = create(&server, &asked(json!({}))).json();
    assert_eq!((&created["status"], &created["statusReason"]), (&json!("FAILED"), &json!("RevisionFailed")));
    let message = "the container does not start";
    let failing = |name: &str| json!({ "type": name, "status": "False", "reason": "RevisionFailed", "message": message });
    let routes = json!({ "type": "RoutesReady", "status": "False", "reason": null, "message": null });
    assert_eq!(created["conditions"], json!([failing("Ready"), failing("ConfigurationsReady"), routes]));
}

#[test]
fn specifications_requests_and_namespaces_can_be_read() {
    let server = quick();
    for name in ["cart", "desk"] {
        assert_eq!(create(&server, &asked(json!({ "name": name }))).status, 201);
    }
    for number in 2..=4 {
        let body = json!({ "image": format!("cart:{number}"), "wait": true }).to_string();
        assert_eq!(server.ask("PUT", CART, &[], &body).status, 200);
    }
    assert_eq!(server.ask("DELETE", CART, &[], "").status, 200);
    // Kept by consumers, and so a moment later.
    let whole = eventually("all are kept", || {
        let specs = server.get(&format!("{CART}/specs"), &[]).json();
        let audit = server.get("/api/hive/audit", &[]).json();
        (specs["specs"].as_array()?.len() == 4 && audit["audit"].as_array()?.len() == 6).then_some(audit)
    });

    let first = server.get(&format!("{CART}/specs?limit=3"), &[]).json();
    let images: Vec<&str> =
        first["specs"].as_array().unwrap().iter().map(|spec| spec["image"].as_str().unwrap()).collect();
    assert_eq!((images, &first["next"]), (vec!["cart:1", "cart:2", "cart:3"], &json!(3)), "{first}");
    let rest = server.get(&format!("{CART}/specs?after=3"), &[]).json();
    assert_eq!((&rest["specs"][0]["specVersion"], &rest["next"]), (&json!(4), &Value::Null), "{rest}");
    assert!(rest["specs"][0]["persistedAt"].is_string() && rest["specs"][0]["specHash"].is_string());
    assert_eq!(server.get(&format!("{SERVICES}/shop.none/specs"), &[]).status, 404);

    // The last request first, page by page.
    let actions = |audit: &Value| -> Vec<String> {
        let rows = audit["audit"].as_array().unwrap().iter();
        rows.map(|row| format!("{} {}", row["action"].as_str().unwrap(), row["serviceId"].as_str().unwrap()))
            .collect()
    };
    let all = [
        "delete shop.cart",
        "update shop.cart",
        "update shop.cart",
        "update shop.cart",
        "create shop.desk",
        "create shop.cart",
    ];
    assert_eq!(actions(&whole), all);
    let mut pages = Vec::new();
    let mut after = String::new();
    loop {
        let page = server.get(&format!("/api/hive/audit?limit=4&after={after}"), &[]).json();
        pages.extend(actions(&page));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(pages, all);
    let of_desk = server.get("/api/hive/audit?service=shop.desk", &[]).json();
    assert_eq!(actions(&of_desk), ["create shop.desk"]);
    assert_eq!(of_desk["audit"][0]["requestedBy"], "local", "{of_desk}");

    let namespaces = server.get("/api/hive/namespaces", &[]).json();
    let shop = &namespaces["namespaces"][0];
    assert_eq!(
        (&shop["namespace"], &shop["present"], &namespaces["next"]),
        (&json!("shop"), &json!(true), &Value::Null)
    );

    let specs = shown_by_command(&server, &["hive", "specs", "shop.cart"]);
    assert_eq!(specs["specs"].as_array().unwrap().len(), 4);
    let audit = shown_by_command(&server, &["hive", "audit", "--service", "shop.desk"]);
    assert_eq!(actions(&audit), ["create shop.desk"]);
    assert_eq!(shown_by_command(&server, &["hive", "namespaces"]), namespaces);
    for wrong in ["/api/hive/audit?limit=0", "/api/hive/namespaces?limit=501", "/api/hive/audit?x=1"] {
        assert_eq!(server.get(wrong, &[]).status, 400, "{wrong}");
    }
}

#[test]
fn what_never_settles_is_failed_and_a_stuck_deletion_is_told() {
    let config = "[hive.service]\nconverges-within = \"1s\"\ndeleted-within = \"1s\"\n\
                  [hive.service.observation]\ninterval-ms = 200\n\
                  [hive.simulated]\nsettles-after = \"1h\"\nsettles-within = \"1h\"\ndeleted-after = \"1h\"\n";
    let server = Server::start(&[], config);
    let created = create(&server, &asked(json!({ "wait": false })));
    assert_eq!((created.status, &created.json()["status"]), (201, &json!("CREATING")));
    let failed = eventually("it is FAILED", || {
        let shown = server.get(CART, &[]).json();
        (shown["status"] == "FAILED").then_some(shown)
    });
    assert_eq!(failed["statusReason"], "convergence-deadline", "{failed}");
    let said = failed["statusMessage"].as_str().unwrap();
    assert!(said.contains("1s") && said.contains("Deploying"), "{said}");

    assert_eq!(server.ask("DELETE", CART, &[], "").status, 200);
    let stuck = eventually("it is told", || {
        let shown = server.get(CART, &[]).json();
        (shown["lastFailure"]["code"] == "deletion-deadline").then_some(shown)
    });
    assert_eq!(
        (&stuck["status"], &stuck["statusReason"]),
        (&json!("DELETING"), &json!("deletion-deadline")),
        "{stuck}"
    );
    let alert = eventually("there is an alert", || {
        let alerts = server.get("/api/hive/alerts", &[]).json()["alerts"].clone();
        (!alerts.as_array()?.is_empty()).then_some(alerts)
    });
    assert_eq!(alert.as_array().unwrap().len(), 1, "{alert}");
    assert_eq!(
        (&alert[0]["alert"], &alert[0]["serviceId"], &alert[0]["clearedAt"]),
        (&json!("deletion-stuck"), &json!("shop.cart"), &Value::Null),
        "{alert}"
    );
}

/// The source's word for what was given up is DEAD.
#[tokio::test]
async fn a_fact_that_was_given_up_is_dead_in_hive() {
    let server = quick();
    assert_eq!(create(&server, &asked(json!({}))).status, 201);
    let of_hive = eventually("all is published", || {
        let rows = server.get("/api/hive/outbox?limit=100", &[]).json()["rows"].clone();
        let sent = |row: &Value| row["status"] == "SENT";
        (rows.as_array()?.len() >= 10 && rows.as_array()?.iter().all(sent)).then_some(rows)
    });
    assert!(
        of_hive.as_array().unwrap().iter().all(|row| row["channel"].as_str().unwrap().starts_with("hive"))
    );
    assert_eq!(server.get("/api/hive/outbox?status=DEAD", &[]).json()["rows"], json!([]));
    // Given up, as after ten attempts.
    let store = format!("sqlite://{}", server.folder.path().join("data/towpath.db").display());
    let store = towpath::SqlStore::connect(&store).await.unwrap();
    let row = of_hive[0]["outboxId"].as_u64().unwrap();
    let sql = "UPDATE event_outbox SET status = 'FAILED', retry_count = 10 WHERE outbox_id = ?";
    store.own_execute("test.give-up", sql, vec![row.into()]).await.unwrap();
    store.close().await;
    let dead = server.get("/api/hive/outbox?status=DEAD", &[]).json();
    assert_eq!(
        (dead["rows"].as_array().unwrap().len(), &dead["rows"][0]["status"]),
        (1, &json!("DEAD")),
        "{dead}"
    );
    assert_eq!((&dead["rows"][0]["outboxId"], &dead["rows"][0]["retryCount"]), (&json!(row), &json!(10)));
    assert_eq!(server.get("/api/outbox?status=FAILED", &[]).json()["rows"][0]["status"], "FAILED");
    assert_eq!(server.get("/api/hive/outbox?status=FAILED", &[]).status, 400);
    let shown = shown_by_command(&server, &["hive", "outbox", "--status", "DEAD"]);
    assert_eq!(shown["rows"], dead["rows"]);
}

/// What a worker is told of a service, and answers, stands in the log too.
#[test]
fn facts_of_tasks_for_services_are_hidden_from_viewers() {
    let (ann, vic): (Key, Key) = (new_key("ann", "operator"), new_key("vic", "viewer"));
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("tasks.db").display());
    let server = Server::start(&["--store", &store], &format!("{}\n{}\n{AT_ONCE}", ann.toml, vic.toml));
    let scan = towpath::TaskType::named("Scanner.Scan").requested("scanner.asked");
    let subject = towpath::ids::AggregateKey::new("service", "shop.cart").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let builder = towpath::Towpath::builder().store(&store).without_workers().task_type(scan.clone());
        let app = builder.start().await.unwrap();
        let told = json!({ "env": "the-hidden-blue" });
        let started = app.transact(async |mut tx| tx.start_task(&scan, &told).subject(&subject).await).await;
        started.unwrap();
        app.stop().await;
    });
    let [whole, seen] = [ann, vic].map(|by| {
        eventually("the fact has a position", || {
            let events = server.get("/api/events?limit=1000", &[("X-Api-Key", &by.key)]);
            events.body.contains("scanner.asked").then_some(events.body)
        })
    });
    assert!(whole.contains("the-hidden-blue"), "{whole}");
    assert!(!seen.contains("the-hidden-blue") && seen.contains("payloadWithheld"), "{seen}");
}
