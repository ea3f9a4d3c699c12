//! Genesis: a session leads from a seed to a novel's plan in six stages, on Towpath's public API.
//!
//! Reading order: [`stage`] and [`draft`] (what a session is made of), [`session`] (the aggregate and its machine),
//! [`capability`] (the work that is handed to workers), [`author`] and [`openai`] (who does it), [`process`], `branches` and `views` (what
//! facts lead to), and [`Genesis`], which puts them together. `docs/genesis.md` says what each command and event means.

pub mod author;
mod branches;
pub mod capability;
pub mod draft;
mod genesis;
pub mod openai;
pub mod process;
pub mod session;
pub mod stage;
mod views;

pub use genesis::{Genesis, GenesisSettings};
pub use process::{answers, subject};
pub use views::{SessionRow, TABLES};
