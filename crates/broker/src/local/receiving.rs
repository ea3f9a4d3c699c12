//! Receiving: one task per subscription takes messages ahead, settles them in batches and keeps its lease.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use towpath_core::ids::LeaseName;
use towpath_core::ports::broker::{
    BrokerError, BrokerResult, Deliveries, DeliveryTag, Destination, Received, Settlement, Subscription,
};
use towpath_core::ports::queues::{Ending, Fate, Receiver, TakenMessage};
use towpath_core::ports::store::{StoreError, StoreResult};
use towpath_core::retry::Coded as _;
use uuid::Uuid;

use super::{CLOSED, Shared, locked, told, unavailable, with_causes};
use crate::deadline::after;

/// How often something that lost against others is tried again before it is told.
const ATTEMPTS: u32 = 20;

/// No more is taken while the bodies of what is unsettled have so many bytes together.
const ENOUGH_BYTES: usize = 8 << 20;

/// Begins to receive; see the port.
pub(super) async fn subscribe(
    shared: &Arc<Shared>,
    subscription: &Subscription,
) -> BrokerResult<LocalDeliveries> {
    const OPERATION: &str = "subscribing";
    let queue = &subscription.queue;
    let routing = shared.read_routing(OPERATION).await?;
    if !routing.has_queue(queue) {
        return Err(BrokerError::Missing { what: "queue", name: queue.clone() });
    }
    let lease = LeaseName::from_stored(format!("local/{}", Uuid::now_v7()));
    let begun = patiently(|| shared.queues.begin_receiving(&lease, shared.options.lease)).await;
    let grant = begun.map_err(|error| told(error, OPERATION))?;
    let stock = Arc::new(Stock { prefetch: usize::from(subscription.prefetch.max(1)), ..Stock::default() });
    let (requests, incoming) = mpsc::unbounded_channel();
    let task = Task {
        shared: Arc::clone(shared),
        receiver: Receiver { queue: queue.clone(), grant, alone: routing.single_receiver(queue) },
        stock: Arc::clone(&stock),
        closed: shared.closed.subscribe(),
    };
    let running = tokio::spawn(task.run(incoming));
    let mut receivers = locked(&shared.receivers);
    receivers.retain(|receiver| !receiver.is_finished());
    receivers.push(running);
    Ok(LocalDeliveries { queue: queue.clone(), stock, requests })
}

/// The receiver's side. Dropped, its task gives back what is unsettled.
pub(super) struct LocalDeliveries {
    queue: String,
    stock: Arc<Stock>,
    requests: mpsc::UnboundedSender<Request>,
}

/// What was taken and is not settled yet.
#[derive(Default)]
struct Stock {
    prefetch: usize,
    goods: std::sync::Mutex<Goods>,
    /// Something has arrived, or it is over.
    arrived: Notify,
    /// The receiver has used up half of what was taken ahead.
    low: Notify,
}

#[derive(Default)]
struct Goods {
    /// Taken ahead, in order.
    ahead: VecDeque<Received>,
    /// All that is unsettled, with what a dead letter needs. As many as the prefetch allows.
    unsettled: HashMap<DeliveryTag, Origin>,
    /// How many bytes the bodies of all that is unsettled have.
    bytes: usize,
    /// How many bytes a body of those that were taken last has, on the average.
    usual: usize,
    /// Why there will be no more.
    ended: Option<String>,
}

/// How a message came here.
#[derive(Clone)]
struct Origin {
    destination: Destination,
    headers: Vec<(String, String)>,
    /// Of its body.
    bytes: usize,
}

/// A message to be settled.
struct Request {
    tag: DeliveryTag,
    settlement: Settlement,
    origin: Origin,
    answer: oneshot::Sender<BrokerResult<()>>,
}

#[async_trait]
impl Deliveries for LocalDeliveries {
    async fn next(&self) -> BrokerResult<Received> {
        loop {
            let mut arrived = std::pin::pin!(self.stock.arrived.notified());
            // From here on no arrival is missed.
            arrived.as_mut().enable();
            // Nothing is awaited between taking a message and answering it: a caller that gives up loses none.
            if let Some(answer) = self.stock.next() {
                return answer.map_err(|reason| unavailable(&reason));
            }
            arrived.await;
        }
    }

    async fn settle(&self, tag: DeliveryTag, settlement: Settlement) -> BrokerResult<()> {
        let Some(origin) = locked(&self.stock.goods).settle(tag) else { return Ok(()) };
        let (answer, answered) = oneshot::channel();
        let request = Request { tag, settlement, origin, answer };
        if self.requests.send(request).is_err() {
            return Ok(());
        }
        match answered.await {
            Ok(settled) => settled,
            Err(_) => {
                tracing::debug!(queue = self.queue, "lost with its subscription, comes again");
                Ok(())
            }
        }
    }
}

impl Stock {
    fn next(&self) -> Option<Result<Received, String>> {
        let mut goods = locked(&self.goods);
        if let Some(reason) = &goods.ended {
            return Some(Err(reason.clone()));
        }
        let received = goods.ahead.pop_front()?;
        if goods.ahead.len() == self.prefetch / 2 {
            self.low.notify_one();
        }
        Some(Ok(received))
    }

