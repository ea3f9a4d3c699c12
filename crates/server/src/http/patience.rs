//! Connections whose other side must take what is written to it.
//!
//! A client that never reads fills its socket, and then whoever writes to it would wait for ever, with all it holds. Here
//! a write that makes no progress for too long ends the connection, and so does an answer, or a message of a stream, that is
//! taken a few bytes at a time and is not through when its time is over.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsAcceptor;

/// How long a client may leave everything lie that is written to it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Where connections come from, and how they are made.
pub(crate) struct Patient {
    pub(crate) listener: TcpListener,
    /// How long a write may make no progress.
    pub(crate) patience: Duration,
    /// Nothing for plain HTTP.
    pub(crate) tls: Option<TlsAcceptor>,
}

impl Patient {
    /// The next connection. What goes wrong with one is not told: the next one is waited for.
    pub(super) async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
        // Facts go out one by one, and each should leave at once. An error means that the client has gone already.
        let _ = stream.set_nodelay(true);
        (stream, address)
    }
}

/// Until when what is being sent must be through: the answer, or each message of one that is a stream. Clones share it.
#[derive(Clone, Default)]
pub(super) struct AnswerTime(Arc<Mutex<Ends>>);

#[derive(Default)]
struct Ends {
    handed_out: u64,
    /// In the order in which they were handed out, which is that in which they are taken.
    ends: VecDeque<(u64, Instant)>,
}

impl AnswerTime {
    /// An answer begins, with its end; without one it has none.
    pub(super) fn begin(&self, until: Option<Instant>) {
        let mut ends = self.ends();
        ends.ends.clear();
        ends.push(until);
    }

    /// A message of a stream that must be taken until then. It is taken when whoever writes it lets go of its bytes.
    pub(super) fn hand_out(&self, bytes: Bytes, until: Option<Instant>) -> Bytes {
        let number = self.ends().push(until);
        Bytes::from_owner(HandedOut { bytes, number, of: self.clone() })
    }

    fn until(&self) -> Option<Instant> {
        self.ends().ends.front().map(|(_, until)| *until)
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ends {
    fn push(&mut self, until: Option<Instant>) -> u64 {
        self.handed_out += 1;
        self.ends.extend(until.map(|until| (self.handed_out, until)));
        self.handed_out
    }
}

struct HandedOut {
    bytes: Bytes,
    number: u64,
    of: AnswerTime,
}

impl AsRef<[u8]> for HandedOut {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for HandedOut {
    fn drop(&mut self) {
        self.of.ends().ends.retain(|(number, _)| *number != self.number);
    }
}

/// A connection that ends when nobody takes what is written to it.
pub(super) struct Impatient<S> {
    stream: S,
    patience: Duration,
    answer: AnswerTime,
    /// When the write that waits must have made progress.
    stalls_at: Option<Instant>,
    /// Wakes whoever writes at the earlier of the two ends.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    pub(super) fn new(stream: S, patience: Duration, answer: AnswerTime) -> Self {
        Self { stream, patience, answer, stalls_at: None, alarm: None }
    }

    /// What became of a write, unless its time is over.
    fn in_time<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let answer_ends = self.answer.until();
        if written.is_ready() {
            self.stalls_at = None;
            return match answer_ends {
                Some(end) if end <= Instant::now() => Poll::Ready(Err(too_slow())),
                _ => written,
            };
        }
        let stalls_at = *self.stalls_at.get_or_insert_with(|| Instant::now() + self.patience);
        let end = answer_ends.map_or(stalls_at, |end| end.min(stalls_at));
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        if alarm.deadline() != end {
            alarm.as_mut().reset(end);
        }
        alarm.as_mut().poll(context).map(|()| Err(too_slow()))
    }
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the client does not take its answer")
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.in_time(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match Pin::new(&mut this.stream).poll_flush(context) {
            // Everything has been taken: whether that was in time was said with the last write.
            Poll::Ready(flushed) => Poll::Ready(flushed),
            Poll::Pending => this.in_time(context, Poll::Pending),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match Pin::new(&mut this.stream).poll_shutdown(context) {
            Poll::Ready(ended) => Poll::Ready(ended),
            Poll::Pending => this.in_time(context, Poll::Pending),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Somebody who always takes a little never stalls, and is cut off all the same.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_answer_that_is_taken_a_little_at_a_time_ends_with_its_time() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let answer = AnswerTime::default();
        let mut ours = Impatient::new(ours, Duration::from_secs(600), answer.clone());
        let (begun, time) = (Instant::now(), Duration::from_millis(300));
        answer.begin(Some(begun + time));
        let slow =
            tokio::spawn(async move { while theirs.read(&mut [0]).await.is_ok_and(|count| count > 0) {} });
        let ended = loop {
            if let Err(ended) = ours.write_all(&[7; 100]).await {
                break ended;
            }
        };
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= time, "{:?}", begun.elapsed());
        answer.begin(None);
        assert!(ours.write_all(&[7]).await.is_ok(), "what comes next has a time of its own");
        drop(ours);
        slow.await.unwrap();
    }

    /// One that has no end, as a stream has none, ends only when nothing is taken.
    #[tokio::test]
    async fn a_write_that_makes_no_progress_ends_the_connection() {
        let (ours, theirs) = tokio::io::duplex(16);
        let patience = Duration::from_millis(50);
        let mut ours = Impatient::new(ours, patience, AnswerTime::default());
        let begun = Instant::now();
        let ended = ours.write_all(&[7; 100]).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= patience, "{:?}", begun.elapsed());
        drop(theirs);
    }
}
