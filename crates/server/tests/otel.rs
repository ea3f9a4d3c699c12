//! Traces of the real binary, as a collector gets them.

#![cfg(feature = "otel")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use towpath::{Aggregate, Context, Refusal, Towpath};

#[derive(Default, Serialize, Deserialize)]
struct Parcel;

#[derive(Serialize, Deserialize, towpath::Command)]
enum ParcelCommand {
    #[serde(rename = "parcel.send")]
    Send,
}

#[derive(Serialize, Deserialize, towpath::Event)]
enum ParcelEvent {
    #[serde(rename = "parcel.sent")]
    Sent,
}

#[derive(Debug, PartialEq, thiserror::Error)]
enum Never {}

impl Refusal for Never {
    fn code(&self) -> &'static str {
        match *self {}
    }
}

impl Aggregate for Parcel {
    const KIND: &'static str = "parcel";
    type Command = ParcelCommand;
    type Event = ParcelEvent;
    type Refusal = Never;

    fn decide(&self, _: ParcelCommand, _: &Context) -> Result<Vec<ParcelEvent>, Never> {
        Ok(vec![ParcelEvent::Sent])
    }

    fn evolve(self, _: &ParcelEvent) -> Self {
        self
    }
}

/// A collector: takes what is posted to it, and says where to.
fn collector() -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, sender) = (stream.unwrap(), sender.clone());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let (mut request, mut length) = (String::new(), 0);
                    if reader.read_line(&mut request).unwrap_or(0) == 0 {
                        return;
                    }
                    loop {
                        let mut header = String::new();
                        reader.read_line(&mut header).unwrap();
                        if header.trim().is_empty() {
                            break;
                        }
                        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                            length = value.trim().parse().unwrap();
                        }
                    }
                    let mut body = vec![0; length];
                    reader.read_exact(&mut body).unwrap();
                    let _ = sender.send((request, body));
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                }
            });
        }
    });
    (address, received)
}

/// An event that the binary publishes arrives at the collector as a span with its ids, under the name that was given.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_collector_gets_spans_with_the_ids_of_the_event() {
    let (endpoint, received) = collector();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("towpath.db").display());
    let config = folder.path().join("towpath.toml");
    std::fs::write(
        &config,
        "[[channel]]\nname = \"parcels\"\nevents = [\"parcel.*\"]\nexchange = \"parcels\"\nstart = \"first\"\n\
         [topology]\nexchanges = [{ name = \"parcels\", kind = \"topic\" }]\n\
         queues = [{ name = \"all\" }]\nbindings = [{ queue = \"all\", exchange = \"parcels\", routing-key = \"#\" }]\n",
    )
    .unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_towpath"))
        .args(["--store", &store, "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
        .env("OTEL_SERVICE_NAME", "parcels-of-this-test")
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let says = lines.by_ref().map_while(Result::ok).find(|line| line.contains("listens on"));
    let ended = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>().join("\n"));
    if says.is_none() {
        panic!("the server did not start: {}", ended.join().unwrap());
    }

    let app = Towpath::builder().store(&store).aggregate::<Parcel>().start().await.unwrap();
    let sent =
        app.send::<Parcel>("parcel-1", ParcelCommand::Send).traced("trace-of-the-parcel").await.unwrap();
    let event_id = sent.events[0].event_id.to_string();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let (request, body) = received.recv_timeout(left).expect("the span did not come");
        assert!(request.starts_with("POST /v1/traces"), "{request}");
        // Texts stand in the message to the letter.
        let has = |text: &str| body.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(has("parcels-of-this-test"), "the service's name is with each batch");
        if has(&event_id) {
            for text in
                ["publish", "eventId", "traceId", "trace-of-the-parcel", "channel", "parcels", "Confirmed"]
            {
                assert!(has(text), "{text} is not in the span");
            }
            break;
        }
    }
    app.stop().await;
    server.kill().unwrap();
    server.wait().unwrap();
}
