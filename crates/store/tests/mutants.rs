//! Each condition that is taken out of a statement makes the case fail that is there for it: on SQLite, statement by statement,
//! for the topics that the store in memory does not keep.

mod fixtures;

use std::sync::Arc;

use async_trait::async_trait;
use fixtures::Fresh;
use towpath_core::ports::probe::Probe;
use towpath_core::ports::store::InspectedStore;
use towpath_testkit::MutantProbe;
use towpath_testkit::store::*;

macro_rules! mutants {
    ($($name:ident: $statement:literal without $condition:literal => $module:ident::$case:ident;)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                let probe = Arc::new(MutantProbe::without($statement, $condition));
                let mutant = Mutant { fresh: Fresh::sqlite().await, probe: Arc::clone(&probe) };
                let case = tokio::spawn(async move {
                    run_case(stringify!($case), $module::$case(&mutant)).await;
                });
                let failed = case.await.is_err_and(|error| error.is_panic());
                assert!(probe.was_met(), "{} has no condition {}", $statement, $condition);
                assert!(failed, "{} passed {} without {}", stringify!($case), $statement, $condition);
            }
        )+
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

    messages_of_others_are_removed: "queues.remove" without "claimed_by_id = ?" => queues::a_message_is_with_one_receiver_at_a_time;
    messages_of_others_are_given_back: "queues.requeue" without "claimed_by_id = ?" => queues::a_message_is_with_one_receiver_at_a_time;
    messages_are_taken_from_any_queue: "queues.ready" without "m.queue = ?" => queues::a_message_is_with_one_receiver_at_a_time;
    messages_are_taken_twice: "queues.ready" without "m.claimed_by_id IS NULL" => queues::a_message_is_with_one_receiver_at_a_time;
    messages_are_taken_before_their_time: "queues.ready" without "m.available_at IS NULL" => queues::a_delayed_message_waits_for_its_time;
    receivers_come_back_to_life: "queues.keep" without "expires_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER)" => queues::messages_of_a_receiver_that_is_gone_come_back;
    no_receiver_is_gone: "queues.some" without "leases.lease_name = local_messages.claimed_by_id" => queues::messages_of_a_receiver_that_is_gone_come_back;
    who_takes_alone_is_never_gone: "queues.the_one" without "leases.lease_name = local_queues.claimed_by_id" => queues::who_takes_alone_is_followed_by_the_next;
    everything_is_given_back: "queues.give_back" without "claimed_by_id = ?" => queues::a_receiver_that_ends_gives_back_its_own;

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

    pages_of_events_are_measured_from_the_beginning: "events.sizes" without "e.aggregate_version > ?" => reads::a_page_has_so_many_bytes_and_at_least_one_event;
    pages_of_the_log_are_measured_from_the_beginning: "log.sizes" without "p.position BETWEEN ? AND ?" => reads::a_page_has_so_many_bytes_and_at_least_one_event;
    later_events_keep_a_mark_waiting: "log.first_pending" without "pending_id <= ?" => positions::what_waits_for_a_position_is_known_by_a_mark;

    attempts_of_others_are_let_go: "inbox.let_go" without "begun_by = ?" => attempts::an_attempt_that_did_not_end_is_known;
    attempts_of_other_handlers_are_known: "inbox.look_before" without "handler = ?" => attempts::an_attempt_that_did_not_end_is_known;
    any_letter_stands: "letters.stand" without "handler = ?" => attempts::an_attempt_that_did_not_end_is_known;
    handled_deliveries_are_first: "inbox.mark_all" without "inbox.status = 'RETRY'" => attempts::first_deliveries_are_marked_together;
    handled_deliveries_are_forgotten: "inbox.forget_failures" without "status = 'RETRY'" => attempts::failures_are_forgotten_while_a_delivery_is_open;

    timers_that_have_just_ended_are_cleaned: "clean.page" without "finished_at < ?" => cleaning::timers_that_ended_long_ago_are_cleaned_up;
    units_begun_just_now_are_cleaned: "clean.page" without "begun_at < ?" => cleaning::units_begun_long_ago_are_cleaned_up;
    living_leases_are_cleaned: "clean.leases" without "expires_at < (CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?)" => cleaning::leases_of_instances_that_are_gone_are_cleaned_up;
    leases_of_any_prefix_are_cleaned: "clean.leases" without "lease_name < ?" => cleaning::leases_of_instances_that_are_gone_are_cleaned_up;
}

/// A fresh database whose every store has the mutant.
struct Mutant {
    fresh: Fresh,
    probe: Arc<MutantProbe>,
}

#[async_trait]
impl StoreFixture for Mutant {
    async fn connect(&self, _probe: Arc<dyn Probe>) -> Arc<dyn InspectedStore> {
        fixtures::connect(&self.fresh.url(), self.probe.clone()).await
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
