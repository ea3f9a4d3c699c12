//! Towpath: a backbone on which every state change becomes a fact, and every fact arrives.
//!
//! This is the crate an application embeds. Build a [`Towpath`] from URLs, register aggregates, start it, send
//! commands:
//!
//! ```no_run
#![doc = include_str!("../../../examples/0-first-program/main.rs")]
//! ```

mod absence;
#[cfg(feature = "alerts")]
pub mod alerts;
mod application;
mod builder;
mod bus;
mod carrying;
pub mod checker;
mod circumstances;
mod cleaner;
mod clock;
mod committed;
pub mod config;
mod consumer;
mod declaring;
mod entity;
#[cfg(feature = "follow")]
pub mod follow;
mod holding;
mod jobs;
mod leases;
mod listings;
pub mod metrics;
mod notices;
mod numbers;
pub mod observer;
mod operations;
mod outbox;
mod process;
pub mod projection;
mod publishing;
mod registry;
mod relay;
mod rows;
mod runner;
mod send;
mod sequencer;
mod service;
mod services;
mod spans;
mod start_error;
mod tasks;
mod timers;
mod towpath;
mod tracker;
mod transact;
mod tx;
mod watch;

pub use application::Application;
pub use builder::Builder;
pub use bus::{Receipt, SendError};
pub use circumstances::Circumstances;
pub use clock::SystemClock;
pub use config::Channels;
pub use consumer::{
    Afterwards, Batch, Change, Consumer, ConsumerOf, ConsumerPolicy, DeadLetterQueue, DeadTo, Delivered,
    Delivery, EventsOf, Fact, HandlerError, Letters, LettersError, Next, Preview, ReplayReport,
};
pub use entity::{Entity, RegisteredEntity};
pub use jobs::{Job, Turn};
pub use listings::{ConsumerView, Trace, arranged};
pub use operations::{OPERATION_KIND, OPERATION_PERFORMED, Operations, Outcome, Ran};
pub use outbox::{Outbox, OutboxError};
pub use projection::{Projection, Projections};
pub use registry::Registry;
pub use send::{Accepted, Send};
pub use sequencer::complete_head;
pub use start_error::StartError;
pub use tasks::{Answer, Attempt, TASK_KIND, TaskError, Worker, waiting_by_leave};
pub use timers::Schedule;
pub use towpath::{Towpath, View};
pub use tracker::{ChannelError, TrackedChannels};
pub use transact::giving_way;
pub use tx::{BeginState, ChangeState, Joined, StartTask, Tx, WrongDatabase};
pub use watch::{Delivering, DeliveringOutcome, Publishing, PublishingOutcome, Watch};

// Crates whose types are in signatures here, or in what nearly every `upcast` and test writes.
pub use {chrono, serde_json, uuid};

#[cfg(feature = "kafka")]
pub use towpath_broker::Kafka;
#[cfg(feature = "rabbitmq")]
pub use towpath_broker::RabbitMq;
/// Events as messages and back: for formats of an application's own, and for who talks to Towpath's channels without it.
pub mod format {
    pub use towpath_broker::Formats;
    pub use towpath_core::format::{CLOUD_EVENTS, Fields, Format, FormatError, TOWPATH, Written, rfc3339};
}
pub use towpath_broker::{BadBrokerUrl, BrokerUrl, LocalBroker, LocalOptions};
pub use towpath_core::aggregate::{Aggregate, Context, Reason, Refusal, Refused};
pub use towpath_core::append::{Facts, IntoAppend};
pub use towpath_core::causes::{causes, with_causes};
pub use towpath_core::channel;
pub use towpath_core::channel::{Channel, ChannelChain, ChannelPolicy, Start};
pub use towpath_core::consistency;
pub use towpath_core::envelope::{ChangeContext, EventEnvelope, RecordedEvent};
pub use towpath_core::flow;
pub use towpath_core::ids;
pub use towpath_core::incoming::IncomingEvent;
pub use towpath_core::letters;
pub use towpath_core::lifecycle;
pub use towpath_core::machine::{self, Deadline, Machine};
pub use towpath_core::messages::{Command, Event};
pub use towpath_core::name;
pub use towpath_core::notifications;
pub use towpath_core::payload::{InvalidPayload, Payload};
pub use towpath_core::ports;
pub use towpath_core::ports::store::{Backlog, COMMANDS_BYTES, FoundAs, OutboxBacklog, OutboxFilter};
pub use towpath_core::ports::store::{
    Canceling, StartedTask, Task, TaskClaim, TaskFilter, TaskPlace, TaskRetry,
};
pub use towpath_core::ports::store::{InputOutcome, ProcessInput};
pub use towpath_core::process::{
    Action, Correlation, InvalidReaction, NoCommands, Outgoing, Process, Reaction, Seen,
};
pub use towpath_core::retry::{self, Coded};
pub use towpath_core::route::Glob;
pub use towpath_core::task::{InvalidTaskType, TaskFact, TaskSaid, TaskType};
pub use towpath_core::time;
pub use towpath_core::{from_variant, to_variant};
pub use towpath_store::{
    JoinTransaction, Scratch, SqlStore, StoreOptions, StoreUrl, fault, gives_way, is_unique_violation,
    message_key, sqlx,
};
/// Tables and views of an application's own, declared as data and used on any of the databases.
pub mod tables {
    pub use towpath_store::{
        Column, ColumnKind, ColumnValue, Conditions, Dialect, Index, Json, Listing, OwnConnection, OwnTables,
        Page, Record, Row, Run, Shows, SqlTransaction, SqlView, Step, StoredName, Table, Value, Version,
        Versions, ViewRows, ViewType,
    };

    pub use crate::numbers::Numbers;
}

/// What nearly every application writes: `use towpath::prelude::*;`.
pub mod prelude {
    pub use serde::{Deserialize, Serialize};

    pub use crate::Coded as _;
    pub use crate::{
        Aggregate, Channel, ChannelChain, Command, Consumer, Context, Deadline, Delivery, Event, Fact,
        HandlerError, Machine, Next, Reason, Refusal, Refused, Towpath,
    };
}

/// The README's programs are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
