"""Check the promises of EngineContract that an engine without processes can keep."""

from __future__ import annotations

import math

import pytest
from tests.contracts.engine_contract.contract import EngineContract, EngineFixture
from tests.contracts.engine_contract.fixture import Driver
from tests.contracts.engine_contract.lockstep import LockstepPromises
from tests.contracts.engine_contract.misbehaving import HardPromises
from tests.contracts.engine_contract.resume import ResumePromises
from tests.support.trainables import Point

from muster.base.clock import ManualClock
from muster.sim.tune.engine import SimulatedEngine
from muster.sim.tune.trial import Costs, Curve, FunctionCurve
from muster.trials.events import TrialStarted


class Steps(Curve):
    """The class among the usual trainables: it counts in a memory that checkpoints carry."""

    def begin(self, config):
        return 0

    def advance(self, config, iteration, memory):
        return {"steps": memory + 1, "x": config.get("x")}, memory + 1


def fails(config, iteration):
    if iteration == 2:
        raise ValueError("this is what the user did wrong")
    return {"step": 0}


def fails_deep(config, iteration):
    def deeper(level, odd):
        if level == 0:
            raise RuntimeError("deep down")
        if odd:
            deeper(level - 1, not odd)
        else:
            deeper(level - 1, not odd)

    deeper(40, True)


def needs_memory(config, iteration):
    raise MemoryError("cannot have that much")


def waits_s(config, iteration):
    return 0.0 if iteration == 1 else 1e9


CURVES = {
    "counts": FunctionCurve(
        lambda config, t: {"step": t - 1}, iterations=lambda config: config.get("steps", 3)
    ),
    "saves": FunctionCurve(lambda config, t: {"step": t - 1}, iterations=lambda config: config["steps"]),
    "fails": FunctionCurve(fails),
    "fails_deep": FunctionCurve(fails_deep),
    "needs_memory": FunctionCurve(needs_memory),
    "waits": FunctionCurve(lambda config, t: {"pid": 1}, seconds=waits_s),
    "yields": FunctionCurve(
        lambda config, t: {"_metric": config["values"][t - 1]}, iterations=lambda config: 2
    ),
    "reports_odd_numbers": FunctionCurve(
        lambda config, t: {
            "nan": math.nan,
            "inf": math.inf,
            "big": 2**80,
            "pair": (1, 2),
            "nested": {"a": [1.5]},
        },
        iterations=1,
    ),
    "reports_object": FunctionCurve(lambda config, t: {"point": Point(2.0)}, iterations=1),
    "Steps": Steps(),
}

# Each needs a process: a signal, a fork, a file, a pickle, a value that only a function's return can be.
LEFT_OUT = {
    "test_a_child_killed_from_outside",
    "test_a_child_told_to_end_from_outside",
    "test_a_class_is_reset_for_the_next_trial",  # its counter of resets lives in the process
    "test_a_class_that_refuses_to_be_reset_fails_the_trial",
    "test_a_crash_in_c_code",
    "test_a_fork_of_a_trial_reports_through_the_trial",
    "test_a_function_saves_only_by_reporting",  # a curve can always be saved
    "test_a_lost_checkpoint_fails_the_trial",
    "test_a_reported_checkpoint_is_in_place_under_its_number",  # checkpoints are no directories here
    "test_a_returned_string_is_an_error",
    "test_a_stopped_class_is_cleaned_up",
    "test_an_unserialisable_config_fails_its_trial",
    "test_an_unserialisable_result_is_named",
    "test_both_streams_may_share_a_file",
    "test_close_with_trials_alive_leaves_no_process",
    "test_each_start_has_exactly_one_exit",  # of other trainables: below
    "test_functions_are_reused_in_one_process",  # counts the calls of a module: below
    "test_ignoring_sigterm_helps_nothing",
    "test_objects_in_the_config_arrive",
    "test_os_exit_without_a_word",
    "test_printing_much_goes_to_the_file",
    "test_returned_values_are_reported",
    "test_threads_of_the_trial_may_report",
    "test_what_a_trial_forked_ends_with_it",
    "test_what_has_left_its_session_ends_with_it",
    "test_without_reuse_every_trial_has_a_fresh_process",
    "test_yielded_values_are_reported_one_by_one",
}


WITH_REPORTS = {"test_a_trial_goes_on_from_a_checkpoint"}  # the checkpoints come with the reports


@pytest.mark.slow
class TestSimulatedEngine(EngineFixture):
    def open_engine(self, trainables, capacity):
        return SimulatedEngine(ManualClock(1e9), capacity, CURVES, costs=Costs(start_s=1.0))

    failure = HardPromises.failure


class TestSimulatedEngineThatSavesWithEveryReport(EngineFixture):
    def open_engine(self, trainables, capacity):
        return SimulatedEngine(ManualClock(1e9), capacity, CURVES, costs=Costs(checkpoint_every=1))


for promises in (LockstepPromises, ResumePromises, HardPromises):
    for name, promise in vars(promises).items():
        if name.startswith("test_") and name not in LEFT_OUT:
            kept_by = TestSimulatedEngine
            if name in WITH_REPORTS:
                kept_by = TestSimulatedEngineThatSavesWithEveryReport
            setattr(kept_by, name, promise)


def test_what_is_left_out_exists_and_more_than_half_of_the_rest_is_kept():
    names = {name for name in dir(EngineContract) if name.startswith("test_")}
    assert names >= LEFT_OUT
    assert len(names - LEFT_OUT) >= 22


@pytest.mark.parametrize("name", ["counts", "fails", "needs_memory"])
def test_a_process_is_used_again_only_after_a_good_end(name, tmp_path):
    engine = SimulatedEngine(ManualClock(), {"CPU": 1}, CURVES, costs=Costs(start_s=9.0, reuse_s=1.0))
    driver = Driver(engine, tmp_path)
    driver.start("a", name, may_reuse=True)
    driver.to_exit("a")
    driver.start("b", "counts", may_reuse=True)
    driver.to_exit("b")
    (started,) = driver.of("b", TrialStarted)
    assert started.reused == (name == "counts")
    assert started.location["pid"] == (1 if name == "counts" else 2)