    /// How many to take now, and of how many bytes. Not one for every one that is settled: half of the prefetch at a
    /// time, unless the receiver is about to wait.
    fn wanted(&self) -> (usize, usize) {
        let goods = locked(&self.goods);
        let room = ENOUGH_BYTES.saturating_sub(goods.bytes);
        if goods.ahead.len() > self.prefetch / 2 || room == 0 {
            return (0, 0);
        }
        // The sizes of many large ones would be read, and read again, for the few that fit.
        let likely = (room / goods.usual.max(1)).saturating_add(1);
        (self.prefetch.saturating_sub(goods.unsettled.len()).min(likely), room)
    }

    fn add(&self, queue: &str, messages: Vec<TakenMessage>) {
        let mut goods = locked(&self.goods);
        let bytes = messages.iter().map(|message| message.body.len()).sum::<usize>();
        goods.bytes += bytes;
        goods.usual = bytes / messages.len().max(1);
        for message in messages {
            let tag = DeliveryTag(message.place);
            let origin = Origin {
                destination: message.destination.clone(),
                headers: message.headers.clone(),
                bytes: message.body.len(),
            };
            goods.unsettled.insert(tag, origin);
            goods.ahead.push_back(received(queue, message));
        }
        drop(goods);
        self.arrived.notify_waiters();
    }

    /// Nothing more will come. The first reason stays.
    fn end(&self, reason: &str) {
        let mut goods = locked(&self.goods);
        goods.ended.get_or_insert_with(|| reason.to_owned());
        goods.ahead.clear();
        goods.unsettled.clear();
        goods.bytes = 0;
        drop(goods);
        self.arrived.notify_waiters();
    }
}

impl Goods {
    fn settle(&mut self, tag: DeliveryTag) -> Option<Origin> {
        let origin = self.unsettled.remove(&tag)?;
        self.bytes = self.bytes.saturating_sub(origin.bytes);
        Some(origin)
    }
}

/// The task of a subscription.
struct Task {
    shared: Arc<Shared>,
    receiver: Receiver,
    stock: Arc<Stock>,
    closed: watch::Receiver<bool>,
}

/// Whoever waits must be told, even when the task panicked.
impl Drop for Task {
    fn drop(&mut self) {
        self.stock.end("the subscription has ended");
    }
}

/// Why a subscription ends.
enum End {
    /// The receiver was dropped, or the handle closed.
    Asked,
    /// The lease has run out: others may have the messages.
    Lost,
    /// The store did not say what it has done. What it may have done is undone with everything else.
    Failed(String),
}

impl Task {
    async fn run(mut self, mut requests: mpsc::UnboundedReceiver<Request>) {
        let end = self.receive(&mut requests).await;
        self.stock.end(match &end {
            End::Asked => CLOSED,
            End::Lost => "the receiver's lease has run out",
            End::Failed(reason) => reason,
        });
        // Whoever settles at this moment has lost: it is given back with the others.
        requests.close();
        let (queues, receiver) = (&self.shared.queues, &self.receiver);
        match patiently(|| queues.end_receiving(receiver)).await {
            Ok(()) => self.shared.wake(&receiver.queue),
            Err(error) => tracing::warn!(
                queue = receiver.queue,
                code = error.code(),
                cause = with_causes(&error),
                "could not give messages back; they come again when the lease has run out"
            ),
        }
    }

