//! Tasks: started with a transaction, done by a worker, ended once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use support::probe::ProbeAt;
use support::{Fresh, eventually};
use tokio::sync::{Semaphore, mpsc};
use towpath::ids::{AggregateKey, TaskId};
use towpath::lifecycle::TaskState;
use towpath::ports::clock::Clock as _;
use towpath::ports::store::{StoreError, TaskBeats, TaskEnd, TaskEnding, Transactions as _, WantedTasks};
use towpath::prelude::*;
use towpath::retry::RetryPolicy;
use towpath::{
    Answer, Attempt, Canceling, Payload, StartedTask, StoreOptions, Task, TaskError, TaskFact, TaskFilter,
    TaskRetry, TaskType, Worker,
};
use towpath_testkit::VirtualClock;

on_every_database!(
    a_task_is_done_and_its_answer_is_a_fact_with_its_cause,
    a_task_that_is_not_committed_is_not_done,
    what_fails_is_tried_again_and_then_given_up,
    an_attempt_that_takes_too_long_is_dropped,
    a_task_that_runs_is_called_off,
    a_task_that_waits_is_called_off_and_tried_again_by_hand,
    a_task_waits_for_its_time_and_for_no_scan,
    two_instances_do_each_task_once,
    who_was_silent_cannot_answer,
    a_worker_elsewhere_takes_tasks_and_answers,
    without_a_claim_the_first_answer_wins,
    a_silent_worker_elsewhere_cannot_answer,
    what_was_taken_ahead_does_not_wait_behind_a_long_task,
    a_stop_waits_for_what_runs_and_gives_back_the_rest,
    what_is_called_off_is_not_given_back,
    of_a_key_one_task_is_open,
    tasks_that_ended_are_forgotten_by_how_they_ended,
    whatever_panics_around_it_a_task_ends_once,
    a_worker_with_much_to_do_goes_on_beside_an_idle_one,
    who_has_not_been_heard_for_long_does_not_take_its_own_tasks_over,
    the_kind_of_tasks_is_not_for_others,
    at_each_tick_one_task_is_started_over_all_instances,
    a_task_is_not_tried_again_inside_of_a_unit,
    what_cannot_be_told_is_not_started,
    who_has_just_come_gives_workers_time_to_say_that_they_live,
    our_own_tasks_are_not_for_workers_elsewhere,
    an_error_that_cannot_be_described_ends_its_attempt,
    a_task_is_started_as_it_is_declared,
    after_a_clock_that_was_ahead_tasks_go_on,
);

/// What a test does with a task.
struct Doing {
    of: TaskType,
    run: Box<dyn Fn(Attempt) -> BoxFuture<'static, Result<Answer, HandlerError>> + Send + Sync>,
}

impl Worker for Doing {
    fn task(&self) -> TaskType {
        self.of.clone()
    }

    async fn run(&self, attempt: Attempt) -> Result<Answer, HandlerError> {
        (self.run)(attempt).await
    }
}

