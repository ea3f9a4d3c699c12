//! Applications as plug-ins of the server: what each of them brings. `erased` is how the server knows them.

pub(crate) mod erased;

use std::marker::PhantomData;
use std::time::Duration;

use axum::http::StatusCode;
use clap::{ArgMatches, Command, FromArgMatches, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath::ports::store::StoreError;
use towpath::{Application, BrokerUrl, Builder, SqlStore, StoreUrl, Towpath};
use utoipa_axum::router::OpenApiRouter;

use crate::cli::{Failure, ServeFlags};
use crate::http::Problem;
use erased::Applications;

/// An application on a server: its section of the configuration, its HTTP paths and its commands, beside what it installs
/// into Towpath. Its name ([`Application::NAME`]) is that of the section `[NAME]` and of the command `towpath NAME`.
///
/// Its paths are inside the layers that are around all paths: access, limits, Idempotency-Key and audit, metrics and traces.
pub trait Plugin: 'static {
    /// What is installed into Towpath.
    type App: Application + Send + Sync + 'static;
    /// The section `[NAME]` of the configuration file. What holds is shown by `towpath config`.
    type Settings: Default + Serialize + DeserializeOwned + Send + Sync + Clone + 'static;
    /// What its handlers share.
    type State: Clone + Send + Sync + 'static;
    /// What `towpath NAME` can do; or [`NoCommand`].
    type Command: Subcommand;

    /// What `towpath NAME` is, in the help.
    const ABOUT: &'static str = "";
    /// Parts of its section that may be written without its name: `[part]` for `[NAME.part]`.
    const SHORT_SECTIONS: &'static [&'static str] = &[];
    /// Kinds of aggregates whose payloads are not for viewers, also where it does not run.
    const CONFIDENTIAL: &'static [&'static str] = &[];

    /// What is known of it where it is switched off: formats, which channels of the configuration may still be in.
    fn switched_off(builder: Builder) -> Builder {
        builder
    }

    /// Refuses settings that cannot be meant, and fills in what depends on how long a request may take. What is wrong is told
    /// before anything is touched.
    fn check(settings: Self::Settings, request_timeout: Duration) -> Result<Self::Settings, Failure> {
        let _ = request_timeout;
        Ok(settings)
    }

    /// Makes its tables, for `towpath migrate`. Those that it prepares when it starts need nothing here.
    fn migrate(store: &SqlStore) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _ = store;
        async { Ok(()) }
    }

    /// The application; nothing, if it is not to run.
    fn open(
        settings: Self::Settings,
        server: &ServerContext,
    ) -> impl Future<Output = Result<Option<Self::App>, Failure>> + Send;

    /// What its handlers share, once Towpath runs.
    fn state(app: &Self::App, towpath: &Towpath) -> Self::State;

    /// Its paths. They are documented whether or not it runs; where it does not, they answer [`disabled`](Self::disabled).
    fn routes() -> OpenApiRouter<Self::State> {
        OpenApiRouter::new()
    }

    /// Paths that are answered where it does not run, too.
    fn routes_always() -> OpenApiRouter {
        OpenApiRouter::new()
    }

    /// What its paths answer where it does not run.
    fn disabled() -> Problem {
        let name = <Self::App as Application>::NAME;
        let title = format!("{name} does not run on this server");
        let detail = format!("The section [{name}] of the configuration says whether it does.");
        Problem::new(StatusCode::NOT_FOUND, format!("{name}-disabled"), title, detail)
    }

    /// Ends what [`state`](Self::state) began. Towpath is stopped afterwards.
    fn stop(state: Self::State, patience: Duration) -> impl Future<Output = ()> + Send {
        let _ = (state, patience);
        async {}
    }

    /// Runs `towpath NAME …`.
    fn run(
        command: Self::Command,
        line: &CommandLine<'_, Self::Settings>,
    ) -> impl Future<Output = Result<(), Failure>> {
        let _ = (command, line);
        async { Err(Failure::usage("there is no such command")) }
    }
}

/// The server that an application is opened on.
#[non_exhaustive]
pub struct ServerContext {
    /// Which database.
    pub store: StoreUrl,
    /// Which broker.
    pub broker: BrokerUrl,
}

/// The command line that an application's command was given on.
pub struct CommandLine<'a, Settings> {
    applications: &'a Applications,
    name: &'static str,
    settings: PhantomData<Settings>,
}

/// What a command works with: flags, environment, file and defaults put together.
#[non_exhaustive]
pub struct Configured<Settings> {
    /// The URL of the database.
    pub store: String,
    /// The URL of the broker.
    pub broker: String,
    /// The application's own section.
    pub settings: Settings,
}

impl<Settings: Clone + 'static> CommandLine<'_, Settings> {
    /// Puts together what a server with these flags would run with.
    pub fn configured(&self, flags: ServeFlags) -> Result<Configured<Settings>, Failure> {
        let config = flags.config(self.applications)?;
        let mut sections = config.sections.iter();
        let settings = sections
            .find(|section| section.name == self.name)
            .and_then(|section| section.settings.as_any().downcast_ref::<Settings>());
        let settings = settings.ok_or_else(|| Failure::usage(format!("[{}] cannot be read", self.name)))?;
        Ok(Configured { settings: settings.clone(), store: config.store, broker: config.broker })
    }
}

/// For applications without commands.
pub enum NoCommand {}

impl FromArgMatches for NoCommand {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
        Err(clap::Error::new(clap::error::ErrorKind::InvalidSubcommand))
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        match *self {}
    }
}

impl Subcommand for NoCommand {
    fn augment_subcommands(command: Command) -> Command {
        command
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        command
    }

    fn has_subcommand(_: &str) -> bool {
        false
    }
}
