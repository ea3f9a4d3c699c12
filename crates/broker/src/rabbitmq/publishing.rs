//! Publishing with pipelined confirms.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Confirmation, ExchangeKind, PublisherConfirm};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use towpath_core::ports::broker::{BrokerError, BrokerResult, Message, Published, Topology};

use super::errors::{channel_closed_over, is_missing, unavailable, words};
use super::link::{Link, Live};
use super::refusals::{Known, Refusals, no_exchange};
use super::verdicts::{Answer, Return, verdicts};
use super::wire::{Outgoing, outgoing, short};
use crate::deadline::after;

/// How many bytes may wait to be written to the socket; a batch of large messages is not held in memory twice.
const UNSENT_BYTES: usize = 8 << 20;

/// How many channels are kept for the next call.
const IDLE_CHANNELS: usize = 16;

/// How often a blocked connection is looked at.
const BLOCKED_POLL: Duration = Duration::from_millis(20);

/// How long a channel that was given up waits for its last confirm before it is closed.
const DRAIN: Duration = Duration::from_secs(5);

/// What publishes: a connection of its own, because a broker that is short of memory or disk stops reading from those
/// that publish, and acknowledgements must still get through.
pub(super) struct Publisher {
    link: Link,
    idle: Mutex<Vec<ConfirmChannel>>,
    refusals: Mutex<Refusals>,
}

/// A channel in confirm mode. It belongs to one call at a time, so that every return and confirm on it is that
/// call's; two calls at once use two.
struct ConfirmChannel {
    live: Arc<Live>,
    channel: Channel,
}

impl Publisher {
    pub(super) fn new(link: Link) -> Self {
        Self { link, idle: Mutex::default(), refusals: Mutex::default() }
    }

    /// How many connections were made.
    pub(super) fn connections(&self) -> u64 {
        self.link.made()
    }

    pub(super) async fn close(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.link.close().await;
    }

    /// What was declared through this handle is there from now on.
    pub(super) fn declared(&self, topology: &Topology) {
        let exchanges = topology.exchanges.iter().map(|exchange| exchange.name.as_str());
        self.refusals().forget(exchanges);
    }

