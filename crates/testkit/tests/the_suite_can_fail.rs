//! Each way of being broken makes the case fail that is there for it: the suite is not a row of green lights.

mod memory;

use memory::{Fault, MemoryFixture};
use towpath_testkit::store::*;

macro_rules! broken {
    ($($name:ident: $fault:ident => $module:ident::$case:ident;)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                let case = tokio::spawn(async {
                    let fixture = MemoryFixture::broken(Fault::$fault);
                    run_case(stringify!($case), $module::$case(&fixture)).await;
                });
                let failed = case.await.is_err_and(|error| error.is_panic());
                assert!(failed, "{} passed a store with the fault {:?}", stringify!($case), Fault::$fault);
            }
        )+
    };
}

broken! {
    a_conflict_leaves_outbox_rows: ConflictLeavesOutboxRows => appends::a_version_conflict_writes_nothing;
    the_sequencer_has_a_cursor: SequencerHasACursor => late_commits::a_late_commit_is_neither_skipped_nor_lost;
    the_sequencer_has_a_cursor_beside_a_successor: SequencerHasACursor => late_commits::a_late_commit_keeps_its_place_before_its_successors;
    a_claim_has_a_cursor: ClaimHasACursor => late_commits::a_late_commit_is_neither_skipped_nor_lost;
    the_sequencer_waits_for_open_transactions: SequencerWaitsForOpenTransactions => late_commits::a_late_commit_is_neither_skipped_nor_lost;
    a_rollback_leaves_a_position: RollbackLeavesAPosition => late_commits::a_late_rollback_leaves_no_gap;
    the_sequencer_is_not_fenced: SequencerIsNotFenced => sequencing::a_fenced_sequencer_gives_no_positions;
    the_sequencer_is_not_fenced_in_a_race: SequencerIsNotFenced => sequencing::two_sequencers_at_once_give_each_event_one_position;
    the_sequencer_is_fenced_too_early: SequencerIsFencedTooEarly => leases::a_takeover_falls_before_or_after_what_the_holder_does;
    commands_are_ended_in_any_epoch: ClaimsHaveNoEpoch => commands::a_command_of_an_earlier_epoch_cannot_be_ended_in_a_later_one;
    timers_are_ended_in_any_epoch: ClaimsHaveNoEpoch => timers::a_timer_of_an_earlier_epoch_cannot_be_ended_in_a_later_one;
    only_sending_opens_a_lane: OnlySendingOpensALane => outbox::a_parked_row_that_need_not_be_waited_for_opens_its_lane;
    events_are_not_compared: EventsAreNotCompared => outbox::a_result_is_of_its_event_and_of_no_other;
    sent_rows_park: SentRowsPark => outbox::a_row_that_was_sent_parks_nothing;
    seen_commands_are_returned: ReturnsWhatIsSeen => commands::a_claim_whose_answer_was_lost_can_be_returned;
    seen_timers_are_returned: ReturnsWhatIsSeen => timers::a_claim_whose_answer_was_lost_can_be_undone;
    only_one_lease_is_checked: OnlyOneLeaseIsChecked => leases::results_are_written_under_every_lease_or_not_at_all;
    a_release_forgets_the_epoch: ReleaseForgetsTheEpoch => leases::a_released_lease_is_free_and_its_epoch_goes_on;
    a_lease_is_given_to_anyone: LeaseIsGivenToAnyone => leases::one_of_eight_contenders_gets_the_lease;
    leases_live_by_the_callers_clock: LeasesLiveByTheCallersClock => commands::only_commands_of_a_gone_holder_are_recovered;
    old_snapshots_stay: OldSnapshotsStay => appends::a_folded_state_does_not_outlive_its_version;
    cleaning_walks: CleaningWalks => outbox::cleaning_does_not_walk_over_what_must_stay;
    cleaning_ends_with_the_young: CleaningEndsWithTheYoung => outbox::what_was_sent_late_does_not_hide_what_is_old;
    cleaning_takes_open_commands: CleaningTakesOpenCommands => commands::commands_that_ended_long_ago_are_cleaned_up;
    holders_are_not_compared: HoldersAreNotCompared => leases::a_holder_of_the_same_epoch_is_fenced_everywhere;
    holders_of_operations_are_not_compared: LostOperationsAreNotFenced => operations::an_operation_taken_over_twice_in_one_epoch_has_one_holder;
    every_store_has_its_own_time: EveryStoreHasItsOwnTime => leases::all_stores_of_a_database_have_one_time;
    recovery_takes_from_the_living: RecoveryTakesFromTheLiving => commands::commands_of_a_released_or_expired_lease_are_recovered;
    a_claim_marks_nothing: ClaimMarksNothing => commands::claimers_never_share_a_command;
    commands_are_due_by_the_machines_clock: DueByTheMachinesClock => commands::a_failed_command_is_claimed_when_its_retry_is_due;
    timers_are_due_by_the_machines_clock: DueByTheMachinesClock => timers::due_timers_come_in_order;
    outbox_rows_are_due_by_the_machines_clock: DueByTheMachinesClock => outbox::a_parked_retry_holds_its_lane_until_it_is_sent;
    the_last_writer_wins: LastWriterWins => races::two_writers_race_for_one_version;
    the_last_writer_wins_at_any_version: LastWriterWins => appends::expecting_any_version_gives_consecutive_ones_to_concurrent_writers;
    a_command_id_is_not_unique: CommandIdIsNotUnique => commands::the_same_command_twice_at_once_has_one_effect;
    new_rows_pass_the_parked_one: NewRowsPassTheParkedOne => outbox::a_parked_retry_holds_its_lane_until_it_is_sent;
    rows_in_flight_pass_the_parked_one: NewRowsPassTheParkedOne => outbox::a_row_written_while_its_lane_is_parked_waits_too;
    the_whole_lane_comes_when_due: TheWholeLaneComesWhenDue => outbox::a_parked_retry_holds_its_lane_until_it_is_sent;
    parking_stops_the_channel: ParkingStopsTheChannel => outbox::one_poisoned_lane_stalls_no_other;
    units_do_not_wait: UnitsDoNotWait => units::a_unit_that_is_open_is_waited_for;
    units_survive_their_rollback: UnitsSurviveRollback => units::a_unit_is_noted_by_its_commit;
    sent_commands_survive_their_rollback: SentCommandsSurviveRollback => units::a_command_is_sent_with_its_transaction;
    a_mark_does_not_wait: MarkDoesNotWait => inbox::two_transactions_marking_one_delivery_take_turns;
    a_mark_survives_its_rollback: MarkSurvivesRollback => inbox::a_rolled_back_mark_leaves_the_delivery_first;
    a_failure_reopens_the_handled: FailureReopensTheHandled => inbox::a_delivery_in_retry_can_still_be_handled;
    payloads_are_normalised: PayloadsAreNormalised => payloads::payloads_survive_to_the_letter;
    operation_names_are_not_unique: OperationNamesAreNotUnique => operations::one_of_eight_twins_begins;
    lost_operations_are_not_fenced: LostOperationsAreNotFenced => operations::an_operation_of_a_dead_process_is_taken_over_and_fenced;
    answers_are_written_by_who_lost_the_operation: LostOperationsAreNotFenced => operations::an_answer_is_written_with_its_effect_or_not_at_all;
    answers_survive_their_rollback: AnswersSurviveRollback => operations::an_answer_is_written_with_its_effect_or_not_at_all;
    ids_ignore_case: IdsIgnoreCase => payloads::aggregate_ids_are_compared_to_the_letter;
    times_in_milliseconds: TimesInMilliseconds => commands::a_command_record_survives_to_the_letter;
    a_command_commits_in_two_steps: CommandCommitsInTwoSteps => kill::a_process_killed_between_any_two_statements_leaves_no_harm;
    duplicate_events_are_skipped: DuplicateEventsAreSkipped => appends::a_duplicate_event_id_is_refused_and_writes_nothing;
    the_status_of_any_tenant: StatusOfAnyTenant => statuses::a_status_comes_from_the_tenants_dictionary;
    a_removed_name_stays_taken: RemovedNameStaysTaken => channels::a_removed_channel_frees_its_name;
    loading_asks_twice: LoadAsksTwice => round_trips::a_load_is_one_round_trip;
    timers_are_taken_from_the_living: TimersAreTakenFromTheLiving => timers::timers_of_a_gone_holder_are_taken_over;
    timers_of_any_command_are_taken: TimersOfAnyCommand => timers::timers_for_unknown_commands_are_left_alone;
    postponing_counts: PostponingCounts => timers::a_postponed_timer_comes_again_uncounted;
    left_states_keep_their_deadline: LeftStatesKeepTheirDeadline => timers::a_deadline_lives_and_dies_with_its_state;
    fenced_commands_are_not_fenced: FencedCommandsAreNotFenced => leases::a_command_under_a_lost_lease_changes_nothing;
    positions_are_not_fenced: PositionsAreNotFenced => channels::a_position_moves_from_where_it_was_and_under_its_lease;
    resets_are_not_counted: ResetsAreNotCounted => channels::a_position_moves_from_where_it_was_and_under_its_lease;
    claims_of_commands_have_no_room: ClaimsHaveNoRoom => commands::a_claim_takes_so_many_bytes_and_at_least_one;
    claims_of_timers_have_no_room: ClaimsHaveNoRoom => timers::a_claim_of_timers_takes_so_many_bytes_and_at_least_one;
    all_that_is_parked_is_due: AllThatIsParkedIsDue => channels::those_that_are_due_are_asked_for_and_those_that_are_met;
    parked_outlive_their_channel: ParkedOutliveTheirChannel => channels::what_is_left_behind_goes_with_its_channel;
    migrations_run_twice: MigrationsRunTwice => migrations::four_instances_migrate_at_once;
}
