//! Traces by OTLP over HTTP, as the standard `OTEL_*` variables say.
//!
//! Without an endpoint nothing is traced. The exporter speaks plain HTTP and is meant for a collector nearby.

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

/// What this server is called where nothing else is said.
const SERVICE: &str = "towpath";

/// Spans on their way out. What is not sent when the server stops is sent by [`end`](Self::end).
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// Begins to trace, if somebody wants it.
    ///
    /// # Errors
    /// When a variable cannot be read; the message names it.
    pub(crate) fn begin() -> Result<Option<Self>, String> {
        let wanted = [OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT];
        let wanted = wanted.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
        let disabled =
            std::env::var("OTEL_SDK_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
        if !wanted || disabled {
            return Ok(None);
        }
        let exporter = SpanExporter::builder().build().map_err(|error| error.to_string())?;
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name(SERVICE);
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        Ok(Some(Self(provider)))
    }

    /// The layer that takes spans in.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        let wanted = Targets::new()
            .with_target("towpath", LevelFilter::INFO)
            .with_target("towpath::spans", LevelFilter::DEBUG);
        tracing_opentelemetry::layer().with_tracer(self.0.tracer(SERVICE)).with_filter(wanted)
    }

    /// Sends what is left.
    pub(crate) async fn end(self) {
        // It waits for a thread of its own.
        let ended = tokio::task::spawn_blocking(move || self.0.shutdown()).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("some traces were not sent");
        }
    }
}
