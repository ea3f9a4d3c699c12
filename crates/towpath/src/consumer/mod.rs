//! Consumers: handlers that take facts, each once.
//!
//! Reading order: this file declares a consumer and what its handler gets and answers; `typed` does so for handlers that
//! take values of the application's; `wiring` finds its queue;
//! `receiving` hands deliveries to workers; `reading` says what they are; `engine` runs and settles; `failing` decides what
//! becomes of what does not go through; `redelivery` brings back what was set aside; `letters` is what an operator does
//! with the dead; `reader` takes in what the broker itself gave up.

mod engine;
mod failing;
mod letters;
mod reader;
mod reading;
mod receiving;
mod redelivery;
mod typed;
mod wiring;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use towpath_core::aggregate::Aggregate;
use towpath_core::incoming::IncomingEvent;
use towpath_core::messages::Event;
use towpath_core::payload::InvalidPayload;
use towpath_core::ports::store::StoreError;
use towpath_core::retry::{Coded as _, ErrorClass, RetryPolicy};
use towpath_core::route::Glob;
use towpath_store::sqlx;

use crate::bus::SendError;
use crate::tx::{Lender, Tx, WrongDatabase};

pub(crate) use engine::{Running, panic_message, start};
pub use letters::{Letters, LettersError, Preview, ReplayReport};
pub use reader::DeadLetterQueue;
pub(crate) use reader::start as start_reader;
pub(crate) use reading::Identity;
pub use typed::{Change, EventsOf, Fact};
pub(crate) use wiring::{Wired, wire};

/// Declares who takes which facts.
///
/// ```no_run
/// # use towpath::{Consumer, Delivery, HandlerError, Next};
/// async fn bill(delivery: Delivery) -> Result<Next, HandlerError> {
///     println!("{}", delivery.event.event_type);
///     Ok(delivery.handled())
/// }
/// let consumer = Consumer::of("orders").each("billing", bill);
/// ```
///
/// # Guarantees
/// What a handler changes in its transaction happens once per (event, handler), whatever is delivered again, inside the
/// de-duplication horizon. A delivery is acknowledged after the commit.
///
/// # Caveats
/// What a handler does outside of its transaction may happen more than once.
pub struct Consumer {
    pub(crate) source: Source,
    pub(crate) handler: String,
    pub(crate) event_types: Vec<Glob>,
    pub(crate) policy: ConsumerPolicy,
    pub(crate) identity: Identity,
    /// The format of messages that do not say theirs.
    pub(crate) format: Option<String>,
    pub(crate) batch: usize,
    pub(crate) run: Run,
}

/// Half a consumer: it knows what it takes, and not yet what to do with it.
pub struct ConsumerOf {
    source: Source,
    event_types: Vec<Glob>,
    policy: ConsumerPolicy,
    identity: Identity,
    format: Option<String>,
}

/// Where deliveries come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// What a channel publishes, through a queue of the handler's own.
    Channel(String),
    /// A queue that exists or is declared in the topology.
    Queue(String),
}

/// Runs a handler on deliveries, in the transaction that is lent to it.
pub(crate) type Run = Arc<dyn Fn(Vec<Delivered>, Lender) -> Answering + Send + Sync>;

type Answering = Pin<Box<dyn Future<Output = Result<Next, HandlerError>> + Send>>;

/// How a consumer works.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerPolicy {
    /// How many handlers run at a time.
    pub concurrency: usize,
    /// How many deliveries are fetched ahead. At least as many as are handled at a time.
    pub prefetch: u16,
    /// Deliveries of one aggregate are handled one after the other, in their order; one that fails holds back those
    /// behind it. Different aggregates go on in parallel. With several instances one of them receives at a time.
    pub in_order: bool,
    /// How long a batch that is not full waits for more. Deliveries that are handled one by one never wait.
    pub gather: Duration,
    /// How often a failed delivery is tried again at once.
    pub immediate_retries: u32,
    /// What then.
    pub afterwards: Afterwards,
    /// Where a delivery goes that is given up.
    pub dead: DeadTo,
}

/// What happens to a delivery that failed more often than it is tried again at once.
#[derive(Debug, Clone, PartialEq)]
pub enum Afterwards {
    /// It is set aside in the store and comes back when it is due; the broker is done with it.
    SetAside(RetryPolicy),
    /// It goes back to the broker, which delivers it again, until it has failed this often in all.
    Requeue {
        /// The failure that is the last.
        at_most: u32,
    },
}

