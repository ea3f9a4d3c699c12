//! The checker: each damage is found under its code and no other, what is innocent is not told, and a repair puts things right.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is a test's verdict")]

#[macro_use]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::delivery::{Broker, Stage, effects, execute};
use support::{Fresh, Order, OrderCommand, eventually};
use towpath::checker::{Check, CheckAsked, CheckError, Plan, REPAIR_PERFORMED, RepairAsked, StepOutcome};
use towpath::consistency::FindingCode;
use towpath::ids::{AggregateKey, CommandId};
use towpath::lifecycle::CommandStatus;
use towpath::ports::probe::Probe;
use towpath::ports::store::{CheckStatus, Checking as _};
use towpath::prelude::*;
use towpath::{Builder, Channel, StoreOptions};

on_every_database!(
    what_is_as_it_should_be_is_clean_and_counted,
    a_missing_outbox_row_is_found_put_back_and_its_event_delivered_once,
    rows_that_were_cleaned_up_are_not_missed,
    a_channel_that_was_added_later_misses_nothing,
    an_orphaned_command_is_found_and_run_once,
    a_command_whose_effect_is_in_the_state_is_not_run_again,
    versions_that_end_too_early_begin_late_or_have_a_hole_are_found,
    a_cause_outside_of_its_flow_is_found,
    an_event_that_nobody_gives_a_position_is_found_and_gets_one,
    a_hole_in_the_log_is_found,
    rows_of_no_event_are_found,
    deliveries_of_no_event_are_found_where_they_must_have_one,
    a_lane_that_waits_for_nothing_is_found_and_goes_on,
    trackers_and_projections_ahead_of_the_log_are_found,
    a_command_in_the_hands_of_nobody_is_found_and_put_back,
    a_history_that_does_not_fit_is_found,
    a_state_that_is_not_what_folding_gives_is_found,
    a_check_that_was_asked_for_elsewhere_is_done_by_who_can,
    one_step_that_fails_stops_no_other,
    what_is_older_than_inboxes_remember_is_not_published_again,
    the_schedule_checks_and_repairs_what_is_safe,
);

const DAY: Duration = Duration::from_secs(86_400);

fn quick(fresh: &Fresh) -> Builder {
    fresh.builder().check_grace(Duration::from_millis(20))
}

async fn record(mut delivery: Delivery) -> Result<Next, HandlerError> {
    let id = delivery.event.event_id.to_string();
    delivery.tx.execute("INSERT INTO effects (event_id, handler) VALUES (?, ?)", &[&id, "record"]).await?;
    Ok(delivery.handled())
}

/// Makes the next statement of a name fail.
#[derive(Default)]
struct FailsOnce(AtomicBool);

