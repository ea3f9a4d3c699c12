//! The loop over connections: how many, how slow they may be, and how they end.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::HttpBody as _;
use axum::extract::ConnectInfo;
use axum::http::{Request, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use super::Patient;
use super::limits::LimitSettings;
use super::patience::{AnswerTime, Impatient};

/// How many connections are taken beyond the limit, for who watches the server: it must be told from a dead one.
const SPARE: usize = 16;

/// How long a head may take on one of these.
const SPARE_HEAD: Duration = Duration::from_secs(2);

/// How many bytes of an answer wait to be written, beside the piece that is: what a stream has said to a slow reader.
const BUFFERED: usize = 64 << 10;

/// How many bytes a second a large answer must be taken with: it has as much longer than others.
const SLOWEST: u64 = 64 << 10;

/// A mark on requests that came on a spare connection: only who watches the server is answered there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spare;

/// Serves until it is told to stop; then takes no more connections, and gives what runs a time to end.
pub(crate) async fn serve(
    mut listener: Patient,
    router: Router,
    limits: &LimitSettings,
    grace: Duration,
    told_to_stop: impl Future<Output = ()>,
) {
    let mut builder = http1::Builder::new();
    let largest_head = limits.header_bytes.saturating_mul(2).max(16 * 1024);
    // A head that is sent a byte at a time, and a connection on which nothing is asked any more, end here. hyper answers
    // what is far too large by itself; up to there our own limit answers, with a problem.
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(limits.headers.saturating_mul(2).max(100))
        .max_header_size(largest_head)
        .max_buf_size(BUFFERED.max(largest_head));
    let mut spare_builder = builder.clone();
    let spare_head = limits.header_timeout.min(SPARE_HEAD);
    spare_builder.header_read_timeout(spare_head).keep_alive(false);
    let places = Places {
        open: Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS))),
        spare: Arc::new(Semaphore::new(SPARE)),
    };
    let graceful = GracefulShutdown::new();
    tokio::pin!(told_to_stop);
    loop {
        let accepted = async {
            let place = places.one().await;
            let (stream, address) = listener.accept().await;
            // One may have been given back while nobody came.
            let place = if place.is_spare { places.open().unwrap_or(place) } else { place };
            (stream, address, place)
        };
        let (stream, address, place) = tokio::select! {
            () = &mut told_to_stop => break,
            accepted = accepted => accepted,
        };
        let connection = Connection {
            builder: if place.is_spare { spare_builder.clone() } else { builder.clone() },
            router: router.clone(),
            address,
            is_spare: place.is_spare,
            patience: listener.patience,
            handshake: if place.is_spare { spare_head } else { limits.header_timeout },
            answer_timeout: limits.answer_timeout,
        };
        let (tls, watcher) = (listener.tls.clone(), graceful.watcher());
        tokio::spawn(async move {
            connection.run(stream, tls, watcher).await;
            drop(place);
        });
    }
    drop(listener);
    tracing::info!(connections = graceful.count(), "stopping: no more connections are taken");
    if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end in time and were cut off");
    }
}

/// Places for connections.
struct Places {
    open: Arc<Semaphore>,
    spare: Arc<Semaphore>,
}

/// A place, given back when it is dropped.
struct Place {
    _permit: Option<OwnedSemaphorePermit>,
    is_spare: bool,
}

impl Places {
    /// A place as soon as there is one. Who comes when all are taken, the spare ones included, waits in the system's
    /// queue.
    async fn one(&self) -> Place {
        tokio::select! {
            biased;
            permit = Arc::clone(&self.open).acquire_owned() => Place { _permit: permit.ok(), is_spare: false },
            permit = Arc::clone(&self.spare).acquire_owned() => Place { _permit: permit.ok(), is_spare: true },
        }
    }

    /// A place that is no spare one, if there is one now.
    fn open(&self) -> Option<Place> {
        let permit = Arc::clone(&self.open).try_acquire_owned().ok()?;
        Some(Place { _permit: Some(permit), is_spare: false })
    }
}

/// What one connection is served with.
struct Connection {
    builder: http1::Builder,
    router: Router,
    address: SocketAddr,
    is_spare: bool,
    patience: Duration,
    handshake: Duration,
    answer_timeout: Duration,
}

