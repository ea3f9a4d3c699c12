//! Each condition that is taken out of a statement makes the case fail that is there for it: on SQLite, statement by statement,
//! for the topics that the store in memory does not keep. Where a case is there for something else than a condition, the
//! statement says something else.

mod fixtures;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use fixtures::Fresh;
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::InspectedStore;
use towpath_testkit::MutantProbe;
use towpath_testkit::store::*;

macro_rules! mutants {
    ($($name:ident: $statement:literal $how:ident $text:literal $(as $other:literal)? => $module:ident::$case:ident;)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                let wrong = Arc::new(wrong!($statement $how $text $($other)?));
                let mutant = Mutant { fresh: Fresh::sqlite().await, wrong: wrong.clone() };
                let case = tokio::spawn(async move {
                    run_case(stringify!($case), $module::$case(&mutant)).await;
                });
                let failed = case.await.is_err_and(|error| error.is_panic());
                assert!(wrong.was_met(), "{} does not say {}", $statement, $text);
                assert!(failed, "{} passed {} {} {}", stringify!($case), $statement, stringify!($how), $text);
            }
        )+
    };
}

macro_rules! wrong {
    ($statement:literal without $condition:literal) => {
        MutantProbe::without($statement, $condition)
    };
    ($statement:literal with $text:literal $other:literal) => {
        Altered { statement: $statement, text: $text, other: $other, was_met: AtomicBool::new(false) }
    };
}

