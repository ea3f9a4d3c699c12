//! The command line. Without a subcommand it serves.
//!
//! Exit codes: 0 fine, 1 the answer is "no", 2 usage, 3 a server or database could not be reached.

mod bench;
mod config;
mod market;
mod migrate;
mod output;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use config::ServeFlags;

/// A backbone on which every state change becomes a fact, and every fact arrives.
#[derive(Parser)]
#[command(name = "towpath", version, about, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    serve: ServeFlags,
}

#[derive(Subcommand)]
enum Command {
    /// Start the server (also the default without a subcommand)
    Serve(ServeFlags),
    /// Bring the database to this version's tables
    Migrate(ServeFlags),
    /// The market's orders
    Market {
        #[command(subcommand)]
        what: market::MarketCommand,
    },
    /// Measure against the raw driver doing the same work, in the same run
    Bench {
        #[command(subcommand)]
        what: bench::Bench,
    },
}

/// What a command line call failed with.
pub(crate) struct Failure {
    code: ExitCode,
    message: String,
}

impl Failure {
    /// The call itself is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: ExitCode::from(2), message: message.into() }
    }

    /// A server or database could not be reached, or refuses to work.
    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self { code: ExitCode::from(3), message: message.into() }
    }
}

/// Runs the command line.
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::error(&format!("the runtime cannot be started: {error}"));
            return ExitCode::from(3);
        }
    };
    let result = runtime.block_on(async {
        match arguments.command {
            None => serve::serve(arguments.serve).await,
            Some(Command::Serve(flags)) => serve::serve(flags).await,
            Some(Command::Migrate(flags)) => migrate::migrate(flags).await,
            Some(Command::Market { what }) => market::run(what),
            Some(Command::Bench { what }) => bench::run(what).await,
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::error(&failure.message);
            failure.code
        }
    }
}
