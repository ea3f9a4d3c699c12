//! The benchmarks of `towpath bench`: every number is measured against the raw driver doing the same work, in the same run.
//!
//! Rates on a laptop, in a container or beside a noisy neighbour mean little; ratios of contenders that take turns
//! every second mean something.

mod backlog;
mod bare;
mod by_hand_consumer;
mod by_hand_path;
mod by_hand_relay;
mod by_hand_tasks;
mod consume;
mod drain;
mod latency;
mod queue;
mod task_claims;
mod task_pick_ups;
mod tasks;
mod write;

use clap::Subcommand;
use serde::Serialize;
use towpath::ports::store::StoreError;

pub use crate::write::{Account, AccountCommand};

/// What to measure.
#[derive(Subcommand)]
pub enum Benchmark {
    /// A command through Towpath against the bare business transaction, on each database
    Write(write::WriteFlags),
    /// The relay against a hand-written one, on a backlog
    Drain(drain::DrainFlags),
    /// Consumers against hand-written ones, on full queues
    Consume(consume::ConsumeFlags),
    /// From the commit to the handler, against the same way by hand, at a steady rate
    Latency(latency::LatencyFlags),
    /// Tasks against jobs of hand-written workers, and how soon an idle worker begins; or what a claim costs
    Tasks(tasks::TaskFlags),
}

impl Benchmark {
    /// Measures, and answers what came out, as text or JSON.
    ///
    /// # Errors
    /// The call is wrong, or a server could not be reached or refuses to work.
    pub async fn run(self) -> Result<String, Failure> {
        match self {
            Self::Write(flags) => write::run(flags).await,
            Self::Drain(flags) => drain::run(flags).await,
            Self::Consume(flags) => consume::run(flags).await,
            Self::Latency(flags) => latency::run(flags).await,
            Self::Tasks(flags) => tasks::run(flags).await,
        }
    }
}

/// Why nothing was measured.
#[derive(Debug)]
pub enum Failure {
    /// The call itself is wrong.
    Usage(String),
    /// The database cannot be reached, or refuses to work.
    Store(StoreError),
    /// Something else cannot be reached, or refuses to work.
    Unreachable(String),
}

impl Failure {
    fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    fn unreachable(message: impl Into<String>) -> Self {
        Self::Unreachable(message.into())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What came out, as it was asked for.
fn answer<R: Serialize + ?Sized>(
    json: bool,
    report: &R,
    text: impl Fn(&R) -> String,
) -> Result<String, Failure> {
    if !json {
        return Ok(text(report));
    }
    serde_json::to_string_pretty(report).map_err(|error| Failure::unreachable(error.to_string()))
}

fn on_postgres<T>(result: Result<T, towpath::sqlx::Error>) -> Result<T, Failure> {
    result.map_err(|error| Failure::unreachable(error.to_string()))
}

/// The middle one.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}
