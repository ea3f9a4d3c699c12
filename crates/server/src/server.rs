//! A server, put together from applications.

use std::ffi::OsString;
use std::process::ExitCode;

use towpath::Builder;

use crate::cli;
use crate::plugin::Plugin;
use crate::plugin::erased::{AnyPlugin, Typed};

/// A server with its applications, and the command line around it.
///
/// ```no_run
/// use towpath_server::{Server, apps};
///
/// fn main() -> std::process::ExitCode {
///     Server::new().with_all(apps::OURS) /* .with::<Shop>() */ .run()
/// }
/// ```
#[derive(Default)]
pub struct Server {
    pub(crate) applications: Vec<Box<dyn AnyPlugin>>,
    pub(crate) extensions: Vec<Box<dyn FnOnce(Builder) -> Builder>>,
}

impl Server {
    /// One without applications.
    pub fn new() -> Self {
        Self::default()
    }

    /// With an application.
    pub fn with<P: Plugin>(mut self) -> Self {
        self.applications.push(Box::new(Typed::<P>::new()));
        self
    }

    /// With all applications of a list, such as [`apps::OURS`](crate::apps::OURS).
    pub fn with_all(self, list: &[fn(Self) -> Self]) -> Self {
        list.iter().fold(self, |server, with| with(server))
    }

    /// With what needs no settings, paths or commands: aggregates, channels and consumers.
    pub fn extended(mut self, extend: impl FnOnce(Builder) -> Builder + 'static) -> Self {
        self.extensions.push(Box::new(extend));
        self
    }

    /// Runs the command line that the process was called with.
    pub fn run(self) -> ExitCode {
        self.run_from(std::env::args_os())
    }

    /// Runs a command line. Its first word is the name of the program.
    pub fn run_from(self, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
        cli::main(self, arguments)
    }
}