impl Connection {
    async fn run(self, stream: TcpStream, tls: Option<TlsAcceptor>, watcher: Watcher) {
        let Some(tls) = tls else { return self.serve(stream, watcher).await };
        match tokio::time::timeout(self.handshake, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.serve(stream, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, "a connection was not made: no TLS"),
            Err(_) => tracing::debug!("a connection was not made: its handshake took too long"),
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, watcher: Watcher) {
        let answer = AnswerTime::default();
        let stream = TokioIo::new(Impatient::new(stream, self.patience, answer.clone()));
        let builder = self.builder.clone();
        let connection = builder.serve_connection(stream, self.service(answer));
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%error, "a connection ended badly");
        }
    }

    /// The router for this connection; handlers can ask where it comes from.
    fn service(
        self,
        answer: AnswerTime,
    ) -> impl hyper::service::Service<
        Request<Incoming>,
        Response = axum::response::Response,
        Error = Infallible,
        Future: Send,
    > + Send
    + 'static {
        hyper::service::service_fn(move |mut request: Request<Incoming>| {
            // What was answered before has been taken.
            answer.begin(None);
            request.extensions_mut().insert(ConnectInfo(self.address));
            if self.is_spare {
                request.extensions_mut().insert(Spare);
            }
            let answering = self.router.clone().oneshot(request.map(axum::body::Body::new));
            let (answer, timeout) = (answer.clone(), self.answer_timeout);
            async move {
                let response = answering.await?;
                let end_of = move |bytes: u64| {
                    Instant::now().checked_add(timeout.saturating_add(Duration::from_secs(bytes / SLOWEST)))
                };
                let kind = response.headers().get(header::CONTENT_TYPE);
                if kind.is_none_or(|kind| kind != "text/event-stream") {
                    answer.begin(end_of(response.body().size_hint().exact().unwrap_or(0)));
                    return Ok::<_, Infallible>(response);
                }
                // A stream has no end; each of its messages has.
                Ok(response.map(|body| {
                    axum::body::Body::new(body.map_frame(move |frame| {
                        frame.map_data(|message| {
                            let until = end_of(message.len() as u64);
                            answer.hand_out(message, until)
                        })
                    }))
                }))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Larger than all buffers between the two ends.
    const LARGE: usize = 64 << 20;

    /// Serves so that an answer has half a second, and nothing else has an end.
    async fn served(router: Router) -> (SocketAddr, tokio::task::JoinHandle<()>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let long = Duration::from_secs(600);
        let limits = LimitSettings {
            body_bytes: 1,
            header_bytes: 1000,
            headers: 10,
            header_timeout: long,
            request_timeout: long,
            answer_timeout: Duration::from_millis(500),
            connections: 10,
            concurrent_requests: 10,
            streams: 1,
            memory_bytes: 1,
            caller_share: 100,
            requests_per_second: 0,
            burst: 0,
        };
        let listener = Patient { listener, patience: long, tls: None };
        let server = tokio::spawn(async move {
            serve(listener, router, &limits, Duration::ZERO, std::future::pending()).await;
        });
        (address, server)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stream_whose_messages_are_not_taken_ends_and_any_other_goes_on() {
        let ended = Arc::new(tokio::sync::Notify::new());
        /// Tells when the server lets go of it.
        struct Told(Arc<tokio::sync::Notify>);
        impl Drop for Told {
            fn drop(&mut self) {
                self.0.notify_one();
            }
        }
        let of_body = Arc::clone(&ended);
        let flood = move || {
            let told = Told(Arc::clone(&of_body));
            let messages = futures_util::stream::repeat_with(move || {
                let _ = &told;
                Ok::<_, Infallible>(vec![7_u8; 8 << 10])
            });
            async { ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(messages)) }
        };
        let slow = || async {
            let messages = futures_util::stream::unfold(0_u8, |number| async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                (number < 5).then(|| (Ok::<_, Infallible>(vec![b'0' + number]), number + 1))
            });
            ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(messages))
        };
        let router = Router::new().route("/flood", get(flood)).route("/slow", get(slow));
        let (address, server) = served(router).await;
        let mut never_reads = TcpStream::connect(address).await.unwrap();
        never_reads.write_all(b"GET /flood HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut reads = TcpStream::connect(address).await.unwrap();
        reads.write_all(b"GET /slow HTTP/1.0\r\nHost: a\r\n\r\n").await.unwrap();
        let mut said = String::new();
        reads.read_to_string(&mut said).await.unwrap();
        assert!(said.ends_with("01234"), "it was longer than half a second: {said}");
        tokio::time::timeout(Duration::from_secs(30), ended.notified()).await.expect("it was not ended");
        server.abort();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_answer_that_is_taken_byte_by_byte_is_cut_off() {
        // In pieces: one that says how large it is would have longer.
        let large = || async {
            let piece = || Ok::<_, Infallible>(vec![7_u8; 1 << 20]);
            Body::from_stream(futures_util::stream::iter((0..LARGE >> 20).map(move |_| piece())))
        };
        let (address, server) = served(Router::new().route("/large", get(large))).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        // It always takes something, and is not through when the time is over.
        let (begun, mut taken, mut byte) = (Instant::now(), 0, [0]);
        while begun.elapsed() < Duration::from_secs(2) {
            taken += stream.read(&mut byte).await.unwrap_or(0);
        }
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(taken > 0 && taken + rest.len() < LARGE, "{taken} bytes came, and then {}", rest.len());
        server.abort();
    }
}
