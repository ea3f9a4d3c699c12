//! Changing the state of an entity: the row by one statement that asks for its old state, and the fact with it.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use towpath_core::envelope::ChangeContext;
use towpath_core::ids::{AggregateKey, CausationId, EventId};
use towpath_core::machine::Step;
use towpath_core::messages::Event;
use towpath_core::name::EventName;
use towpath_core::ports::store::{
    Append, BoxError, DeadlineChange, Expected, NewEvent, Routing, StateChange, StoreError,
};
use towpath_core::to_variant;
use towpath_store::{Row, Value};
use uuid::Uuid;

use super::{Tx, invalid};
use crate::entity::Entity;
use crate::registry::Registry;

type Running<'t, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 't>>;

impl Tx {
    /// Begins an entity: writes its row, whose state is the machine's first one, and the fact.
    pub fn begin_state<'t, E: Entity>(&'t mut self, row: &'t E, event: E::Event) -> BeginState<'t, E> {
        BeginState { tx: self, row, fact: Fact::of(event) }
    }

    /// Changes the state of an entity as its machine says for this event: the row by one statement, which asks for the state
    /// that the row was read in, and the fact. Answers the row as it is then.
    ///
    /// ```ignore
    /// let paid = tx.change_state(&order, OrderEvent::Paid { amount }).set("paid_at", now).await?;
    /// ```
    pub fn change_state<'t, E: Entity>(&'t mut self, row: &'t E, event: E::Event) -> ChangeState<'t, E> {
        let (tx, fact) = (self, Fact::of(event));
        ChangeState { tx, row, fact, to: None, set: Vec::new(), conditions: Vec::new(), because: None }
    }
}

/// What is appended, and how.
struct Fact<E: Entity> {
    event: E::Event,
    event_id: EventId,
    context: Option<ChangeContext>,
    then: Vec<(EventId, E::Event)>,
}

/// The begin of an entity. Nothing happens until it is awaited.
#[must_use = "nothing happens until it is awaited"]
pub struct BeginState<'t, E: Entity> {
    tx: &'t mut Tx,
    row: &'t E,
    fact: Fact<E>,
}

/// A change of an entity's state. Nothing happens until it is awaited.
#[must_use = "nothing happens until it is awaited"]
pub struct ChangeState<'t, E: Entity> {
    tx: &'t mut Tx,
    row: &'t E,
    fact: Fact<E>,
    to: Option<&'t str>,
    set: Vec<(&'static str, Value<'t>)>,
    conditions: Vec<(&'static str, Value<'t>)>,
    because: Option<(String, Option<String>)>,
}

macro_rules! about_the_fact {
    ($builder:ident) => {
        impl<E: Entity> $builder<'_, E> {
            /// The fact has this id, for rows that name it; a new one otherwise.
            pub fn fact_id(mut self, event_id: EventId) -> Self {
                self.fact.event_id = event_id;
                self
            }

            /// The fact happens in these circumstances; in those of the transaction otherwise.
            pub fn within(mut self, context: ChangeContext) -> Self {
                self.fact.context = Some(context);
                self
            }

            /// Another fact, which follows from the first and changes no state.
            pub fn then(mut self, event_id: EventId, event: E::Event) -> Self {
                self.fact.then.push((event_id, event));
                self
            }
        }
    };
}
about_the_fact!(BeginState);
about_the_fact!(ChangeState);

impl<'t, E: Entity> ChangeState<'t, E> {
    /// Writes another column of the row.
    pub fn set(mut self, column: &'static str, value: impl Into<Value<'t>>) -> Self {
        self.set.push((column, value.into()));
        self
    }

    /// Why: a stable code, and a text for people.
    pub fn because(mut self, code: impl Into<String>, text: impl Into<Option<String>>) -> Self {
        self.because = Some((code.into(), text.into()));
        self
    }

    /// Only if the event leads to this state: for one that leads to several.
    pub fn to(mut self, state: &'t str) -> Self {
        self.to = Some(state);
        self
    }

