"""Random experiments with faults in virtual time, for schedulers that pause and stop: drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.simulation.tune.faults import FaultPlan, FaultRates, FaultyExperiment

from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.trial import Costs
from muster.tune.search.space import uniform


def storm(make: Callable[[], Any], seed: int, most_trials: int = 10) -> SimulatedExperiment:
    """Failures, NaN, lost checkpoints, slow saves, few workers, a searcher that holds back: each or none."""
    draw = random.Random(seed)
    return FaultyExperiment(
        curve=lambda config, t: {"score": round(config["x"], 1) - 1.0 / t},  # ties happen
        space={"x": uniform(0.0, 1.0)},
        metric="score",
        mode="max",
        num_samples=draw.randint(1, most_trials),
        make_scheduler=make,
        workers=draw.randint(1, 5),
        max_t=draw.choice([5, 12]),  # before or after the scheduler's
        max_failures=draw.choice([0, 1, -1]),
        max_concurrent=draw.choice([0, 0, 1, 3]),
        reuse_actors=draw.random() < 0.3,
        costs=Costs(
            start_s=draw.choice([0.0, 0.5]),
            save_s=draw.choice([0.0, 0.3, 2.5]),
            stop_s=draw.choice([0.0, 0.7]),
            checkpoint_every=draw.choice([0, 0, 2]),
        ),
        faults=FaultPlan(FaultRates.swarm(seed, hour_s=draw.choice([20.0, 60.0])), seed),
        seed=seed,
        ahead=draw.choice([None, 1, 4]),
    )