    async fn receive(&mut self, requests: &mut mpsc::UnboundedReceiver<Request>) -> End {
        let options = self.shared.options;
        let wake = self.shared.wake_of(&self.receiver.queue);
        // At once: what a gone receiver has taken stands before everything else.
        let mut keep_at = Instant::now();
        loop {
            let mut woken = std::pin::pin!(wake.notified());
            // From here on no wake is missed.
            woken.as_mut().enable();
            let mut batch = Vec::new();
            while let Ok(request) = requests.try_recv() {
                batch.push(request);
            }
            let settled_some = !batch.is_empty();
            if let Err(end) = self.settle(batch).await {
                return end;
            }
            if *self.closed.borrow() || requests.is_closed() {
                return End::Asked;
            }
            if Instant::now() >= keep_at {
                match self.keep().await {
                    Ok(true) => keep_at = after(options.lease / 3),
                    Ok(false) => return End::Lost,
                    // Tried again soon; if the lease runs out meanwhile, that is told then.
                    Err(error) => {
                        self.warn(&error, "could not keep a receiver's lease");
                        keep_at = after(options.poll);
                    }
                }
            }
            match self.take().await {
                Ok(0) => {}
                Ok(_) => continue,
                Err(StoreError::Fenced { .. }) => return End::Lost,
                // Nothing was taken, for certain.
                Err(StoreError::Contention(_)) => {}
                // Perhaps messages were taken and only the answer was lost. While this lease lives nobody else would
                // get them, and nobody here knows them.
                Err(error) => {
                    self.warn(&error, "could not take messages");
                    return End::Failed(with_causes(&error));
                }
            }
            if settled_some {
                // More may have come meanwhile.
                continue;
            }
            let look_at = keep_at.min(after(options.poll));
            tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => {
                        if let Err(end) = self.settle(vec![request]).await {
                            return end;
                        }
                    }
                    None => return End::Asked,
                },
                () = woken => {}
                () = self.stock.low.notified() => {}
                () = tokio::time::sleep_until(look_at) => {}
                _ = self.closed.changed() => {}
            }
        }
    }

    async fn keep(&self) -> StoreResult<bool> {
        let kept = self.shared.queues.keep_receiving(&self.receiver.grant, self.shared.options.lease).await?;
        if kept {
            match self.shared.queues.recover_messages().await {
                Ok(0) => {}
                Ok(count) => tracing::info!(count, "messages of receivers that are gone come again"),
                Err(error) => self.warn(&error, "could not give back the messages of those who are gone"),
            }
        }
        Ok(kept)
    }

    /// Takes as many as are wanted, and answers how many there were.
    async fn take(&self) -> StoreResult<usize> {
        let (wanted, room) = self.stock.wanted();
        if wanted == 0 {
            return Ok(0);
        }
        let limit = u32::try_from(wanted).unwrap_or(u32::MAX);
        let taken = self.shared.queues.take_messages(&self.receiver, limit, room as u64).await?;
        let count = taken.len();
        if count > 0 {
            self.stock.add(&self.receiver.queue, taken);
        }
        Ok(count)
    }

    /// Settles messages together. When that fails their receivers are told and the subscription ends: nobody settles a
    /// message twice, so what was kept would take up the prefetch for ever.
    async fn settle(&self, batch: Vec<Request>) -> Result<(), End> {
        if batch.is_empty() {
            return Ok(());
        }
        let settled = self.try_settle(&batch).await;
        let failed = settled.err().map(|error| with_causes(&error));
        if let Some(reason) = &failed {
            let queue = self.receiver.queue.as_str();
            tracing::warn!(queue, cause = reason, "could not settle messages; they come again");
            // Before anybody is told: whoever knows must not get one more that was taken ahead meanwhile.
            self.stock.end(reason);
        }
        for request in batch {
            let _ = request.answer.send(match &failed {
                Some(reason) => Err(unavailable(reason)),
                None => Ok(()),
            });
        }
        failed.map_or(Ok(()), |reason| Err(End::Failed(reason)))
    }

    async fn try_settle(&self, batch: &[Request]) -> BrokerResult<()> {
        const OPERATION: &str = "settling";
        let queue = self.receiver.queue.as_str();
        let rejects = batch.iter().any(|request| request.settlement == Settlement::Reject);
        let routing = if rejects { Some(self.shared.read_routing(OPERATION).await?) } else { None };
        let fate = |request: &Request| match (request.settlement, &routing) {
            (Settlement::Requeue, _) => Fate::GivenBack,
            (Settlement::Reject, Some(routing)) if routing.has_dead_letters(queue) => {
                let Origin { destination, headers, .. } = &request.origin;
                let placements = routing.rejected(queue, destination, headers);
                if placements.is_empty() {
                    tracing::warn!(queue, "a rejected message is dropped: its dead letters lead nowhere");
                }
                Fate::Moved(placements)
            }
            (Settlement::Acknowledge | Settlement::Reject, _) => Fate::Removed,
        };
        let endings: Vec<Ending> =
            batch.iter().map(|request| Ending { place: request.tag.0, fate: fate(request) }).collect();
        let ended = patiently(|| self.shared.queues.end_messages(&self.receiver.grant, &endings)).await;
        ended.map_err(|error| told(error, OPERATION))?;
        for ending in &endings {
            match &ending.fate {
                Fate::Removed => {}
                Fate::GivenBack => self.shared.wake(queue),
                Fate::Moved(placements) => {
                    placements.iter().for_each(|placement| self.shared.wake(&placement.queue));
                }
            }
        }
        Ok(())
    }

    fn warn(&self, error: &StoreError, what: &str) {
        let queue = self.receiver.queue.as_str();
        tracing::warn!(queue, code = error.code(), cause = with_causes(error), "{what}");
    }
}

fn received(queue: &str, message: TakenMessage) -> Received {
    Received {
        tag: DeliveryTag(message.place),
        queue: queue.to_owned(),
        message_id: Some(message.message_id),
        message_type: Some(message.message_type),
        occurred_at: Some(message.occurred_at),
        key: Some(message.key),
        content_type: Some(message.content_type),
        destination: message.destination,
        headers: message.headers.into(),
        redelivered: message.earlier_deliveries > 0,
        body: message.body,
    }
}

/// Runs something again that gave way to others, a few times.
async fn patiently<T, F>(mut attempt: impl FnMut() -> F) -> StoreResult<T>
where
    F: Future<Output = StoreResult<T>>,
{
    let mut attempts = 1;
    loop {
        match attempt().await {
            Err(StoreError::Contention(_)) if attempts < ATTEMPTS => {
                attempts += 1;
                tokio::task::yield_now().await;
            }
            answer => return answer,
        }
    }
}