fn doing<F>(of: TaskType, run: impl Fn(Attempt) -> F + Send + Sync + 'static) -> Doing
where
    F: Future<Output = Result<Answer, HandlerError>> + Send + 'static,
{
    Doing { of, run: Box::new(move |attempt| run(attempt).boxed()) }
}

/// Tried again soon, twice; its worker may be silent for a second.
fn draw() -> TaskType {
    TaskType::named("Painter.Draw")
        .retries(RetryPolicy::Fixed(vec![Duration::from_millis(10); 2]))
        .heartbeat(Duration::from_secs(1))
}

fn with_facts() -> TaskType {
    draw()
        .requested("Painter.Drawing.Requested")
        .answered("Painter.Drawing.Drawn")
        .failed("Painter.Drawing.Failed")
        .fact(TaskFact::TimedOut, "Painter.Drawing.TimedOut")
        .fact(TaskFact::Canceled, "Painter.Drawing.Canceled")
}

async fn start(app: &Towpath, of: &TaskType, what: &str) -> TaskId {
    app.transact(async |mut tx| Ok::<_, StoreError>(tx.start_task(of, what).await?.task_id)).await.unwrap()
}

async fn in_status(app: &Towpath, task_id: TaskId, status: TaskState) -> Task {
    eventually(&format!("a task that is {status}"), || async {
        app.task(task_id).await.unwrap().filter(|task| task.status == status)
    })
    .await
}

/// The facts of a task: their names, and what they say.
async fn facts(app: &Towpath, task_id: TaskId) -> Vec<(String, serde_json::Value)> {
    let aggregate = AggregateKey::new(towpath::TASK_KIND, task_id.to_string()).unwrap();
    let events = app.events_of(&aggregate, 0, 100).await.unwrap();
    let said = events.into_iter().map(|event| {
        let payload = serde_json::from_str(event.envelope.payload.as_text()).unwrap();
        (event.envelope.event_type.to_string(), payload)
    });
    said.collect()
}

/// Tells when it is dropped.
struct Dropped(mpsc::UnboundedSender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A worker that begins and never ends; it tells when it begins, and when it is dropped.
fn endless(of: TaskType) -> (Doing, mpsc::UnboundedReceiver<()>, mpsc::UnboundedReceiver<()>) {
    let ((begun, begins), (dropped, drops)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
    let worker = doing(of, move |_| {
        let (begun, dropped) = (begun.clone(), Dropped(dropped.clone()));
        async move {
            begun.send(()).unwrap();
            std::future::pending::<()>().await;
            drop(dropped);
            Ok(Answer::done())
        }
    });
    (worker, begins, drops)
}

async fn told(receiver: &mut mpsc::UnboundedReceiver<()>) {
    tokio::time::timeout(Duration::from_secs(60), receiver.recv()).await.expect("in time").unwrap();
}

async fn a_task_is_done_and_its_answer_is_a_fact_with_its_cause(fresh: &Fresh) {
    let worker = doing(with_facts(), async |attempt: Attempt| {
        let what: String = attempt.read()?;
        Answer::of(&format!("a {what}"))
    });
    let app = fresh.builder().worker(worker, 2).start().await.unwrap();
    let subject = AggregateKey::new("order", "order-7").unwrap();
    let started = app
        .transact(async |mut tx| tx.start_task(&with_facts(), "duck").subject(&subject).priority(3).await)
        .await;
    let StartedTask { task_id, is_new } = started.unwrap();
    assert!(is_new);
    let task = in_status(&app, task_id, TaskState::Succeeded).await;
    assert_eq!(task.result.unwrap().as_text(), "\"a duck\"");
    assert_eq!((task.epoch, task.retry_count, task.task.priority), (1, 0, 3));
    let aggregate = AggregateKey::new("task", task_id.to_string()).unwrap();
    let events = app.events_of(&aggregate, 0, 10).await.unwrap();
    let [requested, drawn] = &events[..] else { panic!("two facts: {events:?}") };
    let (requested, drawn) = (&requested.envelope, &drawn.envelope);
    assert_eq!(requested.event_type.as_str(), "Painter.Drawing.Requested");
    assert_eq!(drawn.event_type.as_str(), "Painter.Drawing.Drawn");
    assert_eq!(drawn.causation_id.as_ref().unwrap().as_str(), requested.event_id.to_string());
    assert_eq!(drawn.correlation_id, requested.correlation_id);
    let said = serde_json::json!({
        "taskId": task_id, "taskType": "Painter.Draw", "result": "a duck",
        "subject": { "kind": "order", "id": "order-7" },
    });
    assert_eq!(facts(&app, task_id).await[1].1, said);
    let of_order = TaskFilter { subject: Some(subject), ..TaskFilter::default() };
    assert_eq!(app.tasks(&of_order, None, 10).await.unwrap().len(), 1);
    app.stop().await;
}

async fn a_task_that_is_not_committed_is_not_done(fresh: &Fresh) {
    let done = Arc::new(Mutex::new(Vec::new()));
    let worker = doing(draw(), {
        let done = Arc::clone(&done);
        move |attempt: Attempt| {
            done.lock().unwrap().push(attempt.read::<String>().unwrap());
            async { Ok(Answer::done()) }
        }
    });
    let app = fresh.builder().worker(worker, 2).start().await.unwrap();
    let undone = app.transact(async |mut tx| {
        tx.start_task(&draw(), "goose").await?;
        Err::<(), _>(StoreError::Nested)
    });
    undone.await.unwrap_err();
    let task_id = start(&app, &draw(), "duck").await;
    in_status(&app, task_id, TaskState::Succeeded).await;
    assert_eq!(*done.lock().unwrap(), ["duck"]);
    app.stop().await;
}

async fn what_fails_is_tried_again_and_then_given_up(fresh: &Fresh) {
    let worker = doing(with_facts(), async |attempt: Attempt| {
        let retry_count = attempt.task.retry_count;
        match attempt.read::<String>()?.as_str() {
            "fails twice" if retry_count == 2 => Ok(Answer::done()),
            "fails twice" => Err(HandlerError::transient("no-ink", "there is no ink")),
            "panics once" if retry_count == 1 => Ok(Answer::skipped("drawn-before")),
            "panics once" => panic!("on purpose"),
            "always" => Err(HandlerError::transient("no-ink", "there is no ink")),
            _ => Err(HandlerError::unrecoverable("no-such-bird", "nobody knows it")),
        }
    });
    let app = fresh.builder().worker(worker, 4).start().await.unwrap();
    let whats = ["fails twice", "panics once", "always", "griffin"];
    let [twice, panics, always, unknown] = whats.map(|what| {
        let app = app.clone();
        async move { start(&app, &with_facts(), what).await }
    });
    let (twice, panics, always, unknown) = tokio::join!(twice, panics, always, unknown);
    assert_eq!(in_status(&app, twice, TaskState::Succeeded).await.retry_count, 2);
    let skipped = in_status(&app, panics, TaskState::Skipped).await;
    assert_eq!(skipped.status_reason.as_deref(), Some("drawn-before"));
    assert_eq!(skipped.error_code.as_deref(), Some("worker-panicked"));
    assert!(skipped.error_message.unwrap().contains("on purpose"));
    for (task_id, code, retry_count) in [(always, "no-ink", 2), (unknown, "no-such-bird", 0)] {
        let task = in_status(&app, task_id, TaskState::Failed).await;
        assert_eq!((task.error_code.as_deref(), task.retry_count), (Some(code), retry_count));
        let facts = facts(&app, task_id).await;
        assert_eq!(facts.len(), 2, "{facts:?}");
        assert_eq!(facts[1].0, "Painter.Drawing.Failed");
        assert_eq!((&facts[1].1["reason"], &facts[1].1["retryCount"]), (&code.into(), &retry_count.into()));
    }
    app.stop().await;
}

async fn an_attempt_that_takes_too_long_is_dropped(fresh: &Fresh) {
    // Nobody takes it over before its worker has said that it took too long.
    let limited = with_facts()
        .time_limit(Duration::from_millis(50))
        .heartbeat(Duration::from_secs(60))
        .retries(RetryPolicy::Fixed(vec![Duration::ZERO]));
    let (worker, _begins, mut drops) = endless(limited.clone());
    let app = fresh.builder().worker(worker, 1).start().await.unwrap();
    let task_id = start(&app, &limited, "duck").await;
    let task = in_status(&app, task_id, TaskState::Timeout).await;
    assert_eq!((task.error_code.as_deref(), task.retry_count, task.epoch), (Some("time-limit"), 1, 2));
    told(&mut drops).await;
    told(&mut drops).await;
    assert_eq!(facts(&app, task_id).await.last().unwrap().0, "Painter.Drawing.TimedOut");
    assert!(app.stop_within(Duration::from_secs(60)).await.is_empty(), "nothing of it runs");
}

async fn a_task_that_runs_is_called_off(fresh: &Fresh) {
    // Its worker does not wait for the next heartbeat.
    let patient = with_facts().heartbeat(Duration::from_secs(3600));
    let (worker, mut begins, mut drops) = endless(patient.clone());
    let app = fresh.builder().worker(worker, 1).start().await.unwrap();
    let task_id = start(&app, &patient, "duck").await;
    told(&mut begins).await;
    let canceling = app.transact(async |mut tx| tx.cancel_task(task_id, "not-wanted").await).await;
    assert_eq!(canceling.unwrap(), Canceling::Asked);
    let task = in_status(&app, task_id, TaskState::Canceled).await;
    assert_eq!(task.status_reason.as_deref(), Some("not-wanted"));
    told(&mut drops).await;
    let facts = facts(&app, task_id).await;
    let (name, said) = facts.last().unwrap();
    assert_eq!((name.as_str(), &said["reason"]), ("Painter.Drawing.Canceled", &"not-wanted".into()));
    app.stop().await;
}

async fn a_task_that_waits_is_called_off_and_tried_again_by_hand(fresh: &Fresh) {
    let away = fresh.builder().task_type(with_facts()).start().await.unwrap();
    let task_id = start(&away, &with_facts(), "duck").await;
    let canceling = away.transact(async |mut tx| tx.cancel_task(task_id, "not-wanted").await).await;
    assert!(matches!(canceling.unwrap(), Canceling::Done(_)));
    let facts = facts(&away, task_id).await;
    assert_eq!(
        (facts[1].0.as_str(), &facts[1].1["reason"]),
        ("Painter.Drawing.Canceled", &"not-wanted".into())
    );
    let app =
        fresh.builder().worker(doing(with_facts(), async |_| Ok(Answer::done())), 1).start().await.unwrap();
    assert_eq!(away.retry_task(task_id).await.unwrap(), TaskRetry::Queued);
    in_status(&app, task_id, TaskState::Succeeded).await;
    assert_eq!(app.retry_task(task_id).await.unwrap(), TaskRetry::Not(TaskState::Succeeded));
    app.stop().await;
    away.stop().await;
}

async fn a_task_waits_for_its_time_and_for_no_scan(fresh: &Fresh) {
    let worker = doing(draw(), async |_| Ok(Answer::done()));
    // Nobody looks by himself.
    let app = fresh.builder().scan(Duration::from_secs(3600)).worker(worker, 1).start().await.unwrap();
    let soon = app.now() + Duration::from_millis(300);
    let started = app.transact(async |mut tx| tx.start_task(&draw(), "duck").not_before(soon).await);
    let task_id = started.await.unwrap().task_id;
    let task = in_status(&app, task_id, TaskState::Succeeded).await;
    assert!(task.started_at.unwrap() >= soon, "{task:?}");
    let next = start(&app, &draw(), "goose").await;
    in_status(&app, next, TaskState::Succeeded).await;
    app.stop().await;
}

async fn two_instances_do_each_task_once(fresh: &Fresh) {
    // Who is slow is not silent.
    let draw = || draw().heartbeat(Duration::from_secs(60));
    let done = Arc::new(Mutex::new(BTreeMap::<TaskId, u32>::new()));
    let instance = || {
        let done = Arc::clone(&done);
        let worker = doing(draw(), move |attempt: Attempt| {
            *done.lock().unwrap().entry(attempt.task.task.task_id).or_default() += 1;
            async { Ok(Answer::done()) }
        });
        fresh.builder().worker(worker, 3).start()
    };
    let (one, other) = (instance().await.unwrap(), instance().await.unwrap());
    let mut all = Vec::new();
    for app in [&one, &other].into_iter().cycle().take(10) {
        let started = app.transact(async |mut tx| {
            let mut ids = Vec::new();
            for _ in 0..5 {
                ids.push(tx.start_task(&draw(), "duck").await?.task_id);
            }
            Ok::<_, StoreError>(ids)
        });
        all.extend(started.await.unwrap());
    }
    for task_id in all {
        in_status(&one, task_id, TaskState::Succeeded).await;
    }
    let done = done.lock().unwrap().clone();
    assert!(done.len() == 50 && done.values().all(|times| *times == 1), "{done:?}");
    tokio::join!(one.stop(), other.stop());
}

const NOW: Duration = Duration::ZERO;

async fn claimed(app: &Towpath, of: &TaskType, wait: Duration) -> Task {
    let mut tasks = app.claim_tasks(&[of.name()], "py-1", 5, wait).await.unwrap();
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    tasks.remove(0)
}

/// No worker is in the process: it looks after what others do.
async fn a_worker_elsewhere_takes_tasks_and_answers(fresh: &Fresh) {
    let of = with_facts().heartbeat(Duration::from_secs(60));
    let app = fresh.builder().task_type(of.clone()).start().await.unwrap();
    assert_eq!(app.claim_tasks(&[of.name()], "py-1", 5, NOW).await.unwrap(), []);
    let code = |error: TaskError| error.code().to_owned();
    assert_eq!(
        code(app.claim_tasks(&["Nobody.Does"], "py-1", 5, NOW).await.unwrap_err()),
        "task-type-unknown"
    );
    assert_eq!(code(app.claim_tasks(&[of.name()], "", 5, NOW).await.unwrap_err()), "invalid-id");
    let waits = tokio::spawn({
        let (app, of) = (app.clone(), of.clone());
        async move { claimed(&app, &of, Duration::from_secs(60)).await }
    });
    let task_id = start(&app, &of, "duck").await;
    let task = waits.await.unwrap();
    assert_eq!((task.task.task_id, task.worker.as_deref()), (task_id, Some("py-1")));
    assert_eq!(task.task.payload.as_text(), "\"duck\"");
    assert!(!app.beat_task(task.claim()).await.unwrap(), "it is wanted");
    // What fails is tried again by its policy, and comes with another epoch.
    let failed =
        app.answer_task(task_id, Some(1), "py-1", Err(HandlerError::transient("no-ink", "none"))).await;
    assert_eq!(
        (failed.unwrap().status, app.task(task_id).await.unwrap().unwrap().retry_count),
        (TaskState::Pending, 1)
    );
    let task = claimed(&app, &of, Duration::from_secs(60)).await;
    assert_eq!((task.task.task_id, task.epoch), (task_id, 2));
    let late = app.answer_task(task_id, Some(1), "py-1", Ok(Answer::done())).await.unwrap_err();
    assert_eq!(code(late), "task-lost");
    for _ in 0..2 {
        // Who has not heard the answer asks again.
        let done =
            app.answer_task(task_id, Some(2), "py-1", Ok(Answer::of("a duck").unwrap())).await.unwrap();
        assert_eq!((done.status, done.result.unwrap().as_text()), (TaskState::Succeeded, "\"a duck\""));
    }
    let other = app.answer_task(task_id, Some(2), "py-1", Ok(Answer::of("a goose").unwrap())).await;
    assert_eq!(code(other.unwrap_err()), "task-lost", "something else came of it");
    let other =
        app.answer_task(task_id, Some(2), "py-1", Err(HandlerError::transient("no-ink", "none"))).await;
    assert_eq!(code(other.unwrap_err()), "task-lost", "it ended in another way");
    let names: Vec<_> = facts(&app, task_id).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["Painter.Drawing.Requested", "Painter.Drawing.Drawn"]);
    // One that is called off is told so, and does not fail.
    let task_id = start(&app, &of, "goose").await;
    let task = claimed(&app, &of, NOW).await;
    assert_eq!(app.cancel_task(task_id, "not-wanted").await.unwrap(), Canceling::Asked);
    assert!(app.beat_task(task.claim()).await.unwrap(), "it is called off");
    let canceled =
        app.answer_task(task_id, Some(1), "py-1", Err(HandlerError::transient("stopped", ""))).await.unwrap();
    assert_eq!(
        (canceled.status, canceled.status_reason.as_deref()),
        (TaskState::Canceled, Some("not-wanted"))
    );
    assert_eq!(facts(&app, task_id).await[1].1["reason"], "not-wanted");
    assert_eq!(code(app.beat_task(task.claim()).await.unwrap_err()), "task-lost");
    // Who waits does not keep a process from stopping.
    let waits = tokio::spawn({
        let (app, of) = (app.clone(), of.clone());
        async move { app.waiting_tasks(&[of.name()], 5, Duration::from_secs(3600)).await }
    });
    app.stop_waiting_for_tasks();
    assert_eq!(waits.await.unwrap().unwrap(), []);
    app.stop().await;
}

async fn without_a_claim_the_first_answer_wins(fresh: &Fresh) {
    let of = with_facts().retries(RetryPolicy::Fixed(vec![Duration::from_secs(3600)]));
    let app = fresh.builder().task_type(of.clone()).start().await.unwrap();
    let task_id = start(&app, &of, "duck").await;
    let waiting = app.waiting_tasks(&[of.name(), of.name()], 5, NOW).await.unwrap();
    assert_eq!(
        (waiting.len(), waiting[0].task.task_id, waiting[0].epoch),
        (1, task_id, 0),
        "nobody has taken it"
    );
    let answer = |what: &'static str| {
        let app = app.clone();
        async move { app.answer_task(task_id, None, what, Ok(Answer::of(what).unwrap())).await }
    };
    let (one, other) = tokio::join!(answer("one"), answer("other"));
    let (winner, loser) = match (one, other) {
        (Ok(task), Err(error)) | (Err(error), Ok(task)) => (task, error),
        both => panic!("one of them wins: {both:?}"),
    };
    assert_eq!((winner.status, winner.epoch, loser.code()), (TaskState::Succeeded, 1, "task-not-queued"));
    assert_eq!(facts(&app, task_id).await.len(), 2);
    let unknown =
        app.answer_task(TaskId(uuid::Uuid::now_v7()), None, "one", Ok(Answer::done())).await.unwrap_err();
    assert_eq!(unknown.code(), "task-unknown");
    // One that failed waits for its next attempt: a result is no worse for that, a second failure is.
    let task_id = start(&app, &of, "goose").await;
    let fails = || app.answer_task(task_id, None, "one", Err(HandlerError::transient("no-ink", "none")));
    assert_eq!(fails().await.unwrap().status, TaskState::Pending);
    assert_eq!(fails().await.unwrap_err().code(), "task-not-queued");
    let done = app.answer_task(task_id, None, "other", Ok(Answer::done())).await.unwrap();
    assert_eq!((done.status, done.epoch), (TaskState::Succeeded, 2));
    // Whatever a worker says, facts have as much of it as the row.
    let task_id = start(&app, &of, "swan").await;
    let wordy = HandlerError::unrecoverable("c".repeat(200), "m".repeat(5000));
    app.answer_task(task_id, None, "one", Err(wordy)).await.unwrap();
    let said = facts(&app, task_id).await[1].1.clone();
    let length = |field: &str| said[field].as_str().unwrap().len();
    assert_eq!((length("reason"), length("message")), (128, 4000));
    app.stop().await;
}

/// It is taken over from by its heartbeat, and what it answers then counts for nothing.
async fn a_silent_worker_elsewhere_cannot_answer(fresh: &Fresh) {
    let of = with_facts().heartbeat(Duration::from_secs(5));
    let app = fresh.builder().task_type(of.clone()).start().await.unwrap();
    let task_id = start(&app, &of, "duck").await;
    let silent = claimed(&app, &of, NOW).await;
    let other = claimed(&app, &of, Duration::from_secs(60)).await;
    assert_eq!((other.task.task_id, other.error_code.as_deref()), (task_id, Some("worker-lost")));
    assert!(other.epoch > silent.epoch);
    let answered = app.answer_task(task_id, Some(silent.epoch), "py-1", Ok(Answer::done())).await;
    assert_eq!(answered.unwrap_err().code(), "task-lost");
    let answered = app.answer_task(task_id, Some(other.epoch), "py-2", Ok(Answer::done())).await;
    assert_eq!(answered.unwrap().status, TaskState::Succeeded);
    app.stop().await;
}

/// A process whose worker was quick takes tasks ahead; when one takes long, another process has the others.
async fn what_was_taken_ahead_does_not_wait_behind_a_long_task(fresh: &Fresh) {
    // Who is slow is not silent.
    let draw = || draw().heartbeat(Duration::from_secs(60));
    let go_on = Arc::new(Semaphore::new(0));
    let instance = || {
        let go_on = Arc::clone(&go_on);
        let worker = doing(draw(), move |attempt: Attempt| {
            let go_on = Arc::clone(&go_on);
            async move {
                if attempt.read::<String>()? == "long" {
                    go_on.acquire().await.unwrap().forget();
                }
                Ok(Answer::done())
            }
        });
        fresh.builder().worker(worker, 1).start()
    };
    let one = instance().await.unwrap();
    let started = one.transact(async |mut tx| {
        let mut ids = Vec::new();
        for number in 0..60 {
            let what = if number == 30 { "long" } else { "short" };
            ids.push(tx.start_task(&draw(), what).await?.task_id);
        }
        Ok::<_, StoreError>(ids)
    });
    let ids = started.await.unwrap();
    in_status(&one, ids[30], TaskState::Running).await;
    let other = instance().await.unwrap();
    for (_, task_id) in ids.iter().enumerate().filter(|(number, _)| *number != 30) {
        in_status(&other, *task_id, TaskState::Succeeded).await;
    }
    assert_eq!(one.task(ids[30]).await.unwrap().unwrap().status, TaskState::Running);
    go_on.add_permits(1);
    in_status(&one, ids[30], TaskState::Succeeded).await;
    tokio::join!(one.stop(), other.stop());
}

/// Its heartbeat is over before it says that it lives: another takes over, and its own answer counts for nothing.
async fn who_was_silent_cannot_answer(fresh: &Fresh) {
    let go_on = Arc::new(Semaphore::new(0));
    let attempts = Arc::new(AtomicU32::new(0));
    let instance = |name: &'static str| {
        let (go_on, attempts) = (Arc::clone(&go_on), Arc::clone(&attempts));
        let worker = doing(with_facts(), move |_| {
            let go_on = Arc::clone(&go_on);
            let number = attempts.fetch_add(1, Ordering::SeqCst);
            async move {
                if number == 0 {
                    go_on.acquire().await?.forget();
                    return Answer::of("by who was silent");
                }
                Answer::of("by who took over")
            }
        });
        fresh.builder().instance(name).worker(worker, 1).start()
    };
    let one = instance("one").await.unwrap();
    let task_id = start(&one, &with_facts(), "duck").await;
    eventually("the first attempt", || async { (attempts.load(Ordering::SeqCst) == 1).then_some(()) }).await;
    let other = instance("other").await.unwrap();
    let silent = "UPDATE task_box SET heartbeat_due_at = created_at WHERE epoch = 1 AND status = 'running'";
    eventually("a task that is taken over", || async {
        // On MariaDB who says at this moment that it lives may have the row: then it is silent the next time.
        let silenced = one.store().own_execute("test.silent", silent, Vec::new()).await;
        assert!(matches!(silenced, Ok(_) | Err(StoreError::Contention(_))), "{silenced:?}");
        one.task(task_id).await.unwrap().filter(|task| task.epoch > 1)
    })
    .await;
    go_on.add_permits(1);
    let task = in_status(&one, task_id, TaskState::Succeeded).await;
    assert_eq!(task.result.unwrap().as_text(), "\"by who took over\"");
    assert_eq!(task.error_code.as_deref(), Some("worker-lost"));
    assert!(task.retry_count >= 1, "{}", task.retry_count);
    tokio::join!(one.stop(), other.stop());
    let app = fresh.app().await;
    assert_eq!(facts(&app, task_id).await.len(), 2, "one answer");
    app.stop().await;
}

