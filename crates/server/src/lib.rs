//! The server as a library: the `towpath` binary, and servers with applications of your own among ours.
//!
//! ```no_run
//! use towpath_server::{Server, apps};
//!
//! fn main() -> std::process::ExitCode {
//!     Server::new().with_all(apps::OURS) /* .with::<Shop>() */ .run()
//! }
//! ```
//!
//! An application implements [`Plugin`]. Its handlers read requests with [`JsonBody`], [`Query`] and [`Path`], know who asks
//! by [`Caller`], and answer what is wrong with a [`Problem`].

pub mod apps;
mod cli;
mod http;
#[cfg(feature = "otel")]
mod otel;
mod plugin;
mod server;
mod shown_url;

use std::ffi::OsString;
use std::process::ExitCode;

pub use cli::{Answer, Client, Connection, Failure, ServeFlags, output};
pub use http::{Caller, JsonBody, OptionalJsonBody, Path, Problem, Query, RawBody, Role};
pub use plugin::{CommandLine, Configured, NoCommand, Plugin, ServerContext};
pub use server::Server;
pub use {axum, clap, utoipa, utoipa_axum};

/// What handlers share beside: which part of a listing is asked for, commands under an Idempotency-Key, the tags of `If-Match`.
pub mod kit {
    pub use crate::http::command_ids::{idempotency_key, send_under_key, sent_under_key};
    pub use crate::http::conditional::{Tags, strong_tags};
    pub use crate::http::range::{next, number, page_limit, usually};
}

/// Runs a command line of a server with our applications. What is served has, beside all else, what `extend` adds.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    extend: impl FnOnce(towpath::Builder) -> towpath::Builder + 'static,
) -> ExitCode {
    Server::new().with_all(apps::OURS).extended(extend).run_from(arguments)
}
