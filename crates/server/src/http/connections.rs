//! The loop over connections: how many, how slow they may be, and how they end.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

use super::limits::LimitSettings;

/// Serves until it is told to stop; then takes no more connections, and gives what runs a time to end.
pub(crate) async fn serve(
    mut listener: impl Listener<Addr = SocketAddr>,
    router: Router,
    limits: &LimitSettings,
    grace: Duration,
    told_to_stop: impl Future<Output = ()>,
) {
    let mut builder = http1::Builder::new();
    // A head that is sent a byte at a time, and a connection on which nothing is asked any more, end here. hyper answers
    // what is far too large by itself; up to there our own limit answers, with a problem.
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(limits.headers.saturating_mul(2).max(100))
        .max_header_size(limits.header_bytes.saturating_mul(2).max(16 * 1024));
    let open = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let graceful = GracefulShutdown::new();
    tokio::pin!(told_to_stop);
    loop {
        // Who comes when all places are taken waits in the system's queue.
        let accepted = async {
            let permit = Arc::clone(&open).acquire_owned().await.ok();
            (listener.accept().await, permit)
        };
        let ((stream, address), permit) = tokio::select! {
            () = &mut told_to_stop => break,
            accepted = accepted => accepted,
        };
        let connection = builder.serve_connection(TokioIo::new(stream), service(&router, address));
        let watched = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = watched.await {
                tracing::debug!(%error, "a connection ended badly");
            }
            drop(permit);
        });
    }
    drop(listener);
    tracing::info!(connections = graceful.count(), "stopping: no more connections are taken");
    if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end in time and were cut off");
    }
}

/// The router for one connection; handlers can ask where it comes from.
fn service(
    router: &Router,
    address: SocketAddr,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = axum::response::Response,
    Error = Infallible,
    Future: Send,
> + Send
+ 'static {
    let router = router.clone();
    hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(address));
        router.clone().oneshot(request.map(axum::body::Body::new))
    })
}
