//! HTTPS by the server itself, from the outside: the binary is started with a certificate and spoken to.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod driver;

use std::io::{Read, Write};
use std::process::Output;

use driver::{Server, connect, eventually, run, towpath};

fn certificate(name: &str) -> String {
    format!("{}/tests/certificates/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn with_tls(arguments: &[&str]) -> Server {
    let (cert, key) = (certificate("one.pem"), certificate("one.key"));
    Server::start(&[&["--tls-cert", &cert, "--tls-key", &key], arguments].concat(), "")
}

fn command_line(server: &Server, arguments: &[&str]) -> Output {
    towpath().args(arguments).env("TOWPATH_SERVER", format!("https://{}", server.address)).output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_speaks_https_by_itself() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = tokio::task::spawn_blocking(|| with_tls(&[])).await.unwrap();
    assert!(server.log().contains("listens on https://"), "{}", server.log());
    let authority = std::fs::read(certificate("ca.pem")).unwrap();
    let authority = reqwest::Certificate::from_pem(&authority).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([authority]).build().unwrap();
    let url = |path: &str| format!("https://{}{path}", server.address);
    assert_eq!(client.get(url("/healthz")).send().await.unwrap().status(), 200);
    let own = format!("https://{}", server.address);
    let events = client.get(url("/api/events")).header("origin", own).send().await.unwrap();
    assert_eq!(events.status(), 200, "a page of the server itself");
    assert!(events.text().await.unwrap().contains("\"events\""));
    let command = client.post(url("/api/commands")).header("content-type", "application/json");
    let refused = command.body(r#"{"type":"a.b","aggregateId":"1","payload":{}}"#).send().await.unwrap();
    assert_eq!(refused.status(), 422);
    // A large answer comes whole, over many records.
    let document = client.get(url("/openapi.json")).send().await.unwrap().bytes().await.unwrap();
    assert!(serde_json::from_slice::<serde_json::Value>(&document).is_ok());
    // Who trusts other authorities, or speaks plain HTTP, is not served.
    let stranger = reqwest::Client::builder().build().unwrap();
    assert!(stranger.get(url("/healthz")).send().await.is_err());
    let plain = format!("http://{}/healthz", server.address);
    assert!(stranger.get(plain).send().await.is_err());
}

#[test]
fn the_command_line_trusts_the_authority_that_it_is_given() {
    let server = with_tls(&[]);
    let authority = certificate("ca.pem");
    let listed = command_line(&server, &["commands", "ls", "--ca", &authority, "--json"]);
    assert!(listed.status.success(), "{listed:?}");
    assert!(String::from_utf8_lossy(&listed.stdout).contains("commands"), "{listed:?}");
    let untrusted = command_line(&server, &["commands", "ls"]);
    let says = String::from_utf8_lossy(&untrusted.stderr).into_owned();
    assert_eq!((untrusted.status.code(), says.contains("--ca")), (Some(3), true), "{says}");
    let key = certificate("one.key");
    for wrong in ["nowhere.pem", key.as_str()] {
        let refused = command_line(&server, &["commands", "ls", "--ca", wrong]);
        let says = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!((refused.status.code(), says.contains(wrong)), (Some(2), true), "{says}");
    }
}

#[test]
fn a_handshake_that_does_not_come_is_not_waited_for() {
    let mut server = with_tls(&["--limits-header-timeout", "300ms", "--limits-connections", "1"]);
    let mut silent = connect(&server.address).unwrap();
    let mut wrong = connect(&server.address).unwrap();
    wrong.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
    for stream in [&mut silent, &mut wrong] {
        let mut rest = Vec::new();
        // An alert, perhaps; and then the end, not the end of the test's patience.
        let ended = stream.read_to_end(&mut rest);
        assert!(
            ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
        );
        assert!(!rest.starts_with(b"HTTP/"));
    }
    // The one place for connections is free again.
    let authority = certificate("ca.pem");
    eventually("it serves", || {
        command_line(&server, &["commands", "ls", "--ca", &authority]).status.success().then_some(())
    });
    server.terminate();
    assert!(server.wait(), "{}", server.log());
}

#[test]
fn what_is_no_certificate_with_its_key_is_told_at_the_start() {
    let (one, two) = (certificate("one.pem"), certificate("two.key"));
    for (cert, key, says) in [
        ("nowhere.pem", two.as_str(), "nowhere.pem"),
        (one.as_str(), "nowhere.key", "nowhere.key"),
        (one.as_str(), two.as_str(), "together"),
        (two.as_str(), two.as_str(), "no certificates"),
        (one.as_str(), one.as_str(), "no private key"),
    ] {
        let output = run(&["--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.contains(says)), (Some(2), true), "{said}");
    }
    let output = run(&["--listen", "127.0.0.1:0", "--tls-cert", &one]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.contains("tls.key")), (Some(2), true), "{said}");
}

#[cfg(feature = "follow")]
#[test]
fn a_follower_trusts_the_authority_that_it_is_given() {
    let server = with_tls(&[]);
    let (url, authority) = (format!("https://{}", server.address), certificate("ca.pem"));
    let followed = run(&["follow", &url, "--once", "--ca", &authority]);
    let says = String::from_utf8_lossy(&followed.stderr).into_owned();
    assert!(followed.status.success(), "{says}");
    let refused = run(&["follow", &url, "--once", "--ca", &certificate("one.key")]);
    let says = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.code(), says.contains("no certificates")), (Some(2), true), "{says}");
}
