//! Metrics: what is counted and measured, by the conventions of Prometheus.
//!
//! Towpath speaks to the facade of the crate `metrics`. Whoever embeds it installs a recorder before
//! [`start`](crate::Builder::start), or none, and then each of these is a null check. [`ALL`] is the whole table, and
//! nothing is registered but by it: `docs/metrics.md` shows the same one, and a test compares them.
//!
//! Counters and histograms are registered at the start, one for each label value that there will ever be: command and
//! event types come from the registry, channels, queues and consumers from the builder. No id, and nothing that somebody
//! sends, becomes a label. Gauges are set by [`Towpath::measure`](crate::Towpath::measure), when somebody looks.
//!
//! Reading order: `table` (the metrics as data), `meters` (handles that the services hold), `gauges` (what is asked of the
//! store and the broker when somebody looks), `figures` (what conditions of alerts are about), `summary` (the figures of
//! requirement G10), `facade` (the crate `metrics`, or nothing in its place).

mod facade;
mod figures;
mod gauges;
mod meters;
mod summary;
pub(crate) mod table;

pub use facade::{Counter, Gauge, Histogram};
pub use figures::{Figures, Sample};
pub(crate) use gauges::Gauges;
pub(crate) use meters::{ChannelMeters, CommandMeters, ConsumerMeters, Meters, Next};
#[cfg(feature = "alerts")]
pub(crate) use summary::SUMMARY_NAMES;
pub use summary::{Summary, Windows};
pub use table::{ALL, Kind, Metric, SECONDS};