    /// Only if this is so of the row, too: a condition with one `?`.
    pub fn only_if(mut self, condition: &'static str, value: impl Into<Value<'t>>) -> Self {
        self.conditions.push((condition, value.into()));
        self
    }
}

impl<'t, E: Entity> IntoFuture for BeginState<'t, E> {
    type Output = Result<(), StoreError>;
    type IntoFuture = Running<'t, ()>;

    /// # Errors
    /// `ForbiddenEvent`: there is such a row, or it does not begin so. Nothing was written.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { tx, row, fact } = self;
            let subject = Subject::of(tx, row, fact.event.name())?;
            let to = match subject.step(None)? {
                Some(to) if to == state_of(row) => to,
                Some(to) => {
                    let why = format!("it begins in the state {to}, and not in {}", state_of(row));
                    return Err(subject.forbidden(why.into()));
                }
                None => return Err(subject.forbidden("nothing begins with it".into())),
            };
            tx.open_mut().is_under_way = true;
            let inserted = tx.own_tables().insert(row).await;
            let inserted = tx.open_mut().noted("a row", inserted)?;
            if !inserted {
                return Err(subject.why_not(tx, row).await);
            }
            let change = subject.change(None, to, None);
            tx.append_fact(&subject, fact, Expected::New, vec![change]).await
        })
    }
}

impl<'t, E: Entity> IntoFuture for ChangeState<'t, E> {
    type Output = Result<E, StoreError>;
    type IntoFuture = Running<'t, E>;

    /// # Errors
    /// `ForbiddenEvent`: the machine does not allow it in the row's state, and the cause names what it allows.
    /// `VersionConflict`: the row is not as it was read, or a condition is not so. `Missing`: there is no such row. Nothing was
    /// written by then, and the transaction can go on.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { tx, row, mut fact, to: wanted, mut set, mut conditions, because } = self;
            let subject = Subject::of(tx, row, fact.event.name())?;
            let from = state_of(row);
            let to = subject.step(Some(&from))?;
            if let Some(wanted) = wanted.filter(|wanted| to.as_deref().unwrap_or(&from) != *wanted) {
                let why = format!("from the state {from} it does not lead to {wanted}");
                return Err(subject.forbidden(why.into()));
            }
            let context = fact.context.take().unwrap_or_else(|| tx.open_mut().context());
            let column = E::STATE.unwrap_or_default();
            if let Some(to) = &to {
                let (code, text) = because.clone().unzip();
                set.push((column, to.clone().into()));
                let beside = [
                    ("changed_at", Value::from(context.occurred_at)),
                    ("reason", code.into()),
                    ("message", text.flatten().into()),
                ];
                for (suffix, value) in beside {
                    let name = format!("{column}_{suffix}");
                    let declared = E::TABLE.columns().find(|declared| *declared == name);
                    set.extend(declared.map(|declared| (declared, value)));
                }
            } else {
                // Nothing but the old state: the statement still asks for it.
                set.push((column, from.clone().into()));
            }
            let same_state = format!("{column} = ?");
            conditions.push(("", from.clone().into()));
            let conditions = conditions.into_iter().map(|(condition, value)| {
                (if condition.is_empty() { &same_state } else { condition }, value)
            });
            tx.open_mut().is_under_way = true;
            let changed = tx.own_tables().update(row, set, conditions.collect()).await;
            let Some(changed) = tx.open_mut().noted("a change of state", changed)? else {
                return Err(subject.why_not(tx, row).await);
            };
            fact.context = Some(context);
            let change = to.map(|to| subject.change(Some(from), to, because));
            tx.append_fact(&subject, fact, Expected::Any, change.into_iter().collect()).await?;
            Ok(changed)
        })
    }
}

