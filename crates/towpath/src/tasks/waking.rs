//! Who is told that there may be a task to take: the engine of this process, and all who wait for workers elsewhere.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::service::Wake;

/// How long nobody is told who waits: not every commit of another process is heard of here.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Who waits looks no more often than this, however often it is told: each of many is told of each commit.
const LOOKS_APART: Duration = Duration::from_millis(100);

/// Nobody waits for longer.
const LONGEST: Duration = Duration::from_secs(3600);

/// Leave to wait, kept while somebody does.
type Leave = Box<dyn Send + Sync>;

tokio::task_local! {
    static LEAVE: Arc<dyn Fn() -> Option<Leave> + Send + Sync>;
}

/// Does some work in which nobody waits for tasks ([`claim_tasks`](crate::Towpath::claim_tasks),
/// [`waiting_tasks`](crate::Towpath::waiting_tasks)) without leave: it is asked for where there is nothing to take, and kept to
/// the end of the wait. Who gets none is answered at once, as if it did not want to wait.
pub async fn waiting_by_leave<P: Send + Sync + 'static, T>(
    leave: impl Fn() -> Option<P> + Send + Sync + 'static,
    work: impl Future<Output = T>,
) -> T {
    LEAVE.scope(Arc::new(move || leave().map(|leave| Box::new(leave) as Leave)), work).await
}

/// Leave to wait; nobody needs any where none was said to be needed.
fn leave() -> Option<Leave> {
    LEAVE.try_with(|leave| leave()).unwrap_or_else(|_| Some(Box::new(())))
}

/// Wakes who takes tasks. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct TaskWake {
    engine: Wake,
    /// Whether nobody waits any more: the process is about to stop.
    others: Arc<watch::Sender<bool>>,
}

/// Waits for tasks.
pub(super) struct Waiting {
    told: watch::Receiver<bool>,
    deadline: Instant,
    leave: Option<Leave>,
    /// When it was last told to look.
    looked: Option<Instant>,
}

impl TaskWake {
    /// There may be something to take.
    pub(crate) fn wake(&self) {
        self.engine.wake();
        // What is said stays the same; that it is said is what is heard.
        self.others.send_modify(|_| {});
    }

    /// Waits until the engine is woken.
    pub(super) async fn woken(&self) {
        self.engine.woken().await;
    }

    /// Begins to wait, so long at most: what is told from now on is heard.
    pub(super) fn wait(&self, at_most: Duration) -> Waiting {
        let deadline = Instant::now() + at_most.min(LONGEST);
        Waiting { told: self.others.subscribe(), deadline, leave: None, looked: None }
    }

    /// Whoever waits is let go, and so is who comes later.
    pub(super) fn stop(&self) {
        self.others.send_replace(true);
    }
}

impl Waiting {
    /// Waits until there may be something; answers whether it is worth another look.
    pub(super) async fn go_on(&mut self) -> bool {
        if *self.told.borrow() || Instant::now() >= self.deadline {
            return false;
        }
        self.leave = self.leave.take().or_else(leave);
        if self.leave.is_none() {
            return false;
        }
        let again = self.deadline.min(Instant::now() + LOOK_AGAIN);
        let _ = tokio::time::timeout_at(again, self.told.changed()).await;
        if let Some(looked) = self.looked {
            tokio::time::sleep_until(self.deadline.min(looked + LOOKS_APART)).await;
        }
        self.looked = Some(Instant::now());
        !*self.told.borrow()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn who_waits_is_told_at_once() {
        let wake = TaskWake::default();
        let mut waiting = wake.wait(LONGEST);
        assert_eq!(waiting.go_on().now_or_never(), None, "nothing was told");
        wake.wake();
        assert_eq!(waiting.go_on().now_or_never(), Some(true), "also who was told before it waits");
        assert_eq!(waiting.go_on().now_or_never(), None, "and only once");
        assert_eq!(wake.wait(Duration::ZERO).go_on().now_or_never(), Some(false), "its time is over");
        wake.stop();
        assert_eq!(waiting.go_on().now_or_never(), Some(false));
        assert_eq!(wake.wait(LONGEST).go_on().now_or_never(), Some(false), "nobody waits any more");
    }

    #[tokio::test]
    async fn who_is_told_all_the_time_looks_now_and_then() {
        let wake = TaskWake::default();
        let mut waiting = wake.wait(3 * LOOKS_APART);
        let telling = async {
            loop {
                wake.wake();
                tokio::task::yield_now().await;
            }
        };
        let looking = async {
            let mut looks = 0;
            while waiting.go_on().await {
                looks += 1;
            }
            looks
        };
        let looks = tokio::select! { looks = looking => looks, () = telling => 0 };
        assert!((1..=5).contains(&looks), "{looks}");
    }

    #[tokio::test]
    async fn who_has_no_leave_does_not_wait() {
        let (wake, leave) = (TaskWake::default(), Arc::new(tokio::sync::Semaphore::new(1)));
        let ask = move || Arc::clone(&leave).try_acquire_owned().ok();
        let work = async {
            let (mut one, mut other) = (wake.wait(LONGEST), wake.wait(LONGEST));
            assert_eq!(one.go_on().now_or_never(), None, "it waits");
            assert_eq!(other.go_on().now_or_never(), Some(false), "as many wait as may");
            drop(one);
            assert_eq!(other.go_on().now_or_never(), None);
        };
        waiting_by_leave(ask, work).await;
    }
}
