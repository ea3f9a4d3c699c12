//! The `towpath` binary: one server and the command line around it.

use std::process::ExitCode;

fn main() -> ExitCode {
    towpath_server::run(std::env::args_os(), |builder| builder)
}
