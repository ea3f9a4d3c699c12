//! The OpenAPI document keeps its word: schemathesis makes requests from it, good and bad, and holds the answers
//! against it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod parcels;

use std::process::Command;

use parcels::Server;

/// Not a test: the server process that the others start.
#[test]
#[ignore = "not a test: the process that others start"]
fn server_of_a_test() {
    parcels::become_server();
}

/// How many requests are made up per operation, of each sort.
const EXAMPLES: &str = "12";

/// What the schema cannot say. A command that fits it can still be refused: no such aggregate, no such command. A page's
/// two numbers must be in order. A tag that is made up is none that a service has. An id may stand in the body or in a header,
/// and must be the same in both. A command's name that was seen in an answer may be one that only the application sends. A step
/// of an order may be somebody else's. A text with a NUL is malformed wherever it stands, which no schema of a body says.
///
/// What was answered before is not put into requests, and nothing is learnt from refusals: ids differ from run to run, and
/// so would what is asked.
const CONFIG: &str = r#"
hooks = "hooks"

[generation]
allow-x00 = false

[phases.examples.extra-data-sources]
responses = false

[phases.coverage.extra-data-sources]
responses = false

[phases.fuzzing.extra-data-sources]
responses = false

[phases.fuzzing.error-feedback]
enabled = false

[checks.positive_data_acceptance]
expected-statuses = [200, 201, 204, 304, 404, 409, 412, 422]

[[operations]]
include-operation-id = ["showLog"]
checks.positive_data_acceptance.expected-statuses = [200, 304, 400, 404, 422]

[[operations]]
include-operation-id = ["sendCommand", "commandSession"]
checks.positive_data_acceptance.expected-statuses = [200, 201, 400, 403, 404, 409, 422]

[[operations]]
include-operation-id = ["updateService", "deleteService"]
checks.positive_data_acceptance.expected-statuses = [200, 201, 202, 204, 400, 404, 409, 412, 422]

[[operations]]
include-operation-id = ["checkConsistency"]
checks.positive_data_acceptance.expected-statuses = [200, 202, 422]

[[operations]]
include-operation-id = ["payOrder", "shipOrder", "completeOrder", "cancelOrder", "changeProduct", "withdrawProduct"]
checks.positive_data_acceptance.expected-statuses = [200, 403, 404, 409, 422]

"#;

/// Keys that are made up come again with another request, and then there is only one answer to see. Ids that are made up
/// lead nowhere: every other one is one that is there.
const HOOKS: &str = r#"
import itertools
import re
import schemathesis

turns = itertools.count()
services = ["shop.s%d" % number for number in range(6)]
sessions = [SESSIONS]
numbers = {"/api/market/products/": [PRODUCTS], "/api/market/orders/": [ORDERS], "/api/market/buyers/": [1]}

@schemathesis.hook
def before_call(context, case, kwargs):
    if case.headers:
        case.headers.pop("Idempotency-Key", None)
    # What was made up to be wrong stays as it is.
    is_right = case.meta is None or case.meta.generation.mode.is_positive
    # Nobody waits here for work that does not come.
    if case.query and re.fullmatch("[0-9]{1,2}s", str(case.query.get("wait"))):
        case.query["wait"] = "0s"
    if isinstance(case.body, dict) and re.fullmatch("[0-9]{1,2}s", str(case.body.get("wait"))):
        case.body["wait"] = "0s"
    if not is_right or not case.path_parameters or "id" not in case.path_parameters or next(turns) % 2:
        return
    path = case.operation.path
    if path.startswith("/api/hive/services/"):
        case.path_parameters["id"] = services[next(turns) % len(services)]
    if path.startswith("/api/genesis/sessions/"):
        case.path_parameters["id"] = sessions[next(turns) % len(sessions)]
    for start, known in numbers.items():
        if path.startswith(start):
            case.path_parameters["id"] = known[next(turns) % len(known)]