impl Tx {
    /// Appends the fact, and those that follow from it. The row is written already: dropped before its end, nothing of the
    /// transaction is committed.
    async fn append_fact<E: Entity>(
        &mut self,
        subject: &Subject,
        fact: Fact<E>,
        expected: Expected,
        state_changes: Vec<StateChange>,
    ) -> Result<(), StoreError> {
        let Fact { event, event_id, context, then } = fact;
        self.open_mut().is_under_way = true;
        let context = context.unwrap_or_else(|| self.open_mut().context());
        let mut append = Append {
            aggregate: subject.aggregate.clone(),
            expected,
            events: vec![new_event(event_id, &event)?],
            snapshot: None,
            state_changes,
            deadline: DeadlineChange::default(),
            context,
        };
        self.append(&append).await?;
        for (following_id, following) in then {
            self.open_mut().is_under_way = true;
            append.context.causation_id = Some(CausationId::from(append.events[0].event_id));
            append.events = vec![new_event(following_id, &following)?];
            (append.expected, append.state_changes) = (Expected::Any, Vec::new());
            self.append(&append).await?;
        }
        Ok(())
    }
}

impl<E: Entity> Fact<E> {
    fn of(event: E::Event) -> Self {
        Self { event, event_id: EventId(Uuid::now_v7()), context: None, then: Vec::new() }
    }
}

/// Which entity, and what is to happen to it.
struct Subject {
    registry: Arc<Registry>,
    kind: &'static str,
    aggregate: AggregateKey,
    event: &'static str,
}

impl Subject {
    fn of<E: Entity>(tx: &mut Tx, row: &E, event: &'static str) -> Result<Self, StoreError> {
        let registry = tx.open().bus.registry.clone();
        if registry.entity_of_kind(E::KIND).is_none() {
            return Err(StoreError::Missing { what: "entity", name: E::KIND.to_owned() });
        }
        let aggregate =
            AggregateKey::new(E::KIND, row.id()).map_err(|error| invalid("invalid-id", error.into()))?;
        Ok(Self { registry, kind: E::KIND, aggregate, event })
    }

    /// Where the event leads from a state; nowhere, if it changes none.
    fn step(&self, from: Option<&str>) -> Result<Option<String>, StoreError> {
        let Some(entity) = self.registry.entity_of_kind(self.kind) else { return Ok(None) };
        match entity.machine().step(from, self.event) {
            Ok(Step::Stays) => Ok(None),
            Ok(Step::Moves { to }) => Ok(Some(to.to_owned())),
            Err(illegal) => Err(self.forbidden(illegal.into())),
        }
    }

    fn forbidden(&self, source: BoxError) -> StoreError {
        let (aggregate, event) = (self.aggregate.clone(), self.event.to_owned());
        StoreError::ForbiddenEvent { aggregate, event, code: "illegal-transition", source }
    }

    /// Why no row was written, by the row as it is now.
    async fn why_not<E: Entity>(&self, tx: &mut Tx, row: &E) -> StoreError {
        let aggregate = self.aggregate.clone();
        match tx.own_tables().reload(row).await {
            Ok(Some(now)) => match self.step(Some(&state_of(&now))) {
                Ok(_) => StoreError::VersionConflict { aggregate, expected: Expected::Any },
                Err(forbidden) => forbidden,
            },
            Ok(None) => StoreError::Missing { what: self.kind, name: row.id() },
            Err(error) => error,
        }
    }

    fn change(
        &self,
        from: Option<String>,
        to: String,
        because: Option<(String, Option<String>)>,
    ) -> StateChange {
        let (reason, message) = because.unzip();
        StateChange { from, to, reason, message: message.flatten(), event_index: 0 }
    }
}

fn new_event<E: Event>(event_id: EventId, event: &E) -> Result<NewEvent, StoreError> {
    let (name, payload) = to_variant(event).map_err(|error| invalid("invalid-payload", error.into()))?;
    let event_type = EventName::from_stored(name);
    Ok(NewEvent { event_id, event_type, schema_version: E::VERSION, payload, channels: Routing::ByType })
}

/// The name of the state that a row is in.
fn state_of<R: Row>(row: &R) -> String {
    let place = R::TABLE.columns().position(|column| Some(column) == R::STATE);
    match place.and_then(|place| row.values().into_iter().nth(place)) {
        Some(Value::Text(Some(state))) => state.into_owned(),
        _ => String::new(),
    }
}
