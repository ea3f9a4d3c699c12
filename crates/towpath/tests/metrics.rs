//! What is counted and measured, on each database and broker; and what log lines carry.
//!
//! Each test is a process of its own, as nextest runs them: a process has one recorder and one log.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use support::delivery::{Broker, Stage};
use support::{Fresh, Order, OrderCommand, eventually};
use towpath::ports::broker::{Exchange, ExchangeKind, Topology};
use towpath::{
    Answer, Attempt, Consumer, Delivery, HandlerError, Next, StoreOptions, TaskType, Towpath, Worker,
};
use towpath_testkit::CountingProbe;

on_every_pair!(what_happens_is_counted_and_what_waits_is_measured);

on_every_database!(
    however_often_one_looks_the_store_is_asked_once,
    a_store_that_is_away_is_counted_and_the_rest_is_shown,
    a_command_that_will_be_tried_again_is_a_retry,
    tasks_and_attempts_at_them_are_measured,
);

/// A scrape.
struct Scrape(String);

impl Scrape {
    fn of(recorder: &PrometheusHandle) -> Self {
        Self(recorder.render())
    }

    /// The value with these labels, if there is one.
    fn find(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let fits = |line: &&str| {
            let rest = line.strip_prefix(name)?;
            let labelled = rest.starts_with(['{', ' ']);
            let all = labels.iter().all(|(label, value)| rest.contains(&format!("{label}=\"{value}\"")));
            (labelled && all).then_some(())
        };
        let found: Vec<&str> = self.0.lines().filter(|line| fits(line).is_some()).collect();
        assert!(found.len() < 2, "{name} {labels:?} is not one: {found:?}");
        found.first().map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).unwrap_or_else(|| panic!("no {name} {labels:?} in\n{}", self.0))
    }
}

fn recorder() -> PrometheusHandle {
    PrometheusBuilder::new()
        .set_buckets(towpath::metrics::SECONDS)
        .unwrap()
        .install_recorder()
        .expect("one test is one process: run it with nextest")
}

async fn record(mut delivery: Delivery) -> Result<Next, HandlerError> {
    let id = delivery.event.event_id.to_string();
    delivery.tx.execute("INSERT INTO effects (event_id, handler) VALUES (?, ?)", &[&id, "record"]).await?;
    Ok(delivery.handled())
}

async fn broken(delivery: Delivery) -> Result<Next, HandlerError> {
    tracing::info!("the handler looks at it");
    Ok(delivery.dead("broken", "it always is"))
}

async fn place(app: &Towpath, id: &str) {
    app.send::<Order>(id, OrderCommand::Place { sku: "book".into() })
        .once(format!("place-{id}"))
        .await
        .unwrap();
}

