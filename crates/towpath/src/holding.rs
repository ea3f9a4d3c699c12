//! One lease of somebody's own: taken, renewed and given back beside the work, so that no work waits for it.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use towpath_core::ids::{InstanceId, LeaseName};
use towpath_core::ports::store::{LeaseGrant, Store, StoreError, StoreResult};
use towpath_core::retry::Coded as _;

use crate::bus::with_causes;

/// How long the store is left alone that could not say whose the lease is.
const AFTER_A_FAILURE: Duration = Duration::from_secs(1);

/// What is held, and until when that is sure. The moment is this process's own, counted from before the store was asked: a
/// process that was stopped and goes on knows by it that it may have lost the lease.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Held {
    pub(crate) grant: LeaseGrant,
    until: Instant,
}

impl Held {
    pub(crate) fn is_sure(&self) -> bool {
        Instant::now() < self.until
    }
}

/// Who keeps a lease.
pub(crate) struct Keeper {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) name: LeaseName,
    pub(crate) instance: InstanceId,
    pub(crate) lease: Duration,
}

/// Takes the lease when it is free, and renews it. Never ends.
pub(crate) async fn keep(keeper: &Keeper, publish: &watch::Sender<Option<Held>>) {
    loop {
        let held = publish.borrow().clone();
        let asked_at = Instant::now();
        let mut pause = keeper.lease / 3;
        match renew_or_take(keeper, held.as_ref()).await {
            Ok(grant) => {
                let held = grant.map(|grant| Held { grant, until: asked_at + keeper.lease });
                publish.send_replace(held);
            }
            Err(error) => {
                failed(keeper, "be kept", &error);
                pause = pause.min(AFTER_A_FAILURE);
                // The store may come back before it has run out.
                if held.is_some_and(|held| !held.is_sure()) {
                    publish.send_replace(None);
                }
            }
        }
        tokio::time::sleep(pause).await;
    }
}

async fn renew_or_take(keeper: &Keeper, held: Option<&Held>) -> StoreResult<Option<LeaseGrant>> {
    let Keeper { store, name, instance, lease } = keeper;
    if let Some(held) = held
        && let Some(renewed) = store.renew_leases(std::slice::from_ref(&held.grant), *lease).await?.pop()
    {
        return Ok(Some(renewed));
    }
    store.acquire_lease(name, instance, *lease).await
}

/// Gives the lease back.
pub(crate) async fn give_back(keeper: &Keeper, publish: &watch::Sender<Option<Held>>) {
    if let Some(held) = publish.send_replace(None)
        && let Err(error) = keeper.store.release_leases(&[held.grant]).await
    {
        failed(keeper, "be given back", &error);
    }
}

fn failed(keeper: &Keeper, what: &str, error: &StoreError) {
    let (lease, code, cause) = (keeper.name.as_str(), error.code(), with_causes(error));
    tracing::warn!(lease, code, cause, "a lease could not {what}");
}

/// Does something for as long as this grant is sure to be held; `None` when it no longer is. It is asked before each step of
/// the work, so nothing is begun by a process that slept in between.
pub(crate) async fn while_held<T>(
    mut held: watch::Receiver<Option<Held>>,
    grant: &LeaseGrant,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let until = match &*held.borrow_and_update() {
            Some(held) if held.grant == *grant => held.until,
            _ => return None,
        };
        let step = std::future::poll_fn(|context| match Instant::now() < until {
            true => work.as_mut().poll(context).map(Some),
            false => Poll::Ready(None),
        });
        tokio::select! {
            biased;
            changed = held.changed() => if changed.is_err() { return None },
            done = step => return done,
            () = tokio::time::sleep_until(until) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(epoch: u64, until: Instant) -> Held {
        let (lease, holder) = (LeaseName::from_stored("observer/test"), InstanceId::from_stored("test"));
        Held { grant: LeaseGrant { lease, holder, epoch }, until }
    }

    #[tokio::test]
    async fn work_ends_with_the_lease_and_goes_on_with_a_renewal() {
        let hour = Duration::from_secs(3600);
        let first = held(1, Instant::now() + hour);
        let (publish, receive) = watch::channel(Some(first.clone()));
        assert_eq!(while_held(receive.clone(), &first.grant, async { 7 }).await, Some(7));

        // Renewed in time: the work may take longer than the first lease.
        let short = held(1, Instant::now() + Duration::from_secs(3));
        publish.send_replace(Some(short.clone()));
        let work = async {
            tokio::time::sleep_until(short.until).await;
            8
        };
        let renewing = async { drop(publish.send_replace(Some(held(1, Instant::now() + hour)))) };
        let (done, ()) = tokio::join!(while_held(receive.clone(), &first.grant, work), renewing);
        assert_eq!(done, Some(8));

        // Not renewed: it ends when the lease may be somebody else's, and what is ready is not begun.
        publish.send_replace(Some(held(1, Instant::now() + Duration::from_millis(50))));
        let endless = std::future::pending::<()>();
        assert_eq!(while_held(receive.clone(), &first.grant, endless).await, None);
        assert_eq!(while_held(receive.clone(), &first.grant, async { 9 }).await, None);

        // Taken again under another epoch: the work of the earlier one is not its work.
        publish.send_replace(Some(held(2, Instant::now() + hour)));
        assert_eq!(while_held(receive.clone(), &first.grant, async { 10 }).await, None);
        publish.send_replace(None);
        assert_eq!(while_held(receive, &first.grant, async { 11 }).await, None);
    }
}
