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
pub mod appends;
pub mod audit;
pub mod channels;
pub mod commands;
pub mod facts;
pub mod idle;
pub mod inbox;
pub mod kill;
pub mod late_commits;
pub mod leases;
pub mod migrations;
pub mod observations;
pub mod operations;
pub mod outbox;
pub mod payloads;
pub mod races;
pub mod reads;
pub mod round_trips;
pub mod sequencing;
pub mod sessions;
pub mod statuses;
pub mod timers;
pub mod units;
pub mod waiting;
pub mod workload;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use towpath_core::ports::probe::{NoProbe, Probe};
use towpath_core::ports::store::Store;

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
    async fn connect(&self, probe: Arc<dyn Probe>) -> Arc<dyn Store>;

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
    async fn store(&self) -> Arc<dyn Store> {
        let store = self.connect(Arc::new(NoProbe)).await;
        store.migrate().await.expect("migrate");
        store
    }

    /// A migrated store whose statements a probe sees; it has not seen those of the migration.
    async fn store_with_probe(&self, probe: Arc<dyn Probe>) -> Arc<dyn Store> {
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
#[macro_export]
macro_rules! store_conformance {
    ($fixture:expr) => {
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
        let (_, list) = list.split_once("@cases $fixture;\n").unwrap();
        let (list, _) = list.split_once('}').unwrap();
        let listed: BTreeSet<&str> =
            list.split([',', ';', '\n', ' ']).filter(|word| !word.is_empty()).collect();
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
}
