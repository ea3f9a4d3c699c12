//! Receives deliveries and hands them to workers: with order, each aggregate has one worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use towpath_core::ports::broker::{BrokerError, Deliveries, Received, Subscription};
use towpath_core::retry::Coded as _;

use super::engine::{Job, lane_of, lane_of_key, work};
use super::reading::Identity;
use crate::bus::with_causes;
use crate::service::{Backoff, Stopping};

/// A delivery on its way to a worker.
pub(super) struct Arrived {
    pub(super) received: Received,
    pub(super) from: Arc<dyn Deliveries>,
    /// How many deliveries of this subscription may still be what an earlier one did not end.
    doubtful: Arc<AtomicUsize>,
}

impl Arrived {
    /// Whether it may have been delivered before.
    pub(super) fn came_before(&self) -> bool {
        self.received.redelivered || self.doubtful.load(Ordering::Relaxed) > 0
    }

    /// So many of this subscription's deliveries had not been handled before.
    pub(super) fn new_ones(&self, count: usize) {
        let less = |doubtful: usize| doubtful.checked_sub(count).or((doubtful > 0).then_some(0));
        let _ = self.doubtful.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// How many deliveries are in doubt where the broker does not say what comes again: what was fetched and not ended when a
/// receiver ended is among the first that were not handled. Several times as many, because what other receivers left
/// comes in between.
fn doubtful(job: &Job, share: Share) -> usize {
    match job.running.broker.promises().tells_redelivered {
        true => 0,
        false => usize::from(share.prefetch) * 4,
    }
}

/// What one subscription feeds.
#[derive(Clone, Copy)]
struct Share {
    workers: usize,
    /// How many deliveries it fetches ahead.
    prefetch: u16,
}

pub(super) async fn receive(job: Arc<Job>, mut stopping: Stopping) {
    if !job.running.declaration.done(&mut stopping).await {
        return;
    }
    let all = Share { workers: job.consumer.policy.concurrency.max(1), prefetch: prefetch(&job) };
    // A word to the broker can stand for a batch only if nobody is at something older of the same subscription: each who
    // takes batches has one of its own. Order needs one for all, and where a word stands for all before it, more
    // subscriptions gain nothing.
    let promises = job.running.broker.promises();
    if job.consumer.batch == 1 || job.consumer.policy.in_order || !promises.settles_singly {
        return receive_share(job, all, stopping).await;
    }
    let each = Share {
        workers: 1,
        prefetch: u16::try_from(usize::from(all.prefetch) / all.workers).unwrap_or(u16::MAX).max(1),
    };
    let mut shares = JoinSet::new();
    for _ in 0..all.workers {
        shares.spawn(receive_share(Arc::clone(&job), each, stopping.clone()));
    }
    while let Some(ended) = shares.join_next().await {
        // The service that this is starts all of them again.
        if let Err(error) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

async fn receive_share(job: Arc<Job>, share: Share, mut stopping: Stopping) {
    let mut workers = JoinSet::new();
    let mut queues = Vec::new();
    let (shared, taken) = async_channel(share.prefetch);
    if by_lane(&job) {
        for _ in 0..share.workers {
            let (sender, receiver) = mpsc::channel(usize::from(share.prefetch));
            queues.push(sender);
            workers.spawn(work(Arc::clone(&job), Inbound::Own(receiver), stopping.clone()));
        }
    } else {
        for _ in 0..share.workers {
            workers.spawn(work(Arc::clone(&job), Inbound::Shared(Arc::clone(&taken)), stopping.clone()));
        }
        queues.push(shared);
    }
    let mut backoff = Backoff::default();
    let mut fallen = None;
    while !stopping.is_asked() {
        let deliveries = tokio::select! {
            () = stopping.asked() => break,
            subscribed = subscribe(&job, share) => subscribed,
        };
        match deliveries {
            Ok(deliveries) => {
                let doubtful = Arc::new(AtomicUsize::new(doubtful(&job, share)));
                let error = tokio::select! {
                    () = stopping.asked() => break,
                    // What it was at is unsettled, and what comes behind that must not overtake it: all of it begins anew.
                    Some(ended) = workers.join_next() => {
                        fallen = ended.err();
                        break;
                    }
                    error = hand_out(&job, &deliveries, &doubtful, &queues, &mut backoff) => error,
                };
                tracing::warn!(queue = job.queue, consumer = %job.handler, cause = error, "receiving was interrupted");
            }
            Err(error) => {
                tracing::warn!(
                    queue = job.queue,
                    consumer = %job.handler,
                    code = error.code(),
                    cause = with_causes(&error),
                    "could not subscribe"
                );
            }
        }
        tokio::select! {
            () = stopping.asked() => break,
            () = tokio::time::sleep(backoff.next_within(job.running.patience)) => {}
        }
    }
    // Workers end with their queues, after what they are at; the rest was never settled and is delivered again.
    drop(queues);
    while let Some(ended) = workers.join_next().await {
        fallen = fallen.or(ended.err());
    }
    if let Some(error) = fallen {
        tracing::error!(queue = job.queue, consumer = %job.handler, %error, "a worker ended badly");
        if let Ok(panic) = error.try_into_panic() {
            // The service that this is starts all of it again.
            std::panic::resume_unwind(panic);
        }
    }
}

async fn subscribe(job: &Job, share: Share) -> Result<Arc<dyn Deliveries>, BrokerError> {
    let subscription =
        Subscription { queue: job.queue.clone(), group: job.handler.to_string(), prefetch: share.prefetch };
    Ok(Arc::from(job.running.broker.subscribe(&subscription).await?))
}

/// How many deliveries are fetched ahead: at least what all workers can be at.
fn prefetch(job: &Job) -> u16 {
    let at_a_time = job.consumer.policy.concurrency.max(1).saturating_mul(job.consumer.batch);
    job.consumer.policy.prefetch.max(u16::try_from(at_a_time).unwrap_or(u16::MAX))
}

/// Hands deliveries to the workers until there are no more; answers why.
async fn hand_out(
    job: &Job,
    deliveries: &Arc<dyn Deliveries>,
    doubtful: &Arc<AtomicUsize>,
    queues: &[mpsc::Sender<Arrived>],
    backoff: &mut Backoff,
) -> String {
    loop {
        let many = match deliveries.next_many(usize::from(prefetch(job))).await {
            Ok(many) => many,
            Err(error) => return with_causes(&error),
        };
        backoff.reset();
        job.meters.received.increment(many.len() as u64);
        for received in many {
            let place = if by_lane(job) { place_of(job, &received, queues.len()) } else { 0 };
            let arrived = Arrived { received, from: Arc::clone(deliveries), doubtful: Arc::clone(doubtful) };
            let Some(queue) = queues.get(place) else { return "there are no workers".to_owned() };
            if queue.send(arrived).await.is_err() {
                return "the workers have ended".to_owned();
            }
        }
    }
}

/// Whether messages of one key have one worker: for order, and because the facts of one append are one delivery, whose failures
/// would otherwise be counted by several at once.
fn by_lane(job: &Job) -> bool {
    job.consumer.policy.in_order || job.consumer.identity == Identity::Append
}

/// Which worker a message belongs to: messages of one key have one.
fn place_of(job: &Job, received: &Received, workers: usize) -> usize {
    // A sender that gives no key still sends events of aggregates.
    let lane = match &received.key {
        Some(_) => lane_of_key(received),
        None => {
            job.event_in(received).map_or_else(|_| lane_of_key(received), |event| lane_of(received, &event))
        }
    };
    // The remainder is smaller than the number of workers.
    usize::try_from(lane.0 % workers.max(1) as u64).unwrap_or(0)
}

type SharedReceiver = Arc<tokio::sync::Mutex<mpsc::Receiver<Arrived>>>;

/// Where a worker's deliveries come from.
pub(super) enum Inbound {
    Own(mpsc::Receiver<Arrived>),
    Shared(SharedReceiver),
}

fn async_channel(capacity: u16) -> (mpsc::Sender<Arrived>, SharedReceiver) {
    let (sender, receiver) = mpsc::channel(usize::from(capacity.max(1)));
    (sender, Arc::new(tokio::sync::Mutex::new(receiver)))
}

impl Inbound {
    /// What has arrived, up to so many; waits for the first. Empty at the end.
    pub(super) async fn take(&mut self, batch: Gather) -> Vec<Arrived> {
        match self {
            Self::Own(receiver) => batch.wait(receiver).await,
            Self::Shared(receiver) => batch.wait(&mut *receiver.lock().await).await,
        }
    }

    /// The same without waiting for the first: empty when there is none.
    pub(super) async fn take_waiting(&mut self, batch: Gather) -> Vec<Arrived> {
        match self {
            Self::Own(receiver) => batch.look(receiver).await,
            // Whoever holds it waits for the next one, so there is none.
            Self::Shared(receiver) => match receiver.try_lock() {
                Ok(mut receiver) => batch.look(&mut receiver).await,
                Err(_) => Vec::new(),
            },
        }
    }
}

/// How a worker's share is put together.
#[derive(Clone, Copy)]
pub(super) struct Gather {
    pub(super) most: usize,
    /// How long one that is not full waits for more.
    pub(super) patience: Duration,
}

impl Gather {
    async fn wait(self, receiver: &mut mpsc::Receiver<Arrived>) -> Vec<Arrived> {
        let mut taken = Vec::with_capacity(self.most);
        receiver.recv_many(&mut taken, self.most).await;
        self.fill(receiver, taken).await
    }

    async fn look(self, receiver: &mut mpsc::Receiver<Arrived>) -> Vec<Arrived> {
        let taken = std::iter::from_fn(|| receiver.try_recv().ok()).take(self.most).collect();
        self.fill(receiver, taken).await
    }

    /// A caller that gives up drops what was taken: unsettled, so delivered again.
    async fn fill(self, receiver: &mut mpsc::Receiver<Arrived>, mut taken: Vec<Arrived>) -> Vec<Arrived> {
        if taken.is_empty() || taken.len() >= self.most {
            return taken;
        }
        let enough = tokio::time::Instant::now() + self.patience;
        while taken.len() < self.most {
            let room = self.most - taken.len();
            match tokio::time::timeout_at(enough, receiver.recv_many(&mut taken, room)).await {
                Ok(1..) => {}
                // No more are coming, or not soon enough.
                Ok(0) | Err(_) => break,
            }
        }
        taken
    }
}
