//! Connections whose other side must take what is written to it.
//!
//! A client that never reads fills its socket, and then whoever writes to it would wait for ever, with all it holds. Here
//! a write that makes no progress for too long ends the connection.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio_io_timeout::TimeoutStream;

/// How long a client may leave everything lie that is written to it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Accepts connections that end when a write makes no progress for so long.
pub(crate) struct Patient {
    pub(crate) listener: TcpListener,
    pub(crate) patience: Duration,
}

impl Listener for Patient {
    type Io = Pin<Box<TimeoutStream<TcpStream>>>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // Facts go out one by one, and each should leave at once. An error means that the client has gone already.
        let _ = stream.set_nodelay(true);
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.patience));
        (Box::pin(stream), address)
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
