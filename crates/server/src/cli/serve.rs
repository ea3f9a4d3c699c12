//! `towpath serve`: the server.

use std::sync::Arc;
use std::time::Instant;

use towpath::{BrokerUrl, StartError, StoreUrl, Towpath};

use super::config::{Config, LogSettings, ServeFlags};
use super::signals::told_to_stop;
use super::{Failure, output, told};
use crate::Server;
use crate::http::access::{Access, Tokens};
use crate::http::limits::{LimitSettings, Limits};
use crate::http::tls::Tls;
use crate::http::{self, connections};
use crate::plugin::ServerContext;
use crate::plugin::erased::Running;

/// Starts the library and the HTTP server, and runs until it is told to stop.
pub(crate) async fn serve(flags: ServeFlags, server: Server) -> Result<(), Failure> {
    let Server { applications, extensions } = server;
    let config = flags.config(&applications)?;
    let access = access(&config)?;
    let limits = Arc::new(Limits::new(config.limits.clone()));
    // What is written wrong is told before anything is touched.
    let tls = config.tls.clone().map(Tls::read).transpose().map_err(Failure::usage)?;
    let store = StoreUrl::parse(&config.store)?;
    let broker = BrokerUrl::parse(&config.broker).map_err(|error| Failure::usage(told(&error)))?;
    #[cfg(feature = "otel")]
    let traces = crate::otel::Traces::begin()
        .map_err(|error| Failure::usage(format!("traces cannot be sent: {error}")))?;
    begin_log(
        &config.log,
        #[cfg(feature = "otel")]
        traces.as_ref(),
    );
    // The address first: a second server on the same port should not touch the database at all.
    let listener = tokio::net::TcpListener::bind(config.listen)
        .await
        .map_err(|error| Failure::unreachable(format!("cannot listen on {}: {error}", config.listen)))?;
    let context = ServerContext { store, broker };
    let mut opened = Vec::with_capacity(applications.len());
    for section in &config.sections {
        opened.push(section.settings.open(&context).await?);
    }
    let measurements = http::metrics::Measurements::install()
        .map_err(|error| Failure::unreachable(format!("nothing can be measured: {error}")))?;
    let mut builder = Towpath::builder()
        .store(&config.store)
        .broker(&config.broker)
        .store_options(config.database)
        .channels(config.channels)
        .alerts(config.alerts)
        .keep_operations(config.idempotency_keys);
    if let Some(size) = config.log_page_size {
        builder = builder.page_size(size);
    }
    if let Some((every, window)) = config.checks {
        builder = builder.check_every(every, window);
    }
    if config.repairs {
        builder = builder.repair_by_schedule();
    }
    for kind in applications.iter().flat_map(|application| application.confidential()) {
        builder = builder.confidential(kind);
    }
    builder = opened.iter().fold(builder, |builder, application| application.install(builder));
    builder = extensions.into_iter().fold(builder, |builder, extend| extend(builder));
    let app = builder.start().await.map_err(not_started)?;
    let running = opened.iter().map(|application| application.begin(&app));
    let (paths, stops): (Vec<_>, Vec<_>) = running.map(Running::split).unzip();
    let address = listener.local_addr().map_err(|error| Failure::unreachable(error.to_string()))?;
    let tls = tls.map(Tls::begin).transpose().map_err(Failure::usage)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    // Before anybody knows that they may stop it.
    let stop_signal = told_to_stop();
    output::note(&format!("towpath {} listens on {scheme}://{address}/", env!("CARGO_PKG_VERSION")));
    let memory = http::memory::Memory::sized(config.limits.memory_bytes, config.limits.caller_share);
    let feed = http::Feed::start(app.clone(), feed_options(&config.limits, &access));
    let readiness = http::Readiness::default();
    let state = http::App {
        towpath: app.clone(),
        access: Arc::new(access),
        limits,
        feed: feed.clone(),
        measurements,
        memory,
        readiness: readiness.clone(),
    };
    let listener = http::Patient { listener, patience: http::PATIENCE, tls };
    let (drain, waiting) = (config.drain, app.clone());
    let told_to_stop = async move {
        stop_signal.await;
        readiness.stop();
        if !drain.is_zero() {
            tracing::info!(?drain, "told to stop: /readyz says so, and requests are still taken for a while");
            tokio::time::sleep(drain).await;
        }
        // Streams have no end of their own, and the server waits for all connections. So it does for who waits for a task.
        feed.stop();
        waiting.stop_waiting_for_tasks();
    };
    let grace = config.shutdown_timeout;
    connections::serve(listener, http::router(state, paths), &config.limits, grace, told_to_stop).await;
    // One patience for both: a database that does not answer the one does not answer the other.
    let deadline = Instant::now() + grace;
    let patience = || deadline.saturating_duration_since(Instant::now());
    for stop in stops {
        // An application that takes longer is left behind: the others and Towpath itself still have to end.
        let _ = tokio::time::timeout(patience(), stop(patience())).await;
    }
    app.stop_within(patience()).await;
    #[cfg(feature = "otel")]
    if let Some(traces) = traces {
        traces.end().await;
    }
    Ok(())
}