async fn what_happens_is_counted_and_what_waits_is_measured(stage: &Stage) {
    let recorder = recorder();
    let only_placed = Consumer::of(stage.channel()).only(["order.placed"]).each("broken", broken);
    let app = stage.app([Consumer::of(stage.channel()).each("record", record), only_placed]).await;
    for number in 0..5 {
        place(&app, &format!("order-{number}")).await;
    }
    for number in 0..15 {
        app.send::<Order>(format!("order-{}", number % 5), OrderCommand::Note).await.unwrap();
    }
    // An answer that is recorded, a refusal, and a type that nobody has registered.
    place(&app, "order-0").await;
    app.send::<Order>("order-0", OrderCommand::Place { sku: "b".into() }).await.unwrap_err();
    app.send_named("order.made-up", "order-0", "{}").await.unwrap_err();
    app.send_named("order.made-up-too", "order-0", "{}").later().await.unwrap_err();

    let (channel, queue) = (stage.channel(), format!("{}.record", stage.channel()));
    let consumer = [("queue", queue.as_str()), ("consumer", "record")];
    let handled = [("consumer", "record"), ("result", "handled")];
    let duplicate = [("consumer", "record"), ("result", "duplicate")];
    let inbox = "towpath_inbox_deliveries_total";
    eventually("twenty deliveries", || async {
        (Scrape::of(&recorder).value(inbox, &handled) >= 20.0).then_some(())
    })
    .await;
    assert_eq!(stage.everything_again(&app).await, 20);
    eventually("twenty duplicates, and five dead", || async {
        let scrape = Scrape::of(&recorder);
        let dead =
            scrape.value("towpath_consumer_failures_total", &[("consumer", "broken"), ("next", "dead")]);
        (scrape.value(inbox, &duplicate) >= 20.0 && dead >= 5.0).then_some(())
    })
    .await;
    eventually("all acknowledged", || async {
        let settled = [consumer[0], consumer[1], ("settlement", "ack")];
        (Scrape::of(&recorder).value("towpath_consumer_settled_total", &settled) >= 40.0).then_some(())
    })
    .await;

    app.measure().await;
    let scrape = Scrape::of(&recorder);
    let commands =
        |name, status| scrape.value("towpath_commands_total", &[("type", name), ("status", status)]);
    assert_eq!(commands("order.place", "completed"), 5.0);
    assert_eq!(commands("order.place", "replayed"), 1.0);
    assert_eq!(commands("order.place", "refused"), 1.0);
    assert_eq!((commands("order.note", "completed"), commands("order.ship", "completed")), (15.0, 0.0));
    assert_eq!(scrape.value("towpath_commands_unknown_total", &[]), 2.0);
    assert!(!scrape.0.contains("made-up"), "what somebody sends is no label");
    assert_eq!(scrape.value("towpath_command_duration_seconds_count", &[("type", "order.note")]), 15.0);
    assert!(scrape.value("towpath_command_duration_seconds_sum", &[("type", "order.note")]) > 0.0);
    assert_eq!(scrape.value("towpath_events_total", &[("type", "order.noted")]), 15.0);
    assert_eq!(scrape.value("towpath_command_box", &[("status", "failed")]), 1.0);
    assert_eq!(scrape.value("towpath_command_box", &[("status", "pending")]), 0.0);

    assert_eq!(
        scrape.value("towpath_publish_total", &[("channel", channel), ("outcome", "confirmed")]),
        20.0
    );
    assert_eq!(scrape.value("towpath_publish_delay_seconds_count", &[("channel", channel)]), 20.0);
    let rows =
        |channel, status| scrape.value("towpath_outbox_rows", &[("channel", channel), ("status", status)]);
    assert_eq!((rows(channel, "pending"), rows(channel, "failed")), (0.0, 0.0));
    assert_eq!(scrape.value("towpath_outbox_lag_seconds", &[("channel", channel)]), 0.0);
    // This channel only collects its rows: they wait, and get older.
    assert_eq!(rows("orders", "pending"), 20.0);
    assert!(scrape.value("towpath_outbox_lag_seconds", &[("channel", "orders")]) > 0.0);

    assert_eq!(scrape.value("towpath_log_head_position", &[]), 20.0);
    assert_eq!(scrape.value("towpath_log_pending_events", &[]), 0.0);
    assert_eq!(scrape.value("towpath_log_positioned_total", &[]), 20.0);
    assert_eq!(scrape.value("towpath_consumer_received_total", &consumer), 40.0);
    assert_eq!(scrape.value("towpath_consumer_handler_duration_seconds_count", &consumer), 20.0);
    let letters = |consumer, status| {
        scrape.value("towpath_dead_letters", &[("consumer", consumer), ("status", status)])
    };
    assert_eq!((letters("broken", "dead"), letters("broken", "retry")), (5.0, 0.0));
    assert_eq!((letters("record", "dead"), letters("(broker)", "dead")), (0.0, 0.0));
    let ready = scrape.find("towpath_queue_messages", &[("queue", &queue), ("state", "ready")]);
    let consumers = scrape.find("towpath_queue_consumers", &[("queue", &queue)]);
    match stage.broker {
        Broker::Local => assert_eq!((ready, consumers), (Some(0.0), None)),
        Broker::RabbitMq => assert_eq!((ready, consumers), (Some(0.0), Some(1.0))),
        #[cfg(feature = "kafka")]
        Broker::Kafka => assert_eq!((ready, consumers), (None, None)),
    }
    assert_eq!(scrape.value("towpath_leases_held", &[("lease", "sequencer")]), 1.0);
    assert_eq!(scrape.value("towpath_partitions_held", &[("channel", channel)]), 64.0);
    assert_eq!(scrape.value("towpath_timers", &[("state", "due")]), 0.0);
    assert!(scrape.0.contains("towpath_store_connections_max{"));
    let errors = |part| scrape.value("towpath_scrape_errors_total", &[("part", part)]);
    assert_eq!((errors("store"), errors("broker")), (0.0, 0.0));

    // Nothing is there that the table does not have, and no label that it does not name.
    for line in scrape.0.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let plain =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let metric = towpath::metrics::ALL.iter().find(|metric| metric.name == plain || metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("{line}"));
        let labels = line.split_once('{').map_or("", |(_, rest)| rest.split_once('}').unwrap().0);
        for label in labels.split(',').filter(|label| !label.is_empty()) {
            let label = label.split('=').next().unwrap();
            assert!(metric.labels.contains(&label) || label == "le", "{line}");
        }
        assert!(scrape.0.contains(&format!("# HELP {} ", metric.name)), "{line}");
        assert!(scrape.0.contains(&format!("# TYPE {} {}\n", metric.name, metric.kind.as_str())), "{line}");
    }
    app.stop().await;
}

