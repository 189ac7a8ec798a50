"""Tests what may be passed as `stop`."""

import pytest

from muster.base.clock import ManualClock
from muster.tune.stopper import (
    CombinedStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    TimeoutStopper,
)
from muster.tune.stopper.function_stopper import resolve_stop


@pytest.mark.parametrize("nothing", [None, {}, [], 0])
def test_nothing_means_nothing(nothing):
    assert resolve_stop(nothing) == ({}, None)


def test_a_dict_is_criteria():
    assert resolve_stop({"training_iteration": 5}) == ({"training_iteration": 5}, None)


def test_a_stopper_is_taken_as_it_is():
    stopper = NoopStopper()
    assert resolve_stop(stopper) == ({}, stopper)


def test_a_function_becomes_a_stopper():
    criteria, stopper = resolve_stop(lambda trial_id, result: result["x"])
    assert (criteria, type(stopper), stopper("t", {"x": True})) == ({}, FunctionStopper, True)


def test_a_list_of_stoppers_stops_when_one_does():
    _, stopper = resolve_stop([NoopStopper(), MaximumIterationStopper(1)])
    assert (type(stopper), stopper("t", {})) == (CombinedStopper, True)


@pytest.mark.parametrize("wrong", [[lambda trial_id, result: True], [NoopStopper(), 3], "never", 3])
def test_anything_else_is_refused(wrong):
    with pytest.raises(ValueError, match="stop"):
        resolve_stop(wrong)


def test_a_time_budget_adds_a_timeout():
    clock = ManualClock()
    criteria, stopper = resolve_stop({"x": 1}, 5, clock=clock)
    assert (criteria, type(stopper), stopper.stop_all()) == ({"x": 1}, TimeoutStopper, False)
    clock.advance(5)
    assert stopper.stop_all() is True
    _, both = resolve_stop(MaximumIterationStopper(1), 0.5, clock=clock)
    assert (type(both), both("t", {})) == (CombinedStopper, True)
