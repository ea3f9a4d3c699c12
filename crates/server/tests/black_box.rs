//! The binary from the outside: started as a user starts it, spoken to over HTTP.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

fn towpath() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    // What the tester's own shell says must not reach the binary.
    for variable in ["TOWPATH_LISTEN", "TOWPATH_STORE", "TOWPATH_BROKER", "TOWPATH_CONFIG"] {
        command.env_remove(variable);
    }
    command
}

/// A running server in a folder of its own.
struct Server {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts it on a free port and waits until it says where it listens.
    fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = towpath()
            .args(arguments)
            .args(["--listen", "127.0.0.1:0"])
            .current_dir(folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("listens on http://")?.1.trim_end_matches('/').to_owned()))
            .expect("the server says where it listens");
        Self { child, address, folder }
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    /// Tells it to stop, as a service manager does, and waits until it has.
    fn stop(mut self) -> bool {
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
        self.child.wait().unwrap().success()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    towpath().args(arguments).current_dir(folder.path()).output().unwrap()
}

fn refused(arguments: &[&str], exit_code: i32, says: &str) {
    let output = run(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit_code), "{text}");
    assert!(text.contains(says), "{text}");
}

#[test]
fn without_arguments_it_serves_on_the_embedded_default() {
    let server = Server::start(&[]);
    let (status, body) = server.get("/healthz");
    assert_eq!(status, 200);
    assert!(body.contains(r#""name":"towpath""#), "{body}");
    assert_eq!(server.get("/readyz").0, 200);
    assert!(server.get("/").1.contains("every fact arrives"));
    assert_eq!(server.get("/nowhere").0, 404);
    assert!(server.folder.path().join("data/towpath.db").exists());
    assert!(server.stop(), "a server that is told to stop ends well");
}

#[test]
fn serve_is_the_same_by_name() {
    let server = Server::start(&["serve", "--store", "sqlite://other.db"]);
    assert_eq!(server.get("/healthz").0, 200);
    assert!(server.folder.path().join("other.db").exists());
}

#[test]
fn a_second_server_on_the_same_port_says_so() {
    let server = Server::start(&[]);
    refused(&["--listen", &server.address], 3, "cannot listen on");
}

#[test]
fn wrong_urls_are_refused_with_what_to_write_instead() {
    refused(&["--store", "oracle://host"], 2, "postgres://");
    refused(&["--broker", "pigeon:"], 2, "local:");
    if cfg!(feature = "kafka") {
        refused(&["--broker", "kafka://me:s3cret@localhost:9092"], 2, "no password");
    } else {
        refused(&["--broker", "kafka://localhost:9092"], 2, "--features kafka");
    }
    refused(&["--listen", "everywhere"], 2, "127.0.0.1:7400");
}

#[test]
fn a_database_that_is_not_there_is_a_clear_error() {
    // Port 1 is not listened on.
    let arguments = ["--listen", "127.0.0.1:0", "--store", "postgres://u:s3cret@127.0.0.1:1/db"];
    refused(&arguments, 3, "store-unavailable");
    let output = run(&arguments);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("s3cret"), "a password was shown");
}

#[test]
fn without_access_control_it_serves_loopback_only() {
    refused(&["--listen", "0.0.0.0:0"], 2, "reachable from other machines");
}

#[test]
fn migrate_says_what_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let migrate = || towpath().arg("migrate").current_dir(folder.path()).output().unwrap().stdout;
    assert_eq!(migrate(), b"migrated to version 1\n");
    assert_eq!(migrate(), b"the database is up to date\n");
}
