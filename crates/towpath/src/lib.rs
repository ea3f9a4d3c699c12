//! Towpath: a backbone on which every state change becomes a fact, and every fact arrives.
//!
//! This is the crate an application embeds. Build a [`Towpath`] from URLs, register aggregates, start it, send
//! commands:
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use towpath::{Aggregate, Context, Machine, Refusal, Towpath};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! struct Order { sku: Option<String>, shipped: bool }
//!
//! #[derive(Serialize, Deserialize)]
//! enum OrderCommand {
//!     #[serde(rename = "order.place")] Place { sku: String },
//!     #[serde(rename = "order.ship")] Ship,
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! enum OrderEvent {
//!     #[serde(rename = "order.placed")] Placed { sku: String },
//!     #[serde(rename = "order.shipped")] Shipped,
//! }
//!
//! #[derive(Debug, PartialEq, thiserror::Error)]
//! enum OrderRefusal {
//!     #[error("the order was placed already")] AlreadyPlaced,
//!     #[error("there is nothing to ship")] NothingToShip,
//! }
//!
//! impl Refusal for OrderRefusal {
//!     fn code(&self) -> &'static str {
//!         match self { Self::AlreadyPlaced => "already-placed", Self::NothingToShip => "nothing-to-ship" }
//!     }
//! }
//!
//! impl Aggregate for Order {
//!     const KIND: &'static str = "order";
//!     type Command = OrderCommand;
//!     type Event = OrderEvent;
//!     type Refusal = OrderRefusal;
//!
//!     fn decide(&self, command: OrderCommand, _: &Context) -> Result<Vec<OrderEvent>, OrderRefusal> {
//!         match command {
//!             OrderCommand::Place { .. } if self.sku.is_some() => Err(OrderRefusal::AlreadyPlaced),
//!             OrderCommand::Place { sku } => Ok(vec![OrderEvent::Placed { sku }]),
//!             OrderCommand::Ship if self.sku.is_none() => Err(OrderRefusal::NothingToShip),
//!             OrderCommand::Ship => Ok(vec![OrderEvent::Shipped]),
//!         }
//!     }
//!
//!     fn evolve(self, event: &OrderEvent) -> Self {
//!         match event {
//!             OrderEvent::Placed { sku } => Order { sku: Some(sku.clone()), ..self },
//!             OrderEvent::Shipped => Order { shipped: true, ..self },
//!         }
//!     }
//!
//!     fn machine() -> Option<Machine> {
//!         Some(Machine::named("order")
//!             .starts("order.placed", "placed")
//!             .state("placed")
//!             .terminal("shipped")
//!             .transition("placed", "order.shipped", "shipped"))
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let folder = tempfile::tempdir()?;
//! # let url = format!("sqlite://{}", folder.path().join("towpath.db").display());
//! let app = Towpath::builder().store(&url).aggregate::<Order>().start().await?;
//! let placed = app.send::<Order>("order-7", OrderCommand::Place { sku: "book".into() }).once("cart-7").await?;
//! assert_eq!(placed.aggregate_version, 1);
//!
//! // The same command id gives the same answer and no second effect.
//! let again = app.send::<Order>("order-7", OrderCommand::Place { sku: "book".into() }).once("cart-7").await?;
//! assert_eq!(again.events, placed.events);
//! # app.stop().await;
//! # Ok(()) }) }
//! ```

mod absence;
mod application;
mod bus;
mod carrying;
mod circumstances;
mod cleaner;
mod clock;
pub mod config;
mod consumer;
mod declaring;
#[cfg(feature = "follow")]
pub mod follow;
mod leases;
mod listings;
pub mod metrics;
mod notices;
pub mod observer;
mod operations;
mod outbox;
mod publishing;
mod registry;
mod relay;
mod runner;
mod send;
mod sequencer;
mod service;
mod spans;
mod timers;
mod towpath;
mod tracker;
mod watch;

pub use application::Application;
pub use bus::{Receipt, SendError};
pub use circumstances::Circumstances;
pub use clock::SystemClock;
pub use config::Channels;
pub use consumer::{
    Afterwards, Batch, Consumer, ConsumerOf, ConsumerPolicy, DeadTo, Delivered, Delivery, HandlerError,
    HandlerTx, Letters, LettersError, Next, Preview, ReplayReport, WrongDatabase,
};
pub use listings::{ConsumerView, Trace, arranged};
pub use operations::{OPERATION_KIND, OPERATION_PERFORMED, Operations, Outcome, Ran};
pub use outbox::{Outbox, OutboxError};
pub use registry::Registry;
pub use send::{Accepted, Send};
pub use sequencer::complete_head;
pub use timers::Schedule;
pub use towpath::{Builder, StartError, Towpath, View};
pub use tracker::{ChannelError, TrackedChannels};
pub use watch::{Delivering, DeliveringOutcome, Publishing, PublishingOutcome, Watch};

#[cfg(feature = "kafka")]
pub use towpath_broker::Kafka;
#[cfg(feature = "rabbitmq")]
pub use towpath_broker::RabbitMq;
/// Events as messages and back, for who talks to Towpath's channels without it.
pub mod format {
    pub use towpath_broker::{FormatError, message, read};
}
pub use towpath_broker::{BadBrokerUrl, BrokerUrl, LocalBroker, LocalOptions};
pub use towpath_core::aggregate::{Aggregate, Context, Reason, Refusal};
pub use towpath_core::causes::{causes, with_causes};
pub use towpath_core::channel;
pub use towpath_core::channel::{Channel, ChannelPolicy, Format, Start};
pub use towpath_core::envelope::{ChangeContext, EventEnvelope, RecordedEvent};
pub use towpath_core::flow;
pub use towpath_core::ids;
pub use towpath_core::incoming::IncomingEvent;
pub use towpath_core::letters;
pub use towpath_core::lifecycle;
pub use towpath_core::machine::{self, Deadline, Machine};
pub use towpath_core::name;
pub use towpath_core::notifications;
pub use towpath_core::payload::{InvalidPayload, Payload};
pub use towpath_core::ports;
pub use towpath_core::retry;
pub use towpath_core::route::Glob;
pub use towpath_core::{from_variant, to_variant};
pub use towpath_store::{
    Backlog, COMMANDS_BYTES, FoundAs, JoinTransaction, OutboxBacklog, OutboxFilter, Scratch, SqlStore,
    StoreOptions, StoreUrl, fault, gives_way, is_unique_violation, message_key, sqlx,
};
/// Tables of an application's own, declared as data and used on any of the databases.
pub mod tables {
    pub use towpath_store::{
        Column, ColumnKind, Dialect, Index, OwnConnection, OwnTables, Record, SqlTransaction, Table, Value,
    };
}

/// The README's programs are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
