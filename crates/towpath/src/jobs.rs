//! Jobs: what an application does again and again, for as long as Towpath runs.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use towpath_core::ids::LeaseName;

use crate::bus::random_unit;
use crate::consumer::HandlerError;
use crate::holding::{self, Held, Keeper, while_held};
use crate::service::{Service, Stopping, Wake, rest};
use crate::towpath::Towpath;

/// Something that is done again and again while Towpath runs: at the start, and then after each pause.
///
/// ```no_run
/// # use std::time::Duration;
/// # use towpath::{Job, Towpath, Turn};
/// let close_old_offers = Job::named("close-offers", Duration::from_secs(60), async |turn: Turn| {
///     turn.app.transact(async |mut tx| tx.execute("DELETE FROM offers WHERE is_old = 1", &[]).await).await?;
///     Ok(())
/// });
/// let builder = Towpath::builder().job(close_old_offers.alone());
/// ```
///
/// # Guarantees
/// A turn that fails or panics is logged, and the next one comes after the pause. A stop waits for the turn it meets, and
/// cuts it off when its patience is over.
///
/// # Caveats
/// It is not done without workers ([`Builder::without_workers`](crate::Builder::without_workers)). A turn may be cut off
/// anywhere: what must be true together belongs into one transaction.
pub struct Job {
    name: String,
    pause: Duration,
    alone: bool,
    run: Arc<dyn Fn(Turn) -> BoxFuture<'static, Result<(), HandlerError>> + Send + Sync>,
}

/// One turn of a job.
pub struct Turn {
    /// Towpath, as an application has it.
    pub app: Towpath,
    stopping: Stopping,
}

impl Job {
    /// Declares a job, and how long it rests between two turns. The pause is cut a little by chance, so that instances do not
    /// work in step.
    pub fn named<F, Done>(name: impl Into<String>, pause: Duration, run: F) -> Self
    where
        F: Fn(Turn) -> Done + Send + Sync + 'static,
        Done: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        let run = Arc::new(move |turn| run(turn).boxed());
        Self { name: name.into(), pause, alone: false, run }
    }

    /// Of all instances one does it, under the lease `job/<name>`. A turn is cut off when the lease may be somebody else's by
    /// now.
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Turn {
    /// Whether Towpath is being stopped: a long turn looks now and then, and ends early.
    pub fn is_last(&self) -> bool {
        self.stopping.is_asked()
    }
}

/// Starts a job. `app` is a handle without services.
pub(crate) fn start(job: Job, app: &Towpath, lease: Duration) -> Service {
    let (job, app) = (Arc::new(job), app.clone());
    Service::keep_running(format!("job {}", job.name), move |stopping| {
        let (job, app) = (Arc::clone(&job), app.clone());
        async move {
            if job.alone {
                job.run_alone(app, lease, stopping).await
            } else {
                job.run(app, None, stopping).await
            }
        }
    })
}

impl Job {
    async fn run_alone(&self, app: Towpath, lease: Duration, stopping: Stopping) {
        let keeper = Keeper {
            store: app.bus.store.clone(),
            name: LeaseName::from_stored(format!("job/{}", self.name)),
            instance: app.instance.clone(),
            lease,
        };
        let (publish, held) = watch::channel(None);
        tokio::select! {
            () = holding::keep(&keeper, &publish) => {}
            () = self.run(app, Some(held), stopping) => {}
        }
        holding::give_back(&keeper, &publish).await;
    }

    /// Turn after turn until it is told to stop: where there is a lease, under it.
    async fn run(&self, app: Towpath, held: Option<watch::Receiver<Option<Held>>>, mut stopping: Stopping) {
        while !stopping.is_asked() {
            let turn = self.turn(Turn { app: app.clone(), stopping: stopping.clone() });
            match &held {
                None => turn.await,
                Some(held) => {
                    let mut waiting = held.clone();
                    let holds = tokio::select! {
                        () = stopping.asked() => return,
                        holds = waiting.wait_for(|held| held.as_ref().is_some_and(Held::is_sure)) => {
                            holds.ok().and_then(|held| held.clone())
                        }
                    };
                    let Some(holds) = holds else { return };
                    if while_held(held.clone(), &holds.grant, turn).await.is_none() {
                        tracing::warn!(
                            job = self.name,
                            "a job was cut off: its lease may be another instance's"
                        );
                    }
                }
            }
            rest(&Wake::default(), self.pause.mul_f64(0.9 + 0.1 * random_unit()), &mut stopping).await;
        }
    }

    async fn turn(&self, turn: Turn) {
        // The call itself is inside: it may panic before it has made its future.
        let turn = AssertUnwindSafe(async { (self.run)(turn).await }).catch_unwind();
        match turn.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(job = self.name, code = error.code(), cause = error.message(), "a job failed");
            }
            Err(_) => tracing::error!(job = self.name, "a job panicked"),
        }
    }
}
