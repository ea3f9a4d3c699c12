//! The `towpath` binary: one server and the command line around it.

use std::process::ExitCode;

use towpath_server::{Server, apps};

fn main() -> ExitCode {
    Server::new().with_all(apps::OURS).run()
}
