//! Room for large answers: how much of them is in memory at a time, whoever asks and however slowly they read.
//!
//! One answer is bounded by its bytes, but many at once would not be. What is large takes room before it is read from the
//! store, and gives it back when its bytes have been sent or thrown away. Small answers are not asked: their number is
//! bounded by that of requests and connections.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use towpath::ids::Position;
use towpath::ports::store::Store as _;
use towpath::{RecordedEvent, Towpath};

use super::problem::Problem;

/// How many bytes of payload one page has at most, if it has more than one fact.
pub(super) const PAGE_BYTES: u64 = 4 << 20;

/// What is smaller takes no room.
const SMALL: u64 = 64 << 10;

/// How many bytes there is room for, in all.
const ROOM: u64 = 128 << 20;

/// Room is counted in these.
const UNIT: u64 = 1 << 10;

/// How long somebody may wait for room.
const PATIENCE: Duration = Duration::from_secs(10);

/// The room of a server. Clones share it.
#[derive(Clone)]
pub(crate) struct Memory {
    room: Arc<Semaphore>,
    patience: Duration,
}

/// Some room, given back when it is dropped.
pub(super) struct Room {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::of(ROOM, PATIENCE)
    }
}

impl Memory {
    fn of(bytes: u64, patience: Duration) -> Self {
        let units = usize::try_from(bytes / UNIT).unwrap_or(Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(units)), patience }
    }

    /// Room for so many bytes, as soon as there is some.
    pub(super) async fn room(&self, bytes: u64) -> Result<Room, Problem> {
        if bytes < SMALL {
            return Ok(Room { _permit: None });
        }
        let units = u32::try_from(bytes.min(ROOM).div_ceil(UNIT)).unwrap_or(u32::MAX);
        let waited =
            tokio::time::timeout(self.patience, Arc::clone(&self.room).acquire_many_owned(units)).await;
        match waited {
            Ok(Ok(permit)) => Ok(Room { _permit: Some(permit) }),
            _ => Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "more large answers are under way at this moment than the server takes",
                "Try again in a moment, or ask for fewer at a time.",
            )),
        }
    }

    /// The first events from a position on: at most so many, and not more than one page may have.
    pub(super) async fn events(
        &self,
        towpath: &Towpath,
        low: Position,
        high: Position,
    ) -> Result<(Room, Vec<RecordedEvent>), Problem> {
        let sizes = towpath.store().sizes_between(low, high).await?;
        let mut total = 0;
        let mut last = None;
        for (position, size) in sizes {
            if last.is_some() && total + size > PAGE_BYTES {
                break;
            }
            (total, last) = (total + size, Some(position));
        }
        let Some(last) = last else { return Ok((Room { _permit: None }, Vec::new())) };
        // As it is read, and as it is written.
        let room = self.room(2 * total).await?;
        Ok((room, towpath.store().events_between(low, last).await?))
    }
}

impl Room {
    /// An answer as JSON, which has its room until it is sent.
    pub(super) fn json(self, answer: &impl Serialize) -> Result<Response, Problem> {
        let body = serde_json::to_vec(answer).map_err(|error| Problem::internal(&error))?;
        Ok(([(header::CONTENT_TYPE, "application/json")], self.holding(body)).into_response())
    }

    /// Bytes that have this room until nobody has them any more. What they do not need of it is given back.
    pub(super) fn holding(mut self, bytes: Vec<u8>) -> Bytes {
        struct Held {
            bytes: Vec<u8>,
            _room: Room,
        }
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        let needed = if (bytes.len() as u64) < SMALL { 0 } else { (bytes.len() as u64).div_ceil(UNIT) };
        let needed = usize::try_from(needed).unwrap_or(usize::MAX);
        let taken = self._permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if let Some(permit) = &mut self._permit {
            drop(permit.split(taken.saturating_sub(needed)));
        }
        match taken.min(needed) {
            0 => bytes.into(),
            _ => Bytes::from_owner(Held { bytes, _room: self }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn room_is_given_back_with_the_bytes_and_who_finds_none_is_told() {
        let memory = Memory::of(4 * SMALL, Duration::from_millis(20));
        let first = memory.room(4 * SMALL).await.ok().unwrap().holding(vec![7; 3 * SMALL as usize]);
        let part = first.slice(2..4);
        drop(first);
        assert!(memory.room(2 * SMALL).await.is_err(), "a part of it is still there");
        assert!(memory.room(SMALL).await.is_ok(), "what it did not need was given back");
        assert!(memory.room(10).await.is_ok(), "what is small is not asked");
        drop(part);
        assert!(memory.room(4 * SMALL).await.is_ok());
    }
}
