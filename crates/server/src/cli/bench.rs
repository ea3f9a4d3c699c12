//! `towpath bench`: the benchmarks of their own crate, and the one that needs the server's inside.

use clap::Subcommand;
use towpath_bench::Benchmark;

use super::bench_stream::{self, ReaderFlags, StreamFlags};
use super::{Failure, output};

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Bench {
    #[command(flatten)]
    Benchmark(Benchmark),
    /// Many readers of the event stream against one: memory for each, and added latency
    Stream(StreamFlags),
    /// The readers of `stream`, in a process of their own
    #[command(hide = true)]
    StreamReaders(ReaderFlags),
}

/// Runs a benchmark.
pub(crate) async fn run(what: Bench) -> Result<(), Failure> {
    match what {
        Bench::Benchmark(benchmark) => output::line(&benchmark.run().await.map_err(failed)?),
        Bench::Stream(flags) => bench_stream::run(flags).await?,
        Bench::StreamReaders(flags) => bench_stream::read(flags).await?,
    }
    Ok(())
}

fn failed(failure: towpath_bench::Failure) -> Failure {
    match failure {
        towpath_bench::Failure::Usage(message) => Failure::usage(message),
        towpath_bench::Failure::Store(error) => Failure::from(error),
        towpath_bench::Failure::Unreachable(message) => Failure::unreachable(message),
    }
}
