//! `towpath bench`: every number is measured against the raw driver doing the same work, in the same run.
//!
//! Rates on a laptop, in a container or beside a noisy neighbour mean little; ratios of contenders that take turns
//! every second mean something.

mod bare;
mod write;

use clap::Subcommand;

use super::Failure;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// A command through Towpath against the bare business transaction, on each database
    Write(write::WriteFlags),
}

/// Runs a benchmark.
pub(crate) async fn run(what: Bench) -> Result<(), Failure> {
    match what {
        Bench::Write(flags) => write::run(flags).await,
    }
}
