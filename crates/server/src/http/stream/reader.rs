//! One reader of the event stream. It holds its position and what it has just taken; nothing else grows with it.

use std::collections::VecDeque;

use bytes::Bytes;
use chrono::Utc;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use towpath::ids::{AggregateKey, Position};
use towpath::{Coded as _, Glob};

use super::feed::{Behind, Fact, Feed, Place};
use crate::http::access::{Caller, Role};
use crate::http::memory::Memory;
use crate::http::metrics;

/// How many facts are taken at a time.
const TAKEN: usize = 64;

/// How many bytes are taken at a time, if it is more than one fact. The next page of old facts is made smaller or larger
/// by it.
const PAGE_BYTES: usize = 256 << 10;

/// How many old facts are read at a time, at first and at most.
const FIRST_PAGE: u64 = 16;
const LARGEST_PAGE: u64 = 512;

/// How long a browser should wait before it comes back.
const RETRY_MILLIS: u64 = 2000;

/// Which facts a reader wants. Without types all types, without aggregates all aggregates.
#[derive(Default)]
pub(super) struct Filter {
    pub(super) event_types: Vec<Glob>,
    pub(super) aggregates: Vec<AggregateKey>,
}

impl Filter {
    fn wants(&self, fact: &Fact) -> bool {
        let of_type = self.event_types.iter().any(|glob| glob.matches(fact.event_type.as_str()));
        let of_aggregate = self.aggregates.contains(&fact.aggregate);
        (of_type || self.event_types.is_empty()) && (of_aggregate || self.aggregates.is_empty())
    }
}

/// A reader. Dropped with its connection.
pub(super) struct Reader {
    feed: Feed,
    _place: Place,
    /// For what it reads alone.
    memory: Memory,
    newest: watch::Receiver<Position>,
    stopped: watch::Receiver<bool>,
    filter: Filter,
    role: Role,
    life: u64,
    /// The last position it is done with, wanted or not.
    last: Position,
    /// The last position its client has been told.
    told: Position,
    ready: VecDeque<Bytes>,
    /// It has once been at the end of the log. From then on it must keep up.
    caught_up: bool,
    old_page: u64,
    silent_since: Instant,
    /// When its client is no longer allowed to read.
    until: Option<Instant>,
    ended: bool,
}

impl Reader {
    pub(super) fn new(
        feed: Feed,
        (place, memory): (Place, Memory),
        after: Position,
        filter: Filter,
        caller: &Caller,
    ) -> Self {
        let left = caller.until.map(|until| (until - Utc::now()).to_std().unwrap_or_default());
        // The id alone is no message, but a client that loses its connection before the first one comes back to here.
        let greeting = format!("retry: {RETRY_MILLIS}\nid: {after}\n\n");
        Self {
            newest: feed.newest(),
            stopped: feed.stopped(),
            life: feed.life(),
            feed,
            _place: place,
            memory,
            filter,
            role: caller.role,
            last: after,
            told: after,
            ready: VecDeque::from([greeting.into()]),
            caught_up: false,
            old_page: FIRST_PAGE,
            silent_since: Instant::now(),
            // One that is too far away to be told is never reached.
            until: left.and_then(|left| Instant::now().checked_add(left)),
            ended: false,
        }
    }

    /// What is sent next; `None` at the end. Nothing is taken before what was taken is sent: who does not read has its
    /// connection's buffers full and this much in memory.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                self.silent_since = Instant::now();
                return Some(message);
            }
            if self.ended || *self.stopped.borrow() {
                return None;
            }
            if self.until.is_some_and(|until| until <= Instant::now()) {
                self.drop_with(
                    "token-expired",
                    "the token of this reader has run out, or must be shown again",
                    "Come back with a token that holds and the header Last-Event-ID.",
                );
                continue;
            }
            if self.silent_since.elapsed() >= self.feed.heartbeat() {
                self.give_sign_of_life();
                continue;
            }
            // Marked as seen before it is looked: what comes after the look wakes.
            let newest = *self.newest.borrow_and_update();
            match self.feed.behind(self.last, self.life, TAKEN, PAGE_BYTES) {
                Behind::Facts(facts) => self.take(&facts),
                Behind::Nothing => {
                    self.caught_up |= self.last == newest;
                    self.wait().await;
                }
                Behind::Older if self.caught_up => self.drop_with(
                    "reader-too-slow",
                    "this reader takes facts more slowly than they happen",
                    "Come back with the header Last-Event-ID; filters make a stream lighter.",
                ),
                Behind::Older | Behind::NotBegun => self.take_old().await,
                Behind::OtherLog => self.drop_with(
                    "log-rewritten",
                    "the log is not the one it was: it has gone back behind what was sent",
                    "Begin again with ?after=0, and forget what came from the old log.",
                ),
            }
        }
    }

    async fn take_old(&mut self) {
        match self.feed.older(&self.memory, self.role, self.last, self.old_page, PAGE_BYTES as u64).await {
            // The feed will begin, or come this far.
            Ok(facts) if facts.is_empty() => self.wait().await,
            Ok(facts) => {
                let bytes: usize = facts.iter().map(|fact| fact.bytes()).sum();
                self.old_page = match bytes {
                    ..PAGE_BYTES => (self.old_page * 2).min(LARGEST_PAGE),
                    _ => (self.old_page / 4).max(1),
                };
                self.take(&facts);
            }
            Err(error) => {
                self.drop_with(error.code(), &error.to_string(), "Come back with the header Last-Event-ID.")
            }
        }
    }

    fn take(&mut self, facts: &[std::sync::Arc<Fact>]) {
        for fact in facts {
            self.last = fact.position;
            if self.filter.wants(fact) {
                self.told = fact.position;
                self.ready.push_back(fact.message_for(self.role).clone());
            }
        }
    }

    /// Waits for more, for the next sign of life, or for the end.
    async fn wait(&mut self) {
        let until = self.until.unwrap_or_else(|| self.silent_since + self.feed.heartbeat());
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            _ = self.stopped.changed() => {}
            _ = self.newest.changed() => {}
            () = tokio::time::sleep_until(self.silent_since + self.feed.heartbeat()) => {}
        }
    }

    /// A comment, and how far the log was searched for what this reader wants.
    fn give_sign_of_life(&mut self) {
        let message =
            if self.told < self.last { format!(":\nid: {}\n\n", self.last) } else { ":\n\n".to_owned() };
        self.told = self.last;
        self.ready.push_back(message.into());
    }

    /// The last message: why, and where to go on.
    fn drop_with(&mut self, code: &str, title: &str, detail: &str) {
        metrics::stream_reader_dropped();
        let problem = json!({
            "type": format!("/docs/errors/{code}"),
            "title": title,
            "code": code,
            "detail": detail,
            "resumeAfter": self.last,
        });
        self.ready.push_back(format!("event: dropped\nid: {}\ndata: {problem}\n\n", self.last).into());
        self.ended = true;
    }
}
