//! An API server that plays what it is told, an answer per request, and keeps what it was asked.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use towpath_hive::gateway::kubernetes::{Credentials, KubernetesGateway, KubernetesSettings};

/// How long the gateway of these tests waits for an answer.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The token in the kubeconfig of these tests.
pub(crate) const TOKEN: &str = "the-token-of-the-test";

/// What is played.
pub(crate) enum Play {
    /// An answer with a JSON body.
    Json(u16, Value),
    /// An answer with another body.
    Text(u16, &'static str),
    /// It takes no more requests for so long.
    Busy(&'static str),
    /// Lines of a watch, and how it ends.
    Watch(Vec<Value>, End),
    /// The connection ends without an answer.
    Cut,
    /// There is no answer, and the connection stays.
    Silence,
    /// An answer with a JSON body that takes its time.
    Slow(Duration, Value),
}

/// How a watch ends.
pub(crate) enum End {
    /// As the server ends it after its time.
    Orderly,
    /// In the middle of a line.
    Cut,
    /// Not at all.
    Never,
}

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Value,
}

/// The server.
pub(crate) struct PlayedServer {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    plays: Arc<Mutex<VecDeque<Play>>>,
    _folder: tempfile::TempDir,
    kubeconfig: std::path::PathBuf,
}

impl PlayedServer {
    pub(crate) async fn with(plays: impl IntoIterator<Item = Play>) -> (Self, KubernetesGateway) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "played", "cluster": { "server": format!("http://{address}") } }],
            "users": [{ "name": "hive", "user": { "token": TOKEN } }],
            "contexts": [{ "name": "here", "context": { "cluster": "played", "user": "hive" } }],
            "current-context": "here",
        });
        std::fs::write(&kubeconfig, content.to_string()).unwrap();
        let server = Self {
            address,
            asked: Arc::default(),
            plays: Arc::new(Mutex::new(plays.into_iter().collect())),
            _folder: folder,
            kubeconfig,
        };
        let (asked, plays) = (server.asked.clone(), server.plays.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(play(stream, asked.clone(), plays.clone()));
            }
        });
        let gateway = KubernetesGateway::connect(server.settings()).await.unwrap();
        (server, gateway)
    }

    pub(crate) fn settings(&self) -> KubernetesSettings {
        KubernetesSettings {
            credentials: Credentials::Kubeconfig { path: self.kubeconfig.clone(), context: None },
            call_timeout: CALL_TIMEOUT,
            ..KubernetesSettings::default()
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn also(&self, play: Play) {
        self.plays.lock().unwrap().push_back(play);
    }

    /// What was asked, in order. Everything that was to be played was.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        assert!(self.plays.lock().unwrap().is_empty(), "not everything was asked for");
        self.asked.lock().unwrap().clone()
    }

    /// What was asked, in a word each.
    pub(crate) fn methods(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.method).collect()
    }
}

/// The body of an answer that says no, as an API server writes it.
pub(crate) fn no(code: u16, reason: &str, details: Value) -> Play {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("played {reason}"), "reason": reason, "details": details, "code": code,
    });
    Play::Json(code, body)
}

/// There is no such service.
pub(crate) fn no_service() -> Play {
    no(404, "NotFound", json!({ "name": "cart", "group": "serving.knative.dev", "kind": "services" }))
}

async fn play(mut stream: TcpStream, asked: Arc<Mutex<Vec<Asked>>>, plays: Arc<Mutex<VecDeque<Play>>>) {
    let Some(mut request) = read(&mut stream).await else { return };
    if request.method == "CONNECT" {
        // As a proxy that leads to this very server.
        asked.lock().unwrap().push(request);
        let _ = stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await;
        let Some(within) = read(&mut stream).await else { return };
        request = within;
    }
    asked.lock().unwrap().push(request);
    let next = plays.lock().unwrap().pop_front();
    let play = next.unwrap_or(Play::Text(500, "nothing is left to be played"));
    let retry_after = match play {
        Play::Busy(retry_after) => format!("retry-after: {retry_after}\r\n"),
        _ => String::new(),
    };
    let (code, kind, body) = match play {
        Play::Busy(_) => (429, "text/plain", "not now".to_owned()),
        Play::Json(code, value) => (code, "application/json", value.to_string()),
        Play::Text(code, text) => (code, "text/plain", text.to_owned()),
        Play::Slow(after, value) => {
            tokio::time::sleep(after).await;
            (200, "application/json", value.to_string())
        }
        Play::Cut => return,
        Play::Silence => return hold(&mut stream).await,
        Play::Watch(lines, end) => return play_watch(stream, lines, end).await,
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {code} Played\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n{retry_after}connection: close\r\n\r\n{body}"
    );
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

async fn play_watch(mut stream: TcpStream, lines: Vec<Value>, end: End) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\
                connection: close\r\n\r\n";
    let mut answer = head.to_owned();
    for line in lines {
        let line = format!("{line}\n");
        answer.push_str(&format!("{:x}\r\n{line}\r\n", line.len()));
    }
    answer.push_str(match end {
        End::Orderly => "0\r\n\r\n",
        End::Cut => "ff\r\n{\"type\":\"MODIF",
        End::Never => "",
    });
    let _ = stream.write_all(answer.as_bytes()).await;
    match end {
        End::Never => hold(&mut stream).await,
        End::Orderly | End::Cut => {
            let _ = stream.shutdown().await;
        }
    }
}

/// Until the client goes.
async fn hold(stream: &mut TcpStream) {
    let mut rest = [0; 64];
    while matches!(stream.read(&mut rest).await, Ok(1..)) {}
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap().split(' ');
    let (method, target) = (first.next().unwrap().to_owned(), first.next().unwrap());
    let headers: BTreeMap<String, String> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    while bytes.len() < head_end + 4 + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let body = &bytes[head_end + 4..];
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(body).unwrap() };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let query = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_owned(), value.replace("%2F", "/").replace("%3D", "="))
    });
    Some(Asked { method, path: path.to_owned(), query: query.collect(), headers, body })
}
