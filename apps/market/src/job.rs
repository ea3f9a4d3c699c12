//! Something that is done again and again until the market is stopped.

use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

/// How long it is waited for a job that was cut off: it ends where it waits next.
const CUT_OFF: Duration = Duration::from_secs(1);

/// A job, while it runs. Without one it is stopped all the same.
pub(crate) struct Job {
    stop: watch::Sender<bool>,
    running: Mutex<Option<JoinHandle<()>>>,
}

/// Whether a job is to end. Also when it is gone without having been stopped.
#[derive(Clone)]
pub(crate) struct Stopping(watch::Receiver<bool>);

impl Stopping {
    pub(crate) fn is_asked(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Waits so long, or until it is to end; answers whether it goes on.
    pub(crate) async fn rest(&mut self, long: Duration) -> bool {
        tokio::select! {
            _ = self.0.wait_for(|stop| *stop) => false,
            () = tokio::time::sleep(long) => true,
        }
    }
}

impl Job {
    /// Starts what a function makes of the sign to stop, if it makes anything.
    pub(crate) fn start<F: Future<Output = ()> + Send + 'static>(
        make: impl FnOnce(Stopping) -> Option<F>,
    ) -> Self {
        let (stop, stopping) = watch::channel(false);
        Self { stop, running: Mutex::new(make(Stopping(stopping)).map(tokio::spawn)) }
    }

    pub(crate) fn stopping(&self) -> Stopping {
        Stopping(self.stop.subscribe())
    }

    /// Ends after what it is at. What has not ended by then is cut off: its transaction is rolled back. Twice is fine.
    /// Answers whether it ended by itself.
    pub(crate) async fn stop_by(&self, deadline: Instant) -> bool {
        self.stop.send_replace(true);
        // Somebody else may be stopping it, too, and cuts it off.
        let Ok(mut running) = timeout_at(deadline, self.running.lock()).await else { return false };
        let Some(mut job) = running.take() else { return true };
        let ended = match timeout_at(deadline, &mut job).await {
            Ok(ended) => ended,
            Err(_) => {
                tracing::warn!("a job of the market did not end in time and was cut off");
                job.abort();
                let _ = timeout(CUT_OFF, job).await;
                return false;
            }
        };
        if let Err(error) = ended {
            tracing::error!(%error, "a job of the market ended badly");
        }
        true
    }
}

/// So that instances do not work in step.
pub(crate) fn uneven(pause: Duration) -> Duration {
    let chance = f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 255.0;
    pause.mul_f64(0.9 + 0.1 * chance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_that_does_not_end_is_cut_off() {
        let (held, mut let_go) = tokio::sync::mpsc::unbounded_channel::<()>();
        let job = Job::start(|_| {
            Some(async move {
                std::future::pending::<()>().await;
                drop(held);
            })
        });
        let stopped = timeout(Duration::from_secs(20), job.stop_by(Instant::now())).await;
        assert_eq!(stopped.ok(), Some(false));
        assert!(let_go.recv().await.is_none(), "nothing of it is left");
        assert!(job.stop_by(Instant::now()).await, "a second time there is nothing to wait for");
    }
}
