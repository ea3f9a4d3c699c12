//! The market on the server.

mod commands;
mod routes;
mod settings;
mod wire;

use axum::http::StatusCode;
use towpath::{Builder, Towpath};
use towpath_market::MarketEnvelope;
use utoipa_axum::router::OpenApiRouter;

use crate::plugin::{CommandLine, Plugin, ServerContext};
use crate::{Failure, Problem};
use commands::MarketCommand;
use settings::MarketSection;

/// The market.
pub struct Market;

impl Plugin for Market {
    type App = towpath_market::Settings;
    type Settings = MarketSection;
    type State = towpath_market::Market;
    type Command = MarketCommand;

    const ABOUT: &'static str = "The market's products and orders";

    async fn open(settings: MarketSection, server: &ServerContext) -> Result<Option<Self::App>, Failure> {
        settings.on(&server.broker)
    }

    fn switched_off(builder: Builder) -> Builder {
        builder.format(MarketEnvelope)
    }

    fn state(settings: &Self::App, towpath: &Towpath) -> Self::State {
        towpath_market::Market::open(towpath, settings.clone()).answering(routes::answer)
    }

    fn routes() -> OpenApiRouter<Self::State> {
        routes::routes()
    }

    fn disabled() -> Problem {
        let title = "the market does not run on this server";
        let detail = "Set market.enabled in the configuration; on Kafka it cannot run.";
        Problem::new(StatusCode::NOT_FOUND, "market-disabled", title, detail)
    }

    async fn run(command: MarketCommand, line: &CommandLine<'_, MarketSection>) -> Result<(), Failure> {
        command.run(line).await
    }
}
