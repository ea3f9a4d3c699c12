//! Waiting without sleeping: on conditions with a deadline, on all at once, on a turn after contention.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::time::{Instant, timeout};
use towpath_core::ports::store::{StoreError, StoreResult};

use crate::probe::PauseProbe;

/// After which a step counts as stuck. Generous, because machines of continuous integration are slow and a case
/// that passes never waits for it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How often a condition is looked at.
pub(super) const POLL: Duration = Duration::from_millis(5);

/// Looks at a condition until it answers something.
///
/// # Panics
/// When it has not after [`PATIENCE`].
pub async fn eventually<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = look().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: not so after {PATIENCE:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// Waits for a step that must not be stuck.
///
/// # Panics
/// When it is not done after [`PATIENCE`].
pub async fn in_time<T>(what: &str, step: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, step).await {
        Ok(answer) => answer,
        Err(_) => panic!("{what}: still not done after {PATIENCE:?}"),
    }
}

/// Runs something again as long as the database gives way to others: the contract allows that when writers meet,
/// and asks the caller to try again.
pub async fn taking_turns<T, F>(mut attempt: impl FnMut() -> F) -> StoreResult<T>
where
    F: Future<Output = StoreResult<T>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt().await {
            Err(StoreError::Contention(cause)) => {
                assert!(Instant::now() < deadline, "nothing but contention for {PATIENCE:?}: {cause}");
                tokio::task::yield_now().await;
            }
            answer => return answer,
        }
    }
}

/// Starts all tasks at the same moment, and answers what they answered, in their order.
///
/// # Panics
/// When one of them does, with its message.
pub async fn all_at_once<T: Send + 'static>(
    tasks: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = tasks.into_iter().collect();
    let start = Arc::new(Barrier::new(tasks.len()));
    let running: Vec<_> = tasks
        .into_iter()
        .map(|task| {
            let start = Arc::clone(&start);
            tokio::spawn(async move {
                start.wait().await;
                task.await
            })
        })
        .collect();
    let mut answers = Vec::with_capacity(running.len());
    for task in running {
        answers.push(answer_of(task).await);
    }
    answers
}

/// The answer of a spawned task; its panic is ours.
pub async fn answer_of<T>(task: tokio::task::JoinHandle<T>) -> T {
    match in_time("a spawned task", task).await {
        Ok(answer) => answer,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => panic!("a task was cancelled: {error}"),
    }
}

/// Waits until a task has ended, or has had a fair chance to run into the lock it should wait for. Answers whether it
/// has ended.
///
/// What this waits for cannot be seen from outside: that a statement waits in the database. The time decides how much
/// a case sees of a broken store; a sound one passes however long it is.
pub async fn fair_chance<T>(task: &tokio::task::JoinHandle<T>) -> bool {
    let end = Instant::now() + Duration::from_millis(300);
    while !task.is_finished() && Instant::now() < end {
        tokio::time::sleep(POLL).await;
    }
    task.is_finished()
}

/// Runs the first up to the statement at which its probe pauses, then the second until it has ended or waits for the
/// first, then the rest of both. Answers what they answered, and whether the first got as far as its pause: a case that
/// pauses at 0, 1, 2 and so on is through when it did not.
pub async fn interleave<A: Send + 'static, B: Send + 'static>(
    probe: &PauseProbe,
    first: impl Future<Output = A> + Send + 'static,
    second: impl Future<Output = B> + Send + 'static,
) -> (A, B, bool) {
    let first = tokio::spawn(first);
    eventually("a pause or an end", || async { (probe.is_paused() || first.is_finished()).then_some(()) })
        .await;
    let paused = probe.is_paused();
    let second = tokio::spawn(second);
    fair_chance(&second).await;
    probe.release();
    (answer_of(first).await, answer_of(second).await, paused)
}

/// Runs the first up to the statement at which its probe pauses, then the whole of the second, which must not wait for
/// the first, then the rest of the first. Answers as [`interleave`] does.
///
/// # Panics
/// When the second is not done after [`PATIENCE`].
pub async fn run_beside<A: Send + 'static, B>(
    probe: &PauseProbe,
    first: impl Future<Output = A> + Send + 'static,
    second: impl Future<Output = B>,
) -> (A, B, bool) {
    let first = tokio::spawn(first);
    eventually("a pause or an end", || async { (probe.is_paused() || first.is_finished()).then_some(()) })
        .await;
    let paused = probe.is_paused();
    let second = timeout(PATIENCE, second).await;
    probe.release();
    let first = answer_of(first).await;
    match second {
        Ok(second) => (first, second, paused),
        Err(_) => panic!("the second waited for the first, which stood still"),
    }
}

/// Random enough, and the same every time: a failure can be repeated. (SplitMix64.)
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall the same way for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }
}
