//! `/metrics` of the real binary, and the dashboard, the alerts and the page that ask it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use promql_parser::label::MatchOp;
use promql_parser::parser::{self, Expr, LabelModifier, VectorSelector};
use serde::{Deserialize, Serialize};
use towpath::follow::Follower;
use towpath::ports::broker::{Argument, Exchange, ExchangeKind, Queue, Topology};
use towpath::{
    Aggregate, Answer, Attempt, Channel, Consumer, Context, Delivery, HandlerError, Next, Refusal, Start,
    TaskType, Towpath, Worker,
};

#[derive(Default, Serialize, Deserialize)]
struct Parcel;

#[derive(Serialize, Deserialize, towpath::Command)]
enum ParcelCommand {
    #[serde(rename = "parcel.send")]
    Send,
}

#[derive(Serialize, Deserialize, towpath::Event)]
enum ParcelEvent {
    #[serde(rename = "parcel.sent")]
    Sent,
}

#[derive(Debug, PartialEq, thiserror::Error)]
enum Never {}

impl Refusal for Never {
    fn code(&self) -> &'static str {
        match *self {}
    }
}

impl Aggregate for Parcel {
    const KIND: &'static str = "parcel";
    type Command = ParcelCommand;
    type Event = ParcelEvent;
    type Refusal = Never;

    fn decide(&self, _: ParcelCommand, _: &Context) -> Result<Vec<ParcelEvent>, Never> {
        Ok(vec![ParcelEvent::Sent])
    }

    fn evolve(self, _: &ParcelEvent) -> Self {
        self
    }
}

/// A worker that has nothing to do.
struct Packer;

impl Worker for Packer {
    fn task(&self) -> TaskType {
        TaskType::named("Parcel.Pack")
    }

    async fn run(&self, _: Attempt) -> Result<Answer, HandlerError> {
        Ok(Answer::done())
    }
}

/// The binary, on a database and a broker.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
        for variable in ["TOWPATH_LISTEN", "TOWPATH_STORE", "TOWPATH_BROKER", "TOWPATH_CONFIG"] {
            command.env_remove(variable);
        }
        // No alert becomes a fact among those that a test counts.
        command.env("TOWPATH_ALERTS_EVERY", "1d");
        let command = command.args(arguments).args(["--listen", "127.0.0.1:0"]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("listens on http://")?.1.trim_end_matches('/').to_owned()));
        // What it says later must not fill its pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Self { child, address: address.expect("the server says where it listens") }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let (address, length) = (&self.address, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Which labels each series has, and with which values, by the name of the series.
#[derive(Default)]
struct Series(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Series {
    fn read(&mut self, scrape: &str) {
        for line in scrape.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            value.parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let known = self.0.entry(name.to_owned()).or_default();
            for label in labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty()) {
                let (label, value) = label.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
                known.entry(label.to_owned()).or_default().insert(value.trim_end_matches('"').to_owned());
            }
        }
    }

    /// Checks a query, and answers the labels that its answer has.
    fn check(&self, expression: &Expr) -> BTreeSet<String> {
        match expression {
            Expr::VectorSelector(selector) => self.check_selector(selector),
            Expr::MatrixSelector(matrix) => self.check_selector(&matrix.vs),
            Expr::Paren(paren) => self.check(&paren.expr),
            Expr::Unary(unary) => self.check(&unary.expr),
            Expr::Subquery(query) => self.check(&query.expr),
            Expr::Call(call) => call.args.args.iter().flat_map(|one| self.check(one)).collect(),
            Expr::Aggregate(aggregate) => {
                let inside = self.check(&aggregate.expr);
                match &aggregate.modifier {
                    None => BTreeSet::new(),
                    Some(LabelModifier::Include(by)) => {
                        let by: BTreeSet<String> = by.labels.iter().cloned().collect();
                        assert!(by.is_subset(&inside), "{expression}: {by:?} of {inside:?}");
                        by
                    }
                    Some(LabelModifier::Exclude(without)) => {
                        inside.into_iter().filter(|label| !without.labels.contains(label)).collect()
                    }
                }
            }
            Expr::Binary(binary) => {
                let (left, right) = (self.check(&binary.lhs), self.check(&binary.rhs));
                if let Some(LabelModifier::Include(on)) =
                    binary.modifier.as_ref().and_then(|modifier| modifier.matching.as_ref())
                {
                    let both = on.labels.iter().all(|label| left.contains(label) && right.contains(label));
                    assert!(both, "{expression}");
                }
                left.union(&right).cloned().collect()
            }
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) => BTreeSet::new(),
            other => panic!("{other} is not expected here"),
        }
    }

    fn check_selector(&self, selector: &VectorSelector) -> BTreeSet<String> {
        let name = selector.name.as_deref().unwrap_or_else(|| panic!("{selector} names no metric"));
        let labels = self.0.get(name).unwrap_or_else(|| panic!("{name} is not in a scrape"));
        // What Prometheus adds to all of them.
        let given = ["job", "instance"];
        for matcher in &selector.matchers.matchers {
            if given.contains(&matcher.name.as_str()) {
                continue;
            }
            let values =
                labels.get(&matcher.name).unwrap_or_else(|| panic!("{selector}: no {}", matcher.name));
            let fits = match &matcher.op {
                MatchOp::Equal | MatchOp::NotEqual => values.contains(&matcher.value),
                // Alternatives, as we write them.
                MatchOp::Re(_) | MatchOp::NotRe(_) => {
                    matcher.value.split('|').all(|one| values.contains(one))
                }
            };
            assert!(fits, "{selector}: {} is none of {values:?}", matcher.value);
        }
        labels.keys().cloned().chain(given.map(str::to_owned)).collect()
    }
}