    /// Publishes a batch; see the port.
    pub(super) async fn publish(&self, messages: &[Message], patience: Duration) -> Vec<Published> {
        let deadline = after(patience);
        let mut outcomes = match self.refused_already(messages, deadline).await {
            Ok(outcomes) => outcomes,
            Err(error) => return not_sent(messages.len(), &error),
        };
        let places: Vec<usize> = (0..messages.len()).filter(|place| outcomes[*place].is_none()).collect();
        let open: Vec<&Message> = places.iter().map(|place| &messages[*place]).collect();
        if !open.is_empty() {
            let Attempt { outcomes: mut found, closed_over } = self.attempt(&open, deadline).await;
            if let Some(error) = closed_over {
                self.find_the_culprit(&open, &mut found, &error, deadline).await;
            }
            for (place, outcome) in places.into_iter().zip(found) {
                outcomes[place] = outcome;
            }
        }
        let unknown = || Published::Unknown { reason: "no confirm came".to_owned() };
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unknown)).collect()
    }

    /// What need not be sent: it goes to an exchange that is not there, or to where the broker has just refused one.
    ///
    /// # Errors
    /// When nobody answers: nothing was sent then.
    async fn refused_already(
        &self,
        messages: &[Message],
        deadline: Instant,
    ) -> BrokerResult<Vec<Option<Published>>> {
        let live = self.unblocked(deadline).await?;
        let mut asking: Option<Channel> = None;
        let mut outcomes = Vec::with_capacity(messages.len());
        for Message { destination, .. } in messages {
            let standing = self.refusals().known(destination, &live, Instant::now());
            let refused = match standing {
                Known::Open => None,
                Known::Refused(reason) => Some(reason),
                Known::NotAsked => {
                    let exchange = destination.exchange.as_str();
                    let is_there = match short("exchange", exchange) {
                        Ok(name) => self.is_there(name, &live, &mut asking, deadline).await?,
                        // It does not fit into AMQP, which is found when it is translated.
                        Err(_) => Some(true),
                    };
                    if let Some(is_there) = is_there {
                        self.refusals().asked(exchange, &live, is_there, Instant::now());
                    }
                    (is_there == Some(false)).then(|| no_exchange(exchange))
                }
            };
            outcomes.push(refused.map(|reason| Published::Refused { reason }));
        }
        Ok(outcomes)
    }

    /// Whether an exchange is there; nothing if the broker does not tell. Asked on a channel that carries no messages: a no
    /// closes that channel, and nothing else.
    async fn is_there(
        &self,
        exchange: ShortString,
        live: &Arc<Live>,
        asking: &mut Option<Channel>,
        deadline: Instant,
    ) -> BrokerResult<Option<bool>> {
        let channel = match asking.take() {
            Some(channel) => channel,
            None => self.link.channel_on(live, deadline).await?,
        };
        let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let asked = channel.exchange_declare(exchange, ExchangeKind::Topic, passive, FieldTable::default());
        match timeout_at(deadline, asked).await {
            Ok(Ok(())) => {
                *asking = Some(channel);
                Ok(Some(true))
            }
            Ok(Err(error)) if is_missing(&error) => Ok(Some(false)),
            Ok(Err(error)) if channel_closed_over(&error).is_some() => Ok(None),
            Ok(Err(error)) => Err(unavailable(words(&error))),
            Err(_) => {
                if !live.blocked() {
                    self.retire(live);
                }
                Err(unavailable("the broker does not answer"))
            }
        }
    }

    fn refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends everything once.
    async fn attempt(&self, messages: &[&Message], deadline: Instant) -> Attempt {
        let mut checked_out = match self.check_out(deadline).await {
            Ok(checked_out) => checked_out,
            Err(error) => return Attempt::not_sent(messages, &error),
        };
        let Some(ConfirmChannel { live, channel }) = &checked_out.channel else {
            return Attempt::not_sent(messages, &unavailable("the broker gave no channel"));
        };
        let frame_max = live.frame_max();
        let (mut sent, mut places) = (Vec::new(), Vec::new());
        let mut outcomes = vec![None; messages.len()];
        for (place, message) in messages.iter().enumerate() {
            match outgoing(message, frame_max) {
                Ok(outgoing) => {
                    sent.push((*message, outgoing));
                    places.push(place);
                }
                Err(reason) => outcomes[place] = Some(Published::Refused { reason }),
            }
        }

        let mut batch = Batch::default();
        let in_time = timeout_at(deadline, batch.send_and_wait(channel, &sent)).await.is_ok();
        let (mut answers, returns, failure) = batch.end();
        answers.resize(sent.len(), Answer::None);
        let sent: Vec<&Message> = sent.into_iter().map(|(message, _)| message).collect();
        let verdicts = verdicts(&sent, &answers, &returns);
        let complete = verdicts.iter().all(Option::is_some);
        let answered = answers.iter().any(|answer| *answer != Answer::None);
        for (place, verdict) in places.iter().zip(verdicts) {
            outcomes[*place] = verdict;
        }

        let Some(error) = failure else {
            if complete {
                // A channel that was told no is not used again: RabbitMQ keeps saying so on it, after a queue's leader has died,
                // when on every other one there is a new leader.
                if !answers.contains(&Answer::Nack) {
                    self.check_in(&mut checked_out);
                }
            } else {
                let blocked = live.blocked();
                // A connection that brings nothing at all may be dead without anyone having noticed.
                if !answered && !blocked {
                    self.retire(live);
                }
                let reason = match (blocked, in_time) {
                    (true, _) => {
                        "no confirm in time: the broker is short of memory or disk and takes nothing"
                    }
                    (false, false) => "no confirm in time",
                    (false, true) => "its confirm cannot be told from a return",
                };
                fill(&mut outcomes, reason);
            }
            return Attempt { outcomes, closed_over: None };
        };
        // What lapin has not written yet when the broker closes a channel it writes all the same, and the broker then
        // closes the whole connection: a new one is on the safe side.
        let is_well = channel_closed_over(&error).is_some();
        if is_well {
            self.link.replace(live);
        }
        self.retire(live);
        if is_well {
            return Attempt { outcomes, closed_over: Some(error) };
        }
        fill(&mut outcomes, &format!("the connection was lost: {}", words(&error)));
        Attempt { outcomes, closed_over: None }
    }

    /// The broker closes the channel over one message and does not say which. It takes messages in order, so what
    /// came after that one was not taken; what came before may have been.
    async fn find_the_culprit(
        &self,
        messages: &[&Message],
        outcomes: &mut [Option<Published>],
        error: &lapin::Error,
        deadline: Instant,
    ) {
        let open: Vec<usize> = (0..messages.len()).filter(|place| outcomes[*place].is_none()).collect();
        let culprit = if is_missing(error) {
            // It was there when it was asked for; the connection is another one now, so it is asked for again.
            let mut culprit = None;
            for place in open.iter().copied() {
                let asked = self.refused_already(std::slice::from_ref(messages[place]), deadline).await;
                match asked.as_deref() {
                    Ok([Some(Published::Refused { .. })]) => {
                        culprit = Some(place);
                        break;
                    }
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
            culprit
        } else {
            // Rare (no permission, a message beyond the broker's limit): one by one, until it happens again. A copy
            // of what came before is allowed, a message that stops all others for ever is not.
            let mut culprit = (open.len() == 1).then(|| open[0]);
            for place in open.iter().copied().filter(|_| open.len() > 1) {
                let alone = self.attempt(&messages[place..=place], deadline).await;
                if alone.closed_over.is_some() {
                    culprit = Some(place);
                    break;
                }
                outcomes[place] = alone.outcomes.into_iter().next().flatten();
                if !matches!(outcomes[place], Some(Published::Confirmed | Published::Unroutable { .. })) {
                    break;
                }
            }
            culprit
        };
        let words = words(error);
        if let Some(culprit) = culprit {
            outcomes[culprit] = Some(Published::Refused { reason: words.clone() });
            if channel_closed_over(error) == Some(&AMQPSoftError::ACCESSREFUSED) {
                self.refusals().denied(&messages[culprit].destination, &words, Instant::now());
            }
        }
        let reason = format!("the broker closed the channel over another message: {words}");
        // The broker takes messages in order: what came behind the culprit was thrown away unread.
        if let Some(culprit) = culprit {
            for outcome in outcomes[culprit..].iter_mut().filter(|outcome| outcome.is_none()) {
                *outcome = Some(Published::NotSent { reason: reason.clone() });
            }
        }
        fill(outcomes, &reason);
    }

    /// The connection, once the broker takes anything.
    async fn unblocked(&self, deadline: Instant) -> BrokerResult<Arc<Live>> {
        loop {
            let live = self.link.live(deadline).await?;
            if !live.blocked() {
                return Ok(live);
            }
            let next = Instant::now() + BLOCKED_POLL;
            if next >= deadline {
                sleep_until(deadline).await;
                return Err(unavailable("the broker is short of memory or disk and takes nothing"));
            }
            sleep_until(next).await;
        }
    }

    /// A channel to publish on.
    async fn check_out(&self, deadline: Instant) -> BrokerResult<CheckedOut> {
        let live = self.unblocked(deadline).await?;
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|idle| idle.live.connected() && idle.channel.status().connected());
            let place = idle.iter().position(|idle| Arc::ptr_eq(&idle.live, &live));
            place.map(|place| idle.swap_remove(place))
        };
        if let Some(channel) = idle {
            return Ok(CheckedOut { channel: Some(channel) });
        }
        let (live, channel) = self.link.channel(deadline).await?;
        let channel = ConfirmChannel { live, channel };
        let confirming = channel.channel.confirm_select(ConfirmSelectOptions::default());
        match timeout_at(deadline, confirming).await {
            Ok(Ok(())) => Ok(CheckedOut { channel: Some(channel) }),
            Ok(Err(error)) => Err(unavailable(words(&error))),
            Err(_) => {
                self.retire(&channel.live);
                Err(unavailable("the broker does not answer"))
            }
        }
    }

    fn check_in(&self, checked_out: &mut CheckedOut) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_CHANNELS
            && let Some(channel) = checked_out.channel.take()
        {
            idle.push(channel);
        }
    }

    fn retire(&self, live: &Arc<Live>) {
        self.link.retire(live);
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|idle| !Arc::ptr_eq(&idle.live, live));
    }
}

