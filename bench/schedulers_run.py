"""Run one candidate on one problem with one seed. Runs in any process, by names.

The value that is followed is the incumbent's true one: the problem without its noise, at the iteration that
was reported. So a lucky reading is not a good result.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from muster.sim.tune.candidates import SCHEDULERS, CandidateSettings, make_searcher
from muster.sim.tune.engine import Costs
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.problems import PROBLEMS

WORKERS = 16
SAMPLES = 64
COSTS = Costs(start_s=10.0, restore_s=5.0, save_s=2.0)  # pausing is not free, as it is not in life
MOST_STEPS = 2_000_000


@dataclass(frozen=True)
class Entry:
    """A candidate: ours or Ray's scheduler, with a searcher."""

    scheduler: str
    searcher: str = "random"
    is_ray: bool = False

    @property
    def name(self) -> str:
        plain = self.scheduler if self.searcher == "random" else f"{self.scheduler}+{self.searcher}"
        return f"ray:{plain}" if self.is_ray else plain


@dataclass(frozen=True)
class SchedulerRun:
    """Has the incumbent's true value over hours and over node-hours."""

    hours: tuple[float, ...]
    node_hours: tuple[float, ...]
    values: tuple[float, ...]
    end_h: float
    used_node_h: float
    results: int

    def at(self, axis: str, moment: float) -> float:
        """Return the value at a moment; NaN before the first result."""
        place = bisect_right(getattr(self, axis), moment)
        return self.values[place - 1] if place else math.nan

    def reach(self, axis: str, target: float) -> float:
        """Return when the value was first as good as the target; infinity: never."""
        for moment, value in zip(getattr(self, axis), self.values, strict=True):
            if value <= target:
                return moment
        return math.inf


def run_candidate(problem_name: str, entry: Entry, seed: int, samples: int = SAMPLES) -> SchedulerRun:
    problem = PROBLEMS[problem_name]
    space = problem.space()
    settings = CandidateSettings(max_t=problem.max_t, eta=3, seed=seed, space=space)
    experiment = SimulatedExperiment(
        curve=problem.curve(seed),
        space=space,
        metric=problem.metric,
        mode=problem.mode,
        num_samples=samples,
        workers=WORKERS,
        make_scheduler=lambda: _scheduler(entry, settings),
        make_search=None if entry.searcher == "random" else lambda: make_searcher(entry.searcher, seed),
        max_t=problem.max_t,
        costs=COSTS,
        seed=seed,
        ahead=WORKERS if entry.searcher == "random" else None,
    )
    simulated = experiment.begin().run(MOST_STEPS)
    if not simulated.state.is_finished:
        raise RuntimeError(
            f"{entry.name} on {problem_name}, seed {seed}: not over after {simulated.steps} steps"
        )
    found = simulated.history.found
    return SchedulerRun(
        hours=tuple(one.at_s / 3600.0 for one in found),
        node_hours=tuple(one.worker_s / 3600.0 for one in found),
        values=tuple(problem.loss(one.config, float(one.iteration)) for one in found),
        end_h=simulated.clock.monotonic() / 3600.0,
        used_node_h=simulated.worker_h,
        results=simulated.history.results,
    )


def _scheduler(entry: Entry, settings: CandidateSettings):
    if not entry.is_ray:
        return SCHEDULERS[entry.scheduler].make(settings)
    from bench.peer import schedulers

    return schedulers.scheduler(entry.scheduler, settings)
