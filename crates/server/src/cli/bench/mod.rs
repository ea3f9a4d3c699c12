//! `towpath bench`: every number is measured against the raw driver doing the same work, in the same run.
//!
//! Rates on a laptop, in a container or beside a noisy neighbour mean little; ratios of contenders that take turns
//! every second mean something.

#[cfg(all(feature = "postgres", feature = "rabbitmq"))]
mod backlog;
mod bare;
#[cfg(all(feature = "postgres", feature = "rabbitmq"))]
mod by_hand_consumer;
#[cfg(all(feature = "postgres", feature = "rabbitmq"))]
mod by_hand_path;
#[cfg(all(feature = "postgres", feature = "rabbitmq"))]
mod by_hand_relay;
#[cfg(all(feature = "postgres", feature = "rabbitmq"))]
mod consume;
#[cfg(all(feature = "postgres", feature = "rabbitmq"))]
mod drain;
#[cfg(all(feature = "postgres", feature = "rabbitmq"))]
mod latency;
#[cfg(all(feature = "postgres", feature = "rabbitmq"))]
mod queue;
mod stream;
mod write;

use clap::Subcommand;

use super::Failure;

/// What to measure.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// A command through Towpath against the bare business transaction, on each database
    Write(write::WriteFlags),
    /// The relay against a hand-written one, on a backlog
    #[cfg(all(feature = "postgres", feature = "rabbitmq"))]
    Drain(drain::DrainFlags),
    /// Consumers against hand-written ones, on full queues
    #[cfg(all(feature = "postgres", feature = "rabbitmq"))]
    Consume(consume::ConsumeFlags),
    /// From the commit to the handler, against the same way by hand, at a steady rate
    #[cfg(all(feature = "postgres", feature = "rabbitmq"))]
    Latency(latency::LatencyFlags),
    /// Many readers of the event stream against one: memory for each, and added latency
    Stream(stream::StreamFlags),
    /// The readers of `stream`, in a process of their own
    #[command(hide = true)]
    StreamReaders(stream::ReaderFlags),
}

/// Runs a benchmark.
pub(crate) async fn run(what: Bench) -> Result<(), Failure> {
    match what {
        Bench::Write(flags) => write::run(flags).await,
        #[cfg(all(feature = "postgres", feature = "rabbitmq"))]
        Bench::Drain(flags) => drain::run(flags).await,
        #[cfg(all(feature = "postgres", feature = "rabbitmq"))]
        Bench::Consume(flags) => consume::run(flags).await,
        #[cfg(all(feature = "postgres", feature = "rabbitmq"))]
        Bench::Latency(flags) => latency::run(flags).await,
        Bench::Stream(flags) => stream::run(flags).await,
        Bench::StreamReaders(flags) => stream::read(flags).await,
    }
}

fn failed(error: towpath::ports::store::StoreError) -> Failure {
    Failure::from(error)
}

#[cfg(all(feature = "postgres", feature = "rabbitmq"))]
fn on_postgres<T>(result: Result<T, towpath::sqlx::Error>) -> Result<T, Failure> {
    result.map_err(|error| Failure::unreachable(error.to_string()))
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}
