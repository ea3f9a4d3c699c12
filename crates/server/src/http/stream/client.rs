//! The other end of the stream, for the benchmark and the tests.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A message of the stream.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    /// The last id that was told, in this message or before it.
    pub(crate) id: Option<u64>,
    /// `None` is a plain message.
    pub(crate) event: Option<String>,
    /// Empty for a message that only tells an id, or that the server lives.
    pub(crate) data: String,
}

/// A client that reads the stream message by message.
pub(crate) struct StreamClient {
    connection: BufReader<TcpStream>,
    last_id: Option<u64>,
    /// The status line and the headers.
    pub(crate) head: String,
}

impl StreamClient {
    /// Asks for the stream and reads the head of the answer.
    pub(crate) async fn open(address: &str, path: &str, headers: &str) -> io::Result<Self> {
        let mut connection = TcpStream::connect(address).await?;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAccept: text/event-stream\r\n\
             {headers}\r\n"
        );
        connection.write_all(request.as_bytes()).await?;
        let mut connection = BufReader::new(connection);
        let mut head = String::new();
        while connection.read_line(&mut head).await? > 2 {}
        Ok(Self { connection, last_id: None, head })
    }

    /// The next message; `None` at the end.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Message>> {
        // The server sends each message as a chunk of its own.
        let mut size = String::new();
        if self.connection.read_line(&mut size).await? == 0 {
            return Ok(None);
        }
        let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
        let mut chunk = vec![0; size + 2];
        self.connection.read_exact(&mut chunk).await?;
        if size == 0 {
            return Ok(None);
        }
        let mut message = Message::default();
        for line in std::str::from_utf8(&chunk).map_err(io::Error::other)?.lines() {
            if let Some(id) = line.strip_prefix("id: ") {
                self.last_id = id.parse().ok();
            } else if let Some(event) = line.strip_prefix("event: ") {
                message.event = Some(event.to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                message.data.push_str(data);
            }
        }
        message.id = self.last_id;
        Ok(Some(message))
    }

    /// The next message with data; `None` at the end.
    #[cfg(test)]
    pub(crate) async fn next_fact(&mut self) -> io::Result<Option<Message>> {
        while let Some(message) = self.next().await? {
            if !message.data.is_empty() {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Everything that is left.
    #[cfg(test)]
    pub(crate) async fn rest(mut self) -> io::Result<String> {
        let mut rest = String::new();
        self.connection.read_to_string(&mut rest).await?;
        Ok(rest)
    }
}
