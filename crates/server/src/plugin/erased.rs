//! Applications with their types erased: what the server does with each of them, in the order of these traits.

use std::any::Any;
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use axum::routing::{MethodFilter, MethodRouter, on};
use clap::{ArgMatches, Command, FromArgMatches as _, Subcommand as _};
use towpath::ports::store::StoreError;
use towpath::{Application as _, Builder, SqlStore, Towpath};
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::PathItem;

use super::{CommandLine, Plugin, ServerContext};
use crate::cli::Failure;
use crate::http::App;

/// A future that may be anywhere.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The applications of a server, in the order in which they were listed.
pub(crate) type Applications = [Box<dyn AnyPlugin>];

/// An application that is listed.
pub(crate) trait AnyPlugin {
    fn name(&self) -> &'static str;
    fn short_sections(&self) -> &'static [&'static str];
    fn confidential(&self) -> &'static [&'static str];
    /// What is known of it where it does not run.
    #[cfg(feature = "follow")]
    fn switched_off(&self, builder: Builder) -> Builder;
    /// Its paths, as if it were switched off.
    #[cfg(test)]
    fn paths(&self) -> Paths;
    /// Reads its section.
    fn configured(
        &self,
        section: toml::Table,
        request_timeout: Duration,
    ) -> Result<Box<dyn AnySettings>, Failure>;
    fn migrate<'a>(&self, store: &'a SqlStore) -> Boxed<'a, Result<(), StoreError>>;
    /// `towpath NAME`, if it has commands.
    fn command(&self) -> Option<Command>;
    fn run<'a>(
        &self,
        matches: &ArgMatches,
        applications: &'a Applications,
    ) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;
}

/// Its settings.
pub(crate) trait AnySettings: Send + Sync {
    fn as_any(&self) -> &dyn Any;
    /// As they hold, by the names of the file.
    fn shown(&self) -> Result<toml::Table, toml::ser::Error>;
    fn open<'a>(&self, server: &'a ServerContext) -> Boxed<'a, Result<Box<dyn AnyApp>, Failure>>;
}

/// It, opened; or switched off.
pub(crate) trait AnyApp: Send + Sync {
    fn install(&self, builder: Builder) -> Builder;
    fn begin(&self, towpath: &Towpath) -> Running;
}

/// It on a Towpath that runs.
pub(crate) struct Running {
    pub(crate) paths: Paths,
    stop: Box<dyn FnOnce(Duration) -> Boxed<'static, ()> + Send>,
}

/// Paths and their document.
pub(crate) struct Paths {
    pub(crate) router: Router<App>,
    pub(crate) document: OpenApi,
}

impl Running {
    /// Its paths, and what ends it.
    pub(crate) fn split(self) -> (Paths, impl FnOnce(Duration) -> Boxed<'static, ()>) {
        (self.paths, self.stop)
    }
}

/// An application by its type.
pub(crate) struct Typed<P>(PhantomData<P>);

impl<P> Typed<P> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<P: Plugin> AnyPlugin for Typed<P> {
    fn name(&self) -> &'static str {
        P::App::NAME
    }

    fn short_sections(&self) -> &'static [&'static str] {
        P::SHORT_SECTIONS
    }

    fn confidential(&self) -> &'static [&'static str] {
        P::CONFIDENTIAL
    }

    #[cfg(feature = "follow")]
    fn switched_off(&self, builder: Builder) -> Builder {
        P::switched_off(builder)
    }

    #[cfg(test)]
    fn paths(&self) -> Paths {
        off::<P>()
    }

    fn configured(
        &self,
        section: toml::Table,
        request_timeout: Duration,
    ) -> Result<Box<dyn AnySettings>, Failure> {
        let settings = toml::Value::Table(section).try_into().map_err(|error: toml::de::Error| {
            Failure::usage(format!("[{}] in the configuration file is wrong: {error}", P::App::NAME))
        })?;
        Ok(Box::new(SettingsOf::<P>(P::check(settings, request_timeout)?)))
    }

    fn migrate<'a>(&self, store: &'a SqlStore) -> Boxed<'a, Result<(), StoreError>> {
        Box::pin(P::migrate(store))
    }

    fn command(&self) -> Option<Command> {
        let command = P::Command::augment_subcommands(Command::new(P::App::NAME)).about(P::ABOUT);
        command.has_subcommands().then(|| command.subcommand_required(true).arg_required_else_help(true))
    }

    fn run<'a>(
        &self,
        matches: &ArgMatches,
        applications: &'a Applications,
    ) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>> {
        let command = P::Command::from_arg_matches(matches);
        Box::pin(async move {
            let line = CommandLine { applications, name: P::App::NAME, settings: PhantomData };
            P::run(command.map_err(|error| Failure::usage(error.to_string()))?, &line).await
        })
    }
}

struct SettingsOf<P: Plugin>(P::Settings);

impl<P: Plugin> AnySettings for SettingsOf<P> {
    fn as_any(&self) -> &dyn Any {
        &self.0
    }

    fn shown(&self) -> Result<toml::Table, toml::ser::Error> {
        toml::Table::try_from(&self.0)
    }

    fn open<'a>(&self, server: &'a ServerContext) -> Boxed<'a, Result<Box<dyn AnyApp>, Failure>> {
        let settings = self.0.clone();
        Box::pin(async move {
            let opened = P::open(settings, server).await?;
            Ok(Box::new(AppOf::<P>(opened)) as Box<dyn AnyApp>)
        })
    }
}

struct AppOf<P: Plugin>(Option<P::App>);

impl<P: Plugin> AnyApp for AppOf<P> {
    fn install(&self, builder: Builder) -> Builder {
        match &self.0 {
            Some(app) => app.install(builder),
            None => P::switched_off(builder),
        }
    }

    fn begin(&self, towpath: &Towpath) -> Running {
        let Some(app) = &self.0 else {
            return Running { paths: off::<P>(), stop: Box::new(|_| Box::pin(async {})) };
        };
        let state = P::state(app, towpath);
        let (router, mut document) = P::routes().split_for_parts();
        let (always, also) = P::routes_always().split_for_parts();
        document.merge(also);
        let paths = Paths { router: router.with_state(state.clone()).merge(always.with_state(())), document };
        Running { paths, stop: Box::new(move |patience| Box::pin(P::stop(state, patience))) }
    }
}

/// The paths of an application that does not run: the same ones, which say so.
fn off<P: Plugin>() -> Paths {
    let (_, mut document) = P::routes().split_for_parts();
    let mut router = Router::new();
    for (path, item) in &document.paths.paths {
        router = router.route(path, says_disabled::<P>(item));
    }
    let (always, also) = P::routes_always().split_for_parts();
    document.merge(also);
    Paths { router: router.merge(always.with_state(())), document }
}

fn says_disabled<P: Plugin>(item: &PathItem) -> MethodRouter<App> {
    let methods = [
        (MethodFilter::GET, &item.get),
        (MethodFilter::POST, &item.post),
        (MethodFilter::PUT, &item.put),
        (MethodFilter::PATCH, &item.patch),
        (MethodFilter::DELETE, &item.delete),
    ];
    let documented = methods.into_iter().filter(|(_, operation)| operation.is_some());
    documented
        .fold(MethodRouter::new(), |router, (method, _)| router.merge(on(method, async || P::disabled())))
}