/// Where a delivery goes that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadTo {
    /// Among Towpath's dead letters.
    Store,
    /// Back to the broker as rejected: to the dead-letter queue, if its queue has one.
    Broker,
}

impl Default for ConsumerPolicy {
    /// Eight at a time, without order; batches gather for 5 ms; two more attempts at once, then after 5 s, 30 s and 2 minutes; the dead are kept
    /// in the store.
    fn default() -> Self {
        Self {
            concurrency: 8,
            prefetch: 64,
            in_order: false,
            gather: Duration::from_millis(5),
            immediate_retries: 2,
            afterwards: Afterwards::SetAside(RetryPolicy::for_deliveries()),
            dead: DeadTo::Store,
        }
    }
}

impl Consumer {
    /// Takes what a channel publishes. The handler gets a queue of its own, `<exchange>.<handler>`, so that handlers of
    /// one event do not depend on each other.
    pub fn of(channel: impl Into<String>) -> ConsumerOf {
        ConsumerOf::from(Source::Channel(channel.into()))
    }

    /// Takes what is in a queue. The queue must exist, or be declared in the topology.
    pub fn from_queue(queue: impl Into<String>) -> ConsumerOf {
        ConsumerOf::from(Source::Queue(queue.into()))
    }
}

impl ConsumerOf {
    fn from(source: Source) -> Self {
        let identity = Identity::Event;
        Self { source, event_types: Vec::new(), policy: ConsumerPolicy::default(), identity, format: None }
    }

    /// Only events that fit any of the patterns; others are acknowledged and left alone.
    pub fn only<'p>(mut self, event_types: impl IntoIterator<Item = &'p str>) -> Self {
        self.event_types = event_types.into_iter().map(Glob::new).collect();
        self
    }

    /// With another policy.
    pub fn with(mut self, policy: ConsumerPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Tells deliveries by their messages, and not by the events in them: what counts is the channel (or the queue) and the
    /// message id there, as a receiver records them that knows nothing else of its sender. The order of the ids does not
    /// matter. A message that is no event in any known format is one by its properties, then: its type, its moment, and a
    /// body that is JSON; its event id is made from channel and message id.
    ///
    /// # Caveats
    /// The same event in two messages is handled twice: senders that publish again must use the same message id. Changing
    /// this for a handler that has handled some makes it handle them again if they come again.
    pub fn by_message_id(mut self) -> Self {
        self.identity = Identity::Message;
        self
    }

    /// Names the format of messages without a content type: people who publish by hand forget it. A message that has one
    /// says by itself which format it is in.
    pub fn in_format(mut self, format: impl Into<String>) -> Self {
        self.format = Some(format.into());
        self
    }

    /// Deliveries of one aggregate in their order, different aggregates in parallel.
    pub fn in_order(mut self) -> Self {
        self.policy.in_order = true;
        self
    }

    /// What is given up goes among Towpath's dead letters.
    pub(crate) fn keeping_the_dead(mut self) -> Self {
        self.policy.dead = DeadTo::Store;
        self
    }

    /// Reads each fact into one of these events before the handler has it: see [`EventsOf`].
    pub fn events<E: Event>(self) -> EventsOf<E> {
        EventsOf::new(self)
    }

    /// A handler that takes one delivery at a time, each in a transaction of its own.
    pub fn each<F, Answer>(self, handler: impl Into<String>, run: F) -> Consumer
    where
        F: Fn(Delivery) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Next, HandlerError>> + Send + 'static,
    {
        self.one_by_one(handler, move |delivered, tx| {
            let Delivered { event, attempt, redelivered, headers, .. } = delivered;
            run(Delivery { event, attempt, redelivered, headers, tx })
        })
    }

    /// A handler that takes up to `most` deliveries in one transaction. When one of them fails, all are taken again one
    /// by one, so that only the one that fails is held up.
    pub fn batches<F, Answer>(self, handler: impl Into<String>, most: usize, run: F) -> Consumer
    where
        F: Fn(Batch) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Next, HandlerError>> + Send + 'static,
    {
        let run = Arc::new(run);
        let run_all = move |deliveries, lender: Lender| -> Answering {
            let run = Arc::clone(&run);
            Box::pin(async move { run(Batch { deliveries, tx: lender.lend()? }).await })
        };
        self.running(handler, most, Arc::new(run_all))
    }

    /// A handler that takes deliveries singly. What it does follows from the one it has.
    fn one_by_one<F, Answer>(self, handler: impl Into<String>, run: F) -> Consumer
    where
        F: Fn(Delivered, Tx) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<Next, HandlerError>> + Send + 'static,
    {
        let run = Arc::new(run);
        let run_each = move |deliveries: Vec<Delivered>, lender: Lender| -> Answering {
            let run = Arc::clone(&run);
            Box::pin(async move {
                for delivered in deliveries {
                    let mut tx = lender.lend()?;
                    tx.because_of(&delivered.event);
                    let next = run(delivered, tx).await?;
                    if !matches!(next, Next(Step::Handled)) {
                        return Ok(next);
                    }
                }
                Ok(Next::handled())
            })
        };
        self.running(handler, 1, Arc::new(run_each))
    }

    fn running(self, handler: impl Into<String>, most: usize, run: Run) -> Consumer {
        Consumer {
            source: self.source,
            handler: handler.into(),
            event_types: self.event_types,
            policy: self.policy,
            identity: self.identity,
            format: self.format,
            batch: most.max(1),
            run,
        }
    }
}