impl Probe for FailsOnce {
    fn before(&self, _: &'static str) {}

    fn instead(&self, statement: &'static str, sql: &str) -> Option<String> {
        let fails = statement == "repair.outbox" && !self.0.swap(true, Ordering::SeqCst);
        fails.then(|| sql.replace("event_outbox", "no_such_table"))
    }
}

async fn place(app: &Towpath, id: &str) {
    app.send::<Order>(id, OrderCommand::Place { sku: "lamp".to_owned() }).await.expect("place");
}

async fn note(app: &Towpath, id: &str, command_id: &str) {
    app.send::<Order>(id, OrderCommand::Note).once(command_id).await.expect("note");
}

/// An order with two events whose positions are given.
async fn app_with_an_order(fresh: &Fresh) -> Towpath {
    let app = quick(fresh).start().await.expect("start");
    place(&app, "order-1").await;
    note(&app, "order-1", "note-1").await;
    positions(&app, 2).await;
    app
}

async fn positions(app: &Towpath, head: u64) {
    eventually("the positions", || async { (app.store().head().await.unwrap() >= head).then_some(()) }).await;
}

async fn check(app: &Towpath) -> Check {
    let check = app.check(DAY).await.expect("check");
    assert_eq!(check.status, CheckStatus::Done, "{check:?}");
    check
}

fn codes(check: &Check) -> Vec<FindingCode> {
    check.findings.0.iter().map(|finding| finding.code).collect()
}

/// Finds exactly one code, and answers how often.
async fn only(app: &Towpath, code: FindingCode) -> (Check, u64) {
    let check = check(app).await;
    assert_eq!(codes(&check), [code], "{check:?}");
    assert!(!check.is_clean());
    let count = check.findings.count(code);
    (check, count)
}

async fn clean(app: &Towpath) {
    let check = check(app).await;
    assert!(check.is_clean(), "{check:?}");
}

async fn repair(app: &Towpath, apply: bool) -> Plan {
    app.checker().repair(&RepairAsked::default(), apply).await.expect("repair")
}

fn outcomes(plan: &Plan) -> Vec<StepOutcome> {
    plan.steps.iter().map(|step| step.outcome).collect()
}

/// The facts about repairs.
async fn facts(app: &Towpath) -> Vec<String> {
    let head = app.store().head().await.unwrap();
    let events = app.store().events_between(1, head).await.unwrap();
    let of_repairs = events.iter().filter(|event| event.envelope.event_type.as_str() == REPAIR_PERFORMED);
    of_repairs.map(|event| event.envelope.payload.as_text().to_owned()).collect()
}

async fn what_is_as_it_should_be_is_clean_and_counted(fresh: &Fresh) {
    let app = quick(fresh).start().await.expect("start");
    assert!(matches!(app.checker().repair(&RepairAsked::default(), false).await, Err(CheckError::NoCheck)));
    assert_eq!(app.store().last_version_gaps().await.unwrap(), None);
    place(&app, "order-1").await;
    note(&app, "order-1", "note-1").await;
    // Decides nothing, is refused, and is a bug: none of them has a result to miss.
    app.send::<Order>("order-1", OrderCommand::Glance).await.expect("glance");
    let _ = app.send::<Order>("order-2", OrderCommand::Ship).await.expect_err("nothing to ship");
    let _ = app.send::<Order>("order-3", OrderCommand::Break).await.expect_err("a bug");
    positions(&app, 2).await;
    let found = check(&app).await;
    assert!(found.is_clean(), "{found:?}");
    assert_eq!((found.totals.total_commands, found.totals.total_events), (3, 2));
    assert_eq!(app.store().last_version_gaps().await.unwrap(), Some(0));
    assert!(repair(&app, true).await.steps.is_empty());
    // A window that ends before anything happened.
    let found = app.check(Duration::ZERO).await.expect("check");
    assert_eq!((found.totals.total_commands, found.totals.total_events), (0, 0));
    // What is asked for and nothing else.
    let scope = vec![FindingCode::PositionGaps];
    let check_id = app.checker().begin(&CheckAsked { window: DAY, scope }).await.expect("begin");
    let found = app.checker().wait(check_id, Duration::from_secs(60)).await.expect("wait").expect("its end");
    assert_eq!((found.progress, found.totals.total_events), ((2, 2), 0));
    app.stop().await;
}

async fn a_missing_outbox_row_is_found_put_back_and_its_event_delivered_once(fresh: &Fresh) {
    let stage = Stage::on(Fresh::shared(fresh), Broker::Local);
    let builder = || stage.builder().topology(stage.topology(false)).check_grace(Duration::from_millis(20));
    let consumer = || Consumer::of(stage.channel()).each("record", record);
    let silent = builder().consumer(consumer()).without_workers().start().await.expect("start");
    support::delivery::make_table(&silent).await;
    place(&silent, "order-1").await;
    place(&silent, "order-2").await;
    execute(
        &silent,
        "DELETE FROM event_outbox WHERE channel <> 'orders' AND event_id IN \
         (SELECT event_id FROM domain_events WHERE aggregate_id = 'order-1')",
    )
    .await;
    silent.stop().await;

    let app = builder().consumer(consumer()).start().await.expect("start");
    eventually("the effect of the other", || async { (effects(&app).await.len() == 1).then_some(()) }).await;
    let (found, count) = only(&app, FindingCode::MissingOutboxEvents).await;
    assert_eq!(count, 1);
    let row = &found.findings.0[0].rows[0];
    assert_eq!(row.details["channel"], stage.channel());
    assert_eq!(row.details["aggregateId"], "order-1");

    // A plan changes nothing.
    let plan = repair(&app, false).await;
    assert_eq!(outcomes(&plan), [StepOutcome::Planned]);
    assert!(plan.steps[0].consumers_past.is_empty());
    only(&app, FindingCode::MissingOutboxEvents).await;
    let done = repair(&app, true).await;
    assert_eq!(outcomes(&done), [StepOutcome::Done]);
    let text = format!("Repaired missing outbox for event {}", row.details["eventId"]);
    assert_eq!(done.steps[0].message, text);
    eventually("the effect", || async { (effects(&app).await.len() == 2).then_some(()) }).await;
    clean(&app).await;
    // Once more does nothing, and there is one fact about it.
    assert!(repair(&app, true).await.steps.is_empty());
    positions(&app, 3).await;
    let facts = facts(&app).await;
    assert_eq!(facts.len(), 1);
    assert!(facts[0].contains(&text) && facts[0].contains("missing_outbox_events"), "{facts:?}");
    assert!(effects(&app).await.values().all(|count| *count == 1));
    app.stop().await;
}

async fn rows_that_were_cleaned_up_are_not_missed(fresh: &Fresh) {
    let app = quick(fresh).keep_sent(Duration::from_millis(1)).start().await.expect("start");
    place(&app, "order-1").await;
    positions(&app, 1).await;
    execute(&app, "DELETE FROM event_outbox").await;
    let found = check(&app).await;
    assert!(found.is_clean(), "{found:?}");
    assert!(found.not_checked.iter().any(|not| not.what.contains("missing_outbox_events")), "{found:?}");
    app.stop().await;
}

async fn a_channel_that_was_added_later_misses_nothing(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    app.stop().await;
    let added = Channel::named("added", ["order.*"]);
    let app = quick(fresh).channel(added).start().await.expect("start");
    clean(&app).await;
    // From then on it takes all of them.
    place(&app, "order-2").await;
    positions(&app, 3).await;
    clean(&app).await;
    execute(&app, "DELETE FROM event_outbox WHERE channel = 'added'").await;
    let (found, count) = only(&app, FindingCode::MissingOutboxEvents).await;
    assert_eq!((count, found.findings.0[0].rows[0].details["aggregateId"].as_str()), (1, "order-2"));
    app.stop().await;
}

/// Records a command once more under another id, as if it had been COMPLETED behind the last version.
const ORPHAN: &str = "INSERT INTO command_box (command_id, command_type, aggregate_kind, aggregate_id, payload, correlation_id, \
     received_at, status, status_changed_at, retry_count, recovery_count, started_at, finished_at, aggregate_version, event_count) \
     SELECT 'note-2', command_type, aggregate_kind, aggregate_id, payload, correlation_id, received_at, status, \
     status_changed_at, 0, 0, started_at, finished_at, 3, 1 FROM command_box WHERE command_id = 'note-1'";

async fn an_orphaned_command_is_found_and_run_once(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    execute(&app, ORPHAN).await;
    let (found, count) = only(&app, FindingCode::OrphanedCommands).await;
    assert_eq!((count, found.findings.0[0].rows[0].target.as_str()), (1, "note-2"));
    let plan = repair(&app, true).await;
    assert_eq!(outcomes(&plan), [StepOutcome::Done]);
    assert_eq!(plan.steps[0].message, "Marked orphaned command note-2 for reprocessing");
    let id = CommandId::new("note-2").unwrap();
    eventually("its effect", || async {
        let record = app.command(&id).await.unwrap().unwrap();
        (record.status == CommandStatus::Completed && record.result.is_some()).then_some(())
    })
    .await;
    let order = app.load::<Order>("order-1").await.unwrap().unwrap();
    assert_eq!((order.version, order.value.notes), (3, 2));
    positions(&app, 4).await;
    clean(&app).await;
    assert_eq!(facts(&app).await.len(), 1);
    app.stop().await;
}

async fn a_command_whose_effect_is_in_the_state_is_not_run_again(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    execute(&app, "UPDATE domain_events SET event_type = 'order.renamed' WHERE aggregate_version = 2").await;
    only(&app, FindingCode::OrphanedCommands).await;
    let plan = repair(&app, true).await;
    assert_eq!(outcomes(&plan), [StepOutcome::ByHand]);
    let record = app.command(&CommandId::new("note-1").unwrap()).await.unwrap().unwrap();
    assert_eq!(record.status, CommandStatus::Completed);
    assert!(facts(&app).await.is_empty());
    app.stop().await;
}

async fn versions_that_end_too_early_begin_late_or_have_a_hole_are_found(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    let gaps = FindingCode::AggregateVersionGaps;
    // The row is ahead of its events.
    execute(&app, "UPDATE aggregates SET version = 3").await;
    let (found, count) = only(&app, gaps).await;
    assert_eq!((count, found.findings.0[0].rows[0].target.as_str()), (1, "order/order-1"));
    assert_eq!(app.store().last_version_gaps().await.unwrap(), Some(1));
    assert_eq!(outcomes(&repair(&app, true).await), [StepOutcome::ByHand]);
    // The events are ahead of their row.
    execute(&app, "UPDATE aggregates SET version = 1").await;
    only(&app, gaps).await;
    // A hole, and a beginning that is none. Neither is windowed.
    execute(&app, "UPDATE aggregates SET version = 3").await;
    execute(&app, "UPDATE domain_events SET aggregate_version = 3 WHERE aggregate_version = 2").await;
    let asked = CheckAsked { window: Duration::ZERO, scope: vec![gaps] };
    let check_id = app.checker().begin(&asked).await.expect("begin");
    let found = app.checker().wait(check_id, Duration::from_secs(60)).await.expect("wait").expect("its end");
    assert_eq!(found.findings.count(gaps), 1);
    execute(&app, "UPDATE domain_events SET aggregate_version = 2 WHERE aggregate_version = 1").await;
    let check_id = app.checker().begin(&asked).await.expect("begin");
    let found = app.checker().wait(check_id, Duration::from_secs(60)).await.expect("wait").expect("its end");
    assert_eq!(found.findings.count(gaps), 1);
    execute(
        &app,
        "UPDATE domain_events SET aggregate_version = aggregate_version - 1 WHERE aggregate_version = 2",
    )
    .await;
    execute(
        &app,
        "UPDATE domain_events SET aggregate_version = aggregate_version - 1 WHERE aggregate_version = 3",
    )
    .await;
    execute(&app, "UPDATE aggregates SET version = 2").await;
    clean(&app).await;
    assert_eq!(app.store().last_version_gaps().await.unwrap(), Some(0));
    app.stop().await;
}

async fn a_cause_outside_of_its_flow_is_found(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    execute(&app, "UPDATE domain_events SET correlation_id = 'flow-other' WHERE aggregate_version = 2").await;
    let (found, count) = only(&app, FindingCode::BrokenCausation).await;
    assert_eq!((count, found.findings.0[0].rows[0].details["causationId"].as_str()), (1, "note-1"));
    assert_eq!(outcomes(&repair(&app, true).await), [StepOutcome::ByHand]);
    app.stop().await;
}

async fn an_event_that_nobody_gives_a_position_is_found_and_gets_one(fresh: &Fresh) {
    let silent = quick(fresh).without_workers().start().await.expect("start");
    place(&silent, "order-1").await;
    execute(&silent, "DELETE FROM event_pending").await;
    silent.stop().await;
    let app = quick(fresh).start().await.expect("start");
    only(&app, FindingCode::EventsWithoutPosition).await;
    assert_eq!(outcomes(&repair(&app, true).await), [StepOutcome::Done]);
    positions(&app, 2).await;
    clean(&app).await;
    let events = app.store().events_between(1, 2).await.unwrap();
    let types: Vec<&str> = events.iter().map(|event| event.envelope.event_type.as_str()).collect();
    assert!(types.contains(&"order.placed"), "{types:?}");
    app.stop().await;
}

async fn a_hole_in_the_log_is_found(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    execute(&app, "UPDATE event_positions SET position = 7 WHERE position = 2").await;
    // The one that is too far, and the head without its position.
    let (_, count) = only(&app, FindingCode::PositionGaps).await;
    assert_eq!(count, 2);
    assert!(outcomes(&repair(&app, true).await).iter().all(|outcome| *outcome == StepOutcome::ByHand));
    execute(&app, "UPDATE event_positions SET position = 2 WHERE position = 7").await;
    clean(&app).await;
    app.stop().await;
}

async fn rows_of_no_event_are_found(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    clean(&app).await;
    execute(
        &app,
        "INSERT INTO event_outbox (channel, event_id, lane, partition_no, status, status_changed_at, retry_count) \
         SELECT 'orders', check_id, 1, 1, 'SENT', started_at, 0 FROM consistency_checks",
    )
    .await;
    let (_, count) = only(&app, FindingCode::OutboxWithoutEvent).await;
    assert_eq!(count, 1);
    app.stop().await;
}

async fn deliveries_of_no_event_are_found_where_they_must_have_one(fresh: &Fresh) {
    let stage = Stage::on(Fresh::shared(fresh), Broker::Local);
    let consumer = Consumer::of(stage.channel()).each("record", record);
    let builder = stage.builder().topology(stage.topology(false)).consumer(consumer);
    let app = builder.check_grace(Duration::from_millis(20)).start().await.expect("start");
    clean(&app).await;
    // Somebody else's, who may get events from elsewhere.
    execute(
        &app,
        "INSERT INTO inbox (event_id, handler, status, status_changed_at, retry_count) \
         SELECT check_id, 'elsewhere', 'HANDLED', started_at, 0 FROM consistency_checks",
    )
    .await;
    clean(&app).await;
    execute(&app, "UPDATE inbox SET handler = 'record'").await;
    let (_, count) = only(&app, FindingCode::InboxWithoutEvent).await;
    assert_eq!(count, 1);
    app.stop().await;
}

/// A lane that waits for a row that is not there.
const LOST_LANE: &str = "INSERT INTO parked_lanes (channel, lane, head_outbox_id, parked_at) \
     SELECT 'orders', 1, 999999, MIN(created_at) FROM aggregates";

async fn a_lane_that_waits_for_nothing_is_found_and_goes_on(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    // One that waits for a row that is there.
    execute(
        &app,
        "INSERT INTO parked_lanes (channel, lane, head_outbox_id, parked_at) \
         SELECT channel, 2, MIN(outbox_id), MIN(status_changed_at) FROM event_outbox GROUP BY channel",
    )
    .await;
    clean(&app).await;
    execute(&app, LOST_LANE).await;
    let (_, count) = only(&app, FindingCode::ParkedWithoutHead).await;
    assert_eq!(count, 1);
    assert_eq!(outcomes(&repair(&app, true).await), [StepOutcome::Done]);
    clean(&app).await;
    app.stop().await;
}

async fn trackers_and_projections_ahead_of_the_log_are_found(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    clean(&app).await;
    execute(
        &app,
        "INSERT INTO channels (channel_id, name, position, reset_count, created_at) \
         SELECT check_id, 'ahead', 2, 0, started_at FROM consistency_checks",
    )
    .await;
    execute(
        &app,
        "INSERT INTO projections (projection, aggregate_kind, aggregate_id, version, projection_version) \
         VALUES ('shelf', 'order', '', 99, 1)",
    )
    .await;
    execute(
        &app,
        "INSERT INTO projections (projection, aggregate_kind, aggregate_id, version, projection_version) \
         VALUES ('shelf', 'order', 'order-1', 2, 1)",
    )
    .await;
    // Where the log and the aggregate end.
    clean(&app).await;
    execute(&app, "UPDATE channels SET position = 3").await;
    only(&app, FindingCode::TrackersAhead).await;
    execute(&app, "UPDATE channels SET position = 2").await;
    execute(&app, "UPDATE projections SET version = 3 WHERE aggregate_id = 'order-1'").await;
    only(&app, FindingCode::ProjectionsAhead).await;
    app.stop().await;
}

async fn a_command_in_the_hands_of_nobody_is_found_and_put_back(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    execute(&app, ORPHAN).await;
    execute(
        &app,
        "UPDATE command_box SET status = 'PROCESSING', aggregate_version = NULL, event_count = NULL, finished_at = NULL \
         WHERE command_id = 'note-2'",
    )
    .await;
    only(&app, FindingCode::AbandonedCommands).await;
    assert_eq!(outcomes(&repair(&app, true).await), [StepOutcome::Done]);
    eventually("its effect", || async {
        let order = app.load::<Order>("order-1").await.unwrap().unwrap();
        (order.value.notes == 2).then_some(())
    })
    .await;
    positions(&app, 4).await;
    clean(&app).await;
    app.stop().await;
}

async fn a_history_that_does_not_fit_is_found(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    app.send::<Order>("order-1", OrderCommand::Ship).await.expect("ship");
    positions(&app, 3).await;
    clean(&app).await;
    // It ends elsewhere than its row.
    execute(&app, "UPDATE state_events SET to_state = 'lost' WHERE aggregate_version = 3").await;
    only(&app, FindingCode::HistoryDiffers).await;
    execute(&app, "UPDATE state_events SET to_state = 'shipped' WHERE aggregate_version = 3").await;
    clean(&app).await;
    // A change begins elsewhere than the last one ended.
    execute(&app, "UPDATE state_events SET from_state = 'lost' WHERE aggregate_version = 3").await;
    only(&app, FindingCode::HistoryDiffers).await;
    app.stop().await;
}

async fn a_state_that_is_not_what_folding_gives_is_found(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    // The same in another order and with other spaces.
    execute(&app, "UPDATE aggregates SET snapshot = '{ \"notes\": 1, \"sku\": \"lamp\" }'").await;
    clean(&app).await;
    execute(&app, "UPDATE aggregates SET snapshot = '{\"sku\":\"lamp\",\"notes\":7}'").await;
    let (found, _) = only(&app, FindingCode::StateDiffers).await;
    assert_eq!(found.findings.0[0].rows[0].target, "order/order-1");
    // A row of another form is folded anew by who needs it.
    execute(&app, "UPDATE aggregates SET snapshot_version = 99").await;
    clean(&app).await;
    app.stop().await;
}

async fn a_check_that_was_asked_for_elsewhere_is_done_by_who_can(fresh: &Fresh) {
    let asking = quick(fresh).without_workers().start().await.expect("start");
    place(&asking, "order-1").await;
    let check_id = asking.checker().begin(&CheckAsked::default()).await.expect("begin");
    assert!(asking.checker().wait(check_id, Duration::ZERO).await.expect("wait").is_none());
    assert_eq!(asking.checker().find(check_id).await.unwrap().unwrap().status, CheckStatus::Pending);
    let not_done =
        asking.checker().repair(&RepairAsked { check_id: Some(check_id), codes: Vec::new() }, true).await;
    assert!(matches!(not_done, Err(CheckError::NotDone(id)) if id == check_id));
    let app = quick(fresh).start().await.expect("start");
    let found =
        asking.checker().wait(check_id, Duration::from_secs(60)).await.expect("wait").expect("its end");
    assert!(found.is_clean(), "{found:?}");
    assert_eq!(asking.checker().last().await.unwrap().unwrap(), found);
    app.stop().await;
    asking.stop().await;
}

async fn one_step_that_fails_stops_no_other(fresh: &Fresh) {
    let probe = Arc::new(FailsOnce::default());
    let options = StoreOptions { probe, ..StoreOptions::default() };
    let app = quick(fresh).store_options(options).start().await.expect("start");
    place(&app, "order-1").await;
    note(&app, "order-1", "note-1").await;
    place(&app, "order-2").await;
    positions(&app, 3).await;
    execute(&app, "DELETE FROM event_outbox").await;
    let (_, count) = only(&app, FindingCode::MissingOutboxEvents).await;
    assert_eq!(count, 3);
    let plan = repair(&app, true).await;
    // But for what would overtake it.
    assert_eq!(outcomes(&plan), [StepOutcome::Failed, StepOutcome::Failed, StepOutcome::Done]);
    for step in &plan.steps[..2] {
        assert!(step.message.starts_with("Failed to repair outbox for event "), "{plan:?}");
    }
    assert_eq!(outcomes(&repair(&app, true).await), [StepOutcome::Done, StepOutcome::Done]);
    clean(&app).await;
    app.stop().await;
}

/// Nobody remembers any more whether it was handled.
async fn what_is_older_than_inboxes_remember_is_not_published_again(fresh: &Fresh) {
    let app = quick(fresh).horizon(Duration::from_millis(1)).start().await.expect("start");
    place(&app, "order-1").await;
    positions(&app, 1).await;
    execute(&app, "DELETE FROM event_outbox").await;
    only(&app, FindingCode::MissingOutboxEvents).await;
    assert_eq!(outcomes(&repair(&app, true).await), [StepOutcome::ByHand]);
    only(&app, FindingCode::MissingOutboxEvents).await;
    app.stop().await;
}

async fn the_schedule_checks_and_repairs_what_is_safe(fresh: &Fresh) {
    let app = app_with_an_order(fresh).await;
    execute(&app, LOST_LANE).await;
    execute(&app, "DELETE FROM event_outbox").await;
    app.stop().await;
    let scheduled = quick(fresh).check_every(Duration::from_millis(50), DAY).repair_by_schedule();
    let app = scheduled.start().await.expect("start");
    eventually("the repair", || async { (facts(&app).await.len() == 1).then_some(()) }).await;
    let found = eventually("a check after it", || async {
        let last = app.checker().last().await.unwrap()?;
        (codes(&last) == [FindingCode::MissingOutboxEvents]).then_some(last)
    })
    .await;
    // What is not safe waits for somebody to say so.
    assert_eq!(found.findings.count(FindingCode::MissingOutboxEvents), 2);
    let key = AggregateKey::new("order", "order-1").unwrap();
    assert_eq!(app.aggregate(&key).await.unwrap().unwrap().version, 2);
    app.stop().await;
}