/// Why Towpath did not start. What is written wrong is the user's; the rest could not be reached.
pub(crate) fn not_started(error: StartError) -> Failure {
    match error {
        StartError::Format { .. } => Failure::usage(told(&error)),
        _ => Failure::unreachable(told(&error)),
    }
}

/// How many may follow the event stream. Without keys everybody is one caller, and has all of it.
fn feed_options(limits: &LimitSettings, access: &Access) -> http::FeedOptions {
    let share = match access {
        Access::Local => 100,
        Access::Checked { .. } => limits.caller_share,
    };
    let most_of_one = (limits.streams as u64).saturating_mul(share) / 100;
    let most_of_one = usize::try_from(most_of_one).unwrap_or(limits.streams).max(1);
    http::FeedOptions { most_readers: limits.streams, most_of_one, ..http::FeedOptions::default() }
}

/// How callers are known. Nobody but this machine is served without keys.
fn access(config: &Config) -> Result<Access, Failure> {
    let tokens = match config.jwt.clone() {
        Some(settings) => Some(Tokens::new(settings).map_err(Failure::usage)?),
        None => None,
    };
    if !config.keys.is_empty() || tokens.is_some() {
        return Ok(Access::Checked { keys: config.keys.clone(), tokens });
    }
    if config.listen.ip().is_loopback() {
        return Ok(Access::Local);
    }
    Err(Failure::usage(format!(
        "{} is reachable from other machines, and there are neither API keys nor an issuer of tokens\n\
         Make a key with `towpath keys new --name NAME --role operator` and put its hash into the configuration \
         file, or set access.jwt.issuer, audience and jwks; or listen on 127.0.0.1 or [::1].",
        config.listen
    )))
}

#[cfg(feature = "follow")]
pub(super) fn start_log(settings: &LogSettings) {
    begin_log(
        settings,
        #[cfg(feature = "otel")]
        None,
    );
}

fn begin_log(settings: &LogSettings, #[cfg(feature = "otel")] traces: Option<&crate::otel::Traces>) {
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    use tracing_subscriber::{EnvFilter, Layer as _};
    // lapin logs whole messages as warnings, the login with its password when it traces, and connections that were closed as
    // they should be as errors. What goes wrong in it reaches its caller, who says it.
    const QUIET: &str = "sqlx=warn,lapin=off,amq_protocol=off";
    // It was read when the settings were: what is wrong with it has been told.
    let filter = EnvFilter::new(format!("{},{QUIET}", settings.filter));
    // The filter is the log's alone: traces have their own.
    // A log that nobody reads any more must not end requests: by default an error of writing is written, which panics.
    let log = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(output::is_coloured())
        .log_internal_errors(false);
    let log = if settings.json {
        log.json().flatten_event(true).with_span_list(false).with_filter(filter).boxed()
    } else {
        log.with_filter(filter).boxed()
    };
    let subscriber = tracing_subscriber::registry().with(log);
    #[cfg(feature = "otel")]
    let subscriber = subscriber.with(traces.map(crate::otel::Traces::layer));
    // A second subscriber is only possible in tests, and then the first one stays.
    let _ = subscriber.try_init();
}
