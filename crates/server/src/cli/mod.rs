//! The command line. Without a subcommand it serves.
//!
//! Exit codes: 0 fine, 1 the answer is "no", 2 usage, 3 a server or database could not be reached; 130 and 143 ended at once
//! by a second Ctrl-C or SIGTERM.

mod bench;
mod client;
mod config;
#[cfg(feature = "follow")]
mod follow;
mod hive;
mod keys;
mod market;
mod migrate;
mod output;
mod serve;
mod settings;
mod shown_config;
mod signals;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use towpath::Builder;

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
    #[command(flatten)]
    Ask(client::Ask),
    /// What hive keeps beside its facts
    Hive {
        #[command(subcommand)]
        what: hive::HiveCommand,
    },
    /// Keep the facts of another Towpath in a store of its own
    #[cfg(feature = "follow")]
    Follow(follow::FollowFlags),
    /// Show what the server would run with, and where each value comes from
    Config(ServeFlags),
    /// Make API keys
    Keys {
        #[command(subcommand)]
        what: keys::Keys,
    },
    /// The market's products and orders
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
    /// The answer is "no".
    pub(crate) fn answered_no(message: impl Into<String>) -> Self {
        Self { code: ExitCode::from(1), message: message.into() }
    }

    /// The call itself is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: ExitCode::from(2), message: message.into() }
    }

    /// The answer is "no".
    pub(crate) fn no(message: impl Into<String>) -> Self {
        Self { code: ExitCode::from(1), message: message.into() }
    }

    /// A server or database could not be reached, or refuses to work.
    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self { code: ExitCode::from(3), message: message.into() }
    }
}

/// Runs the command line.
pub(crate) fn main(
    arguments: impl IntoIterator<Item = OsString>,
    extend: impl FnOnce(Builder) -> Builder,
) -> ExitCode {
    let arguments = Arguments::parse_from(arguments);
    // Two of them are in the graph, and TLS asks which. A second call would find it chosen, and that is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::error(&format!("the runtime cannot be started: {error}"));
            return ExitCode::from(3);
        }
    };
    let result = runtime.block_on(async {
        match arguments.command {
            None => serve::serve(arguments.serve, extend).await,
            Some(Command::Serve(flags)) => serve::serve(flags, extend).await,
            Some(Command::Migrate(flags)) => migrate::migrate(flags).await,
            Some(Command::Ask(ask)) => client::run(ask).await,
            Some(Command::Hive { what }) => hive::run(what).await,
            #[cfg(feature = "follow")]
            Some(Command::Follow(flags)) => follow::follow(flags).await,
            Some(Command::Config(flags)) => shown_config::show(flags),
            Some(Command::Keys { what }) => keys::run(what),
            Some(Command::Market { what }) => market::run(what).await,
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
