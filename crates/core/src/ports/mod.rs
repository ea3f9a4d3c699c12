//! Ports: what the core needs from the outside. Adapters implement them; they may change between versions.

pub mod broker;
pub mod clock;
pub mod observations;
pub mod operations;
pub mod probe;
pub mod queues;
pub mod store;
