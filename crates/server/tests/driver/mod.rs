//! A server as a process of its own, and a client that speaks HTTP to it byte by byte.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After which something that is waited for counts as stuck.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The binary, without what the tester's own shell says.
pub(crate) fn towpath() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    for (variable, _) in std::env::vars().filter(|(name, _)| name.starts_with("TOWPATH_")) {
        command.env_remove(variable);
    }
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    towpath().args(arguments).current_dir(folder.path()).output().unwrap()
}

/// A key that `towpath keys new` made, and what it said to configure.
pub(crate) struct Key {
    pub(crate) key: String,
    pub(crate) toml: String,
}

pub(crate) fn new_key(name: &str, role: &str) -> Key {
    let output = run(&["keys", "new", "--name", name, "--role", role]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let (key, toml) = text.split_once('\n').unwrap();
    Key { key: key.to_owned(), toml: toml.to_owned() }
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The code of a problem.
    pub(crate) fn code(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["requestId"].as_str(), Some(self.header("x-request-id")), "{self:?}");
        problem["code"].as_str().unwrap().to_owned()
    }
}

/// A running server in a folder of its own.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    pub(crate) folder: Arc<tempfile::TempDir>,
    log: Arc<Mutex<String>>,
    /// Reads the log until the process has ended.
    reader: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the binary on a free port of loopback.
    pub(crate) fn start(arguments: &[&str], config: &str) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let mut command = towpath();
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        Self::spawn(command, folder, config)
    }

    /// Starts a command that is a server, and waits until it says where it listens.
    pub(crate) fn spawn(mut command: Command, folder: Arc<tempfile::TempDir>, config: &str) -> Self {
        std::fs::write(folder.path().join("towpath.toml"), config).unwrap();
        let mut child = command
            .env("TOWPATH_CONFIG", "towpath.toml")
            // No alert becomes a fact among those that a test counts.
            .env("TOWPATH_ALERTS_EVERY", "1d")
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (sender, address) = std::sync::mpsc::channel();
        let (lines, kept) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&log));
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, url)) = line.split_once(" listens on ")
                    && let Some((_, address)) = url.split_once("://")
                {
                    let _ = sender.send(address.trim_end_matches('/').to_owned());
                }
                let mut log = kept.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let address = address.recv_timeout(PATIENCE);
        let address = address.unwrap_or_else(|_| panic!("it does not listen: {}", log.lock().unwrap()));
        let address = address.replace("0.0.0.0", "127.0.0.1");
        Self { child, address, folder, log, reader: Some(reader) }
    }

    pub(crate) fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask("GET", path, headers, "")
    }

    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.try_ask(method, path, headers, body).unwrap()
    }

    /// Asks a server that may end while it is asked.
    pub(crate) fn try_ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> std::io::Result<Answer> {
        ask(&self.address, method, path, headers, body)
    }

    /// What it has written to standard error so far; all of it once its end was waited for.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a power cut does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Tells it to stop, as a service manager does.
    pub(crate) fn terminate(&self) {
        let told = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
    }

    /// Waits until it has ended; answers its exit code, if it ended by itself.
    pub(crate) fn wait_for_code(&mut self) -> Option<i32> {
        self.end().code()
    }

    /// Waits until it has ended; answers whether well.
    pub(crate) fn wait(&mut self) -> bool {
        self.end().success()
    }

    fn end(&mut self) -> ExitStatus {
        let status = self.child.wait().unwrap();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        status
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks once, on a connection of its own.
pub(crate) fn ask(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> std::io::Result<Answer> {
    let mut stream = connect(address)?;
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let host = if headers.to_lowercase().contains("host: ") {
        String::new()
    } else {
        format!("Host: {address}\r\n")
    };
    let length = body.len();
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\n{kind}Content-Length: {length}\r\n{headers}\r\n"
    );
    // A server that has answered early does not read the rest.
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
    read_answer(&mut stream)
}

pub(crate) fn connect(address: &str) -> std::io::Result<TcpStream> {
    let address = address.to_socket_addrs()?.next().unwrap();
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Reads until the server closes the connection.
pub(crate) fn read_answer(stream: &mut TcpStream) -> std::io::Result<Answer> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            // The rest of a body that was not read resets the connection behind the answer.
            Err(_) if !bytes.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let broken = || std::io::Error::other(format!("no answer: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).ok_or_else(broken)?;
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers: BTreeMap<String, String> =
        headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    let whole = headers.get("content-length").is_none_or(|length| length.parse() == Ok(body.len()));
    if !whole && status != 304 && !body.is_empty() {
        return Err(broken());
    }
    Ok(Answer { status, headers, body: body.to_owned() })
}

/// Looks at a condition until it answers something.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not so after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
