//! Tasks: taken by one worker at a time, ended by who has them, unique by key, taken over from who is silent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use towpath_core::ids::{CausationId, CorrelationId, TaskId, TaskKey, TaskTypeName, TraceId};
use towpath_core::lifecycle::TaskState;
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::{
    CLAIMED_BYTES, Canceling, HeldTask, InspectedStore, NewTask, StartedTask, Store, StoreError, Task,
    TaskBacklog, TaskBeats, TaskClaim, TaskEnd, TaskEnding, TaskFilter, TaskRetry, WantedTasks,
};
use uuid::Uuid;

use super::StoreFixture;
use super::acts::{LONG, assert_refused, hold_new_lease, stale_and_fresh};
use super::facts::{moment, new_order, payload, payload_of};
use super::waiting::{all_at_once, eventually, in_time, taking_turns};
use crate::probe::StopProbe;

const DRAW: &str = "Painter.Draw";
const WRITE: &str = "Writer.Write";
const WORKER: &str = "worker-1";

fn of_type(name: &str) -> NewTask {
    NewTask {
        task_id: TaskId(Uuid::now_v7()),
        task_type: TaskTypeName::new(name).expect("a valid type"),
        unique_key: None,
        priority: 0,
        not_before: None,
        payload: payload(r#"{"what":"duck"}"#),
        time_limit: None,
        heartbeat: LONG,
        subject: None,
        correlation_id: CorrelationId::of_new_flow(Uuid::now_v7()),
        causation_id: None,
        trace_id: None,
    }
}

pub(super) fn drawing() -> NewTask {
    of_type(DRAW)
}

pub(super) fn with_key(task: NewTask, key: &str) -> NewTask {
    NewTask { unique_key: Some(TaskKey::new(key).expect("a valid key")), ..task }
}

async fn start(store: &dyn Store, tasks: &[NewTask]) -> Vec<StartedTask> {
    let mut tx = store.begin().await.expect("begin");
    let started = tx.start_tasks(tasks).await.expect("start tasks");
    tx.commit().await.expect("commit");
    started
}

async fn claim(store: &dyn Store, task_type: &str, limit: u32) -> Vec<Task> {
    store.claim_tasks(&[WantedTasks { task_type, limit }], WORKER).await.expect("claim")
}

fn ids(tasks: &[Task]) -> Vec<TaskId> {
    tasks.iter().map(|task| task.task.task_id).collect()
}

/// Starts one and takes it.
async fn running(store: &dyn Store, task: NewTask) -> Task {
    let name = task.task_type.clone();
    start(store, &[task]).await;
    claim(store, name.as_str(), 1).await.pop().expect("it can be taken")
}

async fn find(store: &dyn Store, task_id: TaskId) -> Task {
    store.task(task_id).await.expect("read").expect("it is there")
}

async fn status(store: &dyn Store, task_id: TaskId) -> TaskState {
    find(store, task_id).await.status
}

fn done(claim: TaskClaim) -> TaskEnding {
    TaskEnding { claim, end: TaskEnd::Succeeded { result: None } }
}

fn failed(claim: TaskClaim, retry_after: Option<Duration>) -> TaskEnding {
    let (error_code, error_message) = ("no-ink".to_owned(), "There is no ink. 🦆".to_owned());
    TaskEnding { claim, end: TaskEnd::Failed { error_code, error_message, retry_after } }
}

async fn end(store: &dyn Store, endings: &[TaskEnding]) -> Vec<TaskId> {
    store.end_tasks(endings).await.expect("end tasks")
}

async fn cancel(store: &dyn Store, task_id: TaskId) -> Canceling {
    let mut tx = store.begin().await.expect("begin");
    let canceling = tx.cancel_task(task_id, "not-wanted").await.expect("cancel");
    tx.commit().await.expect("commit");
    canceling
}

/// Everything that is said of a task is there, and the rest is as S5 has it.
pub async fn a_task_survives_to_the_letter(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let full = NewTask {
        unique_key: Some(TaskKey::new("duck/7").expect("a valid key")),
        priority: -3,
        not_before: Some(moment(7)),
        payload: payload(r#"{"price":88.50,"who":"Zoë 🦆"}"#),
        time_limit: Some(Duration::from_micros(1_500_001)),
        subject: Some(new_order()),
        causation_id: Some(CausationId::new("cart-7").expect("a valid id")),
        trace_id: Some(TraceId::new("4bf92f3577b34da6a3ce929d0e0e4736").expect("a valid id")),
        ..drawing()
    };
    let plain = drawing();
    let before = store.now().await.expect("the database's time");
    start(&*store, &[full.clone(), plain.clone()]).await;
    let after = store.now().await.expect("the database's time");
    let (waits, queued) = (find(&*store, full.task_id).await, find(&*store, plain.task_id).await);
    assert_eq!((&waits.task, waits.status), (&full, TaskState::Pending));
    assert_eq!((&queued.task, queued.status), (&plain, TaskState::Queued));
    for task in [waits, queued] {
        assert!(before <= task.created_at && task.created_at <= after, "by the database's time: {task:?}");
        assert_eq!((task.retry_count, task.epoch, task.worker), (0, 0, None));
        assert_eq!((task.started_at, task.finished_at, task.failed_at), (None, None, None));
    }
    assert_eq!(store.task(TaskId(Uuid::now_v7())).await.expect("read"), None);
}

/// A task is there when its transaction is, and not before.
pub async fn tasks_live_and_die_with_their_transaction(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (undone, kept) = (drawing(), drawing());
    let mut tx = store.begin().await.expect("begin");
    tx.start_tasks(std::slice::from_ref(&undone)).await.expect("start");
    tx.rollback().await.expect("roll back");
    start(&*store, std::slice::from_ref(&kept)).await;
    assert_eq!(ids(&claim(&*store, DRAW, 10).await), [kept.task_id]);
    assert_eq!(store.task(undone.task_id).await.expect("read"), None);
}

/// Of each type that is wanted the first ones, and no others; each once.
pub async fn tasks_are_taken_by_priority_and_age(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let priorities = [0, 5, 0, -1, 5];
    let tasks: Vec<_> = priorities.map(|priority| NewTask { priority, ..drawing() }).into();
    let other = of_type(WRITE);
    start(&*store, &tasks).await;
    start(&*store, std::slice::from_ref(&other)).await;
    let first = claim(&*store, DRAW, 3).await;
    assert_eq!(ids(&first), [1, 4, 0].map(|at: usize| tasks[at].task_id));
    for task in &first {
        assert_eq!((task.status, task.epoch), (TaskState::Running, 1));
        assert_eq!(task.worker.as_deref(), Some(WORKER));
        assert!(task.started_at.is_some() && task.attempt_due_at.is_none(), "{task:?}");
    }
    let wanted = [DRAW, WRITE, "Nobody.Knows"].map(|task_type| WantedTasks { task_type, limit: 10 });
    let rest = store.claim_tasks(&wanted, WORKER).await.expect("claim");
    assert_eq!(ids(&rest), [tasks[2].task_id, tasks[3].task_id, other.task_id]);
    assert_eq!(claim(&*store, DRAW, 10).await, []);
    assert_eq!(store.claim_tasks(&[], WORKER).await.expect("claim"), []);
    assert_eq!(claim(&*store, DRAW, 0).await, []);
}

/// What waits for its time is not taken before it.
pub async fn a_task_waits_for_its_time(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    assert_eq!(store.promote_tasks(10).await.expect("promote").next_in, None, "nothing waits");
    let now = store.now().await.expect("the database's time");
    let later = NewTask { not_before: Some(now + TimeDelta::hours(1)), ..drawing() };
    let due = [1, 2, 3].map(|seconds| NewTask { not_before: Some(moment(seconds)), ..drawing() });
    start(&*store, std::slice::from_ref(&later)).await;
    let promoted = store.promote_tasks(10).await.expect("promote");
    let next_in = promoted.next_in.expect("one waits");
    assert!(promoted.count == 0 && next_in > LONG / 2 && next_in <= LONG, "{promoted:?}");
    start(&*store, &due).await;
    assert_eq!(claim(&*store, DRAW, 10).await, []);
    let promoted = store.promote_tasks(2).await.expect("promote");
    assert_eq!(
        (promoted.count, promoted.next_in),
        (2, Some(Duration::ZERO)),
        "the first of them, and one is left"
    );
    assert_eq!(ids(&claim(&*store, DRAW, 10).await), [due[0].task_id, due[1].task_id]);
    let promoted = store.promote_tasks(2).await.expect("promote");
    assert!(promoted.count == 1 && promoted.next_in.is_some_and(|wait| wait > LONG / 2), "{promoted:?}");
    assert_eq!(ids(&claim(&*store, DRAW, 10).await), [due[2].task_id]);
    assert_eq!(status(&*store, later.task_id).await, TaskState::Pending);
}

/// A claim has room for so many bytes of a type, and for one task however large it is.
pub async fn a_claim_of_tasks_takes_so_many_bytes_and_at_least_one(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let sizes = [CLAIMED_BYTES, CLAIMED_BYTES / 2, CLAIMED_BYTES / 2, 100];
    let tasks: Vec<_> = sizes.map(|bytes| NewTask { payload: payload_of(bytes), ..drawing() }).into();
    for task in &tasks {
        start(&*store, std::slice::from_ref(task)).await;
    }
    for expected in [&tasks[..1], &tasks[1..3], &tasks[3..], &[]] {
        let taken: Vec<_> = claim(&*store, DRAW, 10).await.into_iter().map(|task| task.task).collect();
        assert!(taken == expected, "{} taken, {} expected", taken.len(), expected.len());
    }
}

/// Eight who take at once: each task is with one of them, and none is left.
pub async fn claimers_never_share_a_task(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let tasks: Vec<_> = (0..100).map(|_| drawing()).collect();
    start(&*store, &tasks).await;
    let mut claimers = Vec::new();
    for number in 0..8 {
        let store = fixture.store().await;
        claimers.push(async move {
            let (mut taken, worker) = (Vec::new(), format!("worker-{number}"));
            loop {
                let wanted = [WantedTasks { task_type: DRAW, limit: 3 }];
                let more = taking_turns(|| store.claim_tasks(&wanted, &worker)).await.expect("claim");
                // Others may just be taking what is left: then it is not ours.
                if more.is_empty() {
                    return taken;
                }
                assert!(more.iter().all(|task| task.worker.as_deref() == Some(&worker)));
                taken.extend(ids(&more));
            }
        });
    }
    let mut taken = all_at_once(claimers).await.concat();
    taken.extend(ids(&claim(&*store, DRAW, 100).await));
    assert_eq!(taken.len(), 100, "none twice");
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>().len(), 100, "none lost");
}

/// Of a key there is one open task; the next may begin when it has ended.
pub async fn an_open_key_is_taken_once(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (first, second) = (with_key(drawing(), "duck"), with_key(drawing(), "duck"));
    let (goose, of_other_type) = (with_key(drawing(), "goose"), with_key(of_type(WRITE), "duck"));
    let free = drawing();
    let together = [first.clone(), second.clone(), goose.clone(), of_other_type.clone(), free.clone()];
    let (first_id, is) = (first.task_id, |task_id, is_new| StartedTask { task_id, is_new });
    let started = start(&*store, &together).await;
    let expected = [
        is(first_id, true),
        is(first_id, false),
        is(goose.task_id, true),
        is(of_other_type.task_id, true),
        is(free.task_id, true),
    ];
    assert_eq!(started, expected, "each in its place");
    assert_eq!(store.task(second.task_id).await.expect("read"), None);
    // Whether it waits or runs.
    assert_eq!(start(&*store, std::slice::from_ref(&second)).await, [is(first_id, false)]);
    let taken = claim(&*store, DRAW, 10).await;
    assert_eq!(start(&*store, std::slice::from_ref(&second)).await, [is(first_id, false)]);
    let ended = taken.iter().find(|task| task.task.task_id == first_id).expect("it is taken");
    end(&*store, &[done(ended.claim())]).await;
    assert_eq!(start(&*store, std::slice::from_ref(&second)).await, [is(second.task_id, true)]);
}

/// Eight who start a task of the same keys at once begin one of each, and all are told of it.
pub async fn eight_starters_of_a_key_begin_one_task(fixture: &impl StoreFixture) {
    let mut starters = Vec::new();
    for number in 0..8 {
        let store = fixture.store().await;
        starters.push(async move {
            let mut found = Vec::new();
            for round in 0..5 {
                let mut tasks = ["a", "b"].map(|key| with_key(drawing(), &format!("{key}-{round}")));
                if number == 0 || number == 4 {
                    tasks.reverse();
                }
                let started = taking_turns(async || {
                    let mut tx = store.begin().await?;
                    let started = tx.start_tasks(&tasks).await?;
                    tx.commit().await.map(|()| started)
                });
                found.extend(started.await.expect("start"));
            }
            found
        });
    }
    let found = all_at_once(starters).await.concat();
    assert_eq!(found.len(), 80);
    assert_eq!(found.iter().filter(|started| started.is_new).count(), 10, "one of each key is new");
    let told: BTreeSet<_> = found.iter().map(|started| started.task_id).collect();
    assert_eq!(told.len(), 10, "and all are told of it");
    let store = fixture.store().await;
    assert_eq!(claim(&*store, DRAW, 100).await.len(), 10);
}

/// A key whose transaction is undone is free for who has waited for it.
pub async fn a_key_that_is_undone_is_free(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (undone, kept) = (with_key(drawing(), "duck"), with_key(drawing(), "duck"));
    let mut tx = store.begin().await.expect("begin");
    tx.start_tasks(std::slice::from_ref(&undone)).await.expect("start");
    let (other, task) = (fixture.store().await, kept.clone());
    let waiting = tokio::spawn(async move { start(&*other, &[task]).await });
    super::waiting::fair_chance(&waiting).await;
    tx.rollback().await.expect("roll back");
    let started = super::waiting::answer_of(waiting).await;
    assert_eq!(started, [StartedTask { task_id: kept.task_id, is_new: true }]);
}

/// A worker that was silent for too long is fenced; one that lives is not.
pub async fn who_is_silent_is_taken_over_and_cannot_answer(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lively = running(&*store, drawing()).await;
    let other = running(&*store, NewTask { heartbeat: Duration::from_millis(1), ..of_type(WRITE) }).await;
    let silent = running(&*store, NewTask { heartbeat: Duration::from_millis(1), ..drawing() }).await;
    let taken = eventually("a silent worker", async || {
        let living = [silent.task.task_id];
        let taken = store.take_over_tasks(&[DRAW], "worker-2", &living, 10).await.expect("take over");
        assert_eq!(taken, [], "whoever asks knows that it lives");
        let taken = store.take_over_tasks(&[DRAW], "worker-2", &[], 10).await.expect("take over");
        (!taken.is_empty()).then_some(taken)
    });
    let taken = taken.await;
    assert_eq!(ids(&taken), [silent.task.task_id]);
    let now = &taken[0];
    assert_eq!((now.status, now.epoch, now.retry_count), (TaskState::Running, silent.epoch + 1, 0));
    assert_eq!(
        (now.worker.as_deref(), now.status_reason.as_deref()),
        (Some("worker-2"), Some("worker-lost"))
    );
    let beats = store.beat_tasks(&[silent.claim(), lively.claim()]).await.expect("beat");
    assert_eq!(beats, TaskBeats { lost: vec![silent.task.task_id], ..TaskBeats::default() });
    for late in [done(silent.claim()), failed(silent.claim(), None), failed(silent.claim(), Some(LONG))] {
        assert_eq!(end(&*store, &[late, done(lively.claim())]).await, [silent.task.task_id]);
    }
    let still = find(&*store, silent.task.task_id).await;
    assert_eq!((still.status, still.epoch, still.error_code), (TaskState::Running, now.epoch, None));
    assert_eq!(end(&*store, &[failed(now.claim(), Some(Duration::ZERO))]).await, []);
    assert_eq!(end(&*store, &[done(silent.claim())]).await, [silent.task.task_id], "nor later");
    assert_eq!(find(&*store, silent.task.task_id).await.retry_count, 1);
    assert_eq!(status(&*store, lively.task.task_id).await, TaskState::Succeeded);
    assert_eq!(find(&*store, other.task.task_id).await.epoch, 1, "nobody asked for its type");
    assert_eq!(store.take_over_tasks(&[], "worker-2", &[], 10).await.expect("take over"), []);
}

/// A worker that has not heard the answer to a claim lets others have what it does not know of, and nothing else.
pub async fn what_was_taken_unheard_is_given_back(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (known, unheard) = (running(&*store, drawing()).await, running(&*store, drawing()).await);
    start(&*store, &[drawing()]).await;
    let wanted = [WantedTasks { task_type: DRAW, limit: 1 }];
    let others = store.claim_tasks(&wanted, "worker-2").await.expect("claim").remove(0);
    let give_back = async |seen: &[TaskId]| store.return_unseen_tasks(WORKER, seen).await.expect("return");
    assert_eq!(give_back(&[known.task.task_id]).await, 1);
    let back = find(&*store, unheard.task.task_id).await;
    assert_eq!((back.status, back.retry_count, &back.worker), (TaskState::Queued, 0, &None));
    assert_eq!((back.status_reason.as_deref(), back.heartbeat_due_at), (Some("claim-lost"), None));
    assert_eq!(end(&*store, &[done(unheard.claim())]).await, [unheard.task.task_id], "it cannot answer");
    for task in [&known, &others] {
        let found = find(&*store, task.task.task_id).await;
        assert_eq!((found.status, found.epoch), (TaskState::Running, task.epoch));
    }
    assert_eq!(
        (give_back(&[known.task.task_id]).await, give_back(&[]).await, give_back(&[]).await),
        (0, 1, 0)
    );
    assert_eq!(status(&*store, others.task.task_id).await, TaskState::Running);
}

/// A heartbeat is good for its length from then on.
pub async fn a_worker_that_lives_keeps_its_tasks(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let mut claims = Vec::new();
    for _ in 0..3 {
        claims.push(running(&*store, drawing()).await);
    }
    let until = |task: &Task| task.heartbeat_due_at.expect("it runs");
    // As many as it likes, in one statement.
    let beating: Vec<_> = claims.iter().map(Task::claim).collect();
    eventually("a later moment", async || {
        assert_eq!(store.beat_tasks(&beating).await.expect("beat"), TaskBeats::default());
        let mut all = true;
        for task in &claims {
            all &= until(&find(&*store, task.task.task_id).await) > until(task);
        }
        all.then_some(())
    })
    .await;
    assert_eq!(store.beat_tasks(&[]).await.expect("beat"), TaskBeats::default());
    let claim = claims[0].claim();
    let stale = TaskClaim { epoch: claim.epoch + 1, ..claim };
    assert_eq!(store.beat_tasks(&[stale]).await.expect("beat").lost, [claim.task_id]);
    end(&*store, &[done(claim)]).await;
    assert_eq!(store.beat_tasks(&[claim]).await.expect("beat").lost, [claim.task_id], "it has ended");
}

/// An attempt that takes too long is taken over, although its worker lives.
pub async fn an_attempt_whose_time_is_over_is_taken_over(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (time_limit, heartbeat) = (Some(Duration::ZERO), Duration::from_secs(5));
    let slow = running(&*store, NewTask { time_limit, heartbeat, ..drawing() }).await;
    assert!(slow.attempt_due_at >= slow.started_at, "{slow:?}");
    let quick = running(&*store, NewTask { time_limit: Some(LONG), ..drawing() }).await;
    let taken = eventually("an attempt that is over", async || {
        store.beat_tasks(&[slow.claim(), quick.claim()]).await.expect("beat");
        let living = [slow.task.task_id, quick.task.task_id];
        let taken = store.take_over_tasks(&[DRAW], "worker-2", &living, 10).await.expect("take over");
        (!taken.is_empty()).then_some(taken)
    });
    let taken = taken.await;
    assert_eq!(ids(&taken), [slow.task.task_id]);
    assert_eq!(taken[0].status_reason.as_deref(), Some("time-limit"));
    assert_eq!(
        store.take_over_tasks(&[DRAW], "worker-3", &[], 10).await.expect("take over"),
        [],
        "it was just taken"
    );
    assert_eq!(end(&*store, &[done(slow.claim())]).await, [slow.task.task_id]);
}

/// Each end has its columns, also when many end together.
pub async fn attempts_that_end_together_end_each_in_its_way(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let tasks: Vec<_> = (0..9).map(|_| drawing()).collect();
    start(&*store, &tasks).await;
    let taken = claim(&*store, DRAW, 9).await;
    let text = |text: &str| text.to_owned();
    let ends = [
        TaskEnd::Succeeded { result: Some(payload(r#"{"drawn":1.50}"#)) },
        TaskEnd::Succeeded { result: None },
        TaskEnd::Skipped { reason: text("drawn-before"), message: Some(text("It hangs there.")) },
        TaskEnd::Canceled,
        failed(taken[4].claim(), None).end,
        failed(taken[5].claim(), Some(LONG)).end,
        TaskEnd::TimedOut { error_message: text("It took too long."), retry_after: None },
        TaskEnd::TimedOut { error_message: text("It took too long."), retry_after: Some(Duration::ZERO) },
        TaskEnd::GivenBack,
    ];
    let endings: Vec<_> = taken
        .iter()
        .zip(&ends)
        .map(|(task, end)| TaskEnding { claim: task.claim(), end: end.clone() })
        .collect();
    assert_eq!(end(&*store, &endings).await, []);
    let mut found = Vec::new();
    for task in &tasks {
        found.push(find(&*store, task.task_id).await);
    }
    use TaskState::*;
    let statuses: Vec<_> = found.iter().map(|task| task.status).collect();
    let expected = [Succeeded, Succeeded, Skipped, Canceled, Failed, Pending, Timeout, Pending, Queued];
    assert_eq!(statuses, expected);
    assert_eq!(found[0].result, Some(payload(r#"{"drawn":1.50}"#)));
    assert!(found[1..].iter().all(|task| task.result.is_none()));
    let said = |at: usize| (found[at].status_reason.as_deref(), found[at].status_message.as_deref());
    assert_eq!(said(2), (Some("drawn-before"), Some("It hangs there.")));
    let error = |at: usize| (found[at].error_code.as_deref(), found[at].error_message.as_deref());
    assert_eq!([error(0), error(8)], [(None, None); 2]);
    assert_eq!([error(4), error(5)], [(Some("no-ink"), Some("There is no ink. 🦆")); 2]);
    assert_eq!([error(6), error(7)], [(Some("time-limit"), Some("It took too long.")); 2]);
    for (task, end) in found.iter().zip(&ends) {
        assert_eq!(task.finished_at.is_some(), end.is_final(), "{task:?}");
        let has_failed = matches!(end, TaskEnd::Failed { .. } | TaskEnd::TimedOut { .. });
        assert_eq!(task.failed_at.is_some(), has_failed, "{task:?}");
        assert_eq!(task.retry_count, u64::from(has_failed && !end.is_final()), "{task:?}");
        assert_eq!((&task.worker, task.heartbeat_due_at, task.attempt_due_at), (&None, None, None));
        assert!(
            task.status_changed_at >= taken[0].status_changed_at && task.started_at.is_some(),
            "{task:?}"
        );
    }
    // What is tried again comes at its time, what is given back at once.
    let [back] = &claim(&*store, DRAW, 9).await[..] else { panic!("one was given back") };
    assert_eq!((back.task.task_id, back.epoch), (tasks[8].task_id, 3));
    let promoted = eventually("a retry that is due", async || {
        let promoted = store.promote_tasks(10).await.expect("promote");
        (promoted.count > 0).then_some(promoted)
    });
    assert!(promoted.await.next_in.is_some_and(|wait| wait > LONG / 2));
    let [again] = &claim(&*store, DRAW, 9).await[..] else { panic!("one is tried again") };
    assert_eq!((again.task.task_id, again.epoch, again.retry_count), (tasks[7].task_id, 2, 1));
}

/// Who has not heard the answer says it again, and nothing else happens.
pub async fn an_end_that_is_told_again_is_no_loss(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (ends, fails) = (running(&*store, drawing()).await, running(&*store, drawing()).await);
    let endings = [done(ends.claim()), failed(fails.claim(), Some(LONG))];
    assert_eq!(end(&*store, &endings).await, []);
    let before = (find(&*store, ends.task.task_id).await, find(&*store, fails.task.task_id).await);
    assert_eq!(end(&*store, &endings).await, []);
    let after = (find(&*store, ends.task.task_id).await, find(&*store, fails.task.task_id).await);
    assert_eq!(before, after);
    let unknown = TaskClaim { task_id: TaskId(Uuid::now_v7()), epoch: 1 };
    assert_eq!(end(&*store, &[done(unknown)]).await, [unknown.task_id]);
    assert_eq!(end(&*store, &[]).await, []);
}

/// Many ends, and large ones, are more than one statement and one answer.
pub async fn ends_of_any_number_and_size_are_written(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let tasks: Vec<_> = (0..300).map(|_| drawing()).collect();
    start(&*store, &tasks).await;
    let taken = claim(&*store, DRAW, 300).await;
    assert_eq!(taken.len(), 300);
    let large = |at: usize| at.is_multiple_of(100).then(|| payload_of(3 << 20));
    let endings = taken
        .iter()
        .enumerate()
        .map(|(at, task)| TaskEnding { claim: task.claim(), end: TaskEnd::Succeeded { result: large(at) } });
    assert_eq!(end(&*store, &endings.collect::<Vec<_>>()).await, []);
    for (at, task) in taken.iter().enumerate().step_by(50) {
        let found = find(&*store, task.task.task_id).await;
        assert!(found.status == TaskState::Succeeded && found.result == large(at), "{at}");
    }
}

/// Of each type the first ones, in the order in which they would be taken, without their payloads.
pub async fn tasks_that_wait_are_looked_at_and_not_taken(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let drawings: Vec<_> = [0, 5, 1].map(|priority| NewTask { priority, ..drawing() }).into();
    let writing = NewTask { priority: 9, ..of_type(WRITE) };
    let later = NewTask { not_before: Some(moment(1)), ..drawing() };
    start(&*store, &drawings).await;
    start(&*store, &[writing.clone(), later]).await;
    let wanted = ["Nobody.Does", WRITE, DRAW].map(|task_type| WantedTasks { task_type, limit: 2 });
    for _ in 0..2 {
        let found = store.waiting_tasks(&wanted).await.expect("look");
        assert_eq!(ids(&found), [writing.task_id, drawings[1].task_id, drawings[2].task_id]);
        assert!(
            found
                .iter()
                .all(|task| task.status == TaskState::Queued && task.task.payload.as_text() == "null")
        );
    }
    assert_eq!(store.waiting_tasks(&[]).await.expect("look"), []);
    claim(&*store, DRAW, 2).await;
    let found = store.waiting_tasks(&wanted).await.expect("look");
    assert_eq!(ids(&found), [writing.task_id, drawings[0].task_id]);
}

/// It runs under a new epoch when its transaction commits; one that may not be taken is not.
pub async fn one_task_is_taken_by_its_id(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (queued, other) = (drawing(), drawing());
    let later = NewTask { not_before: Some(moment(1)), ..drawing() };
    start(&*store, &[queued.clone(), other.clone(), later.clone()]).await;
    for commits in [false, true] {
        let mut tx = store.begin().await.expect("begin");
        assert_eq!(tx.claim_task(later.task_id, WORKER).await.expect("claim"), None, "its time has not come");
        assert_eq!(tx.claim_task(TaskId(Uuid::now_v7()), WORKER).await.expect("claim"), None);
        let taken = tx.claim_task(queued.task_id, WORKER).await.expect("claim").expect("it may be taken");
        assert_eq!((taken.status, taken.epoch, &taken.task), (TaskState::Running, 1, &queued));
        assert_eq!((taken.worker.as_deref(), taken.heartbeat_due_at.is_some()), (Some(WORKER), true));
        assert_eq!(tx.lock_task(queued.task_id).await.expect("lock"), Some(taken));
        assert_eq!(tx.claim_task(queued.task_id, "worker-2").await.expect("claim"), None, "it is taken");
        if commits { tx.commit().await.expect("commit") } else { tx.rollback().await.expect("roll back") }
    }
    assert_eq!(status(&*store, queued.task_id).await, TaskState::Running);
    assert_eq!(ids(&claim(&*store, DRAW, 10).await), [other.task_id], "nobody else was taken");
    // One that waits for its next attempt may be.
    let postponed = running(&*store, drawing()).await;
    let again = Some(Duration::from_secs(3600));
    let ended = store.end_tasks(&[failed(postponed.claim(), again)]).await.expect("end");
    assert_eq!((ended, status(&*store, postponed.task.task_id).await), (Vec::new(), TaskState::Pending));
    let mut tx = store.begin().await.expect("begin");
    let taken = tx.claim_task(postponed.task.task_id, WORKER).await.expect("claim").expect("it may be taken");
    assert_eq!((taken.status, taken.epoch), (TaskState::Running, 2));
    assert_eq!(tx.lock_task(TaskId(Uuid::now_v7())).await.expect("lock"), None);
    tx.rollback().await.expect("roll back");
}

/// By one of all who try, with what follows from it; none that has been passed by.
pub async fn a_tick_of_a_schedule_is_taken_once(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let take = async |schedule: &str, tick: u64, commits: bool| {
        let mut tx = store.begin().await.expect("begin");
        let taken = tx.take_tick(schedule, moment(tick)).await.expect("take");
        if commits {
            tx.commit().await.expect("commit")
        } else {
            tx.rollback().await.expect("roll back")
        }
        taken
    };
    for schedule in ["nightly", "hourly"] {
        assert!(!take(schedule, 10, true).await, "it begins there");
    }
    assert!(!take("nightly", 10, true).await);
    assert!(
        take("nightly", 20, false).await && take("nightly", 20, true).await,
        "what is rolled back was not taken"
    );
    assert!(!take("nightly", 20, true).await && !take("nightly", 15, true).await);
    assert!(take("hourly", 15, true).await, "each has its own");
    let in_a_century = 100 * 365 * 24 * 3600;
    assert!(take("hourly", in_a_century, true).await, "the clock is ahead");
    assert!(take("hourly", 16, true).await, "and is set back");
    assert!(!take("hourly", 16, true).await && !take("hourly", 15, true).await);
    let takers = (0..8).map(|_| {
        let store = Arc::clone(&store);
        async move {
            let taken = taking_turns(|| async {
                let mut tx = store.begin().await?;
                let taken = tx.take_tick("nightly", moment(30)).await?;
                tx.commit().await.map(|()| taken)
            });
            taken.await.expect("take")
        }
    });
    assert_eq!(all_at_once(takers).await.into_iter().filter(|taken| *taken).count(), 1);
}

/// What ends in a transaction ends with it; nobody else ends it meanwhile.
pub async fn ends_live_and_die_with_their_transaction(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let (ours, lost) = (running(&*store, drawing()).await, running(&*store, drawing()).await);
    assert_eq!(cancel(&*store, ours.task.task_id).await, Canceling::Asked);
    let stale = TaskClaim { epoch: lost.epoch + 1, ..lost.claim() };
    for commits in [false, true] {
        let reason = Some("not-wanted".to_owned());
        let mut tx = store.begin().await.expect("begin");
        let held = tx.hold_tasks(&[ours.claim(), stale]).await.expect("hold");
        assert_eq!(held, [HeldTask { task_id: ours.task.task_id, is_canceling: true, reason }]);
        assert_eq!(tx.hold_tasks(&[stale]).await.expect("hold"), [], "it is somebody else's");
        let ended = tx.end_tasks(&[done(ours.claim()), done(stale)]).await.expect("end");
        assert_eq!(ended, [lost.task.task_id]);
        if commits {
            tx.commit().await.expect("commit")
        } else {
            tx.rollback().await.expect("roll back")
        }
        let expected = if commits { TaskState::Succeeded } else { TaskState::Running };
        assert_eq!(status(&*store, ours.task.task_id).await, expected);
    }
    let mut tx = store.begin().await.expect("begin");
    assert_eq!(tx.hold_tasks(&[ours.claim()]).await.expect("hold"), [], "it runs no more");
    tx.rollback().await.expect("roll back");
    assert_eq!(status(&*store, lost.task.task_id).await, TaskState::Running);
}

/// One that waits is called off at once, one that runs when its worker answers.
pub async fn a_task_is_called_off(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let pending = NewTask { not_before: Some(moment(1)), ..drawing() };
    let queued = of_type(WRITE);
    start(&*store, &[pending.clone(), queued.clone()]).await;
    for task in [&pending, &queued] {
        let Canceling::Done(found) = cancel(&*store, task.task_id).await else { panic!("it waited") };
        assert_eq!(found.task, *task);
        let found = find(&*store, task.task_id).await;
        assert!(found.status == TaskState::Canceled && found.finished_at.is_some(), "{found:?}");
        assert_eq!(found.status_reason.as_deref(), Some("not-wanted"));
        assert_eq!(cancel(&*store, task.task_id).await, Canceling::Ended(TaskState::Canceled));
    }
    assert_eq!(store.promote_tasks(10).await.expect("promote").count, 0);
    assert_eq!(claim(&*store, WRITE, 10).await, []);
    assert_eq!(cancel(&*store, TaskId(Uuid::now_v7())).await, Canceling::Unknown);
    let bystander = running(&*store, of_type(WRITE)).await;
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let task = running(&*store, drawing()).await;
        assert_eq!(cancel(&*store, task.task.task_id).await, Canceling::Asked);
        tasks.push(task);
    }
    let claims: Vec<_> = tasks.iter().map(Task::claim).collect();
    let beats = store.beat_tasks(&claims).await.expect("beat");
    assert_eq!(beats.lost, []);
    assert_eq!(BTreeSet::from_iter(beats.canceling), ids(&tasks).into_iter().collect::<BTreeSet<_>>());
    let beats = store.beat_tasks(&[bystander.claim()]).await.expect("beat");
    assert_eq!(beats, TaskBeats::default(), "nobody else is");
    let given_back = TaskEnding { claim: claims[3], end: TaskEnd::GivenBack };
    let canceled = TaskEnding { claim: claims[0], end: TaskEnd::Canceled };
    let timed_out = TaskEnd::TimedOut { error_message: "too long".to_owned(), retry_after: None };
    let timed_out = TaskEnding { claim: claims[5], end: timed_out };
    let (again, for_good) = (failed(claims[1], Some(Duration::ZERO)), failed(claims[4], None));
    let endings = [canceled, again, done(claims[2]), given_back, for_good, timed_out];
    assert_eq!(end(&*store, &endings).await, []);
    use TaskState::{Canceled, Queued, Succeeded};
    let expected = [Canceled, Canceled, Succeeded, Queued, Canceled, Canceled];
    for (task, expected) in tasks.iter().zip(expected) {
        let found = find(&*store, task.task.task_id).await;
        assert_eq!((found.status, found.finished_at.is_some()), (expected, expected != TaskState::Queued));
        let reason = (expected != TaskState::Succeeded).then_some("not-wanted");
        assert_eq!(found.status_reason.as_deref(), reason, "the reason stays");
    }
    let [back] = &claim(&*store, DRAW, 10).await[..] else { panic!("one was given back") };
    assert!(back.cancel_requested_at.is_some() && back.status_reason.is_some(), "who takes it is told");
}

/// What failed, took too long or was called off can be tried again by hand.
pub async fn a_task_that_failed_is_tried_again_by_hand(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let fails = running(&*store, with_key(drawing(), "duck")).await;
    let called_off = running(&*store, drawing()).await;
    cancel(&*store, called_off.task.task_id).await;
    let canceled = TaskEnding { claim: called_off.claim(), end: TaskEnd::Canceled };
    let slow = running(&*store, drawing()).await;
    let timed_out = TaskEnd::TimedOut { error_message: "too long".to_owned(), retry_after: None };
    let timed_out = TaskEnding { claim: slow.claim(), end: timed_out };
    let retry = async |task_id| store.retry_task(task_id).await.expect("retry");
    assert_eq!(retry(fails.task.task_id).await, TaskRetry::Not(TaskState::Running));
    end(&*store, &[failed(fails.claim(), None), canceled, timed_out]).await;
    let twin = with_key(drawing(), "duck");
    start(&*store, std::slice::from_ref(&twin)).await;
    assert_eq!(retry(fails.task.task_id).await, TaskRetry::KeyTaken);
    assert_eq!(status(&*store, fails.task.task_id).await, TaskState::Failed);
    let twin = claim(&*store, DRAW, 1).await.pop().expect("it can be taken");
    end(&*store, &[done(twin.claim())]).await;
    assert_eq!(retry(twin.task.task_id).await, TaskRetry::Not(TaskState::Succeeded));
    for task in [&fails, &called_off, &slow] {
        assert_eq!(retry(task.task.task_id).await, TaskRetry::Queued);
        assert_eq!(retry(task.task.task_id).await, TaskRetry::Not(TaskState::Queued));
    }
    let again = claim(&*store, DRAW, 10).await;
    assert_eq!(ids(&again), ids(&[fails, called_off, slow]));
    for task in again {
        assert_eq!((task.epoch, task.retry_count, task.finished_at), (2, 1, None));
        assert_eq!((task.cancel_requested_at, task.status_reason), (None, None), "nobody calls it off now");
    }
    assert_eq!(retry(TaskId(Uuid::now_v7())).await, TaskRetry::Unknown);
}

/// Pages by status, type and subject, the last first, each task once.
pub async fn tasks_are_listed_by_what_they_are(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let subject = new_order();
    let drawings: Vec<_> = (0..5).map(|_| drawing()).collect();
    let for_order = NewTask { subject: Some(subject.clone()), ..of_type(WRITE) };
    start(&*store, &drawings).await;
    start(&*store, std::slice::from_ref(&for_order)).await;
    let another = NewTask { subject: Some(new_order()), ..of_type("Nobody.Knows") };
    start(&*store, std::slice::from_ref(&another)).await;
    let taken = claim(&*store, DRAW, 3).await;
    end(&*store, &taken.iter().map(|task| done(task.claim())).collect::<Vec<_>>()).await;
    let all = |filter: TaskFilter, limit: u32| {
        let store = Arc::clone(&store);
        async move {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = store.list_tasks(&filter, after.as_ref(), limit).await.expect("list");
                assert!(page.iter().all(|task| task.task.payload == payload("null")), "without payloads");
                let Some(last) = page.last() else { return found };
                after = Some(last.place());
                found.extend(ids(&page));
                assert!(found.len() < 10, "each once: {found:?}");
            }
        }
    };
    let reversed = |tasks: &[NewTask]| tasks.iter().rev().map(|task| task.task_id).collect::<Vec<_>>();
    let everything: Vec<_> = drawings.iter().chain([&for_order, &another]).cloned().collect();
    let of_type = |name: &str| Some(TaskTypeName::new(name).expect("a valid type"));
    for limit in [1, 2, 10] {
        assert_eq!(all(TaskFilter::default(), limit).await, reversed(&everything));
        let drawn = TaskFilter { task_type: of_type(DRAW), ..TaskFilter::default() };
        assert_eq!(all(drawn, limit).await, reversed(&drawings));
        let ended = TaskFilter { status: Some(TaskState::Succeeded), ..TaskFilter::default() };
        let ended: BTreeSet<_> = all(ended, limit).await.into_iter().collect();
        assert_eq!(ended, ids(&taken).into_iter().collect());
        let queued = TaskFilter { status: Some(TaskState::Queued), task_type: of_type(DRAW), subject: None };
        assert_eq!(all(queued, limit).await.len(), 2);
        let of_order = TaskFilter { subject: Some(subject.clone()), ..TaskFilter::default() };
        assert_eq!(all(of_order, limit).await, [for_order.task_id]);
    }
}

/// What is to be done is counted.
pub async fn tasks_to_be_done_are_counted(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let waits = NewTask { not_before: Some(moment(1)), ..drawing() };
    start(&*store, &[drawing(), drawing(), waits, of_type(WRITE), drawing(), drawing()]).await;
    let taken = claim(&*store, DRAW, 2).await;
    end(&*store, &[failed(taken[0].claim(), None)]).await;
    let backlog = store.task_backlog(&[WRITE, DRAW, "Nobody.Knows"]).await.expect("count");
    assert_eq!(backlog, TaskBacklog { pending: 1, running: 1, failed: 1, queued: vec![1, 2, 0] });
    assert!(store.task_backlog(&[]).await.expect("count").queued.is_empty());
}

/// Tasks that ended long ago go, by how they ended; what is open, or has just ended, stays.
pub async fn tasks_that_ended_long_ago_are_cleaned_up(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let (wins, loses) = (running(&*store, drawing()).await, running(&*store, drawing()).await);
    let open = running(&*store, drawing()).await;
    end(&*store, &[failed(loses.claim(), None)]).await;
    end(&*store, &[done(wins.claim())]).await;
    let now = store.now().await.expect("the database's time");
    let (past, future) = (now - TimeDelta::hours(1), now + TimeDelta::hours(1));
    let clean = async |status, before| store.clean_tasks(&lease, status, before, 10).await.expect("clean");
    assert_eq!(clean(TaskState::Succeeded, past).await, 0);
    let (stale, _) = stale_and_fresh(&*store).await;
    let refused = store.clean_tasks(&stale, TaskState::Succeeded, future, 10).await;
    assert_refused!(refused, StoreError::Fenced { .. }, "cleaning under a stale lease");
    assert_eq!(clean(TaskState::Succeeded, future).await, 1);
    assert_eq!(store.task(wins.task.task_id).await.expect("read"), None);
    assert_eq!(status(&*store, loses.task.task_id).await, TaskState::Failed, "kept apart");
    assert_eq!(clean(TaskState::Running, future).await, 0, "that is no end");
    assert_eq!(clean(TaskState::Failed, future).await, 1);
    assert_eq!(status(&*store, open.task.task_id).await, TaskState::Running);
}

/// Stopped before any statement, who goes on finds each task in a state from which it ends, and ends it once.
pub async fn a_worker_that_ends_anywhere_leaves_no_task_stuck(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    for stop_at in 0..200 {
        let probe = Arc::new(StopProbe::new(stop_at));
        let stopped = fixture.connect(Arc::clone(&probe) as Arc<dyn Probe>).await;
        let key = format!("key-{stop_at}");
        let running = tokio::spawn({
            let key = key.clone();
            async move { work(&*stopped, &key).await }
        });
        let is_through = in_time("the work", running).await.is_ok();
        in_time("the rest of it", work(&*store, &key)).await;
        let ended = TaskFilter { status: Some(TaskState::Succeeded), ..TaskFilter::default() };
        let ended = store.list_tasks(&ended, None, 1000).await.expect("list");
        let of_key =
            ended.iter().filter(|task| task.task.unique_key.as_ref().is_some_and(|of| of.as_str() == key));
        // A second one was begun only if the first had ended.
        let count = of_key.count();
        assert!((1..=2).contains(&count), "{count} of them ended, stopped before {stop_at}");
        let open = store.task_backlog(&[DRAW]).await.expect("count");
        assert_eq!((open.pending, open.running, open.failed, open.queued), (0, 0, 0, vec![0]));
        if is_through {
            return;
        }
    }
    panic!("the work never came to its end");
}

/// What a worker does: starts one of a key, takes what it can, fails it once, and ends what others have left.
async fn work(store: &dyn InspectedStore, key: &str) {
    let heartbeat = Duration::from_millis(1);
    start(store, &[NewTask { heartbeat, ..with_key(drawing(), key) }]).await;
    loop {
        store.promote_tasks(10).await.expect("promote");
        let mut taken = claim(store, DRAW, 10).await;
        taken.extend(store.take_over_tasks(&[DRAW], WORKER, &[], 10).await.expect("take over"));
        let endings = taken.iter().map(|task| match task.retry_count {
            0 => failed(task.claim(), Some(Duration::ZERO)),
            _ => done(task.claim()),
        });
        let endings: Vec<_> = endings.collect();
        end(store, &endings).await;
        let open = store.task_backlog(&[DRAW]).await.expect("count");
        if open.pending + open.running + open.queued.iter().sum::<u64>() == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
}
