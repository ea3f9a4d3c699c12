//! Alerts: one instance looks, and what it finds is told once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{Fresh, Order, OrderCommand, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use towpath::alerts::{ALERT_FIRED, ALERT_RESOLVED, Alerting, Rules, SilenceAsked, Webhook};
use towpath::lifecycle::AlertStatus::{self, Firing, Missing, Resolved, Silenced};
use towpath::ports::store::alerts::SilenceMatcher;
use towpath::{TaskFilter, Towpath, serde_json};
use towpath_testkit::VirtualClock;

on_every_database!(
    an_alert_is_told_once_over_three_instances,
    an_alert_is_silenced_by_the_databases_time_and_comes_back,
    the_summary_says_how_things_stand,
    what_happened_long_ago_is_forgotten,
    a_webhook_is_told_until_it_has_heard_or_is_gone,
);

/// Fires while more than two commands wait.
fn rules() -> Rules {
    let text = "
defaults: false
alerts:
  waiting:
    condition: 'pending_commands > 2'
    severity: warning
    message: '{{ $value }} commands wait'
  gaps:
    condition: 'aggregate_version_gaps > 0'
    severity: critical
    message: 'gaps'
";
    Rules::from_yaml(text).unwrap()
}

/// Commands that nobody runs: this instance has no workers.
async fn commands(app: &Towpath, count: u32) {
    for number in 0..count {
        let command = OrderCommand::Place { sku: "duck".to_owned() };
        app.send::<Order>(format!("order-{number}"), command).later().await.unwrap();
    }
}

async fn statuses(app: &Towpath) -> Vec<(String, AlertStatus)> {
    let (open, _) = app.alerts().open().await.unwrap();
    open.into_iter().map(|alert| (alert.rule, alert.status)).collect()
}

async fn history(app: &Towpath, rule: &str) -> Vec<AlertStatus> {
    let mut changes = app.alerts().history(Some(rule), None, 100).await.unwrap();
    changes.reverse();
    changes.into_iter().map(|change| change.alert.status).collect()
}

async fn an_alert_is_told_once_over_three_instances(fresh: &Fresh) {
    let idle = fresh.builder().without_workers().start().await.unwrap();
    commands(&idle, 3).await;
    // They look all the time, and none of them registers what could run the commands.
    let soon = Duration::from_millis(10);
    let mut instances = Vec::new();
    for _ in 0..3 {
        let alerting = Alerting::of(rules()).every(soon);
        instances.push(of_strangers(fresh).alerts(alerting).start().await.unwrap());
    }
    let fires = async || {
        let found = statuses(&idle).await;
        (found == [("gaps".to_owned(), Missing), ("waiting".to_owned(), Firing)]).then_some(())
    };
    eventually("the alert fires", fires).await;
    // The others look, too, when the first is gone.
    for instance in instances.drain(..2) {
        let before = idle.alerts().open().await.unwrap().1.unwrap().evaluated_at;
        instance.stop().await;
        let looks = async || {
            let (_, run) = idle.alerts().open().await.unwrap();
            run.filter(|run| {
                run.evaluated_at > before && run.evaluated_by_id != *instance.instance().to_string()
            })
        };
        eventually("another one looks", looks).await;
    }
    assert_eq!(history(&idle, "waiting").await, [Firing], "once");
    assert_eq!(history(&idle, "gaps").await, [Missing], "once");

    let worker = fresh.builder().start().await.unwrap();
    let over = async || (statuses(&idle).await == [("gaps".to_owned(), Missing)]).then_some(());
    eventually("the alert is over", over).await;
    assert_eq!(history(&idle, "waiting").await, [Firing, Resolved]);
    let facts = async || {
        let facts = idle.store().events_between(1, 100).await.unwrap();
        let told: Vec<String> = facts
            .iter()
            .map(|fact| fact.envelope.event_type.to_string())
            .filter(|name| name.starts_with("towpath.alert"))
            .collect();
        (told == [ALERT_FIRED, ALERT_RESOLVED]).then_some(())
    };
    eventually("both are facts, once", facts).await;
    worker.stop().await;
    instances.remove(0).stop().await;
}

