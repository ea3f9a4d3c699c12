//! A peer of the test's own: a small HTTP server with a log, which can be told to misbehave.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A peer. It ends with the test.
pub struct FakePeer {
    pub url: String,
    world: Arc<Mutex<World>>,
    task: tokio::task::JoinHandle<()>,
}

/// What it is.
pub struct World {
    pub facts: Vec<Value>,
    pub page_size: u64,
    pub mood: Mood,
    /// The paths that were asked for, and the status of each answer.
    pub asked: Vec<(String, u16)>,
}

/// How it behaves.
#[derive(Clone)]
pub enum Mood {
    Well,
    /// A status, with further headers.
    Status(u16, &'static str),
    /// Another media type.
    Type(&'static str),
    /// Whatever it has, changed.
    Changed(fn(&str, &mut Value)),
    /// A page that does not end.
    Endless,
    /// Ends in the middle of an answer.
    CutOff,
}

impl FakePeer {
    pub async fn with(facts: u64, page_size: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let facts = (1..=facts).map(fact).collect();
        let world = World { facts, page_size, mood: Mood::Well, asked: Vec::new() };
        let world = Arc::new(Mutex::new(world));
        let served = world.clone();
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(answer(connection, served.clone()));
            }
        });
        Self { url, world, task }
    }

    pub fn change<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        change(&mut self.world.lock().unwrap())
    }

    /// Adds facts behind those it has.
    pub fn add(&self, count: u64) {
        self.change(|world| {
            let first = world.facts.len() as u64 + 1;
            world.facts.extend((first..first + count).map(fact));
        });
    }

    pub fn behave(&self, mood: Mood) {
        self.change(|world| world.mood = mood);
    }

    pub fn asked(&self) -> Vec<(String, u16)> {
        self.change(|world| world.asked.clone())
    }
}

impl Drop for FakePeer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The n-th fact of every such log; every third is about the same order.
pub fn fact(position: u64) -> Value {
    let (order, version) = (position % 3, (position - 1) / 3 + 1);
    json!({ "notificationId": position, "type": "order.noted", "occurredOn": "2026-01-01T00:00:00Z", "event": {
        "eventId": event_id(position), "eventType": "order.noted", "schemaVersion": 1,
        "aggregate": { "kind": "order", "id": format!("order-{order}") }, "aggregateVersion": version,
        "occurredAt": "2026-01-01T00:00:00Z", "correlationId": format!("flow-{position}"), "causationId": null,
        "traceId": null, "actorId": null, "tenantId": null, "payload": { "n": position } } })
}

pub fn event_id(position: u64) -> String {
    uuid::Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + u128::from(position)).to_string()
}

async fn answer(mut connection: TcpStream, world: Arc<Mutex<World>>) {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match connection.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => request.extend_from_slice(&buffer[..count]),
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let (response, endless) = {
        let mut world = world.lock().unwrap();
        let (status, response) = respond(&request, &world);
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        world.asked.push((path, status));
        (response, matches!(world.mood, Mood::Endless))
    };
    if connection.write_all(&response).await.is_err() {
        return;
    }
    if endless {
        while connection.write_all(&[b' '; 4096]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        return;
    }
    let _ = connection.shutdown().await;
}

fn respond(request: &str, world: &World) -> (u16, Vec<u8>) {
    let path = request.split(' ').nth(1).unwrap_or_default();
    let head = world.facts.len() as u64;
    let size = world.page_size;
    let low = match path.strip_prefix("/notifications").unwrap_or_default().strip_prefix('/') {
        None => (head.max(1) - 1) / size * size + 1,
        Some(id) => id.split(',').next().unwrap_or_default().parse().unwrap_or(0),
    };
    if low == 0 || low > head.max(1) {
        return (404, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec());
    }
    let high = low + size - 1;
    let archived = high < head;
    let facts: Vec<Value> =
        (low..=high.min(head)).rev().map(|at| world.facts[at as usize - 1].clone()).collect();
    let mut page = json!({
        "id": format!("{low},{high}"),
        "nextId": archived.then(|| format!("{},{}", high + 1, high + size)),
        "previousId": (low > 1).then(|| format!("{},{}", low - size, low - 1)),
        "archived": archived,
        "notifications": facts,
    });
    let mut media_type = "application/vnd.towpath.notifications+json";
    match &world.mood {
        Mood::Status(status, headers) => {
            let text = format!(
                "HTTP/1.1 {status} Whatever\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n"
            );
            return (*status, text.into_bytes());
        }
        Mood::Type(other) => media_type = other,
        Mood::Changed(change) => change(path, &mut page),
        Mood::CutOff => {
            let text =
                format!("HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: 1000\r\n\r\n{{");
            return (200, text.into_bytes());
        }
        Mood::Endless => {
            let text = format!("HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nConnection: close\r\n\r\n");
            return (200, text.into_bytes());
        }
        Mood::Well => {}
    }
    let body = page.to_string();
    let tag = format!("\"{}-{head}\"", body.len());
    if request.to_ascii_lowercase().contains(&format!("if-none-match: {tag}")) {
        return (
            304,
            format!("HTTP/1.1 304 Not Modified\r\nETag: {tag}\r\nConnection: close\r\n\r\n").into_bytes(),
        );
    }
    let text = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {media_type}\r\nETag: {tag}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    (200, text.into_bytes())
}