async fn a_stop_waits_for_what_runs_and_gives_back_the_rest(fresh: &Fresh) {
    let (begun, mut begins) = mpsc::unbounded_channel();
    let go_on = Arc::new(Semaphore::new(0));
    let worker = doing(draw(), {
        let go_on = Arc::clone(&go_on);
        move |attempt: Attempt| {
            let (begun, go_on) = (begun.clone(), Arc::clone(&go_on));
            async move {
                begun.send(()).unwrap();
                if attempt.read::<String>()? == "endless" {
                    std::future::pending::<()>().await;
                }
                go_on.acquire().await?.forget();
                Ok(Answer::done())
            }
        }
    });
    let app = fresh.builder().worker(worker, 2).start().await.unwrap();
    let (ends, endless) = (start(&app, &draw(), "ends").await, start(&app, &draw(), "endless").await);
    told(&mut begins).await;
    told(&mut begins).await;
    let queued = start(&app, &draw(), "ends").await;
    let stopping = tokio::spawn(async move { app.stop_within(Duration::from_secs(2)).await });
    go_on.add_permits(1);
    let cut_off = stopping.await.unwrap();
    assert!(cut_off.contains(&"tasks".to_owned()), "what does not end is cut off: {cut_off:?}");
    let app = fresh.builder().start().await.unwrap();
    assert_eq!(app.task(ends).await.unwrap().unwrap().status, TaskState::Succeeded);
    let task = app.task(endless).await.unwrap().unwrap();
    assert_eq!((task.status, task.epoch, task.retry_count), (TaskState::Queued, 2, 0));
    assert_eq!(task.status_reason.as_deref(), Some("given-back"));
    // It may have been begun just before the stop, and is given back then.
    let task = app.task(queued).await.unwrap().unwrap();
    assert!([0, 2].contains(&task.epoch) && task.retry_count == 0, "{task:?}");
    assert_eq!(task.status, TaskState::Queued);
    app.stop().await;
}

