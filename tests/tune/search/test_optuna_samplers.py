"""Every sampler of Optuna that can be made here: it suggests, learns, and is resumed exactly."""

from __future__ import annotations

import importlib.util
import math

import optuna
import pytest

from muster.tune.search.optuna import OptunaSearch
from muster.tune.search.space import choice, randint, uniform

S = optuna.samplers
MIXED = {"x": uniform(-1, 1), "n": {"k": randint(0, 5)}, "kind": choice(["a", "b"])}
NUMBERS = {"x": uniform(-1, 1), "n": {"y": uniform(0, 1)}}
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="GPSampler needs torch, which is not in `dev`"
)
pytestmark = pytest.mark.filterwarnings(
    "ignore::optuna.exceptions.ExperimentalWarning",
    "ignore:.*constraints_func.*:FutureWarning",
    "ignore:.*independent sampling.*",
)

ONE_GOAL = {
    "random": (lambda: S.RandomSampler(seed=1), MIXED),
    "tpe": (lambda: S.TPESampler(seed=1, n_startup_trials=4), MIXED),
    "cma-es": (lambda: S.CmaEsSampler(seed=1, n_startup_trials=3), NUMBERS),
    "cma-es with margin": (lambda: S.CmaEsSampler(seed=1, n_startup_trials=3, with_margin=True), NUMBERS),
    "separable cma-es": (lambda: S.CmaEsSampler(seed=1, n_startup_trials=3, use_separable_cma=True), NUMBERS),
    "qmc": (lambda: S.QMCSampler(seed=1), NUMBERS),
    "brute force": (lambda: S.BruteForceSampler(seed=1), {"k": randint(0, 40)}),
    "grid": (lambda: S.GridSampler({"k": list(range(30))}, seed=1), {"k": randint(0, 40)}),
    "partly fixed": (lambda: S.PartialFixedSampler({"x": 0.5}, S.RandomSampler(seed=1)), MIXED),
    "nsga-ii": (lambda: S.NSGAIISampler(seed=1, population_size=4), MIXED),
    "nsga-iii": (lambda: S.NSGAIIISampler(seed=1, population_size=4), MIXED),
    "gp": (lambda: S.GPSampler(seed=1, n_startup_trials=3), NUMBERS),
}


def numbers(config):
    for value in config.values():
        if isinstance(value, dict):
            yield from numbers(value)
        elif not isinstance(value, str):
            yield float(value)


def made_with(sampler, space, metric="loss", mode="min", **options):
    made = OptunaSearch(sampler=sampler, **options)
    made.set_search_properties(metric, mode, space)
    return made


def run(made, count, prefix, result):
    seen = []
    for number in range(count):
        found = made.suggest(f"{prefix}{number}")
        seen.append(found)
        if isinstance(found, dict):
            made.on_trial_complete(f"{prefix}{number}", result(found, number))
    return seen


def one_goal(config, number):
    return {"loss": math.nan if number % 6 == 5 else sum(one**2 for one in numbers(config))}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_torch if name == "gp" else ()) for name in ONE_GOAL]
)
def test_every_sampler_is_resumed_exactly(name):
    sampler, space = ONE_GOAL[name]
    made = made_with(sampler(), space)
    assert len({str(one) for one in run(made, 14, "t", one_goal)}) > 7
    made.suggest("running")
    again = OptunaSearch(sampler=sampler())
    again.restore_state(made.save_state())
    for one in (made, again):
        one.on_trial_complete("running", {"loss": 0.5})
    assert run(again, 6, "n", one_goal) == run(made, 6, "n", one_goal)


@pytest.mark.parametrize("sampler", [S.TPESampler, S.NSGAIISampler, S.NSGAIIISampler, S.RandomSampler])
def test_several_goals_and_constraints(sampler):
    def result(config, number):
        del number
        return {"a": config["x"], "b": config["n"]["y"], "latency": 10 * config["n"]["y"]}

    options = {"metric": ["a", "b"], "mode": ["min", "max"], "constraints": {"latency": 5}}
    made = made_with(sampler(seed=1), NUMBERS, **options)
    run(made, 12, "t", result)
    again = OptunaSearch(sampler=sampler(seed=1))
    again.restore_state(made.save_state())
    assert run(again, 4, "n", result) == run(made, 4, "n", result)
    kept = [trial.constraints["latency"] for trial in made.study.trials]
    assert kept == pytest.approx([10 * trial.params["n/y"] - 5 for trial in made.study.trials])
    assert all(trial.constraints["latency"] <= 0 for trial in made.study.best_trials)
