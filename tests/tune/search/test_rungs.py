"""Searchers learn where a scheduler compares trials, and which trials it stopped."""

from __future__ import annotations

import random

import pytest
from tests.simulation.tune import crash_matrix as crash

from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.trial import Costs
from muster.trials.model import CheckpointPolicy
from muster.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    ResourceChangingScheduler,
)
from muster.tune.search import ConcurrencyLimiter, SearchGenerator
from muster.tune.search.searcher import Searcher


class Attentive(Searcher):
    """Records every completion and the rungs; its state holds both."""

    def __init__(self):
        super().__init__(metric="loss", mode="min")
        self.random, self.rungs, self.completed = random.Random(3), None, {}

    def suggest(self, trial_id):
        return {"x": self.random.random()}

    def set_rungs(self, levels, time_attr):
        self.rungs = (levels, time_attr)

    def on_trial_complete(self, trial_id, result=None, error=False, stopped=False):
        self.completed[trial_id] = (None if result is None else result["training_iteration"], stopped)


class Unaware(Attentive):
    """Written before `stopped` existed, with room for what callers add."""

    def on_trial_complete(self, trial_id, result=None, error=False, **more):
        assert not more
        super().on_trial_complete(trial_id, result, error)


def experiment(scheduler, search=Attentive, **more):
    asked = {
        "curve": lambda config, t: {"loss": config["x"] + 1.0 / t},
        "space": {},
        "metric": "loss",
        "mode": "min",
        "num_samples": 12,
        "workers": 3,
        "make_scheduler": lambda: scheduler,
        "make_search": search,
        "max_t": 9,
    }
    return SimulatedExperiment(**{**asked, **more})


def searcher_of(run):
    found = run.search.searcher
    return getattr(found, "searcher", found)


def asha(**more):
    return ASHAScheduler(**{"max_t": 20, "grace_period": 1, "reduction_factor": 3, **more})


class UsersOwn(FIFOScheduler):
    pass


@pytest.mark.parametrize(
    ("scheduler", "rungs"),
    [
        (asha(max_t=100, reduction_factor=4), (1, 4, 16, 64, 100)),
        (asha(max_t=81, brackets=2, type="promotion"), (1, 3, 9, 27, 81)),
        (asha(max_t=27, grace_period=2, stop_last_trials=False), (2, 6, 18, 27)),
        (HyperBandScheduler(max_t=9, reduction_factor=3), (1, 3, 9)),
        (HyperBandScheduler(max_t=10, reduction_factor=3), (1, 3, 9, 10)),
        (FIFOScheduler(), ()),
        (MedianStoppingRule(), None),
        (UsersOwn(), None),
    ],
)
def test_rungs_are_the_milestones_of_all_brackets(scheduler, rungs):
    assert scheduler.rung_levels()[0] == rungs


def test_the_rungs_come_with_their_key_before_the_first_suggestion_also_through_wrappers():
    scheduler = ResourceChangingScheduler(asha(time_attr="epoch"), lambda *_: None)
    run = experiment(scheduler, max_concurrent=2).begin()
    assert searcher_of(run).rungs == ((1, 3, 9, 20), "epoch")


def test_a_restored_searcher_gets_the_rungs_again():
    generator = SearchGenerator(Attentive())
    generator.set_rungs((1, 3), "epoch")
    other = SearchGenerator(Attentive())
    other.set_rungs((1, 4), "epoch")
    other.restore_state(generator.save_state())
    assert other.searcher.rungs == ((1, 4), "epoch")


@pytest.mark.parametrize("saves_at_end", [False, True])
def test_only_trials_that_the_scheduler_stopped_are_stopped(saves_at_end):
    policy = CheckpointPolicy(at_end=saves_at_end)
    run = experiment(asha(), checkpoint_policy=policy, costs=Costs(save_s=2.0)).run()
    completed = searcher_of(run).completed.values()
    assert {time for time, stopped in completed if not stopped} == {9}  # by the criterion
    assert {time for time, stopped in completed if stopped} == {1, 3}


def test_a_paused_trial_that_is_stopped_has_no_result():
    run = experiment(asha(max_t=9, type="promotion")).run()
    completed = searcher_of(run).completed.values()
    assert (None, True) in completed
    assert (9, False) in completed
    assert all(stopped for time, stopped in completed if time is None)


def test_a_searcher_without_the_parameter_is_called_as_before():
    completed = searcher_of(experiment(asha(), Unaware).run()).completed.values()
    assert {time for time, _ in completed} == {1, 3, 9}


@pytest.mark.parametrize("batch", [False, True])
def test_a_limiter_passes_it_on(batch):
    limited = experiment(asha(), lambda: ConcurrencyLimiter(Attentive(), 3, batch=batch))
    assert {stopped for _, stopped in searcher_of(limited.run()).completed.values()} == {False, True}


def test_whoever_stopped_a_trial_is_the_same_after_a_kill_at_any_commit():
    asked = experiment(
        None,
        make_scheduler=asha,
        checkpoint_policy=CheckpointPolicy(at_end=True),
        costs=Costs(save_s=2.0),
        num_samples=8,
    )
    count, found = crash.matrix(asked, save_every=3)
    assert count > 30
    assert found == []
