"""TuneBOHB with HyperBandForBOHB in whole runs: on this machine, in the simulator, killed at any commit."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from tests.simulation.tune import crash_matrix
from tests.simulation.tune.faults import FaultPlan, FaultRates, FaultyExperiment

from muster import tune
from muster.sim.tune.trial import Costs, FunctionCurve
from muster.tune.schedulers import HyperBandForBOHB
from muster.tune.search import ConcurrencyLimiter
from muster.tune.search.bohb import TuneBOHB

SPACE = {
    "x": tune.uniform(0.0, 1.0),
    "kind": tune.choice(["near", "far"]),
    "units": tune.randint(1, 9),
}


def loss(config, step):
    return (config["x"] - 0.3) ** 2 + (config["kind"] == "far") + config["units"] / 10 + 1.0 / step


def train(config):
    first, checkpoint = 1, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            first = json.loads(Path(directory, "step").read_text()) + 1
    for step in range(first, 10):
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "step").write_text(json.dumps(step))
            here = tune.Checkpoint.from_directory(directory)
            tune.report({"loss": loss(config, step), "first": first}, checkpoint=here)


def learned(searcher):
    """How many results the model knows, by the highest rung that trials reached."""
    table = searcher._table
    return Counter(9 if level > 9 else int(level) for level in table.level[: table.count][table.known])


@pytest.mark.parametrize("limit", [0, 2])
def test_a_run_on_this_machine_teaches_the_model_every_budget_that_trials_reached(limit, tmp_path):
    searcher = TuneBOHB(seed=1, max_concurrent=limit)
    grid = tune.Tuner(
        train,
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=9,  # the whole first bracket
            search_alg=searcher,
            scheduler=HyperBandForBOHB(max_t=9),
        ),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert grid.num_errors == 0
    reached = [result.metrics["training_iteration"] for result in grid]
    assert Counter(reached) == {1: 6, 3: 2, 9: 1}
    assert learned(searcher) == {1: 6, 3: 2, 9: 1}
    assert {result.metrics["first"] for result in grid} <= {1, 2, 4}  # from checkpoints


def simulated(made=None, **more):
    def make_search():
        searcher = TuneBOHB(seed=1)
        if made is not None:
            made.append(searcher)
        return searcher

    asked = {
        "curve": FunctionCurve(
            lambda config, t: {"loss": loss(config, t)}, seconds=lambda config, t: 1.0 + config["units"]
        ),
        "space": SPACE,
        "metric": "loss",
        "mode": "min",
        "num_samples": 9 + 5 + 3 + 9,
        "workers": 4,
        "make_scheduler": lambda: HyperBandForBOHB(max_t=9),
        "make_search": make_search,
        "max_t": 9,
        "costs": Costs(start_s=5.0, save_s=2.0, restore_s=1.0),
    }
    return FaultyExperiment(**{**asked, **more})


def test_in_virtual_time_the_model_learns_and_its_suggestions_get_better():
    made = []
    life = simulated(made, num_samples=60).run()
    trials = list(life.state.trials.values())
    assert {trial.status for trial in trials} == {"TERMINATED"}
    at_the_end = sum(trial.last_result["training_iteration"] == 9 for trial in trials)
    assert learned(made[-1])[9] == at_the_end
    by_chance = 0.123 + 0.5 + 0.45 + 1 / 9  # the mean of `loss` over the space
    assert sum(loss(one.config, 9) for one in trials[-20:]) / 20 < 0.75 * by_chance


@pytest.mark.parametrize("limited", ["by itself", "by a limiter", "by the experiment"])
def test_fewer_trials_at_a_time_than_a_bracket_holds_end_all_the_same(limited):
    make = {
        "by itself": lambda: TuneBOHB(seed=1, max_concurrent=2),
        "by a limiter": lambda: ConcurrencyLimiter(TuneBOHB(seed=1), max_concurrent=2),
        "by the experiment": lambda: TuneBOHB(seed=1),
    }[limited]
    life = simulated(make_search=make, max_concurrent=2 if limited == "by the experiment" else 0).run()
    assert [trial.status for trial in life.state.trials.values()] == ["TERMINATED"] * 26


FAULTS = FaultPlan(FaultRates(crashes_per_h=40.0, losses_per_h=20.0, odd_reports=0.1), 7)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_goes_wrong_it_ends(seed):
    faults = FaultPlan(FaultRates.swarm(seed, hour_s=200.0), seed)
    life = simulated(faults=faults, max_failures=1, workers=2 + seed % 3).begin().run(100_000)
    assert life.state.is_finished
    assert len(life.state.trials) == 26


def test_killed_at_any_commit_the_model_suggests_as_if_it_had_not_been():
    asked = simulated(num_samples=14, faults=FAULTS, max_failures=2)
    commits = crash_matrix.recorded(asked, save_every=7)
    assert len(commits) > 30
    told = [each for commit in commits[::3] for each in crash_matrix.differences(asked, commit)]
    assert told == []
