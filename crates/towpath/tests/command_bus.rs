//! The command bus on each database: P1 and P6 to the letter (requirements G2 to G6).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::time::Duration;

use support::{Fresh, Order, OrderCommand, eventually};
use towpath::ids::{AggregateKey, CommandId, CorrelationId, EventId, InstanceId, LeaseName};
use towpath::lifecycle::CommandStatus;
use towpath::name::EventName;
use towpath::ports::store::{
    Append, CommandRecord, Expected, Inspection as _, NewEvent, Routing, Snapshot, StateChange,
};
use towpath::{ChangeContext, Coded as _, Payload, SendError, Towpath};

on_every_database!(
    a_command_becomes_facts_state_history_and_a_record,
    the_same_command_id_gives_the_same_answer_and_no_second_effect,
    the_same_id_with_another_command_is_refused,
    concurrent_calls_with_one_id_have_one_effect,
    a_refused_command_changes_nothing_and_is_recorded_failed,
    a_failed_command_may_be_sent_again,
    an_illegal_transition_is_refused_with_what_would_be_possible,
    an_invalid_payload_and_an_unknown_command_are_told_apart,
    a_panic_while_deciding_fails_that_command_only,
    a_panic_while_folding_fails_that_command_only,
    conflicts_are_retried_inside,
    lost_connections_are_replaced_inside,
    more_callers_than_connections_all_get_through,
    one_connection_is_enough_for_any_command,
    a_command_that_decides_nothing_is_completed_without_events,
    an_expected_version_is_checked,
    a_command_for_later_is_still_processing_until_it_is_run,
    transient_failures_are_retried_as_often_as_the_policy_says,
    final_refusals_are_never_retried,
    a_crashed_processing_command_is_recovered_by_epoch,
    a_stalled_instance_cannot_finish_what_was_taken_over,
    correlation_and_causation_are_carried_without_asking,
    a_row_without_a_current_snapshot_is_folded_from_its_events,
    a_failed_command_sent_again_for_later_is_run,
    a_refusal_that_quotes_input_is_recorded,
    what_expects_a_version_is_never_retried_behind_its_senders_back,
    an_instance_that_does_not_know_a_command_leaves_it_alone,
    an_instance_whose_claim_was_ended_by_another_does_not_run_it_again,
);

fn place(sku: &str) -> OrderCommand {
    OrderCommand::Place { sku: sku.to_owned() }
}

fn key(id: &str) -> AggregateKey {
    AggregateKey::new("order", id).unwrap()
}

async fn record(app: &Towpath, command_id: &str) -> Option<CommandRecord> {
    app.command(&CommandId::new(command_id).unwrap()).await.unwrap()
}

async fn ended(app: &Towpath, command_id: &str, status: CommandStatus) -> CommandRecord {
    eventually(&format!("{command_id} {status}"), || async {
        record(app, command_id)
            .await
            .filter(|record| record.status == status && record.next_retry_at.is_none())
    })
    .await
}

