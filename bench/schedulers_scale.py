"""Run every scheduler with more and more live trials: does a decision cost more than O(log n)?

Part of `python -m bench schedulers` (case `scale`). All trials are requested before the first one starts, so
all are live at once; timed is every hook of the scheduler, and beside it the whole experiment.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bench import table
from muster.sim.tune.candidates import SCHEDULERS, CandidateSettings
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.problems import PROBLEMS

SIZES = (2_000, 20_000, 100_000)
QUICK_SIZES = (200, 1_000, 4_000)
# A Gaussian process of at most 1,000 points before every fourth decision: milliseconds, whatever n is. These
# sizes are beyond 1,000 points, from where on its cost should be the same.
MODEL_SIZES, QUICK_MODEL_SIZES = (500, 1_000, 2_000), (60,)
WITH_MODEL = ("pb2",)
WORKERS = 64
MAX_T = 3
HOOKS = (
    "on_trial_add",
    "on_trial_result",
    "on_trial_complete",
    "on_trial_error",
    "on_trial_remove",
    "choose_trial_to_run",
)


class Cost(NamedTuple):
    """CPU microseconds per result."""

    decision_us: float  # in the scheduler's hooks
    whole_us: float  # of everything: controller, searcher, scheduler, engine
    results: int


def scale(quick: bool, names: Sequence[str]) -> dict[str, float]:
    """Print the table; return the cost at each size, and the largest size's over the smallest's."""
    figures: dict[str, float] = {}
    rows = []
    for name in names:
        sizes = sizes_of(name, quick)
        costs = [_told(name, size) for size in sizes]
        for size, cost in zip(sizes, costs, strict=True):
            figures[f"decision_us.{name}.{size}"] = cost.decision_us
            figures[f"result_us.{name}.{size}"] = cost.whole_us
        if len(sizes) > 1:
            figures[f"decision_growth.{name}"] = costs[-1].decision_us / costs[0].decision_us
            figures[f"result_growth.{name}"] = costs[-1].whole_us / costs[0].whole_us
        rows.append(_row(name, sizes, costs))
    columns = ("", "live trials", "decision, us a result", "growth", "log n growth", "all, us a result")
    table.show(f"cost of a decision by the number of live trials ({WORKERS} workers)", columns, rows)
    return figures


def sizes_of(name: str, quick: bool) -> tuple[int, ...]:
    if name in WITH_MODEL:
        return QUICK_MODEL_SIZES if quick else MODEL_SIZES
    return QUICK_SIZES if quick else SIZES


def _told(name: str, trials: int) -> Cost:
    table.progress(f"schedulers: {name} with {trials:,} live trials")
    return cost_of(name, trials)


def _row(name: str, sizes: Sequence[int], costs: Sequence[Cost]) -> tuple[str, ...]:
    return (
        name,
        " / ".join(f"{size:,}" for size in sizes),
        " / ".join(f"{cost.decision_us:.1f}" for cost in costs),
        f"{costs[-1].decision_us / costs[0].decision_us:.2f}" if len(sizes) > 1 else "-",
        f"{math.log(sizes[-1]) / math.log(sizes[0]):.2f}" if len(sizes) > 1 else "-",
        " / ".join(f"{cost.whole_us:.0f}" for cost in costs),
    )


def cost_of(name: str, trials: int) -> Cost:
    """Run one experiment."""
    problem = PROBLEMS["power_law"]
    settings = CandidateSettings(max_t=MAX_T, seed=1, space=problem.space())
    timer = HookTimer()
    experiment = SimulatedExperiment(
        curve=problem.curve(1),
        space=problem.space(),
        metric=problem.metric,
        mode=problem.mode,
        num_samples=trials,
        workers=WORKERS,
        make_scheduler=lambda: timer.over(SCHEDULERS[name].make(settings)),
        max_t=MAX_T,
        seed=1,
        ahead=2 * trials + WORKERS,
    )
    simulated = experiment.begin()
    gc.collect()  # what an earlier experiment left would be collected inside a hook
    began = time.thread_time()
    while not simulated.state.is_exhausted:
        simulated.state._take_suggestions(0.0)  # a step would begin with the first few
    simulated.run()
    spent = time.thread_time() - began
    if len(simulated.state.trials) != trials or not simulated.state.is_finished:
        raise RuntimeError(f"{name}: {len(simulated.state.trials)} of {trials} trials")
    results = simulated.history.results
    return Cost(1e6 * timer.spent_s / results, 1e6 * spent / results, results)


class HookTimer:
    """Measures CPU time in a scheduler's hooks."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def over(self, scheduler: Any) -> Any:
        for name in HOOKS:
            setattr(scheduler, name, self._timed(getattr(scheduler, name)))
        return scheduler

    def _timed(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.thread_time()
            answer = hook(*arguments)
            self.spent_s += time.thread_time() - began
            return answer

        return timed
