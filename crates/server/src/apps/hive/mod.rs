//! Hive on the server.

mod commands;
mod kept;
mod kubernetes;
mod routes;
mod settings;
mod shown;

use std::time::Duration;

use towpath::ports::store::StoreError;
use towpath::{Aggregate as _, SqlStore, Towpath};
use towpath_hive::record::ServiceRecord;
use towpath_hive::service::Service;
use towpath_hive::tables::TABLES;
use utoipa_axum::router::OpenApiRouter;

use crate::plugin::{CommandLine, Plugin, ServerContext};
use crate::{Failure, Problem};
use commands::HiveCommand;
use settings::HiveSection;

/// Hive.
pub struct Hive;

/// What its handlers share.
#[derive(Clone)]
pub struct Serving {
    hive: towpath_hive::Hive,
    towpath: Towpath,
}

impl Plugin for Hive {
    type App = towpath_hive::Hive;
    type Settings = HiveSection;
    type State = Serving;
    type Command = HiveCommand;

    const ABOUT: &'static str = "What hive keeps beside its facts";
    // As the source names it.
    const SHORT_SECTIONS: &'static [&'static str] = &["outbox"];
    const CONFIDENTIAL: &'static [&'static str] = &[Service::KIND, ServiceRecord::KIND];

    fn check(settings: HiveSection, request_timeout: Duration) -> Result<HiveSection, Failure> {
        settings.checked(request_timeout)
    }

    async fn migrate(store: &SqlStore) -> Result<(), StoreError> {
        store.create_tables(&TABLES).await
    }

    async fn open(settings: HiveSection, server: &ServerContext) -> Result<Option<Self::App>, Failure> {
        settings.open(&server.store).await
    }

    fn state(hive: &Self::App, towpath: &Towpath) -> Serving {
        Serving { hive: hive.clone(), towpath: towpath.clone() }
    }

    fn routes() -> OpenApiRouter<Serving> {
        routes::routes()
    }

    fn routes_always() -> OpenApiRouter {
        routes::routes_always()
    }

    fn disabled() -> Problem {
        Problem::not_found("hive does not run on this server")
    }

    async fn run(command: HiveCommand, line: &CommandLine<'_, HiveSection>) -> Result<(), Failure> {
        command.run(line).await
    }
}
