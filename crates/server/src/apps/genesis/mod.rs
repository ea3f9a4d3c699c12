//! Genesis on the server.

mod routes;
mod settings;
mod shown;

use std::time::Duration;

use axum::http::StatusCode;
use towpath::ports::store::StoreError;
use towpath::{SqlStore, Towpath};
use towpath_genesis::TABLES;
use utoipa_axum::router::OpenApiRouter;

use crate::plugin::{NoCommand, Plugin, ServerContext};
use crate::{Failure, Problem};
use settings::GenesisSection;

/// Genesis.
pub struct Genesis;

/// What its handlers share.
#[derive(Clone)]
pub struct Serving {
    genesis: towpath_genesis::Genesis,
    towpath: Towpath,
}

impl Plugin for Genesis {
    type App = towpath_genesis::Genesis;
    type Settings = GenesisSection;
    type State = Serving;
    type Command = NoCommand;

    async fn migrate(store: &SqlStore) -> Result<(), StoreError> {
        store.create_tables(&TABLES).await
    }

    fn check(settings: GenesisSection, request_timeout: Duration) -> Result<GenesisSection, Failure> {
        settings.checked(request_timeout)
    }

    async fn open(settings: GenesisSection, _: &ServerContext) -> Result<Option<Self::App>, Failure> {
        settings.open()
    }

    fn state(genesis: &Self::App, towpath: &Towpath) -> Serving {
        Serving { genesis: genesis.clone(), towpath: towpath.clone() }
    }

    fn routes() -> OpenApiRouter<Serving> {
        routes::routes()
    }

    fn routes_always() -> OpenApiRouter {
        routes::routes_always()
    }

    fn disabled() -> Problem {
        let (title, detail) =
            ("genesis does not run on this server", "Set genesis.enabled in the configuration.");
        Problem::new(StatusCode::NOT_FOUND, "genesis-disabled", title, detail)
    }
}
