//! A TCP proxy between a client and its server that can hold back bytes and cut connections.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How much is read at once.
const BUFFER: usize = 64 * 1024;

/// Forwards everything until it is told otherwise. Dropped, it cuts every connection and stops listening.
pub struct TcpProxy {
    address: SocketAddr,
    rules: Arc<watch::Sender<Rules>>,
    seen: Arc<watch::Sender<Seen>>,
    listening: JoinHandle<()>,
}

/// What the proxy has seen so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Connections that were accepted.
    pub connections: u64,
    /// Bytes that were forwarded to the server.
    pub to_server: u64,
    /// Bytes that the server sent, forwarded or held.
    pub from_server: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Rules {
    hold_requests: bool,
    hold_answers: bool,
    refuse: bool,
    /// Connections made under an older number are cut.
    generation: u64,
    /// Connections up to this number are left alone by both sides.
    stranded: u64,
}

impl TcpProxy {
    /// Listens on a free port of this machine, for a server such as `127.0.0.1:5672`.
    ///
    /// # Panics
    /// When no port can be had.
    pub async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the port's number");
        let rules = Arc::new(watch::Sender::new(Rules::default()));
        let seen = Arc::new(watch::Sender::new(Seen::default()));
        let listening =
            tokio::spawn(listen(listener, server.to_owned(), Arc::clone(&rules), Arc::clone(&seen)));
        Self { address, rules, seen, listening }
    }

    /// In front of the server of a URL such as `postgres://user@127.0.0.1:5432/database`; answers the URL that leads
    /// through it, too.
    ///
    /// # Panics
    /// When the URL has no path, or no port can be had.
    pub async fn before(url: &str) -> (String, Self) {
        let (scheme, rest) = url.split_once("://").expect("a URL with a scheme");
        let (authority, path) = rest.split_once('/').expect("a URL with a path");
        let (user, server) = authority.rsplit_once('@').unwrap_or(("", authority));
        let proxy = Self::to(server).await;
        let at = if user.is_empty() { "" } else { "@" };
        (format!("{scheme}://{user}{at}{}/{path}", proxy.address()), proxy)
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has seen so far.
    pub fn seen(&self) -> Seen {
        *self.seen.borrow()
    }

    /// Waits until it has seen something.
    pub async fn until(&self, seen_enough: impl FnMut(&Seen) -> bool) {
        // It cannot fail: the sender is ours.
        let _ = self.seen.subscribe().wait_for(seen_enough).await;
    }

    /// Holds back what the server sends, on open and on new connections. The server still gets every request.
    pub fn hold_answers(&self) {
        self.rules.send_modify(|rules| rules.hold_answers = true);
    }

    /// Holds back what either side sends: connections are accepted and nothing comes of them.
    pub fn hold_everything(&self) {
        self.rules.send_modify(|rules| {
            rules.hold_answers = true;
            rules.hold_requests = true;
        });
    }

    /// Cuts every open connection, and closes new ones at once.
    pub fn refuse(&self) {
        self.rules.send_modify(|rules| {
            rules.refuse = true;
            rules.generation += 1;
        });
    }

    /// Forwards again, beginning with what was held back.
    pub fn heal(&self) {
        self.rules.send_modify(|rules| {
            rules.refuse = false;
            rules.hold_answers = false;
            rules.hold_requests = false;
        });
    }

    /// Lets the open connections hang half-open for ever, as if the server's host were gone without a word: nothing
    /// comes through and nothing is closed. New ones are served.
    pub fn strand(&self) {
        let connections = self.seen().connections;
        self.rules.send_modify(|rules| rules.stranded = connections);
    }

    /// Cuts every open connection, both ways, with what is held back on it. New ones are served.
    pub fn cut(&self) {
        self.rules.send_modify(|rules| rules.generation += 1);
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.listening.abort();
        self.cut();
    }
}

async fn listen(
    listener: TcpListener,
    server: String,
    rules: Arc<watch::Sender<Rules>>,
    seen: Arc<watch::Sender<Seen>>,
) {
    while let Ok((client, _)) = listener.accept().await {
        seen.send_modify(|seen| seen.connections += 1);
        if rules.borrow().refuse {
            continue;
        }
        let number = seen.borrow().connections;
        let (rules, seen, server) = (rules.subscribe(), Arc::clone(&seen), server.clone());
        tokio::spawn(async move {
            let generation = rules.borrow().generation;
            // A server that is not there closes the client's connection.
            let Ok(server) = TcpStream::connect(server).await else { return };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let mut cut = rules.clone();
            let is_held = move |rules: &Rules, held: bool| {
                (held || number <= rules.stranded) && rules.generation == generation
            };
            let holds_request = move |rules: &Rules| is_held(rules, rules.hold_requests);
            let holds_answer = move |rules: &Rules| is_held(rules, rules.hold_answers);
            let is_cut = move |rules: &Rules| rules.generation != generation;
            let requests = async {
                let (mut from, mut to, mut rules) = (from_client, to_server, rules.clone());
                let mut buffer = vec![0; BUFFER];
                while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
                    let cut =
                        rules.wait_for(|rules| !holds_request(rules)).await.is_ok_and(|rules| is_cut(&rules));
                    if cut || to.write_all(&buffer[..bytes]).await.is_err() {
                        return;
                    }
                    seen.send_modify(|seen| seen.to_server += bytes as u64);
                }
            };
            let answers = async {
                let (mut from, mut to, mut rules) = (from_server, to_client, rules.clone());
                let mut buffer = vec![0; BUFFER];
                while let Ok(bytes @ 1..) = from.read(&mut buffer).await {
                    seen.send_modify(|seen| seen.from_server += bytes as u64);
                    // What is held back is lost in a cut, even when the hold ends at the same moment.
                    let cut =
                        rules.wait_for(|rules| !holds_answer(rules)).await.is_ok_and(|rules| is_cut(&rules));
                    if cut || to.write_all(&buffer[..bytes]).await.is_err() {
                        return;
                    }
                }
            };
            // Both halves are dropped with their futures, and the sockets with them.
            tokio::select! {
                _ = cut.wait_for(is_cut) => {}
                () = requests => {}
                () = answers => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo_server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn it_forwards_holds_and_cuts() {
        let proxy = TcpProxy::to(&echo_server().await.to_string()).await;
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        let mut buffer = [0; 4];
        client.write_all(b"here").await.unwrap();
        client.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"here");

        proxy.hold_answers();
        client.write_all(b"held").await.unwrap();
        proxy.until(|seen| seen.from_server == 8).await;
        assert_eq!(proxy.seen(), Seen { connections: 1, to_server: 8, from_server: 8 });
        proxy.heal();
        client.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"held");

        proxy.cut();
        assert!(matches!(client.read(&mut buffer).await, Ok(0) | Err(_)));
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"anew").await.unwrap();
        client.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"anew");

        proxy.strand();
        client.write_all(b"lost").await.unwrap();
        let mut next = TcpStream::connect(proxy.address()).await.unwrap();
        next.write_all(b"next").await.unwrap();
        next.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"next");
        let silence = std::time::Duration::from_millis(50);
        assert!(tokio::time::timeout(silence, client.read(&mut buffer)).await.is_err());
    }
}
