//! Tokens of an issuer from the outside: good ones, and every way of being bad.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

mod driver;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use driver::{Server, new_key, run};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

/// The issuer's key and a stranger's, both made for these tests.
const ISSUERS_KEY: &str = "MC4CAQAwBQYDK2VwBCIEIBkVUTwzQuFmWPCjE62ElYJkdokc07IbWy2j8kO2IqRe";
const ISSUERS_PUBLIC_KEY: &str = "rb3XhwoO72cv_izWSua4SzjPFeWXKQ_EyvPwKoRgKag";
const STRANGERS_KEY: &str = "MC4CAQAwBQYDK2VwBCIEIO5ngO8hJvUq7g7DlKKagZOay/AOuwiqYIMAIVb9HPzC";

fn jwks() -> String {
    let key = json!({"kty": "OKP", "crv": "Ed25519", "kid": "k1", "use": "sig", "x": ISSUERS_PUBLIC_KEY});
    // A shared secret that was published by mistake must not open anything.
    let secret = json!({"kty": "oct", "kid": "secret", "k": URL_SAFE_NO_PAD.encode("shared")});
    json!({ "keys": [key, secret] }).to_string()
}

fn in_an_hour() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 3600
}

/// Claims that are accepted, with some changed; null takes one away.
fn claims(changes: Value) -> Value {
    let mut claims = json!({
        "iss": "https://id.example", "aud": "towpath", "sub": "zoe", "exp": in_an_hour(),
        "realm": {"roles": ["something", "operator"]},
    });
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

fn signed(claims: &Value, kid: Option<&str>, key: &str) -> String {
    let header = Header { kid: kid.map(str::to_owned), ..Header::new(Algorithm::EdDSA) };
    encode(&header, claims, &EncodingKey::from_ed_der(&STANDARD.decode(key).unwrap())).unwrap()
}

fn good(changes: Value) -> String {
    signed(&claims(changes), Some("k1"), ISSUERS_KEY)
}

fn config(jwks: &str) -> String {
    format!(
        "[access.jwt]\nissuer = \"https://id.example\"\naudience = \"towpath\"\njwks = \"{jwks}\"\n\
         role-claim = \"realm.roles\"\n"
    )
}

fn ask(server: &Server, method: &str, path: &str, token: &str) -> (u16, String) {
    let answer = server.ask(method, path, &[("Authorization", &format!("Bearer {token}"))], "{}");
    let code = if answer.status < 400 { String::new() } else { answer.code() };
    (answer.status, code)
}

#[test]
fn only_tokens_of_the_issuer_for_this_audience_and_this_time_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    std::fs::write(&file, jwks()).unwrap();
    let key = new_key("ci", "viewer");
    // A table that was opened stays so: the key comes first.
    let server = Server::start(&[], &format!("{}\n{}", key.toml, config(file.to_str().unwrap())));
    let events = |token: &str| ask(&server, "GET", "/api/events", token);
    assert_eq!(events(&good(json!({}))).0, 200);
    assert_eq!(events(&key.key).0, 200, "keys and tokens stand side by side");
    assert_eq!(
        ask(&server, "POST", "/api/commands", &good(json!({}))).1,
        "malformed",
        "an operator may change"
    );
    let viewer = good(json!({"realm": {"roles": ["viewer"]}}));
    assert_eq!(events(&viewer).0, 200);
    assert_eq!(ask(&server, "POST", "/api/commands", &viewer), (403, "forbidden".to_owned()));
    for no_role in
        [json!({"realm": null}), json!({"realm": {"roles": ["root"]}}), json!({"realm": "operator"})]
    {
        assert_eq!(events(&good(no_role)), (403, "forbidden".to_owned()));
    }

    let unsigned = |header: Value| {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.", part(&header), part(&claims(json!({}))))
    };
    let by_secret = |secret: &[u8], kid: &str| {
        let header = Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::HS256) };
        encode(&header, &claims(json!({})), &EncodingKey::from_secret(secret)).unwrap()
    };
    let mut tampered = good(json!({}));
    let (head, signature) = tampered.rsplit_once('.').unwrap();
    let (head, _) = head.rsplit_once('.').unwrap();
    let payload = URL_SAFE_NO_PAD.encode(claims(json!({"realm": {"roles": ["admin"]}})).to_string());
    tampered = format!("{head}.{payload}.{signature}");
    let public = URL_SAFE_NO_PAD.decode(ISSUERS_PUBLIC_KEY).unwrap();
    for (what, token) in [
        ("expired", good(json!({"exp": in_an_hour() - 3600 - 120}))),
        ("for ever", good(json!({"exp": null}))),
        ("not yet", good(json!({"nbf": in_an_hour()}))),
        ("of another issuer", good(json!({"iss": "https://evil.example"}))),
        ("of no issuer", good(json!({"iss": null}))),
        ("for another audience", good(json!({"aud": "other"}))),
        ("for nobody", good(json!({"aud": null}))),
        ("of nobody", good(json!({"sub": null}))),
        ("signed by a stranger", signed(&claims(json!({})), Some("k1"), STRANGERS_KEY)),
        ("with an unknown key", signed(&claims(json!({})), Some("k9"), ISSUERS_KEY)),
        ("with no key named among several", signed(&claims(json!({})), None, ISSUERS_KEY)),
        ("with the algorithm none", unsigned(json!({"alg": "none", "typ": "JWT", "kid": "k1"}))),
        ("with the algorithm None", unsigned(json!({"alg": "None", "typ": "JWT", "kid": "k1"}))),
        ("unsigned", unsigned(json!({"alg": "EdDSA", "typ": "JWT", "kid": "k1"}))),
        ("with the public key as a secret", by_secret(&public, "k1")),
        ("with a published secret", by_secret(b"shared", "secret")),
        ("changed behind its signature", tampered),
        ("no token", "eyJ.eyJ.x".to_owned()),
        ("nothing", String::new()),
    ] {
        assert_eq!(events(&token), (401, "unauthenticated".to_owned()), "a token that is {what}");
    }
}