/// One fact, delivered to a handler together with the transaction in which it is handled.
pub struct Delivery {
    /// The fact.
    pub event: IncomingEvent,
    /// Which attempt of this handler this is, from 1.
    pub attempt: u32,
    /// Whether it may have been delivered before.
    pub redelivered: bool,
    /// The message's other properties.
    pub headers: Arc<Vec<(String, String)>>,
    /// What is written here commits together with the mark that this delivery was handled.
    pub tx: Tx,
}

/// One of the deliveries of a batch.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// The fact.
    pub event: IncomingEvent,
    /// Which attempt of this handler this is, from 1.
    pub attempt: u32,
    /// Whether it may have been delivered before.
    pub redelivered: bool,
    /// The message's other properties.
    pub headers: Arc<Vec<(String, String)>>,
    /// Since when it has been set aside, or let be tried again by an operator, if it was: by the database's time.
    pub set_aside_at: Option<DateTime<Utc>>,
    /// When it was set aside last: at the end of the attempt before this one, or when an operator let it be tried again.
    pub tried_at: Option<DateTime<Utc>>,
}

/// Facts that are handled in one transaction. None of them was handled before.
pub struct Batch {
    /// The facts, in the order of their arrival.
    pub deliveries: Vec<Delivered>,
    /// What is written here commits together with the marks that these deliveries were handled.
    pub tx: Tx,
}

/// What a handler answers. `()` is [`Next::handled`].
#[must_use = "a handler returns it"]
pub struct Next(pub(crate) Step);

pub(crate) enum Step {
    /// Commit, then acknowledge.
    Handled,
    /// Roll back and come again then.
    RetryAfter { delay: Duration, reason: String, message: String },
    /// Roll back and never come again by itself.
    Dead { reason: String, message: String },
}

impl Next {
    /// Done: commit, then acknowledge.
    pub fn handled() -> Self {
        Self(Step::Handled)
    }

    /// Not now: roll back, and come again after so long. It does not count as a failure.
    pub fn retry_after(delay: Duration, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self(Step::RetryAfter { delay, reason: reason.into(), message: message.into() })
    }

    /// Never: roll back, and put it among the dead letters.
    pub fn dead(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self(Step::Dead { reason: reason.into(), message: message.into() })
    }
}

impl From<()> for Next {
    fn from((): ()) -> Self {
        Self::handled()
    }
}

impl Delivery {
    /// The fact as one of an aggregate's events.
    ///
    /// # Errors
    /// When the type or the payload is not one of them: unrecoverable, the delivery is dead at once.
    pub fn read<A: Aggregate>(&self) -> Result<A::Event, HandlerError> {
        self.event.read().map_err(HandlerError::unrecoverable_source)
    }

    /// The payload as a value: in the form of today, if the event says which form it has and its aggregate is registered
    /// here.
    ///
    /// # Errors
    /// When it does not fit: unrecoverable, the delivery is dead at once.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, HandlerError> {
        let payload = self.tx.in_form_of_today(&self.event);
        payload
            .and_then(|payload| payload.read(self.event.event_type.as_str()))
            .map_err(HandlerError::unrecoverable_source)
    }

    /// Records a command that follows from this fact. It commits with the rest and is then run by a worker.
    pub async fn send<A: Aggregate>(
        &mut self,
        aggregate_id: impl AsRef<str>,
        command: A::Command,
    ) -> Result<(), HandlerError> {
        Ok(self.tx.send::<A>(aggregate_id, command).await?)
    }

    /// Done: commit, then acknowledge.
    pub fn handled(self) -> Next {
        Next::handled()
    }

    /// Not now: roll back, and come again after so long. It does not count as a failure.
    pub fn retry_after(self, delay: Duration, reason: impl Into<String>, message: impl Into<String>) -> Next {
        Next::retry_after(delay, reason, message)
    }

    /// Never: roll back, and put it among the dead letters.
    pub fn dead(self, reason: impl Into<String>, message: impl Into<String>) -> Next {
        Next::dead(reason, message)
    }
}

