"""Where the second half of the conformance list (C-110 to C-249) is tested, if not in this directory."""

from __future__ import annotations

_SEARCH, _SCHEDULERS = "tests/tune/search", "tests/tune/schedulers"
_PBT, _EXPLORE = f"{_SCHEDULERS}/test_pbt.py", f"{_SCHEDULERS}/test_pbt_explore.py"
_PBT_LOG, _PB2 = f"{_SCHEDULERS}/test_pbt_log.py", f"{_SCHEDULERS}/test_pb2.py"
_LOGGER, _REPORTING = "tests/tune/logger", "tests/tune/reporting"
_VARIANTS, _BASIC = f"{_SEARCH}/test_variants.py", f"{_SEARCH}/test_basic_variant.py"
_DOMAINS, _WRAPPERS = f"{_SEARCH}/test_domains.py", f"{_SEARCH}/test_wrappers.py"
_OPTUNA, _PLACEHOLDERS = f"{_SEARCH}/test_optuna_search.py", f"{_SEARCH}/test_placeholders.py"
_ASHA, _STOPPERS = f"{_SCHEDULERS}/test_asha.py", "tests/tune/stopper/test_stoppers.py"
_HYPERBAND, _BOHB = f"{_SCHEDULERS}/test_hyperband.py", f"{_SCHEDULERS}/test_hb_bohb.py"
_MEDIAN = f"{_SCHEDULERS}/test_median_stopping_rule.py"
_ELASTIC = f"{_SCHEDULERS}/test_resource_changing.py"
_RESTORING, _STORAGE = "tests/tune/execution/test_restore.py", "tests/stores/test_storage.py"