async fn of_a_key_one_task_is_open(fresh: &Fresh) {
    let app = fresh.builder().task_type(with_facts()).start().await.unwrap();
    let starters = (0..8).map(|_| {
        let app = app.clone();
        tokio::spawn(async move {
            let started =
                app.transact(async |mut tx| tx.start_task(&with_facts(), "duck").unique("duck").await);
            started.await.unwrap()
        })
    });
    let started: Vec<_> =
        futures_util::future::join_all(starters).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(started.iter().filter(|started| started.is_new).count(), 1);
    assert!(started.iter().all(|one| one.task_id == started[0].task_id), "{started:?}");
    assert_eq!(facts(&app, started[0].task_id).await.len(), 1, "asked for once");
    app.stop().await;
}

/// What ends makes room, and room is looked for, whatever others have: no scan comes to the rescue.
async fn a_worker_with_much_to_do_goes_on_beside_an_idle_one(fresh: &Fresh) {
    let busy = doing(draw(), async |_| Ok(Answer::done()));
    let idle = doing(TaskType::named("Painter.Frame"), async |_| Ok(Answer::done()));
    let builder = fresh.builder().scan(Duration::from_secs(3600));
    let app = builder.worker(busy, 2).worker(idle, 2).start().await.unwrap();
    let started = app.transact(async |mut tx| {
        let mut ids = Vec::new();
        for number in 0..20 {
            ids.push(tx.start_task(&draw(), &number).await?.task_id);
        }
        Ok::<_, StoreError>(ids)
    });
    for task_id in started.await.unwrap() {
        in_status(&app, task_id, TaskState::Succeeded).await;
    }
    app.stop().await;
}

