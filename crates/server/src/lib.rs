//! The server as a library: the `towpath` binary, and servers of applications that bring aggregates of their own.
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     towpath_server::run(std::env::args_os(), |builder| builder /* .aggregate::<Order>() */)
//! }
//! ```

mod cli;
mod http;
#[cfg(feature = "otel")]
mod otel;
mod shown_url;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs a command line. What is served has, beside all else, what `extend` adds.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    extend: impl FnOnce(towpath::Builder) -> towpath::Builder,
) -> ExitCode {
    cli::main(arguments, extend)
}