ELSEWHERE: dict[str, tuple[str, ...]] = {
    "C-114": (
        f"{_VARIANTS}::test_a_function_of_a_grid_value_and_a_grid_in_its_result",
        f"{_VARIANTS}::test_functions_may_be_options_of_a_grid",
    ),
    "C-117": (f"{_DOMAINS}::test_log_uniform_reaches_both_ends",),
    "C-120": (f"{_DOMAINS}::test_what_cannot_be_drawn_is_a_value_error",),
    "C-121": (f"{_BASIC}::test_a_point_replaces_a_sample_and_goes_through_what_it_leaves_open",),
    "C-124": (
        f"{_WRAPPERS}::test_the_third_suggestion_waits_until_a_trial_completes",
        f"{_WRAPPERS}::test_what_a_limiter_knows_survives_saving",
    ),
    "C-125": (f"{_WRAPPERS}::test_a_batch_with_fewer_trials_than_slots_ends",),
    "C-126": (f"{_WRAPPERS}::test_a_searcher_that_limits_itself_is_only_forwarded_to",),
    "C-127": (f"{_WRAPPERS}::test_a_half_filled_group_survives_saving",),
    "C-128": (f"{_BASIC}::test_unfinished_trials_are_limited",),
    "C-130": (
        f"{_OPTUNA}::test_evaluated_points_become_complete_failed_or_pruned",
        f"{_OPTUNA}::test_a_function_may_branch_and_add_constants",
        f"{_OPTUNA}::test_several_objectives_and_observed_metrics",
        f"{_OPTUNA}::test_a_study_in_a_database_is_continued",
        f"{_OPTUNA}::test_what_comes_after_the_end_is_ignored_with_a_warning",
    ),
    "C-133": (
        f"{_SEARCH}/test_bayesopt.py::test_the_precision_is_checked",
        f"{_SEARCH}/test_bayesopt.py::test_a_search_that_repeats_itself_stops_early",
    ),
    "C-134": (
        f"{_PLACEHOLDERS}::test_hashes_depend_on_the_path_alone",
        f"{_PLACEHOLDERS}::test_what_was_set_aside_comes_back_the_same",
        f"{_PLACEHOLDERS}::test_functions_see_objects_and_each_other_in_any_order",
        f"{_PLACEHOLDERS}::test_those_that_are_not_in_the_config_are_skipped",
        f"{_PLACEHOLDERS}::test_primitives_and_number_domains_stay",
    ),
    "C-150": (f"{_MEDIAN}::test_a_constant_trial_stops_when_the_mean_of_the_other_has_passed_it",),
    "C-151": (f"{_MEDIAN}::test_nothing_is_stopped_within_the_grace_period",),
    "C-152": (f"{_MEDIAN}::test_nothing_is_stopped_with_fewer_others_than_required",),
    "C-153": (f"{_MEDIAN}::test_a_soft_stop_pauses_once",),
    "C-154": (
        f"{_ASHA}::test_infinite_and_missing_scores_never_crash",
        f"{_MEDIAN}::test_others_without_a_finite_mean_do_not_count",
        f"{_HYPERBAND}::test_scores_that_are_no_numbers_never_stop_the_experiment_from_ending",
        f"{_SCHEDULERS}/test_asha_promotion.py::test_nan_is_never_promoted_and_counts_as_the_worst",
    ),
    "C-155": (
        f"{_ASHA}::test_a_trial_is_stopped_at_max_t_however_good",
        f"{_ASHA}::test_nothing_is_stopped_before_the_grace_period",
        f"{_ASHA}::test_a_score_below_the_percentile_of_those_before_it_is_stopped",
        f"{_ASHA}::test_nan_stops_nobody_and_counts_for_nothing",
        f"{_ASHA}::test_rungs_survive_saving_by_path_by_bytes_and_by_pickle",
    ),
    "C-156": (f"{_ASHA}::test_the_last_trials_keep_running_when_asked",),
    "C-157": (
        f"{_HYPERBAND}::test_the_brackets_for_81_and_3_are_those_of_the_paper",
        f"{_HYPERBAND}::test_the_brackets_for_1000_and_10",
    ),
    "C-158": (f"{_HYPERBAND}::test_81_trials_become_1_and_only_the_last_of_a_rung_does_not_pause",),
    "C-159": (f"{_HYPERBAND}::test_a_member_that_failed_or_ended_does_not_hold_up_the_others",),
    "C-160": (f"{_HYPERBAND}::test_a_trial_that_comes_after_a_halving_has_to_catch_up",),
    "C-161": (
        f"{_HYPERBAND}::test_the_first_bracket_runs_to_the_end",
        f"{_HYPERBAND}::test_the_second_bracket_is_halved_at_4_and_stops_at_8",
        f"{_HYPERBAND}::test_without_stop_last_trials_the_last_ones_go_on",
        f"{_HYPERBAND}::test_trials_that_jump_over_the_last_milestone_are_halved_and_done_at_once",
    ),
    "C-162": (f"{_HYPERBAND}::test_a_bracket_whose_first_milestone_would_be_0_is_left_out",),
    "C-163": (
        f"{_BOHB}::test_the_largest_bracket_comes_first",
        f"{_BOHB}::test_results_carry_the_budget_where_trials_are_compared",
        f"{_BOHB}::test_the_searcher_hears_of_pauses_and_of_who_goes_on",
        f"{_BOHB}::test_a_bracket_that_is_not_full_is_compared_only_when_nothing_runs",
    ),
    "C-164": (
        f"{_PBT}::test_a_search_algorithm_is_refused",
        f"{_PBT}::test_a_result_without_metric_or_time_is_an_error_that_names_both",
    ),
    "C-165": (
        f"{_PBT}::test_the_worst_goes_on_from_the_best_with_a_changed_value_and_a_tag_that_says_so",
        f"{_PBT}::test_without_synch_only_the_best_save_and_the_worst_are_exchanged",
    ),
    "C-166": (
        f"{_EXPLORE}::test_a_value_is_multiplied_or_moves_to_a_neighbour_and_keeps_its_type",
        f"{_EXPLORE}::test_with_certainty_a_value_is_drawn_anew",
        f"{_EXPLORE}::test_a_mutation_of_no_known_kind_is_refused",
    ),
    "C-167": (f"{_PBT}::test_the_most_behind_runs_next",),
    "C-168": (f"{_PBT}::test_a_perturbation_starts_the_interval_anew",),
    "C-169": (
        f"{_PBT_LOG}::test_every_row_has_six_fields_and_replaying_them_gives_the_values_that_were_used",
        f"{_PBT_LOG}::test_a_file_that_is_no_policy_is_refused_with_its_line",
    ),
    "C-170": (f"{_PBT}::test_a_bad_trial_reaches_the_best_value_by_copying_it",),
    "C-171": (
        f"{_PBT}::test_exploiting_a_trial_whose_save_takes_long_waits_for_it_without_holding_up_others",
    ),
    "C-172": (f"{_PBT}::test_burn_in_keeps_everything_as_it_is_and_leaves_no_trial_waiting",),
    "C-173": (f"{_PBT}::test_what_is_kept_of_a_population_does_not_grow_with_time",),
    "C-174": (f"{_PBT}::test_quantiles_are_equally_large_and_share_nobody",),
    "C-175": (f"{_PBT}::test_trials_without_the_mutated_values_are_given_some",),
    "C-176": (
        f"{_PB2}::test_nested_and_flat_bounds_give_the_same_values_of_the_types_they_had",
        f"{_PB2}::test_missing_values_are_drawn_within_their_bounds",
        f"{_PB2}::test_bounds_that_cannot_be_are_refused",
        f"{_PB2}::test_it_can_be_pickled_with_a_lambda",
    ),
    "C-177": (f"{_ELASTIC}::test_c177_free_cpus_are_shared_evenly",),
    "C-178": (f"{_ELASTIC}::test_c178_units_of_cpus_and_gpus",),
    "C-179": (f"{_ELASTIC}::test_c179_no_more_than_so_many_units",),
    "C-180": (f"{_ELASTIC}::test_c180_a_trial_with_too_much_shrinks_when_others_wait",),
    "C-181": (f"{_ELASTIC}::test_c181_bundles_are_added_and_taken_away_and_the_head_stays",),
    "C-182": (f"{_ELASTIC}::test_c182_only_the_best_trial_grows",),
    "C-190": (f"{_STOPPERS}::TestTimeout::test_the_rest_of_the_budget_survives_and_downtime_is_free",),
    "C-191": (f"{_STOPPERS}::TestTrialPlateau::test_a_trial_ends_at_its_plateau",),
    "C-192": (f"{_STOPPERS}::TestMaximumIteration::test_each_trial_ends_with_its_own_nth_result",),
    "C-193": (f"{_STOPPERS}::TestExperimentPlateau::test_invalid_arguments_are_refused_by_name",),
    "C-200": (
        f"{_LOGGER}/test_events.py::test_tensorboard_reads_many_rows_with_growing_steps",
        f"{_LOGGER}/test_event_hparams.py::test_unsupported_values_are_left_out_and_named_once_in_the_log",
        f"{_LOGGER}/test_loggers.py::test_another_process_goes_on_where_a_killed_one_left_torn_files",
    ),
    "C-201": (
        f"{_LOGGER}/test_aim.py::test_runs_stand_in_the_experiments_directory_with_config_results_and_end",
        f"{_LOGGER}/test_aim.py::test_metrics_can_be_chosen_but_not_none_at_all",
    ),
    "C-202": (f"{_LOGGER}/test_defaults.py::test_a_name_that_does_not_work_is_told_with_its_cause",),
    "C-203": (
        "tests/tune/test_callback.py::test_without_state_nothing_is_saved_and_restoring_says_so",
        "tests/tune/test_callback.py::test_state_is_kept_by_position_and_only_where_there_is_some",
    ),
    "C-204": (f"{_REPORTING}/test_formats.py::test_durations_begin_with_their_first_part_c204",),
    "C-205": (
        f"{_REPORTING}/test_trial_table.py::test_up_to_twenty_trials_all_have_a_row_c205",
        f"{_REPORTING}/test_trial_table.py::test_thirty_trials_in_three_states_have_five_rows_each_c205",
    ),
    "C-206": (
        f"{_REPORTING}/test_formats.py::test_long_names_keep_their_tail_c206",
        f"{_REPORTING}/test_formats.py::test_headers_wrap_to_two_lines_c206",
    ),
    "C-207": (f"{_REPORTING}/test_tally.py::test_nan_is_never_the_best_and_zero_may_be_c207",),
    "C-208": (
        f"{_REPORTING}/test_plain.py::test_a_heartbeat_comes_every_thirty_seconds_and_not_before_c208",
    ),
    "C-209": (
        f"{_REPORTING}/test_choose.py::test_verbose_zero_is_silent_everywhere",
        f"{_REPORTING}/test_driven.py::test_level_one_shows_the_status_and_no_table_c209",
        f"{_REPORTING}/test_driven.py::test_level_two_shows_a_table_at_the_end_and_a_sentence_per_result_c209",
        f"{_REPORTING}/test_driven.py::test_level_three_shows_tables_always_and_results_whole_c209",
    ),
    "C-210": (
        f"{_REPORTING}/test_choose.py::test_a_notebook_has_html_c210",
        f"{_REPORTING}/test_choose.py::test_only_a_kernel_makes_a_notebook",
    ),
    "C-211": (
        "tests/tune/test_result_grid.py::test_one_trial_needs_no_metric",
        "tests/tune/test_result_grid.py::test_values_that_are_not_finite_are_left_out_unless_asked_for",
        "tests/tune/test_result_grid.py::test_without_a_report_there_is_no_best_result",
    ),
    "C-213": (
        "tests/tune/analysis/test_experiment_analysis.py::test_last_and_best_checkpoint",
        "tests/tune/test_result.py::test_the_best_checkpoint_by_any_metric",
    ),
    "C-231": (
        f"{_RESTORING}::test_resume_errored_goes_on_from_the_newest_checkpoint",
        f"{_RESTORING}::test_restart_errored_begins_again_and_replaces_the_rows",
    ),
    "C-232": (
        f"{_RESTORING}::test_an_interrupted_run_goes_on_with_its_callbacks_where_they_were",
        f"{_RESTORING}::test_unfinished_trials_may_be_left_alone",
    ),
    "C-234": (f"{_RESTORING}::test_another_trainable_is_refused",),
    "C-236": (f"{_RESTORING}::test_a_moved_directory_goes_on_where_it_is_now",),
    "C-239": (f"{_RESTORING}::test_restore_is_asked_of_the_class_and_of_an_experiment",),
    "C-240": (
        f"{_RESTORING}::test_a_space_with_other_keys_is_refused",
        f"{_BASIC}::test_new_objects_may_be_brought_to_a_restored_generator",
    ),
    "C-244": (
        f"{_RESTORING}::test_a_checkpoint_that_is_gone_is_passed_over_for_an_older_one",
        f"{_RESTORING}::test_a_checkpoint_that_lacks_a_file_is_passed_over_too",
    ),
    "C-245": (f"{_RESTORING}::test_restore_is_asked_of_the_class_and_of_an_experiment",),
    "C-246": (
        "tests/cli/tune/test_ls.py::test_rays_default_columns_can_be_asked_for_by_name",
        "tests/cli/tune/test_ls.py::test_filters_compare_numbers_as_numbers_and_drop_trials_without_a_value",
        "tests/cli/tune/test_ls.py::test_an_unknown_column_is_an_error_that_names_the_nearest",
        "tests/cli/tune/test_ls.py::test_the_output_file_has_the_chosen_rows_and_columns",
    ),
    "C-247": (
        f"{_STORAGE}::test_the_caller_is_never_blocked_by_a_transfer_that_hangs",
        f"{_STORAGE}::test_only_what_changed_is_looked_at_and_only_what_differs_is_copied",
        f"{_STORAGE}::test_a_growing_file_is_copied_again_only_every_few_seconds",
        f"{_STORAGE}::test_a_failed_copy_is_tried_again_with_growing_waits_and_told",
        f"{_STORAGE}::test_half_made_directories_and_the_stores_side_files_stay_here",
        f"{_STORAGE}::test_a_failed_download_leaves_no_target",
    ),
}

DIFFERENT: dict[str, str] = {
    "C-242": "a grid of any size is walked by index: no warning, and it can be resumed",
}

NOT_HERE: dict[str, str] = {}