mutants! {
    letters_are_taken_too_early: "letters.take" without "d.due_at <= ?" => letters::a_due_letter_is_with_one_holder_at_a_time;
    letters_of_others_are_taken: "letters.take" without "d.handler = ?" => letters::a_due_letter_is_with_one_holder_at_a_time;
    letters_of_others_are_due: "letters.next_due" without "handler = ?" => letters::a_due_letter_is_with_one_holder_at_a_time;
    lost_letters_are_released: "letters.release" without "due_at = ?" => letters::a_due_letter_is_with_one_holder_at_a_time;
    failures_of_lost_letters_count: "letters.held" without "due_at = ?" => letters::a_due_letter_is_with_one_holder_at_a_time;
    lost_letters_are_set_aside: "letters.held" without "due_at = ?" => letters::a_delivery_is_one_letter_however_often_it_fails;
    another_lane_goes_on: "letters.first" without "lane = ?" => letters::a_handled_letter_lets_the_next_of_its_lane_go_on;
    all_lanes_wait: "letters.waiting" without "d.lane = asked.number" => letters::a_handled_letter_lets_the_next_of_its_lane_go_on;
    one_lane_waits_for_another: "letters.waiting" without "lane = ?" => letters::a_handled_letter_lets_the_next_of_its_lane_go_on;
    a_handled_letter_takes_others_with_it: "letters.through" without "dead_letter_id = ?" => letters::a_handled_letter_lets_the_next_of_its_lane_go_on;
    lanes_go_on_before_their_first: "letters.first" without "lane = ?" => letters::letters_that_wait_for_nothing_go_on;
    any_letter_stands_for_a_delivery: "letters.open" without "event_id = ?" => letters::a_handled_letter_lets_the_next_of_its_lane_go_on;
    ended_letters_are_set_aside: "letters.update" without "status IN ('RETRY', 'BEHIND', 'DEAD')" => letters::a_delivery_is_one_letter_however_often_it_fails;
    letters_that_were_given_up_are_tried_again: "letters.update" without "status IN ('RETRY', 'BEHIND')" => letters::a_delivery_is_one_letter_however_often_it_fails;
    letters_set_aside_anew_end: "letters.given_back" without "due_at = ?" => letters::a_letter_given_back_ends_unless_it_was_set_aside_anew;
    letters_of_any_status_are_listed: "letters.list" without "d.status = ?" => letters::letters_are_found_by_what_they_are;
    letters_of_any_reason_are_listed: "letters.list_in_short" without "d.status_reason = ?" => letters::letters_are_found_by_what_they_are;
    later_letters_are_listed: "letters.list" without "d.dead_letter_id <= ?" => letters::letters_are_found_by_what_they_are;
    pages_of_letters_begin_anew: "letters.list" without "d.dead_letter_id > ?" => letters::letters_are_found_by_what_they_are;
    letters_of_any_handler_are_counted: "letters.groups" without "d.handler = ?" => letters::letters_are_found_by_what_they_are;
    open_letters_are_edited: "letters.edit" without "status = 'DEAD'" => letters::a_dead_letter_is_the_operators;
    open_letters_are_replayed: "letters.replay" without "status = 'DEAD'" => letters::a_dead_letter_is_the_operators;
    letters_that_changed_are_discarded: "letters.discard" without "status = ?" => letters::a_dead_letter_is_the_operators;
    letters_without_a_handler_are_replayed: "letters.replay" without "handler IS NOT NULL" => letters::a_death_at_the_broker_is_taken_in_once;
    all_deaths_are_one: "letters.death" without "death_key = ?" => letters::a_death_at_the_broker_is_taken_in_once;
    letters_are_republished_twice: "letters.republished" without "status = 'DEAD'" => letters::a_death_at_the_broker_is_taken_in_once;
    deaths_of_the_living_are_forgotten: "letters.forget_death" without "status = 'DEAD'" => letters::a_death_at_the_broker_is_taken_in_once;
    letters_that_have_just_ended_are_cleaned: "letters.ended" without "status_changed_at < ?" => letters::letters_that_ended_long_ago_are_cleaned_up;

    checks_end_twice: "checks.save" without "finished_at IS NULL" => checking::a_check_is_gone_on_with_and_ends_once;
    other_checks_are_saved: "checks.save" without "check_id = ?" => checking::a_check_is_gone_on_with_and_ends_once;
    ended_checks_are_gone_on_with: "checks.next" without "c.finished_at IS NULL" => checking::a_check_is_gone_on_with_and_ends_once;
    checks_that_were_given_up_are_told: "checks.last" without "c.status = 'DONE'" => checking::a_check_is_gone_on_with_and_ends_once;
    gaps_of_checks_that_were_given_up_are_told: "checks.version_gaps" without "status = 'DONE'" => checking::a_check_is_gone_on_with_and_ends_once;
    young_checks_are_cleaned: "checks.old" without "finished_at < ?" => checking::checks_that_ended_long_ago_are_cleaned_up;
    channels_begin_anew_each_time: "checks.note_starts" with "channel_starts.patterns = excluded.patterns" as "1 = 0" => checking::a_channel_begins_when_it_takes_something_else;
    any_event_is_a_result: "checks.suspects" without "e.event_type = CASE t.command_type WHEN ? THEN ? END" => checking::commands_without_their_event_are_found_in_pages;
    commands_that_decided_nothing_are_orphans: "checks.suspects" without "COALESCE(t.event_count, 1) > 0" => checking::commands_without_their_event_are_found_in_pages;
    pages_of_checks_begin_anew: "checks.page" with "(t.received_at, t.command_id) > (?, ?)" as "((t.received_at, t.command_id) > (?, ?) OR 1 = 1)" => checking::commands_without_their_event_are_found_in_pages;
    commands_of_the_living_are_abandoned: "checks.suspects" without "NOT EXISTS (SELECT 1 FROM leases WHERE leases.lease_name = t.claimed_by_id" => checking::what_is_whole_is_not_suspicious;
    removed_channels_are_ahead: "checks.suspects" without "t.deleted_at IS NULL" => checking::what_the_dead_hold_and_what_is_ahead_is_found;
    deliveries_of_others_are_suspicious: "checks.suspects" without "t.handler IN (?)" => checking::what_the_dead_hold_and_what_is_ahead_is_found;
    commands_of_other_flows_are_causes: "checks.events" without "c.correlation_id = e.correlation_id" => checking::an_event_is_read_with_its_cause_and_its_ways;
    deliveries_that_failed_are_past: "checks.past" without "later.aggregate_id = e.aggregate_id" => checking::an_event_is_read_with_its_cause_and_its_ways;
    positions_are_given_twice: "repair.position" with "FROM event_positions WHERE event_id = ?" as "FROM event_positions WHERE event_id = ? AND 1 = 0" => checking::a_repair_is_done_once_and_with_its_fact;
    effects_of_others_are_taken_for_ones_own: "repair.effect" with "causation_id = ? THEN 1" as "causation_id = ? OR 1 = 1 THEN 1" => checking::a_command_goes_back_unless_its_effect_is_there;
    commands_of_the_living_go_back: "repair.abandoned" without "claimed_by_id IS NULL" => checking::a_command_goes_back_unless_its_effect_is_there;

    messages_of_others_are_removed: "queues.remove" without "claimed_by_id = ?" => queues::a_message_is_with_one_receiver_at_a_time;
    messages_of_others_are_given_back: "queues.requeue" without "claimed_by_id = ?" => queues::a_message_is_with_one_receiver_at_a_time;
    messages_are_taken_from_any_queue: "queues.ready" without "m.queue = ?" => queues::a_message_is_with_one_receiver_at_a_time;
    messages_are_taken_twice: "queues.ready" without "m.claimed_by_id IS NULL" => queues::a_message_is_with_one_receiver_at_a_time;
    messages_are_taken_before_their_time: "queues.ready" without "m.available_at IS NULL" => queues::a_delayed_message_waits_for_its_time;
    receivers_come_back_to_life: "queues.keep" without "expires_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER)" => queues::messages_of_a_receiver_that_is_gone_come_back;
    no_receiver_is_gone: "queues.some" without "leases.lease_name = local_messages.claimed_by_id" => queues::messages_of_a_receiver_that_is_gone_come_back;
    who_takes_alone_is_never_gone: "queues.the_one" without "leases.lease_name = local_queues.claimed_by_id" => queues::who_takes_alone_is_followed_by_the_next;
    everything_is_given_back: "queues.give_back" without "claimed_by_id = ?" => queues::a_receiver_that_ends_gives_back_its_own;
    the_topology_keeps_its_revision: "queues.revise" with "revision + 1" as "revision" => queues::a_topology_grows_from_the_revision_that_was_read;
    bodies_have_no_size: "queues.ready" with "OCTET_LENGTH(m.body)" as "0" => queues::a_receiver_takes_so_many_bytes_and_at_least_one;

    pages_of_commands_begin_anew: "commands.list" without "c.received_at <= ?" => listings::commands_are_listed_the_last_one_first;
    outbox_rows_of_any_status_are_listed: "outbox.list" without "o.status = ?" => listings::outbox_rows_are_listed_by_channel_and_status;
    pages_of_outbox_rows_begin_anew: "outbox.list" without "o.outbox_id > ?" => listings::outbox_rows_are_listed_by_channel_and_status;
    any_outbox_row_is_the_one: "outbox.one" without "o.outbox_id = ?" => listings::outbox_rows_are_listed_by_channel_and_status;
    pages_of_aggregates_begin_anew: "aggregates.list" without "a.aggregate_id > ?" => listings::aggregates_are_listed_by_id;
    aggregates_of_any_kind_are_listed: "aggregates.list" without "a.aggregate_kind = ?" => listings::aggregates_are_listed_by_id;
    any_command_is_traced: "trace" without "c.command_id = ?" => listings::an_id_is_traced_to_its_flows;
    any_event_is_traced: "trace" without "e.event_id = ?" => listings::an_id_is_traced_to_its_flows;
    any_aggregate_is_traced: "trace" without "e.aggregate_id = ?" => listings::an_id_is_traced_to_its_flows;

    all_timers_are_due: "backlog.look" without "t.due_at <= ?" => backlog::what_waits_is_counted;
    all_commands_are_at_work: "backlog.look" without "c.claimed_by_id IS NOT NULL" => backlog::what_waits_is_counted;
    outbox_rows_of_any_channel_are_counted: "backlog.outbox" without "o.channel = ?" => backlog::what_waits_is_counted;
    letters_of_any_status_are_counted: "backlog.letters" without "d.status = ?" => backlog::what_waits_is_counted;

    alerts_that_are_over_take_others_with_them: "alerts.over" without "alert_id IN (?)" => alerts::alerts_are_written_as_they_are_now;
    alerts_stay_as_they_were: "alerts.note" with "status = excluded.status" as "status = alerts.status" => alerts::alerts_are_written_as_they_are_now;
    changes_of_any_rule_are_listed: "alerts.history" without "rule = ?" => alerts::changes_of_alerts_are_listed_the_last_first;
    pages_of_changes_begin_anew: "alerts.history" without "change_id < ?" => alerts::changes_of_alerts_are_listed_the_last_first;
    silences_that_are_over_are_listed: "alerts.silences" without "ends_at > ?" => alerts::silences_end_in_time_or_by_hand;
    any_silence_is_found: "alerts.silence" without "silence_id = ?" => alerts::silences_end_in_time_or_by_hand;
    all_silences_are_ended: "alerts.end_silence" without "silence_id = ?" => alerts::silences_end_in_time_or_by_hand;
    silences_are_ended_twice: "alerts.end_silence" without "ended_at IS NULL" => alerts::silences_end_in_time_or_by_hand;
    silences_that_are_over_are_ended: "alerts.end_silence" without "ends_at > ?" => alerts::silences_end_in_time_or_by_hand;

    who_looked_first_is_who_looked_last: "alerts.run" with "evaluated_by_id = excluded.evaluated_by_id" as "evaluated_by_id = alert_runs.evaluated_by_id" => alerts::alerts_are_noted_under_the_newest_lease;
    changes_of_alerts_just_now_are_cleaned: "clean.page" without "status_changed_at < ?" => alerts::alerts_of_long_ago_are_cleaned_up;
    silences_that_last_are_cleaned: "clean.page" without "ends_at < ?" => alerts::alerts_of_long_ago_are_cleaned_up;

    commands_of_any_time_are_told: "recent.commands" without "c.received_at >= ?" => recent::what_happened_lately_is_told;
    rows_of_any_channel_are_told: "recent.sent" without "o.channel = ?" => recent::what_happened_lately_is_told;
    rows_of_any_time_are_told: "recent.sent" without "sent_0.status_changed_at >= ?" => recent::what_happened_lately_is_told;
    facts_of_any_time_are_told: "recent.by_type" without "e.occurred_at >= ?" => recent::what_happened_lately_is_told;

    followers_move_from_anywhere: "followed.advance" without "position = ?" => following::a_follower_moves_from_where_it_was_found;
    all_followers_move: "followed.advance" without "follower = ?" => following::a_follower_moves_from_where_it_was_found;
    followers_are_one: "followed.find" without "follower = ?" => following::a_follower_moves_from_where_it_was_found;

    subjects_of_others_are_due: "observations.due" without "observer = ?" => observations::observers_do_not_see_each_others_subjects;
    everything_is_due: "observations.due" without "due_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER)" => observations::what_is_due_is_listed_in_order_and_once;
    what_is_held_is_hinted_at: "observations.hinted" without "held = 0" => observations::what_is_held_is_found_by_no_hint;
    any_subject_is_looked_at: "observations.begin" without "subject_id = ?" => observations::what_was_watched_elsewhere_is_adopted_with_what_is_known;
    older_versions_replace_newer_ones: "observations.watch" without "excluded.version >= observations.version" => observations::what_is_older_replaces_nothing;
    looks_at_older_versions_move_newer_ones: "observations.seen" without "version = ?" => observations::a_look_at_something_older_moves_nothing_newer;
    anybody_notes_what_was_seen: "observations.seen" without "EXISTS (SELECT 1 FROM leases WHERE lease_name = ? AND holder_id = ? AND epoch = ?)" => observations::who_has_lost_the_lease_notes_nothing;
    anybody_notes_what_has_failed: "observations.failed" without "EXISTS (SELECT 1 FROM leases WHERE lease_name = ? AND holder_id = ? AND epoch = ?)" => observations::who_has_lost_the_lease_notes_nothing;
    any_look_is_told_of: "observations.looks" without "subject_id = ?" => observations::a_failure_is_kept_until_a_look_comes_to_its_end;
    all_observers_wait_anew: "observations.wait_anew" without "observer = ?" => observations::observers_do_not_see_each_others_subjects;
    all_observers_look_at_all: "observations.look_at_all" without "observer = ?" => observations::observers_do_not_see_each_others_subjects;
    what_is_held_is_looked_at: "observations.look_at_all" without "held = 0" => observations::all_are_due_again_after_what_was_asked_for;
    what_was_asked_for_comes_last: "observations.look_at_all" without "due_at > ?" => observations::all_are_due_again_after_what_was_asked_for;
    subjects_of_others_are_unwatched: "observations.unwatch" without "observer = ?" => observations::observers_do_not_see_each_others_subjects;
    what_is_watched_is_there_at_once: "observations.watch" with "ELSE observations.version END" as "ELSE observations.version END; COMMIT; BEGIN" => observations::what_is_watched_lives_and_dies_with_its_transaction;
    what_is_held_is_looked_at_when_it_was_asked_for: "observations.watch" without "excluded.held = 0" => observations::what_was_asked_for_stays_due_until_it_is_seen;
    every_goal_is_another: "observations.watch" without "excluded.goal <> observations.goal" => observations::a_goal_is_waited_for_from_the_first_look_on;
    looks_move_nothing: "observations.seen" with "due_at = CASE WHEN" as "due_at = CASE WHEN 1 = 1 THEN due_at WHEN" => observations::a_look_that_ended_says_when_the_next_is_due;
    any_subject_is_wanted: "observations.begin" without "subject_id = ?" => observations::texts_of_any_size_are_kept_to_the_letter;
    only_older_versions_replace: "observations.watch" with "excluded.version >= observations.version" as "excluded.version < observations.version" => observations::writers_of_one_subject_leave_the_newest;

    projections_of_any_kind_are_locked: "projection.lock" without "aggregate_kind = ?" => projections::how_far_an_aggregate_is_lives_and_dies_with_its_transaction;
    others_are_forgotten: "projection.forget" without "aggregate_id = ?" => projections::how_far_an_aggregate_is_lives_and_dies_with_its_transaction;
    failures_of_any_kind_are_told: "projection.failures" without "aggregate_kind = ?" => projections::what_does_not_go_on_is_told_until_it_does;
    walks_begin_anew: "projection.walk" without "a.aggregate_id > ?" => projections::aggregates_are_walked_with_how_far_they_are;
    what_older_versions_have_made_is_current: "projection.count" without "projection_version >= ?" => projections::aggregates_are_walked_with_how_far_they_are;
    older_versions_have_made_all: "projection.all_made" without "excluded.projection_version >= projections.projection_version" => projections::a_newer_version_has_made_all;
    what_others_have_made_is_lost: "projection.note" with "version = excluded.version" as "version = projections.version" => projections::eight_that_make_one_aggregate_take_turns;

    facts_of_any_process_are_told: "process.inputs" without "process_id = ?" => processes::the_facts_that_a_process_took_are_kept;
    facts_of_any_kind_of_process_are_told: "process.inputs" without "process_kind = ?" => processes::the_facts_that_a_process_took_are_kept;
    pages_of_a_processs_facts_begin_anew: "process.inputs" without "event_id > ?" => processes::the_facts_that_a_process_took_are_kept;
    any_aggregate_is_locked: "append.current" without "a.aggregate_id = ?" => processes::who_locks_an_aggregate_has_it_alone;
    any_open_task_has_the_key: "tasks.open" without "t.unique_key IN (?)" => processes::an_open_task_is_found_by_its_key;
    ended_tasks_have_their_keys: "tasks.open" without "t.status IN ('pending', 'queued', 'running')" => processes::an_open_task_is_found_by_its_key;
    facts_that_were_just_taken_are_forgotten: "clean.page" without "recorded_at < ?" => processes::what_is_over_of_processes_is_forgotten;
    names_of_timers_that_are_not_due_are_forgotten: "clean.page" without "due_at < ?" => processes::what_is_over_of_processes_is_forgotten;
    timers_of_any_name_are_taken: "process.timers" without "name = ?" => processes::timers_have_names_within_their_process;
    timers_of_any_process_are_taken: "process.timers" without "process_id = ?" => processes::timers_have_names_within_their_process;
    timers_of_any_kind_are_taken: "process.timers" without "process_kind = ?" => processes::timers_have_names_within_their_process;
    timers_of_any_name_are_forgotten: "process.take_timers" without "name = ?" => processes::timers_have_names_within_their_process;
    timers_of_any_process_are_forgotten: "process.take_timers" without "process_id = ?" => processes::timers_have_names_within_their_process;
    what_nobody_asks_for_is_undone: "process.next_undo" without "compensating_at IS NOT NULL" => processes::what_is_to_be_undone_comes_back_the_last_first;
    what_is_undone_is_undone_again: "process.next_undo" without "undone_at IS NULL" => processes::what_is_to_be_undone_comes_back_the_last_first;
    looks_before_an_undo_begin_anew: "process.next_undo" without "undo_id < ?" => processes::what_is_to_be_undone_comes_back_the_last_first;
    all_processes_are_undone: "process.begin_undoing" without "process_id = ?" => processes::what_is_to_be_undone_comes_back_the_last_first;
    processes_of_any_kind_are_undone: "process.begin_undoing" without "process_kind = ?" => processes::what_is_to_be_undone_comes_back_the_last_first;
    what_any_process_did_is_undone: "process.next_undo" without "process_id = ?" => processes::what_is_not_to_be_undone_is_forgotten;
    what_is_to_be_undone_is_forgotten: "process.forget_undos" without "compensating_at IS NULL" => processes::what_is_not_to_be_undone_is_forgotten;
    what_others_keep_is_forgotten: "process.forget_undos" without "process_id = ?" => processes::what_is_not_to_be_undone_is_forgotten;
    what_other_kinds_keep_is_forgotten: "process.forget_undos" without "process_kind = ?" => processes::what_is_not_to_be_undone_is_forgotten;
    all_is_noted_to_be_undone: "process.note_undone" without "undo_id = ?" => processes::what_is_to_be_undone_comes_back_the_last_first;

    pages_of_events_are_measured_from_the_beginning: "events.sizes" without "e.aggregate_version > ?" => reads::a_page_has_so_many_bytes_and_at_least_one_event;
    pages_of_the_log_are_measured_from_the_beginning: "log.sizes" without "p.position BETWEEN ? AND ?" => reads::a_page_has_so_many_bytes_and_at_least_one_event;
    later_events_keep_a_mark_waiting: "log.first_pending" without "pending_id <= ?" => positions::what_waits_for_a_position_is_known_by_a_mark;
    the_page_size_is_what_was_asked_for_last: "log.open" without "page_size IS NULL" => positions::the_page_size_is_for_the_life_of_the_log;
    sizes_of_the_whole_log_are_told: "log.sizes" without "p.position BETWEEN ? AND ?" => positions::sizes_are_those_of_the_payloads;

    who_has_slept_has_the_lease: "lease.fence" with "holder_id, epoch FROM" as "'sleeper' AS holder_id, 1 AS epoch FROM" => rules::a_transaction_is_begun_under_the_newest_lease;
    rules_see_any_aggregate: "append.current" without "a.aggregate_id = ?" => rules::an_append_is_written_as_the_rules_have_it;
    facts_of_earlier_appends_are_read: "events.of" without "e.aggregate_version > ?" => rules::the_facts_of_one_append_are_found_together;

    attempts_of_others_are_let_go: "inbox.let_go" without "begun_by = ?" => attempts::an_attempt_that_did_not_end_is_known;
    attempts_of_other_handlers_are_known: "inbox.look_before" without "handler = ?" => attempts::an_attempt_that_did_not_end_is_known;
    any_letter_stands: "letters.stand" without "handler = ?" => attempts::an_attempt_that_did_not_end_is_known;
    handled_deliveries_are_first: "inbox.mark_all" without "inbox.status = 'RETRY'" => attempts::first_deliveries_are_marked_together;
    handled_deliveries_are_forgotten: "inbox.forget_failures" without "status = 'RETRY'" => attempts::failures_are_forgotten_while_a_delivery_is_open;

    timers_that_have_just_ended_are_cleaned: "clean.page" without "finished_at < ?" => cleaning::timers_that_ended_long_ago_are_cleaned_up;
    units_begun_just_now_are_cleaned: "clean.page" without "begun_at < ?" => cleaning::units_begun_long_ago_are_cleaned_up;
    living_leases_are_cleaned: "clean.leases" without "expires_at < (CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?)" => cleaning::leases_of_instances_that_are_gone_are_cleaned_up;
    leases_of_any_prefix_are_cleaned: "clean.leases" without "lease_name < ?" => cleaning::leases_of_instances_that_are_gone_are_cleaned_up;

    tasks_of_any_type_are_taken: "tasks.claim" without "t.task_type = ?" => tasks::tasks_are_taken_by_priority_and_age;
    tasks_are_taken_twice: "tasks.claim" without "t.status = 'queued'" => tasks::tasks_are_taken_by_priority_and_age;
    claims_of_tasks_have_room_for_all: "tasks.claim" without "total <= 4194304" => tasks::a_claim_of_tasks_takes_so_many_bytes_and_at_least_one;
    tasks_of_any_type_are_looked_at: "tasks.waiting" without "t.task_type = ?" => tasks::tasks_that_wait_are_looked_at_and_not_taken;
    tasks_that_run_are_looked_at: "tasks.waiting" without "t.status = 'queued'" => tasks::tasks_that_wait_are_looked_at_and_not_taken;
    all_tasks_are_taken_by_one_id: "tasks.claim_one" without "task_box.task_id IN (?)" => tasks::one_task_is_taken_by_its_id;
    ticks_are_taken_twice: "tasks.tick" without "last_tick_at < ?" => tasks::a_tick_of_a_schedule_is_taken_once;
    ticks_are_taken_back: "tasks.tick_ahead" without "last_tick_at > (CAST(unixepoch('subsec') * 1000000 AS INTEGER) + 60000000)" => tasks::a_tick_of_a_schedule_is_taken_once;
    ticks_are_of_any_schedule: "tasks.tick" without "name = ?" => tasks::a_tick_of_a_schedule_is_taken_once;
    tasks_do_not_wait_for_their_time: "tasks.promote" without "t.due_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER)" => tasks::a_task_waits_for_its_time;
    tasks_that_run_are_promoted: "tasks.promote" without "t.status = 'pending'" => tasks::a_task_waits_for_its_time;
    keys_of_ended_tasks_stay_taken: "tasks.open" without "t.status IN ('pending', 'queued', 'running')" => tasks::a_task_that_failed_is_tried_again_by_hand;
    tasks_of_other_workers_are_given_back: "tasks.return_unseen" without "worker = ?" => tasks::what_was_taken_unheard_is_given_back;
    tasks_that_are_known_are_given_back: "tasks.return_unseen" without "NOT (task_box.task_id IN (?))" => tasks::what_was_taken_unheard_is_given_back;
    the_silent_say_that_they_live: "tasks.beat" without "task_box.epoch = CASE task_box.task_id WHEN ? THEN ? END" => tasks::a_worker_that_lives_keeps_its_tasks;
    what_has_ended_lives_on: "tasks.beat" without "status = 'running'" => tasks::a_worker_that_lives_keeps_its_tasks;
    the_silent_answer: "tasks.end" without "task_box.epoch = CASE task_box.task_id WHEN ? THEN ? END" => tasks::who_is_silent_is_taken_over_and_cannot_answer;
    what_has_ended_ends_again: "tasks.end" without "status = 'running'" => tasks::an_end_that_is_told_again_is_no_loss;
    losses_are_not_told: "tasks.ended" without "task_box.epoch = CASE task_box.task_id WHEN ? THEN ? END" => tasks::who_is_silent_is_taken_over_and_cannot_answer;
    what_is_lost_is_held: "tasks.hold" without "task_box.epoch = CASE task_box.task_id WHEN ? THEN ? END" => tasks::ends_live_and_die_with_their_transaction;
    what_has_ended_is_held: "tasks.hold" without "status = 'running'" => tasks::ends_live_and_die_with_their_transaction;
    who_lives_is_taken_over: "tasks.overdue" without "(heartbeat_due_at < CAST(unixepoch('subsec') * 1000000 AS INTEGER) OR attempt_due_at < (CAST(unixepoch('subsec') * 1000000 AS INTEGER) + -heartbeat_micros))" => tasks::who_is_silent_is_taken_over_and_cannot_answer;
    tasks_of_others_are_taken_over: "tasks.overdue" without "task_type IN (?)" => tasks::who_is_silent_is_taken_over_and_cannot_answer;
    all_tasks_are_called_off: "tasks.cancel" without "task_id = ?" => tasks::a_task_is_called_off;
    all_tasks_are_asked_to_end: "tasks.ask_to_cancel" without "task_id = ?" => tasks::a_task_is_called_off;
    all_tasks_are_tried_again: "tasks.retry" without "task_id = ?" => tasks::a_task_that_failed_is_tried_again_by_hand;
    any_task_is_the_one: "tasks.find" without "t.task_id = ?" => tasks::a_task_survives_to_the_letter;
    tasks_of_any_status_are_listed: "tasks.list" without "t.status = ?" => tasks::tasks_are_listed_by_what_they_are;
    tasks_of_any_type_are_listed: "tasks.list" without "t.task_type = ?" => tasks::tasks_are_listed_by_what_they_are;
    tasks_of_any_subject_are_listed: "tasks.list" without "t.subject_id = ?" => tasks::tasks_are_listed_by_what_they_are;
    pages_of_tasks_begin_anew: "tasks.list" without "t.task_id < ?" => tasks::tasks_are_listed_by_what_they_are;
    tasks_of_any_type_are_counted: "tasks.backlog" without "t.task_type = ?" => tasks::tasks_to_be_done_are_counted;
    tasks_of_any_status_are_counted: "tasks.backlog" without "t.status = ?" => tasks::tasks_to_be_done_are_counted;
    tasks_that_have_just_ended_are_cleaned: "clean.page" without "status_changed_at < ?" => tasks::tasks_that_ended_long_ago_are_cleaned_up;
    tasks_of_any_status_are_cleaned: "clean.delete" without "status = 'succeeded'" => tasks::tasks_that_ended_long_ago_are_cleaned_up;
    tasks_are_there_at_once: "tasks.start" with "AS INTEGER))" as "AS INTEGER)); COMMIT; BEGIN" => tasks::tasks_live_and_die_with_their_transaction;
    keys_are_taken_at_once: "tasks.start" with "ON CONFLICT DO NOTHING" as "ON CONFLICT DO NOTHING; COMMIT; BEGIN" => tasks::a_key_that_is_undone_is_free;
    a_taken_key_is_an_error: "tasks.start" with "ON CONFLICT DO NOTHING" as "" => tasks::an_open_key_is_taken_once;
    keys_that_are_taken_at_once_are_an_error: "tasks.start" with "ON CONFLICT DO NOTHING" as "" => tasks::eight_starters_of_a_key_begin_one_task;
    who_begins_again_finds_an_error: "tasks.start" with "ON CONFLICT DO NOTHING" as "" => tasks::a_worker_that_ends_anywhere_leaves_no_task_stuck;
    tasks_that_run_are_taken_once_more: "tasks.claim" with "t.status = 'queued'" as "t.status IN ('queued', 'running') AND t.epoch < 2" => tasks::claimers_never_share_a_task;
    every_attempt_is_over: "tasks.overdue" without "attempt_due_at < (CAST(unixepoch('subsec') * 1000000 AS INTEGER) + -heartbeat_micros)" => tasks::an_attempt_whose_time_is_over_is_taken_over;
    results_are_those_of_others: "tasks.end" with "result = CASE task_box.task_id WHEN ? THEN ? END" as "result = CASE WHEN ? IS NOT NULL THEN ? END" => tasks::attempts_that_end_together_end_each_in_its_way;
    large_results_are_not_written: "tasks.end" with "result = CASE task_box.task_id WHEN ? THEN ? END" as "result = CASE task_box.task_id WHEN ? THEN (SELECT of FROM (SELECT ? AS of) WHERE LENGTH(of) < 1048576) END" => tasks::ends_of_any_number_and_size_are_written;
}

