"""Check a whole simulated experiment: the same code as a launch, the same answers each time."""

from __future__ import annotations

import math

import pytest
from tests.support.memory_trial_store import MemoryTrialStore

from muster.base.clock import ManualClock
from muster.errors import StoreError
from muster.sim.tune.experiment import NullTrialStore, SimulatedExperiment, best_at
from muster.sim.tune.trial import FunctionCurve
from muster.trials.controller import TrialController
from muster.tune.execution.between_steps import ExperimentSaver
from muster.tune.schedulers import ASHAScheduler
from muster.tune.search.space import grid_search, uniform
from muster.tune.stopper import MaximumIterationStopper


def experiment(**more):
    asked = {
        "curve": FunctionCurve(lambda config, t: {"loss": config["x"] / t}, seconds=60.0),
        "space": {"x": uniform(0.0, 1.0)},
        "metric": "loss",
        "mode": "min",
        "num_samples": 8,
        "workers": 4,
        "max_t": 5,
    }
    return SimulatedExperiment(**{**asked, **more})


def test_time_and_worker_hours_are_exact():
    life = experiment().run()
    assert life.clock.monotonic() == 2 * 5 * 60.0
    assert life.worker_h == pytest.approx(8 * 5 / 60.0)
    assert life.history.results == 40


def test_improvements_are_kept_with_their_time_and_their_cost():
    asked = experiment(space={"x": grid_search([3.0, 2.0, 9.0])}, num_samples=1, workers=1, max_t=2)
    found = asked.run().history.found
    assert [(one.at_s, one.worker_s, one.value, one.iteration, one.config) for one in found] == [
        (60.0, 60.0, 3.0, 1, {"x": 3.0}),
        (120.0, 120.0, 1.5, 2, {"x": 3.0}),
        (240.0, 240.0, 1.0, 2, {"x": 2.0}),
    ]
    assert [best_at(found, moment) for moment in (60.0, 200.0, 300.0)] == [3.0, 1.5, 1.0]
    assert math.isnan(best_at(found, 59.0))


def test_what_cannot_be_compared_improves_nothing():
    odd = {1: math.nan, 2: math.inf, 3: -math.inf, 4: "text", 5: 2.0}
    asked = experiment(curve=FunctionCurve(lambda config, t: {"loss": odd[t]}), num_samples=1)
    assert [one.value for one in asked.run().history.found] == [2.0]


def test_equal_experiments_are_equal_and_seeds_differ():
    def told(seed):
        return [(one.trial_id, one.value) for one in experiment(seed=seed).run().history.found]

    assert told(1) == told(1) != told(2)


def test_a_deadline_ends_everything_at_that_very_moment():
    life = experiment(deadline_s=150.0).run()
    assert life.clock.monotonic() == 150.0
    assert life.state.is_finished
    assert {trial.last_result.get("training_iteration") for trial in life.state.trials.values()} == {2, None}


def test_stoppers_and_criteria_end_trials_as_ever():
    assert experiment(make_stop=lambda: MaximumIterationStopper(2)).run().history.results == 16
    assert experiment(make_stop=lambda: {"training_iteration": 3}, max_t=None).run().history.results == 24


def saving(life, store, clock):
    """The controller of a real run, around a simulated engine, with its saver."""
    saver = ExperimentSaver(life.state, store=store, clock=clock)
    return TrialController(life.state, engine=life.engine, store=store, clock=clock, saver=saver), saver


def test_a_real_controller_runs_on_it_unchanged_and_another_resumes():
    asked = experiment(make_scheduler=lambda: ASHAScheduler(max_t=5, type="promotion", reduction_factor=2))
    whole = asked.run()
    store = MemoryTrialStore(root="/simulated")
    life = asked.begin(store)
    controller, _ = saving(life, store, life.clock)
    steps = iter(range(9))
    controller.run(lambda: next(steps, None) is None)
    assert not life.state.is_finished
    again = asked.begin(store)
    second, saver = saving(again, store, ManualClock(life.clock.now()))
    saver.restore(store.load(), again.template.make)
    second.run()
    assert again.state.is_finished
    assert sorted(again.state.trials) == sorted(whole.state.trials)
    assert again.history.best.value == whole.history.best.value


def test_a_store_that_keeps_nothing_reports_it():
    store = NullTrialStore()
    experiment().run(store)
    assert store.appended > 40
    with pytest.raises(StoreError, match="pass a MemoryTrialStore"):
        store.load()
