//! The clocks: the machine's, and the database's as it is told between two questions.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use towpath_core::envelope::to_stored_precision;
use towpath_core::ports::clock::Clock;
use towpath_core::ports::store::{Store, StoreResult};
use towpath_core::retry::Coded as _;

use crate::bus::with_causes;
use crate::service::{Service, Stopping, Wake, rest};

/// How often the database is asked for its time.
const EVERY: Duration = Duration::from_secs(10);

/// An answer that took longer says too little about when it was given.
const SLOWEST_ANSWER: Duration = Duration::from_secs(1);

/// By so much the time may be ahead of a new answer and waits for it instead of going back.
const LONGEST_STANDSTILL: TimeDelta = TimeDelta::seconds(5);

/// A host that is off by more is told so.
const WORTH_TELLING: TimeDelta = TimeDelta::seconds(2);

/// As finely as SQLite tells the time.
const FINENESS: TimeDelta = TimeDelta::milliseconds(1);

/// Reads the system's clock, cut to the microseconds that every database keeps.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> DateTime<Utc> {
        to_stored_precision(Utc::now())
    }
}

/// The database's time, without a question each time: the last answer, and how long ago that was by a clock that
/// nobody sets. All hosts of a database so agree on what is due and what is old, whatever their own clocks say.
#[derive(Clone)]
pub(crate) struct DatabaseClock(Arc<Shared>);

struct Shared {
    answer: RwLock<Answer>,
    /// The last time that was told, in microseconds.
    told: AtomicI64,
}

/// What time it was at which moment.
#[derive(Debug, Clone, Copy)]
struct Answer {
    time: DateTime<Utc>,
    at: Instant,
}

impl DatabaseClock {
    /// Asks for the first time.
    pub(crate) async fn of(store: &dyn Store) -> StoreResult<Self> {
        let (answer, _) = ask(store).await?;
        let off = SystemClock.now() - to_time(answer);
        if off.abs() > WORTH_TELLING {
            tracing::warn!(
                seconds = off.num_seconds(),
                "the clock of this host differs from the database's, which counts"
            );
        }
        let told = AtomicI64::new(answer.time.timestamp_micros());
        Ok(Self(Arc::new(Shared { answer: RwLock::new(answer), told })))
    }

    /// Asks the database and answers its time.
    pub(crate) async fn ask(&self, store: &dyn Store) -> StoreResult<DateTime<Utc>> {
        let (answer, took) = ask(store).await?;
        if took <= SLOWEST_ANSWER {
            self.set(answer);
        }
        Ok(to_time(answer))
    }

    /// Starts to ask again and again.
    pub(crate) fn keep(&self, store: Arc<dyn Store>) -> Service {
        let clock = self.clone();
        Service::keep_running("clock", move |stopping| clock.clone().run(store.clone(), stopping))
    }

    async fn run(self, store: Arc<dyn Store>, mut stopping: Stopping) {
        let nobody = Wake::default();
        loop {
            rest(&nobody, EVERY, &mut stopping).await;
            if stopping.is_asked() {
                return;
            }
            // While the database is away the time goes on by itself.
            if let Err(error) = self.ask(store.as_ref()).await {
                tracing::debug!(
                    code = error.code(),
                    cause = with_causes(&error),
                    "could not ask for the time"
                );
            }
        }
    }

    fn set(&self, answer: Answer) {
        let mut held = self.0.answer.write().unwrap_or_else(PoisonError::into_inner);
        let off = to_time(answer) - to_time(*held);
        if off.abs() > WORTH_TELLING {
            tracing::warn!(seconds = off.num_seconds(), "the database's clock was set");
        }
        *held = answer;
    }
}

impl Clock for DatabaseClock {
    fn now(&self) -> DateTime<Utc> {
        let answer = *self.0.answer.read().unwrap_or_else(PoisonError::into_inner);
        let now = to_time(answer);
        let before = self.0.told.fetch_max(now.timestamp_micros(), Ordering::SeqCst);
        let ahead = TimeDelta::microseconds(before.saturating_sub(now.timestamp_micros()));
        if ahead <= TimeDelta::zero() {
            return now;
        }
        if ahead <= LONGEST_STANDSTILL {
            return DateTime::from_timestamp_micros(before).unwrap_or(now);
        }
        // The database's clock was set back: standing still until then would stop all that is due.
        self.0.told.store(now.timestamp_micros(), Ordering::SeqCst);
        now
    }
}

/// What time it is now by an answer of some time ago.
fn to_time(answer: Answer) -> DateTime<Utc> {
    let since = TimeDelta::from_std(answer.at.elapsed()).unwrap_or_default();
    to_stored_precision(answer.time.checked_add_signed(since).unwrap_or(answer.time))
}

/// Asks the database for its time; and how long that took.
async fn ask(store: &dyn Store) -> StoreResult<(Answer, Duration)> {
    let (asked_at, host_before) = (Instant::now(), SystemClock.now());
    let time = store.now().await?;
    let (answered_at, host_after) = (Instant::now(), SystemClock.now());
    let took = answered_at.duration_since(asked_at);
    // Where the two cannot be told apart the host's is as good, and does not jump with each answer.
    if host_before - FINENESS <= time && time <= host_after {
        return Ok((Answer { time: host_after, at: answered_at }, took));
    }
    // It was read somewhere on the way.
    Ok((Answer { time, at: asked_at + took / 2 }, took))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_700_000_000 + seconds, 0).unwrap()
    }

    fn clock(time: DateTime<Utc>) -> DatabaseClock {
        let answer = RwLock::new(Answer { time, at: Instant::now() });
        let told = AtomicI64::new(time.timestamp_micros());
        DatabaseClock(Arc::new(Shared { answer, told }))
    }

    fn is_about(told: DateTime<Utc>, expected: DateTime<Utc>) {
        let off = told - expected;
        assert!(off >= TimeDelta::zero() && off < TimeDelta::seconds(30), "{told} instead of {expected}");
    }

    #[test]
    fn it_tells_the_databases_time_whatever_the_hosts_clock_says() {
        is_about(clock(moment(0)).now(), moment(0));
    }

    #[test]
    fn it_stands_still_for_a_moment_rather_than_go_back() {
        let clock = clock(moment(0));
        let before = clock.now();
        clock.set(Answer { time: moment(-2), at: Instant::now() });
        assert!(clock.now() >= before, "two seconds are waited for");
    }

    #[test]
    fn it_follows_a_database_whose_clock_is_set() {
        let clock = clock(moment(0));
        clock.now();
        clock.set(Answer { time: moment(-3600), at: Instant::now() });
        is_about(clock.now(), moment(-3600));
        clock.set(Answer { time: moment(3600), at: Instant::now() });
        is_about(clock.now(), moment(3600));
    }
}
