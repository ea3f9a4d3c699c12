//! Background services: one shape for all of them.
//!
//! A service is a task with a name that can be told to stop. Stopping twice, or before it has begun, is fine;
//! dropping it tells it to stop without waiting. One that does not end in time is cut off.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use towpath_core::time::doubled;

use crate::bus::random_unit;

/// How long a service that panicked is left alone: what it fell over may be gone by then, and if not, the log should not
/// fill with it.
const PAUSE_AFTER_PANIC: Duration = Duration::from_secs(1);

/// How long it is waited for a service that was cut off: it ends where it waits next.
const CUT_OFF: Duration = Duration::from_secs(1);

/// How long a service that is stopped has for what it is at, where nobody says otherwise.
pub(crate) const STOPPING: Duration = Duration::from_secs(30);

/// A running background service.
pub(crate) struct Service {
    name: Cow<'static, str>,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

/// The side of the service that is told to stop.
#[derive(Clone)]
pub(crate) struct Stopping(watch::Receiver<bool>);

/// Wakes a service of this process before its next look.
#[derive(Clone, Default)]
pub(crate) struct Wake(Arc<Notify>);

impl Wake {
    /// Wakes it now, or at the moment it goes to rest.
    pub(crate) fn wake(&self) {
        self.0.notify_one();
    }

    /// Waits until it is woken.
    pub(crate) async fn woken(&self) {
        self.0.notified().await;
    }
}

/// Rests until woken, until the time is over, or until told to stop.
pub(crate) async fn rest(wake: &Wake, at_most: Duration, stopping: &mut Stopping) {
    tokio::select! {
        () = stopping.asked() => {}
        () = wake.0.notified() => {}
        () = tokio::time::sleep(at_most) => {}
    }
}

/// Waits that grow while something is away, each cut by chance so that shafts and instances do not return in step.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    waits: u32,
}

impl Backoff {
    const SHORTEST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);

    pub(crate) fn next(&mut self) -> Duration {
        self.next_within(Self::LONGEST).max(Self::SHORTEST)
    }

    /// The same for who may not wait so long.
    pub(crate) fn next_within(&mut self, longest: Duration) -> Duration {
        let whole = doubled(Self::SHORTEST, self.waits, longest);
        self.waits = self.waits.saturating_add(1);
        whole / 2 + (whole / 2).mul_f64(random_unit())
    }

    pub(crate) fn reset(&mut self) {
        self.waits = 0;
    }
}

impl Service {
    /// Starts a service that runs once.
    pub(crate) fn start<F>(name: impl Into<Cow<'static, str>>, run: impl FnOnce(Stopping) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, receiver) = watch::channel(false);
        let task = tokio::spawn(run(Stopping(receiver)));
        Self { name: name.into(), stop, task: Some(task) }
    }

    /// Starts a service that is started again, after a pause, when it panics. What it holds (leases, claims) lives on with
    /// the instance: were it gone, nobody else would do its work.
    pub(crate) fn keep_running<F>(
        name: impl Into<Cow<'static, str>>,
        run: impl Fn(Stopping) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let name = name.into();
        Self::start(name.clone(), |mut stopping| async move {
            while let Err(error) = Attached(tokio::spawn(run(stopping.clone()))).ended().await {
                tracing::error!(service = %name, %error, "a background service ended badly; starting it again");
                rest(&Wake::default(), PAUSE_AFTER_PANIC, &mut stopping).await;
                if stopping.is_asked() {
                    return;
                }
            }
        })
    }

    /// Tells it to stop, without waiting.
    pub(crate) fn tell_to_stop(&self) {
        self.stop.send_replace(true);
    }

    /// Tells it to stop and waits until it has.
    pub(crate) async fn stop(&mut self) {
        self.tell_to_stop();
        let Some(task) = &mut self.task else { return };
        // By reference: whoever loses patience here can still cut it off.
        let ended = task.await;
        self.task = None;
        if let Err(error) = ended
            && !error.is_cancelled()
        {
            tracing::error!(service = %self.name, %error, "a background service ended badly");
        }
    }

    /// Tells it to stop and waits until it has. What has not ended by then is cut off in the middle of what it does: its
    /// transaction is rolled back, and somebody else does it. Answers whether it ended by itself.
    pub(crate) async fn stop_by(&mut self, deadline: Instant) -> bool {
        if tokio::time::timeout_at(deadline, self.stop()).await.is_ok() {
            return true;
        }
        tracing::warn!(service = %self.name, "a background service did not end in time and was cut off");
        if let Some(task) = &self.task {
            task.abort();
        }
        let _ = tokio::time::timeout(CUT_OFF, self.stop()).await;
        false
    }
}