/// All queries of a dashboard.
fn dashboard_queries() -> Vec<String> {
    let text = include_str!("../../../docs/grafana/towpath.json");
    let dashboard: serde_json::Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let rows: Vec<&str> = panels
        .iter()
        .filter(|panel| panel["type"] == "row")
        .map(|row| row["title"].as_str().unwrap())
        .collect();
    let wanted =
        ["Commands", "Outbox", "Brokers and queues", "Consumers and dead letters", "Log and trackers"];
    assert_eq!(rows, [&wanted[..], &["Process"]].concat());
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().unwrap().replace("$__rate_interval", "5m")).collect()
}

/// The queries of the alert rules.
fn alert_queries() -> Vec<String> {
    let rules = include_str!("../../../docs/grafana/alerts.yml");
    let queries: Vec<String> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).map(str::to_owned).collect();
    assert_eq!(queries.len(), rules.matches("- alert: ").count(), "each rule has its query in one line");
    queries
}

/// The queries of the page about metrics.
fn documented_queries() -> Vec<String> {
    let page = include_str!("../../../docs/metrics.md");
    let (_, table) = page.split_once("| PromQL |").unwrap();
    let rows = table.lines().take_while(|line| line.is_empty() || line.starts_with('|'));
    rows.filter_map(|row| Some(row.split_once('`')?.1.split_once('`')?.0.to_owned())).collect()
}

async fn dead(delivery: Delivery) -> Result<Next, HandlerError> {
    Ok(delivery.dead("unwanted", "it always is"))
}