/// As after an outage that was longer than a heartbeat: whoever lives says so before anything is taken over.
async fn who_has_not_been_heard_for_long_does_not_take_its_own_tasks_over(fresh: &Fresh) {
    let (begun, mut begins) = mpsc::unbounded_channel();
    let go_on = Arc::new(Semaphore::new(0));
    let worker = doing(draw(), {
        let go_on = Arc::clone(&go_on);
        move |_| {
            let (begun, go_on) = (begun.clone(), Arc::clone(&go_on));
            async move {
                begun.send(()).unwrap();
                go_on.acquire().await?.forget();
                Ok(Answer::done())
            }
        }
    });
    let app = fresh.builder().worker(worker, 1).start().await.unwrap();
    let task_id = start(&app, &draw(), "duck").await;
    told(&mut begins).await;
    let silent = "UPDATE task_box SET heartbeat_due_at = created_at WHERE status = 'running'";
    for _ in 0..20 {
        app.store().own_execute("test.silent", silent, Vec::new()).await.unwrap();
        eventually("a heartbeat", || async {
            let task = app.task(task_id).await.unwrap().unwrap();
            task.heartbeat_due_at.is_some_and(|due_at| due_at > task.created_at).then_some(())
        })
        .await;
    }
    go_on.add_permits(1);
    let task = in_status(&app, task_id, TaskState::Succeeded).await;
    assert_eq!((task.epoch, task.retry_count), (1, 0), "it was its own all the time");
    app.stop().await;
}

#[derive(Default, Serialize, Deserialize)]
struct ToDo;

#[derive(Serialize, Deserialize, Command)]
enum ToDoCommand {
    #[serde(rename = "task.note")]
    Note,
}

#[derive(Serialize, Deserialize, Event)]
enum ToDoEvent {
    #[serde(rename = "task.noted")]
    Noted,
}

impl Aggregate for ToDo {
    const KIND: &'static str = "task";
    type Command = ToDoCommand;
    type Event = ToDoEvent;
    type Refusal = Refused;

    fn decide(&self, ToDoCommand::Note: ToDoCommand, _: &Context) -> Result<Vec<ToDoEvent>, Refused> {
        Ok(vec![ToDoEvent::Noted])
    }

    fn evolve(self, _: &ToDoEvent) -> Self {
        self
    }
}

async fn the_kind_of_tasks_is_not_for_others(fresh: &Fresh) {
    let refused = fresh.builder().aggregate::<ToDo>().task_type(with_facts()).start().await.err().unwrap();
    assert!(refused.code() == "registration" && refused.report().contains("task"), "{}", refused.report());
    // Tasks without facts are of no kind.
    fresh.builder().aggregate::<ToDo>().task_type(draw()).start().await.unwrap().stop().await;
}

async fn a_task_is_not_tried_again_inside_of_a_unit(fresh: &Fresh) {
    let app = fresh.builder().task_type(draw()).start().await.unwrap();
    let task_id = start(&app, &draw(), "duck").await;
    let nested = app.transact(async |_tx| app.retry_task(task_id).await.map(|_| ()));
    assert_eq!(nested.await.unwrap_err().code(), "nested-transaction");
    app.stop().await;
}

/// Its payload is as deep as one may be, and the fact about it would be deeper.
async fn what_cannot_be_told_is_not_started(fresh: &Fresh) {
    let of = with_facts();
    let app = fresh.builder().task_type(of.clone()).start().await.unwrap();
    let deepest = (0..Payload::MAX_DEPTH).fold(serde_json::Value::Null, |inner, _| vec![inner].into());
    let refused = app.transact(async |mut tx| {
        let refused = tx.start_task(&of, &deepest).await.unwrap_err();
        // Whoever passes over it has started nothing.
        Ok::<_, StoreError>(refused.code())
    });
    assert_eq!(refused.await.unwrap(), "invalid-payload");
    assert_eq!(app.tasks(&TaskFilter::default(), None, 10).await.unwrap(), []);
    app.stop().await;
}

async fn tasks_that_ended_are_forgotten_by_how_they_ended(fresh: &Fresh) {
    let worker = doing(draw(), async |attempt: Attempt| match attempt.read::<String>()?.as_str() {
        "duck" => Ok(Answer::done()),
        _ => Err(HandlerError::unrecoverable("no-such-bird", "nobody knows it")),
    });
    let (hour, soon) = (Duration::from_secs(3600), Duration::from_millis(20));
    let builder = fresh.builder().keep_tasks(Duration::ZERO, hour).clean_every(soon);
    let app = builder.worker(worker, 1).start().await.unwrap();
    let (griffin, duck) = (start(&app, &draw(), "griffin").await, start(&app, &draw(), "duck").await);
    eventually("a task that is forgotten", || async {
        app.task(duck).await.unwrap().is_none().then_some(())
    })
    .await;
    in_status(&app, griffin, TaskState::Failed).await;
    app.stop().await;
}

