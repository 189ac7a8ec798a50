from __future__ import annotations

import cloudpickle
import pytest
from tests.contracts.engine_contract.contract import EngineContract, EngineFixture

from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from muster.engines.local.worker_pool import LocalOptions

OPTIONS = LocalOptions(quiet=True, kill_after_s=0.3)


def open_local(trainables, capacity, **more):
    blobs = {name: cloudpickle.dumps(made) for name, made in trainables.items()}
    return LocalEngine(clock=SystemClock(), trainables=blobs, capacity=capacity, options=OPTIONS, **more)


@pytest.mark.slow
class TestLocalEngine(EngineContract):
    """Runs the contract; overridden methods only carry the ids of the behaviours that they show."""

    def open_engine(self, trainables, capacity):
        return open_local(trainables, capacity)

    @pytest.mark.conformance("C-015")
    def test_an_unknown_trainable_fails_its_trial(self, driver):
        super().test_an_unknown_trainable_fails_its_trial(driver)

    @pytest.mark.conformance("C-015")
    def test_one_trial_may_fail_while_another_goes_on(self, driver):
        super().test_one_trial_may_fail_while_another_goes_on(driver)

    @pytest.mark.conformance("C-262")
    def test_each_start_has_exactly_one_exit(self, engine, driver):
        super().test_each_start_has_exactly_one_exit(engine, driver)

    @pytest.mark.conformance("C-263")
    def test_stop_before_it_has_resources_is_an_exit_too(self, engine, driver):
        super().test_stop_before_it_has_resources_is_an_exit_too(engine, driver)

    @pytest.mark.conformance("C-264")
    def test_ignoring_sigterm_helps_nothing(self, engine, driver, tmp_path):
        super().test_ignoring_sigterm_helps_nothing(engine, driver, tmp_path)

    @pytest.mark.conformance("C-264")
    def test_stop_while_it_works_ends_it_after_the_grace(self, engine, driver):
        super().test_stop_while_it_works_ends_it_after_the_grace(engine, driver)


@pytest.mark.slow
class TestLocalEngineWithFreshInterpreters(EngineFixture):
    """As on macOS: those promises that depend on how a process is made."""

    def open_engine(self, trainables, capacity):
        return open_local(trainables, capacity, warm=False)

    failure = EngineContract.failure
    test_a_trial_runs_to_its_end = EngineContract.test_a_trial_runs_to_its_end
    test_a_trial_goes_on_from_a_checkpoint = EngineContract.test_a_trial_goes_on_from_a_checkpoint
    test_functions_are_reused_in_one_process = EngineContract.test_functions_are_reused_in_one_process
    test_what_a_trial_forked_ends_with_it = EngineContract.test_what_a_trial_forked_ends_with_it
    test_ignoring_sigterm_helps_nothing = EngineContract.test_ignoring_sigterm_helps_nothing
    test_close_leaves_no_process = EngineContract.test_close_with_trials_alive_leaves_no_process
    test_os_exit_without_a_word = EngineContract.test_os_exit_without_a_word
    test_a_class_is_reset_for_the_next_trial = EngineContract.test_a_class_is_reset_for_the_next_trial