/// SQLite carries no notices: nothing of what it runs can make this case fail.
const WITHOUT_A_MUTANT: [&str; 1] = ["a_notice_is_heard_where_the_database_carries_it"];

#[test]
fn every_case_that_the_store_in_memory_does_not_run_has_a_mutant() {
    let suite = include_str!("../../testkit/src/store/mod.rs");
    let (_, rest) = suite.split_once("$crate::store_conformance!(@in_memory $fixture);").unwrap();
    let (list, _) = rest.split_once("(@cases $fixture:expr;").unwrap();
    let is_name = |name: &str| name.contains('_') && name.chars().all(|it| it.is_alphanumeric() || it == '_');
    let lines = list.lines().filter_map(|line| line.trim().strip_suffix([',', ';']));
    let cases: Vec<&str> = lines.filter(|name| is_name(name)).collect();
    assert!(cases.len() > 80, "the list is read: {cases:?}");
    let mutants = include_str!("mutants.rs");
    let has_mutant = |case: &str| mutants.contains(&format!("::{case};"));
    let without: Vec<&str> = cases.into_iter().filter(|case| !has_mutant(case)).collect();
    assert_eq!(without, WITHOUT_A_MUTANT);
}

/// Lets a statement say something else.
struct Altered {
    statement: &'static str,
    text: &'static str,
    other: &'static str,
    was_met: AtomicBool,
}