/// An issuer that serves its keys and counts how often it is asked.
fn issuer(answer: impl Fn() -> Option<String> + Send + 'static) -> (String, Arc<AtomicU32>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            count.fetch_add(1, Ordering::SeqCst);
            let _ = match answer() {
                Some(body) => {
                    write!(
                        stream,
                        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                        body.len()
                    )
                }
                None => write!(stream, "HTTP/1.1 500 Oh\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
            };
        }
    });
    (url, asked)
}

#[test]
fn keys_are_fetched_from_the_issuer_and_not_more_often_than_needed() {
    let (url, asked) = issuer(|| Some(jwks()));
    let server = Server::start(&[], &config(&url));
    assert_eq!(
        asked.load(Ordering::SeqCst),
        0,
        "an issuer that is away does not keep the server from starting"
    );
    for _ in 0..5 {
        assert_eq!(ask(&server, "GET", "/api/events", &good(json!({}))).0, 200);
    }
    for kid in ["k2", "k3", "k4"] {
        let unknown = signed(&claims(json!({})), Some(kid), ISSUERS_KEY);
        assert_eq!(ask(&server, "GET", "/api/events", &unknown).0, 401);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1, "made-up key ids must not make the server ask the issuer");
}

/// An issuer that takes long to answer, from its second answer on, holds up nobody whose key is known.
#[test]
fn a_slow_issuer_holds_up_only_who_needs_its_answer() {
    let gate = Arc::new(std::sync::Barrier::new(2));
    let (held, answers) = (Arc::clone(&gate), AtomicU32::new(0));
    let (url, asked) = issuer(move || {
        if answers.fetch_add(1, Ordering::SeqCst) == 0 {
            held.wait();
        }
        Some(jwks())
    });
    let key = new_key("ci", "viewer");
    let server = Arc::new(Server::start(&[], &format!("{}\n{}", key.toml, config(&url))));
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || ask(&server, "GET", "/api/events", &good(json!({}))).0)
        })
        .collect();
    driver::eventually("the issuer is asked", || (asked.load(Ordering::SeqCst) == 1).then_some(()));
    // While it thinks, everybody else is served.
    for _ in 0..5 {
        assert_eq!(ask(&server, "GET", "/api/events", &key.key).0, 200);
    }
    gate.wait();
    for waiting in waiting {
        assert_eq!(waiting.join().unwrap(), 200, "all of them have the one answer");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// Each that waits has a place among the requests that run, whoever has sent it.
#[test]
fn few_wait_for_the_issuer_at_a_time() {
    let gate = Arc::new(std::sync::Barrier::new(2));
    let held = Arc::clone(&gate);
    let (url, asked) = issuer(move || {
        held.wait();
        Some(jwks())
    });
    let server = Arc::new(Server::start(&[], &config(&url)));
    let (sender, answers) = std::sync::mpsc::channel();
    for _ in 0..40 {
        let (server, sender) = (Arc::clone(&server), sender.clone());
        std::thread::spawn(move || sender.send(ask(&server, "GET", "/api/events", &good(json!({})))));
    }
    // All but 16 are answered while the issuer still thinks.
    for _ in 0..24 {
        let answer = answers.recv_timeout(driver::PATIENCE).unwrap();
        assert_eq!(answer, (503, "issuer-unavailable".to_owned()));
    }
    gate.wait();
    for _ in 0..16 {
        assert_eq!(answers.recv_timeout(driver::PATIENCE).unwrap().0, 200, "all of them have the one answer");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// The issuer takes its key back, and then is away: in either case nobody is believed much longer by what it said before.
#[test]
fn a_key_that_was_taken_back_ends_and_so_do_keys_that_nobody_confirms() {
    let mode = Arc::new(AtomicU32::new(0));
    let in_mode = Arc::clone(&mode);
    let (url, _) = issuer(move || match in_mode.load(Ordering::SeqCst) {
        0 => Some(jwks()),
        1 => Some(json!({ "keys": [] }).to_string()),
        _ => None,
    });
    let short = format!("{}keys-for = \"800ms\"\n", config(&url));
    let server = Server::start(&[], &short);
    let token = good(json!({}));
    let answers = |expected: (u16, &str)| {
        driver::eventually(&format!("{expected:?}"), || {
            let (status, code) = ask(&server, "GET", "/api/events", &token);
            ((status, code.as_str()) == expected).then_some(())
        });
    };
    answers((200, ""));
    mode.store(1, Ordering::SeqCst);
    answers((401, "unauthenticated"));
    mode.store(0, Ordering::SeqCst);
    answers((200, ""));
    mode.store(2, Ordering::SeqCst);
    answers((503, "issuer-unavailable"));
    mode.store(0, Ordering::SeqCst);
    answers((200, ""));
}

/// A stream of somebody whose token holds for an hour must show it again when keys might have been taken back.
#[test]
fn a_stream_ends_when_its_key_must_be_seen_again() {
    let (url, _) = issuer(|| Some(jwks()));
    let server = Server::start(&[], &format!("{}keys-for = \"2s\"\n", config(&url)));
    let mut stream = driver::connect(&server.address).unwrap();
    let (address, token) = (&server.address, good(json!({})));
    write!(
        stream,
        "GET /api/events/stream HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    .unwrap();
    let answer = driver::read_answer(&mut stream).unwrap();
    assert!(answer.status == 200 && answer.body.contains("token-expired"), "{answer:?}");
}

#[test]
fn keys_are_fetched_over_plain_http_from_this_machine_only() {
    for jwks in ["http://id.example/keys", "http://192.0.2.1/keys", "http://localhost.evil.example/keys"] {
        let flags = ["--access-jwt-issuer", "a", "--access-jwt-audience", "b", "--access-jwt-jwks", jwks];
        let output = run(&flags);
        let says = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), says.contains("https")), (Some(2), true), "{says}");
    }
    for url in
        ["http://localhost:1/keys", "http://127.0.0.1:1/keys", "http://[::1]:1/keys", "https://id.example/"]
    {
        let server = Server::start(&[], &config(url));
        assert_eq!(server.get("/healthz", &[]).status, 200, "{url}");
    }
}

fn certificate(name: &str) -> String {
    format!("{}/tests/certificates/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// An issuer behind a certificate of a private authority.
fn issuer_with_tls() -> String {
    use rustls::pki_types::pem::PemObject as _;
    let chain = rustls::pki_types::CertificateDer::from_pem_file(certificate("one.pem")).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::from_pem_file(certificate("one.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    let tls = Arc::new(tls);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/keys", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut connection = rustls::ServerConnection::new(Arc::clone(&tls)).unwrap();
            let mut stream = rustls::Stream::new(&mut connection, &mut stream);
            // Who does not trust the certificate hangs up.
            if stream.read(&mut [0; 4096]).is_ok() {
                let body = jwks();
                let head =
                    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(format!("{head}{body}").as_bytes());
                let _ = stream.flush();
            }
        }
    });
    url
}

#[test]
fn the_issuers_server_may_have_a_private_authority() {
    let url = issuer_with_tls();
    let server = Server::start(&[], &format!("{}ca = \"{}\"\n", config(&url), certificate("ca.pem")));
    assert_eq!(ask(&server, "GET", "/api/events", &good(json!({}))).0, 200, "{}", server.log());
    let server = Server::start(&[], &config(&url));
    assert_eq!(ask(&server, "GET", "/api/events", &good(json!({}))).1, "issuer-unavailable");
    let output = run(&[
        "--access-jwt-issuer",
        "a",
        "--access-jwt-audience",
        "b",
        "--access-jwt-jwks",
        &url,
        "--access-jwt-ca",
        "nowhere.pem",
    ]);
    let says = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), says.contains("nowhere.pem")), (Some(2), true), "{says}");
}