/// One that cannot run the commands.
fn of_strangers(fresh: &Fresh) -> towpath::Builder {
    Towpath::builder().store(fresh.url())
}

async fn an_alert_is_silenced_by_the_databases_time_and_comes_back(fresh: &Fresh) {
    let clock = Arc::new(VirtualClock::new());
    let app = fresh
        .builder()
        .clock(clock.clone())
        .without_workers()
        .alerts(Alerting::of(rules()))
        .start()
        .await
        .unwrap();
    let look = async || app.alerts().look().await.unwrap().expect("nobody else looks");
    look().await;
    assert_eq!(statuses(&app).await, [("gaps".to_owned(), Missing)]);
    commands(&app, 3).await;
    look().await;
    let asked = |name: &str, value: &str, seconds| SilenceAsked {
        matchers: vec![SilenceMatcher {
            name: name.to_owned(),
            value: value.to_owned(),
            is_regex: true,
            is_equal: true,
        }],
        author: "anna".to_owned(),
        reason: "the warehouse moves".to_owned(),
        starts_at: None,
        ends_at: app.now() + Duration::from_secs(seconds),
    };
    let refused = app.alerts().add_silence(asked("alertname", ".*", 60)).await;
    assert!(refused.is_err(), "it would silence everything");
    assert!(app.alerts().add_silence(asked("alertname", "waiting", 0)).await.is_err(), "it is over");
    let made = app.alerts().add_silence(asked("alertname", "wait.*", 60)).await.unwrap();
    clock.advance(Duration::from_secs(15));
    look().await;
    assert_eq!(statuses(&app).await, [("gaps".to_owned(), Missing), ("waiting".to_owned(), Silenced)]);
    clock.advance(Duration::from_secs(45));
    look().await;
    assert_eq!(statuses(&app).await[1].1, Firing, "the silence is over");
    let again = app.alerts().add_silence(asked("severity", "warning", 600)).await.unwrap();
    look().await;
    assert_eq!(statuses(&app).await[1].1, Silenced);
    assert!(app.alerts().end_silence(again.silence.silence_id, "otto").await.unwrap());
    assert!(!app.alerts().end_silence(made.silence.silence_id, "otto").await.unwrap(), "it is over");
    look().await;
    assert_eq!(history(&app, "waiting").await, [Firing, Silenced, Firing, Silenced, Firing]);
    app.stop().await;
}

async fn the_summary_says_how_things_stand(fresh: &Fresh) {
    let app = fresh.builder().without_workers().start().await.unwrap();
    let empty = app.summary().await.unwrap();
    assert_eq!((empty.pending_commands, empty.avg_processing_time, empty.retry_rate), (0, None, None));
    commands(&app, 2).await;
    for number in 5..8 {
        let command = OrderCommand::Place { sku: "duck".to_owned() };
        app.send::<Order>(format!("order-{number}"), command).await.unwrap();
    }
    let summary = app.summary().await.unwrap();
    assert_eq!((summary.pending_commands, summary.processing_commands, summary.failed_commands), (2, 0, 0));
    assert_eq!(summary.commands_by_type.into_values().collect::<Vec<_>>(), [5]);
    assert!(summary.avg_processing_time.is_some_and(|time| (0.0..60_000.0).contains(&time)));
    assert_eq!((summary.retry_rate, summary.aggregate_version_gaps), (Some(0.0), None));
    assert_eq!((summary.windows.commands_seconds, summary.windows.events_seconds), (300, 3600));
    app.stop().await;
    // Events count once they have their positions.
    let app = fresh.builder().start().await.unwrap();
    let counted = async || {
        let summary = app.summary().await.unwrap();
        (summary.events_per_hour == 5 && summary.events_by_type.values().sum::<u64>() == 5).then_some(())
    };
    eventually("all events are counted", counted).await;
    app.stop().await;
}

