"""Measure early stopping with several objectives: hypervolume at an equal budget, and a decision's cost.

Random configurations, 8 workers in virtual time, 81 epochs for a full training. Schedulers see noisy values;
the values without noise at each trial's last epoch are measured. Every figure is relative to FIFO with the
same seed. Only the cost of a decision depends on the machine.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bench import table
from bench.options import Options
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.trial import Costs
from muster.trials.model import Trial
from muster.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler, MedianStoppingRule
from muster.tune.search.space import uniform

FULL, WORKERS, BUDGET, SEEDS = 81, 8, 1_620, 30
EVERY = 20  # epochs between two looks at the hypervolume
GOALS = {"metric": ["first", "second"], "mode": ["min", "min"]}
Values = tuple[float, float]  # both in 0..1, smaller is better
Point = Mapping[str, float]


class Problem(NamedTuple):
    """What two objectives are without noise, after so many epochs, and the noise of each."""

    values: Callable[[Point, int], Values]
    noise: Values


def _falling(low: float, speed: float, epoch: int) -> float:
    return low + (0.95 - low) * epoch**-speed


def _bowl(*distances: float) -> float:
    return sum(one * one for one in distances) / len(distances)


def latency(x: Point, epoch: int) -> Values:
    """The error falls; the latency depends on the model's size alone and is known at once."""
    low = 0.05 + 0.4 * (1.0 - x["a"]) ** 1.5 + 0.8 * _bowl(x["b"] - 0.3, x["c"] - 0.6)
    return _falling(min(low, 0.9), 0.3 + 0.7 * x["d"], epoch), 0.05 + 0.9 * x["a"] ** 2


def crossing(x: Point, epoch: int) -> Values:
    """Fast learners end worse, in both objectives."""
    low = 0.08 + 0.45 * x["d"] + 0.6 * _bowl(x["b"] - 0.4, x["c"] - 0.5)
    shape = math.exp(-epoch * (0.015 + 0.4 * x["d"] ** 2))
    return min(1.0, low + 0.3 * x["a"] + shape * (1.0 - low)), min(1.0, low + 0.3 * (1.0 - x["a"]) + shape)


def two_tasks(x: Point, epoch: int) -> Values:
    """Two losses want different values of one parameter and the same of the others."""
    shared = 0.5 * _bowl(x["b"] - 0.3, x["c"] - 0.7)
    lows = (0.05 + 0.6 * x["a"] ** 2 + shared, 0.05 + 0.6 * (1.0 - x["a"]) ** 2 + shared)
    first, second = (_falling(min(low, 0.9), 0.25 + 0.6 * x["d"], epoch) for low in lows)
    return first, second


def fairness(x: Point, epoch: int) -> Values:
    """The gap between groups grows while the error falls; the front is concave."""
    angle, lost = x["a"] * math.pi / 2, 0.8 * _bowl(x["b"] - 0.5, x["c"] - 0.5)
    error = _falling(min(0.9, 0.1 + 0.6 * math.cos(angle) + lost), 0.3 + 0.6 * x["d"], epoch)
    gap = 0.05 + (0.6 * math.sin(angle) + lost) * (1.0 - math.exp(-epoch / 15.0))
    return error, min(1.0, gap)


PROBLEMS = {
    "latency": Problem(latency, (0.01, 0.0)),
    "crossing": Problem(crossing, (0.01, 0.01)),
    "two_tasks": Problem(two_tasks, (0.03, 0.03)),
    "fairness": Problem(fairness, (0.01, 0.01)),
}
RULES: dict[str, Callable[[int], Any]] = {
    "fifo": lambda seed: FIFOScheduler(),
    "asha grace 1": lambda seed: ASHAScheduler(max_t=FULL, reduction_factor=3, seed=seed),
    "asha grace 3": lambda seed: ASHAScheduler(max_t=FULL, grace_period=3, reduction_factor=3, seed=seed),
    "promotion": lambda seed: ASHAScheduler(max_t=FULL, reduction_factor=3, type="promotion", seed=seed),
    "hyperband": lambda seed: HyperBandScheduler(max_t=FULL, reduction_factor=3),
    "median": lambda seed: MedianStoppingRule(time_attr="training_iteration", grace_period=9),
}


def hypervolume(values: list[Values]) -> float:
    """Return the area that two objectives dominate below (1, 1)."""
    area, best = 0.0, 1.0
    for first, second in sorted(values):
        if first < 1.0 and second < best:
            area += (1.0 - first) * (best - second)
            best = second
    return area


class Outcome(NamedTuple):
    """The hypervolume after every EVERY epochs, and at the end of the budget."""

    course: list[float]
    trials: int

    @property
    def final(self) -> float:
        return self.course[-1]


