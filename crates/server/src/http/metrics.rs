//! `GET /metrics`: everything that is counted and measured, in the text format of Prometheus. `GET /api/metrics/summary`: how
//! things stand and went lately, as JSON.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;
use serde::Serialize;
use towpath::Towpath;
use towpath::metrics::{Kind, Metric, SECONDS};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::Problem;
use super::{App, Feed};

/// What Prometheus calls its text format.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How long a gauge is shown that nobody has set again: longer than between two scrapes, and not much longer, because by
/// then it is no longer true.
const SHOWN: Duration = Duration::from_secs(120);

/// How often measurements are put into their histograms when nobody looks: until then each of them is kept.
const UPKEEP: Duration = Duration::from_secs(5);

const REQUESTS: Metric = Metric {
    name: "towpath_http_requests_total",
    kind: Kind::Counter,
    labels: &["method", "path", "status"],
    help: "Requests that were answered, by the path as it is declared.",
};

const REQUEST_DURATION: Metric = Metric {
    name: "towpath_http_request_duration_seconds",
    kind: Kind::Histogram(SECONDS),
    labels: &["method", "path"],
    help: "How long a request took to the head of its answer.",
};

const STREAM_READERS: Metric = Metric {
    name: "towpath_stream_readers",
    kind: Kind::Gauge,
    labels: &[],
    help: "Who reads the event stream at the moment.",
};

const STREAM_DROPPED: Metric = Metric {
    name: "towpath_stream_dropped_total",
    kind: Kind::Counter,
    labels: &[],
    help: "Readers of the event stream that were let go, mostly because they were too slow.",
};

/// The metrics of the server, beside those of the library.
const OF_THE_SERVER: &[Metric] = &[REQUESTS, REQUEST_DURATION, STREAM_READERS, STREAM_DROPPED];

/// The paths of this part.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(scrape)).routes(routes!(summary))
}

/// Where all numbers of this process come together. Clones share them.
#[derive(Clone)]
pub(crate) struct Measurements {
    recorder: PrometheusHandle,
    process: metrics_process::Collector,
    /// Held while the store and the broker are asked.
    asking: Arc<tokio::sync::Mutex<()>>,
}

/// How long who looks waits for the store and the broker. What they answer later is there for who looks next.
const PATIENCE: Duration = Duration::from_millis(500);

impl Measurements {
    /// Makes this process count. Before Towpath starts: what it registers goes to the recorder that is there then.
    pub(crate) fn install() -> Result<Self, BuildError> {
        let mut builder =
            PrometheusBuilder::new().idle_timeout(MetricKindMask::GAUGE, Some(SHOWN)).set_buckets(SECONDS)?;
        for metric in towpath::metrics::ALL.iter().chain(OF_THE_SERVER) {
            if let Kind::Histogram(bounds) = metric.kind {
                builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds)?;
            }
        }
        let recorder = builder.install_recorder()?;
        OF_THE_SERVER.iter().for_each(Metric::describe);
        let process = metrics_process::Collector::default();
        process.describe();
        let kept = recorder.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(UPKEEP);
            loop {
                ticks.tick().await;
                kept.run_upkeep();
            }
        });
        // It shows 0 until it happens.
        STREAM_DROPPED.counter(&[]).increment(0);
        Ok(Self { recorder, process, asking: Default::default() })
    }

    /// Numbers that nobody keeps, for tests and benchmarks that need none.
    #[cfg(any(test, feature = "bench"))]
    pub(crate) fn of_nothing() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder().handle();
        Self { recorder, process: metrics_process::Collector::default(), asking: Default::default() }
    }

    /// Asks the store and the broker, in a task of its own: a store that does not answer keeps nobody from being told
    /// that.
    async fn ask(&self, towpath: &Towpath) {
        let waited = match Arc::clone(&self.asking).try_lock_owned() {
            Ok(turn) => {
                let towpath = towpath.clone();
                let asking = tokio::spawn(async move {
                    towpath.measure().await;
                    drop(turn);
                });
                tokio::time::timeout(PATIENCE, asking).await.is_ok()
            }
            Err(_) => tokio::time::timeout(PATIENCE, self.asking.lock()).await.is_ok(),
        };
        if !waited {
            tracing::debug!("the store or the broker does not answer; what was measured before is shown");
        }
    }
}

/// How things stand, and how they went lately. The names are the same in conditions of alerts.
#[derive(Serialize, ToSchema)]
#[schema(as = MetricsSummary)]
struct Summary {
    /// Commands that nobody works on. Counted up to 100,000, as are all that wait or have failed.
    pending_commands: u64,
    /// Commands that a worker has.
    processing_commands: u64,
    /// Commands that have failed, whether they will be tried again or not.
    failed_commands: u64,
    /// How long the last attempt at a command took, in milliseconds, on average; null if none has ended lately.
    avg_processing_time: Option<f64>,
    /// The part of the commands that did not do at the first attempt; null if there were none lately.
    retry_rate: Option<f64>,
    /// How many commands of each type were received lately.
    commands_by_type: BTreeMap<String, u64>,
    /// How many events have happened within the last hour.
    events_per_hour: u64,
    /// Outbox rows that are to be published, those behind another one of their aggregate included.
    pending_outbox: u64,
    /// Outbox rows that were given up.
    failed_outbox: u64,
    /// From the moment at which an event happened to its publication, in milliseconds, on average; null if none was
    /// published lately.
    avg_publish_delay: Option<f64>,
    /// How many events of each type there are among the newest of the last hour.
    events_by_type: BTreeMap<String, u64>,
    /// How many gaps the last consistency check has found in the versions of aggregates; null if there was none.
    aggregate_version_gaps: Option<u64>,
    windows: Windows,
}