async fn what_happened_long_ago_is_forgotten(fresh: &Fresh) {
    let builder = || fresh.builder();
    let app = builder().without_workers().alerts(Alerting::of(rules())).start().await.unwrap();
    commands(&app, 3).await;
    app.alerts().look().await.unwrap().expect("nobody else looks");
    assert_eq!(history(&app, "waiting").await, [Firing]);
    let soon = Duration::from_millis(10);
    let cleaner = fresh.builder().keep_alerts(soon).clean_every(soon).start().await.unwrap();
    eventually("the history is forgotten", async || history(&app, "waiting").await.is_empty().then_some(()))
        .await;
    assert_eq!(statuses(&app).await.len(), 2, "what is open stays");
    cleaner.stop().await;
    app.stop().await;
}

/// Answers requests with these statuses, one after the other and then with the last one; tells the requests.
async fn receiver(statuses: &'static [u16]) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook?token=hidden", listener.local_addr().unwrap());
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        for number in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 8192];
            // The body is complete when as many bytes have come as the head says.
            let complete = loop {
                let read = stream.read(&mut buffer).await.unwrap();
                request.extend_from_slice(&buffer[..read]);
                let text = String::from_utf8_lossy(&request).into_owned();
                if let Some((head, body)) = text.split_once("\r\n\r\n") {
                    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                    if read == 0 || length.is_none_or(|length| body.len() >= length.parse().unwrap()) {
                        break text;
                    }
                }
            };
            let status = statuses.get(number).or(statuses.last()).unwrap();
            let answer = format!("HTTP/1.1 {status} so\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            if tell.send(complete).is_err() {
                return;
            }
        }
    });
    (url, told)
}

fn header<'r>(request: &'r str, name: &str) -> &'r str {
    request.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).expect(name)
}

async fn a_webhook_is_told_until_it_has_heard_or_is_gone(fresh: &Fresh) {
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let idle = fresh.builder().without_workers().start().await.unwrap();
    commands(&idle, 3).await;
    let (pager, mut told) = receiver(&[500, 200]).await;
    let (gone, mut told_in_vain) = receiver(&[410]).await;
    let alerting = Alerting::of(rules())
        .every(Duration::from_millis(10))
        .webhook(Webhook::new("pager", &pager, &[SECRET]).unwrap())
        .webhook(Webhook::new("gone", &gone, &[SECRET]).unwrap());
    let app = of_strangers(fresh).scan(Duration::from_millis(20)).alerts(alerting).start().await.unwrap();
    let first = told.recv().await.unwrap();
    let second = told.recv().await.unwrap();
    assert_eq!(header(&first, "webhook-id"), header(&second, "webhook-id"), "it is the same message");
    assert!(header(&first, "webhook-signature").starts_with("v1,"));
    let body = |request: &str| request.split_once("\r\n\r\n").unwrap().1.to_owned();
    assert_eq!(body(&first), body(&second), "to the letter");
    let said: serde_json::Value = serde_json::from_str(&body(&second)).unwrap();
    assert_eq!(
        (&said["version"], &said["status"], &said["receiver"]),
        (&"4".into(), &"firing".into(), &"pager".into())
    );
    assert_eq!(said["alerts"][0]["labels"]["alertname"], "waiting");
    assert_eq!(said["alerts"][0]["annotations"]["summary"], "3 commands wait");
    assert_eq!(
        said["alerts"].as_array().unwrap().len(),
        1,
        "what is missing from the start is told to nobody"
    );

    // Who is gone is not told again; that it was not told can be seen.
    told_in_vain.recv().await.unwrap();
    let given_up = async || {
        let tasks = app.tasks(&TaskFilter::default(), None, 10).await.unwrap();
        let codes: Vec<_> = tasks.iter().filter_map(|task| task.error_code.clone()).collect();
        assert!(!format!("{tasks:?}").contains("hidden"), "no URL and no secret is kept");
        codes.iter().any(|code| code == "webhook-gone").then_some(())
    };
    eventually("the receiver that is gone is given up", given_up).await;
    assert!(told_in_vain.try_recv().is_err());

    let worker = fresh.builder().start().await.unwrap();
    let resolved: serde_json::Value = serde_json::from_str(&body(&told.recv().await.unwrap())).unwrap();
    assert_eq!(
        (&resolved["status"], &resolved["alerts"][0]["status"]),
        (&"resolved".into(), &"resolved".into())
    );
    worker.stop().await;
    app.stop().await;
}