/// The queries use metrics, labels and values that are really there. What only an application has (commands, consumers)
/// is scraped from one in this process, on the same database and broker as the binary.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_dashboard_the_alerts_and_the_page_ask_for_what_is_there() {
    let broker = std::env::var("TOWPATH_TEST_AMQP_URL").expect("run `cargo xtask test`");
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("towpath.db").display());
    let config = folder.path().join("towpath.toml");
    let exchange = format!("towpath.test.{}", uuid::Uuid::now_v7().simple());
    std::fs::write(&config, "").unwrap();
    let server =
        Server::start(&["--store", &store, "--broker", &broker, "--config", config.to_str().unwrap()]);

    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new()
        .set_buckets(towpath::metrics::SECONDS)
        .unwrap()
        .install_recorder()
        .unwrap();
    let queue = format!("{exchange}.dead");
    let expires = vec![("x-expires".to_owned(), Argument::Number(60_000))];
    let topology = Topology {
        exchanges: vec![Exchange { name: exchange.clone(), kind: ExchangeKind::Topic }],
        queues: vec![Queue { name: queue, arguments: expires }],
        bindings: Vec::new(),
    };
    let channel = Channel::named(&exchange, ["parcel.*"]).map(Channel::published);
    let tracker = Channel::named("followed", ["parcel.*"])
        .map(|channel| channel.to_exchange(&exchange).tracking(Start::First));
    let app = Towpath::builder()
        .store(&store)
        .broker(&broker)
        .aggregate::<Parcel>()
        .channel(channel)
        .channel(tracker)
        .topology(topology)
        .worker(Packer, 1)
        .consumer(Consumer::of(&exchange).each("dead", dead));
    let app = app.start().await.unwrap();
    for number in 0..10 {
        app.send::<Parcel>(format!("parcel-{number}"), ParcelCommand::Send).await.unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let given_up = |line: &str| line.contains("next=\"dead\"") && line.ends_with(" 10");
    while !recorder.render().lines().any(given_up) || app.store().head().await.unwrap() < 10 {
        assert!(Instant::now() < deadline, "{}", recorder.render());
        tokio::task::yield_now().await;
    }

    let url = format!("http://{}", server.address);
    let following = app.follow(
        Follower::of(&url)
            .each("from-outside", |delivery| async move { Ok::<Next, HandlerError>(delivery.handled()) }),
    );
    following.await.unwrap().caught_up().await.unwrap();
    assert!(server.ask("POST", "/api/outbox/retry", r#"{"dryRun":true}"#).starts_with("HTTP/1.1 200"));
    let unknown = r#"{"type":"order.place","aggregateId":"1","payload":{}}"#;
    assert!(server.ask("POST", "/api/commands", unknown).starts_with("HTTP/1.1 422"));
    assert!(server.ask("GET", "/notifications/9001,9020", "").starts_with("HTTP/1.1 404"));
    let scraped = server.ask("GET", "/metrics", "");
    let (head, body) = scraped.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    let body = unchunked(head, body);
    assert!(body.contains("towpath_commands_unknown_total 1\n"), "{body}");
    let asked = |line: &str| {
        line.starts_with("towpath_http_requests_total{")
            && [r#"path="/notifications/{"#, r#"status="404""#].iter().all(|part| line.contains(part))
    };
    // Only in a label would it be the path that was asked for: numbers may be anything.
    assert!(body.lines().any(asked) && !body.contains("/9001"), "{body}");
    // Ten parcels, and the operation as soon as it has its position.
    let head = |head: &str| body.contains(&format!("towpath_log_head_position {head}\n"));
    assert!(head("10") || head("11"), "the database is shared: {body}");
    assert!(body.contains("towpath_operations_total{outcome=\"done\"} 1\n"), "{body}");
    let followed = recorder.render();
    assert!(followed.contains("towpath_follower_lag_positions{follower=\"from-outside\"}"), "{followed}");
    for metric in ["process_resident_memory_bytes", "process_cpu_seconds_total", "towpath_stream_readers"] {
        assert!(body.contains(&format!("# HELP {metric} ")), "{metric} has no HELP");
        assert!(body.contains(&format!("# TYPE {metric} ")), "{metric} has no TYPE");
    }

    app.measure().await;
    let mut series = Series::default();
    series.read(&body);
    series.read(&recorder.render());
    // Nobody has checked.
    let known = |metric: &&towpath::metrics::Metric| metric.name != "towpath_aggregate_version_gaps";
    for metric in towpath::metrics::ALL.iter().filter(known) {
        let there = |end| series.0.contains_key(&format!("{}{end}", metric.name));
        assert!(there("") || there("_bucket"), "{} is in no scrape", metric.name);
    }
    let (dashboard, alerts, page) = (dashboard_queries(), alert_queries(), documented_queries());
    assert!(dashboard.len() > 40 && alerts.len() >= 5 && page.len() >= 12, "the files were not read");
    for query in dashboard.iter().chain(&alerts).chain(&page) {
        let expression = parser::parse(query).unwrap_or_else(|error| panic!("{query}: {error}"));
        series.check(&expression);
    }
    for (wrong, why) in [
        ("sum(towpath_made_up_total)", "a metric that is not there"),
        ("sum by (colour) (towpath_queue_messages)", "a label that is not there"),
        ("towpath_queue_messages{state=\"lost\"}", "a value that is not there"),
    ] {
        let checked = std::panic::catch_unwind(|| series.check(&parser::parse(wrong).unwrap()));
        assert!(checked.is_err(), "{why} is not found");
    }
    app.stop().await;
}

/// A body as it was before it was cut into chunks.
fn unchunked(head: &str, body: &str) -> String {
    if !head.contains("transfer-encoding: chunked") {
        return body.to_owned();
    }
    let (mut rest, mut whole) = (body, String::new());
    while let Some((size, more)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        if size == 0 {
            break;
        }
        whole.push_str(&more[..size]);
        rest = &more[size + 2..];
    }
    whole
}