impl Altered {
    /// Whether a statement of that name with that text was run.
    fn was_met(&self) -> bool {
        self.was_met.load(Ordering::SeqCst)
    }
}

impl Probe for Altered {
    fn before(&self, _statement: &'static str) {}

    fn instead(&self, statement: &'static str, sql: &str) -> Option<String> {
        let at = sql.rfind(self.text).filter(|_| statement == self.statement)?;
        self.was_met.store(true, Ordering::SeqCst);
        let (before, rest) = sql.split_at(at);
        Some(format!("{before}{}{}", self.other, &rest[self.text.len()..]))
    }
}

/// What a case asks to be told, and what is wrong.
struct Both {
    asked: Arc<dyn Probe>,
    wrong: Arc<dyn Probe>,
}

impl Probe for Both {
    fn before(&self, statement: &'static str) {
        self.asked.before(statement);
    }

    fn instead(&self, statement: &'static str, sql: &str) -> Option<String> {
        self.wrong.instead(statement, sql)
    }
}

/// A fresh database whose every store has the mutant.
struct Mutant {
    fresh: Fresh,
    wrong: Arc<dyn Probe>,
}

#[async_trait]
impl StoreFixture for Mutant {
    async fn connect(&self, asked: Arc<dyn Probe>) -> Arc<dyn InspectedStore> {
        fixtures::connect(&self.fresh.url(), Arc::new(Both { asked, wrong: self.wrong.clone() })).await
    }

    async fn idle_in_transaction(&self) -> Box<dyn Send> {
        self.fresh.idle_in_transaction().await
    }

    async fn pretend_newer_schema(&self) {
        self.fresh.pretend_newer_schema().await;
    }

    async fn come_back_from_an_older_copy(&self) {
        self.fresh.come_back_from_an_older_copy().await;
    }

    fn kill_child(&self) -> Option<KillChild> {
        None
    }
}
