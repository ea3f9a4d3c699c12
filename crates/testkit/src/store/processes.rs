//! Processes: locked while they take a fact, and the facts that each took are kept for a while.

use std::sync::Arc;

use towpath_core::ids::{AggregateKey, EventId, TaskId, TaskKey};
use towpath_core::name::{CommandName, EventName};
use towpath_core::ports::store::{
    InputOutcome, InspectedStore, NewTask, NewUndo, ProcessInput, Store, StoreError, StoreResult, Undoes,
};
use towpath_core::process::Outgoing;
use uuid::Uuid;

use super::StoreFixture;
use super::acts::{append, assert_refused, hold_new_lease, stale_and_fresh, versions_of};
use super::facts::{self, OrderFacts, moment, new_command_id, new_event_id, new_order, payload};
use super::tasks::{drawing, with_key};
use super::waiting::{all_at_once, taking_turns};

fn gift(id: &str) -> AggregateKey {
    AggregateKey::new("gift", id).expect("a valid key")
}

fn input(process: &AggregateKey, outcome: InputOutcome, seconds: u64) -> ProcessInput {
    ProcessInput {
        process: process.clone(),
        event_id: new_event_id(),
        event_type: EventName::from_stored("order.placed"),
        outcome,
        recorded_at: moment(seconds),
    }
}

async fn record(store: &dyn Store, inputs: &[ProcessInput]) {
    let mut tx = store.begin().await.expect("begin");
    for input in inputs {
        tx.record_process_input(input).await.expect("record");
    }
    tx.commit().await.expect("commit");
}

async fn inputs(
    store: &dyn Store,
    of: &AggregateKey,
    after: Option<EventId>,
    limit: u32,
) -> Vec<ProcessInput> {
    store.process_inputs(of, after, limit).await.expect("read")
}

/// Each is there with its transaction, as it was first recorded, by its id.
pub async fn the_facts_that_a_process_took_are_kept(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let outcomes =
        [InputOutcome::Started, InputOutcome::Reacted, InputOutcome::Ignored, InputOutcome::AfterEnd];
    let took = outcomes.map(|outcome| input(&gift("a"), outcome, 1));
    let others = [
        input(&gift("b"), InputOutcome::Started, 1),
        ProcessInput { process: facts::order("a"), ..input(&gift("a"), InputOutcome::Started, 1) },
    ];
    record(&*store, &took).await;
    record(&*store, &others).await;
    let mut undone = store.begin().await.expect("begin");
    undone.record_process_input(&input(&gift("a"), InputOutcome::Reacted, 2)).await.expect("record");
    undone.rollback().await.expect("roll back");
    record(&*store, &[ProcessInput { outcome: InputOutcome::AfterEnd, ..took[0].clone() }]).await;
    assert_eq!(inputs(&*store, &gift("a"), None, 10).await, took);
    assert_eq!(inputs(&*store, &gift("a"), None, 2).await, took[..2]);
    assert_eq!(inputs(&*store, &gift("a"), Some(took[1].event_id), 10).await, took[2..]);
    assert_eq!(inputs(&*store, &gift("b"), None, 10).await, others[..1]);
}

/// Who locks an aggregate second sees what the first has appended: nobody's append is a conflict.
pub async fn who_locks_an_aggregate_has_it_alone(fixture: &impl StoreFixture) {
    async fn one_more(store: Arc<dyn InspectedStore>, order: AggregateKey) -> StoreResult<()> {
        let mut tx = store.begin().await?;
        let row = tx.lock_aggregate(&order).await?.expect("it is there");
        assert_eq!(row.aggregate, order);
        tx.append(&OrderFacts::about(&order, row.version).noted("x").append()).await?;
        tx.commit().await
    }
    let (store, order) = (fixture.store().await, new_order());
    let mut tx = store.begin().await.expect("begin");
    assert_eq!(tx.lock_aggregate(&order).await.expect("look"), None);
    tx.rollback().await.expect("roll back");
    // Another one stands before it.
    for order in [&order, &facts::order("0")] {
        append(&*store, &OrderFacts::about(order, 0).placed().append()).await;
    }
    let mut writers = Vec::new();
    for _ in 0..8 {
        let (store, order) = (fixture.store().await, order.clone());
        writers.push(async move {
            taking_turns(|| one_more(Arc::clone(&store), order.clone())).await.expect("no conflict");
        });
    }
    all_at_once(writers).await;
    assert_eq!(versions_of(&*store, &order).await, (1..=9).collect::<Vec<_>>());
}