async fn however_often_one_looks_the_store_is_asked_once(fresh: &Fresh) {
    let recorder = recorder();
    let probe = Arc::new(CountingProbe::new());
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    let app = fresh.builder().store_options(options).start().await.unwrap();
    place(&app, "order-1").await;
    probe.take();
    let looks = (0..20).map(|_| {
        let app = app.clone();
        tokio::spawn(async move { app.measure().await })
    });
    for look in looks.collect::<Vec<_>>() {
        look.await.unwrap();
    }
    let asked = probe.take();
    let asked: Vec<_> = asked.iter().filter(|statement| statement.starts_with("backlog.")).collect();
    assert_eq!(asked, [&"backlog.look", &"backlog.outbox", &"backlog.letters"]);
    assert_eq!(Scrape::of(&recorder).value("towpath_outbox_rows", &[("status", "pending")]), 1.0);
    app.stop().await;
}

async fn a_store_that_is_away_is_counted_and_the_rest_is_shown(fresh: &Fresh) {
    let recorder = recorder();
    let app = fresh.builder().without_workers().start().await.unwrap();
    place(&app, "order-1").await;
    app.store().close().await;
    let begun = std::time::Instant::now();
    app.measure().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "it took {:?}", begun.elapsed());
    let scrape = Scrape::of(&recorder);
    assert_eq!(scrape.value("towpath_scrape_errors_total", &[("part", "store")]), 1.0);
    let completed = [("type", "order.place"), ("status", "completed")];
    assert_eq!(scrape.value("towpath_commands_total", &completed), 1.0);
    assert_eq!(scrape.find("towpath_log_head_position", &[]), None, "what is not known is not shown");
}

async fn a_command_that_will_be_tried_again_is_a_retry(fresh: &Fresh) {
    let recorder = recorder();
    // Nobody tries it again, so that it can be seen.
    let app = fresh.builder().without_workers().start().await.unwrap();
    app.send::<Order>("order-1", OrderCommand::Dawdle).await.unwrap_err();
    app.send::<Order>("order-2", OrderCommand::Break).await.unwrap_err();
    app.send::<Order>("order-3", OrderCommand::Place { sku: "book".into() }).later().await.unwrap();
    app.measure().await;
    let scrape = Scrape::of(&recorder);
    assert_eq!(scrape.value("towpath_command_retries_total", &[("type", "order.dawdle")]), 1.0);
    assert_eq!(scrape.value("towpath_command_retries_total", &[("type", "order.break")]), 0.0);
    let failed = [("type", "order.break"), ("status", "failed")];
    assert_eq!(scrape.value("towpath_commands_total", &failed), 1.0);
    for (status, count) in [("pending", 1.0), ("processing", 0.0), ("retrying", 1.0), ("failed", 1.0)] {
        assert_eq!(scrape.value("towpath_command_box", &[("status", status)]), count, "{status}");
    }
    app.stop().await;
}

/// Refuses what it is given.
struct Refusing;

impl Worker for Refusing {
    fn task(&self) -> TaskType {
        TaskType::named("Painter.Draw")
    }

    async fn run(&self, _: Attempt) -> Result<Answer, HandlerError> {
        Err(HandlerError::unrecoverable("no-ink", "there is no ink"))
    }
}

async fn tasks_and_attempts_at_them_are_measured(fresh: &Fresh) {
    let recorder = recorder();
    let other = TaskType::named("Writer.Write");
    let app = fresh.builder().worker(Refusing, 1).task_type(other.clone()).start().await.unwrap();
    let attempts = |outcome| {
        let labels = [("type", "Painter.Draw"), ("outcome", outcome)];
        Scrape::of(&recorder).value("towpath_task_attempts_total", &labels)
    };
    assert_eq!((attempts("failed"), attempts("lost")), (0.0, 0.0));
    let later = app.now() + Duration::from_secs(3600);
    let started = app.transact(async |mut tx| {
        tx.start_task(&Refusing.task(), "duck").await?;
        tx.start_task(&other, "duck").await?;
        tx.start_task(&other, "goose").await?;
        tx.start_task(&other, "swan").not_before(later).await
    });
    started.await.unwrap();
    eventually("an attempt", || async { (attempts("failed") == 1.0).then_some(()) }).await;
    app.measure().await;
    let scrape = Scrape::of(&recorder);
    for (status, count) in [("pending", 1.0), ("running", 0.0), ("failed", 1.0)] {
        assert_eq!(scrape.value("towpath_tasks", &[("status", status)]), count, "{status}");
    }
    for (task_type, count) in [("Painter.Draw", 0.0), ("Writer.Write", 2.0)] {
        assert_eq!(scrape.value("towpath_tasks_queued", &[("type", task_type)]), count, "{task_type}");
    }
    // An answer that is said again is no second attempt.
    let taken = app.claim_tasks(&[other.name()], "py-1", 1, Duration::ZERO).await.unwrap();
    for _ in 0..2 {
        let claim = taken[0].claim();
        app.answer_task(claim.task_id, Some(claim.epoch), "py-1", Ok(Answer::done())).await.unwrap();
    }
    let labels = [("type", "Writer.Write"), ("outcome", "succeeded")];
    assert_eq!(Scrape::of(&recorder).value("towpath_task_attempts_total", &labels), 1.0);
    app.stop().await;
}

