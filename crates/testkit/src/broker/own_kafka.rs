//! A Kafka broker that belongs to one test, so that it can be cut off, stopped or ended.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use crate::store::waiting::eventually;

/// A broker (nisshi) that keeps everything in memory and ends with its test.
pub struct OwnKafka {
    process: Child,
}

impl OwnKafka {
    /// The program, if `TOWPATH_TEST_KAFKA_PROGRAM` has its `file://` URL.
    #[must_use]
    pub fn program() -> Option<String> {
        let url = crate::under_control("TOWPATH_TEST_KAFKA_PROGRAM")?;
        Some(url.trim_start_matches("file://").to_owned())
    }

    /// A port that nobody listens on.
    #[must_use]
    pub fn free_port() -> u16 {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        listener.expect("a free port").port()
    }

    /// Starts one and waits until it listens. It tells its clients where to connect to: behind a proxy, that is the
    /// proxy's address.
    pub async fn start(program: &str, port: u16, advertised: SocketAddr) -> Self {
        Self::start_with(program, port, advertised, &[]).await
    }

    /// The same, with more arguments for the program.
    pub async fn start_with(program: &str, port: u16, advertised: SocketAddr, more: &[&str]) -> Self {
        let mut server = Command::new(program);
        server
            .arg("broker")
            .args(["--listener-url", &format!("tcp://127.0.0.1:{port}")])
            .args(["--advertised-listener-url", &format!("tcp://{advertised}")])
            .args(["--storage-engine", "memory://nisshi/"])
            .args(["--group-initial-rebalance-delay", "100ms"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let own = Self { process: server.spawn().expect("the broker's program") };
        eventually("the broker listening", || async {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()
        })
        .await;
        own
    }

    /// Stops it where it stands: it takes connections, and answers nothing. What it holds stays.
    pub fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// `kill -9`.
    pub fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.process), signal)
            .expect("the broker takes signals");
    }
}

impl Drop for OwnKafka {
    fn drop(&mut self) {
        self.end();
    }
}