impl Batch {
    /// Done: commit, then acknowledge all of them.
    pub fn handled(self) -> Next {
        Next::handled()
    }

    /// Not now: roll back. They are taken again one by one, and one that answers this alone comes again after so long.
    pub fn retry_after(self, delay: Duration, reason: impl Into<String>, message: impl Into<String>) -> Next {
        Next::retry_after(delay, reason, message)
    }

    /// Never: roll back. They are taken again one by one, and one that answers this alone is dead.
    pub fn dead(self, reason: impl Into<String>, message: impl Into<String>) -> Next {
        Next::dead(reason, message)
    }
}

/// Why a handler failed. Any error becomes one by `?`; its class decides whether it is tried again.
///
/// Errors of Towpath itself, and of reading a payload, are classified by their type. What the database says means the same
/// whether a statement ran through [`Tx::execute`], through [`Tx::own_tables`] or on the connection: a deadlock
/// or a lock that was not to be had ([`StoreError::Contention`]), also as the cause of another error, is no failure of the
/// delivery, which is handled again at once and not counted; a row that is there already is a conflict, and the next attempt
/// sees it; whatever else the database refuses counts as passing, as any other error does. Use
/// [`HandlerError::unrecoverable`] for what will be no better the next time.
pub struct HandlerError {
    class: ErrorClass,
    code: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl HandlerError {
    /// An error that will be no better the next time: the delivery is dead at once.
    pub fn unrecoverable(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { class: ErrorClass::Unrecoverable, code: code.into(), source: message.into().into() }
    }

    /// An error that may be gone the next time.
    pub fn transient(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { class: ErrorClass::Transient, code: code.into(), source: message.into().into() }
    }

    pub(crate) fn unrecoverable_source(source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self {
            class: ErrorClass::Unrecoverable,
            code: "invalid-payload".to_owned(),
            source: Box::new(source),
        }
    }

    /// How a retry decision sees it.
    pub fn class(&self) -> ErrorClass {
        self.class
    }

    /// A stable code.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// Whether the handler's transaction gave way to another one. It is run again then, and that does not count.
    pub(crate) fn gave_way(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self.source.as_ref());
        while let Some(error) = cause {
            if matches!(error.downcast_ref::<StoreError>(), Some(StoreError::Contention(_)))
                || error.downcast_ref::<sqlx::Error>().is_some_and(towpath_store::gives_way)
            {
                return true;
            }
            cause = error.source();
        }
        false
    }

    /// What happened, with its causes.
    pub fn message(&self) -> String {
        crate::bus::with_causes(self.source.as_ref())
    }
}

// Like other errors that take in every error, it is not one itself: the conversions would overlap.
impl<E: std::error::Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let source: Box<dyn std::error::Error + Send + Sync> = Box::new(error);
        // What the driver says means the same, whoever ran the statement.
        let source = match source.downcast::<sqlx::Error>() {
            Ok(error) => Box::new(towpath_store::fault("a statement of the handler", *error)),
            Err(source) => source,
        };
        let (class, code) = if let Some(error) = source.downcast_ref::<StoreError>() {
            (class_of_store(error), error.code())
        } else if let Some(error) = source.downcast_ref::<SendError>() {
            (error.class(), error.code())
        } else if source.is::<InvalidPayload>() || source.is::<serde_json::Error>() {
            (ErrorClass::InvalidPayload, "invalid-payload")
        } else if source.is::<WrongDatabase>() {
            (ErrorClass::Unrecoverable, "wrong-database")
        } else {
            (ErrorClass::Transient, "handler-failed")
        };
        Self { class, code: code.to_owned(), source }
    }
}

/// How a handler's retry decision sees an error of the store. What the database refuses it may take the next time: another
/// handler writes the row that is missing, or an operator the table. The policy says how often that is hoped for.
fn class_of_store(error: &StoreError) -> ErrorClass {
    match error {
        StoreError::Refused { .. } if towpath_store::is_unique_violation(error) => ErrorClass::Conflict,
        StoreError::Refused { .. } | StoreError::NotMigrated { .. } => ErrorClass::Transient,
        other => other.class(),
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message())
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}
