//! `towpath serve`: the server.

use towpath::{BrokerUrl, StoreUrl, Towpath};

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
    BrokerUrl::parse(&config.broker)
        .map_err(|error| Failure::usage(format!("{error} [{}]\n{}", error.code(), error.next_step())))?;
    #[cfg(feature = "otel")]
    let traces = crate::otel::Traces::begin()
        .map_err(|error| Failure::usage(format!("traces cannot be sent: {error}")))?;
    start_log(
        #[cfg(feature = "otel")]
        traces.as_ref(),
    );
    // The address first: a second server on the same port should not touch the database at all.
    let listener = tokio::net::TcpListener::bind(config.listen)
        .await
        .map_err(|error| Failure::unreachable(format!("cannot listen on {}: {error}", config.listen)))?;
    let measurements = http::metrics::Measurements::install()
        .map_err(|error| Failure::unreachable(format!("nothing can be measured: {error}")))?;
    let builder = Towpath::builder().store(&config.store).broker(&config.broker).channels(config.channels);
    let app = builder.start().await.map_err(|error| {
        Failure::unreachable(format!("{} [{}]\n{}", error.report(), error.code(), error.next_step()))
    })?;
    let address = listener.local_addr().map_err(|error| Failure::unreachable(error.to_string()))?;
    output::note(&format!("towpath {} listens on http://{address}/", env!("CARGO_PKG_VERSION")));
    let served = axum::serve(listener, http::router(http::App { towpath: app.clone(), measurements }))
        .with_graceful_shutdown(told_to_stop())
        .await;
    app.stop().await;
    #[cfg(feature = "otel")]
    if let Some(traces) = traces {
        traces.end().await;
    }
    served.map_err(|error| Failure::unreachable(format!("the server ended: {error}")))
}

fn start_log(#[cfg(feature = "otel")] traces: Option<&crate::otel::Traces>) {
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    use tracing_subscriber::{EnvFilter, Layer as _};
    // lapin logs whole messages as warnings, and the login with its password when it traces: never more than errors.
    const QUIET: &str = "sqlx=warn,lapin=error,amq_protocol=error";
    let chosen = std::env::var("TOWPATH_LOG").unwrap_or_else(|_| "info".to_owned());
    let filter = EnvFilter::try_new(format!("{chosen},{QUIET}"))
        .unwrap_or_else(|_| EnvFilter::new(format!("info,{QUIET}")));
    // The filter is the log's alone: traces have their own.
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(filter);
    let subscriber = tracing_subscriber::registry().with(log);
    #[cfg(feature = "otel")]
    let subscriber = subscriber.with(traces.map(crate::otel::Traces::layer));
    // A second subscriber is only possible in tests, and then the first one stays.
    let _ = subscriber.try_init();
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
