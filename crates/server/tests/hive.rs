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
