//! Something that is done again and again until the market is stopped.

use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

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

    /// Ends after what it is at. Twice is fine.
    pub(crate) async fn stop(&self) {
        self.stop.send_replace(true);
        if let Some(job) = self.running.lock().await.take()
            && let Err(error) = job.await
        {
            tracing::error!(%error, "a job of the market ended badly");
        }
    }
}

/// So that instances do not work in step.
pub(crate) fn uneven(pause: Duration) -> Duration {
    let chance = f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 255.0;
    pause.mul_f64(0.9 + 0.1 * chance)
}
