//! Hive: a control plane for Knative services, on Towpath's public API.

pub mod gateway;
pub mod spec;