/// Stops many at once: all are told before the first is waited for. Answers the names of those that were cut off.
pub(crate) async fn stop_all(
    services: impl IntoIterator<Item = &mut Service>,
    deadline: Instant,
) -> Vec<String> {
    let services: Vec<_> = services.into_iter().collect();
    services.iter().for_each(|service| service.tell_to_stop());
    let stopped = services.into_iter().map(async |service: &mut Service| {
        (!service.stop_by(deadline).await).then(|| service.name.to_string())
    });
    futures_util::future::join_all(stopped).await.into_iter().flatten().collect()
}

/// A task that ends with whoever waits for it.
struct Attached(JoinHandle<()>);

impl Attached {
    async fn ended(mut self) -> Result<(), tokio::task::JoinError> {
        (&mut self.0).await
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.tell_to_stop();
    }
}

impl Stopping {
    /// Whether it should stop now.
    pub(crate) fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until it should stop.
    pub(crate) async fn asked(&mut self) {
        // An error means that the service itself was dropped: that is a stop too.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_from_a_tenth_of_a_second_to_five_seconds() {
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..20).map(|_| backoff.next()).collect();
        assert!(waits.iter().all(|wait| (Backoff::SHORTEST..=Backoff::LONGEST).contains(wait)), "{waits:?}");
        assert!(waits[19] >= Backoff::LONGEST / 2);
    }

    #[tokio::test]
    async fn a_service_stops_when_told_however_often_and_however_early() {
        let mut service = Service::start("test", |mut stopping| async move { stopping.asked().await });
        service.stop().await;
        service.stop().await;
    }

    #[tokio::test]
    async fn all_are_told_before_one_is_waited_for() {
        let (told, was_told) = tokio::sync::oneshot::channel();
        let first = Service::start("first", |_| async { was_told.await.unwrap() });
        let second = Service::start("second", |mut stopping| async move {
            stopping.asked().await;
            told.send(()).unwrap();
        });
        let mut services = vec![first, second];
        assert!(stop_all(&mut services, Instant::now() + Duration::from_secs(60)).await.is_empty());
    }

    #[tokio::test]
    async fn a_service_that_does_not_end_is_cut_off() {
        let (held, mut let_go) = tokio::sync::mpsc::unbounded_channel::<()>();
        let deaf = Service::keep_running("deaf", move |_| {
            let held = held.clone();
            async move {
                std::future::pending::<()>().await;
                drop(held);
            }
        });
        let mut services = [deaf];
        assert_eq!(stop_all(&mut services, Instant::now()).await, ["deaf"]);
        drop(services);
        assert!(let_go.recv().await.is_none(), "nothing of it is left");
    }

    #[tokio::test]
    async fn dropping_a_service_stops_it() {
        let (told, mut was_told) = tokio::sync::oneshot::channel();
        let service = Service::start("test", |mut stopping| async move {
            stopping.asked().await;
            let _ = told.send(());
        });
        assert!(was_told.try_recv().is_err());
        drop(service);
        was_told.await.unwrap();
    }

    #[tokio::test]
    async fn a_service_that_panics_is_started_again_until_it_is_told_to_stop() {
        let (told, mut starts) = tokio::sync::mpsc::unbounded_channel();
        let mut service = Service::keep_running("test", move |_| {
            told.send(()).unwrap();
            async { panic!("on purpose") }
        });
        for _ in 0..2 {
            starts.recv().await.unwrap();
        }
        service.stop().await;
        assert!(starts.recv().await.is_none(), "it has ended, and its closure with it");
    }

    #[tokio::test]
    async fn a_service_that_ends_by_itself_is_not_started_again() {
        let (told, mut starts) = tokio::sync::mpsc::unbounded_channel();
        let _service = Service::keep_running("test", move |_| {
            told.send(()).unwrap();
            async {}
        });
        starts.recv().await.unwrap();
        assert!(starts.recv().await.is_none(), "it has ended, and its closure with it");
    }

    #[tokio::test]
    async fn a_panic_inside_does_not_reach_the_one_who_stops_it() {
        let mut service = Service::start("test", |_| async { panic!("on purpose") });
        service.stop().await;
    }
}
