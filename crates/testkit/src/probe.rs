//! Probes: what a test does just before a statement is sent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use towpath_core::ports::probe::Probe;

/// Counts statements and keeps their names.
#[derive(Debug, Default)]
pub struct CountingProbe {
    names: Mutex<Vec<&'static str>>,
}

impl CountingProbe {
    /// A probe that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many statements were sent since the start or the last [`take`](Self::take).
    pub fn count(&self) -> usize {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The names of those statements, in order; counting begins anew.
    pub fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.names.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Probe for CountingProbe {
    fn before(&self, statement: &'static str) {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).push(statement);
    }
}

/// Kills its own process just before the n-th statement (the first is 0).
///
/// SIGKILL, because nothing runs after it: no destructor, no rollback, no farewell to the server. That is what
/// a power cut, an out-of-memory kill or a lost container look like to the database.
#[derive(Debug)]
pub struct KillProbe {
    countdown: Countdown,
}

impl KillProbe {
    /// Kills before statement `kill_at`.
    pub fn new(kill_at: u64) -> Self {
        Self { countdown: Countdown::new(kill_at) }
    }

    /// How many statements were let through.
    pub fn count(&self) -> u64 {
        self.countdown.seen()
    }
}

impl Probe for KillProbe {
    fn before(&self, _statement: &'static str) {
        if self.countdown.is_over() {
            kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
            // The signal may reach another thread first: this one must not get any further.
            loop {
                std::thread::park();
            }
        }
    }
}

/// Panics before the n-th statement (the first is 0) and before every later one: the in-process cousin of
/// [`KillProbe`], for stores that live in memory and would die with the process.
#[derive(Debug)]
pub struct StopProbe {
    countdown: Countdown,
}

impl StopProbe {
    /// What the panic says: a test tells by it that the stop was the one it asked for.
    pub const MESSAGE: &'static str = "stopped by StopProbe";

    /// Stops before statement `stop_at`.
    pub fn new(stop_at: u64) -> Self {
        Self { countdown: Countdown::new(stop_at) }
    }

    /// How many statements were let through.
    pub fn count(&self) -> u64 {
        self.countdown.seen()
    }
}

impl Probe for StopProbe {
    fn before(&self, statement: &'static str) {
        assert!(!self.countdown.is_over(), "{} before {statement}", Self::MESSAGE);
    }
}

/// Stands still before the n-th statement (the first is 0), once, until it is released: what others do meanwhile
/// falls exactly between two statements. Needs a runtime with several threads, because it blocks one.
#[derive(Debug)]
pub struct PauseProbe {
    countdown: Countdown,
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Paused,
    Released,
}

impl PauseProbe {
    /// After which it goes on by itself: a case that fails meanwhile must not hang.
    const LONGEST: Duration = Duration::from_secs(120);

    /// Pauses before statement `pause_at`.
    pub fn new(pause_at: u64) -> Self {
        Self {
            countdown: Countdown::new(pause_at),
            stage: Mutex::new(Stage::Running),
            changed: Condvar::new(),
        }
    }

    /// Whether it stands still now.
    pub fn is_paused(&self) -> bool {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) == Stage::Paused
    }

    /// Lets it go on, and never pauses it again.
    pub fn release(&self) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = Stage::Released;
        self.changed.notify_all();
    }
}

impl Probe for PauseProbe {
    fn before(&self, _statement: &'static str) {
        if !self.countdown.is_over() {
            return;
        }
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if *stage == Stage::Running {
            *stage = Stage::Paused;
            tokio::task::block_in_place(|| {
                let paused = |stage: &mut Stage| *stage == Stage::Paused;
                drop(self.changed.wait_timeout_while(stage, Self::LONGEST, paused));
            });
        }
    }
}

#[derive(Debug)]
struct Countdown {
    limit: u64,
    seen: AtomicU64,
}

impl Countdown {
    fn new(limit: u64) -> Self {
        Self { limit, seen: AtomicU64::new(0) }
    }

    /// Whether the statement that is about to be sent is at or behind the limit.
    fn is_over(&self) -> bool {
        self.seen
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |seen| (seen < self.limit).then_some(seen + 1))
            .is_err()
    }

    fn seen(&self) -> u64 {
        self.seen.load(Ordering::SeqCst)
    }
}

/// Makes one condition of one statement true, as if somebody had forgotten to write it.
#[derive(Debug)]
pub struct MutantProbe {
    statement: &'static str,
    condition: &'static str,
    was_met: AtomicBool,
}

impl MutantProbe {
    /// Takes the last condition of that text out of the statements of that name.
    pub fn without(statement: &'static str, condition: &'static str) -> Self {
        Self { statement, condition, was_met: AtomicBool::new(false) }
    }

    /// Whether a statement of that name with that condition was run. If not, it has another name or another text by now.
    pub fn was_met(&self) -> bool {
        self.was_met.load(Ordering::SeqCst)
    }
}

impl Probe for MutantProbe {
    fn before(&self, _statement: &'static str) {}

    fn instead(&self, statement: &'static str, sql: &str) -> Option<String> {
        let at = sql.rfind(self.condition).filter(|_| statement == self.statement)?;
        self.was_met.store(true, Ordering::SeqCst);
        let (before, rest) = sql.split_at(at);
        // It stays, because its values are bound.
        Some(format!("{before}({} OR 1 = 1){}", self.condition, &rest[self.condition.len()..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_keeps_names_in_order_and_begins_anew() {
        let probe = CountingProbe::new();
        probe.before("load");
        probe.before("commit");
        assert_eq!(probe.count(), 2);
        assert_eq!(probe.take(), ["load", "commit"]);
        assert_eq!(probe.count(), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn pausing_stands_still_once_and_goes_on_when_released() {
        let probe = std::sync::Arc::new(PauseProbe::new(1));
        let paused = std::sync::Arc::clone(&probe);
        let running = tokio::spawn(async move { ["a", "b", "c"].map(|name| paused.before(name)) });
        while !probe.is_paused() {
            tokio::task::yield_now().await;
        }
        assert!(!running.is_finished());
        probe.release();
        running.await.unwrap();
        assert!(!probe.is_paused());
    }

    #[test]
    fn stopping_lets_n_statements_through_and_none_after() {
        let probe = StopProbe::new(2);
        probe.before("a");
        probe.before("b");
        for _ in 0..2 {
            let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| probe.before("c")));
            let message = *stopped.unwrap_err().downcast::<String>().unwrap();
            assert!(message.starts_with(StopProbe::MESSAGE), "{message}");
        }
        assert_eq!(probe.count(), 2);
    }
}