/// What takes tasks, keeps them and writes their ends is started again, and has forgotten nothing.
async fn whatever_panics_around_it_a_task_ends_once(fresh: &Fresh) {
    // Longer than what has panicked is left alone.
    let patient = with_facts().heartbeat(Duration::from_secs(6));
    for statement in ["tasks.claim", "tasks.beat", "tasks.hold", "tasks.end"] {
        let probe = Arc::new(ProbeAt::new(statement, || panic!("a bug of ours, on purpose")));
        let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
        let (attempts, go_on) = (Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(0)));
        let worker = doing(patient.clone(), {
            let (attempts, go_on) = (Arc::clone(&attempts), Arc::clone(&go_on));
            move |_| {
                attempts.fetch_add(1, Ordering::SeqCst);
                let go_on = Arc::clone(&go_on);
                async move {
                    go_on.acquire().await?.forget();
                    Ok(Answer::done())
                }
            }
        });
        let app = fresh.builder().store_options(options).worker(worker, 1).start().await.unwrap();
        probe.arm(1);
        let task_id = start(&app, &patient, statement).await;
        if statement == "tasks.beat" {
            eventually("a heartbeat", || async { probe.is_spent().then_some(()) }).await;
        }
        go_on.add_permits(1);
        let task = in_status(&app, task_id, TaskState::Succeeded).await;
        assert!(probe.is_spent(), "{statement} is not run");
        assert_eq!((task.epoch, attempts.load(Ordering::SeqCst)), (1, 1), "{statement}");
        assert_eq!(facts(&app, task_id).await.len(), 2, "{statement}");
        app.stop().await;
    }
}

/// However much waits and has ended, a claim reads no more than on a table that is nearly empty. Counted in rows: how long it takes is for
/// `towpath bench tasks --waiting 100000 --finished 1000000`, on SQLite too, which does not tell what it has read.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_reads_what_it_takes_and_nothing_else() {
    const CLAIMS: i64 = 10;
    const TAKEN: i64 = 8;
    // Each is found, changed and read again, and there is a look before.
    const READS_OF_EACH: i64 = 5;
    for server in ["postgres", "mysql"] {
        let fresh = Fresh::on(server).await;
        let filling = towpath::SqlStore::connect(fresh.url()).await.unwrap();
        filling.migrate().await.unwrap();
        let fill = async |status, count, task_type| {
            let fill = many(server, status, count, task_type);
            filling.own_execute("test.fill", &fill, Vec::new()).await.unwrap();
        };
        fill("queued", CLAIMS * TAKEN, "Painter.Draw").await;
        let few = rows_read(&fresh, server, CLAIMS, TAKEN).await;
        // In statements that end in time.
        for _ in 0..4 {
            fill("succeeded", 10_000, "Painter.Draw").await;
            fill("queued", 5_000, "Painter.Draw").await;
            fill("queued", 5_000, "Writer.Write").await;
        }
        let analyze = if server == "postgres" { "ANALYZE task_box" } else { "ANALYZE TABLE task_box" };
        filling.own_execute("test.analyze", analyze, Vec::new()).await.unwrap();
        let many = rows_read(&fresh, server, CLAIMS, TAKEN).await;
        let most = few.max(READS_OF_EACH * CLAIMS * TAKEN);
        assert!(many <= most, "{server}: {many} rows are read to take {}, before {few}", CLAIMS * TAKEN);
        filling.close().await;
    }
}

/// How many rows so many claims read that take so many tasks each.
async fn rows_read(fresh: &Fresh, server: &str, claims: i64, taken: i64) -> i64 {
    let asked = async |store: &towpath::SqlStore, sql: &str| {
        let rows = store.own_rows("test.rows_read", sql, Vec::new()).await.unwrap();
        (rows[0].long("rows_read").unwrap(), rows[0].long("rows_changed").unwrap())
    };
    let looking = towpath::SqlStore::connect(fresh.url()).await.unwrap();
    // With one connection: MariaDB counts what a session reads, PostgreSQL tells what one has read when it is closed.
    let options = StoreOptions { max_connections: 1, ..StoreOptions::default() };
    let url = towpath::StoreUrl::parse(fresh.url()).unwrap();
    let store = towpath::SqlStore::connect_with(&url, options).await.unwrap();
    let of_table = "SELECT seq_tup_read + idx_tup_fetch AS rows_read, n_tup_upd AS rows_changed \
         FROM pg_stat_user_tables WHERE relname = 'task_box' AND schemaname = current_schema()";
    let of_session = "SELECT CAST(SUM(variable_value) AS SIGNED) AS rows_read, 0 AS rows_changed \
         FROM information_schema.session_status WHERE variable_name LIKE 'Handler_read%'";
    let (before, by_asking) = match server {
        "postgres" => (asked(&looking, of_table).await, 0),
        _ => {
            // To ask is to read as well.
            asked(&store, of_session).await;
            let (first, second) = (asked(&store, of_session).await, asked(&store, of_session).await);
            (second, second.0 - first.0)
        }
    };
    let limit = u32::try_from(taken).unwrap();
    for _ in 0..claims {
        let wanted = [WantedTasks { task_type: "Painter.Draw", limit }];
        let tasks = store.claim_tasks(&wanted, "worker").await.unwrap();
        assert_eq!(tasks.len(), limit as usize, "{server}");
    }
    let after = match server {
        "postgres" => {
            store.close().await;
            eventually("what the session has changed", || async {
                let after = asked(&looking, of_table).await;
                (after.1 - before.1 == claims * taken).then_some(after)
            })
            .await
        }
        _ => asked(&store, of_session).await,
    };
    let read = after.0 - before.0 - by_asking;
    assert!(read >= claims * taken, "{server}: {read} rows are read, so it is not told what is");
    read
}

/// A statement that writes many tasks.
fn many(server: &str, status: &str, count: i64, task_type: &str) -> String {
    let (id, now, numbers) = match server {
        "postgres" => ("gen_random_uuid()", "clock_timestamp()", format!("generate_series(1, {count}) AS n")),
        _ => ("RANDOM_BYTES(16)", "UTC_TIMESTAMP(6)", format!("seq_1_to_{count} AS n")),
    };
    let finished = if status == "queued" { "NULL" } else { now };
    format!(
        "INSERT INTO task_box (task_id, task_type, priority, payload, heartbeat_micros, correlation_id, created_at, status, \
         status_changed_at, finished_at, retry_count, epoch) \
         SELECT {id}, '{task_type}', 0, '{{\"what\":\"duck\"}}', 30000000, 'flow-1', {now}, '{status}', {now}, {finished}, 0, 0 FROM {numbers}"
    )
}

