//! The meaning of the store contract, as cases that every adapter runs.
//!
//! An adapter describes itself with a [`StoreFixture`] and writes one line in a test file:
//!
//! ```ignore
//! towpath_testkit::store_conformance!(SqliteFixture::fresh().await);
//!
//! #[test]
//! fn kill_child() {
//!     towpath_testkit::store::kill::child_main(|url, probe| async move { connect(&url, probe).await });
//! }
//! ```
//!
//! Each case then is a test of its own, named like the case, on a fresh database. A case that needs a promise the
//! adapter does not make ([`StorePromises`](towpath_core::ports::store::StorePromises)) checks what holds instead.
//!
//! No case sleeps: they wait on conditions with a deadline. A bug that is fixed in one adapter becomes a case here.

pub mod acts;
pub mod alerts;
pub mod appends;
pub mod attempts;
pub mod audit;
pub mod backlog;
pub mod channels;
pub mod checking;
pub mod cleaning;
pub mod commands;
pub mod facts;
pub mod following;
pub mod idle;
pub mod inbox;
pub mod kill;
pub mod late_commits;
pub mod leases;
pub mod letters;
pub mod listings;
pub mod migrations;
pub mod notices;
pub mod observations;
pub mod operations;
pub mod outbox;
pub mod payloads;
pub mod positions;
pub mod processes;
pub mod projections;
pub mod queues;
pub mod races;
pub mod reads;
pub mod recent;
pub mod round_trips;
pub mod rules;
pub mod sequencing;
pub mod sessions;
pub mod statuses;
pub mod tasks;
pub mod timers;
pub mod units;
pub mod waiting;
pub mod workload;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use towpath_core::ports::probe::{NoProbe, Probe};
use towpath_core::ports::store::InspectedStore;

pub use kill::KillChild;

/// One fresh, empty database, and how to reach it. Every case gets a fixture of its own; dropping it may remove
/// the database.
#[async_trait]
pub trait StoreFixture: Send + Sync {
    /// Opens a new, independent connection pool to this fixture's database, without migrating it. Every
    /// statement of the store must go through the probe.
    ///
    /// Cases open up to ten of these at once and leave most of them idle: pools should open connections lazily,
    /// and allow at least four each.
    async fn connect(&self, probe: Arc<dyn Probe>) -> Arc<dyn InspectedStore>;

    /// Opens a database session that is not the store's, begins a transaction, reads from Towpath's tables in it
    /// (from `domain_events`, `event_outbox` and `leases` at least), and leaves it open until the answer is
    /// dropped: a forgotten console, a slow report, a dump.
    async fn idle_in_transaction(&self) -> Box<dyn Send>;

    /// Makes the migrated database look as if a newer Towpath had migrated it.
    async fn pretend_newer_schema(&self);

    /// Makes every lease, and the claim of every operation, what it was one epoch earlier, and run out: a failover has
    /// lost what was written last.
    async fn come_back_from_an_older_copy(&self);

    /// How another process reaches the database, for the case that kills it. `None` only for stores that live in
    /// this process: those are stopped by a panic instead.
    fn kill_child(&self) -> Option<KillChild>;

    /// A migrated store with a connection pool of its own.
    async fn store(&self) -> Arc<dyn InspectedStore> {
        let store = self.connect(Arc::new(NoProbe)).await;
        store.migrate().await.expect("migrate");
        store
    }

    /// A migrated store whose statements a probe sees; it has not seen those of the migration.
    async fn store_with_probe(&self, probe: Arc<dyn Probe>) -> Arc<dyn InspectedStore> {
        self.store().await;
        self.connect(probe).await
    }
}

/// Runs one case with a deadline, so that a lock that is never released fails one test and does not hang them all.
pub async fn run_case(name: &str, case: impl Future<Output = ()>) {
    const DEADLINE: Duration = Duration::from_secs(600);
    if tokio::time::timeout(DEADLINE, case).await.is_err() {
        panic!("{name} did not end within {DEADLINE:?}: something waits for a lock or a connection for ever");
    }
}

