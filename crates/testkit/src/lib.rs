//! What tests of Towpath, and of applications on it, need.
//!
//! - [`given`], [`given_process`]: given/when/then for an aggregate and for a process, without any I/O.
//! - [`VirtualClock`]: a clock that stands still until it is told to move.
//! - [`CountingProbe`], [`KillProbe`], [`StopProbe`], [`PauseProbe`], [`MutantProbe`]: what happens just before a statement is sent.
//! - [`store`]: the meaning of the store contract, as cases that every adapter runs.
//! - [`ledger`]: an auditor of deliveries that counts on its own.
//! - [`broker`]: the meaning of the broker contract, likewise, and a TCP proxy that cuts and holds connections.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a panic is how a test kit says no"
)]

pub mod broker;
mod clock;
mod control;
mod difference;
mod given;
pub mod ledger;
mod probe;
pub mod store;

pub use clock::VirtualClock;
pub use control::under_control;
pub use given::{Given, GivenProcess, Then, When, WhenSeen, given, given_process, seen};
pub use probe::{CountingProbe, KillProbe, MutantProbe, PauseProbe, StopProbe};