/// A task is found by its key for as long as it is open, and none of another type or key.
pub async fn an_open_task_is_found_by_its_key(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let [task, other] = ["a", "b"].map(|key| with_key(drawing(), key));
    let asked = |task: &NewTask| (task.task_type.clone(), task.unique_key.clone().expect("a key"));
    let mut tx = store.begin().await.expect("begin");
    let (of, key) = asked(&task);
    assert_eq!(tx.open_task(&of, &key).await.expect("look"), None);
    tx.start_tasks(&[task.clone(), other.clone()]).await.expect("start");
    assert_eq!(tx.open_task(&of, &key).await.expect("look"), Some(task.task_id));
    let unknown = TaskKey::new("c").expect("a valid key");
    assert_eq!(tx.open_task(&of, &unknown).await.expect("look"), None);
    tx.cancel_task(task.task_id, "not-wanted").await.expect("cancel");
    assert_eq!(tx.open_task(&of, &key).await.expect("look"), None);
    tx.commit().await.expect("commit");
}

/// A name is a process's own, and lives and dies with its transaction.
pub async fn timers_have_names_within_their_process(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let ids: Vec<Uuid> = (0..5).map(|_| Uuid::now_v7()).collect();
    let mut tx = store.begin().await.expect("begin");
    let named = [
        (gift("a"), "one"),
        (gift("a"), "two"),
        (gift("b"), "one"),
        (facts::order("a"), "one"),
        (gift("a"), "three"),
    ];
    for ((process, name), id) in named.iter().zip(&ids) {
        tx.name_timer(process, name, *id, moment(1)).await.expect("name");
    }
    tx.commit().await.expect("commit");
    let mut undone = store.begin().await.expect("begin");
    assert_eq!(undone.take_named_timers(&gift("a"), Some("one")).await.expect("take"), ids[..1]);
    undone.rollback().await.expect("roll back");
    let mut tx = store.begin().await.expect("begin");
    for taken in [&ids[..1], &[]] {
        assert_eq!(tx.take_named_timers(&gift("a"), Some("one")).await.expect("take"), taken);
    }
    let mut rest = tx.take_named_timers(&gift("a"), None).await.expect("take");
    rest.sort_unstable();
    assert_eq!(rest, [ids[1], ids[4]]);
    assert_eq!(tx.take_named_timers(&gift("b"), None).await.expect("take"), ids[2..3]);
    assert_eq!(tx.take_named_timers(&facts::order("a"), None).await.expect("take"), ids[3..4]);
    tx.commit().await.expect("commit");
}