/// Expands to one test per case of the suite, named like the case. The expression makes a fresh [`StoreFixture`]; it
/// is evaluated once per test, in an async function. The crate needs `tokio` with `macros` and `rt-multi-thread`.
///
/// The topics of its second part are not kept by the store in memory: most of their cases are shown to fail on SQLite, by
/// statements with a condition taken out ([`MutantProbe`](crate::MutantProbe)).
#[macro_export]
macro_rules! store_conformance {
    (@in_memory $fixture:expr) => {
        $crate::store_conformance! {
            @cases $fixture;
            migrations:
                migrating_twice_changes_nothing,
                four_instances_migrate_at_once,
                a_newer_schema_is_refused,
                an_unmigrated_database_is_not_ready;
            appends:
                a_command_commits_everything_together,
                a_version_conflict_writes_nothing,
                expecting_a_new_aggregate_conflicts_with_an_existing_one,
                expecting_a_version_conflicts_with_a_missing_aggregate,
                expecting_any_version_gives_consecutive_ones_to_concurrent_writers,
                a_rolled_back_append_never_happened,
                a_folded_state_does_not_outlive_its_version,
                one_transaction_carries_several_aggregates,
                a_duplicate_event_id_is_refused_and_writes_nothing,
                a_long_append_keeps_its_order,
                a_refused_append_takes_its_transaction_with_it,
                a_refused_append_leaves_no_version_behind;
            races:
                two_writers_race_for_one_version,
                eight_writers_lose_nothing_and_leave_no_gaps;
            late_commits:
                a_late_commit_is_neither_skipped_nor_lost,
                a_late_rollback_leaves_no_gap,
                a_late_commit_keeps_its_place_before_its_successors,
                a_late_commit_keeps_its_place_however_long_others_have_looked;
            idle:
                an_idle_transaction_elsewhere_stalls_nothing;
            sequencing:
                positions_are_gapless_and_in_version_order,
                two_sequencers_at_once_give_each_event_one_position,
                a_fenced_sequencer_gives_no_positions;
            leases:
                all_stores_of_a_database_have_one_time,
                a_live_lease_is_refused_to_others,
                a_holder_that_acquires_again_raises_the_epoch,
                many_leases_are_renewed_together,
                many_leases_are_released_together,
                an_expired_lease_is_taken_over_with_a_higher_epoch,
                a_released_lease_is_free_and_its_epoch_goes_on,
                a_stale_release_does_nothing,
                a_stale_holder_is_fenced_everywhere_and_changes_nothing,
                a_holder_of_the_same_epoch_is_fenced_everywhere,
                leases_wanted_in_any_order_are_taken_without_a_deadlock,
                a_command_under_a_lost_lease_changes_nothing,
                results_are_written_under_every_lease_or_not_at_all,
                a_takeover_falls_before_or_after_what_the_holder_does,
                one_of_eight_contenders_gets_the_lease;
            commands:
                accepting_twice_answers_the_first_record,
                concurrent_acceptances_record_one_command,
                a_command_record_survives_to_the_letter,
                claimers_never_share_a_command,
                a_claimer_of_commands_waits_for_no_other,
                only_commands_of_a_gone_holder_are_recovered,
                commands_of_a_released_or_expired_lease_are_recovered,
                a_claim_in_an_older_epoch_leaves_nothing_stuck,
                a_claimed_command_completes_once,
                a_claim_takes_so_many_bytes_and_at_least_one,
                a_command_that_was_taken_over_cannot_be_ended_by_the_sleeper,
                a_command_of_an_earlier_epoch_cannot_be_ended_in_a_later_one,
                a_failed_command_is_claimed_when_its_retry_is_due,
                a_failed_command_completes_when_it_is_sent_again,
                the_same_command_twice_at_once_has_one_effect,
                a_recorded_command_has_no_second_effect,
                a_command_that_changes_nothing_is_recorded_completed,
                command_counts_follow_the_statuses,
                commands_of_unknown_types_are_left_to_others,
                claimed_commands_can_be_given_back,
                a_claim_whose_answer_was_lost_can_be_returned,
                a_command_that_loses_its_holder_too_often_is_given_up,
                a_failed_command_can_be_requeued,
                any_message_can_be_recorded,
                commands_that_ended_long_ago_are_cleaned_up,
                a_command_that_waits_for_a_lock_does_not_hold_its_lease;
            sessions:
                a_session_loads_and_completes_as_the_store_does,
                a_session_holds_nothing_between_its_calls,
                many_sessions_at_once_all_get_their_turn,
                a_session_costs_no_extra_round_trips;
            payloads:
                payloads_survive_to_the_letter,
                large_payloads_survive,
                aggregate_ids_are_compared_to_the_letter,
                names_are_compared_to_the_letter;
            outbox:
                rows_that_come_back_are_found_by_everybody_in_order,
                given_up_rows_are_put_back_by_a_filter,
                rows_sent_long_ago_are_cleaned_up,
                cleaning_does_not_walk_over_what_must_stay,
                what_was_sent_late_does_not_hide_what_is_old,
                rows_exist_for_routed_channels_only,
                a_claimed_row_carries_its_fact,
                a_claim_leaves_room_for_other_lanes_and_takes_so_many_bytes,
                a_claim_respects_partitions_and_limit,
                a_result_is_of_its_event_and_of_no_other,
                a_skipped_row_opens_its_lane_for_good,
                sent_rows_are_not_claimed_again,
                a_row_that_was_sent_parks_nothing,
                two_failures_in_one_lane_keep_their_order,
                a_parked_retry_holds_its_lane_until_it_is_sent,
                a_row_written_while_its_lane_is_parked_waits_too,
                a_row_written_while_its_lane_is_unparked_is_not_forgotten,
                rows_set_aside_while_their_lane_opens_are_not_forgotten,
                a_retry_without_parking_lets_later_rows_pass,
                a_failed_row_parks_its_lane_until_it_is_reopened,
                a_failed_row_without_parking_lets_its_lane_go_on,
                a_parked_row_that_need_not_be_waited_for_opens_its_lane,
                a_parked_lane_is_parked_on_its_channel_only,
                one_poisoned_lane_stalls_no_other,
                outbox_counts_follow_the_statuses,
                two_relays_with_their_own_partitions_deliver_everything_once;
            inbox:
                deliveries_handled_long_ago_are_cleaned_up,
                a_delivery_is_first_once,
                a_rolled_back_mark_leaves_the_delivery_first,
                two_transactions_marking_one_delivery_take_turns,
                eight_deliveries_at_once_have_one_effect,
                handlers_are_independent,
                failed_deliveries_are_counted,
                a_delivery_in_retry_can_still_be_handled,
                a_dead_delivery_stays_dead;
            timers:
                a_timer_survives_to_the_letter,
                timers_live_and_die_with_their_transaction,
                a_claim_whose_answer_was_lost_can_be_undone,
                a_timer_id_is_taken_once,
                a_cancelled_timer_never_runs,
                due_timers_come_in_order,
                a_claimed_timer_succeeds_or_is_tried_again,
                a_postponed_timer_comes_again_uncounted,
                a_claimed_timer_can_turn_out_unnecessary,
                timers_for_unknown_commands_are_left_alone,
                waiting_timers_are_listed_by_due_time,
                a_deadline_lives_and_dies_with_its_state,
                timers_of_a_gone_holder_are_taken_over,
                a_timer_of_an_earlier_epoch_cannot_be_ended_in_a_later_one,
                claimers_never_share_a_timer,
                a_claim_of_timers_takes_so_many_bytes_and_at_least_one,
                a_claimer_of_timers_waits_for_no_other,
                a_timer_that_somebody_is_ending_keeps_no_other_from_being_taken;
            units:
                a_unit_is_noted_by_its_commit,
                a_unit_that_is_open_is_waited_for,
                a_command_is_sent_with_its_transaction;
            channels:
                channels_are_listed_by_name,
                what_a_channel_leaves_behind_moves_with_its_position,
                those_that_are_due_are_asked_for_and_those_that_are_met,
                what_is_left_behind_goes_with_its_channel,
                a_paused_channel_says_who_and_why,
                a_removed_channel_frees_its_name,
                a_missing_channel_is_said_to_be_missing,
                a_position_moves_from_where_it_was_and_under_its_lease,
                one_of_eight_adds_of_a_name_wins;
            operations:
                an_answered_operation_answers_the_same_again,
                a_name_belongs_to_one_request,
                an_operation_of_a_dead_process_is_taken_over_and_fenced,
                an_operation_taken_over_twice_in_one_epoch_has_one_holder,
                an_answer_is_written_with_its_effect_or_not_at_all,
                a_forgotten_operation_can_be_begun_anew,
                one_of_eight_twins_begins,
                operations_answered_long_ago_are_cleaned_up;
            statuses:
                a_status_comes_from_the_tenants_dictionary,
                a_status_is_kept_apart_from_the_state,
                a_missing_aggregate_has_no_status;
            reads:
                history_has_one_row_per_state_change,
                events_of_an_aggregate_are_read_in_pages,
                a_page_has_so_many_bytes_and_at_least_one_event,
                a_flow_is_read_in_order,
                the_log_is_read_between_positions;
            round_trips:
                a_load_is_one_round_trip,
                a_command_costs_few_round_trips,
                results_are_written_in_one_batch;
            kill:
                a_process_killed_between_any_two_statements_leaves_no_harm;
        }
    };
    ($fixture:expr) => {
        $crate::store_conformance!(@in_memory $fixture);
        $crate::store_conformance! {
            @cases $fixture;
            alerts:
                alerts_are_written_as_they_are_now,
                changes_of_alerts_are_listed_the_last_first,
                silences_end_in_time_or_by_hand,
                alerts_are_noted_under_the_newest_lease,
                alerts_of_long_ago_are_cleaned_up;
            attempts:
                an_attempt_that_did_not_end_is_known,
                first_deliveries_are_marked_together,
                failures_are_forgotten_while_a_delivery_is_open;
            backlog:
                what_waits_is_counted;
            checking:
                a_check_is_gone_on_with_and_ends_once,
                checks_that_ended_long_ago_are_cleaned_up,
                a_channel_begins_when_it_takes_something_else,
                what_is_whole_is_not_suspicious,
                commands_without_their_event_are_found_in_pages,
                what_the_dead_hold_and_what_is_ahead_is_found,
                an_event_is_read_with_its_cause_and_its_ways,
                a_repair_is_done_once_and_with_its_fact,
                a_command_goes_back_unless_its_effect_is_there;
            cleaning:
                timers_that_ended_long_ago_are_cleaned_up,
                units_begun_long_ago_are_cleaned_up,
                leases_of_instances_that_are_gone_are_cleaned_up;
            following:
                a_follower_moves_from_where_it_was_found;
            letters:
                a_due_letter_is_with_one_holder_at_a_time,
                a_handled_letter_lets_the_next_of_its_lane_go_on,
                letters_that_wait_for_nothing_go_on,
                a_delivery_is_one_letter_however_often_it_fails,
                a_letter_given_back_ends_unless_it_was_set_aside_anew,
                letters_are_found_by_what_they_are,
                a_dead_letter_is_the_operators,
                a_death_at_the_broker_is_taken_in_once,
                letters_that_ended_long_ago_are_cleaned_up;
            listings:
                commands_are_listed_the_last_one_first,
                outbox_rows_are_listed_by_channel_and_status,
                aggregates_are_listed_by_id,
                an_id_is_traced_to_its_flows;
            notices:
                a_notice_is_heard_where_the_database_carries_it;
            observations:
                what_is_watched_lives_and_dies_with_its_transaction,
                what_is_due_is_listed_in_order_and_once,
                observers_do_not_see_each_others_subjects,
                what_is_older_replaces_nothing,
                what_is_held_is_found_by_no_hint,
                what_was_asked_for_stays_due_until_it_is_seen,
                a_goal_is_waited_for_from_the_first_look_on,
                a_look_that_ended_says_when_the_next_is_due,
                a_look_at_something_older_moves_nothing_newer,
                a_failure_is_kept_until_a_look_comes_to_its_end,
                who_has_lost_the_lease_notes_nothing,
                all_are_due_again_after_what_was_asked_for,
                what_was_watched_elsewhere_is_adopted_with_what_is_known,
                texts_of_any_size_are_kept_to_the_letter,
                writers_of_one_subject_leave_the_newest;
            positions:
                the_page_size_is_for_the_life_of_the_log,
                what_waits_for_a_position_is_known_by_a_mark,
                sizes_are_those_of_the_payloads;
            processes:
                the_facts_that_a_process_took_are_kept,
                who_locks_an_aggregate_has_it_alone,
                an_open_task_is_found_by_its_key,
                timers_have_names_within_their_process,
                what_is_to_be_undone_comes_back_the_last_first,
                what_is_not_to_be_undone_is_forgotten,
                what_is_over_of_processes_is_forgotten;
            projections:
                how_far_an_aggregate_is_lives_and_dies_with_its_transaction,
                eight_that_make_one_aggregate_take_turns,
                what_does_not_go_on_is_told_until_it_does,
                aggregates_are_walked_with_how_far_they_are,
                a_newer_version_has_made_all;
            queues:
                a_topology_grows_from_the_revision_that_was_read,
                a_message_is_with_one_receiver_at_a_time,
                a_delayed_message_waits_for_its_time,
                a_receiver_takes_so_many_bytes_and_at_least_one,
                messages_of_a_receiver_that_is_gone_come_back,
                a_receiver_that_ends_gives_back_its_own,
                who_takes_alone_is_followed_by_the_next;
            recent:
                what_happened_lately_is_told;
            rules:
                a_transaction_is_begun_under_the_newest_lease,
                an_append_is_written_as_the_rules_have_it,
                the_facts_of_one_append_are_found_together;
            tasks:
                a_task_survives_to_the_letter,
                tasks_live_and_die_with_their_transaction,
                tasks_are_taken_by_priority_and_age,
                a_task_waits_for_its_time,
                a_claim_of_tasks_takes_so_many_bytes_and_at_least_one,
                tasks_that_wait_are_looked_at_and_not_taken,
                one_task_is_taken_by_its_id,
                a_tick_of_a_schedule_is_taken_once,
                claimers_never_share_a_task,
                an_open_key_is_taken_once,
                eight_starters_of_a_key_begin_one_task,
                a_key_that_is_undone_is_free,
                who_is_silent_is_taken_over_and_cannot_answer,
                what_was_taken_unheard_is_given_back,
                a_worker_that_lives_keeps_its_tasks,
                an_attempt_whose_time_is_over_is_taken_over,
                attempts_that_end_together_end_each_in_its_way,
                an_end_that_is_told_again_is_no_loss,
                ends_of_any_number_and_size_are_written,
                ends_live_and_die_with_their_transaction,
                a_task_is_called_off,
                a_task_that_failed_is_tried_again_by_hand,
                tasks_are_listed_by_what_they_are,
                tasks_to_be_done_are_counted,
                tasks_that_ended_long_ago_are_cleaned_up,
                a_worker_that_ends_anywhere_leaves_no_task_stuck;
        }
    };
    (@cases $fixture:expr; $($module:ident: $($case:ident),+;)+) => {
        $($(
            #[::tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $case() {
                let fixture = $fixture;
                let case = $crate::store::$module::$case(&fixture);
                $crate::store::run_case(stringify!($case), case).await;
            }
        )+)+
    };
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// A case that is written but not listed would never run, and nothing would say so.
    #[test]
    fn every_case_is_listed_in_the_macro() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store");
        let list = include_str!("mod.rs");
        let parts = list.split("@cases $fixture;\n").skip(1).map_while(|part| part.split_once('}'));
        let words = parts.flat_map(|(part, _)| part.split([',', ';', '\n', ' ']));
        let listed: BTreeSet<&str> = words.filter(|word| !word.is_empty()).collect();
        let mut written = BTreeSet::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let source = std::fs::read_to_string(&path).unwrap();
            let mut cases = 0;
            for line in source.lines().filter(|line| line.contains("(fixture: &impl StoreFixture) {")) {
                if let Some((name, _)) =
                    line.strip_prefix("pub async fn ").and_then(|line| line.split_once('('))
                {
                    written.insert(name.to_owned());
                    cases += 1;
                }
            }
            if cases > 0 {
                written.insert(format!("{}:", path.file_stem().unwrap().display()));
            }
        }
        assert_eq!(listed, written.iter().map(String::as_str).collect());
    }

    /// What no case calls has no meaning yet.
    #[test]
    fn every_operation_of_the_store_has_a_case() {
        let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let read_all = |folder: std::path::PathBuf| -> String {
            let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
            files.map(|path| std::fs::read_to_string(path).unwrap()).collect()
        };
        let cases = read_all(here.join("src/store"));
        let ports = read_all(here.join("../core/src/ports/store"));
        let operations = ports.lines().filter_map(|line| line.strip_prefix("    async fn ")?.split_once('('));
        let names: BTreeSet<&str> = operations.map(|(name, _)| name).collect();
        assert!(names.len() > 100, "they are found where they stand");
        let missing: Vec<_> = names.iter().filter(|name| !cases.contains(&format!(".{name}("))).collect();
        assert_eq!(missing, [&""; 0], "operations without a case");
    }
}
