//! Facts of an aggregate as its own types: what an append says when a transaction finds out the rest.

use crate::aggregate::Aggregate;
use crate::envelope::ChangeContext;
use crate::ids::{AggregateKey, EventId, Version};
use crate::messages::Event;
use crate::name::EventName;
use crate::ports::store::{Append, BoxError, DeadlineChange, Expected, NewEvent, Routing, StoreError};
use crate::variant::to_variant;

/// Facts of one aggregate, on their way into a transaction. Which state and deadline follow, which channels get them and to
/// which flow they belong, the transaction finds out.
#[derive(Debug)]
pub struct Facts<A: Aggregate> {
    aggregate_id: String,
    expected: Expected,
    events: Vec<A::Event>,
}

impl Append {
    /// Facts of an aggregate, whatever version it is at.
    pub fn of<A: Aggregate>(aggregate_id: impl Into<String>) -> Facts<A> {
        Facts { aggregate_id: aggregate_id.into(), expected: Expected::Any, events: Vec::new() }
    }
}

impl<A: Aggregate> Facts<A> {
    /// What happened, in order.
    pub fn events(mut self, events: impl IntoIterator<Item = A::Event>) -> Self {
        self.events.extend(events);
        self
    }

    /// Refuse unless the aggregate is at this version (0: unless it does not exist yet).
    pub fn expecting(mut self, version: Version) -> Self {
        self.expected = Expected::after(version);
        self
    }
}

/// What can be appended: an [`Append`] as it is, or typed [`Facts`].
pub trait IntoAppend {
    /// The append, with these circumstances if it has none of its own.
    ///
    /// # Errors
    /// `InvalidChange`: an id or a payload that cannot be written.
    fn into_append(self, around: ChangeContext) -> Result<Append, StoreError>;
}

impl IntoAppend for &Append {
    fn into_append(self, _: ChangeContext) -> Result<Append, StoreError> {
        Ok(self.clone())
    }
}

impl<A: Aggregate> IntoAppend for Facts<A> {
    fn into_append(self, around: ChangeContext) -> Result<Append, StoreError> {
        let invalid = |code, source: BoxError| StoreError::InvalidChange { code, source };
        let aggregate = AggregateKey::new(A::KIND, self.aggregate_id)
            .map_err(|error| invalid("invalid-id", error.into()))?;
        let events = self.events.iter().zip(EventId::of_one_append()).map(|(event, event_id)| {
            let (name, payload) =
                to_variant(event).map_err(|error| invalid("invalid-payload", error.into()))?;
            Ok(NewEvent {
                event_id,
                event_type: EventName::from_stored(name),
                schema_version: <A::Event as Event>::VERSION,
                payload,
                channels: Routing::ByType,
            })
        });
        Ok(Append {
            aggregate,
            expected: self.expected,
            events: events.collect::<Result<_, StoreError>>()?,
            snapshot: None,
            state_changes: Vec::new(),
            deadline: DeadlineChange::default(),
            context: around,
        })
    }
}