"#;

#[test]
fn schemathesis_finds_no_server_error_and_no_breach_of_the_schema() {
    let program = std::env::var("TOWPATH_TEST_SCHEMATHESIS").unwrap_or_else(|_| {
        panic!("TOWPATH_TEST_SCHEMATHESIS is not set: run `cargo xtask test`, or `eval \"$(cargo xtask services env)\"`")
    });
    let server = Server::of_carrier();
    // Something to find: schemathesis cannot guess ids.
    for number in 0..3 {
        server.send("parcel.register", &number.to_string(), r#"{"weight":1000}"#);
        server.send("parcel.lose", &number.to_string(), "null");
    }
    let (mut products, mut orders) = (Vec::new(), Vec::new());
    for number in 0..6 {
        let offered = format!(r#"{{"sellerId":7,"title":"thing {number}","price":12.50}}"#);
        let product = server.post("/api/market/products", &offered);
        assert_eq!(product.status, 201, "{product:?}");
        let product = product.json()["productId"].as_i64().unwrap();
        products.push(product.to_string());
        if number < 4 {
            let placed =
                server.post("/api/market/orders", &format!(r#"{{"productId":{product},"buyerId":1}}"#));
            assert_eq!(placed.status, 201, "{placed:?}");
            let order = placed.json()["orderId"].as_i64().unwrap();
            orders.push(order.to_string());
            // One that is pending, one that is paid, one on its way, one that is cancelled.
            let steps: &[&str] = [&["cancel"][..], &["pay", "ship"], &["pay"], &[]][number];
            for step in steps {
                let moved = server.post(&format!("/api/market/orders/{order}/{step}"), "{}");
                assert_eq!(moved.status, 200, "{moved:?}");
            }
        }
        let service = format!(r#"{{"name":"s{number}","namespace":"shop","image":"a/b:1","wait":true}}"#);
        assert_eq!(server.post("/api/hive/services", &service).status, 201);
    }
    let mut sessions = Vec::new();
    for steps in [&[][..], &["Seed.Request"], &["Fail"]] {
        let begun = server.post("/api/genesis/sessions", r#"{"userId":"u","initialInput":"a ferry"}"#);
        assert_eq!(begun.status, 201, "{begun:?}");
        let id = begun.json()["sessionId"].as_str().unwrap().to_owned();
        for step in steps {
            let path = format!("/api/genesis/sessions/{id}/commands");
            assert_eq!(server.post(&path, &format!(r#"{{"type":"{step}"}}"#)).status, 201);
        }
        sessions.push(format!("{id:?}"));
    }
    server.until("/api/dead-letters", |listed| !listed["letters"].as_array().unwrap().is_empty());
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("schemathesis.toml");
    std::fs::write(&config, CONFIG).unwrap();
    let hooks = HOOKS.replace("PRODUCTS", &products.join(", ")).replace("ORDERS", &orders.join(", "));
    let hooks = hooks.replace("SESSIONS", &sessions.join(", "));
    std::fs::write(folder.path().join("hooks.py"), hooks).unwrap();
    let output = Command::new(program)
        .arg("--config-file")
        .arg(&config)
        .args(["run", &format!("http://{}/openapi.json", server.address)])
        .args(["--max-examples", EXAMPLES, "--phases", "examples,coverage,fuzzing", "--checks", "all"])
        // An event stream does not end.
        .args(["--exclude-path-regex", "stream"])
        // The same requests each time: a finding can be looked at again.
        .args(["--seed", "7400", "--generation-deterministic", "--no-color", "--request-timeout", "20"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    // "Operations:       57 selected / 59 total"
    let selected = said.lines().find_map(|line| line.trim().strip_prefix("Operations:"));
    let selected = selected.and_then(|line| line.split_whitespace().next()?.parse::<u32>().ok());
    assert!(selected.is_some_and(|selected| selected > 50), "too little was tried: {said}");
}