/// What became of sending everything once.
struct Attempt {
    outcomes: Vec<Option<Published>>,
    closed_over: Option<lapin::Error>,
}

impl Attempt {
    fn not_sent(messages: &[&Message], error: &BrokerError) -> Self {
        let outcomes = not_sent(messages.len(), error).into_iter().map(Some).collect();
        Self { outcomes, closed_over: None }
    }
}

/// So many messages that never left, and why.
fn not_sent(count: usize, error: &BrokerError) -> Vec<Published> {
    let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
    vec![Published::NotSent { reason: format!("{error}{cause}") }; count]
}

/// Gives a reason to what has no outcome.
fn fill(outcomes: &mut [Option<Published>], reason: &str) {
    for outcome in outcomes.iter_mut().filter(|outcome| outcome.is_none()) {
        *outcome = Some(Published::Unknown { reason: reason.to_owned() });
    }
}

/// A channel in use. Unless it is checked in again, something on it is still under way: the batch was given up, or
/// the caller was cancelled.
struct CheckedOut {
    channel: Option<ConfirmChannel>,
}

impl Drop for CheckedOut {
    fn drop(&mut self) {
        if let (Some(channel), Ok(runtime)) = (self.channel.take(), Handle::try_current()) {
            runtime.spawn(drain(channel));
        }
    }
}