/// Of ticks at which nobody ran, the last one is made up for; whoever comes later starts nothing again.
async fn at_each_tick_one_task_is_started_over_all_instances(fresh: &Fresh) {
    let clock = Arc::new(VirtualClock::at("2024-02-29T12:00:00Z".parse().unwrap()));
    let nightly = |expression| {
        let worker = doing(draw(), async |_| Ok(Answer::done()));
        let builder = fresh.builder().clock(clock.clone()).scan(Duration::from_millis(20)).worker(worker, 1);
        builder.cron("nightly", expression, draw(), "duck")
    };
    for wrong in [nightly("61 * * * *"), nightly("0 3 * * *").cron("nightly", "0 4 * * *", draw(), "duck")] {
        assert_eq!(wrong.start().await.err().unwrap().code(), "wiring");
    }
    let keys = async |app: &Towpath| -> BTreeSet<String> {
        let tasks = app.tasks(&TaskFilter::default(), None, 100).await.unwrap();
        let keys: Vec<_> = tasks.into_iter().map(|task| task.task.unique_key.unwrap().to_string()).collect();
        let once: BTreeSet<_> = keys.iter().cloned().collect();
        assert_eq!(once.len(), keys.len(), "{keys:?}");
        once
    };
    let until = async |app: &Towpath, day: u32| {
        let key = format!("nightly@2024-03-{day:02}T03:00:00Z");
        eventually(&key, || async { keys(app).await.contains(&key).then_some(()) }).await;
    };
    // It is known since February.
    let before = nightly("0 3 * * *").without_workers().start().await.unwrap();
    let mut tx = before.store().begin().await.unwrap();
    assert!(!tx.take_tick("nightly", clock.now()).await.unwrap());
    tx.commit().await.unwrap();
    clock.set("2024-03-03T12:00:00Z".parse().unwrap());
    for day in [3, 5] {
        let (one, other) = tokio::join!(nightly("0 3 * * *").start(), nightly("0 3 * * *").start());
        let (one, other) = (one.unwrap(), other.unwrap());
        until(&before, day).await;
        clock.advance(Duration::from_secs(24 * 3600));
        until(&before, day + 1).await;
        tokio::join!(one.stop(), other.stop());
        clock.advance(Duration::from_secs(24 * 3600));
    }
    let expected = (3..=6).map(|day| format!("nightly@2024-03-{day:02}T03:00:00Z"));
    assert_eq!(keys(&before).await, expected.collect());
    before.stop().await;
}

/// As after an outage, or a stop of the only server, that was longer than a heartbeat.
async fn who_has_just_come_gives_workers_time_to_say_that_they_live(fresh: &Fresh) {
    let of = draw().heartbeat(Duration::from_secs(3600));
    let before = fresh.builder().task_type(of.clone()).without_workers().start().await.unwrap();
    start(&before, &of, "duck").await;
    let task = claimed(&before, &of, NOW).await;
    let silent = "UPDATE task_box SET heartbeat_due_at = created_at";
    before.store().own_execute("test.silent", silent, Vec::new()).await.unwrap();
    before.stop().await;
    let probe = Arc::new(ProbeAt::new("tasks.next_due", || {}));
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    probe.arm(10);
    let app = fresh.builder().store_options(options).task_type(of).start().await.unwrap();
    eventually("it has looked around", || async { probe.is_spent().then_some(()) }).await;
    assert!(!app.beat_task(task.claim()).await.unwrap(), "it is still its own");
    app.stop().await;
}

async fn our_own_tasks_are_not_for_workers_elsewhere(fresh: &Fresh) {
    let own = TaskType::named("towpath.compensate.trip");
    let app = fresh.builder().task_type(own.clone()).start().await.unwrap();
    let task_id = start(&app, &own, "duck").await;
    let claimed = app.claim_tasks(&[own.name()], "py-1", 5, NOW).await;
    assert_eq!(claimed.unwrap_err().code(), "task-type-unknown");
    let waiting = app.waiting_tasks(&[own.name()], 5, NOW).await;
    assert_eq!(waiting.unwrap_err().code(), "task-type-unknown");
    let answered = app.answer_task(task_id, None, "py-1", Ok(Answer::done())).await;
    assert_eq!(answered.unwrap_err().code(), "task-type-unknown");
    assert_eq!(app.task(task_id).await.unwrap().unwrap().epoch, 0, "nobody had it");
    app.stop().await;
    let app = fresh.builder().worker(doing(own, async |_| Ok(Answer::done())), 1).start().await.unwrap();
    in_status(&app, task_id, TaskState::Succeeded).await;
    app.stop().await;
}

#[derive(Debug)]
struct Unspeakable;

impl std::fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("on purpose")
    }
}

impl std::error::Error for Unspeakable {}

async fn an_error_that_cannot_be_described_ends_its_attempt(fresh: &Fresh) {
    let worker = doing(draw(), async |_| Err(Unspeakable.into()));
    let app = fresh.builder().worker(worker, 1).start().await.unwrap();
    let task_id = start(&app, &draw(), "duck").await;
    let task = in_status(&app, task_id, TaskState::Failed).await;
    assert_eq!((task.error_code.as_deref(), task.retry_count), (Some("worker-panicked"), 2));
    app.stop().await;
}

/// Whatever who starts it was given. One that was started by another declaration is kept by that one.
async fn a_task_is_started_as_it_is_declared(fresh: &Fresh) {
    let (hour, minute) = (Duration::from_secs(3600), Duration::from_secs(60));
    let declared = draw().heartbeat(hour).time_limit(minute);
    let away = fresh.builder().task_type(declared.clone()).without_workers().start().await.unwrap();
    let task_id = start(&away, &draw(), "duck").await;
    let task = away.task(task_id).await.unwrap().unwrap().task;
    assert_eq!((task.heartbeat, task.time_limit), (hour, Some(minute)));
    let sooner = "UPDATE task_box SET heartbeat_micros = 1000000";
    away.store().own_execute("test.sooner", sooner, Vec::new()).await.unwrap();
    let (worker, mut begins, _drops) = endless(declared);
    let app = fresh.builder().worker(worker, 1).start().await.unwrap();
    told(&mut begins).await;
    let heard = Mutex::new(BTreeSet::new());
    eventually("heartbeats", || async {
        let due_at = app.task(task_id).await.unwrap().unwrap().heartbeat_due_at.unwrap();
        let mut heard = heard.lock().unwrap();
        heard.insert(due_at);
        (heard.len() > 4).then_some(())
    })
    .await;
    tokio::join!(app.stop_within(NOW), away.stop());
}

async fn after_a_clock_that_was_ahead_tasks_go_on(fresh: &Fresh) {
    let (day, soon) = (Duration::from_secs(24 * 3600), Duration::from_secs(60));
    let of = draw().heartbeat(day).time_limit(day);
    let app = fresh.builder().task_type(of.clone()).without_workers().start().await.unwrap();
    let (runs, fails) = (start(&app, &of, "duck").await, start(&app, &of, "goose").await);
    let taken = app.claim_tasks(&[of.name()], "py-1", 5, NOW).await.unwrap();
    let claim = taken.iter().find(|task| task.task.task_id == fails).unwrap().claim();
    let (error_code, error_message) = ("no-ink".to_owned(), "none".to_owned());
    let end = TaskEnd::Failed { error_code, error_message, retry_after: Some(day) };
    let store = app.store();
    store.end_tasks(&[TaskEnding { claim, end }]).await.unwrap();
    let later = store.now().await.unwrap() + soon;
    let looks = async || store.take_over_tasks(&[of.name()], "other", &[], 10).await.unwrap();
    assert_eq!(looks().await, []);
    assert!(app.task(runs).await.unwrap().unwrap().heartbeat_due_at.unwrap() > later, "that was given");
    assert_eq!(store.promote_tasks(10).await.unwrap().count, 0);
    // As if both had been written when the clock was a day ahead.
    for ahead in [
        "UPDATE task_box SET heartbeat_micros = 1000000, time_limit_micros = 1000000 WHERE status = 'running'",
        "UPDATE task_box SET status_changed_at = due_at WHERE status = 'pending'",
    ] {
        store.own_execute("test.ahead", ahead, Vec::new()).await.unwrap();
    }
    assert_eq!(looks().await, [], "its worker has the time that was given");
    let task = app.task(runs).await.unwrap().unwrap();
    let later = store.now().await.unwrap() + soon;
    assert!(task.heartbeat_due_at.unwrap() < later && task.attempt_due_at.unwrap() < later, "{task:?}");
    assert_eq!(store.promote_tasks(10).await.unwrap().count, 1);
    in_status(&app, fails, TaskState::Queued).await;
    app.stop().await;
}

