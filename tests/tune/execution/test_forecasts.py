"""What a tuner tells the autoscaler: the trials that run, and what is left of money and time."""

from __future__ import annotations

import pytest

from muster.base.resources import Resources
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.trial import Costs, Curve
from muster.trials.forecast import forecast_of
from muster.trials.template import Limits
from muster.tune.execution.forecasts import PERIOD_S, ForecastPublisher, input_of
from muster.tune.search.space import uniform


class TenSeconds(Curve):
    def seconds(self, config, iteration):
        return 10.0

    def metrics(self, config, iteration):
        return {"loss": config["x"] / iteration}


@pytest.fixture
def run():
    """Two trials run, one waits; the second has saved its first step."""
    begun = SimulatedExperiment(
        curve=TenSeconds(),
        space={"x": uniform(0.0, 1.0)},
        metric="loss",
        mode="min",
        num_samples=3,
        workers=2,
        max_t=9,
        costs=Costs(checkpoint_every=2),
        price_per_hour=36.0,
        limits=Limits(cost_budget=10.0, deadline=1000.0),
    ).begin()
    while begun.clock.now() < 30.0:
        begun.step()
    for trial in begun.state.index.holders():
        trial.location = {**trial.location, "node_id": f"node-of-{trial.trial_id}"}
    return begun


def test_running_trials_are_shown_with_their_nodes_and_what_a_move_would_repeat(run):
    found = forecast_of(run.state, input_of(run.state, 33.0))
    assert [(str(one.node_id), one.shape, one.is_movable, one.unsaved_s) for one in found.trials] == [
        (f"node-of-{trial.trial_id}", Resources.of(CPU=1), True, 13.0) for trial in run.state.index.holders()
    ]
    assert (found.at, found.deadline, found.budget_left) == (33.0, 1000.0, pytest.approx(9.67))


def test_a_trial_that_has_no_node_yet_is_left_out(run):
    for trial in run.state.index.holders():
        trial.location = {}
    assert forecast_of(run.state, input_of(run.state, 33.0)).trials == ()


def test_forecasts_are_handed_over_every_few_seconds(run):
    told = []
    publisher = ForecastPublisher(run.state, told.append, run.clock)
    for _ in range(7):
        publisher.publish_if_due()
        run.engine.world.advance(PERIOD_S / 3)
    assert [one.at - told[0].at for one in told] == [0.0, PERIOD_S, 2 * PERIOD_S]
