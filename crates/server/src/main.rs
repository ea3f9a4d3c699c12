//! The `towpath` binary: one server and the command line around it.

mod cli;
mod http;
#[cfg(feature = "otel")]
mod otel;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