/// Where a test's log goes.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// The first line that says this, with its own fields and those of the spans around it.
    fn find(&self, says: &str) -> Option<serde_json::Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.into_iter().find(|line| line["fields"]["message"] == says).map(|line| {
            let mut fields = line["fields"].clone();
            for span in line["spans"].as_array().into_iter().flatten() {
                let inherited = span.as_object().unwrap().clone();
                inherited.into_iter().for_each(|(name, value)| fields[name] = value);
            }
            fields
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn log_lines_of_consumers_and_relay_say_which_event_trace_queue_and_consumer() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .with_writer(move || writer.clone())
        .init();
    let stage = Stage::new("sqlite", Broker::Local).await;
    let placed = Consumer::of(stage.channel()).only(["order.placed"]).each("broken", broken);
    let app = stage.app([placed]).await;
    // Nobody takes what this one publishes.
    let lost = towpath::Channel::named("lost", ["order.noted"]).unwrap().to("nobody", "nowhere");
    let nobody = Exchange { name: "nobody".to_owned(), kind: ExchangeKind::Topic };
    let other = stage
        .builder()
        .topology(Topology { exchanges: vec![nobody], ..Topology::default() })
        .channel(Ok(lost.with(support::place::Place::policy())));
    let other = other.start().await.unwrap();
    let placing = other.send::<Order>("order-1", OrderCommand::Place { sku: "book".into() });
    let placed = placing.traced("trace-of-placing").await.unwrap().events.remove(0);
    let noted = other.send::<Order>("order-1", OrderCommand::Note).traced("trace-of-noting");
    let noted = noted.await.unwrap().events.remove(0);

    let line = |says: &'static str| {
        let lines = lines.clone();
        async move { eventually(says, || async { lines.find(says) }).await }
    };
    let queue = format!("{}.broken", stage.channel());
    for says in ["a delivery was given up", "the handler looks at it"] {
        let line = line(says).await;
        assert_eq!(line["eventId"], placed.event_id.to_string(), "{line}");
        assert_eq!(line["traceId"], "trace-of-placing", "{line}");
        assert_eq!((&line["queue"], &line["consumer"]), (&queue.as_str().into(), &"broken".into()), "{line}");
    }
    let given_up = line("an event was given up").await;
    assert_eq!(given_up["eventId"], noted.event_id.to_string(), "{given_up}");
    assert_eq!(given_up["traceId"], "trace-of-noting", "{given_up}");
    assert_eq!(given_up["queue"], "nobody:nowhere", "{given_up}");
    assert_eq!(given_up["channel"], "lost", "{given_up}");
    other.stop().await;
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn commands_publishing_and_consuming_are_spans_for_traces() {
    let lines = Lines::default();
    let writer = lines.clone();
    tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
        .with_writer(move || writer.clone())
        .init();
    let stage = Stage::new("sqlite", Broker::Local).await;
    let app = stage.app([Consumer::of(stage.channel()).each("record", record)]).await;
    let placing = app.send::<Order>("order-1", OrderCommand::Place { sku: "book".into() });
    let receipt = placing.traced("trace-1").await.unwrap();
    let event_id = receipt.events[0].event_id.to_string();
    let ended = |name: &'static str| {
        let lines = lines.clone();
        async move {
            eventually(name, || async {
                let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
                let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
                lines.map(|line| line["span"].clone()).find(|span| span["name"] == name)
            })
            .await
        }
    };
    let command = ended("command").await;
    assert_eq!(command["commandId"], receipt.command_id.to_string(), "{command}");
    assert_eq!((&command["commandType"], &command["traceId"]), (&"order.place".into(), &"trace-1".into()));
    let publish = ended("publish").await;
    assert_eq!((&publish["eventId"], &publish["traceId"]), (&event_id.as_str().into(), &"trace-1".into()));
    assert_eq!((&publish["channel"], &publish["outcome"]), (&stage.channel().into(), &"Confirmed".into()));
    let consume = ended("consume").await;
    assert_eq!((&consume["eventId"], &consume["traceId"]), (&event_id.as_str().into(), &"trace-1".into()));
    assert_eq!(consume["consumer"], "record", "{consume}");
    assert_eq!(consume["queue"], format!("{}.record", stage.channel()), "{consume}");
    app.stop().await;
}
