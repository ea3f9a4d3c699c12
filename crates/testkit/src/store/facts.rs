//! What the cases write: facts and commands about imaginary orders.
//!
//! Every id is new, so cases share nothing. Times are built from [`moment`] and lie far in the past: an adapter
//! that asks a clock of its own where it was given a `now` is found out.

use std::time::Duration;

use chrono::{DateTime, Utc};
use towpath_core::envelope::{ChangeContext, EventEnvelope};
use towpath_core::ids::{
    ActorId, AggregateKey, CausationId, ChannelName, CommandId, CorrelationId, EventId, HandlerName,
    InstanceId, LeaseName, RequestId, TenantId, TraceId, Version,
};
use towpath_core::name::{CommandName, EventName};
use towpath_core::payload::Payload;
use towpath_core::ports::store::{
    Append, CompletedCommand, Expected, FailedCommand, Found, NewCommand, NewEvent, NewTimer, Routing,
    Snapshot, StateChange,
};
use uuid::Uuid;

use crate::clock::VirtualClock;

/// The types of the commands that the cases send.
pub const COMMAND_TYPES: &[&str] = &["order.place", "order.cancel"];

/// The start of [`VirtualClock`], so many seconds later.
pub fn moment(seconds: u64) -> DateTime<Utc> {
    VirtualClock::start() + Duration::from_secs(seconds)
}

/// An order that nobody has heard of.
pub fn new_order() -> AggregateKey {
    order(format!("order-{}", Uuid::now_v7()))
}

/// The order of an id.
pub fn order(id: impl AsRef<str>) -> AggregateKey {
    AggregateKey::new("order", id).expect("a valid order id")
}

/// A channel of its own.
pub fn new_channel() -> ChannelName {
    ChannelName::new(format!("channel-{}", Uuid::now_v7())).expect("a valid channel name")
}

/// A command id of its own.
pub fn new_command_id() -> CommandId {
    CommandId::new(format!("command-{}", Uuid::now_v7())).expect("a valid command id")
}

/// An event id of its own.
pub fn new_event_id() -> EventId {
    EventId(Uuid::now_v7())
}

/// A handler of that name.
pub fn handler(name: &str) -> HandlerName {
    HandlerName::new(name).expect("a valid handler name")
}

/// A lease of its own.
pub fn new_lease() -> LeaseName {
    LeaseName::new(format!("lease-{}", Uuid::now_v7())).expect("a valid lease name")
}

/// An instance of that name.
pub fn instance(name: impl AsRef<str>) -> InstanceId {
    InstanceId::new(name).expect("a valid instance id")
}

/// A payload of that text.
pub fn payload(text: impl Into<String>) -> Payload {
    Payload::from_text(text).expect("valid JSON")
}

/// A context in a flow of its own, with everything set that can be set.
pub fn full_context(occurred_at: DateTime<Utc>) -> ChangeContext {
    ChangeContext {
        causation_id: Some(CausationId::new("cart-7").expect("a valid causation id")),
        trace_id: Some(TraceId::new("4bf92f3577b34da6a3ce929d0e0e4736").expect("a valid trace id")),
        request_id: Some(RequestId::new("request-9").expect("a valid request id")),
        actor_id: Some(ActorId::new("Zoë 🦆").expect("a valid actor id")),
        tenant_id: Some(TenantId::new("acme").expect("a valid tenant id")),
        ..context(occurred_at)
    }
}

/// A context in a flow of its own, with nothing else.
pub fn context(occurred_at: DateTime<Utc>) -> ChangeContext {
    ChangeContext::new(occurred_at, CorrelationId::of_new_flow(Uuid::now_v7()))
}

