//! Shares: how much one caller may have of something that all callers use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

/// After so many callers, those that have nothing are forgotten: callers come and go.
const FORGET_AT: usize = 1000;

/// How much each caller may have. One that has nothing is not remembered.
pub(super) struct Shares {
    each: usize,
    of: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Shares {
    pub(super) fn of(each: usize) -> Self {
        Self { each, of: Mutex::default() }
    }

    /// How much each has.
    pub(super) fn each(&self) -> usize {
        self.each
    }

    /// A caller's share. What is taken out of it keeps it.
    pub(super) fn share_of(&self, caller: &str) -> Arc<Semaphore> {
        let mut shares = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(caller).and_then(Weak::upgrade) {
            return share;
        }
        if shares.len() >= FORGET_AT {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let share = Arc::new(Semaphore::new(self.each.min(Semaphore::MAX_PERMITS)));
        shares.insert(caller.to_owned(), Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_the_callers_while_something_of_it_is_taken() {
        let shares = Shares::of(2);
        let _first = shares.share_of("ann").try_acquire_owned().unwrap();
        let second = shares.share_of("ann").try_acquire_owned().unwrap();
        assert!(shares.share_of("ann").try_acquire_owned().is_err());
        assert!(shares.share_of("bob").try_acquire_owned().is_ok(), "another has another");
        drop(second);
        assert!(shares.share_of("ann").try_acquire_owned().is_ok());
    }

    #[test]
    fn callers_that_have_nothing_are_forgotten() {
        let shares = Shares::of(1);
        let _kept = shares.share_of("kept").try_acquire_owned().unwrap();
        for number in 0..5 * FORGET_AT {
            shares.share_of(&number.to_string());
        }
        assert!(shares.of.lock().unwrap().len() <= FORGET_AT);
        assert!(shares.share_of("kept").try_acquire_owned().is_err());
    }
}