/// Where one row can be locked.
mod locked {
    use super::{
        a_heartbeat_does_not_wait_for_who_has_locked_its_task, a_locked_task_keeps_no_other_from_ending,
        a_stop_does_not_throw_away_what_was_done, support,
    };

    on_every_database!(@database postgres, a_locked_task_keeps_no_other_from_ending,
        a_stop_does_not_throw_away_what_was_done, a_heartbeat_does_not_wait_for_who_has_locked_its_task);
    on_every_database!(@database mysql, a_locked_task_keeps_no_other_from_ending,
        a_stop_does_not_throw_away_what_was_done, a_heartbeat_does_not_wait_for_who_has_locked_its_task);
}

/// A worker of a type whose tasks end when they are let, and a probe that knows when ends are written.
async fn let_go(
    fresh: &Fresh,
    of: &TaskType,
) -> (Towpath, BTreeMap<&'static str, Arc<Semaphore>>, Arc<ProbeAt>) {
    let gates = BTreeMap::from(["duck", "goose"].map(|what| (what, Arc::new(Semaphore::new(0)))));
    let worker = doing(of.clone(), {
        let gates = gates.clone();
        move |attempt: Attempt| {
            let gate = Arc::clone(&gates[attempt.read::<String>().unwrap().as_str()]);
            async move {
                gate.acquire().await?.forget();
                Ok(Answer::done())
            }
        }
    });
    let probe = Arc::new(ProbeAt::new("tasks.end", || {}));
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    (fresh.builder().store_options(options).worker(worker, 2).start().await.unwrap(), gates, probe)
}

async fn a_locked_task_keeps_no_other_from_ending(fresh: &Fresh) {
    let of = draw().heartbeat(Duration::from_secs(60));
    let (app, gates, probe) = let_go(fresh, &of).await;
    let (duck, goose) = (start(&app, &of, "duck").await, start(&app, &of, "goose").await);
    for task_id in [duck, goose] {
        in_status(&app, task_id, TaskState::Running).await;
    }
    let mut tx = app.store().begin().await.unwrap();
    tx.lock_task(duck).await.unwrap().unwrap();
    probe.arm(1);
    gates["duck"].add_permits(1);
    eventually("its end is written", || async { probe.is_spent().then_some(()) }).await;
    gates["goose"].add_permits(1);
    in_status(&app, goose, TaskState::Succeeded).await;
    assert_eq!(app.task(duck).await.unwrap().unwrap().status, TaskState::Running, "it is locked");
    tx.rollback().await.unwrap();
    assert_eq!(in_status(&app, duck, TaskState::Succeeded).await.epoch, 1);
    app.stop().await;
}

async fn a_stop_does_not_throw_away_what_was_done(fresh: &Fresh) {
    let of = draw().heartbeat(Duration::from_secs(60));
    let (app, gates, probe) = let_go(fresh, &of).await;
    let task_id = start(&app, &of, "duck").await;
    in_status(&app, task_id, TaskState::Running).await;
    let other = fresh.builder().without_workers().start().await.unwrap();
    let mut tx = other.store().begin().await.unwrap();
    tx.lock_task(task_id).await.unwrap().unwrap();
    // Before the stop, and twice in it.
    probe.arm(3);
    gates["duck"].add_permits(1);
    let stopping = tokio::spawn(async move { app.stop_within(Duration::from_secs(60)).await });
    eventually("its end is written again", || async { probe.is_spent().then_some(()) }).await;
    tx.rollback().await.unwrap();
    assert!(stopping.await.unwrap().is_empty(), "all ended by itself");
    let task = other.task(task_id).await.unwrap().unwrap();
    assert_eq!((task.status, task.epoch), (TaskState::Succeeded, 1));
    other.stop().await;
}

async fn a_heartbeat_does_not_wait_for_who_has_locked_its_task(fresh: &Fresh) {
    let of = draw().heartbeat(Duration::from_secs(60));
    let probe = Arc::new(ProbeAt::new("tasks.locked", || {}));
    let options = StoreOptions { probe: probe.clone(), ..StoreOptions::default() };
    let app = fresh.builder().store_options(options).task_type(of.clone()).start().await.unwrap();
    let task_id = start(&app, &of, "duck").await;
    let task = claimed(&app, &of, NOW).await;
    let mut tx = app.store().begin().await.unwrap();
    tx.lock_task(task_id).await.unwrap().unwrap();
    let beats = app.store().beat_tasks(&[task.claim()]).await.unwrap();
    assert_eq!(beats, TaskBeats { locked: vec![task_id], ..TaskBeats::default() });
    assert!(!app.beat_task(task.claim()).await.unwrap(), "it is not lost");
    // And is heard once the lock is gone, though the worker has spoken before.
    probe.arm(1);
    let beating = tokio::spawn({
        let (app, claim) = (app.clone(), task.claim());
        async move { app.beat_task(claim).await }
    });
    eventually("it is told that it is locked", || async { probe.is_spent().then_some(()) }).await;
    tx.rollback().await.unwrap();
    assert!(!beating.await.unwrap().unwrap());
    let heard = app.task(task_id).await.unwrap().unwrap();
    assert!(heard.heartbeat_due_at > task.heartbeat_due_at, "{heard:?}");
    app.stop().await;
}

/// However its attempt is stopped.
async fn what_is_called_off_is_not_given_back(fresh: &Fresh) {
    for of in [draw(), with_facts()] {
        let of = of.heartbeat(Duration::from_secs(60));
        let (app, _gates, _) = let_go(fresh, &of).await;
        let task_id = start(&app, &of, "duck").await;
        in_status(&app, task_id, TaskState::Running).await;
        let other = fresh.builder().task_type(of.clone()).without_workers().start().await.unwrap();
        assert_eq!(other.cancel_task(task_id, "not-wanted").await.unwrap(), Canceling::Asked);
        app.stop().await;
        let task = other.task(task_id).await.unwrap().unwrap();
        let said = (task.status, task.status_reason.as_deref());
        assert_eq!(said, (TaskState::Canceled, Some("not-wanted")));
        let last = facts(&other, task_id).await.pop().map(|(name, _)| name);
        assert_eq!(last.as_deref(), of.has_facts().then_some("Painter.Drawing.Canceled"));
        other.stop().await;
    }
}