/// A command to place an order, in a flow of its own.
pub fn place(order: &AggregateKey) -> NewCommand {
    NewCommand {
        command_id: new_command_id(),
        command_type: CommandName::infer("order.place").expect("a valid command name"),
        aggregate: order.clone(),
        payload: payload(r#"{"sku":"duck","amount":88.50}"#),
        context: context(moment(0)),
    }
}

/// A payload of so many bytes.
pub fn payload_of(bytes: u64) -> Payload {
    let around = r#"{"text":""}"#.len();
    let text = "x".repeat(usize::try_from(bytes).expect("it fits into memory").saturating_sub(around));
    payload(format!(r#"{{"text":"{text}"}}"#))
}

/// A command that was decided one second after it arrived.
pub fn completed(command: &NewCommand, found: Found, append: Option<Append>) -> CompletedCommand {
    let decided_on = match append.as_ref().map(|append| append.expected) {
        Some(Expected::Exactly(version)) => version,
        _ => 0,
    };
    let started_at = command.context.occurred_at;
    let finished_at = started_at + Duration::from_secs(1);
    let command = command.clone();
    CompletedCommand { command, found, started_at, finished_at, decided_on, append, fence: None }
}

/// A command that failed one second after it arrived.
pub fn failed(
    command: &NewCommand,
    found: Found,
    retry_count: u32,
    next_retry_at: Option<DateTime<Utc>>,
) -> FailedCommand {
    let started_at = command.context.occurred_at;
    FailedCommand {
        command: command.clone(),
        found,
        started_at,
        failed_at: started_at + Duration::from_secs(1),
        reason: "warehouse-closed".to_owned(),
        message: "The warehouse is closed until \"Monday\"; 100% sure. 🦆".to_owned(),
        retry_count,
        next_retry_at,
    }
}

/// A timer that will ask for an order to be cancelled.
pub fn timer(order: &AggregateKey, due_at: DateTime<Utc>) -> NewTimer {
    NewTimer {
        timer_id: Uuid::now_v7(),
        due_at,
        command_type: CommandName::infer("order.cancel").expect("a valid command name"),
        aggregate: order.clone(),
        payload: payload(r#"{"cancelReason": "timeout"}"#),
        correlation_id: CorrelationId::of_new_flow(Uuid::now_v7()),
        causation_id: Some(CausationId::new("order.place").expect("a valid causation id")),
        entered_by: None,
        created_at: moment(0),
    }
}

/// The folded state of an imaginary order: how many facts it has and which was the last. Simple enough that the
/// auditor can fold any order's events again.
pub fn folded(version: Version, last: EventId) -> Payload {
    payload(format!(r#"{{"facts":{version},"last":"{last}"}}"#))
}

/// Facts about one order, on their way into the store.
#[derive(Debug, Clone)]
pub struct OrderFacts {
    append: Append,
}

impl OrderFacts {
    /// The first facts about an order that nobody has heard of.
    pub fn of_new_order() -> Self {
        Self::about(&new_order(), 0)
    }

    /// Facts about an order that is at a version; 0 is "does not exist yet".
    pub fn about(order: &AggregateKey, version: Version) -> Self {
        Self {
            append: Append {
                aggregate: order.clone(),
                expected: Expected::after(version),
                events: Vec::new(),
                snapshot: None,
                state_changes: Vec::new(),
                deadline: Default::default(),
                context: context(moment(0)),
            },
        }
    }

    /// Facts about an order, whatever it is at.
    pub fn whatever_version(order: &AggregateKey) -> Self {
        let mut facts = Self::about(order, 0);
        facts.append.expected = Expected::Any;
        facts
    }

    /// It was placed, and is now in the state `placed`.
    pub fn placed(self) -> Self {
        self.fact("order.placed", r#"{"sku":"duck","amount":88.50}"#).entering(None, "placed")
    }

    /// It was paid, and is now in the state `paid`.
    pub fn paid(self) -> Self {
        self.fact("order.paid", r#"{"amount":88.50}"#).entering(Some("placed"), "paid")
    }

    /// Something was noted, which changes no state.
    pub fn noted(self, text: &str) -> Self {
        let payload = Payload::from_value(text).expect("a text is JSON");
        self.fact("order.noted", payload.as_text())
    }

    /// Any fact.
    pub fn fact(mut self, event_type: &str, json: &str) -> Self {
        self.append.events.push(NewEvent {
            event_id: new_event_id(),
            event_type: EventName::infer(event_type).expect("a valid event name"),
            schema_version: 1,
            payload: payload(json),
            channels: Routing::Nowhere,
        });
        self
    }

    /// The last fact changed the state.
    pub fn entering(mut self, from: Option<&str>, to: &str) -> Self {
        self.append.state_changes.push(StateChange {
            from: from.map(str::to_owned),
            to: to.to_owned(),
            reason: Some(format!("was-{to}")),
            message: Some(format!("The order was {to}. 🦆")),
            event_index: self.append.events.len() - 1,
        });
        self
    }

    /// Every fact so far that has no route yet goes to these channels.
    pub fn routed(mut self, channels: &[ChannelName]) -> Self {
        for event in self.append.events.iter_mut().filter(|event| event.channels == Routing::Nowhere) {
            event.channels = Routing::To(channels.to_vec());
        }
        self
    }

    /// The circumstances.
    pub fn in_context(mut self, context: ChangeContext) -> Self {
        self.append.context = context;
        self
    }

    /// The facts belong to the flow of a command, which caused them.
    pub fn caused_by(mut self, command: &NewCommand) -> Self {
        let causation_id = Some(CausationId::from(&command.command_id));
        self.append.context = ChangeContext { causation_id, ..command.context.clone() };
        self
    }

    /// Gives the facts these ids instead of new ones.
    pub fn with_event_ids(mut self, id_of: impl Fn(usize) -> EventId) -> Self {
        for (index, event) in self.append.events.iter_mut().enumerate() {
            event.event_id = id_of(index);
        }
        self
    }

    /// The append. Where the version is known, the folded state goes with it.
    pub fn append(mut self) -> Append {
        let last = self.append.events.last().expect("an append has at least one fact").event_id;
        let version = match self.append.expected {
            Expected::New => Some(0),
            Expected::Exactly(version) => Some(version),
            Expected::Any => None,
        };
        self.append.snapshot = version.map(|version| Snapshot {
            data: folded(version + self.append.events.len() as Version, last),
            version: 1,
        });
        self.append
    }

    /// The append as the effect of a new command that was not recorded before.
    pub fn command(self) -> CompletedCommand {
        let command = place(&self.append.aggregate);
        let append = self.caused_by(&command).append();
        completed(&command, Found::Nowhere, Some(append))
    }
}

/// The envelopes that an append leads to, when its first event makes `first_version`.
pub fn envelopes(append: &Append, first_version: Version) -> Vec<EventEnvelope> {
    let context = &append.context;
    append
        .events
        .iter()
        .zip(first_version..)
        .map(|(event, aggregate_version)| EventEnvelope {
            event_id: event.event_id,
            event_type: event.event_type.clone(),
            schema_version: event.schema_version,
            aggregate: append.aggregate.clone(),
            aggregate_version,
            occurred_at: context.occurred_at,
            correlation_id: context.correlation_id.clone(),
            causation_id: context.causation_id.clone(),
            trace_id: context.trace_id.clone(),
            actor_id: context.actor_id.clone(),
            tenant_id: context.tenant_id.clone(),
            payload: event.payload.clone(),
        })
        .collect()
}
