//! A server with an application of its own among ours: the example `guestbook`, run as a process and asked over HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod driver;
#[path = "../examples/guestbook.rs"]
#[allow(dead_code, reason = "its main is for the example alone")]
mod guestbook;

use std::process::Command;
use std::sync::Arc;

use driver::{Server, new_key};

const ARGUMENTS: &str = "SERVER_OF_A_TEST_ARGUMENTS";
const GUESTS: &str = "/api/guestbook/guests";

/// Not a test: the process that the others start.
#[test]
#[ignore = "not a test: the process that others start"]
fn server_of_a_test() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let _ = guestbook::server().run_from(arguments.split('\n').map(std::ffi::OsString::from));
    std::process::exit(0);
}

fn process(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["server_of_a_test", "--exact", "--ignored", "--nocapture"]);
    for (variable, _) in std::env::vars().filter(|(name, _)| name.starts_with("TOWPATH_")) {
        command.env_remove(variable);
    }
    command.env(ARGUMENTS, [&["towpath"], arguments].concat().join("\n"));
    command
}

fn start(config: &str) -> Server {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    Server::spawn(process(&["--listen", "127.0.0.1:0"]), folder, config)
}

/// What a command of the same program says.
fn says(arguments: &[&str], config: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("towpath.toml"), config).unwrap();
    let output = process(arguments).current_dir(folder.path()).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[test]
fn its_paths_are_documented_and_read_requests_as_all_others_do() {
    let server = start("[guestbook]\nlongest-name = 5\n");
    let signed = server.ask("POST", GUESTS, &[], r#"{"name":"Ann"}"#);
    assert_eq!((signed.status, signed.body.as_str()), (201, r#"{"number":1,"by":"local"}"#));
    assert_eq!(server.get(GUESTS, &[]).body, r#"{"guests":["Ann"]}"#);
    // Its own setting, its own problem, and those of the kit.
    assert_eq!(server.ask("POST", GUESTS, &[], r#"{"name":"Hannah"}"#).code(), "name-too-long");
    assert_eq!(server.ask("POST", GUESTS, &[], r#"{"nam":"Ann"}"#).code(), "malformed");
    assert_eq!(server.ask("DELETE", GUESTS, &[], "").code(), "method-not-allowed");
    let document = server.get("/openapi.json", &[]).json();
    let operation = &document["paths"][GUESTS]["post"];
    assert_eq!(operation["operationId"], "signGuestbook");
    // What holds for every path stands there, too.
    let problem = &operation["responses"]["422"]["content"]["application/problem+json"]["schema"]["$ref"];
    assert_eq!(problem, "#/components/schemas/Problem");
    assert!(operation["responses"]["401"].is_object(), "{operation}");
    assert!(document["components"]["schemas"]["Signed"].is_object());
    // Formats are those that the applications of this server bring.
    let formats = &document["components"]["schemas"]["ChannelAsked"]["properties"]["format"]["enum"];
    #[cfg(feature = "market")]
    assert_eq!(formats, &serde_json::json!(["towpath", "cloud-events", "market"]));
    #[cfg(not(feature = "market"))]
    assert_eq!(formats, &serde_json::json!(["towpath", "cloud-events"]));
}

#[test]
fn its_paths_are_guarded_and_a_change_is_done_once() {
    let (viewer, operator) = (new_key("eve", "viewer"), new_key("bob", "operator"));
    let server = start(&format!("{}{}", viewer.toml, operator.toml));
    let body = r#"{"name":"Ann"}"#;
    assert_eq!(server.ask("POST", GUESTS, &[], body).code(), "unauthenticated");
    assert_eq!(server.get(GUESTS, &[]).code(), "unauthenticated");
    let reads = [("X-Api-Key", viewer.key.as_str())];
    assert_eq!(server.ask("POST", GUESTS, &reads, body).code(), "forbidden");
    let signs = [("X-Api-Key", operator.key.as_str()), ("Idempotency-Key", "visit-7")];
    let first = server.ask("POST", GUESTS, &signs, body);
    let again = server.ask("POST", GUESTS, &signs, body);
    assert_eq!((first.status, again.status), (201, 200), "{first:?} {again:?}");
    assert_eq!((first.body.as_str(), &again.body), (r#"{"number":1,"by":"bob"}"#, &first.body));
    assert_eq!(server.get(GUESTS, &reads).body, r#"{"guests":["Ann"]}"#);
}

#[test]
fn switched_off_its_paths_say_so_and_others_are_there() {
    let server = start("[guestbook]\nenabled = false\n");
    assert_eq!(server.get(GUESTS, &[]).code(), "guestbook-disabled");
    assert_eq!(server.ask("POST", GUESTS, &[], r#"{"name":"Ann"}"#).code(), "guestbook-disabled");
    assert_eq!(server.ask("DELETE", GUESTS, &[], "").code(), "method-not-allowed");
    assert!(server.get("/openapi.json", &[]).json()["paths"][GUESTS]["get"].is_object());
    #[cfg(feature = "market")]
    assert_eq!(server.get("/api/market/products", &[]).status, 200);
}

#[test]
fn it_has_commands_and_a_section_like_ours() {
    let server = start("");
    let url = format!("http://{}", server.address);
    let signed = says(&["guestbook", "sign", "Ann", "--server", &url], "");
    assert!(signed.contains("guest 1"), "{signed}");
    assert_eq!(server.get(GUESTS, &[]).body, r#"{"guests":["Ann"]}"#);
    let section = "[guestbook]\nlongest-name = 5\n";
    let rules = says(&["guestbook", "rules", "--config", "towpath.toml"], section);
    assert!(rules.contains("a name has at most 5 letters"), "{rules}");
    let shown = says(&["config", "--config", "towpath.toml"], section);
    assert!(shown.contains("[guestbook]\nenabled = true # default\nlongest-name = 5 # file\n"), "{shown}");
    let wrong = says(&["config", "--config", "towpath.toml"], "[guestbook]\nlongest = 5\n");
    assert!(wrong.contains("[guestbook] in the configuration file is wrong"), "{wrong}");
    let unknown = says(&["config", "--config", "towpath.toml"], "gestbook = 1\n");
    assert!(unknown.contains("line 1") && unknown.contains("`guestbook`"), "{unknown}");
    let help = says(&["--help"], "");
    assert!(help.contains("guestbook   Who was here"), "{help}");
}