async fn a_command_becomes_facts_state_history_and_a_record(fresh: &Fresh) {
    let app = fresh.app().await;
    let receipt =
        app.send::<Order>("o-1", place("book")).once("c-1").by("ada").by_request("r-1").await.unwrap();
    assert_eq!((receipt.aggregate_version, receipt.status), (1, CommandStatus::Completed));
    assert_eq!(receipt.events[0].payload.as_text(), r#"{"sku":"book"}"#);
    assert_eq!(receipt.events[0].causation_id.as_ref().unwrap().as_str(), "c-1");
    assert!(receipt.correlation_id.as_str().starts_with("flow-"));

    let view = app.load::<Order>("o-1").await.unwrap().unwrap();
    assert_eq!(
        (view.version, view.state.as_deref(), view.value.sku.as_deref()),
        (1, Some("placed"), Some("book"))
    );
    let history = app.history_of(&key("o-1"), 0, 10).await.unwrap();
    assert_eq!(history.len(), 1);
    assert_eq!((history[0].from_state.as_deref(), history[0].to_state.as_str()), (None, "placed"));
    assert_eq!(history[0].actor_id.as_ref().unwrap().as_str(), "ada");
    assert_eq!(history[0].request_id.as_ref().unwrap().as_str(), "r-1");
    let stored = app.events_of(&key("o-1"), 0, 10).await.unwrap();
    assert_eq!(
        stored.iter().map(|event| &event.envelope).collect::<Vec<_>>(),
        receipt.events.iter().collect::<Vec<_>>()
    );
    let outbox = app.store().outbox_of(receipt.events[0].event_id).await.unwrap();
    assert_eq!(outbox.len(), 1, "one row for the one channel that routes it");
    let record = record(&app, "c-1").await.unwrap();
    assert_eq!((record.status, record.result.unwrap().event_count), (CommandStatus::Completed, 1));
    app.stop().await;
}

async fn the_same_command_id_gives_the_same_answer_and_no_second_effect(fresh: &Fresh) {
    let app = fresh.app().await;
    let first = app.send::<Order>("o-1", OrderCommand::Note).once("c-1").await;
    // A note needs a placed order: the machine refuses, and a refusal leaves nothing behind.
    assert_eq!(first.unwrap_err().code(), "illegal-transition");
    app.send::<Order>("o-1", place("book")).await.unwrap();
    let first = app.send::<Order>("o-1", OrderCommand::Note).once("c-2").await.unwrap();
    app.send::<Order>("o-1", OrderCommand::Note).await.unwrap();
    let again = app.send::<Order>("o-1", OrderCommand::Note).once("c-2").await.unwrap();
    assert_eq!((again.events, again.aggregate_version), (first.events, 2));
    assert_eq!(again.correlation_id, first.correlation_id);
    assert!(again.replayed && !first.replayed);
    assert_eq!(app.load::<Order>("o-1").await.unwrap().unwrap().version, 3);
    app.stop().await;
}

async fn the_same_id_with_another_command_is_refused(fresh: &Fresh) {
    let app = fresh.app().await;
    app.send::<Order>("o-1", place("book")).once("c-1").await.unwrap();
    for (id, command) in [("o-1", place("pen")), ("o-2", place("book")), ("o-1", OrderCommand::Ship)] {
        let error = app.send::<Order>(id, command).once("c-1").await.unwrap_err();
        assert_eq!(error.code(), "command-id-reused");
    }
    assert!(app.load::<Order>("o-2").await.unwrap().is_none());
    app.stop().await;
}

async fn concurrent_calls_with_one_id_have_one_effect(fresh: &Fresh) {
    let app = fresh.app().await;
    app.send::<Order>("o-1", place("book")).await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let app = app.clone();
        calls.spawn(async move { app.send::<Order>("o-1", OrderCommand::Note).once("c-1").await.unwrap() });
    }
    let receipts = calls.join_all().await;
    assert!(receipts.iter().all(|receipt| receipt.events == receipts[0].events));
    assert_eq!(receipts.iter().filter(|receipt| !receipt.replayed).count(), 1);
    assert_eq!(app.load::<Order>("o-1").await.unwrap().unwrap().value.notes, 1);
    app.stop().await;
}

async fn a_refused_command_changes_nothing_and_is_recorded_failed(fresh: &Fresh) {
    let app = fresh.app().await;
    let error = app.send::<Order>("o-1", OrderCommand::Ship).once("c-1").await.unwrap_err();
    assert!(matches!(&error, SendError::Refused { code: "nothing-to-ship", .. }), "{error:?}");
    assert!(app.load::<Order>("o-1").await.unwrap().is_none());
    let record = record(&app, "c-1").await.unwrap();
    assert_eq!(
        (record.status, record.status_reason.as_deref()),
        (CommandStatus::Failed, Some("nothing-to-ship"))
    );
    assert_eq!(record.status_message.as_deref(), Some("there is nothing to ship"));
    assert_eq!(record.next_retry_at, None);
    app.stop().await;
}

async fn a_failed_command_may_be_sent_again(fresh: &Fresh) {
    let app = fresh.app().await;
    app.send::<Order>("o-1", OrderCommand::Ship).once("c-1").await.unwrap_err();
    app.send::<Order>("o-1", place("book")).await.unwrap();
    let receipt = app.send::<Order>("o-1", OrderCommand::Ship).once("c-1").await.unwrap();
    assert_eq!(receipt.aggregate_version, 2);
    assert_eq!(record(&app, "c-1").await.unwrap().status, CommandStatus::Completed);
    let again = app.send::<Order>("o-1", OrderCommand::Ship).once("c-1").await.unwrap();
    assert_eq!(again.events, receipt.events);
    app.stop().await;
}

