//! A connection that is made when it is needed, made again when it is lost, and never hangs.
//!
//! lapin runs each connection on a thread of its own, and that thread waits for the other side for ever: during the
//! handshake, and again while closing. So every socket has a second handle here that cuts it.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties};
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use towpath_core::ports::broker::{BrokerError, BrokerResult};

use super::address::{Address, Tls};
use super::errors::{Said, told, unavailable, words};

/// How long one attempt to connect may take, name lookup, TLS and handshake together.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The least that one of several servers gets of it.
const LEAST_HANDSHAKE: Duration = Duration::from_secs(3);

/// How long a connection may take to say goodbye.
const FAREWELL: Duration = Duration::from_secs(5);

/// The wait after the first attempt that failed; it doubles up to the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// At most one connection, and when to try the next.
pub(super) struct Link {
    address: Arc<Address>,
    purpose: &'static str,
    closed: AtomicBool,
    /// How many connections were made, those aside that replaced one of a broker that is well.
    made: Arc<AtomicU64>,
    state: Arc<tokio::sync::Mutex<State>>,
    /// Connections that are no longer given out but may still be used, by a receiver for example.
    retired: Mutex<Vec<Weak<Live>>>,
}

#[derive(Default)]
struct State {
    live: Option<Arc<Live>>,
    /// Which server is tried first: the one that answered last.
    server: usize,
    failures: u32,
    next_attempt: Option<Instant>,
    last_failure: Option<Failure>,
    /// The broker is well, and the connection was given up for another reason.
    only_replaced: bool,
}

/// Why the last attempt failed; errors of the port cannot be told twice.
#[derive(Clone)]
enum Failure {
    Denied(String),
    Unavailable(String),
}

impl Link {
    pub(super) fn new(address: Address, purpose: &'static str) -> Self {
        Self {
            address: Arc::new(address),
            purpose,
            closed: AtomicBool::new(false),
            made: Arc::default(),
            state: Arc::default(),
            retired: Mutex::default(),
        }
    }

    /// How many connections were made, those aside that replaced one of a broker that is well: a broker that was away may
    /// have forgotten something, and that one has not.
    pub(super) fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }

    /// The connection, made if there is none. An attempt that outlives the deadline goes on for the next caller.
    pub(super) async fn live(&self, deadline: Instant) -> BrokerResult<Arc<Live>> {
        loop {
            let Ok(mut state) = timeout_at(deadline, Arc::clone(&self.state).lock_owned()).await else {
                return Err(unavailable("no connection within the time given"));
            };
            // Asked under the lock, so that none is made after closing.
            if self.closed.load(Ordering::Acquire) {
                return Err(unavailable("this handle was closed"));
            }
            if let Some(live) = &state.live
                && live.connected()
            {
                return Ok(Arc::clone(live));
            }
            state.live = None;
            match state.next_attempt {
                Some(next) if next > Instant::now() => {
                    if next > deadline {
                        return Err(state.failure());
                    }
                    drop(state);
                    sleep_until(next).await;
                }
                _ => {
                    let made = Arc::clone(&self.made);
                    let attempt = tokio::spawn(attempt(state, Arc::clone(&self.address), self.purpose, made));
                    match timeout_at(deadline, attempt).await {
                        Ok(Ok(true)) => {}
                        Ok(Ok(false)) => {
                            let state = self.state.lock().await;
                            return Err(state.failure());
                        }
                        Ok(Err(_)) => return Err(unavailable("the attempt to connect was abandoned")),
                        Err(_) => return Err(unavailable("no connection within the time given")),
                    }
                }
            }
        }
    }

    /// Opens a channel.
    pub(super) async fn channel(&self, deadline: Instant) -> BrokerResult<(Arc<Live>, Channel)> {
        let live = self.live(deadline).await?;
        let channel = self.channel_on(&live, deadline).await?;
        Ok((live, channel))
    }

    /// Opens a channel on a connection that was given out.
    pub(super) async fn channel_on(&self, live: &Arc<Live>, deadline: Instant) -> BrokerResult<Channel> {
        match timeout_at(deadline, live.connection().create_channel()).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(error)) => {
                self.retire(live);
                Err(told(&error, "opening a channel"))
            }
            Err(_) => {
                self.retire(live);
                Err(unavailable("the broker opens no channel"))
            }
        }
    }

    /// Makes the next caller connect anew. Whoever still uses this connection may finish.
    pub(super) fn retire(&self, live: &Arc<Live>) {
        self.give_up(live, false);
    }

    /// The same, for a connection to a broker that has just answered.
    pub(super) fn replace(&self, live: &Arc<Live>) {
        self.give_up(live, true);
    }

    fn give_up(&self, live: &Arc<Live>, only_replaced: bool) {
        // Who holds the lock is connecting anew already.
        if let Ok(mut state) = self.state.try_lock()
            && state.live.as_ref().is_some_and(|current| Arc::ptr_eq(current, live))
        {
            state.live = None;
            state.only_replaced = only_replaced;
        }
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(|retired| retired.strong_count() > 0);
        retired.push(Arc::downgrade(live));
    }

    /// Ends every connection, for good.
    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let current = self.state.lock().await.live.take();
        let retired = std::mem::take(&mut *self.retired.lock().unwrap_or_else(PoisonError::into_inner));
        for live in current.into_iter().chain(retired.iter().filter_map(Weak::upgrade)) {
            live.close().await;
        }
    }
}

impl State {
    fn failure(&self) -> BrokerError {
        match self.last_failure.clone() {
            Some(Failure::Denied(words)) => BrokerError::Denied(Box::new(Said(words))),
            Some(Failure::Unavailable(words)) => unavailable(words),
            None => unavailable("there is no connection"),
        }
    }
}