/// Over which time each figure is.
#[derive(Serialize, ToSchema)]
#[schema(as = MetricsWindows)]
#[serde(rename_all = "camelCase")]
struct Windows {
    /// `avg_processing_time`, `retry_rate` and `commands_by_type`: commands that were received within so many seconds.
    commands_seconds: u64,
    /// `avg_publish_delay`: rows that were sent within so many seconds.
    publishing_seconds: u64,
    /// `events_per_hour` and `events_by_type`: events that happened within so many seconds.
    events_seconds: u64,
    /// Of commands, sent rows of a channel and events by type, at most so many are looked at, the newest first.
    looked_at: u32,
}

/// How things stand, and how they went lately
///
/// What it costs does not grow with what is over.
#[utoipa::path(
    get,
    path = "/api/metrics/summary",
    tag = "server",
    operation_id = "metricsSummary",
    responses((status = 200, description = "The figures.", body = Summary))
)]
async fn summary(State(app): State<Towpath>) -> Result<Json<Summary>, Problem> {
    let found = app.summary().await?;
    Ok(Json(Summary {
        pending_commands: found.pending_commands,
        processing_commands: found.processing_commands,
        failed_commands: found.failed_commands,
        avg_processing_time: found.avg_processing_time,
        retry_rate: found.retry_rate,
        commands_by_type: found.commands_by_type,
        events_per_hour: found.events_per_hour,
        pending_outbox: found.pending_outbox,
        failed_outbox: found.failed_outbox,
        avg_publish_delay: found.avg_publish_delay,
        events_by_type: found.events_by_type,
        aggregate_version_gaps: found.aggregate_version_gaps,
        windows: Windows {
            commands_seconds: found.windows.commands_seconds,
            publishing_seconds: found.windows.publishing_seconds,
            events_seconds: found.windows.events_seconds,
            looked_at: found.windows.looked_at,
        },
    }))
}

/// Somebody who read the event stream was let go.
pub(super) fn stream_reader_dropped() {
    STREAM_DROPPED.counter(&[]).increment(1);
}

/// Metrics for Prometheus
///
/// What is behind each is in docs/metrics.md. What the store or the broker does not answer within half a second is left
/// as it was; what they do not answer within three is counted in `towpath_scrape_errors_total`.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "server",
    operation_id = "metrics",
    responses((status = 200, description = "The text format of Prometheus.", body = String, content_type = "text/plain"))
)]
async fn scrape(
    State(towpath): State<Towpath>,
    State(feed): State<Feed>,
    State(measurements): State<Measurements>,
) -> Response {
    measurements.ask(&towpath).await;
    measurements.process.collect();
    STREAM_READERS.gauge(&[]).set(feed.readers() as f64);
    ([(header::CONTENT_TYPE, TEXT_FORMAT)], measurements.recorder.render()).into_response()
}

/// Counts and measures requests.
pub(super) async fn count_requests(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = known(request.method());
    // As it is declared, with its parameters' names: what somebody asks for must not become a label.
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let response = next.run(request).await;
    if let Some(path) = path {
        REQUESTS.counter(&[method, &path, response.status().as_str()]).increment(1);
        REQUEST_DURATION.histogram(&[method, &path]).record(begun.elapsed().as_secs_f64());
    }
    response
}

/// A method as a label. Anyone can make one up.
fn known(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/metrics.md has a row for each metric, with its kind, its labels and its meaning, and no others.
    #[test]
    fn the_documented_metrics_are_those_that_are_registered() {
        let page = include_str!("../../../../docs/metrics.md");
        let documented: Vec<&str> = page.lines().filter(|line| line.starts_with("| `towpath_")).collect();
        let registered: Vec<String> = towpath::metrics::ALL.iter().chain(OF_THE_SERVER).map(row).collect();
        assert_eq!(documented, registered, "\n{}", registered.join("\n"));
    }

    fn row(metric: &Metric) -> String {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "–".to_owned() } else { labels.join(", ") };
        format!("| `{}` | {} | {labels} | {} |", metric.name, metric.kind.as_str(), metric.help)
    }

    #[test]
    fn a_method_that_somebody_made_up_is_no_label() {
        assert_eq!(known(&Method::from_bytes(b"BREW").unwrap()), "other");
        assert_eq!(known(&Method::GET), "GET");
    }
}