async fn an_illegal_transition_is_refused_with_what_would_be_possible(fresh: &Fresh) {
    let app = fresh.app().await;
    let error = app.send::<Order>("o-1", OrderCommand::Jump).await.unwrap_err();
    let SendError::IllegalTransition(illegal) = error else { panic!("{error:?}") };
    assert_eq!(illegal.possible, ["order.placed"]);
    assert!(app.load::<Order>("o-1").await.unwrap().is_none());
    app.stop().await;
}

async fn an_invalid_payload_and_an_unknown_command_are_told_apart(fresh: &Fresh) {
    let app = fresh.app().await;
    let code = |result: Result<towpath::Receipt, SendError>| result.unwrap_err().code();
    assert_eq!(code(app.send_named("order.place", "o-1", r#"{"sku":7}"#).await), "invalid-payload");
    assert_eq!(code(app.send_named("order.place", "o-1", "{").await), "invalid-payload");
    assert_eq!(code(app.send_named("order.vanish", "o-1", "{}").await), "unknown-command");
    assert_eq!(code(app.send_named("order.place", "", r#"{"sku":"book"}"#).await), "invalid-id");
    let receipt = app.send_named("order.place", "o-1", r#"{"sku":"book"}"#).await.unwrap();
    assert_eq!(receipt.aggregate_version, 1);
    app.stop().await;
}

async fn a_panic_while_deciding_fails_that_command_only(fresh: &Fresh) {
    let app = fresh.app().await;
    let error = app.send::<Order>("o-1", OrderCommand::Break).once("c-1").await.unwrap_err();
    assert_eq!(error.code(), "decision-panicked");
    // The same through the worker, which must survive it.
    app.send::<Order>("o-1", OrderCommand::Break).once("c-2").later().await.unwrap();
    ended(&app, "c-2", CommandStatus::Failed).await;
    app.send::<Order>("o-1", place("book")).once("c-3").later().await.unwrap();
    ended(&app, "c-3", CommandStatus::Completed).await;
    app.stop().await;
}

async fn a_panic_while_folding_fails_that_command_only(fresh: &Fresh) {
    let app = fresh.app().await;
    append_in_an_older_form(
        &app,
        vec![event("order.placed", r#"{"sku":"book"}"#), event("order.cursed", "null")],
    )
    .await;
    let error = app.send::<Order>("o-1", OrderCommand::Note).once("c-1").await.unwrap_err();
    assert_eq!(error.code(), "decision-panicked");
    assert_eq!(record(&app, "c-1").await.unwrap().status, CommandStatus::Failed);
    // The same through the worker, which must survive it.
    app.send::<Order>("o-1", OrderCommand::Note).once("c-2").later().await.unwrap();
    ended(&app, "c-2", CommandStatus::Failed).await;
    app.send::<Order>("o-2", place("book")).once("c-3").later().await.unwrap();
    ended(&app, "c-3", CommandStatus::Completed).await;
    app.stop().await;
}

async fn lost_connections_are_replaced_inside(fresh: &Fresh) {
    let options = towpath::StoreOptions { max_connections: 2, ..towpath::StoreOptions::default() };
    let app = fresh.builder().store_options(options).without_workers().start().await.unwrap();
    app.send::<Order>("o-1", place("book")).await.unwrap();
    for _ in 0..3 {
        cut_connections(&app, fresh.url(), 2).await;
        app.send::<Order>("o-1", OrderCommand::Note).await.unwrap();
    }
    assert_eq!(app.load::<Order>("o-1").await.unwrap().unwrap().version, 4);
    app.stop().await;
}

/// Ends the sessions behind the app's connections, as a restarted server does. SQLite has none.
async fn cut_connections(app: &Towpath, url: &str, count: usize) {
    use towpath::sqlx::{self, Connection};
    // The connections lie idle when they are cut: a pool notices one that is cut while it is used.
    if let Some(pool) = app.store().postgres_pool() {
        let (mut open, mut sessions) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let mut connection = pool.acquire().await.unwrap();
            let own = sqlx::query_scalar::<_, i32>("SELECT pg_backend_pid()");
            sessions.push(own.fetch_one(&mut *connection).await.unwrap());
            open.push(connection);
        }
        drop(open);
        eventually("idle connections", || async { (pool.num_idle() == count).then_some(()) }).await;
        let mut operator = sqlx::PgConnection::connect(url).await.unwrap();
        for session in sessions {
            let end = sqlx::query("SELECT pg_terminate_backend($1, 5000)").bind(session);
            end.execute(&mut operator).await.unwrap();
        }
    }
    if let Some(pool) = app.store().mysql_pool() {
        let (mut open, mut sessions) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let mut connection = pool.acquire().await.unwrap();
            let own = sqlx::query_scalar::<_, u64>("SELECT CAST(CONNECTION_ID() AS UNSIGNED)");
            sessions.push(own.fetch_one(&mut *connection).await.unwrap());
            open.push(connection);
        }
        drop(open);
        eventually("idle connections", || async { (pool.num_idle() == count).then_some(()) }).await;
        let mut operator = sqlx::MySqlConnection::connect(url).await.unwrap();
        for session in sessions {
            let end = sqlx::raw_sql(sqlx::AssertSqlSafe(format!("KILL {session}")));
            end.execute(&mut operator).await.unwrap();
        }
    }
}

async fn conflicts_are_retried_inside(fresh: &Fresh) {
    let app = fresh.app().await;
    app.send::<Order>("o-1", place("book")).await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let app = app.clone();
        calls.spawn(async move {
            for _ in 0..10 {
                app.send::<Order>("o-1", OrderCommand::Note).await.unwrap();
            }
        });
    }
    calls.join_all().await;
    let view = app.load::<Order>("o-1").await.unwrap().unwrap();
    assert_eq!((view.version, view.value.notes), (81, 80));
    app.stop().await;
}

async fn more_callers_than_connections_all_get_through(fresh: &Fresh) {
    let options = towpath::StoreOptions { max_connections: 2, ..towpath::StoreOptions::default() };
    let app = fresh.builder().store_options(options).start().await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..32 {
        let app = app.clone();
        calls.spawn(async move { app.send::<Order>(format!("o-{number}"), place("book")).await.unwrap() });
    }
    assert_eq!(calls.join_all().await.len(), 32);
    app.stop().await;
}

/// A command that held its connection while it asks the store for more would wait for itself.
async fn one_connection_is_enough_for_any_command(fresh: &Fresh) {
    let options = towpath::StoreOptions {
        max_connections: 1,
        acquire_timeout: Duration::from_secs(2),
        ..towpath::StoreOptions::default()
    };
    let app = fresh.builder().store_options(options).without_workers().start().await.unwrap();
    append_in_an_older_form(&app, vec![event("order.placed", r#"{"sku":"book"}"#)]).await;
    let first = app.send::<Order>("o-1", OrderCommand::Note).once("folded").await.unwrap();
    assert_eq!(first.aggregate_version, 2);
    let again = app.send::<Order>("o-1", OrderCommand::Note).once("folded").await.unwrap();
    assert!(again.replayed);
    assert_eq!(again.events, first.events);

    let refused = app.send::<Order>("o-2", OrderCommand::Ship).once("refused").await.unwrap_err();
    assert_eq!(refused.code(), "nothing-to-ship");
    app.send::<Order>("o-2", place("pen")).await.unwrap();
    let shipped = app.send::<Order>("o-2", OrderCommand::Ship).once("refused").await.unwrap();
    assert_eq!(shipped.aggregate_version, 2);
    app.stop().await;
}

async fn a_command_that_decides_nothing_is_completed_without_events(fresh: &Fresh) {
    let app = fresh.app().await;
    let receipt = app.send::<Order>("o-1", OrderCommand::Glance).once("c-1").await.unwrap();
    assert_eq!((receipt.aggregate_version, receipt.events.len()), (0, 0));
    let again = app.send::<Order>("o-1", OrderCommand::Glance).once("c-1").await.unwrap();
    assert!(again.replayed && again.events.is_empty());
    app.stop().await;
}

async fn an_expected_version_is_checked(fresh: &Fresh) {
    let app = fresh.app().await;
    app.send::<Order>("o-1", place("book")).expecting(0).await.unwrap();
    let error = app.send::<Order>("o-1", OrderCommand::Note).expecting(0).await.unwrap_err();
    assert!(matches!(error, SendError::VersionMismatch { expected: 0, actual: 1, .. }), "{error:?}");
    app.send::<Order>("o-1", OrderCommand::Note).expecting(1).await.unwrap();
    let error = app.send::<Order>("o-1", OrderCommand::Note).expecting(2).later().await.unwrap_err();
    assert_eq!(error.code(), "expecting-later");
    app.stop().await;
}

async fn a_command_for_later_is_still_processing_until_it_is_run(fresh: &Fresh) {
    let app = resting(fresh).await;
    let accepted = app.send::<Order>("o-1", place("book")).once("c-1").later().await.unwrap();
    assert_eq!(accepted.status, CommandStatus::Pending);
    let error = app.send::<Order>("o-1", place("book")).once("c-1").await.unwrap_err();
    assert_eq!(error.code(), "still-processing");
    assert!(app.load::<Order>("o-1").await.unwrap().is_none());
    let worker = fresh.app().await;
    ended(&app, "c-1", CommandStatus::Completed).await;
    assert!(app.send::<Order>("o-1", place("book")).once("c-1").await.unwrap().replayed);
    let again = app.send::<Order>("o-1", place("book")).once("c-1").later().await.unwrap();
    assert_eq!(again.status, CommandStatus::Completed);
    let error = app.send::<Order>("o-1", place("pen")).once("c-1").later().await.unwrap_err();
    assert_eq!(error.code(), "command-id-reused");
    worker.stop().await;
    app.stop().await;
}

async fn transient_failures_are_retried_as_often_as_the_policy_says(fresh: &Fresh) {
    let app = fresh.app().await;
    let error = app.send::<Order>("o-1", OrderCommand::Dawdle).once("c-1").await.unwrap_err();
    assert_eq!(error.code(), "not-now");
    let record = ended(&app, "c-1", CommandStatus::Failed).await;
    assert_eq!(record.retry_count, 3, "three retries, then no more");
    app.stop().await;
}

async fn final_refusals_are_never_retried(fresh: &Fresh) {
    let app = fresh.app().await;
    app.send::<Order>("o-1", OrderCommand::Ship).once("unknown-aggregate").later().await.unwrap();
    app.send_named("order.place", "o-2", r#"{"sku":7}"#).once("invalid-payload").later().await.unwrap();
    app.send::<Order>("o-3", place("book")).await.unwrap();
    app.send::<Order>("o-3", place("book")).once("failed-validation").later().await.unwrap();
    for id in ["unknown-aggregate", "invalid-payload", "failed-validation"] {
        assert_eq!(ended(&app, id, CommandStatus::Failed).await.retry_count, 0, "{id}");
    }
    app.stop().await;
}

/// Takes a command as an instance would, and then does nothing more: the picture that a crash leaves.
async fn claimed_by_the_dead(app: &Towpath, instance: &str, command_id: &str) {
    let lease = LeaseName::new(format!("instance/{instance}")).unwrap();
    let holder = InstanceId::new(instance).unwrap();
    let grant = app.store().acquire_lease(&lease, &holder, Duration::from_secs(3600)).await.unwrap().unwrap();
    app.send::<Order>("o-1", place("book")).once(command_id).later().await.unwrap();
    let taken = app
        .store()
        .claim_commands(&grant, &["order.place"], chrono::Utc::now() + chrono::Duration::seconds(5), 10)
        .await
        .unwrap();
    assert_eq!(taken.len(), 1);
}

async fn a_crashed_processing_command_is_recovered_by_epoch(fresh: &Fresh) {
    let app = resting(fresh).await;
    claimed_by_the_dead(&app, "worker-1", "c-1").await;
    let error = app.send::<Order>("o-1", place("book")).once("c-1").await.unwrap_err();
    assert_eq!(error.code(), "still-processing");
    // The dead instance's lease lives for another hour. Restarted under its own name, it takes a higher epoch, and
    // that alone tells that its earlier life is over: nobody waits for the hour to pass.
    let restarted = fresh.builder().instance("worker-1").start().await.unwrap();
    let record = ended(&restarted, "c-1", CommandStatus::Completed).await;
    assert_eq!(record.result.unwrap().event_count, 1);
    assert_eq!(restarted.load::<Order>("o-1").await.unwrap().unwrap().version, 1);
    restarted.stop().await;
    app.stop().await;
}

async fn a_stalled_instance_cannot_finish_what_was_taken_over(fresh: &Fresh) {
    let app = resting(fresh).await;
    let lease = LeaseName::new("instance/stalled").unwrap();
    let holder = InstanceId::new("stalled").unwrap();
    // A lease of no length: it has run out before its holder does anything with it.
    let grant = app.store().acquire_lease(&lease, &holder, Duration::ZERO).await.unwrap().unwrap();
    app.send::<Order>("o-1", place("book")).once("c-1").later().await.unwrap();
    let later = chrono::Utc::now() + chrono::Duration::seconds(5);
    let taken = app.store().claim_commands(&grant, &["order.place"], later, 10).await.unwrap();
    let restarted = fresh.builder().start().await.unwrap();
    ended(&restarted, "c-1", CommandStatus::Completed).await;
    // The stalled one wakes up and writes what it had decided.
    let command = taken[0].command.clone();
    let failed = towpath::ports::store::FailedCommand {
        command,
        found: towpath::ports::store::Found::Claimed(grant),
        started_at: later,
        failed_at: later,
        reason: "woke-up".to_owned(),
        message: "too late".to_owned(),
        retry_count: 0,
        next_retry_at: None,
    };
    assert!(app.store().fail_command(&failed).await.is_err());
    assert_eq!(record(&app, "c-1").await.unwrap().status, CommandStatus::Completed);
    restarted.stop().await;
    app.stop().await;
}

/// An app that runs nothing in the background, so that tests can look at commands before they are run.
async fn resting(fresh: &Fresh) -> Towpath {
    fresh.builder().without_workers().start().await.unwrap()
}

async fn correlation_and_causation_are_carried_without_asking(fresh: &Fresh) {
    let app = fresh.app().await;
    let placed = app.send::<Order>("o-1", place("book")).once("c-1").await.unwrap();
    let shipped =
        app.send::<Order>("o-1", OrderCommand::Ship).once("c-2").because_of(&placed.events[0]).await.unwrap();
    assert_eq!(shipped.correlation_id, placed.correlation_id);
    let (flow, report) =
        app.flow(&CorrelationId::new(placed.correlation_id.as_str()).unwrap(), &[]).await.unwrap();
    assert_eq!((flow.commands.len(), flow.events.len()), (2, 2));
    assert!(report.whole, "{report:?}");
    let cause = flow.commands[1].command.context.causation_id.as_ref().unwrap();
    assert_eq!(cause.as_str(), placed.events[0].event_id.to_string());
    // A command that names a cause nobody knows breaks the chain, and that is seen.
    let lost = app.send::<Order>("o-2", place("pen")).in_flow("flow-lost").caused_by("nobody").await.unwrap();
    let (_, report) = app.flow(&lost.correlation_id, &[]).await.unwrap();
    assert!(!report.whole && report.broken.len() == 1, "{report:?}");
    app.stop().await;
}

async fn a_row_without_a_current_snapshot_is_folded_from_its_events(fresh: &Fresh) {
    let app = fresh.app().await;
    let mut events = vec![event("order.placed", r#"{"sku":"book"}"#)];
    events.extend((0..620).map(|_| event("order.noted", "{}")));
    append_in_an_older_form(&app, events).await;

    assert_eq!(app.load::<Order>("o-1").await.unwrap().unwrap().value.notes, 620);
    app.send::<Order>("o-1", OrderCommand::Note).await.unwrap();
    let row = app.aggregate(&key("o-1")).await.unwrap().unwrap();
    assert_eq!(row.snapshot.unwrap().data.as_text(), r#"{"sku":"book","notes":621}"#);
    app.stop().await;
}

fn event(event_type: &str, payload: &str) -> NewEvent {
    NewEvent {
        event_id: EventId(uuid::Uuid::now_v7()),
        event_type: EventName::from_stored(event_type),
        schema_version: 1,
        payload: Payload::from_text(payload).unwrap(),
        channels: Routing::Nowhere,
    }
}

/// Begins the order o-1 with these events, as an older build would have.
async fn append_in_an_older_form(app: &Towpath, events: Vec<NewEvent>) {
    let change = StateChange { from: None, to: "placed".into(), reason: None, message: None, event_index: 0 };
    let append = Append {
        aggregate: key("o-1"),
        expected: Expected::New,
        events,
        // A form of an older build, which this one must not read as its own.
        snapshot: Some(Snapshot { data: Payload::from_text(r#"{"old":true}"#).unwrap(), version: 99 }),
        state_changes: vec![change],
        deadline: Default::default(),
        context: ChangeContext::new(chrono::Utc::now(), CorrelationId::new("flow-x").unwrap()),
    };
    let mut transaction = app.store().begin().await.unwrap();
    transaction.append(&append).await.unwrap();
    transaction.commit().await.unwrap();
}

async fn a_failed_command_sent_again_for_later_is_run(fresh: &Fresh) {
    let app = fresh.app().await;
    app.send::<Order>("o-1", OrderCommand::Ship).once("c-1").await.unwrap_err();
    app.send::<Order>("o-1", place("book")).await.unwrap();
    let accepted = app.send::<Order>("o-1", OrderCommand::Ship).once("c-1").later().await.unwrap();
    assert_eq!(accepted.status, CommandStatus::Pending);
    ended(&app, "c-1", CommandStatus::Completed).await;
    app.stop().await;
}

async fn a_refusal_that_quotes_input_is_recorded(fresh: &Fresh) {
    let app = fresh.app().await;
    let hostile = format!(r#"{{"sku":["\u0000{}"]}}"#, "x".repeat(100_000));
    let error = app.send_named("order.place", "o-1", hostile).once("c-1").await.unwrap_err();
    assert_eq!(error.code(), "invalid-payload");
    assert_eq!(record(&app, "c-1").await.unwrap().status, CommandStatus::Failed);
    app.stop().await;
}

async fn what_expects_a_version_is_never_retried_behind_its_senders_back(fresh: &Fresh) {
    let app = resting(fresh).await;
    let error = app.send::<Order>("o-1", OrderCommand::Dawdle).expecting(0).once("c-1").await.unwrap_err();
    assert_eq!(error.code(), "not-now");
    let record = record(&app, "c-1").await.unwrap();
    assert_eq!((record.status, record.next_retry_at), (CommandStatus::Failed, None));
    app.stop().await;
}

async fn an_instance_that_does_not_know_a_command_leaves_it_alone(fresh: &Fresh) {
    let app = resting(fresh).await;
    // A server without this application's aggregates, on the same database.
    let stranger =
        Towpath::builder().store(fresh.url()).scan(Duration::from_millis(5)).start().await.unwrap();
    app.send::<Order>("o-1", place("book")).once("c-1").later().await.unwrap();
    // It has looked at least once when the position of this event is given: both rest equally long.
    app.send::<Order>("o-2", place("pen")).await.unwrap();
    eventually("the stranger works", || async { (app.store().head().await.unwrap() == 1).then_some(()) })
        .await;
    assert_eq!(record(&app, "c-1").await.unwrap().status, CommandStatus::Pending);
    let worker = fresh.app().await;
    ended(&app, "c-1", CommandStatus::Completed).await;
    for app in [worker, stranger, app] {
        app.stop().await;
    }
}

async fn an_instance_whose_claim_was_ended_by_another_does_not_run_it_again(fresh: &Fresh) {
    let app = resting(fresh).await;
    claimed_by_the_dead(&app, "worker-1", "c-1").await;
    // Another life of the same instance ends it; the stale one would find it FAILED and must not run it.
    app.send::<Order>("o-1", place("book")).await.unwrap();
    let restarted = fresh.builder().instance("worker-1").start().await.unwrap();
    let record = ended(&restarted, "c-1", CommandStatus::Failed).await;
    assert_eq!(record.status_reason.as_deref(), Some("already-placed"));
    assert_eq!(record.retry_count, 0, "a recovery is not a retry of its own failure");
    restarted.stop().await;
    app.stop().await;
}