def run_once(problem: Problem, rule: str, seed: int) -> Outcome:
    """Run one experiment until all trials together have trained for the budget."""
    known: dict[tuple[float, ...], Values] = {}

    def report(config: Mapping[str, Any], epoch: int) -> dict[str, float]:
        point = tuple(config[name] for name in "abcd")
        values = known[point] = problem.values(config, epoch)
        draw = random.Random(f"{seed}/{point}/{epoch}")
        noisy = [one + draw.gauss(0.0, sd) for one, sd in zip(values, problem.noise, strict=True)]
        return {"first": noisy[0], "second": noisy[1]}

    experiment = SimulatedExperiment(
        curve=report,
        space={name: uniform(0.0, 1.0) for name in "abcd"},
        **GOALS,
        num_samples=10_000,
        workers=WORKERS,
        make_scheduler=lambda: RULES[rule](seed),
        max_t=FULL,
        seed=seed,
        ahead=WORKERS,
        costs=Costs(),
    )
    run, course = experiment.begin(), list[float]()
    while run.history.results < BUDGET and run.step():
        if run.history.results >= EVERY * (len(course) + 1):
            course.append(hypervolume([*known.values()]))
    return Outcome([*course, hypervolume([*known.values()])], len(known))


def need(outcome: Outcome, wanted: float) -> float:
    """Return the share of the budget until a hypervolume is reached; 1 when it never is."""
    reached = (place + 1 for place, area in enumerate(outcome.course) if area >= wanted)
    return min(1.0, next(reached, BUDGET) * EVERY / BUDGET)


def early_stopping(quick: bool) -> dict[str, float]:
    """Run all rules on all problems; print and return hypervolumes relative to FIFO's."""
    seeds = range(5 if quick else SEEDS)
    fifo = {name: [run_once(problem, "fifo", seed) for seed in seeds] for name, problem in PROBLEMS.items()}
    figures: dict[str, float] = {}
    rows = []
    for rule in RULES:
        if rule == "fifo":
            continue
        relative: dict[str, list[float]] = {}
        needs: dict[str, list[float]] = {}
        for name, problem in PROBLEMS.items():
            runs = [run_once(problem, rule, seed) for seed in seeds]
            pairs = list(zip(runs, fifo[name], strict=True))
            relative[name] = [one.final / other.final for one, other in pairs]
            needs[name] = [need(one, other.final) for one, other in pairs]
        others = [name for name in PROBLEMS if name != "crossing"]
        mean = {name: statistics.fmean(found) for name, found in relative.items()}
        found = {
            "mean": statistics.fmean(mean.values()),
            "without_crossing": statistics.fmean(mean[name] for name in others),
            "better": statistics.fmean(one > 1.0 for name in others for one in relative[name]),
            "need": statistics.fmean(one for name in others for one in needs[name]),
        }
        key = rule.replace(" ", "_")
        figures |= {f"early_stopping.{key}.{what}": value for what, value in (mean | found).items()}
        rows.append([rule, *(f"{value:.3f}" for value in (mean | found).values())])
    heads = ["rule", *PROBLEMS, "mean", "w/o crossing", "better", "need"]
    table.show("Hypervolume with two objectives at an equal budget, relative to FIFO's", heads, rows)
    return figures


def decisions(quick: bool) -> dict[str, float]:
    """Print and return the CPU ms of a decision at a rung that holds many results."""
    figures, rows = {}, []
    for objectives, count in ((2, 1_000), (2, 4_000 if quick else 20_000), (3, 1_000)):
        for kind in ("stopping", "promotion"):
            cost_ms = decision_ms(kind, objectives, count)
            figures[f"early_stopping.decision_ms.{kind}.{objectives}_at_{count}"] = cost_ms
            rows.append([kind, str(objectives), f"{count:,}", f"{cost_ms:.3f}"])
    heads = ["ASHA", "objectives", "results in the rung", "CPU ms (median)"]
    table.show("Decision on one result", heads, rows)
    return figures


def decision_ms(kind: str, objectives: int, count: int, repeats: int = 101) -> float:
    names = [f"m{one}" for one in range(objectives)]
    scheduler = ASHAScheduler(metric=names, mode=["min"] * objectives, max_t=100, grace_period=1, type=kind)
    draw, spent = random.Random(1), []
    for place in range(count + repeats):
        trial = Trial("f", trial_id=f"t{place}")
        scheduler.on_trial_add(None, trial)  # type: ignore[arg-type]  # it asks the controller nothing here
        result = {"training_iteration": 1, **{name: draw.random() for name in names}}
        began = time.process_time()
        scheduler.on_trial_result(None, trial, result)  # type: ignore[arg-type]
        spent.append(time.process_time() - began)
    return statistics.median(spent[count:]) * 1e3


def run(options: Options) -> dict[str, float]:
    """Print the tables and return the figures."""
    return decisions(options.quick) | early_stopping(options.quick)
