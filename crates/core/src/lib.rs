//! The pure heart of Towpath.
//!
//! Nothing here does I/O, reads a clock, draws a random number or spawns a task: deciding takes values and
//! returns values. The ports (what a store or a clock must offer) are declared here too, so that adapters
//! depend on the core and never the other way round.
//!
//! Reading order: [`ids`], [`payload`], [`name`], [`envelope`] (what a fact is); [`messages`], [`aggregate`], [`machine`],
//! [`decider`], [`process`] (how facts are decided); [`lifecycle`], [`retry`], [`flow`], [`route`] (what happens to commands and
//! facts); [`ports`] (what the outside must offer).

pub mod aggregate;
pub mod append;
pub mod causes;
pub mod channel;
pub mod consistency;
pub mod decider;
pub mod envelope;
pub mod flow;
pub mod format;
pub mod ids;
pub mod incoming;
pub mod letters;
pub mod lifecycle;
pub mod machine;
pub mod messages;
pub mod name;
pub mod notifications;
pub mod payload;
pub mod ports;
pub mod process;
pub mod retry;
pub mod route;
pub mod task;
pub mod time;
mod variant;

pub use aggregate::{Aggregate, Context, Reason, Refusal, Refused};
pub use envelope::EventEnvelope;
pub use ids::{
    AggregateId, AggregateKey, AggregateKind, CommandId, CorrelationId, EventId, Position, Version,
};
pub use incoming::IncomingEvent;
pub use messages::{Command, Event};
pub use payload::{InvalidPayload, Payload};
pub use process::{Correlation, NoCommands, Process, Reaction, Seen};
pub use variant::{from_variant, to_variant};
