//! Handlers that take values: a fact is read into the application's own type before its handler runs.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use towpath_core::envelope::RecordedEvent;
use towpath_core::incoming::IncomingEvent;
use towpath_core::messages::Event;

use super::reading::Identity;
use super::{Consumer, ConsumerOf, Delivered, HandlerError, Next};
use crate::tx::Tx;

/// A consumer that reads each fact into `E`. What is of an older form is upcast ([`Event::upcast`]).
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// # use towpath::{Consumer, Event, Fact};
/// #[derive(Serialize, Deserialize, Event)]
/// enum OrderEvent {
///     #[serde(rename = "order.placed")]
///     Placed { sku: String },
/// }
///
/// let consumer = Consumer::of("orders").events().each("stock", async |fact: Fact<OrderEvent>, mut tx| {
///     let OrderEvent::Placed { sku } = fact.event;
///     tx.execute("UPDATE stock SET count = count - 1 WHERE sku = ?", &[&sku]).await?;
///     Ok(())
/// });
/// ```
///
/// `E` need not be an aggregate's: an enum of the consumer's own can name events of several of them.
///
/// A fact that is none of them is dead at once, as `unknown-event`, so that it can be replayed when the handler knows it; one
/// that cannot be read is dead as `invalid-payload`. What the handler does not want it leaves to
/// [`ConsumerOf::only`](ConsumerOf::only).
pub struct EventsOf<E> {
    consumer: ConsumerOf,
    event: PhantomData<fn() -> E>,
}

/// A fact as one of the application's events, and how it came.
#[derive(Debug, Clone)]
pub struct Fact<E> {
    /// What happened.
    pub event: E,
    /// Whose it is, when it happened, and what it follows from.
    pub envelope: IncomingEvent,
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

/// All facts of one append, in order.
#[derive(Debug, Clone)]
pub struct Change<E> {
    /// The facts; at least one.
    pub facts: Vec<Fact<E>>,
}

impl<E: Event> EventsOf<E> {
    pub(super) fn new(consumer: ConsumerOf) -> Self {
        Self { consumer, event: PhantomData }
    }

    /// A handler that takes one fact at a time, each in a transaction of its own, which commits when it answers `Ok(())`.
    /// It may answer a [`Next`] instead.
    pub fn each<F, Answer, N>(self, handler: impl Into<String>, run: F) -> Consumer
    where
        F: Fn(Fact<E>, Tx) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<N, HandlerError>> + Send + 'static,
        N: Into<Next>,
    {
        let run = Arc::new(run);
        self.consumer.one_by_one(handler, move |delivered, tx| {
            let run = Arc::clone(&run);
            async move { Ok(run(Fact::read(delivered)?, tx).await?.into()) }
        })
    }
}

impl<E: Event> EventsOf<E> {
    /// A handler that takes all facts of one append together, in one transaction, whichever of them comes first; what comes of
    /// them after that is known. They are read from the log: the channel need not take all of them, and `E` must know all.
    ///
    /// # Caveats
    /// The facts must be in the log of this store: one that is not is dead as `not-in-the-log`. Together they have at most 16
    /// MiB, or are dead as `change-too-large`. Deliveries are told by their append, whatever
    /// [`by_message_id`](ConsumerOf::by_message_id) says. Facts that were appended under ids of the application's own are
    /// each a change. In a store that mirrors another log an append may come in parts, and the first part again: take those
    /// with [`each`](EventsOf::each).
    pub fn changes<F, Answer, N>(mut self, handler: impl Into<String>, run: F) -> Consumer
    where
        F: Fn(Change<E>, Tx) -> Answer + Send + Sync + 'static,
        Answer: Future<Output = Result<N, HandlerError>> + Send + 'static,
        N: Into<Next>,
    {
        self.consumer.identity = Identity::Append;
        let run = Arc::new(run);
        self.consumer.one_by_one(handler, move |delivered, mut tx| {
            let run = Arc::clone(&run);
            async move {
                let facts = tx.appended_with(delivered.event.event_id).await?;
                // What follows from a change follows from the last of its facts, whichever came first.
                if let Some(last) = facts.last() {
                    tx.because_of(&last.envelope.clone().into());
                }
                Ok(run(Change::read(facts, &delivered)?, tx).await?.into())
            }
        })
    }
}

impl<E: Event> Change<E> {
    fn read(facts: Vec<RecordedEvent>, delivered: &Delivered) -> Result<Self, HandlerError> {
        let Delivered { event: _, attempt, redelivered, headers, set_aside_at, tried_at } = delivered;
        let (attempt, redelivered) = (*attempt, *redelivered);
        let (set_aside_at, tried_at) = (*set_aside_at, *tried_at);
        let facts = facts.into_iter().map(|fact| {
            let (event, headers) = (fact.envelope.into(), Arc::clone(headers));
            Fact::read(Delivered { event, attempt, redelivered, headers, set_aside_at, tried_at })
        });
        Ok(Self { facts: facts.collect::<Result<_, _>>()? })
    }
}

impl<E: Event> Fact<E> {
    fn read(delivered: Delivered) -> Result<Self, HandlerError> {
        let Delivered { event: envelope, attempt, redelivered, headers, set_aside_at, tried_at } = delivered;
        let event = event_in(&envelope)?;
        Ok(Self { event, envelope, attempt, redelivered, headers, set_aside_at, tried_at })
    }
}

impl<E> Fact<E> {
    /// The id of the aggregate that it is about, if it says one.
    pub fn aggregate_id(&self) -> Option<&str> {
        self.envelope.aggregate.as_ref().map(|aggregate| aggregate.id.as_str())
    }
}

/// The event in an envelope.
///
/// # Errors
/// Unrecoverable: the delivery is dead at once.
fn event_in<E: Event>(envelope: &IncomingEvent) -> Result<E, HandlerError> {
    let name = envelope.event_type.as_str();
    if !E::NAMES.contains(&name) {
        let known = E::NAMES.join(", ");
        let message = format!("the handler takes {known}, and not {name}");
        return Err(HandlerError::unrecoverable("unknown-event", message));
    }
    envelope.read().map_err(HandlerError::unrecoverable_source)
}

impl<E> fmt::Debug for EventsOf<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventsOf<{}>", std::any::type_name::<E>())
    }
}
