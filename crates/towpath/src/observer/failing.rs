//! Those that could not be looked at: for how long each is left alone, and whether that was reported. Pure.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::ObserveError;

/// How long a resource is left alone that could not be looked at. Twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// After how many looks without an answer it is reported that a resource cannot be looked at.
const REPORTED_AFTER: u32 = 3;

/// Those that could not be looked at the last time, by their keys.
pub(super) struct Failing<R> {
    by_key: HashMap<String, Failure<R>>,
    longest_pause: Duration,
}

struct Failure<R> {
    /// As it was when it failed.
    resource: R,
    code: String,
    is_reported: bool,
    times: u32,
    not_before: Instant,
}

/// What follows from a look that failed.
#[derive(Debug, PartialEq)]
pub(super) struct Consequence {
    /// For how long it is left alone.
    pub(super) pause: Duration,
    /// How often it has failed in a row.
    pub(super) times: u32,
    /// Whether people are told now.
    pub(super) is_news: bool,
}

/// Whether one that was listed is looked at.
#[derive(Debug, PartialEq)]
pub(super) enum Turn {
    /// It does not fail.
    Sound,
    /// Something new is wanted of it.
    Anew,
    /// It was left alone for long enough.
    Again,
    /// Not yet.
    LeftAlone,
}

impl<R> Failing<R> {
    pub(super) fn new(longest_pause: Duration) -> Self {
        Self { by_key: HashMap::new(), longest_pause }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.by_key.contains_key(key)
    }

    pub(super) fn clear(&mut self) {
        self.by_key.clear();
    }

    /// Whether it is its turn now, if something new is wanted of one that was as this says.
    pub(super) fn turn(&self, key: &str, now: Instant, is_anew: impl FnOnce(&R) -> bool) -> Turn {
        match self.by_key.get(key) {
            None => Turn::Sound,
            Some(failure) if is_anew(&failure.resource) => Turn::Anew,
            Some(failure) if failure.not_before <= now => Turn::Again,
            Some(_) => Turn::LeftAlone,
        }
    }

    /// It fails no more; answers whether people were told that it does.
    pub(super) fn ended(&mut self, key: &str) -> bool {
        self.by_key.remove(key).is_some_and(|failure| failure.is_reported)
    }

    /// A look at it has failed.
    pub(super) fn failed(
        &mut self,
        key: &str,
        resource: R,
        error: &ObserveError,
        now: Instant,
    ) -> Consequence {
        let (times, was_reported) = match self.by_key.get(key) {
            None => (0, false),
            // Another reason is news, but who does not answer does so in more than one way.
            Some(known) => (known.times, known.is_reported && (known.code == error.code || error.unanswered)),
        };
        let pause = doubled(FIRST_PAUSE, times).min(self.longest_pause);
        let pause = pause.max(error.retry_after.unwrap_or_default());
        let times = times.saturating_add(1);
        // A no is reported at once, and once. That nobody answers, or not now, may pass.
        let may_pass = error.unanswered || error.retry_after.is_some();
        let is_reported = was_reported || !may_pass || times >= REPORTED_AFTER;
        let failure =
            Failure { resource, code: error.code.clone(), is_reported, times, not_before: now + pause };
        self.by_key.insert(key.to_owned(), failure);
        Consequence { pause, times, is_news: is_reported && !was_reported }
    }

    /// Forgets those whose turn came so long ago: they are not listed any more.
    pub(super) fn forget(&mut self, now: Instant, after: Duration) {
        self.by_key.retain(|_, failure| failure.not_before + after > now);
    }
}

/// A pause, doubled so many times.
pub(super) fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.min(16))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(4);

    fn failed(failing: &mut Failing<u32>, error: &ObserveError, now: Instant) -> (u64, u32, bool) {
        let Consequence { pause, times, is_news } = failing.failed("book", 1, error, now);
        (u64::try_from(pause.as_millis()).unwrap(), times, is_news)
    }

    #[test]
    fn one_that_fails_is_left_alone_for_longer_each_time_and_reported_once() {
        let (mut failing, now) = (Failing::new(LONGEST), Instant::now());
        let away = ObserveError::unanswered("away", "nobody is there");
        let outcomes: Vec<_> = (0..6).map(|_| failed(&mut failing, &away, now)).collect();
        let expected = [500, 1000, 2000, 4000, 4000, 4000].into_iter().zip(1..);
        assert_eq!(
            outcomes,
            expected.map(|(pause, times)| (pause, times, times == 3)).collect::<Vec<_>>(),
            "told when it does not pass"
        );
        assert!(failing.ended("book"), "it was told");
        assert!(!failing.ended("book"));
        assert_eq!(failed(&mut failing, &away, now), (500, 1, false), "from the beginning");
    }

    #[test]
    fn a_no_is_reported_at_once_and_another_no_again() {
        let (mut failing, now) = (Failing::new(LONGEST), Instant::now());
        let is_news = |failing: &mut Failing<u32>, error: &ObserveError| failed(failing, error, now).2;
        let (forbidden, invalid) =
            (ObserveError::of_resource("forbidden", ""), ObserveError::of_resource("invalid", ""));
        assert!(is_news(&mut failing, &forbidden));
        assert!(!is_news(&mut failing, &forbidden));
        assert!(is_news(&mut failing, &invalid));
        assert!(!is_news(&mut failing, &ObserveError::timed_out(LONGEST)), "who does not answer is no news");
        assert!(!is_news(&mut failing, &ObserveError::unanswered("away", "")));
    }

    #[test]
    fn who_says_when_to_come_back_is_left_alone_until_then() {
        let (mut failing, now) = (Failing::new(LONGEST), Instant::now());
        let hour = Duration::from_secs(3600);
        let busy = ObserveError::later("busy", "not now", hour);
        assert_eq!(failed(&mut failing, &busy, now), (3_600_000, 1, false));
        let turn = |failing: &Failing<u32>, at, anew| failing.turn("book", at, |_| anew);
        assert_eq!(turn(&failing, now + hour / 2, false), Turn::LeftAlone);
        assert_eq!(turn(&failing, now, true), Turn::Anew, "something new is wanted of it");
        assert_eq!(turn(&failing, now + hour, false), Turn::Again);
        assert_eq!(failing.turn("other", now, |_| true), Turn::Sound);
        failing.forget(now + 2 * hour, hour + LONGEST);
        assert_eq!(failing.len(), 1);
        failing.forget(now + 2 * hour, hour);
        assert_eq!((failing.len(), failing.contains("book")), (0, false));
    }
}
