//! Hive from the outside: services are asked for over HTTP, and converge on the simulated cluster.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

fn towpath(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    // What the tester's own shell says must not reach the binary.
    for variable in ["TOWPATH_LISTEN", "TOWPATH_STORE", "TOWPATH_BROKER", "TOWPATH_CONFIG"] {
        command.env_remove(variable);
    }
    command.current_dir(folder);
    command
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(folder: &Path) -> Self {
        let mut child = towpath(folder)
            .args(["serve", "--listen", "127.0.0.1:0", "--config", "towpath.toml"])
            // No alert becomes a fact among those that a test counts.
            .env("TOWPATH_ALERTS_EVERY", "1d")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("listens on http://")?.1.trim_end_matches('/').to_owned()))
            .expect("the server says where it listens");
        // Somebody must read on, or the server waits for a full pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, address }
    }

    fn ask(&self, method: &str, path: &str, key: Option<&str>, body: &Value) -> (u16, Value) {
        let (status, body) = self.exchange(method, path, key, body);
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
    }

    fn text(&self, path: &str) -> String {
        let (status, body) = self.exchange("GET", path, None, &Value::Null);
        assert_eq!(status, 200, "{body}");
        body
    }

    fn exchange(&self, method: &str, path: &str, key: Option<&str>, body: &Value) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let key = key.map_or_else(String::new, |key| format!("Idempotency-Key: {key}\r\n"));
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{key}\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, None, &Value::Null);
        assert_eq!(status, 200, "{body}");
        body
    }

    fn until<T>(&self, what: &str, mut ask: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(found) = ask(self) {
                return found;
            }
            assert!(Instant::now() < deadline, "{what}: it is not so");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn reaches(&self, id: &str, status: &str) -> Value {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let service = self.get(&format!("/api/hive/services/{id}"));
            if service["status"] == status {
                return service;
            }
            assert!(Instant::now() < deadline, "{id} does not become {status}: {service}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Server {
    /// Tells it to stop, as a service manager does, and waits until it has given back what it held.
    fn stop(mut self) {
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(told.success() && self.child.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn service(name: &str, image: &str, wait: bool) -> Value {
    json!({ "name": name, "namespace": "shop", "image": image, "env": { "A": "1" }, "minScale": 1, "wait": wait })
}

#[test]
fn a_service_is_asked_for_over_http_and_lives_its_life() {
    let folder = tempfile::tempdir().unwrap();
    let config =
        "[hive.simulated]\nsettles-after = \"300ms\"\nsettles-within = \"400ms\"\ndeleted-after = \"50ms\"\n";
    std::fs::write(folder.path().join("towpath.toml"), config).unwrap();
    let server = Server::start(folder.path());
    let services = "/api/hive/services";

    // With `wait` the answer comes when the outcome is known; the same key gives the same service.
    let (status, created) = server.ask("POST", services, Some("key-1"), &service("cart", "cart:1", true));
    assert_eq!(
        (status, &created["status"], &created["ready"]),
        (201, &json!("READY"), &json!(true)),
        "{created}"
    );
    assert_eq!(
        (&created["id"], &created["observedSpecHash"]),
        (&json!("shop.cart"), &created["desiredSpecHash"])
    );
    let (_, again) = server.ask("POST", services, Some("key-1"), &service("cart", "cart:1", true));
    assert_eq!(again, created);

    // Without, it is CREATING, and what that state does not allow is refused with what it allows.
    let (status, second) = server.ask("POST", services, None, &service("till", "till:1", false));
    assert_eq!((status, &second["status"]), (201, &json!("CREATING")));
    let (status, refused) =
        server.ask("PUT", "/api/hive/services/shop.till", None, &service("till", "till:2", false));
    let title = refused["title"].as_str().unwrap();
    assert_eq!((status, &refused["code"]), (409, &json!("illegal-transition")), "{refused}");
    assert!(title.contains("service.ready") && title.contains("service.failed"), "{title}");
    let (status, _) = server.ask("POST", services, None, &service("cart", "cart:1", false));
    assert_eq!(status, 409, "there is one of that name");
    let (status, flaw) = server.ask("POST", services, None, &service("Cart", "cart:1", false));
    assert_eq!((status, &flaw["code"]), (422, &json!("invalid-service-spec")));
    let (status, flaw) = server.ask("POST", services, None, &json!({ "name": "x" }));
    assert_eq!((status, &flaw["code"]), (422, &json!("invalid-service-spec")));
    let (status, _) = server.ask("GET", "/api/hive/services/nobody", None, &Value::Null);
    assert_eq!(status, 404);

    let (status, updated) =
        server.ask("PUT", "/api/hive/services/shop.cart", None, &service("cart", "cart:2", true));
    assert_eq!((status, &updated["status"]), (200, &json!("READY")), "{updated}");
    let (status, refreshed) = server.ask("POST", "/api/hive/services/shop.cart/refresh", None, &Value::Null);
    assert_eq!((status, &refreshed["status"]), (200, &json!("READY")));

    // The same commands by their names.
    let command = json!({ "type": "Command.Hive.Service.Create", "aggregateId": "shop.desk",
        "payload": service("desk", "desk:1", false) });
    let (status, receipt) = server.ask("POST", "/api/commands", None, &command);
    assert_eq!((status, receipt["events"].as_array().unwrap().len()), (201, 3), "{receipt}");
    server.reaches("shop.desk", "READY");
    let delete = json!({ "type": "Command.Hive.Service.Delete", "aggregateId": "shop.desk", "payload": {} });
    assert_eq!(server.ask("POST", "/api/commands", None, &delete).0, 201);
    server.reaches("shop.desk", "DELETED");

    // What hive's own parts report is nobody else's to say.
    for name in [
        "Service.Apply.Record",
        "Service.Observation.Take",
        "Service.Deletion.Confirm",
        "KnativeService.Observe",
        "Record.Persist",
        "Record.Audit",
        "Namespace.Validate",
    ] {
        let command =
            json!({ "type": format!("Command.Hive.{name}"), "aggregateId": "shop.cart", "payload": {} });
        let (status, refused) = server.ask("POST", "/api/commands", None, &command);
        assert_eq!((status, &refused["code"]), (403, &json!("internal-command")), "{name}: {refused}");
    }

    // The name can be used again, under another id; also the longest there is.
    let (status, next) = server.ask("POST", services, None, &service("desk", "desk:2", true));
    assert_eq!(
        (status, &next["id"], &next["status"]),
        (201, &json!("shop.desk.2"), &json!("READY")),
        "{next}"
    );

    let longest =
        json!({ "name": "n".repeat(63), "namespace": "s".repeat(63), "image": "i:1", "wait": true });
    let (status, first) = server.ask("POST", services, None, &longest);
    assert_eq!((status, &first["status"]), (201, &json!("READY")), "{first}");
    let first = first["id"].as_str().unwrap();
    assert_eq!(server.ask("DELETE", &format!("{services}/{first}"), None, &Value::Null).0, 200);
    server.reaches(first, "DELETED");
    let (status, second) = server.ask("POST", services, None, &longest);
    assert_eq!((status, &second["status"]), (201, &json!("READY")), "{second}");
    let second = second["id"].as_str().unwrap();
    assert_ne!(first, second);
    assert_eq!(server.ask("DELETE", &format!("{services}/{second}"), None, &Value::Null).0, 200);
    server.reaches(second, "DELETED");

    // What is around: revisions, routes, history, types, the observer, the list.
    let revisions = server.get("/api/hive/services/shop.cart/revisions");
    assert_eq!(revisions["revisions"].as_array().unwrap().len(), 2, "{revisions}");
    let routes = server.get("/api/hive/services/shop.cart/routes");
    assert_eq!(routes["routes"][0]["traffic"][0]["percent"], 100, "{routes}");
    let history = server.get("/api/hive/services/shop.cart/history");
    let states: Vec<&str> = history["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| change["toState"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["CREATING", "READY", "UPDATING", "READY"], "{history}");
    assert_eq!(server.get("/api/hive/event-types")["eventTypes"].as_array().unwrap().len(), 23);
    let observer = server.get("/api/hive/observer");
    assert_eq!((&observer["looking"], &observer["platform"]["state"]), (&json!(true), &json!("up")));
    let listed = server.get("/api/hive/services?status=READY");
    let ids: Vec<&str> =
        listed["services"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["shop.cart", "shop.desk.2", "shop.till"], "{listed}");

    for path in ["/api/hive/services", "/api/hive/services/shop.cart/history"] {
        let asked = |limit: u32| server.ask("GET", &format!("{path}?limit={limit}"), None, &Value::Null).0;
        assert_eq!((asked(500), asked(501)), (200, 400), "{path}");
    }

    // A restart finds the cluster as it was: nothing is purged.
    server.stop();
    let server = Server::start(folder.path());
    let (status, _) = server.ask("POST", "/api/hive/services/shop.cart/refresh", None, &Value::Null);
    assert_eq!(status, 200);
    let (status, updated) =
        server.ask("PUT", "/api/hive/services/shop.cart", None, &service("cart", "cart:3", true));
    assert_eq!((status, &updated["status"], &updated["present"]), (200, &json!("READY"), &json!(true)));
    let names = server.get("/api/aggregates/service/shop.cart/events?limit=100").to_string();
    assert!(!names.contains("service.external.purged"), "{names}");

    // The read models are made anew while the server runs.
    let output =
        towpath(folder.path()).args(["hive", "rebuild", "--config", "towpath.toml"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("6 services"), "{said} {output:?}");
    assert_eq!(server.get("/api/hive/services")["services"].as_array().unwrap().len(), 6);
    let projections = server.get("/api/projections")["projections"].clone();
    let services = projections.as_array().unwrap().iter().find(|one| one["name"] == "hive-services").unwrap();
    let shown =
        ["kind", "version", "made", "aggregates", "current", "failures"].map(|field| &services[field]);
    let expected = [json!("service"), json!(3), json!(true), json!(6), json!(6), json!([])];
    assert_eq!(shown, expected.each_ref(), "{projections}");
}

/// A platform that is away is an alert that can be asked for, raised once and cleared once, over restarts of the server.
#[test]
fn a_platform_that_is_away_is_an_alert_that_can_be_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let config = |unavailable: u8| {
        let config = format!("[hive.simulated]\nunavailable-percent = {unavailable}\n");
        std::fs::write(folder.path().join("towpath.toml"), config).unwrap();
    };
    let until = |what: &str, mut ask: Box<dyn FnMut() -> Option<Value> + '_>| {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(found) = ask() {
                return found;
            }
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    config(100);
    let mut raised = Value::Null;
    // The second life finds the alert of the first.
    for _ in 0..2 {
        let server = Server::start(folder.path());
        let down = || {
            let observer = server.get("/api/hive/observer");
            (observer["platform"]["state"] == "down").then_some(observer)
        };
        until("the platform is found to be away", Box::new(down));
        let alerts = || {
            let alerts = server.get("/api/hive/alerts")["alerts"].clone();
            (!alerts.as_array().unwrap().is_empty()).then_some(alerts)
        };
        let alerts = until("the alert is raised", Box::new(alerts));
        assert_eq!(alerts.as_array().unwrap().len(), 1, "{alerts}");
        assert_eq!(
            (&alerts[0]["alert"], &alerts[0]["clearedAt"], &alerts[0]["code"]),
            (&json!("gateway-down"), &Value::Null, &json!("gateway-unavailable"))
        );
        if !raised.is_null() {
            assert_eq!(alerts, raised, "it is the same alert");
        }
        raised = alerts;
        let metrics = server.text("/metrics");
        assert!(metrics.contains("towpath_observer_platform_up{observer=\"hive\"} 0"), "{metrics}");
        server.stop();
    }
    config(0);
    let server = Server::start(folder.path());
    let cleared = || {
        let alerts = server.get("/api/hive/alerts")["alerts"].clone();
        (!alerts[0]["clearedAt"].is_null()).then_some(alerts)
    };
    let alerts = until("the alert is cleared", Box::new(cleared));
    assert_eq!(alerts.as_array().unwrap().len(), 1, "{alerts}");
    assert_eq!(alerts[0]["raisedAt"], raised[0]["raisedAt"]);
    let metrics = server.text("/metrics");
    assert!(metrics.contains("towpath_observer_platform_up{observer=\"hive\"} 1"), "{metrics}");
    let address = format!("http://{}", server.address);
    let output = towpath(folder.path()).args(["hive", "alerts", "--server", &address]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("gateway-down"), "{said} {output:?}");
}

/// A server with this configuration, on a simulated cluster where everything happens at once.
fn quick(config: &str) -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "{config}\n[hive.simulated]\nsettles-after = \"0s\"\nsettles-within = \"0s\"\ndeleted-after = \"0s\"\n"
    );
    std::fs::write(folder.path().join("towpath.toml"), config).unwrap();
    let server = Server::start(folder.path());
    (folder, server)
}

/// A service that does not get on says why: here its looks take longer than they may, while the platform answers.
#[test]
fn why_a_service_does_not_get_on_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[hive]\ntimeout = \"4s\"\n[hive.simulated]\ncall-delay = \"3s\"\n";
    std::fs::write(folder.path().join("towpath.toml"), config).unwrap();
    let server = Server::start(folder.path());
    let asked = json!({ "name": "cart", "namespace": "shop", "image": "cart:1" });
    let (status, created) = server.ask("POST", "/api/hive/services", None, &asked);
    assert_eq!((status, &created["lastFailure"]), (201, &Value::Null), "{created}");
    let failing = server.until("it is shown", |server| {
        let shown = server.get("/api/hive/services/shop.cart");
        shown["lastFailure"].is_object().then_some(shown)
    });
    assert_eq!((&failing["status"], &failing["statusReason"]), (&json!("CREATING"), &Value::Null));
    assert_eq!(failing["lastFailure"]["code"], "observer-timeout", "{failing}");
    assert!(failing["lastFailure"]["since"].is_string() && failing["lastFailure"]["message"].is_string());
    assert_eq!((&failing["convergedSpecVersion"], &failing["purgedAt"]), (&json!(0), &Value::Null));
    assert_eq!(server.get("/api/hive/alerts")["alerts"], json!([]), "the platform answers");
}

/// What is shown of a service is what an update takes: nothing is lost by reading, changing one thing and writing it back.
#[test]
fn what_an_update_replaces_is_shown() {
    let (_folder, server) = quick("");
    let (services, cart) = ("/api/hive/services", "/api/hive/services/shop.cart");
    let env = json!({ "A": "1", "B": "two words" });
    let asked = json!({ "name": "cart", "namespace": "shop", "image": "cart:1", "env": env, "minScale": 1,
        "maxScale": 3, "concurrency": 50, "wait": true });
    let replaced = ["image", "env", "minScale", "maxScale", "concurrency"];
    let specified = |shown: &Value| replaced.map(|field| shown[field].clone());
    let (status, created) = server.ask("POST", services, None, &asked);
    assert_eq!((status, specified(&created)), (201, specified(&asked)), "{created}");
    let shown = server.get(cart);
    assert_eq!(specified(&shown), specified(&asked), "{shown}");

    // Read, changed in one thing, and written back.
    let mut changed = json!({ "wait": true });
    for field in replaced {
        changed[field] = shown[field].clone();
    }
    changed["image"] = json!("cart:2");
    let (status, updated) = server.ask("PUT", cart, None, &changed);
    assert_eq!((status, specified(&updated)), (200, specified(&changed)), "{updated}");
    assert_eq!(updated["env"], env);

    // An update replaces everything: what is left out is not kept.
    let (status, bare) = server.ask("PUT", cart, None, &json!({ "image": "cart:3", "wait": true }));
    let nothing = [json!("cart:3"), json!({}), Value::Null, Value::Null, Value::Null];
    assert_eq!((status, specified(&bare)), (200, nothing.clone()), "{bare}");
    assert_eq!(specified(&server.get(cart)), nothing);
    // What is not set can be written back as it is shown, too.
    let mut again = json!({ "wait": true });
    for field in replaced {
        again[field] = bare[field].clone();
    }
    let (status, same) = server.ask("PUT", cart, None, &again);
    assert_eq!((status, &same["desiredSpecHash"]), (200, &bare["desiredSpecHash"]), "{same}");

    let listed = server.get(services);
    assert_eq!(listed["services"].as_array().unwrap().len(), 1, "{listed}");
    let described =
        server.get("/openapi.json")["paths"]["/api/hive/services/{id}"]["put"]["description"].clone();
    assert!(described.as_str().unwrap().contains("replaces the whole specification"), "{described}");
}

#[test]
fn a_status_that_is_none_is_refused_with_those_that_there_are() {
    let (_folder, server) = quick("");
    let listed =
        |status: &str| server.ask("GET", &format!("/api/hive/services?status={status}"), None, &Value::Null);
    let all = ["CREATING", "UPDATING", "READY", "FAILED", "DELETING", "DELETED"];
    for status in all {
        assert_eq!(listed(status), (200, json!({ "services": [], "next": null })), "{status}");
    }
    for status in ["ready", "Ready", "REDY", "", "READY,FAILED"] {
        let (answered, problem) = listed(status);
        let said = problem["title"].as_str().unwrap();
        assert_eq!((answered, &problem["code"]), (400, &json!("malformed")), "{status:?}: {problem}");
        assert!(all.iter().all(|known| said.contains(known)), "{said}");
    }
}

#[test]
fn a_name_begins_with_a_letter_and_a_namespace_need_not() {
    let (_folder, server) = quick("");
    let services = "/api/hive/services";
    let (status, flaw) = server.ask("POST", services, None, &service("1cart", "cart:1", true));
    let said = flaw["title"].as_str().unwrap();
    assert_eq!((status, &flaw["code"]), (422, &json!("invalid-service-spec")), "{flaw}");
    assert!(said.contains("1cart") && said.contains("beginning with a letter"), "{said}");
    // The command says the same.
    let command = json!({ "type": "Command.Hive.Service.Create", "aggregateId": "shop.1cart",
        "payload": service("1cart", "cart:1", false) });
    let (status, refused) = server.ask("POST", "/api/commands", None, &command);
    assert_eq!((status, &refused["code"]), (422, &json!("invalid-service-spec")), "{refused}");
    let within = json!({ "name": "cart", "namespace": "1shop", "image": "cart:1", "wait": true });
    let (status, created) = server.ask("POST", services, None, &within);
    assert_eq!((status, &created["id"], &created["status"]), (201, &json!("1shop.cart"), &json!("READY")));
}

/// Who waits is answered within the time of a request, also when that is short.
#[test]
fn a_wait_ends_before_its_request_does() {
    let folder = tempfile::tempdir().unwrap();
    let config = |wait: &str| {
        let config = format!(
            "[limits]\nrequest-timeout = \"10s\"\n{wait}\n[hive.simulated]\nsettles-after = \"1h\"\n\
             settles-within = \"1h\"\n"
        );
        std::fs::write(folder.path().join("towpath.toml"), config).unwrap();
    };
    config("[hive]\nwait-at-most = \"10s\"");
    let output = towpath(folder.path())
        .args(["serve", "--listen", "127.0.0.1:0", "--config", "towpath.toml"])
        .output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("hive.wait-at-most is 10s") && said.contains("limits.request-timeout"), "{said}");

    config("");
    let server = Server::start(folder.path());
    let began = Instant::now();
    let (status, created) = server.ask("POST", "/api/hive/services", None, &service("cart", "cart:1", true));
    assert_eq!((status, &created["status"]), (201, &json!("CREATING")), "{created}");
    assert!(began.elapsed() > Duration::from_secs(3), "it was not waited for");
}

/// A whole life over HTTP, with facts that go through this broker.
fn a_life_over(broker: &str) {
    let (_folder, server) = quick(&configuration(broker, &own_name()));
    let (services, cart) = ("/api/hive/services", "/api/hive/services/shop.cart");
    let (status, created) = server.ask("POST", services, None, &service("cart", "cart:1", true));
    assert_eq!((status, &created["status"]), (201, &json!("READY")), "{created}");
    let (status, updated) = server.ask("PUT", cart, None, &service("cart", "cart:2", true));
    assert_eq!((status, &updated["status"]), (200, &json!("READY")), "{updated}");
    // The read models are a moment behind.
    let images = server.until("both revisions are seen", |server| {
        let revisions = server.get(&format!("{cart}/revisions"))["revisions"].clone();
        (revisions.as_array()?.len() == 2).then(|| [0, 1].map(|at: usize| revisions[at]["image"].clone()))
    });
    assert_eq!(images, ["cart:1", "cart:2"]);
    let first = server.get(&format!("{cart}/revisions?limit=1"));
    assert_eq!(
        (&first["revisions"][0]["image"], first["revisions"].as_array().unwrap().len()),
        (&json!("cart:1"), 1)
    );
    let behind = first["next"].as_str().unwrap();
    let rest = server.get(&format!("{cart}/revisions?after={behind}"));
    assert_eq!((&rest["revisions"][0]["image"], &rest["next"]), (&json!("cart:2"), &Value::Null), "{rest}");
    let latest = &updated["latestReadyRevision"];
    let traffic = server.until("requests go to the second", |server| {
        let traffic = server.get(&format!("{cart}/routes"))["routes"][0]["traffic"].clone();
        (traffic[0]["revision"] == *latest).then_some(traffic)
    });
    assert_eq!((&traffic[0]["percent"], traffic.as_array().unwrap().len()), (&json!(100), 1), "{traffic}");
    assert_eq!(server.ask("DELETE", cart, None, &Value::Null).0, 200);
    server.reaches("shop.cart", "DELETED");
    server.until("the view knows it, too", |server| {
        let listed = server.get("/api/hive/services?status=DELETED");
        (listed["services"][0]["id"] == "shop.cart").then_some(())
    });
    server.until("requests go nowhere", |server| {
        (server.get(&format!("{cart}/routes"))["routes"] == json!([])).then_some(())
    });
    let dead = server.get("/api/dead-letters");
    assert_eq!(dead["letters"].as_array().map(Vec::len), Some(0), "{dead}");
    let channels = server.get("/api/channels").to_string();
    server.stop();
    assert!(channels.contains(".observed") && channels.contains(".requested"), "{channels}");
}

/// Two hives that share a broker, each under a name of its own, and do not take each other's facts.
fn two_share(broker: &str) {
    let servers = [0, 1].map(|_| quick(&configuration(broker, &own_name())));
    let services = "/api/hive/services";
    for (number, (_, server)) in servers.iter().enumerate() {
        // The same service to both, so that what the one takes of the other would not be strange to it.
        for name in ["cart", "till", "desk", "shelf"] {
            let image = format!("{name}:{number}");
            let (status, created) = server.ask("POST", services, None, &service(name, &image, false));
            assert_eq!(status, 201, "{created}");
        }
    }
    for (number, (_, server)) in servers.iter().enumerate() {
        for name in ["cart", "till", "desk", "shelf"] {
            let shown = server.reaches(&format!("shop.{name}"), "READY");
            assert_eq!(shown["image"], format!("{name}:{number}"));
            let revisions = server.until("its revision is seen", |server| {
                let path = format!("{services}/shop.{name}/revisions");
                let revisions = server.get(&path)["revisions"].clone();
                (!revisions.as_array()?.is_empty()).then_some(revisions)
            });
            assert_eq!(revisions.as_array().unwrap().len(), 1, "{revisions}");
            assert_eq!(revisions[0]["image"], format!("{name}:{number}"));
        }
        let dead = server.get("/api/dead-letters");
        assert_eq!(dead["letters"].as_array().map(Vec::len), Some(0), "{dead}");
    }
}

/// A name of the test's own, so that runs do not meet on one broker.
fn own_name() -> String {
    format!("hive{}", &uuid::Uuid::new_v4().simple().to_string()[..16])
}

/// A wait that a busy machine does not exceed, and a scan that finds at once what no hint has told.
fn configuration(broker: &str, channel: &str) -> String {
    format!(
        "broker = \"{broker}\"\n[market]\nenabled = false\n[genesis]\nenabled = false\n[limits]\nrequest-timeout = \"60s\"\n\
         [hive]\nchannel = \"{channel}\"\nwait-at-most = \"50s\"\n[hive.service.observation]\ninterval-ms = 1000\n\
         [hive.outbox.publisher]\nfixedDelayMs = 500\n"
    )
}

fn of_the_tests(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: run `cargo xtask test`"))
}

#[test]
fn a_life_over_http_in_process() {
    a_life_over("local:");
}

#[test]
fn a_life_over_http_and_rabbitmq() {
    a_life_over(&of_the_tests("TOWPATH_TEST_AMQP_URL"));
}

#[cfg(feature = "kafka")]
#[test]
fn a_life_over_http_and_kafka() {
    a_life_over(&of_the_tests("TOWPATH_TEST_KAFKA_URL"));
}

#[test]
fn two_hives_share_one_rabbitmq() {
    two_share(&of_the_tests("TOWPATH_TEST_AMQP_URL"));
}

#[cfg(feature = "kafka")]
#[test]
fn two_hives_share_one_kafka() {
    two_share(&of_the_tests("TOWPATH_TEST_KAFKA_URL"));
}
