//! `towpath serve`: the server.

use towpath::{BrokerUrl, StoreUrl, Towpath};
use towpath_market::Market;

use super::config::ServeFlags;
use super::migrate::failure;
use super::{Failure, output};
use crate::http;

/// Starts the library and the HTTP server, and runs until it is told to stop.
pub(crate) async fn serve(flags: ServeFlags) -> Result<(), Failure> {
    let config = flags.config()?;
    if !config.listen.ip().is_loopback() {
        return Err(Failure::usage(format!(
            "{} is reachable from other machines, and this build has no access control yet; listen on 127.0.0.1 or [::1]",
            config.listen
        )));
    }
    // What is written wrong is told before anything is touched.
    StoreUrl::parse(&config.store).map_err(|error| failure(&error))?;
    let broker = BrokerUrl::parse(&config.broker)
        .map_err(|error| Failure::usage(format!("{error} [{}]\n{}", error.code(), error.next_step())))?;
    let market = config.market.on(&broker)?;
    start_log();
    // The address first: a second server on the same port should not touch the database at all.
    let listener = tokio::net::TcpListener::bind(config.listen)
        .await
        .map_err(|error| Failure::unreachable(format!("cannot listen on {}: {error}", config.listen)))?;
    let builder = Towpath::builder().store(&config.store).broker(&config.broker).channels(config.channels);
    let builder = match &market {
        Some(settings) => Market::install(builder, settings),
        None => builder,
    };
    let app = builder.start().await.map_err(|error| {
        Failure::unreachable(format!("{} [{}]\n{}", error.report(), error.code(), error.next_step()))
    })?;
    let market = market.map(|settings| Market::open(&app, settings));
    let address = listener.local_addr().map_err(|error| Failure::unreachable(error.to_string()))?;
    output::note(&format!("towpath {} listens on http://{address}/", env!("CARGO_PKG_VERSION")));
    let state = http::App { towpath: app.clone(), market: market.clone() };
    let served = axum::serve(listener, http::router(state)).with_graceful_shutdown(told_to_stop()).await;
    if let Some(market) = market {
        market.stop().await;
    }
    app.stop().await;
    served.map_err(|error| Failure::unreachable(format!("the server ended: {error}")))
}

fn start_log() {
    use tracing_subscriber::EnvFilter;
    // lapin logs whole messages as warnings, and the login with its password when it traces: never more than errors.
    const QUIET: &str = "sqlx=warn,lapin=error,amq_protocol=error";
    let chosen = std::env::var("TOWPATH_LOG").unwrap_or_else(|_| "info".to_owned());
    let filter = EnvFilter::try_new(format!("{chosen},{QUIET}"))
        .unwrap_or_else(|_| EnvFilter::new(format!("info,{QUIET}")));
    // A second subscriber is only possible in tests, and then the first one stays.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

/// Waits for Ctrl-C or, on Unix, SIGTERM.
async fn told_to_stop() {
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            Err(_) => std::future::pending::<()>().await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        () = interrupt => {}
        () = terminate => {}
    }
}
