//! What the broker said no to, and which exchanges are known to be there.
//!
//! The broker closes a channel over a message to an exchange that does not exist, or that we may not write to, and the
//! connection has to go with it (see `publishing`). So exchanges are asked for before the first message, on a channel that
//! carries nothing else, and a no is remembered for a while: nobody connects again and again over it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;
use towpath_core::ports::broker::Destination;

use super::link::Live;

/// An exchange that is missing is asked for at most this often.
const ASKING_PACE: Duration = Duration::from_secs(1);

/// How long a destination that the broker denies is left alone the first time, and at most. Each try costs a connection.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What one publisher has learnt.
#[derive(Default)]
pub(super) struct Refusals {
    /// Exchanges that were there when they were asked for on this connection.
    present: HashSet<String>,
    connection: Weak<Live>,
    missing: HashMap<String, Instant>,
    denied: HashMap<Destination, Denied>,
}

struct Denied {
    reason: String,
    until: Instant,
    pause: Duration,
}

/// What is known of a destination.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing speaks against it.
    Open,
    /// Its exchange has not been asked for on this connection.
    NotAsked,
    /// The broker said no just now.
    Refused(String),
}

impl Refusals {
    /// What is known of a destination on this connection, at this time.
    pub(super) fn known(&self, to: &Destination, live: &Arc<Live>, now: Instant) -> Known {
        if let Some(denied) = self.denied.get(to).filter(|denied| denied.until > now) {
            return Known::Refused(denied.reason.clone());
        }
        if self.missing.get(&to.exchange).is_some_and(|until| *until > now) {
            return Known::Refused(no_exchange(&to.exchange));
        }
        let same = std::ptr::eq(self.connection.as_ptr(), Arc::as_ptr(live));
        // The default exchange is always there, and may not be asked for.
        if to.exchange.is_empty() || (same && self.present.contains(&to.exchange)) {
            Known::Open
        } else {
            Known::NotAsked
        }
    }

    /// An exchange was asked for on this connection, and is there or not.
    pub(super) fn asked(&mut self, exchange: &str, live: &Arc<Live>, is_there: bool, now: Instant) {
        if !std::ptr::eq(self.connection.as_ptr(), Arc::as_ptr(live)) {
            self.connection = Arc::downgrade(live);
            self.present.clear();
        }
        if is_there {
            self.missing.remove(exchange);
            self.present.insert(exchange.to_owned());
        } else {
            self.present.remove(exchange);
            self.missing.retain(|_, until| *until > now);
            self.missing.insert(exchange.to_owned(), now + ASKING_PACE);
        }
    }

    /// The broker closed a channel over a message to this destination.
    pub(super) fn denied(&mut self, to: &Destination, reason: &str, now: Instant) {
        let before = self.denied.get(to).map(|denied| denied.pause.saturating_mul(2).min(LONGEST_PAUSE));
        let pause = before.unwrap_or(FIRST_PAUSE);
        // What was left alone for so long that it may be forgotten.
        self.denied.retain(|_, denied| denied.until + LONGEST_PAUSE > now);
        let denied = Denied { reason: reason.to_owned(), until: now + pause, pause };
        self.denied.insert(to.clone(), denied);
    }

    /// These exchanges have just been declared.
    pub(super) fn forget<'e>(&mut self, exchanges: impl IntoIterator<Item = &'e str>) {
        for exchange in exchanges {
            self.missing.remove(exchange);
        }
    }
}

/// As people read it.
pub(super) fn no_exchange(exchange: &str) -> String {
    format!("there is no exchange {exchange} on the broker")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_that_is_denied_is_left_alone_for_longer_and_longer() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let to = Destination { exchange: "e".to_owned(), routing_key: "k".to_owned() };
        let mut pauses = Vec::new();
        let mut at = now;
        for _ in 0..7 {
            refusals.denied(&to, "no", at);
            pauses.push(refusals.denied[&to].pause.as_secs());
            at = refusals.denied[&to].until;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        // Left in peace for long enough, it begins anew.
        let other = Destination { exchange: "other".to_owned(), ..to.clone() };
        refusals.denied(&other, "no", at + LONGEST_PAUSE * 2);
        assert!(!refusals.denied.contains_key(&to));
    }

    #[test]
    fn an_exchange_that_is_declared_is_asked_for_again() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        refusals.missing.insert("e".to_owned(), now + ASKING_PACE);
        refusals.forget(["e"]);
        assert!(refusals.missing.is_empty());
    }
}
