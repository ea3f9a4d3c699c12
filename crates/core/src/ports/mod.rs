//! Ports: what the core needs from the outside. Adapters implement them; they may change between versions.

pub mod broker;
pub mod clock;
pub mod probe;
pub mod store;

pub use store::{observations, operations, queues};