/// Waits until everything is written before the channel is closed: the broker closes the whole connection over a
/// message on a closed channel.
async fn drain(ConfirmChannel { live, channel }: ConfirmChannel) {
    let mut last_confirm = std::pin::pin!(channel.wait_for_confirms());
    while timeout(DRAIN, &mut last_confirm).await.is_err() && live.blocked() {}
}

type Sending<'a> = Pin<Box<dyn Future<Output = lapin::Result<PublisherConfirm>> + Send + 'a>>;

/// Where a message is on its way.
enum Progress<'a> {
    Sending(Sending<'a>),
    Sent(PublisherConfirm),
    Done,
}

/// A batch under way. It is not lost when the time is over: what has been answered by then counts.
#[derive(Default)]
struct Batch<'a> {
    progress: Vec<Progress<'a>>,
    answers: Vec<Answer>,
    returns: Vec<Return>,
    failure: Option<lapin::Error>,
}

impl<'a> Batch<'a> {
    async fn send_and_wait(&mut self, channel: &'a Channel, messages: &'a [(&'a Message, Outgoing)]) {
        let (mut unsent, mut oldest) = (0, 0);
        for (message, outgoing) in messages {
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let sending = channel.basic_publish(
                outgoing.exchange.clone(),
                outgoing.routing_key.clone(),
                options,
                &message.body,
                outgoing.properties.clone(),
            );
            self.progress.push(Progress::Sending(Box::pin(sending)));
            self.answers.push(Answer::None);
            let place = self.progress.len() - 1;
            // The first poll hands the message to lapin: polled in order, they are sent in order.
            poll_fn(|cx| {
                let _ = self.poll_message(place, cx);
                Poll::Ready(())
            })
            .await;
            if self.failure.is_some() {
                break;
            }
            unsent += message.body.len();
            while unsent > UNSENT_BYTES {
                poll_fn(|cx| self.poll_sent(oldest, cx)).await;
                unsent -= messages[oldest].0.body.len();
                oldest += 1;
            }
        }
        for place in 0..self.progress.len() {
            poll_fn(|cx| self.poll_message(place, cx)).await;
        }
    }

    fn poll_sent(&mut self, place: usize, cx: &mut Context<'_>) -> Poll<()> {
        let _ = self.poll_message(place, cx);
        if matches!(self.progress[place], Progress::Sending(_)) { Poll::Pending } else { Poll::Ready(()) }
    }

    fn poll_message(&mut self, place: usize, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let failed = match &mut self.progress[place] {
                Progress::Done => return Poll::Ready(()),
                Progress::Sending(sending) => match sending.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(confirm)) => {
                        self.progress[place] = Progress::Sent(confirm);
                        continue;
                    }
                    Poll::Ready(Err(error)) => error,
                },
                Progress::Sent(confirm) => match Pin::new(confirm).poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(confirmation)) => {
                        self.progress[place] = Progress::Done;
                        self.answered(place, confirmation);
                        continue;
                    }
                    Poll::Ready(Err(error)) => error,
                },
            };
            self.progress[place] = Progress::Done;
            // The broker's own reason is worth more than "the channel is closed" from a later message.
            if self.failure.as_ref().is_none_or(|known| !known.is_amqp_error() && failed.is_amqp_error()) {
                self.failure = Some(failed);
            }
        }
    }

    fn answered(&mut self, place: usize, confirmation: Confirmation) {
        let (answer, returned) = match confirmation {
            Confirmation::Ack(returned) => (Answer::Ack, returned),
            Confirmation::Nack(returned) => (Answer::Nack, returned),
            Confirmation::NotRequested => (Answer::None, None),
        };
        self.answers[place] = answer;
        // It came with this message's confirm and need not be this message.
        if let Some(returned) = returned {
            self.returns.push(Return {
                message_id: returned.properties.message_id().as_ref().map(ToString::to_string),
                exchange: returned.exchange.to_string(),
                routing_key: returned.routing_key.to_string(),
                reason: format!("{} {}", returned.reply_code, returned.reply_text),
            });
        }
    }

    /// Takes in what has been answered without anyone looking. Repeated until nothing is new: a confirm that carries
    /// another message's return is completed before that message's own, so it must be seen with it.
    fn sweep(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let before = self.done();
            for place in 0..self.progress.len() {
                let _ = self.poll_message(place, &mut context);
            }
            if self.done() == before {
                return;
            }
        }
    }

    /// What is known in the end.
    fn end(mut self) -> (Vec<Answer>, Vec<Return>, Option<lapin::Error>) {
        self.sweep();
        (self.answers, self.returns, self.failure)
    }

    fn done(&self) -> usize {
        self.progress.iter().filter(|progress| matches!(progress, Progress::Done)).count()
    }
}
