//! The command line. Without a subcommand it serves.
//!
//! Exit codes: 0 fine, 1 the answer is "no", 2 usage, 3 a server or database could not be reached; 130 and 143 ended at once
//! by a second Ctrl-C or SIGTERM.

#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "bench")]
mod bench_stream;
pub(crate) mod client;
pub(crate) mod config;
#[cfg(feature = "follow")]
mod follow;
mod keys;
mod migrate;
pub mod output;
mod serve;
mod settings;
pub(crate) mod shown_config;
mod signals;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use towpath::Coded;
use towpath::ports::store::StoreError;

use crate::Server;
use crate::plugin::erased::Applications;

pub use client::{Answer, Client, Connection};
pub use config::ServeFlags;

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
    #[cfg(feature = "bench")]
    /// Measure against the raw driver doing the same work, in the same run
    Bench {
        #[command(subcommand)]
        what: bench::Bench,
    },
}

/// What a command line call failed with.
pub struct Failure {
    code: ExitCode,
    pub(crate) message: String,
}

impl Failure {
    /// The call itself is wrong.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: ExitCode::from(2), message: message.into() }
    }

    /// The answer is "no".
    pub fn no(message: impl Into<String>) -> Self {
        Self { code: ExitCode::from(1), message: message.into() }
    }

    /// A server or database could not be reached, or refuses to work.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self { code: ExitCode::from(3), message: message.into() }
    }
}

/// What, why, and what to do.
pub(crate) fn told(error: &(impl Coded + 'static)) -> String {
    format!("{} [{}]\n{}", towpath::with_causes(error), error.code(), error.next_step())
}

/// What, why, and what to do.
impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let mut message = format!("{error} [{}]", error.code());
        for cause in towpath::causes(&error) {
            message.push_str(&format!("\n  because: {cause}"));
        }
        message.push_str(&format!("\n{}", error.next_step()));
        match error {
            StoreError::BadUrl(_) => Self::usage(message),
            _ => Self::unreachable(message),
        }
    }
}

/// Runs the command line of a server.
pub(crate) fn main(server: Server, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let matches = match command_line(&server.applications) {
        Ok(command) => command.get_matches_from(arguments),
        Err(failure) => return ended(Err(failure)),
    };
    // Two of them are in the graph, and TLS asks which. A second call would find it chosen, and that is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::error(&format!("the runtime cannot be started: {error}"));
            return ExitCode::from(3);
        }
    };
    ended(runtime.block_on(run(server, &matches)))
}

/// Our own commands, and one of each application.
pub(crate) fn command_line(applications: &Applications) -> Result<clap::Command, Failure> {
    let mut line = Arguments::command();
    // A section that two would read, or an application and the server, would be read by the first alone.
    let mut sections = config::NAMES.to_vec();
    for application in applications {
        let name = application.name();
        if line.find_subcommand(name).is_some() || sections.contains(&name) {
            return Err(Failure::usage(format!("an application cannot be called {name}: that is taken")));
        }
        sections.push(name);
        if let Some(short) = application.short_sections().iter().find(|short| sections.contains(*short)) {
            return Err(Failure::usage(format!("{name} cannot have a section [{short}]: that is taken")));
        }
        sections.extend(application.short_sections());
        if let Some(command) = application.command() {
            line = line.subcommand(command);
        }
    }
    Ok(line)
}

async fn run(server: Server, matches: &ArgMatches) -> Result<(), Failure> {
    let applications = &server.applications;
    if let Some((name, matches)) = matches.subcommand()
        && let Some(application) = applications.iter().find(|application| application.name() == name)
    {
        return application.run(matches, applications).await;
    }
    let arguments = Arguments::from_arg_matches(matches).unwrap_or_else(|error| error.exit());
    match arguments.command {
        None => serve::serve(arguments.serve, server).await,
        Some(Command::Serve(flags)) => serve::serve(flags, server).await,
        Some(Command::Migrate(flags)) => migrate::migrate(flags, applications).await,
        Some(Command::Ask(ask)) => client::run(ask).await,
        #[cfg(feature = "follow")]
        Some(Command::Follow(flags)) => follow::follow(flags, applications).await,
        Some(Command::Config(flags)) => shown_config::show(flags, applications),
        Some(Command::Keys { what }) => keys::run(what),
        #[cfg(feature = "bench")]
        Some(Command::Bench { what }) => bench::run(what).await,
    }
}

fn ended(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::error(&failure.message);
            failure.code
        }
    }
}
