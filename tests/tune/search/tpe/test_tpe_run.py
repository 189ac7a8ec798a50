"""TPESearch in whole experiments: on this machine, and in virtual time with ASHA, killed at any commit."""

from __future__ import annotations

import pytest
from tests.simulation.tune import crash_matrix
from tests.simulation.tune.faults import FaultPlan, FaultRates, FaultyExperiment

from muster import tune
from muster.sim.tune.trial import Costs, FunctionCurve
from muster.stores.experiment.reader import open_trials
from muster.tune.schedulers import ASHAScheduler, HyperBandScheduler
from muster.tune.search.tpe import TPESearch

SPACE = {
    "x": tune.uniform(0.0, 1.0),
    "kind": tune.choice(["near", {"far": tune.loguniform(1e-3, 1)}]),
    "units": tune.randint(1, 9),
}


def loss(config, step):
    far = 0.0 if config["kind"] == "near" else config["kind"]["far"]
    return (config["x"] - 0.3) ** 2 + far + config["units"] / 10 + 1.0 / step


def train(config):
    tune.report({"loss": loss(config, 1)})


def test_auto_in_an_experiment_says_why_it_suggested_each_trial(tmp_path):
    results = tune.Tuner(
        train,
        param_space=SPACE,
        tune_config=tune.TuneConfig(search_alg="auto", metric="loss", mode="min", num_samples=14),
        run_config=tune.RunConfig(name="auto", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert len(results) == 14
    with open_trials(tmp_path / "auto") as reader:
        reasons = [trial.why_suggested for trial in reader.trials()]
    assert all(reasons)
    assert len({reason.split()[0] for reason in reasons}) == 2  # of the start-up, and of the model


def simulated(scheduler, searchers=None, **more):
    def make_search():
        searcher = TPESearch(seed=1, n_startup_trials=4)
        if searchers is not None:
            searchers.append(searcher)
        return searcher

    settings = {
        "curve": FunctionCurve(
            lambda config, t: {"loss": loss(config, t)}, seconds=lambda config, t: 1.0 + config["units"]
        ),
        "space": SPACE,
        "metric": "loss",
        "mode": "min",
        "num_samples": 30,
        "workers": 4,
        "make_scheduler": lambda: scheduler(max_t=9, reduction_factor=3),
        "make_search": make_search,
        "max_t": 9,
        "costs": Costs(start_s=5.0, save_s=2.0, restore_s=1.0),
    }
    return FaultyExperiment(**{**settings, **more})


@pytest.mark.parametrize("scheduler", [ASHAScheduler, HyperBandScheduler])
def test_the_searcher_ranks_trials_by_the_rung_they_reached(scheduler):
    searchers = []
    life = simulated(scheduler, searchers).run()
    trials = list(life.state.trials.values())
    table = searchers[-1]._table
    reached = [trial.last_result["training_iteration"] for trial in trials]
    assert len(set(reached)) > 1
    for place, time in enumerate(reached):
        assert table.level[place] == (float("inf") if time == 9 else max(t for t in (1, 3, 9) if t <= time))


def test_killed_at_any_commit_it_suggests_as_if_it_had_not_been():
    faults = FaultPlan(FaultRates(crashes_per_h=40.0, losses_per_h=20.0, odd_reports=0.1), 7)
    experiment = simulated(ASHAScheduler, num_samples=16, faults=faults, max_failures=2)
    commits = crash_matrix.recorded(experiment, save_every=7)
    assert len(commits) > 30
    assert [each for commit in commits[::3] for each in crash_matrix.differences(experiment, commit)] == []
