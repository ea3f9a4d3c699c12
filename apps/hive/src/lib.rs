//! Hive: a control plane for Knative services, on Towpath's public API.
//!
//! Reading order: [`spec`] (what is asked for), [`service`] (the aggregate and its machine), [`gateway`] (the platform),
//! [`knative`] (what was seen of it), `targets` (looking) and [`alerts`] (what an operator should know of), `consumers` (what
//! facts lead to), `views` (the read models), and [`Hive`], which puts them together. `docs/hive.md` says what each event means.

pub mod alerts;
mod consumers;
pub mod gateway;
mod hive;
pub mod knative;
pub mod namespace;
pub mod record;
pub mod schemas;
pub mod service;
pub mod spec;
pub mod tables;
pub mod targets;
mod texts;
mod views;

pub use hive::{Hive, HiveSettings, OBSERVER, Rebuilt, ServiceView, rebuild};
