"""Lines 10.1-10.3 and 10.8 of the conformance list: tests elsewhere, what differs, what comes later."""

from __future__ import annotations

_ENGINE = "tests/contracts/test_local_engine.py::TestLocalEngine::"
_LOCAL = "tests/engines/local/test_engine.py::"
_CORE = "tests/trials/test_experiment.py::"
_RUN = "tests/tune/test_run.py::"
_RESTORING = "tests/tune/execution/test_restore.py::"
_TRAINABLE = "tests/tune/trainable/test_trainable.py::"
_PARAMETERS = "tests/tune/trainable/test_parameters.py::"
_RESOURCES = "tests/tune/trainable/test_resources.py::"


def _ids(first: int, last: int) -> list[str]:
    return [f"C-{number:03d}" for number in range(first, last + 1)]


IDS = (*_ids(1, 41), *_ids(50, 59), *_ids(70, 104), *_ids(260, 270))

ELSEWHERE = {
    "C-002": (f"{_RUN}test_every_trial_can_begin_with_one_checkpoint",),
    "C-003": (f"{_CORE}test_at_end_saves_before_the_trial_stops",),
    "C-004": (f"{_CORE}test_a_paused_trial_saves_and_goes_on_later_from_there",),
    "C-015": (
        f"{_ENGINE}test_an_unknown_trainable_fails_its_trial",
        f"{_ENGINE}test_one_trial_may_fail_while_another_goes_on",
    ),
    "C-018": (
        f"{_CORE}test_fail_fast_stops_the_others",
        "tests/tune/test_tuner.py::test_fail_fast_raise_gives_the_trials_own_exception",
    ),
    "C-024": (
        f"{_CORE}test_a_criterion_ends_a_trial_and_the_searcher_sees_its_last_result_only_at_completion",
    ),
    "C-025": (f"{_CORE}test_a_scheduler_that_always_stops",),
    "C-030": (f"{_RESTORING}test_an_interrupted_run_goes_on_with_its_callbacks_where_they_were",),
    "C-070": (
        "tests/tune/test_experiment.py::test_a_function_cannot_be_saved_from_outside",
        "tests/tune/trainable/test_checkpointing.py::test_a_function_makes_its_checkpoints_itself",
    ),
    "C-072": (
        f"{_PARAMETERS}test_a_function_gets_its_parameters_and_keeps_its_name",
        f"{_PARAMETERS}test_the_wrapper_is_small_however_large_the_payload",
        f"{_PARAMETERS}test_two_wraps_of_one_function_stay_apart",
        f"{_PARAMETERS}test_parameters_reach_real_trials",
    ),
    "C-073": (
        f"{_RESOURCES}test_a_function_with_resources_is_another_function",
        f"{_RESOURCES}test_a_bound_method_can_have_resources",
        f"{_RESOURCES}test_a_class_with_resources_is_a_subclass_of_the_same_name",
        f"{_RESOURCES}test_parameters_and_resources_combine_in_either_order",
    ),
    "C-074": (f"{_TRAINABLE}test_no_checkpoint_directory_is_used_twice",),
    "C-075": (f"{_TRAINABLE}test_saving_and_restoring_commute",),
    "C-079": (
        f"{_TRAINABLE}test_timesteps_are_summed_and_a_reported_total_is_kept",
        "tests/session/test_progress.py::test_steps_are_counted_once_somebody_reports_them",
    ),
    "C-090": (
        f"{_TRAINABLE}test_inside_of_a_trial_it_knows_its_names_and_iterations",
        f"{_LOCAL}test_the_context_of_a_trial",
    ),
    "C-092": (
        "tests/tune/trainable/test_registry.py::test_an_unknown_trainable_is_a_tune_error",
        f"{_RUN}test_a_registered_name_can_be_run",
        "tests/tune/test_experiment.py::test_what_is_no_experiment_is_refused",
    ),
    "C-093": ("tests/tune/trainable/test_registry.py::test_only_functions_and_trainables_can_be_registered",),
    "C-094": ("tests/tune/trainable/test_registry.py::test_a_later_registration_overwrites",),
    "C-098": ("tests/tune/trainable/test_packing.py::test_what_cannot_be_pickled_is_named_with_its_place",),
    "C-099": (
        "tests/tune/trainable/test_packing.py::test_a_trainable_that_carries_its_data_is_sent_back_with_advice",
    ),
    "C-101": (
        "tests/tune/schedulers/test_create.py::test_an_unknown_name_is_an_error_that_lists_the_known_ones",
        "tests/tune/schedulers/test_create.py::"
        "test_arguments_are_passed_on_and_those_of_other_schedulers_left_out_with_a_warning",
        "tests/tune/search/test_wrappers.py::test_an_unknown_name_is_a_value_error_with_the_known_ones",
    ),
    "C-103": (
        f"{_LOCAL}test_a_trial_works_in_its_directory_and_knows_where_we_were",
        f"{_LOCAL}test_the_working_directory_stays_when_the_environment_says_so",
    ),
    "C-263": (f"{_ENGINE}test_stop_before_it_has_resources_is_an_exit_too",),
    "C-264": (
        f"{_ENGINE}test_ignoring_sigterm_helps_nothing",
        f"{_ENGINE}test_stop_while_it_works_ends_it_after_the_grace",
    ),
    "C-265": (
        "tests/engines/local/test_resources.py::test_fractions_end_at_exactly_nothing_and_come_back_exactly",
    ),
}

# What we do instead; the tests named show it.
DIFFERENT = {
    "C-009": (
        "no forced syncs: facts are durable at every step, and checkpoints are deleted only afterwards",
        "tests/stores/test_checkpoints.py::test_nothing_is_deleted_before_its_fact_is_durable_or_while_it_is_used",
    ),
    "C-016": (
        "a step after the end answers False, as the last one did, instead of raising",
        "tests/conformance/test_controller.py::test_c016_a_step_after_the_end_says_so_and_does_nothing",
    ),
    "C-023": (
        "one store for all lives of an experiment, written in whole commits, instead of a file per session",
        f"{_RESTORING}test_a_trial_that_runs_again_is_known_to_later_restores",
    ),
    "C-095": (
        "impossible resources fail the trial at once, with both numbers: on one machine waiting is for ever",
        f"{_CORE}test_what_can_never_fit_fails_with_both_numbers",
    ),
    "C-104": (
        "what is told is at most 20 lines; error.txt keeps the whole traceback, which is nowhere else",
        "tests/conformance/test_functions_and_classes.py::"
        "test_c104_what_is_told_of_a_failure_is_short_and_its_file_has_all",
    ),
    "C-262": (
        "exactly one exit per start tells of any death, wherever it happened",
        f"{_ENGINE}test_each_start_has_exactly_one_exit",
    ),
    "C-267": (
        "one machine packs strictly by itself; only STRICT_SPREAD is refused",
        "tests/engines/local/test_resources.py::test_what_can_never_be_is_told_from_what_must_wait",
    ),
    "C-270": (
        "idle processes wait for a trial with equal trainable, resources and GPUs; there are no quotas",
        f"{_LOCAL}test_idle_processes_of_other_trainables_are_not_mistaken",
    ),
}

NOT_HERE = {
    "C-102": "issue 5: tasks of Ray inside of a trial; here a trial forks what it likes",
    "C-268": "issue 5: placement groups of Ray",
}