/// Tries each server once, until one answers, and notes how it went.
async fn attempt(
    mut state: OwnedMutexGuard<State>,
    address: Arc<Address>,
    purpose: &'static str,
    made: Arc<AtomicU64>,
) -> bool {
    let servers = &address.servers;
    let share = u32::try_from(servers.len()).map_or(LEAST_HANDSHAKE, |count| HANDSHAKE / count.max(1));
    let (first, mut failures) = (state.server, Vec::new());
    for place in (0..servers.len()).map(|turn| (first + turn) % servers.len()) {
        let server = &servers[place];
        let opened =
            timeout(share.max(LEAST_HANDSHAKE), Live::open(server.clone(), &address.tls, purpose)).await;
        let name = format!("{}:{}", server.authority.host, server.authority.port);
        match opened {
            Ok(Ok(live)) => {
                let is_counted = !state.only_replaced;
                *state = State { live: Some(Arc::new(live)), server: place, ..State::default() };
                made.fetch_add(u64::from(is_counted), Ordering::AcqRel);
                return true;
            }
            Ok(Err(error)) => {
                let words = format!("{name}: {}", words(&error));
                if let BrokerError::Denied(_) = told(&error, "connecting") {
                    // Servers of one cluster have the same users: the others would say the same.
                    failures = vec![words];
                    state.last_failure = Some(Failure::Denied(failures.concat()));
                    break;
                }
                failures.push(words);
            }
            Err(_) => failures.push(format!("{name}: the broker does not answer")),
        }
        state.last_failure = Some(Failure::Unavailable(failures.join("; ")));
    }
    let backoff = FIRST_BACKOFF.saturating_mul(1 << state.failures.min(10)).min(LONGEST_BACKOFF);
    tracing::warn!(purpose, ?backoff, cause = failures.join("; "), "cannot connect to RabbitMQ");
    state.only_replaced = false;
    state.failures = state.failures.saturating_add(1);
    state.next_attempt = Some(Instant::now() + backoff);
    false
}

/// An open connection. Dropped by its last user, it says goodbye in the background.
pub(super) struct Live {
    connection: Arc<Connection>,
    wire: Arc<Wire>,
    runtime: Handle,
}

impl Live {
    async fn open(uri: AMQPUri, tls: &Tls, purpose: &'static str) -> lapin::Result<Self> {
        let wire = Arc::new(Wire::default());
        // Covers a handshake that fails, and one that is given up.
        let mut guard = CutOnDrop(Some(Arc::clone(&wire)));
        let options = ConnectionProperties::default()
            .with_connection_name(format!("towpath {purpose}").into())
            .with_client_property("product".into(), "towpath".into());
        let secure = match uri.scheme {
            AMQPScheme::AMQPS => Some(tls.connector()?),
            AMQPScheme::AMQP => None,
        };
        let held = Arc::clone(&wire);
        let connection = Connection::connector(
            uri,
            lapin::runtime::default_runtime()?,
            async move |uri: AMQPUri, runtime| {
                let host = &uri.authority.host;
                let connecting = async {
                    let addresses = runtime.to_socket_addrs((host.clone(), uri.authority.port));
                    let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
                    match &secure {
                        Some(secure) => stream.into_rustls(secure, host).await,
                        None => Ok(stream),
                    }
                };
                let stream = timeout(HANDSHAKE, connecting)
                    .await
                    .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
                match &stream {
                    lapin::AsyncTcpStream::Plain(stream) => held.hold(stream.get_ref())?,
                    lapin::AsyncTcpStream::Rustls(stream) => held.hold(stream.get_ref().0.get_ref())?,
                    _ => {}
                }
                Ok(stream)
            },
            options,
        )
        .await?;
        guard.0 = None;
        Ok(Self { connection: Arc::new(connection), wire, runtime: Handle::current() })
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn connected(&self) -> bool {
        self.connection.status().connected()
    }

    /// Whether the broker has told us to stop publishing: it is short of memory or disk.
    pub(super) fn blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// The largest frame that both sides allow.
    pub(super) fn frame_max(&self) -> u32 {
        self.connection.configuration().frame_max()
    }

    async fn close(&self) {
        farewell(Arc::clone(&self.connection), CutOnDrop(Some(Arc::clone(&self.wire)))).await;
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let guard = CutOnDrop(Some(Arc::clone(&self.wire)));
        self.runtime.spawn(farewell(Arc::clone(&self.connection), guard));
    }
}

async fn farewell(connection: Arc<Connection>, guard: CutOnDrop) {
    // An error means that the connection is gone, which is all we want.
    let _ = timeout(FAREWELL, connection.close(200, "OK".into())).await;
    drop(guard);
}

/// A second handle of a connection's socket.
#[derive(Default)]
struct Wire(Mutex<Socket>);

#[derive(Default)]
enum Socket {
    #[default]
    NotYet,
    Open(TcpStream),
    Cut,
}

impl Wire {
    /// Keeps a handle; refuses when the connection was given up meanwhile.
    fn hold(&self, stream: &tokio::net::TcpStream) -> std::io::Result<()> {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*socket, Socket::Cut) {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        #[cfg(unix)]
        {
            use std::os::fd::AsFd;
            *socket = Socket::Open(stream.as_fd().try_clone_to_owned()?.into());
        }
        #[cfg(windows)]
        {
            use std::os::windows::io::AsSocket;
            *socket = Socket::Open(stream.as_socket().try_clone_to_owned()?.into());
        }
        Ok(())
    }
}

struct CutOnDrop(Option<Arc<Wire>>);

impl Drop for CutOnDrop {
    fn drop(&mut self) {
        let Some(wire) = self.0.take() else { return };
        let mut socket = wire.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Socket::Open(stream) = std::mem::replace(&mut *socket, Socket::Cut) {
            // An error means that it is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