fn undo(process: &AggregateKey, of: &str) -> NewUndo {
    let command = Outgoing {
        aggregate: facts::order(of),
        command_type: CommandName::from_stored("order.cancel"),
        payload: payload(r#"{"price":88.50,"who":"Zoë 🦆"}"#),
    };
    let undoes = Some(Undoes::Command(new_command_id()));
    NewUndo {
        process: process.clone(),
        command_id: new_command_id(),
        undoes,
        command,
        recorded_at: moment(1),
    }
}

async fn keep(store: &dyn Store, undos: &[NewUndo]) {
    let mut tx = store.begin().await.expect("begin");
    for undo in undos {
        tx.keep_undo(undo).await.expect("keep");
    }
    tx.commit().await.expect("commit");
}

/// What is to be undone comes back to the letter, the last first, and nothing that nobody has asked to be undone.
pub async fn what_is_to_be_undone_comes_back_the_last_first(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let of = |undoes, id| NewUndo { undoes, ..undo(&gift("a"), id) };
    let kept = [
        undo(&gift("a"), "1"),
        of(None, "2"),
        of(Some(Undoes::Timer(Uuid::now_v7())), "3"),
        of(Some(Undoes::Task(TaskId(Uuid::now_v7()))), "4"),
    ];
    keep(&*store, &kept).await;
    keep(&*store, &[undo(&gift("b"), "5"), undo(&facts::order("a"), "6")]).await;
    assert_eq!(store.next_undo(&gift("a"), None).await.expect("look"), None, "nobody has asked");
    let mut tx = store.begin().await.expect("begin");
    tx.begin_undoing(&gift("a"), moment(2)).await.expect("begin to undo");
    tx.commit().await.expect("commit");
    keep(&*store, &[undo(&gift("a"), "7")]).await;
    let (mut before, mut all) = (None, Vec::new());
    for _ in &kept {
        let next = store.next_undo(&gift("a"), before).await.expect("look").expect("one before it");
        before = Some(next.undo_id);
        all.insert(0, next.undo);
    }
    assert_eq!(all, kept, "one before the other");
    assert_eq!(store.next_undo(&gift("a"), before).await.expect("look"), None, "none before the first");
    for expected in kept.iter().rev() {
        let next = store.next_undo(&gift("a"), None).await.expect("look").expect("one is left");
        assert_eq!(next.undo, *expected);
        store.note_undone(next.undo_id, moment(3)).await.expect("note");
    }
    assert_eq!(store.next_undo(&gift("a"), None).await.expect("look"), None);
    for other in [gift("b"), facts::order("a")] {
        assert_eq!(store.next_undo(&other, None).await.expect("look"), None, "of another process");
    }
}

/// What was kept is forgotten by its process alone, but for what is to be undone.
pub async fn what_is_not_to_be_undone_is_forgotten(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let first = undo(&gift("a"), "1");
    keep(&*store, std::slice::from_ref(&first)).await;
    let mut tx = store.begin().await.expect("begin");
    tx.begin_undoing(&gift("a"), moment(2)).await.expect("begin to undo");
    tx.commit().await.expect("commit");
    let others = [undo(&gift("b"), "3"), undo(&facts::order("a"), "4")];
    keep(&*store, &[undo(&gift("a"), "2")]).await;
    keep(&*store, &others).await;
    let mut tx = store.begin().await.expect("begin");
    tx.forget_undos(&gift("a")).await.expect("forget");
    for process in [gift("a"), gift("b"), facts::order("a")] {
        tx.begin_undoing(&process, moment(3)).await.expect("begin to undo");
    }
    tx.commit().await.expect("commit");
    for (process, left) in [(gift("a"), &first), (gift("b"), &others[0]), (facts::order("a"), &others[1])] {
        let next = store.next_undo(&process, None).await.expect("look").expect("one is left");
        assert_eq!(next.undo, *left);
    }
}

/// What processes took long ago is forgotten, under the lease of the cleaner.
pub async fn what_is_over_of_processes_is_forgotten(fixture: &impl StoreFixture) {
    let store = fixture.store().await;
    let lease = hold_new_lease(&*store).await;
    let took = [1, 20].map(|seconds| input(&gift("a"), InputOutcome::Reacted, seconds));
    record(&*store, &took).await;
    let undone = undo(&gift("a"), "1");
    keep(&*store, &[undone.clone(), undo(&gift("a"), "2")]).await;
    let mut tx = store.begin().await.expect("begin");
    for (name, due) in [("one", 1), ("two", 20)] {
        tx.name_timer(&gift("a"), name, Uuid::now_v7(), moment(due)).await.expect("name");
    }
    tx.begin_undoing(&gift("a"), moment(1)).await.expect("begin to undo");
    tx.commit().await.expect("commit");
    let last = store.next_undo(&gift("a"), None).await.expect("look").expect("one is left");
    store.note_undone(last.undo_id, moment(1)).await.expect("note");
    let (stale, _) = stale_and_fresh(&*store).await;
    let refused = store.clean_processes(&stale, moment(10), 10).await;
    assert_refused!(refused, StoreError::Fenced { .. }, "cleaning under a stale lease");
    for deleted in [3, 0] {
        assert_eq!(store.clean_processes(&lease, moment(10), 10).await.expect("clean"), deleted);
    }
    assert_eq!(inputs(&*store, &gift("a"), None, 10).await, took[1..]);
    assert_eq!(store.next_undo(&gift("a"), None).await.expect("look").expect("one is left").undo, undone);
    let mut tx = store.begin().await.expect("begin");
    assert_eq!(tx.take_named_timers(&gift("a"), None).await.expect("take").len(), 1);
    tx.rollback().await.expect("roll back");
}
