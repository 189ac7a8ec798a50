"""Compare what TPESearch does with the values of stopped trials: by rung, or as if they were final.

ASHA stops trials (eta 3, 81 epochs, 8 workers); all have the same budget of epochs. The result is the value
at the last epoch of the best trial that came so far.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.rank_test import signed_rank_p
from bench.search.players import Random
from bench.search.problems import MIXED, PROBLEMS
from muster.trials.model import Trial
from muster.tune.schedulers import ASHAScheduler
from muster.tune.search import space as domains
from muster.tune.search.tpe import TPESearch

EPOCHS, WORKERS, BUDGET = 81, 8, 1_620
Curve = Callable[[Mapping[str, Any], int], float]


@dataclass(frozen=True)
class CurveProblem:
    """Has a value for each configuration and epoch."""

    name: str
    space: dict[str, Any]
    make: Callable[[int], Curve]
    noise: float = 0.02


def _rosenbrock(seed: int) -> Curve:
    best = np.random.default_rng([seed, 1]).uniform(-1, 1, 4)

    def value(config: Mapping[str, Any], epoch: int) -> float:
        z = np.array(list(config.values())) - best + 1
        final = math.log10(1 + float((100 * (z[:-1] ** 2 - z[1:]) ** 2 + (z[:-1] - 1) ** 2).sum()))
        return final + 2.0 * epoch**-0.5 * (1 + 0.3 * math.sin(7 * float(z[0])))

    return value


def _curve_ml(seed: int) -> Curve:
    final = PROBLEMS["mixed_ml"].instance(seed)

    def value(config: Mapping[str, Any], epoch: int) -> float:
        rate = 0.02 + 0.3 * min(1.0, max(0.0, (math.log10(config["lr"]) + 5) / 5))
        return final(config) + 0.8 * math.exp(-rate * epoch)

    return value


def _hartmann(seed: int) -> Curve:
    final = PROBLEMS["hartmann6"].instance(seed)
    return lambda config, epoch: final(config) + 1.5 * epoch ** -(0.4 + 0.5 * config["x0"])


def _crossing(seed: int) -> Curve:
    best = np.random.default_rng([seed, 2]).uniform(0.2, 0.8, 3)

    def value(config: Mapping[str, Any], epoch: int) -> float:
        away = float(((np.array(list(config.values())) - best) ** 2).sum())
        final = 0.1 + 0.9 * (1 - math.exp(-3 * away))
        return final + 0.9 * (1.2 - final) * math.exp(-epoch / (2 + 25 * (1.1 - final)))

    return value


CURVES = (
    CurveProblem("rosenbrock4", {f"x{place}": domains.uniform(-2.0, 2.0) for place in range(4)}, _rosenbrock),
    CurveProblem("curve_ml", MIXED, _curve_ml),
    CurveProblem("hartmann6", {f"x{place}": domains.uniform(0.0, 1.0) for place in range(6)}, _hartmann),
    CurveProblem("crossing", {f"x{place}": domains.uniform(0.0, 1.0) for place in range(3)}, _crossing),
)


class ByRung:
    """Everything that the searcher can learn."""

    def __init__(self, space: Mapping[str, Any], seed: int, rungs: tuple[float, ...]) -> None:
        self.searcher = TPESearch(space, metric="value", mode="min", seed=seed)
        self.searcher.set_rungs(rungs, "training_iteration")

    def ask(self, key: str) -> Any:
        return self.searcher.suggest(key)

    def report(self, key: str, result: dict[str, Any]) -> None:
        self.searcher.on_trial_result(key, result)

    def end(self, key: str, result: dict[str, Any], stopped: bool) -> None:
        self.searcher.on_trial_complete(key, result, stopped=stopped)


class LastValue(ByRung):
    """The last value of a stopped trial counts as final, as in Ray."""

    def report(self, key: str, result: dict[str, Any]) -> None:
        pass

    def end(self, key: str, result: dict[str, Any], stopped: bool) -> None:
        self.searcher.on_trial_complete(key, result)


class Chance(ByRung):
    """Random search."""

    def __init__(self, space: Mapping[str, Any], seed: int, rungs: tuple[float, ...]) -> None:
        self._random = Random(space, seed)

    def ask(self, key: str) -> Any:
        return self._random.ask()[1]

    def report(self, key: str, result: dict[str, Any]) -> None:
        pass

    def end(self, key: str, result: dict[str, Any], stopped: bool) -> None:
        pass


RULES = {"by_rung": ByRung, "last_value": LastValue, "random": Chance}


def best_at_the_end(rule: str, problem: CurveProblem, seed: int) -> float:
    curve, noise = problem.make(seed), np.random.default_rng([seed, 3])
    scheduler = ASHAScheduler(metric="value", mode="min", max_t=EPOCHS, grace_period=1, reduction_factor=3)
    searcher = RULES[rule](problem.space, seed, (1, 3, 9, 27, 81))
    live: dict[str, tuple[Trial, int]] = {}
    made, found = 0, math.inf
    for _ in range(BUDGET // WORKERS):
        while len(live) < WORKERS:
            made += 1
            trial = Trial(trial_id=str(made), trainable_name="t", config=searcher.ask(str(made)))
            scheduler.on_trial_add(None, trial)
            live[trial.trial_id] = (trial, 0)
        for key, (trial, before) in list(live.items()):
            epoch = before + 1
            value = curve(trial.config, epoch) + problem.noise * float(noise.standard_normal())
            result = {"value": value, "training_iteration": epoch}
            stopped = scheduler.on_trial_result(None, trial, result) == "STOP"
            if epoch == EPOCHS:
                found = min(found, curve(trial.config, EPOCHS))
            if stopped or epoch == EPOCHS:
                searcher.end(key, result, stopped)
                del live[key]
            else:
                searcher.report(key, result)
                live[key] = (trial, epoch)
    return found


def figures(seeds: int, only: Callable[[str], bool]) -> dict[str, float]:
    result: dict[str, float] = {}
    differences: list[float] = []
    chosen = [problem for problem in CURVES if only(problem.name)]
    for problem in chosen:
        found = {rule: [best_at_the_end(rule, problem, seed) for seed in range(seeds)] for rule in RULES}
        mean = {rule: statistics.mean(values) for rule, values in found.items()}
        for other in ("last_value", "random"):
            result[f"rung_ratio.{other}.{problem.name}"] = mean["by_rung"] / mean[other]
        pairs = zip(found["by_rung"], found["last_value"], strict=True)
        differences += [(one - other) / mean["last_value"] for one, other in pairs]
    for other in ("last_value", "random"):
        ratios = [result[f"rung_ratio.{other}.{problem.name}"] for problem in chosen]
        if ratios:
            result[f"rung_ratio.{other}"] = statistics.mean(ratios)
            result[f"largest_rung_ratio.{other}"] = max(ratios)
    if differences:
        result["rung_p"] = signed_rank_p(differences)
    return result