#[test]
fn a_stream_ends_when_its_token_does_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jwks.json");
    std::fs::write(&file, jwks()).unwrap();
    let server = Server::start(&[], &config(file.to_str().unwrap()));
    // It has run out already, and is accepted for half a minute more: clocks differ.
    let nearly_over = good(json!({"exp": in_an_hour() - 3600 - 27}));
    let mut stream = driver::connect(&server.address).unwrap();
    write!(
        stream,
        "GET /api/events/stream HTTP/1.0\r\nHost: {}\r\nAuthorization: Bearer {nearly_over}\r\n\r\n",
        server.address
    )
    .unwrap();
    let answer = driver::read_answer(&mut stream).unwrap();
    assert_eq!(answer.status, 200);
    let last = answer.body.split("event: dropped").nth(1).unwrap_or_else(|| panic!("{answer:?}"));
    assert!(last.contains("token-expired") && last.contains("resumeAfter"), "{answer:?}");
    driver::eventually("and it is over", || {
        (ask(&server, "GET", "/api/events", &nearly_over).0 == 401).then_some(())
    });
}

#[test]
fn an_issuer_that_is_away_is_said_to_be() {
    let (url, _) = issuer(|| None);
    let server = Server::start(&[], &config(&url));
    assert_eq!(ask(&server, "GET", "/api/events", &good(json!({}))), (503, "issuer-unavailable".to_owned()));
    assert_eq!(server.get("/api/events", &[]).status, 401);
}

#[test]
fn keys_that_cannot_be_read_are_told_at_the_start() {
    let flags =
        ["--access-jwt-issuer", "a", "--access-jwt-audience", "b", "--access-jwt-jwks", "nowhere.json"];
    let output = run(&flags);
    let says = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), says.contains("nowhere.json")), (Some(2), true), "{says}");
    // A URL that is none may be one with a password in it.
    for jwks in ["https://me:s3cret@[id.example/keys", "https://me:s3c ret@id.example", "me:s3cret@nowhere"] {
        let flags = ["--access-jwt-issuer", "a", "--access-jwt-audience", "b", "--access-jwt-jwks", jwks];
        let output = run(&flags);
        let says = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), says.contains("s3c")), (Some(2), false), "{says}");
    }
}
